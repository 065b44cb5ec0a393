"""Systems of the historian's benchmark with an HTTP interface: Chronotile, QuestDB, VictoriaMetrics and KairosDB."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

import historian_peers as peers
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from common import bytes_below
from historian_systems import OTHER, Plant, PlantClient, other_name

from chronotile import historian

if TYPE_CHECKING:
    from historian_systems import Answer, Client, Opening, Request, System

LINES_PER_REQUEST = 50_000
START_S = 60


def systems(folder: Path, names: list[str], only: str | None) -> list[System]:
    """Start the systems that are available on this machine."""
    found: list[System] = []
    for make in (ServedArrow, ServedLines, QuestDb, VictoriaMetrics, KairosDb):
        if only and not any(make.name.startswith(one) for one in only.split(",")):
            continue
        place = folder / make.__name__
        place.mkdir()
        try:
            found.append(make(place, names))
        except (OSError, subprocess.SubprocessError, peers.MissingPeerError) as error:
            print(f"{make.name.upper()} IS SKIPPED: {error}", file=sys.stderr)
    return found


class ServedArrow:
    """The historian through its service, with points as Arrow streams."""

    name = "chronotile serve, Arrow"

    def __init__(self, folder: Path, names: list[str]) -> None:
        self.path = folder / "plant.db"
        command = [sys.executable, "-m", "chronotile", "serve", str(self.path), "--create", "--listen", "127.0.0.1:0",
                   "--max-body", "1GiB", "--log-format", "off"]  # fmt: skip
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().removeprefix("listening on ").strip()
        self.h = historian.connect(self.url, timeout=600)
        self.names = names
        self.numbers = [tag.number for tag in self.h.define_many([{"name": name} for name in names])]
        self.opening = Plant(self.url, self.numbers, served=True)
        self.client = PlantClient(self.h, self.opening)

    def prepare(self, points: pa.Table) -> Any:
        return points.set_column(0, "tag", pa.array(np.array(self.numbers)[points["tag"].to_numpy()]))

    def load(self, prepared: Any) -> None:
        self.h.write(prepared)

    def finish(self) -> None:
        self.h.maintain()

    def bytes(self) -> int:
        return sum(file.stat().st_size for file in self.path.parent.glob("plant.db*"))

    def close(self) -> None:
        self.client.close()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)


class ServedLines(ServedArrow):
    """The same, with points as InfluxDB line protocol over two connections."""

    name = "chronotile serve, lines"

    def prepare(self, points: pa.Table) -> list[bytes]:
        return lines(points, self.names, "value")

    def load(self, prepared: list[bytes]) -> None:
        send_all(self.url, "/write", prepared)


@dataclass(frozen=True)
class Url:
    """The URL of a peer, the class of its clients, and the names of its tags."""

    make: Callable[[Url], Client]
    url: str
    names: list[str]

    def connect(self) -> Client:
        return self.make(self)


class HttpClient:
    """An HTTP client with a connection for each thread."""

    def __init__(self, place: Url) -> None:
        self.names, self.own, self.open = place.names, threading.local(), list[http.client.HTTPConnection]()
        parts = urlsplit(place.url)
        self.host, self.port = str(parts.hostname), parts.port

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> bytes:
        """Send a request; returns the body of the response. Raises OSError for a status of 300 or more."""
        if not hasattr(self.own, "connection"):
            self.own.connection = http.client.HTTPConnection(self.host, self.port, timeout=600)
            self.open.append(self.own.connection)
        self.own.connection.request(method, path, body, headers or {})
        answer = self.own.connection.getresponse()
        text = answer.read()
        if answer.status >= 300:
            raise OSError(f"{path[:200]}: status {answer.status}: {text[:500].decode(errors='replace')}")
        return bytes(text)

    def write(self, points: pa.Table) -> None:
        self.request("POST", "/write", other_lines(points), {"Content-Type": "text/plain"})

    def close(self) -> None:
        for connection in self.open:
            connection.close()


class Peer:
    """A server process with an HTTP port."""

    name: str
    client: HttpClient
    opening: Opening

    def start(self, command: list[str], folder: Path, opening: Url, ping: str) -> None:
        """Start the server and wait until it answers path `ping`."""
        self.rows, self.names, self.url = 0, opening.names, opening.url
        log = folder / "log"
        with log.open("wb") as out:
            self.process = subprocess.Popen(command, cwd=folder, stdout=out, stderr=subprocess.STDOUT)
        self.opening = opening
        end = time.monotonic() + START_S
        while True:
            client = opening.connect()
            assert isinstance(client, HttpClient)
            try:
                client.request("GET", ping)
                break
            except (OSError, http.client.HTTPException) as error:
                client.close()
                if time.monotonic() > end or self.process.poll() is not None:
                    self.process.kill()
                    last = log.read_text(errors="replace")[-600:]
                    raise peers.MissingPeerError(f"it did not start ({error}): {last}") from None
                time.sleep(0.2)
        self.client = client

    def prepare(self, points: pa.Table) -> list[bytes]:
        self.rows += len(points)
        return lines(points, [f"points,tag={name}" for name in self.names], "value")

    def load(self, prepared: list[bytes]) -> None:
        send_all(self.url, "/write", prepared)

    def finish(self) -> None:
        """Run maintenance, if the system has any."""

    def close(self) -> None:
        self.client.close()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)


class QuestClient(HttpClient):
    """Queries in QuestDB's SQL."""

    def ask(self, query: str) -> list[list[Any]]:
        answer = json.loads(self.request("GET", f"/exec?query={quote(query)}"))
        return list(answer.get("dataset", []))

    def answer(self, request: Request) -> Answer:
        names = ",".join(f"'{self.names[tag]}'" for tag in request.tags)
        form = "%Y-%m-%dT%H:%M:%S.000000Z"
        rows = self.ask(
            f"SELECT tag, time, avg(value) FROM points WHERE tag IN ({names}) "
            f"AND time >= '{request.start.strftime(form)}' "
            f"AND time < '{request.end.strftime(form)}' SAMPLE BY {request.interval_s}s ALIGN TO CALENDAR"
        )
        order = {self.names[tag]: place for place, tag in enumerate(request.tags)}
        return [row[2] for row in sorted(rows, key=lambda row: (order[row[0]], row[1]))]


class QuestDb(Peer):
    """QuestDB, with points as line protocol and queries in its SQL."""

    name = "QuestDB"
    client: QuestClient

    def __init__(self, folder: Path, names: list[str]) -> None:
        jar, port = peers.questdb(), free_port()
        self.root = folder / "root"
        (self.root / "conf").mkdir(parents=True)
        settings = {"http.bind.to": f"127.0.0.1:{port}", "http.min.enabled": "false", "pg.enabled": "false",
                    "line.tcp.enabled": "false", "telemetry.enabled": "false",
                    "cairo.wal.enabled.default": "true"}  # fmt: skip
        text = "".join(f"{key}={value}\n" for key, value in settings.items())
        (self.root / "conf" / "server.conf").write_text(text)
        command = [
            peers.java(),
            "-Xmx2g",
            "-p",
            str(jar),
            "-m",
            "io.questdb/io.questdb.ServerMain",
            "-d",
            str(self.root),
        ]
        self.start(command, folder, Url(QuestClient, f"http://127.0.0.1:{port}", names), "/exec?query=SELECT%201")
        self.client.ask("CREATE TABLE points (tag SYMBOL CAPACITY 4096 INDEX, value DOUBLE, time TIMESTAMP) "
                        "TIMESTAMP(time) PARTITION BY DAY WAL")  # fmt: skip

    def load(self, prepared: list[bytes]) -> None:
        super().load(prepared)
        # Rows are applied after the answer: the load has ended when all points can be read.
        while self.client.ask("SELECT count() FROM points")[0][0] < self.rows:
            time.sleep(0.02)

    def bytes(self) -> int:
        return bytes_below(self.root / "db")


class VictoriaClient(HttpClient):
    """Range queries in MetricsQL."""

    def answer(self, request: Request) -> Answer:
        names = "|".join(self.names[tag].replace(".", r"\\.") for tag in request.tags)
        # Windows include their end, not their start, so each ends one second (one value) before the next interval.
        words = {
            "query": f'avg_over_time(points_value{{tag=~"{names}"}}[{request.interval_s}s])',
            "start": int(request.start.timestamp()) + request.interval_s - 1,
            "end": int(request.end.timestamp()) - 1,
            "step": f"{request.interval_s}s",
            # No result cache, because no other system has one.
            "nocache": 1,
        }
        series = json.loads(self.request("GET", f"/api/v1/query_range?{urlencode(words)}"))["data"]["result"]
        order = {self.names[tag]: place for place, tag in enumerate(request.tags)}
        series.sort(key=lambda one: order[one["metric"]["tag"]])
        return [float(value) for one in series for _, value in one["values"]]


class VictoriaMetrics(Peer):
    """A single node of VictoriaMetrics, with points as line protocol and queries in MetricsQL."""

    name = "VictoriaMetrics"

    def __init__(self, folder: Path, names: list[str]) -> None:
        program, port = peers.victoria_metrics(), free_port()
        self.data = folder / "data"
        command = [str(program), f"-storageDataPath={self.data}", f"-httpListenAddr=127.0.0.1:{port}",
                   "-retentionPeriod=100y", "-loggerLevel=WARN"]  # fmt: skip
        self.start(command, folder, Url(VictoriaClient, f"http://127.0.0.1:{port}", names), "/health")

    def load(self, prepared: list[bytes]) -> None:
        super().load(prepared)
        # Otherwise points stay in memory for a while before queries find them.
        self.client.request("GET", "/internal/force_flush")

    def finish(self) -> None:
        self.client.request("GET", "/internal/force_merge")
        while b"vm_active_force_merges 0" not in self.client.request("GET", "/metrics"):
            time.sleep(0.2)

    def bytes(self) -> int:
        return bytes_below(self.data)


class KairosClient(HttpClient):
    """Queries in KairosDB's JSON."""

    def answer(self, request: Request) -> Answer:
        names = [self.names[tag] for tag in request.tags]
        average = {"name": "avg", "sampling": {"value": request.interval_s // 3_600, "unit": "hours"}}
        metric = {"name": "points", "tags": {"tag": names}, "group_by": [{"name": "tag", "tags": ["tag"]}],
                  "aggregators": [average]}  # fmt: skip
        query = {"start_absolute": int(request.start.timestamp() * 1e3),
                 "end_absolute": int(request.end.timestamp() * 1e3) - 1, "metrics": [metric]}  # fmt: skip
        head = {"Content-Type": "application/json"}
        answer = json.loads(self.request("POST", "/api/v1/datapoints/query", json.dumps(query).encode(), head))
        order = {name: place for place, name in enumerate(names)}
        series = sorted(answer["queries"][0]["results"], key=lambda one: order[one["tags"]["tag"][0]])
        return [value for one in series for _, value in one["values"]]

    def write(self, points: pa.Table) -> None:
        tags = points["tag"].to_pylist()
        named = {tag: other_name(tag - OTHER) for tag in set(tags)}
        times, values = pc.cast(points["time"], pa.int64()).to_numpy() // 10**6, points["value"].to_pylist()
        rows: dict[str, list[list[float]]] = {}
        for tag, at, value in zip(tags, times.tolist(), values, strict=True):
            rows.setdefault(named[tag], []).append([at, value])
        self.send(rows)

    def send(self, rows: dict[str, list[list[float]]]) -> None:
        """Store points by tag, each a pair of milliseconds and value."""
        body = [{"name": "points", "tags": {"tag": tag}, "type": "double", "datapoints": each}
                for tag, each in rows.items()]  # fmt: skip
        self.request(
            "POST",
            "/api/v1/datapoints",
            gzip.compress(json.dumps(body).encode(), 1),
            {"Content-Type": "application/gzip"},
        )


class KairosDb(Peer):
    """KairosDB on its embedded H2 database, with points and queries in its JSON."""

    name = "KairosDB"
    client: KairosClient

    def __init__(self, folder: Path, names: list[str]) -> None:
        jars, port = peers.kairosdb(), free_port()
        self.data = folder / "data"
        settings = ['service.telnet = "<disabled>"', 'service.reporter = "<disabled>"', f"jetty.port = {port}",
                    'jetty.address = "127.0.0.1"', f'datastore.h2.database_path = "{self.data}/h2"',
                    'query_cache.cache_file_cleaner_schedule = "0 0 1 * * ?"']  # fmt: skip
        (folder / "kairosdb.conf").write_text("".join(f"kairosdb.{line}\n" for line in settings))
        (folder / "logback.xml").write_text('<configuration><root level="OFF"/></configuration>')
        # Its libraries access internals of Java, which newer versions close by default.
        opened = [f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in ("lang", "util")]
        command = [peers.java(), "-Xmx2g", *opened, "-Dlogback.configurationFile=logback.xml", "-cp", f"{jars}/*",
                   "org.kairosdb.core.Main", "-c", "run", "-p", "kairosdb.conf"]  # fmt: skip
        self.start(command, folder, Url(KairosClient, f"http://127.0.0.1:{port}", names), "/api/v1/version")

    def prepare(self, points: pa.Table) -> Any:
        self.rows += len(points)
        times, values = pc.cast(points["time"], pa.int64()).to_numpy() // 10**6, points["value"].to_numpy()
        tags = points["tag"].to_numpy()
        parts = []
        for first in range(0, len(points), LINES_PER_REQUEST):
            part = slice(first, first + LINES_PER_REQUEST)
            rows: dict[str, list[list[float]]] = {}
            for tag in np.unique(tags[part]).tolist():
                mine = tags[part] == tag
                rows[self.names[tag]] = [
                    list(pair) for pair in zip(times[part][mine].tolist(), values[part][mine].tolist(), strict=True)
                ]
            parts.append(rows)
        return parts

    def load(self, prepared: Any) -> None:
        for rows in prepared:
            self.client.send(rows)
        last = max(pair[0] for rows in prepared for pairs in rows.values() for pair in pairs)
        self.await_last(prepared[-1], int(last))

    def await_last(self, rows: dict[str, list[list[float]]], last: int) -> None:
        """Wait until the newest point can be read: KairosDB queues points after its answer."""
        tag = list(rows)[-1]
        metric = {"name": "points", "tags": {"tag": [tag]}, "limit": 1, "order": "desc"}
        query = json.dumps({"start_absolute": last, "end_absolute": last + 1, "metrics": [metric]}).encode()
        while True:
            answer = json.loads(
                self.client.request("POST", "/api/v1/datapoints/query", query, {"Content-Type": "application/json"})
            )
            if answer["queries"][0]["sample_size"]:
                return
            time.sleep(0.05)

    def bytes(self) -> int:
        return bytes_below(self.data)


def free_port() -> int:
    """An unused port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def lines(points: pa.Table, series: list[str], field: str) -> list[bytes]:
    """Points as line protocol, in bodies of `LINES_PER_REQUEST` lines."""
    heads = pa.array([f"{name} {field}=" for name in series]).take(points["tag"].combine_chunks())
    values = pc.cast(points["value"], pa.string()).combine_chunks()
    times = pc.cast(pc.cast(points["time"], pa.int64()), pa.string()).combine_chunks()
    whole = pc.binary_join_element_wise(heads, values, " ", times, "\n", "")
    pieces = (whole.slice(first, LINES_PER_REQUEST) for first in range(0, len(whole), LINES_PER_REQUEST))
    return ["".join(piece.to_pylist()).encode() for piece in pieces]


def other_lines(points: pa.Table) -> bytes:
    """Points of other tags as line protocol."""
    places = pc.subtract(points["tag"], OTHER)
    series = [f"points,tag={other_name(tag)}" for tag in range(int(pc.max(places).as_py()) + 1)]
    return b"".join(lines(points.set_column(0, "tag", places), series, "value"))


def send_all(url: str, path: str, bodies: list[bytes]) -> None:
    """Post bodies over two connections."""
    parts = urlsplit(url)

    def send(mine: list[bytes]) -> None:
        connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=600)
        for body in mine:
            connection.request("POST", path, body, {"Content-Type": "text/plain"})
            answer = connection.getresponse()
            text = answer.read()
            assert answer.status == 204, text
        connection.close()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(send, [bodies[::2], bodies[1::2]]))
