"""Access to nodes for repairs and procedures, and the nodes' view of the cluster."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from chronotile.errors import AccessDeniedError, BusyError, ChronotileError, UnavailableError
from chronotile_tools.lab.tools import NodeStatus, parse_status
from chronotile_tools.ops.procedures import statements

Row = dict[str, str]
"""Values of a row by column, as cqlsh prints them."""
Echo = Callable[[str], object]
"""Called with each line of progress."""
Found = TypeVar("Found")

POLL_S, POLL_S_MAX = 0.5, 10.0
"""First and longest pause between checks of an awaited condition, in seconds: checks cost the nodes CPU time."""
_SIGN_OF_LIFE = statements.select("key", "system.local")


class Nodes(Protocol):
    """Access to the nodes of a cluster. A node is identified by its address for clients."""

    def addresses(self) -> list[str]:
        """Known addresses, including those of nodes that are down."""

    def nodetool(self, address: str, *arguments: str, timeout_s: float = 600) -> str:
        """Run nodetool on a node and return its output. Raises ChronotileError with the output if it fails or times
        out.
        """

    def query(self, address: str, statement: str, *, consistency: str = "ONE", timeout_s: float = 10) -> list[Row]:
        """Run a statement with this node as coordinator.

        Raises
        ------
        UnavailableError
            The node does not answer.
        AccessDeniedError
            The node rejects user, password or certificate, or the user lacks permission.
        InvalidInputError
            The node rejects the statement.
        """

    def shell(self, address: str, *command: str, timeout_s: float = 60) -> str:
        """Run a command on a node's machine and return its output. Raises UnavailableError if the machine is not
        accessible or the command fails.
        """


@dataclass(frozen=True)
class Member:
    """A node as seen by another one."""

    address: str
    host_id: str
    dc: str
    rack: str
    release: str
    tokens: tuple[str, ...]
    schema: str
    """Its schema version."""


def members(nodes: Nodes, asked: str) -> list[Member]:
    """Nodes known to one node, itself first."""
    local = nodes.query(asked, statements.select(statements.MEMBER, "system.local"))
    peers = nodes.query(asked, statements.select(f"{statements.MEMBER}, native_address", "system.peers_v2"))
    found = []
    for row in [*local, *peers]:
        if row["host_id"] == "null" or row["tokens"] == "null":
            continue
        tokens = tuple(sorted(re.findall(r"-?\d+", row["tokens"])))
        address = row.get("native_address", asked)
        found.append(
            Member(
                address,
                row["host_id"],
                row["data_center"],
                row["rack"],
                row["release_version"],
                tokens,
                row["schema_version"],
            )
        )
    return found


def node_statuses(nodes: Nodes, asked: str) -> list[NodeStatus]:
    """Status of all nodes as seen by one node, by address for clients."""
    views = parse_status(nodes.nodetool(asked, "status", timeout_s=60))
    try:
        known = {one.host_id: one.address for one in members(nodes, asked)}
    except UnavailableError:
        # The node accepts no clients, so it only reports internode addresses.
        known = {}
    return [replace(one, address=known.get(one.host_id, one.address)) for one in views]


def answers(nodes: Nodes, address: str) -> bool:
    """Whether a node serves clients."""
    try:
        nodes.query(address, _SIGN_OF_LIFE, timeout_s=5)
    except ChronotileError:
        return False
    return True


def any_serving(nodes: Nodes, *, without: Iterable[str] = ()) -> str:
    """A node that serves clients.

    Raises
    ------
    AccessDeniedError
        A node rejects user, password or certificate, and none serves clients.
    UnavailableError
        No node answers.
    """
    left = [address for address in nodes.addresses() if address not in set(without)]
    denied: AccessDeniedError | None = None
    for address in left:
        try:
            nodes.query(address, _SIGN_OF_LIFE, timeout_s=5)
        except AccessDeniedError as error:
            denied = error
        except ChronotileError:
            continue
        else:
            return address
    if denied is not None:
        raise denied
    raise UnavailableError(f"no answer from {', '.join(left) or 'any node'}: check the addresses", kind="no-node")


def all_members(nodes: Nodes) -> list[Member]:
    """The nodes of the cluster, from a node that serves clients."""
    return members(nodes, any_serving(nodes))


def for_each_node(addresses: Sequence[str], ask: Callable[[str], Found]) -> dict[str, Found]:
    """Call `ask` for all nodes concurrently; return results by node."""
    with ThreadPoolExecutor(max_workers=4) as pool:
        return dict(zip(addresses, pool.map(ask, addresses), strict=True))


def fingerprint(nodes: Nodes, asked: str, *, tables: bool) -> dict[str, str]:
    """Fingerprint of what must not change during a procedure: members, tokens, releases, and replication of keyspaces.

    With `tables`, also the names of all tables. Contains only facts that every release reports in the same way.
    """
    found: dict[str, str] = {}
    for member in members(nodes, asked):
        place = f"{member.address} {member.dc} {member.rack}"
        found[f"node {member.host_id}"] = place
        found[f"release {member.host_id}"] = member.release
        found[f"tokens {member.host_id}"] = digest(member.tokens)
    for row in nodes.query(asked, statements.select("keyspace_name, replication", "system_schema.keyspaces")):
        # Skip system keyspaces, which differ between releases, except for authentication.
        if not is_system(row["keyspace_name"]) or row["keyspace_name"] == "system_auth":
            found[f"keyspace {row['keyspace_name']}"] = row["replication"]
    if tables:
        rows = nodes.query(asked, statements.select("keyspace_name, table_name, id", "system_schema.tables"))
        names = [f"{r['keyspace_name']}.{r['table_name']} {r['id']}" for r in rows]
        # Skip tables that new releases add.
        found["tables"] = digest(sorted(name for name in names if not is_system(name.partition(".")[0])))
    return found


def digest(words: Iterable[str]) -> str:
    """Short hash of an ordered list of words."""
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]


def is_system(keyspace: str) -> bool:
    """Whether a keyspace is Cassandra's own."""
    return keyspace == "system" or keyspace.startswith("system_")


def wait_for(what: str, holds: Callable[[], str], *, timeout_s: float) -> None:
    """Wait until `holds` returns an empty text; otherwise its result says what is missing.

    Raises
    ------
    BusyError
        Kind ``timed-out``, with what was missing last. Nodes that do not answer count as missing.
    ChronotileError
        Kind ``not-confirmed``, raised by `holds`: the condition cannot become true.
    """
    began, pause = time.monotonic(), POLL_S
    while True:
        try:
            missing = holds()
        except ChronotileError as error:
            if error.kind == "not-confirmed":
                raise
            missing = str(error)
        if not missing:
            return
        left = began + timeout_s - time.monotonic()
        if left < 0:
            raise BusyError(f"timed out after {timeout_s:.0f} s waiting for {what}: {missing}", kind="timed-out")
        time.sleep(min(pause, left))
        pause = min(pause * 1.1, POLL_S_MAX)
