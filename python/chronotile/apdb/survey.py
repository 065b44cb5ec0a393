"""Create, open and migrate an alert production database."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from chronotile.apdb import layout as layouts
from chronotile.apdb import names
from chronotile.apdb.cold import ColdStorage
from chronotile.apdb.density import Density
from chronotile.apdb.layout import Layout
from chronotile.apdb.maintenance import Maintenance
from chronotile.apdb.metadata import Metadata
from chronotile.apdb.reads import Footprint, Reads
from chronotile.apdb.schema import Migration, Schema
from chronotile.apdb.storing import StoreReport, Stores
from chronotile.apdb.tables import LAYOUT_KEY, SCHEMA_KEY, SurveyTables
from chronotile.apdb.updates import Updates
from chronotile.archive import Archive
from chronotile.archive import open as open_archive
from chronotile.closing import Closing
from chronotile.dataset import Dataset
from chronotile.errors import InvalidInputError

__all__ = ["Apdb", "Footprint", "StoreReport", "create", "open"]

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def _of(
    part: str, method: Callable[Concatenate[Any, _Parameters], _Result]
) -> Callable[Concatenate[Apdb, _Parameters], _Result]:
    """Expose a method of a part of the database as a method of the database."""

    @functools.wraps(method)
    def call(self: Apdb, /, *arguments: _Parameters.args, **named: _Parameters.kwargs) -> _Result:
        return method(getattr(self, part), *arguments, **named)

    return call


def create(
    url: str | os.PathLike[str] | Archive,
    schema: str | os.PathLike[str] | Schema | None = None,
    layout: Layout | None = None,
    *,
    density: Density | None = None,
    **choices: Any,
) -> Apdb:
    """Create a database, or open the existing one if schema and layout are the same.

    Parameters
    ----------
    url : str, path or Archive
        Archive, as for :func:`chronotile.open`.
    schema : path, "lsst", "small" or Schema
        As for :meth:`Schema.read`: by default the APDB schema of the LSST.
    layout : Layout, optional
        Layout of the tables; its fields may also be given by name: ``create(url, level=10, feed=True)``.
    density : Density, optional
        Expected density of the survey: the layout gets smaller cells where needed to stay within ``cell_bytes_max``.

    Raises
    ------
    InvalidInputError
        The schema is incomplete, the database exists with another schema or layout, or no layout suits the density.
    """
    wanted, chosen = Schema.read(schema), layout or Layout(**choices)
    if density is not None:
        fitted = density.layout(wanted, chosen)
        # A file has no partitions, so the index of objects cannot overfill one.
        index = fitted.object_index_partitions if _is_cluster(url) else chosen.object_index_partitions
        chosen = dataclasses.replace(fitted, object_index_partitions=index)
    if not isinstance(url, Archive):
        _check_in_memory(chosen)
    archive = url if isinstance(url, Archive) else open_archive(url)
    if names.METADATA in archive and Metadata(archive[names.METADATA]).get(LAYOUT_KEY) is not None:
        found = Apdb(archive)
        if found.layout != chosen or not found.schema.migration_to(wanted).empty:
            raise InvalidInputError(
                f"{archive.url} holds a database with another layout or schema: open it instead, or migrate it",
                kind="invalid-definition",
            )
        return found
    _make(archive, wanted, chosen)
    return Apdb(archive)


def _is_cluster(url: str | os.PathLike[str] | Archive) -> bool:
    return (url.url if isinstance(url, Archive) else str(url)).startswith("cassandra:")


def _make(archive: Archive, schema: Schema, layout: Layout) -> None:
    layouts.create_own(archive, layout)
    metadata = Metadata(archive[names.METADATA])
    for table in schema.stored_tables:
        layouts.create_table(archive, table, layout)
    metadata.set(SCHEMA_KEY, schema.to_json(), force=True)
    # Write this key last: without it, a database counts as unfinished and is created again.
    metadata.set(LAYOUT_KEY, layout.to_json(), force=True)


def _check_in_memory(layout: Layout) -> None:
    """Create the database in memory first, so that an invalid layout leaves no file or keyspace behind."""
    with open_archive("memory:") as archive:
        _make(archive, Schema.read("small"), dataclasses.replace(layout, storage="chunks"))


def open(url: str | os.PathLike[str] | Archive, *, read_only: bool = False, timeout_s: int = 60) -> Apdb:
    """Open a database.

    Raises
    ------
    ArchiveNotFoundError, DatasetNotFoundError
        The archive does not exist, or holds no database.
    """
    if isinstance(url, Archive):
        return Apdb(url)
    return Apdb(open_archive(url, create=False, read_only=read_only, timeout_s=timeout_s))


class Apdb(Closing):
    """An alert production database in an archive. Returned by :func:`create` and :func:`open`; a context manager.
    Thread-safe; each process opens its own. Positions are in degrees. Times given as numbers are MJD in TAI; other
    times carry a scale or are UTC. Regions are those of :mod:`chronotile.sky` or of ``lsst.sphgeom``.
    """

    def __init__(self, archive: Archive) -> None:
        self._tables = tables = SurveyTables(archive)
        self._cold = ColdStorage(tables)
        self._stores, self._reads = Stores(tables), Reads(tables, self._cold)
        self._updates = Updates(tables, self._cold)
        self._maintenance = Maintenance(tables, self._cold, self._updates)

    def __repr__(self) -> str:
        return f"<Apdb {self._tables.archive.url}: {self._tables.schema.name} {self._tables.schema.version}>"

    def close(self) -> None:
        """Close the archive."""
        self._tables.archive.close()

    @property
    def archive(self) -> Archive:
        """The archive that holds the database."""
        return self._tables.archive

    @property
    def schema(self) -> Schema:
        """Schema of the tables, with units and descriptions."""
        return self._tables.schema

    @property
    def layout(self) -> Layout:
        """Layout of the tables in the archive."""
        return self._tables.layout

    @property
    def metadata(self) -> Metadata:
        """Key-value metadata."""
        return self._tables.metadata

    def migrate(self, schema: str | os.PathLike[str] | Schema, *, dry_run: bool = False) -> Migration:
        """Migrate to another schema in place: tables and columns can be added. The call may be repeated.

        Raises
        ------
        InvalidInputError
            The migration is impossible; the message lists all reasons. Nothing was changed.
        """
        wanted = Schema.read(schema)
        plan = self._tables.schema.migration_to(wanted)
        if dry_run:
            return plan
        layouts.migrate(self._tables.archive, self._tables.schema, wanted, self._tables.layout)
        self._tables.metadata.set(SCHEMA_KEY, wanted.to_json(), force=True)
        self._tables.use_schema(wanted)
        return plan

    def dataset(self, table: str) -> Dataset:
        """Dataset of a table, for operations that this class does not provide."""
        return self._tables.dataset(table)

    def cells_of(self, rows: Any, margin_deg: float = 0.0) -> list[int]:
        """Pixels, sorted, that contain a row of a table or any point within `margin_deg` of one."""
        return self._tables.cells_of(rows, margin_deg)

    # storing
    store = _of("_stores", Stores.store)
    store_again = _of("_stores", Stores.store_again)
    contains = _of("_stores", Stores.contains)
    visits = _of("_stores", Stores.visits)
    store_table = _of("_stores", Stores.store_table)
    table = _of("_stores", Stores.table)

    # reading
    objects = _of("_reads", Reads.objects)
    sources = _of("_reads", Reads.sources)
    forced_sources = _of("_reads", Reads.forced_sources)
    footprint = _of("_reads", Reads.footprint)
    cone = _of("_reads", Reads.cone)
    object_history = _of("_reads", Reads.object_history)
    light_curve = _of("_reads", Reads.light_curve)
    light_curves = _of("_reads", Reads.light_curves)
    night = _of("_reads", Reads.night)
    scan = _of("_reads", Reads.scan)

    # changing stored records
    reassociate = _of("_updates", Updates.reassociate)
    reassign = _of("_updates", Updates.reassign)
    close_validity = _of("_updates", Updates.close_validity)
    withdraw_sources = _of("_updates", Updates.withdraw_sources)
    withdraw_forced_sources = _of("_updates", Updates.withdraw_forced_sources)
    delete = _of("_updates", Updates.delete)
    dedup_feed = _of("_updates", Updates.dedup_feed)
    reset_dedup = _of("_updates", Updates.reset_dedup)
    sources_of = _of("_updates", Updates.sources_of)
    count_unassociated = _of("_updates", Updates.count_unassociated)

    # cold storage
    archive_before = _of("_cold", ColdStorage.archive_before)
    archived = _of("_cold", ColdStorage.archived)
    restore = _of("_cold", ColdStorage.restore)

    # maintenance
    maintain = _of("_maintenance", Maintenance.maintain)
    statistics = _of("_maintenance", Maintenance.statistics)
    crowded = _of("_maintenance", Maintenance.crowded)
    prepare = _of("_maintenance", Maintenance.prepare)
    info = _of("_maintenance", Maintenance.info)
    verify = _of("_maintenance", Maintenance.verify)
    retire = _of("_maintenance", Maintenance.retire)
    remove_visit = _of("_maintenance", Maintenance.remove_visit)
    remove_night = _of("_maintenance", Maintenance.remove_night)
