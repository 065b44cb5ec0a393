"""Compare an archive of jobs with the database that it was copied from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from chronotile.jobs.jobs import Days, Jobs, _period
from chronotile.jobs.sources import Source

__all__ = ["CompareReport", "DayDifference", "compare"]

IDS_SHOWN = 100
"""Most ids listed for each kind of difference of a day."""


@dataclass(frozen=True)
class DayDifference:
    """A day whose jobs differ."""

    day: date
    rows_database: int
    rows_archive: int
    missing: tuple[int, ...]
    """The first 100 ids that only the database has."""
    superfluous: tuple[int, ...]
    """The first 100 ids that only the archive has."""
    differing: tuple[int, ...]
    """The first 100 ids whose newest states differ."""


@dataclass(frozen=True)
class CompareReport:
    """Report of a comparison."""

    days: int
    """Days compared."""
    rows: int
    """Jobs of the database."""
    differences: tuple[DayDifference, ...]

    @property
    def ok(self) -> bool:
        """Whether archive and database are equal."""
        return not self.differences


def compare(
    jobs: Jobs,
    database: str,
    table: str,
    *,
    days: Days = None,
    progress: Callable[[date], object] | None = None,
) -> CompareReport:
    """Compare the newest states of all jobs with a table, day by day of the archive's time column (UTC).

    A day is equal if both sides have the same number of rows and the same hash over all values of their common columns;
    otherwise the differing jobs are listed.

    Parameters
    ----------
    jobs, database, table
        As for :func:`sync`.
    days : optional
        As for :meth:`Jobs.find`; by default from the first job of the database to its last.
    progress : callable, optional
        Called with each compared day.
    """
    dataset = jobs.dataset
    source = Source(database, table, dataset)
    try:
        if days is not None:
            start, end = _period(days)
        else:
            extremes = source.extremes(dataset.time.column)
            if extremes is None:
                return CompareReport(0, 0, ())
            start = extremes[0].replace(hour=0, minute=0, second=0, microsecond=0)
            # Days are compared as long as they start before the end, so the end must be after the last job.
            end = extremes[1] + timedelta(microseconds=1)
        differences = []
        count = rows = 0
        day = start
        while day < end:
            after = day + timedelta(days=1)
            theirs = _read_day(source, dataset.time.column, day, after)
            ours = dataset.read(columns=source.columns, start=day, end=after).to_arrow()
            if (theirs.num_rows, _content_hash(dataset, theirs)) != (ours.num_rows, _content_hash(dataset, ours)):
                differences.append(_difference(day.date(), theirs, ours, jobs))
            rows += theirs.num_rows
            count += 1
            if progress is not None:
                progress(day.date())
            day = after
    finally:
        source.close()
    return CompareReport(count, rows, tuple(differences))


def _read_day(source: Source, column: str, start: datetime, end: datetime) -> pa.Table:
    parts = list(source.rows(column, start, end, 200_000))
    schema = pa.schema([source.schema.field(name) for name in source.columns])
    return pa.concat_tables([part.cast(schema) for part in parts]) if parts else schema.empty_table()


def _content_hash(dataset: Any, rows: pa.Table) -> str:
    return str(dataset._native.content(rows)[1])


def _difference(day: date, theirs: pa.Table, ours: pa.Table, jobs: Jobs) -> DayDifference:
    id = jobs.id
    missing = _first(theirs[id].filter(pc.invert(pc.is_in(theirs[id], ours[id].combine_chunks()))))
    superfluous = _first(ours[id].filter(pc.invert(pc.is_in(ours[id], theirs[id].combine_chunks()))))
    common = [
        table.filter(pc.is_in(table[id], other[id].combine_chunks())).sort_by(id)
        for table, other in ((theirs, ours), (ours, theirs))
    ]
    differing: tuple[int, ...] = ()
    if common[0].num_rows == common[1].num_rows:
        same = pa.array([True] * common[0].num_rows, pa.bool_())
        for name in theirs.column_names:
            left, right = (table[name].combine_chunks() for table in common)
            equal = pc.fill_null(pc.equal(left, right), False)
            both_missing = pc.and_(pc.is_null(left, nan_is_null=True), pc.is_null(right, nan_is_null=True))
            # A null differs from a NaN.
            same_kind = pc.equal(pc.is_null(left), pc.is_null(right))
            same = pc.and_(same, pc.or_(equal, pc.and_(both_missing, same_kind)))
        differing = _first(common[0][id].filter(pc.invert(same)))
    return DayDifference(day, theirs.num_rows, ours.num_rows, missing, superfluous, differing)


def _first(ids: pa.ChunkedArray) -> tuple[int, ...]:
    return tuple(ids.take(pc.sort_indices(ids)).slice(0, IDS_SHOWN).to_pylist())
