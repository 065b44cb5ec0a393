"""Arrow IPC bytes, intact and damaged."""

from __future__ import annotations

import io
import random

import pyarrow as pa


def ipc(rows: pa.Table, kind: str) -> bytes:
    sink = io.BytesIO()
    writer = pa.ipc.new_file(sink, rows.schema) if kind == "file" else pa.ipc.new_stream(sink, rows.schema)
    with writer:
        writer.write_table(rows)
    return sink.getvalue()


def damaged(whole: bytes, choice: random.Random) -> bytes:
    """The bytes with some aligned numbers changed: lengths, offsets, counts, indices."""
    changed = bytearray(whole)
    for _ in range(choice.randint(1, 3)):
        at = choice.randrange(len(whole) // 4 - 2) * 4
        number = choice.choice([0, 1, -1, 7, 2**31 - 1, -(2**31), 2**62, choice.randrange(2**16)])
        size = choice.choice([4, 8])
        changed[at : at + size] = (number % 2**64).to_bytes(8, "little")[:size]
    return bytes(changed)
