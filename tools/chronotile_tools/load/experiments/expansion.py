"""A fourth node for a cluster of three, and the cleanup after it."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass

from chronotile.terminal import bytes_text
from chronotile_tools import lab
from chronotile_tools.load.experiments.base import Bench, Harness, node_bytes
from chronotile_tools.load.page import duration
from chronotile_tools.load.targets import History

__all__ = ["Expansion", "Load", "measure", "run"]


@dataclass(frozen=True)
class Load:
    """Data of :func:`measure`.

    Attributes
    ----------
    tags, days, step_s : int
        The history.
    days_more : int
        Further days that are stored before the node is added, and again afterwards, to measure what each node stores of
        them.
    """

    tags: int
    days: int
    step_s: int
    days_more: int


@dataclass(frozen=True)
class Expansion:
    """Times and sizes of an expansion. Lists have one figure per node.

    Attributes
    ----------
    join_s : float
        Seconds until the new node had its data and served clients.
    cleanup_s : list of float
        Seconds of the cleanup on each of the three old nodes, one after the other, minus those of a no-op command.
    before, joined, cleaned : list of int
        Bytes of the tables on three nodes, on four, and on four after the cleanup; compacted in the first and third.
    growth_before, growth_after : list of int
        Bytes added by the same number of new values, on three nodes and on four.
    """

    join_s: float
    cleanup_s: list[float]
    before: list[int]
    joined: list[int]
    cleaned: list[int]
    growth_before: list[int]
    growth_after: list[int]


def measure(harness: Harness, load: Load) -> Expansion:
    """Add a node to three with replication factor 3, and run cleanup on the others."""
    with harness.cluster(3) as cluster:
        # With two decimals, values are so small that most bytes would be the overhead of files.
        history = History(cluster.url("bench"), load.tags, load.days, load.step_s, decimals=15)
        harness.echo(f"storing {history.values:,} values")
        history.store()
        earlier = _compacted(cluster)
        history.extend(range(load.days, load.days + load.days_more))
        before = _compacted(cluster)
        began = time.monotonic()
        cluster.add(echo=harness.echo)
        join_s = time.monotonic() - began
        joined = node_bytes(cluster, "bench")
        cleanup_s = []
        for node in cluster.nodes[:3]:
            nothing_s = _seconds(node, "version")
            cleanup_s.append(max(_seconds(node, "cleanup", "bench") - nothing_s, 0.0))
            harness.echo(f"cleanup of {node.name}: {cleanup_s[-1]:.1f} s")
        cleaned = _compacted(cluster)
        later = load.days + load.days_more
        history.extend(range(later, later + load.days_more))
        growth_after = _growth(cleaned, _compacted(cluster))
    growth_before = _growth(earlier, before)
    return Expansion(join_s, cleanup_s, before, joined, cleaned, growth_before, growth_after)


def _seconds(node: lab.Node, *command: str) -> float:
    began = time.monotonic()
    node.nodetool(*command)
    return time.monotonic() - began


def _growth(before: list[int], after: list[int]) -> list[int]:
    return [now - then for then, now in zip(before, after, strict=True)]


def _compacted(cluster: lab.Cluster) -> list[int]:
    for node in cluster.nodes:
        node.nodetool("compact", "bench")
    return node_bytes(cluster, "bench")


def run(bench: Bench) -> None:
    """Add a fourth node to three: seconds to join and to clean up, bytes on each node before and after."""
    quick = bench.settings.quick
    load = Load(tags=50, days=1 if quick else 5, step_s=10, days_more=1)
    bench.measure_harness(10.0, clients=1)
    found = measure(bench, load)
    rows = [
        [what, *(bytes_text(count) for count in counts), *([""] * (4 - len(counts)))]
        for what, counts in (
            ("three nodes", found.before), ("a fourth joined", found.joined), ("cleaned up", found.cleaned),
            ("new values, three nodes", found.growth_before), ("new values, four nodes", found.growth_after),
        )
    ]  # fmt: skip
    words = (
        f"Bytes of the tables. The node joined in {duration(found.join_s * 1e3)}; cleanup took "
        f"{', '.join(duration(seconds * 1e3) for seconds in found.cleanup_s)} on the old nodes."
    )
    bench.report.table("Bytes on each node", words, ["", "node 1", "node 2", "node 3", "node 4"], rows)
    bench.results["expansion"] = asdict(found)
