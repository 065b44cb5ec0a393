//! A store that runs an action just before one of its calls.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use chronotile_store::{
    CallOptions, Capabilities, Chunk, ChunkKey, Commit, DatasetRef, DropSlice, Record, Result as StoreResult, Scan,
    Store, TileStatistics, Visibility,
};
use chronotile_types::SliceId;
use futures::future::BoxFuture;
use futures::stream::BoxStream;

pub type Action = Box<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// Selects calls by their number and what they commit.
type Trigger = Box<dyn Fn(u64, Option<&Commit>) -> bool + Send + Sync>;

/// The view for call options (`None`) or for a visibility; if there is none, a view of the wrapped store.
type Views = Box<dyn Fn(Option<Visibility>) -> Option<Arc<dyn Store>> + Send + Sync>;

/// Runs an action before each call that `when` selects. All views of the store share one count of calls.
pub struct Interposed {
    inner: Arc<dyn Store>,
    shared: Arc<Shared>,
}

struct Shared {
    calls: AtomicU64,
    when: Trigger,
    action: Action,
    views: Views,
}

impl fmt::Debug for Interposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Interposed").finish_non_exhaustive()
    }
}

impl Interposed {
    /// Runs the action before the call of this number.
    pub fn at(inner: Arc<dyn Store>, at: u64, action: Action) -> Arc<dyn Store> {
        Self::when(inner, move |number, _| number == at, action)
    }

    pub fn when(
        inner: Arc<dyn Store>,
        when: impl Fn(u64, Option<&Commit>) -> bool + Send + Sync + 'static,
        action: Action,
    ) -> Arc<dyn Store> {
        Self::of(inner, Box::new(when), action, Box::new(|_| None))
    }

    /// With these views and no action.
    pub fn with_views(
        inner: Arc<dyn Store>,
        views: impl Fn(Option<Visibility>) -> Option<Arc<dyn Store>> + Send + Sync + 'static,
    ) -> Arc<dyn Store> {
        Self::of(inner, Box::new(|_, _| false), Box::new(|| Box::pin(async {})), Box::new(views))
    }

    fn of(inner: Arc<dyn Store>, when: Trigger, action: Action, views: Views) -> Arc<dyn Store> {
        Arc::new(Self { inner, shared: Arc::new(Shared { calls: AtomicU64::new(0), when, action, views }) })
    }

    fn wrapping(&self, inner: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(Self { inner, shared: self.shared.clone() })
    }

    async fn before(&self, commit: Option<&Commit>) {
        let number = self.shared.calls.fetch_add(1, Ordering::SeqCst);
        if (self.shared.when)(number, commit) {
            (self.shared.action)().await;
        }
    }
}

#[async_trait]
impl Store for Interposed {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    fn with_options(&self, options: &CallOptions) -> StoreResult<Arc<dyn Store>> {
        match (self.shared.views)(None) {
            Some(view) => Ok(view),
            None => Ok(self.wrapping(self.inner.with_options(options)?)),
        }
    }
    fn with_visibility(&self, visibility: Visibility) -> Option<Arc<dyn Store>> {
        let view = (self.shared.views)(Some(visibility));
        view.or_else(|| Some(self.wrapping(self.inner.with_visibility(visibility)?)))
    }
    async fn commit(&self, dataset: &DatasetRef, commit: Commit) -> StoreResult<()> {
        self.before(Some(&commit)).await;
        self.inner.commit(dataset, commit).await
    }
    async fn scan(&self, dataset: &DatasetRef, scan: Scan) -> StoreResult<BoxStream<'static, StoreResult<Vec<Chunk>>>> {
        self.before(None).await;
        self.inner.scan(dataset, scan).await
    }
    async fn fetch(&self, dataset: &DatasetRef, keys: Vec<ChunkKey>) -> StoreResult<Vec<Chunk>> {
        self.before(None).await;
        self.inner.fetch(dataset, keys).await
    }
    async fn record(&self, key: &str) -> StoreResult<Option<Bytes>> {
        self.before(None).await;
        self.inner.record(key).await
    }
    async fn records(&self, prefix: &str, after: Option<&str>, limit: usize) -> StoreResult<Vec<Record>> {
        self.before(None).await;
        self.inner.records(prefix, after, limit).await
    }
    async fn create_slice(&self, dataset: &DatasetRef, slice: SliceId) -> StoreResult<()> {
        self.before(None).await;
        self.inner.create_slice(dataset, slice).await
    }
    async fn drop_slice(&self, dataset: &DatasetRef, slice: SliceId, when: DropSlice) -> StoreResult<()> {
        self.before(None).await;
        self.inner.drop_slice(dataset, slice, when).await
    }
    async fn slices(&self, dataset: &DatasetRef) -> StoreResult<Vec<SliceId>> {
        self.before(None).await;
        self.inner.slices(dataset).await
    }
    async fn statistics(&self, dataset: &DatasetRef, slice: SliceId) -> StoreResult<Vec<TileStatistics>> {
        self.before(None).await;
        self.inner.statistics(dataset, slice).await
    }
}
