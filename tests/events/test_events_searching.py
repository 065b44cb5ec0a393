"""Searches by time on a dataset that notes what is read: what is visible, in which order, and how much is held."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("pyarrow")
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from support_events import StoredRows

from chronotile.bounds import Bounds
from chronotile.events import searching
from chronotile.events.searching import Question, Visibility
from chronotile.events.settings import Settings

SECOND = 1_000_000
MINUTE = 60 * SECOND
NOW = 1_767_225_600 * SECOND
FOREVER = Visibility(NOW, Settings())
ALL = Question(None, None, None, (), FOREVER)
SCHEMA = pa.schema(
    {
        "time": pa.timestamp("us", "UTC"),
        "source": pa.string(),
        "line": pa.int64(),
        "batch": pa.string(),
        "body_bytes": pa.int64(),
        "body": pa.string(),
        "ttl_s": pa.int64(),
    }
)


def document(time: int, line: int = 1, *, batch: str = "b", size: int = 10, ttl_s: int | None = None) -> dict[str, Any]:
    return {
        "time": time, "source": "s", "line": line, "batch": batch, "body_bytes": size, "body": "x" * size,
        "ttl_s": ttl_s,
    }  # fmt: skip


def order(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("time", "source", "line", "batch"))


def search(
    dataset: Any, question: Question, limit: int | None, *, newest_first: bool = True,
    columns: tuple[str, ...] = ("time", "line", "batch"), bounds: Bounds | None = None,
) -> list[pa.Table]:  # fmt: skip
    return list(
        searching.parts_in_order(
            dataset, question, list(columns), limit, newest_first=newest_first, bounds=bounds or Bounds()
        )
    )


@contextmanager
def small(**figures: int) -> Iterator[None]:
    """Fewer rows and bytes than usual are held at a time."""
    with pytest.MonkeyPatch.context() as patch:
        for name, figure in figures.items():
            patch.setattr(searching, name, figure)
        yield


# ---------------------------------------------------------------- what is visible

ages = st.integers(-3, 3 * SECOND) | st.integers(0, 20).map(lambda seconds: seconds * SECOND)
ttls = st.none() | st.integers(1, 15)


@given(st.lists(st.tuples(ages, ttls), min_size=1, max_size=12), ttls, st.none() | ages)
def test_a_document_is_visible_until_its_age_reaches_its_ttl(
    documents: list[tuple[int, int | None]], ttl_s: int | None, expired_age: int | None
) -> None:
    own = [ttl for _, ttl in documents if ttl is not None]
    expired_us = None if expired_age is None else NOW - expired_age
    visibility = Visibility(NOW, Settings(ttl_s=ttl_s, expired_us=expired_us, ttl_own_max_s=max(own, default=None)))

    def is_visible(age: int, ttl: int | None) -> bool:
        if ttl is not None:
            return age < ttl * SECOND
        return (ttl_s is None or age < ttl_s * SECOND) and (expired_age is None or age <= expired_age)

    rows = [document(NOW - age, ttl_s=ttl) for age, ttl in documents]
    wanted = [is_visible(*each) for each in documents]
    [table] = pa.Table.from_pylist(rows, schema=SCHEMA).to_batches()
    assert visibility.mask(table).tolist() == wanted
    assert visibility.by_document == bool(own)
    dataset: Any = StoredRows(SCHEMA, rows)
    question = replace(ALL, visibility=visibility)
    assert searching.count(dataset, question) == sum(wanted)
    assert sum(batch.num_rows for batch in searching.rows(dataset, question, ["line"])) == sum(wanted)


@given(ttls, st.none() | ages, ttls)
def test_nothing_is_read_from_before_the_first_time_at_which_a_document_can_be_visible(
    ttl_s: int | None, expired_age: int | None, ttl_own_max_s: int | None
) -> None:
    expired_us = None if expired_age is None else NOW - expired_age
    visibility = Visibility(NOW, Settings(ttl_s=ttl_s, expired_us=expired_us, ttl_own_max_s=ttl_own_max_s))
    place = replace(ALL, visibility=visibility).place()
    assert place["start"] == visibility.earliest_us
    if ttl_s is None and expired_age is None:
        assert visibility.start_us is visibility.earliest_us is None
        return

    def visible(time: int) -> list[bool]:
        kinds = [None] if ttl_own_max_s is None else [None, ttl_own_max_s]
        table = pa.Table.from_pylist([document(time, ttl_s=kind) for kind in kinds], schema=SCHEMA)
        return list(visibility.mask(table.to_batches()[0]))

    assert visibility.earliest_us is not None
    assert any(visible(visibility.earliest_us))
    assert not any(visible(visibility.earliest_us - 1))


def test_a_period_that_has_expired_is_empty_and_never_ends_before_its_start() -> None:
    question = Question(5, 10, ("a",), (), Visibility(NOW, Settings(ttl_s=1)))
    assert question.place() == {"start": 10, "end": 10, "keys": ["a"], "where": []}
    assert replace(question, end_us=None).place()["start"] == NOW - SECOND + 1
    assert replace(question, start_us=NOW, end_us=NOW + 9).place()["start"] == NOW
    assert replace(question, streams=None).place()["keys"] is None
    assert replace(question, streams=()).place()["keys"] == []


def test_only_the_columns_that_are_needed_are_read() -> None:
    dataset: Any = StoredRows(SCHEMA, [document(NOW)])
    [plain] = searching.rows(dataset, ALL, ["line", "line"])
    own = replace(ALL, visibility=Visibility(NOW, Settings(ttl_own_max_s=1)))
    [masked] = searching.rows(dataset, own, ["line", "time"])
    assert plain.schema.names == ["line"]
    assert masked.schema.names == ["line", "time"]
    assert dataset.columns == [["line"], ["line", "time", "ttl_s"]]


# ---------------------------------------------------------------- spans


def test_a_search_begins_with_a_minute_and_reads_four_times_as_much_as_long_as_it_finds_nothing() -> None:
    first, last = NOW - 200 * MINUTE, NOW
    for newest_first in (True, False):
        dataset = StoredRows(SCHEMA, [], slices=(first, last))
        assert [part.num_rows for part in search(dataset, ALL, 1, newest_first=newest_first)] == [0]
        lengths = [1, 4, 16, 64, 115]
        edges = [0, 1, 5, 21, 85, 200]
        assert [(end - start) // MINUTE for start, end in dataset.periods] == lengths  # type: ignore[operator]
        if newest_first:
            assert dataset.periods == [(last - high * MINUTE, last - low * MINUTE) for low, high in pairwise(edges)]
        else:
            assert dataset.periods == [(first + low * MINUTE, first + high * MINUTE) for low, high in pairwise(edges)]


@pytest.mark.parametrize("newest_first", [True, False])
@pytest.mark.parametrize(
    ("limit", "minutes"), [(2, [1]), (3, [1, 1]), (6, [1, 1, 1]), (7, [1, 4]), (20, [1, 4, 4, 1]), (30, [1, 4, 5])]
)
def test_a_span_grows_if_two_more_like_it_do_not_reach_the_limit(
    limit: int, minutes: list[int], newest_first: bool
) -> None:
    # Two documents a minute for ten minutes.
    rows = [
        document(NOW - minute * MINUTE - half, line=2 * minute + half) for minute in range(1, 11) for half in (0, -5)
    ]
    dataset = StoredRows(SCHEMA, rows, slices=(NOW - 10 * MINUTE, NOW))
    [found] = search(dataset, ALL, limit, newest_first=newest_first)
    assert found.num_rows == min(limit, 20)
    assert [(end - start) // MINUTE for start, end in dataset.periods] == minutes  # type: ignore[operator]


@pytest.mark.parametrize(
    ("start", "end", "period"),
    [
        (None, None, (-60, 60)),
        (-90, None, (-60, 60)),
        (-30, None, (-30, 60)),
        (None, 30, (-60, 30)),
        (None, 90, (-60, 60)),
        (-90, 90, (-90, 90)),
        (20, 30, (20, 30)),
        (20, 20, None),
        (70, None, None),
        (None, -60, None),
    ],
)
def test_a_search_reads_the_part_of_its_period_in_which_slices_lie(
    start: int | None, end: int | None, period: tuple[int, int] | None
) -> None:
    dataset = StoredRows(SCHEMA, [], slices=(NOW - 60 * SECOND, NOW + 60 * SECOND))
    bounds = (None if bound is None else NOW + bound * SECOND for bound in (start, end))
    assert search(dataset, ALL.within(*bounds), 1)[0].num_rows == 0
    periods = sorted((low - NOW, high - NOW) for low, high in dataset.periods if low is not None and high is not None)
    assert (None if not periods else (periods[0][0] // SECOND, periods[-1][1] // SECOND)) == period
    assert all(high == low for (_, high), (low, _) in pairwise(periods))


def test_a_search_of_an_archive_without_slices_reads_nothing() -> None:
    dataset = StoredRows(SCHEMA, [])
    [found] = search(dataset, ALL, 5, columns=("body", "time"))
    assert found.schema == pa.schema([SCHEMA.field("body"), SCHEMA.field("time")])
    assert (found.num_rows, dataset.periods) == (0, [])


# ---------------------------------------------------------------- order and memory

documents = st.lists(
    st.builds(
        document,
        st.integers(-9, 9).map(lambda step: NOW + step * 20 * SECOND),
        st.integers(1, 40),
        batch=st.sampled_from(["b", "c"]),
        size=st.integers(0, 60),
    ),
    max_size=40,
    # A batch has each of its lines once.
    unique_by=lambda row: (row["line"], row["batch"]),
)


@settings(deadline=None)
@given(documents, st.none() | st.integers(1, 30), st.booleans(), st.integers(1, 7), st.sampled_from([0, 1, 900, 4_000]),
       st.integers(0, 10))  # fmt: skip
def test_the_first_documents_in_order_are_found_however_little_is_held(
    rows: list[dict[str, Any]], limit: int | None, newest_first: bool, batch_rows: int, sorted_bytes: int, held: int
) -> None:
    dataset = StoredRows(SCHEMA, rows, batch_rows=batch_rows, slices=(NOW - 5 * MINUTE, NOW + 5 * MINUTE))
    with small(_GROUP_BYTES=100, _HELD_ROWS=held):
        parts = search(dataset, ALL, limit, newest_first=newest_first, columns=("body", "time", "line", "batch"),
                       bounds=Bounds(sorted_bytes_max=sorted_bytes))  # fmt: skip
    wanted = sorted(rows, key=order, reverse=newest_first)[:limit]
    assert parts[0].schema.names == ["body", "time", "line", "batch"]
    found = pa.concat_tables(parts).to_pylist()
    assert [(row["line"], row["batch"], len(row["body"])) for row in found] == [
        (row["line"], row["batch"], row["body_bytes"]) for row in wanted
    ]
    if len(parts) > 1:
        sizes = [sum(map(len, part["body"].to_pylist())) for part in parts]
        firsts = [len(part["body"][0].as_py()) for part in parts]
        assert all(size <= 100 or part.num_rows == 1 for size, part in zip(sizes, parts, strict=True))
        # A part ends where the next document does not fit.
        assert all(size + more > 100 for size, more in zip(sizes, firsts[1:], strict=False))


def test_documents_that_fit_together_come_in_one_part_read_once() -> None:
    rows = [document(NOW - line, line, size=100) for line in range(8)]
    dataset = StoredRows(SCHEMA, rows, slices=(NOW - MINUTE, NOW + MINUTE))
    assert [part.num_rows for part in search(dataset, ALL, 8)] == [8]
    assert all("body_bytes" not in columns for columns in dataset.columns)


def test_large_documents_are_read_again_in_groups_each_for_its_own_time() -> None:
    rows = [document(NOW - 10 * line, line, size=100) for line in range(8)]
    dataset = StoredRows(SCHEMA, rows, slices=(NOW - MINUTE, NOW + MINUTE))
    asked: list[int] = []
    bounds = Bounds(hold=asked.append, sorted_bytes_max=500)
    with small(_GROUP_BYTES=10_000):
        assert [part.num_rows for part in search(dataset, ALL, 8, columns=("body",), bounds=bounds)] == [8]
        # Room for the keys, and for three groups.
        assert 30_000 < asked[-1] < 30_000 + 8 * 100
    dataset.periods.clear()
    with small(_GROUP_BYTES=300):
        parts = search(dataset, ALL, 7, columns=("body",), bounds=bounds)
    assert [part.num_rows for part in parts] == [3, 3, 1]
    assert dataset.periods[-3:] == [(NOW - 20, NOW + 1), (NOW - 50, NOW - 29), (NOW - 60, NOW - 59)]
    # The first read of keys, which finds the documents, takes no text.
    assert "body" not in dataset.columns[len(dataset.columns) - 4]


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [
        ([50, 50], [2]),
        ([50, 51], [1, 1]),
        ([100, 50, 51], [1, 1, 1]),
        ([150, 10, 90, 1], [1, 2, 1]),
        ([0, 101, 0, 100], [1, 1, 2]),
    ],
)
def test_a_group_is_full_at_its_size_and_has_one_document_at_least(sizes: list[int], parts: list[int]) -> None:
    rows = [document(NOW - line, line, size=size) for line, size in enumerate(sizes)]
    dataset = StoredRows(SCHEMA, rows, slices=(NOW - MINUTE, NOW + MINUTE))
    with small(_GROUP_BYTES=100):
        found = search(dataset, ALL, 4, columns=("line",), bounds=Bounds(sorted_bytes_max=1))
    assert [part.num_rows for part in found] == parts


def test_a_part_of_a_search_has_eight_mebibytes_at_most() -> None:
    rows = [{**document(NOW - line, line), "body_bytes": 1 << 20} for line in range(20)]
    dataset = StoredRows(SCHEMA, rows, slices=(NOW - MINUTE, NOW + MINUTE))
    found = search(dataset, ALL, 20, bounds=Bounds(sorted_bytes_max=1))
    assert [part.num_rows for part in found] == [8, 8, 4]


def is_read_twice(dataset: StoredRows, limit: int, sorted_bytes_max: int, hold: Callable[[int], object] = abs) -> bool:
    """Whether a search finds documents without their text before it reads them."""
    dataset.columns.clear()
    search(dataset, ALL, limit, columns=("body",), bounds=Bounds(hold=hold, sorted_bytes_max=sorted_bytes_max))
    return any("body" not in columns for columns in dataset.columns)


def test_as_many_bytes_as_may_be_sorted_are_read_once() -> None:
    rows = [document(NOW - line, line, size=100) for line in range(6)]
    dataset = StoredRows(SCHEMA, rows, slices=(NOW - SECOND, NOW + SECOND))
    asked: list[int] = []
    assert not is_read_twice(dataset, 6, 10**6, asked.append)
    held = max(asked) // 2
    assert not is_read_twice(dataset, 6, held)
    assert is_read_twice(dataset, 6, held - 1)


def test_the_first_documents_may_take_half_of_what_may_be_sorted() -> None:
    rows = [document(NOW - line, line, size=100) for line in range(30)]
    dataset = StoredRows(SCHEMA, rows, batch_rows=1, slices=(NOW - SECOND, NOW + SECOND))
    first = dataset.table.select(["body", *searching.ORDER]).take(pa.array([0, 1])).nbytes
    assert not is_read_twice(dataset, 2, 2 * first)
    assert is_read_twice(dataset, 2, 2 * first - 1)


def test_documents_without_a_size_are_read_again_one_at_a_time() -> None:
    schema = SCHEMA.remove(SCHEMA.names.index("body_bytes"))
    rows = [document(NOW - line, line, size=300) for line in range(4)]
    dataset = StoredRows(schema, rows, slices=(NOW - MINUTE, NOW + MINUTE))
    parts = search(dataset, ALL, 3, columns=("line", "body"), bounds=Bounds(sorted_bytes_max=400))
    assert [part["line"].to_pylist() for part in parts] == [[0], [1], [2]]


@pytest.mark.parametrize("newest_first", [True, False])
def test_memory_for_a_search_does_not_grow_with_what_lies_in_its_period(newest_first: bool) -> None:
    rows = [document(NOW - line, line, size=100) for line in range(2_000)]
    dataset = StoredRows(SCHEMA, rows, batch_rows=1, slices=(NOW - SECOND, NOW + SECOND))
    one = pa.Table.from_pylist(rows[:100], schema=SCHEMA).select(["body", *searching.ORDER]).nbytes / 100
    asked: list[int] = []
    with small(_HELD_ROWS=40):
        search(dataset, ALL, 5, newest_first=newest_first, columns=("body",), bounds=Bounds(hold=asked.append))
    # Sorting takes a second copy. Rows are cut to the first five once there are more than 40 and four times five.
    assert asked[0] == pytest.approx(2 * one, rel=0.3)
    assert max(asked) == pytest.approx(2 * 61 * one, rel=0.3)
    assert next(at for at, (held, after) in enumerate(pairwise(asked), 1) if after < held) == 61


# ---------------------------------------------------------------- times of reports


@given(st.integers(-(2**55), 2**55), st.integers(-14, 14))
def test_a_time_of_a_report_is_the_same_microsecond_in_any_zone(at: int, hours: int) -> None:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=at)
    assert searching.to_us(moment) == at
    assert searching.to_us(moment.replace(tzinfo=None)) == at
    assert searching.to_us(moment.astimezone(timezone(timedelta(hours=hours)))) == at
    assert searching.to_us(at) == at
