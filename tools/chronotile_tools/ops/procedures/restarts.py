"""Rolling restart of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from chronotile.errors import InvalidInputError
from chronotile.terminal import count_text
from chronotile_tools.ops.procedures import steps
from chronotile_tools.ops.procedures.engine import Context, Procedure, Step
from chronotile_tools.ops.procedures.findings import Finding
from chronotile_tools.ops.procedures.nodes import all_members, any_serving, is_system
from chronotile_tools.ops.procedures.preflight import copies


@dataclass(frozen=True)
class RollingRestart(Procedure):
    """Restart nodes one at a time. Each node is drained, stopped and started; the next follows when all nodes see it up
    and normal, and its hints have been delivered.
    """

    name: ClassVar[str] = "restart"
    needs: ClassVar[tuple[str, ...]] = ("stop", "start")
    addresses: list[str]

    @classmethod
    def of(cls, context: Context, addresses: Sequence[str]) -> RollingRestart:
        """Create the procedure for these nodes; all by default."""
        return cls(known_addresses(context, addresses))

    def checks(self, context: Context) -> list[Finding]:
        """The preflight checks, and keyspaces with too few replicas."""
        return [*super().checks(context), *unreplicated(context)]

    def cost(self, context: Context) -> list[str]:
        """Costs, one sentence each."""
        return [f"{count_text(len(self.addresses), 'node')}, each down for about a minute."]

    def steps(self, context: Context) -> list[Step]:
        """Four steps per node."""
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
    """The given nodes in this order, or all nodes sorted by address.

    Raises
    ------
    InvalidInputError
        A node is unknown, or given twice.
    """
    known = sorted(one.address for one in all_members(context.nodes))
    strange = [address for address in addresses if address not in known]
    if strange or len(set(addresses)) < len(addresses):
        what = f"no node {strange[0]}" if strange else "no node twice"
        raise InvalidInputError(f"the cluster has {what}; it has {', '.join(known)}", kind="node-not-found")
    return list(addresses) or known


def unreplicated(context: Context) -> list[Finding]:
    """Warn of keyspaces that become unavailable while a node is down; refuse if it is the only node."""
    if len(all_members(context.nodes)) == 1:
        text = "the cluster has a single node, which also stores the lease: restart it by hand"
        return [Finding("refused", "nodes", text)]
    found = copies(context.nodes, any_serving(context.nodes))
    weak = [name for name, centres in found.items() if not is_system(name) and max(centres.values(), default=0) < 3]
    if not weak:
        return [Finding("ok", "copies", "replication factor 3 for all keyspaces: QUORUM works with one node down")]
    text = (
        f"{', '.join(sorted(weak))} has a replication factor below 3: QUORUM fails for part of the data while a "
        "node is down"
    )
    return [Finding("warning", "copies", text)]
