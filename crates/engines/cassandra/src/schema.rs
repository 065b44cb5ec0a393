//! Making and finding an archive: its keyspace, the tables it always has, and the slices' tables, which one schema_mutex at a
//! time makes and drops.

use std::collections::BTreeSet;
use std::future::Future;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use chronotile_cql::{Call, CqlError, Replication, Session};
use chronotile_store::{Chunk, Result, StoreError};
use chronotile_types::{DatasetName, SliceId};

use crate::failure::{malformed, of_write, refused};
use crate::form::rows::RowForm;
use crate::form::{Form, Home};
use crate::names::{self, LEASES, META, SLICES};
use crate::requests::{TABLE_PAUSE, lagging, prepared, quorum_call, seen};

/// Format of the tables; see `docs/format.md`.
const FORMAT: u32 = 1;
/// Seconds after which a schema_mutex that went silent has lost its lease.
const LEASE_S: i32 = 60;
const LEASE_NAME: &str = "schema";
/// Copies in each data centre where nobody says and there are nodes enough.
const COPIES: usize = 3;

/// What an archive says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meta {
    pub catalog_buckets: u32,
}

/// Finds the archive, or makes it.
pub(crate) async fn open(session: &Session, create: bool) -> Result<Meta> {
    let keyspace = &session.settings().keyspace;
    let place = || PathBuf::from(format!("keyspace {keyspace} of {}", session.settings().contact_points.join(",")));
    if let Some(meta) = find(session).await? {
        return Ok(meta);
    }
    let tables = tables(session).await.map_err(refused)?;
    let strange = tables.as_ref().is_some_and(|found| {
        let ours = names::create_fixed(keyspace, false);
        found.iter().any(|table| ours.iter().all(|(name, _)| name != table))
    });
    if strange {
        let reason = "it holds tables of something else: name another keyspace".to_owned();
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
    find(session).await?.ok_or_else(|| refused(malformed("the archive's own record is missing after it was made")))
}

/// What the archive says of itself, where there is one: where any node knows of it, since others may have been away.
async fn find(session: &Session) -> Result<Option<Meta>> {
    match session.prepare(&own_record_cql(session), true).await {
        Err(CqlError::NoTable { .. }) => return Ok(None),
        known => known.map_err(refused)?,
    };
    let keyspace = &session.settings().keyspace;
    let place = || PathBuf::from(format!("keyspace {keyspace}"));
    let Some(format) = own_record(session, "format").await.map_err(refused)? else { return Ok(None) };
    let number = |text: &str| text.parse::<u32>().ok();
    let unreadable =
        |name: &str| StoreError::NotAnArchive { path: place(), reason: format!("its record {name:?} is not a number") };
    let found = number(&format).ok_or_else(|| unreadable("format"))?;
    if found > FORMAT {
        return Err(StoreError::NewerFormat { path: place(), found, known: FORMAT });
    }
    let buckets = own_record(session, "catalog_buckets").await.map_err(refused)?;
    let catalog_buckets = buckets.as_deref().and_then(number).ok_or_else(|| unreadable("catalog_buckets"))?;
    Ok(Some(Meta { catalog_buckets }))
}

fn own_record_cql(session: &Session) -> String {
    format!("SELECT value FROM {}.{META} WHERE name = ?", session.settings().keyspace)
}

/// What the archive says of itself under a name.
async fn own_record(session: &Session, name: &str) -> std::result::Result<Option<String>, CqlError> {
    let statement = prepared(session, &own_record_cql(session), true).await?;
    let call = seen(session, session.settings().read_consistency);
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

/// Changes how many copies each data centre keeps. Data that stand already reach new copies by repair only.
pub(crate) async fn set_replication(session: &Session, wanted: &Replication) -> Result<()> {
    let replication = replication(session, Some(wanted))?;
    let cql = format!("ALTER KEYSPACE {} WITH replication = {replication}", session.settings().keyspace);
    session.change_schema(&cql).await.map_err(|error| of_write(error, false))
}

/// The replication map in CQL, checked against the data centres there are.
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
    // Others may be making the same at this moment: what one node knows the next may not know yet.
    session.agree_on_schema().await.map_err(refused)?;
    for (name, cql) in names::create_fixed(keyspace, with_ids) {
        if tables(session).await.map_err(refused)?.is_none_or(|known| !known.contains(name)) {
            create_table(session, &cql).await?;
        }
    }
    session.agree_on_schema().await.map_err(refused)
}

/// Makes a table, again where the node that is asked does not know the keyspace yet, which somebody else has just made.
async fn create_table(session: &Session, cql: &str) -> Result<()> {
    const TRIES: usize = 40;
    const PAUSE: std::time::Duration = std::time::Duration::from_millis(250);
    for _ in 0..TRIES {
        match session.change_schema(cql).await {
            Err(CqlError::NoTable { .. }) => tokio::time::sleep(PAUSE).await,
            changed => return changed.map_err(refused),
        }
        session.agree_on_schema().await.map_err(refused)?;
    }
    session.change_schema(cql).await.map_err(refused)
}

/// Whether a table's id can be given, so that tables made twice at once are one. ScyllaDB orders schema changes itself.
async fn takes_table_ids(session: &Session) -> std::result::Result<bool, CqlError> {
    let cql =
        "SELECT table_name FROM system_schema.tables WHERE keyspace_name = 'system' AND table_name = 'scylla_local'";
    let statement = session.prepare(cql, true).await?;
    let call = Call { consistency: chronotile_cql::scylla::statement::Consistency::One, ..quorum_call(session) };
    let found = session.execute(&statement, (), &call).await?.into_rows_result().map_err(malformed)?;
    Ok(found.rows_num() == 0)
}

/// Records what the archive is, unless somebody was first.
async fn claim_meta(session: &Session) -> Result<()> {
    let settings = session.settings();
    let cql = format!("INSERT INTO {}.{META} (name, value) VALUES (?, ?) IF NOT EXISTS", settings.keyspace);
    let statement = prepared(session, &cql, false).await.map_err(refused)?;
    // The format comes last: whoever finds it finds the rest.
    for (name, value) in [("catalog_buckets", settings.catalog_buckets), ("format", FORMAT)] {
        let claim = session.insist(&statement, (name, value.to_string()), &quorum_call(session)).await;
        // Whether it landed is seen by reading it.
        claim.map(|_| ()).or_else(|error| if error.passes() { Ok(()) } else { Err(refused(error)) })?;
    }
    Ok(())
}

/// A slice as the registry has it.
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
    Ok(row.map(|(table_id, ready)| Entry { table_id, ready: ready.unwrap_or(false) }))
}

/// Whether a slice can be used.
pub(crate) async fn is_ready(session: &Session, dataset: &DatasetName, slice: SliceId, call: &Call) -> Result<bool> {
    Ok(entry(session, dataset, slice, call).await.map_err(refused)?.is_some_and(|entry| entry.ready))
}

/// Whether a slice's table has been made and not been given up, whatever a single node knows of it.
async fn has_table(session: &Session, dataset: &DatasetName, slice: SliceId) -> std::result::Result<bool, CqlError> {
    Ok(entry(session, dataset, slice, &quorum_call(session)).await?.is_some_and(|entry| entry.ready))
}

/// The slices that can be used, ascending.
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

/// Makes a slice's table under the schema_mutex's lease; returns once every node that is up knows it.
pub(crate) async fn create_slice(home: &Home, slice: SliceId) -> Result<()> {
    let session = &home.session;
    let Some(lease) = Lease::acquire(session, &Goal::Ready(home, slice)).await? else { return Ok(()) };
    let made = make_slice(home, slice).await;
    lease.release(session).await;
    made.map_err(refused)
}

/// Gives the table of a slice the columns it lacks, under the schema_mutex's lease.
async fn add_columns(home: &Home, form: &RowForm, slice: SliceId) -> Result<()> {
    let session = &home.session;
    let Some(lease) = Lease::acquire(session, &Goal::Columns(home, form, slice)).await? else { return Ok(()) };
    let add = || async {
        let Some(cql) = form.addition(home, slice).await? else { return Ok(()) };
        match session.change_schema(&cql).await {
            // Where an earlier try of this had landed the columns are there.
            Err(error) if form.addition(home, slice).await?.is_some() => Err(error),
            _ => form.columns_of(home, slice, true).await.map(drop),
        }
    };
    let added = unless_gone(home, slice, &quorum_call(session), add).await;
    lease.release(session).await;
    added.map_err(refused)?.ok_or_else(|| StoreError::NoSlice { dataset: home.dataset.name.clone(), slice })
}

/// Sees to it that the tables of some chunks have the columns that these have.
pub(crate) async fn make_columns(home: &Home, form: &RowForm, chunks: &[Chunk]) -> Result<()> {
    for (slice, columns) in form.missing_columns(chunks)? {
        let call = quorum_call(&home.session);
        let found = unless_gone(home, slice, &call, || form.columns_of(home, slice, true)).await.map_err(refused)?;
        let Some(found) = found else {
            return Err(StoreError::NoSlice { dataset: home.dataset.name.clone(), slice });
        };
        if found < columns {
            add_columns(home, form, slice).await?;
        }
        // Columns that one node knows of may be under way to the others.
        home.session.agree_on_schema().await.map_err(refused)?;
        form.agree(slice, columns);
    }
    Ok(())
}

/// Uses a slice's table; `None` where the slice was dropped, or never made. A node that was away may say that there is
/// no such table although there is: that is no reason to return nothing.
pub(crate) async fn unless_gone<T, F: Future<Output = std::result::Result<T, CqlError>>>(
    home: &Home,
    slice: SliceId,
    call: &Call,
    read: impl Fn() -> F,
) -> std::result::Result<Option<T>, CqlError> {
    let deadline = Instant::now() + call.timeout;
    loop {
        let reason = match read().await {
            Err(CqlError::NoTable { reason }) => reason,
            Err(error) if home.lags(&error) && Instant::now() < deadline => {
                if let Form::Rows(form) = &home.form {
                    form.forget();
                }
                tokio::time::sleep(TABLE_PAUSE).await;
                continue;
            }
            result => return result.map(Some),
        };
        if !has_table(&home.session, &home.dataset.name, slice).await? {
            return Ok(None);
        }
        if Instant::now() > deadline {
            return Err(lagging(&reason, "slice"));
        }
        tokio::time::sleep(TABLE_PAUSE).await;
    }
}

async fn make_slice(home: &Home, slice: SliceId) -> std::result::Result<(), CqlError> {
    let (session, dataset) = (&home.session, &home.dataset.name);
    let settings = session.settings();
    let keyspace = &settings.keyspace;
    let table = home.table(slice);
    // A schema_mutex that lost its lease while it slept may do this at the same time: both then make the same table.
    let own = names::table_id(&format!("{}.{table}.{}", keyspace, unique(session)));
    let cql = format!("INSERT INTO {keyspace}.{SLICES} (dataset, slice, table_id) VALUES (?, ?, ?) IF NOT EXISTS");
    let claim = prepared(session, &cql, false).await?;
    let claimed = session.insist(&claim, (dataset.as_str(), slice.0, &own), &quorum_call(session)).await;
    let known = entry(session, dataset, slice, &quorum_call(session)).await?.and_then(|entry| entry.table_id);
    let id = match (known, claimed) {
        (Some(id), _) => takes_table_ids(session).await?.then_some(id),
        // A table of another id than the registry's would be a second one for some nodes.
        (None, Err(error)) => return Err(error),
        (None, Ok(_)) => return Err(malformed("the registry does not have a slice that was just entered")),
    };
    let (columns, records) = match &home.form {
        Form::Chunks { cells } => (names::chunk_columns(*cells).to_owned(), false),
        Form::Rows(form) => (form.table_columns()?, true),
    };
    let cql = names::create_slice(keyspace, &table, id.as_deref(), &columns, records, &settings.table);
    session.change_schema(&cql).await?;
    let cql =
        format!("UPDATE {keyspace}.{SLICES} SET ready = true WHERE dataset = ? AND slice = ? IF table_id != null");
    let ready = prepared(session, &cql, false).await?;
    session.insist(&ready, (dataset.as_str(), slice.0), &quorum_call(session)).await?;
    Ok(())
}

/// The id of a slice's table, as the registry has it: each time a slice is made it has another.
pub(crate) async fn table_id(session: &Session, dataset: &DatasetName, slice: SliceId) -> Result<Option<String>> {
    let found = entry(session, dataset, slice, &quorum_call(session)).await.map_err(refused)?;
    Ok(found.map(|entry| entry.table_id.unwrap_or_default()))
}

/// Drops a slice's table under the schema_mutex's lease, if it is still the one of this id: of a slice that was dropped by somebody
/// else and made again meanwhile the new table stays.
pub(crate) async fn drop_slice(home: &Home, slice: SliceId, known: &str) -> Result<()> {
    let (session, dataset) = (&home.session, &home.dataset.name);
    let Some(lease) = Lease::acquire(session, &Goal::Gone(home, slice)).await? else { return Ok(()) };
    let since = Instant::now();
    let keyspace = &session.settings().keyspace;
    let table = home.table(slice);
    let drop = async {
        if entry(session, dataset, slice, &quorum_call(session))
            .await?
            .is_none_or(|entry| entry.table_id.unwrap_or_default() != known)
        {
            return Ok(());
        }
        // First no new work finds it, then it goes; the registry forgets it last, so that a repetition goes on.
        let cql = format!("UPDATE {keyspace}.{SLICES} SET ready = false WHERE dataset = ? AND slice = ? IF EXISTS");
        let hide = prepared(session, &cql, false).await?;
        session.insist(&hide, (dataset.as_str(), slice.0), &quorum_call(session)).await?;
        if since.elapsed() > Duration::from_secs(LEASE_S as u64 / 2) {
            // The lease may end before the table goes, and then somebody else may make it again.
            let reason = format!("dropping {table} took too long to begin: repeat it");
            return Err(CqlError::Overloaded { reason });
        }
        session.change_schema(&format!("DROP TABLE IF EXISTS {keyspace}.{table}")).await?;
        let cql = format!("DELETE FROM {keyspace}.{SLICES} WHERE dataset = ? AND slice = ? IF EXISTS");
        let forget = prepared(session, &cql, false).await?;
        session.insist(&forget, (dataset.as_str(), slice.0), &quorum_call(session)).await?;
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

/// What a schema_mutex wants of a slice.
enum Goal<'a> {
    /// That it can be used.
    Ready(&'a Home, SliceId),
    /// That it is gone.
    Gone(&'a Home, SliceId),
    /// That its table has all columns of the dataset.
    Columns(&'a Home, &'a RowForm, SliceId),
}

impl Goal<'_> {
    async fn is_reached(&self) -> std::result::Result<bool, CqlError> {
        match self {
            Self::Ready(home, slice) => is_there(&home.session, &home.dataset.name, *slice, true).await,
            Self::Gone(home, slice) => is_there(&home.session, &home.dataset.name, *slice, false).await,
            Self::Columns(home, form, slice) => match form.addition(home, *slice).await {
                // A node that was away does not know the table yet.
                Err(CqlError::NoTable { .. }) => Ok(false),
                missing => Ok(missing?.is_none()),
            },
        }
    }

    /// What others read in a lease of this goal.
    fn text(&self) -> String {
        match self {
            Self::Ready(home, slice) => format!("ready {} {}", home.dataset.name, slice.0),
            Self::Gone(home, slice) => format!("gone {} {}", home.dataset.name, slice.0),
            Self::Columns(home, _, slice) => format!("columns {} {}", home.dataset.name, slice.0),
        }
    }
}

/// Whether the registry has a slice as usable, or, unless that is `wanted`, has none.
async fn is_there(
    session: &Session,
    dataset: &DatasetName,
    slice: SliceId,
    wanted: bool,
) -> std::result::Result<bool, CqlError> {
    let entry = entry(session, dataset, slice, &quorum_call(session)).await?;
    Ok(if wanted { entry.is_some_and(|entry| entry.ready) } else { entry.is_none() })
}

/// Whether a lease is nobody's although it stands: what it was taken for is reached. A try for it whose answer was lost may
/// land when its schema_mutex has long gone on.
async fn is_left_over(session: &Session, holder: &str) -> std::result::Result<bool, CqlError> {
    let words: Vec<&str> = holder.split(' ').collect();
    let [_, goal @ ("ready" | "gone"), dataset, slice] = words[..] else { return Ok(false) };
    match (DatasetName::new(dataset), slice.parse()) {
        (Ok(dataset), Ok(slice)) => is_there(session, &dataset, SliceId(slice), goal == "ready").await,
        _ => Ok(false),
    }
}

/// The right to change the schema, held by one schema_mutex at a time.
struct Lease {
    holder: String,
}

impl Lease {
    /// Waits for the lease; `None` where the goal was reached meanwhile.
    async fn acquire(session: &Session, goal: &Goal<'_>) -> Result<Option<Self>> {
        let keyspace = &session.settings().keyspace;
        let holder = format!("{} {}", unique(session), goal.text());
        let wait = session.settings().timeout.max(Duration::from_secs(2 * LEASE_S as u64));
        let deadline = Instant::now() + wait;
        let mut pause = Duration::from_millis(25);
        let mut left_over = None;
        loop {
            if goal.is_reached().await.map_err(refused)? {
                return Ok(None);
            }
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
                return Err(StoreError::Busy { place, waited_s: wait.as_secs() });
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(500));
        }
    }

    /// Itself, unless somebody else reached the goal before it was taken.
    async fn unless_reached(self, session: &Session, goal: &Goal<'_>) -> Result<Option<Self>> {
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
        // What is not given back ends by itself.
        let _ = session.insist(&delete, (LEASE_NAME, &self.holder), &quorum_call(session)).await;
    }
}

/// Tries to take the lease: where there is none, or from `left_over`. Who holds it then is seen by looking.
async fn take(session: &Session, holder: &str, left_over: Option<&str>) -> std::result::Result<(), CqlError> {
    let keyspace = &session.settings().keyspace;
    let call = quorum_call(session);
    let result = match left_over {
        None => {
            let cql = format!(
                "INSERT INTO {keyspace}.{LEASES} (name, holder) VALUES (?, ?) IF NOT EXISTS USING TTL {LEASE_S}"
            );
            session.insist(&prepared(session, &cql, false).await?, (LEASE_NAME, holder), &call).await
        }
        Some(left_over) => {
            let cql =
                format!("UPDATE {keyspace}.{LEASES} USING TTL {LEASE_S} SET holder = ? WHERE name = ? IF holder = ?");
            session.insist(&prepared(session, &cql, false).await?, (holder, LEASE_NAME, left_over), &call).await
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
