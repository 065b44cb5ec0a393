"""Light curves of objects anywhere on the sky: the index of objects leads to every row that a scan finds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from conftest import Run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support_apdb import START, visit_of

import chronotile as ct
from chronotile import apdb
from chronotile.apdb import names

OBJECTS = 12
IDS = st.lists(st.integers(0, OBJECTS - 1), min_size=1, max_size=6, unique=True)
PICK = st.integers(0, 200)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("store"), st.integers(0, 9), IDS),
        st.tuples(st.just("replace"), st.integers(0, 9), IDS),
        st.tuples(st.just("remove visit"), st.integers(0, 9)),
        st.tuples(st.just("remove batch"), PICK),
        st.tuples(st.just("reassign"), PICK, st.integers(0, OBJECTS - 1)),
        st.tuples(st.just("reassociate"), PICK),
        st.tuples(st.just("withdraw"), PICK),
        st.tuples(st.just("delete"), PICK),
        st.tuples(st.just("retire"), st.booleans(), st.integers(0, 9)),
        st.tuples(st.just("archive")),
        st.tuples(st.just("restore")),
        st.tuples(st.just("maintain")),
    ),
    min_size=3,
    max_size=14,
)


def far_visit(number: int, ids: list[int], seed: int = 0) -> dict[str, Any]:
    """A detector-visit every 90 days, whose rows of an object lie up to a degree apart: in several pixels. Each record
    keeps its place, also when it is stored again with another seed.
    """
    visit = visit_of(number, ids, seed=seed)
    time = START + 90.0 * number
    places = np.random.default_rng(number)
    for table in ("objects", "sources", "forced_sources"):
        ra, dec = places.uniform(0, 1, (2, OBJECTS))[:, ids]
        visit[table] |= {"ra": 150 + ra, "dec": 2 + dec}
        if table != "objects":
            visit[table]["midpointMjdTai"] = np.full(len(ids), time)
    return visit | {"visit_time": time}


def scanned(database: apdb.Apdb) -> list[dict[str, Any]]:
    """The measurements of all objects, by a scan of the tables."""
    columns = ["diaObjectId", "midpointMjdTai", "visit", "psfFlux", "timeWithdrawnMjdTai"]
    found = []
    for table in ("DiaSource", "DiaForcedSource"):
        for row in database.scan(table, columns=columns).to_arrow().to_pylist():
            if row.pop("timeWithdrawnMjdTai") is None and row["diaObjectId"] is not None:
                found.append(row | {"forced": table == "DiaForcedSource"})
    return sorted(found, key=str)


def curves(database: apdb.Apdb, **how: Any) -> list[dict[str, Any]]:
    """The measurements of all objects, by their ids."""
    columns = ["diaObjectId", "midpointMjdTai", "visit", "psfFlux", "forced"]
    rows = database.light_curves(range(OBJECTS), columns=columns, **how).to_arrow()
    order = [("diaObjectId", "ascending"), ("midpointMjdTai", "ascending"), ("forced", "ascending")]
    assert rows.select([name for name, _ in order]) == rows.sort_by(order).select([name for name, _ in order])
    return sorted(rows.to_pylist(), key=str)


class Steps:
    """Does steps to a database, in any order; those that it refuses change nothing."""

    def __init__(self, database: apdb.Apdb, cold: Path) -> None:
        self.database, self.cold, self.seed = database, cold, 0
        database.archive_before(START - 1_000, cold)

    def source(self, pick: int) -> int | None:
        ids = sorted(self.database.scan("DiaSource", columns=["diaSourceId"]).to_arrow()["diaSourceId"].to_pylist())
        return ids[pick % len(ids)] if ids else None

    def do(self, what: tuple[Any, ...]) -> None:
        kind, database = what[0], self.database
        if kind == "store":
            # It may be stored with other rows.
            with contextlib.suppress(ct.BatchConflictError):
                database.store(**far_visit(what[1], what[2]))
        elif kind == "replace":
            self.seed += 1
            # Files may have other rows of it.
            with contextlib.suppress(ct.InvalidInputError):
                database.store(**far_visit(what[1], what[2], self.seed), replace=True)
        elif kind == "remove visit":
            database.remove_visit(what[1], changed=True, archived=False)
        elif kind == "remove batch":
            group = database.archive.group(names.GROUP)
            keys = [info.key for info in group.batches() if info.key is not None and "-" in info.key]
            if keys:
                group.remove_batch(keys[what[1] % len(keys)])
        elif kind == "retire":
            database.retire(START + 90.0 * what[2], objects=what[1])
        elif kind == "archive":
            database.archive_before(START + 500, self.cold)
        elif kind == "restore":
            database.restore(self.cold)
        elif kind == "maintain":
            database.maintain()
        elif (source := self.source(what[1])) is not None:
            self.change(kind, source, what)

    def change(self, kind: str, source: int, what: tuple[Any, ...]) -> None:
        if kind == "reassign":
            # To an object nearby: a version of it is stored there first.
            row = self.database.sources().to_arrow().filter(pc.field("diaSourceId") == source).to_pylist()[0]
            place = {"diaObjectId": [what[2]], "ra": [row["ra"]], "dec": [row["dec"]]}
            self.database.store(START + 1_000 + self.seed, objects=place)
            self.seed += 1
            self.database.reassign({source: what[2]})
        elif kind == "reassociate":
            self.database.reassociate({source: 5_001})
        elif kind == "withdraw":
            self.database.withdraw_sources([source], START)
        elif kind == "delete":
            self.database.delete("DiaSource", [source], archived=self.cold)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_ids_find_every_row_that_a_scan_finds_whatever_was_stored_changed_and_removed(
    steps: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("survey")
    with apdb.create("memory:", "small") as database:
        doing = Steps(database, folder / "cold")
        for what in steps:
            doing.do(what)
            assert curves(database) == scanned(database), what
        for number in range(OBJECTS):
            found = database.object_history(number).to_arrow()
            versions = database.dedup_feed(0, columns=["diaObjectId", "validityStartMjdTai"], versions=True).to_arrow()
            own = versions.filter(pc.field("diaObjectId") == number)["validityStartMjdTai"]
            assert found["validityStartMjdTai"].to_pylist() == sorted(own.to_pylist())


@pytest.fixture
def survey(path: Path) -> Iterator[apdb.Apdb]:
    with apdb.create(path, "small") as made:
        yield made


def test_a_database_may_keep_no_index(path: Path) -> None:
    with apdb.create(path, "small", object_index_partitions=0) as database:
        database.store(**far_visit(0, [1, 2, 3]))
        database.maintain()
        assert names.OBJECT_INDEX not in database.archive
        assert curves(database) == scanned(database)
        assert len(database.light_curve(1)) == 2
        database.retire(START + 1_000, objects=True)
    with pytest.raises(ct.InvalidInputError, match="object_index_partitions"):
        apdb.Layout(object_index_partitions=257)


def requested_pixels(database: apdb.Apdb, ids: list[int]) -> list[int] | None:
    """The pixels that a read of these objects looks at; None for all."""
    found: list[list[int] | None] = []
    read = ct.Group.read
    with pytest.MonkeyPatch.context() as patch:

        def spy(self: ct.Group, requests: Any, *, cells_from: tuple[str, str] | None = None) -> Any:
            tables = read(self, requests, cells_from=cells_from)
            found.append(None if cells_from is None else sorted({*tables[cells_from[0]][cells_from[1]].to_pylist()}))
            return tables

        patch.setattr(ct.Group, "read", spy)
        database.light_curves(ids)
    (pixels,) = found
    return pixels


def test_only_pixels_of_the_objects_are_read(survey: apdb.Apdb) -> None:
    for number in range(4):
        survey.store(**far_visit(number, [1, 2, 3]))

    def pixels(*ids: int) -> list[int]:
        parts = [survey.scan(table, history=True).to_arrow() for table in names.MAIN_TABLES]
        own = [part.filter(pc.is_in(part["diaObjectId"], pa.array(ids))) for part in parts]
        return sorted({pixel for part in own for pixel in survey.cells_of(part)})

    assert requested_pixels(survey, [2]) == pixels(2)
    assert requested_pixels(survey, [77]) == []
    assert requested_pixels(survey, [1, 2, 3]) == pixels(1, 2, 3) != pixels(2)


def test_ids_come_in_any_form(survey: apdb.Apdb) -> None:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    number = 144594336015
    for visit in range(2):
        rows = far_visit(visit, [1, 2])
        for table in ("objects", "sources", "forced_sources"):
            rows[table]["diaObjectId"] = np.array([1, number])
        survey.store(**rows)
    whole = survey.light_curves([1, number]).to_arrow()
    assert whole.num_rows == 8
    forms = [
        (number, 1), {1, number}, iter([1, number, 1]), np.array([1, number]), np.array([number, 1], "uint64"),
        pa.array([1, None, number]), pa.chunked_array([[1], [number, number]]), pandas.Series([1, number]),
        polars.Series([1, number]), ["1", "ZTF18abvpqtz"], [1, " ztf18abvpqtz "], pa.array(["ZTF18abvpqtz", "1"]),
        np.array(["1", "ZTF18abvpqtz"]), np.array([1, "ZTF18abvpqtz"], object),
    ]  # fmt: skip
    for form in forms:
        assert survey.light_curves(form).to_arrow() == whole, form
        # Iterators are used up.
        if not isinstance(form, Iterator):
            assert len(survey.sources(object_ids=form)) == 4
    assert survey.light_curves("ZTF18abvpqtz").to_arrow() == survey.light_curve(number).to_arrow()
    empties: list[Any] = [[], pa.array([], pa.int64()), np.array([]), pa.nulls(3)]
    for empty in empties:
        assert survey.light_curves(empty).to_arrow() == whole.slice(0, 0)
    for bad in (["M31"], [1.5], pa.array([1.0]), [2**63], np.array([2**63], "uint64"), ["ZTF18ABCDEFG1"], None, [[1]]):
        with pytest.raises(ct.InvalidInputError):
            survey.light_curves(bad)


def test_unknown_ids_are_left_out_or_refused(survey: apdb.Apdb) -> None:
    visit = far_visit(0, [1, 2, 3])
    # One without measurements is known.
    survey.store(START, objects={"diaObjectId": [9], "ra": [10.0], "dec": [-20.0]})
    survey.store(**visit)
    assert survey.light_curves([1, 9, 77, 78]).to_arrow() == survey.light_curves([1]).to_arrow()
    assert len(survey.light_curve(9)) == 0
    assert len(survey.light_curves([1, 9], missing="error")) == 2
    with pytest.raises(ct.InvalidInputError, match="no object 77, 78 in the database") as error:
        survey.light_curves([78, 1, 77], missing="error")
    assert (error.value.kind, error.value.details["ids"]) == ("unknown-id", [77, 78])
    with pytest.raises(ct.InvalidInputError, match="missing"):
        survey.light_curves([1], missing="warn")


def test_columns_and_periods_are_chosen(survey: apdb.Apdb) -> None:
    for number in range(3):
        survey.store(**far_visit(number, [1, 2]))
    time = START + 90
    rows = survey.light_curves([1, 2], columns=["diaSourceId", "forced"], start=time, end=time + 1).to_arrow()
    assert rows.to_pylist() == [
        {"diaSourceId": 11_001, "forced": False}, {"diaSourceId": None, "forced": True},
        {"diaSourceId": 11_002, "forced": False}, {"diaSourceId": None, "forced": True},
    ]  # fmt: skip
    assert survey.light_curves([1], columns="psfFlux", end=START).to_arrow().num_rows == 0
    assert survey.light_curves([1, 2], forced=False).to_arrow()["forced"].to_pylist() == [False] * 6
    assert survey.light_curve(1, columns=["band"]).column_names == ["band"]
    with pytest.raises(ct.InvalidInputError, match="psfFlux"):
        survey.light_curves([1], columns=["psfFluxx"])


def test_archived_measurements_are_found_by_id(survey: apdb.Apdb, tmp_path: Path) -> None:
    for number in range(4):
        survey.store(**far_visit(number, [1, 2, 3]))
    survey.withdraw_sources([1_001], START)
    before = curves(survey)
    survey.archive_before(START + 240, tmp_path / "cold")
    assert len(curves(survey)) < len(before)
    assert curves(survey, archived=tmp_path / "cold") == before
    assert survey.light_curve(2, archived=tmp_path / "cold").to_arrow()["forced"].to_pylist() == [False, True] * 4
    survey.restore(tmp_path / "cold")
    assert curves(survey) == before
    with apdb.create(tmp_path / "empty.db", "small") as empty:
        assert curves(empty, archived=tmp_path / "cold") != []
        assert len(empty.light_curve(2, archived=tmp_path / "cold")) > 0


def test_entries_are_retired_once_their_rows_are(survey: apdb.Apdb, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        survey.store(**far_visit(number, [1, 2]))
    index = survey.archive[names.OBJECT_INDEX]
    slices = len(index.info().slices)
    survey.retire(START + 1_500)
    assert len(index.info().slices) == slices, "objects are left"
    planned = survey.retire(START + 1_500, objects=True, dry_run=True)[names.OBJECT_INDEX]
    retire = ct.Dataset.retire
    late = far_visit(0, [1, 2], seed=5)

    def store_late(self: ct.Dataset, **how: Any) -> Any:
        if how.get("unchanged"):
            assert survey.store(**late | {"visit": 1_000}).stored
        return retire(self, **how)

    with monkeypatch.context() as patch:
        patch.setattr(ct.Dataset, "retire", store_late)
        dropped = survey.retire(START + 1_500, objects=True)[names.OBJECT_INDEX]
    assert curves(survey) == scanned(survey)
    assert len(dropped) >= len(planned) >= 0
    assert len(survey.light_curve(1, end=START + 1)) == 2
    before = len(index.info().slices)
    survey.remove_visit(1_000)
    survey.retire(START + 1_500, objects=True)
    assert len(index.info().slices) < before
    assert curves(survey) == scanned(survey)


def test_a_reassigned_source_is_found_whatever_becomes_of_the_batches_of_its_objects(survey: apdb.Apdb) -> None:
    survey.store(**far_visit(0, [1, 2]))
    place = survey.sources(object_ids=[1], columns=["ra", "dec"]).to_arrow()
    survey.store(START + 1, objects={"diaObjectId": [2], "ra": place["ra"], "dec": place["dec"]})
    assert survey.reassign({1_001: 2}) == 1
    group = survey.archive.group(names.GROUP)
    for batch in group.batches():
        if batch.key is not None and batch.key.startswith("objects-"):
            group.remove_batch(batch.key)
    assert len(survey.light_curve(2, forced=False)) == 2
    assert curves(survey) == scanned(survey)


def test_restored_rows_are_found_after_their_detector_visits_were_removed(survey: apdb.Apdb, tmp_path: Path) -> None:
    for number in range(3):
        survey.store(**far_visit(number, [1, 2, 3]))
    before = curves(survey)
    survey.archive_before(START + 240, tmp_path / "cold")
    for number in range(3):
        survey.remove_visit(number, archived=False)
    assert curves(survey) == []
    survey.restore(tmp_path / "cold")
    assert curves(survey) == scanned(survey) != []
    assert all(row in before for row in curves(survey))


def test_changes_by_object_find_it_without_a_position(survey: apdb.Apdb) -> None:
    for number in range(3):
        survey.store(**far_visit(number, [1, 2, 3]))
    assert survey.close_validity([2], START + 400) == 1
    assert survey.delete("DiaForcedSource", {"diaObjectId": [1], "visit": [1], "detector": [1]}) == 1
    assert survey.delete("DiaObject", [3, 77]) == 1
    assert survey.objects()["diaObjectId"].to_pylist() == [1]
    assert curves(survey) == scanned(survey)


def test_the_command_line_prints_light_curves_of_many_objects(tmp_path: Path, chronotile: Run) -> None:
    path = tmp_path / "survey.db"
    with apdb.create(path, "small") as made:
        for number in range(2):
            made.store(**far_visit(number, [1, 2, 3]))

    def run(*words: Any, code: int = 0, **how: Any) -> Any:
        done = chronotile("apdb", "light-curve", path, *words, **how)
        assert done.returncode == code, done.stderr
        return done

    narrow = ("--columns", "diaObjectId,diaSourceId", "--format", "csv")
    done = run("3", "1", "77", *narrow)
    assert done.stdout == ("diaObjectId,diaSourceId\n1,1001\n1,\n1,11001\n1,\n3,1003\n3,\n3,11003\n3,\n")
    assert "note: no measurements of object 77" in done.stderr
    (tmp_path / "ids.txt").write_text("1\n2\n\n3\n")
    assert run("--ids", tmp_path / "ids.txt", "--detections", *narrow).stdout.count("\n") == 7
    assert run("--ids", "-", "2", "--start", START + 1, *narrow, stdin="1\n").stdout.count("\n") == 5
    assert "no object 77" in run("77", code=2).stderr
    assert "no measurements of objects 77, 78; pass --archived" in run("77", "78", code=2).stderr
    assert "Give an OBJECT" in run(code=2).stderr
    assert "one OBJECT" in run("1", "2", "--near", "150,2", code=2).stderr
    assert "psfFlux" in run("1", "--columns", "psfFluxx", code=2).stderr
