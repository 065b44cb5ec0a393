"""Groups through the Python API."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import chronotile as ct
from chronotile import sky

NAMES = ("objects", "sources")


def create(archive: ct.Archive) -> ct.Group:
    for name in NAMES:
        archive.create(
            name, schema={"id": "int64", "mjd": "float64", "ra": "float64", "dec": "float64", "visit": "int64"},
            cell=ct.sky("ra", "dec", level=9), time=ct.mjd("mjd"), window="30d" if name == "sources" else "360d",
            id=["id"], merge="latest" if name == "objects" else "append", group="survey", exist_ok=True,
        )  # fmt: skip
    return archive.group("survey")


def rows(first: int, count: int, visit: int = 0) -> pa.Table:
    ids = np.arange(first, first + count)
    return pa.table(
        {
            "id": ids,
            "mjd": 61000.0 + ids % 50,
            "ra": 10.0 + 0.01 * (ids % 40),
            "dec": np.full(count, 2.0),
            "visit": np.full(count, visit),
        }
    )


def test_a_batch_is_one_in_all_datasets_of_a_group(tmp_path: Path) -> None:
    with ct.open(tmp_path / "survey.db") as archive:
        group = create(archive)
        assert archive.groups() == ["survey"]
        assert list(group) == list(NAMES)
        assert "sources" in group
        assert len(group) == 2
        reports = group.write({"objects": rows(0, 10), "sources": rows(0, 30)}, batch="visit-1")
        assert {name: report.rows for name, report in reports.items()} == {"objects": 10, "sources": 30}
        assert all(report.stored for report in reports.values())
        again = group.write({"objects": rows(0, 10), "sources": rows(0, 30)}, batch="visit-1")
        assert not any(report.stored for report in again.values())
        with pytest.raises(ct.BatchConflictError, match="other content"):
            group.write({"objects": rows(0, 10)}, batch="visit-1")
        info = group.batch("visit-1")
        assert info is not None
        assert (info.rows, info.finished) == (40, True)
        period = info.datasets["sources"].period
        assert period is not None
        assert list(period) == pytest.approx([61000.0, 61029.0])
        assert group.batches() == [info]
        assert archive["sources"].group == "survey"
        part = archive["sources"].batch("visit-1")
        assert part is not None
        assert part.rows == 30

        group.write({"sources": rows(5, 3)}, batch="visit-1", replace=True)
        found = group.read({"objects": {}, "sources": {"columns": ["id"]}})
        assert found["objects"].num_rows == 0
        assert sorted(found["sources"]["id"].to_pylist()) == [5, 6, 7]
        with pytest.raises(ct.InvalidInputError, match="remove the batch from the group"):
            archive["sources"].remove_batch("visit-1")
        assert group.remove_batch("visit-1") == 3
        assert group.batch("visit-1") is None
        with pytest.raises(ct.BatchNotFoundError):
            group.remove_batch("visit-1")
        assert all(dataset.verify().ok for dataset in group.datasets.values())


def test_wrong_names_say_what_there_is(tmp_path: Path) -> None:
    with ct.open(tmp_path / "survey.db") as archive:
        group = create(archive)
        with pytest.raises(ct.DatasetNotFoundError, match="survey"):
            archive.group("survy")
        unknown: list[Callable[[], object]] = [
            lambda: group["sorces"],
            lambda: group.write({"sorces": rows(0, 1)}),
            lambda: group.read({"sorces": {}}),
        ]
        for call in unknown:
            with pytest.raises(ct.DatasetNotFoundError, match=r"in group survey.*sources"):
                call()
        table: Any = rows(0, 1)
        with pytest.raises(ct.InvalidInputError, match="dict of rows by dataset"):
            group.write(table)
        for wrong in ("sources", {"sources": "ra"}):
            with pytest.raises(ct.InvalidInputError, match="dict of arguments of read by dataset"):
                group.read(wrong)  # type: ignore[arg-type]
        with pytest.raises(ct.InvalidInputError, match="at least one dataset"):
            group.write({})
        with pytest.raises(ct.InvalidInputError, match="drop the whole group survey"):
            archive.drop("sources")
        with pytest.raises(ct.InvalidInputError, match="choose another"):
            archive.create("survey", schema={"t": "timestamp[us]"}, cell=ct.single(), time="t")
        group.write({"sources": rows(0, 5)})
        archive.drop("survey")
        assert archive.datasets() == archive.groups() == []
        assert create(archive)["sources"].count() == 0


def test_a_refused_row_stores_nothing_in_any_dataset(tmp_path: Path) -> None:
    with ct.open(tmp_path / "survey.db") as archive:
        group = create(archive)
        bad = rows(0, 3).set_column(1, "mjd", pa.array([61000.0, None, 61001.0]))
        with pytest.raises(ct.InvalidInputError):
            group.write({"objects": rows(0, 3), "sources": bad}, batch="visit")
        assert (group["objects"].count(), group.batches()) == (0, [])
        group.write({"objects": rows(0, 3), "sources": rows(0, 3)}, batch="visit")
        assert group["objects"].count() == 3


def test_slices_keep_their_own_numbers(tmp_path: Path) -> None:
    with ct.open(tmp_path / "survey.db") as archive:
        group = create(archive)
        group.write({"objects": rows(0, 50), "sources": rows(0, 50)})
        numbers = {name: [part.slice for part in dataset.info().slices] for name, dataset in group.datasets.items()}
        days = {"objects": 360, "sources": 30}
        for name, slices in numbers.items():
            expected = {(61000 + day - 40587) // days[name] for day in range(50)}
            assert slices == sorted(expected)
        planned = group["sources"].retire(before=61020.0, dry_run=True)
        assert [part.slice for part in planned] == [numbers["sources"][0]]
        assert [part.slice for part in group["sources"].retire(unchanged=planned)] == [numbers["sources"][0]]
        assert group["objects"].count() == 50


@pytest.mark.parametrize("engine", ["sqlite", "memory"])
def test_a_reader_sees_each_batch_in_all_datasets_or_in_none(tmp_path: Path, engine: str) -> None:
    url: Any = tmp_path / "survey.db" if engine == "sqlite" else "memory:"
    with ct.open(url) as archive:
        group, seen, failures = create(archive), 0, []

        def work(writer: int) -> None:
            # Each writer replaces and removes its own batches; several processes have their own handles.
            mine = create(archive) if engine == "memory" else create(ct.open(url))
            try:
                for step in range(25):
                    visit = 100 * writer + step
                    first = 1_000 * writer
                    tables = {"objects": rows(first, 40, visit), "sources": rows(first, 60, visit)}
                    mine.write(tables, batch=f"visit-{writer}", replace=True)
                    if step % 7 == 6:
                        mine.remove_batch(f"visit-{writer}")
            except Exception as error:
                failures.append(error)

        writers = [threading.Thread(target=work, args=(writer,)) for writer in range(1, 4)]
        for thread in writers:
            thread.start()
        while any(thread.is_alive() for thread in writers):
            found = group.read({name: {"columns": ["id", "visit"]} for name in NAMES})
            visits = [set(found[name]["visit"].to_pylist()) for name in NAMES]
            assert visits[0] == visits[1]
            assert [found[name].num_rows for name in NAMES] == [40 * len(visits[0]), 60 * len(visits[0])]
            seen += 1
        assert not failures
        assert seen > 3


def sharing(archive: ct.Archive) -> ct.Group:
    """A group of which `forced` shares the slices of `sources`."""
    create(archive)
    archive.create(
        "forced", schema={"id": "int64", "mjd": "float64", "ra": "float64", "dec": "float64"},
        cell=ct.sky("ra", "dec", level=9), time=ct.mjd("mjd"), window="30d", id=["id"], group="survey",
        slices_of="sources", exist_ok=True,
    )  # fmt: skip
    return archive.group("survey")


def test_a_dataset_may_name_the_cells_of_others(tmp_path: Path) -> None:
    with ct.open(tmp_path / "survey.db") as archive:
        create(archive)
        archive.create(
            "index", schema={"id": "int64", "cell": "int64", "time": "timestamp[us]", "note": "utf8"},
            cell=ct.hash("id", buckets=4), time="time", window="30d", id=["id", "cell"], group="survey",
        )  # fmt: skip
        group = archive.group("survey")
        sources = rows(0, 30)
        pixels = sky.pixel_index("mq3c", 9, sources["ra"].to_numpy(), sources["dec"].to_numpy())
        cells = pa.array(pixels).cast(pa.int64())
        moments = pa.array(np.full(30, "2026-01-01", "datetime64[us]"))
        index = pa.table({"id": sources["id"], "cell": cells, "time": moments, "note": pa.nulls(30, pa.utf8())})
        group.write({"sources": sources, "index": index}, batch="visit-1")
        requests: dict[str, Any] = {"sources": {}, "index": {"ids": [3, 7]}}
        found = group.read(requests, cells_from=("index", "cell"))
        assert list(found) == ["sources", "index"]
        assert sorted(found["index"]["id"].to_pylist()) == [3, 7]
        wanted = set(found["index"]["cell"].to_pylist())
        assert found["sources"]["id"].to_pylist() == [
            number for number, cell in enumerate(cells.to_pylist()) if cell in wanted
        ]
        for refused, cells_from, message in (
            (requests, ("objects", "cell"), "dataset 'objects', which is not read: add its request"),
            (
                requests,
                ("index", "nothing"),
                'cells_from needs column "nothing": add it to the columns of this request',
            ),
            (requests, ("index", "note"), 'column "note" has type Utf8: the numbers of cells come from a column of'),
            ({**requests, "sources": {"cells": [1]}}, ("index", "cell"), "cells of dataset 'sources': leave it out"),
            (requests, "index", r"cells_from 'index': give the names of a dataset and of its column"),
        ):
            with pytest.raises(ct.InvalidInputError, match=message):
                group.read(refused, cells_from=cells_from)  # type: ignore[arg-type]


def test_slices_that_are_shared_are_retired_together(tmp_path: Path) -> None:
    with ct.open(tmp_path / "survey.db") as archive:
        group = sharing(archive)
        forced = rows(0, 60).drop_columns(["visit"])
        group.write({"objects": rows(0, 10), "sources": rows(0, 50), "forced": forced}, batch="visit-1")
        assert group["forced"].shares_slices_with == ["sources"]
        assert group["objects"].shares_slices_with == []
        planned = group.retire(["sources", "forced"], before=61030.0, dry_run=True)
        assert planned["sources"] == group["sources"].retire(before=61030.0, dry_run=True)
        assert sum(part.rows for part in planned["sources"]) > 0
        with pytest.raises(ct.InvalidInputError, match="also hold rows of sources"):
            group["forced"].retire(before=61030.0)
        with pytest.raises(ct.InvalidInputError, match="name sources too"):
            group.retire("forced", before=61030.0)
        with pytest.raises(ct.DatasetNotFoundError, match="no dataset 'force'"):
            group.retire(["force"], before=61030.0)
        with pytest.raises(ct.InvalidInputError, match="name the datasets"):
            group.retire([], before=61030.0)
        with pytest.raises(ct.InvalidInputError, match="only one of"):
            group.retire(["sources", "forced"], before=61030.0, older_than="1d")
        # A number is a day for one of these, and a second for the other.
        archive.create("notes", schema={"t": "timestamp[s]"}, cell=ct.single(), time="t", group="survey")
        with pytest.raises(ct.InvalidInputError, match="differ in type, format or scale"):
            archive.group("survey").retire(["objects", "notes"], before=61030.0)
        with pytest.raises(ct.InvalidInputError, match="has no retention"):
            group.retire(["sources", "forced"])
        dropped = group.retire(["sources", "forced"], unchanged=planned["forced"])
        assert dropped == planned
        left = group.read({"sources": {}, "forced": {}, "objects": {}})
        assert left["objects"].num_rows == 10
        for name, all_rows in (("sources", 50), ("forced", 60)):
            assert left[name].num_rows == all_rows - sum(part.rows for part in planned[name])
            assert group[name].read().to_arrow().equals(left[name])
        assert all(group[name].verify().ok for name in group)
        # Retentions of other lengths: the longest holds for both.
        group["sources"].set_retention("1d")
        with pytest.raises(ct.InvalidInputError, match="has no retention"):
            group.retire(["sources", "forced"])
        group["forced"].set_retention("36500d")
        assert group.retire(["sources", "forced"]) == {"sources": [], "forced": []}


def test_datasets_are_consolidated_and_described_together(tmp_path: Path) -> None:
    with ct.open(tmp_path / "survey.db") as archive:
        group = sharing(archive)
        for part in range(3):
            forced = rows(20 * part, 60).drop_columns(["visit"])
            group.write({"objects": rows(0, 10), "sources": rows(50 * part, 50), "forced": forced})
        before = group.read({name: {} for name in group})
        assert group.info() == {name: group[name].info() for name in group}
        planned = group.consolidate(dry_run=True)
        assert planned == {name: group[name].consolidate(dry_run=True) for name in group}
        assert group.consolidate(before=60000.0)["sources"].tiles == 0
        told: list[tuple[int, int]] = []
        done = group.consolidate(["forced", "sources"], progress=lambda *parts: told.append(parts))
        assert done == {name: planned[name] for name in ("forced", "sources")}
        tiles = sum(report.tiles for report in done.values())
        assert tiles > 0
        assert told[-1] == (tiles, tiles)
        assert group.read({name: {} for name in group}) == before
        assert sum(part.chunks for part in group.info("forced")["forced"].slices) < planned["forced"].chunks_before
        for call in (group.info, group.consolidate):
            with pytest.raises(ct.DatasetNotFoundError, match="no dataset 'force'"):
                call(["force"])
        archive.create("notes", schema={"t": "timestamp[s]"}, cell=ct.single(), time="t", group="survey")
        with pytest.raises(ct.InvalidInputError, match="type, format or scale: consolidate them in several calls"):
            archive.group("survey").consolidate(before=61030.0)


def test_processes_share_a_consolidation(tmp_path: Path) -> None:
    with ct.open(tmp_path / "survey.db") as archive:
        group = sharing(archive)
        for part in range(2):
            forced = rows(20 * part, 60).drop_columns(["visit"])
            group.write({"objects": rows(0, 10), "sources": rows(50 * part, 50), "forced": forced})
        planned = group.consolidate(dry_run=True)
        parts = [group.consolidate(shard=(number, 3), tiles_per_s=1e6) for number in (1, 2, 3)]
        assert {name: sum(part[name].tiles for part in parts) for name in group} == {
            name: report.tiles for name, report in planned.items()
        }
        assert all(report.tiles == 0 for report in group.consolidate().values())
        assert group["sources"].consolidate(shard=(1, 1), tiles_per_s=1).tiles == 0
        wrong: list[Any] = [(0, 3), (4, 3), (1, 2, 3), 3, (1.5, 3), ("1", 3), (1, 2**32)]
        for shard in wrong:
            for consolidate in (group.consolidate, group["sources"].consolidate):
                with pytest.raises(ct.InvalidInputError, match=r"shard .*: give "):
                    consolidate(shard=shard)
        for rate in (0, -1.0, float("nan"), float("inf"), "fast"):
            with pytest.raises(ct.InvalidInputError, match=r"tiles_per_s .*: give a number"):
                group.consolidate(tiles_per_s=rate)  # type: ignore[arg-type]


def test_only_datasets_that_fit_share_slices(tmp_path: Path) -> None:
    with ct.open(tmp_path / "survey.db") as archive:
        create(archive)
        definition: dict[str, Any] = {
            "schema": {"id": "int64", "mjd": "float64"}, "cell": ct.id_bucket("id", 8), "time": ct.mjd("mjd"),
            "window": "30d", "id": ["id"],
        }  # fmt: skip
        with pytest.raises(ct.InvalidInputError, match="give group too"):
            archive.create("more", slices_of="sources", **definition)
        with pytest.raises(ct.InvalidInputError, match="joined the same group before"):
            archive.create("more", slices_of="source", group="survey", **definition)
        with pytest.raises(ct.InvalidInputError, match="have the same window"):
            archive.create("more", slices_of="objects", group="survey", **definition)
        with pytest.raises(ct.InvalidInputError, match="have the same window"):
            archive.create("more", slices_of="sources", group="survey", partition_cells=4, **definition)
        more = archive.create("more", slices_of="sources", group="survey", **definition)
        assert more.shares_slices_with == ["sources"]
        with pytest.raises(ct.DatasetExistsError, match="owner of its slices"):
            archive.create("more", group="survey", exist_ok=True, **definition)
