"""Every kind of read is answered at ONE while one of three copies lives, as it was while all did."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("pyarrow")
import pyarrow as pa
from support_lab import keyspace_of
from support_waiting import wait_until

import chronotile as ct
from chronotile import apdb, events, historian, jobs
from chronotile_tools import lab

TIMES = [f"2026-03-{day:02}" for day in range(1, 9)]
FIELD = ct.circle(150.1, 2.0, 0.5)
NIGHT = 61_100.0


def write(archive: ct.Archive) -> None:
    """Store some rows through each front end."""
    schema = {"id": "int64", "t": "timestamp[ms]", "kind": "int64", "text": "utf8"}
    values = archive.create(
        "values", schema=schema, cell=ct.hash("id", buckets=2), time="t", window="10d", id="id", merge="latest",
        text=["text"],
    )  # fmt: skip
    rows = {"id": [n % 4 for n in range(8)], "t": TIMES, "kind": [n % 2 for n in range(8)], "text": list("abcdefgh")}
    values.write(rows, batch="first")
    values.create_index("kind")
    values.build_indexes()
    for name in ("one", "two"):
        archive.create(
            name, schema={"id": "int64", "t": "timestamp[ms]"}, cell=ct.single(), time="t", window="10d", id="id",
            group="both",
        )  # fmt: skip
    archive.group("both").write({name: {"id": [1, 2], "t": TIMES[:2]} for name in ("one", "two")}, batch="together")
    with historian.open(archive) as plant:
        plant.define("oven", unit="degC")
        plant.write({"tag": ["oven"] * 3, "time": TIMES[:3], "value": [1.0, 2.0, 4.0]})
        plant.annotate("oven", TIMES[0], "lit")
    log = events.create(archive, "web", fields={"level": "utf8"}, stream_field="host", slice="30d", window="10d")
    lines = [json.dumps({"time": f"{day}T01:00:00Z", "host": "a", "level": "info"}) for day in TIMES]
    log.ingest_lines("\n".join(lines).encode(), source="test")
    schema = {"job_id": "int64", "submitted": "timestamp[us]", "user": "utf8"}
    done = jobs.create(archive, schema=schema, indexes=["user"])
    done.write({"job_id": list(range(8)), "submitted": TIMES, "user": list("aabbccdd")})
    source = {"diaSourceId": [1, 2], "diaObjectId": [7, 8], "visit": [5, 5], "detector": [3, 3], "ra": [150.0, 150.2],
              "dec": [2.0, 2.0], "midpointMjdTai": [NIGHT, NIGHT], "psfFlux": [1.0, 2.0]}  # fmt: skip
    thing = {"diaObjectId": [7, 8], "ra": [150.0, 150.2], "dec": [2.0, 2.0]}
    apdb.create(archive, "small").store(NIGHT, thing, source)


def rows_of(table: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pa.table(table).to_pylist()
    return rows


def of_datasets(archive: ct.Archive) -> dict[str, Any]:
    values = archive["values"]
    kind = ("kind", "=", 1)
    found = {
        "index": values.read(where=kind, order_by="t"), "read": values.read(order_by="t"),
        "ids": values.read(ids=[1]), "period": values.read(start=TIMES[5]),
        "history": values.read(history=True, order_by="t"), "latest": values.latest(by=["id"]),
        "text": values.read(where=("text", "contains", "g")), "count_by": values.count_by("kind"),
    }  # fmt: skip
    joint = archive.group("both").read({"one": {}, "two": {"ids": [2]}})
    return {
        **{name: rows_of(each) for name, each in found.items()},
        **{name: rows_of(each) for name, each in joint.items()},
        "count": values.count(), "explain": values.explain(where=kind).index,
        "batches": [each.key for each in values.batches()],
        "batch": archive.group("both").batch("together") is not None,
        "datasets": sorted(archive.datasets()), "rows": values.info().rows,
    }  # fmt: skip


def of_the_historian(archive: ct.Archive) -> dict[str, Any]:
    with historian.open(archive) as plant:
        period = ("oven", TIMES[0], TIMES[3])
        found = {
            "raw": plant.raw(*period), "at": plant.at("oven", [f"{TIMES[0]}T12:00"]), "latest": plant.latest("oven"),
            "aggregate": plant.aggregate(*period, "1d", "TimeAverage"), "annotations": plant.annotations(*period),
            "plot": plant.plot(*period),
        }  # fmt: skip
        return {name: rows_of(each) for name, each in found.items()} | {"tags": plant.tags("o*")}


def of_events(archive: ct.Archive) -> dict[str, Any]:
    log = events.open(archive, "web")
    return {
        "search": rows_of(log.search(level="info")), "text": rows_of(log.search(text="03-04")),
        "histogram": rows_of(log.histogram("1d", by="level")),
    }  # fmt: skip


def of_jobs(archive: ct.Archive) -> dict[str, Any]:
    done = jobs.open(archive)
    return {
        "get": rows_of(done.get([3])), "find": rows_of(done.find(user="b")),
        "count": done.count(user="c"), "top": rows_of(done.top("user")), "by": rows_of(done.group_by("user")),
        "histogram": rows_of(done.histogram("1d")),
    }  # fmt: skip


def of_a_survey(archive: ct.Archive) -> dict[str, Any]:
    survey = apdb.open(archive)
    footprint = survey.footprint(FIELD, at=NIGHT + 1)
    return {
        "sources": rows_of(footprint.sources), "objects": rows_of(footprint.objects),
        "curves": rows_of(survey.light_curves([7, 8])), "contains": survey.contains(5, 3),
        "visits": rows_of(survey.visits()), "history": rows_of(survey.object_history(7)),
    }  # fmt: skip


READS: dict[str, Callable[[ct.Archive], dict[str, Any]]] = {
    "datasets": of_datasets, "historian": of_the_historian, "events": of_events, "jobs": of_jobs, "apdb": of_a_survey,
}  # fmt: skip


def leave_one(cluster: lab.Cluster) -> None:
    """Kill all nodes but the first, which got every write as they did."""
    for node in cluster.nodes[1:]:
        node.kill()
    # Until then, it asks them for records of the catalog, which a majority must give.
    wait_until(lambda: up_at(cluster.nodes[0]) == 1, "the node that stays to notice the loss", every_s=2)


def up_at(node: lab.Node) -> int:
    """How many nodes a node believes to be up."""
    return sum(line.startswith("UN") for line in node.nodetool("status").splitlines())


@pytest.mark.slow
def test_one_copy_answers_every_read_at_one_as_three_did(cluster: lab.Cluster, request: pytest.FixtureRequest) -> None:
    url = f"{cluster.url(keyspace_of(request))}?catalog_buckets=4"
    with ct.open(url) as archive:
        write(archive)
        wanted = {name: read(archive) for name, read in READS.items()}
        leave_one(cluster)
    with ct.open(f"{url}&consistency=ONE&timeout_s=10", create=False) as archive:
        for name, read in READS.items():
            assert read(archive) == wanted[name], name
        with pytest.raises(ct.UnavailableError, match="QUORUM needs 2 replicas and 1"):
            archive["values"].tuned("QUORUM", timeout_s=2).count()
