"""The published requests A to D on clusters of several sizes, with all nodes and with one down."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from chronotile_tools import lab, published
from chronotile_tools.load import page
from chronotile_tools.load.arms import interleaved
from chronotile_tools.load.experiments.base import (
    LATENCY_HEADER,
    Bench,
    Harness,
    archive_url,
    await_hints,
    latency_cells,
    mean_interval,
)
from chronotile_tools.load.generator import Stream
from chronotile_tools.load.recording import Recording
from chronotile_tools.load.schedule import Schedule
from chronotile_tools.load.targets import REQUESTS, Aggregates, History, Writes

__all__ = ["RateLoad", "rates", "run", "setup_name"]

CLIENTS = 4
BACKLOG = 20_000
VALUES_A_BATCH = 100

Found = dict[tuple[str, str], Recording]
Rates = dict[str, dict[str, list[float]]]


@dataclass(frozen=True)
class RateLoad:
    """Load of :func:`rates`.

    Attributes
    ----------
    nodes : tuple of int
        Number of nodes of each cluster; clusters of more than one are also measured with the last node down.
    tags, days, step_s : int
        The history: tags with a value every `step_s` seconds for a number of days.
    written : float
        Values written per second during the runs.
    seconds : float
        Length of a run.
    rounds : int
        Runs of each request in each set-up.
    """

    nodes: tuple[int, ...] = (1, 3, 4)
    tags: int = 10
    days: int = 30
    step_s: int = 1
    written: float = 5_000.0
    seconds: float = 2.0
    rounds: int = 5

    @property
    def setups(self) -> list[tuple[int, int]]:
        """Nodes and live nodes of each set-up, ordered so that passes forwards and backwards restart few nodes."""
        return [(nodes, live) for nodes in self.nodes for live in ((nodes,) if nodes == 1 else (nodes, nodes - 1))]


def run(bench: Bench) -> None:
    """Throughput of requests A to D while values are written, on one, three and four nodes, and with one down."""
    quick = bench.settings.quick
    written = 1_000.0 if quick else 5_000.0
    bench.measure_harness(50.0, CLIENTS)
    speeds: Found = {}
    latencies: Found = {}
    fresh = itertools.count()
    setups = []
    history = None
    for nodes in (1, 3) if quick else (1, 3, 4):
        with bench.cluster(nodes) as cluster:
            url = archive_url(cluster, "bench", consistency="ONE" if nodes == 1 else "QUORUM")
            history = History(url, tags=10 if quick else 50, days=30, step_s=10 if quick else 1)
            bench.echo(f"storing {history.values:,} values")
            history.store()
            for setup in _setups(cluster):
                setups.append(setup)
                _measure(bench, setup, history, written, fresh, speeds, latencies)
    assert history is not None
    _show(bench, setups, history, written, speeds, latencies)


def rates(harness: Harness, load: RateLoad) -> Rates:
    """Requests done per second by request and set-up, one figure per round.

    The clusters run side by side, and only one is under load at a time, so that set-ups are interleaved like arms.
    """
    found: Rates = {}
    fresh = itertools.count()
    with ExitStack() as stack:
        clusters = {nodes: stack.enter_context(harness.cluster(nodes)) for nodes in load.nodes}
        histories = {nodes: _history(cluster, load) for nodes, cluster in clusters.items()}
        for nodes, history in histories.items():
            harness.echo(f"storing {history.values:,} values on {nodes} nodes")
            history.store()
        setups = {setup_name(nodes, live): (nodes, live) for nodes, live in load.setups}
        for number, setup in interleaved(list(setups), load.rounds):
            nodes, live = setups[setup]
            _bring_to(clusters[nodes], live)
            # Caches are cold for the first requests of a set-up, so the order of requests is reversed each round.
            for name in list(_REQUESTS) if number % 2 == 0 else reversed(_REQUESTS):
                kind, points_only = _REQUESTS[name]
                done = _throughput(histories[nodes], kind, points_only, load.written, load.seconds, next(fresh))
                run = harness.generator.run(done, drain_s=0.0)
                harness.keep(f"{setup}, {name}, throughput", number, run)
                found.setdefault(name, {}).setdefault(setup, []).append(run["request"].per_second)
    return found


_REQUESTS = {
    f"{kind} from values" if points_only else kind: (kind, points_only)
    for kind in REQUESTS
    for points_only in (False, True)
}
"""Requests by name: answered from hourly statistics where they exist, or from values only."""


def _history(cluster: lab.Cluster, load: RateLoad) -> History:
    level = "ONE" if len(cluster.nodes) == 1 else "QUORUM"
    return History(archive_url(cluster, "bench", consistency=level), load.tags, load.days, load.step_s)


def _bring_to(cluster: lab.Cluster, live: int) -> None:
    """Stop or start the last node; after a start, wait until its hints are delivered."""
    last = cluster.nodes[-1]
    if live < len(cluster.nodes):
        last.stop()
    elif last.status == "down":
        last.start()
        await_hints(cluster)


def _setups(cluster: lab.Cluster) -> Iterator[str]:
    """The cluster with all nodes; then with its last node down, if the others can serve without it."""
    nodes = cluster.nodes
    yield setup_name(len(nodes), len(nodes))
    if len(nodes) > 1:
        with _down(nodes[-1]):
            yield setup_name(len(nodes), len(nodes) - 1)


def setup_name(nodes: int, live: int) -> str:
    """Name of a set-up: ``4 nodes``, or ``4 nodes, 3 live``."""
    whole = f"{nodes} node{'s' if nodes > 1 else ''}"
    return whole if live == nodes else f"{whole}, {live} live"


@contextmanager
def _down(node: lab.Node) -> Iterator[None]:
    node.stop()
    yield
    # The node stays down, because the cluster ends next.


def _throughput(
    history: History, kind: str, points_only: bool, written: float, seconds: float, fresh: int
) -> list[Stream]:
    """Requests that are all due at the start, while values are written. Those not started in time are given up."""
    target = Aggregates(history.url, history, kind, points_only)
    backlog = Stream("request", target, Schedule.backlog(BACKLOG), CLIENTS)
    return [backlog, _writes(history, written, seconds, fresh)]


def _writes(history: History, written: float, seconds: float, fresh: int) -> Stream:
    schedule = Schedule.fixed(written / VALUES_A_BATCH, seconds)
    return Stream("write", Writes(history.url, history, VALUES_A_BATCH, fresh), schedule, clients=8)


def _measure(
    bench: Bench, setup: str, history: History, written: float, fresh: Iterator[int], speeds: Found, latencies: Found
) -> None:
    seconds = bench.seconds(1.5, 20)
    for name, (kind, points_only) in _REQUESTS.items():
        streams = _throughput(history, kind, points_only, written, seconds, next(fresh))
        found = bench.generator.run(streams, drain_s=0.0)
        bench.keep(f"{setup}, {name}, throughput", 0, found)
        speeds[setup, name] = found["request"]
    for kind in REQUESTS:
        rate = max(speeds[setup, kind].per_second / 2, 8 / seconds)
        schedule = Schedule.poisson(rate, seconds, warm_up_s=0.3, seed=bench.settings.seed)
        asked = Stream("request", Aggregates(history.url, history, kind), schedule, CLIENTS)
        found = bench.generator.run([asked, _writes(history, written, seconds, next(fresh))])
        bench.keep(f"{setup}, {kind}", 0, found)
        latencies[setup, kind] = found["request"]


def _show(
    bench: Bench, setups: list[str], history: History, written: float, speeds: Found, latencies: Found
) -> None:  # fmt: skip
    rows = []
    for kind, (single, *_, four) in published.REQUESTS.items():
        for name in (kind, f"{kind} from values"):
            cells = [f"{speeds[setup, name].per_second:,.1f}" for setup in setups]
            rows.append([name, f"{single:g}", f"{four:g}", *cells])
            bench.results.setdefault("per_second", {})[name] = {
                setup: speeds[setup, name].per_second for setup in setups
            }
    words = (
        f"Requests done per second by {CLIENTS} clients that never wait, with {history.tags} tags, one value every "
        f"{history.step_s} s for {history.days} days, while {written:,.0f} values per second are written. Published: "
        "1,000 tags with one value per second, and 5,000 values per second written. Requests here use hourly "
        'statistics where they exist, except those "from values". Set-ups are measured one after the other, once each.'
    )
    header = ["request", "published, 1 node", "published, 4", *setups]
    bench.report.table("Requests per second, and published figures", words, header, rows)
    rows = [
        [f"{setup}: {kind}", *latency_cells([found])[:-1], mean_interval(found)]
        for (setup, kind), found in latencies.items()
    ]
    words = "From the intended start, at about half the throughput above; one run each."
    header = [*LATENCY_HEADER[:-1], "mean, 95 %"]
    bench.report.table("Response times at half load", words, header, rows)
    places = list(range(1, len(setups) + 1))
    series = {
        kind: (places, [max(speeds[setup, kind].per_second, 1e-3) for setup in setups]) for kind in published.REQUESTS
    }
    drawing = page.lines("Requests per second", "set-up, as in the table", "requests per second", series)
    bench.report.drawing("Requests per second by set-up", ", ".join(setups), drawing)
