"""Archives of events and jobs that another process changes while a service has them open."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest

pytest.importorskip("pyarrow")
from support_service import Service
from test_service_events import FIRST, document, lines, writable

import chronotile as ct
from chronotile import events, jobs

__all__ = ["writable"]

SCHEMA = {"job_id": "int64", "submitted": "timestamp[us, UTC]", "user": "utf8"}


class ServedArchive(NamedTuple):
    """A running service, the archive it serves, opened by this process, and a name that is free in it."""

    service: Service
    archive: ct.Archive
    name: str

    def get(self, path: str, **asked: Any) -> dict[str, Any]:
        answer = self.service.ask("GET", path.format(self.name), asked)
        assert answer.status == 200, answer.body
        return dict(answer.json)

    def refused(self, path: str, **asked: Any) -> tuple[int, str]:
        answer = self.service.ask("GET", path.format(self.name), asked)
        return answer.status, answer.error["kind"]

    def send(self, body: bytes, **asked: str) -> dict[str, Any]:
        answer = self.service.ask("POST", f"/v1/events/{self.name}", asked, body)
        assert answer.status == 200, answer.body
        return dict(answer.json)


@pytest.fixture
def place(writable: Service) -> Iterator[ServedArchive]:
    with ct.open(writable.log_path.parent / "logs.db") as archive:
        yield ServedArchive(writable, archive, f"e{uuid.uuid4().hex[:12]}")


def fresh(place: ServedArchive, *numbers: int) -> jobs.Jobs:
    found = jobs.create(place.archive, place.name, schema=SCHEMA, exist_ok=True)
    if numbers:
        found.write({"job_id": list(numbers), "submitted": [FIRST] * len(numbers), "user": ["ann"] * len(numbers)})
    return found


def drop_events(place: ServedArchive) -> None:
    for part in ("", "_dead", "_settings"):
        place.archive.drop(f"{place.name}{part}")


def test_another_ttl_holds_from_the_next_question_on(place: ServedArchive) -> None:
    log = events.create(place.archive, place.name, stream_field="host", ttl="30d")
    now = datetime.now(UTC)
    place.send(lines([document(0, time=(now - timedelta(days=days)).isoformat()) for days in (1, 3, 5)]))
    assert place.get("/v1/events/{}/count") == {"count": 3}
    log.set_ttl("4d")
    assert place.get("/v1/events/{}/count") == {"count": 2}
    assert len(place.get("/v1/events/{}")["rows"]) == 2
    log.set_ttl("2d")
    assert place.get("/v1/events/{}/histogram", interval="10d")["rows"][0]["count"] == 1


def test_a_field_that_is_declared_is_read_stored_and_asked_for(place: ServedArchive) -> None:
    log = events.create(place.archive, place.name, fields={"level": "utf8"}, stream_field="host")
    place.send(lines([document(1)]))
    assert place.refused("/v1/events/{}", where="status=501") == (400, "invalid-request")
    log.declare({"status": "int64"})
    assert place.get("/v1/events/{}/count", where="status=501") == {"count": 0}
    # The first request after the change may as well be one that stores.
    log.declare({"code": "int64"}, paths={"code": "status"})
    place.send(lines([document(2)]))
    rows = place.get("/v1/events/{}", where="code>0", columns="status,code")["rows"]
    assert rows == [{"status": 502, "code": 502}]
    assert log.count(code=502) == 1


def test_a_column_that_is_added_to_jobs_can_be_asked_for(place: ServedArchive) -> None:
    found = fresh(place, 1, 2)
    assert place.refused("/v1/jobs/{}/count", where="cpu>3") == (400, "invalid-request")
    found.dataset.add_columns({"cpu": "int64"}, {"cpu": 7})
    assert place.get("/v1/jobs/{}/count", where="cpu>3") == {"count": 2}
    assert place.get("/v1/jobs/{}", id="2")["rows"][0]["cpu"] == 7


def test_archives_that_are_dropped_are_not_found_and_their_names_are_free(place: ServedArchive) -> None:
    fresh(place, 1, 2)
    assert place.get("/v1/jobs/{}/count") == {"count": 2}
    place.archive.drop(place.name)
    for _ in range(2):
        assert place.refused("/v1/jobs/{}/count") == (404, "dataset-not-found")
    events.create(place.archive, place.name, stream_field="host")
    place.send(lines([document(1)]))
    drop_events(place)
    for _ in range(2):
        assert place.refused("/v1/events/{}/count") == (404, "dataset-not-found")
        sent = place.service.ask("POST", f"/v1/events/{place.name}", None, lines([document(2)]))
        assert (sent.status, sent.error["kind"]) == (404, "dataset-not-found")
    assert not [name for name in place.archive if name.startswith(place.name)]


@pytest.mark.parametrize("asked_in_between", [False, True])
def test_jobs_that_are_made_again_are_those_now(place: ServedArchive, asked_in_between: bool) -> None:
    fresh(place, 1, 2)
    assert place.get("/v1/jobs/{}", id="1")["rows"][0]["user"] == "ann"
    place.archive.drop(place.name)
    if asked_in_between:
        assert place.refused("/v1/jobs/{}/count") == (404, "dataset-not-found")
    schema = {"number": "int64", "submitted": "timestamp[us, UTC]", "host": "utf8"}
    again = jobs.create(place.archive, place.name, schema=schema, id="number", window="1h", slice=1)
    again.write({"number": [2, 3, 4], "submitted": [FIRST] * 3, "host": ["a", "b", "b"]})
    assert place.get("/v1/jobs/{}", id="2")["rows"][0]["host"] == "a"
    assert place.get("/v1/jobs/{}/count", where="host=b") == {"count": 2}
    period = {"start": "2026-01-01T00:00:00Z", "end": "2026-01-01T00:30:00Z"}
    assert place.get("/v1/jobs/{}/count", **period) == {"count": 3}
    # A dataset of this name that is no archive of jobs is refused as before.
    place.archive.drop(place.name)
    place.archive.create(place.name, schema=SCHEMA, cell=ct.cells.single(), time="submitted", window="1d")
    assert place.refused("/v1/jobs/{}/count") == (400, "invalid-request")


@pytest.mark.parametrize("slices", ["1d", 1])
def test_events_that_are_made_again_keep_nothing_of_the_former(place: ServedArchive, slices: str | int) -> None:
    events.create(place.archive, place.name, fields={"level": "utf8"}, stream_field="host")
    report = place.send(lines([document(second) for second in range(50)]) + b"nothing\n", batch="first")
    assert (report["documents"], report["rejected"]) == (50, 1)
    assert place.get("/v1/events/{}/count", where="level=error") == {"count": 5}
    drop_events(place)
    # With slices of a day the definition is to the letter what it was.
    fields = {"level": "utf8"} if slices == "1d" else {"status": "int64"}
    events.create(place.archive, place.name, fields=fields, stream_field="host", slice=slices)
    report = place.send(lines([document(second) for second in range(10)]) + b"nothing\n", batch="first")
    assert (report["stored"], report["documents"], report["rejected"]) == (True, 10, 1)
    assert place.get("/v1/events/{}/count") == {"count": 10}
    assert place.get("/v1/events/{}/count", start=(FIRST + timedelta(seconds=5)).isoformat()) == {"count": 5}
    rows = place.get("/v1/events/{}/dead")["rows"]
    assert [row["record"] for row in rows] == ["nothing"]
    # As it is seen by a process that has just opened it, in the same slices.
    log = events.open(place.archive, place.name)
    assert log.count() == 10
    assert len(log.dead_letters()) == 1
    assert log.dataset.verify().ok
    assert place.archive[f"{place.name}_dead"].verify().ok


def test_limits_of_streams_are_counted_on_when_a_field_is_declared(place: ServedArchive) -> None:
    limits = events.Limits(documents_per_s=10, period_s=30)
    log = events.create(place.archive, place.name, stream_field="host", limits=limits)
    body = lines([document(second, host="loud") for second in range(200)])
    place.send(body)
    log.declare({"level": "utf8"})
    refused = place.service.ask("POST", f"/v1/events/{place.name}", None, body)
    assert (refused.status, refused.error["kind"]) == (429, "quota-exceeded")
