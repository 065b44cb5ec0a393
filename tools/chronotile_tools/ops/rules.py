"""Early warnings: for each rule, what it measures, its limits, the meaning and the remedy.

A rule measures values on a snapshot, or between two. Each rule has been tested to fire and clear on real nodes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from chronotile.errors import InvalidInputError
from chronotile_tools.ops import measures
from chronotile_tools.ops.measures import Baseline, Measure, Measured, RuleInput
from chronotile_tools.ops.state import Snapshot

__all__ = ["RULES", "Baseline", "Finding", "Result", "Rule", "check", "select_rules", "with_limits"]


ABOVE_ZERO = 1e-9
"""Limit that every rate above zero reaches."""


@dataclass(frozen=True)
class Finding:
    """A limit that was reached."""

    rule: str
    level: str
    """``"warning"`` or ``"critical"``."""
    where: str
    value: float
    limit: float
    message: str


@dataclass(frozen=True)
class Result:
    """Findings of a check, and what could not be checked."""

    findings: list[Finding]
    unchecked: list[str]
    """Rule and place, one line each."""
    rules: list[str]
    """Rules that ran."""

    @property
    def level(self) -> str:
        """The worst level: ``"ok"``, ``"warning"`` or ``"critical"``."""
        levels = {finding.level for finding in self.findings}
        return "critical" if "critical" in levels else "warning" if levels else "ok"


@dataclass(frozen=True)
class Rule:
    """An early warning."""

    name: str
    unit: str
    """Unit of the measured value and its limits."""
    warning: float | None
    critical: float | None
    means: str
    do: str
    measure: Measure
    jmx: bool = False
    """Whether it needs JMX."""
    two_snapshots: bool = False
    """Whether it measures the change between two snapshots."""
    needs_baseline: bool = False

    def judged(self, measured: Measured) -> Finding | None:
        """Return a finding if a limit is reached."""
        if measured.value is None:
            return None
        for level, limit in (("critical", self.critical), ("warning", self.warning)):
            if limit is not None and measured.value >= limit:
                text = measured.text or f"{measured.value:g} {self.unit}".strip()
                return Finding(self.name, level, measured.where, measured.value, limit, text)
        return None


def check(
    now: Snapshot,
    before: Snapshot | None = None,
    *,
    baseline: Baseline | None = None,
    rules: Sequence[Rule] | None = None,
) -> Result:
    """Apply rules to a snapshot.

    Parameters
    ----------
    now : Snapshot
        The present snapshot.
    before : Snapshot, optional
        An earlier snapshot, for rate rules; without it, they are not checked.
    baseline : Baseline, optional
        Usual values, for relative rules; without it, they are not checked.
    rules : sequence of Rule, optional
        Rules to apply. Default: all.
    """
    observed = RuleInput(now, before, baseline)
    applied = select_rules() if rules is None else list(rules)
    findings: list[Finding] = []
    unchecked: list[str] = []
    for rule in applied:
        if rule.two_snapshots and before is None:
            unchecked.append(f"{rule.name}: needs two snapshots")
        elif rule.needs_baseline and baseline is None:
            unchecked.append(f"{rule.name}: needs a recorded baseline (ops record, then --baseline)")
        else:
            for measured in rule.measure(observed):
                if measured.value is None:
                    unchecked.append(f"{rule.name}: {measured.where}: {measured.text or 'not seen'}")
                elif finding := rule.judged(measured):
                    findings.append(finding)
    findings.sort(key=lambda finding: (finding.level != "critical", finding.rule, finding.where))
    return Result(findings, unchecked, [rule.name for rule in applied])


def select_rules(names: Iterable[str] = ()) -> list[Rule]:
    """The rules with these names; all by default.

    Raises
    ------
    InvalidInputError
        A rule does not exist.
    """
    wanted = list(names)
    for name in wanted:
        if name not in RULES:
            raise InvalidInputError(f"unknown rule {name!r}; the rules are {', '.join(RULES)}", kind="invalid-request")
    return [RULES[name] for name in dict.fromkeys(wanted or RULES)]


def with_limits(rules: Sequence[Rule], limits: Mapping[str, tuple[float | None, float | None]]) -> list[Rule]:
    """Replace warning and critical limits of rules, by name.

    Raises
    ------
    InvalidInputError
        A name is not that of one of `rules`.
    """
    names = {rule.name for rule in rules}
    for name in limits:
        if name not in names:
            raise InvalidInputError(
                f"--limit {name}: unknown rule; the rules are {', '.join(sorted(names))}", kind="invalid-request"
            )
    return [
        dataclasses.replace(rule, warning=limits[rule.name][0], critical=limits[rule.name][1])
        if rule.name in limits
        else rule
        for rule in rules
    ]


_ALL = [
    Rule(
        "node-down", "", None, 1, "Other nodes see this one down: its replicas are missing, hints pile up for it.",
        "Check its log and machine, and start it. Within the hint window, hints bring it up to date; "
        "later, repair it; after gc_grace, never start it again: replace it.", measures.down, jmx=True,
    ),
    Rule(
        "node-silent", "", None, 1, "It answers neither clients nor JMX, while the others do not see it down.",
        "Look at the process and the network: it may hang, be suspended, or be cut off from here alone.",
        measures.silent_nodes, jmx=True,
    ),
    Rule(
        "native-transport", "", None, 1,
        "It is in the ring but accepts no clients, so the other nodes carry their load.",
        "Run nodetool statusbinary, then nodetool enablebinary; its log shows why it is off. A drained "
        "node must be restarted.",
        measures.takes_no_clients, jmx=True,
    ),
    Rule(
        "views-disagree", "", 1, None,
        "Nodes disagree about this one: part of the network is down, or a node is wrong.",
        "Test the network between those nodes (port 7000). Change nothing in the ring or the schema until they agree.",
        measures.disagreements, jmx=True,
    ),
    Rule(
        "schema-versions", "versions", 2, 3, "Nodes have different schemas: requests fail on some of them.",
        "Wait a minute after a change. If it stays: nodetool describecluster, then nodetool reloadlocalschema or a "
        "restart of the node that differs.", measures.schemas, jmx=True,
    ),
    Rule(
        "hints-pending", "files", 1, None, "Writes wait for a node that is or was down.",
        "Bring that node back and watch the number fall. If it is back and hints remain: nodetool "
        "statushandoff, nodetool enablehandoff.", measures.of_nodes(measures.hint_files, measures.hints_text),
        jmx=True,
    ),
    Rule(
        "hint-window", "of the window", 0.5, 0.9,
        "Hints are about to stop, and the node that is down will need a repair.",
        "Bring the node back now, or plan a full repair of it.", measures.hint_window, jmx=True,
    ),
    Rule(
        "hints-written", "per minute", ABOVE_ZERO, None, "Writes are missing a replica now, and are stored as hints.",
        "Find out which node is down or slow (ops status).",
        measures.per_minute(lambda node: node.hints_written, "hints written"), jmx=True, two_snapshots=True,
    ),
    Rule(
        "unavailable", "per minute", None, ABOVE_ZERO, "Requests were rejected because too few replicas are up.",
        "Bring nodes back; see node-down.", measures.per_minute(measures.requests(lambda r: r.unavailables),
        "requests rejected"),
        jmx=True, two_snapshots=True,
    ),
    Rule(
        "timeouts", "per minute", 1, 10, "Requests ran out of time: a replica is overloaded, hangs, or is cut off.",
        "Find the slow node by local latencies (ops status), its compactions, collections and disk.",
        measures.per_minute(measures.requests(lambda r: r.timeouts), "requests timed out"), jmx=True,
        two_snapshots=True,
    ),
    Rule(
        "dropped", "per minute", ABOVE_ZERO, 60, "A node dropped messages that had waited too long: it is overloaded.",
        "Reduce the load or find out what slows the node; then repair what was written meanwhile.",
        measures.per_minute(measures.dropped, "messages dropped"), jmx=True, two_snapshots=True,
    ),
    Rule(
        "compactions-pending", "tasks", 20, 100, "Compaction falls behind: reads get slower, the disk fuller.",
        "nodetool compactionstats; raise nodetool setcompactionthroughput, lower the write load, pause repairs.",
        measures.of_nodes(lambda node: measures.count(node.compactions_pending)), jmx=True,
    ),
    Rule(
        "collecting", "% of the time", 10, 25, "Java spends its time on garbage collection.",
        "Look for large reads or partitions and tombstones; then check the heap size.", measures.gc_share,
        jmx=True,
        two_snapshots=True,
    ),
    Rule(
        "disk-used", "%", 60, 75,
        "Little space is left; compaction and repair need space for another copy of a large table.",
        "Drop old data and snapshots (nodetool listsnapshots, clearsnapshot), or add a node.", measures.disk_share,
        jmx=True,
    ),
    Rule(
        "tombstones", "a read (p99)", 100, 1000, "Reads scan many tombstones.",
        "Find the query; delete by partition or let slices expire; repair, then nodetool garbagecollect the table.",
        measures.of_tables(lambda table: table.tombstones_p99, "tombstones in a read (p99)"),
    ),
    Rule(
        "partition-size", "MiB", 100, 1000, "Large partitions make reads, compaction and repair slow and fill the "
        "heap.",
        "Use shorter windows or finer cells for this table; nodetool toppartitions shows the keys.",
        measures.of_tables(lambda table: float(table.partition_max_mib), "MiB in the largest partition"),
    ),
    Rule(
        "repair-age", "% of gc_grace", 70, 100, "Past gc_grace, deleted data can come back.",
        "Repair the table; find out what prevents repairs from finishing.", measures.repair_age,
    ),
    Rule(
        "repair-failed", "tables", 1, None, "The last repair coordinated by this node failed.",
        "Read the reason, make sure that all replicas are up, and repair again.", measures.repairs_failed,
    ),
    Rule(
        "probe-slow", "times the usual", 3, 10, "A read of one row on this node takes much longer than it used to.",
        "Check what this node is doing: compactions, garbage collections, CPU time, other programs on its machine.",
        measures.slowdown("probe", lambda node: node.probe_ms, 20), needs_baseline=True,
    ),
    Rule(
        "read-slow", "times the usual", 3, 10, "Reads that this node coordinates take longer than they used to (p99).",
        "Compare the nodes' local latencies; look at compactions, tombstones, collections of the slow replica.",
        measures.slowdown("latency_p99/Read", measures.p99("Read"), 20), jmx=True, needs_baseline=True,
    ),
    Rule(
        "write-slow", "times the usual", 3, 10, "Writes that this node coordinates take longer than they used to "
        "(p99).",
        "Look at the commit log's disk, collections and pending mutations of the slow replica.",
        measures.slowdown("latency_p99/Write", measures.p99("Write"), 20), jmx=True, needs_baseline=True,
    ),
    Rule(
        "releases-differ", "releases", 2, 3, "Nodes run different releases: no schema change, repair or new node now.",
        "Finish the upgrade.", measures.releases,
    ),
    Rule(
        "ring-changing", "nodes", 1, None, "A node is joining, leaving or moving.",
        "Wait for it before the next change; if it does not progress, check its log and streams.",
        measures.changing_members,
        jmx=True,
    ),
    Rule(
        "stage-pending", "tasks", 500, 2000, "Requests queue inside the node: it is overloaded.",
        "Reduce the load; check garbage collections, disk and compactions.",
        measures.of_nodes(measures.pool_pending("MutationStage", "ReadStage", "Native-Transport-Requests")),
    ),
    Rule(
        "commitlog-pending", "tasks", 15, 100, "Writes wait for the commit log's disk.",
        "Look at the disk; put the commit log on a separate disk.",
        measures.of_nodes(lambda node: measures.count(node.commitlog_pending)), jmx=True,
    ),
    Rule(
        "heap", "%", 75, 85, "The heap is nearly full even after a collection.",
        "Look for large partitions and reads; raise the heap.", measures.of_nodes(measures.heap_share), jmx=True,
    ),
    Rule(
        "exceptions", "per minute", ABOVE_ZERO, 10, "The node had unexpected errors.",
        "Read its log.", measures.per_minute(lambda node: node.exceptions, "exceptions"), jmx=True, two_snapshots=True,
    ),
    Rule(
        "messages-expired", "per minute", ABOVE_ZERO, 60, "Messages to other nodes expired before they could be sent.",
        "Check the network and the receiving nodes.",
        measures.per_minute(lambda node: node.internode_expired, "messages expired"), two_snapshots=True,
    ),
    Rule(
        "compaction-room", "% of free space", 50, 100,
        "The remaining space is too small to compact the largest table.",
        "See disk-used.", measures.compaction_room, jmx=True,
    ),
    Rule(
        "repair-stage", "tasks", 2, 20, "Repair tasks are queueing on this node.",
        "Run one repair at a time.", measures.of_nodes(lambda node: measures.count(measures.anti_entropy(node))),
    ),
    Rule(
        "clock", "s", 0.5, 5, "Its clock differs from this machine's: the wrong one of two writes may win.",
        "Run NTP or chrony on every node and here.",
        measures.of_nodes(measures.clock, lambda node, value: f"{value:.3f} s at least, {node.clock_offset_s:+.3f} s "
        "measured"),
    ),
]  # fmt: skip


RULES: dict[str, Rule] = {rule.name: rule for rule in _ALL}
"""All rules by name."""
