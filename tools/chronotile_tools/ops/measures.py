"""Measurements of early warnings, on a snapshot or between two."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from chronotile.terminal import count_text
from chronotile_tools.ops.reading_cql import is_own_keyspace
from chronotile_tools.ops.state import Node, RepairRun, Requests, Snapshot

MIB = 1024 * 1024


@dataclass(frozen=True)
class Measured:
    """A measurement of a rule at one place; `value` is None if it is unknown."""

    where: str
    value: float | None
    text: str = ""


@dataclass(frozen=True)
class Baseline:
    """Usual values of this cluster: medians of recorded metrics, by node and metric."""

    medians: Mapping[tuple[str, str], float]

    def median(self, node: str, metric: str) -> float | None:
        """The median; None if too little was recorded."""
        return self.medians.get((node, metric))


@dataclass(frozen=True)
class RuleInput:
    """Input of the rules."""

    now: Snapshot
    before: Snapshot | None
    baseline: Baseline | None

    @property
    def answering(self) -> list[Node]:
        """Nodes that answer; other rules report those that do not."""
        return [node for node in self.now.nodes if node.cql or node.jmx]

    def earlier(self, node: Node) -> Node | None:
        """The node in the earlier snapshot, unless it was restarted since, which resets its counters."""
        if self.before is None:
            return None
        for found in self.before.nodes:
            if found.address == node.address:
                restarted = found.started and node.started and found.started != node.started
                return None if restarted else found
        return None

    @property
    def minutes(self) -> float:
        """Minutes between the snapshots."""
        assert self.before is not None
        return max((self.now.taken - self.before.taken).total_seconds(), 0.001) / 60


Measure = Callable[[RuleInput], Iterator[Measured]]


def of_nodes(measure: Callable[[Node], float | None], text: Callable[[Node, float], str] | None = None) -> Measure:
    """Measure a number of each node that answers."""

    def run(observed: RuleInput) -> Iterator[Measured]:
        for node in observed.answering:
            value = measure(node)
            yield Measured(node.address, value, "" if value is None or text is None else text(node, value))

    return run


def per_minute(count: Callable[[Node], int | None], text: str) -> Measure:
    """Measure the increase per minute of a counter of each node."""

    def run(observed: RuleInput) -> Iterator[Measured]:
        for node in observed.answering:
            earlier, total = observed.earlier(node), count(node)
            before = None if earlier is None else count(earlier)
            if total is None or before is None:
                reason = "not seen" if total is None else "unknown in the earlier snapshot, or restarted since"
                yield Measured(node.address, None, reason)
            else:
                grown = max(0, total - before)
                yield Measured(
                    node.address, grown / observed.minutes, f"{grown} {text} in {observed.minutes * 60:.0f} s"
                )

    return run


def requests(part: Callable[[Requests], int]) -> Callable[[Node], int | None]:
    return lambda node: sum(map(part, node.requests.values())) if node.requests else None


def down(observed: RuleInput) -> Iterator[Measured]:
    for node in observed.now.nodes:
        viewers = sorted(viewer for viewer, seen in node.seen_by.items() if seen[0] == "D" and viewer != node.address)
        text = f"seen down by {', '.join(viewers)}" if viewers else ""
        yield Measured(node.address, float(node.status[0] == "D"), text)


def silent_nodes(observed: RuleInput) -> Iterator[Measured]:
    for node in observed.now.nodes:
        # A joining node does not answer yet, which is normal.
        silent = node.status[0] != "D" and node.status[1] != "J" and not node.cql and not node.jmx
        gaps = [gap.reason for gap in observed.now.not_seen if gap.node == node.address and gap.what == "cql"]
        yield Measured(node.address, float(silent), "; ".join(gaps))


def takes_no_clients(observed: RuleInput) -> Iterator[Measured]:
    for node in observed.answering:
        off = node.native_transport is False or not node.cql
        belongs = node.status[0] != "D" and node.status[1] != "J"
        yield Measured(node.address, float(off and belongs), "it is up but accepts no clients")


def disagreements(observed: RuleInput) -> Iterator[Measured]:
    for node in observed.now.nodes:
        views = ", ".join(f"{viewer} says {seen}" for viewer, seen in sorted(node.seen_by.items()))
        yield Measured(node.address, float(not node.agreed), views)


def schemas(observed: RuleInput) -> Iterator[Measured]:
    by_version: dict[str, list[str]] = {}
    for node in observed.answering:
        if node.schema:
            by_version.setdefault(node.schema, []).append(node.address)
    text = "; ".join(f"{version}: {', '.join(nodes)}" for version, nodes in sorted(by_version.items()))
    yield Measured("cluster", float(len(by_version)), text)


def releases(observed: RuleInput) -> Iterator[Measured]:
    yield Measured("cluster", float(len(observed.now.releases)), ", ".join(sorted(observed.now.releases)))


def changing_members(observed: RuleInput) -> Iterator[Measured]:
    for node in observed.now.nodes:
        yield Measured(node.address, float(node.status[1] in "JLM"), node.status)


def hint_files(node: Node) -> float | None:
    return None if node.hints is None else float(node.hints_files)


def hints_text(node: Node, _: float) -> str:
    return "; ".join(f"{count_text(hints.files, 'file')} for {hints.address}" for hints in node.hints or [])


def hint_window(observed: RuleInput) -> Iterator[Measured]:
    window = observed.now.settings.max_hint_window_s
    for node in observed.answering:
        if node.hints is None or not window:
            yield Measured(node.address, None)
            continue
        oldest = min((hints.oldest for hints in node.hints if hints.oldest), default=None)
        share = 0.0 if oldest is None else _seconds(oldest, observed.now.taken) / window
        yield Measured(node.address, share, f"the oldest hints fill {share:.0%} of the window of {window / 3600:g} h")


def dropped(node: Node) -> int | None:
    return sum(node.dropped.values()) if node.requests else None


def heap_share(node: Node) -> float | None:
    return None if node.heap is None or not node.heap.max_bytes else 100 * node.heap.used_bytes / node.heap.max_bytes


def gc_share(observed: RuleInput) -> Iterator[Measured]:
    for node in observed.answering:
        earlier = observed.earlier(node)
        if node.heap is None or earlier is None or earlier.heap is None:
            yield Measured(node.address, None)
            continue
        spent_ms = node.heap.collected_ms - earlier.heap.collected_ms
        share = 100 * spent_ms / (observed.minutes * 60_000)
        yield Measured(node.address, share, f"{spent_ms} ms of {observed.minutes * 60:.0f} s went into collections")


def disk_share(observed: RuleInput) -> Iterator[Measured]:
    for node in observed.answering:
        if not node.disks:
            yield Measured(node.address, None)
        for disk in node.disks:
            text = f"{disk.used_share:.1%} used, {disk.free_bytes / 1024 / MIB:.1f} GiB free"
            yield Measured(f"{node.address} {disk.path}", 100 * disk.used_share, text)


def compaction_room(observed: RuleInput) -> Iterator[Measured]:
    for node in observed.answering:
        if not node.disks or node.tables is None:
            yield Measured(node.address, None)
            continue
        largest = max(node.tables, key=lambda table: table.disk_mib)
        free_mib = sum(disk.free_bytes for disk in node.disks) / MIB
        share = 100 * largest.disk_mib / free_mib if free_mib else float("inf")
        yield Measured(
            node.address, share, f"{largest.full_name} has {largest.disk_mib} MiB, and {free_mib:.0f} MiB are free"
        )


def of_tables(value: Callable[..., float], text: str) -> Measure:
    """Measure a number of each application table, on each node."""

    def run(observed: RuleInput) -> Iterator[Measured]:
        for node in observed.answering:
            if node.tables is None:
                yield Measured(node.address, None)
            for table in node.tables or []:
                if not is_own_keyspace(table.keyspace):
                    found = value(table)
                    yield Measured(f"{node.address} {table.full_name}", found, f"{found:.0f} {text}")

    return run


def repair_age(observed: RuleInput) -> Iterator[Measured]:
    if observed.now.repairs is None:
        yield Measured("cluster", None)
    for table in observed.now.repairs or []:
        age_s = table.age_s(observed.now.taken)
        if age_s is None:
            since = table.repaired or table.created
            why = "its creation time is unknown" if since is None else f"its date {since:%Y-%m-%d} is in the future"
            yield Measured(f"{table.keyspace}.{table.table}", None, why)
            continue
        event = "fully repaired" if table.repaired else "created, never fully repaired,"
        text = f"{event} {_ago(age_s)} ago; gc_grace is {_ago(table.gc_grace_s)}"
        # With gc_grace 0, repairs cannot prevent deleted rows from reappearing.
        share = 100 * age_s / table.gc_grace_s if table.gc_grace_s else 0.0
        yield Measured(f"{table.keyspace}.{table.table}", share, text)


def repairs_failed(observed: RuleInput) -> Iterator[Measured]:
    for node in observed.answering:
        if node.repairs is None or node.tables is None:
            yield Measured(node.address, None)
            continue
        existing = {table.keyspace for table in node.tables}
        done = [repair for repair in node.repairs if repair.completed and repair.keyspace in existing]
        failed = [
            repair for repair in done if _failed(repair) and not any(_supersedes(other, repair) for other in done)
        ]
        text = "; ".join(f"{one.keyspace} {', '.join(one.tables)}: {one.failure}" for one in failed)
        yield Measured(node.address, float(len(failed)), text)


def _failed(repair: RepairRun) -> bool:
    return bool(repair.failure) or "fail" in repair.status.lower()


def _supersedes(later: RepairRun, failed: RepairRun) -> bool:
    """Whether a later repair succeeded where another one failed."""
    if _failed(later) or later.updated is None or failed.updated is None:
        return False
    same = later.keyspace == failed.keyspace and set(failed.tables) <= set(later.tables)
    return same and later.updated > failed.updated


def pool_pending(*names: str) -> Callable[[Node], float | None]:
    return lambda node: float(max(node.pools[n].pending for n in names if n in node.pools)) if node.pools else None


def slowdown(metric: str, value: Callable[[Node], float | None], floor_ms: float) -> Measure:
    """Measure the ratio of each node's latency to its usual value; latencies below `floor_ms` are ignored."""

    def run(observed: RuleInput) -> Iterator[Measured]:
        assert observed.baseline is not None
        for node in observed.answering:
            now, median = value(node), observed.baseline.median(node.address, metric)
            if now is None or not median:
                yield Measured(node.address, None, "too little recorded" if now is not None else "")
                continue
            times = now / median if now >= floor_ms else min(1.0, now / median)
            yield Measured(node.address, times, f"{now:.1f} ms, usually {median:.1f} ms")

    return run


def p99(kind: str) -> Callable[[Node], float | None]:
    return lambda node: node.requests[kind].latency.p99_ms if kind in node.requests else None


def clock(node: Node) -> float | None:
    if node.clock_offset_s is None or node.clock_error_s is None:
        return None
    return max(0.0, abs(node.clock_offset_s) - node.clock_error_s)


def _seconds(start: datetime, end: datetime) -> float:
    return (end - start).total_seconds()


def _ago(seconds: float) -> str:
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"


def count(value: int | None) -> float | None:
    return None if value is None else float(value)


def anti_entropy(node: Node) -> int | None:
    if not node.pools:
        return None
    # The pool is created by the first repair.
    return node.pools["AntiEntropyStage"].pending if "AntiEntropyStage" in node.pools else 0
