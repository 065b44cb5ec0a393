"""What one answer may hold, where many ask at once and share the memory of a service."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from chronotile.errors import InvalidInputError

__all__ = ["UNBOUNDED", "Bounds"]


def _hold_any(_: int) -> None:
    pass


@dataclass(frozen=True)
class Bounds:
    """Limits of one answer. By default there are none."""

    hold: Callable[[int], None] = _hold_any
    """Called with the bytes that the answer is about to hold all together; raises where there is no room for them."""
    sorted_bytes_max: int = 64 << 20
    """Bytes of rows that are put in order at once; more are read twice."""
    groups_max: int | None = None
    """Groups of a count."""

    def check_groups(self, count: int) -> None:
        """Refuse more groups than there may be."""
        if self.groups_max is not None and count > self.groups_max:
            raise InvalidInputError(
                f"the answer has more than {self.groups_max:,} groups: group by fewer columns or longer intervals, or "
                "ask for a shorter period",
                kind="too-large", groups_max=self.groups_max,
            )  # fmt: skip


UNBOUNDED = Bounds()
"""Of a program that asks for itself."""
