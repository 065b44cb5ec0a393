//! How a read or a count uses an index: which tiles it answers for, and which have to be read.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use chronotile_store::{ChunkKey, Store};
use chronotile_types::{Cell, IndexSpec, SliceId, Tile, Window, ZoneKey};
use futures::TryStreamExt;
use hashbrown::HashMap;
use xxhash_rust::xxh3::xxh3_64;

use super::columns_of;
use super::record;
use super::report::IndexUse;
use super::segment::{Segment, Shape};
use crate::dataset::Dataset;
use crate::error::Result;
use crate::frame::Frame;
use crate::read::groups::{HEADS, scan};
use crate::read::on_pool;
use crate::read::predicate::Test;
use crate::read::query::Query;
use crate::read::slices::slices_in;
use crate::request::{Place, ReadRequest};

/// Where an index leaves more than this share of the chunks to read, reading all of them in one walk is faster.
const WORTH_WHILE: f64 = 0.6;

/// A tile that lies in what a query covers.
#[derive(Clone)]
pub(crate) struct ObservedTile {
    pub slice: SliceId,
    pub tile: Tile,
    /// Where its keys stand.
    pub keys: Range<usize>,
    /// Hash of the ids of its chunks.
    pub print: u64,
    /// Whether all of its rows lie in the query's time range.
    pub inside: bool,
    /// Whether all of its rows count.
    pub visible: bool,
    pub ids: (ZoneKey, ZoneKey),
}

/// The tiles that a query covers, from heads alone, in the order of a scan.
pub(crate) struct Looked {
    pub tiles: Vec<ObservedTile>,
    pub keys: Vec<ChunkKey>,
}

impl Looked {
    /// Looks at one slice, or at all that the query covers.
    pub(crate) async fn new(store: Arc<dyn Store>, query: &Query, slice: Option<SliceId>) -> Result<Self> {
        if let Some(slice) = slice {
            // A part of a batch makes a tile another one than it will be, which readers notice.
            return Ok(Self::look(&store, query, vec![slice]).await?.0);
        }
        let (looked, late) = Self::look(&store, query, query.slices.clone()).await?;
        let (true, Some(visible)) = (late, &query.visible) else { return Ok(looked) };
        // What had ended by now is found whole.
        visible.complete();
        let slices = slices_in(store.as_ref(), &query.frame, query.windows).await?;
        Ok(Self::look(&store, query, slices).await?.0)
    }

    /// Also whether some batches ended so late that rows of theirs may have been missed.
    async fn look(store: &Arc<dyn Store>, query: &Query, slices: Vec<SliceId>) -> Result<(Self, bool)> {
        let mut late = false;
        let mut groups = scan(store.clone(), query, slices, HEADS).await?;
        let mut looked = Self { tiles: vec![], keys: vec![] };
        while let Some(chunks) = groups.try_next().await? {
            late |= query.decides_late(&chunks).await?;
            let heads = chunks.iter().map(|chunk| query.frame.head(chunk)).collect::<Result<Vec<_>>>()?;
            for (chunk, head) in chunks.into_iter().zip(heads) {
                if query.hides_all_of(&head) {
                    continue;
                }
                let visible = !query.hides_rows_of(&head);
                let inside = query.bounds.holds_all(head.zone.time_min, head.zone.time_max);
                let place = looked.keys.len();
                looked.keys.push(chunk.key);
                match looked.tiles.last_mut() {
                    Some(seen) if seen.tile == chunk.key.tile && seen.slice == chunk.key.slice => {
                        seen.keys.end += 1;
                        seen.inside &= inside;
                        seen.visible &= visible;
                        seen.ids = (seen.ids.0.min(head.zone.id_min), seen.ids.1.max(head.zone.id_max));
                    }
                    _ => looked.tiles.push(ObservedTile {
                        slice: chunk.key.slice,
                        tile: chunk.key.tile,
                        keys: place..place + 1,
                        print: 0,
                        inside,
                        visible,
                        ids: (head.zone.id_min, head.zone.id_max),
                    }),
                }
            }
        }
        let keys = &looked.keys;
        looked.tiles.iter_mut().for_each(|seen| seen.print = print(&keys[seen.keys.clone()]));
        Ok((looked, late))
    }
}

/// Hash of the ids of the chunks of a tile, in any order.
pub(crate) fn print(keys: &[ChunkKey]) -> u64 {
    let mut ids: Vec<[u8; 16]> = keys.iter().map(|key| key.id.to_bytes()).collect();
    ids.sort_unstable();
    xxh3_64(ids.as_flattened())
}

/// What an index is wanted for.
#[derive(Clone, Copy)]
pub(crate) enum Purpose<'a> {
    /// To leave out tiles that hold no row asked for.
    Rows,
    /// To count rows by the values of these columns of the dataset.
    Counts(&'a [usize]),
}

/// The index that serves a request best, and the request's predicates on its columns.
pub(crate) struct Choice {
    pub index: IndexSpec,
    /// Positions of its columns in the dataset.
    pub columns: Vec<usize>,
    types: Vec<arrow_schema::DataType>,
    /// Each with the place of its column in the index.
    tests: Vec<(usize, Test)>,
    counts: bool,
}

/// Chooses an index; the reason where none serves.
pub(crate) fn choose(
    frame: &Frame,
    request: &ReadRequest,
    purpose: Purpose<'_>,
) -> Result<std::result::Result<Choice, &'static str>> {
    if frame.spec.indexes.is_empty() {
        return Ok(Err("the dataset has no index"));
    }
    if request.ids.is_some() {
        return Ok(Err("records are looked up by id"));
    }
    if request.history && frame.keeps_latest() {
        return Ok(Err("an index knows the newest versions of records only"));
    }
    let counts = matches!(purpose, Purpose::Counts(_));
    if counts && matches!(request.place, Place::Keys(_) | Place::Region(_)) {
        return Ok(Err("rows have to be tested for their place"));
    }
    let mut best: Option<(usize, usize, Choice)> = None;
    for index in &frame.spec.indexes {
        let (types, columns) = columns_of(frame, index)?;
        let mut tests = Vec::new();
        for predicate in &request.predicates {
            if let Some(place) = index.columns.iter().position(|name| *name == predicate.column) {
                tests.push((place, Test::new(frame, predicate)?));
            }
        }
        let serves = match purpose {
            Purpose::Rows => !tests.is_empty(),
            Purpose::Counts(by) => {
                tests.len() == request.predicates.len() && by.iter().all(|column| columns.contains(column))
            }
        };
        let (covered, width) = (tests.len(), columns.len());
        if serves && best.as_ref().is_none_or(|(c, w, _)| covered > *c || covered == *c && width < *w) {
            best = Some((covered, width, Choice { index: index.clone(), columns, types, tests, counts }));
        }
    }
    let none =
        if counts { "no index has all columns that are asked for" } else { "no index has a column of a condition" };
    Ok(best.map(|(_, _, choice)| choice).ok_or(none))
}

/// What is indexed of one window, with the query's conditions applied.
pub(crate) struct Indexed {
    pub segments: Vec<Segment>,
    /// Per segment and value: whether the conditions hold.
    pub passing: Vec<Vec<bool>>,
    /// Per cell: segment, place in it, and whether it holds a value that passes.
    tiles: HashMap<i64, (usize, u32, bool)>,
}

impl Indexed {
    fn new(choice: &Choice, frame: &Frame, segments: Vec<Segment>) -> Result<Self> {
        let mut indexed = Self { segments, passing: vec![], tiles: HashMap::new() };
        for (number, segment) in indexed.segments.iter().enumerate() {
            let values = segment.starts.len() - 1;
            let mut passing = vec![true; values];
            for (place, test) in &choice.tests {
                let tested = test.filter(&segment.values[*place], &mut passing);
                tested.map_err(|e| frame.compute("filtering an index", e))?;
            }
            let mut matching = vec![false; segment.cells.len()];
            for value in (0..values).filter(|value| passing[*value]) {
                segment.postings(value).for_each(|posting| matching[segment.tiles[posting] as usize] = true);
            }
            for (place, cell) in segment.cells.iter().enumerate() {
                indexed.tiles.insert(*cell, (number, place as u32, matching[place]));
            }
            indexed.passing.push(passing);
        }
        Ok(indexed)
    }

    fn find(&self, cell: Cell) -> Option<(usize, u32, bool, u64)> {
        let (segment, place, matching) = *self.tiles.get(&cell.0)?;
        Some((segment, place, matching, self.segments[segment].prints[place as usize]))
    }
}

/// What to do with a tile.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Decision {
    /// The index answers for it.
    Trust,
    Read,
}

/// A query, shared between an index and the tiles themselves.
pub(crate) struct Plan {
    pub report: IndexUse,
    pub windows: BTreeMap<Window, Indexed>,
    /// Tiles that the index answers for and that hold values which pass: window, segment, place.
    pub counted: Vec<(Window, usize, u32)>,
    /// Chunks of all other tiles that may hold rows asked for.
    pub keys: Vec<ChunkKey>,
}

impl Plan {
    /// `None` where nothing is built that the query covers, or the index would not help.
    pub(crate) async fn new(
        dataset: &Dataset,
        query: &Query,
        choice: Choice,
    ) -> Result<std::result::Result<Self, IndexUse>> {
        let mut report = IndexUse { counts: choice.counts, ..IndexUse::default() };
        let windows = load(dataset, query, choice).await?;
        let Some((name, windows)) = windows else {
            report.reason = Some("nothing of the index is built for this period: build it".to_owned());
            return Ok(Err(report));
        };
        let looked = Looked::new(dataset.store_arc(), query, None).await?;
        let mut plan = Self { report, windows, counted: vec![], keys: vec![] };
        let mut decisions = plan.compare(&looked);
        plan.keep_shared_together(query, &looked, &mut decisions);
        plan.collect(&looked, &decisions);
        let share = plan.keys.len() as f64 / looked.keys.len().max(1) as f64;
        if !plan.report.counts && share > WORTH_WHILE {
            plan.report.reason = Some("most tiles hold rows that are asked for: all are read in one walk".to_owned());
            plan.report.tiles_read = plan.report.tiles;
            plan.report.chunks_read = plan.report.chunks;
            return Ok(Err(plan.report));
        }
        plan.report.index = Some(name);
        Ok(Ok(plan))
    }

    /// Compares each tile with what was indexed of it.
    fn compare(&mut self, looked: &Looked) -> Vec<Decision> {
        let report = &mut self.report;
        let decide = |seen: &ObservedTile| {
            let known = self.windows.get(&seen.tile.window).and_then(|window| window.find(seen.tile.cell));
            match known {
                None => report.tiles_unindexed += 1,
                Some((_, _, _, print)) if print != seen.print => report.tiles_changed += 1,
                Some(_) if !seen.visible => report.tiles_changed += 1,
                Some(_) if !seen.inside => report.tiles_partial += 1,
                Some(_) => return Decision::Trust,
            }
            Decision::Read
        };
        looked.tiles.iter().map(decide).collect()
    }

    /// Where several tiles may hold versions of one record, an index of each does not tell which is the newest.
    fn keep_shared_together(&mut self, query: &Query, looked: &Looked, decisions: &mut [Decision]) {
        if !query.newest_only {
            return;
        }
        let frame = &query.frame;
        let in_ids = |column: &&str| frame.spec.id.iter().any(|id| id == column);
        let cell_follows = frame.spec.cell.columns().iter().all(in_ids);
        if cell_follows && in_ids(&frame.spec.time.column.as_str()) {
            return;
        }
        // Where the cell follows from the ids, versions of one record lie in one cell.
        let group = |seen: &ObservedTile| if cell_follows { seen.tile.cell.0 } else { 0 };
        let mut groups: HashMap<i64, Vec<usize>> = HashMap::new();
        looked.tiles.iter().enumerate().for_each(|(at, seen)| groups.entry(group(seen)).or_default().push(at));
        for mut tiles in groups.into_values().filter(|tiles| tiles.len() > 1) {
            tiles.sort_unstable_by_key(|at| looked.tiles[*at].ids);
            let shared = if self.report.counts {
                overlapping(&tiles, looked)
            } else {
                self.overlapping_with_wanted(&tiles, looked, decisions)
            };
            for at in shared {
                self.report.tiles_shared += u64::from(decisions[at] == Decision::Trust);
                decisions[at] = Decision::Read;
            }
        }
    }

    /// Tiles that hold no row asked for by themselves, but perhaps newer versions of rows in tiles that do.
    fn overlapping_with_wanted(&self, tiles: &[usize], looked: &Looked, decisions: &[Decision]) -> Vec<usize> {
        let is_wanted = |at: usize| decisions[at] == Decision::Read || self.matches(&looked.tiles[at]);
        let mut wanted: Vec<(ZoneKey, ZoneKey)> = Vec::new();
        for at in tiles.iter().copied().filter(|at| is_wanted(*at)) {
            let (min, max) = looked.tiles[at].ids;
            // The greatest end of all that begin no later.
            let max = wanted.last().map_or(max, |(_, before)| max.max(*before));
            wanted.push((min, max));
        }
        let shares = |at: &usize| {
            let (min, max) = looked.tiles[*at].ids;
            let begun = wanted.partition_point(|(begin, _)| *begin <= max);
            begun > 0 && wanted[begun - 1].1 >= min
        };
        tiles.iter().copied().filter(|at| !is_wanted(*at)).filter(shares).collect()
    }

    fn matches(&self, seen: &ObservedTile) -> bool {
        let known = self.windows.get(&seen.tile.window).and_then(|window| window.find(seen.tile.cell));
        known.is_some_and(|(_, _, matching, _)| matching)
    }

    fn collect(&mut self, looked: &Looked, decisions: &[Decision]) {
        let mut windows: BTreeMap<Window, bool> = BTreeMap::new();
        for (seen, decision) in looked.tiles.iter().zip(decisions) {
            let trusted = *decision == Decision::Trust;
            *windows.entry(seen.tile.window).or_insert(true) &= trusted;
            let found = self.windows.get(&seen.tile.window).and_then(|window| window.find(seen.tile.cell));
            match found.filter(|_| trusted) {
                Some((segment, place, true, _)) if self.report.counts => {
                    self.counted.push((seen.tile.window, segment, place));
                    self.report.tiles_indexed += 1;
                }
                Some((_, _, matching, _)) if self.report.counts || !matching => self.report.tiles_indexed += 1,
                _ => {
                    self.report.tiles_read += 1;
                    self.keys.extend_from_slice(&looked.keys[seen.keys.clone()]);
                }
            }
        }
        self.report.tiles = looked.tiles.len() as u64;
        self.report.chunks = looked.keys.len() as u64;
        self.report.chunks_read = self.keys.len() as u64;
        self.report.windows_indexed = windows.iter().filter(|(_, all)| **all).map(|(window, _)| *window).collect();
        self.report.windows_direct = windows.iter().filter(|(_, all)| !**all).map(|(window, _)| *window).collect();
    }
}

/// Of tiles by their least id, those that may share an id with another.
fn overlapping(tiles: &[usize], looked: &Looked) -> Vec<usize> {
    let mut shared = Vec::new();
    let mut greatest: Option<ZoneKey> = None;
    for (place, at) in tiles.iter().enumerate() {
        let (min, max) = looked.tiles[*at].ids;
        let before = greatest.is_some_and(|greatest| min <= greatest);
        let after = tiles.get(place + 1).is_some_and(|next| looked.tiles[*next].ids.0 <= max);
        if before || after {
            shared.push(*at);
        }
        greatest = greatest.max(Some(max));
    }
    shared
}

/// What is built of the windows that the query covers; `None` if nothing. A segment that cannot be read is as good as not built.
async fn load(dataset: &Dataset, query: &Query, choice: Choice) -> Result<Option<(String, BTreeMap<Window, Indexed>)>> {
    let frame = query.frame.clone();
    let (Some(first), Some(last)) = (query.slices.first(), query.slices.last()) else { return Ok(None) };
    let length = i64::from(frame.spec.windows_per_slice);
    let clamp = |window: i64| Window(window.clamp(i32::MIN.into(), i32::MAX.into()) as i32);
    let first = query.windows.0.max(clamp(i64::from(frame.spec.own_slice(*first)) * length));
    let last = query.windows.1.min(clamp((i64::from(frame.spec.own_slice(*last)) + 1) * length - 1));
    let (name, id) = (&frame.spec.name, choice.index.id.clone());
    let built = record::built(dataset.store(), name, &id, (first, last)).await?;
    if built.is_empty() {
        return Ok(None);
    }
    let stored = record::segments(dataset.store(), name, &id, &built).await?;
    let windows = on_pool(move || {
        use rayon::prelude::*;
        let decode = |(window, segments): (Window, Vec<bytes::Bytes>)| {
            let shape = Shape::new(&choice.types, &choice.index.id, window)?;
            let segments = segments.iter().filter_map(|bytes| Segment::decode(bytes, &shape).ok()).collect();
            Ok((window, Indexed::new(&choice, &frame, segments)?))
        };
        let windows: Vec<_> = stored.into_iter().collect();
        let decoded = windows.into_par_iter().map(decode).collect::<Result<Vec<_>>>()?;
        Ok((choice.index.name, decoded.into_iter().collect()))
    });
    windows.await.map(Some)
}
