"""Processes that write, replace, remove, read and consolidate batches, and a checker of what they logged.

Run as a program it is one such process. Each batch is a register: an operation sets it to an edition, whose number
every row carries, or takes it away. A read must see each batch whole, in one edition that may stand there at some
moment of the read. Times are of the machine's monotonic clock, so that logs of several processes compare.
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
"""The edition of a batch that is not there."""
SHARED = 3
"""Batches of each day that every process replaces and removes."""
OWN_DAYS = 2
SECONDS_PER_DAY = 60.0
PAUSE_S = 0.1
CONSOLIDATED_EVERY_S = 4.0
LIFE_S = 900.0
"""No process works longer than this, whatever becomes of its parent."""
_START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Edition:
    """What a batch holds: the rows follow from the batch's number and that of the edition."""

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
        # Where a record lies depends on the edition, so that a replaced batch also moves within its tiles.
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
    """What one process did: a write, whose edition is `NONE` for a removal, or a read of some days."""

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
    """The edition of each batch in rows of (id, text), and what is wrong with them."""
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for record, text in rows:
        batch, edition = text.split()
        found[int(batch)].append((int(edition), record))
    seen: dict[str, int] = {}
    wrong: list[str] = []
    for number, records in found.items():
        newest = max(edition for edition, _ in records)
        if sorted(records) != [(newest, record) for record in Edition(number, newest).ids]:
            wrong.append(f"batch {number} is not whole in one edition: {sorted(records)}")
        seen[str(number)] = newest
    return seen, wrong


def read(ds: ct.Dataset, days: tuple[int, int] | None = None) -> tuple[dict[str, int], list[str]]:
    """As `look`, of what a dataset has, or has of these days."""
    limits: dict[str, Any] = {}
    if days is not None:
        limits = {"start": _START + timedelta(days[0]), "end": _START + timedelta(days[1] + 1)}
    table = ds.read(columns=["id", "text"], **limits).to_arrow()
    return look(zip(table["id"].to_pylist(), table["text"].to_pylist(), strict=True))


# ---------------------------------------------------------------- a process


class Worker:
    """Writes, replaces, removes and reads until told to stop, and says what it did."""

    def __init__(self, ds: ct.Dataset, process: int, day_s: float) -> None:
        self.ds = ds
        self.process = process
        self.day_s = day_s
        self.began = time.monotonic()
        self.choose = random.Random(process)
        self.editions = 0
        self.own: dict[int, int] = defaultdict(int)

    def run(self, stop: Path) -> None:
        """Work until the file `stop` is there."""
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
        # Some that failed are tried again, the others stay as they are.
        if outcome != "done" and self.choose.random() < 0.5:
            logged("write", self.process, put, batch=batch, edition=edition.number)

    def remove(self, batch: int) -> dict[str, Any]:
        """Remove a batch, which may be gone."""
        try:
            self.ds.remove_batch(Edition(batch, NONE).key)
        except ct.BatchNotFoundError:
            # Nothing was done; what was there is for reads to say.
            return {"outcome": "refused"}
        return {}

    def read(self, days: tuple[int, int]) -> None:
        """Read some days once."""

        def seen() -> dict[str, Any]:
            seen, wrong = read(self.ds, days)
            return {"seen": seen, "wrong": wrong}

        logged("read", self.process, seen, days=days)

    def maintain(self, stop: Path) -> None:
        """Consolidate again and again, until the file `stop` is there."""
        while not stop.exists() and time.monotonic() - self.began < LIFE_S:
            logged("consolidate", self.process, self.consolidate)
            time.sleep(CONSOLIDATED_EVERY_S)

    def consolidate(self) -> dict[str, Any]:
        """Consolidate once; what could not be rewritten is wrong."""
        return {"wrong": [str(failure) for failure in self.ds.consolidate().failed]}


def main() -> None:
    """Arguments: URL, number of the process (0 maintains), file that stops it, seconds that it stays at a day."""
    url, process, stop, day_s = sys.argv[1:]
    with opened(url) as archive:
        worker = Worker(patiently(lambda: create(archive)), int(process), float(day_s))
        (worker.run if int(process) else worker.maintain)(Path(stop))


def opened(url: str) -> ct.Archive:
    """Open an archive on nodes of which some may still hold others for lost."""
    return patiently(lambda: ct.open(url))


def patiently(do: Callable[[], Result], seconds: float = 90) -> Result:
    """Repeat something until the nodes can serve it."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return do()
        except (ct.UnavailableError, ct.BusyError):
            if time.monotonic() > deadline:
                raise
            time.sleep(1)


def create(archive: ct.Archive) -> ct.Dataset:
    """The dataset that the batches go to; each day is a slice, a table of its own."""
    return archive.create(
        "editions", schema=SCHEMA, cell=ct.key("tag"), time="time", window="1d", id="id", slice=1, exist_ok=True
    )


class Load(Processes):
    """Processes that change batches and read them, and one, the first, that maintains the archive."""

    program = Path(__file__)

    def __init__(self, url: str, folder: Path, processes: int = 4, *, day_s: float = SECONDS_PER_DAY) -> None:
        with opened(url) as archive:
            patiently(lambda: create(archive))
        super().__init__(url, folder, processes, day_s)

    def begun(self) -> bool:
        """Whether each has done something."""
        return {operation.process for operation in self.operations()} == set(range(len(self.running)))

    def operations(self) -> list[Operation]:
        """All that they did until now."""
        return [Operation(**record) for record in self.records()]


# ---------------------------------------------------------------- the checker


def violations(operations: list[Operation], final: dict[str, int], wrong: list[str]) -> list[str]:
    """What contradicts the promises of an archive; `final` and `wrong` are what a read in the end has found."""
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
    """What reads saw of a batch that cannot have been there."""
    # It begins as a batch that is not there.
    writes = [Operation("write", -1.0, -1.0, batch=batch), *writes]
    later: list[tuple[float, Operation]] = []
    for read in sorted(reads, key=lambda each: each.start):
        seen = read.seen.get(str(batch), NONE)
        may = [each for each in writes if each.edition == seen and each.start < read.end]
        if not any(_may_stand(each, writes, read.start) for each in may):
            why = "overwritten" if may else "never written"
            yield f"a read at {read.start:.3f} saw edition {seen} of batch {batch}, which was {why}"
        # What an earlier read has seen is not undone: nothing that was overwritten by then comes back.
        for ended, newer in later:
            if ended < read.start and may and all(each.end < newer.start for each in may):
                yield f"a read at {read.start:.3f} saw edition {seen} of batch {batch} again after {newer.edition}"
        if len(may) == 1:
            later.append((read.end, may[0]))


def _may_stand(write: Operation, writes: list[Operation], at: float) -> bool:
    """Whether no later write was acknowledged by then that began after this one had ended."""
    return not any(each.outcome == "done" and each.start > write.end and each.end < at for each in writes)


if __name__ == "__main__":
    main()
