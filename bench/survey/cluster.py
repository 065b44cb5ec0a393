"""Survey-shaped records on a cluster: layout `chunks`, layout `rows` (a CQL row per record), and cassandra-driver.

    ./dev bench cluster [--visits N] [--repeat N] [--compaction CLASS]

Starts three nodes with `chronotile lab` (1 GiB of heap each) and stores the visits of `bench/survey/survey.py` in each
system: Chronotile at several consistency levels and replication factors and in both layouts, and cassandra-driver with
one CQL row per record in the table that suits the reads best (a partition per cell, rows by time). The driver uses
prepared statements, with 128 concurrent writes, and a concurrent read for each cell, whose rows become an Arrow table.
Then a footprint of 12 tiles is read over 12 months, before and after `consolidate`. Answers are compared bit for bit
before reads are timed; systems are measured in turns. Writes cluster.md, cluster.svg and cluster.json to
bench/results/."""

from __future__ import annotations

import argparse
import gc
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import common
import pyarrow as pa
from cassandra import ConsistencyLevel
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.concurrent import execute_concurrent_with_args
from cassandra.policies import RoundRobinPolicy, TokenAwarePolicy
from cassandra.query import dict_factory
from survey import DAYS, START_MJD, Workload, footprint, make_visits, schema

import chronotile as ct
from chronotile_tools import lab


@dataclass
class Measured:
    """Samples of one operation of one system."""

    ms: list[float] = field(default_factory=list)
    client_cpu_ms: list[float] = field(default_factory=list)
    server_cpu_ms: list[float] = field(default_factory=list)


class Chronotile:
    """Chronotile on the cluster."""

    def __init__(self, cluster: lab.Cluster, name: str, *, layout: str = "chunks", **options: object) -> None:
        """`options` are parameters of the archive's URL."""
        self.name = name
        self.keyspace = "ct_" + "_".join(re.findall("[a-z0-9]+", name.lower()))
        self.archive = ct.open(f"{cluster.url(self.keyspace)}?{urlencode(options)}")
        self.dataset = self.archive.create(
            "sources", schema=schema(), cell=ct.key("cell"), time=ct.mjd("mjd"), window="30d", id="source_id", slice=13,
            layout=layout,
        )  # fmt: skip

    def store(self, visit: int, rows: pa.Table) -> None:
        self.dataset.write(rows, batch=f"visit-{visit}")

    def read(self, cells: list[int]) -> pa.Table:
        return self.dataset.read(keys=cells, start=START_MJD, end=START_MJD + DAYS).to_arrow()

    def consolidate(self) -> None:
        self.dataset.consolidate()

    def close(self) -> None:
        self.archive.close()


CQL_TYPES = {
    "int64": "bigint",
    "int32": "int",
    "double": "double",
    "float": "float",
    "bool": "boolean",
    "string": "text",
}


class Driver:
    """One CQL row per record, through cassandra-driver."""

    def __init__(self, cluster: lab.Cluster, level: str, copies: int) -> None:
        self.name = f"rows, cassandra-driver, RF {copies}, {level}"
        self.keyspace = f"driver_{level.lower()}_{copies}"
        profile = ExecutionProfile(
            consistency_level=getattr(ConsistencyLevel, level),
            load_balancing_policy=TokenAwarePolicy(RoundRobinPolicy()),
            row_factory=dict_factory,
            request_timeout=60,
        )
        self.driver = Cluster(cluster.contact_points, execution_profiles={EXEC_PROFILE_DEFAULT: profile})
        self.session = self.driver.connect()
        replication = {"class": "NetworkTopologyStrategy", "dc1": copies}
        self.session.execute(f"CREATE KEYSPACE {self.keyspace} WITH replication = {replication}")
        columns = ", ".join(f"{part.name} {CQL_TYPES[str(part.type)]}" for part in schema())
        table = f"{self.keyspace}.sources"
        self.session.execute(f"CREATE TABLE {table} ({columns}, PRIMARY KEY ((cell), mjd, source_id))")
        names = schema().names
        self.insert = self.session.prepare(
            f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"
        )
        self.select = self.session.prepare(f"SELECT * FROM {table} WHERE cell = ? AND mjd >= ? AND mjd < ?")

    def store(self, visit: int, rows: pa.Table) -> None:
        values = list(zip(*(column.to_pylist() for column in rows.columns), strict=True))
        execute_concurrent_with_args(self.session, self.insert, values, concurrency=128)

    def read(self, cells: list[int]) -> pa.Table:
        futures = [self.session.execute_async(self.select, (cell, START_MJD, START_MJD + DAYS)) for cell in cells]
        return pa.Table.from_pylist([row for future in futures for row in future.result()], schema=schema())

    def consolidate(self) -> None:
        """Nothing to consolidate: the servers compact."""

    def close(self) -> None:
        self.driver.shutdown()


System = Chronotile | Driver


@contextmanager
def measured(cluster: lab.Cluster, into: Measured) -> Iterator[None]:
    """Measures wall time, and processor time of this process and of the nodes."""
    server = sum(node.cpu_s for node in cluster.nodes)
    client, began = time.process_time(), time.perf_counter()
    yield
    into.ms.append((time.perf_counter() - began) * 1e3)
    into.client_cpu_ms.append((time.process_time() - client) * 1e3)
    into.server_cpu_ms.append((sum(node.cpu_s for node in cluster.nodes) - server) * 1e3)


Samples = dict[str, dict[str, Measured]]


def sample(cluster: lab.Cluster, samples: Samples, what: str, system: System, work: Callable[[], Any]) -> None:
    with measured(cluster, samples.setdefault(what, {}).setdefault(system.name, Measured())):
        work()


def check_equal(systems: list[System], work: Workload) -> None:
    def normal(table: pa.Table) -> pa.Table:
        return table.select(schema().names).cast(schema()).sort_by("source_id").combine_chunks()

    cells = footprint(work, 1)
    first = normal(systems[0].read(cells))
    assert first.num_rows
    for system in systems[1:]:
        assert normal(system.read(cells)).equals(first), f"{system.name} reads other rows"


def disk_bytes(cluster: lab.Cluster, systems: list[System]) -> dict[str, int]:
    """Bytes of the tables' files on all nodes, flushed."""
    found = {}
    for system in systems:
        for node in cluster.nodes:
            node.nodetool("flush", system.keyspace)
        folders = [node.folder / "data" / "data" / system.keyspace for node in cluster.nodes]
        found[system.name] = sum(common.bytes_below(folder) for folder in folders)
    return found


def requests_served(cluster: lab.Cluster) -> int:
    """Number of read requests for the benchmark's tables that coordinators have received so far."""
    total = 0
    for node in cluster.nodes:
        with node.connect() as connection:
            rows = connection.run("SELECT keyspace_name, count FROM system_views.coordinator_read_latency").rows
            total += sum(int(row[1]) for row in rows if row[0].startswith(("ct_", "driver_")))
    return total


def run(
    cluster: lab.Cluster, work: Workload, repeat: int, compaction: str
) -> tuple[list[System], Samples, dict[str, Any]]:
    systems: list[System] = [
        Chronotile(
            cluster,
            f"layout {layout}, RF {copies}, {level}",
            layout=layout,
            consistency=level,
            replication=copies,
            compaction=compaction,
        )
        for layout, level, copies in (
            ("chunks", "ONE", 3),
            ("chunks", "QUORUM", 3),
            ("chunks", "ALL", 3),
            ("chunks", "ONE", 1),
            ("rows", "QUORUM", 3),
            ("rows", "ONE", 1),
        )
    ]
    systems += [Driver(cluster, "QUORUM", 3), Driver(cluster, "ONE", 1)]
    visits = make_visits(work)
    samples: Samples = {}
    extra: dict[str, Any] = {"rows": sum(visit.num_rows for visit in visits)}
    gc.disable()
    common.say(f"storing {extra['rows']:,} rows in {len(systems)} systems")
    for number, rows in enumerate(visits):
        for system in common.rotated(systems, number):
            sample(cluster, samples, "store a visit", system, lambda s=system, n=number, r=rows: s.store(n, r))
    for when in ("before", "after"):
        if when == "after":
            for system in systems:
                if isinstance(system, Chronotile):
                    sample(cluster, samples, "consolidate, once", system, system.consolidate)
        extra[f"bytes, {when}"] = disk_bytes(cluster, systems)
        check_equal(systems, work)
        common.say(f"reading {when} consolidation, {repeat} rounds")
        for number in range(repeat + 1):
            for system in common.rotated(systems, number):
                cells = footprint(work, number)
                if number == 0:
                    before = requests_served(cluster)
                    system.read(cells)
                    extra.setdefault(f"requests, {when}", {})[system.name] = requests_served(cluster) - before
                else:
                    what = f"read a footprint, 12 months ({when} consolidation)"
                    sample(cluster, samples, what, system, lambda s=system, c=cells: s.read(c))
        gc.collect()
    return systems, samples, extra


def report(
    work: Workload, repeat: int, load: float, systems: list[System], samples: Samples, extra: dict[str, Any]
) -> str:
    names = [system.name for system in systems]

    def rows_of(part: str) -> list[list[str]]:
        return [
            [what, *(common.spread(getattr(found[name], part)) if name in found else "-" for name in names)]
            for what, found in samples.items()
        ]

    counts = [
        [
            f"bytes a row on disk, all copies, {when} consolidation",
            *(f"{extra[f'bytes, {when}'][name] / extra['rows']:.0f}" for name in names),
        ]
        for when in ("before", "after")
    ]
    counts += [
        [f"requests of a footprint, {when} consolidation", *(str(extra[f"requests, {when}"][name]) for name in names)]
        for when in ("before", "after")
    ]
    return f"""# Survey-shaped records on a cluster

{work.text}.
Three nodes of Cassandra {lab.versions.DEFAULT} on this machine, 1 GiB of heap each.
Median (least-largest) of {repeat} samples, of {work.visits} for stores.
All systems returned the same rows, compared bit for bit.

{common.table(["wall ms", *names], rows_of("ms"))}

{common.table(["client CPU ms", *names], rows_of("client_cpu_ms"))}

{common.table(["server CPU ms, all nodes", *names], rows_of("server_cpu_ms"))}

{common.table(["", *names], counts)}

chronotile {ct.__version__}, {common.versions("cassandra-driver", "pyarrow", "numpy")}, commit {common.commit()}.
{common.hardware()}. Load average at the start {load:.1f}.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--visits", type=int, default=60, help="visits stored (default 60, over 12 months)")
    parser.add_argument("--repeat", type=int, default=11, help="samples of each read (default 11)")
    parser.add_argument(
        "--compaction", default="LeveledCompactionStrategy", help="compaction strategy of Chronotile's tables"
    )
    arguments = parser.parse_args()
    work = Workload(48, arguments.visits)
    load = common.load_average()
    with lab.up("bench", nodes=3, heap="1g", echo=common.say) as cluster:
        systems, samples, extra = run(cluster, work, arguments.repeat, arguments.compaction)
        text = report(work, arguments.repeat, load, systems, samples, extra)
        for system in systems:
            system.close()
    title = f"Cluster: {work.visits} visits, ms"
    common.save_report("cluster", title, text, samples, workload=work.text, **extra)


if __name__ == "__main__":
    main()
