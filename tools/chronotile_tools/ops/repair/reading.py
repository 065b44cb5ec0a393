"""Read a cluster's state for repair: its ring, table sizes, and pending work of nodes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

from chronotile.errors import ChronotileError, InvalidInputError
from chronotile_tools.ops.procedures import statements
from chronotile_tools.ops.procedures.nodes import Nodes, any_serving, for_each_node, is_system, members
from chronotile_tools.ops.procedures.preflight import copies
from chronotile_tools.ops.repair.segments import Estimate, RingRange
from chronotile_tools.ring import TOKEN_MIN, unwrapped

_TOKEN_RANGE = re.compile(r"TokenRange\(start_token:(-?\d+), end_token:(-?\d+),.*?rpc_endpoints:\[([^\]]*)\]")
_PENDING = re.compile(r"pending tasks:?\s+(\d+)")
_PERCENT = re.compile(r"Table(?: \(index\))?: (\S+)|Percent repaired: ([\d.]+)")
_STATS = re.compile(
    r"^\s*(Keyspace|Table(?: \(index\))?|Space used \(live\)|SSTable Compression Ratio|Memtable data size"
    r"|Number of partitions \(estimate\))\s?: (\S+)",
    re.MULTILINE,
)
_THROUGHPUT = re.compile(r"throughput: ([\d.]+) Mb/s")
_WHOLE_FILES = re.compile(r"throughput: ([\d.]+) MiB/s")
_STREAMING = re.compile(r"Total estimated streaming: (\d+) ranges, (\d+) sstables, (.*?)(?:;|$)", re.MULTILINE)
AUTH = "system_auth"


def repairable(nodes: Nodes, keyspaces: list[str], tables: list[str]) -> list[str]:
    """Full names of the tables to repair: those with more than one replica.

    Parameters
    ----------
    keyspaces : list of str
        Only these keyspaces; by default all user keyspaces and system_auth.
    tables : list of str
        Only these full names, ``keyspace.table``.

    Raises
    ------
    InvalidInputError
        A name does not exist, or has a single replica.
    """
    asked = any_serving(nodes)
    copied = {name for name, centres in copies(nodes, asked).items() if sum(centres.values()) > 1}
    rows = nodes.query(asked, statements.select("keyspace_name, table_name", "system_schema.tables"))
    names = sorted(f"{row['keyspace_name']}.{row['table_name']}" for row in rows)
    for wanted in [*(f"{keyspace}." for keyspace in keyspaces), *tables]:
        if not any(name == wanted or (wanted.endswith(".") and name.startswith(wanted)) for name in names):
            raise InvalidInputError(f"the cluster has no {wanted.rstrip('.')}", kind="table-not-found")
        if wanted.partition(".")[0] not in copied:
            raise InvalidInputError(
                f"{wanted.rstrip('.')} has a single replica, so it cannot be repaired", kind="refused"
            )
    found = [name for name in names if name.partition(".")[0] in copied]
    if keyspaces or tables:
        return [name for name in found if name in tables or name.partition(".")[0] in keyspaces]
    return [name for name in found if not is_system(name.partition(".")[0]) or name.startswith(f"{AUTH}.")]


def ring(nodes: Nodes, keyspace: str) -> list[RingRange]:
    """The ranges of a keyspace and their replicas."""
    text = nodes.nodetool(any_serving(nodes), "describering", keyspace, timeout_s=60)
    found = [
        RingRange(int(match[1]), int(match[2]), tuple(sorted(part.strip() for part in match[3].split(","))))
        for match in _TOKEN_RANGE.finditer(text)
    ]
    if not found:
        raise InvalidInputError(f"{keyspace} has no ranges of tokens: {text[:200]}", kind="table-not-found")
    return unwrapped(found)


def estimates(nodes: Nodes, tables: Sequence[str]) -> dict[str, list[Estimate]]:
    """Estimate the size of one replica of each table, from the nodes' own files, spread evenly over the ring.

    The nodes' range estimates (``system.size_estimates``) are not used: they count index samples, which greatly
    overestimates ranges of tables with few large partitions, and are updated only every five minutes. Nodes that do not
    answer are omitted.
    """
    keyspaces = sorted({table.partition(".")[0] for table in tables})
    asked = any_serving(nodes)
    factors = {name: sum(centres.values()) for name, centres in copies(nodes, asked).items()}
    known = [one.address for one in members(nodes, asked)]
    reported = [
        found for found in for_each_node(known, lambda one: _sizes_or_none(nodes, one, keyspaces)).values() if found
    ]
    return {table: [_in_one_copy([found[table] for found in reported if table in found],
                                 factors.get(table.partition(".")[0], 1))] for table in tables}  # fmt: skip


def _sizes_or_none(nodes: Nodes, address: str, keyspaces: Sequence[str]) -> dict[str, tuple[float, float]] | None:
    try:
        return sizes_of(nodes.nodetool(address, "tablestats", *keyspaces, timeout_s=120))
    except ChronotileError:
        return None


def _in_one_copy(sizes: Sequence[tuple[float, float]], factor: int) -> Estimate:
    """Divide the nodes' sizes by the replication factor. An incomplete replica must not reduce the estimate below
    another node's size.
    """
    largest = max((one[0] for one in sizes), default=0.0), max((one[1] for one in sizes), default=0.0)
    shared = [sum(one[k] for one in sizes) / max(1, factor) for k in (0, 1)]
    return Estimate(TOKEN_MIN, TOKEN_MIN, max(largest[0], shared[0]), max(largest[1], shared[1]))


def sizes_of(text: str) -> dict[str, tuple[float, float]]:
    """Partitions and uncompressed bytes by table, from ``nodetool tablestats``: files and memtables."""
    found: dict[str, tuple[float, float]] = {}
    keyspace = table = ""
    packed = ratio = 1.0
    for name, value in _STATS.findall(text):
        if name == "Keyspace":
            keyspace = value
        elif name == "Table":
            table, packed, ratio = f"{keyspace}.{value}", 0.0, 1.0
        elif name.startswith("Table ("):
            table = ""
        elif table:
            if name == "Space used (live)":
                packed = _number(value)
            elif name == "SSTable Compression Ratio" and 0 < _number(value) < 1:
                ratio = _number(value)
            elif name == "Number of partitions (estimate)":
                found[table] = (max(0.0, _number(value)), packed / ratio)
            elif name == "Memtable data size" and table in found:
                found[table] = (found[table][0], packed / ratio + _number(value))
    return found


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def pending_compactions(nodes: Nodes, address: str) -> int:
    """Pending compactions of a node."""
    found = _PENDING.search(nodes.nodetool(address, "compactionstats", timeout_s=60))
    return int(found[1]) if found else 0


def percent_repaired(nodes: Nodes, address: str, keyspace: str) -> dict[str, float]:
    """The share of each table's bytes on a node that incremental repairs have marked, in percent."""
    shares: dict[str, float] = defaultdict(float)
    table = ""
    for match in _PERCENT.finditer(nodes.nodetool(address, "tablestats", keyspace, timeout_s=120)):
        if match[1]:
            table = match[1]
        else:
            shares[table] = float(match[2])
    return dict(shares)


def throughput_mbit(nodes: Nodes, address: str) -> float:
    """Stream throughput limit of a node, in Mbit/s; 0 for none."""
    try:
        text = nodes.nodetool(address, "getstreamthroughput", "-d", timeout_s=60)
    except ChronotileError:
        # 4.0 prints whole numbers only.
        text = nodes.nodetool(address, "getstreamthroughput", timeout_s=60)
    found = _THROUGHPUT.search(text)
    return float(found[1]) if found else 0.0


def whole_files_mib(nodes: Nodes, address: str) -> float | None:
    """Throughput limit for entire SSTables, in MiB/s; 0 for none. None before 4.1, where the limit for streams also
    covers them.
    """
    rows = nodes.query(address, statements.select("release_version", "system.local"))
    if rows[0]["release_version"].startswith(("3.", "4.0")):
        return None
    found = _WHOLE_FILES.search(nodes.nodetool(address, "getstreamthroughput", "-e", timeout_s=60))
    return float(found[1]) if found else 0.0


def streams_of_preview(text: str) -> str:
    """Streams reported by a repair preview; empty if replicas are in sync.

    Raises
    ------
    ChronotileError
        The preview did not finish.
    """
    found = _STREAMING.findall(text)
    if found:
        ranges = sum(int(one[0]) for one in found)
        return f"{ranges} ranges differ" if ranges else ""
    if "in sync" in text:
        return ""
    raise ChronotileError(f"the preview ended without a result: {' '.join(text.split())[-300:]}", kind="preview-failed")


def native_scheduler(nodes: Nodes, address: str) -> bool:
    """Whether a node repairs automatically (``auto_repair`` of 5.0.8 and later)."""
    rows = nodes.query(address, statements.select("name, value", "system_views.settings"))
    return any(row["name"] == "auto_repair.enabled" and row["value"] == "true" for row in rows)
