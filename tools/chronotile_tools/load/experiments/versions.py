"""Two versions of Cassandra side by side."""

from __future__ import annotations

import functools
import re
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from chronotile_tools import lab, published
from chronotile_tools.load.arms import Arm, Runs, interleaved, run_arms
from chronotile_tools.load.experiments.base import Bench, Harness
from chronotile_tools.load.generator import Stream
from chronotile_tools.load.schedule import Schedule
from chronotile_tools.load.targets import History, Ranges, Writes

__all__ = ["MAINTENANCE", "Compared", "Load", "measure", "read_histograms", "run"]

MAINTENANCE = {
    "repair": ("repair", "-full", "bench"),
    "compact": ("compact", "bench"),
    "garbagecollect": ("garbagecollect", "bench"),
}
"""Maintenance commands, by the names of their published figures."""

_DAYS_OF_RUNS = 60
"""Days after the history for the runs, each of which writes to its own day; more than the runs of an experiment."""
SPECULATION = "?speculative_retry=99percentile"
"""The default setting in the syntax of 3.11."""


@dataclass(frozen=True)
class Load:
    """Load of :func:`measure`.

    Attributes
    ----------
    versions : tuple of str
        The two versions.
    nodes : int
        Nodes of each cluster.
    seconds : float
        Length of a run.
    tags, days, step_s, decimals : int
        The history, see :class:`~chronotile_tools.load.targets.History`.
    rounds : int
        Rounds of maintenance.
    days_a_round : int
        Days of values stored before each round, so that maintenance has new data.
    rate : float
        Reads per second, each of one day, and writes per second, each a batch of 200 values.
    warm_up : int
        Unmeasured runs on each cluster before the others, so that its nodes have compiled their code.
    """

    versions: tuple[str, str]
    nodes: int
    seconds: float
    tags: int
    days: int
    step_s: int
    rounds: int
    decimals: int = 2
    days_a_round: int = 0
    rate: float = 10.0
    warm_up: int = 0


@dataclass(frozen=True)
class Compared:
    """Figures of two versions, by their full names: clients' runs, the histograms of the most used table on the first
    node, and seconds of each maintenance command on the first node, including a no-op command.
    """

    names: list[str]
    runs: Runs
    histograms: dict[str, list[dict[str, float]]]
    maintenance_s: dict[str, dict[str, list[float]]]


def measure(harness: Harness, load: Load) -> Compared:
    """Put the same load on two clusters in turns, then measure maintenance of each."""
    names = [f"Cassandra {lab.versions.release(version).version}" for version in load.versions]
    with ExitStack() as stack:
        clusters = {
            name: stack.enter_context(harness.cluster(load.nodes, version=version))
            for name, version in zip(names, load.versions, strict=True)
        }
        history = {
            name: History(cluster.url("bench") + SPECULATION, load.tags, load.days, load.step_s, load.decimals)
            for name, cluster in clusters.items()
        }
        for each in history.values():
            harness.echo(f"storing {each.values:,} values")
            each.store()
        fresh = iter(range(10**6))

        def streams(name: str, number: int) -> Sequence[Stream]:
            seed = harness.settings.seed + number
            asked = Schedule.poisson(load.rate, load.seconds, warm_up_s=0.5, seed=seed)
            given = Schedule.fixed(load.rate, load.seconds, warm_up_s=0.5)
            where = history[name]
            return [
                Stream("read", Ranges(where.url, where, days=1), asked, clients=8),
                Stream("write", Writes(where.url, where, 200, run=next(fresh)), given, clients=8),
            ]

        arms = [Arm(name, functools.partial(streams, name), server=name) for name in names]
        runs = run_arms(harness.generator, arms, warm_up=load.warm_up, done=harness.keep)
        histograms = {name: [_table_histograms(node) for node in cluster.nodes] for name, cluster in clusters.items()}
        return Compared(names, runs, histograms, _time_maintenance(harness, clusters, history, load))


def run(bench: Bench) -> None:
    """Two versions under the same load: clients' times, table histograms, repair, compaction, garbage collection."""
    quick = bench.settings.quick
    load = Load(
        bench.settings.versions, nodes=2 if quick else 3, seconds=bench.seconds(2, 30), tags=20,
        days=3 if quick else 10, step_s=10, rounds=2 if quick else 4, warm_up=0 if quick else 4,
    )  # fmt: skip
    for version in load.versions:
        lab.versions.release(version)  # an unknown one fails before anything is measured
    bench.measure_harness(load.rate * 2, clients=8)
    found = measure(bench, load)
    # As seen by the clients.
    bench.show_latencies("Reads of a day of a tag, writes of 200 values", found.runs, found.names)
    bench.show_comparisons(found.runs, found.names)
    first = {name: histograms[0] for name, histograms in found.histograms.items()}
    _show(bench, found.names, first, found.maintenance_s)


def _time_maintenance(
    harness: Harness, clusters: dict[str, lab.Cluster], history: dict[str, History], load: Load
) -> dict[str, dict[str, list[float]]]:
    """Seconds of maintenance on the first node, interleaved; a no-op command is measured for reference."""
    found: dict[str, dict[str, list[float]]] = {name: {} for name in clusters}
    for number, name in interleaved(list(clusters), load.rounds):
        node = clusters[name].nodes[0]
        first = load.days + _DAYS_OF_RUNS + number * load.days_a_round
        history[name].extend(range(first, first + load.days_a_round))
        for what, command in {"no-op": ("version",), **MAINTENANCE}.items():
            began = time.perf_counter()
            node.nodetool(*command)
            found[name].setdefault(what, []).append(time.perf_counter() - began)
        harness.echo(f"{name}: " + ", ".join(f"{what} {took[-1]:.1f} s" for what, took in found[name].items()))
    return found


def _table_histograms(node: lab.Node) -> dict[str, float]:
    """Histograms of the most used table on a node."""
    with node.connect() as connection:
        tables = [row[1] for row in connection.select("keyspace_name, table_name", "system_schema.tables") if
                  row[0] == "bench"]  # fmt: skip
    every = [read_histograms(node.nodetool("tablehistograms", "bench", table)) for table in tables]
    return max(every, key=lambda each: each.get("Partition Size 50%", 0.0) * each.get("Read Latency 50%", 0.0))


def read_histograms(text: str) -> dict[str, float]:
    """Figures of ``nodetool tablehistograms`` by column and row: ``{"Read Latency 95%": 654.9}``; microseconds, bytes.

    The order of columns differs between releases.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    header = next((line for line in lines if line.startswith("Percentile")), None)
    if header is None:
        return {}
    columns = re.split(r"\s{2,}", header.strip())[1:]
    return dict(_cells(columns, lines))


def _cells(columns: Sequence[str], lines: Sequence[str]) -> Iterator[tuple[str, float]]:
    for line in lines:
        words = line.split()
        if re.fullmatch(r"\d+%|Min|Max", words[0]) and len(words) == len(columns) + 1:
            for column, word in zip(columns, words[1:], strict=True):
                if re.fullmatch(r"-?[\d.]+", word):
                    yield f"{column} {words[0]}", float(word)


def _show(
    bench: Bench, names: Sequence[str], histograms: dict[str, dict[str, float]], maintenance: dict[str, Any]
) -> None:  # fmt: skip
    then = published.VERSIONS
    rows = []
    for label, key, scale in (
        ("read p50, ms", "Read Latency 50%", 1e3), ("read p95, ms", "Read Latency 95%", 1e3),
        ("read p99, ms", "Read Latency 99%", 1e3), ("write p99, us", "Write Latency 99%", 1.0),
    ):  # fmt: skip
        cells = [f"{histograms[name][key] / scale:.2f}" if key in histograms[name] else "" for name in names]
        rows.append([label, *(f"{value:g}" for value in then[label]), *cells])
    for what in MAINTENANCE:
        label = f"{what}, s"
        own = [
            statistics.median(maintenance[name][what]) - statistics.median(maintenance[name]["no-op"]) for name in names
        ]
        rows.append([label, *(f"{value:g}" for value in then[label]), *(f"{max(seconds, 0):.2f}" for seconds in own)])
    words = (
        "Latencies are those that the table reports on the first node. Seconds of maintenance are medians of "
        "interleaved rounds, minus those of a no-op nodetool command. Published: 3.11 and a beta of 4.0 on separate "
        "machines, after 90 minutes of 3 million rows per hour."
    )
    header = ["", "published 3.11", "published 4.0", *names]
    bench.report.table("Figures of the nodes, and published figures", words, header, rows)
    bench.results["histograms"] = histograms
    bench.results["maintenance_s"] = maintenance
