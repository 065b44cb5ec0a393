"""Making a cluster: what fits, what it is called, and all of it at once."""

from __future__ import annotations

import datetime
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from chronotile.errors import InvalidInputError
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
from chronotile_tools.lab.cluster import Cluster, clear_away, end_processes
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
    """Start a cluster and wait until all its nodes serve and see each other.

    Parameters
    ----------
    name : str, optional
        Its name; a new one by default.
    nodes : int, optional
        Nodes of its only data centre, dc1. Default 3.
    dc : str, optional
        Data centres instead: ``"2x3"`` for two of three nodes each, or ``"east:3,west:2"``.
    racks : int
        Racks in each data centre.
    version : str, optional
        ``"5.0"``, ``"4.1"``, ``"4.0"``, ``"3.11"`` or a full number. Default: that of ``$CASSANDRA_HOME``, else 5.0.
    heap : str or int
        Heap of each node: ``"512m"``, ``"1g"`` or a number of MiB. At least 200 MiB.
    auth : bool
        Ask for user and password (PasswordAuthenticator, CassandraAuthorizer). The superuser is new, its password
        random: see `Cluster.credentials`. The default user is removed.
    tls : bool or "server" or "mutual"
        Encrypt connections of clients; ``"mutual"`` refuses those without a certificate. See `Cluster.tls`.
    settings : mapping, optional
        Settings of cassandra.yaml, by name; a dot leads into a nested one.
    java_options : sequence of str
        More options for the nodes' Java.
    network : "auto", "loopback" or "namespaces"
        Nodes can be cut off only with ``namespaces``, which needs root; ``auto`` takes them where they work.
    keep : bool
        Let the cluster live on when this process ends. Otherwise it ends with it, however this process ends.
    timeout_s : float
        How long to wait until all nodes serve.
    echo : callable
        Called with lines of progress.

    Raises
    ------
    InvalidInputError
        When an argument cannot be used.
    LabExistsError
        When there is a cluster of this name.
    MissingToolError
        When Java or Maven is needed and missing.
    NodeFailedError
        When a node ends while starting. The message has its last errors.
    LabError
        When it would not fit in memory (``lab-memory``), among others.
    """
    standing = layout.places(nodes, dc, racks)
    release = versions.release(version or software.default_version())
    heap_mb = resources.read_heap(heap)
    if auth and settings and "authenticator" in settings:
        raise InvalidInputError("give auth or an authenticator of your own, not both", kind="invalid-setting")
    resources.check_memory(len(standing), heap_mb)
    resources.prepare(release, echo)
    name = places.checked_name(f"lab-{secrets.token_hex(4)}" if name is None else name)
    encryption: Encryption = "mutual" if tls == "mutual" else "server" if tls else "none"
    with operating(name, "start it", timeout_s=5):
        _make_room(name, echo)
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
            index_next=len(standing) + 1,
            owner=None if keep else Process.of(os.getpid()),
        )
        try:
            _reserve(cluster, network, standing)
            _start(cluster, timeout_s, echo)
        except BaseException as error:
            _abandon(cluster, error)
            raise
    return Cluster(name)


def attach(name: str) -> Cluster:
    """A cluster that was started before, by this process or another. It does not end with this one.

    Raises
    ------
    LabNotFoundError
        When there is none of this name.
    """
    return Cluster(name)


def survey() -> list[dict[str, Any]]:
    """What there is in this home: for each cluster its name, status, nodes and how many of them run.

    The status is ``ready``, ``failed``, ``starting``, or ``half-made`` where whoever was starting it is gone.
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
        if status == "starting" and not _being_made(name):
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


def _being_made(name: str) -> bool:
    try:
        with operating(name, "look at it", timeout_s=0):
            return False
    except LabBusyError:
        return True


def _make_room(name: str, echo: Echo) -> None:
    """Remove what a start that did not succeed left under this name. The caller holds the cluster's lock."""
    folder = state.folder(name)
    if not folder.exists():
        return
    try:
        found = state.load(name)
    except LabError:
        found = None
    if found is not None and found.status == "ready":
        raise LabExistsError(f"there is a cluster {name!r}: take it down first (chronotile lab down {name})")
    echo(f"removing the remains of an earlier start of {name}")
    clear_away(name, found)


def _reserve(cluster: ClusterState, asked: str, standing: Sequence[layout.Place]) -> None:
    """Give the cluster its folder and its network, alone among all that start at this moment."""
    kind = network.choose(asked)
    ports = (config.NATIVE_PORT, config.STORAGE_PORT)
    with places.locked("network", timeout_s=60, what="find a free network"):
        net = network.reserve(kind, [other.prefix for other in resources.all_states() if other.network == kind], ports)
        cluster.network, cluster.prefix = kind, net.prefix
        taken = resources.ports_taken()
        for index, (place, own) in enumerate(zip(standing, layout.tokens(standing), strict=True), 1):
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
        watch.begin(cluster.name)
    if cluster.tls != "none":
        tls.make_authority(state.folder(cluster.name) / "tls", mutual=cluster.tls == "mutual")
    for node in cluster.nodes:
        launching.launch(cluster, node)
        state.save(cluster)
    echo(f"{len(cluster.nodes)} nodes of Cassandra {cluster.version} started at {cluster.prefix}.1 and up")
    launching.await_serving(cluster, cluster.nodes, timeout_s, echo)
    if cluster.auth:
        security.replace_default_superuser(cluster, timeout_s=60)
    for node in cluster.nodes:
        node.joined = True
    cluster.status = "ready"
    state.save(cluster)
    echo(f"cluster {cluster.name} is ready after {time.monotonic() - began:.0f} s")


def _abandon(cluster: ClusterState, error: BaseException) -> None:
    """After a failed start: nothing runs on; logs stay where somebody may come to read them."""
    if cluster.owner is not None or not state.folder(cluster.name).exists():
        clear_away(cluster.name, cluster)
        return
    end_processes(cluster.name)
    if cluster.prefix:
        network.existing(cluster.network, cluster.prefix).drop()
    cluster.status, cluster.failure = "failed", str(error) or type(error).__name__
    for node in cluster.nodes:
        node.process = None
    state.save(cluster)
