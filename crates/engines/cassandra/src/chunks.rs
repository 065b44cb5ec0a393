//! Writing and removing chunks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use chronotile_cql::scylla::statement::batch::{Batch, BatchType};
use chronotile_cql::scylla::value::CqlValue;
use chronotile_cql::{Applied, Call, CqlError};
use chronotile_store::{Chunk, ChunkKey, StoreError};
use chronotile_types::{ChunkId, SliceId};
use futures::stream::{self, StreamExt, TryStreamExt};

use crate::failure::{malformed, of_write, refused};
use crate::layout::{DatasetTables, Insert, Names, Values};
use crate::requests::{applied, quorum_call, until};
use crate::schema::if_table_exists;

/// Partitions that one commit writes concurrently; the session limits all commits together.
const WRITE_AT_ONCE: usize = 64;
/// Maximum bytes and chunks in one request to a partition.
const REQUEST_BYTES: usize = 256 << 10;
const REQUEST_CHUNKS: usize = 64;
/// Chunks named in one look-up.
pub(crate) const LOOKUP_CHUNKS: usize = 64;
/// Tiles of one partition that are looked up concurrently.
const LOOKUPS_AT_ONCE: usize = 16;
/// Maximum bytes of chunks in one transaction; the excess is written before it.
const TRANSACTION_BYTES: usize = 4 << 20;
/// Clock skew between clients that a removal tolerates.
const CLOCK_SKEW_MAX: Duration = Duration::from_secs(10);

/// One partition of a slice.
pub(crate) type Partition = (SliceId, i64);

fn partition(tables: &DatasetTables, key: &ChunkKey) -> Partition {
    (key.slice, tables.partition(key.tile.cell))
}

/// The changes of a commit to one partition, conditional on the presence of every chunk to remove.
#[derive(Debug, Default)]
pub(crate) struct Swap {
    pub put: Vec<Chunk>,
    pub remove: Vec<ChunkKey>,
}

/// The conditional changes of a commit, by partition. Leaves in `put` the chunks to write without a condition.
pub(crate) fn swaps(tables: &DatasetTables, put: &mut Vec<Chunk>, remove: &[ChunkKey]) -> BTreeMap<Partition, Swap> {
    let mut swaps: BTreeMap<Partition, Swap> = BTreeMap::new();
    // A chunk may be named twice.
    let distinct: BTreeSet<&ChunkKey> = remove.iter().collect();
    for key in distinct {
        swaps.entry(partition(tables, key)).or_default().remove.push(*key);
    }
    let mut size: BTreeMap<Partition, usize> = BTreeMap::new();
    put.retain(|chunk| {
        let Some(swap) = swaps.get_mut(&partition(tables, &chunk.key)) else { return true };
        let bytes = size.entry(partition(tables, &chunk.key)).or_default();
        *bytes += tables.layout.bytes(chunk);
        // A chunk that the commit both puts and removes is written before the transaction, which then removes it.
        // Chunks in excess of the limit need no condition: ids derive from content, and an additional chunk changes no
        // result.
        if swap.remove.contains(&chunk.key) || *bytes > TRANSACTION_BYTES {
            return true;
        }
        swap.put.push(chunk.clone());
        false
    });
    swaps
}

/// Chunks of one partition that are written in one request.
type Bundle = Vec<Chunk>;

fn bundles(tables: &DatasetTables, chunks: Vec<Chunk>) -> Vec<Bundle> {
    let mut by_partition: BTreeMap<Partition, Vec<Chunk>> = BTreeMap::new();
    for chunk in chunks {
        by_partition.entry(partition(tables, &chunk.key)).or_default().push(chunk);
    }
    let mut bundles = Vec::new();
    for chunks in by_partition.into_values() {
        let (mut bundle, mut bytes) = (Vec::new(), 0);
        for chunk in chunks {
            let size = tables.layout.bytes(&chunk);
            if !bundle.is_empty() && (bytes + size > REQUEST_BYTES || bundle.len() == REQUEST_CHUNKS) {
                bundles.push(std::mem::take(&mut bundle));
                bytes = 0;
            }
            bytes += size;
            bundle.push(chunk);
        }
        bundles.push(bundle);
    }
    bundles
}

fn delete_cql(tables: &DatasetTables, slice: SliceId) -> String {
    format!(
        "DELETE FROM {} WHERE {} AND {} = ?",
        tables.qualified_table(slice),
        tables.tile_condition(),
        tables.names().id
    )
}

fn chunk_id(key: &ChunkKey) -> CqlValue {
    CqlValue::Blob(key.id.to_bytes().to_vec())
}

/// The primary key of a chunk's row.
fn chunk_key(tables: &DatasetTables, key: &ChunkKey) -> Vec<Option<CqlValue>> {
    let mut values = tables.tile_values(key.tile);
    values.push(Some(chunk_id(key)));
    values
}

/// The values that bind a look-up of chunks of one tile by id.
pub(crate) fn ids_in_tile(tables: &DatasetTables, keys: &[ChunkKey]) -> Vec<Option<CqlValue>> {
    let mut values = tables.tile_values(keys[0].tile);
    values.push(Some(CqlValue::List(keys.iter().map(chunk_id).collect())));
    values
}

/// Writes chunks, many partitions concurrently.
pub(crate) async fn put(tables: &DatasetTables, chunks: Vec<Chunk>, call: &Call) -> Result<(), CqlError> {
    let requests: Vec<_> = bundles(tables, chunks).into_iter().map(|bundle| put_bundle(tables, bundle, call)).collect();
    stream::iter(requests).buffer_unordered(WRITE_AT_ONCE).try_collect().await
}

async fn put_bundle(tables: &DatasetTables, bundle: Bundle, call: &Call) -> Result<(), CqlError> {
    let slice = bundle[0].key.slice;
    let put = || put_in_table(tables, &bundle, call);
    let reason = "its slice was dropped".to_owned();
    if_table_exists(tables, slice, call, put).await?.ok_or(CqlError::NoTable { reason })
}

async fn put_in_table(tables: &DatasetTables, bundle: &[Chunk], call: &Call) -> Result<(), CqlError> {
    let place = tables.qualified_table(bundle[0].key.slice);
    // All requests have one stamp, so that a removal hides all rows of a chunk or none. They are sent one after the
    // other, because the row that marks a chunk as complete must be stored last.
    let stamp = tables.layout.stamp();
    for request in tables.layout.requests(bundle)? {
        put_at_once(tables, &place, request, stamp, call).await?;
    }
    Ok(())
}

async fn put_at_once(
    tables: &DatasetTables,
    place: &str,
    mut request: Vec<Insert>,
    stamp: Option<i64>,
    call: &Call,
) -> Result<(), CqlError> {
    if request.len() == 1 {
        let insert = request.remove(0);
        let mut statement = tables.session.prepare(&insert.cql(place), true).await?;
        statement.set_timestamp(stamp);
        tables.session.execute(&statement, insert.values, call).await?;
        return Ok(());
    }
    // All rows are in one partition, where a batch is a single write and needs no batch log.
    let mut batch = Batch::new(BatchType::Unlogged);
    batch.set_is_idempotent(true);
    batch.set_timestamp(stamp);
    append(tables, place, &request, &mut batch).await?;
    let values: Vec<Values> = request.into_iter().map(|insert| insert.values).collect();
    tables.session.batch(&batch, &values[..], call).await?;
    Ok(())
}

/// Appends the statements of inserts to a batch.
async fn append(tables: &DatasetTables, place: &str, inserts: &[Insert], batch: &mut Batch) -> Result<(), CqlError> {
    for alike in inserts.chunk_by(Insert::has_same_statement) {
        let statement = tables.session.prepare(&alike[0].cql(place), true).await?;
        alike.iter().for_each(|_| batch.append_statement(statement.clone()));
    }
    Ok(())
}

/// Removes chunks, present or not.
pub(crate) async fn remove(tables: &DatasetTables, keys: &[ChunkKey], call: &Call) -> Result<(), CqlError> {
    let by_tile: Vec<Vec<ChunkKey>> = {
        let mut sorted = keys.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        sorted.chunk_by(|a, b| a.slice == b.slice && a.tile == b.tile).map(<[ChunkKey]>::to_vec).collect()
    };
    let requests: Vec<_> = by_tile.iter().map(|keys| remove_from_tile(tables, keys, call)).collect();
    stream::iter(requests).buffer_unordered(WRITE_AT_ONCE).try_collect().await
}

/// Removes chunks of one tile, including those written by a client whose clock is ahead of ours.
async fn remove_from_tile(tables: &DatasetTables, keys: &[ChunkKey], call: &Call) -> Result<(), CqlError> {
    // If the table was dropped, its chunks are removed already.
    let Some(state) = if_table_exists(tables, keys[0].slice, call, || read_partition_state(tables, keys)).await? else {
        return Ok(());
    };
    // The write times were read first: a deletion hides them, and `remove_recent` needs them.
    for key in keys {
        remove_one(tables, key, None, call).await?;
    }
    remove_recent(tables, &state, call).await
}

/// Removes a chunk. `at_us` is the write time of the deletion in microseconds since 1970; by default now.
async fn remove_one(tables: &DatasetTables, key: &ChunkKey, at_us: Option<i64>, call: &Call) -> Result<(), CqlError> {
    let remove = || async {
        let mut delete = tables.session.prepare(&delete_cql(tables, key.slice), true).await?;
        delete.set_timestamp(at_us);
        tables.session.execute(&delete, chunk_key(tables, key), call).await
    };
    // If the table was dropped, its chunks are removed already.
    if_table_exists(tables, key.slice, call, remove).await.map(drop)
}

/// The epoch of a partition and which of the looked-up chunks are present.
#[derive(Default)]
pub(crate) struct PartitionState {
    epoch: Option<i64>,
    /// The chunks that are present, each with its write time in microseconds since 1970.
    present: BTreeMap<ChunkKey, i64>,
}

impl PartitionState {
    /// The first chunk to remove that is not present.
    pub(crate) fn missing<'a>(&self, swap: &'a Swap) -> Option<&'a ChunkKey> {
        swap.remove.iter().find(|key| !self.present.contains_key(key))
    }
}

/// Reads the epoch of a partition and which of these chunks are present.
pub(crate) async fn read_partition_state(
    tables: &DatasetTables,
    keys: &[ChunkKey],
) -> Result<PartitionState, CqlError> {
    // All callers pass sorted keys, so those of one tile are neighbours.
    let requests = keys.chunk_by(|a, b| a.tile == b.tile).flat_map(|same_tile| same_tile.chunks(LOOKUP_CHUNKS));
    let looks: Vec<_> = requests.map(|some| read_tile_state(tables, some)).collect();
    let rows: Vec<Vec<ObservedChunk>> = stream::iter(looks).buffer_unordered(LOOKUPS_AT_ONCE).try_collect().await?;
    let mut state = PartitionState { epoch: None, present: BTreeMap::new() };
    let mut seen_epochs = BTreeSet::new();
    for (key, epoch, written_us) in rows.into_iter().flatten() {
        seen_epochs.insert(epoch);
        state.present.insert(key, written_us);
    }
    // The partition may change between two look-ups. The oldest epoch then makes the transaction fail.
    state.epoch = seen_epochs.first().copied().flatten();
    Ok(state)
}

/// A present chunk, the epoch of its partition, and its write time in microseconds since 1970.
type ObservedChunk = (ChunkKey, Option<i64>, i64);

async fn read_tile_state(tables: &DatasetTables, keys: &[ChunkKey]) -> Result<Vec<ObservedChunk>, CqlError> {
    let key = keys[0];
    let Names { id, epoch, rows, first, .. } = tables.names();
    let (place, tile) = (tables.qualified_table(key.slice), tables.tile_condition());
    let cql = format!("SELECT {epoch}, {id}, WRITETIME({rows}) FROM {place} WHERE {tile} AND {id} IN ?{first}");
    let select = tables.session.prepare(&cql, true).await?;
    let found = tables.session.execute(&select, ids_in_tile(tables, keys), &quorum_call(&tables.session)).await?;
    let found = found.into_rows_result().map_err(malformed)?;
    let mut seen = Vec::new();
    for row in found.rows::<(Option<i64>, Option<Vec<u8>>, Option<i64>)>().map_err(malformed)? {
        let (epoch, id, written_us) = row.map_err(malformed)?;
        // A partial row counts as removed, as it does to scans.
        if let (Some(id), Some(written_us)) = (id.and_then(|id| ChunkId::from_bytes(&id)), written_us) {
            seen.push((ChunkKey { id, ..key }, epoch, written_us));
        }
    }
    Ok(seen)
}

/// The first chunk to remove that is not present.
async fn first_missing(tables: &DatasetTables, swap: &Swap) -> chronotile_store::Result<Option<ChunkKey>> {
    let first = swap.remove[0];
    let state = if_table_exists(tables, first.slice, &quorum_call(&tables.session), || {
        read_partition_state(tables, &swap.remove)
    })
    .await;
    Ok(state.map_err(refused)?.map_or(Some(first), |state| state.missing(swap).copied()))
}

/// Fails if a chunk to remove is missing. Reads many partitions concurrently.
pub(crate) async fn check_present(
    tables: &DatasetTables,
    swaps: &BTreeMap<Partition, Swap>,
) -> chronotile_store::Result<()> {
    let looks: Vec<_> = swaps.values().map(|swap| first_missing(tables, swap)).collect();
    let missing: Vec<Option<ChunkKey>> = stream::iter(looks).buffer_unordered(WRITE_AT_ONCE).try_collect().await?;
    match missing.into_iter().flatten().min() {
        Some(key) => Err(StoreError::ChunkConflict { dataset: tables.dataset.name.clone(), key }),
        None => Ok(()),
    }
}

/// Applies a swap by a lightweight transaction on the partition's epoch: of two swaps that remove the same chunk one fails, and
/// readers see either the old chunks or the new ones.
pub(crate) async fn swap(
    tables: &DatasetTables,
    swap: &Swap,
    call: &Call,
    begun: bool,
) -> chronotile_store::Result<()> {
    let (slice, deadline) = (swap.remove[0].slice, Instant::now() + call.timeout);
    let mut pause = Duration::from_millis(5 + jitter_ms() % 10);
    // `lost` is the error of an attempt whose outcome is unknown: from then on no error may claim that nothing
    // happened. `lagging` is that of a node whose schema is older.
    let mut lost: Option<CqlError> = None;
    let mut lagging: Option<CqlError> = None;
    // Each round reads the epoch and the chunks to remove, and sends the transaction under the condition of that epoch.
    loop {
        let reported = |error| match &lost {
            Some(lost) => of_write(lost.clone(), true),
            None => of_write(error, begun),
        };
        // A dropped slice holds no chunks.
        let state = if_table_exists(tables, slice, call, || read_partition_state(tables, &swap.remove))
            .await
            .map_err(reported)?
            .unwrap_or_default();
        if let Some(key) = state.missing(swap) {
            // An attempt removes all of them or none: while one is present, no attempt has taken effect.
            let Some(lost) = lost.filter(|_| state.present.is_empty()) else {
                return Err(StoreError::ChunkConflict { dataset: tables.dataset.name.clone(), key: *key });
            };
            // The attempt whose answer was lost took effect if its chunks are present. If not, another swap may have been first, or
            // have removed them since.
            return match !swap.put.is_empty() && all_present(tables, &swap.put).await.unwrap_or(false) {
                true => Ok(()),
                false => Err(of_write(lost, true)),
            };
        }
        match transact(tables, swap, &state, deadline).await {
            // The transaction has taken effect: after a failure from here on, the outcome of the commit is unknown.
            Ok(true) => return remove_recent(tables, &state, call).await.map_err(|error| of_write(error, true)),
            Ok(false) => {}
            // The chunks that the next round finds tell whether this attempt has taken effect.
            Err(error) if error.applied() == Applied::Maybe => lost = Some(error),
            // A node that was down does not know a new column or table yet: nothing was stored.
            Err(error) if tables.lacks_column(&error) || matches!(error, CqlError::NoTable { .. }) => {
                lagging = Some(error)
            }
            Err(error) => return Err(reported(error)),
        }
        if Instant::now() + pause > deadline {
            let reason = "other processes kept rewriting the same cell".to_owned();
            return Err(match lost {
                Some(lost) => of_write(lost, true),
                None => of_write(lagging.unwrap_or(CqlError::Overloaded { reason }), begun),
            });
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(500));
    }
}

/// Whether all of these chunks are present.
async fn all_present(tables: &DatasetTables, chunks: &[Chunk]) -> Result<bool, CqlError> {
    let mut keys: Vec<ChunkKey> = chunks.iter().map(|chunk| chunk.key).collect();
    keys.sort_unstable();
    let state = read_partition_state(tables, &keys).await?;
    Ok(keys.iter().all(|key| state.present.contains_key(key)))
}

/// Random jitter in milliseconds, so that two conflicting clients do not retry in step.
fn jitter_ms() -> u64 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| u64::from(time.subsec_nanos()));
    now / 1_000 + COUNT.fetch_add(7, Ordering::Relaxed)
}

async fn transact(
    tables: &DatasetTables,
    swap: &Swap,
    state: &PartitionState,
    deadline: Instant,
) -> Result<bool, CqlError> {
    let first = swap.remove[0];
    let place = tables.qualified_table(first.slice);
    let names = tables.names();
    let guard = format!("UPDATE {place} SET {0} = ? WHERE {1} = ? IF {0} = ?", names.epoch, names.partition);
    let guard = tables.session.prepare(&guard, false).await?;
    let delete = tables.session.prepare(&delete_cql(tables, first.slice), true).await?;
    let big = |value: i64| Some(CqlValue::BigInt(value));
    let inserts = tables.layout.inserts(&swap.put)?;
    let mut batch = Batch::new(BatchType::Unlogged);
    let mut rows = Vec::with_capacity(1 + inserts.len() + swap.remove.len());
    batch.append_statement(guard);
    // Before the first removal the epoch is null, and the condition `= null` holds.
    let epoch = state.epoch.map(CqlValue::BigInt);
    rows.push(Values::Plain(vec![big(state.epoch.unwrap_or(0) + 1), big(tables.partition(first.tile.cell)), epoch]));
    append(tables, &place, &inserts, &mut batch).await?;
    rows.extend(inserts.into_iter().map(|insert| insert.values));
    for key in &swap.remove {
        batch.append_statement(delete.clone());
        rows.push(Values::Plain(chunk_key(tables, key)));
    }
    applied(tables.session.transact(&batch, &rows[..], &until(&tables.session, deadline)).await?)
}

/// Removes recently written chunks again, each with a deletion time just after its write time: if the writer's clock was ahead, the
/// first deletion is older than the rows and does not hide them.
async fn remove_recent(tables: &DatasetTables, state: &PartitionState, call: &Call) -> Result<(), CqlError> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let limit_us = now.saturating_sub(CLOCK_SKEW_MAX).as_micros() as i64;
    for (key, written_us) in state.present.iter().filter(|(_, written_us)| **written_us > limit_us) {
        remove_one(tables, key, Some(written_us + 1), call).await?;
    }
    Ok(())
}
