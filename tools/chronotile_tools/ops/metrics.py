"""Metrics of a snapshot, for recording and for monitoring systems."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from chronotile_tools.ops.measures import heap_share
from chronotile_tools.ops.reading_cql import is_own_keyspace
from chronotile_tools.ops.state import Heap, Node, Pool, Snapshot, Table

__all__ = ["METRICS", "Metric", "Sample", "prometheus", "prometheus_name", "samples"]

_UNITS = {"%": "percent", "ms": "milliseconds", "s": "seconds", "bytes": "bytes", "MiB": "mebibytes", "": ""}
Labelled = Iterable[tuple[dict[str, str], float | None]]


@dataclass(frozen=True)
class Metric:
    """A metric of each node."""

    name: str
    unit: str
    counter: bool
    """Whether it is a counter, reset only by a restart."""
    help: str
    read: Callable[[Node], Labelled]
    labels: tuple[str, ...] = ()
    """Label name of a metric with several values per node."""


@dataclass(frozen=True)
class Sample:
    """A value of a metric of a node, with a label if it has several."""

    metric: Metric
    node: str
    labels: dict[str, str]
    value: float

    @property
    def path(self) -> tuple[str, ...]:
        """Name of the sample in a recording: node, metric, and values of the labels."""
        return self.node, self.metric.name, *self.labels.values()


def _one(read: Callable[[Node], float | None]) -> Callable[[Node], Labelled]:
    return lambda node: [({}, read(node))]


def _requests(read: Callable[[Node, str], float | None]) -> Callable[[Node], Labelled]:
    return lambda node: [({"kind": kind}, read(node, kind)) for kind in node.requests]


def _dropped(node: Node) -> Labelled:
    return [({"kind": kind}, float(count)) for kind, count in node.dropped.items()]


def _pools(read: Callable[[Pool], int]) -> Callable[[Node], Labelled]:
    return lambda node: [({"pool": name}, float(read(pool))) for name, pool in node.pools.items()]


def _heap(read: Callable[[Heap], float]) -> Callable[[Node], Labelled]:
    return _one(lambda node: None if node.heap is None else float(read(node.heap)))


def _tables(read: Callable[[Table], float]) -> Callable[[Node], Labelled]:
    def run(node: Node) -> Labelled:
        mine = [table for table in node.tables or [] if not is_own_keyspace(table.keyspace)]
        return [({"keyspace": table.keyspace, "table": table.name}, read(table)) for table in mine]

    return run


def _as_float(value: float | None) -> float | None:
    return None if value is None else float(value)


def _length(values: Sequence[object] | None) -> float | None:
    return None if values is None else float(len(values))


METRICS: list[Metric] = [
    Metric("up", "", False, "1 if the other nodes see it up", _one(lambda n: float(n.status[0] == "U"))),
    Metric("cql", "", False, "1 if it answers clients", _one(lambda n: float(n.cql))),
    Metric("load", "bytes", False, "Data on the node", _one(lambda n: n.load_bytes)),
    Metric("heap_used", "%", False, "Heap in use after the last collection", _one(heap_share)),
    Metric("heap_bytes", "bytes", False, "Heap after a collection, in bytes", _heap(lambda heap: heap.used_bytes)),
    Metric("heap_max", "bytes", False, "Greatest size of the heap", _heap(lambda heap: heap.max_bytes)),
    Metric("gc_count", "", True, "Garbage collections", _heap(lambda heap: heap.collections)),
    Metric("gc_time", "ms", True, "Time in garbage collections", _heap(lambda heap: heap.collected_ms)),
    Metric("gc_pause", "ms", False, "The last garbage collection", _heap(lambda heap: heap.pause_last_ms)),
    Metric("cpu", "%", False, "CPU usage of the process, of all cores",
           _one(lambda n: None if n.cpu_share is None else 100 * n.cpu_share)),
    Metric("system_load", "", False, "Load average of the machine per core", _one(lambda n: n.system_load)),
    Metric("disk_used", "%", False, "Used share of the fullest data disk",
           _one(lambda n: max((100 * disk.used_share for disk in n.disks), default=None))),
    Metric("disk_free", "bytes", False, "Free space of the fullest data disk",
           _one(lambda n: min((float(disk.free_bytes) for disk in n.disks), default=None))),
    Metric("clock_offset", "s", False, "Clock offset from the observer", _one(lambda n: n.clock_offset_s)),
    Metric("probe", "ms", False, "Time of the observer's read of one row", _one(lambda n: n.probe_ms)),
    Metric("clients", "", False, "Client connections", _one(lambda n: _as_float(n.clients))),
    Metric("hint_files", "", False, "Hint files kept for other nodes",
           _one(lambda n: None if n.hints is None else float(n.hints_files))),
    Metric("hints_written", "", True, "Hints written for other nodes", _one(lambda n: _as_float(n.hints_written))),
    Metric("compactions_pending", "", False, "Pending compactions", _one(lambda n: _as_float(n.compactions_pending))),
    Metric("compactions_active", "", False, "Running compaction tasks", _one(lambda n: _length(n.compactions))),
    Metric("commitlog_pending", "", False, "Writes waiting for the log",
           _one(lambda n: _as_float(n.commitlog_pending))),
    Metric("exceptions", "", True, "Unexpected errors", _one(lambda n: _as_float(n.exceptions))),
    Metric("expired", "", True, "Expired messages to other nodes", _one(lambda n: _as_float(n.internode_expired))),
    Metric("streams", "", False, "Streams with other nodes", _one(lambda n: _length(n.streams))),
    Metric("pool_active", "", False, "Active tasks of a thread pool", _pools(lambda pool: pool.active), ("pool",)),
    Metric("pool_pending", "", False, "Pending tasks of a thread pool", _pools(lambda pool: pool.pending), ("pool",)),
    Metric("pool_blocked", "", False, "Blocked tasks of a thread pool", _pools(lambda pool: pool.blocked),
           ("pool",)),
    Metric("dropped", "", True, "Messages dropped", _dropped, ("kind",)),
    Metric("requests", "", True, "Requests coordinated",
           _requests(lambda n, kind: float(n.requests[kind].latency.count)), ("kind",)),
    Metric("timeouts", "", True, "Requests timed out",
           _requests(lambda n, kind: float(n.requests[kind].timeouts)), ("kind",)),
    Metric("unavailable", "", True, "Requests rejected for lack of replicas",
           _requests(lambda n, kind: float(n.requests[kind].unavailables)), ("kind",)),
    Metric("failures", "", True, "Requests that failed on a replica",
           _requests(lambda n, kind: float(n.requests[kind].failures)), ("kind",)),
    Metric("latency_p50", "ms", False, "Median of requests it coordinated",
           _requests(lambda n, kind: n.requests[kind].latency.p50_ms), ("kind",)),
    Metric("latency_p95", "ms", False, "95th percentile of requests it coordinated",
           _requests(lambda n, kind: n.requests[kind].latency.p95_ms), ("kind",)),
    Metric("latency_p99", "ms", False, "99th percentile of requests it coordinated",
           _requests(lambda n, kind: n.requests[kind].latency.p99_ms), ("kind",)),
    Metric("table_disk", "MiB", False, "Data of a table", _tables(lambda t: float(t.disk_mib)), ("keyspace", "table")),
    Metric("table_partition_max", "MiB", False, "Largest partition of a table",
           _tables(lambda t: float(t.partition_max_mib)), ("keyspace", "table")),
    Metric("table_tombstones_p99", "", False, "Tombstones per read of a table, 99th percentile",
           _tables(lambda t: float(t.tombstones_p99)), ("keyspace", "table")),
]  # fmt: skip


def samples(snapshot: Snapshot) -> Iterator[Sample]:
    """All values of a snapshot; unknown ones are omitted."""
    for metric in METRICS:
        for node in snapshot.nodes:
            for labels, value in metric.read(node):
                if value is not None:
                    yield Sample(metric, node.address, labels, value)


def prometheus(snapshot: Snapshot) -> str:
    """The snapshot in Prometheus' text format, version 0.0.4."""
    lines: list[str] = []
    described = ""
    for sample in samples(snapshot):
        name = prometheus_name(sample.metric)
        if name != described:
            kind = "counter" if sample.metric.counter else "gauge"
            lines += [f"# HELP {name} {sample.metric.help}", f"# TYPE {name} {kind}"]
            described = name
        labels = {"cluster": snapshot.cluster or "", "node": sample.node, **sample.labels}
        inner = ",".join(f'{key}="{_escaped(value)}"' for key, value in labels.items())
        lines.append(f"{name}{{{inner}}} {sample.value!r}")
    lines += [
        "# HELP chronotile_ops_schema_versions Schema versions among the nodes",
        "# TYPE chronotile_ops_schema_versions gauge",
        f'chronotile_ops_schema_versions{{cluster="{_escaped(snapshot.cluster or "")}"}} {len(snapshot.schemas)}',
    ]
    return "\n".join(lines) + "\n"


def prometheus_name(metric: Metric) -> str:
    """Name of a metric in Prometheus, including its unit."""
    parts = ["chronotile_ops", metric.name, _UNITS[metric.unit], "total" if metric.counter else ""]
    return "_".join(part for part in parts if part)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
