"""Preflight checks: conditions that must hold before any procedure."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Collection

from chronotile.errors import ChronotileError, InvalidInputError, UnavailableError
from chronotile.terminal import count_text
from chronotile_tools.lab.tools import NodeStatus
from chronotile_tools.ops.procedures import statements
from chronotile_tools.ops.procedures.findings import Finding
from chronotile_tools.ops.procedures.nodes import Nodes, any_serving, for_each_node, members, node_statuses

CLOCK_S_MAX = 1.0
"""Largest clock difference in seconds. Cassandra orders writes by timestamps, so larger differences lose updates."""
AGREEMENT_S = 10.0
"""Timeout for schema agreement, in seconds."""
_BUSY_POOLS = ("AntiEntropyStage", "Repair-Task", "ValidationExecutor")
_BUSY_TASKS = ("validation", "anticompaction", "cleanup", "scrub", "upgrade")
_STREAM = re.compile(
    r"^(Repair|Bootstrap|Unbootstrap|Rebuild|Bulk Load|Restore|Relocation|Host Replacement)\b.*", re.MULTILINE
)


def preflight(nodes: Nodes, *, down: Collection[str] = ()) -> list[Finding]:
    """Check the whole cluster.

    Parameters
    ----------
    down : collection of str
        Addresses of nodes that are expected to be down.
    """
    asked = any_serving(nodes)
    known = members(nodes, asked)
    live = [member.address for member in known if member.address not in down]
    findings = [*_status(nodes, live, down)]
    if any(finding.level == "refused" for finding in findings):
        # Skip nodes that do not answer: they are reported already.
        return findings
    versions = schema_versions(nodes, live)
    findings.append(_one("schema", versions, "schema version", "wait, or restart the node that lags behind"))
    releases = {member.release for member in known}
    findings.append(_one("releases", releases, "release", "finish the upgrade first"))
    findings += _quiet(nodes, live)
    findings.append(_clocks(nodes, live))
    findings += _disks(nodes, live)
    return findings


def _status(nodes: Nodes, live: list[str], down: Collection[str]) -> list[Finding]:
    def look(address: str) -> list[NodeStatus] | str:
        try:
            return node_statuses(nodes, address)
        except ChronotileError as error:
            return str(error)

    found = []
    for asker, views in for_each_node(live, look).items():
        if isinstance(views, str):
            found.append(Finding("refused", "nodes", f"cannot query {asker}: {views}"))
            continue
        bad = [f"{asker} sees {seen.address} {'up' if seen.up else 'down'}/{seen.state}" for seen in views
               if not seen.normal and seen.address not in down]  # fmt: skip
        bad += [f"{asker} does not list {address}" for address in live
                if address not in {seen.address for seen in views}]  # fmt: skip
        bad += [f"{asker} sees {seen.address} up, expected down" for seen in views
                if seen.up and seen.address in down]  # fmt: skip
        if bad:
            found.append(Finding("refused", "nodes", f"{', '.join(bad)}: every node must be up and normal"))
    for address in live:
        try:
            nodes.query(address, statements.select("key", "system.local"))
        except ChronotileError as error:
            found.append(Finding("refused", "clients", f"{address} accepts no clients: {error}"))
    return found or [Finding("ok", "nodes", f"{count_text(len(live), 'node')} up and normal, and accepting clients")]


def schema_versions(nodes: Nodes, live: list[str]) -> set[str]:
    """Schema versions of the nodes, after waiting for a change in progress."""
    deadline = time.monotonic() + AGREEMENT_S
    while True:
        versions = {nodes.query(address, statements.select("schema_version", "system.local"))[0]["schema_version"]
                    for address in live}  # fmt: skip
        if len(versions) == 1 or time.monotonic() > deadline:
            return versions
        time.sleep(0.2)


def _one(what: str, values: Collection[str], noun: str, advice: str) -> Finding:
    if len(values) == 1:
        return Finding("ok", what, f"one {noun} ({next(iter(values))})")
    return Finding("refused", what, f"{len(values)} {noun}s ({', '.join(sorted(values))}): {advice}")


def _quiet(nodes: Nodes, live: list[str]) -> list[Finding]:
    """Check that no node streams, repairs or rewrites tables."""
    busy = {
        address: activities
        for address, activities in for_each_node(live, lambda one: _work_of(nodes, one)).items()
        if activities
    }
    if not busy:
        return [Finding("ok", "quiet", "no node joins, leaves, streams or repairs")]
    text = "; ".join(f"{address}: {', '.join(activities)}" for address, activities in busy.items())
    return [Finding("refused", "quiet", f"operations are running ({text}): wait until they finish")]


def _work_of(nodes: Nodes, address: str) -> list[str]:
    pools = nodes.query(address, statements.select("name, active_tasks", "system_views.thread_pools"))
    activities = [row["name"] for row in pools if row["name"] in _BUSY_POOLS and row["active_tasks"] != "0"]
    tasks = nodes.query(address, statements.select("kind", "system_views.sstable_tasks"))
    activities += [row["kind"] for row in tasks if row["kind"].lower().startswith(_BUSY_TASKS)]
    try:
        streams = nodes.query(address, statements.select("operation, status", "system_views.streaming"))
    except InvalidInputError:
        # Before 4.1.
        activities += [match[0] for match in _STREAM.finditer(nodes.nodetool(address, "netstats", timeout_s=60))]
    else:
        activities += [f"stream ({row['operation']})" for row in streams if row["status"] not in ("success", "failure")]
    return sorted(set(activities))


def _clocks(nodes: Nodes, live: list[str]) -> Finding:
    """Clock offsets of the nodes from this machine, up to the round-trip uncertainty; only their differences matter."""

    def offset(address: str) -> tuple[float, float]:
        began = time.time()
        server_s = int(nodes.query(address, statements.server_time())[0]["now"]) / 1000
        ended = time.time()
        return server_s - (began + ended) / 2, (ended - began) / 2

    offsets = {address: offset(address) for address in live}
    first, last = min(offsets, key=lambda a: offsets[a][0]), max(offsets, key=lambda a: offsets[a][0])
    skew, uncertainty = offsets[last][0] - offsets[first][0], offsets[last][1] + offsets[first][1]
    text = f"at most {skew:.2f} s apart, measured to {uncertainty:.2f} s"
    if skew - uncertainty > CLOCK_S_MAX:
        return Finding("refused", "clocks", f"{first} and {last} are {skew:.1f} s apart: fix NTP")
    return Finding("ok", "clocks", text) if skew + uncertainty <= CLOCK_S_MAX else Finding("warning", "clocks", text)


def _disks(nodes: Nodes, live: list[str]) -> list[Finding]:
    """Check that each node has space to rewrite its largest table."""
    short, unknown = [], []
    for address in live:
        rows = nodes.query(
            address, statements.select("keyspace_name, table_name, mebibytes", "system_views.disk_usage")
        )
        largest = max(rows, key=lambda row: int(row["mebibytes"]))
        try:
            free = free_bytes(nodes, address)
        except UnavailableError as error:
            unknown.append(f"{address} ({error})")
            continue
        if free < int(largest["mebibytes"]) << 20:
            table = f"{largest['keyspace_name']}.{largest['table_name']}"
            short.append(f"{address} has {free >> 20} MiB free, and its table {table} {largest['mebibytes']}")
    found = []
    if short:
        found.append(Finding("refused", "disks", f"{'; '.join(short)}: free space, or retire old slices"))
    if unknown:
        found.append(Finding("unknown", "disks", f"unknown free space on {', '.join(unknown)}: check it yourself (df)"))
    return found or [Finding("ok", "disks", "each node has space to rewrite its largest table")]


def free_bytes(nodes: Nodes, address: str) -> int:
    """Free space of a node's data file system; the smallest if there are several."""
    output = nodes.shell(address, "df", "--output=avail", "-B1", *data_folders(nodes, address))
    return min(int(line) for line in output.splitlines()[1:])


def data_folders(nodes: Nodes, address: str) -> list[str]:
    """Data folders of a node."""
    where = "name = 'data_file_directories'"
    rows = nodes.query(address, statements.select("value", "system_views.settings", where))
    if not rows:
        raise UnavailableError(f"{address} does not report its data folders", kind="no-connection")
    value = rows[0]["value"]
    return [folder.strip() for folder in value.strip("[]").split(",")]


def copies(nodes: Nodes, asked: str) -> dict[str, Counter[str]]:
    """Replication factors by keyspace and data centre; SimpleStrategy counts for each data centre."""
    centres = {member.dc for member in members(nodes, asked)}
    found: dict[str, Counter[str]] = {}
    for row in nodes.query(asked, statements.select("keyspace_name, replication", "system_schema.keyspaces")):
        pairs = dict(re.findall(r"'([^']+)': '([^']*)'", row["replication"]))
        strategy = pairs.pop("class", "").rpartition(".")[2]
        if strategy == "LocalStrategy":
            continue
        if strategy == "SimpleStrategy":
            pairs = dict.fromkeys(centres, pairs.get("replication_factor", "1"))
        found[row["keyspace_name"]] = Counter({dc: int(count.partition("/")[0]) for dc, count in pairs.items()})
    return found
