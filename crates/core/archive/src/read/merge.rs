//! Sorts the rows of overlapping chunks of one tile, in pieces of bounded size.
//!
//! The order is determined from times, ids and ranks alone, for one stretch of time with a bounded number of rows.
//! The rows are then decoded piece by piece from their chunks. Chunks that several pieces need stay decoded while
//! there is room in the cache, and are otherwise decoded again.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow_select::interleave::interleave_record_batch;
use arrow_select::take::take_record_batch;
use chronotile_chunk::{Body, Columns};
use hashbrown::HashMap;

use crate::error::Result;
use crate::frame::Frame;
use crate::keys::Keys;
use crate::read::assemble::{Rank, SelectedRows, is_few, part_ranks};
use crate::read::part::ParsedChunk;
use crate::read::query::Query;
use crate::time_axis::{TimeKey, time_keys};
use crate::write::pack::bytes_of;

/// Decoded bytes of a piece, unless one chunk has more.
pub(crate) const PIECE_BYTES: usize = 16 << 20;
/// Rows sorted together, unless more have the same time.
const SORTED_ROWS: usize = 1 << 18;
/// Times sampled to cut a tile into stretches of about that many rows.
const SAMPLE_ROWS: usize = 1 << 16;
/// Decoded bytes of chunks cached for the next pieces.
const CACHE_BYTES: usize = 32 << 20;
/// Assumed size of a row in bytes before any was decoded.
const ROW_BYTES: usize = 1 << 10;

/// Which rows of a tile remain after comparing it with other rows.
pub(crate) enum Survivors {
    All,
    SelectedRows(Arc<SelectedRows>),
    /// For each part.
    Rows(Vec<RowSet>),
}

impl Survivors {
    /// Clears `keep` for the rows of a part that do not remain.
    pub(crate) fn filter(&self, number: usize, part: &ParsedChunk, keep: &mut [bool]) {
        match self {
            Self::All => {}
            Self::Rows(sets) => keep.iter_mut().enumerate().for_each(|(row, keep)| *keep &= sets[number].has(row)),
            Self::SelectedRows(chosen) => {
                // The rows chosen from a chunk are ascending, as the binary search requires.
                let rows = chosen.get(&part.chunk.key.id).map_or(&[][..], |rows| rows);
                keep.iter_mut().enumerate().for_each(|(row, keep)| *keep &= rows.binary_search(&(row as u32)).is_ok());
            }
        }
    }
}

/// A set of rows of a chunk, as a bitmap.
pub(crate) struct RowSet {
    bits: Vec<u64>,
    rows: usize,
}

impl RowSet {
    pub(crate) fn all(rows: usize) -> Self {
        // Bits past the last row stay set: `numbers` stops before them.
        Self { bits: vec![u64::MAX; rows.div_ceil(64)], rows }
    }

    pub(crate) fn has(&self, row: usize) -> bool {
        self.bits[row / 64] >> (row % 64) & 1 == 1
    }

    pub(crate) fn remove(&mut self, row: usize) {
        self.bits[row / 64] &= !(1 << (row % 64));
    }

    pub(crate) fn numbers(&self) -> Vec<u32> {
        (0..self.rows).filter(|row| self.has(*row)).map(|row| row as u32).collect()
    }
}

/// What determines which rows of a chunk are returned, and in which order.
pub(crate) struct KeyRows {
    pub ids: Option<Keys>,
    /// Versions, if requested.
    pub versions: Option<Keys>,
    pub ranks: Vec<Rank>,
    /// Whether a row is in the time range and belongs to a batch that counts.
    pub counts: Vec<bool>,
}

impl KeyRows {
    pub(crate) fn of(query: &Query, part: &ParsedChunk, with_versions: bool) -> Result<Self> {
        let frame = &query.frame;
        part.with_body(frame, |body| {
            let mut columns = frame.ids.clone();
            let version = frame.version.filter(|_| with_versions);
            let in_range = query.bounds.holds_all(part.head.zone.time_min, part.head.zone.time_max);
            columns.extend(version);
            columns.extend((!in_range).then_some(frame.time));
            let rows = ColumnsOf::decode(frame, part, body, columns)?;
            let mut counts = vec![true; part.head.rows as usize];
            if !in_range {
                query.bounds.filter(&rows.column(frame.time), &mut counts);
            }
            if query.hides_rows_of(&part.head) {
                query.clear_hidden(part, body, &mut counts)?;
            }
            Ok(Self {
                ids: rows.keys(frame, &frame.ids)?,
                versions: rows.keys(frame, version.as_slice())?,
                ranks: part_ranks(frame, part, body)?,
                counts,
            })
        })
    }
}

/// Some columns of a chunk, by their positions.
struct ColumnsOf {
    positions: Vec<usize>,
    rows: RecordBatch,
}

impl ColumnsOf {
    fn decode(frame: &Frame, part: &ParsedChunk, body: &Body, mut positions: Vec<usize>) -> Result<Self> {
        positions.sort_unstable();
        positions.dedup();
        let damaged = |damage| frame.damaged(&part.chunk.key, damage);
        let frame = frame.decoding([&part.head]);
        let mut set = Columns::new(&frame.layout, &positions, &frame.defaults);
        set.append_body(body, frame.columns_in(&part.chunk.key, &part.head)?).map_err(damaged)?;
        Ok(Self { positions, rows: set.finish() })
    }

    /// A decoded column.
    fn column(&self, position: usize) -> ArrayRef {
        let place = self.positions.iter().position(|column| *column == position);
        self.rows.column(place.unwrap_or(0)).clone()
    }

    fn keys(&self, frame: &Frame, columns: &[usize]) -> Result<Option<Keys>> {
        let arrays: Vec<ArrayRef> = columns.iter().map(|column| self.column(*column)).collect();
        let keys = (!arrays.is_empty()).then(|| Keys::new(&arrays)).transpose();
        keys.map_err(|e| frame.compute("comparing ids", e))
    }
}

/// A row: the number of its part, and its row number there.
type RowPosition = (u32, u32);

/// Overlapping parts of a tile that are being merged.
pub(crate) struct Merge {
    run: Range<usize>,
    /// First and last time of each part of the run; empty if the run is a single stretch.
    times: Vec<(TimeKey, TimeKey)>,
    /// Half-open stretches of time that remain; `None` for no end.
    stretches: VecDeque<(TimeKey, Option<TimeKey>)>,
    /// The rows to return from the current stretch, in order.
    order: Vec<RowPosition>,
    /// How many of them have been returned.
    done: usize,
    /// The last position of each part in the order.
    last: HashMap<u32, usize>,
    /// Decoded bytes of a row, estimated from the rows so far.
    row_bytes: usize,
    cache: HashMap<u32, RecordBatch>,
    cached_bytes: usize,
}

impl Merge {
    /// A merge of the parts of `run`, all of one tile.
    pub(crate) fn new(query: &Query, parts: &[ParsedChunk], run: Range<usize>) -> Result<Self> {
        let (times, stretches) = stretches(query, &parts[run.clone()])?;
        Ok(Self {
            run,
            times,
            stretches,
            order: vec![],
            done: 0,
            last: HashMap::new(),
            row_bytes: ROW_BYTES,
            cache: HashMap::new(),
            cached_bytes: 0,
        })
    }

    /// The next rows; `None` at the end. `parts` and `kept` describe the whole tile.
    pub(crate) fn next(
        &mut self,
        query: &Query,
        parts: &[ParsedChunk],
        kept: &Survivors,
    ) -> Result<Option<RecordBatch>> {
        while self.done == self.order.len() {
            let Some(stretch) = self.stretches.pop_front() else { return Ok(None) };
            self.order = self.sorted(query, parts, kept, stretch)?;
            self.done = 0;
            self.last = self.order.iter().enumerate().map(|(at, place)| (place.0, at)).collect();
        }
        loop {
            // The size of a row is known only after decoding, so the size in the previous piece stands for it.
            let count = (PIECE_BYTES / self.row_bytes).clamp(1, self.order.len() - self.done);
            if let Some(rows) = self.piece(query, parts, count)? {
                self.done += count;
                // Rows without columns take no bytes: `max` keeps the next division defined.
                self.row_bytes = (bytes_of(&rows) / count).max(1);
                return Ok(Some(rows));
            }
        }
    }

    /// The rows of a stretch that the query returns, in order.
    fn sorted(
        &self,
        query: &Query,
        parts: &[ParsedChunk],
        kept: &Survivors,
        (start, end): (TimeKey, Option<TimeKey>),
    ) -> Result<Vec<RowPosition>> {
        let mut found = Vec::new();
        let (mut rows, mut ids) = (Vec::new(), Vec::new());
        for number in self.run.clone() {
            let meets = |(first, last): &(TimeKey, TimeKey)| end.is_none_or(|end| *first < end) && *last >= start;
            if self.times.get(number - self.run.start).is_some_and(|times| !meets(times)) {
                continue;
            }
            let inside = |when: TimeKey| when >= start && end.is_none_or(|end| when < end);
            let part = SortRows::of(query, &parts[number], |keep| kept.filter(number, &parts[number], keep), inside)?;
            let slot = found.len() as u32;
            rows.extend(part.rows.iter().enumerate().map(|(at, row)| (part.time_keys[at], slot, at as u32, *row)));
            ids.push((part.ids, part.versions));
            found.push((number as u32, part.ranks));
        }
        // No two rows have the same rank, so an unstable sort always gives the same order.
        rows.sort_unstable_by(|a, b| {
            let by = |of_a: &Option<Keys>, of_b: &Option<Keys>| match (of_a, of_b) {
                (Some(of_a), Some(of_b)) => of_a.get(a.2 as usize).cmp(&of_b.get(b.2 as usize)),
                _ => std::cmp::Ordering::Equal,
            };
            let (of_a, of_b) = (&ids[a.1 as usize], &ids[b.1 as usize]);
            let by_ids = || by(&of_a.0, &of_b.0).then_with(|| by(&of_a.1, &of_b.1));
            // Rows of equal time, id and version are ordered by write, so that every read returns them in the same order.
            let rank = |row: &(TimeKey, u32, u32, u32)| found[row.1 as usize].1[row.2 as usize];
            a.0.cmp(&b.0).then_with(by_ids).then_with(|| rank(a).cmp(&rank(b)))
        });
        Ok(rows.into_iter().map(|(_, slot, _, row)| (found[slot as usize].0, row)).collect())
    }

    /// The next `count` rows of the order; `None` if they take far more bytes than a piece may: the caller then tries
    /// fewer.
    fn piece(&mut self, query: &Query, parts: &[ParsedChunk], count: usize) -> Result<Option<RecordBatch>> {
        let places = &self.order[self.done..self.done + count];
        let mut wanted: HashMap<u32, Vec<u32>> = HashMap::new();
        places.iter().for_each(|(part, row)| wanted.entry(*part).or_default().push(*row));
        let mut numbers: Vec<u32> = wanted.keys().copied().collect();
        numbers.sort_unstable();
        let (mut taken, mut slots) = (Vec::with_capacity(numbers.len()), HashMap::with_capacity(numbers.len()));
        let (mut bytes, mut rows) = (0, 0);
        for number in numbers {
            let wanted = wanted.remove(&number).unwrap_or_default();
            slots.insert(number, (taken.len(), 0));
            rows += wanted.len();
            taken.push(self.rows_of(query, parts, number, wanted)?);
            bytes += taken.last().map_or(0, bytes_of);
            // These rows are much larger than the previous ones: retry with fewer before too many bytes are held.
            if bytes > 2 * PIECE_BYTES && count > 1 {
                // The last term makes the next try about half as large, also if the end of the order and not the size
                // of rows limited this one.
                self.row_bytes = (bytes / rows).max(2 * self.row_bytes).max(PIECE_BYTES / count * 2);
                return Ok(None);
            }
        }
        let places = &self.order[self.done..self.done + count];
        let place = |(part, _): &RowPosition| {
            // Every part in `places` has a slot, and its rows were taken in their order.
            slots.get_mut(part).map_or((0, 0), |(slot, next)| {
                *next += 1;
                (*slot, *next - 1)
            })
        };
        let order: Vec<(usize, usize)> = places.iter().map(place).collect();
        interleaved(query, &taken, &order).map(Some)
    }

    /// Rows of a part, with the columns of the query.
    fn rows_of(&mut self, query: &Query, parts: &[ParsedChunk], number: u32, rows: Vec<u32>) -> Result<RecordBatch> {
        let (frame, part) = (&query.frame, &parts[number as usize]);
        if let Some(all) = self.cache.get(&number) {
            return taken(query, all, rows);
        }
        // `append_rows` takes ascending rows. Those of one chunk may be wanted in another order, and are then taken
        // from all its rows.
        let sorted = rows.is_sorted_by(|a, b| a < b);
        let (all, picked) = part.with_body(frame, |body| {
            let damaged = |damage| frame.damaged(&part.chunk.key, damage);
            let frame = frame.decoding([&part.head]);
            let count = frame.columns_in(&part.chunk.key, &part.head)?;
            let mut set = Columns::new(&frame.layout, &query.output, &frame.defaults);
            let picked = sorted && body.decodes_single_rows() && is_few(rows.len(), part.head.rows as usize);
            match picked {
                true => set.append_rows(body, count, &rows).map_err(damaged)?,
                false => set.append_body(body, count).map_err(damaged)?,
            }
            Ok((set.finish(), picked))
        })?;
        if picked {
            return shaped(query, all);
        }
        let taken = taken(query, &all, rows)?;
        self.remember(number, all);
        Ok(taken)
    }

    /// Caches a decoded part that is needed again, if there is room.
    fn remember(&mut self, number: u32, rows: RecordBatch) {
        let (done, last) = (self.done, &self.last);
        // First evict the parts that no later row needs.
        self.cache.retain(|number, _| last.get(number).is_some_and(|last| *last >= done));
        self.cached_bytes = self.cache.values().map(bytes_of).sum();
        let bytes = bytes_of(&rows);
        if self.cached_bytes + bytes <= CACHE_BYTES {
            self.cached_bytes += bytes;
            self.cache.insert(number, rows);
        }
    }
}

/// The sort keys of the rows that the query returns from a part within a stretch.
struct SortRows {
    rows: Vec<u32>,
    time_keys: Vec<TimeKey>,
    ids: Option<Keys>,
    versions: Option<Keys>,
    ranks: Vec<Rank>,
}

impl SortRows {
    fn of(
        query: &Query,
        part: &ParsedChunk,
        filter: impl FnOnce(&mut [bool]),
        inside: impl Fn(TimeKey) -> bool,
    ) -> Result<Self> {
        let frame = &query.frame;
        part.with_body(frame, |body| {
            let mut keep = vec![true; part.head.rows as usize];
            filter(&mut keep);
            // Columns are decoded in the order in which they exclude rows: the time first, then those with conditions,
            // and ids only for the rows that are left.
            let times = ColumnsOf::decode(frame, part, body, vec![frame.time])?;
            let time_keys = time_keys(&times.column(frame.time));
            keep.iter_mut().zip(&time_keys).for_each(|(keep, when)| *keep &= inside(*when));
            if query.tests_rows() && keep.contains(&true) {
                let tested = ColumnsOf::decode(frame, part, body, query.tested_columns())?;
                query.filter(&|position| tested.column(position), &mut keep)?;
            }
            let rows: Vec<u32> = (0..keep.len() as u32).filter(|row| keep[*row as usize]).collect();
            if rows.is_empty() {
                return Ok(Self { rows, time_keys: vec![], ids: None, versions: None, ranks: vec![] });
            }
            let (mut ids, mut versions) = (None, None);
            if !frame.ids.is_empty() {
                let mut columns = frame.ids.clone();
                columns.extend(frame.version.filter(|version| !frame.ids.contains(version)));
                let decoded = ColumnsOf::decode(frame, part, body, columns)?;
                let picked = take_record_batch(&decoded.rows, &UInt32Array::from(rows.clone()));
                let picked = picked.map_err(|e| frame.compute("selecting rows", e))?;
                let picked = ColumnsOf { rows: picked, ..decoded };
                (ids, versions) = (picked.keys(frame, &frame.ids)?, picked.keys(frame, frame.version.as_slice())?);
            }
            let ranks = part_ranks(frame, part, body)?;
            let pick = |row: &u32| *row as usize;
            Ok(Self {
                time_keys: rows.iter().map(|row| time_keys[pick(row)]).collect(),
                ranks: rows.iter().map(|row| ranks[pick(row)]).collect(),
                rows,
                ids,
                versions,
            })
        })
    }
}

type TimeRuns = (Vec<(TimeKey, TimeKey)>, VecDeque<(TimeKey, Option<TimeKey>)>);

/// Cuts the time of overlapping parts into stretches with about as many rows as are sorted at once.
fn stretches(query: &Query, parts: &[ParsedChunk]) -> Result<TimeRuns> {
    let rows: usize = parts.iter().map(|part| part.head.rows as usize).sum();
    if rows <= SORTED_ROWS {
        return Ok((vec![], VecDeque::from([(TimeKey::MIN, None)])));
    }
    let frame = &query.frame;
    let step = rows.div_ceil(SAMPLE_ROWS);
    let (mut times, mut sample, mut next) = (Vec::with_capacity(parts.len()), Vec::new(), 0);
    for part in parts {
        let time_keys = part.with_body(frame, |body| {
            Ok(time_keys(&ColumnsOf::decode(frame, part, body, vec![frame.time])?.column(frame.time)))
        })?;
        let last = time_keys.iter().max().copied().unwrap_or(TimeKey::MIN);
        times.push((time_keys.iter().min().copied().unwrap_or(TimeKey::MAX), last));
        // `next` counts on from part to part, so that the sample takes every `step`-th row of all parts together.
        while next < time_keys.len() {
            sample.push(time_keys[next]);
            next += step;
        }
        next -= time_keys.len();
    }
    sample.sort_unstable();
    // Aim at half the rows that may be sorted at once, because cuts taken from a sample are uneven. Rows of equal time stay
    // together, however many there are.
    let count = rows.div_ceil(SORTED_ROWS / 2);
    let mut cuts: Vec<TimeKey> = (1..count).map(|cut| sample[cut * sample.len() / count]).collect();
    cuts.dedup();
    // The last stretch has no end: a half-open one could not include the greatest key.
    let starts = std::iter::once(TimeKey::MIN).chain(cuts.iter().copied());
    let ends = cuts.iter().copied().map(Some).chain([None]);
    Ok((times, starts.zip(ends).collect()))
}

fn shaped(query: &Query, rows: RecordBatch) -> Result<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows.num_rows()));
    let shaped = RecordBatch::try_new_with_options(query.schema.clone(), rows.columns().to_vec(), &options);
    shaped.map_err(|e| query.frame.compute("decoding rows", e))
}

fn taken(query: &Query, all: &RecordBatch, rows: Vec<u32>) -> Result<RecordBatch> {
    if query.output.is_empty() {
        return counted(query, rows.len());
    }
    let taken = take_record_batch(all, &UInt32Array::from(rows));
    shaped(query, taken.map_err(|e| query.frame.compute("selecting rows", e))?)
}

fn interleaved(query: &Query, taken: &[RecordBatch], order: &[(usize, usize)]) -> Result<RecordBatch> {
    if query.output.is_empty() {
        return counted(query, order.len());
    }
    // The rows of a single part were taken in the order of the result.
    if let [only] = taken {
        return Ok(only.clone());
    }
    let batches: Vec<&RecordBatch> = taken.iter().collect();
    let rows = interleave_record_batch(&batches, order);
    rows.map_err(|e| query.frame.compute("sorting rows", e))
}

/// Rows without columns, for which the kernels lose the row count.
fn counted(query: &Query, rows: usize) -> Result<RecordBatch> {
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    let batch = RecordBatch::try_new_with_options(query.schema.clone(), vec![], &options);
    batch.map_err(|e| query.frame.compute("decoding rows", e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_of_rows_has_all_of_them_but_those_that_were_removed() {
        for rows in [0, 1, 63, 64, 65, 130] {
            let mut set = RowSet::all(rows);
            assert_eq!(set.numbers(), (0..rows as u32).collect::<Vec<_>>());
            let removed = |row: &usize| row.is_multiple_of(3) || *row == 64;
            (0..rows).filter(removed).for_each(|row| set.remove(row));
            // A row that is removed again stays away.
            (0..rows).filter(removed).for_each(|row| set.remove(row));
            assert_eq!(set.numbers(), (0..rows).filter(|row| !removed(row)).map(|row| row as u32).collect::<Vec<_>>());
        }
    }
}
