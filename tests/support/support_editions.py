"""Processes that write, replace, remove, read and consolidate batches, and a checker of their logs.

Run as a program, this is one such process. Each batch is a register: an operation sets it to an edition, whose number
is in every row, or removes it. A read must see each batch complete, in one edition that was current at some moment of
the read. Times come from the machine's monotonic clock, so that logs of several processes are comparable.
"""

from __future__ import annotations

import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from support_history import Processes, logged

import chronotile as ct

Result = TypeVar("Result")

SCHEMA = {"id": "int64", "tag": "int64", "time": "timestamp[us]", "text": "utf8"}
TAGS = 3
NONE = 0
"""The edition of a batch that does not exist."""
SHARED = 3
"""Number of batches per day that every process replaces and removes."""
OWN_DAYS = 2
SECONDS_PER_DAY = 60.0
PAUSE_S = 0.1
CONSOLIDATED_EVERY_S = 4.0
LIFE_S = 900.0
"""Maximum run time of a process, in case its parent dies."""
_START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Edition:
    """The content of a batch: the rows follow from the batch's number and the edition's number."""

    batch: int
    number: int

    @property
    def ids(self) -> range:
        """Ids of its rows: editions of one batch share some of them."""
        first = self.batch * 1_000
        return range(first, first + 9 + 2 * (self.number % 5))

    @property
    def key(self) -> str:
        """The name of the batch."""
        return f"batch-{self.batch}"

    def columns(self, day: int) -> dict[str, Any]:
        """The rows, over all tags and the day."""
        start = _START + timedelta(day)
        # Times depend on the edition, so that replacing a batch also moves its records within their tiles.
        shift = self.number % 3
        return {
            "id": list(self.ids),
            "tag": [row % TAGS for row in self.ids],
            "time": [start + timedelta(seconds=row + shift) for row in range(len(self.ids))],
            "text": [f"{self.batch} {self.number}"] * len(self.ids),
        }


def day_of(batch: int) -> int:
    """The day that a batch belongs to."""
    return batch // 1_000_000


def number_of(day: int, process: int, count: int) -> int:
    """The number of a batch; those of process 0 are shared."""
    return day * 1_000_000 + process * 10_000 + count


@dataclass(frozen=True)
class Operation:
    """An operation of one process: a write, whose edition is `NONE` for a removal, or a read of some days."""

    kind: str
    start: float
    end: float
    outcome: str = "done"
    batch: int = 0
    edition: int = NONE
    days: tuple[int, int] = (0, 0)
    seen: dict[str, int] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    error: str = ""
    process: int = 0


def look(rows: Iterable[tuple[int, str]]) -> tuple[dict[str, int], list[str]]:
    """The edition of each batch in rows of (id, text), and a list of errors."""
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for record, text in rows:
        batch, edition = text.split()
        found[int(batch)].append((int(edition), record))
    seen: dict[str, int] = {}
    wrong: list[str] = []
    for number, records in found.items():
        newest = max(edition for edition, _ in records)
        if sorted(records) != [(newest, record) for record in Edition(number, newest).ids]:
            wrong.append(f"batch {number} is not complete in one edition: {sorted(records)}")
        seen[str(number)] = newest
    return seen, wrong


def read(ds: ct.Dataset, days: tuple[int, int] | None = None) -> tuple[dict[str, int], list[str]]:
    """As `look`, for the rows of a dataset, optionally only of these days."""
    limits: dict[str, Any] = {}
    if days is not None:
        limits = {"start": _START + timedelta(days[0]), "end": _START + timedelta(days[1] + 1)}
    table = ds.read(columns=["id", "text"], **limits).to_arrow()
    return look(zip(table["id"].to_pylist(), table["text"].to_pylist(), strict=True))


# ---------------------------------------------------------------- a process


class Worker:
    """Writes, replaces, removes and reads until it is stopped, and logs its operations."""

    def __init__(self, ds: ct.Dataset, process: int, day_s: float) -> None:
        self.ds = ds
        self.process = process
        self.day_s = day_s
        self.began = time.monotonic()
        self.choose = random.Random(process)
        self.editions = 0
        self.own: dict[int, int] = defaultdict(int)

    def run(self, stop: Path) -> None:
        """Work until the file `stop` exists."""
        while not stop.exists() and time.monotonic() - self.began < LIFE_S:
            day = int((time.monotonic() - self.began) / self.day_s)
            self.change(day)
            self.read((max(day - OWN_DAYS + 1, 0), day))
            time.sleep(PAUSE_S)

    def change(self, day: int) -> None:
        """Store a batch, replace one, or remove one."""
        dice = self.choose.random()
        if dice < 0.4 or not self.own[day]:
            self.own[day] += 1
            batch = number_of(day, self.process, self.own[day])
        elif dice < 0.7:
            batch = number_of(day, self.process, self.choose.randint(1, self.own[day]))
        else:
            batch = number_of(day, 0, self.choose.randint(1, SHARED))
        if self.choose.random() < 0.2:
            logged("write", self.process, lambda: self.remove(batch), batch=batch)
            return
        self.editions += 1
        edition = Edition(batch, self.editions * 100 + self.process)
        columns = edition.columns(day)

        def put() -> dict[str, Any]:
            self.ds.write(columns, batch=edition.key, replace=True)
            return {}

        outcome = logged("write", self.process, put, batch=batch, edition=edition.number)
        # Retry only some of the failed writes.
        if outcome != "done" and self.choose.random() < 0.5:
            logged("write", self.process, put, batch=batch, edition=edition.number)

    def remove(self, batch: int) -> dict[str, Any]:
        """Remove a batch, which may have been removed already."""
        try:
            self.ds.remove_batch(Edition(batch, NONE).key)
        except ct.BatchNotFoundError:
            # Nothing changed; whether the batch may be missing is checked by reads.
            return {"outcome": "refused"}
        return {}

    def read(self, days: tuple[int, int]) -> None:
        """Read some days once."""

        def seen() -> dict[str, Any]:
            seen, wrong = read(self.ds, days)
            return {"seen": seen, "wrong": wrong}

        logged("read", self.process, seen, days=days)

    def maintain(self, stop: Path) -> None:
        """Consolidate repeatedly until the file `stop` exists."""
        while not stop.exists() and time.monotonic() - self.began < LIFE_S:
            logged("consolidate", self.process, self.consolidate)
            time.sleep(CONSOLIDATED_EVERY_S)

    def consolidate(self) -> dict[str, Any]:
        """Consolidate once; tiles that could not be rewritten are errors."""
        return {"wrong": [str(failure) for failure in self.ds.consolidate().failed]}


def main() -> None:
    """Arguments: URL, number of the process (0 maintains), file that stops it, seconds until the next day begins."""
    url, process, stop, day_s = sys.argv[1:]
    with opened(url) as archive:
        worker = Worker(patiently(lambda: create(archive)), int(process), float(day_s))
        (worker.run if int(process) else worker.maintain)(Path(stop))


def opened(url: str) -> ct.Archive:
    """Open an archive on nodes of which some may still see others down."""
    return patiently(lambda: ct.open(url))


def patiently(do: Callable[[], Result], seconds: float = 90) -> Result:
    """Repeat an operation until the nodes can serve it."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return do()
        except (ct.UnavailableError, ct.BusyError):
            if time.monotonic() > deadline:
                raise
            time.sleep(1)


def create(archive: ct.Archive) -> ct.Dataset:
    """The dataset of the batches; each day is a slice, hence a separate table."""
    return archive.create(
        "editions", schema=SCHEMA, cell=ct.key("tag"), time="time", window="1d", id="id", slice=1, exist_ok=True
    )


class Load(Processes):
    """Processes that change and read batches; the first one maintains the archive instead."""

    program = Path(__file__)

    def __init__(self, url: str, folder: Path, processes: int = 4, *, day_s: float = SECONDS_PER_DAY) -> None:
        with opened(url) as archive:
            patiently(lambda: create(archive))
        super().__init__(url, folder, processes, day_s)

    def begun(self) -> bool:
        """Whether each process has logged an operation."""
        return {operation.process for operation in self.operations()} == set(range(len(self.running)))

    def operations(self) -> list[Operation]:
        """All operations logged so far."""
        return [Operation(**record) for record in self.records()]


# ---------------------------------------------------------------- the checker


def violations(operations: list[Operation], final: dict[str, int], wrong: list[str]) -> list[str]:
    """Violations of the guarantees of an archive; `final` and `wrong` are the result of a read at the end."""
    end = max((operation.end for operation in operations), default=0.0) + 1
    days = (0, max((day_of(operation.batch) for operation in operations), default=0))
    reads = [operation for operation in operations if operation.kind == "read" and operation.outcome == "done"]
    reads.append(Operation("read", end, end, days=days, seen=final, wrong=wrong))
    found = [
        f"{each.kind} of process {each.process}: {line}" for each in [*operations, reads[-1]] for line in each.wrong
    ]
    writes: dict[int, list[Operation]] = defaultdict(list)
    for operation in operations:
        if operation.kind == "write" and operation.outcome != "refused":
            writes[operation.batch].append(operation)
    for batch in writes.keys() | {int(key) for each in reads for key in each.seen}:
        own = [each for each in reads if each.days[0] <= day_of(batch) <= each.days[1]]
        found += _of_one_batch(batch, writes[batch], own)
    return found


def _of_one_batch(batch: int, writes: list[Operation], reads: list[Operation]) -> Iterator[str]:
    """Reads that saw an edition of a batch that cannot have been current."""
    # Initially the batch does not exist.
    writes = [Operation("write", -1.0, -1.0, batch=batch), *writes]
    later: list[tuple[float, Operation]] = []
    for read in sorted(reads, key=lambda each: each.start):
        seen = read.seen.get(str(batch), NONE)
        may = [each for each in writes if each.edition == seen and each.start < read.end]
        if not any(_may_be_current(each, writes, read.start) for each in may):
            why = "overwritten" if may else "never written"
            yield f"a read at {read.start:.3f} saw edition {seen} of batch {batch}, which was {why}"
        # Monotonic reads: after an earlier read has seen an edition, no edition that it replaced may appear again.
        for ended, newer in later:
            if ended < read.start and may and all(each.end < newer.start for each in may):
                yield f"a read at {read.start:.3f} saw edition {seen} of batch {batch} again after {newer.edition}"
        if len(may) == 1:
            later.append((read.end, may[0]))


def _may_be_current(write: Operation, writes: list[Operation], at: float) -> bool:
    """Whether no write that began after this one had ended was acknowledged before time `at`."""
    return not any(each.outcome == "done" and each.start > write.end and each.end < at for each in writes)


if __name__ == "__main__":
    main()
