//! The newest row of each locality, without reading its history.

use std::sync::Arc;

use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchOptions};
use chronotile_store::{Cells, Chunk, ChunkKey, Scan, Store};
use chronotile_types::{Cell, CellRule, SliceId};
use futures::{StreamExt, TryStreamExt, stream};
use hashbrown::HashMap;

use crate::assemble::{Part, assemble, prepare};
use crate::dataset::Dataset;
use crate::error::Result;
use crate::frame::Frame;
use crate::keys::{Keys, OwnedKey};
use crate::query::{Identity, Query};
use crate::read::{ReadStream, fetch_tiles, on_pool};
use crate::request::{Place, ReadRequest};
use crate::time_axis::{Times, place_rows, times};

/// Cells looked at together.
const CELLS_AT_ONCE: usize = 256;

impl Dataset {
    /// The newest row by time for each distinct value of `by`, of the rows that `request` asks for; of rows of the same time
    /// the last in the order of [`Dataset::read`]. `by` defaults to the columns of the cell rule where cells are values or hashes, else to the id columns.
    ///
    /// Where `request` names keys, slices are read from the newest backwards and no further than needed, so the time does
    /// not grow with history. Elsewhere everything in the time range is read.
    ///
    /// # Errors
    /// As [`Dataset::read`]; nothing to tell rows apart by.
    pub async fn latest(&self, request: ReadRequest, by: Option<Vec<String>>) -> Result<ReadStream> {
        self.refresh().await?;
        let frame = self.frame();
        let by = by.unwrap_or_else(|| default_by(&frame));
        if by.is_empty() {
            return Err(frame.refuse("latest needs columns to tell rows apart: name them with by"));
        }
        let by = by.iter().map(|name| frame.column(name)).collect::<Result<Vec<_>>>()?;
        let query = self.query(&request).await?;
        let by_key = matches!(request.place, Place::Keys(_)) && by == frame.cell_columns()?;
        let newest_first = by_key && request.ids.is_none() && versions_share_time(&frame);
        // Every column that decides is decoded beside those asked for.
        let inner = self.query(&ReadRequest { columns: Some(decoded(&frame, &query, &by)), ..request }).await?;
        let mut newest = Newest::new(inner.clone(), by);
        if newest_first {
            backwards(self.store_arc(), &inner, &mut newest).await?;
        } else {
            let mut rows = crate::read::stream(self.store_arc(), inner).await?;
            while let Some(batch) = rows.try_next().await? {
                newest.push(batch)?;
            }
        }
        let batch = newest.finish(&query)?;
        let schema = query.schema.clone();
        Ok(ReadStream::new(schema, stream::iter((batch.num_rows() > 0).then_some(Ok(batch))).boxed()))
    }
}

/// Whether all versions of a record have the same time, so that the newest chunks alone tell the newest row.
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

/// Names of the columns asked for, then of those that decide.
fn decoded(frame: &Frame, query: &Query, by: &[usize]) -> Vec<String> {
    let mut positions = query.output.clone();
    for position in by.iter().copied().chain([frame.time]) {
        if !positions.contains(&position) {
            positions.push(position);
        }
    }
    positions.iter().map(|position| frame.spec.schema.field(*position).name().clone()).collect()
}

/// Order of a row in time: the value of a timestamp, or the bits of a float day in an order-keeping form.
type When = i64;

/// The newest row seen of each key.
struct Newest {
    query: Arc<Query>,
    by: Vec<usize>,
    /// Key to its time, the batch it lies in, and the row there.
    rows: HashMap<OwnedKey, (When, usize, u32)>,
    batches: Vec<RecordBatch>,
}

impl Newest {
    fn new(query: Arc<Query>, by: Vec<usize>) -> Self {
        Self { query, by, rows: HashMap::new(), batches: vec![] }
    }

    fn column(&self, batch: &RecordBatch, position: usize) -> ArrayRef {
        // `decoded` put every position asked for here among the columns.
        let place = self.query.output.iter().position(|column| *column == position).unwrap_or(0);
        batch.column(place).clone()
    }

    fn push(&mut self, batch: RecordBatch) -> Result<()> {
        let columns: Vec<ArrayRef> = self.by.iter().map(|position| self.column(&batch, *position)).collect();
        let keys = Keys::new(&columns).map_err(|e| self.query.frame.compute("grouping rows", e))?;
        let times = whens(&self.column(&batch, self.query.frame.time));
        let place = self.batches.len();
        let mut used = false;
        for (row, when) in times.into_iter().enumerate() {
            match self.rows.get_mut(&keys.get(row)) {
                Some(newest) if newest.0 > when => {}
                Some(newest) => (*newest, used) = ((when, place, row as u32), true),
                None => {
                    self.rows.insert(keys.get(row).to_owned(), (when, place, row as u32));
                    used = true;
                }
            }
        }
        if used {
            self.batches.push(batch);
        }
        Ok(())
    }

    /// Enters the newest tick of each key in `batch`, whose rows are of one cell.
    fn note(&self, batch: &RecordBatch, found: &mut Found) -> Result<()> {
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

    /// The winners with the columns of `query`, by key.
    fn finish(self, query: &Query) -> Result<RecordBatch> {
        let mut winners: Vec<_> = self.rows.into_iter().collect();
        winners.sort_by(|a, b| a.0.cmp(&b.0));
        let rows: Vec<(usize, usize)> = winners.into_iter().map(|(_, (_, batch, row))| (batch, row as usize)).collect();
        let wanted: Vec<usize> = (0..query.output.len()).collect();
        let failed = |e| query.frame.compute("selecting rows", e);
        if wanted.is_empty() {
            // The kernel below cannot count rows without columns.
            let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
            return RecordBatch::try_new_with_options(query.schema.clone(), vec![], &options).map_err(failed);
        }
        let batches: Vec<RecordBatch> = self
            .batches
            .iter()
            .map(|batch| batch.project(&wanted))
            .collect::<std::result::Result<_, _>>()
            .map_err(failed)?;
        if rows.is_empty() {
            return Ok(query.empty());
        }
        let batches: Vec<&RecordBatch> = batches.iter().collect();
        arrow_select::interleave::interleave_record_batch(&batches, &rows).map_err(failed)
    }
}

fn whens(time: &ArrayRef) -> Vec<When> {
    match times(time) {
        Some(Times::Ticks(ticks)) => ticks.to_vec(),
        // Bits of a float order as the float does once those of negative ones are turned over.
        Some(Times::Days(days)) => {
            days.iter().map(|day| day.to_bits() as i64).map(|b| b ^ ((b >> 63) & i64::MAX)).collect()
        }
        None => vec![i64::MIN; time.len()],
    }
}

/// Reads slices from the newest backwards until every key asked for has its row.
async fn backwards(store: Arc<dyn Store>, query: &Arc<Query>, newest: &mut Newest) -> Result<()> {
    let mut pending: Vec<Cell> = query.keys_in_cell.keys().copied().collect();
    pending.sort_unstable();
    for slice in query.slices.iter().rev() {
        let mut open = Vec::new();
        for cells in pending.chunks(CELLS_AT_ONCE) {
            open.extend(search_slice(&store, query, *slice, cells, newest).await?);
        }
        pending = open;
        if pending.is_empty() {
            break;
        }
    }
    Ok(())
}

/// The keys of one cell that have been found, with the tick of each.
type Found = HashMap<OwnedKey, i64>;

/// Looks for the newest rows of cells in one slice; returns the cells of which a key is still missing.
async fn search_slice(
    store: &Arc<dyn Store>,
    query: &Arc<Query>,
    slice: SliceId,
    cells: &[Cell],
    newest: &mut Newest,
) -> Result<Vec<Cell>> {
    let ranges: Vec<(Cell, Cell)> = cells.iter().map(|cell| (*cell, *cell)).collect();
    let scan = Scan { slices: vec![slice], cells: Cells::Ranges(ranges.into()), windows: query.windows, bodies: false };
    let name = &query.frame.spec.name;
    let heads: Vec<Chunk> = store.scan(name, scan).await?.try_concat().await?;
    let mut by_cell: HashMap<Cell, Vec<Part>> = HashMap::new();
    for part in prepare(query, heads)? {
        by_cell.entry(part.chunk.key.tile.cell).or_default().push(part);
    }
    // Newest last, so that they are popped first.
    by_cell.values_mut().for_each(|parts| parts.sort_by_key(|part| part.head.zone.time_max));
    let mut found: HashMap<Cell, Found> = HashMap::new();
    // Rows of one id may lie at several times of a tile; which of them counts is known once all of it is there.
    let whole_tiles = query.identity == Identity::Ids && !query.frame.ids.contains(&query.frame.time);
    loop {
        let mut fetch: Vec<ChunkKey> = Vec::new();
        for (cell, parts) in &mut by_cell {
            fetch.extend(next_chunks(parts, known_tick(query, *cell, found.get(cell)), whole_tiles));
        }
        if fetch.is_empty() {
            break;
        }
        let chunks = fetch_tiles(store.as_ref(), query, &fetch).await?;
        for (cell, batch) in rows_by_cell(query, chunks).await? {
            newest.note(&batch, found.entry(cell).or_default())?;
            newest.push(batch)?;
        }
    }
    let complete = |cell: &Cell| known_tick(query, *cell, found.get(cell)).is_some();
    Ok(cells.iter().filter(|cell| !complete(cell)).copied().collect())
}

/// The oldest of the newest ticks of a cell's keys, once all of them are found: older chunks need not be read.
fn known_tick(query: &Query, cell: Cell, found: Option<&Found>) -> Option<i64> {
    let found = found?;
    let all = query.keys_in_cell.get(&cell).is_some_and(|keys| found.len() >= *keys);
    all.then(|| found.values().min().copied())?
}

/// The newest chunk that was not read yet and those that overlap it in time or, with `whole_tiles`, lie in the same tile;
/// none once newer rows are known.
fn next_chunks(parts: &mut Vec<Part>, known: Option<i64>, whole_tiles: bool) -> Vec<ChunkKey> {
    let Some(last) = parts.pop() else { return vec![] };
    if known.is_some_and(|tick| tick > last.head.zone.time_max) {
        parts.clear();
        return vec![];
    }
    let mut keys = vec![last.chunk.key];
    let mut time_min = last.head.zone.time_min;
    let tile = last.chunk.key.tile;
    let belongs = |part: &Part, time_min: i64| {
        part.head.zone.time_max >= time_min || (whole_tiles && part.chunk.key.tile == tile)
    };
    while let Some(part) = parts.pop_if(|part| belongs(part, time_min)) {
        time_min = time_min.min(part.head.zone.time_min);
        keys.push(part.chunk.key);
    }
    keys
}

/// The rows of the chunks that the query asks for, cell by cell.
async fn rows_by_cell(query: &Arc<Query>, chunks: Vec<Chunk>) -> Result<Vec<(Cell, RecordBatch)>> {
    let query = query.clone();
    on_pool(move || {
        let mut parts = prepare(&query, chunks)?;
        let mut results = Vec::new();
        while let Some(cell) = parts.first().map(|part| part.chunk.key.tile.cell) {
            let end = parts.iter().position(|part| part.chunk.key.tile.cell != cell).unwrap_or(parts.len());
            let rest = parts.split_off(end);
            let batch = assemble(&query, &parts, None)?;
            if batch.num_rows() > 0 {
                results.push((cell, batch));
            }
            parts = rest;
        }
        Ok(results)
    })
    .await
}
