"""Rows of alerts in a database: grouped by detector-visit, counted once, and under their exact ids."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import chronotile as ct
from chronotile import apdb
from chronotile.apdb.alerts import Import, import_alerts
from chronotile.apdb.metadata import Metadata

Row = dict[str, Any]

SOURCE: Row = {
    "diaSourceId": 1, "diaObjectId": 7, "visit": 1, "detector": 2, "midpointMjdTai": 61_000.0, "ra": 150.0, "dec": 2.0,
}  # fmt: skip
FORCED: Row = {name: value for name, value in SOURCE.items() if name != "diaSourceId"}
OBJECT: Row = {"diaObjectId": 7, "ra": 150.0, "dec": 2.0}
LARGE = 2**60
"""The nearest floats to it are 128 less and 256 more."""


@pytest.fixture
def database() -> Iterator[apdb.Apdb]:
    with apdb.create("memory:", "small") as made:
        yield made


@pytest.fixture
def load(database: apdb.Apdb, tmp_path: Path) -> Any:
    """Import flattened tables, each from a file of its own."""

    def load(*tables: list[Row], **how: Any) -> Import:
        paths = [tmp_path / f"{number}.parquet" for number in range(len(tables))]
        for path, rows in zip(paths, tables, strict=True):
            pq.write_table(pa.Table.from_pylist(rows), path)
        return import_alerts(database, paths, **how)

    return load


def visits(database: apdb.Apdb) -> list[tuple[int, int, float, int, int, int]]:
    """Visit, detector and time of stored detector-visits, with their objects, sources and forced sources."""
    return [tuple(row.values())[:6] for row in database.visits().to_arrow().to_pylist()]  # type: ignore[misc]


def source(number: int, **changes: Any) -> Row:
    return {**SOURCE, "diaSourceId": number, **changes}


# ---------------------------------------------------------------- detector-visits


def test_rows_are_stored_by_detector_visit_at_the_time_of_their_first_row(database: apdb.Apdb, load: Any) -> None:
    rows = [
        source(5, visit=3, detector=1, midpointMjdTai=61_003.0), source(1), source(4, detector=4),
        source(3, detector=3, midpointMjdTai=61_000.25), source(2, detector=3, midpointMjdTai=61_000.125),
    ]  # fmt: skip
    forced = [{**FORCED, "detector": 3, "midpointMjdTai": 61_000.0}, {**FORCED, "visit": 4, "midpointMjdTai": 61_004.0}]
    done = load(rows, forced)
    assert (done.objects, done.sources, done.forced_sources, done.detector_visits) == (0, 5, 2, 5)
    assert sorted(visits(database)) == [
        (1, 2, 61_000.0, 0, 1, 0),
        (1, 3, 61_000.125, 0, 2, 1),
        (1, 4, 61_000.0, 0, 1, 0),
        (3, 1, 61_003.0, 0, 1, 0),
        (4, 2, 61_004.0, 0, 0, 1),
    ]
    assert sorted(database.sources()["diaSourceId"].to_pylist()) == [1, 2, 3, 4, 5]
    assert database.forced_sources().to_arrow().num_rows == 2


def test_a_record_that_is_given_twice_counts_once_and_has_its_last_values(database: apdb.Apdb, load: Any) -> None:
    twice = [source(1, psfFlux=2.0), source(2, psfFlux=3.0), source(1, psfFlux=1.0)]
    done = load(twice, [{**FORCED, "psfFlux": 4.0}, {**FORCED, "psfFlux": 5.0}])
    assert (done.sources, done.forced_sources, done.detector_visits) == (2, 1, 1)
    rows = database.sources(columns=["diaSourceId", "psfFlux"]).to_arrow().sort_by("diaSourceId")
    assert rows.to_pydict() == {"diaSourceId": [1, 2], "psfFlux": [1.0, 3.0]}
    assert database.forced_sources()["psfFlux"].to_pylist() == [5.0]


@pytest.mark.parametrize("new", [(0, 0), (1, 0), (0, 1), (1, 1)], ids=str)
def test_an_import_is_stored_if_any_of_its_detector_visits_is_new(load: Any, new: tuple[int, int]) -> None:
    first, second = [source(1)], [source(2, visit=2, midpointMjdTai=61_001.0)]
    assert load([*(() if new[0] else first), *(() if new[1] else second), source(9, visit=9)]).stored
    assert load(first + second).stored is any(new)
    assert not load(first + second).stored


def packet(number: int) -> Row:
    """An alert of the LSST."""
    return {"diaSource": source(number, visit=number, midpointMjdTai=61_000.0 + number), "prvDiaSources": None}


@pytest.mark.parametrize("known", [1, 2])
def test_an_import_is_stored_if_any_of_its_files_has_something_new(load: Any, known: int) -> None:
    assert load([packet(known)]).stored
    done = load([packet(1)], [packet(2)])
    assert (done.stored, done.sources, done.detector_visits) == (True, 2, 2)
    assert load([packet(1)], [packet(2)]) == Import(0, 2, 0, 2, (), (), (), False)


# ---------------------------------------------------------------- objects


def test_objects_are_valid_from_the_time_that_they_name(database: apdb.Apdb, load: Any) -> None:
    start = "validityStartMjdTai"
    objects = [{**OBJECT, "diaObjectId": number, start: 61_000.0 + day} for day in (2, 0, 1) for number in (7, 8)]
    objects.append({**OBJECT, start: 61_000.0, "ra": 149.0})
    done = load(objects, [SOURCE])
    assert (done.objects, done.sources, done.detector_visits, done.stored) == (2, 1, 1, True)
    for day in range(3):
        rows = database.objects(at=61_000.5 + day).to_arrow().sort_by("diaObjectId").to_pylist()
        assert [(row["diaObjectId"], row[start], row["ra"]) for row in rows] == [
            (7, 61_000.0 + day, 150.0 if day else 149.0), (8, 61_000.0 + day, 150.0),
        ]  # fmt: skip
    # Those that begin with a detector-visit are stored with it.
    assert [row[2:5] for row in visits(database)] == [(61_000.0, 2, 1), (61_001.0, 2, 0), (61_002.0, 2, 0)]
    assert not load(objects, [SOURCE]).stored
    assert load([{**OBJECT, start: 61_009.0}]).stored


def test_objects_without_a_start_are_valid_from_the_last_source(database: apdb.Apdb, load: Any) -> None:
    times = (61_000.0, 61_002.0, 61_001.0)
    done = load([OBJECT, {**OBJECT, "ra": 149.0}], [source(n, visit=n, midpointMjdTai=t) for n, t in enumerate(times)])
    assert done.objects == 1
    assert "object validity starts at the time of the last imported source" in done.notes
    rows = database.objects().to_arrow().to_pylist()
    assert [(row["validityStartMjdTai"], row["ra"]) for row in rows] == [(61_002.0, 149.0)]
    with pytest.raises(ct.InvalidInputError, match=r"^objects without sources have no start of validity") as error:
        load([OBJECT])
    assert error.value.kind == "invalid-rows"


def test_forced_sources_take_their_unit_from_stored_objects(database: apdb.Apdb, load: Any) -> None:
    near = {**FORCED, **{name: float(np.radians(FORCED[name])) for name in ("ra", "dec")}}
    with pytest.raises(ct.InvalidInputError, match="none of their objects is known") as error:
        load([near])
    assert error.value.kind == "invalid-rows"
    load([OBJECT], [SOURCE])
    done = load([near])
    assert any("radians" in note for note in done.notes)
    (row,) = database.forced_sources().to_arrow().to_pylist()
    assert (row["ra"], row["dec"]) == pytest.approx((150.0, 2.0))


# ---------------------------------------------------------------- columns


def test_columns_without_a_place_are_named_once_and_lost_values_are_counted(database: apdb.Apdb, load: Any) -> None:
    lossy = {"colour": 1, "ssObjectId": float(2**53 + 2)}
    rows = [source(1, **lossy), source(2, **lossy), source(3, colour=2, ssObjectId=4.0)]
    done = load(rows, [{**FORCED, "colour": 1}], [{**FORCED, "visit": None}])
    assert done.no_column == ("DiaForcedSource.colour", "DiaSource.colour")
    assert done.left_out == (
        *done.no_column, "1 forced sources without visit", "2 values of DiaSource.ssObjectId, rounded in the file",
    )  # fmt: skip
    kept = dict(zip(*(database.sources()[name].to_pylist() for name in ("diaSourceId", "ssObjectId")), strict=True))
    assert kept == {1: None, 2: None, 3: 4}

    assert load([packet(4) | {"cutoutScience": b"an image"}]).no_column == ("cutoutScience",)


def test_integers_become_floats_of_the_schema_and_no_integer_is_cut_off(database: apdb.Apdb, load: Any) -> None:
    load([source(1, psfFlux=2**40 + 1)])
    assert database.sources()["psfFlux"].to_pylist() == [float(2**40)]
    for wrong, says in (({"detector": 2**15}, "32768"), ({"psfFlux": "bright"}, "bright")):
        name = next(iter(wrong))
        with pytest.raises(
            ct.InvalidInputError, match=f"DiaSource.{name} in the alerts does not match.*{says}"
        ) as error:
            load([source(2, **wrong)])
        assert error.value.kind == "invalid-rows"


def test_early_columns_get_their_current_names(database: apdb.Apdb, load: Any) -> None:
    early = {"is_negative": True, "time_processed": np.datetime64("2026-01-01T00:00:00", "us").item()}
    database.migrate(database.schema.extended({"DiaSource": [apdb.Column("isNegative", "bool")]}))
    done = load([source(1, **early), source(2, **{**early, "is_negative": False})])
    assert done.no_column == ()
    rows = database.sources().to_arrow().sort_by("diaSourceId")
    assert rows["isNegative"].to_pylist() == [True, False]
    assert rows["timeProcessedMjdTai"].to_pylist() == pytest.approx([61_041 + 37 / 86_400] * 2)
    # Where a file has both names, each is a column of its own.
    assert load([source(3, **early, isNegative=False)]).no_column == ("DiaSource.is_negative",)
    assert database.sources().to_arrow().sort_by("diaSourceId")["isNegative"].to_pylist() == [True, False, False]
    database.migrate(database.schema.extended({"DiaSource": [apdb.Column("is_negative", "bool")]}))
    assert load([source(4, is_negative=True)]).no_column == ()
    assert database.sources().to_arrow().sort_by("diaSourceId")["isNegative"].to_pylist()[-1] is None


def test_files_without_a_complete_alert_and_rows_that_cannot_be_stored_are_errors(
    database: apdb.Apdb, load: Any, tmp_path: Path
) -> None:
    pq.write_table(pa.Table.from_pylist([packet(1)]).slice(0, 0), tmp_path / "none.parquet")
    nothing = "no alert imported: no complete alert in the files"
    with pytest.raises(ct.InvalidInputError, match=f"^{nothing}$") as error:
        import_alerts(database, [tmp_path / "none.parquet"])
    assert error.value.kind == "invalid-rows"
    with pytest.raises(ct.InvalidInputError, match=f"^{nothing}; left out: 1 sources without visit$"):
        load([{"diaSource": source(1, visit=None), "prvDiaSources": None}])
    with pytest.raises(ct.InvalidInputError, match=r"0\.parquet: .*dec"):
        load([{"diaSource": source(1, dec=99.0), "prvDiaSources": None}])
    assert database.sources().to_arrow().num_rows == 0


# ---------------------------------------------------------------- ids as doubles


FLAG = "apdb:rounded-ids"
EXACT = LARGE + 7


def rounded(**changes: Any) -> Row:
    """The source of id `EXACT`, from a file that stores ids as doubles."""
    return source(EXACT, **changes) | {"diaSourceId": float(EXACT)}


def note_of(count: int) -> str:
    return (
        f"the file rounded the ids of {count:,} detections to 53 bits: they are stored under the rounded id until an "
        "alert with the exact id is imported"
    )


def ids(database: apdb.Apdb) -> list[int]:
    return sorted(database.sources()["diaSourceId"].to_pylist())


def test_a_rounded_id_is_kept_until_the_exact_one_arrives(database: apdb.Apdb, load: Any) -> None:
    assert load([source(2)]).notes == ()
    assert database.metadata.get(FLAG) is None
    done = load([rounded()])
    assert (done.sources, done.notes, done.left_out) == (1, (note_of(1),), ())
    assert (ids(database), database.metadata.get(FLAG)) == ([2, LARGE], "1")
    # It came again, and other detections came: nothing changes.
    assert load([rounded()]).notes == (note_of(1),)
    assert load([source(3, visit=2), source(LARGE + 9, visit=3)]).notes == ()
    assert ids(database) == [2, 3, LARGE, LARGE + 9]
    done = load([source(EXACT)])
    assert (done.notes, done.left_out) == ((), ())
    assert ids(database) == [2, 3, EXACT, LARGE + 9]
    assert load([rounded()]) == Import(0, 1, 0, 1, (), (), (), False)
    assert ids(database) == [2, 3, EXACT, LARGE + 9]


def test_a_rounded_id_takes_the_exact_one_that_is_stored(database: apdb.Apdb, load: Any) -> None:
    load([source(EXACT), source(5, visit=5)])
    done = load([rounded(), rounded(visit=6) | {"diaSourceId": 6.0}])
    assert (done.sources, done.notes, done.stored) == (2, (), True)
    assert ids(database) == [5, 6, EXACT]
    assert database.metadata.get(FLAG) is None


def test_one_of_several_exact_ids_of_a_detection_is_taken(database: apdb.Apdb, load: Any) -> None:
    load([source(EXACT + 1), source(EXACT)])
    assert load([rounded()]).notes == ()
    assert ids(database) == [EXACT, EXACT + 1]


LOST = "detections whose rounded id belongs to another detection"


def test_detections_that_rounding_merged_are_told_apart_by_what_was_seen(database: apdb.Apdb, load: Any) -> None:
    # In one file, beside one that is exact.
    changed = [{"visit": 2}, {"detector": 3}, {"ra": 150.001}, {"dec": 2.001}]
    done = load([rounded(), source(3), *(rounded(**change) for change in changed), rounded()])
    assert (done.sources, done.notes, done.left_out) == (2, (note_of(1),), (f"4 {LOST}",))
    # In files that come later.
    for change in changed:
        done = load([source(3), rounded(**change)])
        assert (done.sources, done.notes, done.left_out) == (1, (), (f"1 {LOST}",))
    assert ids(database) == [3, LARGE]


@pytest.mark.parametrize("change", [{"visit": 2}, {"detector": 3}, {"ra": 150.001}, {"dec": 2.001}], ids=str)
def test_a_rounded_id_takes_no_id_of_another_detection_in_the_file(database: apdb.Apdb, load: Any, change: Row) -> None:
    done = load([{"diaSource": source(EXACT), "prvDiaSources": [rounded(**change), rounded()]}])
    assert (done.sources, done.notes, done.left_out) == (2, (note_of(1),), ())
    assert ids(database) == [LARGE, EXACT]
    # The exact id may be the same as a rounded one.
    done = load([{"diaSource": source(2 * LARGE), "prvDiaSources": [rounded(**change) | {"diaSourceId": 2.0 * LARGE}]}])
    assert (done.sources, done.notes, done.left_out) == (1, (note_of(1),), (f"1 {LOST}",))
    assert ids(database) == [LARGE, EXACT, 2 * LARGE]


def test_two_imports_at_once_both_keep_rounded_ids(
    database: apdb.Apdb, load: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Metadata.get

    def look_before_another_import_notes_that_there_are_such_ids(self: Metadata, key: str) -> str | None:
        found = look(self, key)
        if key == FLAG and found is None:
            self.set_all({FLAG: "1"})
        return found

    monkeypatch.setattr(Metadata, "get", look_before_another_import_notes_that_there_are_such_ids)
    assert load([rounded()]).notes == (note_of(1),)
    assert (ids(database), look(database.metadata, FLAG)) == ([LARGE], "1")
