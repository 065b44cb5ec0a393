"""Change the membership of a cluster: add, decommission, remove and replace nodes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from chronotile.errors import ChronotileError, InvalidInputError
from chronotile.terminal import count_text
from chronotile_tools.ops.procedures import statements, steps
from chronotile_tools.ops.procedures.disruptions import sync_step
from chronotile_tools.ops.procedures.engine import Context, Procedure, Step
from chronotile_tools.ops.procedures.findings import Finding
from chronotile_tools.ops.procedures.nodes import (
    all_members,
    answers,
    any_serving,
    is_system,
    members,
    node_statuses,
    wait_for,
)
from chronotile_tools.ops.procedures.preflight import copies, free_bytes, preflight
from chronotile_tools.ops.procedures.restarts import known_addresses

CHANGES = ("node *", "release *", "tokens *")
"""Parts of the fingerprint that may change while a node joins or leaves."""
_START_AGAIN = "stop it, empty its data folders, then run chronotile ops resume"


@dataclass(frozen=True)
class Add(Procedure):
    """Add a node, then clean up the other nodes one at a time."""

    name: ClassVar[str] = "add"
    needs: ClassVar[tuple[str, ...]] = ("join",)
    before: list[str]
    """Addresses of the existing nodes."""
    address: str = ""
    """Address of the new node; empty to let the actuator choose."""

    @classmethod
    def of(cls, context: Context, address: str = "") -> Add:
        """Create the procedure for the present cluster."""
        known = known_addresses(context, [])
        if address in known:
            raise InvalidInputError(f"{address} is already a node of the cluster", kind="refused")
        return cls(known, address)

    def cost(self, context: Context) -> list[str]:
        """Costs, one sentence each."""
        share = 1 / (len(self.before) + 1)
        return [
            f"The new node streams about {share:.0%} of each data centre's data over the network.",
            "Cleanup rewrites the tables of each other node: hours for 100 GiB, one node at a time.",
            *_transactions_cost(context),
        ]

    def steps(self, context: Context) -> list[Step]:
        """Join, then one cleanup per node."""

        def join() -> None:
            if not _new(context, self.before):
                context.actuator.join(self.address)

        step = Step(
            "join",
            f"start a new node{f' at {self.address}' if self.address else ''} and wait until it has streamed its data",
            join,
            lambda: await_joined(context, self.before, len(self.before) + 1, self.address),
            changes=CHANGES,
        )
        return [step, *(_cleanup_step(context, address) for address in self.before)]


@dataclass(frozen=True)
class Decommission(Procedure):
    """Decommission a live node: it streams its data to the others and leaves. Refused if fewer nodes would remain than
    a keyspace's replication factor.
    """

    name: ClassVar[str] = "decommission"
    needs: ClassVar[tuple[str, ...]] = ("stop",)
    address: str

    @classmethod
    def of(cls, context: Context, address: str) -> Decommission:
        """Create the procedure for a node of the cluster."""
        return cls(known_addresses(context, [address])[0])

    def checks(self, context: Context) -> list[Finding]:
        """The preflight checks, and whether enough nodes remain."""
        return [*super().checks(context), replication_finding(context, self.address)]

    def cost(self, context: Context) -> list[str]:
        """Costs, one sentence each."""
        return ["The node streams all of its data over the network.", *_transactions_cost(context)]

    def steps(self, context: Context) -> list[Step]:
        """Decommission, then stop."""

        def leave() -> None:
            if _is_known(context, self.address) and not _is_leaving(context, self.address):
                context.nodes.nodetool(self.address, "decommission", timeout_s=context.stream_s)

        return [
            Step(
                f"decommission {self.address}",
                f"decommission {self.address}: it streams its data to the others and leaves",
                leave,
                lambda: _await_gone(context, self.address),
                lambda: steps.require_others_up(context, self.address),
                CHANGES,
            ),
            Step(
                f"stop {self.address}",
                f"stop {self.address}",
                lambda: context.actuator.stop(self.address),
                lambda: _await_silent(context, self.address),
            ),
            *_retire_steps(context, self.address),
        ]


@dataclass(frozen=True)
class Remove(Procedure):
    """Remove a permanently dead node; the others restore its replicas from each other."""

    name: ClassVar[str] = "remove"
    address: str
    host_id: str

    @classmethod
    def of(cls, context: Context, address: str) -> Remove:
        """Create the procedure for a node that is down."""
        return cls(address, steps.member(context, address).host_id)

    def checks(self, context: Context) -> list[Finding]:
        """The preflight checks without the node, and whether enough nodes remain."""
        return [*preflight(context.nodes, down=[self.address]), replication_finding(context, self.address)]

    def cost(self, context: Context) -> list[str]:
        """Costs, one sentence each."""
        return ["The other nodes stream all of its data from each other.", *_transactions_cost(context)]

    def steps(self, context: Context) -> list[Step]:
        """One step."""

        def remove() -> None:
            if _is_known(context, self.address) and not _is_leaving(context, self.address):
                asked = any_serving(context.nodes, without=[self.address])
                context.nodes.nodetool(asked, "removenode", self.host_id, timeout_s=context.stream_s)

        return [
            Step(
                f"remove {self.address}",
                f"permanently remove {self.address}; the others restore its replicas from each other",
                remove,
                lambda: _await_gone(context, self.address),
                changes=CHANGES,
            ),
            *_retire_steps(context, self.address),
        ]


@dataclass(frozen=True)
class Replace(Procedure):
    """Replace a dead node by an empty one, which takes over its tokens and streams its data. To rebuild a machine, stop
    its node, empty the data folders and give the same address.
    """

    name: ClassVar[str] = "replace"
    needs: ClassVar[tuple[str, ...]] = ("replace",)
    before: list[str]
    dead: str
    host_id: str
    address: str = ""
    """Address of the new node: empty to let the actuator choose, the dead node's for a rebuilt machine."""

    @classmethod
    def of(cls, context: Context, dead: str, address: str = "") -> Replace:
        """Create the procedure for a node that is down."""
        known = known_addresses(context, [])
        host_id = steps.member(context, dead).host_id
        if address in known and address != dead:
            raise InvalidInputError(f"{address} belongs to another node of the cluster", kind="refused")
        return cls(known, dead, host_id, address)

    def checks(self, context: Context) -> list[Finding]:
        """The preflight checks without the node."""
        return preflight(context.nodes, down=[self.dead])

    def cost(self, context: Context) -> list[str]:
        """Costs, one sentence each."""
        costs = ["The new node streams all data of the dead one over the network.", *_transactions_cost(context)]
        if self.address != self.dead:
            return costs
        return [
            *costs,
            "Until it has joined, the other nodes send it no writes; then it is compared with them and repaired.",
            "Do not create tables meanwhile (prepare slices in advance with chronotile prepare): streaming "
            "them may fail.",
        ]

    def steps(self, context: Context) -> list[Step]:
        """One step; two more with the same address, because the new node then gets no writes until it has joined."""

        def replace() -> None:
            if "begun_us" not in context.notes:
                context.note(begun_us=_clock_us(context, any_serving(context.nodes, without=[self.dead])))
            if self._missing(context):
                context.actuator.replace(self.dead, self.address)

        def confirmed() -> str:
            monitor = _JoinMonitor(context, self.address)

            def missing() -> str:
                found = self._missing(context)
                if found:
                    monitor.check()
                return found

            wait_for(f"the replacement of {self.dead}", missing, timeout_s=context.stream_s)
            others = [one for one in self.before if one != self.dead]
            return await_joined(context, others, len(self.before), self.address)

        step = Step(
            f"replace {self.dead}",
            f"replace {self.dead} by an empty node, and wait until it has streamed its data",
            replace,
            confirmed,
            changes=CHANGES,
        )
        if self.address != self.dead:
            return [step]
        return [step, steps.hints_step(context, self.dead), sync_step(context, self.dead)]

    def _missing(self, context: Context) -> str:
        """Evidence that the dead node is not replaced yet; empty if it is."""
        if self.address != self.dead:
            left = any(one.host_id == self.host_id for one in all_members(context.nodes))
            return f"the other nodes still know the old id of {self.dead}" if left else ""
        # With the same address, the new node also takes over the host id: only the write time of the id distinguishes
        # old and new node.
        if not answers(context.nodes, self.dead):
            return f"{self.dead} accepts no clients"
        made_us = int(context.nodes.query(self.dead, statements.identity_time())[0]["made"])
        if made_us < context.notes["begun_us"]:
            return f"{self.dead} is back with its old data: stop it, empty its data folders, and replace it"
        return ""


def replication_finding(context: Context, leaving: str) -> Finding:
    """Check that the remaining nodes can hold the replication factor of every keyspace."""
    asked = any_serving(context.nodes)
    known = members(context.nodes, asked)
    dc = next((one.dc for one in known if one.address == leaving), "")
    left = sum(one.dc == dc for one in known) - 1
    wanting = {name: centres[dc] for name, centres in copies(context.nodes, asked).items() if centres[dc] > left}
    # Skip keyspaces whose factor the nodes set themselves for any cluster size.
    wanting = {name: count for name, count in wanting.items() if name not in ("system_distributed", "system_traces")}
    if not wanting:
        return Finding("ok", "copies", f"{left} nodes remain in {dc}, enough for every keyspace")
    text = ", ".join(f"{name} has replication factor {count}" for name, count in sorted(wanting.items()))
    return Finding("refused", "copies", f"{left} nodes would remain in {dc}, but {text}: add a node first")


def _transactions_cost(context: Context) -> list[str]:
    """Cost of finishing lightweight transactions in all tables first, which releases from 4.1 on do."""
    asked = any_serving(context.nodes)
    known = members(context.nodes, asked)
    if all(one.release.startswith(("3.", "4.0.")) for one in known):
        return []
    rows = context.nodes.query(asked, statements.select("keyspace_name", "system_schema.tables"))
    tables = sum(not is_system(row["keyspace_name"]) for row in rows)
    ranges = sum(len(one.tokens) for one in known)
    return [f"Nodes first finish lightweight transactions, separately for {tables} tables times {ranges} ranges."]


def _cleanup_step(context: Context, address: str) -> Step:
    def check() -> None:
        rows = context.nodes.query(address, statements.select("mebibytes", "system_views.disk_usage"))
        largest = max((int(row["mebibytes"]) for row in rows), default=0) << 20
        try:
            free = free_bytes(context.nodes, address)
        except ChronotileError:
            # The plan already reported that this is unknown.
            return
        if free < largest:
            raise InvalidInputError(
                f"{address} lacks space to rewrite its largest table: free some first", kind="refused"
            )

    def do() -> None:
        context.nodes.nodetool(address, "cleanup", timeout_s=context.stream_s)
        context.note(**{f"cleaned {address}": True})

    def prove() -> str:
        if not context.notes.get(f"cleaned {address}"):
            _raise(f"cleanup of {address} did not finish")
        return f"{address} holds only rows it owns"

    return Step(f"cleanup {address}", f"clean up {address}: drop rows that the new node took over", do, prove, check)


def _retire_steps(context: Context, address: str) -> list[Step]:
    if not context.actuator.can("retire"):
        return []
    return [
        Step(
            f"retire {address}",
            f"disable {address}",
            lambda: context.actuator.retire(address),
            lambda: _await_silent(context, address),
        )
    ]


def _await_silent(context: Context, address: str) -> str:
    wait_for(
        f"the end of {address}",
        lambda: f"{address} accepts clients" if answers(context.nodes, address) else "",
        timeout_s=context.node_s,
    )
    return f"{address} accepts no clients"


def _clock_us(context: Context, address: str) -> int:
    """Clock of a node, in microseconds since 1970-01-01T00:00 UTC."""
    return int(context.nodes.query(address, statements.server_time())[0]["now"]) * 1000


class _JoinMonitor:
    """Monitors a joining node: checks repeatedly that it still streams its data."""

    def __init__(self, context: Context, address: str) -> None:
        self.context, self.address = context, address
        self._progressed_at: dict[str, float] = {}

    def check(self) -> None:
        """Raise an error if the node gave up; warn if it streams nothing, because releases before 5.0 do not report
        failure.

        Raises
        ------
        ChronotileError
            Kind ``not-confirmed``: the node gave up and waits.
        """
        for one in self._joining():
            mode, streaming = steps.activity(self.context, one)
            if mode == "JOINING_FAILED":
                _raise(f"{one} failed to stream its data (see its log): {_START_AGAIN}")
            now = time.monotonic()
            if streaming or mode != "JOINING":
                self._progressed_at[one] = now
            elif now - self._progressed_at.setdefault(one, now) >= self.context.quiet_s:
                self._progressed_at[one] = now
                self.context.echo(
                    f"{one} has streamed nothing for {self.context.quiet_s / 60:.0f} min; if its log "
                    f"reports failed streams, {_START_AGAIN}"
                )

    def _joining(self) -> list[str]:
        if self.address:
            return [self.address]
        return [
            one.address
            for one in node_statuses(self.context.nodes, any_serving(self.context.nodes))
            if one.state == "J"
        ]


def _new(context: Context, before: Sequence[str]) -> list[str]:
    """Addresses of new nodes that are up and normal."""
    asked = any_serving(context.nodes)
    return [one.address for one in node_statuses(context.nodes, asked) if one.normal and one.address not in before]


def await_joined(context: Context, before: Sequence[str], count: int, address: str = "") -> str:
    """Wait until a new node is up and normal, and the cluster has `count` nodes. `address` is the expected one, empty
    if unknown.
    """
    monitor = _JoinMonitor(context, address)

    def missing() -> str:
        found = _new(context, before)
        if not found:
            monitor.check()
            return "no new node is up and normal"
        known = all_members(context.nodes)
        return "" if len(known) == count else f"the cluster has {count_text(len(known), 'node')}, not {count}"

    wait_for("the new node", missing, timeout_s=context.stream_s)
    fresh = _new(context, before)[0]
    steps.await_up(context, fresh)
    return f"{fresh} has joined and serves"


def _is_known(context: Context, address: str) -> bool:
    known = members(context.nodes, any_serving(context.nodes, without=[address]))
    return any(one.address == address for one in known)


def _is_leaving(context: Context, address: str) -> bool:
    """Whether an interrupted run has started the removal, which the nodes continue by themselves."""
    views = node_statuses(context.nodes, any_serving(context.nodes, without=[address]))
    return any(one.address == address and one.state == "L" for one in views)


def _await_gone(context: Context, address: str) -> str:
    wait_for(
        f"{address} to leave",
        lambda: f"the others still know {address}" if _is_known(context, address) else "",
        timeout_s=context.stream_s,
    )
    return f"the other nodes no longer know {address}"


def _raise(text: str) -> str:
    raise ChronotileError(text, kind="not-confirmed")
