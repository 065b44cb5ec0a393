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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from chronotile import _native, inputs, optional, times
from chronotile.archive import Archive
from chronotile.archive import open as open_archive
from chronotile.closing import Closing
from chronotile.errors import InvalidInputError
from chronotile.result import ReadResult

if TYPE_CHECKING:
    from chronotile.historian.remote import RemoteHistorian, _Filtering

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
    "MaintainReport",
    "PointsReport",
    "Tag",
    "compute",
    "connect",
    "open",
    "status_text",
]

GOOD = 0x0000_0000
"""Status code Good."""
UNCERTAIN = 0x4000_0000
"""Status code Uncertain."""
UNCERTAIN_SUB_NORMAL = 0x40A4_0000
"""Status code Uncertain_DataSubNormal: derived from fewer good values than it should be."""
BAD = 0x8000_0000
"""Status code Bad."""
BAD_NO_DATA = 0x809B_0000
"""Status code Bad_NoData."""
CALCULATED = 0x401
"""Aggregate bits of a status code: computed from several values."""
INTERPOLATED = 0x402
"""Aggregate bits of a status code: interpolated between values."""
PARTIAL = 0x404
"""Aggregate bits of a status code: the data cover a part of the interval only."""
MULTIPLE_VALUES = 0x410
"""Aggregate bits of a status code: several values fit the description of the result."""

AGGREGATES: tuple[str, ...] = tuple(_native.aggregate_names())
"""Names of all aggregates: the 37 of OPC UA Part 13, then ``Percentile``, ``Rate`` and ``Distinct``."""

_AXIS = times.TimeAxis("time")
_NAMED_CODES = {GOOD: "Good", UNCERTAIN: "Uncertain", UNCERTAIN_SUB_NORMAL: "UncertainDataSubNormal", BAD: "Bad"}
_NAMED_CODES |= {BAD_NO_DATA: "BadNoData", 0x808C_0000: "BadSensorFailure"}
_NAMED_BITS = {1: "Calculated", 2: "Interpolated", 4: "Partial", 8: "ExtraData", 16: "MultipleValues"}
_INT64_MAX = 2**63 - 1

TagKey = str | int
"""A tag by name or by number."""


@dataclass(frozen=True)
class Tag:
    """What is known of a tag.

    Attributes
    ----------
    name : str
        Unique in the archive.
    number : int
        Fixed; it follows from the name unless one was given.
    unit, description : str
        For people.
    group : str
        Tags of a group share their retention. Fixed.
    data_type : {"float", "integer", "bool", "string"}
        What its values are. Fixed.
    stepped : bool
        Whether values hold until the next one, instead of lying on a line between them. Bool tags always do.
    treat_uncertain_as_bad, percent_good, percent_bad, sloped_extrapolation
        How its aggregates treat qualities and gaps, unless a request says otherwise; see :meth:`Historian.aggregate`.
    exception_deviation : float or None
        A :class:`BufferedWriter` leaves out a value that differs from the last one reported by no more than this; 0
        leaves out what did not change; None leaves out nothing.
    compression_deviation : float or None
        A :class:`BufferedWriter` leaves out values that lie within this distance of a line through those kept (swinging
        door); None for no compression.
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
    """What a write did.

    Attributes
    ----------
    points : int
        Points stored, or, of a batch that was there already, found the same.
    duplicates : int
        Points left out because a later one of the same write has the same tag and time.
    stored : bool
        Whether anything was stored; False where the batch was there already.
    """

    points: int
    duplicates: int
    stored: bool


@dataclass(frozen=True)
class MaintainReport:
    """What :meth:`Historian.maintain` did: tiles whose chunks it joined, tiles it computed statistics of, hours
    stored, and tiles that it had to leave as they were, each with the reason."""

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
        An open archive, or what :func:`chronotile.open` takes.
    create : bool
        Make the archive, and the datasets a historian keeps, where they are missing.
    max_future : str, timedelta or None
        Points further ahead of this machine's clock are refused: a wrong clock somewhere would otherwise hide newer
        values. None for no limit.

    Raises
    ------
    ArchiveNotFoundError, NotAnArchiveError, UnavailableError
        As :func:`chronotile.open`.
    InvalidInputError
        Without `create`, an archive that keeps no history.
    """
    own = not isinstance(archive, Archive)
    opened = archive if isinstance(archive, Archive) else open_archive(archive, create=create)
    future_ns = None if max_future is None else times.duration_ns(max_future, "max_future")
    return Historian(opened, _native.Historian.open(opened._native, create, future_ns), own)


def connect(
    url: str, *, token: str | None = None, ca: str | os.PathLike[str] | None = None, timeout: float = 60.0
) -> RemoteHistorian:
    """A historian that is served over HTTP by ``chronotile serve``: the same methods as :class:`Historian`.

    Parameters
    ----------
    url : str
        Such as ``http://127.0.0.1:8086``.
    token : str, optional
        What the service wants to know its clients by. Default: the environment variable ``CHRONOTILE_TOKEN``.
    ca : path, optional
        File of certificates to trust, PEM, instead of those of the system.
    timeout : float
        Seconds to wait for the service at each step.

    Raises
    ------
    UnavailableError
        Nobody answers there.
    AccessDeniedError
        The token is missing, unknown, expired or lacks the role, or the certificate is not trusted.
    """
    from chronotile.historian.remote import RemoteHistorian

    return RemoteHistorian(url, token, ca, timeout)


class Historian(Closing):
    """Tags and their values in an archive. Made by :func:`open`; a context manager that closes itself.

    Safe to use from many threads, and the same archive from many processes at once.
    """

    def __init__(self, archive: Archive, native: _native.Historian, own: bool) -> None:
        self._archive = archive
        self._native = native
        self._own = own

    def __repr__(self) -> str:
        return f"<Historian {self._archive.url}{' (closed)' if self._native.closed else ''}>"

    def close(self) -> None:
        """Let go of the archive; one that was opened for this historian is closed."""
        self._native.close()
        if self._own:
            self._archive.close()

    @property
    def archive(self) -> Archive:
        """The archive. Points lie in its datasets ``historian_GROUP_TYPE``, a cell for each tag."""
        return self._archive

    # ------------------------------------------------------------------ tags

    def define(self, name: str, **properties: Any) -> Tag:
        """Define a tag, or change it. `properties` are the fields of :class:`Tag` but its name; what is not given has
        the default. Number, data type and group are fixed once defined.

        Raises
        ------
        InvalidInputError
            A definition that cannot be used, or one that changes what is fixed.
        """
        return self.define_many([{"name": name, **properties}])[0]

    def define_many(self, tags: Iterable[Mapping[str, Any] | Tag]) -> list[Tag]:
        """Define tags, all or none: mappings with the fields of :class:`Tag`, of which only ``name`` must be given.

        The first call reads the definitions there are; a million tags take seconds.
        """
        return _tags(self._native.define([_definition(tag) for tag in tags]))

    def tag(self, tag: TagKey) -> Tag:
        """A tag by name, with one small read at most; or by number, for which all tags are read at the first time.

        Raises
        ------
        TagNotFoundError
            There is none.
        """
        return _tags(self._native.resolve([_key(tag)]))[0]

    def tags(self, pattern: str = "*", *, limit: int | None = None) -> list[Tag]:
        """The tags whose names fit `pattern`, by name: ``*`` stands for any characters, ``?`` for one.

        The text before the first ``*`` or ``?`` says where in the sorted list of names to look. A pattern that begins
        with one of them is compared with all names. ``*`` alone reads all definitions, of a million tags in a second
        or two.
        """
        return _tags(self._native.tags(pattern, _INT64_MAX if limit is None else limit))

    def refresh(self) -> None:
        """Forget what this process knows of the tags, so that changes made by others are seen at the next use. Tags
        that others add are found by name without it."""
        self._native.refresh()

    # ------------------------------------------------------------------ points in

    def write(
        self,
        points: Any,
        *,
        batch: str | None = None,
        replace: bool = False,
        not_finite: str = "refuse",
    ) -> PointsReport:
        """Store points. They are durable when this returns: whatever happens to this process, they can be read.

        Parameters
        ----------
        points : table
            Anything :meth:`chronotile.Dataset.write` takes, with columns ``tag`` (names, or numbers), ``time``
            (timestamps of any unit; or int64 nanoseconds since 1970 UTC), ``value``, and, if not all are Good,
            ``status`` (OPC UA status codes). In any order, late ones too. Of points of one tag and time the one written
            last counts.
        batch : str, optional
            Name of the batch: repeating it with the same points stores them once, also after a crash.
        replace : bool
            Whether other points take the place of a stored batch of this name.
        not_finite : {"refuse", "bad"}
            What to do with values that are NaN, infinite or null without being Bad: refuse the whole write, or store
            them as Bad_SensorFailure without a value.

        Raises
        ------
        TagNotFoundError
            A tag that is not defined; nothing is stored.
        InvalidInputError
            A value of another type than its tag's, a time too far ahead, a value that is no number: the message names
            the row. Nothing is stored.
        """
        if not_finite not in ("refuse", "bad"):
            raise InvalidInputError(f'not_finite is {not_finite!r}: use "refuse" or "bad"', kind="invalid-setting")
        done = self._native.write(inputs.rows(_timed(points), _POINT_TYPES), batch, replace, not_finite == "bad")
        return PointsReport(*done)

    def buffered(self, *, points: int = 50_000, seconds: float = 5.0) -> BufferedWriter:
        """A writer that collects points and stores them together: see :class:`BufferedWriter`."""
        return BufferedWriter(self, points, seconds)

    def _filtered(self, filter_: _native.PointFilter, rows: Any) -> list[_native.Table]:
        return self._native.filter(filter_, rows)

    def delete(self, tag: TagKey, start: times.Moment, end: times.Moment) -> int:
        """Delete a tag's points in ``[start, end)``; gives their number.

        Each is hidden by a newer entry, so room is given back by retention alone. A point that is written there later
        counts again.
        """
        return self._native.delete(_key(tag), _ns(start, "start"), _ns(end, "end"))

    # ------------------------------------------------------------------ points out

    def raw(
        self,
        tags: TagKey | Iterable[TagKey],
        start: times.Moment,
        end: times.Moment,
        *,
        bounds: bool = False,
    ) -> ReadResult:
        """The points of tags in ``[start, end)``, by tag as given, then time: columns tag, time, value, status.

        With `bounds` also the last point before the range, unless one lies at its start, and the first at or behind its
        end. Points are streamed; the value has the tags' type, float64 for a mix of numbers, text for any mix with
        text.
        """
        return ReadResult(self._native.raw(_keys(tags), _ns(start, "start"), _ns(end, "end"), bounds))

    def latest(self, tags: TagKey | Iterable[TagKey]) -> Any:
        """The newest point of each tag: columns tag, time, value, status. A tag without points has no row.

        Looks from the newest points backwards and no further, so it takes as long with years of history as with a day.
        """
        return _Result(self._native.latest(_keys(tags)))

    def at(self, tags: TagKey | Iterable[TagKey], times: Iterable[times.Moment], *, stepped: bool | None = None) -> Any:
        """The values of tags at `times`, in their order for each tag: columns tag, time, value, status.

        A point that lies at a time is given as it is; between points the value is interpolated as ``Interpolative``
        does, stepped or on a line as the tag is or `stepped` says.
        """
        moments = [_ns(moment, "time") for moment in times]
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
            The request's ends: datetimes, ISO 8601 text, or integers, nanoseconds since 1970 UTC. Intervals hold their
            start and not their end, and the last may be short. With `end` before `start` they run backwards and hold
            their later end.
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
            ``samples`` gives the results published with the OPC Foundation's samples also where these depart from the
            text of the standard, ``standard`` follows the text. They differ in the standard deviations and variances,
            in ``AnnotationCount`` of a tag that was never annotated, in ``Delta`` where no value is Good, in the first
            of the ``NumberOfTransitions``, and in the Partial bit where data end.
        points_only : bool
            Compute from points alone, and leave the statistics of hours that :meth:`maintain` keeps aside.

        Raises
        ------
        TagNotFoundError
            A tag that is not defined.
        InvalidInputError
            An unknown aggregate, an empty range, too many intervals, an aggregate of numbers of a tag of text, an
            interval with more values than ``Percentile`` or ``Distinct`` can keep.
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
        width = 0 if interval is None else times.duration_ns(interval, "interval")
        return ReadResult(
            self._native.aggregate(_keys(tags), _ns(start, "start"), _ns(end, "end"), width, aggregate, overrides)
        )

    def plot(
        self, tag: TagKey, start: times.Moment, end: times.Moment, *, points: int = 1_000, method: str = "minmax"
    ) -> Any:
        """About `points` of a tag's points in ``[start, end)`` that show its course: columns tag, time, value, status.

        ``minmax`` keeps the first, least, greatest and last point of equal spans of time, so that no spike is lost;
        ``lttb`` (largest triangle three buckets, Steinarsson 2013) keeps the shape with fewer. Bad points are left out.
        """
        return _Result(self._native.plot(_key(tag), _ns(start, "start"), _ns(end, "end"), points, method))

    # ------------------------------------------------------------------ annotations, retention, order

    def annotate(self, tag: TagKey, time: times.Moment, text: str, *, author: str = "") -> None:
        """Add an annotation at a time of a tag. ``AnnotationCount`` counts them."""
        self._native.annotate(_key(tag), _ns(time, "time"), author, text)

    def annotations(self, tags: TagKey | Iterable[TagKey], start: times.Moment, end: times.Moment) -> ReadResult:
        """The annotations of tags in ``[start, end)``: columns tag (number), time, entered, author, text."""
        return ReadResult(self._native.annotations(_keys(tags), _ns(start, "start"), _ns(end, "end")))

    def groups(self) -> list[str]:
        """Groups of tags that have points."""
        return self._native.groups()

    def set_retention(self, group: str, retention: str | timedelta | None) -> None:
        """Set the age past which :meth:`retire` drops the points of a group; None keeps them for ever."""
        text = None if retention is None else times.duration_text(retention, "retention")
        self._native.set_retention(group, text)

    def retire(self, group: str, *, dry_run: bool = False) -> int:
        """Drop what is older than the group's retention, in slices of 30 days; gives the number of points.

        Age is told by this machine's clock, never by the newest point, so a wrong future time drops nothing.
        """
        return self._native.retire(group, dry_run)

    def maintain(self) -> MaintainReport:
        """Join small chunks into large ones, and keep statistics of the hours of days with many points, from which
        aggregates are computed where they apply.

        Run it now and then, for example every hour. Statistics are tied to the chunks they were computed from: a late
        or corrected point makes its day be read in full until the next run, and never a wrong result.
        """
        consolidated, summarized, hours, failed = self._native.maintain()
        return MaintainReport(consolidated, summarized, hours, tuple(failed))


class BufferedWriter(Closing):
    """Collects points of many sources and stores them together, which costs a fraction of storing each.

    **Durability**: points are durable when :meth:`flush` (or a call of :meth:`write` that flushed) has returned, and
    not before. A crash loses what was not flushed: at most `points` points, or those of `seconds` seconds. A failed
    flush raises and keeps its points for the next one.

    Made by :meth:`Historian.buffered`; as a context manager it flushes at the end. Safe to use from many threads.
    """

    def __init__(self, historian: Historian | _Filtering, points: int, seconds: float) -> None:
        if points < 1 or not seconds > 0:
            raise InvalidInputError("a buffer needs room for a point and a time to wait", kind="invalid-setting")
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
        """Take points, as :meth:`Historian.write` does; whether all that were taken so far are durable now.

        Exception and compression deviation of the tags apply, in the order points are given.
        """
        with self._lock:
            self._take(points)
            full = self._count >= self._points_max
            if full or (self._count and clock.monotonic() - self._oldest >= self._seconds):
                self._flush()
            return self._count == 0

    def flush(self) -> None:
        """Store all points taken so far; they are durable when this returns."""
        with self._lock:
            self._flush()

    def close(self) -> None:
        """Store all points, those the swinging door still holds back too."""
        with self._lock:
            self._keep(self._filter.finish())
            self._flush()

    def _take(self, points: Any) -> None:
        rows = inputs.rows(_timed(points), _POINT_TYPES)
        for table in self._historian._filtered(self._filter, rows):
            self._keep(table)

    def _keep(self, table: _native.Table) -> None:
        if not table.num_rows:
            return
        if not self._tables:
            self._oldest = clock.monotonic()
        self._tables.append(table)
        self._count += table.num_rows

    def _flush(self) -> None:
        if self._tables:
            self._historian.write(iter(self._tables))
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
    """An aggregate of points in memory, by the rules of :meth:`Historian.aggregate`: columns time, value, status.

    `points` is a table with columns ``time``, ``value`` and, if not all are Good, ``status``, of one series in
    ascending time; points before and behind the range serve as bounding values.
    """
    overrides = _overrides(
        stepped, treat_uncertain_as_bad, percent_good, percent_bad, sloped_extrapolation, percent, rules, False
    )
    width = 0 if interval is None else times.duration_ns(interval, "interval")
    request = (_ns(start, "start"), _ns(end, "end"), width)
    rows = inputs.rows(_timed(points), _POINT_TYPES)
    return _Result(_native.compute_aggregate(rows, request, aggregate, overrides))


def status_text(status: int) -> str:
    """A status code in words, such as ``"Good, Calculated, Partial"``; codes without a name here in hexadecimal."""
    code = status & 0xFFFF_0000
    bits = status & 0x1F if status & 0xC00 == 0x400 else 0
    words = [_NAMED_CODES.get(code, f"0x{code:08X}")]
    return ", ".join(words + [name for bit, name in _NAMED_BITS.items() if bits & bit])


# ---------------------------------------------------------------------- arguments and results

_POINT_TYPES = {"time": "timestamp[ns, UTC]", "value": "float64", "status": "uint32"}


class _Result:
    """Rows in memory: Arrow for any library that reads ``__arrow_c_stream__``."""

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
    raise InvalidInputError(f"{tag!r} names no tag: give its name or its number", kind="invalid-request")


def _keys(tags: object) -> list[TagKey]:
    if isinstance(tags, str | int | Tag):
        return [_key(tags)]
    if not isinstance(tags, Iterable):
        raise InvalidInputError(f"{tags!r} names no tags: give a name, a number, or a list", kind="invalid-request")
    return [_key(tag) for tag in tags]


def _ns(value: times.Moment, what: str) -> int:
    """Nanoseconds since 1970 UTC."""
    kind, number = times.moment(value, _AXIS, what)
    if kind == "native" or not -_INT64_MAX <= number <= _INT64_MAX:
        raise InvalidInputError(
            f"{what} is {value!r}: times lie between 1677-09-22 and 2262-04-11", kind="invalid-time"
        )
    return int(number)


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
        raise InvalidInputError(f'rules is {rules!r}: use "standard" or "samples"', kind="invalid-setting")
    return {
        "stepped": stepped,
        "treat_uncertain_as_bad": treat_uncertain_as_bad,
        "percent_good": percent_good,
        "percent_bad": percent_bad,
        "sloped_extrapolation": sloped_extrapolation,
        "percent": percent,
        "sample_results": rules == "samples",
        "points_only": points_only,
    }


def _timed(points: Any) -> Any:
    """Points whose plain lists have become columns: times as :func:`_ns` reads them, the others as what they hold."""
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
    """A plain list as what its values are."""
    given = [value for value in values if value is not None]
    for kind, native in ((bool, "bool"), (int, "int64"), ((int, float), "float64"), (str, "utf8")):
        numbers = all(isinstance(value, kind) for value in given)
        if numbers and (kind is bool or not any(isinstance(value, bool) for value in given)):
            return inputs.values_column(list(values), native, "column")
    raise InvalidInputError("a column mixes texts and numbers: give one kind", kind="invalid-rows")


def _definition(tag: Mapping[str, Any] | Tag) -> dict[str, Any]:
    given = dict(vars(tag)) if isinstance(tag, Tag) else dict(tag)
    defaults = dict(vars(Tag(name="", number=-1)))
    unknown = given.keys() - defaults.keys()
    if unknown or not isinstance(given.get("name"), str):
        what = f"has no property {sorted(unknown)[0]!r}" if unknown else "needs a name"
        raise InvalidInputError(f"a tag {what}: it has {', '.join(defaults)}", kind="invalid-tag")
    merged = defaults | given
    for name in ("exception_deviation", "compression_deviation"):
        merged[name] = -1.0 if merged[name] is None else float(merged[name])
    return merged


def _tags(table: _native.Table) -> list[Tag]:
    columns = _native.tag_columns(table)
    return [_tag(dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]


def _tag(row: dict[str, Any]) -> Tag:
    row["group"] = row.pop("tag_group")
    for name in ("exception_deviation", "compression_deviation"):
        row[name] = None if row[name] < 0 else row[name]
    return Tag(**row)
