"""What a person meets in the first hour: real commands, in empty folders, and what they say when something is wrong."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
from conftest import Run
from support_service import Service

SYSLOG = (
    "Dec 10 06:55:46 LabSZ sshd[24200]: Invalid user webmaster from 173.234.31.186\n"
    "Dec 10 06:55:48 LabSZ sshd[24200]: Failed password for invalid user web from 173.234.31.186 port 38926 ssh2\n"
)


class Shell:
    """Runs commands in a folder of their own; each has to end with the code that is expected."""

    def __init__(self, run: Run, folder: Path) -> None:
        self._run, self.folder = run, folder
        self.errors = ""

    def __call__(self, *arguments: object, code: int = 0, stdin: str | None = None, **env: str) -> str:
        done = self._run(*arguments, cwd=self.folder, stdin=stdin, env=env)
        assert done.returncode == code, f"{arguments} ended with {done.returncode}\n{done.stdout}{done.stderr}"
        self.errors = done.stderr
        return done.stdout

    def json(self, *arguments: object, code: int = 0) -> Any:
        return json.loads(self(*arguments, "--json", code=code))

    def write(self, name: str, text: str) -> str:
        (self.folder / name).write_bytes(text.encode())
        return name

    @property
    def files(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()}


@pytest.fixture
def shell(chronotile: Run, tmp_path: Path) -> Shell:
    folder = tmp_path / "here"
    folder.mkdir()
    return Shell(chronotile, folder)


# ---------------------------------------------------------------- every record is refused


def test_events_of_which_every_line_is_refused_fail_with_the_reason_and_the_likely_format(shell: Shell) -> None:
    shell("events", "create", "logs.db", "ssh", "--syslog")
    shell.write("auth.log", SYSLOG)
    for _ in range(2):
        out = shell("events", "ingest", "logs.db", "ssh", "auth.log", code=2)
        assert out.endswith("2 lines rejected, see `chronotile events dead`\n")
        assert shell.errors == (
            "chronotile: no document stored: every line was rejected; the first is line 1 of auth.log: the line is no "
            "JSON object. This looks like syslog: --format syslog\n"
        )
    assert len(shell("events", "dead", "logs.db", "ssh", "--format", "ndjson").splitlines()) == 2
    report = shell.json("events", "ingest", "logs.db", "ssh", "auth.log", code=2)
    assert (report["rejected"], report["first_reject"][1:]) == (2, [1, "the line is no JSON object"])


def test_a_refused_file_is_stored_once_it_is_read_in_the_right_way(shell: Shell) -> None:
    shell("events", "create", "logs.db", "ssh", "--syslog")
    shell.write("auth.log", SYSLOG)
    shell("events", "ingest", "logs.db", "ssh", "auth.log", code=2)
    assert shell("events", "ingest", "logs.db", "ssh", "auth.log", "--format", "syslog").startswith(
        "stored 2 documents"
    )
    assert shell("events", "dead", "logs.db", "ssh", "--format", "ndjson") == ""
    assert "2 were stored before" in shell("events", "ingest", "logs.db", "ssh", "auth.log", "--format", "syslog")


@pytest.mark.parametrize(
    ("line", "options", "advice"),
    [
        (
            '{"ts": 1767225600.5, "level": "info"}',
            [],
            "JSON with the time in 'ts': --time-field ts --time-format epoch_s",
        ),
        ('{"@timestamp": "2026-01-01T00:00:00Z"}', [], "JSON with the time in '@timestamp': --time-field @timestamp"),
        ('{"time": 1767225600123}', [], "JSON with the time in 'time': --time-format epoch_ms"),
        ('{"time": "2026-01-01T00:00:00Z"}', ["--format", "syslog"], "JSON with the time in 'time': --format ndjson"),
        ("<34>1 2026-01-01T00:00:00Z web1 su 70 ID47 - refused", [], "syslog: --format syslog"),
    ],
)
def test_the_likely_way_to_read_lines_is_told_and_works(
    line: str, options: list[str], advice: str, shell: Shell
) -> None:
    shell("events", "create", "logs.db", "web")
    shell("events", "ingest", "logs.db", "web", "-", *options, stdin=line + "\n", code=2)
    assert shell.errors.endswith(f". This looks like {advice}\n")
    assert "line 1 of standard input" in shell.errors
    told = advice.partition(": ")[2].split()
    assert shell("events", "ingest", "logs.db", "web", "-", *told, stdin=line + "\n").startswith("stored 1 documents")


def test_lines_of_which_some_are_refused_are_stored_and_the_first_refusal_is_told(shell: Shell) -> None:
    shell("events", "create", "logs.db", "web")
    text = '{"time": "2026-01-01T00:00:00Z"}\nnothing\n'
    told = shell("events", "ingest", "logs.db", "web", "-", stdin=text)
    assert told.startswith("stored 1 documents")
    assert "1 line rejected" in told
    assert "the first is line 2 of standard input: the line is no JSON object" in told


def test_events_of_which_every_line_is_refused_are_an_error_over_http(shell: Shell) -> None:
    shell("events", "create", "logs.db", "ssh", "--syslog")
    with Service(shell.folder / "logs.db", shell.folder / "log") as service:
        refused = service.ask("POST", "/v1/events/ssh", {"batch": "one"}, SYSLOG)
        assert (refused.status, refused.error["kind"]) == (400, "invalid-rows")
        assert refused.error["message"].endswith(
            "every line was rejected; the first is line 1: the line is no JSON object. This looks like syslog: "
            "format=syslog"
        )
        assert (refused.error["rejected"], refused.error["batch"]) == (2, "one")
        asked = {"batch": "one", "format": "syslog", "stream_field": "host"}
        assert service.ask("POST", "/v1/events/ssh", asked, SYSLOG).json["documents"] == 2
        blank = service.ask("POST", "/v1/events/ssh", None, "\n\n")
        assert (blank.status, blank.json["documents"]) == (200, 0)


def test_jobs_of_which_every_record_is_refused_fail_with_the_reason(shell: Shell) -> None:
    shell("jobs", "load", "jobs.db", "jobs", shell.write("good.csv", "job_id,submitted\n1,2026-01-01\n"), "--create")
    shell.write("bad.csv", "job_id,submitted\nx,2026-01-01\ny,2026-01-01\n")
    for _ in range(2):
        assert shell("jobs", "load", "jobs.db", "jobs", "bad.csv", code=2).endswith("; 2 records rejected\n")
        assert shell.errors == (
            "chronotile: no job stored: every record was rejected; the first is line 2 of bad.csv: column 'job_id' is "
            "no int64: invalid value 'x'\n"
        )
    assert shell.json("jobs", "load", "jobs.db", "jobs", "bad.csv", code=2)["rejected"] == 2
    mixed = shell.write("mixed.csv", "job_id,submitted\n2,2026-01-01\nz,2026-01-01\n")
    assert "1 record rejected; the first is line 3 of mixed.csv" in shell("jobs", "load", "jobs.db", "jobs", mixed)


# ---------------------------------------------------------------- deleting asks


def test_a_shorter_ttl_says_what_expires_and_asks(shell: Shell) -> None:
    shell("events", "create", "logs.db", "ssh", "--syslog", "--ttl", "36500d")
    shell("events", "ingest", "logs.db", "ssh", shell.write("auth.log", SYSLOG), "--format", "syslog")
    told = shell("events", "ttl", "logs.db", "ssh", "1s", code=2)
    assert "2 documents would expire at once, 0 would stay visible" in told
    assert "Nothing done. Expire 2 documents of ssh for good? Give --yes" in shell.errors
    assert shell("events", "count", "logs.db", "ssh") == "2\n"
    assert shell("events", "ttl", "logs.db", "ssh", "1s", "--dry-run") == told
    assert shell("events", "count", "logs.db", "ssh") == "2\n"
    # Nothing expires by a longer one: there is nothing to ask.
    shell("events", "ttl", "logs.db", "ssh", "never")
    assert "2 documents expired at once" in shell("events", "ttl", "logs.db", "ssh", "1s", "--yes")
    assert shell("events", "count", "logs.db", "ssh") == "0\n"
    assert "slice" in shell("events", "reclaim", "logs.db", "ssh", "--dry-run")
    shell("events", "reclaim", "logs.db", "ssh", code=2)
    assert "Give --yes" in shell.errors
    assert json.loads(shell("info", "logs.db", "ssh", "--json"))["statistics"]["rows"] == 2
    shell("events", "reclaim", "logs.db", "ssh", "--yes")
    assert json.loads(shell("info", "logs.db", "ssh", "--json"))["statistics"]["rows"] == 0


def test_old_documents_are_said_to_have_expired_already(shell: Shell) -> None:
    shell("events", "create", "logs.db", "ssh", "--ttl", "30d")
    shell.write("old.log", SYSLOG)
    told = shell("events", "ingest", "logs.db", "ssh", "old.log", "--format", "syslog", "--year", 2020)
    assert told.startswith("stored 2 documents")
    assert "; 2 already expired" in told
    line = '{"time": "2020-01-01T00:00:00Z"}\n'
    for own, expired in (("99999d", 0), ("1d", 1)):
        told = shell("events", "ingest", "logs.db", "ssh", "-", "--ttl", own, "--stream", "s", stdin=line)
        assert ("already expired" in told) == bool(expired)


def test_every_command_that_deletes_asks(shell: Shell) -> None:
    shell("create", "a.db", "d", "--schema", "t:timestamp[us],x:int64", "--single", "--time", "t", "--window", "1d")
    shell("ingest", "a.db", "d", shell.write("d.csv", "t,x\n2020-01-01T00:00:00,1\n"))
    shell("index", "create", "a.db", "d", "--columns", "x")
    for command in (
        ["retire", "a.db", "d", "--older-than", "30d"],
        ["index", "drop", "a.db", "d", "x"],
        ["apdb", "remove", "a.db", "--visit", 1],
        ["ops", "backup", "remove", "store", "one"],
        ["ops", "backup", "retain", "store", "--keep", 1],
    ):
        shell(*command, code=2)
        assert "Give --yes to do it without being asked" in shell.errors, command
    assert shell("count", "a.db", "d") == "1\n"
    assert len(shell.json("index", "status", "a.db", "d")) == 1


# ---------------------------------------------------------------- jobs from a database

FORMS = ["{:%Y-%m-%d %H:%M:%S}", "{:%Y-%m-%dT%H:%M:%S}", "{:%Y-%m-%d %H:%M:%S.%f}", "{:%Y-%m-%dT%H:%M:%SZ}"]


def production(path: Path, kind: str, *, days: int = 21) -> None:
    """A database of ten jobs a day, the first of each at midnight, whose times are texts of any form."""
    with closing(sqlite3.connect(path)) as database:
        database.execute(
            f"CREATE TABLE jobs (job_id INTEGER PRIMARY KEY, submitted {kind}, modified {kind}, user TEXT, run_s INT)"
        )
        for number in range(10 * days):
            submitted = datetime(2026, 1, 1) + timedelta(hours=2.4) * number
            form = FORMS[number % len(FORMS)]
            moments = [form.format(submitted), form.format(submitted + timedelta(hours=1))]
            database.execute(
                "INSERT INTO jobs VALUES (?, ?, ?, ?, ?)",
                [1_234_567 + number, *moments, ["ann", "bob"][number % 2], 60],
            )
        database.commit()


@pytest.mark.parametrize("kind", ["TEXT", "DATETIME"])
def test_jobs_are_copied_from_and_compared_with_times_that_a_database_keeps_as_text(kind: str, shell: Shell) -> None:
    production(shell.folder / "p.db", kind)
    source = ("sqlite:///p.db", "jobs")
    shell("jobs", "sync", "jobs.db", "jobs", *source, code=3)
    assert shell.files == {"p.db"}
    shell("jobs", "sync", "jobs.db", "jobs", *source, "--create", code=2)
    assert "--version COLUMN" in shell.errors
    first = shell.json("jobs", "sync", "jobs.db", "jobs", *source, "--create", "--version", "modified")
    assert (first["rows"], first["rows_seen"]) == (210, 210)
    assert shell.json("jobs", "sync", "jobs.db", "jobs", *source)["rows"] == 0
    same = shell("jobs", "compare", "jobs.db", "jobs", *source)
    assert same == "compared 21 days, 210 jobs: the same\n"

    with closing(sqlite3.connect(shell.folder / "p.db")) as database:
        database.execute("UPDATE jobs SET user = 'eve' WHERE job_id = 1234570")
        database.execute("DELETE FROM jobs WHERE job_id = 1234571")
        database.execute("INSERT INTO jobs VALUES (7654321, '2026-01-01 23:59:59', '2026-01-02', 'ann', 1)")
        database.execute("DELETE FROM jobs WHERE submitted LIKE '2026-01-05%'")
        database.commit()
    told = shell("jobs", "compare", "jobs.db", "jobs", *source, code=5).splitlines()
    assert told[0] == (
        "2026-01-01: 10 jobs in the database, 10 in the archive; missing: 7654321; superfluous: 1234571; "
        "differing: 1234570"
    )
    assert told[1].startswith("2026-01-05: 0 jobs in the database, 10 in the archive; superfluous: 1234607, 1234608")
    assert told[2:] == ["compared 21 days, 200 jobs: 2 days differ"]
    report = shell.json("jobs", "compare", "jobs.db", "jobs", *source, "--days", "2026-01-01", code=5)
    assert (report["days"], report["differences"][0]["differing"]) == (1, [1234570])


def test_jobs_have_sums_averages_and_calendar_months_on_the_command_line(shell: Shell) -> None:
    rows = "1,2026-01-31T23:00:00,ann,10\n2,2026-02-01T00:00:00,ann,30\n3,2026-02-28T00:00:00,bob,5\n"
    dump = shell.write("dump.csv", "job_id,submitted,user,run_s\n" + rows)
    assert shell("jobs", "create", "jobs.db", "jobs", "--like", dump, "--index", "user").startswith(
        "created jobs jobs: 4"
    )
    shell("jobs", "load", "jobs.db", "jobs", dump)
    asked = ("--aggregate", "sum(run_s)", "--aggregate", "mean(run_s)", "--format", "csv")
    assert shell("jobs", "group", "jobs.db", "jobs", "--by", "user", *asked) == (
        "user,count,run_s_sum,run_s_mean\nann,2,40,20.0\nbob,1,5,5.0\n"
    )
    assert shell("jobs", "group", "jobs.db", "jobs", *asked) == "count,run_s_sum,run_s_mean\n3,45,15.0\n"
    months = shell("jobs", "histogram", "jobs.db", "jobs", "--interval", "1mo", "--format", "csv").splitlines()
    assert [line.split(",") for line in months[1:]] == [["2026-01-01T00:00:00", "1"], ["2026-02-01T00:00:00", "2"]]
    assert len(shell("jobs", "histogram", "jobs.db", "jobs", "--interval", "1y", "--format", "csv").splitlines()) == 2
    assert shell("jobs", "count", "jobs.db", "jobs", "--days", "2026-02") == "2\n"
    assert shell("jobs", "count", "jobs.db", "jobs", "--days", "2025-12,2026-01") == "1\n"
    shell("jobs", "histogram", "jobs.db", "jobs", "--interval", "1x", code=2)
    assert '"1mo", "3mo" or "1y" of the calendar' in shell.errors
