"""One change of stored records at a time, whoever makes them.

A change reads rows and writes newer versions of them. Two that met on one row would each start from the same version,
and the later would undo the other. So each takes a turn first: a numbered record which the archive lets only one
write. Stores and reads take none.
"""

from __future__ import annotations

import functools
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, cast

import pyarrow as pa

from chronotile import cells
from chronotile.apdb import names
from chronotile.archive import Archive
from chronotile.errors import BatchConflictError, BatchNotFoundError, BusyError

__all__ = ["Turns", "in_turn"]

LEASE_S = 30.0
"""Seconds in which the holder of a turn may begin a write."""
GRACE_S = 60.0
"""Seconds after that in which a write that was begun may still land: as long as an engine tries by default."""
WAIT_S = 180.0
"""Seconds to wait for a turn: longer than one that was left by a process that died."""

_POLL_S = 0.02
_KEPT = 16

_SCHEMA = pa.schema(
    [
        pa.field("turn", pa.int64(), False),
        pa.field("owner", pa.string(), False),
        pa.field("until", pa.timestamp("us", "UTC"), False),
        pa.field("ended", pa.bool_(), False),
    ]
)
# Rows of a turn must not depend on when they are written: all lie in one window.
_PLACE = datetime(2020, 1, 1, tzinfo=UTC)


class Turns:
    """The turns of a database. Safe to use from many threads; a thread that holds one gets it again at once."""

    def __init__(self, archive: Archive) -> None:
        self._archive = archive
        self._dataset: Any = None
        self._held = threading.local()
        self._seen = 0

    @contextmanager
    def take(self) -> Iterator[None]:
        """Hold a turn.

        Raises
        ------
        BusyError
            Kind ``busy``: others held it all the time.
        """
        if getattr(self._held, "until", None) is not None:
            yield
            return
        number, owner, until = self._acquire()
        self._held.until = until
        try:
            yield
        finally:
            self._held.until = None
            self._write(f"{number}-end", number, owner, until, ended=True)

    def check(self) -> None:
        """Refuse to go on if the turn ran out: to be called before each write.

        Raises
        ------
        BusyError
            Kind ``lost-race``. What comes next was not written.
        """
        until = getattr(self._held, "until", None)
        if until is None or datetime.now(UTC) > until:
            raise BusyError(
                f"the change took longer than {LEASE_S:g} s to prepare, and others may change the same rows by now: "
                "repeat it, in smaller parts",
                kind="lost-race",
            )

    def _acquire(self) -> tuple[int, str, datetime]:
        if self._dataset is None:
            self._dataset = create(self._archive)
        owner, began = uuid.uuid4().hex, time.monotonic()
        number = self._last()
        while True:
            while not self._free(number):
                if time.monotonic() - began > WAIT_S:
                    raise BusyError(
                        f"another process has been changing records for {WAIT_S:g} s: repeat when it has ended",
                        kind="busy",
                    )
                time.sleep(_POLL_S)
            number += 1
            until = datetime.now(UTC) + timedelta(seconds=LEASE_S)
            try:
                self._write(f"{number}", number, owner, until, ended=False)
            except BatchConflictError:
                # Somebody was faster; it is their turn now.
                continue
            self._seen = number
            self._forget(number - _KEPT)
            return number, owner, until

    def _last(self) -> int:
        """The greatest turn that was taken."""
        if not self._seen:
            found = self._dataset.read(columns=["turn"]).to_arrow()["turn"].to_pylist()
            self._seen = max(found, default=0)
        number = self._seen
        while self._dataset.batch(f"{number + 1}") is not None:
            number += 1
        return number

    def _free(self, number: int) -> bool:
        """Whether the turn after this one may be taken."""
        if number == 0 or self._dataset.batch(f"{number}-end") is not None:
            return True
        rows = self._dataset.read(where=[("turn", "==", number)], columns=["until", "ended"]).to_arrow().to_pylist()
        if any(row["ended"] for row in rows):
            return True
        # No row yet: it is just being written.
        limit = timedelta(seconds=GRACE_S)
        return bool(rows) and all(row["until"] + limit < datetime.now(UTC) for row in rows)

    def _write(self, key: str, number: int, owner: str, until: datetime, *, ended: bool) -> None:
        row = {"turn": [number], "owner": [owner], "until": [until], "ended": [ended], "placed": [_PLACE]}
        self._dataset.write(row, key)

    def _forget(self, number: int) -> None:
        for key in (f"{number}-end", f"{number}"):
            try:
                self._dataset.remove_batch(key)
            except BatchNotFoundError:
                continue


def create(archive: Archive) -> Any:
    """Make the dataset of turns; one that exists is opened."""
    if names.TURNS in archive:
        return archive[names.TURNS]
    return archive.create(
        names.TURNS, schema=_SCHEMA.append(pa.field("placed", pa.timestamp("us", "UTC"), False)), cell=cells.single(),
        time="placed", window="3650d", slice=1, id=["turn", "ended"], exist_ok=True,
    )  # fmt: skip


_Method = TypeVar("_Method", bound=Callable[..., Any])


def in_turn(method: _Method) -> _Method:
    """A method of a part of a database that changes stored records: run while its turn is held."""

    @functools.wraps(method)
    def run(self: Any, *arguments: Any, **named: Any) -> Any:
        with self._tables.turns.take():
            return method(self, *arguments, **named)

    return cast(_Method, run)
