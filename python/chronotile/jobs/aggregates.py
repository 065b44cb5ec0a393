"""Aggregate groups of rows while they are read. Memory grows with the number of groups, not with that of rows."""

from __future__ import annotations

import decimal
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chronotile.bounds import UNBOUNDED, Bounds
from chronotile.errors import InvalidInputError

__all__ = ["FUNCTIONS", "aggregate"]

FUNCTIONS = ("sum", "mean", "min", "max", "stddev", "count_distinct")

_PARTS_MAX = 64
"""Number of partial results merged at once."""

# The partial aggregates of a group from which each function is computed, and the function that merges each of them.
_PARTIAL_FUNCTIONS = {
    "sum": ["sum"],
    "mean": ["sum", "count"],
    "min": ["min"],
    "max": ["max"],
    "stddev": ["count"],
    "count_distinct": [],
}
_MERGE_FUNCTIONS = {"sum": "sum", "count": "sum", "min": "min", "max": "max"}
_OVERFLOW_FROM = {pa.int64(): 2.0**63 * (1 - 2**-20), pa.uint64(): 2.0**64 * (1 - 2**-20)}
"""Least float sum at which the integer sum may have overflowed, by type."""


def aggregate(
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    by: list[str],
    functions: list[tuple[str, str]],
    bounds: Bounds = UNBOUNDED,
) -> pa.Table:
    """Aggregate the rows of a stream by the values of columns.

    Parameters
    ----------
    batches : iterable of pyarrow.RecordBatch
        Rows with these columns.
    schema : pyarrow.Schema
        Columns of the rows.
    by : list of str
        Each distinct combination of their values is a group; nulls equal each other. Without any, all rows are one.
    functions : list of (str, str)
        Columns and the names of functions (:data:`FUNCTIONS`), which skip nulls. ``stddev`` is that of a population.
    bounds : Bounds
        Limits of the memory held and of the number of groups. For ``count_distinct``, distinct values count as groups.

    Returns
    -------
    pyarrow.Table
        The columns `by`, ``count``, then ``COLUMN_FUNCTION`` of each function, in no particular order; null where a
        group has no values. Types are those that Arrow's own functions have.

    Raises
    ------
    InvalidInputError
        There are more groups than `bounds` allows (``too-large``), a function does not exist for the type of its
        column, or a sum of integers exceeds 64 bits.
    """
    groups = _Groups(schema, by, functions, bounds)
    for batch in batches:
        groups.add(pa.Table.from_batches([batch]))
    return groups.result()


class _Groups:
    """Partial results of groups.

    Columns are named by position, since a user's may have any name: keys ``k0``, ``k1``, and values ``v0``, ``v1``, of
    which partial aggregates such as ``v0_sum`` are stored.
    """

    def __init__(self, schema: pa.Schema, by: list[str], functions: list[tuple[str, str]], bounds: Bounds) -> None:
        self._by, self._functions, self._bounds = by, functions, bounds
        # A constant key puts all rows in one group.
        self._keys = [f"k{position}" for position in range(len(by))] or ["k"]
        columns = dict.fromkeys(column for column, _ in functions)
        self._values = {column: f"v{position}" for position, column in enumerate(columns)}
        self._partials = list(
            {(self._values[column], kept) for column, name in functions for kept in _PARTIAL_FUNCTIONS[name]}
        )
        self._spread = self._values_of("stddev")
        self._overflow_from = {
            value: _OVERFLOW_FROM[schema.field(column).type]
            for column, value in self._values.items()
            if schema.field(column).type in _OVERFLOW_FROM and (value, "sum") in self._partials
        }
        self._distinct: dict[str, list[pa.Table]] = {value: [] for value in self._values_of("count_distinct")}
        # Aggregated by Arrow, an empty table has the types of the result.
        self._empty_result = _empty_result(schema, by, functions)
        self._parts: list[pa.Table] = []
        # An empty part, so that `_merge` has one even if there are no rows.
        self.add(schema.empty_table())

    def _values_of(self, function: str) -> list[str]:
        return list(dict.fromkeys(self._values[column] for column, name in self._functions if name == function))

    def add(self, rows: pa.Table) -> None:
        """Add rows to their groups."""
        columns = {key: rows[column] for key, column in zip(self._keys, self._by, strict=False)}
        if not self._by:
            columns["k"] = pa.chunked_array([np.zeros(rows.num_rows, np.int8)])
        columns |= {value: rows[column] for column, value in self._values.items()}
        # Arrow rounds the mean of decimals to their scale, which would lose digits here.
        columns |= {f"{value}_real": columns[value].cast(pa.float64(), safe=False) for value in self._spread}
        columns |= {f"{value}_float": columns[value].cast(pa.float64(), safe=False) for value in self._overflow_from}
        table = pa.table(columns)
        float_sums = [(f"{value}_float", "sum") for value in self._overflow_from]
        moments = [(f"{value}_real", name) for value in self._spread for name in ("mean", "variance")]
        found = table.group_by(self._keys).aggregate([([], "count_all"), *self._partials, *float_sums, *moments])
        part = {
            name: found[name] for name in [*self._keys, "count_all", *(f"{v}_{name}" for v, name in self._partials)]
        }
        part |= {name: found[f"{name}_sum"] for name, _ in float_sums}
        for value in self._spread:
            # The mean of a group without values is null; zero in its place changes no sum.
            mean, variance = (_floats(found[f"{value}_real_{name}"]) for name in ("mean", "variance"))
            part[f"{value}_mean"] = mean
            part[f"{value}_squares"] = pc.multiply(variance, _floats(found[f"{value}_count"]))
        self._parts.append(pa.table(part))
        for value, parts in self._distinct.items():
            parts.append(table.group_by([*self._keys, value]).aggregate([]))
        # Merging needs a second copy, and 8 bytes per row for its number.
        buffered = [*self._parts, *(part for parts in self._distinct.values() for part in parts)]
        self._bounds.hold(sum(2 * part.nbytes + 8 * part.num_rows for part in buffered))
        if len(self._parts) > _PARTS_MAX:
            self._merge()

    def _merge(self) -> None:
        """Merge the partial results of each group."""
        self._parts = [self._merged(pa.concat_tables(self._parts))]
        self._bounds.check_groups(self._parts[0].num_rows)
        for value, parts in self._distinct.items():
            merged = pa.concat_tables(parts).group_by([*self._keys, value]).aggregate([])
            self._bounds.check_groups(merged.num_rows)
            self._distinct[value] = [merged]

    def _merged(self, parts: pa.Table) -> pa.Table:
        sums = [(f"{value}_{kept}", _MERGE_FUNCTIONS[kept]) for value, kept in self._partials]
        sums += [(f"{value}_float", "sum") for value in self._overflow_from]
        numbered = parts.append_column("row", pa.array(np.arange(parts.num_rows)))
        found = numbered.group_by(self._keys).aggregate([("count_all", "sum"), *sums, ("row", "list")])
        merged = {key: found[key] for key in self._keys} | {"count_all": found["count_all_sum"]}
        merged |= {name: found[f"{name}_{function}"] for name, function in sums}
        # Arrow returns groups in any order: the lists of rows say which parts belong to which group.
        lists = found["row_list"].combine_chunks()
        rows, group = (pc.list_flatten(lists).to_numpy(), pc.list_parent_indices(lists).to_numpy())

        def summed(values: Any) -> Any:
            return np.bincount(group, values, minlength=found.num_rows)

        for value in self._spread:
            count, mean, squares = (
                parts[f"{value}_{name}"].to_numpy()[rows].astype(float) for name in ("count", "mean", "squares")
            )
            # Squared deviations from the common mean, computed from those of the parts (Chan, Golub and LeVeque, 1979).
            common = summed(count * mean) / np.maximum(summed(count), 1)
            merged[f"{value}_mean"] = pa.chunked_array([common])
            merged[f"{value}_squares"] = pa.chunked_array([summed(squares + count * (mean - common[group]) ** 2)])
        return pa.table(merged)

    def result(self) -> pa.Table:
        """The groups of all rows."""
        self._merge()
        (found,) = self._parts
        if not self._by and found.num_rows == 0:
            return self._empty_result
        answer = {name: found[key] for name, key in zip(self._by, self._keys, strict=False)}
        answer["count"] = found["count_all"]
        for column, function in self._functions:
            name = f"{column}_{function}"
            kind = self._empty_result.schema.field(name).type
            if function == "sum" and pc.any(self._may_overflow(found, self._values[column])).as_py():
                raise InvalidInputError(
                    f"the sum of {column!r} exceeds {kind}: use mean and count, or sum shorter periods",
                    kind="too-large",
                )
            answer[name] = self._final(found, self._values[column], function, kind)
        return pa.table(answer)

    def _final(self, found: pa.Table, value: str, function: str, kind: pa.DataType) -> Any:
        if function == "count_distinct":
            return self._distinct_counts(found, value)
        if function == "stddev":
            count = _floats(found[f"{value}_count"])
            spread = pc.sqrt(pc.divide(found[f"{value}_squares"], count))
            return pc.if_else(pc.equal(count, 0.0), pa.scalar(None, pa.float64()), spread)
        if function != "mean":
            return found[f"{value}_{function}"].cast(kind)
        sums, counts = found[f"{value}_sum"], found[f"{value}_count"]
        if not pa.types.is_decimal(kind):
            sums = sums.cast(kind, safe=False)
            if value in self._overflow_from:
                # Arrow's sums of integers wrap around: where one may have, take the sum of floats.
                sums = pc.if_else(self._may_overflow(found, value), found[f"{value}_float"], sums)
            return pc.divide(sums, counts.cast(kind, safe=False))
        with decimal.localcontext(prec=80, rounding=decimal.ROUND_HALF_UP):
            unit = decimal.Decimal(1).scaleb(-kind.scale)
            pairs = zip(sums.to_pylist(), counts.to_pylist(), strict=True)
            return pa.array([None if total is None else (total / n).quantize(unit) for total, n in pairs], kind)

    def _may_overflow(self, found: pa.Table, value: str) -> Any:
        """Whether the integer sum of each group may have overflowed."""
        if value not in self._overflow_from:
            return pa.array([False])
        return pc.fill_null(pc.greater_equal(pc.abs(found[f"{value}_float"]), self._overflow_from[value]), False)

    def _distinct_counts(self, found: pa.Table, value: str) -> Any:
        (distinct,) = self._distinct[value]
        valid = distinct.select(self._keys).append_column("one", pc.is_valid(distinct[value]).cast(pa.int64()))
        valid = valid.append_column("row", pa.nulls(valid.num_rows, pa.int64()))
        groups = found.select(self._keys).append_column("one", pa.array(np.zeros(found.num_rows, np.int64)))
        groups = groups.append_column("row", pa.array(np.arange(found.num_rows)))
        # Arrow returns groups in any order.
        counted = pa.concat_tables([groups, valid]).group_by(self._keys).aggregate([("one", "sum"), ("row", "min")])
        return counted.sort_by("row_min")["one_sum"]


def _empty_result(schema: pa.Schema, by: list[str], functions: list[tuple[str, str]]) -> pa.Table:
    """Aggregate an empty table with Arrow, which gives the names and types of the result."""
    empty = schema.empty_table()
    for column, function in functions:
        try:
            empty.group_by(by).aggregate([(column, function)])
        except pa.ArrowNotImplementedError:
            raise InvalidInputError(
                f"cannot compute {function} of {column!r}: its type is {schema.field(column).type}",
                kind="invalid-request",
            ) from None
    found = empty.group_by(by).aggregate([([], "count_all"), *functions])
    return found.rename_columns(["count" if name == "count_all" else name for name in found.column_names])


def _floats(values: Any) -> Any:
    return pc.fill_null(values.cast(pa.float64(), safe=False), 0.0)
