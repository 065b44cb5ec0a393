"""Counts over time, by value and by stream. Documents are aggregated while they are read: memory holds only groups."""

from __future__ import annotations

from collections.abc import Iterator

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

    schema = dataset.schema
    kinds = pa.schema([("start", MOMENT), *((name, schema.field(name).type) for name in by)])
    found = count_equal(counted(), kinds, bounds)
    return found.sort_by([(name, "ascending") for name in ["start", *by]])


def top(dataset: Dataset, question: Question, columns: list[str], n: int) -> pa.Table:
    """The columns, ``count``, ``share``, the most frequent first."""
    batches = (pa.Table.from_batches([batch]) for batch in rows(dataset, question, columns))
    schema = dataset.schema
    found = count_equal(batches, pa.schema([schema.field(name) for name in columns]))
    found = found.sort_by([("count", "descending"), *((name, "ascending") for name in columns)])
    best = found.slice(0, n)
    total = pc.sum(found["count"]).cast(pa.float64())
    return best.append_column("share", pc.divide(best["count"].cast(pa.float64()), total))


def streams(dataset: Dataset, question: Question) -> pa.Table:
    """One row for each stream; see :meth:`chronotile.events.Events.streams`."""
    schema = pa.schema(
        [("stream", pa.utf8()), ("documents", pa.int64()), ("bytes", pa.int64()), ("first", MOMENT), ("last", MOMENT)]
    )
    names = schema.names
    aggregates = [("body_bytes", "count"), ("body_bytes", "sum"), ("time", "min"), ("time", "max")]
    again = [("documents", "sum"), ("bytes", "sum"), ("first", "min"), ("last", "max")]
    parts = [schema.empty_table()]
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
