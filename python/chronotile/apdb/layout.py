"""Layout of a survey's tables in an archive."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from chronotile import cells, times
from chronotile.apdb import names, values
from chronotile.apdb.schema import Column, Schema, Table
from chronotile.archive import Archive
from chronotile.dataset import Dataset
from chronotile.errors import InvalidInputError

__all__ = ["Layout"]

_SLICE_DAYS, _OBJECT_SLICE_DAYS = 120, 360
_INDEX_PARTITIONS_MAX = 256


@dataclass(frozen=True)
class Layout:
    """Storage settings of a database, fixed at creation.

    Attributes
    ----------
    scheme, level : str, int
        Pixelization of the sky: mq3c, q3c, htm or healpix, and its level. A pixel about the size of a detector works
        best; mq3c level 9 has pixels of 0.18 degrees.
    window : str
        Length of a window of sources and forced sources. Maintenance merges the rows of a pixel and window into one
        chunk, so a read of twelve months is faster with a few long windows than with many short ones.
    object_window : str
        Length of a window of object versions. The newest version of an object may be old, so reads scan all windows:
        longer windows are faster.
    slice, object_slice : str or int, optional
        Length of a slice, or its number of windows: the unit that is retired or archived. By default as many windows as
        fit in 120 days, or 360 days for objects. Each partition of a cluster belongs to one slice, and holds sources
        and forced sources, so a read of twelve months touches three or four per pixel, and a partition of the published
        survey stays below 10 MiB.
    partition_levels, object_partition_levels : int
        Number of levels by which a cluster's partition is coarser than a pixel: at 2, sixteen pixels share a partition;
        at 1, four. A footprint of several pixels is then read from few partitions. Ignored by other engines and with
        `storage` ``rows``.
    history_days : float
        Default history of a footprint read, in days.
    feed : bool
        Whether to keep a replication feed.
    feed_chunk_s : int
        Length of a replica chunk, in seconds.
    storage : {"chunks", "rows"}
        Storage of the schema's tables (the `layout` of their datasets). ``rows``, on a cluster only, stores one CQL row
        per record, for tools that read the cluster's tables.
    object_moves_arcsec : float
        Largest distance between two versions of an object, whose position is refined over time: reads of a region also
        search this far around it. ``dataset("DiaObject").set_moves`` changes it.
    object_index_partitions : int
        Number of partitions, in each object slice of a cluster, over which the index from object ids to pixels is
        spread. Every store writes to all of them. The index takes 3 to 9 bytes for each object in each detector-visit,
        so 10 MiB hold some million of these. At 0, the database keeps no index, and reads by object id scan the sky.
    cell_bytes_max : int
        Limit for the bytes of a partition in one slice. A layout derived from a :class:`~chronotile.apdb.Density`
        respects it, and maintenance reports partitions that exceed it.
    """

    scheme: str = "mq3c"
    level: int = 9
    window: str = "120d"
    object_window: str = "360d"
    slice: str | int | None = None
    object_slice: str | int | None = None
    partition_levels: int = 2
    object_partition_levels: int = 1
    history_days: float = 360.0
    feed: bool = False
    feed_chunk_s: int = 600
    storage: str = "chunks"
    object_moves_arcsec: float = 5.0
    object_index_partitions: int = 1
    cell_bytes_max: int = 10 * 2**20

    def __post_init__(self) -> None:
        if self.slice is None:
            object.__setattr__(self, "slice", _windows_in(_SLICE_DAYS, self.window))
        if self.object_slice is None:
            object.__setattr__(self, "object_slice", _windows_in(_OBJECT_SLICE_DAYS, self.object_window))
        if self.storage not in ("chunks", "rows"):
            raise InvalidInputError(f"unknown storage {self.storage!r}: use chunks or rows", kind="invalid-definition")
        if not (0 <= self.partition_levels <= 4 and 0 <= self.object_partition_levels <= 4):
            raise InvalidInputError(
                f"partition_levels={self.partition_levels} and "
                f"object_partition_levels={self.object_partition_levels} are out of range: use 0 to 4",
                kind="invalid-definition",
            )
        if not 0 <= self.object_index_partitions <= _INDEX_PARTITIONS_MAX:
            raise InvalidInputError(
                f"object_index_partitions={self.object_index_partitions} is out of range: use 0 to "
                f"{_INDEX_PARTITIONS_MAX}",
                kind="invalid-definition",
            )

    @property
    def shared(self) -> bool:
        """Whether sources and forced sources share their slices, and so a cluster's partitions."""
        return self.storage == "chunks"

    def partition_level(self, table: str) -> int:
        """Pixel level of a table's partitions on a cluster."""
        coarser = self.object_partition_levels if table == names.OBJECT else self.partition_levels
        return max(0, self.level - coarser) if self.storage == "chunks" else self.level

    def partition_cells(self, table: str) -> int:
        """Number of a table's pixels in a partition."""
        return int(4 ** (self.level - self.partition_level(table)))

    def to_json(self) -> str:
        """Serialize as JSON text."""
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> Layout:
        """Parse text from :meth:`to_json`."""
        return Layout(**json.loads(text))


def _windows_in(days: float, window: str) -> int:
    """Number of whole windows in `days`, at least one."""
    return max(1, int(days // values.days(window, "window")))


def create_table(archive: Archive, table: Table, layout: Layout) -> Dataset:
    """Create the dataset of a table."""
    name = names.dataset_name(table.name)
    place = cells.sky(names.RA, names.DEC, scheme=layout.scheme, level=layout.level)
    if table.name == names.OBJECT:
        return archive.create(
            name, schema=_with(table, {names.VERSION: pa.int64()}), cell=place,
            time=times.mjd(names.VALID_FROM, scale="tai"),
            window=layout.object_window, slice=layout.object_slice, id=names.OBJECT_ID, merge="latest",
            version=names.VERSION, layout=layout.storage, partition_cells=layout.partition_cells(table.name),
            moves=layout.object_moves_arcsec * values.ARCSECOND, group=names.GROUP, exist_ok=True,
        )  # fmt: skip
    if table.name in (names.SOURCE, names.FORCED):
        key = [names.SOURCE_ID]
        if table.name == names.FORCED:
            key = [names.OBJECT_ID, names.VISIT, names.DETECTOR]
        return archive.create(
            name, schema=_with(table, {names.UPDATE: pa.int64()}), cell=place,
            time=times.mjd(names.TIME, scale="tai"), window=layout.window, slice=layout.slice, id=key, merge="latest",
            version=names.UPDATE, layout=layout.storage, partition_cells=layout.partition_cells(table.name),
            group=names.GROUP,
            slices_of=names.dataset_name(names.SOURCE) if table.name == names.FORCED and layout.shared else None,
            exist_ok=True,
        )  # fmt: skip
    rule = cells.hash(*table.key) if table.key else cells.single()
    return archive.create(
        name, schema=_with(table, {names.STORED: pa.timestamp("us", "UTC")}), cell=rule, time=names.STORED,
        window="360d", slice=1, id=list(table.key), merge="latest" if table.key else "append", layout=layout.storage,
        exist_ok=True,
    )  # fmt: skip


def _with(table: Table, hidden: dict[str, Any]) -> Any:
    """Arrow schema of a table, followed by the archive's own columns. Key columns are not nullable."""
    fields = [
        column.arrow.with_nullable(False) if column.name in table.key else column.arrow for column in table.columns
    ]
    fields += [pa.field(name, kind, nullable=False) for name, kind in hidden.items()]
    return pa.schema(fields, table.arrow.metadata)


_VISIT_COLUMNS = [
    pa.field("key", pa.string(), False),
    pa.field("visit", pa.int64(), False),
    pa.field("detector", pa.int32(), False),
    pa.field("visit_mjd_tai", pa.float64(), False),
    pa.field("objects", pa.int32(), False),
    pa.field("sources", pa.int32(), False),
    pa.field("forced_sources", pa.int32(), False),
    pa.field("time_first", pa.float64()),
    pa.field("time_last", pa.float64()),
    pa.field("object_cells", pa.list_(pa.int64())),
    pa.field("source_cells", pa.list_(pa.int64())),
    pa.field("forced_cells", pa.list_(pa.int64())),
]
VISIT_SCHEMA = pa.schema(_VISIT_COLUMNS)
FEED_SCHEMA = pa.schema([*_VISIT_COLUMNS, pa.field("chunk", pa.int64(), False), pa.field("done", pa.bool_(), False)])
UPDATE_SCHEMA = pa.schema(
    [
        pa.field("operation", pa.string(), False),
        pa.field("update_order", pa.int32(), False),
        pa.field("update_time_ns", pa.int64(), False),
        pa.field("update_mjd_tai", pa.float64(), False),
        pa.field("kind", pa.string(), False),
        pa.field(names.SOURCE_ID, pa.int64()),
        pa.field(names.OBJECT_ID, pa.int64()),
        pa.field(names.VISIT, pa.int64()),
        pa.field(names.DETECTOR, pa.int32()),
        pa.field(names.RA, pa.float64()),
        pa.field(names.DEC, pa.float64()),
        pa.field(names.TIME, pa.float64()),
        pa.field(names.SS_OBJECT_ID, pa.int64()),
        pa.field(names.REASSOCIATED, pa.float64()),
        pa.field(names.WITHDRAWN, pa.float64()),
        pa.field(names.VALID_TO, pa.float64()),
        pa.field(names.SOURCE_COUNT, pa.int32()),
        pa.field("chunk", pa.int64(), False),
        pa.field("done", pa.bool_(), False),
    ]
)
UPDATES = "apdb_updates"
OBJECT_INDEX_SCHEMA = pa.schema(
    [
        pa.field(names.OBJECT_ID, pa.int64(), False),
        pa.field(names.PIXEL, pa.int64(), False),
        pa.field(names.INDEX_TIME, pa.float64(), False),
    ]
)


def create_own(archive: Archive, layout: Layout) -> None:
    """Create the front end's own datasets."""
    archive.create(
        names.METADATA, schema={"key": "utf8", "value": "utf8", "updated": "timestamp[us, UTC]"}, cell=cells.single(),
        time="updated", window="3650d", slice=1, id="key", merge="latest", exist_ok=True,
    )  # fmt: skip
    archive.create(
        names.VISITS, schema=VISIT_SCHEMA, cell=cells.id_bucket("visit", 8),
        time=times.mjd("visit_mjd_tai", scale="tai"),
        window="1d", slice="360d", id="key", merge="latest", group=names.GROUP, exist_ok=True,
    )  # fmt: skip
    if layout.object_index_partitions:
        archive.create(
            names.OBJECT_INDEX, schema=OBJECT_INDEX_SCHEMA,
            cell=cells.hash(names.OBJECT_ID, buckets=layout.object_index_partitions),
            time=times.mjd(names.INDEX_TIME, scale="tai"), window=layout.object_window, slice=layout.object_slice,
            id=[names.OBJECT_ID, names.PIXEL], merge="latest", group=names.GROUP, exist_ok=True,
        )  # fmt: skip
    if layout.feed:
        archive.create(
            names.FEED, schema=FEED_SCHEMA, cell=cells.id_bucket("chunk", 6 * layout.feed_chunk_s),
            time=times.mjd("visit_mjd_tai", scale="tai"), window="1d", slice="360d", id="key", merge="latest",
            group=names.GROUP, exist_ok=True,
        )  # fmt: skip
        archive.create(
            UPDATES, schema=UPDATE_SCHEMA, cell=cells.id_bucket("chunk", 6 * layout.feed_chunk_s),
            time=times.mjd("update_mjd_tai", scale="tai"), window="1d", slice="360d", id=["operation", "update_order"],
            merge="latest", group=names.GROUP, exist_ok=True,
        )  # fmt: skip


def migrate(archive: Archive, stored: Schema, wanted: Schema, layout: Layout) -> None:
    """Create the tables and columns that `wanted` has and `stored` lacks. The call may be repeated.

    Raises
    ------
    InvalidInputError
        The stored schema cannot be migrated to `wanted`; the message lists all reasons. Nothing was changed.
    """
    plan = stored.migration_to(wanted)
    if plan.refused:
        raise InvalidInputError(
            f"cannot migrate the schema to {wanted.name} {wanted.version}: {'; '.join(plan.refused)}",
            kind="invalid-definition",
        )
    for name in plan.tables:
        create_table(archive, wanted[name], layout)
    for name, columns in plan.columns.items():
        dataset = archive[names.dataset_name(name)]
        # An interrupted migration may have added some of the columns.
        missing: list[Column] = [wanted[name][column] for column in columns if column not in dataset.column_types]
        if missing:
            defaults = {column.name: column.default for column in missing if column.default is not None}
            dataset.add_columns(pa.schema([column.arrow for column in missing]), defaults)
