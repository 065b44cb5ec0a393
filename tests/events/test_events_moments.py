"""Times as documents write them, column by column, against Python's own clock arithmetic."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

pytest.importorskip("pyarrow")
import pyarrow as pa

from chronotile.errors import InvalidInputError
from chronotile.events import moments

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
zones = st.integers(-23 * 4, 23 * 4).map(lambda quarters: timezone(timedelta(minutes=15 * quarters)))
sane = st.datetimes(datetime(1700, 1, 1), datetime(2250, 1, 1))


def microseconds(value: datetime) -> int:
    return ((value if value.tzinfo else value.replace(tzinfo=UTC)) - EPOCH) // timedelta(microseconds=1)


def read(texts: list[str | None], format: str = "iso8601", year: int | None = None) -> list[int | None]:
    found = moments.of_texts(pa.array(texts, pa.string()), format, year)
    assert found.type == moments.MOMENT
    return [None if each is None else int(each) for each in found.cast(pa.int64()).to_pylist()]


@given(
    st.lists(
        st.tuples(
            sane, st.none() | zones, st.sampled_from(["auto", "seconds", "milliseconds", "minutes"]), st.booleans()
        )
    )
)
def test_iso_texts_with_and_without_zone_stand_in_one_column(
    given: list[tuple[datetime, timezone | None, str, bool]],
) -> None:
    texts, wanted = [], []
    for value, zone, spec, broken in given:
        kept = {"seconds": {"microsecond": 0}, "minutes": {"second": 0, "microsecond": 0}}.get(spec, {})
        kept = {"microsecond": value.microsecond // 1_000 * 1_000} if spec == "milliseconds" else kept
        moment = value.replace(tzinfo=zone, **kept)
        text = moment.isoformat("T", spec)
        texts.append(text + "x" if broken else text)
        wanted.append(None if broken else microseconds(moment))
    assert read(list(texts)) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("2026-01-31", "2026-01-31T00:00Z"), ("2026-01-31 12:00", "2026-01-31T12:00Z"),
        ("2026-01-31T12:00:00z", "2026-01-31T12:00Z"), ("2026-01-31T12:00:00Z", "2026-01-31T12:00Z"),
        ("2026-01-31T12:00:00,5", "2026-01-31T12:00:00.5Z"),
        ("2026-01-31T12:00:00.1234567", "2026-01-31T12:00:00.123456Z"),
        ("2026-01-31T12:00:00+0530", "2026-01-31T12:00+05:30"), ("2026-01-31T12:00:00-08", "2026-01-31T12:00-08:00"),
        ("2026-02-30", None), ("2026-01-31T25:00:00", None), ("31.1.2026", None), ("", None), (None, None),
    ],
)  # fmt: skip
def test_iso_texts_of_each_form(text: str | None, wanted: str | None) -> None:
    expected = None if wanted is None else microseconds(datetime.fromisoformat(wanted))
    assert read([text]) == [expected]
    # Beside a text that looks like a time and is none, each is read by itself: to the same.
    assert read([text, "2026-02-30T00:00:00Z", "2026-02-30"]) == [expected, None, None]


@given(st.integers(-(9 * 10**9), 9 * 10**9), st.sampled_from(["epoch_s", "epoch_ms", "epoch_us"]))
def test_numbers_count_in_their_unit(number: int, format: str) -> None:
    unit = {"epoch_s": 10**6, "epoch_ms": 10**3, "epoch_us": 1}[format]
    for given_ in (pa.array([number, None]), pa.array([float(number), None])):
        found = moments.of_numbers(given_, format).cast(pa.int64()).to_pylist()
        assert found == [number * unit, None]
    assert read([str(number), f"{number}x", "--1", None], format) == [number * unit, None, None, None]


@given(st.integers(-(2**62), 2**62))
def test_nanoseconds_are_cut_to_the_microsecond_before(number: int) -> None:
    found = moments.of_numbers(pa.array([number]), "epoch_ns").cast(pa.int64()).to_pylist()
    assert found == [number // 1_000]
    assert read([str(number)], "epoch_ns") == [number // 1_000]


def test_fractions_are_kept_to_the_microsecond() -> None:
    assert read(["1767225600.25", "1767225600.5"], "epoch_s") == [1_767_225_600_250_000, 1_767_225_600_500_000]
    assert read(["1767225600123.5", None], "epoch_ms") == [1_767_225_600_123_500, None]
    assert moments.of_numbers(pa.array([1767225600.1]), "epoch_s").cast(pa.int64()).to_pylist() == [
        1_767_225_600_100_000
    ]


def test_fractions_of_a_microsecond_are_cut_off_but_for_what_a_double_loses() -> None:
    assert read(["5.7", "-5.2", "5.96", "5.94", "-0.04"], "epoch_us") == [5, -6, 6, 5, 0]
    assert read(["1500.0", "-1500.0", "1999.0"], "epoch_ns") == [1, -2, 1 + 1]
    assert read(["1767225600.1234567"], "epoch_s") == [1_767_225_600_123_456]


forms = st.sampled_from(["{}", "{}.0", "{}.25", "-{}", "{}x", "x", "-{}.5"])


@given(
    st.lists(st.tuples(forms, st.integers(0, 2_000_000_000_000_000_000)), max_size=5),
    st.sampled_from(list(moments.EPOCHS)),
)
def test_a_number_is_read_the_same_whatever_stands_beside_it(given_: list[tuple[str, int]], format: str) -> None:
    texts: list[str | None] = [form.format(number) for form, number in given_]
    assert read(texts, format) == [read([text], format)[0] for text in texts]
    assert read([*texts, "1767225600123456789", "0.5"], "epoch_ns")[-2] == 1_767_225_600_123_456


def test_numbers_past_the_type_are_null() -> None:
    edge = 9 * 10**18 // 10**6
    for number, good in ((edge - 1, True), (edge, False), (-edge + 1, True), (-edge, False)):
        found = moments.of_numbers(pa.array([number]), "epoch_s").cast(pa.int64()).to_pylist()
        assert found == [number * 10**6 if good else None]
    assert moments.of_numbers(pa.array([float("nan"), float("inf")]), "epoch_ms").null_count == 2
    assert read(["8999999999999999999", "9000000000000000000", "1" * 20], "epoch_us") == [
        8_999_999_999_999_999_999,
        None,
        None,
    ]


def test_patterns_with_a_year_fractions_and_zones() -> None:
    apache = "%d/%b/%Y:%H:%M:%S %z"
    assert read(["31/Jan/2026:12:00:00 +0100", "32/Jan/2026:12:00:00 +0100"], apache) == [
        microseconds(datetime(2026, 1, 31, 11, tzinfo=UTC)), None,
    ]  # fmt: skip
    for text, format in (
        ("2026-01-31 12:00:00,25", "%Y-%m-%d %H:%M:%S,%f"),
        ("2026-01-31 12:00:00.25", "%Y-%m-%d %H:%M:%S.%f"),
    ):
        assert read([text, "no time"], format) == [microseconds(datetime(2026, 1, 31, 12, 0, 0, 250_000)), None]
    assert read(["120000.000001 31.01.26"], "%H%M%S.%f %d.%m.%y") == [microseconds(datetime(2026, 1, 31, 12, 0, 0, 1))]
    for format in ("%y%m%d %H:%M:%S", "%D %H:%M:%S"):
        text = "260131 12:00:00" if format[1] == "y" else "01/31/26 12:00:00"
        assert read([text], format) == [microseconds(datetime(2026, 1, 31, 12))]


def test_fractions_in_patterns_have_one_to_nine_digits_or_are_absent() -> None:
    noon = microseconds(datetime(2026, 1, 31, 12))
    for digits, micros in (("1", 100_000), ("123456", 123_456), ("1234567", 123_456), ("123456999", 123_456)):
        assert read([f"2026-01-31 12:00:00.{digits}"], "%Y-%m-%d %H:%M:%S.%f") == [noon + micros]
    assert read(["2026-01-31 12:00:00", "2026-01-31 12:00:00.5"], "%Y-%m-%d %H:%M:%S.%f") == [noon, noon + 500_000]
    # The pattern's own words keep their digits.
    assert read(["2026-01-31 12:00:00.5 of 24:00:00.25"], "%Y-%m-%d %H:%M:%S.%f of 24:00:00.25") == [noon + 500_000]


@given(st.integers(1999, 2101), st.integers(1, 12), st.integers(1, 31), st.integers(0, 23), zones)
@example(2024, 2, 29, 12, UTC)
@example(2026, 2, 29, 12, UTC)
@example(2026, 2, 31, 23, timezone(timedelta(hours=-10)))
@example(2026, 1, 31, 23, timezone(timedelta(hours=-10)))
@example(2026, 1, 1, 1, timezone(timedelta(hours=10)))
@example(1999, 4, 31, 0, timezone(timedelta(minutes=45)))
@example(2026, 2, 29, 0, timezone(timedelta(hours=14)))
@example(2026, 2, 31, 23, timezone(timedelta(hours=-12)))
def test_a_day_that_its_month_has_not_is_no_time(year: int, month: int, day: int, hour: int, zone: timezone) -> None:
    try:
        moment = datetime(year, month, day, hour, 30, 29, tzinfo=zone)
    except ValueError:
        moment = None
    offset = datetime(2000, 1, 1, tzinfo=zone).strftime("%z")
    clock = f"{hour:02}:30:29"
    local = None if moment is None else microseconds(moment.replace(tzinfo=UTC))
    for text, format, wanted in (
        (f"{day:02}/{month:02}/{year}:{clock} {offset}", "%d/%m/%Y:%H:%M:%S %z", moment and microseconds(moment)),
        (f"{year}-{month:02}-{day:02} {clock}", "%F %T", local),
        (f"{year}-{month:02}-{day:>2} {clock}", "%Y-%m-%e %T", local),
    ):
        assert read([text, "no time"], format) == [wanted, None]
        # Beside a day that each month has.
        assert read([text.replace(f"{day:02}", "15", 1), text], format)[1] == wanted
    if 1999 <= year <= 2068:
        assert read([f"{month:02}/{day:02}/{year % 100:02} {clock}"], "%D %T") == [local]


def test_the_year_of_a_pattern_without_one_by_a_clock_that_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Clock:
            return cls(2025, 1, 10, 12, tzinfo=tz)

    monkeypatch.setattr(moments, "datetime", Clock)
    for text, wanted in (
        ("Jan 10 12:00:00", datetime(2025, 1, 10, 12)), ("Jan 11 12:00:00", datetime(2025, 1, 11, 12)),
        ("Jan 11 12:00:01", datetime(2024, 1, 11, 12, 0, 1)), ("Dec 31 23:59:59", datetime(2024, 12, 31, 23, 59, 59)),
        ("Feb 29 00:00:00", datetime(2024, 2, 29)), ("Feb 30 00:00:00", None), ("no time", None),
    ):  # fmt: skip
        assert read([text], "%b %d %H:%M:%S") == [None if wanted is None else microseconds(wanted)]


def test_a_pattern_without_a_year_takes_the_last_that_is_not_ahead_by_a_day() -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    for shift in (timedelta(0), timedelta(hours=-1), timedelta(hours=23), timedelta(days=-200)):
        moment = now + shift
        assert read([f"{moment:%b %d %H:%M:%S}"], "%b %d %H:%M:%S") == [microseconds(moment)]
    ahead = now + timedelta(days=3)
    try:
        wanted = ahead.replace(year=ahead.year - 1)
    except ValueError:
        pytest.skip("of the 29th of February there is none in the year before")
    assert read([f"{ahead:%b %d %H:%M:%S}"], "%b %d %H:%M:%S") == [microseconds(wanted)]
    assert read(["Dec 10 06:55:46"], "%b %d %H:%M:%S", 2017) == [microseconds(datetime(2017, 12, 10, 6, 55, 46))]


def test_formats_that_can_never_work_are_refused() -> None:
    for good in ("iso8601", *moments.EPOCHS, "%d"):
        moments.check_format(good)
    for wrong in ("iso", "", "yyyy-mm-dd"):
        with pytest.raises(InvalidInputError, match="time format"):
            moments.check_format(wrong)
