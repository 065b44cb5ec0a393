"""Golden archives: stored once, and read with the same result by every later version.

`fill` stores data that uses every part of the format. `content` returns what a reader finds, as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from support_apdb import FIELD, START, visit_of

import chronotile as ct
from chronotile import apdb, events, historian, jobs

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
FORMAT = 1
"""Version of the archive format; its golden archives are in folder ``v1``."""

_DAY = 86_400_000_000
_START = 1_767_225_600_000_000
"""2026-01-01T00:00 UTC, in microseconds."""
Content = dict[str, Any]


def fill(archive: ct.Archive) -> None:
    """Store datasets of several kinds, in batches that are replaced, removed, consolidated and retired."""
    _points(archive)
    _versions(archive)
    _lines(archive)
    _survey(archive)
    _front_ends(archive)


def _points(archive: ct.Archive) -> None:
    """Process history: decimals at even distances, a status, gaps; one window retired, a column added."""
    points = archive.create(
        "points", schema={"tag": "int64", "t": "timestamp[us, UTC]", "value": "float64", "status": "int32"},
        cell=ct.key("tag"), time="t", window="1d", slice="2d", id=["tag", "t"],
    )  # fmt: skip
    for day in range(6):
        rows = np.arange(200)
        points.write(
            {
                "tag": np.repeat([3, -7], 100),
                "t": pa.array(_START + day * _DAY + (rows % 100) * 600_000_000, pa.timestamp("us", "UTC")),
                "value": np.round(np.where(rows % 17 == 16, np.nan, 20 + rows * 0.01 + day), 2),
                "status": pa.array(np.where(rows % 10, 0, 0x4000_0000), pa.int32()),
            },
            batch=f"day-{day}",
        )
    points.consolidate()
    points.retire(before="2026-01-03T00:00:00Z")
    points.add_columns(pa.schema([pa.field("note", pa.string())]), {"note": "none"})
    points.write(
        {
            "tag": [3], "t": pa.array([_START + 6 * _DAY], pa.timestamp("us", "UTC")), "value": [-0.0],
            "status": pa.array([1], pa.int32()), "note": ["restarted"],
        },
        batch="day-6",
    )  # fmt: skip


def _versions(archive: ct.Archive) -> None:
    """Records with versions: consolidation parts older ones; batches replaced and removed."""
    dataset = archive.create(
        "states",
        schema={
            "id": "int64", "mjd": "float64", "ra": "float64", "dec": "float64", "version": "int64", "mag": "float32",
            "flags": "uint16", "seen": "bool", "price": "decimal128(9, 2)", "spectrum": "list<float32>",
            "raw": "binary",
        },
        cell=ct.sky("ra", "dec", level=9), time=ct.mjd("mjd", scale="tai"), window="30d", id="id", merge="latest",
        version="version", moves="5arcsec", retention="3650d",
    )  # fmt: skip
    for version in range(4):
        dataset.write(states(version, 120), batch=f"version-{version}")
    dataset.write(states(3, 100), batch="version-3", replace=True)
    dataset.write(states(9, 10), batch="withdrawn")
    dataset.remove_batch("withdrawn")
    dataset.consolidate()
    dataset.write(states(4, 20), batch="version-4")


def states(version: int, count: int) -> pa.Table:
    rng = np.random.default_rng(version)
    ids = np.arange(count)
    return pa.table(
        {
            "id": ids,
            "mjd": 61_000.0 + (ids % 3) * 20 + version / 8,
            "ra": 150 + 0.03 * (ids % 20) + 1e-6 * version,
            "dec": -2 + 0.03 * (ids // 20),
            "version": np.full(count, version),
            "mag": rng.normal(19, 1, count).astype("float32"),
            "flags": pa.array(ids % 5, pa.uint16()),
            "seen": pa.array([None if row % 7 == 0 else row % 2 == 0 for row in ids.tolist()]),
            "price": pa.array([Decimal(row) / 4 for row in ids.tolist()], pa.decimal128(9, 2)),
            "spectrum": pa.array(
                [[row / 2] * (row % 4) if row % 9 else None for row in ids.tolist()], pa.list_(pa.float32())
            ),
            "raw": pa.array([bytes([row % 256]) * (row % 3) for row in ids.tolist()]),
        }
    )


def _lines(archive: ct.Archive) -> None:
    """Log lines: text filters, rows without ids, an index."""
    lines = archive.create(
        "lines", schema={"host": "utf8", "t": "timestamp[ms]", "line": "utf8", "level": "utf8"},
        cell=ct.hash("host", buckets=4), time="t", window="1d", text="line",
    )  # fmt: skip
    count = 600
    lines.write(
        {
            "host": [f"host-{row % 3}" for row in range(count)],
            "t": pa.array([_START // 1_000 + row * 300_000 for row in range(count)], pa.timestamp("ms")),
            "line": [
                f"session {row * 7919 % 1000} {('closed', 'opened')[row % 2]} für user-{row % 11}"
                for row in range(count)
            ],
            "level": [None if row % 50 == 0 else ("info", "error")[row % 5 == 0] for row in range(count)],
        },
        batch="first",
    )  # fmt: skip
    lines.create_index(["level"], name="by_level")
    lines.build_indexes()


def _survey(archive: ct.Archive) -> None:
    """A group of datasets, two of which share slices."""
    for name, slices_of in (("objects", None), ("sources", None), ("forced", "sources")):
        archive.create(
            name, schema={"id": "int64", "mjd": "float64", "ra": "float64", "dec": "float64", "visit": "int64"},
            cell=ct.sky("ra", "dec", level=8), time=ct.mjd("mjd"), window="30d", id=["id"], group="survey",
            merge="latest" if name == "objects" else "append", slices_of=slices_of,
            partition_cells=1 if name == "objects" else 4,
        )  # fmt: skip
    group = archive.group("survey")
    for visit in range(5):
        ids = np.arange(30)
        rows = {
            "mjd": np.full(30, 61_000.0 + 10 * visit), "ra": 10 + 0.05 * (ids % 6), "dec": np.full(30, 5.0),
            "visit": np.full(30, visit),
        }  # fmt: skip
        tables = {
            "objects": {"id": ids, **rows},
            "sources": {"id": 1_000 * visit + ids, **rows},
            "forced": {"id": 1_000 * visit + ids + 500, **rows},
        }
        group.write(tables, batch=f"visit-{visit}")
    group.remove_batch("visit-1")
    group["sources"].consolidate()
    group["objects"].consolidate()


def _front_ends(archive: ct.Archive) -> None:
    """A survey, process history, jobs and events, with the additional records of each front end."""
    database = apdb.create(archive, "small", feed=True)
    for number in range(4):
        database.store(**visit_of(number, list(range(number, 20 + number))))
    database.maintain()
    database.store(**visit_of(4, list(range(10))))
    database.withdraw_sources([21_005], START + 4.5)
    plant = historian.open(archive)
    plant.define("mill.speed", unit="rpm", stepped=True)
    plant.define("mill.state", data_type="string")
    minutes = range(600)
    times = [_START * 1_000 + minute * 60_000_000_000 for minute in minutes]
    speeds = [round(minute % 90 * 0.1, 1) for minute in minutes]
    plant.write({"tag": ["mill.speed"] * len(times), "time": times, "value": speeds})
    plant.write({"tag": ["mill.state"] * 2, "time": times[:2], "value": ["off", "on"]})
    plant.maintain()
    plant.annotate("mill.speed", times[7], "bearing replaced", author="ann")
    kinds = {"job_id": "int64", "submitted": "timestamp[us, UTC]", "modified": "timestamp[us, UTC]", "user": "utf8"}
    done = jobs.create(archive, schema=kinds, version="modified", indexes=["user"])
    for state in range(2):
        moments = pa.array([_START + job * 1_000_000 for job in range(300)], pa.timestamp("us", "UTC"))
        modified = pa.array([_START + _DAY + state] * 300, pa.timestamp("us", "UTC"))
        users = [f"user-{job % 7 + state}" for job in range(300)]
        states_of = {"job_id": range(300), "submitted": moments, "modified": modified, "user": users}
        done.dataset.write(states_of, f"state-{state}")
    done.dataset.consolidate()
    done.dataset.build_indexes()
    web = events.create(archive, "web", fields={"level": "utf8"}, stream_field="host")
    line = '{{"time": "2026-01-01T00:{0:02}:00Z", "host": "web{1}", "level": "info", "text": "request {0}"}}'
    lines = [line.format(minute, minute % 2) for minute in range(60)]
    web.ingest_lines("\n".join([*lines, "not a document"]), batch="lines")


READS: dict[str, Callable[[ct.Archive], Any]] = {
    "points": lambda a: a["points"].read(order_by=["tag", "t"]).to_arrow(),
    "points of a tag and period": lambda a: (
        a["points"].read(keys=[3], start="2026-01-04T02:00:00Z", end="2026-01-04T03:00:00Z").to_arrow()
    ),
    "states": lambda a: a["states"].read(order_by=["id"]).to_arrow(),
    "all versions": lambda a: a["states"].read(history=True, order_by=["id", "version"]).to_arrow(),
    "states of a region": lambda a: a["states"].read(region=ct.circle(150.2, -1.9, 0.1), order_by=["id"]).to_arrow(),
    "lines": lambda a: a["lines"].read(where=["line contains user-7"], order_by=["t"]).to_arrow(),
    "levels": lambda a: a["lines"].count_by("level").sort_by("level"),
    "objects of a survey": lambda a: apdb.open(a).objects(FIELD).to_arrow().sort_by("diaObjectId"),
    "sources of a survey": lambda a: apdb.open(a).sources(FIELD, at=START + 5).to_arrow().sort_by("diaSourceId"),
    "light curves": lambda a: (
        apdb.open(a)
        .light_curves([2, 7])
        .to_arrow()
        .sort_by([("diaObjectId", "ascending"), ("midpointMjdTai", "ascending")])
    ),
    "visits": lambda a: apdb.open(a).visits().to_arrow(),
    "averages of a tag": lambda a: (
        historian.open(a)
        .aggregate("mill.speed", _START * 1_000, (_START + _DAY // 3) * 1_000, "1h", "Average")
        .to_arrow()
    ),
    "states of a tag": lambda a: (
        historian.open(a).raw("mill.state", _START * 1_000, (_START + _DAY) * 1_000).to_arrow()
    ),
    "annotations": lambda a: (
        historian.open(a)
        .annotations("mill.speed", _START * 1_000, (_START + _DAY) * 1_000)
        .to_arrow()
        .select(["tag", "time", "author", "text"])
    ),
    "jobs": lambda a: jobs.open(a).find(user=["user-3", "user-7"]).to_arrow().sort_by("job_id"),
    "jobs of users": lambda a: jobs.open(a).group_by("user").sort_by("user"),
    "events": lambda a: events.open(a, "web").search(where=("body", "contains", "request 7")),
    "survey": lambda a: pa.concat_tables(
        [table.sort_by([("mjd", "ascending"), ("id", "ascending")]) for table in _of_survey(a).values()]
    ),
}


def _of_survey(archive: ct.Archive) -> dict[str, pa.Table]:
    return archive.group("survey").read({"objects": {}, "sources": {"start": 61_000.0}, "forced": {"end": 61_035.0}})


def content(archive: ct.Archive) -> Content:
    """What a reader finds, as JSON values."""
    found: Content = {
        name: json.loads(json.dumps(read(archive).to_pylist(), default=_text)) for name, read in READS.items()
    }
    found["batches"] = {
        name: sorted([str(batch.key), batch.rows, batch.rows_retired] for batch in archive[name].batches())
        for name in ("points", "states", "lines", "objects", "sources", "forced")
    }
    return found


def _text(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
