"""Times to live as text, and which slices have expired, at the second and the microsecond."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("pyarrow")
import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

import chronotile as ct
from chronotile.errors import InvalidInputError
from chronotile.events import retention
from chronotile.events.searching import Visibility
from chronotile.events.settings import Settings

DAY_S = 86_400
DAY_US = DAY_S * 10**6
FIRST = datetime(2026, 1, 30, tzinfo=UTC)
FIRST_US = int(FIRST.timestamp()) * 10**6
UNITS = {"s": 1, "m": 60, "h": 3_600, "d": DAY_S, "w": 7 * DAY_S}


@given(st.integers(1, 10_000), st.sampled_from(sorted(UNITS)))
def test_a_ttl_counts_in_its_unit(count: int, unit: str) -> None:
    seconds = count * UNITS[unit]
    assert retention.ttl_seconds(f"{count}{unit}") == seconds
    assert retention.ttl_seconds(timedelta(seconds=seconds)) == seconds


@given(st.integers(1, 100_000 * DAY_S))
@example(1)
@example(59)
@example(60)
@example(3_600)
@example(90_000)
@example(86_400)
@example(100_000 * DAY_S)
def test_a_ttl_as_text_is_the_same_ttl_in_the_largest_unit(seconds: int) -> None:
    text = retention.ttl_text(seconds)
    assert text is not None
    assert retention.ttl_seconds(text) == seconds
    larger = [unit for unit in ("m", "h", "d") if UNITS[unit] > UNITS[text[-1]]]
    assert all(seconds % UNITS[unit] for unit in larger)


def test_a_ttl_lasts_a_second_at_least_and_100000_days_at_most() -> None:
    assert retention.ttl_seconds(None) is None
    assert retention.ttl_text(None) is None
    assert retention.ttl_seconds("1s") == 1
    assert retention.ttl_seconds("100000d") == 100_000 * DAY_S
    for wrong in ("0s", "0d", "100001d", f"{100_000 * DAY_S + 1}s", "1y", "d", "", "1.5d", "-1d"):
        with pytest.raises(InvalidInputError, match=r"life is .*: give text such as"):
            retention.ttl_seconds(wrong, "life")
    for length in (timedelta(0), timedelta(seconds=-1), timedelta(days=100_001)):
        with pytest.raises(InvalidInputError, match="ttl is"):
            retention.ttl_seconds(length)


@pytest.mark.parametrize(
    ("ttl_s", "own", "wanted"),
    [(None, None, None), (None, 5, None), (DAY_S, None, "1d"), (DAY_S, 60, "1d"), (60, DAY_S, "1d"), (60, 61, "61s")],
)
def test_the_datasets_own_retention_is_the_longest_ttl(ttl_s: int | None, own: int | None, wanted: str | None) -> None:
    assert retention.retention_of(Settings(ttl_s=ttl_s, ttl_own_max_s=own)) == wanted


def test_another_ttl_leaves_expired_what_has_expired() -> None:
    before = Settings(ttl_s=100)
    after = retention.changed(before, 1_000, FIRST_US)
    assert (after.ttl_s, after.expired_us) == (1_000, FIRST_US - 100 * 10**6 + 1)
    assert retention.changed(Settings(), 7, FIRST_US) == Settings(ttl_s=7)


# ---------------------------------------------------------------- slices of a day

lives = st.none() | st.sampled_from([1, 59, 60, 61, DAY_S - 1, DAY_S, DAY_S + 1, 2 * DAY_S, 10**9])
documents = st.lists(st.tuples(st.integers(0, 2), lives), min_size=1, max_size=6)
moments = st.tuples(st.integers(0, 4), st.sampled_from([0, 59, 60, 61]), st.sampled_from([-1, 0, 1]))
shared_ttls = st.none() | st.sampled_from([1, 60, DAY_S, 2 * DAY_S])


def dataset_of(archive: ct.Archive, given_: list[tuple[int, int | None]]) -> ct.Dataset:
    schema = pa.schema([("time", pa.timestamp("us", "UTC")), ("ttl_s", pa.int64()), ("n", pa.int64())])
    made = archive.create("d", schema=schema, cell=ct.single(), time="time", window="1d", slice=1, id="n")
    times = [FIRST + timedelta(days=day, hours=12) for day, _ in given_]
    made.write(pa.table([times, [life for _, life in given_], range(len(given_))], schema=schema))
    return made


@settings(max_examples=60)
@given(documents, moments, shared_ttls, st.booleans())
@example([(0, 60)], (1, 60, 0), None, True)
@example([(0, 60)], (1, 60, -1), None, True)
@example([(0, None)], (1, 0, 0), 1, False)
@example([(0, None)], (2, 0, 0), DAY_S, False)
@example([(0, None)], (2, 0, -1), DAY_S, False)
@example([(0, 10**9)], (1, 0, 0), 1, True)
def test_a_slice_has_expired_once_its_last_document_could_not_be_visible(
    given_: list[tuple[int, int | None]], moment: tuple[int, int, int], ttl_s: int | None, has_own: bool
) -> None:
    has_own = has_own or any(life is not None for _, life in given_)
    days, seconds, micros = moment
    now = FIRST_US + days * DAY_US + seconds * 10**6 + micros
    visibility = Visibility(now, Settings(ttl_s=ttl_s, ttl_own_max_s=10**9 if has_own else None))
    wanted = []
    for day in sorted({day for day, _ in given_}):
        end = FIRST_US + (day + 1) * DAY_US
        shared_gone = ttl_s is not None and end <= now - ttl_s * 10**6 + 1
        mine = [life for other, life in given_ if other == day]
        gone = [shared_gone if life is None else life <= (now - end) // 10**6 for life in mine]
        if end > now or not all(gone) or not (shared_gone or has_own):
            break
        wanted.append(day)
    with ct.open("memory:") as archive:
        found: list[Any] = retention.expired_slices(dataset_of(archive, given_), visibility)
    assert [(part.start - FIRST).days for part in found] == wanted


def test_a_change_is_previewed_with_what_it_hides() -> None:
    given_: list[tuple[int, int | None]] = [(0, None), (0, 10 * DAY_S), (1, None), (2, None)]
    with ct.open("memory:") as archive:
        dataset = dataset_of(archive, given_)
        # Three days and a half after the first.
        now = FIRST_US + 4 * DAY_US
        held = Settings(ttl_own_max_s=10 * DAY_S)
        found = retention.preview(dataset, held, 2 * DAY_S, now)
        assert (found.ttl_before, found.ttl_after) == (None, "2d")
        assert (found.documents_expiring, found.documents_visible, found.slices) == (2, 2, ())
        without = retention.preview(dataset, Settings(ttl_s=10 * DAY_S), None, now)
        assert (without.ttl_before, without.ttl_after, without.documents_expiring) == ("10d", None, 0)
