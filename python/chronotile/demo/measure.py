"""Stores the survey in an alert production database, reads it back, measures both, and checks every read."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from chronotile import _native, apdb
from chronotile.apdb.names import FORCED, MAIN_TABLES, OBJECT, SOURCE, dataset_name
from chronotile.apdb.simulation import KNOWN, Columns, Detection
from chronotile.demo import CheckError
from chronotile.demo.stars import BANDS, SCHEMA, Exposure, Survey
from chronotile.reports import DatasetInfo
from chronotile.sky import pixel_index
from chronotile.terminal import ProgressLine, bar, bytes_text, table_text

__all__ = ["KINDS", "LightCurve", "Outcome", "Times", "measure"]

STORE, READ, WHOLE, MAINTAINED = KINDS = (
    "store what was found", "read what is known, before", "read it back, after the night", "read it back, maintained",
)  # fmt: skip
"""Operations that are timed for each detector-visit."""
DEVELOPMENT_NOTE = "This is a development build: a release build (./dev build) takes about 0.7 of these times."


@dataclass
class Times:
    """Duration in milliseconds and rows of one kind of operation, by detector-visit."""

    ms: list[float] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)

    def add(self, began: float, rows: int) -> None:
        """Record an operation that has just ended; `began` is a value of :func:`time.perf_counter`."""
        self.ms.append((time.perf_counter() - began) * 1e3)
        self.rows.append(rows)


@dataclass(frozen=True)
class LightCurve:
    """A star, as read from the database. Positions in degrees."""

    object_id: int
    ra: float
    dec: float
    period: float
    """Period of the star, in days, from the simulation."""
    points: dict[str, Columns]
    """By band: ``mjd``, ``flux`` and ``error`` (nJy, difference image), and ``forced`` (true where not detected)."""


@dataclass(frozen=True)
class Outcome:
    """Measurements of the demo."""

    page: Path
    archive: Path
    survey: Survey
    layout: apdb.Layout
    times: dict[str, Times]
    """By kind of operation; see :data:`KINDS`."""
    stored: dict[str, int]
    """Rows stored, by table."""
    before: dict[str, DatasetInfo]
    after: dict[str, DatasetInfo]
    """By table, before and after maintenance."""
    maintain_s: float
    seconds: float
    archive_bytes: int
    pixels: Columns
    """``pixel`` numbers with stored sources, and their ``rows``."""
    tile_rows: np.ndarray
    curve: LightCurve

    @property
    def rows(self) -> int:
        """Rows stored: sources, forced sources, and versions of objects."""
        return sum(self.stored.values())

    @property
    def reads(self) -> int:
        """Number of footprints that were read and compared."""
        return sum(len(self.times[kind].ms) for kind in KINDS[1:])

    def figures(self) -> dict[str, Any]:
        """The figures of the tables, for JSON."""
        tables = {
            name: {
                "rows": self.stored[name], "bytes": self.before[name].bytes, "chunks": self.before[name].chunks,
                "bytes_maintained": self.after[name].bytes, "chunks_maintained": self.after[name].chunks,
            }
            for name in MAIN_TABLES
        }  # fmt: skip
        times = {
            kind: {
                "count": len(spent.ms), "rows_median": float(np.median(spent.rows)),
                "ms_median": float(np.median(spent.ms)), "ms_p99": float(np.quantile(spent.ms, 0.99)),
            }
            for kind, spent in self.times.items()
        }  # fmt: skip
        return {
            "page": str(self.page), "archive": str(self.archive), "archive_bytes": self.archive_bytes,
            "seconds": self.seconds, "maintain_seconds": self.maintain_s, "reads_checked": self.reads,
            "development_build": _native.DEVELOPMENT_BUILD, "tables": tables, "times": times,
        }  # fmt: skip


class Ledger:
    """All stored rows of one table in a plain array, to compare reads with."""

    def __init__(self) -> None:
        fields = [("key", "i8"), ("object", "i8"), ("flux", "f4"), ("ra", "f8"), ("dec", "f8")]
        self._rows = np.empty(4096, fields)
        self._count = 0

    def add(self, key: np.ndarray, rows: pa.Table) -> None:
        """Record the rows of one exposure."""
        end = self._count + len(key)
        if end > len(self._rows):
            # Double the capacity, so that existing rows are rarely copied.
            grown = np.empty(2 * end, self._rows.dtype)
            grown[: self._count] = self._rows[: self._count]
            self._rows = grown
        part = self._rows[self._count : end]
        part["key"], part["object"], part["flux"] = key, rows["diaObjectId"], rows["psfFlux"]
        part["ra"], part["dec"] = rows["ra"], rows["dec"]
        self._count = end

    def held_by(self, exposure: Exposure) -> np.ndarray:
        """The rows in a footprint, sorted by key."""
        rows = self._rows[: self._count]
        held = rows[exposure.holds(rows["ra"], rows["dec"])]
        return np.asarray(held[np.argsort(held["key"])])


class CheckedDatabase:
    """A database, and plain copies of its rows to compare each read with."""

    def __init__(self, database: apdb.Apdb, survey: Survey) -> None:
        self.database = database
        self._survey = survey
        self._sources, self._forced = Ledger(), Ledger()
        self._codes = np.sort([e.visit * 4 + e.detector for e in survey.exposures])
        self.times = {kind: Times() for kind in KINDS}
        self.stored = dict.fromkeys(MAIN_TABLES, 0)

    def store(self, exposure: Exposure, found: Detection) -> None:
        """Store a detector-visit."""
        began = time.perf_counter()
        report = self.database.store(
            exposure.mjd, found.objects, found.sources, found.forced_sources, visit=exposure.visit,
            detector=exposure.detector,
        )  # fmt: skip
        self.times[STORE].add(began, report.objects + report.sources + report.forced_sources)
        for name, count in found.rows.items():
            self.stored[name] += count
        forced = found.forced_sources
        self._sources.add(found.sources["diaSourceId"].to_numpy(), found.sources)
        visits = np.full(forced.num_rows, exposure.visit)
        self._forced.add(self._forced_key(forced["diaObjectId"], visits, exposure.detector), forced)

    def read(self, kind: str, exposure: Exposure, at: float) -> pa.Table:
        """Read the history of a footprint, compare it with the stored rows, and return the objects.

        Raises
        ------
        CheckError
            The read returned other rows.
        """
        began = time.perf_counter()
        found = self.database.footprint(exposure.footprint(), at=at)
        self.times[kind].add(began, len(found.objects) + len(found.sources) + len(found.forced_sources))
        sources = self._sources.held_by(exposure)
        read = _columns(found.sources, "diaSourceId", "psfFlux")
        _compare(exposure, SOURCE, sources["key"], sources["flux"], read["diaSourceId"], read["psfFlux"])
        forced = self._forced.held_by(exposure)
        read = _columns(found.forced_sources, "diaObjectId", "visit", "detector", "psfFlux")
        keys = self._forced_key(read["diaObjectId"], read["visit"], read["detector"])
        _compare(exposure, FORCED, forced["key"], forced["flux"], keys, read["psfFlux"])
        # The newest version of an object counts its sources.
        ids, seen = np.unique(sources["object"], return_counts=True)
        read = _columns(found.objects, "diaObjectId", "nDiaSources")
        _compare(exposure, OBJECT, ids, seen, read["diaObjectId"], read["nDiaSources"])
        return found.objects.to_arrow().select([*KNOWN, "nDiaSources", "firstDiaSourceMjdTai"])

    def _forced_key(self, objects: np.ndarray, visits: np.ndarray, detectors: np.ndarray | int) -> np.ndarray:
        """Combine the key of a forced source into one integer: its object, and the index of its detector-visit."""
        places = np.searchsorted(self._codes, visits * 4 + detectors)
        return np.asarray((np.asarray(objects, np.int64) << 20) + places)


def _compare(
    exposure: Exposure, table: str, stored: np.ndarray, values: np.ndarray, read: np.ndarray, read_values: np.ndarray
) -> None:
    order = np.argsort(read)
    if np.array_equal(read[order], stored) and np.array_equal(read_values[order], values):
        return
    why = "their number differs" if len(stored) != len(read) else "they are not the same ones"
    raise CheckError(
        f"the footprint of visit {exposure.visit}, detector {exposure.detector} holds {len(stored):,} rows of {table}, "
        f"and reading it returned {len(read):,}: {why}. This is a defect of Chronotile: please report it with the seed",
        kind="internal",
        dataset=table,
    )


def _columns(rows: apdb.Rows, *names: str) -> Columns:
    return {name: rows[name].to_numpy() for name in names}


def measure(archive_path: Path, page: Path, survey: Survey, echo: Callable[[str], object]) -> Outcome:
    """Store the survey in a new database, and read and check it."""
    began = time.perf_counter()
    exposures, nights = survey.exposures, survey.nights
    columns = ", ".join(f"{len(SCHEMA[name].columns)} a {name}" for name in MAIN_TABLES)
    echo(
        f"Simulating {nights} {'night' if nights == 1 else 'nights'}: {len(exposures):,} detector-visits of "
        f"{len(survey.sky.ra):,} stars; columns: {columns}."
    )
    with apdb.create(archive_path, SCHEMA) as database:
        checked = CheckedDatabase(database, survey)
        for exposure in _progress("storing and reading", exposures):
            known = checked.read(READ, exposure, exposure.mjd)
            checked.store(exposure, survey.observe(exposure, known))
        last = exposures[-1].mjd
        for exposure in _progress("reading back", exposures):
            checked.read(WHOLE, exposure, last)
        before = _info(database)
        start = time.perf_counter()
        database.maintain()
        maintain_s = time.perf_counter() - start
        for exposure in _progress("reading back, maintained", exposures):
            checked.read(MAINTAINED, exposure, last)
        pixels, tile_rows = _tiles(database, checked.stored[SOURCE])
        outcome = Outcome(
            page=page, archive=archive_path, survey=survey, layout=database.layout, times=checked.times,
            stored=checked.stored, before=before, after=_info(database), maintain_s=maintain_s,
            seconds=time.perf_counter() - began, archive_bytes=_file_bytes(archive_path), pixels=pixels,
            tile_rows=tile_rows, curve=_light_curve(database, survey),
        )  # fmt: skip
    for line in _report(outcome):
        echo(line)
    return outcome


def _progress(what: str, exposures: list[Exposure]) -> Iterator[Exposure]:
    """Yield the exposures, and show their progress in a line."""
    done, count = 0, len(exposures)
    with ProgressLine(lambda: f"{what}  {bar(done, count)}  {done:,} of {count:,} detector-visits"):
        for exposure in exposures:
            yield exposure
            done += 1


def _file_bytes(archive: Path) -> int:
    """Size of the archive file and of the write-ahead log beside it."""
    return sum(path.stat().st_size for path in (archive, Path(f"{archive}-wal")) if path.exists())


def _info(database: apdb.Apdb) -> dict[str, DatasetInfo]:
    found = database.info()
    return {name: found[dataset_name(name)] for name in MAIN_TABLES}


def _tiles(database: apdb.Apdb, stored: int) -> tuple[Columns, np.ndarray]:
    """Count sources by pixel and by tile, from a scan of the whole table."""
    layout = database.layout
    rows = database.scan(SOURCE, columns=["ra", "dec", "midpointMjdTai"]).to_arrow()
    if rows.num_rows != stored:
        raise CheckError(
            f"the database holds {stored:,} sources, and reading them returned {rows.num_rows:,}", kind="internal"
        )
    cells = pixel_index(layout.scheme, layout.level, rows["ra"].to_numpy(), rows["dec"].to_numpy())
    pixels = np.asarray(cells).astype(np.int64)
    windows = np.floor((rows["midpointMjdTai"].to_numpy() - 40_587) / 30).astype(np.int64)
    _, tile_rows = np.unique(np.stack([pixels, windows]), axis=1, return_counts=True)
    pixels, counts = np.unique(pixels, return_counts=True)
    return {"pixel": pixels, "rows": counts}, tile_rows


def _light_curve(database: apdb.Apdb, survey: Survey) -> LightCurve:
    """Choose an RR Lyrae star that was observed often and at all phases, and is faint enough to show its errors."""
    sky = survey.sky
    known = _columns(database.objects(columns=["diaObjectId", "nDiaSources"]), "diaObjectId", "nDiaSources")
    stars = sky.places(known["diaObjectId"])
    merit = known["nDiaSources"] / known["nDiaSources"].max() - 0.3 * np.abs(sky.mag[stars] - 21.0)
    merit += np.where(sky.rr_lyrae[stars] & (sky.amplitude[stars] > 0.8), 1.0, 0.0)
    best = stars[np.argsort(np.where(stars >= 0, merit, -9.0))[-40:]]
    # Among the best, take the star whose visits cover its period most evenly.
    seen = np.array([e.holds(sky.ra[best], sky.dec[best]) for e in survey.exposures])
    times = np.array([e.mjd for e in survey.exposures])
    covered = [
        len(np.unique(times[held] / sky.period[star] % 1 * 25 // 1)) for star, held in zip(best, seen.T, strict=True)
    ]
    star = int(best[np.argmax(covered)])
    near = (float(sky.ra[star]), float(sky.dec[star]))
    rows = database.light_curve(int(sky.id[star]), near=near).to_arrow()
    columns = {name: rows[name].to_numpy() for name in ("midpointMjdTai", "psfFlux", "psfFluxErr", "forced", "band")}
    # A forced source beside a detection repeats the same measurement.
    detected = columns["midpointMjdTai"][~columns["forced"]]
    kept = ~columns["forced"] | ~np.isin(columns["midpointMjdTai"], detected)
    points = {}
    for band in BANDS:
        chosen = kept & (columns["band"] == band)
        parts = [columns[name][chosen] for name in ("midpointMjdTai", "psfFlux", "psfFluxErr", "forced")]
        points[band] = dict(zip(("mjd", "flux", "error", "forced"), parts, strict=True))
    return LightCurve(int(sky.id[star]), *near, float(sky.period[star]), points)


def date_text(mjd: float) -> str:
    """The date of an MJD."""
    return str(np.datetime64("1858-11-17") + int(mjd))


def table_lines(outcome: Outcome) -> tuple[list[str], list[list[str]]]:
    """Table of stored rows, bytes and chunks: header and lines."""
    header = ["table", "rows", "bytes a row", "maintained", "chunks", "maintained"]
    lines = []
    for name in MAIN_TABLES:
        old, new = outcome.before[name], outcome.after[name]
        sizes = [f"{info.bytes / outcome.stored[name]:.0f}" for info in (old, new)]
        lines.append([name, f"{outcome.stored[name]:,}", *sizes, f"{old.chunks:,}", f"{new.chunks:,}"])
    whole = [[sum(getattr(info, what) for info in found.values()) for what in ("bytes", "chunks")]
             for found in (outcome.before, outcome.after)]  # fmt: skip
    sizes = [f"{size / outcome.rows:.0f}" for size, _ in whole]
    return header, [*lines, ["all", f"{outcome.rows:,}", *sizes, *(f"{chunks:,}" for _, chunks in whole)]]


def time_lines(outcome: Outcome) -> tuple[list[str], list[list[str]]]:
    """Table of the duration of each operation: header and lines."""
    header = ["a detector-visit", "times", "rows", "median ms", "99% below"]
    lines = []
    for kind, times in outcome.times.items():
        spent = [f"{np.quantile(times.ms, share):.1f}" for share in (0.5, 0.99)]
        lines.append([kind, f"{len(times.ms):,}", f"{np.median(times.rows):,.0f}", *spent])
    return header, lines


def _report(outcome: Outcome) -> list[str]:
    return [
        "",
        table_text(*table_lines(outcome), frozenset(range(1, 6))),
        "",
        table_text(*time_lines(outcome), frozenset(range(1, 5))),
        "",
        "A store is durable when it ends. A read takes all columns of all three tables in the detector's footprint.",
        f"Maintenance took {outcome.maintain_s:.1f} s. The archive file has {bytes_text(outcome.archive_bytes)}.",
        *([DEVELOPMENT_NOTE] if _native.DEVELOPMENT_BUILD else []),
        f"All {outcome.reads:,} footprint reads returned exactly what was stored. {outcome.seconds:.0f} s in all.",
    ]
