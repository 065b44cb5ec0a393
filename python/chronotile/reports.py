"""Reports of operations, as frozen dataclasses."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from chronotile.terminal import count_text

__all__ = [
    "BatchInfo",
    "ConsolidateReport",
    "Damage",
    "DamagedRecord",
    "DatasetInfo",
    "ForeignChunk",
    "GroupBatchInfo",
    "IndexBuildReport",
    "IndexInfo",
    "IndexUse",
    "RowsMissing",
    "SliceInfo",
    "Spread",
    "Tile",
    "TileFailure",
    "VerifyReport",
    "WriteReport",
    "utc_of_us",
]

Time = datetime | float | int
"""A time of a dataset: float days for MJD and JD columns, a datetime for timestamps (a tick if a datetime cannot
represent it).
"""


def utc_of_us(microseconds: int) -> datetime:
    """Convert microseconds since 1970 to a datetime in UTC."""
    seconds, rest = divmod(microseconds, 1_000_000)
    return datetime.fromtimestamp(seconds, UTC).replace(microsecond=rest)


@dataclass(frozen=True, order=True)
class Tile:
    """One cell in one window."""

    cell: int
    window: int

    def __str__(self) -> str:
        return f"cell {self.cell} window {self.window}"


@dataclass(frozen=True)
class WriteReport:
    """Report of a write."""

    batch: str
    """Id of the batch, 32 hexadecimal digits."""
    stored: bool
    """Whether anything was stored; False if the same content was already stored."""
    rows: int
    """Rows in the batch."""
    duplicates: int
    """Rows skipped because a later row of the batch has the same id."""
    tiles: int
    """Tiles touched."""
    chunks: int
    """Chunks written."""
    bytes: int
    """Bytes of the chunks."""


@dataclass(frozen=True)
class BatchInfo:
    """A stored batch."""

    key: str | None
    """The batch name, if its writer gave one."""
    batch: str
    """Its id, 32 hexadecimal digits."""
    rows: int
    """Rows stored."""
    rows_retired: int
    """Rows that were dropped with retired slices."""
    tiles: int
    """Tiles it touched."""
    chunks: int
    """Chunks written for it."""
    bytes: int
    """Bytes of those chunks."""
    written: datetime
    """When it was written, UTC, by the writer's clock."""
    period: tuple[Time, Time] | None
    """First and last time in the batch (rounded down to the axis' tick); None for an empty batch."""
    finished: bool
    """Whether the batch is completely written."""


@dataclass(frozen=True)
class GroupBatchInfo:
    """A stored batch of a group."""

    key: str | None
    """The batch name, if its writer gave one."""
    batch: str
    """Its id, 32 hexadecimal digits."""
    written: datetime
    """When it was written, UTC, by the writer's clock."""
    finished: bool
    """Whether the batch is completely written."""
    datasets: dict[str, BatchInfo]
    """Its part in each dataset that it was written to; empty if it is not finished."""

    @property
    def rows(self) -> int:
        """Rows stored, in all datasets."""
        return sum(part.rows for part in self.datasets.values())


@dataclass(frozen=True)
class TileFailure:
    """A tile that could not be rewritten."""

    tile: Tile
    """The tile."""
    reason: str
    """The reason and the remedy."""


@dataclass(frozen=True)
class ConsolidateReport:
    """Report of a consolidation, or of its dry run."""

    tiles: int
    """Tiles rewritten."""
    chunks_before: int
    """Chunks read and removed."""
    chunks_after: int
    """Chunks that replace them."""
    bytes_before: int
    """Bytes removed."""
    bytes_after: int
    """Bytes written."""
    tiles_contended: int
    """Tiles skipped because another process changed them meanwhile."""
    failed: tuple[TileFailure, ...] = ()
    """Tiles, or parts of large tiles, that could not be rewritten."""

    @classmethod
    def of_native(cls, report: dict[str, Any]) -> ConsolidateReport:
        """A report of the native module."""
        failed = tuple(TileFailure(Tile(*tile), reason) for tile, reason in report.pop("failed"))
        return cls(**report, failed=failed)


@dataclass(frozen=True)
class SliceInfo:
    """One slice: a run of windows, the unit of retention."""

    slice: int
    """Its number."""
    start: Time
    """First time it covers."""
    end: Time
    """End of the slice, exclusive."""
    tiles: int
    """Tiles with rows."""
    chunks: int
    """Chunks."""
    rows: int
    """Stored rows; rows with equal ids count each time, and superseded rows as long as they keep their space."""
    bytes: int
    """Bytes of chunks."""
    cell_bytes_max: int
    """Bytes of the largest group of cells that share a partition; on a cluster, its largest partition."""
    cells_oversized: int
    """Partitions larger than the engine handles well (10 MiB on Cassandra); 0 for engines without partitions."""
    fingerprint: str
    """Fingerprint that changes with the slice's set of chunks; 32 hexadecimal digits."""


@dataclass(frozen=True)
class Spread:
    """Distribution of one quantity over tiles."""

    min: int
    median: int
    p99: int
    max: int


@dataclass(frozen=True)
class DatasetInfo:
    """Statistics of a dataset."""

    slices: tuple[SliceInfo, ...]
    """Each slice, oldest first."""
    tile_chunks: Spread
    """Chunks in a tile."""
    tile_rows: Spread
    """Stored rows in a tile."""
    tile_bytes: Spread
    """Bytes in a tile."""
    tile_largest: Tile | None
    """The tile with the most bytes."""

    @property
    def rows(self) -> int:
        """Stored rows; rows with equal ids count each time, and superseded rows as long as they keep their space."""
        return sum(part.rows for part in self.slices)

    @property
    def chunks(self) -> int:
        """Chunks."""
        return sum(part.chunks for part in self.slices)

    @property
    def tiles(self) -> int:
        """Tiles with rows."""
        return sum(part.tiles for part in self.slices)

    @property
    def bytes(self) -> int:
        """Bytes of chunks."""
        return sum(part.bytes for part in self.slices)


@dataclass(frozen=True)
class Damage:
    """One damaged or missing chunk."""

    tile: Tile
    """Its tile."""
    chunk: str
    """Its id, 32 hexadecimal digits."""
    reason: str
    """What is wrong with the chunk."""
    missing: bool
    """Whether a finished batch refers to the chunk, but it does not exist."""
    rows: int
    """Rows of the chunk, as far as known."""


@dataclass(frozen=True)
class RowsMissing:
    """Rows of a stored batch that are missing, although its other rows of the tile were consolidated."""

    tile: Tile
    """The tile."""
    batch: str
    """Id of the batch, 32 hexadecimal digits."""
    key: str | None
    """The batch name, if its writer gave one."""
    rows: int
    """Number of missing rows."""


@dataclass(frozen=True)
class ForeignChunk:
    """A chunk with rows of a batch that is removed, replaced, or not in the catalog."""

    tile: Tile
    """Its tile."""
    chunk: str
    """Its id, 32 hexadecimal digits."""
    batch: str
    """Id of the batch, 32 hexadecimal digits."""
    key: str | None
    """Name of the batch, if it is in the catalog."""
    rows: int
    """Rows of that batch in the chunk."""
    reason: str
    """What is wrong with the chunk and what to do."""


@dataclass(frozen=True)
class DamagedRecord:
    """A catalog record that was not written by this library, or contradicts others."""

    key: str
    """Its key."""
    reason: str
    """What is wrong."""


@dataclass(frozen=True)
class VerifyReport:
    """Report of a verification."""

    chunks: int
    """Chunks read and decoded."""
    rows: int
    """Rows decoded."""
    bytes: int
    """Bytes read."""
    batches: int
    """Finished batches whose chunks were checked."""
    batches_unfinished: int
    """Batches that are still being written, or interrupted."""
    damage: tuple[Damage, ...]
    """Damaged and missing chunks, by tile."""
    rows_missing: tuple[RowsMissing, ...]
    """Missing rows of stored batches, by tile."""
    foreign: tuple[ForeignChunk, ...]
    """Chunks with rows of batches that are not in the catalog, by tile."""
    records: tuple[DamagedRecord, ...]
    """Damaged catalog records, by key."""

    @property
    def ok(self) -> bool:
        """Whether no problem was found."""
        return not (self.damage or self.rows_missing or self.foreign or self.records)


@dataclass(frozen=True)
class IndexInfo:
    """An index and its state."""

    name: str
    """Its name."""
    columns: tuple[str, ...]
    """Its columns."""
    windows: int
    """Indexed windows; others are read directly."""
    period: tuple[Time, Time] | None
    """Start of the first and end of the last of them."""
    tiles: int
    """Tiles indexed."""
    tiles_left_out: int
    """Tiles read directly: damaged, with too many values, or with rows that did not count when the index was built."""
    rows: int
    """Rows counted."""
    values: int
    """Distinct values, summed over windows."""
    bytes: int
    """Bytes stored."""
    built: datetime | None
    """When a window was last built (UTC)."""


@dataclass(frozen=True)
class IndexBuildReport:
    """Report of a build of indexes."""

    windows: int
    """Windows checked, once per index."""
    windows_built: int
    """Windows that had changed and were built."""
    windows_elsewhere: int
    """Changed windows that another builder built, or is building."""
    tiles_read: int
    """Tiles read."""
    tiles_kept: int
    """Tiles of built windows whose index entries did not change."""
    tiles_left_out: int
    """Tiles not indexed, because they are damaged, have too many values, or have rows that did not count."""
    rows: int
    """Rows read."""
    bytes: int
    """Bytes stored."""


@dataclass(frozen=True)
class IndexUse:
    """How a read or a count uses an index and text filters."""

    index: str | None
    """The index, or None."""
    reason: str | None
    """Reason why no index is used."""
    counts: bool
    """Whether counts come from the index itself; otherwise the index selects the tiles to read."""
    tiles: int
    """Tiles in the requested region and period."""
    tiles_indexed: int
    """Tiles answered from the index."""
    tiles_unindexed: int
    """Tiles that are not indexed yet."""
    tiles_changed: int
    """Tiles that changed after they were indexed."""
    tiles_partial: int
    """Tiles that lie partly outside the period."""
    tiles_shared: int
    """Tiles that may share records with other tiles."""
    tiles_read: int
    """Tiles that are read."""
    chunks: int
    """Chunks in all tiles; 0 if neither an index nor filters were checked."""
    chunks_read: int
    """Chunks that are read."""
    chunks_filtered: int
    """Chunks skipped because their filters exclude the searched text."""
    windows_indexed: tuple[Time, ...]
    """Starts of the windows answered from the index."""
    windows_direct: tuple[Time, ...]
    """Starts of the windows with tiles that are read directly."""

    def __str__(self) -> str:
        filtered = f"text filters skip {self.chunks_filtered:,} of {self.chunks:,} chunks"
        if self.index is None:
            return f"no index: {self.reason}" + (f"; {filtered}" if self.chunks else "")
        found = [f"index {self.index} answers for {self.tiles_indexed:,} of {self.tiles:,} tiles"]
        why = {
            "not indexed yet": self.tiles_unindexed,
            "changed since": self.tiles_changed,
            "partly outside the period": self.tiles_partial,
            "sharing ids": self.tiles_shared,
        }
        known = ", ".join(f"{count:,} {reason}" for reason, count in why.items() if count)
        found.append(f"{self.tiles_read:,} are read" + (f" ({known})" if known else ""))
        through = count_text(len(self.windows_indexed), "window")
        windows = f"{through} through the index, {len(self.windows_direct):,} directly"
        return "; ".join([*found, windows] + ([filtered] if self.chunks_filtered else []))
