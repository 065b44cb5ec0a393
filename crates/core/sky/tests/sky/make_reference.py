"""Writes reference.csv: pixels of awkward points, by the packages whose numbering this crate promises.

    python make_reference.py > reference.csv

Needs lsst-sphgeom and healpy. Each line is a point and its pixel in every scheme and level of the header. Angles are
written with all digits, so that they read back as the same doubles.
"""

import itertools
import math

import healpy
import numpy as np
from lsst.sphgeom import (
    HtmPixelization,
    LonLat,
    Mq3cPixelization,
    Q3cPixelization,
    UnitVector3d,
)

LEVELS = {
    "mq3c": (0, 3, 10, 20, 30),
    "q3c": (0, 3, 10, 20, 30),
    "htm": (0, 3, 10, 17, 24),
    "healpix": (0, 3, 10, 20, 29),
}
SPHGEOM = {"mq3c": Mq3cPixelization, "q3c": Q3cPixelization, "htm": HtmPixelization}


def vector(ra, dec):
    return UnitVector3d(LonLat.fromDegrees(ra, dec))


def grid():
    """Multiples of 45 degrees, the wrap at 0 and 360, poles, cube corners, and the border of the HEALPix caps."""
    ras = [45.0 * k for k in range(-8, 17)] + [
        1e-13,
        -1e-13,
        -1e-300,
        359.9999999,
        math.nextafter(360, 0),
        math.nextafter(360, 361),
        math.nextafter(45, 0),
        math.nextafter(45, 46),
        1e6 + 0.1,
        -1e15,
    ]
    cap = math.degrees(math.asin(2 / 3))
    corner = math.degrees(math.atan(math.sqrt(0.5)))
    north = [90.0, math.nextafter(90, 0), 89.9999999, 45.0, cap, corner, 30.0, 1e-13]
    return list(itertools.product(ras, [*north, 0.0, *(-d for d in north)]))


def corners(rng):
    """Corners of random pixels of each scheme, and midpoints of edges."""
    for scheme, level in itertools.product(SPHGEOM, (1, 3, 10, 20)):
        pixelization = SPHGEOM[scheme](level)
        first, end = next(iter(pixelization.universe()))
        for index in rng.integers(first, end, 4):
            shape = pixelization.triangle if scheme == "htm" else pixelization.quad
            vertices = shape(int(index)).getVertices()
            a, b = vertices[:2]
            for v in [*vertices, UnitVector3d(a.x() + b.x(), a.y() + b.y(), a.z() + b.z())]:
                point = LonLat(v)
                yield point.getLon().asDegrees(), point.getLat().asDegrees()
    for level in (0, 1, 3, 10, 20):
        nside = 2**level
        for index in rng.integers(0, 12 * nside**2, 4):
            lon, lat = healpy.vec2ang(healpy.boundaries(nside, int(index), step=2, nest=True).T, lonlat=True)
            yield from zip(lon.tolist(), lat.tolist(), strict=True)


def main():
    rng = np.random.default_rng(20260101)
    points = [*grid(), *corners(rng)]
    ra = rng.uniform(-360, 720, 200)
    dec = np.degrees(np.arcsin(rng.uniform(-1, 1, 200)))
    points += zip(ra.tolist(), dec.tolist(), strict=True)

    columns = [(scheme, level) for scheme, levels in LEVELS.items() for level in levels]
    print("ra,dec," + ",".join(f"{scheme}:{level}" for scheme, level in columns))
    for ra, dec in points:
        v = vector(ra, dec)
        indices = [
            int(healpy.vec2pix(2**level, v.x(), v.y(), v.z(), nest=True))
            if scheme == "healpix"
            else SPHGEOM[scheme](level).index(v)
            for scheme, level in columns
        ]
        print(f"{float(ra)!r},{float(dec)!r}," + ",".join(map(str, indices)))


main()
