//! Which batches are finished, for reads that leave out the others.
//!
//! A read looks at the heads of its chunks first, which name the batches that their rows are of, and looks up those it has not
//! seen finished before. What was seen stays true until a batch is replaced or removed: whoever does so lists it as *changing*
//! before taking chunks away, and readers look up anew what is listed.

use std::collections::{BTreeSet, HashSet};

use bytes::Bytes;
use chronotile_chunk::Origin;
use chronotile_store::{Commit, Expect, StoreError};
use chronotile_types::BatchId;
use futures::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};

use crate::catalog::{self, BatchRecord, Intent, clock};
use crate::dataset::Dataset;
use crate::error::{ArchiveError, Result};
use crate::read::query::Query;

/// Batches looked up at once, and the number from which on all there are are listed instead: on a cluster a listing is a
/// request to each of some hundred partitions.
const LOOKED_UP_AT_ONCE: usize = 64;
const LOOKED_UP: usize = 500;
/// Batches remembered as finished; about 40 bytes each.
const REMEMBERED: usize = 1 << 20;

/// The record of the batches of which somebody is taking chunks away.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Changing {
    /// Differs after every change of the list.
    token: String,
    batches: BTreeSet<String>,
}

impl Dataset {
    /// Of the batches that the query's chunks are of, those that have ended by now and are not being written anew. One that
    /// begins later may be seen in part by a scan, and is not among them.
    pub(crate) async fn finished_of(&self, query: &Query) -> Result<HashSet<BatchId>> {
        let origins = self.origins_of(query).await?;
        let changing = self.changing().await?.0.batches;
        let is_changing = |batch: &BatchId| changing.contains(&batch.to_string());
        let unsure: HashSet<BatchId> = self.seen_finished(|seen| {
            let unseen = origins.iter().filter(|origin| !seen.contains(origin) || is_changing(&origin.batch));
            unseen.map(|origin| origin.batch).collect()
        });
        let unfinished = self.unfinished_among(unsure).await?;
        let mut finished = origins;
        finished.retain(|origin| !unfinished.contains(&origin.batch));
        self.seen_finished(|seen| {
            if seen.len() > REMEMBERED {
                seen.clear();
            }
            seen.extend(&finished);
        });
        Ok(finished.into_iter().map(|origin| origin.batch).collect())
    }

    /// Origins of the rows in the chunks that the query covers.
    async fn origins_of(&self, query: &Query) -> Result<HashSet<Origin>> {
        let mut heads = self.store().scan(&query.frame.dataset, query.scan(false)).await?;
        let mut origins = HashSet::new();
        while let Some(chunks) = heads.try_next().await? {
            for chunk in &chunks {
                origins.extend(query.frame.head(chunk)?.origins.iter().copied());
            }
        }
        Ok(origins)
    }

    async fn unfinished_among(&self, mut batches: HashSet<BatchId>) -> Result<HashSet<BatchId>> {
        if batches.len() > LOOKED_UP {
            let name = &self.spec().name;
            let ended = catalog::finished_ids(self.store(), name).await?;
            let begun = catalog::unfinished(self.store(), name).await?;
            let begun: HashSet<BatchId> = begun.into_iter().map(|(batch, _)| batch).collect();
            batches.retain(|batch| !ended.contains(batch) || begun.contains(batch));
            return Ok(batches);
        }
        let look_up = async |batch: BatchId| Ok::<_, ArchiveError>((batch, self.is_finished(batch).await?));
        let looked_up = stream::iter(batches).map(look_up).buffer_unordered(LOOKED_UP_AT_ONCE);
        let unfinished = |(batch, finished): (BatchId, bool)| std::future::ready(Ok((!finished).then_some(batch)));
        looked_up.try_filter_map(unfinished).try_collect().await
    }

    async fn is_finished(&self, batch: BatchId) -> Result<bool> {
        let name = &self.spec().name;
        let begun = catalog::get::<Intent>(self.store(), &catalog::intent_key(name, batch)).await?;
        let Some((ended, _)) = catalog::get::<BatchRecord>(self.store(), &catalog::batch_key(name, batch)).await?
        else {
            return Ok(false);
        };
        // An intent of the record's own stamp is left from a write that did end.
        Ok(begun.is_none_or(|(intent, _)| intent.written_us == ended.written_us))
    }

    /// Lists a batch as changing, before chunks of it are taken away.
    pub(crate) async fn list_changing(&self, batch: BatchId) -> Result<()> {
        self.change_list(|list| {
            list.insert(batch.to_string());
            true
        })
        .await
    }

    /// Takes a batch off the list. Where it stays there, readers look it up each time and find it finished.
    pub(crate) async fn unlist_changing(&self, batch: BatchId) {
        let _ = self.change_list(|list| list.remove(&batch.to_string())).await;
    }

    async fn change_list(&self, change: impl Fn(&mut BTreeSet<String>) -> bool) -> Result<()> {
        loop {
            let (mut list, found) = self.changing().await?;
            if !change(&mut list.batches) {
                return Ok(());
            }
            list.token = clock::unique_batch(clock::stamp_us()).to_string();
            let key = catalog::changing_key(&self.spec().name);
            let value = catalog::to_json(&key, &list)?;
            let before = vec![catalog::put(key, value, found.map_or(Expect::Absent, Expect::Is))];
            match self.commit(Commit { before, ..Commit::default() }).await {
                Err(ArchiveError::Store(StoreError::RecordConflict { .. })) => continue,
                result => return result,
            }
        }
    }

    /// Differs from what it was before chunks were taken away for a batch that is replaced or removed.
    pub(crate) async fn change_token(&self) -> Result<String> {
        Ok(self.changing().await?.0.token)
    }

    async fn changing(&self) -> Result<(Changing, Option<Bytes>)> {
        let found = catalog::get(self.store(), &catalog::changing_key(&self.spec().name)).await?;
        Ok(found.map_or_else(Default::default, |(list, bytes)| (list, Some(bytes))))
    }
}
