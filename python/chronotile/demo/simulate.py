"""A small sky survey that never was: stars of a piece of the Milky Way, a camera, and what it detects.

The field lies where the galactic plane crosses the celestial equator, so that the density of sources is as uneven as a
real survey's: thin away from the plane, some ten times denser in it, denser again in three star clusters. Everything
follows from one seed. Angles are degrees, times MJD (TAI), fluxes nJy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chronotile import apdb
from chronotile.apdb import exposures
from chronotile.apdb.exposures import Detection, from_plane, measured_again

__all__ = ["BANDS", "FIELD", "SCHEMA", "Clusters", "Exposure", "Sky", "Survey"]

Columns = dict[str, np.ndarray]

BANDS = ("g", "r", "i")
"""The filters, in the order in which nights take turns."""
_DEPTH = np.array([24.0, 23.7, 23.2])
_AMPLITUDE = np.array([1.0, 0.72, 0.58])
_COLOUR = np.array([0.35, 0.0, -0.15])
"""By band: 5 sigma depth (AB mag), amplitude of a pulsating star relative to g, and mean magnitude relative to r."""

FIELD = (283.2, 289.2, 4.2, 8.4)
"""The survey's part of the sky: ra from, ra to, dec from, dec to."""
DETECTOR_SIDE = 0.44
_HALF = 0.47 / 2
_OFFSETS = ((-_HALF, -_HALF), (_HALF, -_HALF), (-_HALF, _HALF), (_HALF, _HALF))
"""Of the four detectors from the middle of the camera."""
_PIXEL_SCALE = 0.44 / 4000
FIRST_NIGHT = 60_950.0
"""2025-10-02."""
_NIGHTS_SPAN = 330.0
_DEEP = (286.9, 5.35)
"""A pointing that is seen again and again, on the plane and with a cluster."""
_TRANSIENT = 900_000_000_000
_STARS = 44_000
_STARS_VARIABLE_SHARE = 0.75


@dataclass(frozen=True)
class Clusters:
    """Star clusters: places where sources crowd."""

    name: tuple[str, ...] = ("A", "B", "C")
    ra: tuple[float, ...] = (284.45, 287.10, 288.35)
    dec: tuple[float, ...] = (7.45, 5.05, 7.30)
    radius: tuple[float, ...] = (0.12, 0.07, 0.16)
    stars: tuple[int, ...] = (2_500, 1_500, 2_000)


def galactic_latitude(ra: np.ndarray, dec: np.ndarray) -> np.ndarray:
    """Galactic latitude of positions (J2000), degrees.

    The north galactic pole is that of IAU 1958 in ICRS: ESA SP-1200 vol. 1, 1.5.3.
    """
    pole_ra, pole_dec = np.radians(192.85948), np.radians(27.12825)
    a, d = np.radians(ra), np.radians(dec)
    sine = np.sin(d) * np.sin(pole_dec) + np.cos(d) * np.cos(pole_dec) * np.cos(a - pole_ra)
    return np.asarray(np.degrees(np.arcsin(sine)))


@dataclass(frozen=True, kw_only=True)
class Exposure(exposures.Exposure):
    """One detector in one visit, through one filter."""

    night: int
    band: int

    def holds(self, ra: np.ndarray, dec: np.ndarray) -> np.ndarray:
        """Whether positions fall on the detector."""
        held = (np.abs(ra - self.ra) < 0.75) & (np.abs(dec - self.dec) < 0.75)
        near = np.flatnonzero(held)
        u, v = self.on_detector(ra[near], dec[near])
        held[near] = np.maximum(np.abs(u), np.abs(v)) <= self.side / 2
        return held


class Sky:
    """The stars of the field and their light curves."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.clusters = Clusters()
        ra, dec = self._positions(rng)
        count = len(ra)
        self.ra, self.dec = ra, dec
        self.id = 313_000_000_000 + rng.permutation(count).astype(np.int64) * 64
        self._by_id = np.argsort(self.id)
        self.mag = 22.0 - rng.exponential(1.4, count).clip(0, 6)
        self.rr_lyrae = rng.random(count) < 0.25
        self.period = np.where(
            self.rr_lyrae, rng.normal(0.56, 0.06, count).clip(0.4, 0.8), 10 ** rng.uniform(0, 1.6, count)
        )
        self.phase = rng.random(count)
        amplitude = np.where(self.rr_lyrae, rng.uniform(0.6, 1.2, count), rng.uniform(0.1, 0.7, count))
        self.amplitude = np.where(rng.random(count) < _STARS_VARIABLE_SHARE, amplitude, 0.04)

    def _positions(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Positions by rejection from the density of the disk, and by a Plummer-like profile in the clusters."""
        ra0, ra1, dec0, dec1 = FIELD
        tries = _STARS * 10
        ra, dec = rng.uniform(ra0, ra1, tries), rng.uniform(dec0, dec1, tries)
        density = 0.07 + 0.93 * np.exp(-np.abs(galactic_latitude(ra, dec)) / 0.6)
        kept = np.flatnonzero(rng.random(tries) < density)[:_STARS]
        parts = [(ra[kept], dec[kept])]
        c = self.clusters
        for x, y, radius, stars in zip(c.ra, c.dec, c.radius, c.stars, strict=True):
            distance = radius / np.sqrt(rng.uniform(0.02, 1, stars) ** (-2 / 3) - 0.98)
            angle = rng.uniform(0, 2 * np.pi, stars)
            parts.append(from_plane(distance.clip(0, 0.6) * np.cos(angle), distance.clip(0, 0.6) * np.sin(angle), x, y))
        return np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts])

    def magnitude(self, stars: np.ndarray, mjd: float, band: int) -> np.ndarray:
        """AB magnitudes of stars (by place) at a time, without noise."""
        turn = 2 * np.pi * ((mjd / self.period[stars] + self.phase[stars]) % 1)
        # The saw-tooth of an RRab star by its first Fourier terms; other stars follow a sine.
        saw = -(np.sin(turn) + 0.48 * np.sin(2 * turn) + 0.33 * np.sin(3 * turn) + 0.20 * np.sin(4 * turn)) / 1.75
        shape = np.where(self.rr_lyrae[stars], saw, np.sin(turn))
        return np.asarray(self.mag[stars] + _COLOUR[band] + 0.5 * _AMPLITUDE[band] * self.amplitude[stars] * shape)

    def places(self, ids: np.ndarray) -> np.ndarray:
        """The places of stars by their ids; -1 for what is none of them."""
        found = self._by_id[np.searchsorted(self.id, ids, sorter=self._by_id).clip(0, len(self.id) - 1)]
        return np.where(self.id[found] == ids, found, -1)


class Survey:
    """Plans the visits and makes the rows of each.

    Parameters
    ----------
    nights : int
        Nights; more than three are spread over up to eleven months.
    seed : int
        Same seed, same survey.
    visits : int
        Visits of a night.
    """

    def __init__(self, nights: int, seed: int, visits: int) -> None:
        self._rng = np.random.default_rng(seed)
        self.sky = Sky(self._rng)
        self.nights = nights
        self.exposures = self._plan(visits)
        self._seen = np.zeros(len(self.sky.ra), np.int32)
        self._first = np.full(len(self.sky.ra), np.nan)
        self._transients = 0

    def _plan(self, visits: int) -> list[Exposure]:
        """Runs of three nights, some weeks apart. Each night sweeps the field, with turns at the deep pointing."""
        ra0, ra1, dec0, dec1 = FIELD
        grid_ra, grid_dec = np.meshgrid(np.linspace(ra0 + 0.7, ra1 - 0.7, 6), np.linspace(dec0 + 0.7, dec1 - 0.7, 4))
        grid = np.column_stack([grid_ra.ravel(), grid_dec.ravel()])
        gap = min(60.0, _NIGHTS_SPAN / max(-(-self.nights // 3) - 1, 1))
        planned: list[Exposure] = []
        swept = 0
        for night in range(self.nights):
            start = FIRST_NIGHT + round(night // 3 * gap) + night % 3 + 0.05
            angle = float(self._rng.uniform(-20, 20))
            for turn in range(visits):
                deep = turn % 3 == 2
                centre = _DEEP if deep else grid[swept % len(grid)]
                swept += not deep
                dither = self._rng.normal(0, 0.05, 2)
                mjd = start + turn * 0.4 / visits + float(self._rng.uniform(0, 0.1 / visits))
                band = turn // 3 % 3 if deep else night % 3
                visit = int(start) * 1_000 + turn
                place = (float(centre[0] + dither[0]), float(centre[1] + dither[1]))
                planned += [
                    Exposure(visit, detector, mjd, *place, DETECTOR_SIDE, offset, angle, night=night, band=band)
                    for detector, offset in enumerate(_OFFSETS)
                ]
        return planned

    def expose(self, exposure: Exposure, known: Columns) -> Detection:
        """Take an exposure: variable stars brighter than the noise, and a few transients that nobody saw before.

        Forced sources are measured at the places of all of these and of the `known` objects of the footprint
        (``diaObjectId``, ``ra``, ``dec``, ``validityStartMjdTai``) that were seen lately.
        """
        rng, sky, e = self._rng, self.sky, exposure
        stars = np.flatnonzero(e.holds(sky.ra, sky.dec))
        light = self._measure(e, stars)
        found = np.abs(light["flux"] - light["template"]) > 5 * light["noise"]
        stars, light = stars[found], {name: values[found] for name, values in light.items()}

        new = int(rng.poisson(6))
        half = DETECTOR_SIDE / 2
        new_ra, new_dec = e.on_sky(rng.uniform(-half, half, new), rng.uniform(-half, half, new))
        new_id = _TRANSIENT + np.arange(self._transients, self._transients + new)
        self._transients += new
        self._seen[stars] += 1
        self._first[stars] = np.where(np.isnan(self._first[stars]), e.mjd, self._first[stars])

        objects: Columns = {
            "diaObjectId": np.concatenate([sky.id[stars], new_id]),
            "ra": np.concatenate([sky.ra[stars], new_ra]),
            "dec": np.concatenate([sky.dec[stars], new_dec]),
            "nDiaSources": np.concatenate([self._seen[stars], np.ones(new, np.int32)]),
            "firstDiaSourceMjdTai": np.concatenate([self._first[stars], np.full(new, e.mjd)]),
        }
        bright = nanojansky(_DEPTH[e.band]) * rng.pareto(1.5, new).clip(1.2, 80)
        light = {
            "flux": np.concatenate([light["flux"], bright]),
            "template": np.concatenate([light["template"], np.zeros(new)]),
            "noise": np.concatenate([light["noise"], bright / rng.uniform(6, 40, new)]),
        }
        return Detection(
            objects=_object_columns(rng, e, objects, light),
            sources=_source_columns(rng, e, objects, light),
            forced_sources=self._forced(e, objects, light, known),
        )

    def _measure(self, e: Exposure, stars: np.ndarray) -> Columns:
        """Fluxes of stars (by place; -1 is an empty place) as measured, in the template, and their noise."""
        sky, real = self.sky, stars >= 0
        flux = np.where(real, nanojansky(sky.magnitude(stars, e.mjd, e.band)), 0.0)
        # The template was taken near maximum light, so that little of a period goes undetected.
        faintest = sky.mag[stars] + _COLOUR[e.band] - 0.5 * _AMPLITUDE[e.band] * sky.amplitude[stars]
        noise = nanojansky(_DEPTH[e.band]) / 5 * np.hypot(1, 0.004 * np.sqrt(flux))
        return {
            "flux": flux + self._rng.normal(0, 1, len(stars)) * noise,
            "template": np.where(real, nanojansky(faintest), 0.0),
            "noise": noise,
        }

    def _forced(self, e: Exposure, found: Columns, light: Columns, known: Columns) -> Columns:
        old = measured_again(e, known, found["diaObjectId"])
        again = self._measure(e, self.sky.places(known["diaObjectId"][old]))
        count = len(found["ra"]) + int(old.sum())
        difference = np.concatenate([each["flux"] - each["template"] for each in (light, again)])
        return {
            **{name: np.concatenate([found[name], known[name][old]]) for name in ("diaObjectId", "ra", "dec")},
            "midpointMjdTai": np.full(count, e.mjd),
            "band": np.full(count, BANDS[e.band]),
            "psfFlux": difference.astype(np.float32),
            "psfFluxErr": np.concatenate([light["noise"], again["noise"]]).astype(np.float32),
        }


def nanojansky(magnitude: np.ndarray | float) -> np.ndarray:
    """Flux of an AB magnitude, nJy: zero point 31.4 (Oke & Gunn 1983)."""
    return np.asarray(10 ** ((31.4 - np.asarray(magnitude)) / 2.5))


_MOMENTS = ("ixx", "iyy", "ixy")
_MODELS = ("trail", "dipole")
_MODEL_PARTS = ("Flux", "FluxErr", "RaErr", "DecErr", "Length", "LengthErr", "Angle", "AngleErr", "LnL", "Chi2")
_PIXEL_FLAGS = (
    "bad", "cr", "crCenter", "edge", "interpolated", "interpolatedCenter", "offimage", "saturated", "saturatedCenter",
    "suspect", "suspectCenter", "streak", "streakCenter", "injected", "injectedCenter", "noGoodPixels",
)  # fmt: skip
_APERTURES = (3, 6, 9, 12, 17, 25)


def _source_types() -> dict[str, str]:
    types = {"parentDiaSourceId": "int64"}
    types |= dict.fromkeys(
        ["ra_dec_Cov", "x", "y", "xErr", "yErr", "x_y_Cov", "extendedness", "psfLnL", "psfChi2", "scienceFlux"]
        + ["scienceFluxErr", "templateFlux", "templateFluxErr", "fpBkgd", "fpBkgdErr", "airmass", "seeing"],
        "float32",
    )
    types |= {"psfNdata": "int32", "isDipole": "bool", "centroid_flag": "bool", "shape_flag": "bool"}
    for radius in _APERTURES:
        types |= {f"apFlux_{radius}": "float32", f"apFluxErr_{radius}": "float32", f"apFlux_{radius}_flag": "bool"}
    for moment in _MOMENTS:
        types |= {moment: "float32", f"{moment}Err": "float32", f"{moment}PSF": "float32"}
    for model in _MODELS:
        types |= {f"{model}{part}": "float32" for part in _MODEL_PARTS} | {f"{model}_flag": "bool"}
    return types | {f"pixelFlags_{flag}": "bool" for flag in _PIXEL_FLAGS}


def _schema() -> apdb.Schema:
    """The small schema, with what else a difference-imaging pipeline writes: the number of columns is what costs."""
    objects = dict.fromkeys(["lastDiaSourceMjdTai"], "float64") | {"lastBand": "utf8"}
    parts = ("psfFluxMean", "psfFluxMeanErr", "psfFluxSigma", "psfFluxMin", "psfFluxMax", "scienceFluxMean")
    objects |= {f"{band}_{part}": "float32" for band in BANDS for part in parts}
    small = apdb.Schema.read("small")
    added = {"DiaObject": objects, "DiaSource": _source_types()}
    return small.extended({
        table: [apdb.Column(name, kind) for name, kind in columns.items() if name not in small[table]]
        for table, columns in added.items()
    })  # fmt: skip


SCHEMA = _schema()
"""The tables of the survey: the kind and number of columns that a difference-imaging pipeline writes."""


def _object_columns(rng: np.random.Generator, e: Exposure, known: Columns, light: Columns) -> Columns:
    count = len(known["ra"])
    columns: Columns = dict(known)
    columns["lastDiaSourceMjdTai"] = np.full(count, e.mjd)
    columns["lastBand"] = np.full(count, BANDS[e.band])
    error = (0.05 / 3600 / np.sqrt(known["nDiaSources"])).astype(np.float32)
    columns["raErr"] = columns["decErr"] = error
    difference = light["flux"] - light["template"]
    # The other bands' columns are left out, which stores nulls.
    for part, value in (
        ("psfFluxMean", difference),
        ("psfFluxMeanErr", light["noise"]),
        ("psfFluxSigma", light["noise"] * rng.uniform(0.8, 1.2, count)),
        ("psfFluxMin", difference - light["noise"]),
        ("psfFluxMax", difference + light["noise"]),
        ("scienceFluxMean", light["flux"]),
    ):
        columns[f"{BANDS[e.band]}_{part}"] = value.astype(np.float32)
    return columns


def _source_columns(rng: np.random.Generator, e: Exposure, known: Columns, light: Columns) -> Columns:
    count = len(known["ra"])
    u, v = e.on_detector(known["ra"], known["dec"])
    difference = light["flux"] - light["template"]
    snr = np.abs(difference) / light["noise"]
    error = 0.7 / 3600 / snr
    columns: Columns = {
        "diaSourceId": np.int64(e.visit) * 4_000_000 + e.detector * 1_000_000 + np.arange(count),
        "visit": np.full(count, e.visit, np.int64),
        "detector": np.full(count, e.detector, np.int32),
        "diaObjectId": known["diaObjectId"],
        "parentDiaSourceId": _sparse(rng, np.full(count, e.visit, np.int64), 0.04),
        "midpointMjdTai": np.full(count, e.mjd),
        "ra": known["ra"],
        "dec": known["dec"],
        "band": np.full(count, BANDS[e.band]),
        "psfNdata": rng.integers(380, 450, count).astype(np.int32),
        "isDipole": rng.random(count) < 0.02,
    }
    single: Columns = {
        "raErr": error,
        "decErr": error * rng.uniform(0.9, 1.1, count),
        "ra_dec_Cov": error * error * rng.normal(0, 0.1, count),
        "x": u / _PIXEL_SCALE + 2000,
        "y": v / _PIXEL_SCALE + 2000,
        "xErr": error / _PIXEL_SCALE,
        "yErr": error / _PIXEL_SCALE,
        "x_y_Cov": rng.normal(0, 0.01, count),
        "snr": snr,
        "reliability": rng.beta(8, 2, count),
        "extendedness": (rng.random(count) < 0.1).astype(float),
        "psfFlux": difference,
        "psfFluxErr": light["noise"],
        "psfLnL": -snr,
        "psfChi2": rng.chisquare(400, count),
        "scienceFlux": light["flux"],
        "scienceFluxErr": light["noise"],
        "templateFlux": light["template"],
        "templateFluxErr": light["noise"] * 0.2,
        "fpBkgd": rng.normal(100, 5, count),
        "fpBkgdErr": np.full(count, 5.0),
        "airmass": np.full(count, 1.2),
        "seeing": np.full(count, 0.8),
    }
    for radius in _APERTURES:
        single[f"apFlux_{radius}"] = difference * (1 - np.exp(-radius / 4)) + rng.normal(0, 1, count) * light["noise"]
        single[f"apFluxErr_{radius}"] = light["noise"] * np.sqrt(radius / 6)
    for moment in _MOMENTS:
        single[moment] = rng.normal(0.3, 0.03, count)
        single[f"{moment}Err"] = np.abs(0.3 / snr)
        single[f"{moment}PSF"] = np.full(count, 0.3)
    columns |= {name: values.astype(np.float32) for name, values in single.items()}
    # A few sources only are long or double enough for these models: the rest is null.
    for model in _MODELS:
        fitted = rng.random(count) >= 0.05
        for part in _MODEL_PARTS:
            columns[f"{model}{part}"] = np.ma.masked_array(rng.normal(1, 0.2, count).astype(np.float32), fitted)
    flags = [column.name for column in SCHEMA["DiaSource"].columns if column.type == "bool"]
    flags = [name for name in flags if name not in columns]
    raised = rng.random((len(flags), count)) < 0.015
    return columns | dict(zip(flags, raised, strict=True))


def _sparse(rng: np.random.Generator, values: np.ndarray, share: float) -> np.ndarray:
    """`values` of a share of the rows, and null in the others."""
    return np.ma.masked_array(values, rng.random(len(values)) >= share)
