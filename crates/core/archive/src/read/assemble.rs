//! Turns chunks of neighbouring tiles into rows: decodes, merges, sorts and filters them.
//!
//! The rows are ordered by tile, then time, ids and version, whatever chunks they came from. Usually the chunks of a
//! tile follow one another in time and cannot share an id: their rows are then in order already and nothing is
//! compared. Only a tile whose chunks overlap is merged row by row.

use std::cmp::Ordering;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions, UInt32Array};
use arrow_schema::Schema;
use arrow_select::take::take;
use bytes::Bytes;
use chronotile_chunk::{Body, Columns, Origin};
use chronotile_types::{BatchId, Cell, ChunkId, Damage, SliceId, Tile, TimeFormat, Window, ZoneKey};
use hashbrown::HashMap;

use crate::error::{ArchiveError, Result};
use crate::frame::Frame;
use crate::keys::{Key, Keys, compare_by};
use crate::read::part::{ParsedChunk, tile_ranges};
use crate::read::query::{Identity, Query};
use crate::read::unique::Ids;
use crate::time_axis::{Times, times};

/// Rows chosen beforehand, by chunk: only these are returned, without merging.
pub(crate) type SelectedRows = HashMap<ChunkId, Vec<u32>>;

/// The location of each row: its chunk and its number there.
pub(crate) type Positions = Vec<(ChunkId, u32)>;

/// Order of the parts of a group: the chunks of each tile in order of time.
pub(crate) fn order_key(part: &ParsedChunk) -> (SliceId, Tile, i64, i64, ZoneKey, ChunkId) {
    let (key, zone) = (&part.chunk.key, &part.head.zone);
    (key.slice, key.tile, zone.time_min, zone.time_max, zone.id_min, key.id)
}

/// Whether the chunks of one tile, in the order of [`order_key`], hold their rows in order and each record once.
pub(crate) fn is_clean(identity: Identity, frame: &Frame, tile: &[ParsedChunk]) -> bool {
    let unique_inside = identity != Identity::Ids || tile.iter().all(|part| part.head.unique_ids);
    // Ordered chunks differ in time or, at a common time, in ids: if the ids include the time, they share no record.
    is_in_order(identity, frame, tile) && unique_inside && (frame.timed_ids() || ids_apart(tile))
}

/// Whether the chunks of one tile, one after the other, hold their rows in order.
pub(crate) fn is_in_order(identity: Identity, frame: &Frame, tile: &[ParsedChunk]) -> bool {
    // Rows of equal time are ordered by their ids, if there are any. Days (MJD, JD) that share a tick may still
    // differ.
    let ids_tell = identity != Identity::Ordinal && frame.spec.time.format == TimeFormat::Timestamp;
    let follows = |pair: &[ParsedChunk]| {
        let (a, b) = (&pair[0].head.zone, &pair[1].head.zone);
        let one_time = ids_tell && a.time_min == b.time_max;
        a.time_max < b.time_min || one_time && a.id_max < b.id_min
    };
    tile.windows(2).all(follows)
}

fn ids_apart(tile: &[ParsedChunk]) -> bool {
    let ascending = |pair: &[ParsedChunk]| pair[0].head.zone.id_max < pair[1].head.zone.id_min;
    if tile.windows(2).all(ascending) {
        return true;
    }
    let mut zones: Vec<_> = tile.iter().map(|part| (part.head.zone.id_min, part.head.zone.id_max)).collect();
    zones.sort_unstable();
    zones.windows(2).all(|pair| pair[0].1 < pair[1].0)
}

/// The rows that `query` returns from `parts`, which are whole tiles in the order of [`order_key`]; `None` if they
/// decode to more than `bytes_max`.
pub(crate) fn assemble(
    query: &Query,
    parts: &[ParsedChunk],
    chosen: Option<&SelectedRows>,
    bytes_max: usize,
) -> Result<Option<RecordBatch>> {
    assemble_by(query, parts, chosen.map_or(Merging::EachTile, Merging::SelectedRows), bytes_max)
}

/// As [`assemble`], where `parts` are the whole read: returns the newest version of each id, in whichever tiles its
/// versions are.
pub(crate) fn assemble_newest(query: &Query, parts: &[ParsedChunk], bytes_max: usize) -> Result<Option<RecordBatch>> {
    assemble_by(query, parts, Merging::WholeRead, bytes_max)
}

fn assemble_by(
    query: &Query,
    parts: &[ParsedChunk],
    merging: Merging,
    bytes_max: usize,
) -> Result<Option<RecordBatch>> {
    let bytes = parts.iter().map(|part| part.body(&query.frame)).collect::<Result<Vec<_>>>()?;
    let bodies = open(query, parts, &bytes)?;
    let Some(work) = Assembly::new(query, parts, &bodies, merging, bytes_max)? else { return Ok(None) };
    match work.rows_to_keep()? {
        None => work.everything(),
        Some(rows) if rows.is_empty() => Ok(Some(query.empty())),
        Some(rows) => work.only(&rows),
    }
}

/// As [`assemble`], with the chunk and row number of each row; `None` unless the rows are few among those of `parts`.
pub(crate) fn assemble_few(
    query: &Query,
    parts: &[ParsedChunk],
    bodies: &[Body],
    chosen: &SelectedRows,
    bytes_max: usize,
) -> Result<Option<(RecordBatch, Positions)>> {
    let Some(work) = Assembly::new(query, parts, bodies, Merging::SelectedRows(chosen), bytes_max)? else {
        return Ok(None);
    };
    let Some(rows) = work.rows_to_keep()?.filter(|rows| is_few(rows.len(), work.row_count())) else { return Ok(None) };
    let place = |row: &u32| {
        let part = work.part_of(*row);
        (parts[part].chunk.key.id, *row - work.starts[part] as u32)
    };
    Ok(work.only(&rows)?.map(|batch| (batch, rows.iter().map(place).collect())))
}

/// Whether decoding rows one by one is faster than decoding everything between them too.
pub(crate) fn is_few(rows: usize, among: usize) -> bool {
    const SHARE: usize = 4;
    rows * SHARE <= among
}

/// Opens the bodies of parts from their bytes: verifies and decompresses them.
pub(crate) fn open<'a>(query: &Query, parts: &'a [ParsedChunk], bytes: &'a [Bytes]) -> Result<Vec<Body<'a>>> {
    let open = |(part, bytes): (&'a ParsedChunk, &'a Bytes)| {
        Body::open(&part.head, bytes).map_err(|damage| query.frame.damaged(&part.chunk.key, damage))
    };
    parts.iter().zip(bytes).map(open).collect()
}

/// Which rows are compared with each other.
#[derive(Clone, Copy)]
enum Merging<'a> {
    /// Those of the same tile.
    EachTile,
    /// None: the rows to keep are known.
    SelectedRows(&'a SelectedRows),
    /// All, by their ids: keeps the newest version of each.
    WholeRead,
}

/// The limit on decoded bytes that columns take together, on all cores.
struct Allowance {
    bytes_max: usize,
    taken: AtomicUsize,
}

impl Allowance {
    fn new(bytes_max: usize) -> Self {
        Self { bytes_max, taken: AtomicUsize::new(0) }
    }

    /// Takes more bytes; returns whether the total is within the limit.
    fn allows(&self, bytes: usize) -> bool {
        // The counter publishes no other data, so it needs no stronger ordering.
        self.taken.fetch_add(bytes, Relaxed).saturating_add(bytes) <= self.bytes_max
    }
}

struct Assembly<'a> {
    query: &'a Query,
    /// The definition that decodes all parts.
    decoding: &'a Frame,
    parts: &'a [ParsedChunk],
    merging: Merging<'a>,
    bodies: &'a [Body<'a>],
    /// First row of each part, followed by the total number of rows.
    starts: Vec<usize>,
    /// Tiles whose rows have to be sorted.
    dirty: Vec<Range<usize>>,
    /// Positions of the columns decoded first: those that determine which rows are kept.
    first: Vec<usize>,
    first_rows: RecordBatch,
    /// Decoded bytes at which assembly is abandoned.
    bytes_max: usize,
}

impl<'a> Assembly<'a> {
    /// `None` if the columns decoded first take more than `bytes_max`.
    fn new(
        query: &'a Query,
        parts: &'a [ParsedChunk],
        bodies: &'a [Body<'a>],
        merging: Merging<'a>,
        bytes_max: usize,
    ) -> Result<Option<Self>> {
        let mut starts = Vec::with_capacity(parts.len() + 1);
        let mut rows = 0;
        for part in parts {
            starts.push(rows);
            rows += part.head.rows as usize;
        }
        starts.push(rows);
        // A read of the newest versions compares ids across all tiles anyway, so a tile only has to be in order.
        let is_ready = |tile: &Range<usize>| {
            let tile = &parts[tile.clone()];
            match merging {
                Merging::WholeRead => is_in_order(query.identity, &query.frame, tile),
                _ => is_clean(query.identity, &query.frame, tile),
            }
        };
        let dirty: Vec<_> = tile_ranges(parts).into_iter().filter(|tile| !is_ready(tile)).collect();
        let compares = !dirty.is_empty() || matches!(merging, Merging::WholeRead);
        let first = first_columns(query, parts, (!dirty.is_empty(), compares));
        let mut work = Self {
            query,
            decoding: query.frame.decoding(parts.iter().map(|part| &part.head)),
            parts,
            merging,
            bodies,
            starts,
            dirty,
            first,
            first_rows: RecordBatch::new_empty(Arc::new(Schema::empty())),
            bytes_max,
        };
        if !work.first.is_empty() {
            let Some(rows) = work.decode(&work.first, &Allowance::new(bytes_max))? else { return Ok(None) };
            work.first_rows = rows;
        }
        Ok(Some(work))
    }

    fn frame(&self) -> &Frame {
        &self.query.frame
    }

    fn row_count(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    /// The part that contains a row.
    fn part_of(&self, row: u32) -> usize {
        self.starts.partition_point(|start| *start <= row as usize) - 1
    }

    /// Decodes columns of all rows; `None` if they exceed the allowance.
    fn decode(&self, columns: &[usize], allowance: &Allowance) -> Result<Option<RecordBatch>> {
        let mut set = Columns::new(&self.decoding.layout, columns, &self.decoding.defaults);
        set.reserve(self.row_count());
        for index in 0..self.parts.len() {
            let before = set.bytes();
            self.append(index, |body, count| set.append_body(body, count))?;
            if !allowance.allows(set.bytes() - before) {
                return Ok(None);
            }
        }
        Ok(Some(set.finish()))
    }

    /// Calls `append` with the body of a part and the number of columns that the part has.
    fn append(&self, index: usize, append: impl FnOnce(&Body, usize) -> std::result::Result<(), Damage>) -> Result<()> {
        let part = &self.parts[index];
        let count = self.decoding.columns_in(&part.chunk.key, &part.head)?;
        append(&self.bodies[index], count).map_err(|damage| self.frame().damaged(&part.chunk.key, damage))
    }

    fn first_column(&self, position: usize) -> ArrayRef {
        let place = self.first.iter().position(|column| *column == position);
        // `first_columns` lists every column that is requested here.
        self.first_rows.column(place.unwrap_or(0)).clone()
    }

    /// The rows to return, in order; `None` for all rows in their present order.
    fn rows_to_keep(&self) -> Result<Option<Vec<u32>>> {
        let hidden = self.parts.iter().any(|part| self.query.hides_rows_of(&part.head));
        // If no column is decoded first, no condition and no time bound applies to single rows: all rows are returned
        // as they are.
        let filters = !self.first.is_empty() || !matches!(self.merging, Merging::EachTile) || hidden;
        if !filters && self.dirty.is_empty() {
            return Ok(None);
        }
        // Rows that do not count or are outside the time range leave first: they must not win over others in the
        // comparison that follows.
        let mut keep = vec![true; self.row_count()];
        self.clear_unchosen(&mut keep);
        self.clear_hidden(&mut keep)?;
        self.clear_out_of_range(&mut keep);
        if let Merging::WholeRead = self.merging {
            self.keep_newest(&mut keep)?;
        }
        let order = if self.dirty.is_empty() { None } else { Some(self.merge(&mut keep)?) };
        // Region, keys and predicates are tested after the merge. In any other order, a superseded version would
        // reappear if the current one fails a test.
        if self.query.tests_rows() {
            self.query.filter(&|position| self.first_column(position), &mut keep)?;
        }
        match order {
            Some(order) => Ok(Some(order.into_iter().filter(|row| keep[*row as usize]).collect())),
            None if keep.iter().all(|keep| *keep) => Ok(None),
            None => Ok(Some((0..keep.len() as u32).filter(|row| keep[*row as usize]).collect())),
        }
    }

    fn clear_unchosen(&self, keep: &mut [bool]) {
        let Merging::SelectedRows(chosen) = self.merging else { return };
        keep.fill(false);
        for (part, start) in self.parts.iter().zip(&self.starts) {
            for row in chosen.get(&part.chunk.key.id).into_iter().flatten() {
                if let Some(keep) = keep.get_mut(start + *row as usize) {
                    *keep = true;
                }
            }
        }
    }

    /// A consolidated chunk may mix rows of a batch that is being replaced or removed with rows of others.
    fn clear_hidden(&self, keep: &mut [bool]) -> Result<()> {
        for (index, part) in self.parts.iter().enumerate() {
            if self.query.hides_rows_of(&part.head) {
                let rows = self.starts[index]..self.starts[index + 1];
                self.query.clear_hidden(part, &self.bodies[index], &mut keep[rows])?;
            }
        }
        Ok(())
    }

    fn clear_out_of_range(&self, keep: &mut [bool]) {
        let bounds = &self.query.bounds;
        for (index, part) in self.parts.iter().enumerate() {
            if !bounds.holds_all(part.head.zone.time_min, part.head.zone.time_max) {
                let rows = self.starts[index]..self.starts[index + 1];
                let column = self.first_column(self.frame().time).slice(rows.start, rows.len());
                bounds.filter(&column, &mut keep[rows]);
            }
        }
    }

    /// Sorts the rows of dirty tiles by time, ids and version, and clears `keep` for all but one row of each record.
    fn merge(&self, keep: &mut [bool]) -> Result<Vec<u32>> {
        let mut order: Vec<u32> = (0..self.row_count() as u32).collect();
        let ids: Vec<ArrayRef> = self.frame().ids.iter().map(|id| self.first_column(*id)).collect();
        let id_keys = self.keys(&ids)?;
        let versions = self.frame().versions(|version| self.first_column(version))?;
        let time_column = self.first_column(self.frame().time);
        let times = times(&time_column);
        let compare_times = |a: usize, b: usize| match &times {
            Some(Times::Ticks(ticks)) => ticks[a].cmp(&ticks[b]),
            Some(Times::Days(days)) => days[a].total_cmp(&days[b]),
            None => Ordering::Equal,
        };
        for tile in &self.dirty {
            let ranks = self.ranks(tile)?;
            if let Merging::EachTile = self.merging {
                self.keep_one_each(tile, &ranks, id_keys.as_ref(), keep)?;
            }
            let rows = self.starts[tile.start]..self.starts[tile.end];
            let first = rows.start;
            // No two rows have the same rank, so an unstable sort always gives the same order.
            order[rows].sort_unstable_by(|a, b| {
                let (a, b) = (*a as usize, *b as usize);
                compare_times(a, b)
                    .then_with(|| compare_by(id_keys.as_ref(), a, b))
                    .then_with(|| compare_by(versions.as_ref(), a, b))
                    .then_with(|| ranks[a - first].cmp(&ranks[b - first]))
            });
        }
        Ok(order)
    }

    fn keys(&self, columns: &[ArrayRef]) -> Result<Option<Keys>> {
        let keys = (!columns.is_empty()).then(|| Keys::new(columns)).transpose();
        keys.map_err(|e| self.frame().compute("comparing ids", e))
    }

    /// The rank of each row of a tile.
    fn ranks(&self, tile: &Range<usize>) -> Result<Vec<Rank>> {
        let mut ranks = Vec::with_capacity(self.starts[tile.end] - self.starts[tile.start]);
        for (part, body) in self.parts[tile.clone()].iter().zip(&self.bodies[tile.clone()]) {
            ranks.extend(part_ranks(self.frame(), part, body)?);
        }
        Ok(ranks)
    }

    /// Keeps the newest version among rows with the same id, ordered by [`Age`] if versions are equal. Ignores rows
    /// that are already excluded.
    fn keep_newest(&self, keep: &mut [bool]) -> Result<()> {
        // A lookup may exclude rows with other ids first.
        self.query.keep_wanted_ids(&|position| self.first_column(position), keep)?;
        let failed = |e| self.frame().compute("comparing versions", e);
        let ids: Vec<ArrayRef> = self.frame().ids.iter().map(|id| self.first_column(*id)).collect();
        let versions = self.frame().versions(|version| self.first_column(version))?;
        let version = |row: usize| versions.as_ref().map_or(Key::Null, |versions| versions.get(row));
        // Ranks are read when needed, as few rows have equal versions.
        let mut ranks: Vec<Option<Vec<Rank>>> = vec![None; self.parts.len()];
        let mut age = |row: usize| {
            let number = self.part_of(row as u32);
            let (part, body) = (&self.parts[number], &self.bodies[number]);
            let ranks = match &mut ranks[number] {
                Some(ranks) => ranks,
                none => none.insert(part_ranks(self.frame(), part, body)?),
            };
            Ok::<_, ArchiveError>(Age::new(part.chunk.key.tile, ranks[row - self.starts[number]]))
        };
        let newer = |a: usize, b: usize| match version(a).cmp(&version(b)) {
            Ordering::Equal => Ok(age(a)? > age(b)?),
            order => Ok(order == Ordering::Greater),
        };
        Ids::new(&ids).map_err(failed)?.keep_one_each(keep, newer)
    }

    /// Keeps the row written last among rows with the same identity. Ignores rows that are already excluded.
    fn keep_one_each(&self, tile: &Range<usize>, ranks: &[Rank], ids: Option<&Keys>, keep: &mut [bool]) -> Result<()> {
        let version = match (self.query.identity, self.frame().version) {
            (Identity::Versions, Some(column)) => self.keys(&[self.first_column(column)])?,
            _ => None,
        };
        let first = self.starts[tile.start];
        let mut newest: HashMap<(Key, Key, Option<BatchId>, i64), usize> = HashMap::with_capacity(ranks.len());
        for (index, rank) in ranks.iter().enumerate() {
            let row = first + index;
            if !keep[row] {
                continue;
            }
            let id = ids.map_or(Key::Null, |keys| keys.get(row));
            let identity = match self.query.identity {
                Identity::Ids => (id, Key::Null, None, 0),
                Identity::Versions => {
                    (id, version.as_ref().map_or(Key::Null, |keys| keys.get(row)), Some(rank.batch), 0)
                }
                Identity::Ordinal => (id, Key::Null, Some(rank.batch), rank.ordinal),
            };
            match newest.entry(identity) {
                hashbrown::hash_map::Entry::Vacant(entry) => {
                    entry.insert(index);
                }
                hashbrown::hash_map::Entry::Occupied(mut entry) => {
                    let loser = if ranks[*entry.get()] < *rank { entry.insert(index) } else { index };
                    keep[first + loser] = false;
                }
            }
        }
        Ok(())
    }

    /// All rows in their present order.
    fn everything(&self) -> Result<Option<RecordBatch>> {
        let rest = self.rest();
        let allowance = Allowance::new(self.bytes_max);
        let decode = |columns: &[usize]| Ok(self.decode(columns, &allowance)?.map(|rows| rows.columns().to_vec()));
        let Some(decoded) = self.on_two_cores(&rest, decode)? else { return Ok(None) };
        let column = |position: &usize| match rest.iter().position(|column| column == position) {
            Some(place) => decoded[place].clone(),
            None => self.first_column(*position),
        };
        self.shaped(self.query.output.iter().map(column).collect(), self.row_count()).map(Some)
    }

    /// Runs `decode` on the columns, half of them on another core if that pays: columns are independent of each
    /// other.
    fn on_two_cores(
        &self,
        columns: &[usize],
        decode: impl Fn(&[usize]) -> Result<Option<Vec<ArrayRef>>> + Sync,
    ) -> Result<Option<Vec<ArrayRef>>> {
        /// Decoding fewer encoded bytes takes less time than waking a thread.
        const BYTES_MIN: usize = 128 << 10;
        let bytes: usize = self.parts.iter().map(|part| part.head.body_bytes).sum();
        if columns.len() < 2 || bytes < BYTES_MIN {
            return decode(columns);
        }
        let (first, second) = columns.split_at(columns.len() / 2);
        let (first, second) = rayon::join(|| decode(first), || decode(second));
        Ok(first?.zip(second?).map(|(first, second)| [first, second].concat()))
    }

    /// Columns to return that are not decoded yet.
    fn rest(&self) -> Vec<usize> {
        self.query.output.iter().copied().filter(|column| !self.first.contains(column)).collect()
    }

    fn shaped(&self, columns: Vec<ArrayRef>, rows: usize) -> Result<RecordBatch> {
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let batch = RecordBatch::try_new_with_options(self.query.schema.clone(), columns, &options);
        batch.map_err(|e| self.frame().compute("decoding rows", e))
    }

    /// The given rows, in the given order.
    fn only(&self, rows: &[u32]) -> Result<Option<RecordBatch>> {
        let rest = self.rest();
        let allowance = Allowance::new(self.bytes_max);
        let decode = |columns: &[usize]| self.decode_and_take(columns, rows, &allowance);
        let Some(decoded) = self.on_two_cores(&rest, decode)? else { return Ok(None) };
        let whole = UInt32Array::from(rows.to_vec());
        let mut columns = Vec::with_capacity(self.query.output.len());
        for position in &self.query.output {
            columns.push(match rest.iter().position(|column| column == position) {
                Some(place) => decoded[place].clone(),
                None => self.taken(&self.first_column(*position), &whole)?,
            });
        }
        self.shaped(columns, rows.len()).map(Some)
    }

    /// Columns of the given rows, in the given order; `None` if they exceed the allowance.
    fn decode_and_take(&self, columns: &[usize], rows: &[u32], allowance: &Allowance) -> Result<Option<Vec<ArrayRef>>> {
        let Some((decoded, within)) = self.decode_only(columns, rows, allowance)? else { return Ok(None) };
        // All decoded rows are wanted in their present order: no copy is needed.
        if within.iter().copied().eq(0..decoded.num_rows() as u32) {
            return Ok(Some(decoded.columns().to_vec()));
        }
        let within = UInt32Array::from(within);
        decoded.columns().iter().map(|column| self.taken(column, &within)).collect::<Result<_>>().map(Some)
    }

    fn taken(&self, column: &ArrayRef, rows: &UInt32Array) -> Result<ArrayRef> {
        take(column, rows, None).map_err(|e| self.frame().compute("selecting rows", e))
    }

    /// Decodes columns of at least the given rows, and returns the position of each of these rows. Skips parts
    /// without any of them; from parts with few of them, decodes only those rows. `None` if the columns exceed the
    /// allowance.
    fn decode_only(
        &self,
        columns: &[usize],
        rows: &[u32],
        allowance: &Allowance,
    ) -> Result<Option<(RecordBatch, Vec<u32>)>> {
        let mut picked: Vec<Vec<u32>> = vec![vec![]; self.parts.len()];
        for row in rows {
            let part = self.part_of(*row);
            picked[part].push(*row - self.starts[part] as u32);
        }
        let mut set = Columns::new(&self.decoding.layout, columns, &self.decoding.defaults);
        let mut starts = vec![0; self.parts.len()];
        for (index, picked) in picked.iter_mut().enumerate().filter(|(_, picked)| !picked.is_empty()) {
            starts[index] = set.rows() as u32;
            let before = set.bytes();
            if self.bodies[index].decodes_single_rows() && is_few(picked.len(), self.parts[index].head.rows as usize) {
                // `append_rows` takes ascending rows, and `place` below searches among them; the rows wanted may be in
                // another order.
                picked.sort_unstable();
                self.append(index, |body, count| set.append_rows(body, count, picked))?;
            } else {
                picked.clear();
                self.append(index, |body, count| set.append_body(body, count))?;
            }
            if !allowance.allows(set.bytes() - before) {
                return Ok(None);
            }
        }
        let place = |row: &u32| {
            let part = self.part_of(*row);
            let number = *row - self.starts[part] as u32;
            // `picked` is empty for a part that was decoded completely: row numbers are then unchanged.
            starts[part] + picked[part].binary_search(&number).map_or(number, |place| place as u32)
        };
        let positions = rows.iter().map(place).collect();
        Ok(Some((set.finish(), positions)))
    }
}

/// Columns that determine which rows are kept and their order, given whether rows are sorted and whether they are
/// compared.
fn first_columns(query: &Query, parts: &[ParsedChunk], (dirty, compares): (bool, bool)) -> Vec<usize> {
    let frame = &query.frame;
    let zone_in = |part: &ParsedChunk| query.bounds.holds_all(part.head.zone.time_min, part.head.zone.time_max);
    let mut columns = query.tested_columns();
    if dirty || !parts.iter().all(zone_in) {
        columns.push(frame.time);
    }
    if compares {
        columns.extend(&frame.ids);
        columns.extend(frame.version);
    }
    columns.sort_unstable();
    columns.dedup();
    columns
}

/// The order of two rows of the same record: by time of writing, then batch, position in the batch, and chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rank {
    pub written_us: i64,
    pub batch: BatchId,
    pub token: u32,
    pub ordinal: i64,
    pub chunk: ChunkId,
    pub row: u32,
}

/// The order of equal versions of a record, in whichever tiles they are: by time of writing and batch. Within one
/// batch the later window wins, then the greater cell, so that chunk ids never decide between tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Age {
    written: (i64, BatchId),
    place: (Window, Cell),
    pub rank: Rank,
}

impl Age {
    pub(crate) fn new(tile: Tile, rank: Rank) -> Self {
        Self { written: (rank.written_us, rank.batch), place: (tile.window, tile.cell), rank }
    }
}

/// The rank of each row of a chunk.
pub(crate) fn part_ranks(frame: &Frame, part: &ParsedChunk, body: &Body) -> Result<Vec<Rank>> {
    let damaged = |damage| frame.damaged(&part.chunk.key, damage);
    let row_origins = body.row_origins().map_err(damaged)?;
    let ordinals = body.ordinals().map_err(damaged)?;
    let rank = |row: u32| {
        let index = row_origins.as_ref().map_or(0, |origins| origins[row as usize] as usize);
        let origin: Origin = part.head.origins[index];
        Rank {
            written_us: origin.written_us,
            token: origin.token,
            batch: origin.batch,
            chunk: part.chunk.key.id,
            ordinal: ordinals.as_ref().map_or(0, |ordinals| ordinals[row as usize]),
            row,
        }
    };
    Ok((0..part.head.rows).map(rank).collect())
}
