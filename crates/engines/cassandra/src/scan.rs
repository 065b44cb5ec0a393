//! Reading chunks: scans in order, look-ups by key, statistics.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use bytes::Bytes;
use chronotile_cql::scylla::response::PagingState;
use chronotile_cql::scylla::response::query_result::QueryRowsResult;
use chronotile_cql::scylla::statement::prepared::PreparedStatement;
use chronotile_cql::scylla::value::CqlValue;
use chronotile_cql::{Call, CqlError, Session};
use chronotile_rows::{Gatherer, Pushed};
use chronotile_store::{Cells, Chunk, ChunkKey, Scan, TileStatistics, Windows};
use chronotile_types::{Cell, ChunkId, SliceId, Tile, Window};
use futures::stream::{self, BoxStream, Stream, StreamExt, TryStreamExt};

use crate::chunks::{LOOKUP_CHUNKS, ids_in_tile};
use crate::failure::{malformed, refused};
use crate::form::rows::RowForm;
use crate::form::{Form, Home, Names, PAGE_ROWS, Sizes};
use crate::requests::quorum_call;
use crate::schema::unless_gone;

/// Partitions read ahead, in order.
const READ_AT_ONCE: usize = 32;
/// Cells asked for one by one; above, those that exist are listed first.
const CELLS_ASKED: u64 = 2_048;
/// Tiles named in a statement, at most.
const TILES_NAMED: u64 = 128;
/// From here on ids are those of older versions.
const OLDER_FROM: &str = "0x80";
/// Parts of the ring that a listing of partitions is cut in, and how many are read at once.
const RING_PARTS: i64 = 16;
const RING_AT_ONCE: usize = 16;
/// Bytes of one partition after which what is complete is handed on.
const HELD_BYTES: usize = 16 << 20;
/// Chunks and bytes of one group of a scan.
const GROUP_CHUNKS: usize = 1_024;
const GROUP_BYTES: usize = 4 << 20;

/// What every read of one scan shares.
struct Reader {
    home: Home,
    sizes: Arc<Sizes>,
    call: Call,
    windows: Windows,
    bodies: bool,
    older: bool,
}

/// Streams chunks as the contract of the store has it.
pub(crate) fn scan(
    home: Home,
    sizes: Arc<Sizes>,
    call: Call,
    scan: Scan,
) -> BoxStream<'static, chronotile_store::Result<Vec<Chunk>>> {
    let Scan { slices, cells, windows, bodies, older } = scan;
    let reader = Arc::new(Reader { home, sizes, call, windows, bodies, older });
    let places = {
        let reader = reader.clone();
        stream::iter(slices)
            .then(move |slice| {
                let (reader, cells) = (reader.clone(), cells.clone());
                async move { Ok::<_, CqlError>(stream::iter(reader.places(slice, &cells).await?.into_iter().map(Ok))) }
            })
            .try_flatten()
    };
    reader.partitions(places)
}

/// Cells of one partition, ascending, that are to be read: the first from a window on, the others whole.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    slice: SliceId,
    cells: Vec<Cell>,
    from: Window,
}

impl Place {
    /// What is left from a tile on.
    fn at(&self, tile: Tile) -> Self {
        let cells = self.cells.iter().copied().filter(|cell| *cell >= tile.cell).collect();
        Self { slice: self.slice, cells, from: tile.window }
    }

    /// The cells that one statement reads from one window on, and what is left; `first` is the window that all but the
    /// first cell begin at.
    fn split(mut self, first: Window) -> (Self, Option<Self>) {
        if self.from == first || self.cells.len() == 1 {
            return (self, None);
        }
        let others = self.cells.split_off(1);
        let rest = Self { slice: self.slice, cells: others, from: first };
        (self, Some(rest))
    }
}

impl Reader {
    /// The partitions to read of a slice, ascending.
    async fn places(&self, slice: SliceId, cells: &Cells) -> Result<Vec<Place>, CqlError> {
        if self.windows.is_empty() {
            return Ok(vec![]);
        }
        let from = self.windows.outer().0;
        let together = self.home.form.cells();
        let place = |cells: Vec<Cell>| Place { slice, cells, from };
        let all_of = |partition: &i64| {
            let first = partition.saturating_mul(together);
            (first..=first.saturating_add(together - 1)).map(Cell)
        };
        let Cells::Ranges(ranges) = cells else {
            return Ok(self
                .existing(slice)
                .await?
                .iter()
                .map(|partition| place(all_of(partition).collect()))
                .collect());
        };
        let many = |(first, last): &(Cell, Cell)| last.0.checked_sub(first.0).map(|more| more as u64 + 1);
        let asked = ranges.iter().try_fold(0u64, |sum, range| sum.checked_add(many(range)?));
        if asked.is_some_and(|asked| asked <= CELLS_ASKED) {
            let cells: Vec<Cell> = ranges.iter().flat_map(|(first, last)| first.0..=last.0).map(Cell).collect();
            let partition = |cell: &Cell| self.home.partition(*cell);
            return Ok(cells.chunk_by(|a, b| partition(a) == partition(b)).map(|some| place(some.to_vec())).collect());
        }
        let wanted = |cell: &Cell| {
            let at = ranges.partition_point(|(_, last)| last < cell);
            ranges.get(at).is_some_and(|(first, _)| first <= cell)
        };
        let existing = self.existing(slice).await?;
        let places = existing.iter().map(|partition| place(all_of(partition).filter(wanted).collect()));
        Ok(places.filter(|place| !place.cells.is_empty()).collect())
    }

    /// The partitions of a slice that hold something, ascending.
    async fn existing(&self, slice: SliceId) -> Result<Vec<i64>, CqlError> {
        let key = self.home.names().partition;
        let place = self.home.place(slice);
        let cql = format!("SELECT DISTINCT token({key}), {key} FROM {place} WHERE {}", on_ring(key));
        let each = |rows: &mut Vec<i64>, (_, partition): (i64, i64)| rows.push(partition);
        let read = || over_the_ring(&self.home.session, &cql, &self.call, |row: &(i64, i64)| row.0, each);
        let parts = unless_gone(&self.home, slice, &self.call, read).await?;
        let mut partitions: Vec<i64> = parts.unwrap_or_default().into_iter().flatten().collect();
        partitions.sort_unstable();
        Ok(partitions)
    }

    /// The chunks of places in groups, several read ahead, whatever their slices: a period that begins in one slice and
    /// ends in the next waits for both at once.
    fn partitions(
        self: Arc<Self>,
        places: impl Stream<Item = Result<Place, CqlError>> + Send + 'static,
    ) -> BoxStream<'static, chronotile_store::Result<Vec<Chunk>>> {
        let first = {
            let reader = self.clone();
            move |place: Result<Place, CqlError>| {
                let reader = reader.clone();
                async move {
                    let place = place?;
                    let part = reader.partition(&place).await?;
                    Ok::<_, CqlError>((place, part))
                }
            }
        };
        let rest = move |(place, part): (Place, Segment)| {
            let reader = self.clone();
            stream::try_unfold(Some(part), move |part| {
                let (reader, place) = (reader.clone(), place.clone());
                async move {
                    let Some(Segment { chunks, next, gone }) = part else { return Ok::<_, CqlError>(None) };
                    if gone {
                        return Err(CqlError::NoTable { reason: "its slice was dropped while it was read".to_owned() });
                    }
                    let following = match next {
                        Some(tile) => Some(reader.partition(&place.at(tile)).await?),
                        None => None,
                    };
                    Ok(Some((chunks, following)))
                }
            })
        };
        // What was read ahead of a partition that is gone would leave a gap before it: nothing of its slice follows.
        let mut dropped = None;
        let there = move |(place, part): &(Place, Segment)| {
            if part.gone {
                dropped = Some(place.slice);
            }
            std::future::ready(dropped != Some(place.slice))
        };
        places
            .map(first)
            .buffered(READ_AT_ONCE)
            .try_filter(there)
            .map_ok(rest)
            .try_flatten()
            .map_ok(|chunks| stream::iter(groups(chunks).into_iter().map(Ok)))
            .try_flatten()
            .map_err(refused)
            .boxed()
    }

    /// Reads a place.
    async fn partition(&self, place: &Place) -> Result<Segment, CqlError> {
        let read = || self.partition_at_once(place);
        let Some((mut part, doubtful)) = unless_gone(&self.home, place.slice, &self.call, read).await? else {
            return Ok(Segment::GONE);
        };
        look_again(&self.home, &mut part.chunks, doubtful).await?;
        let wanted = |key: &ChunkKey| (self.older || !key.id.is_older()) && self.windows.contains(key.tile.window);
        part.chunks.retain(|chunk| wanted(&chunk.key));
        Ok(part)
    }

    /// Reads a place where its table is there; with the chunks of which rows were missing. A removal that lands between two
    /// answers changes the partition's epoch; what was read of the tile at hand is then read again.
    async fn partition_at_once(&self, whole: &Place) -> Result<(Segment, Vec<ChunkKey>), CqlError> {
        let (columns, mut held) = begin(&self.home, whole.slice, whole.cells[0], self.bodies, false).await?;
        let named = self.windows_to_name(whole);
        let select = self.select(whole.slice, &columns, named.is_some());
        let mut select = self.home.session.prepare(&select, true).await?;
        let mut left = Some(whole.clone());
        'places: while let Some(place) = left {
            let (now, rest) = place.split(self.windows.outer().0);
            let values = self.values(&now, named.as_deref());
            let mut state = PagingState::start();
            loop {
                select.set_page_size(held.sizes(&self.sizes).page_rows(self.bodies));
                let (page, next) = self.home.session.page(&select, &values, state, &self.call).await?;
                let page = page.into_rows_result().map_err(malformed)?;
                if !held.take(&page, self.bodies, &self.sizes)? {
                    left = Some(held.restart().map_or_else(|| whole.clone(), |tile| whole.at(tile)));
                    continue 'places;
                }
                match next.into_paging_control_flow() {
                    ControlFlow::Break(()) => break,
                    ControlFlow::Continue(next) => state = next,
                }
                if held.bytes > HELD_BYTES
                    && let Some(part) = held.cut()
                {
                    return Ok(part);
                }
            }
            left = rest;
        }
        held.end()
    }

    /// The windows to read where some between the first and the last are left out, or the older versions of records are: only a statement
    /// that names each window can have the nodes do that. `None` where nothing is left out, or the windows are many: then it is done here.
    fn windows_to_name(&self, place: &Place) -> Option<Vec<Window>> {
        if self.older && self.windows.ranges().count() < 2 {
            return None;
        }
        let there = self.home.dataset.windows_of(place.slice).and(&self.windows);
        (there.count().saturating_mul(place.cells.len() as u64) <= TILES_NAMED).then(|| there.iter().collect())
    }

    /// The statement that reads cells of a partition from a window on, or in `named` windows.
    fn select(&self, slice: SliceId, columns: &str, named: bool) -> String {
        let Names { partition, cell, window, id, first_filtered, .. } = self.home.names();
        let cells = if self.home.form.cells() == 1 { String::new() } else { format!(" AND {cell} IN ?") };
        let filter = if self.bodies { "" } else { first_filtered };
        let windows = match (named, self.older) {
            (true, false) => format!("{window} IN ? AND {id} < {OLDER_FROM}"),
            (true, true) => format!("{window} IN ?"),
            (false, _) => format!("{window} >= ? AND {window} <= ?"),
        };
        let table = self.home.place(slice);
        format!("SELECT {columns} FROM {table} WHERE {partition} = ?{cells} AND {windows}{filter}")
    }

    fn values(&self, place: &Place, named: Option<&[Window]>) -> Vec<Option<CqlValue>> {
        let mut values = vec![CqlValue::BigInt(self.home.partition(place.cells[0]))];
        if self.home.form.cells() > 1 {
            values.push(CqlValue::List(place.cells.iter().map(|cell| CqlValue::BigInt(cell.0)).collect()));
        }
        match named {
            Some(windows) => {
                let left = windows.iter().filter(|window| **window >= place.from);
                values.push(CqlValue::List(left.map(|window| CqlValue::Int(window.0)).collect()));
            }
            None => values.extend([place.from, self.windows.outer().1].map(|window| CqlValue::Int(window.0))),
        }
        values.into_iter().map(Some).collect()
    }
}

/// The columns of a [`HeadRow`].
fn heads_of(Names { cell, window, id, epoch, rows, head, .. }: &Names) -> String {
    format!("{epoch}, {cell}, {window}, {id}, {rows}, {head}")
}

/// The columns of a [`ChunkRow`]: all that a chunk has, also the one that nobody needs. Nodes repair what is selected, but compare replicas
/// by the write times of all columns: with one left out they would go on comparing a chunk that a replica lacked.
fn chunks_of(names: &Names) -> String {
    format!("{}, body, {}", heads_of(names), names.bytes)
}

/// What to select of a slice's table, and what gathers it. With `refresh` the table's columns are looked up again.
async fn begin(
    home: &Home,
    slice: SliceId,
    cell: Cell,
    bodies: bool,
    refresh: bool,
) -> Result<(String, Held), CqlError> {
    let mut held = Held { slice, cell, epoch: None, chunks: Vec::new(), bytes: 0, records: None, doubtful: Vec::new() };
    let columns = match (&home.form, bodies) {
        (Form::Rows(form), true) => {
            let codec = form.codec().clone();
            let columns = form.columns_of(home, slice, refresh).await?;
            let names = codec.select(columns);
            held.records = Some((form.clone(), Gatherer::new(codec, columns, slice, cell)));
            names
        }
        (_, false) => heads_of(home.names()),
        (Form::Chunks { .. }, true) => chunks_of(home.names()),
    };
    Ok((columns, held))
}

/// Reads chunks of which rows were missing once more, by a majority: those that were removed meanwhile go, and those whose
/// rows had not reached the replicas asked get them. What still lacks rows is damaged, and stays as it is for the reader to
/// find out.
async fn look_again(home: &Home, chunks: &mut Vec<Chunk>, doubtful: Vec<ChunkKey>) -> Result<(), CqlError> {
    let mut found: HashMap<ChunkKey, Chunk> = HashMap::new();
    for same_tile in doubtful.chunk_by(|a, b| a.tile == b.tile) {
        for some in same_tile.chunks(LOOKUP_CHUNKS) {
            let call = quorum_call(&home.session);
            let read = || fetch_some(home, some, &call, true);
            let again = unless_gone(home, some[0].slice, &call, read).await?;
            let again = again.map(|(chunks, _)| chunks).unwrap_or_default();
            found.extend(again.into_iter().map(|chunk| (chunk.key, chunk)));
        }
    }
    if !doubtful.is_empty() {
        let doubtful: HashSet<ChunkKey> = doubtful.into_iter().collect();
        chunks.retain(|chunk| !doubtful.contains(&chunk.key) || found.contains_key(&chunk.key));
        for chunk in chunks {
            if let Some(better) = found.remove(&chunk.key) {
                *chunk = better;
            }
        }
    }
    Ok(())
}

/// Chunks of a partition, all tiles complete, and where to go on.
struct Segment {
    chunks: Vec<Chunk>,
    next: Option<Tile>,
    /// Whether the table is not there: it was dropped, or never made.
    gone: bool,
}

impl Segment {
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
    /// Where records are rows and all of them are read: what puts them together.
    records: Option<(RowForm, Gatherer)>,
    /// Chunks of which rows were missing.
    doubtful: Vec<ChunkKey>,
}

/// Epoch, cell, window, id, rows, head, body, bytes.
type ChunkRow =
    (Option<i64>, Option<i64>, Option<i32>, Option<Bytes>, Option<i32>, Option<Bytes>, Option<Bytes>, Option<i32>);
/// The same without body and bytes.
type HeadRow = (Option<i64>, Option<i64>, Option<i32>, Option<Bytes>, Option<i32>, Option<Bytes>);

impl Held {
    /// Sizes of what is read.
    fn sizes<'a>(&'a self, of_chunks: &'a Sizes) -> &'a Sizes {
        self.records.as_ref().map_or(of_chunks, |(form, _)| form.sizes())
    }

    /// Takes the rows of an answer; `false` where they show that chunks were removed since the last.
    fn take(&mut self, answer: &QueryRowsResult, bodies: bool, sizes: &Sizes) -> Result<bool, CqlError> {
        if let Some((form, gatherer)) = &mut self.records {
            form.sizes().saw(answer.rows_bytes_size(), answer.rows_num());
            let pushed = gatherer.push(answer).map_err(malformed)?;
            if pushed.epoch_changed {
                return Ok(false);
            }
            self.keep(pushed)?;
            return Ok(true);
        }
        let before = self.chunks.len();
        if bodies {
            for row in answer.rows::<ChunkRow>().map_err(malformed)? {
                let (epoch, cell, window, id, rows, head, body, _) = row.map_err(malformed)?;
                if !self.add((epoch, cell, window, id, rows, head), body)? {
                    return Ok(false);
                }
            }
        } else {
            for row in answer.rows::<HeadRow>().map_err(malformed)? {
                if !self.add(row.map_err(malformed)?, None)? {
                    return Ok(false);
                }
            }
        }
        let bytes: usize = self.chunks[before..].iter().map(|chunk| chunk.head.len() + chunk.body.len()).sum();
        sizes.saw(bytes, self.chunks.len() - before);
        Ok(true)
    }

    fn keep(&mut self, pushed: Pushed) -> Result<(), CqlError> {
        if let (true, Some((form, _))) = (pushed.narrow, &self.records) {
            // As where a node does not know of a table yet: all of it is read again.
            form.forget();
            return Err(CqlError::NoTable { reason: "the table lacks columns that its rows have".to_owned() });
        }
        self.bytes += pushed.chunks.iter().map(|chunk| chunk.head.len() + chunk.body.len()).sum::<usize>();
        self.chunks.extend(pushed.chunks);
        self.doubtful.extend(pushed.doubtful);
        Ok(())
    }

    /// All that was read: no more comes.
    fn end(mut self) -> Result<(Segment, Vec<ChunkKey>), CqlError> {
        if let Some((_, gatherer)) = &mut self.records {
            let last = gatherer.finish();
            self.keep(last)?;
        }
        Ok((Segment { chunks: self.chunks, next: None, gone: false }, self.doubtful))
    }

    /// The tile at hand: whether all of its chunks have come is not known yet.
    fn tile(&self) -> Option<Tile> {
        let open = self.records.as_ref().and_then(|(_, gatherer)| gatherer.window());
        let open = open.map(|window| Tile { cell: self.cell, window });
        open.or_else(|| self.chunks.last().map(|chunk| chunk.key.tile))
    }

    fn add(&mut self, (epoch, cell, window, id, rows, head): HeadRow, body: Option<Bytes>) -> Result<bool, CqlError> {
        if *self.epoch.get_or_insert(epoch) != epoch {
            return Ok(false);
        }
        // A partition without chunks may still have an epoch.
        let (Some(cell), Some(window), Some(id)) = (cell, window, id) else { return Ok(true) };
        // A deletion and a late write of another client may leave a row of which parts are gone: it is removed.
        let (Some(rows), Some(head)) = (rows, head) else { return Ok(true) };
        let id = ChunkId::from_bytes(&id).ok_or_else(|| malformed("a chunk id has not 16 bytes"))?;
        let tile = Tile { cell: Cell(cell), window: Window(window) };
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

    /// Forgets the tile at hand and says which one that is: from there on is to be read again.
    fn restart(&mut self) -> Option<Tile> {
        self.epoch = None;
        let tile = self.tile();
        if let Some((_, gatherer)) = &mut self.records {
            gatherer.forget();
        }
        let tile = tile?;
        self.chunks.retain(|chunk| chunk.key.tile < tile);
        self.doubtful.retain(|key| key.tile < tile);
        self.bytes = self.chunks.iter().map(|chunk| chunk.head.len() + chunk.body.len()).sum();
        Some(tile)
    }

    /// The complete tiles, where there is one besides the last; the reading goes on at that.
    fn cut(&mut self) -> Option<(Segment, Vec<ChunkKey>)> {
        let tile = self.tile()?;
        let complete = self.chunks.partition_point(|chunk| chunk.key.tile < tile);
        (complete > 0).then(|| {
            self.chunks.truncate(complete);
            self.doubtful.retain(|key| key.tile < tile);
            let part = Segment { chunks: std::mem::take(&mut self.chunks), next: Some(tile), gone: false };
            (part, std::mem::take(&mut self.doubtful))
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
pub(crate) async fn fetch(home: &Home, keys: Vec<ChunkKey>, call: &Call) -> Result<Vec<Chunk>, CqlError> {
    let mut sorted = keys.clone();
    sorted.sort_unstable();
    sorted.dedup();
    let requests: Vec<Vec<ChunkKey>> = sorted
        .chunk_by(|a, b| a.slice == b.slice && a.tile == b.tile)
        .flat_map(|same_tile| same_tile.chunks(LOOKUP_CHUNKS).map(<[ChunkKey]>::to_vec))
        .collect();
    let reads = requests.into_iter().map(|some| async move {
        let read = || fetch_some(home, &some, call, false);
        let found = unless_gone(home, some[0].slice, call, read).await?;
        let Some((mut chunks, doubtful)) = found else { return Ok::<_, CqlError>(vec![]) };
        look_again(home, &mut chunks, doubtful).await?;
        Ok(chunks)
    });
    let found: Vec<Vec<Chunk>> = stream::iter(reads).buffer_unordered(READ_AT_ONCE).try_collect().await?;
    let found: HashMap<ChunkKey, Chunk> = found.into_iter().flatten().map(|chunk| (chunk.key, chunk)).collect();
    Ok(keys.iter().filter_map(|key| found.get(key).cloned()).collect())
}

/// Chunks of one tile, with those of which rows were missing.
async fn fetch_some(
    home: &Home,
    keys: &[ChunkKey],
    call: &Call,
    refresh: bool,
) -> Result<(Vec<Chunk>, Vec<ChunkKey>), CqlError> {
    let first = keys[0];
    let (columns, mut held) = begin(home, first.slice, first.tile.cell, true, refresh).await?;
    let (place, tile, id) = (home.place(first.slice), home.of_tile(), home.names().id);
    let mut select =
        home.session.prepare(&format!("SELECT {columns} FROM {place} WHERE {tile} AND {id} IN ?"), true).await?;
    let values = ids_in_tile(home, keys);
    let sizes = Sizes::default();
    // Chunks by their ids come in one answer, their records in several.
    let whole_rows = PAGE_ROWS.1 as i32;
    let mut state = PagingState::start();
    loop {
        select.set_page_size(if held.records.is_some() { held.sizes(&sizes).page_rows(true) } else { whole_rows });
        let (page, next) = home.session.page(&select, &values, state, call).await?;
        if !held.take(&page.into_rows_result().map_err(malformed)?, true, &sizes)? {
            held.restart();
            state = PagingState::start();
            continue;
        }
        match next.into_paging_control_flow() {
            ControlFlow::Break(()) => break,
            ControlFlow::Continue(next) => state = next,
        }
    }
    let (part, doubtful) = held.end()?;
    Ok((part.chunks, doubtful))
}

/// What each tile of a slice holds, by cell, then window.
pub(crate) async fn statistics(home: &Home, slice: SliceId, call: &Call) -> Result<Vec<TileStatistics>, CqlError> {
    let Names { partition, cell, window, id, rows, bytes, first_filtered, .. } = home.names();
    let (place, part) = (home.place(slice), on_ring(partition));
    let columns = format!("token({partition}), {cell}, {window}, {id}, {rows}, {bytes}");
    let cql = format!("SELECT {columns} FROM {place} WHERE {part}{first_filtered}");
    type Row = (i64, Option<i64>, Option<i32>, Option<Vec<u8>>, Option<i32>, Option<i32>);
    let each = |tiles: &mut BTreeMap<Tile, TileStatistics>, row: Row| {
        let (_, Some(cell), Some(window), Some(id), Some(rows), Some(bytes)) = row else { return };
        let Some(id) = ChunkId::from_bytes(&id) else { return };
        let tile = Tile { cell: Cell(cell), window: Window(window) };
        let found = tiles.entry(tile).or_insert(TileStatistics::none(tile));
        found.add(id, rows as u32, u64::from(bytes as u32));
    };
    let read = || over_the_ring(&home.session, &cql, call, |row: &Row| row.0, each);
    let parts = unless_gone(home, slice, call, read).await?.unwrap_or_default();
    let tiles: BTreeMap<Tile, TileStatistics> = parts.into_iter().flatten().collect();
    Ok(tiles.into_values().collect())
}

/// The condition that limits a table with this partition key to a part of the ring.
fn on_ring(key: &str) -> String {
    format!("token({key}) >= ? AND token({key}) <= ?")
}

/// Reads a whole table by a statement with the condition of [`on_ring`], and gathers its rows with `each`. What comes in one page is one
/// request; the rest of a larger table is read in parts of the ring, several at once. No partition is in two of the parts returned.
async fn over_the_ring<R, T>(
    session: &Session,
    cql: &str,
    call: &Call,
    token: impl Fn(&R) -> i64,
    each: impl Fn(&mut T, R) + Copy,
) -> Result<Vec<T>, CqlError>
where
    R: for<'frame> chronotile_cql::scylla::deserialize::row::DeserializeRow<'frame, 'frame>,
    T: Default,
{
    let mut select: PreparedStatement = session.prepare(cql, true).await?;
    select.set_page_size(PAGE_ROWS.1 as i32);
    let select = &select;
    let (page, next) = session.page(select, (i64::MIN, i64::MAX), PagingState::start(), call).await?;
    let page = page.into_rows_result().map_err(malformed)?;
    let rows = page.rows::<R>().map_err(malformed)?.collect::<Result<Vec<R>, _>>().map_err(malformed)?;
    // The partition that the page ends in may go on.
    let from = match next.into_paging_control_flow() {
        ControlFlow::Break(()) => None,
        ControlFlow::Continue(_) => Some(rows.last().map_or(i64::MIN, &token)),
    };
    let mut gathered = T::default();
    rows.into_iter().filter(|row| from.is_none_or(|from| token(row) < from)).for_each(|row| each(&mut gathered, row));
    let Some(from) = from else { return Ok(vec![gathered]) };
    let parts = ring_parts(from).map(|(first, last)| async move {
        let mut gathered = T::default();
        let mut state = PagingState::start();
        loop {
            let (page, next) = session.page(select, (first, last), state, call).await?;
            let rows = page.into_rows_result().map_err(malformed)?;
            for row in rows.rows::<R>().map_err(malformed)? {
                each(&mut gathered, row.map_err(malformed)?);
            }
            match next.into_paging_control_flow() {
                ControlFlow::Break(()) => return Ok::<_, CqlError>(gathered),
                ControlFlow::Continue(next) => state = next,
            }
        }
    });
    let mut parts: Vec<T> = stream::iter(parts).buffered(RING_AT_ONCE).try_collect().await?;
    parts.insert(0, gathered);
    Ok(parts)
}

/// Inclusive ranges of tokens that together are the ring from a token on.
fn ring_parts(from: i64) -> impl Iterator<Item = (i64, i64)> {
    let (start, end) = (i128::from(from), i128::from(i64::MAX));
    let step = ((end - start + 1) / i128::from(RING_PARTS)).max(1);
    let part = move |part: i128| {
        let first = start + part * step;
        let last = if part + 1 == i128::from(RING_PARTS) { end } else { first + step - 1 };
        (first as i64, last as i64)
    };
    (0..i128::from(RING_PARTS)).map(part).filter(|(first, last)| first <= last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::chunk_columns;

    #[test]
    fn a_place_is_read_on_in_the_middle_of_its_first_cell_and_from_the_start_of_the_others() {
        let place = |cells: &[i64], from| Place {
            slice: SliceId(2),
            cells: cells.iter().copied().map(Cell).collect(),
            from: Window(from),
        };
        let whole = place(&[4, 5, 7], -3);
        assert_eq!(whole.clone().split(Window(-3)), (whole.clone(), None));
        let left = whole.at(Tile { cell: Cell(5), window: Window(8) });
        assert_eq!(left, place(&[5, 7], 8));
        assert_eq!(left.split(Window(-3)), (place(&[5], 8), Some(place(&[7], -3))));
        let last = whole.at(Tile { cell: Cell(7), window: Window(8) });
        assert_eq!(last.split(Window(-3)), (place(&[7], 8), None));
    }

    #[test]
    fn a_read_of_chunks_selects_all_that_nodes_compare() {
        for cells in [1, 4] {
            let form = Form::Chunks { cells };
            let selected = chunks_of(form.names());
            let selected: HashSet<&str> = selected.split(", ").collect();
            let (columns, _) = chunk_columns(cells).split_once(", PRIMARY KEY").unwrap();
            let columns = columns.split(", ").filter_map(|column| column.split_whitespace().next());
            let lacking: Vec<&str> = columns.filter(|column| !selected.contains(column)).collect();
            // The cells of a partition tell which one it is.
            assert_eq!(lacking, if cells == 1 { vec![] } else { vec!["part"] });
        }
    }

    #[test]
    fn the_parts_of_the_ring_are_the_ring() {
        for from in [i64::MIN, -1, 0, 7, i64::MAX - 20, i64::MAX - 16, i64::MAX - 15] {
            let parts: Vec<_> = ring_parts(from).collect();
            assert_eq!((parts[0].0, parts[parts.len() - 1].1), (from, i64::MAX));
            assert!(parts.windows(2).all(|pair| pair[0].1 + 1 == pair[1].0), "{parts:?}");
        }
    }
}
