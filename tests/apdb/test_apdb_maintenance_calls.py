"""Maintenance does what it was asked for and reports it; removals take what they name from database and files."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
import numpy as np
from support_apdb import START, visit_of

import chronotile as ct
from chronotile import apdb
from chronotile.apdb import maintenance, names, source_counts
from chronotile.apdb.maintenance import RemovalReport

TICK = 5e-6 / 86_400
ENDS = START + 107
"""End of the slice of the first visits."""
LATER = START + 1_000
TABLES = ["dia_object", "dia_source", "dia_forced_source", "ss_object"]
OWN = ["apdb_visits", "apdb_metadata", "apdb_object_index", "apdb_feed", "apdb_updates"]


@pytest.fixture
def survey() -> Iterator[apdb.Apdb]:
    """Visits 0 and 1 of two objects, visit 1 of two detectors that lie apart, in memory, with a list of changes."""
    with apdb.create("memory:", "small", feed=True) as made:
        made.store(**visit_of(0, [1, 2]))
        made.store(**visit_of(1, [1, 2]))
        second = visit_of(1, [3], detector=2)
        for table in ("objects", "sources", "forced_sources"):
            second[table]["ra"] = np.full(1, 151.1)
        made.store(**second)
        yield made


def sources(survey: apdb.Apdb, **how: Any) -> list[int]:
    """Ids of the sources."""
    return sorted(survey.sources(columns=["diaSourceId"], **how)["diaSourceId"].to_pylist())


def visits(survey: apdb.Apdb) -> list[tuple[int, int]]:
    """Recorded detector-visits."""
    rows = survey.visits()
    return sorted(zip(rows["visit"].to_pylist(), rows["detector"].to_pylist(), strict=True))


def retirements(survey: apdb.Apdb) -> dict[str, datetime]:
    """When slices were retired, by table and number."""
    rows = survey.archive[names.METADATA].read().to_arrow().to_pylist()
    kind = "apdb:retired/"
    return {row["key"].removeprefix(kind): datetime.fromisoformat(row["value"]) for row in rows if kind in row["key"]}


# ---------------------------------------------------------------------- maintenance


def test_every_dataset_is_described_and_verified(survey: apdb.Apdb) -> None:
    info = survey.info()
    assert list(info) == list(survey.verify()) == [*TABLES, *OWN]
    assert (info["dia_source"].rows, info["apdb_visits"].rows) == (5, 3)
    with apdb.create("memory:", "small", object_index_partitions=0) as small:
        assert list(small.info()) == [*TABLES, *OWN[:2]]


def test_maintenance_merges_chunks_and_records_statistics(survey: apdb.Apdb) -> None:
    assert survey.statistics() == {}
    stages: list[tuple[str, int, int]] = []
    before = datetime.now(UTC)
    report = survey.maintain(progress=lambda *stage: stages.append(stage))
    assert list(report.consolidated) == list(report.statistics) == [*TABLES, *OWN]
    assert (report.reassociated, report.unknown, report.counts_corrected) == (0, 0, 0)
    assert report.consolidated["dia_source"].tiles > 0
    assert report.statistics["dia_source"].tile_chunks.max == 1
    assert stages[-1] == ("statistics", 0, 9)
    assert {what for what, _, _ in stages} == {"tiles", "apdb_metadata", "statistics"}
    noted = survey.statistics()
    assert before - timedelta(seconds=1) <= datetime.fromisoformat(noted["noted"]) <= datetime.now(UTC)
    info = report.statistics["dia_source"]
    assert noted["tables"]["dia_source"] == {
        "rows": 5, "chunks": info.chunks, "bytes": info.bytes, "cell_bytes_max": info.slices[0].cell_bytes_max,
    }  # fmt: skip
    assert noted["tables"]["ss_object"]["cell_bytes_max"] == 0
    assert list(noted["tables"]) == [*TABLES, *OWN]


def test_windows_that_are_still_written_and_tiles_of_few_chunks_are_left(survey: apdb.Apdb) -> None:
    report = survey.maintain(before=START)
    assert set(report.consolidated) == {*TABLES[:3], "apdb_visits", "apdb_object_index", "apdb_feed", "apdb_updates"}
    assert report.consolidated["dia_source"].tiles == 0
    assert survey.maintain(chunks_min=9).consolidated["dia_source"].tiles == 0
    assert survey.maintain(before=LATER).consolidated["dia_source"].tiles > 0
    for wrong in ({"tiles_per_s": -1.0}, {"shard": (3, 2)}):
        with pytest.raises(ct.InvalidInputError):
            survey.maintain(associations={1_001: 7}, **wrong)
    assert survey.sources()["ssObjectId"].null_count == 5, "nothing was done"


def test_none_of_several_processes_records_statistics(survey: apdb.Apdb) -> None:
    for number in (2, 1):
        report = survey.maintain(shard=(number, 2))
        assert (report.statistics, report.crowded, survey.statistics()) == ({}, [], {})


def test_associations_are_made_by_parts_in_the_order_of_time(
    survey: apdb.Apdb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "_PART", 2)
    stages: list[tuple[str, int, int]] = []
    report = survey.maintain(
        associations={1_001: 71, 11_001: 72, 5: 73, 1_002: 74, 11_002: 75}, progress=lambda *stage: stages.append(stage)
    )
    assert (report.reassociated, report.unknown) == (4, 1)
    assert [stage for stage in stages if stage[0] == "reassociation"] == [("reassociation", n, 5) for n in (0, 2, 4)]
    again = survey.maintain(associations={1_001: 71, 11_001: 79})
    assert (again.reassociated, again.unknown) == (1, 0)
    given, parts = {"diaSourceId": [11_002, 1_002, 1_001], "ssObjectId": [3, 2, 1]}, []
    given |= {"midpointMjdTai": [START + 1, START, START], "ra": [150.1] * 3, "dec": [2.1, 2.1, 2.1]}
    give = type(survey._updates).give
    monkeypatch.setattr(
        type(survey._updates), "give", lambda self, part, **how: parts.append(part) or give(self, part, **how)
    )
    survey.maintain(
        associations=given | {"ra": survey_column(survey, given, "ra"), "dec": survey_column(survey, given, "dec")}
    )
    assert [part["midpointMjdTai"].to_pylist() for part in parts] == [[START, START], [START + 1]]


def survey_column(survey: apdb.Apdb, given: dict[str, Any], name: str) -> list[float]:
    """A column of the stored sources that are given."""
    rows = survey.sources().to_arrow().to_pylist()
    found = {row["diaSourceId"]: row[name] for row in rows}
    return [found[each] for each in given["diaSourceId"]]


def test_one_of_several_processes_reports_its_changes(survey: apdb.Apdb) -> None:
    report = survey.maintain(associations={1_001: 71, 5: 72, 6: 73}, counts=True, shard=(2, 2))
    assert (report.reassociated, report.unknown, report.counts_corrected) == (1, 2, 1)
    assert set(report.consolidated) == {*TABLES, *OWN}


def test_source_counts_are_corrected_by_parts(survey: apdb.Apdb, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_counts, "PART", 2)
    stages: list[tuple[str, int, int]] = []
    report = survey.maintain(counts=True, progress=lambda *stage: stages.append(stage))
    assert report.counts_corrected == 2, "object 3 has one source, as it claims"
    assert [stage for stage in stages if stage[0] == "source counts"] == [("source counts", n, 3) for n in (0, 2)]
    rows = survey.objects(columns=["diaObjectId", "nDiaSources"]).to_arrow().sort_by("diaObjectId")
    assert rows["nDiaSources"].to_pylist() == [2, 2, 1]
    small = apdb.Schema.read("small")
    columns = tuple(each for each in small["DiaObject"].columns if each.name != names.SOURCE_COUNT)
    tables = [dataclasses.replace(t, columns=columns) if t.name == "DiaObject" else t for t in small.tables]
    with apdb.create("memory:", dataclasses.replace(small, tables=tuple(tables))) as other:
        assert other.maintain().counts_corrected == 0
        with pytest.raises(ct.InvalidInputError, match="table DiaObject has no column nDiaSources: leave out counts"):
            other.maintain(counts=True)


def test_the_first_damage_is_raised_after_everything_else_is_done(
    survey: apdb.Apdb, monkeypatch: pytest.MonkeyPatch
) -> None:
    consolidate, done = ct.Dataset.consolidate, []

    def damaged(*_: Any, **how: Any) -> Any:
        raise ct.DamagedError("a chunk is damaged", kind="damaged-chunk")

    def some_damaged(self: ct.Dataset, **how: Any) -> Any:
        if self.name in ("dia_object", "ss_object"):
            raise ct.DamagedError(f"{self.name} is damaged", kind="damaged-catalog")
        done.append(self.name)
        return consolidate(self, **how)

    with monkeypatch.context() as patch:
        patch.setattr(ct.Dataset, "count_by", damaged)
        with pytest.raises(ct.DamagedError, match="a chunk is damaged"):
            survey.maintain(counts=True)
    assert survey.info()["dia_source"].tile_chunks.max == 1, "merged all the same"
    with monkeypatch.context() as patch:
        patch.setattr(ct.Group, "consolidate", damaged)
        patch.setattr(ct.Dataset, "consolidate", some_damaged)
        with pytest.raises(ct.DamagedError, match="dia_object is damaged"):
            survey.maintain()
    assert done == ["dia_source", "dia_forced_source", *OWN]
    assert survey.statistics() == {}


def test_partitions_that_exceed_the_limit_are_reported() -> None:
    with apdb.create("memory:", "small", cell_bytes_max=1) as survey:
        assert survey.crowded() == []
        for number in (0, 590, 600):
            survey.store(**visit_of(number, [1] if number else [1, 2, 3]))
        tables = {*names.MAIN_TABLES, names.OBJECT_INDEX}
        assert {each.table for each in survey.crowded()} == tables
        report = survey.maintain()
        assert report.crowded == survey.crowded()
        largest = {part.cell_bytes_max for part in report.statistics["dia_source"].slices}
        assert survey.statistics()["tables"]["dia_source"]["cell_bytes_max"] == max(largest) > min(largest)
        # A slice that will be full is judged by the part of it that has passed when the last visit was.
        first, last = (each for each in report.crowded if each.table == "DiaSource")
        passed = (START + 600 - last.start) / (last.end - last.start)
        assert 0.1 < passed < 0.9
        assert (first.expected, last.expected) == (first.bytes, round(last.bytes / passed))
    with apdb.create("memory:", "small", cell_bytes_max=1, object_index_partitions=0) as survey:
        survey.store(**visit_of(0, [1]))
        assert {each.table for each in survey.crowded()} == {*names.MAIN_TABLES}


def test_slices_are_prepared_for_a_period(survey: apdb.Apdb, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, tuple[float, float]] = {}
    monkeypatch.setattr(ct.Dataset, "prepare", lambda self, *period: asked.update({self.name: period}))
    survey.prepare(LATER, LATER + 9)
    assert asked == dict.fromkeys({*TABLES[:3], *OWN} - {"apdb_metadata"}, (LATER, LATER + 9))


# ---------------------------------------------------------------------- retirement


def test_slices_are_retired_with_a_note_that_comes_first(survey: apdb.Apdb, monkeypatch: pytest.MonkeyPatch) -> None:
    survey.store(**visit_of(150, [1]))
    assert all(slices == [] for slices in survey.retire(ENDS - TICK).values())
    planned = survey.retire(ENDS, dry_run=True)
    assert (retirements(survey), len(sources(survey))) == ({}, 6)
    retire, seen = ct.Group.retire, []

    def spy(self: ct.Group, datasets: Any, **how: Any) -> Any:
        seen.append(set(retirements(survey)))
        return retire(self, datasets, **how)

    monkeypatch.setattr(ct.Group, "retire", spy)
    dropped = survey.retire(ENDS)
    assert {name: [part.slice for part in parts] for name, parts in dropped.items()} == {
        "dia_source": [170], "dia_forced_source": [170], "apdb_visits": [56]
    }  # fmt: skip
    assert planned.keys() == dropped.keys()
    assert seen == [set(), {"DiaSource/170", "DiaForcedSource/170"}]
    assert sources(survey) == [1_501_001]
    assert len(survey.objects()) == 3, "versions of objects stay"
    assert set(retirements(survey)) == seen[1]
    dropped = survey.retire(LATER, objects=True)
    assert set(dropped) == {"dia_object", "dia_source", "dia_forced_source", "apdb_visits", "apdb_object_index"}
    assert dropped["apdb_object_index"] != []
    assert len(survey.objects()) == 0
    assert set(retirements(survey)) == {
        *seen[1],
        "DiaSource/171",
        "DiaForcedSource/171",
        "DiaObject/56",
        "DiaObject/57",
    }


def test_the_index_stays_where_its_retirement_is_only_planned(survey: apdb.Apdb) -> None:
    planned = survey.retire(LATER, objects=True, dry_run=True)
    assert planned["dia_object"] != []
    assert sources(survey, object_ids=[1]) == [1_001, 11_001]
    with apdb.create("memory:", "small", object_index_partitions=0) as other:
        assert "apdb_object_index" not in other.retire(LATER, objects=True)


def test_a_slice_that_is_first_written_to_meanwhile_is_noted_once(
    survey: apdb.Apdb, monkeypatch: pytest.MonkeyPatch
) -> None:
    retire, moments = ct.Group.retire, []

    def late(self: ct.Group, datasets: Any, **how: Any) -> Any:
        if "dry_run" not in how:
            moments.append(retirements(survey))
            survey.store(**visit_of(150, [1]))
        return retire(self, datasets, **how)

    monkeypatch.setattr(ct.Group, "retire", late)
    survey.retire(LATER)
    found = retirements(survey)
    assert set(found) == {f"{table}/{number}" for table in ("DiaSource", "DiaForcedSource") for number in (170, 171)}
    assert {key: found[key] for key in moments[0]} == moments[0], "the first note stays"


# ---------------------------------------------------------------------- removal


def test_a_visit_is_removed_of_one_detector_or_of_all(survey: apdb.Apdb) -> None:
    assert survey.remove_visit(1, dry_run=True) == RemovalReport(2, 9)
    assert survey.remove_visit(1, 2, dry_run=True) == RemovalReport(1, 3)
    assert survey.remove_visit(9, dry_run=True) == survey.remove_visit(9) == RemovalReport(0, 0)
    assert len(sources(survey)) == 5
    assert survey.remove_visit(1, 2) == RemovalReport(1, 3)
    assert sources(survey) == [1_001, 1_002, 11_001, 11_002]
    assert survey.remove_visit(1, 2) == RemovalReport(0, 0)
    assert survey.remove_visit(1) == RemovalReport(1, 6)
    assert (sources(survey), visits(survey)) == ([1_001, 1_002], [(0, 1)])
    assert survey.store(**visit_of(1, [1, 2])).stored


def test_a_night_is_removed_from_noon_to_noon(survey: apdb.Apdb) -> None:
    # TAI is 37 seconds ahead of UTC, in which nights begin.
    noon = START + 10.5 + 37 / 86_400
    for number, time in enumerate((noon - TICK, noon, noon + 1 - TICK, noon + 1), 10):
        visit = visit_of(number, [1])
        for name in ("sources", "forced_sources"):
            visit[name]["midpointMjdTai"] = np.full(1, time)
        survey.store(**visit | {"visit_time": time})
    assert survey.remove_night(START + 10, dry_run=True) == RemovalReport(2, 6)
    assert survey.remove_night(START + 10) == RemovalReport(2, 6)
    assert visits(survey) == [(0, 1), (1, 1), (1, 2), (10, 1), (13, 1)]
    assert survey.remove_night(START + 50, dry_run=True) == RemovalReport(0, 0)


def test_a_night_is_removed_from_files_from_noon_to_noon(tmp_path: Path) -> None:
    noon = START + 10.5 + 37 / 86_400
    with apdb.create("memory:", "small") as survey, apdb.create("memory:", "small") as other:
        for number, time in enumerate((noon - 0.1, noon, noon + 1 - TICK, noon + 1, noon + 1.9), 10):
            visit = visit_of(number, [1])
            for name in ("sources", "forced_sources"):
                visit[name]["midpointMjdTai"] = np.full(1, time)
            survey.store(**visit | {"visit_time": time})
        survey.archive_before(LATER, tmp_path)
        # A database that never knew the visits.
        assert other.remove_night(START + 10, archived=tmp_path) == RemovalReport(2, 4)
        assert sources(other, archived=tmp_path) == [101_001, 131_001, 141_001]


def test_what_an_interrupted_store_left_is_removed(survey: apdb.Apdb, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, removed = ct.Group.batch, []
    begun = dataclasses.replace(survey.archive.group(names.GROUP).batches()[0], finished=False, datasets={})
    monkeypatch.setattr(ct.Group, "batch", lambda self, key: begun if key == "7-2" else batch(self, key))
    monkeypatch.setattr(ct.Group, "remove_batch", lambda self, key: removed.append(key))
    assert survey.remove_visit(7, 2, dry_run=True) == RemovalReport(1, 0)
    assert survey.remove_visit(7, 2) == RemovalReport(1, 0)
    assert survey.remove_visit(7, 1) == survey.remove_visit(7) == RemovalReport(0, 0)
    assert removed == ["7-2"]


def changes_of(kind: str, survey: apdb.Apdb) -> int:
    """Change records of visit 1, detector 1; return how many."""
    if kind == "withdrawn":
        return survey.withdraw_sources([11_001, 11_002], START)
    if kind == "withdrawn forced":
        return survey.withdraw_forced_sources({"diaObjectId": [1], "visit": [1], "detector": [1]}, START)
    if kind == "closed":
        return survey.close_validity([1], START + 9)
    return survey.reassociate({11_001: 7})


@pytest.mark.parametrize("kind", ["withdrawn", "withdrawn forced", "closed", "reassociated"])
def test_records_that_changed_are_deleted_on_request(survey: apdb.Apdb, kind: str) -> None:
    count = changes_of(kind, survey)
    words = f"^{count} records? changed since the store .*changed=True"
    for remove in (lambda **how: survey.remove_visit(1, 1, **how), lambda **how: survey.remove_night(START, **how)):
        with pytest.raises(ct.InvalidInputError, match=words) as error:
            remove()
        assert error.value.kind == "changed-records"
    assert len(sources(survey)) == 5
    assert survey.remove_visit(0).detector_visits == 1, "those of other visits do not matter"
    assert survey.remove_visit(1, 1, changed=True).detector_visits == 1
    assert sources(survey) == [12_003]
    assert len(survey.forced_sources()) == 1
    assert survey.objects()["diaObjectId"].to_pylist() == [3]


def test_records_that_changed_and_were_deleted_do_not_prevent_a_removal(survey: apdb.Apdb) -> None:
    survey.close_validity([1], START + 9)
    survey.withdraw_sources([11_001], START)
    survey.delete("DiaObject", [1])
    survey.delete("DiaSource", [11_001])
    assert survey.remove_visit(1, 1).detector_visits == 1
    assert sources(survey) == [1_001, 1_002, 12_003]


@pytest.mark.parametrize("part", ["sources", "forced_sources"])
def test_changed_objects_of_another_detector_stay(survey: apdb.Apdb, part: str) -> None:
    # Object 4 lies in the same pixels and was seen at the same time, by another detector or by both.
    other = visit_of(1, [1, 4], detector=5)
    survey.store(**other | {name: None for name in ("sources", "forced_sources") if name != part})
    assert survey.close_validity([1, 2, 4], START + 9) == 3
    # It belongs to no object any more.
    given = survey.reassociate({15_004: 7}, missing="ignore")
    with pytest.raises(ct.InvalidInputError, match=r"^1 record changed since the store"):
        survey.remove_visit(1, 1)
    assert survey.remove_visit(1, 1, changed=True).detector_visits == 1
    closed = survey.objects(closed=True).to_arrow().sort_by("diaObjectId")
    assert closed["diaObjectId"].to_pylist() == [1, 3, 4]
    assert closed["validityEndMjdTai"].to_pylist() == [START + 9, None, START + 9]
    with pytest.raises(ct.InvalidInputError, match=f"^{2 + given} records changed since the store"):
        survey.remove_visit(1)
    assert survey.remove_visit(1, changed=True).detector_visits == 2
    assert survey.objects(closed=True)["diaObjectId"].to_pylist() == []


def test_changed_records_are_deleted_before_a_removal_that_is_interrupted(
    survey: apdb.Apdb, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without its record, nobody would know to which detector-visit they belonged.
    survey.withdraw_sources([11_001], START)
    with monkeypatch.context() as patch:
        patch.setattr(ct.Group, "remove_batch", lambda self, key: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            survey.remove_visit(1, 1, changed=True)
    assert sources(survey) == [1_001, 1_002, 11_002, 12_003]
    assert survey.remove_visit(1, 1).detector_visits == 1
    assert sources(survey) == [1_001, 1_002, 12_003]


def test_changed_records_are_found_in_the_pixels_of_their_table_and_behind_newer_ones(survey: apdb.Apdb) -> None:
    visit = visit_of(2, [5])
    for number, name in enumerate(("objects", "sources", "forced_sources")):
        visit[name] |= {"ra": np.full(1, 150.0 + number), "dec": np.full(1, 2.0)}
    survey.store(**visit)
    survey.withdraw_sources([21_005], START)
    survey.withdraw_forced_sources({"diaObjectId": [5], "visit": [2], "detector": [1]}, START)
    survey.close_validity([5], START + 9)
    survey.store(START + 3, objects=visit["objects"])
    with pytest.raises(ct.InvalidInputError, match=r"^3 records changed since the store"):
        survey.remove_visit(2)
    assert survey.remove_visit(2, changed=True).detector_visits == 1
    assert len(sources(survey)) == len(survey.forced_sources()) == 5


def test_records_that_change_during_a_removal_are_deleted_too(
    survey: apdb.Apdb, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove, other = ct.Group.remove_batch, apdb.open(survey.archive)

    def late(self: ct.Group, key: str) -> int:
        other.withdraw_sources([11_001], START)
        return remove(self, key)

    monkeypatch.setattr(ct.Group, "remove_batch", late)
    assert survey.remove_visit(1, 1).detector_visits == 1
    assert sources(survey) == [1_001, 1_002, 12_003]


def test_a_visit_that_another_process_removes_meanwhile_is_not_counted(
    survey: apdb.Apdb, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = ct.Group.remove_batch

    def twice(self: ct.Group, key: str) -> int:
        remove(self, key)
        return remove(self, key)

    monkeypatch.setattr(ct.Group, "remove_batch", twice)
    assert survey.remove_visit(0) == RemovalReport(0, 0)
    assert visits(survey) == [(1, 1), (1, 2)]


# ---------------------------------------------------------------------- removal from files


def test_a_visit_whose_rows_left_the_database_is_removed_from_files_on_request(
    survey: apdb.Apdb, tmp_path: Path
) -> None:
    survey.archive_before(LATER, tmp_path)
    with pytest.raises(ct.InvalidInputError, match=r"^4 records left the database: .*archived=FOLDER") as error:
        survey.remove_visit(0)
    assert error.value.kind == "archived-records"
    assert survey.remove_visit(0, archived=tmp_path) == RemovalReport(1, 6)
    assert sources(survey, archived=tmp_path) == [11_001, 11_002, 12_003]
    assert survey.remove_visit(1, 2, archived=False) == RemovalReport(1, 1), "the versions of objects alone"
    assert sources(survey, archived=tmp_path) == [11_001, 11_002, 12_003]
    # The database does not know the detector any more; the file does.
    assert survey.remove_visit(1, 2, archived=tmp_path) == RemovalReport(1, 2)
    assert survey.remove_night(START, archived=tmp_path) == RemovalReport(1, 6)
    assert sources(survey, archived=tmp_path) == []
    with pytest.raises(ct.DataFileError, match="no such folder"):
        survey.remove_visit(0, archived=tmp_path / "nothing")


def test_a_visit_that_may_be_in_files_too_is_removed_from_both(survey: apdb.Apdb, tmp_path: Path) -> None:
    survey.archive_before(LATER, tmp_path, keep=True)
    survey.store(**visit_of(600, [1]))
    assert survey.remove_visit(600) == RemovalReport(1, 3), "its slices are in no file"
    with pytest.raises(ct.InvalidInputError, match=r"^6 records may also be in files") as error:
        survey.remove_visit(1)
    assert error.value.kind == "archived-records"
    assert survey.remove_visit(1, 1, archived=tmp_path) == RemovalReport(1, 10)
    assert sources(survey, archived=tmp_path) == [1_001, 1_002, 12_003]
    survey.store(START + 2, visit=2, detector=1)
    assert survey.remove_visit(2, archived=tmp_path) == RemovalReport(1, 0), "one without detections"
    assert survey.remove_visit(1, archived=False) == RemovalReport(1, 3)
    assert sources(survey, archived=tmp_path) == [1_001, 1_002, 12_003]


def test_restored_rows_count_as_changed(survey: apdb.Apdb, tmp_path: Path) -> None:
    survey.archive_before(LATER, tmp_path)
    survey.restore(tmp_path)
    with pytest.raises(ct.InvalidInputError, match=r"^4 records changed since the store .*or restored"):
        survey.remove_visit(0)
    with pytest.raises(ct.InvalidInputError, match=r"^4 records may also be in files"):
        survey.remove_visit(0, changed=True)
    assert survey.remove_visit(0, changed=True, archived=tmp_path) == RemovalReport(1, 6)
    assert sources(survey) == sources(survey, archived=tmp_path) == [11_001, 11_002, 12_003]
    # Those that moved to files again are not in the database.
    survey.archive_before(LATER, tmp_path)
    with pytest.raises(ct.InvalidInputError, match=r"^4 records left the database"):
        survey.remove_visit(1, 1, changed=True)


def test_a_visit_over_two_slices_of_which_one_is_restored_has_rows_in_files(survey: apdb.Apdb, tmp_path: Path) -> None:
    visit = visit_of(106, [1, 2])
    for name in ("sources", "forced_sources"):
        visit[name]["midpointMjdTai"] = np.array([ENDS - 0.1, ENDS + 0.1])
    survey.store(**visit)
    survey.archive_before(LATER, tmp_path)
    survey.restore(tmp_path, end=ENDS)
    with pytest.raises(ct.InvalidInputError, match=r"^4 records left the database"):
        survey.remove_visit(106, changed=True)
    with pytest.raises(ct.InvalidInputError, match=r"^2 records changed since the store"):
        survey.remove_visit(106)
    assert survey.remove_visit(106, changed=True, archived=tmp_path) == RemovalReport(1, 6)
    assert sources(survey, archived=tmp_path) == [1_001, 1_002, 11_001, 11_002, 12_003]


@pytest.mark.parametrize("archived", [None, False])
def test_a_removal_reports_files_that_another_process_wrote_meanwhile(
    survey: apdb.Apdb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, archived: Any
) -> None:
    remove, other = ct.Group.remove_batch, apdb.open(survey.archive)

    def late(self: ct.Group, key: str) -> int:
        other.archive_before(LATER, tmp_path, keep=True)
        return remove(self, key)

    monkeypatch.setattr(ct.Group, "remove_batch", late)
    if archived is False:
        assert survey.remove_visit(0, archived=False) == RemovalReport(1, 6)
    else:
        with pytest.raises(ct.OutcomeUnknownError, match="repeat, and pass archived=FOLDER"):
            survey.remove_visit(0)
