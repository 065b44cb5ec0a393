"""A layout decides how the tables of a database are stored; databases of all releases are read by it."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

pytest.importorskip("pyarrow")
import pyarrow as pa
from support_apdb import START, visit_of

import chronotile as ct
from chronotile import apdb
from chronotile.apdb import layout as layouts
from chronotile.apdb import names
from chronotile.apdb.values import ARCSECOND
from chronotile.times import TimeAxis

# ---------------------------------------------------------------------- settings


def test_the_usual_layout_is_the_one_of_the_documentation() -> None:
    assert dataclasses.asdict(apdb.Layout()) == {
        "scheme": "mq3c", "level": 9, "window": "120d", "object_window": "360d", "slice": 1, "object_slice": 1,
        "partition_levels": 2, "object_partition_levels": 1, "history_days": 360.0, "feed": False, "feed_chunk_s": 600,
        "storage": "chunks", "object_moves_arcsec": 5.0, "object_index_partitions": 1, "cell_bytes_max": 10_485_760,
    }  # fmt: skip


def test_a_slice_has_as_many_windows_as_fit_unless_it_is_given() -> None:
    windows = {
        "30d": (4, 12), "50d": (2, 7), "60d": (2, 6), "1452h": (1, 5), "120d": (1, 3), "121d": (1, 2), "180d": (1, 2),
        "4332h": (1, 1), "360d": (1, 1), "400d": (1, 1),
    }  # fmt: skip
    for window, slices in windows.items():
        layout = apdb.Layout(window=window, object_window=window)
        assert (layout.slice, layout.object_slice) == slices
    chosen = apdb.Layout(window="30d", slice="60d", object_window="90d", object_slice="180d")
    assert (chosen.slice, chosen.object_slice) == ("60d", "180d")
    for how in ({}, {"slice": "120d"}):
        with apdb.create("memory:", "small", **how) as database:
            database.store(**visit_of(0, [1]))
            (part,) = database.info()["dia_source"].slices
            assert part.end - part.start == 120


@pytest.mark.parametrize("name", ["partition_levels", "object_partition_levels"])
def test_a_partition_has_the_pixels_of_up_to_four_levels(name: str) -> None:
    for levels in (0, 4):
        assert getattr(apdb.Layout(**{name: levels}), name) == levels
    for levels in (-1, 5):
        with pytest.raises(ct.InvalidInputError, match=f"{name}={levels}.* out of range: use 0 to 4") as error:
            apdb.Layout(**{name: levels})
        assert error.value.kind == "invalid-definition"


def test_settings_out_of_range_are_refused() -> None:
    for partitions in (0, 256):
        assert apdb.Layout(object_index_partitions=partitions).object_index_partitions == partitions
    for wrong, words in (
        ({"object_index_partitions": -1}, "object_index_partitions=-1 is out of range: use 0 to 256"),
        ({"object_index_partitions": 257}, "object_index_partitions=257 is out of range: use 0 to 256"),
        ({"storage": "columns"}, "unknown storage 'columns': use chunks or rows"),
    ):
        with pytest.raises(ct.InvalidInputError, match=words) as error:
            apdb.Layout(**wrong)  # type: ignore[arg-type]
        assert error.value.kind == "invalid-definition"


def test_pixels_that_share_a_partition_are_those_of_a_coarser_level() -> None:
    usual, flat = apdb.Layout(), apdb.Layout(level=1, partition_levels=4, object_partition_levels=3)
    assert [usual.partition_level(table) for table in names.MAIN_TABLES] == [8, 7, 7]
    assert [usual.partition_cells(table) for table in names.MAIN_TABLES] == [4, 16, 16]
    assert [flat.partition_level(table) for table in names.MAIN_TABLES] == [0, 0, 0], "there is no level below 0"
    assert [flat.partition_cells(table) for table in names.MAIN_TABLES] == [4, 4, 4]
    rows = apdb.Layout(storage="rows")
    assert [rows.partition_level(table) for table in names.MAIN_TABLES] == [9, 9, 9]
    assert [rows.partition_cells(table) for table in names.MAIN_TABLES] == [1, 1, 1]
    assert (usual.shared, rows.shared) == (True, False)


def test_a_layout_is_kept_as_text() -> None:
    chosen = apdb.Layout(scheme="healpix", level=7, partition_levels=1, object_moves_arcsec=2.0, slice=3, feed=True)
    assert apdb.Layout.from_json(chosen.to_json()) == chosen


# ---------------------------------------------------------------------- datasets

SKY = {"cell": ct.sky("ra", "dec", scheme="q3c", level=8), "group": "apdb", "merge": "latest"}
DAY = {"window": "1d", "windows_per_slice": 360, "group": "apdb", "merge": "latest"}
SLICES = {"window": "60d", "windows_per_slice": 2}
MIDPOINT = ct.mjd("midpointMjdTai", scale="tai")
DATASETS: dict[str, dict[str, Any]] = {
    "dia_object": {
        **SKY, "time": ct.mjd("validityStartMjdTai", scale="tai"), "window": "90d", "windows_per_slice": 4,
        "id": ("diaObjectId",), "version": "_version", "partition_cells": 16, "moves": 3 * ARCSECOND,
        "shares_slices_with": [],
    },
    "dia_source": {
        **SKY, **SLICES, "time": MIDPOINT, "id": ("diaSourceId",), "version": "_update", "partition_cells": 4,
        "moves": 0, "shares_slices_with": ["dia_forced_source"],
    },
    "dia_forced_source": {
        **SKY, **SLICES, "time": MIDPOINT, "id": ("diaObjectId", "visit", "detector"), "version": "_update",
        "partition_cells": 4, "moves": 0, "shares_slices_with": ["dia_source"],
    },
    "ss_object": {
        "cell": ct.hash("ssObjectId"), "time": TimeAxis("_stored"), "window": "360d", "windows_per_slice": 1,
        "id": ("ssObjectId",), "merge": "latest", "group": None,
    },
    "notes": {
        "cell": ct.single(), "time": TimeAxis("_stored"), "window": "360d", "windows_per_slice": 1, "id": (),
        "merge": "append", "group": None,
    },
    "apdb_metadata": {
        "cell": ct.single(), "time": TimeAxis("updated"), "window": "3650d", "windows_per_slice": 1, "id": ("key",),
        "merge": "latest", "group": None,
    },
    "apdb_visits": {
        **DAY, "cell": ct.id_bucket("visit", 8), "time": ct.mjd("visit_mjd_tai", scale="tai"), "id": ("key",),
    },
    "apdb_feed": {
        **DAY, "cell": ct.id_bucket("chunk", 1_800), "time": ct.mjd("visit_mjd_tai", scale="tai"), "id": ("key",),
    },
    "apdb_updates": {
        **DAY, "cell": ct.id_bucket("chunk", 1_800), "time": ct.mjd("update_mjd_tai", scale="tai"),
        "id": ("operation", "update_order"),
    },
    "apdb_object_index": {
        "cell": ct.hash("diaObjectId", buckets=3), "time": ct.mjd("window_mjd_tai", scale="tai"), "window": "90d",
        "windows_per_slice": 4, "id": ("diaObjectId", "pixel"), "merge": "latest", "group": "apdb",
    },
}  # fmt: skip
CHOSEN = apdb.Layout(
    scheme="q3c", level=8, window="60d", object_window="90d", partition_levels=1, object_partition_levels=2, feed=True,
    feed_chunk_s=300, object_moves_arcsec=3.0, object_index_partitions=3,
)  # fmt: skip
NULLABLE = {
    "apdb_visits": ["time_first", "time_last", "object_cells", "source_cells", "forced_cells"],
    "apdb_feed": ["time_first", "time_last", "object_cells", "source_cells", "forced_cells"],
    "apdb_updates": [
        "diaSourceId", "diaObjectId", "visit", "detector", "ra", "dec", "midpointMjdTai", "ssObjectId",
        "ssObjectReassocTimeMjdTai", "timeWithdrawnMjdTai", "validityEndMjdTai", "nDiaSources",
    ],
    "apdb_object_index": [],
    "notes": ["text"],
}  # fmt: skip


def with_notes() -> apdb.Schema:
    """The small schema, with a table that has no key."""
    small = apdb.Schema.read("small")
    notes = apdb.Table("Notes", (apdb.Column("text", "utf8"),), ())
    return dataclasses.replace(small, tables=(*small.tables, notes))


def test_every_dataset_is_defined_as_the_layout_says_and_once() -> None:
    with apdb.create("memory:", with_notes(), CHOSEN) as made:
        archive = made.archive
        assert set(archive.datasets()) == set(DATASETS)
        for name, wanted in DATASETS.items():
            dataset = archive[name]
            assert {each: getattr(dataset, each) for each in wanted} == wanted, name
        for name, wanted in NULLABLE.items():
            assert [field.name for field in archive[name].schema if field.nullable] == wanted
        source = archive["dia_source"].schema
        assert [field.name for field in source if not field.nullable] == [
            "diaSourceId", "visit", "detector", "midpointMjdTai", "ra", "dec", "_update"
        ]  # fmt: skip
        assert source.metadata == made.schema["DiaSource"].arrow.metadata
        # Creating them again, as after an interruption, changes nothing.
        layouts.create_own(archive, CHOSEN)
        for table in made.schema.stored_tables:
            layouts.create_table(archive, table, CHOSEN)
        made.store(**visit_of(0, [1]))
        assert len(made.objects()) == 1


def test_keys_are_never_null_whatever_the_schema_says() -> None:
    table = apdb.Table("Match", (apdb.Column("id", "int64"), apdb.Column("other", "int64")), ("id",))
    with ct.open("memory:") as archive:
        schema = layouts.create_table(archive, table, apdb.Layout()).schema
        assert [field.nullable for field in schema] == [False, True, False]
        assert schema.names == ["id", "other", names.STORED]


def test_a_database_has_a_feed_and_an_index_on_request() -> None:
    with ct.open("memory:") as archive:
        layouts.create_own(archive, apdb.Layout(object_index_partitions=0))
        assert set(archive.datasets()) == {"apdb_metadata", "apdb_visits"}


# ---------------------------------------------------------------------- migration


def test_a_migration_that_was_interrupted_is_repeated() -> None:
    with apdb.create("memory:", "small") as made:
        made.store(**visit_of(0, [1]))
        score, rank = apdb.Column("score", "float32"), apdb.Column("rank", "int32", nullable=False, default=7)
        one = made.schema.extended({"DiaSource": [score]})
        two = made.schema.extended({"DiaSource": [score, rank]})
        both = dataclasses.replace(two, tables=(*two.tables, with_notes()["Notes"]))
        # The schema that a database records is changed last.
        layouts.migrate(made.archive, made.schema, one, made.layout)
        for _ in range(2):
            layouts.migrate(made.archive, made.schema, both, made.layout)
        rows = made.archive["dia_source"].read(columns=["score", "rank"]).to_arrow()
        assert rows.to_pydict() == {"score": [None], "rank": [7]}
        assert rows.schema.field("rank").type == pa.int32()
        assert "notes" in made.archive
        made.migrate(both)
        assert made.sources(at=START, columns=["rank"]).to_arrow().to_pydict() == {"rank": [7]}


def test_a_migration_that_is_refused_changes_nothing() -> None:
    with apdb.create("memory:", "small") as made:
        wanted = made.schema.extended({"DiaSource": [apdb.Column("rank", "int32", nullable=False)]})
        with pytest.raises(ct.InvalidInputError, match=r"cannot migrate the schema to SmallSurvey .*: .*rank") as error:
            layouts.migrate(made.archive, made.schema, wanted, made.layout)
        assert error.value.kind == "invalid-definition"
        assert "rank" not in made.archive["dia_source"].column_types
