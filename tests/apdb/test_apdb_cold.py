"""Files of archived slices hold what the database held, are merged with what comes later, and are replaced whole."""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from support_apdb import FIELD, START, visit_of

import chronotile as ct
from chronotile import apdb
from chronotile.apdb import cold as cold_storage
from chronotile.apdb import names
from chronotile.apdb.tables import SurveyTables

TICK = 5e-6 / 86_400
ENDS = START + 107
"""End of the slice of visits 0 and 30; that of visit 150 is the next."""
FIRST, SECOND = 170, 171
LATER = START + 1_000
BOTH = ("DiaSource", "DiaForcedSource")


@pytest.fixture
def survey() -> Iterator[apdb.Apdb]:
    """Three visits of two objects, in memory."""
    with apdb.create("memory:", "small") as made:
        for number in (0, 30, 150):
            made.store(**visit_of(number, [1, 2]))
        yield made


def file_of(folder: Path, table: str = "dia_source", number: int = FIRST) -> Path:
    return folder / table / f"slice={number}" / "rows.parquet"


def ids_in(folder: Path, number: int = FIRST) -> list[int]:
    """Sources of a file."""
    return sorted(pq.read_table(file_of(folder, number=number), partitioning=None)["diaSourceId"].to_pylist())


def sources(survey: apdb.Apdb, **how: Any) -> dict[int, float]:
    """Flux of each source."""
    rows = survey.sources(columns=["diaSourceId", "psfFlux"], **how)
    assert len(set(rows["diaSourceId"].to_pylist())) == len(rows)
    return dict(zip(rows["diaSourceId"].to_pylist(), rows["psfFlux"].to_pylist(), strict=True))


# ---------------------------------------------------------------------- to files


def test_slices_that_end_by_a_time_move_to_files(survey: apdb.Apdb, tmp_path: Path) -> None:
    before, folder = sources(survey), tmp_path / "deep" / "cold"
    assert survey.archive_before(ENDS - TICK, folder) == []
    planned = survey.archive_before(ENDS, folder, dry_run=True)
    assert not folder.joinpath("dia_source").exists()
    assert len(sources(survey)) == 6
    done = survey.archive_before(ENDS, folder)
    assert [(part.table, part.slice, part.rows) for part in done] == [(table, FIRST, 4) for table in BOTH]
    assert [(p.table, p.slice, p.path, p.rows) for p in planned] == [(p.table, p.slice, p.path, p.rows) for p in done]
    assert [part.path for part in done] == [file_of(folder, names.dataset_name(table)) for table in BOTH]
    assert [part.bytes for part in done] == [part.path.stat().st_size for part in done]
    assert set(sources(survey)) == {1_501_001, 1_501_002}
    assert sources(survey, archived=folder) == before
    assert survey.archive_before(ENDS, folder) == []
    assert [(part.table, part.slice) for part in survey.archive_before(LATER, folder)] == [
        (table, SECOND) for table in BOTH
    ]
    found = survey.archived(folder)
    assert [(part.table, part.slice, part.rows) for part in found] == [
        ("DiaForcedSource", FIRST, 4), ("DiaForcedSource", SECOND, 2), ("DiaSource", FIRST, 4), ("DiaSource", SECOND, 2)
    ]  # fmt: skip
    assert [part.bytes for part in found] == [part.path.stat().st_size for part in found]
    assert sources(survey) == {}
    assert sources(survey, archived=folder) == before


def test_a_plan_says_how_many_bytes_the_database_would_lose(survey: apdb.Apdb, tmp_path: Path) -> None:
    planned = survey.archive_before(LATER, tmp_path / "cold", dry_run=True)
    assert [(part.table, part.slice) for part in planned] == [(t, number) for t in BOTH for number in (FIRST, SECOND)]
    held = {part.slice: part.bytes for part in survey.info()["dia_source"].slices}
    assert [part.bytes for part in planned[:2]] == [held[FIRST], held[SECOND]]
    assert not (tmp_path / "cold").exists(), "a plan needs no folder"


def test_a_table_without_rows_in_a_slice_gets_no_file(tmp_path: Path) -> None:
    with apdb.create("memory:", "small") as survey:
        visit = visit_of(0, [1])
        survey.store(**visit | {"forced_sources": None})
        assert [part.table for part in survey.archive_before(LATER, tmp_path, dry_run=True)] == ["DiaSource"]
        assert [part.table for part in survey.archive_before(LATER, tmp_path)] == ["DiaSource"]
        # A file that is there already stays when only the other table has late rows.
        late = visit_of(1, [1])
        survey.store(**late | {"sources": None})
        assert [(part.table, part.rows) for part in survey.archive_before(LATER, tmp_path)] == [
            ("DiaSource", 1), ("DiaForcedSource", 1)
        ]  # fmt: skip
        assert ids_in(tmp_path) == [1_001]


def test_a_file_gets_late_rows_and_keeps_the_newest_version_of_each(survey: apdb.Apdb, tmp_path: Path) -> None:
    survey.archive_before(ENDS, tmp_path)
    late = visit_of(60, [1, 2])
    survey.store(**late)
    # Stored again as it was: the file's version was changed since.
    again = pa.table(visit_of(30, [1])["sources"]).append_column("visit", pa.array([30]))
    again = again.append_column("detector", pa.array([1]))
    again = again.set_column(again.schema.get_field_index("psfFlux"), "psfFlux", pa.array([7.0]))
    survey.store_again(START + 30.1, sources=again)
    assert sources(survey, archived=tmp_path)[301_001] == 7, "the database counts, if both are as new"
    survey.restore(tmp_path)
    survey.withdraw_sources([1_001], START)
    survey.delete("DiaSource", [1_002], archived=False)
    expected = sources(survey)
    assert set(expected) == {1_001, 301_001, 301_002, 601_001, 601_002, 1_501_001, 1_501_002}
    done = survey.archive_before(ENDS, tmp_path)
    assert [(part.table, part.rows) for part in done] == [("DiaSource", 5), ("DiaForcedSource", 6)]
    assert ids_in(tmp_path) == [1_001, 301_001, 301_002, 601_001, 601_002]
    assert sources(survey, archived=tmp_path) == expected
    assert 1_001 not in sources(survey, archived=tmp_path, withdrawn=False)
    survey.restore(tmp_path)
    assert sources(survey) == expected, "restored once more, with other rows"


def test_a_slice_that_another_process_drops_meanwhile_is_no_error(
    survey: apdb.Apdb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    retire, other = ct.Group.retire, apdb.open(survey.archive)

    def late(self: ct.Group, datasets: Any, **how: Any) -> Any:
        if how.get("unchanged"):
            monkeypatch.undo()
            other.retire(ENDS)
        return retire(self, datasets, **how)

    monkeypatch.setattr(ct.Group, "retire", late)
    assert [part.rows for part in survey.archive_before(ENDS, tmp_path)] == [4, 4]
    assert set(sources(survey)) == {1_501_001, 1_501_002}


def test_an_older_row_of_the_database_gives_way_to_that_of_the_file(survey: apdb.Apdb, tmp_path: Path) -> None:
    survey.withdraw_sources([1_001], START)
    survey.archive_before(ENDS, tmp_path)
    assert survey.store(**visit_of(0, [1, 2])).stored
    assert 1_001 in sources(survey, withdrawn=False)
    assert 1_001 not in sources(survey, withdrawn=False, archived=tmp_path)
    survey.archive_before(ENDS, tmp_path)
    assert 1_001 not in sources(survey, withdrawn=False, archived=tmp_path)
    assert ids_in(tmp_path) == [1_001, 1_002, 301_001, 301_002]


def test_rows_that_are_stored_meanwhile_are_written_too(
    survey: apdb.Apdb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    retire, late = ct.Group.retire, iter([40, 41])

    def store_late(self: ct.Group, datasets: Any, **how: Any) -> Any:
        if how.get("unchanged"):
            for number in late:
                survey.store(**visit_of(number, [3]))
                break
        return retire(self, datasets, **how)

    monkeypatch.setattr(ct.Group, "retire", store_late)
    done = survey.archive_before(LATER, tmp_path)
    assert [(part.table, part.slice, part.rows) for part in done] == [
        (table, number, rows) for table in BOTH for number, rows in ((FIRST, 6), (SECOND, 2))
    ]
    assert sources(survey) == {}
    assert ids_in(tmp_path) == [1_001, 1_002, 301_001, 301_002, 401_003, 411_003]


def test_a_slice_that_is_written_to_five_times_is_left(
    survey: apdb.Apdb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    retire, numbers = ct.Group.retire, iter(range(31, 100))

    def store_late(self: ct.Group, datasets: Any, **how: Any) -> Any:
        if how.get("unchanged"):
            survey.store(**visit_of(next(numbers), [3]))
        return retire(self, datasets, **how)

    monkeypatch.setattr(ct.Group, "retire", store_late)
    with pytest.raises(ct.BusyError, match="slices 170 of DiaSource and DiaForcedSource were archived") as error:
        survey.archive_before(LATER, tmp_path)
    assert error.value.kind == "slice-in-use"
    assert next(numbers) == 36
    assert set(sources(survey)) == {1_001, 1_002, 301_001, 301_002, *(each * 10_000 + 1_003 for each in range(31, 36))}


def test_files_of_slices_that_are_kept_hold_what_the_database_holds(survey: apdb.Apdb, tmp_path: Path) -> None:
    for _ in range(2):
        done = survey.archive_before(ENDS, tmp_path, keep=True)
        assert [part.rows for part in done] == [4, 4]
        assert len(sources(survey)) == 6
        assert ids_in(tmp_path) == [1_001, 1_002, 301_001, 301_002]
    with pytest.raises(ct.InvalidInputError, match=str(tmp_path.resolve())) as error:
        survey.delete("DiaSource", [1_001])
    assert error.value.kind == "archived-records"


def test_an_archive_that_was_interrupted_while_it_dropped_a_slice_is_finished(
    survey: apdb.Apdb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    retire = ct.Group.retire

    def spy(self: ct.Group, datasets: Any, **how: Any) -> Any:
        calls.append(how)
        return retire(self, datasets, **how)

    monkeypatch.setattr(ct.Group, "retire", spy)
    survey.archive_before(ENDS, tmp_path, keep=True)
    assert all("unchanged" not in how for how in calls)
    calls.clear()
    survey.archive_before(ENDS, tmp_path)
    assert calls[0] == {"unchanged": []}, "what an earlier call has begun to drop"


# ---------------------------------------------------------------------- files


def test_a_file_is_durable_before_anything_is_dropped(
    survey: apdb.Apdb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync, retire = os.fsync, ct.Group.retire

    def synced(descriptor: int) -> None:
        done.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        sync(descriptor)

    def dropped(self: ct.Group, datasets: Any, **how: Any) -> Any:
        done.extend(["dropped"] if how.get("unchanged") else [])
        return retire(self, datasets, **how)

    opened = len(list(Path("/proc/self/fd").iterdir()))
    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(ct.Group, "retire", dropped)
    survey.archive_before(ENDS, tmp_path / "new")
    written = ["rows.new", "slice=170"]
    listed = ["slices.json.new", "new"]
    made = [tmp_path.name, *listed, "dia_source", "new"], ["dia_forced_source", "new"]
    assert done == [*made[0], *written, *made[1], *written, *listed, "dropped"], "folders that are made, too"
    assert len(list(Path("/proc/self/fd").iterdir())) == opened
    assert sorted(path.name for path in file_of(tmp_path / "new").parent.iterdir()) == ["rows.parquet"]


def test_a_file_that_lacks_rows_is_refused_and_nothing_is_dropped(
    survey: apdb.Apdb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = pq.ParquetWriter.write_table

    def lose_one(self: pq.ParquetWriter, table: Any, **how: Any) -> None:
        write(self, table.slice(1), **how)

    monkeypatch.setattr(pq.ParquetWriter, "write_table", lose_one)
    with pytest.raises(
        ct.DamagedError, match=r"rows\.new holds 3 rows but 4 were written; nothing was dropped"
    ) as error:
        survey.archive_before(ENDS, tmp_path)
    assert error.value.kind == "damaged-file"
    assert len(sources(survey)) == 6
    assert not file_of(tmp_path).exists()


def reads_of(survey: apdb.Apdb, cold: Path) -> list[Callable[[], object]]:
    """All that reads files."""
    return [
        lambda: survey.sources(archived=cold).to_arrow().to_pylist(),
        lambda: survey.archived(cold),
        lambda: survey.remove_visit(99, 1, archived=cold),
        lambda: survey.delete("DiaSource", [5], archived=cold),
        lambda: survey.archive_before(ENDS, cold),
        lambda: survey.restore(cold),
    ]


def test_each_changed_byte_of_a_file_is_an_error_or_changes_no_row(survey: apdb.Apdb, tmp_path: Path) -> None:
    survey.archive_before(ENDS, tmp_path)
    wanted, file = reads_of(survey, tmp_path)[0](), file_of(tmp_path)
    good, errors = file.read_bytes(), []
    places = range(len(good) % 61, len(good), 61)
    for place in places:
        file.write_bytes(good[:place] + bytes([good[place] ^ 1 << place % 8]) + good[place + 1 :])
        try:
            assert reads_of(survey, tmp_path)[0]() == wanted
        except ct.DamagedError as error:
            errors.append(error)
    assert len(errors) > 0.9 * len(places)
    assert {error.kind for error in errors} == {"damaged-file"}
    assert all(str(file) in str(error) for error in errors)


def test_a_file_that_is_missing_is_an_error_until_it_is_back_or_off_the_list(survey: apdb.Apdb, tmp_path: Path) -> None:
    survey.archive_before(ENDS, tmp_path / "cold")
    before = sources(survey, archived=tmp_path / "cold")
    cold = (tmp_path / "cold").rename(tmp_path / "moved")
    assert sources(survey, archived=cold) == before
    path, kept = file_of(cold), tmp_path / "kept.parquet"
    path.rename(kept)
    for read in reads_of(survey, cold):
        with pytest.raises(ct.DataFileError, match=f"moved lacks files of slice {FIRST} of DiaSource: put them back"):
            read()
    kept.rename(path)
    assert sources(survey, archived=cold) == before
    path.unlink()
    listed = cold / "slices.json"
    without = {table: [n for n in numbers if n != FIRST] for table, numbers in json.loads(listed.read_text()).items()}
    listed.write_text(json.dumps(without))
    assert sources(survey, archived=cold).items() < before.items()
    for damaged in ("[", "[1]", '{"DiaSource": [null]}'):
        listed.write_text(damaged)
        with pytest.raises(ct.DamagedError, match=r"slices\.json is damaged: .*; put back a copy, or remove it"):
            sources(survey, archived=cold)


@pytest.mark.parametrize("number", range(6))
def test_a_file_that_is_cut_off_is_named_and_changes_nothing(survey: apdb.Apdb, tmp_path: Path, number: int) -> None:
    survey.archive_before(ENDS, tmp_path)
    survey.store(**visit_of(31, [3]))
    have, file = sources(survey), file_of(tmp_path)
    good = file.read_bytes()
    for cut in (0, 5, len(good) // 2, len(good) - 1):
        file.write_bytes(good[:cut])
        with pytest.raises(ct.DamagedError, match=str(file)):
            reads_of(survey, tmp_path)[number]()
        assert file.read_bytes() == good[:cut]
    assert sources(survey) == have


def test_other_readers_and_files_of_earlier_releases(survey: apdb.Apdb, tmp_path: Path) -> None:
    survey.archive_before(ENDS, tmp_path)
    file = file_of(tmp_path)
    rows = pl.read_parquet(file)
    assert rows.equals(pl.from_arrow(pq.read_table(file)))
    pq.write_table(rows.to_arrow().cast(pq.read_schema(file)), file)
    assert len(sources(survey, archived=tmp_path)) == 6


def test_files_have_row_groups_of_bounded_size(
    survey: apdb.Apdb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_storage, "_ROW_GROUP_ROWS", 3)
    survey.store(**visit_of(31, [3, 4, 5]))
    before = sources(survey)
    survey.archive_before(ENDS, tmp_path)
    file = pq.ParquetFile(file_of(tmp_path))
    groups = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
    assert (sum(groups), max(groups)) == (7, 3)
    survey.store(**visit_of(32, [3, 4, 5]))
    survey.archive_before(ENDS, tmp_path)
    assert {*ids_in(tmp_path)} == {*before, 321_003, 321_004, 321_005} - {1_501_001, 1_501_002}
    assert survey.delete("DiaSource", [1_001, 311_004], archived=tmp_path) == 2
    assert len(ids_in(tmp_path)) == 8


def test_a_folder_is_named_by_text_or_a_path_and_must_exist(survey: apdb.Apdb, tmp_path: Path) -> None:
    survey.archive_before(ENDS, str(tmp_path))
    assert len(sources(survey, archived=str(tmp_path))) == 6
    nothing = tmp_path / "nothing"
    for read in (
        lambda: survey.sources(archived=nothing),
        lambda: survey.forced_sources(archived=nothing),
        lambda: survey.archived(nothing),
    ):
        with pytest.raises(ct.DataFileError, match=r"no such folder: .*nothing") as error:
            read()
        assert error.value.kind == "file-not-found"
    with pytest.raises(ct.InvalidInputError, match=r"^archived"):
        survey.sources(archived=5)


def test_an_empty_name_is_no_folder(survey: apdb.Apdb) -> None:
    """As of a variable of the shell that is not set."""
    for call in (
        lambda: survey.sources(archived=""),
        lambda: survey.archived(""),
        lambda: survey.delete("DiaSource", [1_001], archived=""),
        lambda: survey.remove_visit(0, archived=""),
    ):
        with pytest.raises(ct.DataFileError, match=r"^no such folder: ''$"):
            call()
    assert len(sources(survey)) == 6


@pytest.mark.parametrize(
    "made", [["notes.txt"], ["slice=170/rows.parquet"], ["cold/dia_source/slice=170/rows.parquet"], []]
)
def test_a_folder_without_archived_slices_is_refused_and_left_as_it_is(
    survey: apdb.Apdb, tmp_path: Path, made: list[str]
) -> None:
    """An empty folder, one with other files, and the folders beside the right one."""
    other = tmp_path / "other"
    other.mkdir()
    for name in made:
        (other / name).parent.mkdir(parents=True, exist_ok=True)
        (other / name).touch()
    for read in (
        lambda: survey.sources(archived=other),
        lambda: survey.forced_sources(archived=other),
        lambda: survey.light_curve(1, archived=other),
        lambda: survey.light_curves([1], archived=str(other)),
        lambda: survey.remove_visit(0, archived=other),
        lambda: survey.delete("DiaSource", [1_001], archived=other),
        lambda: survey.restore(other),
    ):
        with pytest.raises(ct.DataFileError, match=rf"{other} holds no archived slices: give the folder that") as error:
            read()
        assert error.value.kind == "file-not-found"
    assert not (other / ".lock").exists()
    assert len(sources(survey)) == 6
    # It becomes one, whether there is a slice to archive or not.
    survey.archive_before(ENDS, other, dry_run=True)
    with pytest.raises(ct.DataFileError, match="holds no archived slices"):
        survey.sources(archived=other)
    assert survey.archive_before(START - 1_000, other) == []
    assert json.loads((other / "slices.json").read_text()) == {}
    assert sources(survey, archived=other) == sources(survey)
    assert survey.delete("DiaSource", [5], archived=other) == 0
    assert survey.restore(other) == []
    before = sources(survey)
    survey.archive_before(ENDS, other)
    assert sources(survey, archived=other) == before


def test_a_folder_that_an_earlier_release_wrote_has_no_list(survey: apdb.Apdb, tmp_path: Path) -> None:
    before = sources(survey)
    survey.archive_before(ENDS, tmp_path)
    (tmp_path / "slices.json").unlink()
    assert sources(survey, archived=tmp_path) == before


# ---------------------------------------------------------------------- one at a time


def test_a_folder_whose_files_are_being_replaced_is_waited_for(
    survey: apdb.Apdb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cold_storage, "_LOCK_WAIT_S", 0.3)
    with (tmp_path / ".lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        # The other process ends too late for the first call and in time for the last one.
        release = threading.Timer(1.5, fcntl.flock, (held, fcntl.LOCK_UN))
        release.start()
        began = time.monotonic()
        with pytest.raises(ct.BusyError, match="another process is replacing files in") as error:
            survey.archive_before(ENDS, tmp_path)
        assert error.value.kind == "folder-in-use"
        assert 0.3 <= time.monotonic() - began < 1
        assert survey.archive_before(ENDS, tmp_path, dry_run=True) != [], "a plan replaces nothing"
        monkeypatch.setattr(cold_storage, "_LOCK_WAIT_S", 20)
        survey.archive_before(ENDS, tmp_path)
        assert time.monotonic() - began >= 1.5
        release.join()
    assert len(survey.restore(tmp_path)) == 2, "the lock was given back"


def test_a_folder_that_cannot_be_locked_is_reported(
    survey: apdb.Apdb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(file: Any, how: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(ct.DataFileError, match=r"cannot lock .*\.lock: .*No locks") as error:
        survey.archive_before(ENDS, tmp_path)
    assert error.value.kind == "file-access"


# ---------------------------------------------------------------------- from files


def test_slices_that_overlap_a_period_are_restored(survey: apdb.Apdb, tmp_path: Path) -> None:
    before = sources(survey)
    survey.archive_before(LATER, tmp_path)

    def restored(**period: Any) -> list[tuple[str, int]]:
        return [(part.table, part.slice) for part in survey.restore(tmp_path, **period)]

    first, second = ([(table, number) for table in sorted(BOTH)] for number in (FIRST, SECOND))
    assert restored(end=START) == restored(start=START + 150 + TICK) == []
    assert restored(start=START + 30 + TICK, end=START + 150) == []
    assert sources(survey) == {}
    assert restored(end=START + TICK) == restored(start=START + 30, end=START + 150) == first
    assert {*sources(survey)} == {1_001, 1_002, 301_001, 301_002}
    assert restored(start=START + 150) == second
    assert sorted(restored()) == sorted([*first, *second])
    assert sources(survey) == before == sources(survey, archived=tmp_path)
    keys = [info.key for info in survey.archive.group(names.GROUP).batches()]
    assert {key for key in keys if key is not None and key.startswith("restored")} == {
        f"restored-{table}-slice-{number}" for table in BOTH for number in (FIRST, SECOND)
    }
    assert sources(survey, object_ids=[1]).keys() == {1_001, 301_001, 1_501_001}, "the index has them"


def test_files_that_another_database_wrote_are_noted_when_they_are_restored(survey: apdb.Apdb, tmp_path: Path) -> None:
    survey.archive_before(LATER, tmp_path)
    with apdb.create("memory:", "small") as other:
        other.restore(tmp_path)
        assert len(sources(other)) == 6
        for table in BOTH:
            given = other.scan(table, columns=["diaSourceId"] if table == "DiaSource" else None).to_arrow().slice(0, 1)
            with pytest.raises(ct.InvalidInputError, match=str(tmp_path.resolve())):
                other.delete(table, given)


def test_files_without_rows_are_passed_over(survey: apdb.Apdb, tmp_path: Path) -> None:
    survey.archive_before(ENDS, tmp_path)
    assert survey.delete("DiaSource", [1_001, 1_002, 301_001, 301_002], archived=tmp_path) == 4
    assert [part.rows for part in survey.archived(tmp_path)] == [4, 0]
    assert survey.delete("DiaSource", [1_001], archived=tmp_path) == 0
    assert [part.table for part in survey.restore(tmp_path)] == ["DiaForcedSource"]
    assert len(sources(survey, archived=tmp_path)) == 2


def test_columns_that_a_file_lacks_are_null_or_the_default(survey: apdb.Apdb, tmp_path: Path) -> None:
    survey.archive_before(ENDS, tmp_path)
    score, rank = apdb.Column("score", "float32"), apdb.Column("rank", "int32", nullable=False, default=7)
    survey.migrate(survey.schema.extended({"DiaSource": [score, rank]}))
    survey.store(**visit_of(60, [1]) | {"sources": {**visit_of(60, [1])["sources"], "score": [2.0]}})

    def scores() -> dict[int, float | None]:
        rows = survey.sources(archived=tmp_path, columns=["diaSourceId", "score"], at=START + 100)
        return dict(zip(rows["diaSourceId"].to_pylist(), rows["score"].to_pylist(), strict=True))

    def ranks() -> list[int | None]:
        return survey.sources(archived=tmp_path, columns=["rank"], at=START + 100)["rank"].to_pylist()

    wanted = {1_001: None, 1_002: None, 301_001: None, 301_002: None, 601_001: 2.0}
    assert scores() == wanted
    assert ranks() == [7] * 5, "the default, as of older rows of the database"
    survey.archive_before(ENDS, tmp_path)
    assert (scores(), ranks()) == (wanted, [7] * 5)
    assert sorted(pq.read_schema(file_of(tmp_path)).names) == sorted(survey.dataset("DiaSource").schema.names)
    survey.restore(tmp_path)
    assert (scores(), ranks()) == (wanted, [7] * 5)


def test_a_column_that_another_process_added_is_written_to_files(survey: apdb.Apdb, tmp_path: Path) -> None:
    survey.archive_before(ENDS, tmp_path)
    other = apdb.open(survey.archive)
    survey.migrate(survey.schema.extended({"DiaSource": [apdb.Column("score", "float32")]}))
    survey.store(**visit_of(60, [1]) | {"sources": {**visit_of(60, [1])["sources"], "score": [2.0]}})
    assert [part.rows for part in other.archive_before(ENDS, tmp_path)] == [5, 5]
    rows = survey.sources(archived=tmp_path, columns=["score"], at=START + 100)
    assert rows["score"].drop_null().to_pylist() == [2.0]


def test_rows_of_files_are_chosen_as_those_of_the_database(survey: apdb.Apdb, tmp_path: Path) -> None:
    survey.archive_before(LATER, tmp_path)

    def found(**how: Any) -> set[int]:
        assert len(survey.forced_sources(archived=tmp_path, **how)) == len(sources(survey, archived=tmp_path, **how))
        return {*sources(survey, archived=tmp_path, **how)}

    everything = {1_001, 1_002, 301_001, 301_002, 1_501_001, 1_501_002}
    assert found() == found(region=FIELD) == everything
    assert found(region=ct.circle(10, -20, 1)) == set()
    assert found(start=START + 30) == everything - {1_001, 1_002}
    assert found(start=START, at=START + 30 - TICK) == {1_001, 1_002}
    assert found(object_ids=[2], start=START + 30) == {301_002, 1_501_002}
    curves = survey.light_curves([1, 2], archived=tmp_path, end=START + 30)
    assert curves["visit"].to_pylist() == [0] * 4, "the end is not included"
    # The database knows that a source belongs to no object any more; the file does not.
    survey.restore(tmp_path, end=START + 100)
    survey.reassociate({1_001: 7})
    assert {*sources(survey, archived=tmp_path, object_ids=[1])} == {301_001, 1_501_001}


def storage(survey: apdb.Apdb) -> cold_storage.ColdStorage:
    return cold_storage.ColdStorage(SurveyTables(survey.archive))


@pytest.mark.parametrize(
    ("first", "last", "count"),
    [
        (START + 30, START + 140, 2),
        (START - 9, START, 2),
        (START + 30 + TICK, START + 149, 0),
        (START - 9, START - 1, 0),
    ],
)
def test_rows_are_dropped_from_files_that_overlap_a_period(
    survey: apdb.Apdb, tmp_path: Path, first: float, last: float, count: int
) -> None:
    survey.archive_before(LATER, tmp_path)
    done = storage(survey).drop("DiaSource", tmp_path, first, last, lambda rows: pc.equal(rows["diaObjectId"], 1))
    assert done == count
    assert len(ids_in(tmp_path)) == 4 - count
    assert len(ids_in(tmp_path, SECOND)) == 2
    assert sum(part.rows for part in survey.archived(tmp_path)) == 12 - count


def test_a_file_from_which_nothing_is_dropped_is_left_as_it_is(survey: apdb.Apdb, tmp_path: Path) -> None:
    survey.archive_before(LATER, tmp_path)
    before = file_of(tmp_path).stat().st_ino
    assert survey.delete("DiaSource", [5], archived=tmp_path) == 0
    assert file_of(tmp_path).stat().st_ino == before


def test_detector_visits_of_files_are_listed_with_their_times(survey: apdb.Apdb, tmp_path: Path) -> None:
    visit = visit_of(60, [1, 2], detector=3)
    visit["sources"]["midpointMjdTai"] = START + np.array([60.25, 60.5])
    survey.store(**visit)
    survey.archive_before(LATER, tmp_path)
    found = storage(survey).detector_visits(tmp_path, pc.field("visit") >= 30).sort_by("visit")
    assert found.to_pydict() == {
        "visit": [30, 60, 150], "detector": [1, 3, 1], "time_first": [START + 30, START + 60, START + 150],
        "time_last": [START + 30, START + 60.5, START + 150],
    }  # fmt: skip
    assert storage(survey).detector_visits(tmp_path, pc.field("visit") > 999).num_rows == 0
