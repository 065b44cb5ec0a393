"""A name that is not known is answered with the nearest known one: in Python, on the command line and over HTTP."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
from conftest import Run
from support_service import Service

import chronotile as ct
from chronotile import historian

TAGS = ["boiler.temperature", "boiler.pump", "Mill.Speed"]

NEAR = [
    ("boiler.temprature", "boiler.temperature"), ("oiler.temperature", "boiler.temperature"),
    ("mill.speed", "Mill.Speed"), ("temperature", "boiler.temperature"), ("boiler", "boiler.pump"),
]  # fmt: skip


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive with tags, events and jobs."""
    from chronotile import events, jobs

    path = tmp_path_factory.mktemp("names") / "all.db"
    with ct.open(f"sqlite:{path}") as opened:
        historian.open(opened).define_many([{"name": name} for name in TAGS])
        web = events.create(opened, "web", fields={"level": "utf8"}, stream_field="host")
        web.ingest_lines('{"time": "2026-01-01T00:00:00Z", "host": "webserver1", "level": "error"}')
        schema = {"job_id": "int64", "submitted": "timestamp[us, UTC]", "user": "utf8", "status": "utf8"}
        jobs.create(opened, "grid", schema=schema)
    return path


@pytest.mark.parametrize(("wrong", "right"), NEAR)
def test_an_unknown_tag_is_answered_with_the_nearest(wrong: str, right: str, archive: Path) -> None:
    with ct.open(f"sqlite:{archive}") as opened:
        h = historian.open(opened)
        for ask in (
            lambda: h.latest([wrong]),
            lambda: h.tag(wrong),
            lambda: h.write({"tag": [wrong], "time": ["2026-01-01"], "value": [1.0]}),
            lambda: h.delete(wrong, "2026-01-01", "2026-01-02"),
        ):
            with pytest.raises(ct.TagNotFoundError, match=rf'no tag "{wrong}" \(did you mean {right}[?\s]'):
                ask()
        for far in ("xyzzy", "*?", "é" * 200):
            with pytest.raises(ct.TagNotFoundError) as caught:
                h.latest([far])
            assert "did you mean" not in str(caught.value)


def test_the_nearest_of_many_tags_is_found_in_a_bounded_time(memory: ct.Archive) -> None:
    h = historian.open(memory)
    h.define_many([{"name": f"site{n % 7}.mill{n % 11}.bearing.{n}"} for n in range(20_000)])
    right = "site4.mill3.bearing.12345"
    for wrong in ("sote4.mill3.bearing.12345", "SITE4.mill3.bearing.12345", "site4.mill3.baering.12345"):
        began = time.process_time()
        with pytest.raises(ct.TagNotFoundError, match=f"did you mean {right}"):
            h.latest([wrong])
        assert time.process_time() - began < 5


def test_the_command_names_the_nearest_tag(archive: Path, chronotile: Run) -> None:
    done = chronotile("historian", "latest", archive, "boiler.temprature")
    assert done.returncode == 3
    assert 'no tag "boiler.temprature" (did you mean boiler.temperature?)' in done.stderr


@pytest.fixture(scope="module")
def service(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(archive, tmp_path_factory.mktemp("service") / "log") as running:
        yield running


PERIOD = {"start": "2026-01-01", "end": "2026-01-02"}


@pytest.mark.parametrize(
    ("path", "asked", "status", "meant"),
    [
        ("/v1/latest", {"tag": "boiler.temprature"}, 404, "(did you mean boiler.temperature?)"),
        ("/v1/tags/boiler.temprature", {}, 404, "(did you mean boiler.temperature?)"),
        ("/v1/aggregate", {"tag": "mill.speed", "aggregate": "Average", **PERIOD}, 404, "(did you mean Mill.Speed?)"),
        ("/v1/events/wbe", {}, 404, "did you mean web?"),
        ("/v1/events/web", {"where": "levle=error"}, 400, "did you mean level?"),
        ("/v1/events/web", {"columns": "levle"}, 400, "did you mean level?"),
        ("/v1/events/web/histogram", {"interval": "1d", "by": "levle"}, 400, "did you mean level?"),
        ("/v1/jobs/gird/count", {}, 404, "did you mean grid?"),
        ("/v1/jobs/grid/count", {"where": "usr=ann"}, 400, "did you mean user?"),
        ("/v1/jobs/grid/group", {"by": "usr"}, 400, "did you mean user?"),
        ("/v1/jobs/grid/group", {"by": "user", "aggregate": "sum(jobid)"}, 400, "did you mean job_id?"),
        ("/v1/jobs/grid", {"columns": "statu", "days": "2026-01-01"}, 400, "did you mean status?"),
    ],
)  # fmt: skip
def test_the_service_names_the_nearest(
    path: str, asked: dict[str, str], status: int, meant: str, service: Service
) -> None:
    answer = service.ask("GET", path, asked)
    assert answer.status == status, answer.body
    assert meant in answer.error["message"]


def test_a_refused_write_names_the_nearest_tag_of_its_first_unknown_one(service: Service) -> None:
    lines = "tag,time,value\nboiler.temprature,2026-01-01T00:00:00Z,1\nnone.such,2026-01-01T00:00:00Z,1\n"
    answer = service.ask("POST", "/v1/points", None, lines, {"Content-Type": "text/csv"})
    assert (answer.status, answer.error["kind"]) == (404, "tag-not-found")
    assert 'line 2: no tag "boiler.temprature" (did you mean boiler.temperature?)' in answer.error["message"]
    assert "did you mean" not in answer.error["refused"][1]["message"]
