"""Every read through the LSST adapter equals that of lsst-dax-apdb's own SQL back end on the same stored data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lsst.dax.apdb", reason="THE LSST ADAPTER IS NOT TESTED: pip install 'chronotile[lsst]'")

import astropy.time
import numpy as np
import pandas
from lsst.dax.apdb import Apdb, DiaForcedSourceId, DiaObjectId, DiaSourceId
from lsst.dax.apdb.apdbAdmin import DiaForcedSourceLocator, DiaObjectLocator, DiaSourceLocator
from lsst.dax.apdb.sql import ApdbSql
from lsst.sphgeom import Angle, Box, Circle, ConvexPolygon, LonLat, Mq3cPixelization, Region, UnitVector3d
from support_apdb_suite import SCHEMA
from support_engines import disposing_engines

from chronotile.apdb.lsst import ChronotileApdb, dilated

pytestmark = pytest.mark.filterwarnings("ignore:The inplace keyword:Warning")

RA, DEC = 150.0, 2.0
START = astropy.time.Time(61_000.25, format="mjd", scale="tai")
NOW = astropy.time.Time(61_100.5, format="mjd", scale="tai")
KEYS = ["diaObjectId", "diaSourceId", "visit", "validityStartMjdTai"]


@pytest.fixture
def both(tmp_path: Path) -> Iterator[list[Apdb]]:
    """Ours and theirs, with ten visits of two detectors in each."""
    with disposing_engines():
        yield stored_in_both(tmp_path)


def stored_in_both(tmp_path: Path) -> list[Apdb]:
    ours = ChronotileApdb.init_database(f"sqlite:{tmp_path}/ours.db", schema_file=str(SCHEMA), ss_schema_file="")
    theirs = ApdbSql.init_database(f"sqlite:///{tmp_path}/theirs.db", schema_file=str(SCHEMA), ss_schema_file="")
    made = [Apdb.from_config(ours), Apdb.from_config(theirs)]
    for visit in range(10):
        for detector in (1, 2):
            for database in made:
                database._current_time = lambda: NOW  # type: ignore[method-assign]
                database.store(*rows_of(visit, detector))
    return made


def rows_of(visit: int, detector: int) -> tuple[Any, ...]:
    """A detector-visit; the same for both."""
    rng = np.random.default_rng([visit, detector])
    time = START + astropy.time.TimeDelta(visit * 40.0, format="jd")
    ids = np.unique(rng.integers(0, 30, 20)) + detector * 100
    places = np.random.default_rng(7).uniform(-0.1, 0.1, (300, 2))[ids]
    shared = {"diaObjectId": ids, "ra": RA + places[:, 0], "dec": DEC + places[:, 1]}
    objects = pandas.DataFrame({
        **shared, "parallax": rng.normal(size=len(ids)).astype("float32"),
        "nDiaSources": np.full(len(ids), 1 + visit % 2, "int32"), "firstDiaSourceMjdTai": 60_000.0,
    })  # fmt: skip
    measured = {
        **shared, "visit": np.int64(visit), "detector": np.int16(detector),
        "midpointMjdTai": time.tai.mjd + 1e-4, "timeProcessedMjdTai": time.tai.mjd,
    }  # fmt: skip
    flags = pandas.array([None if k % 3 == 0 else k % 2 == 0 for k in range(len(ids))], dtype="boolean")
    sources = pandas.DataFrame(
        {**measured, "diaSourceId": ids + visit * 1_000 + detector * 100_000, "centroid_flag": flags}
    )
    sources["diaObjectId"] = sources["diaObjectId"].astype("Int64")
    forced = pandas.DataFrame({**measured, "flags": np.arange(len(ids))})
    return time, objects, sources, forced


def same(frames: list[pandas.DataFrame | None], region: Region | None = None) -> None:
    """Both frames have the same columns of the same types, and the same rows; those outside a region do not count."""
    ours, theirs = frames
    assert ours is not None
    assert theirs is not None
    if region is not None:
        # Theirs may return more than was asked for.
        inside = [
            region.contains(UnitVector3d(LonLat.fromDegrees(r, d))) for r, d in zip(theirs.ra, theirs.dec, strict=True)
        ]
        theirs = theirs[inside]
    keys = [key for key in KEYS if key in ours]
    ours, theirs = (frame[sorted(frame)].sort_values(keys).reset_index(drop=True) for frame in (ours, theirs))
    pandas.testing.assert_frame_equal(ours, theirs, check_exact=True)
    assert len(ours)


def regions() -> list[Region]:
    """A circle, a box and a polygon."""
    corners = [(-0.08, -0.08), (0.08, -0.08), (0.08, 0.05), (-0.08, 0.08)]
    return [
        Circle(UnitVector3d(LonLat.fromDegrees(RA, DEC)), Angle.fromDegrees(0.07)),
        Box.fromDegrees(RA - 0.09, DEC - 0.09, RA + 0.02, DEC + 0.09),
        ConvexPolygon([UnitVector3d(LonLat.fromDegrees(RA + x, DEC + y)) for x, y in corners]),
    ]


def check_all(both: list[Apdb]) -> None:
    """Compare every read."""

    def each(read: Callable[[Apdb], Any]) -> list[Any]:
        return [read(database) for database in both]

    last = START + astropy.time.TimeDelta(400.0, format="jd")
    early = START + astropy.time.TimeDelta(100.0, format="jd")
    ids = list(range(100, 110)) + [215]
    for region in regions()[:1] + regions()[2:]:
        same(each(lambda a, r=region: a.getDiaObjects(r)), region)
        same(each(lambda a, r=region: a.getDiaSources(r, None, last)), region)
        same(each(lambda a, r=region: a.getDiaSources(r, None, last, early)), region)
    everywhere = Circle(UnitVector3d(LonLat.fromDegrees(RA, DEC)), Angle.fromDegrees(1.0))
    same(each(lambda a: a.getDiaSources(everywhere, ids, last)))
    same(each(lambda a: a.getDiaForcedSources(everywhere, ids, last)))
    same(each(lambda a: a.getDiaObjects(everywhere)))
    objects = both[1].getDiaObjects(everywhere)
    named = [DiaObjectId.from_named_tuple(row) for row in objects.iloc[::4].itertuples()]
    same(each(lambda a: a.getDiaSourcesForDiaObjects(named, early)))
    assert len(set(each(lambda a: a.countUnassociatedObjects()))) == 1
    for visit, detector in ((3, 1), (3, 2), (3, 3), (77, 1)):
        assert len(set(each(lambda a, v=visit, d=detector: a.containsVisitDetector(v, d)))) == 1
    empty = each(lambda a: a.getDiaSources(everywhere, [], last))
    assert dict(empty[0].dtypes) == dict(empty[1].dtypes)
    open_ones = [frame[["diaObjectId", "validityStartMjdTai"]] for frame in each(lambda a: a.getDiaObjectsForDedup())]
    same(open_ones)


def test_every_read_equals_that_of_the_peer(both: list[Apdb]) -> None:
    check_all(both)


def test_a_box_is_read_exactly(both: list[Apdb]) -> None:
    box = regions()[1]
    frame = both[0].getDiaObjects(box)
    assert all(box.contains(UnitVector3d(LonLat.fromDegrees(r, d))) for r, d in zip(frame.ra, frame.dec, strict=True))
    same([frame, both[1].getDiaObjects(Circle(UnitVector3d(LonLat.fromDegrees(RA, DEC)), Angle.fromDegrees(1)))], box)


def test_every_read_equals_that_of_the_peer_after_the_same_changes(both: list[Apdb]) -> None:
    everywhere = Circle(UnitVector3d(LonLat.fromDegrees(RA, DEC)), Angle.fromDegrees(1.0))
    sources = both[1].getDiaSources(everywhere, None, NOW)
    assert sources is not None
    rows = [DiaSourceId.from_named_tuple(row) for row in sources.itertuples()]
    objects = both[1].getDiaObjects(everywhere)
    forced = both[1].getDiaForcedSources(everywhere, [101, 102, 103], NOW)
    assert forced is not None
    measured = [DiaForcedSourceId.from_named_tuple(row) for row in forced.itertuples()]
    for database in both:
        database.reassignDiaSources({rows[0].diaSourceId: 5, rows[9].diaSourceId: 6})
        database.withdrawDiaSources([rows[1], rows[2]], timeWithdrawn=START)
        database.withdrawDiaSources([rows[2], rows[3]])
        database.withdrawDiaForcedSources(measured[:4], timeWithdrawn=START)
        named = [DiaObjectId.from_named_tuple(row) for row in objects.iloc[:3].itertuples()]
        assert database.setValidityEnd(named, NOW) == 3
    check_all(both)


def test_records_that_an_administrator_deletes_are_gone_with_what_belongs_to_them(both: list[Apdb]) -> None:
    ours = both[0]
    everywhere = Circle(UnitVector3d(LonLat.fromDegrees(RA, DEC)), Angle.fromDegrees(1.0))
    objects = ours.getDiaObjects(everywhere)
    chosen = objects.iloc[:2]
    ids = chosen["diaObjectId"].tolist()
    sources = ours.getDiaSources(everywhere, None, NOW)
    forced = ours.getDiaForcedSources(everywhere, ids, NOW)
    assert sources is not None
    assert forced is not None
    mine = sources[sources["diaObjectId"].isin(ids)]
    ours.admin.delete_records(
        [DiaObjectLocator(row.diaObjectId, row.ra, row.dec) for row in chosen.itertuples()],
        [DiaSourceLocator(r.diaSourceId, r.diaObjectId, r.ra, r.dec, r.midpointMjdTai) for r in sources.itertuples()],
        [
            DiaForcedSourceLocator(r.diaObjectId, r.visit, r.detector, r.ra, r.dec, r.midpointMjdTai)
            for r in forced.itertuples()
        ],
    )
    left = ours.getDiaSources(everywhere, None, NOW)
    assert left is not None
    assert len(left) == len(sources) - len(mine) > 0, "sources of other objects stay"
    assert len(ours.getDiaObjects(everywhere)) == len(objects) - 2
    empty = ours.getDiaForcedSources(everywhere, ids, NOW)
    assert empty is not None
    assert len(empty) == 0 < len(forced)


def test_partitions_are_those_of_sphgeom(both: list[Apdb]) -> None:
    pixels = Mq3cPixelization(9)
    for ra, dec in ((0.0, 0.0), (150.0, 2.0), (279.5, -88.0)):
        assert both[0].admin.apdb_part(ra, dec) == pixels.index(UnitVector3d(LonLat.fromDegrees(ra, dec)))
    assert both[0].admin.apdb_time_part(61_000.0) == (61_000 - 40_587) // 120


@pytest.mark.parametrize("seed", range(20))
def test_a_dilated_polygon_holds_all_within_the_margin_and_little_more(seed: int) -> None:
    rng = np.random.default_rng(seed)
    middle = UnitVector3d(LonLat.fromDegrees(rng.uniform(0, 360), rng.uniform(-90, 90)))
    size, margin = Angle.fromDegrees(10 ** rng.uniform(-3, 1)), Angle.fromDegrees(10 ** rng.uniform(-5, -3))
    corners = [turned(middle, size, rng.uniform(0, 2 * np.pi)) for _ in range(rng.integers(3, 8))]
    polygon = ConvexPolygon.convexHull(corners)
    found = dilated(polygon, margin)
    around = [turned(edge, margin, turn) for edge in along_edges(polygon) for turn in np.arange(0, 2 * np.pi, 0.5)]
    assert all(found.contains(point) for point in around)
    if isinstance(found, ConvexPolygon):
        beyond = [turned(middle, Angle(size.asRadians() + 6 * margin.asRadians()), turn) for turn in range(6)]
        assert not any(found.contains(point) for point in beyond)
    else:
        assert found == polygon.getBoundingCircle().dilatedBy(margin), "a corner is sharp"


def turned(middle: UnitVector3d, distance: Angle, direction: float) -> UnitVector3d:
    """The point at a distance from another, in a direction."""
    return (
        UnitVector3d(middle)
        .rotatedAround(UnitVector3d.orthogonalTo(middle), distance)
        .rotatedAround(middle, Angle(direction))
    )


def along_edges(polygon: ConvexPolygon) -> list[UnitVector3d]:
    """The corners of a polygon and points between them."""
    corners = polygon.getVertices()
    return [
        UnitVector3d(*(np.array([a.x(), a.y(), a.z()]) * (1 - share) + np.array([b.x(), b.y(), b.z()]) * share))
        for a, b in zip(corners, [*corners[1:], corners[0]], strict=True)
        for share in (0, 0.25, 0.5, 0.9)
    ]


def test_only_polygons_of_ordinary_size_stay_polygons() -> None:
    margin = Angle.fromDegrees(0.001)
    circle = Circle(UnitVector3d(LonLat.fromDegrees(10, 20)), Angle.fromDegrees(1))
    half = ConvexPolygon([UnitVector3d(LonLat.fromDegrees(ra, dec)) for ra, dec in ((0, 0), (80, 0), (40, 70))])
    for region in (circle, half):
        assert dilated(region, margin) == region.getBoundingCircle().dilatedBy(margin)
