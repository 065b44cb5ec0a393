"""What loads of files have in common, whatever is in the files: reports, progress, and work in order."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from chronotile.errors import ChronotileError, DataFileError

__all__ = ["Progress", "Report", "in_order", "listed"]

_Piece = TypeVar("_Piece")
_Result = TypeVar("_Result")
_Report = TypeVar("_Report", bound="Report")


@dataclass
class Report(ABC):
    """What a load did."""

    files: int = 0
    """Files read."""
    rejected: int = 0
    """Records rejected; those of batches that were stored before are not counted again."""
    first_reject: tuple[str, int, str] | None = None
    """File, line and reason of the first rejected record."""
    seconds: float = 0.0

    @property
    @abstractmethod
    def records(self) -> int:
        """Records stored, now or before."""

    @property
    def all_rejected(self) -> bool:
        """Whether there were records, and all of them were rejected."""
        return self.rejected > 0 and self.records == 0


@dataclass
class Progress(Generic[_Report]):
    """How far a load is. One object, which changes."""

    bytes_total: int
    """Bytes of all files, as they lie there; 0 where that is not known."""
    report: _Report
    bytes_done: int = 0
    file: str = ""
    began: float = field(default_factory=time.monotonic)

    @property
    def seconds_left(self) -> float | None:
        """About how long it will take; None before anything is done."""
        if not self.bytes_done:
            return None
        elapsed = time.monotonic() - self.began
        return elapsed * (self.bytes_total - self.bytes_done) / self.bytes_done


def listed(paths: Iterable[Path], wanted: Callable[[Path], bool], what: str) -> Iterator[Path]:
    """Files as they are given, and those in folders that are `wanted`, sorted within each folder.

    Raises
    ------
    DataFileError
        A path that does not exist, a folder that holds no such file: the message says it holds no `what`.
    """
    for path in paths:
        if not path.exists():
            raise DataFileError(f"no such file or folder: {path}", kind="file-not-found")
        inside = (
            sorted(item for item in path.rglob("*") if item.is_file() and wanted(item)) if path.is_dir() else [path]
        )
        if not inside:
            raise DataFileError(f"folder {path} contains no {what}", kind="file-not-found")
        yield from inside


def in_order(
    pool: Executor, work: Callable[[_Piece], _Result], pieces: Iterable[_Piece], workers: int
) -> Iterator[tuple[_Piece, _Result]]:
    """Each piece with what `work` makes of it, in the order of the pieces. Shuts the pool down at the end."""
    running: deque[tuple[_Piece, Future[_Result]]] = deque()
    try:
        for piece in pieces:
            running.append((piece, pool.submit(work, piece)))
            # Pieces wait in memory: no more of them than keep the workers busy.
            while len(running) > workers:
                yield _first(running)
        while running:
            yield _first(running)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _first(running: deque[tuple[_Piece, Future[_Result]]]) -> tuple[_Piece, _Result]:
    piece, future = running.popleft()
    try:
        return piece, future.result()
    except BrokenExecutor as error:
        raise ChronotileError(
            "a worker process crashed: run the load again to continue where it stopped",
            kind="worker-lost",
        ) from error
