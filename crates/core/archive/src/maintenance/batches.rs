//! Lists and removes batches.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use chronotile_store::{Cells, ChunkKey, Commit, Expect, Scan, StoreError};
use chronotile_types::{BatchId, DatasetSpec, SliceId, Tile, name_hint};
use futures::future::ready;
use futures::{StreamExt, TryStreamExt, stream};

use crate::catalog::fence;
use crate::catalog::{self, BatchRecord, ChunkRef, Intent, Previous, Retired};
use crate::dataset::Dataset;
use crate::error::{ArchiveError, Result};
use crate::maintenance::take_out::RemovedAttempts;
use crate::report::BatchInfo;

/// Up to this many slices, the records of retired slices are read one by one; above, all are listed.
const LOOKED_UP: usize = 16;
/// Records of retired slices that are read concurrently.
const NOTES_AT_ONCE: usize = 16;

impl Dataset {
    /// The batches of the dataset by write stamp, unfinished ones included and marked so.
    pub async fn batches(&self) -> Result<Vec<BatchInfo>> {
        let this = &self.reader();
        let frame = this.frame();
        let home = &frame.dataset;
        // Intents are read first: a batch that ends between the two reads then has a record, so that it is listed in
        // any case.
        let begun = catalog::unfinished(this.store(), home).await?;
        let mut ended = catalog::finished(this.store(), home).await?;
        ended.retain(|(_, record)| !record.removed);
        // A stored batch counts until its replacement is stored.
        let ended_ids: HashSet<BatchId> = ended.iter().map(|(batch, _)| *batch).collect();
        let begun = begun.into_iter().filter(|(batch, _)| !ended_ids.contains(batch));
        let retired = this.retired_slices().await?;
        let mut batches = Vec::new();
        for (batch, record) in ended {
            let Some(own) = record.of_dataset(frame.spec.group.as_ref()) else { continue };
            // The range of times may also cover slices without rows of the batch, but it spares all other batches the
            // requests of `retirement`.
            let touched = slices_of(&frame.spec, own.ticks)
                .is_some_and(|(first, last)| retired.range(first..=last).any(|(_, us)| *us >= record.written_us));
            let gone =
                if touched { this.retirement(batch, &record, Some(&frame.spec)).await? } else { Retirement::default() };
            batches.push(info(batch, own, &gone));
        }
        batches.extend(begun.map(|(batch, intent)| unfinished_info(batch, intent)));
        batches.sort_by_key(|batch| (batch.written_us, batch.batch));
        Ok(batches)
    }

    /// The batch with this key; `None` if there is none.
    pub async fn batch(&self, key: &str) -> Result<Option<BatchInfo>> {
        let this = &self.reader();
        let (frame, batch) = (this.frame(), BatchId::of_key(key));
        let home = &frame.dataset;
        // The intent is read first, so that the record reveals a write that ends between the two reads.
        let begun = catalog::get::<Intent>(this.store(), &catalog::intent_key(home, batch)).await?;
        let stored = catalog::get::<BatchRecord>(this.store(), &catalog::batch_key(home, batch)).await?;
        Ok(match (stored, begun) {
            (Some((record, _)), _) if !record.removed => {
                let Some(own) = record.of_dataset(frame.spec.group.as_ref()) else { return Ok(None) };
                let retired = this.retirement(batch, &record, Some(&frame.spec)).await?;
                Some(info(batch, own, &retired))
            }
            (Some((record, _)), Some((intent, _))) if record.written_us != intent.written_us => {
                Some(unfinished_info(batch, intent))
            }
            (None, Some((intent, _))) => Some(unfinished_info(batch, intent)),
            _ => None,
        })
    }

    /// The rows of a batch that were dropped with retired slices: of all its datasets, or of `only`.
    pub(crate) async fn retirement(
        &self,
        batch: BatchId,
        record: &BatchRecord,
        only: Option<&DatasetSpec>,
    ) -> Result<Retirement> {
        let own = |spec: &DatasetSpec| only.is_none_or(|only| only.name == spec.name);
        let mut ranges = Vec::new();
        for frame in self.frames().iter().filter(|frame| own(&frame.spec)) {
            let ticks = record.of_dataset(frame.spec.group.as_ref()).and_then(|record| record.ticks);
            ranges.extend(slices_of(&frame.spec, ticks));
        }
        if record.removed || ranges.is_empty() {
            return Ok(Retirement::default());
        }
        // The difference of two slice numbers may not fit into 32 bits.
        let between = |(first, last): &(SliceId, SliceId)| (i64::from(last.0) - i64::from(first.0)) as usize + 1;
        let notes = if ranges.iter().map(between).sum::<usize>() <= LOOKED_UP {
            let slices = ranges.iter().flat_map(|(first, last)| (first.0..=last.0).map(SliceId)).collect();
            self.retired_since(slices, record.written_us).await?
        } else {
            let mut notes = self.retired_slices().await?;
            notes.retain(|slice, retired_us| {
                ranges.iter().any(|(first, last)| (first..=last).contains(&slice)) && *retired_us >= record.written_us
            });
            notes
        };
        let Some(retired_us) = notes.values().copied().max() else { return Ok(Retirement::default()) };
        let (parts, _) = record.own_parts(catalog::parts(self.store(), &self.frame().dataset, batch).await?);
        let mut refs: Vec<ChunkRef> = parts.into_iter().flat_map(|part| part.refs).collect();
        refs.retain(|chunk| only.is_none_or(|spec| spec.has_window(chunk.key.slice, chunk.key.tile.window)));
        let (noted, others): (Vec<ChunkRef>, Vec<ChunkRef>) =
            refs.into_iter().partition(|chunk| notes.contains_key(&chunk.key.slice));
        // A writer whose clock is slow may have put chunks after the drop.
        let there: HashSet<ChunkKey> = self.existing(&noted).await?.into_iter().collect();
        let gone = || noted.iter().filter(|chunk| !there.contains(&chunk.key));
        let rows = gone().map(|chunk| u64::from(chunk.rows)).sum();
        Ok(Retirement { rows, whole: rows > 0 && others.is_empty() && there.is_empty(), retired_us })
    }

    /// The slices among these that were retired at this stamp or later, each with the stamp of its last drop.
    pub(crate) async fn retired_since(
        &self,
        slices: BTreeSet<SliceId>,
        written_us: i64,
    ) -> Result<BTreeMap<SliceId, i64>> {
        let home = &self.frame().dataset;
        let look = |slice| async move {
            let found = catalog::get::<Retired>(self.store(), &catalog::retired_key(home, slice)).await?;
            let note = found.filter(|(note, _)| note.retired_us >= written_us);
            Ok(note.map(|(note, _)| (slice, note.retired_us)))
        };
        let notes = stream::iter(slices).map(look).buffer_unordered(NOTES_AT_ONCE);
        notes.try_filter_map(|note| ready(Ok(note))).try_collect().await
    }

    /// All slices that were ever retired, each with the stamp of its last drop.
    async fn retired_slices(&self) -> Result<BTreeMap<SliceId, i64>> {
        let records = catalog::list(self.store(), &catalog::items("retired", &self.frame().dataset)).await?;
        let note = |record: &chronotile_store::Record| {
            let note: Retired = catalog::from_json(&record.key, &record.value)?;
            let slice = record.key.rsplit('/').next().and_then(|slice| slice.parse().ok());
            let slice = slice.ok_or_else(|| ArchiveError::Catalog {
                key: record.key.clone(),
                reason: "its key does not end with a slice".to_owned(),
                source: None,
            })?;
            Ok((SliceId(slice), note.retired_us))
        };
        records.iter().map(note).collect()
    }

    /// Removes a batch, also from consolidated chunks, and returns the number of its rows that were not retired before.
    /// An unfinished batch can be removed too, and so can a removed batch of which chunks have come back. The same key
    /// can be written again afterwards.
    ///
    /// # Errors
    /// No batch with this key and no rows of one; a batch that another process is writing or removing; a dataset of a
    /// group, whose batches are removed with [`crate::Group::remove_batch`]; the engine.
    pub async fn remove_batch(&self, key: &str) -> Result<u64> {
        match &self.spec().group {
            None => self.remove_from_all(key).await,
            Some(member) => Err(self.frame().refuse(format!(
                "its batches cover all datasets of group {0}: remove the batch from the group",
                member.group
            ))),
        }
    }

    /// Removes a batch from all datasets to which it was written.
    pub(crate) async fn remove_from_all(&self, key: &str) -> Result<u64> {
        self.refresh_group().await?;
        let (home, batch) = (&self.frame().dataset, BatchId::of_key(key));
        let (intent_key, record_key) = (catalog::intent_key(home, batch), catalog::batch_key(home, batch));
        // Phase 1: find out what there is to remove. The intent is read first, so that the record reveals a write that
        // ends between the two reads.
        let begun = catalog::get::<Intent>(self.store(), &intent_key).await?;
        let stored = catalog::get::<BatchRecord>(self.store(), &record_key).await?;
        let gone = stored.as_ref().is_none_or(|(record, _)| record.removed);
        // Chunks that an earlier removal keeps for older reads do not count as a batch to remove.
        let left = stored.as_ref().zip(begun.as_ref());
        let left = left.is_some_and(|((record, _), (intent, _))| record.written_us == intent.written_us);
        let gone = gone && (begun.is_none() || left);
        // Even if the catalog knows of no rows of the batch, chunks may have come back from a node that missed their
        // removal, and only the heads of all chunks show them.
        let returned = if gone && !left { self.tiles_with(batch).await? } else { BTreeSet::new() };
        if gone && returned.is_empty() {
            // Report the missing batch even if the other batches cannot be listed for the hint.
            let known = catalog::batch_names(self.store(), home).await.unwrap_or_default();
            let hint = match known.is_empty() {
                true => "; it has no named batches".to_owned(),
                false => name_hint(key, &known),
            };
            return Err(ArchiveError::BatchNotFound { dataset: home.name.clone(), key: key.to_owned(), hint });
        }
        let race = |error: ArchiveError| match error {
            ArchiveError::Store(StoreError::RecordConflict { .. }) => {
                ArchiveError::BatchRace { dataset: home.name.clone(), key: key.to_owned() }
            }
            other => other,
        };
        if let Some((record, _)) = &stored {
            // The removal needs a later stamp than the batch.
            self.clock().saw(record.written_us);
        }
        // Phase 2: claim the batch with an attempt of its own.
        let stamp = self.stamp_us().await?;
        let attempt = self.clock().unique_batch(stamp).to_string();
        let intent = catalog::to_json(&intent_key, &Intent { key: Some(key.to_owned()), written_us: stamp, attempt })?;
        let expect = begun.map_or(Expect::Absent, |(_, bytes)| Expect::Is(bytes));
        // After this commit no other writer of the batch can put anything more.
        let before = vec![catalog::put(intent_key.clone(), intent.clone(), expect)];
        self.commit(Commit { before, ..Commit::default() }).await.map_err(race)?;
        // The batch is listed before the new record is put: a read that begins after that record must look it up,
        // whatever its process knows of the batch.
        self.supersede(batch).await?;

        // Phase 3: put the record of a removed batch. From here on nobody else adds chunks, so the lists are complete.
        let parts = catalog::parts(self.store(), home, batch).await?;
        let refs: Vec<ChunkRef> = parts.iter().flat_map(|part| part.refs.iter().copied()).collect();
        let slices: BTreeSet<SliceId> =
            refs.iter().map(|chunk| chunk.key.slice).chain(returned.iter().map(|(slice, _)| *slice)).collect();
        let ours = catalog::unchanged(intent_key.clone(), intent.clone());
        let expect = stored.as_ref().map_or(Expect::Absent, |(_, bytes)| Expect::Is(bytes.clone()));
        let previous = stored.as_ref().map(|(record, _)| record.as_previous());
        // This commit hides the rows from readers. A consolidation removes the chunks when no reader needs them.
        let watch = self.watch(slices).await?;
        let ended = loop {
            // The fence is read before the rows are counted: if a slice is dropped after this read, the commit fails
            // and the rows are counted again.
            let observed = self.fence().read().await?;
            let rows = match &stored {
                Some((record, _)) => record.rows.saturating_sub(self.retirement(batch, record, None).await?.rows),
                None => 0,
            };
            let ended_us = self.clock().about_now_us().max(stamp);
            let record = removed(Some(key), (stamp, ended_us), previous.clone());
            let bytes = catalog::to_json(&record_key, &record)?;
            let mut before = vec![ours.clone(), catalog::put(record_key.clone(), bytes.clone(), expect.clone())];
            before.extend(self.fence().no_drop_since(&observed));
            match self.commit_and_announce(Commit { before, ..Commit::default() }).await {
                Err(error) if fence::has_changed(&error) => continue,
                result => result.map_err(race)?,
            }
            break (rows, record, bytes);
        };
        let (rows, record, bytes) = ended;
        // Engines that need closing have no condition against drops in that commit, so the check follows it. Readers
        // see the batch removed by now, so an error means an unknown outcome, not that nothing has happened.
        if self.fence().needs_closing() {
            self.nothing_dropped(&watch).await.map_err(ArchiveError::behind_record)?;
        }
        if !returned.is_empty() {
            let of = RemovedAttempts { batch, before_us: stamp, keep: None };
            // This commit leaves the intent, which `clear_all_dead` below deletes.
            let last = Commit { before: vec![ours], ..Commit::default() };
            self.clear_attempts(of, (&refs, &returned), last)
                .await
                .map_err(race)
                .map_err(ArchiveError::behind_record)?;
        }
        if self.kept_us() == 0 || !returned.is_empty() {
            match self.clear_all_dead(batch, intent, Some((&record, &bytes))).await {
                // Another process is already removing them.
                Err(ArchiveError::Store(StoreError::RecordConflict { .. })) => {}
                cleared => cleared.map_err(ArchiveError::behind_record)?,
            }
        }
        Ok(rows)
    }

    /// The tiles that hold rows of a batch, found from the heads of all chunks, whatever the catalog says.
    async fn tiles_with(&self, batch: BatchId) -> Result<BTreeSet<(SliceId, Tile)>> {
        let mut tiles = BTreeSet::new();
        for frame in self.frames() {
            let mut slices = self.store().slices(&frame.dataset).await?;
            slices.retain(|slice| frame.spec.has_slice(*slice));
            let windows = frame.spec.windows().into();
            let scan = Scan { slices, cells: Cells::All, windows, bodies: false, older: true };
            let mut heads = self.store().scan(&frame.dataset, scan).await?;
            while let Some(chunks) = heads.try_next().await? {
                for chunk in chunks {
                    // A damaged head names no batch; `verify` reports it.
                    let head = frame.head(&chunk).ok();
                    if head.is_some_and(|head| head.origins.iter().any(|origin| origin.batch == batch)) {
                        tiles.insert((chunk.key.slice, chunk.key.tile));
                    }
                }
            }
        }
        Ok(tiles)
    }
}

/// The record of a removed batch, by which readers of the change feed learn of the removal.
pub(crate) fn removed(
    key: Option<&str>,
    (written_us, ended_us): (i64, i64),
    previous: Option<Previous>,
) -> BatchRecord {
    BatchRecord {
        key: key.map(str::to_owned),
        written_us,
        token: 0,
        ended_us,
        removed: true,
        rows: 0,
        tiles: 0,
        chunks: 0,
        bytes: 0,
        content: String::new(),
        ticks: None,
        parts: (0, 0),
        previous,
        copied: None,
        repeated: None,
        datasets: vec![],
    }
}

/// The rows of a batch that were dropped with retired slices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Retirement {
    /// Number of dropped rows.
    pub rows: u64,
    /// Whether all rows of the batch were dropped.
    pub whole: bool,
    /// Stamp of the last drop.
    pub retired_us: i64,
}

/// The first and last slice of a dataset for rows with these ticks.
fn slices_of(spec: &DatasetSpec, ticks: Option<(i64, i64)>) -> Option<(SliceId, SliceId)> {
    let (first, last) = ticks?;
    let slice = |tick| spec.window_of(tick).map(|window| spec.slice_of(window));
    Some((slice(first)?, slice(last)?))
}

pub(crate) fn info(batch: BatchId, record: BatchRecord, retired: &Retirement) -> BatchInfo {
    BatchInfo {
        key: record.key,
        batch,
        rows: record.rows,
        rows_retired: retired.rows.min(record.rows),
        tiles: record.tiles,
        chunks: record.chunks,
        bytes: record.bytes,
        written_us: record.written_us,
        ticks: record.ticks,
        finished: true,
    }
}

pub(crate) fn unfinished_info(batch: BatchId, intent: Intent) -> BatchInfo {
    BatchInfo {
        key: intent.key,
        batch,
        rows: 0,
        rows_retired: 0,
        tiles: 0,
        chunks: 0,
        bytes: 0,
        written_us: intent.written_us,
        ticks: None,
        finished: false,
    }
}
