"""Reads return exactly the requested rows and columns: regions, objects, periods, validity, withdrawal, files."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
import numpy as np
from support_apdb import START, visit_of

import chronotile as ct
from chronotile import apdb
from chronotile.apdb import names

TICK = 5e-6 / 86_400
"""A few ticks of an archive's times, in days."""
VISITS = (0, 30, 150, 400)
"""Days of the visits; the first two share a slice, which ends before the third."""
HERE = ct.circle(150.1, 2.1, 0.01)


def visit(number: int, ids: tuple[int, ...] = (1, 2)) -> dict[str, Any]:
    """A detector-visit in which object 1 lies in HERE, and the others half a degree to the north."""
    rows = visit_of(number, list(ids))
    dec = np.where(np.array(ids) == 1, 2.1, 2.6)
    for table in ("objects", "sources", "forced_sources"):
        rows[table] |= {"ra": np.full(len(ids), 150.1), "dec": dec}
    return rows


@pytest.fixture
def survey() -> Iterator[apdb.Apdb]:
    """Four visits of objects 1 and 2, in memory."""
    with apdb.create("memory:", "small") as made:
        for number in VISITS:
            made.store(**visit(number))
        yield made


def seen(rows: apdb.Rows) -> list[tuple[int, int]]:
    """Day and object of each measurement."""
    days = (int(time - START) for time in rows["midpointMjdTai"].to_pylist())
    return sorted(zip(days, rows["diaObjectId"].to_pylist(), strict=True))


def both(*days: int) -> list[tuple[int, int]]:
    """Measurements of both objects on some days."""
    return [(day, each) for day in days for each in (1, 2)]


# ---------------------------------------------------------------------- objects


def versions(rows: apdb.Rows) -> dict[int, float]:
    """Day on which the version of each object began."""
    starts = (time - START for time in rows["validityStartMjdTai"].to_pylist())
    return dict(zip(rows["diaObjectId"].to_pylist(), starts, strict=True))


def test_objects_are_the_versions_that_are_valid_at_a_time(survey: apdb.Apdb) -> None:
    assert versions(survey.objects()) == {1: 400, 2: 400}
    assert versions(survey.objects(HERE)) == {1: 400}
    assert versions(survey.objects(at=START + 30)) == {1: 30, 2: 30}, "the time itself is included"
    assert versions(survey.objects(at=START + 30 - TICK)) == {1: 0, 2: 0}
    assert versions(survey.objects(at=START - TICK)) == {}
    assert survey.objects(HERE, columns=["ra", "dec"]).to_arrow().to_pylist() == [{"ra": 150.1, "dec": 2.1}]
    assert survey.objects().to_arrow().column_names == survey.schema["DiaObject"].column_names


def test_objects_with_a_closed_validity_are_returned_on_request_and_before_its_end(survey: apdb.Apdb) -> None:
    assert survey.close_validity([1], START + 500) == 1
    assert versions(survey.objects()) == {2: 400}
    assert versions(survey.objects(closed=True)) == {1: 400, 2: 400}
    assert versions(survey.objects(at=START + 500 - TICK)) == {1: 400, 2: 400}
    assert versions(survey.objects(at=START + 500)) == {2: 400}, "the end is not included"
    assert versions(survey.objects(at=START + 500, closed=True)) == {1: 400, 2: 400}
    assert survey.objects(HERE, columns=["ra"]).to_arrow().num_rows == 0
    assert survey.close_validity([2], START + 500) == 1
    assert versions(survey.objects()) == {}


def test_the_history_of_an_object_ends_each_version_where_the_next_begins(survey: apdb.Apdb) -> None:
    survey.store(START + 30.5, objects={"diaObjectId": [1], "ra": [150.1], "dec": [2.1]})
    rows = survey.object_history(1).to_arrow()
    assert rows.column_names == survey.schema["DiaObject"].column_names
    starts = [START + day for day in (0, 30, 30.5, 150, 400)]
    assert rows["validityStartMjdTai"].to_pylist() == starts
    assert rows["validityEndMjdTai"].to_pylist() == [*starts[1:], None]
    survey.close_validity([1], START + 500)
    closed = survey.object_history(1).to_arrow()
    assert closed["validityEndMjdTai"].to_pylist() == [*starts[1:], START + 500]
    assert survey.object_history(1, near=(150.1, 2.1)).to_arrow() == closed
    assert len(survey.object_history(77)) == 0


def test_an_object_is_searched_within_an_arc_minute_of_a_position(survey: apdb.Apdb) -> None:
    survey.dataset("DiaObject").set_moves(0.0)
    for arcsec, found in ((59.5, True), (60.5, False)):
        near = (150.1, 2.1 + arcsec / 3600)
        assert len(survey.object_history(1, near=near)) == (4 if found else 0)
        assert len(survey.light_curve(1, near=near)) == (8 if found else 0)
    assert len(survey.object_history(1, near=(150.1, 2.2), radius=0.11)) == 4
    assert len(survey.object_history(1, near=("10:00:24", "2:06:00"), radius="1arcsec")) == 4, "ra in hours"


# ---------------------------------------------------------------------- sources and forced sources

TABLES = pytest.mark.parametrize("table", ["sources", "forced_sources"])


@TABLES
def test_measurements_are_those_of_a_region_of_objects_and_of_a_period(survey: apdb.Apdb, table: str) -> None:
    read = getattr(survey, table)
    assert seen(read()) == both(*VISITS)
    assert seen(read(HERE)) == [(day, 1) for day in VISITS]
    assert seen(read(object_ids=[2])) == [(day, 2) for day in VISITS]
    assert seen(read(HERE, object_ids=[2])) == []
    assert seen(read(HERE, object_ids=[1, 2], at=START + 30)) == [(0, 1), (30, 1)]
    assert seen(read(object_ids=[1], at=START + 30)) == [(0, 1), (30, 1)]
    assert seen(read(at=START + 30)) == both(0, 30), "the time itself is included"
    assert seen(read(at=START + 30 - TICK)) == both(0)
    assert seen(read(at=START + 400)) == both(150, 400), "360 days by default"
    assert seen(read(at=START + 400, history=400)) == both(*VISITS)
    assert seen(read(at=START + 400, history="399d")) == both(30, 150, 400)
    assert seen(read(start=START + 30)) == both(30, 150, 400)
    assert seen(read(start=START + 30 + TICK)) == both(150, 400)
    assert seen(read(at=START + 150, history=1_000, start=START + 30)) == both(30, 150), "the start decides"
    with pytest.raises(ct.InvalidInputError, match="also pass at") as error:
        read(history="30d")
    assert error.value.kind == "invalid-request"


@TABLES
def test_withdrawn_measurements_are_left_out_on_request(survey: apdb.Apdb, table: str) -> None:
    read = getattr(survey, table)
    survey.withdraw_sources([1_001], START)
    survey.withdraw_forced_sources({"diaObjectId": [1], "visit": [0], "detector": [1]}, START)
    assert seen(read()) == both(*VISITS)
    assert seen(read(withdrawn=False)) == [(0, 2), *both(30, 150, 400)]
    assert read(HERE, withdrawn=False, columns=["visit"])["visit"].to_pylist() == [30, 150, 400]
    assert read(HERE, columns="visit", at=START).to_arrow().to_pydict() == {"visit": [0]}
    assert seen(survey.light_curve(1)) == [(day, 1) for day in (30, 30, 150, 150, 400, 400)]
    assert len(survey.footprint(HERE).sources) == len(survey.footprint(HERE).forced_sources) == 4


@TABLES
def test_measurements_in_files_are_read_by_the_same_arguments(survey: apdb.Apdb, table: str, tmp_path: Path) -> None:
    read, cold = getattr(survey, table), tmp_path / "cold"
    survey.archive_before(START + 140, cold)
    assert seen(read()) == both(150, 400)
    assert seen(read(archived=cold)) == both(*VISITS)
    assert seen(read(HERE, archived=cold)) == [(day, 1) for day in VISITS]
    assert seen(read(object_ids=[2], archived=cold, start=START + 30)) == [(30, 2), (150, 2), (400, 2)]
    assert seen(read(at=START + 30 - TICK, archived=cold)) == both(0)
    assert read(HERE, columns=["visit"], archived=cold).to_arrow().sort_by("visit").to_pydict() == {
        "visit": list(VISITS)
    }
    curve = survey.light_curve(1, near=(150.1, 2.1), archived=cold, start=START + 30, end=START + 150, forced=False)
    assert seen(curve) == [(30, 1)]
    assert seen(survey.light_curve(1, archived=cold, start=START + 30, end=START + 150)) == [(30, 1)] * 2


def test_the_newer_of_two_versions_in_files_and_in_the_database_is_read(survey: apdb.Apdb, tmp_path: Path) -> None:
    survey.archive_before(START + 140, tmp_path, keep=True)
    survey.withdraw_sources([1_001], START)
    assert seen(survey.sources(archived=tmp_path)) == both(*VISITS)
    assert seen(survey.sources(HERE, archived=tmp_path, withdrawn=False)) == [(30, 1), (150, 1), (400, 1)]


def test_measurements_of_objects_are_looked_for_in_the_pixels_of_these(
    survey: apdb.Apdb, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, asked = ct.Group.read, []

    def spy(self: ct.Group, requests: Any, *, cells_from: Any = None) -> Any:
        asked.append((set(requests), cells_from))
        return read(self, requests, cells_from=cells_from)

    monkeypatch.setattr(ct.Group, "read", spy)
    survey.sources(object_ids=[1])
    survey.forced_sources(HERE, object_ids=[1])
    assert asked == [({"dia_source", names.OBJECT_INDEX}, (names.OBJECT_INDEX, names.PIXEL))]


# ---------------------------------------------------------------------- footprints


def test_a_footprint_has_the_newest_objects_and_the_measurements_of_a_period(survey: apdb.Apdb) -> None:
    found = survey.footprint(HERE, at=START + 150, history="120d")
    assert versions(found.objects) == {1: 400}, "the newest, whatever the time"
    assert seen(found.sources) == seen(found.forced_sources) == [(30, 1), (150, 1)]
    found = survey.cone("10:00:24", "2:06:00", "36arcsec", at=START + 400)
    assert seen(found.sources) == seen(found.forced_sources) == [(150, 1), (400, 1)]
    survey.close_validity([1], START + 500)
    found = survey.footprint(HERE, history="1d", columns={"DiaSource": ["visit"], "DiaForcedSource": ["ra"]})
    assert len(found.objects) == 0
    assert sorted(found.sources.to_arrow().to_pydict()["visit"]) == list(VISITS), "all of them without a time"
    assert found.forced_sources.to_arrow().to_pydict() == {"ra": [150.1] * 4}
    found = survey.footprint(ct.circle(150.1, 2.6, 0.01), columns={"DiaObject": ["diaObjectId"]})
    assert found.objects.to_arrow().to_pydict() == {"diaObjectId": [2]}
    with pytest.raises(ct.InvalidInputError, match="DiaSource"):
        survey.footprint(HERE, columns={"DiaSources": ["visit"]})


# ---------------------------------------------------------------------- light curves


@pytest.mark.parametrize("how", [{}, {"near": (150.1, 2.1)}])
def test_a_light_curve_has_the_requested_measurements_and_columns(survey: apdb.Apdb, how: dict[str, Any]) -> None:
    whole = survey.light_curve(1, **how)
    assert seen(whole) == [(day, 1) for day in VISITS for _ in range(2)]
    assert whole["forced"].to_pylist() == [False, True] * 4
    shared = [name for name in survey.schema["DiaForcedSource"].column_names if name != "timeWithdrawnMjdTai"]
    assert sorted(whole.to_arrow().column_names) == sorted([*shared, "forced"])
    period = survey.light_curve(1, start=START + 30, end=START + 400, forced=False, columns="visit", **how)
    assert period.to_arrow().to_pydict() == {"visit": [30, 150]}
    columns = ["forced", "diaSourceId"]
    row = survey.light_curve(1, end=START + 30, columns=columns, **how).to_arrow()
    assert row.to_pydict() == {"forced": [False, True], "diaSourceId": [1_001, None]}
    with pytest.raises(ct.InvalidInputError, match="psfFlux"):
        survey.light_curve(1, columns=["psfFluxx"], **how)


def test_light_curves_are_sorted_by_object_and_time(survey: apdb.Apdb) -> None:
    rows = survey.light_curves([2, 1, 2], forced=False, end=START + 100).to_arrow()
    assert rows["diaObjectId"].to_pylist() == [1, 1, 2, 2]
    assert rows["visit"].to_pylist() == [0, 30, 0, 30]


def test_columns_that_only_forced_sources_have_are_null_in_sources(survey: apdb.Apdb) -> None:
    survey.migrate(survey.schema.extended({"DiaForcedSource": [apdb.Column("flags", "int64", default=3)]}))
    rows = survey.light_curve(1, columns=["flags", "snr"], end=START + 1).to_arrow()
    assert rows.to_pydict() == {"flags": [None, 3], "snr": [None, None]}
    assert "flags" not in survey.light_curve(1).to_arrow().column_names, "only columns of both tables by default"


def without(schema: apdb.Schema, column: str) -> apdb.Schema:
    """A schema whose sources and forced sources lack a column."""
    tables = (
        dataclasses.replace(table, columns=tuple(each for each in table.columns if each.name != column))
        for table in schema.tables
    )
    return dataclasses.replace(schema, tables=tuple(tables))


def test_a_schema_may_lack_the_time_of_withdrawal() -> None:
    with apdb.create("memory:", without(apdb.Schema.read("small"), names.WITHDRAWN)) as survey:
        survey.store(**visit(0))
        assert seen(survey.sources(withdrawn=False)) == seen(survey.forced_sources(withdrawn=False)) == both(0)
        assert len(survey.light_curve(1)) == 2


@pytest.mark.parametrize("partitions", [0, 1])
def test_ids_that_no_row_has_are_ignored_or_refused(partitions: int) -> None:
    with apdb.create("memory:", "small", object_index_partitions=partitions) as survey:
        survey.store(**visit(0))
        # An object without measurements is known.
        survey.store(START, objects={"diaObjectId": [9], "ra": [10.0], "dec": [-20.0]})
        assert seen(survey.light_curves([1, 2, 9, 77], forced=False)) == both(0)
        assert len(survey.light_curves([1, 9], missing="error")) == 2
        assert seen(survey.sources(object_ids=[2, 9, 77])) == [(0, 2)]
        for ids, words in (
            (range(71, 76), "no object 71, 72, 73, 74, 75 in the database"),
            ([1, *range(71, 77)], "no object 71, 72, 73, 74, 75 and 1 more in the database"),
        ):
            with pytest.raises(ct.InvalidInputError, match=words) as error:
                survey.light_curves(ids, missing="error")
            assert error.value.kind == "unknown-id"
            assert error.value.details["ids"] == [each for each in ids if each > 70]
        with pytest.raises(ct.InvalidInputError, match=r"missing is 'warn'") as error:
            survey.light_curves([1], missing="warn")
        assert error.value.kind == "invalid-request"


# ---------------------------------------------------------------------- streams


def test_a_night_lasts_from_noon_to_noon(survey: apdb.Apdb) -> None:
    # TAI is 37 seconds ahead of UTC, in which nights begin.
    noon = START + 700 + 0.5 + 37 / 86_400
    for number, time in enumerate((noon - TICK, noon, noon + 1 - TICK, noon + 1), 700):
        rows = visit(number, (1,))
        for table in ("sources", "forced_sources"):
            rows[table]["midpointMjdTai"] = np.full(1, time)
        survey.store(**rows | {"visit_time": time})
    night = int(START) + 700
    assert sorted(survey.night(night).to_arrow()["visit"].to_pylist()) == [701, 702]
    assert survey.night(night + 1, table="DiaForcedSource", columns=["visit"]).to_arrow().to_pydict() == {
        "visit": [703]
    }
    assert survey.night(night, table="DiaObject", columns=["diaObjectId"]).to_arrow().num_rows == 1


def test_a_scan_takes_any_table_and_any_condition(survey: apdb.Apdb) -> None:
    survey.delete("DiaSource", [1_001])
    survey.store_table("SSObject", {"ssObjectId": [5]})

    def scanned(**how: Any) -> list[int]:
        return sorted(survey.scan("DiaSource", columns=["diaSourceId"], **how).to_arrow()["diaSourceId"].to_pylist())

    of_one = [each * 10_000 + 1_001 for each in VISITS]
    of_two = [each + 1 for each in of_one]
    assert scanned() == sorted([*of_one[1:], *of_two])
    assert scanned(region=HERE) == of_one[1:]
    assert scanned(where=("visit", ">", 30)) == scanned(start=START + 31) == sorted([*of_one[2:], *of_two[2:]])
    assert scanned(where=[("visit", ">", 30), ("diaObjectId", "==", 2)]) == of_two[2:]
    assert scanned(end=START + 30) == [1_002]
    assert survey.scan("SSObject").to_arrow()["ssObjectId"].to_pylist() == [5]
    assert survey.scan("DiaObject").to_arrow().num_rows == 2
    assert survey.scan("DiaObject", history=True, columns="diaObjectId").to_arrow().num_rows == 8
    with pytest.raises(ct.InvalidInputError, match="visit"):
        survey.scan("DiaSource", columns=["visits"])
