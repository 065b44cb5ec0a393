"""Reading whole tables of a Cassandra node into Arrow and pandas, with Chronotile and with cassandra-driver.

`./dev bench cql` starts a node, fills two tables and reads each in full by every route, in turns. Needs
cassandra-driver, pandas, pyarrow, and for the node Java and Maven. `--url` uses a running cluster instead.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import common
import pandas as pd
import pyarrow as pa
from cassandra.cluster import Cluster, Session
from cassandra.concurrent import execute_concurrent_with_args
from cassandra.policies import RoundRobinPolicy
from cassandra.protocol import NumpyProtocolHandler
from cassandra.query import dict_factory, tuple_factory

import chronotile as ct

KEYSPACE = "bench"
ROWS_PER_PARTITION = 1_000
ROWS_PER_BATCH = 50
NARROW = {
    "bucket": "int", "id": "bigint", "seen": "timestamp", "ra": "double", "dec": "double", "mag": "float",
    "err": "float", "flags": "int", "band": "text", "name": "text",
}  # fmt: skip
WIDE = {"bucket": "int", "id": "bigint", **{f"v{place}": ("double", "int", "text")[place % 3] for place in range(98)}}


def value(kind: str, row: int, place: int) -> Any:
    """A value that differs from row to row and is cheap to compute."""
    match kind:
        case "int":
            return (row * 31 + place) & 0x7FFFFFFF
        case "bigint":
            return row
        case "timestamp":
            return 1_780_000_000_000 + row * 137
        case "text":
            return f"{'ugrizy'[(row + place) % 6]}{row % 1_000}"
    return (row % 360_000) / 1_000 + place


def fill(session: Session, table: str, columns: dict[str, str], rows: int) -> None:
    """Create and fill a table in batches of `ROWS_PER_BATCH` rows of one partition, or 10 rows if they are wide."""
    kinds = ", ".join(f"{name} {kind}" for name, kind in columns.items())
    session.execute(f"CREATE TABLE {KEYSPACE}.{table} ({kinds}, PRIMARY KEY (bucket, id))")
    marks = ", ".join("?" * len(columns))
    per_batch = ROWS_PER_BATCH if len(columns) < 50 else 10
    insert = f"INSERT INTO {KEYSPACE}.{table} ({', '.join(columns)}) VALUES ({marks});"
    batch = session.prepare("BEGIN UNLOGGED BATCH " + insert * per_batch + " APPLY BATCH")
    kinds_of = list(columns.values())[1:]

    def arguments() -> Iterator[list[Any]]:
        for first in range(0, rows, per_batch):
            flat: list[Any] = []
            for row in range(first, first + per_batch):
                flat.append(row // ROWS_PER_PARTITION)
                flat += [value(kind, row, place) for place, kind in enumerate(kinds_of)]
            yield flat

    execute_concurrent_with_args(session, batch, arguments(), concurrency=64)


def frame_of(pages: Any, names: list[str]) -> pd.DataFrame:
    """The pages of the numpy handler as one DataFrame."""
    parts = [pd.DataFrame({name: page[name] for name in names}) for page in pages]
    return pd.concat(parts, ignore_index=True)


class Routes:
    """Every way of reading a table in full."""

    def __init__(self, url: str, session: Session) -> None:
        self.ours = ct.cql(url)
        self.session = session
        # The handler suppresses its own errors and returns no rows then.
        self.numpy_works = bool(self.numpy_pages(f"SELECT * FROM {KEYSPACE}.narrow LIMIT 1"))

    def all(self) -> dict[str, Callable[[str], int]]:
        routes = {
            "Chronotile table(), Arrow": lambda table: self.ours.table(KEYSPACE, table).to_arrow().num_rows,
            "Chronotile table(), pandas": lambda table: len(self.ours.table(KEYSPACE, table).to_pandas()),
            "Chronotile query(), Arrow": lambda table: self.ours.query(self.select(table)).to_arrow().num_rows,
            "Chronotile query(), pandas": lambda table: len(self.ours.query(self.select(table)).to_pandas()),
            "cassandra-driver, tuples to pandas": self.tuples,
            "cassandra-driver, dicts to pandas": self.dicts,
        }
        if self.numpy_works:
            routes["cassandra-driver, numpy handler to pandas"] = self.numpy
        return routes

    @staticmethod
    def select(table: str) -> str:
        return f"SELECT * FROM {KEYSPACE}.{table}"

    def tuples(self, table: str) -> int:
        self.session.row_factory = tuple_factory
        rows = self.session.execute(self.select(table))
        return len(pd.DataFrame.from_records(list(rows), columns=rows.column_names))

    def dicts(self, table: str) -> int:
        self.session.row_factory = dict_factory
        return len(pd.DataFrame(list(self.session.execute(self.select(table)))))

    def numpy(self, table: str) -> int:
        return len(frame_of(self.numpy_pages(self.select(table)), list(NARROW if table == "narrow" else WIDE)))

    def numpy_pages(self, statement: str) -> list[Any]:
        before = self.session.client_protocol_handler
        self.session.row_factory = tuple_factory
        self.session.client_protocol_handler = NumpyProtocolHandler
        try:
            return list(self.session.execute(statement))
        finally:
            self.session.client_protocol_handler = before


def check(routes: Routes, table: str) -> None:
    """Check that Chronotile and the driver return the same values."""
    ours = routes.ours.table(KEYSPACE, table).to_arrow().sort_by([("bucket", "ascending"), ("id", "ascending")])
    routes.session.row_factory = dict_factory
    found = pa.Table.from_pylist(list(routes.session.execute(Routes.select(table)).all()[: ours.num_rows]))
    theirs = found.select(ours.column_names).cast(pa.schema([(f.name, _naive(f.type)) for f in ours.schema]))
    theirs = theirs.sort_by([("bucket", "ascending"), ("id", "ascending")])
    if ours.cast(theirs.schema).equals(theirs) is not True:
        raise SystemExit(f"{table}: the routes differ")


def _naive(kind: pa.DataType) -> pa.DataType:
    return pa.timestamp("ms") if pa.types.is_timestamp(kind) else kind


@contextlib.contextmanager
def cluster(url: str | None) -> Iterator[str]:
    """The URL of a cluster: the given one, or one of a new node."""
    if url is not None:
        yield url
        return
    from chronotile_tools import lab

    with lab.up("bench-cql", nodes=1, heap="1g", network="loopback") as own:
        yield own.url()


def measure(routes: Routes, table: str, rows: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Samples per route: wall and CPU seconds of this process. The first round is discarded."""
    samples: dict[str, dict[str, list[float]]] = {}
    for round_ in range(rounds + 1):
        for name, read in routes.all().items():
            used = resource.getrusage(resource.RUSAGE_SELF)
            began = time.perf_counter()
            count = read(table)
            wall = time.perf_counter() - began
            after = resource.getrusage(resource.RUSAGE_SELF)
            if count != rows:
                raise SystemExit(f"{name} read {count} rows of {table}, not {rows}")
            if round_:
                kept = samples.setdefault(name, {"wall_s": [], "cpu_s": []})
                kept["wall_s"].append(wall)
                kept["cpu_s"].append(after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime)
    return samples


def report(samples: dict[str, dict[str, dict[str, list[float]]]], rows: dict[str, int]) -> str:
    """A Markdown table for each CQL table, with ratios to the driver's default route."""
    parts = []
    for table, routes in samples.items():
        base = min(routes["cassandra-driver, tuples to pandas"]["wall_s"])
        lines = []
        for name, kept in routes.items():
            least = min(kept["wall_s"])
            lines.append(
                [
                    name, common.spread(kept["wall_s"]), common.spread(kept["cpu_s"]),
                    f"{rows[table] / least / 1_000:.0f}", f"{base / least:.1f}",
                ]
            )  # fmt: skip
        header = [f"{table}, {rows[table]:,} rows", "wall, s", "client CPU, s", "1,000 rows/s", "times as fast"]
        parts.append(common.table(header, lines))
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", help="cassandra:// URL of a cluster; its keyspace `bench` is dropped")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--wide-rows", type=int, default=50_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a quick check that it works; the figures are meaningless")
    options = parser.parse_args()
    rows = {"narrow": options.rows, "wide": options.wide_rows}
    rounds = options.rounds
    if options.quick:
        rows, rounds = {"narrow": 20_000, "wide": 2_000}, 1
    with cluster(options.url) as url:
        host, _, port = url.split("//")[1].split("/")[0].split(",")[0].partition(":")
        balance = RoundRobinPolicy()
        with Cluster([host], port=int(port or 9042), protocol_version=5, load_balancing_policy=balance) as driver:
            session = driver.connect()
            session.default_timeout = 120
            session.execute(f"DROP KEYSPACE IF EXISTS {KEYSPACE}")
            replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
            session.execute(f"CREATE KEYSPACE {KEYSPACE} WITH replication = {replication}")
            fill(session, "narrow", NARROW, rows["narrow"])
            fill(session, "wide", WIDE, rows["wide"])
            routes = Routes(url.split("?")[0] + "?consistency=ONE", session)
            samples = {}
            for table, count in rows.items():
                check(routes, table)
                samples[table] = measure(routes, table, count, rounds)
            session.execute(f"DROP KEYSPACE {KEYSPACE}")
    print(f"{common.hardware()}; {common.versions('cassandra-driver', 'pandas', 'pyarrow')}; {common.commit()}")
    print(f"load average {common.load_average():.1f}; median (least-largest) of {rounds} rounds\n")
    if not routes.numpy_works:
        print("excluded: cassandra-driver's numpy handler, which returns no rows in these versions\n")
    print(report(samples, rows))
    common.RESULTS.mkdir(exist_ok=True)
    Path(common.RESULTS / "cql.json").write_text(json.dumps({"rows": rows, "samples": samples}, indent=1))


if __name__ == "__main__":
    main()
