//! Removes rows of batches that are not stored, which `verify` reports as foreign.

use std::collections::{BTreeMap, BTreeSet};

use chronotile_store::{Commit, Expect, StoreError};
use chronotile_types::{BatchId, SliceId, Tile};

use crate::catalog::clock::Clock;
use crate::catalog::{self, BatchRecord, Intent};
use crate::dataset::Dataset;
use crate::error::{ArchiveError, Result};
use crate::maintenance::take_out::RemovedAttempts;
use crate::report::ForeignChunk;

/// Prefix of the attempt in the intent of a removal. Such an intent belongs to no writer.
const ATTEMPT: &str = "remove-foreign-";

/// Whether an intent is that of a removal of foreign rows, perhaps one that was interrupted.
pub(crate) fn is_removal(intent: &Intent) -> bool {
    intent.attempt.starts_with(ATTEMPT)
}

/// A unique attempt for the intent of a removal with this stamp.
pub(crate) fn removal_attempt(clock: &Clock, stamp: i64) -> String {
    format!("{ATTEMPT}{}", clock.unique_batch(stamp))
}

impl Dataset {
    /// Removes the rows that [`Dataset::verify`] reports as foreign, and returns those reports: rows of batches that
    /// were removed or replaced, or that the catalog does not list, as after restoring a backup that was made during
    /// writes. Keeps rows of stored batches, also where they share a chunk with foreign ones. The next call finishes a
    /// removal that was interrupted.
    ///
    /// # Errors
    /// A batch that another process is writing; the engine.
    pub async fn remove_foreign(&self) -> Result<Vec<ForeignChunk>> {
        let foreign = self.verify(None).await?.foreign;
        let mut tiles: BTreeMap<BatchId, BTreeSet<(SliceId, Tile)>> = BTreeMap::new();
        for chunk in &foreign {
            let slice = self.spec().slice_of(chunk.tile.window);
            tiles.entry(chunk.batch).or_default().insert((slice, chunk.tile));
        }
        for (batch, tiles) in tiles {
            self.remove_foreign_rows(batch, &tiles).await?;
        }
        Ok(foreign)
    }

    /// Removes the rows of a batch from tiles, except those of the content that is stored now.
    async fn remove_foreign_rows(&self, batch: BatchId, tiles: &BTreeSet<(SliceId, Tile)>) -> Result<()> {
        let home = &self.frame().dataset;
        let intent_key = catalog::intent_key(home, batch);
        // The intent is read first, so that the record reveals a write that ends between the two reads.
        let begun = catalog::get::<Intent>(self.store(), &intent_key).await?;
        let stored = catalog::get::<BatchRecord>(self.store(), &catalog::batch_key(home, batch)).await?;
        let record = stored.map(|(record, _)| record);
        let key = record.as_ref().and_then(|record| record.key.clone());
        let race = |error: ArchiveError| match error {
            ArchiveError::Store(StoreError::RecordConflict { .. }) => {
                let key = key.clone().unwrap_or_else(|| batch.to_string());
                ArchiveError::BatchRace { dataset: home.name.clone(), key }
            }
            other => other,
        };
        let expect = match begun {
            None => Expect::Absent,
            Some((intent, bytes)) if is_removal(&intent) => Expect::Is(bytes),
            // A writer has begun the batch since: the rows belong to that write.
            Some(_) => return Ok(()),
        };
        // A writer that begins the batch now takes it over, and this removal fails at its next step.
        let stamp = self.stamp_us().await?;
        let intent = Intent { key: key.clone(), written_us: stamp, attempt: removal_attempt(&self.clock(), stamp) };
        let intent = catalog::to_json(&intent_key, &intent)?;
        let before = vec![catalog::put(intent_key.clone(), intent.clone(), expect)];
        self.commit(Commit { before, ..Commit::default() }).await.map_err(race)?;

        let keep = record.and_then(|record| record.counting(batch));
        let after = vec![catalog::delete_known(intent_key.clone(), intent.clone())];
        let before = vec![catalog::unchanged(intent_key.clone(), intent.clone())];
        let of = RemovedAttempts { batch, before_us: stamp, keep };
        // No reader returns these rows, but a process that moves a slice elsewhere may have read its chunks: with the
        // new token of the list, it notices that rows are removed.
        self.supersede(batch).await?;
        let last = Commit { before, after, ..Commit::default() };
        self.clear_attempts(of, (&[], tiles), last).await.map_err(race)?;
        self.superseded_rows_gone().await;
        Ok(())
    }
}
