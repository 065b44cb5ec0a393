"""Slices that move to files, are dropped or come back, beside writers and changes; counts after a kill."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
import numpy as np
import pyarrow.parquet as pq
from support_apdb import FIELD, START, seen_objects, seen_sources, visit_of

import chronotile as ct
from chronotile import apdb
from chronotile.apdb.maintenance import Maintenance

LATER = START + 1_000


@pytest.fixture
def survey(path: Path) -> Iterator[apdb.Apdb]:
    with apdb.create(path, "small") as made:
        yield made


def refusal_of_another(path: Path, cold: Path) -> str:
    """Why another process may not archive into the folder now."""
    with apdb.open(path) as other, pytest.raises(ct.BusyError) as refusal:
        other.archive_before(LATER, cold)
    return refusal.value.kind


def everything(database: apdb.Apdb, cold: Path) -> tuple[Any, Any]:
    """Sources and forced sources of database and files, as far as they can change."""
    forced = database.forced_sources(FIELD, archived=cold, columns=["diaObjectId", "visit", "detector", "psfFlux"])
    order = [("diaObjectId", "ascending"), ("visit", "ascending")]
    return seen_sources(database, archived=cold), forced.to_arrow().sort_by(order).to_pylist()


def test_a_slice_that_is_archived_again_keeps_what_its_file_had(survey: apdb.Apdb, tmp_path: Path) -> None:
    cold = tmp_path / "cold"
    survey.store(**visit_of(0, [1, 2, 3]))
    survey.store(**visit_of(1, [1, 2, 3]))
    survey.withdraw_sources([1_001], START + 2)
    assert sum(part.rows for part in survey.archive_before(LATER, cold)) == 12
    before = everything(survey, cold)
    # Late rows, and the same again.
    survey.store(**visit_of(2, [4, 5]))
    assert survey.store(**visit_of(0, [1, 2, 3])).stored
    assert everything(survey, cold)[0].items() > before[0].items(), "a file's newer version is the one that counts"
    expected = everything(survey, cold)
    for _ in range(2):
        survey.archive_before(LATER, cold)
        assert len(survey.sources()) == len(survey.forced_sources()) == 0
        assert everything(survey, cold) == expected
        assert [pq.read_metadata(part.path).num_rows for part in survey.archived(cold)] == [8, 8]
    for _ in range(2):
        assert [part.rows for part in survey.restore(cold)] == [8, 8]
        assert seen_sources(survey) == expected[0]
        survey.archive_before(LATER, cold)
        assert everything(survey, cold) == expected
    assert all(report.ok for report in survey.verify().values())


def between(database: apdb.Apdb, monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any]) -> None:
    """Do something once, when the first file is written and its slice not dropped yet."""
    retire, done = ct.Group.retire, []

    def late(self: ct.Group, datasets: Any, **how: Any) -> Any:
        if how.get("unchanged") and not done:
            done.append(act())
        return retire(self, datasets, **how)

    monkeypatch.setattr(ct.Group, "retire", late)


def test_what_is_stored_or_changed_while_a_slice_is_archived_stays(
    survey: apdb.Apdb, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    survey.store(**visit_of(0, [1, 2, 3]))
    done: list[Any] = []
    with apdb.open(path) as other:

        def act() -> None:
            done.append(other.store(**visit_of(1, [4, 5])).stored)
            done.append(other.withdraw_sources([1_001], START + 2))
            done.append(other.delete("DiaSource", [1_002], archived=False))

        between(survey, monkeypatch, act)
        survey.archive_before(LATER, tmp_path / "cold")
    assert done == [True, 1, 1]
    found = everything(survey, tmp_path / "cold")
    assert set(found[0]) == {1_001, 1_003, 11_004, 11_005}
    assert found[0][1_001][2] == START + 2
    assert len(found[1]) == 5
    assert len(survey.sources()) == 0
    assert survey.contains(1, 1)


@pytest.mark.parametrize("before", [False, True], ids=["no file before", "a file before"])
def test_a_visit_that_is_removed_while_its_slice_is_archived_is_in_no_file(
    survey: apdb.Apdb, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    cold = tmp_path / "cold"
    if before:
        survey.store(**visit_of(2, [1, 2]))
        survey.archive_before(LATER, cold)
    for number in range(2):
        survey.store(**visit_of(number, [1, 2, 3]))
    with apdb.open(path) as other:
        between(survey, monkeypatch, lambda: other.remove_visit(1, archived=False).rows)
        survey.archive_before(LATER, cold)
    assert set(everything(survey, cold)[0]) == {1_001, 1_002, 1_003} | ({21_001, 21_002} if before else set())
    assert len(everything(survey, cold)[1]) == (5 if before else 3)
    assert len(survey.sources()) == 0


def test_a_slice_that_others_keep_writing_to_is_left_and_said_so(
    survey: apdb.Apdb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    survey.store(**visit_of(0, [1, 2, 3]))
    retire, number = ct.Group.retire, iter(range(1, 100))

    def late(self: ct.Group, datasets: Any, **how: Any) -> Any:
        if how.get("unchanged"):
            survey.store(**visit_of(next(number), [4, 5]))
        return retire(self, datasets, **how)

    monkeypatch.setattr(ct.Group, "retire", late)
    with pytest.raises(ct.BusyError, match="DiaSource and DiaForcedSource were archived but not dropped") as error:
        survey.archive_before(LATER, tmp_path / "cold")
    assert error.value.kind == "slice-in-use"
    monkeypatch.undo()
    stored = next(number) - 1
    assert len(survey.sources()) == 3 + 2 * stored
    survey.archive_before(LATER, tmp_path / "cold")
    assert len(survey.sources()) == 0
    assert len(everything(survey, tmp_path / "cold")[0]) == 3 + 2 * stored


def test_stores_of_another_thread_while_slices_move_to_files_are_all_there(
    survey: apdb.Apdb, path: Path, tmp_path: Path
) -> None:
    stored, ended = [], threading.Event()

    def store() -> None:
        with apdb.open(path) as other:
            for number in range(1, 30):
                if other.store(**visit_of(number, [number, number + 1])).stored:
                    stored.append(number)
                # Now and then a slice is left alone long enough to be dropped.
                time.sleep(0.4 if number % 10 == 0 else 0)
        ended.set()

    survey.store(**visit_of(0, [1]))
    writer = threading.Thread(target=store)
    writer.start()
    moved = 0
    while not ended.is_set():
        try:
            moved += len(survey.archive_before(LATER, tmp_path / "cold"))
        except ct.BusyError:
            continue
    writer.join()
    moved += len(survey.archive_before(LATER, tmp_path / "cold"))
    found = everything(survey, tmp_path / "cold")
    assert stored == list(range(1, 30))
    assert moved > 0
    assert len(found[0]) == len(found[1]) == 59


def test_two_that_archive_to_one_folder_at_once_lose_no_row(
    survey: apdb.Apdb, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slice may go, with the rows in the other's file, after the first has seen that there is no file."""
    cold, replace, others = tmp_path / "cold", apdb.cold._replace, []
    for number in range(3):
        survey.store(**visit_of(number, [1, 2, 3]))
    expected = seen_sources(survey)
    monkeypatch.setattr(apdb.cold, "_LOCK_WAIT_S", 0.2)

    def meanwhile(where: Path, schema: Any, parts: Callable[[], Iterator[Any]]) -> Any:
        def late() -> Iterator[Any]:
            rows = parts()
            first = next(rows, None)
            if not others:
                others.append(True)
                others.append(refusal_of_another(path, cold))
            if first is not None:
                yield first
            yield from rows

        return replace(where, schema, late)

    monkeypatch.setattr(apdb.cold, "_replace", meanwhile)
    survey.archive_before(LATER, cold)
    assert others == [True, "folder-in-use"]
    assert everything(survey, cold)[0] == expected
    assert len(survey.sources()) == 0
    with pytest.raises(ct.DataFileError, match="no such folder"):
        survey.delete("DiaSource", [1_001], archived=tmp_path / "cald")
    with pytest.raises(ct.InvalidInputError, match="archived"):
        survey.sources(archived=True)


def test_a_file_is_not_put_back_without_late_rows_by_a_removal(
    survey: apdb.Apdb, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A removal reads a file that somebody replaces before it writes."""
    cold, groups, done = tmp_path / "cold", apdb.cold._groups, []
    survey.store(**visit_of(0, [1, 2, 3]))
    survey.archive_before(LATER, cold)
    survey.store(**visit_of(1, [4, 5]))
    monkeypatch.setattr(apdb.cold, "_LOCK_WAIT_S", 0.2)

    def meanwhile(batches: Iterator[Any]) -> Iterator[Any]:
        for group in groups(batches):
            if not done:
                done.append(True)
                done.append(refusal_of_another(path, cold))
            yield group

    monkeypatch.setattr(apdb.cold, "_groups", meanwhile)
    assert survey.delete("DiaSource", [1_001], archived=cold) == 1
    assert done == [True, "folder-in-use"]
    assert set(everything(survey, cold)[0]) == {1_002, 1_003, 11_004, 11_005}


def during_removal(monkeypatch: pytest.MonkeyPatch, act: Callable[[], Any]) -> list[Any]:
    """Do something once, after the files were searched for a detector-visit and before its rows are removed."""
    drop, done = Maintenance._drop, []

    def late(self: Maintenance, key: str) -> bool:
        if not done:
            done.append(act())
        return drop(self, key)

    monkeypatch.setattr(Maintenance, "_drop", late)
    return done


def test_a_visit_does_not_go_to_files_of_a_folder_while_it_is_removed_from_them(
    survey: apdb.Apdb, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cold = tmp_path / "cold"
    for number in range(2):
        survey.store(**visit_of(number, [1, 2, 3]))
    assert survey.archive_before(START - 1_000, cold) == []
    monkeypatch.setattr(apdb.cold, "_LOCK_WAIT_S", 0.2)
    done = during_removal(monkeypatch, lambda: refusal_of_another(path, cold))
    survey.remove_visit(0, archived=cold)
    assert done == ["folder-in-use"]
    survey.archive_before(LATER, cold)
    assert set(everything(survey, cold)[0]) == {11_001, 11_002, 11_003}
    survey.restore(cold)
    assert set(seen_sources(survey)) == {11_001, 11_002, 11_003}


@pytest.mark.parametrize("keep", [False, True])
def test_a_removal_reports_files_that_another_process_wrote_meanwhile(
    survey: apdb.Apdb, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    cold = tmp_path / "cold"
    for number in range(2):
        survey.store(**visit_of(number, [1, 2, 3]))

    def archive() -> int:
        with apdb.open(path) as other:
            return len(other.archive_before(LATER, cold, keep=keep))

    with monkeypatch.context() as patch:
        done = during_removal(patch, archive)
        with pytest.raises(ct.OutcomeUnknownError, match=f"copied their slices to files in {cold}") as error:
            survey.remove_visit(0)
    assert (done, error.value.kind) == ([2], "outcome-unknown")
    assert not survey.contains(0, 1)
    assert len(survey.sources(archived=cold)) == 6
    done = survey.remove_visit(0, archived=cold)
    assert (done.detector_visits, done.rows) == (1, 6)
    assert set(everything(survey, cold)[0]) == {11_001, 11_002, 11_003}


def test_a_deletion_reports_files_that_another_process_wrote_meanwhile(
    survey: apdb.Apdb, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cold, write, done = tmp_path / "cold", ct.Group.write, []
    survey.store(**visit_of(0, [1, 2, 3]))

    def late(self: ct.Group, data: Any, batch: str | None = None, **options: Any) -> Any:
        if not done:
            with apdb.open(path) as other:
                done.append(len(other.archive_before(LATER, cold, keep=True)))
        return write(self, data, batch, **options)

    with monkeypatch.context() as patch:
        patch.setattr(ct.Group, "write", late)
        with pytest.raises(ct.OutcomeUnknownError, match="repeat, and pass archived=FOLDER"):
            survey.delete("DiaSource", [1_001])
    assert done == [2]
    assert survey.delete("DiaSource", [1_001], archived=cold) == 1
    survey.retire(LATER)
    assert set(seen_sources(survey, archived=cold)) == {1_002, 1_003}


def test_a_removal_that_is_interrupted_after_it_searched_the_files_is_repeated(
    survey: apdb.Apdb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cold = tmp_path / "cold"
    for number in range(2):
        survey.store(**visit_of(number, [1, 2, 3]))
    survey.archive_before(LATER, cold, keep=True)

    def fail() -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        during_removal(patch, fail)
        with pytest.raises(KeyboardInterrupt):
            survey.remove_visit(0, archived=cold)
    done = survey.remove_visit(0, archived=cold)
    assert (done.detector_visits, done.rows) == (1, 9)
    assert set(everything(survey, cold)[0]) == {11_001, 11_002, 11_003}


def archived_and_stored_again(survey: apdb.Apdb, cold: Path) -> None:
    survey.archive_before(LATER, cold)
    assert survey.store(**visit_of(0, [1, 2, 3])).stored


def kept(survey: apdb.Apdb, cold: Path) -> None:
    survey.archive_before(LATER, cold, keep=True)


def archived_and_restored(survey: apdb.Apdb, cold: Path) -> None:
    survey.archive_before(LATER, cold)
    survey.restore(cold)


IN_BOTH = pytest.mark.parametrize("prepare", [archived_and_stored_again, kept, archived_and_restored])
"""Ways in which a file and the database come to have the rows of visit 0."""


@IN_BOTH
def test_a_visit_that_files_have_too_is_removed_from_both_or_from_neither(
    survey: apdb.Apdb, tmp_path: Path, prepare: Callable[[apdb.Apdb, Path], None]
) -> None:
    cold = tmp_path / "cold"
    for number in range(2):
        survey.store(**visit_of(number, [1, 2, 3]))
    prepare(survey, cold)
    expected = everything(survey, cold)
    for remove in (lambda: survey.remove_visit(0, changed=True), lambda: survey.remove_night(START - 1, changed=True)):
        with pytest.raises(ct.InvalidInputError, match=f"6 records may also be in files .* to {cold}: pass") as error:
            remove()
        assert error.value.kind == "archived-records"
    assert everything(survey, cold) == expected
    survey.remove_visit(0, changed=True, archived=cold)
    assert set(everything(survey, cold)[0]) == {11_001, 11_002, 11_003}
    # Neither the loss of deletion marks with their slice nor a restoration brings it back.
    survey.retire(LATER)
    assert set(everything(survey, cold)[0]) == {11_001, 11_002, 11_003}
    assert survey.restore(cold)
    assert set(seen_sources(survey)) == {11_001, 11_002, 11_003}


@IN_BOTH
def test_a_record_that_files_have_too_is_deleted_from_both_or_from_neither(
    survey: apdb.Apdb, tmp_path: Path, prepare: Callable[[apdb.Apdb, Path], None]
) -> None:
    cold = tmp_path / "cold"
    survey.store(**visit_of(0, [1, 2, 3]))
    prepare(survey, cold)
    forced = survey.forced_sources(object_ids=[1]).to_arrow()
    with pytest.raises(ct.InvalidInputError, match=f"1 record may also be in files .* to {cold}: pass") as error:
        survey.delete("DiaSource", [1_001])
    assert error.value.kind == "archived-records"
    with pytest.raises(ct.InvalidInputError, match="1 record may also be in files"):
        survey.delete("DiaForcedSource", forced)
    assert len(survey.sources(archived=cold)) == len(survey.forced_sources(archived=cold)) == 3
    assert survey.delete("DiaSource", [1_001], archived=cold) == 1
    assert survey.delete("DiaForcedSource", forced, archived=cold) == 1
    survey.retire(LATER)
    assert set(seen_sources(survey, archived=cold)) == {1_002, 1_003}
    survey.restore(cold)
    assert (set(seen_sources(survey)), len(survey.forced_sources())) == ({1_002, 1_003}, 2)


@IN_BOTH
def test_rows_that_a_replaced_visit_had_do_not_return_from_files(
    survey: apdb.Apdb, tmp_path: Path, prepare: Callable[[apdb.Apdb, Path], None]
) -> None:
    cold = tmp_path / "cold"
    survey.store(**visit_of(0, [1, 2, 3]))
    prepare(survey, cold)
    expected = everything(survey, cold)
    survey.store(**visit_of(0, [1, 2, 3]), replace=True)
    with pytest.raises(ct.InvalidInputError, match=r"6 records may also be in files .* then store it") as error:
        survey.store(**visit_of(0, [1, 2], seed=1), replace=True)
    assert error.value.kind == "archived-records"
    assert everything(survey, cold) == expected
    survey.remove_visit(0, changed=True, archived=cold)
    new = visit_of(0, [4, 5], seed=1)
    assert survey.store(**new, replace=True).stored
    assert set(everything(survey, cold)[0]) == {1_004, 1_005}


@pytest.mark.parametrize("night", [False, True])
def test_a_visit_that_only_files_have_is_removed_from_them(survey: apdb.Apdb, tmp_path: Path, night: bool) -> None:
    cold = tmp_path / "cold"
    for number in range(2):
        for detector in (1, 2):
            survey.store(**visit_of(number, [1, 2, 3], detector))
    survey.archive_before(LATER, cold, keep=True)
    survey.retire(LATER)
    done = survey.remove_night(START - 1, archived=cold) if night else survey.remove_visit(0, archived=cold)
    assert (done.detector_visits, done.rows) == (2, 18), "with the versions of objects"
    assert set(everything(survey, cold)[0]) == {11_001, 11_002, 11_003, 12_001, 12_002, 12_003}
    done = survey.remove_visit(1, 2, archived=cold)
    assert (done.detector_visits, done.rows) == (1, 9)
    assert set(everything(survey, cold)[0]) == {11_001, 11_002, 11_003}


def test_a_visit_that_the_database_knows_stays_in_files_when_another_night_is_removed(
    survey: apdb.Apdb, tmp_path: Path
) -> None:
    cold = tmp_path / "cold"
    for number in range(2):
        visit = visit_of(number, [1, 2, 3])
        # The sources of the second visit carry a time in the first night.
        for rows in (visit["sources"], visit["forced_sources"]):
            rows |= {"midpointMjdTai": np.full(3, START + number / 4)}
        survey.store(**visit)
    survey.archive_before(LATER, cold)
    assert survey.remove_night(START - 1, archived=cold).detector_visits == 1
    assert set(everything(survey, cold)[0]) == {11_001, 11_002, 11_003}


def test_a_database_without_notes_learns_of_files_when_they_are_restored(survey: apdb.Apdb, tmp_path: Path) -> None:
    cold = tmp_path / "cold"
    survey.store(**visit_of(0, [1, 2, 3]))
    survey.archive_before(LATER, cold)
    noted = [key for key, _ in survey.metadata.items() if key.startswith("apdb:archived/")]
    assert len(noted) == 2
    for key in noted:
        survey.metadata.delete(key)
    assert survey.store(**visit_of(0, [1, 2, 3])).stored
    assert survey.delete("DiaSource", [1_001]) == 1, "the database does not know of the file"
    survey.restore(cold)
    with pytest.raises(ct.InvalidInputError, match="may also be in files"):
        survey.delete("DiaSource", [1_002])
    assert survey.delete("DiaSource", [1_002], archived=False) == 1
    assert survey.delete("DiaSource", [1_001, 1_002], archived=cold) == 2, "the file had them"
    survey.retire(LATER)
    assert set(seen_sources(survey, archived=cold)) == {1_003}


def test_a_slice_that_is_archived_once_more_is_restored_once_more(survey: apdb.Apdb, tmp_path: Path) -> None:
    cold = tmp_path / "cold"
    survey.store(**visit_of(0, [1, 2, 3]))
    expected = seen_sources(survey)
    for _ in range(2):
        survey.archive_before(LATER, cold)
        assert len(survey.sources()) == 0
        for _ in range(2):
            assert [part.rows for part in survey.restore(cold)] == [3, 3]
            assert seen_sources(survey) == expected
            assert len(survey.forced_sources()) == 3
    survey.retire(LATER)
    assert (len(survey.sources()), survey.contains(0, 1)) == (0, False)
    assert [part.rows for part in survey.restore(cold)] == [3, 3]
    assert seen_sources(survey) == expected


def test_a_detector_visit_whose_slices_were_dropped_is_stored_again(survey: apdb.Apdb, tmp_path: Path) -> None:
    visit = visit_of(0, [1, 2, 3])
    survey.store(**visit)
    survey.retire(LATER)
    assert not survey.contains(0, 1)
    report = survey.store(**visit)
    assert (report.stored, report.sources, survey.contains(0, 1)) == (True, 3, True)
    assert len(survey.sources()) == len(survey.forced_sources()) == 3
    assert not survey.store(**visit).stored
    survey.archive_before(LATER, tmp_path / "cold")
    assert survey.store(**visit).stored
    assert len(survey.sources()) == 3
    assert len(everything(survey, tmp_path / "cold")[0]) == 3


BETWEEN = START + 230
"""The slice of sources of visits 200 and 201 ends before it, that of their records after it."""


@pytest.mark.parametrize("again", [apdb.Apdb.store, apdb.Apdb.store_again])
@pytest.mark.parametrize("lost", ["sources", "forced_sources"])
def test_a_detector_visit_whose_rows_are_retired_before_its_record_is_not_there(
    survey: apdb.Apdb, again: Callable[..., Any], lost: str
) -> None:
    visits = {number: visit_of(number, [1, 2, 3]) for number in (200, 201, 300)}
    for number, visit in visits.items():
        detector_visit = {name: np.full(3, visit.pop(name)) for name in ("visit", "detector")}
        for table in ("sources", "forced_sources"):
            visit[table] |= detector_visit
            if table != lost:
                # These rows lie in a later slice.
                visit[table]["midpointMjdTai"] = np.full(3, START + 300.0 + number)
        assert again(survey, **visit).stored
    survey.retire(BETWEEN, dry_run=True)
    assert survey.contains(200, 1)
    dropped = survey.retire(BETWEEN)
    assert sum(part.rows for part in dropped[f"dia_{lost}"[:-1]]) == 6
    assert len(survey.visits()) == 3, "their records stay"
    assert [survey.contains(number, 1) for number in visits] == [False, False, True]
    assert not survey.contains(300, 2)
    # A pipeline stores it again.
    assert again(survey, **visits[200]).stored
    assert [survey.contains(number, 1) for number in visits] == [True, False, True]
    assert not again(survey, **visits[200]).stored


def test_a_detector_visit_whose_rows_moved_to_files_is_there_until_they_are_retired(
    survey: apdb.Apdb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apdb.storing, "_CLOCKS_DIFFER", timedelta(0))
    for number in (200, 201):
        survey.store(**visit_of(number, [1, 2, 3]))
    survey.archive_before(BETWEEN, tmp_path / "cold")
    assert len(survey.sources()) == 0
    assert survey.contains(200, 1)
    survey.restore(tmp_path / "cold")
    assert survey.contains(200, 1)
    survey.retire(BETWEEN)
    assert len(survey.visits()) == 2
    assert not survey.contains(200, 1)
    # It is stored once more after that, and moves to a file.
    survey.store(**visit_of(200, [1, 2, 3]))
    survey.archive_before(BETWEEN, tmp_path / "cold")
    assert (survey.contains(200, 1), survey.contains(201, 1)) == (True, False)


def test_a_retirement_that_is_interrupted_leaves_no_detector_visit_that_seems_to_be_stored(
    survey: apdb.Apdb, monkeypatch: pytest.MonkeyPatch
) -> None:
    survey.store(**visit_of(200, [1, 2, 3]))
    retire = ct.Group.retire

    def cut_off(self: ct.Group, datasets: Any, **how: Any) -> Any:
        found = retire(self, datasets, **how)
        if not how.get("dry_run"):
            raise KeyboardInterrupt
        return found

    with monkeypatch.context() as patch:
        patch.setattr(ct.Group, "retire", cut_off)
        with pytest.raises(KeyboardInterrupt):
            survey.retire(BETWEEN)
    assert (len(survey.sources()), len(survey.visits())) == (0, 1)
    assert not survey.contains(200, 1)


def test_a_slice_that_is_first_written_to_while_slices_are_retired_is_noted(
    survey: apdb.Apdb, monkeypatch: pytest.MonkeyPatch
) -> None:
    retire = ct.Group.retire

    def late(self: ct.Group, datasets: Any, **how: Any) -> Any:
        if not how.get("dry_run"):
            survey.store(**visit_of(200, [1, 2, 3]))
        return retire(self, datasets, **how)

    with monkeypatch.context() as patch:
        patch.setattr(ct.Group, "retire", late)
        survey.retire(BETWEEN)
    assert (len(survey.sources()), len(survey.visits())) == (0, 1)
    assert not survey.contains(200, 1)


def test_a_database_that_an_earlier_release_retired_contains_what_it_did(survey: apdb.Apdb) -> None:
    survey.store(**visit_of(200, [1, 2, 3]))
    survey.archive.group("apdb").retire(["dia_source", "dia_forced_source"], before=BETWEEN)
    assert survey.contains(200, 1), "files may have the rows"


def test_records_that_were_deleted_or_changed_do_not_come_back_from_files(survey: apdb.Apdb, tmp_path: Path) -> None:
    cold = tmp_path / "cold"
    survey.store(**visit_of(0, [1, 2, 3]))
    survey.archive_before(LATER, cold, keep=True)
    # The mark of a deletion also hides what files have that the caller does not name.
    assert survey.delete("DiaSource", [1_001], archived=False) == 1
    assert survey.delete("DiaForcedSource", survey.forced_sources(object_ids=[1]).to_arrow(), archived=False) == 1
    survey.reassociate({1_002: 9})
    assert set(seen_sources(survey, archived=cold)) == {1_002, 1_003}
    assert len(survey.sources(object_ids=[2], archived=cold)) == 0, "it belongs to another object now"
    assert len(survey.forced_sources(archived=cold)) == 2
    # Where the mark of the deletion goes with its slice, the file does not have the record either.
    survey.archive_before(LATER, cold)
    expected = everything(survey, cold)
    assert set(expected[0]) == {1_002, 1_003}
    survey.restore(cold)
    assert (seen_sources(survey), len(survey.forced_sources())) == (expected[0], 2)
    # What only files have is taken out of these where they are named.
    survey.archive_before(LATER, cold)
    assert survey.delete("DiaSource", [1_003]) == 0
    assert survey.delete("DiaSource", [1_003], archived=cold) == 1
    assert set(seen_sources(survey, archived=cold)) == {1_002}
    survey.restore(cold)
    assert set(seen_sources(survey)) == {1_002}


def test_a_removed_visit_is_taken_out_of_files_or_the_call_refused(survey: apdb.Apdb, tmp_path: Path) -> None:
    cold = tmp_path / "cold"
    for number in range(2):
        survey.store(**visit_of(number, [1, 2, 3]))
    survey.archive_before(LATER, cold)
    with pytest.raises(ct.InvalidInputError, match="6 records left the database") as error:
        survey.remove_visit(0)
    assert error.value.kind == "archived-records"
    assert survey.contains(0, 1)
    assert len(everything(survey, cold)[0]) == 6
    done = survey.remove_visit(0, archived=cold)
    assert (done.detector_visits, done.rows) == (1, 9)
    assert not survey.contains(0, 1)
    assert set(everything(survey, cold)[0]) == {11_001, 11_002, 11_003}
    survey.restore(cold)
    assert set(seen_sources(survey)) == {11_001, 11_002, 11_003}
    survey.remove_visit(1, changed=True, archived=cold)
    assert everything(survey, cold) == ({}, [])
    survey.restore(cold)
    assert (len(survey.sources()), len(survey.forced_sources())) == (0, 0)


def test_where_nothing_is_in_files_a_visit_without_its_rows_is_removed_and_counted_so(survey: apdb.Apdb) -> None:
    survey.store(**visit_of(0, [1, 2, 3]))
    survey.archive.group("apdb").retire(["dia_source", "dia_forced_source"], before=LATER)
    done = survey.remove_visit(0, archived=False)
    assert (done.detector_visits, done.rows) == (1, 3), "the versions of three objects"


KILLED = """
import os, signal, sys
from chronotile import Group, apdb

write, moment = Group.write, int(sys.argv[2])

def cut_off(self, *arguments, **named):
    if moment:
        write(self, *arguments, **named)
    os.kill(os.getpid(), signal.SIGKILL)

Group.write = cut_off
with apdb.open(sys.argv[1]) as database:
    database.reassign({6_001_002: 1, 6_001_003: 1})
"""


@pytest.mark.parametrize("moment", [0, 1])
@pytest.mark.parametrize("archived", [False, True])
def test_sources_are_counted_right_after_a_reassignment_that_was_killed(
    path: Path, tmp_path: Path, moment: int, archived: bool
) -> None:
    visits = [visit_of(number, [1, 2, 3]) for number in (0, 600)]
    for visit in visits:
        for rows in (visit["objects"], visit["sources"], visit["forced_sources"]):
            rows |= {"ra": np.full(3, 150.1), "dec": np.full(3, 2.1)}
        visit["objects"]["nDiaSources"] = np.full(3, 2, "int32")
    with apdb.create(path, "small") as survey:
        for visit in visits:
            survey.store(**visit)
        if archived:
            # Half of the counted sources are in files.
            assert survey.archive_before(START + 400, tmp_path / "cold")
            assert len(survey.sources()) == 3
    killed = subprocess.run([sys.executable, "-c", KILLED, str(path), str(moment)], check=False, capture_output=True)
    assert killed.returncode == -9, killed.stderr
    with apdb.open(path) as survey:
        counts = {number: count for number, (count, _) in seen_objects(survey).items()}
        moved = moment == 1
        assert counts == ({1: 4, 2: 1, 3: 1} if moved else {1: 2, 2: 2, 3: 2})
        assert survey.reassign({6_001_002: 1, 6_001_003: 1}) == (0 if moved else 2)
        counts = {number: count for number, (count, _) in seen_objects(survey).items()}
        assert counts == {1: 4, 2: 1, 3: 1}
