//! One pass over the tiles of a dataset.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use chronotile_chunk::{Body, Head};
use chronotile_store::{Chunk, ChunkKey, Commit, DropSlice, StoreError};
use chronotile_types::{BatchId, Damage, SliceId, Tile};
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, TryStreamExt};
use rayon::prelude::*;

use super::ledger::Ledger;
use super::tiles::{ObservedChunk, Pair, Pairs, Scope};
use super::{Meter, Shared, marks, slices};
use crate::error::{ArchiveError, Result};
use crate::frame::binding;
use crate::read::on_pool;
use crate::report::{DamageReport, DatasetCopyReport};

/// Limits of a group of chunks that is fetched and put together.
const LOAD_BYTES: usize = 4 << 20;
const LOAD_CHUNKS: usize = 1_024;
/// Bytes of heads and keys of changed tiles that are collected before their chunks are exchanged.
const CHANGED_BYTES: usize = 32 << 20;
/// Estimated bytes that are kept for a chunk besides its head.
const KEY_BYTES: usize = 512;

/// A tile that changed on the source: the target has chunks that the source no longer has, or lacks rewritten ones.
struct Changed {
    missing: Vec<ObservedChunk>,
    superfluous: Vec<ObservedChunk>,
}

/// The result of transferring some chunks.
#[derive(Default)]
struct Transferred {
    chunks: u64,
    rows: u64,
    bytes: u64,
    removed: u64,
    /// Batches of chunks that could not be copied because their tile was rewritten meanwhile.
    held: Vec<BatchId>,
    /// Whether some of a tile was not transferred.
    skipped: bool,
    damage: Vec<DamageReport>,
}

impl Transferred {
    /// The result for a tile that stays unchanged: batches with missing or superfluous chunks are not finished there.
    fn none_of(wanted: &[ObservedChunk], superfluous: &[ObservedChunk]) -> Self {
        Self { held: batches(wanted.iter().chain(superfluous)), skipped: true, ..Self::default() }
    }
}

pub(super) struct Pass<'a, 'm> {
    shared: &'a Arc<Shared>,
    /// Chunks to put even if the target has them.
    again: &'a HashSet<ChunkKey>,
    /// Tiles whose print on the source is recorded.
    watched: &'a Scope,
    prints: HashMap<(SliceId, Tile), u64>,
    report: &'a mut DatasetCopyReport,
    meter: &'a mut Meter<'m>,
    /// The source's catalog when the pass began.
    plan: Ledger,
    /// Number of schema versions that the target knows, by the number of the dataset in its group.
    versions: HashMap<u8, usize>,
    load: Vec<ObservedChunk>,
    load_bytes: usize,
    changed: Vec<Changed>,
    changed_bytes: usize,
    running: FuturesUnordered<BoxFuture<'static, Result<Transferred>>>,
    held: HashSet<BatchId>,
    skipped: bool,
    /// Batches of the chunks that the target has or is being sent.
    sent: HashSet<BatchId>,
}

/// The result of a pass.
pub(super) struct PassResult {
    /// Whether it found nothing new.
    pub caught_up: bool,
    /// Whether the target has, for every batch with chunks there, the same record as the source.
    pub settled: bool,
    /// Prints of the watched tiles on the source.
    pub prints: HashMap<(SliceId, Tile), u64>,
}

impl<'a, 'm> Pass<'a, 'm> {
    pub(super) async fn begin(
        shared: &'a Arc<Shared>,
        again: &'a HashSet<ChunkKey>,
        watched: &'a Scope,
        report: &'a mut DatasetCopyReport,
        meter: &'a mut Meter<'m>,
    ) -> Result<Self> {
        let (mut there, plan) = look(shared).await?;
        // This change precedes the first chunk: chunks come before the records of their batches, so readers of the
        // target must look up the records, also for rows of consolidated chunks.
        shared.into.set_unsettled(true).await?;
        // Must come before chunks of another version of a batch are added to those on the target.
        marks::unmark(shared, &mut there, &plan).await?;
        // Read after the plan, so that the columns of all batches in the plan are known.
        let versions = shared.claim.adopt_columns(shared).await?;
        Ok(Self {
            shared,
            again,
            watched,
            prints: HashMap::new(),
            report,
            meter,
            plan,
            versions,
            load: vec![],
            load_bytes: 0,
            changed: vec![],
            changed_bytes: 0,
            running: FuturesUnordered::new(),
            held: HashSet::new(),
            skipped: false,
            sent: HashSet::new(),
        })
    }

    pub(super) async fn run(mut self) -> Result<PassResult> {
        // Phase 1: put what the target lacks, and collect the tiles that have changed.
        for slice in slices(self.shared, &Scope::All).await? {
            if !self.drop_retired(slice).await? {
                self.slice(slice).await?;
            }
        }
        self.send_load().await?;
        self.drain(0).await?;
        // Phase 2: the chunks of unchanged tiles are durable now, or their batches are `held`. Read both catalogs
        // again, and exchange the chunks of changed tiles.
        let (mut there, now) = look(self.shared).await?;
        self.exchange(&mut there, &now).await?;
        marks::copy_retired(self.shared).await?;
        // Phase 3: all chunks are durable now, or their batches are `held`. Mark the batches that had the same record
        // before and after the chunks were copied: another one may have chunks that this pass did not see.
        let due = |id: &BatchId| now.is_as_in(*id, &self.plan) && !self.held.contains(id) && !there.is_as_in(*id, &now);
        let due: Vec<BatchId> = now.finished.keys().copied().filter(due).collect();
        let found_new = !due.is_empty() || !self.held.is_empty() || self.skipped;
        let (finished, removed) = marks::mark(self.shared, due, &mut there, &now).await?;
        self.report.batches_copied += finished;
        self.report.batches_removed += removed;
        let settled = self.sent.iter().all(|batch| there.is_as_in(*batch, &now));
        Ok(PassResult { caught_up: !found_new, settled, prints: self.prints })
    }

    /// Drops the slice on the target if it was retired on the source; returns whether it was.
    async fn drop_retired(&mut self, slice: SliceId) -> Result<bool> {
        if self.shared.source.slices(&self.shared.home).await?.contains(&slice)
            || !marks::is_retired(self.shared, slice).await?
        {
            return Ok(false);
        }
        // Check that the claim still holds. As on the source, the record of a retired slice comes before the drop.
        look(self.shared).await?;
        marks::copy_retired(self.shared).await?;
        self.shared.target.drop_slice(&self.shared.on_target(slice)?, slice, DropSlice::default()).await?;
        self.shared.into.known_slices(|known| known.remove(&slice));
        self.report.slices_dropped += 1;
        Ok(true)
    }

    async fn slice(&mut self, slice: SliceId) -> Result<()> {
        match self.compare(slice).await {
            // A scan may fail if its slice is dropped meanwhile; the next pass finds the slice retired.
            Err(error) if !self.shared.source.slices(&self.shared.home).await?.contains(&slice) => {
                self.skipped = true;
                // Scanning a slice that neither archive has does not fail, so any other error is real.
                if marks::is_retired(self.shared, slice).await? { Ok(()) } else { Err(error) }
            }
            result => result,
        }
    }

    async fn compare(&mut self, slice: SliceId) -> Result<()> {
        let mut pairs = Pairs::open(self.shared, &Scope::All, slice, false).await?;
        while let Some(pair) = pairs.next().await? {
            if self.watched.holds(slice, &pair.tile) {
                self.prints.insert((slice, pair.tile), pair.source_print());
            }
            self.tile(pair).await?;
            self.meter.tile();
        }
        Ok(())
    }

    async fn tile(&mut self, pair: Pair) -> Result<()> {
        let ours: HashSet<ChunkKey> = pair.source.iter().map(|seen| seen.chunk.key).collect();
        let theirs: HashSet<ChunkKey> = pair.target.iter().map(|seen| seen.chunk.key).collect();
        let lacks = |seen: &ObservedChunk| !theirs.contains(&seen.chunk.key) || self.again.contains(&seen.chunk.key);
        let missing: Vec<ObservedChunk> =
            pair.source.into_iter().filter(|seen| lacks(seen) && is_wanted(&self.plan, seen)).collect();
        let (common, superfluous): (Vec<ObservedChunk>, Vec<ObservedChunk>) =
            pair.target.into_iter().partition(|seen| ours.contains(&seen.chunk.key));
        self.sent.extend(batches(common.iter().chain(&missing)));
        self.check_sizes(&missing)?;
        let newest = missing.iter().filter_map(|seen| seen.head.as_ref().ok()).map(|head| head.schema_version).max();
        let frame = missing
            .first()
            .map(|seen| self.shared.into.frame_of(seen.chunk.key.slice, seen.chunk.key.tile.window))
            .transpose()?;
        let number = frame.and_then(|frame| Some(frame.spec.group.as_ref()?.number)).unwrap_or(0);
        // Schema versions count from 0, so the version `known` is the first one that the target does not know.
        let unknown = |newest: u32| self.versions.get(&number).is_none_or(|known| newest as usize >= *known);
        if newest.is_some_and(unknown) {
            self.versions = self.shared.claim.adopt_columns(self.shared).await?;
        }
        // A consolidated chunk may contain rows newer than the plan: the catalogs are then read again first.
        if superfluous.is_empty() && missing.iter().all(|seen| is_planned(&self.plan, seen)) {
            for seen in missing {
                self.load_bytes += seen.bytes;
                self.load.push(seen);
                if self.load_bytes >= LOAD_BYTES || self.load.len() >= LOAD_CHUNKS {
                    self.send_load().await?;
                }
            }
            return Ok(());
        }
        let kept = missing.iter().chain(&superfluous);
        self.changed_bytes += kept.map(|seen| KEY_BYTES + seen.chunk.head.len()).sum::<usize>();
        self.changed.push(Changed { missing, superfluous });
        if self.changed_bytes >= CHANGED_BYTES {
            let (mut there, now) = look(self.shared).await?;
            self.exchange(&mut there, &now).await?;
        }
        Ok(())
    }

    /// Refuses a tile with a chunk that is too large for the target before putting anything of the tile.
    fn check_sizes(&self, missing: &[ObservedChunk]) -> Result<()> {
        let target = self.shared.target.capabilities();
        let Some(seen) = missing.iter().find(|seen| seen.bytes > target.chunk_bytes_max) else { return Ok(()) };
        let (key, dataset) = (seen.chunk.key, &self.shared.home.name);
        let what = format!("chunk {} of dataset {dataset}, {}", key.id, key.tile);
        let (bytes, bytes_max, engine) = (seen.bytes, target.chunk_bytes_max, target.engine);
        Err(StoreError::TooLarge { what, bytes, bytes_max, engine }.into())
    }

    /// Sends the collected chunks as soon as a worker is free.
    async fn send_load(&mut self) -> Result<()> {
        let load = std::mem::take(&mut self.load);
        self.load_bytes = 0;
        if load.is_empty() {
            return Ok(());
        }
        // One worker becomes free for this transfer. The number of workers is at least 1.
        self.drain(self.shared.workers - 1).await?;
        self.running.push(Box::pin(transfer(self.shared.clone(), load, vec![])));
        Ok(())
    }

    /// Waits until at most `left` workers are busy.
    async fn drain(&mut self, left: usize) -> Result<()> {
        while self.running.len() > left {
            let Some(moved) = self.running.try_next().await? else { return Ok(()) };
            self.report.chunks_copied += moved.chunks;
            self.report.rows_copied += moved.rows;
            self.report.bytes_copied += moved.bytes;
            self.report.chunks_removed += moved.removed;
            self.report.damage.extend(moved.damage);
            self.meter.bytes += moved.bytes;
            self.held.extend(moved.held);
            self.skipped |= moved.skipped;
        }
        Ok(())
    }

    /// Exchanges the chunks of changed tiles. Both catalogs must have been read after the chunks were scanned.
    async fn exchange(&mut self, there: &mut Ledger, now: &Ledger) -> Result<()> {
        self.changed_bytes = 0;
        let changed = std::mem::take(&mut self.changed);
        if changed.is_empty() {
            return Ok(());
        }
        // Changed batches are hidden before the first removal: a batch that counts on the target has all its rows
        // there.
        marks::unmark(self.shared, there, now).await?;
        for Changed { missing, superfluous } in changed {
            self.drain(self.shared.workers - 1).await?;
            self.running.push(Box::pin(transfer(self.shared.clone(), missing, superfluous)));
        }
        self.drain(0).await
    }
}

/// Reads the catalogs of target and source. In this order, the source knows every batch that a copy has brought.
///
/// # Errors
/// Batches on the target that did not come from the source; another copy that has taken over.
async fn look(shared: &Shared) -> Result<(Ledger, Ledger)> {
    let there = Ledger::read(shared.target.as_ref(), &shared.home).await?;
    let now = Ledger::read(shared.source.as_ref(), &shared.home).await?;
    if let Some(reason) = there.foreign(&shared.claim.record.copy, &now) {
        return Err(ArchiveError::NotACopy { dataset: shared.home.name.clone(), reason });
    }
    shared.claim.check(shared).await?;
    Ok((there, now))
}

/// Whether a chunk of the source has rows of a finished batch. Consolidated chunks always do, since unfinished
/// batches are not consolidated.
fn is_wanted(plan: &Ledger, seen: &ObservedChunk) -> bool {
    match &seen.head {
        Ok(head) => match &head.origins[..] {
            [origin] => plan.has_rows_of(origin),
            _ => true,
        },
        // Its batches are unknown; damaged chunks are copied and reported.
        Err(_) => true,
    }
}

/// Whether all rows of a chunk belong to batches that were finished when the pass began.
fn is_planned(plan: &Ledger, seen: &ObservedChunk) -> bool {
    let known = |head: &Head| head.origins.iter().all(|origin| plan.has_rows_of(origin));
    seen.head.as_ref().is_ok_and(known)
}

fn batches<'a>(chunks: impl Iterator<Item = &'a ObservedChunk>) -> Vec<BatchId> {
    let heads = chunks.filter_map(|seen| seen.head.as_ref().ok());
    let batches: BTreeSet<BatchId> = heads.flat_map(|head| head.origins.iter().map(|origin| origin.batch)).collect();
    batches.into_iter().collect()
}

/// Fetches and puts chunks, and removes superfluous chunks of the same tile. If the tile is rewritten meanwhile on
/// either side, removes nothing.
async fn transfer(
    shared: Arc<Shared>,
    wanted: Vec<ObservedChunk>,
    superfluous: Vec<ObservedChunk>,
) -> Result<Transferred> {
    let mut moved = Transferred::default();
    let mut loads = loads(&wanted);
    if loads.is_empty() && !superfluous.is_empty() {
        // A tile with superfluous chunks alone still needs one commit, which puts nothing.
        loads.push(&[]);
    }
    let count = loads.len();
    for (number, load) in loads.into_iter().enumerate() {
        let keys: Vec<ChunkKey> = load.iter().map(|seen| seen.chunk.key).collect();
        let put = shared.from.fetch(keys).await?;
        if put.len() < load.len() {
            let found: HashSet<ChunkKey> = put.iter().map(|chunk| chunk.key).collect();
            let gone = load.iter().filter(|seen| !found.contains(&seen.chunk.key));
            moved.held.extend(batches(gone));
            moved.skipped = true;
            if !superfluous.is_empty() {
                // The chunks that now have the rows of the missing ones are unknown, so the superfluous ones stay until
                // the next pass.
                return Ok(Transferred { damage: moved.damage, ..Transferred::none_of(&wanted, &superfluous) });
            }
        }
        // Later writes to the target need stamps after those of the copied rows, whatever clock stamped these.
        let clock = shared.into.clock();
        load.iter().filter_map(|seen| seen.head.as_ref().ok()).for_each(|head| clock.saw_head(head));
        let (chunks, rows, bytes) = totals(&put);
        let (put, damage) = check(put).await?;
        moved.damage.extend(damage);
        let last = number + 1 == count;
        // Superfluous chunks go with the last load, once all chunks that replace them are there: no row is absent in
        // between.
        let remove: Vec<ChunkKey> = if last { superfluous.iter().map(|seen| seen.chunk.key).collect() } else { vec![] };
        let removed = remove.len() as u64;
        let commit = Commit { put, require_removed: removed > 0, remove, ..Commit::default() };
        match shared.into.commit(commit).await {
            Ok(()) => {}
            Err(ArchiveError::Store(StoreError::ChunkConflict { .. })) => {
                return Ok(Transferred::none_of(&wanted, &superfluous));
            }
            Err(error) => return Err(error),
        }
        moved.chunks += chunks;
        moved.rows += rows;
        moved.bytes += bytes;
        moved.removed += removed;
    }
    Ok(moved)
}

/// Splits chunks into groups of bounded size.
fn loads(wanted: &[ObservedChunk]) -> Vec<&[ObservedChunk]> {
    let mut loads = Vec::new();
    let (mut start, mut bytes) = (0, 0);
    for (at, seen) in wanted.iter().enumerate() {
        if at > start && (bytes + seen.bytes > LOAD_BYTES || at - start == LOAD_CHUNKS) {
            loads.push(&wanted[start..at]);
            (start, bytes) = (at, 0);
        }
        bytes += seen.bytes;
    }
    if start < wanted.len() {
        loads.push(&wanted[start..]);
    }
    loads
}

fn totals(chunks: &[Chunk]) -> (u64, u64, u64) {
    let rows = chunks.iter().map(|chunk| u64::from(chunk.rows)).sum();
    let bytes = chunks.iter().map(|chunk| (chunk.head.len() + chunk.body.len()) as u64).sum();
    (chunks.len() as u64, rows, bytes)
}

/// Returns the chunks, with reports on the damaged ones.
async fn check(chunks: Vec<Chunk>) -> Result<(Vec<Chunk>, Vec<DamageReport>)> {
    on_pool(move || {
        let damage = chunks.par_iter().filter_map(|chunk| {
            let damage = checked(chunk).err()?;
            let (tile, id) = (chunk.key.tile, chunk.key.id);
            Some(DamageReport { tile, chunk: id, damage: Some(damage), rows: chunk.rows.into() })
        });
        let damage = damage.collect();
        Ok((chunks, damage))
    })
    .await
}

fn checked(chunk: &Chunk) -> std::result::Result<(), Damage> {
    let head = Head::parse(&chunk.head, &binding(&chunk.key))?;
    if head.rows != chunk.rows {
        return Err(Damage::malformed("its row count differs from the stored one"));
    }
    Body::open(&head, &chunk.body).map(drop)
}
