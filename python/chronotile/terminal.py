"""Format numbers, tables and progress for people, on the command line and in reports."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Callable
from typing import Any, Self

__all__ = ["ProgressLine", "ReportedProgress", "bar", "bytes_text", "count_text", "table_text"]


def count_text(count: int, noun: str = "") -> str:
    """Format 1234567 as 1,234,567; with a singular `noun` as ``1,234,567 rows``, ``1 row``, or ``2 batches``."""
    if not noun:
        return f"{count:,}"
    return f"{count:,} {noun}" + ("" if count == 1 else "es" if noun.endswith(("ch", "ss")) else "s")


def bytes_text(count: float) -> str:
    """Format bytes in the largest unit that gives at least one."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def table_text(header: list[str], rows: list[list[str]], right: frozenset[int] = frozenset()) -> str:
    """Format a table; the columns numbered in `right` are right-aligned. On a narrow terminal, the widest columns are
    truncated.
    """
    widths = [max(len(line[place]) for line in [header, *rows]) for place in range(len(header))]
    if sys.stdout.isatty():
        excess = sum(widths) + 2 * (len(widths) - 1) - shutil.get_terminal_size().columns
        texts = [place for place in range(len(widths)) if place not in right]
        while excess > 0 and texts and widths[widest := max(texts, key=lambda place: widths[place])] > _TEXT_MIN:
            widths[widest] -= 1
            excess -= 1
        rows = [[_cut(cell, widths[place]) for place, cell in enumerate(line)] for line in rows]
        header = [_cut(cell, widths[place]) for place, cell in enumerate(header)]

    def line(cells: list[str]) -> str:
        set_ = [c.rjust(w) if p in right else c.ljust(w) for p, (c, w) in enumerate(zip(cells, widths, strict=True))]
        return "  ".join(set_).rstrip()

    return "\n".join(line(cells) for cells in [header, *rows])


_TEXT_MIN = 8
"""Least width of a truncated column."""


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


class ProgressLine:
    """Progress line of a long operation on a terminal's standard error; silent in a pipe."""

    def __init__(self, describe: Callable[[], str]) -> None:
        self._describe = describe
        self._shown = sys.stderr.isatty()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        if self._shown:
            self._thread.start()
        return self

    def _run(self) -> None:
        while not self._stop.wait(0.15):
            sys.stderr.write(f"\r\x1b[K{self._describe()}")
            sys.stderr.flush()

    def __exit__(self, *_: object) -> None:
        if self._shown:
            self._stop.set()
            self._thread.join()
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


class ReportedProgress(ProgressLine):
    """Progress line that is itself the progress callback of the operation.

    Parameters
    ----------
    before : str
        Text until the first call.
    describe : callable
        Text for the arguments of the latest call.
    """

    def __init__(self, before: str, describe: Callable[..., str]) -> None:
        self._latest: tuple[Any, ...] | None = None
        super().__init__(lambda: before if self._latest is None else describe(*self._latest))

    def __call__(self, *latest: Any) -> None:
        self._latest = latest


def bar(done: float, total: float | None, width: int = 24) -> str:
    """Draw a progress bar of `width` characters; empty if the total is unknown."""
    if not total:
        return "[" + " " * width + "]"
    filled = int(width * min(done / total, 1.0))
    return "[" + "#" * filled + "-" * (width - filled) + "]"
