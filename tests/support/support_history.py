"""Processes that write and read an archive and log each operation, and a checker of their logs.

Run as a program, this is one such process. Each operation becomes a JSON line: a write with its batch and its outcome
(`done`, `refused` or `unknown`), a read with the number of rows of each batch. Times come from the machine's monotonic
clock, so that logs of several processes are comparable.
"""

from __future__ import annotations

import contextlib
import json
import random
import statistics
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import chronotile as ct

SCHEMA = {"id": "int64", "tag": "int64", "time": "timestamp[us]", "text": "utf8"}
TAGS = 4
ROWS = 24
BIG_ROWS = 120
BIG_BYTES = 6_000
DAYS_READ = 2
SECONDS_PER_DAY = 10
"""Interval at which processes move on to the next day, so that tables are created while nodes are down."""
LIFE_S = 900.0
"""Maximum run time of a process, in case its parent dies."""
_START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, order=True)
class Batch:
    """A named batch whose rows follow from its name."""

    process: int
    number: int
    day: int
    big: bool = False

    @property
    def key(self) -> str:
        """Its name."""
        return f"{self.process}-{self.number}-{self.day}-{'big' if self.big else 'small'}"

    @classmethod
    def of(cls, key: str) -> Self:
        """The batch of this name."""
        process, number, day, size = key.split("-")
        return cls(int(process), int(number), int(day), size == "big")

    @property
    def ids(self) -> range:
        """Ids of its rows."""
        first = (self.process * 10_000 + self.number) * 1_000
        return range(first, first + (BIG_ROWS if self.big else ROWS))

    def columns(self) -> dict[str, Any]:
        """Its rows, over all tags and its day."""
        count = len(self.ids)
        start = _START + timedelta(self.day)
        choose = random.Random(self.key)
        # Text that hardly compresses: a big batch sends some megabytes.
        noise = [choose.randbytes(BIG_BYTES).hex() if self.big else "" for _ in range(count)]
        return {
            "id": list(self.ids),
            "tag": [row % TAGS for row in range(count)],
            "time": [start + timedelta(seconds=row) for row in range(count)],
            "text": [f"{self.key} {text}" for text in noise],
        }


def create(archive: ct.Archive) -> ct.Dataset:
    """The dataset of the batches; each day is a slice, hence a separate table."""
    return archive.create(
        "history", schema=SCHEMA, cell=ct.key("tag"), time="time", window="1d", id="id", slice=1, exist_ok=True
    )


def read(ds: ct.Dataset, days: tuple[int, int] | None = None) -> tuple[dict[str, int], int]:
    """Number of rows of each batch, optionally only of these days, and the number of rows that are duplicates or belong
    to no batch."""
    limits: dict[str, Any] = {}
    if days is not None:
        limits = {"start": _START + timedelta(days[0]), "end": _START + timedelta(days[1] + 1)}
    table = ds.read(columns=["id", "text"], **limits).to_arrow()
    texts, ids = table["text"].to_pylist(), table["id"].to_pylist()
    return count_rows(texts, ids)


def count_rows(texts: list[str], ids: list[int]) -> tuple[dict[str, int], int]:
    """Number of rows of each batch by id, and the number of rows that are duplicates or belong to no batch."""
    owners: dict[int, str] = {}
    for text in texts:
        key = text.split(" ", 1)[0]
        with contextlib.suppress(ValueError):
            owners[Batch.of(key).ids.start // 1_000] = key
    wrong = len(ids) - len(set(ids))
    seen: Counter[str] = Counter()
    for record in set(ids):
        owner = owners.get(record // 1_000)
        if owner is None or record not in Batch.of(owner).ids:
            wrong += 1
        else:
            seen[owner] += 1
    return dict(seen), wrong


# ---------------------------------------------------------------- a process


def outcome_of(error: ct.ChronotileError) -> str:
    """The outcome that a writer may conclude from an error."""
    return "unknown" if isinstance(error, ct.OutcomeUnknownError) else "refused"


class Worker:
    """Writes and reads until it is stopped, and logs its operations."""

    def __init__(self, ds: ct.Dataset, process: int, day_s: float) -> None:
        self.ds = ds
        self.process = process
        self.day_s = day_s
        self.began = time.monotonic()

    def day(self) -> int:
        """The day that it writes to now; the days of processes change within about a second."""
        return int((time.monotonic() - self.began) / self.day_s)

    def run(self, stop: Path) -> None:
        """Work until the file `stop` exists."""
        choose, number = random.Random(self.process), 0
        while not stop.exists() and time.monotonic() - self.began < LIFE_S:
            batch = Batch(self.process, number, self.day())
            number += 1
            outcome = self.write(batch)
            # Retry only some of the failed writes.
            if outcome != "done" and choose.random() < 0.5:
                self.write(batch)
            last = self.day()
            self.read((last - DAYS_READ + 1, last))

    def write(self, batch: Batch) -> str:
        """Write a batch once."""
        columns = batch.columns()

        def put() -> dict[str, Any]:
            return {"stored": self.ds.write(columns, batch=batch.key).stored}

        return logged("write", self.process, put, batch=batch.key)

    def read(self, days: tuple[int, int]) -> str:
        """Read some days once."""

        def look() -> dict[str, Any]:
            seen, wrong = read(self.ds, days)
            return {"seen": seen, "wrong": wrong}

        return logged("read", self.process, look, days=days)


def logged(kind: str, process: int, do: Callable[[], dict[str, Any]], **about: Any) -> str:
    """Run an operation, print its result as a JSON line, and return its outcome."""
    line = {"kind": kind, "process": process, **about, "start": time.monotonic(), "outcome": "done"}
    try:
        line |= do()
    except ct.ChronotileError as error:
        line |= {"outcome": outcome_of(error), "error": f"{type(error).__name__}: {error}"}
    line["end"] = time.monotonic()
    print(json.dumps(line), flush=True)
    return str(line["outcome"])


def main() -> None:
    """Arguments: URL, number of the process, file that stops it, seconds until the next day begins."""
    url, process, stop, day_s = sys.argv[1:]
    with ct.open(url) as archive:
        Worker(create(archive), int(process), float(day_s)).run(Path(stop))


# ---------------------------------------------------------------- many processes


@dataclass(frozen=True)
class Operation:
    """One operation of one process."""

    kind: str
    process: int
    start: float
    end: float
    outcome: str
    batch: str = ""
    days: tuple[int, int] = (0, 0)
    seen: dict[str, int] = field(default_factory=dict)
    wrong: int = 0
    stored: bool = True
    error: str = ""

    @property
    def seconds(self) -> float:
        """Duration of the operation."""
        return self.end - self.start


class Processes(ABC):
    """Running processes that log their operations as lines of JSON. As a context manager it stops them on exit."""

    program: Path
    """The program that each process runs."""

    def __init__(self, url: str, folder: Path, processes: int, day_s: float) -> None:
        folder.mkdir()
        self.folder = folder
        self.stop_file = folder / "stop"
        self.running: list[subprocess.Popen[bytes]] = []
        for number in range(processes):
            command = [sys.executable, str(self.program), url, str(number), str(self.stop_file), str(day_s)]
            with self._log(number).open("wb") as out, (folder / f"{number}.err").open("wb") as err:
                self.running.append(subprocess.Popen(command, stdout=out, stderr=err))

    @abstractmethod
    def begun(self) -> bool:
        """Whether each process has done its first operations."""

    def __enter__(self) -> Self:
        self.wait(self.begun, 60, "begin")
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _log(self, number: int) -> Path:
        return self.folder / f"{number}.jsonl"

    def wait(self, until: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait until a condition holds; fails if a process ends meanwhile."""
        deadline = time.monotonic() + seconds
        while not until():
            self.check_running()
            assert time.monotonic() < deadline, f"the processes did not {what} within {seconds:.0f} s"
            time.sleep(0.1)

    def work(self, seconds: float) -> None:
        """Let them work for a while."""
        time.sleep(seconds)
        self.check_running()

    def check_running(self) -> None:
        """Fail if a process has ended, with its error output."""
        for number, process in enumerate(self.running):
            if process.poll() is not None:
                raise AssertionError(f"process {number} ended:\n{(self.folder / f'{number}.err').read_text()[-3_000:]}")

    def end(self) -> None:
        """Stop the processes after their current operation."""
        self.stop_file.touch()
        for process in self.running:
            try:
                process.wait(90)
            except subprocess.TimeoutExpired:
                process.kill()
                raise

    def records(self) -> Iterator[dict[str, Any]]:
        """All records logged so far."""
        for number in range(len(self.running)):
            text = self._log(number).read_text()
            # The last line may be incomplete.
            for line in text[: text.rfind("\n") + 1].splitlines():
                record = json.loads(line)
                yield record | {"days": tuple(record.get("days", (0, 0)))}


class Load(Processes):
    """Processes that write new batches and read them."""

    program = Path(__file__)

    def __init__(self, url: str, folder: Path, processes: int = 4, *, day_s: float = SECONDS_PER_DAY) -> None:
        with ct.open(url) as archive:
            create(archive)
        super().__init__(url, folder, processes, day_s)

    def begun(self) -> bool:
        """Whether each process has opened the archive, written and read once."""
        return {o.process for o in self.history().of("read")} == set(range(len(self.running)))

    def stop(self) -> History:
        """Stop the processes after their current operation, and return all operations."""
        self.end()
        return self.history()

    def history(self) -> History:
        """All operations logged so far."""
        return History([Operation(**record) for record in self.records()])


# ---------------------------------------------------------------- the checker


@dataclass(frozen=True)
class History:
    """Operations of several processes on one archive."""

    operations: list[Operation]

    def of(self, kind: str) -> list[Operation]:
        """Operations of a kind: writes or reads."""
        return [operation for operation in self.operations if operation.kind == kind]

    @property
    def failed(self) -> list[str]:
        """Error messages of failed operations."""
        return [f"{o.kind} {o.batch or o.days}: {o.error}" for o in self.operations if o.outcome != "done"]

    @property
    def slowest_s(self) -> float:
        """The longest duration of an operation."""
        return max(operation.seconds for operation in self.operations)

    def median_s(self, start: float, end: float) -> float:
        """The median duration of the operations that began between two times; infinite if there are none."""
        spent = [operation.seconds for operation in self.operations if start <= operation.start < end]
        return statistics.median(spent) if spent else float("inf")

    def outcomes(self) -> dict[str, set[str]]:
        """The outcomes of all writes of each batch."""
        found: dict[str, set[str]] = defaultdict(set)
        for write in self.of("write"):
            found[write.batch].add(write.outcome)
        return found

    def violations(self, final: dict[str, int], wrong: int) -> list[str]:
        """Violations of the guarantees of an archive. `final` is the number of rows of each batch at the end, `wrong`
        the number of rows that are duplicates or belong to no batch."""
        found = [f"{wrong} rows are duplicates or belong to no batch at the end"] if wrong else []
        found += [f"process {r.process} read {r.wrong} duplicate or unknown rows" for r in self.of("read") if r.wrong]
        found += self._against_end(final)
        found += self._reads_that_missed()
        found += self._reads_of_parts()
        return found

    def _against_end(self, final: dict[str, int]) -> Iterator[str]:
        outcomes = self.outcomes()
        for key, results in outcomes.items():
            rows, whole = final.get(key, 0), len(Batch.of(key).ids)
            if "done" in results and rows != whole:
                yield f"batch {key} was acknowledged and has {rows} of {whole} rows"
            elif results == {"refused"} and rows:
                yield f"batch {key} was refused and has {rows} rows"
            elif rows not in (0, whole):
                yield f"batch {key} is incomplete: {rows} of {whole} rows"
        yield from (f"batch {key} was never written" for key in final.keys() - outcomes.keys())

    def _reads_that_missed(self) -> Iterator[str]:
        """Reads that missed a batch that was acknowledged, or seen by another read, before they began."""
        known: dict[str, float] = {}
        for operation in self.operations:
            if operation.outcome == "done":
                for key in [operation.batch] if operation.kind == "write" else operation.seen:
                    known[key] = min(known.get(key, float("inf")), operation.end)
        for later in self.of("read"):
            if later.outcome == "done":
                for key, since in known.items():
                    first, last = later.days
                    if since < later.start and first <= Batch.of(key).day <= last and key not in later.seen:
                        yield f"a read misses batch {key}, acknowledged or read {later.start - since:.3f} s earlier"

    def _reads_of_parts(self) -> Iterator[str]:
        begun: dict[str, float] = {}
        for write in self.of("write"):
            begun[write.batch] = min(begun.get(write.batch, float("inf")), write.start)
        for operation in self.of("read"):
            for key, rows in operation.seen.items():
                if rows != len(Batch.of(key).ids):
                    yield f"a read saw {rows} of {len(Batch.of(key).ids)} rows of batch {key}"
                if begun.get(key, float("inf")) > operation.end:
                    yield f"a read saw batch {key} before a process wrote it"


if __name__ == "__main__":
    main()
