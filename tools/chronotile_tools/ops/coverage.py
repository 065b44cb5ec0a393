"""Ranges of tokens, and since when a set of repaired ranges covers the whole ring."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable
from typing import NamedTuple

from chronotile.errors import InvalidInputError

__all__ = ["TOKEN_MAX", "TOKEN_MIN", "Piece", "covered_since", "read_range"]

TOKEN_MIN, TOKEN_MAX = -(2**63), 2**63 - 1

_RANGE = re.compile(r"\(\s*(-?\d+)\s*,\s*(-?\d+)\s*\]")


class Piece(NamedTuple):
    """The range of tokens ``(start, end]``, which goes over the end of the ring where `end` is not above `start`, and
    when it was repaired, in seconds since 1970."""

    start: int
    end: int
    repaired: float


def read_range(text: str) -> tuple[int, int]:
    """A range as Cassandra writes it, ``(-5,7]``.

    Raises
    ------
    InvalidInputError
        Anything else.
    """
    found = _RANGE.fullmatch(text.strip())
    if found is None:
        raise InvalidInputError(f"{text!r} is no range of tokens, as (-5,7]", kind="invalid-request")
    return int(found[1]), int(found[2])


def covered_since(pieces: Iterable[Piece]) -> float | None:
    """The earliest of the latest repairs of all tokens: every token was repaired then or later. None where some token
    never was.

    Tokens are those of the Murmur3 partitioner, -2^63 to 2^63 - 1.
    """
    starts: list[tuple[int, int, float]] = []
    for start, end, repaired in pieces:
        if end > start:
            starts.append((start, end, repaired))
        else:
            starts += [(start, TOKEN_MAX, repaired), (TOKEN_MIN, end, repaired)]
    starts.sort()
    if not starts or starts[0][0] > TOKEN_MIN:
        return None
    # Those that cover `at`, the newest first; ones that ended before are dropped when they come to the top.
    active: list[tuple[float, int]] = []
    oldest, at, place = float("inf"), TOKEN_MIN, 0
    while at < TOKEN_MAX:
        while place < len(starts) and starts[place][0] <= at:
            heapq.heappush(active, (-starts[place][2], starts[place][1]))
            place += 1
        while active and active[0][1] <= at:
            heapq.heappop(active)
        if not active:
            return None
        oldest = min(oldest, -active[0][0])
        # A newer piece may begin before this one ends.
        following = starts[place][0] if place < len(starts) else TOKEN_MAX
        at = min(active[0][1], max(following, at + 1))
    return oldest
