"""Token ring of the Murmur3 partitioner, and token ranges. Pure computation without I/O.

Rows have the tokens -2^63 + 1 to 2^63 - 1. A range includes its end but not its start, and wraps around if its end is
not above its start: a range with equal start and end is the whole ring.
"""

from __future__ import annotations

import heapq
import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Self, TypeVar

from chronotile.errors import InvalidInputError

__all__ = ["SIZE", "TOKEN_MAX", "TOKEN_MIN", "TokenRange", "after", "covered_since", "unwrapped", "width"]

SIZE = 2**64
TOKEN_MIN, TOKEN_MAX = -(2**63), 2**63 - 1
"""The smallest token belongs to no row: the ring starts and ends there."""

_RANGE = re.compile(r"\(\s*(-?\d+)\s*,\s*(-?\d+)\s*\]")


def width(start: int, end: int) -> int:
    """Number of tokens in the range from `start` (exclusive) to `end` (inclusive); the whole ring if they are equal."""
    return (end - start) % SIZE or SIZE


def after(start: int, tokens: int) -> int:
    """The token `tokens` positions further around the ring."""
    return (start - TOKEN_MIN + tokens) % SIZE + TOKEN_MIN


@dataclass(frozen=True, order=True)
class TokenRange:
    """The tokens after `start` up to `end` inclusive, around the ring."""

    start: int
    end: int

    @classmethod
    def parse(cls, text: str) -> TokenRange:
        """Parse a range in Cassandra's notation, ``(-5,7]``.

        Raises
        ------
        InvalidInputError
            Other text.
        """
        found = _RANGE.fullmatch(text.strip())
        if found is None:
            raise InvalidInputError(f"{text!r} is not a token range, such as (-5,7]", kind="invalid-request")
        return TokenRange(int(found[1]), int(found[2]))

    @property
    def width(self) -> int:
        """Number of its tokens."""
        return width(self.start, self.end)

    def spans(self) -> list[tuple[int, int]]:
        """The range as one or two spans on a line from 0 to `SIZE`, split where it wraps around."""
        first = self.start - TOKEN_MIN
        last = first + self.width
        return [(first, last)] if last <= SIZE else [(first, SIZE), (0, last - SIZE)]

    def common(self, other: TokenRange) -> int:
        """Number of tokens in both ranges."""
        return sum(max(0, min(a[1], b[1]) - max(a[0], b[0])) for a in self.spans() for b in other.spans())

    def split(self, count: int) -> list[Self]:
        """Split the range into `count` parts whose widths differ by at most one token; fewer if it has fewer tokens."""
        count = min(count, self.width)
        bounds = [after(self.start, self.width * part // count) for part in range(count)]
        return [replace(self, start=a, end=b) for a, b in zip(bounds, [*bounds[1:], self.end], strict=True)]


_Range = TypeVar("_Range", bound="TokenRange")


def unwrapped(ranges: Iterable[_Range]) -> list[_Range]:
    """Sort ranges, and split the one that wraps around."""
    cut = ((one, span) for one in ranges for span in one.spans())
    return sorted(replace(one, start=after(TOKEN_MIN, first), end=after(TOKEN_MIN, last)) for one, (first, last) in cut)


def covered_since(marked: Iterable[tuple[TokenRange, float]]) -> float | None:
    """The earliest of all tokens' latest marks: every token was marked at this time or later. None if a token was never
    marked.

    Parameters
    ----------
    marked : iterable of (TokenRange, float)
        Ranges, and the time when each was marked, in seconds since 1970.
    """
    starting: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for one, mark in marked:
        for first, last in one.spans():
            starting[first].append((-mark, last))
    bounds = {0, *starting, *(last for started in starting.values() for _, last in started)}
    # Ranges that cover `at`, newest first; ended ones are dropped when they reach the top.
    active: list[tuple[float, int]] = []
    oldest = float("inf")
    # The last token belongs to no row.
    for at in sorted(bound for bound in bounds if bound < SIZE - 1):
        for each in starting.get(at, ()):
            heapq.heappush(active, each)
        while active and active[0][1] <= at:
            heapq.heappop(active)
        if not active:
            return None
        oldest = min(oldest, -active[0][0])
    return oldest
