"""Check arguments of plain types; messages name the argument, the value and what is expected."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

from chronotile.errors import InvalidInputError

__all__ = ["flag", "instance", "integer", "name_list", "number", "text"]


def text(value: Any, name: str, *, kind: str = "invalid-request") -> str:
    """A text."""
    return value if isinstance(value, str) else _refuse(value, name, "text", kind)


def flag(value: Any, name: str, *, kind: str = "invalid-request") -> bool:
    """True or False, also as a scalar of numpy."""
    plain = _plain(value)
    return plain if isinstance(plain, bool) else _refuse(value, name, "True or False", kind)


def integer(value: Any, name: str, *, kind: str = "invalid-request") -> int:
    """An integer of at most 64 bits, also as a scalar of numpy."""
    plain = _plain(value)
    if isinstance(plain, int) and not isinstance(plain, bool) and -(2**63) <= plain < 2**63:
        return plain
    return _refuse(value, name, "an integer of at most 64 bits", kind)


def number(value: Any, name: str, *, kind: str = "invalid-request") -> float:
    """A number, also as a scalar of numpy."""
    plain = _plain(value)
    if isinstance(plain, int | float) and not isinstance(plain, bool):
        return float(plain)
    return _refuse(value, name, "a number", kind)


def name_list(value: Any, name: str, *, kind: str = "invalid-request") -> list[str]:
    """One name, or an iterable of names."""
    names: list[Any] = [value] if isinstance(value, str) else list(value) if isinstance(value, Iterable) else [None]
    if all(isinstance(each, str) for each in names):
        return names
    return _refuse(value, name, "a name, or a list of names", kind)


def instance(
    value: Any, of: type | tuple[type, ...], name: str, expected: str, *, kind: str = "invalid-request"
) -> Any:
    """An instance of a class."""
    return value if isinstance(value, of) else _refuse(value, name, expected, kind)


def _plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", None) == 0 else value


def _refuse(value: Any, name: str, expected: str, kind: str) -> NoReturn:
    shown = " ".join(repr(value).split())
    shown = shown if len(shown) <= 80 else f"{shown[:77]}..."
    raise InvalidInputError(f"{name} is {shown}, of type {type(value).__name__}: give {expected}", kind=kind)
