//! Pairs the chunks of two archives tile by tile, in bounded memory.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use chronotile_chunk::{Body, Head};
use chronotile_store::{Cells, Chunk, DatasetRef, Scan, Store, Windows};
use chronotile_types::{Damage, SliceId, Tile};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use rayon::prelude::*;
use xxhash_rust::xxh3::xxh3_64;

use super::{Shared, TilesBySlice};
use crate::error::{ArchiveError, Result};
use crate::frame::binding;
use crate::read::on_pool;

/// The tiles to compare.
pub(super) enum Scope {
    All,
    Tiles(TilesBySlice),
}

impl Scope {
    pub(super) fn of(tiles: impl Iterator<Item = (SliceId, Tile)>) -> Self {
        let mut slices = TilesBySlice::new();
        for (slice, tile) in tiles {
            slices.entry(slice).or_default().insert(tile);
        }
        Self::Tiles(slices)
    }

    fn scan(&self, slice: SliceId, bodies: bool) -> Scan {
        let all = Scan { slices: vec![slice], cells: Cells::All, windows: Windows::ALL, bodies, older: true };
        let Self::Tiles(slices) = self else { return all };
        let cells: BTreeSet<_> = slices.get(&slice).into_iter().flatten().map(|tile| tile.cell).collect();
        Scan { cells: Cells::Ranges(cells.into_iter().map(|cell| (cell, cell)).collect()), ..all }
    }

    pub(super) fn holds(&self, slice: SliceId, tile: &Tile) -> bool {
        match self {
            Self::All => true,
            Self::Tiles(slices) => slices.get(&slice).is_some_and(|tiles| tiles.contains(tile)),
        }
    }
}

/// A scanned chunk without its body.
#[derive(Debug)]
pub(super) struct ObservedChunk {
    pub chunk: Chunk,
    /// Its parsed head, or the damage found in the head or, if bodies were scanned, in the body.
    pub head: std::result::Result<Head, Damage>,
    /// Size of head and body.
    pub bytes: usize,
}

impl ObservedChunk {
    fn new(mut chunk: Chunk, bodies: bool) -> Self {
        let head = Head::parse(&chunk.head, &binding(&chunk.key));
        let body_bytes = head.as_ref().map_or(chunk.body.len(), |head| head.body_bytes);
        let bytes = chunk.head.len() + body_bytes;
        let head = head.and_then(|head| match bodies {
            true => Body::open(&head, &chunk.body).map(drop).map(|()| head),
            false => Ok(head),
        });
        // Only the result of the check stays in memory, whatever the size of the bodies.
        chunk.body.clear();
        Self { chunk, head, bytes }
    }
}

/// The tiles of a slice in one archive, in order.
struct Tiles {
    groups: BoxStream<'static, Result<Vec<ObservedChunk>>>,
    waiting: VecDeque<ObservedChunk>,
    ended: bool,
}

impl Tiles {
    async fn open(store: &Arc<dyn Store>, dataset: &DatasetRef, scan: Scan) -> Result<Self> {
        let bodies = scan.bodies;
        let groups = store.scan(dataset, scan).await?.map_err(ArchiveError::from);
        let look = move |group: Vec<Chunk>| {
            on_pool(move || Ok(group.into_par_iter().map(|chunk| ObservedChunk::new(chunk, bodies)).collect()))
        };
        Ok(Self { groups: groups.and_then(look).boxed(), waiting: VecDeque::new(), ended: false })
    }

    /// The chunks of the next tile; empty at the end.
    async fn next(&mut self) -> Result<Vec<ObservedChunk>> {
        loop {
            if let Some(first) = self.waiting.front() {
                let tile = first.chunk.key.tile;
                let count = self.waiting.partition_point(|seen| seen.chunk.key.tile == tile);
                // A group of the engine may end inside a tile: a tile is complete once a chunk of the next one has
                // arrived.
                if self.ended || count < self.waiting.len() {
                    return Ok(self.waiting.drain(..count).collect());
                }
            } else if self.ended {
                return Ok(vec![]);
            }
            match self.groups.try_next().await? {
                Some(group) => self.waiting.extend(group),
                None => self.ended = true,
            }
        }
    }
}

/// One tile in both archives; one of them may have no chunks of it.
pub(super) struct Pair {
    pub tile: Tile,
    pub source: Vec<ObservedChunk>,
    pub target: Vec<ObservedChunk>,
}

impl Pair {
    /// A hash of the set of chunks on the source; 0 if there are none.
    pub(super) fn source_print(&self) -> u64 {
        let ids: Vec<u8> = self.source.iter().flat_map(|seen| seen.chunk.key.id.to_bytes()).collect();
        if ids.is_empty() { 0 } else { xxh3_64(&ids) }
    }
}

/// The tiles of a slice in both archives.
pub(super) struct Pairs<'a> {
    scope: &'a Scope,
    slice: SliceId,
    source: Tiles,
    target: Tiles,
    ahead: (Vec<ObservedChunk>, Vec<ObservedChunk>),
}

impl<'a> Pairs<'a> {
    /// Scans heads; with `bodies`, also the bodies on the target.
    pub(super) async fn open(shared: &Shared, scope: &'a Scope, slice: SliceId, bodies: bool) -> Result<Self> {
        let mut target = Tiles::open(&shared.target, &shared.on_target(slice)?, scope.scan(slice, bodies)).await?;
        let mut source = Tiles::open(&shared.source, &shared.on_source(slice)?, scope.scan(slice, false)).await?;
        let ahead = (source.next().await?, target.next().await?);
        Ok(Self { scope, slice, source, target, ahead })
    }

    pub(super) async fn next(&mut self) -> Result<Option<Pair>> {
        loop {
            let tile = |chunks: &[ObservedChunk]| chunks.first().map(|seen| seen.chunk.key.tile);
            let (here, there) = (tile(&self.ahead.0), tile(&self.ahead.1));
            let Some(tile) = here.into_iter().chain(there).min() else { return Ok(None) };
            let mut pair = Pair { tile, source: vec![], target: vec![] };
            if here == Some(tile) {
                pair.source = std::mem::replace(&mut self.ahead.0, self.source.next().await?);
            }
            if there == Some(tile) {
                pair.target = std::mem::replace(&mut self.ahead.1, self.target.next().await?);
            }
            if self.scope.holds(self.slice, &tile) {
                return Ok(Some(pair));
            }
        }
    }
}
