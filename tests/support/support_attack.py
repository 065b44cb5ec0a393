"""Hostile clients of a service, all at once, and a polite client whose response times are measured meanwhile.

Each attack is something that a client with one token or none can send: connections, bodies and queries that cost the
service much more than the sender. The attackers run in one process, the polite client in another.
"""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import multiprocessing
import os
import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from chronotile.workers import end_with_parent

MIB = 1 << 20
READER, WRITER, ADMIN = "reader-0123456789abcdef", "writer-0123456789abcdef", "admin-0123456789abcdef"
TOKENS = f"grafana read - {READER}\ngateway write,define - {WRITER}\nroot admin - {ADMIN}\n"


@dataclass
class PoliteClient:
    """Results of a client that sends small requests and waits as Retry-After says."""

    seconds: list[float] = field(default_factory=list)
    """Response time of each request, including retries."""
    statuses: Counter[str] = field(default_factory=Counter)

    def p99_ms(self) -> float:
        """The 99th percentile of the times, ms."""
        return self._ms(0.99)

    def median_ms(self) -> float:
        """The median of the times, ms."""
        return self._ms(0.5)

    def _ms(self, share: float) -> float:
        return sorted(self.seconds)[int(share * (len(self.seconds) - 1))] * 1e3 if self.seconds else float("inf")


def fill(path: Path) -> None:
    """Create an archive with data for every attacked endpoint."""
    import pyarrow as pa

    import chronotile as ct
    from chronotile import events, historian, jobs

    day = 86_400 * 10**9
    with historian.open(path) as h:
        h.define_many([{"name": "boiler"}, *({"name": f"t{n}"} for n in range(100))])
        for number in range(100):
            h.annotate(f"t{number}", "2026-01-01", "x" * 1_000)
        h.write({"tag": ["boiler"] * 1_000, "time": [n * day // 1_000 for n in range(1_000)], "value": [1.0] * 1_000})
    with ct.open(path) as archive:
        web = events.create(archive, "web", stream_field="host", ttl="36500d")
        lines = (
            json.dumps({"time": "2026-01-01T00:00:00Z", "host": "a", "n": n, "text": "x" * 50_000}) for n in range(200)
        )
        web.ingest_lines("\n".join(lines).encode())
        schema = pa.schema([("job_id", pa.int64()), ("submitted", pa.timestamp("us")), ("user", pa.utf8())])
        jobs.create(archive, "grid", schema=schema, time="submitted")


def _ask(
    port: int, method: str, path: str, body: bytes | None, token: str | None, heads: dict[str, str]
) -> tuple[int, float]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    with contextlib.closing(connection):
        given = {**heads, **({"Authorization": f"Bearer {token}"} if token else {})}
        connection.request(method, path, body, given)
        answer = connection.getresponse()
        while answer.read(MIB):
            pass
        return answer.status, float(answer.headers.get("Retry-After", 0))


# ---------------------------------------------------------------------- the polite client


def _be_polite(port: int, stop: Event, found: Queue[Any]) -> None:
    end_with_parent()
    polite = PoliteClient()
    while not stop.is_set():
        began = time.monotonic()
        write = len(polite.seconds) % 4 == 0
        method, path, body, token = (
            ("POST", "/write", b"boiler value=2", WRITER) if write else ("GET", "/v1/latest?tag=boiler", None, READER)
        )
        for _ in range(20):
            try:
                status, retry_after_s = _ask(port, method, path, body, token, {})
            except (OSError, http.client.HTTPException) as error:
                polite.statuses[type(error).__name__] += 1
                break
            polite.statuses[str(status)] += 1
            if status not in (429, 503):
                break
            time.sleep(min(retry_after_s, 1) * random.uniform(0.1, 1))
        polite.seconds.append(time.monotonic() - began)
        stop.wait(0.01)
    found.put((polite.seconds, dict(polite.statuses)))


def polite(port: int, seconds: float) -> PoliteClient:
    """Run the polite client for some seconds."""
    context = multiprocessing.get_context("spawn")
    stop, found = context.Event(), context.Queue()
    client = context.Process(target=_be_polite, args=(port, stop, found), daemon=True)
    client.start()
    time.sleep(seconds)
    stop.set()
    times, statuses = found.get(timeout=120)
    client.join(60)
    return PoliteClient(times, Counter(statuses))


# ---------------------------------------------------------------------- attacks

Attack = Callable[[int], str]
"""Attacks the service on a port; returns the HTTP status, or what it did with connections."""


def _question(path: str, token: str, words: list[tuple[str, str]], body: Any = None) -> Attack:
    """Sends one expensive query."""
    target = f"{path}?{urlencode(words)}" if words else path
    sent = None if body is None else json.dumps(body).encode()
    heads = {} if body is None else {"Content-Type": "application/json"}

    def attack(port: int) -> str:
        return str(_ask(port, "GET" if body is None else "POST", target, sent, token, heads)[0])

    return attack


def _packed(path: str, kind: str, data: bytes) -> Attack:
    """A small body that unpacks to a large one."""
    heads = {"Content-Encoding": "gzip", "Content-Type": kind}
    packed = gzip.compress(data, 6)

    def attack(port: int) -> str:
        return str(_ask(port, "POST", path, packed, ADMIN, heads)[0])

    return attack


def _snappy(path: str, data: bytes) -> Attack:
    """A remote write whose Snappy block repeats the first two bytes."""
    size, head, left = len(data), b"", len(data) - 2
    while size > 127:
        head += bytes([size & 127 | 128])
        size >>= 7
    head += bytes([size]) + bytes([1 << 2]) + data[:2]
    copies = bytes([63 << 2 | 2, 2, 0]) * (left // 64)
    rest = bytes([(left % 64 - 1) << 2 | 2, 2, 0]) if left % 64 else b""

    def attack(port: int) -> str:
        heads = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
        return str(_ask(port, "POST", path, head + copies + rest, WRITER, heads)[0])

    return attack


def _large_bodies(port: int) -> str:
    """Large bodies without a token, also for a path that needs none."""
    for head in ("GET /health", "POST /write", "POST /nothing"):
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(f"{head} HTTP/1.1\r\nHost: a\r\nContent-Length: {64 * MIB}\r\n\r\n".encode())
            for _ in range(16):
                connection.sendall(b"a" * MIB)
    return "sent"


def _half_bodies(port: int) -> str:
    """Large bodies with a token that are never completed."""
    with contextlib.ExitStack() as connections:
        for _ in range(8):
            connection = connections.enter_context(socket.create_connection(("127.0.0.1", port), timeout=5))
            head = f"POST /write HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {WRITER}\r\n"
            head += f"Content-Length: {60 * MIB}\r\n\r\n"
            with contextlib.suppress(OSError):
                connection.sendall(head.encode() + b"#" * (30 * MIB))
        time.sleep(0.5)
    return "sent"


def _idle_connections(port: int) -> str:
    """More connections than the service accepts; each sends a request that needs no token now and then."""
    with contextlib.ExitStack() as connections:
        idle = []
        for _ in range(200):
            connection = connections.enter_context(socket.create_connection(("127.0.0.1", port), timeout=1))
            idle.append(connection)
            connection.settimeout(0.001)
        for _ in range(3):
            for connection in idle:
                with contextlib.suppress(OSError):
                    connection.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")
                    connection.recv(65536)
            time.sleep(0.3)
    return "open"


def _slow_readers(port: int) -> str:
    """Large responses that the client does not read."""
    target = f"/v1/events/web?limit=200&format=raw&start={quote('2026-01-01')}"
    with contextlib.ExitStack() as connections:
        for _ in range(8):
            connection = connections.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(5)
            connection.connect(("127.0.0.1", port))
            connection.sendall(f"GET {target} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {READER}\r\n\r\n".encode())
        time.sleep(2)
    return "open"


def attacks(unpacked: int) -> dict[str, Attack]:
    """All attacks by name; compressed bodies unpack to `unpacked` bytes."""
    return {**_connections(), **_bodies(unpacked), **_questions()}


def _connections() -> dict[str, Attack]:
    return {
        "bodies without a token": _large_bodies,
        "half bodies": _half_bodies,
        "idle connections": _idle_connections,
        "slow readers": _slow_readers,
    }


def _bodies(n: int) -> dict[str, Attack]:
    json_type, csv_type, lines = "application/json", "text/csv", "text/plain"
    arrow = "application/vnd.apache.arrow.stream"
    names = b'{"tags":[' + b'{"name":"a"},' * (n // 13) + b'{"name":"a"}]}'
    return {
        "remote write: empty series": _snappy("/api/v1/write", b"\x0a\x00" * (n // 2)),
        "JSON [1,1,...]": _packed("/v1/points", json_type, b"[" + b"1," * (n // 2) + b"1]"),
        "JSON nested": _packed("/v1/points", json_type, b"[" * n),
        "CSV, wrong lines": _packed("/v1/points", csv_type, b"tag,time,value\n" + b"x\n" * (n // 2)),
        "CSV, commas": _packed("/v1/points", csv_type, b"tag,time,value\n" + b"," * n),
        "line protocol, wrong lines": _packed("/write?partial=true", lines, b"x\n" * (n // 2)),
        "line protocol, fields": _packed("/write", lines, b"m " + b"a=1," * (n // 4)),
        "events, wrong lines": _packed("/v1/events/web", lines, b"x\n" * (n // 2)),
        "events, {}": _packed("/v1/events/web", lines, b"{}\n" * (n // 3)),
        "tags": _packed("/v1/tags", json_type, names),
        "an Arrow stream of lengths": _packed("/v1/points", arrow, struct.pack("<II", 0xFFFFFFFF, 0x7FFFFFF0) * 1_000),
    }


def _questions() -> dict[str, Attack]:
    tags = [("tag", f"t{number}") for number in range(100)]
    whole = [("start", "1980-01-01"), ("end", "1989-12-31")]
    empty = [("tag", "t1"), ("aggregate", "Count"), ("interval", "32s"), *whole]
    period = {"from": "2000-01-01T00:00:00Z", "to": "2009-01-01T00:00:00Z"}
    targets = [{"target": "Count(t1)", "refId": "A"}] * 5_000
    query = {"range": period, "intervalMs": 1, "maxDataPoints": 100_000, "targets": targets}
    notes = {"range": period, "annotation": {"query": "*", "more": "x" * 100_000}}
    group, grid, web = "/v1/jobs/grid/group", "/v1/jobs/grid", "/v1/events/web"
    return {
        "6,000 spaces": _question(group, READER, [("by", "user"), ("aggregate", "a(" + " " * 6_000)]),
        "20,000 digits": _question(grid, READER, [("where", "job_id==" + "1" * 20_000 + "x")]),
        "lists within lists": _question(web, READER, [("where", "[" * 20_000)]),
        "10,000,000 empty intervals": _question("/v1/aggregate", READER, empty),
        "many tags and times": _question("/v1/at", READER, tags + [("time", str(10**17 + k)) for k in range(1_500)]),
        "Grafana: 5,000 targets": _question("/grafana/query", READER, [], query),
        "Grafana: annotations": _question("/grafana/annotations", READER, [], notes),
        "large documents": _question(web, READER, [("limit", "100000"), ("start", "2026-01-01")]),
    }


def _attack(
    port: int,
    unpacked: int,
    names: list[str],
    threads: int,
    nice: int,
    ready: Event,
    half: Event,
    stop: Event,
    found: Queue[Any],
) -> None:
    end_with_parent()
    os.nice(nice)
    known = attacks(unpacked)
    ready.set()
    # Includes attacks that never finish.
    done: dict[str, Counter[str]] = {name: Counter() for name in names}

    def repeat(name: str) -> None:
        while not stop.is_set():
            try:
                outcome = known[name](port)
            except (OSError, http.client.HTTPException) as error:
                # Services may refuse attacks.
                outcome = type(error).__name__
            done[name][outcome] += 1

    crowd = [threading.Thread(target=repeat, args=(name,), daemon=True) for name in names for _ in range(threads)]
    for thread in crowd:
        thread.start()
    while not stop.is_set():
        if sum(map(bool, done.values())) >= len(done) / 2:
            half.set()
        time.sleep(0.1)
    found.put({name: dict(outcomes) for name, outcomes in done.items()})
    # Threads still waiting for a response end with the process.


class Attackers:
    """Context manager that runs all attacks, or those in `names`, in parallel. A positive `nice` leaves processor time
    to the service, as attackers on other machines would; they send the same."""

    def __init__(
        self,
        port: int,
        *,
        unpacked: int = 4 * MIB,
        threads: int = 1,
        nice: int = 0,
        names: Iterable[str] | None = None,
    ) -> None:
        chosen = list(attacks(1_000) if names is None else names)
        context = multiprocessing.get_context("spawn")
        self._ready, self._half, self._stop = context.Event(), context.Event(), context.Event()
        self._found = context.Queue()
        given = (port, unpacked, chosen, threads, nice, self._ready, self._half, self._stop, self._found)
        self._process = context.Process(target=_attack, args=given, daemon=True)
        self.done: dict[str, dict[str, int]] = {}
        """Counts of outcomes by attack; set on exit."""

    def __enter__(self) -> Attackers:
        self._process.start()
        # Generating large bodies takes a while.
        self._ready.wait(60)
        return self

    def wait_for_half(self, seconds: float) -> None:
        """Wait until half of the attacks have finished once, at most `seconds`."""
        self._half.wait(seconds)

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        with contextlib.suppress(Exception):
            self.done = self._found.get(timeout=30)
        self._process.terminate()
        self._process.join(30)
