"""Generated jobs, and a PostgreSQL server to copy them from."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import chronotile as ct
from chronotile import jobs
from chronotile_tools.load import postgresql as server

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
    """Jobs in order of submission over some days. Runs of 2 to 200 consecutive ids share a user, site and task."""
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
    """Create an archive of such jobs."""
    return jobs.create(archive, schema=COLUMNS, version="modified", **options)


def build(path: str, number: int, start: Any, results: Any) -> None:
    """Run by each of several processes: build the indexes; puts the number of windows built, or the traceback."""
    try:
        start.wait(60)
        with ct.open(path, timeout_s=60) as archive:
            report = archive["jobs"].build_indexes(lease_s=2)
        results.put((number, report.windows_built, None))
    except BaseException:
        results.put((number, 0, traceback.format_exc()))


@contextmanager
def postgresql() -> Iterator[str]:
    """Start a server and yield its SQLAlchemy URL."""
    if server.programs() is None:
        pytest.skip("POSTGRESQL ABSENT: install Debian's package postgresql to run this")
    with server.postgresql() as url:
        yield url.replace("postgresql:", "postgresql+psycopg:")
