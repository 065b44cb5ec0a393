"""Jobs of a batch system over a year."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv

__all__ = ["BLOCK_ROWS", "COLUMNS", "DAYS", "DAY_US", "FIRST_US", "blocks", "write_csv"]

DAYS = 365
FIRST_US = 1_767_225_600_000_000
"""2026-01-01T00:00 UTC, in microseconds since 1970."""
DAY_US = 86_400_000_000
COLUMNS = 100
BLOCK_ROWS = 1_000_000
_PLACED = 10
"""Number of columns that identify and locate a job; the others are settings and measurements."""


def blocks(rows: int) -> Iterator[pa.Table]:
    """Jobs in the order of their ids and times, in tables of up to a million rows; the same for the same `rows`."""
    for first in range(0, rows, BLOCK_ROWS):
        yield _block(first, min(BLOCK_ROWS, rows - first), rows)


def write_csv(tables: Iterator[pa.Table], path: Path) -> Iterator[pa.Table]:
    """Write tables to one CSV file with a header, and pass each on."""
    with path.open("wb") as file:
        for number, table in enumerate(tables):
            pyarrow.csv.write_csv(table, file, pyarrow.csv.WriteOptions(include_header=number == 0))
            yield table


def _block(first: int, rows: int, all_rows: int) -> pa.Table:
    """The next `rows` of `all_rows` jobs after the first `first`."""
    rng = np.random.default_rng([20260101, first])
    run = np.repeat(np.arange(rows), rng.integers(2, 200, size=rows))[:rows]
    runs = int(run[-1]) + 1
    year_us = DAYS * DAY_US
    since, until = year_us * first // all_rows, year_us * (first + rows) // all_rows
    submitted = FIRST_US + np.sort(rng.integers(since, until, size=runs))[run] + np.arange(rows)
    user = np.minimum(rng.geometric(0.01, size=runs), 800)[run]
    stamp = pa.timestamp("us", "UTC")
    columns: dict[str, Any] = {
        "job_id": np.arange(first + 1, first + rows + 1),
        "submitted": pa.array(submitted, stamp),
        "modified": pa.array(submitted + rng.integers(60, 200_000, size=rows) * 1_000_000, stamp),
        "user": _text("user", user),
        "cloud": _text("SITE_", rng.integers(0, 120, size=runs)[run]),
        "status": pa.array(np.array(["finished", "failed", "cancelled", "closed"])[
            np.searchsorted([0.78, 0.92, 0.98], rng.random(rows))]),
        "task": pa.array(20_000_000 + first + run // 3),
        "jobset": pa.array(rng.integers(0, 400, size=runs)[run] + user * 1_000),
        "run_s": rng.lognormal(8, 1.5, size=rows).astype("int64"),
        "memory": pa.array(rng.lognormal(21, 0.5, size=rows).astype("int64")),
    }  # fmt: skip
    for place in range(COLUMNS - _PLACED):
        name = f"c{place:02}"
        match place % 6:
            case 0:  # the same for all jobs of a run
                columns[name] = pa.array(rng.integers(0, 1_000, size=runs)[run])
            case 1:  # mostly null
                columns[name] = pa.array(rng.integers(0, 100, size=rows), mask=rng.random(rows) < 0.95)
            case 2:
                columns[name] = _text("v", rng.integers(0, 50, size=runs)[run])
            case 3:
                columns[name] = np.round(rng.normal(100, 10, size=rows), 2)
            case 4:
                columns[name] = pa.array(rng.integers(0, 5, size=rows), pa.int32())
            case _:  # never set
                columns[name] = pa.nulls(rows, pa.utf8())
    return pa.table(columns)


def _text(prefix: str, numbers: np.ndarray) -> pa.Array:
    return pa.array(np.char.add(prefix, numbers.astype("U8")))
