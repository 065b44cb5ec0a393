"""Procedures on real nodes: what refuses to begin, what is cut off and goes on, and what clients see of it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import support_lab
import support_procedures
from hypothesis import given
from hypothesis import strategies as st
from support_faults import archive_on, check, check_all_done
from support_history import Load
from support_procedures import Marks, context, nodes_of, run_apart, run_cut_off

import chronotile as ct
from chronotile_tools import lab, ops
from chronotile_tools.ops.procedures import engine, journal, lease, plan, run, statements
from chronotile_tools.ops.procedures.journal import Journal
from chronotile_tools.ops.procedures.lease import Lease
from chronotile_tools.ops.procedures.nodes import Row, wait_for
from chronotile_tools.ops.procedures.preflight import preflight
from chronotile_tools.ops.procedures.reaching import AccessNodes
from chronotile_tools.ops.procedures.restarts import RollingRestart
from chronotile_tools.ops.repair import Repair

ABOUT = {"procedure": "test", "id": "test-1", "host": "elsewhere", "journal": "/nowhere"}


@pytest.fixture
def journals(tmp_path: Path, cluster: lab.Cluster) -> Iterator[Path]:
    """A folder for journals; what a test leaves unfinished is given up at its end."""
    folder = tmp_path / "journals"
    yield folder
    support_lab.serve_again(cluster)
    if not lease.prepared(nodes_of(cluster)):
        return
    with cluster.nodes[0].connect() as connection:
        for name in ("work", "unfinished"):
            connection.run(f"DELETE FROM chronotile_ops.leases WHERE name = '{name}' IF EXISTS", consistency="QUORUM")


# ---------------------------------------------------------------- the journal


@given(st.integers(min_value=0), st.integers(1, 6))
def test_a_journal_cut_at_any_byte_keeps_every_entry_that_was_whole(
    tmp_path_factory: pytest.TempPathFactory, cut: int, count: int
) -> None:
    with Journal.begin(tmp_path_factory.mktemp("journal"), "one", {"procedure": "test"}) as kept:
        for number in range(count):
            kept.write("done", step=f"step {number}")
    content = kept.path.read_bytes()
    first = content.index(b"\n") + 1
    size = first + cut % (len(content) - first + 1)
    kept.path.write_bytes(content[:size])
    with Journal(kept.path) as found:
        assert len(found.entries) == content[:size].count(b"\n")
        found.write("done", step="after")
    with Journal(kept.path) as again:
        assert again.entries[-1]["step"] == "after"
        assert len(again.entries) == content[:size].count(b"\n") + 1


def test_a_journal_is_held_by_one_process_and_a_damaged_line_is_named(tmp_path: Path) -> None:
    with (
        Journal.begin(tmp_path, "one", {"procedure": "test"}) as kept,
        pytest.raises(ct.BusyError, match="another process"),
    ):
        Journal(kept.path)
    with kept.path.open("a") as file:
        file.write('{"event": \n{"event": "done"}\n')
    with pytest.raises(ct.DamagedError, match="line 2 of the journal"):
        Journal(kept.path)
    assert journal.unfinished(tmp_path) == kept.path


@pytest.mark.parametrize("line", ["5", "[]", "{}", '{"event": null}', "[" * 100_000])
def test_a_line_of_a_journal_that_is_no_entry_is_named(tmp_path: Path, line: str) -> None:
    with Journal.begin(tmp_path, "one", {"procedure": "test"}) as kept:
        kept.write("done", step="first")
    header, rest = kept.path.read_text().split("\n", 1)
    for number, content in ((1, [line, rest]), (2, [header, line, rest])):
        kept.path.write_text("\n".join(content))
        with pytest.raises(ct.DamagedError, match=f"line {number} of the journal"):
            Journal(kept.path)


def test_an_entry_for_which_there_is_no_room_leaves_the_journal_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Journal.begin(tmp_path, "one", {"procedure": "test"}) as kept:
        with monkeypatch.context() as full:
            write = os.write
            full.setattr(os, "write", lambda file, line: write(file, line[:9]))
            with pytest.raises(ct.DataFileError, match="full disk"):
                kept.write("done", step="lost")
            full.setattr(os, "write", lambda file, _: os.pwrite(file, b"", -1))
            with pytest.raises(ct.DataFileError, match="cannot write journal"):
                kept.write("done", step="lost")
        kept.write("done", step="after")
    with Journal(kept.path) as found:
        assert [entry.get("step") for entry in found.entries] == [None, "after"]


def test_an_entry_for_which_there_is_no_room_takes_no_entry_of_another_thread_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    with Journal.begin(tmp_path, "one", {"procedure": "test"}) as kept:
        other = threading.Thread(target=kept.write, args=("note",), kwargs={"step": "other"})

        def cut_off(file: int, line: bytes) -> int:
            if b"lost" not in line:
                return write(file, line)
            other.start()
            other.join(0.3)
            return write(file, line[:9])

        monkeypatch.setattr(os, "write", cut_off)
        with pytest.raises(ct.DataFileError, match="full disk"):
            kept.write("note", step="lost")
        other.join()
    with Journal(kept.path) as found:
        assert [entry.get("step") for entry in found.entries] == [None, "other"]


# ---------------------------------------------------------------- the engine


def test_killed_at_any_moment_a_procedure_goes_on_and_does_every_step(
    cluster: lab.Cluster, tmp_path: Path, journals: Path
) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    work = Marks(str(marks), 3)
    # A whole run says 12 lines: four a step.
    killed = [
        run_apart(cluster, journals, work, 1),
        *(run_apart(cluster, journals, work, lines) for lines in (3, 3, 4)),
    ]
    assert [done.returncode for done in killed] == [-9] * 4, killed[-1].stderr
    last = run_apart(cluster, journals, work, 0)
    assert last.returncode == 0, last.stderr
    (path,) = journal.paths(journals)
    with Journal(path) as kept:
        events = [entry["event"] for entry in kept.entries]
        assert [entry["step"] for entry in kept.of("done")] == ["mark 0", "mark 1", "mark 2"]
        assert len(list(kept.of("begin"))) == 3
        assert events.count("resumed") == 4
        assert events[-1] == "finished"
        # What one run found out, a later one knew.
        assert "'mark0': 0" in list(kept.of("done"))[-1]["seen"]
    assert {mark.name for mark in marks.iterdir()} == {"0", "1", "2"}
    assert lease.unfinished(nodes_of(cluster)) is None
    assert journal.unfinished(journals) is None


def test_two_operators_at_once_are_refused_here_and_elsewhere(
    cluster: lab.Cluster, tmp_path: Path, journals: Path
) -> None:
    nodes = nodes_of(cluster)
    work = Marks(str(tmp_path), 1)
    with (
        Lease(nodes, ABOUT, life_s=20),
        pytest.raises(ct.BusyError, match=r"working on the cluster \(test\)") as refused,
    ):
        run(work, context(cluster), journals)
    assert refused.value.kind == "busy"
    assert not journal.paths(journals)
    assert not (tmp_path / "0").exists()
    with Lease(nodes, ABOUT, life_s=20) as other:
        other.begin(take_over=False)
    with pytest.raises(ct.BusyError, match="its journal is /nowhere on elsewhere"):
        run(work, context(cluster), journals)
    assert not (tmp_path / "0").exists()
    run(work, context(cluster), journals, again=True)
    assert (tmp_path / "0").exists()


def test_of_many_who_ask_at_once_one_gets_the_lease(shared_cluster: lab.Cluster) -> None:
    nodes = nodes_of(shared_cluster)
    lease.prepare(nodes)
    got: list[str] = []
    gate_open, all_asked = threading.Barrier(4), threading.Barrier(4)

    def ask(number: int) -> None:
        gate_open.wait(30)
        try:
            with Lease(nodes, {**ABOUT, "id": str(number)}, life_s=20):
                got.append("held")
                all_asked.wait(60)
        except ct.ChronotileError as error:
            got.append(error.kind)
            all_asked.wait(60)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(90)
    assert got.count("held") == 1, got
    assert set(got) <= {"held", "busy"}, got


def test_a_lease_that_ended_is_taken_again_unless_somebody_else_has_it(
    cluster: lab.Cluster, tmp_path: Path, journals: Path
) -> None:
    nodes = nodes_of(cluster)

    def end(held: Lease) -> None:
        nodes.query(cluster.nodes[0].address, statements.drop_lease("work", held.holder), consistency="QUORUM")

    def taken_again() -> str:
        held.check()
        return "" if lease_holder(cluster) == held.holder else "nobody has it"

    def lost() -> str:
        try:
            held.check()
        except ct.BusyError as error:
            return "" if error.kind == "lease-lost" else error.kind
        return "it goes on"

    with Lease(nodes, ABOUT, life_s=8) as held:
        end(held)
        wait_for("taking it anew", taken_again, timeout_s=20)
        end(held)
        with Lease(nodes, {**ABOUT, "id": "test-2"}, life_s=60) as other:
            wait_for("noticing the other", lost, timeout_s=20)
            assert lease_holder(cluster) == other.holder


def lease_holder(cluster: lab.Cluster) -> str:
    rows = nodes_of(cluster).query(cluster.nodes[0].address, statements.read_lease("work"), consistency="SERIAL")
    return rows[0]["holder"] if rows else ""


def test_a_cluster_changed_behind_its_back_stops_a_procedure_and_is_named(
    cluster: lab.Cluster, tmp_path: Path, journals: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chronotile_tools.ops.procedures.engine.SETTLE_S", 1.0)
    work = Marks(str(tmp_path), 2)
    assert run_apart(cluster, journals, work, 4).returncode == -9
    with cluster.nodes[0].connect() as connection:
        connection.run(
            "CREATE KEYSPACE behind_our_back WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
        )
    try:
        with pytest.raises(ct.InvalidInputError, match="keyspace behind_our_back: absent ->") as refused:
            run(work, context(cluster), journals)
        assert refused.value.kind == "cluster-changed"
        assert not (tmp_path / "1").exists()
        run(work, context(cluster), journals, again=True)
        assert (tmp_path / "1").exists()
    finally:
        with cluster.nodes[0].connect() as connection:
            connection.run("DROP KEYSPACE behind_our_back")


def test_other_work_is_refused_until_the_unfinished_is_resumed_or_given_up(
    cluster: lab.Cluster, tmp_path: Path, journals: Path
) -> None:
    assert run_apart(cluster, journals, Marks(str(tmp_path), 2), 3).returncode == -9
    with pytest.raises(ct.BusyError, match=r"marks with folder .* is unfinished"):
        run(Marks(str(tmp_path), 1), context(cluster), journals)


# ---------------------------------------------------------------- preflight checks


@pytest.mark.slow
def test_a_node_away_is_refused_by_name_and_nothing_is_begun(cluster: lab.Cluster, journals: Path) -> None:
    work = RollingRestart.of(context(cluster), [])
    cluster.nodes[2].kill()
    away = cluster.nodes[2].address
    support_procedures.wait_until_seen_down(cluster, cluster.nodes[2])
    found = [finding for finding in preflight(nodes_of(cluster)) if finding.level == "refused"]
    assert any(away in finding.text for finding in found)
    with pytest.raises(ct.InvalidInputError, match=rf"{away} (down|accepts no)|cannot query {away}") as refused:
        run(work, context(cluster), journals)
    assert refused.value.kind == "refused"
    assert not journal.paths(journals)
    assert cluster.nodes[0].pid is not None


class Lying(AccessNodes):
    """The first node says other things than are so: values of rows, by a part of the statement that asks for them."""

    def __init__(self, cluster: lab.Cluster, lies: dict[str, Row], seen_down: str = "") -> None:
        super().__init__(ops.for_lab(cluster.name))
        self.liar, self.lies, self.seen_down = cluster.nodes[0].address, lies, seen_down

    def query(self, address: str, statement: str, *, consistency: str = "ONE", timeout_s: float = 10) -> list[Row]:
        rows = super().query(address, statement, consistency=consistency, timeout_s=timeout_s)
        for part, lie in self.lies.items():
            if address == self.liar and part in statement:
                rows = [{**(rows[0] if rows else {}), **lie}, *rows[1:]]
        return rows

    def nodetool(self, address: str, *arguments: str, timeout_s: float = 600) -> str:
        output = super().nodetool(address, *arguments, timeout_s=timeout_s)
        lies = self.seen_down and address == self.liar
        return output.replace(f"UN  {self.seen_down}", f"DN  {self.seen_down}") if lies else output


def test_a_node_that_lies_about_the_others_is_refused_by_name(shared_cluster: lab.Cluster) -> None:
    liar, maligned = (node.address for node in shared_cluster.nodes[:2])
    found = preflight(Lying(shared_cluster, {}, maligned))
    assert [(one.level, one.text.partition(":")[0]) for one in found] == [("refused", f"{liar} sees {maligned} down/N")]


def test_each_thing_that_must_hold_of_a_node_is_refused_where_it_does_not(
    shared_cluster: lab.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("chronotile_tools.ops.procedures.preflight.AGREEMENT_S", 1.0)
    lies = {
        "toUnixTimestamp": {"now": str(int((time.time() + 60) * 1000))},
        "SELECT schema_version FROM": {"schema_version": "00000000-0000-0000-0000-000000000000"},
        statements.MEMBER: {"release_version": "4.1.10"},
        "system_views.thread_pools": {"name": "AntiEntropyStage", "active_tasks": "1"},
        "system_views.sstable_tasks": {"kind": "Cleanup"},
        "system_views.streaming": {"operation": "Bootstrap", "status": "started"},
        "system_views.disk_usage": {"keyspace_name": "plant", "table_name": "huge", "mebibytes": str(1 << 40)},
    }
    found = {one.what: one.text for one in preflight(Lying(shared_cluster, lies)) if one.level == "refused"}
    assert found.keys() == {"schema", "releases", "quiet", "clocks", "disks"}
    liar = shared_cluster.nodes[0].address
    assert f"{liar}: AntiEntropyStage, Cleanup, stream (Bootstrap)" in found["quiet"]
    assert all(liar in found[what] for what in ("clocks", "disks"))
    assert "plant.huge" in found["disks"]


def test_a_plan_changes_nothing_and_says_what_would_be_done(shared_cluster: lab.Cluster, tmp_path: Path) -> None:
    addresses = [shared_cluster.nodes[1].address]
    pids = [node.pid for node in shared_cluster.nodes]
    made = plan(RollingRestart.of(context(shared_cluster), addresses), context(shared_cluster))
    assert not made.refused
    assert [step.name.split()[0] for step in made.steps] == ["drain", "stop", "start", "hints"]
    assert {finding.what for finding in made.findings} >= {"nodes", "schema", "releases", "quiet", "clocks", "disks"}
    assert f"drain {addresses[0]}" in str(made)
    assert [node.pid for node in shared_cluster.nodes] == pids


def test_a_node_that_is_not_there_is_refused(shared_cluster: lab.Cluster) -> None:
    with pytest.raises(ct.InvalidInputError, match=r"the cluster has no node 10\.1\.2\.3"):
        RollingRestart.of(context(shared_cluster), ["10.1.2.3"])


# ---------------------------------------------------------------- on nodes, under load


def test_a_node_is_restarted_under_load_without_a_failed_operation(
    cluster: lab.Cluster, tmp_path: Path, journals: Path
) -> None:
    url = archive_on(cluster, "restart")
    node = cluster.nodes[1]
    before = node.pid
    with Load(url, tmp_path / "load", processes=2) as load:
        run_cut_off(cluster, journals, RollingRestart([node.address]), [])
        history = load.stop()
    assert node.pid not in (None, before)
    check_all_done(history)
    check(url, history)


@pytest.mark.slow
def test_a_restart_of_all_nodes_killed_at_every_step_fails_no_operation(
    cluster: lab.Cluster, tmp_path: Path, journals: Path
) -> None:
    url = archive_on(cluster, "restarts")
    before = [node.pid for node in cluster.nodes]
    work = RollingRestart.of(context(cluster), [])
    with Load(url, tmp_path / "load", processes=2) as load:
        # Killed when a step begins, so that each is begun twice: the first line after a resumption says so.
        run_cut_off(cluster, journals, work, [1] + [4] * 11)
        history = load.stop()
    assert not set(before) & {node.pid for node in cluster.nodes}
    check_all_done(history)
    check(url, history)


@pytest.mark.slow
def test_what_a_procedure_changed_for_its_time_only_is_set_back_when_it_is_given_up(
    cluster: lab.Cluster, tmp_path: Path, journals: Path
) -> None:
    node = cluster.nodes[0]
    lease.prepare(nodes_of(cluster))
    before = node.nodetool("getstreamthroughput", "-d")
    work = Repair([["chronotile_ops.leases"]], capacity_mbit=10)
    # Cut off when the limit was set and the first segment begins.
    assert run_apart(cluster, journals, work, 3).returncode == -9
    assert node.nodetool("getstreamthroughput", "-d") != before
    path = engine.abandon(context(cluster), journals)
    assert path is not None
    assert journal.ended(path)
    assert node.nodetool("getstreamthroughput", "-d") == before
