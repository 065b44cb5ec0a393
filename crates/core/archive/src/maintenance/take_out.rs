//! Removes the rows of a batch, also from chunks that they share with other batches.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use chronotile_chunk::Origin;
use chronotile_store::{ChunkKey, Commit, StoreError};
use chronotile_types::{BatchId, DatasetName, SliceId, Tile};

use crate::catalog::{ChunkRef, fence};
use crate::dataset::Dataset;
use crate::error::{ArchiveError, Result};
use crate::frame::Frame;
use crate::maintenance::retire::SliceWatch;
use crate::maintenance::rewrite::{FETCH_CHUNKS, Kind, VersionSplit, rewrite, sets};
use crate::read::on_pool;
use crate::read::part::ParsedChunk;

/// The attempts at a batch whose rows are removed. Attempts that begin during the removal are never among them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemovedAttempts {
    pub batch: BatchId,
    /// Attempts with this stamp or a later one are kept.
    pub before_us: i64,
    /// This attempt is kept too.
    pub keep: Option<Origin>,
}

impl RemovedAttempts {
    fn has(&self, origin: &Origin) -> bool {
        origin.batch == self.batch && origin.written_us < self.before_us && Some(*origin) != self.keep
    }
}

impl Dataset {
    /// Removes rows of a batch. `what` gives the chunks that the batch was written as, and further tiles to search.
    /// Rows are rewritten out of consolidated chunks; `last`, the commit that ends the removal, also removes the chunks
    /// that the batch was written as. Where slices are closed before they are dropped, `last` is committed separately,
    /// once the rows are gone and no watched slice was dropped with them.
    ///
    /// A consolidation that has read one of these chunks may still commit. So the chunks are looked up first, then the
    /// consolidated ones are cleared, and the last commit requires every chunk that was found: if one was consolidated
    /// meanwhile, the commit fails and the removal is repeated.
    async fn clear_out(
        &self,
        of: RemovedAttempts,
        what: (&[ChunkRef], &BTreeSet<(SliceId, Tile)>),
        last: Commit,
        watch: &SliceWatch,
    ) -> Result<()> {
        // Another process may have added columns, which rewritten chunks must keep.
        self.refresh_group().await?;
        let this = self.seeing_every_write();
        if !self.fence().needs_closing() {
            return this.take_away(of, what, last).await;
        }
        // Until the rows are gone, a process that moves the slice elsewhere may still copy them. The removal is
        // acknowledged only after a check that no such process has dropped the slice.
        this.take_away(of, what, Commit { before: last.before.clone(), ..Commit::default() }).await?;
        self.nothing_dropped(watch).await?;
        self.commit(last).await
    }

    /// Removes rows of a batch that no longer count, as [`Dataset::clear_out`] does.
    ///
    /// # Errors
    /// [`ArchiveError::SliceRetired`] if one of the slices is being dropped or was dropped meanwhile; the engine.
    pub(crate) async fn clear_attempts(
        &self,
        of: RemovedAttempts,
        what: (&[ChunkRef], &BTreeSet<(SliceId, Tile)>),
        last: Commit,
    ) -> Result<()> {
        let slices: BTreeSet<SliceId> = what.0.iter().map(|chunk| chunk.key.slice).collect();
        let slices = slices.into_iter().chain(what.1.iter().map(|(slice, _)| *slice)).collect::<BTreeSet<_>>();
        loop {
            let watch = self.watch(slices.clone()).await?;
            let mut last = last.clone();
            // On engines without closing, this condition takes the place of `nothing_dropped`: a drop since the watch
            // makes the commit fail, and the removal begins again.
            last.before.extend(self.fence().no_drop_since(&watch.observed));
            match self.clear_out(of, what, last, &watch).await {
                Err(error) if fence::has_changed(&error) => continue,
                cleared => cleared?,
            }
            break;
        }
        Ok(())
    }

    /// Removes the rows of a batch; `last` is part of the commit that removes the last of them.
    async fn take_away(
        &self,
        of: RemovedAttempts,
        (refs, tiles): (&[ChunkRef], &BTreeSet<(SliceId, Tile)>),
        last: Commit,
    ) -> Result<()> {
        loop {
            let remove = self.existing(refs).await?;
            self.take_out(of, refs, tiles).await?;
            let commit = Commit { remove, require_removed: true, ..last.clone() };
            match self.commit(commit).await {
                Err(ArchiveError::Store(StoreError::ChunkConflict { .. })) => continue,
                result => return result,
            }
        }
    }

    /// The chunks in `refs` that exist.
    pub(crate) async fn existing(&self, refs: &[ChunkRef]) -> Result<Vec<ChunkKey>> {
        let mut existing = Vec::new();
        for refs in refs.chunks(FETCH_CHUNKS) {
            let keys = refs.iter().map(|chunk| chunk.key).collect();
            let found = self.fetch(keys).await?;
            existing.extend(found.into_iter().map(|chunk| chunk.key));
        }
        // Two steps of a write may list the same chunk, and the second removal of a chunk in one commit would fail.
        existing.sort_unstable();
        existing.dedup();
        Ok(existing)
    }

    /// Removes rows of a batch from consolidated chunks. `refs` are the chunks that the batch was written as; those
    /// that still exist are left alone.
    async fn take_out(&self, of: RemovedAttempts, refs: &[ChunkRef], others: &BTreeSet<(SliceId, Tile)>) -> Result<()> {
        let mut tiles: BTreeMap<(SliceId, DatasetName), (Frame, BTreeSet<Tile>)> = BTreeMap::new();
        let written = refs.iter().map(|chunk| (chunk.key.slice, chunk.key.tile));
        for (slice, tile) in written.chain(others.iter().copied()) {
            let frame = self.frame_of(slice, tile.window)?;
            let place = (slice, frame.spec.name.clone());
            tiles.entry(place).or_insert_with(|| (frame, BTreeSet::new())).1.insert(tile);
        }
        let written: HashSet<ChunkKey> = refs.iter().map(|chunk| chunk.key).collect();
        for ((slice, _), (frame, tiles)) in tiles {
            while !self.take_out_once((&frame, slice), &tiles, &written, of).await? {}
        }
        Ok(())
    }

    /// One try; `false` if another process changed one of the tiles meanwhile.
    ///
    /// Removing rows from a chunk of newest versions may make an older version the newest again. So the older versions
    /// of that tile become ordinary rows first, and the next consolidation compares them.
    async fn take_out_once(
        &self,
        (frame, slice): (&Frame, SliceId),
        tiles: &BTreeSet<Tile>,
        written: &HashSet<ChunkKey>,
        of: RemovedAttempts,
    ) -> Result<bool> {
        let unwanted = move |origin: &Origin| of.has(origin);
        // Phase 1: find the chunks by their heads. Those in `written` are left out, since the last commit of the
        // removal removes them as a whole.
        let mut mixed: Vec<ParsedChunk> = Vec::new();
        let mut exposed: HashSet<Tile> = HashSet::new();
        for chunk in self.chunks_of(&frame.dataset, slice, tiles, (false, Kind::Current)).await? {
            let head = frame.head(&chunk)?;
            if !written.contains(&chunk.key) && head.origins.iter().any(unwanted) {
                if chunk.key.id.is_separated() {
                    exposed.insert(chunk.key.tile);
                }
                mixed.push(ParsedChunk::new(chunk, head));
            }
        }
        let mut older: Vec<ParsedChunk> = Vec::new();
        if frame.keeps_latest() {
            for chunk in self.chunks_of(&frame.dataset, slice, tiles, (false, Kind::Older)).await? {
                let head = frame.head(&chunk)?;
                if exposed.contains(&chunk.key.tile) || head.origins.iter().any(unwanted) {
                    older.push(ParsedChunk::new(chunk, head));
                }
            }
        }
        // Phase 2: rewrite the chunks, a set at a time. Older versions come first: once a newer version is gone, they
        // must already be ordinary rows.
        let exposed = Arc::new(exposed);
        for set in sets(&older).into_iter().chain(sets(&mixed)) {
            let chunks = self.store().fetch(&frame.dataset, set.iter().map(|part| part.chunk.key).collect()).await?;
            // Another process has replaced a chunk since its head was read: its rows are in chunks that only a new look
            // at the heads finds.
            if chunks.len() < set.len() {
                return Ok(false);
            }
            let mut tiles: BTreeMap<Tile, Vec<ParsedChunk>> = BTreeMap::new();
            for chunk in chunks {
                let head = frame.head(&chunk)?;
                self.learn_columns(frame, std::iter::once(&head)).await?;
                tiles.entry(chunk.key.tile).or_default().push(ParsedChunk::new(chunk, head));
            }
            let (worker, exposed) = (frame.clone(), exposed.clone());
            let rewrites = on_pool(move || {
                let rewrite = |parts: Vec<ParsedChunk>| {
                    let (tile, kind) = (parts[0].chunk.key.tile, Kind::of(parts[0].chunk.key.id));
                    let becomes = if exposed.contains(&tile) { Kind::Current } else { kind };
                    rewrite(&worker, parts, (becomes, VersionSplit::default()), Some(&unwanted))
                };
                tiles.into_values().map(rewrite).collect::<Result<Vec<_>>>()
            });
            for (_, replaced) in self.replace(rewrites.await?.into_iter().flatten().collect()).await? {
                if !replaced? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}
