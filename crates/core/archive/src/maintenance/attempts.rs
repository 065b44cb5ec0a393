//! Removes the chunks and records that attempts left behind and that do not count.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use bytes::Bytes;
use chronotile_chunk::Origin;
use chronotile_store::{ChunkKey, Commit, Expect, RecordPut, StoreError};
use chronotile_types::{BatchId, SliceId, Tile};

use crate::LOG;
use crate::catalog::{self, BatchRecord, ChunkList, ChunkRef, Intent};
use crate::dataset::Dataset;
use crate::error::{ArchiveError, Result};
use crate::maintenance::batches;
use crate::maintenance::foreign::{is_removal, removal_attempt};
use crate::maintenance::take_out::RemovedAttempts;

/// The chunks of a batch that do not count.
pub(crate) struct Leftovers {
    /// Lists of the chunks to remove.
    pub dead: Vec<ChunkList>,
    /// Whether there are other such chunks, which readers may still need.
    pub others: bool,
}

impl Dataset {
    /// Removes chunks of a batch that do not count, and consolidated rows of attempts before the one that counts.
    /// Deletes the intent of the batch, whose value is `intent`; with [`Leftovers::others`] the intent stays, so that a
    /// consolidation removes the rest. `stored` is the record of the batch and its bytes.
    ///
    /// # Errors
    /// [`StoreError::RecordConflict`] if the intent or the record has changed, and nothing was removed;
    /// [`ArchiveError::SliceRetired`]; the engine.
    pub(crate) async fn clear_dead(
        &self,
        batch: BatchId,
        intent: Bytes,
        stored: Option<(&BatchRecord, &Bytes)>,
        leftovers: Leftovers,
    ) -> Result<()> {
        let home = &self.frame().dataset;
        let (intent_key, record_key) = (catalog::intent_key(home, batch), catalog::batch_key(home, batch));
        let mut refs: Vec<ChunkRef> = leftovers.dead.iter().flat_map(|part| part.refs.iter().copied()).collect();
        if let Some((record, _)) = stored {
            // Attempts with the same stamp and rows have the same chunks.
            let (own, _) = record.own_parts(catalog::parts(self.store(), home, batch).await?);
            let own: HashSet<ChunkKey> = own.iter().flat_map(|part| &part.refs).map(|chunk| chunk.key).collect();
            refs.retain(|chunk| !own.contains(&chunk.key));
        }
        // A put of the bytes that are there already changes nothing. It is a condition: if a writer has taken over the
        // batch, or has put another record, the commit fails before anything is removed.
        let as_it_was = match stored {
            Some((_, bytes)) => catalog::unchanged(record_key, bytes.clone()),
            None => catalog::no_record(record_key),
        };
        let before = vec![catalog::unchanged(intent_key.clone(), intent.clone()), as_it_was];
        let mut after: Vec<RecordPut> =
            leftovers.dead.iter().map(|part| catalog::delete_part(home, batch, part.number)).collect();
        after.push(match stored.filter(|_| leftovers.others) {
            None => catalog::delete_known(intent_key, intent),
            // An intent with the stamp of the record means that the batch has ended and chunks remain.
            Some((record, _)) => {
                let held: Intent = catalog::from_json(&intent_key, &intent)?;
                let ended = catalog::to_json(&intent_key, &Intent { written_us: record.written_us, ..held })?;
                catalog::put(intent_key, ended, Expect::Is(intent))
            }
        });
        // No attempt began before i64::MIN, so consolidated rows stay: with other leftovers, because readers may need
        // them, and without a record, because rows that do not count are not consolidated.
        let before_us = stored.filter(|_| !leftovers.others).map_or(i64::MIN, |(record, _)| record.written_us);
        let of = RemovedAttempts { batch, before_us, keep: None };
        self.clear_attempts(of, (&refs, &BTreeSet::new()), Commit { before, after, ..Commit::default() }).await
    }

    /// Removes rows in these tiles that do not count and whose batch has no intent: of batches without a record, a day
    /// after they began, and of attempts before the one that counts, when no reader needs them.
    ///
    /// # Errors
    /// The engine.
    pub(crate) async fn sweep_strays(&self, strays: BTreeMap<Origin, BTreeSet<(SliceId, Tile)>>) -> Result<()> {
        // A copy puts chunks before the records of their batches, and is unsettled until all records are put.
        if strays.is_empty() || self.superseded().await?.unsettled {
            return Ok(());
        }
        let home = &self.frame().dataset;
        for (origin, tiles) in strays {
            // The batch is being changed, or `sweep_attempts` finds it by its intent.
            if self.store().record(&catalog::intent_key(home, origin.batch)).await?.is_some() {
                continue;
            }
            let key = catalog::batch_key(home, origin.batch);
            let swept = match catalog::get::<BatchRecord>(self.store(), &key).await? {
                Some((record, bytes)) => self.sweep_before(origin, (record, bytes), &tiles).await,
                None => self.sweep_unknown(origin, &tiles).await,
            };
            match swept {
                // The writer continues, or another process removes the rows.
                Err(ArchiveError::Store(StoreError::RecordConflict { .. }) | ArchiveError::SliceRetired { .. }) => {}
                swept => swept?,
            }
        }
        Ok(())
    }

    /// Removes rows of an attempt before the one that counts.
    async fn sweep_before(
        &self,
        origin: Origin,
        (record, bytes): (BatchRecord, Bytes),
        tiles: &BTreeSet<(SliceId, Tile)>,
    ) -> Result<()> {
        let home = &self.frame().dataset;
        let since_us = self.clock().about_now_us().saturating_sub(record.ended_us);
        // An attempt with a later stamp may still end. Rows of an earlier one stay for reads that began before the
        // record was put.
        if origin.written_us >= record.written_us || since_us < self.kept_us() {
            return Ok(());
        }
        let key = catalog::batch_key(home, origin.batch);
        let as_it_was = catalog::unchanged(key, bytes);
        let before = vec![as_it_was, catalog::no_record(catalog::intent_key(home, origin.batch))];
        let of = RemovedAttempts { batch: origin.batch, before_us: record.written_us, keep: None };
        self.clear_attempts(of, (&[], tiles), Commit { before, ..Commit::default() }).await
    }

    /// Removes rows of a batch without a record. Leaves the record of a removed batch, so that the attempt, should it
    /// continue after all, finds it and starts again.
    async fn sweep_unknown(&self, origin: Origin, tiles: &BTreeSet<(SliceId, Tile)>) -> Result<()> {
        let (home, batch) = (&self.frame().dataset, origin.batch);
        let stamp = self.stamp_us().await?;
        if stamp.saturating_sub(origin.written_us) < catalog::EXPIRES_US {
            return Ok(());
        }
        let (intent_key, record_key) = (catalog::intent_key(home, batch), catalog::batch_key(home, batch));
        let intent = Intent { key: None, written_us: stamp, attempt: removal_attempt(&self.clock(), stamp) };
        let held = catalog::to_json(&intent_key, &intent)?;
        let removed = batches::removed(None, (stamp, self.clock().about_now_us().max(stamp)), None);
        // Both are put in one step, and rows are removed only after it: from here on the attempt cannot begin to count,
        // because its last commit requires that the batch has neither a record nor an intent.
        let before = vec![
            catalog::put(intent_key.clone(), held.clone(), Expect::Absent),
            catalog::put(record_key.clone(), catalog::to_json(&record_key, &removed)?, Expect::Absent),
        ];
        self.commit(Commit { before, ..Commit::default() }).await?;
        let before = vec![catalog::unchanged(intent_key.clone(), held.clone())];
        let after = vec![catalog::delete_known(intent_key, held)];
        let of = RemovedAttempts { batch, before_us: stamp, keep: None };
        self.clear_attempts(of, (&[], tiles), Commit { before, after, ..Commit::default() }).await
    }

    /// Removes what interrupted attempts left: attempts that began a day ago, and attempts that ended their batch but
    /// left chunks. Returns the number of attempts.
    ///
    /// # Errors
    /// The engine.
    pub(crate) async fn sweep_attempts(&self) -> Result<u64> {
        let home = &self.frame().dataset;
        let mut cleared = 0;
        for record in catalog::list(self.store(), &catalog::items("intent", home)).await? {
            let batch = catalog::id_of(&record.key)?;
            let intent: Intent = catalog::from_json(&record.key, &record.value)?;
            let stored = catalog::get::<BatchRecord>(self.store(), &catalog::batch_key(home, batch)).await?;
            let ended = stored.as_ref().filter(|(record, _)| record.written_us == intent.written_us);
            // Chunks of an ended batch stay as long as reads may need them; an attempt that has not ended counts as
            // dead a day after it began. The intent of a removal of foreign rows is left to the next removal.
            let (since_us, wait_us) =
                ended.map_or((intent.written_us, catalog::EXPIRES_US), |(record, _)| (record.ended_us, self.kept_us()));
            if is_removal(&intent) || self.stamp_us().await?.saturating_sub(since_us) < wait_us {
                continue;
            }
            match self.clear_expired(batch, intent, record.value, stored).await {
                // Another process uses the batch or its slices; the next consolidation tries again.
                Err(ArchiveError::Store(StoreError::RecordConflict { .. }) | ArchiveError::SliceRetired { .. }) => {}
                result => {
                    result?;
                    cleared += 1;
                }
            }
        }
        if cleared > 0 {
            tracing::info!(target: LOG, dataset = %home.name, "removed the leftovers of {cleared} interrupted writes");
        }
        Ok(cleared)
    }

    async fn clear_expired(
        &self,
        batch: BatchId,
        intent: Intent,
        found: Bytes,
        stored: Option<(BatchRecord, Bytes)>,
    ) -> Result<()> {
        let key = catalog::intent_key(&self.frame().dataset, batch);
        // After this commit the interrupted attempt can put nothing more.
        let attempt = self.clock().unique_batch(intent.written_us).to_string();
        let taken = catalog::to_json(&key, &Intent { attempt, ..intent })?;
        let before = vec![catalog::put(key, taken.clone(), Expect::Is(found))];
        self.commit(Commit { before, ..Commit::default() }).await?;
        let stored = stored.as_ref().map(|(record, bytes)| (record, bytes));
        self.clear_all_dead(batch, taken, stored).await
    }

    /// Removes all chunks of a batch that do not count, as [`Self::clear_dead`] does.
    pub(crate) async fn clear_all_dead(
        &self,
        batch: BatchId,
        intent: Bytes,
        stored: Option<(&BatchRecord, &Bytes)>,
    ) -> Result<()> {
        let parts = catalog::parts(self.store(), &self.frame().dataset, batch).await?;
        let dead = match stored {
            Some((record, _)) => record.own_parts(parts).1,
            None => parts,
        };
        self.clear_dead(batch, intent, stored, Leftovers { dead, others: false }).await
    }
}
