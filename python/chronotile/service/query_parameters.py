"""Parses the query parameters of a request."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from chronotile import conditions, scanning
from chronotile.bounds import UNBOUNDED, Bounds
from chronotile.errors import InvalidInputError
from chronotile.predicates import Condition

__all__ = ["QueryParameters"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class QueryParameters:
    """Query parameters in the order of the request.

    Methods raise :class:`chronotile.InvalidInputError` for invalid values.

    Parameters
    ----------
    pairs : list of (str, str)
        Names and values: ``start`` and ``end`` in nanoseconds since 1970, all others as the client wrote them.
    bounds : Bounds
        Limits of the response.
    """

    def __init__(self, pairs: list[tuple[str, str]], bounds: Bounds = UNBOUNDED) -> None:
        self._pairs = pairs
        self.bounds = bounds

    def all(self, name: str) -> list[str]:
        """Return all values of a parameter."""
        return [value for known, value in self._pairs if known == name]

    def one(self, name: str) -> str | None:
        """Return the only value of a parameter, or None if it is absent."""
        values = self.all(name)
        if len(values) > 1:
            raise _refused(f"{name} is given more than once")
        return values[0] if values else None

    def number(self, name: str, low: int, high: int) -> int | None:
        """Return an integer from `low` to `high`, or None if the parameter is absent."""
        text = self.one(name)
        if text is None:
            return None
        if not text.isascii() or not text.isdigit() or len(text) > 18 or not low <= int(text) <= high:
            raise _refused(f"{name} is {scanning.shown(text)}: give a whole number from {low} to {high}")
        return int(text)

    def numbers(self, name: str) -> list[int]:
        """Return all values of a parameter as integers."""
        found = [conditions.literal(text) for text in self.all(name)]
        for value in found:
            if not isinstance(value, int) or isinstance(value, bool):
                raise _refused(f"{name} is {scanning.shown(str(value))}: give a whole number")
        return found

    def flag(self, name: str) -> bool:
        """Return whether a parameter is present and not ``false``."""
        match self.one(name):
            case None | "false" | "0":
                return False
            case "true" | "1" | "":
                return True
            case other:
                raise _refused(f"{name} is {scanning.shown(other)}: give true or false")

    def names(self, name: str) -> list[str] | None:
        """Return names separated by commas, or None if the parameter is absent."""
        return conditions.names(self.one(name))

    def moment(self, name: str) -> str | None:
        """Return a time as ISO 8601 text with nanoseconds, or None if the parameter is absent."""
        text = self.one(name)
        if text is None:
            return None
        seconds, rest_ns = divmod(int(text), 10**9)
        return f"{(_EPOCH + timedelta(seconds=seconds)).isoformat()[:19]}.{rest_ns:09}+00:00"

    def conditions(self, types: Mapping[str, str]) -> list[Condition]:
        """Return the conditions of all ``where`` parameters: text, or JSON lists of column, comparison and value."""
        return [
            _of_json(text) if text.lstrip().startswith("[") else conditions.condition(text, types)
            for text in self.all("where")
        ]


def _of_json(text: str) -> Condition:
    try:
        found: Any = scanning.json_value(text)
    except ValueError:
        found = None
    match found:
        case [str(column), str(comparison), value]:
            return column, comparison, value
    raise _refused(
        f'{scanning.shown(text)} is not a condition: write a JSON list such as ["user", "==", "ann"], or  user=ann'
    )


def _refused(message: str) -> InvalidInputError:
    return InvalidInputError(message, kind="invalid-request")
