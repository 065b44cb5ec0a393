"""Observing and warning on real nodes: rules are provoked here, seen to fire and to clear."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from conftest import Run
from support_lab import Releases, keyspace_of
from support_ops import _watched, access, watched

import chronotile as ct
from chronotile.errors import AccessDeniedError, UnavailableError
from chronotile_tools import lab, ops
from chronotile_tools.client import wire
from chronotile_tools.errors import CqlError
from chronotile_tools.ops.recording import Recorder, read_baseline
from chronotile_tools.ops.rules import Result, select_rules, with_limits

__all__ = ["_watched", "watched"]

AWAIT_S = 180.0
PATIENT_S = 120.0
Limits = dict[str, tuple[float | None, float | None]]


def judged(cluster: lab.Cluster, name: str, *, limits: Limits | None = None, reach: ops.Access | None = None) -> Result:
    """One rule, looked at now."""
    rules = with_limits(select_rules([name]), limits or {})
    # A look through nodetool starts a JVM; an agent that is cut off would be waited for.
    wait_s = 10 if reach is None else PATIENT_S
    reach = reach or access(cluster)
    jmx = any(rule.jmx for rule in rules)
    earlier = None
    if any(rule.two_snapshots for rule in rules):
        earlier = ops.observe(reach, jmx=jmx, jmx_timeout_s=wait_s)
        time.sleep(1)
    return ops.check(ops.observe(reach, jmx=jmx, jmx_timeout_s=wait_s), earlier, rules=rules)


def await_rule(
    cluster: lab.Cluster,
    name: str,
    *,
    fires: bool,
    limits: Limits | None = None,
    where: int = 1,
    reach: ops.Access | None = None,
) -> Result:
    """Look until the rule fires in `where` places, or has cleared and nothing of it is unchecked."""
    deadline = time.monotonic() + AWAIT_S
    while True:
        result = judged(cluster, name, limits=limits, reach=reach)
        if len(result.findings) >= where if fires else not (result.findings or result.unchecked):
            return result
        assert time.monotonic() < deadline, f"{name} {'never fired' if fires else 'never cleared'}: {result}"
        time.sleep(0.2)


@contextlib.contextmanager
def keyspace(cluster: lab.Cluster, name: str, copies: int = 3) -> Iterator[wire.Connection]:
    """A keyspace that goes with the block, and a connection to node 1."""
    with cluster.nodes[0].connect(timeout_s=60) as connection:
        connection.run(
            f"CREATE KEYSPACE {name} WITH replication = {{'class': 'NetworkTopologyStrategy', 'dc1': {copies}}}"
        )
        try:
            yield connection
        finally:
            connection.run(f"DROP KEYSPACE IF EXISTS {name}")


# ---------------------------------------------------------------------- seeing


def test_a_healthy_cluster_is_settled_and_seen_whole(shared_cluster: lab.Cluster) -> None:
    now = ops.observe(ops.for_lab(shared_cluster.name), jmx_timeout_s=PATIENT_S)
    assert (now.settled, now.not_seen) == (True, [])
    node = now.nodes[0]
    assert (node.status, node.mode, node.native_transport, node.release) == ("UN", "NORMAL", True, "5.0.8")
    assert set(node.seen_by) == set(shared_cluster.contact_points)
    assert node.heap is not None
    assert 0 < node.heap.used_bytes < node.heap.max_bytes
    assert [disk.path for disk in node.disks] == [str(shared_cluster.nodes[0].folder / "data" / "data")]
    assert node.clock_offset_s is not None
    assert abs(node.clock_offset_s) < 0.5 + (node.clock_error_s or 0)


@pytest.mark.slow
def test_no_rule_fires_on_a_healthy_cluster(watched: lab.Cluster) -> None:
    before = ops.observe(access(watched))
    result = ops.check(ops.observe(access(watched)), before)
    assert result.findings == []
    assert {line.split(":")[0] for line in result.unchecked} == {"probe-slow", "read-slow", "write-slow"}


def test_plain_cql_tells_what_it_can_and_lists_the_rest(shared_cluster: lab.Cluster) -> None:
    now = ops.observe(ops.Access([shared_cluster.contact_points[1]]))
    assert [node.address for node in now.nodes] == shared_cluster.contact_points
    assert [node.status for node in now.nodes] == ["UN"] * 3
    assert now.nodes[0].heap is None
    assert {gap.what for gap in now.not_seen} == {"jmx"}
    assert now.nodes[0].hints == []
    assert now.nodes[0].load_bytes


def test_a_contact_point_that_is_no_node_is_told_and_is_no_node_of_the_snapshot(shared_cluster: lab.Cluster) -> None:
    stranger = "127.0.0.9"
    now = ops.observe(ops.Access([stranger, shared_cluster.contact_points[0]]))
    assert [node.address for node in now.nodes] == shared_cluster.contact_points
    (gap,) = [gap for gap in now.not_seen if gap.node == stranger]
    assert "no node accepts clients at 127.0.0.9:9042 (unknown to all answering nodes)" in gap.reason


def test_status_is_one_screen_and_json(shared_cluster: lab.Cluster, chronotile: Run) -> None:
    done = chronotile("ops", "status", *shared_cluster.contact_points)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith(f"cluster {shared_cluster.name}: 3 nodes, Cassandra 5.0.8, 1 schema")
    assert len(done.stdout.splitlines()) < 24
    plain = json.loads(chronotile("ops", "status", shared_cluster.contact_points[0], "--json").stdout)
    assert [node["status"] for node in plain["nodes"]] == ["UN"] * 3


@pytest.mark.parametrize(
    ("runner", "reason"),
    [
        (ops.CommandRunner("sh -c 'echo no route to {host} >&2; exit 255'"), "no route to"),
        (ops.JolokiaRunner("http://{host}:8778/jolokia"), "no Jolokia agent answers at"),
    ],
    ids=["nodetool", "jolokia"],
)
def test_a_way_to_jmx_that_leads_nowhere_is_told_and_cql_goes_on(
    shared_cluster: lab.Cluster, runner: ops.Runner, reason: str
) -> None:
    now = ops.observe(ops.Access(shared_cluster.contact_points, runner=runner))
    assert [node.status for node in now.nodes] == ["UN"] * 3
    assert {gap.what for gap in now.not_seen} == {"jmx"}
    assert all(reason in gap.reason for gap in now.not_seen)


@pytest.mark.slow
def test_a_command_reads_beans_as_the_laboratory_and_an_agent_do(watched: lab.Cluster) -> None:
    command = f"{sys.executable} -m chronotile lab nodetool -c {watched.name} {{host}} {{words}}"
    runner = ops.CommandRunner(command, shell="env HOST={host}")
    now = ops.observe(ops.Access(watched.contact_points, runner=runner), jmx_timeout_s=PATIENT_S)
    assert now.not_seen == []
    agent = ops.observe(access(watched))
    for node, other in zip(now.nodes, agent.nodes, strict=True):
        assert (node.seen_by, node.started, node.mode) == (other.seen_by, other.started, other.mode)
        assert set(node.requests) == set(other.requests)
        assert node.heap is not None
        assert other.heap is not None
        assert node.heap.max_bytes == other.heap.max_bytes
        assert [disk.path for disk in node.disks] == [disk.path for disk in other.disks]


@pytest.mark.slow
def test_a_node_that_joins_or_leaves_is_told_until_it_has(watched: lab.Cluster) -> None:
    added: list[lab.Node] = []
    worker = threading.Thread(target=lambda: added.append(watched.add(timeout_s=AWAIT_S)))
    worker.start()
    (finding,) = await_rule(watched, "ring-changing", fires=True).findings
    assert (finding.level, finding.message) == ("warning", "UJ")
    worker.join()
    await_rule(watched, "ring-changing", fires=False)
    leaving = added[0].address
    worker = threading.Thread(target=added[0].decommission, kwargs={"timeout_s": AWAIT_S})
    worker.start()
    (finding,) = await_rule(watched, "ring-changing", fires=True).findings
    assert (finding.where, finding.message) == (leaving, "UL")
    worker.join()
    await_rule(watched, "ring-changing", fires=False)
    # The others go on telling for days that they cannot reach it.
    await_rule(watched, "node-down", fires=False)
    for reach in (access(watched), ops.Access(watched.contact_points)):
        assert [node.address for node in ops.observe(reach).nodes] == watched.contact_points


@pytest.mark.slow
@pytest.mark.parametrize("version", ["4.1", "4.0"])
def test_older_releases_are_seen_as_well(one_node: Releases, version: str) -> None:
    with one_node(version) as cluster:
        now = ops.observe(ops.for_lab(cluster.name), jmx_timeout_s=PATIENT_S)
        (node,) = now.nodes
        assert (node.status, node.cql, node.jmx, now.settled) == ("UN", True, True, True)
        assert node.release is not None
        assert node.release.startswith(version)
        assert node.heap is not None
        assert (node.compactions_pending, bool(node.pools)) == (0, True)
        assert set(node.requests) >= {"Read", "Write"}
        assert ops.check(now).findings == []


@pytest.mark.slow
def test_of_a_release_without_virtual_tables_and_sjk_the_rest_is_listed(one_node: Releases) -> None:
    with one_node("3.11") as cluster:
        now = ops.observe(ops.for_lab(cluster.name), jmx_timeout_s=PATIENT_S)
        (node,) = now.nodes
        assert (node.status, node.cql, node.jmx, now.settled) == ("U?", True, False, False)
        assert {gap.what for gap in now.not_seen} == {"jmx", "virtual tables"}
        result = ops.check(now)
        assert result.findings == []
        assert any(line.startswith("tombstones") for line in result.unchecked)


def test_a_refused_login_is_told_as_such(secure_cluster: lab.Cluster, tmp_path: Path) -> None:
    credentials, tls = secure_cluster.credentials, secure_cluster.tls
    assert credentials is not None
    assert tls is not None
    points = secure_cluster.contact_points
    with pytest.raises(AccessDeniedError, match="refuses user ann"):
        ops.observe(ops.Access(points, credentials=("ann", "wrong"), tls=tls.context()))
    with pytest.raises(AccessDeniedError, match="requires user and password"):
        ops.observe(ops.Access(points, tls=tls.context()))
    other = lab.make_authority(tmp_path / "other")
    with pytest.raises(AccessDeniedError, match="not signed by --ca"):
        ops.observe(ops.Access(points, credentials=credentials, tls=other.context()))
    with pytest.raises(UnavailableError):
        ops.observe(ops.Access(points, credentials=credentials))
    assert ops.observe(ops.Access(points, credentials=credentials, tls=tls.context())).cluster == secure_cluster.name


def test_a_role_that_may_not_read_a_table_sees_the_rest(secure_cluster: lab.Cluster) -> None:
    tls = secure_cluster.tls
    assert tls is not None
    with secure_cluster.nodes[0].connect() as connection:
        connection.run("CREATE ROLE IF NOT EXISTS watcher WITH PASSWORD = 'secret' AND LOGIN = true")
    reach = ops.Access(secure_cluster.contact_points, credentials=("watcher", "secret"), tls=tls.context())
    now = ops.observe(reach)
    assert all(node.cql for node in now.nodes)
    refused = [gap for gap in now.not_seen if "no SELECT permission" in gap.reason]
    assert refused, now.not_seen


# ---------------------------------------------------------------------- nodes that are away


@pytest.mark.slow
def test_a_killed_node_is_down_and_clears_when_it_is_back(watched: lab.Cluster) -> None:
    victim = watched.nodes[2]
    victim.kill()
    (finding,) = await_rule(watched, "node-down", fires=True).findings
    assert (finding.level, finding.where) == ("critical", victim.address)
    now = ops.observe(access(watched))
    assert now.node(victim.address).status == "DN"
    assert not now.settled
    assert {gap.node for gap in now.not_seen} == {victim.address}
    victim.start()
    await_rule(watched, "node-down", fires=False)


def suspect_at(nodes: list[lab.Node], phi: int) -> None:
    """How sure these nodes must be that another one is down: 8 is the default."""
    bean = "org.apache.cassandra.net:type=FailureDetector"
    for node in nodes:
        node.nodetool("sjk", "mx", "-ms", "-b", bean, "-f", "PhiConvictThreshold", "-v", str(phi))


@pytest.mark.slow
def test_a_paused_node_is_silent_before_others_see_it_down(watched: lab.Cluster) -> None:
    victim, others = watched.nodes[2], watched.nodes[:2]
    reach = access(watched)
    reach.timeout_s = 1
    suspect_at(others, 200)
    victim.pause()
    try:
        look = ops.observe(reach, jmx_timeout_s=5)
        (finding,) = ops.check(look, rules=select_rules(["node-silent", "node-down"])).findings
        assert (finding.rule, finding.level, finding.where) == ("node-silent", "critical", victim.address)
        assert "does not answer within 1 s" in finding.message
    finally:
        victim.resume()
        suspect_at(others, 8)
    await_rule(watched, "node-silent", fires=False)
    await_rule(watched, "node-down", fires=False)


@pytest.mark.slow
def test_a_node_that_takes_no_clients_is_told(watched: lab.Cluster) -> None:
    node = watched.nodes[1]
    node.nodetool("disablebinary")
    try:
        (finding,) = await_rule(watched, "native-transport", fires=True).findings
        assert (finding.level, finding.where) == ("critical", node.address)
    finally:
        node.nodetool("enablebinary")
    await_rule(watched, "native-transport", fires=False)


@pytest.mark.slow
def test_a_cut_node_and_the_others_disagree(watched: lab.Cluster) -> None:
    victim = watched.nodes[2]
    victim.cut()
    # An agent on the node is cut off too, the laboratory's nodetool is not.
    result = await_rule(watched, "views-disagree", fires=True, where=3, reach=ops.for_lab(watched.name))
    assert {finding.where for finding in result.findings} == set(watched.contact_points)
    victim.heal()
    await_rule(watched, "views-disagree", fires=False)


@pytest.mark.slow
def test_schemas_that_differ_are_told_until_they_agree(watched: lab.Cluster, request: pytest.FixtureRequest) -> None:
    victim = watched.nodes[2]
    victim.cut()
    await_rule(watched, "node-down", fires=True)
    with keyspace(watched, keyspace_of(request)):
        (finding,) = await_rule(watched, "schema-versions", fires=True, reach=ops.for_lab(watched.name)).findings
        assert finding.level == "warning"
        assert victim.address in finding.message
        victim.heal()
        await_rule(watched, "schema-versions", fires=False)
        await_rule(watched, "node-down", fires=False)


@pytest.mark.slow
def test_hints_are_told_while_they_wait_and_clear_when_delivered(
    watched: lab.Cluster, request: pytest.FixtureRequest
) -> None:
    victim = watched.nodes[2]
    window: Limits = {"hint-window": (1e-9, 0.9)}
    with keyspace(watched, keyspace_of(request)) as connection:
        connection.run(f"CREATE TABLE {keyspace_of(request)}.t (k int PRIMARY KEY, v text)")
        victim.kill()
        await_rule(watched, "node-down", fires=True)
        calm = ops.observe(access(watched))
        for key in range(200):
            connection.run(f"INSERT INTO {keyspace_of(request)}.t (k, v) VALUES ({key}, 'x')", consistency="ONE")
        assert _fired(access(watched), calm, {"hints-written"}) == {"hints-written"}
        pending = await_rule(watched, "hints-pending", fires=True)
        assert any(victim.address in finding.message for finding in pending.findings)
        assert await_rule(watched, "hint-window", fires=True, limits=window).findings[0].level == "warning"
        victim.start()
        await_rule(watched, "hints-pending", fires=False)
        await_rule(watched, "hint-window", fires=False, limits=window)


@pytest.mark.slow
def test_requests_that_fail_are_told_by_how_they_fail(watched: lab.Cluster, request: pytest.FixtureRequest) -> None:
    rules = select_rules(["unavailable", "timeouts", "dropped", "hints-written"])
    reach = access(watched)
    victim = watched.nodes[2]
    with keyspace(watched, keyspace_of(request)) as connection:
        connection.run(f"CREATE TABLE {keyspace_of(request)}.t (k int PRIMARY KEY, v text)")
        insert = f"INSERT INTO {keyspace_of(request)}.t (k, v) VALUES (1, 'x')"
        calm = ops.observe(reach)
        victim.pause()
        for _ in range(3):
            with pytest.raises(CqlError):
                connection.run(insert, consistency="ALL")
        victim.resume()
        found = _fired(reach, calm, {"timeouts", "dropped"})
        assert "unavailable" not in found
        victim.kill()
        await_rule(watched, "node-down", fires=True)
        calm = ops.observe(reach)
        with pytest.raises(CqlError):
            connection.run(insert, consistency="ALL")
        _fired(reach, calm, {"unavailable"})
        victim.start()
        calm = ops.observe(reach)
        result = ops.check(ops.observe(reach), calm, rules=rules)
        assert (result.findings, result.unchecked) == ([], [])


def _fired(reach: ops.Access, before: ops.Snapshot, names: set[str]) -> set[str]:
    """Rules that fire since `before`, once those named do."""
    deadline = time.monotonic() + AWAIT_S
    while True:
        result = ops.check(
            ops.observe(reach), before, rules=select_rules(["unavailable", "timeouts", "dropped", "hints-written"])
        )
        found = {finding.rule for finding in result.findings}
        if found >= names:
            return found
        assert time.monotonic() < deadline, f"of {names} only {found} fired: {result}"


# ---------------------------------------------------------------------- nodes that fall behind


def filled(connection: wire.Connection, table: str, keys: int, rows: int, bytes_: int) -> None:
    """Partitions of rows of text that hardly compresses."""
    connection.run(f"CREATE TABLE IF NOT EXISTS {table} (k int, c int, v blob, PRIMARY KEY (k, c))")
    for key in range(keys):
        for row in range(rows):
            value = os.urandom(bytes_).hex()
            connection.run(f"INSERT INTO {table} (k, c, v) VALUES ({key}, {row}, 0x{value})", consistency="ONE")


@pytest.mark.slow
def test_compactions_that_pile_up_are_told(watched: lab.Cluster, request: pytest.FixtureRequest) -> None:
    node, name = watched.nodes[0], keyspace_of(request)
    with keyspace(watched, name) as connection:
        node.nodetool("setcompactionthroughput", "1")
        try:
            for _ in range(5):
                for table in range(6):
                    filled(connection, f"{name}.t{table}", 1, 8, 128 * 1024)
                node.nodetool("flush", name)
            (finding,) = await_rule(
                watched, "compactions-pending", fires=True, limits={"compactions-pending": (2, 100)}
            ).findings
            assert (finding.level, finding.where) == ("warning", node.address)
        finally:
            node.nodetool("setcompactionthroughput", "64")
        await_rule(watched, "compactions-pending", fires=False, limits={"compactions-pending": (2, 100)})


@pytest.mark.slow
def test_a_node_that_only_collects_garbage_is_told(watched: lab.Cluster) -> None:
    node, done = watched.nodes[1], threading.Event()
    jcmd = Path(os.path.realpath(shutil.which("java") or "java")).with_name("jcmd")

    def collect() -> None:
        while not done.is_set():
            subprocess.run([jcmd, str(node.pid), "GC.run"], check=True, capture_output=True)

    worker = threading.Thread(target=collect)
    worker.start()
    try:
        findings = await_rule(watched, "collecting", fires=True).findings
        assert node.address in {finding.where for finding in findings}
    finally:
        done.set()
        worker.join()
    await_rule(watched, "collecting", fires=False)


@pytest.mark.slow
def test_a_disk_that_fills_is_told_and_clears_when_there_is_room(watched: lab.Cluster) -> None:
    node = watched.nodes[0]
    disk = ops.observe(access(watched)).node(node.address).disks[0]
    limits: Limits = {"disk-used": (100 * disk.used_share + 1, 100 * disk.used_share + 50)}
    ballast = node.folder / "data" / "ballast"
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, disk.total_bytes // 50)
    try:
        findings = await_rule(watched, "disk-used", fires=True, limits=limits, where=3).findings
        assert {finding.level for finding in findings} == {"warning"}
    finally:
        ballast.unlink()
    await_rule(watched, "disk-used", fires=False, limits=limits)


@pytest.mark.slow
def test_reads_through_tombstones_are_told_until_reads_are_clean_again(
    watched: lab.Cluster, request: pytest.FixtureRequest
) -> None:
    table = f"{keyspace_of(request)}.t"
    with keyspace(watched, keyspace_of(request)) as connection:
        filled(connection, table, 1, 1500, 4)
        for row in range(1400):
            connection.run(f"DELETE FROM {table} WHERE k = 0 AND c = {row}", consistency="ALL")
        for _ in range(3):
            connection.run(f"SELECT * FROM {table} WHERE k = 0", consistency="ALL")
        findings = await_rule(watched, "tombstones", fires=True).findings
        assert {(finding.level, finding.where.split()[1]) for finding in findings} == {("critical", table)}
        for _ in range(900):
            connection.run(f"SELECT * FROM {table} WHERE k = 0 AND c = 1450", consistency="ALL")
        await_rule(watched, "tombstones", fires=False)


@pytest.mark.slow
def test_a_large_partition_is_told_until_its_table_is_gone(
    watched: lab.Cluster, request: pytest.FixtureRequest
) -> None:
    table = f"{keyspace_of(request)}.t"
    with keyspace(watched, keyspace_of(request), copies=1) as connection:
        filled(connection, table, 1, 220, 512 * 1024)
        for node in watched.nodes:
            node.nodetool("flush", keyspace_of(request))
        (finding,) = await_rule(watched, "partition-size", fires=True).findings
        assert (finding.level, finding.where.split()[1]) == ("warning", table)
        assert finding.value >= 100
        connection.run(f"DROP TABLE {table}")
        await_rule(watched, "partition-size", fires=False)


@pytest.mark.slow
def test_a_table_near_gc_grace_is_told_until_every_range_of_it_is_repaired(
    watched: lab.Cluster, request: pytest.FixtureRequest
) -> None:
    name = keyspace_of(request)
    near: Limits = {"repair-age": (0.01, 100)}
    with keyspace(watched, name) as connection:
        connection.run(f"CREATE TABLE {name}.t (k int PRIMARY KEY) WITH gc_grace_seconds = 1")
        (finding,) = await_rule(watched, "repair-age", fires=True).findings
        assert (finding.level, finding.where) == ("critical", f"{name}.t")
        assert "never fully repaired" in finding.message
        connection.run(f"ALTER TABLE {name}.t WITH gc_grace_seconds = 3600")
        for node in watched.nodes:
            (finding,) = await_rule(watched, "repair-age", fires=True, limits=near).findings
            assert (finding.level, "never fully repaired" in finding.message) == ("warning", True)
            node.nodetool("repair", "-full", "-pr", name)
        await_rule(watched, "repair-age", fires=False)
        (table,) = ops.observe(access(watched)).repairs or []
        assert table.repaired is not None
        assert table.repaired > table.created


@pytest.mark.slow
def test_a_repair_that_failed_is_told_until_one_succeeds(watched: lab.Cluster, request: pytest.FixtureRequest) -> None:
    name, victim = keyspace_of(request), watched.nodes[2]
    with keyspace(watched, name) as connection:
        connection.run(f"CREATE TABLE {name}.t (k int PRIMARY KEY)")
        victim.kill()
        await_rule(watched, "node-down", fires=True)
        with pytest.raises(lab.LabError):
            watched.nodes[0].nodetool("repair", "-full", name, "t")
        (finding,) = await_rule(watched, "repair-failed", fires=True).findings
        assert finding.where == watched.nodes[0].address
        victim.start()
        watched.nodes[0].nodetool("repair", "-full", name, "t")
        await_rule(watched, "repair-failed", fires=False)


@pytest.mark.slow
def test_a_node_without_processor_time_is_slower_than_its_baseline(watched: lab.Cluster, tmp_path: Path) -> None:
    reach, node = access(watched), watched.nodes[1]
    with Recorder(tmp_path / "ops.db") as recorder:
        for _ in range(12):
            usual = ops.observe(reach, jmx=False)
            recorder.write(usual)
    baseline = read_baseline(tmp_path / "ops.db", watched.name, usual.taken + timedelta(seconds=1))
    rules = with_limits(select_rules(["probe-slow"]), {"probe-slow": (3, 1000)})

    def slow() -> set[str]:
        findings = ops.check(ops.observe(reach, jmx=False), baseline=baseline, rules=rules).findings
        return {finding.where for finding in findings}

    # In bursts too short for several reads: the median of five tells, not the one that waited.
    with starved(node, on_s=0.003, off_s=0.1):
        _await(lambda: node.address in slow())
    _await(lambda: node.address not in slow())


@contextlib.contextmanager
def starved(node: lab.Node, *, on_s: float = 0.01, off_s: float = 0.19) -> Iterator[None]:
    """Leave a node little processor time, in bursts of `on_s` with `off_s` between them."""
    done, pid = threading.Event(), node.pid
    assert pid is not None

    def starve() -> None:
        while not done.is_set():
            os.kill(pid, signal.SIGSTOP)
            done.wait(off_s)
            os.kill(pid, signal.SIGCONT)
            time.sleep(on_s)

    worker = threading.Thread(target=starve)
    worker.start()
    try:
        yield
    finally:
        done.set()
        worker.join()
        os.kill(pid, signal.SIGCONT)


def _await(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + AWAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_tables_of_an_archive_are_as_old_as_they_are(shared_cluster: lab.Cluster) -> None:
    """Their ids hold no time, and look as if they did."""
    with ct.open(shared_cluster.url("aged") + "?catalog_buckets=4") as archive:
        schema = {"id": "int64", "t": "timestamp[ms]"}
        rows = archive.create("rows", schema=schema, cell=ct.single(), time="t", window="30d", id="id")
        rows.write({"id": [1], "t": ["2026-03-01"]})
    now = ops.observe(ops.Access(shared_cluster.contact_points), jmx=False)
    ages = [one.age_s(now.taken) for one in now.repairs or [] if one.keyspace == "aged"]
    assert len(ages) >= 4
    assert all(age_s is not None and age_s < 1800 for age_s in ages)
    findings = ops.check(now, rules=select_rules(["repair-age"])).findings
    assert not [finding for finding in findings if finding.where.startswith("aged.")]
