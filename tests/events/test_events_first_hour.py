"""What a person meets who stores and searches log lines for the first time."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest

pytest.importorskip("pyarrow")
from support_shell import Shell, on_terminal

SYSLOG = (
    "Dec 10 06:55:46 LabSZ sshd[24200]: Invalid user webmaster from 173.234.31.186\n"
    "Dec 10 06:55:48 LabSZ sshd[24200]: Failed password for root\n"
)


@pytest.fixture
def logs(shell: Shell) -> Shell:
    shell("events", "create", "logs.db", "ssh", "--syslog")
    shell("events", "ingest", "logs.db", "ssh", shell.write("auth.log", SYSLOG), "--format", "syslog")
    return shell


def test_a_search_shows_the_message_on_a_terminal_of_80_columns(logs: Shell) -> None:
    shown = on_terminal(logs, 80, "events", "search", "logs.db", "ssh").splitlines()
    assert shown[0].split()[:3] == ["time", "stream", "message"]
    assert "Failed password for root" in shown[3]
    assert max(map(len, shown)) <= 80 or shown[-1].startswith("…")


def test_a_table_of_documents_leaves_out_columns_without_values(logs: Shell) -> None:
    header = logs("events", "search", "logs.db", "ssh").splitlines()[0].split()
    assert header == ["time", "stream", "message", "host", "app", "procid"]
    everything = logs("events", "search", "logs.db", "ssh", "--format", "csv").splitlines()[0].split(",")
    assert {"severity", "body", "structured_data"} <= set(everything)
    chosen = logs("events", "search", "logs.db", "ssh", "--columns", "severity,body").splitlines()[0].split()
    assert chosen == ["severity", "body"]


def test_documents_without_a_message_show_their_body(shell: Shell) -> None:
    shell("events", "create", "logs.db", "web", "--field", "level=utf8")
    shell("events", "ingest", "logs.db", "web", "-", stdin='{"time": "2026-01-01T00:00:00Z", "level": "info"}\n')
    assert shell("events", "search", "logs.db", "web").splitlines()[0].split() == ["time", "stream", "body", "level"]


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["create", "logs.db", "my-logs"], "invalid name 'my-logs': give 1 to 39 characters of a-z, 0-9 and _"),
        (["create", "logs.db", "a" * 40], "give 1 to 39 characters"),
        (["create", "logs.db", "web", "--field", "time=utf8"], "in paths (--field NAME=TYPE@time)"),
        (["create", "logs.db", "web", "--ttl", "forever"], "or None (never) to keep documents forever"),
        (["ingest", "logs.db", "ssh", "auth.log", "--format", "lines"], "format lines needs pattern= (--pattern)"),
        (["ingest", "logs.db", "ssh", "auth.log", "--pattern", "(?P<time>.*)"],
         "pattern= (--pattern) belongs to format lines, not ndjson"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_answered_with_options_of_the_command(command: list[str], said: str, logs: Shell) -> None:
    logs("events", *command, code=2)
    assert said in logs.errors


def test_lines_of_plain_text_lead_to_the_format_of_lines(logs: Shell) -> None:
    logs.write("app.log", "starting up\nlistening\n")
    logs("events", "ingest", "logs.db", "ssh", "app.log", code=2)
    assert "the line is not a JSON object. For lines of plain text, give --format lines and --pattern" in logs.errors


def test_a_flood_on_standard_input_is_named_so(shell: Shell) -> None:
    shell("events", "create", "logs.db", "web", "--stream-field", "host")
    shell("events", "limits", "logs.db", "web", "--documents-per-s", "1")
    lines = '{"time": "2026-01-01T00:00:00Z", "host": "loud"}\n' * 20
    shell("events", "ingest", "logs.db", "web", "-", stdin=lines, code=6)
    assert "0 were sent, 20 more came; lines 1 to 20 of standard input were rejected" in shell.errors


def test_times_in_reports_are_iso_8601(logs: Shell) -> None:
    report: Any = logs.json("events", "ttl", "logs.db", "ssh", "30d", "--dry-run")
    (part,) = report["slices"]
    assert "T" in part["start"]
    assert datetime.fromisoformat(part["start"]).tzinfo is not None


def test_an_unknown_column_is_refused_whether_or_not_there_are_documents(shell: Shell) -> None:
    shell("events", "create", "logs.db", "web", "--field", "level=utf8")
    for documents in (0, 1):
        for command in (["search"], ["count"], ["top", "--by", "level"], ["histogram"]):
            shell("events", *command[:1], "logs.db", "web", "levl=error", *command[1:], code=2)
            assert "unknown column 'levl' in a condition; did you mean level?" in shell.errors, (documents, command)
        shell("events", "ingest", "logs.db", "web", "-", stdin='{"time": "2026-01-01T00:00:00Z", "level": "info"}\n')
