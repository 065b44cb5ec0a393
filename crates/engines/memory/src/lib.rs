//! An in-memory engine, for tests and for data that need not outlive the process.
//!
//! It is the simplest implementation of the [`Store`] contract: ordered maps under one lock. A commit is atomic; a scan sees the
//! state at its start. Data is as durable as the process.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use chronotile_store::{
    CLOCK_KEY, CallOptions, Capabilities, Cells, Chunk, ChunkKey, ClockSource, Commit, DatasetRef, DropSlice, Expect,
    Record, RecordPut, Result, Scan, Store, StoreError, TileStatistics, Visibility,
};
use chronotile_types::{Cell, ChunkId, DatasetName, SliceId, Tile, Window};
use futures::stream::{self, BoxStream, StreamExt};
use tokio::sync::Mutex;

const ENGINE: &str = "memory";

/// Maximum size of a chunk, head and body, in bytes: the limit of the SQLite engine, so that tests behave alike on both.
pub const CHUNK_BYTES_MAX: usize = 64 << 20;

/// Maximum number of chunks that a scan returns at once.
const GROUP_CHUNKS_MAX: usize = 4_096;
/// Size in bytes at which a scan returns the chunks gathered so far.
const GROUP_BYTES_MAX: usize = 8 << 20;

#[derive(Clone, Debug)]
struct Stored {
    rows: u32,
    head: Bytes,
    body: Bytes,
}

type Slice = BTreeMap<(Tile, ChunkId), Stored>;

#[derive(Clone, Debug, Default)]
struct State {
    records: BTreeMap<String, Bytes>,
    slices: BTreeMap<(DatasetName, SliceId), Slice>,
    clock_us: i64,
}

/// The engine. Clones of the [`Arc`] around it share its content.
#[derive(Debug, Default)]
pub struct MemoryStore {
    state: Mutex<State>,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            engine: ENGINE,
            atomic_commits: true,
            atomic_drops: true,
            group_commits: true,
            records_changes: false,
            clock: ClockSource::LatestStamp,
            chunk_bytes_max: CHUNK_BYTES_MAX,
            cell_bytes_good: None,
            cheap_missing_slices: true,
            native_rows: false,
        }
    }

    fn with_options(&self, _options: &CallOptions) -> Result<Arc<dyn Store>> {
        Err(CallOptions::unsupported(ENGINE))
    }

    fn with_visibility(&self, _visibility: Visibility) -> Option<Arc<dyn Store>> {
        None
    }

    async fn commit(&self, dataset: &DatasetRef, commit: Commit) -> Result<()> {
        let dataset = dataset.chunks_only(ENGINE)?;
        commit.check_sizes(ENGINE, CHUNK_BYTES_MAX)?;
        let mut state = self.state.lock().await;
        // Everything that can fail is checked before the first change, so a refused commit leaves no trace.
        check_records(&state, commit.before.iter().chain(&commit.after))?;
        check_chunks(&state, dataset, &commit)?;
        put_records(&mut state, commit.before);
        for chunk in commit.put {
            if let Some(slice) = state.slices.get_mut(&(dataset.clone(), chunk.key.slice)) {
                let stored = Stored { rows: chunk.rows, head: chunk.head, body: chunk.body };
                slice.insert((chunk.key.tile, chunk.key.id), stored);
            }
        }
        for key in commit.remove {
            if let Some(slice) = state.slices.get_mut(&(dataset.clone(), key.slice)) {
                slice.remove(&(key.tile, key.id));
            }
        }
        put_records(&mut state, commit.after);
        state.clock_us = state.clock_us.max(commit.stamp_us);
        Ok(())
    }

    async fn scan(&self, of: &DatasetRef, scan: Scan) -> Result<BoxStream<'static, Result<Vec<Chunk>>>> {
        let dataset = of.chunks_only(ENGINE)?;
        let state = self.state.lock().await;
        // The result is collected under the lock, so that it shows one state. Chunks share their bytes with the store.
        let mut groups = vec![];
        let mut group = vec![];
        let mut bytes = 0;
        for &slice in &scan.slices {
            let Some(chunks) = state.slices.get(&(dataset.clone(), slice)) else { continue };
            // Engines may leave out chunks of other windows. This one always does, so that tests detect callers that do not name
            // all the windows they need.
            let windows = of.windows_of(slice);
            let found = cell_ranges(&scan.cells).flat_map(|range| select(slice, chunks, range, &scan));
            for chunk in found.filter(|chunk| windows.contains(chunk.key.tile.window)) {
                bytes += chunk.head.len() + chunk.body.len();
                group.push(chunk);
                if group.len() >= GROUP_CHUNKS_MAX || bytes >= GROUP_BYTES_MAX {
                    groups.push(Ok(std::mem::take(&mut group)));
                    bytes = 0;
                }
            }
        }
        if !group.is_empty() {
            groups.push(Ok(group));
        }
        Ok(stream::iter(groups).boxed())
    }

    async fn fetch(&self, dataset: &DatasetRef, keys: Vec<ChunkKey>) -> Result<Vec<Chunk>> {
        let dataset = dataset.chunks_only(ENGINE)?;
        let state = self.state.lock().await;
        let found = |key: ChunkKey| {
            let stored = state.slices.get(&(dataset.clone(), key.slice))?.get(&(key.tile, key.id))?;
            Some(chunk_of(key, stored, true))
        };
        Ok(keys.into_iter().filter_map(found).collect())
    }

    async fn record(&self, key: &str) -> Result<Option<Bytes>> {
        if key == CLOCK_KEY {
            let clock_us = self.state.lock().await.clock_us;
            return Ok((clock_us > 0).then(|| clock_us.to_string().into()));
        }
        Ok(self.state.lock().await.records.get(key).cloned())
    }

    async fn records(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<Record>> {
        let state = self.state.lock().await;
        let start = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let records = state.records.range::<str, _>((start, Bound::Unbounded));
        let records = records.take_while(|(key, _)| key.starts_with(prefix)).take(limit);
        Ok(records.map(|(key, value)| Record { key: key.clone(), value: value.clone() }).collect())
    }

    async fn create_slice(&self, dataset: &DatasetRef, slice: SliceId) -> Result<()> {
        let dataset = dataset.chunks_only(ENGINE)?;
        self.state.lock().await.slices.entry((dataset.clone(), slice)).or_default();
        Ok(())
    }

    async fn drop_slice(&self, dataset: &DatasetRef, slice: SliceId, when: DropSlice) -> Result<()> {
        let dataset = dataset.chunks_only(ENGINE)?;
        let mut state = self.state.lock().await;
        if when.holding.is_some_and(|holding| holding != statistics(&state, dataset, slice)) {
            return Err(StoreError::SliceConflict { dataset: dataset.clone(), slice });
        }
        check_records(&state, when.before.iter())?;
        put_records(&mut state, when.before);
        state.slices.remove(&(dataset.clone(), slice));
        Ok(())
    }

    async fn slices(&self, dataset: &DatasetRef) -> Result<Vec<SliceId>> {
        let dataset = dataset.chunks_only(ENGINE)?;
        let state = self.state.lock().await;
        Ok(state.slices.keys().filter(|(name, _)| name == dataset).map(|(_, slice)| *slice).collect())
    }

    async fn statistics(&self, dataset: &DatasetRef, slice: SliceId) -> Result<Vec<TileStatistics>> {
        let dataset = dataset.chunks_only(ENGINE)?;
        Ok(statistics(&*self.state.lock().await, dataset, slice))
    }
}

fn statistics(state: &State, dataset: &DatasetName, slice: SliceId) -> Vec<TileStatistics> {
    let mut tiles: Vec<TileStatistics> = vec![];
    for ((tile, id), stored) in state.slices.get(&(dataset.clone(), slice)).into_iter().flatten() {
        if tiles.last().is_none_or(|last| last.tile != *tile) {
            tiles.push(TileStatistics::none(*tile));
        }
        if let Some(last) = tiles.last_mut() {
            last.add(*id, stored.rows, (stored.head.len() + stored.body.len()) as u64);
        }
    }
    tiles
}

/// Checks conditions in order. A condition after a put of the same key is compared with the value of that put.
fn check_records<'a>(state: &'a State, puts: impl Iterator<Item = &'a RecordPut>) -> Result<()> {
    let mut changed = BTreeMap::new();
    for put in puts {
        let current = changed.get(&put.key).copied().unwrap_or_else(|| state.records.get(&put.key));
        let holds = match &put.expect {
            Expect::Any => true,
            Expect::Absent => current.is_none(),
            Expect::Is(value) => current == Some(value),
        };
        if !holds {
            return Err(StoreError::RecordConflict { key: put.key.clone() });
        }
        changed.insert(&put.key, put.value.as_ref());
    }
    Ok(())
}

fn check_chunks(state: &State, dataset: &DatasetName, commit: &Commit) -> Result<()> {
    for chunk in &commit.put {
        if !state.slices.contains_key(&(dataset.clone(), chunk.key.slice)) {
            return Err(StoreError::NoSlice { dataset: dataset.clone(), slice: chunk.key.slice });
        }
    }
    for key in commit.remove.iter().filter(|_| commit.require_removed) {
        let slice = state.slices.get(&(dataset.clone(), key.slice));
        let stored = slice.is_some_and(|slice| slice.contains_key(&(key.tile, key.id)));
        // A chunk that the commit itself puts exists by the time it is removed.
        if !stored && !commit.put.iter().any(|chunk| chunk.key == *key) {
            return Err(StoreError::ChunkConflict { dataset: dataset.clone(), key: *key });
        }
    }
    Ok(())
}

fn put_records(state: &mut State, puts: Vec<RecordPut>) {
    for put in puts {
        match put.value {
            Some(value) => state.records.insert(put.key, value),
            None => state.records.remove(&put.key),
        };
    }
}

fn cell_ranges(cells: &Cells) -> impl Iterator<Item = (Cell, Cell)> {
    let ranges: Arc<[_]> = match cells {
        Cells::All => Arc::new([(Cell(i64::MIN), Cell(i64::MAX))]),
        Cells::Ranges(ranges) => ranges.clone(),
    };
    (0..ranges.len()).map(move |index| ranges[index])
}

fn select(slice: SliceId, chunks: &Slice, (first, last): (Cell, Cell), scan: &Scan) -> Vec<Chunk> {
    // `BTreeMap::range` panics if the start comes after the end.
    if first > last {
        return vec![];
    }
    let start = (Tile { cell: first, window: Window(i32::MIN) }, ChunkId(0));
    let end = (Tile { cell: last, window: Window(i32::MAX) }, ChunkId(u128::MAX));
    let wanted = |(tile, id): &(Tile, ChunkId)| scan.windows.contains(tile.window) && (scan.older || !id.is_older());
    let chunks = chunks.range(start..=end).filter(|(key, _)| wanted(key));
    chunks.map(|(&(tile, id), stored)| chunk_of(ChunkKey { slice, tile, id }, stored, scan.bodies)).collect()
}

fn chunk_of(key: ChunkKey, stored: &Stored, body: bool) -> Chunk {
    let body = if body { stored.body.clone() } else { Bytes::new() };
    Chunk { key, rows: stored.rows, head: stored.head.clone(), body }
}
