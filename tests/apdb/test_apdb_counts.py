"""Source counts of objects are what the database holds, and never less where sources may have left it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
import numpy as np
import pyarrow as pa
from conftest import Run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support_apdb import START, visit_of

import chronotile as ct
from chronotile import apdb
from chronotile.apdb import names, source_counts
from chronotile.apdb.tables import SurveyTables
from chronotile.dataset import Dataset

LATER = START + 400
"""The slice of the first visits ends before, and that of visit 600 begins after."""


@pytest.fixture
def survey() -> Iterator[apdb.Apdb]:
    """A small database in memory, with a list of changes."""
    with apdb.create("memory:", "small", feed=True) as made:
        yield made


def visit(number: int, counts: dict[int, int | None], ra: float = 150.1, dec: float = 2.1) -> dict[str, Any]:
    """A detector-visit that saw objects in one place, each with the count that its new version claims."""
    rows = visit_of(number, list(counts))
    for table in (rows["objects"], rows["sources"], rows["forced_sources"]):
        table |= {"ra": np.full(len(counts), ra), "dec": np.full(len(counts), dec)}
    rows["objects"]["nDiaSources"] = pa.array(list(counts.values()), pa.int32())
    return rows


def source(number: int, object_id: int) -> int:
    """Id of the source of an object in a visit."""
    return number * 10_000 + 1_000 + object_id


def counts_of(database: apdb.Apdb) -> dict[int, int | None]:
    """The count of each object, closed ones too."""
    rows = database.objects(columns=["diaObjectId", "nDiaSources"], closed=True).to_arrow()
    assert len(set(rows["diaObjectId"].to_pylist())) == rows.num_rows
    return dict(zip(rows["diaObjectId"].to_pylist(), rows["nDiaSources"].to_pylist(), strict=True))


def held(database: apdb.Apdb) -> Counter[int]:
    """The sources of each object that the database has."""
    return Counter(database.sources(columns=["diaObjectId"])["diaObjectId"].drop_null().to_pylist())


def listed_counts(database: apdb.Apdb) -> list[tuple[int, int]]:
    """Object and count of each record of the feed that sets a count, in order."""
    feed = apdb.Feed(database)
    rows = feed.changes([chunk.id for chunk in feed.chunks()]).to_pylist()
    return [(row["diaObjectId"], row["nDiaSources"]) for row in rows if row["kind"] == "update_n_dia_sources"]


def versions_of(database: apdb.Apdb) -> int:
    """Number of stored object versions, newer ones of the same visit included."""
    return database.dataset("DiaObject").count(history=True)


# ---------------------------------------------------------------------- reassign


def test_reassign_sets_wrong_counts_right_where_sources_come_and_go(survey: apdb.Apdb) -> None:
    survey.store(**visit(0, {1: 1, 2: 1, 3: 1, 4: None}))
    survey.store(**visit(1, {1: 0, 2: 77, 3: 9, 4: None}))
    assert survey.reassign({source(0, 2): 1, source(1, 4): 1}) == 2
    assert counts_of(survey) == {1: 4, 2: 1, 3: 9, 4: 1}, "of 3, no source moved"
    assert sorted(listed_counts(survey)) == [(1, 4), (2, 1), (4, 1)]


def test_a_merge_of_duplicates_leaves_all_sources_in_one_count(survey: apdb.Apdb) -> None:
    for number in range(4):
        survey.store(**visit(number, dict.fromkeys([1, 2, 3], 1)))
    moved = {source(number, each): 1 for number in range(4) for each in (2, 3)}
    assert survey.reassign(moved) == 8
    assert counts_of(survey) == {1: 12, 2: 0, 3: 0}
    survey.close_validity([2, 3], START + 9)
    assert survey.maintain(counts=True).counts_corrected == 0
    assert len(survey.objects()) == 1


@pytest.mark.parametrize(
    ("increment", "decrement", "wanted"),
    [(True, True, {1: 3, 2: 1}), (True, False, {1: 3, 2: 50}), (False, True, {1: 40, 2: 1}), (False, False, None)],
)
def test_counts_of_objects_that_gain_or_lose_are_left_alone_on_request(
    survey: apdb.Apdb, increment: bool, decrement: bool, wanted: dict[int, int] | None
) -> None:
    survey.store(**visit(0, {1: 1, 2: 1}))
    survey.store(**visit(1, {1: 40, 2: 50}))
    assert survey.reassign({source(0, 2): 1}, increment=increment, decrement=decrement) == 1
    assert counts_of(survey) == (wanted or {1: 40, 2: 50})


def test_withdrawn_sources_count_and_deleted_ones_do_not(survey: apdb.Apdb) -> None:
    for number in range(3):
        survey.store(**visit(number, {1: number + 1, 2: number + 1}))
    survey.withdraw_sources([source(0, 1), source(0, 2)])
    assert survey.delete("DiaSource", [source(1, 1)], archived=False) == 1
    assert survey.reassign({source(2, 2): 1}) == 1
    assert counts_of(survey) == {1: 3, 2: 2}


def test_an_object_whose_count_stays_right_gets_no_new_version(survey: apdb.Apdb) -> None:
    survey.store(**visit(0, {1: 1, 2: 1, 3: 1}))
    before = versions_of(survey)
    assert survey.reassign({source(0, 1): 2, source(0, 2): 3, source(0, 3): 1}) == 3
    assert counts_of(survey) == {1: 1, 2: 1, 3: 1}
    assert (versions_of(survey), listed_counts(survey)) == (before, [])


def test_deleted_objects_take_no_sources_and_stay_deleted(survey: apdb.Apdb) -> None:
    survey.store(**visit(0, {1: 1, 2: 1, 3: 1}))
    survey.delete("DiaObject", [2, 3], archived=False)
    with pytest.raises(ct.InvalidInputError, match=r"DiaObject.*: 2;"):
        survey.reassign({source(0, 1): 2})
    assert survey.reassign({source(0, 3): 1}) == 1
    assert counts_of(survey) == {1: 2}
    assert listed_counts(survey) == [(1, 2)]


def border_deg() -> float:
    """Right ascension near 150 degrees at which a pixel ends, at a declination of 2.1 degrees."""

    def pixel(ra: float) -> int:
        return int(pa.array(ct.sky.pixel_index("mq3c", 9, np.array([ra]), np.array([2.1])))[0].as_py())

    low, high = 150.0, 150.4
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if pixel(middle) == pixel(150.0) else (low, middle)
    return high


def test_sources_beyond_the_border_of_a_pixel_are_counted(survey: apdb.Apdb) -> None:
    border = border_deg()
    survey.store(**visit(0, {1: 1, 2: 1, 3: 1}, ra=border + 2 / 3600))
    for number in range(1, 4):
        survey.store(**visit(number, {1: 1, 3: 1}, ra=border - 2 / 3600))
    # Object 3 claims what its own pixel has.
    survey.store(**visit(4, {1: 1, 2: 1, 3: 2}, ra=border + 2 / 3600))
    assert survey.reassign({source(0, 2): 1}) == 1
    assert counts_of(survey) == {1: 6, 2: 1, 3: 2}
    assert survey.maintain(counts=True).counts_corrected == 1
    assert counts_of(survey) == {1: 6, 2: 1, 3: 5}


@pytest.mark.parametrize(("arcsec", "corrected"), [(59.5, 2), (60.5, 0)])
def test_sources_are_looked_for_within_an_arc_minute_of_their_object(
    survey: apdb.Apdb, arcsec: float, corrected: int
) -> None:
    border, second = border_deg(), 1 / 3600 / np.cos(np.radians(2.1))
    survey.store(**visit(0, {1: 1, 2: 1}, ra=border - 0.01 * second))
    survey.store(**visit(1, {1: 1, 2: 1}, ra=border + arcsec * second))
    assert survey.maintain(counts=True).counts_corrected == corrected
    # The moved source may lie five arc seconds from its object.
    survey.store(**visit(2, {1: 1, 2: 1}, ra=border + 64.5 * second))
    assert survey.reassign({source(2, 2): 1}) == 1
    assert counts_of(survey) == {1: 4, 2: 2}


def test_a_visit_that_is_stored_during_a_reassignment_is_counted_by_the_next(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with apdb.create(path, "small") as database, apdb.open(path) as other:
        database.store(**visit(0, {1: 1, 2: 1}))
        write, stored = ct.Group.write, []

        def late(group: ct.Group, data: Any, batch: str | None = None, **options: Any) -> Any:
            if not stored:
                stored.append(batch)
                # Its pipeline has read the objects before.
                other.store(**visit(1, {1: 2, 2: 2}))
            return write(group, data, batch, **options)

        monkeypatch.setattr(ct.Group, "write", late)
        assert database.reassign({source(0, 2): 1}) == 1
        monkeypatch.undo()
        assert held(database) == {1: 3, 2: 1}
        assert counts_of(database) == {1: 2, 2: 2}, "what the visit brought"
        assert database.maintain(counts=True).counts_corrected == 2
        assert counts_of(database) == {1: 3, 2: 1}


# ---------------------------------------------------------------------- sources that left the database


def leave(database: apdb.Apdb, how: str, folder: Path) -> None:
    """Have the old slices leave the database, or be in files beside it."""
    if how == "retired":
        assert database.retire(LATER)["dia_source"]
    else:
        assert database.archive_before(LATER, folder)
    if how == "restored":
        assert database.restore(folder)


@pytest.mark.parametrize("consolidated", [False, True])
@pytest.mark.parametrize("how", ["retired", "archived", "restored"])
def test_counts_are_never_lowered_where_sources_may_have_left(
    survey: apdb.Apdb, tmp_path: Path, how: str, consolidated: bool
) -> None:
    survey.store(**visit(0, {1: 1, 2: 1, 3: 1, 4: 1}))
    survey.store(**visit(600, {1: 2, 2: 2, 3: 2, 4: 0, 5: 9, 6: 9}))
    # An old source of an object that is first seen later.
    assert survey.reassign({source(0, 3): 6}) == 1
    assert counts_of(survey) == {1: 2, 2: 2, 3: 1, 4: 0, 5: 9, 6: 2}
    leave(survey, how, tmp_path / "cold")
    if consolidated:
        survey.maintain()
    assert survey.reassign({source(600, 2): 1}) == 1
    assert counts_of(survey) == {1: 3, 2: 1, 3: 1, 4: 0, 5: 9, 6: 2}
    restored = how == "restored"
    # Object 4 has more sources than counted, and object 5 is younger than all that left.
    assert survey.maintain(counts=True).counts_corrected == 2
    assert counts_of(survey) == {1: 3, 2: 1, 3: 1, 4: 2 if restored else 1, 5: 1, 6: 2}
    assert survey.maintain(counts=True).counts_corrected == 0
    if restored:
        assert held(survey) == counts_of(survey)


def test_without_the_first_rows_of_objects_every_count_may_have_lost_sources(survey: apdb.Apdb) -> None:
    with apdb.create("memory:", "small", object_index_partitions=0) as unindexed:
        for database, objects in ((unindexed, False), (survey, True)):
            database.store(**visit(0, {1: 1}))
            database.store(**visit(600, {1: 2, 5: 9}))
            assert database.retire(LATER, objects=objects)["dia_source"]
            assert database.maintain(counts=True).counts_corrected == 0
            assert counts_of(database) == {1: 2, 5: 9}


def test_objects_that_are_younger_than_all_slices_that_left_have_lost_no_sources() -> None:
    # An object may have had a source at the end of a slice, which rounding may put before or behind it.
    first = {1: 0, 2: 150, 3: 226, 4: 227, 5: 228, 6: 346}
    with apdb.create("memory:", "small", object_window="1d") as database:
        for object_id, day in first.items():
            database.store(**visit(day, {object_id: 9}))
        database.store(**visit(1, {7: None, 8: 1}))
        assert database.delete("DiaSource", [source(1, 8)]) == 1
        (*_, last) = database.retire(START + 240)["dia_source"]
        assert last.end == START + 227
        # The null of object 7 counts as 0, and the 1 of object 8 may be right.
        assert database.maintain(counts=True).counts_corrected == 3
        assert counts_of(database) == {**dict.fromkeys([1, 2, 3, 4], 9), 5: 1, 6: 1, 7: 0, 8: 1}


def test_a_count_is_never_negative() -> None:
    # A source may be removed between the read that finds it and the one that counts.
    with apdb.create("memory:", "small") as database:
        counts = source_counts.SourceCounts(SurveyTables(database.archive))
        objects = pa.table({"diaObjectId": [1, 2], "nDiaSources": pa.array([0, None], pa.int32())})
        assert counts.settled(objects, np.array([0, 1]), np.array([-1, -1])).tolist() == [0, 0]


# ---------------------------------------------------------------------- maintenance


def test_objects_are_taken_by_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    with apdb.create("memory:", "small") as database:
        for number, object_id in enumerate((1, 2, 3, 4, 5, 6, 7)):
            database.store(**visit(number, {object_id: 1}, ra=150.1 + number))
        database.delete("DiaObject", [7])
        counts = source_counts.SourceCounts(SurveyTables(database.archive))
        assert counts.number() == 6
        for size, sizes in ((4, [4, 2]), (3, [3, 3]), (7, [6])):
            monkeypatch.setattr(source_counts, "PART", size)
            parts = list(counts.parts())
            assert [part.num_rows for part in parts] == sizes
            assert sorted(pa.concat_tables(parts)["diaObjectId"].to_pylist()) == [1, 2, 3, 4, 5, 6]


def test_maintenance_corrects_counts_once_and_lists_each(survey: apdb.Apdb) -> None:
    survey.store(**visit(0, {1: 1, 2: 1, 3: 1}))
    survey.store(**visit(1, {1: 2, 2: 2, 3: 2}))
    survey.store(**visit(2, {1: 5, 2: None, 3: 3, 4: 0}))
    assert survey.remove_visit(0).detector_visits == 1
    assert survey.close_validity([4], START + 5) == 1
    assert survey.maintain().counts_corrected == 0
    assert counts_of(survey) == {1: 5, 2: None, 3: 3, 4: 0}, "only on request"
    stages: list[tuple[str, int, int]] = []
    report = survey.maintain(counts=True, progress=lambda *stage: stages.append(stage))
    assert report.counts_corrected == 4
    assert stages[0] == ("source counts", 0, 4)
    assert counts_of(survey) == held(survey) == {1: 2, 2: 2, 3: 2, 4: 1}
    assert sorted(listed_counts(survey)) == [(1, 2), (2, 2), (3, 2), (4, 1)]
    before = versions_of(survey)
    assert survey.maintain(counts=True).counts_corrected == 0
    assert versions_of(survey) == before


def test_sources_of_solar_system_objects_are_not_counted_any_more(survey: apdb.Apdb) -> None:
    survey.store(**visit(0, {1: 1, 2: 1}))
    report = survey.maintain(associations={source(0, 1): 77}, counts=True)
    assert (report.reassociated, report.counts_corrected) == (1, 1)
    assert counts_of(survey) == {1: 0, 2: 1}


IDS = list(range(900))


def test_counts_are_corrected_by_parts_and_a_killed_run_is_continued(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = (
        "import os, sys\n"
        "from chronotile import apdb\n"
        "from chronotile.apdb import source_counts\n"
        "source_counts.PART = 70\n"
        "stop = lambda what, done, total: os.kill(os.getpid(), 9) if done >= 210 else None\n"
        "apdb.open(sys.argv[1]).maintain(counts=True, progress=stop)"
    )
    with apdb.create(path, "small") as database:
        for number in range(3):
            database.store(**visit_of(number, IDS))
        killed = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
        assert killed.returncode == -signal.SIGKILL
        assert sorted(Counter(counts_of(database).values()).items()) == [(1, 690), (3, 210)], "three parts of seventy"
        monkeypatch.setattr(source_counts, "PART", 70)
        assert database.maintain(counts=True).counts_corrected == 690
        assert counts_of(database) == dict.fromkeys(IDS, 3)
        changes = [batch for batch in database.archive.group(names.GROUP).batches() if batch.key.startswith("change-")]
        assert len(changes) == 13
        assert max(batch.datasets["dia_object"].rows for batch in changes) == 70


def test_a_schema_without_counts_is_told_so_and_sources_still_move() -> None:
    small = apdb.Schema.read("small")
    columns = tuple(column for column in small["DiaObject"].columns if column.name != "nDiaSources")
    tables = [dataclasses.replace(t, columns=columns) if t.name == "DiaObject" else t for t in small.tables]
    with apdb.create("memory:", dataclasses.replace(small, tables=tuple(tables))) as database:
        rows = visit(0, {1: 1, 2: 1})
        del rows["objects"]["nDiaSources"]
        database.store(**rows)
        assert database.reassign({source(0, 2): 1}) == 1
        assert held(database) == {1: 2}
        with pytest.raises(ct.InvalidInputError, match="no column nDiaSources") as refused:
            database.maintain(associations={source(0, 1): 7}, counts=True)
        assert refused.value.kind == "invalid-request"
        assert held(database) == {1: 2}, "nothing was done"


def test_other_maintenance_goes_on_where_sources_are_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(self: Dataset, *columns: Any, **how: Any) -> Any:
        raise ct.DamagedError("a chunk is damaged", kind="damaged-chunk")

    with apdb.create("memory:", "small") as database:
        for number in range(2):
            database.store(**visit(number, {1: 1, 2: 1}))
        monkeypatch.setattr(Dataset, "count_by", damaged)
        with pytest.raises(ct.DamagedError, match="a chunk is damaged"):
            database.maintain(counts=True)
        monkeypatch.undo()
        assert database.info()["dia_source"].tile_chunks.max == 1, "consolidated all the same"


def test_the_command_corrects_counts_and_says_how_many(path: Path, chronotile: Run) -> None:
    with apdb.create(path, "small") as database:
        database.store(**visit(0, {1: 1, 2: 4, 3: 0}))
    done = chronotile("apdb", "maintain", path)
    assert (done.returncode, "corrected" in done.stdout) == (0, False)
    assert "2 source counts corrected" in chronotile("apdb", "maintain", path, "--counts").stdout
    again = chronotile("apdb", "maintain", path, "--counts", "--json")
    assert json.loads(again.stdout)["counts_corrected"] == 0
    with apdb.open(path) as database:
        assert counts_of(database) == {1: 1, 2: 1, 3: 1}


# ---------------------------------------------------------------------- against a model

PLACE = st.integers(0, 500)
STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("store"), st.integers(0, 7), st.dictionaries(st.integers(1, 5), st.integers(0, 4), min_size=1)
        ),
        st.tuples(st.just("reassign"), PLACE, PLACE, st.booleans(), st.booleans()),
        st.tuples(st.just("delete"), PLACE),
        st.tuples(st.just("withdraw"), PLACE),
        st.tuples(st.just("remove"), st.integers(0, 7)),
        st.tuples(st.just("maintain")),
    ),
    min_size=2,
    max_size=12,
)


def step(database: apdb.Apdb, what: tuple[Any, ...]) -> dict[int, int]:
    """Do a step; return the counts that must be right after it."""
    sources = sorted(database.sources()["diaSourceId"].to_pylist())
    if what[0] == "store" and not database.contains(what[1], 1):
        with contextlib.suppress(ct.BatchConflictError):
            database.store(**visit(what[1], what[2]))
    elif what[0] == "remove":
        database.remove_visit(what[1], changed=True)
    elif what[0] == "maintain":
        database.maintain()
    elif sources and what[0] == "reassign":
        return reassign(database, sources, *what[1:])
    elif sources and what[0] == "delete":
        database.delete("DiaSource", [sources[what[1] % len(sources)]], archived=False)
    elif sources and what[0] == "withdraw":
        database.withdraw_sources([sources[what[1] % len(sources)]])
    return {}


def reassign(database: apdb.Apdb, sources: list[int], one: int, two: int, gain: bool, lose: bool) -> dict[int, int]:
    objects = sorted(counts_of(database))
    if not objects:
        return {}
    moved, target = sources[one % len(sources)], objects[two % len(objects)]
    before = database.sources().to_arrow().to_pylist()
    (origin,) = (row["diaObjectId"] for row in before if row["diaSourceId"] == moved)
    stored = counts_of(database)
    if not database.reassign({moved: target}, increment=gain, decrement=lose):
        return {}
    found = held(database)
    wanted = {target: found[target] if gain else stored[target]}
    if origin in stored:
        wanted[origin] = found[origin] if lose else stored[origin]
    return {key: value for key, value in wanted.items() if value is not None}


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_counts_equal_those_of_a_plain_count_whatever_was_done_before(steps: Any) -> None:
    with apdb.create("memory:", "small") as database:
        for what in steps:
            wanted = step(database, what)
            assert {key: counts_of(database)[key] for key in wanted} == wanted
        before, found = counts_of(database), held(database)
        corrected = database.maintain(counts=True).counts_corrected
        assert counts_of(database) == {each: found[each] for each in before}
        assert corrected == sum(count != found[each] for each, count in before.items())
