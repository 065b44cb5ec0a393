"""Notes on slices, and entries of the index of objects, each by itself on an archive in memory."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow")
import numpy as np
import pyarrow as pa

import chronotile as ct
from chronotile import sky
from chronotile.apdb import names
from chronotile.apdb.layout import Layout, create_own
from chronotile.apdb.metadata import Metadata
from chronotile.apdb.object_index import ObjectIndex, distinct_pixels
from chronotile.apdb.slice_status import SliceKey, SliceStatus, archived_error, check_not_archived_since
from chronotile.errors import OutcomeUnknownError

FIRST, SECOND, OTHER = SliceKey("DiaSource", 7), SliceKey("DiaSource", 8), SliceKey("DiaForcedSource", 7)
WINDOW_DAYS = 360
UNIX_EPOCH = 40_587.0


@pytest.fixture
def archive() -> Iterator[ct.Archive]:
    with ct.open("memory:") as opened:
        create_own(opened, Layout())
        yield opened


@pytest.fixture
def notes(archive: ct.Archive) -> SliceStatus:
    return SliceStatus(Metadata(archive[names.METADATA]))


@pytest.fixture
def index(archive: ct.Archive) -> ObjectIndex:
    return ObjectIndex(archive, Layout())


# ---------------------------------------------------------------- notes


def test_each_folder_of_a_slice_is_noted_once_and_in_order(notes: SliceStatus) -> None:
    everything = [FIRST, SECOND, OTHER]
    assert notes.archived(everything) == {}
    notes.add_archived([FIRST, OTHER, FIRST], "/a")
    notes.add_archived([FIRST, SECOND], "/b")
    notes.add_archived(everything, "/a")
    assert notes.archived(everything) == {FIRST: ["/a", "/b"], SECOND: ["/b", "/a"], OTHER: ["/a"]}
    assert notes.archived([SECOND]) == {SECOND: ["/b", "/a"]}
    assert notes.archived([]) == notes.archived([SliceKey("DiaSource", 77)]) == {}
    assert notes.retired(everything) == {}


def test_a_retired_slice_has_the_last_time_of_it(notes: SliceStatus) -> None:
    before = datetime.now(UTC)
    notes.add_retired([FIRST])
    found = notes.retired([FIRST, SECOND])
    assert list(found) == [FIRST]
    assert before <= found[FIRST] <= datetime.now(UTC)
    notes.add_retired([FIRST, SECOND])
    again = notes.retired(iter([FIRST, SECOND]))
    assert again[FIRST] == again[SECOND] > found[FIRST]
    assert notes.archived([FIRST]) == {}


def test_notes_are_kept_as_text_by_table_and_number(archive: ct.Archive, notes: SliceStatus) -> None:
    notes.add_archived([FIRST], "/a")
    notes.add_retired([OTHER])
    assert [key for key, _ in Metadata(archive[names.METADATA]).items()] == [
        "apdb:archived/DiaSource/7", "apdb:retired/DiaForcedSource/7",
    ]  # fmt: skip


def test_an_error_names_each_folder_once() -> None:
    found = archived_error({FIRST: ["/b", "/a"], SECOND: ["/b"]}, 2, "restore them")
    assert str(found) == "2 records may also be in files that archive_before wrote to /a and /b: restore them"
    assert found.kind == "archived-records"
    assert str(archived_error({FIRST: ["/a"]}, 1, "x")).startswith("1 record may also")


def test_only_slices_that_were_written_to_files_since_are_an_error() -> None:
    before = {FIRST: ["/a"], SECOND: ["/b"]}
    check_not_archived_since(before, before, "x")
    check_not_archived_since(before, {FIRST: ["/a"]}, "x")
    check_not_archived_since({}, {}, "x")
    for now in ({**before, OTHER: ["/c"]}, {**before, FIRST: ["/c"]}):
        with pytest.raises(
            OutcomeUnknownError, match=r"their slices to files in /c, which may contain the records: try again$"
        ) as caught:
            check_not_archived_since(before, now, "try again")
        assert caught.value.kind == "outcome-unknown"


# ---------------------------------------------------------------- entries

TABLES = {"dia_object": names.VALID_FROM, "dia_source": names.TIME, "dia_forced_source": names.TIME}
ROWS = st.lists(
    st.tuples(
        st.integers(1, 3) | st.none(), st.sampled_from([10.0, 10.001, 200.0]), st.sampled_from([-5.0, 5.0]),
        st.sampled_from([0.0, 359.9, 360.0, 61_000.0]),
    ),
    max_size=8,
)  # fmt: skip


def table_of(rows: list[Any], time: str) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * 4
    kinds = (pa.int64(), *[pa.float64()] * 3)
    arrays = [pa.array(values, kind) for values, kind in zip(columns, kinds, strict=True)]
    return pa.table(arrays, names=[names.OBJECT_ID, names.RA, names.DEC, time])


def pixel(ra: float, dec: float) -> int:
    return int(pa.array(sky.pixel_index("mq3c", 9, np.array([ra]), np.array([dec])))[0].as_py())


def entries_of(rows: list[Any]) -> list[tuple[int, int, float]]:
    """What the entries have to be, sorted."""
    return sorted(
        {
            (id, pixel(ra, dec), (time // WINDOW_DAYS + 0.5) * WINDOW_DAYS)
            for id, ra, dec, time in rows
            if id is not None
        }
    )


@settings(max_examples=30)
@given(ROWS, ROWS, ROWS)
def test_an_object_has_an_entry_for_each_pixel_and_window(
    objects: list[Any], sources: list[Any], forced: list[Any]
) -> None:
    with ct.open("memory:") as archive:
        create_own(archive, Layout())
        index = ObjectIndex(archive, Layout())
        given_ = dict(zip(TABLES, (objects, sources, forced), strict=True))
        tables = {name: table_of(rows, TABLES[name]) for name, rows in given_.items()}
        # A table of another kind has no objects.
        found = index.entries({**tables, "apdb_visits": pa.table({"visit": [1]})})
    assert list(zip(*(column.to_pylist() for column in found.columns), strict=True)) == entries_of(
        [*objects, *sources, *forced]
    )


def test_rows_that_lack_the_column_belong_to_no_object(index: ObjectIndex) -> None:
    rows = table_of([(1, 10.0, 5.0, 61_000.0)], names.TIME)
    assert index.entries({"dia_source": rows}).num_rows == 1
    assert index.entries({"dia_source": rows.drop_columns([names.OBJECT_ID])}).num_rows == 0
    assert index.entries({}).num_rows == 0


def test_entries_are_read_by_object(index: ObjectIndex) -> None:
    rows = [(1, 10.0, 5.0, 61_000.0), (1, 200.0, 5.0, 61_000.0), (2, 10.0, -5.0, 61_000.0)]
    index.dataset.write(index.entries({"dia_source": table_of(rows, names.TIME)}), batch="one")
    assert index.pixels_of(np.array([1], "int64")) == sorted({pixel(10.0, 5.0), pixel(200.0, 5.0)})
    assert index.pixels_of(np.array([1, 2], "int64")) == sorted({pixel(ra, dec) for _, ra, dec, _ in rows})
    assert index.pixels_of(np.array([7], "int64")) == []
    found = index.entries_of(np.array([2], "int64"))
    assert found.to_pydict() == {names.OBJECT_ID: [2], names.PIXEL: [pixel(10.0, -5.0)]}


def test_a_database_without_an_index_has_no_entries(archive: ct.Archive) -> None:
    without, ids = ObjectIndex(archive, Layout(object_index_partitions=0)), np.array([1])
    assert (without.kept, without.entries_of(ids), without.pixels_of(ids), without.first_times(ids)) == (
        False, None, None, None,
    )  # fmt: skip
    assert ObjectIndex(archive, Layout(object_index_partitions=1)).kept


def test_pixels_are_distinct_and_sorted() -> None:
    assert distinct_pixels(pa.table({names.PIXEL: [5, 3, 5]})) == [3, 5]


# ---------------------------------------------------------------- maintenance


def main_tables(archive: ct.Archive, window: str = "360d") -> dict[str, ct.Dataset]:
    """Datasets of the main tables, with slices of a window."""
    made = {}
    for table in names.MAIN_TABLES:
        name = names.dataset_name(table)
        made[table] = archive.create(
            name, schema=table_of([], TABLES[name]).schema, cell=ct.sky(names.RA, names.DEC),
            time=ct.mjd(TABLES[name], scale="tai"), window=window, slice=1,
        )  # fmt: skip
    return made


TIMES = [UNIX_EPOCH + 17.0 * number for number in range(-30, 90)]


def store_entries(index: ObjectIndex, times: list[float]) -> None:
    """Entries of one object for each time, whose number is that of the time."""
    rows = [(number, 10.0, 5.0, time) for number, time in enumerate(times)]
    index.dataset.write(index.entries({"dia_source": table_of(rows, names.TIME)}))


def kept(index: ObjectIndex) -> set[int]:
    return set(index.dataset.read(columns=[names.OBJECT_ID]).to_arrow()[names.OBJECT_ID].to_pylist())


@pytest.mark.parametrize("window", ["30d", "120d", "360d"])
@pytest.mark.parametrize("table", names.MAIN_TABLES)
def test_an_entry_is_retired_after_its_rows_and_not_before(
    index: ObjectIndex, archive: ct.Archive, table: str, window: str
) -> None:
    datasets = main_tables(archive, window)
    store_entries(index, TIMES)
    rows = [(number, 10.0, 5.0, at) for number, at in enumerate(TIMES)]
    datasets[table].write(table_of(rows, TABLES[names.dataset_name(table)]))
    while slices := datasets[table].info().slices:
        count = index.dataset.count()
        planned = index.retire(datasets, 99_999.0, dry_run=True)
        assert index.dataset.count() == count
        dropped = index.retire(datasets, 99_999.0, dry_run=False)
        assert [part.slice for part in dropped] == [part.slice for part in planned]
        assert all(part.end < min(each.start for each in slices) - WINDOW_DAYS / 2 for part in dropped)
        left = datasets[table].read(columns=[names.OBJECT_ID]).to_arrow()[names.OBJECT_ID].to_pylist()
        assert kept(index) >= set(left)
        first, end = min((part.start, part.end) for part in slices)
        assert all(part.end >= first - WINDOW_DAYS / 2 for part in index.dataset.info().slices)
        datasets[table].retire(before=end)


def test_slices_that_end_after_the_limit_stay(index: ObjectIndex, archive: ct.Archive) -> None:
    store_entries(index, TIMES)
    datasets = main_tables(archive)
    end = UNIX_EPOCH + 2.0 * WINDOW_DAYS
    for limit in (end - 1, end):
        index.retire(datasets, limit, dry_run=False)
        [first, *_] = sorted(part.end for part in index.dataset.info().slices)
        assert first == end + (WINDOW_DAYS if limit == end else 0)
    index.retire(datasets, 99_999.0, dry_run=False)
    assert kept(index) == set()
    assert index.retire(datasets, 99_999.0, dry_run=False) == []
