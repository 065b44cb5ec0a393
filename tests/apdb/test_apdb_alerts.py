"""Real alerts of two surveys go through the importer, the API and the command line."""

from __future__ import annotations

import re
import tempfile
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
from support_data import SAMPLES, data_file, separation_deg

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
        assert (done.objects, done.sources, done.detector_visits) == (61, 582, 565)
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
        assert len(curve) == len(database.light_curve(name, near=(ra, dec))) == mine.num_rows
        assert len(database.light_curve(name, near=(ra + 1, dec))) == 0
        assert len(database.sources(object_ids=[name])) == mine.num_rows
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


ALERTS = SAMPLES / "alerts"


def relaxed() -> Any:
    pytest.importorskip("lsst.sdm.schemas", reason="lsst-sdm-schemas is not installed")
    return apdb.Schema.read().relaxed()


def test_packets_of_lsst_schema_10_keep_every_alert_and_name_what_has_no_place() -> None:
    path = ALERTS / "lsst_alerts_10_0.parquet"
    packets = pq.read_table(path).to_pylist()
    for schema in (relaxed(), "small"):
        with apdb.create("memory:", schema) as database:
            done = import_alerts(database, [path])
            with_object = {p["diaSource"]["diaObjectId"] for p in packets if p["diaObject"] is not None}
            previous = {s["diaSourceId"] for p in packets for s in p["prvDiaSources"] or []}
            ids = {p["diaSourceId"] for p in packets} | previous
            assert (done.objects, done.sources) == (len(with_object), len(ids)) == (22, 65)
            # The file has the ids of objects as floats, which do not hold them: the sources do.
            assert set(database.objects()["diaObjectId"].to_pylist()) == with_object
            assert set(database.sources()["diaSourceId"].to_pylist()) == ids
            starts = {p["diaObject"]["validityStartMjdTai"] for p in packets if p["diaObject"] is not None}
            assert set(database.objects()["validityStartMjdTai"].to_pylist()) == starts
            assert {"ssSource", "mpc_orbits", "observation_reason"} <= set(done.left_out)
            assert import_alerts(database, [path]).sources == len(database.sources()) == 65


def test_previous_detections_whose_ids_are_rounded_take_the_exact_ones_of_other_alerts(tmp_path: Path) -> None:
    path = ALERTS / "ztf_alerts_2024.parquet"
    whole = pq.read_table(path)
    before = [p for packet in whole["prv_candidates"].to_pylist() for p in packet or [] if p["candid"]]
    with apdb.create("memory:", "small") as database:
        done = import_alerts(database, [path])
        assert done.objects == len(set(whole["objectId"].to_pylist()))
        assert done.sources == len(database.sources()) == whole.num_rows + len(before)
        assert any(f"{len(before)} detections" in note for note in done.notes)
        assert any("upper limits" in part for part in done.left_out)

        # The alert of one of these detections comes later, or came before: each detection is there once.
        packet = next(p for p in whole.to_pylist() if any(b["candid"] for b in p["prv_candidates"] or []))
        detection = next(b for b in packet["prv_candidates"] if b["candid"])
        exact = int(detection["candid"]) + 7
        assert int(float(exact)) == int(detection["candid"]) != exact
        alone = {**packet["candidate"], **detection, "candid": exact}
        assert isinstance(alone["nbad"], float)
        alert = {"objectId": packet["objectId"], "candidate": alone, "prv_candidates": []}
        kinds = whole.schema.field("candidate").type
        alert["candidate"] = {f.name: None if alone[f.name] is None else pa.scalar(alone[f.name]).cast(f.type).as_py()
                              for f in kinds}  # fmt: skip
        later = pa.table({"objectId": [alert["objectId"]], "candidate": pa.array([alert["candidate"]], kinds)})
    for first, second in ((whole, later), (later, whole)):
        with apdb.create("memory:", "small") as database:
            for rows in (first, second, first):
                import_table(database, rows)
            found = database.sources()["diaSourceId"].to_pylist()
            assert len(found) == len(set(found)) == done.sources
            assert exact in found
            assert int(detection["candid"]) not in found
            assert len(database.light_curve(packet["objectId"])) == 1 + sum(
                1 for b in packet["prv_candidates"] if b["candid"]
            )
    with apdb.create("memory:", "small") as database:
        import_table(database, whole)
        database.archive_before(70_000, tmp_path / "cold", keep=True)
        with pytest.raises(ct.InvalidInputError, match="1 record may also be in files"):
            import_table(database, later)
        import_table(database, later, archived=tmp_path / "cold")
        found = database.sources(archived=tmp_path / "cold")["diaSourceId"].to_pylist()
        assert exact in found
        assert int(detection["candid"]) not in found


def import_table(database: apdb.Apdb, rows: pa.Table, **how: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        pq.write_table(rows, Path(folder) / "alerts.parquet")
        import_alerts(database, [Path(folder) / "alerts.parquet"], **how)


def test_integers_that_pandas_made_floats_are_kept_where_they_are_exact_and_never_wrong(tmp_path: Path) -> None:
    """A column of integers with nulls is one of floats, in some parts of a packet and not in others."""
    big = 2**60 + 1
    source = {
        "diaSourceId": big, "visit": 7, "detector": 3, "diaObjectId": big + 2, "ssObjectId": float(2**54 + 2),
        "parentDiaSourceId": 5.0, "midpointMjdTai": 61_000.0, "ra": 150.0, "dec": 2.0, "band": "r",
    }  # fmt: skip
    before = {**source, "diaSourceId": float(big + 512), "visit": 6.0, "detector": 3.0, "diaObjectId": float(big + 2)}
    for packets in (
        [{"diaSource": source, "prvDiaSources": [before], "diaObject": None}],
        [{"diaSource": source, "prvDiaSources": None,
          "diaObject": {"diaObjectId": float(big + 2), "ra": 1.0, "dec": 2.0}}],
    ):  # fmt: skip
        pq.write_table(pa.Table.from_pylist(packets), tmp_path / "alerts.parquet")
        with apdb.create("memory:", relaxed()) as database:
            done = import_alerts(database, [tmp_path / "alerts.parquet"])
            rows = database.sources().to_arrow().sort_by("visit").to_pylist()
            assert [row["diaObjectId"] for row in rows] == [big + 2] * len(rows)
            assert rows[-1]["diaSourceId"] == big
            assert rows[-1]["parentDiaSourceId"] == 5
            assert {row["ssObjectId"] for row in rows} == {None}
            assert any("DiaSource.ssObjectId, rounded" in part for part in done.left_out)
            if packets[0]["diaObject"]:
                assert database.objects()["diaObjectId"].to_pylist() == [big + 2]
                assert database.objects()["validityStartMjdTai"].to_pylist() == [61_000.0]
            else:
                assert any("1 detections" in note for note in done.notes)


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
    # As the help says it: the place is rounded to a hundredth of a degree.
    help_ = CliRunner().invoke(cli, ["apdb", "light-curve", "--help"]).output
    example = re.search(r"light-curve survey.db (\S+) --near (\S+)", help_)
    assert example is not None
    assert run("light-curve", archive, example[1], "--near", example[2]) == run("light-curve", archive, example[1])
    near = ("light-curve", archive, example[1], "--near", "23h01m34.0s,-0.32", "--radius")
    assert run(*near, "10arcsec") == run("light-curve", archive, example[1])
    assert "no measurement" in run(*near, "0.001arcsec", code=2)
    refused = run("light-curve", archive, example[1], "--near", "10,20", code=2)
    assert "no measurements of object 144594336015 around 10,20" in refused
    assert "--radius requires --near" in run("light-curve", archive, example[1], "--radius", "1", code=2)
    assert "ZTF name" in run("light-curve", archive, "M31", code=2)
    assert "dia_object" in run("maintain", archive)
    cold = tmp_path / "cold"
    assert "would be archived" in run("archive", archive, cold, "--before", "60000", "--dry-run")
    assert "1 slice archived" in run("archive", archive, cold, "--before", "60000", "--yes")
    assert "diaSourceId" in run(
        "read", archive, "sources", "--archived", cold, "--columns", "diaSourceId", "--limit", "1"
    )
    assert " 0  " in run("info", archive)
    assert "--archived" in run("light-curve", archive, "144594336015", code=2)
    words = ("light-curve", archive, "144594336015", "--columns", "midpointMjdTai,band")
    assert run(*words, "--archived", cold).count("59512.15") == 1
    assert "1 slice restored" in run("restore", archive, cold)
    assert "refused: new column diaForcedSourceId" in run("migrate", archive, "lsst", "--dry-run", code=2)
    refused = run("remove", archive, "--visit", "175815932", "--yes", code=2)
    assert "1 record changed since the store (reassigned, withdrawn, closed or restored)" in refused
    remove = ("remove", archive, "--visit", "175815932", "--yes", "--changed")
    assert f"1 record may also be in files that archive_before wrote to {cold}: pass" in run(*remove, code=2)
    assert "removed 1 detector-visit with 2 rows" in run(*remove, "--archived", cold)
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
    for verb in ("stored 0 objects, 2 sources", "already stored: 0 objects, 2 sources"):
        done = chronotile(*words, "--detector", "3")
        assert done.returncode == 0, done.stderr
        assert verb in done.stdout
    assert "column detector of DiaSource is missing" in chronotile(*words).stderr
