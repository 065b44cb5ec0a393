"""Procedures for tests, and a program that runs one and kills itself at a chosen moment.

Arguments of the program: the cluster, the folder of journals, the procedure as JSON (name and arguments), and when the
process kills itself with SIGKILL: after a number of output lines (0: never), or at a `KillPoint`, as JSON.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from chronotile_tools import lab, ops
from chronotile_tools.ops.procedures import Context, Finding, Procedure, Step, engine, journal, run
from chronotile_tools.ops.procedures import registry as registry  # all procedures, for the program
from chronotile_tools.ops.procedures.actuators import Laboratory
from chronotile_tools.ops.procedures.nodes import node_statuses, wait_for
from chronotile_tools.ops.procedures.reaching import AccessNodes


@dataclass(frozen=True)
class Marks(Procedure):
    """Each step appends a line to a file of its own, and prints a line before and after."""

    name: ClassVar[str] = "marks"
    folder: str
    count: int

    @classmethod
    def of(cls, context: Context, folder: str, count: int) -> Marks:
        return cls(folder, count)

    def checks(self, context: Context) -> list[Finding]:
        return []

    def steps(self, context: Context) -> list[Step]:
        return [self._step(context, number) for number in range(self.count)]

    def _step(self, context: Context, number: int) -> Step:
        path = Path(self.folder) / str(number)

        def do() -> None:
            context.echo("before")
            with path.open("a") as file:
                file.write("x\n")
            context.note(**{f"mark{number}": number * 7})
            context.echo("after")

        return Step(f"mark {number}", f"make {number}", do, lambda: f"{path.name} is there, {dict(context.notes)}")


def nodes_of(cluster: lab.Cluster) -> AccessNodes:
    """Access to a cluster's nodes."""
    return AccessNodes(ops.for_lab(cluster.name))


def context(cluster: lab.Cluster, echo: Callable[[str], object] = print) -> Context:
    """The context of procedures on this cluster."""
    actuator = Laboratory(cluster, echo)
    return Context(nodes_of(cluster), actuator, echo, node_s=180, stream_s=300, archive_url=cluster.url)


@dataclass(frozen=True)
class KillPoint:
    """When a process kills itself: some time after a step began, or when it is done but not yet in the journal."""

    step: str
    after_s: float | None = None
    """Seconds after the step began; None: when it is done."""


def run_apart(
    cluster: lab.Cluster, journals: Path, procedure: Procedure, when: int | KillPoint
) -> subprocess.CompletedProcess[str]:
    """Run a procedure in a separate process that kills itself after `when` lines of output or at a kill point."""
    work = json.dumps({"procedure": procedure.name, "arguments": procedure.arguments})
    moment = json.dumps(dataclasses.asdict(when) if isinstance(when, KillPoint) else when)
    command = [sys.executable, __file__, cluster.name, str(journals), work, moment]
    return subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)


def run_cut_off(cluster: lab.Cluster, journals: Path, work: Procedure, cuts: list[int], *, failures: int = 0) -> None:
    """Run a procedure once for each of `cuts`, killed after this number of output lines; then run it to its end."""
    for lines in cuts:
        done = run_apart(cluster, journals, work, lines)
        assert done.returncode == -9, done.stderr
    done = run_apart(cluster, journals, work, 0)
    assert done.returncode == 0, done.stderr
    (path,) = journal.paths(journals)
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    assert entries[-1]["event"] == "finished"
    assert [entry["event"] for entry in entries].count("failed") == failures


def wait_until_seen_down(cluster: lab.Cluster, node: lab.Node) -> None:
    """Wait until all running nodes see `node` down."""
    with_node = nodes_of(cluster)

    def missing() -> str:
        views = [(one.address, node_statuses(with_node, one.address)) for one in cluster.nodes if one.status == "up"]
        return ", ".join(asker for asker, seen in views if any(s.up and s.address == node.address for s in seen))

    wait_for("seeing it down", missing, timeout_s=60)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_when_done(step: str) -> None:
    """Make this process kill itself when a step is done and verified, before the journal records it."""
    write = journal.Journal.write

    def writing(kept: journal.Journal, event: str, **fields: Any) -> None:
        if event == "done" and fields["step"] == step:
            die()
        write(kept, event, **fields)

    journal.Journal.write = writing  # type: ignore[assignment, method-assign]


def main() -> None:
    name, journals, work, when = sys.argv[1:]
    moment = json.loads(when)
    header: dict[str, Any] = json.loads(work)
    procedure, begins, lines = engine.recreate_procedure(header), "", 0

    def echo(line: str) -> None:
        nonlocal lines
        print(line, flush=True)
        lines += 1
        if lines == moment:
            die()
        if begins and line.startswith(begins):
            threading.Timer(moment["after_s"], die).start()

    actuator = context(lab.attach(name), echo)
    if isinstance(moment, dict) and moment["after_s"] is None:
        die_when_done(moment["step"])
    elif isinstance(moment, dict):
        # The prefix of the line that is printed when the step begins or resumes.
        number = [step.name for step in procedure.steps(actuator)].index(moment["step"]) + 1
        begins = f"{number}/"
    run(procedure, actuator, Path(journals))


if __name__ == "__main__":
    main()
