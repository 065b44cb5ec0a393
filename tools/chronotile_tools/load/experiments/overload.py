"""Effect of a CPU-starved node on its own clients and on those of other nodes."""

from __future__ import annotations

import functools
import itertools
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from chronotile_tools import lab, published
from chronotile_tools.lab.processes import Process
from chronotile_tools.load.arms import Arm, Run, Runs, run_arms
from chronotile_tools.load.experiments.base import Bench, Harness, archive_url, timeouts
from chronotile_tools.load.experiments.reads import Load
from chronotile_tools.load.generator import Stream
from chronotile_tools.load.recording import FAILED, TIMED_OUT, merged
from chronotile_tools.load.schedule import Schedule
from chronotile_tools.load.targets import History, Ranges, Writes

__all__ = ["ARMS", "NODES", "TAKEN", "CpuThrottle", "Starved", "measure", "run"]

NODES, CLIENTS = 3, 40
ARMS = ("none", "one node", "two nodes", "three nodes")
"""Names of the arms, by the number of starved nodes."""
VALUES_A_BATCH = 100
TAKEN = 0.8
PERIOD_S = 0.02


class CpuThrottle:
    """Starves processes of CPU time: suspends each for most of every 20 ms.

    This emulates other work on a node's machine; real work would affect all nodes, because they share one machine. As a
    context manager, it resumes all processes at the end.
    """

    def __init__(self, share: float = TAKEN) -> None:
        self._share = share
        self._chosen: list[Process] = []
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def choose(self, processes: Sequence[Process]) -> None:
        """Starve exactly these processes from now on."""
        with self._lock:
            self._chosen = list(processes)

    def _work(self) -> None:
        while not self._ended.is_set():
            with self._lock:
                chosen = self._chosen
                # Hold the lock meanwhile, so that a node that is no longer chosen is not left suspended.
                for process in chosen:
                    process.signal(signal.SIGSTOP)
                try:
                    time.sleep(PERIOD_S * self._share if chosen else 0)
                finally:
                    for process in chosen:
                        process.signal(signal.SIGCONT)
            time.sleep(PERIOD_S * (1 - self._share))


@dataclass(frozen=True)
class Starved:
    """Runs by arm, with a stream for the reads at each node (``node1``) and, if values are written, one for the writes
    at it (``node1 write``); and internode requests that timed out by arm, if they are counted.
    """

    runs: Runs
    timeouts: dict[str, int]


def measure(harness: Harness, load: Load) -> Starved:
    """Measure reads and optional writes at each of three nodes while none to three of them are starved."""
    late: dict[str, int] = {}
    # One rack per node: clients of a rack connect to its node.
    with harness.cluster(NODES, racks=NODES) as cluster, CpuThrottle() as throttle:
        history = History(cluster.url("bench"), tags=20, days=4, step_s=10)
        harness.echo(f"storing {history.values:,} values")
        history.store()
        fresh = itertools.count()
        seen = timeouts(cluster.nodes) if load.count_timeouts else 0

        def streams(number: int) -> Sequence[Stream]:
            made = []
            for place, node in enumerate(cluster.nodes):
                url, seed = _through(cluster, node), harness.settings.seed + number * NODES + place
                asked = Schedule.poisson(load.rate, load.seconds, warm_up_s=0.5, seed=seed)
                ranges = Ranges(url, history, days=1, growing=True)
                made.append(Stream(node.name, ranges, asked, clients=CLIENTS // NODES))
                if load.written:
                    given = Schedule.fixed(load.written / NODES / VALUES_A_BATCH, load.seconds, warm_up_s=0.5)
                    target = Writes(url, history, VALUES_A_BATCH, next(fresh))
                    made.append(Stream(f"{node.name} write", target, given, clients=CLIENTS // NODES))
            return made

        def done(arm: str, number: int, run: Run) -> None:
            nonlocal seen
            if load.count_timeouts:
                throttle.choose([])
                before, seen = seen, timeouts(cluster.nodes)
                late[arm] = late.get(arm, 0) + seen - before
            harness.keep(arm, number, run)

        processes = [process for node in cluster.nodes if (process := node.state.process) is not None]
        arms = [
            Arm(name, streams, functools.partial(throttle.choose, processes[:count])) for count, name in enumerate(ARMS)
        ]
        runs = run_arms(harness.generator, arms, done=done)
    return Starved(runs, late)


def run(bench: Bench) -> None:
    """Reads of up to a day at each of three nodes while one, two and three of them get a fifth of their CPU time."""
    load = Load(rate=15.0 if bench.settings.quick else 30.0, seconds=bench.seconds(2, 20))
    bench.measure_harness(load.rate * NODES, CLIENTS)
    runs = measure(bench, load).runs
    bench.show_latencies("Reads of up to a day", runs, ARMS)
    bench.show_comparisons(runs, ARMS, whats=["mean"])
    _compare_with_published(bench, runs)


def _through(cluster: lab.Cluster, node: lab.Node) -> str:
    return archive_url(cluster, "bench", dc=node.dc, rack=node.rack, speculative_ms=0)


def _compare_with_published(bench: Bench, runs: Runs) -> None:
    rows = []
    for count, then in published.CPU_BURNT.items():
        found = runs[ARMS[count]]
        now = [
            merged(run[f"node{node}"].histogram() for run in found).get_mean_value() / 1e3
            for node in range(1, NODES + 1)
        ]
        failed = sum(each.count(FAILED) + each.count(TIMED_OUT) for run in found for each in run.values())
        rows.append(
            [ARMS[count], " / ".join(f"{t:.0f}" for t in then), " / ".join(f"{t:.1f}" for t in now), str(failed)]
        )
        bench.results.setdefault("mean_ms", {})[ARMS[count]] = now
    words = (
        "Mean milliseconds of a read at node 1 / 2 / 3, by starved nodes. Published: other work kept the processors "
        f"busy. Here: a node is suspended for {TAKEN:.0%} of its time."
    )
    header = ["starved", "published", "here", "failed here"]
    bench.report.table("Comparison with published figures", words, header, rows)
