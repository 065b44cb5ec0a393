"""A lock in the archive that serializes changes of stored records across processes.

A change reads rows and writes newer versions of them. Two concurrent changes of one row would start from the same
version, and the later would overwrite the earlier. So each change first takes a turn: a numbered record that the
archive lets only one process write. Stores and reads need no turn.
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
"""Seconds after taking a turn in which its holder may start a write."""
GRACE_S = 60.0
"""Further seconds in which a started write may still be applied: the default timeout of the engines."""
WAIT_S = 180.0
"""Seconds to wait for a turn: longer than the turn of a crashed process lasts."""

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
# Keep all turns in one window: their rows must not depend on the time of writing.
_PLACE = datetime(2020, 1, 1, tzinfo=UTC)


class Turns:
    """The turns of a database. Thread-safe and reentrant."""

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
            Kind ``busy``: other processes held it for the whole wait.
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
        """Raise an error if the turn has expired. Call this before each write.

        Raises
        ------
        BusyError
            Kind ``lost-race``. The next write did not start.
        """
        until = getattr(self._held, "until", None)
        if until is None or datetime.now(UTC) > until:
            raise BusyError(
                f"the change took longer than {LEASE_S:g} s to prepare, and other processes may be changing "
                "the same rows: repeat it in smaller parts",
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
                        f"timed out after {WAIT_S:g} s: another process is changing records; repeat when it has ended",
                        kind="busy",
                    )
                time.sleep(_POLL_S)
            number += 1
            until = datetime.now(UTC) + timedelta(seconds=LEASE_S)
            try:
                self._write(f"{number}", number, owner, until, ended=False)
            except BatchConflictError:
                # Another process took this turn first.
                continue
            self._seen = number
            self._forget(number - _KEPT)
            return number, owner, until

    def _last(self) -> int:
        """Number of the latest turn."""
        if not self._seen:
            found = self._dataset.read(columns=["turn"]).to_arrow()["turn"].to_pylist()
            self._seen = max(found, default=0)
        number = self._seen
        while self._dataset.batch(f"{number + 1}") is not None:
            number += 1
        return number

    def _free(self, number: int) -> bool:
        """Whether the next turn may be taken."""
        if number == 0 or self._dataset.batch(f"{number}-end") is not None:
            return True
        rows = self._dataset.read(where=[("turn", "==", number)], columns=["until", "ended"]).to_arrow().to_pylist()
        if any(row["ended"] for row in rows):
            return True
        # The turn was taken, but its row is not written yet.
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
    """Create or open the dataset of turns."""
    if names.TURNS in archive:
        return archive[names.TURNS]
    return archive.create(
        names.TURNS, schema=_SCHEMA.append(pa.field("placed", pa.timestamp("us", "UTC"), False)), cell=cells.single(),
        time="placed", window="3650d", slice=1, id=["turn", "ended"], exist_ok=True,
    )  # fmt: skip


_Method = TypeVar("_Method", bound=Callable[..., Any])


def in_turn(method: _Method) -> _Method:
    """Decorator for methods that change stored records: run them while holding a turn."""

    @functools.wraps(method)
    def run(self: Any, *arguments: Any, **named: Any) -> Any:
        with self._tables.turns.take():
            return method(self, *arguments, **named)

    return cast(_Method, run)
