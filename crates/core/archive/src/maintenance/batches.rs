//! Batches as units: listing them and taking them out.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use chronotile_store::{Cells, ChunkKey, Commit, Expect, Scan, StoreError};
use chronotile_types::{BatchId, SliceId, Tile, Window, name_hint};
use futures::TryStreamExt;

use crate::catalog::clock;
use crate::catalog::fence;
use crate::catalog::{self, BatchRecord, ChunkRef, Intent, Previous, Retired};
use crate::dataset::Dataset;
use crate::error::{ArchiveError, Result};
use crate::frame::Frame;
use crate::maintenance::consolidate::Unwanted;
use crate::report::BatchInfo;

/// Slices whose notes are looked up one by one; of more all are listed.
const LOOKED_UP: usize = 16;

impl Dataset {
    /// The batches of the dataset by write stamp, unfinished ones included and marked so.
    pub async fn batches(&self) -> Result<Vec<BatchInfo>> {
        let this = &self.reader();
        let frame = this.frame();
        let name = frame.spec.name.clone();
        let begun = catalog::unfinished(this.store(), &name).await?;
        let stored = catalog::finished(this.store(), &name).await?;
        let mut ended = stored;
        ended.retain(|(_, record)| !record.removed);
        // What is stored counts until what replaces it is.
        let ended_ids: HashSet<BatchId> = ended.iter().map(|(batch, _)| *batch).collect();
        let begun = begun.into_iter().filter(|(batch, _)| !ended_ids.contains(batch));
        let retired = this.retired_slices(&frame).await?;
        let mut batches = Vec::new();
        for (batch, record) in ended {
            let touched = slices_of(&frame, &record)
                .is_some_and(|(first, last)| retired.range(first..=last).any(|(_, us)| *us >= record.written_us));
            let retired = if touched { this.retirement(&frame, batch, &record).await? } else { Retirement::default() };
            batches.push(info(batch, record, &retired));
        }
        batches.extend(begun.map(|(batch, intent)| unfinished_info(batch, intent)));
        batches.sort_by_key(|batch| (batch.written_us, batch.batch));
        Ok(batches)
    }

    /// The batch of this key; `None` where there is none.
    pub async fn batch(&self, key: &str) -> Result<Option<BatchInfo>> {
        let this = &self.reader();
        let (frame, batch) = (this.frame(), BatchId::of_key(key));
        let name = frame.spec.name.clone();
        let begun = catalog::get::<Intent>(this.store(), &catalog::intent_key(&name, batch)).await?;
        let stored = catalog::get::<BatchRecord>(this.store(), &catalog::batch_key(&name, batch)).await?;
        Ok(match (stored, begun) {
            (Some((record, _)), _) if !record.removed => {
                let retired = this.retirement(&frame, batch, &record).await?;
                Some(info(batch, record, &retired))
            }
            (Some((record, _)), Some((intent, _))) if record.written_us != intent.written_us => {
                Some(unfinished_info(batch, intent))
            }
            (None, Some((intent, _))) => Some(unfinished_info(batch, intent)),
            _ => None,
        })
    }

    /// What of a batch went with slices that were retired.
    pub(crate) async fn retirement(&self, frame: &Frame, batch: BatchId, record: &BatchRecord) -> Result<Retirement> {
        let Some((first, last)) = slices_of(frame, record).filter(|_| !record.removed) else {
            return Ok(Retirement::default());
        };
        let between = (i64::from(last.0) - i64::from(first.0)) as usize;
        let notes = if between < LOOKED_UP {
            self.retired_since(frame, (first.0..=last.0).map(SliceId).collect(), record.written_us).await?
        } else {
            let mut notes = self.retired_slices(frame).await?;
            notes.retain(|slice, retired_us| (first..=last).contains(slice) && *retired_us >= record.written_us);
            notes
        };
        let Some(retired_us) = notes.values().copied().max() else { return Ok(Retirement::default()) };
        let (parts, _) = record.own_parts(catalog::parts(self.store(), &frame.spec, batch).await?);
        let refs: Vec<ChunkRef> = parts.into_iter().flat_map(|part| part.refs).collect();
        let (noted, others): (Vec<ChunkRef>, Vec<ChunkRef>) =
            refs.into_iter().partition(|chunk| notes.contains_key(&chunk.key.slice));
        // A writer whose clock is slow may have come after the drop.
        let there: HashSet<ChunkKey> = self.existing(frame, &noted).await?.into_iter().collect();
        let gone = || noted.iter().filter(|chunk| !there.contains(&chunk.key));
        let rows = gone().map(|chunk| u64::from(chunk.rows)).sum();
        Ok(Retirement { rows, whole: rows > 0 && others.is_empty() && there.is_empty(), retired_us })
    }

    /// Those of the slices that were retired at this stamp or later, each with the last time.
    pub(crate) async fn retired_since(
        &self,
        frame: &Frame,
        slices: BTreeSet<SliceId>,
        written_us: i64,
    ) -> Result<BTreeMap<SliceId, i64>> {
        let mut retired = BTreeMap::new();
        for slice in slices {
            let found = catalog::get::<Retired>(self.store(), &catalog::retired_key(&frame.spec.name, slice)).await?;
            if let Some((note, _)) = found.filter(|(note, _)| note.retired_us >= written_us) {
                retired.insert(slice, note.retired_us);
            }
        }
        Ok(retired)
    }

    /// All slices that were ever retired, each with the last time.
    async fn retired_slices(&self, frame: &Frame) -> Result<BTreeMap<SliceId, i64>> {
        let records = catalog::list(self.store(), &format!("retired/{}/", frame.spec.name)).await?;
        let note = |record: &chronotile_store::Record| {
            let note: Retired = catalog::from_json(&record.key, &record.value)?;
            let slice = record.key.rsplit('/').next().and_then(|slice| slice.parse().ok());
            let reason = || "its key does not end with a slice".to_owned();
            let slice = slice.ok_or_else(|| ArchiveError::Catalog { key: record.key.clone(), reason: reason() })?;
            Ok((SliceId(slice), note.retired_us))
        };
        records.iter().map(note).collect()
    }

    /// Takes a batch out, wherever its rows lie by now, and returns how many rows it had that were not retired
    /// before. A batch whose writing was cut
    /// off can be removed too, and so can one that was removed and of which chunks have come back. The same key can be written
    /// again afterwards.
    ///
    /// # Errors
    /// No batch of this key and no rows of one; a batch that somebody else is writing or removing at the same time; the engine.
    pub async fn remove_batch(&self, key: &str) -> Result<u64> {
        self.refresh().await?;
        let (frame, batch) = (self.frame(), BatchId::of_key(key));
        let name = &frame.spec.name;
        let (intent_key, record_key) = (catalog::intent_key(name, batch), catalog::batch_key(name, batch));
        let begun = catalog::get::<Intent>(self.store(), &intent_key).await?;
        let stored = catalog::get::<BatchRecord>(self.store(), &record_key).await?;
        let gone = stored.as_ref().is_none_or(|(record, _)| record.removed);
        // What a removal left for reads that began before it is nothing to remove.
        let left = stored.as_ref().zip(begun.as_ref());
        let left = left.is_some_and(|((record, _), (intent, _))| record.written_us == intent.written_us);
        let gone = gone && (begun.is_none() || left);
        let returned = if gone && !left { self.tiles_with(&frame, batch).await? } else { HashSet::new() };
        if gone && returned.is_empty() {
            // That there is no such batch is the answer, also where the others cannot be listed.
            let known = catalog::batch_names(self.store(), name).await.unwrap_or_default();
            let hint = match known.is_empty() {
                true => "; it has no batch with a name".to_owned(),
                false => name_hint(key, &known),
            };
            return Err(ArchiveError::BatchNotFound { dataset: name.clone(), key: key.to_owned(), hint });
        }
        let race = |error: ArchiveError| match error {
            ArchiveError::Store(StoreError::RecordConflict { .. }) => {
                ArchiveError::BatchRace { dataset: name.clone(), key: key.to_owned() }
            }
            other => other,
        };
        // From here on a writer that was at the batch can put nothing more.
        if let Some((record, _)) = &stored {
            // What comes after the removal is told from what was before by its stamp.
            self.clock().saw(record.written_us);
        }
        let stamp = self.stamp_us().await?;
        let attempt = clock::unique_batch(stamp).to_string();
        let intent = catalog::to_json(&intent_key, &Intent { key: Some(key.to_owned()), written_us: stamp, attempt })?;
        let expect = begun.map_or(Expect::Absent, |(_, bytes)| Expect::Is(bytes));
        let before = vec![catalog::put(intent_key.clone(), intent.clone(), expect)];
        self.commit(Commit { before, ..Commit::default() }).await.map_err(race)?;
        self.supersede(batch).await?;

        let parts = catalog::parts(self.store(), &frame.spec, batch).await?;
        let refs: Vec<ChunkRef> = parts.iter().flat_map(|part| part.refs.iter().copied()).collect();
        let slices: BTreeSet<SliceId> =
            refs.iter().map(|chunk| chunk.key.slice).chain(returned.iter().map(|(slice, _)| *slice)).collect();
        let ours = catalog::put(intent_key.clone(), intent.clone(), Expect::Is(intent.clone()));
        let expect = stored.as_ref().map_or(Expect::Absent, |(_, bytes)| Expect::Is(bytes.clone()));
        let previous = stored.as_ref().map(|(record, _)| record.as_previous());
        // Readers see the rows until here, and none from here on. What is left of them goes with a consolidation that finds that no
        // reader needs them any more.
        let watch = self.watch(&frame, slices).await?;
        let ended = loop {
            let seen = self.fence().look().await?;
            let rows = match &stored {
                Some((record, _)) => record.rows.saturating_sub(self.retirement(&frame, batch, record).await?.rows),
                None => 0,
            };
            let ended_us = self.clock().about_now_us().max(stamp);
            let record = removed(key, (stamp, ended_us), previous.clone());
            let bytes = catalog::to_json(&record_key, &record)?;
            let mut before = vec![ours.clone(), catalog::put(record_key.clone(), bytes.clone(), expect.clone())];
            before.extend(self.fence().no_drop_since(&seen));
            match self.commit_telling(Commit { before, ..Commit::default() }).await {
                Err(error) if fence::has_changed(&error) => continue,
                result => result.map_err(race)?,
            }
            break (rows, record, bytes);
        };
        let (rows, record, bytes) = ended;
        if self.fence().needs_closing() {
            self.nothing_dropped(&frame, &watch).await?;
        }
        if !returned.is_empty() {
            let of = Unwanted { batch, before_us: stamp, keep_us: None };
            let last = Commit { before: vec![ours], ..Commit::default() };
            self.clear_attempts(&frame, of, (&refs, &returned), last).await.map_err(race)?;
        }
        if self.kept_us() == 0 || !returned.is_empty() {
            match self.clear_all_dead(&frame, batch, intent, Some((&record, &bytes))).await {
                // Somebody else clears up after it already.
                Err(ArchiveError::Store(StoreError::RecordConflict { .. })) => {}
                cleared => cleared?,
            }
        }
        Ok(rows)
    }

    /// The tiles that hold rows of a batch, whatever the catalog says of it. Looks at the heads of all chunks.
    async fn tiles_with(&self, frame: &Frame, batch: BatchId) -> Result<HashSet<(SliceId, Tile)>> {
        let slices = self.store().slices(&frame.dataset).await?;
        let windows = (Window(i32::MIN), Window(i32::MAX));
        let scan = Scan { slices, cells: Cells::All, windows, bodies: false };
        let mut heads = self.store().scan(&frame.dataset, scan).await?;
        let mut tiles = HashSet::new();
        while let Some(chunks) = heads.try_next().await? {
            for chunk in chunks {
                // A damaged head names no batch; verify tells of it.
                let head = frame.head(&chunk).ok();
                if head.is_some_and(|head| head.origins.iter().any(|origin| origin.batch == batch)) {
                    tiles.insert((chunk.key.slice, chunk.key.tile));
                }
            }
        }
        Ok(tiles)
    }
}

/// What stays of a removed batch: readers of the change feed learn of the removal.
fn removed(key: &str, (written_us, ended_us): (i64, i64), previous: Option<Previous>) -> BatchRecord {
    BatchRecord {
        key: Some(key.to_owned()),
        written_us,
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
    }
}

/// What of a batch went with slices that were retired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Retirement {
    /// Rows that are gone.
    pub rows: u64,
    /// Whether that is all of the batch.
    pub whole: bool,
    /// Stamp of the last drop.
    pub retired_us: i64,
}

/// The first and last slice that a batch may have rows in.
fn slices_of(frame: &Frame, record: &BatchRecord) -> Option<(SliceId, SliceId)> {
    let (first, last) = record.ticks?;
    let slice = |tick| frame.spec.window_of(tick).map(|window| frame.spec.slice_of(window));
    Some((slice(first)?, slice(last)?))
}

fn info(batch: BatchId, record: BatchRecord, retired: &Retirement) -> BatchInfo {
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

fn unfinished_info(batch: BatchId, intent: Intent) -> BatchInfo {
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
