"""Schedules: the time at which each operation of a load is due."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from chronotile.errors import InvalidInputError

__all__ = ["Schedule"]

_OPERATIONS_MAX = 5_000_000


@dataclass(frozen=True, eq=False)
class Schedule:
    """Intended starts of operations, fixed before the run begins: an open loop.

    Attributes
    ----------
    due_ns : array of int64
        Intended starts in nanoseconds from the start of the run, ascending.
    warm_up_ns : int
        Operations due before this time run normally, but are not counted.
    end_ns : int
        The end of the period in which operations become due.
    """

    due_ns: Any
    warm_up_ns: int
    end_ns: int

    def __len__(self) -> int:
        return len(self.due_ns)

    @property
    def seconds(self) -> float:
        """Length of the counted period."""
        return (self.end_ns - self.warm_up_ns) / 1e9

    @property
    def rate(self) -> float:
        """Operations that become due per second of the counted period."""
        counted = int(np.count_nonzero(self.due_ns >= self.warm_up_ns))
        return counted / self.seconds if self.seconds else float("inf")

    @classmethod
    def fixed(cls, rate: float, seconds: float, *, warm_up_s: float = 0.0) -> Schedule:
        """`rate` operations per second at equal intervals, for `warm_up_s` and then `seconds`."""
        total = _total(rate, seconds, warm_up_s)
        due = np.rint(np.arange(round(rate * total)) / rate * 1e9).astype(np.int64)
        return cls(due, int(warm_up_s * 1e9), int(total * 1e9))

    @classmethod
    def poisson(cls, rate: float, seconds: float, *, warm_up_s: float = 0.0, seed: int = 0) -> Schedule:
        """`rate` operations per second on average, independent of each other, as from many users; at least one is
        counted.
        """
        total = _total(rate, seconds, warm_up_s)
        rng = np.random.default_rng(seed)
        count = rng.poisson(rate * total)
        due = rng.uniform(0, total * 1e9, count)
        if not (due >= warm_up_s * 1e9).any():
            due = np.append(due, rng.uniform(warm_up_s * 1e9, total * 1e9))
        due = np.sort(due).astype(np.int64)
        return cls(due, int(warm_up_s * 1e9), int(total * 1e9))

    @classmethod
    def backlog(cls, count: int) -> Schedule:
        """`count` operations that are all due at once, to measure throughput."""
        if not 1 <= count <= _OPERATIONS_MAX:
            raise InvalidInputError(
                f"count={count} is out of range: use 1 to {_OPERATIONS_MAX:,} operations", kind="invalid-setting"
            )
        return cls(np.zeros(count, np.int64), 0, 0)


def _total(rate: float, seconds: float, warm_up_s: float) -> float:
    total = seconds + warm_up_s
    if not (rate > 0 and seconds > 0 and warm_up_s >= 0 and rate * total <= _OPERATIONS_MAX):
        raise InvalidInputError(
            f"invalid schedule of {rate:g} per second for {seconds:g} s after {warm_up_s:g} s: rate and "
            f"time must be positive, with {_OPERATIONS_MAX:,} operations at most",
            kind="invalid-setting",
        )
    return total
