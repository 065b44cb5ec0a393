"""What an operator meets: ports that are not CQL, slow nodes, small screens, journals, reports of another day."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pty
import re
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from fcntl import ioctl
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from click.testing import CliRunner
from conftest import Run
from support_nodes import MemoryNodes, RecordingActuator

from chronotile.errors import ChronotileError, InvalidInputError, UnavailableError
from chronotile_tools import ops
from chronotile_tools.cli import ops as cli
from chronotile_tools.cli import ops_procedures as ops_procedures  # adds its commands
from chronotile_tools.ops import PendingRequests, recording, report
from chronotile_tools.ops.procedures import Context, Finding, Procedure, engine, plan
from chronotile_tools.ops.procedures.journal import Journal
from chronotile_tools.ops.procedures.restarts import RollingRestart
from chronotile_tools.ops.screen import screen, watched
from chronotile_tools.ops.state import ClusterSettings, Disk, Heap, Node, Snapshot, Unobserved

START = datetime(2026, 3, 1, tzinfo=UTC)


def node(address: str = "10.0.0.1", **fields: object) -> Node:
    return Node(address, address, **fields)  # type: ignore[arg-type]


def snapshot(*nodes: Node, at_s: float = 0, **fields: object) -> Snapshot:
    known: dict[str, object] = {"repairs": [], "settings": ClusterSettings(10_800.0), "not_seen": []}
    return Snapshot(START + timedelta(seconds=at_s), "plant", list(nodes), **(known | fields))  # type: ignore[arg-type]


# ---------------------------------------------------------------------- ports that are not CQL


@contextlib.contextmanager
def port(answer: Callable[[socket.socket], object]) -> Iterator[int]:
    """A port on this machine at which `answer` is called for each connection."""
    server = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()

    def serve() -> None:
        while not ended.is_set():
            with contextlib.suppress(OSError), server.accept()[0] as taken:
                answer(taken)

    worker = threading.Thread(target=serve, daemon=True)
    worker.start()
    try:
        yield server.getsockname()[1]
    finally:
        ended.set()
        # A listener that is waited on is only woken by a client.
        with contextlib.suppress(OSError):
            socket.create_connection(server.getsockname(), timeout=1).close()
        server.close()
        worker.join(10)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda taken: taken.sendall(b"SSH-2.0-OpenSSH_9.2\r\n"), "does not speak CQL: it answers b'SSH-2.0-O'"),
        (
            lambda taken: (taken.recv(9), taken.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")),
            "does not speak CQL: it",
        ),
        (lambda taken: None, "does not speak CQL: it closes the connection"),
        (lambda taken: taken.recv(100) and taken.recv(1), "accepts connections but does not answer within 0.3 s"),
    ],
    ids=["ssh", "http", "closes", "silent"],
)
def test_what_is_not_cql_is_told_so(answer: Callable[[socket.socket], object], message: str) -> None:
    with port(answer) as number:
        with pytest.raises(UnavailableError) as error:
            ops.observe(ops.Access([f"127.0.0.1:{number}"], timeout_s=0.3))
        assert f"127.0.0.1:{number} {message}" in str(error.value)
        assert "CQL" in str(error.value)


# ---------------------------------------------------------------------- slow nodes


def test_what_a_look_waits_for_is_told() -> None:
    waits = PendingRequests()
    assert str(waits) == ""
    with waits.on("CQL of 10.0.0.1"):
        assert str(waits) == "0 of 1 answers; waiting for CQL of 10.0.0.1 (0 s)"
        with contextlib.ExitStack() as stack:
            for number in range(2, 6):
                stack.enter_context(waits.on(f"JMX of 10.0.0.{number}"))
            assert str(waits).endswith("JMX of 10.0.0.2 (0 s), JMX of 10.0.0.3 (0 s) and 2 more")
        assert str(waits) == "4 of 5 answers; waiting for CQL of 10.0.0.1 (0 s)"
    assert str(waits) == ""


def test_status_of_a_slow_node_says_what_it_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "WAITING_LINE_S", 0.3)
    with port(lambda taken: time.sleep(2)) as number:
        done = CliRunner().invoke(cli.ops, ["status", f"127.0.0.1:{number}", "--timeout", "1.5"])
    assert isinstance(done.exception, UnavailableError)
    waiting = [line for line in done.stderr.splitlines() if "waiting for" in line]
    assert re.fullmatch(r"0 of 1 answers; waiting for CQL of 127\.0\.0\.1 \(\d s\)", waiting[0])
    assert done.stdout == ""


# ---------------------------------------------------------------------- small screens


def busy_cluster(count: int = 3) -> Snapshot:
    heap = Heap(300 << 20, 500 << 20, 4, 40, 9)
    nodes = [
        node(f"192.168.100.{k}", dc="datacentre1", rack="rack1", release="5.0.8", cql=True, jmx=True, load_bytes=2e9,
             disks=[Disk("/data", 100, 40)], heap=heap, cpu_share=0.4, hints=[], compactions_pending=3, probe_ms=1.5,
             clock_offset_s=0.0, clock_error_s=0.1)
        for k in range(count)
    ]  # fmt: skip
    return snapshot(*nodes, not_seen=[Unobserved(f"192.168.100.{k}", "disk", "no way " * 9) for k in range(30)])


def test_findings_stay_in_sight_on_a_small_screen() -> None:
    findings = [
        f"CRITICAL node-down 192.168.100.{k}: seen down by {', '.join(['192.168.100.9'] * 9)}" for k in range(3)
    ]
    shown = watched(busy_cluster(), findings, width=80, height=23).splitlines()
    assert len(shown) <= 23
    assert max(map(len, shown)) <= 80
    top = "\n".join(shown[:12])
    assert all(f"node-down 192.168.100.{k}" in top for k in range(3))
    # Of the table what matters most is there, whole.
    (header,) = [line for line in shown if line.startswith("node ")]
    assert header.split()[:2] == ["node", "status"]
    assert {"disk", "hints", "write p99"} <= {part.strip() for part in header.split("  ")}
    assert sum(line.startswith("192.168.100.") for line in shown) == 3
    assert "no findings" in watched(busy_cluster(), [], width=80, height=23).splitlines()[2]


def test_more_findings_than_fit_are_counted() -> None:
    findings = [f"WARNING disk-used 192.168.100.{k}: " + "x" * 100 for k in range(40)]
    shown = watched(busy_cluster(6), findings, width=80, height=23).splitlines()
    assert "and more; see all 40: chronotile ops check" in shown
    assert sum(line.startswith("192.168.100.") for line in shown) == 6
    assert shown.index("and more; see all 40: chronotile ops check") > 8


def test_a_wide_screen_has_all_columns() -> None:
    assert screen(busy_cluster()) == screen(busy_cluster(), width=200)
    narrow = screen(busy_cluster(), width=80).splitlines()[2]
    assert "release" not in narrow
    assert "status" in narrow


def test_watch_fits_its_terminal() -> None:
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    line = [sys.executable, "-m", "chronotile", "ops", "watch", "127.0.0.1:1", "--every", "60", "--count", "1"]
    process = subprocess.Popen(line, stdin=slave, stdout=slave, stderr=slave, close_fds=True)
    os.close(slave)
    shown = b""
    with contextlib.suppress(OSError):
        while part := os.read(master, 4096):
            shown += part
    os.close(master)
    assert process.wait(20) == 0
    words = b" ".join(re.sub(rb"\x1b\[[?0-9]*[a-zA-Z]", b"", shown).split())
    assert b"no node accepts clients at 127.0.0.1:1" in words


# ---------------------------------------------------------------------- record and report


@pytest.mark.parametrize(
    ("spent_s", "message"),
    [(0.5, ""), (9.9, ""), (10.0, "one snapshot was skipped; use --every 12"), (35.0, "so 3 snapshots were skipped")],
)
def test_a_record_that_falls_behind_says_so(spent_s: float, message: str) -> None:
    warning = cli._overrun_warning(spent_s, 10.0)
    assert (
        (warning == "")
        if not message
        else (message in warning and warning.startswith(f"behind: this snapshot took {spent_s:.1f}"))
    )


def test_the_command_says_that_it_falls_behind_unless_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spent_s = iter([0.0, 2.5, 5.0])
    clock = [0.0]

    def observe(*_: object, **__: object) -> Snapshot:
        clock[0] += next(spent_s)
        return snapshot(node(cql=True, probe_ms=1.0), at_s=clock[0])

    monkeypatch.setattr(cli.library, "observe", observe)
    monkeypatch.setattr(cli, "ticks", lambda every_s, count: range(count))
    monkeypatch.setattr(cli, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    words = ["record", "10.0.0.1", "--nodetool", "false {host}", "--to", str(tmp_path / "ops.db"), "--every", "1"]
    done = CliRunner().invoke(cli.ops, [*words, "--count", "3"], catch_exceptions=False)
    assert (done.exit_code, done.stdout.count(" recorded ")) == (0, 3)
    (line,) = done.stderr.splitlines()
    assert line.endswith(
        "behind: this snapshot took 2.5 s, so 2 snapshots were skipped; use --every 3, or JMX over HTTP (--jolokia), "
        "which is faster than nodetool"
    )


def test_a_record_beside_a_service_keeps_its_times_and_says_what_it_left_out(tmp_path: Path) -> None:
    looks: list[float] = []
    failures: list[ChronotileError] = []

    def observe() -> Snapshot:
        looks.append(time.monotonic())
        if len(looks) == 2:
            time.sleep(0.55)
        return snapshot(node(cql=True, probe_ms=1.0), at_s=len(looks))

    with (
        recording.Recorder(tmp_path / "ops.db") as recorder,
        recording.recording(recorder, observe, 0.25, failures.append),
    ):
        time.sleep(1.6)
    assert failures[0].kind == "behind"
    assert re.search(r"snapshots take longer than 0\.25 s: [234] skipped", str(failures[0]))
    # Each begins at a multiple of the interval after the first.
    gaps = [(look - looks[0]) / 0.25 for look in looks[3:]]
    assert all(gap % 1 < 0.6 for gap in gaps), gaps


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Half an hour of three years before."""
    path = tmp_path / "ops.db"
    with recording.Recorder(path) as recorder:
        for minute in range(30):
            recorder.write(snapshot(node(cql=True, probe_ms=minute + 1.0), at_s=60 * minute))
    return path


def test_a_report_opens_where_the_data_are(recorded: Path, chronotile: Run) -> None:
    page = report.html(recorded, None)
    assert "<p>2026-03-01 00:00:00 to 2026-03-01 00:29:01 (UTC)." in page
    done = chronotile("ops", "report", recorded)
    assert done.returncode == 0, done.stderr
    assert "<p>2026-03-01 00:00:00 to 2026-03-01 00:29:01 (UTC)." in done.stdout
    later = report.html(recorded, None, START + timedelta(minutes=20))
    assert "<p>2026-03-01 00:20:00 to 2026-03-01 00:29:01 (UTC)." in later
    # A period that is asked for is drawn as it is asked for.
    day = report.html(recorded, None, START - timedelta(hours=1), START + timedelta(hours=1))
    assert "<p>2026-02-28 23:00:00 to 2026-03-01 01:00:00 (UTC)." in day


def test_the_year_is_on_every_axis_of_time(recorded: Path) -> None:
    def labels(page: str, css: str) -> list[str]:
        return re.findall(rf'class="{css}" text-anchor="middle">([^<]*)<', page)

    page = report.html(recorded, None)
    charts = page.count("<svg")
    assert charts
    assert labels(page, "label") == ["2026-03-01 00:00:00 to 2026-03-01 00:29:01 (UTC)"] * charts
    # Midnight, where the day changes, is a date.
    assert labels(page, "tick")[:3] == ["03-01", "00:05", "00:10"]
    page = report.html(recorded, None, START - timedelta(hours=20), START + timedelta(hours=4))
    assert labels(page, "label")[0] == "2026-02-28 04:00:00 to 2026-03-01 04:00:00 (UTC)"
    assert labels(page, "tick")[:4] == ["06:00", "12:00", "18:00", "03-01"]
    page = report.html(recorded, None, START - timedelta(days=3), START + timedelta(days=2))
    assert labels(page, "tick")[:2] == ["2026-02-26", "2026-02-27"]
    page = report.html(recorded, None, START, START + timedelta(seconds=20))
    assert labels(page, "tick")[:2] == ["00:00:00", "00:00:05"]


def test_a_report_of_a_time_without_data_says_where_they_are(recorded: Path) -> None:
    for period in ((START + timedelta(days=3), None), (START + timedelta(days=3), START + timedelta(days=4))):
        with pytest.raises(InvalidInputError, match="the newest are from 2026-03-01 00:29:00"):
            report.html(recorded, None, *period)


# ---------------------------------------------------------------------- commands


def test_help_tells_what_changes_a_cluster(chronotile: Run) -> None:
    text = chronotile("ops", "--help").stdout
    looks, changes = text.split("Commands that change a cluster")
    looks = looks.split("Read-only commands:")[1]
    named = [re.findall(r"^  (\w+) ", part, re.MULTILINE) for part in (looks, changes)]
    assert named[0] == ["check", "dashboard", "export", "journal", "record", "report", "settings", "status", "watch"]
    assert {"restart", "repair", "restore", "grow", "abandon", "resume"} <= set(named[1])
    assert set(named[0]) | set(named[1]) == set(cli.ops.commands)


def test_a_refused_plan_ends_with_why(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = MemoryNodes(["10.0.0.1", "10.0.0.2"])
    found = [Finding("ok", "nodes", "fine"), Finding("refused", "disks", "full"), Finding("refused", "clocks", "apart")]
    monkeypatch.setattr(RollingRestart, "checks", lambda *_: found)
    work = RollingRestart(["10.0.0.1"])
    made = plan(work, Context(nodes, RecordingActuator(nodes), str))
    assert str(made).splitlines()[-1] == "refused: disks: full; clocks: apart"
    fine = dataclasses.replace(made, findings=found[:1])
    assert "refused" not in str(fine)
    assert isinstance(fine, engine.Plan)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-03-01T08:30", datetime(2026, 3, 1, 8, 30, tzinfo=UTC)),
        ("2026-03-01 08:30:05.25", datetime(2026, 3, 1, 8, 30, 5, 250_000, tzinfo=UTC)),
        ("2026-03-01T08:30:00Z", datetime(2026, 3, 1, 8, 30, tzinfo=UTC)),
        ("2026-03-01T08:30:00+02:00", datetime(2026, 3, 1, 6, 30, tzinfo=UTC)),
        ("20260301T083000Z", datetime(2026, 3, 1, 8, 30, tzinfo=UTC)),
        ("2026-03-01", datetime(2026, 3, 1, tzinfo=UTC)),
    ],
)
def test_times_are_iso_8601(text: str, moment: datetime) -> None:
    assert cli.Time().convert(text, None, None) == moment


def test_a_time_that_is_none_is_told_so(chronotile: Run) -> None:
    done = chronotile("ops", "return", "plan", "127.0.0.1:1", "--nodetool", "false {host}", "--node", "x",
                      "--down-since", "yesterday")  # fmt: skip
    assert done.returncode == 2
    assert "invalid time 'yesterday': give ISO 8601, such as 2026-03-01T08:30" in done.stderr


def test_journals_are_shown_without_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chronotile: Run) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    none = chronotile("ops", "journal", "--last")
    assert (none.returncode, "no journals in" in none.stderr) == (3, True)
    for cluster, name in (("plant", "1-restart"), ("other", "2-repair")):
        with Journal.begin(tmp_path / "chronotile" / "ops" / cluster, name, {"procedure": name[2:]}) as kept:
            kept.write("finished" if cluster == "plant" else "begin")
    shown = chronotile("ops", "journal").stdout.splitlines()
    assert [line.split()[0] for line in shown] == ["ended", "UNFINISHED"]
    last = chronotile("ops", "journal", "--last").stdout.splitlines()
    assert '"procedure": "repair"' in last[0]
    own = chronotile("ops", "journal", "--last", "--journal", tmp_path / "chronotile" / "ops" / "plant").stdout
    assert '"procedure": "restart"' in own


def commands_of(group: click.Group, path: str = "ops") -> Iterator[tuple[str, click.Command]]:
    """All commands of a group and of groups in it, by their words."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands_of(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def test_no_option_of_a_command_has_the_name_of_another() -> None:
    for words, command in commands_of(cli.ops):
        names = [name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)]
        assert len(names) == len(set(names)), words


@pytest.mark.parametrize(("mode", "warned"), [(0o644, True), (0o640, False), (0o600, False)])
def test_a_password_that_everybody_can_read_is_warned_of(tmp_path: Path, mode: int, warned: bool) -> None:
    path = tmp_path / "password"
    path.write_text("secret\n")
    path.chmod(mode)
    done = CliRunner().invoke(cli.ops, ["status", "127.0.0.1:1", "--user", "ann", "--password-file", str(path)])
    assert (f"every user of this machine can read {path}: chmod 600" in done.stderr) == warned
    assert "secret" not in done.output


def test_a_command_goes_by_the_name_of_its_procedure() -> None:
    """By which a run that is given again is known."""
    groups = {name for name, command in cli.ops.commands.items() if isinstance(command, click.Group)}
    assert groups == {
        name for name, known in Procedure.known.items() if known.__module__.startswith("chronotile_tools.")
    }
