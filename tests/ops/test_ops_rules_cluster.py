"""Early warnings that need more than a node that is away: overload, slow disks, wrong clocks, damaged files. Each is
provoked on real nodes, seen to fire and to clear."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import socket
import struct
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from support_lab import QUICK, keyspace_of, require_software
from support_ops import AGENT_PORT, _watched, access, watched
from test_ops_cluster import AWAIT_S, await_rule, filled, keyspace, starved

from chronotile_tools import lab, ops
from chronotile_tools.client import wire
from chronotile_tools.errors import CqlError
from chronotile_tools.ops.recording import Recorder, read_baseline
from chronotile_tools.ops.rules import Finding, select_rules

__all__ = ["_watched", "watched"]

BLOB_BYTES = 512 * 1024


def awaited(look: Callable[[], list[Finding]], *, fires: bool, seconds: float = AWAIT_S) -> list[Finding]:
    """Look until there are findings, or none."""
    deadline = time.monotonic() + seconds
    while bool(found := look()) != fires:
        assert time.monotonic() < deadline, f"never {'fired' if fires else 'cleared'}: {found}"
        time.sleep(0.1)
    return found


# ---------------------------------------------------------------------- nodes that are slow


@pytest.mark.slow
def test_requests_through_a_node_without_processor_time_are_slower_than_usual(
    watched: lab.Cluster, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    reach, node, name = access(watched), watched.nodes[1], keyspace_of(request)
    rules = select_rules(["read-slow", "write-slow"])
    with keyspace(watched, name) as maker, node.connect(timeout_s=60) as connection:
        maker.run(f"CREATE TABLE {name}.t (k int PRIMARY KEY, v text)")

        def work(count: int) -> None:
            for key in range(count):
                connection.run(f"INSERT INTO {name}.t (k, v) VALUES ({key % 100}, 'x')", consistency="ONE")
                connection.run(f"SELECT v FROM {name}.t WHERE k = {key % 100}", consistency="ONE")

        with Recorder(tmp_path / "ops.db") as recorder:
            for _ in range(12):
                work(30)
                usual = ops.observe(reach)
                recorder.write(usual)
        baseline = read_baseline(tmp_path / "ops.db", watched.name, usual.taken + timedelta(seconds=1))

        def slow() -> list[Finding]:
            found = ops.check(ops.observe(reach, jmx_timeout_s=10), baseline=baseline, rules=rules).findings
            return [finding for finding in found if finding.where == node.address]

        with starved(node):
            # Of those that come together in one burst only the first is late.
            work(300)
        assert {finding.rule for finding in awaited(slow, fires=True)} == {"read-slow", "write-slow"}

        def after_work() -> list[Finding]:
            work(1000)
            return slow()

        awaited(after_work, fires=False)


@contextlib.contextmanager
def flooded(address: str, statement: str, at_once: int) -> Iterator[None]:
    """Keep so many requests waiting at a node, over one connection that never waits for an answer."""
    done = threading.Event()
    header = struct.Struct(">BBhBi")

    def frame(stream: int) -> bytes:
        text = statement.encode()
        body = struct.pack(">i", len(text)) + text + struct.pack(">HB", wire.CONSISTENCIES["ONE"], 0)
        return header.pack(4, 0, stream, 7, len(body)) + body

    def work(connection: socket.socket) -> None:
        startup = struct.pack(">H", 1) + b"".join(struct.pack(">H", len(x)) + x for x in (b"CQL_VERSION", b"3.0.0"))
        connection.sendall(header.pack(4, 0, 0, 1, len(startup)) + startup)
        connection.recv(1 << 16)
        frames = [frame(stream) for stream in range(at_once)]
        connection.sendall(b"".join(frames))
        pending = b""
        while not done.is_set():
            if not select.select([connection], [], [], 0.1)[0]:
                continue
            pending += connection.recv(1 << 20)
            again, at = [], 0
            while len(pending) - at >= header.size:
                _, _, stream, _, size = header.unpack_from(pending, at)
                if len(pending) - at < header.size + size:
                    break
                again.append(frames[stream])
                at += header.size + size
            pending = pending[at:]
            connection.sendall(b"".join(again))

    with socket.create_connection((address, 9042), timeout=60) as connection:
        worker = threading.Thread(target=work, args=[connection])
        worker.start()
        try:
            yield
        finally:
            done.set()
            worker.join()


@pytest.mark.slow
def test_requests_that_queue_in_a_node_are_told(watched: lab.Cluster, request: pytest.FixtureRequest) -> None:
    node, name = watched.nodes[0], keyspace_of(request)
    reach = access(watched)
    reach.timeout_s = 20

    def queued() -> list[Finding]:
        return ops.check(ops.observe(reach, jmx=False), rules=select_rules(["stage-pending"])).findings

    with keyspace(watched, name) as connection:
        filled(connection, f"{name}.t", 1, 20, 1024)
        with flooded(node.address, f"SELECT c FROM {name}.t WHERE k = 0", 2000):
            findings = awaited(queued, fires=True)
            assert {finding.where for finding in findings} == {node.address}
            assert findings[0].value >= 500
        awaited(queued, fires=False)


@pytest.mark.slow
def test_messages_that_cannot_leave_in_time_are_told(watched: lab.Cluster, request: pytest.FixtureRequest) -> None:
    victim, name = watched.nodes[2], keyspace_of(request)
    reach = access(watched)
    rules = select_rules(["messages-expired"])
    with keyspace(watched, name) as connection:
        connection.run(f"CREATE TABLE {name}.t (k int PRIMARY KEY, v blob)")
        calm = ops.observe(reach, jmx=False)
        victim.cut()
        # More than the kernel takes for a peer that does not answer: the rest waits in the node and grows too old.
        until = time.monotonic() + 8
        key = 0
        while time.monotonic() < until:
            value = os.urandom(BLOB_BYTES // 2).hex()
            connection.run(f"INSERT INTO {name}.t (k, v) VALUES ({key % 10}, 0x{value})", consistency="ONE")
            key += 1

        def expired() -> list[Finding]:
            return ops.check(ops.observe(reach, jmx=False), calm, rules=rules).findings

        findings = awaited(expired, fires=True)
        assert watched.nodes[0].address in {finding.where for finding in findings}
        victim.heal()
        watched.wait_until_ready()
    await_rule(watched, "messages-expired", fires=False)


# ---------------------------------------------------------------------- repairs, files and disks


@pytest.mark.slow
def test_repairs_that_pile_up_are_told(watched: lab.Cluster, request: pytest.FixtureRequest) -> None:
    node, name = watched.nodes[0], keyspace_of(request)
    reach = access(watched)

    def ask(asked: lab.Node, operation: str, *arguments: object) -> None:
        request = {
            "type": "exec",
            "mbean": "org.apache.cassandra.db:type=StorageService",
            "operation": operation,
            "arguments": arguments,
        }
        url = f"http://{asked.address}:{AGENT_PORT}/jolokia"
        with urllib.request.urlopen(url, json.dumps(request).encode(), timeout=30) as answer:
            assert json.load(answer)["status"] == 200

    def piled() -> list[Finding]:
        return ops.check(ops.observe(reach, jmx=False), rules=select_rules(["repair-stage"])).findings

    with keyspace(watched, name) as connection:
        for table in range(4):
            filled(connection, f"{name}.t{table}", 4, 4, 1024)
        options = {"incremental": "false", "parallelism": "sequential", "primaryRange": "false"}
        for _ in range(8):
            ask(node, "repairAsync(java.lang.String,java.util.Map)", name, options)
        assert awaited(piled, fires=True)[0].value >= 2
        for each in watched.nodes:
            ask(each, "forceTerminateAllRepairSessions()")
        awaited(piled, fires=False)


@pytest.mark.slow
def test_errors_that_a_node_did_not_expect_are_told(watched: lab.Cluster, request: pytest.FixtureRequest) -> None:
    node, name = watched.nodes[0], keyspace_of(request)
    reach = access(watched)
    with keyspace(watched, name, copies=1) as connection:
        filled(connection, f"{name}.t", 30, 1, 2048)
        watched.nodes[0].nodetool("flush", name)
        calm = ops.observe(reach)
        for data in node.folder.glob(f"data/data/{name}/t-*/*-Data.db"):
            content = bytearray(data.read_bytes())
            content[len(content) // 2] ^= 0xFF
            data.write_bytes(content)
        with pytest.raises(lab.LabError):
            node.nodetool("compact", name, "t")

        def met() -> list[Finding]:
            return ops.check(ops.observe(reach), calm, rules=select_rules(["exceptions"])).findings

        (finding,) = awaited(met, fires=True)
        assert finding.where == node.address
    await_rule(watched, "exceptions", fires=False)


@contextlib.contextmanager
def small_disk(node: lab.Node, mebibytes: int) -> Iterator[None]:
    """Let a node's tables lie on a small disk of their own for a while. The node is stopped and started for it."""
    folder = node.folder / "data" / "data"
    aside = folder.with_name("aside")
    node.stop()
    folder.rename(aside)
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "chronotile", folder],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        folder.rmdir()
        aside.rename(folder)
        pytest.skip(f"NO DISK OF ITS OWN CAN BE GIVEN TO A NODE: {done.stderr}")
    try:
        shutil.copytree(aside, folder, dirs_exist_ok=True)
        node.start()
        yield
    finally:
        node.stop()
        shutil.rmtree(aside)
        shutil.copytree(folder, aside)
        subprocess.run(["umount", folder], check=True)
        folder.rmdir()
        aside.rename(folder)
        node.start()


@pytest.mark.slow
def test_a_table_without_room_to_be_compacted_is_told_until_it_is_smaller(
    watched: lab.Cluster, request: pytest.FixtureRequest
) -> None:
    node, name = watched.nodes[2], keyspace_of(request)
    with small_disk(node, 160), keyspace(watched, name) as connection:
        filled(connection, f"{name}.t", 20, 6, BLOB_BYTES)
        node.nodetool("flush", name)
        findings = await_rule(watched, "compaction-room", fires=True).findings
        assert {finding.where for finding in findings} == {node.address}
        assert f"{name}.t has" in findings[0].message
        connection.run(f"TRUNCATE {name}.t")
        await_rule(watched, "compaction-room", fires=False)


# ---------------------------------------------------------------------- nodes with settings of their own


@pytest.fixture(scope="module")
def slow_log(lab_home: Path) -> Iterator[lab.Cluster]:
    """A node whose commit log is slow, and whose heap is taken up by what was not flushed yet."""
    require_software()
    settings = {
        "commitlog_sync": "group",
        "commitlog_sync_period_in_ms": 0,
        "commitlog_sync_group_window": "1500ms",
        "memtable_heap_space": "220MiB",
        "memtable_allocation_type": "heap_buffers",
        "memtable_cleanup_threshold": 0.9,
        "commitlog_total_space_in_mb": 2048,
    }
    with lab.up("slow_log", nodes=1, settings=settings, **QUICK) as cluster:
        yield cluster


@pytest.mark.slow
def test_writes_that_wait_for_the_commit_log_are_told(slow_log: lab.Cluster, request: pytest.FixtureRequest) -> None:
    name, done = keyspace_of(request), threading.Event()

    def write(number: int) -> None:
        with slow_log.nodes[0].connect(timeout_s=60) as connection:
            while not done.is_set():
                # On a machine with other work some wait for longer than the node allows.
                with contextlib.suppress(CqlError):
                    connection.run(f"INSERT INTO {name}.t (k) VALUES ({number})", consistency="ONE")

    with keyspace(slow_log, name, copies=1) as connection:
        connection.run(f"CREATE TABLE {name}.t (k int PRIMARY KEY)")
        workers = [threading.Thread(target=write, args=[number]) for number in range(40)]
        for worker in workers:
            worker.start()
        try:
            reach = ops.for_lab(slow_log.name)
            (finding,) = await_rule(slow_log, "commitlog-pending", fires=True, reach=reach).findings
            assert finding.value >= 15
        finally:
            done.set()
            for worker in workers:
                worker.join()
        await_rule(slow_log, "commitlog-pending", fires=False, reach=reach)


@pytest.mark.slow
def test_a_heap_that_stays_full_after_a_collection_is_told(
    slow_log: lab.Cluster, request: pytest.FixtureRequest
) -> None:
    node, name, reach = slow_log.nodes[0], keyspace_of(request), ops.for_lab(slow_log.name)
    jcmd = Path(os.path.realpath(shutil.which("java") or "java")).with_name("jcmd")

    def collect() -> None:
        subprocess.run([jcmd, str(node.pid), "GC.run"], check=True, capture_output=True)

    def full() -> list[Finding]:
        collect()
        return ops.check(ops.observe(reach, jmx_timeout_s=60), rules=select_rules(["heap"])).findings

    with keyspace(slow_log, name, copies=1) as connection:
        # Past the commit log, for which each write would wait.
        connection.run(f"ALTER KEYSPACE {name} WITH durable_writes = false")
        connection.run(f"CREATE TABLE {name}.t (k int PRIMARY KEY, v blob)")
        found: list[Finding] = []
        for key in range(800):
            value = os.urandom(BLOB_BYTES // 2).hex()
            connection.run(f"INSERT INTO {name}.t (k, v) VALUES ({key}, 0x{value})", consistency="ONE")
            if key >= 400 and key % 80 == 0 and (found := full()):
                break
        assert [finding.rule for finding in found] == ["heap"]
        node.nodetool("flush", name)
        awaited(full, fires=False)


_SKEWED_CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long *seconds;
static int (*real)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    real = dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("SKEW_FILE");
    int file = path ? open(path, O_RDONLY) : -1;
    if (file >= 0) {
        void *page = mmap(NULL, sizeof(long), PROT_READ, MAP_SHARED, file, 0);
        seconds = page == MAP_FAILED ? NULL : page;
        close(file);
    }
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int done = real ? real(clock, now) : -1;
    if (done == 0 && clock == CLOCK_REALTIME && seconds) now->tv_sec += *seconds;
    return done;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec exact;
    (void)zone;
    int done = clock_gettime(CLOCK_REALTIME, &exact);
    now->tv_sec = exact.tv_sec;
    now->tv_usec = exact.tv_nsec / 1000;
    return done;
}
"""


@pytest.fixture
def skewed(lab_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[lab.Cluster, Path]]:
    """A node whose clock is ahead by as many seconds as a file says."""
    require_software()
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("NO C COMPILER: nothing can give a node a wrong clock")
    source, library, skew = tmp_path / "skew.c", tmp_path / "skew.so", tmp_path / "seconds"
    source.write_text(_SKEWED_CLOCK)
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    skew.write_bytes(struct.pack("l", 0))
    with monkeypatch.context() as environment:
        environment.setenv("LD_PRELOAD", str(library))
        environment.setenv("SKEW_FILE", str(skew))
        cluster = lab.up("skewed", nodes=1, **QUICK)
    with cluster:
        yield cluster, skew


@pytest.mark.slow
def test_a_clock_that_is_wrong_is_told_until_it_is_right(skewed: tuple[lab.Cluster, Path]) -> None:
    cluster, skew = skewed
    await_rule(cluster, "clock", fires=False, reach=ops.Access(cluster.contact_points))
    for seconds, level in ((2, "warning"), (8, "critical")):
        with skew.open("r+b") as file:
            file.write(struct.pack("l", seconds))
        (finding,) = await_rule(cluster, "clock", fires=True, reach=ops.Access(cluster.contact_points)).findings
        assert finding.level == level
        assert finding.value == pytest.approx(seconds, abs=0.5)
    with skew.open("r+b") as file:
        file.write(struct.pack("l", 0))
    await_rule(cluster, "clock", fires=False, reach=ops.Access(cluster.contact_points))


@pytest.mark.slow
def test_nodes_of_two_releases_are_told_until_the_last_is_upgraded(lab_home: Path) -> None:
    require_software("4.1")
    require_software()
    with lab.up("mixed", nodes=2, version="4.1", **QUICK) as cluster:
        reach = ops.Access(cluster.contact_points)
        await_rule(cluster, "releases-differ", fires=False, reach=reach)
        cluster.restart(cluster.nodes[:1], version="5.0")
        (finding,) = await_rule(cluster, "releases-differ", fires=True, reach=reach).findings
        assert finding.level == "warning"
        assert "4.1." in finding.message
        assert "5.0." in finding.message
        cluster.restart(cluster.nodes[1:], version="5.0")
        await_rule(cluster, "releases-differ", fires=False, reach=reach)
