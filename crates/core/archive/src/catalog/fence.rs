//! Coordinates processes that drop slices with processes that write to them.
//!
//! Where commits and drops are both one step ([`Capabilities::atomic_commits`], [`Capabilities::atomic_drops`]), the
//! commit that ends a write fails if a drop began since the writer read the record. Other engines need this protocol
//! ([`Fence::needs_closing`]):
//!
//! One record of the archive lists the slices that are *closed* and those that are being *dropped*. A process that
//! drops a slice first closes it, waits until no writer relies on an older state of the record, and then lists the
//! chunks of the slice. It marks the slice as being dropped only if it is still closed. A writer reads the record after
//! its chunks are durable; a process that removes chunks reads it after they are removed; both before they acknowledge
//! anything. They reopen a closed slice, which cancels the drop; a slice that is being dropped refuses them.
//! `docs/decisions/017-dropping-slices-in-use.md` gives the reasons.
//!
//! A process may use a cached state of the record for [`FRESH`], so that few writes need to read it.

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

/// How long a writer may use a cached state of the record. Part of the archive's format: a process that closes a slice
/// waits longer.
const FRESH: Duration = Duration::from_secs(10);
/// How long a process that closed a slice waits before it lists the chunks of the slice.
pub(crate) const WAIT: Duration = Duration::from_secs(12);

/// Key of the record.
pub(crate) const KEY: &str = "retiring";

/// Slices by dataset, each with the token of the process that closed or drops it.
type Slices = BTreeMap<String, BTreeMap<i32, String>>;

/// The record of closed slices and slices being dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClosedSlices {
    /// Differs after every change of the record: the same token read twice means that nothing changed in between.
    token: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    closed: Slices,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    dropping: Slices,
}

/// The record as it was read, and when.
#[derive(Clone, Debug)]
pub(crate) struct Observed {
    read_at: Instant,
    state: ClosedSlices,
    bytes: Option<Bytes>,
}

impl Observed {
    /// Identifies a state of the record; empty while there is no record.
    pub(crate) fn token(&self) -> &str {
        &self.state.token
    }

    /// The condition that the record has not changed since it was read.
    fn unchanged(&self) -> RecordPut {
        match &self.bytes {
            Some(bytes) => catalog::unchanged(KEY.to_owned(), bytes.clone()),
            None => catalog::no_record(KEY.to_owned()),
        }
    }

    /// The put of a changed record, on condition that nobody else has changed it.
    fn changed(&self, clock: &Clock, change: impl FnOnce(&mut ClosedSlices)) -> Result<(ClosedSlices, RecordPut)> {
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

    /// The slices of a dataset whose drop has begun and not ended.
    pub(crate) fn dropping(&self, dataset: &DatasetName) -> Vec<SliceId> {
        self.state.dropping.get(dataset.as_str()).into_iter().flatten().map(|(slice, _)| SliceId(*slice)).collect()
    }
}

/// Whether a commit failed because the record has changed since it was read.
pub(crate) fn has_changed(error: &ArchiveError) -> bool {
    matches!(error, ArchiveError::Store(StoreError::RecordConflict { key }) if key == KEY)
}

fn put(slices: &mut Slices, dataset: &DatasetName, slice: SliceId, token: &str) {
    slices.entry(dataset.to_string()).or_default().insert(slice.0, token.to_owned());
}

fn holder<'a>(slices: &'a Slices, dataset: &DatasetName, slice: SliceId) -> Option<&'a str> {
    slices.get(dataset.as_str())?.get(&slice.0).map(String::as_str)
}

fn remove(slices: &mut Slices, dataset: &DatasetName, slice: SliceId) {
    if let Some(own) = slices.get_mut(dataset.as_str()) {
        own.remove(&slice.0);
        if own.is_empty() {
            slices.remove(dataset.as_str());
        }
    }
}

/// Access to the record of one archive, with a cache that clones share.
#[derive(Clone, Debug)]
pub(crate) struct Fence {
    store: Arc<dyn Store>,
    clock: Arc<Clock>,
    cached: Arc<Mutex<Option<Observed>>>,
}

/// The token of a process that closed slices or drops them.
pub(crate) struct Closed {
    token: String,
}

impl Fence {
    pub(crate) fn new(store: Arc<dyn Store>, clock: Arc<Clock>) -> Self {
        Self { store, clock, cached: Arc::default() }
    }

    /// Whether slices must be closed before they are dropped, so that writers notice. If commits and drops are both
    /// atomic, this is not needed: the commit that ends a write fails after a drop, and a drop sees every commit before
    /// it.
    pub(crate) fn needs_closing(&self) -> bool {
        let Capabilities { atomic_commits, atomic_drops, .. } = self.store.capabilities();
        !(atomic_commits && atomic_drops)
    }

    /// The condition that no drop began after the record was read; `None` if slices are closed instead.
    pub(crate) fn no_drop_since(&self, observed: &Observed) -> Option<RecordPut> {
        (!self.needs_closing()).then(|| observed.unchanged())
    }

    fn last(&self) -> Option<Observed> {
        self.cached.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn cache(&self, observed: &Observed) {
        let mut last = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        // Reads that run in parallel may be answered in another order than they began.
        if last.as_ref().is_none_or(|last| last.read_at <= observed.read_at) {
            *last = Some(observed.clone());
        }
    }

    /// Reads the record.
    pub(crate) async fn read(&self) -> Result<Observed> {
        // The age of a state counts from before the request, because a slice may be closed while the answer is under
        // way.
        let read_at = Instant::now();
        let found = catalog::get::<ClosedSlices>(self.store.as_ref(), KEY).await?;
        let (state, bytes) = found.map_or_else(Default::default, |(state, bytes)| (state, Some(bytes)));
        let observed = Observed { read_at, state, bytes };
        self.cache(&observed);
        Ok(observed)
    }

    /// The cached record, however old; reads it if there is none.
    pub(crate) async fn cached(&self) -> Result<Observed> {
        match self.last() {
            Some(observed) => Ok(observed),
            None => self.read().await,
        }
    }

    /// Reads the record again if the cached one expires soon. Runs in parallel with other work, so that no write waits
    /// for it.
    pub(crate) async fn refresh(&self) {
        if self.last().is_none_or(|observed| observed.read_at.elapsed() > FRESH / 2) {
            // After an error, the next call that needs the record reads it.
            let _ = self.read().await;
        }
    }

    /// The slices of a dataset whose drop began before this call and has not ended. A drop that begins later sees all
    /// that was stored before.
    pub(crate) async fn drops_in_progress(&self, dataset: &DatasetName) -> Result<Vec<SliceId>> {
        if !self.needs_closing() {
            return Ok(vec![]);
        }
        Ok(self.recent(dataset).await?.dropping(dataset))
    }

    /// The cached record if it is fresh and has no slice of the dataset; otherwise reads it.
    async fn recent(&self, dataset: &DatasetName) -> Result<Observed> {
        match self.last() {
            // A drop in the cached state may have ended since, so the state is read again before a write is refused.
            Some(observed) if observed.read_at.elapsed() < FRESH && observed.is_open(dataset) => Ok(observed),
            _ => self.read().await,
        }
    }

    /// Ensures that durable chunks in these slices stay: reopens closed slices. Returns the state of the record that it
    /// relied on. Call it before anything is acknowledged.
    ///
    /// # Errors
    /// [`ArchiveError::SliceRetired`] if one of the slices is being dropped.
    pub(crate) async fn ensure_open(&self, dataset: &DatasetRef, slices: &BTreeSet<SliceId>) -> Result<Observed> {
        let mut observed = self.recent(&dataset.name).await?;
        loop {
            if let Some(slice) = slices.iter().find(|slice| observed.is_dropping(&dataset.name, **slice)) {
                return Err(ArchiveError::SliceRetired { dataset: dataset.name.clone(), slice: *slice });
            }
            let closed = |slice: &&SliceId| holder(&observed.state.closed, &dataset.name, **slice).is_some();
            let closed: Vec<SliceId> = slices.iter().filter(closed).copied().collect();
            if closed.is_empty() {
                return Ok(observed);
            }
            let open = |state: &mut ClosedSlices| {
                closed.iter().for_each(|slice| remove(&mut state.closed, &dataset.name, *slice))
            };
            // If another process changed the record first, the next state shows what is left to open.
            self.change(dataset, &observed, open).await?;
            observed = self.read().await?;
        }
    }

    /// Closes slices before they are dropped, and waits until every writer notices. Does nothing if closing is not
    /// needed.
    pub(crate) async fn close(&self, dataset: &DatasetRef, slices: &[SliceId]) -> Result<Closed> {
        let token = self.clock.token();
        if self.needs_closing() {
            let close = |state: &mut ClosedSlices| {
                slices.iter().for_each(|slice| put(&mut state.closed, &dataset.name, *slice, &token))
            };
            while !self.change(dataset, &self.read().await?, close).await? {}
            // A writer that has not seen the closed slice relies on a check that expires during the wait, and its
            // chunks are durable by then.
            tokio::time::sleep(WAIT).await;
        }
        Ok(Closed { token })
    }

    /// The record to put with the drop of a slice; `None` if a writer has reopened the slice.
    pub(crate) async fn dropping(
        &self,
        dataset: &DatasetRef,
        slice: SliceId,
        closed: &Closed,
    ) -> Result<Option<RecordPut>> {
        let observed = self.read().await?;
        if !self.needs_closing() {
            // The new token suffices: the last commit of a write that checked the older state has that state as a
            // condition.
            return Ok(Some(observed.changed(&self.clock, |_| ())?.1));
        }
        match holder(&observed.state.closed, &dataset.name, slice) {
            None => Ok(None),
            Some(token) if token == closed.token => Ok(Some(
                observed
                    .changed(&self.clock, |state| {
                        remove(&mut state.closed, &dataset.name, slice);
                        put(&mut state.dropping, &dataset.name, slice, &closed.token);
                    })?
                    .1,
            )),
            Some(_) => Err(ArchiveError::RetireRace { dataset: dataset.name.clone(), slice }),
        }
    }

    /// Takes over the drop of a slice from another process; `None` if it has ended.
    pub(crate) async fn take_over(&self, dataset: &DatasetRef, slice: SliceId) -> Result<Option<(Closed, RecordPut)>> {
        let observed = self.read().await?;
        if !observed.is_dropping(&dataset.name, slice) {
            return Ok(None);
        }
        let closed = Closed { token: self.clock.token() };
        let (_, record) =
            observed.changed(&self.clock, |state| put(&mut state.dropping, &dataset.name, slice, &closed.token))?;
        Ok(Some((closed, record)))
    }

    /// Ends what [`Self::close`] and [`Self::dropping`] began: reopens closed slices, and allows slices that are `gone`
    /// to be created again. A slice whose drop failed keeps its mark until a process completes the drop.
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
            let observed = self.read().await?;
            // Another token is that of a process that has closed the slice again or taken over its drop.
            let ours = |held: &Slices, slices: &[SliceId]| {
                let own = |slice: &&SliceId| holder(held, &dataset.name, **slice) == Some(closed.token.as_str());
                slices.iter().filter(own).copied().collect::<Vec<_>>()
            };
            let (closed, dropping) = (ours(&observed.state.closed, slices), ours(&observed.state.dropping, gone));
            if closed.is_empty() && dropping.is_empty() {
                return Ok(());
            }
            let open = |state: &mut ClosedSlices| {
                closed.iter().for_each(|slice| remove(&mut state.closed, &dataset.name, *slice));
                dropping.iter().for_each(|slice| remove(&mut state.dropping, &dataset.name, *slice));
            };
            if self.change(dataset, &observed, open).await? {
                return Ok(());
            }
        }
    }

    /// Changes the record; `false` if another process changed it first.
    async fn change(
        &self,
        dataset: &DatasetRef,
        observed: &Observed,
        change: impl FnOnce(&mut ClosedSlices),
    ) -> Result<bool> {
        let (state, put) = observed.changed(&self.clock, change)?;
        let (read_at, bytes) = (Instant::now(), put.value.clone());
        match self.store.commit(dataset, Commit { before: vec![put], ..Commit::default() }).await {
            Ok(()) => {
                self.cache(&Observed { read_at, state, bytes });
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
        assert_eq!(fence.read().await.unwrap().dropping(&dataset.name), []);
        assert!(fence.take_over(&dataset, slice).await.unwrap().is_none());
        let begin = |state: &mut ClosedSlices| put(&mut state.dropping, &dataset.name, slice, "first");
        assert!(fence.change(&dataset, &fence.read().await.unwrap(), begin).await.unwrap());
        // Another process sees it, of this dataset and slice alone.
        let other = Fence::new(store.clone(), Arc::default());
        let observed = other.read().await.unwrap();
        assert_eq!(observed.dropping(&dataset.name), [slice]);
        assert_eq!(observed.dropping(&home("others").name), []);
        assert!(other.take_over(&dataset, SliceId(4)).await.unwrap().is_none());
        let (closed, record) = other.take_over(&dataset, slice).await.unwrap().unwrap();
        let taken = Commit { before: vec![record.clone()], ..Commit::default() };
        store.commit(&dataset, taken.clone()).await.unwrap();
        let observed = fence.read().await.unwrap();
        assert_eq!(holder(&observed.state.dropping, &dataset.name, slice), Some(&*closed.token));
        // It is taken over once: what was seen before has changed.
        let late = store.commit(&dataset, taken).await.unwrap_err();
        assert!(has_changed(&late.into()));
        let end = |state: &mut ClosedSlices| remove(&mut state.dropping, &dataset.name, slice);
        assert!(fence.change(&dataset, &observed, end).await.unwrap());
        assert!(!other.change(&dataset, &observed, |_| ()).await.unwrap(), "somebody else was first");
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
