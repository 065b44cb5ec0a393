"""Arguments of :meth:`Dataset.consolidate` and :meth:`Group.consolidate`."""

from __future__ import annotations

import math
from typing import Any

from chronotile import arguments, times
from chronotile.errors import InvalidInputError

__all__ = ["ConsolidateOptions", "consolidate_options"]

ConsolidateOptions = tuple[Any, int | None, bool, tuple[int, int] | None, float | None]
"""`before`, `chunks_min`, `dry_run`, `shard` and `tiles_per_s`, converted for the native module."""


def consolidate_options(
    time: times.TimeAxis,
    before: times.Moment,
    chunks_min: int | None,
    dry_run: bool,
    shard: tuple[int, int] | None,
    tiles_per_s: float | None,
) -> ConsolidateOptions:
    """Check the arguments.

    Raises
    ------
    InvalidInputError
        `shard` does not name one of several processes, or `tiles_per_s` is not a positive number.
    """
    moment = None if before is None else times.moment(before, time, "before")
    if shard is not None:
        try:
            number, of = (arguments.integer(each, "shard") for each in shard)
        except (TypeError, ValueError):
            number, of = 0, 0
        if not 1 <= number <= of < 2**32:
            raise InvalidInputError(
                f"invalid shard {shard!r}: give the number of this process, from 1, and that of all processes, as in "
                "(2, 8)",
                kind="invalid-request",
            )
        shard = (number, of)
    if tiles_per_s is not None:
        tiles_per_s = arguments.number(tiles_per_s, "tiles_per_s")
        if not 0 < tiles_per_s < math.inf:
            raise InvalidInputError(f"invalid tiles_per_s {tiles_per_s}: give a number above 0", kind="invalid-request")
    return moment, chunks_min, arguments.flag(dry_run, "dry_run"), shard, tiles_per_s
