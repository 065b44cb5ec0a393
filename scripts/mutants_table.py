"""Writes figures of mutation tests into a table of a page."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path


def write_table(rows: dict[str, str], head: str, order: Iterable[str], file: Path) -> None:
    """Replace rows of the table that begins with `head`. Keeps other rows, except those of names not in `order`."""
    text = file.read_text(encoding="utf-8")
    before, found, rest = text.partition(head)
    if not found:
        sys.exit(f"{file.name} has no table that begins with {head!r}")
    lines = rest.split("\n")
    end = next(at for at, line in enumerate(lines) if at and not line.startswith("|"))
    known = {line.split("`")[1]: line for line in lines[2:end]} | rows
    table = [head, lines[1], *(known[name] for name in order if name in known)]
    file.write_text("\n".join([before + table[0], *table[1:], *lines[end:]]), encoding="utf-8")
