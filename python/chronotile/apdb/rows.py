"""Rows in: tables made to fit a schema. Rows out: what a read returns."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chronotile import optional
from chronotile.apdb import names
from chronotile.apdb.schema import Table
from chronotile.errors import InvalidInputError
from chronotile.hints import name_hint
from chronotile.result import ReadResult

if TYPE_CHECKING:
    import pandas
    import polars

__all__ = ["Rows"]


class Rows:
    """The rows of one read: an Arrow table with the units and descriptions of its columns.

    Any library that knows ``__arrow_c_stream__`` reads it (pyarrow, polars, DuckDB, pandas 3); unlike a
    :class:`~chronotile.ReadResult` it can be used many times.
    """

    __slots__ = ("_table",)

    def __init__(self, table: Any) -> None:
        self._table = table

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __repr__(self) -> str:
        return f"<Rows: {len(self)} rows, {self._table.num_columns} columns>"

    def __getitem__(self, name: str) -> Any:
        """One column, as a `pyarrow.ChunkedArray`."""
        if name not in self._table.schema.names:
            hint = name_hint(name, self._table.schema.names)
            raise InvalidInputError(f"the rows have no column {name!r}{hint}", kind="invalid-request")
        return self._table[name]

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)

    @property
    def column_names(self) -> list[str]:
        """Names of the columns, in order."""
        return list(self._table.schema.names)

    @property
    def units(self) -> dict[str, str]:
        """Units of the columns that have one."""
        notes = ((field.name, field.metadata or {}) for field in self._table.schema)
        return {name: metadata[b"unit"].decode() for name, metadata in notes if b"unit" in metadata}

    def to_arrow(self) -> Any:
        """As a `pyarrow.Table`."""
        return self._table

    def to_pandas(self, **options: Any) -> pandas.DataFrame:
        """As a `pandas.DataFrame`; `options` go to `pyarrow.Table.to_pandas`. Needs pandas."""
        optional.require("to_pandas()", "pandas", "pandas")
        return self._table.to_pandas(**options)

    def to_polars(self) -> polars.DataFrame:
        """As a `polars.DataFrame`. Needs polars."""
        frame: polars.DataFrame = optional.module("polars", "to_polars()", "polars").DataFrame(self._table)
        return frame

    def to_astropy(self) -> Any:
        """As an `astropy.table.QTable` whose columns have their units; columns with nulls are masked. Needs astropy."""
        optional.require("to_astropy()", "lsst", "astropy")
        from astropy import units
        from astropy.table import QTable

        table = QTable()
        for field in self._table.schema:
            column = self._table[field.name].combine_chunks()
            values = column.to_numpy(zero_copy_only=False) if not column.null_count else _masked(column)
            unit = (field.metadata or {}).get(b"unit")
            if unit is not None and values.dtype.kind == "f":
                values = values * units.Unit(unit.decode())
            table[field.name] = values
        return table


def _masked(column: Any) -> Any:
    kind = column.type
    if pa.types.is_floating(kind):
        return column.to_numpy(zero_copy_only=False)
    mask = np.asarray(pc.is_null(column).to_numpy(zero_copy_only=False))
    fill = "" if pa.types.is_string(kind) else False if pa.types.is_boolean(kind) else 0
    return np.ma.array(pc.fill_null(column, fill).to_numpy(zero_copy_only=False), mask=mask)


def arrow_table(data: Any, what: str) -> Any:
    """`data` as a `pyarrow.Table`."""
    if isinstance(data, Rows):
        return data.to_arrow()
    if isinstance(data, pa.Table):
        return data
    if isinstance(data, ReadResult):
        return data.to_arrow()
    package = type(data).__module__.split(".")[0]
    if package == "pandas" and package in sys.modules and hasattr(data, "columns"):
        if any(name is not None for name in data.index.names):
            data = data.reset_index()
        return pa.Table.from_pandas(data, preserve_index=False)
    if package == "polars" and hasattr(data, "collect") and not hasattr(data, "__arrow_c_stream__"):
        data = data.collect()
    if package == "astropy" and hasattr(data, "colnames"):
        data = {name: data[name] for name in data.colnames}
    if isinstance(data, Mapping):
        return pa.table(dict(data))
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        return pa.table(data)
    raise InvalidInputError(
        f"{what} are a {type(data).__name__}, which is no table: give an Arrow table, a DataFrame or a dict of arrays",
        kind="invalid-rows",
    )


def with_units(data: Any, table: Table) -> Any:
    """Quantities of astropy as numbers in the units of the schema; anything else as it is."""
    if type(data).__module__.split(".")[0] == "astropy" and hasattr(data, "colnames"):
        data = {name: data[name] for name in data.colnames}
    if not isinstance(data, Mapping) or not any(hasattr(values, "to_value") for values in data.values()):
        return data
    out = {}
    for name, values in data.items():
        if hasattr(values, "to_value") and name in table:
            unit = table[name].unit
            if hasattr(values, "tai"):
                values = values.tai.mjd
            elif unit is None:
                raise InvalidInputError(
                    f"column {name} of {table.name} has no unit, but a quantity in {values.unit} was given",
                    kind="invalid-rows",
                )
            else:
                values = values.to_value(unit)
        out[name] = values
    return out


def conform(data: Any, table: Table, filled: Mapping[str, Any], where: str) -> Any:
    """`data` with the columns and types of `table`.

    `filled` are values for all rows of columns that the data leave out. A column that may be null stays out where the
    data have none.

    Raises
    ------
    InvalidInputError
        A column that the table has not, one that is needed and missing, or values that do not fit its type.
    """
    given = arrow_table(with_units(data, table), where)
    casts, fills = _plan(given.schema, table, tuple(filled), where)
    for place, field in casts:
        given = given.set_column(place, field, _cast(given.column(place), field.type, field.name, where))
    for field, default in fills:
        value = pa.scalar(filled.get(field.name, default), field.type)
        given = given.append_column(field, pa.repeat(value, given.num_rows))
    return given


def _plan(schema: Any, table: Table, filled: tuple[str, ...], where: str) -> tuple[list[Any], list[Any]]:
    """What makes rows of a schema fit a table: columns to be cast, by place, and columns to be filled, with defaults.

    A pipeline stores the same columns again and again, and going through a hundred of them takes a good part of a
    store: so the last plan is kept.
    """
    kept = table.plans.get(filled)
    if kept is not None and kept[0].equals(schema):
        casts, fills = kept[1]
        return casts, fills
    if len(set(schema.names)) < len(schema.names):
        twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
        raise InvalidInputError(f"{where}: there are two columns {', '.join(twice)}", kind="invalid-rows")
    unknown = [name for name in schema.names if name not in table]
    if unknown:
        raise InvalidInputError(
            f"{where}: table {table.name} has no column {', '.join(unknown)}; leave it out, or migrate the schema",
            kind="invalid-rows",
        )
    casts, fills = [], []
    for column in table.columns:
        place = schema.get_field_index(column.name)
        if place >= 0:
            if schema.field(place).type != column.arrow.type:
                casts.append((place, column.arrow))
        elif column.name in filled or column.default is not None:
            fills.append((column.arrow, column.default))
        elif not column.nullable:
            raise InvalidInputError(
                f"{where}: column {column.name} of {table.name} is missing, and may not be null; give it, or create "
                "the database with Schema.relaxed (--relaxed), which alerts need, for they leave columns out",
                kind="invalid-rows",
            )
    table.plans[filled] = (schema, (casts, fills))
    return casts, fills


def _cast(column: Any, kind: Any, name: str, where: str) -> Any:
    if column.type == kind:
        return column
    try:
        # A double that is stored as a float is rounded, as the schema says; integers must keep their value.
        safe = not (pa.types.is_floating(kind) and pa.types.is_floating(column.type))
        return column.cast(kind, safe=safe)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidInputError(
            f"{where}: column {name} is {column.type} and does not fit {kind}: {error}", kind="invalid-rows"
        ) from None


def newest(table: Any, keys: list[str], order: str) -> Any:
    """Of rows with equal `keys` the one with the greatest `order`."""
    if not table.num_rows:
        return table
    ordered = table.take(pc.sort_indices(table, [(name, "ascending") for name in [*keys, order]]))
    last = np.ones(ordered.num_rows, bool)
    same = np.ones(ordered.num_rows - 1, bool)
    for name in keys:
        values = ordered[name].to_numpy()
        same &= values[1:] == values[:-1]
    last[:-1] = ~same
    return ordered.filter(pa.array(last))


def drop_deleted(versions: Any) -> Any:
    """Versions of objects without those of objects that were deleted."""
    gone = versions.filter(pc.equal(versions[names.VERSION], names.GONE))[names.OBJECT_ID]
    return (
        versions.filter(pc.invert(pc.is_in(versions[names.OBJECT_ID], gone.combine_chunks())))
        if len(gone)
        else versions
    )


def set_column(table: Any, name: str, values: Any) -> Any:
    """`table` with other values in one column, of the same type."""
    place = table.schema.get_field_index(name)
    field = table.schema.field(place)
    array = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values, field.type)
    return table.set_column(place, field, array.cast(field.type))
