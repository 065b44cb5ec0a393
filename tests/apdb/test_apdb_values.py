"""Times in TAI, lengths, angles, regions and ids as the front end of surveys takes them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

pytest.importorskip("pyarrow")
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa

import chronotile as ct
from chronotile.apdb import values
from chronotile.errors import InvalidInputError

DAY = 86_400
MJD_EPOCH = datetime(1858, 11, 17, tzinfo=UTC)


def mjd_utc(value: datetime) -> float:
    return (value - MJD_EPOCH) / timedelta(days=1)


# The last second before and the first after each change of TAI - UTC, from IERS Bulletin C.
LEAPS = [
    ("1972-07-01", 11), ("1973-01-01", 12), ("1974-01-01", 13), ("1975-01-01", 14), ("1976-01-01", 15),
    ("1977-01-01", 16), ("1978-01-01", 17), ("1979-01-01", 18), ("1980-01-01", 19), ("1981-07-01", 20),
    ("1982-07-01", 21), ("1983-07-01", 22), ("1985-07-01", 23), ("1988-01-01", 24), ("1990-01-01", 25),
    ("1991-01-01", 26), ("1992-07-01", 27), ("1993-07-01", 28), ("1994-07-01", 29), ("1996-01-01", 30),
    ("1997-07-01", 31), ("1999-01-01", 32), ("2006-01-01", 33), ("2009-01-01", 34), ("2012-07-01", 35),
    ("2015-07-01", 36), ("2017-01-01", 37),
]  # fmt: skip


@pytest.mark.parametrize(("day", "seconds"), LEAPS)
def test_tai_is_ahead_by_the_leap_seconds_until_then(day: str, seconds: int) -> None:
    first = datetime.fromisoformat(day).replace(tzinfo=UTC)
    for moment, ahead in ((first, seconds), (first - timedelta(seconds=1), seconds - 1)):
        assert values.mjd_tai(moment) == pytest.approx(mjd_utc(moment) + ahead / DAY, abs=1e-9)
    assert values.tai_minus_utc_s(mjd_utc(first)) == seconds
    assert values.tai_minus_utc_s(mjd_utc(first) - 1) == seconds - 1


def test_times_before_1972_have_no_whole_seconds() -> None:
    assert values.mjd_tai("1972-01-01") == pytest.approx(41_317 + 10 / DAY, abs=1e-9)
    with pytest.raises(InvalidInputError, match="before 1972"):
        values.mjd_tai(datetime(1971, 12, 31, 23, 59, 59))
    assert values.tai_minus_utc_s(40_000) == 10
    assert values.mjd_tai(40_000.5) == 40_000.5, "a number is in TAI already"


@given(st.datetimes(datetime(1972, 1, 2), datetime(2200, 1, 1)))
def test_seconds_of_tai_are_those_of_utc_and_the_leap_seconds(value: datetime) -> None:
    whole = value.replace(tzinfo=UTC)
    assert values.unix_tai(values.mjd_tai(value)) == pytest.approx(
        whole.timestamp() + values.tai_minus_utc_s(mjd_utc(whole)), abs=1e-4
    )


def test_astropy_agrees() -> None:
    time = pytest.importorskip("astropy.time")
    for day, hour in itertools.product(("1985-06-30", "2016-12-31", "2026-02-01"), (1, 23)):
        text = f"{day}T{hour:02}:30:00"
        assert values.mjd_tai(text) == pytest.approx(time.Time(text, scale="utc").tai.mjd, abs=1e-9)
        assert values.mjd_tai(time.Time(text, scale="utc")) == pytest.approx(values.mjd_tai(text), abs=1e-9)


def test_versions_of_microseconds_leave_room_for_a_thousand_changes() -> None:
    assert values.version_of(0.0) == 0
    assert values.version_of(1.0) == 86_400_000_000_000
    one, next_ = values.version_of(61_041.25), values.version_of(61_041.25 + 1e-6 / DAY * 2)
    assert one % 1_000 == 0
    assert next_ - one >= 1_000


@pytest.mark.parametrize("night", ["2026-02-01", date(2026, 2, 1), datetime(2026, 2, 1, 23, 59, 59), 61_072, 61_072.9])
def test_a_night_begins_at_noon_of_its_day(night: Any) -> None:
    noon = mjd_utc(datetime(2026, 2, 1, 12, tzinfo=UTC)) + 37 / DAY
    assert values.night_start(night) == pytest.approx(noon, abs=1e-8)


@pytest.mark.parametrize(
    ("given", "days"),
    [
        (360, 360.0), (1.5, 1.5), (0, 0.0), ("360d", 360.0), ("2w", 14.0), ("36h", 1.5), ("90m", 0.0625),
        ("43200s", 0.5), (" 30 d ", 30.0), ("1.5d", 1.5), ("0d", 0.0),
        (timedelta(hours=12), 0.5), (SimpleNamespace(jd=2.5), 2.5),
        (SimpleNamespace(to_value=lambda unit: {"d": 3.5}[unit]), 3.5),
    ],
)  # fmt: skip
def test_lengths_of_time_in_days(given: Any, days: float) -> None:
    assert values.days(given, "history") == days


@pytest.mark.parametrize(
    "given", [True, None, -1, float("nan"), float("inf"), "360", "d", "-3d", "3y", timedelta(days=-1), object(), [1]]
)
def test_lengths_that_are_refused(given: Any) -> None:
    with pytest.raises(InvalidInputError, match="history is"):
        values.days(given, "history")


def test_angles_with_units_are_degrees() -> None:
    units = pytest.importorskip("astropy.units")
    assert values.degrees(1.5) == values.degrees("1.5") == values.degrees("90arcmin") == 1.5
    assert values.degrees("10h20m", ra=True) == pytest.approx(155.0)
    assert values.degrees("10:20:30", ra=True) == pytest.approx(155.125)
    assert values.degrees("10:20:30") == pytest.approx(10.341666667)
    assert values.degrees(90 * units.arcmin) == pytest.approx(1.5)
    assert values.ARCSECOND * 3_600 == 1


def test_regions_of_the_lsst_are_those_of_ours() -> None:
    sphgeom = pytest.importorskip("lsst.sphgeom")
    own = ct.circle(10, 20, 1)
    assert values.region(own) is own
    degrees = sphgeom.Angle.fromDegrees

    def point(ra: float, dec: float) -> Any:
        return sphgeom.UnitVector3d(sphgeom.LonLat.fromDegrees(ra, dec))

    circle = values.region(sphgeom.Circle(point(350.0, -20.0), degrees(1.0)))
    box = values.region(sphgeom.Box(sphgeom.LonLat.fromDegrees(350, -10), sphgeom.LonLat.fromDegrees(10, 10)))
    around = values.region(
        sphgeom.Box(sphgeom.NormalizedAngleInterval.full(), sphgeom.AngleInterval.fromDegrees(-5, 5))
    )
    corners = [(0.0, 0.0), (2.0, 0.0), (2.0, 2.0), (0.0, 2.0)]
    polygon = values.region(sphgeom.ConvexPolygon([point(ra, dec) for ra, dec in corners]))
    ellipse = values.region(sphgeom.Ellipse(point(100.0, 0.0), degrees(2.0), degrees(1.0), degrees(0.0)))
    for region, inside, outside in (
        (circle, (350.9, -20.0), (351.2, -20.0)), (box, (0.0, 0.0), (20.0, 0.0)), (around, (200.0, 4.9), (200.0, 5.1)),
        (polygon, (1.0, 1.0), (3.0, 1.0)), (ellipse, (100.0, 0.9), (103.0, 0.0)),
    ):  # fmt: skip
        found = region.contains([inside[0], outside[0]], [inside[1], outside[1]])
        assert pa.array(found).to_pylist() == [True, False]
    edge = values.region(sphgeom.Circle(point(0.0, 0.0), degrees(1.0)))
    assert pa.array(edge.contains([1.0], [0.0])).to_pylist() == [True], "the border belongs to it"
    everything = values.region(sphgeom.Circle.full())
    assert pa.array(everything.contains([0.0, 180.0, 90.0], [-90.0, 90.0, 0.0])).to_pylist() == [True] * 3
    assert pa.array(around.contains([0.0, 0.5, 359.5], [0.0] * 3)).to_pylist() == [True] * 3
    with pytest.raises(InvalidInputError, match="empty"):
        values.region(sphgeom.Circle())
    with pytest.raises(InvalidInputError, match=r"give ct.circle"):
        values.region((10, 20, 1))


letters = st.text("abcdefghijklmnopqrstuvwxyz", min_size=7, max_size=7)


@given(st.integers(0, 99), letters, st.integers(0, 99), letters)
def test_names_of_ztf_objects_are_numbers_in_their_order(year: int, word: str, other_year: int, other: str) -> None:
    first, second = f"ZTF{year:02}{word}", f"ZTF{other_year:02}{other}"
    numbers = values.ztf_object_ids(pa.array([first, second])).tolist()
    assert numbers == [values.object_id(first), values.object_id(f" {second.lower()} ")]
    assert (numbers[0] < numbers[1]) == (first < second)
    assert (numbers[0] == numbers[1]) == (first == second)
    number = year
    for letter in word:
        number = number * 26 + "abcdefghijklmnopqrstuvwxyz".index(letter)
    assert numbers[0] == number


@pytest.mark.parametrize("wrong", ["ZTF18abkdcz", "ZTF18ABKDCZC", " ZTF18abkdczc", "", None])
def test_one_wrong_name_among_good_ones_is_named(wrong: str | None) -> None:
    good = ["ZTF18abkdczc", "ZTF19aaaaaaa"]
    for names in ([*good, wrong], [wrong, *good], [good[0], wrong, good[1]], [wrong]):
        with pytest.raises(InvalidInputError, match=f"{wrong!r} is not a ZTF object name"):
            values.ztf_object_ids(pa.array(names, pa.utf8()))
    assert values.ztf_object_ids(pa.array([], pa.utf8())).tolist() == []
    chunked = pa.chunked_array([good[:1], good[1:]])
    assert values.ztf_object_ids(chunked).tolist() == [values.object_id(name) for name in good]


def test_ids_of_objects() -> None:
    assert values.object_id("144594336015") == values.object_id(144594336015) == 144594336015
    assert values.object_id("-5") == -5
    for wrong in ("M31", "ZTF18abc", "ZTF1xabkdczc", "", None, "1.5", 1.5, 5.0, b"5"):
        with pytest.raises(InvalidInputError, match="ZTF"):
            values.object_id(wrong)


ids = st.integers(-(2**63), 2**63 - 1)
ztf_names = st.builds("ZTF{:02}{}".format, st.integers(0, 99), letters)
FORMS: list[Callable[[list[Any]], Any]] = [
    list, tuple, iter, pa.array, lambda given: pa.chunked_array([given[:1], given[1:]]), pd.Series, np.array,
    lambda given: pa.table({"a": pa.array(given)})["a"], pl.Series,
]  # fmt: skip
"""What holds ids."""


@given(st.lists(ids, min_size=1, max_size=5), st.sampled_from(FORMS))
@example([-(2**63), 2**63 - 1], list)
def test_numbers_of_objects_in_order(numbers: list[int], form: Callable[[list[Any]], Any]) -> None:
    found = values.object_ids(form(numbers))
    assert (found.dtype, found.tolist()) == (np.int64, numbers)
    assert values.object_ids(numbers[0]).tolist() == numbers[:1]
    assert values.object_ids(pa.array([None, *numbers, None])).tolist() == numbers
    texts = [f" {number} " for number in numbers]
    assert values.object_ids(form(texts)).tolist() == numbers
    assert values.object_ids(texts[0]).tolist() == numbers[:1]


@given(st.lists(ztf_names | ids.map(str), min_size=1, max_size=5), st.sampled_from(FORMS))
@example(["ZTF18abkdczc", "5"], list)
def test_names_and_numbers_of_objects_may_be_mixed(texts: list[str], form: Callable[[list[Any]], Any]) -> None:
    wanted = [values.object_id(text) for text in texts]
    assert values.object_ids(form(texts)).tolist() == wanted
    assert values.object_ids(form([f" {text.lower()}  " for text in texts])).tolist() == wanted
    plain = [int(text) if text.lstrip("-").isdigit() else text for text in texts]
    assert values.object_ids(plain).tolist() == wanted
    assert values.object_ids([*plain, None, *plain]).tolist() == [*wanted, *wanted]
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        assert values.object_ids(pa.array([*texts, None], kind)).tolist() == wanted
    assert values.object_ids(pa.array([None, *texts]).dictionary_encode()).tolist() == wanted


@pytest.mark.parametrize(
    "none", [[], (), pa.array([]), pa.array([], pa.utf8()), [None], pa.array([None, None]), pl.Series([])]
)
def test_no_ids_are_an_empty_array(none: Any) -> None:
    found = values.object_ids(none)
    assert (found.dtype, found.tolist()) == (np.int64, [])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ([1.5], "object ids have type double: give integers or ZTF names"),
        (pa.array([5.0]), "object ids have type double: give integers or ZTF names"),
        ([True], "object ids have type bool"),
        (pa.array([2**63], pa.uint64()), "object ids do not fit 64 bits: .*9223372036854775808"),
        ([2**63], "cannot read object ids: .*: give integers of 64 bits or ZTF names"),
        (5j, "cannot read object ids: .* not iterable: give integers of 64 bits or ZTF names"),
        ([1.5, "ZTF18abkdczc"], "1.5 is not an object id"),
        (["5", "M31"], "'M31' is not an object id"),
        (["5", "ZTF18abc"], "'ZTF18abc' is not a ZTF object name"),
        ("M31", "'M31' is not an object id"),
    ],
)
def test_what_is_no_id_among_others_is_refused(wrong: Any, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        values.object_ids(wrong)


def test_numbers_that_are_julian_dates_are_refused() -> None:
    for good in (2_000_000, 3_000_000, 61_041.5):
        assert values.mjd_tai(good) == good
    for wrong in (2_000_001, 2_461_042.5, 2_999_999):
        with pytest.raises(InvalidInputError, match=r"the time is .*, which looks like a Julian Date") as refused:
            values.mjd_tai(wrong)
        assert refused.value.kind == "invalid-time"


def test_versions_of_objects_are_from_1858_to_2149() -> None:
    for good in (0.0, math.nextafter(106_000, 0)):
        assert values.within_versions(good) == good
        assert 0 <= values.version_of(good) < 2**63
    for wrong in (math.nextafter(0, -1), -0.5, 106_000.0, math.nan):
        with pytest.raises(InvalidInputError, match=r"is not an MJD \(TAI\) from 0 to 106,000"):
            values.within_versions(wrong)


def test_a_record_is_near_within_five_arcseconds_and_two_ticks_of_a_microsecond() -> None:
    assert pytest.approx(5 / 3_600, rel=1e-9, abs=0) == values.NEAR_DEG
    assert pytest.approx(2e-6 / DAY, rel=1e-9, abs=0) == values.TICK_DAYS
