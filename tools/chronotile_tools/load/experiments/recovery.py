"""Clients of an archive, a historian and a service while the network of one node after another is cut."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import chronotile as ct
from chronotile_tools import lab
from chronotile_tools.load.experiments.base import Harness
from chronotile_tools.load.generator import Stream
from chronotile_tools.load.recording import DONE, Recording
from chronotile_tools.load.schedule import Schedule
from chronotile_tools.load.targets import History, Ranges, Writes

__all__ = ["FRONT_ENDS", "Cut", "Load", "Timeline", "measure"]

FRONT_ENDS = ("archive", "historian", "service")
_KEYSPACES = {"archive": "recovery_archive", "historian": "recovery_historian", "service": "recovery_service"}
_TAGS, _STEP_S = 10, 60
_ROWS = 25
_CELLS = 20
_CLIENTS = 16
_COORDINATED = ("coordinator_read_latency", "coordinator_write_latency", "coordinator_scan_latency")


@dataclass(frozen=True)
class Load:
    """Load of :func:`measure`.

    Attributes
    ----------
    rate : float
        Writes per second, and reads per second, of each front end.
    quiet_s : float
        Seconds before the first cut, and after each cut.
    timeout_s : int
        Request timeout of the clients, in seconds.
    """

    rate: float
    quiet_s: float
    timeout_s: int = 30


@dataclass(frozen=True)
class Cut:
    """A cut of a node's network: seconds from the start of the run, and by front end the operations that each node
    coordinated in the second half of the quiet time afterwards.
    """

    node: int
    start_s: float
    end_s: float
    coordinated: dict[str, list[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Timeline:
    """Operations of a stream by the second in which they were due: number, failures, and median and largest response
    time in milliseconds.
    """

    due: list[int]
    failed: list[int]
    p50_ms: list[float]
    max_ms: list[float]
    errors: dict[str, str]

    @classmethod
    def of(cls, found: Recording) -> Timeline:
        """The timeline of a recording."""
        second = found.due_ns // 1_000_000_000
        took = found.times_ns() / 1e6
        each = [second == number for number in range(int(second.max()) + 1)]
        return cls(
            [int(mine.sum()) for mine in each],
            [int((found.outcome[mine] != DONE).sum()) for mine in each],
            [round(float(np.median(took[mine])), 2) if mine.any() else 0.0 for mine in each],
            [round(float(took[mine].max()), 2) if mine.any() else 0.0 for mine in each],
            dict(found.errors),
        )


@dataclass(frozen=True)
class Batches:
    """Named batches of an archive, each with some rows of one cell."""

    url: str
    run: int

    def connect(self) -> _ArchiveClient:
        """A new client."""
        return _ArchiveClient(self.url, self.run)


@dataclass(frozen=True)
class Cells:
    """All rows of a cell of an archive."""

    url: str

    def connect(self) -> _CellsClient:
        """A new client."""
        return _CellsClient(self.url, 0)


class _ArchiveClient:
    def __init__(self, url: str, run: int) -> None:
        self.archive = ct.open(url)
        self.rows = _dataset(self.archive)
        self.run_number = run

    def run(self, number: int) -> int:
        """Write a batch."""
        ids = np.arange(_ROWS) + (self.run_number * 1_000_000 + number) * _ROWS
        columns = {"id": ids, "cell": np.full(_ROWS, number % _CELLS), "time": _moments(number), "value": ids / 7}
        return self.rows.write(columns, batch=f"{self.run_number}-{number}").rows

    def close(self) -> None:
        """Close the archive."""
        self.archive.close()


class _CellsClient(_ArchiveClient):
    def run(self, number: int) -> int:
        """Read a cell."""
        return int(self.rows.read(cells=[number % _CELLS]).to_arrow().num_rows)


def _moments(number: int) -> Any:
    return np.datetime64("2026-01-01", "us") + number % 3_600 * np.timedelta64(1, "s") + np.arange(_ROWS)


def _dataset(archive: ct.Archive) -> ct.Dataset:
    schema = {"id": "int64", "cell": "int64", "time": "timestamp[us]", "value": "float64"}
    return archive.create(
        "records", schema=schema, cell=ct.key("cell"), time="time", window="1d", id="id", exist_ok=True
    )


@contextmanager
def _service(url: str) -> Iterator[str]:
    """Run a service for an archive; yields its URL."""
    command = [sys.executable, "-m", "chronotile", "serve", url, "--listen", "127.0.0.1:0", "--log-format", "off"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().removeprefix("listening on ").strip()
        finally:
            process.terminate()
            process.wait(60)


def measure(harness: Harness, load: Load, cut_s: float) -> tuple[dict[str, Timeline], list[Cut]]:
    """Cut off each of three nodes once, for `cut_s` seconds; return timelines by stream, such as ``service write``, and
    the cuts.

    Raises
    ------
    LabError
        Nodes cannot be cut off here: that needs root and network namespaces.
    """
    with harness.cluster(3, network="namespaces") as cluster:
        urls = {name: f"{cluster.url(keyspace)}?timeout_s={load.timeout_s}" for name, keyspace in _KEYSPACES.items()}
        with ct.open(urls["archive"]) as archive:
            _dataset(archive)
        plants = {name: History(urls[name], _TAGS, 1, _STEP_S) for name in ("historian", "service")}
        for plant in plants.values():
            plant.store()
        with _service(urls["service"]) as served:
            seconds = load.quiet_s + len(cluster.nodes) * (cut_s + load.quiet_s)
            streams = list(_streams(load, seconds, urls["archive"], plants, served))
            # Warm-up: clients and nodes compile code, fill caches and open connections.
            harness.generator.run(list(_streams(load, load.quiet_s, urls["archive"], plants, served, run=1)))
            cuts: list[Cut] = []
            worker = threading.Thread()

            def begin(start_ns: int) -> None:
                nonlocal worker
                worker = threading.Thread(target=_cut_each, args=(cluster, load, cut_s, start_ns, cuts, harness.echo))
                worker.start()

            found = harness.generator.run(streams, begin=begin)
            worker.join()
        harness.keep(f"cut of {cut_s:g} s", 0, found)
        return {name: Timeline.of(each) for name, each in found.items()}, cuts


def _streams(
    load: Load, seconds: float, archive: str, plants: dict[str, History], served: str, run: int = 0
) -> Iterator[Stream]:
    writes = Schedule.fixed(load.rate, seconds)
    reads = Schedule.poisson(load.rate, seconds, seed=run)
    yield Stream("archive write", Batches(archive, run), writes, _CLIENTS)
    yield Stream("archive read", Cells(archive), reads, _CLIENTS)
    for name, plant in plants.items():
        url = plant.url if name == "historian" else served
        yield Stream(f"{name} write", Writes(url, plant, _ROWS, run), writes, _CLIENTS)
        yield Stream(f"{name} read", Ranges(url, plant, 0.2), reads, _CLIENTS)


def _cut_each(
    cluster: lab.Cluster, load: Load, cut_s: float, start_ns: int, cuts: list[Cut], echo: Callable[[str], object]
) -> None:
    """Cut off and reconnect each node, one after the other."""

    def now_s() -> float:
        return (time.perf_counter_ns() - start_ns) / 1e9

    begin_s = load.quiet_s
    for node in cluster.nodes:
        time.sleep(max(begin_s - now_s(), 0))
        start_s = now_s()
        node.cut()
        time.sleep(max(begin_s + cut_s - now_s(), 0))
        node.heal()
        end_s = now_s()
        begin_s += cut_s + load.quiet_s
        time.sleep(max(begin_s - load.quiet_s / 2 - now_s(), 0))
        before = _coordinated(cluster.nodes)
        time.sleep(max(begin_s - 0.5 - now_s(), 0))
        after = _coordinated(cluster.nodes)
        shares = {name: [b[name] - a[name] for a, b in zip(before, after, strict=True)] for name in FRONT_ENDS}
        cuts.append(Cut(node.index, round(start_s, 2), round(end_s, 2), shares))
        echo(f"node {node.index} was away from {start_s:.0f} to {end_s:.0f} s; then coordinated {shares}")


def _coordinated(nodes: Sequence[lab.Node]) -> list[dict[str, int]]:
    """Operations that each node has coordinated since its start, by front end."""
    names = {keyspace: name for name, keyspace in _KEYSPACES.items()}
    found = []
    for node in nodes:
        counts = dict.fromkeys(FRONT_ENDS, 0)
        with node.connect() as connection:
            for table in _COORDINATED:
                for keyspace, count in connection.select("keyspace_name, count", f"system_views.{table}"):
                    if keyspace in names:
                        counts[names[keyspace]] += int(count)
        found.append(counts)
    return found
