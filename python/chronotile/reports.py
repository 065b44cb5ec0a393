"""What operations report: plain, frozen records."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

__all__ = [
    "BatchInfo",
    "ConsolidateReport",
    "Damage",
    "DamagedRecord",
    "DatasetInfo",
    "ForeignChunk",
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
]

Time = datetime | float | int
"""A time of a dataset: float days for MJD and JD columns, a datetime for timestamps (a tick where a datetime cannot
hold it)."""


@dataclass(frozen=True, order=True)
class Tile:
    """One cell in one window."""

    cell: int
    window: int

    def __str__(self) -> str:
        return f"cell {self.cell} window {self.window}"


@dataclass(frozen=True)
class WriteReport:
    """What a write did."""

    batch: str
    """Id of the batch, 32 hexadecimal digits."""
    stored: bool
    """Whether anything was stored; False when the same content was there already."""
    rows: int
    """Rows in the batch."""
    duplicates: int
    """Rows left out because a later row of the batch has the same id."""
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
    """The name its writer gave, if any."""
    batch: str
    """Its id, 32 hexadecimal digits."""
    rows: int
    """Rows stored."""
    rows_retired: int
    """Those of them that went with slices that were retired since."""
    tiles: int
    """Tiles it touched."""
    chunks: int
    """Chunks it became."""
    bytes: int
    """Bytes of those chunks."""
    written: datetime
    """When it was written, UTC, by the writer's clock."""
    period: tuple[Time, Time] | None
    """First and last time in it (cut to the axis' tick); None for an empty batch."""
    finished: bool
    """Whether its writing has ended."""


@dataclass(frozen=True)
class TileFailure:
    """A tile that could not be rewritten."""

    tile: Tile
    """The tile."""
    reason: str
    """What is wrong and what to do."""


@dataclass(frozen=True)
class ConsolidateReport:
    """What a consolidation did, or would do."""

    tiles: int
    """Tiles rewritten."""
    chunks_before: int
    """Chunks read and taken away."""
    chunks_after: int
    """Chunks written in their place."""
    bytes_before: int
    """Bytes taken away."""
    bytes_after: int
    """Bytes written."""
    tiles_contended: int
    """Tiles left as they were because somebody else changed them meanwhile."""
    failed: tuple[TileFailure, ...] = ()
    """Tiles, or parts of large ones, left as they were because they cannot be rewritten."""


@dataclass(frozen=True)
class SliceInfo:
    """One slice: a run of windows, the unit of retention."""

    slice: int
    """Its number."""
    start: Time
    """First time it covers."""
    end: Time
    """First time after it."""
    tiles: int
    """Tiles with rows."""
    chunks: int
    """Chunks."""
    rows: int
    """Stored rows, equal ids counted each time."""
    bytes: int
    """Bytes of chunks."""
    cell_bytes_max: int
    """Bytes of the largest cell, or of as many as share a partition: on a cluster, its largest partition."""
    cells_oversized: int
    """Such that are larger than the engine works well with (10 MiB on Cassandra); 0 where that does not matter."""
    fingerprint: str
    """Differs as soon as the slice holds another chunk, or one less; 32 hexadecimal digits."""


@dataclass(frozen=True)
class Spread:
    """Spread of one quantity over tiles."""

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
        """Stored rows, equal ids counted each time."""
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
    """What is wrong with it."""
    missing: bool
    """Whether a finished batch says it should be there and it is not."""
    rows: int
    """Rows it holds or held, as far as known."""


@dataclass(frozen=True)
class RowsMissing:
    """Rows of a stored batch that no chunk holds, though its other rows of the tile were consolidated."""

    tile: Tile
    """The tile."""
    batch: str
    """Id of the batch, 32 hexadecimal digits."""
    key: str | None
    """The name its writer gave, if any."""
    rows: int
    """How many are missing."""


@dataclass(frozen=True)
class ForeignChunk:
    """A chunk with rows of a batch that is not stored: removed, replaced since, or not in the catalog."""

    tile: Tile
    """Its tile."""
    chunk: str
    """Its id, 32 hexadecimal digits."""
    batch: str
    """Id of the batch, 32 hexadecimal digits."""
    key: str | None
    """The name of the batch, where the catalog knows it."""
    rows: int
    """Rows of that batch in the chunk."""
    reason: str
    """What is wrong with it and what to do."""


@dataclass(frozen=True)
class DamagedRecord:
    """A catalog record that was changed by something else than this library, or contradicts others."""

    key: str
    """Its key."""
    reason: str
    """What is wrong."""


@dataclass(frozen=True)
class VerifyReport:
    """What a verification found."""

    chunks: int
    """Chunks read and decoded."""
    rows: int
    """Rows decoded."""
    bytes: int
    """Bytes read."""
    batches: int
    """Finished batches whose chunks were looked for."""
    batches_unfinished: int
    """Batches whose writing has not ended."""
    damage: tuple[Damage, ...]
    """Damaged and missing chunks, by tile."""
    rows_missing: tuple[RowsMissing, ...]
    """Rows of stored batches that are nowhere, by tile."""
    foreign: tuple[ForeignChunk, ...]
    """Chunks with rows of batches that are not stored, by tile."""
    records: tuple[DamagedRecord, ...]
    """Damaged catalog records, by key."""

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.damage or self.rows_missing or self.foreign or self.records)


@dataclass(frozen=True)
class IndexInfo:
    """An index and what is built of it."""

    name: str
    """Its name."""
    columns: tuple[str, ...]
    """Its columns."""
    windows: int
    """Windows built; reads do all others for themselves."""
    period: tuple[Time, Time] | None
    """Start of the first and end of the last of them."""
    tiles: int
    """Tiles indexed."""
    tiles_left_out: int
    """Tiles left out, damaged or of too many values; reads do them for themselves."""
    rows: int
    """Rows counted."""
    values: int
    """Distinct values, each window's for itself."""
    bytes: int
    """Bytes stored."""
    built: datetime | None
    """When a window was last built (UTC)."""


@dataclass(frozen=True)
class IndexBuildReport:
    """What a build of indexes did."""

    windows: int
    """Windows looked at, once for each index."""
    windows_built: int
    """Windows that had changed and were built."""
    windows_elsewhere: int
    """Windows that had changed and that another builder built, or is building."""
    tiles_read: int
    """Tiles read."""
    tiles_kept: int
    """Tiles of built windows whose part of the index stayed as it was."""
    tiles_left_out: int
    """Tiles left out, damaged or of too many values."""
    rows: int
    """Rows read."""
    bytes: int
    """Bytes stored."""


@dataclass(frozen=True)
class IndexUse:
    """How a read or a count uses an index, and filters of texts."""

    index: str | None
    """The index, or None."""
    reason: str | None
    """Why none is used."""
    counts: bool
    """Whether counts come from the index itself; else it says which tiles to read."""
    tiles: int
    """Tiles that lie in what was asked for."""
    tiles_indexed: int
    """Tiles for which the index answers."""
    tiles_unindexed: int
    """Tiles that the index does not know yet."""
    tiles_changed: int
    """Tiles that have changed since they were indexed."""
    tiles_partial: int
    """Tiles that lie partly outside the period."""
    tiles_shared: int
    """Tiles that may hold versions of records that lie in other tiles too."""
    tiles_read: int
    """Tiles that are read."""
    chunks: int
    """Chunks in all of the tiles; 0 where neither an index nor filters were looked at."""
    chunks_read: int
    """Chunks that are read."""
    chunks_filtered: int
    """Chunks that are passed over because their filters show that they hold no text asked for."""
    windows_indexed: tuple[Time, ...]
    """Starts of the windows answered through the index."""
    windows_direct: tuple[Time, ...]
    """Starts of the windows of which tiles are read without its help."""

    def __str__(self) -> str:
        filtered = f"filters of texts pass over {self.chunks_filtered:,} of {self.chunks:,} chunks"
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
        windows = f"{len(self.windows_indexed):,} windows through the index, {len(self.windows_direct):,} directly"
        return "; ".join([*found, windows] + ([filtered] if self.chunks_filtered else []))
