//! Time spans of tiles, read from the heads of their chunks. For readers that look for the nearest rows to a time, or
//! that cache a result computed from a tile and must know whether it is still valid.

use chronotile_chunk::Head;
use chronotile_store::{Cells, Chunk, Scan};
use chronotile_types::{Cell, SliceId, Tile, Window};
use futures::TryStreamExt;
use xxhash_rust::xxh3::xxh3_64;

use crate::dataset::Dataset;
use crate::error::Result;
use crate::read::slices::slices_in;

/// The content of one tile, as its heads show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileSpan {
    /// The tile.
    pub tile: Tile,
    /// A hash of the ids of its chunks: while it stays the same, so do the tile's rows.
    pub fingerprint: u64,
    /// Rows in its chunks; rows with equal ids are counted separately.
    pub rows: u64,
    /// Number of its chunks.
    pub chunks: u64,
    /// Tick of its earliest row.
    pub tick_min: i64,
    /// Tick of its latest row.
    pub tick_max: i64,
}

impl Dataset {
    /// The tiles of these cells in the windows of an inclusive range of ticks, ordered by cell, then window. Reads no
    /// bodies.
    ///
    /// # Errors
    /// A damaged head, or the engine.
    pub async fn spans(&self, cells: &[i64], ticks: (i64, i64)) -> Result<Vec<TileSpan>> {
        let this = &self.reader();
        let frame = this.frame();
        let spec = &frame.spec;
        let windows = (spec.nearest_window(ticks.0), spec.nearest_window(ticks.1));
        let slices = slices_in(this.store(), &this.frame(), windows).await?;
        this.spans_in(slices, cells, windows).await
    }

    /// The latest tile of a cell with a row before `tick`. Searches backwards from there and stops at the first one
    /// found.
    ///
    /// # Errors
    /// As [`Dataset::spans`].
    pub async fn span_before(&self, cell: i64, tick: i64) -> Result<Option<TileSpan>> {
        let this = &self.reader();
        let frame = this.frame();
        let spec = &frame.spec;
        let last = spec.nearest_window(tick);
        let slices = this.slices().await?;
        for slice in slices.into_iter().rev().filter(|slice| *slice <= spec.slice_of(last)) {
            let spans = this.spans_in(vec![slice], &[cell], (spec.windows().0, last)).await?;
            if let Some(found) = spans.into_iter().rev().find(|span| span.tick_min < tick) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The earliest tile of a cell with a row at or after `tick`. Searches forwards from there and stops at the first
    /// one found.
    ///
    /// # Errors
    /// As [`Dataset::spans`].
    pub async fn span_from(&self, cell: i64, tick: i64) -> Result<Option<TileSpan>> {
        let this = &self.reader();
        let frame = this.frame();
        let spec = &frame.spec;
        let first = spec.nearest_window(tick);
        let slices = this.slices().await?;
        for slice in slices.into_iter().filter(|slice| *slice >= spec.slice_of(first)) {
            let spans = this.spans_in(vec![slice], &[cell], (first, spec.windows().1)).await?;
            if let Some(found) = spans.into_iter().find(|span| span.tick_max >= tick) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    async fn spans_in(&self, slices: Vec<SliceId>, cells: &[i64], windows: (Window, Window)) -> Result<Vec<TileSpan>> {
        if slices.is_empty() || cells.is_empty() {
            return Ok(vec![]);
        }
        let mut cells = cells.to_vec();
        cells.sort_unstable();
        cells.dedup();
        let ranges: Vec<(Cell, Cell)> = cells.iter().map(|cell| (Cell(*cell), Cell(*cell))).collect();
        let scan =
            Scan { slices, cells: Cells::Ranges(ranges.into()), windows: windows.into(), bodies: false, older: true };
        let frame = self.frame();
        let visible = self.visibility().await?;
        let chunks: Vec<Chunk> = self.store().scan(&frame.dataset, scan).await?.try_concat().await?;
        let heads = chunks.iter().map(|chunk| frame.head(chunk)).collect::<Result<Vec<_>>>()?;
        // Each span describes its tile alone, so a batch that ended late needs no look at other tiles.
        let _ = visible.decide_now(heads.iter()).await?;
        let mut chunks: Vec<(Chunk, Head)> = chunks.into_iter().zip(heads).collect();
        chunks.retain(|(_, head)| !visible.hides_all_of(head));
        // A scan goes slice by slice, but spans are ordered by cell first.
        chunks.sort_by_key(|(chunk, _)| (chunk.key.tile, chunk.key.id));
        let mut spans = Vec::new();
        for tile in chunks.chunk_by(|(a, _), (b, _)| a.key.tile == b.key.tile) {
            let mut ids = Vec::with_capacity(16 * tile.len());
            let (mut rows, mut tick_min, mut tick_max) = (0, i64::MAX, i64::MIN);
            for (chunk, head) in tile {
                ids.extend_from_slice(&chunk.key.id.to_bytes());
                // A chunk with rows that do not count needs another fingerprint: its readers get other rows.
                for origin in head.origins.iter().filter(|origin| visible.hides(origin)) {
                    ids.extend_from_slice(&origin.batch.to_bytes());
                    ids.extend_from_slice(&origin.written_us.to_be_bytes());
                    ids.extend_from_slice(&origin.token.to_be_bytes());
                }
                rows += u64::from(head.rows);
                (tick_min, tick_max) = (tick_min.min(head.zone.time_min), tick_max.max(head.zone.time_max));
            }
            let chunks = tile.len() as u64;
            let (tile, fingerprint) = (tile[0].0.key.tile, xxh3_64(&ids));
            spans.push(TileSpan { tile, fingerprint, rows, chunks, tick_min, tick_max });
        }
        Ok(spans)
    }
}
