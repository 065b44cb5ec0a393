"""Exposures of square detectors and the rows they produce, shared by the simulated surveys.

Angles are degrees, times MJD (TAI).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from chronotile import sky
from chronotile.sky import Region

__all__ = ["FORCED_DAYS", "Detection", "Exposure", "from_plane", "measured_again", "to_plane"]

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
    """The rows that one exposure produces, as tables or as arrays by column."""

    objects: Any
    sources: Any
    forced_sources: Any


def measured_again(exposure: Exposure, known: Any, found_ids: Any) -> Any:
    """Mark the `known` objects of a footprint (``diaObjectId``, ``validityStartMjdTai``) that get a forced source
    without a detection: those detected recently.
    """
    late = np.asarray(known["validityStartMjdTai"]) >= exposure.mjd - FORCED_DAYS
    return late & ~np.isin(np.asarray(known["diaObjectId"]), found_ids)


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
