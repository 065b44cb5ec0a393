"""Rolling upgrades, and the steps that follow them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import ClassVar

from chronotile.errors import ChronotileError, InvalidInputError
from chronotile_tools.ops.procedures import lease, statements, steps
from chronotile_tools.ops.procedures.engine import Context, Procedure, Step
from chronotile_tools.ops.procedures.findings import Finding
from chronotile_tools.ops.procedures.nodes import all_members, answers, any_serving
from chronotile_tools.ops.procedures.restarts import known_addresses, unreplicated

SERIES = ((3, 11), (4, 0), (4, 1), (5, 0))
"""Release series in order; an upgrade goes from one to the next."""
MODES = ("CASSANDRA_4", "UPGRADING", "NONE")
"""Values of ``storage_compatibility_mode`` in their order."""
_MODE = "storage_compatibility_mode"


@dataclass(frozen=True)
class Upgrade(Procedure):
    """Upgrade all nodes to another release, one at a time. Each node is snapshotted first; at the end, tables are
    rewritten in the new format. No table may be created or dropped meanwhile: prepare slices in advance, so that
    clients create none.
    """

    name: ClassVar[str] = "upgrade"
    needs: ClassVar[tuple[str, ...]] = ("stop", "install", "start")
    tables_fixed: ClassVar[bool] = True
    addresses: list[str]
    release: str

    @classmethod
    def of(cls, context: Context, release: str) -> Upgrade:
        """Create the procedure for all nodes."""
        _series(release)
        return cls(known_addresses(context, []), release)

    def checks(self, context: Context) -> list[Finding]:
        """The preflight checks, the order of releases, and limits of the checks."""
        releases = sorted({one.release for one in all_members(context.nodes)})
        found = [*super().checks(context), *unreplicated(context)]
        found += [adjacent(before, self.release) for before in releases]
        text = "agreement of replicas was not checked: run chronotile ops repair run before and after the upgrade"
        return [*found, Finding("unknown", "repair", text)]

    def cost(self, context: Context) -> list[str]:
        """Costs, one sentence each."""
        return [
            "Each node is down for a stop, an installation and a start.",
            "A snapshot keeps the old files, which use disk space until it is cleared.",
            "Afterwards each node rewrites its tables in the new format.",
            "Until the end: no repair, no change of tables or roles, no node added, nothing at consistency ALL.",
        ]

    def steps(self, context: Context) -> list[Step]:
        """Rewrite old formats and take a snapshot on each node; upgrade each; rewrite to the new format."""
        return [
            *(_format_step(context, address, "before") for address in self.addresses),
            *(snapshot_step(context, address, f"before-{self.release}") for address in self.addresses),
            *(step for address in self.addresses for step in self._change(context, address)),
            *(_format_step(context, address, "after") for address in self.addresses),
        ]

    def _change(self, context: Context, address: str) -> list[Step]:
        drain, stop = steps.down_steps(context, address)

        def counted() -> None:
            key = f"errors {address}"
            if key not in context.notes:
                context.note(**{key: _log_errors(context, address)})
            drain.do()

        return [
            Step(drain.name, drain.text, counted, drain.prove, drain.check),
            stop,
            Step(
                f"install {address}",
                f"put Cassandra {self.release} in place on {address}",
                lambda: self._install(context, address),
                lambda: "done; verified when the node starts",
            ),
            steps.up_step(context, address, release=self.release, changes=("release *",)),
            Step(
                f"probe {address}",
                f"check the log of {address} for errors, and read and write through it",
                lambda: None,
                lambda: _await_healthy(context, address),
            ),
            steps.hints_step(context, address),
        ]

    def _install(self, context: Context, address: str) -> None:
        if not answers(context.nodes, address):
            context.actuator.install(address, self.release)


@dataclass(frozen=True)
class Compatibility(Procedure):
    """Advance storage_compatibility_mode after an upgrade to 5.0, by a rolling restart. The order of modes is
    CASSANDRA_4, UPGRADING, NONE.
    """

    name: ClassVar[str] = "compatibility"
    needs: ClassVar[tuple[str, ...]] = ("configure", "stop", "start")
    addresses: list[str]
    mode: str
    confirmed: bool = False

    @classmethod
    def of(cls, context: Context, mode: str, confirmed: bool) -> Compatibility:
        """Create the procedure for all nodes."""
        return cls(known_addresses(context, []), mode, confirmed)

    def checks(self, context: Context) -> list[Finding]:
        """The preflight checks, the order of modes, and confirmation that it is irreversible."""
        found = [*super().checks(context), *unreplicated(context)]
        if any(finding.level == "refused" for finding in found):
            return found
        modes = {_mode_of(context, address) for address in self.addresses}
        before = MODES.index(self.mode) - 1
        if not modes <= {MODES[before], self.mode}:
            text = f"nodes are at {', '.join(sorted(modes))}; {self.mode} follows {MODES[before]}"
            found.append(Finding("refused", "mode", text))
        if not self.confirmed:
            text = f"you cannot return to the previous release once a node is at {self.mode}: pass --confirm"
            found.append(Finding("refused", "no way back", text))
        return found

    def steps(self, context: Context) -> list[Step]:
        """Five steps per node."""
        return [step for address in self.addresses for step in self._change(context, address)]

    def _change(self, context: Context, address: str) -> list[Step]:
        return [
            Step(
                f"configure {address}",
                f"write {_MODE}: {self.mode} into the settings of {address}",
                lambda: context.actuator.configure(address, _MODE, self.mode),
                lambda: "done; verified when the node starts",
            ),
            *steps.down_steps(context, address),
            steps.up_step(context, address),
            Step(
                f"mode {address}",
                f"check the mode of {address}",
                lambda: None,
                lambda: self._confirmed(context, address),
            ),
            steps.hints_step(context, address),
        ]

    def _confirmed(self, context: Context, address: str) -> str:
        found = _mode_of(context, address)
        if found != self.mode:
            raise ChronotileError(f"{address} is at {found}: its cassandra.yaml was not changed", kind="not-confirmed")
        return f"{address} is at {found}"


def _series(release: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)\.(\d+)\.\d+", release)
    series = (int(found[1]), int(found[2])) if found else None
    if series not in SERIES:
        known = ", ".join(f"{a}.{b}" for a, b in SERIES)
        raise InvalidInputError(
            f"release {release!r}: give the full number, such as 4.1.10, of {known}", kind="invalid-request"
        )
    return series


def adjacent(before: str, after: str) -> Finding:
    """Check that an upgrade stays within a series or goes to the next."""
    old, new = _numbers(before), _numbers(after)
    text = f"{before} to {after}"
    if new < old:
        return Finding("refused", "release", f"{text} goes back: restore a backup into nodes of {after} instead")
    if new == old:
        return Finding("refused", "release", f"the nodes run {before} already")
    series = [one for one in SERIES if old[:2] < one <= new[:2]]
    if len(series) > 1:
        first = ".".join(map(str, series[0]))
        return Finding("refused", "release", f"{text} skips a series: upgrade to {first} first")
    return Finding("ok", "release", f"{text} is a supported upgrade")


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", release)[:3])


def _format_step(context: Context, address: str, when: str) -> Step:
    key = f"formats {when} {address}"

    def do() -> None:
        context.nodes.nodetool(address, "upgradesstables", timeout_s=context.stream_s)
        context.note(**{key: True})

    def prove() -> str:
        if not context.notes.get(key):
            raise ChronotileError(f"upgradesstables on {address} did not finish", kind="not-confirmed")
        return f"all tables of {address} are in its release's format"

    return Step(f"formats {when} {address}", f"rewrite tables of {address} that are in an older format", do, prove)


def snapshot_step(context: Context, address: str, tag: str) -> Step:
    """Take a snapshot of all tables of a node, unless one of this name exists."""

    def there() -> bool:
        return (
            re.search(rf"^{re.escape(tag)}\s", context.nodes.nodetool(address, "listsnapshots"), re.MULTILINE)
            is not None
        )

    def do() -> None:
        if not there():
            context.nodes.nodetool(address, "snapshot", "-t", tag, timeout_s=context.node_s)

    def prove() -> str:
        if not there():
            raise ChronotileError(f"{address} does not list snapshot {tag}", kind="not-confirmed")
        return f"{address} has snapshot {tag}; nodetool clearsnapshot -t {tag} frees its space later"

    return Step(f"snapshot {address}", f"take snapshot {tag} of {address}", do, prove)


def _log_errors(context: Context, address: str) -> int | None:
    """Number of ERROR lines in a node's log; None if it cannot be read."""
    try:
        where = "name = 'cassandra.logdir'"
        rows = context.nodes.query(address, statements.select("value", "system_views.system_properties", where))
        path = str(PurePosixPath(rows[0]["value"]) / "system.log")
        return sum(
            int(line) for line in context.nodes.shell(address, "awk", "/^ERROR/{n++} END{print n+0}", path).split()
        )
    except (ChronotileError, IndexError, ValueError):
        return None


def _await_healthy(context: Context, address: str) -> str:
    before, after = context.notes.get(f"errors {address}"), _log_errors(context, address)
    if after is not None and after > (before or 0):
        raise ChronotileError(
            f"{address} wrote {after - (before or 0)} new errors to its log: check it", kind="not-confirmed"
        )
    context.nodes.query(address, statements.read_lease("work"), consistency="QUORUM")
    unfinished = lease.unfinished(context.nodes)
    if unfinished is None:
        raise ChronotileError(f"a read through {any_serving(context.nodes)} lost the lease's row", kind="not-confirmed")
    log = "its log was not checked (no --shell)" if after is None else "no new error in its log"
    return f"{address} reads at QUORUM; {log}"


def _mode_of(context: Context, address: str) -> str:
    rows = context.nodes.query(address, statements.select("value", "system_views.settings", f"name = '{_MODE}'"))
    if not rows:
        raise InvalidInputError(f"{address} has no {_MODE}: it runs a release before 5.0", kind="refused")
    # Default if cassandra.yaml does not set it.
    return MODES[0] if rows[0]["value"] == "null" else rows[0]["value"]
