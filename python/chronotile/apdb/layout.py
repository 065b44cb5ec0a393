"""How the tables of a survey lie in an archive."""

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

_SLICE_DAYS, _OBJECT_SLICE_DAYS, _MONTH_DAYS = 240, 360, 30


@dataclass(frozen=True)
class Layout:
    """Choices made when a database is created; they stay.

    Attributes
    ----------
    scheme, level : str, int
        Pixelization of the sky: mq3c, q3c, htm or healpix, and its level. A pixel of about the size of a detector
        serves best; mq3c 9 has 0.18 degrees.
    window : str
        Length of a window of sources and forced sources. Maintenance makes the rows of a pixel and window one
        chunk: a few long ones cost a read of twelve months less than many short ones.
    object_window : str
        Length of a window of object versions. The newest version of an object may be old, so that reads go through
        all windows; long ones are fewer.
    slice, object_slice : str or int, optional
        Length of a slice, or its windows: the unit that is retired or archived. By default the whole windows that fit
        in 240 days, of objects in 360: a cluster's partitions are of one slice, so that a read of twelve months asks
        for those of two or three, and a partition of the published survey stays below 10 MiB.
    partition_levels, object_partition_levels : int
        Levels by which a partition of a cluster is coarser than a pixel: with 2, sixteen pixels of sources share one,
        and with 1 four pixels of objects. A footprint of several pixels then is read from few partitions. Other engines
        have no partitions, nor has `storage` ``rows`` such.
    history_days : float
        How far back a footprint is read by default.
    feed : bool
        Whether changes are listed for replication.
    feed_chunk_s : int
        Seconds of visits in one chunk of that list.
    storage : {"chunks", "rows"}
        How the engine keeps the tables of the schema, the `layout` of their datasets: ``rows``, on a cluster only, is
        one CQL row a record, for tools that read the cluster's tables.
    object_moves_arcsec : float
        How far apart two versions of an object may lie, as its position becomes better known: reads of a region look so
        far around it. Databases made before this was kept have 0; ``dataset("DiaObject").set_moves`` sets it there.
    cell_bytes_max : int
        Bytes that the pixels of a partition may have in one slice. A layout that follows from a
        :class:`~chronotile.apdb.Density` keeps to it, and maintenance says where it is passed.
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
    cell_bytes_max: int = 10 * 2**20

    def __post_init__(self) -> None:
        if self.slice is None:
            object.__setattr__(self, "slice", _windows_in(_SLICE_DAYS, self.window))
        if self.object_slice is None:
            object.__setattr__(self, "object_slice", _windows_in(_OBJECT_SLICE_DAYS, self.object_window))
        if self.storage not in ("chunks", "rows"):
            raise InvalidInputError(f"storage is {self.storage!r}: use chunks or rows", kind="invalid-definition")
        if not (0 <= self.partition_levels <= 4 and 0 <= self.object_partition_levels <= 4):
            raise InvalidInputError(
                f"a partition is {self.partition_levels} and {self.object_partition_levels} levels coarser than a "
                "pixel: use 0 to 4",
                kind="invalid-definition",
            )

    def partition_level(self, table: str) -> int:
        """The level of the pixels that the partitions of a table are on a cluster."""
        coarser = self.object_partition_levels if table == names.OBJECT else self.partition_levels
        return max(0, self.level - coarser) if self.storage == "chunks" else self.level

    def partition_cells(self, table: str) -> int:
        """Pixels of a table in a partition."""
        return int(4 ** (self.level - self.partition_level(table)))

    def to_json(self) -> str:
        """As JSON text."""
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> Layout:
        """From the text that :meth:`to_json` made."""
        fields = json.loads(text)
        # Databases that were made before pixels could share a partition have one in each, and slices of a month.
        before: dict[str, Any] = {"partition_levels": 0, "object_partition_levels": 0, "object_moves_arcsec": 0.0}
        if fields.get("slice") is None:
            fields["slice"] = _windows_in(_MONTH_DAYS, fields["window"])
        return Layout(**{**before, **fields})


def _windows_in(days: float, window: str) -> int:
    """Whole windows in so many days, one at least."""
    return max(1, int(days // values.days(window, "window")))


def create_table(archive: Archive, table: Table, layout: Layout) -> Dataset:
    """Make the dataset of a table."""
    name = names.dataset_name(table.name)
    place = cells.sky(names.RA, names.DEC, scheme=layout.scheme, level=layout.level)
    if table.name == names.OBJECT:
        hidden = {names.VERSION: pa.int64(), names.STORED_VISIT: pa.int64(), names.STORED_DETECTOR: pa.int32()}
        return archive.create(
            name, schema=_with(table, hidden), cell=place, time=times.mjd(names.VALID_FROM, scale="tai"),
            window=layout.object_window, slice=layout.object_slice, id=names.OBJECT_ID, merge="latest",
            version=names.VERSION, layout=layout.storage, partition_cells=layout.partition_cells(table.name),
            moves=layout.object_moves_arcsec * values.ARCSECOND, exist_ok=True,
        )  # fmt: skip
    if table.name in (names.SOURCE, names.FORCED):
        key = [names.SOURCE_ID]
        if table.name == names.FORCED:
            key = [names.OBJECT_ID, names.VISIT, names.DETECTOR]
        return archive.create(
            name, schema=_with(table, {names.UPDATE: pa.int64()}), cell=place,
            time=times.mjd(names.TIME, scale="tai"), window=layout.window, slice=layout.slice, id=key, merge="latest",
            version=names.UPDATE, layout=layout.storage, partition_cells=layout.partition_cells(table.name),
            exist_ok=True,
        )  # fmt: skip
    rule = cells.hash(*table.key) if table.key else cells.single()
    return archive.create(
        name, schema=_with(table, {names.STORED: pa.timestamp("us", "UTC")}), cell=rule, time=names.STORED,
        window="360d", slice=1, id=list(table.key), merge="latest" if table.key else "append", layout=layout.storage,
        exist_ok=True,
    )  # fmt: skip


def _with(table: Table, hidden: dict[str, Any]) -> Any:
    """The Arrow schema of a table with the archive's own columns behind it. A key may not be null."""
    fields = [
        column.arrow.with_nullable(False) if column.name in table.key else column.arrow for column in table.columns
    ]
    fields += [
        pa.field(name, kind, nullable=name in (names.STORED_VISIT, names.STORED_DETECTOR))
        for name, kind in hidden.items()
    ]
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


def create_own(archive: Archive, layout: Layout) -> None:
    """Make the datasets of the front end itself."""
    archive.create(
        names.METADATA, schema={"key": "utf8", "value": "utf8", "updated": "timestamp[us, UTC]"}, cell=cells.single(),
        time="updated", window="3650d", slice=1, id="key", merge="latest", exist_ok=True,
    )  # fmt: skip
    archive.create(
        names.VISITS, schema=VISIT_SCHEMA, cell=cells.id_bucket("visit", 8),
        time=times.mjd("visit_mjd_tai", scale="tai"),
        window="1d", slice="360d", id="key", merge="latest", exist_ok=True,
    )  # fmt: skip
    if layout.feed:
        archive.create(
            names.FEED, schema=FEED_SCHEMA, cell=cells.id_bucket("chunk", 6 * layout.feed_chunk_s),
            time=times.mjd("visit_mjd_tai", scale="tai"), window="1d", slice="360d", id="key", merge="latest",
            exist_ok=True,
        )  # fmt: skip
        archive.create(
            UPDATES, schema=UPDATE_SCHEMA, cell=cells.id_bucket("chunk", 6 * layout.feed_chunk_s),
            time=times.mjd("update_mjd_tai", scale="tai"), window="1d", slice="360d", id=["operation", "update_order"],
            merge="latest", exist_ok=True,
        )  # fmt: skip


def migrate(archive: Archive, stored: Schema, wanted: Schema, layout: Layout) -> None:
    """Make the tables and add the columns that `wanted` has and `stored` has not; repeating it is harmless.

    Raises
    ------
    InvalidInputError
        What is stored cannot become `wanted`; the message says all the reasons. Nothing was changed.
    """
    plan = stored.migration_to(wanted)
    if plan.refused:
        raise InvalidInputError(
            f"the schema cannot become {wanted.name} {wanted.version}: {'; '.join(plan.refused)}",
            kind="invalid-definition",
        )
    for name in plan.tables:
        create_table(archive, wanted[name], layout)
    for name, columns in plan.columns.items():
        dataset = archive[names.dataset_name(name)]
        missing: list[Column] = [wanted[name][column] for column in columns if column not in dataset.column_types]
        if missing:
            defaults = {column.name: column.default for column in missing if column.default is not None}
            dataset.add_columns(pa.schema([column.arrow for column in missing]), defaults)
