"""Exact percentiles of durations, from the number of times that each duration occurs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chronotile.counting import count_equal
from chronotile.errors import InvalidInputError

__all__ = ["percentiles"]

Duration = str | tuple[str, str]


def percentiles(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, duration: Duration, q: list[float], by: list[str]
) -> pa.Table:
    """Compute percentiles of rows while they are read; see :meth:`chronotile.jobs.Jobs.percentiles`."""
    values = _seconds(schema.empty_table(), duration)

    def durations() -> Iterator[pa.Table]:
        for batch in batches:
            rows = pa.Table.from_batches([batch])
            table = rows.select(by).append_column("duration", _seconds(rows, duration))
            yield table.filter(pc.invert(pc.fill_null(pc.is_nan(table["duration"]), True)))

    groups = pa.schema([schema.field(name) for name in by])
    counted = count_equal(durations(), groups.append(pa.field("duration", values.type)))
    return _of_counts(counted, by, q)


def _seconds(rows: pa.Table, duration: Duration) -> pa.ChunkedArray:
    if isinstance(duration, str):
        kind = rows[duration].type
        if pa.types.is_duration(kind):
            micros = rows[duration].cast(pa.duration("us"), safe=False)
            return pc.divide(micros.cast(pa.int64()).cast(pa.float64()), 1e6)
        if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
            raise InvalidInputError(
                f"column {duration!r} is {kind}: give a column of numbers, or two time columns", kind="invalid-request"
            )
        return rows[duration].cast(pa.float64(), safe=False)
    first, last = (rows[name] for name in duration)
    for name, column in zip(duration, (first, last), strict=True):
        if not pa.types.is_timestamp(column.type):
            raise InvalidInputError(
                f"column {name!r} is {column.type}: a duration lies between two timestamps", kind="invalid-request"
            )
    # Truncate to microseconds.
    micros = [column.cast(pa.timestamp("us", column.type.tz), safe=False) for column in (first, last)]
    ticks = [column.cast(pa.int64()) for column in micros]
    return pc.divide(pc.subtract(ticks[1], ticks[0]).cast(pa.float64()), 1e6)


def _of_counts(counted: pa.Table, by: list[str], q: list[float]) -> pa.Table:
    """Compute percentiles from a table of the columns `by`, a duration and its number of occurrences, in this order."""
    keys = [str(position) for position in range(len(by))]
    table = counted.rename_columns([*keys, "duration", "count"])
    table = table.sort_by([(key, "ascending") for key in [*keys, "duration"]])
    values, upto = table["duration"].to_numpy(), np.cumsum(table["count"].to_numpy())
    if keys:
        # Arrow returns groups in any order: sort them by their first rows, the order of the values.
        numbered = table.append_column("row", pa.array(np.arange(table.num_rows)))
        groups = numbered.group_by(keys).aggregate([("count", "sum"), ("row", "min")]).sort_by("row_min")
        sizes, labels = groups["count_sum"].to_numpy(), [groups[key] for key in keys]
    else:
        sizes, labels = np.array([upto[-1] if len(upto) else 0]), []
    before = np.cumsum(sizes) - sizes
    columns = [_interpolated(values, upto, before, sizes, value) for value in q]
    return pa.table(
        [*labels, pa.array(sizes, pa.uint64()), *columns], names=[*by, "count", *(f"p{value:g}" for value in q)]
    )


def _interpolated(values: Any, upto: Any, before: Any, sizes: Any, q: float) -> pa.Array:
    if len(values) == 0:
        return pa.nulls(len(sizes), pa.float64())
    place = (sizes - 1) * (q / 100)
    below = np.floor(place).astype("int64")
    above = np.minimum(below + 1, sizes - 1)
    # The value at a rank is the first whose occurrences, summed up to and including it, exceed the rank.
    low, high = (values[np.searchsorted(upto, before + index, side="right")] for index in (below, above))
    share = place - below
    with np.errstate(invalid="ignore"):
        between = low + (high - low) * share
        # The difference from an infinite value is not finite: weight both values instead.
        between = np.where(np.isfinite(between), between, low * (1 - share) + high * share)
    return pa.array(np.where((share == 0) | (low == high), low, between))
