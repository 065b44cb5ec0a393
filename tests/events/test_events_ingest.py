"""Ingests of lines: each line is stored once, or rejected with the reason."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from support_waiting import wait_until

pytest.importorskip("pyarrow")
from hypothesis import given, settings
from hypothesis import strategies as st
from support_events import FIRST, Artifacts, make

import chronotile as ct
from chronotile import events
from chronotile.events import limits, parsing

GOOD = '{"time": "2026-01-01T00:00:00Z", "host": "h", "process": {"pid": 1}}'


def bodies(log: events.Events) -> list[str]:
    return log.search(limit=None, newest_first=False)["body"].to_pylist()


def reasons(log: events.Events) -> dict[int, str]:
    return {row["line"]: row["reason"] for row in log.dead_letters().to_pylist()}


# ---------------------------------------------------------------- lines


BAD = {
    "no JSON": "the line is not a JSON object",
    '{"time": "2026-01-01", "host": "h"': "the line is not a JSON object",
    '{"time": "2026-01-01", "host": }': "invalid value",
    '{"time": "2026-01-01", "host": "h"}{"time": "2026-01-01", "host": "h"}': "several JSON objects",
    '[{"time": "2026-01-01"}]': "the line is not a JSON object",
    '{"host": "h"}': "'time' is missing",
    '{"time": null, "host": "h"}': "'time' is missing",
    '{"time": "2026-02-30", "host": "h"}': "'time' is not a time: '2026-02-30'",
    '{"time": 17, "host": "h"}': "field 'time' is number, declared as string",
    '{"time": "2026-01-01", "process": {"pid": 1}}': "'host' names no stream",
    '{"time": "2026-01-01", "host": "h", "process": {"pid": "x"}}': "field 'process.pid' is string, declared as number",
    '{"time": "2026-01-01", "host": "h", "process": {"pid": 1.5}}': "1.5",
    '{"time": "2026-01-01", "host": "h", "process": 7}': "field 'process' is number, declared as object",
}


def test_bad_lines_are_dead_letters_with_line_and_reason_and_the_rest_is_stored(memory: ct.Archive) -> None:
    log = make(memory)
    lines = [part for line in BAD for part in (GOOD, line, "  ")]
    report = log.ingest_lines("\n".join(lines), source="here")
    assert (report.documents, report.rejected, report.blank) == (len(BAD), len(BAD), len(BAD))
    assert bodies(log) == [GOOD] * len(BAD)
    told = reasons(log)
    assert sorted(told) == list(range(2, 3 * len(BAD), 3))
    for line, (text, reason) in zip(sorted(told), BAD.items(), strict=True):
        assert reason in told[line], text
    letter = log.dead_letters(limit=1).to_pylist()[0]
    assert (letter["record"], letter["source"]) == (list(BAD)[-1].encode(), "here")
    answer = report.to_dict()
    assert json.loads(json.dumps(answer)) == answer
    assert answer["documents"] == len(BAD)
    assert answer["reasons"]["the line is not a JSON object"] == 3
    assert [error["line"] for error in answer["errors"]] == sorted(told)


def test_lines_that_make_objects_together_are_not_taken_for_them(memory: ct.Archive) -> None:
    log = make(memory)
    halves = ['{"time": "2026-01-01", "host": "h", "process":', ' {"pid": 1}}' + GOOD]
    assert log.ingest_lines("\n".join(halves)).documents == 0
    assert len(reasons(log)) == 2


def test_documents_are_kept_byte_for_byte(memory: ct.Archive) -> None:
    log = make(memory)
    odd = [
        '{ "time":"2026-01-01T00:00:00.000001Z",\t"host" : "h"  }\r',
        '{"time":"2026-01-01T00:00:00.000002Z","host":"h","x":1.10,"x":2,"\\u00e9":"é\\ud83d\\ude00 😀"}',
        '  {"time":"2026-01-01T00:00:00.000003Z","host":"h","deep":[[[{}]]],"nul":"\\u0000"}',
    ]
    assert log.ingest_lines("\n".join(odd)).documents == 3
    assert bodies(log) == odd
    assert sum(log.search(columns=["body_bytes"])["body_bytes"].to_pylist()) == sum(len(line.encode()) for line in odd)


def test_lines_that_are_no_utf_8_are_kept_as_they_are(memory: ct.Archive) -> None:
    log = make(memory)
    bad = b'{"time": "2026-01-01", "host": "caf\xe9"}'
    report = log.ingest_lines(GOOD.encode() + b"\n" + bad)
    assert (report.documents, report.rejects[0].reason) == (1, "invalid UTF-8 at byte 36 of the line")
    assert log.dead_letters()["record"].to_pylist() == [bad]


@settings(max_examples=60)
@given(st.lists(st.one_of(
    st.binary(max_size=40).filter(lambda line: b"\n" not in line),
    st.sampled_from([GOOD.encode(), b"", b" ", b"{}", b"{}{}", b'{"time":"2026-01-01"', b',"host":"h"}', b'"}', b"]"]),
), max_size=12))  # fmt: skip
def test_of_any_bytes_each_line_is_a_document_a_dead_letter_or_blank(lines: list[bytes]) -> None:
    with ct.open("memory:") as archive:
        log = make(archive)
        report = log.ingest_lines(b"".join(line + b"\n" for line in lines))
        assert bodies(log) == [line.decode() for line in lines if line == GOOD.encode()]
        left = [line for line in lines if line != GOOD.encode() and line.strip(b" \t\r\f\0")]
        letters = log.dead_letters().to_pylist()
        assert [row["record"] for row in sorted(letters, key=lambda row: row["line"])] == left
        assert report.blank == len(lines) - len(left) - report.documents


def test_a_line_that_is_too_long_is_cut_off_among_the_dead_letters(
    memory: ct.Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parsing, "LINE_BYTES_MAX", 1_000)
    log = make(memory)
    long = GOOD[:-1] + f', "x": "{"y" * 1_000}"}}'
    report = log.ingest_lines(f"{GOOD}\n{long}\n{GOOD}")
    assert (report.documents, report.rejects[0].line) == (2, 2)
    assert f"the line has {len(long)} bytes" in report.rejects[0].reason
    assert log.dead_letters()["record"].to_pylist() == [long[:1_000].encode()]


def test_one_bad_line_in_many_costs_none_of_them(memory: ct.Archive) -> None:
    lines = [line.decode() for line in Artifacts(500).lines(4_000)]
    for place in (0, 1_234, 3_999):
        lines[place] = lines[place].replace('"pid":', '"pid":"x",')
    log = make(memory)
    report = log.ingest_lines("\n".join(lines))
    assert report.documents == 3_997
    assert sorted(reasons(log)) == [1, 1_235, 4_000]
    assert bodies(log) == [line for place, line in enumerate(lines) if place not in (0, 1_234, 3_999)]


@pytest.mark.parametrize(
    ("format", "written", "microseconds"),
    [
        ("epoch_s", "1767225600.25", 250_000),
        ("epoch_s", "1767225600", 0),
        ("epoch_ms", "1767225600007", 7_000),
        ("epoch_us", "1767225600000001", 1),
        ("epoch_ns", "1767225600000001999", 1),
        ("iso8601", '"2026-01-01T02:00:00,5+02:00"', 500_000),
        ("iso8601", '"2026-01-01 00:00:00.123456789"', 123_456),
        ("iso8601", '"2026-01-01"', 0),
        ("%d/%b/%Y:%H:%M:%S %z", '"31/Dec/2025:23:00:00 -0100"', 0),
        ("%Y-%m-%d %H:%M:%S,%f", '"2026-01-01 00:00:00,042"', 42_000),
    ],
)
def test_times_of_each_format_are_read(memory: ct.Archive, format: str, written: str, microseconds: int) -> None:
    log = events.create(memory, time_field="at.first", time_format=format)
    report = log.ingest_lines(f'{{"at": {{"first": {written}}}}}', log.read_options(stream="s"))
    assert report.rejects == ()
    assert log.search()["time"].to_pylist() == [FIRST + timedelta(microseconds=microseconds)]


def test_a_time_without_a_year_is_of_the_last_year_that_is_not_the_future(memory: ct.Archive) -> None:
    log = events.create(memory, fields=events.SYSLOG_FIELDS)
    read_options = log.read_options("syslog", stream="s")
    now = datetime.now(UTC)
    for days in (-200, -1, 3):
        day = now + timedelta(days=days)
        log.ingest_lines(f"{day:%b} {day.day:2} {day:%H:%M:%S} h a: {days}", read_options)
    found = {int(row["message"]): row["time"] for row in log.search().to_pylist()}
    assert found[-200] == (now - timedelta(days=200)).replace(microsecond=0)
    assert found[-1] == (now - timedelta(days=1)).replace(microsecond=0)
    assert found[3] < now - timedelta(days=300)


# ---------------------------------------------------------------- syslog and patterns


def test_syslog_of_both_kinds_is_taken_apart(memory: ct.Archive) -> None:
    log = events.create(memory, fields=events.SYSLOG_FIELDS)
    sd = r'[a@32473 iut="3" q="x\"y\]z\\"][b]'
    lines = [
        f"<165>1 2026-01-01T00:00:01.003Z web1 nginx 77 ID47 {sd} \ufeffhello [world]",
        "<34>1 2026-01-01T00:00:02-05:00 - - - - -",
        "<13>Jan  1 00:00:03 web2 su[5]: 'su root' failed",
        "Jan  1 00:00:04 web2 last message repeated 2 times",
        "<0>2026-01-01T00:00:05.5+00:00 web3 app: hi",
        "<192>Jan  1 00:00:06 web2 su: x",
        "<34>1 - web1 a - - - no time",
        "<34>1 2026-01-01T00:00:01Z web1 a - - [open x",
        "hello",
    ]
    report = log.ingest_lines(
        "\n".join(lines), log.read_options("syslog", stream_field="host", stream="none", year=2026)
    )
    rows = log.search(limit=None, newest_first=False, columns=["line", "stream", *events.SYSLOG_FIELDS]).to_pylist()
    found = {row.pop("line"): tuple(row.values()) for row in rows}
    assert found == {
        1: ("web1", 20, 5, "web1", "nginx", "77", "ID47", sd, "hello [world]"),
        2: ("none", 4, 2, None, None, None, None, None, None),
        3: ("web2", 1, 5, "web2", "su", "5", None, None, "'su root' failed"),
        4: ("web2", None, None, "web2", None, None, None, None, "last message repeated 2 times"),
        5: ("web3", 0, 0, "web3", "app", None, None, None, "hi"),
    }
    assert [reject.line for reject in report.rejects] == [6, 7, 8, 9]
    assert log.search(columns=["time"], limit=1)["time"][0].as_py() == FIRST + timedelta(hours=5, seconds=2)


def test_a_pattern_takes_lines_apart_into_typed_fields(memory: ct.Archive) -> None:
    log = events.create(memory, fields={"client": "utf8", "status": "int32", "took": "float64", "ok": "bool"})
    read_options = log.read_options(
        "lines", time_format="%d/%b/%Y:%H:%M:%S %z",
        pattern=r"^(?P<client>\S+) (?P<stream>\S+) \[(?P<time>[^]]+)\] (?P<status>\S+) (?P<took>\S*) ?(?P<ok>\w+)?$",
    )  # fmt: skip
    lines = [
        "10.0.0.1 web1 [01/Jan/2026:01:00:00 +0100] 200 0.5 true",
        "10.0.0.2 web2 [01/Jan/2026:00:00:00 +0000] 404 +1e3\r",
        "10.0.0.2 web2 [01/Jan/2026:00:00:00 +0000] ok 1",
        "10.0.0.2 web2 [01/Jan/2026:00:00:00 +0000] 9999999999 1",
        "10.0.0.2 web2 [32/Jan/2026:00:00:00 +0000] 200 1",
        "nothing",
    ]
    log.ingest_lines("\n".join(lines), read_options)
    rows = log.search(columns=["client", "stream", "status", "took", "ok", "time"], newest_first=False).to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        ("10.0.0.1", "web1", 200, 0.5, True, FIRST),
        ("10.0.0.2", "web2", 404, 1_000.0, None, FIRST),
    ]
    assert reasons(log) == {
        3: "field 'status': 'ok' is not a valid int32",
        4: "field 'status': '9999999999' is not a valid int32",
        5: "'time' is not a time: '32/Jan/2026:00:00:00 +0000'",
        6: "the line does not match the pattern",
    }


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"format": "xml"}, "use one of ndjson, syslog, lines"),
        ({"format": "lines"}, "format lines needs pattern="),
        ({"format": "lines", "pattern": "(?P<when>.*)"}, "no group"),
        ({"format": "lines", "pattern": "(?P<time>.*"}, "invalid pattern"),
        ({"format": "lines", "pattern": "(?P<time>.*)", "stream_field": "host"}, "no group 'host'"),
        ({"format": "syslog", "time_format": "epoch_s"}, "its own time format"),
        ({"time_format": "rfc"}, "is unknown"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_a_reading_that_cannot_work_is_refused(memory: ct.Archive, options: dict[str, Any], says: str) -> None:
    log = make(memory)
    with pytest.raises(ct.InvalidInputError, match=says):
        log.read_options(**options)


# ---------------------------------------------------------------- repetition


def test_lines_under_a_name_are_stored_once_and_others_refused(memory: ct.Archive) -> None:
    log = make(memory)
    text = f"{GOOD}\nbad"
    first, second = (log.ingest_lines(text, batch="request-1") for _ in range(2))
    assert (first.stored, second.stored) == (True, False)
    assert (log.count(), log.dead_letters().num_rows) == (1, 1)
    with pytest.raises(ct.BatchConflictError):
        log.ingest_lines(GOOD.replace("1}", "2}"), batch="request-1")
    assert log.remove_batch("request-1") == 1
    assert (log.count(), log.dead_letters().num_rows) == (0, 0)


# ---------------------------------------------------------------- floods


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The clock of limits: `now` in seconds, which a test sets."""
    made = SimpleNamespace(now=1_000.0, monotonic=lambda: made.now)
    monkeypatch.setattr(limits, "time", made)
    return made


def test_a_stream_over_its_limit_is_refused_as_a_whole_and_others_go_on(
    memory: ct.Archive, clock: SimpleNamespace
) -> None:
    log = make(memory, limits=events.Limits(documents_per_s=5, period_s=2))
    other = GOOD.replace('"h"', '"calm"')
    log.ingest_lines("\n".join([GOOD] * 7 + [other]), batch="first")
    clock.now += 0.5
    with pytest.raises(ct.BusyError, match=r"stream 'h' exceeds its limit of 10 documents in 2 s") as refused:
        log.ingest_lines("\n".join([GOOD] * 4 + [other, "bad"]), source="tail", first_line=9)
    assert "lines 9 to 13 of tail" in str(refused.value)
    assert refused.value.kind == "quota-exceeded"
    assert refused.value.details["stream"] == "h"
    assert refused.value.details["retry_after_s"] == 1.5
    assert (log.count(), log.dead_letters().num_rows) == (8, 0)
    # A repeated batch stores nothing, and does not count.
    assert not log.ingest_lines("\n".join([GOOD] * 7 + [other]), batch="first").stored
    log.ingest_lines("\n".join([GOOD] * 3 + [other]))
    for source, told in (("-", "lines 1 to 1 of standard input"), ("", "lines 1 to 1 of this call")):
        with pytest.raises(ct.BusyError, match=told):
            log.ingest_lines(GOOD, source=source)
    clock.now += 1.5
    log.ingest_lines("\n".join([GOOD] * 4))
    with pytest.raises(ct.BusyError, match="this call alone exceeds the limit"):
        log.ingest_lines("\n".join([GOOD] * 11))
    log.ingest_lines("\n".join([GOOD] * 11), limited=False)


def test_bytes_are_limited_too_and_limits_can_be_changed(memory: ct.Archive) -> None:
    log = make(memory)
    log.set_limits(events.Limits(bytes_per_s=100, period_s=1))
    with pytest.raises(ct.BusyError, match="100 bytes in 1 s"):
        log.ingest_lines("\n".join([GOOD] * 2))
    events.open(memory).set_limits(events.Limits(bytes_per_s=1_000))
    assert log.ingest_lines("\n".join([GOOD] * 2)).documents == 2
    with pytest.raises(ct.InvalidInputError, match="positive"):
        log.set_limits(events.Limits(period_s=0))


# ---------------------------------------------------------------- following


def test_following_gives_each_document_once_whatever_its_time(memory: ct.Archive) -> None:
    log = make(memory)
    log.ingest_lines(GOOD)
    follower = log.follow(where=("process.pid", "<", 10))
    assert follower.look().num_rows == 0
    log.ingest_lines(GOOD.replace("2026", "2030").replace("1}", "2}"))
    log.ingest_lines("\n".join([GOOD.replace("2026", "2001"), GOOD.replace("1}", "99}")]))
    assert [row["time"].year for row in follower.look().to_pylist()] == [2001, 2030]
    log.dataset.consolidate()
    assert follower.look().num_rows == 0
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.extend(table.num_rows for table in follower.tables(0.02)))
    thread.start()
    for _ in range(3):
        log.ingest_lines(GOOD)
    wait_until(lambda: sum(found) == 3, "the followed documents")
    follower.stop()
    thread.join(60)
    assert not thread.is_alive()
