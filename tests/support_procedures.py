"""Procedures for tests, and a program that runs one and is killed at a chosen line of what it says.

Arguments of the program: the cluster, the folder of journals, the procedure as JSON (name and arguments), and after
how many lines the process kills itself with SIGKILL (0: never).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from chronotile import lab, ops
from chronotile.ops.procedures import Context, Finding, Procedure, Step, engine, journal, run
from chronotile.ops.procedures import registry as registry  # all procedures, for the program
from chronotile.ops.procedures.actuators import Laboratory
from chronotile.ops.procedures.nodes import seen_by, wait_for
from chronotile.ops.procedures.reaching import AccessNodes


@dataclass(frozen=True)
class Marks(Procedure):
    """Makes a file a step, with a line for each time that it was done; says so before and after each file."""

    name: ClassVar[str] = "marks"
    folder: str
    count: int

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
    """The way to a cluster's nodes."""
    return AccessNodes(ops.for_lab(cluster.name))


def context(cluster: lab.Cluster, echo: Callable[[str], object] = print) -> Context:
    """What procedures work with, on this cluster."""
    hands = Laboratory(cluster, echo)
    return Context(nodes_of(cluster), hands, echo, node_s=180, stream_s=300, archive_url=cluster.url)


def run_apart(
    cluster: lab.Cluster, journals: Path, procedure: Procedure, lines: int
) -> subprocess.CompletedProcess[str]:
    """Run a procedure in a process of its own, killed after so many lines."""
    work = json.dumps({"procedure": procedure.name, "arguments": procedure.arguments})
    command = [sys.executable, __file__, cluster.name, str(journals), work, str(lines)]
    return subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)


def run_cut_off(cluster: lab.Cluster, journals: Path, work: Procedure, cuts: list[int], *, failures: int = 0) -> None:
    """Run a procedure that is killed after these numbers of lines, each counted anew; then to its end."""
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
    """Wait until all nodes that run see another one down."""
    with_node = nodes_of(cluster)

    def missing() -> str:
        views = [(one.address, seen_by(with_node, one.address)) for one in cluster.nodes if one.status == "up"]
        return ", ".join(asker for asker, seen in views if any(s.up and s.address == node.address for s in seen))

    wait_for("seeing it down", missing, timeout_s=60)


def main() -> None:
    name, journals, work, lines = sys.argv[1:]
    left = int(lines)

    def echo(line: str) -> None:
        nonlocal left
        print(line, flush=True)
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    said: dict[str, Any] = json.loads(work)
    run(engine.remade(said), context(lab.attach(name), echo), Path(journals))


if __name__ == "__main__":
    main()
