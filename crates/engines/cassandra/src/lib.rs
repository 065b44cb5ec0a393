//! The distributed engine: an archive in a keyspace of Apache Cassandra or ScyllaDB.
//!
//! A slice is a table, one cell or several neighbouring cells are a partition, and a chunk is a row or, in layout `rows`, one row
//! per record (`names`, `layout`, `rows`). Chunks are written and read at the consistency level that the user chose. The catalog
//! (`catalog`) and removals of chunks (`chunks`) use lightweight transactions. Only the holder of the schema lease changes the
//! schema (`schema`).

mod catalog;
mod chunks;
mod failure;
mod layout;
mod names;
mod requests;
mod scan;
mod schema;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use chronotile_cql::scylla::statement::Consistency;
pub use chronotile_cql::without_password;
use chronotile_cql::{Call, CqlError, Replication, Session, Settings};
use chronotile_store::{
    CallOptions, Capabilities, Chunk, ChunkKey, ClockSource, Commit, DatasetRef, DropSlice, Record, Result, Scan,
    Store, StoreError, TileStatistics, Visibility,
};
use chronotile_types::{DatasetName, SliceId};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};

use crate::catalog::Catalog;
use crate::failure::{ENGINE, of_write, refused};
use crate::layout::rows::RowDatasets;
use crate::layout::{DatasetTables, Sizes, TableLayout};

/// Largest accepted chunk, head and body, in bytes: half of a node's default limit for one write.
pub const CHUNK_BYTES_MAX: usize = 8 << 20;
/// Bytes of a partition above which reads, compaction and repair suffer.
const CELL_BYTES_GOOD: u64 = 10 << 20;
/// Partitions that one commit rewrites concurrently.
const SWAP_AT_ONCE: usize = 16;

/// Parses the URL of an archive.
///
/// # Errors
/// What is wrong with it, as text.
pub fn settings(url: &str) -> std::result::Result<Settings, String> {
    let settings = Settings::parse(url).map_err(|error| match error {
        CqlError::Url { reason, .. } => reason,
        other => other.to_string(),
    })?;
    match settings.keyspace.is_empty() {
        true => Err("it names no keyspace".to_owned()),
        false => Ok(settings),
    }
}

/// Options for opening an archive that are not in its URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Whether to create a missing archive. Default true.
    pub create: bool,
    /// Whether writes are refused. Default false.
    pub read_only: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { create: true, read_only: false }
    }
}

/// An open archive in a keyspace. Cheap to clone.
#[derive(Clone, Debug)]
pub struct CassandraStore {
    shared: Arc<Shared>,
    /// Whether catalog reads may fall back to the level of row reads, which may miss recent records.
    catalog_fallback: bool,
    read: Call,
    write: Call,
}

#[derive(Debug)]
struct Shared {
    session: Arc<Session>,
    catalog: Catalog,
    sizes: Arc<Sizes>,
    rows: RowDatasets,
    read_only: bool,
    /// Slices known to be ready. Another process may have dropped one since.
    ready: Mutex<HashSet<(DatasetName, SliceId)>>,
    /// Serializes schema changes of this process.
    schema_mutex: tokio::sync::Mutex<()>,
}

impl CassandraStore {
    /// Connects and opens the archive in the keyspace, or creates it.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] where no node answers, [`StoreError::Denied`] for login, certificate or permission,
    /// [`StoreError::NotFound`] where there is none and none is to be made, [`StoreError::NotAnArchive`] for a keyspace
    /// with other tables, [`StoreError::NewerFormat`], [`StoreError::Refused`] for settings that cannot be used.
    pub async fn open(settings: Settings, options: Options) -> Result<Self> {
        let timeout = settings.timeout;
        let read = Call { consistency: settings.read_consistency, timeout, instead: None };
        let write = Call { consistency: settings.write_consistency, timeout, instead: None };
        let session = Session::connect(settings).await.map_err(refused)?;
        let meta = schema::open(&session, options.create && !options.read_only).await?;
        let shared = Shared {
            session: Arc::new(session),
            catalog: Catalog::new(meta.catalog_buckets),
            sizes: Arc::default(),
            rows: RowDatasets::default(),
            read_only: options.read_only,
            ready: Mutex::default(),
            schema_mutex: tokio::sync::Mutex::default(),
        };
        Ok(Self { shared: Arc::new(shared), catalog_fallback: false, read, write })
    }

    /// Changes the replication factor of each data centre. Only a repair copies existing data to new replicas: run a full repair of
    /// the keyspace afterwards.
    ///
    /// # Errors
    /// A data centre that does not exist or has fewer nodes; missing permission; the cluster.
    pub async fn set_replication(&self, replication: &Replication) -> Result<()> {
        self.writable()?;
        let _guard = self.shared.schema_mutex.lock().await;
        schema::set_replication(self.session(), replication).await
    }

    /// Empties the catalog, for tests that share a keyspace.
    #[doc(hidden)]
    pub async fn forget_all_records(&self) -> Result<()> {
        let keyspace = &self.session().settings().keyspace;
        self.session().change_schema(&format!("TRUNCATE {keyspace}.{}", names::CATALOG)).await.map_err(refused)
    }

    /// Consistency and timeout of catalog reads.
    fn catalog_call(&self) -> Call {
        let call = match self.catalog_fallback {
            true => requests::quorum_or(self.session(), self.read.consistency),
            false => requests::quorum_or_serial(self.session()),
        };
        Call { timeout: self.read.timeout, ..call }
    }

    fn session(&self) -> &Session {
        &self.shared.session
    }

    fn tables(&self, dataset: &DatasetRef) -> Result<DatasetTables> {
        let layout = TableLayout::of(dataset, &self.shared.rows)?;
        Ok(DatasetTables { session: self.shared.session.clone(), dataset: dataset.clone(), layout })
    }

    fn writable(&self) -> Result<()> {
        if !self.shared.read_only {
            return Ok(());
        }
        let place = format!("keyspace {}", self.session().settings().keyspace);
        Err(StoreError::ReadOnly { path: place, reason: "it was opened read-only".to_owned() })
    }

    /// A consistency level at which a read sees every write at the level of this archive's URL.
    fn level_seeing_writes(&self) -> Consistency {
        let places = self.session().driver().get_cluster_state();
        let centres: HashSet<_> = places.get_nodes_info().iter().map(|node| node.datacenter.clone()).collect();
        // A majority overlaps with every write by a majority. After other writes, the replicas that have the data may
        // be a minority, so all must answer.
        match self.write.consistency {
            Consistency::Quorum | Consistency::EachQuorum | Consistency::All => Consistency::Quorum,
            Consistency::LocalQuorum if centres.len() == 1 => Consistency::Quorum,
            _ => Consistency::All,
        }
    }

    fn ready<T>(&self, use_it: impl FnOnce(&mut HashSet<(DatasetName, SliceId)>) -> T) -> T {
        use_it(&mut self.shared.ready.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn check_slices(&self, tables: &DatasetTables, chunks: &[Chunk]) -> Result<()> {
        let dataset = &tables.dataset.name;
        let slices: HashSet<SliceId> = chunks.iter().map(|chunk| chunk.key.slice).collect();
        for slice in slices {
            let known = (dataset.clone(), slice);
            if self.ready(|ready| ready.contains(&known)) {
                continue;
            }
            if !schema::is_ready(self.session(), dataset, slice, &self.catalog_call()).await? {
                return Err(StoreError::NoSlice { dataset: dataset.clone(), slice });
            }
            self.ready(|ready| ready.insert(known));
        }
        match &tables.layout {
            TableLayout::Chunks { .. } => Ok(()),
            TableLayout::Rows(layout) => schema::make_columns(tables, layout, chunks).await,
        }
    }

    /// Puts and removes chunks. `begun` says that the commit has already changed catalog records.
    async fn change_chunks(
        &self,
        tables: &DatasetTables,
        mut put: Vec<Chunk>,
        remove: &[ChunkKey],
        require_removed: bool,
        begun: bool,
    ) -> Result<()> {
        let dataset = &tables.dataset.name;
        let slices: HashSet<SliceId> = put.iter().map(|chunk| chunk.key.slice).collect();
        // A missing table shows that nothing is stored only if the commit has changed no record and puts chunks into
        // one slice.
        let write_error = |error: CqlError| match error {
            CqlError::NoTable { .. } => {
                self.ready(|ready| ready.retain(|(name, slice)| name != dataset || !slices.contains(slice)));
                match slices.iter().next() {
                    Some(slice) if !begun && slices.len() == 1 => {
                        StoreError::NoSlice { dataset: dataset.clone(), slice: *slice }
                    }
                    _ => of_write(error, true),
                }
            }
            error => of_write(error, begun),
        };
        // Chunks that are put outside of a transaction are durable before anything is removed, as `Commit` promises.
        let swaps = if require_removed { chunks::swaps(tables, &mut put, remove) } else { Default::default() };
        let plain = !put.is_empty();
        chunks::put(tables, put, &self.write).await.map_err(write_error)?;
        let begun = begun || plain;
        let swap = |swap| chunks::swap(tables, swap, &self.write, begun);
        let swaps: Vec<_> = swaps.values().map(swap).collect();
        futures::stream::iter(swaps).buffer_unordered(SWAP_AT_ONCE).try_collect::<()>().await?;
        if !require_removed {
            chunks::remove(tables, remove, &self.write).await.map_err(|e| of_write(e, begun))?;
        }
        Ok(())
    }
}

#[async_trait]
impl Store for CassandraStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            engine: ENGINE,
            atomic_commits: false,
            atomic_drops: false,
            group_commits: false,
            records_changes: false,
            clock: ClockSource::MachineTime,
            chunk_bytes_max: CHUNK_BYTES_MAX,
            cell_bytes_good: Some(CELL_BYTES_GOOD),
            cheap_missing_slices: false,
            native_rows: true,
        }
    }

    fn with_options(&self, options: &CallOptions) -> Result<Arc<dyn Store>> {
        let refuse = |reason: String| StoreError::Refused { engine: ENGINE, reason };
        let mut view = self.clone();
        if let Some(level) = &options.read_consistency {
            view.read.consistency = chronotile_cql::read_consistency(level).map_err(refuse)?;
        }
        if let Some(level) = &options.write_consistency {
            view.write.consistency = chronotile_cql::write_consistency(level).map_err(refuse)?;
        }
        if let Some(seconds) = options.timeout_s {
            if !(1..=3_600).contains(&seconds) {
                return Err(refuse(format!("a timeout of {seconds} s is not from 1 to 3600")));
            }
            view.read.timeout = Duration::from_secs(seconds);
            view.write.timeout = Duration::from_secs(seconds);
        }
        Ok(Arc::new(view))
    }

    fn with_visibility(&self, visibility: Visibility) -> Option<Arc<dyn Store>> {
        let mut view = self.clone();
        match visibility {
            Visibility::Configured => view.catalog_fallback = true,
            Visibility::EveryWrite => view.read.consistency = self.level_seeing_writes(),
        }
        Some(Arc::new(view))
    }

    async fn commit(&self, dataset: &DatasetRef, commit: Commit) -> Result<()> {
        commit.check_sizes(ENGINE, CHUNK_BYTES_MAX)?;
        self.writable()?;
        let tables = &self.tables(dataset)?;
        let Commit { before, put, remove, require_removed, after, stamp_us: _ } = commit;
        if let TableLayout::Rows(layout) = &tables.layout {
            layout.check(&tables.dataset.name, &put)?;
        }
        self.check_slices(tables, &put).await?;
        if require_removed && !remove.is_empty() {
            // Check before the catalog changes, so that a failure leaves no trace. Chunks that this commit puts itself need not exist yet.
            let own: HashSet<ChunkKey> = put.iter().map(|chunk| chunk.key).collect();
            let others: Vec<ChunkKey> = remove.iter().filter(|key| !own.contains(key)).copied().collect();
            chunks::check_present(tables, &chunks::swaps(tables, &mut vec![], &others)).await?;
        }
        self.shared.catalog.apply(self.session(), &before, false).await?;
        let begun = !before.is_empty();
        let changed = self.change_chunks(tables, put, &remove, require_removed, begun).await;
        if let (Err(_), TableLayout::Rows(layout)) = (&changed, &tables.layout) {
            layout.forget();
        }
        changed?;
        self.shared.catalog.apply(self.session(), &after, true).await
    }

    async fn scan(&self, dataset: &DatasetRef, scan: Scan) -> Result<BoxStream<'static, Result<Vec<Chunk>>>> {
        Ok(scan::scan(self.tables(dataset)?, self.shared.sizes.clone(), self.read, scan))
    }

    async fn fetch(&self, dataset: &DatasetRef, keys: Vec<ChunkKey>) -> Result<Vec<Chunk>> {
        scan::fetch(&self.tables(dataset)?, keys, &self.read).await.map_err(refused)
    }

    async fn record(&self, key: &str) -> Result<Option<Bytes>> {
        self.shared.catalog.record(self.session(), key, &self.catalog_call()).await
    }

    async fn records(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<Record>> {
        self.shared.catalog.records(self.session(), prefix, after, limit, &self.catalog_call()).await
    }

    async fn create_slice(&self, dataset: &DatasetRef, slice: SliceId) -> Result<()> {
        self.writable()?;
        if !schema::is_ready(self.session(), &dataset.name, slice, &self.catalog_call()).await? {
            let _guard = self.shared.schema_mutex.lock().await;
            schema::create_slice(&self.tables(dataset)?, slice).await?;
        }
        self.ready(|ready| ready.insert((dataset.name.clone(), slice)));
        Ok(())
    }

    async fn drop_slice(&self, dataset: &DatasetRef, slice: SliceId, when: DropSlice) -> Result<()> {
        self.writable()?;
        let tables = self.tables(dataset)?;
        // The table's id is read before its content is compared: if the slice is dropped and created again meanwhile,
        // the new table has another id and is kept.
        let known = schema::table_id(self.session(), &dataset.name, slice).await?;
        if let Some(holding) = when.holding {
            let call = Call { consistency: self.level_seeing_writes(), ..self.read };
            if scan::statistics(&tables, slice, &call).await.map_err(refused)? != holding {
                return Err(StoreError::SliceConflict { dataset: dataset.name.clone(), slice });
            }
        }
        self.shared.catalog.apply(self.session(), &when.before, false).await?;
        let Some(table_id) = known else { return Ok(()) };
        self.ready(|ready| ready.remove(&(dataset.name.clone(), slice)));
        let _guard = self.shared.schema_mutex.lock().await;
        if let TableLayout::Rows(layout) = &tables.layout {
            layout.forget();
        }
        schema::drop_slice(&tables, slice, &table_id).await
    }

    async fn slices(&self, dataset: &DatasetRef) -> Result<Vec<SliceId>> {
        schema::slices(self.session(), &dataset.name, &self.catalog_call()).await
    }

    async fn statistics(&self, dataset: &DatasetRef, slice: SliceId) -> Result<Vec<TileStatistics>> {
        scan::statistics(&self.tables(dataset)?, slice, &self.read).await.map_err(refused)
    }
}
