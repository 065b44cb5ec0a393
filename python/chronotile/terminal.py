"""Numbers, tables and progress as text for people: what the command line and the pages say them with."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

__all__ = ["ProgressLine", "bar", "bytes_text", "count_text", "table_text"]


def count_text(count: int, noun: str = "") -> str:
    """1234567 as 1,234,567; with the `noun` of one of them as ``1,234,567 rows``, or ``1 row``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}" if noun else f"{count:,}"


def bytes_text(count: float) -> str:
    """Bytes in the largest unit that leaves at least one."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def table_text(header: list[str], rows: list[list[str]], right: frozenset[int] = frozenset()) -> str:
    """Columns of text, those numbered in `right` set to the right. On a terminal that is too narrow the widest texts
    are cut."""
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
"""No column of text is cut to less."""


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


class ProgressLine:
    """One line on a terminal's standard error that shows how far long work is; nothing in a pipe."""

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            self._stop.set()
            self._thread.join()
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def bar(done: float, total: float | None, width: int = 24) -> str:
    """A bar of `width` characters; empty where the total is not known."""
    if not total:
        return "[" + " " * width + "]"
    filled = int(width * min(done / total, 1.0))
    return "[" + "#" * filled + "-" * (width - filled) + "]"
