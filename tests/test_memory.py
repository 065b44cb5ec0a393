"""Memory stays bounded whatever the size of what is written and read: measured on processes of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BATCHES, ROWS, COLUMNS = 48, 20_000, 64
STORED_MIB = BATCHES * ROWS * COLUMNS * 8 / 2**20

PROGRAM = """
import sys, threading
import numpy as np, pyarrow as pa
import chronotile as ct

path, work, batches, rows, columns = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
noise = np.random.default_rng(7)

def made():
    for number in range(batches):
        start = number * rows
        table = {"id": np.arange(start, start + rows), "cell": np.arange(rows) % 8,
                 "t": pa.array(np.arange(start, start + rows), pa.timestamp("s"))}
        table |= {f"x{k}": noise.random(rows) for k in range(columns)}
        yield pa.record_batch(table)

def used_mib():
    # Not the pages of the file that the engine maps: those are the system's to keep or to drop.
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon:")) / 1024

most, ended = 0.0, threading.Event()
def watch():
    global most
    while not ended.wait(0.005):
        most = max(most, used_mib())

watcher = threading.Thread(target=watch)
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


def grown_mib(path: Path, work: str) -> float:
    """By how much the process grew at most, beyond what its modules take."""
    arguments = [sys.executable, "-c", PROGRAM, str(path), work, *map(str, (BATCHES, ROWS, COLUMNS))]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def test_a_stream_larger_than_its_bound_is_written_and_read_within_it(path: Path) -> None:
    assert STORED_MIB > 460
    written = grown_mib(path, "write")
    read = grown_mib(path, "read")
    print(f"{STORED_MIB:.0f} MiB of values: writing took {written:.0f} MiB, reading {read:.0f} MiB")
    assert written < 420
    assert read < 250
