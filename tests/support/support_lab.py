"""Fixtures of Cassandra clusters that tests share; conftest.py imports them.

The clusters are small and start fast: 300 MiB of heap, only Java's fast compiler, the collector that
costs least on a small heap, and no bytecode verification. They use a laboratory folder of this test run, so they never
touch the user's clusters, and they end with the run even if it is killed.
"""

from __future__ import annotations

import contextlib
import os
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chronotile_tools import lab
from chronotile_tools.errors import CqlError
from chronotile_tools.lab import places, resources, versions

QUICK: dict[str, Any] = {
    "heap": "300m",
    "java_options": [
        "-XX:TieredStopAtLevel=1",
        "-XX:-UseG1GC",
        "-XX:+UseSerialGC",
        "-XX:+UnlockDiagnosticVMOptions",
        "-XX:-BytecodeVerificationRemote",
        # By default a node reads the clock 500 times a second, which is half of its processor time when idle.
        "-Dcassandra.approximate_time_precision_ms=20",
    ],
}
MANY_TABLES: dict[str, Any] = {"heap": "450m", "settings": {"memtable_allocation_type": "unslabbed_heap_buffers"}}
"""For nodes with the tables of all tests: otherwise each written table takes 1 MiB of the heap, which suffices for some
160 tables. Tests do not drop their tables, because that takes three times as long as creating them."""


def require_software(version: str = versions.DEFAULT) -> None:
    """Skip the test, with a clear message, if Java or Maven is missing. A cluster that does not start is a failure."""
    try:
        resources.prepare(versions.release(version))
    except lab.MissingToolError as error:
        pytest.skip(f"CASSANDRA IS ABSENT: {error}")


@pytest.fixture(scope="session")
def lab_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of this run's clusters, which the laboratory uses in this process and its child processes."""
    before = os.environ.get(places.HOME_VARIABLE)
    home = tmp_path_factory.mktemp("lab")
    os.environ[places.HOME_VARIABLE] = str(home)
    yield home
    if before is None:
        del os.environ[places.HOME_VARIABLE]
    else:
        os.environ[places.HOME_VARIABLE] = before


@pytest.fixture(scope="session")
def shared_cluster(lab_home: Path) -> Iterator[lab.Cluster]:
    """Three nodes of the newest release. Tests that disturb them use `cluster` instead."""
    require_software()
    with lab.up("shared", nodes=3, **QUICK | MANY_TABLES) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: lab.Cluster) -> Iterator[lab.Cluster]:
    """The three shared nodes, for tests that kill, pause or disconnect them; restores them afterwards."""
    yield shared_cluster
    serve_again(shared_cluster)


def serve_again(cluster: lab.Cluster) -> None:
    """Restore every node that a test stopped, paused or disconnected, and wait until all see each other."""
    touched = False
    for node in cluster.nodes:
        status = node.status
        touched |= status != "up"
        if status == "paused":
            node.resume()
        if node.state.cut:
            node.heal()
        if status == "down":
            node.start(wait=False)
    if touched:
        cluster.wait_until_ready()


@pytest.fixture(scope="session")
def single_node(lab_home: Path) -> Iterator[lab.Cluster]:
    """One node that creates tables fast, because it does not flush schema changes to disk. Tests must not kill it."""
    require_software()
    fast = ["-Dcassandra.test.flush_local_schema_changes=false", "-Dcassandra.unsafesystem=true"]
    options = QUICK | MANY_TABLES | {"java_options": QUICK["java_options"] + fast}
    with lab.up("single", nodes=1, **options) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def secure_cluster(lab_home: Path) -> Iterator[lab.Cluster]:
    """Two nodes that require a password and a client certificate."""
    require_software()
    with lab.up("secure", nodes=2, auth=True, tls="mutual", **QUICK) as cluster:
        yield cluster


def read_alone(cluster: lab.Cluster, node: lab.Node, statement: str) -> list[list[str]]:
    """Rows that one node stores: queries it while the other nodes are paused, until it sees them down."""
    others = [other for other in cluster.nodes if other.index != node.index]
    for other in others:
        other.pause()
    deadline = time.monotonic() + 120
    try:
        while True:
            try:
                with node.connect(timeout_s=60) as connection:
                    return connection.run(statement, consistency="ONE").rows
            except CqlError:
                if time.monotonic() > deadline:
                    raise
    finally:
        for other in others:
            other.resume()


def keyspace_of(request: pytest.FixtureRequest) -> str:
    """A keyspace name that is unique to this test and its parameters."""
    name = "".join(c for c in request.node.name.lower() if c.isalnum() or c == "_")
    return f"{name[:30]}_{zlib.crc32(request.node.name.encode()):08x}"


Releases = Callable[[str], contextlib.AbstractContextManager[lab.Cluster]]


@pytest.fixture
def one_node(lab_home: Path) -> Releases:
    """Starts one node of a version: `with one_node("4.0") as cluster`."""

    @contextlib.contextmanager
    def start(version: str) -> Iterator[lab.Cluster]:
        require_software(version)
        with lab.up(nodes=1, version=version, **QUICK) as cluster:
            yield cluster

    return start
