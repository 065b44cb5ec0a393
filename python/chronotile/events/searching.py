"""Search an archive of events: select visible documents, and find the newest without reading the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chronotile.bounds import UNBOUNDED, Bounds
from chronotile.dataset import Dataset
from chronotile.events.settings import Settings
from chronotile.predicates import Condition

__all__ = ["Question", "Visibility", "count", "parts_in_order", "rows", "to_us"]

ORDER = ("time", "source", "line", "batch")
"""Sort columns of documents; documents with equal times are sorted by position in the source."""

_SECOND_US = 1_000_000
_FIRST_SPAN_US = 60 * _SECOND_US
_SPAN_GROWTH = 4
_HELD_ROWS = 10_000
_GROUP_BYTES = 8 << 20
"""Documents per group in the second read of :func:`parts_in_order`."""


@dataclass(frozen=True)
class Visibility:
    """Determines which documents are not expired, at one moment and with the settings at that moment."""

    now_us: int
    settings: Settings

    @property
    def start_us(self) -> int | None:
        """Earliest time of visible documents without a TTL of their own; None if all are visible."""
        limits = [] if self.settings.expired_us is None else [self.settings.expired_us]
        if self.settings.ttl_s is not None:
            # A document expires when its age reaches the TTL.
            limits.append(self.now_us - self.settings.ttl_s * _SECOND_US + 1)
        return max(limits, default=None)

    @property
    def earliest_us(self) -> int | None:
        """Earliest time at which any document may be visible."""
        start, own = self.start_us, self.settings.ttl_own_max_s
        if start is None or own is None:
            return start
        return min(start, self.now_us - own * _SECOND_US + 1)

    @property
    def by_document(self) -> bool:
        """Whether documents have TTLs of their own, so that times alone do not determine visibility."""
        return self.settings.ttl_own_max_s is not None

    def mask(self, table: pa.RecordBatch) -> Any:
        """Mask of the visible rows, from ``time`` and ``ttl_s``."""
        times = table["time"].cast(pa.int64()).to_numpy()
        has_own = pc.is_valid(table["ttl_s"]).to_numpy(zero_copy_only=False)
        # Prevent integer overflow for a TTL of thousands of years.
        own = pc.fill_null(table["ttl_s"], 0).to_numpy(zero_copy_only=False).astype("float64")
        start = self.start_us
        shared = np.ones(len(times), dtype=bool) if start is None else times >= start
        return np.where(has_own, (self.now_us - times) < own * _SECOND_US, shared)


@dataclass(frozen=True)
class Question:
    """A query."""

    start_us: int | None
    end_us: int | None
    streams: tuple[str, ...] | None
    where: tuple[Condition, ...]
    visibility: Visibility

    def within(self, start_us: int | None, end_us: int | None) -> Question:
        """The same query for a part of its period."""
        return replace(self, start_us=start_us, end_us=end_us)

    def place(self) -> dict[str, Any]:
        """Arguments for :meth:`chronotile.Dataset.read`."""
        bounds = [bound for bound in (self.start_us, self.visibility.earliest_us) if bound is not None]
        keys = None if self.streams is None else list(self.streams)
        start = max(bounds, default=None)
        if start is not None and self.end_us is not None:
            # The whole period has expired.
            start = min(start, self.end_us)
        return {"start": start, "end": self.end_us, "keys": keys, "where": list(self.where)}


def rows(dataset: Dataset, question: Question, columns: Iterable[str]) -> Iterator[pa.RecordBatch]:
    """Yield the documents in tables, unsorted."""
    wanted = list(dict.fromkeys(columns))
    by_document = question.visibility.by_document
    asked = [*wanted, "time", "ttl_s"] if by_document else wanted
    for batch in dataset.read(columns=list(dict.fromkeys(asked)), **question.place()).batches():
        yield batch.select(wanted).filter(pa.array(question.visibility.mask(batch))) if by_document else batch


def count(dataset: Dataset, question: Question) -> int:
    """Number of documents."""
    if question.visibility.by_document:
        return sum(batch.num_rows for batch in rows(dataset, question, ["time"]))
    return dataset.count(**question.place())


def parts_in_order(
    dataset: Dataset, question: Question, columns: list[str], limit: int | None, *, newest_first: bool,
    bounds: Bounds = UNBOUNDED,
) -> Iterator[pa.Table]:  # fmt: skip
    """Yield the first documents sorted by time, in one or more parts.

    With a limit, the period is searched in spans from the requested end until there are enough documents; the rest is
    not read. If a span yields little, the next one is longer. If the documents are too large to hold together, they are
    first found without their text, then read again a few MiB at a time.
    """
    wanted = list(dict.fromkeys([*columns, *ORDER]))
    if limit is None:
        schema = dataset.schema
        kept = pa.schema([schema.field(name) for name in wanted])
        yield _sorted(pa.Table.from_batches(rows(dataset, question, wanted), kept), newest_first).select(columns)
        return
    found = _first(dataset, question, wanted, limit, newest_first, bounds, bounds.sorted_bytes_max)
    if found is not None:
        yield found.select(columns)
        return
    sizes = [name for name in ("body_bytes",) if name in dataset.column_types]
    keys = _first(dataset, question, [*ORDER, *sizes], limit, newest_first, bounds, None)
    assert keys is not None
    # Three copies are in memory: the rows read, the selected rows, and the sorted rows.
    bounds.hold(keys.nbytes + 3 * _GROUP_BYTES)
    for group in _groups(keys):
        yield _again(dataset, question, group, wanted, newest_first).select(columns)


def _first(
    dataset: Dataset, question: Question, wanted: list[str], limit: int, newest_first: bool, bounds: Bounds,
    bytes_max: int | None,
) -> pa.Table | None:  # fmt: skip
    """The first `limit` rows in order; None if they take more than `bytes_max`."""
    schema = dataset.schema
    kept = pa.schema([schema.field(name) for name in wanted]).empty_table()
    first, last = _extent(dataset, question)
    span = _FIRST_SPAN_US
    while first < last and kept.num_rows < limit:
        if newest_first:
            low, high = max(first, last - span), last
            last = low
        else:
            low, high = first, min(first + span, last)
            first = high
        found = rows(dataset, question.within(low, high), wanted)
        more = _best_of(found, kept, limit, newest_first, bounds, bytes_max)
        if more is None:
            return None
        if 2 * (more.num_rows - kept.num_rows) < limit - more.num_rows:
            span *= _SPAN_GROWTH
        kept = more
    return kept


def _best_of(
    batches: Iterator[pa.RecordBatch], kept: pa.Table, limit: int, newest_first: bool, bounds: Bounds,
    bytes_max: int | None,
) -> pa.Table | None:  # fmt: skip
    """The first `limit` rows, in order, of `kept` and the batches; None if they take more than `bytes_max`. Memory
    holds a few times as many rows.
    """
    parts = [kept]
    held = kept.nbytes
    for batch in batches:
        parts.append(pa.Table.from_batches([batch]))
        held += batch.nbytes
        # Sorting takes a second copy.
        bounds.hold(2 * held)
        too_large = bytes_max is not None and held > bytes_max
        if too_large or sum(part.num_rows for part in parts) > 4 * limit + _HELD_ROWS:
            parts = [_sorted(pa.concat_tables(parts), newest_first, limit)]
            held = parts[0].nbytes
            # Collect several batches between truncations: truncating after each would be slow.
            if bytes_max is not None and 2 * held > bytes_max:
                return None
    return _sorted(pa.concat_tables(parts), newest_first, limit)


def _groups(keys: pa.Table) -> Iterator[pa.Table]:
    """Group consecutive documents that fit in memory together."""
    sizes = keys["body_bytes"].to_pylist() if "body_bytes" in keys.column_names else [_GROUP_BYTES] * keys.num_rows
    start, held = 0, 0
    for place, size in enumerate(sizes):
        if place > start and held + size > _GROUP_BYTES:
            yield keys.slice(start, place - start)
            start, held = place, 0
        held += size
    yield keys.slice(start)


def _again(dataset: Dataset, question: Question, keys: pa.Table, wanted: list[str], newest_first: bool) -> pa.Table:
    """Read the documents with these keys."""
    ends = pc.min_max(keys["time"].cast(pa.int64())).as_py()
    names = _names(keys)
    schema = dataset.schema
    parts = [pa.schema([schema.field(name) for name in wanted]).empty_table()]
    for batch in rows(dataset, question.within(ends["min"], ends["max"] + 1), wanted):
        parts.append(pa.Table.from_batches([batch]).filter(pc.is_in(_names(batch), value_set=names)))
    return _sorted(pa.concat_tables(parts), newest_first)


def _names(table: pa.Table | pa.RecordBatch) -> pa.Array:
    """Identify documents by their position in the batch."""
    found = pc.binary_join_element_wise(table["line"].cast(pa.utf8()), table["batch"], ":")
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def _sorted(table: pa.Table, newest_first: bool, limit: int | None = None) -> pa.Table:
    order = "descending" if newest_first else "ascending"
    places = pc.sort_indices(table.select(ORDER), [(name, order) for name in ORDER])
    # Copy: an Arrow slice would keep all rows in memory.
    return table.take(places if limit is None else places.slice(0, limit))


def _extent(dataset: Dataset, question: Question) -> tuple[int, int]:
    """The period that can contain documents."""
    start, end = question.place()["start"], question.end_us
    if start is None or end is None:
        slices = dataset.info().slices
        if not slices:
            return 0, 0
        first, last = to_us(slices[0].start), to_us(slices[-1].end)
        start = first if start is None else max(start, first)
        end = last if end is None else min(end, last)
    return start, end


def to_us(moment: Any) -> int:
    """Convert a time from a report to microseconds since 1970."""
    if not isinstance(moment, datetime):
        return int(moment)
    since: timedelta = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * _SECOND_US + since.microseconds
