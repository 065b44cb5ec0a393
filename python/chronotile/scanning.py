"""Parse short texts from users: numbers, durations, conditions, calls, JSON.

Each parser inspects every character a fixed number of times and rejects texts above a length limit, so the time per
text is bounded. Text from a command line, a URL or a file is parsed here and never with Python's regular expressions,
whose time may grow with the square of the length, or worse.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = [
    "UNIT_SECONDS", "call", "comparison", "is_number", "json_value", "length_of_time", "outside_brackets", "shown",
    "whole_number",
]  # fmt: skip

TEXT_CHARS_MAX = 65_536
"""Most characters of a condition; its list of values may be long."""

NUMBER_CHARS_MAX = 400
"""Most characters of a number: a float64 written out in full has fewer."""

NESTING_MAX = 32
"""Deepest nesting of lists and objects in a JSON text."""

UNIT_SECONDS = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}
"""Units of a length of time."""

_SIGNS = ("<=", ">=", "==", "!=", "<>", "=", "<", ">")
_WORDS = ("in", "between", "contains", "matches", "prefix", "exists")
_ENDS_COLUMN = frozenset("<>=!")


def is_number(text: str) -> bool:
    """Whether a text is a decimal number: ``-1``, ``.5``, ``6.02e23``."""
    if len(text) > NUMBER_CHARS_MAX:
        return False
    mantissa, mark, exponent = text.replace("E", "e").partition("e")
    whole, _, fraction = _unsigned(mantissa).partition(".")
    return _are_digits(whole + fraction) and (not mark or _are_digits(_unsigned(exponent)))


def whole_number(text: str, digits_max: int) -> int | None:
    """Parse a whole number with an optional sign; None for other texts, and for more digits."""
    digits = _unsigned(text)
    return int(text) if len(digits) <= digits_max and _are_digits(digits) else None


def _unsigned(text: str) -> str:
    return text[1:] if text[:1] in ("+", "-") else text


def _are_digits(text: str) -> bool:
    return text.isascii() and text.isdigit()


def length_of_time(text: str, units: Mapping[str, int] = UNIT_SECONDS) -> int | None:
    """Parse a whole number and a unit, such as ``30d``; return number times unit, or None for other texts."""
    if len(text) > NUMBER_CHARS_MAX:
        return None
    word = text.strip()
    for size in (2, 1):
        unit, number = word[-size:], whole_number(word[:-size].rstrip(), 18)
        if unit in units and number is not None and word[:1].isdigit():
            return number * units[unit]
    return None


def call(text: str) -> tuple[str, str] | None:
    """Parse a call such as ``sum(run_s)`` to function and argument; None for other texts."""
    word = text.strip() if len(text) <= TEXT_CHARS_MAX else ""
    function, bracket, rest = word.partition("(")
    function, argument = function.rstrip(), rest[:-1].strip()
    if not bracket or rest[-1:] != ")" or not argument or not function.replace("_", "a").isalnum():
        return None
    return function, argument


def comparison(text: str) -> tuple[str, str, str] | None:
    """Parse a condition such as ``mag<18`` or ``band in g,r`` to column, comparison and value text; None for other
    texts. A column in double quotes may contain any other character.
    """
    if len(text) > TEXT_CHARS_MAX:
        return None
    text = text.strip()
    if text.startswith('"'):
        column, quote, rest = text[1:].partition('"')
        if not quote:
            return None
    else:
        end = next((at for at, char in enumerate(text) if char in _ENDS_COLUMN or char.isspace()), len(text))
        column, rest = text[:end], text[end:]
    rest = rest.lstrip()
    if not column:
        return None
    for sign in _SIGNS:
        if rest.startswith(sign):
            return column, sign, rest[len(sign) :].strip()
    for word in _WORDS:
        after = rest[len(word) : len(word) + 1]
        if rest.startswith(word) and not (after.isalnum() or after == "_"):
            return column, word, rest[len(word) :].strip()
    return None


def outside_brackets(text: str) -> list[str]:
    """Split a text at the commas that are outside brackets of any kind."""
    parts, depth, start = [], 0, 0
    for at, char in enumerate(text):
        if char in "[(<":
            depth += 1
        elif char in "])>":
            depth -= 1
        elif char == "," and depth <= 0:
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]]


def json_value(text: str | bytes) -> Any:
    """Parse a JSON text. Whole numbers with too many digits for any column become floats.

    Raises
    ------
    ValueError
        The text is invalid JSON, or lists and objects are nested more than 32 deep.
    """
    plain = text.decode() if isinstance(text, bytes) else text
    if _nesting(plain) > NESTING_MAX:
        raise ValueError(f"lists and objects are nested more than {NESTING_MAX} deep")
    return json.loads(plain, parse_int=lambda digits: int(digits) if len(digits) <= 40 else float(digits))


def _nesting(text: str) -> int:
    """Nesting depth of lists and objects in a JSON text."""
    depth = deepest = 0
    # Skip strings: the text between two quotes without a preceding backslash.
    for part in text.replace("\\\\", "").replace('\\"', "").split('"')[::2]:
        for char in part:
            if char in "[{":
                depth += 1
                deepest = max(deepest, depth)
            elif char in "]}":
                depth -= 1
    return deepest


def shown(text: str, chars_max: int = 100) -> str:
    """Format a text for messages: quoted, and truncated if long."""
    return repr(text) if len(text) <= chars_max else f"{text[:chars_max]!r}... ({len(text):,} characters)"
