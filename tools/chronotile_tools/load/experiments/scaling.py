"""Scaling of alert production database reads with nodes and replicas, as input for capacity plans."""

from __future__ import annotations

import functools
import os
import statistics
from dataclasses import asdict, dataclass, field

from chronotile import apdb
from chronotile.apdb import Layout
from chronotile_tools import lab, published
from chronotile_tools.load.arms import RUNS_MIN, Arm, Run, Runs, run_arms
from chronotile_tools.load.experiments.base import (
    HEMISPHERE_VISITS,
    Bench,
    StoreCost,
    archive_url,
    cpu_s,
    disk_bytes,
    load_survey,
)
from chronotile_tools.load.generator import Stream
from chronotile_tools.load.page import duration
from chronotile_tools.load.planner import Measured
from chronotile_tools.load.recording import DONE, merged
from chronotile_tools.load.schedule import Schedule
from chronotile_tools.load.targets import Footprints
from chronotile_tools.survey.simulate.universe import Survey

__all__ = ["run"]

CLIENTS = 8
BACKLOG = 5_000
READS_ALONE = 20
LEVELS = {1: "ONE", 3: "QUORUM"}


@dataclass
class _Setup:
    """A number of nodes and a replication factor, and what was measured with them."""

    nodes: int
    copies: int
    stored: StoreCost
    read_cpu_s: list[float] = field(default_factory=list)
    alone_s: float = 0.0
    bytes: int = 0
    partition_bytes: int = 0
    runs: list[Run] = field(default_factory=list)

    @property
    def name(self) -> str:
        return f"{self.nodes} node{'s' if self.nodes > 1 else ''}, RF {self.copies}"

    @property
    def per_second(self) -> float:
        return statistics.median(run["read"].per_second for run in self.runs)


def run(bench: Bench) -> None:
    """Reads of a detector's footprint over twelve months by number of nodes and copies, for `chronotile bench plan`."""
    quick = bench.settings.quick
    survey = Survey(visits=24 if quick else 120, detectors=1 if quick else 4, nights=24 if quick else 60,
                    days_between=15.0 if quick else 6.0, seed=bench.settings.seed)  # fmt: skip
    bench.measure_harness(50.0, CLIENTS)
    setups: list[_Setup] = []
    for nodes in (1, 3) if quick else (1, 2, 3, 4):
        with bench.cluster(nodes) as cluster:
            setups += _measure(bench, cluster, survey)
    _show(bench, survey, setups)


def _measure(bench: Bench, cluster: lab.Cluster, survey: Survey) -> list[_Setup]:
    copies = [count for count in LEVELS if count <= len(cluster.nodes)]
    urls = {
        f"rf{count}": archive_url(cluster, f"rf{count}", replication=count, consistency=LEVELS[count])
        for count in copies
    }  # fmt: skip
    bench.echo(f"storing {survey.visits * survey.detectors} detector-visits in {len(urls)} databases")
    schema = "small" if bench.settings.quick else "lsst"
    stored = load_survey(urls, survey, dict.fromkeys(urls, _layout()), cluster.nodes, schema)
    setups = {name: _Setup(len(cluster.nodes), int(name[2:]), each) for name, each in stored.items()}
    seconds = bench.seconds(1.5, 20)
    spent = 0.0

    def begin() -> None:
        nonlocal spent
        spent = cpu_s(cluster.nodes)

    def ended(arm: str, number: int, made: Run) -> None:
        done = made["read"].count(DONE)
        if arm in setups:
            setups[arm].read_cpu_s.append((cpu_s(cluster.nodes) - spent) / max(done, 1))
            setups[arm].runs.append(made)
        bench.keep(f"{len(cluster.nodes)} nodes, {arm}", number, made)

    def streams(url: str, clients: int, reads: int, number: int) -> list[Stream]:
        return [Stream("read", Footprints(url, survey), Schedule.backlog(reads), clients)]

    arms = [Arm(name, functools.partial(streams, url, CLIENTS, BACKLOG), begin) for name, url in urls.items()]
    runs: Runs = run_arms(bench.generator, arms, RUNS_MIN, drain_s=seconds, done=ended)
    if len(arms) > 1:
        bench.show_comparisons(
            runs, list(urls), title=f"Service times, {len(cluster.nodes)} nodes", whats=["mean", 50.0], part="service"
        )
    for name, url in urls.items():
        alone = bench.generator.run(streams(url, 1, READS_ALONE, 0), drain_s=600)["read"]
        bench.keep(f"{len(cluster.nodes)} nodes, {name}, alone", 0, {"read": alone})
        setups[name].alone_s = alone.latency("service").p50 / 1e3
        setups[name].bytes = disk_bytes(cluster, name)
        with apdb.open(url, read_only=True) as database:
            slices = [part for each in database.info().values() for part in each.slices]
        setups[name].partition_bytes = max(part.cell_bytes_max for part in slices)
    return list(setups.values())


def _layout() -> Layout:
    return Layout(window="30d", slice="360d")


def measured(survey: Survey, setup: _Setup) -> Measured:
    """Measures for a plan, in which a node has all processors of this machine."""
    cores = os.cpu_count() or 1
    stores = len(setup.stored.seconds)
    return Measured(
        visits=survey.visits * HEMISPHERE_VISITS,
        read_node_s=max(statistics.median(setup.read_cpu_s) / cores, 1e-6),
        store_node_s=setup.stored.cpu_s / stores / cores,
        read_alone_s=setup.alone_s,
        store_rows=setup.stored.rows / stores,
        bytes_per_row=setup.bytes / setup.stored.rows / setup.copies,
        partition_bytes=setup.partition_bytes,
        replication=setup.copies,
        consistency=LEVELS[setup.copies],
    )


def _show(bench: Bench, survey: Survey, setups: list[_Setup]) -> None:
    rows = []
    for setup in setups:
        found = measured(survey, setup)
        service = merged(run["read"].histogram("service") for run in setup.runs)
        rows.append(
            [setup.name, duration(setup.alone_s * 1e3), f"{setup.per_second:,.1f}",
             duration(service.get_value_at_percentile(99) / 1e3),
             duration(statistics.median(setup.read_cpu_s) * 1e3),
             duration(statistics.median(setup.stored.seconds) * 1e3),
             duration(setup.stored.cpu_s / len(setup.stored.seconds) * 1e3), f"{found.bytes_per_row:,.0f}"]
        )  # fmt: skip
        bench.results.setdefault("setups", {})[setup.name] = asdict(found) | {"per_second": setup.per_second}
    words = (
        f"Three tables of a footprint over twelve months, after {survey.visits} visits of one field, which represent "
        f"{survey.visits * HEMISPHERE_VISITS:,.0f} visits of a hemisphere. Service time of a read without others; "
        f"throughput of {CLIENTS} clients that never wait, and their service time; processor time of all nodes for a "
        "read and for a store; bytes of a row on disk, in one copy."
    )
    header = ["", "read alone", "reads per second", "service p99", "nodes' processor", "store", "nodes' processor",
              "bytes per row"]  # fmt: skip
    bench.report.table("Reads by nodes and copies", words, header, rows)
    names = {setup.name: setup for setup in setups}
    one, three = names["3 nodes, RF 1"], names["3 nodes, RF 3"]
    then = published.FOOTPRINT_READS_180K["Cassandra, QUORUM", 3] / published.FOOTPRINT_READS_180K["Cassandra", 1]
    now = f"{one.per_second / three.per_second:.2f}" if three.per_second else "no read finished in time"
    rows = [["RF 3 by majority over RF 1, three nodes, under load", f"{then:.2f}", now]]
    words = "Ratio of times per read. Numbers of nodes cannot be compared, because nodes here share processors."
    bench.report.table("Comparison with published figures", words, ["", "published", "here"], rows)
    bench.results["measured"] = asdict(measured(survey, three))
    bench.report.notes.append(
        f"`chronotile bench plan` reads results.json: the costs with three nodes and three copies, for nodes with all "
        f"{os.cpu_count()} processors of this machine."
    )
