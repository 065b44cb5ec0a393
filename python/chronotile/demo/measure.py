"""Stores the survey in an archive, reads it back, times both, and checks every read."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import chronotile as ct
from chronotile import _native
from chronotile.cli.common import ProgressLine, bar, bytes_text, table_text
from chronotile.demo import CheckError
from chronotile.demo.columns import draw
from chronotile.demo.simulate import BANDS, OBJECT_COLUMNS, SOURCE_COLUMNS, Columns, Exposure, Survey
from chronotile.reports import ConsolidateReport, DatasetInfo
from chronotile.sky import pixel_index

__all__ = ["HISTORY_DAYS", "SCHEME", "LightCurve", "Outcome", "measure"]

HISTORY_DAYS = 365.0
SCHEME, LEVEL = "mq3c", 9


@dataclass
class Timings:
    """Milliseconds and counts, one for each detector-visit. Rows and bytes are of sources and objects together."""

    store_ms: list[float] = field(default_factory=list)
    read_ms: list[float] = field(default_factory=list)
    rows_stored: list[int] = field(default_factory=list)
    rows_read: list[int] = field(default_factory=list)
    bytes_stored: list[int] = field(default_factory=list)
    whole_ms: dict[int, float] = field(default_factory=dict)
    """By place of the detector-visit, for one of each visit: reads of all that its footprint holds in the end."""
    consolidated_ms: dict[int, float] = field(default_factory=dict)
    """The same after consolidation."""


@dataclass(frozen=True)
class LightCurve:
    """One star as the archive gives it back."""

    object_id: int
    ra: float
    dec: float
    period: float
    """Days, from the simulation."""
    points: dict[str, Columns]
    """By band: ``mjd``, ``flux`` and ``error``."""


@dataclass(frozen=True)
class Outcome:
    """What the demo measured."""

    page: Path
    archive: Path
    survey: Survey
    timings: Timings
    before: dict[str, DatasetInfo]
    after: dict[str, DatasetInfo]
    consolidated: dict[str, ConsolidateReport]
    consolidate_s: float
    seconds: float
    archive_bytes: int
    pixels: Columns
    """``pixel`` numbers with stored sources, and their ``rows``."""
    tile_rows: np.ndarray
    curve: LightCurve

    @property
    def rows(self) -> int:
        """Rows stored: sources, and versions of objects."""
        return sum(self.timings.rows_stored)

    @property
    def reads(self) -> int:
        """Footprints read and compared."""
        return len(self.timings.read_ms) + len(self.timings.whole_ms) + len(self.timings.consolidated_ms)

    def night(self, night: int) -> NightRow:
        """The measurements of one night."""
        t, chosen = self.timings, [i for i, e in enumerate(self.survey.exposures) if e.night == night]
        rows = sum(t.rows_stored[i] for i in chosen)

        def median(values: list[float] | dict[int, float]) -> float:
            return float(np.median([values[i] for i in chosen if not isinstance(values, dict) or i in values]))

        return NightRow(
            mjd=self.survey.exposures[chosen[0]].mjd,
            exposures=len(chosen),
            rows=rows,
            store_ms=median(t.store_ms),
            rows_read=int(np.median([t.rows_read[i] for i in chosen])),
            read_ms=median(t.read_ms),
            whole_ms=median(t.whole_ms),
            consolidated_ms=median(t.consolidated_ms),
            row_bytes=sum(t.bytes_stored[i] for i in chosen) / rows,
        )


@dataclass(frozen=True)
class NightRow:
    """One line of the table; times are medians over the night's detector-visits."""

    mjd: float
    exposures: int
    rows: int
    store_ms: float
    rows_read: int
    read_ms: float
    whole_ms: float
    consolidated_ms: float
    row_bytes: float


class Ledger:
    """All that was stored, kept in one plain array to compare reads with."""

    def __init__(self) -> None:
        self._rows = np.empty(4096, [("id", "i8"), ("object", "i8"), ("mjd", "f8"), ("ra", "f8"), ("dec", "f8")])
        self._count = 0

    def add(self, sources: Columns) -> None:
        """Note the sources of one exposure."""
        end = self._count + len(sources["ra"])
        if end > len(self._rows):
            # Doubling, so that what is there is rarely copied.
            grown = np.empty(2 * end, self._rows.dtype)
            grown[: self._count] = self._rows[: self._count]
            self._rows = grown
        part = self._rows[self._count : end]
        part["id"], part["object"] = sources["diaSourceId"], sources["diaObjectId"]
        part["mjd"], part["ra"], part["dec"] = sources["midpointMjdTai"], sources["ra"], sources["dec"]
        self._count = end

    def held_by(self, exposure: Exposure) -> np.ndarray:
        """The sources in a footprint."""
        rows = self._rows[: self._count]
        return np.asarray(rows[exposure.holds(rows["ra"], rows["dec"])])


def measure(archive_path: Path, page: Path, nights: int, seed: int, echo: Callable[[str], object]) -> Outcome:
    """Run the survey against a new archive."""
    began = time.perf_counter()
    survey = Survey(nights, seed)
    count = len(survey.exposures)
    echo(
        f"Simulating {nights} {'night' if nights == 1 else 'nights'}: {count:,} detector-visits of "
        f"{len(survey.sky.ra):,} stars; {len(SOURCE_COLUMNS)} columns a source, {len(OBJECT_COLUMNS)} an object."
    )
    ledger, timings = Ledger(), Timings()
    with ct.open(f"sqlite:{archive_path}") as archive:
        datasets = _create(archive)
        step = [0]
        with ProgressLine(
            lambda: f"storing and reading  {bar(step[0], count)}  {step[0]:,} of {count:,} detector-visits"
        ):
            for exposure in survey.exposures:
                _store_and_read(datasets, survey, exposure, ledger, timings)
                step[0] += 1
        timings.whole_ms.update(_read_whole(datasets, survey, ledger, "reading all"))
        before = {name: dataset.info() for name, dataset in datasets.items()}
        start = time.perf_counter()
        consolidated = {name: dataset.consolidate() for name, dataset in datasets.items()}
        consolidate_s = time.perf_counter() - start
        timings.consolidated_ms.update(_read_whole(datasets, survey, ledger, "reading all, consolidated"))
        after = {name: dataset.info() for name, dataset in datasets.items()}
        pixels, tile_rows = _tiles(datasets["sources"], after["sources"])
        curve = _light_curve(datasets, survey)
    outcome = Outcome(
        page=page,
        archive=archive_path,
        survey=survey,
        timings=timings,
        before=before,
        after=after,
        consolidated=consolidated,
        consolidate_s=consolidate_s,
        seconds=time.perf_counter() - began,
        archive_bytes=archive_path.stat().st_size,
        pixels=pixels,
        tile_rows=tile_rows,
        curve=curve,
    )
    for line in _report(outcome):
        echo(line)
    return outcome


def _create(archive: ct.Archive) -> dict[str, ct.Dataset]:
    cell = ct.sky("ra", "dec", scheme=SCHEME, level=LEVEL)
    return {
        "sources": archive.create(
            "sources",
            schema=SOURCE_COLUMNS,
            cell=cell,
            time=ct.mjd("midpointMjdTai", scale="tai"),
            window="30d",
            id="diaSourceId",
        ),
        "objects": archive.create(
            "objects",
            schema=OBJECT_COLUMNS,
            cell=cell,
            time=ct.mjd("validityStartMjdTai", scale="tai"),
            window="30d",
            id="diaObjectId",
            merge="latest",
            version="validityStartMjdTai",
        ),
    }


def _store_and_read(
    datasets: dict[str, ct.Dataset], survey: Survey, exposure: Exposure, ledger: Ledger, timings: Timings
) -> None:
    """What an alert pipeline does for each detector: read the footprint's history, then store what is new."""
    ms, rows = _read(datasets, exposure, ledger.held_by(exposure), exposure.mjd)
    timings.read_ms.append(ms)
    timings.rows_read.append(rows)
    detection = survey.expose(exposure)
    start = time.perf_counter()
    reports = [
        datasets["objects"].write(detection.objects, batch=exposure.name),
        datasets["sources"].write(detection.sources, batch=exposure.name),
    ]
    timings.store_ms.append((time.perf_counter() - start) * 1e3)
    timings.rows_stored.append(sum(report.rows for report in reports))
    timings.bytes_stored.append(sum(report.bytes for report in reports))
    ledger.add(detection.sources)


def _read_whole(datasets: dict[str, ct.Dataset], survey: Survey, ledger: Ledger, what: str) -> dict[int, float]:
    """Read all that is stored of one footprint of each visit, its detectors taking turns; milliseconds by place."""
    end = survey.exposures[-1].mjd + 1.0
    chosen = [i for i, e in enumerate(survey.exposures) if e.detector == i // 4 % 4]
    taken: dict[int, float] = {}
    with ProgressLine(lambda: f"{what}  {bar(len(taken), len(chosen))}  {len(taken):,} of {len(chosen):,} footprints"):
        for i in chosen:
            exposure = survey.exposures[i]
            taken[i], _ = _read(datasets, exposure, ledger.held_by(exposure), end)
    return taken


def _read(datasets: dict[str, ct.Dataset], exposure: Exposure, expected: np.ndarray, until: float) -> tuple[float, int]:
    """Read a footprint's twelve months, compare with the sources `expected`; returns milliseconds and rows."""
    start = time.perf_counter()
    footprint = ct.polygon(exposure.corners)
    since = until - HISTORY_DAYS
    count, found = draw(datasets["sources"].read(region=footprint, start=since, end=until), "diaSourceId")
    objects = datasets["objects"].read(region=footprint, start=since, end=until)
    object_count, known = draw(objects, "diaObjectId", "nDiaSources")
    ms = (time.perf_counter() - start) * 1e3

    if not np.array_equal(np.sort(found["diaSourceId"]), np.sort(expected["id"])):
        raise _wrong(exposure, "sources", len(expected), count)
    # The newest version of an object in the period knows how often it was seen until then.
    ids, seen = np.unique(expected["object"], return_counts=True)
    order = np.argsort(known["diaObjectId"])
    same = np.array_equal(known["diaObjectId"][order], ids) and np.array_equal(known["nDiaSources"][order], seen)
    if not same:
        raise _wrong(exposure, "objects", len(ids), object_count)
    return ms, count + object_count


def _wrong(exposure: Exposure, what: str, stored: int, read: int) -> CheckError:
    why = "their number differs" if stored != read else "they are not the same ones"
    return CheckError(
        f"the footprint of {exposure.name} holds {stored:,} {what}, and reading it returned {read:,}: {why}. "
        "This is a defect of Chronotile: please report it with the seed",
        kind="demo-check",
        dataset=what,
        batch=exposure.name,
    )


def _tiles(sources: ct.Dataset, info: DatasetInfo) -> tuple[Columns, np.ndarray]:
    """Rows by pixel, and by tile, counted from what the archive gives back."""
    count, read = draw(sources.read(columns=["ra", "dec", "midpointMjdTai"]), "ra", "dec", "midpointMjdTai")
    if count != info.rows:
        raise CheckError(
            f"the archive holds {info.rows:,} sources, and reading them returned {count:,}", kind="demo-check"
        )
    array = _native.Array.of(pixel_index(SCHEME, LEVEL, read["ra"], read["dec"]))
    _, columns = draw(_native.Table.of_columns([("pixel", array)]), "pixel")
    pixels, rows = np.unique(columns["pixel"], return_counts=True)
    windows = np.digitize(read["midpointMjdTai"], np.array([part.start for part in info.slices], float))
    _, tile_rows = np.unique(np.stack([columns["pixel"].astype(np.int64), windows]), axis=1, return_counts=True)
    return {"pixel": pixels, "rows": rows}, tile_rows


def _light_curve(datasets: dict[str, ct.Dataset], survey: Survey) -> LightCurve:
    """An RR Lyrae star that was seen often and in all its phases, and is faint enough for its errors to show."""
    sky = survey.sky
    _, known = draw(datasets["objects"].read(columns=["diaObjectId", "nDiaSources"]), "diaObjectId", "nDiaSources")
    order = np.argsort(sky.id)
    stars = order[np.searchsorted(sky.id, known["diaObjectId"], sorter=order).clip(0, len(order) - 1)]
    known_star = sky.id[stars] == known["diaObjectId"]
    merit = known["nDiaSources"] / known["nDiaSources"].max() - 0.3 * np.abs(sky.mag[stars] - 21.0)
    merit += np.where(sky.rr_lyrae[stars] & (sky.amplitude[stars] > 0.8), 1.0, 0.0)
    best = stars[np.argsort(np.where(known_star, merit, -9.0))[-40:]]
    # Of the best, the one whose visits spread most evenly over its period.
    seen = np.array([e.holds(sky.ra[best], sky.dec[best]) for e in survey.exposures])
    times = np.array([e.mjd for e in survey.exposures])
    covered = [
        len(np.unique(times[held] / sky.period[star] % 1 * 25 // 1)) for star, held in zip(best, seen.T, strict=True)
    ]
    star = int(best[np.argmax(covered)])
    place = ct.circle(float(sky.ra[star]), float(sky.dec[star]), 1 / 3600)
    points: dict[str, Columns] = {}
    for band in BANDS:
        names = ("midpointMjdTai", "scienceFlux", "scienceFluxErr")
        rows = datasets["sources"].read(
            region=place,
            columns=names,
            where=[("diaObjectId", "==", int(sky.id[star])), ("band", "==", band)],
        )
        _, columns = draw(rows, *names)
        points[band] = dict(zip(("mjd", "flux", "error"), columns.values(), strict=True))
    return LightCurve(
        object_id=int(sky.id[star]),
        ra=float(sky.ra[star]),
        dec=float(sky.dec[star]),
        period=float(sky.period[star]),
        points=points,
    )


def median_ms(times: dict[int, float]) -> float:
    """The median of times by place."""
    return float(np.median(list(times.values())))


def date_text(mjd: float) -> str:
    """The date of an MJD."""
    return str(np.datetime64("1858-11-17") + int(mjd))


def _report(outcome: Outcome) -> list[str]:
    header = [
        "night",
        "date",
        "det-visits",
        "rows",
        "store ms",
        "rows read",
        "read ms",
        "all ms",
        "consolidated",
        "bytes/row",
    ]
    rows = []
    for number in range(outcome.survey.nights):
        n = outcome.night(number)
        rows.append(
            [
                f"{number + 1}",
                date_text(n.mjd),
                f"{n.exposures}",
                f"{n.rows:,}",
                f"{n.store_ms:.1f}",
                f"{n.rows_read:,}",
            ]
            + [f"{n.read_ms:.1f}", f"{n.whole_ms:.1f}", f"{n.consolidated_ms:.1f}", f"{n.row_bytes:.0f}"]
        )
    t = outcome.timings
    stored = sum(info.bytes for info in outcome.after.values())
    rows.append(
        ["all", "", f"{len(t.store_ms):,}", f"{outcome.rows:,}", f"{np.median(t.store_ms):.1f}"]
        + [
            f"{np.median(t.rows_read):,.0f}",
            f"{np.median(t.read_ms):.1f}",
            f"{median_ms(t.whole_ms):.1f}",
            f"{median_ms(t.consolidated_ms):.1f}",
        ]
        + [f"{stored / outcome.rows:.0f}"]
    )
    chunks = [sum(report.chunks_before for report in outcome.consolidated.values())]
    chunks.append(sum(report.chunks_after for report in outcome.consolidated.values()))
    return [
        "",
        table_text(header, rows, frozenset({0, *range(2, 10)})),
        "",
        "Times are medians for one detector-visit. A store is durable when it ends. A read, before each store, takes",
        "all columns of the last twelve months; `all` reads what the footprint holds in the end, `consolidated` again.",
        f"Consolidation made {chunks[0]:,} chunks into {chunks[1]:,} in {outcome.consolidate_s:.1f} s. "
        f"The archive file has {bytes_text(outcome.archive_bytes)}.",
        f"All {outcome.reads:,} footprint reads returned exactly what was stored. {outcome.seconds:.0f} s in all.",
    ]
