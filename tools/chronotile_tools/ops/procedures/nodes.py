"""What repair and procedures need of the nodes of a cluster, and what the nodes say of themselves."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from chronotile.errors import AccessDeniedError, BusyError, ChronotileError, UnavailableError
from chronotile_tools.ops.procedures import statements

Row = dict[str, str]
"""Values of a row as cqlsh writes them, by column."""
Echo = Callable[[str], object]
"""Called with each line of progress."""
Found = TypeVar("Found")

POLL_S, POLL_S_MAX = 0.5, 10.0
"""Pause after the first look at something awaited, and the longest: looks cost the nodes processor time."""
_SIGN_OF_LIFE = statements.select("key", "system.local")
_STATUS_LINE = re.compile(
    r"^(?P<up>[UD?])(?P<state>[NLJM])\s+(?P<address>\S+)\s.*?(?P<host>[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\s"
)


class Nodes(Protocol):
    """The way to the nodes of a cluster. A node is named by the address that clients use."""

    def addresses(self) -> list[str]:
        """Addresses known so far, those of nodes that are down too."""

    def nodetool(self, address: str, *arguments: str, timeout_s: float = 600) -> str:
        """Run nodetool on a node and return what it prints.

        Raises ChronotileError when it fails, with its own words, or takes longer.
        """

    def query(self, address: str, statement: str, *, consistency: str = "ONE", timeout_s: float = 10) -> list[Row]:
        """Run a statement through this node and no other.

        Raises
        ------
        UnavailableError
            The node does not answer.
        AccessDeniedError
            The node refuses user, password or certificate, or the user may not do that.
        InvalidInputError
            The node refuses the statement.
        """

    def shell(self, address: str, *command: str, timeout_s: float = 60) -> str:
        """Run a command on the machine of a node and return what it prints.

        Raises UnavailableError when there is no way to that machine, or the command fails.
        """


@dataclass(frozen=True)
class Member:
    """A node as another one sees it."""

    address: str
    host_id: str
    dc: str
    rack: str
    release: str
    tokens: tuple[str, ...]
    schema: str
    """Its schema version."""


@dataclass(frozen=True)
class Seen:
    """Whether a node is up, as another one sees it."""

    address: str
    host_id: str
    up: bool
    state: str
    """``N`` normal, ``J`` joining, ``L`` leaving, ``M`` moving."""

    @property
    def well(self) -> bool:
        """Up and normal."""
        return self.up and self.state == "N"


def members(nodes: Nodes, asked: str) -> list[Member]:
    """The nodes that one node knows of, itself first."""
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


def seen_by(nodes: Nodes, asked: str) -> list[Seen]:
    """Which nodes are up, as one node sees it, by the addresses that clients use."""
    views = parse_status(nodes.nodetool(asked, "status", timeout_s=60))
    try:
        known = {one.host_id: one.address for one in members(nodes, asked)}
    except UnavailableError:
        # It takes no clients, and so tells only the addresses that nodes use among themselves.
        known = {}
    return [replace(one, address=known.get(one.host_id, one.address)) for one in views]


def parse_status(text: str) -> list[Seen]:
    """The lines of ``nodetool status``."""
    matches = map(_STATUS_LINE.match, text.splitlines())
    return [Seen(m["address"], m["host"], m["up"] == "U", m["state"]) for m in matches if m is not None]


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
        When one refuses user, password or certificate, and none serves.
    UnavailableError
        When none answers.
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
    raise UnavailableError(f"none of {', '.join(left) or 'the nodes'} answers: check the addresses", kind="no-node")


def all_members(nodes: Nodes) -> list[Member]:
    """The nodes of the cluster, as one that serves knows them."""
    return members(nodes, any_serving(nodes))


def of_each(addresses: Sequence[str], ask: Callable[[str], Found]) -> dict[str, Found]:
    """What `ask` returns for each node, asked at the same time."""
    with ThreadPoolExecutor(max_workers=4) as pool:
        return dict(zip(addresses, pool.map(ask, addresses), strict=True))


def fingerprint(nodes: Nodes, asked: str, *, tables: bool) -> dict[str, str]:
    """What a procedure counts on not to change: members, their tokens and releases, the replication of keyspaces.

    With `tables` also the names of all tables. Only what every release tells in the same way goes in.
    """
    found: dict[str, str] = {}
    for member in members(nodes, asked):
        place = f"{member.address} {member.dc} {member.rack}"
        found[f"node {member.host_id}"] = place
        found[f"release {member.host_id}"] = member.release
        found[f"tokens {member.host_id}"] = digest(member.tokens)
    for row in nodes.query(asked, statements.select("keyspace_name, replication", "system_schema.keyspaces")):
        # Releases bring system keyspaces of their own; who may log in matters in all of them.
        if not is_system(row["keyspace_name"]) or row["keyspace_name"] == "system_auth":
            found[f"keyspace {row['keyspace_name']}"] = row["replication"]
    if tables:
        rows = nodes.query(asked, statements.select("keyspace_name, table_name, id", "system_schema.tables"))
        names = [f"{r['keyspace_name']}.{r['table_name']} {r['id']}" for r in rows]
        # New releases bring tables of their own.
        found["tables"] = digest(sorted(name for name in names if not is_system(name.partition(".")[0])))
    return found


def digest(words: Iterable[str]) -> str:
    """A short hash of words in their order."""
    return hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]


def is_system(keyspace: str) -> bool:
    """Whether a keyspace is Cassandra's own."""
    return keyspace == "system" or keyspace.startswith("system_")


def wait_for(what: str, holds: Callable[[], str], *, timeout_s: float) -> None:
    """Wait until `holds` returns an empty text; what it returns says what is missing.

    Raises
    ------
    BusyError
        Kind ``not-in-time``, with what was missing last. Nodes that do not answer count as missing.
    ChronotileError
        Of kind ``not-confirmed``, when `holds` raises it: it will not come.
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
            raise BusyError(f"{what} did not come within {timeout_s:.0f} s: {missing}", kind="not-in-time")
        time.sleep(min(pause, left))
        pause = min(pause * 1.1, POLL_S_MAX)
