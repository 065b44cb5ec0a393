"""Real alerts of two surveys go through the importer, the API and the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from click.testing import CliRunner
from conftest import Run
from support_data import data_file, separation_deg

import chronotile as ct
from chronotile import apdb
from chronotile.apdb.alerts import import_alerts, read_alerts, ztf_object_ids
from chronotile.cli.main import cli, exit_code

LSST_PARTS = ("lsst_dia_objects.parquet", "lsst_dia_sources.parquet", "lsst_dia_forced_sources.parquet")


def test_detections_of_the_ztf_become_sources_with_their_times_places_and_fluxes() -> None:
    path = data_file("ztf_detections.parquet")
    given = pq.read_table(path)
    with apdb.create("memory:", "small") as database:
        done = import_alerts(database, [path])
        assert (done.sources, done.detector_visits) == (582, 565)
        assert len(database.objects()) == len(set(given["objectId"].to_pylist())) == 61
        stored = database.sources().to_arrow().sort_by("diaSourceId")
        wanted = given.sort_by("candid")
        assert stored["diaSourceId"].to_pylist() == wanted["candid"].to_pylist()
        assert stored["ra"].to_pylist() == wanted["ra"].to_pylist()
        assert np.allclose(stored["midpointMjdTai"], wanted["jd"].to_numpy() - 2_400_000.5 + 37 / 86_400, atol=1e-9)
        # Magnitude 31.4 is one nanojansky.
        magnitudes = 31.4 - 2.5 * np.log10(np.abs(stored["psfFlux"].to_numpy()))
        assert np.allclose(magnitudes, wanted["magpsf"].to_numpy(), atol=1e-4)
        negative = np.isin(wanted["isdiffpos"].to_pylist(), ["f", "0"])
        assert np.array_equal(stored["psfFlux"].to_numpy() < 0, negative)
        assert stored["detector"].to_pylist() == wanted["rcid"].to_pylist()
        rows = len(database.visits())
        import_alerts(database, [path])
        assert (len(database.sources()), len(database.visits())) == (582, rows)


def test_a_cone_around_an_object_of_the_ztf_has_its_light_curve() -> None:
    path = data_file("ztf_detections.parquet")
    given = pq.read_table(path)
    counts = pc.value_counts(given["objectId"]).to_pylist()
    name = max(counts, key=lambda each: each["counts"])["values"]
    mine = given.filter(pc.equal(given["objectId"], name))
    ra, dec = mine["ra"][0].as_py(), mine["dec"][0].as_py()
    near = separation_deg(given["ra"].to_numpy(), given["dec"].to_numpy(), ra, dec) <= 0.01
    with apdb.create("memory:", "small") as database:
        import_alerts(database, [path])
        seen = database.cone(ra, dec, 0.01).sources
        assert sorted(seen["diaSourceId"].to_pylist()) == sorted(np.array(given["candid"])[near].tolist())
        number = int(ztf_object_ids(pa.array([name]))[0])
        curve = database.light_curve(number, near=(ra, dec))
        assert len(curve) == mine.num_rows
        times = curve["midpointMjdTai"].to_pylist()
        assert times == sorted(times)


def test_alerts_of_the_lsst_keep_every_value_the_schema_has() -> None:
    pytest.importorskip("lsst.sdm.schemas", reason="lsst-sdm-schemas is not installed")
    paths = [data_file(name) for name in LSST_PARTS]
    given = pq.read_table(paths[1])
    with apdb.create("memory:", apdb.Schema.read().relaxed()) as database:
        done = import_alerts(database, paths)
        assert (done.objects, done.sources, done.forced_sources, done.detector_visits) == (50, 1_793, 50, 270)
        assert "DiaSource.snapDiffFlux" in done.left_out
        stored = database.sources().to_arrow().sort_by("diaSourceId")
        wanted = given.sort_by("diaSourceId")
        shared = [name for name in wanted.schema.names if name in stored.schema.names]
        assert len(shared) > 60
        for name in shared:
            column = wanted[name].cast(stored.schema.field(name).type)
            assert stored[name].to_numpy().tobytes() == column.to_numpy().tobytes() or stored[name].equals(column), name
        # This sample's positions of forced sources are in radians, those of objects in degrees.
        assert any("radians" in note for note in done.notes)
        forced = database.forced_sources().to_arrow()
        assert pc.min(forced["ra"]).as_py() > 249
        field = ct.circle(250.2, 2.0, 0.5)
        assert len(database.footprint(field).forced_sources) == 50
        import_alerts(database, paths)
        assert len(database.sources()) == 1_793


def packet(number: int) -> dict[str, Any]:
    """An alert of the ZTF as it comes over the wire, images left out."""
    detection = {
        "jd": 2_459_510.5 + number, "fid": 1 + number % 2, "pid": 1756139880615 + number * 10_000_000_000,
        "candid": 100 + number, "isdiffpos": "t", "ra": 150.0, "dec": 2.0, "magpsf": 18.0 + number, "sigmapsf": 0.1,
        "rb": 0.9,
    }  # fmt: skip
    before = [{**detection, "candid": 50 + k, "pid": detection["pid"] - (k + 1) * 10**9} for k in range(number)]
    limit = {**detection, "candid": None, "ra": None, "dec": None, "magpsf": None, "sigmapsf": None, "isdiffpos": None}
    return {
        "objectId": "ZTF18abkdczc",
        "candid": 100 + number,
        "candidate": detection,
        "prv_candidates": [*before, limit],
    }


def test_packets_bring_their_history_and_no_row_twice(tmp_path: Path) -> None:
    fastavro = pytest.importorskip("fastavro")
    number, text = ["null", "double"], ["null", "string"]
    fields = [("jd", "double"), ("fid", "int"), ("pid", "long"), ("candid", ["null", "long"]), ("isdiffpos", text)]
    fields += [(name, number) for name in ("ra", "dec", "magpsf", "sigmapsf", "rb")]
    detection = {"type": "record", "name": "c", "fields": [{"name": name, "type": kind} for name, kind in fields]}
    schema = {"type": "record", "name": "alert", "fields": [
        {"name": "objectId", "type": "string"}, {"name": "candid", "type": "long"},
        {"name": "candidate", "type": detection},
        {"name": "prv_candidates", "type": ["null", {"type": "array", "items": "c"}]},
        {"name": "cutoutScience", "type": ["null", "bytes"]},
    ]}  # fmt: skip
    packets = [{**packet(k), "cutoutScience": b"an image"} for k in range(3)]
    with (tmp_path / "alerts.avro").open("wb") as file:
        fastavro.writer(file, fastavro.parse_schema(schema), packets)
    pq.write_table(pa.Table.from_pylist([packet(k) for k in range(3)]), tmp_path / "alerts.parquet")
    for name in ("alerts.avro", "alerts.parquet"):
        with apdb.create("memory:", "small") as database:
            import_alerts(database, [tmp_path / name])
            found = database.sources()["diaSourceId"].to_pylist()
            assert sorted(found) == [50, 51, 100, 101, 102], name
            assert len(database.objects()) == 1


def test_files_without_alerts_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "text.parquet").write_text("no parquet")
    (tmp_path / "text.avro").write_text("no avro")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    for name, error in (
        ("text.parquet", ct.DataFileError), ("text.avro", ct.DataFileError), ("none.avro", ct.DataFileError),
        ("other.parquet", ct.InvalidInputError),
    ):  # fmt: skip
        with pytest.raises(error, match=name):
            list(read_alerts([tmp_path / name]))
    with pytest.raises(ct.InvalidInputError, match="M31"):
        ztf_object_ids(pa.array(["ZTF18abkdczc", "M31"]))


def test_the_commands_create_import_show_read_and_remove(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path, archive = data_file("ztf_detections.parquet"), tmp_path / "survey.db"

    def run(*words: object, code: int = 0) -> str:
        # In this process: each start of another costs a second. What the native module prints goes past click.
        done = CliRunner().invoke(cli, ["apdb", *map(str, words)])
        error = done.exception
        text = done.output + capfd.readouterr().out
        if isinstance(error, ct.ChronotileError):
            assert exit_code(error) == code, error
            return text + str(error)
        assert done.exit_code == code, text
        return text

    assert "DiaSource 18" in run("create", archive, "--schema", "small")
    assert "582 sources" in run("import", archive, path)
    assert "dia_source" in run("info", archive)
    assert "nJy" in run("schema", archive, "DiaSource")
    out = tmp_path / "out.parquet"
    run("read", archive, "sources", "--circle", "345.39,-0.32,0.1", "--out", out, "--columns", "diaSourceId,psfFlux")
    rows = pq.read_table(out)
    given = pq.read_table(path)
    near = separation_deg(given["ra"].to_numpy(), given["dec"].to_numpy(), 345.39, -0.32) <= 0.1
    assert rows.num_rows == near.sum() > 3
    curve = run("light-curve", archive, "144594336015", "--near", "345.3917,-0.32", "--columns", "midpointMjdTai,band")
    assert curve.count("59512.15") == 1
    assert "dia_object" in run("maintain", archive)
    cold = tmp_path / "cold"
    assert "would be archived" in run("archive", archive, cold, "--before", "60000", "--dry-run")
    assert "slices archived" in run("archive", archive, cold, "--before", "60000", "--yes")
    assert "diaSourceId" in run(
        "read", archive, "sources", "--archived", cold, "--columns", "diaSourceId", "--limit", "1"
    )
    assert " 0  " in run("info", archive)
    assert "slices restored" in run("restore", archive, cold)
    assert "refused: column diaForcedSourceId" in run("migrate", archive, "lsst", "--dry-run", code=2)
    refused = run("remove", archive, "--visit", "175815932", "--yes", code=2)
    assert "1 records were reassigned, withdrawn, closed or restored" in refused
    assert "1 detector-visits" in run("remove", archive, "--visit", "175815932", "--yes", "--changed")
    assert run("read", archive, "sources", "--columns", "diaSourceId", "--format", "csv").count("\n") == 582
    assert "use objects, sources or forced-sources" in run("read", archive, "stars", code=2)
    strict = tmp_path / "strict.db"
    run("create", strict)
    assert "column x of DiaSource is missing" in (told := run("import", strict, path, code=2))
    assert "--relaxed" in told


def test_a_detector_visit_is_stored_from_files(tmp_path: Path, chronotile: Run) -> None:
    archive = tmp_path / "survey.db"
    table = {"diaSourceId": [1, 2], "ra": [150.0, 150.1], "dec": [2.0, 2.0], "midpointMjdTai": [61_000.0, 61_000.0]}
    pq.write_table(pa.table(table), tmp_path / "sources.parquet")
    assert chronotile("apdb", "create", archive, "--schema", "small").returncode == 0
    words = ("apdb", "store", archive, "--time", "61000", "--sources", tmp_path / "sources.parquet", "--visit", "7")
    for verb in ("stored 0 objects, 2 sources", "was stored already: 0 objects, 2 sources"):
        done = chronotile(*words, "--detector", "3")
        assert done.returncode == 0, done.stderr
        assert verb in done.stdout
    assert "column detector of DiaSource is missing" in chronotile(*words).stderr
