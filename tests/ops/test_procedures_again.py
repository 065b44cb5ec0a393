"""A command that was cut off and is given again: it goes on, whatever the cluster has become meanwhile."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support_durable import SyncedNames
from support_nodes import MemoryNodes, RecordingActuator

import chronotile as ct
from chronotile_tools.ops.procedures import Context, Finding, Procedure, engine, journal
from chronotile_tools.ops.procedures.growing import Grow
from chronotile_tools.ops.procedures.journal import Journal
from chronotile_tools.ops.procedures.membership import Decommission
from chronotile_tools.ops.procedures.restarts import RollingRestart

NODES = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"]
LEAVING = NODES[3]


@pytest.fixture(autouse=True)
def _open_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """The preflight check is not what is tested here."""
    for place in ("engine", "membership", "growing"):
        monkeypatch.setattr(f"chronotile_tools.ops.procedures.{place}.preflight", lambda nodes, **_: [])
    monkeypatch.setattr(
        "chronotile_tools.ops.procedures.membership.replication_finding", lambda *_: Finding("ok", "copies", "")
    )


def leaving(nodes: MemoryNodes) -> None:
    """Have `nodetool decommission` take a node out."""

    def decommission(address: str, _: tuple[str, ...]) -> str:
        nodes.members.remove(address)
        return ""

    nodes.tools["decommission"] = decommission


def decommission(context: Context, folder: Path, address: str = LEAVING, **more: Any) -> Journal:
    """What ``chronotile ops decommission run --node ADDRESS`` does."""
    make: Callable[[], Procedure] = lambda: Decommission.of(context, address)  # noqa: E731
    return engine.run_request("decommission", {"node": address}, make, context, folder, **more)


def test_decommission_given_again_goes_on_when_the_node_has_left(tmp_path: Path) -> None:
    nodes = MemoryNodes(list(NODES))
    leaving(nodes)
    with pytest.raises(ct.ChronotileError, match="stop failed"):
        decommission(Context(nodes, RecordingActuator(nodes, fail="stop"), str), tmp_path)
    assert LEAVING not in nodes.members
    actuator = RecordingActuator(nodes)
    kept = decommission(Context(nodes, actuator, str), tmp_path)
    assert actuator.done == [("stop", LEAVING)]
    assert [entry["step"] for entry in kept.of("done")] == [f"decommission {LEAVING}", f"stop {LEAVING}"]
    assert sum(words[1:] == ("decommission",) for words in nodes.ran) == 1
    assert nodes.leases == {}


def test_grow_given_again_goes_on_when_there_are_two_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = MemoryNodes(NODES[:1])
    steps: list[str] = []
    work = Grow(NODES[0], "dc1", ["field"])

    def of(cls: type[Grow], context: Context, second: str = "", third: str = "") -> Grow:
        if len(nodes.members) != 1:
            raise ct.InvalidInputError(f"the cluster has {len(nodes.members)} nodes", kind="refused")
        return work

    def step(name: str) -> engine.Step:
        def do() -> None:
            steps.append(name)
            if name == "join":
                nodes.members.append(NODES[1])
            if name == "last" and len(steps) == 2:
                raise ct.ChronotileError("cut off", kind="command-failed")

        return engine.Step(name, name, do, lambda: "seen", changes=("*",))

    monkeypatch.setattr(Grow, "of", classmethod(of))
    monkeypatch.setattr(Grow, "steps", lambda *_: [step("join"), step("last")])
    monkeypatch.setattr(Grow, "checks", lambda *_: [])

    def grow() -> None:
        context = Context(nodes, RecordingActuator(nodes), str)
        engine.run_request("grow", {"second": "", "third": ""}, lambda: Grow.of(context), context, tmp_path)

    with pytest.raises(ct.ChronotileError, match="cut off"):
        grow()
    grow()
    assert steps == ["join", "last", "last"]


def test_what_is_unfinished_is_named_before_anything_else_is_made(tmp_path: Path) -> None:
    nodes = MemoryNodes(list(NODES))
    leaving(nodes)
    context = Context(nodes, RecordingActuator(nodes, fail="stop"), str)
    with pytest.raises(ct.ChronotileError, match="stop failed"):
        decommission(context, tmp_path)
    for name, asked in (("decommission", {"node": NODES[0]}), ("restart", {"nodes": []})):
        with pytest.raises(ct.BusyError, match=r"decommission with address .* is unfinished .*chronotile ops resume"):
            engine.run_request(name, asked, _never, context, tmp_path)
    # Its plan, and planning it anew, fail as the node is gone; the message says what there is to go on with.
    for call in (
        lambda: engine.create_procedure(lambda: Decommission.of(context, LEAVING), context, tmp_path),
        lambda: decommission(context, tmp_path, again=True),
    ):
        with pytest.raises(ct.BusyError, match=r"no node 10\.0\.0\.4.*is unfinished.*chronotile ops resume"):
            call()


def _never() -> Procedure:
    raise AssertionError("it was made although other work is unfinished")


def test_from_another_machine_the_message_names_the_journal_there_and_resume(tmp_path: Path) -> None:
    nodes = MemoryNodes(NODES[:3])
    about = {"procedure": "decommission", "id": "x", "host": "elsewhere", "journal": "/there/x.jsonl", "who": "ann@a"}
    nodes.leases["unfinished"] = ("x", json.dumps(about))
    with pytest.raises(ct.BusyError, match=r"no node.*on elsewhere\. Resume it there: chronotile ops resume"):
        decommission(Context(nodes, RecordingActuator(nodes), str), tmp_path)


def test_a_journal_without_the_operators_words_is_told_by_its_arguments(tmp_path: Path) -> None:
    nodes = MemoryNodes(list(NODES))
    context = Context(nodes, RecordingActuator(nodes), str)
    header = {"procedure": "restart", "arguments": {"addresses": [NODES[0]]}, "steps": [], "findings": []}
    Journal.begin(tmp_path, "1-restart", {**header, "fingerprint": {}}).close()
    with pytest.raises(ct.BusyError, match="is unfinished"):
        engine.run_request("restart", {}, lambda: RollingRestart([NODES[1]]), context, tmp_path)


# ---------------------------------------------------------------- where journals lie


def test_only_the_owner_may_read_a_journal(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        Journal.begin(tmp_path / "a" / "b", "one", {"procedure": "test"}).close()
    finally:
        os.umask(previous)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "a").rglob("*")}
    assert modes == {"b": 0o700, "one.jsonl": 0o600}
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700


def test_a_journal_in_a_new_folder_survives_a_crash_of_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = SyncedNames(monkeypatch)
    Journal.begin(tmp_path / "a" / "b", "one", {"procedure": "test"}).close()
    assert synced.lost(tmp_path) == []


def test_a_journal_that_cannot_be_written_is_told_before_the_lease_is_taken(tmp_path: Path) -> None:
    nodes = MemoryNodes(list(NODES))
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "journals"):
        with pytest.raises(ct.DataFileError, match=r"cannot write journals to .* is a file"):
            decommission(Context(nodes, RecordingActuator(nodes), str), folder)
    assert nodes.leases == {}
    assert nodes.ran == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_of_another_owner_is_told(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(mode=0o500)
    with pytest.raises(ct.DataFileError, match="no permission for"):
        journal.require_writable(tmp_path / "theirs" / "journals")


def test_a_journal_that_cannot_be_made_is_an_error_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("chronotile_tools.ops.procedures.journal.os.open", full)
    with pytest.raises(ct.DataFileError, match=r"cannot write journals to .*: No space left"):
        Journal.begin(tmp_path, "one", {"procedure": "test"})
