"""Generated jobs, and a real PostgreSQL to copy them from."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import chronotile as ct
from chronotile import jobs

FIRST = 1_767_225_600_000_000
"""2026-01-01, microseconds since 1970."""
DAY = 86_400_000_000

COLUMNS = {
    "job_id": "int64",
    "submitted": "timestamp[us, UTC]",
    "modified": "timestamp[us, UTC]",
    "user": "utf8",
    "cloud": "utf8",
    "status": "utf8",
    "task": "int64",
    "run_s": "int64",
    "memory": "float64",
}


def generated(count: int, *, days: int = 10, first: int = 1, seed: int = 7) -> pa.Table:
    """Jobs in runs of 2 to 200 consecutive ids of one user, site and task, in order of submission over some days."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(2, 200, size=count)
    run = np.repeat(np.arange(count), lengths)[:count]
    runs = int(run[-1]) + 1

    def pick(choices: int) -> np.ndarray:
        return rng.integers(0, choices, size=runs)[run]

    submitted = FIRST + np.sort(rng.integers(0, days * DAY, size=runs))[run] + np.arange(count)
    status = np.array(["done", "failed", "cancelled"])[(rng.random(count) * 1.3).astype(int)]

    def text(prefix: str, numbers: np.ndarray) -> pa.Array:
        return pa.array(np.char.add(prefix, numbers.astype("U6")))

    return pa.table(
        {
            "job_id": np.arange(first, first + count),
            "submitted": pa.array(submitted, pa.timestamp("us", "UTC")),
            "modified": pa.array(submitted + 3_600_000_000, pa.timestamp("us", "UTC")),
            "user": text("u", pick(20)),
            "cloud": text("site", pick(6)),
            "status": pa.array(status),
            "task": pa.array(1_000 + run, pa.int64()),
            "run_s": pa.array(rng.integers(1, 100_000, size=count), pa.int64()),
            "memory": pa.array(rng.normal(2e9, 1e8, size=count), mask=rng.random(count) < 0.01),
        }
    )


def make(archive: ct.Archive, **options: Any) -> jobs.Jobs:
    """An archive of such jobs."""
    return jobs.create(archive, schema=COLUMNS, version="modified", **options)


def build(path: str, number: int, start: Any, results: Any) -> None:
    """What each of several processes does: bring the indexes up to date; puts the windows built, or what went wrong."""
    try:
        start.wait(60)
        with ct.open(path, timeout_s=60) as archive:
            report = archive["jobs"].build_indexes(lease_s=2)
        results.put((number, report.windows_built, None))
    except BaseException:
        results.put((number, 0, traceback.format_exc()))


def programs() -> Path | None:
    """Where the server's programs lie; None where PostgreSQL is not installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), reverse=True)
    if found:
        return found[0].parent
    initdb = shutil.which("initdb")
    return Path(initdb).resolve().parent if initdb else None


@contextmanager
def postgresql() -> Iterator[str]:
    """A server of its own on 127.0.0.1, for as long as it is needed; its SQLAlchemy URL."""
    bin_folder = programs()
    if bin_folder is None:
        pytest.skip("POSTGRESQL ABSENT: install Debian's package postgresql to run this")
    folder = Path(tempfile.mkdtemp(prefix="chronotile-pg-", dir="/tmp"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    try:
        # The server refuses to run as root.
        account = "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
        if os.geteuid() == 0:
            shutil.chown(folder, account)
        data = folder / "data"
        _run(account, bin_folder / "initdb", "-D", data, "-U", "jobs", "-A", "trust", "--no-sync")
        settings = {"listen_addresses": "127.0.0.1", "unix_socket_directories": folder, "fsync": "off"}
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        command = [bin_folder / "postgres", "-D", data, "-p", port, *options]
        with _server(account, [str(word) for word in command], folder / "log"):
            _wait_for(account, bin_folder / "pg_isready", port, folder / "log")
            yield f"postgresql+psycopg://jobs@127.0.0.1:{port}/postgres"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _server(account: str, command: list[str], log: Path) -> Iterator[None]:
    """Runs a server that ends with this process, however that ends: then the pipe it listens to is closed."""
    watch = 'exec 3<&0; "$@" </dev/null & server=$!; cat <&3 >/dev/null; kill -INT $server; wait $server'
    user = account if os.geteuid() == 0 else None
    with log.open("wb") as out:
        server = subprocess.Popen(
            ["sh", "-c", watch, "sh", *command], stdin=subprocess.PIPE, stdout=out, stderr=out, user=user, cwd="/tmp"
        )
    try:
        yield
    finally:
        if server.stdin is not None:
            server.stdin.close()
        server.wait(60)


def _wait_for(account: str, is_ready: Path, port: int, log: Path) -> None:
    user = account if os.geteuid() == 0 else None
    for _ in range(300):
        asked = [str(is_ready), "-h", "127.0.0.1", "-p", str(port)]
        if subprocess.run(asked, user=user, cwd="/tmp", capture_output=True, timeout=30, check=False).returncode == 0:
            return
        time.sleep(0.2)
    raise RuntimeError(f"PostgreSQL does not answer: {log.read_text(errors='replace')[-2_000:]}")


def _run(account: str, *command: object) -> None:
    user = account if os.geteuid() == 0 else None
    done = subprocess.run(
        list(map(str, command)), user=user, cwd="/tmp", capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode:
        sys.stderr.write(done.stdout + done.stderr)
        raise RuntimeError(f"{command[0]} failed: {done.stderr}")
