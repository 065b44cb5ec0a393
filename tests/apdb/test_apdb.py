"""An alert production database keeps what it promises: rows, repetition, changes, schemas, units."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import support_apdb
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support_apdb import FIELD, START, Model, seen_objects, seen_sources, visit_of

import chronotile as ct
from chronotile import apdb
from chronotile.apdb import names, values


@pytest.fixture
def survey(path: Path) -> Iterator[apdb.Apdb]:
    """A small database in a file, with a list of changes."""
    with apdb.create(path, "small", feed=True) as made:
        yield made


IDS = st.lists(st.integers(0, 11), min_size=1, max_size=6, unique=True)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("store"), st.integers(0, 5), IDS, st.integers(1, 2)),
        st.tuples(st.just("reassociate"), st.integers(0, 200), st.integers(1, 3)),
        st.tuples(st.just("withdraw"), st.integers(0, 200), st.integers(0, 3)),
        st.tuples(st.just("close"), st.integers(0, 11), st.integers(0, 3)),
        st.tuples(st.just("maintain")),
    ),
    min_size=3,
    max_size=12,
)


def step(database: apdb.Apdb, model: Model, what: tuple[Any, ...]) -> None:
    """The same to the database and to the model."""
    kind = what[0]
    if kind == "store":
        visit = visit_of(what[1], what[2], what[3])
        if (visit["visit"], visit["detector"]) not in model.visits:
            assert database.store(**visit).stored
        model.store(**visit)
    elif kind == "reassociate" and model.sources:
        chosen = sorted(model.sources)[what[1] % len(model.sources)]
        database.reassociate({chosen: what[2]})
        model.sources[chosen] |= {"ssObjectId": what[2], "diaObjectId": None}
    elif kind == "withdraw" and model.sources:
        chosen = sorted(model.sources)[what[1] % len(model.sources)]
        database.withdraw_sources([chosen], START + what[2])
        if model.sources[chosen]["timeWithdrawnMjdTai"] is None:
            model.sources[chosen]["timeWithdrawnMjdTai"] = START + what[2]
    elif kind == "close" and what[1] in model.newest():
        assert database.close_validity([what[1]], START + what[2]) == 1
        versions = model.objects[what[1]]
        versions[max(versions)]["validityEndMjdTai"] = START + what[2]
    elif kind == "maintain":
        database.maintain()


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_every_read_equals_a_plain_model_whatever_was_stored_changed_and_consolidated(steps: Any) -> None:
    with apdb.create("memory:", "small") as database:
        model = Model()
        for what in steps:
            step(database, model, what)
        newest = {k: (row["nDiaSources"], row["r_psfFluxMean"]) for k, row in model.newest().items()}
        wanted = {
            k: (row["diaObjectId"], row["ssObjectId"], row["timeWithdrawnMjdTai"], row["psfFlux"])
            for k, row in model.sources.items()
        }
        assert seen_objects(database) == newest
        assert seen_sources(database) == wanted
        assert len(database.forced_sources(FIELD)) == len(model.forced)
        kept = {k: row for k, row in wanted.items() if row[2] is None}
        assert seen_sources(database, withdrawn=False) == kept
        assert {(r["visit"], r["detector"]) for r in database.visits().to_arrow().to_pylist()} == model.visits
        for number, versions in model.objects.items():
            held = database.object_history(number).to_arrow()
            assert held["validityStartMjdTai"].to_pylist() == sorted(versions)
            ends = [*sorted(versions)[1:], versions[max(versions)]["validityEndMjdTai"]]
            assert held["validityEndMjdTai"].to_pylist()[-1] == ends[-1]


def test_a_store_that_fails_shows_nothing_and_is_made_whole_by_repeating_it(survey: apdb.Apdb) -> None:
    survey.store(**visit_of(0, [1, 2, 3]))
    before = seen_objects(survey), seen_sources(survey)
    bad = visit_of(1, [2, 3, 4])
    # The rows of the other tables are taken in by the time that this one is refused.
    bad["forced_sources"]["dec"] = np.array([2.0, 2.0, 100.0])
    with pytest.raises(ct.InvalidInputError, match="dec"):
        survey.store(**bad)
    assert (seen_objects(survey), seen_sources(survey)) == before
    assert len(survey.forced_sources(FIELD)) == 3
    assert not survey.contains(1, 1)
    # The pipeline has computed it anew, with other values.
    again = visit_of(1, [2, 3, 4], seed=5)
    survey.store(**again)
    assert not survey.store(**again).stored
    fluxes = {k: row[-1] for k, row in seen_sources(survey).items() if k > 10_000}
    assert sorted(fluxes.values()) == sorted(float(flux) for flux in again["sources"]["psfFlux"])
    assert len(survey.forced_sources(FIELD)) == 6
    assert survey.contains(1, 1)
    assert len(survey.visits()) == 2


def test_readers_beside_a_writer_see_each_detector_visit_whole_in_every_table_or_not_at_all(path: Path) -> None:
    ids = list(range(40))
    apdb.create(path, "small").close()
    failed: list[BaseException] = []

    def write() -> None:
        try:
            with apdb.open(path) as own:
                for number in range(12):
                    own.store(**visit_of(number, ids))
        except BaseException as error:
            failed.append(error)

    writer = threading.Thread(target=write)
    with apdb.open(path, read_only=True) as reader:
        writer.start()
        seen = -1
        while seen < 12 and not failed:
            running = writer.is_alive()
            found = reader.footprint(FIELD)
            visits = [sorted(set(rows["visit"].to_pylist())) for rows in (found.sources, found.forced_sources)]
            versions = set(found.objects["validityStartMjdTai"].to_pylist())
            seen = len(visits[0])
            assert visits[0] == visits[1] == list(range(seen)), "visits are stored one after another"
            assert len(found.sources) == len(found.forced_sources) == 40 * seen
            assert versions == ({START + seen - 1} if seen else set())
            assert running or seen == 12
    writer.join(30)
    assert not failed


def test_a_complete_detector_visit_refuses_other_rows_unless_told_to_replace_them(survey: apdb.Apdb) -> None:
    survey.store(**visit_of(0, [1, 2]))
    with pytest.raises(ct.BatchConflictError):
        survey.store(**visit_of(0, [1, 2, 3]))
    assert len(survey.sources()) == 2
    survey.store(**visit_of(0, [1, 2, 3]), replace=True)
    assert len(survey.sources()) == 3


def test_store_refuses_what_does_not_fit_with_the_column_in_its_sentence(survey: apdb.Apdb) -> None:
    visit = visit_of(0, [1, 2])
    wrong = {
        "unknown columns of table DiaSource: colour": {**visit["sources"], "colour": [1, 2]},
        "column diaSourceId of DiaSource is missing": {k: v for k, v in visit["sources"].items() if k != "diaSourceId"},
        "column psfFlux": {**visit["sources"], "psfFlux": ["bright", "faint"]},
        "each detector-visit in its own call": {**visit["sources"], "visit": [0, 1]},
    }
    for sentence, sources in wrong.items():
        with pytest.raises(ct.InvalidInputError, match=sentence):
            survey.store(**{**visit, "sources": sources})
    assert len(survey.sources()) == len(survey.objects()) == 0


def test_quantities_are_stored_in_the_units_of_the_schema_and_read_with_them(survey: apdb.Apdb) -> None:
    units = pytest.importorskip("astropy.units")
    visit = visit_of(0, [1, 2])
    visit["sources"] |= {"ra": visit["sources"]["ra"] * units.deg, "psfFlux": np.array([1.0, 2.0]) * units.uJy}
    visit["sources"]["dec"] = np.radians(visit["sources"]["dec"]) * units.rad
    survey.store(**visit)
    rows = survey.cone(150.1 * units.deg, 2.1 * units.deg, 20 * units.arcmin, at=START + 1).sources
    assert sorted(rows["psfFlux"].to_pylist()) == [1_000.0, 2_000.0]
    assert rows.units["psfFlux"] == "nJy"
    table = rows.to_astropy()
    assert table["psfFlux"].unit == units.nJy
    assert sorted(table["psfFlux"].to_value("uJy")) == pytest.approx([1.0, 2.0])
    with pytest.raises(ct.InvalidInputError, match="snr of DiaSource has no unit"):
        survey.store(**{**visit_of(1, [1]), "sources": {**visit_of(1, [1])["sources"], "snr": [1.0] * units.m}})
    moments = pytest.importorskip("astropy.time").Time(["2026-01-31"])
    for name, unit, wrong in (("psfFlux", "mag", [1.0] * units.mag), ("ra", "times", moments)):
        with pytest.raises(ct.InvalidInputError, match=f"^column {name} of DiaSource is in .*, not {unit}$"):
            survey.store(**{**visit_of(1, [1]), "sources": {**visit_of(1, [1])["sources"], name: wrong}})


def test_rows_come_in_from_pandas_and_polars_as_from_dicts(survey: apdb.Apdb) -> None:
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    for number, make in enumerate((pandas.DataFrame, polars.DataFrame, pa.table)):
        visit = visit_of(number, [1, 2])
        plain = {name: {k: np.asarray(v) for k, v in visit[name].items() if k != "band"} for name in
                 ("objects", "sources", "forced_sources")}  # fmt: skip
        survey.store(**{**visit, **{name: make(rows) for name, rows in plain.items()}})
    rows = survey.sources(FIELD)
    assert len(rows) == rows.to_pandas().shape[0] == rows.to_polars().height == 6


def test_times_convert_as_astropy_converts_them() -> None:
    astropy_time = pytest.importorskip("astropy.time")
    for text in ("1972-01-01T00:00:00", "1998-12-31T12:00:00", "2016-12-31T23:59:58", "2026-02-01T03:04:05.678"):
        wanted = astropy_time.Time(text, scale="utc")
        assert values.mjd_tai(text + "Z") == pytest.approx(wanted.tai.mjd, abs=1e-9)
        assert values.mjd_tai(wanted) == wanted.tai.mjd
    with pytest.raises(ct.InvalidInputError, match="before 1972"):
        values.mjd_tai("1960-01-01")


def test_history_ends_with_the_given_time_and_begins_as_far_back_as_asked(survey: apdb.Apdb) -> None:
    for number in (0, 30, 60, 400):
        survey.store(**visit_of(number, [1]))
    assert len(survey.sources(FIELD, at=START + 60)) == 3
    assert len(survey.sources(FIELD, at=START + 60, history="30d")) == 2
    assert len(survey.sources(FIELD, at=START + 400)) == 2, "360 days by default: the one of 340 days ago and itself"
    assert len(survey.forced_sources(FIELD, at=START + 59, start=START + 30)) == 1
    assert seen_objects(survey, at=START + 59)[1] == seen_objects(survey, at=START + 30)[1]
    assert survey.night(61_029).to_arrow().num_rows == 1, "the night that began on MJD 61029 had visit 30 in it"
    with pytest.raises(ct.InvalidInputError, match="also pass at"):
        survey.sources(FIELD, history="30d")


def test_a_light_curve_has_detections_and_forced_measurements_of_one_object_alone(survey: apdb.Apdb) -> None:
    for number in range(3):
        survey.store(**visit_of(number, [1, 2]))
    survey.withdraw_sources(survey.sources(FIELD, object_ids=[1], at=START).to_arrow())
    curve = survey.light_curve(1).to_arrow()
    assert curve["forced"].to_pylist() == [True, False, True, False, True]
    assert set(curve["diaObjectId"].to_pylist()) == {1}
    place = visit_of(0, [1])["objects"]
    near = (place["ra"][0], place["dec"][0])
    assert survey.light_curve(1, near=near).to_arrow() == curve
    with pytest.raises(ct.InvalidInputError, match="no object 77"):
        survey.light_curve(77)


def test_reassigned_sources_are_counted_where_they_go_and_where_they_leave(survey: apdb.Apdb) -> None:
    visit = visit_of(0, [1, 2, 3])
    for rows in (visit["objects"], visit["sources"], visit["forced_sources"]):
        rows |= {"ra": np.full(3, 150.1), "dec": np.full(3, 2.1)}
    survey.store(**visit)
    assert survey.reassign({1_002: 1, 1_003: 1}) == 2
    assert {k: v[0] for k, v in seen_objects(survey).items()} == {1: 3, 2: 0, 3: 0}
    assert {row[0] for row in seen_sources(survey).values()} == {1}
    assert survey.reassign({1_002: 1}) == 0, "it is there already"
    with pytest.raises(ct.InvalidInputError, match="77") as error:
        survey.reassign({1_001: 2, 77: 1})
    assert error.value.kind == "unknown-id"
    assert {row[0] for row in seen_sources(survey).values()} == {1}, "nothing was changed"


def test_deleted_records_are_in_no_read(survey: apdb.Apdb) -> None:
    for number in range(2):
        survey.store(**visit_of(number, [1, 2]))
    assert survey.delete("DiaObject", [1]) == 1
    assert survey.delete("DiaSource", [1_001, 11_001, 5]) == 2
    forced = survey.forced_sources(FIELD, object_ids=[1]).to_arrow()
    assert survey.delete("DiaForcedSource", forced) == 2
    survey.maintain()
    assert set(seen_objects(survey)) == {2}
    assert set(seen_sources(survey)) == {1_002, 11_002}
    assert len(survey.object_history(1)) == len(survey.dedup_feed(versions=True)) - 2 == 0
    assert survey.forced_sources(FIELD)["diaObjectId"].to_pylist() == [2, 2]
    assert survey.scan("DiaSource").to_arrow().num_rows == 2


def test_a_removed_visit_is_gone_and_can_be_stored_again(survey: apdb.Apdb) -> None:
    for number in range(2):
        survey.store(**visit_of(number, [1, 2]))
    assert survey.remove_visit(1).rows == 6
    assert (len(survey.sources()), len(survey.visits()), survey.contains(1, 1)) == (2, 1, False)
    assert seen_objects(survey)[1][1] == pytest.approx(float(visit_of(0, [1, 2])["objects"]["r_psfFluxMean"][0]))
    assert survey.store(**visit_of(1, [1, 2])).stored
    assert len(survey.sources(FIELD)) == 4
    survey.reassociate({11_001: 5})
    with pytest.raises(ct.InvalidInputError, match="1 record changed since the store") as error:
        survey.remove_night(START + 0.6)
    assert error.value.kind == "changed-records"
    assert len(survey.sources()) == 4
    survey.remove_night(START + 0.6, changed=True)
    assert set(seen_sources(survey)) == {1_001, 1_002}


def test_deduplication_gets_what_was_stored_since_it_last_ran(survey: apdb.Apdb) -> None:
    survey.store(**visit_of(0, [1, 2]))
    survey.store(**visit_of(1, [2, 3]))
    assert sorted(survey.dedup_feed()["diaObjectId"].to_pylist()) == [1, 2, 3]
    survey.reset_dedup(START + 0.5)
    assert sorted(survey.dedup_feed(columns=["diaObjectId"])["diaObjectId"].to_pylist()) == [2, 3]
    assert survey.count_unassociated() == 3


def test_other_tables_keep_the_newest_row_of_each_key(survey: apdb.Apdb) -> None:
    survey.store_table("SSObject", {"ssObjectId": [1, 2], "nObs": pa.array([3, 4], pa.int32())}, batch="day-1")
    survey.store_table("SSObject", {"ssObjectId": [1, 2], "nObs": pa.array([3, 4], pa.int32())}, batch="day-1")
    survey.store_table("SSObject", {"ssObjectId": [2], "nObs": pa.array([9], pa.int32())})
    rows = survey.table("SSObject", columns=["ssObjectId", "nObs"]).to_arrow().sort_by("ssObjectId").to_pylist()
    assert rows == [{"ssObjectId": 1, "nObs": 3}, {"ssObjectId": 2, "nObs": 9}]
    assert len(survey.table("SSObject", ids=[2])) == 1
    with pytest.raises(ct.InvalidInputError, match="use store"):
        survey.store_table("DiaSource", {})


def test_archived_slices_are_read_through_the_same_calls_and_restored(survey: apdb.Apdb, tmp_path: Path) -> None:
    for number in (0, 80, 180, 280, 400):
        survey.store(**visit_of(number, [1, 2, 3]))
    survey.reassociate({1_002: 9})
    survey.delete("DiaSource", [1_003])
    before = seen_sources(survey), survey.forced_sources(FIELD).to_arrow().sort_by("midpointMjdTai")
    cold = tmp_path / "cold"
    planned = survey.archive_before(START + 300, cold, dry_run=True)
    assert not cold.exists()
    assert len(seen_sources(survey)) == 14
    survey.archive_before(START + 300, cold, keep=True)
    assert seen_sources(survey, archived=cold) == before[0], "in both places, and none twice"
    done = survey.archive_before(START + 300, cold)
    assert [(each.table, each.slice) for each in done] == [(each.table, each.slice) for each in planned]
    left = seen_sources(survey)
    assert 0 < len(left) < 14
    assert seen_sources(survey, archived=cold) == before[0]
    assert seen_sources(survey, archived=cold, at=START + 85) == {
        k: v for k, v in before[0].items() if k // 10_000 in (0, 80)
    }
    found = survey.forced_sources(FIELD, archived=cold).to_arrow().sort_by("midpointMjdTai")
    assert found.num_rows == before[1].num_rows == 15
    assert len(survey.sources(FIELD, object_ids=[1], archived=cold)) == 5
    assert len(survey.objects(FIELD)) == 3, "versions of objects stay"
    # Anything that reads Parquet reads the files.
    import pyarrow.dataset as pads

    whole = pads.dataset(cold / "dia_source", partitioning="hive").to_table()
    assert whole.num_rows + len(left) == 14
    assert whole.schema.field("psfFlux").metadata[b"unit"] == b"nJy"
    survey.restore(cold)
    survey.restore(cold)
    assert seen_sources(survey) == before[0]
    with pytest.raises(ct.InvalidInputError, match="or restored"):
        survey.remove_visit(80)
    survey.remove_visit(80, changed=True, archived=cold)
    assert seen_sources(survey) == {k: v for k, v in before[0].items() if k // 10_000 != 80}
    with pytest.raises(ct.DataFileError, match="no such folder"):
        survey.sources(FIELD, archived=tmp_path / "nothing")


def test_the_feed_names_what_was_stored_and_changed_and_reads_it_where_it_lies(survey: apdb.Apdb) -> None:
    survey.store(**visit_of(0, [1, 2]))
    survey.store(**visit_of(1, [2, 3]))
    feed = apdb.Feed(survey)
    first, second = feed.chunks()
    assert (first.visits, first.changes) == (1, 0)
    assert sorted(feed.rows("DiaSource", [second.id])["diaSourceId"].to_pylist()) == [11_002, 11_003]
    assert feed.rows("DiaForcedSource", [first.id, second.id]).num_rows == 4
    versions = feed.rows("DiaObject", [first.id])
    assert sorted(versions["diaObjectId"].to_pylist()) == [1, 2]
    assert set(versions["apdb_replica_chunk"].to_pylist()) == {first.id}
    survey.withdraw_sources([1_001], START + 5, time=START + 0.00001)
    (again, *_) = feed.chunks()
    assert (again.id, again.changes) == (first.id, 1)
    assert again.unique_id != first.unique_id, "something came into the chunk"
    (change,) = feed.changes([first.id]).to_pylist()
    assert (change["kind"], change["diaSourceId"], change["timeWithdrawnMjdTai"]) == (
        "withdraw_diasource", 1_001, START + 5
    )  # fmt: skip
    survey.maintain()
    feed.forget([first.id])
    assert [chunk.id for chunk in feed.chunks()] == [second.id]
    assert feed.rows("DiaSource", [first.id]).num_rows == feed.changes([first.id]).num_rows == 0
    assert len(survey.sources()) == 4, "the rows stay"
    with apdb.create("memory:", "small") as other, pytest.raises(ct.InvalidInputError, match="feed=True"):
        apdb.Feed(other)


STORER = """
import sys
sys.path.insert(0, sys.argv[2])
from support_apdb import visit_of
from chronotile import apdb
with apdb.open(sys.argv[1]) as survey:
    for number in range(1, 1000):
        survey.store(**visit_of(number, list(range(60))))
        print(number, flush=True)
"""


def test_a_killed_process_leaves_what_it_acknowledged_and_nothing_half(path: Path) -> None:
    apdb.create(path, "small").close()
    command = [sys.executable, "-c", STORER, str(path), str(Path(support_apdb.__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        acknowledged = 0
        for line in process.stdout:
            acknowledged = int(line)
            if acknowledged == 4:
                # In the middle of the next one.
                time.sleep(0.004)
                process.kill()
                break
        acknowledged = max([acknowledged, *map(int, process.stdout.read().split())])
    with apdb.open(path) as survey:
        found = survey.footprint(FIELD)
        stored = sorted(set(found.sources["visit"].to_pylist()))
        assert stored[:acknowledged] == list(range(1, acknowledged + 1))
        assert len(found.sources) == len(found.forced_sources) == 60 * len(stored)
        survey.store(**visit_of(acknowledged + 1, list(range(60))))
        again = survey.footprint(FIELD)
        assert len(again.sources) == len(again.forced_sources) == 60 * (acknowledged + 1)
        assert all(report.ok for report in survey.verify().values())


# ---------------------------------------------------------------------- schemas


def test_the_schema_of_the_lsst_is_read_with_its_units_and_kept_in_the_archive(path: Path) -> None:
    pytest.importorskip("lsst.sdm.schemas", reason="lsst-sdm-schemas is not installed")
    with apdb.create(path) as made:
        assert [len(made.schema[name].columns) for name in names.MAIN_TABLES] == [83, 103, 14]
    with apdb.open(path) as database, ct.open(path) as archive:
        column = database.schema["DiaSource"]["psfFlux"]
        assert (column.unit, column.type) == ("nJy", "float32")
        metadata = archive["dia_source"].schema.field("psfFlux").metadata
        assert metadata[b"unit"] == b"nJy"
        assert metadata[b"description"].decode() == column.description
        assert {"ss_object", "ss_source", "mpc_orbits"} <= set(archive.datasets())


def test_a_schema_grows_in_place_and_old_rows_have_null_or_the_default(survey: apdb.Apdb) -> None:
    survey.store(**visit_of(0, [1]))
    score = apdb.Column("score", "float32", unit="mag", description="How good it is.")
    rank = apdb.Column("rank", "int32", nullable=False, default=7)
    wanted = survey.schema.extended({"DiaSource": [score, rank]})
    plan = survey.migrate(wanted, dry_run=True)
    assert plan.columns == {"DiaSource": ("score", "rank")}
    assert "score" not in survey.schema["DiaSource"]
    survey.migrate(wanted)
    assert survey.migrate(wanted).empty
    survey.store(**{**visit_of(1, [1]), "sources": {**visit_of(1, [1])["sources"], "score": np.array([2], "float32")}})
    rows = survey.sources(FIELD, columns=["score", "rank", "visit"]).to_arrow().sort_by("visit")
    assert rows.to_pydict() == {"score": [None, 2.0], "rank": [7, 7], "visit": [0, 1]}
    assert apdb.open(survey.archive).schema["DiaSource"]["score"].unit == "mag"


def test_a_schema_that_cannot_grow_into_another_is_refused_with_all_reasons(survey: apdb.Apdb) -> None:
    text = (Path(apdb.__file__).parent / "small.yaml").read_text()
    text = text.replace("{name: snr, datatype: float,", "{name: snr, datatype: double,")
    text = text.replace("fits:tunit: nJy, ivoa:ucd: phot.count", "fits:tunit: Jy, ivoa:ucd: phot.count")
    text = text.replace("  - {name: reliability", "  - {name: trust, datatype: float, nullable: false}\n  #")
    with pytest.raises(ct.InvalidInputError) as error:
        survey.migrate(apdb.Schema.parse(text))
    for reason in (
        "snr of DiaSource is float32 and cannot become float64",
        "psfFlux of DiaSource is in nJy and cannot become Jy",
        "column reliability of DiaSource is stored and cannot be removed",
        "new column trust of DiaSource is not nullable",
    ):
        assert reason in str(error.value)
    assert apdb.open(survey.archive).schema == survey.schema


def test_of_a_layout_that_no_archive_takes_nothing_is_left(path: Path) -> None:
    with pytest.raises(ct.InvalidInputError, match="not a multiple of window"):
        apdb.create(path, "small", slice="50d")
    with pytest.raises(ct.InvalidInputError, match="level"):
        apdb.create(path, "small", level=99)
    assert not path.exists()


def test_opening_what_is_no_database_says_so(path: Path) -> None:
    with ct.open(path) as archive:
        archive.create("other", schema={"t": "timestamp[us]"}, cell=ct.single(), time="t")
    with pytest.raises(ct.DatasetNotFoundError, match=r"apdb\.create"):
        apdb.open(path)
    with apdb.create(path, "small"):
        pass
    with apdb.create(path, "small") as again:
        assert again.layout == apdb.Layout()
    with pytest.raises(ct.InvalidInputError, match="another layout or schema"):
        apdb.create(path, "small", level=10)


def test_rows_of_other_columns_are_fitted_each_to_its_own_schema(path: Path) -> None:
    with apdb.create(path, "small") as database:
        for number, flux in enumerate(("float64", "float32", "float64")):
            rows = visit_of(number, [1, 2])
            given = pa.table(rows["sources"])
            place = given.schema.get_field_index("psfFlux")
            given = given.set_column(place, "psfFlux", given["psfFlux"].cast(flux))
            names_ = given.schema.names if number < 2 else [*reversed(given.schema.names)]
            database.store(**{**rows, "sources": given.select(names_)})
        stored = database.sources().to_arrow()
        assert str(stored.schema.field("psfFlux").type) == "float"
        assert stored.num_rows == 6
        assert set(zip(stored["visit"].to_pylist(), stored["detector"].to_pylist(), strict=True)) == {
            (number, 1) for number in range(3)
        }
        twice = pa.Table.from_arrays([*given.columns, given["psfFlux"]], names=[*given.schema.names, "psfFlux"])
        with pytest.raises(ct.InvalidInputError, match="duplicate columns psfFlux"):
            database.store(**{**visit_of(9, [1, 2]), "sources": twice})


def test_a_region_returns_the_newest_versions_as_a_plain_choice_finds_them(path: Path) -> None:
    region = ct.circle(150.1, 2.1, 0.07)

    def counted(database: apdb.Apdb) -> list[int]:
        counts = []
        for table, key in (("DiaSource", ["diaSourceId"]), ("DiaForcedSource", ["diaObjectId", "visit", "detector"])):
            newest = {}
            for row in database.dataset(table).read(history=True).to_arrow().to_pylist():
                found = newest.setdefault(tuple(row[name] for name in key), row)
                if row[names.UPDATE] > found[names.UPDATE]:
                    newest[tuple(row[name] for name in key)] = row
            chosen = [row for row in newest.values() if row[names.UPDATE] < names.GONE]
            lies = region.contains([row["ra"] for row in chosen], [row["dec"] for row in chosen])
            inside = [row for row, is_inside in zip(chosen, pa.array(lies).to_pylist(), strict=True) if is_inside]
            columns = database.schema[table].column_names
            read = (database.sources if table == "DiaSource" else database.forced_sources)(region).to_arrow()
            order = [(name, "ascending") for name in key]
            wanted = pa.Table.from_pylist([{name: row[name] for name in columns} for row in inside], read.schema)
            assert read.sort_by(order).to_pylist() == wanted.sort_by(order).to_pylist()
            counts.append(read.num_rows)
        return counts

    with apdb.create(path, "small") as database:
        assert counted(database) == [0, 0]
        ids = list(range(60))
        for number in range(4):
            database.store(**visit_of(number, ids))
        inside = counted(database)
        assert 0 < inside[0] == inside[1] < 240, "some lie in the region and some do not"
        here = database.sources(region).to_arrow()
        moving = here.slice(0, 9).select(["diaSourceId", "ra", "dec", "midpointMjdTai"])
        database.reassociate(moving.append_column("ssObjectId", pa.array(range(9))))
        database.withdraw_sources(here.slice(5, 9))
        assert counted(database) == inside, "newer versions, as many rows"
        database.withdraw_forced_sources(database.forced_sources(region).to_arrow().slice(0, 3))
        assert database.delete("DiaSource", here.slice(3, 4)) == 4
        assert counted(database) == [inside[0] - 4, inside[1]]
        database.maintain()
        assert counted(database) == [inside[0] - 4, inside[1]]
        # The same records once more, under another name and equally new: the later write decides.
        again = visit_of(1, ids, seed=5)
        database.store_again(again["visit_time"], again["objects"], *(
            pa.table(again[name]).append_column("visit", pa.repeat(1, 60)).append_column("detector", pa.repeat(1, 60))
            for name in ("sources", "forced_sources")
        ))  # fmt: skip
        rows = database.forced_sources(region).to_arrow()
        assert rows.num_rows == inside[1]
        second = {row["diaObjectId"]: row["psfFlux"] for row in pa.table(again["forced_sources"]).to_pylist()}
        read = rows.filter(pc.equal(rows["visit"], 1))
        assert dict(zip(read["diaObjectId"].to_pylist(), read["psfFlux"].to_pylist(), strict=True)).items() <= (
            second.items()
        ), "the later one"
