"""Observing a cluster: what parsing and rules make of answers, without a cluster."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pty
import subprocess
import sys
import termios
import threading
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from conftest import Run
from support_leaks import unclosed

import chronotile as ct
from chronotile.errors import ArchiveNotFoundError, InvalidInputError, UnavailableError
from chronotile_tools import ops
from chronotile_tools.cli.live import ticks
from chronotile_tools.ops import observing, reading_beans, reading_cql, recording, report
from chronotile_tools.ops.access import Host, read_beans, read_credentials
from chronotile_tools.ops.exporting import Exporter, dashboard
from chronotile_tools.ops.metrics import METRICS, prometheus
from chronotile_tools.ops.rules import RULES, Baseline, Result, check, select_rules, with_limits
from chronotile_tools.ops.screen import screen
from chronotile_tools.ops.state import (
    ClusterSettings,
    HintsFor,
    Latency,
    Node,
    Pool,
    RepairRun,
    Requests,
    Snapshot,
    Table,
    TableRepair,
)

START = datetime(2026, 3, 1, tzinfo=UTC)
HOST = Host("10.0.0.1", "10.0.0.1")


def node(address: str = "10.0.0.1", **fields: object) -> Node:
    return Node(address, address, **fields)  # type: ignore[arg-type]


# ---------------------------------------------------------------------- reaching a cluster


@pytest.mark.parametrize("point", ["", ":9042", "host:", "host:abc", "host:70000"])
def test_what_is_no_contact_point_is_refused(point: str) -> None:
    with pytest.raises(InvalidInputError, match="contact point"):
        ops.Access([point])


def test_contact_points_share_one_port() -> None:
    assert ops.Access(["10.0.0.1:9043", "node2:9043"]).port == 9043
    assert ops.Access(["::1", "[fe80::1]"]).contact_points == ["::1", "fe80::1"]
    with pytest.raises(InvalidInputError, match="one port"):
        ops.Access(["a:9042", "b:9043"])


def test_a_template_without_host_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="host"):
        ops.CommandRunner("nodetool")
    with pytest.raises(InvalidInputError, match="host"):
        ops.JolokiaRunner("http://10.0.0.1:8778/jolokia")
    with pytest.raises(InvalidInputError, match="URL"):
        ops.JolokiaRunner("{host}:8778")


def test_a_command_gets_the_host_and_its_failure_is_told() -> None:
    runner = ops.CommandRunner("echo {host}", shell="env WHERE={host}")
    assert runner.nodetool(HOST, "info", "-T") == "10.0.0.1 info -T\n"
    assert runner.shell(HOST, "printenv", "WHERE") == "10.0.0.1\n"
    with pytest.raises(UnavailableError, match="returned no beans"):
        ops.CommandRunner("echo {host} {").beans(HOST)
    with pytest.raises(UnavailableError, match="ended with 3: no such host 10"):
        ops.CommandRunner("sh -c 'echo no such host {host} >&2; exit 3'").nodetool(HOST, "info")
    with pytest.raises(UnavailableError, match="no-such-program"):
        ops.CommandRunner("no-such-program {host}").nodetool(HOST, "info")
    with pytest.raises(UnavailableError, match=r"timed out after 0\.1 s"):
        ops.CommandRunner("sh -c 'sleep 20' {host}").nodetool(HOST, "info", timeout_s=0.1)


def test_a_password_comes_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHRONOTILE_CASSANDRA_USER", raising=False)
    monkeypatch.delenv("CHRONOTILE_CASSANDRA_PASSWORD", raising=False)
    assert read_credentials(None, None) is None
    with pytest.raises(InvalidInputError, match="no password for user ann"):
        read_credentials("ann", None)
    (tmp_path / "password").write_text("from a file\n")
    assert read_credentials("ann", str(tmp_path / "password")) == ("ann", "from a file")
    with pytest.raises(InvalidInputError, match="absent"):
        read_credentials("ann", str(tmp_path / "absent"))
    monkeypatch.setenv("CHRONOTILE_CASSANDRA_USER", "bob")
    monkeypatch.setenv("CHRONOTILE_CASSANDRA_PASSWORD", "secret")
    assert read_credentials(None, None) == ("bob", "secret")


def test_a_cluster_that_does_not_answer_is_refused_with_the_reason() -> None:
    with pytest.raises(UnavailableError, match=r"no node accepts clients at 127\.0\.0\.1:1\b"):
        ops.observe(ops.Access(["127.0.0.1:1"], timeout_s=1))


def test_the_command_refuses_what_does_not_go_together(chronotile: Run) -> None:
    for arguments, words in [
        (["status"], "--lab NAME"),
        (["status", "h", "--lab", "x"], "not both"),
        (["status", "h", "--nodetool", "ssh {host} nodetool", "--jolokia", "http://{host}/"], "not both"),
        (["status", "h", "--cert", "x"], "--ca"),
        (["status", "h", "--shell", "ssh {host}"], "--nodetool"),
        (["status", "h", "--ca", "/absent"], "--ca"),
    ]:
        done = chronotile("ops", *arguments)
        assert (done.returncode, words in done.stderr) == (2, True), done.stderr
    assert chronotile("ops", "status", "127.0.0.1:1").returncode == 8
    assert chronotile("ops", "status", "--lab", "no_such_lab").returncode == 3


# ---------------------------------------------------------------------- reading answers


def test_beans_are_read_below_a_warning_and_named_alike() -> None:
    text = 'WARN: old\n{"beans": [{"name": "a.b:type=X,name=Y", "Value": 7}]}'
    assert read_beans(text, HOST) == {"a.b:name=Y,type=X": {"name": "a.b:type=X,name=Y", "Value": 7}}
    with pytest.raises(UnavailableError, match="returned no beans:"):
        read_beans('{"beans": 3}', HOST)


def test_views_of_the_ring_are_the_same_as_java_prints_them_and_as_json() -> None:
    name = "org.apache.cassandra.db:type=StorageService"
    printed = {
        "EndpointToHostId": "{10.0.0.1=aa, 10.0.0.2=bb, 10.0.0.3=cc}",
        "LiveNodes": "[10.0.0.1, 10.0.0.3]",
        "UnreachableNodes": "[10.0.0.2, 10.0.0.9]",
        "LeavingNodes": "[10.0.0.3]",
        "JoiningNodes": "[]",
    }
    plain = {
        "EndpointToHostId": {"10.0.0.1": "aa", "10.0.0.2": "bb", "10.0.0.3": "cc"},
        "LiveNodes": ["10.0.0.1", "10.0.0.3"],
        "UnreachableNodes": ["10.0.0.2", "10.0.0.9"],
        "LeavingNodes": ["10.0.0.3"],
        "JoiningNodes": [],
    }
    # The last one left: nodes go on telling that they cannot reach it.
    expected = {"10.0.0.1": "UN", "10.0.0.2": "DN", "10.0.0.3": "UL"}
    assert reading_beans.seen({name: printed}) == reading_beans.seen({name: plain}) == expected


def test_beans_of_something_else_are_told_not_guessed() -> None:
    fields, missing = reading_beans.node_fields({"java.lang:type=OperatingSystem": {"ProcessCpuLoad": 0.5}})
    assert fields == {"cpu_share": 0.5}
    assert any("StorageService" in reason for _, reason in missing)


def test_a_node_that_one_sees_down_is_down_and_disagreed_about() -> None:
    seen = node(seen_by={"10.0.0.1": "UN", "10.0.0.2": "UN", "10.0.0.3": "DN"}, cql=True, mode="NORMAL")
    assert (seen.status, seen.agreed) == ("DN", False)
    assert node(seen_by={"10.0.0.2": "UL"}).status == "UL"
    assert node(seen_by={"10.0.0.2": "?N"}).status == "?N"
    assert node(seen_by={"10.0.0.2": "?N"}, cql=True).status == "UN"


@pytest.mark.parametrize(
    ("replication", "copies"),
    [
        ("{'class': 'org.apache.cassandra.locator.SimpleStrategy', 'replication_factor': '3'}", 3),
        ("{'class': 'org.apache.cassandra.locator.NetworkTopologyStrategy', 'dc1': '3', 'dc''2': '2'}", 5),
        ("{'class': 'org.apache.cassandra.locator.LocalStrategy'}", 0),
        ("{'class': 'NetworkTopologyStrategy', 'dc1': '3/1'}", 3),
        ("{'class': 'NetworkTopologyStrategy', 'dc1': '3', 'note': ''}", 3),
    ],
)
def test_copies_are_counted_over_all_data_centres(replication: str, copies: int) -> None:
    assert reading_cql.replicas(replication) == copies


def test_a_collection_that_is_none_is_told_as_any_other_value() -> None:
    with pytest.raises(ValueError, match="is not a collection"):
        reading_cql.replicas("{'class'")


V1 = "13814000-1dd2-11b2-8000-000000000000"
"""An id whose time is 1970."""
HASHED = "f00dfeed-dead-8eef-9234-567812345678"
"""As archives give their tables; its bits are no time."""
MADE = datetime(2026, 3, 1, 12, tzinfo=UTC)


def v1_of(when: datetime) -> str:
    """An id as Cassandra chooses it at a time."""
    ticks = int((when - datetime(1582, 10, 15, tzinfo=UTC)).total_seconds() * 10_000_000)
    return str(uuid.UUID(fields=(ticks & 0xFFFFFFFF, ticks >> 32 & 0xFFFF, ticks >> 48 & 0xFFF | 0x1000, 0x80, 0, 1)))


@pytest.mark.parametrize(
    ("table_id", "written", "made"),
    [
        # The row of a table that was altered is younger than the table.
        (v1_of(MADE), MADE + timedelta(days=9), MADE),
        (v1_of(MADE), None, MADE),
        (V1, MADE, MADE),
        (v1_of(MADE + timedelta(days=9)), MADE, MADE),
        (HASHED, MADE, MADE),
        (HASHED, None, None),
        ("5a1c395e-b41f-4fe5-9f22-ba0be0483c18", MADE, MADE),
    ],
)
def test_when_a_table_was_made(table_id: str, written: datetime | None, made: datetime | None) -> None:
    written_us = "null" if written is None else str(int(written.timestamp() * 1e6))
    assert reading_cql.created_of(table_id, written_us) == made


@pytest.mark.parametrize(
    ("text", "seconds"), [("3h", 10800), ("10800000ms", 10800), ("2d", 172_800), ("soon", None), ("", None)]
)
def test_durations_of_settings_are_read(text: str, seconds: float | None) -> None:
    assert reading_cql.duration_s(text) == seconds


def test_disks_are_read_from_df() -> None:
    text = (
        "Filesystem 1024-blocks Used Available Capacity Mounted on\n"
        "/dev/sda1 1000 300 500 38% /\n"
        "/dev/sdb1 2000 0 2000 0% /data\n"
    )
    first, second = observing.read_df(text, ["/var/lib/a", "/data/b"])
    assert (first.path, first.total_bytes, first.free_bytes) == ("/var/lib/a", 800 * 1024, 500 * 1024)
    assert (round(first.used_share, 3), second.used_share) == (0.375, 0.0)


def test_files_of_hints_tell_for_whom_and_since_when() -> None:
    host, other = "ed3b3129-8a84-4f9d-9b89-305e2b707ed5", "00000000-0000-4000-8000-000000000000"
    names = [f"{host}-1767225600000-2.hints", f"{host}-1767225660000-2.hints", f"{host}-1767225600000-2.crc32"]
    gone, known = observing.read_hint_files("\n".join([*names, f"{other}-1000-2.hints", "x"]), {host: "10.0.0.2"})
    assert (known.address, known.files, known.oldest) == ("10.0.0.2", 2, datetime(2026, 1, 1, tzinfo=UTC))
    assert (gone.host_id, gone.address, gone.files) == (other, "a former node", 1)
    assert observing.read_hint_files("", {}) == []


# ---------------------------------------------------------------------- what was repaired


# ---------------------------------------------------------------------- rules


def snapshot(*nodes: Node, at_s: float = 0, **fields: object) -> Snapshot:
    known: dict[str, object] = {"repairs": [], "settings": ClusterSettings(10_800.0), "not_seen": []}
    return Snapshot(START + timedelta(seconds=at_s), "plant", list(nodes), **(known | fields))  # type: ignore[arg-type]


def found(result: Result) -> list[tuple[str, str, str]]:
    return [(finding.level, finding.rule, finding.where) for finding in result.findings]


def one(name: str, now: Snapshot, before: Snapshot | None = None, baseline: Baseline | None = None) -> Result:
    return check(now, before, baseline=baseline, rules=select_rules([name]))


def requests(**counts: int) -> dict[str, Requests]:
    latency = Latency(0, 0, 0, 0)
    return {"Read": Requests(latency, counts.get("timeouts", 0), counts.get("unavailables", 0), 0)}


def test_every_rule_says_what_it_means_and_what_to_do() -> None:
    for rule in RULES.values():
        assert rule.means.endswith(".")
        assert rule.do.endswith(".")
        assert rule.warning is not None or rule.critical is not None
        assert rule.warning is None or rule.critical is None or rule.warning < rule.critical


def test_all_rules_run_unless_some_are_named() -> None:
    assert {rule.name for rule in select_rules()} == set(RULES)
    assert [rule.name for rule in select_rules(["clock", "heap", "clock"])] == ["clock", "heap"]
    with pytest.raises(InvalidInputError, match="unknown rule 'colour'"):
        select_rules(["colour"])


def test_there_is_no_rule_that_is_not_provoked_on_real_nodes() -> None:
    tests = [Path(__file__).parent / f"test_ops{name}_cluster.py" for name in ("", "_rules")]
    provoked = "".join(path.read_text() for path in tests)
    assert [rule for rule in RULES if f'"{rule}"' not in provoked] == []


def test_a_node_that_joins_is_neither_silent_nor_refusing_clients() -> None:
    joining = node(seen_by={"10.0.0.2": "UJ"})
    assert one("node-silent", snapshot(joining)).findings == []
    assert one("native-transport", snapshot(dataclasses.replace(joining, jmx=True))).findings == []
    assert found(one("ring-changing", snapshot(joining))) == [("warning", "ring-changing", "10.0.0.1")]
    assert found(one("node-silent", snapshot(node(seen_by={"10.0.0.2": "UN"}))))[0][0] == "critical"


def test_limits_are_those_given_and_must_name_a_rule_that_runs() -> None:
    (rule,) = with_limits(select_rules(["disk-used"]), {"disk-used": (10, None)})
    assert (rule.warning, rule.critical) == (10, None)
    with pytest.raises(InvalidInputError, match="unknown rule"):
        with_limits(select_rules(["disk-used"]), {"heap": (1, 2)})


def test_what_was_not_seen_is_unchecked_and_no_finding() -> None:
    result = check(snapshot(node(cql=True)))
    assert result.findings == []
    assert "compactions-pending: 10.0.0.1: not seen" in result.unchecked
    assert "timeouts: needs two snapshots" in result.unchecked
    assert any(line.startswith("probe-slow: needs a recorded baseline") for line in result.unchecked)


def test_counters_are_rates_between_two_snapshots_and_a_restart_is_no_burst() -> None:
    before = snapshot(node(jmx=True, requests=requests(timeouts=5)))
    after = snapshot(node(jmx=True, requests=requests(timeouts=7)), at_s=30)
    (finding,) = one("timeouts", after, before).findings
    assert (finding.level, finding.value) == ("warning", pytest.approx(4.0))
    assert one("timeouts", snapshot(node(jmx=True, requests=requests(timeouts=5)), at_s=30), before).findings == []
    restarted = node(jmx=True, requests=requests(timeouts=900), started=START)
    old = snapshot(node(jmx=True, requests=requests(timeouts=5), started=START - timedelta(hours=1)))
    result = one("timeouts", snapshot(restarted, at_s=30), old)
    unknown = "timeouts: 10.0.0.1: unknown in the earlier snapshot, or restarted since"
    assert (result.findings, result.unchecked) == ([], [unknown])


def test_slowness_is_relative_to_what_is_usual_and_not_told_below_what_hurts() -> None:
    usual = Baseline({("10.0.0.1", "probe"): 8.0})
    assert found(one("probe-slow", snapshot(node(cql=True, probe_ms=81)), baseline=usual))[0][0] == "critical"
    assert found(one("probe-slow", snapshot(node(cql=True, probe_ms=40)), baseline=usual))[0][0] == "warning"
    assert one("probe-slow", snapshot(node(cql=True, probe_ms=12)), baseline=usual).findings == []
    quick = Baseline({("10.0.0.1", "probe"): 0.2})
    assert one("probe-slow", snapshot(node(cql=True, probe_ms=5)), baseline=quick).findings == []
    unknown = one("probe-slow", snapshot(node("10.0.0.9", cql=True, probe_ms=900)), baseline=usual)
    assert unknown.unchecked == ["probe-slow: 10.0.0.9: too little recorded"]


def test_a_table_never_repaired_counts_from_when_it_was_made() -> None:
    week = TableRepair("app", "t", 864_000, START - timedelta(days=8), None)
    fresh = TableRepair("app", "u", 864_000, START - timedelta(days=50), START - timedelta(days=1))
    result = one("repair-age", snapshot(node(cql=True), repairs=[week, fresh]))
    assert found(result) == [("warning", "repair-age", "app.t")]
    assert "repair: app.t was created and never fully repaired 8.0 d ago" in screen(
        snapshot(node(cql=True), repairs=[fresh, week, TableRepair("app", "v", 864_000, None, None)])
    )
    assert one("repair-age", snapshot(node(cql=True), repairs=None)).unchecked == ["repair-age: cluster: not seen"]


def test_a_repair_whose_time_is_unknown_or_to_come_is_told_as_unchecked() -> None:
    unknown = TableRepair("app", "t", 864_000, None, None)
    to_come = TableRepair("app", "u", 864_000, START, START + timedelta(days=500))
    # Clocks that are a little apart.
    ahead = TableRepair("app", "v", 864_000, START + timedelta(minutes=5), None)
    now = snapshot(node(cql=True), repairs=[unknown, to_come, ahead])
    result = one("repair-age", now)
    assert result.findings == []
    assert result.unchecked == [
        "repair-age: app.t: its creation time is unknown",
        f"repair-age: app.u: its date {START + timedelta(days=500):%Y-%m-%d} is in the future",
    ]
    assert ahead.age_s(START) == 0
    assert "app.v was created and never fully repaired 0.0 d ago" in screen(now)
    assert "repair:" not in screen(snapshot(node(cql=True), repairs=[unknown, to_come]))


def test_a_failed_repair_counts_until_a_later_one_does_its_work_or_its_keyspace_is_gone() -> None:
    def repair(tables: list[str], failure: str, at_s: int, keyspace: str = "app") -> RepairRun:
        return RepairRun(keyspace, tables, "completed", True, failure, START + timedelta(seconds=at_s))

    def failed(*repairs: RepairRun) -> int:
        table = Table("app", "a", 0, 0, 0, 0, None, None)
        return len(one("repair-failed", snapshot(node(cql=True, repairs=list(repairs), tables=[table]))).findings)

    broken = repair(["a"], "a replica is down", 10)
    assert failed(broken) == 1
    assert failed(repair(["a", "b"], "", 5), broken) == 1
    assert failed(repair(["b"], "", 20), broken) == 1
    assert failed(repair(["a", "b"], "", 20), broken) == 0
    assert failed(repair([], "no range", 10), repair(["b"], "", 20)) == 0
    assert failed(repair(["a"], "a replica is down", 10, keyspace="dropped")) == 0


def test_clocks_within_a_round_trip_are_in_step() -> None:
    assert one("clock", snapshot(node(cql=True, clock_offset_s=0.7, clock_error_s=0.4))).findings == []
    far = one("clock", snapshot(node(cql=True, clock_offset_s=-6.0, clock_error_s=0.4)))
    assert found(far) == [("critical", "clock", "10.0.0.1")]


def test_hints_that_fill_the_window_are_told_before_it_ends() -> None:
    hints = [HintsFor("id", "10.0.0.2", 3, START - timedelta(hours=2))]
    assert found(one("hint-window", snapshot(node(cql=True, hints=hints))))[0][0] == "warning"
    assert found(one("hint-window", snapshot(node(cql=True, hints=hints), at_s=3600)))[0][0] == "critical"
    assert one("hint-window", snapshot(node(cql=True, hints=[]))).findings == []


def test_explaining_looks_at_nothing(chronotile: Run) -> None:
    done = chronotile("ops", "check", "--explain", "--limit", "disk-used=50,60")
    assert done.returncode == 0
    assert "disk-used: warning from 50 %, critical from 60 %" in done.stdout
    assert "clock: warning from 0.5 s, critical from 5 s" in done.stdout
    assert chronotile("ops", "check", "--explain", "--rule", "colour").returncode == 2
    assert "RULE=WARNING" in chronotile("ops", "check", "--explain", "--limit", "disk-used=a").stderr


# ---------------------------------------------------------------------- metrics


def test_prometheus_text_is_read_back_as_it_was_written() -> None:
    odd = node('a"b\\c', cql=True, probe_ms=1.5, dropped={"READ_REQ": 2})
    text = prometheus(snapshot(odd))
    assert "# TYPE chronotile_ops_dropped_total counter\n" in text
    assert 'chronotile_ops_probe_milliseconds{cluster="plant",node="a\\"b\\\\c"} 1.5\n' in text
    back = recording.read_prometheus(text + "nan{} NaN\nbad line\nother 3 1700000000\n")
    assert back["other"] == 3
    assert back['chronotile_ops_dropped_total/plant/a\\"b\\\\c/READ_REQ'] == 2
    assert "nan" not in back


def test_what_was_recorded_is_the_baseline_of_its_cluster_alone(tmp_path: Path) -> None:
    path = tmp_path / "ops.db"
    with recording.Recorder(path) as recorder:
        for minute in range(12):
            now = snapshot(node(cql=True, probe_ms=float(minute)), at_s=60 * minute)
            assert recorder.write(now, {"client": {"wait/p99": 2.0}}) > 1
    end = START + timedelta(hours=1)
    baseline = recording.read_baseline(path, "plant", end)
    assert baseline.median("10.0.0.1", "probe") == pytest.approx(5.5, abs=0.6)
    assert baseline.median("client", "wait/p99") == 2.0
    assert baseline.median("10.0.0.9", "probe") is None
    assert recording.read_baseline(path, "plant", START + timedelta(minutes=5)).medians == {}
    with pytest.raises(InvalidInputError, match="no metrics of cluster other"):
        recording.read_baseline(path, "other", end)
    with pytest.raises(ArchiveNotFoundError):
        recording.read_baseline(tmp_path / "absent.db", "plant", end)


def test_metrics_are_scraped_from_where_they_are_served_only() -> None:
    with pytest.raises(InvalidInputError, match="is not a metrics URL"):
        recording.scrape("file:///etc/passwd")
    with pytest.raises(UnavailableError):
        recording.scrape("http://127.0.0.1:1/metrics", timeout_s=1)


# ---------------------------------------------------------------------- serving, drawing, showing


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Half an hour of two nodes, of which the second is down for ten minutes in the middle."""
    path = tmp_path / "ops.db"
    with recording.Recorder(path) as recorder:
        for minute in range(30):
            seen = {"10.0.0.1": "UN"} if not 10 <= minute < 20 else {"10.0.0.1": "DN"}
            first = node(cql=True, probe_ms=4.0 + minute % 3, requests=requests(timeouts=minute))
            second = node("10.0.0.2", seen_by=seen, cql=not 10 <= minute < 20, probe_ms=5.0)
            recorder.write(snapshot(first, second, at_s=60 * minute))
    return path


def test_a_report_draws_what_was_recorded_and_shades_what_was_down(recorded: Path) -> None:
    page = report.html(recorded, None, START, START + timedelta(minutes=30))
    assert page.count("<section>") == page.count("<svg") + 1
    assert "Reads rejected for lack of replicas" in page.split("Zero throughout: ")[1].split("<p>")[0]
    assert "Read of one row by the recorder" in page
    assert "Reads timed out" in page
    assert 'class="down"' in page
    assert "<td>1 / 1</td>" in page  # one more time-out each minute
    assert "No data for: " in page
    assert "Disk used" in page.split("No data for: ")[1]
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    calm = report.html(recorded, "plant", START, START + timedelta(minutes=9))
    assert 'class="down"' not in calm


def test_a_report_of_nothing_is_refused(recorded: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no data for cluster plant"):
        report.html(recorded, None, START + timedelta(days=1), START + timedelta(days=2))
    with pytest.raises(InvalidInputError, match=r"no cluster other in .*; it has plant"):
        report.html(recorded, "other", START, START + timedelta(days=2))
    with pytest.raises(InvalidInputError, match="empty"):
        report.html(recorded, None, START, START)
    with recording.Recorder(recorded) as recorder:
        recorder.write(dataclasses.replace(snapshot(node()), cluster="second"))
    with pytest.raises(InvalidInputError, match=r"several clusters in .*, select one of: plant, second"):
        report.html(recorded, None, START, START + timedelta(days=2))
    ct.open(tmp_path / "none.db").close()
    with pytest.raises(InvalidInputError):
        report.html(tmp_path / "none.db", None, START, START + timedelta(days=2))


def test_a_dashboard_has_a_panel_for_each_metric_that_is_exported() -> None:
    panels = dashboard()["panels"]
    assert len(panels) == len(METRICS)
    everything = node(
        cql=True, load_bytes=1.0, dropped={"READ_REQ": 1}, requests=requests(), pools={"ReadStage": Pool(0, 0, 0, 0)},
        tables=[Table("app", "t", 1, 2, 3.0, 4.0, None, None)],
    )  # fmt: skip
    names = {line.split("{")[0] for line in prometheus(snapshot(everything)).splitlines() if not line.startswith("#")}
    asked = {panel["targets"][0]["expr"].removeprefix("rate(").split("{")[0] for panel in panels}
    assert names - asked == {"chronotile_ops_schema_versions"}
    for panel, metric in zip(panels, METRICS, strict=True):
        for labels, _ in metric.read(everything):
            assert all(f"{{{{{label}}}}}" in panel["targets"][0]["legendFormat"] for label in labels)
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels)


@pytest.mark.parametrize(
    "ask",
    [recording.scrape, lambda url: ops.JolokiaRunner(f"{url}?{{host}}").beans(HOST)],
    ids=["metrics", "jolokia"],
)
def test_a_refused_request_leaves_no_connection_open(ask: Callable[[str], object]) -> None:
    exporter = Exporter(lambda: snapshot(node()), 0, age_s=0)
    worker = threading.Thread(target=exporter.serve)
    worker.start()

    def refused() -> None:
        with pytest.raises(UnavailableError, match=r"answered (404|501)") as caught:
            ask(exporter.url.replace("metrics", "other"))
        assert caught.value.kind == "no-connection"

    try:
        assert unclosed(refused) == []
    finally:
        exporter.stop()
        worker.join()


def test_metrics_are_served_and_a_cluster_that_is_gone_is_not_hidden() -> None:
    state: list[Snapshot] = [snapshot(node(cql=True, probe_ms=1.5))]

    def observe() -> Snapshot:
        if not state:
            raise UnavailableError("no node answers", kind="no-node")
        return state[0]

    exporter = Exporter(observe, 0, age_s=0)
    worker = threading.Thread(target=exporter.serve)
    worker.start()
    try:
        assert recording.scrape(exporter.url)["chronotile_ops_probe_milliseconds/plant/10.0.0.1"] == 1.5
        with pytest.raises(UnavailableError, match="404"):
            recording.scrape(exporter.url.replace("metrics", "other"))
        state.clear()
        with pytest.raises(UnavailableError, match="503"):
            recording.scrape(exporter.url)
    finally:
        exporter.stop()
        worker.join()


def test_ticks_do_not_drift_and_missed_ones_are_left_out() -> None:
    waited: list[float] = []
    now = [0.0]

    def wait(seconds: float) -> bool:
        waited.append(seconds)
        now[0] += seconds
        return len(waited) < 4

    clock = pytest.MonkeyPatch()
    clock.setattr("chronotile_tools.cli.live.time.monotonic", lambda: now[0])
    with clock.context():
        for number in ticks(10, None, wait):
            now[0] += (3, 25, 0, 0)[number]
    clock.undo()
    assert waited == [7, 5, 10, 10]


def test_watching_ends_with_q_and_leaves_the_terminal_as_it_was() -> None:
    master, slave = pty.openpty()
    before = termios.tcgetattr(slave)
    command = [sys.executable, "-m", "chronotile", "ops", "watch", "127.0.0.1:1", "--every", "60"]
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave)
    seen = b""
    while b"no node of the cluster answers" not in seen:
        seen += os.read(master, 4096)
    os.write(master, b"q")
    assert process.wait(timeout=60) == 0
    os.set_blocking(master, False)
    with contextlib.suppress(BlockingIOError):
        seen += os.read(master, 4096)
    assert termios.tcgetattr(slave) == before
    assert seen.startswith(b"\x1b[?1049h")
    assert seen.endswith(b"\x1b[?1049l")
    os.close(master)
    os.close(slave)


def test_watching_in_a_pipe_prints_screens_below_each_other(chronotile: Run) -> None:
    done = chronotile("ops", "watch", "127.0.0.1:1", "--every", "0.1", "--count", "2")
    assert (done.returncode, done.stdout.count("no node of the cluster answers")) == (0, 2)
    assert "\x1b" not in done.stdout


def test_recording_goes_on_when_nothing_answers(chronotile: Run, tmp_path: Path) -> None:
    path = tmp_path / "ops.db"
    done = chronotile("ops", "record", "127.0.0.1:1", "--to", path, "--every", "0.1", "--count", "2")
    assert (done.returncode, done.stderr.count("nothing recorded")) == (0, 2)
    assert chronotile("ops", "report", path).returncode == 2
    assert "NAME=URL" in chronotile("ops", "record", "h", "--to", path, "--scrape", "x").stderr
    assert chronotile("ops", "report", tmp_path / "absent.db").returncode == 3
    assert "ISO 8601" in chronotile("ops", "report", path, "--start", "soon").stderr


# ---------------------------------------------------------------------- latencies over CQL


def latencies(count: int, p50: float, p99: float, most: float) -> dict[str, str]:
    return {"count": str(count), "p50th_ms": str(p50), "p99th_ms": str(p99), "max_ms": str(most)}


OWN, USERS = ("system", "local"), ("field", "rows")


@pytest.mark.parametrize(
    ("local_reads", "unit_ms"),
    [
        # As nodes of 5.0 and 4.1 wrote it while nodetool told 149 and 2,759 microseconds of the coordinator's reads.
        ({OWN: latencies(21, 0.006, 0.183, 0.183), USERS: latencies(1500, 0.0, 0.0, 0.001)}, 1000.0),
        ({OWN: latencies(21, 0.003, 0.106, 0.106)}, 1000.0),
        ({OWN: latencies(12, 0.0, 0.0, 0.0)}, 1000.0),
        ({OWN: latencies(12, 0.06, 0.3, 3.0), USERS: latencies(1500, 0.04, 0.1, 0.2)}, 1.0),
        # Idle tables say nothing.
        ({OWN: latencies(12, 0.06, 0.3, 3.0), USERS: latencies(1500, 0.0, 0.0, 0.0)}, 1.0),
        ({OWN: latencies(4, 0.06, 0.3, 3.0), USERS: latencies(0, 0.0, 0.0, 0.0)}, None),
        ({}, None),
    ],
)
def test_the_unit_of_latencies_is_told_by_what_no_node_can_do(
    local_reads: dict[tuple[str, str], dict[str, str]], unit_ms: float | None
) -> None:
    assert reading_cql.latency_unit_ms(local_reads) == unit_ms


def test_a_latency_that_is_not_known_is_no_nought() -> None:
    latency = reading_cql._latency(latencies(3000, 0.0, 0.002, 0.008), 1000.0)
    assert latency is not None
    assert (latency.p99_ms, latency.max_ms) == (2.0, 8.0)
    assert reading_cql._latency(latencies(3000, 0.0, 0.0, 0.0), 1.0) is None
    assert reading_cql._latency(latencies(3000, 1.0, 2.0, 3.0), None) is None
    unknown = node(cql=True, coordinator_latency={"read": Latency(3, 0.0, 0.0, 0.0)}, requests=requests())
    known = node("10.0.0.2", cql=True, coordinator_latency={"read": Latency(3, 1.0, 2.0, 3.0)})
    shown = screen(snapshot(unknown, known))
    assert ": 2 nodes, " in shown
    assert ": 1 node, " in screen(snapshot(known))
    assert "0.0 ms" not in shown
    assert "2.0 ms" in shown
