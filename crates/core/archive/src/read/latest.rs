//! The newest row of each key, without reading the whole history.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use chronotile_store::{Cells, Chunk, Scan, Store};
use chronotile_types::{Cell, CellRule, SliceId};
use futures::{StreamExt, TryStreamExt, stream};
use hashbrown::HashMap;

use crate::dataset::Dataset;
use crate::error::{ArchiveError, Result};
use crate::frame::Frame;
use crate::keys::{Keys, OwnedKey};
use crate::memory::ReadCharge;
use crate::read::groups::{fetch_parts, touched};
use crate::read::merge::PIECE_BYTES;
use crate::read::newest::table_bytes;
use crate::read::part::ParsedChunk;
use crate::read::pieces::Pieces;
use crate::read::query::{Identity, Query};
use crate::read::slices::slices_in;
use crate::read::{ReadStream, stream_of};
use crate::request::{CellSelection, ReadRequest};
use crate::time_axis::{TimeKey, place_rows, time_keys};
use crate::write::pack::{bytes_of, row_bytes_of};

/// Cells searched together.
const CELLS_AT_ONCE: usize = 256;
/// Bytes of rows kept before replaced ones are dropped, unless the newest rows alone take more.
const BATCHES_BYTES: usize = 64 << 20;

impl Dataset {
    /// The newest row by time for each distinct value of `by`, among the rows that `request` asks for. Among rows of
    /// the same time, it is the last in the order of [`Dataset::read`]. `by` defaults to the columns of the cell rule
    /// if cells are values or hashes, otherwise to the id columns.
    ///
    /// If `request` names keys, slices are read from the newest backwards until every key is found, so the duration
    /// does not grow with history. Otherwise everything in the time range is read.
    ///
    /// # Errors
    /// As [`Dataset::read`]; no columns to group rows by.
    pub async fn latest(&self, request: ReadRequest, by: Option<Vec<String>>) -> Result<ReadStream> {
        let this = &self.reader();
        let query = this.query(&request).await?;
        // Not the dataset's current definition: it may have more columns by now.
        let frame = &query.frame;
        let by = by.unwrap_or_else(|| default_by(frame));
        if by.is_empty() {
            return Err(frame.refuse("latest needs columns that identify records: name them with by"));
        }
        let by = by.iter().map(|name| frame.column(name)).collect::<Result<Vec<_>>>()?;
        // The search ends once it has found as many keys as the request names, so rows must be grouped by exactly these
        // keys.
        let by_key = matches!(request.cells, CellSelection::Keys(_)) && by == frame.cell_columns()?;
        let newest_first = by_key && request.ids.is_none() && versions_share_time(frame);
        // Decode the columns that determine the result along with the requested ones.
        let inner = ReadRequest { columns: Some(decoded(frame, &query, &by)), ..request };
        let newest = if newest_first {
            let (planned, begun) = futures::join!(this.replan_without_visibility(&inner), this.begin_read());
            let planned = planned?;
            frame.check_still(&planned.frame.spec)?;
            backwards(this.store_arc(), planned.with_visibility(begun?.jointly()), by).await?
        } else {
            let inner = this.query(&inner).await?;
            // `by` has positions of columns.
            frame.check_still(&inner.frame.spec)?;
            let mut newest = Newest::new(inner.clone(), by);
            let mut rows = crate::read::stream(this.store_arc(), inner).await?;
            while let Some(batch) = rows.try_next().await? {
                newest.push(batch)?;
            }
            newest
        };
        let (batches, held) = newest.finish(&query)?;
        let schema = query.schema.clone();
        let rows = batches.into_iter().map(move |rows| {
            // Keep the charge for the rows until the last of them is dropped.
            let _ = &held;
            Ok(rows)
        });
        Ok(ReadStream::new(schema, stream::iter(rows).boxed()))
    }
}

/// Whether all versions of a record have the same time, so that the newest chunks alone determine the newest row.
fn versions_share_time(frame: &Frame) -> bool {
    !frame.keeps_latest() || (frame.version.is_none() && frame.ids.contains(&frame.time))
}

fn default_by(frame: &Frame) -> Vec<String> {
    match &frame.spec.cell {
        CellRule::Value { .. } | CellRule::Hash { .. } => {
            frame.spec.cell.columns().into_iter().map(str::to_owned).collect()
        }
        _ => frame.spec.id.clone(),
    }
}

/// Names of the requested columns, followed by those that determine the result.
fn decoded(frame: &Frame, query: &Query, by: &[usize]) -> Vec<String> {
    let mut positions = query.output.clone();
    for position in by.iter().copied().chain([frame.time]) {
        if !positions.contains(&position) {
            positions.push(position);
        }
    }
    positions.iter().map(|position| frame.spec.schema.field(*position).name().clone()).collect()
}

/// The newest row found for each key.
struct Newest {
    query: Arc<Query>,
    by: Vec<usize>,
    /// By key: the row's time, the index of its batch, and its row number there.
    rows: HashMap<OwnedKey, (TimeKey, usize, u32)>,
    batches: Vec<RecordBatch>,
    batches_bytes: usize,
    /// Size of the batches at which rows that are no longer the newest are dropped.
    bytes_max: usize,
    held: ReadCharge,
}

impl Newest {
    fn new(query: Arc<Query>, by: Vec<usize>) -> Self {
        let held = query.held();
        Self { query, by, rows: HashMap::new(), batches: vec![], batches_bytes: 0, bytes_max: BATCHES_BYTES, held }
    }

    fn column(&self, batch: &RecordBatch, position: usize) -> ArrayRef {
        // `decoded` lists every column that is requested here.
        let place = self.query.output.iter().position(|column| *column == position).unwrap_or(0);
        batch.column(place).clone()
    }

    /// Bytes of the table with room for this many keys.
    fn table_bytes(records: usize) -> usize {
        table_bytes::<(OwnedKey, (TimeKey, usize, u32))>(records)
    }

    /// Enters rows. Charges the most that this may take before allocating it.
    fn push(&mut self, batch: RecordBatch) -> Result<()> {
        let (records, capacity) = (self.rows.len() + batch.num_rows(), self.rows.capacity());
        // While the table grows, both the old and the new one exist.
        let grown = if records > capacity { Self::table_bytes(records) } else { 0 };
        let mut kept = self.batches_bytes + bytes_of(&batch);
        if kept > self.bytes_max {
            // While rows are compacted, both the old and the new batches exist.
            kept *= 2;
        }
        self.held.set(Self::table_bytes(capacity) + grown + kept)?;
        self.keep(batch)?;
        Ok(self.held.set(Self::table_bytes(self.rows.capacity()) + self.batches_bytes)?)
    }

    fn keep(&mut self, batch: RecordBatch) -> Result<()> {
        let columns: Vec<ArrayRef> = self.by.iter().map(|position| self.column(&batch, *position)).collect();
        let keys = Keys::new(&columns).map_err(|e| self.query.frame.compute("grouping rows", e))?;
        let times = time_keys(&self.column(&batch, self.query.frame.time));
        let place = self.batches.len();
        let mut used = false;
        for (row, when) in times.into_iter().enumerate() {
            match self.rows.get_mut(&keys.get(row)) {
                // Of rows with the same time, the later one in the order of reads replaces the earlier one.
                Some(newest) if newest.0 > when => {}
                Some(newest) => (*newest, used) = ((when, place, row as u32), true),
                None => {
                    self.rows.insert(keys.get(row).to_owned(), (when, place, row as u32));
                    used = true;
                }
            }
        }
        if used {
            self.batches_bytes += bytes_of(&batch);
            self.batches.push(batch);
        }
        if self.batches_bytes > self.bytes_max {
            self.compact()?;
        }
        Ok(())
    }

    /// Drops all rows except the newest.
    fn compact(&mut self) -> Result<()> {
        let mut newest: Vec<&mut (TimeKey, usize, u32)> = self.rows.values_mut().collect();
        // `gathered` keeps the order of the places, so that the entries can then be renumbered one after the other.
        newest.sort_unstable_by_key(|(_, batch, row)| (*batch, *row));
        let places: Vec<(usize, usize)> = newest.iter().map(|(_, batch, row)| (*batch, *row as usize)).collect();
        let compacted = gathered(&self.batches, &places).map_err(|e| self.query.frame.compute("selecting rows", e))?;
        let mut newest = newest.into_iter();
        for (number, batch) in compacted.iter().enumerate() {
            for (row, place) in newest.by_ref().take(batch.num_rows()).enumerate() {
                (place.1, place.2) = (number, row as u32);
            }
        }
        self.batches_bytes = compacted.iter().map(bytes_of).sum();
        self.batches = compacted;
        // The limit grows with the newest rows: otherwise, once they exceed it, every batch would compact all of them.
        self.bytes_max = BATCHES_BYTES.max(2 * self.batches_bytes);
        Ok(())
    }

    /// Records the newest tick of each key in `batch`, whose rows belong to one cell.
    fn note(&self, batch: &RecordBatch, found: &mut NewestTicks) -> Result<()> {
        let columns: Vec<ArrayRef> = self.by.iter().map(|position| self.column(batch, *position)).collect();
        let keys = Keys::new(&columns).map_err(|e| self.query.frame.compute("grouping rows", e))?;
        let ticks = place_rows(&self.query.frame.spec, &self.column(batch, self.query.frame.time));
        let (ticks, _) = ticks.map_err(|_| self.query.frame.refuse("a stored row has no time; run verify"))?;
        for (row, tick) in ticks.into_iter().enumerate() {
            let newest = found.entry(keys.get(row).to_owned()).or_insert(tick);
            *newest = (*newest).max(tick);
        }
        Ok(())
    }

    /// The newest rows with the columns of `query`, ordered by key, and the charge for them.
    fn finish(self, query: &Query) -> Result<(Vec<RecordBatch>, ReadCharge)> {
        let Self { rows, batches, batches_bytes, mut held, .. } = self;
        // Sorting copies the entries of the table, and gathering copies rows out of the batches.
        held.set(2 * Self::table_bytes(rows.capacity()) + 2 * batches_bytes)?;
        let mut winners: Vec<_> = rows.into_iter().collect();
        winners.sort_by(|a, b| a.0.cmp(&b.0));
        let rows: Vec<(usize, usize)> = winners.into_iter().map(|(_, (_, batch, row))| (batch, row as usize)).collect();
        let wanted: Vec<usize> = (0..query.output.len()).collect();
        let failed = |e| query.frame.compute("selecting rows", e);
        if rows.is_empty() {
            return Ok((vec![], held));
        }
        if wanted.is_empty() {
            // The kernel below cannot count rows without columns.
            let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
            let counted = RecordBatch::try_new_with_options(query.schema.clone(), vec![], &options);
            return Ok((vec![counted.map_err(failed)?], held));
        }
        let projected = batches.iter().map(|batch| batch.project(&wanted));
        let projected: Vec<RecordBatch> = projected.collect::<std::result::Result<_, _>>().map_err(failed)?;
        let found = gathered(&projected, &rows).map_err(failed)?;
        held.set(found.iter().map(bytes_of).sum())?;
        Ok((found, held))
    }
}

/// The given rows of batches, in the given order, in pieces of bounded size.
fn gathered(
    batches: &[RecordBatch],
    rows: &[(usize, usize)],
) -> std::result::Result<Vec<RecordBatch>, arrow_schema::ArrowError> {
    let batches: Vec<&RecordBatch> = batches.iter().collect();
    let (mut pieces, mut start, mut bytes) = (Vec::new(), 0, 0);
    for (at, (batch, row)) in rows.iter().enumerate() {
        bytes += row_bytes_of(batches[*batch], *row);
        if bytes >= PIECE_BYTES || at + 1 == rows.len() {
            pieces.push(arrow_select::interleave::interleave_record_batch(&batches, &rows[start..=at])?);
            (start, bytes) = (at + 1, 0);
        }
    }
    Ok(pieces)
}

/// Reads slices from the newest backwards until every requested key has a row. If a batch ended so late that some of
/// its rows may have been missed, starts again, knowing which batches had ended in the slices searched so far.
async fn backwards(store: Arc<dyn Store>, query: Query, by: Vec<usize>) -> Result<Newest> {
    let query = Arc::new(query);
    let mut slices = query.slices.clone();
    let mut looked_from = None;
    let mut cells: Vec<Cell> = query.keys_in_cell.keys().copied().collect();
    cells.sort_unstable();
    'again: loop {
        let mut newest = Newest::new(query.clone(), by.clone());
        let mut pending = cells.clone();
        for slice in slices.iter().copied().rev() {
            if let Some(visible) = &query.visible {
                // The last look at heads covered the slices from `looked_from` on: a batch that is first found there
                // ended later. Older slices have not been looked at.
                visible.set_complete(looked_from.is_some_and(|from| from <= slice));
            }
            let mut open = Vec::new();
            for cells in pending.chunks(CELLS_AT_ONCE) {
                match (search_slice(&store, &query, slice, cells, &mut newest).await, &query.visible) {
                    (Err(ArchiveError::ReadRace { .. }), Some(visible)) if visible.is_late() => {
                        let first = query.frame.spec.nearest_window(query.frame.spec.slice_ticks(slice).0);
                        let windows = (first.max(query.windows.0), query.windows.1).into();
                        let scan = Scan { windows, ..query.scan(vec![], false) };
                        visible.look_ahead_jointly(store.as_ref(), &[(&query.frame, scan)]).await?;
                        looked_from = Some(slice);
                        // A batch that ended meanwhile may have created slices.
                        slices = slices_in(store.as_ref(), &query.frame, query.windows).await?;
                        continue 'again;
                    }
                    (searched, _) => open.extend(searched?),
                }
            }
            pending = open;
            if pending.is_empty() {
                break;
            }
        }
        return Ok(newest);
    }
}

/// The keys found in one cell, with the newest tick of each.
type NewestTicks = HashMap<OwnedKey, i64>;

/// Searches one slice for the newest rows of cells; returns the cells in which a key is still missing.
async fn search_slice(
    store: &Arc<dyn Store>,
    query: &Arc<Query>,
    slice: SliceId,
    cells: &[Cell],
    newest: &mut Newest,
) -> Result<Vec<Cell>> {
    let ranges: Vec<(Cell, Cell)> = cells.iter().map(|cell| (*cell, *cell)).collect();
    let scan = Scan {
        slices: vec![slice],
        cells: Cells::Ranges(ranges.into()),
        windows: query.windows.into(),
        bodies: false,
        older: true,
    };
    let heads: Vec<Chunk> = store.scan(&query.frame.dataset, scan).await?.try_concat().await?;
    let mut by_cell: BTreeMap<Cell, Vec<ParsedChunk>> = BTreeMap::new();
    for part in query.visible_or_begin_again(query.skip_unmatchable(touched(query, heads)?)).await? {
        by_cell.entry(part.chunk.key.tile.cell).or_default().push(part);
    }
    // Newest last, so that it is popped first.
    by_cell.values_mut().for_each(|parts| parts.sort_by_key(|part| part.head.zone.time_max));
    let mut found: HashMap<Cell, NewestTicks> = HashMap::new();
    // Rows with one id may have several times in a tile; which of them counts is known only once the whole tile is
    // read.
    let whole_tiles = query.identity == Identity::Ids && !query.frame.ids.contains(&query.frame.time);
    loop {
        let mut fetch: Vec<ParsedChunk> = Vec::new();
        for (cell, parts) in &mut by_cell {
            fetch.extend(next_chunks(parts, known_tick(query, *cell, found.get(cell)), whole_tiles));
        }
        if fetch.is_empty() {
            break;
        }
        let parts = fetch_parts(store.as_ref(), query, &fetch).await?;
        let mut parts = query.visible_or_begin_again(parts).await?;
        // `note` takes rows of one cell, so the chunks of each cell are assembled separately.
        while let Some(cell) = parts.first().map(|part| part.chunk.key.tile.cell) {
            let end = parts.iter().position(|part| part.chunk.key.tile.cell != cell).unwrap_or(parts.len());
            let rest = parts.split_off(end);
            let mut pieces = pin!(stream_of(Pieces::new(query.clone(), parts, None)));
            while let Some(batch) = pieces.try_next().await? {
                newest.note(&batch, found.entry(cell).or_default())?;
                newest.push(batch)?;
            }
            parts = rest;
        }
    }
    let complete = |cell: &Cell| known_tick(query, *cell, found.get(cell)).is_some();
    Ok(cells.iter().filter(|cell| !complete(cell)).copied().collect())
}

/// The oldest of the newest ticks of a cell's keys, once all keys are found: older chunks need not be read.
fn known_tick(query: &Query, cell: Cell, found: Option<&NewestTicks>) -> Option<i64> {
    let found = found?;
    let all = query.keys_in_cell.get(&cell).is_some_and(|keys| found.len() >= *keys);
    all.then(|| found.values().min().copied())?
}

/// The newest unread chunk and those that overlap it in time or, with `whole_tiles`, are in the same tile; none if
/// newer rows are known already.
fn next_chunks(parts: &mut Vec<ParsedChunk>, known: Option<i64>, whole_tiles: bool) -> Vec<ParsedChunk> {
    let Some(last) = parts.pop() else { return vec![] };
    if known.is_some_and(|tick| tick > last.head.zone.time_max) {
        parts.clear();
        return vec![];
    }
    let mut time_min = last.head.zone.time_min;
    let tile = last.chunk.key.tile;
    let mut chunks = vec![last];
    let belongs = |part: &ParsedChunk, time_min: i64| {
        part.head.zone.time_max >= time_min || (whole_tiles && part.chunk.key.tile == tile)
    };
    // Tiles of a cell do not overlap in time, so the chunks of a tile are adjacent in the order of time.
    while let Some(part) = parts.pop_if(|part| belongs(part, time_min)) {
        time_min = time_min.min(part.head.zone.time_min);
        chunks.push(part);
    }
    chunks
}
