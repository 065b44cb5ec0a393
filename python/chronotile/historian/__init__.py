"""Process history on an archive: tags, their values with qualities, and the aggregates of OPC UA Part 13.

>>> import chronotile as ct
>>> from chronotile import historian
>>> h = historian.open(ct.open("memory:"))
>>> tag = h.define("boiler.temperature", unit="degC")
>>> points = {"tag": [tag.name] * 2, "time": ["2026-01-01T00:00", "2026-01-01T00:10"], "value": [80, 90]}
>>> report = h.write(points)
>>> averages = h.aggregate(tag, "2026-01-01", "2026-01-01T00:10", "5m", "TimeAverage")
>>> averages.to_arrow()["value"].to_pylist()
[82.5, 87.5]

Qualities are OPC UA status codes, 32-bit unsigned integers; times are 64-bit nanoseconds since 1970 UTC.
"""

from __future__ import annotations

import os
import threading
import time as clock
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from chronotile import _native, arguments, inputs, optional, times
from chronotile.archive import Archive
from chronotile.archive import open as open_archive
from chronotile.closing import Closing
from chronotile.errors import InvalidInputError
from chronotile.hints import name_list
from chronotile.historian.status import (
    BAD,
    BAD_NO_DATA,
    CALCULATED,
    GOOD,
    INTERPOLATED,
    MULTIPLE_VALUES,
    PARTIAL,
    UNCERTAIN,
    UNCERTAIN_SUB_NORMAL,
    status_code,
    status_text,
)
from chronotile.result import ReadResult

if TYPE_CHECKING:
    from chronotile.historian.remote import RemoteHistorian, _RemoteFilter

__all__ = [
    "AGGREGATES",
    "BAD",
    "BAD_NO_DATA",
    "CALCULATED",
    "GOOD",
    "INTERPOLATED",
    "MULTIPLE_VALUES",
    "PARTIAL",
    "UNCERTAIN",
    "UNCERTAIN_SUB_NORMAL",
    "BufferedWriter",
    "Historian",
    "MaintenanceReport",
    "PointsReport",
    "Tag",
    "compute",
    "connect",
    "open",
    "status_code",
    "status_text",
]

AGGREGATES: tuple[str, ...] = tuple(_native.aggregate_names())
"""Names of all aggregates: the 37 of OPC UA Part 13, ``Percentile``, ``Rate`` and ``Distinct``."""

_AXIS = times.TimeAxis("time")
_INT64_MAX = 2**63 - 1

TagKey = str | int
"""A tag by name or by number."""


@dataclass(frozen=True)
class Tag:
    """Definition of a tag.

    Attributes
    ----------
    name : str
        Unique in the archive.
    number : int
        Fixed; derived from the name unless given.
    unit, description : str
        For display.
    group : str
        Tags of a group share their retention. Fixed.
    data_type : {"float", "integer", "bool", "string"}
        Type of its values. Fixed.
    stepped : bool
        Whether values are constant until the next one, instead of interpolated linearly. Always true for bool tags.
    treat_uncertain_as_bad, percent_good, percent_bad, sloped_extrapolation
        How aggregates treat qualities and gaps, unless a request overrides it; see :meth:`Historian.aggregate`.
    exception_deviation : float or None
        A :class:`BufferedWriter` skips a value that differs from the last stored one by no more than this; 0 skips
        unchanged values; None skips nothing.
    compression_deviation : float or None
        A :class:`BufferedWriter` skips values within this distance of a line through the stored ones (swinging door);
        None for no compression.
    """

    name: str
    number: int
    unit: str = ""
    description: str = ""
    group: str = "main"
    data_type: str = "float"
    stepped: bool = False
    treat_uncertain_as_bad: bool = True
    percent_good: float = 100.0
    percent_bad: float = 100.0
    sloped_extrapolation: bool = False
    exception_deviation: float | None = None
    compression_deviation: float | None = None


@dataclass(frozen=True)
class PointsReport:
    """Report of a write.

    Attributes
    ----------
    points : int
        Points stored; for a batch that was already stored, points found equal.
    duplicates : int
        Points skipped because a later one in the same write has the same tag and time.
    stored : bool
        Whether anything was stored; False if the batch was already stored.
    """

    points: int
    duplicates: int
    stored: bool


@dataclass(frozen=True)
class MaintenanceReport:
    """Report of :meth:`Historian.maintain`: consolidated tiles, tiles with new statistics, hours stored, and skipped
    tiles, each with the reason.
    """

    tiles_consolidated: int
    tiles_summarized: int
    hours: int
    failed: tuple[str, ...] = ()


def open(
    archive: Archive | str | os.PathLike[str],
    *,
    create: bool = True,
    max_future: str | timedelta | None = "1d",
) -> Historian:
    """Open the historian of an archive.

    Parameters
    ----------
    archive : Archive, str or path
        An open archive, or an argument for :func:`chronotile.open`.
    create : bool
        Create the archive and the historian's datasets if they are missing.
    max_future : str, timedelta or None
        Reject points further ahead of this machine's clock: a wrong source clock would otherwise hide newer values.
        None for no limit.

    Raises
    ------
    ArchiveNotFoundError, NotAnArchiveError, UnavailableError
        As :func:`chronotile.open`.
    InvalidInputError
        The archive holds no history, and `create` is False.
    """
    create = arguments.flag(create, "create")
    own = not isinstance(archive, Archive)
    if own and not isinstance(archive, str):
        archive = arguments.instance(archive, os.PathLike, "archive", "an open archive, a URL or a path")
    opened = archive if isinstance(archive, Archive) else open_archive(archive, create=create)
    future_ns = None if max_future is None else times.duration_ns(max_future, "max_future")
    return Historian(opened, _native.Historian.open(opened._native, create, future_ns), own)


def connect(
    url: str, *, token: str | None = None, ca: str | os.PathLike[str] | None = None, timeout: float = 60.0
) -> RemoteHistorian:
    """Connect to a historian served by ``chronotile serve``. It has the same methods as :class:`Historian`.

    Parameters
    ----------
    url : str
        Such as ``http://127.0.0.1:8086``.
    token : str, optional
        Access token. Default: the environment variable ``CHRONOTILE_TOKEN``.
    ca : path, optional
        PEM file of trusted certificates, instead of those of the system.
    timeout : float
        Timeout of each network operation in seconds.

    Raises
    ------
    UnavailableError
        No service answers at the URL.
    AccessDeniedError
        The token is missing, unknown, expired or lacks the role, or the certificate is not trusted.
    """
    from chronotile.historian.remote import RemoteHistorian

    url = arguments.text(url, "url")
    return RemoteHistorian(url, token, ca, timeout)


class Historian(Closing):
    """Tags and their values in an archive. Returned by :func:`open`; a context manager. Thread-safe; many processes may
    open the same archive at once.
    """

    def __init__(self, archive: Archive, native: _native.Historian, own: bool) -> None:
        self._archive = archive
        self._native = native
        self._own = own

    def __repr__(self) -> str:
        return f"<Historian {self._archive.url}{' (closed)' if self._native.closed else ''}>"

    def close(self) -> None:
        """Close the historian, and the archive if it was opened for this historian."""
        self._native.close()
        if self._own:
            self._archive.close()

    @property
    def archive(self) -> Archive:
        """The archive. Points are stored in its datasets ``historian_GROUP_TYPE``, one cell per tag."""
        return self._archive

    # ------------------------------------------------------------------ tags

    def define(self, name: str, **properties: Any) -> Tag:
        """Define a tag, or change its definition. `properties` are the fields of :class:`Tag` except its name; missing
        ones get the default. Number, data type and group are fixed at definition.

        Raises
        ------
        InvalidInputError
            The definition is invalid, or changes a fixed property.
        """
        return self.define_many([{"name": name, **properties}])[0]

    def define_many(self, tags: Iterable[Mapping[str, Any] | Tag]) -> list[Tag]:
        """Define tags, all or none: mappings with the fields of :class:`Tag`, of which only ``name`` is required.

        The first call reads all existing definitions, which takes seconds for a million tags.
        """
        given = arguments.instance(tags, Iterable, "tags", "a list of tags, or of mappings", kind="invalid-tag")
        return _tags(self._native.define([_definition(tag) for tag in given]))

    def tag(self, tag: TagKey) -> Tag:
        """Return a tag by name, with at most one small read; or by number, for which the first call reads all tags.

        Raises
        ------
        TagNotFoundError
            No such tag.
        """
        return _tags(self._native.resolve([_key(tag)]))[0]

    def tags(self, pattern: str = "*", *, limit: int | None = None) -> list[Tag]:
        """Tags whose names match `pattern`, by name: ``*`` matches any characters, ``?`` one character.

        The text before the first wildcard narrows the search to a range of names. A pattern that starts with a wildcard
        is compared with all names. ``*`` alone reads all definitions, in a second or two for a million tags.
        """
        most = _INT64_MAX if limit is None else arguments.integer(limit, "limit")
        return _tags(self._native.tags(arguments.text(pattern, "pattern"), most))

    def refresh(self) -> None:
        """Clear this process's cache of tags, so that changes by other processes are seen at the next use. New tags of
        other processes are found by name without it.
        """
        self._native.refresh()

    # ------------------------------------------------------------------ writing

    def write(
        self,
        points: Any,
        *,
        batch: str | None = None,
        replace: bool = False,
        not_finite: str = "refuse",
    ) -> PointsReport:
        """Store points. They are durable when this returns.

        Parameters
        ----------
        points : table
            Any input of :meth:`chronotile.Dataset.write` with columns ``tag`` (names or numbers), ``time`` (timestamps
            of any unit, or int64 nanoseconds since 1970 UTC), ``value`` and, unless all are Good, ``status`` (OPC UA
            status codes). Points may be in any order, and late. Of points with the same tag and time, the last one
            written counts.
        batch : str, optional
            Batch name: repeating it with the same points stores them once, also after a crash.
        replace : bool
            Whether to replace a stored batch of this name that has other points.
        not_finite : {"refuse", "bad"}
            How to handle NaN, infinite and null values that are not Bad: reject the whole write, or store them as
            Bad_SensorFailure without a value.

        Raises
        ------
        TagNotFoundError
            A tag is not defined. Nothing was stored.
        InvalidInputError
            A value does not match its tag's type or is not finite, or a time is too far ahead; the message names the
            row. Nothing was stored.
        """
        if not_finite not in ("refuse", "bad"):
            raise InvalidInputError(f'invalid not_finite={not_finite!r}: use "refuse" or "bad"', kind="invalid-setting")
        batch = None if batch is None else arguments.text(batch, "batch")
        replace = arguments.flag(replace, "replace")
        done = self._native.write(
            inputs.rows(_point_columns(points), _POINT_TYPES), batch, replace, not_finite == "bad"
        )
        return PointsReport(*done)

    def buffered(self, *, points: int = 50_000, seconds: float = 5.0) -> BufferedWriter:
        """Return a writer that collects points and stores them together: see :class:`BufferedWriter`."""
        return BufferedWriter(self, points, seconds)

    def _filtered(self, filter_: _native.PointFilter, rows: Any) -> list[_native.Table]:
        return self._native.filter(filter_, rows)

    def delete(self, tag: TagKey, start: times.Moment, end: times.Moment) -> int:
        """Delete a tag's points in ``[start, end)``; return their number.

        Each point is hidden by a newer entry, so only retention frees storage. A point written later at the same time
        is visible again.
        """
        return self._native.delete(_key(tag), _ns(start, "start"), _ns(end, "end"))

    # ------------------------------------------------------------------ reading

    def raw(
        self,
        tags: TagKey | Iterable[TagKey],
        start: times.Moment,
        end: times.Moment,
        *,
        bounds: bool = False,
    ) -> ReadResult:
        """The points of tags in ``[start, end)``, by tag as given, then time: columns tag, time, value, status.

        With `bounds`, also the last point before the range, unless a point is at its start, and the first at or after
        its end. Points are streamed. The value column has the tags' type, float64 for mixed numbers, or text for any
        mix with text.
        """
        bounds = arguments.flag(bounds, "bounds")
        return ReadResult(self._native.raw(_keys(tags), _ns(start, "start"), _ns(end, "end"), bounds))

    def latest(self, tags: TagKey | Iterable[TagKey]) -> Any:
        """The newest point of each tag: columns tag, time, value, status. A tag without points has no row. The search
        starts from the newest points, so its time does not depend on the length of the history.
        """
        return _Result(self._native.latest(_keys(tags)))

    def at(
        self, tags: TagKey | Iterable[TagKey], times: times.Moment | Iterable[times.Moment], *,
        stepped: bool | None = None,
    ) -> Any:  # fmt: skip
        """The values of tags at a time, or at several in their order for each tag: columns tag, time, value, status.

        A point at the requested time is returned as it is; between points, the value is interpolated as by
        ``Interpolative``, stepped or linear according to `stepped` or the tag.
        """
        stepped = None if stepped is None else arguments.flag(stepped, "stepped")
        moments = [_ns(moment, "time") for moment in _moments(times)]
        return _Result(self._native.at(_keys(tags), moments, stepped))

    def aggregate(
        self,
        tags: TagKey | Iterable[TagKey],
        start: times.Moment,
        end: times.Moment,
        interval: str | timedelta | int | None,
        aggregate: str,
        *,
        stepped: bool | None = None,
        treat_uncertain_as_bad: bool | None = None,
        percent_good: float | None = None,
        percent_bad: float | None = None,
        sloped_extrapolation: bool | None = None,
        percent: float = 50.0,
        rules: str = "samples",
        points_only: bool = False,
    ) -> ReadResult:
        """An aggregate of each interval: columns tag, time, value, status, by tag as given, then interval.

        Parameters
        ----------
        tags : str, int or iterable of those
            Tags by name or number.
        start, end : moment
            Period of the request: datetimes, ISO 8601 text, or integers, nanoseconds since 1970 UTC. Intervals include
            their start and exclude their end, and the last may be short. With `end` before `start`, they run backwards
            and include their later end.
        interval : str, timedelta, int or None
            Length of an interval: ``"1h"``, ``"500ms"``, nanoseconds as an integer. None or 0 for one interval over the
            whole range.
        aggregate : str
            One of :data:`AGGREGATES`. Durations are in milliseconds, areas (``Total``) in value times seconds.
        stepped, treat_uncertain_as_bad, percent_good, percent_bad, sloped_extrapolation
            OPC UA Part 13, 4.2.1.2; None for the tag's own.
        percent : float
            Which percentile ``Percentile`` gives, 0 to 100.
        rules : {"samples", "standard"}
            ``samples`` reproduces the results published with the OPC Foundation's samples, even where they deviate from
            the text of the standard; ``standard`` follows the text. They differ in standard deviations and variances,
            ``AnnotationCount`` of a tag without annotations, ``Delta`` without Good values, the first of
            ``NumberOfTransitions``, and the Partial bit at the end of data.
        points_only : bool
            Compute from points only, ignoring the hourly statistics of :meth:`maintain`.

        Raises
        ------
        TagNotFoundError
            A tag is not defined.
        InvalidInputError
            The aggregate is unknown, the range is empty, there are too many intervals, the aggregate needs numbers but
            the tag is text, or an interval has more values than ``Percentile`` or ``Distinct`` can hold.
        """
        overrides = _overrides(
            stepped,
            treat_uncertain_as_bad,
            percent_good,
            percent_bad,
            sloped_extrapolation,
            percent,
            rules,
            points_only,
        )
        aggregate = arguments.text(aggregate, "aggregate")
        width = 0 if interval is None else times.duration_ns(interval, "interval")
        return ReadResult(
            self._native.aggregate(_keys(tags), _ns(start, "start"), _ns(end, "end"), width, aggregate, overrides)
        )

    def plot(
        self, tag: TagKey, start: times.Moment, end: times.Moment, *, points: int = 1_000, method: str = "minmax"
    ) -> Any:
        """Reduce a tag's points in ``[start, end)`` to about `points` for a plot: columns tag, time, value, status.

        ``minmax`` keeps the first, least, greatest and last point of equal time spans, so no spike is lost; ``lttb``
        (largest triangle three buckets, Steinarsson 2013) keeps the shape with fewer points. Bad points are excluded.
        """
        points, method = arguments.integer(points, "points"), arguments.text(method, "method")
        if points < 2:
            raise InvalidInputError(f"points is {points}: give 2 or more", kind="invalid-request")
        return _Result(self._native.plot(_key(tag), _ns(start, "start"), _ns(end, "end"), points, method))

    # ------------------------------------------------------------------ annotations, retention, maintenance

    def annotate(self, tag: TagKey, time: times.Moment, text: str, *, author: str = "") -> None:
        """Add an annotation at a time of a tag. ``AnnotationCount`` counts them."""
        text, author = arguments.text(text, "text"), arguments.text(author, "author")
        self._native.annotate(_key(tag), _ns(time, "time"), author, text)

    def annotations(self, tags: TagKey | Iterable[TagKey], start: times.Moment, end: times.Moment) -> ReadResult:
        """The annotations of tags in ``[start, end)``: columns tag (number), time, entered, author, text."""
        return ReadResult(self._native.annotations(_keys(tags), _ns(start, "start"), _ns(end, "end")))

    def groups(self) -> list[str]:
        """Groups of tags that have points."""
        return self._native.groups()

    def set_retention(self, group: str, retention: str | timedelta | None) -> None:
        """Set the age past which :meth:`retire` drops the points of a group; None keeps them forever.

        Raises
        ------
        InvalidInputError
            Kind ``group-not-found``: the group has neither tags nor points. ``main`` needs neither.
        """
        text = None if retention is None else times.duration_text(retention, "retention")
        self._native.set_retention(arguments.text(group, "group"), text)

    def retire(self, group: str, *, dry_run: bool = False) -> int:
        """Drop points older than the group's retention, in slices of 30 days; return their number.

        Age is measured by this machine's clock, never by the newest point, so a wrong future time drops nothing.

        Raises
        ------
        InvalidInputError
            As for :meth:`set_retention`.
        """
        return self._native.retire(arguments.text(group, "group"), arguments.flag(dry_run, "dry_run"))

    def maintain(self) -> MaintenanceReport:
        """Merge small chunks, and compute hourly statistics for days with many points, which speed up aggregates.

        Run it regularly, for example every hour. Statistics are tied to the chunks they were computed from: after a
        late or corrected point, its day is read in full until the next run, so results are never wrong.
        """
        consolidated, summarized, hours, failed = self._native.maintain()
        return MaintenanceReport(consolidated, summarized, hours, tuple(failed))


class BufferedWriter(Closing):
    """Collects points from many sources and stores them together, which is much cheaper than storing each.

    **Durability**: points are durable when :meth:`flush` (or a call of :meth:`write` that flushed) has returned, and
    not before. A crash loses unflushed points: at most `points` points, or those of `seconds` seconds. A failed flush
    raises an error and keeps its points for the next one.

    Returned by :meth:`Historian.buffered`; as a context manager, it flushes at the end. Thread-safe.
    """

    def __init__(self, historian: Historian | _RemoteFilter, points: int, seconds: float) -> None:
        points, seconds = arguments.integer(points, "points"), arguments.number(seconds, "seconds")
        if points < 1 or not seconds > 0:
            raise InvalidInputError("points must be at least 1 and seconds above 0", kind="invalid-setting")
        self._historian = historian
        self._points_max = points
        self._seconds = seconds
        self._lock = threading.Lock()
        self._tables: list[_native.Table] = []
        self._count = 0
        self._oldest = 0.0
        self._filter = _native.PointFilter()

    @property
    def pending(self) -> int:
        """Points that are not durable yet."""
        return self._count

    def write(self, points: Any) -> bool:
        """Add points, as for :meth:`Historian.write`; return whether all points added so far are durable.

        Exception and compression deviations of the tags apply, in the order of the points.
        """
        with self._lock:
            self._filter_points(points)
            full = self._count >= self._points_max
            if full or (self._count and clock.monotonic() - self._oldest >= self._seconds):
                self._flush()
            return self._count == 0

    def flush(self) -> None:
        """Store all points added so far; they are durable when this returns."""
        with self._lock:
            self._flush()

    def close(self) -> None:
        """Store all points, including those that the swinging door holds back."""
        with self._lock:
            self._buffer(self._filter.finish())
            self._flush()

    def _filter_points(self, points: Any) -> None:
        rows = inputs.rows(_point_columns(points), _POINT_TYPES)
        for table in self._historian._filtered(self._filter, rows):
            self._buffer(table)

    def _buffer(self, table: _native.Table) -> None:
        if not table.num_rows:
            return
        if not self._tables:
            self._oldest = clock.monotonic()
        self._tables.append(table)
        self._count += table.num_rows

    def _flush(self) -> None:
        if self._tables:
            self._historian.write(iter(self._tables))
            # Only a successful write drops the points: after an error, the next flush stores them.
            self._tables, self._count = [], 0


def compute(
    points: Any,
    start: times.Moment,
    end: times.Moment,
    interval: str | timedelta | int | None,
    aggregate: str,
    *,
    stepped: bool = False,
    treat_uncertain_as_bad: bool = True,
    percent_good: float = 100.0,
    percent_bad: float = 100.0,
    sloped_extrapolation: bool = False,
    percent: float = 50.0,
    rules: str = "samples",
) -> Any:
    """Compute an aggregate of points in memory, by the rules of :meth:`Historian.aggregate`: columns time, value,
    status.

    `points` is a table with columns ``time``, ``value`` and, if not all are Good, ``status``, of one series in
    ascending time; points before and after the range serve as bounding values.
    """
    overrides = _overrides(
        stepped, treat_uncertain_as_bad, percent_good, percent_bad, sloped_extrapolation, percent, rules, False
    )
    aggregate = arguments.text(aggregate, "aggregate")
    width = 0 if interval is None else times.duration_ns(interval, "interval")
    request = (_ns(start, "start"), _ns(end, "end"), width)
    rows = inputs.rows(_point_columns(points), _POINT_TYPES)
    return _Result(_native.compute_aggregate(rows, request, aggregate, overrides))


# ---------------------------------------------------------------------- arguments and results

_POINT_TYPES = {"time": "timestamp[ns, UTC]", "value": "float64", "status": "uint32"}


class _Result:
    """Rows in memory, readable by any library that supports ``__arrow_c_stream__``."""

    __slots__ = ("_native",)

    def __init__(self, native: _native.Table) -> None:
        self._native = native

    def __len__(self) -> int:
        return self._native.num_rows

    def __arrow_c_schema__(self) -> object:
        return self._native.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._native.__arrow_c_stream__(requested_schema)

    def to_arrow(self) -> Any:
        """The rows as a `pyarrow.Table`. Needs pyarrow."""
        return optional.module("pyarrow", "to_arrow()", "arrow").table(self._native)

    def to_pandas(self) -> Any:
        """The rows as a `pandas.DataFrame`. Needs pyarrow and pandas."""
        optional.require("to_pandas()", "pandas", "pyarrow", "pandas")
        return self.to_arrow().to_pandas()

    def to_polars(self) -> Any:
        """The rows as a `polars.DataFrame`. Needs polars."""
        return optional.module("polars", "to_polars()", "polars").DataFrame(self._native)


def _key(tag: object) -> TagKey:
    if isinstance(tag, str) or (isinstance(tag, int) and not isinstance(tag, bool)):
        return tag
    if isinstance(tag, Tag):
        return tag.number
    raise InvalidInputError(f"invalid tag {tag!r}: give a name or a number", kind="invalid-request")


def _keys(tags: object) -> list[TagKey]:
    if isinstance(tags, str | int | Tag):
        return [_key(tags)]
    if not isinstance(tags, Iterable):
        raise InvalidInputError(f"invalid tags {tags!r}: give a name, a number, or a list", kind="invalid-request")
    return [_key(tag) for tag in tags]


def _ns(value: times.Moment, what: str) -> int:
    """Convert a time to nanoseconds since 1970 UTC."""
    kind, number = times.moment(value, _AXIS, what)
    if kind == "native" or not -_INT64_MAX <= number <= _INT64_MAX:
        raise InvalidInputError(
            f"{what} is {value!r}: times lie between 1677-09-22 and 2262-04-11", kind="invalid-time"
        )
    return int(number)


def _moments(given: times.Moment | Iterable[times.Moment]) -> list[times.Moment]:
    """A list of times from one or several."""
    return list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]


def _overrides(
    stepped: bool | None,
    treat_uncertain_as_bad: bool | None,
    percent_good: float | None,
    percent_bad: float | None,
    sloped_extrapolation: bool | None,
    percent: float,
    rules: str,
    points_only: bool,
) -> dict[str, Any]:
    if rules not in ("standard", "samples"):
        raise InvalidInputError(f'invalid rules={rules!r}: use "standard" or "samples"', kind="invalid-setting")
    flags = {
        "stepped": stepped,
        "treat_uncertain_as_bad": treat_uncertain_as_bad,
        "sloped_extrapolation": sloped_extrapolation,
    }
    numbers = {"percent_good": percent_good, "percent_bad": percent_bad}
    return {
        **{name: None if value is None else arguments.flag(value, name) for name, value in flags.items()},
        **{name: None if value is None else arguments.number(value, name) for name, value in numbers.items()},
        "percent": arguments.number(percent, "percent"),
        "sample_results": rules == "samples",
        "points_only": arguments.flag(points_only, "points_only"),
    }


def _point_columns(points: Any) -> Any:
    """Convert plain lists of points to columns: times with :func:`_ns`, others by the type of their values."""
    if not isinstance(points, Mapping):
        return points
    columns = dict(points)
    for name, given in points.items():
        if isinstance(given, list | tuple) and name == "time":
            nanoseconds = [_ns(moment, f"time of row {row}") for row, moment in enumerate(given)]
            columns[name] = _native.column_of_list(nanoseconds, "int64")
        elif isinstance(given, list | tuple):
            columns[name] = _column(given)
    return columns


def _column(values: Sequence[Any]) -> _native.Array:
    """Convert a plain list by the type of its values."""
    # Numpy scalars become Python values, whose types are checked below.
    values = [value.item() if hasattr(value, "item") else value for value in values]
    given = [value for value in values if value is not None]
    for kind, native in ((bool, "bool"), (int, "int64"), ((int, float), "float64"), (str, "utf8")):
        # To Python, True and False are integers too.
        has_bools = kind is not bool and any(isinstance(value, bool) for value in given)
        if not has_bools and all(isinstance(value, kind) for value in given):
            return inputs.values_column(values, native, "column")
    types = name_list(dict.fromkeys(type(value).__name__ for value in given))
    raise InvalidInputError(
        f"a column has values of type {types}: give numbers, texts, or true and false, of one type", kind="invalid-rows"
    )


_PROPERTY_CHECKS: dict[str, Callable[..., Any]] = {
    "int": arguments.integer,
    "str": arguments.text,
    "bool": arguments.flag,
    "float": arguments.number,
}


def _definition(tag: Mapping[str, Any] | Tag) -> dict[str, Any]:
    if not isinstance(tag, Tag):
        arguments.instance(tag, Mapping, "a tag to define", "a mapping with a name, or a Tag", kind="invalid-tag")
    given = dict(vars(tag)) if isinstance(tag, Tag) else dict(tag)
    defaults = dict(vars(Tag(name="", number=-1)))
    unknown = given.keys() - defaults.keys()
    if unknown or not isinstance(given.get("name"), str):
        what = f"has no property {sorted(unknown)[0]!r}" if unknown else "needs a name"
        raise InvalidInputError(f"a tag {what}: it has {', '.join(defaults)}", kind="invalid-tag")
    for name, annotation in Tag.__annotations__.items():
        kind, _, optional_ = annotation.partition(" | ")
        if name in given and not (optional_ and given[name] is None):
            what = f"{name} of tag {given['name']!r}"
            given[name] = _PROPERTY_CHECKS[kind](given[name], what, kind="invalid-tag")
    merged = defaults | given
    for name in ("exception_deviation", "compression_deviation"):
        merged[name] = -1.0 if merged[name] is None else merged[name]
    return merged


def _tags(table: _native.Table) -> list[Tag]:
    columns = _native.tag_columns(table)
    return [_tag(dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]


def _tag(row: dict[str, Any]) -> Tag:
    row["group"] = row.pop("tag_group")
    for name in ("exception_deviation", "compression_deviation"):
        row[name] = None if row[name] < 0 else row[name]
    return Tag(**row)
