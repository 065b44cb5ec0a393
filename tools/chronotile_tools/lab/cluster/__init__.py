"""A running cluster and its nodes, as Python sees them."""

from __future__ import annotations

import contextlib
import shutil
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
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
    """One node. It reads the cluster's state each time, so that what other processes do shows."""

    def __init__(self, cluster: Cluster, index: int) -> None:
        self.cluster = cluster
        self.index = index
        """Its number, from 1; never given to another node of the cluster."""
        self.name = f"node{index}"

    def __repr__(self) -> str:
        return f"<{self.name} of cluster {self.cluster.name}>"

    @property
    def state(self) -> NodeState:
        """What is known of it now."""
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
        """The number of its process; None when it does not run."""
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
        """Processor time its process has used since it began, in seconds."""
        process = self.state.process
        return 0.0 if process is None else process.cpu_s()

    @property
    def memory_bytes(self) -> int:
        """Memory its process holds (resident)."""
        process = self.state.process
        return 0 if process is None else process.memory_bytes()

    def serves(self, *, timeout_s: float = 2) -> bool:
        """Whether it takes a client right now."""
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
        """Start its process. Nothing happens when it runs.

        Parameters
        ----------
        address : str, optional
            A new address in the cluster's network, or ``"new"`` for a free one. The node keeps its data and identity.
        version : str, optional
            Run this version on the same data from now on.
        wait : bool
            Return only when it takes clients and sees the others.
        timeout_s : float
            How long to wait for that.
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
                raise LabError(f"{self.name} runs: stop it before you give it another address or version")
        if wait:
            self.wait_until_ready(timeout_s=timeout_s, echo=echo)

    def join(self, *, timeout_s: float = membership.STREAM_SECONDS, echo: Echo = quiet) -> Node:
        """Start a new node, again from nothing where it fails to fetch its data, and return it when it serves.

        Without success nothing of it stays but what the others saw.
        """
        return membership.join(self, timeout_s=timeout_s, echo=echo)

    def install(self, version: str, *, echo: Echo = quiet) -> None:
        """Let it run another version from its next start on.

        Raises
        ------
        LabError
            When it runs another one now.
        """
        release = versions.release(version)
        resources.prepare(release, echo)
        with state.changing(self.cluster.name) as cluster:
            node = cluster.node(self.index)
            if node.version == release.version:
                return
            if node.process is not None and node.process.alive():
                raise LabError(f"{self.name} runs: stop it before you give it another version")
            node.version = release.version

    def wait_until_ready(self, *, timeout_s: float = START_SECONDS, echo: Echo = quiet) -> None:
        """Wait until it takes clients, and it and the other running nodes see each other up and normal.

        Raises
        ------
        NodeFailedError
            When its process ends, with its own last errors.
        LabTimeoutError
            After `timeout_s`.
        """
        self.cluster._await([self.index], timeout_s, echo)

    def stop(self, *, timeout_s: float = STOP_SECONDS) -> None:
        """End its process in order (SIGTERM: it tells the others and flushes its log)."""
        process = self.state.process
        if process is not None:
            process.end(timeout_s)

    def kill(self) -> None:
        """End its process at once (SIGKILL), as a crash or a power cut does."""
        process = self.state.process
        if process is not None:
            process.kill()

    def pause(self) -> None:
        """Suspend its process (SIGSTOP): its connections stay open and nothing answers."""
        process = self._running()
        process.signal(signal.SIGSTOP)
        deadline = time.monotonic() + 5
        while not process.stopped() and process.alive() and time.monotonic() < deadline:
            time.sleep(0.005)

    def resume(self) -> None:
        """Let its paused process go on (SIGCONT)."""
        self._running().signal(signal.SIGCONT)

    def cut(self) -> None:
        """Cut it off: nothing passes to or from the other nodes and clients, until `heal`.

        Raises
        ------
        LabError
            When the cluster's network cannot do that (``lab-network``); the message says what is missing.
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
        """Run nodetool on it and return what that prints."""
        return tools.nodetool(self.cluster.state, self.state, arguments, timeout_s=timeout_s)

    def drain(self) -> None:
        """Flush its memory to disk and stop taking clients; its process stays."""
        self.nodetool("drain")

    def decommission(self, *, force: bool = False, timeout_s: float = membership.STREAM_SECONDS) -> None:
        """Have it hand its data to the others and leave the cluster; its process ends, its folder is removed.

        Parameters
        ----------
        force : bool
            Also when fewer nodes would stay than a keyspace wants replicas (4.0 and later refuse that).
        timeout_s : float
            How long to wait for that.
        """
        membership.decommission(self, force=force, timeout_s=timeout_s)

    def remove(self, *, timeout_s: float = membership.STREAM_SECONDS) -> None:
        """Remove it from the cluster while it is down, for good; the others fetch from each other what it had."""
        membership.remove(self, timeout_s=timeout_s)

    def replace(
        self, *, same_address: bool = False, timeout_s: float = membership.STREAM_SECONDS, echo: Echo = quiet
    ) -> Node:
        """Put a new node in its place while it is down, for good, and return that when it serves.

        The new node takes over its tokens and fetches its data from the others.

        Parameters
        ----------
        same_address : bool
            Give the new node the address of this one.
        timeout_s : float
            How long to wait for that.
        """
        return membership.replace(self, same_address=same_address, timeout_s=timeout_s, echo=echo)

    def forget(self) -> None:
        """End its process and remove its folder, once the others no longer count on it: it left, or was removed."""
        membership.forget(self)

    def connect(self, *, timeout_s: float = 10) -> wire.Connection:
        """A connection of the laboratory's own small client, logged in as the superuser."""
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
            raise LabError(f"{self.name} of cluster {self.cluster.name} does not run")
        return process


class Cluster:
    """A cluster of real Cassandra nodes on this machine.

    As a context manager it takes the cluster down at the end, unless it was started with ``keep=True``.
    """

    def __init__(self, name: str) -> None:
        self.name = state.load(name).name

    def __repr__(self) -> str:
        return f"<cluster {self.name}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(LabNotFoundError):
            if self.state.owner is not None:
                self.down()

    @property
    def state(self) -> ClusterState:
        """What is known of it now."""
        return state.load(self.name)

    @property
    def folder(self) -> Path:
        """Its folder."""
        return state.folder(self.name)

    @property
    def nodes(self) -> list[Node]:
        """Its nodes by number, those that are down too."""
        return [Node(self, node.index) for node in self.state.nodes]

    def node(self, which: int | str) -> Node:
        """A node by its number (2), name (``"node2"``) or address.

        Raises
        ------
        LabNotFoundError
            When the cluster has none such.
        """
        # At the address of a dead node the one that takes its place is meant.
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
        """``loopback`` or ``namespaces``; only in the second can nodes be cut off."""
        return self.state.network

    @property
    def credentials(self) -> tuple[str, str] | None:
        """User and password of its superuser; None where no password is asked."""
        try:
            user, password = self.credentials_file.read_text(encoding="utf-8").splitlines()[:2]
        except FileNotFoundError:
            return None
        return user, password

    @property
    def credentials_file(self) -> Path:
        """The file that holds user and password, a line each, readable by the owner only."""
        return self.folder / "credentials"

    @property
    def tls(self) -> tls.Tls | None:
        """The files a client needs; None where the nodes speak plainly."""
        cluster = self.state
        if cluster.tls == "none":
            return None
        return tls.client_files(self.folder / "tls", mutual=cluster.tls == "mutual")

    def url(self, keyspace: str = "") -> str:
        """The URL of an archive in this keyspace, without user and password."""
        hosts = ",".join(f"{address}:{self.native_port}" for address in self.contact_points)
        return f"cassandra://{hosts}/{keyspace}" if keyspace else f"cassandra://{hosts}"

    def nodetool(self, which: int | str | Node, *arguments: str, timeout_s: float = 600) -> str:
        """Run nodetool on a node and return what that prints."""
        node = which if isinstance(which, Node) else self.node(which)
        return node.nodetool(*arguments, timeout_s=timeout_s)

    def configure(self, **settings: Any) -> None:
        """Set settings of cassandra.yaml, which each node takes up at its next start."""
        with state.changing(self.name) as cluster:
            cluster.settings |= settings

    def wait_until_ready(self, *, timeout_s: float = START_SECONDS, echo: Echo = quiet) -> None:
        """Wait until every node whose process runs takes clients and sees the others."""
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
        """Add a node; return it when it has fetched its share of the data and serves.

        Parameters
        ----------
        dc, rack : str, optional
            Where it stands. Default: the data centre of the first node, and its rack with the fewest nodes.
        heap, version : optional
            As the cluster's by default.
        timeout_s : float
            How long to wait for that.
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
        """Restart nodes one after the other, each when the one before serves again and sees all others.

        Parameters
        ----------
        nodes : sequence of Node, optional
            Which ones. All by default.
        version : str, optional
            Run this version from now on: a rolling upgrade. The format of the data is upgraded by ``nodetool
            upgradesstables``, which is left to you.
        new_addresses : bool
            Give each node another address.
        timeout_s : float
            How long to wait for each.
        """
        membership.restart(self, nodes, version=version, new_addresses=new_addresses, timeout_s=timeout_s, echo=echo)

    def down(self, *, timeout_s: float = OPERATION_SECONDS) -> None:
        """End all its processes and remove its folder, with all data."""
        take_down(self.name, timeout_s=timeout_s)

    def _await(self, indexes: Sequence[int], timeout_s: float, echo: Echo) -> None:
        cluster = self.state
        nodes = [cluster.node(index) for index in indexes]
        launching.await_serving(cluster, nodes, timeout_s, echo)
        with state.changing(self.name) as changed:
            for node in nodes:
                found = changed.node(node.index)
                membership.strike_replaced(changed, found)
                found.joined, found.host_id, found.replaces = True, node.host_id or found.host_id, None

    def _free_address(self, cluster: ClusterState, asked: str = "new") -> str:
        net = network.existing(cluster.network, cluster.prefix)
        used = {node.address for node in cluster.nodes}
        if asked == "new":
            # From the numbers that no node began with: whoever reads a log sees that the address changed.
            last = max(int(address.rpartition(".")[2]) for address in used)
            asked = net.address(last + 1)
        if not net.holds(asked):
            raise InvalidInputError(
                f"{asked} is not in the cluster's network: use {net.prefix}.1 to {net.prefix}.250",
                kind="invalid-request",
            )
        if asked in used:
            raise InvalidInputError(f"another node has the address {asked}", kind="invalid-request")
        return asked


def take_down(name: str, *, timeout_s: float = OPERATION_SECONDS) -> None:
    """End a cluster's processes and remove its folder, also one that was never finished.

    Ends those processes only that are in its state with their moment of birth, or carry its folder in their arguments.
    """
    folder = state.folder(places.checked_name(name))
    if not folder.is_dir():
        state.load(name)
    with operating(name, "take it down", timeout_s=timeout_s):
        try:
            cluster = state.load(name)
        except LabError:
            # It was never finished, or its state is damaged; its processes are known by their arguments.
            cluster = None
        clear_away(name, cluster)


def clear_away(name: str, cluster: ClusterState | None) -> None:
    """Remove all there is of a cluster. The caller is the only one who works on it."""
    end_processes(name)
    if cluster is not None and cluster.prefix:
        network.existing(cluster.network, cluster.prefix).drop()
    folder = state.folder(name)
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        raise LabError(f"{folder} could not be removed whole: remove it by hand", kind="lab-state")
    for lock in (f"{name}.state", f"{name}.nodes"):
        places.remove_lock(lock)


def end_processes(name: str) -> None:
    """End the processes of a cluster's nodes, all at once; its data will not be read again, so at once."""
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
