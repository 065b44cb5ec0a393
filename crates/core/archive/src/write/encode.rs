//! Encodes the rows of one step of a write as chunks.

use std::collections::HashSet;
use std::hash::BuildHasher;
use std::ops::Range;

use chronotile_chunk::Origin;
use chronotile_store::Chunk;
use chronotile_types::{ChunkId, Tile};
use rayon::prelude::*;
use xxhash_rust::xxh3::xxh3_128;

use crate::error::Result;
use crate::frame::Frame;
use crate::keys::Keys;
use crate::write::content::Content;
use crate::write::pack::{TileRows, bytes_of, pack, zones};
use crate::write::sort::TiledRows;

/// Below this many rows a batch is encoded by the calling thread alone.
const PARALLEL_ROWS: usize = 4_096;

/// Counts rows of a write in several steps whose ids, version and tile repeat those of an earlier step.
#[derive(Default)]
pub(crate) struct Repeats {
    /// Whether there is more than one step: within a step all rows are different records.
    pub several: bool,
    hasher: std::hash::RandomState,
    hashes: HashSet<u64>,
    repeated: u64,
    /// Whether there were too many rows to track.
    given_up: bool,
}

impl Repeats {
    /// Most rows that are tracked; some 16 bytes each.
    const ROWS_MAX: usize = 1 << 22;

    pub(crate) fn enter(&mut self, frame: &Frame, tiled: &TiledRows) -> Result<()> {
        // Rows without ids are distinguished by their numbers in the batch.
        if !self.several || self.given_up || frame.ids.is_empty() {
            return Ok(());
        }
        // Repeats of rows that are not tracked would be missing from the count, so the count becomes unknown.
        if self.hashes.len() + tiled.rows.num_rows() > Self::ROWS_MAX {
            (self.given_up, self.hashes) = (true, HashSet::new());
            return Ok(());
        }
        let columns: Vec<_> = frame.ids.iter().copied().chain(frame.version).collect();
        let columns: Vec<_> = columns.into_iter().map(|column| tiled.rows.column(column).clone()).collect();
        let keys = Keys::new(&columns).map_err(|e| frame.compute("comparing ids", e))?;
        for (row, tile) in tiled.tiles.iter().enumerate() {
            self.repeated += u64::from(!self.hashes.insert(self.hasher.hash_one((keys.get(row), tile))));
        }
        Ok(())
    }

    pub(crate) fn count(&self) -> Option<u64> {
        (!self.given_up).then_some(self.repeated)
    }
}

/// Encodes sorted rows tile by tile; many rows on all cores.
pub(crate) fn encode_tiles(frame: &Frame, tiled: &TiledRows, origin: Origin) -> Result<Vec<Chunk>> {
    let ids = frame.ids.first().map(|id| tiled.rows.column(*id));
    let zones = zones(ids, frame, std::iter::repeat_n(origin, tiled.rows.num_rows()))?;
    let row_bytes = bytes_of(&tiled.rows) / tiled.rows.num_rows().max(1);
    let encode = |range: Range<usize>| {
        let rows = TileRows {
            tile: tiled.tiles[range.start],
            rows: tiled.rows.slice(range.start, range.len()),
            ticks: &tiled.ticks[range.clone()],
            zones: &zones[range.clone()],
            origins: &[origin],
            row_origin: None,
            ordinals: frame.ids.is_empty().then(|| &tiled.ordinals[range.clone()]),
            // With merge rule `latest` a tile may have several versions of an id; otherwise sorting has left one row of
            // each id.
            unique_ids: !frame.keeps_latest(),
        };
        let hashes = &tiled.hashes[range];
        let tile = rows.tile;
        pack(frame, &rows, row_bytes, &|within| chunk_id(origin, tile, &hashes[within]))
    };
    let ranges = tiled.tile_ranges();
    let chunks: Result<Vec<Vec<Chunk>>> = if tiled.rows.num_rows() < PARALLEL_ROWS {
        ranges.into_iter().map(encode).collect()
    } else {
        ranges.into_par_iter().map(encode).collect()
    };
    Ok(chunks?.into_iter().flatten().collect())
}

/// The same rows of the same batch and stamp in the same tile always have the same id.
fn chunk_id(origin: Origin, tile: Tile, hashes: &[u64]) -> ChunkId {
    let mut content = Content::default();
    hashes.iter().for_each(|hash| content.add(*hash));
    let mut bytes = Vec::with_capacity(64);
    bytes.extend_from_slice(&origin.batch.to_bytes());
    bytes.extend_from_slice(&origin.written_us.to_be_bytes());
    bytes.extend_from_slice(&origin.token.to_be_bytes());
    bytes.extend_from_slice(&tile.cell.0.to_be_bytes());
    bytes.extend_from_slice(&tile.window.0.to_be_bytes());
    bytes.extend_from_slice(&content.to_bytes());
    bytes.extend_from_slice(&(hashes.len() as u32).to_be_bytes());
    ChunkId::of_write(xxh3_128(&bytes))
}

#[cfg(test)]
mod tests {
    use chronotile_types::{BatchId, Cell, Window};

    use super::*;

    #[test]
    fn a_chunk_id_is_the_hash_of_what_the_format_names() {
        let origin = Origin { batch: BatchId(1 << 100 | 7), written_us: -2, token: 3 };
        let (cell, window, hashes) = (i64::MIN + 4, -5_i32, [6, u64::MAX, 6]);
        let tile = Tile { cell: Cell(cell), window: Window(window) };
        let mut content = Content::default();
        hashes.iter().for_each(|hash| content.add(*hash));
        let content = u128::from_str_radix(&content.to_string(), 16).unwrap();
        let bytes = [
            &(1_u128 << 100 | 7).to_be_bytes()[..],
            &(-2_i64).to_be_bytes(),
            &3_u32.to_be_bytes(),
            &cell.to_be_bytes(),
            &window.to_be_bytes(),
            &content.to_be_bytes(),
            &3_u32.to_be_bytes(),
        ];
        // The three highest bits say that one write made it.
        assert_eq!(chunk_id(origin, tile, &hashes), ChunkId(xxh3_128(&bytes.concat()) << 3 >> 3));
    }
}
