"""Ingests and commands of events in processes of their own: killed, interrupted, and fed by pipes."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import pytest
from support_waiting import wait_until

pytest.importorskip("pyarrow")
from support_events import Artifacts, make

import chronotile as ct
from chronotile import events
from chronotile.cli.main import cli, exit_code

GOOD = '{"time": "2026-01-01T00:00:00Z", "host": "h", "process": {"pid": 1}}'


def bodies(log: events.Events) -> list[str]:
    return log.search(limit=None, newest_first=False)["body"].to_pylist()


def test_an_ingest_that_is_killed_goes_on_where_it_ended(tmp_path: Path) -> None:
    lines = Artifacts(600, seed=9).lines(3_000)
    (tmp_path / "a.ndjson").write_bytes(b"\n".join([*lines, b"bad"]))
    with ct.open(tmp_path / "a.db") as archive:
        make(archive)
    script = (
        "import sys, chronotile as ct; from chronotile import events; from chronotile.events import loading\n"
        "loading.BATCH_BYTES = 40_000\n"
        "with ct.open(sys.argv[1]) as archive: events.load(events.open(archive), sys.argv[2], workers=2)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "a.db"), str(tmp_path / "a.ndjson")]
    choose, killed = random.Random(4), 0
    with ct.open(tmp_path / "a.db") as archive:
        log = events.open(archive)
        for part in range(1, 5):
            process = subprocess.Popen(command)
            goal = part * 500 + choose.randrange(200)
            wait_until(lambda: log.dataset.count() >= goal or process.poll() is not None, "documents")  # noqa: B023
            process.kill()
            killed += process.wait() == -signal.SIGKILL
        assert killed >= 2, "too few kills hit an ingest"
        subprocess.run(command, check=True, timeout=60)
        assert bodies(log) == [line.decode() for line in lines]
        assert log.dead_letters()["record"].to_pylist() == [b"bad"]
        assert all(batch.finished for batch in log.dataset.batches())
        assert log.dataset.verify().ok


# ---------------------------------------------------------------- pipes


@contextmanager
def feeding(path: Path, name: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """`chronotile events ingest ... -` with its standard input open."""
    command = [sys.executable, "-m", "chronotile", "events", "ingest", str(path), name, "-", *options]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def test_a_slow_pipe_is_stored_after_its_time_and_a_fast_one_by_size(tmp_path: Path) -> None:
    lines = Artifacts(600).lines(60)
    with ct.open(tmp_path / "a.db") as archive:
        log = make(archive)
        with feeding(tmp_path / "a.db", "events", "--batch-seconds", "0.2", "--batch-bytes", "20000") as process:
            assert process.stdin is not None
            process.stdin.write(lines[0] + b"\n" + lines[1][:50])
            wait_until(lambda: log.count() == 1, "the first line")
            process.stdin.write(lines[1][50:] + b"\n")
            wait_until(lambda: log.count() == 2, "the second line")
            process.stdin.write(b"\n".join(lines[2:]))
            process.stdin.close()
            assert process.wait(60) == 0
            assert b"stored 60 documents" in process.stdout.read()  # type: ignore[union-attr]
        assert bodies(log) == [line.decode() for line in lines]
        assert log.search(columns=["line"], newest_first=False)["line"].to_pylist() == list(range(1, 61))
        assert len(log.dataset.batches()) >= 4


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_a_pipe_that_is_interrupted_stores_the_lines_it_has_read(tmp_path: Path, end: signal.Signals) -> None:
    with ct.open(tmp_path / "a.db") as archive:
        log = make(archive)
        with feeding(tmp_path / "a.db", "events", "--batch-bytes", "200", "--batch-seconds", "3000") as process:
            assert process.stdin is not None
            process.stdin.write(b"\n".join(Artifacts(600).lines(1)) + b"\n")
            wait_until(lambda: log.count() == 1, "the first line")
            process.stdin.write(GOOD.encode() + b"\n" + GOOD.encode()[:20])
            # Once the pipe is empty, the lines are in the other process.
            wait_until(lambda: unread(process) == 0, "the lines to be read")
            process.send_signal(end)
            assert process.wait(60) == 130
        assert log.count() == 2


def unread(process: subprocess.Popen[bytes]) -> int:
    """Bytes that wait in the pipe to a process."""
    import fcntl
    import termios

    assert process.stdin is not None
    return int.from_bytes(fcntl.ioctl(process.stdin.fileno(), termios.FIONREAD, b"\0" * 4), sys.byteorder)


# ---------------------------------------------------------------- the command line


def test_the_command_follows_until_it_is_interrupted(tmp_path: Path) -> None:
    with ct.open(tmp_path / "a.db") as archive:
        log = make(archive)
        log.ingest_lines(GOOD)
        command = [sys.executable, "-m", "chronotile", "events", "search", str(tmp_path / "a.db"), "events",
                   "--follow", "--raw", "--interval", "0.05", "--where", "process.pid<5"]  # fmt: skip
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == GOOD.encode() + b"\n"
            for number in (9, 2):
                log.ingest_lines(GOOD.replace("1}", f"{number}}}"))
            assert process.stdout.readline() == GOOD.replace("1}", "2}").encode() + b"\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
        finally:
            process.kill()
            process.communicate()


Run = Callable[..., str]


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """`chronotile events ...` in this process: what it prints; `code` is how it is to end."""

    def run(*arguments: object, code: int = 0) -> str:
        capfd.readouterr()
        try:
            ended = cli.main(["events", *map(str, arguments)], prog_name="chronotile", standalone_mode=False) or 0
        except ct.ChronotileError as error:
            ended = exit_code(error)
        except click.ClickException as error:
            ended = error.exit_code
        sys.stdout.flush()
        assert ended == code
        return capfd.readouterr().out

    return run


def test_the_commands_do_what_the_library_does(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "a.db"
    lines = Artifacts(600).lines(500)
    (tmp_path / "a.ndjson").write_bytes(b"\n".join([*lines, b"bad \xff"]))
    fields = [part for name, kind in {"action": "utf8@event.action", "process.pid": "int64"}.items() for part in
              ("--field", f"{name}={kind}")]  # fmt: skip
    assert "with 2 fields" in run("create", path, "log", *fields, "--stream-field", "host", "--text", "action")
    report = json.loads(run("ingest", path, "log", tmp_path / "a.ndjson", "--json"))
    assert (report["documents"], report["rejected"]) == (500, 1)
    assert "500 documents already stored" in run("ingest", path, "log", tmp_path / "a.ndjson")
    with ct.open(path) as archive:
        log = events.open(archive, "log")
        assert log.dataset.text == ("action",)
        logons = [json.loads(line) for line in lines if b'"logon"' in line]
        assert int(run("count", path, "log", "action=logon")) == len(logons) == log.count(action="logon")
        raw = run("search", path, "log", "action=logon", "--raw", "--limit", 0, "--oldest-first")
        assert raw.encode().splitlines() == [line for line in lines if b'"logon"' in line]
        shown = run("search", path, "log", "--columns", "process.pid", "--format", "csv", "--limit", 2)
        assert shown.split() == ["process.pid", *(str(json.loads(line)["process"]["pid"]) for line in lines[:-3:-1])]
        wanted = log.count(where=[("action", "prefix", "file"), ("body", "matches", r"\.dat")], text="user01")
        given = ["--where", "action prefix file", "--where", r"body matches \.dat", "--text", "user01"]
        assert int(run("count", path, "log", *given)) == wanted
        assert int(run("count", path, "log", "--where", "action exists false")) == 0
        two = run("count", path, "log", "--streams", "host-001,host-002", "--start", "2026-01-01T06:00")
        assert int(two) == log.count(streams=["host-001", "host-002"], start="2026-01-01T06:00") > 0
        top = run("top", path, "log", "--by", "action", "--limit", 1, "--format", "csv").splitlines()
        assert top[1].split(",")[1] == str(log.top("action", 1)["count"][0].as_py())
        day = run("histogram", path, "log", "--interval", "1d", "--format", "csv").splitlines()
        assert day[1].endswith(",500")
        assert len(run("streams", path, "log", "--format", "csv").splitlines()) == 9
    assert run("dead", path, "log", "--columns", "line,record", "--format", "csv").splitlines()[1] == (r"501,bad \xff")
    run("search", path, "log", "nothing=1", code=2)
    run("search", path, "log", "--last", "1h", "--start", "2026-01-01", code=2)
    run("search", path, "others", code=3)


def test_the_commands_of_ttl_and_limits(tmp_path: Path, run: Run) -> None:
    path = tmp_path / "a.db"
    run("create", path, "log", "--stream-field", "host")
    now = datetime.now(UTC)
    lines = [json.dumps({"time": (now - timedelta(days=day)).isoformat(), "host": "h"}) for day in range(5)]
    (tmp_path / "a.ndjson").write_text("\n".join(lines))
    run("ingest", path, "log", tmp_path / "a.ndjson")
    assert run("ttl", path, "log") == "never\n"
    preview = run("ttl", path, "log", "36h", "--dry-run")
    assert "TTL would be 36h, is never" in preview
    assert "3 documents would expire at once, 2 would stay visible" in preview
    assert run("count", path, "log") == "5\n"
    assert "3 documents expired at once, 2 are visible" in run("ttl", path, "log", "36h", "--yes")
    assert run("count", path, "log") == "2\n"
    would = run("reclaim", path, "log", "--dry-run").splitlines()
    gone = run("reclaim", path, "log", "--yes").splitlines()
    assert gone[:-1] == would[:-1] != []
    assert gone[-1].startswith(f"dropped {len(gone) - 1} slice")
    run("limits", path, "log", "--documents-per-s", 1, "--period", 3)
    with feeding(path, "log") as process:
        _, told = process.communicate("\n".join(lines).encode(), timeout=60)
    assert process.returncode == 6
    assert b"stream 'h' exceeds its limit of 3 documents in 3 s" in told
    assert b"lines 1 to 5 of" in told
    assert run("limits", path, "log", "--documents-per-s", 0) == (
        "Rates are averaged over 3 s.\nlimit      per second\ndocuments  any number\nbytes      any number\n"
    )
