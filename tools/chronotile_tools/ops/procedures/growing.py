"""Grow from one node to three, in an order in which no read is wrong.

The replication factor is raised before the new nodes join, so each new node streams all of its data while joining, and
serves reads only afterwards. If it were raised afterwards, reads would hit empty replicas.

If nodes look up users and passwords at ONE, the auth keyspace is treated in the same way. If they use QUORUM, one node
of three could not authenticate anyone: then its replication is raised after the nodes have joined, by one replica at a
time with a repair after each, so that every majority includes a complete replica.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from chronotile.errors import BusyError, ChronotileError, InvalidInputError
from chronotile_tools.ops.procedures import statements
from chronotile_tools.ops.procedures.engine import Context, Procedure, Step
from chronotile_tools.ops.procedures.findings import Finding
from chronotile_tools.ops.procedures.membership import CHANGES, await_joined
from chronotile_tools.ops.procedures.nodes import all_members, any_serving, is_system
from chronotile_tools.ops.procedures.preflight import copies, preflight
from chronotile_tools.ops.procedures.upgrades import snapshot_step
from chronotile_tools.ops.repair import reading
from chronotile_tools.ops.repair.running import grouped, preview_differences, repair_tables

COPIES = 3
GRACE_S = 864_000
AUTH = "system_auth"
SHARED = (AUTH, "system_distributed", "system_traces", statements.KEYSPACE)
"""Keyspaces whose replication is raised after three nodes have joined, in this order; `AUTH` only with QUORUM lookups.
"""
_DEFAULT_USER = "cassandra"
"""Default user, looked up at ``QUORUM`` regardless of settings."""
_SNITCH = re.compile(r"Snitch: \S*?(\w+)$", re.MULTILINE)
_KEYSPACES = ("keyspace *",)


@dataclass(frozen=True)
class Grow(Procedure):
    """Grow a cluster from one node to three, with replication factor 3. Replication is raised before the nodes join, so
    that no read is wrong; users and passwords come last. In between, the command exits with code 6 and tells you what
    clients must do; then run "chronotile ops resume".
    """

    name: ClassVar[str] = "grow"
    needs: ClassVar[tuple[str, ...]] = ("join",)
    first: str
    """The existing node."""
    dc: str
    keyspaces: list[str]
    """Keyspaces whose replication is raised before the new nodes join."""
    second: str = ""
    third: str = ""
    """Addresses of the new nodes; empty to let the actuator choose."""

    @classmethod
    def of(cls, context: Context, second: str = "", third: str = "") -> Grow:
        """Create the procedure for a cluster of one node.

        Raises
        ------
        InvalidInputError
            The cluster has more nodes.
        """
        known = all_members(context.nodes)
        if len(known) != 1:
            raise InvalidInputError(
                f"the cluster has {len(known)} nodes: this procedure requires exactly one", kind="refused"
            )
        found = copies(context.nodes, known[0].address)
        early = sorted(name for name in found if not is_system(name) and name != statements.KEYSPACE)
        if _logins_ask_one_copy(context, known[0].address):
            early.append(AUTH)
        return cls(known[0].address, known[0].dc, early, second, third)

    def checks(self, context: Context) -> list[Finding]:
        """The preflight checks, the snitch, and requirements for clients."""
        found = preflight(context.nodes)
        match = _SNITCH.search(context.nodes.nodetool(self.first, "describecluster", timeout_s=60))
        snitch = match[1] if match else "unknown"
        if snitch != "GossipingPropertyFileSnitch":
            text = (
                f"{snitch} does not support data centres: set GossipingPropertyFileSnitch with dc={self.dc} "
                "and the present rack, and restart the node; it refuses to start under other names"
            )
            found.append(Finding("refused", "snitch", text))
        if AUTH in self.keyspaces and _DEFAULT_USER in _users(context, self.first):
            text = (
                f"a client, or this command, is logged in as {_DEFAULT_USER}, which nodes look up at "
                "QUORUM: it would be locked out until the second node has joined; use another role"
            )
            found.append(Finding("refused", "users", text))
        text = "clients must read and write at ONE until told otherwise; this cannot be checked"
        return [*found, Finding("unknown", "clients", text)]

    def cost(self, context: Context) -> list[str]:
        """Costs, one sentence each."""
        locked = "Roles and permissions cannot be changed until the second node has joined."
        return [
            *([locked] if AUTH in self.keyspaces else []),
            "Each new node streams all data over the network: 1 Gbit/s or more is recommended.",
            "From the change of replication until the second node has joined, requests at QUORUM fail: a "
            "majority of three replicas is two. Clients at ONE continue, including readers and writers of "
            "archives, but slices cannot be created: prepare them in advance (chronotile prepare).",
        ]

    def steps(self, context: Context) -> list[Step]:
        """Steps, in an order without wrong reads."""
        return [
            snapshot_step(context, self.first, "before-growing"),
            *(self._alter_step(context, keyspace, COPIES) for keyspace in self.keyspaces),
            self._join_step(context, self.second, 2),
            self._join_step(context, self.third, 3),
            *(
                step
                for keyspace in SHARED
                if keyspace not in self.keyspaces
                for step in self._shared_steps(context, keyspace)
            ),
            _clients_step(context),
            Step("proof", "compare all replicas", lambda: None, lambda: _confirmed(context)),
        ]

    def _alter_step(self, context: Context, keyspace: str, count: int) -> Step:
        wanted = {self.dc: count}

        def do() -> None:
            if copies(context.nodes, self.first)[keyspace] != wanted:
                context.nodes.query(self.first, statements.alter_keyspace(keyspace, wanted), timeout_s=60)

        def prove() -> str:
            found = copies(context.nodes, self.first)[keyspace]
            if found != wanted:
                raise ChronotileError(f"{keyspace} has {dict(found)}", kind="not-confirmed")
            return f"{keyspace} has {count} copies in {self.dc}"

        return Step(
            f"{count} copies {keyspace}",
            f"set replication factor {count} for {keyspace}",
            do,
            prove,
            changes=_KEYSPACES,
        )

    def _join_step(self, context: Context, address: str, count: int) -> Step:
        def others() -> list[str]:
            return [self.first] if count == 2 else [self.first, context.notes["second"]]

        def join() -> None:
            if len(all_members(context.nodes)) < count:
                context.actuator.join(address)

        def prove() -> str:
            joined = await_joined(context, others(), count, address)
            if count == 2:
                (second,) = (one.address for one in all_members(context.nodes) if one.address != self.first)
                context.note(second=second)
            return joined

        where = f" at {address}" if address else ""
        return Step(
            f"join {count}",
            f"start node {count}{where} and wait until it has streamed its data",
            join,
            prove,
            changes=CHANGES,
        )

    def _shared_steps(self, context: Context, keyspace: str) -> list[Step]:
        # Raise auth and lease keyspaces by one replica at a time: any two of three replicas must always be complete.
        counts = (2, COPIES) if keyspace in (AUTH, statements.KEYSPACE) else (COPIES,)
        return [
            step
            for count in counts
            for step in [
                self._alter_step(context, keyspace, count),
                self._repair_step(context, keyspace, count),
            ]
        ]

    def _repair_step(self, context: Context, keyspace: str, count: int) -> Step:
        def repair() -> None:
            where = f"keyspace_name = {statements.quoted(keyspace)}"
            rows = context.nodes.query(self.first, statements.select("table_name", "system_schema.tables", where))
            repair_tables(context, [f"{keyspace}.{row['table_name']}" for row in rows], f"{count} copies")

        return Step(
            f"repair {keyspace} {count}",
            f"repair {keyspace}",
            repair,
            lambda: f"{count} replicas of {keyspace} were repaired",
        )


def _logins_ask_one_copy(context: Context, asked: str) -> bool:
    """Whether a node looks up users and passwords at ONE. Releases before 4.1 do, without a setting."""
    where = "name = 'auth_read_consistency_level'"
    rows = context.nodes.query(asked, statements.select("value", "system_views.settings", where))
    return not rows or rows[0]["value"] in ("ONE", "LOCAL_ONE")


def _users(context: Context, asked: str) -> set[str]:
    """Users logged in to a node."""
    rows = context.nodes.query(asked, statements.select("username", "system_views.clients"))
    return {row["username"] for row in rows}


def _clients_step(context: Context) -> Step:
    def wait() -> None:
        if "clients" in context.notes:
            return
        context.note(clients="told")
        raise BusyError(
            "three nodes hold all data: switch clients to LOCAL_QUORUM, list at least two seeds in every "
            "cassandra.yaml, then run chronotile ops resume",
            kind="operator-needed",
        )

    return Step("clients", "clients to LOCAL_QUORUM, two seeds; then resume", wait, lambda: "the operator resumed")


def _confirmed(context: Context) -> str:
    differing = [f"{group[0]}: {difference}" for group in grouped(context, reading.repairable(context.nodes, [], []))
                 if (difference := preview_differences(context, group))]  # fmt: skip
    asked = any_serving(context.nodes)
    rows = context.nodes.query(
        asked, statements.select("keyspace_name, table_name, gc_grace_seconds", "system_schema.tables")
    )
    short = [f"{row['keyspace_name']}.{row['table_name']}" for row in rows
             if int(row["gc_grace_seconds"]) < GRACE_S and not is_system(row["keyspace_name"])]  # fmt: skip
    text = "; ".join(differing) if differing else "a preview of a repair has nothing to stream"
    return text + (
        f"; gc_grace is below ten days in {', '.join(sorted(short))}: repair them within that time" if short else ""
    )
