"""Events and jobs over HTTP: what goes in is stored once or told why not, what comes out is what the library gives."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
import pyarrow as pa
from support_service import Answer, Service

import chronotile as ct
from chronotile import events, historian, jobs

ARROW = "application/vnd.apache.arrow.stream"
FIRST = datetime(2026, 1, 1, tzinfo=UTC)
FIELDS = {"level": "utf8", "status": "int64", "message": "utf8"}


def document(second: int, **more: Any) -> dict[str, Any]:
    time = (FIRST + timedelta(seconds=second)).isoformat()
    return {"time": time, "host": f"web{second % 3}", "level": "error" if second % 10 == 0 else "info",
            "status": 500 + second % 7, "message": f"request {second} é", **more}  # fmt: skip


def lines(documents: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(found, ensure_ascii=False).encode() + b"\n" for found in documents)


def fill(path: Path) -> None:
    """An archive with events `web`, an hour of them, and jobs `grid`."""
    with ct.open(path) as archive:
        log = events.create(archive, "web", fields=FIELDS, stream_field="host")
        log.ingest_lines(lines([document(second) for second in range(3_600)]), batch="hour")
        done = jobs.create(
            archive, "grid",
            schema={"job_id": "int64", "submitted": "timestamp[us, UTC]", "modified": "timestamp[us, UTC]",
                    "user": "utf8", "status": "utf8", "run_s": "int64"},
            version="modified", indexes=[("user", "status")],
        )  # fmt: skip
        number = range(500)
        done.write({
            "job_id": list(number), "submitted": [FIRST + timedelta(minutes=10 * n) for n in number],
            "modified": [FIRST + timedelta(days=9)] * 500, "user": [["ann", "bob", "42"][n % 3] for n in number],
            "status": ["failed" if n % 5 == 0 else "done" for n in number], "run_s": [n * 7 for n in number],
        })  # fmt: skip
        done.write({
            "job_id": [7], "submitted": [FIRST + timedelta(minutes=70)], "modified": [FIRST + timedelta(days=10)],
            "user": ["bob"], "status": ["lost"], "run_s": [1],
        })  # fmt: skip
        done.dataset.build_indexes()


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service for reading."""
    folder = tmp_path_factory.mktemp("service")
    fill(folder / "logs.db")
    with Service(folder / "logs.db", folder / "log") as service:
        yield service


PREPARED = """
import sys, chronotile as ct
from chronotile.service import FrontEnds
with ct.open(sys.argv[1]) as archive:
    FrontEnds(archive).prepare().join()
print("chronotile.service.events" in sys.modules)
"""


@pytest.mark.parametrize("front_end", ["events", "historian"])
def test_a_service_loads_what_its_archive_needs_before_the_first_request(front_end: str, tmp_path: Path) -> None:
    path = tmp_path / "archive.db"
    if front_end == "events":
        with ct.open(path) as archive:
            events.create(archive, "web", fields=FIELDS)
    else:
        with ct.open(path) as archive:
            historian.open(archive).define("boiler.temperature")
    done = subprocess.run([sys.executable, "-c", PREPARED, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(front_end == "events")


@pytest.fixture(scope="module")
def library(service: Service) -> Iterator[ct.Archive]:
    """The same archive, opened beside the service."""
    with ct.open(service.log_path.parent / "logs.db", read_only=True) as archive:
        yield archive


@pytest.fixture(scope="module")
def writable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service to write to; each test has an archive of events of its own there, made by `fresh`."""
    folder = tmp_path_factory.mktemp("writable")
    with Service(folder / "logs.db", folder / "log") as service:
        yield service


@pytest.fixture
def fresh(writable: Service) -> Iterator[tuple[Service, str, events.Events]]:
    """A service, the path of an empty archive of events in it, and the same archive opened here."""
    name = f"e{uuid.uuid4().hex[:12]}"
    with ct.open(writable.log_path.parent / "logs.db") as archive:
        yield writable, f"/v1/events/{name}", events.create(archive, name, fields=FIELDS, stream_field="host")


def arrow_of(answer: Answer) -> pa.Table:
    return pa.ipc.open_stream(answer.body).read_all()


# ---------------------------------------------------------------------- events in


def test_lines_are_stored_and_bad_ones_told(fresh: tuple[Service, str, events.Events]) -> None:
    service, path, log = fresh
    body = lines([document(1)]) + b"nothing\n\n" + lines([document(2), document(3, status="x")])
    report = service.ask("POST", path, {"source": "collector"}, body).json
    reasons = {error["line"]: error["reason"] for error in report["errors"]}
    assert (report["stored"], report["documents"], report["duplicates"], report["rejected"]) == (True, 2, 0, 2)
    assert reasons[2] == "the line is not a JSON object"
    assert "declared as number" in reasons[5]
    assert sum(report["reasons"].values()) == 2
    # Durable: another process sees it.
    found = log.search(columns=["body", "source", "line"], newest_first=False).to_pylist()
    assert [json.loads(row["body"]) for row in found] == [document(1), document(2)]
    assert {row["source"] for row in found} == {"collector"}
    assert [row["line"] for row in found] == [1, 4]
    letters = log.dead_letters().to_pylist()
    assert sorted((row["line"], row["record"]) for row in letters) == [
        (2, b"nothing"), (5, lines([document(3, status="x")])[:-1]),
    ]  # fmt: skip
    served = service.ask("GET", f"{path}/dead").json["rows"]
    assert sorted((row["line"], row["record"]) for row in served)[0] == (2, "nothing")


def test_a_packed_body_is_unpacked(fresh: tuple[Service, str, events.Events]) -> None:
    service, path, log = fresh
    packed = gzip.compress(lines([document(second) for second in range(1_000)]))
    heads = {"Content-Encoding": "gzip", "Content-Type": "application/x-ndjson"}
    assert service.ask("POST", path, None, packed, heads).json["documents"] == 1_000
    assert log.count() == 1_000
    broken = service.ask("POST", path, None, packed[:-30], heads)
    assert (broken.status, broken.error["kind"]) == (400, "invalid-request")
    assert log.count() == 1_000


def test_syslog_and_plain_lines_go_in(fresh: tuple[Service, str, events.Events]) -> None:
    service, path, log = fresh
    syslog = "<34>1 2026-01-01T00:00:00Z web1 su 70 ID47 - 'su root' failed\nJan  1 00:00:01 web2 sshd[71]: refused\n"
    asked = {"format": "syslog", "stream_field": "host", "year": "2026"}
    assert service.ask("POST", path, asked, syslog).json["documents"] == 2
    pattern = r"^(?P<time>\S+) (?P<level>\w+) (?P<message>.*)"
    asked = {"format": "lines", "pattern": pattern, "stream": "app"}
    report = service.ask("POST", path, asked, "2026-01-01T00:00:02Z error it broke\nnothing\n").json
    assert (report["documents"], report["rejected"]) == (1, 1)
    found = log.search(newest_first=False).to_pylist()
    assert [row["stream"] for row in found] == ["web1", "web2", "app"]
    assert (found[2]["level"], found[2]["message"]) == ("error", "it broke")


def test_a_repeated_request_stores_nothing_twice(fresh: tuple[Service, str, events.Events]) -> None:
    service, path, log = fresh
    body = lines([document(1), document(2)]) + b"nothing\n"
    for asked, heads in (({"batch": "b17"}, {}), (None, {"X-Request-Id": "r17"})):
        first = service.ask("POST", path, asked, body, heads).json
        again = service.ask("POST", path, asked, body, heads).json
        assert (first["stored"], first["documents"], first["duplicates"]) == (True, 2, 0)
        assert (again["stored"], again["documents"], again["duplicates"]) == (False, 2, 2)
        assert again["batch"] == first["batch"]
    assert log.count() == 4
    assert len(log.dead_letters()) == 2
    other = service.ask("POST", path, {"batch": "b17"}, lines([document(3)]) + b"more\n")
    assert (other.status, other.error["kind"]) == (409, "batch-differs")
    assert log.count() == 4
    assert len(log.dead_letters()) == 2
    # Without a name each request is one of its own.
    assert service.ask("POST", path, None, lines([document(1)])).json["stored"]
    assert service.ask("POST", path, None, lines([document(1)])).json["stored"]
    assert log.count() == 6


def test_requests_that_are_sent_twice_at_once_are_stored_once(fresh: tuple[Service, str, events.Events]) -> None:
    service, path, log = fresh
    body = lines([document(second) for second in range(200)]) + b"nothing\n"

    def send(number: int) -> int:
        for _ in range(20):
            answer = service.ask("POST", path, {"batch": f"b{number % 5}"}, body)
            # Who lost a race is told so, and sends again.
            if answer.status == 200:
                return 200
            assert answer.error["kind"] in ("batch-race", "lost-race", "busy"), answer.error
        return answer.status

    with ThreadPoolExecutor(10) as pool:
        assert set(pool.map(send, range(20))) == {200}
    assert log.count() == 5 * 200
    assert len(log.dead_letters()) == 5


def test_a_stream_that_floods_is_turned_away_until_later(fresh: tuple[Service, str, events.Events]) -> None:
    service, path, log = fresh
    log.set_limits(events.Limits(documents_per_s=10, period_s=30))
    quiet, loud = ([document(second, host=host) for second in range(200)] for host in ("quiet", "loud"))
    assert service.ask("POST", path, {"batch": "first"}, lines(loud)).status == 200
    refused = service.ask("POST", path, None, lines(loud))
    assert (refused.status, refused.error["kind"], refused.error["stream"]) == (429, "quota-exceeded", "loud")
    assert 1 <= int(refused.headers["Retry-After"]) <= 30
    assert "exceeds its limit" in refused.error["message"]
    # Others, and a repetition of what is stored, are served meanwhile.
    assert service.ask("POST", path, None, lines(quiet)).status == 200
    assert service.ask("POST", path, {"batch": "first"}, lines(loud)).json["duplicates"] == 200
    # What no stream may ever send at once is not worth sending again.
    more = service.ask("POST", path, None, lines([document(second, host="new") for second in range(301)]))
    assert (more.status, more.error["kind"], more.headers["Retry-After"]) == (413, "quota-exceeded", None)
    assert "smaller parts" in more.error["message"]
    assert {row["stream"]: row["documents"] for row in log.streams().to_pylist()} == {"loud": 200, "quiet": 200}


def test_a_ttl_goes_with_the_lines(fresh: tuple[Service, str, events.Events]) -> None:
    service, path, log = fresh
    now = datetime.now(UTC)
    body = lines([document(0, time=(now - timedelta(hours=hours)).isoformat()) for hours in range(4)])
    assert service.ask("POST", path, {"ttl": "90m"}, body).json["documents"] == 4
    assert log.count() == 2
    refused = service.ask("POST", path, {"ttl": "soon"}, body)
    assert (refused.status, refused.error["kind"]) == (400, "invalid-time")


def test_bad_requests_are_refused_with_the_reason(service: Service) -> None:
    for method, path, asked, status, kind, reason in [
        ("POST", "/v1/events/none", {}, 404, "dataset-not-found", "none"),
        ("POST", "/v1/events/web", {"format": "xml"}, 400, "invalid-setting", "xml"),
        ("POST", "/v1/events/web", {"format": "lines", "pattern": "("}, 400, "invalid-setting", "pattern"),
        ("POST", "/v1/events/web", {"year": "1"}, 400, "invalid-request", "1970"),
        ("POST", "/v1/events/web", {"bogus": "1"}, 400, "invalid-request", "bogus"),
        ("GET", "/v1/events/web", {"start": "soon"}, 400, "invalid-time", "soon"),
        ("GET", "/v1/events/web", {"start": "2026-02-01", "end": "2026-01-01"}, 400, "invalid-time", "after"),
        ("GET", "/v1/events/web", {"where": "nothing"}, 400, "invalid-request", "invalid condition"),
        ("GET", "/v1/events/web", {"where": "nothing>5"}, 400, "invalid-request", "unknown column 'nothing'"),
        ("GET", "/v1/events/web", {"where": "status>many"}, 400, "invalid-request", "status"),
        ("GET", "/v1/events/web", {"where": '["status"]'}, 400, "invalid-request", "JSON list"),
        ("GET", "/v1/events/web", {"where": "message matches ("}, 400, "invalid-request", "message"),
        ("GET", "/v1/events/web", {"columns": "nothing"}, 400, "invalid-request", "no column 'nothing'"),
        ("GET", "/v1/events/web", {"columns": "body", "format": "raw"}, 400, "invalid-request", "columns"),
        ("GET", "/v1/events/web", {"limit": "0"}, 400, "invalid-request", "from 1 to 100000"),
        ("GET", "/v1/events/web", {"limit": "100001"}, 400, "invalid-request", "from 1 to 100000"),
        ("GET", "/v1/events/web", {"format": "xml"}, 400, "invalid-request", "xml"),
        ("GET", "/v1/events/web/histogram", {"interval": "x"}, 400, "invalid-time", "interval"),
        ("GET", "/v1/events/web/histogram", {"by": "nothing"}, 400, "invalid-request", "nothing"),
        ("GET", "/v1/jobs/none/count", {}, 404, "dataset-not-found", "none"),
        ("GET", "/v1/jobs/web/count", {}, 400, "invalid-request", "integer"),
        ("GET", "/v1/jobs/grid", {"id": "x"}, 400, "invalid-request", "whole number"),
        ("GET", "/v1/jobs/grid", {"id": "7", "days": "3"}, 400, "invalid-request", "combined with a period"),
        ("GET", "/v1/jobs/grid", {"user": "ann"}, 400, "invalid-request", "where"),
        ("GET", "/v1/jobs/grid", {"days": "3", "start": "2026-01-01"}, 400, "invalid-request", "give either days"),
        ("GET", "/v1/jobs/grid/group", {}, 400, "invalid-request", "by is missing"),
        ("GET", "/v1/jobs/grid/group", {"by": "user", "aggregate": "run_s"}, 400, "invalid-request", "sum(run_s)"),
        ("GET", "/v1/jobs/grid/group", {"by": "user", "aggregate": "mean(status)"}, 400, "invalid-request", "string"),
    ]:  # fmt: skip
        answer = service.ask(method, path, asked, b"" if method == "POST" else None)
        assert (answer.status, answer.error["kind"]) == (status, kind), (path, asked, answer.body)
        assert reason in answer.error["message"], answer.error
        assert answer.error["request_id"] == answer.headers["X-Request-Id"]


def test_what_was_acknowledged_survives_the_killed_service(tmp_path: Path) -> None:
    with ct.open(tmp_path / "logs.db") as archive:
        events.create(archive, "web", fields=FIELDS, stream_field="host")
    acknowledged: list[int] = []
    with Service(tmp_path / "logs.db", tmp_path / "log") as service:

        def send(place: int) -> None:
            for number in range(place, 10_000, 4):
                try:
                    body = lines([document(number, message=f"batch {number}")] * 50)
                    if service.ask("POST", "/v1/events/web", {"batch": f"b{number}"}, body).status == 200:
                        acknowledged.append(number)
                except OSError:
                    return

        threads = [threading.Thread(target=send, args=(place,)) for place in range(4)]
        for thread in threads:
            thread.start()
        while len(acknowledged) < 20:
            threads[0].join(0.05)
        service.process.send_signal(signal.SIGKILL)
        service.process.wait(30)
        for thread in threads:
            thread.join()
    with ct.open(tmp_path / "logs.db") as archive:
        found = events.open(archive, "web").search(limit=None, columns=["batch"])["batch"].to_pylist()
    counts = {batch: found.count(batch) for batch in set(found)}
    assert {f"b{number}" for number in acknowledged} <= set(counts)
    assert set(counts.values()) == {50}


# ---------------------------------------------------------------------- events out


def test_documents_come_in_every_format(service: Service) -> None:
    asked = {"start": "2026-01-01T00:10:00Z", "end": "2026-01-01T00:20:00Z", "stream": "web0", "limit": "3"}
    rows = service.ask("GET", "/v1/events/web", asked).json["rows"]
    assert [row["message"] for row in rows] == ["request 1197 é", "request 1194 é", "request 1191 é"]
    assert set(rows[0]) == {"time", "stream", *FIELDS, "body"}
    assert rows[0]["time"] == "2026-01-01T00:19:57Z"
    table = arrow_of(service.ask("GET", "/v1/events/web", asked, headers={"Accept": ARROW}))
    assert table["status"].to_pylist() == [row["status"] for row in rows]
    ndjson = service.ask("GET", "/v1/events/web", asked | {"format": "ndjson"}).body.splitlines()
    assert [json.loads(line) for line in ndjson] == rows
    csv = service.ask("GET", "/v1/events/web", asked | {"format": "csv", "columns": "stream,status"})
    assert csv.body.decode().splitlines() == ["stream,status", *(f"web0,{row['status']}" for row in rows)]
    raw = service.ask("GET", "/v1/events/web", asked | {"format": "raw"})
    assert raw.body == lines([document(second) for second in (1197, 1194, 1191)])
    assert raw.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert service.ask("GET", "/v1/events/web", asked, headers={"Accept": "text/plain"}).body == raw.body
    empty = asked | {"text": "nowhere"}
    assert service.ask("GET", "/v1/events/web", empty).json == {"rows": []}
    assert service.ask("GET", "/v1/events/web", empty | {"format": "raw"}).body == b""
    assert arrow_of(service.ask("GET", "/v1/events/web", empty, headers={"Accept": ARROW})).num_rows == 0


def test_questions_are_those_of_the_library(service: Service, library: ct.Archive) -> None:
    log = events.open(library, "web")
    with events.connect(service.url, "web") as remote:
        for question in (
            {},
            {"start": FIRST + timedelta(minutes=10), "end": "2026-01-01T00:20:00"},
            {"start": 1_767_225_600_000_000, "streams": ["web0", "web2"]},
            {"level": "error", "text": "request 1"},
            {"where": [("status", ">=", 503), ("message", "matches", r"9\d é$")]},
            {"where": ("status", "between", [501, 502]), "level": ["error", "info"]},
            {"where": ("message", "exists", False)},
            {"where": ("message", "prefix", "request 12"), "level": 'a,"b"'},
        ):
            for more in ({}, {"newest_first": False, "limit": 7, "columns": ["time", "line", "source"]}):
                assert remote.search(**question, **more).equals(log.search(**question, **more)), question
            assert remote.count(**question) == log.count(**question)
            for by in ((), ["stream", "level"]):
                near = log.histogram("15m", by=by, **question)
                assert remote.histogram("15m", by=by, **question).equals(near), question
        with pytest.raises(ct.InvalidInputError, match="unknown column 'nothing'"):
            remote.count(nothing=1)
        with pytest.raises(ct.InvalidInputError, match="does not go over HTTP"):
            remote.count(message=b"x")
    with events.connect(service.url, "none") as remote, pytest.raises(ct.DatasetNotFoundError):
        remote.count()
    with pytest.raises(ct.ClosedError):
        remote.count()


def test_conditions_are_written_as_on_the_command_line(service: Service) -> None:
    def count(*where: str, **asked: str) -> int:
        words = [("where", text) for text in where] + list(asked.items())
        return int(service.ask("GET", "/v1/events/web/count", words).json["count"])

    assert count() == 3_600
    assert count("level=error") == 360
    assert count("level in error,info", "status>=505") == len([n for n in range(3_600) if n % 7 >= 5])
    assert count("message contains 'request 99 '") == 1
    assert count('["status", "==", 500]') == len(range(0, 3_600, 7))
    assert count(start="2026-01-01T00:59:00Z", stream="web1") == 20
    assert count(start="now-1h") == 0


def test_the_client_stores_and_is_told_of_refusals(fresh: tuple[Service, str, events.Events]) -> None:
    service, path, log = fresh
    with events.connect(service.url, path.rpartition("/")[2]) as remote:
        report = remote.ingest_lines(lines([document(1)]) + b"nothing", batch="b", source="here", ttl="36500d")
        assert (report.stored, report.documents, report.rejected) == (True, 1, 1)
        again = remote.ingest_lines(lines([document(1)]) + b"nothing", batch="b", source="here", ttl="36500d")
        assert (again.stored, again.duplicates) == (False, 1)
        syslog = remote.ingest_lines("Jan  1 00:00:01 web2 sshd[71]: refused", "syslog", stream_field="host", year=2026)
        assert syslog.documents == 1
        assert remote.dead_letters()["record"].to_pylist() == ["nothing"]
        log.set_limits(events.Limits(documents_per_s=1, period_s=1))
        with pytest.raises(ct.BusyError, match="smaller parts") as refused:
            remote.ingest_lines(lines([document(1)] * 2))
        assert refused.value.kind == "quota-exceeded"
        with pytest.raises(ct.BatchConflictError):
            remote.ingest_lines(lines([document(2)]), batch="b")


def test_fields_that_others_declare_are_seen_at_once(fresh: tuple[Service, str, events.Events]) -> None:
    service, path, log = fresh
    assert service.ask("POST", path, None, lines([document(1, region="eu")])).status == 200
    log.declare({"region": "utf8"})
    assert service.ask("POST", path, None, lines([document(2, region="eu")])).status == 200
    rows = service.ask("GET", path, {"columns": "region", "oldest_first": "true"}).json["rows"]
    assert [row.get("region") for row in rows] == [None, "eu"]
    assert service.ask("GET", f"{path}/count", {"where": "region=eu"}).json == {"count": 1}


# ---------------------------------------------------------------------- jobs


def test_jobs_are_found_by_id_and_by_any_column(service: Service) -> None:
    def ids(*words: tuple[str, str]) -> list[int]:
        rows = service.ask("GET", "/v1/jobs/grid", [*words, ("columns", "job_id")]).json["rows"]
        return sorted(row["job_id"] for row in rows)

    assert ids(("id", "7"), ("id", "9"), ("id", "4711")) == [7, 9]
    assert ids(("where", "user=ann"), ("where", "status=failed")) == [*range(0, 500, 15)]
    assert ids(("where", "user=42"), ("where", "run_s<100")) == [2, 5, 8, 11, 14]
    assert ids(("where", "submitted>=2026-01-04T11:00:00Z")) == list(range(498, 500))
    assert ids(("days", "2026-01-01,2026-01-02"), ("where", "run_s between 700,735")) == [100, 101, 102, 103, 104, 105]
    assert len(ids(("limit", "17"))) == 17
    states = service.ask("GET", "/v1/jobs/grid", {"id": "7", "history": "true"}).json["rows"]
    assert sorted(state["status"] for state in states) == ["done", "lost"]
    assert service.ask("GET", "/v1/jobs/grid", {"id": "7"}).json["rows"][0]["status"] == "lost"
    assert service.ask("GET", "/v1/jobs/grid/count", {"where": "user=bob", "days": "2026-01-01"}).json == {"count": 48}
    words = [("by", "user"), ("aggregate", "sum(run_s)"), ("where", "status=failed"), ("format", "csv"), ("limit", "1")]
    grouped = service.ask("GET", "/v1/jobs/grid/group", words).body.decode().splitlines()
    assert grouped == ["user,count,run_s_sum", f"ann,34,{sum(range(0, 500, 15)) * 7}"]
    use = service.ask("GET", "/v1/jobs/grid/explain", {"by": "status", "where": "user=ann"}).json
    assert use["index"] == "user_status"
    assert use["counts"] is True
    assert "index user_status answers" in use["summary"]


def test_jobs_are_those_of_the_library(service: Service, library: ct.Archive) -> None:
    near = jobs.open(library, "grid")
    with jobs.connect(service.url, "grid") as far:
        for question in (
            {},
            {"user": "ann", "status": ["failed", "lost"]},
            {"days": ("2026-01-01", "2026-01-02"), "where": ("run_s", ">", 99)},
            {"start": FIRST + timedelta(hours=5), "end": "2026-01-02"},
            {"where": [("submitted", "<", FIRST + timedelta(hours=5)), ("user", "!=", "bob")]},
        ):
            rows = [found.find(**question).to_arrow().sort_by("job_id") for found in (far, near)]
            assert rows[0].equals(rows[1]), question
            assert far.count(**question) == near.count(**question)
            grouped = {"aggregates": {"run_s": ["sum", "max"]}}
            assert far.group_by(["user", "status"], **grouped, **question).equals(
                near.group_by(["user", "status"], **grouped, **question)
            )
            assert far.explain(by=[], **question)["summary"] == str(near.explain(by=[], **question))
        assert far.get([1, 7]).to_arrow().equals(near.get([1, 7]).to_arrow())
        assert far.get(7, history=True).to_arrow().num_rows == 2
        with pytest.raises(ct.InvalidInputError, match="give a datetime"):
            far.count(start=17)


# ---------------------------------------------------------------------- operation


def test_limits_roles_and_figures_hold_as_for_all_requests(tmp_path: Path) -> None:
    fill(tmp_path / "logs.db")
    tokens = tmp_path / "tokens"
    tokens.write_text("r read - reader-0123456789abcdef\nw write - writer-0123456789abcdef\n")
    options = ("--tokens", str(tokens), "--max-points", "1000", "--max-body", "100KiB", "--query-time", "20s")
    with Service(tmp_path / "logs.db", tmp_path / "log", *options) as service:

        def ask(method: str, path: str, token: str, *given: Any) -> Answer:
            heads = {"Authorization": f"Bearer {token}-0123456789abcdef", "X-Request-Id": "mine"}
            return service.ask(method, path, *given, headers=heads)

        assert service.ask("GET", "/v1/events/web").error["kind"] == "token-missing"
        assert ask("GET", "/v1/events/web", "writer").error["kind"] == "role-missing"
        assert ask("POST", "/v1/events/web", "reader", None, b"{}").error["kind"] == "role-missing"
        assert ask("GET", "/v1/events/web", "reader", {"limit": "1001"}).error["kind"] == "too-large"
        assert ask("GET", "/v1/jobs/grid", "reader").status == 200
        too_much = ask("POST", "/v1/events/web", "writer", None, lines([document(1)] * 2_000))
        assert (too_much.status, too_much.error["kind"]) == (413, "too-large")
        assert ask("POST", "/v1/events/web", "writer", None, lines([document(1)]) + b"nothing\n").status == 200
        figures = ask("GET", "/metrics", "reader").body.decode()
        assert "chronotile_events_stored_total 1\n" in figures
        assert "chronotile_events_refused_total 1\n" in figures
        assert 'route="/v1/events/{name}",status="200"' in figures
        stored = [line for line in service.log() if line.get("path") == "/v1/events/web" and line["status"] == 200]
        assert [(line["method"], line["token"], line["request_id"]) for line in stored] == [("POST", "w", "mine")]
        assert service.stop() == 0


def test_a_stop_ends_what_is_being_stored_first(tmp_path: Path) -> None:
    with ct.open(tmp_path / "logs.db") as archive:
        events.create(archive, "web", fields=FIELDS, stream_field="host")
    body = lines([document(second) for second in range(12_000)])
    with Service(tmp_path / "logs.db", tmp_path / "log") as service:
        service.ask("POST", "/v1/events/web", None, lines([document(0)]))
        answers: list[Answer] = []
        thread = threading.Thread(target=lambda: answers.append(service.ask("POST", "/v1/events/web", None, body)))
        thread.start()
        while "chronotile_requests_in_flight 2" not in service.ask("GET", "/metrics").body.decode():
            assert thread.is_alive(), "the request was over before it was seen"
        assert service.stop() == 0
        thread.join()
    assert answers[0].json["documents"] == 12_000
    with ct.open(tmp_path / "logs.db") as archive:
        assert events.open(archive, "web").count() == 12_001
