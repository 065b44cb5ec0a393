//! Writing and removing chunks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use chronotile_cql::scylla::statement::batch::{Batch, BatchType};
use chronotile_cql::scylla::value::CqlValue;
use chronotile_cql::{Applied, Call, CqlError};
use chronotile_store::{Chunk, ChunkKey, StoreError};
use chronotile_types::SliceId;
use futures::stream::{self, StreamExt, TryStreamExt};

use crate::failure::{malformed, of_write, refused};
use crate::form::{Home, Insert, Names, Values};
use crate::requests::{applied, quorum_call, until};
use crate::schema::unless_gone;

/// Partitions written at once by one commit; the session bounds all commits together.
const WRITE_AT_ONCE: usize = 64;
/// Bytes and chunks in one request to a partition.
const REQUEST_BYTES: usize = 256 << 10;
const REQUEST_CHUNKS: usize = 64;
/// Chunks named in one look-up.
pub(crate) const LOOKUP_CHUNKS: usize = 64;
/// Tiles of one partition looked at at once.
const LOOK_AT_ONCE: usize = 16;
/// Bytes that one transaction may carry; what is more is put before it.
const TRANSACTION_BYTES: usize = 4 << 20;
/// Differences between clocks that a removal allows for.
const CLOCKS_APART: Duration = Duration::from_secs(10);

/// One partition of a slice.
pub(crate) type Partition = (SliceId, i64);

fn partition(home: &Home, key: &ChunkKey) -> Partition {
    (key.slice, home.partition(key.tile.cell))
}

/// What a commit does to one partition under the condition that every chunk it removes is there.
#[derive(Debug, Default)]
pub(crate) struct Swap {
    pub put: Vec<Chunk>,
    pub remove: Vec<ChunkKey>,
}

/// The work of a commit by partition, in the order of partitions.
pub(crate) fn swaps(home: &Home, put: &mut Vec<Chunk>, remove: &[ChunkKey]) -> BTreeMap<Partition, Swap> {
    let mut swaps: BTreeMap<Partition, Swap> = BTreeMap::new();
    // A chunk named twice is still one chunk.
    let distinct: BTreeSet<&ChunkKey> = remove.iter().collect();
    for key in distinct {
        swaps.entry(partition(home, key)).or_default().remove.push(*key);
    }
    let mut size: BTreeMap<Partition, usize> = BTreeMap::new();
    put.retain(|chunk| {
        let Some(swap) = swaps.get_mut(&partition(home, &chunk.key)) else { return true };
        let bytes = size.entry(partition(home, &chunk.key)).or_default();
        *bytes += home.form.bytes(chunk);
        // Put first and then removed: it is gone.
        if swap.remove.contains(&chunk.key) || *bytes > TRANSACTION_BYTES {
            return true;
        }
        swap.put.push(chunk.clone());
        false
    });
    swaps
}

/// Chunks of one partition, and the request they go in.
type Bundle = Vec<Chunk>;

fn bundles(home: &Home, chunks: Vec<Chunk>) -> Vec<Bundle> {
    let mut by_partition: BTreeMap<Partition, Vec<Chunk>> = BTreeMap::new();
    for chunk in chunks {
        by_partition.entry(partition(home, &chunk.key)).or_default().push(chunk);
    }
    let mut bundles = Vec::new();
    for chunks in by_partition.into_values() {
        let (mut bundle, mut bytes) = (Vec::new(), 0);
        for chunk in chunks {
            let size = home.form.bytes(&chunk);
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

fn delete_cql(home: &Home, slice: SliceId) -> String {
    format!("DELETE FROM {} WHERE {} AND {} = ?", home.place(slice), home.of_tile(), home.names().id)
}

fn chunk_id(key: &ChunkKey) -> CqlValue {
    CqlValue::Blob(key.id.to_bytes().to_vec())
}

/// The values of the key of a chunk's row.
fn chunk_key(home: &Home, key: &ChunkKey) -> Vec<Option<CqlValue>> {
    let mut values = home.tile_values(key.tile);
    values.push(Some(chunk_id(key)));
    values
}

/// The values of a look-up of chunks of one tile by their ids.
pub(crate) fn ids_in_tile(home: &Home, keys: &[ChunkKey]) -> Vec<Option<CqlValue>> {
    let mut values = home.tile_values(keys[0].tile);
    values.push(Some(CqlValue::List(keys.iter().map(chunk_id).collect())));
    values
}

/// Puts chunks, many partitions at once.
pub(crate) async fn put(home: &Home, chunks: Vec<Chunk>, call: &Call) -> Result<(), CqlError> {
    let requests: Vec<_> = bundles(home, chunks).into_iter().map(|bundle| put_bundle(home, bundle, call)).collect();
    stream::iter(requests).buffer_unordered(WRITE_AT_ONCE).try_collect().await
}

async fn put_bundle(home: &Home, bundle: Bundle, call: &Call) -> Result<(), CqlError> {
    let slice = bundle[0].key.slice;
    let put = || put_in_table(home, &bundle, call);
    let reason = "its slice was dropped".to_owned();
    unless_gone(home, slice, call, put).await?.ok_or(CqlError::NoTable { reason })
}

async fn put_in_table(home: &Home, bundle: &[Chunk], call: &Call) -> Result<(), CqlError> {
    let place = home.place(bundle[0].key.slice);
    let stamp = home.form.stamp();
    for request in home.form.requests(bundle)? {
        put_at_once(home, &place, request, stamp, call).await?;
    }
    Ok(())
}

async fn put_at_once(
    home: &Home,
    place: &str,
    mut request: Vec<Insert>,
    stamp: Option<i64>,
    call: &Call,
) -> Result<(), CqlError> {
    if request.len() == 1 {
        let insert = request.remove(0);
        let mut statement = home.session.prepare(&insert.cql(place), true).await?;
        statement.set_timestamp(stamp);
        home.session.execute(&statement, insert.values, call).await?;
        return Ok(());
    }
    // One partition: the batch is one write, not a logged one.
    let mut batch = Batch::new(BatchType::Unlogged);
    batch.set_is_idempotent(true);
    batch.set_timestamp(stamp);
    append(home, place, &request, &mut batch).await?;
    let values: Vec<Values> = request.into_iter().map(|insert| insert.values).collect();
    home.session.batch(&batch, &values[..], call).await?;
    Ok(())
}

/// Appends the statements of some inserts to a batch.
async fn append(home: &Home, place: &str, inserts: &[Insert], batch: &mut Batch) -> Result<(), CqlError> {
    for alike in inserts.chunk_by(Insert::is_like) {
        let statement = home.session.prepare(&alike[0].cql(place), true).await?;
        alike.iter().for_each(|_| batch.append_statement(statement.clone()));
    }
    Ok(())
}

/// Removes chunks, whether they are there or not.
pub(crate) async fn remove(home: &Home, keys: &[ChunkKey], call: &Call) -> Result<(), CqlError> {
    let by_tile: Vec<Vec<ChunkKey>> = {
        let mut sorted = keys.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        sorted.chunk_by(|a, b| a.slice == b.slice && a.tile == b.tile).map(<[ChunkKey]>::to_vec).collect()
    };
    let requests: Vec<_> = by_tile.iter().map(|keys| remove_of_tile(home, keys, call)).collect();
    stream::iter(requests).buffer_unordered(WRITE_AT_ONCE).try_collect().await
}

/// Removes chunks of one tile, also those whose writer's clock is ahead of ours.
async fn remove_of_tile(home: &Home, keys: &[ChunkKey], call: &Call) -> Result<(), CqlError> {
    // What is gone with its table is removed.
    let Some(state) = unless_gone(home, keys[0].slice, call, || look(home, keys)).await? else { return Ok(()) };
    for key in keys {
        remove_one(home, key, None, call).await?;
    }
    settle(home, &state, call).await
}

/// Removes a chunk; with a time, as one that was removed then (microseconds since 1970).
async fn remove_one(home: &Home, key: &ChunkKey, at_us: Option<i64>, call: &Call) -> Result<(), CqlError> {
    let remove = || async {
        let mut delete = home.session.prepare(&delete_cql(home, key.slice), true).await?;
        delete.set_timestamp(at_us);
        home.session.execute(&delete, chunk_key(home, key), call).await
    };
    // What is gone with its table is removed.
    unless_gone(home, key.slice, call, remove).await.map(drop)
}

/// What a look at the chunks of a swap found.
#[derive(Default)]
pub(crate) struct PartitionState {
    epoch: Option<i64>,
    /// The chunks that are there, each with the time it was written at, in microseconds since 1970.
    there: BTreeMap<ChunkKey, i64>,
}

impl PartitionState {
    /// A chunk that is to be removed and is not there.
    pub(crate) fn missing<'a>(&self, swap: &'a Swap) -> Option<&'a ChunkKey> {
        swap.remove.iter().find(|key| !self.there.contains_key(key))
    }
}

/// Looks which chunks of a partition are there.
pub(crate) async fn look(home: &Home, keys: &[ChunkKey]) -> Result<PartitionState, CqlError> {
    let requests = keys.chunk_by(|a, b| a.tile == b.tile).flat_map(|same_tile| same_tile.chunks(LOOKUP_CHUNKS));
    let looks: Vec<_> = requests.map(|some| look_in_tile(home, some)).collect();
    let rows: Vec<Vec<ObservedChunk>> = stream::iter(looks).buffer_unordered(LOOK_AT_ONCE).try_collect().await?;
    let mut state = PartitionState { epoch: None, there: BTreeMap::new() };
    let mut seen_epochs = BTreeSet::new();
    for (key, epoch, written_us) in rows.into_iter().flatten() {
        seen_epochs.insert(epoch);
        state.there.insert(key, written_us);
    }
    // Between two looks the partition may have changed; the oldest view then makes the transaction fail.
    state.epoch = seen_epochs.first().copied().flatten();
    Ok(state)
}

/// A chunk that is there, the epoch of its partition, and when it was written, in microseconds since 1970.
type ObservedChunk = (ChunkKey, Option<i64>, i64);

async fn look_in_tile(home: &Home, keys: &[ChunkKey]) -> Result<Vec<ObservedChunk>, CqlError> {
    let key = keys[0];
    let Names { id, epoch, rows, first, .. } = home.names();
    let (place, tile) = (home.place(key.slice), home.of_tile());
    let cql = format!("SELECT {epoch}, {id}, WRITETIME({rows}) FROM {place} WHERE {tile} AND {id} IN ?{first}");
    let select = home.session.prepare(&cql, true).await?;
    let found = home.session.execute(&select, ids_in_tile(home, keys), &quorum_call(&home.session)).await?;
    let found = found.into_rows_result().map_err(malformed)?;
    let mut seen = Vec::new();
    for row in found.rows::<(Option<i64>, Option<Vec<u8>>, Option<i64>)>().map_err(malformed)? {
        let (epoch, id, written_us) = row.map_err(malformed)?;
        if let Some(id) = id.and_then(|id| chronotile_types::ChunkId::from_bytes(&id)) {
            seen.push((ChunkKey { id, ..key }, epoch, written_us.unwrap_or(0)));
        }
    }
    Ok(seen)
}

/// A chunk that a swap is to remove and that is not there.
async fn first_missing(home: &Home, swap: &Swap) -> chronotile_store::Result<Option<ChunkKey>> {
    let first = swap.remove[0];
    let state = unless_gone(home, first.slice, &quorum_call(&home.session), || look(home, &swap.remove)).await;
    Ok(state.map_err(refused)?.map_or(Some(first), |state| state.missing(swap).copied()))
}

/// Looks at every partition, many at once.
pub(crate) async fn look_at_all(home: &Home, swaps: &BTreeMap<Partition, Swap>) -> chronotile_store::Result<()> {
    let looks: Vec<_> = swaps.values().map(|swap| first_missing(home, swap)).collect();
    let missing: Vec<Option<ChunkKey>> = stream::iter(looks).buffer_unordered(WRITE_AT_ONCE).try_collect().await?;
    match missing.into_iter().flatten().min() {
        Some(key) => Err(StoreError::ChunkConflict { dataset: home.dataset.name.clone(), key }),
        None => Ok(()),
    }
}

/// Makes a swap by a lightweight transaction on the partition's epoch, so that of two that remove the same chunk one
/// fails, and readers see the old chunks or the new ones.
pub(crate) async fn swap(home: &Home, swap: &Swap, call: &Call, begun: bool) -> chronotile_store::Result<()> {
    let (slice, deadline) = (swap.remove[0].slice, Instant::now() + call.timeout);
    let mut pause = Duration::from_millis(5 + spread() % 10);
    let mut lost: Option<CqlError> = None;
    let mut lagging: Option<CqlError> = None;
    loop {
        let reported = |error| match &lost {
            Some(lost) => of_write(lost.clone(), true),
            None => of_write(error, begun),
        };
        // A slice that is gone holds none of them.
        let state =
            unless_gone(home, slice, call, || look(home, &swap.remove)).await.map_err(reported)?.unwrap_or_default();
        if let Some(key) = state.missing(swap) {
            // A try of our own whose answer was lost may have removed it: what was to be put then is there.
            if lost.is_some() && state.there.is_empty() && is_there(home, &swap.put).await.map_err(reported)? {
                return Ok(());
            }
            return Err(StoreError::ChunkConflict { dataset: home.dataset.name.clone(), key: *key });
        }
        match transact(home, swap, &state, deadline).await {
            Ok(true) => return settle(home, &state, call).await.map_err(|error| of_write(error, true)),
            Ok(false) => {}
            Err(error) if error.applied() == Applied::Maybe => lost = Some(error),
            Err(error) if home.lags(&error) || matches!(error, CqlError::NoTable { .. }) => lagging = Some(error),
            Err(error) => return Err(reported(error)),
        }
        if Instant::now() + pause > deadline {
            let reason = "others kept rewriting the same cell".to_owned();
            return Err(match lost {
                Some(lost) => of_write(lost, true),
                None => of_write(lagging.unwrap_or(CqlError::Overloaded { reason }), begun),
            });
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(500));
    }
}

/// Whether all of these are there.
async fn is_there(home: &Home, chunks: &[Chunk]) -> Result<bool, CqlError> {
    let mut keys: Vec<ChunkKey> = chunks.iter().map(|chunk| chunk.key).collect();
    keys.sort_unstable();
    let state = look(home, &keys).await?;
    Ok(keys.iter().all(|key| state.there.contains_key(key)))
}

/// A little chance, so that two that met do not meet again.
fn spread() -> u64 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| u64::from(time.subsec_nanos()));
    now / 1_000 + COUNT.fetch_add(7, Ordering::Relaxed)
}

async fn transact(home: &Home, swap: &Swap, state: &PartitionState, deadline: Instant) -> Result<bool, CqlError> {
    let first = swap.remove[0];
    let place = home.place(first.slice);
    let names = home.names();
    let guard = format!("UPDATE {place} SET {0} = ? WHERE {1} = ? IF {0} = ?", names.epoch, names.partition);
    let guard = home.session.prepare(&guard, false).await?;
    let delete = home.session.prepare(&delete_cql(home, first.slice), true).await?;
    let big = |value: i64| Some(CqlValue::BigInt(value));
    let inserts = home.form.inserts(&swap.put)?;
    let mut batch = Batch::new(BatchType::Unlogged);
    let mut rows = Vec::with_capacity(1 + inserts.len() + swap.remove.len());
    batch.append_statement(guard);
    let epoch = state.epoch.map(CqlValue::BigInt);
    rows.push(Values::Plain(vec![big(state.epoch.unwrap_or(0) + 1), big(home.partition(first.tile.cell)), epoch]));
    append(home, &place, &inserts, &mut batch).await?;
    rows.extend(inserts.into_iter().map(|insert| insert.values));
    for key in &swap.remove {
        batch.append_statement(delete.clone());
        rows.push(Values::Plain(chunk_key(home, key)));
    }
    applied(home.session.transact(&batch, &rows[..], &until(&home.session, deadline)).await?)
}

/// Removes again what was written so lately that its writer's clock may be ahead of the transaction's.
async fn settle(home: &Home, state: &PartitionState, call: &Call) -> Result<(), CqlError> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let limit_us = now.saturating_sub(CLOCKS_APART).as_micros() as i64;
    for (key, written_us) in state.there.iter().filter(|(_, written_us)| **written_us > limit_us) {
        remove_one(home, key, Some(written_us + 1), call).await?;
    }
    Ok(())
}
