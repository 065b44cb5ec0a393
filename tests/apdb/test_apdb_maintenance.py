"""Changes of several processes all hold; maintenance may be killed beside writers; crowded places stay in bounds."""

from __future__ import annotations

import dataclasses
import itertools
import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import support_changers
import support_workers
from conftest import Run as RunCli
from support_apdb import START, visit_of
from support_changers import EACH, PROCESSES, TARGET
from support_data import data_file, separation_deg

import chronotile as ct
from chronotile import apdb
from chronotile.apdb import changes, names
from chronotile.dataset import Dataset
from chronotile_tools.survey.simulate import Run, Survey, run
from chronotile_tools.survey.simulate.universe import FIELD_AREA_DEG2


def test_maintenance_goes_on_with_other_tables_where_one_is_damaged(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, consolidate = names.dataset_name(names.MAIN_TABLES[0]), Dataset.consolidate

    def fail(*_: Any, **how: Any) -> Any:
        raise ct.DamagedError("a record of the catalog is damaged", kind="damaged-catalog")

    def damaged(self: Dataset, **how: Any) -> Any:
        return fail() if self.name == first else consolidate(self, **how)

    with apdb.create(path, "small") as database:
        for number in range(2):
            database.store(**visit_of(number, [1, 2, 3]))
        monkeypatch.setattr(ct.Group, "consolidate", fail)
        monkeypatch.setattr(Dataset, "consolidate", damaged)
        with pytest.raises(ct.DamagedError, match="of the catalog"):
            database.maintain()
        monkeypatch.undo()
        rewritten = {name: report.tiles for name, report in database.maintain().consolidated.items() if report.tiles}
    assert rewritten.keys() & {names.dataset_name(table) for table in names.MAIN_TABLES} == {first}


# ---------------------------------------------------------------------- changes at once


def test_changes_of_one_row_by_several_processes_all_hold(path: Path) -> None:
    with apdb.create(path, "small") as database:
        support_changers.store(database)
        assert support_workers.run(support_changers.change, str(path), PROCESSES) == [EACH] * PROCESSES
        objects = database.objects().to_arrow().to_pylist()
        sources = database.sources().to_arrow().to_pylist()
    counts = {row["diaObjectId"]: row["nDiaSources"] for row in objects}
    moved = PROCESSES * EACH
    assert counts.pop(TARGET) == 1 + moved, "each process counted what the others had added"
    assert set(counts.values()) == {0}
    changed = [row for row in sources if row["diaSourceId"] != TARGET]
    assert len(changed) == moved
    # One process moved a source and another withdrew it, each writing the whole row.
    assert {row["diaObjectId"] for row in changed} == {TARGET}
    assert {row["timeWithdrawnMjdTai"] for row in changed} == {START + 1}


def test_a_change_that_others_overtake_begins_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with apdb.create(path, "small") as database, apdb.open(path) as other:
        database.store(**visit_of(1, [1, 2, 3]))
        write, overtaken = ct.Group.write, []

        def late(group: ct.Group, data: Any, batch: str | None = None, **options: Any) -> Any:
            # Another process changes the same source between the read and the write.
            if not overtaken:
                overtaken.append(batch)
                other.reassociate({11_001: 7})
            return write(group, data, batch, **options)

        monkeypatch.setattr(ct.Group, "write", late)
        assert database.withdraw_sources([11_001], START + 1) == 1
        monkeypatch.undo()
        (row,) = [row for row in database.sources().to_arrow().to_pylist() if row["diaSourceId"] == 11_001]
        assert (row["ssObjectId"], row["timeWithdrawnMjdTai"]) == (7, START + 1)
        assert [batch.key for batch in database.archive.group(names.GROUP).batches()][-2:] == ["change-1", "change-2"]


def test_changes_that_never_come_through_say_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with apdb.create(path, "small") as database:
        database.store(**visit_of(1, [1, 2]))
        monkeypatch.setattr(changes, "_ATTEMPTS", 3)
        write, numbers = ct.Group.write, itertools.count()

        def late(group: ct.Group, data: Any, batch: str | None = None, **options: Any) -> Any:
            write(group, {"dia_source": database.dataset("DiaSource").schema.empty_table()}, batch)
            next(numbers)
            return write(group, data, batch, **options)

        monkeypatch.setattr(ct.Group, "write", late)
        with pytest.raises(ct.BusyError, match="kept changing records") as refused:
            database.withdraw_sources([11_001])
        assert (refused.value.kind, next(numbers)) == ("lost-race", 3)
        monkeypatch.undo()
        assert database.sources()["timeWithdrawnMjdTai"].null_count == 2
        assert database.withdraw_sources([11_001]) == 1


def test_a_process_finds_the_last_change_of_many_and_dead_ones_hinder_nobody(path: Path) -> None:
    with apdb.create(path, "small") as database, apdb.open(path) as late:
        database.store(**visit_of(1, [1, 2]))
        assert late.close_validity([1], START + 2) == 1
        for number in range(30):
            assert database.reassociate({11_001: number}) == 1
        # A process that began a change and was killed leaves nothing.
        begin = (
            "import os, sys; from chronotile import apdb\n"
            "survey = apdb.open(sys.argv[1])\n"
            "survey._tables.changes.make(lambda change: os._exit(9))"
        )
        assert subprocess.run([sys.executable, "-c", begin, str(path)], check=False).returncode == 9
        assert late.reassociate({11_001: 77}) == 1
        assert late.archive.group(names.GROUP).batch("change-32") is not None
        with apdb.open(path) as new:
            assert new.reassociate({11_001: 78}) == 1
            assert new.archive.group(names.GROUP).batch("change-33") is not None
            assert new.archive.group(names.GROUP).batch("change-34") is None


# ---------------------------------------------------------------------- maintenance

IDS = list(range(1_000))
VISITS = 8


def associations() -> Any:
    """Each third source of the first visits, with the object it is to belong to."""
    parts = [pa.table(visit_of(number, IDS)["sources"]) for number in range(VISITS)]
    given = pa.concat_tables(parts).select(["diaSourceId", "ra", "dec", "midpointMjdTai"])
    given = given.filter(pa.array(np.arange(given.num_rows) % 3 > 0))
    return given.append_column("ssObjectId", pa.array(given["diaSourceId"].to_numpy() + 5_000_000))


MAINTENANCE = """
import sys
import pyarrow.parquet as pq
from chronotile import apdb
with apdb.open(sys.argv[1]) as survey:
    survey.maintain(
        associations=pq.read_table(sys.argv[2]),
        progress=lambda what, done, total: print(what, done, flush=True),
    )
"""


def kill_maintenance(archive: Path, given: Path, moment: str) -> None:
    """Run maintenance in a process, and kill it when it says so."""
    command = [sys.executable, "-c", MAINTENANCE, str(archive), str(given)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(moment):
                process.send_signal(signal.SIGKILL)
                break
        else:
            pytest.fail(f"maintenance never came to {moment!r}")
    assert process.returncode == -signal.SIGKILL


def test_maintenance_killed_in_the_middle_beside_a_writer_loses_nothing(path: Path, tmp_path: Path) -> None:
    pq.write_table(associations(), tmp_path / "given.parquet")
    stored, stop, trouble = set(range(VISITS)), threading.Event(), []
    with apdb.create(path, "small") as database:
        for number in range(VISITS):
            database.store(**visit_of(number, IDS))

        def write() -> None:
            number = VISITS
            try:
                while not stop.is_set():
                    database.store(**visit_of(number, IDS[: 50 + number]))
                    stored.add(number)
                    number += 1
            except BaseException as error:
                trouble.append(error)

        writer = threading.Thread(target=write)
        writer.start()
        try:
            for moment in ("reassociation 5000", "tiles", "statistics"):
                kill_maintenance(path, tmp_path / "given.parquet", moment)
        finally:
            stop.set()
            writer.join()
        assert not trouble
        stages: list[str] = []
        report = database.maintain(associations=associations(), progress=lambda what, done, total: stages.append(what))
        assert (report.reassociated, report.unknown, report.crowded) == (0, 0, []), "the killed ones had done it"
        assert stages[0] == "reassociation"
        assert stages[-1] == "statistics"
        found = database.sources().to_arrow()
        wanted = dict(zip(*(associations()[name].to_pylist() for name in ("diaSourceId", "ssObjectId")), strict=True))
        assert dict(zip(found["diaSourceId"].to_pylist(), found["ssObjectId"].to_pylist(), strict=True)) == {
            source: wanted.get(source)
            for number in stored
            for source in visit_of(number, IDS if number < VISITS else IDS[: 50 + number])["sources"]["diaSourceId"]
        }
        assert len(database.forced_sources()) == len(found)
        assert all(each.ok for each in database.verify().values())
        noted = database.statistics()["tables"]["dia_forced_source"]
        assert noted["rows"] == len(found) == report.statistics["dia_forced_source"].rows


def test_the_command_of_maintenance_gives_sources_to_objects_and_says_what_it_did(
    path: Path, tmp_path: Path, chronotile: RunCli
) -> None:
    with apdb.create(path, "small", cell_bytes_max=100) as database:
        for number in range(3):
            database.store(**visit_of(number, [1, 2]))
    given = {"diaSourceId": [1_001, 11_002, 77], "ssObjectId": [8, 9, 9]}
    pq.write_table(pa.table(given), tmp_path / "given.parquet")
    done = chronotile("apdb", "maintain", path, "--associations", tmp_path / "given.parquet")
    assert done.returncode == 0, done.stderr
    assert "2 sources assigned to solar-system objects" in done.stdout
    assert "dia_source" in done.stdout
    assert "given.parquet names 1 source that the database lacks" in done.stderr
    assert "partition over the limit" in done.stderr
    assert "partition over the limit" in chronotile("apdb", "info", path).stderr
    with apdb.open(path) as database:
        assert sorted(database.sources()["ssObjectId"].drop_null().to_pylist()) == [8, 9]


def test_processes_share_the_maintenance_of_a_survey(path: Path, chronotile: RunCli) -> None:
    with apdb.create(path, "small") as database:
        for number in range(3):
            database.store(**visit_of(number, [1, 2, 3]))
        before = database.sources().to_arrow().sort_by("diaSourceId")
        planned = database.archive.group(names.GROUP).consolidate(dry_run=True)
        tiles = dict.fromkeys(planned, 0)
        for number in (1, 2):
            done = chronotile("apdb", "maintain", path, "--shard", f"{number}/2", "--tiles-per-second", "500", "--json")
            report = json.loads(done.stdout)
            assert (report["statistics"], report["crowded"]) == ({}, [])
            for name in tiles:
                tiles[name] += report["consolidated"][name]["tiles"]
        assert tiles == {name: report.tiles for name, report in planned.items()}
        assert sum(tiles.values()) > 5
        assert database.statistics() == {}
        report = database.maintain()
        assert sum(each.tiles for each in report.consolidated.values()) == 0
        assert database.statistics()["tables"]["dia_source"]["rows"] == 9
        assert database.sources().to_arrow().sort_by("diaSourceId").equals(before)
        with pytest.raises(ct.InvalidInputError, match=r"shard \(3, 2\): give"):
            database.maintain(shard=(3, 2))


# ---------------------------------------------------------------------- crowded places


def stars(ra: float, dec: float, radius: float) -> tuple[Any, Any]:
    table = pq.read_table(data_file("gcvs.parquet"), columns=["ra", "dec"]).drop_null()
    found = table["ra"].to_numpy(), table["dec"].to_numpy()
    near = separation_deg(*found, ra, dec) < radius
    return found[0][near], found[1][near]


def test_the_layout_follows_from_the_densest_place_and_keeps_it_within_the_limit(tmp_path: Path) -> None:
    ra, dec = 270.0, -29.0
    survey = Survey(
        visits=3, detectors=4, nights=3, ra=ra, dec=dec, variables=60_000, transients=0,
        density=str(data_file("gcvs.parquet")),
    )  # fmt: skip
    reach = 2 * np.pi * (1 - np.cos(np.radians(2.6))) * np.degrees(1) ** 2
    objects = survey.variables / FIELD_AREA_DEG2 * reach
    density = apdb.Density(*stars(ra, dec, 2.6), objects, visits_a_month=3)
    small = apdb.Schema.read("small")

    def largest(layout: apdb.Layout, name: str) -> dict[str, int]:
        apdb.create(tmp_path / name, small, layout).close()
        run(Run(survey, str(tmp_path / name), tmp_path / f"{name}-log"))
        with apdb.open(tmp_path / name) as database:
            info = database.info()
        return {t: max(s.cell_bytes_max for s in info[names.dataset_name(t)].slices) for t in names.MAIN_TABLES}

    plain = largest(apdb.Layout(), "plain")
    bound = density.cell_bytes(small, apdb.Layout())
    assert all(plain[table] <= bound[table] for table in plain), "the bound holds for real chunks"
    limit = max(plain.values()) // 2
    chosen = density.layout(small, apdb.Layout(cell_bytes_max=limit))
    assert chosen.level > apdb.Layout().level
    assert max(density.cell_bytes(small, chosen).values()) <= limit
    assert max(largest(chosen, "chosen").values()) <= limit < max(plain.values())


def test_a_uniform_sky_keeps_the_usual_layout_and_an_impossible_one_is_refused(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    ra, dec = rng.uniform(0, 360, 50_000), np.degrees(np.arcsin(rng.uniform(-1, 1, 50_000)))
    lsst_like = apdb.Density(ra, dec, objects=2e7, visits_a_month=10)
    small = apdb.Schema.read("small")
    # Its index of objects would fill two thousand partitions.
    assert lsst_like.layout(small) == apdb.Layout(object_index_partitions=0)
    for objects, partitions in ((5_000, 1), (50_000, 6), (200_000, 0)):
        smaller = apdb.Density(ra, dec, objects=objects, visits_a_month=10)
        assert smaller.layout(small) == apdb.Layout(object_index_partitions=partitions)
        assert smaller.layout(small, apdb.Layout(object_index_partitions=0)) == apdb.Layout(object_index_partitions=0)
    with apdb.create(tmp_path / "file.db", small, density=lsst_like) as database:
        assert database.layout.object_index_partitions == 1, "a file has no partitions"
    # A square degree with a thousand times the objects of others.
    crowd = [np.concatenate([part, 10 + rng.uniform(0, 1, 3_000)]) for part in (ra, dec)]
    finer = apdb.Density(*crowd, objects=2e7, visits_a_month=10).layout(small)
    assert finer.level > apdb.Layout().level
    with pytest.raises(ct.InvalidInputError, match="even with mq3c level 13 and windows of 5d"):
        apdb.Density(*crowd, objects=2e7, visits_a_month=300).layout(small, apdb.Layout(cell_bytes_max=10_000))


def test_fewer_pixels_share_a_partition_before_pixels_become_finer() -> None:
    small, base = apdb.Schema.read("small"), apdb.Layout()
    rng = np.random.default_rng(9)
    field = apdb.Density(rng.uniform(8, 12, 20_000), rng.uniform(8, 12, 20_000), objects=2e5, visits_a_month=10)
    alone = dataclasses.replace(base, partition_levels=0, object_partition_levels=0)
    of_pixels, shared = field.cell_bytes(small, alone), field.cell_bytes(small, base)
    assert shared[names.SOURCE] > 8 * of_pixels[names.SOURCE], "sixteen pixels, less dense than the densest"
    chosen = field.layout(small, dataclasses.replace(base, cell_bytes_max=max(of_pixels.values())))
    assert (chosen.level, chosen.window) == (base.level, base.window)
    assert (chosen.partition_levels, chosen.object_partition_levels) < (2, 1)
    assert max(field.cell_bytes(small, chosen).values()) <= max(of_pixels.values())
    assert [base.partition_cells(table) for table in names.MAIN_TABLES] == [4, 16, 16]
    assert dataclasses.replace(base, storage="rows").partition_cells(names.SOURCE) == 1


def test_a_slice_is_judged_by_what_it_will_hold_when_it_is_full(path: Path) -> None:
    with apdb.create(path, "small") as database:
        database.store(**visit_of(0, IDS[:300]))
        assert database.crowded() == []
        (part,) = database.info()["dia_source"].slices
        limit = part.cell_bytes_max * 2
        strict = dataclasses.replace(database.layout, cell_bytes_max=limit)
        from chronotile.apdb.density import crowded

        quarter = part.start + (part.end - part.start) / 4
        (found,) = crowded({"DiaSource": database.info()["dia_source"]}, strict, quarter)
        assert found.bytes == part.cell_bytes_max <= limit < found.expected
        assert crowded({"DiaSource": database.info()["dia_source"]}, strict, float(str(part.end))) == []


def test_the_command_creates_what_the_densest_place_needs(tmp_path: Path, chronotile: RunCli) -> None:
    pq.write_table(pa.table({"ra": np.full(50, 10.0), "dec": np.full(50, 10.0)}), tmp_path / "stars.parquet")
    command = ("apdb", "create", tmp_path / "survey.db", "--schema", "small", "--density", tmp_path / "stars.parquet")
    assert chronotile(*command).returncode == 2
    given = ("--objects", "1000", "--visits-a-month", "30", "--cell-mib-max", "15")
    done = chronotile(*command, *given)
    assert done.returncode == 0, done.stderr
    assert "expected per partition and slice" in done.stdout
    with apdb.open(tmp_path / "survey.db") as database:
        assert database.layout.cell_bytes_max == 15 * 2**20
        assert (database.layout.object_window, database.layout.object_slice) == ("180d", 1), "22 MiB in twelve months"
