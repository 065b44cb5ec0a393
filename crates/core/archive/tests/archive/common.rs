//! Shared by the tests of the archive: datasets, rows, reads, and a store with fewer capabilities than the one it
//! wraps.
#![allow(dead_code, clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow_array::{Array, ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use arrow_schema::{ArrowError, DataType, Field, Schema, TimeUnit};
use arrow_select::concat::concat_batches;
use async_trait::async_trait;
use bytes::Bytes;
use chronotile_archive::{Archive, Dataset, ReadRequest, ReadStream, Result, WriteOptions, WriteReport};
use chronotile_memory::MemoryStore;
use chronotile_sqlite::{Options, SqliteStore, Synchronous};
use chronotile_store::{
    CLOCK_KEY, CallOptions, Capabilities, Cells, Chunk, ChunkKey, ClockSource, Commit, DatasetRef, Decision, DropSlice,
    Expect, FaultyStore, Record, Result as StoreResult, Scan, Store, StoreError, TileStatistics, Visibility, Windows,
};
use chronotile_types::{
    CellRule, DatasetName, DatasetSpec, Instant, SliceId, TimeFormat, TimeRange, TimeScale, TimeSpec,
};
use futures::TryStreamExt;
use futures::stream::BoxStream;

/// An hour in the time unit of [`spec`].
pub const HOUR: i64 = 3_600_000_000;

/// Microseconds since the Unix epoch by this machine's clock.
#[expect(clippy::disallowed_methods, reason = "tests of true time")]
pub fn machine_us() -> i64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_micros() as i64
}

/// Records of integer tags: `t` in microseconds, windows of an hour, slices of two, ids `id`.
pub fn spec() -> DatasetSpec {
    let schema = Schema::new(vec![
        Field::new("t", DataType::Timestamp(TimeUnit::Microsecond, None), true),
        Field::new("id", DataType::Int64, true),
        Field::new("tag", DataType::Int64, true),
        Field::new("x", DataType::Float64, true),
        Field::new("note", DataType::Utf8, true),
    ]);
    let time = TimeSpec { column: "t".into(), format: TimeFormat::Timestamp, scale: TimeScale::Utc };
    let name = DatasetName::new("records").unwrap();
    DatasetSpec {
        cell: CellRule::Value { column: "tag".into() },
        windows_per_slice: 2,
        id: vec!["id".into()],
        ..DatasetSpec::new(name, Arc::new(schema), time, "1h".parse().unwrap())
    }
}

/// [`spec`] as a store knows it.
pub fn placed() -> DatasetRef {
    DatasetRef::from(&spec())
}

/// Rows of [`spec`] from (time, id, tag).
pub fn rows(places: &[(i64, i64, i64)]) -> RecordBatch {
    noted(places, "")
}

/// As [`rows`], with a note that distinguishes batches.
pub fn noted(places: &[(i64, i64, i64)], note: &str) -> RecordBatch {
    let column = |pick: fn(&(i64, i64, i64)) -> i64| places.iter().map(pick).collect::<Vec<_>>();
    let (t, id, tag) = (column(|p| p.0), column(|p| p.1), column(|p| p.2));
    let x: Vec<f64> = id.iter().map(|id| *id as f64 / 7.0).collect();
    RecordBatch::try_from_iter([
        ("t", Arc::new(TimestampMicrosecondArray::from(t)) as ArrayRef),
        ("id", Arc::new(Int64Array::from(id))),
        ("tag", Arc::new(Int64Array::from(tag))),
        ("x", Arc::new(Float64Array::from(x))),
        ("note", Arc::new(StringArray::from(vec![note; places.len()]))),
    ])
    .unwrap()
}

/// `count` rows with ids from `first`, spread over three tags and `hours` hours.
pub fn spread_rows(first: i64, count: i64, hours: i64, note: &str) -> RecordBatch {
    let place = |i: i64| (i * 977_000_003 % (hours * HOUR), first + i, i % 3);
    noted(&(0..count).map(place).collect::<Vec<_>>(), note)
}

/// Text that hardly compresses.
pub fn noise(seed: u64, bytes: usize) -> String {
    let mut state = seed + 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        char::from(b' ' + ((state >> 57) % 95) as u8)
    };
    (0..bytes).map(|_| next()).collect()
}

/// A SQLite store in a folder that is deleted with the returned guard.
pub fn sqlite() -> (Arc<dyn Store>, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    // These tests do not cut the power, and a sync for each commit would take most of their time.
    let options = Options { synchronous: Synchronous::Normal, ..Options::default() };
    (Arc::new(SqliteStore::open(folder.path().join("archive.db"), options).unwrap()), folder)
}

/// Both engines, each with the guard of its folder.
pub fn engines() -> Vec<(Arc<dyn Store>, Option<tempfile::TempDir>)> {
    let (store, folder) = sqlite();
    vec![(Arc::new(MemoryStore::new()), None), (store, Some(folder))]
}

/// An archive that keeps superseded rows for no time, since no reads are running.
pub fn archive(store: &Arc<dyn Store>) -> Archive {
    Archive::on("test:", store.clone()).with_superseded_kept(std::time::Duration::ZERO)
}

pub async fn create(store: &Arc<dyn Store>, spec: DatasetSpec) -> Dataset {
    archive(store).create(spec, true).await.unwrap()
}

/// A second handle on a dataset, as in another process.
pub async fn open(store: &Arc<dyn Store>, name: &str) -> Dataset {
    archive(store).dataset(name).await.unwrap()
}

pub fn named(batch: &str) -> WriteOptions {
    WriteOptions { batch: Some(batch.into()), ..WriteOptions::default() }
}

pub fn replacing(batch: &str) -> WriteOptions {
    WriteOptions { replace: true, ..named(batch) }
}

/// With the smallest possible buffer.
pub fn tight(options: WriteOptions) -> WriteOptions {
    WriteOptions { buffer_bytes: 0, ..options }
}

pub async fn write(dataset: &Dataset, rows: &RecordBatch, options: WriteOptions) -> Result<WriteReport> {
    dataset.write(input([rows.clone()]), options).await
}

/// A store whose process dies before its second commit that puts chunks, in the middle of a write of several steps.
pub fn dying_in_a_write(store: &Arc<dyn Store>) -> Arc<dyn Store> {
    let (dead, put) = (AtomicBool::new(false), AtomicBool::new(false));
    Arc::new(FaultyStore::new(store.clone(), move |call| {
        let puts = call.commit.is_some_and(|commit| !commit.put.is_empty());
        if dead.load(Ordering::SeqCst) || puts && put.swap(true, Ordering::SeqCst) {
            dead.store(true, Ordering::SeqCst);
            return Decision::FailBefore(StoreError::Refused { engine: "test", reason: "the process is dead".into() });
        }
        Decision::Pass
    }))
}

/// Completes `work` on a thread of its own, as another process would: the policies of [`FaultyStore`] are not async.
pub fn on_other_thread<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    std::thread::spawn(move || tokio::runtime::Runtime::new().unwrap().block_on(work)).join().unwrap()
}

/// Rows that take several steps to write, with [`tight`].
pub fn several_steps(note: &str) -> Vec<std::result::Result<RecordBatch, ArrowError>> {
    input((0..3).map(|part| spread_rows(part * 10, 10, 2, &note.repeat(40_000))))
}

pub fn input(batches: impl IntoIterator<Item = RecordBatch>) -> Vec<std::result::Result<RecordBatch, ArrowError>> {
    batches.into_iter().map(Ok).collect()
}

pub async fn read(dataset: &Dataset, request: ReadRequest) -> Result<RecordBatch> {
    whole(dataset.read(request).await?).await
}

/// The newest row of each requested cell.
pub async fn latest(dataset: &Dataset, request: ReadRequest) -> Result<RecordBatch> {
    whole(dataset.latest(request, None).await?).await
}

async fn whole(stream: ReadStream) -> Result<RecordBatch> {
    let schema = stream.schema();
    let batches: Vec<RecordBatch> = stream.try_collect().await?;
    for batch in &batches {
        assert_eq!(batch.schema(), schema, "a batch has another schema than its stream");
    }
    if schema.fields().is_empty() {
        let rows = batches.iter().map(RecordBatch::num_rows).sum();
        let options = arrow_array::RecordBatchOptions::new().with_row_count(Some(rows));
        return Ok(RecordBatch::try_new_with_options(schema, vec![], &options).unwrap());
    }
    Ok(concat_batches(&schema, &batches).unwrap())
}

pub async fn read_all(dataset: &Dataset) -> RecordBatch {
    read(dataset, ReadRequest::default()).await.unwrap()
}

pub fn between(start: i64, end: i64) -> TimeRange {
    TimeRange { start: Some(Instant::NativeTicks(start)), end: Some(Instant::NativeTicks(end)) }
}

/// Values of an int64 column.
pub fn integers(rows: &RecordBatch, column: &str) -> Vec<i64> {
    let column = rows.column_by_name(column).unwrap().as_any().downcast_ref::<Int64Array>().unwrap().clone();
    assert_eq!(column.null_count(), 0);
    column.values().to_vec()
}

/// The ids of all rows, ascending.
pub fn ids(rows: &RecordBatch) -> Vec<i64> {
    let mut ids = integers(rows, "id");
    ids.sort_unstable();
    ids
}

/// (id, note) of all rows, ascending.
pub fn id_notes(rows: &RecordBatch) -> Vec<(i64, String)> {
    let notes = rows.column_by_name("note").unwrap().as_any().downcast_ref::<StringArray>().unwrap().clone();
    let mut pairs: Vec<_> = integers(rows, "id").into_iter().zip(notes.iter().map(|n| n.unwrap().to_owned())).collect();
    pairs.sort();
    pairs
}

/// Every chunk of the dataset.
pub async fn chunks(store: &dyn Store, dataset: &DatasetRef) -> Vec<Chunk> {
    let slices = store.slices(dataset).await.unwrap();
    let scan = Scan { slices, cells: Cells::All, windows: Windows::ALL, bodies: true, older: true };
    store.scan(dataset, scan).await.unwrap().try_concat().await.unwrap()
}

/// Puts chunks unchanged.
pub async fn put_chunks(store: &dyn Store, dataset: &DatasetRef, put: Vec<Chunk>) {
    store.commit(dataset, Commit { put, ..Commit::default() }).await.unwrap();
}

pub async fn assert_sound(dataset: &Dataset) {
    let report = dataset.verify(None).await.unwrap();
    assert!(report.ok(), "verify found damage: {report:?}");
}

/// A store that lacks some capabilities of the store it wraps.
#[derive(Debug)]
pub struct LimitedStore {
    below: Arc<dyn Store>,
    promises: Capabilities,
    /// How far the machine's clock is ahead of the tests' clock; `None` to use the clock of the wrapped store.
    ahead_us: Option<i64>,
}

impl LimitedStore {
    /// With the capabilities that `take_away` leaves.
    pub fn new(below: Arc<dyn Store>, take_away: impl FnOnce(&mut Capabilities)) -> Self {
        let mut promises = below.capabilities();
        take_away(&mut promises);
        Self { below, promises, ahead_us: None }
    }

    /// With the capabilities of a cluster: none of [`PROMISES`].
    pub fn stepwise(below: Arc<dyn Store>) -> Self {
        Self::new(below, |promises| PROMISES.iter().for_each(|(_, take_away)| take_away(promises)))
    }

    /// A store on a machine whose clock is ahead of the tests' clock.
    pub fn with_clock_ahead(below: Arc<dyn Store>, ahead_us: i64) -> Arc<dyn Store> {
        let by_machine = Self::new(below, |promises| promises.clock = ClockSource::MachineTime);
        Arc::new(Self { ahead_us: Some(ahead_us), ..by_machine })
    }

    fn wrapping(&self, below: Arc<dyn Store>) -> Arc<dyn Store> {
        Arc::new(Self { below, ..*self })
    }

    /// The wrapped store's clock stands for that of a machine, which stamps do not set.
    fn stamp_us(&self, commit: &Commit) -> i64 {
        if self.promises.clock == ClockSource::LatestStamp { commit.stamp_us } else { 0 }
    }
}

/// Removes a capability.
pub type CapabilityChange = fn(&mut Capabilities);

/// Capabilities beyond the contract, each with a function that removes it.
pub const PROMISES: [(&str, CapabilityChange); 5] = [
    ("atomic_commits", |promises| promises.atomic_commits = false),
    ("atomic_drops", |promises| promises.atomic_drops = false),
    ("group_commits", |promises| promises.group_commits = false),
    ("clock", |promises| promises.clock = ClockSource::MachineTime),
    ("cheap_missing_slices", |promises| promises.cheap_missing_slices = false),
];

/// The store itself, the store without each one of its capabilities, and the store without all of them.
pub fn weakened(store: &Arc<dyn Store>) -> Vec<Arc<dyn Store>> {
    let mut all: Vec<Arc<dyn Store>> = vec![store.clone()];
    all.extend(PROMISES.map(|(_, take_away)| Arc::new(LimitedStore::new(store.clone(), take_away)) as Arc<dyn Store>));
    all.push(Arc::new(LimitedStore::stepwise(store.clone())));
    all
}

#[async_trait]
impl Store for LimitedStore {
    fn capabilities(&self) -> Capabilities {
        self.promises
    }

    fn with_options(&self, options: &CallOptions) -> StoreResult<Arc<dyn Store>> {
        Ok(self.wrapping(self.below.with_options(options)?))
    }

    fn with_visibility(&self, visibility: Visibility) -> Option<Arc<dyn Store>> {
        Some(self.wrapping(self.below.with_visibility(visibility)?))
    }

    async fn commit(&self, dataset: &DatasetRef, commit: Commit) -> StoreResult<()> {
        let stamp_us = self.stamp_us(&commit);
        if self.promises.atomic_commits {
            return self.below.commit(dataset, Commit { stamp_us, ..commit }).await;
        }
        commit.check_sizes(self.promises.engine, self.promises.chunk_bytes_max)?;
        // The contract demands this of every engine: a missing slice or a failing condition of `before` or `remove`
        // prevents the whole commit.
        let slices = self.below.slices(dataset).await?;
        if let Some(chunk) = commit.put.iter().find(|chunk| !slices.contains(&chunk.key.slice)) {
            return Err(StoreError::NoSlice { dataset: dataset.name.clone(), slice: chunk.key.slice });
        }
        for put in &commit.before {
            let found = self.below.record(&put.key).await?;
            let holds = match &put.expect {
                Expect::Any => true,
                Expect::Absent => found.is_none(),
                Expect::Is(value) => found.as_ref() == Some(value),
            };
            if !holds {
                return Err(StoreError::RecordConflict { key: put.key.clone() });
            }
        }
        if commit.require_removed {
            let found = self.below.fetch(dataset, commit.remove.clone()).await?;
            let there = |key: &ChunkKey| found.iter().chain(&commit.put).any(|chunk| chunk.key == *key);
            if let Some(key) = commit.remove.iter().find(|key| !there(key)) {
                return Err(StoreError::ChunkConflict { dataset: dataset.name.clone(), key: *key });
            }
        }
        for put in commit.before {
            self.below.commit(dataset, Commit { before: vec![put], stamp_us, ..Commit::default() }).await?;
        }
        for chunk in commit.put {
            let put = self.below.commit(dataset, Commit { put: vec![chunk], stamp_us, ..Commit::default() }).await;
            put.map_err(|error| match error {
                // Dropped since it was looked for: by now something has happened.
                StoreError::NoSlice { .. } => StoreError::Unknown { engine: "test", reason: error.to_string() },
                error => error,
            })?;
        }
        for key in commit.remove {
            self.below.commit(dataset, Commit { remove: vec![key], ..Commit::default() }).await?;
        }
        for put in commit.after {
            self.below.commit(dataset, Commit { after: vec![put], ..Commit::default() }).await?;
        }
        Ok(())
    }

    async fn scan(&self, dataset: &DatasetRef, scan: Scan) -> StoreResult<BoxStream<'static, StoreResult<Vec<Chunk>>>> {
        self.below.scan(dataset, scan).await
    }

    async fn fetch(&self, dataset: &DatasetRef, keys: Vec<ChunkKey>) -> StoreResult<Vec<Chunk>> {
        self.below.fetch(dataset, keys).await
    }

    async fn record(&self, key: &str) -> StoreResult<Option<Bytes>> {
        let by_machine = key == CLOCK_KEY && self.promises.clock == ClockSource::MachineTime;
        match (by_machine, self.ahead_us) {
            (true, Some(ahead_us)) => Ok(Some(Bytes::from((machine_us() + ahead_us).to_string()))),
            (true, None) => {
                let now = || Bytes::from(machine_us().to_string());
                Ok(Some(self.below.record(key).await?.unwrap_or_else(now)))
            }
            _ => self.below.record(key).await,
        }
    }

    async fn records(&self, prefix: &str, after: Option<&str>, limit: usize) -> StoreResult<Vec<Record>> {
        self.below.records(prefix, after, limit).await
    }

    async fn create_slice(&self, dataset: &DatasetRef, slice: SliceId) -> StoreResult<()> {
        self.below.create_slice(dataset, slice).await
    }

    async fn drop_slice(&self, dataset: &DatasetRef, slice: SliceId, when: DropSlice) -> StoreResult<()> {
        if self.promises.atomic_drops {
            return self.below.drop_slice(dataset, slice, when).await;
        }
        if let Some(holding) = when.holding
            && holding != self.below.statistics(dataset, slice).await?
        {
            return Err(StoreError::SliceConflict { dataset: dataset.name.clone(), slice });
        }
        self.below.commit(dataset, Commit { before: when.before, ..Commit::default() }).await?;
        self.below.drop_slice(dataset, slice, DropSlice::default()).await
    }

    async fn slices(&self, dataset: &DatasetRef) -> StoreResult<Vec<SliceId>> {
        self.below.slices(dataset).await
    }

    async fn statistics(&self, dataset: &DatasetRef, slice: SliceId) -> StoreResult<Vec<TileStatistics>> {
        self.below.statistics(dataset, slice).await
    }
}
