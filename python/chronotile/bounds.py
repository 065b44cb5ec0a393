"""Memory limits of one answer, for a service that many clients share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from chronotile.errors import InvalidInputError

__all__ = ["UNBOUNDED", "Bounds"]


def _hold_any(_: int) -> None:
    pass


@dataclass(frozen=True)
class Bounds:
    """Limits of one answer; no limits by default."""

    hold: Callable[[int], None] = _hold_any
    """Called with the total bytes that the answer is about to hold; raises an error if there is no room."""
    sorted_bytes_max: int = 64 << 20
    """Bytes of rows that may be sorted in memory; larger results are read twice."""
    groups_max: int | None = None
    """Largest number of groups in a count."""

    def check_groups(self, count: int) -> None:
        """Raise an error if there are too many groups."""
        if self.groups_max is not None and count > self.groups_max:
            raise InvalidInputError(
                f"the answer has more than {self.groups_max:,} groups: group by fewer columns or longer intervals, or "
                "ask for a shorter period",
                kind="too-large", groups_max=self.groups_max,
            )  # fmt: skip


UNBOUNDED = Bounds()
"""No limits: for calls that do not answer a service's request."""
