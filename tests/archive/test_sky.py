"""Pixels and regions against lsst.sphgeom and healpy."""

import array
import functools
import math
import pickle

import healpy
import hpgeom
import numpy as np
import pyarrow as pa
import pytest
from lsst import sphgeom

from chronotile import sky

POINTS = 1_000_000
LEVELS = {"mq3c": (10, 30), "q3c": (10, 30), "htm": (10, 24), "healpix": (10, 29)}
SPHGEOM = {
    "mq3c": sphgeom.Mq3cPixelization,
    "q3c": sphgeom.Q3cPixelization,
    "htm": sphgeom.HtmPixelization,
    "healpix": sphgeom.HealpixPixelization,
}
# Both ends of the wrap, the corners of the cube, the border of the HEALPix caps, and the poles.
EDGE_RA = [*(45.0 * k for k in range(-8, 17)), 1e-13, -1e-13, 359.9999999, math.nextafter(360, 0), -1e-300]
EDGE_DEC = [0.0, 1e-13, 30.0, 45.0, math.degrees(math.atan(math.sqrt(0.5))), math.degrees(math.asin(2 / 3)), 90.0]


@functools.cache
def points():
    """ra, dec and the reference's unit vectors of random points and of awkward ones."""
    rng = np.random.default_rng(42)
    edges = np.array([(ra, sign * dec) for ra in EDGE_RA for dec in EDGE_DEC for sign in (1, -1)])
    ra = np.concatenate([edges[:, 0], rng.uniform(0, 360, POINTS)])
    dec = np.concatenate([edges[:, 1], np.degrees(np.arcsin(rng.uniform(-1, 1, POINTS)))])
    vectors = [sphgeom.UnitVector3d(lonlat) for lonlat in map(sphgeom.LonLat.fromDegrees, ra.tolist(), dec.tolist())]
    return ra, dec, vectors


@pytest.mark.parametrize(("scheme", "level"), [(s, lv) for s in ("mq3c", "q3c", "htm") for lv in LEVELS[s]])
def test_a_million_indices_equal_sphgeom(scheme, level):
    ra, dec, vectors = points()
    expected = np.fromiter(map(SPHGEOM[scheme](level).index, vectors), np.uint64, len(vectors))
    got = np.asarray(sky.pixel_index(scheme, level, ra, dec))
    assert got.dtype == (np.uint64 if (scheme, level) == ("mq3c", 30) else np.int64)
    np.testing.assert_array_equal(got.astype(np.uint64), expected)


@functools.cache
def components():
    return np.array([(v.x(), v.y(), v.z()) for v in points()[2]]).T


@pytest.mark.parametrize("level", [0, *LEVELS["healpix"]])
def test_a_million_indices_equal_healpy(level):
    ra, dec, vectors = points()
    x, y, z = components()
    got = np.asarray(sky.pixel_index("healpix", level, ra, dec))
    np.testing.assert_array_equal(got, healpy.vec2pix(2**level, x, y, z, nest=True))
    np.testing.assert_array_equal(got, hpgeom.vector_to_pixel(2**level, x, y, z))
    # sphgeom's own class works point by point.
    pixelization = sphgeom.HealpixPixelization(level)
    for i in range(2_000):
        assert pixelization.index(vectors[i]) == got[i]


def test_random_points_equal_the_angle_interface_of_healpy():
    ra, dec, _ = points()
    ra, dec = ra[-POINTS:], dec[-POINTS:]
    for level in LEVELS["healpix"]:
        got = np.asarray(sky.pixel_index("healpix", level, ra, dec))
        np.testing.assert_array_equal(got, healpy.ang2pix(2**level, ra, dec, lonlat=True, nest=True))


@pytest.mark.parametrize("scheme", LEVELS)
def test_every_kind_of_input_gives_the_same_pixels(scheme):
    ra, dec = [10.25, 200.5, 359.0], [-5.5, 80.25, 0.0]
    expected = [sky.pixel_index(scheme, 10, r, d) for r, d in zip(ra, dec, strict=True)]
    assert all(type(index) is int for index in expected)
    wide = np.column_stack([ra, dec])
    forms = [
        (ra, dec),
        (tuple(ra), tuple(dec)),
        (np.array(ra), np.array(dec)),
        (np.array(ra, np.float32), np.array(dec, np.float32)),
        (wide[:, 0], wide[:, 1]),
        (array.array("d", ra), array.array("d", dec)),
        (pa.array(ra), pa.array(dec)),
        (pa.array(ra, pa.float32()), pa.array(dec, pa.float32())),
        (pa.chunked_array([ra[:1], ra[1:]]), pa.array(dec)),
        (pa.array([0.0, *ra]).slice(1), pa.array([0.0, *dec]).slice(1)),
    ]
    for form in forms:
        result = sky.pixel_index(scheme, 10, *form)
        assert np.asarray(result).tolist() == expected
        assert pa.array(result).equals(pa.array(expected, pa.int64()))
    assert np.asarray(sky.pixel_index(scheme, 10, np.array([]), np.array([]))).tolist() == []
    assert sky.pixel_index(scheme, 10, np.float64(ra[0]), 80) == sky.pixel_index(scheme, 10, ra[0], 80.0)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: sky.pixel_index("s2", 1, 0, 0), ValueError, "unknown pixelization scheme"),
        (lambda: sky.pixel_index("htm", 25, 0, 0), ValueError, "use 0 to 24"),
        (lambda: sky.pixel_index("htm", -1, 0, 0), ValueError, "use 0 to 24"),
        (lambda: sky.pixel_index("htm", 1, math.nan, 0), ValueError, "not a position"),
        (lambda: sky.pixel_index("htm", 1, 0, 90.1), ValueError, "not a position"),
        (lambda: sky.pixel_index("htm", 1, [1.0, 2.0], [0.0, 91.0]), ValueError, "row 1"),
        (lambda: sky.pixel_index("htm", 1, [1.0, 2.0], [0.0]), ValueError, "differ in length"),
        (lambda: sky.pixel_index("htm", 1, [1.0], 0.0), TypeError, "both be numbers"),
        (lambda: sky.pixel_index("htm", 1, "1", 0.0), TypeError, "ra is a str"),
        (lambda: sky.pixel_index("htm", 1, np.zeros((2, 2)), np.zeros((2, 2))), ValueError, "2 dimensions"),
        (lambda: sky.pixel_index("htm", 1, pa.array([1.0, None]), [0.0, 0.0]), ValueError, "null in row 1"),
        (lambda: sky.pixel_index("htm", 1, pa.array(["1"]), [0.0]), TypeError, "Utf8"),
        (lambda: sky.pixel_vertices("htm", 1, 64), ValueError, "does not exist"),
        (lambda: sky.circle(0, 0, 181), ValueError, "radius"),
        (lambda: sky.circle(0, 100, 1), ValueError, "not a position"),
        (lambda: sky.box(0, 1, 2, 1), ValueError, "dec_min <= dec_max"),
        (lambda: sky.polygon([(0, 0), (1, 1)]), ValueError, "3 to"),
        (lambda: sky.polygon([(0, 0, 0), (1, 1), (0, 1)]), ValueError, "vertex 0"),
        (lambda: sky.polygon([(0, 0), (4, 0), (4, 4), (3, 1)]), ValueError, "not convex"),
        (lambda: sky.circle(0, 0, 1).contains(0, math.nan), ValueError, "not a position"),
        (lambda: sky.circle(0, 0, 1).cover("htm", 3, max_ranges=0), ValueError, "max_ranges"),
    ],
)
def test_bad_arguments_are_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("scheme", LEVELS)
def test_pixel_geometry_equals_the_references(scheme):
    rng = np.random.default_rng(1)
    for level in (0, 3, 10):
        first, end = sky.pixel_range(scheme, level)
        assert SPHGEOM[scheme](level).universe() == sphgeom.RangeSet(first, end)
        for index in rng.integers(first, end, 50).tolist():
            got = sky.pixel_vertices(scheme, level, index)
            if scheme == "healpix":
                lon, lat = hpgeom.boundaries(2**level, index, step=1)
                expected = [sphgeom.UnitVector3d(sphgeom.LonLat.fromDegrees(*p)) for p in zip(lon, lat, strict=True)]
            else:
                shape = SPHGEOM[scheme](level)
                expected = (shape.triangle if scheme == "htm" else shape.quad)(index).getVertices()
            assert len(got) == len(expected)
            for ra, dec in got:
                corner = sphgeom.UnitVector3d(sphgeom.LonLat.fromDegrees(ra, dec))
                assert min((corner - v).getNorm() for v in expected) < 1e-14
            assert sky.pixel_index(scheme, level, *sky.pixel_center(scheme, level, index)) == index
            assert 0.3 < sky.pixel_area(scheme, level, index) * (end - first) / (4 * math.pi) < 2.2


def region_pairs():
    """The same regions here and in sphgeom."""
    rng = np.random.default_rng(7)

    def vector(ra, dec):
        return sphgeom.UnitVector3d(sphgeom.LonLat.fromDegrees(ra, dec))

    for _ in range(25):
        ra, dec = float(rng.uniform(0, 360)), float(rng.uniform(-80, 80))
        size = float(10 ** rng.uniform(-1, 0.7))
        yield sky.circle(ra, dec, size), sphgeom.Circle(vector(ra, dec), sphgeom.Angle.fromDegrees(size))
        low, high = sphgeom.LonLat.fromDegrees(ra, dec), sphgeom.LonLat.fromDegrees(ra + size, dec + size)
        yield sky.box(ra, ra + size, dec, dec + size), sphgeom.Box(low, high)
        corners = [(ra, dec), (ra + size, dec), (ra + size, dec + size), (ra, dec + size)]
        yield sky.polygon(corners), sphgeom.ConvexPolygon([vector(*c) for c in corners])


def test_regions_hold_the_same_points_as_in_sphgeom():
    rng = np.random.default_rng(8)
    for ours, theirs in region_pairs():
        cap = theirs.getBoundingCircle()
        center, radius = sphgeom.LonLat(cap.getCenter()), 1.2 * cap.getOpeningAngle().asDegrees()
        dec = np.clip(center.getLat().asDegrees() + rng.uniform(-radius, radius, 5_000), -90, 90)
        ra = center.getLon().asDegrees() + rng.uniform(-radius, radius, 5_000) / np.cos(np.radians(dec))
        got = np.asarray(ours.contains(ra, dec))
        assert got.dtype == np.bool_
        # sphgeom takes longitudes in [0, 2 pi).
        expected = theirs.contains(np.radians(ra % 360), np.radians(dec))
        assert 0 < expected.sum() < 5_000
        np.testing.assert_array_equal(got, expected)
        np.testing.assert_array_equal(np.asarray(sky.region_contains(ours, ra, dec)), got)
        assert ours.contains(float(ra[0]), float(dec[0])) is bool(got[0])


@pytest.mark.parametrize("scheme", ["mq3c", "q3c", "htm"])
def test_covers_are_those_of_sphgeom_but_for_single_pixels(scheme):
    for ours, theirs in region_pairs():
        got = sphgeom.RangeSet()
        for first, end in ours.cover(scheme, 10):
            got.insert(first, end)
        expected = SPHGEOM[scheme](10).envelope(theirs)
        # Either may list a pixel that only comes within rounding of the region; sphgeom's box test is coarser.
        assert (got - expected).cardinality() <= 2
        assert got.cardinality() <= expected.cardinality()
        assert got.cardinality() >= SPHGEOM[scheme](10).interior(theirs).cardinality()


@pytest.mark.parametrize("scheme", LEVELS)
def test_covers_hold_every_contained_point(scheme):
    rng = np.random.default_rng(9)
    region = sky.polygon([(359.0, -1.0), (1.5, -0.5), (1.0, 1.2), (358.5, 0.8)])
    ra, dec = rng.uniform(-2, 2, 100_000), rng.uniform(-2, 2, 100_000)
    held = np.asarray(region.contains(ra, dec))
    pixels = np.asarray(sky.pixel_index(scheme, 9, ra[held], dec[held]))
    for ranges in (region.cover(scheme, 9), region.cover(scheme, 9, max_ranges=4)):
        starts, ends = np.array(ranges).T
        at = np.searchsorted(starts, pixels, side="right") - 1
        assert held.sum() > 10_000
        assert ((at >= 0) & (pixels < ends[at])).all()
    assert len(region.cover(scheme, 9, max_ranges=4)) <= 4
    assert sky.region_cover(region, scheme, 9) == region.cover(scheme, 9)


def test_the_whole_sky_ends_beyond_64_bits_at_the_deepest_mq3c_level():
    assert sky.box(0, 360, -90, 90).cover("mq3c", 30) == [(10 << 60, 1 << 64)]
    assert sky.pixel_range("mq3c", 30) == (10 << 60, 1 << 64)


def test_regions_are_values():
    regions = [sky.circle(1, 2, 3), sky.box(350, 10, -1, 1), sky.polygon(np.array([[0, 0], [1, 0], [0, 1.0]]))]
    for region in regions:
        assert eval(repr(region), {"Region": sky.Region}) == region
        assert pickle.loads(pickle.dumps(region)) == region
        assert len({region, pickle.loads(pickle.dumps(region))}) == 1
    assert [region.kind for region in regions] == ["circle", "box", "polygon"]
    assert len(set(regions)) == 3
    assert regions[0] != regions[1]
    assert sky.circle(0.0, 0, 1) == sky.circle(-0.0, 0, 1)
    assert hash(sky.circle(0.0, 0, 1)) == hash(sky.circle(-0.0, 0, 1))
    assert sky.circle(0, 0, 180).area == pytest.approx(4 * math.pi)
    assert sky.box(0, 90, 0, 90).area == pytest.approx(math.pi / 2)
    assert regions[2].bounding_cap().contains(0.3, 0.3)
