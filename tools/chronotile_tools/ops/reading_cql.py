"""Read a node's state over CQL: its view of the ring, and its virtual tables (from 4.0 on)."""

from __future__ import annotations

import ast
import re
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from chronotile_tools.client import wire
from chronotile_tools.errors import CqlError
from chronotile_tools.ops.access import Access, Host
from chronotile_tools.ops.state import (
    Compaction,
    HintsFor,
    Latency,
    Pool,
    RepairRun,
    Stream,
    Table,
    TableRepair,
)
from chronotile_tools.ring import TokenRange, covered_since

__all__ = ["CqlView", "Peer", "read_node"]

Record = Mapping[str, str]

_UUID_EPOCH = datetime(1582, 10, 15, tzinfo=UTC)
_FIRST_RELEASE = datetime(2008, 7, 1, tzinfo=UTC)
"""Earliest plausible creation time of a table."""
_STATES = {"NORMAL": "N", "BOOT": "J", "BOOT_REPLACE": "J", "LEAVING": "L", "MOVING": "M"}
_GONE = ("LEFT", "removed")
"""Gossip states of former nodes, which remain for days."""
_PROBES = 5
_LOCAL_READ_LEAST_MS = 0.02
_OWN_KEYSPACES = ("system", "dse_")
_QUOTED = re.compile("'((?:[^']|'')*)'")
_DURATION_S = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass(frozen=True)
class Peer:
    """A node as described by another node's tables."""

    address: str
    native_address: str | None
    host_id: str | None
    dc: str | None
    rack: str | None
    release: str | None
    schema: str | None
    tokens: int | None


@dataclass
class CqlView:
    """Data from one node."""

    address: str
    cluster: str | None
    own: Peer
    peers: list[Peer]
    fields: dict[str, Any]
    """Fields of :class:`~chronotile_tools.ops.state.Node`."""
    seen: dict[str, str] = field(default_factory=dict)
    """Gossip state of each node, without up or down."""
    not_seen: list[tuple[str, str]] = field(default_factory=list)
    repairs: list[TableRepair] | None = None
    repairs_reason: str = ""
    max_hint_window_s: float | None = None
    hints_folder: str | None = None


def read_node(access: Access, host: Host) -> CqlView:
    """Read all state tables of one node.

    Raises
    ------
    UnavailableError, AccessDeniedError
        The node does not answer, or disconnects.
    """
    with access.connect(host) as connection:
        try:
            return _read(connection)
        except (OSError, ValueError, CqlError) as error:
            raise access.explained(error, host.native_address) from None


def _read(connection: wire.Connection) -> CqlView:
    probes = sorted(_probe(connection) for _ in range(_PROBES))
    local = connection.records("system.local")[0]
    own = _peer(local, "broadcast_address")
    view = CqlView(own.address, _text(local, "cluster_name"), own, _peers(connection), {})
    view.fields["probe_ms"] = probes[_PROBES // 2][0] * 1e3
    # Use the shortest round trip, which has the least uncertainty; the node's clock has millisecond resolution.
    view.fields["clock_offset_s"] = probes[0][1]
    view.fields["clock_error_s"] = probes[0][0] / 2 + 1e-3
    existing = _virtual_tables(connection, view)
    for table, read in _READERS.items():
        if table in existing:
            _tried(view, table, lambda: read(view, connection.records(f"system_views.{table}")))  # noqa: B023
    if existing:
        _tried(view, "tables", lambda: _add_tables(view, connection, existing))
    _tried(view, "repair history", lambda: _add_repairs(view, connection))
    return view


def _probe(connection: wire.Connection) -> tuple[float, float]:
    """Duration of a read of one row, and clock offset of the node, both in seconds."""
    sent, began = time.time(), time.perf_counter()
    (clock,) = connection.select("totimestamp(now())", "system.local")[0]
    round_trip_s = time.perf_counter() - began
    server_time = moment(clock)
    if server_time is None:
        raise ValueError(f"unexpected node time {clock!r}")
    return round_trip_s, server_time.timestamp() - (sent + round_trip_s / 2)


def _tried(view: CqlView, what: str, read: Callable[[], None]) -> None:
    """Read one table; if access is denied or its columns differ, record that and continue."""
    try:
        read()
    except (CqlError, KeyError, ValueError, IndexError) as error:
        reason = f"no column {error}" if isinstance(error, KeyError) else str(error)
        view.not_seen.append((what, reason))
        if what == "repair history":
            view.repairs_reason = reason


def _virtual_tables(connection: wire.Connection, view: CqlView) -> set[str]:
    try:
        rows = connection.select("keyspace_name, table_name", "system_virtual_schema.tables")
    except CqlError as error:
        view.not_seen.append(("virtual tables", f"{error} (they exist from release 4.0 on)"))
        return set()
    return {table for keyspace, table in rows if keyspace == "system_views"}


def _peers(connection: wire.Connection) -> list[Peer]:
    try:
        records = connection.records("system.peers_v2")
    except CqlError:
        records = connection.records("system.peers")
    return [_peer(record, "peer") for record in records]


def _peer(record: Record, address: str) -> Peer:
    tokens = _literal(record.get("tokens", "null"))
    return Peer(
        record[address],
        _text(record, "native_address") or _text(record, "rpc_address"),
        _text(record, "host_id"),
        _text(record, "data_center"),
        _text(record, "rack"),
        _text(record, "release_version"),
        _text(record, "schema_version"),
        len(tokens) if tokens is not None else None,
    )


def _pools(view: CqlView, records: list[dict[str, str]]) -> None:
    view.fields["pools"] = {
        r["name"]: Pool(
            int(r["active_tasks"]), int(r["pending_tasks"]), int(r["blocked_tasks"]), int(r["completed_tasks"])
        )
        for r in records
    }


def _clients(view: CqlView, records: list[dict[str, str]]) -> None:
    # Do not count this connection.
    view.fields["clients"] = max(0, len(records) - 1)


def _hints(view: CqlView, records: list[dict[str, str]]) -> None:
    view.fields["hints"] = [HintsFor(r["host_id"], r["address"], int(r["files"]), moment(r["oldest"])) for r in records]


def _compactions(view: CqlView, records: list[dict[str, str]]) -> None:
    view.fields["compactions"] = [
        Compaction(r["keyspace_name"], r["table_name"], r["kind"], int(r["progress"]), int(r["total"]), r["unit"])
        for r in records
    ]


def _streams(view: CqlView, records: list[dict[str, str]]) -> None:
    view.fields["streams"] = [
        Stream(
            r["operation"], r["status"], r["peers"], number(r["progress_percentage"]),
            int(number(r["bytes_to_send"])), int(number(r["bytes_to_receive"])),
        )
        for r in records
    ]  # fmt: skip


def _repair_runs(view: CqlView, records: list[dict[str, str]]) -> None:
    view.fields["repairs"] = [
        RepairRun(
            r["keyspace_name"], sorted(filter(None, _literal(r["table_names"]) or [])), r["status"],
            r["completed"] == "True",
            "" if r["failure_cause"] == "null" else r["failure_cause"].splitlines()[0], moment(r["last_updated_at"]),
        )
        for r in records
    ]  # fmt: skip


def _outbound(view: CqlView, records: list[dict[str, str]]) -> None:
    view.fields["internode_expired"] = sum(int(r["expired_count"]) + int(r["overload_count"]) for r in records)


def _gossip(view: CqlView, records: list[dict[str, str]]) -> None:
    for record in records:
        status = _text(record, "status_with_port") or _text(record, "status") or ""
        if status.split(",")[0] in _GONE:
            continue
        view.seen[record["address"]] = "?" + _STATES.get(status.split(",")[0], "?")
        load = _text(record, "load")
        if record["address"] == view.address and load is not None:
            view.fields["load_bytes"] = float(load)


def _settings(view: CqlView, records: list[dict[str, str]]) -> None:
    settings = {r["name"]: r["value"] for r in records}
    view.hints_folder = _text(settings, "hints_directory")
    if "max_hint_window" in settings:
        view.max_hint_window_s = duration_s(settings["max_hint_window"])
    elif "max_hint_window_in_ms" in settings:
        view.max_hint_window_s = float(settings["max_hint_window_in_ms"]) / 1e3


_READERS: dict[str, Callable[[CqlView, list[dict[str, str]]], None]] = {
    "thread_pools": _pools,
    "clients": _clients,
    "pending_hints": _hints,
    "sstable_tasks": _compactions,
    "streaming": _streams,
    "repairs": _repair_runs,
    "internode_outbound": _outbound,
    "gossip_info": _gossip,
    "settings": _settings,
}


def _add_tables(view: CqlView, connection: wire.Connection, existing: set[str]) -> None:
    def by_table(name: str) -> dict[tuple[str, str], dict[str, str]]:
        records = connection.records(f"system_views.{name}") if name in existing else []
        return {(r["keyspace_name"], r["table_name"]): r for r in records}

    disk, partition, tombstones = (by_table(n) for n in ("disk_usage", "max_partition_size", "tombstones_per_read"))
    reads, writes = by_table("local_read_latency"), by_table("local_write_latency")
    unit_ms = latency_unit_ms(reads)
    view.fields["tables"] = [
        Table(
            *key,
            disk_mib=int(number(record["mebibytes"])),
            partition_max_mib=int(number(partition.get(key, {}).get("mebibytes", "0"))),
            tombstones_p99=number(tombstones.get(key, {}).get("p99th", "0")),
            tombstones_max=number(tombstones.get(key, {}).get("max", "0")),
            local_read=_latency(reads[key], unit_ms) if key in reads else None,
            local_write=_latency(writes[key], unit_ms) if key in writes else None,
        )
        for key, record in disk.items()
    ]
    for kind in ("read", "write", "scan"):
        used = [
            _latency(record, unit_ms)
            for key, record in by_table(f"coordinator_{kind}_latency").items()
            if not is_own_keyspace(key[0])
        ]
        slowest = max((one for one in used if one is not None), key=lambda one: one.p99_ms, default=None)
        if slowest is not None:
            view.fields.setdefault("coordinator_latency", {})[kind] = slowest


def latency_unit_ms(local_reads: Mapping[tuple[str, str], Record]) -> float | None:
    """Unit of the latency tables in milliseconds; None if unknown.

    Releases 4.1 and 5.0 store microseconds but print them as if they were nanoseconds, so 2.8 ms appears as 0.003.
    Local reads reveal the unit, for example the reads of `system.local` at the start of each snapshot: on any node,
    half of them take longer than `_LOCAL_READ_LEAST_MS`, but never a thousand times as long.
    """
    medians = [
        number(one["p50th_ms"])
        for table, one in local_reads.items()
        if int(one["count"]) >= _PROBES and (table == ("system", "local") or number(one["max_ms"]) > 0)
    ]
    if not medians:
        return None
    return 1000.0 if min(medians) < _LOCAL_READ_LEAST_MS else 1.0


def _latency(record: Record, unit_ms: float | None) -> Latency | None:
    """Latencies; None without recent requests, where the table has zeros, or if the unit is unknown."""
    p99 = number(record["p99th_ms"])
    if unit_ms is None or p99 <= 0:
        return None
    return Latency(
        int(record["count"]), number(record["p50th_ms"]) * unit_ms, p99 * unit_ms, number(record["max_ms"]) * unit_ms
    )


def _add_repairs(view: CqlView, connection: wire.Connection) -> None:
    """For each replicated application table, the time since which all ranges were repaired."""
    replicated = {
        r["keyspace_name"]
        for r in connection.records("system_schema.keyspaces", columns="keyspace_name, replication")
        if not is_own_keyspace(r["keyspace_name"]) and replicas(r["replication"]) > 1
    }
    columns = "keyspace_name, table_name, gc_grace_seconds, id, writetime(id) AS written_us"
    tables = connection.records("system_schema.tables", columns=columns)
    tables = [r for r in tables if r["keyspace_name"] in replicated]
    history: list[dict[str, str]] = []
    if tables:
        history = connection.records(
            "system_distributed.parent_repair_history",
            columns="keyspace_name, columnfamily_names, started_at, finished_at, successful_ranges",
        )
    repaired: dict[tuple[str, str], list[tuple[TokenRange, float]]] = {}
    for r in history:
        started, ranges = moment(r["started_at"]), _literal(r["successful_ranges"])
        if started is None or r["finished_at"] == "null" or not ranges:
            continue
        # A repair compares the rows that exist when it starts, so count from the start and not from the end.
        pieces = [(TokenRange.parse(text), started.timestamp()) for text in ranges]
        for table in _literal(r["columnfamily_names"]) or ():
            repaired.setdefault((r["keyspace_name"], table), []).extend(pieces)
    view.repairs = [
        TableRepair(
            r["keyspace_name"], r["table_name"], int(r["gc_grace_seconds"]), created_of(r["id"], r["written_us"]),
            _moment_of(covered_since(repaired.get((r["keyspace_name"], r["table_name"]), []))),
        )
        for r in tables
    ]  # fmt: skip


def replicas(replication: str) -> int:
    """Number of replicas over all data centres, from a keyspace's ``replication`` map; 0 for a local keyspace."""
    options = {str(key): str(value) for key, value in (_literal(replication) or {}).items()}
    if options.get("class", "").endswith("LocalStrategy"):
        return 0
    # A factor may be "3/1" with transient replicas.
    counts = [value.split("/")[0] for key, value in options.items() if key != "class"]
    return sum(int(count) for count in counts if count.isdigit())


def created_of(table_id: str, written_us: str) -> datetime | None:
    """Creation time of a table, from its row in the schema; None if unknown.

    Each change of the table rewrites the row. An id chosen by Cassandra contains the creation time; a given id, as
    archives use, only appears to.
    """
    written = datetime.fromtimestamp(int(written_us) / 1e6, UTC) if written_us.isdigit() else None
    given = uuid.UUID(table_id)
    if given.version != 1:
        return written
    made = _UUID_EPOCH + timedelta(microseconds=given.time // 10)
    if written is None:
        return made
    return made if _FIRST_RELEASE < made < written else written


def is_own_keyspace(keyspace: str) -> bool:
    """Whether a keyspace is the cluster's own."""
    return keyspace.startswith(_OWN_KEYSPACES)


def moment(text: str) -> datetime | None:
    """Parse a timestamp in the CQL client's format; None for null."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def number(text: str) -> float:
    """Parse a number; 0 for null and invalid text."""
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if value == value else 0.0


def duration_s(text: str) -> float | None:
    """Seconds of a setting such as ``3h`` or ``10800000ms``; None for anything else."""
    digits = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    unit = _DURATION_S.get(text[len(digits) :])
    return float(digits) * unit if unit is not None and digits.isdigit() else None


def _moment_of(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def _text(record: Record, name: str) -> str | None:
    value = record.get(name, "null")
    return None if value in ("null", "") else value


def _literal(text: str) -> Any:
    """Parse a collection in the CQL client's format, which is Python's except for quotes within quotes."""
    if text == "null":
        return None
    try:
        return ast.literal_eval(_QUOTED.sub(lambda quoted: repr(quoted[1].replace("''", "'")), text))
    except SyntaxError:
        raise ValueError(f"{text!r} is not a collection") from None
