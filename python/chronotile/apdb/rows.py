"""Conform input tables to a schema, and the `Rows` that reads return."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chronotile import _native, optional
from chronotile.apdb import names
from chronotile.apdb.schema import Table
from chronotile.casts import first_misfit, fitting
from chronotile.errors import InvalidInputError
from chronotile.hints import name_hint, name_list
from chronotile.result import ReadResult

if TYPE_CHECKING:
    import pandas
    import polars

__all__ = ["Rows"]


class Rows:
    """Rows of a read: an Arrow table with units and descriptions of its columns.

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
            raise InvalidInputError(f"no column {name!r}{hint}", kind="invalid-request")
        return self._table[name]

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)

    @property
    def column_names(self) -> list[str]:
        """Names of the columns, in order."""
        return list(self._table.schema.names)

    @property
    def units(self) -> dict[str, str]:
        """Units by column, where defined."""
        notes = ((field.name, field.metadata or {}) for field in self._table.schema)
        return {name: metadata[b"unit"].decode() for name, metadata in notes if b"unit" in metadata}

    def to_arrow(self) -> Any:
        """Convert to a `pyarrow.Table`."""
        return self._table

    def to_pandas(self, **options: Any) -> pandas.DataFrame:
        """Convert to a `pandas.DataFrame`; `options` are passed to `pyarrow.Table.to_pandas`. Needs pandas."""
        optional.require("to_pandas()", "pandas", "pandas")
        return self._table.to_pandas(**options)

    def to_polars(self) -> polars.DataFrame:
        """Convert to a `polars.DataFrame`. Needs polars."""
        frame: polars.DataFrame = optional.module("polars", "to_polars()", "polars").DataFrame(self._table)
        return frame

    def to_astropy(self) -> Any:
        """Convert to an `astropy.table.QTable` with units; columns with nulls are masked. Needs astropy."""
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
    """Convert `data` to a `pyarrow.Table`."""
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
        try:
            return _from_pandas(data, what)
        except pa.ArrowException as error:
            raise _mixed({name: data[name] for name in data.columns}, what, error) from error
    if package == "polars" and hasattr(data, "collect") and not hasattr(data, "__arrow_c_stream__"):
        data = data.collect()
    if package == "astropy" and hasattr(data, "colnames"):
        data = {name: data[name] for name in data.colnames}
    if isinstance(data, Mapping):
        try:
            return pa.table(dict(data))
        except (pa.ArrowException, TypeError) as error:
            raise _mixed(data, what, error) from error
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        return pa.table(data)
    raise InvalidInputError(
        f"{what} have type {type(data).__name__}: give an Arrow table, a DataFrame or a dict of arrays",
        kind="invalid-rows",
    )


def _from_pandas(frame: Any, what: str) -> Any:
    """Convert a `pandas.DataFrame` column by column. `pyarrow.Table.from_pandas` also writes pandas metadata for each
    column, which takes longer than converting the few rows of a detector-visit.
    """
    columns = [str(name) for name in frame.columns.to_numpy()]
    _refuse_twice(columns, what)
    arrays = [pa.array(column, from_pandas=True) for column in _pandas_columns(frame)]
    return pa.table(dict(zip(columns, arrays, strict=True)))


def _pandas_columns(frame: Any) -> Iterator[Any]:
    """Columns as numpy arrays where pandas holds plain numbers, else as Series. Building a Series takes longer than
    converting the column, so use a private method of pandas that avoids it, if this release of pandas has it.
    """
    if not hasattr(frame, "_iter_column_arrays"):
        yield from (column for _, column in frame.items())
        return
    for place, values in enumerate(frame._iter_column_arrays()):
        plain = isinstance(values, np.ndarray) and values.dtype.kind in "fiub"
        yield values if plain else frame.iloc[:, place]


def _mixed(columns: Mapping[str, Any], what: str, error: Exception) -> InvalidInputError:
    """The error for columns that Arrow cannot convert; it names the first such column."""
    for name, values in columns.items():
        try:
            pa.array(values)
        except (pa.ArrowException, TypeError) as reason:
            text = f"{what}: cannot convert column {name}, give values of one type: {reason}"
            return InvalidInputError(text, kind="invalid-rows", column=str(name))
    return InvalidInputError(f"{what}: {error}", kind="invalid-rows")


def with_units(data: Any, table: Table) -> Any:
    """Convert astropy quantities to numbers in the units of the schema; leave other columns as they are."""
    if type(data).__module__.split(".")[0] == "astropy" and hasattr(data, "colnames"):
        data = {name: data[name] for name in data.colnames}
    if not isinstance(data, Mapping) or not any(hasattr(values, "to_value") for values in data.values()):
        return data
    out = {}
    for name, values in data.items():
        if hasattr(values, "to_value") and name in table:
            unit = table[name].unit
            if hasattr(values, "tai") and unit in (None, "d"):
                values = values.tai.mjd
            elif unit is None:
                raise InvalidInputError(
                    f"column {name} of {table.name} has no unit: give plain numbers instead of a quantity "
                    f"in {values.unit}",
                    kind="invalid-rows",
                )
            else:
                try:
                    values = values.to_value(unit)
                except (TypeError, ValueError) as error:
                    # Times, and units that cannot be converted.
                    raise InvalidInputError(
                        f"column {name} of {table.name} is in {unit}: give numbers in it, or quantities that can be "
                        f"converted to it, not {getattr(values, 'unit', 'times')}",
                        kind="invalid-rows",
                        column=name,
                    ) from error
        out[name] = values
    return out


def conform(data: Any, table: Table, filled: Mapping[str, Any], where: str) -> Any:
    """Convert `data` to the columns and types of `table`.

    `filled` holds constants for columns missing in `data`. Missing nullable columns stay out.

    Raises
    ------
    InvalidInputError
        An unknown column, a missing required column, or values that do not fit the type.
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
    """Plan the conversion of rows to a table: positions of columns to cast, and defaults of columns to fill.

    A pipeline stores the same columns again and again, and checking a hundred of them takes a good part of a store, so
    the last plan is cached.
    """
    kept = table.plans.get(filled)
    if kept is not None and kept[0].equals(schema):
        casts, fills = kept[1]
        return casts, fills
    _refuse_twice(schema.names, where)
    unknown = [name for name in schema.names if name not in table]
    if unknown:
        near = [hint for name in unknown[:3] for hint in _native.nearest_names(name, table.column_names)[:1]]
        hint = f"did you mean {', '.join(near)}? Otherwise " if near else ""
        raise InvalidInputError(
            f"{where}: unknown columns of table {table.name}: {name_list(unknown)}; {hint}leave them out, or migrate "
            "the schema",
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
                f"{where}: required column {column.name} of {table.name} is missing; add it, or create the "
                "database with Schema.relaxed (--relaxed), for example to import alerts, which leave "
                "columns out",
                kind="invalid-rows",
            )
    table.plans[filled] = (schema, (casts, fills))
    return casts, fills


def _refuse_twice(columns: list[str], where: str) -> None:
    if len(set(columns)) < len(columns):
        twice = sorted({name for name in columns if columns.count(name) > 1})
        raise InvalidInputError(f"{where}: duplicate columns {name_list(twice)}", kind="invalid-rows")


def _cast(column: Any, kind: Any, name: str, where: str) -> Any:
    # Storing a double in a float column rounds it, as the schema implies; integers must keep their value.
    safe = not (pa.types.is_floating(kind) and pa.types.is_floating(column.type))
    try:
        return fitting(column, kind, safe=safe)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        first = first_misfit(column, kind, safe=safe)
        row = "" if first is None else f"row {first} holds {column[first].as_py()!r}: "
        raise InvalidInputError(
            f"{where}: cannot convert column {name} from {column.type} to {kind}: {row}{error}", kind="invalid-rows"
        ) from None


def newest(table: Any, keys: list[str], order: str) -> Any:
    """For each group of equal `keys`, keep the row with the greatest `order`."""
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
    """Drop the versions of deleted objects."""
    gone = versions.filter(pc.equal(versions[names.VERSION], names.GONE))[names.OBJECT_ID]
    return (
        versions.filter(pc.invert(pc.is_in(versions[names.OBJECT_ID], gone.combine_chunks())))
        if len(gone)
        else versions
    )


def set_column(table: Any, name: str, values: Any) -> Any:
    """Replace the values of one column, keeping its type."""
    place = table.schema.get_field_index(name)
    field = table.schema.field(place)
    array = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values, field.type)
    return table.set_column(place, field, array.cast(field.type))
