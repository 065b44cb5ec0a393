"""Real files come back exactly as a plain filter of the file gives them, before and after consolidation."""

from __future__ import annotations

import csv
import math
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy")
pa = pytest.importorskip("pyarrow")
import pyarrow.compute as pc  # noqa: E402  (after the imports that may skip this file)
import pyarrow.parquet as pq  # noqa: E402
import swf  # noqa: E402
from support_data import assert_same_rows, data_file, job_log, run_cli, separation_deg, stored_digest  # noqa: E402

import chronotile as ct  # noqa: E402
from chronotile.sky import pixel_index  # noqa: E402

TAI_MINUS_UTC_S = 37
"""Since 2017 (IERS Bulletin C 52)."""


@dataclass(frozen=True)
class Survey:
    """A file of positions in time."""

    file: str
    time: str
    """As `--time` takes it."""
    id: str
    level: int

    @property
    def column(self) -> str:
        return self.time.split(":")[0]

    @property
    def axis(self) -> ct.TimeAxis:
        return ct.mjd(self.column, scale="tai") if "tai" in self.time else ct.jd(self.column)


ZTF = Survey("ztf_detections.parquet", "jd", "candid", 10)
SOURCES = Survey("lsst_dia_sources.parquet", "midpointMjdTai:mjd:tai", "diaSourceId", 12)
OBJECTS = Survey("lsst_dia_objects.parquet", "radecMjdTai:mjd:tai", "diaObjectId", 12)
FORCED = Survey("lsst_dia_forced_sources.parquet", "midpointMjdTai:mjd:tai", "diaForcedSourceId", 16)
SURVEYS = [pytest.param(survey, id=survey.file.removesuffix(".parquet")) for survey in (ZTF, SOURCES, OBJECTS, FORCED)]

Cone = tuple[float, float, float]
Period = tuple[float | None, float | None]
Case = tuple[Cone, Period, pa.Table]


def cases_of(table: pa.Table, survey: Survey, count: int) -> list[Case]:
    """Random cones x periods with the rows that a plain filter finds. Many periods begin or end at a row's own time."""
    choose = random.Random(f"{survey.file}-{count}")
    ra, dec, times = (table[name].to_numpy() for name in ("ra", "dec", survey.column))
    moments = times.tolist()
    extent = float(separation_deg(ra, dec, ra[0], dec[0]).max())
    cases: list[Case] = []
    while len(cases) < count:
        row = choose.randrange(len(ra))
        radius = extent * 10 ** choose.uniform(-3, 0.1)
        center_ra = float((ra[row] + choose.gauss(0, radius / 2)) % 360)
        center_dec = float(max(-90.0, min(90.0, dec[row] + choose.gauss(0, radius / 2))))
        start, end = sorted(choose.choice(moments) + choose.choice([0.0, 1e-4, 0.3]) for _ in range(2))
        period = choose.choice([(start, end), (start, None), (None, end), (None, None), (start, end)])
        distance = separation_deg(ra, dec, center_ra, center_dec)
        if abs(distance - radius).min() < 1e-9:
            continue  # on the border itself the two formulas round differently
        inside = distance < radius
        if period[0] is not None:
            inside &= times >= period[0]
        if period[1] is not None:
            inside &= times < period[1]
        cases.append(((center_ra, center_dec, radius), period, table.filter(pa.array(inside))))
    found = [case[2].num_rows for case in cases]
    assert sum(0 < rows < table.num_rows for rows in found) >= count // 3, f"cases that show little: {found}"
    return cases


def check_reads(ds: ct.Dataset, survey: Survey, table: pa.Table, cases: list[Case]) -> None:
    assert_same_rows(ds.read().to_arrow(), table, [survey.id])
    for (ra, dec, radius), (start, end), want in cases:
        place: dict[str, Any] = {"region": ct.circle(ra, dec, radius), "start": start, "end": end}
        assert_same_rows(ds.read(**place).to_arrow(), want, [survey.id])
        assert ds.count(**place) == want.num_rows


def create(archive: ct.Archive, survey: Survey, table: pa.Table) -> ct.Dataset:
    cell = ct.sky("ra", "dec", level=survey.level)
    return archive.create("rows", schema=table.schema, cell=cell, time=survey.axis, window="1d", id=survey.id)


@pytest.mark.parametrize("survey", SURVEYS)
def test_cones_and_periods_return_what_a_plain_filter_returns(survey: Survey, tmp_path: Path) -> None:
    table = pq.read_table(data_file(survey.file))
    cases = cases_of(table, survey, 20)
    with ct.open(tmp_path / "survey.db") as archive:
        ds = create(archive, survey, table)
        for start in range(0, table.num_rows, 97):  # as visits would come
            ds.write(table.slice(start, 97), batch=f"visit-{start}")
        check_reads(ds, survey, table, cases)
        before = ds.info()
        report = ds.consolidate()
        if before.tile_chunks.max > 1:
            assert report.tiles > 0
            assert ds.info().chunks < before.chunks
        check_reads(ds, survey, table, cases)
        assert ds.verify().ok


@pytest.mark.parametrize("survey", SURVEYS[:2])
def test_ingested_files_read_as_filtered_files_and_a_second_ingest_changes_nothing(
    survey: Survey, tmp_path: Path
) -> None:
    source, path = data_file(survey.file), tmp_path / "survey.db"
    table = pq.read_table(source)
    ingest = ["ingest", path, "rows", source]
    define = ["--create", "--sky", "ra,dec", "--level", survey.level, "--time", survey.time, "--id", survey.id]
    assert f"stored {table.num_rows:,} rows" in run_cli(*ingest, *define)
    stored = stored_digest(path)
    assert "nothing to do" in run_cli(*ingest)
    assert stored_digest(path) == stored

    cases = cases_of(table, survey, 20)
    with ct.open(path, create=False) as archive:
        assert archive["rows"].time == survey.axis
        check_reads(archive["rows"], survey, table, cases)
    for number, (cone, period, want) in enumerate(cases[:2]):
        out = tmp_path / f"{number}.parquet"
        bounds = [f"--{name}={time!r}" for name, time in zip(("start", "end"), period, strict=True) if time is not None]
        run_cli("read", path, "rows", "--circle", ",".join(map(repr, cone)), *bounds, "--out", out)
        assert_same_rows(pq.read_table(out), want, [survey.id])
    assert "rewrote" in run_cli("consolidate", path)
    assert "nothing to do" in run_cli(*ingest)
    with ct.open(path, create=False) as archive:
        check_reads(archive["rows"], survey, table, cases)
    run_cli("verify", path)


def test_calendar_times_select_by_the_scale_of_the_column(tmp_path: Path) -> None:
    for survey, moment, value in (
        (ZTF, datetime(2021, 11, 1, tzinfo=UTC), 2459519.5),
        (SOURCES, datetime(2024, 6, 27, 6, tzinfo=UTC), 60488.25 + TAI_MINUS_UTC_S / 86_400),
    ):
        table = pq.read_table(data_file(survey.file))
        times = table[survey.column].to_numpy()
        with ct.open(tmp_path / f"{survey.id}.db") as archive:
            ds = create(archive, survey, table)
            ds.write(table, batch="all")
            want = int((times >= value).sum())
            assert 0 < want < table.num_rows
            assert ds.count(start=moment) == want
            assert ds.count(end=moment.isoformat()) == table.num_rows - want


def test_uneven_density_shows_in_the_statistics(tmp_path: Path) -> None:
    catalogue = pq.read_table(data_file("gcvs.parquet"))
    rows, level = catalogue.num_rows, 6
    number = np.arange(rows)
    mjd = 60_000.25 + (number * 7919 % 360)  # a year of nights, in no order
    table = catalogue.append_column("star", pa.array(number)).append_column("mjd", pa.array(mjd))
    ra, dec = (table[name].to_numpy() for name in ("ra", "dec"))
    with ct.open(tmp_path / "stars.db") as archive:
        ds = archive.create(
            "stars", schema=table.schema, cell=ct.sky("ra", "dec", level=level), time="mjd", window="30d", id="star"
        )
        for night in range(4):
            ds.write(table.filter(pa.array(number % 4 == night)), batch=f"night-{night}")

        cells = np.asarray(pixel_index("mq3c", level, ra, dec))
        windows = np.floor((mjd - 40_587) / 30).astype(int)
        tiles = Counter(zip(cells.tolist(), windows.tolist(), strict=True))
        per_tile = sorted(tiles.values())

        def check() -> None:
            info = ds.info()
            assert info.rows == rows
            assert info.tiles == len(tiles)
            assert (info.tile_rows.min, info.tile_rows.max) == (per_tile[0], per_tile[-1])
            assert per_tile[0] <= info.tile_rows.median <= info.tile_rows.p99 <= per_tile[-1]
            assert abs(info.tile_rows.median - float(np.median(per_tile))) <= 1
            assert info.tile_rows.max > 20 * info.tile_rows.median, "the sky of this catalogue is uneven"
            assert sum(part.tiles for part in info.slices) == len(tiles)
            largest = info.tile_largest
            assert largest is not None
            assert tiles[largest.cell, largest.window] > 10 * info.tile_rows.median
            for center in ((266.4, -29.0, 3.0), (83.8, -5.4, 1.0), (0.0, 0.0, 5.0), (12.0, 89.0, 10.0)):
                distance = separation_deg(ra, dec, *center[:2])
                want = table.filter(pa.array((distance < center[2]) & (mjd >= 60_100) & (mjd < 60_250)))
                assert want.num_rows > 0
                place = {"region": ct.circle(*center), "start": 60_100, "end": 60_250}
                assert_same_rows(ds.read(**place).to_arrow(), want, ["star"])

        check()
        chunks = ds.info().chunks
        ds.consolidate()
        assert ds.info().tile_chunks.max < 4
        assert ds.info().chunks < chunks
        check()


# ------------------------------------------------------------------ sensors and logs


def sensor_files() -> list[Path]:
    files = sorted(data_file("sensors").glob("*.csv"))
    assert len(files) >= 4
    return files


def sensor_rows(path: Path) -> list[tuple[datetime, float]]:
    with path.open(newline="") as lines:
        return [(datetime.fromisoformat(row["timestamp"]), float(row["value"])) for row in csv.DictReader(lines)]


def test_sensor_files_are_series_by_tag(tmp_path: Path) -> None:
    files, path = sensor_files(), tmp_path / "plant.db"
    want = {file.stem: sensor_rows(file) for file in files}
    total = sum(map(len, want.values()))
    ingest = ["ingest", path, "values", *files, "--tag-column", "sensor"]
    define = ["--create", "--hash", "sensor", "--time", "timestamp", "--window", "1d"]
    assert f"stored {total:,} rows of {len(files)} files" in run_cli(*ingest, *define)
    stored = stored_digest(path)
    assert "nothing to do" in run_cli(*ingest)
    assert stored_digest(path) == stored

    def rows_of(result: ct.ReadResult) -> list[tuple[datetime, float]]:
        table = result.to_arrow()
        return sorted(zip(table["timestamp"].to_pylist(), table["value"].to_pylist(), strict=True))

    def check(ds: ct.Dataset) -> None:
        assert ds.count() == total
        choose = random.Random(7)
        for sensor, rows in want.items():
            assert rows_of(ds.read(keys=sensor)) == sorted(rows)
            start, end = sorted(choose.choice(rows)[0] for _ in range(2))
            period = sorted(row for row in rows if start <= row[0] < end)
            assert rows_of(ds.read(keys=[sensor], start=start, end=end)) == period
            limit = choose.choice(rows)[1]
            above = sorted(row for row in rows if row[1] > limit)
            assert rows_of(ds.read(keys=sensor, where=("value", ">", limit))) == above
        newest = ds.latest().to_arrow().to_pylist()
        assert {row["sensor"]: row["timestamp"] for row in newest} == {
            sensor: max(rows)[0] for sensor, rows in want.items()
        }

    with ct.open(path) as archive:
        ds = archive["values"]
        assert ds.column_types["value"] == "float64"
        check(ds)
        ds.consolidate()
        check(ds)
        assert ds.verify().ok


LOGS: dict[str, tuple[list[str], Callable[[str], datetime]]] = {
    "HDFS_2k": (["%y%m%d %H%M%S"], lambda line: datetime.strptime(line[:13], "%y%m%d %H%M%S")),
    "OpenSSH_2k": (
        ["%b %d %H:%M:%S", "2016"],
        lambda line: datetime.strptime(f"2016 {line[:15]}", "%Y %b %d %H:%M:%S"),
    ),
    "Apache_2k": (["[%a %b %d %H:%M:%S %Y]"], lambda line: datetime.strptime(line[1:25], "%a %b %d %H:%M:%S %Y")),
}


def test_log_files_are_streams_of_lines_in_order(tmp_path: Path) -> None:
    path = tmp_path / "logs.db"
    define = ["--create", "--hash", "stream", "--time", "time", "--window", "1d", "--id", "stream,line_number"]
    lines: dict[str, list[str]] = {}
    commands = []
    for name, (pattern, _) in LOGS.items():
        file = data_file(f"logs/{name}.log")
        text = file.read_bytes().decode()
        lines[name] = [line.rstrip("\r\n") for line in text.split("\n")][: len(text.splitlines())]
        options = ["--format", "lines", "--tag-column", "stream", "--line-time", pattern[0]]
        options += ["--line-year", pattern[1]] if len(pattern) > 1 else []
        commands.append(["ingest", path, "lines", file, *options])
        assert "stored 2,000 rows" in run_cli(*commands[-1], *define)
    stored = stored_digest(path)
    for command in commands:
        assert "nothing to do" in run_cli(*command)
    assert stored_digest(path) == stored

    def check(ds: ct.Dataset) -> None:
        for name, (_, time_of) in LOGS.items():
            table = ds.read(keys=name).to_arrow().sort_by("line_number")
            assert table["line_number"].to_pylist() == list(range(1, 2_001))
            assert table["line"].to_pylist() == lines[name]
            times = [time_of(line) for line in lines[name]]
            assert table["time"].to_pylist() == times
            start, end = min(times), sorted(times)[1_234]
            want = [line for line, time in zip(lines[name], times, strict=True) if start <= time < end]
            part = ds.read(keys=name, start=start, end=end).to_arrow().sort_by("line_number")
            assert part["line"].to_pylist() == want
            assert 0 < len(want) < 2_000

    with ct.open(path) as archive:
        ds = archive["lines"]
        check(ds)
        ds.consolidate()
        check(ds)
        assert ds.verify().ok


# ------------------------------------------------------------------ batch jobs


def test_batch_jobs_are_found_by_id_and_by_condition(tmp_path: Path) -> None:
    jobs = swf.read_jobs(job_log())
    assert jobs.num_rows > 6_000
    # The file's own header says when its first and last job began.
    assert pc.min(jobs["submitted"]).as_py() == datetime(1993, 10, 1, 7, 0, 3, tzinfo=UTC)
    choose = random.Random(11)
    ids = jobs["job_id"].to_pylist()
    wanted = choose.sample(ids, 300) + [0, 2, 42_265, 10**12]

    def check(ds: ct.Dataset) -> None:
        assert_same_rows(ds.read().to_arrow(), jobs, ["job_id"])
        found = ds.read(ids=wanted).to_arrow()
        assert_same_rows(found, jobs.filter(pc.is_in(jobs["job_id"], pa.array(wanted))), ["job_id"])
        for job in wanted[-8:]:
            assert ds.read(ids=job).to_arrow().num_rows == ids.count(job)
        start, end = datetime(1993, 11, 1, tzinfo=UTC), datetime(1993, 11, 15, 12, tzinfo=UTC)
        within = pc.and_(
            pc.greater_equal(jobs["submitted"], pa.scalar(start, jobs["submitted"].type)),
            pc.less(jobs["submitted"], pa.scalar(end, jobs["submitted"].type)),
        )
        for user, processors in ((1, 128), (4, 32), (19, 1), (999, 1)):
            where = [("user", "==", user), ("processors", ">=", processors), ("run_s", "between", (60, 3_600))]
            mask = pc.and_(pc.equal(jobs["user"], user), pc.greater_equal(jobs["processors"], processors))
            mask = pc.and_(mask, pc.and_(pc.greater_equal(jobs["run_s"], 60), pc.less_equal(jobs["run_s"], 3_600)))
            assert_same_rows(ds.read(where=where).to_arrow(), jobs.filter(mask), ["job_id"])
            period = jobs.filter(pc.and_(mask, within))
            assert_same_rows(ds.read(where=where, start=start, end=end).to_arrow(), period, ["job_id"])
        some = [3.0, 7.0, math.inf]
        either = pc.fill_null(pc.is_in(jobs["executable"], pa.array([3, 7], pa.int32())), False)
        assert ds.count(where=("executable", "in", some)) == pc.sum(either).as_py() > 0
        # A null meets no condition, not even "differs from".
        known = pc.sum(pc.fill_null(pc.not_equal(jobs["executable"], 3), False)).as_py()
        assert ds.count(where=("executable", "!=", 3)) == known

    with ct.open(tmp_path / "jobs.db") as archive:
        ds = archive.create(
            "jobs", schema=jobs.schema, cell=ct.id_bucket("job_id", 1_000), time="submitted", window="30d", id="job_id"
        )
        for start in range(0, jobs.num_rows, 3_000):
            ds.write(jobs.slice(start, 3_000), batch=f"jobs-{start}")
        check(ds)
        ds.consolidate()
        check(ds)
        again = ds.write(jobs.slice(3_000, 3_000), batch="jobs-3000")
        assert not again.stored
        assert ds.verify().ok
