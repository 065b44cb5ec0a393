"""Start nodes, wait until they serve clients, and report why one does not."""

from __future__ import annotations

import concurrent.futures
import os
import re
import ssl
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from chronotile_tools.client import wire
from chronotile_tools.lab import config, layout, network, processes, software, state, tls, tools, versions
from chronotile_tools.lab.errors import LabError, LabTimeoutError, NodeFailedError
from chronotile_tools.lab.state import ClusterState, NodeState

Echo = Callable[[str], object]
"""Called with each line of progress."""

START_SECONDS = 300.0
POLL_S = 0.15
HANDSHAKE_S = 5.0
LOG_BYTES_READ = 256 * 1024
LOG_LINES_SHOWN = 12
FETCH_FAILED = "Some data streaming failed"
"""Log message of a node that gives up streaming its data."""

_LOG_LINE = re.compile(r"^(TRACE|DEBUG|INFO|WARN|ERROR)\s")
_STACK_LINE = re.compile(r"^\s+(at |\.\.\. \d+ )")


def quiet(line: str) -> None:
    """Discard a progress line."""


def folder_of(cluster: ClusterState, node: NodeState) -> Path:
    """The node's folder."""
    return state.folder(cluster.name) / node.name


def client_context(cluster: ClusterState) -> ssl.SSLContext | None:
    """TLS context for the cluster's nodes; None without TLS."""
    if cluster.tls == "none":
        return None
    return tls.client_files(state.folder(cluster.name) / "tls", mutual=cluster.tls == "mutual").context()


def launch(cluster: ClusterState, node: NodeState) -> None:
    """Write the node's files and start its process; record it in `node`. Does not wait."""
    release = versions.release(node.version)
    server = software.server(release)
    java = software.java(release.java)
    plan = _plan(cluster, node)
    net = network.existing(cluster.network, cluster.prefix)
    net.raise_node(node.index, node.address)
    if node.cut:
        net.cut(node.index)
    config.write_files(plan, server)
    # Ignore output of an earlier run when looking for errors.
    output = plan.folder / "logs" / "output.log"
    output.unlink(missing_ok=True)
    log = plan.folder / "logs" / "system.log"
    if log.exists():
        log.replace(plan.folder / "logs" / "system.log.before")
    command = [*net.command_prefix(node.index), *config.java_command(plan, server, java, release.java)]
    node.process = processes.start(command, output, _environment())


def reseed(cluster: ClusterState, node: NodeState) -> None:
    """Make a running node use all others as seeds, including those that are down."""
    config.write_files(_plan(cluster, node), software.server(versions.release(node.version)))
    tools.nodetool(cluster, node, ["reloadseeds"], timeout_s=60)


def _plan(cluster: ClusterState, node: NodeState) -> config.NodePlan:
    folder = folder_of(cluster, node)
    others = [other.address for other in cluster.nodes if other is not node and other.process is not None]
    fresh = node.tokens is not None
    # Only a node that is its own seed may start alone; but a seed does not stream data when it joins.
    own = [node.address] if node.joined or fresh else []
    # Reversed, so that the first node of each data centre is the one that remains in the dict.
    first_of_centres = {other.dc: other.address for other in reversed(cluster.nodes) if fresh or other.joined}
    seeds = own + [address for address in first_of_centres.values() if address not in own]
    if node.joined:
        seeds += [address for address in others if address not in seeds]
    elif not fresh:
        seeds = [address for address in others if address != node.replaces][:3]
    encryption = None
    if cluster.tls != "none":
        authority = state.folder(cluster.name) / "tls"
        mutual = cluster.tls == "mutual"
        encryption = tls.node_options(authority, folder, node.name, node.address, mutual=mutual)
    return config.NodePlan(
        cluster=cluster.name,
        folder=folder,
        address=node.address,
        seeds=seeds,
        place=layout.NodeLocation(node.dc, node.rack),
        jmx_port=node.jmx_port,
        heap_mb=node.heap_mb,
        tokens=node.tokens,
        joins=not node.joined and not fresh,
        replaces=None if node.joined else node.replaces,
        authentication=cluster.auth,
        encryption=encryption,
        paxos_v2=all(versions.release(other.version).series >= (4, 1) for other in cluster.nodes),
        settings=cluster.settings,
        java_options=cluster.java_options,
    )


def _environment() -> dict[str, str]:
    """Our environment, without variables that affect the node's Java."""
    dropped = {"JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "CLASSPATH", "CASSANDRA_CONF"}
    return {name: value for name, value in os.environ.items() if name not in dropped}


def await_serving(cluster: ClusterState, nodes: Sequence[NodeState], timeout_s: float, echo: Echo) -> None:
    """Wait until each of `nodes` accepts clients, and all running nodes see each other up and normal.

    Raises
    ------
    NodeFailedError
        One of them stopped, or gave up streaming its data.
    LabTimeoutError
        `timeout_s` has passed; the message says which condition was not reached.
    """
    began = time.monotonic()
    deadline = began + timeout_s
    context = client_context(cluster)
    waiting = list(nodes)
    read: dict[int, int] = {}
    while waiting:
        for node in list(waiting):
            _check_alive(cluster, nodes)
            _check_fetching(cluster, node, read)
            if wire.answers(node.address, config.NATIVE_PORT, context, HANDSHAKE_S):
                waiting.remove(node)
                echo(f"{node.name} serves at {node.address} after {time.monotonic() - began:.0f} s")
        if waiting and time.monotonic() > deadline:
            late = ", ".join(node.name for node in waiting)
            raise LabTimeoutError(_late(cluster, waiting[0], f"{late} did not accept clients within {timeout_s:.0f} s"))
        if waiting:
            time.sleep(POLL_S)
    _await_ring(cluster, nodes, deadline, timeout_s)


def _check_fetching(cluster: ClusterState, node: NodeState, read: dict[int, int]) -> None:
    """Check that a new node has not given up streaming its data: it would then wait without accepting clients."""
    if node.joined:
        return
    lines, read[node.index] = tail(folder_of(cluster, node) / "logs" / "system.log", read.get(node.index, 0))
    if any(FETCH_FAILED in line for line in lines):
        raise failed(cluster, node, "failed to stream its data")


def _await_ring(cluster: ClusterState, nodes: Sequence[NodeState], deadline: float, timeout_s: float) -> None:
    satisfied: set[int] = set()
    with concurrent.futures.ThreadPoolExecutor(max_workers=4) as pool:
        while True:
            _check_alive(cluster, nodes)
            # Check each time: other processes may kill, pause or cut nodes meanwhile.
            running = _reachable(cluster)
            expected = {node.address for node in running}
            asked = [node for node in running if node.index not in satisfied]
            if not asked:
                return
            missing = list(pool.map(_missing, [cluster] * len(asked), asked, [expected] * len(asked)))
            satisfied |= {node.index for node, lacks in zip(asked, missing, strict=True) if not lacks}
            if any(missing) and time.monotonic() > deadline:
                what = f"{'; '.join(filter(None, missing))}, after {timeout_s:.0f} s"
                raise LabTimeoutError(_late(cluster, asked[0], what))


def _reachable(cluster: ClusterState) -> list[NodeState]:
    """Nodes that run and are reachable by the others."""
    cut = {node.index for node in state.load(cluster.name).nodes if node.cut}
    return [
        node
        for node in cluster.nodes
        if node.index not in cut and node.process is not None and node.process.alive() and not node.process.stopped()
    ]


def _missing(cluster: ClusterState, node: NodeState, expected: set[str]) -> str:
    """Describe which of the `expected` addresses a node does not see up and normal; empty if it sees all."""
    try:
        seen = tools.node_statuses(cluster, node)
    except LabError as error:
        return f"{node.name} cannot be queried ({error})"
    for one in seen:
        if one.address == node.address:
            node.host_id = one.host_id
    lost = expected - {one.address for one in seen if one.up and one.state == "N"}
    return f"{node.name} does not see {', '.join(sorted(lost))} up" if lost else ""


def _check_alive(cluster: ClusterState, nodes: Sequence[NodeState]) -> None:
    for node in nodes:
        if node.process is not None and not node.process.alive():
            raise failed(cluster, node, "stopped during startup")


def failed(cluster: ClusterState, node: NodeState, what: str) -> NodeFailedError:
    """Create the error for a stopped node, with its last error messages."""
    log = last_errors(folder_of(cluster, node))
    shown = "".join(f"\n  {line}" for line in log) or " without a message"
    where = folder_of(cluster, node) / "logs"
    return NodeFailedError(
        f"{node.name} of cluster {cluster.name} {what}:{shown}\n  (its logs: {where})",
        node=node.name,
        log="\n".join(log),
    )


def _late(cluster: ClusterState, node: NodeState, what: str) -> str:
    folder = folder_of(cluster, node)
    log = last_errors(folder) or tail(folder / "logs" / "system.log")[0][-3:]
    shown = "".join(f"\n  {line}" for line in log)
    return f"{what}. The last lines of {node.name}:{shown}\n  (its logs: {folder / 'logs'})"


def last_errors(folder: Path) -> list[str]:
    """Last errors of a node, from its log or, if it has none yet, its output; without stack frames."""
    logged = _last_error_block(tail(folder / "logs" / "system.log")[0])
    printed = tail(folder / "logs" / "output.log")[0]
    if not logged or any(line.startswith("Exception") for line in printed):
        words = [line for line in printed if not _STACK_LINE.match(line) and not line.startswith("WARNING")]
        logged += [line for line in words[-LOG_LINES_SHOWN:] if line not in logged]
    return logged[:LOG_LINES_SHOWN]


def _last_error_block(lines: Sequence[str]) -> list[str]:
    """The last ERROR line with its continuation lines, and ERROR lines directly before."""
    blocks: list[list[str]] = []
    for line in lines:
        level = _LOG_LINE.match(line)
        if level and level[1] == "ERROR":
            blocks.append([line])
        elif level is None and blocks and blocks[-1] and not _STACK_LINE.match(line):
            blocks[-1].append(line)
        elif level is not None and blocks and blocks[-1]:
            blocks.append([])
    return [line for block in [block for block in blocks if block][-2:] for line in block if line.strip()]


def tail(path: Path, begin: int | None = None) -> tuple[list[str], int]:
    """Complete lines of a file from byte `begin` on (by default the last 256 KiB), and their end position."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - LOG_BYTES_READ) if begin is None else begin)
            start, content = file.tell(), file.read()
    except OSError:
        return [], begin or 0
    if begin is None and start > 0:
        # The first line is incomplete.
        start, content = start + content.find(b"\n") + 1, content.partition(b"\n")[2]
    whole = content.rpartition(b"\n")[0] if begin is not None else content
    end = start + len(whole) + (1 if begin is not None and b"\n" in content else 0)
    return whole.decode("utf-8", "replace").splitlines(), end
