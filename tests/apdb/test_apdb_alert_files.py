"""Files of alerts in the forms that brokers, surveys and tools give them, whole or with parts missing."""

from __future__ import annotations

import errno
import gzip
import io
import json
import math
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
import pyarrow as pa
import pyarrow.parquet as pq
from click.testing import CliRunner
from conftest import Run
from support_alerts import PACKET, container, packets
from support_data import SAMPLES, data_file

import chronotile as ct
from chronotile import apdb
from chronotile.apdb import alert_containers
from chronotile.apdb.alerts import Import, import_alerts
from chronotile.cli.main import cli

ALERTS = SAMPLES / "alerts"
LSST, ZTF = ALERTS / "lsst_alerts_10_0.parquet", ALERTS / "ztf_alerts_2024.parquet"

Row = dict[str, Any]

ALERTS_ZTF = (12, 12, 0)
"""Objects, sources and forced sources of the ZTF's sample without what was seen before."""


def rows_of(path: Path) -> list[Row]:
    rows: list[Row] = pq.read_table(path).to_pylist()
    return rows


def imported(*paths: Path) -> tuple[Import, list[Row]]:
    """What an import says, and the sources that are there afterwards."""
    with apdb.create("memory:", "small") as database:
        done = import_alerts(database, paths)
        sources: list[Row] = database.sources().to_arrow().sort_by("diaSourceId").to_pylist()
        assert len(sources) == done.sources
        return done, sources


def counts(done: Import) -> tuple[int, int, int]:
    return done.objects, done.sources, done.forced_sources


def parquet(folder: Path, rows: list[Row]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), folder / "alerts.parquet")
    return folder / "alerts.parquet"


# ---------------------------------------------------------------- containers


def archive(members: dict[str, bytes], mode: Any) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as file:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            file.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def test_packets_in_archives_and_compressed_files_are_found_by_their_first_bytes(tmp_path: Path) -> None:
    some = packets(5)
    whole = container(some)
    each = {f"{p['candidate']['candid']}.avro": container([p]) for p in some} | {"._10.avro": b"of a Macintosh"}
    for name, content in {
        "alerts.avro": whole, "alerts": whole, "alerts.parquet": whole, "alerts.avro.gz": gzip.compress(whole),
        "ztf_public_20240101.tar.gz": archive(each, "w:gz"), "night.tar": archive(each, "w"),
    }.items():  # fmt: skip
        (tmp_path / name).write_bytes(content)
        done, sources = imported(tmp_path / name)
        assert [row["diaSourceId"] for row in sources] == [10, 11, 12, 13, 14], name
        assert done.left_out == ("cutoutScience",), name


def test_a_folder_of_alerts_is_all_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "night" / "1").mkdir(parents=True)
    for place, packet in zip(("a.avro", "1/b.avro"), packets(2), strict=True):
        (tmp_path / "night" / place).write_bytes(container([packet]))
    (tmp_path / "night" / "_SUCCESS").touch()
    assert imported(tmp_path / "night")[0].sources == 2
    (tmp_path / "empty").mkdir()
    with pytest.raises(ct.DataFileError, match="empty is empty"):
        imported(tmp_path / "empty")


def bare(packet: Row) -> bytes:
    fastavro = pytest.importorskip("fastavro")
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(PACKET), packet)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (lambda: b"\0\0\0\x03\xe8" + bare(packets(1)[0]), r"looks like a Kafka message \(schema 1000\), which does "
         r"not contain its schema: write Avro container files instead"),
        (lambda: b"\xc3\x01" + b"12345678" + bare(packets(1)[0]), "is an Avro single object, which does not contain"),
        (lambda: bare(packets(1)[0]), "has an unknown format: give Parquet, an Avro container file, or an archive"),
        (lambda: b"", "is empty"),
        (lambda: gzip.compress(LSST.read_bytes()), r"is a compressed Parquet file: unpack it first \(gunzip\)"),
        (lambda: LSST.read_bytes()[:5_000], "is damaged"),
        (lambda: container(packets(3))[:-9], "is damaged"),
        (lambda: gzip.compress(container(packets(3)))[:-30], "is damaged"),
        (lambda: archive({"a.avro": container(packets(3))[:-9]}, "w"), "is damaged"),
        (lambda: archive({"notes.txt": b"no alerts"}, "w:gz"), "notes.txt of .* has an unknown format: give Parquet"),
        (lambda: archive({}, "w"), "has an unknown format: give Parquet"),
    ],
)  # fmt: skip
def test_what_holds_no_packets_is_refused_with_what_to_do(
    content: Callable[[], bytes], sentence: str, tmp_path: Path
) -> None:
    (tmp_path / "alerts.avro").write_bytes(content())
    with pytest.raises(ct.DataFileError, match=sentence) as caught:
        imported(tmp_path / "alerts.avro")
    assert str(caught.value).count("alerts.avro") == 1


@pytest.mark.parametrize("error", [errno.EACCES, errno.EIO, errno.ENOENT])
def test_a_file_that_cannot_be_read_is_not_reported_as_damaged(
    error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, *_: object) -> None:
        raise OSError(error, os.strerror(error), str(path))

    (tmp_path / "alerts.avro").write_bytes(container(packets(3)))
    monkeypatch.setattr(Path, "open", fail)
    with pytest.raises(ct.DataFileError) as caught:
        list(alert_containers.read(tmp_path / "alerts.avro"))
    assert str(caught.value) == f"cannot read {tmp_path / 'alerts.avro'}: {os.strerror(error)}"
    assert caught.value.kind == "file-access"


def of_codec(codec: str) -> bytes:
    """A container that says in its header to be compressed with `codec`; no reader of that codec takes its block."""

    def number(value: int) -> bytes:
        value, text = value << 1, b""
        while value > 0x7F:
            value, text = value >> 7, text + bytes([value & 0x7F | 0x80])
        return text + bytes([value])

    def counted(text: bytes) -> bytes:
        return number(len(text)) + text

    header = {b"avro.schema": json.dumps(PACKET).encode(), b"avro.codec": codec.encode()}
    pairs = b"".join(counted(name) + counted(value) for name, value in header.items())
    marker = bytes(range(16))
    return b"Obj\x01" + number(len(header)) + pairs + number(0) + marker + number(1) + counted(b"packed") + marker


@pytest.mark.parametrize(
    ("codec", "modules", "package", "packed"),
    [
        ("snappy", ["cramjam"], "cramjam", "night.tar"),
        ("zstandard", ["compression.zstd", "backports.zstd"], "backports.zstd", "alerts.avro"),
        ("lz4", ["lz4"], "lz4", "alerts.avro"),
    ],
)
def test_packets_of_a_codec_whose_package_is_missing_name_the_package(
    codec: str, modules: list[str], package: str, packed: str, tmp_path: Path
) -> None:
    pytest.importorskip("fastavro")
    content = of_codec(codec)
    (tmp_path / packed).write_bytes(archive({"1.avro": content}, "w") if packed.endswith(".tar") else content)
    # In a process of its own, since fastavro looks for the packages once.
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({modules!r})); "
        f"from chronotile.apdb.alerts import read_alerts; list(read_alerts([{packed!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    where = "1.avro of night.tar" if packed.endswith(".tar") else packed
    assert done.stderr.splitlines()[-1] == (
        f"chronotile.errors.MissingPackageError: {where} is compressed with {codec}, which needs {package}: "
        f"pip install 'fastavro[{codec}]'"
    )


def test_packets_of_an_unknown_codec_are_of_another_format_and_not_damaged(tmp_path: Path) -> None:
    pytest.importorskip("fastavro")
    (tmp_path / "alerts.avro").write_bytes(of_codec("brotli"))
    with pytest.raises(
        ct.DataFileError, match=r"alerts.avro is compressed with brotli, which cannot be read: write it"
    ):
        imported(tmp_path / "alerts.avro")


# ---------------------------------------------------------------- layouts of columns


@pytest.mark.parametrize("between", [".", "_"])
def test_records_that_a_tool_flattened_are_put_together_again(between: str, tmp_path: Path) -> None:
    def flat(row: Row, *parts: str) -> Row:
        return {f"{part}{between}{name}": value for part in parts for name, value in (row[part] or {}).items()}

    lsst = parquet(tmp_path, [flat(row, "diaSource", "diaObject") for row in rows_of(LSST)])
    assert counts(imported(lsst)[0]) == (22, 25, 0)
    ztf = parquet(tmp_path, [{"objectId": row["objectId"], **flat(row, "candidate")} for row in rows_of(ZTF)])
    assert counts(imported(ztf)[0]) == ALERTS_ZTF


def test_columns_with_the_prefixes_of_a_broker_are_those_of_the_survey(tmp_path: Path) -> None:
    lsst = parquet(
        tmp_path, [{f"r:{name}": value for name, value in row["diaSource"].items()} for row in rows_of(LSST)]
    )
    assert counts(imported(lsst)[0]) == (0, 25, 0)
    ztf = parquet(tmp_path, [
        {"i:objectId": row["objectId"], "d:cdsxmatch": "Star", "d:ra": 1.0}
        | {f"i:{name}": value for name, value in row["candidate"].items()} for row in rows_of(ZTF)
    ])  # fmt: skip
    done, sources = imported(ztf)
    assert counts(done) == ALERTS_ZTF
    assert "DiaSource.cdsxmatch" in done.left_out
    assert {row["ra"] for row in sources} == {row["candidate"]["ra"] for row in rows_of(ZTF)}


def test_a_flat_table_of_one_survey_is_told_by_its_ids(tmp_path: Path) -> None:
    assert counts(imported(parquet(tmp_path, [row["diaSource"] for row in rows_of(LSST)]))[0]) == (0, 25, 0)
    ztf = [{**row["candidate"], "objectId": row["objectId"], "candid": str(row["candid"])} for row in rows_of(ZTF)]
    assert counts(imported(parquet(tmp_path, ztf))[0]) == ALERTS_ZTF
    ztf[0]["candid"] = "none"
    with pytest.raises(ct.InvalidInputError, match=r"alerts.parquet: .*none"):
        imported(parquet(tmp_path, ztf))


# ---------------------------------------------------------------- what is missing


def without(row: Row, part: str, *columns: str) -> Row:
    return {**row, part: row[part] and {name: value for name, value in row[part].items() if name not in columns}}


@pytest.mark.parametrize("column", ["ra", "dec", "midpointMjdTai", "visit", "detector", "diaSourceId"])
def test_sources_without_a_column_they_cannot_do_without_are_refused(column: str, tmp_path: Path) -> None:
    flat = parquet(tmp_path, [without(row, "diaSource", column)["diaSource"] for row in rows_of(LSST)])
    if column != "diaSourceId":
        with pytest.raises(ct.InvalidInputError, match=f"alerts.parquet: sources rejected: missing column {column}$"):
            imported(flat)
    nested = parquet(tmp_path, [without(row, "diaSource", column) for row in rows_of(LSST)])
    with pytest.raises(ct.InvalidInputError, match=f"alerts.parquet: sources rejected: missing column {column}$"):
        imported(nested)


def test_parts_that_cannot_be_imported_are_named_and_the_rest_is(tmp_path: Path) -> None:
    rows = rows_of(LSST)
    done, _ = imported(parquet(tmp_path, [without(row, "diaObject", "ra", "dec") for row in rows]))
    assert counts(done) == (0, 65, 0)
    assert "diaObject skipped: missing columns ra, dec" in done.notes
    previous = [{**row, "prvDiaSources": [{"diaSourceId": 1, "ra": 1.0, "dec": 2.0}]} for row in rows]
    done, _ = imported(parquet(tmp_path, previous))
    assert done.sources == 25
    assert "prvDiaSources skipped: missing columns visit, detector, midpointMjdTai" in done.notes
    done, sources = imported(parquet(tmp_path, [without(row, "diaSource", "diaObjectId") for row in rows]))
    assert done.sources == len(sources) == 65
    done, _ = imported(parquet(tmp_path, [{"diaSource": row["diaSource"]} for row in rows]))
    assert (counts(done), done.notes) == ((0, 25, 0), ())


def test_rows_that_lack_a_value_are_counted_and_the_rest_is_stored(tmp_path: Path) -> None:
    rows = rows_of(LSST)
    rows[0]["diaSource"] = None
    rows[1]["diaSource"]["midpointMjdTai"] = None
    rows[2]["diaSource"]["ra"] = float("nan")
    done, _ = imported(parquet(tmp_path, [{**row, "prvDiaSources": None} for row in rows]))
    assert done.sources == 22
    assert {"1 alerts without diaSource", "1 sources without midpointMjdTai", "1 sources without ra"} <= {
        *done.left_out
    }
    rows = rows_of(ZTF)
    rows[0]["candidate"]["pid"] = rows[1]["objectId"] = None
    done, _ = imported(parquet(tmp_path, [{**row, "prv_candidates": None} for row in rows]))
    assert done.sources == 10
    assert {"1 alerts without objectId", "1 detections without pid"} <= {*done.left_out}


@pytest.mark.parametrize("column", ["pid", "ra", "dec", "jd", "magpsf"])
def test_detections_of_the_ztf_without_a_column_they_cannot_do_without_are_refused(column: str, tmp_path: Path) -> None:
    for rows in (
        [without(row, "candidate", column) for row in rows_of(ZTF)],
        [{**without(row, "candidate", column)["candidate"], "objectId": row["objectId"]} for row in rows_of(ZTF)],
    ):
        with pytest.raises(
            ct.InvalidInputError, match=f"alerts.parquet: detections rejected: missing column {column}$"
        ):
            imported(parquet(tmp_path, rows))


@pytest.mark.parametrize(
    ("given", "lost"),
    [
        ({"magpsf": -999.0}, {"psfFlux", "psfFluxErr"}),
        ({"sigmapsf": 0.0}, {"snr"}),
        ({"magpsf": -60.0, "sigmapsf": 1e9}, {"psfFluxErr"}),
    ],
)
def test_fluxes_out_of_range_become_nulls_and_are_counted(
    given: dict[str, float], lost: set[str], tmp_path: Path
) -> None:
    alone = [{**row, "prv_candidates": None} for row in rows_of(ZTF)]
    alone[0]["candidate"] |= given
    done, sources = imported(parquet(tmp_path, alone))
    row = next(row for row in sources if row["diaSourceId"] == alone[0]["candidate"]["candid"])
    assert {name for name in ("psfFlux", "psfFluxErr", "snr") if row[name] is None} == lost
    assert all(row[name] is None or math.isfinite(row[name]) for name in ("psfFlux", "psfFluxErr", "snr"))
    assert {f"1 values of detections.{name}, out of range" for name in lost} <= {*done.left_out}


def test_a_real_bogus_score_out_of_range_is_refused_with_its_detection(tmp_path: Path) -> None:
    alone = [{**row, "prv_candidates": None} for row in rows_of(ZTF)]
    alone[0]["candidate"] |= {"rb": 1e39}
    number = alone[0]["candidate"]["candid"]
    with pytest.raises(ct.InvalidInputError, match=f"DiaSource.reliability .* diaSourceId {number} does not fit float"):
        imported(parquet(tmp_path, alone))


def test_optional_columns_of_the_ztf_become_nulls(tmp_path: Path) -> None:
    optional = ("fid", "sigmapsf", "isdiffpos", "rb")
    alone = [{**row, "prv_candidates": None} for row in rows_of(ZTF)]
    done, sources = imported(parquet(tmp_path, [without(row, "candidate", *optional) for row in alone]))
    assert "detections without isdiffpos got positive fluxes" in done.notes
    assert {(row["band"], row["psfFluxErr"], row["snr"], row["reliability"]) for row in sources} == {(None,) * 4}
    assert all(row["psfFlux"] > 0 for row in sources)
    alone[0]["candidate"] |= {"magpsf": None, "fid": None}
    _, sources = imported(parquet(tmp_path, alone))
    assert sum(row["psfFlux"] is None for row in sources) == sum(row["band"] is None for row in sources) == 1


def test_the_command_names_what_it_left_out_each_with_its_reason(tmp_path: Path) -> None:
    def line(rows: list[Row]) -> str:
        database = tmp_path / f"{len(list(tmp_path.iterdir()))}.db"
        for words in (["create", database, "--schema", "small"], ["import", database, parquet(tmp_path, rows)]):
            done = CliRunner().invoke(cli, ["apdb", *map(str, words)], catch_exceptions=False)
            assert done.exit_code == 0, done.output
        (found,) = [text for text in done.stderr.splitlines() if "not imported" in text]
        return found.removeprefix("note: not imported: ")

    ztf = rows_of(ZTF)
    limits = sum(before["candid"] is None for row in ztf for before in row["prv_candidates"] or [])
    ztf[0]["candidate"]["ra"] = ztf[1]["objectId"] = None
    limits -= sum(before["candid"] is None for before in ztf[1]["prv_candidates"] or [])
    columns, *rest = line(ztf).split("; ")
    assert {"1 alerts without objectId", "1 detections without ra"} <= {*rest}
    assert f"{limits} upper limits of prv_candidates" in rest
    assert columns.startswith("DiaSource.")
    assert columns.endswith(" (no column in the schema)")
    assert not any("schema" in part for part in rest)

    lsst = [{"diaSource": with_float_ids(row["diaSource"])} for row in rows_of(LSST)]
    columns, *rest = line([row["diaSource"] or {} for row in lsst]).split("; ")
    assert "DiaSource.apFlux, DiaSource.apFluxErr, " in columns
    assert "5 detections whose rounded id belongs to another detection" in rest
    assert any(part.endswith(" values of DiaSource.diaObjectId, rounded in the file") for part in rest)

    alone = [{**row, "diaSource": with_float_ids(row["diaSource"]), "prvDiaSources": None} for row in rows_of(LSST)]
    assert any(part.endswith(" objects whose ids are rounded in the file") for part in line(alone).split("; "))

    # A column of a broker may have a blank in its name.
    flat = [{**row["diaSource"], "ra": row["diaSource"]["ra"] if n else None, "best class": "SN"}
            for n, row in enumerate(rows_of(LSST))]  # fmt: skip
    columns, *rest = line(flat).split("; ")
    assert "DiaSource.best class," in columns
    assert rest == ["1 sources without ra"]


def test_files_of_which_nothing_is_imported_are_an_error(tmp_path: Path, chronotile: Run) -> None:
    for path in (LSST, ZTF):
        pq.write_table(pq.read_table(path).slice(0, 0), tmp_path / "alerts.parquet")
        with pytest.raises(ct.InvalidInputError, match="no alert imported: no complete alert in the files"):
            imported(tmp_path / "alerts.parquet")
    parquet(tmp_path, [{"diaSource": {**row["diaSource"], "visit": None}} for row in rows_of(LSST)[:3]])
    assert chronotile("apdb", "create", "s.db", "--schema", "small", cwd=tmp_path).returncode == 0
    done = chronotile("apdb", "import", "s.db", "alerts.parquet", cwd=tmp_path)
    assert done.returncode == 2
    assert "3 sources without visit" in done.stderr


# ---------------------------------------------------------------- ids as doubles


def with_float_ids(row: Row | None) -> Row | None:
    ids = ("diaSourceId", "diaObjectId", "ssObjectId", "visit", "detector")
    return row and {name: float(value) if name in ids and value is not None else value for name, value in row.items()}


def test_detections_whose_rounded_ids_are_one_are_counted_instead_of_replaced_by_each_other(tmp_path: Path) -> None:
    exact = [row["diaSource"] for row in rows_of(LSST)]
    ids = {int(float(row["diaSourceId"])) for row in exact}
    assert len(ids) == 20
    flat = parquet(tmp_path, [with_float_ids(row) or {} for row in exact])
    with apdb.create("memory:", "small") as database:
        for _ in range(2):
            done = import_alerts(database, [flat])
            assert {row["diaSourceId"] for row in database.sources().to_arrow().to_pylist()} == ids
            assert "5 detections whose rounded id belongs to another detection" in done.left_out
            assert any(part.endswith("values of DiaSource.diaObjectId, rounded in the file") for part in done.left_out)


def test_alerts_know_the_exact_ids_of_their_sources(tmp_path: Path) -> None:
    rows = [{**row, "diaSource": with_float_ids(row["diaSource"]), "prvDiaSources": None} for row in rows_of(LSST)]
    done, sources = imported(parquet(tmp_path, rows))
    assert {row["diaSourceId"] for row in sources} == {row["diaSourceId"] for row in rows}
    assert not any("rounded id" in part for part in done.left_out)
    # No part of the file has the ids of the objects whole.
    assert done.objects == 0
    assert any(part.endswith("objects whose ids are rounded in the file") for part in done.left_out)


@pytest.mark.parametrize(
    ("changed", "before", "words"),
    [
        (
            {"visit": 7.5},
            None,
            r"DiaSource\.visit .*: 7\.5 in the record with diaSourceId 5 does not fit int64: give whole",
        ),
        ({"visit": 7}, {"visit": 6.5}, "column visit holds 6.5 where other values are integers"),
        ({"diaObjectId": 3.7}, None, "column diaObjectId holds 3.7 where"),
        ({"diaSourceId": 5.5}, None, "column diaSourceId holds 5.5 where"),
        (
            {"psfFlux": -1e300},
            None,
            r"DiaSource\.psfFlux .*: -1e\+300 in the record with diaSourceId 5 .* out of the range",
        ),
    ],
)
def test_values_that_the_schema_would_cut_are_refused_by_name(
    tmp_path: Path, changed: Row, before: Row | None, words: str
) -> None:
    source = {
        "diaSourceId": 5, "visit": 7.0, "detector": 3.0, "diaObjectId": 2.0, "midpointMjdTai": 61_000.0, "ra": 150.0,
        "dec": 2.0, "band": "r", "psfFlux": 1.0,
    }  # fmt: skip
    earlier = [{**source, "diaSourceId": 4, **before}] if before is not None else None
    path = parquet(tmp_path, [{"diaSource": {**source, **changed}, "prvDiaSources": earlier}])
    with pytest.raises(ct.InvalidInputError, match=f"{path.name}: .*{words}"):
        imported(path)
    # Whole numbers that are floats, and infinities that were measured, are kept.
    _, rows = imported(parquet(tmp_path, [{"diaSource": {**source, "psfFlux": float("-inf")}}]))
    assert [(row["visit"], row["diaObjectId"], row["psfFlux"]) for row in rows] == [(7, 2, float("-inf"))]


def test_the_processing_id_of_a_detection_is_a_whole_number(tmp_path: Path) -> None:
    row = pq.read_table(data_file("ztf_detections.parquet")).slice(0, 1).to_pylist()[0]
    with pytest.raises(ct.InvalidInputError, match=r"alerts\.parquet: column pid holds .*\.5 where"):
        imported(parquet(tmp_path, [{**row, "pid": row["pid"] + 0.5}]))


def test_forced_sources_take_the_exact_ids_of_their_objects(tmp_path: Path) -> None:
    def forced(row: Row) -> list[Row] | None:
        if not row["diaSource"]["diaObjectId"]:
            return None
        kept = {name: row["diaSource"][name] for name in ("ra", "dec", "detector", "diaObjectId")}
        own = {"diaForcedSourceId": 1, "visit": row["diaSource"]["visit"] - 1, "psfFlux": 1.0, "band": "r"}
        return [{**(with_float_ids(kept) or {}), **own, "midpointMjdTai": row["diaSource"]["midpointMjdTai"] - 1}]

    rows = [{**row, "prvDiaForcedSources": forced(row)} for row in rows_of(LSST)]
    with apdb.create("memory:", "small") as database:
        done = import_alerts(database, [parquet(tmp_path, rows)])
        ids = {row["diaSource"]["diaObjectId"] for row in rows}
        assert {row["diaObjectId"] for row in database.forced_sources().to_arrow().to_pylist()} <= ids
        lost = sum(int(part.split()[0]) for part in done.left_out if "forced sources whose ids are rounded" in part)
        assert done.forced_sources + lost == sum(forced(row) is not None for row in rows)
