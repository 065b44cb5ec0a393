//! The list of batches that were ever replaced or removed, and how processes notify each other that different rows
//! count.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use chronotile_store::{Commit, Expect, RecordPut, StoreError};
use chronotile_types::BatchId;

use crate::catalog;
use crate::catalog::superseded::{KnownSuperseded, PAGE_BATCHES, SupersededHead, head_key, page_key};
use crate::dataset::Dataset;
use crate::error::{ArchiveError, Result};

impl Dataset {
    /// The current list of superseded batches.
    pub(crate) async fn superseded(&self) -> Result<KnownSuperseded> {
        let (head, _) = self.superseded_head().await?;
        let known = self.known_superseded(|known| known.clone());
        if known.token == head.token {
            return Ok(known);
        }
        // Pages may have grown after the head was read. Batches that are known early only cost lookups, and the older
        // token makes the next call read the pages again.
        let home = &self.frame().dataset;
        let mut batches = HashSet::clone(&known.batches);
        // The last known page may have grown.
        for page in known.pages.saturating_sub(1)..head.pages {
            let found = catalog::get::<Vec<String>>(self.store(), &page_key(home, page)).await?;
            batches.extend(found.into_iter().flat_map(|(ids, _)| ids).filter_map(|id| BatchId::from_hex(&id)));
        }
        let SupersededHead { token, pages, unsettled } = head;
        let taken = KnownSuperseded { token, pages, unsettled, batches: Arc::new(batches) };
        // A concurrent call may have put a newer list. The next call then notices that the tokens differ and reads the
        // list again.
        self.known_superseded(|known| *known = taken.clone());
        Ok(taken)
    }

    async fn superseded_head(&self) -> Result<(SupersededHead, Option<Bytes>)> {
        let found = catalog::get(self.store(), &head_key(&self.frame().dataset)).await?;
        Ok(found.map_or_else(Default::default, |(head, bytes)| (head, Some(bytes))))
    }

    /// Enters a batch in the list before another attempt, or none, counts: every read that begins after this looks up
    /// the batch record. Also notifies processes that move slices elsewhere that rows are about to be removed.
    pub(crate) async fn supersede(&self, batch: BatchId) -> Result<()> {
        self.supersede_all(&HashSet::from([batch])).await
    }

    /// As [`Self::supersede`], for several batches.
    pub(crate) async fn supersede_all(&self, batches: &HashSet<BatchId>) -> Result<()> {
        let known = self.superseded().await?;
        let mut new: Vec<BatchId> = batches.difference(&known.batches).copied().collect();
        // Hash sets have another order in each run: sorting lets a seed of the simulation repeat its commits.
        new.sort_unstable();
        let home = self.frame().dataset;
        let mut page = known.pages.saturating_sub(1);
        while !new.is_empty() {
            let key = page_key(&home, page);
            let found = catalog::get::<Vec<String>>(self.store(), &key).await?;
            let (mut ids, bytes) = found.map_or_else(Default::default, |(ids, bytes)| (ids, Some(bytes)));
            if ids.len() >= PAGE_BATCHES {
                page += 1;
                continue;
            }
            let added = new.split_off(new.len().saturating_sub(PAGE_BATCHES - ids.len()));
            ids.extend(added.iter().map(BatchId::to_string));
            let put =
                catalog::put(key.clone(), catalog::to_json(&key, &ids)?, bytes.map_or(Expect::Absent, Expect::Is));
            match self.commit(Commit { before: vec![put], ..Commit::default() }).await {
                // Another process has changed the page: the next round reads it again.
                Err(ArchiveError::Store(StoreError::RecordConflict { .. })) => new.extend(added),
                result => result?,
            }
        }
        // The head changes after its pages: whoever reads the new token finds all batches in them. If the process dies
        // in between, a repetition changes the head in any case.
        self.change_superseded(|head| head.pages = head.pages.max(page + 1)).await
    }

    /// All batches that were ever replaced or removed.
    pub(crate) async fn superseded_batches(&self) -> Result<Arc<HashSet<BatchId>>> {
        Ok(self.superseded().await?.batches)
    }

    /// Commits a change of which rows count that changes no tile, and notifies processes that move slices elsewhere:
    /// in the same step if the store has atomic commits, otherwise right after.
    ///
    /// # Errors
    /// [`StoreError::RecordConflict`] with the key of the record that differs from what was expected; the engine.
    pub(crate) async fn commit_and_announce(&self, commit: Commit) -> Result<()> {
        if !self.store().capabilities().atomic_commits {
            self.commit(commit).await?;
            return self.change_superseded(|_| ()).await;
        }
        let key = head_key(&self.frame().dataset);
        loop {
            let (mut head, bytes) = self.superseded_head().await?;
            head.token = self.clock().token();
            let mut commit = commit.clone();
            let expect = bytes.map_or(Expect::Absent, Expect::Is);
            commit.before.push(catalog::put(key.clone(), catalog::to_json(&key, &head)?, expect));
            match self.commit(commit).await {
                // Only a conflict of the head is resolved here: the caller set the conditions on other records.
                Err(ArchiveError::Store(StoreError::RecordConflict { key: changed })) if changed == key => continue,
                result => return result,
            }
        }
    }

    /// Notifies processes that rows were removed.
    pub(crate) async fn superseded_rows_gone(&self) {
        // If this fails, [`Dataset::supersede`] has already notified them.
        let _ = self.change_superseded(|_| ()).await;
    }

    /// Records whether consolidated chunks may from now on contain rows of attempts that do not count.
    pub(crate) async fn set_unsettled(&self, unsettled: bool) -> Result<()> {
        if self.superseded_head().await?.0.unsettled == unsettled {
            return Ok(());
        }
        self.change_superseded(|head| head.unsettled = unsettled).await
    }

    /// Changes the head of the list; its token changes in any case.
    async fn change_superseded(&self, change: impl Fn(&mut SupersededHead)) -> Result<()> {
        let key = head_key(&self.frame().dataset);
        loop {
            let (mut head, bytes) = self.superseded_head().await?;
            head.token = self.clock().token();
            change(&mut head);
            let put =
                catalog::put(key.clone(), catalog::to_json(&key, &head)?, bytes.map_or(Expect::Absent, Expect::Is));
            match self.commit(Commit { before: vec![put], ..Commit::default() }).await {
                Err(ArchiveError::Store(StoreError::RecordConflict { .. })) => continue,
                result => return result,
            }
        }
    }

    /// A token that changes when rows are removed from a batch and when an attempt begins or ends: a read that ended
    /// before the change may have seen other rows than one that begins after it.
    pub(crate) async fn change_token(&self) -> Result<String> {
        Ok(self.unchanged().await?.0)
    }

    /// The same token, with a condition that a commit fails if it has changed, as far as [`Self::commit_and_announce`]
    /// reports changes.
    pub(crate) async fn unchanged(&self) -> Result<(String, RecordPut)> {
        let home = &self.frame().dataset;
        let (head, bytes) = self.superseded_head().await?;
        let key = head_key(home);
        let condition = match bytes {
            Some(bytes) => catalog::unchanged(key, bytes),
            None => catalog::no_record(key),
        };
        let mut token = head.token;
        for record in catalog::list(self.store(), &catalog::items("intent", home)).await? {
            token.push_str(&record.key);
            token.push_str(&String::from_utf8_lossy(&record.value));
        }
        Ok((token, condition))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may unwrap
mod tests {
    use super::*;
    use crate::Archive;
    use crate::testing::spec;
    use chronotile_memory::MemoryStore;
    use chronotile_store::{Metered, Operation, Store};

    fn batches(ids: std::ops::Range<usize>) -> HashSet<BatchId> {
        ids.map(|id| BatchId(id as u128)).collect()
    }

    async fn page_sizes(dataset: &Dataset) -> Vec<usize> {
        let pages = catalog::list(dataset.store(), "superseded/records/").await.unwrap();
        let size = |key: &str, value: &Bytes| catalog::from_json::<Vec<String>>(key, value).unwrap().len();
        pages.iter().map(|page| size(&page.key, &page.value)).collect()
    }

    #[tokio::test]
    async fn the_list_goes_on_in_pages_and_every_process_takes_in_all_of_it() {
        let metered = Arc::new(Metered::new(Arc::new(MemoryStore::new())));
        let store: Arc<dyn Store> = metered.clone();
        let one = Archive::on("test:", store.clone()).create(spec(), false).await.unwrap();
        let other = Archive::on("test:", store).dataset("records").await.unwrap();
        let known = async |wanted: std::ops::Range<usize>| {
            let known = other.superseded().await.unwrap();
            assert_eq!(*known.batches, batches(wanted));
            known.token
        };
        let mut tokens = vec![known(0..0).await];
        one.supersede_all(&batches(0..5)).await.unwrap();
        tokens.push(known(0..5).await);
        // Batches already in the list are not entered again; those that do not fit go to the next page.
        one.supersede_all(&batches(3..PAGE_BATCHES + 2)).await.unwrap();
        assert_eq!(page_sizes(&one).await, [PAGE_BATCHES, 2]);
        tokens.push(known(0..PAGE_BATCHES + 2).await);
        other.supersede_all(&batches(PAGE_BATCHES + 2..PAGE_BATCHES + 3)).await.unwrap();
        assert_eq!(page_sizes(&one).await, [PAGE_BATCHES, 3]);
        assert_eq!(*one.superseded().await.unwrap().batches, batches(0..PAGE_BATCHES + 3));
        tokens.push(known(0..PAGE_BATCHES + 3).await);
        other.supersede_all(&batches(PAGE_BATCHES + 3..3 * PAGE_BATCHES + 1)).await.unwrap();
        assert_eq!(page_sizes(&one).await, [PAGE_BATCHES, PAGE_BATCHES, PAGE_BATCHES, 1]);
        assert_eq!(*one.superseded().await.unwrap().batches, batches(0..3 * PAGE_BATCHES + 1));
        tokens.push(known(0..3 * PAGE_BATCHES + 1).await);
        assert_eq!(tokens.iter().collect::<HashSet<_>>().len(), tokens.len(), "a change that others do not notice");
        // An unchanged list costs one read of its head.
        let asked = || metered.snapshot().iter().find(|each| each.operation == Operation::Record).unwrap().calls;
        let before = asked();
        known(0..3 * PAGE_BATCHES + 1).await;
        assert_eq!(asked() - before, 1);
    }

    #[tokio::test]
    async fn that_chunks_may_have_rows_that_do_not_count_is_told_to_other_processes() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let one = Archive::on("test:", store.clone()).create(spec(), false).await.unwrap();
        let other = Archive::on("test:", store).dataset("records").await.unwrap();
        let mut before = other.superseded().await.unwrap();
        assert!(!before.unsettled);
        for unsettled in [true, false] {
            one.set_unsettled(unsettled).await.unwrap();
            let now = other.superseded().await.unwrap();
            assert!(now.unsettled == unsettled && now.token != before.token, "{now:?}");
            one.set_unsettled(unsettled).await.unwrap();
            assert_eq!(other.superseded().await.unwrap().token, now.token, "nothing changed");
            before = now;
        }
    }
}
