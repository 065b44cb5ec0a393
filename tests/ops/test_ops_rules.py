"""Early warnings at their limits: one cluster with known figures, and one figure changed at a time."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner

from chronotile.errors import InvalidInputError
from chronotile_tools.cli.ops import ops
from chronotile_tools.ops import measures
from chronotile_tools.ops.measures import Baseline, RuleInput
from chronotile_tools.ops.rules import RULES, Finding, Result, Rule, check, select_rules, with_limits
from chronotile_tools.ops.state import (
    ClusterSettings,
    Disk,
    Heap,
    HintsFor,
    Latency,
    Node,
    Pool,
    RepairRun,
    Requests,
    Snapshot,
    Table,
    TableRepair,
    Unobserved,
)

START = datetime(2026, 3, 1, tzinfo=UTC)
LATENCY = Latency(10, 1.0, 8.0, 20.0)
TABLE = Table("survey", "t", 100, 10, 5.0, 9.0, None, None)
POOLS = ("MutationStage", "ReadStage", "Native-Transport-Requests", "AntiEntropyStage")
QUIET = Node(
    "10.0.0.1", "10.0.0.1", release="5.0.8", schema="a", cql=True, jmx=True,
    seen_by={"10.0.0.1": "UN", "10.0.0.2": "UN"}, mode="NORMAL", native_transport=True, started=START,
    heap=Heap(500, 1_000, 3, 1_000, 5), clock_offset_s=0.2, clock_error_s=0.1, probe_ms=2.0,
    pools={name: Pool(0, 0, 0, 9) for name in POOLS},
    requests={kind: Requests(LATENCY, 5, 5, 0) for kind in ("Read", "Write")}, dropped={"READ": 5}, internode_expired=5,
    hints=[], hints_written=5, compactions_pending=0, repairs=[], commitlog_pending=0, exceptions=5, tables=[TABLE],
    disks=[Disk("/data", 1_000 * 2**20, 500 * 2**20)],
)  # fmt: skip
USUAL = Baseline({("10.0.0.1", name): 8.0 for name in ("probe", "latency_p99/Read", "latency_p99/Write")})
REPAIR = RepairRun("survey", ["t"], "IN_PROGRESS", True, "", START)


def changed(**fields: Any) -> Node:
    return dataclasses.replace(QUIET, **fields)


def snapshot(*nodes: Node, minutes: float = 0, window_s: float | None = 10_800, repairs: Any = ()) -> Snapshot:
    taken = START + timedelta(minutes=minutes)
    kept = None if repairs is None else list(repairs)
    return Snapshot(taken, "plant", list(nodes), kept, ClusterSettings(window_s), [])


def one(name: str, now: Node, *others: Node, repairs: Any = (), minutes: float = 1) -> Result:
    """What a rule says of a node a minute after all was quiet."""
    before = snapshot(QUIET, repairs=repairs)
    return check(
        snapshot(now, *others, minutes=minutes, repairs=repairs), before, baseline=USUAL, rules=select_rules([name])
    )


def level(name: str, now: Node, *others: Node, **given: Any) -> str:
    return one(name, now, *others, **given).level


def test_a_quiet_cluster_has_no_findings_and_nothing_unchecked() -> None:
    repaired = [TableRepair("survey", "t", 864_000, START, START)]
    now, before = (snapshot(QUIET, minutes=minutes, repairs=repaired) for minutes in (1, 0))
    result = check(now, before, baseline=USUAL)
    assert (result.level, result.findings, result.unchecked) == ("ok", [], [])
    assert result.rules == list(RULES)


# The published limits: changing one is a decision, to be made in both places.
LIMITS: dict[str, tuple[float | None, float | None]] = {
    "node-down": (None, 1), "node-silent": (None, 1), "native-transport": (None, 1), "views-disagree": (1, None),
    "schema-versions": (2, 3), "hints-pending": (1, None), "hint-window": (0.5, 0.9), "hints-written": (1e-9, None),
    "unavailable": (None, 1e-9), "timeouts": (1, 10), "dropped": (1e-9, 60), "compactions-pending": (20, 100),
    "collecting": (10, 25), "disk-used": (60, 75), "tombstones": (100, 1000), "partition-size": (100, 1000),
    "repair-age": (70, 100), "repair-failed": (1, None), "probe-slow": (3, 10), "read-slow": (3, 10),
    "write-slow": (3, 10), "releases-differ": (2, 3), "ring-changing": (1, None), "stage-pending": (500, 2000),
    "commitlog-pending": (15, 100), "heap": (75, 85), "exceptions": (1e-9, 10), "messages-expired": (1e-9, 60),
    "compaction-room": (50, 100), "repair-stage": (2, 20), "clock": (0.5, 5),
}  # fmt: skip


def test_limits_are_the_published_ones() -> None:
    assert {rule.name: (rule.warning, rule.critical) for rule in RULES.values()} == LIMITS


def test_a_limit_that_any_rate_reaches_is_explained_as_above_zero() -> None:
    shown = CliRunner().invoke(ops, ["check", "--explain"]).output
    for text in ("hints-written: warning above 0 per minute,", "unavailable: critical above 0 per minute,",
                 "dropped: warning above 0 per minute, critical from 60 per minute,"):  # fmt: skip
        assert text in shown


def test_a_rule_needs_an_earlier_look_a_baseline_or_jmx_exactly_where_it_says_so() -> None:
    repaired = [TableRepair("survey", "t", 864_000, START, START)]
    now, before = (snapshot(QUIET, minutes=minutes, repairs=repaired) for minutes in (1, 0))
    blind = changed(
        jmx=False, seen_by={}, mode=None, native_transport=None, started=None, heap=None, requests={}, dropped={},
        hints=None, hints_written=None, compactions_pending=None, repairs=None, commitlog_pending=None, exceptions=None,
        disks=[], schema=None,
    )  # fmt: skip
    for rule in RULES.values():
        assert values(rule, RuleInput(now, before, USUAL)) is True, rule.name
        assert values(rule, RuleInput(now, None, USUAL)) is not rule.two_snapshots, rule.name
        assert values(rule, RuleInput(now, before, None)) is not rule.needs_baseline, rule.name
        if not rule.jmx and rule.name != "repair-failed":
            without = RuleInput(snapshot(blind, minutes=1, repairs=repaired), snapshot(blind, repairs=repaired), USUAL)
            assert values(rule, without) is True, rule.name


def test_rules_that_do_without_jmx_read_what_clients_can() -> None:
    without = {
        "clock", "messages-expired", "partition-size", "probe-slow", "releases-differ", "repair-age", "repair-failed",
        "repair-stage", "stage-pending", "tombstones",
    }  # fmt: skip
    assert {rule.name for rule in RULES.values() if not rule.jmx} == without
    assert not Rule("mine", "", 1, None, "It is mine.", "Nothing.", lambda _: ()).jmx


def values(rule: Any, look: RuleInput) -> bool:
    """Whether the rule measures something wherever it looks."""
    try:
        found = list(rule.measure(look))
    except AssertionError:
        return False
    return bool(found) and all(each.value is not None for each in found)


@pytest.mark.parametrize(
    ("rule", "field", "quiet", "warning", "critical"),
    [
        ("compactions-pending", "compactions_pending", 19, 20, 100),
        ("commitlog-pending", "commitlog_pending", 14, 15, 100),
        ("timeouts", "timeouts", 0, 1, 10), ("unavailable", "unavailables", 0, None, 1),
        ("hints-written", "hints_written", 0, 1, None), ("exceptions", "exceptions", 0, 1, 10),
        ("messages-expired", "internode_expired", 0, 1, 60), ("dropped", "dropped", 0, 1, 60),
    ],
)  # fmt: skip
def test_counts_are_judged_at_their_limit_and_counters_by_what_they_grew_in_a_minute(
    rule: str, field: str, quiet: int, warning: int | None, critical: int | None
) -> None:
    def with_count(count: int) -> Node:
        if field in ("timeouts", "unavailables"):
            return changed(
                requests={**QUIET.requests, "Read": dataclasses.replace(QUIET.requests["Read"], **{field: 5 + count})}
            )
        if field == "dropped":
            return changed(dropped={"READ": 5 + count - count // 2, "MUTATION": count // 2})
        return changed(**{field: count + (5 if RULES[rule].two_snapshots else 0)})

    assert level(rule, with_count(quiet)) == "ok"
    if warning is not None:
        assert level(rule, with_count(warning)) == "warning"
        last = quiet if critical is None else critical - 1
        assert level(rule, with_count(max(last, warning))) == "warning"
    if critical is not None:
        assert level(rule, with_count(critical)) == "critical"
    if RULES[rule].two_snapshots:
        assert level(rule, with_count(-3)) == "ok", "a counter that was set back is no growth"
        half = one(rule, with_count(critical or 2), minutes=0.5)
        assert half.findings[0].value == pytest.approx(2 * (critical or 2)), "in a minute"


def test_shares_of_heap_disk_and_collections() -> None:
    for used, wanted in ((749, "ok"), (750, "warning"), (849, "warning"), (850, "critical")):
        assert level("heap", changed(heap=Heap(used, 1_000, 3, 1_000, 5))) == wanted
    assert one("heap", changed(heap=Heap(1, 0, 0, 0, 0))).unchecked == ["heap: 10.0.0.1: not seen"]
    for free, wanted in ((401, "ok"), (400, "warning"), (251, "warning"), (250, "critical")):
        assert level("disk-used", changed(disks=[Disk("/data", 1_000, free)])) == wanted
    # Milliseconds of a minute, counted from the thousand of the earlier look.
    for spent, wanted in ((5_999, "ok"), (6_000, "warning"), (14_999, "warning"), (15_000, "critical")):
        assert level("collecting", changed(heap=Heap(500, 1_000, 9, 1_000 + spent, 5))) == wanted
    for free, wanted in ((201, "ok"), (200, "warning"), (101, "warning"), (100, "critical"), (0, "critical")):
        disks = [Disk("/a", 10**12, free * 2**19), Disk("/b", 10**12, free * 2**19)]
        small = dataclasses.replace(TABLE, name="small", disk_mib=1)
        assert level("compaction-room", changed(disks=disks, tables=[small, TABLE, small])) == wanted


def test_tables_are_judged_each_and_those_of_the_server_are_left_out() -> None:
    for value, wanted in ((99, "ok"), (100, "warning"), (999, "warning"), (1_000, "critical")):
        for rule, field in (("tombstones", "tombstones_p99"), ("partition-size", "partition_max_mib")):
            table = dataclasses.replace(TABLE, **{field: value})
            assert level(rule, changed(tables=[TABLE, table])) == wanted
            assert level(rule, changed(tables=[dataclasses.replace(table, keyspace="system")])) == "ok"
    assert one("tombstones", changed(tables=None)).unchecked == ["tombstones: 10.0.0.1: not seen"]


def test_queues_are_those_of_the_fullest_stage() -> None:
    for pending, wanted in ((499, "ok"), (500, "warning"), (1_999, "warning"), (2_000, "critical")):
        for name in POOLS[:3]:
            assert level("stage-pending", changed(pools={**QUIET.pools, name: Pool(0, pending, 0, 9)})) == wanted
    assert level("stage-pending", changed(pools={**QUIET.pools, "CompactionExecutor": Pool(0, 9_999, 0, 0)})) == "ok"
    for pending, wanted in ((1, "ok"), (2, "warning"), (19, "warning"), (20, "critical")):
        assert level("repair-stage", changed(pools={**QUIET.pools, POOLS[3]: Pool(0, pending, 0, 9)})) == wanted
    without = {name: QUIET.pools[name] for name in POOLS[:3]}
    assert level("repair-stage", changed(pools=without)) == "ok", "the pool is made with the first repair"
    assert one("repair-stage", changed(pools={})).unchecked == ["repair-stage: 10.0.0.1: not seen"]


def test_latencies_are_judged_by_what_is_usual_and_only_above_what_hurts() -> None:
    for ms, wanted in ((23.9, "ok"), (24, "warning"), (79.9, "warning"), (80, "critical")):
        assert level("probe-slow", changed(probe_ms=ms)) == wanted
        for rule, kind in (("read-slow", "Read"), ("write-slow", "Write")):
            slow = Requests(dataclasses.replace(LATENCY, p99_ms=ms), 5, 5, 0)
            assert level(rule, changed(requests={**QUIET.requests, kind: slow})) == wanted
    quick = Baseline({("10.0.0.1", name): 1.0 for name in ("probe", "latency_p99/Read", "latency_p99/Write")})
    for ms, wanted in ((19.9, "ok"), (20, "critical")):
        slow = Requests(dataclasses.replace(LATENCY, p99_ms=ms), 5, 5, 0)
        look = snapshot(changed(probe_ms=ms, requests={"Read": slow, "Write": slow}))
        for rule in ("probe-slow", "read-slow", "write-slow"):
            assert check(look, baseline=quick, rules=select_rules([rule])).level == wanted


@pytest.mark.parametrize(("offset", "error", "wanted"), [
    (0.5, 0.0, "warning"), (-0.5, 0.0, "warning"), (0.59, 0.1, "ok"), (-0.61, 0.1, "warning"), (5.1, 0.1, "critical"),
    (4.9, 0.0, "warning"), (0.3, 2.0, "ok"),
])  # fmt: skip
def test_a_clock_differs_by_what_is_certain(offset: float, error: float, wanted: str) -> None:
    assert level("clock", changed(clock_offset_s=offset, clock_error_s=error)) == wanted
    assert one("clock", changed(clock_offset_s=None)).unchecked == ["clock: 10.0.0.1: not seen"]
    assert one("clock", changed(clock_error_s=None)).unchecked == ["clock: 10.0.0.1: not seen"]


@pytest.mark.parametrize(("hours", "wanted"), [(1.49, "ok"), (1.5, "warning"), (2.69, "warning"), (2.7, "critical")])
def test_hints_fill_a_window_of_three_hours_by_the_oldest(hours: float, wanted: str) -> None:
    oldest = START + timedelta(minutes=1) - timedelta(hours=hours)
    hints = [
        HintsFor("b", "10.0.0.2", 2, oldest),
        HintsFor("c", "10.0.0.3", 1, START),
        HintsFor("d", "10.0.0.4", 0, None),
    ]
    assert level("hint-window", changed(hints=hints)) == wanted
    (pending,) = one("hints-pending", changed(hints=hints)).findings
    assert (pending.value, pending.message) == (3.0, "2 files for 10.0.0.2; 1 file for 10.0.0.3; 0 files for 10.0.0.4")
    assert level("hints-pending", changed(hints=[])) == "ok"


def test_a_node_is_down_when_another_says_so_and_silent_when_nobody_hears_it() -> None:
    seen_down = changed(seen_by={"10.0.0.1": "UN", "10.0.0.2": "DN", "10.0.0.3": "UN"})
    assert level("node-down", seen_down) == "critical"
    assert one("node-down", seen_down).findings[0].message == "seen down by 10.0.0.2"
    assert level("node-down", changed(seen_by={"10.0.0.1": "DN", "10.0.0.2": "UN"})) == "ok", (
        "it does not see itself down"
    )
    assert level("views-disagree", seen_down) == "warning"
    assert level("views-disagree", changed(seen_by={"10.0.0.2": "UN", "10.0.0.3": "?N"})) == "ok"
    gone = {"cql": False, "jmx": False}
    assert level("node-silent", changed(**gone)) == "critical"
    assert level("node-silent", changed(**gone, seen_by={"10.0.0.2": "DN"})) == "ok", "that is node-down"
    assert level("node-silent", changed(**gone, seen_by={"10.0.0.2": "UJ"})) == "ok", "it joins"
    for half in ({"cql": False}, {"jmx": False}):
        assert level("node-silent", changed(**half)) == "ok"


def test_a_node_without_clients_counts_where_it_belongs_to_the_ring() -> None:
    assert level("native-transport", changed(native_transport=False)) == "critical"
    assert level("native-transport", changed(cql=False)) == "critical"
    assert level("native-transport", changed(native_transport=None)) == "ok"
    assert level("native-transport", changed(cql=False, seen_by={"10.0.0.2": "DN"})) == "ok"
    assert level("native-transport", changed(cql=False, seen_by={"10.0.0.2": "UJ"})) == "ok"


def test_schemas_and_releases_that_differ_are_counted() -> None:
    others = [changed(address=f"10.0.0.{n}", schema=schema, release=release)
              for n, (schema, release) in enumerate((("b", "4.1.10"), ("c", "4.0.19")), start=2)]  # fmt: skip
    for count, wanted in ((0, "ok"), (1, "warning"), (2, "critical")):
        for rule in ("schema-versions", "releases-differ"):
            assert level(rule, QUIET, *others[:count]) == wanted
    silent = changed(address="10.0.0.9", cql=False, jmx=False, schema="z")
    assert level("schema-versions", QUIET, silent) == "ok", "of a node that is away, being away is the news"
    for state in "JLM":
        assert level("ring-changing", changed(seen_by={"10.0.0.2": f"U{state}"})) == "warning"


@pytest.mark.parametrize(("days", "wanted"), [(6.99, "ok"), (7, "warning"), (9.99, "warning"), (10, "critical")])
def test_repairs_age_against_gc_grace(days: float, wanted: str) -> None:
    began = START + timedelta(minutes=1) - timedelta(days=days)
    for table in (TableRepair("survey", "t", 864_000, began, None), TableRepair("survey", "t", 864_000, START, began)):
        assert level("repair-age", QUIET, repairs=[table]) == wanted
    assert level("repair-age", QUIET, repairs=[TableRepair("survey", "t", 0, began, None)]) == "ok"
    assert one("repair-age", QUIET, repairs=None).unchecked == ["repair-age: cluster: not seen"]


def test_a_failed_repair_counts_until_a_later_one_of_its_tables_succeeds() -> None:
    failed = dataclasses.replace(REPAIR, failure="a node went down")
    later = START + timedelta(seconds=1)

    def wanted(*runs: RepairRun) -> str:
        return level("repair-failed", changed(repairs=list(runs)))

    assert wanted(REPAIR) == "ok"
    assert wanted(failed) == wanted(dataclasses.replace(REPAIR, status="FAILED")) == "warning"
    assert wanted(dataclasses.replace(failed, completed=False)) == "ok"
    assert wanted(dataclasses.replace(failed, keyspace="dropped")) == "ok"
    assert wanted(failed, dataclasses.replace(REPAIR, updated=later)) == "ok"
    assert wanted(failed, REPAIR) == "warning", "at the same time is not later"
    assert wanted(failed, dataclasses.replace(REPAIR, updated=later, tables=["t", "u"])) == "ok"
    assert (
        wanted(dataclasses.replace(failed, tables=["t", "u"]), dataclasses.replace(REPAIR, updated=later)) == "warning"
    )
    assert wanted(failed, dataclasses.replace(REPAIR, updated=None)) == "warning"
    assert wanted(failed, dataclasses.replace(failed, updated=later)) == "warning"


def test_findings_come_worst_first_and_the_worst_is_the_level() -> None:
    bad = changed(compactions_pending=20, commitlog_pending=100, heap=Heap(750, 1_000, 0, 0, 0))
    result = check(snapshot(bad, minutes=1), rules=select_rules(["heap", "compactions-pending", "commitlog-pending"]))
    assert [(f.level, f.rule) for f in result.findings] == [
        ("critical", "commitlog-pending"), ("warning", "compactions-pending"), ("warning", "heap"),
    ]  # fmt: skip
    assert result.level == "critical"
    finding = result.findings[1]
    assert finding == Finding("compactions-pending", "warning", "10.0.0.1", 20.0, 20, "20 tasks")


def test_other_limits_leave_the_other_rules_alone() -> None:
    rules = with_limits(select_rules(["heap", "clock"]), {"heap": (None, 60)})
    assert [(rule.warning, rule.critical) for rule in rules] == [(None, 60), (0.5, 5)]
    assert check(snapshot(changed(heap=Heap(600, 1_000, 0, 0, 0))), rules=rules).level == "critical"


def test_a_restart_between_two_snapshots_makes_counters_unknown() -> None:
    again = changed(started=START + timedelta(seconds=30), hints_written=1)
    reason = "unknown in the earlier snapshot, or restarted since"
    assert one("hints-written", again).unchecked == [f"hints-written: 10.0.0.1: {reason}"]
    assert one("hints-written", changed(hints_written=None)).unchecked == ["hints-written: 10.0.0.1: not seen"]
    unknown = changed(started=None, hints_written=6)
    assert level("hints-written", unknown) == "warning", "a start that was not seen is no restart"
    stranger = changed(address="10.0.0.7")
    assert one("hints-written", stranger).unchecked == [f"hints-written: 10.0.0.7: {reason}"]


def test_lengths_of_time_are_told_in_the_largest_unit_that_they_fill() -> None:
    texts = {59: "59 s", 60: "1.0 min", 3_599: "60.0 min", 3_600: "1.0 h", 86_399: "24.0 h", 86_400: "1.0 d"}
    assert {seconds: measures._ago(seconds) for seconds in texts} == texts


def measured(name: str, now: Node, earlier: Node | None = QUIET, **given: Any) -> list[measures.Measured]:
    """What a rule measures, where it looks."""
    before = None if earlier is None else snapshot(earlier)
    return list(RULES[name].measure(RuleInput(snapshot(now, minutes=1, **given), before, USUAL)))


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("hint-window", {"hints": None}), ("collecting", {"heap": None}), ("disk-used", {"disks": []}),
        ("compaction-room", {"disks": []}), ("compaction-room", {"tables": None}), ("partition-size", {"tables": None}),
        ("repair-failed", {"repairs": None}), ("repair-failed", {"tables": None}), ("read-slow", {"requests": {}}),
        ("probe-slow", {"probe_ms": None}), ("timeouts", {"requests": {}}), ("stage-pending", {"pools": {}}),
    ],
)  # fmt: skip
def test_a_node_that_does_not_tell_is_measured_as_unknown(name: str, fields: dict[str, Any]) -> None:
    assert [(each.where, each.value) for each in measured(name, changed(**fields))] == [("10.0.0.1", None)]


def test_what_is_unknown_says_why() -> None:
    assert measured("hint-window", QUIET, window_s=None)[0].value is None
    unusual = RuleInput(snapshot(QUIET, minutes=1), snapshot(QUIET), Baseline({}))
    assert [(each.value, each.text) for each in RULES["probe-slow"].measure(unusual)] == [(None, "too little recorded")]
    for table, words in (
        (TableRepair("survey", "t", 864_000, None, None), "its creation time is unknown"),
        (TableRepair("survey", "t", 864_000, START + timedelta(days=2), None), "its date 2026-03-03 is in the future"),
        (TableRepair("survey", "t", 864_000, None, START + timedelta(days=3)), "its date 2026-03-04 is in the future"),
    ):
        (found,) = measured("repair-age", QUIET, repairs=[table])
        assert (found.where, found.value, found.text) == ("survey.t", None, words)
    assert measured("repair-age", QUIET, repairs=None)[0] == measures.Measured("cluster", None)


def test_a_table_says_whether_it_was_ever_repaired_whole() -> None:
    long_ago = START - timedelta(days=5)
    for table, words in (
        (TableRepair("survey", "t", 864_000, long_ago, None), "created, never fully repaired, 5.0 d ago"),
        (TableRepair("survey", "t", 864_000, long_ago, START), "fully repaired 60 s ago"),
    ):
        (found,) = measured("repair-age", QUIET, repairs=[table])
        assert found.text.replace("1.0 min", "60 s").startswith(words)
    (found,) = measured("repair-age", QUIET, repairs=[TableRepair("survey", "t", 0, long_ago, None)])
    assert found.value == 0


def test_a_latency_below_what_hurts_is_told_as_it_is() -> None:
    (found,) = measured("probe-slow", changed(probe_ms=4.0))
    assert found.value == pytest.approx(0.5), "half of what is usual"
    (found,) = measures.slowdown("probe", lambda node: 16.0, 100)(RuleInput(snapshot(QUIET), None, USUAL))
    assert found.value == 1


def test_a_rule_that_cannot_be_judged_or_is_not_known_is_named() -> None:
    result = check(snapshot(QUIET), rules=select_rules(["timeouts", "probe-slow"]))
    assert result.unchecked == [
        "timeouts: needs two snapshots", "probe-slow: needs a recorded baseline (ops record, then --baseline)",
    ]  # fmt: skip
    with pytest.raises(InvalidInputError, match="unknown rule 'nonsense'; the rules are node-down"):
        select_rules(["nonsense"])
    with pytest.raises(InvalidInputError, match="--limit heap: unknown rule; the rules are timeouts"):
        with_limits(select_rules(["timeouts"]), {"heap": (1.0, 2.0)})


def test_shares_are_exact() -> None:
    room = changed(disks=[Disk("/a", 10**12, 2**20), Disk("/b", 10**12, 3 * 2**20)])
    (found,) = measured("compaction-room", room)
    assert found.value == 100 * TABLE.disk_mib / 4
    assert found.text.endswith(" and 4 MiB are free")
    (found,) = measured("collecting", changed(heap=Heap(500, 1_000, 9, 7_000, 5)))
    assert found.value == 10
    assert found.text == "6000 ms of 60 s went into collections"


def test_rates_are_of_the_time_between_two_snapshots_and_never_negative() -> None:
    more, less = changed(hints_written=6), changed(hints_written=4)
    for seconds, minutes in ((30, 0.5), (0.5, 0.5 / 60), (0, 0.001 / 60)):
        now, before = snapshot(more, minutes=seconds / 60), snapshot(QUIET)
        assert RuleInput(now, before, None).minutes == pytest.approx(minutes)
        (found,) = RULES["hints-written"].measure(RuleInput(now, before, None))
        assert found.value == pytest.approx(1 / minutes)
    (found,) = measured("hints-written", less)
    assert (found.value, found.text) == (0, "0 hints written in 60 s")


def test_a_silent_node_says_what_was_missed_of_its_own_clients() -> None:
    gone = changed(cql=False, jmx=False)
    missed = [
        Unobserved(address, what, f"{what} of {address}")
        for address in (gone.address, "10.0.0.2")
        for what in ("cql", "jmx")
    ]
    now = dataclasses.replace(snapshot(gone), not_seen=missed)
    (found,) = RULES["node-silent"].measure(RuleInput(now, None, None))
    assert found.text == "cql of 10.0.0.1"


def test_figures_of_a_node() -> None:
    node = changed(pools={"A": Pool(0, 3, 0, 9), "B": Pool(0, 5, 0, 9), "C": Pool(0, 7, 0, 9)})
    assert measures.pool_pending("A", "B")(node) == 5
    assert measures.pool_pending("A", "B")(changed(pools={})) is None
    assert measures.requests(lambda each: each.timeouts)(QUIET) == 10
    assert measures.requests(lambda each: each.timeouts)(changed(requests={})) is None
    assert measures.p99("Read")(QUIET) == LATENCY.p99_ms
    assert measures.p99("Scan")(QUIET) is None
    assert measures.anti_entropy(node) == 0
    assert measures.anti_entropy(changed(pools={"AntiEntropyStage": Pool(0, 4, 0, 9)})) == 4
    assert measures.anti_entropy(changed(pools={})) is None
