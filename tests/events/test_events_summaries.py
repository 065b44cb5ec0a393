"""Counts of events over time, by value and by stream are those of counting by hand, however rows come."""

from __future__ import annotations

from collections import Counter, defaultdict
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("pyarrow")
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from support_events import FIRST, StoredRows

from chronotile import intervals
from chronotile.bounds import Bounds
from chronotile.errors import InvalidInputError
from chronotile.events import summaries
from chronotile.events.searching import Question, Visibility
from chronotile.events.settings import Settings

SECOND, HOUR = 1_000_000, 3_600_000_000
ALL = Question(None, None, None, (), Visibility(0, Settings()))
SCHEMA = pa.schema(
    {
        "time": pa.timestamp("us", "UTC"),
        "stream": pa.string(),
        "body_bytes": pa.int64(),
        "level": pa.string(),
        # A field may be called as a column of a histogram is.
        "start": pa.int32(),
    }
)

rows_of_events = st.lists(
    st.fixed_dictionaries(
        {
            "time": st.sampled_from([0, 1, SECOND - 1, SECOND, SECOND + 1, HOUR - 1, HOUR, 2 * HOUR + 123]).map(
                lambda micros: FIRST + timedelta(microseconds=micros)
            ),
            "stream": st.sampled_from(["a", "b", "ü"]),
            "body_bytes": st.integers(0, 1_000),
            "level": st.none() | st.sampled_from(["high", "low"]),
            "start": st.none() | st.integers(0, 1),
        }
    ),
    max_size=20,
)  # fmt: skip


def stored(rows: list[dict[str, Any]], batch_rows: int = 3) -> Any:
    return StoredRows(SCHEMA, rows, batch_rows=batch_rows)


def last_if_none(*values: Any) -> tuple[Any, ...]:
    return tuple((value is None, value) for value in values)


@given(rows_of_events, st.integers(1, 4), st.sampled_from([[], ["level"], ["stream", "level"]]))
def test_a_histogram_counts_the_documents_of_each_interval(
    rows: list[dict[str, Any]], batch_rows: int, by: list[str]
) -> None:
    found = summaries.histogram(stored(rows, batch_rows), ALL, intervals.interval("1h"), by)
    wanted = Counter(
        (row["time"].replace(minute=0, second=0, microsecond=0), *(row[name] for name in by)) for row in rows
    )
    assert found.column_names == ["start", *by, "count"]
    counted = list(zip(*(column.to_pylist() for column in found.columns), strict=True))
    assert counted == [(*key, wanted[key]) for key in sorted(wanted, key=lambda key: last_if_none(*key))]


@given(rows_of_events, st.sampled_from([["level"], ["stream", "level"]]), st.integers(1, 5))
def test_the_most_frequent_values_come_first_with_their_share_of_all(
    rows: list[dict[str, Any]], columns: list[str], n: int
) -> None:
    found = summaries.top(stored(rows), ALL, columns, n)
    wanted = Counter(tuple(row[name] for name in columns) for row in rows)
    first = sorted(wanted, key=lambda key: (-wanted[key], last_if_none(*key)))[:n]
    assert found.to_pylist() == [
        {**dict(zip(columns, key, strict=True)), "count": wanted[key], "share": wanted[key] / len(rows)}
        for key in first
    ]
    assert found.column_names == [*columns, "count", "share"]


@given(rows_of_events, st.integers(1, 3))
def test_streams_have_their_volume_and_their_rate_over_at_least_a_second(
    rows: list[dict[str, Any]], batch_rows: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(summaries, "_GATHERED", 2)
        found = summaries.streams(stored(rows, batch_rows), ALL)
    groups = defaultdict(list)
    for row in rows:
        groups[row["stream"]].append(row)
    assert found["stream"].to_pylist() == sorted(groups)
    for row in found.to_pylist():
        group = groups[row["stream"]]
        times, size = [each["time"] for each in group], sum(each["body_bytes"] for each in group)
        assert (row["documents"], row["bytes"], row["first"], row["last"]) == (len(group), size, min(times), max(times))
        hours = max((max(times) - min(times)) / timedelta(hours=1), 1 / 3_600)
        assert row["documents_per_hour"] == pytest.approx(len(group) / hours, rel=1e-12)
        assert row["bytes_per_hour"] == pytest.approx(size / hours, rel=1e-12)


def test_groups_of_a_histogram_are_bounded() -> None:
    rows = [{"time": FIRST + timedelta(hours=hour), "stream": "a", "body_bytes": 1} for hour in range(5)]
    width = intervals.interval("1h")
    assert summaries.histogram(stored(rows), ALL, width, [], Bounds(groups_max=5)).num_rows == 5
    with pytest.raises(InvalidInputError, match="more than 4 groups"):
        summaries.histogram(stored(rows), ALL, width, [], Bounds(groups_max=4))
