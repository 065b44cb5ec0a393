"""Paths of data files, and comparison of tables bit for bit."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from support_commands import run_command

SAMPLES = Path(__file__).resolve().parents[1] / "data"


def data_file(name: str) -> Path:
    """The full file in the folder `CHRONOTILE_DATA` if it is set, otherwise the sample in this repository."""
    folders = [SAMPLES, SAMPLES / "made_up"]
    if full := os.environ.get("CHRONOTILE_DATA"):
        folders.insert(0, Path(full))
    return next(path for folder in folders if (path := folder / name).exists())


def job_log() -> Path:
    """A log of batch jobs in the Standard Workload Format."""
    return data_file("jobs/NASA-iPSC-1993-3.1-cln.swf.gz")


def run_cli(*arguments: object, code: int = 0) -> str:
    """Run the command line in a separate process; returns its output, and fails unless it exits with `code`."""
    done = run_command(*arguments)
    assert done.returncode == code, f"{done.args} ended with {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


def separation_deg(ra: np.ndarray, dec: np.ndarray, ra_center: float, dec_center: float) -> np.ndarray:
    """Angular distance by the haversine formula, all in degrees."""
    a, d, a_center, d_center = (np.radians(angle) for angle in (ra, dec, ra_center, dec_center))
    squares = np.sin((d - d_center) / 2) ** 2 + np.cos(d) * np.cos(d_center) * np.sin((a - a_center) / 2) ** 2
    return np.asarray(np.degrees(2 * np.arcsin(np.minimum(1.0, np.sqrt(squares)))))


def _bits(column: pa.Array) -> pa.Array:
    """Floats as integers of the same bits, so that NaN equals NaN of the same payload only, and -0.0 not 0.0."""
    same_width = {pa.float32(): pa.int32(), pa.float64(): pa.int64()}.get(column.type)
    return column if same_width is None else column.view(same_width)


def assert_same_rows(got: pa.Table, want: pa.Table, by: list[str]) -> None:
    """Assert that both tables have the same rows, in any order; `by` is a unique key. Compares types, nulls and all
    bits of floats.
    """
    assert got.schema.names == want.schema.names
    assert got.schema.types == want.schema.types
    assert got.num_rows == want.num_rows
    order = [(name, "ascending") for name in by]
    got, want = (table.take(pc.sort_indices(table, order)).combine_chunks() for table in (got, want))
    for name in got.schema.names:
        pair = [_bits(table.column(name).combine_chunks()) for table in (got, want)]
        assert pair[0].equals(pair[1]), f"column {name} differs"


def stored_digest(path: Path) -> dict[str, str]:
    """A digest of all rows of each table of an archive's file, read without the library."""
    digests: dict[str, Any] = {}
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as raw:
        tables = [name for (name,) in raw.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name")]
        for table in tables:
            rows = sorted(map(repr, raw.execute(f'SELECT * FROM "{table}"')))
            digests[table] = hashlib.sha256("\n".join(rows).encode()).hexdigest()
    raw.close()
    return digests
