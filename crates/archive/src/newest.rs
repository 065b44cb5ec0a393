//! Reading the newest version of each id, wherever in the read its versions lie.
//!
//! A record may move between cells and windows, so versions are compared across the whole read: once for the ids and versions
//! alone, then again for the rows that won. In between the rows are kept where a read asks for few of them, else the chunks they lie
//! in, in a temporary file where these are many.

use std::io::{Read, Seek, SeekFrom, Write};
use std::sync::Arc;

use arrow_array::{BooleanArray, RecordBatch};
use arrow_select::filter::filter_record_batch;
use bytes::Bytes;
use chronotile_chunk::{Body, Columns};
use chronotile_store::{Chunk, Store};
use chronotile_types::{BatchId, Cell, ChunkId, Window};
use futures::{StreamExt, TryStreamExt, stream};
use hashbrown::HashMap;

use crate::assemble::{Chosen, Part, Places, Rank, assemble, assemble_few, open, part_ranks, prepare};
use crate::error::{ArchiveError, Result};
use crate::keys::{Keys, OwnedKey};
use crate::query::Query;
use crate::read::{ReadStream, groups, is_light, on_pool};

/// Bytes of chunks kept in memory between the two passes.
const KEPT_BYTES: usize = 256 << 20;

/// A version of a record: null and absent versions are older than any, then the later write and its batch decide. Of one
/// batch the later window wins, then the greater cell, so that chunk ids never decide between tiles.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Version {
    version: OwnedKey,
    written: (i64, BatchId),
    place: (Window, Cell),
    rank: Rank,
}

pub(crate) async fn read(store: Arc<dyn Store>, query: Arc<Query>) -> Result<ReadStream> {
    let mut groups = groups(store, query.clone()).await?;
    let mut seen = Seen { few: query.seeks_few(), ..Seen::default() };
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
    let (schema, chosen) = (query.schema.clone(), Arc::new(rows_of(seen.winners)));
    let begin = (query, chosen, seen.kept.into_groups());
    let batches = stream::try_unfold(begin, |(query, chosen, mut kept)| async move {
        loop {
            let (q, c, light) = (query.clone(), chosen.clone(), kept.is_light());
            let work = move || Ok(kept.next(&q, &c)?.map(|batch| (batch, kept)));
            match if light { work() } else { on_pool(work).await }? {
                None => return Ok(None),
                Some((batch, rest)) if batch.num_rows() > 0 => return Ok(Some((batch, (query, chosen, rest)))),
                Some((_, rest)) => kept = rest,
            }
        }
    });
    Ok(ReadStream::new(schema, batches.boxed()))
}

/// What the first pass has seen.
#[derive(Default)]
struct Seen {
    winners: HashMap<OwnedKey, Version>,
    kept: Kept,
    /// Whether each group so far had few of the rows asked for.
    few: bool,
}

impl Seen {
    fn enter(&mut self, query: &Query, parts: Vec<Part>) -> Result<()> {
        let bodies = open(query, &parts)?;
        let mut candidates = Chosen::new();
        for (part, body) in parts.iter().zip(&bodies) {
            let rows = compare(query, part, body, &mut self.winners)?;
            if !rows.is_empty() {
                candidates.insert(part.chunk.key.id, rows);
            }
        }
        if candidates.is_empty() {
            return Ok(());
        }
        if self.few && self.kept.bytes <= KEPT_BYTES {
            if let Some((batch, places)) = assemble_few(query, &parts, &bodies, &candidates)? {
                self.kept.push_rows(batch, places);
                return Ok(());
            }
            self.few = false;
        }
        drop(bodies);
        self.kept.push(query, parts)
    }
}

/// The newest version of each id in `parts`, as rows of their chunks.
pub(crate) fn choose(query: &Query, parts: &[Part]) -> Result<Chosen> {
    let mut winners: HashMap<OwnedKey, Version> = HashMap::new();
    for (part, body) in parts.iter().zip(&open(query, parts)?) {
        compare(query, part, body, &mut winners)?;
    }
    Ok(rows_of(winners))
}

fn rows_of(winners: HashMap<OwnedKey, Version>) -> Chosen {
    let mut chosen = Chosen::new();
    for version in winners.into_values() {
        chosen.entry(version.rank.chunk).or_default().push(version.rank.row);
    }
    chosen.values_mut().for_each(|rows| rows.sort_unstable());
    chosen
}

/// Enters the versions in one chunk. Returns the rows that took part.
fn compare(query: &Query, part: &Part, body: &Body, winners: &mut HashMap<OwnedKey, Version>) -> Result<Vec<u32>> {
    let frame = &query.frame;
    let damaged = |damage| frame.damaged(&part.chunk.key, damage);
    let mut columns = frame.ids.clone();
    columns.extend(frame.version.filter(|version| !frame.ids.contains(version)));
    if !columns.contains(&frame.time) {
        columns.push(frame.time);
    }
    let mut set = Columns::new(&frame.layout, &columns, &frame.defaults);
    set.append_body(body, frame.columns_in(&part.chunk.key, &part.head)?).map_err(damaged)?;
    let rows = set.finish();
    let column = |position: usize| {
        // `columns` holds every position asked for here.
        let place = columns.iter().position(|column| *column == position).unwrap_or(0);
        rows.column(place).clone()
    };
    let keys = |columns: &[usize]| {
        let arrays: Vec<_> = columns.iter().map(|position| column(*position)).collect();
        Keys::new(&arrays).map_err(|e| frame.compute("comparing ids", e))
    };
    let mut keep = vec![true; rows.num_rows()];
    if !query.bounds.holds_all(part.head.zone.time_min, part.head.zone.time_max) {
        query.bounds.filter(&column(frame.time), &mut keep);
    }
    if query.leaves_out_rows_of(&part.head) {
        query.clear_unfinished(part, body, &mut keep)?;
    }
    // Most rows of a tile are of other ids than those a look-up asks for.
    query.keep_wanted_ids(&column, &mut keep)?;
    let tile = part.chunk.key.tile;
    let ids = keys(&frame.ids)?;
    let versions = frame.version.map(|version| keys(&[version])).transpose()?;
    for (row, rank) in part_ranks(frame, part, body)?.into_iter().enumerate() {
        if !keep[row] {
            continue;
        }
        let version = versions.as_ref().map_or(OwnedKey::Null, |keys| keys.get(row).to_owned());
        let (written, place) = ((rank.written_us, rank.batch), (tile.window, tile.cell));
        let candidate = Version { version, written, place, rank };
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

/// Groups of chunks between the two passes.
#[derive(Default)]
struct Kept {
    groups: Vec<Group>,
    bytes: usize,
    file: Option<std::fs::File>,
}

enum Group {
    /// Rows that are asked for, those of older versions still among them.
    Rows(RecordBatch, Places),
    Memory(Vec<Chunk>),
    /// Keys and sizes of chunks whose bytes follow one another in the file from `offset`.
    File {
        offset: u64,
        chunks: Vec<(Chunk, usize, usize)>,
    },
}

impl Kept {
    fn push_rows(&mut self, rows: RecordBatch, places: Places) {
        self.bytes += rows.get_array_memory_size();
        self.groups.push(Group::Rows(rows, places));
    }

    fn push(&mut self, query: &Query, parts: Vec<Part>) -> Result<()> {
        let chunks: Vec<Chunk> = parts.into_iter().map(|part| part.chunk).collect();
        self.bytes += chunks.iter().map(|chunk| chunk.head.len() + chunk.body.len()).sum::<usize>();
        if self.bytes <= KEPT_BYTES {
            self.groups.push(Group::Memory(chunks));
            return Ok(());
        }
        let group = self.spill(chunks).map_err(|e| unkept(query, &e))?;
        self.groups.push(group);
        Ok(())
    }

    fn spill(&mut self, chunks: Vec<Chunk>) -> std::io::Result<Group> {
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(tempfile::tempfile()?),
        };
        let offset = file.seek(SeekFrom::End(0))?;
        let mut emptied = Vec::with_capacity(chunks.len());
        for chunk in chunks {
            file.write_all(&chunk.head)?;
            file.write_all(&chunk.body)?;
            let (head, body) = (chunk.head.len(), chunk.body.len());
            emptied.push((Chunk { head: Bytes::new(), body: Bytes::new(), ..chunk }, head, body));
        }
        Ok(Group::File { offset, chunks: emptied })
    }

    fn into_groups(self) -> Replay {
        Replay { groups: self.groups.into_iter(), file: self.file }
    }
}

struct Replay {
    groups: std::vec::IntoIter<Group>,
    file: Option<std::fs::File>,
}

impl Replay {
    /// Whether the next group takes less time than to start a thread for it.
    fn is_light(&self) -> bool {
        matches!(self.groups.as_slice(), [] | [Group::Rows(..), ..])
    }

    /// The rows of the next group that won; `None` at the end.
    fn next(&mut self, query: &Query, chosen: &Chosen) -> Result<Option<RecordBatch>> {
        let wanted = |id: &ChunkId| chosen.contains_key(id);
        let Some(group) = self.groups.next() else { return Ok(None) };
        let chunks = match group {
            Group::Rows(rows, places) => {
                let won = |(chunk, row): &(ChunkId, u32)| {
                    chosen.get(chunk).is_some_and(|rows| rows.binary_search(row).is_ok())
                };
                let won: BooleanArray = places.iter().map(|place| Some(won(place))).collect();
                let rows = filter_record_batch(&rows, &won);
                return rows.map(Some).map_err(|e| query.frame.compute("selecting rows", e));
            }
            Group::Memory(mut chunks) => {
                chunks.retain(|chunk| wanted(&chunk.key.id));
                chunks
            }
            Group::File { offset, chunks } => {
                let read = self.load(offset, chunks).map_err(|e| unkept(query, &e))?;
                read.into_iter().filter(|chunk| wanted(&chunk.key.id)).collect()
            }
        };
        let mut parts = prepare(query, chunks)?;
        // The versions are compared: a chunk that cannot hold what is asked for has nothing more to say.
        parts.retain(|part| query.may_hold_texts(&part.head));
        assemble(query, &parts, Some(chosen)).map(Some)
    }

    fn load(&mut self, offset: u64, chunks: Vec<(Chunk, usize, usize)>) -> std::io::Result<Vec<Chunk>> {
        let Some(file) = &mut self.file else { return Ok(vec![]) };
        file.seek(SeekFrom::Start(offset))?;
        let mut read = Vec::with_capacity(chunks.len());
        for (chunk, head, body) in chunks {
            let mut bytes = vec![0; head + body];
            file.read_exact(&mut bytes)?;
            let bytes = Bytes::from(bytes);
            read.push(Chunk { head: bytes.slice(..head), body: bytes.slice(head..), ..chunk });
        }
        Ok(read)
    }
}

fn unkept(query: &Query, error: &std::io::Error) -> ArchiveError {
    query
        .frame
        .refuse(format!("the read needs a temporary file, which failed: {error}; free space, or read less at once"))
}
