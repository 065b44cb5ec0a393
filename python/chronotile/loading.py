"""Shared by all loads of files, whatever their content: reports, progress, and ordered parallel work."""

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
    """Report of a load."""

    files: int = 0
    """Files read."""
    rejected: int = 0
    """Records rejected, without those of batches that were already stored."""
    first_reject: tuple[str, int, str] | None = None
    """File, line and reason of the first rejected record."""
    seconds: float = 0.0

    @property
    @abstractmethod
    def records(self) -> int:
        """Records stored by this load or an earlier one."""

    @property
    def all_rejected(self) -> bool:
        """Whether the load read records and rejected all of them."""
        return self.rejected > 0 and self.records == 0


@dataclass
class Progress(Generic[_Report]):
    """Progress of a load. The same object is updated during the load."""

    bytes_total: int
    """Bytes of all files on disk; 0 if unknown."""
    report: _Report
    bytes_done: int = 0
    file: str = ""
    began: float = field(default_factory=time.monotonic)

    @property
    def seconds_left(self) -> float | None:
        """Estimated remaining time in seconds; None before the first bytes."""
        if not self.bytes_done:
            return None
        elapsed = time.monotonic() - self.began
        return elapsed * (self.bytes_total - self.bytes_done) / self.bytes_done


def listed(paths: Iterable[Path], wanted: Callable[[Path], bool], what: str) -> Iterator[Path]:
    """List the given files and, sorted, the files in given folders for which `wanted` is true.

    Raises
    ------
    DataFileError
        A path does not exist, or a folder contains no wanted file. `what` names these files in the message.
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
    """Apply `work` to pieces in a pool; yield each piece and its result in order. Shuts the pool down at the end."""
    running: deque[tuple[_Piece, Future[_Result]]] = deque()
    try:
        for piece in pieces:
            running.append((piece, pool.submit(work, piece)))
            # Waiting pieces occupy memory: queue only as many as keep the workers busy.
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
