"""A service among clients that mean it no good, or do not know what they do."""

from __future__ import annotations

import gzip
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support_service import Answer, Service

MIB = 1 << 20

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits and figures are read from /proc")


def _send(service: Service, head: str, *pieces: bytes) -> socket.socket:
    """A request, or the start of one, on a connection that stays open."""
    connection = socket.create_connection(("127.0.0.1", service.port), timeout=20)
    connection.sendall(head.replace("\n", "\r\n").encode() + b"".join(pieces))
    return connection


def _packed(service: Service, size: int) -> Answer:
    """A body of comments that unpacks to `size` bytes."""
    return service.ask("POST", "/write", body=gzip.compress(b"#" * size), headers={"Content-Encoding": "gzip"})


def _figure(service: Service, name: str) -> float:
    text = service.ask("GET", "/metrics").body.decode()
    return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"chronotile_{name} "))


def _until(service: Service, name: str, low: float, high: float) -> None:
    """Waits for a figure to lie in a range."""
    for _ in range(600):
        if low <= _figure(service, name) <= high:
            return
        time.sleep(0.05)
    raise AssertionError(f"{name} is {_figure(service, name)}, not from {low} to {high}")


# ---------------------------------------------------------------------- memory


def test_bodies_over_the_memory_of_the_service_are_put_off_and_small_requests_go_on(tmp_path: Path) -> None:
    with Service(tmp_path / "plant.db", tmp_path / "log", "--memory", "16MiB") as service:
        head = f"POST /write?define=true HTTP/1.1\nHost: localhost\nContent-Length: {12 * MIB}\n\n"
        half = _send(service, head, b"#" * (10 * MIB))
        _until(service, "memory_charged_bytes", 10 * MIB, 16 * MIB)
        late = _packed(service, 6 * MIB)
        assert (late.status, late.error["kind"], late.headers["Retry-After"]) == (503, "memory-in-use", "1")
        assert service.ask("POST", "/write", {"define": "true"}, b"a value=1").status == 204
        assert _figure(service, "memory_refused_total") >= 1
        half.close()
        _until(service, "memory_charged_bytes", 0, 0)
        assert _packed(service, 6 * MIB).status == 204
        never = _packed(service, 15 * MIB)
        assert (never.status, never.error["kind"]) == (413, "too-large")
        assert "--memory" in never.error["message"]


def test_the_budget_is_a_share_of_what_the_process_may_have(tmp_path: Path) -> None:
    with Service(tmp_path / "plant.db", tmp_path / "log") as service:
        machine = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
        assert 0 < _figure(service, "memory_limit_bytes") <= int(machine.split()[1]) * 1024 / 2
        assert _figure(service, "memory_charged_bytes") == 0
    with Service(tmp_path / "plant.db", tmp_path / "log", "--memory", "3MiB") as service:
        assert _figure(service, "memory_limit_bytes") == 3 * MIB


# ---------------------------------------------------------------------- connections


def test_connections_fit_the_limit_of_open_files(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "chronotile", "serve", str(tmp_path / "plant.db"), "--listen", "127.0.0.1:0"]

    def few_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512))

    done = subprocess.run(
        [*words, "--max-connections", "512"], capture_output=True, text=True, timeout=60, preexec_fn=few_files
    )
    assert done.returncode != 0
    for part in ("512 open files", "allow 384"):
        assert part in done.stderr
