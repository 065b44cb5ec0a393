"""docs/format.md suffices to read every golden chunk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")
for _module in ("xxhash", "zstandard", "lz4.block", "pcodec"):
    pytest.importorskip(_module)

import format_decoder as fd  # noqa: E402  (after the imports that may skip this file)

GOLDEN = Path(__file__).parents[2] / "crates/core/chunk/tests/golden/v1"
INDEX = json.loads((GOLDEN / "index.json").read_text())


def raw(array: pa.Array) -> list[Any]:
    """The rows of an Arrow array in the decoder's terms: bytes for numbers and text, tuples for structs."""
    kind, rows = array.type, len(array)
    valid = [array[i].is_valid for i in range(rows)]
    if pa.types.is_list(kind):
        return [raw(array[i].values) if valid[i] else None for i in range(rows)]
    if pa.types.is_struct(kind):
        fields = [raw(array.field(i)) for i in range(kind.num_fields)]
        return [tuple(column[i] for column in fields) if valid[i] else None for i in range(rows)]
    if pa.types.is_boolean(kind):
        return [bool(v) if v is not None else None for v in array.to_pylist()]
    if fd.is_var(kind):
        return [None if v is None else v if isinstance(v, bytes) else v.encode() for v in array.to_pylist()]
    width, start = fd.width_of(kind), array.offset
    data = array.buffers()[1].to_pybytes() if rows else b""
    return [data[(start + i) * width : (start + i + 1) * width] if valid[i] else None for i in range(rows)]


@pytest.mark.parametrize("entry", INDEX, ids=[e["name"] for e in INDEX])
def test_the_described_format_reads_every_golden_chunk(entry: dict[str, Any]) -> None:
    path = GOLDEN / entry["name"]
    table = pa.ipc.open_stream(path.with_suffix(".arrow").read_bytes()).read_all().combine_chunks()
    head, body = path.with_suffix(".head").read_bytes(), path.with_suffix(".body").read_bytes()
    chunk = fd.decode(head, body, entry["cell"], entry["window"], entry["chunk"], table.schema)
    assert chunk.head.rows == entry["rows"] == table.num_rows
    assert chunk.head.schema_version == entry["schema_version"]
    assert chunk.head.unique_ids is entry["unique_ids"]
    assert list(chunk.head.time) == entry["time"]
    assert [list(origin) for origin in chunk.head.origins] == entry["origins"]
    assert chunk.row_origins == entry["row_origins"]
    assert chunk.ordinals == entry["ordinals"]
    for name, got, want in zip(table.column_names, chunk.columns, table.columns, strict=True):
        assert got == raw(want.chunk(0)), name


def test_a_changed_byte_is_noticed() -> None:
    entry = INDEX[0]
    path = GOLDEN / entry["name"]
    schema = pa.ipc.open_stream(path.with_suffix(".arrow").read_bytes()).schema
    head, body = path.with_suffix(".head").read_bytes(), bytearray(path.with_suffix(".body").read_bytes())
    body[len(body) // 2] ^= 1
    with pytest.raises(fd.FormatError, match="body's checksum"):
        fd.decode(head, bytes(body), entry["cell"], entry["window"], entry["chunk"], schema)


def test_the_described_filters_say_which_texts_a_golden_chunk_may_hold() -> None:
    entry = next(entry for entry in INDEX if entry["name"] == "text_filters")
    path = GOLDEN / entry["name"]
    head = fd.parse_head(path.with_suffix(".head").read_bytes(), entry["cell"], entry["window"], entry["chunk"])
    line, level = head.text_filters
    assert (line.column, level.column) == (0, 2)
    table = pa.ipc.open_stream(path.with_suffix(".arrow").read_bytes()).read_all()
    lines = [text for text in table["line"].to_pylist() if text is not None]
    parts = {text[start : start + 9] for text in lines for start in range(0, len(text), 3)}
    assert all(line.may_hold(part) and line.may_hold(part.swapcase()) for part in parts if part.isascii())
    assert all(line.may_hold(part) for part in parts)
    assert not any(line.may_hold(text) for text in ("closed", "from 192.168", "segmentation fault"))
    assert not level.may_hold("Error")
