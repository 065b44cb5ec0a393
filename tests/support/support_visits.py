"""Batches whose content follows from their name, for tests that write from many processes or kill them.

Imports neither numpy nor pyarrow, so that processes that tests kill start fast. Run as a program, it writes until it is
killed.
"""

from __future__ import annotations

import os
import random
import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import chronotile as ct
from chronotile import inputs

SCHEMA = {"id": "int64", "visit": "int64", "tag": "int64", "time": "timestamp[us]", "value": "float64", "note": "utf8"}
TAGS = 6
BUFFER_BYTES = 1 << 20
"""The smallest buffer of a write, so that a big visit takes several commits."""
_DAY_US = 86_400_000_000
_START_US = 1_700_000_000_000_000


@dataclass(frozen=True, order=True)
class Visit:
    """A named batch."""

    group: int
    number: int
    edition: int = 0

    @property
    def key(self) -> str:
        """Name of the batch; editions share it."""
        return f"{self.group}-{self.number}"

    @property
    def index(self) -> int:
        """The number in its rows; editions share it."""
        return self.group * 10_000 + self.number

    @property
    def big(self) -> bool:
        """Whether it takes several commits."""
        return self.number % 10 == 1

    @property
    def rows(self) -> int:
        """Number of its rows."""
        return (700 if self.big else 60) - 20 * self.edition

    @property
    def note(self) -> str:
        """Text in each of its rows."""
        return f"{self.key}/{self.edition}" + "." * (2_500 if self.big else 0)

    @property
    def ids(self) -> range:
        """Ids of its rows."""
        return range(self.index * 1_000, self.index * 1_000 + self.rows)

    def columns(self) -> dict[str, Any]:
        """Its rows: over all tags and four days, in an order that follows from the name."""
        choose = random.Random(f"{self.key}/{self.edition}")
        return {
            "id": list(self.ids),
            "visit": [self.index] * self.rows,
            "tag": [choose.randrange(TAGS) for _ in range(self.rows)],
            "time": [_START_US + choose.randrange(4) * _DAY_US + row for row in range(self.rows)],
            "value": array("d", (choose.gauss(self.edition, 1) for _ in range(self.rows))),
            "note": [self.note] * self.rows,
        }


def create(archive: ct.Archive) -> ct.Dataset:
    """The dataset of the visits."""
    return archive.create(
        "visits", schema=SCHEMA, cell=ct.key("tag"), time="time", window="1d", id="id", slice=2, exist_ok=True
    )


def write(ds: ct.Dataset, visit: Visit) -> bool:
    """Write a visit in pieces; a later edition replaces an earlier one. Retries after conflicts with other writers of
    the batch and after unknown outcomes. Returns whether the last try stored anything."""
    columns = visit.columns()
    types = ds.column_types
    while True:
        pieces = inputs.rows(_pieces(columns, visit.rows), types)
        try:
            # The public method has no parameter for the buffer size.
            report = ds._native.write(pieces, visit.key, visit.edition > 0, BUFFER_BYTES)
        except ct.BatchConflictError as error:
            if error.kind != "batch-race":
                raise
        except ct.OutcomeUnknownError:
            # Happens on a cluster under load; repeating the write resolves the outcome.
            continue
        else:
            return bool(report["stored"])


def _pieces(columns: dict[str, Any], rows: int) -> Iterator[dict[str, Any]]:
    for start in range(0, rows, 100):
        yield {name: values[start : start + 100] for name, values in columns.items()}


def _log(what: str, visit: Visit) -> None:
    """Write one line to the parent, unbuffered and in one call."""
    os.write(1, f"{what} {visit.group} {visit.number} {visit.edition}\n".encode())


def _write_and_log(ds: ct.Dataset, visit: Visit) -> None:
    _log("begun", visit)
    write(ds, visit)
    _log("done", visit)


def main() -> None:
    """Wait for a line `path|group|visits to repeat`; then repeat those visits and write new ones, with a line on
    standard output before and after each."""
    path, group, repeat = sys.stdin.readline().rstrip("\n").split("|")
    choose = random.Random(int(group))
    with ct.open(path) as archive:
        ds = create(archive)
        for words in repeat.split(";") if repeat else []:
            _write_and_log(ds, Visit(*map(int, words.split())))
        for number in range(1_000):
            if number % 7 == 6:
                ds.consolidate()
            elif number % 4 == 3:
                _write_and_log(ds, Visit(int(group), choose.randrange(number // 4 * 4, number), edition=1))
            else:
                _write_and_log(ds, Visit(int(group), number))


if __name__ == "__main__":
    main()
