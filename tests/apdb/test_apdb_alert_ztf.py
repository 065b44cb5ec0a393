"""Packets of the ZTF with random values in all fields of its alert schema."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
import pyarrow as pa
import pyarrow.parquet as pq
from click.testing import CliRunner
from support_packets import Packets, Row, arrow_type
from support_ztf import ztf_schema

from chronotile import apdb
from chronotile.apdb import alerts
from chronotile.apdb.schema import Column
from chronotile.cli.main import cli

fastavro = pytest.importorskip("fastavro")

CONVERTED = {"jd", "fid", "pid", "candid", "isdiffpos", "ra", "dec", "magpsf", "sigmapsf", "rb"}
"""Columns that become others."""
COLUMN_TYPES = {"int": "int32", "long": "int64", "float": "float32", "double": "float64", "string": "utf8"}


def random_packets(version: str, count: int) -> list[Row]:
    """Packets with random values in all fields but those that are converted."""
    made = Packets(ztf_schema(version), seed=7)
    packets = [made.packet() for _ in range(count)]
    row = 0
    for number, packet in enumerate(packets):
        packet |= {"objectId": f"ZTF21abcdef{chr(97 + number)}", "schemavsn": version}
        for seen in [packet["candidate"], *(packet["prv_candidates"] or [])]:
            row += 1
            # The processing id names night, time of day, readout channel and type.
            seen |= {
                "jd": 2_459_510.5 + row / 8,
                "pid": (1_756_139_880 + row * 1_000_000) * 10_000 + (row % 64) * 100 + 15,
            }
            limit = seen is not packet["candidate"] and seen["candid"] is None
            nothing = dict.fromkeys(("ra", "dec", "magpsf", "sigmapsf", "isdiffpos"))
            place = {"ra": 150.0 + number, "dec": 2.0, "magpsf": 16.0 + row / 64, "sigmapsf": 0.125}
            seen |= nothing if limit else {**place, "candid": 2**60 + row, "isdiffpos": "tf"[row % 2]}
            seen |= {"fid": 1 + row % 3, "rb": 0.5}
        packet["candid"] = packet["candidate"]["candid"]
    return packets


def schema_with_columns_of(version: str) -> apdb.Schema:
    """The small schema with a column for each field of a detection that is not converted."""
    candidate = next(f["type"] for f in ztf_schema(version)["fields"] if f["name"] == "candidate")
    own = {}
    for field in candidate["fields"]:
        kind = field["type"]
        own[field["name"]] = kind if isinstance(kind, str) else next(each for each in kind if each != "null")
    columns = [Column(name, COLUMN_TYPES[kind]) for name, kind in own.items() if name not in CONVERTED]
    return apdb.Schema.read("small").extended({"DiaSource": columns})


def assert_is_stored(seen: Row, row: Row) -> None:
    """Compare a stored source with the detection that it was."""
    sign = 1 if seen["isdiffpos"] == "t" else -1
    flux = sign * 10 ** ((31.4 - seen["magpsf"]) / 2.5)
    assert row["psfFlux"] == pytest.approx(flux, rel=1e-6)
    assert row["psfFluxErr"] == pytest.approx(abs(flux) * 0.125 * math.log(10) / 2.5, rel=1e-6)
    assert row["midpointMjdTai"] == pytest.approx(seen["jd"] - 2_400_000.5 + 37 / 86_400, abs=1e-9)
    assert (row["ra"], row["dec"], row["reliability"]) == (seen["ra"], seen["dec"], seen["rb"])
    assert (row["visit"], row["detector"]) == (seen["pid"] // 10_000, seen["pid"] // 100 % 100)
    assert row["band"] == "gri"[seen["fid"] - 1]
    for name in seen.keys() - CONVERTED:
        found, value = row[name], seen[name]
        assert found == value or (isinstance(value, float) and math.isnan(value) and math.isnan(found)), name


@pytest.mark.parametrize("version", ["3.3", "4.02"])
def test_every_value_of_a_detection_comes_back_and_what_has_no_place_is_named(version: str, tmp_path: Path) -> None:
    made = random_packets(version, 20)
    with (tmp_path / "alerts.avro").open("wb") as file:
        fastavro.writer(file, ztf_schema(version), made, codec="deflate")
    pq.write_table(
        pa.Table.from_pylist(made, pa.schema(list(arrow_type(ztf_schema(version))))), tmp_path / "alerts.parquet"
    )
    wanted = [seen for packet in made for seen in [packet["candidate"], *(packet["prv_candidates"] or [])]]
    limits = sum(seen["candid"] is None for seen in wanted)
    detected = {seen["candid"]: seen for seen in wanted if seen["candid"] is not None}
    assert limits
    forced = ["fp_hists"] if version == "4.02" else []
    for name in ("alerts.avro", "alerts.parquet"):
        with apdb.create("memory:", schema_with_columns_of(version)) as database:
            done = alerts.import_alerts(database, [tmp_path / name])
            table = database.sources().to_arrow()
            assert {row["diaSourceId"] for row in table.to_pylist()} == detected.keys()
            for row in table.to_pylist():
                assert_is_stored(detected[row["diaSourceId"]], row)
            images = ["cutoutDifference", "cutoutScience", "cutoutTemplate"]
            unplaced = sorted([*images, *forced, "publisher", "schemavsn"])
            assert done.left_out == (*unplaced, f"{limits} upper limits of prv_candidates")
            assert done.objects == len(database.objects()) == 20
            assert len(database.light_curve("ZTF21abcdefa")) == sum(seen["ra"] == 150.0 for seen in detected.values())


def test_the_command_imports_packets_and_names_what_it_leaves_out(tmp_path: Path) -> None:
    with (tmp_path / "alerts.avro").open("wb") as file:
        fastavro.writer(file, ztf_schema("4.02"), random_packets("4.02", 3), codec="deflate")
    for words in (["create", tmp_path / "s.db", "--relaxed"], ["import", tmp_path / "s.db", tmp_path / "alerts.avro"]):
        done = CliRunner().invoke(cli, ["apdb", *map(str, words)], catch_exceptions=False)
        assert done.exit_code == 0, done.output
    assert "3 objects, " in done.output
    assert "DiaSource.drb, DiaSource.drbversion, " in done.output
    assert "fp_hists, publisher, schemavsn (no column in the schema)" in done.output
