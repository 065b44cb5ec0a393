"""Questions to an archive of events: which documents are visible, and the newest of them without reading the rest."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chronotile.dataset import Dataset
from chronotile.events.settings import Settings
from chronotile.predicates import Condition

__all__ = ["Question", "Visibility", "count", "in_order", "rows", "to_us"]

ORDER = ("time", "source", "line", "batch")
"""What documents are put in order by: documents of one time by their place in the source."""

_SECOND_US = 1_000_000
_FIRST_SPAN_US = 60 * _SECOND_US
_SPAN_GROWTH = 4
_HELD_ROWS = 10_000


@dataclass(frozen=True)
class Visibility:
    """Which documents have not expired: at one moment, by the settings of then."""

    now_us: int
    settings: Settings

    @property
    def start_us(self) -> int | None:
        """First time of documents without a TTL of their own that have not expired; None where all have not."""
        limits = [] if self.settings.expired_us is None else [self.settings.expired_us]
        if self.settings.ttl_s is not None:
            # At the age of the TTL it expires.
            limits.append(self.now_us - self.settings.ttl_s * _SECOND_US + 1)
        return max(limits, default=None)

    @property
    def earliest_us(self) -> int | None:
        """First time at which any document may be visible."""
        start, own = self.start_us, self.settings.ttl_own_max_s
        if start is None or own is None:
            return start
        return min(start, self.now_us - own * _SECOND_US + 1)

    @property
    def by_document(self) -> bool:
        """Whether documents have TTLs of their own, so that times alone do not tell."""
        return self.settings.ttl_own_max_s is not None

    def mask(self, table: pa.RecordBatch) -> Any:
        """The visible rows, by ``time`` and ``ttl_s``."""
        times = table["time"].cast(pa.int64()).to_numpy()
        has_own = pc.is_valid(table["ttl_s"]).to_numpy(zero_copy_only=False)
        # Arithmetic on a TTL of thousands of years must not wrap around.
        own = pc.fill_null(table["ttl_s"], 0).to_numpy(zero_copy_only=False).astype("float64")
        start = self.start_us
        shared = np.ones(len(times), dtype=bool) if start is None else times >= start
        return np.where(has_own, (self.now_us - times) < own * _SECOND_US, shared)


@dataclass(frozen=True)
class Question:
    """What is asked for."""

    start_us: int | None
    end_us: int | None
    streams: tuple[str, ...] | None
    where: tuple[Condition, ...]
    visibility: Visibility

    def within(self, start_us: int | None, end_us: int | None) -> Question:
        """The same question of a part of its period."""
        return replace(self, start_us=start_us, end_us=end_us)

    def place(self) -> dict[str, Any]:
        """The archive's part of it, as :meth:`chronotile.Dataset.read` takes it."""
        bounds = [bound for bound in (self.start_us, self.visibility.earliest_us) if bound is not None]
        keys = None if self.streams is None else list(self.streams)
        start = max(bounds, default=None)
        if start is not None and self.end_us is not None:
            # All of an older period has expired.
            start = min(start, self.end_us)
        return {"start": start, "end": self.end_us, "keys": keys, "where": list(self.where)}


def rows(dataset: Dataset, question: Question, columns: Iterable[str]) -> Iterator[pa.RecordBatch]:
    """The documents, some at a time, in no order."""
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


def in_order(
    dataset: Dataset, question: Question, columns: list[str], limit: int | None, *, newest_first: bool
) -> pa.Table:
    """The first documents in order of time.

    With a limit the period is gone through in spans, from the end that is wanted, until there are enough: the rest is
    not read. A span in which little is found is followed by a longer one.
    """
    wanted = list(dict.fromkeys([*columns, *ORDER]))
    schema = dataset.schema
    kept = pa.schema([schema.field(name) for name in wanted]).empty_table()
    if limit is None:
        found = pa.Table.from_batches(rows(dataset, question, wanted), kept.schema)
        return _sorted(found, newest_first).select(columns)
    first, last = _extent(dataset, question)
    span = _FIRST_SPAN_US
    while first < last and kept.num_rows < limit:
        if newest_first:
            low, high = max(first, last - span), last
            last = low
        else:
            low, high = first, min(first + span, last)
            first = high
        more = _best_of(rows(dataset, question.within(low, high), wanted), kept, limit, newest_first)
        if 2 * (more.num_rows - kept.num_rows) < limit - more.num_rows:
            span *= _SPAN_GROWTH
        kept = more
    return kept.select(columns)


def _best_of(batches: Iterator[pa.RecordBatch], kept: pa.Table, limit: int, newest_first: bool) -> pa.Table:
    """The first `limit` rows of those kept and of the batches, in order, in memory for a few times as many."""
    parts = [kept]
    for batch in batches:
        parts.append(pa.Table.from_batches([batch]))
        if sum(part.num_rows for part in parts) > 4 * limit + _HELD_ROWS:
            parts = [_sorted(pa.concat_tables(parts), newest_first).slice(0, limit)]
    return _sorted(pa.concat_tables(parts), newest_first).slice(0, limit)


def _sorted(table: pa.Table, newest_first: bool) -> pa.Table:
    order = "descending" if newest_first else "ascending"
    return table.take(pc.sort_indices(table.select(ORDER), [(name, order) for name in ORDER]))


def _extent(dataset: Dataset, question: Question) -> tuple[int, int]:
    """The period in which documents can lie."""
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
    """Microseconds since 1970 of a time as reports have it."""
    if not isinstance(moment, datetime):
        return int(moment)
    since: timedelta = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * _SECOND_US + since.microseconds
