"""Effect of a CPU-starved node on its own clients and on those of other nodes."""

from __future__ import annotations

import functools
import signal
import threading
import time
from collections.abc import Sequence
from typing import Self

from chronotile_tools import lab, published
from chronotile_tools.lab.processes import Process
from chronotile_tools.load.arms import Arm, Runs, run_arms
from chronotile_tools.load.experiments.base import Bench, archive_url
from chronotile_tools.load.generator import Stream
from chronotile_tools.load.recording import FAILED, TIMED_OUT, merged
from chronotile_tools.load.schedule import Schedule
from chronotile_tools.load.targets import History, Ranges

__all__ = ["CpuThrottle", "run"]

NODES, CLIENTS = 3, 40
TAKEN = 0.8
PERIOD_S = 0.02


class CpuThrottle:
    """Starves processes of CPU time: suspends each for most of every 20 ms.

    This emulates other work on a node's machine. Real work would affect all nodes, because they share one machine. As a
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
                # Hold the lock, so that a node that is no longer chosen is not left suspended.
                for process in chosen:
                    process.signal(signal.SIGSTOP)
                try:
                    time.sleep(PERIOD_S * self._share if chosen else 0)
                finally:
                    for process in chosen:
                        process.signal(signal.SIGCONT)
            time.sleep(PERIOD_S * (1 - self._share))


def run(bench: Bench) -> None:
    """Reads of up to a day at each of three nodes while one, two and three of them have a fifth of their time."""
    quick = bench.settings.quick
    seconds = bench.seconds(2, 20)
    rate = 15.0 if quick else 30.0
    bench.measure_harness(rate * NODES, CLIENTS)
    # One rack per node: clients of a rack connect to its node.
    with bench.cluster(NODES, racks=NODES) as cluster, CpuThrottle() as starver:
        history = History(cluster.url("bench"), tags=20, days=4, step_s=10)
        bench.echo(f"storing {history.values:,} values")
        history.store()

        def streams(number: int) -> Sequence[Stream]:
            return [
                Stream(
                    node.name,
                    Ranges(_through(cluster, node), history, days=1, growing=True),
                    Schedule.poisson(rate, seconds, warm_up_s=0.5, seed=bench.settings.seed + number * NODES + place),
                    clients=CLIENTS // NODES,
                )
                for place, node in enumerate(cluster.nodes)
            ]

        processes = [process for node in cluster.nodes if (process := node.state.process) is not None]
        arms = [
            Arm(_name(count), streams, functools.partial(starver.choose, processes[:count]))
            for count in range(NODES + 1)
        ]
        runs = run_arms(bench.generator, arms, done=bench.keep)
    names = [arm.name for arm in arms]
    bench.show_latencies("Reads of up to a day", runs, names)
    bench.show_comparisons(runs, names, whats=["mean"])
    _compare_with_published(bench, runs)


def _through(cluster: lab.Cluster, node: lab.Node) -> str:
    return archive_url(cluster, "bench", dc=node.dc, rack=node.rack, speculative_ms=0)


def _name(count: int) -> str:
    return ("none", "one node", "two nodes", "three nodes")[count]


def _compare_with_published(bench: Bench, runs: Runs) -> None:
    rows = []
    for count, then in published.CPU_BURNT.items():
        found = runs[_name(count)]
        now = [
            merged(run[f"node{node}"].histogram() for run in found).get_mean_value() / 1e3
            for node in range(1, NODES + 1)
        ]
        failed = sum(each.count(FAILED) + each.count(TIMED_OUT) for run in found for each in run.values())
        rows.append(
            [_name(count), " / ".join(f"{t:.0f}" for t in then), " / ".join(f"{t:.1f}" for t in now), str(failed)]
        )
        bench.results.setdefault("mean_ms", {})[_name(count)] = now
    words = (
        "Mean milliseconds of a read at node 1 / 2 / 3 by the nodes that were starved. There processors were burnt by "
        f"other work; here {TAKEN:.0%} of the node's time is taken by suspending its process."
    )
    bench.report.table("Beside the published", words, ["starved", "published", "here", "failed here"], rows)
