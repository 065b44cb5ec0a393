"""The simulated survey is repeatable and drives ours and the peer alike; its report and the study of pixels hold."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from conftest import Run as RunCli
from support_data import data_file, separation_deg
from support_engines import disposing_engines
from support_pages import check_page

import chronotile as ct
from chronotile import apdb
from chronotile.apdb import names
from chronotile.apdb.simulation import KNOWN, Detection, Exposure
from chronotile_tools.survey import partitioning, pixels, report
from chronotile_tools.survey.simulate import Run, Survey, Universe, run
from chronotile_tools.survey.simulate.universe import FIELD_AREA_DEG2, PLACES

SMALL = apdb.Schema.read("small")
NOTHING = pa.table({name: pa.array([], pa.int64() if name == names.OBJECT_ID else pa.float64()) for name in KNOWN})


def entries(files: list[Path]) -> list[dict[str, Any]]:
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def rows_by_visit(log: list[dict[str, Any]]) -> dict[tuple[Any, ...], Any]:
    return {(e["visit"], e["detector"], e["op"]): e["rows"] for e in log if e["op"] != "cone"}


def observed(universe: Universe, visit: int, detector: int, known: pa.Table = NOTHING) -> Detection:
    return universe.observe(universe.survey.exposure(visit, detector), known)


def test_the_camera_has_189_detectors_in_rafts_without_corners() -> None:
    assert len(set(PLACES)) == 189
    reach = np.hypot(*np.array(PLACES).T)
    assert reach[0] == 0
    assert 1.5 < reach.max() < 1.9, "a field of 3.5 degrees"
    area = ct.polygon([(0, 0), (1, 0), (1, 1)]).area
    assert Survey().footprint(0, 0).area == pytest.approx(area * 2 * 0.225**2, rel=0.01)


def test_the_same_seed_sees_the_same_and_another_does_not() -> None:
    one, two, other = (observed(Universe(Survey(seed=seed), SMALL), 3, 2) for seed in (1, 1, 2))
    assert one.sources == two.sources
    assert one.objects == two.objects
    assert one.sources != other.sources


def test_objects_and_new_sources_are_as_many_as_published() -> None:
    survey = Survey(detectors=189, variables=10_000, transients=5_150)
    universe = Universe(survey, SMALL)
    seen = [observed(universe, 0, detector) for detector in range(0, 189, 9)]
    counts = np.array([each.sources.num_rows for each in seen])
    # Half of the variable objects of a detector's area, and its share of the new sources.
    wanted = 0.5 * 10_000 * 0.225**2 / FIELD_AREA_DEG2 + 5_150 / 189
    assert counts.mean() == pytest.approx(wanted, rel=0.1)
    here = survey.footprint(0, 9)
    assert all(here.contains(seen[1].sources["ra"], seen[1].sources["dec"]).to_pylist())
    assert len(set(seen[1].sources["diaObjectId"].to_pylist())) == counts[1]


def test_forced_sources_are_of_objects_in_the_detector_that_were_seen_within_thirty_days() -> None:
    survey = Survey(nights=100, visits=100)
    universe = Universe(survey, SMALL)
    time = survey.time(50)
    known = pa.table({
        "diaObjectId": [1, 2, 3], "ra": [150.0, 150.0, 151.0], "dec": [2.0, 2.0, 2.0],
        "validityStartMjdTai": [time - 29, time - 31, time - 1],
    })  # fmt: skip
    seen = observed(universe, 50, 0, known)
    extra = set(seen.forced_sources["diaObjectId"].to_pylist()) - set(seen.sources["diaObjectId"].to_pylist())
    assert extra == {1}


def test_a_catalogue_makes_the_sky_uneven() -> None:
    stars = data_file("gcvs.parquet")
    table = pq.read_table(stars)
    ra, dec = 270.0, -29.0
    near = separation_deg(table["ra"].to_numpy(), table["dec"].to_numpy(), ra, dec)
    assert (near < 3).sum() > 100
    counts = []
    for density in (None, str(stars)):
        universe = Universe(Survey(ra=ra, dec=dec, detectors=25, transients=0, density=density), SMALL)
        counts.append([observed(universe, 0, detector).sources.num_rows for detector in range(25)])
    uniform, uneven = np.array(counts)
    assert uneven.max() / max(uneven.min(), 1) > 3 * uniform.max() / uniform.min()


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two workers and a reader, twelve visits of two detectors."""
    folder = tmp_path_factory.mktemp("simulated")
    apdb.create(folder / "survey.db", "small").close()
    survey = Survey(visits=12, detectors=2, nights=12, days_between=2)
    run(Run(survey, str(folder / "survey.db"), folder / "log", workers=2, readers=1))
    return folder


def test_processes_store_every_detector_visit_and_log_every_operation(simulated: Path) -> None:
    log = entries(sorted((simulated / "log").glob("*.jsonl")))
    done = rows_by_visit(log)
    assert len(done) == 2 * 12 * 2
    assert sum(entry["op"] == "cone" for entry in log) > 0
    with apdb.open(simulated / "survey.db") as database:
        assert len(database.visits()) == 24
        stored = sum(done[key][names.SOURCE] for key in done if key[2] == "store")
        assert len(database.sources()) == stored
        last = database.footprint(Survey().footprint(0, 0, 52 / 3600), at=Survey().start_mjd_tai + 30)
        assert len(last.sources) >= done[11, 0, "read"][names.SOURCE] + done[11, 0, "store"][names.SOURCE]
    each = [entry for entry in log if entry["op"] == "store"]
    assert all(entry["bytes"] > 0 and entry["seconds"] > 0 and entry["cpu_s"] >= 0 for entry in each)


def test_one_process_sees_what_two_saw(simulated: Path, tmp_path: Path) -> None:
    apdb.create(tmp_path / "survey.db", "small").close()
    survey = Survey(visits=4, detectors=2, nights=4, days_between=2)
    files = run(Run(survey, str(tmp_path / "survey.db"), tmp_path / "log", barrier=False))
    alone = rows_by_visit(entries(files))
    together = rows_by_visit(entries(sorted((simulated / "log").glob("worker-*.jsonl"))))
    # Padded footprints overlap: what a neighbour stored a moment ago may or may not be read.
    assert {k: v for k, v in alone.items() if k[1] == 0 and k[2] == "store"}.items() <= together.items()


def test_ours_and_the_peer_are_driven_with_identical_data(tmp_path: Path) -> None:
    pytest.importorskip("lsst.dax.apdb", reason="THE PEER IS NOT COMPARED: pip install 'chronotile[lsst]'")
    from lsst.dax.apdb.sql import ApdbSql

    schema = Path(apdb.__file__).parent / "small.yaml"
    felis = tmp_path / "schema.yaml"
    # The peer wants all of its tables, and a table of metadata.
    felis.write_text(
        schema.read_text()
        + """
- name: metadata
  columns:
  - {name: name, datatype: text, nullable: false}
  - {name: value, datatype: text, nullable: false}
  primaryKey: "#metadata.name"
- name: DiaObjectLast
  columns:
  - {name: diaObjectId, datatype: long, nullable: false}
- name: SSSource
  columns:
  - {name: diaSourceId, datatype: long, nullable: false}
- name: DiaObject_To_Object_Match
  columns:
  - {name: diaObjectId, datatype: long, nullable: false}
"""
    )
    apdb.create(tmp_path / "ours.db", felis).close()
    survey = Survey(visits=5, detectors=2, nights=5, days_between=9)
    with disposing_engines():
        config = ApdbSql.init_database(f"sqlite:///{tmp_path}/peer.db", schema_file=str(felis), ss_schema_file="")
        config.save(str(tmp_path / "peer.yaml"))
        logs = [
            rows_by_visit(entries(run(Run(survey, str(tmp_path / target), tmp_path / f"log-{peer}", peer=peer))))
            for target, peer in (("ours.db", False), ("peer.yaml", True))
        ]
    assert logs[0] == logs[1]
    assert logs[0][4, 0, "read"][names.FORCED] > 100


def test_settings_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    for wrong in ({"detectors": 190}, {"visits": 0}, {"radius": -1}, {"visits": 3, "nights": 4}):
        with pytest.raises(ct.InvalidInputError):
            Survey(**wrong)
    apdb.create(tmp_path / "survey.db", "small").close()
    with pytest.raises(ct.InvalidInputError, match="workers is 5"):
        run(Run(Survey(detectors=4), str(tmp_path / "survey.db"), tmp_path / "log", workers=5))


def test_simulate_makes_the_database_it_is_told_to_and_refuses_another(chronotile: RunCli, tmp_path: Path) -> None:
    def simulate(*more: str) -> Any:
        wanted = ("--visits", "1", "--detectors", "1", "--log", tmp_path / "log", *more)
        return chronotile("apdb", "simulate", tmp_path / "survey.db", *wanted)

    assert simulate().returncode != 0, "there is none"
    assert simulate("--schema", "small", "--layout", "chunks").returncode == 0
    assert json.loads((tmp_path / "log" / "run.json").read_text())["layout"]["storage"] == "chunks"
    assert simulate("--schema", "small").returncode == 0, "it is there by now"
    other = simulate("--layout", "rows")
    assert (other.returncode, "exists with layout chunks" in other.stderr) == (2, True)
    refused = chronotile("apdb", "create", tmp_path / "rows.db", "--schema", "small", "--layout", "rows")
    assert refused.returncode != 0
    assert "use layout chunks, or an archive on a cluster" in refused.stderr


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_second_simulation_on_a_database_is_a_conflict_and_can_be_continued(
    chronotile: RunCli, tmp_path: Path, workers: str
) -> None:
    def simulate(*more: str) -> Any:
        small = (
            "--detectors",
            "2",
            "--variables",
            "300",
            "--transients",
            "200",
            "--workers",
            workers,
            "--schema",
            "small",
        )
        return chronotile("apdb", "simulate", tmp_path / "survey.db", *small, "--log", tmp_path / "log", *more)

    assert simulate("--visits", "3", "--nights", "3").returncode == 0
    again = simulate("--visits", "3", "--nights", "3")
    assert (again.returncode, again.stdout, again.stderr.count("\n")) == (4, "", 1), again.stderr
    assert "holds other rows of these visits, up to visit 2: a survey was simulated on it before" in again.stderr
    assert "continue with --first-visit 3" in again.stderr
    assert simulate("--visits", "4", "--nights", "4", "--first-visit", "3").returncode == 0
    with apdb.open(tmp_path / "survey.db") as database:
        assert len(database.visits()) == 4 * 2
    done = simulate("--visits", "3", "--nights", "3", "--first-visit", "3")
    assert (done.returncode, "first_visit is 3: use less than the number of visits, 3" in done.stderr) == (2, True)


def fake_logs(folder: Path, visits: int, days: float, slope: float = 1e-4) -> Path:
    """Logs of a simulation whose times are known."""
    folder.mkdir()
    settings = {"survey": {"radius": 0.0}, "driver": "chronotile", "engine": "sqlite", "machine": "2 processors"}
    (folder / "run.json").write_text(json.dumps(settings))
    rng = np.random.default_rng(5)
    lines = []
    for visit in range(visits):
        for detector in range(3):
            common = {"visit": visit, "detector": detector, "mjd_tai": 61_000 + visit * days / visits}
            each = {name: 0.01 + visit * slope + rng.normal(0, 1e-4) for name in names.MAIN_TABLES}
            rows = dict.fromkeys(names.MAIN_TABLES, visit)
            read = {"op": "read", "seconds": sum(each.values()), "seconds_by_table": each, "rows": rows, "cpu_s": 0.01}
            lines += [{**common, **read}, {**common, "op": "store", "seconds": 0.02, "cpu_s": 0.01, "rows": rows}]
    (folder / "worker-0.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    return folder


def test_the_report_finds_the_line_the_scatter_and_the_plateau(tmp_path: Path) -> None:
    logs = report.read_logs(fake_logs(tmp_path / "run-nodes-3", 300, 450))
    fit = logs.fit("read")
    assert fit is not None
    # Three tables, each a hundred microseconds a visit; a visit of one field stands for 2,144 of a hemisphere.
    assert fit.slope * logs.factor == pytest.approx(3e-4, rel=0.01)
    assert logs.factor == pytest.approx(20_626.5 / FIELD_AREA_DEG2)
    assert fit.scatter == pytest.approx(1e-4, rel=0.3), "of three tables and three detectors: sqrt(3) / sqrt(3)"
    value, error = fit.at(180_000)
    assert value == pytest.approx(0.03 + 180_000 / logs.factor * 3e-4, rel=0.01)
    assert 0 < error < 0.01 * value
    flat = logs.plateau("read")
    assert flat is not None
    assert flat[0] == pytest.approx(0.03 + 270 * 3e-4, rel=0.01)
    assert report._pair((-0.5, 0.1)) == "below 200.0 ms", "no time is below zero"
    assert report._pair((0.5, 0.1)) == "500.0 ms ± 100.0 ms"
    assert report.figures(logs)["store"]["mean_s"] == pytest.approx(0.02)
    assert logs.nodes == 3


@pytest.mark.parametrize("name", ["run.json", "worker-0.jsonl", "reader-0.jsonl"])
@pytest.mark.parametrize("content", ["{", "[]", "{}", "1", '{"survey": 1, "op": "read"}'])
def test_damaged_logs_are_named(tmp_path: Path, name: str, content: str) -> None:
    folder = fake_logs(tmp_path / "run", 2, 2)
    with (folder / name).open("w" if name == "run.json" else "a") as file:
        file.write(f"\n{content}")
    with pytest.raises(ct.DataFileError, match=f"a log in {folder}") as error:
        report.read_logs(folder)
    assert error.value.kind == "file-content"


def test_a_report_says_nothing_of_later_visits_from_a_few_and_draws_no_line_past_the_plateau(tmp_path: Path) -> None:
    few = report.read_logs(fake_logs(tmp_path / "few", 8, 8))
    assert few.fit("read") is not None
    assert few.at_visit("read", 180_000) is None
    assert report.figures(few)["read"]["extrapolated_s"] == {"180000": None, "300000": None}
    assert "too short to extrapolate to 180,000 visits: simulate at least 30 visits" in report.text(few)
    assert "at 180,000 visits" not in report.text(few)
    page = report.page([few])
    assert "few is too short" in page
    assert "±" not in page
    # Many visits of one night, in a wide patch, reach no tenth of the way.
    near = dataclasses.replace(few, visits=np.arange(100.0), days=np.arange(100.0) / 100)
    near = dataclasses.replace(near, seconds={name: np.linspace(0.1, 0.2, 100) for name in few.seconds})
    assert near.at_visit("read", 180_000) is None
    long = report.read_logs(fake_logs(tmp_path / "long", 300, 450))
    assert long.at_visit("read", 180_000) is not None
    trend = report._Series("long", long, "read").trend
    assert trend is not None
    assert trend[0][1] == long.visits[long.days < 360].max() < long.visits.max()
    for text in (report.text(long), report.page([long])):
        assert "engine sqlite" in text
        assert "2 processors" in text


def test_clusters_of_several_sizes_are_compared_with_one_over_n(tmp_path: Path, chronotile: RunCli) -> None:
    # Two nodes are twice as fast as one; four are no faster than two.
    sizes = [("nodes-1", 4e-4), ("nodes-2", 2e-4), ("again-nodes-2", 2e-4), ("nodes-4", 2e-4)]
    logs = [report.read_logs(fake_logs(tmp_path / name, 120, 200, slope)) for name, slope in sizes]
    one, two, four = report.scaling(logs)
    assert [each.nodes for each in (one, two, four)] == [1, 2, 4]
    assert (one.share, two.share) == (1, pytest.approx(1, rel=0.3))
    assert four.share == pytest.approx(2 * two.share, rel=0.02)
    assert two.error < one.error * 0.9, "of two simulations"
    assert report.scaling(logs[:1]) == []
    folders = [tmp_path / name for name, _ in sizes]
    done = chronotile("apdb", "report", *folders, "--out", tmp_path / "page.html")
    assert done.returncode == 0, done.stderr
    assert "4 nodes: " in done.stdout
    check_page((tmp_path / "page.html").read_text(), drawings=3)
    record = json.loads(chronotile("apdb", "report", *folders, "--out", tmp_path / "b.html", "--json").stdout)
    assert [each["nodes"] for each in record["nodes"]] == [1, 2, 4]
    assert len(record["simulations"]) == 4


def test_the_page_of_a_report_stands_alone(simulated: Path, chronotile: RunCli, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    done = chronotile("apdb", "report", simulated / "log", "--out", page)
    assert done.returncode == 0, done.stderr
    assert "read DiaForcedSource" in done.stdout
    assert "cones of other readers" in done.stdout
    assert "engine sqlite" in done.stdout
    assert f"{os.cpu_count()} processors" in done.stdout
    check_page(page.read_text(), drawings=3)
    again = chronotile("apdb", "report", simulated / "log", "--out", page)
    assert (again.returncode, "--overwrite" in again.stderr) == (4, True)
    assert chronotile("apdb", "report", tmp_path, "--out", tmp_path / "x.html").returncode == 3


def test_the_study_of_pixels_counts_as_the_reference_does(tmp_path: Path, chronotile: RunCli) -> None:
    sphgeom = pytest.importorskip("lsst.sphgeom")
    found = {(each.scheme, each.level): each for each in pixels.throw(0.225, 52 / 3600, 60, [8, 9], seed=3)}
    rng = np.random.default_rng(3)
    ra, turn = rng.uniform(0, 360, 60), rng.uniform(0, np.pi / 2, 60)
    dec = np.degrees(np.arcsin(rng.uniform(-1, 1, 60)))
    for scheme, kind in (("mq3c", sphgeom.Mq3cPixelization), ("q3c", sphgeom.Q3cPixelization)):
        counts = []
        for place in zip(ra.tolist(), dec.tolist(), turn.tolist(), strict=True):
            corners = Exposure(0, 0, 0.0, *place[:2], 0.225, angle=float(np.degrees(place[2]))).corners(52 / 3600)
            polygon = sphgeom.ConvexPolygon([sphgeom.UnitVector3d(sphgeom.LonLat.fromDegrees(*c)) for c in corners])
            counts.append(sum(end - begin for begin, end in kind(9).envelope(polygon)))
        assert found[scheme, 9].pixels == pytest.approx(np.mean(counts), rel=0.02)
    nine = found["healpix", 9]
    assert nine.detectors_a_pixel == pytest.approx((41_252.96 / (12 * 4**9)) / (0.225 + 104 / 3600) ** 2, rel=0.01)
    assert nine.area_ratio == pytest.approx(nine.pixels * nine.detectors_a_pixel, rel=0.02)
    page = tmp_path / "pixels.html"
    done = chronotile("apdb", "pixels", "--count", 20, "--levels", "8-9", "--out", page)
    assert done.returncode == 0, done.stderr
    assert "recommended: " in done.stdout
    check_page(page.read_text(), drawings=3)


def test_layouts_are_measured_with_the_same_survey_and_differ_in_one_thing(chronotile: RunCli, tmp_path: Path) -> None:
    command = (
        "apdb", "pixels", "--count", 10, "--levels", "9", "--measure", f"sqlite:{tmp_path}/study.db", "--schema",
        "small",
        "--measure-levels", "8-9", "--windows", "30d,60d", "--slices", "30d,360d", "--visits", 4, "--repeat", 1,
        "--out", tmp_path / "page.html", "--json", "--overwrite",
    )  # fmt: skip
    done = chronotile(*command)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["recommended"] in record["levels"]
    measured = record["measured"]
    assert [each["name"].split(",")[0] for each in measured] == ["mq3c 9", "level 8", "windows 60d", "slices 360d"]
    base, coarse, long, one = measured
    assert (base["cells"], base["tables"]) == (9, 4), "four visits in twelve months"
    assert coarse["cells"] < base["cells"]
    assert coarse["tiles"] < base["tiles"]
    assert long["layout"]["slice"] == "60d"
    assert one["tables"] < base["tables"]
    assert one["cell_bytes_max"] > base["cell_bytes_max"], "a cell's months lie together"
    for each in measured:
        assert len(each["store_ms"]) == 4
        assert {kind: len(times) for kind, times in each["read_ms"].items()} == dict.fromkeys(partitioning.READS, 1)
        assert min(ms for times in each["maintained_ms"].values() for ms in times) > 0
    with apdb.open(tmp_path / "study-1.db") as first, apdb.open(tmp_path / "study-4.db") as last:
        found = [database.sources().to_arrow().sort_by("diaSourceId") for database in (first, last)]
    assert found[0] == found[1]
    assert found[0].num_rows > 100
    check_page((tmp_path / "page.html").read_text(), drawings=3)
    again = chronotile(*command)
    assert (again.returncode, "study-1.db exists" in again.stderr) == (2, True), "what is there stays"


def test_a_simulation_of_a_database_that_is_not_there_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ct.ArchiveNotFoundError):
        run(Run(Survey(visits=1, detectors=1), str(tmp_path / "none.db"), tmp_path / "log"))
    assert list(tmp_path.iterdir()) == []
