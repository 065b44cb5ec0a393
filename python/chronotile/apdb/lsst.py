"""Chronotile as the alert production database of the LSST pipeline: an implementation of ``lsst.dax.apdb.Apdb``.

If the package is installed, ``lsst.dax.apdb.Apdb.from_config`` and ``from_uri`` accept configurations of the type
``chronotile``, so a pipeline switches to a Chronotile archive by its configuration file alone::

    from chronotile.apdb.lsst import ChronotileApdb

    config = ChronotileApdb.init_database("sqlite:survey.db")
    config.save("apdb.yaml")

Needs ``lsst-dax-apdb``: ``pip install 'chronotile[lsst]'``. Columns of time must be MJD in TAI, as in the newer schemas
of the LSST.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, cast

from chronotile import optional

optional.require("chronotile.apdb.lsst", "lsst", "lsst.dax.apdb", "pandas")

import astropy.time
import felis.datamodel
import lsst.sphgeom
import numpy as np
import pandas
import pyarrow as pa
from lsst.dax.apdb import (
    Apdb,
    ApdbConfig,
    ApdbMetadata,
    ApdbReplica,
    ApdbTableData,
    ApdbUpdateRecord,
    DiaForcedSourceId,
    DiaObjectId,
    DiaSourceId,
    IncompatibleVersionError,
    ReplicaChunk,
    VersionTuple,
)
from lsst.dax.apdb import apdb as their_apdb
from lsst.dax.apdb import apdbReplica as their_replicas  # noqa: N813
from lsst.dax.apdb import config as their_config
from lsst.dax.apdb.apdbAdmin import ApdbAdmin, DiaForcedSourceLocator, DiaObjectLocator, DiaSourceLocator
from lsst.dax.apdb.apdbConfigFreezer import ApdbConfigFreezer
from lsst.dax.apdb.apdbSchema import ApdbSchema, ApdbTables
from lsst.dax.apdb.schema_model import Table
from lsst.resources import ResourcePath
from pydantic import Field

from chronotile import apdb as own
from chronotile import sky
from chronotile.apdb import feed, names, values
from chronotile.apdb.layout import Layout
from chronotile.apdb.schema import Schema
from chronotile.errors import InvalidInputError

__all__ = [
    "ChronotileApdb",
    "ChronotileApdbAdmin",
    "ChronotileApdbConfig",
    "ChronotileApdbMetadata",
    "ChronotileApdbReplica",
    "register",
]

_LOG = logging.getLogger("lsst.dax.apdb.chronotile")

VERSION = VersionTuple(1, 0, 0)
REPLICA_VERSION = VersionTuple(1, 0, 0)
_SCHEMA_KEY, _CODE_KEY, _REPLICA_KEY = "version:schema", "version:ChronotileApdb", "version:ChronotileApdbReplica"
_CONFIG_KEY = "config:apdb-chronotile.json"
_OWN_PREFIX = "apdb:"
_NEAR = lsst.sphgeom.Angle.fromDegrees(5 * values.ARCSECOND)
_LARGE = lsst.sphgeom.Angle.fromDegrees(30.0)
_SHARP = 0.1
"""Least value of one plus the cosine between the normals of a corner's edges; such a corner moves by 4.5 margins."""
_INTEGERS = frozenset([pa.int8(), pa.int16(), pa.int32(), pa.int64()])


class ChronotileApdbConfig(ApdbConfig):
    """Configuration of a :class:`ChronotileApdb`."""

    _implementation_type: ClassVar[str] = "chronotile"

    url: str = Field(description="URL of the Chronotile archive, such as sqlite:survey.db or cassandra://node1/survey.")
    dia_object_columns: list[str] = Field(
        default=[], description="Columns to read from DiaObject; all by default. May change at any time."
    )
    dia_object_columns_for_dedup: list[str] = Field(
        default=["ra", "dec", "nDiaSources", "firstDiaSourceMjdTai"],
        description=(
            "Columns of DiaObject that deduplication reads, an empty list for all; diaObjectId and validityStartMjdTai "
            "are always among them. May change at any time."
        ),
    )


class ChronotileApdbMetadata(ApdbMetadata):
    """Key-value metadata in the archive."""

    def __init__(self, metadata: own.Metadata) -> None:
        self._metadata = metadata

    def get(self, key: str, default: str | None = None) -> str | None:
        # Docstring inherited.
        return self._metadata.get(key, default)

    def set(self, key: str, value: str, *, force: bool = False) -> None:
        # Docstring inherited.
        if not key or not value:
            raise ValueError("A metadata key and its value must not be empty")
        try:
            self._metadata.set(key, value, force=force)
        except InvalidInputError as error:
            if error.kind == "key-exists":
                raise KeyError(f"Metadata key {key!r} already exists") from None
            raise

    def delete(self, key: str) -> bool:
        # Docstring inherited.
        return self._metadata.delete(key)

    def items(self) -> Generator[tuple[str, str], None, None]:
        # Docstring inherited.
        yield from ((key, value) for key, value in self._metadata.items() if not key.startswith(_OWN_PREFIX))

    def empty(self) -> bool:
        # Docstring inherited.
        return next(self.items(), None) is None


class ChronotileApdb(Apdb):
    """The alert production database of the LSST pipeline on a Chronotile archive.

    Guarantees beyond ``lsst.dax.apdb.Apdb``: `store` may be repeated after any failure; reads by region without object
    ids are exact; `getDiaForcedSources` also reads by region.
    """

    _frozen: ClassVar[ApdbConfigFreezer[ChronotileApdbConfig]] = ApdbConfigFreezer(
        ["enable_replica", "replica_chunk_seconds"]
    )

    def __init__(self, config: ChronotileApdbConfig) -> None:
        self._own = own.open(config.url)
        self._metadata = ChronotileApdbMetadata(self._own.metadata)
        self._lsst_schema = ApdbSchema(config.schema_file, config.ss_schema_file)
        self._check_versions()
        frozen = self._metadata.get(_CONFIG_KEY)
        self.config = config if frozen is None else self._frozen.update(config, frozen)

    def _check_versions(self) -> None:
        for what, version, key in (
            ("schema", self._lsst_schema.schemaVersion(), _SCHEMA_KEY),
            ("code", VERSION, _CODE_KEY),
            ("replication code", REPLICA_VERSION, _REPLICA_KEY),
        ):
            stored = self._metadata.get(key)
            if stored is None and key == _REPLICA_KEY:
                continue
            if stored is None:
                raise RuntimeError(f"{self._own.archive.url} was not created by ChronotileApdb.init_database")
            if not version.checkCompatibility(VersionTuple.fromString(stored)):
                raise IncompatibleVersionError(
                    f"{what} version {version} is incompatible with version {stored} of the database"
                )

    @classmethod
    def init_database(
        cls,
        url: str | os.PathLike[str],
        *,
        schema_file: str | None = None,
        ss_schema_file: str | None = None,
        read_sources_months: int | None = None,
        read_forced_sources_months: int | None = None,
        enable_replica: bool = False,
        replica_chunk_seconds: int | None = None,
        layout: Layout | None = None,
    ) -> ChronotileApdbConfig:
        """Create a database and its configuration.

        Parameters
        ----------
        url : `str`
            Archive URL, as in `chronotile.open`.
        schema_file, ss_schema_file : `str`, optional
            Felis files with the schema and with the solar-system tables; by default those of lsst-sdm-schemas.
        read_sources_months, read_forced_sources_months : `int`, optional
            Default history of reads, in months of 30 days.
        enable_replica : `bool`
            Whether to keep a replication feed.
        replica_chunk_seconds : `int`, optional
            Length of a replica chunk, in seconds.
        layout : `chronotile.apdb.Layout`, optional
            Layout of the tables in the archive.
        """
        given: dict[str, Any] = {
            "schema_file": schema_file, "ss_schema_file": ss_schema_file, "read_sources_months": read_sources_months,
            "read_forced_sources_months": read_forced_sources_months, "replica_chunk_seconds": replica_chunk_seconds,
        }  # fmt: skip
        config = ChronotileApdbConfig(
            url=os.fspath(url), enable_replica=enable_replica, **{k: v for k, v in given.items() if v is not None}
        )
        version = ApdbSchema(config.schema_file, config.ss_schema_file).schemaVersion()
        chosen = layout or Layout(feed=enable_replica, feed_chunk_s=config.replica_chunk_seconds)
        with own.create(config.url, own_schema(config), chosen) as made:
            metadata = ChronotileApdbMetadata(made.metadata)
            metadata.set(_SCHEMA_KEY, str(version), force=True)
            metadata.set(_CODE_KEY, str(VERSION), force=True)
            if enable_replica:
                metadata.set(_REPLICA_KEY, str(REPLICA_VERSION), force=True)
            metadata.set(_CONFIG_KEY, cls._frozen.to_json(config), force=True)
        return config

    @classmethod
    def apdbImplementationVersion(cls) -> VersionTuple:  # noqa: N802
        """Version of this implementation."""
        return VERSION

    def get_replica(self) -> ChronotileApdbReplica:
        """The replication interface of this database."""
        return ChronotileApdbReplica(self)

    def getConfig(self) -> ChronotileApdbConfig:  # noqa: N802
        # Docstring inherited.
        return self.config

    def tableDef(self, table: ApdbTables) -> Table | None:  # noqa: N802
        # Docstring inherited.
        return self._lsst_schema.tableSchemas.get(table)

    # ------------------------------------------------------------------ reading

    def getDiaObjects(self, region: lsst.sphgeom.Region) -> pandas.DataFrame:  # noqa: N802
        # Docstring inherited.
        rows = self._own.objects(region, columns=self.config.dia_object_columns or None)
        _LOG.debug("found %s DiaObjects", len(rows))
        return _pandas(rows.to_arrow())

    def getDiaSources(  # noqa: N802
        self,
        region: lsst.sphgeom.Region,
        object_ids: Iterable[int] | None,
        visit_time: astropy.time.Time,
        start_time: astropy.time.Time | None = None,
    ) -> pandas.DataFrame | None:
        # Docstring inherited.
        months = self.config.read_sources_months
        return self._history(self._own.sources, region, object_ids, visit_time, start_time, months)

    def getDiaForcedSources(  # noqa: N802
        self,
        region: lsst.sphgeom.Region,
        object_ids: Iterable[int] | None,
        visit_time: astropy.time.Time,
        start_time: astropy.time.Time | None = None,
    ) -> pandas.DataFrame | None:
        # Docstring inherited.
        months = self.config.read_forced_sources_months
        return self._history(self._own.forced_sources, region, object_ids, visit_time, start_time, months)

    def _history(
        self,
        read: Any,
        region: lsst.sphgeom.Region,
        object_ids: Iterable[int] | None,
        visit_time: astropy.time.Time,
        start_time: astropy.time.Time | None,
        months: int,
    ) -> pandas.DataFrame | None:
        if start_time is None and months == 0:
            return None
        start = visit_time.tai.mjd - 30 * months if start_time is None else start_time.tai.mjd
        # Sources of an object near the border of a region may be outside it.
        place = region if object_ids is None else dilated(region, _NEAR)
        rows = read(place, object_ids=object_ids, start=float(start))
        _LOG.debug("found %s rows", len(rows))
        return _pandas(rows.to_arrow())

    def getDiaObjectsForDedup(self, since: astropy.time.Time | None = None) -> pandas.DataFrame:  # noqa: N802
        # Docstring inherited.
        wanted = self.config.dia_object_columns_for_dedup
        columns = list(dict.fromkeys([names.OBJECT_ID, names.VALID_FROM, *wanted])) if wanted else None
        return _pandas(self._own.dedup_feed(since, columns=columns, versions=True).to_arrow())

    def getDiaSourcesForDiaObjects(  # noqa: N802
        self, objects: list[DiaObjectId], start_time: astropy.time.Time, max_dist_arcsec: float = 1.0
    ) -> pandas.DataFrame:
        # Docstring inherited.
        radius = max(max_dist_arcsec, 0.0) * values.ARCSECOND
        rows = self._own.sources_of(_object_table(objects), start=start_time, radius=radius)
        return _pandas(rows.to_arrow())

    def containsVisitDetector(  # noqa: N802
        self,
        visit: int,
        detector: int,
        region: lsst.sphgeom.Region | None = None,
        visit_time: astropy.time.Time | None = None,
    ) -> bool:
        # Docstring inherited.
        return self._own.contains(visit, detector)

    def countUnassociatedObjects(self) -> int:  # noqa: N802
        # Docstring inherited.
        return self._own.count_unassociated()

    # ------------------------------------------------------------------ storing and changing

    def store(
        self,
        visit_time: astropy.time.Time,
        objects: pandas.DataFrame,
        sources: pandas.DataFrame | None = None,
        forced_sources: pandas.DataFrame | None = None,
    ) -> None:
        # Docstring inherited.
        if len(objects) == 0:
            _LOG.debug("No objects to write to database.")
        self._own.store_again(visit_time, objects, sources, forced_sources)

    def reassignDiaSourcesToDiaObjects(  # noqa: N802
        self,
        idMap: Mapping[DiaSourceId, int],  # noqa: N803
        *,
        increment_nDiaSources: bool = True,  # noqa: N803
        decrement_nDiaSources: bool = True,  # noqa: N803
    ) -> None:
        # Docstring inherited.
        given = _source_table(idMap).append_column(names.OBJECT_ID, pa.array(list(idMap.values()), pa.int64()))
        with _lookup_errors("records are missing"):
            self._own.reassign(
                given, increment=increment_nDiaSources, decrement=decrement_nDiaSources, time=self._current_time()
            )

    def setValidityEnd(  # noqa: N802
        self,
        objects: list[DiaObjectId],
        validityEnd: astropy.time.Time,  # noqa: N803
        raise_on_missing_id: bool = False,
    ) -> int:
        # Docstring inherited.
        missing = "error" if raise_on_missing_id else "ignore"
        with _lookup_errors("DiaObjects are missing"):
            return self._own.close_validity(
                _object_table(objects), validityEnd, missing=missing, time=self._current_time()
            )

    def resetDedup(self, dedup_time: astropy.time.Time | None = None) -> None:  # noqa: N802
        # Docstring inherited.
        self._own.reset_dedup(self._current_time() if dedup_time is None else dedup_time)

    def reassignDiaSources(self, idMap: Mapping[int, int]) -> None:  # noqa: N802, N803
        # Docstring inherited.
        try:
            # The LSST writes 0 for a source without an object.
            self._own.reassociate(dict(idMap), time=self._current_time(), object_id=0)
        except InvalidInputError as error:
            if error.kind != "unknown-id":
                raise
            missing = ", ".join(map(str, error.details["ids"]))
            raise ValueError(f"These DiaSource IDs do not exist in the database: {missing}") from None

    def withdrawDiaSources(  # noqa: N802
        self,
        diaSourceIds: Iterable[DiaSourceId],  # noqa: N803
        *,
        timeWithdrawn: astropy.time.Time | None = None,  # noqa: N803
    ) -> None:
        # Docstring inherited.
        now = self._current_time()
        with _lookup_errors("DiaSources are missing"):
            self._own.withdraw_sources(_source_table(diaSourceIds), timeWithdrawn or now, time=now)

    def withdrawDiaForcedSources(  # noqa: N802
        self,
        diaForcedSourceIds: Iterable[DiaForcedSourceId],  # noqa: N803
        *,
        timeWithdrawn: astropy.time.Time | None = None,  # noqa: N803
    ) -> None:
        # Docstring inherited.
        now = self._current_time()
        with _lookup_errors("DiaForcedSources are missing"):
            self._own.withdraw_forced_sources(_forced_table(diaForcedSourceIds), timeWithdrawn or now, time=now)

    # ------------------------------------------------------------------ parts

    @property
    def schema(self) -> ApdbSchema:
        # Docstring inherited.
        return self._lsst_schema

    @property
    def metadata(self) -> ApdbMetadata:
        # Docstring inherited.
        return self._metadata

    @property
    def admin(self) -> ChronotileApdbAdmin:
        # Docstring inherited.
        return ChronotileApdbAdmin(self._own)


class ChronotileApdbAdmin(ApdbAdmin):
    """Administration: the partitions of records, and deleting records."""

    def __init__(self, database: own.Apdb) -> None:
        self._own = database

    def apdb_part(self, ra_deg: float, dec_deg: float) -> int:
        # Docstring inherited.
        layout = self._own.layout
        return int(pa.array(sky.pixel_index(layout.scheme, layout.level, [ra_deg], [dec_deg]))[0].as_py())

    def apdb_time_part(self, midpointMjdTai: float) -> int:  # noqa: N803
        # Docstring inherited.
        return int((midpointMjdTai - 40_587) // values.days(self._own.layout.window, "window"))

    def delete_records(
        self,
        objects: Iterable[DiaObjectLocator],
        sources: Iterable[DiaSourceLocator],
        forced_sources: Iterable[DiaForcedSourceLocator],
    ) -> None:
        # Docstring inherited.
        ids = {each.diaObjectId: each for each in objects}
        forced = [each for each in forced_sources if each.diaObjectId in ids]
        detections = [each for each in sources if each.diaObjectId in ids]
        # Objects are deleted last, so that a repeated call after a failure finds the remaining sources.
        self._own.delete(names.FORCED, _forced_table(forced))
        self._own.delete(names.SOURCE, _source_table(detections))
        self._own.delete(names.OBJECT, _object_table(ids.values()))


class ChronotileTableData(ApdbTableData):
    """Rows of one table from replica chunks."""

    def __init__(self, table: Any, types: Sequence[tuple[str, felis.datamodel.DataType]]) -> None:
        self._table = table
        self._types = types

    def column_names(self) -> Sequence[str]:
        # Docstring inherited.
        return tuple(name for name, _ in self._types)

    def column_defs(self) -> Sequence[tuple[str, felis.datamodel.DataType]]:
        # Docstring inherited.
        return self._types

    def rows(self) -> Collection[tuple[Any, ...]]:
        # Docstring inherited.
        return list(zip(*(column.to_pylist() for column in self._table.columns), strict=True))

    def to_arrow(self) -> Any:
        """The rows as a `pyarrow.Table`; faster than `rows`, which builds tuples."""
        return self._table


class ChronotileApdbReplica(ApdbReplica):
    """Replication interface: changes of a database in chunks. Rows are read from the tables themselves; none is stored
    twice.
    """

    def __init__(self, database: ChronotileApdb) -> None:
        self._apdb = database
        self._feed = feed.Feed(database._own) if database._own.layout.feed else None

    @classmethod
    def apdbReplicaImplementationVersion(cls) -> VersionTuple:  # noqa: N802
        # Docstring inherited.
        return REPLICA_VERSION

    def schemaVersion(self) -> VersionTuple:  # noqa: N802
        # Docstring inherited.
        return VersionTuple.fromString(cast(str, self._apdb.metadata.get(_SCHEMA_KEY)))

    def getReplicaChunks(self) -> list[ReplicaChunk] | None:  # noqa: N802
        # Docstring inherited.
        if self._feed is None:
            return None
        return [
            ReplicaChunk(
                id=chunk.id,
                last_update_time=astropy.time.Time(chunk.last_mjd_tai, format="mjd", scale="tai"),
                unique_id=chunk.unique_id,
            )
            for chunk in self._feed.chunks()
        ]

    def deleteReplicaChunks(self, chunks: Iterable[int]) -> None:  # noqa: N802
        # Docstring inherited.
        self._enabled().forget(chunks)

    def getTableDataChunks(self, table: ApdbTables, chunks: Iterable[int]) -> ApdbTableData:  # noqa: N802
        # Docstring inherited.
        source = self._enabled()
        if table.value not in names.MAIN_TABLES:
            raise ValueError(f"Table {table} does not support replica chunks.")
        definition = self._apdb.tableDef(table)
        assert definition is not None, "every schema contains the three main tables"
        types = [(column.name, cast(felis.datamodel.DataType, column.datatype)) for column in definition.columns]
        first = ("apdb_replica_chunk", felis.datamodel.DataType.long)
        return ChronotileTableData(source.rows(table.value, chunks), (first, *types))

    def getUpdateRecordChunks(self, chunks: Iterable[int]) -> Sequence[ApdbUpdateRecord]:  # noqa: N802
        # Docstring inherited.
        columns = self._enabled().changes(chunks).to_pylist()
        records = []
        for row in columns:
            kind = ApdbUpdateRecord._update_types[row["kind"]]
            fields = {name: row[name] for name in _fields(kind) if name in row}
            records.append(kind(**fields))
        return sorted(records)

    def _enabled(self) -> feed.Feed:
        if self._feed is None:
            raise ValueError("APDB is not configured for replication")
        return self._feed

    def store_update_records(self, records: Sequence[ApdbUpdateRecord], chunk: ReplicaChunk) -> None:
        """Add updates that were made elsewhere to a chunk; for tests and for copying from other databases."""
        target = self._enabled()
        for record in records:
            given = {name: [getattr(record, name)] for name in _fields(type(record))}
            order = given.pop("update_order")[0]
            time_ns = given.pop("update_time_ns")[0]
            target.add_changes(given, record.update_type, time_ns, chunk.id, order)


def _fields(kind: type[ApdbUpdateRecord]) -> list[str]:
    import dataclasses

    return [field.name for field in dataclasses.fields(kind)]


@contextmanager
def _lookup_errors(what: str) -> Iterator[None]:
    """Convert errors about missing records to the `LookupError` of the interface."""
    try:
        yield
    except InvalidInputError as error:
        if error.kind != "unknown-id":
            raise
        raise LookupError(f"Some {what}: {error.details['ids']}") from error


def own_schema(config: ApdbConfig) -> Schema:
    """Schema from the files of a configuration; solar-system tables missing in the first come from the second."""
    schema = Schema.parse(ResourcePath(config.schema_file).read().decode(), config.schema_file)
    wanted = ["SSObject", "SSSource"]
    if config.ss_schema_file and not all(name in schema for name in wanted):
        more = Schema.parse(ResourcePath(config.ss_schema_file).read().decode(), config.ss_schema_file, check=False)
        return schema.with_tables([more[name] for name in wanted if name not in schema])
    return schema


def dilated(region: lsst.sphgeom.Region, margin: lsst.sphgeom.Angle) -> lsst.sphgeom.Region:
    """A region that contains all places within a small angle of a region, and few others.

    The edges of a convex polygon of less than a steradian move outwards; any other region becomes a circle.
    """
    circle = region.getBoundingCircle()
    if not isinstance(region, lsst.sphgeom.ConvexPolygon) or circle.getOpeningAngle() > _LARGE:
        return circle.dilatedBy(margin)
    corners = np.array([[v.x(), v.y(), v.z()] for v in region.getVertices()])
    # Normals of the edge that begins at each corner, and of the edge that ends at it.
    after = np.cross(corners, np.roll(corners, -1, axis=0))
    after /= np.linalg.norm(after, axis=1, keepdims=True)
    before = np.roll(after, 1, axis=0)
    openness = 1 + np.sum(before * after, axis=1, keepdims=True)
    if openness.min() < _SHARP:
        return circle.dilatedBy(margin)
    # Move each corner to where the edges meet after both moved by the margin; 1% more covers the sphere's curvature.
    moved = corners - 1.01 * margin.asRadians() * (before + after) / openness
    return lsst.sphgeom.ConvexPolygon.convexHull([lsst.sphgeom.UnitVector3d(*corner) for corner in moved.tolist()])


def _pandas(table: Any) -> pandas.DataFrame:
    """A DataFrame with the types that the LSST pipeline expects: nullable integers and booleans, text as objects."""
    columns = {field.name: _pandas_column(table[place]) for place, field in enumerate(table.schema)}
    # Copy: the caller may modify the frame, but Arrow's memory is read-only.
    return pandas.DataFrame(columns, copy=True)


def _pandas_column(column: Any) -> Any:
    """Convert a column to what pandas stores; for a nullable column, ``to_pandas`` takes longer than reading it."""
    # `combine_chunks` would copy even a single chunk.
    found, kind = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks(), column.type
    if pa.types.is_floating(kind):
        return found.to_numpy(zero_copy_only=False)
    if pa.types.is_string(kind):
        return pandas.Series(found.to_numpy(zero_copy_only=False), dtype=object)
    is_bool = pa.types.is_boolean(kind)
    if not is_bool and kind not in _INTEGERS:
        return found.to_pandas()
    mask = np.zeros(len(found), bool)
    if found.null_count:
        mask = found.is_null().to_numpy(zero_copy_only=False)
        found = found.fill_null(False if is_bool else 0)
    array = pandas.arrays.BooleanArray if is_bool else pandas.arrays.IntegerArray
    return array(found.to_numpy(zero_copy_only=False), mask)


def _columns(records: Iterable[Any], kinds: Mapping[str, Any]) -> Any:
    items = list(records)
    return pa.table({name: pa.array([getattr(item, name) for item in items], kind) for name, kind in kinds.items()})


def _object_table(objects: Iterable[Any]) -> Any:
    return _columns(objects, {names.OBJECT_ID: pa.int64(), names.RA: pa.float64(), names.DEC: pa.float64()})


def _source_table(sources: Iterable[Any]) -> Any:
    kinds = {names.SOURCE_ID: pa.int64(), names.RA: pa.float64(), names.DEC: pa.float64(), names.TIME: pa.float64()}
    return _columns(sources, kinds)


def _forced_table(sources: Iterable[Any]) -> Any:
    kinds = {
        names.OBJECT_ID: pa.int64(), names.VISIT: pa.int64(), names.DETECTOR: pa.int32(), names.RA: pa.float64(),
        names.DEC: pa.float64(), names.TIME: pa.float64(),
    }  # fmt: skip
    return _columns(sources, kinds)


# ---------------------------------------------------------------------- registration with the LSST's factories


def register() -> None:
    """Register with ``Apdb.from_config``, ``Apdb.from_uri`` and ``ApdbReplica.from_config``.

    Called when the module is imported; calling it again has no effect.
    """
    # The interface has no registration hook: replace the factories in the modules that call them.
    places: list[tuple[Any, str]] = [
        (their_apdb, "make_apdb"),
        (their_replicas, "make_apdb_replica"),
        (their_config, "config_type_for_name"),
    ]
    theirs, theirs_replica, theirs_type = (getattr(module, name) for module, name in places)
    if hasattr(theirs, "chronotile"):
        return

    def make_apdb(config: ApdbConfig) -> Apdb:
        return ChronotileApdb(config) if isinstance(config, ChronotileApdbConfig) else cast(Apdb, theirs(config))

    def make_apdb_replica(config: ApdbConfig) -> ApdbReplica:
        if isinstance(config, ChronotileApdbConfig):
            return ChronotileApdb(config).get_replica()
        return cast(ApdbReplica, theirs_replica(config))

    def config_type_for_name(type_name: str) -> type[ApdbConfig]:
        if type_name == ChronotileApdbConfig._implementation_type:
            return ChronotileApdbConfig
        return cast(type[ApdbConfig], theirs_type(type_name))

    for (module, name), ours in zip(places, (make_apdb, make_apdb_replica, config_type_for_name), strict=True):
        ours.chronotile = True  # type: ignore[attr-defined]
        setattr(module, name, ours)


register()
