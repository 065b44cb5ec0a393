"""Arrow data that contradict their schema are refused through the C interface and as IPC, before rows are stored."""

from __future__ import annotations

import io
import random
import struct
from pathlib import Path

import pyarrow as pa
import pytest
from support_arrow import damaged, ipc
from support_commands import run_command

import chronotile as ct
from chronotile import _native

SCHEMA = {"id": "int64", "time": "timestamp[s]", "text": "utf8"}


def dataset(archive: ct.Archive) -> ct.Dataset:
    return archive.create("records", schema=SCHEMA, cell=ct.single(), time="time", window="1d", id=["id"])


def table(text: pa.Array) -> pa.Table:
    count = len(text)
    return pa.table(
        {"id": pa.array(range(count), pa.int64()), "time": pa.array(range(count), pa.timestamp("s")), "text": text}
    )


def text_of(offsets: list[int], data: bytes) -> pa.Array:
    """Text from buffers that nobody has looked at."""
    packed = pa.py_buffer(struct.pack(f"<{len(offsets)}i", *offsets))
    return pa.Array.from_buffers(pa.utf8(), len(offsets) - 1, [None, packed, pa.py_buffer(data)])


@pytest.mark.parametrize(
    "text",
    [
        text_of([0, 2, 1, 3], b"abc"),
        text_of([0, 1, 3], b"\xff\xfe\xfd"),
        pa.DictionaryArray.from_arrays(pa.array([0, 5, -3], pa.int32()), ["a", "b"], safe=False),
    ],
    ids=["offsets go back", "invalid UTF-8", "indices of no value"],
)
def test_columns_whose_buffers_contradict_their_type_are_refused(memory: ct.Archive, text: pa.Array) -> None:
    records = dataset(memory)
    with pytest.raises(ct.InvalidInputError, match="text") as refused:
        records.write(table(text))
    assert "contradict" in str(refused.value)
    assert records.count() == 0


def test_nulls_that_a_schema_rules_out_are_judged_by_the_dataset(memory: ct.Archive) -> None:
    records = dataset(memory)
    rows = table(pa.array(["a", None]))
    claimed = pa.schema([pa.field(field.name, field.type, nullable=False) for field in rows.schema])
    records.write(pa.Table.from_arrays(rows.columns, schema=claimed))
    assert records.count() == 2
    with pytest.raises(ct.InvalidInputError, match="id"):
        records.write(
            pa.table({"id": pa.array([None], pa.int64()), "time": rows["time"][:1], "text": rows["text"][:1]})
        )


@pytest.mark.parametrize("kind", ["file", "stream"])
def test_damaged_arrow_files_are_ingested_or_refused(kind: str, tmp_path: Path) -> None:
    coded = pa.array(["a", "b", None, "a"]).dictionary_encode()
    whole = ipc(table(coded), kind)
    choice = random.Random(21)
    with ct.open(tmp_path / "records.db") as archive:
        dataset(archive)
    codes = set()
    file = tmp_path / "damaged.arrow"
    for _ in range(60):
        file.write_bytes(damaged(whole, choice))
        done = run_command("ingest", tmp_path / "records.db", "records", file)
        assert done.returncode in (0, 2), done.stderr
        assert "Traceback" not in done.stderr
        assert "PanicException" not in done.stderr
        codes.add(done.returncode)
    assert codes == {0, 2}
    with ct.open(tmp_path / "records.db") as archive:
        assert archive.dataset("records").verify().ok


def test_damaged_answers_of_a_service_are_errors_of_this_package() -> None:
    whole = ipc(table(pa.array(["a", "b", None, "a"]).dictionary_encode()), "stream")
    choice = random.Random(22)
    refused = 0
    for _ in range(3_000):
        try:
            answer = ct.ReadResult(_native.read_arrow_stream(io.BytesIO(damaged(whole, choice))))
            answer.to_arrow().validate(full=True)
        except ct.ChronotileError:
            refused += 1
        except pa.ArrowInvalid as error:
            # pyarrow cannot take names with null bytes over.
            if "name" not in str(error):
                raise
    assert refused > 1_000
