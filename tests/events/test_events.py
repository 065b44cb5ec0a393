"""Searching events: every answer is the one that reading all documents gives, and what has expired is in none."""

from __future__ import annotations

import json
import re
import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support_data import data_file
from support_events import FIELDS, FIRST, Artifacts, Clock, at, make, meets

import chronotile as ct
from chronotile import events

HDFS = r"(?P<time>\d{6} \d{6}) (?P<thread>\d+) (?P<level>\w+) (?P<component>[^:]+): (?P<message>.*)"
APACHE = r"\[(?P<time>[^\]]+)\] \[(?P<level>\w+)\] (?P<message>.*)"


def bodies(table: Any) -> list[str]:
    return table["body"].to_pylist()


@pytest.fixture(scope="module")
def lines() -> list[bytes]:
    """A day of artifacts."""
    return Artifacts(700, seed=3).lines(3_000)


@pytest.fixture(scope="module")
def stored(lines: list[bytes]) -> events.Events:
    """The day in batches that lie across each other in time."""
    log = make(ct.open("memory:"))
    for part in range(7):
        log.ingest_lines(b"\n".join(lines[part::7]))
    return log


QUESTIONS: list[list[tuple[str, str, Any]]] = [
    [("event.action", "==", "logon")],
    [("event.severity", ">=", 4), ("event.action", "!=", "logon")],
    [("event.severity", "in", [1, 2]), ("process.name", "prefix", "ss")],
    [("process.pid", "between", [1_000, 9_000]), ("process.name", "contains", "hon3")],
    [("file.path", "exists", True), ("file.path", "matches", r"/(cache|token)-\d+1\.dat$")],
    [("destination.ip", "exists", False), ("event.severity", "<", 2)],
    [("process.name", "matches", r"^(cron|java)\d{2}$")],
    [("process.pid", "==", -1)],
]


@pytest.mark.parametrize("where", QUESTIONS, ids=str)
def test_each_condition_gives_what_reading_all_gives(
    stored: events.Events, lines: list[bytes], where: list[tuple[str, str, Any]]
) -> None:
    wanted = [
        line.decode()
        for line in lines
        if all(meets(at(json.loads(line), column), comparison, value) for column, comparison, value in where)
    ]
    assert bodies(stored.search(where=where, limit=None, newest_first=False)) == wanted
    assert bodies(stored.search(where=where, limit=5)) == wanted[:-6:-1]
    assert bodies(stored.search(where=where, limit=5, newest_first=False)) == wanted[:5]
    assert stored.count(where=where) == len(wanted)
    assert sum(stored.histogram("1h", by="stream", where=where)["count"].to_pylist()) == len(wanted)


def test_period_stream_keyword_and_text_narrow_an_answer(stored: events.Events, lines: list[bytes]) -> None:
    start, end = FIRST + timedelta(hours=3), FIRST + timedelta(hours=5, minutes=7)
    wanted = []
    for line in lines:
        found = json.loads(line)
        time = datetime.fromisoformat(found["time"])
        near = start <= time < end and found["host"] in ("host-001", "host-004")
        if near and found["event"]["action"] == "file_create" and "/home/user1" in line.decode():
            wanted.append(line.decode())
    assert wanted
    asked = {"streams": ["host-001", "host-004"], "start": start, "end": end, "text": "/home/user1"}
    keyword = {"event.action": "file_create"}
    assert bodies(stored.search(**asked, **keyword, limit=None, newest_first=False)) == wanted
    assert stored.count(**asked, **keyword) == len(wanted)
    assert stored.count(streams=[], start=start) == 0


def test_a_limit_is_met_across_gaps_without_reading_what_lies_behind(tmp_path: Path) -> None:
    log = make(ct.open(tmp_path / "a.db"))
    old = Artifacts(300, seed=1).lines(50, span=timedelta(minutes=1))
    log.ingest_lines(b"\n".join(old))
    new = Artifacts(300, seed=2).lines(5, start=FIRST + timedelta(days=400), span=timedelta(minutes=1))
    log.ingest_lines(b"\n".join(new))
    assert bodies(log.search(limit=8)) == [line.decode() for line in [*new[::-1], *old[:-4:-1]]]
    log.dataset.consolidate()
    with sqlite3.connect(tmp_path / "a.db") as raw:
        oldest = min(
            name for (name,) in raw.execute("SELECT name FROM sqlite_schema WHERE name GLOB 'chunks_events_2*'")
        )
        raw.execute(f"UPDATE {oldest} SET body = zeroblob(length(body))")
    raw.close()
    assert bodies(log.search(limit=5)) == [line.decode() for line in new[::-1]]
    with pytest.raises(ct.DamagedChunkError):
        log.search(limit=6)


def test_top_and_streams_are_those_of_counting_by_hand(stored: events.Events, lines: list[bytes]) -> None:
    found = [json.loads(line) for line in lines]
    actions: dict[str, int] = {}
    for document in found:
        actions[document["event"]["action"]] = actions.get(document["event"]["action"], 0) + 1
    wanted = sorted(actions.items(), key=lambda pair: (-pair[1], pair[0]))[:3]
    top = stored.top("event.action", 3)
    assert list(zip(top["event.action"].to_pylist(), top["count"].to_pylist(), strict=True)) == wanted
    assert top["share"][0].as_py() == pytest.approx(wanted[0][1] / len(lines))
    for row in stored.streams(start=FIRST + timedelta(hours=6)).to_pylist():
        mine = [
            (datetime.fromisoformat(document["time"]), len(line))
            for document, line in zip(found, lines, strict=True)
            if document["host"] == row["stream"] and document["time"] >= "2026-01-01T06"
        ]
        assert (row["documents"], row["bytes"]) == (len(mine), sum(size for _, size in mine))
        assert (row["first"], row["last"]) == (mine[0][0], mine[-1][0])
        hours = (mine[-1][0] - mine[0][0]).total_seconds() / 3_600
        assert row["documents_per_hour"] == pytest.approx(len(mine) / hours)
        assert row["bytes_per_hour"] == pytest.approx(row["bytes"] / hours)


def test_consolidation_and_reopening_change_no_answer(tmp_path: Path, lines: list[bytes]) -> None:
    with ct.open(tmp_path / "a.db") as archive:
        log = make(archive)
        for part in range(5):
            log.ingest_lines(b"\n".join(lines[part:600:5]))
        before = log.search(limit=None)
        assert log.dataset.consolidate().chunks_after < log.dataset.info().chunks + 1
    with ct.open(tmp_path / "a.db") as archive:
        assert events.open(archive).search(limit=None).equals(before)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"where": ("nothing", "contains", "x")}, "unknown column 'nothing'"),
        ({"where": ("process.pid", "contains", "1")}, "requires a text column"),
        ({"where": ("process.name", "matches", "(")}, "unclosed group"),
        ({"where": ("process.name", "exists", "yes")}, "True or False"),
        ({"where": ("process.name", "resembles", "x")}, "unknown comparison"),
        ({"columns": ["nothing"]}, "no column 'nothing'"),
        ({"limit": 0}, "use at least 1"),
        ({"start": "2026-01-02", "end": "2026-01-01"}, "is after end"),
        ({"start": "yesterday"}, "start"),
    ],
)
def test_what_cannot_be_asked_is_refused_with_the_reason(
    stored: events.Events, asked: dict[str, Any], says: str
) -> None:
    with pytest.raises(ct.InvalidInputError, match=re.escape(says)):
        stored.search(**asked)


def test_a_field_may_have_the_name_of_a_column_of_an_answer(memory: ct.Archive) -> None:
    log = events.create(memory, fields={"start": "utf8", "count": "int64", "share": "utf8"})
    log.ingest_lines('{"time": "2026-01-01", "start": "x", "count": 2, "share": "y"}', log.read_options(stream="s"))
    assert log.histogram("1h", by="share").to_pylist() == [{"start": FIRST, "share": "y", "count": 1}]
    assert log.top("start").to_pylist() == [{"start": "x", "count": 1, "share": 1.0}]
    for name in ("count", "share"):
        with pytest.raises(ct.InvalidInputError, match=f"column '{name}' cannot be grouped by"):
            log.top(name)
    for name in ("start", "count"):
        with pytest.raises(ct.InvalidInputError, match=f"column '{name}' cannot be grouped by"):
            log.histogram("1h", by=name)


# ---------------------------------------------------------------- real logs


def real(log: events.Events, name: str, read_options: events.ReadOptions) -> list[str]:
    """The lines of a real file, stored; each is a document."""
    path = data_file(f"logs/{name}")
    report = events.load(log, path, read_options)
    found = path.read_bytes().split(b"\n")
    found = [line.decode() for line in found if line.strip()]
    assert (report.documents, report.rejected) == (len(found), 0)
    return found


def test_hdfs_log_is_found_by_level_component_and_text(memory: ct.Archive) -> None:
    fields = {"thread": "int64", "level": "utf8", "component": "utf8", "message": "utf8"}
    log = events.create(memory, fields=fields)
    read_options = log.read_options("lines", pattern=HDFS, time_format="%y%m%d %H%M%S", stream="hdfs")
    found = real(log, "HDFS_2k.log", read_options)
    parts = [re.match(HDFS, line) for line in found]
    times = [datetime.strptime(part["time"], "%y%m%d %H%M%S").replace(tzinfo=UTC) for part in parts]
    order = sorted(range(len(found)), key=lambda place: (times[place], place))
    assert bodies(log.search(limit=None, newest_first=False)) == [found[place] for place in order]
    assert log.count(level="WARN") == sum(part["level"] == "WARN" for part in parts) > 0
    assert log.count(where=("thread", "<", 50)) == sum(int(part["thread"]) < 50 for part in parts) > 0
    blocks = r"blk_-?\d*77\d* "
    wanted = [found[place] for place in order if re.search(blocks, found[place])]
    assert bodies(log.search(where=("message", "matches", blocks), limit=None, newest_first=False)) == wanted != []
    start, end = times[500], times[1_500]
    assert log.count(start=start, end=end) == sum(start <= time < end for time in times)
    hours = log.histogram("1h", by="level")
    assert sum(hours["count"].to_pylist()) == len(found)
    at_seven = [row["count"] for row in hours.to_pylist() if row["start"] == datetime(2008, 11, 10, 7, tzinfo=UTC)]
    assert sum(at_seven) == sum((time.day, time.hour) == (10, 7) for time in times) > 0


def test_apache_log_is_found_by_level_and_text(memory: ct.Archive) -> None:
    log = events.create(memory, fields={"level": "utf8", "message": "utf8"})
    read_options = log.read_options("lines", pattern=APACHE, time_format="%a %b %d %H:%M:%S %Y", stream="apache")
    found = real(log, "Apache_2k.log", read_options)
    errors = [line for line in found if "] [error] " in line]
    assert log.count(level="error") == len(errors) > 0
    assert log.count(text="state 6") == sum("state 6" in line for line in found) > 0
    newest = log.search(level="error", limit=1).to_pylist()[0]
    assert newest["body"] == errors[-1]
    assert newest["time"] == datetime.strptime(errors[-1][1:25], "%a %b %d %H:%M:%S %Y").replace(tzinfo=UTC)


def test_openssh_log_is_found_as_syslog(memory: ct.Archive) -> None:
    log = events.create(memory, fields=events.SYSLOG_FIELDS)
    found = real(log, "OpenSSH_2k.log", log.read_options("syslog", stream_field="host", year=2025))
    shape = re.compile(r"(\w{3} +\d+ [\d:]{8}) (\S+) ([^\[]+)\[(\d+)\]: (.*)")
    parts = [shape.match(line).groups() for line in found]  # type: ignore[union-attr]
    rows = log.search(
        limit=None, newest_first=False, columns=["time", "stream", "app", "procid", "message"]
    ).to_pylist()
    wanted = [
        (
            datetime.strptime(f"2025 {time}", "%Y %b %d %H:%M:%S").replace(tzinfo=UTC),
            host,
            app,
            pid,
            message.rstrip("\r"),
        )
        for time, host, app, pid, message in parts
    ]
    assert [tuple(row.values()) for row in rows] == wanted
    assert log.count(procid="24200") == sum(pid == "24200" for *_, pid, _ in parts) > 0
    failed = ("message", "prefix", "Failed password for invalid user")
    assert log.count(where=failed) == sum(message.startswith(failed[2]) for *_, message in parts) > 0


# ---------------------------------------------------------------- against a model


documents = st.lists(
    st.fixed_dictionaries(
        {
            "time": st.integers(0, 7_200).map(lambda second: FIRST + timedelta(seconds=second * 5)),
            "host": st.sampled_from(["a", "b", "ü"]),
            "level": st.none() | st.sampled_from(["low", "lower", "high"]),
            "size": st.none() | st.integers(-3, 3),
            "ttl": st.sampled_from([None, "1h", "100d"]),
        }
    ),
    max_size=40,
)
conditions = st.lists(
    st.one_of(
        st.tuples(
            st.just("level"), st.sampled_from(["==", "!=", "contains", "prefix"]), st.sampled_from(["low", "igh"])
        ),
        st.tuples(st.just("level"), st.just("matches"), st.sampled_from(["^l.w$", "(?i)HIGH", "e?r"])),
        st.tuples(st.sampled_from(["level", "size"]), st.just("exists"), st.booleans()),
        st.tuples(st.just("size"), st.sampled_from(["<", ">=", "=="]), st.integers(-4, 4)),
        st.tuples(st.just("size"), st.just("in"), st.lists(st.integers(-4, 4), max_size=3)),
    ),
    max_size=3,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(
    stored=documents, where=conditions, limit=st.none() | st.integers(1, 10), newest_first=st.booleans(),
    hours=st.tuples(st.none() | st.integers(-1, 11), st.none() | st.integers(-1, 11)), now=st.integers(0, 30),
    ttl=st.sampled_from([None, "2h", "10h"]), batches=st.integers(1, 3),
)  # fmt: skip
def test_any_search_is_that_of_a_plain_list(
    stored: list[dict[str, Any]], where: list[tuple[str, str, Any]], limit: int | None, newest_first: bool,
    hours: tuple[int | None, int | None], now: int, ttl: str | None, batches: int,
) -> None:  # fmt: skip
    clock = Clock(FIRST + timedelta(hours=now))
    with ct.open("memory:") as archive:
        events.create(archive, fields={"level": "utf8", "size": "int64"}, stream_field="host", ttl=ttl)
        log = events.open(archive, clock=clock)
        for number, document in enumerate(stored):
            text = json.dumps({**document, "time": document["time"].isoformat(), "ttl": None}, ensure_ascii=False)
            log.ingest_lines(text, ttl=document["ttl"], source=str(number % batches), first_line=number + 1)
        start, end = (None if hour is None else FIRST + timedelta(hours=hour) for hour in hours)
        if start is not None and end is not None:
            start, end = min(start, end), max(start, end)
        wanted = []
        for number, document in enumerate(stored):
            life = {"1h": 1, "2h": 2, "10h": 10, "100d": 2_400}.get(document["ttl"] or ttl or "", 10**6)
            alive = clock.now < document["time"] + timedelta(hours=life)
            inside = (start is None or start <= document["time"]) and (end is None or document["time"] < end)
            if alive and inside and all(meets(document[column], how, value) for column, how, value in where):
                wanted.append((document["time"], str(number % batches), number + 1))
        wanted.sort(reverse=newest_first)
        found = log.search(start=start, end=end, where=where, limit=limit, newest_first=newest_first,
                           columns=["time", "source", "line"])  # fmt: skip
        assert [tuple(row.values()) for row in found.to_pylist()] == wanted[:limit]
        assert log.count(start=start, end=end, where=where) == len(wanted)


# ---------------------------------------------------------------- time to live


@pytest.fixture
def clock() -> Clock:
    return Clock(FIRST + timedelta(hours=1))


def document(time: datetime, **fields: Any) -> str:
    return json.dumps({"time": time.isoformat(), "host": "h", **fields})


@pytest.fixture
def log(memory: ct.Archive, clock: Clock) -> events.Events:
    """An archive of events with a TTL of a day, and a clock that is set."""
    make(memory, ttl="1d")
    return events.open(memory, clock=clock)


def test_a_document_expires_at_the_microsecond_and_is_in_no_answer(log: events.Events, clock: Clock) -> None:
    log.ingest_lines(document(FIRST, event={"action": "logon"}))
    clock.now = FIRST + timedelta(days=1) - timedelta(microseconds=1)
    assert (log.count(), log.search().num_rows) == (1, 1)
    clock.now = FIRST + timedelta(days=1)
    # Its storage is there, and no question finds it.
    assert log.dataset.count() == 1
    assert (log.count(), log.count(text="logon"), log.search(limit=None).num_rows) == (0, 0, 0)
    assert (log.top("event.action").num_rows, log.histogram().num_rows, log.streams().num_rows) == (0, 0, 0)
    assert log.count(start=FIRST, end=FIRST + timedelta(hours=1)) == 0


def test_a_ttl_of_its_own_holds_whatever_the_archives_is(log: events.Events, clock: Clock) -> None:
    log.ingest_lines(document(FIRST), ttl="2h", source="short")
    log.ingest_lines(document(FIRST), source="usual")
    log.ingest_lines(document(FIRST), ttl="400d", source="long")
    assert log.dataset.retention == "400d"

    def alive(after: timedelta) -> list[str]:
        clock.now = FIRST + after
        return sorted(log.search(columns=["source"])["source"].to_pylist())

    assert alive(timedelta(hours=2, microseconds=-1)) == ["long", "short", "usual"]
    assert alive(timedelta(hours=2)) == ["long", "usual"]
    assert alive(timedelta(days=1)) == ["long"]
    assert log.set_ttl("1h").documents_expiring == 0
    assert alive(timedelta(days=400, microseconds=-1)) == ["long"]
    assert alive(timedelta(days=400)) == []


def test_a_longer_ttl_shows_nothing_again_that_has_expired(log: events.Events, clock: Clock) -> None:
    log.ingest_lines("\n".join(document(FIRST + timedelta(hours=hour)) for hour in range(24)))
    clock.now = FIRST + timedelta(hours=30)
    assert log.count() == 17
    preview = log.set_ttl("10d", dry_run=True)
    assert (preview.documents_expiring, preview.documents_visible) == (0, 17)
    assert log.ttl == "1d"
    assert log.set_ttl("10d") == preview
    assert (log.ttl, log.count()) == ("10d", 17)
    clock.now = FIRST + timedelta(days=10, hours=8)
    assert log.count() == 15
    log.set_ttl(None)
    clock.now = FIRST + timedelta(days=9_000)
    assert log.count() == 15


def test_a_shorter_ttl_is_previewed_and_then_hides_at_once(log: events.Events, clock: Clock) -> None:
    log.set_ttl("30d")
    log.ingest_lines("\n".join(document(FIRST + timedelta(hours=hour)) for hour in range(0, 240, 2)))
    log.ingest_lines(document(FIRST + timedelta(hours=1)), ttl="60d")
    clock.now = FIRST + timedelta(days=10)
    preview = log.set_ttl("2d", dry_run=True)
    assert (preview.documents_expiring, preview.documents_visible) == (97, 24)
    # The first slice holds a document of a longer TTL, and keeps those after it.
    assert preview.slices == ()
    assert log.count() == 121
    assert log.set_ttl("2d") == preview
    assert log.count() == 24


def test_storage_is_reclaimed_by_whole_slices_of_which_nothing_is_visible(log: events.Events, clock: Clock) -> None:
    log.ingest_lines("\n".join([*(document(FIRST + timedelta(hours=hour)) for hour in range(96)), "no document"]))
    clock.now = FIRST + timedelta(days=3, hours=1)
    assert [part.rows for part in log.reclaim(dry_run=True)] == [24, 24]
    assert log.dataset.count() == 96
    visible = log.search(limit=None)
    assert [part.start for part in log.reclaim()] == [FIRST, FIRST + timedelta(days=1)]
    assert log.dataset.count() == 48
    assert log.search(limit=None).equals(visible)
    assert log.reclaim() == []
    # What is left goes once the last document that its slice can hold has expired.
    clock.now = FIRST + timedelta(days=5) - timedelta(microseconds=2)
    assert [part.rows for part in log.reclaim()] == [24]
    clock.now = FIRST + timedelta(days=5) - timedelta(microseconds=1)
    assert [part.rows for part in log.reclaim()] == [24]
    assert log.dataset.info().slices == ()


def test_documents_of_a_short_ttl_give_their_slice_back_where_the_archive_keeps_for_ever(
    log: events.Events, clock: Clock
) -> None:
    log.set_ttl(None)
    log.ingest_lines(document(FIRST), ttl="1h")
    log.ingest_lines(document(FIRST + timedelta(days=1)))
    clock.now = FIRST + timedelta(days=100)
    assert [part.rows for part in log.reclaim()] == [1]
    assert (log.dataset.count(), log.count()) == (1, 1)


def test_dropping_by_the_datasets_own_retention_takes_no_visible_document(log: events.Events, clock: Clock) -> None:
    now = datetime.now(UTC)
    clock.now = now
    log.ingest_lines(document(now - timedelta(days=20)), ttl="30d")
    log.ingest_lines(document(now - timedelta(days=20)))
    assert log.count() == 1
    assert log.dataset.retire() == []
    log.set_ttl("10d")
    assert log.dataset.retire() == []
    assert log.count() == 1


@pytest.mark.parametrize("ttl", ["", "1y", "0d", "-1h", "200000d", timedelta(microseconds=5), 7])
def test_a_ttl_that_is_none_is_refused(log: events.Events, ttl: Any) -> None:
    with pytest.raises(ct.InvalidInputError, match="ttl"):
        log.set_ttl(ttl)
    with pytest.raises(ct.InvalidInputError, match="ttl"):
        log.ingest_lines(document(FIRST), ttl=ttl)
    assert log.dataset.count() == 0


# ---------------------------------------------------------------- definition


def test_a_field_may_stand_elsewhere_than_its_name(memory: ct.Archive) -> None:
    log = events.create(
        memory, fields={"origin": "utf8", "n": "int64"}, paths={"origin": "source", "n": "a.b"}, time_field="@t"
    )
    log.ingest_lines('{"@t": "2026-01-01", "source": "x", "a": {"b": 3}}', log.read_options(stream="s"))
    assert log.search(columns=["origin", "n", "stream"]).to_pylist() == [{"origin": "x", "n": 3, "stream": "s"}]


def test_fields_declared_later_are_null_in_older_documents(memory: ct.Archive) -> None:
    log = make(memory)
    text = document(FIRST, event={"kind": "alert"}, rank=3)
    log.ingest_lines(text)
    log.declare({"kind": "utf8", "rank": "int32"}, {"kind": "event.kind"})
    log.ingest_lines(text)
    again = events.open(memory)
    assert list(again.fields) == [*FIELDS, "kind", "rank"]
    found = again.search(columns=["kind", "rank"], newest_first=False).to_pylist()
    assert sorted(map(repr, (tuple(row.values()) for row in found))) == ["('alert', 3)", "(None, None)"]
    assert again.count(text='"kind": "alert"') == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"fields": {"body": "utf8"}}, "field name 'body' is reserved"),
        ({"fields": {"a": "utf8", "a.b": "utf8"}}, "as a value and as an object"),
        ({"fields": {"a": "utf8"}, "paths": {"b": "c"}}, "undeclared field 'b'"),
        ({"fields": {"a": "teapot"}}, "teapot"),
        ({"fields": {"a": "binary"}}, "unsupported type binary: use text, numbers"),
        ({"time_format": "local"}, "time format 'local'"),
        ({"fields": {"host": "int64"}, "stream_field": "host"}, "declare it as utf8"),
        ({"window": "0h"}, "not a duration"),
        ({"slice": "36m"}, "not a multiple of window"),
        ({"text": ["nothing"]}, 'text column "nothing" is not in the schema'),
        ({"buckets": 0}, "buckets"),
    ],
)
def test_what_cannot_be_created_is_refused_and_leaves_nothing(
    memory: ct.Archive, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ct.InvalidInputError, match=re.escape(says)):
        events.create(memory, **options)
    assert memory.datasets() == []


def test_creating_again_keeps_settings_and_is_refused_unless_allowed(memory: ct.Archive) -> None:
    log = make(memory, ttl="3d")
    log.set_ttl("5d")
    assert make(memory, ttl="3d", exist_ok=True).ttl == "5d"
    with pytest.raises(ct.DatasetExistsError):
        make(memory, ttl="3d")
    with pytest.raises(ct.DatasetNotFoundError):
        events.open(memory, "others")
