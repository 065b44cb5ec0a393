//! Compares the two archives tile by tile.

use std::collections::{BTreeMap, HashMap, HashSet};

use chronotile_store::ChunkKey;
use chronotile_types::{ChunkId, SliceId, Tile};

use super::ledger::Ledger;
use super::tiles::{ObservedChunk, Pair, Pairs, Scope};
use super::{Meter, Shared, slices};
use crate::error::Result;
use crate::report::TileDifference;

/// Maximum number of differing tiles in the report; others are only counted.
const TILES_KEPT: usize = 10_000;
/// Maximum number of chunks named per tile.
const CHUNKS_NAMED: usize = 4;

#[derive(Default)]
pub(super) struct Verification {
    pub tiles: u64,
    pub chunks: u64,
    pub rows: u64,
    pub bytes: u64,
    pub tiles_differing: u64,
    pub differing: BTreeMap<(SliceId, Tile), TileDifference>,
    /// Prints of the differing tiles on the source.
    pub prints: HashMap<(SliceId, Tile), u64>,
    /// Chunks that the target has but must receive again.
    pub again: HashSet<ChunkKey>,
}

/// Compares keys, rows and heads of both archives, and checks bodies on the target against the checksums in their
/// heads. `damaged` are chunks that are known to be damaged on the source.
pub(super) async fn verify(
    shared: &Shared,
    scope: &Scope,
    damaged: &HashSet<(Tile, ChunkId)>,
    meter: &mut Meter<'_>,
) -> Result<Verification> {
    // Read before the chunks: a batch that is finished on the target now has all its chunks there.
    let there = Ledger::read(shared.target.as_ref(), &shared.home).await?;
    let mut found = Verification::default();
    for slice in slices(shared, scope).await? {
        let mut pairs = Pairs::open(shared, scope, slice, true).await?;
        while let Some(pair) = pairs.next().await? {
            meter.bytes += found.tile(slice, pair, &there, damaged);
            meter.tile();
        }
    }
    Ok(found)
}

impl Verification {
    /// The tiles to compare again.
    pub(super) fn scope(&self) -> Scope {
        // Some of the differing tiles were only counted, so only a comparison of all tiles finds them again.
        if self.tiles_differing > self.differing.len() as u64 {
            return Scope::All;
        }
        Scope::of(self.differing.keys().copied())
    }

    /// Drops tiles that the source has rewritten since the pass that recorded `prints`; returns their number.
    pub(super) fn leave_out_moved(&mut self, prints: &HashMap<(SliceId, Tile), u64>) -> u64 {
        let known = self.differing.len();
        // A tile that the pass did not find on the source had no chunks there, and so the print 0.
        self.differing.retain(|place, _| self.prints.get(place) == Some(prints.get(place).unwrap_or(&0)));
        let moved = (known - self.differing.len()) as u64;
        self.tiles_differing -= moved;
        moved
    }

    /// Compares one tile; returns its bytes on the target.
    fn tile(&mut self, slice: SliceId, pair: Pair, there: &Ledger, damaged: &HashSet<(Tile, ChunkId)>) -> u64 {
        let (tile, print) = (pair.tile, pair.source_print());
        let ours: HashMap<ChunkId, &ObservedChunk> = pair.source.iter().map(|seen| (seen.chunk.key.id, seen)).collect();
        let theirs: HashSet<ChunkId> = pair.target.iter().map(|seen| seen.chunk.key.id).collect();
        let mut difference = TileDifference { tile, missing: 0, superfluous: 0, differing: 0, chunks: vec![] };
        let mut bytes = 0;
        for seen in &pair.target {
            bytes += seen.bytes as u64;
            self.rows += u64::from(seen.chunk.rows);
            match ours.get(&seen.chunk.key.id) {
                None => difference.superfluous += 1,
                Some(source) if is_same(source, seen, damaged.contains(&(tile, seen.chunk.key.id))) => continue,
                Some(_) => {
                    difference.differing += 1;
                    self.again.insert(seen.chunk.key);
                }
            }
            difference.chunks.push(seen.chunk.key.id);
        }
        for seen in pair.source.iter().filter(|seen| !theirs.contains(&seen.chunk.key.id) && is_due(there, seen)) {
            difference.missing += 1;
            difference.chunks.push(seen.chunk.key.id);
        }
        self.tiles += 1;
        self.chunks += pair.target.len() as u64;
        self.bytes += bytes;
        if !difference.chunks.is_empty() {
            difference.chunks.truncate(CHUNKS_NAMED);
            self.tiles_differing += 1;
            if self.differing.len() < TILES_KEPT {
                self.differing.insert((slice, tile), difference);
                self.prints.insert((slice, tile), print);
            }
        }
        bytes
    }
}

/// Whether a chunk is the same in both archives; a chunk that is damaged on the source may be damaged on the target.
fn is_same(source: &ObservedChunk, target: &ObservedChunk, damaged: bool) -> bool {
    let alike = source.chunk.head == target.chunk.head && source.chunk.rows == target.chunk.rows;
    alike && (target.head.is_ok() || damaged)
}

/// Whether a chunk of the source has rows of a batch that is finished on the target.
fn is_due(there: &Ledger, source: &ObservedChunk) -> bool {
    match &source.head {
        Ok(head) => head.origins.iter().any(|origin| there.has_rows_of(origin)),
        Err(_) => true,
    }
}
