"""Events: documents of streams with a time to live, searched by time, field and text."""

from __future__ import annotations

import contextlib
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from chronotile import arguments, cells, inputs, intervals, scanning, times
from chronotile.archive import Archive
from chronotile.archive import open as open_archive
from chronotile.bounds import UNBOUNDED, Bounds
from chronotile.counting import refuse_names
from chronotile.dataset import Dataset
from chronotile.errors import BatchConflictError, BatchNotFoundError, DatasetNotFoundError, InvalidInputError
from chronotile.events import parsing, retention, summaries
from chronotile.events.following import Follower
from chronotile.events.limits import StreamRateLimiter
from chronotile.events.moments import MOMENT
from chronotile.events.parsing import Field, ReadOptions, Reject
from chronotile.events.retention import TtlChange
from chronotile.events.searching import Question, Visibility, count, parts_in_order, to_us
from chronotile.events.settings import Limits, Settings, SettingsStore
from chronotile.hints import name_hint
from chronotile.predicates import Where, equalities, listed, native_predicates
from chronotile.reports import BatchInfo, SliceInfo

__all__ = ["Events", "IngestReport", "create", "open"]

OWN_COLUMNS = ("time", "stream", "body", "body_bytes", "line", "source", "batch", "ttl_s")
"""Columns of every archive of events; fields cannot use these names."""

_KEPT_US = "timestamp[us, UTC]"
_DEAD_COLUMNS = {
    "time": _KEPT_US, "stream": "utf8", "source": "utf8", "line": "int64", "reason": "utf8", "record": "binary",
    "batch": "utf8",
}  # fmt: skip


@dataclass(frozen=True)
class IngestReport:
    """Report of an ingest."""

    batch: str
    """Name of the stored batch."""
    stored: bool
    """Whether anything was stored; False if the same batch was already stored."""
    documents: int
    """Documents accepted."""
    bytes: int
    """Bytes of these documents, without line ends."""
    blank: int
    """Blank lines, which are skipped."""
    rejects: tuple[Reject, ...] = ()
    """The first 10,000 invalid lines; they are stored as dead letters."""
    rejected: int = 0
    """Number of invalid lines."""
    reasons: dict[str, int] = field(default_factory=dict)
    """Rejected lines by reason, up to a hundred distinct reasons."""
    expired: int = 0
    """Stored documents that were already older than their TTL: searches do not return them."""

    @property
    def duplicates(self) -> int:
        """Number of documents that were already stored under the same batch."""
        return 0 if self.stored else self.documents

    def to_dict(self, errors_max: int | None = None) -> dict[str, Any]:
        """Convert to the service's answer: counts, counts by reason, and line number and reason of the first
        `errors_max` rejects; all recorded ones by default.
        """
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


_NAME_CHARS_MAX = 39
"""Most characters of a name: the names of its datasets add a suffix."""


def _is_name(name: str) -> bool:
    known = name.replace("_", "a")
    letters = known.isascii() and known.isalnum() and known.lower() == known
    return letters and name[0].isalpha() and len(name) <= _NAME_CHARS_MAX


def _source_text(source: str) -> str:
    return "standard input" if source == "-" else source or "this call"


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
    """Create an archive of events: the datasets `name`, ``name_dead`` for invalid lines, and ``name_settings``.

    Parameters
    ----------
    archive : Archive
        Archive to create it in.
    name : str
        1 to 39 of ``a-z 0-9 _``, beginning with a letter.
    fields : dict of str to str, optional
        Fields that become columns, with their types: ``{"process.pid": "int64", "message": "utf8"}``. A name with dots
        is a path into a JSON document. Other content is stored in the document only, where text search finds it.
    paths : dict of str to str, optional
        Path of a field, if it differs from its name: ``{"origin": "source"}``.
    time_field, time_format, stream_field : str
        Where JSON documents hold time and stream; see :meth:`Events.read_options`, which can override this.
    ttl : str or timedelta, optional
        Time to live of a document, from its own time: ``"30d"``. By default forever.
    limits : Limits, optional
        Rate limits of a stream.
    text : iterable of str
        Text columns with filters, which let a search for rare text skip chunks.
    buckets : int, optional
        Number of cells that streams share by a hash of their names. Few full cells take less space and are written
        faster than many small ones; with more cells, a search of one stream reads less. None for one cell per stream.
    window : str or timedelta
        Length of a window: about the period of a typical search.
    slice
        Windows in a slice, or its length: the unit of reclaimed storage.
    exist_ok : bool
        Open the archive of events if it exists with the same columns; its settings are not changed.

    Raises
    ------
    InvalidInputError
        Fields that cannot be columns.
    DatasetExistsError
        The name is taken.
    """
    if not _is_name(arguments.text(name, "name")):
        raise InvalidInputError(
            f"invalid name {scanning.shown(name)}: give 1 to {_NAME_CHARS_MAX} characters of a-z, 0-9 and _, beginning "
            "with a letter",
            kind="invalid-definition",
        )
    archive = arguments.instance(archive, Archive, "archive", "an open archive: chronotile.open(...)")
    exist_ok = arguments.flag(exist_ok, "exist_ok")
    declared: dict[str, str] = dict(arguments.instance(fields or {}, Mapping, "fields", "a dict of names and types"))
    paths = dict(arguments.instance(paths or {}, Mapping, "paths", "a dict of fields and their paths"))
    taken = [column for column in declared if column in OWN_COLUMNS]
    if taken:
        raise InvalidInputError(
            f"field name {taken[0]!r} is reserved: give the field another name, and set its path to "
            f"{taken[0]!r} in paths (--field NAME=TYPE@{taken[0]})",
            kind="invalid-definition",
        )
    strange = [column for column in paths if column not in declared]
    if strange:
        raise InvalidInputError(f"paths names the undeclared field {strange[0]!r}", kind="invalid-definition")
    settings = Settings(paths, time_field, time_format, stream_field, retention.ttl_seconds(ttl),
                        limits or Limits())  # fmt: skip
    columns = {
        "time": _KEPT_US, "stream": "utf8", **declared, "body": "utf8", "body_bytes": "int64", "line": "int64",
        "source": "utf8", "batch": "utf8", "ttl_s": "int64",
    }  # fmt: skip
    schema = pa.schema(inputs.schema(columns))
    found = [Field(column, settings.paths.get(column, column), schema.field(column).type) for column in declared]
    parsing.check(ReadOptions("ndjson", None, time_field, time_format, None, stream_field), found)
    existed = name in archive
    documents: dict[str, Any] = {
        "schema": schema, "cell": cells.hash("stream", buckets=buckets), "time": "time", "window": window,
        "slice": slice, "retention": archive[name].retention if existed else retention.retention_of(settings),
        "text": arguments.name_list(text, "text"),
    }  # fmt: skip
    if not existed:
        # If the definition is rejected, leave nothing in the archive.
        with open_archive("memory:") as scratch:
            scratch.create(name, **documents)
        # Create the dataset of documents last: the archive of events exists once it does.
        SettingsStore.create(archive, f"{name}_settings").write(settings)
        archive.create(
            f"{name}_dead", schema=_DEAD_COLUMNS, cell=cells.single(), time="time", window=window, slice=slice,
            exist_ok=True,
        )  # fmt: skip
    archive.create(name, **documents, exist_ok=exist_ok)
    return open(archive, name)


def open(archive: Archive, name: str = "events", *, clock: Callable[[], datetime] | None = None) -> Events:
    """Open an archive of events.

    Parameters
    ----------
    clock : callable, optional
        Source of the present time, which expires documents: returns an aware datetime. By default this machine's clock.

    Raises
    ------
    DatasetNotFoundError
        No such archive of events.
    """
    archive = arguments.instance(archive, Archive, "archive", "an open archive: chronotile.open(...)")
    dataset = archive.dataset(name)
    try:
        dead = archive.dataset(f"{name}_dead")
    except DatasetNotFoundError as error:
        raise DatasetNotFoundError(
            f"dataset {name} holds no events, as there is no dataset {name}_dead; create events under another name",
            kind=error.kind,
            dataset=name,
        ) from None
    return Events(dataset, dead, SettingsStore(archive.dataset(f"{name}_settings")), clock)


class Events:
    """Documents of streams, each with a time, a stream, declared fields and its whole text in ``body``.

    Queries take `start` and `end`, `streams`, conditions as keywords (``host="web1"``, ``severity=[0, 1, 2]``: equal to
    the value, or to one of several) and `where`, with all comparisons of :meth:`chronotile.Dataset.read`, such as
    ``("message", "contains", "timeout")``. Queries do not return expired documents. Thread-safe.
    """

    def __init__(
        self, dataset: Dataset, dead: Dataset, settings: SettingsStore, clock: Callable[[], datetime] | None = None
    ) -> None:
        self._dataset, self._dead, self._settings = dataset, dead, settings
        self._clock = clock or (lambda: datetime.now(UTC))
        self._limiter = StreamRateLimiter()

    def __repr__(self) -> str:
        return f"<Events {self._dataset.name}: {len(self.fields)} fields>"

    @property
    def dataset(self) -> Dataset:
        """The dataset of documents, for indexes, consolidation and verification. It holds expired documents until their
        slices are reclaimed.
        """
        return self._dataset

    @property
    def settings(self) -> Settings:
        """The current settings."""
        return self._settings.read()

    @property
    def fields(self) -> dict[str, str]:
        """The declared fields with their types."""
        return {name: kind for name, kind in self._dataset.column_types.items() if name not in OWN_COLUMNS}

    @property
    def ttl(self) -> str | None:
        """Time to live of documents without a TTL of their own; None for forever."""
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

    def read_options(self, format: str = "ndjson", **options: Any) -> ReadOptions:
        """Create and check the settings for reading lines.

        Parameters
        ----------
        format : {"ndjson", "syslog", "lines"}
            A JSON object a line; syslog messages (RFC 5424, and RFC 3164 with or without its priority); or lines that
            `pattern` parses.

        Other Parameters
        ----------------
        pattern : str
            Regular expression in RE2 syntax, searched for in each line. Its named groups are ``time``, ``stream`` and
            fields.
        time_field, stream_field : str
            For JSON, paths of time and stream; for syslog and lines, `stream_field` is the part that names the stream,
            such as ``host`` or ``app``. By default, for JSON, those set at creation.
        time_format : str
            ``iso8601`` (UTC where it has no zone), ``epoch_s``, ``epoch_ms``, ``epoch_us``, ``epoch_ns``, or a strptime
            pattern such as ``"%d/%b/%Y:%H:%M:%S %z"``, in which ``%f`` after the seconds is a fraction.
        year : int
            Year of times without one; by default the latest that does not put them in the future.
        stream : str
            Stream of documents that name none.

        Raises
        ------
        InvalidInputError
            The settings contradict each other, or the pattern is invalid.
        """
        if format == "ndjson":
            known = self.settings
            defaults = {name: getattr(known, name) for name in ("time_field", "time_format", "stream_field")}
            options = {**defaults, **{name: value for name, value in options.items() if value is not None}}
        else:
            options = {name: value for name, value in options.items() if value is not None}
        if format == "syslog" and "time_format" in options:
            raise InvalidInputError(
                "time_format cannot be set for syslog, which has its own time format", kind="invalid-setting"
            )
        try:
            found = ReadOptions(format, **options)
        except TypeError as error:
            raise InvalidInputError(f"reading: {error}", kind="invalid-setting") from None
        parsing.check(found, self._declared())
        return found

    def ingest_lines(
        self,
        data: bytes | str,
        read_options: ReadOptions | None = None,
        *,
        batch: str | None = None,
        source: str = "",
        first_line: int = 1,
        ttl: str | timedelta | None = None,
        limited: bool = True,
        line_bytes_max: int | None = None,
    ) -> IngestReport:
        """Store lines of text, such as a request body. They are durable when this returns.

        Parameters
        ----------
        data : bytes or str
            Lines that end in newlines; the last newline is optional.
        read_options : ReadOptions, optional
            From :meth:`read_options`; by default JSON documents, read with the settings of the archive.
        batch : str, optional
            Batch name: repeating the same lines under the same name changes nothing. Give one whenever the call may be
            repeated, such as the idempotency key of a request.
        source : str
            Source of the lines, stored with each.
        first_line : int
            Number of the first line.
        ttl : str or timedelta, optional
            The documents' own TTL, which later changes of the archive's TTL do not affect.
        limited : bool
            Whether to enforce the limits of streams.
        line_bytes_max : int
            Longer lines are rejected; 16 MiB by default.

        Raises
        ------
        BusyError
            A stream is over its limit (kind ``quota-exceeded``): nothing of the call was stored; repeat it later.
        BatchConflictError
            Other lines are stored under this name.
        """
        if not isinstance(data, str | bytes | bytearray | memoryview):
            raise InvalidInputError(
                f"cannot ingest lines from an object of type {type(data).__name__}: give text or bytes, a document on "
                "each line",
                kind="invalid-rows",
            )
        text = data.encode() if isinstance(data, str) else bytes(data)
        own_s = retention.ttl_seconds(ttl)
        chosen = read_options or self.read_options()
        documents = parsing.parse(text, first_line, chosen, self._declared(), line_bytes_max=line_bytes_max)
        return self._store(documents, batch or f"events:{uuid.uuid4().hex}", source, own_s, limited)

    def _store(
        self, documents: parsing.Documents, batch: str, source: str, ttl_s: int | None, limited: bool
    ) -> IngestReport:
        table = documents.table
        if limited:
            self._check_limits(table, batch, source)
        if ttl_s is not None:
            self._record_ttl(ttl_s)
        # Write dead letters before the documents: an interrupted call is repeated as a whole.
        rejects = documents.rejects
        dead_letters_stored = rejects.count > 0 and self._store_dead_letters(rejects.kept, batch, source)
        count = table.num_rows
        for name, value, kind in (
            ("source", source, pa.utf8()),
            ("batch", batch, pa.utf8()),
            ("ttl_s", ttl_s, pa.int64()),
        ):
            table = table.append_column(name, pa.array(pa.repeat(pa.scalar(value, kind), count)))
        rejected_fields = (tuple(rejects.kept), rejects.count, rejects.reasons)
        if rejects.count and not count:
            # Leave the batch name unused, so that the same lines can be ingested with other settings.
            return IngestReport(batch, dead_letters_stored, 0, 0, documents.blank, *rejected_fields)
        try:
            report = self._dataset.write(table.select(self._dataset.column_types), batch)
        except BatchConflictError as error:
            # The call stores nothing, so its dead letters must not stay either.
            if dead_letters_stored and error.kind == "batch-differs":
                self._dead.remove_batch(batch)
            raise
        size = pc.sum(table["body_bytes"]).as_py() or 0
        expired = self._expired(table) if report.stored else 0
        return IngestReport(batch, report.stored, count, size, documents.blank, *rejected_fields, expired)

    def _expired(self, table: pa.Table) -> int:
        """Number of documents that are already expired."""
        visible = self._visibility()
        parts = table.select(["time", "ttl_s"]).combine_chunks().to_batches()
        return sum(part.num_rows - int(visible.mask(part).sum()) for part in parts)

    def _check_limits(self, table: pa.Table, batch: str, source: str) -> None:
        limits = self.settings.limits
        if not table.num_rows or (limits.documents_per_s is None and limits.bytes_per_s is None):
            return
        known = self._dataset.batch(batch)
        if known is not None and known.finished:
            # A repeated batch stores nothing, so it does not count against the limits.
            return
        by_stream = table.group_by("stream").aggregate([("body_bytes", "count"), ("body_bytes", "sum")])
        sent = {row["stream"]: (row["body_bytes_count"], row["body_bytes_sum"]) for row in by_stream.to_pylist()}
        ends = pc.min_max(table["line"]).as_py()
        self._limiter.admit(sent, limits, f"lines {ends['min']} to {ends['max']} of {_source_text(source)} were")

    def _record_ttl(self, ttl_s: int) -> None:
        """Record a TTL before documents get it, so that they are neither dropped too early nor shown too long."""
        known = self.settings
        if known.ttl_own_max_s is not None and known.ttl_own_max_s >= ttl_s:
            return
        self._settings.raise_ttl_own(ttl_s)
        self._update_retention()

    def _update_retention(self) -> None:
        """Set the dataset's retention according to the settings, even if other processes change them meanwhile."""
        while True:
            wanted = retention.retention_of(self.settings)
            self._dataset.set_retention(wanted)
            if retention.retention_of(self.settings) == wanted:
                return

    def _store_dead_letters(self, rejects: list[Reject], batch: str, source: str) -> bool:
        """Store dead letters; return False if those of the batch are already stored."""
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
            # Another process stored the same lines meanwhile; only the time of rejection differs.
            return False
        return True

    def remove_batch(self, batch: str) -> int:
        """Remove the documents of a batch and its dead letters; return the number of documents.

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
        """Batches of dead letters in which every line was rejected."""
        stored = {batch.key for batch in self._dataset.batches() if batch.rows}
        return [batch for batch in self._dead.batches() if batch.key not in stored]

    def forget_rejects(self, batch: str) -> None:
        """Remove the dead letters of a call in which every line was rejected, before the lines are ingested again."""
        known = self._dataset.batch(batch)
        if known is not None and known.rows:
            # Another process has stored documents of the batch since its dead letters were listed.
            return
        with contextlib.suppress(BatchNotFoundError):
            # An unfinished batch may be another process's, which still stores it; the repeated call takes it over.
            if known is not None and known.finished:
                self._dataset.remove_batch(batch)
            self._dead.remove_batch(batch)

    def _declared(self) -> list[Field]:
        schema, paths = self._dataset.schema, self.settings.paths
        return [Field(name, paths.get(name, name), schema.field(name).type) for name in self.fields]

    def declare(self, fields: Mapping[str, str], paths: Mapping[str, str] | None = None) -> None:
        """Declare more fields. They are null in documents stored earlier, whose text is unchanged.

        Raises
        ------
        InvalidInputError
            A name is taken, or a type is not supported.
        """
        if any(name in OWN_COLUMNS for name in fields) or any(name not in fields for name in paths or {}):
            raise InvalidInputError("a field uses a reserved column name, or paths names an undeclared field",
                                    kind="invalid-definition")  # fmt: skip
        # Check before the settings are written: another path would redefine a declared field.
        self._dataset.refresh()
        declared = [name for name in fields if name in self.fields]
        if declared:
            raise InvalidInputError(
                f"field {declared[0]!r} is already declared: give the field another name", kind="invalid-definition"
            )
        known = self.settings
        schema = pa.schema(inputs.schema(dict(fields)))
        wanted = {**known.paths, **(paths or {})}
        more = [Field(name, wanted.get(name, name), schema.field(name).type) for name in fields]
        parsing.check(self.read_options(), [*self._declared(), *more])
        # Write the paths first: once a column exists, other processes fill it from the path in the settings.
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
        """Documents sorted by time.

        Parameters
        ----------
        start, end : time, optional
            Half-open period, as for :meth:`chronotile.Dataset.read`.
        streams : str or iterable of str, optional
            Only these streams.
        where, **equal
            Conditions; see the class.
        text : str, optional
            Text that the document must contain, literally.
        columns : iterable of str, optional
            By default ``time``, ``stream``, the fields and ``body``. Documents also have ``source``, ``line``,
            ``batch``, ``body_bytes`` and ``ttl_s``.
        limit : int, optional
            Most documents to return; the rest of the period is not read. None for all.
        newest_first : bool
            Sort order, which also determines the documents that `limit` keeps.
        """
        chosen = self._columns_or_default(columns)
        if limit is not None and arguments.integer(limit, "limit") < 1:
            raise InvalidInputError(f"limit={limit} is out of range: use at least 1", kind="invalid-request")
        question = self.question(start=start, end=end, streams=streams, where=where, text=text, **equal)
        return pa.concat_tables(parts_in_order(self._dataset, question, chosen, limit, newest_first=newest_first))

    def search_parts(
        self, *, columns: Iterable[str] | None = None, limit: int = 100, newest_first: bool = True,
        bounds: Bounds = UNBOUNDED, **question: Any,
    ) -> Iterator[pa.Table]:  # fmt: skip
        """Results of :meth:`search` in parts of a few MiB, to bound memory.

        `question` as for :meth:`count`; `bounds` limits memory. There is at least one part, which may be empty.
        """
        chosen = self._columns_or_default(columns)
        asked = self.question(**question)
        return parts_in_order(self._dataset, asked, chosen, limit, newest_first=newest_first, bounds=bounds)

    def count(self, **question: Any) -> int:
        """Number of documents that :meth:`search` would return without a limit."""
        return count(self._dataset, self.question(**question))

    def histogram(
        self, interval: str | timedelta = "1h", *, by: str | Iterable[str] = (), bounds: Bounds = UNBOUNDED,
        **question: Any,
    ) -> pa.Table:  # fmt: skip
        """Count documents over time, in intervals counted from 1970, or calendar intervals (``"1mo"``, ``"1y"``). Empty
        intervals are left out. `bounds` limits memory.

        Returns
        -------
        pyarrow.Table
            ``start`` of each interval, the columns of `by`, ``count`` (int64); in order of time.
        """
        width = intervals.interval(interval)
        names = arguments.name_list(by, "by")
        self._check_columns(names)
        refuse_names(names, ["start", "count"])
        return summaries.histogram(self._dataset, self.question(**question), width, names, bounds)

    def top(self, columns: str | Iterable[str], n: int = 10, **question: Any) -> pa.Table:
        """The `n` most frequent values of columns, with their ``share`` of all selected documents.

        Returns
        -------
        pyarrow.Table
            The columns, ``count`` (int64), ``share`` (float64).
        """
        n = arguments.integer(n, "n")
        if n < 1:
            raise InvalidInputError(f"n={n} is out of range: use at least 1", kind="invalid-request")
        names = arguments.name_list(columns, "columns")
        self._check_columns(names)
        refuse_names(names, ["count", "share"])
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
        """Follow documents as they are stored, whatever their time; see :class:`Follower`."""
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
        """Convert the arguments of :meth:`search` to a query on the documents that are visible now."""
        known = self._dataset.column_types
        conditions = listed(where, known) + equalities(equal)
        # Check the conditions here: if the period has no documents, no read would reject invalid ones.
        native_predicates(conditions, known)
        if text is not None:
            conditions.append(("body", "contains", arguments.text(text, "text")))
        bounds = [self._us(moment, what) for moment, what in ((start, "start"), (end, "end"))]
        if bounds[0] is not None and bounds[1] is not None and bounds[0] > bounds[1]:
            raise InvalidInputError(f"start {start} is after end {end}", kind="invalid-time")
        chosen = None if streams is None else tuple(arguments.name_list(streams, "streams"))
        return Question(bounds[0], bounds[1], chosen, tuple(conditions), self._visibility())

    def _columns_or_default(self, columns: Iterable[str] | None) -> list[str]:
        """Columns to return: the requested ones, or the default ones."""
        if columns is None:
            return ["time", "stream", *self.fields, "body"]
        chosen = arguments.name_list(columns, "columns")
        self._check_columns(chosen)
        return chosen

    def _check_columns(self, names: list[str]) -> None:
        known = self._dataset.column_types
        for name in names:
            if name not in known:
                hint = name_hint(name, list(known))
                raise InvalidInputError(f"no column {name!r}{hint}", kind="invalid-request")

    def _us(self, moment: times.Moment, what: str) -> int | None:
        if moment is None:
            return None
        unit, value = times.moment(moment, self._dataset.time, what)
        # Round up: times of documents are whole microseconds, so they are at or after a time exactly if they are at or
        # after the next microsecond.
        return int(value) if unit == "ticks" else -(-int(value) // 1_000)

    def _visibility(self) -> Visibility:
        # Read the settings first: a write records its TTL before it stores documents.
        known = self.settings
        return Visibility(to_us(self._clock()), known)

    # ------------------------------------------------------------------ dead letters

    def dead_letters(
        self, *, start: times.Moment = None, end: times.Moment = None, limit: int | None = None,
        bounds: Bounds = UNBOUNDED,
    ) -> pa.Table:  # fmt: skip
        """Rejected lines, newest first: ``time`` of rejection, ``source``, ``line``, ``reason``, and ``record``, the
        bytes of the line. They have the TTL of documents without one of their own.
        """
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
        """Change the time to live of documents without a TTL of their own.

        A shorter TTL hides documents at once; :meth:`reclaim` frees their storage. A longer TTL does not bring back
        expired documents.

        Parameters
        ----------
        ttl : str, timedelta or None
            ``"30d"``, or None for forever.
        dry_run : bool
            Report what would change; change nothing.
        """
        known, wanted, now = self.settings, retention.ttl_seconds(ttl), to_us(self._clock())
        report = retention.preview(self._dataset, known, wanted, now)
        if dry_run:
            return report
        after = retention.changed(known, wanted, now)
        if after.expired_us is not None:
            # Mark the expired documents first: after an interruption, a longer TTL must not bring them back.
            self._settings.raise_expired(after.expired_us)
        # Between the two changes, keep all documents that are visible before or after both.
        self._dataset.set_retention(None)
        self._settings.write(after)
        self._update_retention()
        return report

    def reclaim(self, *, dry_run: bool = False) -> list[SliceInfo]:
        """Drop slices in which all documents have expired; return those dropped, or with `dry_run` those that would be.

        Slices are dropped from the oldest on: a slice with a visible document, for example one with a long TTL, also
        keeps all later slices.
        """
        visibility = self._visibility()
        gone = retention.expired_slices(self._dataset, visibility)
        if gone and not dry_run:
            # `retire` keeps a slice that got documents meanwhile.
            gone = self._dataset.retire(unchanged=gone)
        if visibility.start_us is not None:
            self._dead.retire(before=visibility.start_us, dry_run=dry_run)
        return gone

    def set_limits(self, limits: Limits) -> None:
        """Change the limits of streams; other processes apply them from their next ingest on."""
        self._settings.write(replace(self.settings, limits=limits))
