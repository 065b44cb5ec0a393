"""Intervals of time series: durations counted from 1970, and calendar months and years."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from chronotile import scanning, times
from chronotile.errors import InvalidInputError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["Interval", "interval"]

_MONTHS = {"mo": 1, "y": 12}
_MONTHS_MAX = 120_000
_SECONDS_MAX = 100_000 * 86_400
_TICKS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


@dataclass(frozen=True)
class Interval:
    """A duration, or a number of calendar months."""

    seconds: int
    """Length of a duration; 0 for calendar months."""
    months: int = 0

    def starts(self, moments: pa.ChunkedArray | pa.Array) -> pa.Array:
        """Start of each timestamp's interval, in the type of the timestamps."""
        import numpy as np
        import pyarrow as pa

        kind = moments.type
        ticks = np.asarray(moments.cast(pa.int64()))
        if self.months:
            months = ticks.astype(f"datetime64[{kind.unit}]").astype("datetime64[M]").astype("int64")
            floored = np.floor_divide(months, self.months) * self.months
            found = floored.astype("datetime64[M]").astype(f"datetime64[{kind.unit}]").astype("int64")
        else:
            width = self.seconds * _TICKS[kind.unit]
            found = np.floor_divide(ticks, width) * width
        return pa.array(found).cast(kind)

    def holds_whole(self, seconds: int) -> bool:
        """Whether each period of this length, counted from 1970, lies within one interval."""
        return (86_400 if self.months else self.seconds) % seconds == 0


def interval(value: str | timedelta | Any) -> Interval:
    """Parse an interval: ``"6h"``, ``"1w"``, or ``"1mo"``, ``"3mo"``, ``"1y"`` of the calendar (UTC).

    Raises
    ------
    InvalidInputError
        The text is not an interval, or the interval is too long for the calendar.
    """
    text = times.duration_text(value, "interval")
    months = scanning.length_of_time(text, _MONTHS)
    if months is not None and 1 <= months <= _MONTHS_MAX:
        return Interval(0, months)
    seconds = scanning.length_of_time(text)
    if seconds is None or not 1 <= seconds <= _SECONDS_MAX:
        raise InvalidInputError(
            f'invalid interval {scanning.shown(text)}: give text such as "1d", "6h" or "15m", or "1mo", "3mo" or '
            '"1y" of the calendar',
            kind="invalid-time",
        )
    return Interval(seconds)
