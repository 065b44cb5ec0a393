"""Run a procedure: checks, then one step at a time, each journalled before and after, so that it can be resumed at any
point.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import json
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from chronotile.errors import BusyError, ChronotileError, InvalidInputError
from chronotile.terminal import count_text
from chronotile_tools.errors import DamagedError
from chronotile_tools.ops.procedures import findings, journal, nodes
from chronotile_tools.ops.procedures.actuators import Actuator
from chronotile_tools.ops.procedures.findings import Finding
from chronotile_tools.ops.procedures.journal import Journal
from chronotile_tools.ops.procedures.lease import LIFE_S, Lease, describe, prepared, unfinished_elsewhere
from chronotile_tools.ops.procedures.nodes import Echo, Nodes
from chronotile_tools.ops.procedures.preflight import preflight

SETTLE_S = 30.0
"""Seconds for nodes to agree about each other after one of them started."""


@dataclass
class Context:
    """Context of the steps of a procedure."""

    nodes: Nodes
    actuator: Actuator
    echo: Echo
    node_s: float = 600.0
    """Timeout for starting or stopping a node, in seconds."""
    stream_s: float = 7 * 86_400.0
    """Timeout for streaming a node's data, and for commands on all of its data, in seconds."""
    quiet_s: float = 1800.0
    """Warn when a joining node has streamed nothing for this many seconds."""
    archive_url: Callable[[str], str] | None = None
    """Returns the URL of an archive in a keyspace; None if archives cannot be opened from this machine."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Facts that later steps need. Stored in the journal."""
    journal: Journal | None = None

    def note(self, **facts: Any) -> None:
        """Store facts for later steps, also across interruptions."""
        self.notes.update(facts)
        if self.journal is not None:
            self.journal.write("note", **facts)


def _nothing() -> None:
    """Default of `Step.check`: no condition."""


@dataclass(frozen=True)
class Step:
    """A step of a procedure."""

    name: str
    """Unique key within the procedure, for example ``stop 10.0.0.1``."""
    text: str
    """Description of the step."""
    do: Callable[[], None]
    """Performs the step. After an interrupted run, which may have done part or all of it, does the rest."""
    prove: Callable[[], str]
    """Waits until the effect is visible, and returns a description. Raises an error if it does not appear."""
    check: Callable[[], None] = _nothing
    """Raises an error if the step must not start. Not called again for a step that has started."""
    changes: tuple[str, ...] = ()
    """Keys of the fingerprint that the step may change, with ``*`` as wildcard: ``("release 2c4dbbfc-*",)``."""


@dataclass(frozen=True)
class Procedure(ABC):
    """A procedure. Its fields are its arguments, JSON values from which a journal can recreate it."""

    known: ClassVar[dict[str, type[Procedure]]] = {}
    """All procedures by name, to recreate them from journals."""
    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ()
    """Actions that the actuator must support."""
    tables_fixed: ClassVar[bool] = False
    """Whether tables must not be created or dropped while it runs."""

    def __init_subclass__(cls) -> None:
        Procedure.known[cls.name] = cls

    @classmethod
    @abstractmethod
    def of(cls, context: Context, *arguments: Any, **options: Any) -> Procedure:
        """Create the procedure for the present state of a cluster, from the arguments of its command."""

    @abstractmethod
    def steps(self, context: Context) -> Sequence[Step]:
        """The steps. They depend on the arguments only, not on the cluster's state."""

    def checks(self, context: Context) -> list[Finding]:
        """Checks before the start."""
        return preflight(context.nodes)

    def cost(self, context: Context) -> list[str]:
        """Costs, one sentence each."""
        return []

    def give_up(self, context: Context) -> None:  # noqa: B027 (most have nothing to set back)
        """Undo temporary changes of the steps. Called when the procedure is abandoned."""

    @property
    def arguments(self) -> dict[str, Any]:
        """Its fields, by name."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Plan:
    """Plan of a procedure."""

    procedure: str
    findings: list[Finding]
    steps: list[Step]
    cost: list[str]

    @property
    def refused(self) -> bool:
        """Whether it would be refused now."""
        return any(finding.level == "refused" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """The plan for JSON."""
        return {
            "procedure": self.procedure, "refused": self.refused,
            "findings": [dataclasses.asdict(finding) for finding in self.findings],
            "steps": [{"name": step.name, "text": step.text} for step in self.steps], "cost": self.cost,
        }  # fmt: skip

    def __str__(self) -> str:
        lines = [f"{self.procedure}: {count_text(len(self.steps), 'step')}", "", "checked:"]
        lines += [f"  {finding}" for finding in self.findings]
        lines += ["", "steps:", *(f"  {k:>3}  {step.text}" for k, step in enumerate(self.steps, 1))]
        if self.cost:
            lines += ["", "cost:", *(f"  {sentence}" for sentence in self.cost)]
        if self.refused:
            reasons = [f"{one.what}: {one.text}" for one in self.findings if one.level == "refused"]
            lines += ["", f"refused: {'; '.join(reasons)}"]
        return "\n".join(lines)


def plan(procedure: Procedure, context: Context) -> Plan:
    """Check the cluster and plan the procedure. Changes nothing."""
    missing = [verb for verb in procedure.needs if not context.actuator.can(verb)]
    found = [
        Finding("refused", "commands", f"no command to {verb} a node: pass --{verb}-command or --manual")
        for verb in missing
    ]
    found += procedure.checks(context)
    return Plan(procedure.name, found, list(procedure.steps(context)), procedure.cost(context))


def run_request(
    name: str,
    asked: Mapping[str, Any],
    make: Callable[[], Procedure],
    context: Context,
    folder: Path,
    *,
    again: bool = False,
) -> Journal:
    """Run a requested procedure, or resume an interrupted run of the same request.

    Journal and lease are checked before the procedure is created: half-way through, creation may no longer be possible,
    for example because a node to decommission has already left.

    Parameters
    ----------
    name : str
        Name of the procedure.
    asked : mapping
        The operator's request, to recognize a repeated one.
    make : callable
        Creates the procedure for the present cluster.

    Returns and raises what `run` does, and what `make` raises.
    """
    # The journal has the request as JSON: convert this one in the same way before the two are compared.
    asked = json.loads(json.dumps(asked, default=str))
    path = journal.unfinished(folder)
    if path is None or again:
        work = create_procedure(make, context, folder)
    else:
        with Journal(path) as kept:
            header = kept.header
        if "asked" not in header:
            # Started from Python: compare the arguments.
            work = create_procedure(make, context, folder)
        elif (header["procedure"], header["asked"]) == (name, asked):
            work = recreate_procedure(header)
        else:
            raise _other_work(header, path)
    return run(work, context, folder, again=again, asked=asked)


def create_procedure(make: Callable[[], Procedure], context: Context, folder: Path) -> Procedure:
    """Call `make`. If it fails while work is unfinished, which may be the cause, the message says how to resume."""
    try:
        return make()
    except ChronotileError as error:
        unfinished = _unfinished_text(context, folder)
        if not unfinished:
            raise
        raise BusyError(f"{error}. {unfinished}", kind="unfinished") from error


def _unfinished_text(context: Context, folder: Path) -> str:
    """Describe unfinished work, here or elsewhere; empty if there is none."""
    path = journal.unfinished(folder)
    if path is not None:
        with Journal(path) as kept:
            return str(_other_work(kept.header, path))
    other = unfinished_elsewhere(context.nodes)
    return "" if other is None else describe(other)


def _other_work(header: Mapping[str, Any], path: Path) -> BusyError:
    return BusyError(
        f"{header['procedure']} with {_arguments_text(header['arguments'])} is unfinished ({path}): resume it "
        "(chronotile ops resume), or check the nodes and abandon it (chronotile ops abandon)",
        kind="unfinished",
    )


def run(
    procedure: Procedure,
    context: Context,
    folder: Path,
    *,
    again: bool = False,
    life_s: int = LIFE_S,
    asked: Mapping[str, Any] | None = None,
) -> Journal:
    """Run a procedure, or resume an interrupted run.

    Parameters
    ----------
    procedure : Procedure
        The procedure.
    context : Context
        The context.
    folder : Path
        Folder of this cluster's journals. An unfinished journal of the same procedure is resumed.
    again : bool
        Abandon unfinished work, here or elsewhere, and plan again.
    life_s : int
        Seconds after which the lease of a crashed run expires.
    asked : mapping, optional
        The request, stored in the journal for `run_request`.

    Returns
    -------
    Journal
        The closed journal with all entries.

    Raises
    ------
    InvalidInputError
        The procedure is refused (``refused``), or the cluster changed in between (``cluster-changed``).
    BusyError
        Another operator works on the cluster, other work is unfinished, or a step was not verified in time.
    ChronotileError
        A step failed. Fix the reported problem and run the procedure again.
    """
    journal.require_writable(folder)
    with contextlib.ExitStack() as stack:
        kept = _unfinished(procedure, folder, again, stack)
        identity = kept.id if kept is not None and not again else journal.new_id(procedure.name)
        about = {
            "procedure": procedure.name,
            "id": identity,
            "host": socket.gethostname(),
            "journal": str(folder / f"{identity}.jsonl"),
        }
        if not prepared(context.nodes):
            # The lease needs its own table, which is only created in a healthy cluster.
            findings.require(plan(procedure, context).findings, procedure.name)
        lease = stack.enter_context(Lease(context.nodes, about, life_s=life_s))
        # The lease is held from here on, so undo the abandoned run before the cluster is checked for the new one.
        if kept is not None and again:
            _give_up(context, kept)
            context.notes, kept = {}, None
        if kept is None:
            planned = plan(procedure, context)
            findings.require(planned.findings, procedure.name)
            # Check for unfinished work elsewhere before anything is written.
            lease.begin(take_over=again)
            kept = stack.enter_context(_begin(procedure, context, folder, identity, planned, asked))
        else:
            context.echo(f"resuming {kept.path}")
            lease.begin(take_over=again)
            kept.write("resumed")
        context.journal = kept
        _run_steps(procedure, context, kept, lease)
        # End the journal before the mark in the cluster: commands on this machine ignore a mark whose journal has
        # ended.
        kept.write("finished")
        lease.finish()
        context.journal = None
        return kept


def recreate_procedure(header: Mapping[str, Any]) -> Procedure:
    """Recreate the procedure from a journal's first entry.

    Raises
    ------
    DamagedError
        The procedure or its arguments are unknown: the journal was written by another release.
    """
    try:
        return Procedure.known[header["procedure"]](**header["arguments"])
    except (KeyError, TypeError) as error:
        raise DamagedError(
            f"the journal contains a procedure {header.get('procedure')!r} of another release", kind="damaged-journal"
        ) from error


def abandon(context: Context, folder: Path) -> Path | None:
    """Abandon the unfinished procedure of a folder; return its journal, which is kept, or None."""
    path = journal.unfinished(folder)
    if path is None:
        return None
    with Journal(path) as kept:
        about = {
            "procedure": kept.header["procedure"],
            "id": kept.id,
            "host": socket.gethostname(),
            "journal": str(path),
        }
        with Lease(context.nodes, about) as lease:
            _give_up(context, kept)
            lease.finish()
    return path


def _give_up(context: Context, kept: Journal) -> None:
    context.notes = kept.notes()
    try:
        procedure = recreate_procedure(kept.header)
    except DamagedError as error:
        # Abandoning must be possible even if no available release can resume the procedure.
        context.echo(f"{error}: its temporary changes are not undone")
    else:
        procedure.give_up(context)
    kept.write("abandoned")


def _unfinished(procedure: Procedure, folder: Path, again: bool, stack: contextlib.ExitStack) -> Journal | None:
    path = journal.unfinished(folder)
    if path is None:
        return None
    kept = stack.enter_context(Journal(path))
    header = kept.header
    if not again and (header["procedure"], header["arguments"]) != (procedure.name, procedure.arguments):
        raise _other_work(header, path)
    return kept


def _arguments_text(arguments: Mapping[str, Any]) -> str:
    return (
        ", ".join(f"{name} {value}" for name, value in arguments.items() if value not in (None, [], "")) or "no options"
    )


def _begin(
    procedure: Procedure,
    context: Context,
    folder: Path,
    identity: str,
    planned: Plan,
    asked: Mapping[str, Any] | None,
) -> Journal:
    return Journal.begin(
        folder,
        identity,
        {
            "procedure": procedure.name,
            "arguments": procedure.arguments,
            **({} if asked is None else {"asked": asked}),
            "steps": [step.name for step in planned.steps],
            "findings": [str(finding) for finding in planned.findings],
            "fingerprint": _fingerprint(procedure, context),
        },
    )


def _run_steps(procedure: Procedure, context: Context, kept: Journal, lease: Lease) -> None:
    context.notes |= kept.notes()
    steps = list(procedure.steps(context))
    if [step.name for step in steps] != kept.header["steps"]:
        raise InvalidInputError(
            f"{kept.path} was written by another release with other steps: finish it with that release, or abandon it",
            kind="refused",
        )
    done = {entry["step"] for entry in kept.of("done")}
    begun = {entry["step"] for entry in kept.of("begin")}
    for number, step in enumerate(steps, 1):
        if step.name in done:
            continue
        lease.check()
        # A step that an interrupted run began may already have made its changes.
        _require_unchanged(procedure, context, kept, step.changes if step.name in begun else ())
        if step.name not in begun:
            step.check()
            kept.write("begin", step=step.name)
        context.echo(f"{number}/{len(steps)}  {step.text}")
        try:
            step.do()
            # The step may have taken longer than the lease lives without renewal.
            lease.check()
            seen = step.prove()
        except ChronotileError as error:
            kept.write("failed", step=step.name, kind=error.kind, error=str(error))
            raise
        kept.write("done", step=step.name, seen=seen, fingerprint=_fingerprint(procedure, context))
        context.echo(f"      {seen}")


def _fingerprint(procedure: Procedure, context: Context) -> dict[str, str]:
    return nodes.fingerprint(context.nodes, nodes.any_serving(context.nodes), tables=procedure.tables_fixed)


def _require_unchanged(procedure: Procedure, context: Context, kept: Journal, allowed: Sequence[str]) -> None:
    """Raise an error if the cluster changed since the last step, other than what the current step may change."""
    expected: dict[str, str] = next(
        (entry["fingerprint"] for entry in reversed(kept.entries) if "fingerprint" in entry), {}
    )
    deadline = time.monotonic() + SETTLE_S
    while True:
        found = _fingerprint(procedure, context)
        differing = [
            key
            for key in sorted(expected.keys() | found.keys())
            if expected.get(key) != found.get(key) and not any(fnmatch.fnmatch(key, mask) for mask in allowed)
        ]
        if not differing:
            return
        if time.monotonic() > deadline:
            break
        time.sleep(1)
    text = "".join(f"\n  {key}: {expected.get(key, 'absent')} -> {found.get(key, 'absent')}" for key in differing)
    raise InvalidInputError(
        f"the cluster changed since the last step, and not by {procedure.name}; nothing more was done:{text}\n"
        "Undo the change, or plan again (--again)",
        kind="cluster-changed",
    )
