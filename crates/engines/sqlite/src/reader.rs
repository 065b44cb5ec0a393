//! Reads: pooled connections, each group of a scan in a transaction of its own.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use chronotile_store::{CHANGES, Cells, Chunk, ChunkKey, Record, Result, Scan, StoreError};
use chronotile_types::{Cell, ChunkId, DatasetName, SliceId, Tile, Window};
use rusqlite::{CachedStatement, Connection, Row, Statement, params};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::Semaphore;

use crate::Options;
use crate::failure::{ENGINE, Phase, is_corrupt, store_error};
use crate::layout;
use crate::open::{Identity, Role, connect};

/// A group ends at the first new tile past this many bytes.
const GROUP_BYTES: usize = 4 << 20;
/// A group ends at the first new tile past this many chunks.
const GROUP_CHUNKS: usize = 2_048;
/// A group ends within a tile at this many bytes.
const GROUP_BYTES_MAX: usize = 8 << 20;
/// A group ends within a tile at this many chunks.
const GROUP_CHUNKS_MAX: usize = 4_096;
/// Assumed bytes of a head in a group of heads, whose sizes are not known beforehand.
const HEAD_BYTES: u32 = 256;
/// Maximum number of cell ranges times slices of a scan, or keys of a fetch, for a short read.
const SHORT_RANGES: usize = 64;
const SHORT_KEYS: usize = 16;
/// Idle connections kept.
const IDLE_MAX: usize = 16;

/// Connections for reading. At most a few work at once; more may wait, each inside a transaction, between two groups of
/// one tile.
#[derive(Debug)]
pub(crate) struct Readers {
    path: PathBuf,
    file: Identity,
    options: Options,
    idle: Mutex<Vec<Connection>>,
    permits: Arc<Semaphore>,
    /// Limits short reads, which must not wait for long ones.
    short_permits: Semaphore,
}

impl Readers {
    pub(crate) fn open(path: PathBuf, options: Options) -> Result<Arc<Self>> {
        let first = connect(&path, &options, Role::Reader)?;
        let file = Identity::opened(&path)?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let count = (2 * cores).clamp(4, IDLE_MAX);
        let (permits, short_permits) = (Arc::new(Semaphore::new(count)), Semaphore::new(count));
        Ok(Arc::new(Self { path, file, options, idle: Mutex::new(vec![first]), permits, short_permits }))
    }

    /// Tells whether the path still names the file that was opened.
    pub(crate) fn check(&self) -> Result<()> {
        self.file.check(&self.path)
    }

    fn take(self: &Arc<Self>) -> Result<Reader> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        // A file that has replaced the opened one at this path must not be read together with it.
        let another = || {
            self.check()?;
            connect(&self.path, &self.options, Role::Reader)
        };
        let conn = idle.map_or_else(another, Ok)?;
        Ok(Reader { pool: self.clone(), conn: Some(conn) })
    }

    fn error(&self, error: rusqlite::Error) -> StoreError {
        store_error(&self.path, Phase::Before, self.options.busy_timeout_s, error)
    }

    /// Runs a read on a blocking thread.
    pub(crate) async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        read: impl FnOnce(&Arc<Self>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let stopped = |reason: String| StoreError::Refused { engine: ENGINE, reason };
        let permit = self.permits.clone().acquire_owned().await.map_err(|error| stopped(error.to_string()))?;
        // The permit moves into the thread: a read that its caller has abandoned still runs and still counts.
        let pool = self.clone();
        let task = tokio::task::spawn_blocking(move || {
            let outcome = read(&pool);
            drop(permit);
            outcome
        });
        task.await.unwrap_or_else(|error| Err(stopped(format!("a reading thread stopped: {error}"))))
    }

    /// Runs a short read on the calling thread if the runtime has other threads: waking a blocking thread takes longer than the read.
    pub(crate) async fn run_here<T: Send + 'static>(
        self: &Arc<Self>,
        read: impl FnOnce(&Arc<Self>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        // `block_in_place` panics on a `current_thread` runtime.
        if Handle::current().runtime_flavor() != RuntimeFlavor::MultiThread {
            return self.run(read).await;
        }
        let stopped = |reason: String| StoreError::Refused { engine: ENGINE, reason };
        let _permit = self.short_permits.acquire().await.map_err(|error| stopped(error.to_string()))?;
        tokio::task::block_in_place(|| read(self))
    }

    /// Runs a read in one transaction.
    pub(crate) async fn query<T: Send + 'static>(
        self: &Arc<Self>,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        self.run(move |pool| pool.query_now(read)).await
    }

    /// Like [`Readers::query`], for a query of few rows.
    pub(crate) async fn query_here<T: Send + 'static>(
        self: &Arc<Self>,
        read: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T> {
        self.run_here(move |pool| pool.query_now(read)).await
    }

    fn query_now<T>(self: &Arc<Self>, read: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T> {
        let mut reader = self.take()?;
        let outcome = reader.begin().and_then(|()| read(reader.conn()?));
        reader.end();
        outcome.map_err(|error| self.error(error))
    }
}

/// A connection taken from the pool. It is returned without an open transaction.
#[derive(Debug)]
struct Reader {
    pool: Arc<Readers>,
    conn: Option<Connection>,
}

impl Reader {
    fn conn(&self) -> rusqlite::Result<&Connection> {
        self.conn.as_ref().ok_or(rusqlite::Error::InvalidQuery)
    }

    /// Begins a transaction, unless one is open: every query until [`Reader::end`] sees the same state.
    fn begin(&mut self) -> rusqlite::Result<()> {
        let conn = self.conn()?;
        if conn.is_autocommit() {
            conn.prepare_cached("BEGIN")?.execute([])?;
        }
        Ok(())
    }

    /// Ends the transaction, and closes a connection that cannot end it.
    fn end(&mut self) {
        let Some(conn) = self.conn.take() else { return };
        // An open read transaction would keep the log from being restarted.
        let ended = conn.is_autocommit() || conn.prepare_cached("ROLLBACK").and_then(|mut end| end.execute([])).is_ok();
        if ended {
            let mut idle = self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner);
            if idle.len() < IDLE_MAX {
                idle.push(conn);
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.end();
    }
}

/// A running scan between two groups.
#[derive(Debug)]
pub(crate) struct Scanner {
    dataset: DatasetName,
    scan: Scan,
    slice: usize,
    range: usize,
    after: Option<(Tile, ChunkId)>,
    /// Kept while a tile is only half returned, so that all of its chunks belong to one state of the archive and
    /// a consolidation in between can neither hide nor double any of its rows.
    reader: Option<Reader>,
}

impl Scanner {
    pub(crate) fn new(dataset: DatasetName, scan: Scan) -> Self {
        Self { dataset, scan, slice: 0, range: 0, after: None, reader: None }
    }

    /// Whether every slice has been scanned.
    pub(crate) fn is_finished(&self) -> bool {
        self.slice >= self.scan.slices.len()
    }

    /// Whether reading the first group takes about as long as waking a thread.
    pub(crate) fn starts_short(&self) -> bool {
        let ranges = match &self.scan.cells {
            Cells::All => return false,
            Cells::Ranges(ranges) => ranges,
        };
        let one_cell_each = ranges.iter().all(|(first, last)| first == last);
        one_cell_each && ranges.len() * self.scan.slices.len() <= SHORT_RANGES
    }

    /// The next group, empty at the end.
    pub(crate) fn next_group(&mut self, pool: &Arc<Readers>) -> Result<Vec<Chunk>> {
        if self.is_finished() {
            return Ok(vec![]);
        }
        let mut reader = self.reader.take().map_or_else(|| pool.take(), Ok)?;
        let mut group = Group::default();
        let read = reader.begin().and_then(|()| {
            let conn = reader.conn()?;
            let end = self.fill(conn, &mut group)?;
            Ok((group.read(conn, &self.dataset, self.scan.bodies)?, end))
        });
        let (chunks, end) = read.map_err(|error| pool.error(error))?;
        match end {
            End::InTile => self.reader = Some(reader),
            End::AtTile => reader.end(),
        }
        Ok(chunks)
    }

    fn fill(&mut self, conn: &Connection, group: &mut Group) -> rusqlite::Result<End> {
        while let Some(&slice) = self.scan.slices.get(self.slice) {
            // Each group has a transaction of its own, so the slice may be gone since the last group.
            if layout::slice_exists(conn, &self.dataset, slice)? {
                let cells = self.cells_of(conn, slice)?;
                while let Some(range) = range_at(&self.scan.cells, self.range) {
                    let meets = range.0 <= cells.1 && cells.0 <= range.1;
                    if meets && let Some(end) = self.fill_range(conn, slice, range, group)? {
                        return Ok(end);
                    }
                    (self.range, self.after) = (self.range + 1, None);
                }
            }
            (self.slice, self.range, self.after) = (self.slice + 1, 0, None);
        }
        Ok(End::AtTile)
    }

    /// The least and the greatest cell of a slice, to skip slices when many ranges are wanted: ids that follow time occur in few slices.
    fn cells_of(&self, conn: &Connection, slice: SliceId) -> rusqlite::Result<(Cell, Cell)> {
        let everywhere = (Cell(i64::MIN), Cell(i64::MAX));
        // With one range left there are no others to skip: the query of that range finds nothing as fast.
        if range_at(&self.scan.cells, self.range + 1).is_none() {
            return Ok(everywhere);
        }
        let keys = layout::keys_table(&self.dataset, slice);
        // Two queries with one index seek each; one query for both would scan the whole table.
        let sql = format!("SELECT (SELECT min(cell) FROM {keys}), (SELECT max(cell) FROM {keys})");
        conn.prepare_cached(&sql)?.query_row([], |row| {
            let cells = (row.get::<_, Option<i64>>(0)?, row.get::<_, Option<i64>>(1)?);
            // An empty slice matches no range.
            Ok(cells.0.zip(cells.1).map_or((everywhere.1, everywhere.0), |(low, high)| (Cell(low), Cell(high))))
        })
    }

    /// Finds the next keys of a range of cells; `None` at its end, else where the group is full.
    fn fill_range(
        &mut self,
        conn: &Connection,
        slice: SliceId,
        (first, last): (Cell, Cell),
        group: &mut Group,
    ) -> rusqlite::Result<Option<End>> {
        let (window_first, window_last) = self.scan.windows.outer();
        // Both row comparisons bound the walk through the table; the last condition picks windows within it where the
        // range has several cells, and leaves out older versions. An empty id comes before every other.
        let sql = format!(
            "SELECT cell, window, id, rows, bytes, chunk FROM {}
             WHERE (cell, window, id) > (?1, ?2, ?3) AND (cell, window) <= (?4, ?5) AND window BETWEEN ?6 AND ?5 {}
             ORDER BY cell, window, id",
            layout::keys_table(&self.dataset, slice),
            if self.scan.older { "" } else { "AND id < x'80'" }
        );
        let (tile, id) = match self.after {
            Some((tile, id)) => (tile, Some(id.to_bytes())),
            None => (Tile { cell: first, window: window_first }, None),
        };
        let id = id.as_ref().map_or(&[][..], |id| &id[..]);
        let mut statement = conn.prepare_cached(&sql)?;
        let bounds = params![tile.cell.0, tile.window.0, id, last.0, window_last.0, window_first.0];
        let mut rows = statement.query(bounds)?;
        while let Some(row) = rows.next()? {
            let (tile, id) = place_of(row)?;
            if !self.scan.windows.contains(tile.window) {
                continue;
            }
            if group.is_full_at(tile) {
                // The row is not lost: the next group continues after the last chunk that was pushed.
                return Ok(Some(End::AtTile));
            }
            let place = ChunkRow { key: ChunkKey { slice, tile, id }, rows: row.get(3)?, row: row.get(5)? };
            group.push(place, if self.scan.bodies { row.get(4)? } else { HEAD_BYTES });
            self.after = Some((tile, id));
            if group.is_full() {
                return Ok(Some(End::InTile));
            }
        }
        Ok(None)
    }
}

/// Where a group ended.
enum End {
    /// All chunks of its last tile are in it.
    AtTile,
    /// The last tile may have further chunks.
    InTile,
}

fn range_at(cells: &Cells, index: usize) -> Option<(Cell, Cell)> {
    match cells {
        Cells::All => (index == 0).then_some((Cell(i64::MIN), Cell(i64::MAX))),
        Cells::Ranges(ranges) => ranges.get(index).copied(),
    }
}

fn place_of(row: &Row<'_>) -> rusqlite::Result<(Tile, ChunkId)> {
    let tile = Tile { cell: Cell(row.get(0)?), window: Window(row.get(1)?) };
    let id: [u8; 16] = row.get(2)?;
    Ok((tile, ChunkId(u128::from_be_bytes(id))))
}

/// The entry of a chunk in the key table; `row` is its row in the chunk table.
#[derive(Clone, Copy, Debug)]
struct ChunkRow {
    key: ChunkKey,
    rows: u32,
    row: i64,
}

/// Ends of the head and body of a chunk that cannot be read: no encoder makes empty ones.
const UNREADABLE: (usize, usize, usize) = (0, 0, 0);

/// Chunks to be returned together, found by key but not yet read.
#[derive(Default)]
struct Group {
    places: Vec<ChunkRow>,
    bytes: usize,
}

impl Group {
    fn push(&mut self, place: ChunkRow, bytes: u32) {
        self.places.push(place);
        self.bytes += bytes as usize;
    }

    fn is_full_at(&self, tile: Tile) -> bool {
        let full = self.bytes >= GROUP_BYTES || self.places.len() >= GROUP_CHUNKS;
        full && self.places.last().is_some_and(|last| last.key.tile != tile)
    }

    fn is_full(&self) -> bool {
        self.bytes >= GROUP_BYTES_MAX || self.places.len() >= GROUP_CHUNKS_MAX
    }

    /// Reads the chunks in the order in which they lie in the file, which is that of writing, and returns them in the
    /// order of the group. Their bytes share one buffer, one allocation rather than two for each chunk.
    ///
    /// A chunk whose row is gone or cannot be read is returned empty, which whoever decodes it reports as damage of that chunk.
    fn read(&self, conn: &Connection, dataset: &DatasetName, bodies: bool) -> rusqlite::Result<Vec<Chunk>> {
        let mut order: Vec<usize> = (0..self.places.len()).collect();
        order.sort_unstable_by_key(|&index| (self.places[index].key.slice, self.places[index].row));
        // The lengths of damaged keys may add up to more than memory holds.
        let mut bytes = Vec::with_capacity(self.bytes.min(GROUP_BYTES_MAX));
        let mut ends = vec![UNREADABLE; self.places.len()];
        // A difference of 0 is a key that a fetch names twice.
        let adjacent =
            |&first: &usize, &second: &usize| self.places[second].row <= self.places[first].row.saturating_add(1);
        let in_slice = |&first: &usize, &second: &usize| self.places[first].key.slice == self.places[second].key.slice;
        for order in order.chunk_by(in_slice) {
            let body = if bodies { "body" } else { "x''" };
            let table = layout::chunks_table(dataset, self.places[order[0]].key.slice);
            let sql = format!("SELECT chunk, head, {body} FROM {table} WHERE chunk BETWEEN ?1 AND ?2");
            let mut statement = conn.prepare_cached(&sql)?;
            for run in order.chunk_by(adjacent) {
                match self.read_run(&mut statement, run, &mut bytes, &mut ends) {
                    // Only some of the rows lie on a damaged page.
                    Err(error) if is_corrupt(&error) => {
                        // Bytes that the failed query has appended remain in the buffer, without a chunk that refers to
                        // them.
                        run.iter().for_each(|&index| ends[index] = UNREADABLE);
                        for one in run.chunks(1) {
                            match self.read_run(&mut statement, one, &mut bytes, &mut ends) {
                                Err(error) if is_corrupt(&error) => {}
                                read => read?,
                            }
                        }
                    }
                    read => read?,
                }
            }
        }
        let bytes = Bytes::from(bytes);
        let chunk = |(place, (start, head_end, end)): (&ChunkRow, (usize, usize, usize))| Chunk {
            key: place.key,
            rows: place.rows,
            head: bytes.slice(start..head_end),
            body: bytes.slice(head_end..end),
        };
        Ok(self.places.iter().zip(ends).map(chunk).collect())
    }

    /// Reads neighbouring rows in one query.
    fn read_run(
        &self,
        statement: &mut Statement<'_>,
        run: &[usize],
        bytes: &mut Vec<u8>,
        ends: &mut [(usize, usize, usize)],
    ) -> rusqlite::Result<()> {
        let (Some(&first), Some(&last)) = (run.first(), run.last()) else { return Ok(()) };
        let mut rows = statement.query([self.places[first].row, self.places[last].row])?;
        let mut row = rows.next()?;
        let mut read = None;
        for &index in run {
            let wanted = self.places[index].row;
            // A key asked for twice in a fetch.
            if let Some((row, range)) = read
                && row == wanted
            {
                ends[index] = range;
                continue;
            }
            let Some(found) = row else { break };
            // The wanted row is missing: the found row belongs to a later key of the run.
            if found.get::<_, i64>(0)? != wanted {
                continue;
            }
            // A value that is not a blob was not written by a commit.
            let start = bytes.len();
            bytes.extend_from_slice(found.get_ref(1)?.as_blob().unwrap_or_default());
            let head_end = bytes.len();
            bytes.extend_from_slice(found.get_ref(2)?.as_blob().unwrap_or_default());
            ends[index] = (start, head_end, bytes.len());
            read = Some((wanted, ends[index]));
            row = rows.next()?;
        }
        Ok(())
    }
}

/// Whether fetching these keys takes about as long as waking a thread.
pub(crate) fn fetches_short(keys: &[ChunkKey]) -> bool {
    keys.len() <= SHORT_KEYS
}

/// The chunks of these keys that exist.
pub(crate) fn fetch(conn: &Connection, dataset: &DatasetName, keys: &[ChunkKey]) -> rusqlite::Result<Vec<Chunk>> {
    let mut group = Group::default();
    let find = |slice: SliceId| -> rusqlite::Result<Option<CachedStatement<'_>>> {
        if !layout::slice_exists(conn, dataset, slice)? {
            return Ok(None);
        }
        let table = layout::keys_table(dataset, slice);
        let sql = format!("SELECT rows, bytes, chunk FROM {table} WHERE cell = ?1 AND window = ?2 AND id = ?3");
        conn.prepare_cached(&sql).map(Some)
    };
    // Keys of one slice usually follow one another: a statement is prepared once for each run of them.
    let mut known = None;
    for &key in keys {
        if known.as_ref().is_none_or(|(slice, _)| *slice != key.slice) {
            known = Some((key.slice, find(key.slice)?));
        }
        let Some((_, Some(statement))) = &mut known else { continue };
        let mut rows = statement.query(params![key.tile.cell.0, key.tile.window.0, key.id.to_bytes()])?;
        if let Some(row) = rows.next()? {
            group.push(ChunkRow { key, rows: row.get(0)?, row: row.get(2)? }, row.get(1)?);
        }
    }
    group.read(conn, dataset, true)
}

/// A page of catalog records.
pub(crate) fn records(
    conn: &Connection,
    prefix: &str,
    after: Option<&str>,
    limit: usize,
) -> rusqlite::Result<Vec<Record>> {
    let (sql, start) = match after {
        Some(after) if after >= prefix => ("SELECT key, value FROM catalog WHERE key > ?1 ORDER BY key", after),
        _ => ("SELECT key, value FROM catalog WHERE key >= ?1 ORDER BY key", prefix),
    };
    let mut records = vec![];
    let mut statement = conn.prepare_cached(sql)?;
    let mut rows = statement.query([start])?;
    while records.len() < limit {
        let Some(row) = rows.next()? else { break };
        let key = row.get_ref(0)?.as_str()?;
        if !key.starts_with(prefix) {
            break;
        }
        // `Store` promises that no listing includes these records.
        if key.starts_with(CHANGES) {
            continue;
        }
        let value = Bytes::copy_from_slice(row.get_ref(1)?.as_blob()?);
        records.push(Record { key: key.to_owned(), value });
    }
    Ok(records)
}

/// The slices of a dataset, ascending.
pub(crate) fn slices(conn: &Connection, dataset: &DatasetName) -> rusqlite::Result<Vec<SliceId>> {
    let mut statement = conn.prepare_cached("SELECT slice FROM slices WHERE dataset = ?1 ORDER BY slice")?;
    statement.query_map([dataset.as_str()], |row| row.get(0).map(SliceId))?.collect()
}
