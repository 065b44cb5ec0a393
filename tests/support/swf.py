"""Batch jobs in the Standard Workload Format, as an Arrow table.

The format is defined at https://www.cs.huji.ac.il/labs/parallel/workload/swf.html. Comment lines begin with a
semicolon, and some contain a name and a value. Every other line is one job with 18 numbers; -1 means unknown. Times are
in seconds: submission since `UnixStartTime`, all others are durations."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pyarrow as pa

FIELDS: list[tuple[str, pa.DataType]] = [
    ("job_id", pa.int64()),
    ("submit_s", pa.int64()),
    ("wait_s", pa.int64()),
    ("run_s", pa.int64()),
    ("processors", pa.int32()),
    ("cpu_mean_s", pa.float64()),
    ("memory_mean_kib", pa.float64()),
    ("processors_requested", pa.int32()),
    ("run_requested_s", pa.int64()),
    ("memory_requested_kib", pa.float64()),
    ("status", pa.int32()),
    ("user", pa.int32()),
    ("group", pa.int32()),
    ("executable", pa.int32()),
    ("queue", pa.int32()),
    ("partition", pa.int32()),
    ("job_before", pa.int64()),
    ("think_s", pa.int64()),
]
"""Fields in the order of the format, with their Arrow types."""


def read_jobs(path: Path) -> pa.Table:
    """All jobs of a file, plain or gzip: the 18 fields, null where unknown, and `submitted`, UTC.

    Raises
    ------
    ValueError
        If the header has no `UnixStartTime`, or a line does not have 18 numbers.
    """
    start: int | None = None
    columns: list[list[int | float | None]] = [[] for _ in FIELDS]
    open_text = gzip.open if path.suffix == ".gz" else open
    with open_text(path, "rt") as lines:
        for number, line in enumerate(lines, 1):
            if found := re.match(r";\s*UnixStartTime:\s*(\d+)", line):
                start = int(found[1])
            if line.startswith(";") or not line.strip():
                continue
            words = line.split()
            if len(words) != len(FIELDS):
                raise ValueError(f"{path}, line {number}: {len(words)} fields, a job has {len(FIELDS)}")
            for column, word, (_, kind) in zip(columns, words, FIELDS, strict=True):
                value = float(word) if pa.types.is_floating(kind) else int(word)
                column.append(None if value == -1 else value)
    if start is None:
        raise ValueError(f"{path}: no UnixStartTime in the header")
    arrays = [pa.array(column, kind) for column, (_, kind) in zip(columns, FIELDS, strict=True)]
    table = pa.table(arrays, names=[name for name, _ in FIELDS])
    submitted = [None if second is None else start + int(second) for second in columns[1]]
    return table.add_column(1, "submitted", pa.array(submitted, pa.timestamp("s", "UTC")))
