//! The embedded engine: an archive in one SQLite file, shared by any number of tasks and processes of one machine.
//!
//! Commits that tasks ask for at the same time share one transaction and one disk sync (`writer`); reads run beside
//! them on connections of their own (`reader`). The tables are described in `layout`.

mod backup;
mod failure;
mod layout;
mod open;
mod reader;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use chronotile_store::{
    CallOptions, Capabilities, Chunk, ChunkKey, ClockSource, Commit, DatasetRef, DropSlice, Record, Result, Scan,
    Store, StoreError, TileStatistics, Visibility,
};
use chronotile_types::SliceId;
use futures::stream::{self, BoxStream, StreamExt};

pub use crate::backup::{BackupError, FileDraft, copy_file};
use crate::failure::ENGINE;
use crate::reader::{Readers, Scanner};
use crate::writer::{IDLE, Writer, WriterRequest};

/// Largest accepted chunk, head and body, in bytes.
pub const CHUNK_BYTES_MAX: usize = 64 << 20;

/// When a commit is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Synchronous {
    /// After it is on disk: it survives a power cut.
    #[default]
    Full,
    /// After the operating system has it: it survives a crash of the process, but a power cut may lose the last commits. The file
    /// stays intact.
    Normal,
}

/// How an archive file is opened. None of it is stored in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Whether a missing file is created; its folder must exist. Default true.
    pub create: bool,
    /// Whether writes are refused; such an archive may lie on a read-only file system. Default false.
    pub read_only: bool,
    /// Seconds a write waits for writers of other processes. Default 60; 0 tries once.
    pub busy_timeout_s: u64,
    /// When a commit is acknowledged. Default [`Synchronous::Full`].
    pub synchronous: Synchronous,
    /// Pages the file may have, to test a full disk.
    #[doc(hidden)]
    pub pages_max: Option<u32>,
}

impl Default for Options {
    fn default() -> Self {
        Self { create: true, read_only: false, busy_timeout_s: 60, synchronous: Synchronous::Full, pages_max: None }
    }
}

/// An open archive file.
///
/// Its methods need a Tokio runtime. Dropping it waits for writes under way; the last connection of the last process
/// folds the log into the file and removes it.
#[derive(Debug)]
pub struct SqliteStore {
    path: PathBuf,
    /// `None` where the archive was opened read-only. Before `readers`: dropped first.
    writer: Option<Writer>,
    readers: Arc<Readers>,
}

impl SqliteStore {
    /// Opens or creates the archive at `path`, blocking for the few file operations it takes.
    ///
    /// A file that is not an archive is left untouched. Errors: [`StoreError::NotAnArchive`] for any other file or
    /// a folder, [`StoreError::NewerFormat`], [`StoreError::NotFound`] for a missing folder, or a missing file that is
    /// not to be created, [`StoreError::ReadOnly`] where the file or its folder cannot be written (and `read_only` was not
    /// asked for), [`StoreError::Corrupt`] for a damaged or cut file, [`StoreError::Full`] and [`StoreError::Busy`].
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Self> {
        // An absolute path keeps its meaning when the process changes its folder, and is never taken for a URI.
        let path = std::path::absolute(path.as_ref()).map_err(|error| StoreError::Refused {
            engine: ENGINE,
            reason: format!("resolving {}: {error}", path.as_ref().display()),
        })?;
        open::prepare(&path, &options)?;
        let writer = if options.read_only { None } else { Some(Writer::start(path.clone(), options.clone(), IDLE)?) };
        let readers = Readers::open(path.clone(), options)?;
        Ok(Self { path, writer, readers })
    }

    /// The archive file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn writer(&self) -> Result<&Writer> {
        let reason = || "it was opened read-only".to_owned();
        self.writer
            .as_ref()
            .ok_or_else(|| StoreError::ReadOnly { path: self.path.display().to_string(), reason: reason() })
    }
}

#[async_trait]
impl Store for SqliteStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            engine: ENGINE,
            atomic_commits: true,
            atomic_drops: true,
            group_commits: true,
            records_changes: true,
            clock: ClockSource::LatestStamp,
            chunk_bytes_max: CHUNK_BYTES_MAX,
            cell_bytes_good: None,
            cheap_missing_slices: true,
            native_rows: false,
        }
    }

    fn with_options(&self, _options: &CallOptions) -> Result<Arc<dyn Store>> {
        Err(CallOptions::unsupported(ENGINE))
    }

    fn with_visibility(&self, _visibility: Visibility) -> Option<Arc<dyn Store>> {
        None
    }

    async fn commit(&self, dataset: &DatasetRef, commit: Commit) -> Result<()> {
        let dataset = dataset.chunks_only(ENGINE)?;
        commit.check_sizes(ENGINE, CHUNK_BYTES_MAX)?;
        self.writer()?.submit(dataset, WriterRequest::Commit(commit)).await
    }

    async fn scan(&self, dataset: &DatasetRef, scan: Scan) -> Result<BoxStream<'static, Result<Vec<Chunk>>>> {
        let dataset = dataset.chunks_only(ENGINE)?;
        let scanner = Scanner::new(dataset.clone(), scan);
        let short = scanner.starts_short();
        let groups =
            stream::try_unfold((self.readers.clone(), scanner, short), |(readers, mut scanner, short)| async move {
                if scanner.is_finished() {
                    // The end of the scan needs no thread.
                    return Ok(None);
                }
                let next = move |pool: &Arc<Readers>| scanner.next_group(pool).map(|group| (group, scanner));
                let (group, scanner) = if short { readers.run_here(next).await? } else { readers.run(next).await? };
                Ok((!group.is_empty()).then_some((group, (readers, scanner, false))))
            });
        Ok(groups.boxed())
    }

    async fn fetch(&self, dataset: &DatasetRef, keys: Vec<ChunkKey>) -> Result<Vec<Chunk>> {
        let dataset = dataset.chunks_only(ENGINE)?.clone();
        if reader::fetches_short(&keys) {
            return self.readers.query_here(move |conn| reader::fetch(conn, &dataset, &keys)).await;
        }
        self.readers.query(move |conn| reader::fetch(conn, &dataset, &keys)).await
    }

    async fn record(&self, key: &str) -> Result<Option<Bytes>> {
        let key = key.to_owned();
        self.readers.query_here(move |conn| layout::read_record(conn, &key)).await
    }

    async fn records(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<Record>> {
        // Listings are rare. Checking the path here reports a missing file to callers that begin with one or use it as a health check.
        self.readers.check()?;
        let (prefix, after) = (prefix.to_owned(), after.map(str::to_owned));
        self.readers.query(move |conn| reader::records(conn, &prefix, after.as_deref(), limit)).await
    }

    async fn create_slice(&self, dataset: &DatasetRef, slice: SliceId) -> Result<()> {
        let dataset = dataset.chunks_only(ENGINE)?;
        let (name, writer) = (dataset.clone(), self.writer()?);
        if self.readers.query(move |conn| layout::slice_exists(conn, &name, slice)).await? {
            return Ok(());
        }
        writer.submit(dataset, WriterRequest::CreateSlice(slice)).await
    }

    async fn drop_slice(&self, dataset: &DatasetRef, slice: SliceId, when: DropSlice) -> Result<()> {
        let dataset = dataset.chunks_only(ENGINE)?;
        self.writer()?.submit(dataset, WriterRequest::DropSlice(slice, when)).await
    }

    async fn slices(&self, dataset: &DatasetRef) -> Result<Vec<SliceId>> {
        let dataset = dataset.chunks_only(ENGINE)?.clone();
        self.readers.query_here(move |conn| reader::slices(conn, &dataset)).await
    }

    async fn statistics(&self, dataset: &DatasetRef, slice: SliceId) -> Result<Vec<TileStatistics>> {
        let dataset = dataset.chunks_only(ENGINE)?.clone();
        self.readers.query(move |conn| layout::statistics(conn, &dataset, slice)).await
    }
}
