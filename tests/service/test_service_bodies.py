"""Hostile bodies and questions: what they cost the service is bounded by what was sent or by what may be asked."""

from __future__ import annotations

import gzip
import os
import random
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
import pyarrow as pa
from support_arrow import damaged, ipc
from support_service import Answer, Service

import chronotile as ct
from chronotile import events, historian, jobs

MIB = 1 << 20
UNPACKED = 4 * MIB
GZIP = {"Content-Encoding": "gzip"}
JSON = GZIP | {"Content-Type": "application/json"}
CSV = GZIP | {"Content-Type": "text/csv"}


def snappy(pattern: bytes, size: int) -> bytes:
    """A snappy block of a pattern that is repeated: a literal, and copies of what lies behind it."""
    out, left = b"", size
    while True:
        out += bytes([left & 127 | (128 if left > 127 else 0)])
        left >>= 7
        if not left:
            break
    out += bytes([(len(pattern) - 1) << 2]) + pattern
    copies, rest = divmod(size - len(pattern), 64)
    copy = [bytes([(length - 1) << 2 | 2, len(pattern), 0]) for length in (64, max(rest, 1))]
    return out + copy[0] * copies + (copy[1] if rest else b"")


def memory_mib(service: Service, name: str) -> float:
    found = re.search(rf"{name}:\s+(\d+)", Path(f"/proc/{service.process.pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "a.db"
    with ct.open(path, create=True) as found:
        events.create(found, "web", stream_field="host", ttl="3650d")
        schema = {"job_id": "int64", "submitted": "timestamp[s]", "user": "utf8", "run_s": "int64"}
        jobs.create(found, "grid", schema=schema)
    with historian.open(path, create=True) as plant:
        plant.define_many([{"name": f"t{number}"} for number in range(200)])
    return path


@pytest.fixture
def service(archive: Path, tmp_path: Path) -> Iterator[Service]:
    if not Path("/proc/self/status").exists():
        pytest.skip("memory of a process is read from /proc")
    with Service(archive, tmp_path / "log") as found:
        assert found.ask("GET", "/v1/events/web/count").status == 200
        yield found
        assert found.ask("GET", "/health").status == 200


def repeated(pattern: bytes, before: bytes = b"", behind: bytes = b"") -> bytes:
    count = (UNPACKED - len(before) - len(behind)) // len(pattern)
    return gzip.compress(before + pattern * count + behind, 6)


BODIES: dict[str, tuple[str, Callable[[], bytes], dict[str, str], int]] = {
    "remote write, empty series": ("/api/v1/write", lambda: snappy(b"\x0a\x00", UNPACKED), {}, 400),
    "remote write, empty labels": (
        "/api/v1/write", lambda: snappy(b"\x0a\x40" + b"\x0a\x00" * 29, UNPACKED // 60 * 60), {}, 400),
    "JSON, numbers": ("/v1/points", lambda: repeated(b"1,", b"[", b"1]"), JSON, 400),
    "JSON, lists in a value": (
        "/v1/points", lambda: repeated(b"[],", b'[{"tag":"t1","time":1,"value":[', b"1]}]"),
        JSON, 400),
    "JSON, columns": (
        "/v1/points", lambda: repeated(b"1,", b'{"tag":["t1"],"time":[1],"value":[', b"1]}"),
        JSON, 400),
    "JSON, depth": (
        "/v1/points", lambda: repeated(b"[", b'[{"tag":"t1","time":1,"value":'), JSON, 400),
    "CSV, wrong lines": (
        "/v1/points", lambda: repeated(b"x\n", b"tag,time,value\n"), CSV, 400),
    "line protocol, wrong lines": ("/write", lambda: repeated(b"x\n"), GZIP, 400),
    "line protocol, fields of a line": ("/write", lambda: repeated(b",f=1", b"t1 value=1"), GZIP, 400),
    "line protocol, labels of a line": ("/write", lambda: repeated(b",l=1", b"t1"), GZIP, 400),
    "line protocol, unknown tags": (
        "/write", lambda: gzip.compress(b"".join(b"%x v=1\n" % n for n in range(UNPACKED // 10)), 1), GZIP, 413),
    "events, objects that are none": ("/v1/events/web", lambda: repeated(b"{x}\n"), GZIP, 400),
    "events, times of another type": ("/v1/events/web", lambda: repeated(b'{"time":1}\n'), GZIP, 400),
    "events, wrong lines": ("/v1/events/web", lambda: repeated(b"x\n"), GZIP, 400),
    "events, objects without a time": ("/v1/events/web", lambda: repeated(b"{}\n"), GZIP, 400),
    "tags": ("/v1/tags", lambda: repeated(b'{"name":"a"},', b'{"tags":[', b'{"name":"a"}]}'),
             JSON, 413),
    "a question of Grafana": (
        "/grafana/query", lambda: repeated(b"[],", b'{"targets":[', b"1]}"), JSON, 413),
}  # fmt: skip


def small(service: Service, path: str, headers: dict[str, str]) -> None:
    """A first request, so that what it leaves behind is no cost of the next."""
    plain = {name: value for name, value in headers.items() if name != "Content-Encoding"}
    service.ask("POST", path, body=b"{", headers=plain)


@pytest.mark.parametrize("kind", BODIES)
def test_a_small_packed_body_costs_few_times_what_it_unpacks_to(service: Service, kind: str) -> None:
    path, made, headers, status = BODIES[kind]
    body = made()
    small(service, path, headers)
    before = memory_mib(service, "VmHWM")
    answer = service.ask("POST", path, body=body, headers=headers)
    assert answer.status == status, answer.body[:500]
    assert len(answer.body) < 200_000
    grown = memory_mib(service, "VmHWM") - before
    assert grown < 16 * UNPACKED / MIB, f"{kind}: {len(body)} bytes cost {grown:.0f} MiB"


def test_refused_lines_are_counted_and_the_first_are_named(service: Service) -> None:
    answer = service.ask("POST", "/write", body=gzip.compress(b"x\n" * 5_000), headers=GZIP)
    assert (answer.error["refused_count"], len(answer.error["refused"])) == (5_000, 100)
    report = service.ask(
        "POST", "/write", {"partial": "true"}, gzip.compress(b"x\n" * 5_000 + b"t1 value=1 1\n"), GZIP
    ).json
    assert (report["points"], report["refused_count"], len(report["refused"])) == (1, 5_000, 100)


@pytest.mark.parametrize(
    "question",
    [
        ("/v1/jobs/grid/count", "where", "[" * 9_000),
        ("/v1/jobs/grid/count", "where", '{"a":' * 3_000),
        ("/v1/jobs/grid/count", "where", "run_s=" + "9" * 20_000 + "x"),
        ("/v1/jobs/grid/group?by=user", "aggregate", "a(" + " " * 6_000),
        ("/v1/events/web/histogram", "interval", "9" * 20_000 + "d"),
    ],
)
def test_hostile_words_are_refused_at_once(service: Service, question: tuple[str, str, str]) -> None:
    path, name, word = question
    path, _, fixed = path.partition("?")
    parameters = [("by", fixed.removeprefix("by="))] if fixed else []
    began = time.monotonic()
    answer = service.ask("GET", path, [*parameters, (name, word)])
    assert answer.status == 400, answer.body[:300]
    assert time.monotonic() - began < 5
    assert len(answer.body) < 3_000


def asked(service: Service, path: str, parameters: list[tuple[str, str]] | None = None, body: object = None) -> Answer:
    return service.ask("GET" if body is None else "POST", path, parameters, body)


RANGE = {"from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z"}
DAY = [("start", "2026-01-01"), ("end", "2026-01-02")]


def test_the_values_asked_for_are_tags_times_times(tmp_path: Path) -> None:
    with Service(tmp_path / "plant.db", tmp_path / "log", "--max-points", "1000") as service:
        points = [{"tag": f"t{number}", "time": "2026-01-01", "value": 1} for number in range(20)]
        assert service.ask("POST", "/v1/points", {"define": "true"}, {"points": points}).status == 200
        times = [("time", f"{1_767_225_600_000_000_000 + number}") for number in range(51)]
        fit = asked(service, "/v1/at", [("match", "t*"), *times[:50]])
        assert (fit.status, len(fit.json["rows"])) == (200, 1_000)
        answer = asked(service, "/v1/at", [("match", "t*"), *times])
        assert (answer.status, answer.error["kind"]) == (413, "too-large")


def test_limits_hold_for_tags_times_targets(service: Service) -> None:
    every = [("match", "t*")]
    times = [("time", f"{1_767_225_600_000_000_000 + number}") for number in range(1_600)]
    found = asked(service, "/v1/at", every + times)
    assert found.status == 200
    assert len(found.json["rows"]) == 200 * 1_600
    targets = [{"target": "t1", "refId": str(number)} for number in range(5_000)]
    answer = asked(service, "/grafana/query", body={"range": RANGE, "targets": targets, "maxDataPoints": 100_000})
    assert (answer.status, answer.error["kind"]) == (413, "too-large")
    answer = asked(service, "/grafana/query", body={"range": RANGE, "targets": [*targets[:2], {"target": "none"}]})
    assert (answer.status, answer.error["kind"]) == (404, "tag-not-found")
    assert len(asked(service, "/grafana/query", body={"range": RANGE, "targets": targets[:300]}).json) == 300
    answer = asked(
        service, "/grafana/annotations", body={"range": RANGE, "annotation": {"query": "*", "x": "y" * 5_000}}
    )
    assert answer.status == 413


def test_many_empty_intervals_are_streamed(service: Service) -> None:
    before = memory_mib(service, "VmHWM")
    question = [("tag", "t1"), *DAY, ("interval", "50ms"), ("aggregate", "Count"), ("format", "csv")]
    answer = asked(service, "/v1/aggregate", question)
    assert answer.status == 200
    assert answer.body.count(b"\n") == 86_400 * 20 + 1
    grown = memory_mib(service, "VmHWM") - before
    # 1,728,000 results of 20 bytes, and pieces of the answer.
    assert grown < 100, f"{grown:.0f} MiB"


def test_large_documents_are_streamed_and_bounded(service: Service) -> None:
    document = b'{"time":"2026-01-01T%02d:00:%02dZ","host":"h","x":"%s"}\n'
    large = b"y" * 1_000_000
    for hour in range(15):
        body = gzip.compress(b"".join(document % (hour, second, large) for second in range(10)), 1)
        assert service.ask("POST", "/v1/events/web", body=body, headers=GZIP).status == 200
    over = service.ask("POST", "/v1/events/web", body=document % (20, 0, b"z" * MIB))
    assert over.status == 400
    assert "more than 1,048,576" in over.error["message"]
    time.sleep(0.1)
    before = memory_mib(service, "VmHWM")
    answer = asked(service, "/v1/events/web", [("limit", "150"), ("format", "raw")])
    assert answer.status == 200
    assert [line[20:28] for line in answer.body.splitlines()][:2] == [b"14:00:09", b"14:00:08"]
    assert answer.body.count(b"\n") == 150
    grown = memory_mib(service, "VmHWM") - before
    assert grown < 400, f"{grown:.0f} MiB of {len(answer.body) / MIB:.0f}"


def test_the_service_is_still_whole(service: Service) -> None:
    assert os.path.exists(f"/proc/{service.process.pid}")
    assert service.ask("GET", "/v1/tags/t1").status == 200


ARROW = {"Content-Type": "application/vnd.apache.arrow.stream"}


def test_arrow_bodies_that_contradict_their_schema_are_refused(service: Service) -> None:
    rows = pa.table({
        "tag": pa.array(["t0", "t1", "t0"]).dictionary_encode(),
        "time": pa.array([10**18, 10**18 + 1, 10**18 + 2], pa.timestamp("ns", "UTC")),
        "value": pa.array([1.0, None, 3.0]),
    })  # fmt: skip
    whole = ipc(rows, "stream")
    assert service.ask("POST", "/v1/points", {"not_finite": "bad"}, whole, ARROW).status == 200

    def head(table: pa.Table) -> bytes:
        return ipc(table.schema.empty_table(), "stream")[:-8]

    more = rows.append_column("other", rows["value"])
    for claimed, sent, reason in ((rows, more, "more columns"), (more, rows, "is missing")):
        lying = head(claimed) + ipc(sent, "stream")[len(head(sent)) :]
        answer = service.ask("POST", "/v1/points", None, lying, ARROW)
        assert (answer.status, answer.error["kind"]) == (400, "invalid-rows"), answer.body
        assert reason in answer.error["message"]
    choice = random.Random(23)
    statuses = {service.ask("POST", "/v1/points", None, damaged(whole, choice), ARROW).status for _ in range(1_500)}
    assert 400 in statuses
    assert statuses <= {200, 400, 404, 413}, statuses
