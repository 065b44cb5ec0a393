"""The polars source: what it hands down, and that results never change by it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator

import numpy as np
import polars as pl
import pytest

import chronotile as ct
import chronotile.dataset.polars_source as source
from chronotile import _native

C = pl.col
ROWS = 2_000
START = dt.datetime(2026, 1, 1)


@pytest.fixture(scope="module")
def dataset() -> Iterator[ct.Dataset]:
    rng = np.random.default_rng(7)
    floats = rng.normal(size=ROWS)
    floats[::10] = np.nan
    floats[5::50] = -0.0
    with ct.open("memory:") as archive:
        dataset = archive.create(
            "d",
            schema={
                "id": "int64",
                "t": "timestamp[us]",
                "tag": "utf8",
                "f": "float64",
                "g": "float32",
                "n": "int32",
                "b": "bool",
                "day": "date32",
                "list": "list<int32>",
            },
            cell=ct.hash("tag"),
            time="t",
            window="1d",
            id="id",
        )
        dataset.write(
            pl.DataFrame(
                {
                    "id": np.arange(ROWS),
                    "t": np.datetime64(START) + np.arange(ROWS) * np.timedelta64(600, "s"),
                    "tag": [None if k % 31 == 0 else f"s{k % 7}" for k in range(ROWS)],
                    "f": floats,
                    "g": rng.normal(size=ROWS).astype("float32"),
                    "n": [None if k % 11 == 0 else int(rng.integers(-50, 50)) for k in range(ROWS)],
                    "b": [k % 3 == 0 for k in range(ROWS)],
                    "day": [START.date() + dt.timedelta(days=k % 9) for k in range(ROWS)],
                    "list": [[k] for k in range(ROWS)],
                },
                schema_overrides={"n": pl.Int32, "list": pl.List(pl.Int32)},
            )
        )
        yield dataset


class Spy:
    """Notes the requests that a scan makes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requests: list[dict[str, object]] = []

        def request(**arguments: object) -> _native.Request:
            self.requests.append({name: value for name, value in arguments.items() if value not in (None, [])})
            return _native.Request(**arguments)  # type: ignore[arg-type]

        class Native:
            Request = staticmethod(request)
            Array = _native.Array
            column_of_list = staticmethod(_native.column_of_list)

        monkeypatch.setattr(source, "_native", Native)


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Spy:
    return Spy(monkeypatch)


FILTERS = [
    (C("f") > 0, set()),
    (C("f") < 0, {"predicates"}),
    (C("f") >= 0.0, set()),
    (C("f") == 0.0, {"predicates"}),
    (C("f") != 0.5, {"predicates"}),
    ((C("f") > 0) & (C("f") < 1), {"predicates"}),
    (C("f").is_between(-1, 1, closed="none"), {"predicates"}),
    (C("f") == float("nan"), set()),
    (C("f").is_nan(), set()),
    (C("g") < 0.1, {"predicates"}),
    (C("g") <= 0.1, {"predicates"}),
    (C("n").is_between(-3, 5), {"predicates"}),
    (C("n") > 2.5, set()),
    (pl.lit(3) < C("n"), {"predicates"}),
    (C("n").is_in([1, 2, 3]), {"predicates"}),
    (~C("n").is_in([1, 2, 3]), set()),
    (C("n").is_null(), {"predicates"}),
    (C("n").is_not_null(), {"predicates"}),
    (C("list").is_not_null(), {"predicates"}),
    (~C("n").is_null(), {"predicates"}),
    (C("n") != 4, {"predicates"}),
    (C("tag") == "s3", {"keys"}),
    (C("tag").is_in(["s1", "s2", "none"]), {"keys"}),
    (C("tag") > "s3", {"predicates"}),
    (C("tag").str.starts_with("s1"), {"predicates"}),
    (C("tag").str.contains("1", literal=True), {"predicates"}),
    (C("tag").str.contains("s."), set()),
    (C("tag").str.contains("s.", literal=True), {"predicates"}),
    (C("tag").str.contains("s3"), {"predicates"}),
    (C("tag").str.ends_with("3"), set()),
    ((C("tag") == "s1") & C("tag").str.starts_with("s"), {"keys", "predicates"}),
    (C("id") == 7, {"ids"}),
    (C("id").is_in([1, 2, 99_999]), {"ids"}),
    ((C("id") == 7) & (C("tag") == "s0"), {"ids", "keys"}),
    ((C("tag") == "s1") & (C("tag") == "s2"), {"keys", "predicates"}),
    (C("b"), set()),
    (C("day") >= dt.date(2026, 1, 5), {"predicates"}),
    ((C("n") > 3) | (C("f") > 1), set()),
    (((C("n") > 3) | (C("f") > 1)) & (C("t") < dt.datetime(2026, 1, 3)), {"end"}),
    (C("t") >= dt.datetime(2026, 1, 3), {"start"}),
    (C("t") > dt.datetime(2026, 1, 3), {"start"}),
    (C("t") <= dt.datetime(2026, 1, 3), {"end"}),
    (C("t") == dt.datetime(2026, 1, 3), {"start", "end"}),
    (C("t").is_between(dt.datetime(2026, 1, 3), dt.datetime(2026, 1, 4), closed="left"), {"start", "end"}),
    (C("id") < 0, {"predicates"}),
]


@pytest.mark.parametrize(("condition", "handed_down"), FILTERS, ids=[str(condition) for condition, _ in FILTERS])
def test_a_filter_gives_what_polars_gives_and_reaches_the_read(
    dataset: ct.Dataset, spy: Spy, condition: pl.Expr, handed_down: set[str]
) -> None:
    got = dataset.scan().filter(condition).collect().sort("id")
    wanted = dataset.read().to_polars().filter(condition).sort("id")
    assert got.equals(wanted, null_equal=True)
    (request,) = spy.requests
    assert set(request) == handed_down


def test_only_needed_columns_are_read(dataset: ct.Dataset, spy: Spy) -> None:
    got = dataset.scan().filter(C("n") > 3).select("f", "id").collect()
    assert got.columns == ["f", "id"]
    (request,) = spy.requests
    assert set(request["columns"]) == {"f", "id", "n"}  # type: ignore[call-overload]


def test_heads_counts_and_groups_work(dataset: ct.Dataset) -> None:
    scan = dataset.scan()
    assert scan.collect_schema() == dataset.read().to_polars().schema
    assert scan.select(pl.len()).collect().item() == ROWS
    assert scan.head(3).collect().height == 3
    assert scan.filter(C("b")).head(5).collect().height == 5
    assert scan.filter(C("id") < 0).collect().height == 0
    groups = scan.group_by("tag").agg(C("n").sum()).sort("tag").collect()
    assert groups.equals(dataset.read().to_polars().group_by("tag").agg(C("n").sum()).sort("tag"))
    # A scan is not used up by being collected.
    assert scan.collect().height == ROWS


def test_float_days_are_handed_down_exactly(memory: ct.Archive, spy: Spy) -> None:
    days = [60_000.0, np.nextafter(60_000.0, 0), np.nextafter(60_000.0, 1e9), 60_001.0]
    dataset = memory.create("d", schema={"mjd": "float64"}, cell=ct.single(), time="mjd")
    dataset.write({"mjd": days})
    for condition in (
        C("mjd") < 60_000,
        C("mjd") <= 60_000,
        C("mjd") > 60_000,
        C("mjd") >= 60_000,
        C("mjd") == 60_000.0,
    ):
        got = dataset.scan().filter(condition).collect().sort("mjd")
        assert got.equals(pl.DataFrame({"mjd": days}).filter(condition).sort("mjd"))
    assert all({"start", "end"} & set(request) for request in spy.requests)
