"""Changes of stored records by any number of processes, without locks.

A change reads rows and writes newer versions of them. If two changes began from the same versions, one would overwrite
the other. Therefore changes are numbered: each is one batch of the database's group, ``change-1``,
``change-2`` and so on, and the archive lets only one process store the batch of a number. A change first finds the
number after the last one, then reads, then writes under that number. If another process took the number first,
the change has written nothing and starts again. A process that pauses, dies or has a wrong clock blocks no other.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import pyarrow as pa

from chronotile.errors import BatchConflictError, BusyError
from chronotile.group import Group
from chronotile.reports import WriteReport

__all__ = ["Change", "Changes", "changing"]

_ATTEMPTS = 200

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class Change:
    """The rows that one change writes, to any of the group's datasets. They are stored together or not at all."""

    def __init__(self) -> None:
        self._tables: dict[str, list[Any]] = {}

    def add(self, dataset: str, rows: Any) -> None:
        """Add rows of a dataset."""
        if rows.num_rows:
            self._tables.setdefault(dataset, []).append(rows)

    def tables(self) -> dict[str, Any]:
        """The rows by dataset."""
        return {name: pa.concat_tables(parts, promote_options="default") for name, parts in self._tables.items()}


class Changes:
    """The changes of a database. Thread-safe."""

    def __init__(
        self, group: Callable[[], Group], write: Callable[[dict[str, Any], str], dict[str, WriteReport]]
    ) -> None:
        self._group, self._write = group, write
        self._last, self._mutex = 0, threading.Lock()

    def make(self, work: Callable[[Change], Any]) -> Any:
        """Call `work`, which reads rows and adds the changed ones to the change it is given; store these, and return
        what `work` returns. `work` is called again if another process changed records meanwhile.

        Raises
        ------
        BusyError
            Kind ``lost-race``: other processes were faster each time. Nothing was changed.
        """
        for _ in range(_ATTEMPTS):
            number, change = self._next(), Change()
            result = work(change)
            tables = change.tables()
            # A change without rows takes no number, because `_next` requires numbers without gaps.
            if not tables:
                return result
            try:
                reports = self._write(tables, f"change-{number}")
            except BatchConflictError:
                continue
            # If nothing was stored, another process made an identical change under this number: begin again.
            if any(report.stored for report in reports.values()):
                self._advance_to(number)
                return result
        raise BusyError(
            "other processes kept changing records: repeat the change, in smaller parts if it reads for long",
            kind="lost-race",
        )

    def _next(self) -> int:
        """The number after the last change."""
        last = self._last
        step = 1
        # Numbers have no gaps: find the last one by exponential search, then bisection.
        while self._stored(last + step):
            last += step
            step *= 2
        while step > 1:
            step //= 2
            if self._stored(last + step):
                last += step
        self._advance_to(last)
        return last + 1

    def _stored(self, number: int) -> bool:
        found = self._group().batch(f"change-{number}")
        return found is not None and found.finished

    def _advance_to(self, number: int) -> None:
        with self._mutex:
            self._last = max(self._last, number)


def changing(
    method: Callable[Concatenate[Any, Change, _Parameters], _Result],
) -> Callable[Concatenate[Any, _Parameters], _Result]:
    """Decorator for methods that change stored records: they get a :class:`Change` as first argument. The method may be
    called several times.
    """

    @functools.wraps(method)
    def run(self: Any, /, *arguments: _Parameters.args, **named: _Parameters.kwargs) -> _Result:
        return cast(_Result, self._tables.changes.make(lambda change: method(self, change, *arguments, **named)))

    signature = inspect.signature(method)
    own = [parameter for name, parameter in signature.parameters.items() if name != "change"]
    run.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
    return run
