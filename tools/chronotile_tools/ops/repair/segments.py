"""What a repair goes through piece by piece: sub-ranges of the ring. Computes only, does no input or output.

A ring range is what lies between two tokens that follow each other, whose partitions all have the same replicas. A
segment is a part of one ring range. :mod:`chronotile_tools.ring` says what a range is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from chronotile_tools.ring import SIZE, TokenRange, after, width

PARTITIONS_MAX = 2**20
BYTES_MAX = 50 * 2**30
SECONDS_MIN, SECONDS_MAX = 60.0, 900.0
"""What a segment should take. Shorter ones waste their beginnings; longer ones lose much when they fail."""


@dataclass(frozen=True, order=True)
class RingRange(TokenRange):
    """Tokens that have the same replicas."""

    replicas: tuple[str, ...] = ()


@dataclass(frozen=True)
class Estimate(TokenRange):
    """How much of a table lies in a range, as a node estimates it."""

    partitions: float
    bytes: float


def remaining(ranges: Sequence[RingRange], done: Iterable[tuple[int, int]]) -> list[RingRange]:
    """What of the ranges no finished segment covers. Segments are taken from a range's beginning, one after another."""
    ends = {}
    for start, end in done:
        ends[start] = end
    found = []
    for one in ranges:
        start, left = one.start, one.width
        while start in ends and left > 0:
            left -= width(start, ends[start])
            start = ends[start]
        if left > 0:
            found.append(RingRange(start, one.end, one.replicas))
    return found


def share(one: RingRange, estimates: Iterable[Estimate]) -> tuple[float, float]:
    """Partitions and bytes that lie in a range, each estimate taken as evenly spread over its own."""
    partitions = total = 0.0
    for known in estimates:
        part = one.common(known) / known.width
        partitions += known.partitions * part
        total += known.bytes * part
    return partitions, total


def next_segment(one: RingRange, estimates: Sequence[Estimate], width_max: int) -> RingRange:
    """The beginning of a range, small enough: in partitions, in bytes, and in tokens."""
    partitions, total = share(one, estimates)
    crowd = math.ceil(max(partitions / PARTITIONS_MAX, total / BYTES_MAX, 1.0))
    # Even pieces: no sliver is left over that would cost as much as a whole one.
    pieces = min(one.width, max(crowd, -(-one.width // width_max)))
    tokens = -(-one.width // pieces)
    return RingRange(one.start, after(one.start, tokens), one.replicas)


class Pace:
    """Learns how many tokens of a table a segment may have so that it takes one to fifteen minutes."""

    def __init__(self, width_max: int = SIZE) -> None:
        self.width_max = width_max

    def finished(self, tokens: int, seconds: float) -> None:
        """A segment of so many tokens took so long."""
        if seconds > SECONDS_MAX:
            self.width_max = max(1, int(tokens * (SECONDS_MAX / 2) / seconds))
        elif seconds < SECONDS_MIN and tokens >= self.width_max // 2:
            self.width_max = min(SIZE, self.width_max * 2)

    def timed_out(self, tokens: int) -> None:
        """A segment of so many tokens did not end in time."""
        self.width_max = max(1, tokens // 2)


def disjoint(waiting: Sequence[RingRange], busy: Iterable[str]) -> RingRange | None:
    """The first range none of whose replicas is at work."""
    working = set(busy)
    return next((one for one in waiting if not working & set(one.replicas)), None)


def megabits_a_sender(capacity_mbit: float, ranges: Iterable[RingRange]) -> int:
    """What each node may send so that all who send to one node at once stay within a capacity, in Mbit/s.

    During a segment each of its other replicas may send to one node.
    """
    senders = max((len(one.replicas) - 1 for one in ranges), default=1)
    return max(1, int(capacity_mbit / max(1, senders)))


def mebibytes(mbit: float) -> int:
    """Mbit/s in MiB/s, whole ones and at least one, as nodes take the limit of files that they stream whole."""
    return max(1, int(mbit * 1e6 / 8 / 2**20))
