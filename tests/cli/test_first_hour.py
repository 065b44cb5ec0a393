"""What a person meets in the first hour: real commands, in empty folders, and what they say when something is wrong."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
from support_service import Service
from support_shell import Shell, on_terminal

SYSLOG = (
    "Dec 10 06:55:46 LabSZ sshd[24200]: Invalid user webmaster from 173.234.31.186\n"
    "Dec 10 06:55:48 LabSZ sshd[24200]: Failed password for invalid user web from 173.234.31.186 port 38926 ssh2\n"
)


# ---------------------------------------------------------------- every record is refused


def test_events_of_which_every_line_is_refused_fail_with_the_reason_and_the_likely_format(shell: Shell) -> None:
    shell("events", "create", "logs.db", "ssh", "--syslog")
    shell.write("auth.log", SYSLOG)
    for _ in range(2):
        out = shell("events", "ingest", "logs.db", "ssh", "auth.log", code=2)
        assert out.endswith("2 lines rejected, see `chronotile events dead`\n")
        assert shell.errors == (
            "chronotile: no document stored: every line was rejected; the first is line 1 of auth.log: the line is not "
            "a JSON object. This looks like syslog: --format syslog\n"
        )
    assert len(shell("events", "dead", "logs.db", "ssh", "--format", "ndjson").splitlines()) == 2
    report = shell.json("events", "ingest", "logs.db", "ssh", "auth.log", code=2)
    assert (report["rejected"], report["first_reject"][1:]) == (2, [1, "the line is not a JSON object"])


def test_a_refused_file_is_stored_once_it_is_read_in_the_right_way(shell: Shell) -> None:
    shell("events", "create", "logs.db", "ssh", "--syslog")
    shell.write("auth.log", SYSLOG)
    shell("events", "ingest", "logs.db", "ssh", "auth.log", code=2)
    assert shell("events", "ingest", "logs.db", "ssh", "auth.log", "--format", "syslog").startswith(
        "stored 2 documents"
    )
    assert shell("events", "dead", "logs.db", "ssh", "--format", "ndjson") == ""
    assert "2 documents already stored" in shell("events", "ingest", "logs.db", "ssh", "auth.log", "--format", "syslog")


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
    assert shell("events", "ingest", "logs.db", "web", "-", *told, stdin=line + "\n").startswith("stored 1 document (")


def test_lines_of_which_some_are_refused_are_stored_and_the_first_refusal_is_told(shell: Shell) -> None:
    shell("events", "create", "logs.db", "web")
    text = '{"time": "2026-01-01T00:00:00Z"}\nnothing\n'
    told = shell("events", "ingest", "logs.db", "web", "-", stdin=text)
    assert told.startswith("stored 1 document (")
    assert "1 line rejected" in told
    assert "the first is line 2 of standard input: the line is not a JSON object" in told


def test_events_of_which_every_line_is_refused_are_an_error_over_http(shell: Shell) -> None:
    shell("events", "create", "logs.db", "ssh", "--syslog")
    with Service(shell.folder / "logs.db", shell.folder / "log") as service:
        refused = service.ask("POST", "/v1/events/ssh", {"batch": "one"}, SYSLOG)
        assert (refused.status, refused.error["kind"]) == (400, "invalid-rows")
        assert refused.error["message"].endswith(
            "every line was rejected; the first is line 1: the line is not a JSON object. This looks like syslog: "
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
            "chronotile: no job stored: every record was rejected; the first is line 2 of bad.csv: column 'job_id' "
            "cannot be read as int64: invalid value 'x'\n"
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
    assert "Nothing done. Permanently expire 2 documents of ssh? Pass --yes" in shell.errors
    assert shell("events", "count", "logs.db", "ssh") == "2\n"
    assert shell("events", "ttl", "logs.db", "ssh", "1s", "--dry-run") == told
    assert shell("events", "count", "logs.db", "ssh") == "2\n"
    # Nothing expires by a longer one: there is nothing to ask.
    shell("events", "ttl", "logs.db", "ssh", "never")
    assert "2 documents expired at once" in shell("events", "ttl", "logs.db", "ssh", "1s", "--yes")
    assert shell("events", "count", "logs.db", "ssh") == "0\n"
    assert "slice" in shell("events", "reclaim", "logs.db", "ssh", "--dry-run")
    shell("events", "reclaim", "logs.db", "ssh", code=2)
    assert "Pass --yes" in shell.errors
    assert json.loads(shell("info", "logs.db", "ssh", "--json"))["statistics"]["rows"] == 2
    shell("events", "reclaim", "logs.db", "ssh", "--yes")
    assert json.loads(shell("info", "logs.db", "ssh", "--json"))["statistics"]["rows"] == 0


def test_old_documents_are_said_to_have_expired_already(shell: Shell) -> None:
    shell("events", "create", "logs.db", "ssh", "--ttl", "30d")
    shell.write("old.log", SYSLOG)
    told = shell("events", "ingest", "logs.db", "ssh", "old.log", "--format", "syslog", "--year", 2020)
    assert told.startswith("stored 2 documents")
    assert "; 2 documents had already expired, so searches do not return them" in told
    line = '{"time": "2020-01-01T00:00:00Z"}\n'
    for own, expired in (("99999d", 0), ("1d", 1)):
        told = shell("events", "ingest", "logs.db", "ssh", "-", "--ttl", own, "--stream", "s", stdin=line)
        assert ("1 document had already expired, so searches do not return it" in told) == bool(expired)


def test_every_command_that_deletes_asks(shell: Shell) -> None:
    shell("create", "a.db", "d", "--schema", "t:timestamp[us],x:int64", "--single", "--time", "t", "--window", "1d")
    shell("ingest", "a.db", "d", shell.write("d.csv", "t,x\n2020-01-01T00:00:00,1\n"))
    shell("index", "create", "a.db", "d", "--columns", "x")
    sources = shell.write(
        "s.csv", "diaSourceId,diaObjectId,ra,dec,midpointMjdTai,visit,detector\n1,7,1,1,61041.2,1,4\n"
    )
    shell("apdb", "create", "s.db", "--schema", "small")
    shell("apdb", "store", "s.db", "--time", "61041.2", "--sources", sources)
    for command in (
        ["retire", "a.db", "d", "--older-than", "30d"],
        ["index", "drop", "a.db", "d", "x"],
        ["apdb", "remove", "s.db", "--visit", 1],
        ["ops", "backup", "remove", "store", "one"],
        ["ops", "backup", "retain", "store", "--keep", 1],
    ):
        shell(*command, code=2)
        assert "Pass --yes to confirm" in shell.errors, command
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


def test_columns_of_a_database_are_kept_or_named(shell: Shell) -> None:
    with closing(sqlite3.connect(shell.folder / "p.db")) as database:
        numbers = "cpu REAL, share DOUBLE PRECISION, load FLOAT, cost NUMERIC(8, 2)"
        database.execute(f"CREATE TABLE jobs (job_id INTEGER, submitted DATETIME, {numbers}, core BLOB, clock TIME)")
        row = (1, "2026-01-01 00:00:00.000000", 1.5, 0.1, 2.25, 12.5, b"x", "10:00:00.000000")
        database.execute("INSERT INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        database.commit()
    shell("jobs", "sync", "jobs.db", "jobs", "sqlite:///p.db", "jobs", "--create", "--version", "submitted")
    assert "left out, as an archive has no type for them: core (BLOB), clock (TIME)\n" in shell.errors
    asked = [f"sum({name})" for name in ("cpu", "share", "load", "cost")]
    options = [word for each in asked for word in ("--aggregate", each)]
    shown = shell("jobs", "group", "jobs.db", "jobs", "--by", "job_id", *options, "--format", "csv")
    assert shown.splitlines()[1] == "1,1,1.5,0.1,2.25,12.5"


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


# ---------------------------------------------------------------- tables, JSON, completion, files


def test_tables_use_the_width_of_the_terminal(shell: Shell) -> None:
    message = "Failed password for invalid user webmaster from 173.234.31.186 port 38926 and one more time "
    shell.write("lines.csv", f"t,line\n2026-01-01T00:00:00,{message}end\n")
    shell("ingest", "a.db", "lines", "lines.csv", "--create", "--single", "--time", "t")
    assert f"{message}end" in on_terminal(shell, 200, "read", "a.db", "lines")
    narrow = on_terminal(shell, 90, "read", "a.db", "lines").splitlines()
    assert {len(line) for line in narrow if line.endswith("…")} == {90}
    listed = on_terminal(shell, 50, "datasets", "a.db").splitlines()
    assert max(map(len, listed)) <= len("name  columns  cell    time (timestamp, utc)  window  id  merge   retention")


def test_commands_that_print_figures_print_json(shell: Shell) -> None:
    shell.write("d.csv", "t,x\n2026-01-01T00:00:00,1\n2026-01-02T00:00:00,2\n")
    made = shell.json("ingest", "a.db", "d", "d.csv", "--create", "--single", "--time", "t", "--window", "1d")
    assert (made["files"], made["rows_stored"]) == (1, 2)
    assert shell.json("count", "a.db", "d") == {"count": 2}
    assert shell.json("info", "a.db", "d")["statistics"]["rows"] == 2
    assert shell.json("verify", "a.db")["d"]["ok"] is True
    assert shell.json("consolidate", "a.db")["d"]["tiles"] == 0
    assert shell.json("retire", "a.db", "d", "--before", "2026-02-01", "--dry-run")["dry_run"] is True
    assert [json.loads(line)["x"] for line in shell("read", "a.db", "d", "--json").splitlines()] in ([1, 2], [2, 1])
    shell("read", "a.db", "d", "--json", "--format", "csv", code=2)
    shell("events", "create", "a.db", "web", "--ttl", "36500d")
    assert shell.json("events", "count", "a.db", "web") == {"count": 0}
    assert shell.json("events", "ttl", "a.db", "web") == {"ttl": "36500d"}
    assert shell.json("events", "ttl", "a.db", "web", "never")["ttl_after"] is None
    assert shell.json("events", "limits", "a.db", "web")["documents_per_s"] is None
    assert shell.json("events", "reclaim", "a.db", "web") == {"dry_run": False, "slices": []}


def test_lines_that_end_in_carriage_returns_match_at_their_end(shell: Shell) -> None:
    windows = SYSLOG.replace("\n", "\r\n")
    shell("events", "create", "logs.db", "ssh", "--syslog")
    shell("events", "ingest", "logs.db", "ssh", shell.write("auth.log", windows), "--format", "syslog")
    for condition in ("body matches ssh2$", "message matches ssh2$"):
        assert shell("events", "count", "logs.db", "ssh", "--where", condition) == "1\n"
    options = ("--format", "lines", "--create", "--single", "--line-time", "%b %d %H:%M:%S", "--line-year", 2025)
    shell("ingest", "logs.db", "lines", "auth.log", *options, "--time", "time")
    assert shell("count", "logs.db", "lines", "--where", "line matches ssh2$") == "1\n"


def completed(shell: Shell, *words: str) -> list[str]:
    """What the shell offers for the last of these words."""
    environment = {"_CHRONOTILE_COMPLETE": "bash_complete", "COMP_CWORD": str(len(words))}
    done = shell(**environment, COMP_WORDS=" ".join(["chronotile", *words]))
    return [line.split(",", 1)[1] if line.startswith("plain,") else line for line in done.splitlines()]


def test_the_shell_completes_files_datasets_tags_and_columns(shell: Shell) -> None:
    shell.write("d.csv", "t,x\n2026-01-01T00:00:00,1\n")
    shell("ingest", "a.db", "detections", "d.csv", "--create", "--single", "--time", "t")
    shell("index", "create", "a.db", "detections", "--columns", "x")
    shell("historian", "tags", "a.db", "--define", "boiler.temp")
    assert completed(shell, "inge") == ["ingest"]
    assert completed(shell, "read", "") == ["file,"]
    assert completed(shell, "read", "a.db", "det") == ["detections"]
    assert completed(shell, "ingest", "a.db", "detections", "d") == ["file,d"]
    assert completed(shell, "index", "drop", "a.db", "detections", "") == ["x"]
    assert completed(shell, "historian", "read", "a.db", "boi") == ["boiler.temp"]
    assert completed(shell, "jobs", "count", "a.db", "detections", "x") == ["x="]
    assert completed(shell, "create", "a.db", "new", "--like", "d") == ["file,d"]
    assert completed(shell, "read", "missing.db", "") in ([], [""])
    assert "_CHRONOTILE_COMPLETE=bash_complete" in shell("completion", "bash")
    for name in ("zsh", "fish"):
        assert "chronotile" in shell("completion", name)


def test_a_command_that_fails_leaves_no_file(shell: Shell) -> None:
    shell.write("bad.csv", "job_id,submitted\nx,2026-01-01\n")
    shell.write("points.csv", "tag,time,value\noven,yesterday,1\n")
    before = shell.files
    for command, code in (
        (["create", "new.db", "d", "--schema", "t:float64", "--single", "--time", "t"], 2),
        (["ingest", "new.db", "d", "bad.csv", "--create", "--single", "--time", "nothing"], 2),
        (["jobs", "load", "new.db", "jobs", "bad.csv", "--create"], 2),
        (["jobs", "create", "new.db", "jobs", "--schema", "job_id:utf8,submitted:date32"], 2),
        (["events", "create", "new.db", "web", "--field", "time=utf8"], 2),
        (["historian", "write", "new.db", "points.csv", "--define"], 2),
        (["historian", "write", "new.db", "missing.csv"], 3),
        (["historian", "maintain", "new.db"], 3),
        (["apdb", "create", "new.db", "--schema", "missing.yaml"], 3),
        (["copy", "missing.db", "new.db"], 3),
        (["serve", "new.db"], 3),
    ):
        shell(*command, code=code)
        assert shell.files == before, command
    shell("create", "kept.db", "d", "--schema", "t:timestamp[us]", "--single", "--time", "t")
    shell("create", "kept.db", "d", "--schema", "t:timestamp[us]", "--key", "t", "--time", "t", code=2)
    assert "kept.db" in shell.files


def test_a_missing_archive_is_served_only_when_asked(shell: Shell) -> None:
    shell("serve", "plant.db", "--listen", "127.0.0.1:0", code=3)
    assert "pass --create to create it" in shell.errors
    with Service(shell.folder / "plant.db", shell.folder / "log") as service:
        assert service.ask("GET", "/health").status == 200


# ---------------------------------------------------------------- the historian


def test_points_of_foreign_files_are_written_with_their_zone_columns_delimiter_and_tag(shell: Shell) -> None:
    # In Berlin clocks are two hours ahead in summer, one in winter; a time that says its zone keeps it.
    text = "Zeit;Wert;Gut\n2026-07-01 12:00:00;20.5;0\n2026-01-01 12:00:00;21.5;0\n2026-07-01T12:00:00Z;30;0\n"
    shell.write("oven.csv", text)
    columns = ("--time-column", "Zeit", "--value-column", "Wert", "--delimiter", ";", "--tag", "oven", "--define")
    shell("historian", "write", "plant.db", "oven.csv", *columns, "--zone", "Europe/Berlin")
    asked = ("--start", "2026-01-01", "--end", "2027-01-01", "--format", "csv")
    assert shell("historian", "read", "plant.db", "oven", *asked).splitlines()[1:] == [
        "oven,2026-01-01T11:00:00Z,21.5,0",
        "oven,2026-07-01T10:00:00Z,20.5,0",
        "oven,2026-07-01T12:00:00Z,30.0,0",
    ]
    # On 2026-10-25 the hour from two to three comes twice.
    shell.write("twice.csv", "tag,time,value\noven,2026-10-25T02:30:00,1\n")
    for change, hour in (("earlier", "00"), ("later", "01")):
        shell("historian", "write", "plant.db", "twice.csv", "--zone", "Europe/Berlin", "--clock-change", change)
        assert f"2026-10-25T{hour}:30:00Z,1.0" in shell("historian", "read", "plant.db", "oven", *asked)
    for options, error in (
        (["--zone", "Europe/Nowhere"], "unknown time zone 'Europe/Nowhere'"),
        (["--time-column", "when"], "has no column"),
        (["--tag", "oven", "--tag-column", "tag"], "Give only one of --tag and --tag-column"),
    ):
        shell("historian", "write", "plant.db", "twice.csv", *options, code=2)
        assert error in shell.errors


@pytest.fixture
def plant(shell: Shell) -> Shell:
    now = datetime.now(UTC).replace(microsecond=0)
    rows = [
        f"{tag},{(now - timedelta(hours=hours)).isoformat()},{value},{status}"
        for tag in ("boiler.temp", "boiler.level", "mill.speed")
        for hours, value, status in ((100, 1.0, 0), (3, 2.0, 0), (1, 3.0, 1_083_179_008))
    ]
    shell.write("points.csv", "\n".join(["tag,time,value,status", *rows]) + "\n")
    shell("historian", "write", "plant.db", "points.csv", "--define")
    return shell


def test_tags_are_patterns_times_are_relative_and_qualities_words(plant: Shell) -> None:
    lines = plant("historian", "read", "plant.db", "boiler.*", "--start", "now-6h", "--format", "csv").splitlines()
    assert sorted(line.split(",")[0] for line in lines[1:]) == ["boiler.level"] * 2 + ["boiler.temp"] * 2
    table = plant("historian", "latest", "plant.db", "*.speed")
    assert "Uncertain 0x40900000" in table
    assert "1083179008" in plant("historian", "latest", "plant.db", "*.speed", "--status", "codes")
    assert "1083179008" in plant("historian", "latest", "plant.db", "*.speed", "--format", "csv")
    words = plant("historian", "latest", "plant.db", "*.speed", "--format", "csv", "--status", "words")
    assert "Uncertain" in words
    period = ("--start", "now-6h", "--end", "now", "--aggregate", "Count", "--format", "csv")
    counts = plant("historian", "aggregate", "plant.db", "boiler.*", "mill.sp?ed", *period).splitlines()
    assert counts[0].startswith("tag,")
    assert [line.split(",")[0] for line in counts[1:]] == ["boiler.level", "boiler.temp", "mill.speed"]
    plant("historian", "aggregate", "plant.db", "nothing.*", *period, code=3)
    assert "no tag matches 'nothing.*'" in plant.errors
    plant("historian", "read", "plant.db", "nothing.*", "--start", "now-6h", code=3)
    assert "no tag matches 'nothing.*'" in plant.errors
    plant("historian", "read", "plant.db", "boiler.temp", "--start", "now-6x", code=2)
    assert plant("count", "plant.db", "historian_main_float", "--start", "now-6h", "--end", "now") == "6\n"


def test_points_are_deleted_retained_annotated_and_plotted(plant: Shell) -> None:
    period = ("--start", "now-6h")
    plant("historian", "delete", "plant.db", "boiler.*", *period, code=2)
    assert "Permanently delete 4 points of 2 tags? Pass --yes" in plant.errors
    assert plant.json("historian", "delete", "plant.db", "boiler.*", *period, "--dry-run") == {
        "dry_run": True, "points": 4,
    }  # fmt: skip
    assert plant("historian", "delete", "plant.db", "boiler.level", *period, "--yes") == "deleted 2 points\n"
    assert (
        len(plant("historian", "read", "plant.db", "boiler.level", "--start", "now-200h", "--json").splitlines()) == 1
    )

    plant(
        "historian",
        "annotate",
        "plant.db",
        "mill.speed",
        "--text",
        "belt changed",
        "--author",
        "ann",
        "--time",
        "now-2h",
    )
    notes = plant("historian", "annotate", "plant.db", "mill.speed", "--json").splitlines()
    assert [(json.loads(note)["author"], json.loads(note)["text"]) for note in notes] == [("ann", "belt changed")]

    drawn = plant("historian", "plot", "plant.db", "mill.speed", "--start", "now-200h").splitlines()
    assert drawn[0] == "mill.speed"
    assert (drawn[1].split("┤")[0].strip(), drawn[16].split("┤")[0].strip()) == ("3", "1")
    assert f"{datetime.now(UTC):%Y-}" in drawn[-1]
    points = plant("historian", "plot", "plant.db", "mill.speed", "--start", "now-200h", "--json").splitlines()
    assert [json.loads(point)["value"] for point in points] == [1.0, 2.0, 3.0]

    assert plant("historian", "retain", "plant.db", "main", "3650d", "--yes").splitlines() == [
        "points of group main are kept for 3650d",
        "dropped 0 slices",
    ]
    plant("historian", "retain", "plant.db", "other", "1d", code=2)
    assert "no group 'other'; it has main" in plant.errors


def test_old_points_are_dropped_when_asked(shell: Shell) -> None:
    shell.write("old.csv", "tag,time,value\noven,2020-01-01T00:00:00,1\n")
    shell("historian", "write", "plant.db", "old.csv", "--define")
    would = shell.json("historian", "retain", "plant.db", "main", "30d", "--dry-run")
    assert (would["dry_run"], would["slices"] > 0) == (True, True)
    shell("historian", "retain", "plant.db", "main", "30d", code=2)
    assert "that are older than 30d? Pass --yes" in shell.errors
    assert "2020-01-01" in shell("historian", "latest", "plant.db", "oven", "--format", "csv")
    shell("historian", "retain", "plant.db", "main", "30d", "--yes")
    asked = ("--start", "2020-01-01", "--end", "2021-01-01", "--json")
    assert shell("historian", "read", "plant.db", "oven", *asked) == ""


# ---------------------------------------------------------------- names that are mistaken


def test_points_without_a_column_name_it_and_the_option(shell: Shell) -> None:
    for header, parts in (
        ("tag,time,val", ['"value"; did you mean val? It has tag, time, val', "another column with --value-column"]),
        ("tag,Zeit,value", ['"time"; it has tag, Zeit, value', "Name another column with --time-column"]),
        ("name,time,value", ['"tag"; it has name, time, value', "--tag-column", "one tag for all points with --tag"]),
    ):
        shell.write("points.csv", f"{header}\noven,2026-01-01T00:00:00,1\n")
        shell("historian", "write", "plant.db", "points.csv", "--define", code=2)
        assert all(part in " ".join(shell.errors.split()) for part in ["has no column", *parts]), shell.errors
    assert "plant.db" not in shell.files


def test_a_stream_without_documents_is_told_with_the_nearest(shell: Shell) -> None:
    shell("events", "create", "logs.db", "web", "--stream-field", "host")
    shell("events", "ingest", "logs.db", "web", "-", stdin='{"time": "2026-01-01T00:00:00Z", "host": "webserver1"}\n')
    shell("events", "search", "logs.db", "web", "--streams", "webserver")
    assert "note: no documents of stream 'webserver' in this period; did you mean webserver1?" in shell.errors
    shell("events", "search", "logs.db", "web", "--streams", "webserver1", "--where", "body contains none")
    assert shell.errors == ""


def test_a_folder_of_archived_slices_that_is_not_there_is_an_error(shell: Shell) -> None:
    shell("apdb", "create", "s.db", "--schema", "small")
    shell("apdb", "restore", "s.db", "cold", code=3)
    assert shell.errors == "chronotile: no such folder: cold\n"
    shell("apdb", "create", "t.db", "--schema", "smal", code=3)
    assert "the named schemas are lsst and small; anything else is a file" in shell.errors
    assert "t.db" not in shell.files
