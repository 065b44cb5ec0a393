"""Parse conditions and periods from text, as typed on the command line or in a URL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from chronotile import scanning
from chronotile.errors import InvalidInputError

__all__ = ["Condition", "aggregates", "condition", "days", "literal", "names", "unquoted"]

Condition = tuple[str, str, Any]
"""(column, comparison, value): see :meth:`chronotile.Dataset.read`."""

_DIGITS_MAX = 38
"""Most digits of a whole number. No integer column holds more."""


def condition(text: str, types: Mapping[str, str]) -> Condition:
    """Parse a condition: ``mag<18``, ``band in g,r``, ``x between 1,2``, ``line contains refused``, ``x exists``.

    Parameters
    ----------
    text : str
        The condition.
    types : dict of str to str
        Types of columns. Constants for a text column are text, quoted or not.

    Raises
    ------
    InvalidInputError
        The text is not a condition.
    """
    found = scanning.comparison(text)
    if found is None:
        raise InvalidInputError(
            f'invalid condition {scanning.shown(text)}: write column, comparison and value, such as "mag<18", "band in '
            f'g,r" or "x between 1,2", in at most {scanning.TEXT_CHARS_MAX:,} characters',
            kind="invalid-request",
        )
    column, comparison, value = found
    if comparison not in ("contains", "matches", "prefix"):
        _refuse_second(value, types)
    # Keep decimals as text, with all digits.
    constant = unquoted if types.get(column, "").startswith(("utf8", "decimal")) else literal
    match comparison:
        case "in" | "between":
            return column, comparison, [constant(word) for word in _split(value)]
        case "contains" | "matches" | "prefix":
            return column, comparison, unquoted(value)
        case "exists":
            return column, comparison, literal(value or "true")
    return column, comparison, constant(value)


def _refuse_second(value: str, types: Mapping[str, str]) -> None:
    """Refuse ``status=failed and user=bob``, which would compare with the text ``failed and user=bob``."""
    if unquoted(value) != value:
        return
    for rest in value.replace(" AND ", " and ").split(" and ")[1:]:
        second = scanning.comparison(rest)
        if second is not None and second[0] in types:
            raise InvalidInputError(
                f"a condition has one comparison, but {scanning.shown(rest)} follows: give each comparison as a "
                "condition of its own (all must hold), or quote a text that contains the word and",
                kind="invalid-request",
            )


def _split(text: str) -> list[str]:
    text = text.strip("()[] ")
    return [word.strip() for word in text.split(",")] if text else []


def literal(text: str) -> Any:
    """Parse a constant: numbers and booleans; quoted text without its quotes; anything else as text."""
    if unquoted(text) != text:
        return unquoted(text)
    whole = scanning.whole_number(text, _DIGITS_MAX)
    if whole is not None:
        return whole
    if scanning.is_number(text):
        return float(text)
    return {"true": True, "false": False}.get(text.lower(), text)


def unquoted(text: str) -> str:
    """Strip the quotes around a text."""
    return text[1:-1] if len(text) >= 2 and text[0] == text[-1] and text[0] in "\"'" else text


def names(text: str | None) -> list[str] | None:
    """Split names at commas."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def aggregates(texts: Iterable[str]) -> dict[str, list[str]]:
    """Parse aggregates such as ``sum(run_s)`` to functions by column.

    Raises
    ------
    InvalidInputError
        The text is not a function of a column.
    """
    wanted: dict[str, list[str]] = {}
    for text in texts:
        found = scanning.call(text)
        if found is None:
            raise InvalidInputError(
                f"invalid aggregate {scanning.shown(text)}: write a function of a column, such as sum(run_s)",
                kind="invalid-request",
            )
        wanted.setdefault(found[1], []).append(found[0])
    return wanted


def days(text: str | None) -> Any:
    """Parse whole days for job queries: one day, ``FIRST,LAST``, or a number of days up to today."""
    if text is None:
        return None
    if text.isascii() and text.isdigit() and len(text) < 8:
        return int(text)
    first, comma, last = text.partition(",")
    return (first.strip(), last.strip()) if comma else text.strip()
