"""A survey's detector-visits in Chronotile and in lsst-dax-apdb, in the same run.

    ./dev bench apdb [--visits N] [--detectors N] [--cluster | --url cassandra://H1,H2,H3]

Each detector of a simulated camera (chronotile_tools.survey.simulate: published densities, the LSST's own schema of
200 columns) reads its footprint over twelve months and stores its detections. Both systems store the same rows, in
turns, and must read the same rows. After each night Chronotile is maintained, as in a survey, unless --no-maintenance.

By default both systems use SQLite. --cluster starts three nodes with `chronotile lab` (1 GiB of heap each, RF 3, QUORUM
for both systems), and first stores and reads another survey in both systems for --warm-up seconds, because new nodes,
whose code is not compiled yet, take five times as long for a request. --url uses a running cluster.

Then the footprints are read again, before and after a whole `maintain` of Chronotile. With --writers, this many
processes store concurrently with readers. With --adapter, the package's own calls are compared with its adapter to
lsst.dax.apdb. Writes apdb.md and apdb.json to bench/results/. To compare levels, windows and slices of Chronotile, use
`chronotile apdb pixels --measure`."""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import json
import shutil
import sqlite3
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import common

from chronotile import apdb
from chronotile.apdb import names
from chronotile_tools import lab
from chronotile_tools.survey.simulate import ChronotileDriver, Driver, PeerDriver, Run, Survey, Universe
from chronotile_tools.survey.simulate import run as simulate
from chronotile_tools.survey.simulate.universe import PADDING_DEG

# The peer uses deprecated functions of pandas, which warn at every store.
warnings.filterwarnings("ignore")

OURS, PEER = ChronotileDriver.name, PeerDriver.name
ADAPTER = "its adapter to lsst.dax.apdb"

MAINTENANCE_CHUNKS = 8
"""The daily maintenance rewrites tiles with at least this many chunks."""


@dataclass
class Samples:
    """Milliseconds of wall time, and of processor time of the client and of all nodes."""

    ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    nodes_ms: list[float] = field(default_factory=list)

    def add(self, seconds: float, cpu: float, nodes: float = 0.0) -> None:
        self.ms.append(seconds * 1e3)
        self.cpu_ms.append(cpu * 1e3)
        self.nodes_ms.append(nodes * 1e3)


Results = dict[str, dict[str, Samples]]


@dataclass
class Site:
    """The location of the databases."""

    folder: Path
    hosts: list[str] | None = None
    port: int = 9042
    cluster: lab.Cluster | None = None

    def url(self, name: str) -> str:
        """URL for a new Chronotile database."""
        if self.hosts is None:
            return f"sqlite:{self.folder}/{name}_ours.db"
        addresses = ",".join(f"{host}:{self.port}" for host in self.hosts)
        return f"cassandra://{addresses}/{name}_ours?consistency=QUORUM&replication=3"

    def make(self, name: str) -> tuple[str, str]:
        """Create databases in both systems; returns Chronotile's URL and the path of the peer's configuration file."""
        if self.hosts is None:
            from lsst.dax.apdb.sql import ApdbSql

            config: Any = ApdbSql.init_database(f"sqlite:///{self.folder}/{name}_peer.db")
        else:
            from lsst.dax.apdb.cassandra import ApdbCassandra

            config = ApdbCassandra.init_database(
                tuple(self.hosts), f"{name}_peer", port=self.port, replication_factor=3, read_consistency="QUORUM",
                write_consistency="QUORUM", part_pixelization="mq3c", part_pix_level=10, time_partition_tables=False,
                read_timeout=120, write_timeout=120,
            )  # fmt: skip
        ours = self.url(name)
        apdb.create(ours).close()
        config.save(f"{self.folder}/{name}_peer.yaml")
        return ours, f"{self.folder}/{name}_peer.yaml"

    def nodes_cpu_s(self) -> float:
        """Processor time of all nodes so far, in seconds; 0 without nodes of `chronotile lab`."""
        return sum(node.cpu_s for node in self.cluster.nodes) if self.cluster is not None else 0.0

    def bytes(self, name: str) -> dict[str, int]:
        """Bytes on disk by system; on a cluster those of all nodes, after a flush."""
        if self.hosts is None:
            for path in self.folder.glob(f"{name}_*.db"):
                # Move the content of the write-ahead log to the database file.
                with contextlib.closing(sqlite3.connect(path)) as file:
                    file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            return {
                system: sum(path.stat().st_size for path in self.folder.glob(f"{name}_{suffix}.db*"))
                for system, suffix in ((OURS, "ours"), (PEER, "peer"))
            }
        if self.cluster is None:
            return {}
        found = {OURS: 0, PEER: 0}
        for node in self.cluster.nodes:
            node.nodetool("flush")
            for system, suffix in ((OURS, "ours"), (PEER, "peer")):
                keyspace = node.folder / "data" / "data" / f"{name}_{suffix}"
                found[system] += sum(path.stat().st_size for path in keyspace.rglob("*-Data.db"))
        return found


def one_visit(
    place: Site, universe: Universe, drivers: dict[str, Driver], visit: int, detector: int, turn: int, results: Results
) -> None:
    """Read and store a detector-visit in every system, in turns. All must read the same rows."""
    e = universe.survey.exposure(visit, detector)
    footprint = e.footprint(PADDING_DEG)
    known: dict[str, Any] = {}
    counts: dict[str, Any] = {}
    order = common.rotated(list(drivers), turn)
    for name in order:
        nodes = place.nodes_cpu_s()
        read = drivers[name].read(footprint, e.mjd)
        nodes = place.nodes_cpu_s() - nodes
        known[name], counts[name] = read.known, read.counts
        results["read a footprint, 12 months"][name].add(sum(read.seconds.values()), read.cpu_s, nodes)
        for table, spent in read.seconds.items():
            results[f"  {table}"][name].add(spent, 0.0)
    if len({json.dumps(each, sort_keys=True) for each in counts.values()}) > 1:
        raise SystemExit(f"the systems read other rows at visit {visit}: {counts}")
    found = universe.observe(e, known[OURS])
    rows = {name: driver.rows(found) for name, driver in drivers.items()}
    for name in order:
        nodes, began, cpu = place.nodes_cpu_s(), time.perf_counter(), time.process_time()
        drivers[name].store(e, rows[name])
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        results["store a detector-visit, durable"][name].add(seconds, cpu, place.nodes_cpu_s() - nodes)


def maintain_by_day(url: str, maintenance: Samples) -> None:
    """The maintenance between nights: rewrite the tiles that have many chunks."""
    began, cpu = time.perf_counter(), time.process_time()
    with apdb.open(url) as database:
        database.maintain(chunks_min=MAINTENANCE_CHUNKS)
    maintenance.add(time.perf_counter() - began, time.process_time() - cpu)


def empty_results(systems: list[str]) -> Results:
    kinds = ["read a footprint, 12 months", *(f"  {name}" for name in names.MAIN_TABLES)]
    kinds += ["store a detector-visit, durable", "read again, before maintain", "read again, after maintain"]
    return {kind: {system: Samples() for system in systems} for kind in kinds}


def warm_up(place: Site, seconds: float) -> None:
    """Store and read visits of another survey in both systems, so that the nodes compile their code."""
    ours, peer = place.make("warm")
    drivers: dict[str, Driver] = {OURS: ChronotileDriver(ours), PEER: PeerDriver(peer)}
    universe = Universe(Survey(10_000, 1, 1_000, seed=3), apdb.Schema.read())
    until = time.monotonic() + seconds
    for turn in itertools.count():
        if time.monotonic() > until:
            break
        one_visit(place, universe, drivers, turn, 0, turn, empty_results(list(drivers)))
    for driver in drivers.values():
        driver.close()


def fill_and_read(
    place: Site, survey: Survey, repeat: int, maintenance: Samples | None
) -> tuple[Results, dict[str, int], dict[str, int], str]:
    ours, peer = place.make("bench")
    drivers: dict[str, Driver] = {OURS: ChronotileDriver(ours), PEER: PeerDriver(peer)}
    universe = Universe(survey, apdb.Schema.read())
    results = empty_results(list(drivers))
    gc.disable()
    turn = 0
    for visit in range(survey.visits):
        for detector in range(survey.detectors):
            one_visit(place, universe, drivers, visit, detector, turn, results)
            turn += 1
        if maintenance is not None:
            maintain_by_day(ours, maintenance)
        gc.collect()
        common.say(f"visit {visit + 1} of {survey.visits}")
    last = survey.time(survey.visits - 1) + 0.01
    read_again(place, survey, drivers, last, "read again, before maintain", results, repeat)
    drivers[OURS].close()
    sizes = place.bytes("bench")
    drivers[OURS] = ChronotileDriver(ours)
    with apdb.open(ours) as database:
        database.maintain()
    # The peer has no maintenance. It is read again so that both systems run under the same conditions.
    read_again(place, survey, drivers, last, "read again, after maintain", results, repeat)
    results["the same, ours in one call"] = read_at_once(
        place, ours, survey, last, results["read again, after maintain"][PEER], repeat
    )
    rows = drivers[OURS].read(survey.footprint(0, 0, PADDING_DEG), last).counts
    for driver in drivers.values():
        driver.close()
    gc.enable()
    text = ", ".join(f"{count:,} {name}" for name, count in rows.items())
    return results, sizes, place.bytes("bench"), text


def read_again(
    place: Site, survey: Survey, drivers: dict[str, Driver], at: float, what: str, results: Results, repeat: int
) -> None:
    for number in range(repeat + 1):
        for detector in range(survey.detectors):
            for name in common.rotated(list(drivers), number):
                nodes = place.nodes_cpu_s()
                read = drivers[name].read(survey.footprint(0, detector, PADDING_DEG), at)
                if number:
                    results[what][name].add(sum(read.seconds.values()), read.cpu_s, place.nodes_cpu_s() - nodes)


def read_at_once(place: Site, ours: str, survey: Survey, at: float, peer: Samples, repeat: int) -> dict[str, Samples]:
    """Read the same footprints with the one call that reads all three tables, which the peer lacks."""
    found = Samples()
    with apdb.open(ours, read_only=True) as database:
        for number in range(repeat + 1):
            for detector in range(survey.detectors):
                nodes, began, cpu = place.nodes_cpu_s(), time.perf_counter(), time.process_time()
                database.footprint(survey.footprint(0, detector, PADDING_DEG), at=at)
                seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
                if number:
                    found.add(seconds, cpu, place.nodes_cpu_s() - nodes)
    return {OURS: found, PEER: peer}


def at_once(place: Site, survey: Survey, writers: int, readers: int) -> dict[str, dict[str, float]]:
    """Median milliseconds of concurrent writers and readers, one system after the other."""
    ours, peer = place.make("crowd")
    found = {}
    for name, target, is_peer in ((OURS, ours, False), (PEER, peer, True)):
        common.say(f"{writers} writers and {readers} readers on {name}")
        plan = Run(survey, target, place.folder / f"log-{name}", writers, readers, is_peer)
        files = simulate(plan)
        lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        late = survey.visits // 2
        found[name] = {
            op: statistics.median(e["seconds"] * 1e3 for e in lines if e["op"] == op and e.get("visit", late) >= late)
            for op in ("read", "store", *(["cone"] if readers else []))
        }
    return found


def through_adapter(place: Site, survey: Survey) -> Results:
    """Store and read the same visits with the package's own calls and through its adapter to lsst.dax.apdb, which takes
    and returns DataFrames, in turns. Creating the DataFrames to store is not timed.
    """
    from chronotile.apdb.lsst import ChronotileApdb

    own, adapter = place.url("own"), place.url("adapter")
    apdb.create(own).close()
    config = place.folder / "adapter.yaml"
    ChronotileApdb.init_database(adapter).save(str(config))
    drivers: dict[str, Driver] = {OURS: ChronotileDriver(own), ADAPTER: PeerDriver(str(config))}
    universe = Universe(survey, apdb.Schema.read())
    results = {kind: {system: Samples() for system in drivers} for kind in ("read a footprint", "store")}
    gc.disable()
    for visit in range(survey.visits):
        for detector in range(survey.detectors):
            e = universe.survey.exposure(visit, detector)
            known: Any = None
            for name in common.rotated(list(drivers), visit):
                read = drivers[name].read(e.footprint(PADDING_DEG), e.mjd)
                results["read a footprint"][name].add(sum(read.seconds.values()), read.cpu_s)
                known = read.known if name == OURS else known
            detection = universe.observe(e, known)
            rows = {name: driver.rows(detection) for name, driver in drivers.items()}
            for name in common.rotated(list(drivers), visit):
                began, cpu = time.perf_counter(), time.process_time()
                drivers[name].store(e, rows[name])
                results["store"][name].add(time.perf_counter() - began, time.process_time() - cpu)
        gc.collect()
    gc.enable()
    for driver in drivers.values():
        driver.close()
    return results


@contextlib.contextmanager
def places(arguments: argparse.Namespace) -> Iterator[Site]:
    folder = arguments.keep or Path(tempfile.mkdtemp(prefix="chronotile-bench-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if arguments.cluster:
            with lab.up(nodes=3, heap="1g") as cluster:
                yield Site(folder, cluster.contact_points, cluster.native_port, cluster)
        elif arguments.url:
            hosts, _, _ = arguments.url.removeprefix("cassandra://").partition("/")
            pairs = [host.partition(":") for host in hosts.split(",")]
            yield Site(folder, [host for host, _, _ in pairs], int(pairs[0][2] or 9042))
        else:
            yield Site(folder)
    finally:
        if arguments.keep is None:
            shutil.rmtree(folder)


def report(
    survey: Survey, engine: str, results: Results, sizes: list[dict[str, int]], rows: str,
    crowd: dict[str, dict[str, float]], load: float, maintenance: Samples | None, adapter: Results,
) -> str:  # fmt: skip
    lines = []
    for kind, each in results.items():
        ours, peer = each[OURS].ms, each[PEER].ms
        if ours:
            ratio = statistics.median(peer) / statistics.median(ours)
            lines.append([kind, common.spread(ours), common.spread(peer), f"{ratio:.1f}"])
    cpu = []
    for kind in ("read a footprint, 12 months", "store a detector-visit, durable"):
        ours, peer = (statistics.median(results[kind][name].cpu_ms) for name in (OURS, PEER))
        cpu.append([kind, common.digits(ours), common.digits(peer), f"{peer / max(ours, 0.1):.1f}"])
    last = results["read a footprint, 12 months"]
    month = max(round(30 / survey.days_between), 1) * survey.detectors
    growth = [
        f"{name}: {statistics.median(last[name].ms[-month:]) / statistics.median(last[name].ms[:month]):.1f}"
        for name in (OURS, PEER)
    ]
    disk = [
        [when, f"{found[OURS] / 2**20:.1f}", f"{found[PEER] / 2**20:.1f}", f"{found[PEER] / found[OURS]:.1f}"]
        for when, found in zip(("before maintain", "after maintain"), sizes, strict=True)
        if found
    ]
    ours, peer = crowd.get(OURS, {}), crowd.get(PEER, {})
    many = [[op, common.digits(ours[op]), common.digits(peer[op]), f"{peer[op] / ours[op]:.1f}"] for op in ours]
    header = [OURS, PEER, "ratio"]
    parts = [
        f"# Detector-visits on {engine}",
        f"{survey.visits} visits of {survey.detectors} detectors at one field, {survey.days_between:g} days from each "
        f"to the next; the LSST's schema; a footprint has in the end {rows}. Both systems read the same rows at every "
        "visit.",
        "Milliseconds: median (least-largest).",
        common.table(["ms", *header], lines),
        f"The last month's reads took, against the first month's: {', '.join(growth)} times.",
        common.table(["client CPU, ms", *header], cpu),
    ]
    if any(last[OURS].nodes_ms):
        parts.append(common.table(["processor of all nodes, ms, mean", *header], list(_nodes_lines(results))))
    if maintenance is not None:
        parts.append(
            f"Maintenance of a day, of ours, ms: {common.spread(maintenance.ms)}; "
            f"client CPU {common.spread(maintenance.cpu_ms)}."
        )
    if disk:
        parts.append(common.table(["MiB on disk", *header], disk))
    if many:
        parts.append(common.table(["at once, median ms", *header], many))
    if adapter:
        header = ["without maintenance", OURS, ADAPTER, "times as long"]
        parts.append(common.table(header, list(_adapter_lines(adapter))))
    versions = common.versions("lsst-dax-apdb", "pyarrow", "pandas", "numpy")
    parts.append(f"{versions}, commit {common.commit()}.\n{common.hardware()}. Load average at the start {load:.1f}.")
    return "\n\n".join(parts) + "\n"


def _nodes_lines(results: Results) -> Iterator[list[str]]:
    """Lines of processor time: means, because the system counts it in steps of 10 ms."""
    for kind, found in results.items():
        ours, peer = (statistics.fmean(found[name].nodes_ms or [0.0]) for name in (OURS, PEER))
        if ours:
            yield [kind, common.digits(ours), common.digits(peer), f"{peer / ours:.1f}"]


def _adapter_lines(results: Results) -> Iterator[list[str]]:
    for kind, found in results.items():
        for what in ("ms", "cpu_ms"):
            own, other = (getattr(found[name], what) for name in (OURS, ADAPTER))
            ratio = statistics.median(other) / statistics.median(own)
            label = f"{kind}, {'ms' if what == 'ms' else 'client CPU, ms'}"
            yield [label, common.spread(own), common.spread(other), f"{ratio:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--visits", type=int, default=60)
    parser.add_argument("--detectors", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=5, help="number of final reads of each footprint")
    parser.add_argument("--no-maintenance", action="store_true", help="do not maintain Chronotile after each night")
    parser.add_argument("--writers", type=int, default=0, help="number of concurrent writers at the end")
    parser.add_argument("--adapter", action="store_true", help="also measure Chronotile's adapter to lsst.dax.apdb")
    parser.add_argument("--cluster", action="store_true", help="start three nodes with chronotile lab")
    parser.add_argument("--url", help="cassandra:// URL of a running cluster")
    parser.add_argument("--warm-up", type=float, default=180, help="seconds of warm-up of new nodes")
    parser.add_argument("--quick", action="store_true", help="6 visits: a check that it works; figures are meaningless")
    parser.add_argument("--keep", type=Path, help="keep the files in this new folder")
    arguments = parser.parse_args()
    visits = 6 if arguments.quick else arguments.visits
    survey = Survey(visits, arguments.detectors, visits, max(360 / visits, 1.0))
    load = common.load_average()
    with places(arguments) as place:
        engine = "SQLite" if place.hosts is None else "a cluster of three nodes, RF 3, QUORUM"
        maintenance = None if arguments.no_maintenance else Samples()
        if arguments.cluster:
            common.say(f"warming up for {arguments.warm_up:g} s, until the nodes have compiled their code")
            warm_up(place, arguments.warm_up)
        results, before, after, rows = fill_and_read(place, survey, arguments.repeat, maintenance)
        crowd = {}
        if arguments.writers:
            smaller = Survey(min(visits, 12), arguments.writers, min(visits, 12), 30.0, seed=2)
            crowd = at_once(place, smaller, arguments.writers, 2)
        adapter = through_adapter(place, survey) if arguments.adapter else {}
        text = report(survey, engine, results, [before, after], rows, crowd, load, maintenance, adapter)
    print(text)
    common.RESULTS.mkdir(exist_ok=True)
    name = "apdb" if place.hosts is None else "apdb_cluster"
    (common.RESULTS / f"{name}.md").write_text(text)
    samples = {kind: {system: vars(each) for system, each in found.items()} for kind, found in results.items()}
    samples |= {
        f"{kind}, adapter": {name: vars(each) for name, each in found.items()} for kind, found in adapter.items()
    }
    record = {"hardware": common.hardware(), "survey": vars(survey), "samples": samples, "bytes": [before, after]}
    (common.RESULTS / f"{name}.json").write_text(json.dumps({**record, "at_once_ms": crowd}, indent=1) + "\n")
    common.say(f"wrote {common.RESULTS}/{name}.md and {name}.json")


if __name__ == "__main__":
    main()
