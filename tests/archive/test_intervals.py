"""Intervals of time series, against Python's own calendar."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from chronotile.errors import InvalidInputError
from chronotile.intervals import Interval, interval

EPOCH = datetime(1970, 1, 1)
SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
MOMENTS = st.lists(st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1)), min_size=1, max_size=4)


def start_of_month(moment: datetime, months: int) -> datetime:
    number = (moment.year - 1970) * 12 + moment.month - 1
    first = number // months * months
    return datetime(1970 + first // 12, first % 12 + 1, 1)


@given(MOMENTS, st.integers(1, 100), st.sampled_from(list(SECONDS)), st.sampled_from(["s", "ms", "us", "ns"]))
@example([datetime(1969, 12, 31, 23, 59, 59)], 1, "d", "s")
@example([datetime(1970, 1, 1)], 1, "w", "ns")
def test_an_interval_of_time_is_counted_from_1970(moments: list[datetime], count: int, unit: str, tick: str) -> None:
    width = timedelta(seconds=count * SECONDS[unit])
    moments = [moment.replace(microsecond=0) for moment in moments]
    found = interval(f"{count}{unit}")
    assert found == Interval(count * SECONDS[unit]) == interval(width)
    for zone in (None, "UTC"):
        kind = pa.timestamp(tick, zone)
        starts = found.starts(pa.array(moments, pa.timestamp(tick)).cast(kind))
        assert starts.type == kind
        wanted = [EPOCH + (moment - EPOCH) // width * width for moment in moments]
        assert starts.cast(pa.timestamp("us")).to_pylist() == [
            each if zone is None else each.replace(tzinfo=None) for each in wanted
        ]


@given(MOMENTS, st.integers(1, 30), st.sampled_from(["mo", "y"]), st.sampled_from(["s", "ms", "us", "ns"]))
@example([datetime(1969, 12, 31, 23, 59, 59), datetime(1970, 1, 1)], 1, "mo", "s")
@example([datetime(2024, 2, 29), datetime(2024, 3, 1)], 3, "mo", "us")
def test_months_and_years_are_those_of_the_calendar(moments: list[datetime], count: int, unit: str, tick: str) -> None:
    months = count * {"mo": 1, "y": 12}[unit]
    found = interval(f"{count}{unit}")
    assert (found.seconds, found.months) == (0, months)
    given_ = pa.chunked_array([pa.array([each.replace(microsecond=0) for each in moments], pa.timestamp(tick))])
    starts = found.starts(given_)
    assert starts.type == given_.type
    assert starts.cast(pa.timestamp("us")).to_pylist() == [start_of_month(moment, months) for moment in moments]


def test_periods_that_divide_an_interval_lie_within_one() -> None:
    assert [Interval(3_600).holds_whole(each) for each in (3_600, 1_800, 7_200, 7)] == [True, True, False, False]
    # A month begins with a day.
    assert [Interval(0, 2).holds_whole(each) for each in (86_400, 3_600, 172_800, 7)] == [True, True, False, False]


@pytest.mark.parametrize("text", ["120000mo", "10000y", "100000d", "1s", "1mo", " 6h "])
def test_the_longest_and_the_shortest_intervals(text: str) -> None:
    found = interval(text)
    number = int(text.strip().rstrip("shdmoy"))
    months = {"o": 1, "y": 12}.get(text.strip()[-1], 0)
    seconds = SECONDS.get(text.strip()[-1], 0)
    assert (found.seconds, found.months) == (number * seconds, number * months)


@pytest.mark.parametrize("text", ["120001mo", "10001y", "0mo", "0y", "0s", "100001d", "-1d", "mo", "", "1.5d", "1q"])
def test_what_is_no_interval_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="interval") as caught:
        interval(text)
    assert caught.value.kind == "invalid-time"


def test_moments_with_a_zone_are_those_of_utc() -> None:
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    found = interval("1mo").starts(pa.array([noon], pa.timestamp("us", "Europe/Berlin")))
    assert found.type == pa.timestamp("us", "Europe/Berlin")
    assert found.cast(pa.timestamp("us", "UTC")).to_pylist() == [datetime(2026, 1, 1, tzinfo=UTC)]
