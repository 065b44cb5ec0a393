"""Length of reads at which a cluster becomes overloaded."""

from __future__ import annotations

import json
from collections.abc import Sequence

from chronotile_tools import lab, published
from chronotile_tools.load import page
from chronotile_tools.load.arms import Runs
from chronotile_tools.load.experiments.base import LATENCY_HEADER, Bench, latency_cells, mean_interval
from chronotile_tools.load.generator import Stream
from chronotile_tools.load.recording import FAILED, TIMED_OUT, UNSERVED, Recording
from chronotile_tools.load.schedule import Schedule
from chronotile_tools.load.targets import History, Ranges

__all__ = ["run"]

CLIENTS = 20
DAYS = (0.1, 0.3, 1.0, 3.0, 10.0)
DOUBLINGS_MAX = 8


def run(bench: Bench) -> None:
    """Reads that grow from 0.1 to 10 days by 20 clients, then more of them, until the cluster falls behind."""
    quick = bench.settings.quick
    seconds = bench.seconds(4, 30)
    rate = 20.0 if quick else 40.0
    bench.measure_harness(rate, CLIENTS)
    with bench.url(nodes=3) as (url, cluster):
        history = History(url, tags=20 if quick else 100, days=11, step_s=5 if quick else 1)
        bench.echo(f"storing {history.values:,} values")
        history.store()
        runs: Runs = {}
        dropped: dict[str, int | None] = {}
        for days, times in [*((days, 1) for days in DAYS), *((DAYS[-1], 2**k) for k in range(1, DOUBLINGS_MAX + 1))]:
            name = f"{days:g} days, {rate * times:g} a second"
            before = _dropped(cluster)
            schedule = Schedule.poisson(rate * times, seconds, warm_up_s=0.5, seed=bench.settings.seed)
            stream = Stream("read", Ranges(url, history, days), schedule, CLIENTS)
            found = bench.generator.run([stream], drain_s=seconds)
            bench.keep(name, 0, found)
            runs[name] = [found]
            after = _dropped(cluster)
            dropped[name] = None if before is None or after is None else after - before
            if _overloaded(found["read"]):
                break
    _show(bench, runs, dropped)


def _overloaded(found: Recording) -> bool:
    return found.saturated or found.count(TIMED_OUT) + found.count(FAILED) + found.count(UNSERVED) > 0


def _dropped(cluster: lab.Cluster | None) -> int | None:
    """Dropped internode messages so far; unknown for an external cluster."""
    if cluster is None:
        return None
    total = 0
    for node in cluster.nodes:
        total += sum(_numbers(json.loads(node.nodetool("tpstats", "-F", "json"))["DroppedMessage"]))
    return total


def _numbers(dropped: dict[str, object]) -> Sequence[int]:
    return [int(value) for value in dropped.values() if isinstance(value, int | str) and str(value).isdigit()]


def _show(bench: Bench, runs: Runs, dropped: dict[str, int | None]) -> None:
    rows = []
    for name, made in runs.items():
        found = made[0]["read"]
        late = dropped[name]
        rows.append(
            [name, *latency_cells([found])[:-1], mean_interval(found), "" if late is None else f"{late:,}",
             "overloaded" if _overloaded(found) else ""]
        )  # fmt: skip
    words = (
        f"{CLIENTS} clients, one run each, from the shortest reads on. The interval of the mean minds that neighbours "
        "in time depend on each other; dropped are messages between nodes that came too late. Published: "
        f"{published.GROWING}."
    )
    header = [*LATENCY_HEADER[:-1], "mean, 95 %", "dropped", ""]
    bench.report.table("Growing reads", words, header, rows)
    steps = [made[0]["read"].latency() for made in runs.values()]
    places = list(range(1, len(steps) + 1))
    series = {
        "p50": (places, [step.p50 for step in steps]),
        "p99": (places, [step.p99 for step in steps]),
        "worst": (places, [step.max for step in steps]),
    }
    drawing = page.lines("Growing reads", "step, as in the table", "milliseconds", series)
    bench.report.drawing("Response time by step", "One run a step.", drawing)
    bench.results["steps"] = {
        name: {"p50_ms": step.p50, "p99_ms": step.p99, "saturated": made[0]["read"].saturated}
        for (name, made), step in zip(runs.items(), steps, strict=True)
    }
