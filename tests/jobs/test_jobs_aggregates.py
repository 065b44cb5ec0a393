"""Aggregates of groups, made while rows are read, are those that Arrow makes of all rows at once."""

from __future__ import annotations

import decimal
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chronotile.bounds import Bounds
from chronotile.errors import InvalidInputError
from chronotile.jobs.aggregates import FUNCTIONS, aggregate

NUMBERS = ["whole", "small", "real", "money"]
SCHEMA = pa.schema(
    {
        "user": pa.string(),
        "site": pa.int16(),
        "whole": pa.int64(),
        "small": pa.uint8(),
        "real": pa.float32(),
        "money": pa.decimal128(12, 2),
        "count": pa.string(),
        "at": pa.timestamp("us", "UTC"),
        "good": pa.bool_(),
    }
)
FUNCTIONS_OF = {
    **{name: list(FUNCTIONS) for name in NUMBERS},
    **{name: ["min", "max", "count_distinct"] for name in ("count", "at")},
    "good": ["sum", "mean", "min", "max", "count_distinct"],
}
ALL = [(column, function) for column, functions in FUNCTIONS_OF.items() for function in functions]


def optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


ROWS = st.fixed_dictionaries(
    {
        "user": optional(st.sampled_from(["ann", "bob", ""])),
        "site": optional(st.integers(0, 2)),
        "whole": optional(st.integers(-(2**50), 2**50)),
        "small": optional(st.integers(0, 255)),
        # Whether -0.0 is distinct from 0.0 depends on the function of Arrow.
        "real": optional(st.floats(-1e6, 1e6, width=32).map(lambda value: value + 0.0)),
        "money": optional(st.decimals("-99999", "99999", places=2)),
        "count": optional(st.text(max_size=2)),
        "at": optional(st.integers(-(10**9), 10**9)),
        "good": optional(st.booleans()),
    }
)


def key(row: dict[str, Any], by: list[str]) -> tuple[Any, ...]:
    return tuple((row[name] is None, row[name]) for name in by)


def at_once(table: pa.Table, by: list[str], functions: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """What Arrow makes of all rows. Its own count has a name that a column may have too."""
    found = table.group_by(by).aggregate([*functions, ([], "count_all")])
    return [
        {("count" if name == "count_all" else name): value for name, value in row.items()} for row in found.to_pylist()
    ]


def assert_same(found: pa.Table, wanted: list[dict[str, Any]], by: list[str]) -> None:
    rows = sorted(found.to_pylist(), key=lambda row: key(row, by))
    wanted = sorted(wanted, key=lambda row: key(row, by))
    assert len(rows) == len(wanted)
    for row, other in zip(rows, wanted, strict=True):
        assert row.keys() == other.keys()
        for name, value in row.items():
            if isinstance(value, float):
                # The squares of values lose what lies below the precision of the largest.
                assert value == pytest.approx(other[name], rel=1e-9, abs=1e-3 if name.endswith("stddev") else 1e-9), (
                    name
                )
            else:
                assert value == other[name], name


@given(st.lists(ROWS, max_size=30), st.lists(st.sampled_from(["user", "site"]), unique=True), st.data())
def test_parts_give_what_all_rows_give_at_once(rows: list[dict[str, Any]], by: list[str], data: st.DataObject) -> None:
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    functions = data.draw(st.lists(st.sampled_from(ALL), unique=True, min_size=1))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(rows)), max_size=4)))
    parts = [table.slice(start, end - start) for start, end in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    batches = [batch for part in parts for batch in part.to_batches()]
    assert_same(aggregate(batches, SCHEMA, by, functions), at_once(table, by, functions), by)


def test_more_parts_than_are_kept_are_merged_on_the_way() -> None:
    rows = [
        {"user": f"u{n % 7}", "site": n % 3, "whole": n, "small": n % 256, "real": 1e6 + n % 5, "good": n % 2 == 0,
         "money": decimal.Decimal(n) / 100, "count": str(n % 11), "at": n}
        for n in range(1000)
    ]  # fmt: skip
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    batches = table.to_batches(max_chunksize=5)
    assert_same(aggregate(batches, SCHEMA, ["user"], ALL), at_once(table, ["user"], ALL), ["user"])
    held: list[int] = []
    bounded = [(column, function) for column, function in ALL if function != "count_distinct"]
    aggregate(batches, SCHEMA, ["user"], bounded, Bounds(hold=held.append))
    assert len(held) == 201  # with that of no rows, from which the types come
    # What is held does not grow with the rows: the second half needs what the first did.
    assert max(held[100:]) < 1.1 * max(held[:100])


def test_the_spread_of_decimals_has_more_digits_than_they_have() -> None:
    rows = pa.Table.from_pylist([{"money": decimal.Decimal(n % 2) / 100} for n in range(3)], schema=SCHEMA)
    found = aggregate(rows.to_batches(max_chunksize=2), SCHEMA, [], [("money", "stddev")])
    assert found["money_stddev"].to_pylist() == pytest.approx([0.01 * math.sqrt(2) / 3])


def test_a_spread_far_from_zero_keeps_its_digits() -> None:
    schema = pa.schema({"k": pa.int8(), "x": pa.float64()})
    batches = [pa.record_batch([[1, 1], [1e9 + n, 1e9 + n + 1]], schema=schema) for n in range(0, 200, 2)]
    found = aggregate(batches, schema, ["k"], [("x", "stddev")])
    assert found["x_stddev"].to_pylist() == pytest.approx([math.sqrt((200**2 - 1) / 12)], rel=1e-12)


@pytest.mark.parametrize(
    ("column", "function", "kind"), [("user", "sum", "string"), ("at", "mean", "timestamp"), ("good", "stddev", "bool")]
)
def test_a_function_that_a_type_does_not_have_is_named(column: str, function: str, kind: str) -> None:
    with pytest.raises(InvalidInputError, match=f"cannot compute {function} of '{column}': its type is {kind}"):
        aggregate([], SCHEMA, ["site"], [("whole", "max"), (column, function)])


def test_groups_and_distinct_values_are_bounded() -> None:
    rows = pa.Table.from_pylist([{"site": n % 10, "whole": n} for n in range(100)], schema=SCHEMA).to_batches()
    assert aggregate(rows, SCHEMA, ["site"], [("whole", "sum")], Bounds(groups_max=10)).num_rows == 10
    with pytest.raises(InvalidInputError, match="more than 9 groups"):
        aggregate(rows, SCHEMA, ["site"], [("whole", "sum")], Bounds(groups_max=9))
    with pytest.raises(InvalidInputError, match="more than 99 groups"):
        aggregate(rows, SCHEMA, ["site"], [("whole", "count_distinct")], Bounds(groups_max=99))


def test_room_is_asked_for_a_second_copy_of_the_groups_and_eight_bytes_each() -> None:
    rows = pa.Table.from_pylist([{"site": n % 10} for n in range(100)], schema=SCHEMA).to_batches()
    asked: list[int] = []
    aggregate(rows, SCHEMA, ["site"], [], Bounds(hold=asked.append))
    groups = 10 * (2 + 8)  # a site and a count each
    assert asked[0] == 0
    assert asked[1] == pytest.approx(2 * groups + 8 * 10, abs=9)  # which values are null takes some bytes more


def test_the_mean_and_the_spread_of_large_integers_are_those_of_floats() -> None:
    schema = pa.schema({"x": pa.int64()})
    rows = [
        pa.record_batch([pa.array([2**61 + 1, 2**61 + 3])], schema=schema),
        pa.record_batch([pa.array([2**60])], schema=schema),
    ]
    [row] = aggregate(rows, schema, [], [("x", "mean"), ("x", "stddev")]).to_pylist()
    assert row["x_mean"] == pytest.approx(5 * 2**60 / 3)
    assert row["x_stddev"] == pytest.approx(math.sqrt(2) / 3 * 2**60)


@pytest.mark.parametrize(("kind", "most"), [(pa.int64(), 2**63 - 1), (pa.uint64(), 2**64 - 1)], ids=str)
def test_a_sum_beyond_64_bits_is_refused_and_the_mean_is_not(kind: pa.DataType, most: int) -> None:
    schema = pa.schema({"user": pa.string(), "x": kind})

    def of(*values: int, functions: list[str]) -> list[dict[str, Any]]:
        batches = [pa.record_batch([["ann"], pa.array([value], kind)], schema=schema) for value in values]
        return aggregate(batches, schema, ["user"], [("x", function) for function in functions]).to_pylist()

    half = most // 2
    for numbers in ([most, 1], [most, most], [half, half, half]):
        with pytest.raises(InvalidInputError, match=r"the sum of 'x' exceeds u?int64: use mean") as caught:
            of(*numbers, functions=["mean", "sum"])
        assert caught.value.kind == "too-large"
        [row] = of(*numbers, functions=["mean"])
        assert row["x_mean"] == pytest.approx(sum(numbers) / len(numbers))
    [row] = of(half, half // 2, functions=["sum"])
    assert row["x_sum"] == half + half // 2
    if pa.types.is_signed_integer(kind):
        [row] = of(most, 1, -most, functions=["sum"])
        assert row["x_sum"] == 1
