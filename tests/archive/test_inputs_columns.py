"""Columns of every kind one by one: values, types and nulls that reach the native module, and what is refused."""

from __future__ import annotations

import array
import datetime as dt
import sys
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import chronotile as ct
from chronotile import inputs
from chronotile.errors import InvalidInputError

UTC = dt.UTC
NOON = dt.datetime(2026, 1, 31, 12)


def column(values: Any, wanted: str | None = None) -> pa.Array:
    return pa.array(inputs.column(values, wanted, "c"))


def refused(values: Any, match: str, wanted: str | None = None) -> None:
    with pytest.raises(InvalidInputError, match=match) as caught:
        inputs.column(values, wanted, "c")
    assert caught.value.kind == "invalid-rows"


class Stream:
    """A column of another library that only streams."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return pa.chunked_array([[1, 2]]).__arrow_c_stream__(requested_schema)


class Numbers(list[int]):
    """A list with words that arrays have."""

    dtype = ndim = None


# ---------------------------------------------------------------- columns


@pytest.mark.parametrize(
    ("values", "kind", "wanted"),
    [
        (pa.array([1, 2], pa.int8()), pa.int8(), [1, 2]),
        (Stream(), pa.int64(), [1, 2]),
        (Numbers([1, 2]), pa.int64(), [1, 2]),
        (array.array("f", [0.5, 1.5]), pa.float32(), [0.5, 1.5]),
        (array.array("d", [0.1]), pa.float64(), [0.1]),
        (array.array("i", [1, 2]), pa.int64(), [1, 2]),
        (pd.Series([1, 2], dtype="int16"), pa.int16(), [1, 2]),
        (pd.Series([1, None], dtype="Int32"), pa.int32(), [1, None]),
        (pd.Series([True, None], dtype="boolean"), pa.bool_(), [True, None]),
        (pd.Series(["a", None], dtype="object"), pa.utf8(), ["a", None]),
        (pd.Index([3, 4]), pa.int64(), [3, 4]),
        (pd.Series([0, 0, 1], dtype="Sparse[int16]"), pa.int16(), [0, 0, 1]),
        (pd.arrays.SparseArray([0, 0, 1], dtype="int8"), pa.int8(), [0, 0, 1]),
        (np.ma.masked_array([1, 2, 3], mask=[False, True, False]), pa.int64(), [1, None, 3]),
        (np.ma.masked_array([1, 2]), pa.int64(), [1, 2]),
        (np.ma.masked_array(["a", "b"], mask=[True, False]), pa.utf8(), [None, "b"]),
        (np.ma.masked_array(np.array([1, 2], "datetime64[us]"), mask=[True, False]), pa.timestamp("us"),
         [None, dt.datetime(1970, 1, 1, 0, 0, 0, 2)]),
        (np.ma.masked_array(np.array(["NaT", 2], "datetime64[s]"), mask=[False, True]), pa.timestamp("s"),
         [None, None]),
        (np.array([1, 2], ">u2"), pa.uint16(), [1, 2]),
        (np.array([b"a", b"b"]), pa.binary(), [b"a", b"b"]),
        (np.array(["2026-01-31", "NaT", "1969-12-31"], "datetime64[D]"), pa.date32(),
         [NOON.date(), None, dt.date(1969, 12, 31)]),
        (np.array(["2026-01"], "datetime64[M]"), pa.date32(), [dt.date(2026, 1, 1)]),
        (np.array(["2026"], "datetime64[Y]"), pa.date32(), [dt.date(2026, 1, 1)]),
        (np.array([1], "datetime64[W]"), pa.date32(), [dt.date(1970, 1, 8)]),
        (np.array([1], "datetime64[h]"), pa.timestamp("s"), [dt.datetime(1970, 1, 1, 1)]),
        (np.array([1], "datetime64[15m]"), pa.timestamp("s"), [dt.datetime(1970, 1, 1, 0, 15)]),
        (np.array([3], "datetime64[ms]"), pa.timestamp("ms"), [dt.datetime(1970, 1, 1, 0, 0, 0, 3_000)]),
        (np.array([1, "NaT"], "timedelta64[D]"), pa.duration("s"), [dt.timedelta(days=1), None]),
        (np.array([1], "timedelta64[W]"), pa.duration("s"), [dt.timedelta(days=7)]),
        (np.array([5], "timedelta64[us]"), pa.duration("us"), [dt.timedelta(microseconds=5)]),
        (np.array([5_000, "NaT"], "timedelta64[ps]").astype("timedelta64[fs]"), pa.duration("ns"),
         [pd.Timedelta(5, "ns"), None]),
        (np.array([2_000_000], "datetime64[ps]"), pa.timestamp("ns"), [pd.Timestamp(2_000)]),
        (np.array(["a", "\u00e9"], np.dtypes.StringDType()), pa.utf8(), ["a", "\u00e9"]),
        (np.array(["a", None], np.dtypes.StringDType(na_object=None)), pa.utf8(), ["a", None]),
        (np.array(["a", np.nan], np.dtypes.StringDType(na_object=np.nan)), pa.utf8(), ["a", None]),
        ([None, None], pa.null(), [None, None]),
        ([Decimal("1.5"), None], pa.decimal128(2, 1), [Decimal("1.5"), None]),
    ],
    ids=repr,
)  # fmt: skip
def test_columns_keep_their_values_and_types(values: Any, kind: pa.DataType, wanted: list[Any]) -> None:
    found = column(values)
    assert found.to_pylist() == wanted
    assert found.type == kind or pa.types.is_null(kind)


def test_views_are_not_changed_and_are_read_as_they_are() -> None:
    whole = np.arange(10)
    assert column(whole[::3]).to_pylist() == [0, 3, 6, 9]
    assert column(whole[::-1]).to_pylist() == list(range(9, -1, -1))
    stored = np.array([1, 2, 3], "datetime64[s]")
    assert column(stored[::2]).cast(pa.int64()).to_pylist() == [1, 3]
    masked = np.ma.masked_array([1, 2], mask=[True, False])
    column(masked)
    assert masked.mask.tolist() == [True, False]


def test_what_makes_no_column_is_named() -> None:
    for wrong in ("text", b"text", 5, None):
        refused(wrong, match="invalid column 'c': .*; give an array or a list, even for one value")
    refused(np.zeros((2, 2)), match="has 2 dimensions: give one")
    refused(np.array(5), match="has 0 dimensions")
    refused(pd.Timestamp("2026-01-31"), match="invalid column 'c': .*; give an array or a list, even for one value")
    # Its mask is a field of its records.
    refused(np.rec.array([(1,), (2,)], dtype=[("mask", "int8")]), match="has unsupported array type")
    refused(np.array([1j]), match="has unsupported array type complex128: convert it first")
    refused([object()], match="cannot convert .* to an Arrow array")


@pytest.mark.parametrize(
    "array",
    [
        np.array([1], "datetime64[ps]"), np.array([2**62], "datetime64[h]"), np.array([2**62], "timedelta64[W]"),
        np.array([30_000_000], "datetime64[Y]"), np.array([0, 1_500], "timedelta64[as]"),
    ],
    ids=repr,
)  # fmt: skip
def test_times_that_no_unit_of_arrow_counts_are_refused_with_their_place(array: Any) -> None:
    refused(array, match=rf"^column 'c': value {len(array) - 1}, .* is finer than nanoseconds or too far from 1970")


def test_what_is_wrong_with_a_list_is_said_of_its_column() -> None:
    others = "of type str, but the others are int: give values of one type"
    refused([1, "x"], match=f"^column 'c': value 1 is 'x', {others}")
    refused([1, "x"], match=f"^column 'c' of type int8: value 1 is 'x', {others}", wanted="int8")
    refused([300], match="^column 'c' has a value, number 0, that Int8 cannot hold", wanted="int8")
    refused([1.5], match="^column 'c': Float64 values do not fit Int8", wanted="int8")


def test_text_that_is_no_number_stays_text_in_a_column_of_floats() -> None:
    for texts in (["1", "2.5e3"], ["1", None]):
        found = column(texts, "float64")
        assert found.type == pa.float64()
        assert found.to_pylist() == [None if text is None else float(text) for text in texts]
    for texts in (["x", "1"], ["1", "x"], ["x", "y"]):
        assert column(texts, "float64").to_pylist() == texts
    for text in ("nan", "NaN", " inf", "-Infinity"):
        advice = rf"give float\('{text.strip()}'\), or None"
        refused([1.5, text], match=f"value 1 is the text '{text}', but .* float32: {advice}", wanted="float32")
    assert column([1, 2], "float64").to_pylist() == [1.0, 2.0]


@pytest.mark.parametrize("kind", ["time32[s]", "time32[ms]", "time64[us]", "time64[ns]"])
def test_times_of_day_are_those_of_a_day_and_keep_no_zone(kind: str) -> None:
    ticks = 86_400 * {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[kind[7:-1]]
    dataset = ct.open("memory:").create("d", schema={"t": "timestamp[us]", "c": kind}, cell=ct.single(), time="t")
    whole = pa.int32() if kind.startswith("time32") else pa.int64()
    for values in ([0, ticks], [0, -1], pa.array([0, ticks], whole).cast(dataset.schema.field("c").type)):
        with pytest.raises(InvalidInputError, match=r'row 1 does not fit dataset d: column "c" holds .* not fit Time'):
            dataset.write({"t": [0, 1], "c": values})
    dataset.write({"t": [0, 1], "c": [0, ticks - 1]})
    assert dataset.read(order_by=["t"]).to_arrow()["c"].cast(whole).to_pylist() == [0, ticks - 1]
    for zone in (dt.timezone(dt.timedelta(hours=2)), ZoneInfo("Europe/Berlin")):
        refused([dt.time(1, tzinfo=zone)], match="names a time zone, which the column does not keep", wanted=kind)
    assert column([dt.time(1, tzinfo=UTC)], kind).to_pylist() == [dt.time(1)]


# ---------------------------------------------------------------- Python values


@pytest.mark.parametrize("kind", ["utf8", "binary", "bool", "date32", "time64[us]", "timestamp[us]", "duration[s]"])
@pytest.mark.parametrize(
    "value", [True, 1.5, float("nan"), NOON, NOON.date(), NOON.time(), dt.timedelta(days=1)], ids=repr
)
def test_a_value_of_another_kind_does_not_turn_into_one_of_the_column(value: Any, kind: str) -> None:
    """A list has its own type then, which a dataset refuses as it refuses arrays of it, or it is refused at once."""
    keeps = {bool: ["bool"], dt.time: ["time64[us]"], dt.timedelta: ["duration[s]"], float: []}
    keeps |= {dt.datetime: ["timestamp[us]"], dt.date: ["date32", "timestamp[us]"]}
    if kind in keeps[type(value)]:
        return
    try:
        found = column([value], kind)
    except ct.InvalidInputError:
        return
    assert found.type == column([value]).type
    dataset = ct.open("memory:").create("d", schema={"t": "timestamp[us]", "c": kind}, cell=ct.single(), time="t")
    with pytest.raises(ct.InvalidInputError, match="cast it first"):
        dataset.write({"t": [0], "c": [value]})


def test_whole_numbers_and_bytes_do_not_turn_into_each_other() -> None:
    for kind in ("utf8", "binary"):
        assert column([65], kind).type == pa.int64()


def test_kinds_of_time_are_not_mixed() -> None:
    stated = r"^column 'c' has type timestamp\[us\], and one of its values is .*: give values of one type"
    for others in ([5], [NOON.time()], [dt.timedelta(days=1)], [True], [np.timedelta64(5, "ns")]):
        refused([NOON, None, *others], match=stated, wanted="timestamp[us]")
        refused(["2026-01-31", *others], match=stated, wanted="timestamp[us]")
    for mixed in ([NOON, "2026-01-31T12:00:00"], ["2026-01-31T12:00:00", NOON]):
        assert column(mixed, "timestamp[us]").to_pylist() == [NOON, NOON]


@pytest.mark.parametrize(
    ("kind", "exact", "wrong"),
    [
        ("float64", [2**53, -(2**63), "1e308", 0], [2**53 + 1, -(2**63) + 1, "1e400"]),
        ("float32", [2**24, 2**40, -(2**24)], [2**24 + 1]),
    ],
)
def test_numbers_that_floats_would_change_are_refused(kind: str, exact: list[Any], wrong: list[Any]) -> None:
    for value in exact:
        assert column([value], kind).to_pylist() == [float(value)]
    for value in wrong:
        refused([None, value], match=f"^column 'c': value 1, .* does not fit {kind}", wanted=kind)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (NOON, "timestamp[us]"), (NOON.replace(tzinfo=UTC), "timestamp[us, tz=UTC]"), (NOON.date(), "date32[day]"),
        (NOON.time(), "time64[us]"), (dt.timedelta(microseconds=1), "duration[us]"),
        (np.datetime64("2026-01-31T12:00:00.123456789"), "timestamp[ns]"), (np.timedelta64(5, "ns"), "duration[ns]"),
        (True, "bool"), (1, "int64"), (1.5, "double"), ("a", "string"), (b"a", "binary"), (np.int8(1), "int64"),
    ],
    ids=repr,
)  # fmt: skip
def test_values_have_a_natural_type(value: Any, kind: str) -> None:
    for values in ([value, None], [None, value]):
        found = column(values)
        assert str(found.type).replace("large_", "").replace("_view", "") == kind
        assert found.null_count == 1
        plain = (
            value.item() if isinstance(value, np.generic) and "ns" not in str(getattr(value, "dtype", "")) else value
        )
        if "ns" not in kind:
            assert found.drop_null().to_pylist() == [plain]
    if "ns" in kind:
        ticks = int(value.astype("int64"))
        assert column([value]).cast(pa.int64()).to_pylist() == [ticks]


@given(st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2200, 1, 1)), st.sampled_from(["s", "ms", "us", "ns"]))
@example(dt.datetime(1969, 12, 31, 23, 59, 59), "s")
def test_times_of_a_column_are_ticks_of_its_unit(value: dt.datetime, unit: str) -> None:
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[unit]
    whole = value.replace(microsecond=0 if unit == "s" else value.microsecond // 1_000 * 1_000)
    whole = value if unit in ("us", "ns") else whole
    since = whole - dt.datetime(1970, 1, 1)
    ticks = (since // dt.timedelta(microseconds=1)) * per_second // 10**6
    kind = f"timestamp[{unit}]"
    for each in (whole, whole.isoformat(), whole.replace(tzinfo=UTC).isoformat(), np.datetime64(whole, "us")):
        found = column([each, None], kind)
        assert str(found.type) == kind
        assert found.cast(pa.int64()).to_pylist() == [ticks, None]
    assert column([since], f"duration[{unit}]").cast(pa.int64()).to_pylist() == [ticks]
    if value.microsecond and unit == "s":
        for each, wanted in ((value, kind), (value.isoformat(), kind), (value - whole, "duration[s]")):
            refused([each], match=r"column 'c': .* is finer than the resolution of .*: round it first", wanted=wanted)


@given(st.dates(dt.date(1700, 1, 1), dt.date(2200, 1, 1)))
def test_dates_are_days_or_milliseconds_of_days(value: dt.date) -> None:
    days = (value - dt.date(1970, 1, 1)).days
    for each in (value, value.isoformat(), dt.datetime.combine(value, dt.time())):
        assert column([each], "date32").cast(pa.int32()).to_pylist() == [days]
        assert column([each], "date64").cast(pa.int64()).to_pylist() == [days * 86_400_000]
    assert column([value], "timestamp[s]").cast(pa.int64()).to_pylist() == [days * 86_400]
    refused([dt.datetime.combine(value, dt.time(1))], match="is finer than the resolution of date32", wanted="date32")


@given(st.times())
def test_times_of_day_are_ticks_since_midnight(value: dt.time) -> None:
    micros = ((value.hour * 60 + value.minute) * 60 + value.second) * 10**6 + value.microsecond
    assert column([value], "time64[us]").cast(pa.int64()).to_pylist() == [micros]
    assert column([value], "time64[ns]").cast(pa.int64()).to_pylist() == [micros * 1_000]
    whole = value.replace(microsecond=0)
    assert column([whole], "time32[s]").cast(pa.int32()).to_pylist() == [micros // 10**6]
    # A column that is no time leaves times as they are.
    assert str(column([value], "utf8").type) == "time64[us]"


def test_texts_of_times_are_read_for_columns_of_times_only() -> None:
    assert column(["2026-01-31"], "utf8").to_pylist() == ["2026-01-31"]
    assert column(["2026-01-31"]).to_pylist() == ["2026-01-31"]
    refused(
        ["soon"],
        match=r"column 'c' is 'soon': write ISO 8601 .*; the column has type timestamp\[s\]",
        wanted="timestamp[s]",
    )
    refused(["2026-01-31T00:00:00.0000000001"], match="at most 9 decimal places", wanted="timestamp[ns]")
    refused(
        [np.datetime64("2026-01-31T12:00:00.000000001")],
        match=r"column 'c': \d+ ns is finer than",
        wanted="timestamp[us]",
    )


@pytest.mark.parametrize("number", [2**63, 2**64 - 1, -(2**63), 0])
def test_integers_have_64_bits(number: int) -> None:
    kind = "uint64" if number > 0 else "int64"
    assert column([number, None], kind).to_pylist() == [number, None]
    for wrong in (2**64, -(2**63) - 1):
        refused([1, wrong], match="column 'c' holds an integer of more than 64 bits", wanted=kind)
        refused([wrong, None], match="more than 64 bits", wanted=kind)
    assert column([True, False], "bool").to_pylist() == [True, False]


def test_numbers_that_a_type_would_cut_are_refused_with_their_place() -> None:
    refused(
        [1.0, None, 3.7],
        match="column 'c': Float64 values do not fit Int64: value 2, 3.7, is not a whole number",
        wanted="int64",
    )
    refused([1.0, 3.0], match="Float64 values do not fit Int32: they are floats, give integers", wanted="int32")
    for numbers in ([0.5, None, 1e300], ["0.5", None, "1e300"]):
        refused(
            numbers, match="column 'c': .* values do not fit Float32: value 2, 1e300, is out of range", wanted="float32"
        )
    assert column([0.1, float("inf"), None], "float32").to_pylist() == [np.float32(0.1), float("inf"), None]


# ---------------------------------------------------------------- tables


def written(data: Any, types: dict[str, str] | None = None) -> pa.Table:
    found = inputs.rows(data, types or {})
    parts = [found] if hasattr(found, "__arrow_c_stream__") or hasattr(found, "__arrow_c_array__") else list(found)
    return pa.concat_tables([pa.table(part) for part in parts])


class Reader:
    """A relation of an older DuckDB."""

    def fetch_arrow_reader(self) -> pa.RecordBatchReader:
        return pa.table({"a": [1]}).to_reader()


class Relation(Reader):
    def to_arrow_reader(self) -> pa.RecordBatchReader:
        return pa.table({"a": [2]}).to_reader()

    def fetch_arrow_reader(self) -> pa.RecordBatchReader:
        raise AssertionError("the old word where the new one is known")


def test_tables_of_other_libraries() -> None:
    assert written(Reader())["a"].to_pylist() == [1]
    assert written(Relation())["a"].to_pylist() == [2]
    assert written([{"a": [1]}, pa.table({"a": [2]}), pl.DataFrame({"a": [3]})])["a"].to_pylist() == [1, 2, 3]
    for wrong in (5, None, "text", b"text", object()):
        with pytest.raises(
            InvalidInputError, match=f"cannot store an object of type {type(wrong).__name__}: give an Arrow table"
        ):
            inputs.rows(wrong, {})
        with pytest.raises(
            InvalidInputError, match=f"the input yielded an object of type {type(wrong).__name__}: yield Arrow tables"
        ):
            list(inputs.rows([wrong], {}))


def test_data_frames_without_pyarrow_have_the_same_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = pd.DataFrame(
        {
            "n": np.array([1, 2], "int16"), "x": [0.5, np.nan], "text": pd.Series(["a", None], dtype="object"),
            "whole": pd.Series([1, None], dtype="Int64"), "t": np.array([1, 2], "datetime64[us]"),
            "flag": [True, False], "category": pd.Series(["u", None], dtype="category"),
        }
    ).set_index(pd.Index([7, 8], name="key"))  # fmt: skip
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "pyarrow", None)
        found = inputs.rows(frame, {"n": "int16"})
    table = pa.table(found)
    assert table.column_names == ["key", *frame.columns]
    assert table["n"].type == pa.int16()
    assert table["n"].to_pylist() == [1, 2]
    assert table["x"].null_count == 0
    assert table["text"].to_pylist() == ["a", None]
    assert table["whole"].to_pylist() == [1, None]
    assert table["t"].cast(pa.int64()).to_pylist() == [1, 2]
    assert table["category"].to_pylist() == ["u", None]
    assert written(frame.reset_index(drop=True)).column_names == list(frame.columns)
    assert written(frame).schema.metadata is None


def test_a_sparse_data_frame_is_read_as_it_is_and_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    sparse = {name: pd.Series([0, 0, 1], dtype="Sparse[int16]") for name in ("a", "b")}
    frame = pd.DataFrame({"n": [1, 2, 3], **sparse})
    before = dict(frame.dtypes)
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "pyarrow", None)
        plain = inputs.rows(frame, {})
    for table in (written(frame), pa.table(plain)):
        assert table["n"].to_pylist() == [1, 2, 3]
        for name in sparse:
            assert table[name].type == pa.int16()
            assert table[name].to_pylist() == [0, 0, 1]
    assert dict(frame.dtypes) == before


def test_levels_of_an_index_are_columns_if_one_has_a_name() -> None:
    index = [[7, 8], [9, 10]]
    frame = pd.DataFrame({"n": [1, 2]}, index=index)
    assert written(frame).column_names == ["n"]
    for names, wanted in ((["a", "b"], ["a", "b"]), ([None, "b"], ["level_0", "b"])):
        table = written(frame.rename_axis(names))
        assert table.column_names == [*wanted, "n"]
        assert [table[name].to_pylist() for name in wanted] == index


def test_a_name_that_a_frame_has_twice_is_refused() -> None:
    frame = pd.DataFrame({"n": [1], "x": [2]})
    for wrong in (pd.concat([frame, frame[["x"]]], axis=1), frame.rename_axis("x")):
        with pytest.raises(InvalidInputError, match="the frame has two columns named 'x'"):
            written(wrong)


def test_only_slices_of_structs_in_structs_are_copied() -> None:
    inner = pa.struct([("x", pa.int32())])
    for kind, values, nested in (
        (pa.struct([("i", inner)]), [{"i": {"x": row}} for row in range(4)], True),
        (pa.list_(pa.struct([("i", inner), ("s", pa.utf8())])), [[{"i": {"x": n}, "s": ""}] for n in range(4)], True),
        (pa.struct([("s", pa.utf8()), ("i", pa.list_(inner))]), [{"s": "", "i": [{"x": n}]} for n in range(4)], True),
        (inner, [{"x": row} for row in range(4)], False),
        (pa.list_(inner), [[{"x": row}] for row in range(4)], False),
        (pa.list_(pa.int8()), [[row] for row in range(4)], False),
    ):  # fmt: skip
        assert inputs._has_struct_in_struct(kind) is nested
        column = pa.array(values, kind)
        table = pa.table({"n": pa.array(range(4)), "v": column})
        assert inputs._without_offsets(table) is table
        for part in (table.slice(2), table.to_batches()[0].slice(2), pa.concat_tables([table, table.slice(2)])):
            found = inputs._without_offsets(part)
            assert (found is not part) is nested
            assert found.to_pydict() == part.to_pydict()
            assert found.schema == part.schema


def test_schemas_from_everything_that_has_one(memory: ct.Archive) -> None:
    def names(source: Any) -> list[tuple[str, str]]:
        return [(name, kind) for name, kind, _ in inputs.schema(source).columns()]

    wanted = [("a", "int64"), ("t", "timestamp[us]")]
    table = pa.table({"a": pa.array([1]), "t": pa.array([NOON])})
    dataset = memory.create("d", schema=table, cell=ct.key("a"), time="t")
    dataset.write(table)
    native = inputs.schema(table)
    assert inputs.schema(native) is native
    for source in (
        table, table.schema, {"a": "int64", "t": "timestamp[us]"}, {"a": pa.int64(), "t": pa.timestamp("us")},
        dataset.read(), {"a": [1], "t": [NOON]}, table.to_pandas(), pl.DataFrame(table), pl.DataFrame(table).lazy(),
    ):  # fmt: skip
        assert names(source) == wanted
    assert names({}) == []
    assert names({"a": pa.array([1])}) == [("a", "int64")]
    assert names({"a": "int64", "b": ["x"]} | {"a": [1]}) == [("a", "int64"), ("b", "utf8")]
    for wrong in (5, None, "text", object()):
        with pytest.raises(
            InvalidInputError, match=f"cannot take a schema from an object of type {type(wrong).__name__}: give"
        ):
            inputs.schema(wrong)
    for mixed in ({"a": "int64", "b": pa.int64()}, {"a": pa.int64(), "b": "int64"}):
        with pytest.raises(InvalidInputError):
            inputs.schema(mixed)
