"""A node that is down while values are written, and the delivery of its hints."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass

from chronotile_tools import lab
from chronotile_tools.load.arms import Run, Runs
from chronotile_tools.load.experiments.base import Bench, Harness, await_hints, bean_value, hint_bytes
from chronotile_tools.load.generator import Stream
from chronotile_tools.load.page import duration
from chronotile_tools.load.schedule import Schedule
from chronotile_tools.load.simulation import hint_delivery_s
from chronotile_tools.load.targets import History, Ranges, Writes

__all__ = ["FLUSH_S", "PHASES", "Load", "Outage", "measure", "run"]

PHASES = ("all up", "one away", "returned")
FLUSH_S = 12.0
"""Seconds after which hints are in files: nodes flush them every ten seconds."""
_POLL_S = 0.1
VALUES_A_BATCH = 100


@dataclass(frozen=True)
class Load:
    """Load of :func:`measure`.

    Attributes
    ----------
    tags, days, step_s : int
        The history stored before the runs.
    written : float
        Values written per second.
    rate : float
        Reads per second, each of one day.
    seconds : float
        Length of the runs before and after each outage.
    away_s : tuple of float
        Lengths of the outages, one after the other. With two lengths, the speed of the delivery can be separated from
        the time until it begins.
    rounds : int
        Outages of each length.
    throttle_kib : int
        KiB per second of a delivery thread. Cassandra's default is 1,024; a lower value prolongs short deliveries, so
        that they can be measured.
    """

    tags: int
    days: int
    step_s: int
    written: float
    rate: float
    seconds: float
    away_s: tuple[float, ...]
    rounds: int
    throttle_kib: int = 256


@dataclass(frozen=True)
class Outage:
    """Measurements of one outage.

    Attributes
    ----------
    away_s : float
        Length of the run while the node was down.
    hints, bytes : int
        Hints written by the other nodes during the outage, and their bytes in files.
    start_s : float
        Seconds from the node's start until it served clients.
    delivery_s : float
        Seconds after that until all hints were delivered.
    """

    away_s: float
    hints: int
    bytes: int
    start_s: float
    delivery_s: float


def measure(harness: Harness, load: Load) -> tuple[Runs, list[Outage]]:
    """Measure outages of the third of three nodes: runs by phase (:data:`PHASES`), and figures of each outage."""
    runs: Runs = {phase: [] for phase in PHASES}
    outages = []
    with harness.cluster(3, settings={"hinted_handoff_throttle_in_kb": load.throttle_kib}) as cluster:
        history = History(cluster.url("bench"), load.tags, load.days, load.step_s)
        harness.echo(f"storing {history.values:,} values")
        history.store()
        fresh = itertools.count()

        def work(phase: str, number: int, seconds: float) -> Run:
            asked = Schedule.poisson(load.rate, seconds, warm_up_s=0.5, seed=harness.settings.seed + number)
            given = Schedule.fixed(load.written / VALUES_A_BATCH, seconds, warm_up_s=0.5)
            writes = Writes(history.url, history, VALUES_A_BATCH, next(fresh))
            made = harness.generator.run(
                [Stream("read", Ranges(history.url, history, 1), asked, 8), Stream("write", writes, given, 8)]
            )
            runs[phase].append(made)
            harness.keep(phase, number, made)
            return made

        others, last = cluster.nodes[:-1], cluster.nodes[-1]
        for number, away_s in enumerate(load.away_s * load.rounds):
            work(PHASES[0], number, load.seconds)
            before = sum(bean_value(node, "Storage", "TotalHints") for node in others)
            last.stop()
            work(PHASES[1], number, away_s)
            outages.append(_deliver(cluster, away_s, before))
            harness.echo(f"outage {number + 1}: {outages[-1]}")
            work(PHASES[2], number, load.seconds)
    return runs, outages


def _deliver(cluster: lab.Cluster, away_s: float, hints_before: int) -> Outage:
    others, last = cluster.nodes[:-1], cluster.nodes[-1]
    time.sleep(FLUSH_S)
    hints = sum(bean_value(node, "Storage", "TotalHints") for node in others) - hints_before
    kept = hint_bytes(cluster)
    began = time.monotonic()
    last.start(wait=False)
    while not last.serves():
        time.sleep(_POLL_S)
    served = time.monotonic()
    await_hints(cluster)
    ended = time.monotonic()
    cluster.wait_until_ready()
    return Outage(away_s, hints, kept, served - began, ended - served)


def expected_delivery_s(load: Load, missed_bytes: float) -> float:
    """Expected seconds of the delivery: hints arrive at twice the throttle."""
    return hint_delivery_s(missed_bytes, throttle_bytes_per_s=load.throttle_kib * 1_024)


def run(bench: Bench) -> None:
    """Reads and writes before, during and after an outage of one of three nodes, and the delivery of its hints."""
    quick = bench.settings.quick
    load = Load(
        tags=20, days=2, step_s=10, written=2_000.0 if quick else 5_000.0, rate=10.0, seconds=bench.seconds(2, 20),
        away_s=(bench.seconds(4, 10), bench.seconds(8, 40)), rounds=1 if quick else 3,
    )  # fmt: skip
    bench.measure_harness(load.rate + load.written / VALUES_A_BATCH, clients=16)
    runs, outages = measure(bench, load)
    bench.show_latencies("Reads of a day of a tag, writes of 100 values", runs, PHASES)
    rows = [
        [f"{each.away_s:g} s", f"{each.hints:,}", f"{each.bytes:,}", duration(each.start_s * 1e3),
         duration(each.delivery_s * 1e3), duration(expected_delivery_s(load, each.bytes) * 1e3)]
        for each in outages
    ]  # fmt: skip
    words = (
        f"A node was down while {load.written:,.0f} values per second were written. The delivery time begins when the "
        f"node serves clients. Expected: hints arrive at twice the throttle of {load.throttle_kib} KiB per second; not "
        "included is that nodes look for hints to deliver only every ten seconds."
    )
    header = ["down", "hints", "bytes", "node served after", "hints delivered after", "expected"]
    bench.report.table("Hints", words, header, rows)
    bench.results["outages"] = [vars(each) for each in outages]
