"""Copy jobs from a production database."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chronotile import times
from chronotile.dataset import Dataset
from chronotile.errors import InvalidInputError
from chronotile.jobs.jobs import Jobs, _seconds
from chronotile.jobs.sources import Source, utc

__all__ = ["SyncReport", "sync"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class SyncReport:
    """Report of a sync."""

    rows: int
    """States stored."""
    rows_seen: int
    """States read from the database, including those of the overlap."""
    batches: int
    """Batches stored."""
    since: datetime | None
    """Modification time at which reading started; None for all."""
    until: datetime | None
    """Latest modification time in the archive; None if the table is empty."""
    seconds: float


def sync(
    jobs: Jobs,
    database: str,
    table: str,
    *,
    overlap: str | timedelta = "10m",
    since: datetime | None = None,
    batch_rows: int = 100_000,
    progress: Callable[[int, datetime], object] | None = None,
) -> SyncReport:
    """Copy the rows of a table of jobs that changed since the last sync, by the version column of the archive.

    A state is stored exactly once, however often it is read: states with an id and version that the archive has are
    skipped, and the remains of an interrupted sync are removed first. Rows committed later than their modification time
    are found if the delay is within the overlap. Run one sync of a table at a time; a second one ends the first.

    Parameters
    ----------
    jobs : Jobs
        The archive of jobs, created with ``version=``, the column of modification times.
    database : str
        SQLAlchemy URL: ``postgresql+psycopg://user@host/production``.
    table : str
        The table, optionally with its schema: ``jobs`` or ``panda.jobs``. Columns are matched by name; others are
        skipped, and missing ones are null.
    overlap : str or timedelta
        Period before the end of the last sync that is read again. Must be longer than the longest transaction of the
        database plus its clock differences.
    since : datetime, optional
        Start here instead, to read a period again. UTC if it has no zone.
    batch_rows : int
        Rows per batch.
    progress : callable, optional
        Called with rows read so far and the modification time reached.
    """
    began = time.monotonic()
    dataset = jobs.dataset
    version = dataset.version
    if version is None or not dataset.column_types[version].startswith("timestamp"):
        raise InvalidInputError(
            f"dataset {dataset.name} has no version column of timestamps: create it with version= the column of "
            "modification times",
            kind="invalid-request",
        )
    overlap_s = _seconds(times.duration_text(overlap, "overlap"), "overlap")
    source = Source(database, table, dataset)
    try:
        mark = _remove_unfinished_and_find_mark(dataset, source.name)
        if since is not None:
            start: datetime | None = utc(since, "since")
        else:
            start = None if mark is None else mark - timedelta(seconds=overlap_s)
        rows = seen = batches = 0
        until = mark
        behind = source.order_error(version)
        with closing(source.rows(version, start, None, batch_rows, (version, jobs.id))) as parts:
            for part, is_last in _mark_last(parts):
                seen += part.num_rows
                first, reached = _first_and_last(part[version])
                until = reached if until is None else max(until, reached)
                fresh = _new_states(dataset, part, jobs.id, version)
                if fresh.num_rows:
                    # If the sync is interrupted here, rows with earlier times may still be missing.
                    synced = until if is_last else reached - behind
                    # The time makes the name unique: a later sync may read the same period again and find other states.
                    key = f"sync:{source.name}:{_us(first)}:{_us(synced)}:{time.time_ns()}"
                    rows += dataset.write(fresh, batch=key).rows
                    batches += 1
                if progress is not None:
                    progress(seen, reached)
    finally:
        source.close()
    return SyncReport(rows, seen, batches, start, until, time.monotonic() - began)


def _remove_unfinished_and_find_mark(dataset: Dataset, source: str) -> datetime | None:
    """Remove the remains of an interrupted sync; return the time up to which the table is synced."""
    mark: int | None = None
    prefix = f"sync:{source}:"
    for batch in dataset.batches():
        if batch.key is None or not batch.key.startswith(prefix):
            continue
        if not batch.finished:
            dataset.remove_batch(batch.key)
            continue
        # The name of the source contains colons, so take the time from the end of the key.
        last = int(batch.key.rsplit(":", 2)[1])
        mark = last if mark is None else max(mark, last)
    return None if mark is None else _EPOCH + timedelta(microseconds=mark)


def _mark_last(parts: Iterable[pa.Table]) -> Iterator[tuple[pa.Table, bool]]:
    """Yield each part, and whether it is the last."""
    before = None
    for part in parts:
        if before is not None:
            yield before, False
        before = part
    if before is not None:
        yield before, True


def _first_and_last(column: pa.ChunkedArray) -> tuple[datetime, datetime]:
    """The first and the last modification time."""
    if column.null_count:
        raise InvalidInputError(
            "the database has jobs without a modification time: set one, so that a sync can find them",
            kind="invalid-rows",
        )
    limits = pc.min_max(column).as_py()
    return utc(limits["min"], "of modification times"), utc(limits["max"], "of modification times")


def _us(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _new_states(dataset: Dataset, part: pa.Table, id: str, version: str) -> pa.Table:
    """Rows with an id and a modification time that the archive does not have."""
    ids = pc.unique(part[id])
    known = dataset.read(ids=ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else ids, columns=[id, version],
                         history=True).to_arrow()  # fmt: skip
    if known.num_rows == 0:
        return part
    return part.filter(pa.array(~np.isin(_states(part, id, version), _states(known, id, version))))


def _states(table: pa.Table, id: str, version: str) -> Any:
    """Id and modification time of each row, combined to one value for comparison."""
    ticks = table[version].cast(pa.timestamp("us", table[version].type.tz)).cast(pa.int64())
    states = np.empty(table.num_rows, dtype=[("id", "int64"), ("ticks", "int64")])
    states["id"] = table[id].cast(pa.int64()).to_numpy()
    states["ticks"] = pc.fill_null(ticks, np.iinfo("int64").min).to_numpy()
    return states
