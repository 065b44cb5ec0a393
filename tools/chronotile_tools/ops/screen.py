"""Format a snapshot as a text screen."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from chronotile.terminal import bytes_text, count_text, table_text
from chronotile_tools.ops.reading_cql import is_own_keyspace
from chronotile_tools.ops.state import Node, Snapshot, Table

__all__ = ["screen", "watched"]

_HEADER = ["node", "rack", "status", "release", "load", "disk", "heap", "cpu", "hints", "pending", "read p99"]
_HEADER += ["write p99", "probe", "clock"]
_RIGHT = frozenset(_HEADER[4:])
_HIDDEN_FIRST = ["release", "rack", "clock", "cpu", "heap", "probe", "load", "pending", "hints"]
"""Columns hidden on narrow screens, in this order."""
_UNKNOWN = "?"


def screen(snapshot: Snapshot, *, width: int | None = None) -> str:
    """Format the cluster's state as lines of text. ``?`` marks unknown values. The node table shows the columns
    that fit `width`.
    """
    lines = [_title(snapshot), "", *_node_table(snapshot.nodes, width)]
    for part in _parts(snapshot):
        lines += ["", *part]
    return "\n".join(lines)


def watched(snapshot: Snapshot, findings: Sequence[str], *, width: int, height: int) -> str:
    """Format the state for a screen of this size: findings first, then as much of the rest as fits."""
    table = _node_table(snapshot.nodes, width)
    folded = [line for one in findings for line in textwrap.wrap(one, width, subsequent_indent="  ")]
    room = max(4, height - len(table) - 4)
    if len(folded) > room:
        whole = _whole_findings(findings, width, room - 1)
        folded = [*whole, f"and more; see all {len(findings)}: chronotile ops check"]
    lines = [_title(snapshot)[:width], "", *(folded or ["no findings"]), "", *table]
    for part in _parts(snapshot):
        lines += ["", *part]
    return "\n".join(line[:width] for line in lines[:height])


def _whole_findings(findings: Sequence[str], width: int, room: int) -> list[str]:
    """The first findings that fit, each in one line."""
    return [textwrap.shorten(one, width, placeholder=" ...") for one in findings[:room]]


def _title(snapshot: Snapshot) -> str:
    releases = ", ".join(sorted(snapshot.releases)) or _UNKNOWN
    schemas = len(snapshot.schemas)
    return (
        f"cluster {snapshot.cluster or _UNKNOWN}: {count_text(len(snapshot.nodes), 'node')}, Cassandra {releases}, "
        f"{count_text(schemas, 'schema version')}, {snapshot.taken:%Y-%m-%d %H:%M:%S} UTC"
    )


def _parts(snapshot: Snapshot) -> list[list[str]]:
    """Parts below the node table."""
    nodes = snapshot.nodes
    return [part for part in (_busy(nodes), _tables(nodes), _repairs(snapshot), _gaps(snapshot)) if part]


def _node_table(nodes: Sequence[Node], width: int | None) -> list[str]:
    left_out: list[str] = []
    cells = [dict(zip(_HEADER, _line(node), strict=True)) for node in nodes]
    while True:
        shown = [column for column in _HEADER if column not in left_out]
        right = frozenset(place for place, column in enumerate(shown) if column in _RIGHT)
        lines = table_text(shown, [[one[column] for column in shown] for one in cells], right).splitlines()
        if width is None or max(map(len, lines)) <= width or len(left_out) == len(_HIDDEN_FIRST):
            return lines
        left_out.append(_HIDDEN_FIRST[len(left_out)])


def _line(node: Node) -> list[str]:
    disk = max((disk.used_share for disk in node.disks), default=None)
    cells = [
        node.address,
        node.rack if node.dc is None or node.rack is None else f"{node.dc}/{node.rack}",
        node.status + ("" if node.agreed else "!"),
        node.release,
        None if node.load_bytes is None else bytes_text(node.load_bytes),
        None if disk is None else f"{disk:.0%}",
        None if node.heap is None or not node.heap.max_bytes else f"{node.heap.used_bytes / node.heap.max_bytes:.0%}",
        None if node.cpu_share is None else f"{node.cpu_share:.0%}",
        None if node.hints is None else str(node.hints_files),
        None if node.compactions_pending is None else str(node.compactions_pending),
        _p99(node, "Read", "read"),
        _p99(node, "Write", "write"),
        None if node.probe_ms is None else f"{node.probe_ms:.1f} ms",
        _clock(node),
    ]
    return [_UNKNOWN if cell is None else cell for cell in cells]


def _p99(node: Node, kind: str, coordinator: str) -> str | None:
    known = node.requests[kind].latency if kind in node.requests else node.coordinator_latency.get(coordinator)
    # Without recent requests the latency is unknown; zero would look like the best one.
    return None if known is None or known.p99_ms <= 0 else f"{known.p99_ms:.1f} ms"


def _clock(node: Node) -> str | None:
    if node.clock_offset_s is None or node.clock_error_s is None:
        return None
    # Offsets within the round-trip uncertainty are not significant.
    if abs(node.clock_offset_s) <= node.clock_error_s:
        return "ok"
    return f"{node.clock_offset_s:+.3f} s"


def _busy(nodes: Sequence[Node]) -> list[str]:
    """Current work of the nodes, one line each."""
    lines = []
    for node in nodes:
        for task in node.compactions or []:
            share = f" {task.progress / task.total:.0%}" if task.total else ""
            lines.append(f"{node.address}: {task.kind} of {task.keyspace}.{task.table}{share}")
        for stream in node.streams or []:
            if stream.status not in ("success", "failure"):
                lines.append(f"{node.address}: {stream.operation} stream {stream.progress_percent:.0f} %")
        for repair in node.repairs or []:
            if not repair.completed:
                lines.append(f"{node.address}: repair of {repair.keyspace} {', '.join(repair.tables)}: {repair.status}")
        for hints in node.hints or []:
            since = "" if hints.oldest is None else f" since {hints.oldest:%Y-%m-%d %H:%M:%S}"
            files = count_text(hints.files, "file")
            lines.append(f"{node.address}: {files} of hints for {hints.address}{since}")
        for name, pool in node.pools.items():
            if pool.pending > 0 or pool.blocked > 0:
                lines.append(f"{node.address}: {name}: {pool.pending} pending, {pool.blocked} blocked")
        if node.native_transport is False:
            lines.append(f"{node.address}: accepts no clients (native transport is off)")
        if not node.agreed:
            views = ", ".join(f"{viewer} says {seen}" for viewer, seen in sorted(node.seen_by.items()))
            lines.append(f"! nodes disagree about {node.address}: {views}")
    return lines


def _tables(nodes: Sequence[Node], count: int = 5) -> list[str]:
    """The tables with the largest partitions, each by its worst node."""
    worst: dict[str, Table] = {}
    for node in nodes:
        for table in node.tables or []:
            known = worst.get(table.full_name)
            if not is_own_keyspace(table.keyspace) and (known is None or _weight(table) > _weight(known)):
                worst[table.full_name] = table
    chosen = sorted(worst.values(), key=_weight, reverse=True)[:count]
    if not chosen:
        return []
    rows = [[t.full_name, f"{t.disk_mib} MiB", f"{t.partition_max_mib} MiB", f"{t.tombstones_p99:.0f}"] for t in chosen]
    return table_text(
        ["table", "on a node", "largest partition", "tombstones p99"], rows, frozenset({1, 2, 3})
    ).splitlines()


def _weight(table: Table) -> tuple[int, float, int]:
    return table.partition_max_mib, table.tombstones_p99, table.disk_mib


def _repairs(snapshot: Snapshot) -> list[str]:
    if snapshot.repairs is None:
        return []
    ages = [(age_s, one) for one in snapshot.repairs if (age_s := one.age_s(snapshot.taken)) is not None]
    if not ages:
        return []
    age_s, oldest = max(ages, key=lambda found: found[0] / max(found[1].gc_grace_s, 1))
    days = age_s / 86_400
    event = "was fully repaired" if oldest.repaired else "was created and never fully repaired"
    grace = oldest.gc_grace_s / 86_400
    return [f"repair: {oldest.keyspace}.{oldest.table} {event} {days:.1f} d ago; gc_grace is {grace:.1f} d"]


def _gaps(snapshot: Snapshot) -> list[str]:
    return ["not seen:", *(f"  {gap}" for gap in snapshot.not_seen)] if snapshot.not_seen else []
