"""Three ways to partition time, on the same survey."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Sequence

from chronotile import apdb
from chronotile.apdb import Layout
from chronotile_tools.load.arms import Arm, Run, run_arms
from chronotile_tools.load.experiments.base import Bench, archive_url, cpu_s, disk_bytes, load_survey
from chronotile_tools.load.generator import Stream
from chronotile_tools.load.page import duration
from chronotile_tools.load.recording import DONE
from chronotile_tools.load.schedule import Schedule
from chronotile_tools.load.targets import Footprints
from chronotile_tools.survey.simulate.universe import Survey

__all__ = ["run"]

CLIENTS = 4
LAYOUTS = {
    "months": Layout(window="30d", slice="30d", object_window="30d", object_slice="30d"),
    "months_in_a_year": Layout(window="30d", slice="360d", object_window="30d", object_slice="360d"),
    "a_year": Layout(window="360d", slice="360d", object_window="360d", object_slice="360d"),
}
WORDS = {
    "months": "one table per month: twelve partitions per pixel, dropped month by month",
    "months_in_a_year": "one table per year, with months in order within a pixel's partition",
    "a_year": "one table per year, not divided further",
}


def run(bench: Bench) -> None:
    """Reads of twelve months' footprints with tables by month, with months within a year's partition, and by year."""
    quick = bench.settings.quick
    survey = Survey(visits=24 if quick else 120, detectors=1 if quick else 4, nights=24 if quick else 60,
                    days_between=15.0 if quick else 6.0, seed=bench.settings.seed)  # fmt: skip
    seconds = bench.seconds(1.5, 20)
    rate = 8.0
    bench.measure_harness(rate, CLIENTS)
    with bench.cluster(3) as cluster:
        urls = {name: archive_url(cluster, name) for name in LAYOUTS}
        bench.echo(f"storing {survey.visits * survey.detectors} detector-visits in three layouts")
        stored = load_survey(urls, survey, LAYOUTS, cluster.nodes, "small" if quick else "lsst")

        def streams(url: str, number: int) -> Sequence[Stream]:
            schedule = Schedule.poisson(rate, seconds, warm_up_s=0.5, seed=bench.settings.seed + number)
            return [Stream("read", Footprints(url, survey), schedule, CLIENTS)]

        spent: list[float] = []
        cpu: dict[str, list[float]] = {name: [] for name in LAYOUTS}

        def ended(arm: str, number: int, made: Run) -> None:
            if arm in cpu:
                cpu[arm].append((cpu_s(cluster.nodes) - spent[-1]) / max(made["read"].count(DONE), 1))
            bench.keep(arm, number, made)

        before = lambda: spent.append(cpu_s(cluster.nodes))  # noqa: E731
        arms = [Arm(name, functools.partial(streams, url), before) for name, url in urls.items()]
        runs = run_arms(bench.generator, arms, done=ended)
        rows = []
        for name, url in urls.items():
            with apdb.open(url, read_only=True) as database:
                slices = [part for each in database.info().values() for part in each.slices]
            per_row = disk_bytes(cluster, name) / stored[name].rows / 3
            largest = max(part.cell_bytes_max for part in slices)
            rows.append(
                [name, duration(statistics.median(stored[name].seconds) * 1e3),
                 duration(stored[name].cpu_s / len(stored[name].seconds) * 1e3),
                 duration(statistics.median(cpu[name]) * 1e3), f"{per_row:,.0f}", str(len(slices)),
                 f"{largest / 1024:,.0f} KiB"]
            )  # fmt: skip
            bench.results.setdefault("layouts", {})[name] = {
                "store_s": statistics.median(stored[name].seconds), "read_cpu_s": statistics.median(cpu[name]),
                "bytes_per_row": per_row, "tables": len(slices), "partition_bytes": largest,
            }  # fmt: skip
    names = list(LAYOUTS)
    bench.show_latencies("Reads of a footprint over twelve months", runs, names)
    bench.show_comparisons(runs, names)
    words = (
        "; ".join(f"{name}: {text}" for name, text in WORDS.items())
        + ". Replication factor 3, read and written at QUORUM. Processor time of a store and of a read is that of all "
        "nodes; at few reads per second, it includes the nodes' background work."
    )
    header = ["", "store", "store's processor", "read's processor", "bytes per row", "tables", "largest partition"]
    bench.report.table("Costs of each layout", words, header, rows)
