"""Length of reads at which a cluster becomes overloaded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from chronotile_tools import lab, published
from chronotile_tools.load import page
from chronotile_tools.load.arms import Run
from chronotile_tools.load.experiments.base import (
    LATENCY_HEADER,
    Bench,
    Harness,
    latency_cells,
    mean_interval,
    timeouts,
)
from chronotile_tools.load.generator import Stream
from chronotile_tools.load.recording import FAILED, TIMED_OUT, UNSERVED, Recording
from chronotile_tools.load.schedule import Schedule
from chronotile_tools.load.targets import History, Ranges, Writes

__all__ = ["Load", "Step", "measure_step", "overloaded", "ramp", "run"]

CLIENTS = 20
VALUES_A_BATCH = 100
DAYS = (0.1, 0.3, 1.0, 3.0, 10.0)
DOUBLINGS_MAX = 8


@dataclass(frozen=True)
class Load:
    """Load of :func:`ramp` and of :func:`overload.measure`.

    Attributes
    ----------
    rate : float
        Reads per second in the first steps; or at each node.
    seconds : float
        Length of a step or run.
    written : float
        Values written per second during the reads; 0 for none.
    count_timeouts : bool
        Whether to count internode requests that timed out, which takes seconds per step or run.
    """

    rate: float
    seconds: float
    written: float = 0.0
    count_timeouts: bool = False


@dataclass(frozen=True)
class Step:
    """A step of a ramp: length and rate of its reads, its run, and the internode messages that failed, which are
    unknown for an external cluster.
    """

    days: float
    rate: float
    run: Run
    dropped: int | None
    timeouts: int | None

    @property
    def name(self) -> str:
        """For example ``3 days, 40 a second``."""
        return f"{self.days:g} days, {self.rate:g} a second"

    @property
    def reads(self) -> Recording:
        """The reads."""
        return self.run["read"]


def ramp(
    harness: Harness, cluster: lab.Cluster | None, history: History, load: Load, fresh: Iterator[int], number: int = 0
) -> Iterator[Step]:
    """Increase the length of reads from 0.1 to 10 days, then their rate, until the cluster falls behind.

    Parameters
    ----------
    cluster : Cluster, optional
        The laboratory cluster; None for an external one.
    fresh : iterator of int
        Unused run numbers for writes.
    number : int
        Number of the ramp; determines its seed.
    """
    counts = [(days, 1) for days in DAYS] + [(DAYS[-1], 2**k) for k in range(1, DOUBLINGS_MAX + 1)]
    for days, times in counts:
        step = measure_step(harness, cluster, history, load, days, load.rate * times, fresh, number)
        yield step
        if overloaded(step.reads):
            return


def measure_step(
    harness: Harness, cluster: lab.Cluster | None, history: History, load: Load, days: float, rate: float,
    fresh: Iterator[int], number: int = 0,
) -> Step:  # fmt: skip
    """Measure one step of a ramp."""
    counted = cluster if load.count_timeouts else None
    before, late = _dropped(cluster), _timeouts(counted)
    schedule = Schedule.poisson(rate, load.seconds, warm_up_s=0.5, seed=harness.settings.seed + number)
    streams = [Stream("read", Ranges(history.url, history, days), schedule, CLIENTS)]
    if load.written:
        given = Schedule.fixed(load.written / VALUES_A_BATCH, load.seconds, warm_up_s=0.5)
        streams.append(Stream("write", Writes(history.url, history, VALUES_A_BATCH, next(fresh)), given, CLIENTS))
    run = harness.generator.run(streams, drain_s=load.seconds)
    dropped, timed_out = _since(before, _dropped(cluster)), _since(late, _timeouts(counted))
    step = Step(days, rate, run, dropped, timed_out)
    harness.keep(step.name, number, run)
    return step


def run(bench: Bench) -> None:
    """Reads by 20 clients, of 0.1 to 10 days, then at increasing rate, until the cluster falls behind."""
    quick = bench.settings.quick
    load = Load(rate=20.0 if quick else 40.0, seconds=bench.seconds(4, 30))
    bench.measure_harness(load.rate, CLIENTS)
    with bench.url(nodes=3) as (url, cluster):
        history = History(url, tags=20 if quick else 100, days=11, step_s=5 if quick else 1)
        bench.echo(f"storing {history.values:,} values")
        history.store()
        steps = list(ramp(bench, cluster, history, load, iter(())))
    _show(bench, steps)


def overloaded(found: Recording) -> bool:
    """Whether operations failed, or the cluster fell behind."""
    return found.saturated or found.count(TIMED_OUT) + found.count(FAILED) + found.count(UNSERVED) > 0


def _since(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else after - before


def _timeouts(cluster: lab.Cluster | None) -> int | None:
    return None if cluster is None else timeouts(cluster.nodes)


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


def _show(bench: Bench, steps: Sequence[Step]) -> None:
    rows = [
        [step.name, *latency_cells([step.reads])[:-1], mean_interval(step.reads),
         "" if step.dropped is None else f"{step.dropped:,}", "overloaded" if overloaded(step.reads) else ""]
        for step in steps
    ]  # fmt: skip
    words = (
        f"{CLIENTS} clients, one run per step, from the shortest reads on. The interval of the mean accounts for the "
        "correlation of neighbours in time. Dropped: internode messages that arrived too late. Published: "
        f"{published.GROWING}."
    )
    header = [*LATENCY_HEADER[:-1], "mean, 95 %", "dropped", ""]
    bench.report.table("Growing reads", words, header, rows)
    took = [step.reads.latency() for step in steps]
    places = list(range(1, len(steps) + 1))
    series = {
        "p50": (places, [each.p50 for each in took]),
        "p99": (places, [each.p99 for each in took]),
        "worst": (places, [each.max for each in took]),
    }
    drawing = page.lines("Growing reads", "step, as in the table", "milliseconds", series)
    bench.report.drawing("Response time by step", "One run per step.", drawing)
    bench.results["steps"] = {
        step.name: {"p50_ms": each.p50, "p99_ms": each.p99, "saturated": step.reads.saturated}
        for step, each in zip(steps, took, strict=True)
    }
