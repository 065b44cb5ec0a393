"""Memory stays bounded whatever the size of what is written and read: measured on processes of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import chronotile as ct

BATCHES, ROWS, COLUMNS = 72, 20_000, 64
STORED_MIB = BATCHES * ROWS * COLUMNS * 8 / 2**20

WATCH = """
import resource, sys, threading
import numpy as np, pyarrow as pa
import chronotile as ct

def used_mib():
    # Not the pages of the file that the engine maps: those are the system's to keep or to drop.
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon:")) / 1024

most, ended = 0.0, threading.Event()
def watch():
    global most
    while not ended.wait(0.002):
        most = max(most, used_mib())
"""

PROGRAM = (
    WATCH
    + """
path, work, batches, rows, columns = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
noise = np.random.default_rng(7)

def made():
    for number in range(batches):
        start = number * rows
        table = {"id": np.arange(start, start + rows), "cell": np.arange(rows) % 8,
                 "t": pa.array(np.arange(start, start + rows), pa.timestamp("s"))}
        table |= {f"x{k}": noise.random(rows) for k in range(columns)}
        yield pa.record_batch(table)

watcher = threading.Thread(target=watch, daemon=True)
with ct.open(path) as archive:
    if work == "write":
        first = next(made())
        dataset = archive.create("d", schema=first.schema, cell=ct.key("cell"), time="t", window="1d", id="id")
        before = used_mib()
        watcher.start()
        dataset.write(made(), batch="all")
    else:
        dataset = archive["d"]
        before = used_mib()
        watcher.start()
        total = sum(batch.num_rows for batch in dataset.read().batches())
        assert total == batches * rows, total
    ended.set()
    watcher.join()
    print(most - before)
"""
)


def grown_mib(path: Path, work: str) -> float:
    """By how much the process grew at most, beyond what its modules take."""
    arguments = [sys.executable, "-c", PROGRAM, str(path), work, *map(str, (BATCHES, ROWS, COLUMNS))]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def test_a_stream_larger_than_its_bound_is_written_and_read_within_it(path: Path) -> None:
    assert STORED_MIB > 700
    written = grown_mib(path, "write")
    read = grown_mib(path, "read")
    print(f"{STORED_MIB:.0f} MiB of values: writing took {written:.0f} MiB, reading {read:.0f} MiB")
    # Some 64 MiB of rows are held as given, sorted and encoded, beside as many of the file's pages. How many threads
    # encode at once and what the allocator keeps is chance: it takes 390 to 430 MiB however long the stream is.
    assert written < 500
    assert read < 250


DOCUMENTS, DOCUMENT_BYTES, WRITES = 24_576, 16_384, 24
TILE_MIB = DOCUMENTS * DOCUMENT_BYTES / 2**20
LIMIT_MIB = 320

ONE_TILE = (
    WATCH
    + """
path, work, merge = sys.argv[1:4]
documents, size, parts, writes, limit_mib = map(int, sys.argv[4:])
noise = np.random.default_rng(7)

def document():
    # It repeats, as logs do, so that the tile takes less room on the disk than its text has.
    return noise.bytes(size // parts // 2).hex() * parts

def limit():
    with open("/proc/self/status") as status:
        used = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData:"))
    resource.setrlimit(resource.RLIMIT_DATA, (used + (limit_mib << 20),) * 2)

def do(each, dataset):
    if each == "read":
        last, rows = -1, 0
        for batch in dataset.read().batches():
            ids = batch.column("id").to_numpy()
            assert ids[0] > last and (np.diff(ids) > 0).all()
            last, rows = ids[-1], rows + len(ids)
        assert rows == documents, rows
    elif each == "look":
        assert dataset.count(where=("text", "prefix", "0")) > documents // 32
        assert dataset.count() == documents
        found = dataset.latest(by=["id"], columns=["id"]).to_arrow()
        assert found.num_rows == documents, found.num_rows
    elif each == "consolidate":
        report = dataset.consolidate()
        assert (report.tiles, report.failed) == (1, ()), report
    elif each == "hold":
        held = list(dataset.read().batches())
    else:
        report = dataset.verify()
        assert report.ok and report.rows == documents, report

with ct.open(path) as archive:
    if work == "write":
        schema = {"id": "int64", "t": "timestamp[us]", "text": "utf8"}
        dataset = archive.create(
            "d", schema=schema, cell=ct.single(), time="t", window="1d", id=["id"], merge=merge,
        )
        for number in range(writes):
            ids = np.arange(number, documents, writes)
            times = pa.array(ids * 1_000, pa.timestamp("us"))
            dataset.write({"id": ids, "t": times, "text": [document() for _ in ids]}, batch=f"b{number}")
        sys.exit()
    dataset = archive["d"]
    next(iter(dataset.read(end=5_000, columns=["id"]).batches()))
    limit()
    before, watcher = used_mib(), threading.Thread(target=watch, daemon=True)
    watcher.start()
    for each in work.split("+"):
        do(each, dataset)
    ended.set()
    watcher.join()
    with open("/proc/self/status") as status:
        peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) / 1024
    print(most - before, peak)
"""
)


def run_one_tile(*arguments: object) -> subprocess.CompletedProcess[str]:
    """A process of its own that prints by how many MiB it grew at most, and its peak in MiB."""
    command = [sys.executable, "-c", ONE_TILE, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)


@pytest.mark.parametrize("merge", ["latest", pytest.param("append", marks=pytest.mark.slow)])
def test_a_tile_larger_than_the_memory_allowed_is_read_and_kept(path: Path, merge: str) -> None:
    assert TILE_MIB > LIMIT_MIB
    grown: dict[str, float] = {}
    for work in ["write", "read", "look", "hold", "consolidate", "read", "verify"]:
        # Four parts, so that it takes a fifth of its text on the disk.
        done = run_one_tile(path, work, merge, DOCUMENTS, DOCUMENT_BYTES, 4, WRITES, LIMIT_MIB)
        # What holds the whole tile is over the limit: it may end there, and has grown by more where it does not.
        assert done.returncode == 0 or work == "hold", f"{work}: {done.stderr[-2_000:]}"
        if work != "write" and done.returncode == 0:
            grown[work] = float(done.stdout.split()[0])
    assert grown.pop("hold", TILE_MIB) > LIMIT_MIB
    assert max(grown.values()) < LIMIT_MIB, grown


SMALL_TILE_MIB, LARGE_TILE_MIB = 150, 450
MORE_MIB_MAX = (LARGE_TILE_MIB - SMALL_TILE_MIB) / 3
"""What peaks differ by from run to run is 60 MiB: how many groups of rows threads hold at once is chance."""
UNLIMITED_MIB = 1 << 16


def test_reads_and_consolidation_take_no_more_memory_for_a_tile_of_three_times_the_size(tmp_path: Path) -> None:
    peaks: dict[str, list[float]] = {}
    for tile_mib in (SMALL_TILE_MIB, LARGE_TILE_MIB):
        documents = tile_mib * 2**20 // DOCUMENT_BYTES
        # The file is small beside its text, since the pages of it that the engine maps count as memory, too.
        numbers = (documents, DOCUMENT_BYTES, 64, WRITES, UNLIMITED_MIB)
        for work in ["write", "read+look", "hold", "consolidate", "read+look+verify"]:
            done = run_one_tile(tmp_path / f"{tile_mib}.db", work, "latest", *numbers)
            assert done.returncode == 0, f"{work}: {done.stderr[-2_000:]}"
            if work != "write":
                peaks.setdefault(work, []).append(float(done.stdout.split()[1]))
    more = {work: large - small for work, (small, large) in peaks.items()}
    print(f"MiB more for {LARGE_TILE_MIB - SMALL_TILE_MIB} MiB more of text: {more}")
    # What holds the rows grows with them: the measure sees it.
    assert more.pop("hold") > (LARGE_TILE_MIB - SMALL_TILE_MIB) / 2
    assert max(more.values()) < MORE_MIB_MAX, peaks


@pytest.mark.slow
@pytest.mark.parametrize("merge", ["latest", "append"])
def test_a_tile_of_more_than_2_gib_of_one_column_is_read_and_kept(path: Path, merge: str) -> None:
    documents = 9 * (1 << 28) // DOCUMENT_BYTES
    assert documents * DOCUMENT_BYTES > 1 << 31
    for work in ["write", "read+look", "verify", "consolidate", "read+look", "verify"]:
        done = run_one_tile(path, work, merge, documents, DOCUMENT_BYTES, 64, 96, LIMIT_MIB)
        assert done.returncode == 0, f"{work}: {done.stderr[-2_000:]}"


LARGE_COLUMN = """
import resource, sys
import numpy as np, pyarrow as pa
import chronotile as ct

# Pages that are only read take no memory, and equal rows are stored once: 2.2 GiB cost neither disk nor long.
rows, size, apart, limit_mib = 2_300, 1 << 20, 100, int(sys.argv[2])
offsets = np.arange(rows + 1, dtype=np.int64) * size
text = pa.LargeStringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(np.zeros(rows * size, np.uint8)))
ids = np.arange(rows) // apart
given = pa.table({"id": ids, "t": pa.array(ids, pa.timestamp("us")), "text": text})
assert text.nbytes > 1 << 31
with ct.open(sys.argv[1]) as archive:
    schema = {"id": "int64", "t": "timestamp[us]", "text": "utf8"}
    dataset = archive.create("d", schema=schema, cell=ct.single(), time="t", window="1d", id=["id"])
    with open("/proc/self/status") as status:
        used = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData:"))
    resource.setrlimit(resource.RLIMIT_DATA, (used + (limit_mib << 20),) * 2)
    assert dataset.write(given, batch="large").stored
    assert not dataset.write(given, batch="large").stored
    assert dataset.count() == rows // apart
    assert [len(each) for each in dataset.read(ids=[0, 22]).to_arrow()["text"].to_pylist()] == [size, size]
    assert dataset.verify().ok
"""


def test_more_than_2_gib_of_text_in_one_batch_are_written_in_bounded_memory(path: Path) -> None:
    arguments = [sys.executable, "-c", LARGE_COLUMN, str(path), "1500"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2_000:]


@pytest.mark.parametrize("merge", ["append", "latest"])
def test_reads_that_compare_every_id_end_where_they_would_take_too_much(tmp_path: Path, merge: str) -> None:
    ids, path = 200_000, tmp_path / "ids.db"
    with ct.open(path) as archive:
        rows = {"id": np.arange(ids), "cell": np.arange(ids) % 4, "t": np.arange(ids).astype("datetime64[s]")}
        kinds = {"id": "int64", "cell": "int64", "t": "timestamp[s]"}
        made = archive.create("d", schema=kinds, cell=ct.key("cell"), time="t", id="id", merge=merge)  # type: ignore[arg-type]
        made.write(rows)
    # The newest versions of so many rows are compared in less room.
    with ct.open(path, memory_bytes_max=(6 if merge == "latest" else 14) << 20) as archive:
        few = archive["d"]

        def rows_of(**asked: object) -> int:
            found = few.read(**asked) if merge == "latest" else few.latest(by="id", **asked)  # type: ignore[arg-type]
            return sum(batch.num_rows for batch in found.batches())

        for _ in range(3):
            with pytest.raises(
                ct.InvalidInputError, match=r"request or send less at a time.*memory_bytes_max"
            ) as refused:
                rows_of()
            assert refused.value.kind == "too-large"
        assert rows_of(keys=[0]) == ids // 4
    with ct.open(path, memory_bytes_max=256 << 20) as archive:
        few = archive["d"]
        assert rows_of() == ids
    with pytest.raises(ct.InvalidInputError, match="invalid memory_bytes_max 0"):
        ct.open(path, memory_bytes_max=0)
