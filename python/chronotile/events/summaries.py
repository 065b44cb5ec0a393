"""Counts over time, by value and by stream, aggregated while documents are read, so that only groups are held in
memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from chronotile.bounds import UNBOUNDED, Bounds
from chronotile.counting import count_equal
from chronotile.dataset import Dataset
from chronotile.events.moments import MOMENT
from chronotile.events.searching import Question, rows
from chronotile.intervals import Interval

__all__ = ["histogram", "streams", "top"]

_GATHERED = 64
"""Number of partial counts merged at once."""


def histogram(
    dataset: Dataset, question: Question, width: Interval, by: list[str], bounds: Bounds = UNBOUNDED
) -> pa.Table:
    """``start``, the columns of `by`, ``count``, in order."""

    def counted() -> Iterator[pa.Table]:
        for batch in rows(dataset, question, ["time", *by]):
            yield pa.table(
                [width.starts(batch["time"]).cast(MOMENT), *(batch[name] for name in by)], names=["start", *by]
            )

    found = _counts(counted(), ["start", *by], dataset, bounds)
    return found.sort_by([(name, "ascending") for name in ["start", *by]])


def top(dataset: Dataset, question: Question, columns: list[str], n: int) -> pa.Table:
    """The columns, ``count``, ``share``, the most frequent first."""
    batches = (pa.Table.from_batches([batch]) for batch in rows(dataset, question, columns))
    found = _counts(batches, columns, dataset)
    found = found.sort_by([("count", "descending"), *((name, "ascending") for name in columns)])
    total = pc.sum(found["count"]).as_py() or 0
    best = found.slice(0, n)
    return best.append_column("share", pc.divide(best["count"].cast(pa.float64()), float(max(total, 1))))


def _counts(tables: Iterable[pa.Table], by: list[str], dataset: Dataset, bounds: Bounds = UNBOUNDED) -> pa.Table:
    types = {"start": MOMENT, **{field.name: field.type for field in dataset.schema}}
    return count_equal(tables, pa.schema([(name, types[name]) for name in by]), bounds)


def streams(dataset: Dataset, question: Question) -> pa.Table:
    """One row for each stream; see :meth:`chronotile.events.Events.streams`."""
    names = ["stream", "documents", "bytes", "first", "last"]
    aggregates = [("body_bytes", "count"), ("body_bytes", "sum"), ("time", "min"), ("time", "max")]
    again = [("documents", "sum"), ("bytes", "sum"), ("first", "min"), ("last", "max")]
    parts = [pa.table({name: pa.array([], kind) for name, kind in zip(
        names, [pa.utf8(), pa.int64(), pa.int64(), MOMENT, MOMENT], strict=True)})]  # fmt: skip
    for batch in rows(dataset, question, ["stream", "time", "body_bytes"]):
        found = pa.Table.from_batches([batch]).group_by("stream").aggregate(aggregates)
        parts.append(found.rename_columns(names))
        if len(parts) > _GATHERED:
            parts = [pa.concat_tables(parts).group_by("stream").aggregate(again).rename_columns(names)]
    found = pa.concat_tables(parts).group_by("stream").aggregate(again).rename_columns(names)
    found = found.sort_by("stream")
    span_us = pc.subtract(found["last"].cast(pa.int64()), found["first"].cast(pa.int64()))
    hours = pc.divide(pc.max_element_wise(span_us, 1_000_000).cast(pa.float64()), 3_600_000_000.0)
    for name in ("documents", "bytes"):
        found = found.append_column(f"{name}_per_hour", pc.divide(found[name].cast(pa.float64()), hours))
    return found
