"""Small surveys for tests, and a simple model of the results that a database must return."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

import chronotile as ct
from chronotile import apdb

FIELD = ct.box(150.0, 150.2, 2.0, 2.2)
START = 61_000.0


def visit_of(number: int, ids: list[int], detector: int = 1, seed: int = 0) -> dict[str, Any]:
    """The rows of a detector-visit that observed some objects; an object has the same position in all visits."""
    time = START + number
    places = np.random.default_rng(99)
    ra, dec = (low + places.uniform(0, 0.2, 1_000)[ids] for low in (150.0, 2.0))
    flux = np.random.default_rng([number, detector, seed]).normal(100, 10, len(ids)).astype("float32")
    object_ids = np.array(ids, "int64")
    shared = {"diaObjectId": object_ids, "ra": ra, "dec": dec}
    measured = {"midpointMjdTai": np.full(len(ids), time), "psfFlux": flux, "band": pa.repeat("r", len(ids))}
    return {
        "visit_time": time,
        "objects": {**shared, "nDiaSources": np.full(len(ids), 1, "int32"), "r_psfFluxMean": flux},
        "sources": {**shared, **measured, "diaSourceId": object_ids + number * 10_000 + detector * 1_000},
        "forced_sources": {**shared, **measured},
        "visit": number,
        "detector": detector,
    }


@dataclass
class Model:
    """The expected content of a database, in dicts."""

    objects: dict[int, dict[float, dict[str, Any]]] = field(default_factory=dict)
    sources: dict[int, dict[str, Any]] = field(default_factory=dict)
    forced: dict[tuple[int, int, int], dict[str, Any]] = field(default_factory=dict)
    visits: set[tuple[int, int]] = field(default_factory=set)

    def store(
        self, visit_time: float, objects: Any, sources: Any, forced_sources: Any, visit: int, detector: int
    ) -> None:
        """As `Apdb.store`; a detector-visit that is already stored does not change."""
        if (visit, detector) in self.visits:
            return
        self.visits.add((visit, detector))
        for row in pa.table(objects).to_pylist():
            versions = self.objects.setdefault(row["diaObjectId"], {})
            # A closed version is newer than one that another detector of the same visit stores.
            if versions.get(visit_time, {}).get("validityEndMjdTai") is None:
                versions[visit_time] = {**row, "validityEndMjdTai": None}
        for row in pa.table(sources).to_pylist():
            self.sources[row["diaSourceId"]] = {**row, "ssObjectId": None, "timeWithdrawnMjdTai": None}
        for row in pa.table(forced_sources).to_pylist():
            self.forced[row["diaObjectId"], visit, detector] = row

    def newest(self) -> dict[int, dict[str, Any]]:
        """The newest version of each object, unless it is closed."""
        found = {number: versions[max(versions)] for number, versions in self.objects.items()}
        return {number: row for number, row in found.items() if row["validityEndMjdTai"] is None}


def seen_objects(database: apdb.Apdb, **how: Any) -> dict[int, tuple[int, float]]:
    """Number of sources and flux of each object in the field."""
    rows = (
        database.objects(FIELD, columns=["diaObjectId", "nDiaSources", "r_psfFluxMean"], **how).to_arrow().to_pylist()
    )
    found = {row["diaObjectId"]: (row["nDiaSources"], row["r_psfFluxMean"]) for row in rows}
    assert len(found) == len(rows), "an object came twice"
    return found


def seen_sources(database: apdb.Apdb, **how: Any) -> dict[int, tuple[Any, ...]]:
    """The mutable columns of each source in the field."""
    columns = ["diaSourceId", "diaObjectId", "ssObjectId", "timeWithdrawnMjdTai", "psfFlux"]
    rows = database.sources(FIELD, columns=columns, **how).to_arrow().to_pylist()
    found = {row["diaSourceId"]: tuple(row[name] for name in columns[1:]) for row in rows}
    assert len(found) == len(rows), "a source came twice"
    return found
