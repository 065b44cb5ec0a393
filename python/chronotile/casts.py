"""Casts of Arrow columns that reject values they cannot represent."""

from __future__ import annotations

import bisect
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["first_misfit", "fitting"]


def fitting(column: Any, kind: Any, *, safe: bool = True) -> Any:
    """Cast a column; floats that are only rounded do not become infinite.

    Raises
    ------
    pyarrow.ArrowInvalid
        A value does not fit.
    """
    given = column.type
    if given == kind:
        return column
    if pa.types.is_integer(given) and (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
        raise pa.ArrowInvalid(
            f"{given} is not a time type, and the unit of the numbers is unknown: convert them to timestamps"
        )
    if _is_text(kind) and not (_is_text(given) or _is_bytes(given) or pa.types.is_null(given)):
        raise pa.ArrowInvalid(f"the column holds text, and the values have type {given}: convert them to text first")
    if pa.types.is_timestamp(given) and pa.types.is_date(kind):
        column = column.cast(pa.timestamp(given.unit))
    found = column.cast(kind, safe=safe)
    if (pa.types.is_timestamp(given) and pa.types.is_date(kind)) or (pa.types.is_boolean(kind) and _is_number(given)):
        _require_same(column, found)
    if pa.types.is_floating(kind):
        infinite = pc.is_inf(found)
        if pc.any(infinite).as_py() and pc.any(pc.and_not(infinite, _is_infinite(column))).as_py():
            raise pa.ArrowInvalid(f"a value is out of the range of {kind}: correct it, or leave the record out")
    return found


def _is_text(kind: Any) -> bool:
    if pa.types.is_dictionary(kind):
        return _is_text(kind.value_type)
    # The oldest supported pyarrow has no function for views of text.
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or str(kind) == "string_view")


def _is_bytes(kind: Any) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _is_number(kind: Any) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _require_same(column: Any, found: Any) -> None:
    """Reject casts that Arrow considers safe, although they drop the time of day or convert any number to true."""
    same = pc.equal(found.cast(column.type), column)
    if pc.all(same).as_py() is False:
        raise pa.ArrowInvalid(f"a value does not fit {found.type}: correct it, or leave the record out")


def _is_infinite(column: Any) -> Any:
    if pa.types.is_floating(column.type):
        return pc.is_inf(column)
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return pc.match_substring(column, "inf", ignore_case=True)
    return pa.scalar(False)


def first_misfit(column: Any, kind: Any, *, safe: bool) -> int | None:
    """Find the first row that :func:`fitting` refuses; None if it refuses the type of the column."""

    def fits(rows: int) -> bool:
        try:
            fitting(column.slice(0, rows), kind, safe=safe)
        except pa.ArrowException:
            return False
        return True

    if not fits(0):
        return None
    # The first rows fit as long as the misfit is not among them, so bisection finds it.
    return bisect.bisect_left(range(1, len(column)), True, key=lambda rows: not fits(rows))
