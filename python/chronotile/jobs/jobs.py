"""Finished jobs of a batch system: look-up by id, searches, counts and percentiles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from chronotile import _native, arguments, cells, intervals, scanning, times
from chronotile.archive import Archive
from chronotile.bounds import UNBOUNDED, Bounds
from chronotile.counting import count_equal, refuse_names
from chronotile.dataset import Dataset
from chronotile.errors import InvalidInputError
from chronotile.hints import name_hint
from chronotile.jobs.aggregates import FUNCTIONS, aggregate
from chronotile.jobs.percentiles import percentiles
from chronotile.predicates import Where, equalities, listed
from chronotile.reports import IndexUse, WriteReport
from chronotile.result import ReadResult

__all__ = ["Jobs", "create", "open"]

Days = Any
"""Whole days in UTC: a date or ISO 8601 text, a month (``"2026-01"``), a pair of the first and the last, or the number
of days up to today."""


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
    """Create an archive of jobs: a dataset that returns the newest state of each job and keeps earlier states readable.

    Parameters
    ----------
    archive : Archive
        The archive in which the dataset is created.
    name : str
        Name of the dataset.
    schema : schema, table or dict
        As for :meth:`chronotile.Archive.create`.
    id : str
        Column of job ids, integers.
    time : str
        Time column. Choose one that does not change during the life of a job, such as its submission: states of a job
        with different times are merged correctly too, but indexes help less.
    version : str, optional
        Column that orders the states of a job, such as its modification time; by default the time of writing.
    id_bucket : int
        Number of consecutive ids that are stored together.
    window : str or timedelta
        Length of a window. Indexes are built window by window.
    slice, retention
        As for :meth:`chronotile.Archive.create`.
    indexes : iterable of column names, or of lists of them
        Indexes to define; see :meth:`chronotile.Dataset.create_index`.
    exist_ok : bool
        Open the dataset if it exists with the same definition, and add missing indexes.
    """
    archive, name = _archive(archive), arguments.text(name, "name")
    id, version = arguments.text(id, "id"), None if version is None else arguments.text(version, "version")
    id_bucket, exist_ok = arguments.integer(id_bucket, "id_bucket"), arguments.flag(exist_ok, "exist_ok")
    wanted_indexes = [
        tuple(arguments.name_list(wanted, "each of indexes"))
        for wanted in arguments.instance(indexes, Iterable, "indexes", "a list of column names, or of lists of them")
    ]
    with _columns_named():
        dataset = archive.create(
            name, schema=schema, cell=cells.id_bucket(id, id_bucket), time=time, window=window, slice=slice, id=[id],
            merge="latest", version=version, retention=retention, exist_ok=exist_ok,
        )  # fmt: skip
    known = {index.columns for index in dataset.indexes()}
    for columns in wanted_indexes:
        if columns not in known:
            dataset.create_index(columns)
    return Jobs(dataset)


@contextmanager
def _columns_named() -> Iterator[None]:
    """Name in errors the argument with the unknown column."""
    try:
        yield
    except InvalidInputError as error:
        role = str(error).partition(" ")[0]
        argument = {"cell": "id", "id": "id", "time": "time", "version": "version"}.get(role)
        if argument is None or "is not in the schema" not in str(error):
            raise
        text = str(error).replace("cell column", "id column", 1)
        advice = f"name the column with {argument}= (--{argument})"
        raise InvalidInputError(f"{text}: {advice}", kind=error.kind, **error.details) from None


def open(archive: Archive, name: str = "jobs") -> Jobs:
    """Open an archive of jobs, or any dataset with integer ids.

    Raises
    ------
    DatasetNotFoundError
        The dataset does not exist.
    InvalidInputError
        The dataset does not have exactly one integer id column.
    """
    return Jobs(_archive(archive).dataset(arguments.text(name, "name")))


def _archive(given: object) -> Archive:
    archive: Archive = arguments.instance(given, Archive, "archive", "an open archive: chronotile.open(...)")
    return archive


class Jobs:
    """Finished jobs of a batch system.

    Methods that take `**question` select jobs with the following arguments:

    start, end : time, optional
        Half-open period, as for :meth:`chronotile.Dataset.read`.
    days : date, str, pair or int, optional
        Whole days in UTC instead of `start` and `end`: a date or a month (``"2026-01"``), the first and the last of
        several, or the number of days up to today.
    where : condition or iterable of conditions, optional
        As for :meth:`chronotile.Dataset.read`.
    any other keyword
        The column equals the value, or one of several values: ``user="ann"``, ``status=["failed", "killed"]``.

    They raise :class:`chronotile.InvalidInputError` for an unknown column, a value that does not fit its column, or an
    invalid period.
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
        """The dataset, with its methods for indexes, consolidation, retention and verification."""
        return self._dataset

    @property
    def id(self) -> str:
        """Name of the column of job ids."""
        return self._dataset.id[0]

    def refresh(self) -> None:
        """Read the definition again, with columns that another process added.

        Raises
        ------
        DatasetNotFoundError
            The dataset was dropped.
        """
        self._dataset.refresh()
        self._check_id()

    # ------------------------------------------------------------------ rows

    def write(self, data: Any, batch: str | None = None, *, replace: bool = False) -> WriteReport:
        """Store states of jobs. Arguments, result and errors are those of :meth:`chronotile.Dataset.write`."""
        return self._dataset.write(data, batch, replace=replace)

    def get(self, ids: Any, *, columns: Iterable[str] | None = None, history: bool = False) -> ReadResult:
        """Read jobs by id, one or thousands, of any time.

        Parameters
        ----------
        ids : int, list or array
            Ids. The result leaves out unknown ids.
        columns : iterable of str, optional
            Columns to return; by default all.
        history : bool
            Return every state of each job, not only the newest.
        """
        return self._dataset.read(ids=ids, columns=columns, history=history)

    def find(self, *, columns: Iterable[str] | None = None, history: bool = False, **question: Any) -> ReadResult:
        """Stream jobs by period and condition: ``find(user="ann", cloud=["cern", "bnl"], status="failed", days=5)``.

        Parameters
        ----------
        columns : iterable of str, optional
            Columns to return; by default all.
        history : bool
            Return every state of each job, not only the newest.
        **question
            Period and conditions; see the class.
        """
        return self._dataset.read(columns=columns, history=history, **self._selection(**question))

    def count(self, **question: Any) -> int:
        """Count the jobs that :meth:`find` would return. An index that has all columns of the conditions is enough."""
        return self._dataset.count(**self._selection(**question))

    def explain(self, *, by: str | Iterable[str] | None = None, **question: Any) -> IndexUse:
        """Explain how :meth:`find` uses an index, or with `by`, how :meth:`count` (empty) and :meth:`group_by` do."""
        return self._dataset.explain(by=by, **self._selection(**question))

    # ------------------------------------------------------------------ summaries

    def group_by(
        self,
        columns: str | Iterable[str],
        *,
        aggregates: Mapping[str, str | Iterable[str]] | None = None,
        bounds: Bounds = UNBOUNDED,
        **question: Any,
    ) -> pa.Table:
        """Count and aggregate jobs by the values of columns, the most frequent first.

        Memory grows with the number of groups, and for ``count_distinct`` with the number of distinct values.

        Parameters
        ----------
        columns : str or iterable of str
            Each distinct combination of their values is a row of the result.
        aggregates : dict, optional
            Functions of other columns: ``{"run_s": ["sum", "mean"], "memory": "max"}``; ``sum``, ``mean``, ``min``,
            ``max``, ``stddev``, ``count_distinct``. These columns are read; counts alone may come from an index.
        bounds : Bounds
            Limits of memory and groups, for a service.
        **question
            Period and conditions; see the class.

        Returns
        -------
        pyarrow.Table
            The columns, ``count``, then ``COLUMN_FUNCTION`` of each aggregate; null where a group has no values.
        """
        by = arguments.name_list(columns, "columns")
        selection = self._selection(**question)
        if not aggregates:
            return _most_first(self._dataset.count_by(by, groups_max=bounds.groups_max, **selection), by)
        functions = _functions(aggregates)
        refuse_names(by, ["count", *(f"{column}_{function}" for column, function in functions)])
        wanted = list(dict.fromkeys([*by, *(column for column, _ in functions)]))
        rows = self._dataset.read(columns=wanted, **selection)
        schema = self._dataset.schema
        found = aggregate(rows.batches(), pa.schema([schema.field(name) for name in wanted]), by, functions, bounds)
        return _most_first(found, by)

    def top(self, columns: str | Iterable[str], n: int = 10, **question: Any) -> pa.Table:
        """Return the `n` most frequent values of columns, as :meth:`group_by` does, and their ``share`` of all selected
        jobs (0 to 1)."""
        n = arguments.integer(n, "n")
        if n < 1:
            raise InvalidInputError(f"n={n} is out of range: use at least 1", kind="invalid-request")
        refuse_names(arguments.name_list(columns, "columns"), ["count", "share"])
        found = self.group_by(columns, **question)
        best = found.slice(0, n)
        share = pc.divide(pc.cast(best["count"], pa.float64()), pc.cast(pc.sum(found["count"]), pa.float64()))
        return best.append_column("share", share)

    def histogram(
        self,
        interval: str | timedelta = "1d",
        *,
        by: str | Iterable[str] = (),
        **question: Any,
    ) -> pa.Table:
        """Count jobs over time, in intervals counted from 1970 (weeks begin on Thursdays) or by the calendar. Empty
        intervals are left out.

        An index that has all columns of the question answers intervals of whole windows.

        Parameters
        ----------
        interval : str or timedelta
            ``"6h"``, ``"1d"``; ``"1mo"``, ``"3mo"`` and ``"1y"`` are months, quarters and years of the calendar, UTC.
        by : str or iterable of str
            Count each distinct combination of their values separately.
        **question
            Period and conditions; see the class.

        Returns
        -------
        pyarrow.Table
            ``start`` of each interval, the columns of `by`, ``count``; in order of time.
        """
        names = arguments.name_list(by, "by")
        refuse_names(names, ["start", "count"])
        selection = self._selection(**question)
        width = intervals.interval(interval)
        window_s = _seconds(self._dataset.window, "window")
        axis = self._dataset.time
        if axis.format != "timestamp":
            raise InvalidInputError(
                f"histogram needs a timestamp or date column, but {axis.column} is a float column of days",
                kind="invalid-request",
            )
        if width.holds_whole(window_s):
            counted = self._dataset.count_by(names, by_window=True, **selection).rename_columns(
                ["start", *names, "count"]
            )
        else:
            wanted = [axis.column, *names]
            rows = self._dataset.read(columns=list(dict.fromkeys(wanted)), **selection)
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
        **question: Any,
    ) -> pa.Table:
        """Compute exact percentiles of a duration.

        Memory grows with the number of distinct durations in all groups, not with the number of jobs.

        Parameters
        ----------
        duration : str or pair of str
            A column of numbers, or two time columns: seconds from the first to the second. Nulls are ignored.
        q : iterable of float
            Percentiles, 0 to 100, interpolated linearly between two values (Hyndman and Fan's definition 7).
        by : str or iterable of str
            Each distinct combination of the values of these columns is a row of the result.
        **question
            Period and conditions; see the class.

        Returns
        -------
        pyarrow.Table
            The columns of `by`, ``count``, then ``pQ`` (float64) of each percentile.
        """
        names = arguments.name_list(by, "by")
        given = arguments.instance(q, Iterable, "q", "a list of numbers")
        wanted = [arguments.number(value, "each of q") for value in given]
        if not wanted or not all(0 <= value <= 100 for value in wanted):
            raise InvalidInputError(f"invalid percentiles {wanted}: give numbers from 0 to 100", kind="invalid-request")
        refuse_names(names, ["count", *(f"p{value:g}" for value in wanted)])
        pair = arguments.name_list(duration, "duration")
        if not isinstance(duration, str) and len(pair) != 2:
            raise InvalidInputError(
                f"duration has {len(pair)} columns: give one, or a pair of time columns", kind="invalid-request"
            )
        columns = list(dict.fromkeys([*names, *pair]))
        rows = self._dataset.read(columns=columns, **self._selection(**question))
        schema = pa.schema([self._dataset.schema.field(name) for name in columns])
        return percentiles(rows.batches(), schema, duration, wanted, names)

    # ------------------------------------------------------------------ arguments

    def _selection(
        self, *, start: times.Moment = None, end: times.Moment = None, days: Days = None, where: Where = None,
        **equal: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """Convert a question to arguments of :meth:`chronotile.Dataset.read`."""
        if days is not None:
            if start is not None or end is not None:
                raise InvalidInputError("give either days, or start and end", kind="invalid-request")
            start, end = _period(days)
        types = self._dataset.column_types
        for column in equal:
            if column not in types:
                hint = name_hint(column, list(types))
                raise InvalidInputError(f"unknown column {column!r}{hint}", kind="invalid-request")
        return {"start": start, "end": end, "where": listed(where, types) + equalities(equal)}


def _period(days: Days) -> tuple[datetime, datetime]:
    """Convert whole days to a half-open period."""
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
    """Return the start of a day or month, and of the next one."""
    given = day
    is_month = isinstance(day, str) and len(day) == len("2026-01")
    if isinstance(day, str):
        try:
            day = date.fromisoformat(f"{day}-01" if is_month else day)
        except ValueError:
            day = None
    if isinstance(day, datetime) or not isinstance(day, date):
        raise InvalidInputError(
            f'days is {given!r}: give a date such as "2026-01-31", a month such as "2026-01", a pair of the first and '
            "the last, or a number of days up to today",
            kind="invalid-time",
        )
    begin = datetime(day.year, day.month, day.day, tzinfo=UTC)
    return begin, _later(_later(begin, 31).replace(day=1) if is_month else begin, 0 if is_month else 1)


def _seconds(text: str, what: str) -> int:
    seconds = scanning.length_of_time(text)
    if not seconds:
        message = f'{what} is {scanning.shown(text)}: give text such as "1d", "6h" or "15m"'
        raise InvalidInputError(message, kind="invalid-time")
    return seconds


def _functions(aggregates: Mapping[str, str | Iterable[str]]) -> list[tuple[str, str]]:
    wanted = []
    if not isinstance(aggregates, Mapping):
        raise InvalidInputError(
            f'aggregates is {aggregates!r}: give functions by column, such as {{"run_s": ["sum", "mean"]}}',
            kind="invalid-request",
        )
    for column, given in aggregates.items():
        for function in [given] if isinstance(given, str) else given:
            if function not in FUNCTIONS:
                near = {"avg": "mean", "average": "mean", "std": "stddev"}.get(function.lower())
                near = near or next(iter(_native.nearest_names(function, list(FUNCTIONS))), None)
                hint = f"did you mean {near}? Use" if near else "use"
                raise InvalidInputError(
                    f"unknown aggregate {function!r} of {column!r}: {hint} one of {', '.join(FUNCTIONS)}",
                    kind="invalid-request",
                )
            wanted.append((column, function))
    return wanted


def _most_first(table: pa.Table, by: list[str]) -> pa.Table:
    return table.sort_by([("count", "descending"), *((name, "ascending") for name in by)])
