"""Events: documents of a stream, kept for a time, searched by time, field and text."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from chronotile import cells, inputs, intervals, times
from chronotile.archive import Archive
from chronotile.bounds import UNBOUNDED, Bounds
from chronotile.dataset import Dataset
from chronotile.errors import BatchConflictError, InvalidInputError
from chronotile.events import parsing, retention, summaries
from chronotile.events.following import Follower
from chronotile.events.limits import FloodGuard
from chronotile.events.moments import MOMENT
from chronotile.events.parsing import Field, Reading, Reject
from chronotile.events.retention import TtlChange
from chronotile.events.searching import Question, Visibility, count, parts_in_order, to_us
from chronotile.events.settings import Limits, Settings, SettingsStore
from chronotile.hints import name_hint
from chronotile.predicates import Where, listed
from chronotile.reports import BatchInfo, SliceInfo

__all__ = ["Events", "IngestReport", "create", "open"]

OWN_COLUMNS = ("time", "stream", "body", "body_bytes", "line", "source", "batch", "ttl_s")
"""Columns that every archive of events has; no field can have their names."""

_KEPT_US = "timestamp[us, UTC]"
_DEAD_COLUMNS = {
    "time": _KEPT_US, "stream": "utf8", "source": "utf8", "line": "int64", "reason": "utf8", "record": "binary",
    "batch": "utf8",
}  # fmt: skip


@dataclass(frozen=True)
class IngestReport:
    """What became of some lines."""

    batch: str
    """Name of the batch they are stored under."""
    stored: bool
    """Whether anything was stored; False when the same was there already."""
    documents: int
    """Documents accepted."""
    bytes: int
    """Bytes of these, line ends left out."""
    blank: int
    """Lines of nothing but white space, passed over."""
    rejects: tuple[Reject, ...] = ()
    """The first 10,000 lines that are no documents; they are among the dead letters."""
    rejected: int = 0
    """Number of lines that are no documents."""
    reasons: dict[str, int] = field(default_factory=dict)
    """Rejected lines by reason; of reasons that are many the first hundred are told apart."""
    expired: int = 0
    """Documents stored that were older than their TTL already: they are in no answer."""

    @property
    def duplicates(self) -> int:
        """Number of documents that were stored before, under the same batch."""
        return 0 if self.stored else self.documents

    def to_dict(self, errors_max: int | None = None) -> dict[str, Any]:
        """As the service answers: counts, reasons with their counts, and line number and reason of the first
        `errors_max` rejects; of all that are kept by default."""
        return {
            "batch": self.batch,
            "stored": self.stored,
            "documents": self.documents,
            "duplicates": self.duplicates,
            "expired": self.expired,
            "rejected": self.rejected,
            "reasons": dict(Counter(self.reasons).most_common()),
            "errors": [{"line": reject.line, "reason": reject.reason} for reject in self.rejects[:errors_max]],
        }


def create(
    archive: Archive,
    name: str = "events",
    *,
    fields: Mapping[str, str] | None = None,
    paths: Mapping[str, str] | None = None,
    time_field: str = "time",
    time_format: str = "iso8601",
    stream_field: str | None = None,
    ttl: str | timedelta | None = None,
    limits: Limits | None = None,
    text: Iterable[str] = ("body",),
    buckets: int | None = 8,
    window: str | timedelta = "1h",
    slice: int | str | timedelta | None = "1d",
    exist_ok: bool = False,
) -> Events:
    """Create an archive of events: the datasets `name`, ``name_dead`` for lines that are no documents, and
    ``name_settings``.

    Parameters
    ----------
    archive : Archive
        Where.
    name : str
        1 to 39 of ``a-z 0-9 _``, beginning with a letter.
    fields : dict of str to str, optional
        Fields that become columns, with their types: ``{"process.pid": "int64", "message": "utf8"}``. A name with dots
        is a path into a JSON document. All else is kept in the document alone, where text search finds it.
    paths : dict of str to str, optional
        Where a field stands, if not at its own name: ``{"origin": "source"}``.
    time_field, time_format, stream_field : str
        How JSON documents say when and where from; see :meth:`Events.reading`, which can say otherwise.
    ttl : str or timedelta, optional
        How long after its own time a document is visible: ``"30d"``. By default for ever.
    limits : Limits, optional
        How much a stream may send.
    text : iterable of str
        Text columns of which chunks keep filters, by which a search for a rare text passes them over.
    buckets : int, optional
        Cells that the streams share by a hash of their names. Few full cells take less space and are written faster
        than many with little in them; more of them make a search of one stream read less. None for a cell for each
        stream.
    window : str or timedelta
        What of a cell is kept together: about the span of a usual search.
    slice
        Windows in a slice, or its length: what storage is given back in.
    exist_ok : bool
        Open the archive of events if it exists with the same columns; its settings stay as they are.

    Raises
    ------
    InvalidInputError
        Fields that cannot be columns.
    DatasetExistsError
        The name is taken.
    """
    declared = dict(fields or {})
    taken = [column for column in declared if column in OWN_COLUMNS]
    if taken:
        raise InvalidInputError(
            f"{taken[0]!r} is a column of every archive of events: give the field another name, and say in paths that "
            f"it stands at {taken[0]!r}",
            kind="invalid-definition",
        )
    strange = [column for column in paths or {} if column not in declared]
    if strange:
        raise InvalidInputError(f"paths names {strange[0]!r}, which is no field", kind="invalid-definition")
    settings = Settings(dict(paths or {}), time_field, time_format, stream_field, retention.ttl_seconds(ttl),
                        limits or Limits())  # fmt: skip
    columns = {
        "time": _KEPT_US, "stream": "utf8", **declared, "body": "utf8", "body_bytes": "int64", "line": "int64",
        "source": "utf8", "batch": "utf8", "ttl_s": "int64",
    }  # fmt: skip
    schema = pa.schema(inputs.schema(columns))
    found = [Field(column, settings.paths.get(column, column), schema.field(column).type) for column in declared]
    parsing.check(Reading("ndjson", None, time_field, time_format, None, stream_field), found)
    existed = name in archive
    if not existed:
        # The archive of events is there once its documents' dataset is, which is made last.
        SettingsStore.create(archive, f"{name}_settings").write(settings)
        archive.create(
            f"{name}_dead", schema=_DEAD_COLUMNS, cell=cells.single(), time="time", window="1d", slice=slice,
            exist_ok=True,
        )  # fmt: skip
    archive.create(
        name, schema=schema, cell=cells.hash("stream", buckets=buckets), time="time", window=window, slice=slice,
        retention=archive[name].retention if existed else retention.retention_of(settings), text=text,
        exist_ok=exist_ok,
    )  # fmt: skip
    return open(archive, name)


def open(archive: Archive, name: str = "events", *, clock: Callable[[], datetime] | None = None) -> Events:
    """Open an archive of events.

    Parameters
    ----------
    clock : callable, optional
        The present time, by which documents expire: an aware datetime. By default this machine's clock.

    Raises
    ------
    DatasetNotFoundError
        When there is none of this name.
    """
    dataset, dead = archive.dataset(name), archive.dataset(f"{name}_dead")
    return Events(dataset, dead, SettingsStore(archive.dataset(f"{name}_settings")), clock)


class Events:
    """Documents of streams, each with a time, a stream, declared fields and its whole text in ``body``.

    Questions take `start` and `end`, `streams`, conditions as keywords (``host="web1"``, ``severity=[0, 1, 2]``: equal
    to the value, or to one of several) and as `where`, with all comparisons of :meth:`chronotile.Dataset.read`, such as
    ``("message", "contains", "timeout")``.
    Expired documents are in no answer. Safe to use from many threads.
    """

    def __init__(
        self, dataset: Dataset, dead: Dataset, settings: SettingsStore, clock: Callable[[], datetime] | None = None
    ) -> None:
        self._dataset, self._dead, self._settings = dataset, dead, settings
        self._clock = clock or (lambda: datetime.now(UTC))
        self._guard = FloodGuard()

    def __repr__(self) -> str:
        return f"<Events {self._dataset.name}: {len(self.fields)} fields>"

    @property
    def dataset(self) -> Dataset:
        """The dataset of the documents: indexes, consolidation and verification are its own. It holds expired documents
        until their slices are reclaimed."""
        return self._dataset

    @property
    def settings(self) -> Settings:
        """The settings as they are now."""
        return self._settings.read()

    @property
    def fields(self) -> dict[str, str]:
        """The declared fields with their types."""
        return {name: kind for name, kind in self._dataset.column_types.items() if name not in OWN_COLUMNS}

    @property
    def ttl(self) -> str | None:
        """How long after its time a document without a TTL of its own is visible; None for ever."""
        return retention.ttl_text(self.settings.ttl_s)

    def refresh(self) -> None:
        """Look for fields that another process declared.

        Raises
        ------
        DatasetNotFoundError
            The archive of events was dropped.
        """
        self._dataset.refresh()

    # ------------------------------------------------------------------ ingest

    def reading(self, format: str = "ndjson", **options: Any) -> Reading:
        """How lines are read, checked.

        Parameters
        ----------
        format : {"ndjson", "syslog", "lines"}
            A JSON object a line; syslog messages (RFC 5424, and RFC 3164 with or without its priority); or lines that
            `pattern` takes apart.

        Other Parameters
        ----------------
        pattern : str
            A regular expression in RE2's syntax, searched for in each line. Its named groups are ``time``,
            ``stream`` and fields.
        time_field, stream_field : str
            Of JSON, paths of time and stream; of syslog and lines `stream_field` is the part that names the stream,
            such as ``host`` or ``app``. By default as the archive was created with, for JSON.
        time_format : str
            ``iso8601`` (UTC where it has no zone), ``epoch_s``, ``epoch_ms``, ``epoch_us``, ``epoch_ns``, or a strptime
            pattern such as ``"%d/%b/%Y:%H:%M:%S %z"``, in which ``%f`` behind the seconds is a fraction.
        year : int
            Of times that have none; by default the last one that does not put them in the future.
        stream : str
            The stream of documents that name none.

        Raises
        ------
        InvalidInputError
            Settings that do not go together, a pattern that is none.
        """
        if format == "ndjson":
            known = self.settings
            defaults = {name: getattr(known, name) for name in ("time_field", "time_format", "stream_field")}
            options = {**defaults, **{name: value for name, value in options.items() if value is not None}}
        else:
            options = {name: value for name, value in options.items() if value is not None}
        if format == "syslog" and "time_format" in options:
            raise InvalidInputError("syslog has its own times: leave time_format out", kind="invalid-setting")
        try:
            found = Reading(format, **options)
        except TypeError as error:
            raise InvalidInputError(f"reading: {error}", kind="invalid-setting") from None
        parsing.check(found, self._declared())
        return found

    def ingest_lines(
        self,
        data: bytes | str,
        reading: Reading | None = None,
        *,
        batch: str | None = None,
        source: str = "",
        first_line: int = 1,
        ttl: str | timedelta | None = None,
        limited: bool = True,
        line_bytes_max: int | None = None,
    ) -> IngestReport:
        """Store lines of text, such as the body of a request; when this returns they are durable.

        Parameters
        ----------
        data : bytes or str
            Lines that end in newlines, which the last may lack.
        reading : Reading, optional
            From :meth:`reading`; by default JSON documents, read as the archive was created for.
        batch : str, optional
            Name under which the lines are stored: the same lines again under the same name change nothing. Give one
            whenever the call may be repeated, such as the idempotency key of a request.
        source : str
            Where the lines come from, kept with each.
        first_line : int
            Number of the first line.
        ttl : str or timedelta, optional
            The documents' own TTL, which later changes of the archive's do not touch.
        limited : bool
            Whether the limits of streams hold.
        line_bytes_max : int
            A longer line is no document; 16 MiB by default.

        Raises
        ------
        BusyError
            A stream is over its limit (kind ``quota-exceeded``): nothing of the call was stored, repeat it later.
        BatchConflictError
            Other lines are stored under this name.
        """
        text = data.encode() if isinstance(data, str) else bytes(data)
        own_s = retention.ttl_seconds(ttl)
        chosen = reading or self.reading()
        documents = parsing.parse(text, first_line, chosen, self._declared(), line_bytes_max=line_bytes_max)
        return self._store(documents, batch or f"events:{uuid.uuid4().hex}", source, own_s, limited)

    def _store(
        self, documents: parsing.Documents, batch: str, source: str, ttl_s: int | None, limited: bool
    ) -> IngestReport:
        table = documents.table
        if limited:
            self._admit(table, batch, source)
        if ttl_s is not None:
            self._allow_ttl(ttl_s)
        # Before the documents: what is cut off in between is repeated as a whole.
        rejects = documents.rejects
        buried = rejects.count > 0 and self._bury(rejects.kept, batch, source)
        count = table.num_rows
        for name, value, kind in (
            ("source", source, pa.utf8()),
            ("batch", batch, pa.utf8()),
            ("ttl_s", ttl_s, pa.int64()),
        ):
            table = table.append_column(name, pa.array(pa.repeat(pa.scalar(value, kind), count)))
        told = (tuple(rejects.kept), rejects.count, rejects.reasons)
        if rejects.count and not count:
            # The name stays free for the same lines, read in another way.
            return IngestReport(batch, buried, 0, 0, documents.blank, *told)
        try:
            report = self._dataset.write(table.select(self._dataset.column_types), batch)
        except BatchConflictError as error:
            if buried and error.kind == "batch-differs":
                self._dead.remove_batch(batch)
            raise
        size = pc.sum(table["body_bytes"]).as_py() or 0
        expired = self._expired(table) if report.stored else 0
        return IngestReport(batch, report.stored, count, size, documents.blank, *told, expired)

    def _expired(self, table: pa.Table) -> int:
        """How many of some documents are in no answer any more."""
        visible = self._visibility()
        parts = table.select(["time", "ttl_s"]).combine_chunks().to_batches()
        return sum(part.num_rows - int(visible.mask(part).sum()) for part in parts)

    def _admit(self, table: pa.Table, batch: str, source: str) -> None:
        limits = self.settings.limits
        if not table.num_rows or (limits.documents_per_s is None and limits.bytes_per_s is None):
            return
        known = self._dataset.batch(batch)
        if known is not None and known.finished:
            # A repetition stores nothing, and counts for nothing.
            return
        by_stream = table.group_by("stream").aggregate([("body_bytes", "count"), ("body_bytes", "sum")])
        sent = {row["stream"]: (row["body_bytes_count"], row["body_bytes_sum"]) for row in by_stream.to_pylist()}
        ends = pc.min_max(table["line"]).as_py()
        self._guard.admit(sent, limits, f"lines {ends['min']} to {ends['max']} of {source or 'this call'} were")

    def _allow_ttl(self, ttl_s: int) -> None:
        """Make sure that nobody drops, or shows for too long, documents that are about to get this TTL."""
        known = self.settings
        if known.ttl_own_max_s is not None and known.ttl_own_max_s >= ttl_s:
            return
        self._settings.raise_ttl_own(ttl_s)
        self._keep_as_long_as_needed()

    def _keep_as_long_as_needed(self) -> None:
        """Bring the dataset's retention in line with the settings, also where others change them meanwhile."""
        while True:
            wanted = retention.retention_of(self.settings)
            self._dataset.set_retention(wanted)
            if retention.retention_of(self.settings) == wanted:
                return

    def _bury(self, rejects: list[Reject], batch: str, source: str) -> bool:
        """Keep dead letters; False where those of the batch are kept already."""
        self._dead.refresh()
        known = self._dead.batch(batch)
        if known is not None and known.finished:
            return False
        now = to_us(self._clock())
        rows = {
            "time": pa.array([now] * len(rejects), MOMENT),
            "source": [source] * len(rejects),
            "line": [reject.line for reject in rejects],
            "reason": [reject.reason for reject in rejects],
            "record": pa.array([reject.record for reject in rejects], pa.binary()),
            "batch": [batch] * len(rejects),
        }
        try:
            self._dead.write(rows, batch)
        except BatchConflictError as error:
            if error.kind != "batch-differs":
                raise
            # Somebody sent the same lines meanwhile: theirs differ in the time of rejection alone.
            return False
        return True

    def remove_batch(self, batch: str) -> int:
        """Remove the documents of a batch, and the dead letters of its lines; returns how many documents there were.

        Raises
        ------
        BatchNotFoundError
            When no batch has this name.
        """
        removed = self._dataset.remove_batch(batch)
        if self._dead.batch(batch) is not None:
            self._dead.remove_batch(batch)
        return removed

    def rejected_batches(self) -> list[BatchInfo]:
        """The batches of dead letters of which no line was a document."""
        stored = {batch.key for batch in self._dataset.batches() if batch.rows}
        return [batch for batch in self._dead.batches() if batch.key not in stored]

    def forget_rejects(self, batch: str) -> None:
        """Remove what a call left of which no line was a document: the lines are about to be read again."""
        if self._dataset.batch(batch) is not None:
            self._dataset.remove_batch(batch)
        self._dead.remove_batch(batch)

    def _declared(self) -> list[Field]:
        schema, paths = self._dataset.schema, self.settings.paths
        return [Field(name, paths.get(name, name), schema.field(name).type) for name in self.fields]

    def declare(self, fields: Mapping[str, str], paths: Mapping[str, str] | None = None) -> None:
        """Declare more fields. In documents stored before they are null; their text is as it was.

        Raises
        ------
        InvalidInputError
            A name that is taken, a type that cannot be.
        """
        if any(name in OWN_COLUMNS for name in fields) or any(name not in fields for name in paths or {}):
            raise InvalidInputError("a field has the name of a column of every archive of events, or paths names none",
                                    kind="invalid-definition")  # fmt: skip
        known = self.settings
        schema = pa.schema(inputs.schema(dict(fields)))
        wanted = {**known.paths, **(paths or {})}
        more = [Field(name, wanted.get(name, name), schema.field(name).type) for name in fields]
        parsing.check(self.reading(), [*self._declared(), *more])
        self._settings.write(replace(known, paths=wanted))
        self._dataset.add_columns(schema)

    # ------------------------------------------------------------------ search

    def search(
        self,
        *,
        start: times.Moment = None,
        end: times.Moment = None,
        streams: str | Iterable[str] | None = None,
        where: Where = None,
        text: str | None = None,
        columns: Iterable[str] | None = None,
        limit: int | None = 100,
        newest_first: bool = True,
        **equal: Any,
    ) -> pa.Table:
        """Documents, in order of time.

        Parameters
        ----------
        start, end : time, optional
            Half-open period, as for :meth:`chronotile.Dataset.read`.
        streams : str or iterable of str, optional
            Only these.
        where, **equal
            Conditions; see the class.
        text : str, optional
            What the whole document contains, letter by letter.
        columns : iterable of str, optional
            By default ``time``, ``stream``, the fields and ``body``. Documents also have ``source``, ``line``,
            ``batch``, ``body_bytes`` and ``ttl_s``.
        limit : int, optional
            At most so many. The rest of the period is not read. None for all.
        newest_first : bool
            The order, and which documents a limit leaves.
        """
        chosen = ["time", "stream", *self.fields, "body"] if columns is None else list(columns)
        self._check_columns(chosen)
        if limit is not None and limit < 1:
            raise InvalidInputError(f"limit is {limit}: ask for at least one document", kind="invalid-request")
        question = self._question(start, end, streams, where, text, equal)
        return pa.concat_tables(parts_in_order(self._dataset, question, chosen, limit, newest_first=newest_first))

    def search_parts(
        self, *, columns: Iterable[str] | None = None, limit: int = 100, newest_first: bool = True,
        bounds: Bounds = UNBOUNDED, **question: Any,
    ) -> Iterator[pa.Table]:  # fmt: skip
        """What :meth:`search` returns, in parts of some MiB, so that many large documents need not be held at once.

        `question` as for :meth:`count`, `bounds` of what is held. There is at least one part, which may have no rows.
        """
        chosen = ["time", "stream", *self.fields, "body"] if columns is None else list(columns)
        self._check_columns(chosen)
        asked = self.question(**question)
        return parts_in_order(self._dataset, asked, chosen, limit, newest_first=newest_first, bounds=bounds)

    def count(self, **question: Any) -> int:
        """Number of documents that :meth:`search` without a limit would return."""
        return count(self._dataset, self.question(**question))

    def histogram(
        self, interval: str | timedelta = "1h", *, by: str | Iterable[str] = (), bounds: Bounds = UNBOUNDED,
        **question: Any,
    ) -> pa.Table:  # fmt: skip
        """Documents over time, in intervals counted from 1970, or of the calendar (``"1mo"``, ``"1y"``); empty ones are
        left out. `bounds` of what is held.

        Returns
        -------
        pyarrow.Table
            ``start`` of each interval, the columns of `by`, ``count`` (int64); in order of time.
        """
        width = intervals.interval(interval)
        names = _listed(by)
        self._check_columns(names)
        return summaries.histogram(self._dataset, self.question(**question), width, names, bounds)

    def top(self, columns: str | Iterable[str], n: int = 10, **question: Any) -> pa.Table:
        """The `n` most frequent values of columns, with their ``share`` of all documents asked for.

        Returns
        -------
        pyarrow.Table
            The columns, ``count`` (int64), ``share`` (float64).
        """
        if n < 1:
            raise InvalidInputError(f"n is {n}: ask for at least one value", kind="invalid-request")
        names = _listed(columns)
        self._check_columns(names)
        return summaries.top(self._dataset, self.question(**question), names, n)

    def streams(self, **question: Any) -> pa.Table:
        """Volume and rate of each stream.

        Returns
        -------
        pyarrow.Table
            ``stream``, ``documents``, ``bytes`` (int64), ``first`` and ``last`` time, ``documents_per_hour`` and
            ``bytes_per_hour`` (float64) from the first to the last, counted as at least a second; by stream.
        """
        return summaries.streams(self._dataset, self.question(**question))

    def follow(self, **question: Any) -> Follower:
        """Documents as they are stored, whatever their time; see :class:`Follower`."""
        return Follower(self._dataset, lambda: self.question(**question), ["time", "stream", *self.fields, "body"])

    def question(
        self,
        *,
        start: times.Moment = None,
        end: times.Moment = None,
        streams: str | Iterable[str] | None = None,
        where: Where = None,
        text: str | None = None,
        **equal: Any,
    ) -> Question:
        """What the arguments of :meth:`search` ask for, of what is visible now."""
        return self._question(start, end, streams, where, text, equal)

    def _question(
        self,
        start: times.Moment,
        end: times.Moment,
        streams: str | Iterable[str] | None,
        where: Where,
        text: str | None,
        equal: Mapping[str, Any],
    ) -> Question:
        conditions = listed(where)
        for column, value in equal.items():
            several = isinstance(value, Iterable) and not isinstance(value, str | bytes)
            conditions.append((column, "in" if several else "==", list(value) if several else value))
        if text is not None:
            conditions.append(("body", "contains", text))
        bounds = [self._us(moment, what) for moment, what in ((start, "start"), (end, "end"))]
        if bounds[0] is not None and bounds[1] is not None and bounds[0] > bounds[1]:
            raise InvalidInputError(f"start {start} is after end {end}", kind="invalid-time")
        chosen = None if streams is None else tuple(_listed(streams))
        return Question(bounds[0], bounds[1], chosen, tuple(conditions), self._visibility())

    def _check_columns(self, names: list[str]) -> None:
        known = self._dataset.column_types
        for name in names:
            if name not in known:
                hint = name_hint(name, list(known))
                raise InvalidInputError(f"there is no column {name!r}{hint}", kind="invalid-request")

    def _us(self, moment: times.Moment, what: str) -> int | None:
        if moment is None:
            return None
        unit, value = times.moment(moment, self._dataset.time, what)
        return int(value) if unit == "ticks" else -(-int(value) // 1_000)

    def _visibility(self) -> Visibility:
        # The settings first: a TTL that a write gives is noted before its documents are there.
        known = self.settings
        return Visibility(to_us(self._clock()), known)

    # ------------------------------------------------------------------ dead letters

    def dead_letters(
        self, *, start: times.Moment = None, end: times.Moment = None, limit: int | None = None,
        bounds: Bounds = UNBOUNDED,
    ) -> pa.Table:  # fmt: skip
        """Lines that were no documents, the newest first: ``time`` of rejection, ``source``, ``line``, ``reason``, and
        ``record``, the bytes of the line. They live as long as documents without a TTL of their own."""
        question = Question(self._us(start, "start"), self._us(end, "end"), None, (),
                            Visibility(to_us(self._clock()), replace(self.settings, ttl_own_max_s=None)))  # fmt: skip
        columns = ["time", "source", "line", "reason", "record"]
        parts = parts_in_order(self._dead, question, columns, limit, newest_first=True, bounds=bounds)
        kept: list[pa.Table] = []
        for part in parts:
            kept.append(part)
            bounds.hold(2 * sum(table.nbytes for table in kept))
        return pa.concat_tables(kept)

    # ------------------------------------------------------------------ time to live

    def set_ttl(self, ttl: str | timedelta | None, *, dry_run: bool = False) -> TtlChange:
        """Change how long documents without a TTL of their own are visible.

        A shorter TTL hides documents at once; their storage stays until :meth:`reclaim`. A longer one never shows again
        what has expired.

        Parameters
        ----------
        ttl : str, timedelta or None
            ``"30d"``, or None for ever.
        dry_run : bool
            Change nothing, say what would change.
        """
        known, wanted, now = self.settings, retention.ttl_seconds(ttl), to_us(self._clock())
        report = retention.preview(self._dataset, known, wanted, now)
        if dry_run:
            return report
        after = retention.changed(known, wanted, now)
        if after.expired_us is not None:
            self._settings.raise_expired(after.expired_us)
        # In between nothing may be dropped that is visible before or afterwards.
        self._dataset.set_retention(None)
        self._settings.write(after)
        self._keep_as_long_as_needed()
        return report

    def reclaim(self, *, dry_run: bool = False) -> list[SliceInfo]:
        """Drop slices of which all documents have expired; returns those dropped, or with `dry_run` those that would.

        Slices go from the oldest on: one with a visible document, such as one of a long TTL of its own, keeps those
        after it.
        """
        visibility = self._visibility()
        gone = retention.expired_slices(self._dataset, visibility)
        if gone and not dry_run:
            # A slice that got a document since stays.
            gone = self._dataset.retire(unchanged=gone)
        if visibility.start_us is not None:
            self._dead.retire(before=visibility.start_us, dry_run=dry_run)
        return gone

    def set_limits(self, limits: Limits) -> None:
        """Change how much a stream may send; other processes follow with their next lines."""
        self._settings.write(replace(self.settings, limits=limits))


def _listed(names: str | Iterable[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)
