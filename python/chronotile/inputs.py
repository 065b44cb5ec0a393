"""Convert rows, columns and schemas from the forms that callers use to those of the native module."""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from typing import Any

from chronotile import _native, scanning, times
from chronotile.errors import ChronotileError, InvalidInputError
from chronotile.result import ReadResult

__all__: list[str] = []

Types = Mapping[str, str]
"""Column types of a dataset by name, as text."""

_DAY_NS = 86_400 * 10**9
_TICKS_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_NUMPY_NUMBERS = frozenset(
    ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64"]
)


def rows(data: Any, types: Types) -> Any:
    """Convert rows for the native `write`: one Arrow object, or an iterator of them."""
    table = _arrow_object(data, types)
    if table is not None:
        return table
    if isinstance(data, str | bytes) or not isinstance(data, Iterable):
        raise InvalidInputError(
            f"cannot store an object of type {type(data).__name__}: give an Arrow table or stream, a DataFrame, "
            "a dict of arrays, or an iterable of those",
            kind="invalid-rows",
        )
    return _arrow_objects(data, types)


def _arrow_objects(items: Iterable[Any], types: Types) -> Iterator[Any]:
    for item in items:
        table = _arrow_object(item, types)
        if table is None:
            raise InvalidInputError(
                f"the input yielded an object of type {type(item).__name__}: yield Arrow tables, DataFrames or dicts "
                "of arrays",
                kind="invalid-rows",
            )
        yield table


def _arrow_object(data: Any, types: Types) -> Any:
    """Convert `data` to an object with an Arrow PyCapsule method; None if that is impossible."""
    if isinstance(data, ReadResult):
        return data._native
    if _is_from(data, "pandas") and hasattr(data, "columns"):
        return _pandas(data, types)
    if _is_from(data, "polars"):
        data = data.collect() if hasattr(data, "collect") and not hasattr(data, "__arrow_c_stream__") else data
        if hasattr(data, "columns") and any(kind == "Null" for kind in map(str, data.dtypes)):
            # Arrow's Rust library cannot import columns of type Null.
            return _arrow_object(
                {name: [None] * len(data) if str(data[name].dtype) == "Null" else data[name] for name in data.columns},
                types,
            )
    if isinstance(data, Mapping):
        return _native.Table.of_columns(
            [(str(name), column(values, types.get(name), name)) for name, values in data.items()]
        )
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        return _without_offsets(data) if _is_from(data, "pyarrow") else data
    for method in ("to_arrow_reader", "fetch_arrow_reader"):  # older DuckDB
        if hasattr(data, method):
            return getattr(data, method)()
    return None


def _without_offsets(data: Any) -> Any:
    """Copy a slice of a pyarrow table with nested structs: Arrow's Rust library cannot import such slices."""
    import pyarrow

    if not isinstance(data, pyarrow.Table | pyarrow.RecordBatch):
        return data
    for place, field in enumerate(data.schema):
        if not field.type.num_fields:
            continue
        values = data.column(place)
        chunks = values.chunks if isinstance(values, pyarrow.ChunkedArray) else [values]
        if _has_struct_in_struct(field.type) and any(chunk.offset for chunk in chunks):
            data = data.set_column(place, field, values.filter(pyarrow.repeat(True, len(values))))
    return data


def _has_struct_in_struct(kind: Any, inside: bool = False) -> bool:
    import pyarrow

    parts = [kind.field(place).type for place in range(kind.num_fields)]
    is_struct = pyarrow.types.is_struct(kind)
    return (is_struct and inside) or any(_has_struct_in_struct(part, inside or is_struct) for part in parts)


def _is_from(data: object, package: str) -> bool:
    return type(data).__module__.split(".")[0] == package and package in sys.modules


def _pandas(frame: Any, types: Types) -> Any:
    """Convert a DataFrame: named index levels become columns; an unnamed index is dropped."""
    levels = [name for name in frame.index.names if name is not None]
    names = [str(name) for name in [*levels, *frame.columns]]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidInputError(
            f"the frame has two columns named {twice!r}, or a column and an index level: rename one of them, or leave "
            "it out",
            kind="invalid-rows",
        )
    if levels:
        frame = frame.reset_index()
    frame = _plain_frame(frame)
    try:
        import pyarrow
    except ImportError:
        return _arrow_object({str(name): _pandas_column(frame[name]) for name in frame.columns}, types)
    try:
        return pyarrow.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
    except pyarrow.ArrowException:
        # A column mixes types. Converting the columns one by one names it in the error.
        return _arrow_object({str(name): _pandas_column(frame[name]) for name in frame.columns}, types)


def _plain_frame(frame: Any) -> Any:
    """Replace columns of types that Arrow has no equivalent for; see :func:`_plain_series`."""
    replaced = {}
    for place, name in enumerate(frame.columns):
        series = frame.iloc[:, place]
        plain = _plain_series(series, str(name))
        if plain is not series:
            replaced[place] = plain
    if replaced:
        frame = frame.copy(deep=False)
    for place, plain in replaced.items():
        frame.isetitem(place, plain)
    return frame


def _plain_series(series: Any, name: str) -> Any:
    """Unpack a sparse column.

    Raises
    ------
    InvalidInputError
        The column holds periods: their numbers count months since 1970, for example, and are not times.
    """
    import pandas

    if isinstance(series.dtype, pandas.SparseDtype):
        return series.sparse.to_dense()
    if isinstance(series.dtype, pandas.PeriodDtype):
        raise InvalidInputError(
            f"column {name!r} holds periods ({series.dtype}): convert them to times with dt.to_timestamp(), or to text "
            "with astype(str)",
            kind="invalid-rows",
        )
    return series


def _pandas_array(values: Any, name: str) -> Any:
    """Convert a pandas series, index or array to an Arrow array; to a numpy array or a list where Arrow cannot."""
    import pandas

    series = _plain_series(values if isinstance(values, pandas.Series) else pandas.Series(values), name)
    if hasattr(series, "__arrow_c_stream__"):
        try:
            return _native.Array.of(series)
        except ChronotileError:
            raise
        except (ImportError, NotImplementedError, TypeError, ValueError):
            # pyarrow is missing, or the column mixes types: converting value by value names the column in errors.
            pass
    return _pandas_column(series)


def _pandas_column(series: Any) -> Any:
    """Convert a pandas column to a numpy array; or to a list with None, if values may be missing or are not plain
    numbers.
    """
    import pandas

    kind = series.dtype
    if getattr(kind, "kind", "O") in "biufmM" and not isinstance(kind, pandas.api.extensions.ExtensionDtype):
        return series.to_numpy()
    missing = series.isna()
    return [None if null else value for value, null in zip(series.tolist(), missing.tolist(), strict=True)]


def schema(source: Any) -> _native.Schema:
    """Convert a schema, a table, or a mapping of names to type names."""
    if isinstance(source, _native.Schema):
        return source
    if isinstance(source, Mapping) and all(isinstance(kind, str) for kind in source.values()):
        return _native.Schema.of_types([(str(name), kind) for name, kind in source.items()])
    if isinstance(source, Mapping) and source and all(_is_arrow_type(kind) for kind in source.values()):
        import pyarrow

        return _native.Schema.of(pyarrow.schema(list(source.items())))
    if isinstance(source, ReadResult):
        return _native.Schema.of(source._native)
    if hasattr(source, "__arrow_c_schema__"):
        return _native.Schema.of(source)
    table = _arrow_object(source, {})
    if table is None:
        raise InvalidInputError(
            f"cannot take a schema from an object of type {type(source).__name__}: give a schema, a table, or a dict "
            f'such as {{"jd": "float64", "candid": "int64"}}',
            kind="invalid-definition",
        )
    return _native.Schema.of(table)


def _is_arrow_type(kind: object) -> bool:
    return hasattr(kind, "__arrow_c_schema__") and _is_from(kind, "pyarrow")


def column(values: Any, wanted: str | None, name: str) -> _native.Array:
    """Convert one column. Lists become the wanted type; arrays keep their own, which the archive checks."""
    if _is_from(values, "pandas") and hasattr(values, "isna"):
        values = _pandas_array(values, name)
    if isinstance(values, _native.Array):
        return values
    if hasattr(values, "__arrow_c_array__") or hasattr(values, "__arrow_c_stream__"):
        return _native.Array.of(values)
    if _is_from(values, "numpy") and hasattr(values, "dtype") and hasattr(values, "ndim"):
        return _numpy(values, wanted, name)
    if isinstance(values, array):
        import_type = {"f": "float32", "d": "float64"}.get(values.typecode)
        if import_type:
            return _native.column_of_buffer(values, import_type)
        values = list(values)
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InvalidInputError(
            f"invalid column {name!r}: {values!r}; give an array or a list, even for one value",
            kind="invalid-rows",
        )
    return values_column(list(values), wanted, f"column {name!r}")


def _numpy(values: Any, wanted: str | None, name: str) -> _native.Array:
    if values.ndim != 1:
        raise InvalidInputError(
            f"column {name!r} has {values.ndim} dimensions: give one, or an Arrow list array", kind="invalid-rows"
        )
    mask = getattr(values, "mask", None)
    nulls = None
    if mask is not None and hasattr(values, "filled"):
        import numpy

        nulls = numpy.array(numpy.broadcast_to(mask, values.shape), dtype="uint8")
        values = values.data
    kind = values.dtype.kind
    if kind in "mM":
        return _numpy_times(values, nulls, name)
    if kind in "biuf":
        plain = values.astype(values.dtype.newbyteorder("="), copy=False)
        dtype = str(plain.dtype)
        if dtype in _NUMPY_NUMBERS:
            return _native.column_of_buffer(plain.view("uint8") if dtype == "bool" else plain, dtype, None, nulls)
    if kind in "USOT":
        missing = getattr(values.dtype, "na_object", None)
        items = [None if item is missing else item for item in values.tolist()]
        if nulls is not None:
            items = [None if null else item for item, null in zip(items, nulls, strict=True)]
        return values_column(items, wanted, f"column {name!r}")
    raise InvalidInputError(
        f"column {name!r} has unsupported array type {values.dtype}: convert it first", kind="invalid-rows"
    )


def _numpy_times(values: Any, nulls: Any, name: str) -> _native.Array:
    import numpy

    unit, count = numpy.datetime_data(values.dtype)
    moments = values.dtype.kind == "M"
    missing = numpy.isnat(values).astype("uint8")
    if nulls is not None:
        missing |= nulls
    if count != 1 or unit not in (*_TICKS_PER_SECOND, "D") or (unit == "D" and not moments):
        # Convert coarser units to seconds, which every Arrow time type supports, and finer ones to nanoseconds.
        given = values
        unit = "ns" if unit in ("ps", "fs", "as") else "D" if moments and unit in ("Y", "M", "W") else "s"
        values = given.astype(f"{given.dtype.kind}8[{unit}]")
        _require_same(values.astype(given.dtype) == given, missing, given, name)
    if unit == "D":
        days = numpy.where(missing, 0, values.view("int64")).astype("int32")
        _require_same(days == values.view("int64"), missing, values, name)
        return _native.column_of_buffer(days, "int32", "date32", missing)
    kind = "timestamp" if moments else "duration"
    ticks = numpy.ascontiguousarray(values).view("int64")
    return _native.column_of_buffer(ticks, "int64", f"{kind}[{unit}]", missing)


def _require_same(same: Any, missing: Any, values: Any, name: str) -> None:
    """Refuse the first time that the unit of the Arrow type cannot represent exactly."""
    wrong = (~same & (missing == 0)).nonzero()[0]
    if len(wrong):
        raise InvalidInputError(
            f"column {name!r}: value {wrong[0]}, {values[wrong[0]]} ({values.dtype}), is finer than nanoseconds or too "
            "far from 1970: correct it, or leave the record out",
            kind="invalid-rows",
        )


def values_column(values: Sequence[Any], wanted: str | None, what: str) -> _native.Array:
    """Convert Python values: None, bool, numbers, text, bytes, dates, times, timedeltas. Other values need pyarrow."""
    plain = [_plain(value) for value in values]
    first = next((value for value in plain if value is not None), None)
    column_type = wanted
    if wanted and first is not None and not takes(wanted, first):
        # Keep the values' own type: the archive's error then names both types, as for arrays.
        wanted = None
    if isinstance(first, datetime | date | time | timedelta | _Nanoseconds):
        wanted = wanted or _natural_time(first)
        ticks = [None if value is None else _ticks(value, wanted, what) for value in plain]
        return _column_of_list(ticks, wanted, what)
    if first is None or isinstance(first, bool | int | float | str | bytes):
        if isinstance(first, str) and wanted and wanted.startswith(("timestamp", "date")):
            parsed = [_parsed(value, wanted, what) if isinstance(value, str) else value for value in plain]
            return _column_of_list([None if p is None else _ticks(p, wanted, what) for p in parsed], wanted, what)
        if any(
            isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**64 for value in plain
        ):
            raise InvalidInputError(f"{what} holds an integer of more than 64 bits", kind="invalid-rows")
        if wanted in _FLOAT_BITS:
            wanted = _checked_float_type(plain, wanted, what)
        return _column_of_list(plain, wanted, what, column_type)
    return _through_pyarrow(values, what)


def _column_of_list(values: list[Any], wanted: str | None, what: str, column_type: str | None = None) -> _native.Array:
    """Convert plain values to `wanted`; error messages name `column_type` instead, where it differs."""
    try:
        return _native.column_of_list(values, wanted)
    except InvalidInputError as error:
        # The native module does not know the name of the column.
        text = str(error)
        if text.startswith("the list "):
            text = f"{what} {text.removeprefix('the list ')}"
        column_type = column_type or wanted
        kind = f" of type {column_type}" if column_type and text.startswith("value ") else ""
        text = text if what in text else f"{what}{kind}: {text}"
        raise InvalidInputError(text, kind=error.kind, **error.details) from None


@dataclass(frozen=True)
class _Nanoseconds:
    """A time or duration in nanoseconds, finer than Python's own types."""

    count: int
    moment: bool


def _plain(value: Any) -> Any:
    """Convert numpy scalars to Python values; Python times have microsecond precision."""
    if isinstance(value, datetime) or not hasattr(value, "item"):
        return value
    plain = value.item()
    kind = getattr(getattr(value, "dtype", None), "kind", "")
    if kind in ("m", "M") and isinstance(plain, int):
        return _Nanoseconds(times.numpy_ns(value, "a time"), kind == "M")
    return plain


_MOMENTS = frozenset(["timestamp", "date32", "date64"])
_TIMES_OF_DAY = frozenset(["time32", "time64"])
_FLOAT_BITS = {"float16": 11, "float32": 24, "float64": 53}
"""Bits in the mantissa of each float type; integers with more bits may be rounded."""


def takes(wanted: str, value: Any) -> bool:
    """Whether a column of type `wanted` may hold values of the Python type of `value`; for example, a duration column
    cannot hold a datetime. Always true for texts, bytes and other types.
    """
    name = wanted.split("[")[0]
    if isinstance(value, date) or (isinstance(value, _Nanoseconds) and value.moment):
        return name in _MOMENTS
    if isinstance(value, time):
        return name in _TIMES_OF_DAY
    if isinstance(value, timedelta | _Nanoseconds):
        return name == "duration"
    if isinstance(value, bool):
        return wanted.startswith(("bool", "int", "uint", "float", "decimal"))
    if isinstance(value, int | float):
        return wanted.startswith(("bool", "int", "uint", "float", "decimal", "time", "date", "duration"))
    return True


_NOT_FINITE = frozenset(f"{sign}{word}" for sign in ("", "+", "-") for word in ("nan", "inf", "infinity"))


def _checked_float_type(values: list[Any], wanted: str, what: str) -> str | None:
    """Check the values of a column of floats. Return its type, or None if a text is not a number: the values then keep
    their own type, and the archive's error names the unit of the column.

    Raises
    ------
    InvalidInputError
        A value is a text such as "nan", which a cast to floats would accept; or all texts are numbers, and a whole
        number would be rounded or a text would become infinite.
    """
    all_numbers, misfit = True, None
    for row, value in enumerate(values):
        if isinstance(value, str):
            if (word := value.strip()).lower() in _NOT_FINITE:
                raise InvalidInputError(
                    f"{what}: value {row} is the text {scanning.shown(value)}, but the column has type {wanted}: give "
                    f"float({word!r}), or None where there is no value",
                    kind="invalid-rows",
                )
            is_number = scanning.is_number(value)
            all_numbers = all_numbers and is_number
            fits = not is_number or math.isfinite(float(value))
        elif isinstance(value, int) and value:
            # An integer is exact in a float if it fits the mantissa without its trailing zero bits.
            fits = (value // (value & -value)).bit_length() <= _FLOAT_BITS[wanted]
        else:
            continue
        if not fits and misfit is None:
            misfit = row
    if not all_numbers:
        return None
    if misfit is not None:
        raise InvalidInputError(
            f"{what}: value {misfit}, {values[misfit]!r}, does not fit {wanted}: correct it, or leave the record out",
            kind="invalid-rows",
        )
    return wanted


def _natural_time(value: object) -> str:
    if isinstance(value, _Nanoseconds):
        return "timestamp[ns]" if value.moment else "duration[ns]"
    if isinstance(value, datetime):
        return "timestamp[us]" if value.tzinfo is None else "timestamp[us, UTC]"
    if isinstance(value, date):
        return "date32"
    return "time64[us]" if isinstance(value, time) else "duration[us]"


def _parsed(text: str, wanted: str, what: str) -> _Nanoseconds:
    try:
        return _Nanoseconds(times.exact_text_ns(text, what), True)
    except InvalidInputError as error:
        raise InvalidInputError(f"{error}; the column has type {wanted}", kind="invalid-rows") from None


def _ticks(value: Any, wanted: str, what: str) -> int:
    """Convert `value` to a whole number in the unit of the time type `wanted`."""
    name, _, rest = wanted.partition("[")
    if isinstance(value, bool | int | float | bytes) or not takes(wanted, value):
        raise InvalidInputError(
            f"{what} has type {wanted}, and one of its values is {value!r}, of type {type(value).__name__}: give "
            "values of one type",
            kind="invalid-rows",
        )
    if isinstance(value, _Nanoseconds):
        nanoseconds = value.count
    elif isinstance(value, timedelta):
        nanoseconds = times.timedelta_ns(value)
    elif isinstance(value, time):
        if value.tzinfo is not None and value.utcoffset() != timedelta(0):
            raise InvalidInputError(
                f"{what} has type {wanted}, and {value!r} names a time zone, which the column does not keep: convert "
                "it first",
                kind="invalid-rows",
            )
        since = timedelta(hours=value.hour, minutes=value.minute, seconds=value.second, microseconds=value.microsecond)
        nanoseconds = times.timedelta_ns(since)
    else:
        nanoseconds = int(times.moment(value, times.TimeAxis(what), what)[1])
    unit_ns = _DAY_NS if name in ("date32", "date64") else 10**9 // _TICKS_PER_SECOND[rest.split(",")[0].rstrip("]")]
    ticks, left = divmod(nanoseconds, unit_ns)
    if left:
        shown = f"{value.count} ns" if isinstance(value, _Nanoseconds) else value
        raise InvalidInputError(
            f"{what}: {shown} is finer than the resolution of {wanted}: round it first", kind="invalid-rows"
        )
    return ticks * 86_400_000 if name == "date64" else ticks


def _through_pyarrow(values: Sequence[Any], what: str) -> _native.Array:
    kind = type(next(value for value in values if value is not None)).__name__
    try:
        import pyarrow
    except ImportError:
        raise InvalidInputError(
            f"{what} holds values of type {kind}: give an Arrow array, or install pyarrow: "
            "pip install 'chronotile[arrow]'",
            kind="invalid-rows",
        ) from None
    try:
        return _native.Array.of(pyarrow.array(values))
    except (pyarrow.ArrowException, TypeError) as error:
        raise InvalidInputError(f"cannot convert {what} to an Arrow array: {error}", kind="invalid-rows") from error
