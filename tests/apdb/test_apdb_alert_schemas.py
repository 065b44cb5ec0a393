"""Packets of every alert schema that the LSST published: its own samples, and random values in all fields."""

from __future__ import annotations

import io
import math
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
import pyarrow as pa
import pyarrow.parquet as pq
from click.testing import CliRunner
from support_packets import Packets, Row, arrow_type, lsst_schema, lsst_schemas

import chronotile as ct
from chronotile import apdb
from chronotile.apdb import alerts
from chronotile.cli.main import cli, exit_code

fastavro = pytest.importorskip("fastavro")

REFUSED = ["3.0", "4.0", "5.0", "6.0", "6.1"]
WITHOUT_START = ["7.0", "7.1", "7.2", "7.3", "7.4"]
"""Schemas whose objects have no start of validity; the times in their samples are seconds since 1970."""
CURRENT = ["8.0", "9.0", "10.0", "11.0", "11.1"]

TAI_MINUS_UTC_S = {2017: 37, 2016: 36, 1973: 12, 1970: 10}
"""From these years on, of those that the tests have."""

PARTS = {"objects": "diaObjectId", "sources": "diaSourceId", "forced_sources": "visit"}
"""Columns that tell the rows of these packets apart."""


@pytest.fixture(scope="module")
def relaxed() -> apdb.Schema:
    pytest.importorskip("lsst.sdm.schemas", reason="lsst-sdm-schemas is not installed")
    return apdb.Schema.read().relaxed()


def sample(version: str) -> Path:
    return lsst_schemas() / version.replace(".", "/") / "sample_data" / "fakeAlert.avro"


def run(*words: object) -> tuple[int, str]:
    """The exit code of an apdb command and what it printed."""
    done = CliRunner().invoke(cli, ["apdb", *map(str, words)])
    error = done.exception
    if isinstance(error, ct.ChronotileError):
        return exit_code(error), str(error)
    assert error is None, error
    return done.exit_code, done.output


def test_the_schemas_in_these_tests_are_all_that_were_published() -> None:
    published = {".".join(path.parts[-3:-1]) for path in lsst_schemas().glob("*/*/lsst.*.alert.avsc")}
    assert {*REFUSED, *WITHOUT_START, *CURRENT} == published


@pytest.mark.parametrize("version", REFUSED)
def test_samples_of_schemas_without_visits_are_refused_by_their_version(version: str, tmp_path: Path) -> None:
    reason = f"{sample(version)} contains LSST alerts of schema {version}, whose sources have no visit and detector"
    with apdb.create("memory:", "small") as database, pytest.raises(ct.DataFileError) as caught:
        alerts.import_alerts(database, [sample(version)])
    assert str(caught.value) == f"{reason}: alerts are imported from schema 7 on"
    assert run("create", tmp_path / "survey.db", "--schema", "small")[0] == 0
    code, text = run("import", tmp_path / "survey.db", sample(version))
    assert code != 0
    assert reason in text


@pytest.mark.parametrize("version", CURRENT)
def test_samples_are_imported_and_what_has_no_place_is_named(
    version: str, relaxed: apdb.Schema, tmp_path: Path
) -> None:
    with apdb.create("memory:", relaxed) as database:
        done = alerts.import_alerts(database, [sample(version)])
        assert (done.objects, done.sources, done.forced_sources) == (1, 3, 0)
        (packet,) = packets_of(sample(version))
        assert_equal_rows(database, [packet])
    orbit = "mpc_orbits" if version not in ("8.0", "9.0") else "MPCORB"
    images = ["cutoutDifference", "cutoutScience", "cutoutTemplate"]
    rest = sorted([orbit, *images, "observation_reason", "ssSource", "target_name"])
    assert done.left_out == tuple(rest)
    assert run("create", tmp_path / "survey.db", "--relaxed")[0] == 0
    code, text = run("import", tmp_path / "survey.db", sample(version))
    assert code == 0
    assert "1 object, 3 sources, 0 forced sources of 2 detector-visits" in text
    assert f"note: not imported: {', '.join(rest)} (no column in the schema)" in text


@pytest.mark.parametrize("version", WITHOUT_START)
def test_samples_whose_times_are_seconds_are_imported_with_dates(
    version: str, relaxed: apdb.Schema, tmp_path: Path
) -> None:
    note = "midpointMjdTai of sources was converted from seconds since 1970 (UTC) to MJD (TAI)"
    (packet,) = packets_of(sample(version))
    with apdb.create("memory:", relaxed) as database:
        done = alerts.import_alerts(database, [sample(version)])
        assert (done.objects, done.sources, done.forced_sources) == (1, len(detections(packet)), 0)
        assert {"ssObject", "prvDiaNondetectionLimits", "DiaObject.radecMjdTai"} <= {*done.left_out}
        assert done.notes == (note,)
        for source in detections(packet):
            source["midpointMjdTai"] = as_mjd(datetime.fromtimestamp(source["midpointMjdTai"], UTC))
        assert_equal_rows(database, [packet])
    assert run("create", tmp_path / "survey.db", "--relaxed")[0] == 0
    code, text = run("import", tmp_path / "survey.db", sample(version))
    assert code == 0
    assert f"note: {note}" in text


@pytest.mark.parametrize("version", [*WITHOUT_START, *CURRENT])
def test_every_value_that_the_schema_has_a_column_for_comes_back(
    version: str, relaxed: apdb.Schema, tmp_path: Path
) -> None:
    made = random_packets(version, 12)
    nested = pa.Table.from_pylist(made, pa.schema(list(arrow_type(lsst_schema(version)))))
    pq.write_table(nested, tmp_path / "alerts.parquet")
    for path in (container(version, made, tmp_path), tmp_path / "alerts.parquet"):
        with apdb.create("memory:", relaxed) as database:
            done = alerts.import_alerts(database, [path])
            assert_equal_rows(database, made)
            columns = {part for part in done.left_out if part.startswith("Dia")}
            assert not any(part.split(".")[1] in relaxed[part.split(".")[0]] for part in columns)
            if version in CURRENT:
                assert columns == set()
            if version == "7.0":
                assert done.notes == ("forced sources skipped: missing columns ra, dec",)


@pytest.mark.parametrize("version", [*WITHOUT_START, *CURRENT])
def test_packets_without_their_schema_are_refused(version: str, tmp_path: Path) -> None:
    """Kafka delivers packets without their schema, with its number in the schema registry in front."""
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, lsst_schema(version), random_packets(version, 1)[0])
    number = int(version.replace(".", "")) * 10
    (tmp_path / "message").write_bytes(b"\0" + number.to_bytes(4, "big") + buffer.getvalue())
    with pytest.raises(ct.DataFileError, match=rf"message looks like a Kafka message \(schema {number}\)"):
        list(alerts.read_alerts([tmp_path / "message"]))


def test_integers_too_large_for_their_column_are_refused(relaxed: apdb.Schema, tmp_path: Path) -> None:
    (packet,) = random_packets("11.1", 1)
    packet["diaSource"]["detector"] = 70_000
    with apdb.create("memory:", relaxed) as database:
        with pytest.raises(ct.InvalidInputError, match=r"DiaSource.detector in the alerts .* 70000 not in range"):
            alerts.import_alerts(database, [container("11.1", [packet], tmp_path)])
        assert len(database.sources()) == 0


# ---------------------------------------------------------------- packets and what becomes of them


def packets_of(path: Path) -> list[Row]:
    with path.open("rb") as file:
        return list(fastavro.reader(file))


def container(version: str, packets: list[Row], folder: Path) -> Path:
    with (folder / "alerts.avro").open("wb") as file:
        fastavro.writer(file, lsst_schema(version), packets)
    return folder / "alerts.avro"


def detections(packet: Row) -> list[Row]:
    return [packet["diaSource"], *(packet["prvDiaSources"] or [])]


def random_packets(version: str, count: int) -> list[Row]:
    """Packets with random values in all fields but those that identify and place their rows."""
    made = Packets(lsst_schema(version), seed=int(version.replace(".", "")))
    packets = [made.packet() for _ in range(count)]
    row = 0
    for number, packet in enumerate(packets):
        thing, object_id = packet["diaObject"], 2**60 + number
        place = {"ra": 150.0 + number / 7, "dec": 2.0 - number / 7}
        if thing:
            thing.update(place, diaObjectId=object_id)
            thing.update({"validityStartMjdTai": 61_000.1 + number} if "validityStartMjdTai" in thing else {})
        forced = packet["prvDiaForcedSources"] or []
        for seen in [*detections(packet), *forced]:
            row += 1
            seen.update(visit=2**40 + row, detector=row % 189, midpointMjdTai=61_000 + row / 7)
            # Forced sources of schema 7.0 have no position.
            seen.update(place if "ra" in seen else {})
        for seen in detections(packet):
            seen.update(diaSourceId=2**61 + seen["visit"], diaObjectId=object_id if thing else None)
        for seen in forced:
            seen["diaObjectId"] = object_id
        packet["alertId" if "alertId" in packet else "diaSourceId"] = packet["diaSource"]["diaSourceId"]
    return packets


def assert_equal_rows(database: apdb.Apdb, packets: list[Row]) -> None:
    """Compare all that is stored with the packets."""
    wanted = {
        "objects": [packet["diaObject"] for packet in packets if packet["diaObject"]],
        "sources": [seen for packet in packets for seen in detections(packet)],
        "forced_sources": [seen for packet in packets for seen in packet["prvDiaForcedSources"] or [] if "ra" in seen],
    }
    for part, key in PARTS.items():
        table = getattr(database, part)().to_arrow()
        stored = {row[key]: row for row in table.to_pylist()}
        assert len(stored) == table.num_rows == len(wanted[part]), part
        for row in wanted[part]:
            for name, value in current(row).items():
                if name in table.schema.names:
                    found = stored[row[key]][name]
                    assert found == value or (is_nan(found) and is_nan(value)), f"{part}.{name}"


def current(row: Row) -> Row:
    """A row with the names and times of current schemas."""
    names = {
        "is_negative": "isNegative",
        "time_processed": "timeProcessedMjdTai",
        "validityStart": "validityStartMjdTai",
    }
    return {names.get(name, name): as_mjd(value) for name, value in row.items()}


def as_mjd(value: Any) -> Any:
    """Convert a timestamp of UTC to MJD in TAI; samples have 1970 where a time is not known."""
    if not isinstance(value, datetime):
        return value
    ahead = timedelta(seconds=next(ahead for year, ahead in TAI_MINUS_UTC_S.items() if value.year >= year))
    return pytest.approx((value + ahead - datetime(1858, 11, 17, tzinfo=UTC)) / timedelta(days=1), abs=1e-11)


def is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)
