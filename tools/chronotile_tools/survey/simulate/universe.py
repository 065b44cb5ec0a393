"""Simulated camera and sky: pointings, and the objects that each exposure detects."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from chronotile import sky
from chronotile.apdb import names
from chronotile.apdb.density import positions
from chronotile.apdb.schema import Schema
from chronotile.apdb.simulation import Columns, Exposure, Simulation
from chronotile.errors import InvalidInputError
from chronotile.sky import Region

FIELD_AREA_DEG2 = np.pi / 4 * 3.5**2
HEMISPHERE_DEG2 = 20_626.5
HEMISPHERE_VISITS = HEMISPHERE_DEG2 / FIELD_AREA_DEG2
"""Visits of a hemisphere that one visit of a single field represents: its number of fields."""
DETECTOR_DEG = 0.225
PADDING_DEG = 52 / 3600
CAMERA_DETECTORS = 189
VISITS_A_NIGHT = 800
VISIT_S = 45.0
NIGHT_BEGINS_DAYS = 20 / 24

_TRANSIENT, _VARIABLE = 1 << 48, 1 << 20


@dataclass(frozen=True)
class Survey:
    """A simulated survey.

    Attributes
    ----------
    visits : int
        Total number of visits.
    detectors : int
        Detectors of the camera, 1 to 189, from its middle outwards.
    nights : int, optional
        Nights over which the visits are spread. Default: 800 visits per night.
    days_between : float
        Days from one night to the next: more than 1 spreads few nights over months.
    ra, dec, radius : float
        Observed patch of sky in degrees; radius 0 for a single field.
    variables, transients : float
        Variable objects per field of view of 9.6 square degrees, and new sources per visit in it.
    density : path, optional
        Parquet file with columns ra and dec, such as a star catalogue, whose density the objects follow. By default,
        objects are uniformly distributed.
    start_mjd_tai : float
        Day of the first night, MJD in TAI.
    seed : int
        Random seed; the same seed gives the same survey.
    """

    visits: int = 100
    detectors: int = 4
    nights: int | None = None
    days_between: float = 1.0
    ra: float = 150.0
    dec: float = 2.0
    radius: float = 0.0
    variables: float = 10_000.0
    transients: float = 5_150.0
    density: str | None = None
    start_mjd_tai: float = 61_000.0
    seed: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.detectors <= CAMERA_DETECTORS:
            raise InvalidInputError(f"detectors={self.detectors} is out of range: use 1 to 189", kind="invalid-setting")
        if self.visits < 1 or (self.nights is not None and not 1 <= self.nights <= self.visits):
            raise InvalidInputError(
                "visits and nights must be at least 1, and a night has a visit", kind="invalid-setting"
            )
        if min(self.variables, self.transients, self.radius) < 0 or self.radius > 60 or self.days_between < 1:
            raise InvalidInputError(
                "densities must not be negative, radius must be 0 to 60 degrees and days_between at least 1",
                kind="invalid-setting",
            )

    @property
    def visits_a_night(self) -> int:
        """Visits per night."""
        return VISITS_A_NIGHT if self.nights is None else -(-self.visits // self.nights)

    def time(self, visit: int) -> float:
        """Time of a visit, numbered from 0: MJD in TAI."""
        night, place = divmod(visit, self.visits_a_night)
        return self.start_mjd_tai + night * self.days_between + NIGHT_BEGINS_DAYS + place * VISIT_S / 86_400

    def pointing(self, visit: int) -> tuple[float, float]:
        """Pointing of the camera, ra and dec in degrees: a random position in the patch."""
        if self.radius == 0:
            return self.ra, self.dec
        rng = np.random.default_rng([self.seed, 1, visit])
        ra, dec = _in_cap(rng, 1, self.ra, self.dec, self.radius)
        return float(ra[0]), float(dec[0])

    def exposure(self, visit: int, detector: int) -> Exposure:
        """One detector in one visit."""
        ra, dec = self.pointing(visit)
        return Exposure(visit, detector, self.time(visit), ra, dec, DETECTOR_DEG, PLACES[detector])

    def footprint(self, visit: int, detector: int, padding: float = 0.0) -> Region:
        """The part of the sky that a detector covers, plus `padding` degrees around it."""
        return self.exposure(visit, detector).footprint(padding)


class Universe(Simulation):
    """The objects of a survey, and their detections."""

    def __init__(self, survey: Survey, schema: Schema) -> None:
        super().__init__(schema, survey.seed)
        self.survey = survey

    @cached_property
    def _variables(self) -> tuple[Any, Any]:
        """Positions of all variable objects that may be observed."""
        survey = self.survey
        reach = survey.radius + 2.6
        rng = np.random.default_rng([survey.seed, 2])
        area = 2 * np.pi * (1 - np.cos(np.radians(reach))) * np.degrees(1) ** 2
        count = rng.poisson(survey.variables / FIELD_AREA_DEG2 * area)
        if survey.density is None:
            return _in_cap(rng, count, survey.ra, survey.dec, reach)
        ra, dec = positions(survey.density)
        near = np.flatnonzero(np.asarray(sky.circle(survey.ra, survey.dec, reach).contains(ra, dec)))
        if not len(near):
            raise InvalidInputError(
                f"{survey.density} has no star within {reach:g} degrees of the patch", kind="invalid-setting"
            )
        chosen = rng.choice(near, count)
        # Shift by about half a pixel, so that no two objects coincide.
        blur = rng.normal(0, 0.05, (2, count))
        dec_new = np.clip(dec[chosen] + blur[0], -90, 90)
        return (ra[chosen] + blur[1] / np.maximum(np.cos(np.radians(dec_new)), 1e-3)) % 360, dec_new

    def detect(self, e: Exposure, rng: np.random.Generator, known: pa.Table) -> Columns:
        """Variable objects in view, each with a probability of a half, and new sources."""
        del known
        all_ra, all_dec = self._variables
        close = np.flatnonzero(np.abs(all_dec - e.dec) < 2.6)
        inside = close[np.asarray(e.footprint().contains(all_ra[close], all_dec[close])).astype(bool)]
        seen = inside[rng.random(len(inside)) < 0.5]
        blur = rng.normal(0, 0.05 / 3600, (2, len(seen)))
        new = rng.poisson(self.survey.transients / CAMERA_DETECTORS)
        new_ra, new_dec = e.on_sky(*rng.uniform(-e.side / 2, e.side / 2, (2, new)))
        # Eight bits for the detector and twelve for the source: ids are unique, and above those of variable objects.
        first = _TRANSIENT + ((e.visit * 256 + e.detector) << 12)
        ids = np.concatenate([_VARIABLE + seen, first + np.arange(new)]).astype(np.int64)
        wide = np.maximum(np.cos(np.radians(all_dec[seen])), 1e-3)
        ra = np.concatenate([(all_ra[seen] + blur[0] / wide) % 360, new_ra])
        dec = np.concatenate([np.clip(all_dec[seen] + blur[1], -90, 90), new_dec])
        return {names.OBJECT_ID: ids, names.RA: ra, names.DEC: dec}


def _camera() -> list[tuple[float, float]]:
    """Centres of the detectors in the field, in degrees: 21 rafts (five by five without the corners) of nine; ordered
    from the middle of the camera outwards."""
    rafts = [(i, j) for i in range(-2, 3) for j in range(-2, 3) if abs(i) + abs(j) < 4]
    places = [(3 * i + k, 3 * j + m) for i, j in rafts for k in (-1, 0, 1) for m in (-1, 0, 1)]
    places.sort(key=lambda place: (place[0] ** 2 + place[1] ** 2, place))
    return [(x * (DETECTOR_DEG + 0.008), y * (DETECTOR_DEG + 0.008)) for x, y in places]


PLACES = _camera()
"""Offsets of the detectors' centres from the pointing."""


def _in_cap(rng: np.random.Generator, count: int, ra: float, dec: float, radius: float) -> tuple[Any, Any]:
    """Positions in degrees, distributed uniformly over a cap of the sky."""
    height = rng.uniform(np.cos(np.radians(radius)), 1, count)
    away, turn = np.arccos(height), rng.uniform(0, 2 * np.pi, count)
    dec_r = np.radians(dec)
    sin_dec = np.sin(dec_r) * np.cos(away) + np.cos(dec_r) * np.sin(away) * np.cos(turn)
    east = np.arctan2(np.sin(turn) * np.sin(away) * np.cos(dec_r), np.cos(away) - np.sin(dec_r) * sin_dec)
    return (ra + np.degrees(east)) % 360, np.degrees(np.arcsin(np.clip(sin_dec, -1, 1)))
