"""Light curves by object id, anywhere on the sky, compared with a table keyed by object id.

    ./dev bench light_curves [--visits N] [--detectors N] [--cluster]

A simulated camera stores its detector-visits over twelve months in Chronotile, with the LSST's schema. The peer stores
the same measurements, with only the columns of a light curve, in the layout that suits only this query: a table in the
order of object and time. On SQLite, it is a table whose primary key begins with the object id (WITHOUT ROWID). With
--cluster, it is a Cassandra table with a partition for each object, on three nodes of `chronotile lab` (1 GiB of heap
each, RF 3, QUORUM for both systems), read by cassandra-driver with prepared statements and 128 concurrent requests.
Then the light curves of 1, 100 and 10,000 objects are read from both, different objects in each round, before and after
`maintain`; the answers must be the same. Writes light_curves.md and light_curves.json to bench/results/."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import common
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from cluster import CQL_TYPES

from chronotile import apdb
from chronotile.apdb import names
from chronotile_tools import lab
from chronotile_tools.survey.simulate import ChronotileDriver, Survey, Universe
from chronotile_tools.survey.simulate.universe import PADDING_DEG

COUNTS = (1, 100, 10_000)
KEY = [names.OBJECT_ID, names.TIME, "forced", names.VISIT, names.DETECTOR]
SQL_TYPES = {"int64": "INTEGER", "int16": "INTEGER", "int32": "INTEGER", "bool": "INTEGER", "string": "TEXT"}

Rows = list[tuple[Any, ...]]


class Peer(Protocol):
    """A table of light curves in the order of object and time."""

    name: str

    def store(self, rows: Rows) -> None:
        """Store measurements; they are durable when this returns."""

    def light_curves(self, ids: Any) -> Any:
        """The measurements of objects as an Arrow table."""

    def close(self) -> None:
        """Close the connection."""


class Chronotile:
    """A survey's database in Chronotile."""

    name = "Chronotile"

    def __init__(self, url: str, columns: list[str]) -> None:
        self.database = apdb.open(url)
        self.columns = columns

    def light_curves(self, ids: Any) -> Any:
        return self.database.light_curves(ids, columns=self.columns).to_arrow()


class SqliteTable:
    """A SQLite table whose rows are stored in the order of its primary key."""

    name = "SQLite, clustered by object"

    def __init__(self, path: Path, schema: Any) -> None:
        self.schema = schema
        self.file = sqlite3.connect(path)
        self.file.execute("PRAGMA journal_mode = WAL")
        self.file.execute("PRAGMA synchronous = FULL")
        columns = ", ".join(f"{field.name} {SQL_TYPES.get(str(field.type), 'REAL')}" for field in schema)
        self.file.execute(f"CREATE TABLE curves ({columns}, PRIMARY KEY ({', '.join(KEY)})) WITHOUT ROWID")
        self.insert = f"INSERT INTO curves VALUES ({', '.join('?' * len(schema))})"

    def store(self, rows: Rows) -> None:
        with self.file:
            self.file.executemany(self.insert, rows)

    def light_curves(self, ids: Any) -> Any:
        # All ids are one parameter, because SQLite limits the number of parameters.
        select = "SELECT * FROM curves WHERE diaObjectId IN (SELECT value FROM json_each(?))"
        return arrow(self.file.execute(select, (json.dumps(ids.tolist()),)).fetchall(), self.schema)

    def close(self) -> None:
        self.file.close()


class CassandraTable:
    """A Cassandra table with a partition for each object, as alert brokers use."""

    name = "Cassandra, a partition for each object"

    def __init__(self, cluster: lab.Cluster, schema: Any) -> None:
        from cassandra import ConsistencyLevel
        from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
        from cassandra.policies import RoundRobinPolicy, TokenAwarePolicy
        from cassandra.query import tuple_factory

        self.schema = schema
        profile = ExecutionProfile(
            consistency_level=ConsistencyLevel.QUORUM, load_balancing_policy=TokenAwarePolicy(RoundRobinPolicy()),
            row_factory=tuple_factory, request_timeout=60,
        )  # fmt: skip
        self.driver = Cluster(cluster.contact_points, execution_profiles={EXEC_PROFILE_DEFAULT: profile})
        self.session = self.driver.connect()
        replication = {"class": "NetworkTopologyStrategy", "dc1": 3}
        self.session.execute(f"CREATE KEYSPACE peer WITH replication = {replication}")
        columns = ", ".join(f"{field.name} {CQL_TYPES.get(str(field.type), 'int')}" for field in schema)
        self.session.execute(f"CREATE TABLE peer.curves ({columns}, PRIMARY KEY ({', '.join(KEY)}))")
        listed = ", ".join(schema.names)
        self.insert = self.session.prepare(
            f"INSERT INTO peer.curves ({listed}) VALUES ({', '.join('?' * len(schema))})"
        )
        self.select = self.session.prepare(f"SELECT {listed} FROM peer.curves WHERE diaObjectId = ?")

    def store(self, rows: Rows) -> None:
        from cassandra.concurrent import execute_concurrent_with_args

        execute_concurrent_with_args(self.session, self.insert, rows, concurrency=128)

    def light_curves(self, ids: Any) -> Any:
        from cassandra.concurrent import execute_concurrent_with_args

        wanted = [(each,) for each in ids.tolist()]
        found = execute_concurrent_with_args(self.session, self.select, wanted, concurrency=128)
        return arrow([row for answer in found for row in answer.result_or_exc], self.schema)

    def close(self) -> None:
        self.driver.shutdown()


def arrow(rows: Rows, schema: Any) -> Any:
    columns = zip(*rows, strict=True) if rows else [[]] * len(schema)
    arrays = [
        pa.array(column).cast(field.type) if rows else pa.array([], field.type)
        for column, field in zip(columns, schema, strict=True)
    ]
    return pa.table(arrays, pa.schema([field.with_nullable(True) for field in schema]))


def curve_schema(schema: apdb.Schema) -> Any:
    """The columns of a light curve, beginning with the key."""
    source, forced = schema[names.SOURCE], schema[names.FORCED]
    shared = [name for name in source.column_names if name in forced and name not in (*KEY, names.WITHDRAWN)]
    fields = [pa.field(name, pa.bool_()) if name == "forced" else source[name].arrow for name in (*KEY, *shared)]
    return pa.schema([pa.field(field.name, field.type) for field in fields])


def measurements(found: dict[str, Any], schema: Any) -> Rows:
    """The measurements of a detector-visit as rows for the peer."""
    rows: Rows = []
    for table in (names.SOURCE, names.FORCED):
        source = pa.table(found[table])
        columns = [
            pa.repeat(table == names.FORCED, source.num_rows)
            if field.name == "forced"
            else source[field.name].cast(field.type)
            if field.name in source.schema.names
            else pa.nulls(source.num_rows, field.type)
            for field in schema
        ]
        rows += list(zip(*(column.to_pylist() for column in columns), strict=True))
    return rows


def digest(table: Any) -> tuple[int, str]:
    """Number of rows, and a digest of them that does not depend on their order."""
    table = table.select(sorted(table.column_names)).sort_by([(name, "ascending") for name in KEY])
    hashed = hashlib.blake2b()
    for column in table.columns:
        valid = pc.and_(pc.is_valid(column), pc.fill_null(pc.equal(column, column), False))
        hashed.update(valid.to_numpy().tobytes())
        hashed.update(str(column.filter(valid).to_pylist()).encode())
    return table.num_rows, hashed.hexdigest()


def fill(url: str, peer: Peer, universe: Universe, schema: Any) -> tuple[Any, dict[str, float]]:
    """Store all detector-visits in both systems; returns the object ids, and the seconds of all stores by system."""
    survey, driver = universe.survey, ChronotileDriver(url)
    seconds = {Chronotile.name: 0.0, peer.name: 0.0}
    ids: list[Any] = []
    for visit in range(survey.visits):
        for detector in range(survey.detectors):
            e = survey.exposure(visit, detector)
            known = driver.read(e.footprint(PADDING_DEG), e.mjd).known
            observed = universe.observe(e, known)
            found = {names.SOURCE: observed.sources, names.FORCED: observed.forced_sources}
            tables = driver.rows(observed)
            seconds[Chronotile.name] += common.timed_ms(lambda e=e, tables=tables: driver.store(e, tables)) / 1e3
            rows = measurements(found, schema)
            seconds[peer.name] += common.timed_ms(lambda rows=rows: peer.store(rows)) / 1e3
            ids.append(np.asarray(pa.table(found[names.SOURCE])[names.OBJECT_ID]))
        common.say(f"visit {visit + 1} of {survey.visits}")
    driver.close()
    return np.unique(np.concatenate(ids)), seconds


@contextlib.contextmanager
def site(on_cluster: bool, schema: Any) -> Iterator[tuple[str, Peer]]:
    """Set up the databases: yields the URL for Chronotile, and the peer."""
    if on_cluster:
        with lab.up(nodes=3, heap="1g") as cluster, contextlib.closing(CassandraTable(cluster, schema)) as peer:
            yield cluster.url("curves_ours") + "?consistency=QUORUM&replication=3", peer
    else:
        with (
            tempfile.TemporaryDirectory(prefix="chronotile-bench-") as folder,
            contextlib.closing(SqliteTable(Path(folder) / "peer.db", schema)) as peer,
        ):
            yield f"sqlite:{folder}/ours.db", peer


def questions(ids: Any, rounds: int, seed: int) -> dict[str, list[Any]]:
    """Queries by number of ids; each round reads different objects."""
    rng = np.random.default_rng(seed)

    def of(count: int) -> Any:
        chosen = rng.choice(ids, min(count, len(ids)), replace=False)
        return lambda system: system.light_curves(chosen)

    return {f"{min(count, len(ids)):,} ids": [of(count) for _ in range(rounds + 1)] for count in COUNTS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--visits", type=int, default=24)
    parser.add_argument("--detectors", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--cluster", action="store_true", help="three nodes of chronotile lab")
    parser.add_argument("--quick", action="store_true", help="a quick check that it works; the figures are meaningless")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.visits, arguments.detectors, arguments.rounds = 4, 3, 2
    load = common.load_average()
    visits = arguments.visits
    survey = Survey(visits, arguments.detectors, visits, max(360 / visits, 1.0))
    universe = Universe(survey, apdb.Schema.read())
    schema = curve_schema(universe.schema)
    samples: dict[str, dict[str, list[float]]] = {}
    with site(arguments.cluster, schema) as (url, peer):
        apdb.create(url, universe.schema).close()
        began = time.perf_counter()
        ids, seconds = fill(url, peer, universe, schema)
        common.say(f"{len(ids):,} objects, {time.perf_counter() - began:.0f} s")
        ours = Chronotile(url, schema.names)
        for when in ("before maintain", "after maintain"):
            if when == "after maintain":
                ours.database.maintain()
            asked = {f"{kind}, {when}": each for kind, each in questions(ids, arguments.rounds, 7).items()}
            samples |= common.measure_alternating([ours, peer], asked, digest)
        info = ours.database.info()
        rows = sum(info[names.dataset_name(table)].rows for table in (names.SOURCE, names.FORCED))
        share = info[names.OBJECT_INDEX].bytes / sum(each.bytes for each in info.values())
        ours.database.close()
    lines = []
    for kind, by_system in samples.items():
        a, b = by_system[ours.name], by_system[peer.name]
        lines.append([kind, common.spread(a), common.spread(b), f"{statistics.median(b) / statistics.median(a):.2f}"])
    stored = [f"{name} {spent / (visits * survey.detectors) * 1e3:.1f}" for name, spent in seconds.items()]
    text = "\n\n".join([
        "# Light curves by object id",
        f"{visits} visits of {survey.detectors} detectors over twelve months: {len(ids):,} objects with {rows:,} "
        "sources and forced sources. Milliseconds: median (least-largest); then times as fast.",
        common.table(["ms", ours.name, peer.name, "times as fast"], lines),
        f"Storing a detector-visit took {', '.join(stored)} ms; of Chronotile, with objects and all columns. Its "
        f"index of objects takes {share:.1%} of the bytes of its chunks.",
        f"{common.versions('pyarrow', 'numpy')}, commit {common.commit()}.\n{common.hardware()}. Load average at the "
        f"start {load:.1f}.",
    ])  # fmt: skip
    print(text)
    common.RESULTS.mkdir(exist_ok=True)
    name = "light_curves_cluster" if arguments.cluster else "light_curves"
    (common.RESULTS / f"{name}.md").write_text(text + "\n")
    (common.RESULTS / f"{name}.json").write_text(json.dumps({"hardware": common.hardware(), "samples_ms": samples}))


if __name__ == "__main__":
    main()
