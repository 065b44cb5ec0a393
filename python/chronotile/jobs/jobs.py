"""Jobs: a dataset with the questions that are asked of finished jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from chronotile import cells, intervals, scanning, times
from chronotile.archive import Archive
from chronotile.bounds import UNBOUNDED, Bounds
from chronotile.counting import count_equal
from chronotile.dataset import Dataset
from chronotile.errors import InvalidInputError
from chronotile.hints import name_hint
from chronotile.jobs.percentiles import percentiles
from chronotile.predicates import Condition, Where, listed
from chronotile.reports import IndexUse, WriteReport
from chronotile.result import ReadResult

__all__ = ["Jobs", "create", "open"]

Days = Any
"""Whole days, UTC: a date (or ISO 8601 text), a month (``"2026-01"``), a pair of the first and the last, or a number of
days up to today."""

_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}


def create(
    archive: Archive,
    name: str = "jobs",
    *,
    schema: Any,
    id: str = "job_id",
    time: str = "submitted",
    version: str | None = None,
    id_bucket: int = 100,
    window: str | timedelta = "1d",
    slice: int | str | timedelta | None = None,
    retention: str | timedelta | None = None,
    indexes: Iterable[str | Iterable[str]] = (),
    exist_ok: bool = False,
) -> Jobs:
    """Create an archive of jobs: one dataset, in which the newest state of a job wins and its earlier ones stay
    readable.

    Parameters
    ----------
    archive : Archive
        Where.
    name : str
        Name of the dataset.
    schema : schema, table or dict
        As for :meth:`chronotile.Archive.create`.
    id : str
        The column of job ids, integers.
    time : str
        The column by which jobs are filed in days: one that does not change while a job lives, such as its submission.
        States of a job with other times are merged correctly too, but indexes help less.
    version : str, optional
        The column that orders the states of a job, such as its modification time; by default the time of writing.
    id_bucket : int
        Jobs of so many consecutive ids are kept together.
    window : str or timedelta
        What indexes are built for, one by one.
    slice, retention
        As for :meth:`chronotile.Archive.create`.
    indexes : iterable of column names, or of lists of them
        Indexes to define; see :meth:`chronotile.Dataset.create_index`.
    exist_ok : bool
        Open the dataset if it exists with the same definition; indexes that it lacks are added.
    """
    dataset = archive.create(
        name, schema=schema, cell=cells.id_bucket(id, id_bucket), time=time, window=window, slice=slice, id=[id],
        merge="latest", version=version, retention=retention, exist_ok=exist_ok,
    )  # fmt: skip
    known = {index.columns for index in dataset.indexes()}
    for wanted in indexes:
        columns = (wanted,) if isinstance(wanted, str) else tuple(wanted)
        if columns not in known:
            dataset.create_index(columns)
    return Jobs(dataset)


def open(archive: Archive, name: str = "jobs") -> Jobs:
    """Open an archive of jobs, or any dataset with integer ids.

    Raises
    ------
    DatasetNotFoundError
        When there is no such dataset.
    InvalidInputError
        The dataset does not have exactly one integer id column.
    """
    return Jobs(archive.dataset(name))


class Jobs:
    """Finished jobs of a batch system.

    Every question takes `start` and `end` or `days`, conditions as keywords (``user="ann"``, ``status=["failed",
    "killed"]``: equal to the value, or to one of several) and as `where` (see :meth:`chronotile.Dataset.read`).
    """

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._check_id()

    def _check_id(self) -> None:
        dataset = self._dataset
        if len(dataset.id) != 1 or "int" not in dataset.column_types[dataset.id[0]]:
            raise InvalidInputError(
                f"dataset {dataset.name} has id columns {', '.join(dataset.id) or '(none)'}: an archive of "
                "jobs needs exactly one integer id column",
                kind="invalid-request",
            )

    def __repr__(self) -> str:
        return f"<Jobs {self._dataset.name}: {len(self._dataset.column_types)} columns>"

    @property
    def dataset(self) -> Dataset:
        """The dataset: indexes, consolidation, retention and verification are its own."""
        return self._dataset

    @property
    def id(self) -> str:
        """The column of job ids."""
        return self._dataset.id[0]

    def refresh(self) -> None:
        """Look for columns that another process added.

        Raises
        ------
        DatasetNotFoundError
            The dataset was dropped.
        """
        self._dataset.refresh()
        self._check_id()

    # ------------------------------------------------------------------ rows

    def write(self, data: Any, batch: str | None = None, *, replace: bool = False) -> WriteReport:
        """Store states of jobs; as :meth:`chronotile.Dataset.write`."""
        return self._dataset.write(data, batch, replace=replace)

    def get(self, ids: Any, *, columns: Iterable[str] | None = None, history: bool = False) -> ReadResult:
        """Jobs by id, one or thousands, whenever they ran.

        Parameters
        ----------
        ids : int, list or array
            Ids. Unknown ones are left out of the result.
        columns : iterable of str, optional
            Columns to return; by default all.
        history : bool
            Return every state of each job, not only the newest.
        """
        return self._dataset.read(ids=ids, columns=columns, history=history)

    def find(
        self,
        *,
        columns: Iterable[str] | None = None,
        history: bool = False,
        start: times.Moment = None,
        end: times.Moment = None,
        days: Days = None,
        where: Where = None,
        **equal: Any,
    ) -> ReadResult:
        """Jobs by period and condition, as a stream: ``find(user="ann", cloud=["cern", "bnl"], status="failed",
        days=5)``.

        Raises
        ------
        InvalidInputError
            A column that does not exist, a value that does not fit it.
        """
        place = self._place(start=start, end=end, days=days, where=where, **equal)
        return self._dataset.read(columns=columns, history=history, **place)

    def count(
        self,
        *,
        start: times.Moment = None,
        end: times.Moment = None,
        days: Days = None,
        where: Where = None,
        **equal: Any,
    ) -> int:
        """Number of jobs that :meth:`find` would return; from an index alone where one has all columns of the
        conditions."""
        return self._dataset.count(**self._place(start=start, end=end, days=days, where=where, **equal))

    def explain(
        self,
        *,
        by: str | Iterable[str] | None = None,
        start: times.Moment = None,
        end: times.Moment = None,
        days: Days = None,
        where: Where = None,
        **equal: Any,
    ) -> IndexUse:
        """How :meth:`find` uses an index, or with `by` (perhaps empty) how :meth:`count` and :meth:`group_by` do."""
        return self._dataset.explain(by=by, **self._place(start=start, end=end, days=days, where=where, **equal))

    # ------------------------------------------------------------------ summaries

    def group_by(
        self,
        columns: str | Iterable[str],
        *,
        aggregates: Mapping[str, str | Iterable[str]] | None = None,
        start: times.Moment = None,
        end: times.Moment = None,
        days: Days = None,
        where: Where = None,
        bounds: Bounds = UNBOUNDED,
        **equal: Any,
    ) -> pa.Table:
        """Jobs by the values of columns, the most frequent first.

        Parameters
        ----------
        columns : str or iterable of str
            Columns whose distinct values, taken together, get one row each.
        aggregates : dict, optional
            Functions of further columns: ``{"run_s": ["sum", "mean"], "memory": "max"}``; ``sum``, ``mean``, ``min``,
            ``max``, ``stddev``, ``count_distinct``. Their columns are read; counts alone may come from an index.
        bounds : Bounds
            Of what is held: of a service, whose memory many share.

        Returns
        -------
        pyarrow.Table
            The columns, ``count``, then ``COLUMN_FUNCTION`` of each aggregate; null where a group has no values.
        """
        by = [columns] if isinstance(columns, str) else list(columns)
        place = self._place(start=start, end=end, days=days, where=where, **equal)
        if not aggregates:
            return _most_first(self._dataset.count_by(by, groups_max=bounds.groups_max, **place), by)
        functions = _functions(aggregates)
        wanted = list(dict.fromkeys([*by, *(column for column, _ in functions)]))
        rows = self._held(wanted, place, bounds)
        found = rows.group_by(by).aggregate([([], "count_all"), *functions])
        bounds.check_groups(found.num_rows)
        renamed = found.rename_columns(["count" if name == "count_all" else name for name in found.column_names])
        order = [*by, "count", *(f"{column}_{function}" for column, function in functions)]
        return _most_first(renamed.select(order), by)

    def _held(self, columns: list[str], place: Mapping[str, Any], bounds: Bounds) -> pa.Table:
        """All rows, of a few columns."""
        rows = self._dataset.read(columns=columns, **place)
        schema = self._dataset.schema
        parts, held = [pa.schema([schema.field(name) for name in columns]).empty_table()], 0
        for batch in rows.batches():
            held += batch.nbytes
            # The groups of rows are told by a number for each.
            bounds.hold(held + 8 * (sum(part.num_rows for part in parts) + batch.num_rows))
            parts.append(pa.Table.from_batches([batch]))
        return pa.concat_tables(parts)

    def top(self, columns: str | Iterable[str], n: int = 10, **question: Any) -> pa.Table:
        """The `n` most frequent values of columns, with their ``share`` of all jobs that meet the conditions.

        `question` as for :meth:`count`.
        """
        if n < 1:
            raise InvalidInputError(f"n={n} is out of range: use at least 1", kind="invalid-request")
        found = self.group_by(columns, **question)
        total = pc.sum(found["count"]).as_py() or 0
        best = found.slice(0, n)
        share = pc.divide(pc.cast(best["count"], pa.float64()), float(max(total, 1)))
        return best.append_column("share", share)

    def histogram(
        self,
        interval: str | timedelta = "1d",
        *,
        by: str | Iterable[str] = (),
        start: times.Moment = None,
        end: times.Moment = None,
        days: Days = None,
        where: Where = None,
        **equal: Any,
    ) -> pa.Table:
        """Jobs over time, in intervals counted from 1970 (weeks begin on Thursdays) or by the calendar, empty ones left
        out.

        Whole numbers of windows come from an index where one has all columns of the question.

        Parameters
        ----------
        interval : str or timedelta
            ``"6h"``, ``"1d"``; ``"1mo"``, ``"3mo"`` and ``"1y"`` are months, quarters and years of the calendar, UTC.
        by : str or iterable of str
            Columns whose values are counted by themselves.

        Returns
        -------
        pyarrow.Table
            ``start`` of each interval, the columns of `by`, ``count``; in order of time.
        """
        names = [by] if isinstance(by, str) else list(by)
        width = intervals.interval(interval)
        window_s = _seconds(self._dataset.window, "window")
        place = self._place(start=start, end=end, days=days, where=where, **equal)
        axis = self._dataset.time
        if axis.format != "timestamp":
            raise InvalidInputError(
                f"histogram needs a timestamp or date column, but {axis.column} is a float column of days",
                kind="invalid-request",
            )
        if width.holds_whole(window_s):
            counted = self._dataset.count_by(names, by_window=True, **place).rename_columns(["start", *names, "count"])
        else:
            wanted = [axis.column, *names]
            rows = self._dataset.read(columns=list(dict.fromkeys(wanted)), **place)
            schema = pa.schema([self._dataset.schema.field(name) for name in wanted])
            tables = (pa.table([batch[name] for name in wanted], names=wanted) for batch in rows.batches())
            counted = count_equal(tables, schema).rename_columns(["start", *names, "count"])
        moments = counted["start"]
        # Dates become timestamps, which intervals below a day need.
        floored = width.starts(moments.cast(pa.timestamp("s")) if pa.types.is_date(moments.type) else moments)
        summed = counted.set_column(0, "start", floored).group_by(["start", *names]).aggregate([("count", "sum")])
        summed = summed.rename_columns([*summed.column_names[:-1], "count"]).select(["start", *names, "count"])
        return summed.sort_by([(name, "ascending") for name in ["start", *names]])

    def percentiles(
        self,
        duration: str | tuple[str, str],
        q: Iterable[float] = (50, 90, 99),
        *,
        by: str | Iterable[str] = (),
        start: times.Moment = None,
        end: times.Moment = None,
        days: Days = None,
        where: Where = None,
        **equal: Any,
    ) -> pa.Table:
        """Percentiles of a duration, exact.

        Rows are counted while they are read: memory grows with the number of distinct durations in all groups, not
        with the number of jobs.

        Parameters
        ----------
        duration : str or pair of str
            A column of numbers, or two time columns: from the first to the second, in seconds. Nulls are left out.
        q : iterable of float
            Percentiles, 0 to 100; between two values interpolated linearly (Hyndman and Fan's definition 7).
        by : str or iterable of str
            Columns whose values, taken together, get one row each.

        Returns
        -------
        pyarrow.Table
            The columns of `by`, ``count``, then ``pQ`` (float64) of each percentile.
        """
        names = [by] if isinstance(by, str) else list(by)
        wanted = [float(value) for value in q]
        if not wanted or not all(0 <= value <= 100 for value in wanted):
            raise InvalidInputError(f"invalid percentiles {wanted}: give numbers from 0 to 100", kind="invalid-request")
        pair = (duration, duration) if isinstance(duration, str) else duration
        place = self._place(start=start, end=end, days=days, where=where, **equal)
        columns = list(dict.fromkeys([*names, *pair]))
        rows = self._dataset.read(columns=columns, **place)
        schema = pa.schema([self._dataset.schema.field(name) for name in columns])
        return percentiles(rows.batches(), schema, duration, wanted, names)

    # ------------------------------------------------------------------ arguments

    def _place(
        self, *, start: times.Moment, end: times.Moment, days: Days, where: Where, **equal: Any
    ) -> dict[str, Any]:
        if days is not None:
            if start is not None or end is not None:
                raise InvalidInputError("give either days, or start and end", kind="invalid-request")
            start, end = _period(days)
        types = self._dataset.column_types
        conditions = _conditions(where, types)
        for column, value in equal.items():
            if column not in types:
                hint = name_hint(column, list(types))
                raise InvalidInputError(f"unknown column {column!r}{hint}", kind="invalid-request")
            several = isinstance(value, Iterable) and not isinstance(value, str | bytes)
            conditions.append((column, "in" if several else "==", _listed(value) if several else value))
        return {"start": start, "end": end, "where": conditions}


def _listed(values: Iterable[Any]) -> list[Any]:
    return values.to_pylist() if isinstance(values, pa.Array | pa.ChunkedArray) else list(values)


def _conditions(where: Where, types: Mapping[str, str]) -> list[Condition]:
    return listed(where, types)  # invalid conditions are rejected where they are parsed


def _period(days: Days) -> tuple[datetime, datetime]:
    """Half-open period of whole days."""
    if isinstance(days, int) and not isinstance(days, bool):
        if days < 1:
            raise InvalidInputError(f"days={days} is out of range: use at least 1", kind="invalid-time")
        end = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
        return _later(end, -days), end
    first, last = days if isinstance(days, tuple | list) and len(days) == 2 else (days, days)
    begin, finish = _span(first)[0], _span(last)[1]
    if finish <= begin:
        raise InvalidInputError(
            f"the period of days ends at {finish:%Y-%m-%d}, before it starts at {begin:%Y-%m-%d}", kind="invalid-time"
        )
    return begin, finish


def _later(day: datetime, days: int) -> datetime:
    try:
        return day + timedelta(days=days)
    except OverflowError:
        message = f"{days} days from {day:%Y-%m-%d} are out of range for dates"
        raise InvalidInputError(message, kind="invalid-time") from None


def _span(day: Any) -> tuple[datetime, datetime]:
    """The beginning of a day or a month, and of the next one."""
    is_month = isinstance(day, str) and len(day) == len("2026-01")
    if isinstance(day, str):
        try:
            day = date.fromisoformat(f"{day}-01" if is_month else day)
        except ValueError:
            day = None
    if isinstance(day, datetime) or not isinstance(day, date):
        raise InvalidInputError(
            'days takes a date such as "2026-01-31", a month such as "2026-01", a pair of the first and the last, or a '
            "number of days up to today",
            kind="invalid-time",
        )
    begin = datetime(day.year, day.month, day.day, tzinfo=UTC)
    return begin, _later(_later(begin, 31).replace(day=1) if is_month else begin, 0 if is_month else 1)


def _seconds(text: str, what: str) -> int:
    seconds = scanning.length_of_time(text, _UNIT_SECONDS)
    if not seconds:
        message = f'{what} is {scanning.shown(text)}: give text such as "1d", "6h" or "15m"'
        raise InvalidInputError(message, kind="invalid-time")
    return seconds


def _functions(aggregates: Mapping[str, str | Iterable[str]]) -> list[tuple[str, str]]:
    allowed = ("sum", "mean", "min", "max", "stddev", "count_distinct")
    wanted = []
    for column, given in aggregates.items():
        for function in [given] if isinstance(given, str) else given:
            if function not in allowed:
                raise InvalidInputError(
                    f"unknown aggregate {function!r} of {column!r}: use one of {', '.join(allowed)}",
                    kind="invalid-request",
                )
            wanted.append((column, function))
    return wanted


def _most_first(table: pa.Table, by: list[str]) -> pa.Table:
    return table.sort_by([("count", "descending"), *((name, "ascending") for name in by)])
