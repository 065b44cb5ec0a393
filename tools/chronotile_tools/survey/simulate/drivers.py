"""Drivers for a simulated detector: our database, or the peer, with identical data."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import pyarrow as pa

from chronotile import apdb as own
from chronotile import optional
from chronotile.apdb import names
from chronotile.apdb.simulation import KNOWN, Detection, Exposure
from chronotile.sky import Region

Counts = dict[str, int]
Seconds = dict[str, float]


class Driver(Protocol):
    """A database under the simulation."""

    name: str

    def read(self, corners: Region, at: float) -> tuple[Any, Counts, Seconds]:
        """Read a footprint: the objects that are in it, rows of each table, and seconds that each took."""

    def store(self, exposure: Exposure, detection: Detection) -> None:
        """Store a detector-visit."""

    def cone(self, ra: float, dec: float, radius: float, at: float) -> Counts:
        """Read all rows around a position, as another client would."""

    def close(self) -> None:
        """Close the database."""


def timed(seconds: Seconds, name: str, call: Callable[[], Any]) -> Any:
    """The result of a call, its time entered under `name`."""
    began = time.perf_counter()
    result = call()
    seconds[name] = time.perf_counter() - began
    return result


class ChronotileDriver:
    """A database of this package, through its own interface."""

    name = "chronotile"

    def __init__(self, url: str) -> None:
        self._apdb = own.open(url)

    def read(self, corners: Region, at: float) -> tuple[Any, Counts, Seconds]:
        """See :class:`Driver`; the tables one after another, so that each has its time."""
        seconds: Seconds = {}
        objects = timed(seconds, names.OBJECT, lambda: self._apdb.objects(corners))
        sources = timed(seconds, names.SOURCE, lambda: self._apdb.sources(corners, at=at))
        forced = timed(seconds, names.FORCED, lambda: self._apdb.forced_sources(corners, at=at))
        counts = {names.OBJECT: len(objects), names.SOURCE: len(sources), names.FORCED: len(forced)}
        return objects.to_arrow().select(KNOWN), counts, seconds

    def store(self, exposure: Exposure, detection: Detection) -> None:
        """See :class:`Driver`."""
        e, tables = exposure, (detection.objects, detection.sources, detection.forced_sources)
        self._apdb.store(e.mjd, *tables, visit=e.visit, detector=e.detector)

    def cone(self, ra: float, dec: float, radius: float, at: float) -> Counts:
        """See :class:`Driver`; complete detector-visits alone."""
        found = self._apdb.cone(ra, dec, radius, at=at)
        return {
            names.OBJECT: len(found.objects), names.SOURCE: len(found.sources), names.FORCED: len(found.forced_sources)
        }  # fmt: skip

    def close(self) -> None:
        """See :class:`Driver`."""
        self._apdb.close()


class PeerDriver:
    """Driver for any ``lsst.dax.apdb.Apdb``, from its configuration file."""

    name = "lsst-dax-apdb"

    def __init__(self, config: str) -> None:
        optional.require("a database of lsst.dax.apdb", "lsst", "lsst.dax.apdb", "pandas")
        from lsst.dax.apdb import Apdb

        # Importing this registers our configuration.
        import chronotile.apdb.lsst  # noqa: F401

        self._apdb = Apdb.from_uri(config)

    def read(self, corners: Region, at: float) -> tuple[Any, Counts, Seconds]:
        """See :class:`Driver`: objects by region, the history of those objects by their ids, as the pipeline does."""
        region, visit_time = _sphgeom(corners), _time(at)
        seconds: Seconds = {}
        objects = timed(seconds, names.OBJECT, lambda: self._apdb.getDiaObjects(region))
        inside = _inside(corners, objects)
        objects = objects[inside]
        ids = objects[names.OBJECT_ID].tolist()
        sources = timed(seconds, names.SOURCE, lambda: self._apdb.getDiaSources(region, None, visit_time))
        forced = timed(seconds, names.FORCED, lambda: self._apdb.getDiaForcedSources(region, ids, visit_time))
        # The peer returns slightly larger regions than requested.
        sources = sources[_inside(corners, sources)]
        counts = {names.OBJECT: len(objects), names.SOURCE: len(sources), names.FORCED: len(forced)}
        known = pa.table({name: pa.array(objects[name].to_numpy()) for name in KNOWN})
        return known, counts, seconds

    def store(self, exposure: Exposure, detection: Detection) -> None:
        """See :class:`Driver`."""
        frames = [table.to_pandas() for table in (detection.objects, detection.sources, detection.forced_sources)]
        self._apdb.store(_time(exposure.mjd), *frames)

    def cone(self, ra: float, dec: float, radius: float, at: float) -> Counts:
        """See :class:`Driver`."""
        from lsst.sphgeom import Angle, Circle, LonLat, UnitVector3d

        region = Circle(UnitVector3d(LonLat.fromDegrees(ra, dec)), Angle.fromDegrees(radius))
        objects = self._apdb.getDiaObjects(region)
        ids = objects[names.OBJECT_ID].tolist()
        sources: Any = self._apdb.getDiaSources(region, ids, _time(at))
        forced: Any = self._apdb.getDiaForcedSources(region, ids, _time(at))
        return {names.OBJECT: len(objects), names.SOURCE: len(sources), names.FORCED: len(forced)}

    def close(self) -> None:
        """See :class:`Driver`; the peer has nothing to close."""


def _time(mjd_tai: float) -> Any:
    from astropy.time import Time

    return Time(mjd_tai, format="mjd", scale="tai")


def _sphgeom(region: Region) -> Any:
    """The same polygon of lsst.sphgeom."""
    from lsst.sphgeom import ConvexPolygon, LonLat, UnitVector3d

    _, arguments = region.__reduce__()
    vertices = arguments[0]
    return ConvexPolygon([UnitVector3d(LonLat.fromDegrees(ra, dec)) for ra, dec in vertices])


def _inside(region: Region, frame: Any) -> Any:
    import numpy as np

    if not len(frame):
        return np.zeros(0, bool)
    return np.asarray(region.contains(frame[names.RA].to_numpy(), frame[names.DEC].to_numpy())).astype(bool)
