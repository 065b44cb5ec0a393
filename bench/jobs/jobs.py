"""The archive of a batch system: loading jobs, looking them up by id, counting them through an index.

`./dev bench jobs` generates jobs of 100 columns in runs of 2 to 200 ids over a year, and runs the same queries on
Chronotile (SQLite, or a cluster with --cluster), on DuckDB with a Parquet file for each day and, if Debian's package is
installed, on PostgreSQL with ordinary indexes. All answers are compared. Needs duckdb, numpy, pyarrow, psycopg.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import common
import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from chronotile_tools.load.job_archive import generated, questions
from chronotile_tools.load.job_archive.generated import DAY_US, DAYS, FIRST_US
from chronotile_tools.load.job_archive.questions import Questions
from chronotile_tools.load.job_archive.relational import PostgreSQL
from chronotile_tools.load.job_archive.systems import Chronotile
from chronotile_tools.load.postgresql import postgresql, programs

KINDS = {
    "count": "count, user+cloud+failed, 5 days",
    "rows": "its rows",
    "jobsets": "52 jobsets of a user, a year",
    "tasks": "100 tasks, a year",
    "ids": "10,000 ids, a year",
    "one id": "one id",
    "year": "counts by cloud and status, a year",
}


class DuckDB:
    """A Parquet file for each day, which DuckDB prunes by statistics."""

    name = "DuckDB on Parquet"

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "parquet"
        self.folder.mkdir()

    def add(self, number: int, table: pa.Table) -> None:
        """Write the files of a block of jobs; a day that spans two blocks has two files."""
        days = (table["submitted"].cast(pa.int64()).to_numpy() - FIRST_US) // DAY_US
        borders = np.searchsorted(days, np.arange(DAYS + 2))
        for day, (first, last) in enumerate(pairwise(borders)):
            if last > first:
                file = self.folder / f"{day:03}-{number}.parquet"
                pq.write_table(table.slice(first, last - first), file, compression="zstd")

    def open(self) -> None:
        """Create the view that queries use, after all files are written."""
        self.connection = duckdb.connect()
        self.connection.execute("SET TimeZone='UTC'")
        self.connection.execute(f"CREATE VIEW jobs AS SELECT * FROM '{self.folder}/*.parquet'")

    def _rows(self, where: str, parameters: list[Any]) -> Any:
        return self.connection.cursor().execute(f"SELECT * FROM jobs WHERE {where}", parameters).to_arrow_table()

    def _one(self, question: str, parameters: list[Any]) -> int:
        found = self.connection.cursor().execute(question, parameters).fetchone()
        return int(found[0]) if found else 0

    def by_ids(self, ids: list[int]) -> Any:
        return self._rows("job_id IN (SELECT unnest(?))", [ids])

    def count(self, user: str, cloud: str, start: int) -> Any:
        return self._one(f"SELECT count(*) FROM jobs WHERE {_FIVE_DAYS}", [user, cloud, start, start + 5 * DAY_US])

    def rows(self, user: str, cloud: str, start: int) -> Any:
        return self._rows(_FIVE_DAYS, [user, cloud, start, start + 5 * DAY_US])

    def jobsets(self, user: str, jobsets: list[int]) -> Any:
        return self._rows('"user" = ? AND jobset IN (SELECT unnest(?))', [user, jobsets])

    def tasks(self, tasks: list[int]) -> Any:
        return self._rows("task IN (SELECT unnest(?))", [tasks])

    def year(self) -> Any:
        return self._one("SELECT sum(n)::BIGINT FROM (SELECT cloud, status, count(*) AS n FROM jobs GROUP BY 1, 2)", [])


_FIVE_DAYS = """"user" = ? AND cloud = ? AND status = 'failed'
    AND submitted >= make_timestamptz(?) AND submitted < make_timestamptz(?)"""


def main() -> None:
    options = common.parser_of_comparison(__doc__, rows=1_000_000).parse_args()
    folder = Path(tempfile.mkdtemp(prefix="chronotile-bench-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        csv, duckdb_ = folder / "jobs.csv", DuckDB(folder)
        for number, table in enumerate(generated.write_csv(generated.blocks(options.rows), csv)):
            duckdb_.add(number, table)
        duckdb_.open()
        print(f"{options.rows:,} jobs, CSV {csv.stat().st_size / 1e6:.0f} MB", flush=True)
        ours = Chronotile(options.cluster or folder / "jobs.db", table.schema, csv)
        systems: list[Any] = [ours, duckdb_]
        if not options.no_postgresql and programs() is not None:
            systems.append(PostgreSQL(stack.enter_context(postgresql()), table.schema, csv, options.rows))
            stack.callback(systems[-1].close)
        size, index_sizes = ours.sizes()
        notes = {
            "load, rows/s": {s.name: s.load_rows_s for s in systems if hasattr(s, "load_rows_s")},
            "indexes, s": {s.name: s.index_s for s in systems if hasattr(s, "index_s")},
            "bytes a row": {ours.name: size / options.rows},
            "index of data": {name: of_index / size for name, of_index in index_sizes.items()},
        }
        print(json.dumps(notes, indent=1), flush=True)
        random = Questions(table, options.rows)
        asked = {
            label: [
                random.of(kind, number)
                for number in range(min(options.rounds, 3) if kind == "year" else options.rounds)
            ]
            for kind, label in KINDS.items()
        }
        samples = common.measure_alternating(systems, asked, questions.comparable)
        samples |= _clients(systems, random)
    lines = [
        [f"{kind}, ms", *(common.spread(found.get(s.name, [])) for s in systems)] for kind, found in samples.items()
    ]
    common.save_comparison("jobs", systems, lines, notes=notes, samples=samples, rows=options.rows)


def _clients(systems: list[Any], random: Questions) -> dict[str, dict[str, list[float]]]:
    """Response times of look-ups by several concurrent clients, in milliseconds."""
    samples: dict[str, dict[str, list[float]]] = {}
    for kind, clients, each in (("ids", 10, 1), ("ids", 30, 1), ("one id", 30, 40)):
        what = f"{KINDS[kind].removesuffix(', a year')}, {clients} clients"
        asked = [[random.of(kind, client * each + number) for number in range(each)] for client in range(clients)]
        found = {system.name: questions.ask_at_once(system, asked) for system in systems}
        questions.check_alike(what, {name: one.answers for name, one in found.items()})
        samples[what] = {name: [seconds * 1e3 for seconds in one.seconds] for name, one in found.items()}
        p99 = {name: common.digits(common.percentile(ms, 99)) for name, ms in samples[what].items()}
        print(what, {name: common.spread(ms) for name, ms in samples[what].items()}, "p99", p99, flush=True)
    return samples


if __name__ == "__main__":
    main()
