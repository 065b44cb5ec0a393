"""Take a snapshot: query all nodes concurrently over CQL and, if available, JMX."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from chronotile.errors import AccessDeniedError, ChronotileError, UnavailableError
from chronotile_tools.ops import reading_beans, reading_cql
from chronotile_tools.ops.access import Access, Host
from chronotile_tools.ops.state import ClusterSettings, Disk, HintsFor, Node, Snapshot, TableRepair, Unobserved

__all__ = ["PendingRequests", "observe"]

# Each nodetool starts a JVM; more of them would only compete for the CPU.
_JMX_AT_ONCE = max(2, (os.cpu_count() or 2))

_HINT_FILE = re.compile(r"(?P<host>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})-(?P<milliseconds>\d+)-\d+\.hints")


class PendingRequests:
    """Pending requests of a snapshot. Thread-safe."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._done = 0
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def on(self, what: str) -> Iterator[None]:
        """Mark a request as pending while the context lasts."""
        with self._lock:
            self._since[what] = time.monotonic()
        try:
            yield
        finally:
            with self._lock:
                del self._since[what]
                self._done += 1

    def __str__(self) -> str:
        """Number of answers, and pending requests, longest first; empty if none is pending."""
        with self._lock:
            left, done = sorted(self._since.items(), key=lambda one: one[1]), self._done
        if not left:
            return ""
        now = time.monotonic()
        named = ", ".join(f"{what} ({now - since:.0f} s)" for what, since in left[:3])
        more = f" and {len(left) - 3} more" if len(left) > 3 else ""
        return f"{done} of {done + len(left)} answers; waiting for {named}{more}"


def observe(
    access: Access, *, jmx: bool = True, jmx_timeout_s: float = 30.0, waits: PendingRequests | None = None
) -> Snapshot:
    """Take a snapshot of a cluster. Changes nothing.

    Parameters
    ----------
    access : Access
        Access to the cluster.
    jmx : bool
        Also query the management interface, if `access` has a runner.
    jmx_timeout_s : float
        Timeout of each JMX request in seconds.
    waits : PendingRequests, optional
        Receives the pending requests.

    Raises
    ------
    UnavailableError
        No node answers in any way.
    AccessDeniedError
        No node answers, and at least one rejects the login or the certificate.
    """
    taken = datetime.now(UTC)
    waits = PendingRequests() if waits is None else waits
    ring = _Ring(access, waits)
    runner = access.runner if jmx else None
    with concurrent.futures.ThreadPoolExecutor(_JMX_AT_ONCE, "jmx") as jmx_pool:
        asked: dict[str, concurrent.futures.Future[dict[str, Any]]] = {}

        def ask_jmx(hosts: list[Host]) -> None:
            if runner is None:
                return

            def beans_of(host: Host) -> dict[str, Any]:
                with waits.on(f"JMX of {host} by {runner.name}"):
                    return dict(runner.beans(host, timeout_s=jmx_timeout_s))

            for host in hosts:
                if host.address not in asked:
                    asked[host.address] = jmx_pool.submit(beans_of, host)

        ring.explore(ask_jmx)
        beans: dict[str, dict[str, Any]] = {}
        for address, future in asked.items():
            try:
                answer = future.result()
            except ChronotileError as error:
                ring.missed(address, "jmx", str(error))
            else:
                if address in ring.hosts:
                    beans[address] = answer
    if runner is None:
        reason = "not requested" if access.runner is not None else "no access: pass --nodetool or --jolokia"
        for host in ring.hosts.values():
            ring.missed(host.address, "jmx", reason)
    ring.require_an_answer(beans)
    return _snapshot(access, taken, ring, beans)


class _Ring:
    """Nodes discovered so far, with their CQL answers and missing data."""

    def __init__(self, access: Access, waits: PendingRequests) -> None:
        self.access, self.waits = access, waits
        known = list(access.runner.hosts()) if access.runner is not None else []
        self.hosts = {address: Host(address, address) for address in dict.fromkeys([*access.contact_points, *known])}
        self.views: dict[str, reading_cql.CqlView] = {}
        self.errors: dict[str, ChronotileError] = {}
        self.not_seen: list[Unobserved] = []

    def missed(self, address: str, what: str, reason: str) -> None:
        self.not_seen.append(Unobserved(address, what, reason))

    def explore(self, found: Callable[[list[Host]], None]) -> None:
        """Query the contact points, then the nodes that they report, until no new node is found."""
        done: set[str] = set()
        while waiting := [host for address, host in self.hosts.items() if address not in done]:
            known_before = bool(self.views)
            with concurrent.futures.ThreadPoolExecutor(16, "cql") as pool:
                # Contact points may be host names: query JMX once a node has reported the addresses.
                if known_before:
                    found(waiting)
                for host, view in pool.map(self._ask, waiting):
                    done.add(host.address)
                    if view is not None:
                        self._learn(host, view)
                        done.add(view.address)
        self._drop_unknown_hosts()
        found(list(self.hosts.values()))

    def _drop_unknown_hosts(self) -> None:
        """Drop contact points that did not answer and that no node knows: host names of known nodes, or machines
        outside the cluster.
        """
        if not self.views:
            return
        known = {peer.address for view in self.views.values() for peer in view.peers} | set(self.views)
        for address in [address for address in self.hosts if address not in known]:
            del self.hosts[address]
            self.missed(address, "cql", f"{self.errors[address]} (unknown to all answering nodes)")

    def _ask(self, host: Host) -> tuple[Host, reading_cql.CqlView | None]:
        try:
            with self.waits.on(f"CQL of {host}"):
                return host, reading_cql.read_node(self.access, host)
        except ChronotileError as error:
            self.errors[host.address] = error
            return host, None

    def _learn(self, host: Host, view: reading_cql.CqlView) -> None:
        if view.address != host.address:
            # The contact point is another name of this node.
            del self.hosts[host.address]
            self.hosts.setdefault(view.address, Host(view.address, host.native_address))
        self.views[view.address] = view
        for peer in view.peers:
            native = peer.native_address or peer.address
            self.hosts.setdefault(peer.address, Host(peer.address, native))

    def require_an_answer(self, beans: dict[str, dict[str, Any]]) -> None:
        for address, error in self.errors.items():
            if address in self.hosts:
                self.missed(address, "cql", str(error))
        if self.views or beans:
            return
        denied = [error for error in self.errors.values() if isinstance(error, AccessDeniedError)]
        if denied:
            raise denied[0]
        reasons = "; ".join(str(error) for error in self.errors.values())
        raise UnavailableError(f"no node of the cluster answers: {reasons}", kind="no-node")


def _snapshot(access: Access, taken: datetime, ring: _Ring, beans: dict[str, dict[str, Any]]) -> Snapshot:
    nodes = {address: Node(address, host.native_address) for address, host in ring.hosts.items()}
    for viewer, view in ring.views.items():
        for peer in view.peers:
            nodes[peer.address] = _described(nodes[peer.address], peer, only_missing=peer.address in ring.views)
        nodes[viewer] = _described(nodes[viewer], view.own, only_missing=False)
    for address, view in ring.views.items():
        nodes[address] = dataclasses.replace(nodes[address], cql=True, **view.fields)
        for what, reason in view.not_seen:
            ring.missed(address, what, reason)
    for address, found in beans.items():
        nodes[address] = _with_beans(nodes[address], ring, found)
    _add_views(nodes, ring, beans)
    for address, found in beans.items():
        nodes[address] = dataclasses.replace(nodes[address], disks=_disks(access, ring, nodes[address], found))
        view_or_none = ring.views.get(address)
        if view_or_none is not None and view_or_none.hints_folder is not None:
            hints = _hints(ring, nodes, address, view_or_none.hints_folder)
            nodes[address] = dataclasses.replace(nodes[address], hints=hints)
    repairs, settings = _cluster_wide(ring)
    name = next((view.cluster for view in ring.views.values()), None)
    return Snapshot(
        taken, name, sorted(nodes.values(), key=lambda node: _address_key(node.address)), repairs, settings,
        sorted(ring.not_seen, key=lambda gap: (gap.node, gap.what)),
    )  # fmt: skip


def _with_beans(node: Node, ring: _Ring, beans: dict[str, Any]) -> Node:
    try:
        fields, not_seen = reading_beans.node_fields(beans)
    except (KeyError, TypeError, ValueError) as error:
        # A starting node, or another program at its port, may return unexpected data.
        fields, not_seen = {}, [("jmx", f"unexpected answer: {type(error).__name__}: {error}")]
    for what, reason in not_seen:
        ring.missed(node.address, what, reason)
    # Prefer the node's own tables; other nodes' data about it may be outdated.
    own = {name for name in ("schema", "release", "tokens") if node.address in ring.views}
    reported = {name: value for name, value in fields.items() if value is not None and name not in own}
    return dataclasses.replace(node, jmx="mode" in fields, **reported)


def _cluster_wide(ring: _Ring) -> tuple[list[TableRepair] | None, ClusterSettings]:
    """Cluster-wide data, from the first node that can be queried."""
    reason = "no node answered over CQL"
    settings = ClusterSettings()
    for view in ring.views.values():
        settings = ClusterSettings(max_hint_window_s=view.max_hint_window_s)
        if view.repairs is not None:
            return view.repairs, settings
        reason = view.repairs_reason
    ring.missed("cluster", "repair history", reason)
    return None, settings


def _described(node: Node, reported: reading_cql.Peer, *, only_missing: bool) -> Node:
    reported_fields = {
        name: getattr(reported, name) for name in ("host_id", "dc", "rack", "release", "schema", "tokens")
    }
    fields = {
        name: value
        for name, value in reported_fields.items()
        if value is not None and not (only_missing and getattr(node, name) is not None)
    }
    return dataclasses.replace(node, **fields)


def _add_views(nodes: dict[str, Node], ring: _Ring, beans: dict[str, dict[str, Any]]) -> None:
    """Add each viewer's status of each node. JMX knows which nodes are up; gossip over CQL only knows their announced
    state.
    """
    for viewer in list(nodes):
        if viewer in beans:
            seen = reading_beans.seen(beans[viewer])
        elif viewer in ring.views:
            seen = ring.views[viewer].seen
        else:
            continue
        for address, status in seen.items():
            if address not in nodes:
                nodes[address] = Node(address, address)
            nodes[address].seen_by[viewer] = status


def _disks(access: Access, ring: _Ring, node: Node, beans: dict[str, Any]) -> list[Disk]:
    folders = reading_beans.data_folders(beans)
    if not folders or access.runner is None:
        return []
    try:
        text = access.runner.shell(Host(node.address, node.native_address), "df", "-Pk", *folders)
    except ChronotileError as error:
        ring.missed(node.address, "disk", str(error))
        return []
    return read_df(text, folders)


def _hints(ring: _Ring, nodes: dict[str, Node], address: str, folder: str) -> list[HintsFor] | None:
    """Hints from the files, because the virtual table lacks files that are still being written."""
    reported, host = nodes[address].hints, Host(address, nodes[address].native_address)
    try:
        assert ring.access.runner is not None
        text = ring.access.runner.shell(host, "ls", "-1", folder)
    except ChronotileError as error:
        ring.missed(address, "files of hints", str(error))
        return reported
    addresses = {node.host_id: node.address for node in nodes.values()}
    return read_hint_files(text, addresses)


def read_hint_files(text: str, addresses: Mapping[str | None, str]) -> list[HintsFor]:
    """Hints by host, from file names, which contain the host id and the creation time."""
    begun: dict[str, list[int]] = {}
    for match in filter(None, map(_HINT_FILE.fullmatch, text.splitlines())):
        begun.setdefault(match["host"], []).append(int(match["milliseconds"]))
    return [
        HintsFor(host, addresses.get(host, "a former node"), len(times), datetime.fromtimestamp(min(times) / 1e3, UTC))
        for host, times in sorted(begun.items())
    ]


def read_df(text: str, folders: list[str]) -> list[Disk]:
    """Parse the output of POSIX ``df -Pk`` for `folders`, one line each."""
    disks = []
    for folder, line in zip(folders, text.splitlines()[1:], strict=False):
        words = line.split()
        if len(words) < 6 or not words[1].isdigit():
            continue
        # Blocks reserved for root are not free for Cassandra.
        disks.append(Disk(folder, (int(words[2]) + int(words[3])) * 1024, int(words[3]) * 1024))
    return disks


def _address_key(address: str) -> tuple[Any, ...]:
    parts = address.split(".")
    return (0, *map(int, parts)) if len(parts) == 4 and all(part.isdigit() for part in parts) else (1, address)
