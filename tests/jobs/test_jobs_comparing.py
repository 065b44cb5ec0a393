"""Comparing an archive of jobs with a database in a file: what differs is named, and nothing else is."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

import chronotile as ct
from chronotile import jobs
from chronotile.jobs import comparing

FIRST = datetime(2026, 1, 30, tzinfo=UTC)
DAY = timedelta(days=1)
SCHEMA = {"job_id": "int64", "submitted": "timestamp[us, UTC]", "status": "utf8", "memory": "float64"}
TABLE = sa.Table(
    "jobs", sa.MetaData(), sa.Column("job_id", sa.BigInteger), sa.Column("submitted", sa.DateTime),
    sa.Column("status", sa.Text), sa.Column("memory", sa.Float), sa.Column("secret", sa.Text),
)  # fmt: skip

Row = dict[str, Any]


def job(number: int, at: datetime = FIRST, status: str | None = "done", memory: float | None = 1.5) -> Row:
    return {"job_id": number, "submitted": at, "status": status, "memory": memory}


def compared(folder: Path, theirs: list[Row], ours: list[Row], **options: Any) -> comparing.CompareReport:
    """The report on a database and an archive with these rows."""
    file = folder / "jobs.db"
    file.unlink(missing_ok=True)
    url = f"sqlite:///{file}"
    engine = sa.create_engine(url)
    TABLE.metadata.create_all(engine)
    with engine.begin() as connection:
        if theirs:
            connection.execute(
                TABLE.insert(), [{**row, "submitted": row["submitted"].replace(tzinfo=None)} for row in theirs]
            )
    engine.dispose()
    with ct.open("memory:") as archive:
        done = jobs.create(archive, schema=SCHEMA)
        if ours:
            done.dataset.write(pa.Table.from_pylist(ours, done.dataset.schema))
        return jobs.compare(done, url, "jobs", **options)


def test_the_same_jobs_are_the_same(tmp_path: Path) -> None:
    # The first and the last moment of days, and a job in the middle.
    rows = [job(1), job(2, FIRST + DAY - timedelta(microseconds=1)), job(3, FIRST + DAY), job(4, FIRST + 2.5 * DAY)]
    seen: list[date] = []
    report = compared(tmp_path, rows, rows, progress=seen.append)
    assert report.ok
    assert (report.days, report.rows, report.differences) == (3, 4, ())
    assert seen == [date(2026, 1, 30), date(2026, 1, 31), date(2026, 2, 1)]
    # The last job is on the first moment of a day: that day counts.
    report = compared(tmp_path, [*rows, job(5, FIRST + 3 * DAY)], [*rows, job(5, FIRST + 3 * DAY)])
    assert (report.days, report.rows, report.ok) == (4, 5, True)
    # Days are those of UTC, from midnight, wherever in its day the first job is.
    early = [job(1, FIRST + timedelta(hours=13, minutes=14, seconds=15, microseconds=16))]
    assert compared(tmp_path, early, early, progress=seen.append).days == 1
    assert seen[-1] == date(2026, 1, 30)
    latest = [*early, job(2, FIRST + DAY - timedelta(microseconds=1))]
    assert compared(tmp_path, latest, latest).days == 1
    crossing = [*early, job(2, FIRST + DAY + timedelta(hours=1))]
    assert compared(tmp_path, crossing, crossing).days == 2


def test_an_empty_database_has_no_days(tmp_path: Path) -> None:
    report = compared(tmp_path, [], [])
    assert (report.days, report.rows, report.ok) == (0, 0, True)


def test_differences_are_named_by_day_and_kind(tmp_path: Path) -> None:
    theirs = [job(1), job(2), job(3), job(4, FIRST + DAY), job(5, FIRST + 2 * DAY)]
    ours = [
        job(1),
        job(2, status="failed"),
        job(9),
        job(4, FIRST + DAY),
        job(5, FIRST + 2 * DAY),
        job(6, FIRST + 2 * DAY),
    ]
    report = compared(tmp_path, theirs, ours)
    assert not report.ok
    assert report.differences == (
        comparing.DayDifference(date(2026, 1, 30), 3, 3, missing=(3,), superfluous=(9,), differing=(2,)),
        comparing.DayDifference(date(2026, 2, 1), 1, 2, missing=(), superfluous=(6,), differing=()),
    )
    assert (report.days, report.rows) == (3, 5)


def test_the_days_asked_for_are_compared_and_no_others(tmp_path: Path) -> None:
    theirs = [job(1), job(2, FIRST + DAY), job(3, FIRST + 2 * DAY)]
    ours = [job(1, status="failed"), job(2, FIRST + DAY), job(3, FIRST + 2 * DAY, status="failed")]
    for days, wrong, count in (
        ("2026-01-30", [30], 1), ("2026-01-31", [], 1), ("2026-02-01", [1], 1),
        (("2026-01-30", "2026-02-01"), [30, 1], 3), (("2026-01-31", "2026-02-01"), [1], 2),
    ):  # fmt: skip
        report = compared(tmp_path, theirs, ours, days=days)
        assert [each.day.day for each in report.differences] == wrong
        assert report.days == count


@pytest.mark.parametrize(
    ("theirs", "ours", "same"),
    [
        (job(1, memory=None), job(1, memory=None), True),
        (job(1, memory=None), job(1, memory=0.0), False),
        (job(1, memory=2.5), job(1, memory=None), False),
        (job(1, memory=None), job(1, memory=float("nan")), False),
        (job(1, status=None), job(1, status=None), True),
        (job(1, status=None), job(1, status=""), False),
        (job(1, memory=2.5), job(1, memory=2.5000001), False),
        (job(1), job(1, FIRST + timedelta(microseconds=1)), False),
    ],
)
def test_absent_values_are_equal_to_absent_ones_only(tmp_path: Path, theirs: Row, ours: Row, same: bool) -> None:
    report = compared(tmp_path, [theirs, job(2)], [ours, job(2)])
    assert report.ok is same
    assert [each.differing for each in report.differences] == ([] if same else [(1,)])
    # Beside a job that is missing, absent values on both sides still make no difference.
    report = compared(tmp_path, [theirs, job(2)], [ours])
    assert [(each.missing, each.differing) for each in report.differences] == [((2,), () if same else (1,))]


def test_a_number_that_is_not_one_is_equal_to_itself_only() -> None:
    # SQLite has no such number: it stores null.
    values = [float("nan"), None, 1.5]
    with ct.open("memory:") as archive:
        done = jobs.create(archive, schema=SCHEMA)
        schema = done.dataset.schema
        for left in values:
            for right in values:
                theirs, ours = (
                    pa.Table.from_pylist([job(1, memory=memory), job(2)], schema) for memory in (left, right)
                )
                found = comparing._difference(FIRST.date(), theirs, ours, done)
                assert found.differing == (() if left is right else (1,))


def test_the_last_hours_of_texts_in_mixed_zones_are_compared(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE jobs (job_id INTEGER, submitted TEXT, status TEXT, memory REAL)"))
        for number, text in enumerate(["2026-01-30T23:30:00Z", "2026-01-30T22:00:00-05:00"]):
            connection.execute(sa.text(f"INSERT INTO jobs VALUES ({number}, '{text}', 'done', 1.5)"))
    engine.dispose()
    with ct.open("memory:") as archive:
        done = jobs.create(archive, schema=SCHEMA)
        done.dataset.write(pa.Table.from_pylist([job(0, FIRST + timedelta(hours=23.5))], done.dataset.schema))
        report = jobs.compare(done, url, "jobs")
    assert [(each.day, each.missing) for each in report.differences] == [(date(2026, 1, 31), (1,))]


def test_all_connections_with_the_database_are_closed(tmp_path: Path) -> None:
    opened: list[object] = []
    closed: list[object] = []
    begin, end = (lambda connection, _: opened.append(connection)), (lambda connection, _: closed.append(connection))
    sa.event.listen(sa.pool.Pool, "connect", begin)
    sa.event.listen(sa.pool.Pool, "close", end)
    try:
        compared(tmp_path, [job(1)], [job(1, status="failed")])
        with pytest.raises(ct.InvalidInputError):
            compared(tmp_path, [job(1)], [], days="no day")
    finally:
        sa.event.remove(sa.pool.Pool, "connect", begin)
        sa.event.remove(sa.pool.Pool, "close", end)
    assert opened
    assert closed == opened


def test_the_first_hundred_ids_are_named(tmp_path: Path) -> None:
    numbers = [*range(250, 99, -1), *range(1, 3)]
    report = compared(tmp_path, [job(number) for number in numbers], [job(0)])
    [found] = report.differences
    assert (found.rows_database, found.rows_archive) == (len(numbers), 1)
    assert found.missing == (1, 2, *range(100, 198))
    assert found.superfluous == (0,)


states = st.dictionaries(
    st.integers(1, 6), st.tuples(st.integers(0, 2), st.sampled_from(["a", "b", None]), st.sampled_from([1.0, None])),
    max_size=6,
)  # fmt: skip


@settings(max_examples=15)
@given(theirs=states, ours=states)
def test_any_two_sides_differ_where_a_plain_comparison_says_so(
    tmp_path_factory: pytest.TempPathFactory, theirs: dict[int, Any], ours: dict[int, Any]
) -> None:
    folder = tmp_path_factory.mktemp("compared")
    rows = [
        [job(number, FIRST + day * DAY, status, memory) for number, (day, status, memory) in side.items()]
        for side in (theirs, ours)
    ]
    report = compared(folder, *rows, days=("2026-01-30", "2026-02-01"))
    found = {each.day: each for each in report.differences}
    for offset in range(3):
        left, right = ({n: v for n, v in side.items() if v[0] == offset} for side in (theirs, ours))
        day = (FIRST + offset * DAY).date()
        if left == right:
            assert day not in found
            continue
        assert found[day] == comparing.DayDifference(
            day, len(left), len(right), missing=tuple(sorted(left.keys() - right.keys())),
            superfluous=tuple(sorted(right.keys() - left.keys())),
            differing=tuple(sorted(number for number in left.keys() & right.keys() if left[number] != right[number])),
        )  # fmt: skip
