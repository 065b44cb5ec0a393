"""A dataset as a polars lazy source that takes columns and filters."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chronotile import _native, optional, times
from chronotile.cells import HashCell, IdBucketCell, KeyCell

if TYPE_CHECKING:
    import polars

    from chronotile.dataset import Dataset

__all__: list[str] = []

_COMPARISONS = {"Eq": "==", "NotEq": "!=", "Lt": "<", "LtEq": "<=", "Gt": ">", "GtEq": ">="}
_EXPRESSION = frozenset("\\.+*?()|[]{}^$")
"""Characters that make a text a regular expression."""
_TICKS_END = 2**63
_MIRRORED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


@dataclass(frozen=True)
class Term:
    """A comparison of a column with constants that every row of the result satisfies."""

    column: str
    comparison: str
    values: polars.Series


@dataclass
class PushedFilter:
    """The part of a polars filter that the read takes over. It never excludes a row that the filter keeps."""

    start: tuple[str, int | float] | None = None
    end: tuple[str, int | float] | None = None
    keys: list[_native.Array] | None = None
    ids: list[_native.Array] | None = None
    predicates: list[tuple[str, str, _native.Array]] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether the period is empty, for example because the filter contradicts itself."""
        if self.start is None:
            return False
        beyond = self.start[0] == "ticks" and self.start[1] >= _TICKS_END
        return beyond or (self.end is not None and self.start[1] >= self.end[1])


def scan(dataset: Dataset) -> polars.LazyFrame:
    """See :meth:`chronotile.Dataset.scan`."""
    optional.require("scan()", "polars", "polars")
    import polars
    from polars.io.plugins import register_io_source

    schema = polars.DataFrame(dataset._definition.schema.empty_table()).schema

    def source(
        with_columns: list[str] | None, predicate: polars.Expr | None, n_rows: int | None, batch_size: int | None
    ) -> Iterator[polars.DataFrame]:
        columns = None
        if with_columns is not None:
            needed = [*with_columns, *(predicate.meta.root_names() if predicate is not None else ())]
            # A read returns at least one column, and polars may ask for none to count rows.
            columns = list(dict.fromkeys(needed)) or [dataset.time.column]
        pushed = push_down(dataset, predicate, schema)
        if pushed.is_empty:
            return
        result = dataset._native.read(_native.Request(columns=columns, **vars(pushed)))
        left = n_rows
        # With a predicate, the limit would count rows that polars drops below.
        if predicate is None and n_rows is not None:
            result.limit(n_rows)
        while left != 0 and (table := result.next_batch()) is not None:
            frame = polars.DataFrame(table)
            if predicate is not None:
                frame = frame.filter(predicate)
            if with_columns:
                frame = frame.select(with_columns)
            if left is not None:
                frame = frame.head(left)
                left -= frame.height
            yield frame

    return register_io_source(source, schema=schema)


def push_down(dataset: Dataset, predicate: polars.Expr | None, schema: Any) -> PushedFilter:
    """The part of a filter that a read of `dataset` can take over."""
    pushed = PushedFilter()
    if predicate is None:
        return pushed
    try:
        tree = json.loads(predicate.meta.serialize(format="json"))
    except Exception:
        # Expressions with Python functions cannot be serialized; polars then filters alone.
        return pushed
    terms = [term for part in _conjuncts(tree) for term in _terms(part, schema)]
    # Polars treats NaN as the greatest number, Chronotile as no number. Push a lower bound down only if an upper bound
    # also excludes NaN.
    bounded = {term.column for term in terms if term.comparison in ("<", "<=", "==", "in")}
    for term in terms:
        if term.column == dataset.time.column:
            _push_time(pushed, term, dataset)
        elif term.comparison in (">", ">=") and schema[term.column].is_float() and term.column not in bounded:
            continue
        else:
            _push_condition(pushed, term, dataset)
    return pushed


def _conjuncts(tree: Any) -> Iterator[Any]:
    binary = tree.get("BinaryExpr") if isinstance(tree, dict) else None
    if binary and binary.get("op") in ("And", "LogicalAnd"):
        yield from _conjuncts(binary["left"])
        yield from _conjuncts(binary["right"])
    else:
        yield tree


def _terms(tree: Any, schema: Any) -> list[Term]:
    """Comparisons implied by one part of a filter; empty for unsupported expressions."""
    match tree:
        case {"BinaryExpr": {"left": {"Column": str(column)}, "op": str(op), "right": literal}} if op in _COMPARISONS:
            return _term(column, _COMPARISONS[op], [literal], schema)
        case {"BinaryExpr": {"left": literal, "op": str(op), "right": {"Column": str(column)}}} if op in _COMPARISONS:
            return _term(column, _MIRRORED[_COMPARISONS[op]], [literal], schema)
        case {
            "Function": {
                "input": [{"Column": str(column)}, low, high],
                "function": {"Boolean": {"IsBetween": {"closed": closed}}},
            }
        }:
            lower = ">=" if closed in ("Both", "Left") else ">"
            upper = "<=" if closed in ("Both", "Right") else "<"
            return _term(column, lower, [low], schema) + _term(column, upper, [high], schema)
        case {"Function": {"input": [{"Column": str(column)}, literal], "function": {"Boolean": {"IsIn": _}}}}:
            return _term(column, "in", [literal], schema)
        case {
            "Function": {"input": [{"Column": str(column)}], "function": {"Boolean": "IsNull" | "IsNotNull" as test}}
        }:
            return _exists(column, test == "IsNotNull", schema)
        case {"Function": {"input": [{"Column": str(column)}, literal], "function": {"StringExpr": "StartsWith"}}}:
            return _term(column, "prefix", [literal], schema)
        case {
            "Function": {
                "input": [{"Column": str(column)}, literal],
                "function": {"StringExpr": {"Contains": {"literal": plain}}},
            }
        }:
            # A pattern without special characters is plain text; leave other patterns to polars.
            return [
                term
                for term in _term(column, "contains", [literal], schema)
                if plain or not _EXPRESSION.intersection(term.values.item())
            ]
    return []


def _exists(column: str, wanted: bool, schema: Any) -> list[Term]:
    import polars

    return [Term(column, "exists", polars.Series([wanted]))] if column in schema else []


def _term(column: str, comparison: str, literals: list[Any], schema: Any) -> list[Term]:
    if column not in schema:
        return []
    values = _constant(literals[0])
    if values is None:
        return []
    if comparison == "in" and hasattr(values.dtype, "inner"):
        values = values.explode()
    if comparison == "in":
        values = values.drop_nulls()
    # A constant of another type would need a common supertype; leave the comparison to polars.
    if values.dtype != schema[column] or values.null_count() or (comparison != "in" and len(values) != 1):
        return []
    if values.dtype.is_float() and values.is_nan().any():
        return []
    return [Term(column, comparison, values)]


def _constant(tree: Any) -> polars.Series | None:
    """The value of an expression without columns."""
    import polars

    text = json.dumps(tree)
    if '"Column"' in text or '"Literal"' not in text:
        return None
    try:
        expression = polars.Expr.deserialize(io.BytesIO(text.encode()), format="json")
        return polars.select(expression).to_series()
    except Exception:
        # Leave expressions that cannot be evaluated here to polars.
        return None


def _push_time(pushed: PushedFilter, term: Term, dataset: Dataset) -> None:
    if term.comparison not in ("<", "<=", ">", ">=", "=="):
        return
    first, after = _times_at(term, dataset)
    if term.comparison in (">", ">=", "=="):
        start = after if term.comparison == ">" else first
        if pushed.start is None or start[1] > pushed.start[1]:
            pushed.start = start
    if term.comparison in ("<", "<=", "=="):
        end = first if term.comparison == "<" else after
        if pushed.end is None or end[1] < pushed.end[1]:
            pushed.end = end
    if pushed.end is not None and pushed.end[1] == _TICKS_END and pushed.end[0] == "ticks":
        # The last representable tick has no successor, so a half-open period cannot include it.
        pushed.end = None


def _times_at(term: Term, dataset: Dataset) -> tuple[tuple[str, int | float], tuple[str, int | float]]:
    """The first tick of the time axis at or after a constant, and the first one after it."""
    value = term.values.to_physical().item()
    if dataset.time.format != "timestamp":
        return ("native", value), ("native", math.nextafter(value, math.inf))
    # Polars stores seconds as milliseconds, so a constant may lie between two seconds.
    tick_ns = times.tick_ns(dataset.column_types[term.column])
    unit = getattr(term.values.dtype, "time_unit", None)
    whole, rest = divmod(value * times.tick_ns(f"timestamp[{unit}]" if unit else "date32"), tick_ns)
    after = ("ticks", whole + 1)
    # A constant between two ticks equals none: times at or after it start with the next tick.
    return (after if rest else ("ticks", whole)), after


def _push_condition(pushed: PushedFilter, term: Term, dataset: Dataset) -> None:
    nested = dataset.column_types[term.column].startswith(("list", "struct"))
    if nested and term.comparison != "exists":
        return
    is_part = term.comparison in ("contains", "prefix")
    values = _native.column_of_list(term.values.to_list(), "utf8") if is_part else _native.Array.of(term.values)
    if term.comparison in ("==", "in"):
        if pushed.keys is None and term.column == _key_column(dataset):
            pushed.keys = [values]
            return
        # Ids must be values of their column's type, which polars times need not be.
        if pushed.ids is None and dataset.id[:1] == (term.column,) and not term.values.dtype.is_temporal():
            pushed.ids = [values]
            return
    pushed.predicates.append((term.column, term.comparison, values))


def _key_column(dataset: Dataset) -> str | None:
    match dataset.cell:
        case KeyCell(column=column) | IdBucketCell(column=column) | HashCell(columns=(column,)):
            return column
    return None
