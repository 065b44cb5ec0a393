"""Python interface to a running cluster and its nodes."""

from __future__ import annotations

import contextlib
import shutil
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from chronotile.errors import InvalidInputError
from chronotile_tools.client import wire
from chronotile_tools.lab import (
    config,
    launching,
    network,
    places,
    processes,
    resources,
    state,
    tls,
    tools,
    versions,
)
from chronotile_tools.lab.cluster import membership
from chronotile_tools.lab.errors import LabError, LabNotFoundError
from chronotile_tools.lab.launching import START_SECONDS, Echo, quiet
from chronotile_tools.lab.state import OPERATION_SECONDS, ClusterState, NodeState, operating

STOP_SECONDS = 60.0


class Node:
    """A node. Its properties read the cluster's state each time, so changes by other processes are visible."""

    def __init__(self, cluster: Cluster, index: int) -> None:
        self.cluster = cluster
        self.index = index
        """Its number, from 1; never given to another node of the cluster."""
        self.name = f"node{index}"

    def __repr__(self) -> str:
        return f"<{self.name} of cluster {self.cluster.name}>"

    @property
    def state(self) -> NodeState:
        """Current state."""
        return self.cluster.state.node(self.index)

    @property
    def address(self) -> str:
        """Its address, for clients and other nodes."""
        return self.state.address

    @property
    def dc(self) -> str:
        """Its data centre."""
        return self.state.dc

    @property
    def rack(self) -> str:
        """Its rack."""
        return self.state.rack

    @property
    def version(self) -> str:
        """The version of Cassandra it runs, or ran last."""
        return versions.release(self.state.version).version

    @property
    def folder(self) -> Path:
        """Its folder, with ``conf``, ``data`` and ``logs``."""
        return self.cluster.folder / self.name

    @property
    def log(self) -> Path:
        """Its log."""
        return self.folder / "logs" / "system.log"

    @property
    def pid(self) -> int | None:
        """Process id; None if it does not run."""
        process = self.state.process
        return process.pid if process is not None and process.alive() else None

    @property
    def status(self) -> str:
        """``up`` (its process runs), ``paused``, ``cut`` or ``down``."""
        node = self.state
        if node.process is None or not node.process.alive():
            return "down"
        if node.process.stopped():
            return "paused"
        return "cut" if node.cut else "up"

    @property
    def cpu_s(self) -> float:
        """Processor time that its process has used since it started, in seconds."""
        process = self.state.process
        return 0.0 if process is None else process.cpu_s()

    @property
    def memory_bytes(self) -> int:
        """Resident memory of its process."""
        process = self.state.process
        return 0 if process is None else process.memory_bytes()

    def serves(self, *, timeout_s: float = 2) -> bool:
        """Whether it accepts clients right now."""
        context = launching.client_context(self.cluster.state)
        return wire.answers(self.address, self.cluster.native_port, context, timeout_s)

    def start(
        self,
        *,
        address: str | None = None,
        version: str | None = None,
        wait: bool = True,
        timeout_s: float = START_SECONDS,
        echo: Echo = quiet,
    ) -> None:
        """Start its process. Has no effect if the node runs.

        Parameters
        ----------
        address : str, optional
            A new address in the cluster's network, or ``"new"`` for a free one. The node keeps its data and identity.
        version : str, optional
            Run this version on the same data from now on.
        wait : bool
            Return only when the node accepts clients and sees the others.
        timeout_s : float
            Timeout in seconds.
        """
        if version is not None:
            resources.prepare(versions.release(version), echo)
        with state.changing(self.cluster.name) as cluster:
            node = cluster.node(self.index)
            if node.process is None or not node.process.alive():
                if version is not None:
                    node.version = versions.release(version).version
                if address is not None:
                    node.address = self.cluster._free_address(cluster, address)
                launching.launch(cluster, node)
            elif address is not None or version is not None:
                raise LabError(f"{self.name} is running: stop it before changing its address or version")
        if wait:
            self.wait_until_ready(timeout_s=timeout_s, echo=echo)

    def join(self, *, timeout_s: float = membership.STREAM_SECONDS, echo: Echo = quiet) -> Node:
        """Start a new node and return it when it serves clients; if streaming fails, start again with empty data. If
        joining fails, the node is removed; other nodes may still list it.
        """
        return membership.join(self, timeout_s=timeout_s, echo=echo)

    def install(self, version: str, *, echo: Echo = quiet) -> None:
        """Switch to another version at the next start.

        Raises
        ------
        LabError
            The node is running another version.
        """
        release = versions.release(version)
        resources.prepare(release, echo)
        with state.changing(self.cluster.name) as cluster:
            node = cluster.node(self.index)
            if node.version == release.version:
                return
            if node.process is not None and node.process.alive():
                raise LabError(f"{self.name} is running: stop it before changing its version")
            node.version = release.version

    def wait_until_ready(self, *, timeout_s: float = START_SECONDS, echo: Echo = quiet) -> None:
        """Wait until the node accepts clients, and all running nodes see each other up and normal.

        Raises
        ------
        NodeFailedError
            The process ended; the message has its last errors.
        LabTimeoutError
            After `timeout_s`.
        """
        self.cluster._await([self.index], timeout_s, echo)

    def stop(self, *, timeout_s: float = STOP_SECONDS) -> None:
        """Stop the process gracefully (SIGTERM: it notifies the others and flushes its log)."""
        process = self.state.process
        if process is not None:
            process.end(timeout_s)

    def kill(self) -> None:
        """Kill the process (SIGKILL), like a crash or a power cut."""
        process = self.state.process
        if process is not None:
            process.kill()

    def pause(self) -> None:
        """Suspend its process (SIGSTOP): its connections stay open and nothing answers."""
        process = self._running()
        process.signal(signal.SIGSTOP)
        deadline = time.monotonic() + 5
        # The signal may take effect only after the call has returned.
        while not process.stopped() and process.alive() and time.monotonic() < deadline:
            time.sleep(0.005)

    def resume(self) -> None:
        """Resume the paused process (SIGCONT)."""
        self._running().signal(signal.SIGCONT)

    def cut(self) -> None:
        """Cut the node off from other nodes and clients, until `heal`.

        Raises
        ------
        LabError
            The cluster's network does not support it (``lab-network``); the message says what is required.
        """
        with state.changing(self.cluster.name) as cluster:
            network.existing(cluster.network, cluster.prefix).cut(self.index)
            cluster.node(self.index).cut = True

    def heal(self) -> None:
        """Undo `cut`."""
        with state.changing(self.cluster.name) as cluster:
            network.existing(cluster.network, cluster.prefix).heal(self.index)
            cluster.node(self.index).cut = False

    def nodetool(self, *arguments: str, timeout_s: float = 600) -> str:
        """Run nodetool on it and return the output."""
        return tools.nodetool(self.cluster.state, self.state, arguments, timeout_s=timeout_s)

    def drain(self) -> None:
        """Flush its memory to disk and stop serving clients; its process keeps running."""
        self.nodetool("drain")

    def decommission(self, *, force: bool = False, timeout_s: float = membership.STREAM_SECONDS) -> None:
        """Decommission the node: it streams its data to the others and leaves; its process ends, and its folder is
        removed.

        Parameters
        ----------
        force : bool
            Proceed even if fewer nodes would remain than a keyspace's replication factor (4.0 and later refuse by
            default).
        timeout_s : float
            Timeout in seconds.
        """
        membership.decommission(self, force=force, timeout_s=timeout_s)

    def remove(self, *, timeout_s: float = membership.STREAM_SECONDS) -> None:
        """Permanently remove the node while it is down; the others restore its replicas from each other."""
        membership.remove(self, timeout_s=timeout_s)

    def replace(
        self, *, same_address: bool = False, timeout_s: float = membership.STREAM_SECONDS, echo: Echo = quiet
    ) -> Node:
        """Permanently replace the node while it is down; return the new node when it serves clients.

        The new node takes over its tokens and streams its data from the others.

        Parameters
        ----------
        same_address : bool
            Give the new node the address of this one.
        timeout_s : float
            Timeout in seconds.
        """
        return membership.replace(self, same_address=same_address, timeout_s=timeout_s, echo=echo)

    def forget(self) -> None:
        """Stop the process and delete the folder of a node that was decommissioned or removed."""
        membership.forget(self)

    def connect(self, *, timeout_s: float = 10) -> wire.Connection:
        """Connect with the laboratory's small client, logged in as the superuser."""
        cluster = self.cluster.state
        context = launching.client_context(cluster)
        return wire.Connection(
            self.address,
            self.cluster.native_port,
            tls=context,
            credentials=self.cluster.credentials,
            timeout_s=timeout_s,
        )

    def _running(self) -> processes.Process:
        process = self.state.process
        if process is None or not process.alive():
            raise LabError(f"{self.name} of cluster {self.cluster.name} is not running")
        return process


class Cluster:
    """A cluster of real Cassandra nodes on this machine.

    As a context manager, it takes the cluster down at the end, unless it was started with ``keep=True``.
    """

    def __init__(self, name: str) -> None:
        self.name = state.load(name).name

    def __repr__(self) -> str:
        return f"<cluster {self.name}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(LabNotFoundError):
            if self.state.owner is not None:
                self.down()

    @property
    def state(self) -> ClusterState:
        """Current state."""
        return state.load(self.name)

    @property
    def folder(self) -> Path:
        """Its folder."""
        return state.folder(self.name)

    @property
    def nodes(self) -> list[Node]:
        """Its nodes by number, including those that are down."""
        return [Node(self, node.index) for node in self.state.nodes]

    def node(self, which: int | str) -> Node:
        """Find a node by number (2), name (``"node2"``) or address.

        Raises
        ------
        LabNotFoundError
            No such node.
        """
        # The address of a dead node refers to its replacement.
        for node in reversed(self.nodes):
            if which in (node.index, str(node.index), node.name, node.address):
                return node
        names = ", ".join(node.name for node in self.nodes) or "none"
        raise LabNotFoundError(f"cluster {self.name} has no node {which}; it has {names}")

    @property
    def native_port(self) -> int:
        """The port for clients, the same on every node."""
        return config.NATIVE_PORT

    @property
    def contact_points(self) -> list[str]:
        """The addresses of all its nodes."""
        return [node.address for node in self.state.nodes]

    @property
    def network(self) -> str:
        """``loopback`` or ``namespaces``; nodes can be cut off only with namespaces."""
        return self.state.network

    @property
    def credentials(self) -> tuple[str, str] | None:
        """User and password of the superuser; None without authentication."""
        try:
            user, password = self.credentials_file.read_text(encoding="utf-8").splitlines()[:2]
        except FileNotFoundError:
            return None
        return user, password

    @property
    def credentials_file(self) -> Path:
        """The file with user and password, one per line, readable by the owner only."""
        return self.folder / "credentials"

    @property
    def tls(self) -> tls.Tls | None:
        """TLS files for clients; None without TLS."""
        cluster = self.state
        if cluster.tls == "none":
            return None
        return tls.client_files(self.folder / "tls", mutual=cluster.tls == "mutual")

    def url(self, keyspace: str = "") -> str:
        """URL of an archive in this keyspace, without user and password."""
        hosts = ",".join(f"{address}:{self.native_port}" for address in self.contact_points)
        return f"cassandra://{hosts}/{keyspace}" if keyspace else f"cassandra://{hosts}"

    def nodetool(self, which: int | str | Node, *arguments: str, timeout_s: float = 600) -> str:
        """Run nodetool on a node and return the output."""
        node = which if isinstance(which, Node) else self.node(which)
        return node.nodetool(*arguments, timeout_s=timeout_s)

    def configure(self, **settings: Any) -> None:
        """Change settings of cassandra.yaml, effective at each node's next start."""
        with state.changing(self.name) as cluster:
            cluster.settings |= settings

    def wait_until_ready(self, *, timeout_s: float = START_SECONDS, echo: Echo = quiet) -> None:
        """Wait until every running node accepts clients and sees the others."""
        self._await([node.index for node in self.nodes if node.status == "up"], timeout_s, echo)

    def add(
        self,
        *,
        dc: str | None = None,
        rack: str | None = None,
        heap: str | int | None = None,
        version: str | None = None,
        timeout_s: float = membership.STREAM_SECONDS,
        echo: Echo = quiet,
    ) -> Node:
        """Add a node; return it when it has streamed its data and serves clients.

        Parameters
        ----------
        dc, rack : str, optional
            Location. Default: the data centre of the first node, and its rack with the fewest nodes.
        heap, version : optional
            Default: those of the cluster.
        timeout_s : float
            Timeout in seconds.
        """
        return membership.add(self, dc=dc, rack=rack, heap=heap, version=version, timeout_s=timeout_s, echo=echo)

    def restart(
        self,
        nodes: Sequence[Node] | None = None,
        *,
        version: str | None = None,
        new_addresses: bool = False,
        timeout_s: float = START_SECONDS,
        echo: Echo = quiet,
    ) -> None:
        """Restart nodes one at a time, waiting until each serves clients and sees all others.

        Parameters
        ----------
        nodes : sequence of Node, optional
            Nodes to restart. Default: all.
        version : str, optional
            Switch to this version: a rolling upgrade. Run ``nodetool upgradesstables`` yourself to upgrade the data
            format.
        new_addresses : bool
            Give each node another address.
        timeout_s : float
            Timeout per node in seconds.
        """
        membership.restart(self, nodes, version=version, new_addresses=new_addresses, timeout_s=timeout_s, echo=echo)

    def down(self, *, timeout_s: float = OPERATION_SECONDS) -> None:
        """Stop all processes and delete the folder with all data."""
        take_down(self.name, timeout_s=timeout_s)

    def _await(self, indexes: Sequence[int], timeout_s: float, echo: Echo) -> None:
        cluster = self.state
        nodes = [cluster.node(index) for index in indexes]
        launching.await_serving(cluster, nodes, timeout_s, echo)
        with state.changing(self.name) as changed:
            for node in nodes:
                found = changed.node(node.index)
                membership.remove_replaced(changed, found)
                found.joined, found.host_id, found.replaces = True, node.host_id or found.host_id, None

    def _free_address(self, cluster: ClusterState, asked: str = "new") -> str:
        net = network.existing(cluster.network, cluster.prefix)
        used = {node.address for node in cluster.nodes}
        if asked == "new":
            # Use numbers that no node started with, so that a changed address is obvious in logs.
            last = max(int(address.rpartition(".")[2]) for address in used)
            asked = net.address(last + 1)
        if not net.holds(asked):
            raise InvalidInputError(
                f"{asked} is not in the cluster's network: use {net.prefix}.1 to {net.prefix}.250",
                kind="invalid-request",
            )
        if asked in used:
            raise InvalidInputError(f"address {asked} is in use by another node", kind="invalid-request")
        return asked


def take_down(name: str, *, timeout_s: float = OPERATION_SECONDS) -> None:
    """Stop a cluster's processes and delete its folder, even if its creation never finished.

    Only processes recorded in its state with their start time, or with its folder in their arguments, are stopped.
    """
    folder = state.folder(places.checked_name(name))
    if not folder.is_dir():
        state.load(name)
    with operating(name, "take it down", timeout_s=timeout_s):
        try:
            cluster = state.load(name)
        except LabError:
            # Its creation never finished, or its state is damaged: find its processes by their arguments.
            cluster = None
        delete_cluster(name, cluster)


def delete_cluster(name: str, cluster: ClusterState | None) -> None:
    """Delete all files, processes and networks of a cluster. The caller must hold its lock."""
    end_processes(name)
    if cluster is not None and cluster.prefix:
        network.existing(cluster.network, cluster.prefix).drop()
    folder = state.folder(name)
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        raise LabError(f"cannot delete all of {folder}: delete it by hand", kind="lab-state")
    for lock in (f"{name}.state", f"{name}.nodes"):
        places.remove_lock(lock)


def end_processes(name: str) -> None:
    """Kill the processes of all nodes; a graceful stop is pointless, because the data are deleted."""
    running = [
        process
        for folder in state.folder(name).glob("node*")
        for process in processes.with_argument(f"{config.NODE_ARGUMENT}{folder}")
    ]
    with contextlib.suppress(LabError):
        running += [node.process for node in state.load(name).nodes if node.process is not None]
    threads = [threading.Thread(target=process.kill) for process in running]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
