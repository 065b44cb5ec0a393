//! A wrapper that counts calls, errors, bytes and items of each operation of a store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use chronotile_types::SliceId;
use futures::stream::{self, BoxStream, StreamExt};

use crate::{
    CallOptions, Capabilities, Chunk, ChunkKey, Commit, DatasetRef, DropSlice, Operation, Record, Result, Scan, Store,
    TileStatistics, Visibility,
};

/// What one operation has cost so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationMetrics {
    /// The operation.
    pub operation: Operation,
    /// Calls ended, failed ones included.
    pub calls: u64,
    /// Calls that failed.
    pub errors: u64,
    /// Bytes of heads, bodies and record values, written by commits, read by others.
    pub bytes: u64,
    /// Chunks and records moved.
    pub items: u64,
}

#[derive(Debug, Default)]
struct Meter {
    calls: AtomicU64,
    errors: AtomicU64,
    bytes: AtomicU64,
    items: AtomicU64,
}

impl Meter {
    fn ended(&self, failed: bool) {
        // `Relaxed` is enough: each counter is read by itself, and no other memory depends on its value.
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.errors.fetch_add(u64::from(failed), Ordering::Relaxed);
    }

    fn moved(&self, sizes: impl Iterator<Item = usize>) {
        let (items, bytes) = sizes.fold((0, 0), |(items, bytes), size| (items + 1, bytes + size as u64));
        self.items.fetch_add(items, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Counts what goes through a store.
#[derive(Debug)]
pub struct Metered {
    inner: Arc<dyn Store>,
    meters: Arc<[Meter; Operation::ALL.len()]>,
}

impl Metered {
    /// Wraps a store.
    pub fn new(inner: Arc<dyn Store>) -> Self {
        Self { inner, meters: Arc::default() }
    }

    /// What each operation has cost so far, in the order of [`Operation::ALL`].
    pub fn snapshot(&self) -> Vec<OperationMetrics> {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let metrics = |operation: Operation| {
            let meter = self.meter(operation);
            let (calls, errors) = (load(&meter.calls), load(&meter.errors));
            OperationMetrics { operation, calls, errors, bytes: load(&meter.bytes), items: load(&meter.items) }
        };
        Operation::ALL.into_iter().map(metrics).collect()
    }

    fn meter(&self, operation: Operation) -> &Meter {
        &self.meters[operation as usize]
    }

    async fn counted<T>(&self, operation: Operation, perform: impl Future<Output = Result<T>>) -> Result<T> {
        let outcome = perform.await;
        self.meter(operation).ended(outcome.is_err());
        outcome
    }
}

/// Counts a scan once, when it is dropped at its end or before.
struct ScanMeter {
    meters: Arc<[Meter; Operation::ALL.len()]>,
    failed: bool,
}

impl ScanMeter {
    fn meter(&self) -> &Meter {
        &self.meters[Operation::Scan as usize]
    }
}

impl Drop for ScanMeter {
    fn drop(&mut self) {
        self.meter().ended(self.failed);
    }
}

fn chunk_sizes(chunks: &[Chunk]) -> impl Iterator<Item = usize> {
    chunks.iter().map(|chunk| chunk.head.len() + chunk.body.len())
}

#[async_trait]
impl Store for Metered {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn with_options(&self, options: &CallOptions) -> Result<Arc<dyn Store>> {
        // A view counts into the meters of its store, so that a snapshot covers calls through all views.
        Ok(Arc::new(Self { inner: self.inner.with_options(options)?, meters: self.meters.clone() }))
    }

    fn with_visibility(&self, visibility: Visibility) -> Option<Arc<dyn Store>> {
        let inner = self.inner.with_visibility(visibility)?;
        Some(Arc::new(Self { inner, meters: self.meters.clone() }))
    }

    async fn commit(&self, dataset: &DatasetRef, commit: Commit) -> Result<()> {
        // The call consumes the commit, so its sizes are taken before; they count only if the commit succeeds.
        let records = commit.before.iter().chain(&commit.after).map(|put| put.value.as_ref().map_or(0, Bytes::len));
        let sizes: Vec<usize> = chunk_sizes(&commit.put).chain(records).collect();
        self.counted(Operation::Commit, self.inner.commit(dataset, commit)).await?;
        self.meter(Operation::Commit).moved(sizes.into_iter());
        Ok(())
    }

    async fn scan(&self, dataset: &DatasetRef, scan: Scan) -> Result<BoxStream<'static, Result<Vec<Chunk>>>> {
        let mut meter = ScanMeter { meters: self.meters.clone(), failed: false };
        // If the scan does not begin, `?` drops the meter here, which counts the call as failed.
        let groups = self.inner.scan(dataset, scan).await.inspect_err(|_| meter.failed = true)?;
        // From here on, the stream owns the meter, so that a scan that its reader drops early is counted, too.
        let groups = stream::unfold((groups, meter), |(mut groups, mut meter)| async move {
            let group = groups.next().await;
            match &group {
                Some(Ok(chunks)) => meter.meter().moved(chunk_sizes(chunks)),
                Some(Err(_)) => meter.failed = true,
                None => {}
            }
            group.map(|group| (group, (groups, meter)))
        });
        Ok(groups.boxed())
    }

    async fn fetch(&self, dataset: &DatasetRef, keys: Vec<ChunkKey>) -> Result<Vec<Chunk>> {
        let chunks = self.counted(Operation::Fetch, self.inner.fetch(dataset, keys)).await?;
        self.meter(Operation::Fetch).moved(chunk_sizes(&chunks));
        Ok(chunks)
    }

    async fn record(&self, key: &str) -> Result<Option<Bytes>> {
        let value = self.counted(Operation::Record, self.inner.record(key)).await?;
        self.meter(Operation::Record).moved(value.iter().map(Bytes::len));
        Ok(value)
    }

    async fn records(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<Record>> {
        let records = self.counted(Operation::Records, self.inner.records(prefix, after, limit)).await?;
        self.meter(Operation::Records).moved(records.iter().map(|record| record.value.len()));
        Ok(records)
    }

    async fn create_slice(&self, dataset: &DatasetRef, slice: SliceId) -> Result<()> {
        self.counted(Operation::CreateSlice, self.inner.create_slice(dataset, slice)).await
    }

    async fn drop_slice(&self, dataset: &DatasetRef, slice: SliceId, when: DropSlice) -> Result<()> {
        self.counted(Operation::DropSlice, self.inner.drop_slice(dataset, slice, when)).await
    }

    async fn slices(&self, dataset: &DatasetRef) -> Result<Vec<SliceId>> {
        self.counted(Operation::Slices, self.inner.slices(dataset)).await
    }

    async fn statistics(&self, dataset: &DatasetRef, slice: SliceId) -> Result<Vec<TileStatistics>> {
        self.counted(Operation::Statistics, self.inner.statistics(dataset, slice)).await
    }
}
