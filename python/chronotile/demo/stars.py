"""The demo's survey: stars of a piece of the Milky Way, and the visits of a small camera.

The field lies where the galactic plane crosses the celestial equator. The density of sources is as uneven as in a real
survey: ten times higher in the plane than away from it, and higher still in three star clusters. One seed determines
everything. Angles are degrees, times MJD (TAI), fluxes nJy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from chronotile import apdb
from chronotile.apdb import names, simulation
from chronotile.apdb.simulation import Columns, from_plane

__all__ = ["BANDS", "FIELD", "SCHEMA", "Clusters", "Exposure", "Sky", "Survey"]

BANDS = ("g", "r", "i")
"""Filters, in the order in which nights use them."""
_DEPTH = np.array([24.0, 23.7, 23.2])
_AMPLITUDE = np.array([1.0, 0.72, 0.58])
_COLOUR = np.array([0.35, 0.0, -0.15])
"""By band: 5 sigma depth (AB mag), amplitude of a pulsating star relative to g, and mean magnitude relative to r."""

FIELD = (283.2, 289.2, 4.2, 8.4)
"""Survey area: minimum and maximum ra, minimum and maximum dec."""
DETECTOR_SIDE = 0.44
_HALF = 0.47 / 2
_OFFSETS = ((-_HALF, -_HALF), (_HALF, -_HALF), (-_HALF, _HALF), (_HALF, _HALF))
"""Offsets of the four detectors from the centre of the camera."""
_PIXEL_SCALE = 0.44 / 4000
FIRST_NIGHT = 60_950.0
"""2025-10-02."""
_NIGHTS_SPAN = 330.0
_DEEP = (286.9, 5.35)
"""A pointing that is observed repeatedly, in the plane, with a cluster."""
_TRANSIENT = 900_000_000_000
_STARS = 44_000
_STARS_VARIABLE_SHARE = 0.75


@dataclass(frozen=True)
class Clusters:
    """Star clusters."""

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
class Exposure(simulation.Exposure):
    """One detector in one visit, with its filter."""

    night: int
    band: int

    def holds(self, ra: np.ndarray, dec: np.ndarray) -> np.ndarray:
        """Whether positions lie on the detector."""
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
        """Sample positions from the density of the disk by rejection, and from a Plummer-like profile for clusters."""
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
        """AB magnitudes of stars (by index) at a time, without noise."""
        turn = 2 * np.pi * ((mjd / self.period[stars] + self.phase[stars]) % 1)
        # The sawtooth of an RRab star by its first Fourier terms; the light curve of other stars is a sine.
        saw = -(np.sin(turn) + 0.48 * np.sin(2 * turn) + 0.33 * np.sin(3 * turn) + 0.20 * np.sin(4 * turn)) / 1.75
        shape = np.where(self.rr_lyrae[stars], saw, np.sin(turn))
        return np.asarray(self.mag[stars] + _COLOUR[band] + 0.5 * _AMPLITUDE[band] * self.amplitude[stars] * shape)

    def places(self, ids: np.ndarray) -> np.ndarray:
        """Indexes of stars by their ids; -1 for other ids."""
        found = self._by_id[np.searchsorted(self.id, ids, sorter=self._by_id).clip(0, len(self.id) - 1)]
        return np.where(self.id[found] == ids, found, -1)


class Survey(simulation.Simulation):
    """Plans the visits, and detects variable stars and transients in each.

    Parameters
    ----------
    nights : int
        Nights; more than three are spread over up to eleven months.
    seed : int
        The same seed produces the same survey.
    visits : int
        Visits per night.
    """

    def __init__(self, nights: int, seed: int, visits: int) -> None:
        super().__init__(SCHEMA, seed)
        rng = np.random.default_rng(seed)
        self.sky = Sky(rng)
        self.nights = nights
        self.exposures = self._plan(rng, visits)

    def _plan(self, rng: np.random.Generator, visits: int) -> list[Exposure]:
        """Plan runs of three nights, weeks apart. Each night sweeps the field; every third visit is a deep pointing."""
        ra0, ra1, dec0, dec1 = FIELD
        grid_ra, grid_dec = np.meshgrid(np.linspace(ra0 + 0.7, ra1 - 0.7, 6), np.linspace(dec0 + 0.7, dec1 - 0.7, 4))
        grid = np.column_stack([grid_ra.ravel(), grid_dec.ravel()])
        gap = min(60.0, _NIGHTS_SPAN / max(-(-self.nights // 3) - 1, 1))
        planned: list[Exposure] = []
        swept = 0
        for night in range(self.nights):
            start = FIRST_NIGHT + round(night // 3 * gap) + night % 3 + 0.05
            angle = float(rng.uniform(-20, 20))
            for turn in range(visits):
                deep = turn % 3 == 2
                centre = _DEEP if deep else grid[swept % len(grid)]
                swept += not deep
                dither = rng.normal(0, 0.05, 2)
                mjd = start + turn * 0.4 / visits + float(rng.uniform(0, 0.1 / visits))
                band = turn // 3 % 3 if deep else night % 3
                visit = int(start) * 1_000 + turn
                place = (float(centre[0] + dither[0]), float(centre[1] + dither[1]))
                planned += [
                    Exposure(visit, detector, mjd, *place, DETECTOR_SIDE, offset, angle, night=night, band=band)
                    for detector, offset in enumerate(_OFFSETS)
                ]
        return planned

    def detect(self, e: simulation.Exposure, rng: np.random.Generator, known: pa.Table) -> Columns:
        """Variable stars that differ from the template by more than the noise, and a few transients.

        `known` also has the columns ``nDiaSources`` and ``firstDiaSourceMjdTai``.
        """
        assert isinstance(e, Exposure)
        sky = self.sky
        stars = np.flatnonzero(e.holds(sky.ra, sky.dec))
        light = self._measure(e, rng, stars)
        found = np.abs(light["psfFlux"]) > 5 * light["psfFluxErr"]
        stars, light = stars[found], {name: values[found] for name, values in light.items()}
        count, first = np.zeros(len(sky.ra), np.int32), np.full(len(sky.ra), e.mjd)
        places = sky.places(known[names.OBJECT_ID].to_numpy())
        real = places >= 0
        count[places[real]] = known[names.SOURCE_COUNT].to_numpy()[real]
        first[places[real]] = known["firstDiaSourceMjdTai"].to_numpy()[real]

        new = int(rng.poisson(6))
        new_ra, new_dec = e.on_sky(*rng.uniform(-e.side / 2, e.side / 2, (2, new)))
        bright = nanojansky(_DEPTH[e.band]) * rng.pareto(1.5, new).clip(1.2, 80)
        transients = {
            names.OBJECT_ID: _TRANSIENT + (e.visit * 4 + e.detector) * 1_000 + np.arange(new),
            names.RA: new_ra, names.DEC: new_dec, names.SOURCE_COUNT: np.ones(new, np.int32),
            "firstDiaSourceMjdTai": np.full(new, e.mjd), "psfFlux": bright, "scienceFlux": bright,
            "templateFlux": np.zeros(new), "psfFluxErr": bright / rng.uniform(6, 40, new),
        }  # fmt: skip
        detected = {
            names.OBJECT_ID: sky.id[stars], names.RA: sky.ra[stars], names.DEC: sky.dec[stars],
            names.SOURCE_COUNT: count[stars] + 1, "firstDiaSourceMjdTai": first[stars], **light,
        }  # fmt: skip
        return _derived(rng, e, {name: np.concatenate([detected[name], transients[name]]) for name in detected})

    def measure(self, e: simulation.Exposure, rng: np.random.Generator, ids: np.ndarray, found: Columns) -> Columns:
        """Fluxes of objects; detected objects keep the flux of their source."""
        assert isinstance(e, Exposure)
        light = self._measure(e, rng, self.sky.places(ids))
        _, here, there = np.intersect1d(ids, found[names.OBJECT_ID], return_indices=True)
        for name, values in light.items():
            values[here] = found[name][there]
        return {**light, "band": np.full(len(ids), BANDS[e.band])}

    def fill(self, column: apdb.Column, count: int, e: simulation.Exposure, rng: np.random.Generator) -> pa.Array:
        """Null for other bands of an object, and for 95% of the fits of trails and dipoles."""
        if column.name.startswith(tuple(f"{band}_" for band in BANDS)):
            return pa.nulls(count, column.arrow.type)
        values = super().fill(column, count, e, rng)
        if column.name.startswith((*_MODELS, "parentDiaSourceId")):
            return pa.array(values.to_numpy(zero_copy_only=False), mask=rng.random(count) >= 0.05)
        return values

    def _measure(self, e: Exposure, rng: np.random.Generator, stars: np.ndarray) -> Columns:
        """Measured fluxes, template fluxes and differences of stars (by index; -1 for empty sky), with their errors."""
        sky, real = self.sky, stars >= 0
        flux = np.where(real, nanojansky(sky.magnitude(stars, e.mjd, e.band)), 0.0)
        # The template was taken near maximum light, so that little of a period goes undetected.
        faintest = sky.mag[stars] + _COLOUR[e.band] - 0.5 * _AMPLITUDE[e.band] * sky.amplitude[stars]
        noise = nanojansky(_DEPTH[e.band]) / 5 * np.hypot(1, 0.004 * np.sqrt(flux))
        flux += rng.normal(0, 1, len(stars)) * noise
        template = np.where(real, nanojansky(faintest), 0.0)
        return {"psfFlux": flux - template, "psfFluxErr": noise, "scienceFlux": flux, "templateFlux": template}


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
    """The small schema, extended by further columns that a difference-imaging pipeline writes."""
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
"""Tables of the survey, with as many columns as a difference-imaging pipeline writes."""


def _derived(rng: np.random.Generator, e: Exposure, found: Columns) -> Columns:
    """Add the columns of objects and sources that a pipeline derives from positions and fluxes."""
    count, difference, noise = len(found["ra"]), found["psfFlux"], found["psfFluxErr"]
    u, v = e.on_detector(found["ra"], found["dec"])
    snr = np.abs(difference) / noise
    error = 0.7 / 3600 / snr
    columns: Columns = {
        **found, "lastDiaSourceMjdTai": np.full(count, e.mjd), "band": np.full(count, BANDS[e.band]), "snr": snr,
        "lastBand": np.full(count, BANDS[e.band]), "psfNdata": rng.integers(380, 450, count),
        "raErr": error, "decErr": error * rng.uniform(0.9, 1.1, count),
        "ra_dec_Cov": error * error * rng.normal(0, 0.1, count), "x_y_Cov": rng.normal(0, 0.01, count),
        "x": u / _PIXEL_SCALE + 2000, "y": v / _PIXEL_SCALE + 2000, "xErr": error / _PIXEL_SCALE,
        "yErr": error / _PIXEL_SCALE, "reliability": rng.beta(8, 2, count), "psfLnL": -snr,
        "extendedness": (rng.random(count) < 0.1).astype(float), "psfChi2": rng.chisquare(400, count),
        "scienceFluxErr": noise, "templateFluxErr": noise * 0.2, "fpBkgd": rng.normal(100, 5, count),
        "fpBkgdErr": np.full(count, 5.0), "airmass": np.full(count, 1.2), "seeing": np.full(count, 0.8),
    }  # fmt: skip
    for part, value in (
        ("psfFluxMean", difference), ("psfFluxMeanErr", noise), ("psfFluxSigma", noise * rng.uniform(0.8, 1.2, count)),
        ("psfFluxMin", difference - noise), ("psfFluxMax", difference + noise),
        ("scienceFluxMean", found["scienceFlux"]),
    ):  # fmt: skip
        columns[f"{BANDS[e.band]}_{part}"] = value
    for radius in _APERTURES:
        columns[f"apFlux_{radius}"] = difference * (1 - np.exp(-radius / 4)) + rng.normal(0, 1, count) * noise
        columns[f"apFluxErr_{radius}"] = noise * np.sqrt(radius / 6)
    for moment in _MOMENTS:
        columns[moment] = rng.normal(0.3, 0.03, count)
        columns[f"{moment}Err"] = np.abs(0.3 / snr)
        columns[f"{moment}PSF"] = np.full(count, 0.3)
    return columns
