"""Times, lengths of time and time axes in whatever form a caller has them, against arithmetic of whole nanoseconds."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import chronotile as ct
from chronotile import times
from chronotile.errors import InvalidInputError

DAY_NS = 86_400 * 10**9
TICKS = times.timestamp("t")
DAYS = times.mjd("t")

offsets = st.integers(-24 * 60 + 1, 24 * 60 - 1).map(lambda minutes: timezone(timedelta(minutes=minutes)))
zones = st.none() | st.just(UTC) | offsets


def nanoseconds(value: datetime) -> int:
    """Since 1970 UTC; Python's own difference of two datetimes with zones."""
    whole = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return (whole - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1_000


@given(st.datetimes(timezones=zones))
@example(datetime(1969, 12, 31, 23, 59, 59, 999_999))
@example(datetime(2026, 1, 1, 0, 30, tzinfo=timezone(timedelta(hours=5, minutes=45))))
def test_datetimes_with_and_without_zone_are_the_instant_that_they_name(value: datetime) -> None:
    wanted = ("utc_ns", nanoseconds(value))
    assert times.moment(value, TICKS, "the time") == wanted
    assert times.moment(value, DAYS, "the time") == wanted
    assert times.moment(value.isoformat(), TICKS, "the time") == wanted
    # A datetime without zone is UTC, never the machine's zone.
    if value.tzinfo is None:
        assert times.moment(value.replace(tzinfo=UTC), TICKS, "the time") == wanted


def test_an_offset_of_a_zone_counts_to_the_microsecond() -> None:
    for offset in (timedelta(microseconds=1), timedelta(hours=-5, microseconds=7), timedelta(days=-1, seconds=1)):
        value = datetime(2026, 1, 1, 0, 30, tzinfo=timezone(offset))
        assert times.moment(value, TICKS, "the time") == ("utc_ns", nanoseconds(value))


@given(st.dates())
def test_a_date_is_its_first_instant(value: date) -> None:
    midnight = datetime.combine(value, time(), UTC)
    assert times.moment(value, TICKS, "the time") == ("utc_ns", nanoseconds(midnight))


@given(
    st.datetimes(timezones=st.none() | st.just(UTC)),
    st.integers(0, 10**12 - 1),
    st.integers(1, 12),
    st.sampled_from(".,"),
)
def test_every_digit_of_a_fraction_counts_down_to_the_nanosecond(
    value: datetime, fraction: int, digits: int, point: str
) -> None:
    whole = value.replace(microsecond=0)
    text = f"{fraction:012}"[:digits]
    written = whole.isoformat().replace("+00:00", "") + point + text + ("Z" if value.tzinfo else "")
    wanted = nanoseconds(whole) + int(text[:9].ljust(9, "0"))
    assert times.moment(written, TICKS, "the time") == ("utc_ns", wanted)
    if text[9:].strip("0"):
        with pytest.raises(InvalidInputError, match="at most 9 decimal places"):
            times.exact_text_ns(written, "the time")
    else:
        assert times.exact_text_ns(written, "the time") == wanted


def test_fractions_stand_behind_seconds_only() -> None:
    assert times.moment("20260131T120000.5", TICKS, "t") == times.moment("2026-01-31T12:00:00.5", TICKS, "t")
    for text in (
        "2026-01-31T12.5",
        "2026-01-31T12:30.5",
        "2026-01.5",
        "2026-01-31T12:00:00.",
        "2026-01-31T12:00:00.Z",
        "2026-01-31T12:00:00.+01:00",
        "20260131T1200.5",
        "2026-01-31T12:00:00+01:00:00.5",
        "2026-01-31T12:00-01:00:00,5",
        "2026-01-31T12:00:00.5+01:00:00.5",
        "20260131T120000-010000.5",
        "1.5",
        "",
    ):
        with pytest.raises(InvalidInputError, match="ISO 8601"):
            times.moment(text, TICKS, "t")
        with pytest.raises(InvalidInputError, match="ISO 8601"):
            times.exact_text_ns(text, "t")
    longest = "2026-01-31T12:00:00." + "0" * 80
    assert len(longest) == 100
    times.moment(longest, TICKS, "t")
    for check in (times.moment, lambda text, axis, what: times.exact_text_ns(text, what)):
        with pytest.raises(InvalidInputError, match="ISO 8601"):
            check(longest + "0", TICKS, "t")


@given(st.integers(-62_135_596_800 * 10**9, 253_402_300_799 * 10**9 + 10**9 - 1))
def test_nanoseconds_and_text_are_each_others_inverse(value_ns: int) -> None:
    text = times.text_of_ns(value_ns, "the time")
    assert text.endswith("Z")
    assert times.exact_text_ns(text, "the time") == value_ns


def test_times_that_no_text_can_hold_are_refused() -> None:
    for far in (-62_135_596_800 * 10**9 - 1, 253_402_300_800 * 10**9):
        with pytest.raises(InvalidInputError, match="years 1 to 9999"):
            times.text_of_ns(far, "the time")


UNITS_NS = {
    "W": 7 * DAY_NS,
    "D": DAY_NS,
    "h": 3_600 * 10**9,
    "m": 60 * 10**9,
    "s": 10**9,
    "ms": 10**6,
    "us": 10**3,
    "ns": 1,
}


@given(st.sampled_from(sorted(UNITS_NS)), st.integers(1, 60), st.integers(-10_000, 10_000))
def test_numpy_times_count_in_their_unit(unit: str, count: int, number: int) -> None:
    kind = f"{count}{unit}" if count > 1 else unit
    for value in (np.datetime64(number, kind), np.timedelta64(number, kind)):
        assert times.numpy_ns(value, "the time") == number * count * UNITS_NS[unit]
    assert times.moment(np.datetime64(number, kind), TICKS, "t") == ("utc_ns", number * count * UNITS_NS[unit])


@given(st.integers(1, 9_999), st.integers(1, 12))
def test_numpy_years_and_months_are_those_of_the_calendar(year: int, month: int) -> None:
    first = nanoseconds(datetime(year, month, 1))
    assert times.numpy_ns(np.datetime64(f"{year:04}-{month:02}", "M"), "the time") == first
    assert times.numpy_ns(np.datetime64(f"{year:04}", "Y"), "the time") == nanoseconds(datetime(year, 1, 1))


def test_numpy_values_that_are_no_times_are_refused() -> None:
    for value in (np.datetime64("NaT"), np.timedelta64("NaT", "s"), np.timedelta64(1, "M"), np.timedelta64(1, "Y")):
        with pytest.raises(InvalidInputError):
            times.numpy_ns(value, "the time")
    with pytest.raises(InvalidInputError, match="from years to nanoseconds"):
        times.numpy_ns(np.datetime64(1, "ps"), "the time")


def test_pandas_times_keep_their_nanoseconds() -> None:
    pandas = pytest.importorskip("pandas")
    value = pandas.Timestamp(1_767_225_600_123_456_789, tz="UTC")
    assert times.moment(value, TICKS, "t") == ("utc_ns", 1_767_225_600_123_456_789)
    assert times.moment(value.tz_convert("Asia/Kathmandu"), TICKS, "t") == ("utc_ns", 1_767_225_600_123_456_789)
    assert times.timedelta_ns(pandas.Timedelta(86_400_000_000_123, "ns")) == 86_400_000_000_123
    with pytest.raises(InvalidInputError, match="t is NaT: the value is not a time"):
        times.moment(pandas.NaT, TICKS, "t")


@pytest.mark.parametrize("whole", [int, np.int64, np.int32])
def test_whole_numbers_are_ticks_of_timestamps_and_days_of_days(whole: Any) -> None:
    kind, number = times.moment(whole(61_041), TICKS, "t")
    assert (kind, number, type(number)) == ("ticks", 61_041, int)
    kind, number = times.moment(whole(61_041), DAYS, "t")
    assert (kind, number, type(number)) == ("native", 61_041.0, float)
    assert times.is_whole(whole(1))


def test_numbers_at_the_ends_of_64_bits() -> None:
    for number in (-(2**63), 2**63 - 1):
        assert times.moment(number, TICKS, "t") == ("ticks", number)
    for number in (-(2**63) - 1, 2**63):
        for axis in (TICKS, DAYS):
            with pytest.raises(InvalidInputError, match="the time is out of range"):
                times.moment(number, axis, "t")


@pytest.mark.parametrize("fraction", [float, np.float64, np.float32])
def test_fractions_are_days_and_never_ticks(fraction: Any) -> None:
    assert times.moment(fraction(61_041.5), DAYS, "t") == ("native", 61_041.5)
    assert times.moment(fraction(2.5), times.jd("t"), "t") == ("native", 2.5)
    with pytest.raises(InvalidInputError, match="whole number in its unit"):
        times.moment(fraction(61_041.0), TICKS, "t")
    assert not times.is_whole(fraction(1.0))


@pytest.mark.parametrize(
    "value",
    [True, None, b"2026", object(), [1], np.bool_(True), np.timedelta64(5, "ns"), np.timedelta64(5, "s"),
     SimpleNamespace(jd1=1.0, jd2=2.0), SimpleNamespace(jd1=1.0, utc=3.0), SimpleNamespace(jd2=2.0, utc=3.0)],
)  # fmt: skip
def test_what_is_no_time_is_refused_by_name(value: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"the end is .*: give a datetime, ISO 8601 text, or"):
        times.moment(value, TICKS, "the end")
    assert not times.is_whole(value)


def test_astropy_times_are_converted_to_the_scale_of_the_axis() -> None:
    astropy = pytest.importorskip("astropy.time")
    value = astropy.Time("2026-01-01T00:00:00", scale="utc")
    assert times.moment(value, TICKS, "t") == ("utc_ns", 1_767_225_600 * 10**9)
    assert times.moment(value.tai, TICKS, "t") == ("utc_ns", 1_767_225_600 * 10**9)
    assert times.moment(value, times.timestamp("t", scale="tai"), "t") == ("utc_ns", 1_767_225_600 * 10**9)
    assert times.moment(value, DAYS, "t") == ("native", 61_041.0)
    kind, days = times.moment(value, times.mjd("t", scale="tai"), "t")
    assert (kind, days) == ("native", pytest.approx(61_041 + 37 / 86_400, abs=1e-10))
    assert times.moment(value, times.jd("t"), "t") == ("native", 2_461_041.5)
    with pytest.raises(InvalidInputError, match="single time"):
        times.moment(astropy.Time([61_041.0], format="mjd"), DAYS, "t")


@given(st.integers(1, 10**9))
@example(86_399)
@example(86_400)
@example(86_401)
def test_lengths_of_time_as_text(seconds: int) -> None:
    assert times.duration_text(timedelta(seconds=seconds), "window") == f"{seconds}s"


def test_lengths_of_time_that_are_refused() -> None:
    assert times.duration_text("30d", "window") == "30d"
    for wrong in (timedelta(0), timedelta(seconds=-1), timedelta(microseconds=1), timedelta(seconds=1, microseconds=1)):
        with pytest.raises(InvalidInputError, match="positive whole number of seconds"):
            times.duration_text(wrong, "window")
    with pytest.raises(InvalidInputError, match="or a timedelta"):
        times.duration_text(30, "window")  # type: ignore[arg-type]


@given(st.integers(-(10**6), 10**6), st.integers(-(10**6), 10**6), st.integers(-(10**6), 10**6))
def test_timedeltas_in_nanoseconds(days: int, seconds: int, microseconds: int) -> None:
    value = timedelta(days=days, seconds=seconds, microseconds=microseconds)
    assert times.timedelta_ns(value) == (days * 86_400 + seconds) * 10**9 + microseconds * 1_000


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("1w", 7 * DAY_NS), ("2d", 2 * DAY_NS), ("3h", 3 * 3_600 * 10**9), ("15m", 15 * 60 * 10**9), ("4s", 4 * 10**9),
     ("500ms", 500 * 10**6), ("6us", 6_000), ("7ns", 7), ("0s", 0)],
)  # fmt: skip
def test_lengths_of_time_in_nanoseconds(text: str, wanted: int) -> None:
    assert times.duration_ns(text, "the interval") == wanted
    assert times.duration_ns(wanted, "the interval") == wanted
    if wanted % 1_000 == 0:
        assert times.duration_ns(timedelta(microseconds=wanted // 1_000), "the interval") == wanted


def test_lengths_of_time_have_64_bits_and_a_unit() -> None:
    assert times.duration_ns(2**63 - 1, "the interval") == 2**63 - 1
    wrong: list[Any] = [2**63, -1, True, 1.5, None, "1", "h", "1y", "-1h", "1 fortnight", timedelta(seconds=-1)]
    for each in wrong:
        with pytest.raises(InvalidInputError, match="the interval is"):
            times.duration_ns(each, "the interval")


@pytest.mark.parametrize(
    ("kind", "tick", "wanted"),
    [
        ("timestamp[s]", 86_400, datetime(1970, 1, 2, tzinfo=UTC)),
        ("timestamp[ms, tz=UTC]", 1, datetime(1970, 1, 1, 0, 0, 0, 1_000, UTC)),
        ("timestamp[us]", -1, datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)),
        ("timestamp[ns]", 1_999, datetime(1970, 1, 1, 0, 0, 0, 1, UTC)),
        ("date32", 2, datetime(1970, 1, 3, tzinfo=UTC)),
        ("timestamp[s]", 2**62, 2**62),
    ],
)
def test_ticks_as_users_read_them(kind: str, tick: int, wanted: Any) -> None:
    assert times.tick_value(tick, TICKS, kind) == wanted


def test_ticks_of_days_are_microseconds_from_1970() -> None:
    assert times.tick_value(0, DAYS, "float64") == 40_587.0
    assert times.tick_value(43_200_000_000, DAYS, "float64") == 40_587.5
    assert times.tick_value(-86_400_000_000, times.jd("t"), "float64") == 2_440_586.5


def test_axes_follow_from_names_and_types() -> None:
    columns = {"jd": "float64", "MJD": "float64", "x": "float64", "t": "timestamp[us]", "d": "date32"}
    resolve = lambda time, form=None, scale="utc": times.resolve_axis(time, form, scale, columns)  # noqa: E731
    assert resolve("jd", scale="tai") == times.jd("jd", scale="tai")
    assert resolve("MJD") == times.mjd("MJD")
    assert resolve("t", scale="tai") == times.timestamp("t", scale="tai")
    assert resolve("d") == times.timestamp("d")
    assert resolve("absent") == times.timestamp("absent")
    assert resolve("x", "mjd", "tai") == times.mjd("x", scale="tai")
    assert resolve(times.jd("x")) == times.jd("x")
    with pytest.raises(InvalidInputError, match=r"write time=ct.mjd\('x'\)"):
        resolve("x")
    with pytest.raises(InvalidInputError, match="name of the time column"):
        resolve(5)
    assert ct.mjd("x").format == "mjd"


@pytest.mark.parametrize(
    ("text", "away"),
    [
        ("now", timedelta(0)), (" NOW ", timedelta(0)), ("now-6h", -timedelta(hours=6)), ("now+1d", timedelta(days=1)),
        ("now- 15m", -timedelta(minutes=15)), ("now-0s", timedelta(0)), ("now+1500us", timedelta(microseconds=1_500)),
        ("now-2999ns", -timedelta(microseconds=2)),
    ],
)  # fmt: skip
def test_now_and_lengths_from_now_are_times(monkeypatch: pytest.MonkeyPatch, text: str, away: timedelta) -> None:
    instant = datetime(2026, 3, 1, 13, 14, 15, 16, UTC)

    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Clock:
            assert tz is UTC
            return cls(2026, 3, 1, 13, 14, 15, 16, tz)

    monkeypatch.setattr(times, "datetime", Clock)
    for axis in (TICKS, DAYS):
        assert times.moment(text, axis, "the start") == ("utc_ns", nanoseconds(instant + away))


def test_texts_of_times_have_a_hundred_characters_at_most() -> None:
    assert times.moment("now".ljust(100), TICKS, "the start")[0] == "utc_ns"
    text = "2026-01-31T12:00:00"
    noon = times.moment(text, TICKS, "the start")
    assert times.moment(text.ljust(100), TICKS, "the start") == noon
    with pytest.raises(InvalidInputError, match="write ISO 8601"):
        times.moment(text.ljust(101), TICKS, "the start")
    for length in (99, 100):
        with pytest.raises(InvalidInputError, match="at most 9 decimal places"):
            times.exact_text_ns(f"{text}.".ljust(length, "1"), "the start")


def test_what_only_begins_with_now_is_no_time() -> None:
    for text in ("nowadays", "now6h", "now*2h", "no", "now-", "now+6", "now--6h", "now-1y", "now" + " " * 98):
        with pytest.raises(InvalidInputError, match="the start is"):
            times.moment(text, TICKS, "the start")
    for text in ("now+106752d", "now-106752d"):
        with pytest.raises(InvalidInputError, match="give text such as"):
            times.moment(text, TICKS, "the start")
