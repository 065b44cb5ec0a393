"""A writer killed at any moment loses nothing it acknowledged; repeating its batches completes them exactly once."""

from __future__ import annotations

import random
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
import support_visits
from support_visits import Visit

import chronotile as ct


def start_writer() -> subprocess.Popen[bytes]:
    """A process that has loaded everything and waits to be told what to write."""
    # Bytes, unbuffered: what was read from the pipe must not hide in a buffer here.
    return subprocess.Popen(
        [sys.executable, support_visits.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )


@contextmanager
def writers() -> Iterator[Iterator[subprocess.Popen[bytes]]]:
    """Writers without end, each ready when it is needed: starting an interpreter takes longer than its life here."""
    waiting: deque[subprocess.Popen[bytes]] = deque()

    def each() -> Iterator[subprocess.Popen[bytes]]:
        while True:
            while len(waiting) < 3:
                waiting.append(start_writer())
            yield waiting.popleft()

    try:
        yield each()
    finally:
        for process in waiting:
            process.kill()
            process.communicate()


class Ledger:
    """What the writers said they began and ended."""

    def __init__(self) -> None:
        self.wanted: dict[str, Visit] = {}
        """The newest edition begun of each batch."""
        self.pending: dict[str, Visit] = {}
        """Those of them that were not acknowledged."""

    def note(self, line: str) -> None:
        what, *numbers = line.split()
        visit = Visit(*map(int, numbers))
        if what == "begun":
            self.wanted[visit.key] = self.pending[visit.key] = visit
        else:
            assert self.pending.pop(visit.key) == visit


def run_and_kill(writer: subprocess.Popen[bytes], order: str, delay_s: float, ledger: Ledger) -> None:
    """Let a writer work until `delay_s` after its first acknowledgement, kill it, and note all it said."""
    assert writer.stdin is not None
    assert writer.stdout is not None
    writer.stdin.write(order.encode())
    output = b""
    while b"done" not in output:
        assert select.select([writer.stdout], [], [], 60)[0], f"nothing acknowledged in a minute: {output!r}"
        piece = writer.stdout.read(65_536)
        assert piece, f"the writer ended by itself: {output!r}"
        output += piece
    time.sleep(delay_s)
    writer.send_signal(signal.SIGKILL)
    rest, _ = writer.communicate(timeout=60)
    assert writer.returncode == -signal.SIGKILL, "it was to be killed at work"
    for line in (output + rest).decode().splitlines():
        ledger.note(line)


def content(ds: ct.Dataset, first: int, last: int, **options: bool) -> dict[int, list[tuple[object, ...]]]:
    """Rows of visits in a range of indices, sorted, without the notes."""
    columns = ["id", "visit", "tag", "time", "value"]
    bounds = (first * 1_000, last * 1_000 + 999)
    result = ds.read(columns=columns, where=("id", "between", bounds), **options)
    table = result.to_arrow().sort_by("id")
    table = table.set_column(3, "time", table["time"].cast("int64"))
    found: dict[int, list[tuple[object, ...]]] = {}
    for row in zip(*(column.to_pylist() for column in table.columns), strict=True):
        found.setdefault(row[1], []).append(row)
    return found


def expected(visit: Visit) -> list[tuple[object, ...]]:
    columns = visit.columns()
    return list(zip(*(columns[name] for name in ["id", "visit", "tag", "time", "value"]), strict=True))


def check_after_kill(path: Path, group: int, ledger: Ledger) -> None:
    """All that was acknowledged is there; the rest is whole or absent, for those who ask for finished batches."""
    with ct.open(path, create=False) as archive:
        ds = archive["visits"]
        found = content(ds, group * 10_000, group * 10_000 + 9_999)
        for key, visit in ledger.wanted.items():
            if visit.group != group:
                continue
            rows = found.pop(visit.index, [])
            if key not in ledger.pending:
                info = ds.batch(key)
                assert info is not None, f"acknowledged batch {key} is gone"
                assert info.finished
                assert info.rows == visit.rows
                assert rows == expected(visit), f"acknowledged batch {key} has other rows"
            elif visit.edition == 0:
                assert rows in ([], expected(visit)), f"part of batch {key} counts as finished"
        assert not found, "rows of batches that nobody began"


@pytest.mark.parametrize("kills", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_a_writer_killed_often_leaves_exactly_the_acknowledged_and_repeated_batches(tmp_path: Path, kills: int) -> None:
    path, ledger = tmp_path / "visits.db", Ledger()
    with ct.open(path) as archive:
        support_visits.create(archive)
    choose = random.Random(20_260_101)
    unacknowledged = 0
    with writers() as ready:
        for group in range(1, kills + 1):
            # Half of the broken writes are taken up by the next writer, which may be killed over them again.
            repeat = list(ledger.pending.values()) if choose.random() < 0.5 else []
            order = f"{path}|{group}|{';'.join(f'{v.group} {v.number} {v.edition}' for v in repeat)}\n"
            run_and_kill(next(ready), order, choose.expovariate(1 / 0.04), ledger)
            unacknowledged += len(ledger.pending) > 0
            check_after_kill(path, group, ledger)
    assert unacknowledged > kills // 5, "too few kills hit a write"

    with ct.open(path, create=False) as archive:
        ds = archive["visits"]
        for key, visit in sorted(ledger.wanted.items()):
            stored = support_visits.write(ds, visit)
            # A replacement that exceeds the write buffer begins before its content is known as a whole.
            if key not in ledger.pending and not (visit.edition and visit.big):
                assert not stored, f"acknowledged batch {key} was stored a second time"

        def check() -> None:
            found = content(ds, 0, (kills + 1) * 10_000)
            assert len(found) == len(ledger.wanted)
            for visit in ledger.wanted.values():
                assert found[visit.index] == expected(visit), visit
                info = ds.batch(visit.key)
                assert info is not None
                assert (info.finished, info.rows) == (True, visit.rows)
            for visit in choose.sample(sorted(ledger.wanted.values()), 20):
                noted = [("visit", "==", visit.index), ("note", "==", visit.note)]
                assert ds.count(where=noted) == visit.rows
            batches = ds.batches()
            assert {batch.key for batch in batches} == set(ledger.wanted)
            assert len(batches) == len(ledger.wanted)
            report = ds.verify()
            assert report.ok
            assert report.batches_unfinished == 0

        check()
        ds.consolidate()
        check()
