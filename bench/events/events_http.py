"""Security artifacts over HTTP: ingest rate of a service with several connections, compared with the library.

`./dev bench events_http` generates artifacts of 1 KB, starts `chronotile serve`, and posts the artifacts over several
connections, in bodies of a thousand lines. Each body is durable before its answer. Needs numpy and pyarrow.
"""

from __future__ import annotations

import argparse
import http.client
import json
import subprocess
import sys
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import common
from support_events import FIELDS, FIRST, Artifacts

import chronotile as ct
from chronotile import events


class Served:
    """`chronotile serve` of an archive, with its processor time."""

    def __init__(self, path: Path) -> None:
        command = [sys.executable, "-m", "chronotile", "serve", str(path), "--create", "--listen", "127.0.0.1:0",
                   "--log-format", "off"]  # fmt: skip
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        url = urlsplit(self._process.stdout.readline().removeprefix("listening on ").strip())
        self.host, self.port = str(url.hostname), url.port

    def cpu_s(self) -> float:
        """Seconds of processor time so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100

    def close(self) -> None:
        """Stop the service with SIGTERM."""
        self._process.terminate()
        self._process.wait(60)


def post(served: Served, bodies: list[bytes], name: str, latencies_ms: list[float]) -> None:
    """Post bodies one after the other over one connection."""
    connection = http.client.HTTPConnection(served.host, served.port, timeout=600)
    for number, body in enumerate(bodies):
        began = time.perf_counter()
        connection.request("POST", f"/v1/events/{name}?batch={threading.get_ident()}-{number}", body)
        answer = connection.getresponse()
        text = answer.read()
        latencies_ms.append((time.perf_counter() - began) * 1e3)
        if answer.status != 200 or json.loads(text)["documents"] != body.count(b"\n"):
            raise SystemExit(f"{answer.status}: {text!r}")
    connection.close()


def over_http(path: Path, name: str, bodies: list[bytes], connections: int) -> tuple[float, float, list[float]]:
    """Seconds, processor seconds of the service, and latencies of the bodies."""
    served = Served(path)
    latencies: list[float] = []
    try:
        # Warm up: the first request is slower.
        post(served, [bodies[0]], name, [])
        before = served.cpu_s()
        began = time.perf_counter()
        threads = [threading.Thread(target=post, args=(served, bodies[place::connections], name, latencies))
                   for place in range(connections)]  # fmt: skip
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.perf_counter() - began, served.cpu_s() - before, latencies
    finally:
        served.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--size", type=int, default=1_024, help="approximate bytes of an artifact")
    parser.add_argument("--body-rows", type=int, default=1_000, help="artifacts in a body")
    parser.add_argument("--connections", type=int, default=2)
    parser.add_argument("--no-filters", action="store_true", help="store no text filters")
    options = parser.parse_args()
    artifacts = Artifacts(options.size)
    lines = [
        artifacts.line(FIRST + timedelta(days=1) * number / options.rows) + b"\n" for number in range(options.rows)
    ]
    bodies = [b"".join(lines[place : place + options.body_rows]) for place in range(0, options.rows, options.body_rows)]
    size = sum(map(len, lines))
    with tempfile.TemporaryDirectory(prefix="chronotile-bench-") as folder:
        path = Path(folder) / "events.db"
        with ct.open(path) as archive:
            for name in ("library", "served"):
                text = () if options.no_filters else ("body",)
                events.create(archive, name, fields=FIELDS, stream_field="host", ttl="3650d", text=text)
            log = events.open(archive, "library")
            began = time.perf_counter()
            for number, body in enumerate(bodies):
                log.ingest_lines(body, batch=f"b{number}")
            library_s = time.perf_counter() - began
        took_s, cpu_s, latencies = over_http(path, "served", bodies, options.connections)
        with ct.open(path) as archive:
            stored = events.open(archive, "served").count()
    # The first body was posted twice, once to warm up.
    assert stored == options.rows + len(lines[: options.body_rows])
    head = {
        "commit": common.commit(), "hardware": common.hardware(), "load": common.load_average(), "rows": options.rows,
        "bytes an artifact": round(size / options.rows), "artifacts a body": options.body_rows,
        "connections": options.connections, "text filters": not options.no_filters,
        "versions": common.versions("pyarrow", "chronotile"),
    }  # fmt: skip
    figures = {
        "over HTTP, artifacts/s": options.rows / took_s, "library, one thread, artifacts/s": options.rows / library_s,
        "a second of the service's processor, artifacts": options.rows / cpu_s,
    }  # fmt: skip
    common.RESULTS.mkdir(exist_ok=True)
    out = common.RESULTS / "events-http.json"
    out.write_text(json.dumps({**head, "figures": figures, "latencies_ms": latencies}, indent=1))
    print("\n".join(f"{name}: {value}" for name, value in head.items()))
    print("\n".join(f"{name}: {value:,.0f}" for name, value in figures.items()))
    median, most = (common.percentile(latencies, share) for share in (50, 99))
    print(f"a body, ms: median {median:.1f}, p99 {most:.1f}")


if __name__ == "__main__":
    main()
