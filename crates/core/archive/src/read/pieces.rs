//! Returns the rows of whole tiles in pieces of bounded size.
//!
//! Most groups are one piece, decoded at once. A larger group is split into tiles, and a larger tile into its chunks
//! if these follow one another in time. Otherwise the ids of the tile are compared first, some of them at a time
//! (`newest_of_each`), and then stretches with overlapping chunks are merged (`merge`). So memory is bounded whatever
//! a tile contains: by the constants here and in `merge`, and by the largest chunk.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use std::ops::Range;
use std::sync::Arc;

use arrow_array::RecordBatch;
use chronotile_types::BatchId;
use hashbrown::HashMap;

use crate::error::Result;
use crate::keys::{Key, OwnedKey};
use crate::memory::ReadCharge;
use crate::read::assemble::{Rank, SelectedRows, assemble, is_clean, is_in_order};
use crate::read::merge::{KeyRows, Merge, PIECE_BYTES, RowSet, Survivors};
use crate::read::part::{ParsedChunk, tile_ranges};
use crate::read::query::{Identity, Query};

/// Encoded bytes up to which a group is decoded at once.
const RUN_BYTES: usize = 4 << 20;
/// Groups below this many encoded bytes are decoded on the calling thread: starting another would take longer.
const LIGHT_BYTES: usize = 16 << 10;
/// Records of one tile whose ids are compared in one pass.
const RECORDS_AT_ONCE: usize = 1 << 18;

/// The remaining pieces of a group of whole tiles, in order.
pub(crate) struct Pieces {
    query: Arc<Query>,
    chosen: Option<Arc<SelectedRows>>,
    /// A stack: the next one is last.
    groups: Vec<Vec<ParsedChunk>>,
    tile: Option<LargeTile>,
    /// Bytes of the chunks in memory.
    bytes: usize,
    /// The charge for these bytes and the rows returned last.
    held: ReadCharge,
}

impl Pieces {
    /// The pieces of `parts`, which are whole tiles in order. If rows are `chosen` beforehand, only these are
    /// returned, without merging.
    pub(crate) fn new(query: Arc<Query>, parts: Vec<ParsedChunk>, chosen: Option<Arc<SelectedRows>>) -> Self {
        let bytes = parts.iter().map(|part| part.chunk.head.len() + part.chunk.body.len()).sum();
        Self { chosen, groups: vec![parts], tile: None, bytes, held: query.held(), query }
    }

    /// Whether nothing is left.
    pub(crate) fn is_done(&self) -> bool {
        self.groups.is_empty() && self.tile.is_none()
    }

    /// Whether decoding the next piece takes less time than starting a thread for it.
    pub(crate) fn is_light(&self) -> bool {
        self.tile.is_none() && self.groups.last().is_none_or(|parts| is_light(parts))
    }

    /// The next rows; `None` at the end. They stay charged until the following rows are requested.
    pub(crate) fn next(&mut self) -> Result<Option<RecordBatch>> {
        self.held.set(self.bytes + self.decoded_bytes())?;
        let rows = self.decode()?;
        self.held.set(self.bytes + rows.as_ref().map_or(0, RecordBatch::get_array_memory_size))?;
        Ok(rows)
    }

    /// Estimated bytes of the next rows.
    fn decoded_bytes(&self) -> usize {
        const TIMES_ENCODED: usize = 4;
        match (&self.tile, self.groups.last()) {
            (Some(_), _) => PIECE_BYTES,
            (None, Some(parts)) => {
                let encoded: usize = parts.iter().map(|part| part.head.body_bytes).sum();
                PIECE_BYTES.min(encoded.saturating_mul(TIMES_ENCODED))
            }
            (None, None) => 0,
        }
    }

    fn decode(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(tile) = &mut self.tile {
                match tile.next(&self.query)? {
                    Some(rows) => return Ok(Some(rows)),
                    None => self.tile = None,
                }
            }
            let Some(parts) = self.groups.pop() else { return Ok(None) };
            let bytes: usize = parts.iter().map(|part| part.head.body_bytes).sum();
            let rows = match parts.len() {
                0 => continue,
                // A chunk cannot be split, and its format bounds its decoded bytes.
                1 => assemble(&self.query, &parts, self.chosen.as_deref(), usize::MAX)?,
                _ if bytes <= RUN_BYTES => assemble(&self.query, &parts, self.chosen.as_deref(), PIECE_BYTES)?,
                _ => None,
            };
            match rows {
                Some(rows) if rows.num_rows() > 0 => return Ok(Some(rows)),
                Some(_) => {}
                None => self.split(parts)?,
            }
        }
    }

    fn split(&mut self, mut parts: Vec<ParsedChunk>) -> Result<()> {
        let tiles = tile_ranges(&parts);
        if tiles.len() > 1 {
            let rest = parts.split_off(tiles[tiles.len() / 2].start);
            // The last group of the stack is next, so the later tiles go below the earlier ones.
            self.groups.extend([rest, parts]);
        } else {
            self.tile = Some(LargeTile::new(&self.query, parts, self.chosen.clone())?);
        }
        Ok(())
    }
}

/// Whether decoding these parts takes less time than starting a thread.
pub(crate) fn is_light(parts: &[ParsedChunk]) -> bool {
    parts.iter().map(|part| part.head.body_bytes).sum::<usize>() < LIGHT_BYTES
}

/// A tile that is too large to decode at once.
struct LargeTile {
    parts: Vec<ParsedChunk>,
    kept: Survivors,
    /// Ranges of parts, each entirely before the next in time.
    runs: VecDeque<Range<usize>>,
    merge: Option<Merge>,
}

impl LargeTile {
    fn new(query: &Query, parts: Vec<ParsedChunk>, chosen: Option<Arc<SelectedRows>>) -> Result<Self> {
        let runs = match is_in_order(query.identity, &query.frame, &parts) {
            true => (0..parts.len()).map(|part| part..part + 1).collect(),
            false => runs_in_time(&parts),
        };
        let kept = match chosen {
            Some(chosen) => Survivors::SelectedRows(chosen),
            None if is_clean(query.identity, &query.frame, &parts) => Survivors::All,
            None => Survivors::Rows(newest_of_each(query, &parts)?),
        };
        Ok(Self { parts, kept, runs, merge: None })
    }

    fn next(&mut self, query: &Query) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(merge) = &mut self.merge {
                match merge.next(query, &self.parts, &self.kept)? {
                    Some(rows) => return Ok(Some(rows)),
                    None => self.merge = None,
                }
            }
            let Some(run) = self.runs.pop_front() else { return Ok(None) };
            if run.len() > 1 {
                self.merge = Some(Merge::new(query, &self.parts, run)?);
            } else if let Some(rows) = self.single(query, run.start)? {
                return Ok(Some(rows));
            }
        }
    }

    /// The rows of a part that overlaps no other; `None` if there are none.
    fn single(&self, query: &Query, number: usize) -> Result<Option<RecordBatch>> {
        let part = &self.parts[number..=number];
        let id = part[0].chunk.key.id;
        let rows = match &self.kept {
            Survivors::All => assemble(query, part, None, usize::MAX)?,
            Survivors::SelectedRows(chosen) if !chosen.contains_key(&id) => None,
            Survivors::SelectedRows(chosen) => assemble(query, part, Some(chosen), usize::MAX)?,
            Survivors::Rows(sets) => {
                let rows = sets[number].numbers();
                let chosen = SelectedRows::from_iter([(id, rows)]);
                if chosen[&id].is_empty() { None } else { assemble(query, part, Some(&chosen), usize::MAX)? }
            }
        };
        Ok(rows.filter(|rows| rows.num_rows() > 0))
    }
}

/// Ranges of the parts of a tile, each entirely before the next in time.
fn runs_in_time(parts: &[ParsedChunk]) -> VecDeque<Range<usize>> {
    let mut runs = VecDeque::new();
    let (mut start, mut last) = (0, i64::MIN);
    for (number, part) in parts.iter().enumerate() {
        // The first condition avoids an empty run before the first part, since the initial `last` precedes its times.
        if number > start && last < part.head.zone.time_min {
            runs.push_back(start..number);
            start = number;
        }
        last = last.max(part.head.zone.time_max);
    }
    runs.push_back(start..parts.len());
    runs
}

/// The identity of a record: id, version, batch and ordinal, as far as [`Identity`] uses them.
#[derive(PartialEq, Eq, Hash)]
struct Record<'a>(Key<'a>, Key<'a>, Option<BatchId>, i64);

#[derive(PartialEq, Eq, Hash)]
struct OwnedRecord(OwnedKey, OwnedKey, Option<BatchId>, i64);

impl hashbrown::Equivalent<OwnedRecord> for Record<'_> {
    fn equivalent(&self, owned: &OwnedRecord) -> bool {
        self.0.equivalent(&owned.0) && self.1.equivalent(&owned.1) && (self.2, self.3) == (owned.2, owned.3)
    }
}

/// For each part of one tile, the rows to keep: among rows with the same identity, the one written last. Ignores rows
/// outside the time range and rows of batches that do not count. Makes one pass over the tile for each share of its
/// records, to bound the number of records in memory.
fn newest_of_each(query: &Query, parts: &[ParsedChunk]) -> Result<Vec<RowSet>> {
    let rows: usize = parts.iter().map(|part| part.head.rows as usize).sum();
    let shares = rows.div_ceil(RECORDS_AT_ONCE).max(1) as u64;
    let mut kept: Vec<RowSet> = parts.iter().map(|part| RowSet::all(part.head.rows as usize)).collect();
    #[expect(clippy::disallowed_methods, reason = "any partition of the records will do")]
    let hasher = RandomState::new();
    for share in 0..shares {
        let mut newest: HashMap<OwnedRecord, (Rank, u32)> = HashMap::new();
        for (number, part) in parts.iter().enumerate() {
            let keys = KeyRows::of(query, part, query.identity == Identity::Versions)?;
            for (row, rank) in keys.ranks.iter().enumerate() {
                if !keys.counts[row] {
                    // Rows that do not count must not win over others. Each pass removes them again, which changes
                    // nothing.
                    kept[number].remove(row);
                    continue;
                }
                let record = record_of(query.identity, &keys, row, rank);
                if hasher.hash_one(&record) % shares != share {
                    continue;
                }
                let owned = || OwnedRecord(record.0.to_owned(), record.1.to_owned(), record.2, record.3);
                match newest.get_mut(&record) {
                    None => {
                        newest.insert(owned(), (*rank, number as u32));
                    }
                    Some(best) if best.0 < *rank => {
                        kept[best.1 as usize].remove(best.0.row as usize);
                        *best = (*rank, number as u32);
                    }
                    Some(_) => kept[number].remove(row),
                }
            }
        }
    }
    Ok(kept)
}

fn record_of<'a>(identity: Identity, keys: &'a KeyRows, row: usize, rank: &Rank) -> Record<'a> {
    let id = keys.ids.as_ref().map_or(Key::Null, |ids| ids.get(row));
    match identity {
        Identity::Ids => Record(id, Key::Null, None, 0),
        Identity::Versions => {
            Record(id, keys.versions.as_ref().map_or(Key::Null, |keys| keys.get(row)), Some(rank.batch), 0)
        }
        Identity::Ordinal => Record(id, Key::Null, Some(rank.batch), rank.ordinal),
    }
}
