"""Process history: ingest, size, requests A to D and the latest value, beside DuckDB on its own table and on Parquet.

    python bench/historian.py [--service | --cluster URL] [--writes N] [--tags N] [--days N] [--repeat N]
                              [--latest-tags N] [--quick] [--out FILE]

One value a second of each tag, two decimals between 0 and 1, a random walk. Requests: A one tag, one day, hourly
averages; B the same of 10 tags; C one tag, one week, six-hour averages; D one tag, one month, daily averages. All
systems answer the same requests one after the other, in turns; their answers are compared before anything is timed.

With --cluster the archive lies on a cluster instead of in a file of SQLite. With --writes so many values a second of
other tags are written to it while it is asked.

With --service all is done over HTTP: ours by Arrow and by InfluxDB line protocol, and QuestDB, which Maven fetches
(org.questdb:questdb) and Java runs; where either is missing it is left out, and said so.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

import duckdb
import historian_http as over_http
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from common import RESULTS, commit, digits, hardware, load_average, table, timed_ms, versions

import chronotile as ct
from chronotile import historian

S = 10**9
DAY = 86_400
START = datetime(2026, 1, 1, tzinfo=UTC)
START_NS = int(START.timestamp()) * S

Answer = list[float]


@dataclass(frozen=True)
class Request:
    """An aggregate that is asked for."""

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
    """Name of a tag by its place."""
    return f"plant.line{tag // 10}.sensor{tag:05}"


def day_of(tag: int, day: int) -> tuple[np.ndarray, np.ndarray]:
    """Times (ns) and values of one tag on one day."""
    rng = np.random.default_rng([tag, day])
    walk = np.cumsum(rng.normal(0, 0.004, DAY)) + rng.random()
    values = np.round(np.abs((walk + 1) % 2 - 1), 2)
    return START_NS + (day * DAY + np.arange(DAY)) * S, values


def batches(tags: int, days: int) -> Iterator[tuple[int, pa.Table]]:
    """Day after day, the points of all tags: tag number by place, time, value."""
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


class System(Protocol):
    """What is measured."""

    name: str

    def prepare(self, points: pa.Table) -> Any:
        """A day in the form that it takes, which is not timed: of columns tag (by place), time, value."""

    def load(self, prepared: Any) -> None:
        """Store it."""

    def finish(self) -> None:
        """Upkeep after loading."""

    def answer(self, request: Request) -> Answer:
        """The averages that are asked for, by tag, then time."""

    def bytes(self) -> int:
        """What it takes on disk."""

    def close(self) -> None:
        """End."""


class Chronotile:
    """The historian on a SQLite file, or on a cluster."""

    name = "chronotile"

    def __init__(self, folder: Path, tags: int, cluster: str | None = None) -> None:
        self.path = folder / "plant.db"
        self.archive = ct.open(cluster or self.path)
        self.in_file = cluster is None
        self.h = historian.open(self.archive)
        defined = self.h.define_many([{"name": tag_name(tag)} for tag in range(tags)])
        self.numbers = np.array([tag.number for tag in defined])

    def prepare(self, points: pa.Table) -> pa.Table:
        return points.set_column(0, "tag", pa.array(self.numbers[points["tag"].to_numpy()]))

    def load(self, points: pa.Table) -> None:
        self.h.write(points)

    def finish(self) -> None:
        self.h.maintain()

    def answer(self, request: Request) -> Answer:
        result = self.h.aggregate(
            [int(self.numbers[tag]) for tag in request.tags],
            request.start,
            request.end,
            request.interval_s * S,
            "Average",
        )
        return result.to_arrow()["value"].to_pylist()

    def bytes(self) -> int:
        if self.in_file:
            return sum(file.stat().st_size for file in self.path.parent.glob("plant.db*"))
        infos = [self.archive[name].info() for name in self.archive.datasets()]
        return sum(info.bytes for info in infos)

    def close(self) -> None:
        self.h.close()
        self.archive.close()


class Writing:
    """Values of other tags that are written meanwhile, as many in each second, until it ends. A context manager."""

    TAGS, ROUNDS_S = 500, 4

    def __init__(self, h: historian.Historian, rate: int) -> None:
        self.h, self.rate, self.written, self.seconds = h, rate, 0, 0.0
        defined = h.define_many([{"name": f"other.sensor{tag:05}"} for tag in range(self.TAGS)])
        self.numbers = np.array([tag.number for tag in defined])
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.work)

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()

    def work(self) -> None:
        count, began, number = self.rate // self.ROUNDS_S, time.monotonic(), 0
        while not self.ended.wait(max(0.0, began + number / self.ROUNDS_S - time.monotonic())):
            rows = np.arange(count) + number * count
            times = pa.array(START_NS + rows // self.TAGS * 100 * 10**6, pa.timestamp("ns", "UTC"))
            self.h.write(pa.table({"tag": self.numbers[rows % self.TAGS], "time": times, "value": rows * 0.01}))
            number += 1
            self.written, self.seconds = number * count, time.monotonic() - began


class Duck:
    """DuckDB, with its own table."""

    name = "duckdb table"
    source = "points"

    def __init__(self, folder: Path, tags: int) -> None:
        self.path = folder / "plant.duckdb"
        self.connection = duckdb.connect(str(self.path))
        self.connection.execute("SET TimeZone = 'UTC'")
        self.connection.execute("CREATE TABLE points (tag INTEGER, time TIMESTAMP, value DOUBLE)")

    def prepare(self, points: pa.Table) -> pa.Table:
        return points

    def load(self, points: pa.Table) -> None:
        given = points.set_column(1, "time", points["time"].cast(pa.timestamp("us")))  # noqa: F841
        self.connection.execute("INSERT INTO points SELECT tag, time, value FROM given")

    def finish(self) -> None:
        self.connection.execute("CHECKPOINT")

    def answer(self, request: Request) -> Answer:
        sql = f"""SELECT tag, time_bucket(INTERVAL {request.interval_s} SECOND, time, ?) AS start, avg(value)
                  FROM {self.source} WHERE tag IN ({",".join(map(str, request.tags))}) AND time >= ? AND time < ?
                  GROUP BY 1, 2 ORDER BY 1, 2"""
        origin, end = request.start.replace(tzinfo=None), request.end.replace(tzinfo=None)
        rows = self.connection.execute(sql, [origin, origin, end]).fetchall()
        return [row[2] for row in rows]

    def bytes(self) -> int:
        return self.path.stat().st_size

    def close(self) -> None:
        self.connection.close()


class Parquet(Duck):
    """DuckDB on Parquet files, one a day, sorted by tag."""

    name = "duckdb on parquet"

    def __init__(self, folder: Path, tags: int) -> None:
        self.folder = folder / "parquet"
        self.folder.mkdir()
        self.source = f"read_parquet('{self.folder}/*.parquet')"
        self.connection = duckdb.connect()
        self.count = 0

    def load(self, points: pa.Table) -> None:
        given = points.set_column(1, "time", points["time"].cast(pa.timestamp("us")))
        pq.write_table(given, self.folder / f"{self.count:04}.parquet", compression="zstd", row_group_size=DAY)
        self.count += 1

    def finish(self) -> None:
        pass

    def bytes(self) -> int:
        return sum(file.stat().st_size for file in self.folder.iterdir())


@dataclass
class Figures:
    """What was measured of one system."""

    load_s: float = 0.0
    finish_s: float = 0.0
    bytes: int = 0
    request_ms: dict[str, list[float]] = field(default_factory=dict)


def requests(tags: int, days: int, repeat: int, rng: np.random.Generator) -> list[Request]:
    """Requests of each kind, of tags and days drawn by chance."""
    kinds = {"A": (1, 1, 3_600), "B": (10, 1, 3_600), "C": (1, 7, 21_600), "D": (1, 30, 86_400)}
    made = []
    for _ in range(repeat):
        for name, (count, length, interval) in kinds.items():
            length = min(length, days)
            chosen = sorted(int(tag) for tag in rng.choice(tags, min(count, tags), replace=False))
            made.append(Request(name, chosen, int(rng.integers(0, days - length + 1)), length, interval))
    return made


def measure(
    systems: list[System], tags: int, days: int, repeat: int, meanwhile: AbstractContextManager[None]
) -> dict[str, Figures]:
    """Loads and asks all systems."""
    figures = {system.name: Figures() for system in systems}
    for day, points in batches(tags, days):
        print(f"day {day + 1} of {days}", file=sys.stderr)
        for system in systems:
            prepared = system.prepare(points)
            spent = timed_ms(lambda system=system, prepared=prepared: system.load(prepared))
            figures[system.name].load_s += spent / 1e3
    for system in systems:
        figures[system.name].finish_s = timed_ms(system.finish) / 1e3
        figures[system.name].bytes = system.bytes()
    asked = requests(tags, days, repeat, np.random.default_rng(1))
    for request in asked[:8]:
        answers = [system.answer(request) for system in systems]
        for answer in answers[1:]:
            np.testing.assert_allclose(answer, answers[0], rtol=1e-12, err_msg=str(request))
    with meanwhile:
        for request in asked:
            for system in systems:
                spent = timed_ms(lambda system=system, request=request: system.answer(request))
                figures[system.name].request_ms.setdefault(request.name, []).append(spent)
    return figures


def latest(folder: Path, tags: int, lookups: int = 2_000) -> dict[str, float]:
    """Milliseconds to define, write and look up the latest value of one tag among many, by name."""
    path = folder / "many.db"
    names = [f"site{i % 97}.unit{i % 1009}.point{i:07}" for i in range(tags)]
    began = time.perf_counter()
    with historian.open(path) as h:
        h.define_many([{"name": name} for name in names])
        defined = time.perf_counter()
        for start in range(0, tags, 100_000):
            part = names[start : start + 100_000]
            times = pa.array(np.full(len(part), START_NS), pa.timestamp("ns", "UTC"))
            h.write(pa.table({"tag": part, "time": times, "value": np.arange(len(part)) * 0.5}))
        written = time.perf_counter()
    rng = np.random.default_rng(2)
    with historian.open(path) as h:
        samples = []
        for index in rng.integers(0, tags, lookups):
            samples.append(timed_ms(lambda index=index: h.latest(names[index]).to_arrow()))
        pattern = [timed_ms(lambda: h.tags("site5.unit5.*")) for _ in range(3)]
    samples.sort()
    return {
        "define_s": defined - began,
        "write_s": written - defined,
        "latest_ms_p50": samples[len(samples) // 2],
        "latest_ms_p99": samples[len(samples) * 99 // 100],
        "pattern_first_ms": pattern[0],
        "pattern_ms": pattern[-1],
    }


def report(figures: dict[str, Figures], tags: int, days: int) -> str:
    """The figures as Markdown tables."""
    points = tags * days * DAY
    rate: Callable[[float], str] = lambda seconds: f"{points / seconds:,.0f}"  # noqa: E731
    rows, spreads = [], []
    for name, figure in figures.items():
        per_second = {kind: 1e3 / statistics.median(samples) for kind, samples in figure.request_ms.items()}
        rows.append(
            [
                name,
                rate(figure.load_s),
                rate(figure.load_s + figure.finish_s),
                f"{figure.bytes / points:.2f}",
                *(digits(value) for value in per_second.values()),
            ]
        )
        percentiles = [np.percentile(samples, (50, 99)) for samples in figure.request_ms.values()]
        spreads.append([name, *(f"{digits(float(half))} / {digits(float(most))}" for half, most in percentiles)])
    kinds = next(iter(figures.values())).request_ms
    return "\n\n".join(
        [
            table(["", "values/s", "with upkeep", "bytes/value", *(f"{kind}, 1/s" for kind in kinds)], rows),
            table(["p50 / p99, ms", *kinds], spreads),
        ]
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tags", type=int, default=20)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--repeat", type=int, default=50, help="requests of each kind")
    parser.add_argument("--latest-tags", type=int, default=1_000_000, help="0 leaves the latest value out")
    parser.add_argument("--cluster", metavar="URL", help="an archive on a cluster, instead of SQLite; no latest value")
    parser.add_argument("--writes", type=int, default=0, help="values a second written meanwhile; not with --service")
    parser.add_argument("--service", action="store_true", help="over HTTP, beside QuestDB; no latest value")
    parser.add_argument("--quick", action="store_true", help="shows that it works; the figures mean nothing")
    parser.add_argument("--out", type=Path, default=RESULTS / "historian.json")
    given = parser.parse_args()
    if given.quick:
        given.tags, given.days, given.repeat, given.latest_tags = 10, 2, 3, 2_000
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        systems: list[System]
        meanwhile: AbstractContextManager[None] = nullcontext()
        if given.service or given.cluster:
            given.latest_tags = 0
        if given.service:
            systems = over_http.systems(folder, [tag_name(tag) for tag in range(given.tags)])
        else:
            ours = Chronotile(folder, given.tags, given.cluster)
            systems = [ours, Duck(folder, given.tags), Parquet(folder, given.tags)]
            meanwhile = Writing(ours.h, given.writes) if given.writes else meanwhile
        figures = measure(systems, given.tags, given.days, given.repeat, meanwhile)
        if isinstance(meanwhile, Writing):
            print(f"{meanwhile.written / meanwhile.seconds:,.0f} values/s of {given.writes:,} were written meanwhile")
        for system in systems:
            system.close()
        print(report(figures, given.tags, given.days))
        many = latest(folder, given.latest_tags) if given.latest_tags else {}
    if many:
        shown = [[key, digits(value)] for key, value in many.items()]
        print(table([f"of {given.latest_tags:,} tags", ""], shown))
    about = {
        "hardware": hardware(),
        "versions": versions("chronotile", "duckdb", "pyarrow"),
        "commit": commit(),
        "load": load_average(),
        "tags": given.tags,
        "days": given.days,
    }
    print("\n".join(f"{key}: {value}" for key, value in about.items()))
    given.out.parent.mkdir(parents=True, exist_ok=True)
    raw = {name: vars(figure) for name, figure in figures.items()}
    given.out.write_text(json.dumps({"about": about, "figures": raw, "latest": many}, indent=1))


if __name__ == "__main__":
    main()
