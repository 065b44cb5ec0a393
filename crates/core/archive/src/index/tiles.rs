//! The tiles that a query covers, from the heads of their chunks or from the cache.

use std::sync::Arc;

use bytes::Bytes;
use chronotile_chunk::Head;
use chronotile_store::{Cells, Chunk, ChunkKey, Scan, Store, changes_key};
use chronotile_types::{Cell, SliceId};
use futures::TryStreamExt;
use futures::stream::BoxStream;
use hashbrown::HashSet;

use super::cache::{TILES_BYTES, Tiles};
use super::observed::{ObservedTile, SliceTiles};
use crate::dataset::Dataset;
use crate::error::{ArchiveError, Result};
use crate::frame::Frame;
use crate::read::groups::{HEADS, scan};
use crate::read::query::Query;
use crate::read::slices::slices_in;
use crate::read::visible::DecideOutcome;

impl SliceTiles {
    /// Observes the tiles that the query covers in one slice. A tile with only a part of a batch gets another print
    /// than it will have later, which readers of an index notice.
    pub(crate) async fn observe(dataset: &Dataset, query: &Query, slice: SliceId) -> Result<Self> {
        let found = scan(dataset.store_arc(), query, vec![slice], HEADS).await?;
        Ok(Self::of_query(query, found).await?.0)
    }

    /// The tiles of a scan with rows that count. Also returns whether some batches ended so late that some of their
    /// rows may have been missed.
    async fn of_query(query: &Query, mut found: BoxStream<'static, Result<Vec<Chunk>>>) -> Result<(Self, bool)> {
        let (mut tiles, mut late) = (Self::default(), false);
        while let Some(chunks) = found.try_next().await? {
            late |= query.decides_late(&chunks).await?;
            for chunk in chunks {
                let head = query.frame.head(&chunk)?;
                if !query.hides_all_of(&head) {
                    tiles.push(chunk.key, &head, !query.hides_rows_of(&head));
                }
            }
        }
        Ok((tiles.finished(), late))
    }

    /// All tiles of a slice, whether or not their rows count; `None` if they are too large for the cache.
    async fn whole(store: &dyn Store, frame: &Frame, slice: SliceId) -> Result<Option<Self>> {
        let windows = frame.spec.windows().into();
        let scan = Scan { slices: vec![slice], cells: Cells::All, windows, bodies: false, older: true };
        let mut found = store.scan(&frame.dataset, scan).await?;
        let (mut tiles, mut sets) = (Self::default(), HashSet::new());
        while let Some(chunks) = found.try_next().await? {
            for chunk in chunks {
                let head = frame.head(&chunk)?;
                // Each read decides by `heads` which rows count, since that may change without a change of the chunks.
                tiles.push(chunk.key, &head, true);
                if !sets.contains(&head.origins[..]) {
                    sets.insert(head.origins.to_vec());
                    tiles.heads_bytes += size_of::<Head>() + size_of_val(&head.origins[..]);
                    tiles.heads.push(head.without_text_filters());
                }
            }
            if tiles.memory_bytes() > TILES_BYTES / 2 {
                return Ok(None);
            }
        }
        let mut tiles = tiles.finished();
        tiles.by_window = (0..).zip(&tiles.tiles).map(|(at, seen)| (seen.tile.window, at)).collect();
        tiles.by_window.sort_unstable();
        Ok(Some(tiles))
    }
}

/// The tiles that a query covers, in the order of a scan.
#[derive(Default)]
pub(crate) struct CoveredTiles {
    parts: Vec<Arc<SliceTiles>>,
    /// For each tile, its part and its position there.
    positions: Vec<(u32, u32)>,
}

impl CoveredTiles {
    /// Looks at everything that the query covers, including slices that were created meanwhile.
    pub(crate) async fn new(dataset: &Dataset, query: &mut Query) -> Result<Self> {
        let (looked, late) = Self::look(dataset, query, &query.slices).await?;
        let Some(visible) = &query.visible else { return Ok(looked) };
        visible.looked_at_all(&query.frame, late)?;
        if !late {
            return Ok(looked);
        }
        // A dataset that was created under the name meanwhile has only batches that are late.
        dataset.definition(&query.frame).await?;
        // The second look finds every batch that has ended by now completely.
        query.slices = slices_in(dataset.store(), &query.frame, query.windows).await?;
        Ok(Self::look(dataset, query, &query.slices).await?.0)
    }

    /// Also returns whether some batches ended so late that some of their rows may have been missed.
    async fn look(dataset: &Dataset, query: &Query, slices: &[SliceId]) -> Result<(Self, bool)> {
        let (mut looked, mut late) = (Self::default(), false);
        let mut unknown: Vec<SliceId> = Vec::new();
        for slice in slices {
            let (tiles, found) = known(dataset, query, *slice).await?;
            late |= found == DecideOutcome::Late;
            match tiles {
                Some(tiles) => {
                    // Earlier slices that are not cached come first, so that tiles stay in the order of a scan. One
                    // scan covers all of them.
                    late |= looked.push_scanned(dataset, query, std::mem::take(&mut unknown)).await?;
                    looked.push_cached(query, tiles);
                }
                None => unknown.push(*slice),
            }
        }
        late |= looked.push_scanned(dataset, query, unknown).await?;
        Ok((looked, late))
    }

    async fn push_scanned(&mut self, dataset: &Dataset, query: &Query, slices: Vec<SliceId>) -> Result<bool> {
        if slices.is_empty() {
            return Ok(false);
        }
        let found = scan(dataset.store_arc(), query, slices, HEADS).await?;
        let (tiles, late) = SliceTiles::of_query(query, found).await?;
        let part = self.parts.len() as u32;
        self.positions.extend((0..tiles.tiles.len() as u32).map(|position| (part, position)));
        self.parts.push(Arc::new(tiles));
        Ok(late)
    }

    fn push_cached(&mut self, query: &Query, tiles: Arc<SliceTiles>) {
        let part = self.parts.len() as u32;
        let positions = tiles.in_windows(query.windows).into_iter();
        let covered = |position: &u32| covers(&query.cells, tiles.tiles[*position as usize].tile.cell);
        self.positions.extend(positions.filter(covered).map(|position| (part, position)));
        self.parts.push(tiles);
    }

    /// Number of the tiles.
    pub(crate) fn len(&self) -> usize {
        self.positions.len()
    }

    pub(crate) fn tile(&self, at: usize) -> &ObservedTile {
        let (part, position) = self.positions[at];
        &self.parts[part as usize].tiles[position as usize]
    }

    pub(crate) fn tiles(&self) -> impl Iterator<Item = &ObservedTile> {
        (0..self.len()).map(|at| self.tile(at))
    }

    /// Keys of the chunks of a tile.
    pub(crate) fn keys(&self, at: usize) -> &[ChunkKey] {
        let (part, position) = self.positions[at];
        let part = &self.parts[part as usize];
        &part.keys[part.tiles[position as usize].keys.clone()]
    }
}

fn covers(cells: &Cells, cell: Cell) -> bool {
    match cells {
        Cells::All => true,
        Cells::Ranges(ranges) => {
            let begun = ranges.partition_point(|(first, _)| *first <= cell);
            begun > 0 && cell <= ranges[begun - 1].1
        }
    }
}

/// All tiles of a slice, if they are cached (or can be) and all of their rows count. Also returns the result of
/// deciding about their attempts.
async fn known(dataset: &Dataset, query: &Query, slice: SliceId) -> Result<(Option<Arc<SliceTiles>>, DecideOutcome)> {
    let unknown = Ok((None, DecideOutcome::All));
    let (store, cache) = (dataset.store(), dataset.index_cache());
    let Some(state) = state_of(store, &query.frame, slice).await? else { return unknown };
    let tiles = match cache.tiles(slice, &state) {
        Tiles::Known(tiles) => tiles,
        Tiles::Fill if matches!(query.cells, Cells::All) => {
            let tiles = match SliceTiles::whole(store, &query.frame, slice).await {
                // The damage may be outside the query.
                Err(ArchiveError::Damaged { .. }) => None,
                tiles => tiles?.map(Arc::new),
            };
            // The tiles are valid for this state only if the slice is still in it after the scan.
            if state_of(store, &query.frame, slice).await?.as_ref() != Some(&state) {
                return unknown;
            }
            cache.keep_tiles(slice, state, tiles.clone());
            let Some(tiles) = tiles else { return unknown };
            tiles
        }
        Tiles::Once | Tiles::Fill | Tiles::TooMany => return unknown,
    };
    let Some(visible) = &query.visible else { return Ok((Some(tiles), DecideOutcome::All)) };
    let found = visible.decide_now(tiles.heads.iter()).await?;
    let hidden = tiles.heads.iter().any(|head| query.hides_rows_of(head));
    Ok(((!hidden).then_some(tiles), found))
}

/// A value that differs after every change of a slice; `None` if the engine does not provide one.
async fn state_of(store: &dyn Store, frame: &Frame, slice: SliceId) -> Result<Option<Bytes>> {
    if !store.capabilities().records_changes {
        return Ok(None);
    }
    store.record(&changes_key(&frame.dataset.name, slice)).await.map_err(ArchiveError::from)
}
