//! Input rows with their tiles: sorted by tile, without duplicate ids.

use arrow_array::{ArrayRef, RecordBatch, UInt32Array};
use arrow_select::concat::concat_batches;
use arrow_select::take::take_record_batch;
use chronotile_types::{Cell, Tile, Window};
use hashbrown::{HashMap, HashSet};

use crate::error::{ArchiveError, Result};
use crate::frame::Frame;
use crate::keys::{Keys, OwnedKey, compare_by};
use crate::read::cells;
use crate::time_axis;
use crate::time_axis::Times;
use crate::write::content::{add_ordinals, row_hashes};

/// Rows of a batch with the tile, time, hash and ordinal of each.
#[derive(Clone)]
pub(crate) struct TiledRows {
    /// Number of the input, and so of the dataset, to which the rows belong.
    pub input: usize,
    pub rows: RecordBatch,
    pub tiles: Vec<Tile>,
    pub ticks: Vec<i64>,
    pub hashes: Vec<u64>,
    /// Position of each row in its input.
    pub ordinals: Vec<i64>,
}

impl TiledRows {
    /// Assigns rows with the columns of the dataset to tiles; `first` is the ordinal of the first row.
    pub(crate) fn new(frame: &Frame, input: usize, rows: RecordBatch, first: i64) -> Result<Self> {
        let spec = &frame.spec;
        let bad = |column: &str, row: usize, reason: &str| ArchiveError::Row {
            dataset: spec.name.clone(),
            row: first as u64 + row as u64,
            column: column.to_owned(),
            reason: reason.to_owned(),
        };
        for id in &frame.ids {
            if let Some(row) = (0..rows.num_rows()).find(|row| rows.column(*id).is_null(*row)) {
                return Err(bad(&spec.schema.field(*id).name().clone(), row, "is null; every record needs its ids"));
            }
        }
        let (ticks, windows) = time_axis::place_rows(spec, rows.column(frame.time))
            .map_err(|(row, reason)| bad(&spec.time.column, row, reason))?;
        let cells = cells::cells_of(spec, &rows).map_err(|(column, row, reason)| bad(&column, row, &reason))?;
        let tile = |(cell, window): (i64, Window)| Tile { cell: Cell(cell), window };
        let tiles = cells.into_iter().zip(windows).map(tile).collect();
        let mut hashes = row_hashes(spec, &rows).map_err(|e| frame.compute("hashing rows", e))?;
        if frame.ids.is_empty() {
            add_ordinals(&mut hashes, first);
        }
        let ordinals = (first..first + rows.num_rows() as i64).collect();
        Ok(Self { input, rows, tiles, ticks, hashes, ordinals })
    }

    /// Joins parts of one input.
    pub(crate) fn concat(frame: &Frame, mut parts: Vec<Self>) -> Result<Self> {
        if parts.len() == 1
            && let Some(only) = parts.pop()
        {
            return Ok(only);
        }
        let rows = concat_batches(&frame.spec.schema, parts.iter().map(|part| &part.rows));
        let mut all = Self {
            input: parts.first().map_or(0, |part| part.input),
            rows: rows.map_err(|e| frame.compute("joining rows", e))?,
            tiles: vec![],
            ticks: vec![],
            hashes: vec![],
            ordinals: vec![],
        };
        for part in parts {
            all.tiles.extend(part.tiles);
            all.ticks.extend(part.ticks);
            all.hashes.extend(part.hashes);
            all.ordinals.extend(part.ordinals);
        }
        Ok(all)
    }

    /// Sorts rows by tile, time, ids, version and ordinal. Of rows in one tile with the same ids and version, keeps
    /// only the last.
    pub(crate) fn sorted(self, frame: &Frame) -> Result<Self> {
        if frame.timed_ids()
            && let Some(order) = self.distinct_times(frame)
        {
            return self.take(frame, order);
        }
        let columns: Vec<ArrayRef> = frame.ids.iter().map(|id| self.rows.column(*id).clone()).collect();
        let keys = if columns.is_empty() { None } else { Some(Keys::new(&columns)) };
        let keys = keys.transpose().map_err(|e| frame.compute("comparing ids", e))?;
        let versions = frame.versions(|version| self.rows.column(version).clone())?;
        let days = match time_axis::times(self.rows.column(frame.time)) {
            Some(Times::Days(days)) => Some(days),
            _ => None,
        };
        let mut order: Vec<u32> = (0..self.rows.num_rows() as u32).collect();
        if let Some(keys) = &keys
            && let Some(superseded) = self.superseded(keys, versions.as_ref())
        {
            order.retain(|row| !superseded.contains(row));
        }
        // Ordinals differ, so even an unstable sort has only one possible result.
        order.sort_unstable_by(|a, b| {
            let (a, b) = (*a as usize, *b as usize);
            (self.tiles[a], self.ticks[a])
                .cmp(&(self.tiles[b], self.ticks[b]))
                // Float days of the same tick may still differ.
                .then_with(|| days.map_or(std::cmp::Ordering::Equal, |days| days[a].total_cmp(&days[b])))
                .then_with(|| compare_by(keys.as_ref(), a, b))
                .then_with(|| compare_by(versions.as_ref(), a, b))
                .then_with(|| self.ordinals[a].cmp(&self.ordinals[b]))
        });
        self.take(frame, order)
    }

    /// The order by tile and time, without comparing ids, where the time is a part of the ids; `None` if two rows of a
    /// tile have the same time.
    fn distinct_times(&self, frame: &Frame) -> Option<Vec<u32>> {
        if matches!(time_axis::times(self.rows.column(frame.time)), Some(Times::Days(_))) {
            return None;
        }
        let key = |row: u32| (self.tiles[row as usize], self.ticks[row as usize]);
        let mut order: Vec<u32> = (0..self.rows.num_rows() as u32).collect();
        order.sort_unstable_by_key(|row| key(*row));
        order.windows(2).all(|pair| key(pair[0]) != key(pair[1])).then_some(order)
    }

    /// Rows with the same ids and version as a later row of the same tile; `None` if all ids differ, as they usually
    /// do.
    fn superseded(&self, keys: &Keys, versions: Option<&Keys>) -> Option<HashSet<u32>> {
        let rows = self.rows.num_rows();
        let mut seen = HashSet::with_capacity(rows);
        // The usual case needs no owned keys: if all ids differ, tiles and versions do not matter.
        if (0..rows).all(|row| seen.insert(keys.get(row))) {
            return None;
        }
        let mut last: HashMap<(Tile, OwnedKey, OwnedKey), u32> = HashMap::new();
        let mut superseded = HashSet::new();
        for row in 0..rows {
            let version = versions.map_or(OwnedKey::Null, |keys| keys.get(row).to_owned());
            let identity = (self.tiles[row], keys.get(row).to_owned(), version);
            // `insert` returns the earlier row with the same tile, ids and version.
            superseded.extend(last.insert(identity, row as u32));
        }
        Some(superseded)
    }

    fn take(self, frame: &Frame, order: Vec<u32>) -> Result<Self> {
        if order.len() == self.rows.num_rows() && order.iter().enumerate().all(|(place, row)| place as u32 == *row) {
            return Ok(self);
        }
        let pick = |row: &u32| *row as usize;
        let (tiles, ticks, hashes, ordinals) = (
            order.iter().map(|row| self.tiles[pick(row)]).collect(),
            order.iter().map(|row| self.ticks[pick(row)]).collect(),
            order.iter().map(|row| self.hashes[pick(row)]).collect(),
            order.iter().map(|row| self.ordinals[pick(row)]).collect(),
        );
        let rows = take_record_batch(&self.rows, &UInt32Array::from(order));
        Ok(Self {
            input: self.input,
            rows: rows.map_err(|e| frame.compute("sorting rows", e))?,
            tiles,
            ticks,
            hashes,
            ordinals,
        })
    }

    /// The ranges of rows of one tile each; call after sorting.
    pub(crate) fn tile_ranges(&self) -> Vec<std::ops::Range<usize>> {
        let mut ranges = Vec::new();
        let mut start = 0;
        for end in 1..=self.tiles.len() {
            if end == self.tiles.len() || self.tiles[end] != self.tiles[start] {
                ranges.push(start..end);
                start = end;
            }
        }
        ranges
    }
}
