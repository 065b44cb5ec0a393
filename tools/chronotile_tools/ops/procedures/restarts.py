"""Restarting nodes one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from chronotile.errors import InvalidInputError
from chronotile_tools.ops.procedures import steps
from chronotile_tools.ops.procedures.engine import Context, Procedure, Step
from chronotile_tools.ops.procedures.findings import Finding
from chronotile_tools.ops.procedures.gate import copies
from chronotile_tools.ops.procedures.nodes import all_members, any_serving, is_system


@dataclass(frozen=True)
class RollingRestart(Procedure):
    """Restart nodes one after the other, each when the one before serves again and has got what it missed."""

    name: ClassVar[str] = "restart"
    addresses: list[str]

    @classmethod
    def of(cls, context: Context, addresses: Sequence[str]) -> RollingRestart:
        """For these nodes, or all where none is named."""
        return cls(known_addresses(context, addresses))

    def needs(self) -> Sequence[str]:
        """Verbs of the actuator."""
        return ("stop", "start")

    def checks(self, context: Context) -> list[Finding]:
        """The gate, and what stands in one copy only."""
        return [*super().checks(context), *single_copies(context)]

    def cost(self, context: Context) -> list[str]:
        """In sentences."""
        return [f"{len(self.addresses)} nodes, each away for the time of a stop and a start: about a minute each."]

    def steps(self, context: Context) -> list[Step]:
        """Four a node."""
        return [
            step
            for address in self.addresses
            for step in [
                *steps.down_steps(context, address),
                steps.up_step(context, address),
                steps.hints_step(context, address),
            ]
        ]


def known_addresses(context: Context, addresses: Sequence[str]) -> list[str]:
    """These nodes in this order, or all of the cluster in the order of their addresses.

    Raises
    ------
    InvalidInputError
        For one the cluster does not have, or that is named twice.
    """
    known = sorted(one.address for one in all_members(context.nodes))
    strange = [address for address in addresses if address not in known]
    if strange or len(set(addresses)) < len(addresses):
        what = f"no node {strange[0]}" if strange else "no node twice"
        raise InvalidInputError(f"the cluster has {what}; it has {', '.join(known)}", kind="node-not-found")
    return list(addresses) or known


def single_copies(context: Context) -> list[Finding]:
    """A warning for keyspaces whose data cannot be read or written while a node is away; none may be the only one."""
    if len(all_members(context.nodes)) == 1:
        text = "the cluster has one node, and with it goes the record of what is done: stop and start it by hand"
        return [Finding("refused", "nodes", text)]
    found = copies(context.nodes, any_serving(context.nodes))
    weak = [name for name, centres in found.items() if not is_system(name) and max(centres.values(), default=0) < 3]
    if not weak:
        return [Finding("ok", "copies", "three copies of everything: QUORUM holds with one node away")]
    text = f"{', '.join(sorted(weak))} has fewer than three copies: QUORUM fails for part of it while a node is away"
    return [Finding("warning", "copies", text)]
