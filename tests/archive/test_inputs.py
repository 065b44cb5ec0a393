"""What can be written: every kind of table, column and stream."""

from __future__ import annotations

import array
import datetime as dt
import decimal
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import chronotile as ct
from chronotile import inputs

COLUMNS = {"k": [1, 2, 3], "t": [10, 20, 30], "x": [0.5, None, -0.0], "s": ["a", None, "ü"]}
ARROW = pa.table(
    {
        "k": pa.array(COLUMNS["k"], pa.int64()),
        "t": pa.array(COLUMNS["t"], pa.timestamp("us")),
        "x": pa.array(COLUMNS["x"], pa.float64()),
        "s": pa.array(COLUMNS["s"], pa.utf8()),
    }
)


def from_generator() -> Iterator[pa.Table]:
    for row in range(3):
        yield ARROW.slice(row, 1)


INPUTS = {
    "arrow table": lambda: ARROW,
    "arrow batch": lambda: ARROW.to_batches()[0],
    "arrow reader": lambda: ARROW.to_reader(),
    "arrow struct array": lambda: pa.StructArray.from_arrays(
        [c.combine_chunks() for c in ARROW.columns], ARROW.column_names
    ),
    "pandas": lambda: ARROW.to_pandas(),
    "pandas with an unnamed index": lambda: ARROW.to_pandas().set_index(np.array([7, 8, 9])),
    "pandas with a named index": lambda: ARROW.to_pandas().set_index("k"),
    "polars": lambda: pl.from_arrow(ARROW),
    "polars lazy": lambda: pl.from_arrow(ARROW).lazy(),
    "duckdb relation": lambda: duckdb.from_arrow(ARROW),
    "dict of lists": lambda: COLUMNS,
    "dict of arrow arrays": lambda: dict(zip(ARROW.column_names, ARROW.columns, strict=True)),
    "dict of polars series": lambda: pl.from_arrow(ARROW).to_dict(),
    "dict of mixed": lambda: {
        "k": np.array([1, 2, 3], ">i4"),
        "t": np.array([10, 20, 30], "datetime64[us]"),
        "x": np.ma.masked_array([0.5, 9.9, -0.0], mask=[False, True, False]),
        "s": pd.Series(["a", None, "ü"], dtype="object"),
    },
    "list of tables": lambda: [ARROW.slice(0, 2), ARROW.slice(2)],
    "generator": from_generator,
    "generator of mixed": lambda: iter(
        [ARROW.slice(0, 1), pl.from_arrow(ARROW.slice(1, 1)), ARROW.slice(2).to_pandas()]
    ),
    "columns in another order": lambda: ARROW.select(["s", "x", "t", "k"]),
}


@pytest.mark.parametrize("name", INPUTS)
def test_every_kind_of_table_is_stored_the_same(memory: ct.Archive, name: str) -> None:
    dataset = memory.create("d", schema=ARROW.schema, cell=ct.key("k"), time="t", id="k")
    report = dataset.write(INPUTS[name](), batch="b")
    assert report.rows == 3
    stored = dataset.read().to_arrow().sort_by("k")
    if "pandas" in name or "generator of mixed" in name:
        # pandas has no null beside NaN in float columns.
        assert stored.drop_columns(["x"]).equals(ARROW.drop_columns(["x"]))
        assert stored["x"].to_pandas().equals(ARROW["x"].to_pandas())
    else:
        assert stored.equals(ARROW)
    again = dataset.write(INPUTS[name](), batch="b")
    assert not again.stored


def test_slices_of_structs_in_structs_are_stored_as_they_are(memory: ct.Archive) -> None:
    inner = pa.struct([("x", pa.int32())])
    kind = pa.struct([("inner", inner), ("list", pa.list_(pa.int8()))])
    values = [{"inner": {"x": row}, "list": [row] * row} for row in range(6)]
    times = pa.array(range(6), pa.timestamp("us"))
    table = pa.table({"id": range(6), "k": [1] * 6, "t": times, "nested": pa.array(values, kind)})
    ds = memory.create("nested", schema=table.schema, cell=ct.key("k"), time="t", window="1d", id="id")
    ds.write(table.slice(2, 3))
    ds.write(table.to_batches()[0].slice(5))
    assert ds.read().to_arrow().sort_by("id")["nested"].to_pylist() == values[2:]


def test_a_result_of_one_dataset_is_written_to_another(memory: ct.Archive) -> None:
    first = memory.create("first", schema=ARROW.schema, cell=ct.key("k"), time="t")
    first.write(ARROW)
    second = memory.create("second", schema=first.read(), cell=ct.key("k"), time="t")
    assert second.write(first.read(ids=None)).rows == 3
    nested = ({"k": [k], "t": [k], "s": first.read(keys=k).to_arrow()["s"]} for k in (1, 2, 3))
    assert second.write(nested).rows == 3


@pytest.mark.parametrize(
    ("kind", "values", "wanted"),
    [
        ("bool", np.array([True, False]), [True, False]),
        ("bool", np.array([True, False, True])[::2], [True, True]),
        ("int8", np.array([-128, 127], "int8"), [-128, 127]),
        ("uint64", np.array([0, 2**64 - 1], "uint64"), [0, 2**64 - 1]),
        ("uint64", [0, 2**64 - 1], [0, 2**64 - 1]),
        ("int64", range(2), [0, 1]),
        ("int64", (np.int16(1), None), [1, None]),
        ("float32", np.array([1.5, -0.0], "float32"), [1.5, -0.0]),
        ("float32", [1, 2.5], [1.0, 2.5]),
        ("float64", array.array("d", [1.5, 2.5]), [1.5, 2.5]),
        ("float64", np.arange(4.0)[::2], [0.0, 2.0]),
        ("float64", [1, None], [1.0, None]),
        ("utf8", np.array(["a", "bc"]), ["a", "bc"]),
        ("utf8", np.array(["a", None], dtype=object), ["a", None]),
        ("binary", [b"\x00\xff", None], [b"\x00\xff", None]),
        ("date32", [dt.date(2026, 1, 31), None], [dt.date(2026, 1, 31), None]),
        ("date32", np.array(["2026-01-31", "NaT"], "datetime64[D]"), [dt.date(2026, 1, 31), None]),
        ("time64[us]", [dt.time(1, 2, 3, 4), None], [dt.time(1, 2, 3, 4), None]),
        ("time32[s]", [dt.time(1, 2, 3), dt.time(0)], [dt.time(1, 2, 3), dt.time(0)]),
        ("duration[ms]", [dt.timedelta(seconds=-1.5), None], [dt.timedelta(seconds=-1.5), None]),
        ("duration[s]", np.array([5, 6], "timedelta64[m]"), [dt.timedelta(minutes=5), dt.timedelta(minutes=6)]),
        ("timestamp[ms]", [dt.datetime(2026, 1, 31, 12), None], [dt.datetime(2026, 1, 31, 12), None]),
        ("timestamp[ms]", np.array(["2026-01-31T12", "NaT"], "datetime64[h]"), [dt.datetime(2026, 1, 31, 12), None]),
        ("timestamp[s]", ["2026-01-31T12:00:00", None], [dt.datetime(2026, 1, 31, 12), None]),
        (
            "timestamp[us, UTC]",
            [dt.datetime(2026, 1, 31, 12, tzinfo=dt.timezone(dt.timedelta(hours=2))), None],
            [dt.datetime(2026, 1, 31, 10, tzinfo=dt.UTC), None],
        ),
        ("decimal128(10, 2)", [decimal.Decimal("1.25"), None], [decimal.Decimal("1.25"), None]),
        ("list<int64>", [[1, 2], None], [[1, 2], None]),
        ("struct<a: int64, b: utf8>", [{"a": 1, "b": "x"}, None], [{"a": 1, "b": "x"}, None]),
        ("utf8", [None, None], [None, None]),
    ],
    ids=str,
)
def test_columns_of_python_and_numpy_values(
    memory: ct.Archive, kind: str, values: object, wanted: list[object]
) -> None:
    dataset = memory.create("d", schema={"n": "int64", "t": "timestamp[s]", "v": kind}, cell=ct.key("n"), time="t")
    dataset.write({"n": [0, 1], "t": [0, 1], "v": values})
    stored = dataset.read().to_arrow().sort_by("n")["v"].to_pylist()
    assert stored == wanted
    # 0.0 == -0.0 and True == 1.
    assert [type(value) for value in stored] == [type(value) for value in wanted]
    if "float" in kind:
        assert repr(stored) == repr(wanted)


@pytest.mark.parametrize("form", ["table", "reader", "batch", "iterator", "polars", "dict"])
def test_the_first_null_of_a_required_column_is_named(memory: ct.Archive, form: str) -> None:
    schema = pa.schema([pa.field(field.name, field.type, nullable=False) for field in ARROW.schema])
    dataset = memory.create("d", schema=schema, cell=ct.key("k"), time="t", id="k")
    given = pa.Table.from_arrays(ARROW.columns, schema=schema)
    forms = {
        "table": lambda: given,
        "reader": given.to_reader,
        "batch": lambda: given.to_batches()[0],
        "iterator": lambda: iter([given.slice(0, 1), given.slice(1)]),
        "polars": lambda: pl.from_arrow(ARROW),
        "dict": lambda: COLUMNS,
    }
    with pytest.raises(ct.InvalidInputError, match='row 1 does not fit dataset d: column "x" is null') as caught:
        dataset.write(forms[form]())
    assert caught.value.kind == "invalid-rows"
    assert caught.value.details == {"dataset": "d", "column": "x", "row": 1}
    assert "nullable" not in str(caught.value)
    assert dataset.info().rows == 0


def test_a_position_that_is_none_is_named_with_its_row_once(memory: ct.Archive) -> None:
    rows = {"id": [1, 2], "t": [10, 20], "ra": [1.0, 2.0], "dec": [3.0, 95.0]}
    schema = {"id": "int64", "t": "timestamp[us]", "ra": "float64", "dec": "float64"}
    dataset = memory.create("d", schema=schema, cell=ct.sky("ra", "dec"), time="t", id="id")
    with pytest.raises(ct.InvalidInputError, match=r'^row 1 .* column "dec" is 95: give degrees') as caught:
        dataset.write(rows)
    assert str(caught.value).count("row ") == 1
    with pytest.raises(ct.InvalidInputError, match=r"^ra 1 dec 95 is not a position"):
        ct.circle(1.0, 95.0, 0.1)


@pytest.mark.parametrize("form", [dict, pd.DataFrame, lambda rows: {**rows, "s": np.array(rows["s"], object)}])
@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["a", 2, 3], "value 1 is 2, of type int, but the others are str: give values of one type"),
        ([1, "b", None], "value 1 is 'b', of type str, but the others are int: give values of one type"),
        (["a", None, 1.5], "value 2 is 1.5, of type float, but the others are str: give values of one type"),
    ],
)
def test_values_of_several_types_in_a_text_column_are_named(
    memory: ct.Archive, form: Callable[[dict[str, list[Any]]], Any], values: list[Any], message: str
) -> None:
    dataset = memory.create("d", schema=ARROW.schema, cell=ct.key("k"), time="t", id="k")
    rows = form({"k": [1, 2, 3], "t": pd.to_datetime([1, 2, 3], unit="us").to_list(), "x": [0.5] * 3, "s": values})
    with pytest.raises(ct.InvalidInputError, match=f"^column 's' of type utf8: {re.escape(message)}$") as caught:
        dataset.write(rows)
    assert caught.value.kind == "invalid-rows"


@pytest.mark.parametrize("form", [lambda table: table, pa.Table.to_pandas, lambda table: table.to_batches()[0]])
def test_integers_for_a_text_column_are_refused_with_both_types(
    memory: ct.Archive, form: Callable[[pa.Table], Any]
) -> None:
    dataset = memory.create("d", schema=ARROW.schema, cell=ct.key("k"), time="t", id="k")
    with pytest.raises(ct.InvalidInputError, match='column "s" has type Int64, the dataset has Utf8: cast it first'):
        dataset.write(form(ARROW.set_column(3, "s", ARROW["k"])))


def test_a_polars_column_of_nulls_alone_is_stored_as_nulls(memory: ct.Archive) -> None:
    dataset = memory.create("d", schema=ARROW.schema, cell=ct.key("k"), time="t", id="k")
    frame = pl.from_arrow(ARROW).with_columns(s=pl.lit(None), x=pl.lit(None))
    dataset.write(iter([frame, frame.with_columns(k=pl.col("k") + 10).lazy()]))
    stored = dataset.read().to_arrow()
    assert (stored["s"].null_count, stored["x"].null_count, len(stored)) == (6, 6, 6)


def test_a_column_that_is_given_twice_is_refused(memory: ct.Archive) -> None:
    dataset = memory.create("d", schema=ARROW.schema, cell=ct.key("k"), time="t", id="k")
    with pytest.raises(ct.InvalidInputError, match='column "x" appears twice') as caught:
        dataset.write(ARROW.append_column("x", ARROW["x"]))
    assert caught.value.details["column"] == "x"
    assert dataset.count() == 0


def test_nan_is_a_value_and_null_is_not(memory: ct.Archive) -> None:
    dataset = memory.create("d", schema={"t": "timestamp[s]", "x": "float64"}, cell=ct.single(), time="t")
    dataset.write({"t": [1, 2], "x": np.array([np.nan, 1.0])})
    dataset.write({"t": [3], "x": [None]})
    assert dataset.read().to_arrow()["x"].null_count == 1


def test_times_finer_than_the_column_are_refused(memory: ct.Archive) -> None:
    dataset = memory.create("d", schema={"t": "timestamp[s]"}, cell=ct.single(), time="t")
    with pytest.raises(ct.InvalidInputError, match="finer"):
        dataset.write({"t": [dt.datetime(2026, 1, 1, 0, 0, 0, 5)]})
    with pytest.raises(ct.InvalidInputError, match="finer"):
        dataset.write({"t": np.array([1], "datetime64[us]")})


def test_a_stream_is_drawn_from_as_rows_are_needed(sqlite: ct.Archive) -> None:
    """Many times the write buffer passes through; what Python holds stays at a table or two."""
    dataset = sqlite.create("d", schema={"n": "int64", "t": "timestamp[s]", "x": "float64"}, cell=ct.key("n"), time="t")
    rows, tables = 20_000, 20
    alive = 0
    most = 0

    class Table:
        def __init__(self, number: int) -> None:
            nonlocal alive, most
            alive += 1
            most = max(most, alive)
            rng = np.random.default_rng(number)
            seconds = np.arange(rows).astype("datetime64[s]")
            self.table = pa.table({"n": np.full(rows, number % 5), "t": seconds, "x": rng.normal(size=rows)})

        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            return self.table.__arrow_c_stream__(requested_schema)

    stream = inputs.rows((Table(number) for number in range(tables)), dataset.column_types)
    report = dataset._native.write(stream, "long", False, buffer_bytes=1 << 20)
    assert report["rows"] == rows * tables
    assert most <= 3
    assert dataset.count() == rows * tables


WITHOUT = """
import sys

for name in {"pyarrow", "pandas", "polars", "numpy"} - set(sys.argv[1:]):
    sys.modules[name] = None  # which makes its import fail

import datetime as dt
import chronotile as ct

with ct.open("memory:") as archive:
    schema = {"n": "int64", "t": "timestamp[us]", "x": "float64", "s": "utf8"}
    ds = archive.create("d", schema=schema, cell=ct.key("n"), time="t")
    ds.write({"n": [1, 2], "t": [dt.datetime(2026, 1, 1), dt.datetime(2026, 1, 2)], "x": [0.5, None], "s": ["a", "b"]})
    if "numpy" in sys.argv:
        import numpy as np
        t = np.array(["2026-01-03"], "datetime64[us]")
        ds.write({"n": np.array([3]), "t": t, "x": np.array([1.5]), "s": np.array(["c"])})
    if "polars" in sys.argv:
        assert ds.read().to_polars().height == ds.count()
        assert ds.scan().collect().height == ds.count()
    other = archive.create("copy", schema=ds.read(), cell=ct.key("n"), time="t")
    other.write(ds.read(where=[("x", ">", 0.1), ("s", "in", ["a", "b"])], start="2026-01-01"))
    print(ds.count(), other.count(), ds.latest(keys=2).column_names)
    for use in (lambda: ds.read().to_arrow(), lambda: next(ds.read().batches())):
        try:
            use()
        except ImportError as error:
            assert "needs pyarrow: pip install 'chronotile[arrow]'" in str(error), error
        else:
            raise AssertionError("pyarrow was found")
    try:
        ds.write({"n": [1], "t": [dt.datetime(2026, 1, 1)], "x": [0.5], "s": [["list"]]})
    except ct.InvalidInputError as error:
        assert "install pyarrow" in str(error), error
"""


@pytest.mark.parametrize("present", [[], ["numpy"], ["numpy", "polars"]], ids=lambda p: "+".join(p) or "nothing")
def test_the_package_works_without_arrow_libraries(present: list[str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *present], capture_output=True, text=True, cwd=tmp_path, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = 3 if "numpy" in present else 2
    assert done.stdout == f"{rows} 1 ['n', 't', 'x', 's']\n"


def test_duckdb_takes_a_result(memory: ct.Archive) -> None:
    dataset = memory.create("d", schema=ARROW.schema, cell=ct.key("k"), time="t")
    dataset.write(ARROW)
    result = dataset.read(columns=["k", "x"])  # noqa: F841  (named in the query)
    assert duckdb.sql("select sum(k), count(x) from result").fetchall() == [(6, 2)]
    assert duckdb.from_arrow(dataset.read()).filter("k > 1").aggregate("count(*)").fetchall() == [(2,)]
