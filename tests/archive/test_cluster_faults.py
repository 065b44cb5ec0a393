"""What holds when nodes die, hang, lose their network, come, go and move: shown on real nodes, three copies, QUORUM.

Four processes write and read all the while and log each operation (`support_history`), and a checker looks for what
contradicts the promises: acknowledged batches are there once and whole, refused ones are not, a read misses nothing
that was known before it began.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support_waiting import wait_until

pytest.importorskip("pyarrow")
import support_history
import support_lab
from support_faults import archive_on, check, check_all_done
from support_history import Batch, History, Load, Operation

import chronotile as ct
from chronotile_tools import lab

BEFORE_S, FAULT_S, AFTER_S = 3.0, 34.0, 3.0
"""Until the nodes have noticed the loss, a new slice's table waits for the lost node: up to 20 s, and no operation may
begin meanwhile. A busy machine notices some seconds later."""
RECOVERED = 5.0
"""How many times slower the median operation may be when a node has been away for some seconds..."""
FAST_S = 5.0
"""...and what is fast enough on any machine."""


def check_recovered(history: History, fault: float, end: float) -> None:
    """The last seconds of the fault are as fast as it was before, or nearly."""
    before, late = history.median_s(fault - BEFORE_S, fault), history.median_s(end - 3, end)
    assert late <= max(RECOVERED * before, FAST_S), f"median {before:.3f} s before, {late:.3f} s with a node away"


def hints_are_delivered(cluster: lab.Cluster) -> bool:
    """Whether no node holds writes back for another."""
    for node in cluster.nodes:
        with node.connect() as connection:
            if connection.run("SELECT host_id FROM system_views.pending_hints").rows:
                return False
    return True


# ---------------------------------------------------------------- the checker itself

WHOLE = support_history.ROWS


def did(
    kind: str, start: float, outcome: str = "done", batch: str = "", seen: dict[str, int] | None = None
) -> Operation:
    return Operation(kind, 0, start, start + 1, outcome, batch, (0, 9), seen or {})


@pytest.mark.parametrize(
    ("operations", "final", "violation"),
    [
        ([did("write", 0, batch="0-0-0-small")], {"0-0-0-small": WHOLE}, None),
        ([did("write", 0, batch="0-0-0-small")], {}, "acknowledged and has 0"),
        ([did("write", 0, "unknown", "0-0-0-small")], {}, None),
        ([did("write", 0, "unknown", "0-0-0-small")], {"0-0-0-small": WHOLE}, None),
        ([did("write", 0, "unknown", "0-0-0-small")], {"0-0-0-small": 3}, "is incomplete"),
        ([did("write", 0, "refused", "0-0-0-small")], {"0-0-0-small": WHOLE}, "was refused"),
        ([], {"0-0-0-small": WHOLE}, "never written"),
        ([did("write", 0, batch="0-0-0-small"), did("read", 2)], {"0-0-0-small": WHOLE}, "misses"),
        ([did("write", 0, batch="0-0-0-small"), did("read", 0.5)], {"0-0-0-small": WHOLE}, None),
        (
            [
                did("write", 0, "unknown", "0-0-0-small"),
                did("read", 2, seen={"0-0-0-small": WHOLE}),
                did("read", 4),
            ],
            {"0-0-0-small": WHOLE},
            "misses",
        ),
        (
            [did("write", 0, batch="0-0-0-small"), did("read", 2, seen={"0-0-0-small": 3})],
            {"0-0-0-small": WHOLE},
            "saw 3 of",
        ),
        (
            [did("write", 5, batch="0-0-0-small"), did("read", 0, seen={"0-0-0-small": WHOLE})],
            {"0-0-0-small": WHOLE},
            "before a process wrote it",
        ),
    ],
)
def test_the_checker_finds_what_is_wrong_and_only_that(
    operations: list[Operation], final: dict[str, int], violation: str | None
) -> None:
    found = History(operations).violations(final, 0)
    if violation is None:
        assert not found
    else:
        assert violation in "\n".join(found)
    assert "1 rows are duplicates" in History(operations).violations(final, 1)[0]


# ---------------------------------------------------------------- one node


@pytest.mark.parametrize(
    "fault", ["killed", pytest.param("paused", marks=pytest.mark.slow), pytest.param("cut", marks=pytest.mark.slow)]
)
def test_one_node_away_fails_no_operation_and_loses_nothing(cluster: lab.Cluster, tmp_path: Path, fault: str) -> None:
    if fault == "cut" and cluster.network != "namespaces":
        pytest.skip("NO NODE IS CUT OFF: that needs root and network namespaces")
    url = archive_on(cluster, fault)
    node = cluster.nodes[1]
    with Load(url, tmp_path / "load") as load:
        load.work(BEFORE_S)
        away = time.monotonic()
        {"killed": node.kill, "paused": node.pause, "cut": node.cut}[fault]()
        load.work(FAULT_S)
        end = time.monotonic()
        {"killed": lambda: node.start(wait=False), "paused": node.resume, "cut": node.heal}[fault]()
        load.work(AFTER_S)
        history = load.stop()
    check_all_done(history)
    check_recovered(history, away, end)
    cluster.wait_until_ready()
    wait_until(lambda: hints_are_delivered(cluster), "hints to be delivered", every_s=0.3)
    check(url, history)


# ---------------------------------------------------------------- two nodes


@pytest.mark.slow
def test_two_nodes_down_refuse_in_time_say_why_and_service_resumes_by_itself(
    cluster: lab.Cluster, tmp_path: Path
) -> None:
    timeout_s = 5
    url = archive_on(cluster, "two_down", timeout_s)
    down = cluster.nodes[1:]

    def logged(pattern: str, kind: str) -> bool:
        return any(o.kind == kind and re.search(pattern, o.error) for o in load.history().operations)

    with Load(url, tmp_path / "load", processes=2) as load:
        load.work(BEFORE_S)
        gone = time.monotonic()
        for node in down:
            node.kill()
        for kind in ("write", "read"):
            refusal = r"UnavailableError: .*QUORUM needs 2 replicas and 1 are alive"
            load.wait(lambda kind=kind, text=refusal: logged(text, kind), 60, f"refuse a {kind}")
        back = time.monotonic()
        down[0].start(wait=False)

        def served() -> bool:
            done = [o for o in load.history().operations if o.outcome == "done" and o.start > back]
            return {(o.kind, o.process) for o in done} == {(k, p) for k in ("write", "read") for p in (0, 1)}

        load.wait(served, 90, "go on by themselves")
        load.work(1)
        history = load.stop()
    failed = [o for o in history.operations if o.outcome != "done"]
    assert all(o.end > gone for o in failed)
    assert {o.error.split(":")[0] for o in failed} <= {"UnavailableError", "OutcomeUnknownError"}
    # Only until the one that stays has noticed that the others are gone is there no answer, or none for long.
    reason = r"(QUORUM|SERIAL) needs 2 replicas and 1 (are alive|answered)|no answer within 5 s"
    for operation in failed:
        # The limit is for a request; an operation at the edge of the fault may have had slow ones that succeeded.
        if operation.start > gone + timeout_s and operation.end < back:
            assert operation.seconds < timeout_s + 3, f"{operation.seconds:.1f} s: {operation.error}"
        assert re.search(reason, operation.error) or "the connection was lost" in operation.error, operation.error
    support_lab.serve_again(cluster)
    check(url, history)


# ---------------------------------------------------------------- a coordinator


@contextlib.contextmanager
def only_reachable(cluster: lab.Cluster, node: lab.Node) -> Iterator[Callable[[], None]]:
    """Let clients reach one node only, while the nodes see each other; yields what ends that."""
    closed: list[str] = []

    def end() -> None:
        while closed:
            subprocess.run(["ip", "route", "del", "unreachable", closed[-1]], check=True, timeout=10)
            closed.pop()

    try:
        for other in cluster.nodes:
            if other.index != node.index:
                subprocess.run(["ip", "route", "add", "unreachable", f"{other.address}/32"], check=True, timeout=10)
                closed.append(f"{other.address}/32")
        yield end
    finally:
        end()


@pytest.mark.slow
def test_a_coordinator_that_dies_mid_request_leaves_the_outcome_unknown_and_repeating_mends_it(
    cluster: lab.Cluster, tmp_path: Path
) -> None:
    if cluster.network != "namespaces" or os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("NO COORDINATOR IS KILLED ALONE: that needs root and network namespaces")
    url = archive_on(cluster, "coordinator", 5)
    coordinator = cluster.nodes[0]
    with ct.open(url) as archive:
        ds = support_history.create(archive)
        ds.write(Batch(9, 0, 0).columns(), batch=Batch(9, 0, 0).key)
    with only_reachable(cluster, coordinator) as end, ct.open(url) as archive:
        ds = archive["history"]
        history = History(write_while(ds, coordinator.kill, writers=4))
        outcomes = history.outcomes()
        assert {"unknown"} in outcomes.values(), history.failed
        end()
        # The same open archive goes on with the other nodes.
        wait_until(lambda: answers(ds), "the client to find the other nodes", every_s=0.3)
        stored = {batch.key for batch in ds.batches() if batch.finished}
        for key, results in outcomes.items():
            assert results != {"refused"} or key not in stored, f"{key} was refused and is stored"
            assert "done" not in results or key in stored, f"{key} was acknowledged and is not stored"
        again = [write_once(ds, Batch.of(key)) for key in outcomes]
        assert {o.outcome for o in again} == {"done"}, [o.error for o in again]
        assert [o.stored for o in again] == [o.batch not in stored for o in again]
    support_lab.serve_again(cluster)
    first = Operation("write", 9, 0, 0, "done", Batch(9, 0, 0).key)
    check(url, History([first, *history.operations, *again]))


def write_once(ds: ct.Dataset, batch: Batch) -> Operation:
    columns, start = batch.columns(), time.monotonic()
    outcome, error, stored = "done", "", False
    try:
        stored = ds.write(columns, batch=batch.key).stored
    except ct.ChronotileError as failure:
        outcome, error = support_history.outcome_of(failure), f"{type(failure).__name__}: {failure}"
    end = time.monotonic()
    return Operation("write", batch.process, start, end, outcome, batch.key, error=error, stored=stored)


def write_while(ds: ct.Dataset, fault: Callable[[], None], writers: int) -> list[Operation]:
    """Write big batches in several threads until each has failed, with a fault in the midst of it."""
    operations: list[Operation] = []

    def work(process: int) -> None:
        for number in range(200):
            operations.append(write_once(ds, Batch(process, number, 0, big=True)))
            if operations[-1].outcome != "done" or over.is_set():
                return

    over = threading.Event()
    threads = [threading.Thread(target=work, args=(process,)) for process in range(writers)]
    for thread in threads:
        thread.start()
    time.sleep(1.5)
    fault()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return operations


def answers(ds: ct.Dataset) -> bool:
    try:
        return ds.count() >= 0
    except (ct.UnavailableError, ct.BusyError):
        return False


# ---------------------------------------------------------------- a cluster that changes


@pytest.fixture(scope="module")
def changing(lab_home: Path) -> Iterator[lab.Cluster]:
    """Three nodes of its own for tests after which it is not the cluster it was."""
    support_lab.require_software()
    with lab.up("changing", nodes=3, **support_lab.QUICK) as cluster:
        yield cluster


@pytest.mark.slow
def test_the_client_survives_a_rolling_restart_in_which_every_address_changes(
    changing: lab.Cluster, tmp_path: Path
) -> None:
    url = archive_on(changing, "moving")
    before = set(changing.contact_points)
    with Load(url, tmp_path / "load") as load:
        load.work(1)
        changing.restart(new_addresses=True)
        moved = time.monotonic()
        load.work(5)
        history = load.stop()
    assert not before & set(changing.contact_points)
    check_all_done(history)
    assert {o.process for o in history.operations if o.start > moved} == {0, 1, 2, 3}
    check(archive_on(changing, "moving"), history)


@pytest.mark.slow
def test_a_node_added_and_another_taken_out_during_load_fail_no_operation(
    changing: lab.Cluster, tmp_path: Path
) -> None:
    url = archive_on(changing, "members")
    oldest = changing.nodes[0]
    with Load(url, tmp_path / "load", processes=2) as load:
        load.work(1)
        added = changing.add()
        oldest.decommission()
        load.work(2)
        history = load.stop()
    assert [node.name for node in changing.nodes] == ["node2", "node3", added.name]
    check_all_done(history)
    check(archive_on(changing, "members"), history)
