"""The workload of the historian's benchmark, and its embedded systems: Chronotile and DuckDB."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from common import bytes_below

import chronotile as ct
from chronotile import historian
from chronotile_tools import lab

S = 10**9
DAY = 86_400
START = datetime(2026, 1, 1, tzinfo=UTC)
START_NS = int(START.timestamp()) * S

OTHER, OTHER_TAGS = 1_000_000, 500
"""First number and count of the other tags, which are written while requests read the loaded ones."""

Answer = list[float]


@dataclass(frozen=True)
class Request:
    """A requested aggregate."""

    name: str
    tags: list[int]
    first_day: int
    days: int
    interval_s: int

    @property
    def start(self) -> datetime:
        return START + timedelta(days=self.first_day)

    @property
    def end(self) -> datetime:
        return self.start + timedelta(days=self.days)


def tag_name(tag: int) -> str:
    """Name of a tag by its number in the workload."""
    return f"plant.line{tag // 10}.sensor{tag:05}"


def other_name(tag: int) -> str:
    """Name of one of the other tags."""
    return f"other.sensor{tag:05}"


def day_of(tag: int, day: int) -> tuple[np.ndarray, np.ndarray]:
    """Times (ns) and values of one tag on one day."""
    rng = np.random.default_rng([tag, day])
    walk = np.cumsum(rng.normal(0, 0.004, DAY)) + rng.random()
    values = np.round(np.abs((walk + 1) % 2 - 1), 2)
    return START_NS + (day * DAY + np.arange(DAY)) * S, values


def batches(tags: int, days: int) -> Iterator[tuple[int, pa.Table]]:
    """The points of all tags, day by day: tag (its number in the workload), time, value."""
    for day in range(days):
        parts = [day_of(tag, day) for tag in range(tags)]
        yield (
            day,
            pa.table(
                {
                    "tag": np.repeat(np.arange(tags), DAY),
                    "time": pa.array(np.concatenate([times for times, _ in parts]), pa.timestamp("ns", "UTC")),
                    "value": np.concatenate([values for _, values in parts]),
                }
            ),
        )


def other_points(number: int, count: int) -> pa.Table:
    """Points of the other tags in write `number` of `count` points: tag (from OTHER), time, value."""
    rows = np.arange(count) + number * count
    times = pa.array(START_NS + rows // OTHER_TAGS * 100 * 10**6, pa.timestamp("ns", "UTC"))
    return pa.table({"tag": OTHER + rows % OTHER_TAGS, "time": times, "value": rows % 100 * 0.01})


class Client(Protocol):
    """A client that reads from and writes to a system. Threads may share it."""

    def answer(self, request: Request) -> Answer:
        """The requested averages, by tag, then time."""

    def write(self, points: pa.Table) -> None:
        """Store points of other tags: see :func:`other_points`."""

    def close(self) -> None:
        """Close the connection."""


class Opening(Protocol):
    """Connects to a loaded system, from any process."""

    def connect(self) -> Client:
        """A new client."""


class System(Protocol):
    """A measured system."""

    name: str
    opening: Opening
    client: Client

    def prepare(self, points: pa.Table) -> Any:
        """Convert a day of :func:`batches` to the system's input. Not timed."""

    def load(self, prepared: Any) -> None:
        """Store a prepared day."""

    def finish(self) -> None:
        """Maintenance after loading."""

    def bytes(self) -> int:
        """Bytes on disk."""

    def close(self) -> None:
        """Close the client; an embedded system closes its files."""

    def stop(self) -> None:
        """Stop the system."""


@dataclass(frozen=True)
class Plant:
    """A historian in an archive or behind a service."""

    url: str
    numbers: list[int]
    served: bool = False

    def connect(self) -> PlantClient:
        return PlantClient(historian.connect(self.url, timeout=600) if self.served else historian.open(self.url), self)


class PlantClient:
    """A client of a historian, which reads tags by number."""

    def __init__(self, h: Any, plant: Plant) -> None:
        self.h, self.numbers, self.others = h, plant.numbers, np.zeros(0, np.int64)

    def answer(self, request: Request) -> Answer:
        tags = [self.numbers[tag] for tag in request.tags]
        result = self.h.aggregate(tags, request.start, request.end, request.interval_s * S, "Average")
        return list(result.to_arrow()["value"].to_pylist())

    def write(self, points: pa.Table) -> None:
        if not len(self.others):
            defined = self.h.define_many([{"name": other_name(tag)} for tag in range(OTHER_TAGS)])
            self.others = np.array([tag.number for tag in defined])
        numbers = self.others[points["tag"].to_numpy() - OTHER]
        self.h.write(points.set_column(0, "tag", pa.array(numbers)))

    def close(self) -> None:
        self.h.close()


class Chronotile:
    """The historian on a SQLite file, on a cluster, or on the nodes of a laboratory."""

    name = "chronotile"
    KEYSPACE = "historian"

    def __init__(self, folder: Path, tags: int, cluster: str | lab.Cluster | None = None) -> None:
        self.path, self.cluster = folder / "plant.db", cluster
        url = cluster.url(self.KEYSPACE) if isinstance(cluster, lab.Cluster) else cluster or str(self.path)
        self.archive = ct.open(url)
        self.h = historian.open(self.archive)
        defined = self.h.define_many([{"name": tag_name(tag)} for tag in range(tags)])
        self.opening = Plant(url, [tag.number for tag in defined])
        self.client = PlantClient(self.h, self.opening)

    def prepare(self, points: pa.Table) -> pa.Table:
        return points.set_column(0, "tag", pa.array(np.array(self.opening.numbers)[points["tag"].to_numpy()]))

    def load(self, points: pa.Table) -> None:
        self.h.write(points)

    def finish(self) -> None:
        self.h.maintain()

    def bytes(self) -> int:
        """Bytes on disk; on a cluster those of one copy, in a laboratory measured from the nodes' files."""
        if self.cluster is None:
            return sum(file.stat().st_size for file in self.path.parent.glob("plant.db*"))
        if isinstance(self.cluster, str):
            return sum(self.archive[name].info().bytes for name in self.archive.datasets())
        for node in self.cluster.nodes:
            node.nodetool("flush", self.KEYSPACE)
        folders = [node.folder / "data" / "data" / self.KEYSPACE for node in self.cluster.nodes]
        return sum(map(bytes_below, folders)) // len(folders)

    def close(self) -> None:
        self.client.close()
        self.archive.close()

    def stop(self) -> None:
        pass


@dataclass(frozen=True)
class DuckFile:
    """A DuckDB database, and the table or function that returns the points."""

    database: str
    source: str

    def connect(self) -> DuckClient:
        return DuckClient(self)


class DuckClient:
    """A connection to DuckDB, with a cursor for each thread."""

    def __init__(self, file: DuckFile) -> None:
        self.source, self.own = file.source, threading.local()
        self.connection = duckdb.connect(file.database)

    def cursor(self) -> duckdb.DuckDBPyConnection:
        if not hasattr(self.own, "cursor"):
            self.own.cursor = self.connection.cursor()
            self.own.cursor.execute("SET TimeZone = 'UTC'")
        return self.own.cursor

    def answer(self, request: Request) -> Answer:
        sql = f"""SELECT tag, time_bucket(INTERVAL {request.interval_s} SECOND, time, ?) AS start, avg(value)
                  FROM {self.source} WHERE tag IN ({",".join(map(str, request.tags))}) AND time >= ? AND time < ?
                  GROUP BY 1, 2 ORDER BY 1, 2"""
        origin, end = request.start.replace(tzinfo=None), request.end.replace(tzinfo=None)
        rows = self.cursor().execute(sql, [origin, origin, end]).fetchall()
        return [row[2] for row in rows]

    def write(self, points: pa.Table) -> None:
        points_us = points.set_column(1, "time", points["time"].cast(pa.timestamp("us")))  # noqa: F841
        self.cursor().execute("INSERT INTO points SELECT tag, time, value FROM points_us")

    def close(self) -> None:
        self.connection.close()


class Duck:
    """A table of DuckDB."""

    name = "duckdb table"

    def __init__(self, folder: Path) -> None:
        self.path = folder / "plant.duckdb"
        self.opening = DuckFile(str(self.path), "points")
        self.client = self.opening.connect()
        self.client.cursor().execute("CREATE TABLE points (tag INTEGER, time TIMESTAMP, value DOUBLE)")

    def prepare(self, points: pa.Table) -> pa.Table:
        return points

    def load(self, points: pa.Table) -> None:
        self.client.write(points)

    def finish(self) -> None:
        self.client.cursor().execute("CHECKPOINT")

    def bytes(self) -> int:
        return self.path.stat().st_size

    def close(self) -> None:
        self.client.close()

    def stop(self) -> None:
        pass


class Parquet:
    """DuckDB on a Parquet file for each day, sorted by tag."""

    name = "duckdb on parquet"

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "parquet"
        self.folder.mkdir()
        self.opening = DuckFile(":memory:", f"read_parquet('{self.folder}/*.parquet')")
        self.client = self.opening.connect()
        self.count = 0

    def prepare(self, points: pa.Table) -> pa.Table:
        return points

    def load(self, points: pa.Table) -> None:
        points_us = points.set_column(1, "time", points["time"].cast(pa.timestamp("us")))
        pq.write_table(points_us, self.folder / f"{self.count:04}.parquet", compression="zstd", row_group_size=DAY)
        self.count += 1

    def finish(self) -> None:
        """Parquet files need no maintenance."""

    def bytes(self) -> int:
        return sum(file.stat().st_size for file in self.folder.iterdir())

    def close(self) -> None:
        self.client.close()

    def stop(self) -> None:
        pass
