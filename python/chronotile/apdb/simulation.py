"""Simulate exposures of square detectors, and the rows that each produces under any schema.

A subclass of :class:`Simulation` defines a sky and what is detected in it; all simulated surveys share the rest.
Angles are degrees, times MJD (TAI).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from chronotile import sky
from chronotile.apdb import names
from chronotile.apdb.schema import Column, Schema
from chronotile.sky import Region

__all__ = ["FORCED_DAYS", "KNOWN", "Columns", "Detection", "Exposure", "Simulation", "from_plane", "to_plane"]

Columns = dict[str, np.ndarray]

KNOWN = [names.OBJECT_ID, names.RA, names.DEC, names.VALID_FROM]
"""Columns of the known objects of a footprint that a simulation needs."""

FORCED_DAYS = 30.0
"""Days after its last detection during which forced photometry of an object continues."""


@dataclass(frozen=True)
class Exposure:
    """One detector in one visit."""

    visit: int
    detector: int
    mjd: float
    ra: float
    """Pointing of the camera."""
    dec: float
    side: float
    """Centre of the detector."""
    offset: tuple[float, float] = (0.0, 0.0)
    """Offset of the detector's centre from the pointing, along the camera's axes."""
    angle: float = 0.0
    """Rotation of the camera on the sky."""

    def on_detector(self, ra: Any, dec: Any) -> tuple[Any, Any]:
        """Offsets from the detector's centre along its sides. Great circles are straight lines here."""
        x, y = to_plane(ra, dec, self.ra, self.dec)
        c, s = np.cos(np.radians(self.angle)), np.sin(np.radians(self.angle))
        return c * x + s * y - self.offset[0], c * y - s * x - self.offset[1]

    def on_sky(self, u: Any, v: Any) -> tuple[Any, Any]:
        """Positions of offsets from the detector's centre."""
        c, s = np.cos(np.radians(self.angle)), np.sin(np.radians(self.angle))
        u, v = u + self.offset[0], v + self.offset[1]
        return from_plane(c * u - s * v, s * u + c * v, self.ra, self.dec)

    def corners(self, padding: float = 0.0) -> list[tuple[float, float]]:
        """Corners of the footprint with `padding` around it: four (ra, dec)."""
        half = self.side / 2 + padding
        ra, dec = self.on_sky(np.array([-half, half, half, -half]), np.array([-half, -half, half, half]))
        return list(zip(ra.tolist(), dec.tolist(), strict=True))

    def footprint(self, padding: float = 0.0) -> Region:
        """The part of the sky that the detector sees, and `padding` around it."""
        return sky.polygon(self.corners(padding))


@dataclass(frozen=True)
class Detection:
    """The rows that one exposure produces, as Arrow tables."""

    objects: pa.Table
    sources: pa.Table
    forced_sources: pa.Table

    @property
    def rows(self) -> dict[str, int]:
        """Number of rows, by table."""
        tables = (self.objects, self.sources, self.forced_sources)
        return dict(zip(names.MAIN_TABLES, (table.num_rows for table in tables), strict=True))


class Simulation(ABC):
    """A simulated sky under a camera.

    The seed and the exposure determine all rows, so that each process can simulate a part of the detectors.

    Parameters
    ----------
    schema : Schema
        Columns to fill. Values that the sky does not define are random.
    seed : int
        The same seed makes the same rows.
    """

    def __init__(self, schema: Schema, seed: int) -> None:
        self.schema = schema
        self.seed = seed

    def observe(self, e: Exposure, known: pa.Table) -> Detection:
        """Detect objects in an exposure, and measure forced sources at these and at the known objects.

        Parameters
        ----------
        e : Exposure
            The exposure.
        known : pa.Table
            Objects read from the footprint before, with the columns :data:`KNOWN`. An object gets a forced source
            without a detection for 30 days after its last detection.

        Returns
        -------
        Detection
            All columns of the schema except validity times, withdrawal and association with the solar system.
        """
        rng = np.random.default_rng([self.seed, 3, e.visit, e.detector])
        found = self.detect(e, rng, known)
        sources = self._rows(names.SOURCE, rng, e, found)
        objects = self._rows(names.OBJECT, rng, e, found)
        inside = np.zeros(0, bool)
        if known.num_rows:
            inside = np.asarray(e.footprint().contains(known[names.RA], known[names.DEC])).astype(bool)
        again = inside & (np.asarray(known[names.VALID_FROM]) >= e.mjd - FORCED_DAYS)
        again &= ~np.isin(np.asarray(known[names.OBJECT_ID]), found[names.OBJECT_ID])
        places = (names.OBJECT_ID, names.RA, names.DEC)
        measured = {name: np.concatenate([found[name], known[name].to_numpy()[again]]) for name in places}
        order = np.argsort(measured[names.OBJECT_ID])
        measured = {name: values[order] for name, values in measured.items()}
        forced = self._rows(names.FORCED, rng, e, measured | self.measure(e, rng, measured[names.OBJECT_ID], found))
        return Detection(objects, sources, forced)

    @abstractmethod
    def detect(self, e: Exposure, rng: np.random.Generator, known: pa.Table) -> Columns:
        """Detections of an exposure: object ids, ``ra``, ``dec``, and any other columns of objects and sources."""

    def measure(self, e: Exposure, rng: np.random.Generator, ids: np.ndarray, found: Columns) -> Columns:
        """Columns of the forced sources of objects; `found` is what :meth:`detect` returned."""
        del e, rng, ids, found
        return {}

    def fill(self, column: Column, count: int, e: Exposure, rng: np.random.Generator) -> pa.Array:
        """Values of a column that the sky does not define: full mantissas, small counts, rare flags."""
        del e
        kind = column.type
        if kind == "float32":
            return pa.array(rng.normal(1_000, 300, count).astype("float32"))
        if kind == "float64":
            return pa.array(rng.normal(1_000, 300, count))
        if kind == "bool":
            return pa.array(rng.random(count) < 0.02)
        if kind == "utf8":
            return pa.array(np.array(list("ugrizy"))[rng.integers(0, 6, count)])
        if kind == "binary":
            return pa.repeat(pa.scalar(b"", pa.binary()), count)
        if kind.startswith("timestamp"):
            return pa.array(np.full(count, 1_700_000_000_000_000), pa.timestamp("us"))
        return pa.array(rng.integers(0, 100, count)).cast(kind)

    def _rows(self, table: str, rng: np.random.Generator, e: Exposure, given: Columns) -> pa.Table:
        count = len(given[names.OBJECT_ID])
        numbers = ((e.visit * 256 + e.detector) << 16) + np.arange(count)
        values = {
            names.TIME: np.full(count, e.mjd), names.VISIT: np.full(count, e.visit),
            names.DETECTOR: np.full(count, e.detector), names.SOURCE_ID: numbers, "diaForcedSourceId": numbers,
            names.SOURCE_COUNT: np.ones(count), "timeProcessedMjdTai": np.full(count, e.mjd + 60 / 86_400),
            "firstDiaSourceMjdTai": np.full(count, e.mjd), **given,
        }  # fmt: skip
        hidden = {names.VALID_FROM, names.VALID_TO, names.WITHDRAWN, names.SS_OBJECT_ID, names.REASSOCIATED}
        columns = [column for column in self.schema[table].columns if column.name not in hidden]
        arrays = [
            pa.array(values[column.name]).cast(column.arrow.type)
            if column.name in values
            else self.fill(column, count, e, rng)
            for column in columns
        ]
        return pa.table(arrays, pa.schema([column.arrow for column in columns]))


def to_plane(ra: Any, dec: Any, ra0: float, dec0: float) -> tuple[Any, Any]:
    """Gnomonic projection about (ra0, dec0): x east, y north (Calabretta & Greisen 2002, 5.1.3)."""
    a, d, d0 = np.radians(ra - ra0), np.radians(dec), np.radians(dec0)
    cosine = np.sin(d0) * np.sin(d) + np.cos(d0) * np.cos(d) * np.cos(a)
    x = np.cos(d) * np.sin(a) / cosine
    y = (np.cos(d0) * np.sin(d) - np.sin(d0) * np.cos(d) * np.cos(a)) / cosine
    return np.degrees(x), np.degrees(y)


def from_plane(x: Any, y: Any, ra0: float, dec0: float) -> tuple[Any, Any]:
    """The reverse of :func:`to_plane`."""
    x, y, d0 = np.radians(x), np.radians(y), np.radians(dec0)
    below = np.cos(d0) - y * np.sin(d0)
    ra = ra0 + np.degrees(np.arctan2(x, below))
    dec = np.degrees(np.arctan2(np.sin(d0) + y * np.cos(d0), np.hypot(x, below)))
    return ra % 360, dec
