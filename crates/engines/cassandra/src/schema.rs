//! Finds or creates an archive: its keyspace, its fixed tables, and the slices' tables, which only the holder of the schema
//! lease creates and drops.

use std::collections::BTreeSet;
use std::future::Future;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use chronotile_cql::{CATALOG_BUCKETS_MAX, Call, CqlError, Replication, Session};
use chronotile_store::{Chunk, Result, StoreError};
use chronotile_types::{DatasetName, SliceId};

use crate::failure::{malformed, of_write, refused};
use crate::layout::rows::RowLayout;
use crate::layout::{DatasetTables, TableLayout};
use crate::names::{self, LEASES, META, SLICES};
use crate::requests::{TABLE_PAUSE, prepared, quorum_call, quorum_or, unknown_table};

/// Format of the tables; see `docs/format.md`.
const FORMAT: u32 = 1;
/// Seconds after which the schema lease expires if its holder goes silent.
const LEASE_S: i32 = 60;
const LEASE_NAME: &str = "schema";
/// Default replication factor of each data centre; fewer where it has fewer nodes.
const COPIES: usize = 3;

/// Settings that an archive stores about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meta {
    pub catalog_buckets: u32,
}

/// Finds the archive, or creates it.
pub(crate) async fn open(session: &Session, create: bool) -> Result<Meta> {
    let keyspace = &session.settings().keyspace;
    let place = || PathBuf::from(format!("keyspace {keyspace} of {}", session.settings().contact_points.join(",")));
    if let Some(meta) = find(session).await? {
        return Ok(meta);
    }
    let tables = tables(session).await.map_err(refused)?;
    // A keyspace with some of the archive's own tables is accepted: another client is creating them, or was
    // interrupted.
    let strange = tables.as_ref().is_some_and(|found| {
        let ours = names::create_fixed(keyspace, false);
        found.iter().any(|table| ours.iter().all(|(name, _)| name != table))
    });
    if strange {
        let reason = "it holds tables of another application: name another keyspace".to_owned();
        return Err(StoreError::NotAnArchive { path: place(), reason });
    }
    if !create {
        return Err(StoreError::NotFound { path: place(), reason: "there is no archive in this keyspace".to_owned() });
    }
    if tables.is_none() {
        create_keyspace(session).await?;
    }
    create_tables(session).await?;
    claim_meta(session).await?;
    find(session).await?.ok_or_else(|| refused(malformed("the archive's own record is missing after its creation")))
}

/// The settings of the archive, or `None` if there is none. It exists if any node knows its tables: others may have been down
/// when they were created.
async fn find(session: &Session) -> Result<Option<Meta>> {
    match session.prepare(&own_record_cql(session), true).await {
        Err(CqlError::NoTable { .. }) => return Ok(None),
        known => known.map_err(refused)?,
    };
    let keyspace = &session.settings().keyspace;
    let place = || PathBuf::from(format!("keyspace {keyspace}"));
    let Some(format) = own_record(session, "format").await.map_err(refused)? else { return Ok(None) };
    let unreadable = |name: &str| StoreError::NotAnArchive {
        path: place(),
        reason: format!("its record {name:?} is missing or damaged"),
    };
    let found = format.parse().map_err(|_| unreadable("format"))?;
    if found > FORMAT {
        return Err(StoreError::NewerFormat { path: place(), found, known: FORMAT });
    }
    let buckets = own_record(session, "catalog_buckets").await.map_err(refused)?;
    let catalog_buckets = buckets.as_deref().and_then(bucket_count).ok_or_else(|| unreadable("catalog_buckets"))?;
    Ok(Some(Meta { catalog_buckets }))
}

/// The number of catalog buckets in a stored setting; `None` if no archive is created with it.
fn bucket_count(text: &str) -> Option<u32> {
    text.parse().ok().filter(|count| (1..=CATALOG_BUCKETS_MAX).contains(count))
}

fn own_record_cql(session: &Session) -> String {
    format!("SELECT value FROM {}.{META} WHERE name = ?", session.settings().keyspace)
}

/// One setting of the archive.
async fn own_record(session: &Session, name: &str) -> std::result::Result<Option<String>, CqlError> {
    let statement = prepared(session, &own_record_cql(session), true).await?;
    let call = quorum_or(session, session.settings().read_consistency);
    let rows = session.execute(&statement, (name,), &call).await?.into_rows_result().map_err(malformed)?;
    let value = rows.maybe_first_row::<(Option<String>,)>().map_err(malformed)?;
    Ok(value.and_then(|(value,)| value))
}

/// Tables of the keyspace; `None` where it does not exist.
async fn tables(session: &Session) -> std::result::Result<Option<BTreeSet<String>>, CqlError> {
    let keyspace = &session.settings().keyspace;
    let call = Call { consistency: chronotile_cql::scylla::statement::Consistency::One, ..quorum_call(session) };
    let cql = "SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = ?";
    let statement = session.prepare(cql, true).await?;
    let found = session.execute(&statement, (keyspace,), &call).await?.into_rows_result().map_err(malformed)?;
    if found.rows_num() == 0 {
        return Ok(None);
    }
    let cql = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = ?";
    let statement = session.prepare(cql, true).await?;
    let found = session.execute(&statement, (keyspace,), &call).await?.into_rows_result().map_err(malformed)?;
    let rows = found.rows::<(String,)>().map_err(malformed)?;
    let names: std::result::Result<_, _> = rows.map(|row| row.map(|(name,)| name)).collect();
    Ok(Some(names.map_err(malformed)?))
}

async fn create_keyspace(session: &Session) -> Result<()> {
    let settings = session.settings();
    let replication = replication(session, settings.replication.as_ref())?;
    let cql = format!("CREATE KEYSPACE IF NOT EXISTS {} WITH replication = {replication}", settings.keyspace);
    session.change_schema(&cql).await.map_err(refused)
}

/// Changes the replication factors. Only a repair copies existing data to new replicas.
pub(crate) async fn set_replication(session: &Session, wanted: &Replication) -> Result<()> {
    let replication = replication(session, Some(wanted))?;
    let cql = format!("ALTER KEYSPACE {} WITH replication = {replication}", session.settings().keyspace);
    session.change_schema(&cql).await.map_err(|error| of_write(error, false))
}

/// The replication map in CQL, checked against the cluster's data centres.
fn replication(session: &Session, wanted: Option<&Replication>) -> Result<String> {
    let state = session.driver().get_cluster_state();
    let mut nodes = std::collections::BTreeMap::<String, usize>::new();
    for node in state.get_nodes_info() {
        *nodes.entry(node.datacenter.clone().unwrap_or_default()).or_default() += 1;
    }
    let refuse = |reason: String| StoreError::Refused { engine: crate::failure::ENGINE, reason };
    let factors: Vec<(String, u32)> = match wanted {
        None => nodes.iter().map(|(name, count)| (name.clone(), (*count).min(COPIES) as u32)).collect(),
        Some(Replication::Everywhere(factor)) => nodes.keys().map(|name| (name.clone(), *factor)).collect(),
        Some(Replication::ByDataCentre(factors)) => factors.clone().into_iter().collect(),
    };
    for (name, factor) in &factors {
        let known = || nodes.keys().cloned().collect::<Vec<_>>().join(", ");
        let Some(count) = nodes.get(name) else {
            return Err(refuse(format!("replication names data centre {name:?}; there are: {}", known())));
        };
        if *factor as usize > *count {
            return Err(refuse(format!(
                "replication asks for {factor} copies in data centre {name}, which has {count} nodes"
            )));
        }
    }
    let factors: Vec<String> = factors.iter().map(|(name, factor)| format!("'{name}': {factor}")).collect();
    Ok(format!("{{'class': 'NetworkTopologyStrategy', {}}}", factors.join(", ")))
}

async fn create_tables(session: &Session) -> Result<()> {
    let keyspace = &session.settings().keyspace;
    let with_ids = takes_table_ids(session).await.map_err(refused)?;
    // Another client may be creating the same tables: a change that one node knows may not have reached the next.
    session.agree_on_schema().await.map_err(refused)?;
    for (name, cql) in names::create_fixed(keyspace, with_ids) {
        if tables(session).await.map_err(refused)?.is_none_or(|known| !known.contains(name)) {
            create_table(session, &cql).await?;
        }
    }
    session.agree_on_schema().await.map_err(refused)
}

/// Creates a table. Retries while the coordinator does not know the keyspace, which another client may just have created.
async fn create_table(session: &Session, cql: &str) -> Result<()> {
    const TRIES: usize = 40;
    const PAUSE: std::time::Duration = std::time::Duration::from_millis(250);
    for _ in 0..TRIES {
        match session.change_schema(cql).await {
            Err(error) if error.names_no_table() => tokio::time::sleep(PAUSE).await,
            changed => return changed.map_err(refused),
        }
        session.agree_on_schema().await.map_err(refused)?;
    }
    session.change_schema(cql).await.map_err(refused)
}

/// Whether `CREATE TABLE` accepts a table id, which makes concurrent creations yield one table. ScyllaDB serializes schema changes
/// itself.
async fn takes_table_ids(session: &Session) -> std::result::Result<bool, CqlError> {
    let cql =
        "SELECT table_name FROM system_schema.tables WHERE keyspace_name = 'system' AND table_name = 'scylla_local'";
    let statement = session.prepare(cql, true).await?;
    let call = Call { consistency: chronotile_cql::scylla::statement::Consistency::One, ..quorum_call(session) };
    let found = session.execute(&statement, (), &call).await?.into_rows_result().map_err(malformed)?;
    Ok(found.rows_num() == 0)
}

/// Stores the settings of a new archive, unless another client has stored its own.
async fn claim_meta(session: &Session) -> Result<()> {
    let settings = session.settings();
    let cql = format!("INSERT INTO {}.{META} (name, value) VALUES (?, ?) IF NOT EXISTS", settings.keyspace);
    let statement = prepared(session, &cql, false).await.map_err(refused)?;
    // The format is written last: a reader that finds it finds the other settings too.
    for (name, value) in [("catalog_buckets", settings.catalog_buckets), ("format", FORMAT)] {
        let claim = session.execute_retrying(&statement, (name, value.to_string()), &quorum_call(session)).await;
        // After a passing failure, the caller reads the record to learn whether it was stored.
        claim.map(|_| ()).or_else(|error| if error.passes() { Ok(()) } else { Err(refused(error)) })?;
    }
    Ok(())
}

/// The registry's entry of a slice.
struct Entry {
    table_id: Option<String>,
    ready: bool,
}

async fn entry(
    session: &Session,
    dataset: &DatasetName,
    slice: SliceId,
    call: &Call,
) -> std::result::Result<Option<Entry>, CqlError> {
    let keyspace = &session.settings().keyspace;
    let cql = format!("SELECT table_id, ready FROM {keyspace}.{SLICES} WHERE dataset = ? AND slice = ?");
    let statement = prepared(session, &cql, true).await?;
    let found = session.execute(&statement, (dataset.as_str(), slice.0), call).await?;
    let rows = found.into_rows_result().map_err(malformed)?;
    let row = rows.maybe_first_row::<(Option<String>, Option<bool>)>().map_err(malformed)?;
    // An entry whose table is still being created has no value for `ready`.
    Ok(row.map(|(table_id, ready)| Entry { table_id, ready: ready.unwrap_or(false) }))
}

/// Whether a slice is ready for use.
pub(crate) async fn is_ready(session: &Session, dataset: &DatasetName, slice: SliceId, call: &Call) -> Result<bool> {
    Ok(entry(session, dataset, slice, call).await.map_err(refused)?.is_some_and(|entry| entry.ready))
}

/// Whether a slice's table exists according to the registry, whatever a single node knows.
async fn has_table(session: &Session, dataset: &DatasetName, slice: SliceId) -> std::result::Result<bool, CqlError> {
    Ok(entry(session, dataset, slice, &quorum_call(session)).await?.is_some_and(|entry| entry.ready))
}

/// The slices that are ready for use, ascending.
pub(crate) async fn slices(session: &Session, dataset: &DatasetName, call: &Call) -> Result<Vec<SliceId>> {
    let list = async {
        let keyspace = &session.settings().keyspace;
        let cql = format!("SELECT slice, ready FROM {keyspace}.{SLICES} WHERE dataset = ?");
        let statement = prepared(session, &cql, true).await?;
        let found = session.execute(&statement, (dataset.as_str(),), call).await?;
        let rows = found.into_rows_result().map_err(malformed)?;
        let mut ready = Vec::new();
        for row in rows.rows::<(i32, Option<bool>)>().map_err(malformed)? {
            let (slice, is_ready) = row.map_err(malformed)?;
            if is_ready == Some(true) {
                ready.push(SliceId(slice));
            }
        }
        Ok(ready)
    };
    list.await.map_err(refused)
}

/// Creates a slice's table under the schema lease. Returns once every node that is up knows the table.
pub(crate) async fn create_slice(tables: &DatasetTables, slice: SliceId) -> Result<()> {
    let session = &tables.session;
    let Some(lease) = Lease::acquire(session, &SliceGoal::Ready(tables, slice)).await? else { return Ok(()) };
    let made = make_slice(tables, slice).await;
    // The lease is released after a failure, too: other clients would wait until it expires.
    lease.release(session).await;
    made.map_err(refused)
}

/// Adds the missing columns to a slice's table, under the schema lease.
async fn add_columns(tables: &DatasetTables, layout: &RowLayout, slice: SliceId) -> Result<()> {
    let session = &tables.session;
    let Some(lease) = Lease::acquire(session, &SliceGoal::Columns(tables, layout, slice)).await? else { return Ok(()) };
    let add = || async {
        let Some(cql) = layout.addition(tables, slice).await? else { return Ok(()) };
        match session.change_schema(&cql).await {
            // An error with no column missing: an earlier attempt has added them.
            Err(error) if layout.addition(tables, slice).await?.is_some() => Err(error),
            _ => layout.columns_of(tables, slice, true).await.map(drop),
        }
    };
    let added = if_table_exists(tables, slice, &quorum_call(session), add).await;
    lease.release(session).await;
    added.map_err(refused)?.ok_or_else(|| StoreError::NoSlice { dataset: tables.dataset.name.clone(), slice })
}

/// Adds the columns of these chunks to the tables that lack them.
pub(crate) async fn make_columns(tables: &DatasetTables, layout: &RowLayout, chunks: &[Chunk]) -> Result<()> {
    for (slice, columns) in layout.missing_columns(chunks)? {
        let call = quorum_call(&tables.session);
        let found =
            if_table_exists(tables, slice, &call, || layout.columns_of(tables, slice, true)).await.map_err(refused)?;
        let Some(found) = found else {
            return Err(StoreError::NoSlice { dataset: tables.dataset.name.clone(), slice });
        };
        if found < columns {
            add_columns(tables, layout, slice).await?;
        }
        // One node knows the columns; the others may not have received the change yet.
        tables.session.agree_on_schema().await.map_err(refused)?;
        layout.agree(slice, columns);
    }
    Ok(())
}

/// Runs a request on a slice's table; `None` if the slice was dropped or never created. A node that was down may report an
/// existing table as missing: the registry decides, and the request is retried.
pub(crate) async fn if_table_exists<T, F: Future<Output = std::result::Result<T, CqlError>>>(
    tables: &DatasetTables,
    slice: SliceId,
    call: &Call,
    read: impl Fn() -> F,
) -> std::result::Result<Option<T>, CqlError> {
    let deadline = Instant::now() + call.timeout;
    loop {
        let reason = match read().await {
            Err(CqlError::NoTable { reason }) => reason,
            Err(error) if tables.lacks_column(&error) && Instant::now() < deadline => {
                if let TableLayout::Rows(layout) = &tables.layout {
                    layout.forget();
                }
                tokio::time::sleep(TABLE_PAUSE).await;
                continue;
            }
            result => return result.map(Some),
        };
        if !has_table(&tables.session, &tables.dataset.name, slice).await? {
            return Ok(None);
        }
        if Instant::now() > deadline {
            return Err(unknown_table(&reason, "slice"));
        }
        tokio::time::sleep(TABLE_PAUSE).await;
    }
}

async fn make_slice(tables: &DatasetTables, slice: SliceId) -> std::result::Result<(), CqlError> {
    let (session, dataset) = (&tables.session, &tables.dataset.name);
    let settings = session.settings();
    let keyspace = &settings.keyspace;
    let table = tables.table(slice);
    // A former lease holder that was suspended may run this at the same time: both then create the same table.
    let own = names::table_id(&format!("{}.{table}.{}", keyspace, unique(session)));
    let cql = format!("INSERT INTO {keyspace}.{SLICES} (dataset, slice, table_id) VALUES (?, ?, ?) IF NOT EXISTS");
    let claim = prepared(session, &cql, false).await?;
    let claimed = session.execute_retrying(&claim, (dataset.as_str(), slice.0, &own), &quorum_call(session)).await;
    let known = entry(session, dataset, slice, &quorum_call(session)).await?.and_then(|entry| entry.table_id);
    // The entry decides, whatever the claim returned: its answer may be lost, or another client's claim was first.
    let id = match (known, claimed) {
        (Some(id), _) => takes_table_ids(session).await?.then_some(id),
        // With an id other than the registry's, some nodes would see a second table.
        (None, Err(error)) => return Err(error),
        (None, Ok(_)) => return Err(malformed("the registry lacks a slice that was just added")),
    };
    let (columns, records) = match &tables.layout {
        TableLayout::Chunks { cells } => (names::chunk_columns(*cells).to_owned(), false),
        TableLayout::Rows(layout) => (layout.table_columns()?, true),
    };
    let cql = names::create_slice(keyspace, &table, id.as_deref(), &columns, records, &settings.table);
    // The slice becomes ready only after `change_schema` has returned: then a majority of the nodes knows the table.
    session.change_schema(&cql).await?;
    let cql =
        // The condition keeps the update from creating an entry that another client has deleted: an UPDATE inserts.
        format!("UPDATE {keyspace}.{SLICES} SET ready = true WHERE dataset = ? AND slice = ? IF table_id != null");
    let ready = prepared(session, &cql, false).await?;
    session.execute_retrying(&ready, (dataset.as_str(), slice.0), &quorum_call(session)).await?;
    Ok(())
}

/// The registry's id of a slice's table. A slice that is dropped and created again gets a new id.
pub(crate) async fn table_id(session: &Session, dataset: &DatasetName, slice: SliceId) -> Result<Option<String>> {
    let found = entry(session, dataset, slice, &quorum_call(session)).await.map_err(refused)?;
    Ok(found.map(|entry| entry.table_id.unwrap_or_default()))
}

/// Drops a slice's table under the schema lease, if it still has this id. If another client has dropped the slice and created it
/// again, the new table is kept.
pub(crate) async fn drop_slice(tables: &DatasetTables, slice: SliceId, known: &str) -> Result<()> {
    let (session, dataset) = (&tables.session, &tables.dataset.name);
    let Some(lease) = Lease::acquire(session, &SliceGoal::Gone(tables, slice)).await? else { return Ok(()) };
    let since = Instant::now();
    let keyspace = &session.settings().keyspace;
    let table = tables.table(slice);
    let drop = async {
        if entry(session, dataset, slice, &quorum_call(session))
            .await?
            .is_none_or(|entry| entry.table_id.unwrap_or_default() != known)
        {
            return Ok(());
        }
        // First hide the slice from new requests, then drop the table, and delete the entry last, so that a repeated call can resume.
        let cql = format!("UPDATE {keyspace}.{SLICES} SET ready = false WHERE dataset = ? AND slice = ? IF EXISTS");
        let hide = prepared(session, &cql, false).await?;
        session.execute_retrying(&hide, (dataset.as_str(), slice.0), &quorum_call(session)).await?;
        if since.elapsed() > Duration::from_secs(LEASE_S as u64 / 2) {
            // The lease may expire before the drop, and another client may then create the table again.
            let reason = format!("dropping {table} took too long to begin: repeat it");
            return Err(CqlError::Overloaded { reason });
        }
        session.change_schema(&format!("DROP TABLE IF EXISTS {keyspace}.{table}")).await?;
        let cql = format!("DELETE FROM {keyspace}.{SLICES} WHERE dataset = ? AND slice = ? IF EXISTS");
        let forget = prepared(session, &cql, false).await?;
        session.execute_retrying(&forget, (dataset.as_str(), slice.0), &quorum_call(session)).await?;
        // The space ends the name, so that statements of tables whose names begin with this one are kept.
        session.forget(&format!("{keyspace}.{table} "));
        Ok(())
    };
    let dropped = drop.await;
    lease.release(session).await;
    dropped.map_err(|error| of_write(error, true))
}

fn unique(session: &Session) -> String {
    use std::sync::atomic::{AtomicU64, Ordering};
    static COUNT: AtomicU64 = AtomicU64::new(0);
    format!("{}-{}", session.driver().session_id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// The state of a slice for which a client takes the schema lease.
enum SliceGoal<'a> {
    /// The slice is ready for use.
    Ready(&'a DatasetTables, SliceId),
    /// The slice does not exist.
    Gone(&'a DatasetTables, SliceId),
    /// The slice's table has all columns of the dataset.
    Columns(&'a DatasetTables, &'a RowLayout, SliceId),
}

impl SliceGoal<'_> {
    async fn is_reached(&self) -> std::result::Result<bool, CqlError> {
        match self {
            Self::Ready(tables, slice) => has_state(&tables.session, &tables.dataset.name, *slice, true).await,
            Self::Gone(tables, slice) => has_state(&tables.session, &tables.dataset.name, *slice, false).await,
            Self::Columns(tables, layout, slice) => match layout.addition(tables, *slice).await {
                // A node that was down does not know the table yet.
                Err(CqlError::NoTable { .. }) => Ok(false),
                missing => Ok(missing?.is_none()),
            },
        }
    }

    /// The goal as the lease record names it, for other clients.
    fn text(&self) -> String {
        match self {
            Self::Ready(tables, slice) => format!("ready {} {}", tables.dataset.name, slice.0),
            Self::Gone(tables, slice) => format!("gone {} {}", tables.dataset.name, slice.0),
            Self::Columns(tables, _, slice) => format!("columns {} {}", tables.dataset.name, slice.0),
        }
    }
}

/// Whether the registry lists a slice as ready (`ready`), or does not list it at all (not `ready`).
async fn has_state(
    session: &Session,
    dataset: &DatasetName,
    slice: SliceId,
    ready: bool,
) -> std::result::Result<bool, CqlError> {
    let entry = entry(session, dataset, slice, &quorum_call(session)).await?;
    Ok(if ready { entry.is_some_and(|entry| entry.ready) } else { entry.is_none() })
}

/// Whether a lease has no holder any more because its goal is reached. An attempt to take it whose answer was lost may take effect
/// after the client has moved on.
async fn is_left_over(session: &Session, holder: &str) -> std::result::Result<bool, CqlError> {
    let words: Vec<&str> = holder.split(' ').collect();
    // The goal `columns` cannot be checked here: the record does not name the columns. Such a lease expires.
    let [_, goal @ ("ready" | "gone"), dataset, slice] = words[..] else { return Ok(false) };
    match (DatasetName::new(dataset), slice.parse()) {
        (Ok(dataset), Ok(slice)) => has_state(session, &dataset, SliceId(slice), goal == "ready").await,
        _ => Ok(false),
    }
}

/// The schema lease: the right to change the schema, which one client holds at a time.
struct Lease {
    holder: String,
}

impl Lease {
    /// Waits for the lease; `None` if the goal is reached while waiting.
    async fn acquire(session: &Session, goal: &SliceGoal<'_>) -> Result<Option<Self>> {
        let keyspace = &session.settings().keyspace;
        let holder = format!("{} {}", unique(session), goal.text());
        // A holder that has died keeps the lease for `LEASE_S`, so waiters need more time than that.
        let wait = session.settings().timeout.max(Duration::from_secs(2 * LEASE_S as u64));
        let deadline = Instant::now() + wait;
        let mut pause = Duration::from_millis(25);
        let mut left_over = None;
        loop {
            if goal.is_reached().await.map_err(refused)? {
                return Ok(None);
            }
            // After a passing failure the lease may be taken nevertheless: the record names its holder.
            if let Err(error) = take(session, &holder, left_over.as_deref()).await
                && !error.passes()
            {
                return Err(refused(error));
            }
            match holder_of(session).await.map_err(refused)? {
                Some(found) if found == holder => return Self { holder }.unless_reached(session, goal).await,
                Some(found) if is_left_over(session, &found).await.map_err(refused)? => left_over = Some(found),
                _ => left_over = None,
            }
            if Instant::now() > deadline {
                let place = format!("the schema of keyspace {keyspace}");
                return Err(StoreError::Busy { path: place, waited_s: wait.as_secs() });
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(500));
        }
    }

    /// Keeps the lease, or releases it if another client reached the goal first.
    async fn unless_reached(self, session: &Session, goal: &SliceGoal<'_>) -> Result<Option<Self>> {
        match goal.is_reached().await {
            Ok(false) => Ok(Some(self)),
            reached => {
                self.release(session).await;
                reached.map(|_| None).map_err(refused)
            }
        }
    }

    async fn release(self, session: &Session) {
        let keyspace = &session.settings().keyspace;
        let cql = format!("DELETE FROM {keyspace}.{LEASES} WHERE name = ? IF holder = ?");
        let Ok(delete) = prepared(session, &cql, false).await else { return };
        // A lease that is not released expires.
        let _ = session.execute_retrying(&delete, (LEASE_NAME, &self.holder), &quorum_call(session)).await;
    }
}

/// Tries to take the lease if it is free or still held by `left_over`. The caller reads the record to learn who holds
/// it.
async fn take(session: &Session, holder: &str, left_over: Option<&str>) -> std::result::Result<(), CqlError> {
    let keyspace = &session.settings().keyspace;
    let call = quorum_call(session);
    let result = match left_over {
        None => {
            let cql = format!(
                "INSERT INTO {keyspace}.{LEASES} (name, holder) VALUES (?, ?) IF NOT EXISTS USING TTL {LEASE_S}"
            );
            session.execute_retrying(&prepared(session, &cql, false).await?, (LEASE_NAME, holder), &call).await
        }
        Some(left_over) => {
            let cql =
                format!("UPDATE {keyspace}.{LEASES} USING TTL {LEASE_S} SET holder = ? WHERE name = ? IF holder = ?");
            session
                .execute_retrying(&prepared(session, &cql, false).await?, (holder, LEASE_NAME, left_over), &call)
                .await
        }
    };
    result.map(|_| ())
}

async fn holder_of(session: &Session) -> std::result::Result<Option<String>, CqlError> {
    let cql = format!("SELECT holder FROM {}.{LEASES} WHERE name = ?", session.settings().keyspace);
    let statement = prepared(session, &cql, true).await?;
    let call = Call { consistency: session.serial_read(), ..quorum_call(session) };
    let rows = session.execute(&statement, (LEASE_NAME,), &call).await?.into_rows_result().map_err(malformed)?;
    let row = rows.maybe_first_row::<(Option<String>,)>().map_err(malformed)?;
    Ok(row.and_then(|(holder,)| holder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_buckets_that_no_archive_has_is_refused() {
        for (text, count) in [("1", Some(1)), ("256", Some(256)), ("65536", Some(65_536))] {
            assert_eq!(bucket_count(text), count);
        }
        for text in ["", "0", "-1", "65537", "4294967295", "4294967296", "many"] {
            assert_eq!(bucket_count(text), None, "{text}");
        }
    }
}
