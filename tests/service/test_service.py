"""The service: every route, what it refuses, and what it keeps when it is killed."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import Run
from support_service import Service
from support_waiting import wait_until

import chronotile as ct
from chronotile import historian

S = 10**9
START = 1_767_225_600 * S
"""2026-01-01T00:00:00Z."""
ARROW = "application/vnd.apache.arrow.stream"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service with two tags and an hour of points."""
    folder = tmp_path_factory.mktemp("service")
    with historian.open(folder / "plant.db") as h:
        h.define("boiler.temp", unit="degC")
        h.define("boiler.pump", data_type="bool")
        times = START + np.arange(3600) * S
        h.write({"tag": ["boiler.temp"] * 3600, "time": times, "value": np.arange(3600.0)})
        h.write({"tag": ["boiler.pump"], "time": ["2026-01-01"], "value": [True]})
        h.annotate("boiler.temp", "2026-01-01T00:30", "looked at", author="ann")
    with Service(folder / "plant.db", folder / "log") as service:
        yield service


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Service]:
    """A service of an empty archive."""
    with Service(tmp_path / "plant.db", tmp_path / "log") as service:
        yield service


def arrow_of(body: bytes) -> pa.Table:
    return pa.ipc.open_stream(body).read_all()


def values(service: Service, tag: str) -> list[Any]:
    answer = service.ask("GET", "/v1/points", {"tag": tag, "start": "2020-01-01", "end": "2029-01-01"})
    return [row["value"] for row in answer.json["rows"]]


# ---------------------------------------------------------------------- description


def test_every_route_of_the_description_answers_and_no_other(service: Service) -> None:
    document = service.ask("GET", "/openapi.json").json
    assert document["openapi"] == "3.1.0"
    tried = 0
    for path, operations in document["paths"].items():
        target = path.replace("{name}", "boiler.temp").replace("{group}", "main")
        for method in ("get", "post", "put", "delete"):
            answer = service.ask(method.upper(), target, body=None)
            if method not in operations:
                assert answer.status == 405, (method, path)
                assert answer.error["kind"] == "method-not-allowed"
                continue
            tried += 1
            assert answer.status not in (405, 500), (method, path, answer.body)
            assert answer.status != 404 or answer.error["kind"] == "dataset-not-found", (method, path)
            takes_none = {parameter["name"] for parameter in operations[method]["parameters"]}
            assert "bogus" not in takes_none
            refused = service.ask(method.upper(), target, {"bogus": "1"})
            assert (refused.status, refused.error["kind"]) == (400, "invalid-request")
            assert "bogus" in refused.error["message"]
    assert tried == sum(len(operations) for operations in document["paths"].values()) > 25
    assert service.ask("GET", "/nothing/here").error["kind"] == "no-such-path"


def test_required_words_of_the_description_are_required(service: Service) -> None:
    document = service.ask("GET", "/openapi.json").json
    checked = 0
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            for parameter in operation["parameters"]:
                if parameter["in"] == "query" and parameter["required"]:
                    target = path.replace("{name}", "x").replace("{group}", "x")
                    answer = service.ask(method.upper(), target)
                    assert answer.status == 400, (method, path)
                    assert "missing" in answer.error["message"]
                    checked += 1
    assert checked > 5


# ---------------------------------------------------------------------- reads


def test_points_come_in_every_format(service: Service) -> None:
    asked = {"tag": "boiler.temp", "start": "2026-01-01T00:00:10Z", "end": "2026-01-01T00:00:13Z"}
    assert [row["value"] for row in service.ask("GET", "/v1/points", asked).json["rows"]] == [10.0, 11.0, 12.0]
    table = arrow_of(service.ask("GET", "/v1/points", asked, headers={"Accept": ARROW}).body)
    assert table.column_names == ["tag", "time", "value", "status"]
    assert table["value"].to_pylist() == [10.0, 11.0, 12.0]
    lines = service.ask("GET", "/v1/points", asked | {"format": "csv"}).body.decode().splitlines()
    assert lines == [
        "tag,time,value,status",
        *(f"boiler.temp,2026-01-01T00:00:{second}Z,{second}.0,0" for second in (10, 11, 12)),
    ]
    rows = service.ask("GET", "/v1/points", asked | {"format": "ndjson"}).body.decode().splitlines()
    assert json.loads(rows[0]) == {"tag": "boiler.temp", "time": "2026-01-01T00:00:10Z", "value": 10.0, "status": 0}
    parquet = service.ask("GET", "/v1/points", asked | {"format": "parquet"}).body
    assert parquet[:4] == parquet[-4:] == b"PAR1"
    assert service.ask("GET", "/v1/points", asked | {"tag": "boiler.pump"}).json == {"rows": []}
    assert service.ask("GET", "/v1/points", asked, headers={"Accept": "image/png"}).status == 406
    assert service.ask("GET", "/v1/points", asked | {"format": "xml"}).status == 400


def test_reads_are_those_of_the_library(service: Service) -> None:
    with historian.connect(service.url) as remote, historian.open(service_archive(service), create=False) as local:
        tags = ["boiler.temp", "boiler.pump"]
        period = ("2026-01-01", "2026-01-01T01:00")
        pairs = [
            (remote.raw(tags, *period, bounds=True), local.raw(tags, *period, bounds=True)),
            (remote.latest(tags), local.latest(tags)),
            (remote.at("boiler.temp", ["2026-01-01T00:00:00.5"]), local.at("boiler.temp", ["2026-01-01T00:00:00.5"])),
            (remote.plot(tags[0], *period, points=40), local.plot(tags[0], *period, points=40)),
            (remote.annotations(tags, *period), local.annotations(tags, *period)),
        ]
        for name in historian.AGGREGATES:
            pairs.append(
                (remote.aggregate(tags[0], *period, "7m", name), local.aggregate(tags[0], *period, "7m", name))
            )
        pairs.append((
            remote.aggregate(tags[0], *period, "7m", "Percentile", percent=99, stepped=True, rules="standard"),
            local.aggregate(tags[0], *period, "7m", "Percentile", percent=99, stepped=True, rules="standard"),
        ))  # fmt: skip
        for far, near in pairs:
            assert far.to_arrow().equals(near.to_arrow())
        assert remote.tags("boiler.*") == local.tags("boiler.*")
        assert remote.tag("boiler.pump") == local.tag("boiler.pump") == remote.tag(local.tag("boiler.pump").number)
        assert remote.groups() == local.groups()


def test_short_answers_share_a_connection(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[http.client.HTTPConnection] = []
    connect = http.client.HTTPConnection.connect

    def counted(connection: http.client.HTTPConnection) -> None:
        opened.append(connection)
        connect(connection)

    monkeypatch.setattr(http.client.HTTPConnection, "connect", counted)
    with historian.connect(service.url) as remote:
        kept = [remote.raw("boiler.temp", "2026-01-01", "2026-01-02") for _ in range(3)]
        assert remote.aggregate("boiler.temp", "2026-01-01", "2026-01-02", "1h", "Average").to_arrow().num_rows == 24
        assert [result.to_arrow().num_rows for result in kept] == [3600] * 3
    assert len(opened) == 1


def service_archive(service: Service) -> str:
    return str(service.log_path.parent / "plant.db")


def test_bad_reads_are_refused_with_the_reason(service: Service) -> None:
    for path, asked, status, kind, reason in [
        ("/v1/points", {"tag": "none", "start": "2026-01-01"}, 404, "tag-not-found", "a pattern such as"),
        ("/v1/points", {"tag": "boiler.temp", "start": "soon"}, 400, "invalid-time", "soon"),
        ("/v1/points", {"tag": "boiler.temp", "start": "3000-01-01"}, 400, "invalid-time", "1677 to 2262"),
        ("/v1/points", {"tag": "boiler.temp", "start": "now-1d", "end": "now-2d"}, 400, "invalid-request", "swap"),
        ("/v1/points", {"tag": "boiler.temp", "start": "1900-01-01"}, 413, "too-large", "longer than"),
        ("/v1/points", {"start": "2026-01-01"}, 400, "invalid-request",
         "give tag, number or match"),
        ("/v1/plot", {"start": "2026-01-01"}, 400, "invalid-request", "give tag or number"),
        ("/v1/plot", [("tag", "boiler.temp"), ("number", "7"), ("start", "2026-01-01")], 400, "invalid-request",
         "one at a time"),
        ("/v1/points", {"number": "x", "start": "2026-01-01"}, 400, "invalid-request", "whole number"),
        ("/v1/latest", {"match": "nothing*"}, 404, "tag-not-found", "no tag matches \"nothing*\""),
        ("/v1/at", {"tag": "boiler.temp", "time": "x"}, 400, "invalid-time", "x"),
        ("/v1/aggregate", {"tag": "boiler.temp", "start": "now-1h", "aggregate": "Avg"}, 400, "invalid-request", "Avg"),
        ("/v1/aggregate", {"tag": "boiler.temp", "start": "now-1d", "aggregate": "Count", "interval": "1ns"}, 413,
         "too-large", "aggregate"),
        ("/v1/aggregate", {"tag": "boiler.temp", "start": "now-1d", "aggregate": "Count", "percent_bad": "101"}, 400,
         "invalid-request", "percentage"),
        ("/v1/plot", {"tag": "boiler.temp", "start": "now-1d", "points": "2"}, 400, "invalid-request", "at least 4"),
        ("/v1/datasets/none", {}, 404, "dataset-not-found", "none"),
        ("/v1/datasets/historian_tags/read", {"where": "nothing"}, 400, "invalid-request", "a comparison and a value"),
        ("/v1/datasets/historian_tags/read", {"columns": "nothing"}, 400, "invalid-request", "nothing"),
    ]:  # fmt: skip
        answer = service.ask("GET", path, asked)
        assert (answer.status, answer.error["kind"]) == (status, kind), (path, asked, answer.body)
        assert reason in answer.error["message"], answer.error
        assert answer.error["request_id"] == answer.headers["X-Request-Id"]


def test_refusals_advise_what_the_interface_offers(service: Service) -> None:
    arrow = {"Content-Type": ARROW}
    soon = pa.table({"tag": ["boiler.temp"], "time": pa.array([4 * 10**18], pa.timestamp("ns", "UTC")), "value": [1.0]})
    absent = soon.set_column(0, "tag", pa.array(["none"]))
    nothing = soon.set_column(1, "time", pa.array([START], pa.timestamp("ns", "UTC")))
    nothing = nothing.set_column(2, "value", pa.array([None], pa.float64()))
    period = {"start": "2026-01-01", "end": "2026-01-02"}
    for method, path, asked, body, status, reason in [
        ("DELETE", "/v1/points", period, None, 400, "give tag or number"),
        ("DELETE", "/v1/points", period | {"match": "*"}, None, 400, "it takes tag, number, start, end"),
        ("POST", "/v1/points", None, arrow_bytes(soon), 400, "have max_future raised"),
        ("POST", "/v1/points", None, arrow_bytes(absent), 404, "by a pattern such as *part*"),
        ("POST", "/v1/points", None, arrow_bytes(nothing), 400, "write with not_finite=bad"),
    ]:
        answer = service.ask(method, path, asked, body, arrow if body else None)
        assert (answer.status, reason in answer.error["message"]) == (status, True), answer.body
        assert "()" not in answer.error["message"]
        assert answer.error.get("tag", "boiler.temp") in ("boiler.temp", "none")


def test_any_dataset_can_be_read(tmp_path: Path) -> None:
    with ct.open(tmp_path / "archive.db") as archive:
        jobs = archive.create(
            "jobs", schema=pa.schema([("job", pa.int64()), ("site", pa.string()), ("end", pa.timestamp("us", "UTC"))]),
            cell=ct.id_bucket("job", 10), time="end", window="1d", id=["job"],
        )  # fmt: skip
        end = pa.array([START // 1000 + job * 10**6 for job in range(100)], pa.timestamp("us", "UTC"))
        jobs.write(pa.table({"job": range(100), "site": ["CERN", "RAL"] * 50, "end": end}))
    with Service(tmp_path / "archive.db", tmp_path / "log") as service:

        def read(**asked: str) -> list[int]:
            answer = service.ask("GET", "/v1/datasets/jobs/read", asked)
            return sorted(row["job"] for row in answer.json["rows"])

        assert read() == list(range(100))
        assert read(where="site==RAL", end="2026-01-01T00:00:10Z") == [1, 3, 5, 7, 9]
        assert read(id="17", columns="job") == [17]
        assert read(cell="3") == list(range(30, 40))
        assert read(where="job between 5,7") == [5, 6, 7]
        assert read(where="job in 5,7") == [5, 7]
        assert read(where="job<2.5") == [0, 1, 2]
        assert read(where="job>=1e99") == read(where="end==2026-01-01T00:00:01.0000001Z") == []
        assert read(where="end<=2026-01-01T00:00:01.0000001Z") == [0, 1]
        assert read(where="end in 2026-01-01T00:00:01Z,2026-01-01T00:00:01.5Z") == [1]
        for wrong in ({"where": "job<many"}, {"where": "end<yesterday"}, {"id": "1.5"}, {"key": "1.5"}):
            assert service.ask("GET", "/v1/datasets/jobs/read", wrong).status == 400, wrong
        assert len(read(limit="7")) == 7
        state = service.ask("GET", "/v1/datasets/jobs").json
        assert (state["rows"], len(state["slices"])) == (100, 1)
        names = {dataset["name"] for dataset in service.ask("GET", "/v1/datasets").json["datasets"]}
        assert {"jobs", "historian_tags"} <= names


def test_a_circle_of_the_sky_is_read_with_angles_in_any_unit(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    ra, dec = 150 + rng.uniform(-0.5, 0.5, 3000), 2.2 + rng.uniform(-0.5, 0.5, 3000)
    with ct.open(tmp_path / "archive.db") as archive:
        sky = archive.create(
            "sky", schema={"n": "int64", "mjd": "float64", "ra": "float64", "dec": "float64"},
            cell=ct.sky("ra", "dec", level=8), time="mjd", id="n",
        )  # fmt: skip
        sky.write({"n": np.arange(3000), "mjd": np.full(3000, 61_041.5), "ra": ra, "dec": dec})

        def inside(*place: float) -> list[int]:
            return sorted(sky.read(region=ct.circle(*place), columns=["n"]).to_arrow()["n"].to_pylist())

        whole, narrow = inside(150.1, 2.2, 0.1), inside(150.1, 2.2, 2 / 60)
        # Some rows of the pixels around are outside.
        assert 0 < len(narrow) < len(whole) < 3000
    with Service(tmp_path / "archive.db", tmp_path / "log") as service:

        def read(region: str, status: int = 200, **more: str) -> Any:
            answer = service.ask("GET", "/v1/datasets/sky/read", {"region": region, "columns": "n", **more})
            assert answer.status == status, answer.body
            return sorted(row["n"] for row in answer.json["rows"]) if status == 200 else answer.error

        for region in (
            "150.1,2.2,0.1", "150.1deg,2.2deg,0.1deg", "150.1,2.2,360arcsec", "10h0m24s,2d12m,6arcmin",
            "10:00:24,2:12:00,0:06:00", "10:00:24,+02:12:00,6arcmin", "10h00m24s,132arcmin,360000mas",
        ):  # fmt: skip
            assert read(f"circle,{region}") == whole, region
        assert read("circle,10h0m24s,2d12m,2arcmin") == narrow
        assert read("circle,150.1,2.2,0.1", where="n<100") == [n for n in whole if n < 100]
        for region, message in (
            ("150.1,2.2,0.1parsec", '"0.1parsec" is not an angle'), ("10x,2.2,0.1", '"10x" is not an angle'),
            ("150.1,2.2", "write circle,RA,DEC,RADIUS"), ("150.1,92,0.1", "92"),
        ):  # fmt: skip
            error = read(f"circle,{region}", 400)
            assert (error["kind"] in ("invalid-sky", "invalid-request"), message in error["message"]) == (True, True)
        assert "give only one of cell, key and region" in read("circle,150.1,2.2,0.1", 400, cell="3")["message"]


# ---------------------------------------------------------------------- writes


def test_points_go_in_by_every_format(fresh: Service) -> None:
    define = {"define": "true"}
    point = {"tag": "json", "time": "2026-01-01T00:00:00Z", "value": 1.5}
    assert fresh.ask("POST", "/v1/points", define, {"points": [point]}).json["points"] == 1
    csv = "tag,time,value,status\ncsv,2026-01-01,2.5,\ncsv,2026-01-02,,2147483648\n"
    packed = gzip.compress(csv.encode())
    heads = {"Content-Type": "text/csv", "Content-Encoding": "gzip"}
    assert fresh.ask("POST", "/v1/points", define, packed, heads).json["points"] == 2
    line = f"cpu,host=a usage=3.5,cores=4i {START}"
    assert fresh.ask("POST", "/api/v2/write", define | {"org": "o", "bucket": "b"}, line).status == 204
    assert (
        fresh.ask("POST", "/write", define | {"db": "d", "precision": "s"}, f"level value=4.5 {START // S}").status
        == 204
    )
    assert fresh.ask("POST", "/api/v1/write", define, remote_write({"up": [(START // 10**6, 5.5)]})).status == 204
    table = pa.table({"tag": ["json"], "time": pa.array([START + S], pa.timestamp("ns", "UTC")), "value": [6.5]})
    done = fresh.ask("POST", "/v1/points", None, arrow_bytes(table), {"Content-Type": ARROW}).json
    assert (done["points"], done["duplicates"], done["stored"]) == (1, 0, True)
    assert values(fresh, "json") == [1.5, 6.5]
    assert values(fresh, "csv") == [2.5, None]
    assert values(fresh, 'cpu.usage{host="a"}') == [3.5]
    assert fresh.ask("GET", "/v1/tags", {"match": "cpu.cores*"}).json["tags"][0]["data_type"] == "integer"
    assert values(fresh, "level") == [4.5]
    assert values(fresh, 'up{job="x"}') == [5.5]


def arrow_bytes(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def field(number: int, content: bytes) -> bytes:
    """A length-delimited field of a protobuf message."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def varint(number: int) -> bytes:
    out = bytearray()
    while number >= 128:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def remote_write(series: dict[str, list[tuple[int, float]]]) -> bytes:
    message = b""
    for name, samples in series.items():
        labels = b"".join(
            field(1, field(1, label.encode()) + field(2, value.encode()))
            for label, value in (("__name__", name), ("job", "x"))
        )
        points = b"".join(field(2, b"\x09" + struct.pack("<d", value) + b"\x10" + varint(ms)) for ms, value in samples)
        message += field(1, labels + points)
    return bytes(pa.compress(message, codec="snappy", asbytes=True))


def test_a_bad_line_refuses_all_or_itself_as_asked(fresh: Service) -> None:
    fresh.ask("POST", "/v1/tags", body={"tags": [{"name": "a"}, {"name": "on", "data_type": "bool"}]})
    lines = f"a value=1 {START}\na value=oops {START}\nunknown value=1\non value=7\na value=2 {START + S}\n"
    lines += f"a value=3 {4 * 10**18}"
    refused = fresh.ask("POST", "/write", body=lines)
    assert (refused.status, refused.error["kind"], refused.error["refused_count"]) == (400, "invalid-rows", 1)
    assert "line 2" in refused.error["message"]
    assert "partial=true" in refused.error["message"]
    assert values(fresh, "a") == []
    kept = fresh.ask("POST", "/write", {"partial": "true"}, lines)
    assert (kept.status, kept.json["points"], kept.json["refused_count"]) == (200, 2, 4)
    assert [refused["line"] for refused in kept.json["refused"]] == [2, 3, 4, 6]
    assert values(fresh, "a") == [1.0, 2.0]
    # Of a body of which nothing can be stored, a sender that sees success would never send the points again.
    wrong = fresh.ask("POST", "/write", {"partial": "true"}, f"a value=oops {START}\nunknown value=1")
    assert (wrong.status, wrong.error["kind"], wrong.error["refused_count"]) == (400, "invalid-rows", 2)
    unknown = fresh.ask("POST", "/write", {"partial": "true"}, "unknown value=1")
    assert (unknown.status, unknown.error["kind"]) == (404, "tag-not-found")
    for body, heads, status, kind in [
        ("tag,time\n", {"Content-Type": "text/csv"}, 400, "invalid-rows"),
        ("{", {"Content-Type": "application/json"}, 400, "invalid-rows"),
        (b"ARROW1", {"Content-Type": ARROW}, 400, "invalid-rows"),
        ("x", {"Content-Type": "text/html"}, 415, "unsupported-type"),
        ("[]", {"Content-Type": "application/json", "Content-Encoding": "br"}, 415, "unsupported-encoding"),
        (b"\x1f\x8bxx", {"Content-Type": "application/json", "Content-Encoding": "gzip"}, 400, "invalid-request"),
        (
            '[{"tag": "none", "time": 1000000000, "value": 1}]',
            {"Content-Type": "application/json"},
            404,
            "tag-not-found",
        ),
        (
            '[{"tag": "a", "time": 1000000000, "value": null}]',
            {"Content-Type": "application/json"},
            400,
            "invalid-rows",
        ),
        ('[{"tag": "a", "time": 1000000000, "value": "x"}]', {"Content-Type": "application/json"}, 400, "invalid-rows"),
    ]:
        answer = fresh.ask("POST", "/v1/points", None, body, heads)
        assert (answer.status, answer.error["kind"]) == (status, kind), (body, answer.body)
    assert fresh.ask("POST", "/api/v1/write", None, b"no snappy").status == 400
    assert fresh.ask("POST", "/write", {"precision": "year"}, "a value=1").status == 400
    bad = '[{"tag": "a", "time": "2026-01-03", "value": null}]'
    heads = {"Content-Type": "application/json"}
    assert fresh.ask("POST", "/v1/points", {"not_finite": "bad"}, bad, heads).json["points"] == 1


def test_a_named_batch_is_stored_once_and_other_content_refused(fresh: Service) -> None:
    with historian.connect(fresh.url) as h:
        h.define("a")
        points = {"tag": ["a"], "time": ["2026-01-01"], "value": [1.0]}
        assert h.write(points, batch="b").stored
        assert not h.write(points, batch="b").stored
        with pytest.raises(ct.BatchConflictError):
            h.write(points | {"value": [2.0]}, batch="b")
        assert h.write(points | {"value": [2.0]}, batch="b", replace=True).stored
        assert h.latest("a").to_arrow()["value"].to_pylist() == [2.0]


def test_a_buffer_of_the_client_applies_deviations_before_it_sends(fresh: Service) -> None:
    with historian.connect(fresh.url) as h:
        h.define_many([{"name": "steady", "exception_deviation": 0.5}, {"name": "line", "compression_deviation": 0.1}])
        times = [f"2020-01-01T00:00:0{second}" for second in range(5)]
        with h.buffered() as buffer:
            buffer.write({"tag": ["steady"] * 5, "time": times, "value": [1.0, 1.2, 2.0, 1.9, 1.0]})
            buffer.write({"tag": ["line"] * 5, "time": times, "value": [0.0, 1.0, 2.0, 3.0, 4.0]})
        read = {
            tag: h.raw(tag, "2020-01-01", "2020-01-02").to_arrow()["value"].to_pylist() for tag in ("steady", "line")
        }
        assert read == {"steady": [1.0, 2.0, 1.0], "line": [0.0, 4.0]}
        with pytest.raises(ct.TagNotFoundError):
            h.buffered().write({"tag": ["nobody"], "time": times[:1], "value": [1.0]})


def test_the_client_does_all_that_the_library_does(fresh: Service) -> None:
    with historian.connect(fresh.url) as h:
        tag = h.define("a", unit="m", stepped=True, group="old", exception_deviation=0.5)
        assert (tag.unit, tag.stepped, tag.exception_deviation) == ("m", True, 0.5)
        with h.buffered(points=2) as buffer:
            buffer.write({"tag": ["a"] * 3, "time": ["2020-01-01", "2020-01-02", "2020-01-03"], "value": [1, 2, 3]})
        h.annotate("a", "2020-01-02", "seen", author="ann")
        assert h.annotations("a", "2020-01-01", "2020-02-01").to_arrow()["text"].to_pylist() == ["seen"]
        assert h.delete("a", "2020-01-02", "2020-01-03") == 1
        assert h.raw("a", "2020-01-01", "2021-01-01").to_arrow()["value"].to_pylist() == [1.0, 3.0]
        assert h.groups() == ["old"]
        h.maintain()
        h.set_retention("old", "30d")
        # Nothing said is not "for ever".
        assert "retention" in fresh.ask("PUT", "/v1/groups/old", body={}).error["message"]
        assert h.retire("old", dry_run=True) == h.retire("old") > 0
        assert h.latest("a").to_arrow().num_rows == 0
        with pytest.raises(ct.TagNotFoundError):
            h.tag("none")
        with pytest.raises(ct.InvalidInputError, match="type"):
            h.write({"tag": ["a"], "time": ["2026-01-01"], "value": ["text"]})
    with pytest.raises(ct.ClosedError):
        h.tags()
    with pytest.raises(ct.UnavailableError, match="no service answers"):
        historian.connect("http://127.0.0.1:9").tags()
    with pytest.raises(ct.InvalidInputError):
        historian.connect("ftp://127.0.0.1")


def test_the_command_line_takes_a_service_for_an_archive(fresh: Service, tmp_path: Path, chronotile: Run) -> None:
    (tmp_path / "points.csv").write_text("tag,time,value\na,2026-01-01T00:00:00,1\na,2026-01-01T01:00:00,3\n")
    chronotile("historian", "tags", fresh.url, "--define", "a", "--unit", "m")
    assert "2 points stored" in chronotile("historian", "write", fresh.url, str(tmp_path / "points.csv")).stderr
    assert "a" in chronotile("historian", "tags", fresh.url).stdout
    assert ",3.0," in chronotile("historian", "latest", fresh.url, "a", "--format", "csv").stdout
    period = ("--start", "2026-01-01", "--end", "2026-01-01T01:00")
    assert ",2.0," in chronotile("historian", "aggregate", fresh.url, "a", *period, "--format", "csv").stdout
    assert chronotile("historian", "read", fresh.url, "a", *period, "--format", "csv").stdout.count("\n") == 2


def test_two_services_write_the_same_archive_at_once(tmp_path: Path) -> None:
    archive = tmp_path / "plant.db"
    with Service(archive, tmp_path / "log1") as one, Service(archive, tmp_path / "log2") as two:
        with historian.connect(one.url) as h:
            h.define("a")

        def write(number: int) -> int:
            service = (one, two)[number % 2]
            return service.ask("POST", "/write", body=f"a value={number} {START + number * S}").status

        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(write, range(200))) == {204}
        assert values(one, "a") == values(two, "a") == [float(number) for number in range(200)]


def test_what_was_acknowledged_survives_the_killed_service(tmp_path: Path) -> None:
    archive = tmp_path / "plant.db"
    with Service(archive, tmp_path / "log") as service:
        service.ask("POST", "/v1/tags", body={"tags": [{"name": f"t{writer}"} for writer in range(4)]})
        acknowledged: list[tuple[int, int]] = []
        enough = threading.Event()

        def write(writer: int) -> None:
            for number in range(100_000):
                try:
                    answer = service.ask("POST", "/write", body=f"t{writer} value={number} {START + number * S}")
                except (OSError, http.client.HTTPException):
                    return
                assert answer.status == 204
                acknowledged.append((writer, number))
                if len(acknowledged) > 150:
                    enough.set()

        threads = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
        for thread in threads:
            thread.start()
        assert enough.wait(60)
        service.process.kill()
        for thread in threads:
            thread.join()
    with historian.open(archive, create=False) as h:
        for writer in range(4):
            stored = set(h.raw(f"t{writer}", "2026-01-01", "2027-01-01").to_arrow()["value"].to_pylist())
            assert {float(number) for who, number in acknowledged if who == writer} <= stored


# ---------------------------------------------------------------------- operation


def test_a_stop_ends_requests_first_and_says_so(tmp_path: Path) -> None:
    with Service(tmp_path / "plant.db", tmp_path / "log") as service:
        service.ask("POST", "/v1/tags", body={"tags": [{"name": "a"}]})
        body = b"a value=1 1767225600000000000"
        with socket.create_connection(("127.0.0.1", service.port)) as slow:
            head = f"POST /write HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
            slow.sendall(head.encode() + body[:5])
            wait_until(lambda: metric(service, "chronotile_requests_in_flight") == 2, "two requests")
            service.process.send_signal(signal.SIGTERM)
            wait_until(lambda: any("stopping" in line.get("message", "") for line in service.log()), "the end to begin")
            with pytest.raises(ConnectionError):
                service.ask("GET", "/health")
            slow.sendall(body[5:])
            assert slow.recv(1000).startswith(b"HTTP/1.1 204")
        assert service.process.wait(30) == 0
        messages = [line["message"] for line in service.log() if "message" in line]
        assert messages[-1] == "stopped"
    with historian.open(tmp_path / "plant.db") as h:
        assert h.latest("a").to_arrow()["value"].to_pylist() == [1.0]


def metric(service: Service, name: str) -> float:
    for line in service.ask("GET", "/metrics").body.decode().splitlines():
        if line.startswith(name + " "):
            return float(line.split()[-1])
    raise AssertionError(f"{name} is no metric")


def test_a_service_whose_archive_is_gone_is_not_ready(fresh: Service, tmp_path: Path) -> None:
    assert fresh.ask("GET", "/ready").status == 200
    path, kept = tmp_path / "plant.db", tmp_path / "kept.db"
    path.rename(kept)
    for _ in range(200):
        answer = fresh.ask("GET", "/ready")
        if answer.status != 200:
            break
        time.sleep(0.05)
    assert (answer.status, answer.error["kind"]) == (500, "archive-moved")
    assert fresh.ask("GET", "/health").status == 200
    kept.rename(path)
    time.sleep(0.3)
    assert fresh.ask("GET", "/ready").status == 200


def test_health_readiness_figures_and_log_tell_what_happens(fresh: Service) -> None:
    assert fresh.ask("GET", "/health").json["state"] == "serving"
    assert fresh.ask("GET", "/ready").json == {"state": "ready", "engine": "sqlite"}
    fresh.ask("POST", "/write", {"define": "true"}, "a value=1 5\nb value=2 5")
    answer = fresh.ask("GET", "/v1/latest", {"tag": "a"}, headers={"X-Request-Id": "mine-7"})
    assert answer.headers["X-Request-Id"] == "mine-7"
    assert fresh.ask("GET", "/health", headers={"X-Request-Id": "not decent"}).headers["X-Request-Id"] != "not decent"
    assert metric(fresh, "chronotile_points_stored_total") == 2
    wait_until(lambda: metric(fresh, "chronotile_rows_sent_total") == 1, "the row to be counted")
    assert metric(fresh, "chronotile_resident_memory_bytes") > 10**6
    figures = fresh.ask("GET", "/metrics").body.decode()
    assert 'chronotile_request_seconds_count{method="GET",route="/v1/latest",status="200"} 1' in figures
    line = next(line for line in fresh.log() if line.get("request_id") == "mine-7")
    assert (line["method"], line["path"], line["status"], line["rows"]) == ("GET", "/v1/latest", 200, 1)
    assert line["level"] == "INFO"
    assert line["took_ms"] > 0
    assert line["client"].startswith("127.0.0.1:")


def test_the_service_stores_figures_of_itself(tmp_path: Path) -> None:
    with Service(tmp_path / "plant.db", tmp_path / "log", "--diagnostics", "100ms") as service:
        found = {"match": f"service.*:{service.port}.requests_total"}

        def growing() -> bool:
            answer = service.ask("GET", "/v1/points", found | {"start": "now-1h"})
            counts = [row["value"] for row in answer.json.get("rows", [])]
            return len(set(counts)) > 1 and counts == sorted(counts)

        wait_until(growing, "the answer to grow")
        assert service.ask("GET", "/v1/groups").json == {"groups": ["diagnostics"]}


def test_limits_answer_413_and_429_with_what_to_do(tmp_path: Path) -> None:
    limits = ("--max-body", "1000", "--max-points", "50", "--max-tags", "2", "--max-queries", "1", "--max-range", "1d")
    with historian.open(tmp_path / "plant.db") as h:
        h.define_many([{"name": f"t{n}"} for n in range(4)])
        h.write({"tag": ["t1"] * 100, "time": [START + n * S for n in range(100)], "value": np.arange(100.0)})
    with Service(tmp_path / "plant.db", tmp_path / "log", *limits) as service:
        assert service.ask("POST", "/write", body="t1 value=1\n" * 100).error["kind"] == "too-large"
        bomb = gzip.compress(b"t1 value=1\n" * 1000)
        assert service.ask("POST", "/write", None, bomb, {"Content-Encoding": "gzip"}).status == 413
        asked = {"tag": "t1", "start": "2026-01-01", "end": "2026-01-01T01:00"}
        for format_ in ("json", "arrow", "csv"):
            answer = service.ask("GET", "/v1/points", asked | {"format": format_})
            assert answer.status == 413
            assert "more than 50 rows" in answer.error["message"]
        assert len(service.ask("GET", "/v1/points", asked | {"end": "2026-01-01T00:00:50"}).json["rows"]) == 50
        assert "more than 2 tags" in service.ask("GET", "/v1/latest", {"match": "*"}).error["message"]
        assert "longer than 1 days" in service.ask("GET", "/v1/points", asked | {"end": "2026-02-01"}).error["message"]


def big_archive(path: Path) -> None:
    """A million points of one tag."""
    with historian.open(path) as h:
        h.define("a")
        times = START + np.arange(1_000_000) * S
        h.write({"tag": pa.DictionaryArray.from_arrays(np.zeros(1_000_000, "int32"), ["a"]), "time": times,
                 "value": np.random.default_rng(1).normal(size=1_000_000)})  # fmt: skip


def test_a_client_that_takes_nothing_in_holds_a_place_until_its_time_is_over(tmp_path: Path) -> None:
    big_archive(tmp_path / "plant.db")
    options = ("--max-queries", "1", "--client-time", "2s")
    with Service(tmp_path / "plant.db", tmp_path / "log", *options) as service:
        path = "/v1/points?tag=a&start=2026-01-01&end=2026-02-01"
        with socket.create_connection(("127.0.0.1", service.port)) as idle:
            idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            idle.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            assert idle.recv(100).startswith(b"HTTP/1.1 200")
            busy = service.ask("GET", "/v1/latest", {"tag": "a"})
            assert (busy.status, busy.error["kind"], busy.headers["Retry-After"]) == (429, "too-many-requests", "1")
            wait_until(lambda: service.ask("GET", "/v1/latest", {"tag": "a"}).status == 200, "an answer")
        broken = [line for line in service.log() if line.get("error") == "the client went away"]
        assert [line["path"] for line in broken] == ["/v1/points"]


def test_a_query_ends_where_its_client_goes_away_or_its_time_is_over(tmp_path: Path) -> None:
    big_archive(tmp_path / "plant.db")
    asked = "tag=a&start=2026-01-01&end=2026-02-01&aggregate=Percentile&interval=300ms"
    with Service(tmp_path / "plant.db", tmp_path / "log", "--query-time", "100ms", "--max-queries", "1",
                 "--max-points", "1000000000000") as service:  # fmt: skip
        answer = service.ask("GET", f"/v1/aggregate?{asked}&points_only=true")
        assert (answer.status, answer.error["kind"]) == (504, "timed-out"), answer.body
        assert "shorter range" in answer.error["message"]
        assert service.ask("GET", "/v1/latest", {"tag": "a"}).status == 200
    with Service(
        tmp_path / "plant.db", tmp_path / "log", "--max-queries", "1", "--max-points", "1000000000000"
    ) as service:
        with socket.create_connection(("127.0.0.1", service.port)) as gone:
            gone.sendall(f"GET /v1/aggregate?{asked} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            # The figures are asked for by a request too.
            wait_until(lambda: metric(service, "chronotile_requests_in_flight") == 2, "two requests")
            assert service.ask("GET", "/v1/latest", {"tag": "a"}).status == 429
        wait_until(lambda: service.ask("GET", "/v1/latest", {"tag": "a"}).status == 200, "an answer")


def test_a_client_that_hangs_is_let_go(tmp_path: Path) -> None:
    with Service(tmp_path / "plant.db", tmp_path / "log", "--client-time", "1s") as service:
        with (
            socket.create_connection(("127.0.0.1", service.port)) as head,
            socket.create_connection(("127.0.0.1", service.port)) as body,
        ):
            head.sendall(b"GET /health HTTP/1.1\r\nHost:")
            body.sendall(b"POST /write HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\na value")
            head.settimeout(20)
            body.settimeout(20)
            assert b"200" not in head.recv(1000)
            answer = body.recv(1000)
            assert answer.startswith(b"HTTP/1.1 408")
            assert b"slow-client" in answer
        assert service.ask("GET", "/health").status == 200


# ---------------------------------------------------------------------- access


TOKENS = """\
# name  roles  expires  token
ann     read        -           read-0123456789abcdef
gate    write       2199-01-01  write-0123456789abcdef
root    admin       -           admin-0123456789abcdef
old     read,write  2020-01-01  old-0123456789abcdef
"""


def test_tokens_open_what_their_roles_say(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(TOKENS)
    with Service(tmp_path / "plant.db", tmp_path / "log", "--tokens", str(tmp_path / "tokens")) as service:

        def kind(method: str, path: str, token: str | None, body: object = None) -> str | int:
            heads = {"Authorization": f"Bearer {token}-0123456789abcdef"} if token else {}
            answer = service.ask(method, path, None, body, heads)
            return str(answer.error["kind"]) if answer.status in (401, 403) else answer.status

        tags = {"tags": [{"name": "a"}]}
        assert kind("POST", "/v1/tags", None, tags) == "token-missing"
        assert kind("POST", "/v1/tags", "no", tags) == "token-unknown"
        assert kind("POST", "/v1/tags", "old", tags) == "token-expired"
        assert kind("POST", "/v1/tags", "write", tags) == "role-missing"
        assert kind("POST", "/v1/tags", "admin", tags) == 200
        assert kind("POST", "/write", "read", "a value=1") == "role-missing"
        assert kind("POST", "/write", "write", "a value=1") == 204
        assert kind("GET", "/v1/latest?tag=a", "write") == "role-missing"
        assert kind("GET", "/v1/latest?tag=a", "read") == 200
        assert kind("GET", "/metrics", None) == "token-missing"
        for path in ("/health", "/ready", "/openapi.json", "/", "/page.js", "/page.css"):
            assert kind("GET", path, None) == 200
        missing = service.ask("GET", "/v1/tags")
        assert missing.headers["WWW-Authenticate"] == "Bearer"
        influx = {"Authorization": "Token write-0123456789abcdef"}
        assert service.ask("POST", "/api/v2/write", None, "a value=2", influx).status == 204
        with historian.connect(service.url, token="read-0123456789abcdef") as h:
            assert h.latest("a").to_arrow().num_rows == 1
            with pytest.raises(ct.AccessDeniedError, match="lacks the role admin"):
                h.define("b")
        with historian.connect(service.url) as h, pytest.raises(ct.AccessDeniedError, match="CHRONOTILE_TOKEN"):
            h.latest("a")
        assert any(line.get("token") == "ann" for line in service.log())
        assert "0123456789abcdef" not in service.log_path.read_text()
        (tmp_path / "tokens").write_text("new read - fresh-0123456789abcdef\n")
        service.process.send_signal(signal.SIGHUP)
        wait_until(lambda: kind("GET", "/v1/tags", "fresh") == 200, "the new token")
        assert kind("GET", "/v1/tags", "read") == "token-unknown"


def test_without_tokens_only_this_machine_is_listened_on(tmp_path: Path, chronotile: Run) -> None:
    run = chronotile("serve", str(tmp_path / "plant.db"), "--create", "--listen", "0.0.0.0:0")
    assert run.returncode == 2
    assert "tokens" in run.stderr
    (tmp_path / "tokens").write_text("ann read\n")
    run = chronotile("serve", str(tmp_path / "plant.db"), "--create", "--tokens", str(tmp_path / "tokens"))
    assert run.returncode == 2
    assert "line 1" in run.stderr
    run = chronotile("serve", str(tmp_path / "plant.db"), "--create", "--tls-cert", "x")
    assert run.returncode == 2
    assert "key" in run.stderr


def test_an_address_that_is_taken_is_said(service: Service, tmp_path: Path, chronotile: Run) -> None:
    run = chronotile("serve", str(tmp_path / "plant.db"), "--create", "--listen", f"127.0.0.1:{service.port}")
    assert run.returncode == 8
    assert "cannot listen" in run.stderr


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with cert.pem and key.pem of 127.0.0.1."""
    import subprocess

    folder = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
               "-keyout", "key.pem", "-out", "cert.pem", "-days", "30", "-subj", "/CN=localhost",
               "-addext", "subjectAltName=IP:127.0.0.1"]  # fmt: skip
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder


def test_encrypted_connections_are_checked_by_the_client(tmp_path: Path, certificate: Path, chronotile: Run) -> None:
    files = ("--tls-cert", str(certificate / "cert.pem"), "--tls-key", str(certificate / "key.pem"))
    with Service(tmp_path / "plant.db", tmp_path / "log", *files, "--client-time", "2s") as service:
        assert service.url.startswith("https://")
        assert service.ask("GET", "/health", ca=certificate / "cert.pem").status == 200
        with historian.connect(service.url, ca=certificate / "cert.pem") as h:
            h.define("a")
            h.write({"tag": ["a"], "time": ["2026-01-01"], "value": [1.0]})
            assert h.raw("a", "2026-01-01", "2026-01-02").to_arrow().num_rows == 1
        with historian.connect(service.url) as h, pytest.raises(ct.AccessDeniedError):
            h.tags()
        with pytest.raises((OSError, http.client.HTTPException)):
            service.ask("GET", "/health")
        run = chronotile(
            "historian", "latest", service.url, "a", "--format", "csv",
            env={"CHRONOTILE_CA": str(certificate / "cert.pem")},
        )  # fmt: skip
        assert ",1.0," in run.stdout


# ---------------------------------------------------------------------- Grafana


def test_grafana_finds_series_tables_and_notes(service: Service) -> None:
    assert service.ask("GET", "/grafana/").body == b"ok"
    assert service.ask("POST", "/grafana/search", body={"target": "temp"}).json == ["boiler.temp"]
    assert "boiler.pump" in service.ask("POST", "/grafana/search").json
    query = {
        "range": {"from": "2026-01-01T00:00:00.000Z", "to": "2026-01-01T01:00:00.000Z"},
        "intervalMs": 600_000,
        "maxDataPoints": 100,
        "targets": [
            {"target": "TimeAverage(boiler.temp)", "refId": "A", "type": "timeserie"},
            {"target": "boiler.temp", "refId": "B"},
            {"target": "Maximum(boiler.temp)", "refId": "C", "type": "table"},
            {"target": "hidden", "refId": "D", "hide": True},
        ],
    }
    average, course, table = service.ask("POST", "/grafana/query", body=query).json
    assert average["datapoints"] == [[300.0 + 600 * n, (START // 10**6) + 600_000 * n] for n in range(5)] + [
        [pytest.approx(3299.5, abs=1), START // 10**6 + 3_000_000]
    ]
    assert (course["refId"], course["datapoints"][0]) == ("B", [0.0, START // 10**6])
    assert 4 <= len(course["datapoints"]) <= 101
    assert [row[1] for row in table["rows"]] == [599.0, 1199.0, 1799.0, 2399.0, 2999.0, 3599.0]
    notes = service.ask(
        "POST", "/grafana/annotations", body={"range": query["range"], "annotation": {"query": "boiler.*"}}
    )
    assert [(note["text"], note["tags"], note["time"]) for note in notes.json] == [
        ("looked at", "boiler.temp", START // 10**6 + 1_800_000)
    ]
    unknown = query | {"targets": [{"target": "none"}]}
    assert service.ask("POST", "/grafana/query", body=unknown).status == 404
    assert service.ask("POST", "/grafana/query", body={}).status == 400


def test_what_the_dashboard_asks_is_answered(service: Service) -> None:
    dashboard = json.loads((Path(__file__).parents[2] / "docs" / "grafana" / "dashboard.json").read_text())
    words = {
        "${tag}": "boiler.temp", "${aggregate}": "TimeAverage", "${__interval_ms}": "60000",
        "${__from:date:iso}": "2026-01-01T00:00:00.000Z", "${__to:date:iso}": "2026-01-01T01:00:00.000Z",
    }  # fmt: skip

    def asked(target: dict[str, Any]) -> list[Any]:
        path = target["url"].removeprefix("${service}")
        parameters = [(word["key"], word["value"]) for word in target["url_options"]["params"]]
        for variable, value in words.items():
            parameters = [(key, text.replace(variable, value)) for key, text in parameters]
        assert not any("${" in text for _, text in parameters)
        answer = service.ask(target["url_options"]["method"], path, parameters).json
        return list(answer[target["root_selector"]])

    panels = [panel for panel in dashboard["panels"] if panel.get("targets")]
    assert len(panels) >= 4
    for panel in panels:
        for target in panel["targets"]:
            rows = asked(target)
            assert rows, panel["title"]
            for column in target["columns"]:
                assert column["selector"] in rows[0], panel["title"]
    (tags,) = [variable for variable in dashboard["templating"]["list"] if variable["name"] == "tag"]
    assert {"boiler.temp", "boiler.pump"} == {row["name"] for row in asked(tags["query"]["infinityQuery"])}


def test_memory_stays_bounded_while_a_large_range_is_streamed(tmp_path: Path) -> None:
    big_archive(tmp_path / "plant.db")
    with Service(tmp_path / "plant.db", tmp_path / "log") as service, historian.connect(service.url) as h:
        rows = sum(batch.num_rows for batch in h.raw("a", "2026-01-01", "2026-02-01").batches())
        assert rows == 1_000_000
        # The service counts an answer once it has let it go, which may be after the client has all of it.
        wait_until(lambda: metric(service, "chronotile_rows_sent_total") == rows, "the rows to be counted")
        with historian.connect(f"{service.url}/") as other:
            partly = other.raw("a", "2026-01-01", "2026-02-01").batches()
            next(partly)
            service.process.kill()
            with pytest.raises(ct.UnavailableError, match="the answer was truncated"):
                for _ in partly:
                    pass


def test_the_address_is_written_for_scripts(fresh: Service) -> None:
    assert fresh.url == f"http://127.0.0.1:{fresh.port}"
    assert fresh.stop() == 0
    assert os.path.getsize(fresh.log_path) > 0
