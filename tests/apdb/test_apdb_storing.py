"""A store writes what it was given once, under one name, with the record of its detector-visit."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
import numpy as np
import pyarrow as pa
from support_apdb import START, seen_sources, visit_of

import chronotile as ct
from chronotile import apdb
from chronotile.apdb import names, values

PLACE = {"ra": [150.1], "dec": [2.1]}


@pytest.fixture
def survey() -> Iterator[apdb.Apdb]:
    """An empty database in memory, with a list of changes."""
    with apdb.create("memory:", "small", feed=True) as made:
        yield made


def keys_of(database: apdb.Apdb) -> list[str | None]:
    """Names of the stored batches."""
    return [info.key for info in database.archive.group(names.GROUP).batches()]


def other_rows(number: int, ids: list[int], detector: int = 1) -> dict[str, Any]:
    """A detector-visit that names itself in its rows, as stores that add rows to it do."""
    visit = visit_of(number, ids, detector)
    for name in ("sources", "forced_sources"):
        visit[name] |= {"visit": np.full(len(ids), number), "detector": np.full(len(ids), detector)}
    return {name: visit[name] for name in ("visit_time", "objects", "sources", "forced_sources")}


# ---------------------------------------------------------------------- reports and records


def test_a_store_reports_its_rows_and_is_recorded_with_its_times_and_pixels(survey: apdb.Apdb) -> None:
    rows = visit_of(3, [1, 2, 3], detector=5)
    rows["sources"]["midpointMjdTai"] = START + np.array([3.2, 3.1, 3.3])
    rows["forced_sources"] = {name: column[:2] for name, column in rows["forced_sources"].items()}
    rows["forced_sources"]["midpointMjdTai"] = START + np.array([3.0, 3.4])
    done = survey.store(
        rows["visit_time"], rows["objects"], rows["sources"], rows["forced_sources"], visit=3, detector=5
    )
    assert (done.stored, done.objects, done.sources, done.forced_sources) == (True, 3, 3, 2)
    stored = survey.archive.group(names.GROUP).batch("3-5")
    assert stored is not None
    tables = ("dia_object", "dia_source", "dia_forced_source")
    assert done.bytes == sum(stored.datasets[name].bytes for name in tables) > 0
    (record,) = survey.archive[names.VISITS].read().to_arrow().to_pylist()
    pixels = [survey.cells_of(pa.table(rows[name])) for name in ("objects", "sources", "forced_sources")]
    assert record == {
        "key": "3-5", "visit": 3, "detector": 5, "visit_mjd_tai": START + 3, "objects": 3, "sources": 3,
        "forced_sources": 2, "time_first": START + 3.0, "time_last": START + 3.4, "object_cells": pixels[0],
        "source_cells": pixels[1], "forced_cells": pixels[2],
    }  # fmt: skip
    chunk = (61_003 - 40_587) * 86_400 // 600 * 600
    (listed,) = survey.archive[names.FEED].read().to_arrow().to_pylist()
    assert listed == {**record, "chunk": chunk, "done": False}
    assert not survey.store(**rows).stored
    assert survey.visits().to_arrow().num_rows == 1


def test_a_chunk_of_the_feed_begins_at_a_multiple_of_its_length() -> None:
    with apdb.create("memory:", "small", feed=True, feed_chunk_s=700) as survey:
        moment = START + 1_000 / 86_400
        survey.store(moment, visit=1, detector=1)
        (listed,) = survey.archive[names.FEED].read(columns=["chunk"]).to_arrow().to_pylist()
        seconds = (61_000 - 40_587) * 86_400 + 1_000
        assert listed["chunk"] % 700 == 0
        assert 0 <= seconds - listed["chunk"] < 700


def test_a_detector_visit_without_detections_is_recorded(survey: apdb.Apdb) -> None:
    done = survey.store(START, visit=7, detector=2)
    assert (done.stored, done.objects, done.sources, done.forced_sources, done.bytes) == (True, 0, 0, 0, 0)
    (record,) = survey.archive[names.VISITS].read().to_arrow().to_pylist()
    assert (record["objects"], record["sources"], record["forced_sources"]) == (0, 0, 0)
    assert (record["time_first"], record["time_last"]) == (None, None)
    assert (record["object_cells"], record["source_cells"], record["forced_cells"]) == ([], [], [])
    empty = survey.dataset("DiaSource").schema.empty_table().select(survey.schema["DiaSource"].column_names)
    assert survey.store(START + 1, sources=empty, visit=8, detector=2).stored
    assert survey.contains(7, 2) is survey.contains(8, 2) is True
    assert survey.contains(2, 7) is survey.contains(7, 3) is False
    assert not survey.store(START, visit=7, detector=2).stored


def test_rows_are_stored_with_the_versions_that_later_changes_exceed(survey: apdb.Apdb) -> None:
    visit = visit_of(0, [1])
    visit["objects"] |= {"validityStartMjdTai": [1.0], "validityEndMjdTai": [2.0]}
    survey.store(**visit)
    for table in ("DiaSource", "DiaForcedSource"):
        assert survey.dataset(table).read().to_arrow()[names.UPDATE].to_pylist() == [0]
    (version,) = survey.dataset("DiaObject").read().to_arrow().to_pylist()
    assert (version["validityStartMjdTai"], version["validityEndMjdTai"]) == (START, None), "of the visit alone"
    assert version[names.VERSION] == values.version_of(START)


def test_visits_are_listed_by_time(survey: apdb.Apdb) -> None:
    for number in (2, 0, 1):
        survey.store(**visit_of(number, [1]))
    assert survey.visits()["visit"].to_pylist() == [0, 1, 2]
    assert survey.visits(START + 1, START + 2)["visit"].to_pylist() == [1]


# ---------------------------------------------------------------------- names of stores


def test_names_of_stores_are_those_of_earlier_releases(survey: apdb.Apdb) -> None:
    # A store that is repeated after an upgrade must be recognized.
    survey.store(START, objects={"diaObjectId": [2, 1], "ra": [150.1] * 2, "dec": [2.1] * 2})
    survey.store_again(**other_rows(0, [1, 2], detector=4))
    survey.store_again(**other_rows(0, [3], detector=4))
    survey.store_again(**other_rows(0, [3], detector=4) | {"objects": None})
    survey.store(**visit_of(1, [1], detector=4))
    assert keys_of(survey) == [
        "objects-5270400000000000000-529b06bc3de0748d6ad45758",
        "0-4-5270400000000000",
        "0-4-5270400000000000-39defa53bb733db36c6e577a",
        "0-4-5270400000000000-53cbef0204cea33f673c6865",
        "1-4",
    ]


def test_objects_alone_are_stored_once_by_their_time_and_ids(survey: apdb.Apdb) -> None:
    two = {"diaObjectId": [1, 2], "ra": [150.1, 150.1], "dec": [2.1, 2.1]}
    done = survey.store(START, two)
    assert (done.stored, done.objects) == (True, 2)
    assert not survey.store(START, two).stored
    assert survey.store(START + 1, two).stored
    assert survey.store(START, {"diaObjectId": [3], **PLACE}).stored
    assert survey.visits()["visit"].to_pylist() == [names.NO_VISIT] * 3
    with pytest.raises(ct.BatchConflictError) as error:
        survey.store(START, {**two, "dec": [2.1, 2.2]})
    assert "replace=True" not in str(error.value), "no detector-visit could be named"
    with pytest.raises(ct.InvalidInputError, match="no rows to store: give visit and detector") as refused:
        survey.store(START)
    assert refused.value.kind == "invalid-rows"


def test_rows_are_added_to_a_detector_visit_by_stores_of_their_own(survey: apdb.Apdb) -> None:
    first, second = other_rows(0, [1, 2]), other_rows(0, [3])
    assert survey.store_again(**first).stored
    assert not survey.store_again(**first).stored
    assert survey.store_again(**second).stored, "other ids of the same time are added"
    assert not survey.store_again(**second).stored
    assert not survey.store_again(**{
        name: rows if name == "visit_time" else pa.table(rows).take([1, 0]) for name, rows in first.items()
    }).stored, "the order of rows does not matter"  # fmt: skip
    assert set(seen_sources(survey)) == {1_001, 1_002, 1_003}
    with pytest.raises(ct.BatchConflictError, match="visit 0, detector 1 is stored with other rows"):
        survey.store_again(**second | {"sources": {**second["sources"], "psfFlux": np.array([7], "float32")}})
    assert survey.store_again(**other_rows(0, [4]) | {"visit_time": START + 0.5}).stored
    # Records with the same ids are replaced: the later store counts.
    later = other_rows(0, [1]) | {"visit_time": START + 0.7}
    later["sources"] |= {"psfFlux": np.array([7], "float32")}
    assert survey.store_again(**later).stored
    assert seen_sources(survey)[1_001][-1] == 7
    assert survey.contains(0, 1) is True
    assert survey.store_again(START, objects={"diaObjectId": [8], **PLACE}).objects == 1


def failing(monkeypatch: pytest.MonkeyPatch, kind: str) -> list[str]:
    """Have every write to the group conflict in some way; the list is filled with the names of what was written."""
    tried: list[str] = []

    def write(self: ct.Group, rows: Any, batch: str, **options: Any) -> Any:
        tried.append(batch)
        raise ct.BatchConflictError("as it is", kind=kind)

    monkeypatch.setattr(ct.Group, "write", write)
    return tried


def test_a_conflict_of_another_kind_is_reported_as_it_is(
    survey: apdb.Apdb, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    survey.store(**visit_of(0, [1]))
    survey.archive_before(START + 1_000, tmp_path, keep=True)
    tried = failing(monkeypatch, "batch-in-progress")
    for replace in (False, True):
        with pytest.raises(ct.BatchConflictError, match=r"^as it is") as error:
            survey.store(**visit_of(0, [2]), replace=replace)
        assert error.value.kind == "batch-in-progress"
    with pytest.raises(ct.BatchConflictError, match=r"^as it is"):
        survey.store_again(**other_rows(1, [1]))
    assert tried == ["0-1", "0-1", f"1-1-{values.version_of(START + 1) // 1_000}"], "nothing is tried again"


def test_a_conflict_names_the_detector_visit(survey: apdb.Apdb, monkeypatch: pytest.MonkeyPatch) -> None:
    survey.store(**visit_of(0, [1], detector=5))
    with pytest.raises(ct.BatchConflictError, match="visit 0, detector 5 is stored with other rows: pass replace=True"):
        survey.store(**visit_of(0, [2], detector=5))
    # The other rows were removed since the conflict.
    failing(monkeypatch, "batch-differs")
    with pytest.raises(ct.BatchConflictError, match="visit 1, detector 5 is stored with other rows") as error:
        survey.store(**visit_of(1, [2], detector=5))
    assert error.value.kind == "batch-differs"


# ---------------------------------------------------------------------- detector-visits of rows


def test_rows_name_their_detector_visit_or_are_given_it(survey: apdb.Apdb) -> None:
    rows = other_rows(4, [1, 2], detector=9)
    survey.store(rows["visit_time"], sources=rows["sources"])
    survey.store(START + 5, forced_sources=other_rows(5, [1], detector=8)["forced_sources"])
    survey.store(**visit_of(6, [1], detector=7))
    records = survey.visits().to_arrow().select(["visit", "detector"]).to_pylist()
    assert [tuple(each.values()) for each in records] == [(4, 9), (5, 8), (6, 7)]
    assert survey.sources()["detector"].to_pylist().count(7) == 1
    for given in ({"visit": 1}, {"detector": 1}):
        with pytest.raises(ct.InvalidInputError, match="given together") as error:
            survey.store(START, objects={"diaObjectId": [1], **PLACE}, **given)
        assert error.value.kind == "invalid-request"


@pytest.mark.parametrize(
    ("column", "numbers", "words"),
    [
        ("visit", [0, 1], "rows of DiaSource belong to visits 0 to 1, expected 0: store each"),
        ("detector", [3, 1], "rows of DiaSource belong to detectors 1 to 3, expected 1: store each"),
        ("visit", [2, 2], "rows of DiaForcedSource belong to visit 0, expected 2: store each"),
    ],
)
def test_rows_of_several_detector_visits_are_refused(
    survey: apdb.Apdb, column: str, numbers: list[int], words: str
) -> None:
    rows = other_rows(0, [1, 2])
    rows["sources"][column] = np.array(numbers)
    with pytest.raises(ct.InvalidInputError, match=words) as error:
        survey.store(**rows)
    assert error.value.kind == "invalid-rows"
    assert keys_of(survey) == []


@pytest.mark.parametrize("numbers", [[3, 5], [5, 7]])
def test_rows_of_another_visit_than_the_given_one_are_refused(survey: apdb.Apdb, numbers: list[int]) -> None:
    rows = other_rows(5, [1, 2])
    rows["sources"]["visit"] = np.array(numbers)
    with pytest.raises(ct.InvalidInputError, match=f"visits {numbers[0]} to {numbers[1]}, expected 5"):
        survey.store(**rows, visit=5, detector=1)
    assert keys_of(survey) == []


def test_stores_that_add_rows_take_those_of_several_visits(survey: apdb.Apdb) -> None:
    rows = other_rows(3, [1, 2])
    rows["sources"]["visit"] = np.array([4, 3])
    assert survey.store_again(**rows).stored
    assert sorted(survey.sources()["visit"].to_pylist()) == [3, 4]
    assert survey.visits()["visit"].to_pylist() == [3]


# ---------------------------------------------------------------------- replacement


def test_a_replaced_detector_visit_has_the_new_rows_alone(survey: apdb.Apdb, tmp_path: Path) -> None:
    survey.store(**visit_of(0, [1, 2]))
    assert survey.store(**visit_of(0, [2, 3, 4]), replace=True).stored
    assert set(seen_sources(survey)) == {1_002, 1_003, 1_004}
    assert survey.store(**visit_of(1, [1]), replace=True).stored, "nothing is there to replace"
    survey.archive_before(START + 1_000, tmp_path, keep=True)
    with pytest.raises(ct.InvalidInputError, match=r"^6 records may also be in files.*remove_visit") as error:
        survey.store(**visit_of(0, [1]), replace=True)
    assert error.value.kind == "archived-records"
    assert not survey.store(**visit_of(0, [2, 3, 4]), replace=True).stored, "the same rows are no replacement"
    assert set(seen_sources(survey)) == {1_002, 1_003, 1_004, 11_001}
    # No slice of this visit is in files.
    survey.store(**visit_of(500, [1]))
    assert survey.store(**visit_of(500, [2]), replace=True).stored


def test_a_replacement_reports_files_that_another_process_wrote_meanwhile(
    survey: apdb.Apdb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    survey.store(**visit_of(0, [1, 2]))
    write, other = ct.Group.write, apdb.open(survey.archive)

    def late(group: ct.Group, *given: Any, **options: Any) -> Any:
        other.archive_before(START + 1_000, tmp_path, keep=True)
        return write(group, *given, **options)

    monkeypatch.setattr(ct.Group, "write", late)
    with pytest.raises(ct.OutcomeUnknownError, match="remove_visit"):
        survey.store(**visit_of(0, [3]), replace=True)


# ---------------------------------------------------------------------- what is there


# Records of visits are in longer slices than sources, and stay when the slice of visit 150 is retired.
RETIRED = START + 240


def test_a_retired_detector_visit_is_not_there_any_more(survey: apdb.Apdb) -> None:
    survey.store(**visit_of(150, [1], detector=5))
    survey.store_again(**other_rows(151, [1], detector=5))
    survey.store_again(**other_rows(600, [2], detector=5))
    assert survey.contains(150, 5) is survey.contains(151, 5) is survey.contains(600, 5) is True
    survey.retire(RETIRED)
    assert set(survey.visits()["visit"].to_pylist()) == {150, 151, 600}
    assert survey.contains(150, 5) is survey.contains(151, 5) is False
    assert survey.contains(600, 5) is True
    # Rows that it has in another slice do not help.
    late = other_rows(151, [2], detector=5)
    late["visit_time"] = START + 600
    for name in ("sources", "forced_sources"):
        late[name]["midpointMjdTai"] = np.full(1, START + 600)
    survey.store_again(**late)
    assert survey.contains(151, 5) is False
    assert survey.store(**visit_of(150, [1], detector=5)).stored
    assert survey.contains(150, 5) is True


@pytest.mark.parametrize(("later_us", "there"), [(-1, True), (0, False)])
def test_a_visit_whose_slice_was_retired_up_to_an_hour_before_it_may_have_been_there(
    survey: apdb.Apdb, later_us: int, there: bool
) -> None:
    survey.store_again(**other_rows(150, [1]))
    (info,) = survey.archive.group(names.GROUP).batches()
    survey.retire(RETIRED)
    number = int((START + 150 - values.MJD_OF_UNIX_EPOCH) // 120)
    moment = info.written - timedelta(hours=1) + timedelta(microseconds=later_us)
    long_ago = (info.written - timedelta(days=9)).isoformat()
    survey.metadata.set(f"apdb:retired/DiaSource/{number}", long_ago, force=True)
    survey.metadata.set(f"apdb:retired/DiaForcedSource/{number}", moment.isoformat(), force=True)
    assert survey.contains(150, 1) is there


def test_a_visit_whose_store_has_not_ended_is_not_there(survey: apdb.Apdb, monkeypatch: pytest.MonkeyPatch) -> None:
    survey.store(**visit_of(0, [1]))
    (info,) = survey.archive.group(names.GROUP).batches()
    monkeypatch.setattr(ct.Group, "batch", lambda self, key: dataclasses.replace(info, finished=False, datasets={}))
    assert survey.contains(7, 1) is False


def test_a_visit_that_is_removed_during_the_look_is_not_there(
    survey: apdb.Apdb, monkeypatch: pytest.MonkeyPatch
) -> None:
    survey.store_again(**other_rows(0, [1]))
    monkeypatch.setattr(ct.Group, "batch", lambda self, key: None)
    assert survey.contains(0, 1) is False


# ---------------------------------------------------------------------- other tables


def test_rows_of_other_tables_take_the_time_of_their_store_unless_they_are_named(survey: apdb.Apdb) -> None:
    before = datetime.now(UTC)
    assert survey.store_table("SSObject", {"ssObjectId": [1, 2]}) == 2
    assert survey.store_table("SSObject", {"ssObjectId": [3]}, batch="day") == 1
    rows = survey.archive["ss_object"].read().to_arrow()
    assert rows.schema.field(names.STORED).type == pa.timestamp("us", "UTC")
    stored = dict(zip(rows["ssObjectId"].to_pylist(), rows[names.STORED].to_pylist(), strict=True))
    assert before - timedelta(milliseconds=1) <= stored[1] == stored[2] <= datetime.now(UTC)
    assert stored[3] == datetime(1970, 1, 1, tzinfo=UTC)
    assert survey.table("SSObject", ids=[3], columns=["ssObjectId"]).to_arrow().to_pydict() == {"ssObjectId": [3]}
    assert len(survey.table("SSObject")) == 3
    assert survey.table("SSObject").column_names == survey.schema["SSObject"].column_names
    for table in names.MAIN_TABLES:
        with pytest.raises(ct.InvalidInputError, match=f"{table} is stored by detector-visits: use store") as error:
            survey.store_table(table, {})
        assert error.value.kind == "invalid-request"
    with pytest.raises(ct.InvalidInputError, match="nObs"):
        survey.table("SSObject", columns=["nObss"])
