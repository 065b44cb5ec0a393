"""The Standard Workload Format of batch logs, version 2.2.

https://www.cs.huji.ac.il/labs/parallel/workload/swf.html: comment lines begin with a semicolon, and some have a name
and a value; every other line is a job of 18 numbers, with -1 for unknown. Times are in seconds: the submission counts
from ``UnixStartTime``, the others are durations.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from chronotile.errors import DataFileError

__all__ = ["SWF_COLUMNS"]

SWF_COLUMNS: dict[str, str] = {
    "job_id": "int64",
    "submitted": "timestamp[s, UTC]",
    "wait_s": "int64",
    "run_s": "int64",
    "processors": "int32",
    "cpu_mean_s": "float64",
    "memory_mean_kib": "float64",
    "processors_requested": "int32",
    "run_requested_s": "int64",
    "memory_requested_kib": "float64",
    "status": "utf8",
    "user": "int32",
    "group": "int32",
    "executable": "int32",
    "queue": "int32",
    "partition": "int32",
    "job_before": "int64",
    "think_s": "int64",
}
"""Columns of a log's jobs and their types, in the order of the format. ``submitted`` is a time (UTC); ``status`` is
``failed``, ``done``, ``partial``, ``partial_done``, ``partial_failed``, ``cancelled`` or null; unknown is null."""

STATUSES = ["failed", "done", "partial", "partial_done", "partial_failed", "cancelled"]
"""Meaning of the status codes 0 to 5."""

_TYPES: dict[str, pa.DataType] = {
    "int64": pa.int64(),
    "int32": pa.int32(),
    "float64": pa.float64(),
    "utf8": pa.utf8(),
    "timestamp[s, UTC]": pa.timestamp("s", "UTC"),
}
_SECONDS_DIGITS_MAX = 18


def start_of(header: bytes, name: str) -> int:
    """Seconds from 1970 to time 0 of the log, from its comment lines.

    Raises
    ------
    DataFileError
        The header lacks ``UnixStartTime``.
    """
    for line in header.splitlines():
        label, _, value = line.lstrip(b"; \t").partition(b":")
        if label.rstrip() != b"UnixStartTime" or not line.lstrip().startswith(b";"):
            continue
        words = value.split()
        digits = words[0].rstrip(b",;.") if words else b""
        if digits.isdigit() and len(digits) <= _SECONDS_DIGITS_MAX:
            return int(digits)
    raise DataFileError(f"{name}: no UnixStartTime in the header, which is needed for job times", kind="file-content")


def parse(lines: bytes, start_s: int) -> pa.Table:
    """Parse jobs from valid lines: see :func:`fault_of`."""
    words = lines.split()
    table = np.array(words).reshape(-1, len(SWF_COLUMNS))
    columns = []
    for place, (name, kind) in enumerate(SWF_COLUMNS.items()):
        values = table[:, place].astype("float64")
        unknown = values == -1
        columns.append(_column(name, values, unknown, _TYPES[kind], start_s))
    return pa.table(columns, names=list(SWF_COLUMNS))


def _column(name: str, values: Any, unknown: Any, kind: pa.DataType, start_s: int) -> pa.Array:
    if name == "status":
        codes = pa.array(values.astype("int64"), mask=(values < 0) | (values >= len(STATUSES)))
        return pa.DictionaryArray.from_arrays(codes, pa.array(STATUSES)).cast(pa.utf8())
    if pa.types.is_floating(kind):
        return pa.array(values, kind, mask=unknown)
    if name == "submitted":
        return pa.array((np.where(unknown, 0, values) + start_s).astype("int64"), mask=unknown).cast(kind)
    return pa.array(np.where(unknown, 0, values).astype("int64"), mask=unknown).cast(kind)


def fault_of(line: bytes) -> str | None:
    """The error in a line; None if it is valid."""
    words = line.split()
    if len(words) != len(SWF_COLUMNS):
        return f"{len(words)} fields, a job has {len(SWF_COLUMNS)}"
    for word, (name, kind) in zip(words, SWF_COLUMNS.items(), strict=True):
        try:
            value = float(word)
        except ValueError:
            return f"{name} is {word.decode(errors='replace')!r}, expected a number"
        if kind == "float64":
            continue
        # A time may have a fraction, which is dropped; a status is a code.
        is_whole = value.is_integer() or kind.startswith("timestamp")
        # Numbers are parsed as doubles, which hold integers exactly up to 2^53.
        if not (is_whole and abs(value) < 2 ** (31 if kind == "int32" else 53)):
            stored = "int64" if name == "status" else kind
            return f"{name} is {word.decode(errors='replace')}, out of range for {stored}"
    return None
