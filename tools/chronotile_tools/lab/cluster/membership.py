"""Change the membership of a cluster, and restart nodes one at a time."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from chronotile.errors import InvalidInputError
from chronotile_tools.lab import launching, network, places, resources, state, tools, versions
from chronotile_tools.lab.errors import LabError, LabTimeoutError, NodeFailedError
from chronotile_tools.lab.launching import Echo
from chronotile_tools.lab.state import ClusterState, NodeState, operating

if TYPE_CHECKING:
    from chronotile_tools.lab.cluster import Cluster, Node

STREAM_SECONDS = 1800.0
"""Timeout in seconds for streaming a node's data."""
NOTICE_SECONDS = 120.0
JOIN_ATTEMPTS = 4
_UNANSWERED = "Unable to contact any seeds"


def add(
    cluster: Cluster,
    *,
    dc: str | None,
    rack: str | None,
    heap: str | int | None,
    version: str | None,
    timeout_s: float,
    echo: Echo,
) -> Node:
    """`Cluster.add`."""
    with operating(cluster.name, "add a node"):
        index = _new_node(cluster, dc, rack, heap, version, replaced=None, same_address=False)
        echo(f"node{index} joins")
        return join(cluster.node(index), timeout_s=timeout_s, echo=echo)


def replace(
    dead: Node,
    *,
    same_address: bool,
    timeout_s: float,
    echo: Echo,
) -> Node:
    """`Node.replace`."""
    cluster = dead.cluster
    with operating(cluster.name, f"replace {dead.name}"):
        _require_down(dead, "replaced")
        _await_seen_down(_running(cluster, without=dead), dead)
        index = _new_node(cluster, dead.dc, dead.rack, None, dead.version, replaced=dead, same_address=same_address)
        echo(f"node{index} replaces {dead.name}")
        if same_address:
            _reseed(cluster, index)
        return join(cluster.node(index), timeout_s=timeout_s, echo=echo)


def _reseed(cluster: Cluster, index: int) -> None:
    """Add a new node to the seeds of all nodes.

    While a node replaces another at the same address, the others see it in state hibernate, and they gossip to such a
    node only if it is a seed.
    """
    known = cluster.state
    for node in cluster.nodes:
        if node.index != index and node.status == "up":
            launching.reseed(known, known.node(node.index))


def remove_replaced(changed: ClusterState, fresh: NodeState) -> None:
    """Remove a replaced node from the state."""
    for node in list(changed.nodes):
        if node.address == fresh.replaces and node.index != fresh.index:
            _forget(changed, node.index)


def decommission(leaving: Node, *, force: bool, timeout_s: float) -> None:
    """`Node.decommission`."""
    cluster = leaving.cluster
    with operating(cluster.name, f"decommission {leaving.name}"):
        options = ["--force"] if force and versions.release(leaving.state.version).series >= (4, 0) else []
        leaving.nodetool("decommission", *options, timeout_s=timeout_s)
        leaving.stop()
        with state.changing(cluster.name) as changed:
            _forget(changed, leaving.index)


def remove(dead: Node, *, timeout_s: float) -> None:
    """`Node.remove`."""
    cluster = dead.cluster
    with operating(cluster.name, f"remove {dead.name}"):
        _require_down(dead, "removed")
        host_id = dead.state.host_id
        if not host_id:
            raise LabError(f"{dead.name} never joined, so the other nodes do not know it")
        helper = _running(cluster, without=dead)
        _await_seen_down(helper, dead)
        helper.nodetool("removenode", host_id, timeout_s=timeout_s)
        with state.changing(cluster.name) as changed:
            _forget(changed, dead.index)


def forget(node: Node) -> None:
    """`Node.forget`."""
    with operating(node.cluster.name, f"forget {node.name}"), state.changing(node.cluster.name) as changed:
        _forget(changed, node.index)


def restart(
    cluster: Cluster,
    nodes: Sequence[Node] | None,
    *,
    version: str | None,
    new_addresses: bool,
    timeout_s: float,
    echo: Echo,
) -> None:
    """`Cluster.restart`."""
    with operating(cluster.name, "restart its nodes"):
        if version is not None:
            resources.prepare(versions.release(version), echo)
        for node in cluster.nodes if nodes is None else nodes:
            # Stop gracefully: clients are notified, the log is flushed, and the next start has nothing to replay.
            if node.pid is not None:
                node.drain()
                node.stop()
            echo(f"restarting {node.name}")
            address = "new" if new_addresses else None
            node.start(version=version, address=address, timeout_s=timeout_s, echo=echo)
        if version is not None:
            with state.changing(cluster.name) as changed:
                if all(node.version == changed.nodes[0].version for node in changed.nodes):
                    changed.version = changed.nodes[0].version


def _new_node(
    cluster: Cluster,
    dc: str | None,
    rack: str | None,
    heap: str | int | None,
    version: str | None,
    *,
    replaced: Node | None,
    same_address: bool,
) -> int:
    _running(cluster, without=replaced)
    heap_mb = cluster.state.heap_mb if heap is None else resources.read_heap(heap)
    resources.check_memory(1, heap_mb)
    release = versions.release(version or cluster.state.version)
    resources.prepare(release)
    # Ports are shared by all clusters of the machine: assign them under this lock.
    with (
        places.locked("network", timeout_s=60, what="find a free port"),
        state.changing(cluster.name) as changed,
    ):
        known = [node.dc for node in changed.nodes]
        dc = dc or known[0]
        address = replaced.address if replaced is not None and same_address else cluster._free_address(changed)
        net = network.existing(changed.network, changed.prefix)
        port = net.jmx_port(resources.ports_taken())
        index = changed.index_next
        node = NodeState(index, dc, rack or _emptiest_rack(changed, dc), address, port, release.version, heap_mb)
        if replaced is not None:
            node.replaces = replaced.address
            if same_address:
                net.drop_node(replaced.index)
        changed.index_next += 1
        changed.nodes.append(node)
    return index


def join(node: Node, *, timeout_s: float, echo: Echo) -> Node:
    """`Node.join`."""
    try:
        for attempt in range(JOIN_ATTEMPTS, 0, -1):
            try:
                node.start(timeout_s=timeout_s, echo=echo)
                break
            except NodeFailedError as error:
                waits = node.pid is not None
                # A joining node gives up after seconds; on a busy machine its peers may take longer to answer.
                if attempt == 1 or not (waits or _UNANSWERED in error.log):
                    raise
                if waits:
                    # Delete its data: it would not stream partly received ranges again.
                    node.kill()
                    shutil.rmtree(node.folder / "data")
                why = "streaming failed" if waits else "no node answered in time"
                echo(f"starting {node.name} again: {why}")
    except BaseException:
        node.kill()
        with state.changing(node.cluster.name) as changed:
            _forget(changed, node.index)
        raise
    return node


def _forget(changed: ClusterState, index: int) -> None:
    node = changed.node(index)
    if node.process is not None:
        node.process.kill()
    network.existing(changed.network, changed.prefix).drop_node(index)
    changed.nodes.remove(node)
    shutil.rmtree(launching.folder_of(changed, node), ignore_errors=True)


def _emptiest_rack(changed: ClusterState, dc: str) -> str:
    counts: dict[str, int] = {}
    for node in changed.nodes:
        if node.dc == dc:
            counts[node.rack] = counts.get(node.rack, 0) + 1
    return min(counts, key=lambda rack: counts[rack], default="rack1")


def _running(cluster: Cluster, *, without: Node | None) -> Node:
    for node in cluster.nodes:
        if node.status == "up" and (without is None or node.index != without.index):
            return node
    raise LabError(f"no node of cluster {cluster.name} is running: start one first (chronotile lab start)")


def _await_seen_down(helper: Node, dead: Node) -> None:
    """Wait until a node has detected that another is dead; before that, it refuses to remove it."""
    deadline = time.monotonic() + NOTICE_SECONDS
    while any(
        seen.up and seen.address == dead.address for seen in tools.node_statuses(helper.cluster.state, helper.state)
    ):
        if time.monotonic() > deadline:
            raise LabTimeoutError(f"{helper.name} still sees {dead.name} up after {NOTICE_SECONDS:.0f} s")
        time.sleep(0.5)


def _require_down(node: Node, what: str) -> None:
    if node.pid is not None:
        raise InvalidInputError(
            f"{node.name} is running: only a node that is down can be {what} (kill it first, or decommission it)",
            kind="invalid-request",
        )
