"""Copying jobs from the relational database that runs production."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chronotile import optional, times
from chronotile.dataset import Dataset
from chronotile.errors import InvalidInputError, UnavailableError
from chronotile.jobs.jobs import Jobs, _seconds

__all__ = ["Source", "SyncReport", "sync"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class SyncReport:
    """What a sync did."""

    rows: int
    """States stored."""
    rows_seen: int
    """States read from the database, those of the overlap included."""
    batches: int
    """Batches stored."""
    since: datetime | None
    """The modification time from which the database was read; None for all."""
    until: datetime | None
    """The latest modification time that the archive has now; None where the table is empty."""
    seconds: float


class Source:
    """A table of jobs in a database, with the columns that the archive has."""

    def __init__(self, url: str, table: str, dataset: Dataset) -> None:
        sqlalchemy = optional.module("sqlalchemy", "reading a database of jobs", "sync")
        self.name = f"{_plain(url)}/{table}"
        self.schema = dataset.schema
        self._sql = sqlalchemy
        try:
            self._engine = sqlalchemy.create_engine(url)
        except sqlalchemy.exc.ArgumentError as error:
            raise InvalidInputError(f"{url!r} is no database URL: {error}", kind="invalid-url") from None
        try:
            self.table = self._reflected(table)
            self.columns = [name for name in self.schema.names if name in self.table.columns]
            needed = dict.fromkeys([*dataset.id, dataset.time.column, *filter(None, [dataset.version])])
            missing = [column for column in needed if column not in self.columns]
            if missing:
                raise InvalidInputError(
                    f"table {table} has no column {missing[0]!r}, which the archive needs of every job",
                    kind="invalid-request",
                )
        except BaseException:
            self.close()
            raise

    def _reflected(self, table: str) -> Any:
        schema, _, name = table.rpartition(".")
        try:
            with _told(self._sql):
                return self._sql.Table(name, self._sql.MetaData(), schema=schema or None, autoload_with=self._engine)
        except self._sql.exc.NoSuchTableError:
            raise InvalidInputError(f"the database has no table {table!r}", kind="table-not-found") from None

    def close(self) -> None:
        """Let the database go."""
        self._engine.dispose()

    def rows(
        self, column: str, start: datetime | None, end: datetime | None, rows: int, order: tuple[str, ...] = ()
    ) -> Generator[pa.Table]:
        """Rows with ``start <= column < end``, of one state of the database where it isolates readers, as tables of
        about `rows` rows."""
        given = self.table.columns
        query = self._sql.select(*(given[name] for name in self.columns))
        if start is not None:
            query = query.where(given[column] >= self._moment(column, start))
        if end is not None:
            query = query.where(given[column] < self._moment(column, end))
        query = query.order_by(*(given[name] for name in order))
        with _told(self._sql), self._engine.connect() as connection:
            options = connection.execution_options(stream_results=True, max_row_buffer=min(rows, 10_000))
            with closing(options.execute(query)) as found:
                while part := found.fetchmany(rows):
                    yield self._table(part)

    def extremes(self, column: str) -> tuple[datetime, datetime] | None:
        """The least and the greatest value of a time column; None where there is no row."""
        given = self.table.columns[column]
        with _told(self._sql), self._engine.connect() as connection:
            first, last = connection.execute(
                self._sql.select(self._sql.func.min(given), self._sql.func.max(given))
            ).one()
        return None if first is None or last is None else (_utc(first), _utc(last))

    def _moment(self, column: str, moment: datetime) -> datetime:
        """A moment as the column compares: without a zone, times are UTC."""
        zoned = getattr(self.table.columns[column].type, "timezone", False)
        return moment if zoned else moment.replace(tzinfo=None)

    def _table(self, rows: Sequence[Any]) -> pa.Table:
        columns = []
        for name, values in zip(self.columns, zip(*rows, strict=True), strict=True):
            kind = self.schema.field(name).type
            try:
                columns.append(_column(list(values), kind))
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise InvalidInputError(
                    f"column {name!r} of the database does not fit the archive's {kind}: {error}", kind="invalid-rows"
                ) from error
        return pa.table(columns, names=self.columns)


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Values as a driver gives them, in the archive's type."""
    array = pa.array(values)
    if pa.types.is_timestamp(kind) and pa.types.is_timestamp(array.type):
        # Without a zone on either side, times are UTC on that side.
        if kind.tz and array.type.tz is None:
            array = array.cast(pa.timestamp(array.type.unit, kind.tz))
        elif array.type.tz and kind.tz is None:
            array = array.cast(pa.timestamp(array.type.unit, "UTC")).cast(pa.timestamp(array.type.unit))
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), kind)
    return array.cast(kind)


@contextmanager
def _told(sqlalchemy: Any) -> Iterator[None]:
    """A database that does not answer, as an error of this package."""
    try:
        yield
    except (sqlalchemy.exc.OperationalError, sqlalchemy.exc.InterfaceError) as error:
        reason = str(error.orig or error).strip().splitlines()[0]
        raise UnavailableError(f"the database failed: {reason}; run the command again", kind="database") from error


def _plain(url: str) -> str:
    """A URL without user, password and settings: batches are named by it."""
    return re.sub(r"//[^/@]*@", "//", url).split("?")[0]


def _utc(moment: Any) -> datetime:
    if not isinstance(moment, datetime):
        raise InvalidInputError(
            f"the database has {moment!r} for a modification time: sync needs a column of timestamps",
            kind="invalid-request",
        )
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


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
    """Copy what has changed in a table of jobs since the last sync, by the version column of the archive.

    A state is stored exactly once, however often it is read: states that the archive has, of the same id and version,
    are left out, and what a sync that was cut off left half written is cleared away first. Rows that were committed in
    the database later than their modification time says are found as long as they are not older than the overlap. One
    sync of a table at a time; a second one ends the first.

    Parameters
    ----------
    jobs : Jobs
        Where to; created with ``version=``, the column of modification times.
    database : str
        SQLAlchemy URL: ``postgresql+psycopg://user@host/production``.
    table : str
        The table, perhaps with its schema: ``jobs`` or ``panda.jobs``. Its columns are those of the archive by name;
        others are passed over, and those it lacks stay null.
    overlap : str or timedelta
        How far before the last sync's end reading begins. Longer than the longest transaction of the database, and its
        clocks' differences.
    since : datetime, optional
        Begin here instead, to read a period again.
    batch_rows : int
        Rows of one batch.
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
        mark = _clear_and_mark(dataset, source.name)
        start = since if since is not None else None if mark is None else mark - timedelta(seconds=overlap_s)
        rows = seen = batches = 0
        until = mark
        with closing(source.rows(version, start, None, batch_rows, (version, jobs.id))) as parts:
            for part in parts:
                seen += part.num_rows
                first, last = (_moment_of(part[version], place) for place in (0, -1))
                fresh = _unknown(dataset, part, jobs.id, version)
                if fresh.num_rows:
                    key = f"sync:{source.name}:{_us(first)}:{_us(last)}:{time.time_ns()}"
                    rows += dataset.write(fresh, batch=key).rows
                    batches += 1
                until = last if until is None else max(until, last)
                if progress is not None:
                    progress(seen, last)
    finally:
        source.close()
    return SyncReport(rows, seen, batches, start, until, time.monotonic() - began)


def _clear_and_mark(dataset: Dataset, source: str) -> datetime | None:
    """Clears away what a sync that was cut off left, and returns how far the others came."""
    mark: int | None = None
    prefix = f"sync:{source}:"
    for batch in dataset.batches():
        if batch.key is None or not batch.key.startswith(prefix):
            continue
        if not batch.finished:
            dataset.remove_batch(batch.key)
            continue
        last = int(batch.key.rsplit(":", 2)[1])
        mark = last if mark is None else max(mark, last)
    return None if mark is None else _EPOCH + timedelta(microseconds=mark)


def _moment_of(column: pa.ChunkedArray, place: int) -> datetime:
    value = column[place].as_py()
    if value is None:
        raise InvalidInputError(
            "the database has jobs without a modification time, which no sync can follow: give them one",
            kind="invalid-rows",
        )
    return _utc(value)


def _us(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _unknown(dataset: Dataset, part: pa.Table, id: str, version: str) -> pa.Table:
    """The rows whose state the archive does not have."""
    ids = pc.unique(part[id])
    known = dataset.read(ids=ids.combine_chunks() if isinstance(ids, pa.ChunkedArray) else ids, columns=[id, version],
                         history=True).to_arrow()  # fmt: skip
    if known.num_rows == 0:
        return part
    return part.filter(pa.array(~np.isin(_states(part, id, version), _states(known, id, version))))


def _states(table: pa.Table, id: str, version: str) -> Any:
    """Id and modification time of each row, as one value to compare."""
    ticks = table[version].cast(pa.timestamp("us", table[version].type.tz)).cast(pa.int64())
    states = np.empty(table.num_rows, dtype=[("id", "int64"), ("ticks", "int64")])
    states["id"] = table[id].cast(pa.int64()).to_numpy()
    states["ticks"] = pc.fill_null(ticks, np.iinfo("int64").min).to_numpy()
    return states
