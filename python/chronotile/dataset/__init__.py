"""Datasets: write, read and maintain records."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from chronotile import _native, arguments, cells, inputs, optional, times
from chronotile.dataset.consolidation import consolidate_options
from chronotile.dataset.keys import cell_columns, key_arrays
from chronotile.dataset.retirement import retire_limit
from chronotile.errors import InvalidInputError
from chronotile.hints import name_list
from chronotile.predicates import Where, native_predicates
from chronotile.reports import (
    BatchInfo,
    ConsolidateReport,
    Damage,
    DamagedRecord,
    DatasetInfo,
    ForeignChunk,
    IndexBuildReport,
    IndexInfo,
    IndexUse,
    RowsMissing,
    SliceInfo,
    Spread,
    Tile,
    VerifyReport,
    WriteReport,
    utc_of_us,
)
from chronotile.result import ReadResult

if TYPE_CHECKING:
    import polars
    import pyarrow

    from chronotile.sky import Region

__all__ = ["Dataset"]

Progress = Callable[[int, int], object]
"""Called repeatedly with (tiles done, tiles in total), from another thread."""


@dataclass(frozen=True)
class _Definition:
    """A definition, parsed from what the native module has cached."""

    revision: int
    schema: _native.Schema
    types: dict[str, str]
    axis: times.TimeAxis
    cell: cells.CellRule
    parts: dict[str, Any]
    """The whole definition as stored: JSON, decoded."""

    @classmethod
    def of(cls, native: _native.Dataset) -> _Definition:
        text, schema, revision = native.definition()
        parts = json.loads(text)
        types = {name: kind for name, kind, _ in schema.columns()}
        return cls(revision, schema, types, times.TimeAxis(**parts["time"]), cells.from_json(parts["cell"]), parts)


def check_batch_name(batch: str | None) -> None:
    """Reject a batch name that is not text."""
    if batch is not None and not isinstance(batch, str):
        raise InvalidInputError(f"invalid batch name {batch!r}: give text, or leave it out", kind="invalid-request")


class Dataset:
    """Records of one kind: a schema with a cell rule, a time axis, id columns and a merge rule.

    Returned by :meth:`Archive.create`, :meth:`Archive.dataset` or ``archive["name"]``. Thread-safe; operations release
    the interpreter lock.
    """

    def __init__(self, native: _native.Dataset) -> None:
        self._native = native
        self._cached_definition = _Definition.of(native)

    @property
    def _definition(self) -> _Definition:
        """The definition that this process last read or changed."""
        if self._cached_definition.revision != self._native.revision:
            self._cached_definition = _Definition.of(self._native)
        return self._cached_definition

    def tuned(
        self,
        consistency: str | None = None,
        *,
        read_consistency: str | None = None,
        write_consistency: str | None = None,
        timeout_s: int | None = None,
    ) -> Dataset:
        """The same dataset with another consistency level or timeout; on a cluster only.

        Parameters
        ----------
        consistency : str
            Level of reads and writes: ``ONE``, ``TWO``, ``THREE``, ``QUORUM``, ``ALL``, ``LOCAL_QUORUM``,
            ``EACH_QUORUM``, ``LOCAL_ONE``; or ``ANY``, of writes only. Settings that are not given are those of the
            archive's URL.
        read_consistency, write_consistency : str
            Separate levels for reads and writes.
        timeout_s : int
            Timeout of an operation in seconds, including retries; 1 to 3,600.

        Raises
        ------
        InvalidInputError
            Unknown level, or an engine with a single copy, which has no levels.

        Examples
        --------
        ``ds.tuned("ONE").read(region=region)`` reads from the nearest replica; ``ds.tuned(timeout_s=2).count()`` times
        out after two seconds.
        """
        read = read_consistency or (None if consistency == "ANY" else consistency)
        return Dataset(self._native.tuned(read, write_consistency or consistency, timeout_s))

    def seeing_every_write(self) -> Dataset:
        """The same dataset with a read level that sees every write acknowledged at the level of the archive's URL.

        Use it to copy rows elsewhere before dropping their slices with ``retire(unchanged=slices)``. On a cluster,
        reads then ask a majority of replicas, or all of them if writes need fewer than a majority. An archive in a file
        has one copy, so every read sees everything.

        Examples
        --------
        ::

            ds = archive["detections"].seeing_every_write()
            slices = ds.retire(older_than="3650d", dry_run=True)
            for part in slices:
                keep(ds.read(start=part.start, end=part.end))
            ds.retire(unchanged=slices)
        """
        return Dataset(self._native.seeing_every_write())

    def __repr__(self) -> str:
        columns = len(self._definition.types)
        return f"<Dataset {self.name}: {columns} columns, time {self.time.column}, window {self.window}>"

    # ------------------------------------------------------------------ definition

    @property
    def name(self) -> str:
        """Name of the dataset."""
        return str(self._definition.parts["name"])

    @property
    def schema(self) -> pyarrow.Schema:
        """The columns as a `pyarrow.Schema`. Needs pyarrow; :attr:`column_types` does not."""
        found: pyarrow.Schema = optional.module("pyarrow", "schema", "arrow").schema(self._definition.schema)
        return found

    @property
    def column_types(self) -> dict[str, str]:
        """Type of each column as text, such as ``float64`` or ``timestamp[us]``, in order."""
        return dict(self._definition.types)

    @property
    def cell(self) -> cells.CellRule:
        """Cell rule: how a record's cell follows from its columns."""
        return self._definition.cell

    @property
    def time(self) -> times.TimeAxis:
        """The time axis."""
        return self._definition.axis

    @property
    def window(self) -> str:
        """Length of a window, such as ``30d``."""
        return str(self._definition.parts["window"])

    @property
    def windows_per_slice(self) -> int:
        """Windows in a slice, the unit of retention."""
        return int(self._definition.parts["windows_per_slice"])

    @property
    def id(self) -> tuple[str, ...]:
        """Columns that identify a record; empty if each row is a record of its own."""
        return tuple(self._definition.parts["id"])

    @property
    def merge(self) -> str:
        """Merge rule for rows with equal ids: ``append`` or ``latest``."""
        return str(self._definition.parts["merge"]["merge"])

    @property
    def version(self) -> str | None:
        """Column that orders versions with merge ``latest``, if any."""
        version = self._definition.parts["merge"].get("version")
        return None if version is None else str(version)

    @property
    def layout(self) -> str:
        """Storage layout: ``chunks``, or ``rows``, which other tools of a cluster can read."""
        return str(self._definition.parts.get("layout", "chunks"))

    @property
    def partition_cells(self) -> int:
        """Number of neighbouring cells that share a partition on a cluster."""
        return int(self._definition.parts.get("partition_cells", 1))

    @property
    def text(self) -> tuple[str, ...]:
        """Text columns with filters; see :meth:`Archive.create`."""
        return tuple(self._definition.parts.get("text", ()))

    @property
    def moves(self) -> float:
        """Largest distance between two versions of a record, in degrees; 0 if records do not move."""
        return float(self._definition.parts.get("moves_deg", 0.0))

    @property
    def group(self) -> str | None:
        """Name of the group that the dataset belongs to, if any."""
        group = self._definition.parts.get("group")
        return None if group is None else str(group["group"])

    @property
    def shares_slices_with(self) -> list[str]:
        """Names of the other datasets whose rows lie in the same slices and are retired with them."""
        return self._native.shares_slices_with()

    @property
    def retention(self) -> str | None:
        """Age past which :meth:`retire` drops slices, such as ``365d``; None for never."""
        retention = self._definition.parts["retention"]
        return None if retention is None else str(retention)

    def refresh(self) -> None:
        """Read the definition again, which another process may have changed. Reads do so by themselves.

        Raises
        ------
        DatasetNotFoundError
            The dataset was dropped.
        """
        self._native.refresh()

    def add_columns(self, columns: Any, defaults: Mapping[str, Any] | None = None) -> None:
        """Add columns after the present ones. Existing rows get the default, or null.

        Parameters
        ----------
        columns : schema
            As for :meth:`Archive.create`: a `pyarrow.Schema`, or a dict such as ``{"flux": "float32"}``.
        defaults : dict, optional
            Value for existing rows, by column; null by default.

        Raises
        ------
        InvalidInputError
            A name is taken, a type is not supported, or a non-nullable column has no default.
        """
        schema = inputs.schema(columns)
        defaults = dict(defaults or {})
        arrays: list[_native.Array | None] = []
        for name, kind, _ in schema.columns():
            value = defaults.pop(name, None)
            arrays.append(None if value is None else inputs.values_column([value], kind, f"default of column {name!r}"))
        if defaults:
            raise InvalidInputError(
                f"defaults given for unknown columns {name_list(map(repr, defaults))}: name only new columns",
                kind="invalid-definition",
            )
        self._native.add_columns(schema, arrays)

    def set_moves(self, moves: Any) -> None:
        """Set the largest distance between two versions of a record: degrees, text such as ``"5arcsec"``, or a
        Quantity. It affects reads only, so it can be set at any time.

        Raises
        ------
        InvalidInputError
            The angle is not 0 to 10 degrees, or the dataset lacks merge ``latest`` or sky pixels.
        """
        self._native.set_moves(cells.angle_deg(moves, "moves"))

    def set_retention(self, retention: str | timedelta | None) -> None:
        """Change the age past which :meth:`retire` drops slices: ``"365d"``, a timedelta, or None for never."""
        self._native.set_retention(None if retention is None else times.duration_text(retention, "retention"))

    # ------------------------------------------------------------------ writing

    def write(self, data: Any, batch: str | None = None, *, replace: bool = False) -> WriteReport:
        """Store rows as one batch. They are durable when this returns.

        Parameters
        ----------
        data : table, stream, dict of arrays, or iterable of those
            Anything with ``__arrow_c_stream__`` or ``__arrow_c_array__`` (pyarrow, polars, DuckDB, a
            :class:`ReadResult`), a pandas DataFrame (named index levels become columns, an unnamed index is left out),
            a polars LazyFrame (which is collected), or a dict of numpy arrays, lists or Arrow arrays of equal length.
            Iterables are consumed lazily, so inputs may be larger than memory. Columns are matched by name; nullable
            columns may be missing. NaN is a value, not null.
        batch : str, optional
            Name of the batch. The same name with the same content is stored once, however often it is written: name the
            batch whenever the write may be repeated (visit and detector, file and rows). If slices with rows of the
            batch were retired since, all of its rows are stored again.
        replace : bool
            Whether to replace a stored batch of this name that has other content.

        Returns
        -------
        WriteReport
            ``stored`` is False if the same content was already stored.

        Raises
        ------
        InvalidInputError
            Rows do not match the dataset; the error names column and row. Nothing was stored.
        BatchConflictError
            A batch of this name is stored with other content. The name becomes free once all rows of its batch are
            removed or retired.
        BusyError, OutcomeUnknownError, StorageFullError, ReadOnlyError
            Raised by the engine; see :mod:`chronotile.errors` for what to do.
        """
        check_batch_name(batch)
        replace = arguments.flag(replace, "replace")
        return WriteReport(**self._native.write(self.native_rows(data), batch, replace))

    def native_rows(self, data: Any) -> Any:
        """Convert rows for the native module. For the package's own modules."""
        return inputs.rows(data, self._definition.types)

    def batches(self) -> list[BatchInfo]:
        """All stored batches, finished and unfinished, in the order of writing."""
        return [self.batch_info(info) for info in self._native.batches()]

    def batch(self, key: str) -> BatchInfo | None:
        """The batch of this name, or None; answers "is this visit stored?"."""
        info = self._native.batch(key)
        return None if info is None else self.batch_info(info)

    def remove_batch(self, key: str) -> int:
        """Remove the rows of a batch; return their number, without rows retired earlier. Batches of a group are removed
        with :meth:`Group.remove_batch`.

        Reads that begin after the call do not return them. The next :meth:`consolidate` ten minutes or more later frees
        their space.

        Raises
        ------
        BatchNotFoundError
            No batch has this name.
        """
        return self._native.remove_batch(key)

    def batch_info(self, info: dict[str, Any]) -> BatchInfo:
        """Convert a native report of a batch. For the package's own modules."""
        ticks, written = info.pop("ticks"), utc_of_us(info.pop("written_us"))
        period = None if ticks is None else (self._tick(ticks[0]), self._tick(ticks[1]))
        return BatchInfo(**info, period=period, written=written)

    def _tick(self, tick: int) -> datetime | float | int:
        return times.tick_value(tick, self.time, self._definition.types[self.time.column])

    # ------------------------------------------------------------------ reading

    def read(
        self,
        *,
        region: Region | None = None,
        cells: Iterable[int] | None = None,
        keys: Any = None,
        ids: Any = None,
        start: times.Moment = None,
        end: times.Moment = None,
        columns: Iterable[str] | None = None,
        where: Where = None,
        history: bool = False,
        order_by: str | Iterable[str] | None = None,
        limit: int | None = None,
    ) -> ReadResult:
        """Read records by place, period, id and condition, exactly.

        Parameters
        ----------
        region : Region, optional
            Sky region, for datasets with sky cells: :func:`chronotile.circle`, :func:`chronotile.box`,
            :func:`chronotile.polygon`; degrees, including the border.
        cells : iterable of int, optional
            Whole cells by number.
        keys : value, list or array, or tuple of them, optional
            Values of the cell rule's column, such as tag numbers or stream names; for rules of several columns a tuple
            of lists, one per column. Give at most one of `region`, `cells` and `keys`.
        ids : value, list or array, or tuple of them, optional
            Ids of records; for several id columns a tuple of lists of equal length (at least for the first columns).
        start, end : time, optional
            Half-open period ``start <= t < end``: a number in the unit of the time column (days for MJD and JD; whole
            ticks for timestamps), a datetime, date, `numpy.datetime64` or `pandas.Timestamp` (UTC if it has no zone),
            ISO 8601 text, ``now`` or ``now-6h``, or an `astropy.time.Time`. Times other than numbers are converted to
            the column's scale.
        columns : iterable of str, optional
            Columns to return, in this order; by default all.
        where : text, (column, comparison, value), or list of those, optional
            Conditions, all of which must hold; as text, in the syntax of the command line: ``"magpsf<16"``, ``"band in
            g,r"``. Comparisons: ``== != < <= > >=``, ``in`` with a list, ``between`` with a pair, both ends included;
            of text ``contains`` and ``prefix`` with a text, ``matches`` with a regular expression (of the Rust crate
            `regex`; ``(?i)`` ignores case) that may match anywhere; ``exists`` with True (not null) or False (null).
            Null matches no other comparison; NaN matches only ``!=``. Constants are compared exactly: ``("price", "==",
            "1.025")`` matches no value with two decimal places, and noon is after its day. A float stands for its
            shortest decimal. Incomparable types raise an error.
        history : bool
            With merge ``latest``, return every version instead of the newest.
        order_by : str or iterable of str, optional
            Returned columns to sort by; a minus sign sorts in descending order: ``"-jd"``. Nulls come last. By default
            the order of rows is undefined.
        limit : int, optional
            Most rows to return; with `order_by`, the first in that order. Reading stops once there are enough.

        Returns
        -------
        ReadResult
            A stream that can be consumed once. With `order_by`, all rows are read before the first is returned, and
            results above about 300 MiB are sorted in temporary files; with `limit`, only candidates for the first rows
            are kept.

        Raises
        ------
        InvalidInputError
            A column, place or time does not match the dataset; or a regular expression is invalid or too large.
        DamagedChunkError
            Raised while rows are consumed, if a chunk that the read needs is damaged.
        """
        request = self.native_request(
            region=region, cells=cells, keys=keys, ids=ids, start=start, end=end, columns=columns, where=where,
            history=history,
        )  # fmt: skip
        result = self._native.read(request)
        rows = None if limit is None else _row_limit(limit)
        if order_by is not None:
            keys = [order_by] if isinstance(order_by, str) else list(order_by)
            for name in (key.removeprefix("-") for key in keys):
                if name in self.column_types and name not in result.column_names:
                    raise InvalidInputError(
                        f"order_by column {name!r} is not among the returned columns: add it to columns, or leave "
                        "columns out",
                        kind="invalid-request",
                    )
            result = result.order_by([(key.removeprefix("-"), key.startswith("-")) for key in keys], rows)
        elif rows is not None:
            result.limit(rows)
        return ReadResult(result)

    def latest(self, *, by: Iterable[str] | None = None, **place: Any) -> ReadResult:
        """The newest record, by time, of each key.

        Parameters
        ----------
        by : iterable of str, optional
            Return one row per distinct value of these columns. By default, the cell rule's column for key and hash
            cells, else the id columns.
        **place
            As for :meth:`read`: region, cells, keys, ids, start, end, columns, where.
        """
        by = None if by is None else arguments.name_list(by, "by")
        return ReadResult(self._native.latest(self.native_request(**place), by))

    def count(self, **place: Any) -> int:
        """Number of records that :meth:`read` with the same arguments would return."""
        return self._native.count(self.native_request(**place))

    def count_by(
        self, columns: str | Iterable[str] = (), *, by_window: bool = False, groups_max: int | None = None, **place: Any
    ) -> pyarrow.Table:
        """Count records by the values of columns. Needs pyarrow.

        An index with all columns of the request gives the counts without reading records; see :meth:`create_index`.

        Parameters
        ----------
        columns : str or iterable of str
            Columns to group by.
        by_window : bool
            Also group by window; the first column, ``window``, is its start.
        groups_max : int, optional
            Raise an error if there are more groups, which are held in memory.
        **place
            As for :meth:`read`: region, cells, keys, ids, start, end, where, history.

        Returns
        -------
        pyarrow.Table
            The columns, then ``count`` (uint64).
        """
        arrow = optional.module("pyarrow", "count_by()", "arrow")
        by = arguments.name_list(columns, "columns")
        table, _ = self._native.count_by(self.native_request(**place), by, by_window, groups_max)
        counts: pyarrow.Table = arrow.table(table)
        return counts

    def explain(self, *, by: str | Iterable[str] | None = None, **place: Any) -> IndexUse:
        """Explain how :meth:`read` with these arguments uses an index and text filters; with `by` (may be empty), how
        :meth:`count_by` does. Reads chunk heads, but no records.
        """
        names = None if by is None else arguments.name_list(by, "by")
        used = self._native.explain(self.native_request(**place), names)
        for name in ("windows_indexed", "windows_direct"):
            used[name] = tuple(map(self._tick, used[name]))
        return IndexUse(**used)

    def scan(self) -> polars.LazyFrame:
        """The dataset as a `polars.LazyFrame`. Needs polars.

        Polars pushes projections and filters down: comparisons of columns with constants, ``is_in``, ``is_between``,
        ``is_null``, ``is_not_null``, ``str.starts_with`` and ``str.contains`` of plain text become the period, ids and
        conditions of a :meth:`read`. Polars applies all other filters itself, so the result is always the same as
        without pushdown.
        """
        from chronotile.dataset.polars_source import scan

        return scan(self)

    def native_request(
        self,
        *,
        region: Region | None = None,
        cells: Iterable[int] | None = None,
        keys: Any = None,
        ids: Any = None,
        start: times.Moment = None,
        end: times.Moment = None,
        columns: Iterable[str] | None = None,
        where: Where = None,
        history: bool = False,
    ) -> _native.Request:
        if region is not None and not isinstance(region, _native.Region):
            raise InvalidInputError(
                f"invalid region {region!r}: give ct.circle, ct.box or ct.polygon", kind="invalid-request"
            )
        return _native.Request(
            region=region,
            cells=None if cells is None else [int(cell) for cell in cells],
            keys=None if keys is None else key_arrays(self, keys, cell_columns(self), "keys"),
            ids=None if ids is None else key_arrays(self, ids, self.id, "ids"),
            start=None if start is None else times.moment(start, self.time, "start"),
            end=None if end is None else times.moment(end, self.time, "end"),
            columns=None if columns is None else arguments.name_list(columns, "columns"),
            predicates=native_predicates(where, self._definition.types),
            history=arguments.flag(history, "history"),
        )

    # ------------------------------------------------------------------ indexes

    def create_index(self, columns: str | Iterable[str], name: str | None = None) -> None:
        """Define an index on a combination of columns. Build it with :meth:`build_indexes`, regularly. Reads and counts
        whose conditions name its columns (``==``, ``in``, ``<`` and all others) use it automatically. An index never
        changes a result: windows that are not indexed, or out of date, are read directly.

        Parameters
        ----------
        columns : str or iterable of str
            One to sixteen columns, neither lists nor structs.
        name : str, optional
            By default the columns' names, joined by ``_``.

        Raises
        ------
        InvalidInputError
            An index of this name exists (kind ``index-exists``), or a column does not exist or cannot be indexed.
        """
        names = arguments.name_list(columns, "columns")
        self._native.create_index("_".join(names)[:48].lower() if name is None else name, names)

    def drop_index(self, name: str) -> int:
        """Drop an index; return how many windows were built.

        Raises
        ------
        InvalidInputError
            No such index.
        """
        return self._native.drop_index(name)

    def indexes(self) -> list[IndexInfo]:
        """The indexes and their state."""
        return [self._index_info(status) for status in self._native.index_status()]

    def _index_info(self, status: dict[str, Any]) -> IndexInfo:
        ticks, built_us = status.pop("ticks"), status.pop("built_us")
        period = None if ticks is None else (self._tick(ticks[0]), self._tick(ticks[1]))
        built = None if built_us is None else datetime.fromtimestamp(built_us / 1_000_000, UTC)
        return IndexInfo(**{**status, "columns": tuple(status["columns"])}, period=period, built=built)

    def build_indexes(
        self,
        name: str | None = None,
        *,
        start: times.Moment = None,
        end: times.Moment = None,
        lease_s: int = 60,
        wait: bool = True,
        rebuild: bool = False,
        progress: Progress | None = None,
    ) -> IndexBuildReport:
        """Bring indexes up to date by reading what has changed, window by window.

        Any number of processes on any number of machines may build concurrently; they share the windows. An interrupted
        build continues where it stopped.

        Parameters
        ----------
        name : str, optional
            The index; by default all.
        start, end : time, optional
            Only windows that the period touches.
        lease_s : int
            Seconds, 1 to 3,600, after which other builders take over the window of a silent builder.
        wait : bool
            Whether to wait for windows that other builders work on, instead of returning when nothing is left to start.
        rebuild : bool
            Rebuild every window.
        progress : callable, optional
            Called with (windows done, windows in total).
        """
        if not 1 <= lease_s <= 3_600:
            raise InvalidInputError(f"lease_s={lease_s} is out of range: use 1 to 3600 seconds", kind="invalid-request")
        period = [None if m is None else times.moment(m, self.time, w) for m, w in ((start, "start"), (end, "end"))]
        report = self._native.build_indexes(name, period[0], period[1], lease_s, wait, rebuild, progress)
        return IndexBuildReport(**report)

    # ------------------------------------------------------------------ maintenance

    def consolidate(
        self,
        *,
        before: times.Moment = None,
        chunks_min: int | None = None,
        dry_run: bool = False,
        shard: tuple[int, int] | None = None,
        tiles_per_s: float | None = None,
        progress: Progress | None = None,
    ) -> ConsolidateReport:
        """Merge the many small chunks of a tile into few large ones. Reads return the same rows before, during and
        after.

        Tiles without writes since their last consolidation are skipped. A tile that cannot be rewritten, for example
        because of a damaged chunk, is named in the report and does not stop the others. Memory use does not depend on
        the size of a tile.

        Parameters
        ----------
        before : time, optional
            Only windows that end at or before this time (as `start` of :meth:`read`).
        chunks_min : int, optional
            Skip tiles with fewer chunks; 2 by default.
        dry_run : bool
            Count what would be done; change nothing.
        shard : tuple of int, optional
            Number of this process, from 1, and number of all processes, as in ``(2, 8)``: only tiles of its partitions.
            Eight processes with ``(1, 8)`` to ``(8, 8)`` share the work, on one machine or on several.
        tiles_per_s : float, optional
            Rewrite at most this many tiles per second, to leave room for readers and writers.
        progress : callable, optional
            Called with (tiles done, tiles in total).

        Raises
        ------
        InvalidInputError
            `shard` does not name one of several processes, or `tiles_per_s` is not a positive number.
        """
        options = consolidate_options(self.time, before, chunks_min, dry_run, shard, tiles_per_s)
        return ConsolidateReport.of_native(self._native.consolidate(options, progress))

    def prepare(self, start: times.Moment, end: times.Moment) -> list[int]:
        """Create the slices of a half-open period in advance; return their numbers.

        On a cluster, writers of a new slice wait about a second until its table is created. Preparing next month's
        slices avoids this. Existing slices are not changed.

        Raises
        ------
        InvalidInputError
            The period has no start or end, or more than 1,000 slices.
        """
        if start is None or end is None:
            raise InvalidInputError("a period to prepare needs both a start and an end", kind="invalid-request")
        return self._native.prepare(times.moment(start, self.time, "start"), times.moment(end, self.time, "end"))

    def retire(
        self,
        *,
        before: times.Moment = None,
        older_than: str | timedelta | None = None,
        unchanged: Iterable[SliceInfo] | None = None,
        dry_run: bool = False,
    ) -> list[SliceInfo]:
        """Drop whole slices that are too old; return those dropped, or with `dry_run` those that would be.

        Writers may continue meanwhile. Rows written in time are dropped too, and are included in the result; a later
        write is rejected, and can be repeated. On a cluster, this first waits 12 s for writers.

        Without `before`, `older_than` and `unchanged`, the dataset's own retention applies.

        Parameters
        ----------
        before : time, optional
            Drop slices that end at or before this time.
        older_than : str or timedelta, optional
            Drop slices that ended at least this long before now, by this machine's clock: ``"365d"``. Times in the data
            never cause expiry.
        unchanged : iterable of SliceInfo, optional
            Drop these slices, from a dry run or :meth:`info`, if they have not changed since. Changed slices stay and
            are not returned.
        dry_run : bool
            Drop nothing.

        Raises
        ------
        InvalidInputError
            Two limits are given; or none, and the dataset has no retention; or its slices also hold rows of other
            datasets (see :attr:`shares_slices_with`): use :meth:`Group.retire`.
        BusyError
            Kind ``slice-in-use``: other processes keep writing to a slice, or retire it. Earlier slices are dropped.
        """
        limit = retire_limit(self.time, before, older_than, unchanged, dry_run)
        if isinstance(limit, list):
            return [self.slice_info(info) for info in self._native.retire_unchanged(limit)]
        return [self.slice_info(info) for info in self._native.retire(*limit, dry_run)]

    def verify(self, *, progress: Progress | None = None) -> VerifyReport:
        """Read and check every chunk, look for missing rows and foreign chunks, and check the catalog records. Damage
        is reported, not raised.
        """
        report = self._native.verify(progress)

        def found(kind: type[Any], name: str) -> tuple[Any, ...]:
            return tuple(kind(**{**item, "tile": Tile(*item["tile"])}) for item in report.pop(name))

        return VerifyReport(
            damage=found(Damage, "damage"),
            rows_missing=found(RowsMissing, "rows_missing"),
            foreign=found(ForeignChunk, "foreign"),
            records=tuple(DamagedRecord(**record) for record in report.pop("records")),
            **report,
        )

    def remove_foreign(self) -> tuple[ForeignChunk, ...]:
        """Verify the dataset and remove the rows listed in `foreign` of the report.

        These are rows of batches that were removed or replaced, or that are not in the catalog. Rows of stored batches
        stay. Returns the removed rows by tile. Rows of a batch that a writer started meanwhile are kept.

        Raises
        ------
        BusyError
            Kind ``batch-race``: a writer started one of the batches at the same moment. Repeat the call.
        """
        removed = self._native.remove_foreign()
        return tuple(ForeignChunk(**{**chunk, "tile": Tile(*chunk["tile"])}) for chunk in removed)

    def info(self) -> DatasetInfo:
        """Statistics: all slices, and the distribution of chunks, rows and bytes over tiles."""
        return self.statistics_info(self._native.info())

    def statistics_info(self, info: dict[str, Any]) -> DatasetInfo:
        """Convert native statistics. For the package's own modules."""
        largest = info["tile_largest"]
        return DatasetInfo(
            slices=tuple(self.slice_info(part) for part in info["slices"]),
            tile_chunks=Spread(**info["tile_chunks"]),
            tile_rows=Spread(**info["tile_rows"]),
            tile_bytes=Spread(**info["tile_bytes"]),
            tile_largest=None if largest is None else Tile(*largest),
        )

    def slice_info(self, info: dict[str, Any]) -> SliceInfo:
        """Convert a native report of a slice. For the package's own modules."""
        start, end = info.pop("ticks")
        return SliceInfo(**info, start=self._tick(start), end=self._tick(end))


def _row_limit(limit: object) -> int:
    if not isinstance(limit, int) or isinstance(limit, bool) or not 0 <= limit < 2**63:
        raise InvalidInputError(f"invalid limit {limit!r}: give a number of rows", kind="invalid-request")
    return limit
