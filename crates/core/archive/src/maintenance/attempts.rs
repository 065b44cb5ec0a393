//! Clearing away what attempts at batches left that do not count.

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
use crate::maintenance::take_out::Unwanted;

/// What lies about of a batch beside what counts.
pub(crate) struct Left {
    /// Lists of chunks to take away.
    pub dead: Vec<ChunkList>,
    /// Whether there are others, which readers may need still.
    pub others: bool,
}

impl Dataset {
    /// Takes away chunks of a batch that do not count, and rows of attempts before the one that does where these were
    /// consolidated. Ends the hold on the batch that lies in the catalog as `intent`, unless `left` has others: then it stays for a
    /// consolidation to clear up. `stored` is the record of the batch and its bytes.
    ///
    /// # Errors
    /// [`StoreError::RecordConflict`] where the hold was lost or the record is another one by now, and nothing was taken away;
    /// [`ArchiveError::SliceRetired`]; the engine.
    pub(crate) async fn clear_dead(
        &self,
        batch: BatchId,
        intent: Bytes,
        stored: Option<(&BatchRecord, &Bytes)>,
        left: Left,
    ) -> Result<()> {
        let home = &self.frame().dataset;
        let (intent_key, record_key) = (catalog::intent_key(home, batch), catalog::batch_key(home, batch));
        let mut refs: Vec<ChunkRef> = left.dead.iter().flat_map(|part| part.refs.iter().copied()).collect();
        if let Some((record, _)) = stored {
            // Attempts of one moment with the same rows have the same chunks.
            let (own, _) = record.own_parts(catalog::parts(self.store(), home, batch).await?);
            let own: HashSet<ChunkKey> = own.iter().flat_map(|part| &part.refs).map(|chunk| chunk.key).collect();
            refs.retain(|chunk| !own.contains(&chunk.key));
        }
        let as_it_was = match stored {
            Some((_, bytes)) => catalog::put(record_key, bytes.clone(), Expect::Is(bytes.clone())),
            None => catalog::no_record(record_key),
        };
        let before = vec![catalog::put(intent_key.clone(), intent.clone(), Expect::Is(intent.clone())), as_it_was];
        let mut after: Vec<RecordPut> =
            left.dead.iter().map(|part| catalog::delete_part(home, batch, part.number)).collect();
        after.push(match stored.filter(|_| left.others) {
            None => catalog::delete_known(intent_key, intent),
            // With the stamp of the record, it says that the batch has ended and something is left.
            Some((record, _)) => {
                let held: Intent = catalog::from_json(&intent_key, &intent)?;
                let ended = catalog::to_json(&intent_key, &Intent { written_us: record.written_us, ..held })?;
                catalog::put(intent_key, ended, Expect::Is(intent))
            }
        });
        let before_us = stored.filter(|_| !left.others).map_or(i64::MIN, |(record, _)| record.written_us);
        let of = Unwanted { batch, before_us, keep: None };
        self.clear_attempts(of, (&refs, &BTreeSet::new()), Commit { before, after, ..Commit::default() }).await
    }

    /// Takes away rows that were met in these tiles of attempts that do not count and that nobody holds any more: of batches of which
    /// the catalog knows nothing, once they began a day ago, and of attempts before the one that counts, once no reader needs them.
    ///
    /// # Errors
    /// The engine.
    pub(crate) async fn sweep_strays(&self, strays: BTreeMap<Origin, BTreeSet<(SliceId, Tile)>>) -> Result<()> {
        // A copy puts chunks before the records of their batches, and is unsettled until all records are there.
        if strays.is_empty() || self.superseded().await?.unsettled {
            return Ok(());
        }
        let home = &self.frame().dataset;
        for (origin, tiles) in strays {
            if self.store().record(&catalog::intent_key(home, origin.batch)).await?.is_some() {
                continue;
            }
            let key = catalog::batch_key(home, origin.batch);
            let swept = match catalog::get::<BatchRecord>(self.store(), &key).await? {
                Some((record, bytes)) => self.sweep_before(origin, (record, bytes), &tiles).await,
                None => self.sweep_unknown(origin, &tiles).await,
            };
            match swept {
                // Its writer goes on, or somebody else clears up.
                Err(ArchiveError::Store(StoreError::RecordConflict { .. }) | ArchiveError::SliceRetired { .. }) => {}
                swept => swept?,
            }
        }
        Ok(())
    }

    /// Takes away rows of an attempt that came before the one that counts.
    async fn sweep_before(
        &self,
        origin: Origin,
        (record, bytes): (BatchRecord, Bytes),
        tiles: &BTreeSet<(SliceId, Tile)>,
    ) -> Result<()> {
        let home = &self.frame().dataset;
        let since_us = self.clock().about_now_us().saturating_sub(record.ended_us);
        if origin.written_us >= record.written_us || since_us < self.kept_us() {
            return Ok(());
        }
        let key = catalog::batch_key(home, origin.batch);
        let as_it_was = catalog::put(key, bytes.clone(), Expect::Is(bytes));
        let before = vec![as_it_was, catalog::no_record(catalog::intent_key(home, origin.batch))];
        let of = Unwanted { batch: origin.batch, before_us: record.written_us, keep: None };
        self.clear_attempts(of, (&[], tiles), Commit { before, ..Commit::default() }).await
    }

    /// Takes away rows of a batch of which the catalog knows nothing. The record of a removed batch stays in its place, so that its
    /// attempt, should it go on after all, finds that it has to begin again.
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
        let before = vec![
            catalog::put(intent_key.clone(), held.clone(), Expect::Absent),
            catalog::put(record_key.clone(), catalog::to_json(&record_key, &removed)?, Expect::Absent),
        ];
        self.commit(Commit { before, ..Commit::default() }).await?;
        let before = vec![catalog::put(intent_key.clone(), held.clone(), Expect::Is(held.clone()))];
        let after = vec![catalog::delete_known(intent_key, held)];
        let of = Unwanted { batch, before_us: stamp, keep: None };
        self.clear_attempts(of, (&[], tiles), Commit { before, after, ..Commit::default() }).await
    }

    /// Clears up after attempts that were cut off: such as began a day ago, and such as ended their batch and did not clear up.
    /// Returns how many there were.
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
            let (since_us, wait_us) =
                ended.map_or((intent.written_us, catalog::EXPIRES_US), |(record, _)| (record.ended_us, self.kept_us()));
            if is_removal(&intent) || self.stamp_us().await?.saturating_sub(since_us) < wait_us {
                continue;
            }
            match self.clear_expired(batch, intent, record.value, stored).await {
                // Somebody is at the batch after all, or at its slices: the next time tells.
                Err(ArchiveError::Store(StoreError::RecordConflict { .. }) | ArchiveError::SliceRetired { .. }) => {}
                result => {
                    result?;
                    cleared += 1;
                }
            }
        }
        if cleared > 0 {
            tracing::info!(target: LOG, dataset = %home.name, "cleared up after {cleared} writes that were cut off");
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
        // From here on the attempt can put nothing more.
        let attempt = self.clock().unique_batch(intent.written_us).to_string();
        let taken = catalog::to_json(&key, &Intent { attempt, ..intent })?;
        let before = vec![catalog::put(key, taken.clone(), Expect::Is(found))];
        self.commit(Commit { before, ..Commit::default() }).await?;
        let stored = stored.as_ref().map(|(record, bytes)| (record, bytes));
        self.clear_all_dead(batch, taken, stored).await
    }

    /// Takes away all of a batch that does not count, as [`Self::clear_dead`] does.
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
        self.clear_dead(batch, intent, stored, Left { dead, others: false }).await
    }
}
