"""The Python surface: archives, datasets, reads and reports."""

from __future__ import annotations

import datetime as dt
import multiprocessing
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from astropy.time import Time

import chronotile as ct
from chronotile.workers import end_with_parent

SCHEMA = {"tag": "int64", "t": "timestamp[us]", "value": "float64"}


def by_id(table: pa.Table, column: str = "candid") -> pa.Table:
    return table.sort_by(column)


# ---------------------------------------------------------------- archives and datasets


def test_an_archive_remembers_its_datasets_and_their_definitions(path: Path) -> None:
    with ct.open(f"sqlite:{path}") as archive:
        archive.create(
            "values", schema=SCHEMA, cell=ct.key("tag"), time="t", window="1d", id=["tag", "t"], merge="latest",
            retention="365d", slice=7,
        )  # fmt: skip
    assert archive.closed
    with ct.open(path, create=False, read_only=True) as archive:
        assert archive.engine == "sqlite"
        assert archive.datasets() == ["values"]
        assert "values" in archive
        assert list(archive) == ["values"]
        assert len(archive) == 1
        dataset = archive["values"]
    assert dataset.name == "values"
    assert dataset.cell == ct.key("tag")
    assert dataset.time == ct.timestamp("t")
    assert (dataset.window, dataset.windows_per_slice) == ("1d", 7)
    assert (dataset.id, dataset.merge, dataset.version) == (("tag", "t"), "latest", None)
    assert dataset.retention == "365d"
    assert dataset.column_types == SCHEMA
    assert dataset.schema == pa.schema({"tag": pa.int64(), "t": pa.timestamp("us"), "value": pa.float64()})


@pytest.mark.parametrize(
    ("cell", "column"),
    [
        (ct.sky("x", "y", scheme="healpix", level=6), None),
        (ct.key("tag"), 3),
        (ct.id_bucket("tag", 100), 3),
        (ct.hash("name"), "c"),
        (ct.hash("name", "tag", buckets=16), (["c"], [3])),
        (ct.single(), None),
    ],
)
def test_every_cell_rule_survives_the_catalog_and_finds_its_keys(
    memory: ct.Archive, cell: ct.CellRule, column: object
) -> None:
    schema = {"name": "utf8", "tag": "int64", "t": "timestamp[s]", "x": "float64", "y": "float64"}
    dataset = memory.create("d", schema=schema, cell=cell, time="t")
    assert memory["d"].cell == cell
    dataset.write({"name": list("abcd"), "tag": [1, 2, 3, 4], "t": [1, 2, 3, 4], "x": [1.0] * 4, "y": [2.0] * 4})
    if column is None:
        with pytest.raises(ct.InvalidInputError, match="has no keys"):
            dataset.read(keys=1)
    else:
        assert dataset.read(keys=column).to_arrow()["tag"].to_pylist() == [3]


def test_how_many_cells_share_a_partition_is_fixed_when_a_dataset_is_created(memory: ct.Archive) -> None:
    def create(name: str, cells: int) -> ct.Dataset:
        schema = {"ra": "float64", "dec": "float64", "t": "timestamp[us]"}
        return memory.create(
            name, schema=schema, cell=ct.sky("ra", "dec"), time="t", partition_cells=cells, exist_ok=True
        )

    assert create("sixteen", 16).partition_cells == memory["sixteen"].partition_cells == 16
    for cells in (0, 257):
        with pytest.raises(ct.InvalidInputError, match=f"partition_cells is {cells}: use 1 to 256"):
            create("refused", cells)
    with pytest.raises(ct.DatasetExistsError, match="number of cells in a partition"):
        create("sixteen", 4)


def test_creating_again_is_refused_or_opens_the_same(memory: ct.Archive) -> None:
    definition = {"schema": SCHEMA, "cell": ct.key("tag"), "time": "t"}
    memory.create("d", **definition)
    assert memory.create("d", **definition, exist_ok=True).name == "d"
    with pytest.raises(ct.DatasetExistsError, match="exists already"):
        memory.create("d", **definition)
    with pytest.raises(ct.DatasetExistsError, match="another window"):
        memory.create("d", **definition, window="1d", exist_ok=True)


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema({"a": pa.int32(), "t": pa.timestamp("us")}),
        {"a": "int32", "t": "timestamp[us]"},
        {"a": pa.int32(), "t": pa.timestamp("us")},
        pa.table({"a": pa.array([1], pa.int32()), "t": pa.array([1], pa.timestamp("us"))}),
        pd.DataFrame({"a": np.array([1], "int32"), "t": np.array([1], "datetime64[us]")}, index=[5]),
    ],
)
def test_a_schema_may_come_in_many_forms(memory: ct.Archive, schema: object) -> None:
    dataset = memory.create("d", schema=schema, cell=ct.single(), time="t")
    assert dataset.column_types == {"a": "int32", "t": "timestamp[us]"}
    assert b"pandas" not in (dataset.schema.metadata or {})


def test_a_float_time_column_must_say_what_it_counts(memory: ct.Archive) -> None:
    schema = {"midpointMjdTai": "float64", "JD": "float64"}
    with pytest.raises(ct.InvalidInputError, match=r"ct\.mjd\('midpointMjdTai'\)"):
        memory.create("a", schema=schema, cell=ct.single(), time="midpointMjdTai")
    tai = ct.mjd("midpointMjdTai", scale="tai")
    assert memory.create("b", schema=schema, cell=ct.single(), time=tai).time == tai
    assert memory.create("c", schema=schema, cell=ct.single(), time="JD").time == ct.jd("JD")
    named = memory.create("d", schema=schema, cell=ct.single(), time="JD", time_format="mjd", time_scale="tai")
    assert named.time == ct.mjd("JD", scale="tai")


def test_slices_are_counts_or_lengths(memory: ct.Archive) -> None:
    def slices(name: str, **given: object) -> int:
        return memory.create(name, schema=SCHEMA, cell=ct.single(), time="t", **given).windows_per_slice

    assert slices("a", window="1d") == 30
    assert slices("b", window=dt.timedelta(days=90)) == 1
    assert slices("c", window="1h", slice=dt.timedelta(days=1)) == 24
    assert slices("d", window="1d", slice="2w") == 14
    with pytest.raises(ct.InvalidInputError, match="not a multiple of window"):
        slices("e", window="7d", slice="10d")


def test_columns_can_be_added_with_defaults(memory: ct.Archive) -> None:
    dataset = memory.create("d", schema=SCHEMA, cell=ct.key("tag"), time="t")
    dataset.write({"tag": [1], "t": [1], "value": [0.5]})
    dataset.add_columns({"quality": "int16", "note": "utf8"}, defaults={"quality": 192})
    dataset.write({"tag": [2], "t": [2], "value": [1.5], "quality": [7], "note": ["late"]})
    rows = by_id(dataset.read().to_arrow(), "tag").select(["quality", "note"]).to_pylist()
    assert rows == [{"quality": 192, "note": None}, {"quality": 7, "note": "late"}]
    with pytest.raises(ct.InvalidInputError, match="name only new columns"):
        dataset.add_columns({"more": "int8"}, defaults={"moer": 1})


def test_what_others_change_of_a_definition_is_seen_after_a_look_or_a_read(memory: ct.Archive) -> None:
    dataset, others = memory.create("d", schema=SCHEMA, cell=ct.key("tag"), time="t"), memory["d"]
    for look in (dataset.refresh, dataset.count):
        column = look.__name__
        others.add_columns({column: "int16"})
        others.set_retention("30d" if look == dataset.refresh else None)
        assert column not in dataset.column_types
        look()
        assert (dataset.column_types, dataset.schema) == (others.column_types, others.schema)
        assert dataset.retention == others.retention
    memory.drop("d")
    with pytest.raises(ct.DatasetNotFoundError, match="dropped"):
        dataset.refresh()


def test_retention_can_be_changed(memory: ct.Archive) -> None:
    dataset = memory.create("d", schema=SCHEMA, cell=ct.key("tag"), time="t")
    assert dataset.retention is None
    dataset.set_retention(dt.timedelta(days=30))
    assert memory["d"].retention == "30d"
    dataset.set_retention(None)
    assert memory["d"].retention is None


def test_the_name_sky_is_the_cell_rule_and_the_module(memory: ct.Archive) -> None:
    import chronotile.sky as by_import
    from chronotile import sky as by_name
    from chronotile.sky import __all__ as names
    from chronotile.sky import pixel_index

    assert by_import is by_name is ct.sky
    assert all(hasattr(ct.sky, name) for name in names)
    assert ct.sky.pixel_index("mq3c", 10, 150.0, 2.0) == pixel_index("mq3c", 10, 150.0, 2.0)
    assert ct.sky("ra", "dec") == ct.SkyCell("ra", "dec", "mq3c", 10)


# ---------------------------------------------------------------- writing


def test_a_named_batch_is_stored_once(survey: ct.Dataset, detections: pa.Table) -> None:
    again = survey.write(detections.slice(0, 50), batch="visit-0")
    assert not again.stored
    assert again.rows == 50
    assert survey.count() == 500
    info = survey.batch("visit-0")
    assert info is not None
    assert (info.key, info.rows, info.finished) == ("visit-0", 50, True)
    assert info.period is not None
    first, last = info.period
    assert first == pytest.approx(detections["jd"][0].as_py(), abs=1e-6)
    assert last == pytest.approx(detections["jd"][49].as_py(), abs=1e-6)
    assert abs(info.written - dt.datetime.now(dt.UTC)) < dt.timedelta(hours=1)
    assert survey.batch("visit-10") is None
    assert [batch.key for batch in survey.batches()] == [f"visit-{k}" for k in range(10)]


def test_other_content_needs_replace(survey: ct.Dataset, detections: pa.Table) -> None:
    other = detections.slice(0, 10)
    with pytest.raises(ct.BatchConflictError) as caught:
        survey.write(other, batch="visit-0")
    assert caught.value.kind == "batch-differs"
    assert caught.value.details == {"dataset": "detections", "batch": "visit-0"}
    assert survey.write(other, batch="visit-0", replace=True).stored
    assert survey.count() == 460


def test_a_batch_can_be_removed(survey: ct.Dataset) -> None:
    assert survey.remove_batch("visit-3") == 50
    assert survey.count() == 450
    with pytest.raises(ct.BatchNotFoundError):
        survey.remove_batch("visit-3")


def test_latest_keeps_the_newest_version_and_history_all(memory: ct.Archive) -> None:
    dataset = memory.create(
        "d",
        schema=SCHEMA | {"version": "int32"},
        cell=ct.key("tag"),
        time="t",
        id=["tag"],
        merge="latest",
        version="version",
    )
    for version in (2, 3, 1):
        dataset.write({"tag": [5], "t": [100], "value": [float(version)], "version": [version]})
    assert dataset.read().to_arrow()["version"].to_pylist() == [3]
    assert sorted(dataset.read(history=True).to_arrow()["version"].to_pylist()) == [1, 2, 3]


# ---------------------------------------------------------------- reading


def test_reads_agree_with_a_filter_of_the_input(survey: ct.Dataset, detections: pa.Table) -> None:
    start, end = 2461060.0, 2461100.0
    found = survey.read(
        region=ct.box(149.5, 150.5, 1.5, 2.5),
        start=start,
        end=end,
        where=[("mag", "<", 19.0), ("band", "in", ["g", "i"])],
    )
    keep = pc.and_kleene(pc.greater_equal(detections["ra"], 149.5), pc.less_equal(detections["ra"], 150.5))
    for condition in (
        pc.greater_equal(detections["dec"], 1.5),
        pc.less_equal(detections["dec"], 2.5),
        pc.greater_equal(detections["jd"], start),
        pc.less(detections["jd"], end),
        pc.less(detections["mag"], 19.0),
        pc.is_in(detections["band"], pa.array(["g", "i"])),
    ):
        keep = pc.and_kleene(keep, condition)
    wanted = detections.filter(keep)
    assert 10 < wanted.num_rows < 100
    assert by_id(found.to_arrow()).equals(by_id(wanted))


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        (("n", "<", 2.5), [-3, 0, 2]),
        (("n", "<=", 2), [-3, 0, 2]),
        (("n", ">", 2.5), [7]),
        (("n", ">", -3.5), [-3, 0, 2, 7]),
        (("n", "==", 2.5), []),
        (("n", "!=", 2.5), [-3, 0, 2, 7]),
        (("n", "in", [7, 2.5, 10**30]), [7]),
        (("n", "between", (-0.5, 6.5)), [0, 2]),
        (("n", "<", 10**30), [-3, 0, 2, 7]),
        (("n", "<", -(10**30)), []),
        (("n", ">", float("nan")), []),
        (("n", "between", (5, -5)), []),
        (("u", ">", -1), [-3, 0, 2, 7]),
        (("u", "=", -1), []),
        (("x", "between", (0, 1)), [0, 2]),
        (("x", ">", 0.5), [2]),
        (("x", "!=", 1), [-3, 0, 7]),
        (("s", ">=", "b"), [0, 2]),
        (("s", "in", []), []),
        (("b", "==", True), [0]),
        (("t", "<", dt.datetime(1970, 1, 1, 0, 0, 2)), [-3]),
        (("t", "==", "1970-01-01T00:00:03"), [2]),
        ([("n", ">=", 0), ("x", "<=", 0.0)], [0]),
    ],
)
def test_conditions_mean_what_they_say(memory: ct.Archive, where: object, wanted: list[int]) -> None:
    schema = {
        "n": "int16", "u": "uint64", "x": "float32", "s": "utf8", "b": "bool", "t": "timestamp[ns]"
    }  # fmt: skip
    dataset = memory.create("d", schema=schema, cell=ct.single(), time="t")
    second = 1_000_000_000
    dataset.write(
        {
            "n": [-3, 0, 2, 7],
            "u": [1, 2, 3, 2**63],
            "x": [-1.0, 0.0, 1.0, float("nan")],
            "s": ["a", "b", "c", None],
            "b": [None, True, False, False],
            "t": [second, 2 * second, 3 * second, 4 * second],
        }
    )
    assert sorted(dataset.read(where=where).to_arrow()["n"].to_pylist()) == wanted
    assert dataset.count(where=where) == len(wanted)


def test_columns_come_in_the_order_asked_for(survey: ct.Dataset) -> None:
    result = survey.read(columns=["mag", "candid"])
    assert result.column_names == ["mag", "candid"]
    assert result.schema == pa.schema({"mag": pa.float32(), "candid": pa.int64()})
    assert result.to_arrow().column_names == ["mag", "candid"]
    assert survey.read(columns="mag").column_names == ["mag"]


def test_ids_and_cells_select(survey: ct.Dataset, detections: pa.Table) -> None:
    assert sorted(survey.read(ids=[3, 4, 9999]).to_arrow()["candid"].to_pylist()) == [3, 4]
    assert survey.read(ids=7).to_arrow()["candid"].to_pylist() == [7]
    assert survey.count(ids=np.arange(10, dtype="int32")) == 10
    cells = ct.circle(150, 2, 0.3).cover("mq3c", 10)
    inside = survey.count(cells=[cell for first, end in cells for cell in range(first, end)])
    assert survey.count(region=ct.circle(150, 2, 0.3)) <= inside < detections.num_rows


def test_compound_ids_are_tuples_of_lists(memory: ct.Archive) -> None:
    dataset = memory.create("d", schema=SCHEMA, cell=ct.key("tag"), time="t", id=["tag", "t"])
    dataset.write({"tag": [1, 1, 2], "t": [10, 20, 10], "value": [1.0, 2.0, 3.0]})
    assert dataset.read(ids=([1, 2], [20, 10])).to_arrow()["value"].sort().to_pylist() == [2.0, 3.0]
    assert dataset.read(ids=(1,)).to_arrow()["value"].sort().to_pylist() == [1.0, 2.0]
    with pytest.raises(ct.InvalidInputError, match="lists of different lengths"):
        dataset.read(ids=([1, 2], [20]))
    with pytest.raises(ct.InvalidInputError, match="3 parts"):
        dataset.read(ids=([1], [20], [3]))


INSTANT = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    "moment",
    [
        INSTANT,
        INSTANT.replace(tzinfo=None),
        INSTANT.astimezone(dt.timezone(dt.timedelta(hours=5, minutes=30))),
        "2026-01-31T12:00:00Z",
        "2026-01-31 12:00",
        "2026-01-31T13:00:00.000000000+01:00",
        np.datetime64("2026-01-31T12:00"),
        np.datetime64("2026-01-31T12:00:00.000000000"),
        pd.Timestamp("2026-01-31T12:00", tz="UTC"),
        pd.Timestamp("2026-01-31T12:00"),
        Time("2026-01-31T12:00:00", scale="utc"),
        Time("2026-01-31T12:00:37", scale="tai"),
    ],
    ids=repr,
)
def test_a_moment_may_come_in_many_forms(memory: ct.Archive, moment: object) -> None:
    ticks = int(INSTANT.timestamp()) * 1_000_000
    stamps = memory.create("t", schema=SCHEMA, cell=ct.single(), time="t")
    stamps.write({"tag": [0, 1, 2], "t": [ticks - 1, ticks, ticks + 1], "value": [0.0] * 3})
    assert sorted(stamps.read(start=moment).to_arrow()["tag"].to_pylist()) == [1, 2]
    assert sorted(stamps.read(end=moment).to_arrow()["tag"].to_pylist()) == [0]
    # 2026-01-31T12:00 UTC is MJD 61071.5, and 37 s later on the TAI scale.
    for name, axis, days in (
        ("mjd", ct.mjd("mjd"), 61071.5),
        ("jd", ct.jd("mjd"), 2461072.0),
        ("tai", ct.mjd("mjd", scale="tai"), 61071.5 + 37 / 86400),
    ):
        dataset = memory.create(name, schema={"mjd": "float64"}, cell=ct.single(), time=axis)
        dataset.write({"mjd": [days - 1e-4, days + 1e-4]})
        assert dataset.read(start=moment).to_arrow()["mjd"].to_pylist() == [days + 1e-4]


def test_numbers_are_in_the_unit_of_the_time_column(survey: ct.Dataset, memory: ct.Archive) -> None:
    jd = survey.read(columns=["jd"], ids=100).to_arrow()["jd"][0].as_py()
    assert survey.count(start=jd, end=np.nextafter(jd, np.inf)) == 1
    assert survey.count(end=np.float64(jd)) == 100
    assert survey.count(start=2461041, end=2461200) == 500
    dataset = memory.create("d", schema=SCHEMA, cell=ct.single(), time="t")
    dataset.write({"tag": [1, 2], "t": [10, 20], "value": [0.0, 0.0]})
    assert dataset.count(start=11) == 1
    assert dataset.count(end=np.int64(20)) == 1
    with pytest.raises(ct.InvalidInputError, match="whole number in its unit"):
        dataset.count(start=1.5)


def test_nanoseconds_of_texts_and_timestamps_are_kept(memory: ct.Archive) -> None:
    dataset = memory.create("d", schema={"t": "timestamp[ns]"}, cell=ct.single(), time="t")
    dataset.write({"t": [1_000_000_001, 1_000_000_002]})
    for moment in ("1970-01-01T00:00:01.000000002", pd.Timestamp(1_000_000_002), np.datetime64(1_000_000_002, "ns")):
        assert dataset.count(start=moment) == 1


def test_latest_returns_the_newest_of_each_key(memory: ct.Archive) -> None:
    dataset = memory.create("d", schema=SCHEMA, cell=ct.key("tag"), time="t", window="1d")
    dataset.write({"tag": [1, 1, 2], "t": [10, 10**13, 5], "value": [1.0, 2.0, 3.0]})
    assert by_id(dataset.latest().to_arrow(), "tag")["value"].to_pylist() == [2.0, 3.0]
    assert dataset.latest(keys=1, end=10**12).to_arrow()["value"].to_pylist() == [1.0]
    assert dataset.latest(by=["value"]).to_arrow().num_rows == 3


# ---------------------------------------------------------------- results


def test_a_result_turns_into_every_form(survey: ct.Dataset, detections: pa.Table) -> None:
    arrow = survey.read().to_arrow()
    assert by_id(arrow).equals(by_id(detections))
    assert survey.read().to_pandas().shape == (500, 6)
    assert survey.read().to_polars().sort("candid")["candid"].to_list() == list(range(500))
    assert sum(batch.num_rows for batch in survey.read().batches()) == 500
    assert survey.read().to_reader().read_all().num_rows == 500
    assert pa.table(survey.read()).num_rows == 500


def test_a_result_is_drawn_from_once(survey: ct.Dataset) -> None:
    result = survey.read()
    assert pa.schema(result).names == result.column_names
    result.to_arrow()
    assert "consumed" in repr(result)
    with pytest.raises(ct.ClosedError, match="call read\\(\\) again") as caught:
        result.to_arrow()
    assert caught.value.kind == "result-consumed"
    for use in (lambda: pa.table(result), lambda: next(result.batches()), result.to_polars):
        with pytest.raises(ct.ClosedError):
            use()


def test_an_empty_result_has_its_columns(survey: ct.Dataset) -> None:
    empty = survey.read(columns=["candid"], ids=[-1]).to_arrow()
    assert (empty.num_rows, empty.column_names) == (0, ["candid"])
    assert survey.read(ids=[-1]).to_polars().shape == (0, 6)
    assert list(survey.read(ids=[-1]).batches()) == []


def test_results_survive_that_their_archive_is_closed(survey: ct.Dataset, sqlite: ct.Archive) -> None:
    sqlite.close()
    sqlite.close()
    assert "closed" in repr(sqlite)
    for use in (sqlite.datasets, survey.read, survey.info, survey.batches):
        with pytest.raises(ct.ClosedError, match="open it again"):
            use()


# ---------------------------------------------------------------- keeping in order


def test_consolidation_changes_no_read(survey: ct.Dataset, detections: pa.Table) -> None:
    dataset = survey
    before = dataset.info()
    would = dataset.consolidate(dry_run=True)
    assert dataset.info() == before
    calls: list[tuple[int, int]] = []
    report = dataset.consolidate(progress=lambda done, total: calls.append((done, total)))
    assert report.tiles == would.tiles > 0
    assert report.chunks_after < report.chunks_before
    assert calls
    assert calls[-1][0] == calls[-1][1]
    assert by_id(dataset.read().to_arrow()).equals(by_id(detections))
    assert dataset.info().chunks < before.chunks


def test_older_versions_are_kept_apart_once_and_come_back_where_newer_are_removed(
    sqlite: ct.Archive, path: Path
) -> None:
    schema = pa.schema(
        [("id", pa.int64()), ("version", pa.int64()), ("t", pa.timestamp("us", "UTC")), ("v", "float64")]
    )
    dataset = sqlite.create(
        "versions", schema=schema, cell=ct.single(), time="t", window="30d", id="id", merge="latest", version="version"
    )
    ids = np.arange(100)

    def rows(version: int) -> pa.Table:
        times = pa.array(np.full(100, 1_790_000_000_000_000 + version), pa.timestamp("us", "UTC"))
        values = {"id": ids, "version": np.full(100, version), "t": times, "v": ids + version / 10}
        return pa.table(values, schema)

    for version in range(5):
        dataset.write(rows(version), batch=f"v{version}")
    report = dataset.consolidate()
    assert (report.chunks_before, report.chunks_after) == (5, 2)
    assert dataset.consolidate().tiles == 0, "nothing was written since"
    assert by_id(dataset.read().to_arrow(), "id").equals(rows(4))
    assert dataset.read(history=True).to_arrow().num_rows == 500
    with ct.open(path, superseded_kept_s=0) as alone:
        alone["versions"].remove_batch("v4")
    assert by_id(dataset.read().to_arrow(), "id").equals(rows(3))
    dataset.write(rows(5), batch="v5")
    dataset.write(rows(6), batch="v6")
    assert dataset.consolidate().tiles == 1
    assert dataset.info().chunks == 3, "older versions are put together once a tile has eight chunks of them"
    assert by_id(dataset.read().to_arrow(), "id").equals(rows(6))
    assert dataset.read(history=True).to_arrow().num_rows == 600
    for version in range(7, 7 + 6):
        dataset.write(rows(version), batch=f"v{version}")
        assert dataset.consolidate().tiles == 1
    assert dataset.info().chunks == 9
    dataset.consolidate()
    assert dataset.info().chunks == 2
    assert by_id(dataset.read().to_arrow(), "id").equals(rows(12))
    assert dataset.read(history=True).to_arrow().num_rows == 1_200
    assert dataset.verify().ok


def test_rows_that_count_no_more_keep_their_space_for_running_reads_and_no_longer(path: Path) -> None:
    schema = {"id": "int64", "t": "timestamp[us]"}
    rows = {"id": np.arange(1_000), "t": np.arange(1_000).astype("datetime64[us]")}
    with ct.open(path) as archive:
        ds = archive.create("d", schema=schema, cell=ct.single(), time="t", window="1d", id=["id"])
        ds.write(rows, batch="a")
        running = ds.read()
        assert ds.remove_batch("a") == 1_000
        assert ds.count() == 0
        assert ds.info().rows == 1_000
        # The batch as it was when the read was asked for, or as it is now, and nothing in between.
        assert running.to_arrow().num_rows in (0, 1_000)
        ds.consolidate()
        assert ds.info().rows == 1_000
        with pytest.raises(ct.BatchNotFoundError):
            ds.remove_batch("a")
        assert ds.verify().ok
    with ct.open(path, superseded_kept_s=0) as archive:
        archive["d"].consolidate()
        assert archive["d"].info().rows == 0
        assert archive["d"].verify().ok
    with pytest.raises(ct.InvalidInputError, match="invalid superseded_kept_s -1: give seconds, 0 or more"):
        ct.open(path, superseded_kept_s=-1)


def test_a_write_that_fails_leaves_nothing_that_a_read_returns(path: Path) -> None:
    def failing() -> Iterator[dict[str, Any]]:
        for number in range(3):
            ids = np.arange(200_000) + number * 200_000
            yield {"id": ids, "t": ids.astype("datetime64[us]")}
        raise ValueError("the source broke")

    with ct.open(path) as archive:
        ds = archive.create(
            "d", schema={"id": "int64", "t": "timestamp[us]"}, cell=ct.single(), time="t", window="1d", id=["id"]
        )
        for batch in ("named", None):
            with pytest.raises(ValueError, match="the source broke"):
                ds.write(failing(), batch=batch)
            assert ds.count() == 0
            assert ds.info().rows == 0


def test_retire_drops_whole_slices_that_are_old(survey: ct.Dataset) -> None:
    info = survey.info()
    oldest = info.slices[0]
    assert [part.slice for part in survey.retire(before=oldest.end, dry_run=True)] == [oldest.slice]
    assert survey.count() == 500
    assert [part.rows for part in survey.retire(before=oldest.end)] == [oldest.rows]
    assert survey.count() == 500 - oldest.rows
    assert survey.retire(before=oldest.end) == []
    with pytest.raises(ct.InvalidInputError, match="give only one of before and older_than"):
        survey.retire(before=oldest.end, older_than="1d")
    with pytest.raises(ct.InvalidInputError, match="retention"):
        survey.retire()


def test_prepare_makes_the_slices_of_a_period_and_no_others(survey: ct.Dataset) -> None:
    before = [part.slice for part in survey.info().slices]
    made = survey.prepare(2462000.5, 2462000.5 + 60)
    assert len(made) in (2, 3)
    assert [part.slice for part in survey.info().slices] == before + made
    assert survey.prepare(2462000.5, 2462000.5 + 60) == made
    assert survey.prepare(2462000.5, 2462000.5) == []
    for start, end in [(None, 2462000.5), (2462000.5, None), (0.0, 2462000.5)]:
        with pytest.raises(ct.InvalidInputError, match="period"):
            survey.prepare(start, end)
    assert survey.count() == 500


def test_retire_by_age_never_drops_what_lies_ahead(memory: ct.Archive) -> None:
    dataset = memory.create("d", schema=SCHEMA, cell=ct.key("tag"), time="t", window="1d", slice=1, retention="10d")
    now = int(time.time() * 1_000_000)
    day = 86_400_000_000
    dataset.write({"tag": [1, 2, 3], "t": [now - 20 * day, now, now + 1_000 * day], "value": [0.0] * 3})
    assert sum(part.rows for part in dataset.retire()) == 1
    assert sorted(dataset.read().to_arrow()["tag"].to_pylist()) == [2, 3]
    assert dataset.retire(older_than=dt.timedelta(days=5)) == []


def test_info_counts_what_is_stored(survey: ct.Dataset) -> None:
    info = survey.info()
    assert info.rows == 500
    assert info.tiles == sum(part.tiles for part in info.slices)
    assert info.bytes == sum(part.bytes for part in info.slices) > 0
    assert info.tile_rows.min <= info.tile_rows.median <= info.tile_rows.p99 <= info.tile_rows.max
    assert info.tile_largest is not None
    starts = [part.start for part in info.slices]
    assert starts == sorted(starts)
    assert survey.verify().ok


# ---------------------------------------------------------------- threads, processes and signals


def test_threads_read_while_another_writes(survey: ct.Dataset, detections: pa.Table) -> None:
    counts: list[int] = []
    failures: list[BaseException] = []

    def read() -> None:
        try:
            counts.extend(survey.read().to_arrow().num_rows for _ in range(20))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for repeat in range(10):
        more = detections.slice(0, 5).set_column(0, "candid", pa.array(np.arange(5) + 1000 + 5 * repeat))
        survey.write(more, batch=f"more-{repeat}")
    for thread in threads:
        thread.join()
    assert not failures
    assert len(counts) == 80
    assert all(count in range(500, 551, 5) for count in counts)
    assert survey.count() == 550


def test_the_interpreter_lock_is_released_while_waiting(memory: ct.Archive) -> None:
    dataset = memory.create("d", schema=SCHEMA, cell=ct.key("tag"), time="t")
    ticks: list[float] = []
    stop = threading.Event()

    def tick() -> None:
        while not stop.wait(0.001):
            ticks.append(time.monotonic())

    rows = 400_000
    times = np.arange(rows).astype("datetime64[us]")
    columns = {"tag": np.arange(rows) % 100, "t": times, "value": np.random.default_rng(0).normal(size=rows)}
    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        before = len(ticks)
        dataset.write(columns)
        dataset.read().to_arrow()
        assert len(ticks) - before > 5
    finally:
        stop.set()
        thread.join()


def _in_child(path: Path, queue: multiprocessing.Queue[object]) -> None:
    end_with_parent()
    try:
        with ct.open(path) as archive:
            dataset = archive["detections"]
            dataset.write({"candid": [10_000], "jd": [2461041.5], "ra": [150.0], "dec": [2.0]}, batch="child")
            queue.put(dataset.count())
    except ct.ChronotileError as error:
        queue.put(error)


def test_a_spawned_process_works_in_the_same_archive(survey: ct.Dataset, path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    process = context.Process(target=_in_child, args=(path, queue), daemon=True)
    process.start()
    assert queue.get(timeout=60) == 501
    process.join()
    assert survey.count() == 501


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_is_told_instead_of_hanging(survey: ct.Dataset, path: Path) -> None:
    assert survey.count() == 500
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=_in_child, args=(path, queue), daemon=True)
    process.start()
    error = queue.get(timeout=60)
    process.join()
    assert isinstance(error, ct.ClosedError)
    assert error.kind == "forked"
    assert "spawn" in str(error)


def test_ctrl_c_ends_a_long_write(memory: ct.Archive) -> None:
    dataset = memory.create("d", schema=SCHEMA, cell=ct.key("tag"), time="t")

    def endless() -> object:
        table = pa.table(
            {"tag": np.arange(1000) % 7, "t": pa.array(np.arange(1000), pa.timestamp("us")), "value": np.ones(1000)}
        )
        while True:
            yield table

    timer = threading.Timer(0.5, signal.raise_signal, [signal.SIGINT])
    timer.start()
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        dataset.write(endless(), batch="endless")
    assert time.monotonic() - began < 60
    assert dataset.count() == 0


def test_ctrl_c_while_progress_is_shown_ends_the_work(memory: ct.Archive, path: Path) -> None:
    """An interrupt that arrives while Python runs the callback is not lost with what the callback raises."""
    dataset = memory.create("d", schema=SCHEMA, cell=ct.key("tag"), time="t", window="1h")
    hours = np.arange(300) * 3_600_000_000
    for _ in range(2):
        dataset.write({"tag": np.arange(300), "t": pa.array(hours, pa.timestamp("us")), "value": np.ones(300)})

    def interrupted(*_: object) -> None:
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        dataset.consolidate(progress=interrupted)
    with pytest.raises(KeyboardInterrupt):
        ct.copy(memory, path, progress=interrupted)
