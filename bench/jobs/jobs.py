"""The archive of a batch system: loading jobs, looking them up by id, counting them through an index.

`./dev bench jobs` generates jobs of 100 columns in runs of 2 to 200 ids over a year, and puts the same questions to
Chronotile (on SQLite, or with --cluster on a cluster), to DuckDB on Parquet files of a day each and, where Debian's
package is installed, to PostgreSQL with ordinary indexes. The answers are compared before anything is timed. Needs
duckdb, numpy, pyarrow, psycopg.
"""

from __future__ import annotations

import json
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import common
import duckdb
import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from support_jobs import postgresql, programs

import chronotile as ct
from chronotile import jobs

DAYS = 365
FIRST_US = 1_767_225_600_000_000
DAY_US = 86_400_000_000
INDEXES = [("user", "cloud", "status"), ("cloud", "status"), "task", ("user", "jobset")]


BLOCK_ROWS = 1_000_000


def generate(rows: int) -> Iterator[pa.Table]:
    """Jobs in the order of their ids and times, in blocks."""
    for first in range(0, rows, BLOCK_ROWS):
        yield block(first, min(BLOCK_ROWS, rows - first), rows)


def block(first: int, rows: int, all_rows: int) -> pa.Table:
    """Jobs of 100 columns after the first `first`: what identifies and places them, and 90 of settings and
    measurements."""
    rng = np.random.default_rng([20260101, first])
    run = np.repeat(np.arange(rows), rng.integers(2, 200, size=rows))[:rows]
    runs = int(run[-1]) + 1
    year_us = DAYS * DAY_US
    since, until = year_us * first // all_rows, year_us * (first + rows) // all_rows
    submitted = FIRST_US + np.sort(rng.integers(since, until, size=runs))[run] + np.arange(rows)
    user = np.minimum(rng.geometric(0.01, size=runs), 800)[run]
    stamp = pa.timestamp("us", "UTC")
    text = lambda prefix, numbers: pa.array(np.char.add(prefix, numbers.astype("U8")))  # noqa: E731
    columns: dict[str, Any] = {
        "job_id": np.arange(first + 1, first + rows + 1),
        "submitted": pa.array(submitted, stamp),
        "modified": pa.array(submitted + rng.integers(60, 200_000, size=rows) * 1_000_000, stamp),
        "user": text("user", user),
        "cloud": text("SITE_", rng.integers(0, 120, size=runs)[run]),
        "status": pa.array(np.array(["finished", "failed", "cancelled", "closed"])[
            np.searchsorted([0.78, 0.92, 0.98], rng.random(rows))]),
        "task": pa.array(20_000_000 + first + run // 3),
        "jobset": pa.array(rng.integers(0, 400, size=runs)[run] + user * 1_000),
        "run_s": rng.lognormal(8, 1.5, size=rows).astype("int64"),
        "memory": pa.array(rng.lognormal(21, 0.5, size=rows).astype("int64")),
    }  # fmt: skip
    for place in range(90):
        name = f"c{place:02}"
        match place % 6:
            case 0:  # the same for all jobs of a run
                columns[name] = pa.array(rng.integers(0, 1_000, size=runs)[run])
            case 1:  # mostly nothing
                columns[name] = pa.array(rng.integers(0, 100, size=rows), mask=rng.random(rows) < 0.95)
            case 2:
                columns[name] = text("v", rng.integers(0, 50, size=runs)[run])
            case 3:
                columns[name] = np.round(rng.normal(100, 10, size=rows), 2)
            case 4:
                columns[name] = pa.array(rng.integers(0, 5, size=rows), pa.int32())
            case _:  # never set
                columns[name] = pa.nulls(rows, pa.utf8())
    return pa.table(columns)


class Chronotile:
    """The archive of jobs, on SQLite or a cluster."""

    name = "Chronotile"

    def __init__(self, folder: Path, schema: pa.Schema, csv: Path, cluster: str | None) -> None:
        self.archive = ct.open(cluster or folder / "jobs.db")
        self.jobs = jobs.create(self.archive, schema=schema, version="modified", indexes=INDEXES)
        report = jobs.load(self.jobs, csv, url=self.archive.url, workers=2)
        self.load_rows_s = report.rows / report.seconds
        began = time.perf_counter()
        self.jobs.dataset.build_indexes()
        self.index_s = time.perf_counter() - began

    def by_ids(self, ids: list[int]) -> int:
        return self.jobs.get(ids).to_arrow().num_rows

    def count(self, user: str, cloud: str, start: int) -> int:
        return self.jobs.count(user=user, cloud=cloud, status="failed", start=start, end=start + 5 * DAY_US)

    def rows(self, user: str, cloud: str, start: int) -> int:
        found = self.jobs.find(user=user, cloud=cloud, status="failed", start=start, end=start + 5 * DAY_US)
        return found.to_arrow().num_rows

    def jobsets(self, user: str, jobsets: list[int]) -> int:
        return self.jobs.find(user=user, jobset=jobsets).to_arrow().num_rows

    def tasks(self, tasks: list[int]) -> int:
        return self.jobs.find(task=tasks).to_arrow().num_rows

    def year(self) -> int:
        return int(sum(self.jobs.group_by(["cloud", "status"])["count"].to_pylist()))


class DuckDB:
    """Parquet files of a day each, which DuckDB prunes by their statistics."""

    name = "DuckDB on Parquet"

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "parquet"
        self.folder.mkdir()

    def add(self, number: int, table: pa.Table) -> None:
        """Write the files of a block; a day that two blocks share has two."""
        days = (table["submitted"].cast(pa.int64()).to_numpy() - FIRST_US) // DAY_US
        borders = np.searchsorted(days, np.arange(DAYS + 2))
        for day, (first, last) in enumerate(pairwise(borders)):
            if last > first:
                file = self.folder / f"{day:03}-{number}.parquet"
                pq.write_table(table.slice(first, last - first), file, compression="zstd")

    def open(self) -> None:
        """Ready to be asked."""
        self.connection = duckdb.connect()
        self.connection.execute("SET TimeZone='UTC'")
        self.connection.execute(f"CREATE VIEW jobs AS SELECT * FROM '{self.folder}/*.parquet'")

    def _rows(self, where: str, parameters: list[Any]) -> int:
        found = self.connection.cursor().execute(f"SELECT * FROM jobs WHERE {where}", parameters)
        return int(found.to_arrow_table().num_rows)

    def _one(self, question: str, parameters: list[Any]) -> int:
        found = self.connection.cursor().execute(question, parameters).fetchone()
        return int(found[0]) if found else 0

    def by_ids(self, ids: list[int]) -> int:
        return self._rows("job_id IN (SELECT unnest(?))", [ids])

    def count(self, user: str, cloud: str, start: int) -> int:
        return self._one(f"SELECT count(*) FROM jobs WHERE {_FIVE_DAYS}", [user, cloud, start, start + 5 * DAY_US])

    def rows(self, user: str, cloud: str, start: int) -> int:
        return self._rows(_FIVE_DAYS, [user, cloud, start, start + 5 * DAY_US])

    def jobsets(self, user: str, jobsets: list[int]) -> int:
        return self._rows('"user" = ? AND jobset IN (SELECT unnest(?))', [user, jobsets])

    def tasks(self, tasks: list[int]) -> int:
        return self._rows("task IN (SELECT unnest(?))", [tasks])

    def year(self) -> int:
        return self._one("SELECT sum(n)::BIGINT FROM (SELECT cloud, status, count(*) AS n FROM jobs GROUP BY 1, 2)", [])


_FIVE_DAYS = """"user" = ? AND cloud = ? AND status = 'failed'
    AND submitted >= make_timestamptz(?) AND submitted < make_timestamptz(?)"""


class PostgreSQL:
    """One table with an ordinary index for each kind of question."""

    name = "PostgreSQL"

    def __init__(self, url: str, schema: pa.Schema, csv: Path, rows: int) -> None:
        self.url = url.replace("+psycopg", "")
        self.own = threading.local()
        types = {"int64": "bigint", "int32": "int", "double": "float8", "string": "text"}
        columns = ", ".join(f'"{field.name}" {types.get(str(field.type), "timestamptz")}' for field in schema)
        began = time.perf_counter()
        with psycopg.connect(self.url) as connection:
            connection.execute(f"CREATE TABLE jobs ({columns})")
            with (
                connection.cursor().copy("COPY jobs FROM STDIN (FORMAT csv, HEADER true)") as copy,
                csv.open("rb") as file,
            ):
                while part := file.read(1 << 20):
                    copy.write(part)
        self.load_rows_s = rows / (time.perf_counter() - began)
        began = time.perf_counter()
        with psycopg.connect(self.url) as connection:
            for of in ("job_id", '"user", cloud, status, submitted', "cloud, status", "task", '"user", jobset'):
                connection.execute(f"CREATE INDEX ON jobs ({of})")
            connection.execute("ANALYZE jobs")
        self.index_s = time.perf_counter() - began

    def _ask(self, question: str, parameters: list[Any]) -> list[Any]:
        connection = getattr(self.own, "connection", None)
        if connection is None:
            connection = self.own.connection = psycopg.connect(self.url, autocommit=True)
        return list(connection.execute(question, parameters, prepare=True, binary=True).fetchall())

    def by_ids(self, ids: list[int]) -> int:
        return len(self._ask("SELECT * FROM jobs WHERE job_id = ANY(%s)", [ids]))

    def _five_days(self, what: str, user: str, cloud: str, start: int) -> list[Any]:
        question = f"""SELECT {what} FROM jobs WHERE "user" = %s AND cloud = %s AND status = 'failed'
                       AND submitted >= to_timestamp(%s) AND submitted < to_timestamp(%s)"""
        return self._ask(question, [user, cloud, start / 1e6, (start + 5 * DAY_US) / 1e6])

    def count(self, user: str, cloud: str, start: int) -> int:
        return int(self._five_days("count(*)", user, cloud, start)[0][0])

    def rows(self, user: str, cloud: str, start: int) -> int:
        return len(self._five_days("*", user, cloud, start))

    def jobsets(self, user: str, jobsets: list[int]) -> int:
        return len(self._ask('SELECT * FROM jobs WHERE "user" = %s AND jobset = ANY(%s)', [user, jobsets]))

    def tasks(self, tasks: list[int]) -> int:
        return len(self._ask("SELECT * FROM jobs WHERE task = ANY(%s)", [tasks]))

    def year(self) -> int:
        found = self._ask("SELECT sum(n)::bigint FROM (SELECT cloud, status, count(*) n FROM jobs GROUP BY 1, 2) x", [])
        return int(found[0][0])


Question = Callable[[Any], int]


def questions(table: pa.Table, count: int, rounds: int) -> dict[str, list[Question]]:
    """The same random questions for every system, a list for each kind. Users, places and tasks are those of `table`, a
    block of the `count` jobs."""
    choose = random.Random(5)
    users, clouds, submitted = table["user"], table["cloud"], table["submitted"].cast(pa.int64())

    def five_days(row: int) -> tuple[str, str, int]:
        start = (submitted[row].as_py() - FIRST_US) // DAY_US * DAY_US + FIRST_US
        return users[row].as_py(), clouds[row].as_py(), start

    def jobsets_of(row: int) -> tuple[str, list[int]]:
        user = users[row].as_py()
        number = int(user.removeprefix("user"))
        return user, [number * 1_000 + choose.randrange(400) for _ in range(52)]

    # Bound at once, not when they are asked.
    places = [five_days(choose.randrange(len(table))) for _ in range(rounds)]
    sets = [jobsets_of(choose.randrange(len(table))) for _ in range(rounds)]
    first_task, last_task = (table["task"][row].as_py() for row in (0, len(table) - 1))
    tasks = [[choose.randrange(first_task, last_task + 1) for _ in range(100)] for _ in range(rounds)]
    ids = [choose.sample(range(1, count + 1), min(10_000, count)) for _ in range(rounds)]
    return {
        "count, user+cloud+failed, 5 days": [lambda s, p=p: s.count(*p) for p in places],
        "its rows": [lambda s, p=p: s.rows(*p) for p in places],
        "52 jobsets of a user, a year": [lambda s, p=p: s.jobsets(*p) for p in sets],
        "100 tasks, a year": [lambda s, t=t: s.tasks(t) for t in tasks],
        "10,000 ids, a year": [lambda s, i=i: s.by_ids(i) for i in ids],
        "one id": [lambda s, i=i: s.by_ids(i[:1]) for i in ids],
        "counts by cloud and status, a year": [lambda s: s.year()] * min(rounds, 3),
    }


def concurrent_ms(system: Any, ids: range, clients: int, each: int, many: int) -> list[float]:
    """Milliseconds of look-ups by so many clients at once, each of `many` random ids, as the clients wait for them."""

    def client(number: int) -> list[float]:
        choose = random.Random(number)
        return [common.timed_ms(lambda: system.by_ids(choose.sample(ids, many))) for _ in range(each)]

    with ThreadPoolExecutor(clients) as pool:
        return [sample for samples in pool.map(client, range(clients)) for sample in samples]


def main() -> None:
    given = common.parser_of_comparison(__doc__, rows=1_000_000).parse_args()
    folder = Path(tempfile.mkdtemp(prefix="chronotile-bench-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        csv, duckdb_ = folder / "jobs.csv", DuckDB(folder)
        for number, table in enumerate(generate(given.rows)):
            with csv.open("ab") as file:
                pyarrow.csv.write_csv(table, file, pyarrow.csv.WriteOptions(include_header=number == 0))
            duckdb_.add(number, table)
        duckdb_.open()
        print(f"{given.rows:,} jobs, CSV {csv.stat().st_size / 1e6:.0f} MB", flush=True)
        ours = Chronotile(folder, table.schema, csv, given.cluster)
        systems: list[Any] = [ours, duckdb_]
        if not given.no_postgresql and programs() is not None:
            systems.append(PostgreSQL(stack.enter_context(postgresql()), table.schema, csv, given.rows))
        info, indexes = ours.jobs.dataset.info(), ours.jobs.dataset.indexes()
        notes = {
            "load, rows/s": {s.name: s.load_rows_s for s in systems if hasattr(s, "load_rows_s")},
            "indexes, s": {s.name: s.index_s for s in systems if hasattr(s, "index_s")},
            "bytes a row": {ours.name: info.bytes / given.rows},
            "index of data": {index.name: index.bytes / info.bytes for index in indexes},
        }
        print(json.dumps(notes, indent=1), flush=True)
        samples = common.measure_in_turns(systems, questions(table, given.rows, given.rounds))
        clients: dict[str, dict[str, list[float]]] = {}
        ids = range(1, given.rows + 1)
        for count, each, many in ((10, 1, 10_000), (30, 1, 10_000), (30, 40, 1)):
            what = f"{many:,} ids, {count} clients"
            clients[what] = {s.name: concurrent_ms(s, ids, count, each, min(many, given.rows)) for s in systems}
            p99 = {name: common.digits(common.percentile(found, 99)) for name, found in clients[what].items()}
            print(what, {name: common.spread(found) for name, found in clients[what].items()}, "p99", p99, flush=True)
    samples |= clients
    lines = [
        [f"{kind}, ms", *(common.spread(found.get(s.name, [])) for s in systems)] for kind, found in samples.items()
    ]
    common.save_comparison("jobs", systems, lines, notes=notes, samples=samples, rows=given.rows)


if __name__ == "__main__":
    main()
