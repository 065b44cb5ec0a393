"""What a newcomer tries first: angles and conditions as text, order, nearest names, pixel levels, days."""

from __future__ import annotations

import json
import math
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from click.testing import CliRunner
from support_shell import Shell

import chronotile as ct
from chronotile.cli.main import cli

Run = Callable[..., subprocess.CompletedProcess[str]]

SCHEMA = {"t": "timestamp[us]", "magpsf": "float64", "name": "utf8", "n": "int64"}


@pytest.fixture
def dataset(memory: ct.Archive) -> ct.Dataset:
    dataset = memory.create("detections", schema=SCHEMA, cell=ct.single(), time="t", id="n")
    count = 5_000
    numbers = np.arange(count)
    table = pa.table({
        "t": pa.array(numbers, pa.timestamp("us")), "magpsf": pa.array((numbers * 7_919 % 1_009) / 10),
        "name": pa.array([None if n % 50 == 0 else f"name {n % 17}" for n in numbers]), "n": pa.array(numbers),
    })  # fmt: skip
    dataset.write(table)
    return dataset


@pytest.mark.parametrize(
    ("where", "same"),
    [
        ("magpsf<16", [("magpsf", "<", 16)]), ('name == "name 3"', [("name", "==", "name 3")]),
        (["magpsf<16", ("n", ">", 100)], [("magpsf", "<", 16), ("n", ">", 100)]),
        (("magpsf<16", "n>100", "name exists"), [("magpsf", "<", 16), ("n", ">", 100), ("name", "exists", True)]),
        ("n in 1,2,3", [("n", "in", [1, 2, 3])]), ("name prefix name 1", [("name", "prefix", "name 1")]),
        (("magpsf", "<", 16), [("magpsf", "<", 16)]),
    ],
)  # fmt: skip
def test_a_condition_may_be_text(dataset: ct.Dataset, where: Any, same: Any) -> None:
    assert dataset.count(where=where) == dataset.count(where=same) > 0


def test_a_text_that_is_no_condition_is_refused(dataset: ct.Dataset) -> None:
    for where in ("magpsf", ["magpsf<16", "?"], "<16"):
        with pytest.raises(ct.InvalidInputError, match="invalid condition"):
            dataset.count(where=where)


@pytest.mark.parametrize("order", ["n", "-n", "-magpsf", ["magpsf", "-n"], ["name", "n"], ["-name", "-n"]])
@pytest.mark.parametrize("limit", [None, 0, 7, 10_000])
def test_rows_come_in_order_and_no_more_than_asked(dataset: ct.Dataset, order: Any, limit: int | None) -> None:
    keys = [order] if isinstance(order, str) else order
    found = dataset.read(order_by=order, limit=limit).to_pandas()
    everything = dataset.read().to_pandas()
    plain = [key.removeprefix("-") for key in keys]
    expected = everything.sort_values(plain, ascending=[not key.startswith("-") for key in keys], na_position="last")
    expected = expected[: limit if limit is not None else None]
    assert found[plain].reset_index(drop=True).equals(expected[plain].reset_index(drop=True))


def test_a_limit_alone_and_an_order_by_what_is_not_there(dataset: ct.Dataset) -> None:
    assert dataset.read(limit=10).to_arrow().num_rows == 10
    with pytest.raises(ct.InvalidInputError, match=r"no column \"mag\" to order by; did you mean magpsf\?"):
        dataset.read(order_by="mag")
    for limit in (-1, True, 1.5, "10"):
        with pytest.raises(ct.InvalidInputError, match="give a number of rows"):
            dataset.read(limit=limit)  # type: ignore[arg-type]


def test_an_order_larger_than_memory_is_read_within_a_bound(tmp_path: Path) -> None:
    code = f"""
import resource, numpy as np, pyarrow as pa, chronotile as ct
archive = ct.open({str(tmp_path / "a.db")!r})
schema = {{"t": "timestamp[us]", "n": "int64", "s": "utf8"}}
dataset = archive.create("d", schema=schema, cell=ct.single(), time="t", id="n")
for block in range(20):
    n = np.arange(block * 20_000, (block + 1) * 20_000)
    days = (n // 20_000 * 40).astype("datetime64[D]").astype("datetime64[us]")
    dataset.write({{"t": days, "n": n, "s": [f"{{(i * 7919) % 1_000_003:0>1000}}" for i in n]}})
def rss():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
for _ in dataset.read(columns=["n"]).batches(): pass
before, last, rows = rss(), "", 0
for batch in dataset.read(order_by="s").batches():
    texts = batch.column("s").to_pylist()
    assert texts == sorted(texts) and texts[0] >= last
    last, rows = texts[-1], rows + len(texts)
assert rows == 400_000, rows
print(rss() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # 400 MB of text, which take 1.1 GiB to sort at once; some of the growth is the read's own.
    assert int(done.stdout) < 500, done.stdout


def test_angles_are_taken_with_units_and_in_hours() -> None:
    expected = ct.circle(155.0, -5.5, 0.1)
    for ra, dec, radius in [
        ("10h20m", "-5d30m", "0.1deg"), ("10:20:00", "-05:30:00", "6arcmin"), ("155", "-5.5deg", "360arcsec"),
        (np.float64(155), -5.5, "0.1"),
    ]:  # fmt: skip
        found = ct.circle(ra, dec, radius)
        assert found.contains(155.0, -5.5)
        assert math.isclose(found.area, expected.area, rel_tol=1e-9)
    assert ct.box("10h", "11h", "-5d", 5).contains(160, 0)
    assert ct.polygon([("10h", 0), ("11h", 0), (157.5, "10d")]).contains(157.5, 1)
    for bad in ("10x", "", "20m", "nan"):
        with pytest.raises(ValueError, match="is not an angle"):
            ct.circle(bad, 0, 1)


def test_angles_of_astropy_are_taken_in_their_units() -> None:
    units = pytest.importorskip("astropy.units")
    coordinates = pytest.importorskip("astropy.coordinates")
    radius = 3 * units.arcmin
    for ra, dec in [(10 * units.hourangle, 0 * units.deg), (coordinates.Angle("10h"), coordinates.Angle("0d"))]:
        found = ct.circle(ra, dec, radius)
        assert found.contains(150.0, 0.0499)
        assert math.isclose(found.area, ct.circle(150.0, 0.0, 0.05).area, rel_tol=1e-9)
    with pytest.raises(Exception, match="deg"):
        ct.circle(3 * units.m, 0, 1)


def test_positions_of_astropy_are_taken_in_their_frames() -> None:
    units = pytest.importorskip("astropy.units")
    sky = pytest.importorskip("astropy.coordinates").SkyCoord
    center = sky("10h00m28.8s +02d12m00s")
    expected = ct.circle(150.12, 2.2, 0.1)
    for frame in ("icrs", "galactic", "fk5"):
        found = ct.circle(center.transform_to(frame), 6 * units.arcmin)
        assert math.isclose(found.area, expected.area, rel_tol=1e-9)
        assert found.contains(150.12, 2.2999)
        assert not found.contains(150.12, 2.3001)
    assert ct.circle(center, radius="6arcmin") == ct.circle(center, 0.1)
    corners = sky([150.0, 151.0, 150.5], [0.0, 0.0, 1.0], unit="deg")
    triangle = ct.polygon([(150.0, 0.0), (151.0, 0.0), (150.5, 1.0)])
    assert math.isclose(ct.polygon(corners.galactic).area, triangle.area, rel_tol=1e-9)
    for bad in [lambda: ct.circle(center, 2.2, 0.1), lambda: ct.circle(150.0, 2.2), lambda: ct.circle(center)]:
        with pytest.raises(TypeError, match="ra, dec and radius, or an astropy SkyCoord and radius"):
            bad()
    with pytest.raises(TypeError, match="several positions"):
        ct.circle(corners, 0.1)


def test_a_misspelt_name_is_answered_with_the_nearest(dataset: ct.Dataset, memory: ct.Archive) -> None:
    for ask in [
        lambda: dataset.read(columns=["mag"]), lambda: dataset.count(where="mag<3"), lambda: dataset.latest(by="mag"),
        lambda: dataset.count_by("mag"), lambda: dataset.create_index("mag"),
        lambda: memory.create("x", schema=SCHEMA, cell=ct.key("mag"), time="t"),
        lambda: dataset.write({"t": [1], "n": [1], "mag": [1.0]}),
    ]:  # fmt: skip
        with pytest.raises(ct.InvalidInputError, match=r"did you mean magpsf\?"):
            ask()
    with pytest.raises(ct.DatasetNotFoundError, match=r"did you mean detections\?"):
        memory["detection"]
    wide = {"t": "timestamp[us]", **{f"column_{n}": "int64" for n in range(30)}}
    wide_dataset = memory.create("wide", schema=wide, cell=ct.single(), time="t")
    with pytest.raises(ct.InvalidInputError, match=r"\.\.\. \(31 in all\)"):
        wide_dataset.read(columns=["zzz"])


@pytest.mark.parametrize(
    ("axis", "wrong", "right"), [(ct.jd("d"), 61_041.5, 2_461_042.0), (ct.mjd("d"), 2_461_042.0, 61_041.5)]
)
def test_days_of_the_other_format_are_refused(
    memory: ct.Archive, axis: ct.TimeAxis, wrong: float, right: float
) -> None:
    dataset = memory.create("d", schema={"d": "float64", "n": "int64"}, cell=ct.single(), time=axis, id="n")
    with pytest.raises(ct.InvalidInputError, match="Julian Date, but counts"):
        dataset.write({"d": [right, wrong], "n": [1, 2]})
    with pytest.raises(ct.InvalidInputError, match="looks like a"):
        dataset.count(start=wrong)
    assert dataset.write({"d": [right], "n": [1]}).rows == 1
    assert dataset.count(start=right - 1, end=right + 1) == 1


def test_texts_are_written_as_times(memory: ct.Archive) -> None:
    dataset = memory.create("d", schema={"t": "timestamp[us]", "n": "int64"}, cell=ct.single(), time="t", id="n")
    texts = ["2026-01-01T12:00:00", "2026-01-01 12:00:00.5Z", "2026-01-01T14:00:01+02:00"]
    for data in (
        {"t": texts, "n": [0, 1, 2]},
        pa.table({"t": texts, "n": [3, 4, 5]}),
        pd.DataFrame({"t": texts, "n": [6, 7, 8]}),
    ):
        assert dataset.write(data).rows == 3
    seconds = [value.timestamp() % 86_400 - 43_200 for value in dataset.read(order_by="n").to_arrow()["t"].to_pylist()]
    assert len(seconds) == 9
    with pytest.raises(ct.InvalidInputError, match="not a time"):
        dataset.write(pa.table({"t": ["noon"], "n": [9]}))


def test_every_kind_of_pandas_column_is_stored(memory: ct.Archive) -> None:
    schema = {
        "t": "timestamp[us]",
        "n": "int64",
        "s": "utf8",
        "b": "bool",
        "f": "float64",
        "c": "utf8",
        "z": "timestamp[us, UTC]",
    }
    dataset = memory.create("d", schema=schema, cell=ct.single(), time="t", id="n")
    frame = pd.DataFrame({
        "t": pd.to_datetime(["2026-01-01", "2026-01-02"]), "n": pd.array([1, 2], "Int64"),
        "s": pd.array(["a", None], "string"),
        "b": pd.array([True, None], "boolean"), "f": pd.array([0.5, None], "Float64"), "c": pd.Categorical(["x", None]),
        "z": pd.to_datetime(["2026-01-01T00:00Z", None], utc=True),
    })  # fmt: skip
    dataset.write(frame)
    first = dataset.read(order_by="n").to_arrow().to_pylist()
    assert (first[0]["s"], first[0]["b"], first[0]["f"], first[0]["c"]) == ("a", True, 0.5, "x")
    assert (first[1]["s"], first[1]["b"], first[1]["f"], first[1]["c"], first[1]["z"]) == (None,) * 5
    # The same by columns, which does without pyarrow.
    dataset.write({str(name): frame[name] for name in frame.columns}, batch="columns")
    assert dataset.read(order_by="n").to_arrow().to_pylist() == first


DAY = date(2026, 1, 1)
PANDAS_COLUMNS: dict[str, tuple[Callable[[], Any], str, list[Any]]] = {
    "arrow integers": (lambda: pd.array([1, None], dtype="int64[pyarrow]"), "int64", [1, None]),
    "arrow text": (lambda: pd.array(["a", None], dtype=pd.ArrowDtype(pa.large_string())), "utf8", ["a", None]),
    "arrow times": (lambda: pd.array([datetime(2026, 1, 1), None], dtype=pd.ArrowDtype(pa.timestamp("us"))),
                    "timestamp[us]", [datetime(2026, 1, 1), None]),
    "arrow days": (lambda: pd.array([DAY, None], dtype=pd.ArrowDtype(pa.date32())), "date32", [DAY, None]),
    "arrow decimals": (lambda: pd.array([Decimal("1.5"), None], dtype=pd.ArrowDtype(pa.decimal128(9, 2))),
                       "decimal128(9, 2)", [Decimal("1.50"), None]),
    "arrow lists": (lambda: pd.array([[1, 2], None], dtype=pd.ArrowDtype(pa.list_(pa.int64()))), "list<int64>",
                    [[1, 2], None]),
    "durations": (lambda: pd.to_timedelta(["1s", None]), "duration[us]", [timedelta(seconds=1), None]),
    "intervals": (lambda: pd.IntervalIndex.from_tuples([(0, 1), (1, 2)]), "struct<left: int64, right: int64>",
                  [{"left": 0, "right": 1}, {"left": 1, "right": 2}]),
    "sparse floats": (lambda: pd.arrays.SparseArray([0.0, 1.5]), "float64", [0.0, 1.5]),
    "sparse integers": (lambda: pd.arrays.SparseArray([0, 1]), "int64", [0, 1]),
    "days": (lambda: pd.Series([DAY, None], dtype=object), "date32", [DAY, None]),
    "datetimes": (lambda: pd.Series([datetime(2026, 1, 1), None], dtype=object), "timestamp[us]",
                  [datetime(2026, 1, 1), None]),
    "decimals": (lambda: pd.Series([Decimal("1.25"), None], dtype=object), "decimal128(9, 2)", [Decimal("1.25"), None]),
    "times of day": (lambda: pd.Series([time(1, 2), None], dtype=object), "time64[us]", [time(1, 2), None]),
    "bytes": (lambda: pd.Series([b"a", None], dtype=object), "binary", [b"a", None]),
    "categories of integers": (lambda: pd.Categorical([1, 2]), "int64", [1, 2]),
}  # fmt: skip


# What pandas made of numbers and times that the columns have in other types.
PANDAS_FITTING: dict[str, tuple[Callable[[], Any], str, list[Any]]] = {
    "floats for float32": (lambda: [0.1, None], "float32", [float(np.float32(0.1)), None]),
    "integers for float64": (lambda: [1, 2], "float64", [1.0, 2.0]),
    "integers for float32": (lambda: [1, 2], "float32", [1.0, 2.0]),
    "whole floats with a gap for int32": (lambda: [1.0, None], "int32", [1, None]),
    "objects for int16": (lambda: pd.Series([1.0, None], dtype=object), "int16", [1, None]),
    "zoned times": (lambda: pd.to_datetime(["2026-01-01T02:00", None]).tz_localize("Europe/Paris"), "timestamp[us]",
                    [datetime(2026, 1, 1, 1), None]),
    "times without a zone": (lambda: pd.to_datetime(["2026-01-01T02:00", None]), "timestamp[us, UTC]",
                             [datetime(2026, 1, 1, 2, tzinfo=UTC), None]),
    "days as times": (lambda: pd.to_datetime(["2026-01-01", None]), "date32", [DAY, None]),
}  # fmt: skip
PANDAS_MISFITS: dict[str, tuple[Callable[[], Any], str, str]] = {
    "fractions": (lambda: [1.0, 1.5], "int64", "row 1 .* holds 1.5, which does not fit Int64"),
    "large integers": (lambda: [1, 2**53 + 1], "float64", "row 1 .* holds 9007199254740993"),
    "large floats": (lambda: [1.0, 1e39], "float32", "row 1 .* does not fit Float32"),
    "times of day": (lambda: pd.to_datetime(["2026-01-01T00:00", "2026-01-01T02:00"]), "date32", "round times first"),
    "numbers for text": (lambda: [1, 2], "utf8", "cast it first"),
}


@pytest.mark.parametrize("kind", PANDAS_FITTING)
@pytest.mark.parametrize("by_columns", [False, True])
def test_columns_of_pandas_become_those_of_the_dataset_where_their_values_fit(
    kind: str, by_columns: bool, memory: ct.Archive
) -> None:
    make, type_, wanted = PANDAS_FITTING[kind]
    dataset = memory.create("d", schema={"t": "timestamp[us]", "v": type_}, cell=ct.single(), time="t")
    frame = pd.DataFrame({"t": pd.to_datetime(["2026-01-01", "2026-01-02"]), "v": make()})
    dataset.write({"t": frame["t"], "v": frame["v"]} if by_columns else frame)
    assert dataset.read(order_by="t").to_arrow()["v"].to_pylist() == wanted


@pytest.mark.parametrize("kind", PANDAS_MISFITS)
def test_columns_of_pandas_whose_values_do_not_fit_are_refused(kind: str, memory: ct.Archive) -> None:
    make, type_, reason = PANDAS_MISFITS[kind]
    dataset = memory.create("d", schema={"t": "timestamp[us]", "v": type_}, cell=ct.single(), time="t")
    frame = pd.DataFrame({"t": pd.to_datetime(["2026-01-01", "2026-01-02"]), "v": make()})
    with pytest.raises(ct.InvalidInputError, match=reason):
        dataset.write(frame)
    assert dataset.count() == 0


@pytest.mark.parametrize("kind", PANDAS_COLUMNS)
@pytest.mark.parametrize("by_columns", [False, True])
def test_columns_of_extension_types_and_objects_are_stored_as_they_are(
    kind: str, by_columns: bool, memory: ct.Archive
) -> None:
    make, type_, wanted = PANDAS_COLUMNS[kind]
    dataset = memory.create("d", schema={"t": "timestamp[us]", "v": type_}, cell=ct.single(), time="t")
    frame = pd.DataFrame({"t": pd.to_datetime(["2026-01-01", "2026-01-02"]), "v": make()})
    before = frame.copy()
    dataset.write({"t": frame["t"], "v": frame["v"]} if by_columns else frame)
    assert dataset.read(order_by="t").to_arrow()["v"].to_pylist() == wanted
    pd.testing.assert_frame_equal(frame, before)
    if by_columns and not isinstance(make(), pd.Series):
        # An index or an array, without a series around it.
        dataset.write({"t": frame["t"], "v": make()}, batch="bare")
        assert dataset.read(order_by="t").to_arrow()["v"].to_pylist() == [each for each in wanted for _ in "ab"]


@pytest.mark.parametrize(
    ("make", "type_", "sentence"),
    [
        (lambda: pd.PeriodIndex(["2026-01", "2026-02"], freq="M"), "int64",
         r"column 'v' holds periods \(period\[M\]\): convert them to times with dt.to_timestamp\(\), or to text"),
        (lambda: pd.to_timedelta(["1s", None]), "int64", 'column "v" has type Duration'),
        (lambda: pd.IntervalIndex.from_tuples([(0, 1), (1, 2)]), "utf8", 'column "v" has type Struct'),
        (lambda: pd.Series([1, "a"], dtype=object), "utf8", "column 'v' of type utf8: value 1 is 'a', of type str"),
        (lambda: pd.Series([1j, 2j]), "float64", "column 'v'.* complex"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("by_columns", [False, True])
def test_columns_that_have_no_place_are_refused_by_name(
    make: Callable[[], Any], type_: str, sentence: str, by_columns: bool, memory: ct.Archive
) -> None:
    dataset = memory.create("d", schema={"t": "timestamp[us]", "v": type_}, cell=ct.single(), time="t")
    frame = pd.DataFrame({"t": pd.to_datetime(["2026-01-01", "2026-01-02"]), "v": make()})
    with pytest.raises(ct.InvalidInputError, match=sentence):
        dataset.write({"t": frame["t"], "v": frame["v"]} if by_columns else frame)
    assert dataset.count() == 0


# ---------------------------------------------------------------- commands


def field(rows: int, degrees: float) -> pa.Table:
    rng = np.random.default_rng(1)
    return pa.table({
        "candid": np.arange(rows), "jd": 2461041.5 + rng.uniform(0, 25, rows),
        "ra": 150 + rng.uniform(0, degrees, rows),
        "dec": rng.uniform(0, degrees, rows),
    })  # fmt: skip


def test_the_pixel_level_follows_from_the_data(chronotile: Run, path: Path, tmp_path: Path) -> None:
    pa.parquet.write_table(field(100_000, 20), tmp_path / "wide.parquet")
    pa.parquet.write_table(field(100_000, 0.5), tmp_path / "deep.parquet")
    define = ["--sky", "ra,dec", "--time", "jd", "--id", "candid"]
    done = chronotile("create", path, "wide", "--like", tmp_path / "wide.parquet", *define)
    assert done.returncode == 0, done.stderr
    assert "rows per tile" in done.stderr
    for command, name in [("ingest", "wide"), ("ingest", "deep")]:
        done = chronotile(command, path, name, tmp_path / f"{name}.parquet", "--create", *define)
        assert done.returncode == 0, done.stderr
    chronotile("create", path, "given", "--like", tmp_path / "wide.parquet", *define, "--level", "10")
    chronotile("ingest", path, "given", tmp_path / "wide.parquet")
    with ct.open(path) as archive:
        levels = {name: archive[name].cell.level for name in archive}  # type: ignore[union-attr]
        tiles = {name: archive[name].info() for name in archive}
    assert levels["given"] == 10
    assert 3 <= levels["wide"] < levels["deep"] <= 10
    for name in ("wide", "deep"):
        assert 400 <= tiles[name].rows / tiles[name].tiles < 400 * 5, name
    told = chronotile("info", path, "given").stdout
    assert "advice: tiles are small" in told
    # What is advised is what `create` chooses for the same rows.
    assert f"a dataset of --level {levels['wide']}, or of longer windows" in told
    assert "advice" not in chronotile("info", path, "wide").stdout
    assert "--level" in chronotile("info", path, "given").stdout
    assert "advice" not in chronotile("info", path, "wide").stdout


def test_a_level_that_no_data_decide_is_said_with_how_to_choose_it(chronotile: Run, path: Path, tmp_path: Path) -> None:
    pa.parquet.write_table(field(100, 20), tmp_path / "few.parquet")
    define = ["--sky", "ra,dec", "--time", "jd", "--id", "candid"]
    schema = ["--schema", "candid:int64,jd:float64,ra:float64,dec:float64"]
    for name, columns in (("bare", schema), ("few", ["--like", tmp_path / "few.parquet"])):
        done = chronotile("create", path, name, *columns, *define)
        assert done.stdout == f"created {name}: 4 columns, level 10, window 30d, merge append\n"
        assert done.stderr.startswith(
            f"note: {name}: level 10, the default, not chosen from data; it suits 2.5 billion"
        )
        assert "create it with --rows N, --level N, or --like a file of at least 10,000 rows" in done.stderr
    done = chronotile("ingest", path, "filled", tmp_path / "few.parquet", "--create", *define, "--json")
    assert "note: filled: level 10, the default" in done.stderr
    assert json.loads(done.stdout)
    # 400 rows and more in each of the 6 * 4**level pixels; of the finer levels no tile would be whole.
    for rows, level in ((1, 0), (400 * 6 * 4**3 - 1, 2), (400 * 6 * 4**3, 3), (10**12, 10)):
        done = chronotile("create", path, f"of_{rows}", *schema, *define, "--rows", rows)
        assert f"created of_{rows}: 4 columns, level {level}, " in done.stdout
        assert f"note: of_{rows}: level {level}, with " in done.stderr
    done = chronotile("create", path, "given", *schema, *define, "--level", "9")
    assert (done.stdout.count("level 9,"), done.stderr) == (1, "")
    # The same definition again: the dataset that is there decides.
    done = chronotile("create", path, "given", *schema, *define, "--exist-ok")
    assert (done.stdout.count("level 9,"), done.stderr) == (1, "")
    assert "level 9" in chronotile("info", path, "given").stdout


def test_the_level_for_rows_over_the_whole_sky_is_small_on_disk(chronotile: Run, tmp_path: Path) -> None:
    """Rows of 400 days, so that each window has few: the level chosen is coarse, and finer ones take more room."""
    rows, rng = 150_000, np.random.default_rng(1)
    sky = pa.table({
        "n": np.arange(rows), "mjd": np.sort(rng.uniform(60_000, 60_400, rows)), "ra": rng.uniform(0, 360, rows),
        "dec": np.degrees(np.arcsin(rng.uniform(-1, 1, rows))), "mag": rng.normal(20, 1, rows),
    })  # fmt: skip
    pa.parquet.write_table(sky, tmp_path / "sky.parquet")
    define = ["--like", tmp_path / "sky.parquet", "--sky", "ra,dec", "--time", "mjd", "--id", "n"]

    def stored(level: int | None) -> tuple[int, ct.DatasetInfo, int, str]:
        path = tmp_path / f"{level}.db"
        given = [] if level is None else ["--level", level]
        for command in (["create", path, "sky", *define, *given], ["ingest", path, "sky", tmp_path / "sky.parquet"]):
            done = chronotile(*command)
            assert done.returncode == 0, done.stderr
        with ct.open(path) as archive:
            cell = archive["sky"].cell
            assert isinstance(cell, ct.SkyCell)
            info = archive["sky"].info()
        return cell.level, info, path.stat().st_size, chronotile("info", path, "sky").stdout

    level, chosen, size, told = stored(None)
    assert 400 <= chosen.rows / chosen.tiles < 400 * 4
    assert "advice" not in told
    _, finer, finer_size, told = stored(level + 1)
    assert "advice" not in told, "one level off is no reason to begin anew"
    _, finest, finest_size, told = stored(level + 2)
    assert f"a dataset of --level {level}, or of longer windows" in told
    assert finest.bytes > 1.4 * chosen.bytes
    assert finest.bytes > finer.bytes > chosen.bytes
    # How full the file's pages are depends on the chunks' lengths, by up to a third.
    assert finest_size > max(finer_size, size)


def test_a_dataset_is_dropped_when_it_was_said_so(chronotile: Run, path: Path) -> None:
    with ct.open(path) as archive:
        for name in ("a", "b"):
            archive.create(name, schema=SCHEMA, cell=ct.single(), time="t").write({"t": [1], "n": [1]})
    refused = chronotile("drop", path, "a")
    assert refused.returncode == 2
    assert "--yes" in refused.stderr
    assert chronotile("datasets", path).stdout.count("single") == 2
    done = chronotile("drop", path, "a", "--yes")
    assert done.returncode == 0, done.stderr
    assert "1 row in 1 slice" in done.stdout
    assert chronotile("drop", path, "a", "--yes").returncode == 3
    with ct.open(path) as archive:
        assert list(archive) == ["b"]
        archive.drop("b")
        assert list(archive) == []
        with pytest.raises(ct.DatasetNotFoundError):
            archive.drop("b")


def test_drop_asks_on_a_terminal(path: Path) -> None:
    with ct.open(path) as archive:
        archive.create("a", schema=SCHEMA, cell=ct.single(), time="t")
    for answer, left in [(b"n\n", ["a"]), (b"y\n", [])]:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "chronotile", "drop", str(path), "a"], stdin=theirs, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.write(ours, answer)
        process.wait(30)
        os.close(ours)
        os.close(theirs)
        with ct.open(path) as archive:
            assert list(archive) == left


def test_columns_are_added_by_a_command(chronotile: Run, path: Path) -> None:
    with ct.open(path) as archive:
        archive.create("d", schema=SCHEMA, cell=ct.single(), time="t", id="n").write({"t": [1], "n": [1]})
    done = chronotile("add-columns", path, "d", "flux:float32", "quality:int32=7", "host:utf8=17")
    assert done.returncode == 0, done.stderr
    with ct.open(path) as archive:
        row = archive["d"].read().to_arrow().to_pylist()[0]
    assert (row["flux"], row["quality"], row["host"]) == (None, 7, "17")
    assert chronotile("add-columns", path, "d", "flux").returncode == 2
    assert chronotile("add-columns", path, "d", "flux:float32").returncode == 2


def test_angles_and_order_on_the_command_line(chronotile: Run, path: Path, tmp_path: Path) -> None:
    pa.parquet.write_table(field(2_000, 2), tmp_path / "f.parquet")
    define = ["--create", "--sky", "ra,dec", "--time", "jd", "--id", "candid"]
    assert chronotile("ingest", path, "d", tmp_path / "f.parquet", *define).returncode == 0
    plain = chronotile("count", path, "d", "--circle", "151,1,0.5").stdout
    assert int(plain) > 0
    for circle in ("10h4m,1d,30arcmin", "10:04:00,01:00:00,0.5deg", "151 1 0.5"):
        assert chronotile("count", path, "d", "--circle", circle).stdout == plain, circle
    assert chronotile("count", path, "d", "--circle", "10x,1,1").returncode == 2
    for option, given, others in (
        ("--box", "150.5,151.5,0.5,1.5", ("10h2m,10h6m,30arcmin,90arcmin", "10:02:00,10:06:00,0:30:00,1:30:00")),
        ("--polygon", "150.5,0.5,151.5,0.5,151,1.5",
         ("10h2m,1800arcsec,10h6m,0.5deg,10h4m,90arcmin", "10:02:00,0.5,10:06:00,0.5,10:04:00,1:30:00")),
    ):  # fmt: skip
        plain = chronotile("count", path, "d", option, given).stdout
        assert int(plain) > 0
        for other in others:
            assert chronotile("count", path, "d", option, other).stdout == plain, other
        refused = chronotile("count", path, "d", option, given.replace("0.5", "0.5parsec"))
        assert (refused.returncode, "is not an angle" in refused.stderr) == (2, True), refused.stderr
    done = chronotile(
        "read", path, "d", "--order-by", "-candid", "--limit", "3", "--columns", "candid", "--format", "csv"
    )
    assert done.stdout.split() == ["candid", "1999", "1998", "1997"]


@pytest.mark.parametrize("joined", ["band=g and mag<19", "mag<19 AND band=g", "band in g,r and mag<19"])
def test_two_comparisons_in_one_condition_are_refused_with_the_way(joined: str, shell: Shell) -> None:
    shell.write("d.csv", "t,mag,band\n2026-01-01T00:00:00,18,g\n2026-01-01T00:00:01,18,g and mag<19\n")
    shell("ingest", "a.db", "d", "d.csv", "--create", "--single", "--time", "t")
    shell("count", "a.db", "d", "--where", joined, code=2)
    assert "a condition has one comparison, but" in shell.errors
    assert "give each comparison as a condition of its own (all must hold)" in shell.errors
    assert shell("count", "a.db", "d", "--where", "band=g", "--where", "mag<19") == "1\n"
    # A text may hold the word.
    assert shell("count", "a.db", "d", "--where", 'band="g and mag<19"') == "1\n"
    assert shell("count", "a.db", "d", "--where", "band contains g and mag<19") == "1\n"
    assert shell("count", "a.db", "d", "--where", "band=g and nothing=3") == "0\n"


def test_an_order_by_a_column_that_is_not_returned_says_to_return_it(shell: Shell) -> None:
    shell.write("d.csv", "t,mag\n2026-01-01T00:00:00,18\n")
    shell("ingest", "a.db", "d", "d.csv", "--create", "--single", "--time", "t")
    shell("read", "a.db", "d", "--columns", "t", "--order-by=-mag", code=2)
    assert "order_by column 'mag' is not among the returned columns: add it to columns" in shell.errors
    shell("read", "a.db", "d", "--columns", "t", "--order-by", "mga", code=2)
    assert 'no column "mga" to order by' in shell.errors


def test_a_page_that_cannot_be_written_says_where_and_what_to_do(shell: Shell) -> None:
    pixels = ("apdb", "pixels", "--count", "10", "--levels", "8", "--out")
    shell(*pixels, "nowhere/p.html", code=3)
    assert shell.errors == (
        "chronotile: nowhere/p.html: No such file or directory: check the spelling and the current folder\n"
    )
    # Not even root makes files there.
    shell("demo", "--out", "/sys/demo", code=7)
    assert shell.errors.startswith("chronotile: /sys/demo: ")
    assert shell.errors.endswith("choose another folder, or change its permissions\n")


def test_a_dataset_without_retention_is_retired_only_with_a_limit(shell: Shell) -> None:
    shell("create", "a.db", "d", "--schema", "t:timestamp,x:int64", "--single", "--time", "t")
    shell("retire", "a.db", "d", code=2)
    assert "Dataset d has no retention: give --older-than LENGTH or --before TIME." in shell.errors


def test_advice_about_null_words_can_be_followed(shell: Shell) -> None:
    rows = "".join(f"2026-01-01T00:00:00,{place}\n" for place in range(10_001))
    shell.write("d.csv", f"t,x\n{rows}2026-01-01T00:00:00,n/a\n")
    ingest = ("ingest", "a.db", "d", "d.csv", "--create", "--single", "--time", "t")
    shell(*ingest, code=2)
    assert '(--nulls "n/a")' in shell.errors
    shell(*ingest, "--nulls", "n/a")
    assert shell("count", "a.db", "d", "--where", "x exists false") == "1\n"


def test_names_replace_the_header_and_a_file_without_one_says_so(shell: Shell) -> None:
    shell.write("d.csv", "2026-01-01T00:00:00,1\n2026-01-01T00:00:01,2\n")
    options = ("--create", "--single", "--time", "t", "--names", "t,x")
    shell("ingest", "a.db", "d", "d.csv", *options)
    assert shell("count", "a.db", "d") == "1\n"
    shell("ingest", "b.db", "d", "d.csv", *options, "--no-header")
    assert shell("count", "b.db", "d") == "2\n"
    assert "with --no-header, the first line is a record" in " ".join(shell("ingest", "--help").split())


def test_a_refused_row_is_told_with_its_file_and_its_place_there(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell("create", "s.db", "d", "--schema", "jd:float64,ra:float64,dec:float64", "--sky", "ra,dec", "--time", "jd")
    shell.write("day1.csv", "jd,ra,dec\n2461041.5,1,2\n")
    shell.write("day 2.csv", "jd,ra,dec\n" + "2461041.5,1,2\n" * 3 + "2461041.5,1,90.0001\n")
    shell("ingest", "s.db", "d", "day1.csv", "day 2.csv", code=2)
    assert shell.errors.startswith('chronotile: day 2.csv: row 3 does not fit dataset d: column "dec" is 90.0001')
    # Rows of a large file are stored in blocks, and counted from its beginning.
    monkeypatch.setattr("chronotile.cli.ingest.BLOCK_ROWS", 2)
    done = CliRunner().invoke(cli, ["ingest", str(shell.folder / "s.db"), "d", str(shell.folder / "day 2.csv")])
    assert isinstance(done.exception, ct.InvalidInputError)
    assert "day 2.csv: row 3 does not fit" in str(done.exception)
    assert done.exception.details["row"] == 3
    # A temporary copy of standard input has a name that nobody knows.
    shell("ingest", "s.db", "d", "-", "--format", "csv", stdin="jd,ra,dec\n2461041.5,1,x\n", code=2)
    assert shell.errors.startswith('chronotile: standard input, line 2, column "dec": "x" is not float64')


def test_the_unnamed_index_of_a_frame_in_a_file_is_left_out(shell: Shell) -> None:
    """As it is of a frame that is written."""
    frame = pd.DataFrame({"t": pd.to_datetime(["2026-01-01", "2026-01-02"]), "x": [1, 2]})
    frame[frame["x"] > 1].to_parquet(shell.folder / "part.parquet")
    create = ("--create", "--single", "--time", "t")
    shell("ingest", "s.db", "d", "part.parquet", *create, "--tag-column", "tag=a")
    assert shell("read", "s.db", "d", "--columns", "x,tag", "--format", "csv") == "x,tag\n2,a\n"
    with ct.open(shell.folder / "s.db") as archive:
        assert archive["d"].column_types.keys() == {"t", "x", "tag"}
