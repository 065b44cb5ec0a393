"""Runs a procedure: checks, then step after step, each logged before and after, so that it can go on anywhere."""

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
from chronotile_tools.errors import DamagedError
from chronotile_tools.ops.procedures import findings, journal, nodes
from chronotile_tools.ops.procedures.actuators import Actuator
from chronotile_tools.ops.procedures.findings import Finding
from chronotile_tools.ops.procedures.gate import gate
from chronotile_tools.ops.procedures.journal import Journal
from chronotile_tools.ops.procedures.lease import LIFE_S, Lease, prepared, told, unfinished_elsewhere
from chronotile_tools.ops.procedures.nodes import Echo, Nodes

SETTLE_S = 30.0
"""How long nodes may tell of each other differently after one of them started."""


@dataclass
class Context:
    """What the steps of a procedure work with."""

    nodes: Nodes
    actuator: Actuator
    echo: Echo
    node_s: float = 600.0
    """How long a node may take to come up or go down."""
    stream_s: float = 7 * 86_400.0
    """How long a node may take to fetch or hand over its data, and a command on all its data to end."""
    quiet_s: float = 1800.0
    """After how long it is said of a new node that it fetches nothing."""
    archive_url: Callable[[str], str] | None = None
    """The URL of an archive in a keyspace of the cluster; None where archives cannot be opened from here."""
    notes: dict[str, Any] = field(default_factory=dict)
    """What steps found out and later ones need. Kept in the journal."""
    journal: Journal | None = None

    def note(self, **facts: Any) -> None:
        """Keep facts for later steps, also after an interruption."""
        self.notes.update(facts)
        if self.journal is not None:
            self.journal.write("note", **facts)


def _nothing() -> None:
    """No condition."""


@dataclass(frozen=True)
class Step:
    """One step."""

    name: str
    """Tells it from the other steps of its procedure, for example ``stop 10.0.0.1``."""
    text: str
    """What it does, for people."""
    do: Callable[[], None]
    """Does it. It may have been done in part or whole before, by a run that was cut off: then it does the rest."""
    prove: Callable[[], str]
    """Waits until it shows that it was done, and returns what was seen. Raises when it does not."""
    check: Callable[[], None] = _nothing
    """Raises when it must not be begun. Not asked again for a step that was begun before."""
    changes: tuple[str, ...] = ()
    """Keys of the fingerprint that it may change, ``*`` for anything: ``("release 2c4dbbfc-*",)``."""


@dataclass(frozen=True)
class Procedure(ABC):
    """Work in steps. Its fields are its arguments, values that JSON can hold; with them a journal makes it again."""

    known: ClassVar[dict[str, type[Procedure]]] = {}
    """All procedures by name, to make one again from its journal."""
    name: ClassVar[str]
    tables_fixed: ClassVar[bool] = False
    """Whether no table may come or go while it runs."""

    def __init_subclass__(cls) -> None:
        Procedure.known[cls.name] = cls

    @abstractmethod
    def steps(self, context: Context) -> Sequence[Step]:
        """Its steps. The same for the same arguments, whatever the state of the cluster."""

    def checks(self, context: Context) -> list[Finding]:
        """What is looked at before it begins."""
        return gate(context.nodes)

    def cost(self, context: Context) -> list[str]:
        """What it will cost, a sentence each."""
        return []

    def needs(self) -> Sequence[str]:
        """Verbs of the actuator that it uses."""
        return ()

    def give_up(self, context: Context) -> None:  # noqa: B027 (most have nothing to set back)
        """Set back what steps changed for the time of the procedure only. Called when it is abandoned."""

    @property
    def arguments(self) -> dict[str, Any]:
        """Its fields."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Plan:
    """What a procedure would do."""

    procedure: str
    findings: list[Finding]
    steps: list[Step]
    cost: list[str]

    @property
    def refused(self) -> bool:
        """Whether it would be refused now."""
        return any(finding.level == "refused" for finding in self.findings)

    def __str__(self) -> str:
        lines = [f"{self.procedure}: {len(self.steps)} steps", "", "checked:"]
        lines += [f"  {finding}" for finding in self.findings]
        lines += ["", "steps:", *(f"  {k:>3}  {step.text}" for k, step in enumerate(self.steps, 1))]
        if self.cost:
            lines += ["", "cost:", *(f"  {sentence}" for sentence in self.cost)]
        if self.refused:
            reasons = [f"{one.what}: {one.text}" for one in self.findings if one.level == "refused"]
            lines += ["", f"refused: {'; '.join(reasons)}"]
        return "\n".join(lines)


def plan(procedure: Procedure, context: Context) -> Plan:
    """Look at the cluster and say what would be done. Changes nothing."""
    missing = [verb for verb in procedure.needs() if not context.actuator.can(verb)]
    found = [
        Finding("refused", "commands", f"nothing says how to {verb} a node: give --{verb}-command or --manual")
        for verb in missing
    ]
    found += procedure.checks(context)
    return Plan(procedure.name, found, list(procedure.steps(context)), procedure.cost(context))


def run_asked(
    name: str,
    asked: Mapping[str, Any],
    make: Callable[[], Procedure],
    context: Context,
    folder: Path,
    *,
    again: bool = False,
) -> Journal:
    """Run what an operator asked for, or go on with it where an earlier run of the same was cut off.

    The journal and the lease are looked at before the procedure is made: half-way, the cluster may no longer be one of
    which it could be made, as when the node that is to leave has left.

    Parameters
    ----------
    name : str
        Of the procedure.
    asked : mapping
        The operator's own words, which tell whether he asks for the same again.
    make : callable
        Makes the procedure for the cluster as it is.

    Returns and raises what `run` does, and what `make` raises.
    """
    asked = json.loads(json.dumps(asked, default=str))
    path = journal.unfinished(folder)
    if path is None or again:
        work = made(make, context, folder)
    else:
        with Journal(path) as kept:
            header = kept.header
        if "asked" not in header:
            # Begun from Python, or by an earlier release: its arguments tell.
            work = made(make, context, folder)
        elif (header["procedure"], header["asked"]) == (name, asked):
            work = remade(header)
        else:
            raise _other_work(header, path)
    return run(work, context, folder, again=again, asked=asked)


def made(make: Callable[[], Procedure], context: Context, folder: Path) -> Procedure:
    """What `make` returns. Where it fails and work is unfinished, which may be why, the message says how to go on."""
    try:
        return make()
    except ChronotileError as error:
        unfinished = _unfinished_words(context, folder)
        if not unfinished:
            raise
        raise BusyError(f"{error}. {unfinished}", kind="unfinished") from error


def _unfinished_words(context: Context, folder: Path) -> str:
    """What is unfinished, here or elsewhere; empty where nothing is."""
    path = journal.unfinished(folder)
    if path is not None:
        with Journal(path) as kept:
            return str(_other_work(kept.header, path))
    other = unfinished_elsewhere(context.nodes)
    return "" if other is None else told(other)


def _other_work(header: Mapping[str, Any], path: Path) -> BusyError:
    return BusyError(
        f"{header['procedure']} with {_words(header['arguments'])} is unfinished ({path}): resume it "
        "(chronotile ops resume), or give it up (chronotile ops abandon) once you have looked at the nodes",
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
    """Run a procedure, or go on with it where an earlier run was cut off.

    Parameters
    ----------
    procedure : Procedure
        What to do.
    context : Context
        With what.
    folder : Path
        Where the journals of this cluster lie. An unfinished one of the same work is gone on with.
    again : bool
        Give up what is unfinished, here or elsewhere, and plan anew.
    life_s : int
        Seconds after which the lease of a run that is gone ends.
    asked : mapping, optional
        What it was made of, kept in the journal for `run_asked`.

    Returns
    -------
    Journal
        Closed, with all its entries.

    Raises
    ------
    InvalidInputError
        It must not begin (``refused``), or the cluster changed in between (``cluster-changed``).
    BusyError
        Somebody else works on the cluster, other work is unfinished, or a step was not proved in time.
    ChronotileError
        A step failed. Run it again when what the message says is mended.
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
            # The lease needs a table of its own, and none is made in a cluster that is not in order.
            findings.require(plan(procedure, context).findings, procedure.name)
        lease = stack.enter_context(Lease(context.nodes, about, life_s=life_s))
        if kept is not None and again:
            _give_up(context, kept)
            context.notes, kept = {}, None
        if kept is None:
            planned = plan(procedure, context)
            findings.require(planned.findings, procedure.name)
            # Refused before anything is written where other work is unfinished elsewhere.
            lease.begin(take_over=again)
            kept = stack.enter_context(_begin(procedure, context, folder, identity, planned, asked))
        else:
            context.echo(f"going on with {kept.path}")
            lease.begin(take_over=again)
            kept.write("resumed")
        context.journal = kept
        _run_steps(procedure, context, kept, lease)
        kept.write("finished")
        lease.finish()
        context.journal = None
        return kept


def remade(header: Mapping[str, Any]) -> Procedure:
    """The procedure that the first entry of a journal tells of.

    Raises
    ------
    DamagedError
        There is none of this name, or it takes other arguments: the journal is of another release.
    """
    try:
        return Procedure.known[header["procedure"]](**header["arguments"])
    except (KeyError, TypeError) as error:
        raise DamagedError(
            f"the journal tells of a procedure {header.get('procedure')!r} of another release", kind="damaged-journal"
        ) from error


def abandon(context: Context, folder: Path) -> Path | None:
    """Give up the unfinished procedure of a folder; its journal stays. Returns that, or None where there is none."""
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
        procedure = remade(kept.header)
    except DamagedError as error:
        # It must be possible to give up what no release at hand can go on with.
        context.echo(f"{error}: what it changed for as long as it ran is not set back")
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


def _words(arguments: Mapping[str, Any]) -> str:
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
            f"{kept.path} is of another release, whose steps differ: finish it with that, or abandon it", kind="refused"
        )
    done = {entry["step"] for entry in kept.of("done")}
    begun = {entry["step"] for entry in kept.of("begin")}
    for number, step in enumerate(steps, 1):
        if step.name in done:
            continue
        lease.check()
        _require_unchanged(procedure, context, kept, step.changes if step.name in begun else ())
        if step.name not in begun:
            step.check()
            kept.write("begin", step=step.name)
        context.echo(f"{number}/{len(steps)}  {step.text}")
        try:
            step.do()
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
    """Refuse where the cluster is not as the last step left it, but for what the step at hand may have changed."""
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
        "Undo that, or plan anew (--again)",
        kind="cluster-changed",
    )
