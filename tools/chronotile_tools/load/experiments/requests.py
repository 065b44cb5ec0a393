"""The published requests A to D on clusters of several sizes, whole and with a node down."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager

from chronotile_tools import lab, published
from chronotile_tools.load import page
from chronotile_tools.load.experiments.base import LATENCY_HEADER, Bench, archive_url, latency_cells, mean_interval
from chronotile_tools.load.generator import Stream
from chronotile_tools.load.recording import Recording
from chronotile_tools.load.schedule import Schedule
from chronotile_tools.load.targets import REQUESTS, Aggregates, History, Writes

__all__ = ["run"]

CLIENTS = 4
BACKLOG = 20_000
VALUES_A_BATCH = 100

Found = dict[tuple[str, str], Recording]


def run(bench: Bench) -> None:
    """Requests A to D a second while values are written, on one, three and four nodes, whole and with one down."""
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


def _setups(cluster: lab.Cluster) -> Iterator[str]:
    """The whole cluster; and the cluster with its last node down, if the others can serve without it."""
    nodes = cluster.nodes
    yield f"{len(nodes)} node{'s' if len(nodes) > 1 else ''}"
    if len(nodes) > 1:
        with _down(nodes[-1]):
            yield f"{len(nodes)} nodes, {len(nodes) - 1} live"


@contextmanager
def _down(node: lab.Node) -> Iterator[None]:
    node.stop()
    yield
    # The cluster ends next, so the node stays down.


def _measure(
    bench: Bench, setup: str, history: History, written: float, fresh: Iterator[int], speeds: Found, latencies: Found
) -> None:
    seconds = bench.seconds(1.5, 20)

    def writes() -> Stream:
        schedule = Schedule.fixed(written / VALUES_A_BATCH, seconds)
        return Stream("write", Writes(history.url, history, VALUES_A_BATCH, next(fresh)), schedule, clients=8)

    for kind in REQUESTS:
        for points_only in (False, True):
            name = f"{kind} from values" if points_only else kind
            target = Aggregates(history.url, history, kind, points_only)
            # All are due at once; those not started in time are given up.
            backlog = Stream("request", target, Schedule.backlog(BACKLOG), CLIENTS)
            found = bench.generator.run([backlog, writes()], drain_s=0.0)
            bench.keep(f"{setup}, {name}, throughput", 0, found)
            speeds[setup, name] = found["request"]
        rate = max(speeds[setup, kind].per_second / 2, 8 / seconds)
        schedule = Schedule.poisson(rate, seconds, warm_up_s=0.3, seed=bench.settings.seed)
        asked = Stream("request", Aggregates(history.url, history, kind), schedule, CLIENTS)
        found = bench.generator.run([asked, writes()])
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
        f"Requests done a second by {CLIENTS} clients that never wait, of {history.tags} tags with a value every "
        f"{history.step_s} s for {history.days} days, while {written:,.0f} values a second are written. Published: "
        "1,000 tags of a value a second and 5,000 written. Ours answer from statistics of hours where there are any; "
        "those from values may not. Set-ups are measured one after the other, once each."
    )
    header = ["request", "published, 1 node", "published, 4", *setups]
    bench.report.table("Requests a second, beside the published", words, header, rows)
    rows = [
        [f"{setup}: {kind}", *latency_cells([found])[:-1], mean_interval(found)]
        for (setup, kind), found in latencies.items()
    ]
    words = "From the intended start, at about half the requests that were done a second above; one run each."
    header = [*LATENCY_HEADER[:-1], "mean, 95 %"]
    bench.report.table("Response times at half load", words, header, rows)
    places = list(range(1, len(setups) + 1))
    series = {
        kind: (places, [max(speeds[setup, kind].per_second, 1e-3) for setup in setups]) for kind in published.REQUESTS
    }
    drawing = page.lines("Requests a second", "set-up, as in the table", "requests a second", series)
    bench.report.drawing("Requests a second by set-up", ", ".join(setups), drawing)
