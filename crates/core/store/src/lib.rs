//! The interface of storage engines: the minimum that an engine must implement.
//!
//! A [`Store`] moves *chunks* (opaque head and body bytes filed under a [`ChunkKey`]) and *catalog records* (bytes under a
//! text key). It knows no schema, sky, tag or merge rule: these are implemented once, above it, for every engine.
//!
//! Every method may be called from many tasks, and an archive may be open in many processes at once.

#[cfg(feature = "conformance")]
pub mod conformance;
mod dataset;
mod error;
mod faulty;
mod metered;
mod windows;

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use chronotile_types::{Cell, ChunkId, DatasetName, SliceId, Tile};
use futures::stream::BoxStream;

pub use dataset::{DatasetRef, Placement};
pub use error::{Outcome, StoreError};
pub use faulty::{Call, Decision, FaultyStore};
pub use metered::{Metered, OperationMetrics};
pub use windows::Windows;

/// Result of a store operation.
pub type Result<T> = std::result::Result<T, StoreError>;

/// Where a chunk is filed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChunkKey {
    /// The slice whose table holds it; it follows from the tile's window.
    pub slice: SliceId,
    /// The tile.
    pub tile: Tile,
    /// The chunk's id, unique in its dataset.
    pub id: ChunkId,
}

/// A chunk as an engine sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Where it is filed.
    pub key: ChunkKey,
    /// Rows in it; kept beside the bytes so that statistics need not read them.
    pub rows: u32,
    /// Small: zones and origins, read without the body.
    pub head: Bytes,
    /// The columns. Empty where a scan asked for heads only.
    pub body: Bytes,
}

/// A catalog record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its key: UTF-8, at most 1,000 bytes.
    pub key: String,
    /// Its value, at most 8 MiB.
    pub value: Bytes,
}

/// The group of a catalog record: the second and third part of a key `KIND/DATASET/ITEM[/...]`. All records with fewer
/// parts are one more group, `None`.
///
/// Engines without atomic commits store a group together and change its records together.
pub fn record_group(key: &str) -> Option<(&str, &str)> {
    let mut parts = key.split('/');
    let (_, dataset, item) = (parts.next()?, parts.next()?, parts.next()?);
    Some((dataset, item))
}

/// The key of a record that the engine maintains: microseconds since 1970 as decimal text, by which writers set their own
/// clocks. [`Capabilities::clock`] says which time it is.
pub const CLOCK_KEY: &str = "clock";

/// Prefix of the keys of [`changes_key`].
pub const CHANGES: &str = "changes/";

/// The key of a record that engines with [`Capabilities::records_changes`] maintain for each slice. Every commit that changes the slice's set of chunks, or their bytes,
/// gives it a value that never occurred before. While the value is unchanged, the slice holds the same chunks, in every process.
///
/// Not promised: that the record exists; without it, changes cannot be detected. No listing of records includes it.
pub fn changes_key(dataset: &DatasetName, slice: SliceId) -> String {
    format!("{CHANGES}{dataset}/{}", slice.0)
}

/// The longest key of a catalog record, in bytes.
pub const RECORD_KEY_BYTES_MAX: usize = 1_000;
/// The largest value of a catalog record, in bytes.
pub const RECORD_VALUE_BYTES_MAX: usize = 8 << 20;

/// The condition of a put on the current catalog record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expect {
    /// No condition.
    Any,
    /// No record has this key.
    Absent,
    /// The record has exactly this value.
    Is(Bytes),
}

/// A conditional write of one catalog record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordPut {
    /// The key.
    pub key: String,
    /// The new value; `None` deletes the record.
    pub value: Option<Bytes>,
    /// The condition.
    pub expect: Expect,
}

/// One write, in four steps that take effect in this order.
#[derive(Clone, Debug, Default)]
pub struct Commit {
    /// First: records, each under its condition.
    pub before: Vec<RecordPut>,
    /// Then: chunks. A chunk with the key of one that exists replaces it.
    pub put: Vec<Chunk>,
    /// Then: chunks to remove. With `require_removed` all of them must exist.
    pub remove: Vec<ChunkKey>,
    /// Whether a chunk in `remove` that does not exist refuses the commit.
    pub require_removed: bool,
    /// Last: records, each under its condition.
    pub after: Vec<RecordPut>,
    /// The latest write stamp of the chunks to put, or 0. An engine with [`ClockSource::LatestStamp`] stores it, possibly even from
    /// a commit that it refuses.
    pub stamp_us: i64,
}

impl Commit {
    /// Checks chunks against an engine's limit and records against [`RECORD_KEY_BYTES_MAX`] and
    /// [`RECORD_VALUE_BYTES_MAX`]; an engine does so before it changes anything.
    pub fn check_sizes(&self, engine: &'static str, chunk_bytes_max: usize) -> Result<()> {
        for chunk in &self.put {
            let what = || format!("chunk {} of {}", chunk.key.id, chunk.key.tile);
            check_size(engine, what, chunk.head.len() + chunk.body.len(), chunk_bytes_max)?;
        }
        for put in self.before.iter().chain(&self.after) {
            check_size(engine, || "the key of a catalog record".to_owned(), put.key.len(), RECORD_KEY_BYTES_MAX)?;
            let bytes = put.value.as_ref().map_or(0, Bytes::len);
            check_size(engine, || format!("catalog record {:?}", put.key), bytes, RECORD_VALUE_BYTES_MAX)?;
        }
        Ok(())
    }
}

fn check_size(engine: &'static str, what: impl Fn() -> String, bytes: usize, bytes_max: usize) -> Result<()> {
    if bytes <= bytes_max { Ok(()) } else { Err(StoreError::TooLarge { what: what(), bytes, bytes_max, engine }) }
}

/// Which cells a scan covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cells {
    /// Every cell.
    All,
    /// Inclusive ranges, ascending and disjoint.
    Ranges(Arc<[(Cell, Cell)]>),
}

/// What a scan returns.
#[derive(Clone, Debug)]
pub struct Scan {
    /// Slices to read, in the order of the result. A slice that does not exist holds nothing.
    pub slices: Vec<SliceId>,
    /// Cells to read.
    pub cells: Cells,
    /// Windows to read.
    pub windows: Windows,
    /// Whether to return bodies.
    pub bodies: bool,
    /// Whether to return chunks of older versions ([`ChunkId::is_older`]).
    pub older: bool,
}

/// What one tile holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileStatistics {
    /// The tile.
    pub tile: Tile,
    /// Chunks in it.
    pub chunks: u64,
    /// Rows in them, equal ids counted each time.
    pub rows: u64,
    /// Bytes of heads and bodies.
    pub bytes: u64,
    /// How many of them are as one write left them ([`ChunkId::is_written`]).
    pub written_chunks: u64,
    /// How many are of older versions ([`ChunkId::is_older`]).
    pub older_chunks: u64,
    /// Rows in those.
    pub older_rows: u64,
    /// Bytes of those.
    pub older_bytes: u64,
    /// Exclusive or of its chunks' ids: with the same number of chunks and the same value, a tile holds the same chunks.
    pub ids: u128,
}

impl TileStatistics {
    /// The statistics of a tile without chunks.
    pub fn none(tile: Tile) -> Self {
        Self {
            tile,
            chunks: 0,
            rows: 0,
            bytes: 0,
            written_chunks: 0,
            older_chunks: 0,
            older_rows: 0,
            older_bytes: 0,
            ids: 0,
        }
    }

    /// Adds a chunk; `bytes` is the size of its head and body.
    pub fn add(&mut self, id: ChunkId, rows: u32, bytes: u64) {
        if id.is_older() {
            self.older_chunks += 1;
            self.older_rows += u64::from(rows);
            self.older_bytes += bytes;
        }
        self.written_chunks += u64::from(id.is_written());
        self.chunks += 1;
        self.rows += u64::from(rows);
        self.bytes += bytes;
        self.ids ^= id.0;
    }
}

/// Conditions for dropping a slice, and records to put with it. By default the drop is unconditional.
#[derive(Clone, Debug, Default)]
pub struct DropSlice {
    /// The result that [`Store::statistics`] must have for the slice.
    pub holding: Option<Vec<TileStatistics>>,
    /// Records to put after that comparison, each under its condition.
    pub before: Vec<RecordPut>,
}

/// Settings for the calls of one view of a store; `None` keeps the setting of the opened store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallOptions {
    /// Consistency level of reads, by its name in capitals.
    pub read_consistency: Option<String>,
    /// Consistency level of writes, by its name in capitals.
    pub write_consistency: Option<String>,
    /// Timeout of an operation in seconds.
    pub timeout_s: Option<u64>,
}

impl CallOptions {
    /// The error of [`Store::with_options`] from an engine that has one copy of the data.
    pub fn unsupported(engine: &'static str) -> StoreError {
        let reason = "it stores one copy: consistency levels and call timeouts are for clusters";
        StoreError::Refused { engine, reason: reason.to_owned() }
    }
}

/// Which writes the reads of a view see, where an engine keeps replicas that may lag behind one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visibility {
    /// Those that the consistency level of the reads guarantees. Where too few replicas can be reached for the contract of
    /// [`Store::record`], [`Store::records`] and [`Store::slices`], these too are answered at that level, and may miss what ended
    /// before. For callers that change nothing by what they read.
    Configured,
    /// Every chunk whose commit ended before, at the level of writes that the store was opened with. For callers that drop or
    /// remove what they have read.
    EveryWrite,
}

/// The source of an engine's time under [`CLOCK_KEY`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockSource {
    /// The greatest [`Commit::stamp_us`] of all commits that have ended; no record before the first. Reading it costs no request to
    /// another machine.
    LatestStamp,
    /// The time of one of the engine's machines, as it answers.
    MachineTime,
}

/// Guarantees and limits of an engine beyond the contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Name of the engine for messages: `memory`, `sqlite`, `cassandra`.
    pub engine: &'static str,
    /// Whether a commit is one step: all of it takes effect or none, also where a condition of [`Commit::after`] fails or
    /// [`Commit::before`] has records of several groups, and no call of [`Store::records`] sees part of it.
    pub atomic_commits: bool,
    /// Whether [`Store::drop_slice`] is one step: every [`Commit::put`] into the slice takes effect before it, and is compared, or
    /// after it, and fails with [`StoreError::NoSlice`].
    pub atomic_drops: bool,
    /// Whether a commit may put and remove chunks of all datasets of a group, whichever of them it names.
    pub group_commits: bool,
    /// Whether the engine maintains the record of changes of each slice ([`changes_key`]).
    pub records_changes: bool,
    /// Which time the record under [`CLOCK_KEY`] gives.
    pub clock: ClockSource,
    /// Whether a scan finds out which of its slices exist at no more cost than a call of [`Store::slices`]. Says nothing of
    /// results: on every engine, a slice that does not exist holds nothing.
    pub cheap_missing_slices: bool,
    /// Largest accepted chunk (head and body), in bytes.
    pub chunk_bytes_max: usize,
    /// Bytes of one cell in one slice above which performance suffers; `None` if the size does not matter.
    pub cell_bytes_good: Option<u64>,
    /// Whether the engine supports [`Placement::Rows`]: chunks stored as rows of its own tables.
    pub native_rows: bool,
}

/// A method of [`Store`], as the wrappers name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operation {
    /// [`Store::commit`]
    Commit,
    /// [`Store::scan`]
    Scan,
    /// [`Store::fetch`]
    Fetch,
    /// [`Store::record`]
    Record,
    /// [`Store::records`]
    Records,
    /// [`Store::create_slice`]
    CreateSlice,
    /// [`Store::drop_slice`]
    DropSlice,
    /// [`Store::slices`]
    Slices,
    /// [`Store::statistics`]
    Statistics,
}

impl Operation {
    /// Every operation, in the order of the trait.
    pub const ALL: [Self; 9] = [
        Self::Commit,
        Self::Scan,
        Self::Fetch,
        Self::Record,
        Self::Records,
        Self::CreateSlice,
        Self::DropSlice,
        Self::Slices,
        Self::Statistics,
    ];
}

/// A storage engine. Each method states what it promises and, above all, what it does not.
///
/// No method has a default body: a wrapper that leaves one out does not compile.
#[async_trait]
pub trait Store: Send + Sync + std::fmt::Debug {
    /// What this engine promises beyond the contract. Constant for an open store.
    fn capabilities(&self) -> Capabilities;

    /// Writes in the order of [`Commit`]'s fields; `Ok` means that all of it is durable.
    ///
    /// Each step is durable before the next begins: whoever finds a later step's effect after a crash finds the earlier
    /// ones too. The records of one step take effect together, their conditions included, where they are of one group
    /// ([`record_group`]). Where a condition of `before` fails nothing at all has happened and the error is
    /// [`StoreError::RecordConflict`]; likewise [`StoreError::ChunkConflict`] for `remove` with `require_removed` where one is
    /// missing as the commit begins. What is put to and removed from one tile takes effect together where `require_removed`
    /// is set: of two commits that remove the same chunk one fails.
    ///
    /// Repeating a commit whose outcome is unknown is harmless but for its conditions: a condition may then fail because
    /// the first try was applied.
    ///
    /// Not promised without [`Capabilities::atomic_commits`]: that nothing has happened where a condition of `after` fails, where a chunk was
    /// removed by another commit at the same moment (`before` and other tiles may have changed), or where `before` has
    /// records of several groups. Never promised: an order among the chunks of one step.
    async fn commit(&self, dataset: &DatasetRef, commit: Commit) -> Result<()>;

    /// Streams the chunks of the cells and windows asked for, in groups of bounded size.
    ///
    /// Order: slices as given; within one by cell, then window, then chunk id, so that the chunks of a tile are
    /// neighbours. Holds every chunk whose commit ended before the scan began and that is not removed during the scan.
    /// A commit that is applied during the scan may be seen in part, but each chunk is returned at most once and never
    /// in part, and a commit with `require_removed` is seen whole or not at all in each tile: a scan beside a rewrite of
    /// a tile returns its old chunks or its new ones.
    async fn scan(&self, dataset: &DatasetRef, scan: Scan) -> Result<BoxStream<'static, Result<Vec<Chunk>>>>;

    /// The chunks of these keys with their bodies, in the order of the keys; those that do not exist are left out.
    async fn fetch(&self, dataset: &DatasetRef, keys: Vec<ChunkKey>) -> Result<Vec<Chunk>>;

    /// The catalog record of this key. Sees every record whose commit ended before.
    async fn record(&self, key: &str) -> Result<Option<Bytes>>;

    /// At most `limit` records whose key begins with `prefix` and is greater than `after`, by key in byte order.
    ///
    /// Not promised: records with a group ([`record_group`]) under a prefix of fewer than two `/`, which may be left out.
    async fn records(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<Record>>;

    /// Creates a slice. An existing slice is left unchanged; callers may race.
    async fn create_slice(&self, dataset: &DatasetRef, slice: SliceId) -> Result<()>;

    /// Drops a slice with all its chunks. One that does not exist holds nothing and is no error. Running scans of it end
    /// early or with an error, never with wrong chunks.
    ///
    /// Three steps, each durable before the next begins: the slice is compared with [`DropSlice::holding`], the records of
    /// [`DropSlice::before`] are put, the slice is gone. Where it holds something else the error is
    /// [`StoreError::SliceConflict`], where a record is not as expected [`StoreError::RecordConflict`], and nothing has
    /// happened. The comparison sees every chunk whose commit ended before, at a consistency of writes of which a majority
    /// takes part.
    ///
    /// With [`Capabilities::atomic_drops`] the three are one step. Not promised without: that a commit which ends between the
    /// comparison and the end of the drop is noticed. Coordinate with writers before dropping slices in use.
    async fn drop_slice(&self, dataset: &DatasetRef, slice: SliceId, when: DropSlice) -> Result<()>;

    /// The existing slices, ascending.
    async fn slices(&self, dataset: &DatasetRef) -> Result<Vec<SliceId>>;

    /// A view of the same store whose calls use the consistency levels and time limits of `options`.
    ///
    /// # Errors
    /// [`StoreError::Refused`] for a level that does not exist, and from an engine without such choices ([`CallOptions::unsupported`]).
    fn with_options(&self, options: &CallOptions) -> Result<Arc<dyn Store>>;

    /// A view of the same store whose reads see what `visibility` says; `None` from an engine whose every read sees every write
    /// that ended before.
    fn with_visibility(&self, visibility: Visibility) -> Option<Arc<dyn Store>>;

    /// What each tile of a slice holds, by cell, then window; empty for a slice that does not exist.
    async fn statistics(&self, dataset: &DatasetRef, slice: SliceId) -> Result<Vec<TileStatistics>>;
}
