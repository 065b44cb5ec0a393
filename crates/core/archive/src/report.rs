//! Reports of what operations did or found.

use chronotile_types::{BatchId, ChunkId, Damage, SliceId, Tile};

/// What a write did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteReport {
    /// Id of the batch.
    pub batch: BatchId,
    /// Whether anything was stored; `false` if the same content was already stored.
    pub stored: bool,
    /// Rows in the batch.
    pub rows: u64,
    /// Rows left out because a later row of the batch has the same id.
    pub duplicates: u64,
    /// Tiles written to.
    pub tiles: u64,
    /// Chunks written.
    pub chunks: u64,
    /// Bytes of the chunks, heads included.
    pub bytes: u64,
}

/// A stored batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchInfo {
    /// The key its writer gave, if any.
    pub key: Option<String>,
    /// Its id.
    pub batch: BatchId,
    /// Rows stored.
    pub rows: u64,
    /// Those of them that were dropped with retired slices.
    pub rows_retired: u64,
    /// Tiles it was written to.
    pub tiles: u64,
    /// Chunks it was written as.
    pub chunks: u64,
    /// Bytes of those chunks.
    pub bytes: u64,
    /// Write stamp, microseconds since the Unix epoch.
    pub written_us: i64,
    /// First and last time in it, in ticks of the time axis; `None` for an empty batch.
    pub ticks: Option<(i64, i64)>,
    /// Whether its write has ended.
    pub finished: bool,
}

/// What `consolidate` did, or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConsolidateReport {
    /// Tiles rewritten.
    pub tiles: u64,
    /// Chunks read and removed.
    pub chunks_before: u64,
    /// Chunks written in their place.
    pub chunks_after: u64,
    /// Bytes removed.
    pub bytes_before: u64,
    /// Bytes written.
    pub bytes_after: u64,
    /// Tiles left unchanged because another process changed them meanwhile.
    pub tiles_contended: u64,
    /// Tiles, or parts of large ones, left unchanged because they cannot be rewritten.
    pub failed: Vec<TileFailure>,
}

/// A tile that could not be rewritten.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TileFailure {
    /// The tile.
    pub tile: Tile,
    /// What is wrong and what to do.
    pub reason: String,
}

/// One slice in a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceInfo {
    /// The slice.
    pub slice: SliceId,
    /// Half-open range of ticks it covers.
    pub ticks: (i64, i64),
    /// Tiles with rows.
    pub tiles: u64,
    /// Chunks.
    pub chunks: u64,
    /// Stored rows; rows with equal ids count each.
    pub rows: u64,
    /// Bytes of chunks.
    pub bytes: u64,
    /// Bytes of the largest cell, or of the cells that share a partition: on a cluster, the size of its largest
    /// partition.
    pub cell_bytes_max: u64,
    /// Cells, or partitions, that are larger than the engine handles well; 0 if the engine has no such limit.
    pub cells_oversized: u64,
    /// Changes whenever the slice gains or loses a chunk.
    pub fingerprint: u128,
}

/// Spread of one quantity over tiles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    /// Smallest.
    pub min: u64,
    /// Half of the tiles have at most this.
    pub median: u64,
    /// 99 of 100 tiles have at most this.
    pub p99: u64,
    /// Largest.
    pub max: u64,
}

/// Statistics of a dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatasetInfo {
    /// Each slice, oldest first.
    pub slices: Vec<SliceInfo>,
    /// Chunks in a tile.
    pub tile_chunks: Spread,
    /// Stored rows in a tile.
    pub tile_rows: Spread,
    /// Bytes in a tile.
    pub tile_bytes: Spread,
    /// The tile with the most bytes.
    pub tile_largest: Option<Tile>,
}

/// One damaged or missing chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamageReport {
    /// Its tile.
    pub tile: Tile,
    /// Its id.
    pub chunk: ChunkId,
    /// What is wrong; `None` if a chunk of a finished batch is missing.
    pub damage: Option<Damage>,
    /// Rows in it, as far as known.
    pub rows: u64,
}

/// Rows of a stored batch that no chunk holds, in a tile where other rows of the batch were consolidated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowsMissing {
    /// The tile.
    pub tile: Tile,
    /// The batch.
    pub batch: BatchId,
    /// Its key, if any.
    pub key: Option<String>,
    /// Their number. For a batch written in several steps it may include rows with equal ids, which consolidation
    /// merged.
    pub rows: u64,
}

/// A chunk with rows of a batch that is not stored: it reappeared after the batch was removed or replaced, or the batch
/// was never finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ForeignChunk {
    /// Its tile.
    pub tile: Tile,
    /// Its id.
    pub chunk: ChunkId,
    /// The batch.
    pub batch: BatchId,
    /// The key of the batch, if the catalog has it.
    pub key: Option<String>,
    /// Whether that batch was removed.
    pub removed: bool,
    /// Whether that batch is stored with other content.
    pub replaced: bool,
    /// Rows of that batch in the chunk.
    pub rows: u64,
}

impl ForeignChunk {
    /// What is wrong with it and what to do.
    pub fn reason(&self) -> String {
        let batch = self.key.as_ref().map_or_else(|| self.batch.to_string(), |key| format!("{key:?}"));
        let what = match (self.removed, self.replaced) {
            (true, _) => "was removed: run verify with --remove-foreign",
            (_, true) => "is stored with other content: run verify with --remove-foreign",
            _ => "is not in the catalog: run verify with --remove-foreign, or restore the archive from a copy",
        };
        format!("{} of its rows are of batch {batch}, which {what}", self.rows)
    }
}

/// A damaged catalog record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordDamage {
    /// Its key.
    pub key: String,
    /// What is wrong.
    pub reason: String,
}

/// What `verify` found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerifyReport {
    /// Chunks read and decoded.
    pub chunks: u64,
    /// Rows decoded.
    pub rows: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Finished batches whose chunks were looked for.
    pub batches: u64,
    /// Batches whose write has not ended.
    pub batches_unfinished: u64,
    /// Damaged and missing chunks, by tile.
    pub damage: Vec<DamageReport>,
    /// Rows of stored batches that no chunk holds, by tile.
    pub rows_missing: Vec<RowsMissing>,
    /// Chunks with rows of batches that are not stored, by tile.
    pub foreign: Vec<ForeignChunk>,
    /// Damaged catalog records, by key.
    pub records: Vec<RecordDamage>,
}

impl VerifyReport {
    /// Whether nothing is wrong.
    pub fn ok(&self) -> bool {
        self.damage.is_empty() && self.rows_missing.is_empty() && self.foreign.is_empty() && self.records.is_empty()
    }
}

/// A tile that differs between the two archives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TileDifference {
    /// The tile.
    pub tile: Tile,
    /// Chunks of finished batches that the target lacks.
    pub missing: u64,
    /// Chunks that only the target has.
    pub superfluous: u64,
    /// Chunks with other rows, another head or a body that does not match its checksum on the target.
    pub differing: u64,
    /// The first few of those chunks.
    pub chunks: Vec<ChunkId>,
}

/// What copying one dataset did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DatasetCopyReport {
    /// The dataset.
    pub dataset: String,
    /// Whether it was only compared.
    pub verify_only: bool,
    /// Passes over its tiles.
    pub passes: u32,
    /// Whether the last pass found nothing new; if not, the source is still being written, and a later run continues.
    pub caught_up: bool,
    /// Finished batches on the target now.
    pub batches: u64,
    /// Batches finished on the target by this run, replaced ones included.
    pub batches_copied: u64,
    /// Batches removed on the source whose removal this run carried over.
    pub batches_removed: u64,
    /// Batches that are finished on the source, but unfinished or different on the target.
    pub batches_left: u64,
    /// Batches of the target that the source does not have.
    pub batches_foreign: u64,
    /// Keys (or ids) of batches that are being written, replaced or removed on the source.
    pub batches_unfinished: Vec<String>,
    /// Chunks put.
    pub chunks_copied: u64,
    /// Rows in them.
    pub rows_copied: u64,
    /// Bytes of them.
    pub bytes_copied: u64,
    /// Chunks removed from the target because the source no longer has them.
    pub chunks_removed: u64,
    /// Slices dropped on the target because they were retired on the source.
    pub slices_dropped: u64,
    /// Tiles compared at the end.
    pub tiles_verified: u64,
    /// Chunks of the target read and compared at the end.
    pub chunks_verified: u64,
    /// Rows in them.
    pub rows_verified: u64,
    /// Bytes of them.
    pub bytes_verified: u64,
    /// Tiles that the source kept rewriting during the comparison; a later run compares them.
    pub tiles_moved: u64,
    /// Tiles that differ.
    pub tiles_differing: u64,
    /// Those tiles, up to a limit.
    pub differences: Vec<TileDifference>,
    /// Damaged chunks of the source, which were copied as they are.
    pub damage: Vec<DamageReport>,
}

impl DatasetCopyReport {
    /// Whether the target equals the source, without damage. After a copy, batches that the source finished since are
    /// ignored; after a comparison they count as differences.
    pub fn ok(&self) -> bool {
        let same_batches = !self.verify_only || self.batches_left == 0 && self.batches_foreign == 0;
        self.tiles_differing == 0 && self.damage.is_empty() && same_batches
    }
}

/// What a copy did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyReport {
    /// Each dataset, by name.
    pub datasets: Vec<DatasetCopyReport>,
}

#[cfg(test)]
mod tests {
    use chronotile_types::{Cell, Window};

    use super::*;

    const TILE: Tile = Tile { cell: Cell(1), window: Window(2) };
    const CHUNK: ChunkId = ChunkId(3);
    const BATCH: BatchId = BatchId(4);

    fn missing() -> DamageReport {
        DamageReport { tile: TILE, chunk: CHUNK, damage: None, rows: 5 }
    }

    fn foreign() -> ForeignChunk {
        let (removed, replaced) = (false, false);
        ForeignChunk { tile: TILE, chunk: CHUNK, batch: BATCH, key: None, removed, replaced, rows: 5 }
    }

    #[test]
    fn a_verification_is_good_without_any_finding() {
        let good = VerifyReport { chunks: 1, batches: 1, batches_unfinished: 1, ..VerifyReport::default() };
        assert!(good.ok());
        let rows_missing = vec![RowsMissing { tile: TILE, batch: BATCH, key: None, rows: 5 }];
        let records = vec![RecordDamage { key: "batch/records/1".into(), reason: "it is no JSON".into() }];
        for bad in [
            VerifyReport { damage: vec![missing()], ..good.clone() },
            VerifyReport { rows_missing, ..good.clone() },
            VerifyReport { foreign: vec![foreign()], ..good.clone() },
            VerifyReport { records, ..good },
        ] {
            assert!(!bad.ok(), "{bad:?}");
        }
    }

    #[test]
    fn a_copy_is_good_if_tiles_agree_and_a_comparison_if_batches_do_too() {
        let copied = DatasetCopyReport { batches_left: 1, batches_foreign: 1, ..DatasetCopyReport::default() };
        let compared = DatasetCopyReport { verify_only: true, ..DatasetCopyReport::default() };
        assert!(copied.ok() && compared.ok());
        for bad in [
            DatasetCopyReport { tiles_differing: 1, ..copied.clone() },
            DatasetCopyReport { damage: vec![missing()], ..copied },
            DatasetCopyReport { batches_left: 1, ..compared.clone() },
            DatasetCopyReport { batches_foreign: 1, ..compared },
        ] {
            assert!(!bad.ok(), "{bad:?}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_foreign_chunk_names_its_batch() {
        let named = ForeignChunk { key: Some("night 1".into()), ..foreign() };
        for (chunk, reason) in [
            (
                ForeignChunk { removed: true, ..named.clone() },
                "5 of its rows are of batch \"night 1\", which was removed",
            ),
            (ForeignChunk { replaced: true, ..named }, "batch \"night 1\", which is stored with other content"),
            (foreign(), "batch 00000000000000000000000000000004, which is not in the catalog"),
        ] {
            assert!(chunk.reason().contains(reason), "{}", chunk.reason());
        }
    }
}
