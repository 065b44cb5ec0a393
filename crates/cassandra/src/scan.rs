//! Reading chunks: scans in order, look-ups by key, statistics.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use chronotile_cql::scylla::response::PagingState;
use chronotile_cql::scylla::statement::prepared::PreparedStatement;
use chronotile_cql::{Call, CqlError, Session};
use chronotile_store::{Cells, Chunk, ChunkKey, Scan, TileStatistics};
use chronotile_types::{Cell, ChunkId, DatasetName, SliceId, Tile, Window};
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};

use crate::chunks::LOOKUP_CHUNKS;
use crate::failure::{malformed, refused};
use crate::names::chunk_table;
use crate::schema;

/// Partitions read ahead, in order.
const READ_AT_ONCE: usize = 32;
/// Cells asked for one by one; above, those that exist are listed first.
const CELLS_ASKED: u64 = 2_048;
/// Parts of the ring that a listing of partitions is cut in, and how many are read at once.
const RING_PARTS: i64 = 16;
const RING_AT_ONCE: usize = 16;
/// Bytes of chunks that one answer should have, and bounds of the rows asked for.
const PAGE_BYTES: u64 = 1 << 20;
const PAGE_ROWS: (u64, u64) = (16, 5_000);
/// Bytes of one partition after which what is complete is handed on.
const HELD_BYTES: usize = 16 << 20;
/// Chunks and bytes of one group of a scan.
const GROUP_CHUNKS: usize = 1_024;
const GROUP_BYTES: usize = 4 << 20;
/// Pause before a node that does not know a table is asked again.
const TABLE_PAUSE: Duration = Duration::from_millis(100);

/// Mean size of the chunks seen, from which pages get their length.
#[derive(Debug)]
pub(crate) struct Sizes {
    mean: AtomicU64,
}

impl Default for Sizes {
    fn default() -> Self {
        // Large at first: a page of large chunks taken for small ones could fill a node's memory.
        Self { mean: AtomicU64::new(64 << 10) }
    }
}

impl Sizes {
    fn page_rows(&self, bodies: bool) -> i32 {
        let mean = if bodies { self.mean.load(Ordering::Relaxed) } else { 256 };
        (PAGE_BYTES / mean.max(1)).clamp(PAGE_ROWS.0, PAGE_ROWS.1) as i32
    }

    fn saw(&self, bytes: usize, chunks: usize) {
        if let Some(seen) = (bytes as u64).checked_div(chunks as u64) {
            let old = self.mean.load(Ordering::Relaxed);
            self.mean.store((old + 3 * seen) / 4 + 1, Ordering::Relaxed);
        }
    }
}

/// What every read of one scan shares.
struct Reader {
    session: Arc<Session>,
    sizes: Arc<Sizes>,
    call: Call,
    dataset: DatasetName,
    windows: (Window, Window),
    bodies: bool,
}

/// Streams chunks as the contract of the store has it.
pub(crate) fn scan(
    session: Arc<Session>,
    sizes: Arc<Sizes>,
    call: Call,
    dataset: DatasetName,
    scan: Scan,
) -> BoxStream<'static, chronotile_store::Result<Vec<Chunk>>> {
    let Scan { slices, cells, windows, bodies } = scan;
    let reader = Arc::new(Reader { session, sizes, call, dataset, windows, bodies });
    stream::iter(slices)
        .then(move |slice| {
            let (reader, cells) = (reader.clone(), cells.clone());
            async move {
                let cells = reader.cells(slice, &cells).await.map_err(refused)?;
                Ok::<_, chronotile_store::StoreError>(reader.slice(slice, cells))
            }
        })
        .try_flatten()
        .boxed()
}

impl Reader {
    /// The cells to ask for, ascending.
    async fn cells(&self, slice: SliceId, cells: &Cells) -> Result<Vec<Cell>, CqlError> {
        if self.windows.0 > self.windows.1 {
            return Ok(vec![]);
        }
        let Cells::Ranges(ranges) = cells else { return self.existing(slice).await };
        let few = |(first, last): &(Cell, Cell)| last.0.checked_sub(first.0).map(|more| more as u64 + 1);
        let asked = ranges.iter().try_fold(0u64, |sum, range| sum.checked_add(few(range)?));
        if asked.is_some_and(|asked| asked <= CELLS_ASKED) {
            return Ok(ranges.iter().flat_map(|(first, last)| first.0..=last.0).map(Cell).collect());
        }
        let mut existing = self.existing(slice).await?;
        existing.retain(|cell| {
            let at = ranges.partition_point(|(_, last)| last < cell);
            ranges.get(at).is_some_and(|(first, _)| first <= cell)
        });
        Ok(existing)
    }

    /// The cells of a slice that hold something, ascending.
    async fn existing(&self, slice: SliceId) -> Result<Vec<Cell>, CqlError> {
        let cql = format!("SELECT DISTINCT cell FROM {}", self.table(slice));
        let each = |rows: &mut Vec<Cell>, (cell,): (i64,)| rows.push(Cell(cell));
        let read = || over_the_ring(&self.session, &cql, &self.call, each);
        let parts = unless_gone(&self.session, &self.dataset, slice, &self.call, read).await?;
        let mut cells: Vec<Cell> = parts.unwrap_or_default().into_iter().flatten().collect();
        cells.sort_unstable();
        Ok(cells)
    }

    fn table(&self, slice: SliceId) -> String {
        format!("{}.{}", self.session.settings().keyspace, chunk_table(&self.dataset, slice))
    }

    /// The chunks of a slice's cells in groups, several partitions read ahead.
    fn slice(
        self: Arc<Self>,
        slice: SliceId,
        cells: Vec<Cell>,
    ) -> BoxStream<'static, chronotile_store::Result<Vec<Chunk>>> {
        let first = {
            let reader = self.clone();
            move |cell| {
                let reader = reader.clone();
                async move { reader.partition(slice, cell, reader.windows.0).await.map(|part| (cell, part)) }
            }
        };
        let rest = move |(cell, part): (Cell, Part)| {
            let reader = self.clone();
            stream::try_unfold(Some(part), move |part| {
                let reader = reader.clone();
                async move {
                    let Some(Part { chunks, next, gone }) = part else { return Ok::<_, CqlError>(None) };
                    if gone {
                        return Err(CqlError::NoTable { reason: "its slice was dropped while it was read".to_owned() });
                    }
                    let following = match next {
                        Some(window) => Some(reader.partition(slice, cell, window).await?),
                        None => None,
                    };
                    Ok(Some((chunks, following)))
                }
            })
        };
        stream::iter(cells)
            .map(first)
            .buffered(READ_AT_ONCE)
            // What was read ahead of a partition that is gone would leave a gap before it.
            .take_while(|part| std::future::ready(!matches!(part, Ok((_, part)) if part.gone)))
            .map_ok(rest)
            .try_flatten()
            .map_ok(|chunks| stream::iter(groups(chunks).into_iter().map(Ok)))
            .try_flatten()
            .map_err(refused)
            .boxed()
    }

    /// Reads a partition from a window on.
    async fn partition(&self, slice: SliceId, cell: Cell, from: Window) -> Result<Part, CqlError> {
        let read = || self.partition_at_once(slice, cell, from);
        Ok(unless_gone(&self.session, &self.dataset, slice, &self.call, read).await?.unwrap_or(Part::GONE))
    }

    /// Reads a partition from a window on, where its table is there. A removal that lands between two answers changes the partition's epoch; what
    /// was read of the window at hand is then read again.
    async fn partition_at_once(&self, slice: SliceId, cell: Cell, from: Window) -> Result<Part, CqlError> {
        let body = if self.bodies { ", body" } else { "" };
        let cql = format!(
            "SELECT epoch, time_window, chunk_id, row_count, head{body} FROM {} \
             WHERE cell = ? AND time_window >= ? AND time_window <= ?",
            self.table(slice)
        );
        let mut select = self.session.prepare(&cql, true).await?;
        let mut held = Held { slice, cell, epoch: None, chunks: Vec::new(), bytes: 0 };
        let (mut from, mut state) = (from, PagingState::start());
        loop {
            select.set_page_size(self.sizes.page_rows(self.bodies));
            let values = (cell.0, from.0, self.windows.1.0);
            let (page, next) = self.session.page(&select, values, state, &self.call).await?;
            let before = held.chunks.len();
            if !held.take(page.into_rows_result().map_err(malformed)?, self.bodies)? {
                from = held.restart(from);
                state = PagingState::start();
                continue;
            }
            let bytes: usize = held.chunks[before..].iter().map(|chunk| chunk.head.len() + chunk.body.len()).sum();
            self.sizes.saw(bytes, held.chunks.len() - before);
            match next.into_paging_control_flow() {
                ControlFlow::Break(()) => return Ok(Part { chunks: held.chunks, next: None, gone: false }),
                ControlFlow::Continue(next) => state = next,
            }
            if held.bytes > HELD_BYTES
                && let Some(part) = held.cut()
            {
                return Ok(part);
            }
        }
    }
}

/// Chunks of a partition, all tiles complete, and where to go on.
struct Part {
    chunks: Vec<Chunk>,
    next: Option<Window>,
    /// Whether the table is not there: it was dropped, or never made.
    gone: bool,
}

impl Part {
    const GONE: Self = Self { chunks: Vec::new(), next: None, gone: true };
}

/// What has been read of a partition so far.
struct Held {
    slice: SliceId,
    cell: Cell,
    /// Epoch of the answers so far; `None` before the first.
    epoch: Option<Option<i64>>,
    chunks: Vec<Chunk>,
    bytes: usize,
}

type ChunkRow = (Option<i64>, Option<i32>, Option<Bytes>, Option<i32>, Option<Bytes>, Option<Bytes>);
type HeadRow = (Option<i64>, Option<i32>, Option<Bytes>, Option<i32>, Option<Bytes>);

impl Held {
    /// Takes the rows of an answer; `false` where they show that chunks were removed since the last.
    fn take(
        &mut self,
        rows: chronotile_cql::scylla::response::query_result::QueryRowsResult,
        bodies: bool,
    ) -> Result<bool, CqlError> {
        if bodies {
            for row in rows.rows::<ChunkRow>().map_err(malformed)? {
                if !self.add(row.map_err(malformed)?)? {
                    return Ok(false);
                }
            }
        } else {
            for row in rows.rows::<HeadRow>().map_err(malformed)? {
                let (epoch, window, id, rows, head) = row.map_err(malformed)?;
                if !self.add((epoch, window, id, rows, head, None))? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn add(&mut self, (epoch, window, id, rows, head, body): ChunkRow) -> Result<bool, CqlError> {
        if *self.epoch.get_or_insert(epoch) != epoch {
            return Ok(false);
        }
        // A partition without chunks may still have an epoch.
        let (Some(window), Some(id)) = (window, id) else { return Ok(true) };
        // A deletion and a late write of another client may leave a row of which parts are gone: it is removed.
        let (Some(rows), Some(head)) = (rows, head) else { return Ok(true) };
        let id = ChunkId::from_bytes(&id).ok_or_else(|| malformed("a chunk id has not 16 bytes"))?;
        let tile = Tile { cell: self.cell, window: Window(window) };
        let chunk = Chunk {
            key: ChunkKey { slice: self.slice, tile, id },
            rows: rows as u32,
            head,
            body: body.unwrap_or_default(),
        };
        self.bytes += chunk.head.len() + chunk.body.len();
        self.chunks.push(chunk);
        Ok(true)
    }

    /// Forgets the window at hand and says from which one to read again.
    fn restart(&mut self, from: Window) -> Window {
        self.epoch = None;
        let Some(window) = self.chunks.last().map(|chunk| chunk.key.tile.window) else { return from };
        self.chunks.retain(|chunk| chunk.key.tile.window < window);
        self.bytes = self.chunks.iter().map(|chunk| chunk.head.len() + chunk.body.len()).sum();
        window
    }

    /// The complete tiles, where there is one besides the last; the reading goes on at that.
    fn cut(&mut self) -> Option<Part> {
        let window = self.chunks.last()?.key.tile.window;
        let complete = self.chunks.partition_point(|chunk| chunk.key.tile.window < window);
        (complete > 0).then(|| {
            self.chunks.truncate(complete);
            Part { chunks: std::mem::take(&mut self.chunks), next: Some(window), gone: false }
        })
    }
}

/// Cuts chunks in groups of bounded size.
fn groups(chunks: Vec<Chunk>) -> Vec<Vec<Chunk>> {
    let (mut groups, mut group, mut bytes) = (Vec::new(), Vec::new(), 0);
    for chunk in chunks {
        let size = chunk.head.len() + chunk.body.len();
        if !group.is_empty() && (group.len() == GROUP_CHUNKS || bytes + size > GROUP_BYTES) {
            groups.push(std::mem::take(&mut group));
            bytes = 0;
        }
        bytes += size;
        group.push(chunk);
    }
    if !group.is_empty() {
        groups.push(group);
    }
    groups
}

/// The chunks of these keys, in their order; those that do not exist are left out.
pub(crate) async fn fetch(
    session: &Session,
    dataset: &DatasetName,
    keys: Vec<ChunkKey>,
    call: &Call,
) -> Result<Vec<Chunk>, CqlError> {
    let mut sorted = keys.clone();
    sorted.sort_unstable();
    sorted.dedup();
    let requests: Vec<Vec<ChunkKey>> = sorted
        .chunk_by(|a, b| a.slice == b.slice && a.tile == b.tile)
        .flat_map(|same_tile| same_tile.chunks(LOOKUP_CHUNKS).map(<[ChunkKey]>::to_vec))
        .collect();
    let reads = requests.into_iter().map(|some| async move {
        let read = || fetch_some(session, dataset, &some, call);
        Ok::<_, CqlError>(unless_gone(session, dataset, some[0].slice, call, read).await?.unwrap_or_default())
    });
    let found: Vec<Vec<Chunk>> = stream::iter(reads).buffer_unordered(READ_AT_ONCE).try_collect().await?;
    let found: HashMap<ChunkKey, Chunk> = found.into_iter().flatten().map(|chunk| (chunk.key, chunk)).collect();
    Ok(keys.iter().filter_map(|key| found.get(key).cloned()).collect())
}

async fn fetch_some(
    session: &Session,
    dataset: &DatasetName,
    keys: &[ChunkKey],
    call: &Call,
) -> Result<Vec<Chunk>, CqlError> {
    let first = keys[0];
    let cql = format!(
        "SELECT epoch, time_window, chunk_id, row_count, head, body FROM {}.{} \
         WHERE cell = ? AND time_window = ? AND chunk_id IN ?",
        session.settings().keyspace,
        chunk_table(dataset, first.slice)
    );
    let select = session.prepare(&cql, true).await?;
    let ids: Vec<Vec<u8>> = keys.iter().map(|key| key.id.to_bytes().to_vec()).collect();
    let found = session.execute(&select, (first.tile.cell.0, first.tile.window.0, ids), call).await?;
    let rows = found.into_rows_result().map_err(malformed)?;
    let mut held = Held { slice: first.slice, cell: first.tile.cell, epoch: None, chunks: Vec::new(), bytes: 0 };
    held.take(rows, true)?;
    Ok(held.chunks)
}

/// What each tile of a slice holds, by cell, then window.
pub(crate) async fn statistics(
    session: &Session,
    dataset: &DatasetName,
    slice: SliceId,
    call: &Call,
) -> Result<Vec<TileStatistics>, CqlError> {
    let keyspace = &session.settings().keyspace;
    let table = chunk_table(dataset, slice);
    let cql = format!("SELECT cell, time_window, row_count, byte_count FROM {keyspace}.{table}");
    type Row = (i64, Option<i32>, Option<i32>, Option<i32>);
    let each = |tiles: &mut BTreeMap<Tile, TileStatistics>, row: Row| {
        let (cell, Some(window), Some(rows), Some(bytes)) = row else { return };
        let tile = Tile { cell: Cell(cell), window: Window(window) };
        let none = TileStatistics { tile, chunks: 0, rows: 0, bytes: 0 };
        let found = tiles.entry(tile).or_insert(none);
        found.chunks += 1;
        found.rows += u64::from(rows as u32);
        found.bytes += u64::from(bytes as u32);
    };
    let read = || over_the_ring(session, &cql, call, each);
    let parts = unless_gone(session, dataset, slice, call, read).await?.unwrap_or_default();
    let tiles: BTreeMap<Tile, TileStatistics> = parts.into_iter().flatten().collect();
    Ok(tiles.into_values().collect())
}

/// Uses a slice's table; `None` where the slice was dropped, or never made. A node that was away may say that there is
/// no such table although there is: that is no reason to return nothing.
pub(crate) async fn unless_gone<T, F: Future<Output = Result<T, CqlError>>>(
    session: &Session,
    dataset: &DatasetName,
    slice: SliceId,
    call: &Call,
    read: impl Fn() -> F,
) -> Result<Option<T>, CqlError> {
    let deadline = Instant::now() + call.timeout;
    loop {
        let reason = match read().await {
            Err(CqlError::NoTable { reason }) => reason,
            result => return result.map(Some),
        };
        if !schema::has_table(session, dataset, slice).await? {
            return Ok(None);
        }
        if Instant::now() > deadline {
            let reason = format!("{reason}, although its slice does: a node was away and has not learnt of it yet");
            return Err(CqlError::ReplicaFailed { operation: "request", failed: 1, reason });
        }
        tokio::time::sleep(TABLE_PAUSE).await;
    }
}

/// Reads a whole table keyed by `cell`, the ring in parts, several at once; each part is gathered by `each`.
async fn over_the_ring<R, T>(
    session: &Session,
    cql: &str,
    call: &Call,
    each: impl Fn(&mut T, R) + Copy,
) -> Result<Vec<T>, CqlError>
where
    R: for<'frame> chronotile_cql::scylla::deserialize::row::DeserializeRow<'frame, 'frame>,
    T: Default,
{
    let cql = format!("{cql} WHERE token(cell) >= ? AND token(cell) <= ?");
    let mut select: PreparedStatement = session.prepare(&cql, true).await?;
    select.set_page_size(PAGE_ROWS.1 as i32);
    let select = &select;
    let parts = ring_parts().map(|(first, last)| async move {
        let mut gathered = T::default();
        let mut state = PagingState::start();
        loop {
            let (page, next) = session.page(select, (first, last), state, call).await?;
            let rows = page.into_rows_result().map_err(malformed)?;
            for row in rows.rows::<R>().map_err(malformed)? {
                each(&mut gathered, row.map_err(malformed)?);
            }
            match next.into_paging_control_flow() {
                ControlFlow::Break(()) => return Ok(gathered),
                ControlFlow::Continue(next) => state = next,
            }
        }
    });
    stream::iter(parts).buffered(RING_AT_ONCE).try_collect().await
}

/// Inclusive ranges of tokens that together are the ring.
fn ring_parts() -> impl Iterator<Item = (i64, i64)> {
    let step = (1i128 << 64) / i128::from(RING_PARTS);
    (0..i128::from(RING_PARTS)).map(move |part| {
        let first = i128::from(i64::MIN) + part * step;
        (first as i64, (first + step - 1) as i64)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_the_ring_are_the_ring() {
        let parts: Vec<_> = ring_parts().collect();
        assert_eq!((parts[0].0, parts[parts.len() - 1].1), (i64::MIN, i64::MAX));
        assert!(parts.windows(2).all(|pair| pair[0].1 + 1 == pair[1].0));
    }
}
