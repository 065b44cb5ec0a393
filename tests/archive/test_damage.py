"""A changed, exchanged or lost chunk is named by `verify` and by every read that touches it, and by no other."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
from support_commands import run_command
from support_data import run_cli

import chronotile as ct

TAGS = (3, 4, 5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An archive of three tiles, two chunks each, and one large chunk of its own."""
    path = tmp_path / "plant.db"
    schema = {"tag": "int64", "time": "timestamp[us]", "value": "float64", "note": "utf8"}
    with ct.open(path) as archive:
        ds = archive.create(
            "values", schema=schema, cell=ct.key("tag"), time="time", window="1d", id=["tag", "time"], slice=30
        )
        for hour in range(2):
            times = [hour * 3_600_000_000 + minute for _ in TAGS for minute in range(4)]
            tags = [tag for tag in TAGS for _ in range(4)]
            values = [0.5 * row for row in range(len(tags))]
            notes = [None if row % 3 else f"note {row}" for row in range(len(tags))]
            ds.write({"tag": tags, "time": times, "value": values, "note": notes}, batch=f"hour-{hour}")
        choose, rows = random.Random(1), 2_000
        ds.write(
            {
                "tag": [9] * rows,
                "time": list(range(rows)),
                "value": [choose.random() for _ in range(rows)],
                "note": [f"{choose.random()}" for _ in range(rows)],
            },
            batch="large",
        )
    return path


class Chunk:
    """A stored chunk, changed behind the library's back."""

    def __init__(self, raw: sqlite3.Connection, row: tuple[int, int, bytes, int], table: str) -> None:
        self.raw, self.table = raw, table
        self.cell, self.window, self.id, self.place = row
        found = raw.execute(f'SELECT head, body FROM "{table}" WHERE chunk = ?', (self.place,))
        self.head, self.body = found.fetchone()

    @property
    def name(self) -> str:
        return self.id.hex()

    def store(self, head: bytes, body: bytes) -> None:
        changed = self.raw.execute(
            f'UPDATE "{self.table}" SET head = ?, body = ? WHERE chunk = ?', (head, body, self.place)
        )
        assert changed.rowcount == 1
        self.raw.commit()

    def restore(self) -> None:
        self.store(self.head, self.body)


@pytest.fixture
def chunks(path: Path) -> Iterator[list[Chunk]]:
    """The chunks of the archive, by cell."""
    with closing(sqlite3.connect(path)) as raw:
        keys = [name for (name,) in raw.execute("SELECT name FROM sqlite_schema WHERE name GLOB 'keys_*'")]
        assert len(keys) == 1
        rows = raw.execute(f'SELECT cell, window, id, chunk FROM "{keys[0]}" ORDER BY cell, window, id').fetchall()
        assert [row[0] for row in rows] == [3, 3, 4, 4, 5, 5, 9]
        yield [Chunk(raw, row, keys[0].replace("keys_", "chunks_", 1)) for row in rows]


def assert_damage_found(ds: ct.Dataset, chunk: Chunk, what: str) -> None:
    report = ds.verify()
    assert not report.ok, f"verify does not see {what}"
    assert [(found.tile, found.chunk) for found in report.damage] == [
        (ct.Tile(chunk.cell, chunk.window), chunk.name)
    ], what
    with pytest.raises(ct.DamagedChunkError) as caught:
        ds.read(keys=chunk.cell).to_arrow()
    error = caught.value
    assert (error.dataset, error.cell, error.window, error.chunk) == ("values", chunk.cell, chunk.window, chunk.name)
    assert chunk.name in str(error)


def flipped(data: bytes, place: int, mask: int) -> bytes:
    return data[:place] + bytes([data[place] ^ mask]) + data[place + 1 :]


def test_each_changed_byte_of_a_chunk_is_found_by_verify_and_by_a_read(path: Path, chunks: list[Chunk]) -> None:
    choose, chunk = random.Random(5), chunks[2]
    with ct.open(path, create=False) as archive:
        ds = archive["values"]
        for part in ("head", "body"):
            stored = getattr(chunk, part)
            assert len(stored) > 10
            for place in range(len(stored)):
                mask = choose.randrange(1, 256)
                changed = flipped(stored, place, mask)
                chunk.store(*((changed, chunk.body) if part == "head" else (chunk.head, changed)))
                assert_damage_found(ds, chunk, f"byte {place} of the {part} changed by {mask:#04x}")
        chunk.restore()
        assert ds.verify().ok
        assert ds.count() == 2_024


def test_other_tiles_read_on_beside_damage(path: Path, chunks: list[Chunk], caplog: pytest.LogCaptureFixture) -> None:
    with ct.open(path, create=False) as archive:
        ds = archive["values"]
        want = {tag: ds.read(keys=tag).to_arrow().sort_by("time") for tag in (*TAGS, 9)}
        damaged = chunks[2]
        damaged.store(damaged.head, flipped(damaged.body, len(damaged.body) // 2, 0x10))
        for tag in (3, 5, 9):
            assert ds.read(keys=tag).to_arrow().sort_by("time").equals(want[tag])
        with pytest.raises(ct.DamagedChunkError):
            ds.read().to_arrow()
        with pytest.raises(ct.DamagedChunkError):
            ds.latest().to_arrow()
        # Consolidation must neither drop the damaged chunk nor hide it, and goes on with the other tiles.
        consolidated = ds.consolidate()
        assert consolidated.tiles == 2
        assert [failure.tile.cell for failure in consolidated.failed] == [4]
        assert damaged.name in consolidated.failed[0].reason
        [logged] = [record for record in caplog.records if record.name == "chronotile.archive"]
        assert logged.levelname == "WARNING"
        assert "not consolidated" in logged.getMessage()
        assert damaged.name in logged.getMessage()
        run_cli("consolidate", path, code=5)
        assert [found.chunk for found in ds.verify().damage] == [damaged.name]
        damaged.restore()
        assert ds.read(keys=4).to_arrow().sort_by("time").equals(want[4])


def test_damage_of_a_large_chunk_is_found_where_a_read_decodes_it(path: Path, chunks: list[Chunk]) -> None:
    choose, chunk = random.Random(6), chunks[-1]
    with ct.open(path, create=False) as archive:
        ds = archive["values"]
        places = sorted({0, 1, len(chunk.body) - 1, *choose.sample(range(len(chunk.body)), 150)})
        for place in places:
            chunk.store(chunk.head, flipped(chunk.body, place, 1 << choose.randrange(8)))
            assert_damage_found(ds, chunk, f"byte {place} of a large body")


def test_cut_extended_and_exchanged_chunks_are_damage(path: Path, chunks: list[Chunk]) -> None:
    first, second, other = chunks[2], chunks[3], chunks[4]
    with ct.open(path, create=False) as archive:
        ds = archive["values"]
        for head, body in (
            (first.head[:-1], first.body),
            (first.head, first.body[:-1]),
            (first.head, b""),
            (b"", first.body),
            (first.head + b"\0", first.body),
            (first.head, first.body + b"\0"),
            (second.head, second.body),
            (other.head, other.body),
            (first.head, second.body),
        ):
            first.store(head, body)
            assert_damage_found(ds, first, f"{len(head)} and {len(body)} bytes instead of another chunk's")
        first.restore()
        assert ds.verify().ok


def test_a_lost_chunk_is_named_as_missing(path: Path, chunks: list[Chunk]) -> None:
    lost = chunks[0]
    lost.raw.execute(f'DELETE FROM "{lost.table.replace("chunks_", "keys_", 1)}" WHERE id = ?', (lost.id,))
    lost.raw.execute(f'DELETE FROM "{lost.table}" WHERE chunk = ?', (lost.place,))
    lost.raw.commit()
    with ct.open(path, create=False) as archive:
        report = archive["values"].verify()
    assert [(found.tile, found.chunk, found.missing) for found in report.damage] == [
        (ct.Tile(lost.cell, lost.window), lost.name, True)
    ]
    assert report.damage[0].rows == 4


def test_chunks_that_the_engine_cannot_read_are_damage_beside_others(path: Path, chunks: list[Chunk]) -> None:
    first, second, last = chunks[0], chunks[3], chunks[6]
    first.raw.execute(f'DELETE FROM "{first.table}" WHERE chunk = ?', (first.place,))
    second.raw.execute(f'UPDATE "{second.table}" SET head = ? WHERE chunk = ?', ("text", second.place))
    last.raw.execute(f'UPDATE "{last.table}" SET body = ? WHERE chunk = ?', (7, last.place))
    first.raw.commit()
    with ct.open(path, create=False) as archive:
        ds = archive["values"]
        report = ds.verify()
        found = [(entry.tile.cell, entry.chunk, entry.missing, entry.rows) for entry in report.damage]
        assert found == [(3, first.name, False, 4), (4, second.name, False, 4), (9, last.name, False, 2_000)]
        assert report.chunks == 7
        for chunk in (first, second, last):
            with pytest.raises(ct.DamagedChunkError, match=chunk.name):
                ds.read(keys=chunk.cell).to_arrow()
        assert ds.read(keys=5).to_arrow().num_rows == 8
    first.raw.close()
    assert first.name in run_cli("verify", path, "values", code=5)


def test_the_command_ends_with_5_and_names_the_chunk(path: Path, chunks: list[Chunk]) -> None:
    run_cli("verify", path)
    damaged = chunks[4]
    damaged.store(damaged.head, flipped(damaged.body, 0, 0xFF))
    damaged.raw.close()
    text = run_cli("verify", path, "values", code=5)
    assert damaged.name in text
    assert f"cell {damaged.cell} window {damaged.window}" in text
    found = json.loads(run_cli("verify", path, "--json", code=5))["values"]["damage"]
    assert [entry["chunk"] for entry in found] == [damaged.name]
    run_cli("read", path, "values", "--keys", damaged.cell, code=5)
    run_cli("read", path, "values", "--keys", 3)


def test_a_lost_consolidated_chunk_a_returned_batch_and_a_changed_record_are_told(path: Path) -> None:
    with ct.open(path) as archive:
        ds = archive["values"]
        ds.set_retention("3650d")
        ds.consolidate()
    with closing(sqlite3.connect(path)) as raw:
        (keys,) = [name for (name,) in raw.execute("SELECT name FROM sqlite_schema WHERE name GLOB 'keys_*'")]
        chunks = keys.replace("keys_", "chunks_", 1)
        before = raw.execute(f'SELECT * FROM "{keys}"').fetchall(), raw.execute(f'SELECT * FROM "{chunks}"').fetchall()

        def store(table: str, rows: list[tuple[object, ...]]) -> None:
            raw.execute(f'DELETE FROM "{table}"')
            raw.executemany(f'INSERT INTO "{table}" VALUES ({",".join("?" * len(rows[0]))})', rows)
            raw.commit()

        raw.execute(f'DELETE FROM "{keys}" WHERE cell = 4')
        raw.commit()
        text = run_cli("verify", path, code=5)
        assert text.count("cell 4 window 0: chunk ") == 2, text
        store(keys, before[0])
        assert "no damage" in run_cli("verify", path)

        with ct.open(path, superseded_kept_s=0) as archive:
            archive["values"].remove_batch("hour-0")
        store(chunks, before[1])
        store(keys, before[0])
        text = run_cli("verify", path, code=5)
        assert (
            text.count('4 of its rows are of batch "hour-0", which was removed: run verify with --remove-foreign') == 3
        ), text
        run_cli("verify", path, "--remove-foreign", code=2)  # It asks, and nobody is there to answer.
        run_cli("verify", path, code=5)
        assert "no damage" in run_cli("verify", path, "--remove-foreign", "--yes")
        assert "no damage" in run_cli("verify", path)

        changed = raw.execute(
            "UPDATE catalog SET value = CAST(replace(CAST(value AS TEXT), '3650d', '0650d') AS BLOB) WHERE key = ?",
            ("dataset/values",),
        )
        assert changed.rowcount == 1
        raw.commit()
    run_cli("verify", path, code=5)


def test_one_damaged_definition_does_not_stop_work_on_the_others(path: Path) -> None:
    schema = {"tag": "int64", "time": "timestamp[us]"}
    with ct.open(path) as archive:
        for name in ("a_first", "z_last"):
            ds = archive.create(name, schema=schema, cell=ct.single(), time="time", window="1d", id=["tag"])
            for number in range(2):
                ds.write({"tag": [number], "time": [number]}, batch=f"b{number}")
    with closing(sqlite3.connect(path)) as raw:
        changed = raw.execute(
            "UPDATE catalog SET value = CAST(replace(CAST(value AS TEXT), '1d', '9d') AS BLOB) WHERE key = ?",
            ("dataset/values",),
        )
        assert changed.rowcount == 1
        raw.commit()

    def run(*arguments: object) -> tuple[str, str]:
        done = run_command(*arguments)
        assert done.returncode == 5, f"{done.args}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout, done.stderr

    for command in (["verify"], ["consolidate"], ["info"], ["datasets"]):
        out, error = run(*command, path)
        assert "a_first" in out, command
        assert "z_last" in out, command
        assert "values" not in out, command
        assert "values: catalog record dataset/values" in error.replace('"', ""), error
        assert error.count("values:") == 1, error
    found = json.loads(run("verify", path, "--json")[0])
    assert {name: report["ok"] for name, report in found.items()} == {"a_first": True, "values": False, "z_last": True}
    assert "dataset/values" in found["values"]["error"]
    run("verify", path, "values")
    with ct.open(path, create=False) as archive:
        assert archive.datasets() == ["a_first", "values", "z_last"]
        assert archive["z_last"].count() == 2
        with pytest.raises(ct.DamagedError):
            archive["values"]
