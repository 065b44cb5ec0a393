//! Decides how a read or count uses an index: which tiles the index answers for, and which must be read.

use std::collections::BTreeMap;
use std::sync::Arc;

use chronotile_store::ChunkKey;
use chronotile_types::{Cell, IndexSpec, Window, ZoneKey};

use super::columns_of;
use super::observed::ObservedTile;
use super::record;
use super::report::IndexUse;
use super::segment::{Segment, Shape};
use super::tiles::CoveredTiles;
use crate::dataset::Dataset;
use crate::error::Result;
use crate::frame::Frame;
use crate::read::on_pool;
use crate::read::predicate::Test;
use crate::read::query::Query;
use crate::request::{CellSelection, ReadRequest};

/// If an index leaves more than this share of the chunks to read, one scan of all of them is faster.
const WORTH_WHILE: f64 = 0.6;
/// Filtering this many windows of cached segments takes less time than starting a thread.
const WINDOWS_FEW: usize = 8;

/// What an index is used for.
#[derive(Clone, Copy)]
pub(crate) enum Purpose<'a> {
    /// To skip tiles that contain no requested row.
    Rows,
    /// To count rows by the values of these columns of the dataset.
    Counts(&'a [usize]),
}

/// The most suitable index for a request, and the request's predicates on its columns.
pub(crate) struct Choice {
    pub index: IndexSpec,
    /// Positions of its columns in the dataset.
    pub columns: Vec<usize>,
    types: Vec<arrow_schema::DataType>,
    /// Each with the position of its column in the index.
    tests: Vec<(usize, Test)>,
    counts: bool,
}

/// Chooses an index, or returns the reason why none is suitable.
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
        return Ok(Err("indexes cover only the newest version of each record"));
    }
    let counts = matches!(purpose, Purpose::Counts(_));
    if counts && matches!(request.cells, CellSelection::Keys(_) | CellSelection::Region(_)) {
        return Ok(Err("rows must be tested against the keys or the region"));
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
    let none = if counts { "no index has all requested columns" } else { "no index has a column of the conditions" };
    Ok(best.map(|(_, _, choice)| choice).ok_or(none))
}

/// The index of one window, with the query's predicates applied.
pub(crate) struct Indexed {
    /// Ordered by cell.
    pub segments: Vec<Arc<Segment>>,
    /// For each segment and value: whether the value satisfies the predicates.
    pub passing: Vec<Vec<bool>>,
    /// For each segment and tile: whether the tile has a value that satisfies the predicates.
    matching: Vec<Vec<bool>>,
}

/// The entry of a tile in an index.
#[derive(Clone, Copy)]
struct Entry {
    segment: usize,
    /// The tile's position in the segment.
    place: u32,
    /// Whether the tile has a value that satisfies the predicates.
    matching: bool,
    print: u64,
}

impl Indexed {
    fn new(choice: &Choice, frame: &Frame, segments: Vec<Arc<Segment>>) -> Result<Self> {
        let (mut all_passing, mut all_matching) = (Vec::new(), Vec::new());
        for segment in &segments {
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
            all_passing.push(passing);
            all_matching.push(matching);
        }
        Ok(Self { segments, passing: all_passing, matching: all_matching })
    }

    fn find(&self, cell: Cell) -> Option<Entry> {
        let before = |segment: &Arc<Segment>| segment.cells.last().is_none_or(|last| *last < cell.0);
        let number = self.segments.partition_point(before);
        let segment = self.segments.get(number)?;
        let place = segment.cells.binary_search(&cell.0).ok()?;
        let (matching, print) = (self.matching[number][place], segment.prints[place]);
        Some(Entry { segment: number, place: place as u32, matching, print })
    }
}

/// What to do with a tile.
#[derive(Clone, Copy)]
struct Decision {
    /// The tile's entry in the index, if it has one.
    entry: Option<Entry>,
    /// Whether the index is valid for the tile; otherwise the tile is read.
    trusted: bool,
}

impl Decision {
    fn is_wanted(&self) -> bool {
        !self.trusted || self.entry.is_some_and(|entry| entry.matching)
    }
}

/// Divides a query between an index and the tiles to read.
pub(crate) struct Plan {
    pub report: IndexUse,
    pub windows: BTreeMap<Window, Indexed>,
    /// Tiles to count from the index, which have values that satisfy the predicates: window, segment, position.
    pub counted: Vec<(Window, usize, u32)>,
    /// Chunks of all other tiles that may contain requested rows.
    pub keys: Vec<ChunkKey>,
}

impl Plan {
    /// Returns the report alone if nothing is built for the query's period, or the index would not help.
    pub(crate) async fn new(
        dataset: &Dataset,
        query: &mut Query,
        choice: Choice,
    ) -> Result<std::result::Result<Self, IndexUse>> {
        let mut report = IndexUse { counts: choice.counts, ..IndexUse::default() };
        let windows = load(dataset, query, choice).await?;
        let Some((name, windows)) = windows else {
            report.reason = Some("the index is not built for this period: build it".to_owned());
            return Ok(Err(report));
        };
        let looked = CoveredTiles::new(dataset, query).await?;
        let mut plan = Self { report, windows, counted: vec![], keys: vec![] };
        let mut decisions = plan.compare(query, &looked);
        plan.keep_shared_together(query, &looked, &mut decisions);
        plan.collect(&looked, &decisions);
        let share = plan.keys.len() as f64 / plan.report.chunks.max(1) as f64;
        if !plan.report.counts && share > WORTH_WHILE {
            plan.report.reason = Some("most tiles match, so that a scan of all is cheaper".to_owned());
            plan.report.tiles_read = plan.report.tiles;
            plan.report.chunks_read = plan.report.chunks;
            return Ok(Err(plan.report));
        }
        plan.report.index = Some(name);
        Ok(Ok(plan))
    }

    /// Compares each tile with its entry in the index.
    fn compare(&mut self, query: &Query, looked: &CoveredTiles) -> Vec<Decision> {
        let (report, windows) = (&mut self.report, &self.windows);
        // Neighbouring tiles are usually in the same window.
        let mut last: Option<(Window, Option<&Indexed>)> = None;
        let decide = |seen: &ObservedTile| {
            let window = seen.tile.window;
            let indexed = match last {
                Some((known, indexed)) if known == window => indexed,
                _ => windows.get(&window),
            };
            last = Some((window, indexed));
            let entry = indexed.and_then(|indexed| indexed.find(seen.tile.cell));
            let mut trusted = false;
            match entry {
                None => report.tiles_unindexed += 1,
                Some(entry) if entry.print != seen.print || !seen.visible => report.tiles_changed += 1,
                Some(_) if !query.bounds.holds_all(seen.time.0, seen.time.1) => report.tiles_partial += 1,
                Some(_) => trusted = true,
            }
            Decision { entry, trusted }
        };
        looked.tiles().map(decide).collect()
    }

    /// Marks tiles to be read that may share records with others: if versions of a record are in several tiles, the
    /// index does not tell which is the newest.
    fn keep_shared_together(&mut self, query: &Query, looked: &CoveredTiles, decisions: &mut [Decision]) {
        if !query.newest_only {
            return;
        }
        let frame = &query.frame;
        let in_ids = |column: &&str| frame.spec.id.iter().any(|id| id == column);
        let cell_follows = frame.spec.cell.columns().iter().all(in_ids);
        // Cell and time of a row follow from its ids, so all versions of a record are in one tile.
        if cell_follows && in_ids(&frame.spec.time.column.as_str()) {
            return;
        }
        // If the cell is computed from the ids, all versions of a record are in one cell.
        let group = |seen: &ObservedTile| if cell_follows { seen.tile.cell.0 } else { 0 };
        let mut order: Vec<(i64, u32)> = looked.tiles().map(group).zip(0..).collect();
        // Often sorted already, such as when the cell grows with time.
        if !order.is_sorted() {
            order.sort_unstable();
        }
        for tiles in order.chunk_by(|(a, _), (b, _)| a == b).filter(|tiles| tiles.len() > 1) {
            let mut tiles: Vec<usize> = tiles.iter().map(|(_, at)| *at as usize).collect();
            tiles.sort_unstable_by_key(|at| looked.tile(*at).ids);
            let shared = if self.report.counts {
                overlapping(&tiles, looked)
            } else {
                overlapping_with_wanted(&tiles, looked, decisions)
            };
            for at in shared {
                self.report.tiles_shared += u64::from(decisions[at].trusted);
                decisions[at].trusted = false;
            }
        }
    }

    fn collect(&mut self, looked: &CoveredTiles, decisions: &[Decision]) {
        let mut windows: Vec<(Window, bool)> = Vec::new();
        for (at, (seen, decision)) in looked.tiles().zip(decisions).enumerate() {
            let window = seen.tile.window;
            match windows.last_mut().filter(|(last, _)| *last == window) {
                Some((_, all)) => *all &= decision.trusted,
                None => windows.push((window, decision.trusted)),
            }
            let keys = looked.keys(at);
            self.report.chunks += keys.len() as u64;
            match decision.entry.filter(|_| decision.trusted) {
                Some(entry) if self.report.counts || !entry.matching => {
                    self.report.tiles_indexed += 1;
                    if entry.matching {
                        self.counted.push((window, entry.segment, entry.place));
                    }
                }
                _ => {
                    self.report.tiles_read += 1;
                    self.keys.extend_from_slice(keys);
                }
            }
        }
        self.report.tiles = looked.len() as u64;
        self.report.chunks_read = self.keys.len() as u64;
        // Sorting puts `false` first, so deduplication keeps it: such a window has tiles that the index does not
        // answer.
        windows.sort_unstable();
        windows.dedup_by_key(|(window, _)| *window);
        let answered =
            |by_index: bool| windows.iter().filter(move |(_, all)| *all == by_index).map(|(window, _)| *window);
        self.report.windows_indexed = answered(true).collect();
        self.report.windows_direct = answered(false).collect();
    }
}

/// Tiles without a requested row of their own that may have newer versions of rows in tiles that have one.
fn overlapping_with_wanted(tiles: &[usize], looked: &CoveredTiles, decisions: &[Decision]) -> Vec<usize> {
    let mut wanted: Vec<(ZoneKey, ZoneKey)> = Vec::new();
    for at in tiles.iter().copied().filter(|at| decisions[*at].is_wanted()) {
        let (min, max) = looked.tile(at).ids;
        // The greatest end of all ranges up to this one.
        let max = wanted.last().map_or(max, |(_, before)| max.max(*before));
        wanted.push((min, max));
    }
    let shares = |at: &usize| {
        let (min, max) = looked.tile(*at).ids;
        let begun = wanted.partition_point(|(begin, _)| *begin <= max);
        begun > 0 && wanted[begun - 1].1 >= min
    };
    tiles.iter().copied().filter(|at| !decisions[*at].is_wanted()).filter(shares).collect()
}

/// Those of the tiles, given in order of their least id, that may share an id with another.
fn overlapping(tiles: &[usize], looked: &CoveredTiles) -> Vec<usize> {
    let mut shared = Vec::new();
    let mut greatest: Option<ZoneKey> = None;
    for (place, at) in tiles.iter().enumerate() {
        let (min, max) = looked.tile(*at).ids;
        let before = greatest.is_some_and(|greatest| min <= greatest);
        let after = tiles.get(place + 1).is_some_and(|next| looked.tile(*next).ids.0 <= max);
        if before || after {
            shared.push(*at);
        }
        greatest = greatest.max(Some(max));
    }
    shared
}

/// Loads the index of the windows that the query covers; `None` if nothing is built. A window with an unreadable
/// segment counts as not built.
async fn load(dataset: &Dataset, query: &Query, choice: Choice) -> Result<Option<(String, BTreeMap<Window, Indexed>)>> {
    let frame = query.frame.clone();
    let (Some(first), Some(last)) = (query.slices.first(), query.slices.last()) else { return Ok(None) };
    let first = query.windows.0.max(frame.spec.nearest_window(frame.spec.slice_ticks(*first).0));
    // The end of a slice is exclusive: the last window is that of the tick before it.
    let last = query.windows.1.min(frame.spec.nearest_window(frame.spec.slice_ticks(*last).1.saturating_sub(1)));
    let (name, id) = (&frame.spec.name, choice.index.id.clone());
    let built = record::built(dataset.store(), name, &id, (first, last)).await?;
    if built.is_empty() {
        return Ok(None);
    }
    let (mut known, mut missing) = (BTreeMap::new(), BTreeMap::new());
    for (window, built) in built {
        let prefix = record::posting_prefix(name, &id, window);
        let segments = built.segments.iter().map(|name| dataset.index_cache().segment(&format!("{prefix}{name}")));
        match segments.collect::<Option<Vec<_>>>() {
            Some(segments) => _ = known.insert(window, segments),
            None => _ = missing.insert(window, built),
        }
    }
    let few = missing.is_empty() && known.len() <= WINDOWS_FEW;
    let stored = record::segments(dataset.store(), name, &id, &missing).await?;
    let (dataset, name) = (dataset.clone(), name.clone());
    let work = move || {
        use rayon::prelude::*;
        let decode = |(window, segments): (Window, Vec<bytes::Bytes>)| {
            let shape = Shape::new(&choice.types, &choice.index.id, window)?;
            let prefix = record::posting_prefix(&name, &choice.index.id, window);
            let decode = |bytes: &bytes::Bytes| {
                let segment = Arc::new(Segment::decode(bytes, &shape).ok()?);
                dataset.index_cache().keep_segment(format!("{prefix}{}", record::segment_name(bytes)), segment.clone());
                Some(segment)
            };
            Ok((window, segments.iter().filter_map(decode).collect::<Vec<_>>()))
        };
        let stored: Vec<_> = stored.into_iter().collect();
        known.extend(stored.into_par_iter().map(decode).collect::<Result<Vec<_>>>()?);
        let apply = |(window, segments)| Ok((window, Indexed::new(&choice, &frame, segments)?));
        let applied = match few {
            true => known.into_iter().map(apply).collect::<Result<_>>()?,
            false => known.into_iter().collect::<Vec<_>>().into_par_iter().map(apply).collect::<Result<_>>()?,
        };
        Ok((choice.index.name, applied))
    };
    if few { work().map(Some) } else { on_pool(work).await.map(Some) }
}
