//! Batches as units: listing them and taking them out.

use std::collections::HashSet;

use chronotile_store::{Cells, Commit, Expect, Scan, StoreError};
use chronotile_types::{BatchId, SliceId, Tile, Window};
use futures::TryStreamExt;

use crate::catalog::{self, BatchRecord, ChunkRef, Intent};
use crate::clock;
use crate::dataset::Dataset;
use crate::error::{ArchiveError, Result};
use crate::frame::Frame;
use crate::report::BatchInfo;

impl Dataset {
    /// The batches of the dataset by write stamp, unfinished ones included and marked so.
    pub async fn batches(&self) -> Result<Vec<BatchInfo>> {
        let name = self.spec().name.clone();
        let begun = catalog::unfinished(self.store(), &name).await?;
        let stored = catalog::finished(self.store(), &name).await?;
        let begun_ids: HashSet<BatchId> = begun.iter().map(|(batch, _)| *batch).collect();
        let ended = stored.into_iter().filter(|(batch, record)| !record.removed && !begun_ids.contains(batch));
        let mut batches: Vec<BatchInfo> = ended.map(|(batch, record)| info(batch, record)).collect();
        batches.extend(begun.into_iter().map(|(batch, intent)| unfinished_info(batch, intent)));
        batches.sort_by_key(|batch| (batch.written_us, batch.batch));
        Ok(batches)
    }

    /// The batch of this key; `None` where there is none.
    pub async fn batch(&self, key: &str) -> Result<Option<BatchInfo>> {
        let (name, batch) = (self.spec().name.clone(), BatchId::of_key(key));
        let begun = catalog::get::<Intent>(self.store(), &catalog::intent_key(&name, batch)).await?;
        let stored = catalog::get::<BatchRecord>(self.store(), &catalog::batch_key(&name, batch)).await?;
        Ok(match (stored, begun) {
            (Some((record, _)), Some((intent, _))) if record.written_us != intent.written_us => {
                Some(unfinished_info(batch, intent))
            }
            (Some((record, _)), _) if !record.removed => Some(info(batch, record)),
            (None, Some((intent, _))) => Some(unfinished_info(batch, intent)),
            _ => None,
        })
    }

    /// Takes a batch out, wherever its rows lie by now, and returns how many rows it had. A batch whose writing was cut
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
        let returned = if gone && begun.is_none() { self.tiles_with(&frame, batch).await? } else { HashSet::new() };
        if gone && begun.is_none() && returned.is_empty() {
            return Err(ArchiveError::BatchNotFound { dataset: name.clone(), key: key.to_owned() });
        }
        let race = |error: ArchiveError| match error {
            ArchiveError::Store(StoreError::RecordConflict { .. }) => {
                ArchiveError::BatchRace { dataset: name.clone(), key: key.to_owned() }
            }
            other => other,
        };
        // From here on a writer that was at the batch can put nothing more.
        let stamp = self.stamp_us().await?;
        let attempt = clock::unique_batch(stamp).to_string();
        let intent = catalog::to_json(&intent_key, &Intent { key: Some(key.to_owned()), written_us: stamp, attempt })?;
        let expect = begun.map_or(Expect::Absent, |(_, bytes)| Expect::Is(bytes));
        let before = vec![catalog::put(intent_key.clone(), intent.clone(), expect)];
        self.commit(Commit { before, ..Commit::default() }).await.map_err(race)?;

        let parts = catalog::parts(self.store(), &frame.spec, batch).await?;
        let refs: Vec<ChunkRef> = parts.iter().flat_map(|part| part.refs.iter().copied()).collect();
        let rows = stored.as_ref().map_or(0, |(record, _)| record.rows);
        let record = removed(key, stamp);
        let expect = stored.map_or(Expect::Absent, |(_, bytes)| Expect::Is(bytes));
        let mut after: Vec<_> = parts.iter().map(|part| catalog::delete_part(name, batch, part.number)).collect();
        after.push(catalog::put(record_key.clone(), catalog::to_json(&record_key, &record)?, expect));
        after.push(catalog::delete_known(intent_key.clone(), intent.clone()));
        let before = vec![catalog::put(intent_key, intent.clone(), Expect::Is(intent))];
        self.list_changing(batch).await?;
        let last = Commit { before, after, ..Commit::default() };
        self.clear_out(batch, None, (&refs, &returned), last).await.map_err(race)?;
        self.unlist_changing(batch).await;
        Ok(rows)
    }

    /// The tiles that hold rows of a batch, whatever the catalog says of it. Looks at the heads of all chunks.
    async fn tiles_with(&self, frame: &Frame, batch: BatchId) -> Result<HashSet<(SliceId, Tile)>> {
        let slices = self.store().slices(&frame.spec.name).await?;
        let windows = (Window(i32::MIN), Window(i32::MAX));
        let scan = Scan { slices, cells: Cells::All, windows, bodies: false };
        let mut heads = self.store().scan(&frame.spec.name, scan).await?;
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
fn removed(key: &str, written_us: i64) -> BatchRecord {
    BatchRecord {
        key: Some(key.to_owned()),
        written_us,
        removed: true,
        rows: 0,
        tiles: 0,
        chunks: 0,
        bytes: 0,
        content: String::new(),
        ticks: None,
        copied: None,
        repeated: None,
    }
}

fn info(batch: BatchId, record: BatchRecord) -> BatchInfo {
    BatchInfo {
        key: record.key,
        batch,
        rows: record.rows,
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
        tiles: 0,
        chunks: 0,
        bytes: 0,
        written_us: intent.written_us,
        ticks: None,
        finished: false,
    }
}
