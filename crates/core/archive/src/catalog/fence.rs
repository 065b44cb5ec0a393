//! How those who drop slices agree with those who write.
//!
//! Where commits and drops are both one step ([`Capabilities::atomic_commits`], [`Capabilities::atomic_drops`]), the commit that
//! ends a write demands that no drop began since the writer looked. Other engines need what follows ([`Fence::needs_closing`]).
//!
//! One record of the archive says which slices are being *closed* and which are being *dropped*. Who drops a slice closes it
//! first, waits until nobody can rely on not having seen that, and then looks what the slice holds; the record that turns closed
//! into dropping is put only where the slice is closed still. Who writes looks at the record after its chunks are durable, who
//! takes chunks out after they are gone, and both before anything is acknowledged. They open again a slice that is closed, and
//! the drop is given up; where a slice is being dropped they are refused. `docs/decisions/017-dropping-slices-in-use.md` gives the reasons.
//!
//! What was looked up counts for [`FRESH`], so that a write hardly ever asks for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use chronotile_store::{Capabilities, Commit, DatasetRef, Expect, RecordPut, Store, StoreError};
use chronotile_types::{DatasetName, SliceId};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::catalog;
use crate::catalog::clock::Clock;
use crate::error::{ArchiveError, Result};

/// How long a writer may go by what it has seen of the record. Part of the archive's format: who closes a slice waits longer.
const FRESH: Duration = Duration::from_secs(10);
/// How long who closed a slice waits before it looks what the slice holds.
pub(crate) const WAIT: Duration = Duration::from_secs(12);

/// The record's key.
pub(crate) const KEY: &str = "retiring";

/// Slices of datasets, each with the token of who closed or drops it.
type Slices = BTreeMap<String, BTreeMap<i32, String>>;

/// The record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Retiring {
    /// Differs after every change of the record, so that who saw it twice knows that nothing has happened in between.
    token: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    closed: Slices,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    dropping: Slices,
}

/// The record as it lay in the catalog.
#[derive(Clone, Debug)]
pub(crate) struct Observed {
    looked: Instant,
    state: Retiring,
    bytes: Option<Bytes>,
}

impl Observed {
    /// Tells states of the record apart; the first is empty.
    pub(crate) fn token(&self) -> &str {
        &self.state.token
    }

    /// The condition that the record is as it was seen.
    fn unchanged(&self) -> RecordPut {
        match &self.bytes {
            Some(bytes) => catalog::put(KEY.to_owned(), bytes.clone(), Expect::Is(bytes.clone())),
            None => catalog::no_record(KEY.to_owned()),
        }
    }

    /// The put of a changed record, where it is still as it was seen.
    fn changed(&self, clock: &Clock, change: impl FnOnce(&mut Retiring)) -> Result<(Retiring, RecordPut)> {
        let mut state = self.state.clone();
        change(&mut state);
        state.token = clock.token();
        let value = catalog::to_json(KEY, &state)?;
        let expect = self.bytes.clone().map_or(Expect::Absent, Expect::Is);
        Ok((state, catalog::put(KEY.to_owned(), value, expect)))
    }

    /// Whether a drop of the slice has begun and not ended.
    pub(crate) fn is_dropping(&self, dataset: &DatasetName, slice: SliceId) -> bool {
        holder(&self.state.dropping, dataset, slice).is_some()
    }

    /// Whether no slice of the dataset is closed or being dropped.
    fn is_open(&self, dataset: &DatasetName) -> bool {
        [&self.state.closed, &self.state.dropping].iter().all(|slices| !slices.contains_key(dataset.as_str()))
    }

    /// The slices of a dataset of which a drop has begun and not ended, as far as the record knows.
    pub(crate) fn dropping(&self, dataset: &DatasetName) -> Vec<SliceId> {
        self.state.dropping.get(dataset.as_str()).into_iter().flatten().map(|(slice, _)| SliceId(*slice)).collect()
    }
}

/// Whether a commit failed because the record is not as it was seen.
pub(crate) fn has_changed(error: &ArchiveError) -> bool {
    matches!(error, ArchiveError::Store(StoreError::RecordConflict { key }) if key == KEY)
}

fn put(slices: &mut Slices, dataset: &DatasetName, slice: SliceId, token: &str) {
    slices.entry(dataset.to_string()).or_default().insert(slice.0, token.to_owned());
}

fn holder<'a>(slices: &'a Slices, dataset: &DatasetName, slice: SliceId) -> Option<&'a str> {
    slices.get(dataset.as_str())?.get(&slice.0).map(String::as_str)
}

fn take(slices: &mut Slices, dataset: &DatasetName, slice: SliceId) {
    if let Some(own) = slices.get_mut(dataset.as_str()) {
        own.remove(&slice.0);
        if own.is_empty() {
            slices.remove(dataset.as_str());
        }
    }
}

/// The record of one archive, and what this process has seen of it. Clones share that.
#[derive(Clone, Debug)]
pub(crate) struct Fence {
    store: Arc<dyn Store>,
    clock: Arc<Clock>,
    seen: Arc<Mutex<Option<Observed>>>,
}

/// Slices that somebody has closed.
pub(crate) struct Closed {
    token: String,
}

impl Fence {
    pub(crate) fn new(store: Arc<dyn Store>, clock: Arc<Clock>) -> Self {
        Self { store, clock, seen: Arc::default() }
    }

    /// Whether who drops slices must close them first for their writers to notice. Only where commits and drops are both one step
    /// is it enough that the commit which ends a write fails after a drop, and that a drop compares every commit before it.
    pub(crate) fn needs_closing(&self) -> bool {
        let Capabilities { atomic_commits, atomic_drops, .. } = self.store.capabilities();
        !(atomic_commits && atomic_drops)
    }

    /// The condition by which a commit fails where a drop began after the record was seen; none where slices are closed instead.
    pub(crate) fn no_drop_since(&self, seen: &Observed) -> Option<RecordPut> {
        (!self.needs_closing()).then(|| seen.unchanged())
    }

    fn last(&self) -> Option<Observed> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn note(&self, seen: &Observed) {
        let mut last = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if last.as_ref().is_none_or(|last| last.looked <= seen.looked) {
            *last = Some(seen.clone());
        }
    }

    /// The record as it is now.
    pub(crate) async fn look(&self) -> Result<Observed> {
        let looked = Instant::now();
        let found = catalog::get::<Retiring>(self.store.as_ref(), KEY).await?;
        let (state, bytes) = found.map_or_else(Default::default, |(state, bytes)| (state, Some(bytes)));
        let seen = Observed { looked, state, bytes };
        self.note(&seen);
        Ok(seen)
    }

    /// The record as this process saw it at some time.
    pub(crate) async fn glance(&self) -> Result<Observed> {
        match self.last() {
            Some(seen) => Ok(seen),
            None => self.look().await,
        }
    }

    /// Looks again where what was seen may not count much longer; beside other work, so that nobody waits for it.
    pub(crate) async fn renew(&self) {
        if self.last().is_none_or(|seen| seen.looked.elapsed() > FRESH / 2) {
            // Whoever needs it looks again.
            let _ = self.look().await;
        }
    }

    /// The slices of a dataset of which a drop began before this call and has not ended. A drop that begins later has what was there
    /// before.
    pub(crate) async fn dropping_by_now(&self, dataset: &DatasetName) -> Result<Vec<SliceId>> {
        if !self.needs_closing() {
            return Ok(vec![]);
        }
        Ok(self.recent(dataset).await?.dropping(dataset))
    }

    /// The record as this process saw it a moment ago, or as it is now where some slice of the dataset was closed or being dropped then.
    async fn recent(&self, dataset: &DatasetName) -> Result<Observed> {
        match self.last() {
            Some(seen) if seen.looked.elapsed() < FRESH && seen.is_open(dataset) => Ok(seen),
            _ => self.look().await,
        }
    }

    /// Whether the chunks of a write into these slices stay, once they are durable; returns what it went by. To be called
    /// before anything is acknowledged.
    ///
    /// # Errors
    /// [`ArchiveError::SliceRetired`] where one of the slices is being dropped.
    pub(crate) async fn pass(&self, dataset: &DatasetRef, slices: &BTreeSet<SliceId>) -> Result<Observed> {
        let mut seen = self.recent(&dataset.name).await?;
        loop {
            if let Some(slice) = slices.iter().find(|slice| seen.is_dropping(&dataset.name, **slice)) {
                return Err(ArchiveError::SliceRetired { dataset: dataset.name.clone(), slice: *slice });
            }
            let closed = |slice: &&SliceId| holder(&seen.state.closed, &dataset.name, **slice).is_some();
            let closed: Vec<SliceId> = slices.iter().filter(closed).copied().collect();
            if closed.is_empty() {
                return Ok(seen);
            }
            let open =
                |state: &mut Retiring| closed.iter().for_each(|slice| take(&mut state.closed, &dataset.name, *slice));
            self.change(dataset, &seen, open).await?;
            seen = self.look().await?;
        }
    }

    /// Closes slices before they are dropped, and waits until every writer notices. Does nothing where that is not needed.
    pub(crate) async fn close(&self, dataset: &DatasetRef, slices: &[SliceId]) -> Result<Closed> {
        let token = self.clock.token();
        if self.needs_closing() {
            let close = |state: &mut Retiring| {
                slices.iter().for_each(|slice| put(&mut state.closed, &dataset.name, *slice, &token))
            };
            while !self.change(dataset, &self.look().await?, close).await? {}
            tokio::time::sleep(WAIT).await;
        }
        Ok(Closed { token })
    }

    /// What is to be put with the drop of a slice; `None` where somebody has opened it meanwhile.
    pub(crate) async fn dropping(
        &self,
        dataset: &DatasetRef,
        slice: SliceId,
        closed: &Closed,
    ) -> Result<Option<RecordPut>> {
        let seen = self.look().await?;
        if !self.needs_closing() {
            return Ok(Some(seen.changed(&self.clock, |_| ())?.1));
        }
        match holder(&seen.state.closed, &dataset.name, slice) {
            None => Ok(None),
            Some(token) if token == closed.token => Ok(Some(
                seen.changed(&self.clock, |state| {
                    take(&mut state.closed, &dataset.name, slice);
                    put(&mut state.dropping, &dataset.name, slice, &closed.token);
                })?
                .1,
            )),
            Some(_) => Err(ArchiveError::RetireRace { dataset: dataset.name.clone(), slice }),
        }
    }

    /// Takes over the drop of a slice that somebody began; `None` where it has ended.
    pub(crate) async fn take_over(&self, dataset: &DatasetRef, slice: SliceId) -> Result<Option<(Closed, RecordPut)>> {
        let seen = self.look().await?;
        if !seen.is_dropping(&dataset.name, slice) {
            return Ok(None);
        }
        let closed = Closed { token: self.clock.token() };
        let (_, record) =
            seen.changed(&self.clock, |state| put(&mut state.dropping, &dataset.name, slice, &closed.token))?;
        Ok(Some((closed, record)))
    }

    /// Ends what [`Self::close`] and [`Self::dropping`] began: what is closed is open again, and what is `gone` may be made
    /// again. A slice of which the drop failed stays as it is until somebody ends that.
    pub(crate) async fn open(
        &self,
        dataset: &DatasetRef,
        slices: &[SliceId],
        gone: &[SliceId],
        closed: &Closed,
    ) -> Result<()> {
        if !self.needs_closing() {
            return Ok(());
        }
        loop {
            let seen = self.look().await?;
            let ours = |held: &Slices, slices: &[SliceId]| {
                let own = |slice: &&SliceId| holder(held, &dataset.name, **slice) == Some(closed.token.as_str());
                slices.iter().filter(own).copied().collect::<Vec<_>>()
            };
            let (closed, dropping) = (ours(&seen.state.closed, slices), ours(&seen.state.dropping, gone));
            if closed.is_empty() && dropping.is_empty() {
                return Ok(());
            }
            let open = |state: &mut Retiring| {
                closed.iter().for_each(|slice| take(&mut state.closed, &dataset.name, *slice));
                dropping.iter().for_each(|slice| take(&mut state.dropping, &dataset.name, *slice));
            };
            if self.change(dataset, &seen, open).await? {
                return Ok(());
            }
        }
    }

    /// Changes the record; `false` where somebody else was first.
    async fn change(&self, dataset: &DatasetRef, seen: &Observed, change: impl FnOnce(&mut Retiring)) -> Result<bool> {
        let (state, put) = seen.changed(&self.clock, change)?;
        let (looked, bytes) = (Instant::now(), put.value.clone());
        match self.store.commit(dataset, Commit { before: vec![put], ..Commit::default() }).await {
            Ok(()) => {
                self.note(&Observed { looked, state, bytes });
                Ok(true)
            }
            Err(StoreError::RecordConflict { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use chronotile_memory::MemoryStore;

    use super::*;

    fn home(name: &str) -> DatasetRef {
        DatasetRef { name: DatasetName::new(name).unwrap(), ..DatasetRef::from(&crate::testing::spec()) }
    }

    #[tokio::test]
    async fn a_drop_that_was_cut_off_is_listed_and_taken_over_until_it_has_ended() {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let fence = Fence::new(store.clone(), Arc::default());
        let (dataset, slice) = (home("records"), SliceId(3));
        assert_eq!(fence.look().await.unwrap().dropping(&dataset.name), []);
        assert!(fence.take_over(&dataset, slice).await.unwrap().is_none());
        let begin = |state: &mut Retiring| put(&mut state.dropping, &dataset.name, slice, "first");
        assert!(fence.change(&dataset, &fence.look().await.unwrap(), begin).await.unwrap());
        // Another process sees it, of this dataset and slice alone.
        let other = Fence::new(store.clone(), Arc::default());
        let seen = other.look().await.unwrap();
        assert_eq!(seen.dropping(&dataset.name), [slice]);
        assert_eq!(seen.dropping(&home("others").name), []);
        assert!(other.take_over(&dataset, SliceId(4)).await.unwrap().is_none());
        let (closed, record) = other.take_over(&dataset, slice).await.unwrap().unwrap();
        let taken = Commit { before: vec![record.clone()], ..Commit::default() };
        store.commit(&dataset, taken.clone()).await.unwrap();
        let seen = fence.look().await.unwrap();
        assert_eq!(holder(&seen.state.dropping, &dataset.name, slice), Some(&*closed.token));
        // It is taken over once: what was seen before has changed.
        let late = store.commit(&dataset, taken).await.unwrap_err();
        assert!(has_changed(&late.into()));
        let end = |state: &mut Retiring| take(&mut state.dropping, &dataset.name, slice);
        assert!(fence.change(&dataset, &seen, end).await.unwrap());
        assert!(!other.change(&dataset, &seen, |_| ()).await.unwrap(), "somebody else was first");
        assert!(other.take_over(&dataset, slice).await.unwrap().is_none());
    }

    #[test]
    fn a_conflict_of_another_record_is_no_change_of_the_record() {
        let conflict = |key: &str| ArchiveError::from(StoreError::RecordConflict { key: key.into() });
        assert!(has_changed(&conflict(KEY)));
        assert!(!has_changed(&conflict("batch/records/1")));
        assert!(!has_changed(&ArchiveError::Cancelled));
    }
}
