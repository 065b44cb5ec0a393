"""Constants that meet a column mean what they say: compared exactly, or refused."""

from __future__ import annotations

import datetime as dt
import operator
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import chronotile as ct

DAY = dt.date(2026, 1, 1)
NOON = dt.datetime(2026, 1, 1, 12)
MIDNIGHT = dt.datetime(2026, 1, 1)
HOLDS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge
}  # fmt: skip


def dataset_of(values: pa.Array, **options: Any) -> ct.Dataset:
    """A dataset with one row a value, and a null where `values` has one."""
    dataset = ct.open("memory:").create(
        "d",
        schema=pa.schema({"n": pa.int64(), "t": pa.timestamp("us"), "v": values.type}),
        cell=ct.single(), time="t", window="1d", **options,
    )  # fmt: skip
    times = pa.array([MIDNIGHT] * len(values), pa.timestamp("us"))
    dataset.write(pa.table({"n": pa.array(range(len(values)), pa.int64()), "t": times, "v": values}))
    return dataset


def found(dataset: ct.Dataset, *condition: Any) -> list[int]:
    got: list[int] = sorted(dataset.read(where=condition).to_arrow()["n"].to_pylist())
    assert dataset.count(where=condition) == len(got)
    return got


STEPS = {
    "date32": (pa.array([DAY, DAY + dt.timedelta(days=1)]), NOON, [0], [1]),
    "date64": (pa.array([DAY, DAY + dt.timedelta(days=1)], pa.date64()), NOON, [0], [1]),
    "date32 and text": (pa.array([DAY, DAY + dt.timedelta(days=1)]), "2026-01-01T12:00", [0], [1]),
    "date32 and numpy": (pa.array([DAY, DAY + dt.timedelta(days=1)]), np.datetime64(NOON), [0], [1]),
    "date32 and pandas": (pa.array([DAY, DAY + dt.timedelta(days=1)]), pd.Timestamp(NOON), [0], [1]),
    "timestamp[s]": (
        pa.array([MIDNIGHT, MIDNIGHT + dt.timedelta(seconds=1)], pa.timestamp("s")),
        MIDNIGHT + dt.timedelta(milliseconds=1), [0], [1],
    ),
    "timestamp[s] and text": (
        pa.array([MIDNIGHT, MIDNIGHT + dt.timedelta(seconds=1)], pa.timestamp("s", "UTC")),
        "2026-01-01T00:00:00.000000001Z", [0], [1],
    ),
    "timestamp[us] and numpy": (
        pa.array([MIDNIGHT, MIDNIGHT + dt.timedelta(microseconds=1)]),
        np.datetime64("2026-01-01T00:00:00.000000001", "ns"), [0], [1],
    ),
    "time32[s]": (pa.array([dt.time(1), dt.time(1, 0, 1)], pa.time32("s")), "01:00:00.5", [0], [1]),
    "decimal": (pa.array([Decimal("1.02"), Decimal("1.03")]), "1.025", [0], [1]),
    "decimal and float": (pa.array([Decimal("1.02"), Decimal("1.03")]), 1.025, [0], [1]),
    "decimal and Decimal": (pa.array([Decimal("1.02"), Decimal("1.03")]), Decimal("1.025"), [0], [1]),
    "int8": (pa.array([-128, 127], pa.int8()), 0.5, [0], [1]),
    "uint64": (pa.array([2**63 - 1, 2**64 - 1], pa.uint64()), float(2**63), [0], [1]),
    "int64": (pa.array([2**53, 2**53 + 2], pa.int64()), 2**53 + 1, [0], [1]),
    "float64": (pa.array([2.0**53, 2.0**53 + 2]), 2**53 + 1, [0], [1]),
    "float32": (pa.array([2.0**24, 2.0**24 + 2], pa.float32()), 2.0**24 + 1, [0], [1]),
    "bool": (pa.array([False, True]), 0.5, [0], [1]),
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_a_constant_between_two_values_equals_neither(name: str) -> None:
    values, between, below, above = STEPS[name]
    dataset = dataset_of(pa.concat_arrays([values, pa.nulls(1, values.type)]))
    both = below + above
    for comparison, wanted in {"==": [], "!=": both, "<": below, "<=": below, ">": above, ">=": above}.items():
        assert found(dataset, "v", comparison, between) == wanted, comparison
    assert found(dataset, "v", "in", [between]) == []
    assert found(dataset, "v", "between", [between, between]) == []


ENDS = {
    "int8": (pa.array([-128, 127], pa.int8()), -129, 128),
    "uint64": (pa.array([0, 2**64 - 1], pa.uint64()), -1, 2**64),
    "uint8 and floats": (pa.array([0, 255], pa.uint8()), -np.inf, 1e300),
    "int64 and long numbers": (pa.array([-(2**63), 2**63 - 1], pa.int64()), -(10**5000), 10**60),
    "decimal": (pa.array([Decimal("-9.99"), Decimal("9.99")], pa.decimal128(3, 2)), "-9.991", 1e38),
    "bool": (pa.array([False, True]), -1, 2),
    "float64 and long numbers": (pa.array([-1.7e308, 1.7e308]), -(10**400), "1e400"),
    "timestamp[ns]": (pa.array([-(2**63), 2**63 - 1], pa.timestamp("ns")), "1600-01-01", "2300-01-01"),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_constant_beyond_a_type_bounds_all_or_none(name: str) -> None:
    values, low, high = ENDS[name]
    dataset = dataset_of(values)
    for comparison, wanted in {"==": [], "!=": [0, 1], "<": [], "<=": [], ">": [0, 1], ">=": [0, 1]}.items():
        assert found(dataset, "v", comparison, low) == wanted, comparison
    for comparison, wanted in {"==": [], "!=": [0, 1], "<": [0, 1], "<=": [0, 1], ">": [], ">=": []}.items():
        assert found(dataset, "v", comparison, high) == wanted, comparison
    assert found(dataset, "v", "between", [low, high]) == [0, 1]
    assert found(dataset, "v", "in", [low, high]) == []


def test_numbers_as_written_are_found_again() -> None:
    """A column of float32 or decimals has a value for 1.025, which no binary fraction is."""
    narrow = dataset_of(pa.array([0.1, 18.3, 1e-40], pa.float32()))
    for place, value in enumerate(["0.1", "18.3", "1e-40"]):
        for constant in (value, float(value), np.float32(value), float(np.float32(value))):
            assert found(narrow, "v", "==", constant) == [place]
            assert place not in found(narrow, "v", "<", constant) + found(narrow, "v", ">", constant)
    decimals = dataset_of(pa.array([Decimal("1.025"), Decimal("2")], pa.decimal128(10, 3)))
    for constant in ("1.025", 1.025, Decimal("1.0250")):
        assert found(decimals, "v", "==", constant) == [0]
    assert found(decimals, "v", "in", [2, 1.025]) == [0, 1]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(-(10**6), 10**6), min_size=1, max_size=5),
    st.one_of(st.integers(), st.floats(allow_nan=False), st.decimals(allow_nan=False, allow_infinity=False)),
)
def test_decimals_and_integers_compare_as_numbers_do(values: list[int], constant: Any) -> None:
    # A float stands for its shortest decimal, as it is printed.
    exact = constant if isinstance(constant, int) else None
    if exact is None and abs(constant) < 2**53:
        exact = Fraction(str(constant))
    elif exact is None:
        exact = constant
    for kind, scale in ((pa.int32(), 0), (pa.decimal128(9, 3), 3)):
        numbers = [Decimal(value).scaleb(-scale) for value in values]
        dataset = dataset_of(pa.array([int(n) for n in numbers] if scale == 0 else numbers, kind))
        for comparison, holds in HOLDS.items():
            wanted = [n for n, value in enumerate(values) if holds(Fraction(value, 10**scale), exact)]
            assert found(dataset, "v", comparison, constant) == wanted, (comparison, numbers)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.datetimes(dt.datetime(1900, 1, 1), dt.datetime(2200, 1, 1)), min_size=1, max_size=5),
    st.datetimes(dt.datetime(1600, 1, 1), dt.datetime(2400, 1, 1)),
    st.booleans(),
)
def test_times_of_every_unit_compare_as_instants_do(
    values: list[dt.datetime], constant: dt.datetime, near: bool
) -> None:
    constant = values[0].replace(microsecond=constant.microsecond) if near else constant
    for kind, whole in (
        (pa.timestamp("s"), lambda v: v.replace(microsecond=0)),
        (pa.timestamp("ms", "Europe/Paris"), lambda v: v.replace(microsecond=v.microsecond // 1000 * 1000)),
        (pa.date32(), lambda v: v.replace(hour=0, minute=0, second=0, microsecond=0)),
    ):
        stored = [whole(value) for value in values]
        ticks = [value.replace(tzinfo=dt.UTC) for value in stored]
        column = pa.array([v.date() for v in ticks]) if kind == pa.date32() else pa.array(ticks).cast(kind)
        dataset = dataset_of(column)
        for given_constant in (constant, constant.isoformat(), constant.replace(tzinfo=dt.UTC)):
            for comparison, holds in HOLDS.items():
                wanted = [n for n, value in enumerate(stored) if holds(value, constant)]
                assert found(dataset, "v", comparison, given_constant) == wanted, (comparison, kind)


@pytest.mark.parametrize(
    ("kind", "constant"),
    [
        ("int32", "one"),
        ("int32", NOON),
        ("float64", "1,5"),
        ("bool", "maybe"),
        ("utf8", 5),
        ("date32", "tomorrow"),
        ("date32", True),
        ("timestamp[us]", "2026-01-01T00:00:00.0000000001"),
        ("timestamp[us]", 1.5),
        ("timestamp[us]", dt.time(1)),
        ("time32[s]", NOON),
        ("duration[s]", "5"),
    ],
)
def test_what_does_not_compare_is_refused(kind: str, constant: Any) -> None:
    dataset = ct.open("memory:").create("d", schema={"t": "timestamp[us]", "v": kind}, cell=ct.single(), time="t")
    with pytest.raises(ct.InvalidInputError, match="v"):
        dataset.count(where=("v", "==", constant))


def test_ids_and_keys_are_not_rounded() -> None:
    days = pa.array([DAY, DAY + dt.timedelta(days=1)])
    dataset = dataset_of(days, id=["v"])
    assert dataset.count(ids=DAY) == dataset.count(ids=MIDNIGHT) == 1
    with pytest.raises(ct.InvalidInputError, match="finer than the resolution of date32"):
        dataset.count(ids=NOON)
    seconds = dataset_of(pa.array([MIDNIGHT], pa.timestamp("s")), id=["v"])
    assert seconds.count(ids=pa.array([MIDNIGHT], pa.timestamp("ns"))) == 1
    with pytest.raises(ct.InvalidInputError, match="cannot hold exactly"):
        seconds.count(ids=pa.array([MIDNIGHT + dt.timedelta(milliseconds=1)], pa.timestamp("ns")))


def test_rows_are_not_rounded_either(memory: ct.Archive) -> None:
    schema = {"t": "timestamp[us]", "day": "date32", "price": "decimal128(9, 2)", "at": "time64[ns]", "flag": "bool"}
    dataset = memory.create("d", schema=schema, cell=ct.single(), time="t")
    row: dict[str, Any] = {
        "t": [np.datetime64("2026-01-01T00:00:00.000001", "ns")], "day": [MIDNIGHT], "price": ["1.020"],
        "at": ["01:00:00.123456789"], "flag": [1],
    }  # fmt: skip
    dataset.write(row)
    (stored,) = dataset.read().to_arrow().to_pylist()
    assert stored["t"] == MIDNIGHT + dt.timedelta(microseconds=1)
    assert (stored["day"], stored["price"], stored["flag"]) == (DAY, Decimal("1.02"), True)
    assert dataset.count(where=("at", "==", "01:00:00.123456789")) == 1
    for column, value in {"day": NOON, "price": 1.025, "at": "01:00:00.0000000001", "flag": 2}.items():
        with pytest.raises(ct.InvalidInputError):
            dataset.write(row | {column: [value]})
    for time in ("2026-01-01T00:00:00.0000001", np.datetime64("2026-01-01T00:00:00.0000001", "ns")):
        with pytest.raises(ct.InvalidInputError, match="finer"):
            dataset.write(row | {"t": [time]})


def test_polars_gives_no_rows_of_contradictory_times() -> None:
    dataset = dataset_of(pa.array([1, 2]))
    t, hour = pl.col("t"), dt.timedelta(hours=1)
    for condition in (
        (t > MIDNIGHT + hour) & (t < MIDNIGHT - hour),
        (t >= MIDNIGHT) & (t < MIDNIGHT),
        (t == MIDNIGHT) & (t == MIDNIGHT + hour),
        (t == MIDNIGHT) & (t > MIDNIGHT),
        t.is_between(MIDNIGHT + hour, MIDNIGHT),
    ):
        assert dataset.scan().filter(condition).collect().height == 0
        assert dataset.scan().filter(condition).select(pl.len()).collect().item() == 0


def test_polars_times_of_coarser_and_extreme_units() -> None:
    dataset = ct.open("memory:").create("d", schema={"t": "timestamp[s]", "n": "int64"}, cell=ct.single(), time="t")
    dataset.write({"t": [0, 1, 2], "n": [0, 1, 2]})
    t = pl.col("t")
    for at in (dt.datetime(1970, 1, 1, 0, 0, 1), dt.datetime(1970, 1, 1, 0, 0, 1, 500_000)):
        for condition in (t < at, t <= at, t > at, t >= at, t == at, (t > at) & (t <= at)):
            got = dataset.scan().filter(condition).collect().sort("n")
            assert got.equals(dataset.read().to_polars().filter(condition).sort("n")), condition
    ends = ct.open("memory:").create("d", schema={"t": "timestamp[ns]"}, cell=ct.single(), time="t", window="300d")
    ends.write({"t": [-(2**63), 2**63 - 1]})
    last = pl.lit(2**63 - 1).cast(pl.Datetime("ns"))
    for condition, count in ((t <= last, 2), (t > last, 0), (t >= last, 1), (t == last, 1), (t < last, 1)):
        assert ends.scan().filter(condition).collect().height == count


def test_polars_ids_that_are_times(memory: ct.Archive) -> None:
    dataset = memory.create("d", schema={"t": "timestamp[s]"}, cell=ct.single(), time="t", id="t")
    dataset.write({"t": [0, 1]})
    half = pl.col("t") == dt.datetime(1970, 1, 1, 0, 0, 0, 500_000)
    assert dataset.scan().filter(half).collect().height == 0
    assert dataset.scan().filter(pl.col("t").is_in([dt.datetime(1970, 1, 1)])).collect().height == 1
