"""A change replaces exactly the records that it names, with newer versions that the feed lists."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
import numpy as np
import pyarrow as pa
from support_apdb import START, visit_of

import chronotile as ct
from chronotile import apdb
from chronotile.apdb import names, values

MINUTE = 1 / 1_440
LATER = START + 1_000


def visit(number: int, ids: tuple[int, ...] = (1, 2, 3)) -> dict[str, Any]:
    """A detector-visit whose objects all lie in one place."""
    rows = visit_of(number, list(ids))
    for table in ("objects", "sources", "forced_sources"):
        rows[table] |= {"ra": np.full(len(ids), 150.1), "dec": np.full(len(ids), 2.1)}
    return rows


@pytest.fixture
def survey() -> Iterator[apdb.Apdb]:
    """Two visits of objects 1 to 3, in memory, with a list of changes."""
    with apdb.create("memory:", "small", feed=True) as made:
        for number in range(2):
            made.store(**visit(number))
        yield made


def sources(survey: apdb.Apdb, column: str) -> dict[int, Any]:
    """One column of the sources, by id."""
    rows = survey.dataset("DiaSource").read(columns=["diaSourceId", column]).to_arrow()
    return dict(zip(rows["diaSourceId"].to_pylist(), rows[column].to_pylist(), strict=True))


def listed(survey: apdb.Apdb) -> list[dict[str, Any]]:
    """The list of changes, without what is null."""
    rows = survey.archive["apdb_updates"].read().to_arrow().sort_by("update_order").to_pylist()
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def counts_of(survey: apdb.Apdb) -> dict[int, int]:
    """The count of each object."""
    rows = survey.objects(columns=["diaObjectId", "nDiaSources"])
    return dict(zip(rows["diaObjectId"].to_pylist(), rows["nDiaSources"].to_pylist(), strict=True))


def of_time(moment: float, **more: Any) -> dict[str, Any]:
    """What the list has of every change of one time."""
    seconds = round((moment - values.MJD_OF_UNIX_EPOCH) * 86_400, 3)
    return {
        "update_time_ns": round(seconds * 1e9), "update_mjd_tai": moment, "chunk": seconds // 600 * 600, "done": False,
        **more,
    }  # fmt: skip


def check_listed(survey: apdb.Apdb, wanted: list[dict[str, Any]]) -> None:
    rows = listed(survey)
    assert len({row.pop("operation") for row in rows}) <= len({row["kind"] for row in wanted})
    for row in rows:
        row["update_time_ns"] = round(row["update_time_ns"], -6)
    assert rows == wanted


# ---------------------------------------------------------------------- kinds of changes


def test_sources_are_given_to_solar_system_objects(survey: apdb.Apdb) -> None:
    moment = START + 7.25
    assert survey.reassociate({1_001: 71, 1_002: 72}, time=moment) == 2
    assert sources(survey, "ssObjectId") == {
        1_001: 71,
        1_002: 72,
        1_003: None,
        11_001: None,
        11_002: None,
        11_003: None,
    }
    assert [sources(survey, "diaObjectId")[each] for each in (1_001, 1_002, 1_003)] == [None, None, 3]
    assert [sources(survey, names.REASSOCIATED)[each] for each in (1_001, 1_003)] == [moment, None]
    check_listed(
        survey,
        [
            of_time(
                moment, kind="reassign_diasource_to_ssobject", diaSourceId=1_000 + each, ra=150.1, dec=2.1,
                midpointMjdTai=START, ssObjectId=70 + each, ssObjectReassocTimeMjdTai=moment, update_order=each - 1,
            )
            for each in (1, 2)
        ],
    )  # fmt: skip
    assert survey.reassociate({1_001: 71, 1_002: 79}, object_id=0) == 1, "one is given to that object already"
    assert sources(survey, "diaObjectId")[1_002] == 0
    assert survey.reassociate({}) == survey.reassociate({1_001: 71}) == 0
    assert survey.reassociate({"diaSourceId": [11_001, 11_001], "ssObjectId": [5, 6]}) == 1
    assert sources(survey, "ssObjectId")[11_001] == 6, "the last of several"


def test_sources_are_given_to_other_objects_whose_counts_follow_in_the_list(survey: apdb.Apdb) -> None:
    moment = START + 7.25
    assert survey.reassign({1_002: 1, 11_002: 1, 11_003: 3}, time=moment) == 2
    assert [sources(survey, "diaObjectId")[each] for each in (1_001, 1_002, 11_002, 11_003)] == [1, 1, 1, 3]
    place = {"ra": 150.1, "dec": 2.1}
    moved = {**place, "kind": "reassign_diasource_to_diaobject", "diaObjectId": 1}
    counted = {**place, "kind": "update_n_dia_sources"}
    wanted = [
        of_time(moment, **moved, diaSourceId=1_002, midpointMjdTai=START, update_order=0),
        of_time(moment, **moved, diaSourceId=11_002, midpointMjdTai=START + 1, update_order=1),
        of_time(moment, **counted, diaObjectId=1, nDiaSources=4, update_order=2),
        of_time(moment, **counted, diaObjectId=2, nDiaSources=0, update_order=3),
    ]
    check_listed(survey, wanted)
    # Nobody is told twice.
    assert survey.reassign({1_002: 1}, time=moment) == survey.reassign({}) == 0
    check_listed(survey, wanted)


@pytest.mark.parametrize(
    ("increment", "decrement", "counts"),
    [(True, False, {1: 4, 2: 9}), (False, True, {1: 9, 2: 2}), (False, False, {1: 9, 2: 9})],
)
def test_counts_of_objects_that_gain_or_lose_are_set_on_request(
    survey: apdb.Apdb, increment: bool, decrement: bool, counts: dict[int, int]
) -> None:
    wrong = visit(2)
    wrong["objects"]["nDiaSources"] = np.full(3, 9)
    survey.store(**wrong)
    assert survey.reassign({1_002: 1}, increment=increment, decrement=decrement) == 1
    assert counts_of(survey) == {**counts, 3: 9}


def test_counts_of_objects_that_may_have_lost_sources_change_by_those_that_move(survey: apdb.Apdb) -> None:
    later = visit(600)
    later["objects"]["nDiaSources"] = np.full(3, 3)
    survey.store(**later)
    assert survey.retire(START + 240)["dia_source"]
    assert survey.reassign({6_001_002: 1}) == 1
    assert counts_of(survey) == {1: 4, 2: 2, 3: 3}


def test_counts_are_corrected_and_listed(survey: apdb.Apdb) -> None:
    assert survey.maintain(counts=True).counts_corrected == 3
    assert counts_of(survey) == {1: 2, 2: 2, 3: 2}
    found = [(row["kind"], row["update_order"], row["nDiaSources"]) for row in listed(survey)]
    assert found == [("update_n_dia_sources", order, 2) for order in range(3)]


def test_an_object_that_is_not_stored_takes_no_sources(survey: apdb.Apdb) -> None:
    with pytest.raises(ct.InvalidInputError, match=r"ids not found in DiaObject .*: 8, 9; nothing was changed"):
        survey.reassign({1_001: 8, 1_002: 9, 1_003: 9, 11_001: 2})
    assert set(sources(survey, "diaObjectId").values()) == {1, 2, 3}
    assert listed(survey) == []


def test_the_validity_of_objects_is_closed_once(survey: apdb.Apdb) -> None:
    end, moment = START + 5, START + 7.25
    assert survey.close_validity([1, 3], end, time=moment) == 2
    assert survey.close_validity([2, 3], end + 1, time=moment) == 1, "one is closed already"
    rows = survey.objects(closed=True).to_arrow().sort_by("diaObjectId")
    assert rows["validityEndMjdTai"].to_pylist() == [end, end + 1, end]
    found = [(row["diaObjectId"], row["validityEndMjdTai"]) for row in listed(survey)]
    assert sorted(found) == [(1, end), (2, end + 1), (3, end)]
    assert {row["kind"] for row in listed(survey)} == {"close_diaobject_validity"}
    assert {row["update_mjd_tai"] for row in listed(survey)} == {moment}
    with pytest.raises(ct.InvalidInputError, match=r"DiaObject .*: 8"):
        survey.close_validity([1, 8], end)
    assert survey.close_validity([1, 8], end, missing="ignore") == 0


def test_withdrawn_records_keep_their_time(survey: apdb.Apdb) -> None:
    at, moment = START + 5, START + 7.25
    assert survey.withdraw_sources([1_001, 1_002], at, time=moment) == 2
    assert survey.withdraw_sources(np.array([1_001, 1_003]), at + 1, time=moment) == 1
    assert [sources(survey, names.WITHDRAWN)[each] for each in (1_001, 1_002, 1_003, 11_001)] == [at, at, at + 1, None]
    key = {"diaObjectId": [1], "visit": [1], "detector": [1]}
    assert survey.withdraw_forced_sources(key, at, time=moment) == 1
    assert survey.withdraw_forced_sources(key, at + 1) == 0
    rows = listed(survey)
    assert [row["kind"] for row in rows].count("withdraw_diasource") == 3
    assert {row["update_mjd_tai"] for row in rows} == {moment}
    (forced,) = [row for row in rows if row["kind"] == "withdraw_diaforcedsource"]
    assert (forced["diaObjectId"], forced["visit"], forced["detector"]) == (1, 1, 1)
    assert (forced["midpointMjdTai"], forced["ra"], forced["dec"]) == (START + 1, 150.1, 2.1)
    assert forced["timeWithdrawnMjdTai"] == at


def test_changes_take_the_present_time_unless_it_is_given(survey: apdb.Apdb) -> None:
    before = values.mjd_tai(datetime.now(UTC))
    survey.withdraw_sources([1_001])
    survey.reassociate({1_002: 7})
    after = values.mjd_tai(datetime.now(UTC))
    assert before <= sources(survey, names.WITHDRAWN)[1_001] <= after
    assert before <= sources(survey, names.REASSOCIATED)[1_002] <= after
    assert all(before <= row["update_mjd_tai"] <= after for row in listed(survey))


def test_a_schema_may_lack_the_columns_that_say_when(survey: apdb.Apdb) -> None:
    small, lacking = apdb.Schema.read("small"), (names.WITHDRAWN, names.REASSOCIATED)
    tables = tuple(
        dataclasses.replace(table, columns=tuple(each for each in table.columns if each.name not in lacking))
        for table in small.tables
    )
    with apdb.create("memory:", dataclasses.replace(small, tables=tables)) as other:
        other.store(**visit(0))
        assert other.reassociate({1_001: 7}) == 1
        with pytest.raises(ct.InvalidInputError, match="no column timeWithdrawnMjdTai: migrate") as error:
            other.withdraw_sources([1_001])
        assert error.value.kind == "invalid-request"
        assert "apdb_updates" not in other.archive, "it keeps no list of changes"


def test_versions_grow_whatever_the_clock_says(survey: apdb.Apdb, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time_ns()
    survey.withdraw_sources([1_001])
    assert now < sources(survey, names.UPDATE)[1_001] <= time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: 5)
    survey.withdraw_sources([1_002])
    survey.reassociate({1_002: 7})
    assert sources(survey, names.UPDATE)[1_002] == 6
    survey.close_validity([1], START + 5)
    rows = survey.dataset("DiaObject").read(ids=[1]).to_arrow()
    assert rows[names.VERSION].to_pylist() == [values.version_of(START + 1) + 1]


# ---------------------------------------------------------------------- which records


def test_records_are_named_in_any_form(survey: apdb.Apdb) -> None:
    pandas = pytest.importorskip("pandas")
    forms: list[Any] = [
        [1_001], (1_002,), {1_003}, frozenset([11_001]), np.array([11_002]), pa.table({"diaSourceId": [11_003]}),
    ]  # fmt: skip
    for number, form in enumerate(forms, 1):
        assert survey.withdraw_sources(form) == 1
        assert sum(each is not None for each in sources(survey, names.WITHDRAWN).values()) == number
    assert survey.reassociate({np.int64(1_001): np.int64(7)}) == 1
    assert survey.reassociate({"diaSourceId": [1_002], "ssObjectId": [7]}) == 1
    assert survey.reassociate(pandas.DataFrame({"diaSourceId": [1_003], "ssObjectId": [7]})) == 1
    assert survey.withdraw_sources([]) == survey.withdraw_sources({}) == survey.close_validity([], START) == 0
    for given, words in (
        ([1_001], "the rows to change have type list"),
        ({"diaSourceId": [1_001]}, "the rows to change lack column ssObjectId"),
        ({"ssObjectId": [1_001]}, "the rows to change lack column diaSourceId"),
        ({1_001: 5, "ssObjectId": 6}, "the rows to change"),
    ):
        with pytest.raises(ct.InvalidInputError, match=words) as error:
            survey.reassociate(given)
        assert error.value.kind == "invalid-rows"


def test_unknown_ids_are_named_and_nothing_is_changed(survey: apdb.Apdb) -> None:
    for ids, words in (
        (range(5, 10), "DiaSource .*: 5, 6, 7, 8, 9; nothing"),
        (range(5, 11), "DiaSource .*: 5, 6, 7, 8, 9 and 1 more; nothing"),
    ):
        with pytest.raises(ct.InvalidInputError, match=words) as error:
            survey.withdraw_sources([1_001, *ids, 1_002])
        assert error.value.kind == "unknown-id"
        assert error.value.details["ids"] == list(ids)
    # One object, of many visits: it is named once.
    key = {"diaObjectId": [1] * 7, "visit": range(1, 8), "detector": [1] * 7}
    with pytest.raises(ct.InvalidInputError, match=r"DiaForcedSource .*: 1; nothing was changed"):
        survey.withdraw_forced_sources(key)
    assert set(sources(survey, names.WITHDRAWN).values()) == {None}
    assert survey.reassociate({1_001: 7, 5: 8}, missing="ignore") == 1
    assert survey.withdraw_sources([1_002, 1_002]) == 1, "one record that is named twice"


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ({"ra": 150.1, "dec": 2.1}, True),
        ({"ra": 150.1, "dec": 2.1 + 4.9 / 3600}, True),
        ({"ra": 151.1, "dec": 2.1}, False),
        ({"ra": 151.1}, True),
        ({"dec": 9.0}, True),
        ({"midpointMjdTai": START + 14.995 * MINUTE}, True),
        ({"midpointMjdTai": START - 14.995 * MINUTE}, True),
        ({"midpointMjdTai": START + 15.005 * MINUTE}, False),
        ({"midpointMjdTai": START - 15.005 * MINUTE}, False),
    ],
)
def test_records_are_looked_for_near_the_given_places_and_times(
    survey: apdb.Apdb, where: dict[str, float], found: bool
) -> None:
    given = {name: [value] for name, value in where.items()} | {"diaSourceId": [1_001]}
    if found:
        assert survey.withdraw_sources(given) == 1
    else:
        with pytest.raises(ct.InvalidInputError, match="at the given positions and times"):
            survey.withdraw_sources(given)


def test_records_of_several_times_are_all_found(survey: apdb.Apdb) -> None:
    given = {"diaSourceId": [1_001, 11_002], "midpointMjdTai": [START, START + 1], "ra": [150.1] * 2, "dec": [2.1] * 2}
    assert survey.withdraw_sources(given) == 2
    # The time of an object is not one of its version.
    assert survey.close_validity({"diaObjectId": [1], "midpointMjdTai": [START - 50]}, START + 9) == 1


def test_objects_without_a_position_are_looked_for_in_their_pixels(
    survey: apdb.Apdb, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, asked = ct.Dataset.read, []

    def spy(self: ct.Dataset, *given: Any, **how: Any) -> Any:
        asked.extend([how.get("cells")] if self.name == "dia_object" else [])
        return read(self, *given, **how)

    monkeypatch.setattr(ct.Dataset, "read", spy)
    assert survey.close_validity([1], START + 9) == 1
    assert asked == [survey.cells_of(pa.table({"ra": [150.1], "dec": [2.1]}))]


@pytest.mark.parametrize(
    ("period", "found"),
    [
        ({}, True),
        ({"start": START}, True),
        ({"start": START + 0.1}, False),
        ({"end": START + 0.1}, True),
        ({"end": START}, False),
        ({"start": START - 1, "end": START + 1}, True),
    ],
)
def test_sources_to_reassociate_are_looked_for_in_a_period(
    survey: apdb.Apdb, period: dict[str, float], found: bool
) -> None:
    assert survey.reassociate({1_001: 7}, missing="ignore", **period) == int(found)


# ---------------------------------------------------------------------- deletion


def test_records_that_are_deleted_are_counted_and_gone(survey: apdb.Apdb) -> None:
    assert survey.delete("DiaSource", [1_001, 5]) == 1
    assert survey.delete("DiaSource", [1_001]) == 0
    assert survey.delete("DiaForcedSource", {"diaObjectId": [1, 1], "visit": [0, 9], "detector": [1, 1]}) == 1
    assert survey.delete("DiaObject", [1], archived=False) == 1
    assert sorted(survey.sources()["diaSourceId"].to_pylist()) == [1_002, 1_003, 11_001, 11_002, 11_003]
    assert len(survey.forced_sources()) == 5
    assert sorted(survey.objects()["diaObjectId"].to_pylist()) == [2, 3]
    assert sources(survey, names.UPDATE)[1_001] == names.GONE
    with pytest.raises(ct.InvalidInputError, match="lack column visit"):
        survey.delete("DiaForcedSource", [1])
    for table in ("SSObject", "DiaSources"):
        with pytest.raises(ct.InvalidInputError, match=f"cannot delete single records of {table}: use") as error:
            survey.delete(table, [1])
        assert error.value.kind == "invalid-request"


def test_records_are_deleted_from_files_too(survey: apdb.Apdb, tmp_path: Path) -> None:
    survey.archive_before(LATER, tmp_path)
    survey.store(**visit(0))
    # Two of them are only in the file.
    with pytest.raises(ct.InvalidInputError, match=r"^1 record may also be in files.*archived=FOLDER") as error:
        survey.delete("DiaSource", [1_001])
    assert error.value.kind == "archived-records"
    assert len(survey.sources()) == 3
    assert survey.delete("DiaSource", [1_001, 11_001, 11_002, 5], archived=tmp_path) == 3
    assert sorted(survey.sources(archived=tmp_path)["diaSourceId"].to_pylist()) == [1_002, 1_003, 11_003]
    assert sorted(survey.sources()["diaSourceId"].to_pylist()) == [1_002, 1_003]
    assert survey.delete("DiaSource", [1_002], archived=False) == 1
    key = {"diaObjectId": [1], "visit": [1], "detector": [1]}
    assert survey.delete("DiaForcedSource", key, archived=tmp_path) == 1
    assert survey.delete("DiaObject", [1], archived=tmp_path) == 1, "objects are in no file"
    with pytest.raises(ct.DataFileError, match="no such folder"):
        survey.delete("DiaSource", [1_003], archived=tmp_path / "nothing")
    assert len(survey.sources()) == 1


@pytest.mark.parametrize("archived", [None, False])
def test_a_deletion_reports_files_that_another_process_wrote_meanwhile(
    survey: apdb.Apdb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, archived: Any
) -> None:
    write, other = ct.Group.write, apdb.open(survey.archive)

    def late(group: ct.Group, *given: Any, **options: Any) -> Any:
        other.archive_before(LATER, tmp_path, keep=True)
        return write(group, *given, **options)

    monkeypatch.setattr(ct.Group, "write", late)
    if archived is False:
        assert survey.delete("DiaSource", [1_001], archived=False) == 1, "the caller knows of files"
    else:
        with pytest.raises(ct.OutcomeUnknownError, match="repeat, and pass archived=FOLDER"):
            survey.delete("DiaSource", [1_001])
    assert survey.delete("DiaSource", [5]) == 0


# ---------------------------------------------------------------------- duplicates


def test_objects_since_the_last_deduplication_are_listed(survey: apdb.Apdb) -> None:
    def fed(since: Any = None, **how: Any) -> list[tuple[int, float]]:
        rows = survey.dedup_feed(since, **how)
        days = [start - START for start in rows["validityStartMjdTai"].to_pylist()]
        return sorted(zip(rows["diaObjectId"].to_pylist(), days, strict=True))

    survey.store(START + 2, objects={"diaObjectId": [1], "ra": [150.1], "dec": [2.1]})
    assert fed() == [(1, 2), (2, 1), (3, 1)]
    assert fed(START + 1) == fed()
    assert fed(START + 1.5) == [(1, 2)]
    assert fed(versions=True) == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (3, 0), (3, 1)]
    survey.close_validity([2], START + 9)
    assert fed(versions=True) == [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (3, 0), (3, 1)], "each version once"
    rows = survey.dedup_feed(versions=True).to_arrow().to_pylist()
    assert {row["validityEndMjdTai"] for row in rows if row["diaObjectId"] == 2} == {None, START + 9}
    survey.reset_dedup(START + 1.5)
    assert fed() == [(1, 2)]
    assert fed(START) == [(1, 2), (2, 1), (3, 1)], "the given time decides"
    assert survey.dedup_feed(columns=["ra"]).to_arrow().to_pydict() == {"ra": [150.1]}
    assert survey.dedup_feed().to_arrow().column_names == survey.schema["DiaObject"].column_names
    survey.delete("DiaObject", [1])
    assert fed(START, versions=True) == [(2, 0), (2, 1), (3, 0), (3, 1)]
    survey.reset_dedup()
    assert fed() == []
    with pytest.raises(ct.InvalidInputError, match="table DiaObject has no column 'raa'"):
        survey.dedup_feed(columns=["raa"])


def test_sources_of_objects_are_found_near_these(survey: apdb.Apdb) -> None:
    survey.delete("DiaSource", [1_001])
    place = {"diaObjectId": [1, 3], "ra": [150.1, 150.1], "dec": [2.1, 2.1]}
    found = survey.sources_of(place).to_arrow()
    assert sorted(found["diaSourceId"].to_pylist()) == [1_003, 11_001, 11_003]
    assert found.column_names == survey.schema["DiaSource"].column_names
    assert survey.sources_of(place, start=START + 1, columns=["visit"]).to_arrow().to_pydict() == {"visit": [1, 1]}
    with pytest.raises(ct.InvalidInputError, match="table DiaSource has no column 'visits'"):
        survey.sources_of(place, columns=["visits"])
    far = place | {"ra": [151.1, 151.1]}
    assert len(survey.sources_of(far)) == 0
    assert len(survey.sources_of(far, radius=1.0)) == 3
    none = survey.sources_of(pa.table(place).slice(0, 0), columns=["visit"])
    assert (none.to_arrow().to_pydict(), len(survey.sources_of(pa.table(place).slice(0, 0)))) == ({"visit": []}, 0)


def test_valid_objects_of_one_source_are_counted(survey: apdb.Apdb) -> None:
    assert survey.count_unassociated() == 3
    survey.reassign({1_002: 1})
    assert survey.count_unassociated() == 2, "object 1 has three, and object 2 one"
    survey.close_validity([3], START + 9)
    assert survey.count_unassociated() == 1
    survey.delete("DiaObject", [2])
    assert survey.count_unassociated() == 0
