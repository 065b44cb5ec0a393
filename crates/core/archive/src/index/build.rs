//! Builds indexes: finds the windows that have changed, and makes new postings for their changed tiles.
//!
//! A window is one unit of work. Its changed tiles are read and mapped to counted values on all cores; the results
//! are merged with the postings of unchanged tiles.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use arrow_array::ArrayRef;
use chronotile_store::{ChunkKey, Commit};
use chronotile_types::{IndexSpec, SliceId, TimeRange, Window};
use futures::{StreamExt, TryStreamExt, stream};
use hashbrown::HashMap;
use rayon::prelude::*;
use xxhash_rust::xxh3::xxh3_64;

use super::group::{Groups, join, representatives};
use super::lease::{Lease, held};
use super::observed::{ObservedTile, SliceTiles, print};
use super::record::{self, Built};
use super::report::{IndexBuildOptions, IndexBuildReport};
use super::segment::{Packed, Postings, Segment, Shape};
use super::{columns_of, put_built};
use crate::catalog;
use crate::dataset::Dataset;
use crate::error::{ArchiveError, Result};
use crate::maintenance::consolidate::Progress;
use crate::read::groups::{fetch_tiles, tile_runs};
use crate::read::newest;
use crate::read::on_pool;
use crate::read::part::ParsedChunk;
use crate::read::pieces::Pieces;
use crate::read::query::Query;
use crate::request::ReadRequest;

/// Windows that one builder builds concurrently.
const WINDOWS_AT_ONCE: usize = 4;
/// How long a builder waits before it checks again the windows that others are building.
const WAIT: Duration = Duration::from_millis(200);

/// A window that has changed since it was indexed.
struct ChangedWindow {
    window: Window,
    tiles: Vec<ObservedTile>,
    keys: Vec<ChunkKey>,
    /// The print of the window, as its record is going to store it.
    print: u64,
}

/// The outcome for a window.
enum Outcome {
    Done(IndexBuildReport),
    /// Another builder holds its lease.
    Busy(ChangedWindow),
    /// Another builder has built it.
    Elsewhere,
}

impl Dataset {
    /// Brings indexes up to date: reads the tiles that have changed since they were indexed. Safe to run beside
    /// writers, readers, consolidation and other builders, which share the work, and safe to interrupt. `progress` is
    /// called with the number of windows done and the total.
    ///
    /// # Errors
    /// No index of this name; the engine. A damaged chunk is not an error: its tile is left out and counted.
    pub async fn build_indexes(
        &self,
        options: &IndexBuildOptions,
        progress: Option<Progress<'_>>,
    ) -> Result<IndexBuildReport> {
        self.refresh().await?;
        let frame = self.frame();
        let indexes = match &options.name {
            Some(name) => vec![self.index(&frame, name)?],
            None => frame.spec.indexes.clone(),
        };
        self.sweep_indexes(&frame).await?;
        let mut report = IndexBuildReport::default();
        let mut builders = Vec::new();
        for index in &indexes {
            builders.push(Builder::new(self, index, options).await?);
        }
        let mut done = (0, 0);
        let Some(first) = builders.first() else { return Ok(report) };
        let slices = first.query.slices.clone();
        for slice in slices {
            // All indexes cover the same tiles.
            let looked = SliceTiles::observe(self, &first.query, slice).await?;
            for builder in &builders {
                let work = builder.work(&looked, &mut report).await?;
                done.1 += work.len() as u64;
                builder.work_off(work, &mut report, &mut done, progress).await?;
            }
        }
        Ok(report)
    }
}

struct Builder<'a> {
    dataset: &'a Dataset,
    index: &'a IndexSpec,
    options: &'a IndexBuildOptions,
    query: Arc<Query>,
    /// Number of the index's columns, which are all that the query returns, in this order.
    width: usize,
    shapes: Shapes,
    holder: String,
    lease: Duration,
}

/// What the [`Shape`] of a window is made from: the types of the index's columns, and its id.
struct Shapes {
    types: Vec<arrow_schema::DataType>,
    id: String,
}

impl Shapes {
    fn of(&self, window: Window) -> Result<Shape> {
        Ok(Shape::new(&self.types, &self.id, window)?)
    }
}

impl<'a> Builder<'a> {
    async fn new(dataset: &'a Dataset, index: &'a IndexSpec, options: &'a IndexBuildOptions) -> Result<Self> {
        let request = ReadRequest { columns: Some(index.columns.clone()), ..ReadRequest::default() };
        let mut query = dataset.query_as_known(&request).await?;
        limit_windows(&mut query, &options.time)?;
        let (types, _) = columns_of(&query.frame, index)?;
        Ok(Self {
            dataset,
            index,
            options,
            width: types.len(),
            shapes: Shapes { types, id: index.id.clone() },
            query: Arc::new(query),
            holder: dataset.clock().token(),
            lease: Duration::from_secs(options.lease_s.clamp(1, 3_600)),
        })
    }

    /// The windows of a slice that have changed since they were indexed.
    async fn work(&self, looked: &SliceTiles, report: &mut IndexBuildReport) -> Result<Vec<ChangedWindow>> {
        let mut windows: BTreeMap<Window, Vec<&ObservedTile>> = BTreeMap::new();
        looked.tiles.iter().for_each(|seen| windows.entry(seen.tile.window).or_default().push(seen));
        let Some((first, last)) = windows.keys().next().copied().zip(windows.keys().next_back().copied()) else {
            return Ok(vec![]);
        };
        let name = &self.query.frame.spec.name;
        let built = record::built(self.dataset.store(), name, &self.index.id, (first, last)).await?;
        let mut work = Vec::new();
        for (window, seen) in windows {
            report.windows += 1;
            let print = window_print(seen.iter().map(|tile| (tile.tile.cell.0, counting_print(tile))).collect());
            if !self.options.rebuild && built.get(&window).is_some_and(|built| built.print == print) {
                continue;
            }
            let mut keys = Vec::new();
            let mut tiles = Vec::with_capacity(seen.len());
            for tile in seen {
                let start = keys.len();
                keys.extend_from_slice(&looked.keys[tile.keys.clone()]);
                tiles.push(ObservedTile { keys: start..keys.len(), ..tile.clone() });
            }
            work.push(ChangedWindow { window, tiles, keys, print });
        }
        Ok(work)
    }

    /// Builds the windows that no other builder is building, then checks the others again.
    async fn work_off(
        &self,
        work: Vec<ChangedWindow>,
        report: &mut IndexBuildReport,
        done: &mut (u64, u64),
        progress: Option<Progress<'_>>,
    ) -> Result<()> {
        let mut queue: VecDeque<ChangedWindow> = work.into();
        // Builders start at different windows to avoid contention.
        let turn = (xxh3_64(self.holder.as_bytes()) % (queue.len().max(1) as u64)) as usize;
        queue.rotate_left(turn);
        while !queue.is_empty() {
            let round: Vec<ChangedWindow> = queue.drain(..).collect();
            let mut outcomes = stream::iter(round).map(|work| self.window(work)).buffer_unordered(WINDOWS_AT_ONCE);
            let mut built = false;
            while let Some(outcome) = outcomes.try_next().await? {
                match outcome {
                    Outcome::Done(window) => {
                        add(report, &window);
                        built = true;
                    }
                    Outcome::Elsewhere => report.windows_elsewhere += 1,
                    Outcome::Busy(_) if !self.options.wait => report.windows_elsewhere += 1,
                    Outcome::Busy(work) => {
                        queue.push_back(work);
                        continue;
                    }
                }
                done.0 += 1;
                if let Some(progress) = progress {
                    progress(done.0, done.1);
                }
            }
            drop(outcomes);
            if !queue.is_empty() && !built {
                tokio::time::sleep(WAIT).await;
            }
        }
        Ok(())
    }

    async fn window(&self, work: ChangedWindow) -> Result<Outcome> {
        let (store, dataset) = (self.dataset.store(), &self.query.frame.dataset);
        let name = &self.query.frame.spec.name;
        let place = (name, self.index.id.as_str(), work.window);
        let builder = (self.holder.as_str(), self.lease, self.dataset.clock());
        let Some(mut lease) = Lease::take(store, dataset, place, builder).await? else {
            return Ok(Outcome::Busy(work));
        };
        // The record is read again under the lease: another builder may have built the window since it was found
        // changed.
        let before = record::built(store, name, &self.index.id, (work.window, work.window)).await?;
        let before = before.get(&work.window);
        if !self.options.rebuild && before.is_some_and(|built| built.print == work.print) {
            let before = vec![lease.release()];
            held(store.commit(dataset, Commit { before, ..Commit::default() }).await)?;
            return Ok(Outcome::Elsewhere);
        }
        let shape = self.shapes.of(work.window)?;
        let mut report = IndexBuildReport::default();
        let mut gathered = Gathered::default();
        let old = if self.options.rebuild { None } else { before };
        let changed = self.keep_unchanged(&work, old, &shape, &mut gathered, &mut report).await?;
        if !self.read_changed(&changed, &mut gathered, &mut lease, &mut report).await? {
            return Ok(Outcome::Elsewhere);
        }
        let print = gathered.print(&work.tiles);
        let (packed, rows) = self.pack(gathered, shape).await?;
        report.tiles_left_out += packed.left_out;
        report.windows_built = 1;
        report.bytes = packed.segments.iter().map(|segment| segment.len() as u64).sum();
        let built = Built {
            built_us: self.dataset.clock().about_now_us(),
            print,
            tiles: packed.tiles,
            left_out: report.tiles_left_out,
            rows,
            values: packed.values,
            bytes: report.bytes,
            segments: packed.segments.iter().map(|segment| record::segment_name(segment)).collect(),
        };
        let stored = self.put(work.window, built, packed.segments, lease).await?;
        Ok(if stored { Outcome::Done(report) } else { Outcome::Elsewhere })
    }

    /// Reuses the postings of unchanged tiles; returns the chunk keys of the others.
    async fn keep_unchanged(
        &self,
        work: &ChangedWindow,
        before: Option<&Built>,
        shape: &Shape,
        gathered: &mut Gathered,
        report: &mut IndexBuildReport,
    ) -> Result<Vec<ChunkKey>> {
        let prints: HashMap<i64, u64> =
            work.tiles.iter().map(|seen| (seen.tile.cell.0, counting_print(seen))).collect();
        let mut kept: HashMap<i64, u64> = HashMap::new();
        if let Some(before) = before {
            let (store, name) = (self.dataset.store(), &self.query.frame.spec.name);
            let one = BTreeMap::from([(work.window, before.clone())]);
            let mut stored = record::segments(store, name, &self.index.id, &one).await?;
            for bytes in stored.remove(&work.window).unwrap_or_default() {
                // An unreadable segment is built again.
                let Ok(segment) = Segment::decode(&bytes, shape) else { continue };
                let same = |(cell, print): (&i64, &u64)| prints.get(cell) == Some(print);
                let keep: Vec<bool> = segment.cells.iter().zip(&segment.prints).map(same).collect();
                let tiles = segment.cells.iter().zip(&segment.prints).zip(&keep).filter(|(_, keep)| **keep);
                kept.extend(tiles.map(|((cell, print), _)| (*cell, *print)));
                gathered.parts.push(segment.entries_of(&keep).map_err(|e| self.failed(e))?);
            }
        }
        report.tiles_kept += kept.len() as u64;
        let changed = work.tiles.iter().filter(|seen| !kept.contains_key(&seen.tile.cell.0));
        let changed = changed.flat_map(|seen| work.keys[seen.keys.clone()].iter().copied()).collect();
        gathered.tiles.extend(kept);
        Ok(changed)
    }

    /// Reads tiles and maps them to postings; `false` if the lease was lost meanwhile.
    async fn read_changed(
        &self,
        keys: &[ChunkKey],
        gathered: &mut Gathered,
        lease: &mut Lease,
        report: &mut IndexBuildReport,
    ) -> Result<bool> {
        let store = self.dataset.store();
        for run in tile_runs(keys) {
            let parts = self.fetch(&keys[run]).await?;
            let query = self.query.clone();
            let mapped = on_pool(move || map(&query, parts)).await?;
            report.tiles_read += mapped.tiles.len() as u64;
            report.tiles_left_out += mapped.left_out;
            report.rows += mapped.postings.iter().flat_map(|part| &part.counts).sum::<u64>();
            gathered.tiles.extend(mapped.tiles);
            gathered.hidden.extend(mapped.hidden);
            gathered.parts.extend(mapped.postings);
            // Reading a window may take longer than the lease lasts.
            if !lease.keep(store, &self.query.frame.dataset).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The chunks with these keys, which are whole tiles. Their heads are known to be valid: the list of tiles was
    /// made from them.
    async fn fetch(&self, keys: &[ChunkKey]) -> Result<Vec<ParsedChunk>> {
        let parts = fetch_tiles(self.dataset.store(), &self.query, keys, &[]).await?;
        self.query.visible_now(parts).await
    }

    /// Packs the collected postings into segments; also returns the number of rows counted.
    async fn pack(&self, gathered: Gathered, shape: Shape) -> Result<(Packed, u64)> {
        let (width, query) = (self.width, self.query.clone());
        on_pool(move || {
            let failed = |e| query.frame.compute("packing an index", e);
            let postings = Postings::join(gathered.parts, width).map_err(failed)?;
            let mut tiles = gathered.tiles;
            tiles.sort_unstable();
            let rows = postings.counts.iter().sum();
            let mut packed = Packed::default();
            packed.add(&shape, &postings, &tiles).map_err(failed)?;
            Ok((packed, rows))
        })
        .await
    }

    /// Stores a window; `false` if the lease was lost meanwhile.
    async fn put(&self, window: Window, built: Built, segments: Vec<Vec<u8>>, mut lease: Lease) -> Result<bool> {
        let (store, dataset) = (self.dataset.store(), &self.query.frame.dataset);
        let name = &self.query.frame.spec.name;
        let prefix = record::posting_prefix(name, &self.index.id, window);
        let stored = catalog::list(store, &prefix).await?;
        // Segments come first and the record last, so that a record names only segments that are stored. The name of a
        // segment is the hash of its bytes: one that is stored under this name is the same.
        let is_known = |key: &str| stored.iter().any(|record| record.key == key);
        for (segment, bytes) in built.segments.iter().zip(segments) {
            let key = format!("{prefix}{segment}");
            if is_known(&key) {
                continue;
            }
            let put = catalog::put(key, bytes.into(), chronotile_store::Expect::Any);
            let before = vec![lease.renewal()?, put];
            if !held(store.commit(dataset, Commit { before, ..Commit::default() }).await)? {
                return Ok(false);
            }
        }
        let mut before = vec![lease.release(), put_built(record::built_key(name, &self.index.id, window), &built)?];
        let stale = stored.iter().filter(|record| {
            let segment = record.key.strip_prefix(&prefix);
            segment.is_none_or(|segment| built.segments.iter().all(|name| name != segment))
        });
        // In one atomic commit: a builder that takes over the window may store, and then need, a segment that is
        // stale now.
        before.extend(stale.map(|record| catalog::delete(record.key.clone())));
        held(store.commit(dataset, Commit { before, ..Commit::default() }).await)
    }

    fn failed(&self, error: arrow_schema::ArrowError) -> ArchiveError {
        self.query.frame.compute("building an index", error)
    }
}

/// The input for packing a window: postings, and every tile with its print.
#[derive(Default)]
struct Gathered {
    parts: Vec<Postings>,
    tiles: Vec<(i64, u64)>,
    /// Cells of tiles that were left out because some of their rows did not count.
    hidden: Vec<i64>,
}

impl Gathered {
    /// The print of the window as it was indexed: some tiles may have other chunks than when they were observed. A
    /// later build returns to the window if it finds another print, also for tiles that were left out and may count
    /// by then.
    fn print(&self, looked: &[ObservedTile]) -> u64 {
        let indexed: HashMap<i64, u64> = self.tiles.iter().copied().collect();
        let print = |seen: &ObservedTile| {
            let cell = seen.tile.cell.0;
            let left_out = if self.hidden.contains(&cell) { !seen.print } else { counting_print(seen) };
            (cell, indexed.get(&cell).copied().unwrap_or(left_out))
        };
        window_print(looked.iter().map(print).collect())
    }
}

struct Mapped {
    postings: Option<Postings>,
    tiles: Vec<(i64, u64)>,
    hidden: Vec<i64>,
    /// Tiles that are damaged, have too many values, or have rows that do not count.
    left_out: u64,
}

/// The postings of whole tiles of one window.
fn map(query: &Arc<Query>, parts: Vec<ParsedChunk>) -> Result<Mapped> {
    let mut tiles: Vec<Vec<ParsedChunk>> = Vec::new();
    for part in parts {
        match tiles.last_mut() {
            Some(tile) if tile[0].chunk.key.tile == part.chunk.key.tile => tile.push(part),
            _ => tiles.push(vec![part]),
        }
    }
    let read = |parts: Vec<ParsedChunk>| match Values::of(query, parts) {
        // A read of the tile reports what is wrong with it.
        Err(ArchiveError::Damaged { .. }) => Ok(None),
        values => values,
    };
    let count = tiles.len();
    // A chunk may have rows of a batch that ended or was removed after the build began, so that later readers get
    // other rows from it.
    let hides = |tile: &Vec<ParsedChunk>| tile.iter().any(|part| query.hides_rows_of(&part.head));
    let hidden = tiles.extract_if(.., |tile| hides(tile)).map(|tile| tile[0].chunk.key.tile.cell.0).collect();
    let read: Vec<Values> = tiles.into_par_iter().map(read).filter_map(Result::transpose).collect::<Result<_>>()?;
    let left_out = (count - read.len()) as u64;
    let tiles = read.iter().map(|values| (values.cell, values.print)).collect();
    let width = query.output.len();
    let postings = reduce(read, width).map_err(|e| query.frame.compute("building an index", e))?;
    Ok(Mapped { postings, tiles, hidden, left_out })
}

/// Decoded bytes of the values of one tile above which it is left out.
const VALUES_BYTES_MAX: usize = 64 << 20;

/// The values of the index's columns in the rows that a read of this tile alone returns.
struct Values {
    cell: i64,
    print: u64,
    columns: Vec<ArrayRef>,
    counts: Vec<u64>,
}

impl Values {
    /// Reads the chunks of one tile in pieces, so that memory is bounded for tiles of any size; `None` if it has too
    /// many values.
    fn of(query: &Arc<Query>, parts: Vec<ParsedChunk>) -> Result<Option<Self>> {
        let Some(cell) = parts.first().map(|part| part.chunk.key.tile.cell.0) else { return Ok(None) };
        let keys: Vec<ChunkKey> = parts.iter().map(|part| part.chunk.key).collect();
        let chosen = if query.newest_only { Some(Arc::new(newest::choose(query, &parts)?)) } else { None };
        let mut pieces = Pieces::new(query.clone(), parts, chosen);
        let mut values = Self { cell, print: print(&keys), columns: query.empty().columns().to_vec(), counts: vec![] };
        while let Some(rows) = pieces.next()? {
            // A tile that comes in one piece is grouped only once, in `reduce`.
            let first = values.counts.is_empty();
            values.counts.extend(std::iter::repeat_n(1, rows.num_rows()));
            if first {
                values.columns = rows.columns().to_vec();
                continue;
            }
            values.add(rows.columns()).map_err(|e| query.frame.compute("building an index", e))?;
            if values.columns.iter().map(|column| column.get_array_memory_size()).sum::<usize>() > VALUES_BYTES_MAX {
                return Ok(None);
            }
        }
        Ok(Some(values))
    }

    /// Adds rows to those counted before, and merges equal ones.
    fn add(&mut self, rows: &[ArrayRef]) -> std::result::Result<(), arrow_schema::ArrowError> {
        let columns = join(&[std::mem::take(&mut self.columns), rows.to_vec()], rows.len())?;
        let groups = Groups::new(&columns, self.counts.len())?;
        let mut counts = vec![0; groups.rows.len()];
        groups.of_row.iter().zip(&self.counts).for_each(|(group, count)| counts[*group as usize] += count);
        (self.columns, self.counts) = (representatives(&columns, &groups)?, counts);
        Ok(())
    }
}

/// Counts the equal rows of each tile.
fn reduce(read: Vec<Values>, width: usize) -> std::result::Result<Option<Postings>, arrow_schema::ArrowError> {
    let (mut rows, mut sets) = (Vec::new(), Vec::with_capacity(read.len()));
    for values in read {
        rows.extend(values.counts.iter().map(|count| (values.cell, *count)));
        sets.push(values.columns);
    }
    if sets.is_empty() {
        return Ok(None);
    }
    let columns = join(&sets, width)?;
    let groups = Groups::new(&columns, rows.len())?;
    let mut counted: HashMap<(i64, u32), u64> = HashMap::new();
    for ((cell, count), group) in rows.iter().zip(&groups.of_row) {
        *counted.entry((*cell, *group)).or_default() += count;
    }
    let mut counted: Vec<_> = counted.into_iter().collect();
    counted.sort_unstable();
    let rows: Vec<u32> = counted.iter().map(|((_, group), _)| *group).collect();
    let found = representatives(&columns, &groups)?;
    Ok(Some(Postings {
        columns: super::group::pick(&found, &rows)?,
        cells: counted.iter().map(|((cell, _), _)| *cell).collect(),
        counts: counted.iter().map(|(_, count)| *count).collect(),
    }))
}

/// The print of a tile; a different one while some of its rows do not count.
fn counting_print(seen: &ObservedTile) -> u64 {
    if seen.visible { seen.print } else { !seen.print }
}

/// Hash of the cells and prints of a window's tiles.
fn window_print(mut tiles: Vec<(i64, u64)>) -> u64 {
    tiles.sort_unstable();
    let mut bytes = Vec::with_capacity(tiles.len() * 16);
    for (cell, print) in tiles {
        bytes.extend_from_slice(&cell.to_be_bytes());
        bytes.extend_from_slice(&print.to_be_bytes());
    }
    xxh3_64(&bytes)
}

/// Limits a query to the windows that a period touches; these are indexed completely.
fn limit_windows(query: &mut Query, time: &TimeRange) -> Result<()> {
    let spec = &query.frame.spec;
    query.windows = crate::time_axis::Bounds::new(spec, time)?.windows(spec);
    let (first, last): (SliceId, SliceId) = (spec.slice_of(query.windows.0), spec.slice_of(query.windows.1));
    query.slices.retain(|slice| (first..=last).contains(slice));
    Ok(())
}

fn add(report: &mut IndexBuildReport, window: &IndexBuildReport) {
    report.windows_built += window.windows_built;
    report.tiles_read += window.tiles_read;
    report.tiles_kept += window.tiles_kept;
    report.tiles_left_out += window.tiles_left_out;
    report.rows += window.rows;
    report.bytes += window.bytes;
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may unwrap
mod tests {
    use super::*;
    use arrow_array::cast::AsArray;
    use arrow_array::types::Int64Type;
    use arrow_array::{Int64Array, StringArray};

    fn column(values: &[i64]) -> ArrayRef {
        Arc::new(Int64Array::from(values.to_vec()))
    }

    fn values_of(cell: i64, values: &[i64]) -> Values {
        Values { cell, print: 0, columns: vec![column(values)], counts: vec![1; values.len()] }
    }

    #[test]
    fn rows_of_further_pieces_are_counted_with_those_before() {
        let mut values = values_of(7, &[1, 2, 1]);
        for (piece, wanted, counts) in [
            (&[2, 3][..], &[1, 2, 3][..], &[2, 2, 1][..]),
            (&[], &[1, 2, 3], &[2, 2, 1]),
            (&[4, 1, 4], &[1, 2, 3, 4], &[3, 2, 1, 2]),
        ] {
            values.counts.extend(std::iter::repeat_n(1, piece.len()));
            values.add(&[column(piece)]).unwrap();
            assert_eq!(
                (values.columns[0].as_primitive::<Int64Type>().values().to_vec(), &values.counts[..]),
                (wanted.to_vec(), counts)
            );
        }
    }

    #[test]
    fn equal_values_of_each_tile_are_counted() {
        assert!(reduce(vec![], 1).unwrap().is_none());
        let mut read = vec![values_of(3, &[5, 6, 5]), values_of(-2, &[6, 6, 9, 6]), values_of(8, &[])];
        read[0].counts = vec![1, 10, 100];
        let found = reduce(read, 1).unwrap().unwrap();
        let values = found.columns[0].as_primitive::<Int64Type>().values();
        let mut entries: Vec<_> = found
            .cells
            .iter()
            .zip(values)
            .zip(&found.counts)
            .map(|((cell, value), count)| (*cell, *value, *count))
            .collect();
        assert!(found.cells.is_sorted());
        entries.sort_unstable();
        assert_eq!(entries, [(-2, 6, 3), (-2, 9, 1), (3, 5, 101), (3, 6, 10)]);
    }

    #[test]
    fn rows_without_columns_are_one_group() {
        for rows in 0..3 {
            let groups = Groups::new(&[], rows).unwrap();
            assert_eq!((groups.of_row, groups.rows), (vec![0; rows], if rows == 0 { vec![] } else { vec![0] }));
        }
        let texts: ArrayRef = Arc::new(StringArray::from(vec![Some("b"), None, Some("a"), Some("b"), None]));
        let groups = Groups::new(&[texts], 5).unwrap();
        assert_eq!((groups.of_row, groups.rows), (vec![0, 1, 2, 0, 1], vec![0, 1, 2]));
    }
}
