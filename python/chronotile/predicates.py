"""Convert conditions on columns to the predicates of a read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import time, timedelta
from decimal import Decimal
from typing import Any

from chronotile import _native, arguments, conditions, scanning, times
from chronotile.conditions import Condition
from chronotile.errors import InvalidInputError
from chronotile.hints import name_hint
from chronotile.inputs import Types, takes, values_column
from chronotile.inputs import column as column_of

__all__ = ["Condition", "Where", "equalities", "listed"]

Where = str | Condition | Iterable[str | Condition] | None
"""Type of `where`: a condition as text or tuple, or several."""

NativePredicate = tuple[str, str, _native.Array]

_NAMES = {"=": "==", "<>": "!="}
_SIMPLE = frozenset(["==", "!=", "<", "<=", ">", ">="])
_TEXT = frozenset(["contains", "matches", "prefix"])


def listed(where: Where, types: Types | None = None) -> list[Condition]:
    """Convert one condition, several or none to a list; text is parsed as on the command line, with column `types`."""
    if where is None:
        return []
    items: Iterable[Any] = [where] if isinstance(where, str) or _is_condition(where) else where
    items = arguments.instance(items, Iterable, "where", 'a condition such as "mag<18", or a list of conditions')
    return [conditions.condition(item, types or {}) if isinstance(item, str) else item for item in items]


def equalities(equal: Mapping[str, Any]) -> list[Condition]:
    """Conditions that columns equal a value, or one of several: a list, an array or any other iterable."""
    return [
        (column, "in", value.to_pylist() if hasattr(value, "to_pylist") else list(value))
        if isinstance(value, Iterable) and not isinstance(value, str | bytes)
        else (column, "==", value)
        for column, value in equal.items()
    ]


def _is_condition(where: object) -> bool:
    """Whether a tuple is one condition rather than three conditions as text."""
    if not (isinstance(where, tuple) and len(where) == 3 and isinstance(where[0], str)):
        return False
    return not all(isinstance(part, str) and scanning.comparison(part) for part in where)


def native_predicates(where: Where, types: Types) -> list[NativePredicate]:
    """Convert all conditions; constants get the types of their columns."""
    predicates: list[NativePredicate] = []
    for condition in listed(where, types):
        if not (isinstance(condition, Sequence) and not isinstance(condition, str) and len(condition) == 3):
            raise _refused(
                f'invalid condition {condition!r}: write (column, comparison, value), such as ("mag", "<", 18.0)'
            )
        column, comparison, value = condition
        predicates.append(_predicate(column, _NAMES.get(comparison, comparison), value, types))
    return predicates


def _predicate(column: str, comparison: str, value: Any, types: Types) -> NativePredicate:
    if comparison not in _SIMPLE | _TEXT | {"in", "between", "exists"}:
        raise _refused(
            f"unknown comparison {comparison!r}: use one of == != < <= > >= in between contains matches prefix exists"
        )
    if column not in types:
        raise _refused(f"unknown column {column!r} in a condition{name_hint(column, types)}")
    kind = types[column]
    if comparison in _TEXT:
        return column, comparison, _text(column, comparison, value, kind)
    if comparison == "exists":
        if not isinstance(value, bool):
            raise _refused(f"condition on {column!r}: exists takes True or False, not {value!r}")
        return column, comparison, _native.column_of_list([value], "bool")
    if comparison == "in" and kind.startswith(("int", "uint")) and _is_integer_array(value):
        return column, comparison, column_of(value, None, column)
    if comparison in _SIMPLE:
        values = [value]
    else:
        values = value.tolist() if hasattr(value, "tolist") else value
        if isinstance(values, str | bytes) or not isinstance(values, Iterable):
            raise _refused(f"condition on {column!r}: {comparison} takes a list of values, not {value!r}")
        values = list(values)
        if comparison == "between" and len(values) != 2:
            raise _refused(f"condition on {column!r}: between takes two values, not {len(values)}")
    return column, comparison, _constants(values, kind, f"condition on {column!r}")


def _is_integer_array(value: Any) -> bool:
    """Whether a value is a numpy array of integers, which needs no conversion."""
    return type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 1 and value.dtype.kind in "iu"


_NUMBERS = ("int", "uint", "float", "decimal", "bool")
_DIGITS_MAX = 40
"""Most decimal digits of a value of any integer or time type."""


def _constants(values: list[Any], kind: str, what: str) -> _native.Array:
    """Convert constants to exact form: numbers and times as text, which the archive converts to column values."""
    if any(item is None for item in values):
        raise _refused(f"{what}: a comparison with None is never true: use exists")
    if kind.startswith(_NUMBERS):
        return _native.column_of_list([_number_text(value, kind, what) for value in values], "utf8")
    if kind.startswith("utf8") and not all(isinstance(value, str) for value in values):
        raise _refused(f"{what}, whose type is {kind}: compare with text, not {values!r}")
    if kind.startswith(("timestamp", "date", "time", "duration")):
        numbers = [int(value) for value in values if times.is_whole(value)]
        if numbers and len(numbers) == len(values):
            return _native.column_of_list(numbers, "int64")
        if kind.startswith("duration"):
            return _native.column_of_list([_length_ns(value, kind, what) for value in values], "duration[ns]")
        text = _moment_text if kind.startswith(("timestamp", "date")) else _time_text
        return _native.column_of_list([text(value, kind, what) for value in values], "utf8")
    if values and not takes(kind, values[0]):
        raise _refused(f"{what}: compare a column of type {kind} with values of that type, not {values!r}")
    try:
        return values_column(values, kind, what)
    except InvalidInputError as error:
        message = str(error) if what in str(error) else f"{what}: {error}"
        raise InvalidInputError(message, kind=error.kind) from None


def _number_text(value: Any, kind: str, what: str) -> str:
    plain = value.item() if hasattr(value, "item") else value
    if isinstance(plain, bool):
        return str(int(plain))
    if isinstance(plain, int):
        if abs(plain) < 10**_DIGITS_MAX:
            return str(plain)
        # This text is exact for float columns, and out of range for columns of every other type.
        zeros = _digits_min(plain) - _DIGITS_MAX + 1
        return f"{plain // 10**zeros}e{zeros}"
    if isinstance(plain, float):
        return str(int(plain)) if 2**53 <= abs(plain) < 10**_DIGITS_MAX else repr(plain)
    if isinstance(plain, str) and _is_time(plain):
        raise _refused(
            f"{what}, whose type is {kind}: {plain!r} is a time: to read a period, use start and end (--start, --end)"
        )
    if isinstance(plain, Decimal | str):
        return str(plain)
    raise _refused(f"{what}, whose type is {kind}: {value!r} is not a number")


def _is_time(text: str) -> bool:
    """Whether a text is a time rather than a number; a bare year is a number."""
    if scanning.is_number(text):
        return False
    try:
        times.exact_text_ns(text, "a constant")
    except InvalidInputError:
        return False
    return True


def _digits_min(value: int) -> int:
    """Lower bound for the number of decimal digits of a large integer: one or two less than the exact number."""
    return int((abs(value).bit_length() - 1) * math.log10(2))


def _moment_text(value: Any, kind: str, what: str) -> str:
    """Convert a time to ISO 8601 text with nanoseconds."""
    if isinstance(value, str):
        return times.text_of_ns(times.exact_text_ns(value, what), what)
    unit, number = times.moment(value, times.TimeAxis(what), what)
    if unit != "utc_ns":
        raise _refused(f"{what}, whose type is {kind}: give all times as times or all as whole numbers of its unit")
    return times.text_of_ns(int(number), what)


def _time_text(value: Any, kind: str, what: str) -> str:
    if isinstance(value, time) and value.tzinfo is None:
        return value.isoformat()
    if isinstance(value, str):
        return value
    raise _refused(f"{what}, whose type is {kind}: give a time of day without zone, not {value!r}")


def _length_ns(value: Any, kind: str, what: str) -> int:
    if isinstance(value, timedelta):
        return times.timedelta_ns(value)
    if getattr(getattr(value, "dtype", None), "kind", "") == "m":
        return times.numpy_ns(value, what)
    raise _refused(f"{what}, whose type is {kind}: give a timedelta, not {value!r}")


def _text(column: str, comparison: str, value: Any, kind: str) -> _native.Array:
    if kind != "utf8":
        raise _refused(f"condition on {column!r}, whose type is {kind}: {comparison} requires a text column (utf8)")
    if not isinstance(value, str):
        raise _refused(f"condition on {column!r}: {comparison} takes one text, not {value!r}")
    return _native.column_of_list([value], kind)


def _refused(message: str) -> InvalidInputError:
    return InvalidInputError(message, kind="invalid-request")
