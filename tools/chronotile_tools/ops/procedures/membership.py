"""Changing which nodes a cluster has: add, take out, remove what is dead, replace."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from chronotile.errors import ChronotileError, InvalidInputError
from chronotile_tools.ops.procedures import statements, steps
from chronotile_tools.ops.procedures.disruptions import whole_step
from chronotile_tools.ops.procedures.engine import Context, Procedure, Step
from chronotile_tools.ops.procedures.findings import Finding
from chronotile_tools.ops.procedures.gate import copies, free_bytes, gate
from chronotile_tools.ops.procedures.nodes import (
    all_members,
    answers,
    any_serving,
    is_system,
    members,
    seen_by,
    wait_for,
)
from chronotile_tools.ops.procedures.restarts import known_addresses

CHANGES = ("node *", "release *", "tokens *")
"""What may differ in the fingerprint while a node comes or goes."""
_START_AGAIN = "stop it, empty its data folders, then go on with chronotile ops resume"


@dataclass(frozen=True)
class Add(Procedure):
    """Add a node; then have the others drop, one after the other, what it took over."""

    name: ClassVar[str] = "add"
    before: list[str]
    """Addresses of the nodes that are there."""
    address: str = ""
    """The new node's; empty where the actuator chooses."""

    @classmethod
    def of(cls, context: Context, address: str = "") -> Add:
        """To the cluster as it is."""
        known = known_addresses(context, [])
        if address in known:
            raise InvalidInputError(f"{address} is a node of the cluster already", kind="refused")
        return cls(known, address)

    def needs(self) -> Sequence[str]:
        """Verbs of the actuator."""
        return ("join",)

    def cost(self, context: Context) -> list[str]:
        """In sentences."""
        share = 1 / (len(self.before) + 1)
        return [
            f"The new node fetches about {share:.0%} of each data centre's data over the network.",
            "Cleanup rewrites the tables of each other node: hours where there are 100 GiB, one node at a time.",
            *_transactions_cost(context),
        ]

    def steps(self, context: Context) -> list[Step]:
        """Join, then a cleanup a node."""

        def join() -> None:
            if not _new(context, self.before):
                context.actuator.join(self.address)

        step = Step(
            "join",
            f"start a new node{f' at {self.address}' if self.address else ''} and wait until it has its data",
            join,
            lambda: await_joined(context, self.before, len(self.before) + 1, self.address),
            changes=CHANGES,
        )
        return [step, *(_cleanup_step(context, address) for address in self.before)]


@dataclass(frozen=True)
class Decommission(Procedure):
    """Have a node hand its data to the others and leave."""

    name: ClassVar[str] = "decommission"
    address: str

    @classmethod
    def of(cls, context: Context, address: str) -> Decommission:
        """For a node of the cluster."""
        return cls(known_addresses(context, [address])[0])

    def checks(self, context: Context) -> list[Finding]:
        """The gate, and whether enough nodes stay."""
        return [*super().checks(context), enough_stay(context, self.address)]

    def cost(self, context: Context) -> list[str]:
        """In sentences."""
        return ["It sends all it has over the network.", *_transactions_cost(context)]

    def needs(self) -> Sequence[str]:
        """Verbs of the actuator."""
        return ("stop",)

    def steps(self, context: Context) -> list[Step]:
        """Leave, then stop."""

        def leave() -> None:
            if _is_known(context, self.address) and not _is_leaving(context, self.address):
                context.nodes.nodetool(self.address, "decommission", timeout_s=context.stream_s)

        return [
            Step(
                f"decommission {self.address}",
                f"{self.address} hands its data to the others and leaves",
                leave,
                lambda: _await_gone(context, self.address),
                lambda: steps.require_others_well(context, self.address),
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
    """Remove a node that is dead for good; the others fetch from each other what it had."""

    name: ClassVar[str] = "remove"
    address: str
    host_id: str

    @classmethod
    def of(cls, context: Context, address: str) -> Remove:
        """For a node of the cluster that is down."""
        return cls(address, steps.member(context, address).host_id)

    def checks(self, context: Context) -> list[Finding]:
        """The gate but for the node, and whether enough nodes stay."""
        return [*gate(context.nodes, down=[self.address]), enough_stay(context, self.address)]

    def cost(self, context: Context) -> list[str]:
        """In sentences."""
        return ["The others fetch from each other all that it had.", *_transactions_cost(context)]

    def steps(self, context: Context) -> list[Step]:
        """One."""

        def remove() -> None:
            if _is_known(context, self.address) and not _is_leaving(context, self.address):
                asked = any_serving(context.nodes, without=[self.address])
                context.nodes.nodetool(asked, "removenode", self.host_id, timeout_s=context.stream_s)

        return [
            Step(
                f"remove {self.address}",
                f"remove {self.address} for good; the others fetch from each other what it had",
                remove,
                lambda: _await_gone(context, self.address),
                changes=CHANGES,
            ),
            *_retire_steps(context, self.address),
        ]


@dataclass(frozen=True)
class Replace(Procedure):
    """Put an empty node in the place of a dead one: it takes over its tokens and fetches its data."""

    name: ClassVar[str] = "replace"
    before: list[str]
    dead: str
    host_id: str
    address: str = ""
    """The new node's; empty where the actuator chooses, the dead one's for a machine that was set up anew."""

    @classmethod
    def of(cls, context: Context, dead: str, address: str = "") -> Replace:
        """For a node of the cluster that is down."""
        known = known_addresses(context, [])
        host_id = steps.member(context, dead).host_id
        if address in known and address != dead:
            raise InvalidInputError(f"{address} is another node of the cluster", kind="refused")
        return cls(known, dead, host_id, address)

    def checks(self, context: Context) -> list[Finding]:
        """The gate but for the node."""
        return gate(context.nodes, down=[self.dead])

    def needs(self) -> Sequence[str]:
        """Verbs of the actuator."""
        return ("replace",)

    def cost(self, context: Context) -> list[str]:
        """In sentences."""
        costs = ["The new node fetches all that the dead one had over the network.", *_transactions_cost(context)]
        if self.address != self.dead:
            return costs
        return [
            *costs,
            "Until it has joined the others send it no writes: then it is compared with them, and repaired.",
            "Have no tables made meanwhile (chronotile prepare makes slices ahead): it may fail to fetch them.",
        ]

    def steps(self, context: Context) -> list[Step]:
        """One; two more at the dead node's address, where the new one is sent no writes until it has joined."""

        def replace() -> None:
            if "begun_us" not in context.notes:
                context.note(begun_us=_clock_us(context, any_serving(context.nodes, without=[self.dead])))
            if self._missing(context):
                context.actuator.replace(self.dead, self.address)

        def confirmed() -> str:
            arrival = _Arrival(context, self.address)

            def missing() -> str:
                found = self._missing(context)
                if found:
                    arrival.look()
                return found

            wait_for(f"the replacement of {self.dead}", missing, timeout_s=context.stream_s)
            others = [one for one in self.before if one != self.dead]
            return await_joined(context, others, len(self.before), self.address)

        step = Step(
            f"replace {self.dead}",
            f"start an empty node in the place of {self.dead} and wait until it has its data",
            replace,
            confirmed,
            changes=CHANGES,
        )
        if self.address != self.dead:
            return [step]
        return [step, steps.hints_step(context, self.dead), whole_step(context, self.dead)]

    def _missing(self, context: Context) -> str:
        """What shows that the dead node has not been replaced yet; empty when it has."""
        if self.address != self.dead:
            left = any(one.host_id == self.host_id for one in all_members(context.nodes))
            return f"the nodes still know {self.dead} by its old id" if left else ""
        # At the same address the new node takes over the id too: only when it was written tells the two apart.
        if not answers(context.nodes, self.dead):
            return f"{self.dead} takes no clients"
        made_us = int(context.nodes.query(self.dead, statements.identity_time())[0]["made"])
        if made_us < context.notes["begun_us"]:
            return f"{self.dead} is back with its data of before: stop it, empty its data folders, and replace it"
        return ""


def enough_stay(context: Context, leaving: str) -> Finding:
    """Whether the nodes that stay can hold as many copies as keyspaces want."""
    asked = any_serving(context.nodes)
    known = members(context.nodes, asked)
    dc = next((one.dc for one in known if one.address == leaving), "")
    left = sum(one.dc == dc for one in known) - 1
    wanting = {name: centres[dc] for name, centres in copies(context.nodes, asked).items() if centres[dc] > left}
    # Nodes make these for any number of nodes, and hold what they can.
    wanting = {name: count for name, count in wanting.items() if name not in ("system_distributed", "system_traces")}
    if not wanting:
        return Finding("ok", "copies", f"{left} nodes stay in {dc}, enough for every keyspace")
    text = ", ".join(f"{name} wants {count} copies" for name, count in sorted(wanting.items()))
    return Finding("refused", "copies", f"{left} nodes would stay in {dc}, and {text}: add a node first")


def _transactions_cost(context: Context) -> list[str]:
    """What it takes that nodes finish lightweight transactions first, in all tables: those of 4.1 or later do."""
    asked = any_serving(context.nodes)
    known = members(context.nodes, asked)
    if all(one.release.startswith(("3.", "4.0.")) for one in known):
        return []
    rows = context.nodes.query(asked, statements.select("keyspace_name", "system_schema.tables"))
    tables = sum(not is_system(row["keyspace_name"]) for row in rows)
    ranges = sum(len(one.tokens) for one in known)
    return [f"Nodes first finish lightweight transactions, in {tables} tables times {ranges} ranges, each by itself."]


def _cleanup_step(context: Context, address: str) -> Step:
    def check() -> None:
        rows = context.nodes.query(address, statements.select("mebibytes", "system_views.disk_usage"))
        largest = max((int(row["mebibytes"]) for row in rows), default=0) << 20
        try:
            free = free_bytes(context.nodes, address)
        except ChronotileError:
            # The plan said that it could not be seen.
            return
        if free < largest:
            raise InvalidInputError(
                f"{address} has no room to rewrite its largest table: free some first", kind="refused"
            )

    def do() -> None:
        context.nodes.nodetool(address, "cleanup", timeout_s=context.stream_s)
        context.note(**{f"cleaned {address}": True})

    def prove() -> str:
        if not context.notes.get(f"cleaned {address}"):
            _raise(f"cleanup of {address} did not come to its end")
        return f"{address} keeps what is its own only"

    return Step(f"cleanup {address}", f"{address} drops what the new node took over", do, prove, check)


def _retire_steps(context: Context, address: str) -> list[Step]:
    if not context.actuator.can("retire"):
        return []
    return [
        Step(
            f"retire {address}",
            f"keep {address} from being started again",
            lambda: context.actuator.retire(address),
            lambda: _await_silent(context, address),
        )
    ]


def _await_silent(context: Context, address: str) -> str:
    wait_for(
        f"the end of {address}",
        lambda: f"{address} takes clients" if answers(context.nodes, address) else "",
        timeout_s=context.node_s,
    )
    return f"{address} takes no clients"


def _clock_us(context: Context, address: str) -> int:
    """A node's clock, in microseconds since 1970-01-01T00:00 UTC."""
    return int(context.nodes.query(address, statements.server_time())[0]["now"]) * 1000


class _Arrival:
    """A new node on its way in, looked at time and again: whether it still fetches its data."""

    def __init__(self, context: Context, address: str) -> None:
        self.context, self.address = context, address
        self._moved: dict[str, float] = {}

    def look(self) -> None:
        """See that it has not given up, and say so where it fetches nothing: before 5.0 a node does not tell.

        Raises
        ------
        ChronotileError
            Kind ``not-confirmed``: it has, and waits.
        """
        for one in self._joining():
            mode, streaming = steps.activity(self.context, one)
            if mode == "JOINING_FAILED":
                _raise(f"{one} failed to fetch its data (why, its log says): {_START_AGAIN}")
            now = time.monotonic()
            if streaming or mode != "JOINING":
                self._moved[one] = now
            elif now - self._moved.setdefault(one, now) >= self.context.quiet_s:
                self._moved[one] = now
                self.context.echo(
                    f"{one} has fetched nothing for {self.context.quiet_s / 60:.0f} min; "
                    f"if its log says that streaming failed, {_START_AGAIN}"
                )

    def _joining(self) -> list[str]:
        if self.address:
            return [self.address]
        return [one.address for one in seen_by(self.context.nodes, any_serving(self.context.nodes)) if one.state == "J"]


def _new(context: Context, before: Sequence[str]) -> list[str]:
    """Addresses of nodes that were not there before and are up and normal."""
    asked = any_serving(context.nodes)
    return [one.address for one in seen_by(context.nodes, asked) if one.well and one.address not in before]


def await_joined(context: Context, before: Sequence[str], count: int, address: str = "") -> str:
    """Wait until a node that was not there before is up and normal, and the cluster has `count`.

    `address` is the one it should have, empty where that is not known.
    """
    arrival = _Arrival(context, address)

    def missing() -> str:
        found = _new(context, before)
        if not found:
            arrival.look()
            return "no new node is up and normal"
        known = all_members(context.nodes)
        return "" if len(known) == count else f"the cluster has {len(known)} nodes, not {count}"

    wait_for("the new node", missing, timeout_s=context.stream_s)
    fresh = _new(context, before)[0]
    steps.await_up(context, fresh)
    return f"{fresh} has joined and serves"


def _is_known(context: Context, address: str) -> bool:
    known = members(context.nodes, any_serving(context.nodes, without=[address]))
    return any(one.address == address for one in known)


def _is_leaving(context: Context, address: str) -> bool:
    """Whether a run that was cut off has begun it: the nodes go on by themselves."""
    views = seen_by(context.nodes, any_serving(context.nodes, without=[address]))
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
