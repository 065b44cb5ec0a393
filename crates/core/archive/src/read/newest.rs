//! Reads the newest version of each id, in whichever tiles of the read its versions are.
//!
//! A record may move between cells and windows, so versions are compared across the whole read. Most reads are small
//! enough to hold in memory: ids and versions of all rows are decoded, then the winning rows. Larger reads take two
//! passes: the first compares ids chunk by chunk, the second reads the winning rows. Between the passes, the
//! candidate rows are kept if they are few, otherwise their chunks, which go to a temporary file if they are many.

use std::sync::Arc;

use arrow_array::{BooleanArray, RecordBatch};
use arrow_select::filter::filter_record_batch;
use bytes::Bytes;
use chronotile_chunk::{Body, Columns};
use chronotile_store::Store;
use chronotile_types::ChunkId;
use futures::{StreamExt, TryStreamExt, stream};
use hashbrown::HashMap;

use crate::error::Result;
use crate::keys::{Keys, OwnedKey};
use crate::memory::ReadCharge;
use crate::read::assemble::{Age, Positions, SelectedRows, assemble_few, assemble_newest, open, part_ranks};
use crate::read::groups::newest_groups;
use crate::read::merge::PIECE_BYTES;
use crate::read::part::{BodyStore, ParsedChunk};
use crate::read::pieces::{Pieces, is_light};
use crate::read::query::Query;
use crate::read::{ReadStream, on_pool};

/// Bytes of chunks, and of rows, kept in memory between the two passes.
const KEPT_BYTES: usize = 64 << 20;
/// Largest read, in encoded bytes, that is decoded in one pass, and the decoded bytes at which that is abandoned.
const AT_ONCE_BYTES: usize = 8 << 20;
const DECODED_BYTES: usize = 32 << 20;
/// Encoded bytes up to which a group is decompressed at once.
const OPENED_BYTES: usize = 4 << 20;

/// A version of a record, in order of age: null and absent versions are older than any other.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Version {
    version: OwnedKey,
    age: Age,
}

pub(crate) async fn read(store: Arc<dyn Store>, query: Arc<Query>) -> Result<ReadStream> {
    let mut groups = newest_groups(store, query.clone()).await?;
    let mut first: Vec<ParsedChunk> = Vec::new();
    let mut bytes = 0;
    while let Some(parts) = groups.try_next().await? {
        bytes += parts.iter().map(|part| part.head.body_bytes).sum::<usize>();
        first.extend(parts);
        if bytes > AT_ONCE_BYTES {
            break;
        }
    }
    let mut seen = ObservedVersions::new(&query);
    // If the limit was not exceeded, the scan has ended, and `first` is the whole read.
    if bytes <= AT_ONCE_BYTES {
        match at_once(&query, first).await? {
            Ok(read) => return Ok(read),
            Err(parts) => first = parts,
        }
    }
    // The first pass compares ids and versions of all groups. Which rows win is known only at its end.
    let mut groups = stream::iter([Ok(first)]).chain(groups);
    while let Some(parts) = groups.try_next().await? {
        if is_light(&parts) {
            seen.enter(&query, parts)?;
            continue;
        }
        let query = query.clone();
        seen = on_pool(move || {
            seen.enter(&query, parts)?;
            Ok(seen)
        })
        .await?;
    }
    let winners = std::mem::take(&mut seen.winners);
    seen.hold(winners.len() * size_of::<u64>())?;
    let (schema, chosen) = (query.schema.clone(), Arc::new(rows_of(winners)));
    let replay = Replay { query, chosen, groups: seen.kept.into_iter(), pieces: None, _held: seen.held };
    let batches = stream::try_unfold(replay, |mut replay| async move {
        let light = replay.is_light();
        let work = move || Ok(replay.next()?.map(|rows| (rows, replay)));
        if light { work() } else { on_pool(work).await }
    });
    Ok(ReadStream::new(schema, batches.boxed()))
}

/// The rows of a read whose parts are all of `parts`; returns the parts if they decode to too many bytes.
async fn at_once(
    query: &Arc<Query>,
    parts: Vec<ParsedChunk>,
) -> Result<std::result::Result<ReadStream, Vec<ParsedChunk>>> {
    let mut held = query.held();
    held.set(at_once_bytes(query, &parts))?;
    let (light, worker) = (is_light(&parts), query.clone());
    let work = move || {
        let rows = assemble_newest(&worker, &parts, DECODED_BYTES)?;
        Ok((rows, parts))
    };
    let (rows, parts) = if light { work()? } else { on_pool(work).await? };
    let Some(rows) = rows else { return Ok(Err(parts)) };
    held.set(rows.get_array_memory_size())?;
    let rows = stream::iter((rows.num_rows() > 0).then_some(rows)).map(move |rows| {
        // The closure captures the charge, which therefore lasts as long as the rows.
        let _ = &held;
        Ok(rows)
    });
    Ok(Ok(ReadStream::new(query.schema.clone(), rows.boxed())))
}

/// Estimated bytes for decoding and comparing all rows of these parts at once.
fn at_once_bytes(query: &Query, parts: &[ParsedChunk]) -> usize {
    /// A row's code, its entry in a table twice, and whether it is kept.
    const COMPARED: usize = 2 * size_of::<u64>() + 2 * size_of::<u32>();
    const TIMES_ENCODED: usize = 4;
    let encoded: usize = parts.iter().map(|part| part.head.body_bytes).sum();
    let rows: usize = parts.iter().map(|part| part.head.rows as usize).sum();
    let columns = query.output.iter().chain(&query.frame.ids).chain(&query.frame.version);
    let width = |column: &usize| query.frame.spec.schema.field(*column).data_type().primitive_width().unwrap_or(0);
    let decoded = (rows * columns.map(width).sum::<usize>()).max(TIMES_ENCODED * encoded);
    encoded + rows * COMPARED + decoded.min(DECODED_BYTES)
}

/// The results of the first pass.
struct ObservedVersions {
    winners: HashMap<OwnedKey, Version>,
    kept: Vec<Group>,
    shelf: BodyStore,
    rows_bytes: usize,
    /// Whether each group so far had few candidate rows.
    few: bool,
    held: ReadCharge,
}

impl ObservedVersions {
    fn new(query: &Query) -> Self {
        let (few, held) = (query.seeks_few(), query.held());
        Self { winners: HashMap::new(), kept: vec![], shelf: BodyStore::new(KEPT_BYTES), rows_bytes: 0, few, held }
    }

    fn enter(&mut self, query: &Query, parts: Vec<ParsedChunk>) -> Result<()> {
        let records = self.winners.len() + parts.iter().map(|part| part.head.rows as usize).sum::<usize>();
        if records > self.winners.capacity() {
            // While the table grows, both the old and the new one exist.
            self.hold(
                table_bytes::<(OwnedKey, Version)>(records)
                    + table_bytes::<(OwnedKey, Version)>(self.winners.capacity()),
            )?;
        }
        self.enter_parts(query, parts)?;
        self.hold(table_bytes::<(OwnedKey, Version)>(self.winners.capacity()))
    }

    /// Charges what is kept, plus `bytes`.
    fn hold(&mut self, bytes: usize) -> Result<()> {
        Ok(self.held.set(bytes + self.rows_bytes + self.shelf.taken(KEPT_BYTES))?)
    }

    fn enter_parts(&mut self, query: &Query, parts: Vec<ParsedChunk>) -> Result<()> {
        let opened_at_once = parts.iter().map(|part| part.head.body_bytes).sum::<usize>() <= OPENED_BYTES;
        if self.few && opened_at_once && !parts.iter().any(ParsedChunk::is_spilled) {
            return self.enter_few(query, parts);
        }
        let mut parts = parts;
        let mut candidates = false;
        for part in &parts {
            candidates |=
                !part.with_body(&query.frame, |body| compare(query, part, body, &mut self.winners))?.is_empty();
        }
        if candidates {
            for part in &mut parts {
                self.shelf.keep(&query.frame, part)?;
            }
            self.kept.push(Group::Parts(parts));
        }
        Ok(())
    }

    /// As [`ObservedVersions::enter`], but keeps the candidate rows instead of their chunks if they are few.
    fn enter_few(&mut self, query: &Query, parts: Vec<ParsedChunk>) -> Result<()> {
        let bytes: Vec<Bytes> = parts.iter().map(|part| part.chunk.body.clone()).collect();
        let bodies = open(query, &parts, &bytes)?;
        let mut candidates = SelectedRows::new();
        for (part, body) in parts.iter().zip(&bodies) {
            let rows = compare(query, part, body, &mut self.winners)?;
            if !rows.is_empty() {
                candidates.insert(part.chunk.key.id, rows);
            }
        }
        if candidates.is_empty() {
            return Ok(());
        }
        if self.rows_bytes <= KEPT_BYTES
            && let Some((rows, positions)) = assemble_few(query, &parts, &bodies, &candidates, PIECE_BYTES)?
        {
            self.rows_bytes += rows.get_array_memory_size();
            self.kept.push(Group::Rows(rows, positions));
            return Ok(());
        }
        self.few = false;
        drop(bodies);
        let mut parts = parts;
        for part in &mut parts {
            self.shelf.keep(&query.frame, part)?;
        }
        self.kept.push(Group::Parts(parts));
        Ok(())
    }
}

/// Bytes of a hash table with this many entries: a power of two of slots, of which an eighth stays free.
pub(crate) fn table_bytes<T>(records: usize) -> usize {
    match records {
        0 => 0,
        _ => (records * 8).div_ceil(7).next_power_of_two() * size_of::<T>(),
    }
}

/// The newest version of each id in `parts`, as row numbers by chunk.
pub(crate) fn choose(query: &Query, parts: &[ParsedChunk]) -> Result<SelectedRows> {
    let mut winners: HashMap<OwnedKey, Version> = HashMap::new();
    for part in parts {
        part.with_body(&query.frame, |body| compare(query, part, body, &mut winners))?;
    }
    Ok(rows_of(winners))
}

fn rows_of(winners: HashMap<OwnedKey, Version>) -> SelectedRows {
    let mut chosen = SelectedRows::new();
    for version in winners.into_values() {
        chosen.entry(version.age.rank.chunk).or_default().push(version.age.rank.row);
    }
    chosen.values_mut().for_each(|rows| rows.sort_unstable());
    chosen
}

/// Enters the versions of one chunk. Returns the rows that were compared.
fn compare(
    query: &Query,
    part: &ParsedChunk,
    body: &Body,
    winners: &mut HashMap<OwnedKey, Version>,
) -> Result<Vec<u32>> {
    let frame = &query.frame;
    let damaged = |damage| frame.damaged(&part.chunk.key, damage);
    let mut columns = frame.ids.clone();
    columns.extend(frame.version.filter(|version| !frame.ids.contains(version)));
    if !columns.contains(&frame.time) {
        columns.push(frame.time);
    }
    let frame = frame.decoding([&part.head]);
    let mut set = Columns::new(&frame.layout, &columns, &frame.defaults);
    set.append_body(body, frame.columns_in(&part.chunk.key, &part.head)?).map_err(damaged)?;
    let rows = set.finish();
    let column = |position: usize| {
        // `columns` lists every column that is requested here.
        let place = columns.iter().position(|column| *column == position).unwrap_or(0);
        rows.column(place).clone()
    };
    let keys = |columns: &[usize]| {
        let arrays: Vec<_> = columns.iter().map(|position| column(*position)).collect();
        Keys::new(&arrays).map_err(|e| frame.compute("comparing ids", e))
    };
    // Region, keys and predicates are not tested here: the newest version wins even if it fails them, and then no
    // version of its record is returned.
    let mut keep = vec![true; rows.num_rows()];
    if !query.bounds.holds_all(part.head.zone.time_min, part.head.zone.time_max) {
        query.bounds.filter(&column(frame.time), &mut keep);
    }
    if query.hides_rows_of(&part.head) {
        query.clear_hidden(part, body, &mut keep)?;
    }
    // A lookup by id excludes most rows of a tile.
    query.keep_wanted_ids(&column, &mut keep)?;
    let tile = part.chunk.key.tile;
    let ids = keys(&frame.ids)?;
    let versions = frame.version.map(|version| keys(&[version])).transpose()?;
    for (row, rank) in part_ranks(frame, part, body)?.into_iter().enumerate() {
        if !keep[row] {
            continue;
        }
        let version = versions.as_ref().map_or(OwnedKey::Null, |keys| keys.get(row).to_owned());
        let candidate = Version { version, age: Age::new(tile, rank) };
        match winners.get_mut(&ids.get(row)) {
            Some(winner) if *winner < candidate => *winner = candidate,
            Some(_) => {}
            None => {
                winners.insert(ids.get(row).to_owned(), candidate);
            }
        }
    }
    Ok((0..part.head.rows).filter(|row| keep[*row as usize]).collect())
}

/// What is kept between the two passes.
enum Group {
    /// Candidate rows, which may still include older versions.
    Rows(RecordBatch, Positions),
    /// Chunks: whole tiles, in order.
    Parts(Vec<ParsedChunk>),
}

/// The second pass.
struct Replay {
    query: Arc<Query>,
    chosen: Arc<SelectedRows>,
    groups: std::vec::IntoIter<Group>,
    pieces: Option<Pieces>,
    _held: ReadCharge,
}

impl Replay {
    /// Whether producing the next rows takes less time than starting a thread for them.
    fn is_light(&self) -> bool {
        self.pieces.is_none() && matches!(self.groups.as_slice(), [] | [Group::Rows(..), ..])
    }

    /// The next winning rows; `None` at the end.
    fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(pieces) = &mut self.pieces {
                match pieces.next()? {
                    Some(rows) => return Ok(Some(rows)),
                    None => self.pieces = None,
                }
            }
            match self.groups.next() {
                None => return Ok(None),
                Some(Group::Rows(rows, positions)) => {
                    let rows = self.won(&rows, &positions)?;
                    if rows.num_rows() > 0 {
                        return Ok(Some(rows));
                    }
                }
                Some(Group::Parts(mut parts)) => {
                    // All versions have been compared, so chunks without a winning row or a matching text can be
                    // skipped.
                    parts.retain(|part| {
                        self.chosen.contains_key(&part.chunk.key.id) && self.query.may_hold_texts(&part.head)
                    });
                    self.pieces = Some(Pieces::new(self.query.clone(), parts, Some(self.chosen.clone())));
                }
            }
        }
    }

    fn won(&self, rows: &RecordBatch, positions: &Positions) -> Result<RecordBatch> {
        // Candidate rows have passed all conditions in `assemble_few`: only rows that are not the newest are left to
        // remove.
        let won =
            |(chunk, row): &(ChunkId, u32)| self.chosen.get(chunk).is_some_and(|rows| rows.binary_search(row).is_ok());
        let won: BooleanArray = positions.iter().map(|position| Some(won(position))).collect();
        filter_record_batch(rows, &won).map_err(|e| self.query.frame.compute("selecting rows", e))
    }
}
