//! A wrapper that injects faults into a store, for tests.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use chronotile_types::SliceId;
use futures::stream::{self, BoxStream, StreamExt};

use crate::{
    CallOptions, Capabilities, Chunk, ChunkKey, Commit, DatasetRef, DropSlice, Operation, Record, Result, Scan, Store,
    StoreError, TileStatistics, Visibility,
};

/// A call for which a policy chooses a fault.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// Calls made before this one.
    pub number: u64,
    /// What is called.
    pub operation: Operation,
    /// The commit, if it is one.
    pub commit: Option<&'a Commit>,
}

/// The fault that a policy injects into a call.
#[derive(Debug)]
pub enum Decision {
    /// It is made.
    Pass,
    /// It is not made and fails.
    FailBefore(StoreError),
    /// It is made, but the caller is told [`StoreError::Unknown`] with this reason. A scan yields one group first.
    FailAfter(String),
    /// It is made after this time.
    Delay(Duration),
}

/// Injects faults into a store: a policy decides on each call. The same policy and calls give the same faults. Views of it
/// share policy and count.
pub struct FaultyStore {
    inner: Arc<dyn Store>,
    shared: Arc<Shared>,
}

struct Shared {
    policy: Box<dyn Fn(Call<'_>) -> Decision + Send + Sync>,
    calls: AtomicU64,
}

impl FaultyStore {
    /// Wraps a store.
    pub fn new(inner: Arc<dyn Store>, policy: impl Fn(Call<'_>) -> Decision + Send + Sync + 'static) -> Self {
        Self { inner, shared: Arc::new(Shared { policy: Box::new(policy), calls: AtomicU64::new(0) }) }
    }

    async fn call<T>(
        &self,
        operation: Operation,
        commit: Option<&Commit>,
        perform: impl Future<Output = Result<T>>,
    ) -> Result<(T, Option<StoreError>)> {
        let number = self.shared.calls.fetch_add(1, Ordering::Relaxed);
        match (self.shared.policy)(Call { number, operation, commit }) {
            Decision::Pass => Ok((perform.await?, None)),
            Decision::FailBefore(error) => Err(error),
            Decision::FailAfter(reason) => {
                let engine = self.inner.capabilities().engine;
                // An error of the call itself is returned unchanged: only a success is reported as unknown.
                Ok((perform.await?, Some(StoreError::Unknown { engine, reason })))
            }
            Decision::Delay(time) => {
                tokio::time::sleep(time).await;
                Ok((perform.await?, None))
            }
        }
    }

    async fn whole<T>(&self, operation: Operation, perform: impl Future<Output = Result<T>>) -> Result<T> {
        let (value, error) = self.call(operation, None, perform).await?;
        error.map_or(Ok(value), Err)
    }
}

impl fmt::Debug for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultyStore").field("inner", &self.inner).finish_non_exhaustive()
    }
}

#[async_trait]
impl Store for FaultyStore {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn with_options(&self, options: &CallOptions) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(Self { inner: self.inner.with_options(options)?, shared: self.shared.clone() }))
    }

    fn with_visibility(&self, visibility: Visibility) -> Option<Arc<dyn Store>> {
        let inner = self.inner.with_visibility(visibility)?;
        Some(Arc::new(Self { inner, shared: self.shared.clone() }))
    }

    async fn commit(&self, dataset: &DatasetRef, commit: Commit) -> Result<()> {
        let perform = self.inner.commit(dataset, commit.clone());
        let ((), error) = self.call(Operation::Commit, Some(&commit), perform).await?;
        error.map_or(Ok(()), Err)
    }

    async fn scan(&self, dataset: &DatasetRef, scan: Scan) -> Result<BoxStream<'static, Result<Vec<Chunk>>>> {
        let (groups, error) = self.call(Operation::Scan, None, self.inner.scan(dataset, scan)).await?;
        match error {
            None => Ok(groups),
            Some(error) => Ok(groups.take(1).chain(stream::iter([Err(error)])).boxed()),
        }
    }

    async fn fetch(&self, dataset: &DatasetRef, keys: Vec<ChunkKey>) -> Result<Vec<Chunk>> {
        self.whole(Operation::Fetch, self.inner.fetch(dataset, keys)).await
    }

    async fn record(&self, key: &str) -> Result<Option<Bytes>> {
        self.whole(Operation::Record, self.inner.record(key)).await
    }

    async fn records(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<Record>> {
        self.whole(Operation::Records, self.inner.records(prefix, after, limit)).await
    }

    async fn create_slice(&self, dataset: &DatasetRef, slice: SliceId) -> Result<()> {
        self.whole(Operation::CreateSlice, self.inner.create_slice(dataset, slice)).await
    }

    async fn drop_slice(&self, dataset: &DatasetRef, slice: SliceId, when: DropSlice) -> Result<()> {
        self.whole(Operation::DropSlice, self.inner.drop_slice(dataset, slice, when)).await
    }

    async fn slices(&self, dataset: &DatasetRef) -> Result<Vec<SliceId>> {
        self.whole(Operation::Slices, self.inner.slices(dataset)).await
    }

    async fn statistics(&self, dataset: &DatasetRef, slice: SliceId) -> Result<Vec<TileStatistics>> {
        self.whole(Operation::Statistics, self.inner.statistics(dataset, slice)).await
    }
}
