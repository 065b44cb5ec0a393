"""Copying jobs from a real PostgreSQL: each state once, whatever happens between and during syncs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
import sqlalchemy as sa
from conftest import Run
from support_data import assert_same_rows
from support_jobs import generated, make, postgresql

import chronotile as ct
from chronotile import jobs

TYPES = {
    "job_id": sa.BigInteger, "submitted": sa.DateTime(timezone=True), "modified": sa.DateTime(timezone=True),
    "user": sa.Text, "cloud": sa.Text, "status": sa.Text, "task": sa.BigInteger, "run_s": sa.Integer,
    "memory": sa.Float,
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgresql() as url:
        yield url


class Production:
    """The database that runs production."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.engine = sa.create_engine(url)
        columns = [sa.Column(name, kind, primary_key=name == "job_id") for name, kind in TYPES.items()]
        self.table = sa.Table("jobs", sa.MetaData(), *columns, sa.Column("secret", sa.Text))
        self.table.drop(self.engine, checkfirst=True)
        self.table.create(self.engine)

    def insert(self, rows: pa.Table) -> None:
        with self.engine.begin() as connection:
            connection.execute(self.table.insert(), rows.to_pylist())

    def update(self, ids: list[int], status: str, modified: datetime) -> None:
        with self.engine.begin() as connection:
            where = self.table.columns["job_id"].in_(ids)
            connection.execute(self.table.update().where(where).values(status=status, modified=modified))

    def rows(self) -> pa.Table:
        with self.engine.connect() as connection:
            found = connection.execute(sa.select(*(self.table.columns[name] for name in TYPES)))
            rows = [dict(row._mapping) for row in found]
        return pa.Table.from_pylist(rows, schema=generated(1).schema)


@pytest.fixture
def production(server: str) -> Iterator[Production]:
    made = Production(server)
    yield made
    made.engine.dispose()


def test_syncs_follow_production_and_store_each_state_once(production: Production, sqlite: ct.Archive) -> None:
    done = make(sqlite)
    table = generated(6_000, days=5)
    production.insert(table.slice(0, 4_000))
    first = jobs.sync(done, production.url, "jobs", batch_rows=700)
    assert (first.rows, first.batches > 4) == (4_000, True)
    assert_same_rows(done.find().to_arrow(), production.rows(), ["job_id"])
    assert jobs.sync(done, production.url, "jobs").rows == 0

    now = first.until
    assert now is not None
    production.insert(table.slice(4_000, 2_000))
    production.update([5, 17, 3_999], "failed again", now + timedelta(minutes=1))
    # Committed late: its modification time lies before the last sync's end, but not before the overlap.
    production.update([100], "late", now - timedelta(minutes=3))
    second = jobs.sync(done, production.url, "jobs", overlap="10m")
    assert_same_rows(done.find().to_arrow(), production.rows(), ["job_id"])
    assert done.get(5, columns=["status"]).to_arrow()["status"].to_pylist() == ["failed again"]
    assert second.rows_seen > second.rows
    assert jobs.sync(done, production.url, "jobs").rows == 0
    states = done.find(history=True, columns=["job_id", "modified"]).to_arrow()
    assert states.group_by(["job_id", "modified"]).aggregate([]).num_rows == states.num_rows, "a state came twice"
    assert states.num_rows == 4_000 + second.rows


def test_a_sync_that_is_cut_off_is_taken_up(production: Production, sqlite: ct.Archive) -> None:
    done = make(sqlite)
    production.insert(generated(5_000, days=5))

    def stop(seen: int, at: datetime) -> None:
        if seen >= 2_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        jobs.sync(done, production.url, "jobs", batch_rows=500, progress=stop)
    assert done.count() == 2_000
    rest = jobs.sync(done, production.url, "jobs", batch_rows=500)
    assert rest.rows == 3_000
    assert_same_rows(done.find().to_arrow(), production.rows(), ["job_id"])


def test_comparing_names_the_days_and_jobs_that_differ(
    production: Production, sqlite: ct.Archive, path: Path, chronotile: Run
) -> None:
    done = make(sqlite)
    table = generated(3_000, days=4)
    production.insert(table)
    jobs.sync(done, production.url, "jobs")
    same = jobs.compare(done, production.url, "jobs")
    assert (same.ok, same.rows, same.days) == (True, 3_000, 4)

    day = {row["job_id"]: row["submitted"].date() for row in table.select(["job_id", "submitted"]).to_pylist()}
    with production.engine.begin() as connection:
        connection.execute(production.table.delete().where(production.table.columns["job_id"] == 10))
        connection.execute(production.table.update().where(production.table.columns["job_id"] == 11).values(memory=1.5))
    production.insert(table.slice(2_999, 1).set_column(0, "job_id", pa.array([99_999], pa.int64())))
    report = jobs.compare(done, production.url, "jobs")
    found = {difference.day: difference for difference in report.differences}
    assert set(found) == {day[10], day[11], day[3_000]}
    assert found[day[10]].superfluous == (10,)
    assert 11 in found[day[11]].differing
    assert found[day[3_000]].missing == (99_999,)
    assert jobs.compare(done, production.url, "jobs", days=str(day[10] + timedelta(days=1))).ok is (
        day[10] + timedelta(days=1) not in found
    )
    shown = chronotile("jobs", "compare", path, "jobs", production.url, "jobs")
    assert shown.returncode == 5
    assert "missing: 99999" in shown.stdout
    synced = chronotile("jobs", "sync", path, "jobs", production.url, "jobs", "--json")
    assert synced.returncode == 0, synced.stderr
    assert '"rows": 1,' in synced.stdout


def test_what_cannot_be_synced_is_refused(production: Production, sqlite: ct.Archive) -> None:
    done = make(sqlite)
    with pytest.raises(ct.InvalidInputError, match="no table 'nothing'"):
        jobs.sync(done, production.url, "nothing")
    with pytest.raises(ct.InvalidInputError, match="invalid database URL"):
        jobs.sync(done, "what is this", "jobs")
    with pytest.raises(ct.UnavailableError, match="run the command again"):
        jobs.sync(done, "postgresql+psycopg://jobs@127.0.0.1:1/none", "jobs")
    plain = jobs.create(sqlite, "plain", schema={"job_id": "int64", "submitted": "timestamp[us, UTC]"})
    with pytest.raises(ct.InvalidInputError, match="no version column"):
        jobs.sync(plain, production.url, "jobs")
