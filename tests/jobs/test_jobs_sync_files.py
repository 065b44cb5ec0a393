"""Copying jobs from a database in a file: where a sync begins, what it stores, and what it leaves out."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support_engines import record_disposals

import chronotile as ct
from chronotile import jobs

SCHEMA = {
    "job_id": "int64", "submitted": "timestamp[us, UTC]", "modified": "timestamp[us, UTC]", "status": "utf8",
    "cloud": "utf8",
}  # fmt: skip
FIRST = datetime(2026, 1, 30, 12, tzinfo=UTC)
MINUTE, MICRO = timedelta(minutes=1), timedelta(microseconds=1)


class Production:
    """A database that runs production, without a column that the archive has and with one that it has not."""

    def __init__(self, file: Path) -> None:
        self.url = f"sqlite:///{file}"
        self._database = sqlite3.connect(file, isolation_level=None)
        self._database.execute("PRAGMA synchronous = OFF")
        self.create("jobs")

    def create(self, table: str) -> None:
        columns = "job_id INTEGER PRIMARY KEY, submitted TEXT, modified TEXT, status TEXT, secret TEXT"
        self._database.execute(f"CREATE TABLE {table} ({columns})")

    def put(self, number: int, modified: datetime | str | None, status: str = "done", table: str = "jobs") -> None:
        text = modified.isoformat() if isinstance(modified, datetime) else modified
        row = (number, FIRST.isoformat(), text, status, "x")
        self._database.execute(f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?, ?, ?)", row)

    def close(self) -> None:
        self._database.close()


@pytest.fixture
def production(tmp_path: Path) -> Iterator[Production]:
    with closing(Production(tmp_path / "production.db")) as made:
        yield made


@pytest.fixture
def done(memory: ct.Archive) -> jobs.Jobs:
    """An empty archive of jobs with modification times."""
    return jobs.create(memory, schema=SCHEMA, version="modified")


def states(done: jobs.Jobs) -> list[tuple[int, datetime, str]]:
    """All states that the archive has, those that are not the newest too."""
    rows = done.find(history=True, columns=["job_id", "modified", "status"]).to_arrow().to_pylist()
    return sorted((row["job_id"], row["modified"], row["status"]) for row in rows)


def test_a_sync_stores_each_state_once_and_reports_what_it_did(production: Production, done: jobs.Jobs) -> None:
    for number in range(5):
        production.put(number, FIRST + number * MINUTE)
    seen: list[tuple[int, datetime]] = []
    began = time.monotonic()
    first = jobs.sync(done, production.url, "jobs", batch_rows=2, progress=lambda *each: seen.append(each))
    assert 0 < first.seconds <= time.monotonic() - began
    assert replace(first, seconds=0) == jobs.SyncReport(5, 5, 3, None, FIRST + 4 * MINUTE, 0)
    assert seen == [(2, FIRST + MINUTE), (4, FIRST + 3 * MINUTE), (5, FIRST + 4 * MINUTE)]
    # The period of a batch is in its name, in microseconds since 1970: other versions read it.
    [last] = [
        key.rsplit(":", 3) for batch in done.dataset.batches() if (key := str(batch.key)).count(":1769774640000000:")
    ]
    assert last[1:3] == ["1769774640000000"] * 2
    production.put(1, FIRST + 9 * MINUTE, "failed")
    second = jobs.sync(done, production.url, "jobs", overlap="2m")
    # Jobs 2 to 4 lie in the overlap.
    assert replace(second, seconds=0) == jobs.SyncReport(1, 4, 1, FIRST + 2 * MINUTE, FIRST + 9 * MINUTE, 0)
    third = jobs.sync(done, production.url, "jobs", overlap="2m")
    assert replace(third, seconds=0) == jobs.SyncReport(0, 1, 0, FIRST + 7 * MINUTE, FIRST + 9 * MINUTE, 0)
    wanted = [(number, FIRST + number * MINUTE, "done") for number in range(5)]
    assert states(done) == sorted([*wanted, (1, FIRST + 9 * MINUTE, "failed")])
    assert done.find(columns=["cloud"]).to_arrow()["cloud"].to_pylist() == [None] * 5


class CutOffError(Exception):
    pass


@pytest.mark.parametrize(
    "texts",
    [
        # In the order of texts, earlier times follow the first.
        ["2026-01-30 23:00:00", "2026-01-30T01:00:00"],
        ["2026-01-30T01:00:00-12:00", "2026-01-30T02:00:00+14:00"],
        ["2026-01-30T23:59:59-12:00", "2026-01-31T00:00:00+14:00"],
    ],
)
def test_a_sync_that_was_cut_off_finds_what_it_had_not_read(
    production: Production, done: jobs.Jobs, texts: list[str]
) -> None:
    for number, text in enumerate(texts):
        production.put(number, text)

    def cut_off(seen: int, reached: datetime) -> None:
        raise CutOffError

    with pytest.raises(CutOffError):
        jobs.sync(done, production.url, "jobs", batch_rows=1, progress=cut_off)
    assert done.count() == 1
    assert jobs.sync(done, production.url, "jobs", batch_rows=1).rows == 1
    assert done.count() == 2
    # A sync that ended begins at the last time of all.
    last = max(
        datetime.fromisoformat(text).replace(tzinfo=datetime.fromisoformat(text).tzinfo or UTC) for text in texts
    )
    again = jobs.sync(done, production.url, "jobs")
    assert (again.rows, again.until) == (0, last)


def test_a_sync_of_an_empty_table_has_no_time(production: Production, done: jobs.Jobs) -> None:
    report = jobs.sync(done, production.url, "jobs")
    assert replace(report, seconds=0) == jobs.SyncReport(0, 0, 0, None, None, 0)


@pytest.mark.parametrize(("late", "is_found"), [(timedelta(0), True), (MICRO, False)])
def test_the_overlap_reaches_back_from_the_last_sync_to_the_microsecond(
    production: Production, done: jobs.Jobs, late: timedelta, is_found: bool
) -> None:
    production.put(1, FIRST)
    jobs.sync(done, production.url, "jobs")
    production.put(2, FIRST - 10 * MINUTE - late)
    report = jobs.sync(done, production.url, "jobs")
    assert report.rows == is_found
    assert report.since == FIRST - 10 * MINUTE
    # What lies before it is found where a sync is told to begin earlier.
    local = timezone(timedelta(hours=2))
    again = jobs.sync(done, production.url, "jobs", since=(FIRST - 10 * MINUTE - late).astimezone(local))
    assert (again.rows, again.rows_seen) == (not is_found, 2)
    assert again.since == FIRST - 10 * MINUTE - late
    # A time without a zone is UTC. A sync from a later time than the last does not go back behind it.
    later = jobs.sync(done, production.url, "jobs", since=(FIRST + MINUTE).replace(tzinfo=None))
    assert (later.since, later.until) == (FIRST + MINUTE, FIRST)


def test_states_that_differ_by_a_microsecond_or_by_the_job_are_two(production: Production, done: jobs.Jobs) -> None:
    production.put(1, FIRST)
    production.put(2, FIRST + MICRO)
    jobs.sync(done, production.url, "jobs")
    production.put(1, FIRST + MICRO, "failed")
    production.put(2, FIRST + MICRO, "never told")
    production.put(3, FIRST)
    assert jobs.sync(done, production.url, "jobs").rows == 2
    assert states(done) == [
        (1, FIRST, "done"), (1, FIRST + MICRO, "failed"), (2, FIRST + MICRO, "done"), (3, FIRST, "done"),
    ]  # fmt: skip


def test_each_table_is_synced_from_its_own_last_time(production: Production, done: jobs.Jobs) -> None:
    production.create("older")
    production.put(1, FIRST)
    production.put(2, FIRST - 100 * MINUTE, table="older")
    jobs.sync(done, production.url, "jobs")
    done.write({"job_id": [9], "submitted": [FIRST], "modified": [FIRST + 99 * MINUTE]}, batch="by hand")
    done.write({"job_id": [8], "submitted": [FIRST], "modified": [FIRST]})
    older = jobs.sync(done, production.url, "older")
    assert (older.since, older.until, older.rows) == (None, FIRST - 100 * MINUTE, 1)
    assert jobs.sync(done, production.url, "jobs").until == FIRST


def test_remains_of_a_sync_that_was_cut_off_are_removed_and_do_not_count(
    production: Production, done: jobs.Jobs
) -> None:
    production.put(1, FIRST)
    jobs.sync(done, production.url, "jobs")
    [stored] = done.dataset.batches()
    later = f"{str(stored.key).rsplit(':', 3)[0]}:1:{2 * 10**15}:3"
    remains = [
        replace(stored, key=later, finished=False),
        replace(stored, key=None, finished=False),
        replace(stored, key="another", finished=False),
    ]
    removed: list[str] = []

    class CutOff:
        """The dataset, with batches of writes that did not end."""

        def __getattr__(self, name: str) -> Any:
            return getattr(done.dataset, name)

        def batches(self) -> list[Any]:
            return [*remains, *done.dataset.batches()]

        def remove_batch(self, key: str) -> int:
            removed.append(key)
            return 0

    archive: Any = SimpleNamespace(dataset=CutOff(), id=done.id)
    report = jobs.sync(archive, production.url, "jobs")
    assert removed == [later]
    assert (report.since, report.until) == (FIRST - 10 * MINUTE, FIRST)


def test_a_state_that_the_archive_has_is_known_whatever_is_newer(production: Production, done: jobs.Jobs) -> None:
    production.put(1, FIRST)
    jobs.sync(done, production.url, "jobs")
    done.write({"job_id": [1], "submitted": [FIRST], "modified": [FIRST + MINUTE], "status": ["by hand"]})
    assert jobs.sync(done, production.url, "jobs").rows == 0
    assert states(done) == [(1, FIRST, "done"), (1, FIRST + MINUTE, "by hand")]


def test_a_sync_closes_its_connection(production: Production, done: jobs.Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = record_disposals(monkeypatch)
    production.put(1, FIRST)
    jobs.sync(done, production.url, "jobs")
    assert len(closed) == 1
    production.put(2, "yesterday")
    with pytest.raises(ct.InvalidInputError):
        jobs.sync(done, production.url, "jobs")
    assert len(closed) == 2


def test_a_job_without_a_modification_time_is_refused(production: Production, done: jobs.Jobs) -> None:
    production.put(1, FIRST)
    production.put(2, None)
    with pytest.raises(ct.InvalidInputError, match="jobs without a modification time: set one") as refused:
        jobs.sync(done, production.url, "jobs")
    assert refused.value.kind == "invalid-rows"


@pytest.mark.parametrize("version", [None, "rank"])
def test_an_archive_without_modification_times_cannot_be_synced(
    production: Production, memory: ct.Archive, version: str | None
) -> None:
    done = jobs.create(memory, schema={**SCHEMA, "rank": "int64"}, version=version)
    with pytest.raises(ct.InvalidInputError, match="no version column of timestamps"):
        jobs.sync(done, production.url, "jobs")


def test_an_overlap_that_is_no_time_is_refused(production: Production, done: jobs.Jobs) -> None:
    for overlap in ("", "0s", "ten minutes"):
        with pytest.raises(ct.InvalidInputError, match="overlap is"):
            jobs.sync(done, production.url, "jobs", overlap=overlap)
    production.put(1, FIRST)
    jobs.sync(done, production.url, "jobs")
    assert jobs.sync(done, production.url, "jobs", overlap=timedelta(hours=3)).since == FIRST - timedelta(hours=3)
