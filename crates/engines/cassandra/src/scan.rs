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
use chronotile_rows::{GatheredChunks, Gatherer};
use chronotile_store::{Cells, Chunk, ChunkKey, Scan, TileStatistics, Windows};
use chronotile_types::{Cell, ChunkId, SliceId, Tile, Window};
use futures::stream::{self, BoxStream, Stream, StreamExt, TryStreamExt};

use crate::chunks::{LOOKUP_CHUNKS, ids_in_tile};
use crate::failure::{malformed, refused};
use crate::layout::rows::RowLayout;
use crate::layout::{DatasetTables, Names, PAGE_ROWS, Sizes, TableLayout};
use crate::requests::quorum_call;
use crate::schema::if_table_exists;

/// Partitions that a scan reads ahead, in order.
const READ_AT_ONCE: usize = 32;
/// Maximum cells that are read without checking that they exist; for more, the existing partitions are listed first.
const CELLS_UNCHECKED_MAX: u64 = 2_048;
/// Maximum tiles that a statement names.
const TILES_NAMED_MAX: u64 = 128;
/// The lowest id of a chunk of older versions.
const OLDER_FROM: &str = "0x80";
/// Number of token ranges for reading a whole table, and how many are read concurrently.
const RING_PARTS: i64 = 16;
const RING_AT_ONCE: usize = 16;
/// Buffered bytes of one partition after which the complete tiles are returned.
const BUFFER_BYTES: usize = 16 << 20;
/// Maximum chunks and bytes in one group of a scan.
const GROUP_CHUNKS: usize = 1_024;
const GROUP_BYTES: usize = 4 << 20;

/// The parameters that all reads of one scan share.
struct Reader {
    tables: DatasetTables,
    sizes: Arc<Sizes>,
    call: Call,
    windows: Windows,
    bodies: bool,
    older: bool,
}

/// Streams chunks; see [`chronotile_store::Store::scan`].
pub(crate) fn scan(
    tables: DatasetTables,
    sizes: Arc<Sizes>,
    call: Call,
    scan: Scan,
) -> BoxStream<'static, chronotile_store::Result<Vec<Chunk>>> {
    let Scan { slices, cells, windows, bodies, older } = scan;
    let reader = Arc::new(Reader { tables, sizes, call, windows, bodies, older });
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

/// Cells of one partition to read, ascending: the first cell from a window on, the others completely.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PartitionRead {
    slice: SliceId,
    cells: Vec<Cell>,
    from: Window,
}

impl PartitionRead {
    /// The remainder from a tile on.
    fn at(&self, tile: Tile) -> Self {
        let cells = self.cells.iter().copied().filter(|cell| *cell >= tile.cell).collect();
        Self { slice: self.slice, cells, from: tile.window }
    }

    /// The cells that one statement can read, all from the same window on, and the remainder. `first` is the window at which all cells
    /// but the first begin.
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
    async fn places(&self, slice: SliceId, cells: &Cells) -> Result<Vec<PartitionRead>, CqlError> {
        if self.windows.is_empty() {
            return Ok(vec![]);
        }
        let from = self.windows.outer().0;
        let together = self.tables.layout.cells();
        let place = |cells: Vec<Cell>| PartitionRead { slice, cells, from };
        let all_of = |partition: &i64| {
            // The first and the last partition may reach beyond the range of cell numbers, so their bounds saturate. A
            // cell that is named in excess has no chunks in the partition.
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
        // The length of a range of all cells overflows: `None` counts as too many.
        let asked = ranges.iter().try_fold(0u64, |sum, range| sum.checked_add(many(range)?));
        if asked.is_some_and(|asked| asked <= CELLS_UNCHECKED_MAX) {
            let cells: Vec<Cell> = ranges.iter().flat_map(|(first, last)| first.0..=last.0).map(Cell).collect();
            // The ranges ascend, so the cells of one partition are neighbours in the list.
            let partition = |cell: &Cell| self.tables.partition(*cell);
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

    /// The partitions of a slice that hold chunks, ascending.
    async fn existing(&self, slice: SliceId) -> Result<Vec<i64>, CqlError> {
        let key = self.tables.names().partition;
        let place = self.tables.qualified_table(slice);
        let cql = format!("SELECT DISTINCT token({key}), {key} FROM {place} WHERE {}", token_condition(key));
        let each = |rows: &mut Vec<i64>, (_, partition): (i64, i64)| rows.push(partition);
        let read = || scan_ring(&self.tables.session, &cql, &self.call, |row: &(i64, i64)| row.0, each);
        let parts = if_table_exists(&self.tables, slice, &self.call, read).await?;
        let mut partitions: Vec<i64> = parts.unwrap_or_default().into_iter().flatten().collect();
        // The ring orders partitions by token, but a scan returns chunks by cell.
        partitions.sort_unstable();
        Ok(partitions)
    }

    /// The chunks of these partitions in groups. Reads ahead across slices, so that a period that spans two slices waits for both
    /// concurrently.
    fn partitions(
        self: Arc<Self>,
        places: impl Stream<Item = Result<PartitionRead, CqlError>> + Send + 'static,
    ) -> BoxStream<'static, chronotile_store::Result<Vec<Chunk>>> {
        // Two steps for each partition: `first` reads its first segment, `rest` the segments that follow.
        let first = {
            let reader = self.clone();
            move |place: Result<PartitionRead, CqlError>| {
                let reader = reader.clone();
                async move {
                    let place = place?;
                    let part = reader.partition(&place).await?;
                    Ok::<_, CqlError>((place, part))
                }
            }
        };
        let rest = move |(place, part): (PartitionRead, Segment)| {
            let reader = self.clone();
            stream::try_unfold(Some(part), move |part| {
                let (reader, place) = (reader.clone(), place.clone());
                async move {
                    // Only a later segment can be `gone` here: `there` has removed partitions whose first segment is.
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
        // After a partition whose table is gone, return nothing more of its slice: partitions that were read ahead would follow a gap.
        let mut dropped = None;
        let there = move |(place, part): &(PartitionRead, Segment)| {
            if part.gone {
                dropped = Some(place.slice);
            }
            std::future::ready(dropped != Some(place.slice))
        };
        // Only the first segment of each partition is read ahead: the rest of a large partition is read once the
        // consumer reaches the partition, so that memory stays bounded.
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

    /// Reads a partition and drops chunks that the scan does not want.
    async fn partition(&self, place: &PartitionRead) -> Result<Segment, CqlError> {
        let read = || self.partition_at_once(place);
        let Some((mut part, incomplete)) = if_table_exists(&self.tables, place.slice, &self.call, read).await? else {
            return Ok(Segment::GONE);
        };
        reread_incomplete(&self.tables, &mut part.chunks, incomplete).await?;
        // The nodes have skipped other windows and older versions only if the statement names every window.
        let wanted = |key: &ChunkKey| (self.older || !key.id.is_older()) && self.windows.contains(key.tile.window);
        part.chunks.retain(|chunk| wanted(&chunk.key));
        Ok(part)
    }

    /// Reads a partition of an existing table; also returns the keys of chunks with missing rows. A removal between two pages changes
    /// the partition's epoch; the current tile is then read again.
    async fn partition_at_once(&self, whole: &PartitionRead) -> Result<(Segment, Vec<ChunkKey>), CqlError> {
        let (columns, mut buffer) = start_read(&self.tables, whole.slice, whole.cells[0], self.bodies, false).await?;
        let named = self.windows_to_name(whole);
        let select = self.select(whole.slice, &columns, named.is_some());
        let mut select = self.tables.session.prepare(&select, true).await?;
        let mut left = Some(whole.clone());
        // Usually one statement reads the partition. If the read continues within a cell, that cell begins at a later
        // window than the others and has a statement of its own.
        'places: while let Some(place) = left {
            let (now, rest) = place.split(self.windows.outer().0);
            let values = self.values(&now, named.as_deref());
            let mut state = PagingState::start();
            loop {
                select.set_page_size(buffer.sizes(&self.sizes).page_rows(self.bodies));
                let (page, next) = self.tables.session.page(&select, &values, state, &self.call).await?;
                let page = page.into_rows_result().map_err(malformed)?;
                if !buffer.add_page(&page, self.bodies, &self.sizes)? {
                    // The new position derives from `whole`, not from `place`: it includes the cells that `split` has
                    // left in `rest`.
                    left = Some(buffer.restart().map_or_else(|| whole.clone(), |tile| whole.at(tile)));
                    continue 'places;
                }
                match next.into_paging_control_flow() {
                    ControlFlow::Break(()) => break,
                    ControlFlow::Continue(next) => state = next,
                }
                if buffer.bytes > BUFFER_BYTES
                    && let Some(part) = buffer.take_complete()
                {
                    return Ok(part);
                }
            }
            left = rest;
        }
        buffer.finish()
    }

    /// The windows to name in the statement, so that nodes skip windows in gaps, or older versions: they can do so only if every window
    /// is named. `None` if nothing is skipped, or if there are too many windows: then this client filters.
    fn windows_to_name(&self, place: &PartitionRead) -> Option<Vec<Window>> {
        if self.older && self.windows.ranges().count() < 2 {
            return None;
        }
        let there = self.tables.dataset.windows_of(place.slice).and(&self.windows);
        (there.count().saturating_mul(place.cells.len() as u64) <= TILES_NAMED_MAX).then(|| there.iter().collect())
    }

    /// The statement that reads cells of a partition from a window on or, if `named`, in the windows bound to it.
    fn select(&self, slice: SliceId, columns: &str, named: bool) -> String {
        let Names { partition, cell, window, id, first_filtered, .. } = self.tables.names();
        let cells = if self.tables.layout.cells() == 1 { String::new() } else { format!(" AND {cell} IN ?") };
        let filter = if self.bodies { "" } else { first_filtered };
        let windows = match (named, self.older) {
            (true, false) => format!("{window} IN ? AND {id} < {OLDER_FROM}"),
            (true, true) => format!("{window} IN ?"),
            (false, _) => format!("{window} >= ? AND {window} <= ?"),
        };
        let table = self.tables.qualified_table(slice);
        format!("SELECT {columns} FROM {table} WHERE {partition} = ?{cells} AND {windows}{filter}")
    }

    fn values(&self, place: &PartitionRead, named: Option<&[Window]>) -> Vec<Option<CqlValue>> {
        let mut values = vec![CqlValue::BigInt(self.tables.partition(place.cells[0]))];
        if self.tables.layout.cells() > 1 {
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

/// The columns of a [`ChunkRow`]: all columns of a chunk, including the unused byte count. Read repair writes only selected columns
/// but compares replicas by all columns: without one, a chunk that a replica lacked would be found different on every read.
fn chunks_of(names: &Names) -> String {
    format!("{}, body, {}", heads_of(names), names.bytes)
}

/// The columns to select from a slice's table and the buffer for its rows. With `refresh` the table's columns are read again.
async fn start_read(
    tables: &DatasetTables,
    slice: SliceId,
    cell: Cell,
    bodies: bool,
    refresh: bool,
) -> Result<(String, PartitionBuffer), CqlError> {
    let mut buffer = PartitionBuffer {
        slice,
        cell,
        epoch: None,
        chunks: Vec::new(),
        bytes: 0,
        records: None,
        incomplete: Vec::new(),
    };
    let columns = match (&tables.layout, bodies) {
        (TableLayout::Rows(layout), true) => {
            let codec = layout.codec().clone();
            let columns = layout.columns_of(tables, slice, refresh).await?;
            let names = codec.select(columns);
            buffer.records = Some((layout.clone(), Gatherer::new(codec, columns, slice, cell)));
            names
        }
        (_, false) => heads_of(tables.names()),
        (TableLayout::Chunks { .. }, true) => chunks_of(tables.names()),
    };
    Ok((columns, buffer))
}

/// Reads chunks with missing rows again, at a majority: drops those that were removed meanwhile, and completes those whose rows had
/// not reached the replicas that answered. A chunk that still lacks rows is damaged; it is kept for its checksum to report.
async fn reread_incomplete(
    tables: &DatasetTables,
    chunks: &mut Vec<Chunk>,
    incomplete: Vec<ChunkKey>,
) -> Result<(), CqlError> {
    let mut found: HashMap<ChunkKey, Chunk> = HashMap::new();
    for same_tile in incomplete.chunk_by(|a, b| a.tile == b.tile) {
        for some in same_tile.chunks(LOOKUP_CHUNKS) {
            let call = quorum_call(&tables.session);
            let read = || fetch_some(tables, some, &call, true);
            let again = if_table_exists(tables, some[0].slice, &call, read).await?;
            let again = again.map(|(chunks, _)| chunks).unwrap_or_default();
            found.extend(again.into_iter().map(|chunk| (chunk.key, chunk)));
        }
    }
    if !incomplete.is_empty() {
        let incomplete: HashSet<ChunkKey> = incomplete.into_iter().collect();
        chunks.retain(|chunk| !incomplete.contains(&chunk.key) || found.contains_key(&chunk.key));
        for chunk in chunks {
            if let Some(better) = found.remove(&chunk.key) {
                *chunk = better;
            }
        }
    }
    Ok(())
}

/// Complete tiles of a partition, and where to continue.
struct Segment {
    chunks: Vec<Chunk>,
    next: Option<Tile>,
    /// Whether the table does not exist: it was dropped or never created.
    gone: bool,
}

impl Segment {
    const GONE: Self = Self { chunks: Vec::new(), next: None, gone: true };
}

/// Collects the pages of a partition.
struct PartitionBuffer {
    slice: SliceId,
    cell: Cell,
    /// Epoch of the pages so far; `None` before the first page.
    epoch: Option<Option<i64>>,
    chunks: Vec<Chunk>,
    bytes: usize,
    /// Assembles chunks from record rows, in layout `rows` with bodies.
    records: Option<(RowLayout, Gatherer)>,
    /// Chunks with missing rows.
    incomplete: Vec<ChunkKey>,
}

/// Epoch, cell, window, id, rows, head, body, bytes.
type ChunkRow =
    (Option<i64>, Option<i64>, Option<i32>, Option<Bytes>, Option<i32>, Option<Bytes>, Option<Bytes>, Option<i32>);
/// The same without body and byte count.
type HeadRow = (Option<i64>, Option<i64>, Option<i32>, Option<Bytes>, Option<i32>, Option<Bytes>);

impl PartitionBuffer {
    /// The size statistics for the rows that are read.
    fn sizes<'a>(&'a self, of_chunks: &'a Sizes) -> &'a Sizes {
        self.records.as_ref().map_or(of_chunks, |(layout, _)| layout.sizes())
    }

    /// Adds a page; `false` if its epoch shows that chunks were removed since the last page.
    fn add_page(&mut self, answer: &QueryRowsResult, bodies: bool, sizes: &Sizes) -> Result<bool, CqlError> {
        if let Some((layout, gatherer)) = &mut self.records {
            // In layout `rows` a page is sized by records, whose mean size differs from that of chunks.
            layout.sizes().observe(answer.rows_bytes_size(), answer.rows_num());
            let gathered = gatherer.push(answer).map_err(malformed)?;
            if gathered.epoch_changed {
                return Ok(false);
            }
            self.add_gathered(gathered)?;
            return Ok(true);
        }
        let before = self.chunks.len();
        if bodies {
            for row in answer.rows::<ChunkRow>().map_err(malformed)? {
                let (epoch, cell, window, id, rows, head, body, _) = row.map_err(malformed)?;
                if !self.add_row((epoch, cell, window, id, rows, head), body)? {
                    return Ok(false);
                }
            }
        } else {
            for row in answer.rows::<HeadRow>().map_err(malformed)? {
                if !self.add_row(row.map_err(malformed)?, None)? {
                    return Ok(false);
                }
            }
        }
        let bytes: usize = self.chunks[before..].iter().map(|chunk| chunk.head.len() + chunk.body.len()).sum();
        sizes.observe(bytes, self.chunks.len() - before);
        Ok(true)
    }

    fn add_gathered(&mut self, gathered: GatheredChunks) -> Result<(), CqlError> {
        if let (true, Some((layout, _))) = (gathered.narrow, &self.records) {
            // Handled like a node that does not know the table yet: the partition is read again.
            layout.forget();
            return Err(CqlError::NoTable { reason: "the table lacks columns that its rows have".to_owned() });
        }
        self.bytes += gathered.chunks.iter().map(|chunk| chunk.head.len() + chunk.body.len()).sum::<usize>();
        self.chunks.extend(gathered.chunks);
        self.incomplete.extend(gathered.incomplete);
        Ok(())
    }

    /// Ends the read and returns everything collected.
    fn finish(mut self) -> Result<(Segment, Vec<ChunkKey>), CqlError> {
        if let Some((_, gatherer)) = &mut self.records {
            let last = gatherer.finish();
            self.add_gathered(last)?;
        }
        Ok((Segment { chunks: self.chunks, next: None, gone: false }, self.incomplete))
    }

    /// The current tile, which may have further chunks.
    fn tile(&self) -> Option<Tile> {
        // The open chunk of a gatherer follows all chunks that it has returned.
        let open = self.records.as_ref().and_then(|(_, gatherer)| gatherer.window());
        let open = open.map(|window| Tile { cell: self.cell, window });
        open.or_else(|| self.chunks.last().map(|chunk| chunk.key.tile))
    }

    fn add_row(
        &mut self,
        (epoch, cell, window, id, rows, head): HeadRow,
        body: Option<Bytes>,
    ) -> Result<bool, CqlError> {
        // A static column has one value for all rows of a page, so a difference shows a removal between two pages.
        if *self.epoch.get_or_insert(epoch) != epoch {
            return Ok(false);
        }
        // A partition without chunks may still have an epoch.
        let (Some(cell), Some(window), Some(id)) = (cell, window, id) else { return Ok(true) };
        // A deletion and a late write of another client may leave a partial row: it counts as removed.
        let (Some(rows), Some(head)) = (rows, head) else { return Ok(true) };
        let id = ChunkId::from_bytes(&id).ok_or_else(|| malformed("a chunk id does not have 16 bytes"))?;
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

    /// Discards the current tile and returns it: the read continues from there.
    fn restart(&mut self) -> Option<Tile> {
        self.epoch = None;
        let tile = self.tile();
        if let Some((_, gatherer)) = &mut self.records {
            gatherer.forget();
        }
        let tile = tile?;
        self.chunks.retain(|chunk| chunk.key.tile < tile);
        self.incomplete.retain(|key| key.tile < tile);
        self.bytes = self.chunks.iter().map(|chunk| chunk.head.len() + chunk.body.len()).sum();
        Some(tile)
    }

    /// Removes the complete tiles, if any precede the current one, at which the read then continues.
    fn take_complete(&mut self) -> Option<(Segment, Vec<ChunkKey>)> {
        let tile = self.tile()?;
        let complete = self.chunks.partition_point(|chunk| chunk.key.tile < tile);
        (complete > 0).then(|| {
            // The chunks of the current tile are discarded, since the next segment begins with that tile and reads them
            // again.
            self.chunks.truncate(complete);
            self.incomplete.retain(|key| key.tile < tile);
            let part = Segment { chunks: std::mem::take(&mut self.chunks), next: Some(tile), gone: false };
            (part, std::mem::take(&mut self.incomplete))
        })
    }
}

/// Splits chunks into groups of bounded size.
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
pub(crate) async fn fetch(tables: &DatasetTables, keys: Vec<ChunkKey>, call: &Call) -> Result<Vec<Chunk>, CqlError> {
    let mut sorted = keys.clone();
    sorted.sort_unstable();
    sorted.dedup();
    let requests: Vec<Vec<ChunkKey>> = sorted
        .chunk_by(|a, b| a.slice == b.slice && a.tile == b.tile)
        .flat_map(|same_tile| same_tile.chunks(LOOKUP_CHUNKS).map(<[ChunkKey]>::to_vec))
        .collect();
    let reads = requests.into_iter().map(|some| async move {
        let read = || fetch_some(tables, &some, call, false);
        let found = if_table_exists(tables, some[0].slice, call, read).await?;
        let Some((mut chunks, incomplete)) = found else { return Ok::<_, CqlError>(vec![]) };
        reread_incomplete(tables, &mut chunks, incomplete).await?;
        Ok(chunks)
    });
    let found: Vec<Vec<Chunk>> = stream::iter(reads).buffer_unordered(READ_AT_ONCE).try_collect().await?;
    let found: HashMap<ChunkKey, Chunk> = found.into_iter().flatten().map(|chunk| (chunk.key, chunk)).collect();
    Ok(keys.iter().filter_map(|key| found.get(key).cloned()).collect())
}

/// Chunks of one tile, and the keys of those with missing rows.
async fn fetch_some(
    tables: &DatasetTables,
    keys: &[ChunkKey],
    call: &Call,
    refresh: bool,
) -> Result<(Vec<Chunk>, Vec<ChunkKey>), CqlError> {
    let first = keys[0];
    let (columns, mut buffer) = start_read(tables, first.slice, first.tile.cell, true, refresh).await?;
    let (place, tile, id) = (tables.qualified_table(first.slice), tables.tile_condition(), tables.names().id);
    let mut select =
        tables.session.prepare(&format!("SELECT {columns} FROM {place} WHERE {tile} AND {id} IN ?"), true).await?;
    let values = ids_in_tile(tables, keys);
    let sizes = Sizes::default();
    // Rows of whole chunks fit one page; rows of records may need several.
    let whole_rows = PAGE_ROWS.1 as i32;
    let mut state = PagingState::start();
    loop {
        select.set_page_size(if buffer.records.is_some() { buffer.sizes(&sizes).page_rows(true) } else { whole_rows });
        let (page, next) = tables.session.page(&select, &values, state, call).await?;
        if !buffer.add_page(&page.into_rows_result().map_err(malformed)?, true, &sizes)? {
            // All keys are of one tile, so nothing remains in the buffer, and the read begins again.
            buffer.restart();
            state = PagingState::start();
            continue;
        }
        match next.into_paging_control_flow() {
            ControlFlow::Break(()) => break,
            ControlFlow::Continue(next) => state = next,
        }
    }
    let (part, incomplete) = buffer.finish()?;
    Ok((part.chunks, incomplete))
}

/// What each tile of a slice holds, by cell, then window.
pub(crate) async fn statistics(
    tables: &DatasetTables,
    slice: SliceId,
    call: &Call,
) -> Result<Vec<TileStatistics>, CqlError> {
    let Names { partition, cell, window, id, rows, bytes, first_filtered, .. } = tables.names();
    let (place, part) = (tables.qualified_table(slice), token_condition(partition));
    let columns = format!("token({partition}), {cell}, {window}, {id}, {rows}, {bytes}");
    let cql = format!("SELECT {columns} FROM {place} WHERE {part}{first_filtered}");
    type Row = (i64, Option<i64>, Option<i32>, Option<Vec<u8>>, Option<i32>, Option<i32>);
    let each = |tiles: &mut BTreeMap<Tile, TileStatistics>, row: Row| {
        // A row without these values is what a removal left: it does not count as a chunk.
        let (_, Some(cell), Some(window), Some(id), Some(rows), Some(bytes)) = row else { return };
        let Some(id) = ChunkId::from_bytes(&id) else { return };
        let tile = Tile { cell: Cell(cell), window: Window(window) };
        let found = tiles.entry(tile).or_insert(TileStatistics::none(tile));
        found.add(id, rows as u32, u64::from(bytes as u32));
    };
    let read = || scan_ring(&tables.session, &cql, call, |row: &Row| row.0, each);
    let parts = if_table_exists(tables, slice, call, read).await?.unwrap_or_default();
    let tiles: BTreeMap<Tile, TileStatistics> = parts.into_iter().flatten().collect();
    Ok(tiles.into_values().collect())
}

/// The condition that limits a statement to a token range.
fn token_condition(key: &str) -> String {
    format!("token({key}) >= ? AND token({key}) <= ?")
}

/// Reads a whole table by a statement with the condition of [`token_condition`], and collects its rows with `each`. A table that
/// fits one page takes one request; the rest of a larger one is read by token ranges, several concurrently. No partition is in two of
/// the parts returned.
async fn scan_ring<R, T>(
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
    // The last partition of the page may continue beyond it.
    let from = match next.into_paging_control_flow() {
        ControlFlow::Break(()) => None,
        // A page may be without rows although more follow. Then the whole ring is read by parts.
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

/// Inclusive token ranges that cover the ring from a token on.
fn ring_parts(from: i64) -> impl Iterator<Item = (i64, i64)> {
    // The length of the ring, 2^64, exceeds an i64. The last part takes the remainder of the division.
    let (start, end) = (i128::from(from), i128::from(i64::MAX));
    let step = ((end - start + 1) / i128::from(RING_PARTS)).max(1);
    let part = move |part: i128| {
        let first = start + part * step;
        let last = if part + 1 == i128::from(RING_PARTS) { end } else { first + step - 1 };
        // With fewer tokens than parts, the last parts lie beyond the ring.
        (first <= end).then_some((first as i64, last as i64))
    };
    (0..i128::from(RING_PARTS)).filter_map(part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::chunk_columns;

    #[test]
    fn a_place_is_read_on_in_the_middle_of_its_first_cell_and_from_the_start_of_the_others() {
        let place = |cells: &[i64], from| PartitionRead {
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
            let layout = TableLayout::Chunks { cells };
            let selected = chunks_of(layout.names());
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
        for from in [i64::MIN, -1, 0, 7].into_iter().chain(i64::MAX - 33..=i64::MAX) {
            let parts: Vec<_> = ring_parts(from).collect();
            assert_eq!((parts[0].0, parts[parts.len() - 1].1), (from, i64::MAX));
            assert!(parts.windows(2).all(|pair| pair[0].1 + 1 == pair[1].0), "{parts:?}");
        }
    }
}
