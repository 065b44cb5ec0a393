"""Rows of surveys: what becomes a table, what fits a schema, and what comes out, kind by kind."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("pyarrow")
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
from astropy import units
from astropy.table import QTable
from astropy.time import Time
from hypothesis import given, settings
from hypothesis import strategies as st

import chronotile as ct
from chronotile import optional
from chronotile.apdb import names
from chronotile.apdb.rows import Rows, arrow_table, conform, drop_deleted, newest, set_column, with_units
from chronotile.apdb.schema import Column, Table
from chronotile.errors import InvalidInputError, MissingPackageError

PLAIN = {"a": [1, 2], "s": ["x", None]}
ARROW = pa.table(PLAIN)


class ForeignRows:
    """A table of a library that is not known here, with the word or two that others go by."""

    columns = colnames = ("a", "s")

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return ARROW.__arrow_c_stream__(requested_schema)

    def collect(self) -> object:
        raise AssertionError("no lazy frame")

    def __getitem__(self, name: str) -> object:
        raise AssertionError("its columns are taken as a whole")


class Frame(ForeignRows):
    """The same under the name of a library that is known."""


# Of a version of polars whose frames are streams already.
Frame.__module__ = "polars.frame"


@pytest.mark.parametrize(
    "make",
    [
        lambda: Rows(ARROW), lambda: ARROW, lambda: PLAIN, lambda: pd.DataFrame(PLAIN), lambda: pl.DataFrame(PLAIN),
        lambda: pl.DataFrame(PLAIN).lazy(), lambda: ARROW.to_batches()[0], lambda: ARROW.to_reader(),
        ForeignRows, Frame,
        lambda: pd.DataFrame(PLAIN).set_index("a"), lambda: pd.DataFrame(PLAIN, index=[7, 8]),
        lambda: pd.DataFrame(PLAIN).set_index(["a", "s"]), lambda: QTable({"a": [1, 2], "s": ["x", "y"]}),
    ],
    ids=str,
)  # fmt: skip
def test_every_kind_of_table_becomes_the_same(make: Callable[[], Any]) -> None:
    found = arrow_table(make(), "the objects")
    assert found.column_names == ["a", "s"]
    assert found["a"].to_pylist() == [1, 2]
    assert found["s"].to_pylist()[0] == "x"


def test_an_index_of_which_one_level_has_a_name_is_kept() -> None:
    frame = pd.DataFrame({"s": ["x"]}, index=pd.MultiIndex.from_tuples([(1, 2)], names=["a", None]))
    assert arrow_table(frame, "rows")["a"].to_pylist() == [1]


def test_columns_of_pandas_are_those_that_arrow_makes_of_a_frame() -> None:
    frame = pd.DataFrame(
        {
            "x": [0.5, np.nan], "f": np.array([1, 2], "float32"), "n": np.array([1, 2], "uint16"), "b": [True, False],
            "text": ["a", None], "whole": pd.Series([1, None], dtype="Int32"),
            "flag": pd.Series([True, None], dtype="boolean"), "band": pd.Series(["g", None], dtype="category"),
            "t": pd.to_datetime(["2026-01-31T00:00:00.000000001Z", None]), "length": pd.to_timedelta([5, None]),
            7: [1, 2],
        }
    )  # fmt: skip
    found = arrow_table(frame, "rows")
    assert found.equals(pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None))
    assert found["x"].null_count == 1, "what pandas has no value for is null"


def test_results_of_reads_are_tables(memory: ct.Archive) -> None:
    dataset = memory.create("d", schema={"a": "int64", "t": "timestamp[s]"}, cell=ct.key("a"), time="t")
    dataset.write({"a": [5], "t": [1]})
    assert arrow_table(dataset.read(), "rows")["a"].to_pylist() == [5]


@pytest.mark.parametrize("wrong", [None, 5, "a", [1], object()])
def test_what_is_no_table_is_named(wrong: Any) -> None:
    with pytest.raises(InvalidInputError, match=rf"the objects have type {type(wrong).__name__}: give an Arrow table"):
        arrow_table(wrong, "the objects")


# ---------------------------------------------------------------- quantities

TABLE = Table(
    "DiaTest",
    (
        Column("id", "int64", nullable=False), Column("flux", "float32", unit="nJy"),
        Column("ra", "float64", unit="deg"), Column("mjd", "float64"), Column("band", "utf8", default="r"),
        Column("flag", "bool"), Column("n", "int32"),
    ),
)  # fmt: skip


@pytest.mark.parametrize("kind", [dict, QTable])
def test_quantities_are_in_the_units_of_the_schema(kind: Any) -> None:
    time = Time([61_000.0], format="mjd", scale="utc")
    given_ = kind({"id": [1], "flux": [2.0] * units.uJy, "ra": [30.0] * units.arcmin, "mjd": time})
    found = with_units(given_, TABLE)
    assert list(found["flux"]) == pytest.approx([2_000.0])
    assert list(found["ra"]) == [0.5]
    assert list(found["mjd"]) == pytest.approx([61_000.0 + 37 / 86_400])
    assert list(found["id"]) == [1]
    stored = conform(given_, TABLE, {}, "rows")
    assert stored["flux"].to_pylist() == pytest.approx([2_000.0])


def test_a_quantity_needs_a_unit_and_anything_else_is_left_alone() -> None:
    with pytest.raises(InvalidInputError, match="column n of DiaTest has no unit: give plain numbers"):
        with_units({"id": [1], "n": [1.0] * units.deg}, TABLE)
    assert with_units({"unknown": [1.0] * units.deg}, TABLE)["unknown"].unit == units.deg
    for given_ in (PLAIN, ARROW, pl.DataFrame(PLAIN), ForeignRows()):
        assert with_units(given_, TABLE) is given_


# ---------------------------------------------------------------- conforming


def test_rows_get_the_types_and_defaults_of_the_schema() -> None:
    given_ = {"id": pa.array([1, 2], pa.int32()), "flux": [0.1, 1e300 / 1e299], "n": [3, None]}
    for _ in range(2):  # The second time by the plan that was kept.
        found = conform(given_, TABLE, {}, "rows")
        assert found.schema.field("id").type == pa.int64()
        assert found.schema.field("flux") == TABLE["flux"].arrow
        assert found["flux"].to_pylist() == [float(np.float32(0.1)), 10.0]
        assert found["band"].to_pylist() == ["r", "r"]
        assert found.column_names == ["id", "flux", "n", "band"], "what may be null stays out"
    filled = conform(given_, TABLE, {"mjd": 5.0, "band": "g"}, "rows")
    assert (filled["mjd"].to_pylist(), filled["band"].to_pylist()) == ([5.0, 5.0], ["g", "g"])
    assert conform({**given_, "band": ["i", "z"]}, TABLE, {"band": "g"}, "rows")["band"].to_pylist() == ["i", "z"]
    assert conform({"id": []}, TABLE, {"mjd": 1.0}, "rows").num_rows == 0
    assert conform({"id": ["7"], "flux": ["0.5"]}, TABLE, {}, "rows")["flux"].to_pylist() == [0.5]


def test_a_plan_that_is_kept_is_used_again() -> None:
    table = Table("T", (Column("id", "int64", nullable=False), Column("band", "utf8", default="r")))
    conform({"id": [1]}, table, {}, "rows")
    kept = dict(table.plans)
    assert kept
    conform({"id": [2]}, table, {}, "rows")
    assert table.plans[()] is kept[()], "the same columns make no new plan"
    conform({"id": pa.array([2], pa.int8())}, table, {}, "rows")
    assert table.plans[()] is not kept[()]


@pytest.mark.parametrize("form", [dict, pd.DataFrame])
def test_a_column_of_several_types_is_named(form: Any) -> None:
    with pytest.raises(
        InvalidInputError, match=r"^the rows: cannot convert column band, give values of one type: "
    ) as caught:
        conform(form({"id": [1, 2], "band": ["r", 2]}), TABLE, {}, "the rows")
    assert caught.value.details == {"column": "band"}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ({"flux": [1.0]}, "required column id of DiaTest is missing"),
        (
            {"id": [1], "fluxx": [1.0], "raa": [1.0]},
            "unknown columns of table DiaTest: fluxx, raa; did you mean flux, ra[?] Otherwise leave",
        ),
        (
            {"id": [1], **{f"other_{place:02}": [1.0] for place in range(97)}},
            "unknown columns of table DiaTest: other_00, .*, other_19, [.]{3} [(]97 in all[)]; leave them out",
        ),
        (
            {"id": [1], "fluxx": [1.0], "raa": [1.0], "bandd": ["r"], "flagg": [True]},
            "unknown columns of table DiaTest: fluxx, raa, bandd, flagg; did you mean flux, ra, band[?] Otherwise",
        ),
        (pa.table([[1], [2], [3], [3], [4]], names=["id", "flux", "id", "flux", "n"]), "duplicate columns flux, id$"),
        (pd.DataFrame([[1, 2, 3, 4]], columns=["id", "flux", "n", "n"]), "duplicate columns n$"),
        (pd.DataFrame([[1, 2, 3]], columns=["id", 1, "1"]), "duplicate columns 1$"),
        ({"id": [1.5]}, "cannot convert column id from double to int64: row 0 holds 1.5"),
        ({"id": [1.0, None, 3.0, 3.7, 0.5]}, "cannot convert column id from double to int64: row 3 holds 3.7"),
        (
            {"id": [1, 2, 3], "flux": [1.0, float("inf"), -1e300]},
            r"column flux .*: row 2 holds -1e\+300: .* out of the range",
        ),
        ({"id": ["x"]}, "cannot convert column id from string to int64"),
        ({"id": [2**40], "n": [2**40]}, "cannot convert column n from int64 to int32"),
        ({"id": [1], "flux": [2**24 + 1]}, "cannot convert column flux from int64 to float"),
        ({"id": [1], "band": pa.array([1])}, "cannot convert column band from int64 to string: the column holds text"),
        ({"id": [1], "band": pa.array([1.5])}, "column band .*, and the values have type double: convert them to text"),
        ({"id": [1], "band": pa.array([True])}, "cannot convert column band from bool to string"),
        ({"id": [1], "flag": [[1]]}, "cannot convert column flag from list<item: int64> to bool: Unsupported"),
    ],
)
def test_rows_that_do_not_fit_are_refused(rows: Any, words: str) -> None:
    with pytest.raises(InvalidInputError, match=f"the rows: .*{words}"):
        conform(rows, TABLE, {}, "the rows")
    if "missing" in words:
        assert conform(rows, TABLE, {"id": 7}, "the rows")["id"].to_pylist() == [7]


def test_an_unknown_column_gets_the_nearest_name_alone() -> None:
    near = Table("T", (Column("flux_a", "float64"), Column("flux_b", "float64")))
    with pytest.raises(InvalidInputError, match=r"did you mean flux_a\? Otherwise"):
        conform({"flux_c": [1.0]}, near, {}, "rows")


# ---------------------------------------------------------------- the newest of several

cells = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 50)), max_size=30)


@settings(max_examples=40)
@given(cells, st.sampled_from([["a"], ["a", "b"]]))
def test_of_rows_with_one_key_the_greatest_stays(rows: list[tuple[int, int, int]], keys: list[str]) -> None:
    columns = [[row[place] for row in rows] for place in range(3)]
    table = pa.table(columns, schema=pa.schema([(name, pa.int64()) for name in ("a", "b", "o")]))
    found = newest(table, keys, "o").to_pylist()
    best: dict[tuple[int, ...], int] = {}
    for row in rows:
        key = row[: len(keys)]
        best[key] = max(best.get(key, -1), row[2])
    assert [tuple(row[name] for name in keys) for row in found] == sorted(best)
    assert [row["o"] for row in found] == [best[key] for key in sorted(best)]


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=12))
def test_versions_of_deleted_objects_are_dropped(rows: list[tuple[int, bool]]) -> None:
    table = pa.table({
        names.OBJECT_ID: pa.array([id for id, _ in rows], pa.int64()),
        names.VERSION: pa.array([names.GONE if gone else at for at, (_, gone) in enumerate(rows)], pa.int64()),
    })  # fmt: skip
    gone = {id for id, deleted in rows if deleted}
    assert drop_deleted(table)[names.OBJECT_ID].to_pylist() == [id for id, _ in rows if id not in gone]


def test_other_values_keep_the_place_and_type_of_a_column() -> None:
    table = pa.table({"a": pa.array([1, 2], pa.int32()), "b": ["x", "y"]})
    for values in ([3, 4], pa.array([3, 4], pa.int64()), pa.chunked_array([[3], [4]]), np.array([3, 4], "int32")):
        found = set_column(table, "a", values)
        assert found.schema == table.schema
        assert found.to_pylist() == [{"a": 3, "b": "x"}, {"a": 4, "b": "y"}]


# ---------------------------------------------------------------- out

FIELDS = [
    pa.field("flux", pa.float32(), metadata={"unit": "nJy"}), pa.field("n", pa.int32(), metadata={"unit": "s"}),
    pa.field("band", pa.utf8()), pa.field("flag", pa.bool_(), metadata={"description": "whether"}),
    pa.field("x", pa.float64()),
]  # fmt: skip
FULL = Rows(pa.table([[1.5, 2.5], [1, 2], ["g", "r"], [True, False], [0.5, 1.0]], schema=pa.schema(FIELDS)))
NULLS = Rows(pa.table([[1.5, None], [1, None], ["g", None], [True, None], [None, 1.0]], schema=pa.schema(FIELDS)))


def test_rows_are_read_by_other_libraries_and_again() -> None:
    for _ in range(2):
        assert pa.table(FULL).equals(FULL.to_arrow())
        assert FULL.to_polars()["band"].to_list() == ["g", "r"]
        assert FULL.to_pandas()["n"].tolist() == [1, 2]
    assert FULL.to_pandas(split_blocks=True).shape == (2, 5)
    assert (len(FULL), FULL.column_names) == (2, ["flux", "n", "band", "flag", "x"])
    assert FULL.units == {"flux": "nJy", "n": "s"}
    assert FULL["flag"].to_pylist() == [True, False]
    with pytest.raises(InvalidInputError, match="no column 'fluxx'; did you mean flux"):
        FULL["fluxx"]


def test_columns_of_astropy_have_units_where_they_are_fractions() -> None:
    table = FULL.to_astropy()
    assert table.colnames == FULL.column_names
    assert table["flux"].unit == units.nJy
    assert table["flux"].value.tolist() == [1.5, 2.5]
    assert table["n"].unit is None
    assert all(not hasattr(table[name], "mask") for name in table.colnames)
    assert table["flag"].tolist() == [True, False]
    masked = NULLS.to_astropy()
    assert np.isnan(masked["flux"].value).tolist() == [False, True]
    assert np.isnan(masked["x"]).tolist() == [True, False]
    for name, value, fill in (("n", 1, 0), ("band", "g", ""), ("flag", True, False)):
        assert masked[name].mask.tolist() == [False, True]
        assert masked[name].data.data.tolist() == [value, fill]


@pytest.mark.parametrize(
    ("module", "method", "words"),
    [
        ("pandas", "to_pandas", r"to_pandas\(\) needs pandas: pip install 'chronotile\[pandas\]'"),
        ("polars", "to_polars", r"to_polars\(\) needs polars: pip install 'chronotile\[polars\]'"),
        ("astropy", "to_astropy", r"to_astropy\(\) needs astropy: pip install 'chronotile\[lsst\]'"),
    ],
)
def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, module: str, method: str, words: str) -> None:
    assert module in optional.DISTRIBUTIONS
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingPackageError, match=words):
        getattr(FULL, method)()
