"""Two versions of Cassandra side by side."""

from __future__ import annotations

import functools
import re
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from chronotile_tools import lab, published
from chronotile_tools.load.arms import Arm, interleaved, run_arms
from chronotile_tools.load.experiments.base import Bench
from chronotile_tools.load.generator import Stream
from chronotile_tools.load.schedule import Schedule
from chronotile_tools.load.targets import History, Ranges, Writes

__all__ = ["read_histograms", "run"]

MAINTENANCE = {
    "repair": ("repair", "-full", "bench"),
    "compact": ("compact", "bench"),
    "garbagecollect": ("garbagecollect", "bench"),
}
"""Maintenance commands, by the names of the published figures."""

SPECULATION = "?speculative_retry=99percentile"
"""The default setting in the syntax of 3.11."""


def run(bench: Bench) -> None:
    """Two versions under the same load: clients' times, the tables' own histograms, repair, compaction, collection."""
    quick = bench.settings.quick
    seconds = bench.seconds(2, 30)
    first, second = bench.settings.versions
    names = [f"Cassandra {lab.versions.release(version).version}" for version in (first, second)]
    rate = 10.0
    bench.measure_harness(rate * 2, clients=8)
    with ExitStack() as stack:
        clusters = {
            name: stack.enter_context(bench.cluster(2 if quick else 3, version=version))
            for name, version in zip(names, (first, second), strict=True)
        }
        history = {
            name: History(cluster.url("bench") + SPECULATION, tags=20, days=3 if quick else 10, step_s=10)
            for name, cluster in clusters.items()
        }
        for each in history.values():
            bench.echo(f"storing {each.values:,} values")
            each.store()
        fresh = iter(range(10**6))

        def streams(name: str, number: int) -> Sequence[Stream]:
            seed = bench.settings.seed + number
            asked = Schedule.poisson(rate, seconds, warm_up_s=0.5, seed=seed)
            given = Schedule.fixed(rate, seconds, warm_up_s=0.5)
            where = history[name]
            return [
                Stream("read", Ranges(where.url, where, days=1), asked, clients=8),
                Stream("write", Writes(where.url, where, 200, run=next(fresh)), given, clients=8),
            ]

        arms = [Arm(name, functools.partial(streams, name)) for name in names]
        runs = run_arms(bench.generator, arms, done=bench.keep)
        # As seen by the clients.
        bench.show_latencies("Reads of a day of a tag, writes of 200 values", runs, names)
        bench.show_comparisons(runs, names)
        histograms = {name: _table_histograms(cluster) for name, cluster in clusters.items()}
        maintenance = _time_maintenance(bench, clusters, rounds=2 if quick else 4)
    _show(bench, names, histograms, maintenance)


def _time_maintenance(bench: Bench, clusters: dict[str, lab.Cluster], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Seconds of maintenance on the first node, interleaved; a no-op command is measured for reference."""
    found: dict[str, dict[str, list[float]]] = {name: {} for name in clusters}
    for _, name in interleaved(list(clusters), rounds):
        node = clusters[name].nodes[0]
        for what, command in {"no-op": ("version",), **MAINTENANCE}.items():
            began = time.perf_counter()
            node.nodetool(*command)
            found[name].setdefault(what, []).append(time.perf_counter() - began)
        bench.echo(f"{name}: " + ", ".join(f"{what} {took[-1]:.1f} s" for what, took in found[name].items()))
    return found


def _table_histograms(cluster: lab.Cluster) -> dict[str, float]:
    """Histograms of the most used table on the first node."""
    node = cluster.nodes[0]
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
        "Latencies are the table's own, inside the first node. Seconds of maintenance are medians of rounds in turns, "
        "less what nodetool takes to do nothing. Published: 3.11 and a beta of 4.0 on machines of their own, 90 "
        "minutes of 3 million rows an hour."
    )
    header = ["", "published 3.11", "published 4.0", *names]
    bench.report.table("Inside the nodes, beside the published", words, header, rows)
    bench.results["histograms"] = histograms
    bench.results["maintenance_s"] = maintenance
