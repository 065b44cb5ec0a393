"""A process that copies an archive and may be killed, and a process that writes to the source meanwhile."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable

import support_visits
from support_visits import Visit

import chronotile as ct


def main() -> None:
    """``copy SOURCE TARGET`` copies once, after a line on standard input; ``write PATH`` writes, replaces, removes and
    consolidates visits until there is input."""
    match sys.argv[1:]:
        case ["copy", source, target]:
            os.write(1, b"ready\n")
            sys.stdin.readline()
            ct.copy(source, target)
        case ["write", path]:
            with ct.open(path) as archive:
                os.write(1, b"ready\n")
                write(support_visits.create(archive), 2, 2_000, lambda: bool(select.select([0], [], [], 0.02)[0]))


def write(ds: ct.Dataset, group: int, count: int, stop: Callable[[], bool] = lambda: False) -> None:
    """Write, replace, remove and consolidate visits of a group."""
    for number in range(count):
        if stop():
            return
        support_visits.write(ds, Visit(group, number))
        if number % 7 == 3:
            support_visits.write(ds, Visit(group, number - 2, edition=1))
        if number % 9 == 8:
            ds.remove_batch(Visit(group, number - 4).key)
        if number % 6 == 5:
            ds.consolidate()


if __name__ == "__main__":
    main()
