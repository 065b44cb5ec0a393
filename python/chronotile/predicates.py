"""Conditions on columns: from what users write to the comparisons of a read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from chronotile import _native
from chronotile.errors import InvalidInputError
from chronotile.inputs import Types, values_column

__all__ = ["Condition", "listed"]

Condition = tuple[str, str, Any]
"""(column, comparison, value): see :meth:`chronotile.Dataset.read`."""

NativePredicate = tuple[str, str, _native.Array]

_NAMES = {"=": "==", "<>": "!="}
_SIMPLE = frozenset(["==", "!=", "<", "<=", ">", ">="])
_TEXT = frozenset(["contains", "matches", "prefix"])


def listed(where: Condition | Iterable[Condition] | None) -> list[Condition]:
    """One condition, several or none, as a list."""
    if where is None:
        return []
    return [where] if isinstance(where, tuple) and len(where) == 3 and isinstance(where[0], str) else list(where)


def native_predicates(where: Condition | Iterable[Condition] | None, types: Types) -> list[NativePredicate]:
    """All conditions, their constants in the types of their columns."""
    predicates: list[NativePredicate] = []
    for condition in listed(where):
        if not (isinstance(condition, Sequence) and not isinstance(condition, str) and len(condition) == 3):
            raise _refused(
                f'{condition!r} is no condition: write (column, comparison, value), such as ("mag", "<", 18.0)'
            )
        column, comparison, value = condition
        predicates.append(_predicate(column, _NAMES.get(comparison, comparison), value, types))
    return predicates


def _predicate(column: str, comparison: str, value: Any, types: Types) -> NativePredicate:
    if comparison not in _SIMPLE | _TEXT | {"in", "between", "exists"}:
        raise _refused(
            f"{comparison!r} is no comparison: use one of == != < <= > >= in between contains matches prefix exists"
        )
    if column not in types:
        shown = ", ".join(list(types)[:12])
        raise _refused(f"there is no column {column!r} to compare; the dataset has {shown}")
    kind = types[column]
    if comparison in _TEXT:
        return column, comparison, _text(column, comparison, value, kind)
    if comparison == "exists":
        if not isinstance(value, bool):
            raise _refused(f"condition on {column!r}: exists takes True or False, not {value!r}")
        return column, comparison, _native.column_of_list([value], "bool")
    if comparison in _SIMPLE:
        values = [value]
    else:
        values = value.tolist() if hasattr(value, "tolist") else value
        if isinstance(values, str | bytes) or not isinstance(values, Iterable):
            raise _refused(f"condition on {column!r}: {comparison} takes a list of values, not {value!r}")
        values = list(values)
        if comparison == "between" and len(values) != 2:
            raise _refused(f"condition on {column!r}: between takes two values, not {len(values)}")
    if any(item is None for item in values):
        raise _refused(f"condition on {column!r}: a comparison with None never holds")
    if "int" in kind and kind.lstrip("u").startswith("int"):
        comparison, values = _on_integers(comparison, values, kind)
    return column, comparison, _constants(values, kind, f"condition on {column!r}")


def _constants(values: list[Any], kind: str, what: str) -> _native.Array:
    try:
        return values_column(values, kind, what)
    except InvalidInputError as error:
        message = str(error) if what in str(error) else f"{what}: {error}"
        raise InvalidInputError(message, kind=error.kind) from None


def _text(column: str, comparison: str, value: Any, kind: str) -> _native.Array:
    if kind != "utf8":
        raise _refused(f"condition on {column!r}, whose type is {kind}: {comparison} is for text (utf8)")
    if not isinstance(value, str):
        raise _refused(f"condition on {column!r}: {comparison} takes one text, not {value!r}")
    return _native.column_of_list([value], kind)


def _on_integers(comparison: str, values: list[Any], kind: str) -> tuple[str, list[Any]]:
    """The same condition with constants that the integer type holds: `x < 2.5` is `x <= 2`, `x == 2.5` holds for no
    row."""
    bits = int(kind.lstrip("uint"))
    low, high = (0, 2**bits - 1) if kind.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    plain = [item.item() if hasattr(item, "item") else item for item in values]
    if not all(isinstance(item, int | float) and not isinstance(item, bool) for item in plain):
        return comparison, plain
    exact = [item for item in plain if not math.isnan(item) and item == _floor(item) and low <= item <= high]
    if len(exact) == len(plain):
        return comparison, [int(item) for item in plain]
    if comparison in ("==", "in"):
        return "in", [int(item) for item in exact]
    if comparison == "between":
        lower, upper = _at_least(plain[0], low, high), _at_most(plain[1], low, high)
        return ("between", [lower, upper]) if lower is not None and upper is not None else ("in", [])
    if comparison == "!=":
        return "between", [low, high]
    value = plain[0]
    if comparison in ("<", "<="):
        bound = _at_most(value, low, high)
        return ("in", []) if bound is None else ("<=", [bound])
    bound = _at_least(value, low, high)
    return ("in", []) if bound is None else (">=", [bound])


def _floor(value: float) -> float:
    return value if math.isinf(value) else math.floor(value)


def _at_most(value: float, low: int, high: int) -> int | None:
    """The largest integer of the type not above `value`, which is no integer of the type itself."""
    if math.isnan(value) or value < low:
        return None
    return high if value > high else math.floor(value)


def _at_least(value: float, low: int, high: int) -> int | None:
    if math.isnan(value) or value > high:
        return None
    return low if value < low else math.ceil(value)


def _refused(message: str) -> InvalidInputError:
    return InvalidInputError(message, kind="invalid-request")
