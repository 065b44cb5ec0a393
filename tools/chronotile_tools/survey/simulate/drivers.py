"""Drivers for a simulated detector: our database, or the peer, with identical data."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from chronotile import apdb as own
from chronotile import optional
from chronotile.apdb import names
from chronotile.apdb.simulation import KNOWN, Detection, Exposure
from chronotile.sky import Region

Counts = dict[str, int]


@dataclass
class Footprint:
    """Result of a read of a footprint.

    Attributes
    ----------
    known : table
        The objects in the footprint.
    counts : dict of str to int
        Rows read, by table.
    seconds : dict of str to float
        Seconds of the read, by table.
    cpu_s : float
        Processor time of this process for all tables.
    """

    known: Any = None
    counts: Counts = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    cpu_s: float = 0.0

    def timed(self, name: str, call: Callable[[], Any]) -> Any:
        """The result of a call, timed for a table."""
        began, cpu = time.perf_counter(), time.process_time()
        result = call()
        self.seconds[name] = time.perf_counter() - began
        self.cpu_s += time.process_time() - cpu
        return result


class Driver(Protocol):
    """A database under the simulation."""

    name: str

    def read(self, corners: Region, at: float) -> Footprint:
        """Read a footprint."""

    def rows(self, detection: Detection) -> Any:
        """The rows of a detector-visit in the form for :meth:`store`, which is the form that pipelines have."""

    def store(self, exposure: Exposure, rows: Any) -> None:
        """Store a detector-visit."""

    def cone(self, ra: float, dec: float, radius: float, at: float) -> Counts:
        """Read all rows around a position, as another client would."""

    def close(self) -> None:
        """Close the database."""


class ChronotileDriver:
    """A database of this package, through its own interface."""

    name = "chronotile"

    def __init__(self, url: str) -> None:
        self._apdb = own.open(url)

    def read(self, corners: Region, at: float) -> Footprint:
        """See :class:`Driver`. Reads the tables one after another, to time each."""
        read = Footprint()
        objects = read.timed(names.OBJECT, lambda: self._apdb.objects(corners))
        sources = read.timed(names.SOURCE, lambda: self._apdb.sources(corners, at=at))
        forced = read.timed(names.FORCED, lambda: self._apdb.forced_sources(corners, at=at))
        read.counts = {names.OBJECT: len(objects), names.SOURCE: len(sources), names.FORCED: len(forced)}
        read.known = objects.to_arrow().select(KNOWN)
        return read

    def rows(self, detection: Detection) -> Any:
        """See :class:`Driver`: Arrow tables."""
        return detection.objects, detection.sources, detection.forced_sources

    def store(self, exposure: Exposure, rows: Any) -> None:
        """See :class:`Driver`."""
        self._apdb.store(exposure.mjd, *rows, visit=exposure.visit, detector=exposure.detector)

    def cone(self, ra: float, dec: float, radius: float, at: float) -> Counts:
        """See :class:`Driver`. Reads only complete detector-visits."""
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

    def read(self, corners: Region, at: float) -> Footprint:
        """See :class:`Driver`. Reads objects by region, then their history by ids, as the pipeline does."""
        region, visit_time = _sphgeom(corners), _time(at)
        read = Footprint()
        objects = read.timed(names.OBJECT, lambda: self._apdb.getDiaObjects(region))
        inside = _inside(corners, objects)
        objects = objects[inside]
        ids = objects[names.OBJECT_ID].tolist()
        sources = read.timed(names.SOURCE, lambda: self._apdb.getDiaSources(region, None, visit_time))
        forced = read.timed(names.FORCED, lambda: self._apdb.getDiaForcedSources(region, ids, visit_time))
        # The peer returns slightly larger regions than requested.
        sources = sources[_inside(corners, sources)]
        read.counts = {names.OBJECT: len(objects), names.SOURCE: len(sources), names.FORCED: len(forced)}
        read.known = pa.table({name: pa.array(objects[name].to_numpy()) for name in KNOWN})
        return read

    def rows(self, detection: Detection) -> Any:
        """See :class:`Driver`: DataFrames."""
        return [table.to_pandas() for table in (detection.objects, detection.sources, detection.forced_sources)]

    def store(self, exposure: Exposure, rows: Any) -> None:
        """See :class:`Driver`."""
        self._apdb.store(_time(exposure.mjd), *rows)

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
    """The region as a polygon of lsst.sphgeom."""
    from lsst.sphgeom import ConvexPolygon, LonLat, UnitVector3d

    _, arguments = region.__reduce__()
    vertices = arguments[0]
    return ConvexPolygon([UnitVector3d(LonLat.fromDegrees(ra, dec)) for ra, dec in vertices])


def _inside(region: Region, frame: Any) -> Any:
    import numpy as np

    if not len(frame):
        return np.zeros(0, bool)
    return np.asarray(region.contains(frame[names.RA].to_numpy(), frame[names.DEC].to_numpy())).astype(bool)
