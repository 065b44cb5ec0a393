"""Create a cluster: check resources, reserve its name and network, and start its nodes."""

from __future__ import annotations

import datetime
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from chronotile.errors import InvalidInputError
from chronotile.terminal import count_text
from chronotile_tools.lab import (
    config,
    launching,
    layout,
    network,
    places,
    resources,
    security,
    software,
    state,
    tls,
    versions,
    watch,
)
from chronotile_tools.lab.cluster import Cluster, delete_cluster, end_processes
from chronotile_tools.lab.errors import LabBusyError, LabError, LabExistsError, LabNotFoundError
from chronotile_tools.lab.launching import START_SECONDS, Echo, quiet
from chronotile_tools.lab.processes import Process
from chronotile_tools.lab.state import ClusterState, Encryption, NodeState, operating


def up(
    name: str | None = None,
    *,
    nodes: int | None = None,
    dc: str | None = None,
    racks: int = 1,
    version: str | None = None,
    heap: str | int = resources.HEAP_MB_DEFAULT,
    auth: bool = False,
    tls: bool | Literal["server", "mutual"] = False,
    settings: Mapping[str, Any] | None = None,
    java_options: Sequence[str] = (),
    network: Literal["auto", "loopback", "namespaces"] = "auto",
    keep: bool = False,
    timeout_s: float = START_SECONDS,
    echo: Echo = quiet,
) -> Cluster:
    """Start a cluster and wait until all nodes serve clients and see each other.

    Parameters
    ----------
    name : str, optional
        Cluster name; a new one by default.
    nodes : int, optional
        Number of nodes in a single data centre, dc1. Default 3.
    dc : str, optional
        Data centres, instead of `nodes`: ``"2x3"`` for two of three nodes each, or ``"east:3,west:2"``.
    racks : int
        Racks in each data centre.
    version : str, optional
        ``"5.0"``, ``"4.1"``, ``"4.0"``, ``"3.11"``, ``"6.0"`` (an alpha version) or a full number. Default: that
        of ``$CASSANDRA_HOME``, else 5.0.
    heap : str or int
        Heap of each node: ``"512m"``, ``"1g"`` or a number of MiB. At least 200 MiB.
    auth : bool
        Require user and password (PasswordAuthenticator, CassandraAuthorizer). A superuser with a random password
        replaces the default user: see `Cluster.credentials`.
    tls : bool or "server" or "mutual"
        Encrypt client connections; ``"mutual"`` also requires client certificates. See `Cluster.tls`.
    settings : mapping, optional
        Settings of cassandra.yaml, by name; a dot separates nested levels.
    java_options : sequence of str
        More options for the nodes' Java.
    network : "auto", "loopback" or "namespaces"
        Cutting nodes off requires ``namespaces``, which need root; ``auto`` uses them if they work.
    keep : bool
        Keep the cluster running after this process ends. Otherwise the cluster ends with the process, even if that is
        killed.
    timeout_s : float
        Timeout in seconds until all nodes serve clients.
    echo : callable
        Called with lines of progress.

    Raises
    ------
    InvalidInputError
        An argument is invalid.
    LabExistsError
        A cluster of this name exists.
    MissingToolError
        Java or Maven is required and missing.
    NodeFailedError
        A node stopped during startup; the message has its last errors.
    LabError
        The cluster would not fit in memory (``lab-memory``), or starting it failed for another reason.
    """
    locations = layout.places(nodes, dc, racks)
    release = versions.release(version or software.default_version())
    heap_mb = resources.read_heap(heap)
    if auth and settings and "authenticator" in settings:
        raise InvalidInputError("give either auth or your own authenticator", kind="invalid-setting")
    resources.check_memory(len(locations), heap_mb)
    resources.prepare(release, echo)
    name = places.checked_name(f"lab-{secrets.token_hex(4)}" if name is None else name)
    encryption: Encryption = "mutual" if tls == "mutual" else "server" if tls else "none"
    with operating(name, "start it", timeout_s=5):
        _clear_failed_start(name, echo)
        cluster = ClusterState(
            name=name,
            status="starting",
            created_utc=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            version=release.version,
            network="",
            prefix="",
            heap_mb=heap_mb,
            auth=auth,
            tls=encryption,
            settings=dict(settings or {}),
            java_options=list(java_options),
            nodes=[],
            index_next=len(locations) + 1,
            owner=None if keep else Process.of(os.getpid()),
        )
        try:
            _reserve(cluster, network, locations)
            _start(cluster, timeout_s, echo)
        except BaseException as error:
            _abandon(cluster, error)
            raise
    return Cluster(name)


def attach(name: str) -> Cluster:
    """Attach to a running cluster, started by this process or another. It does not end with this process.

    Raises
    ------
    LabNotFoundError
        No such cluster.
    """
    return Cluster(name)


def survey() -> list[dict[str, Any]]:
    """List the clusters of this home: name, status, number of nodes, and number of running nodes.

    The status is ``ready``, ``failed``, ``starting``, or ``half-made`` if the process that started it is gone.
    """
    rows = []
    for name in state.names():
        try:
            cluster = state.load(name)
        except LabNotFoundError:
            rows.append({"name": name, "status": "half-made", "nodes": 0, "running": 0, "version": "-"})
            rows[-1] |= {"network": "-", "addresses": "-"}
            continue
        status: str = cluster.status
        if status == "starting" and not _is_starting(name):
            status = "half-made"
        running = sum(node.process is not None and node.process.alive() for node in cluster.nodes)
        rows.append(
            {
                "name": name,
                "status": status,
                "nodes": len(cluster.nodes),
                "running": running,
                "version": cluster.version,
                "network": cluster.network,
                "addresses": f"{cluster.prefix}.0/24",
            }
        )
    return rows


def _is_starting(name: str) -> bool:
    try:
        with operating(name, "look at it", timeout_s=0):
            return False
    except LabBusyError:
        return True


def _clear_failed_start(name: str, echo: Echo) -> None:
    """Remove the remains of a failed start under this name. The caller holds the cluster's lock."""
    folder = state.folder(name)
    if not folder.exists():
        return
    try:
        found = state.load(name)
    except LabError:
        found = None
    if found is not None and found.status == "ready":
        raise LabExistsError(f"cluster {name!r} exists: take it down first (chronotile lab down {name!r})")
    echo(f"removing the remains of an earlier start of {name}")
    delete_cluster(name, found)


def _reserve(cluster: ClusterState, asked: str, locations: Sequence[layout.NodeLocation]) -> None:
    """Assign folder and network to the cluster, under the lock that serializes starting clusters."""
    kind = network.choose(asked)
    ports = (config.NATIVE_PORT, config.STORAGE_PORT)
    with places.locked("network", timeout_s=60, what="find a free network"):
        net = network.reserve(kind, [other.prefix for other in resources.all_states() if other.network == kind], ports)
        cluster.network, cluster.prefix = kind, net.prefix
        taken = resources.ports_taken()
        for index, (place, own) in enumerate(zip(locations, layout.tokens(locations), strict=True), 1):
            port = net.jmx_port([*taken, *(node.jmx_port for node in cluster.nodes)])
            cluster.nodes.append(
                NodeState(
                    index, place.dc, place.rack, net.address(index), port, cluster.version, cluster.heap_mb, tokens=own
                )
            )
        state.folder(cluster.name).mkdir(mode=0o700, parents=True)
        state.save(cluster)


def _start(cluster: ClusterState, timeout_s: float, echo: Echo) -> None:
    began = time.monotonic()
    if cluster.owner is not None:
        # The watchdog starts before the nodes, so that these end with this process even if it is killed meanwhile.
        watch.begin(cluster.name)
    if cluster.tls != "none":
        tls.make_authority(state.folder(cluster.name) / "tls", mutual=cluster.tls == "mutual")
    for node in cluster.nodes:
        launching.launch(cluster, node)
        state.save(cluster)
    nodes = count_text(len(cluster.nodes), "node")
    echo(f"{nodes} of Cassandra {cluster.version} started at {cluster.prefix}.1 and up")
    launching.await_serving(cluster, cluster.nodes, timeout_s, echo)
    if cluster.auth:
        security.replace_default_superuser(cluster, timeout_s=60)
    for node in cluster.nodes:
        node.joined = True
    cluster.status = "ready"
    state.save(cluster)
    echo(f"cluster {cluster.name} is ready after {time.monotonic() - began:.0f} s")


def _abandon(cluster: ClusterState, error: BaseException) -> None:
    """Clean up after a failed start: stop all processes, but keep logs that a user may want to read."""
    if cluster.owner is not None or not state.folder(cluster.name).exists():
        delete_cluster(cluster.name, cluster)
        return
    end_processes(cluster.name)
    if cluster.prefix:
        network.existing(cluster.network, cluster.prefix).drop()
    cluster.status, cluster.failure = "failed", str(error) or type(error).__name__
    for node in cluster.nodes:
        node.process = None
    state.save(cluster)
