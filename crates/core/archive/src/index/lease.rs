//! Leases: which builder is working on which window.
//!
//! A lease only saves builders from doing the same work twice. Two builders of one window store nothing wrong, so a
//! wrong clock costs only time.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use chronotile_store::{Commit, DatasetRef, Expect, RecordPut, Store, StoreError};
use chronotile_types::{DatasetName, Window};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::record;
use crate::catalog;
use crate::catalog::clock::Clock;
use crate::error::{ArchiveError, Result};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct LeaseRecord {
    holder: String,
    until_us: i64,
}

/// A lease that this builder holds.
pub(crate) struct Lease {
    pub key: String,
    holder: String,
    lasts: Duration,
    clock: Arc<Clock>,
    renewed: Instant,
    /// The value stored in the catalog.
    stored: Bytes,
}

impl Lease {
    /// Acquires the lease of a window; `None` if another builder holds it.
    pub(crate) async fn take(
        store: &dyn Store,
        dataset: &DatasetRef,
        (name, id, window): (&DatasetName, &str, Window),
        (holder, lasts, clock): (&str, Duration, Arc<Clock>),
    ) -> Result<Option<Self>> {
        let key = record::lease_key(name, id, window);
        let expect = match catalog::get::<LeaseRecord>(store, &key).await? {
            None => Expect::Absent,
            Some((lease, _)) if lease.until_us > clock.about_now_us() => return Ok(None),
            Some((_, bytes)) => Expect::Is(bytes),
        };
        let stored = value(&key, holder, lasts, &clock)?;
        let before = vec![catalog::put(key.clone(), stored.clone(), expect)];
        match store.commit(dataset, Commit { before, ..Commit::default() }).await {
            Ok(()) => {
                let holder = holder.to_owned();
                Ok(Some(Self { key, holder, lasts, clock, renewed: Instant::now(), stored }))
            }
            Err(StoreError::RecordConflict { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Renews the lease once a third of it has passed; `false` if another builder has acquired it.
    pub(crate) async fn keep(&mut self, store: &dyn Store, dataset: &DatasetRef) -> Result<bool> {
        if self.renewed.elapsed() * 3 < self.lasts {
            return Ok(true);
        }
        let put = self.renewal()?;
        held(store.commit(dataset, Commit { before: vec![put], ..Commit::default() }).await)
    }

    /// A put that renews the lease, on condition that it is still held.
    pub(crate) fn renewal(&mut self) -> Result<RecordPut> {
        let renewed = value(&self.key, &self.holder, self.lasts, &self.clock)?;
        // The stored value is replaced before the commit has succeeded: if the commit fails, the builder gives up the
        // window and does not use this lease again.
        let before = std::mem::replace(&mut self.stored, renewed.clone());
        self.renewed = Instant::now();
        Ok(catalog::put(self.key.clone(), renewed, Expect::Is(before)))
    }

    /// A put that releases the lease, on condition that it is still held.
    pub(crate) fn release(&self) -> RecordPut {
        catalog::delete_known(self.key.clone(), self.stored.clone())
    }
}

/// Whether a commit that depends on a lease took effect.
pub(crate) fn held(outcome: chronotile_store::Result<()>) -> Result<bool> {
    match outcome {
        Ok(()) => Ok(true),
        Err(StoreError::RecordConflict { .. }) => Ok(false),
        Err(error) => Err(ArchiveError::from(error)),
    }
}

fn value(key: &str, holder: &str, lasts: Duration, clock: &Clock) -> Result<Bytes> {
    let until_us = clock.about_now_us().saturating_add(i64::try_from(lasts.as_micros()).unwrap_or(i64::MAX));
    catalog::to_json(key, &LeaseRecord { holder: holder.to_owned(), until_us })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may unwrap
mod tests {
    use super::*;
    use crate::Archive;
    use crate::testing::spec;
    use chronotile_memory::MemoryStore;
    use std::sync::atomic::{AtomicI64, Ordering};

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_renewed_once_a_third_of_it_is_over_and_lost_where_somebody_else_has_taken_it() {
        const SECOND_US: i64 = 1_000_000;
        let (store, now_us): (Arc<dyn Store>, _) = (Arc::new(MemoryStore::new()), Arc::new(AtomicI64::new(SECOND_US)));
        let time = now_us.clone();
        let archive = Archive::on("test:", store.clone()).with_machine_time(move || time.load(Ordering::Relaxed));
        let dataset = archive.create(spec(), false).await.unwrap();
        let (home, lasts) = (DatasetRef::from(&spec()), Duration::from_secs(30));
        let take = async |holder: &str| {
            let place = (&home.name, "00ff", Window(3));
            Lease::take(store.as_ref(), &home, place, (holder, lasts, dataset.clock())).await.unwrap()
        };
        let pass = async |seconds: i64| {
            now_us.fetch_add(seconds * SECOND_US, Ordering::Relaxed);
            tokio::time::advance(Duration::from_secs(seconds as u64)).await;
        };
        let until = async || {
            let key = record::lease_key(&home.name, "00ff", Window(3));
            let (lease, _) = catalog::get::<LeaseRecord>(store.as_ref(), &key).await.unwrap().unwrap();
            (lease.holder, lease.until_us / SECOND_US)
        };
        let mut first = take("first").await.unwrap();
        assert_eq!(until().await, ("first".to_owned(), 31));
        assert!(take("second").await.is_none());
        pass(9).await;
        assert!(first.keep(store.as_ref(), &home).await.unwrap());
        assert_eq!(until().await.1, 31);
        pass(1).await;
        assert!(first.keep(store.as_ref(), &home).await.unwrap());
        assert_eq!(until().await.1, 41);
        pass(29).await;
        assert!(take("second").await.is_none());
        pass(1).await;
        let second = take("second").await.unwrap();
        assert_eq!(until().await, ("second".to_owned(), 71));
        assert!(!first.keep(store.as_ref(), &home).await.unwrap());
        let release = async |lease: &Lease| {
            held(store.commit(&home, Commit { before: vec![lease.release()], ..Commit::default() }).await).unwrap()
        };
        assert!(!release(&first).await && release(&second).await && !release(&second).await);
        assert!(take("third").await.is_some());
    }
}
