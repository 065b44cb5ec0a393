"""Systems of the historian's benchmark that are spoken to over HTTP: ours and QuestDB."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chronotile import historian

if TYPE_CHECKING:
    from historian import Answer, Request, System

S = 10**9
LINES_PER_REQUEST = 50_000
QUESTDB = "org.questdb:questdb:9.1.0"
"""Maven coordinates."""


def systems(folder: Path, names: list[str]) -> list[System]:
    """Those that run here."""
    found: list[System] = [ServedArrow(folder / "arrow", names), ServedLines(folder / "lines", names)]
    try:
        found.append(QuestDb(folder / "questdb", names))
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"QUESTDB IS LEFT OUT: {error}", file=sys.stderr)
    return found


class ServedArrow:
    """The historian behind its service, points as Arrow streams."""

    name = "chronotile serve, Arrow"

    def __init__(self, folder: Path, names: list[str]) -> None:
        folder.mkdir()
        self.path = folder / "plant.db"
        command = [sys.executable, "-m", "chronotile", "serve", str(self.path), "--listen", "127.0.0.1:0",
                   "--max-body", "1GiB", "--log-format", "off"]  # fmt: skip
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().removeprefix("listening on ").strip()
        self.h = historian.connect(self.url, timeout=600)
        self.names = names
        self.numbers = np.array([tag.number for tag in self.h.define_many([{"name": name} for name in names])])

    def prepare(self, points: pa.Table) -> Any:
        return points.set_column(0, "tag", pa.array(self.numbers[points["tag"].to_numpy()]))

    def load(self, prepared: Any) -> None:
        self.h.write(prepared)

    def finish(self) -> None:
        self.h.maintain()

    def answer(self, request: Request) -> Answer:
        tags = [int(self.numbers[tag]) for tag in request.tags]
        result = self.h.aggregate(tags, request.start, request.end, request.interval_s * S, "Average")
        return list(result.to_arrow()["value"].to_pylist())

    def bytes(self) -> int:
        return sum(file.stat().st_size for file in self.path.parent.glob("plant.db*"))

    def close(self) -> None:
        self.h.close()
        self.process.terminate()
        self.process.wait(60)


class ServedLines(ServedArrow):
    """The same, points as InfluxDB line protocol on two connections."""

    name = "chronotile serve, lines"

    def prepare(self, points: pa.Table) -> list[bytes]:
        return lines(points, self.names, "value")

    def load(self, prepared: list[bytes]) -> None:
        send_all(self.url, "/write", prepared)


class QuestDb:
    """QuestDB, points by line protocol, requests in its SQL."""

    name = "QuestDB"

    def __init__(self, folder: Path, names: list[str]) -> None:
        java, maven = shutil.which("java"), shutil.which("mvn")
        if java is None or maven is None:
            raise FileNotFoundError("java and mvn are needed")
        folder.mkdir()
        fetch = [maven, "-q", "dependency:copy", f"-Dartifact={QUESTDB}", f"-DoutputDirectory={folder}"]
        subprocess.run(fetch, check=True, cwd=folder, capture_output=True)
        (jar,) = folder.glob("questdb-*.jar")
        root, port = folder / "root", free_port()
        (root / "conf").mkdir(parents=True)
        settings = {"http.bind.to": f"127.0.0.1:{port}", "http.min.enabled": "false", "pg.enabled": "false",
                    "line.tcp.enabled": "false", "telemetry.enabled": "false",
                    "cairo.wal.enabled.default": "true"}  # fmt: skip
        (root / "conf" / "server.conf").write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        command = [java, "-Xmx2g", "-p", str(jar), "-m", "io.questdb/io.questdb.ServerMain", "-d", str(root)]
        self.process = subprocess.Popen(command, stdout=(folder / "log").open("wb"), stderr=subprocess.STDOUT)
        self.root, self.url, self.names, self.rows = root, f"http://127.0.0.1:{port}", names, 0
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        self._await_start()
        self.ask("CREATE TABLE points (tag SYMBOL CAPACITY 4096 INDEX, value DOUBLE, time TIMESTAMP) TIMESTAMP(time) "
                 "PARTITION BY DAY WAL")  # fmt: skip

    def _await_start(self) -> None:
        end = time.monotonic() + 60
        while True:
            try:
                self.ask("SELECT 1")
                return
            except (OSError, http.client.HTTPException):
                self.connection.close()
                if time.monotonic() > end or self.process.poll() is not None:
                    raise
                time.sleep(0.2)

    def ask(self, query: str) -> list[list[Any]]:
        self.connection.request("GET", f"/exec?query={quote(query)}")
        answer = json.loads(self.connection.getresponse().read())
        assert "error" not in answer, answer
        return list(answer.get("dataset", []))

    def prepare(self, points: pa.Table) -> list[bytes]:
        self.rows += len(points)
        return lines(points, [f"points,tag={name}" for name in self.names], "value")

    def load(self, prepared: list[bytes]) -> None:
        send_all(self.url, "/write", prepared)
        # Rows are applied behind the answer: a system is as fast as its points can be read.
        while self.ask("SELECT count() FROM points")[0][0] < self.rows:
            time.sleep(0.02)

    def finish(self) -> None:
        """Nothing: it has no upkeep to ask for."""

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

    def bytes(self) -> int:
        return sum(file.stat().st_size for file in (self.root / "db").rglob("*") if file.is_file())

    def close(self) -> None:
        self.connection.close()
        self.process.terminate()
        self.process.wait(60)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def lines(points: pa.Table, series: list[str], field: str) -> list[bytes]:
    """Line protocol, so many lines in each body."""
    heads = pa.array([f"{name} {field}=" for name in series]).take(points["tag"].combine_chunks())
    values = pc.cast(points["value"], pa.string()).combine_chunks()
    times = pc.cast(pc.cast(points["time"], pa.int64()), pa.string()).combine_chunks()
    whole = pc.binary_join_element_wise(heads, values, " ", times, "\n", "")
    pieces = (whole.slice(first, LINES_PER_REQUEST) for first in range(0, len(whole), LINES_PER_REQUEST))
    return ["".join(piece.to_pylist()).encode() for piece in pieces]


def send_all(url: str, path: str, bodies: list[bytes]) -> None:
    """Posts bodies on two connections."""
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
