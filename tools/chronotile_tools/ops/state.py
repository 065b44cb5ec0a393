"""A snapshot of a cluster as plain records. Unknown values are None and listed with the reason, never guessed."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

__all__ = [
    "ClusterSettings",
    "Compaction",
    "Disk",
    "Heap",
    "HintsFor",
    "Latency",
    "Node",
    "Pool",
    "RepairRun",
    "Requests",
    "Snapshot",
    "Stream",
    "Table",
    "TableRepair",
    "Unobserved",
]


CLOCKS_S = timedelta(hours=1)
"""Largest plausible difference between the clocks of a cluster and of this machine, in seconds."""


@dataclass(frozen=True)
class Unobserved:
    """Something that could not be observed."""

    node: str
    what: str
    """``"cql"``, ``"jmx"``, ``"disk"``, or a virtual table."""
    reason: str

    def __str__(self) -> str:
        return f"{self.node}: {self.what}: {self.reason}"


@dataclass(frozen=True)
class Latency:
    """Requests since the node started, and their latencies in the last minutes, in milliseconds. `p95_ms` is None from
    virtual tables, which lack it."""

    count: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    p95_ms: float | None = None


@dataclass(frozen=True)
class Requests:
    """Requests of one kind that a node coordinated since it started."""

    latency: Latency
    timeouts: int
    unavailables: int
    failures: int


@dataclass(frozen=True)
class Pool:
    """A thread pool: tasks now, and finished ones since the node started."""

    active: int
    pending: int
    blocked: int
    completed: int


@dataclass(frozen=True)
class Heap:
    """Java heap after the last collection, and collections since the node started. `pause_last_ms` is the last
    collection's.
    """

    used_bytes: int
    max_bytes: int
    collections: int
    collected_ms: int
    pause_last_ms: int


@dataclass(frozen=True)
class Disk:
    """The file system under a data directory."""

    path: str
    total_bytes: int
    free_bytes: int
    """Space available to Cassandra."""

    @property
    def used_share(self) -> float:
        """Used share of the space, 0 to 1."""
        return 1 - self.free_bytes / self.total_bytes if self.total_bytes else 0.0


@dataclass(frozen=True)
class HintsFor:
    """Hints that a node keeps for another. Over CQL, files that are still being written may be missing; with access to
    the machine, all are included.
    """

    host_id: str
    address: str
    files: int
    oldest: datetime | None


@dataclass(frozen=True)
class Compaction:
    """A task that rewrites SSTables: a compaction, cleanup, validation, upgrade, ..."""

    keyspace: str
    table: str
    kind: str
    progress: int
    total: int
    unit: str


@dataclass(frozen=True)
class Stream:
    """A stream session of a node."""

    operation: str
    status: str
    peers: str
    progress_percent: float
    bytes_to_send: int
    bytes_to_receive: int


@dataclass(frozen=True)
class RepairRun:
    """A repair that a node coordinated since it started."""

    keyspace: str
    tables: list[str]
    """Empty if it failed before they were known."""
    status: str
    completed: bool
    failure: str
    updated: datetime | None


@dataclass(frozen=True)
class Table:
    """A table on one node. MiB are whole numbers, as in the virtual tables."""

    keyspace: str
    name: str
    disk_mib: int
    partition_max_mib: int
    tombstones_p99: float
    """Tombstones per read, 99th percentile of recent reads."""
    tombstones_max: float
    local_read: Latency | None
    local_write: Latency | None

    @property
    def full_name(self) -> str:
        """``keyspace.table``."""
        return f"{self.keyspace}.{self.name}"


@dataclass(frozen=True)
class TableRepair:
    """Time of the last full repair of a table."""

    keyspace: str
    table: str
    gc_grace_s: int
    created: datetime | None
    """None if unknown."""
    repaired: datetime | None
    """Time since which every range was repaired; None if a range was never repaired."""

    def age_s(self, now: datetime) -> float | None:
        """Seconds since the last full repair, or since the table was created; None if unknown or in the future."""
        since = self.repaired or self.created
        if since is None or since > now + CLOCKS_S:
            return None
        return max(0.0, (now - since).total_seconds())


@dataclass(frozen=True)
class Node:
    """Observed state of a node."""

    address: str
    native_address: str
    host_id: str | None = None
    dc: str | None = None
    rack: str | None = None
    release: str | None = None
    schema: str | None = None
    tokens: int | None = None
    cql: bool = False
    """Whether it accepted a client and answered."""
    jmx: bool = False
    """Whether its management interface answered."""
    seen_by: dict[str, str] = field(default_factory=dict)
    """Its status as seen by each node, including itself: ``U`` up, ``D`` down or ``?``, then ``N`` normal, ``J``
    joining, ``L`` leaving, ``M`` moving or ``?``."""
    mode: str | None = None
    """Operation mode reported by itself: ``NORMAL``, ``JOINING``, ``DRAINED``, ..."""
    native_transport: bool | None = None
    started: datetime | None = None
    load_bytes: float | None = None
    heap: Heap | None = None
    cpu_share: float | None = None
    """Processor time of the process, 0 to 1 of all cores."""
    system_load: float | None = None
    """Load average of the machine over a minute, divided by its cores."""
    clock_offset_s: float | None = None
    """Its clock minus this machine's."""
    clock_error_s: float | None = None
    """Uncertainty of the offset."""
    probe_ms: float | None = None
    """Median time of five reads of a node-local row by this machine."""
    clients: int | None = None
    pools: dict[str, Pool] = field(default_factory=dict)
    requests: dict[str, Requests] = field(default_factory=dict)
    """By kind: ``Read``, ``Write``, ``RangeSlice``, ``CASRead``, ``CASWrite``."""
    coordinator_latency: dict[str, Latency] = field(default_factory=dict)
    """Latency of the slowest table by ``read``, ``write`` and ``scan``, from virtual tables."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Messages dropped since it started, by kind."""
    internode_expired: int | None = None
    """Messages to other nodes that expired in the queue, since it started."""
    hints: list[HintsFor] | None = None
    hints_written: int | None = None
    """Hints it wrote since it started."""
    compactions_pending: int | None = None
    compactions: list[Compaction] | None = None
    streams: list[Stream] | None = None
    repairs: list[RepairRun] | None = None
    commitlog_pending: int | None = None
    exceptions: int | None = None
    tables: list[Table] | None = None
    disks: list[Disk] = field(default_factory=list)

    @property
    def status(self) -> str:
        """Two letters as in `seen_by`. Down if any other node sees it down; up if it answers us or others see it up.
        The second letter is the most unusual state that any node reports."""
        others = [seen for viewer, seen in self.seen_by.items() if viewer != self.address]
        if any(seen[0] == "D" for seen in others):
            up = "D"
        elif self.cql or self.jmx or any(seen[0] == "U" for seen in others):
            up = "U"
        else:
            up = "?"
        own = {"NORMAL": "N", "JOINING": "J", "LEAVING": "L", "MOVING": "M"}.get(self.mode or "", "?")
        return up + max([own, *(seen[1] for seen in self.seen_by.values())], key="?NMLJ".find)

    @property
    def agreed(self) -> bool:
        """Whether all viewers, including itself, agree about it."""
        views = self.seen_by.values()
        return all(len({seen[place] for seen in views} - {"?"}) <= 1 for place in (0, 1))

    @property
    def hints_files(self) -> int:
        """Hint files that it holds for other nodes."""
        return sum(hints.files for hints in self.hints or [])


@dataclass(frozen=True)
class ClusterSettings:
    """Settings that determine limits; None if unknown."""

    max_hint_window_s: float | None = None


@dataclass(frozen=True)
class Snapshot:
    """State of a cluster at one time."""

    taken: datetime
    """Time at which it was begun, in UTC, by this machine's clock."""
    cluster: str | None
    nodes: list[Node]
    repairs: list[TableRepair] | None
    """Repair state of all replicated application tables; None if unknown."""
    settings: ClusterSettings
    not_seen: list[Unobserved]

    def node(self, address: str) -> Node:
        """Find a node by address; raises KeyError if no node has it."""
        for node in self.nodes:
            if address in (node.address, node.native_address):
                return node
        raise KeyError(address)

    @property
    def releases(self) -> set[str]:
        """Release versions of the nodes."""
        return {node.release for node in self.nodes if node.release}

    @property
    def schemas(self) -> set[str]:
        """Schema versions of the nodes that answered."""
        return {node.schema for node in self.nodes if node.schema and (node.cql or node.jmx)}

    @property
    def settled(self) -> bool:
        """Whether every node answers and all see it up and normal, with one release and one schema."""
        return (
            all(node.status == "UN" and node.agreed and node.cql for node in self.nodes)
            and len(self.releases) == 1
            and len(self.schemas) == 1
        )

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain types, with times in ISO 8601."""
        plain: dict[str, Any] = _plain(dataclasses.asdict(self))
        for node, found in zip(self.nodes, plain["nodes"], strict=True):
            found["status"] = node.status
        return plain


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return value
