"""Segments of a repair: sub-ranges of the ring. Pure computation without I/O.

All partitions of a ring range, between two consecutive tokens, have the same replicas. A segment is a part of one ring
range. :mod:`chronotile_tools.ring` defines ranges.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from chronotile_tools.ring import SIZE, TokenRange, after, width

PARTITIONS_MAX = 2**20
BYTES_MAX = 50 * 2**30
SECONDS_MIN, SECONDS_MAX = 60.0, 900.0
"""Target duration of a segment in seconds. Shorter ones are dominated by overhead; longer ones lose more work when they
fail.
"""


@dataclass(frozen=True, order=True)
class RingRange(TokenRange):
    """A token range with its replicas."""

    replicas: tuple[str, ...] = ()


@dataclass(frozen=True)
class Estimate(TokenRange):
    """Estimated size of a table in a range."""

    partitions: float
    bytes: float


def remaining(ranges: Sequence[RingRange], done: Iterable[tuple[int, int]]) -> list[RingRange]:
    """Parts of the ranges without a finished segment. Segments are taken consecutively from a range's start."""
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
    """Partitions and bytes in a range, assuming that each estimate is spread evenly over its own range."""
    partitions = total = 0.0
    for known in estimates:
        part = one.common(known) / known.width
        partitions += known.partitions * part
        total += known.bytes * part
    return partitions, total


def next_segment(one: RingRange, estimates: Sequence[Estimate], width_max: int) -> RingRange:
    """The next segment at the start of a range, within the limits for partitions, bytes and tokens."""
    partitions, total = share(one, estimates)
    crowd = math.ceil(max(partitions / PARTITIONS_MAX, total / BYTES_MAX, 1.0))
    # Split evenly: a small remainder would cost as much as a whole segment.
    pieces = min(one.width, max(crowd, -(-one.width // width_max)))
    tokens = -(-one.width // pieces)
    return RingRange(one.start, after(one.start, tokens), one.replicas)


class SegmentSizer:
    """Adapts the number of tokens per segment so that a segment takes one to fifteen minutes."""

    def __init__(self, width_max: int = SIZE) -> None:
        self.width_max = width_max

    def finished(self, tokens: int, seconds: float) -> None:
        """Record the duration of a finished segment."""
        if seconds > SECONDS_MAX:
            self.width_max = max(1, int(tokens * (SECONDS_MAX / 2) / seconds))
        elif seconds < SECONDS_MIN and tokens >= self.width_max // 2:
            self.width_max = min(SIZE, self.width_max * 2)

    def timed_out(self, tokens: int) -> None:
        """Record a segment that timed out."""
        self.width_max = max(1, tokens // 2)


def disjoint(waiting: Sequence[RingRange], busy: Iterable[str]) -> RingRange | None:
    """The first range without busy replicas."""
    working = set(busy)
    return next((one for one in waiting if not working & set(one.replicas)), None)


def megabits_a_sender(capacity_mbit: float, ranges: Iterable[RingRange]) -> int:
    """Send limit per node, in Mbit/s, that keeps concurrent streams to one node within its capacity.

    During a segment, all other replicas may send to one node.
    """
    senders = max([1, *(len(one.replicas) - 1 for one in ranges)])
    return max(1, int(capacity_mbit / senders))


def mebibytes(mbit: float) -> int:
    """Convert Mbit/s to whole MiB/s, at least one, the unit of the limit for entire SSTables."""
    return max(1, int(mbit * 1e6 / 8 / 2**20))
