//! Reads, counts and counts by value that use an index if there is one.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch, UInt64Array};
use arrow_cast::cast;
use arrow_schema::{ArrowError, DataType, Field, Schema};
use chronotile_store::ChunkKey;
use chronotile_types::{TimeFormat, Window};
use futures::TryStreamExt;
use hashbrown::{HashMap, HashSet};

use super::group::{Groups, join, pick, representatives};
use super::plan::{Indexed, Plan, Purpose, choose};
use super::report::IndexUse;
use crate::dataset::Dataset;
use crate::error::{ArchiveError, Result};
use crate::frame::Frame;
use crate::keys::{Keys, OwnedKey};
use crate::memory::ReadCharge;
use crate::read::groups::{HEADS, scan, touched, whole_tiles};
use crate::read::query::Query;
use crate::read::stream;
use crate::request::ReadRequest;
use crate::time_axis::place_rows;

/// Names of the columns of counts and of windows.
const COUNT: &str = "count";
const WINDOW: &str = "window";

impl Dataset {
    /// Limits a read to the tiles that may contain a requested row, as far as an index tells.
    pub(crate) async fn prune_by_index(&self, query: &mut Query, request: &ReadRequest) -> Result<IndexUse> {
        let choice = match choose(&query.frame, request, Purpose::Rows)? {
            Ok(choice) => choice,
            Err(reason) => return Ok(IndexUse { reason: Some(reason.to_owned()), ..IndexUse::default() }),
        };
        Ok(match Plan::new(self, query, choice).await? {
            Ok(plan) => {
                query.keys = Some(plan.keys.into());
                plan.report
            }
            Err(report) => report,
        })
    }

    /// Counts the rows of a request, from an index for the tiles that it covers; `None` if no index is suitable.
    pub(crate) async fn count_by_index(&self, mut query: Query, request: &ReadRequest) -> Result<Option<u64>> {
        let Ok(choice) = choose(&query.frame, request, Purpose::Counts(&[]))? else { return Ok(None) };
        let Ok(plan) = Plan::new(self, &mut query, choice).await? else { return Ok(None) };
        let mut rows: u64 = 0;
        plan.each_count(|_, _, _, count| rows += count);
        if plan.keys.is_empty() {
            return Ok(Some(rows));
        }
        query.keys = Some(plan.keys.into());
        let mut read = stream(self.store_arc(), Arc::new(query)).await?;
        while let Some(batch) = read.try_next().await? {
            rows += batch.num_rows() as u64;
        }
        Ok(Some(rows))
    }

    /// Counts rows by the values of columns, and by window with `by_window`. The result has the columns `window` with
    /// `by_window` (start of the window, in the type of the time column), the named columns, and `count` (uint64),
    /// ordered by window and value. An index that has all columns of the request answers for the tiles that it
    /// covers.
    ///
    /// # Errors
    /// As [`Dataset::read`]; a column named twice, or named like one of the result's own; more than `groups_max`
    /// groups, since groups are held in memory.
    pub async fn count_by(
        &self,
        request: ReadRequest,
        by: &[String],
        by_window: bool,
        groups_max: Option<usize>,
    ) -> Result<(RecordBatch, IndexUse)> {
        let this = &self.reader();
        this.refresh().await?;
        let frame = this.frame();
        if let Some(name) = by.iter().find(|name| *name == COUNT || by_window && *name == WINDOW) {
            return Err(frame
                .refuse(format!("column {name:?} cannot be grouped by: the result has its own column of that name")));
        }
        let mut columns = by.to_vec();
        let time = by.iter().position(|name| *name == frame.spec.time.column).unwrap_or(by.len());
        if by_window && time == by.len() {
            columns.push(frame.spec.time.column.clone());
        }
        let request = ReadRequest { columns: Some(columns), ..request };
        let mut query = this.query_as_known(&request).await?;
        let positions = by.iter().map(|name| query.frame.column(name)).collect::<Result<Vec<_>>>()?;
        let mut tally = Tally::new(by.len(), query.held());
        let report = match choose(&query.frame, &request, Purpose::Counts(&positions))? {
            Err(reason) => IndexUse { reason: Some(reason.to_owned()), ..IndexUse::default() },
            Ok(choice) => {
                // An index is chosen for counts only if it has all of these columns, so none is left out here.
                let places: Vec<usize> =
                    positions.iter().filter_map(|column| choice.columns.iter().position(|c| c == column)).collect();
                match Plan::new(this, &mut query, choice).await? {
                    Err(report) => report,
                    Ok(plan) => {
                        let counted = tally.add_plan(&plan, &places, by_window);
                        counted.map_err(|e| query.frame.compute("counting rows", e))?;
                        tally.check(&query.frame, groups_max)?;
                        query.keys = Some(plan.keys.into());
                        plan.report
                    }
                }
            }
        };
        let query = Arc::new(query);
        let mut read = stream(this.store_arc(), query.clone()).await?;
        let failed = |e| query.frame.compute("counting rows", e);
        while let Some(batch) = read.try_next().await? {
            let windows = if by_window { Some(windows_of(&query, batch.column(time))?) } else { None };
            tally.add_rows(&batch.columns()[..by.len()], windows, batch.num_rows()).map_err(failed)?;
            tally.check(&query.frame, groups_max)?;
        }
        let fields = positions.iter().map(|column| query.frame.spec.schema.field(*column).clone()).collect();
        Ok((tally.finish(&query.frame, fields, by_window).map_err(failed)?, report))
    }

    /// How a read, or with `by` a count by these columns, would use an index and text filters. Reads heads of chunks
    /// but no rows.
    ///
    /// # Errors
    /// As [`Dataset::read`].
    pub async fn explain(&self, request: &ReadRequest, by: Option<&[String]>) -> Result<IndexUse> {
        let this = &self.reader();
        this.refresh().await?;
        let mut query = this.query_as_known(request).await?;
        let mut report = match by {
            None => this.prune_by_index(&mut query, request).await?,
            Some(by) => {
                let positions = by.iter().map(|name| query.frame.column(name)).collect::<Result<Vec<_>>>()?;
                match choose(&query.frame, request, Purpose::Counts(&positions))? {
                    Err(reason) => IndexUse { reason: Some(reason.to_owned()), ..IndexUse::default() },
                    Ok(choice) => match Plan::new(this, &mut query, choice).await? {
                        Err(report) => report,
                        Ok(plan) => {
                            query.keys = Some(plan.keys.into());
                            plan.report
                        }
                    },
                }
            }
        };
        if query.prunes_by_text() {
            this.count_filtered(&query, &mut report).await?;
        }
        Ok(report)
    }

    /// Counts the chunks that text filters exclude and those that remain.
    async fn count_filtered(&self, query: &Query, report: &mut IndexUse) -> Result<()> {
        let keys: Option<HashSet<ChunkKey>> = query.keys.as_ref().map(|keys| keys.iter().copied().collect());
        let mut tiles = whole_tiles(scan(self.store_arc(), query, query.slices.clone(), HEADS).await?);
        (report.chunks, report.chunks_read) = (0, 0);
        while let Some(mut chunks) = tiles.try_next().await? {
            report.chunks += chunks.len() as u64;
            chunks.retain(|chunk| keys.as_ref().is_none_or(|keys| keys.contains(&chunk.key)));
            let parts = touched(query, chunks)?;
            let all = parts.len();
            let left = query.skip_unmatchable(parts).len();
            report.chunks_read += left as u64;
            report.chunks_filtered += (all - left) as u64;
        }
        Ok(())
    }
}

fn windows_of(query: &Query, time: &ArrayRef) -> Result<Vec<Window>> {
    let placed = place_rows(&query.frame.spec, time);
    Ok(placed.map_err(|_| query.frame.refuse("a stored row has no time; run verify"))?.1)
}

/// The start of each window, in the type of the time column.
fn starts(frame: &Frame, windows: impl Iterator<Item = Window>) -> std::result::Result<ArrayRef, ArrowError> {
    let ticks = windows.map(|window| frame.spec.window_start(window));
    // Ticks of float days are microseconds since 1970-01-01T00:00, which is this day in MJD and JD.
    let epoch = match frame.spec.time.format {
        TimeFormat::Mjd => 40_587.0,
        TimeFormat::Jd => 2_440_587.5,
        _ => return cast(&ticks.collect::<Int64Array>(), frame.spec.time_type()),
    };
    let days = |tick: i64| tick as f64 / 86_400_000_000.0 + epoch;
    Ok(Arc::new(ticks.map(days).collect::<Float64Array>()))
}

impl Plan {
    /// Calls `each` with window, segment, value and row count for every value with rows in the counted tiles.
    fn each_count(&self, mut each: impl FnMut(Window, usize, usize, u64)) {
        let mut counted: BTreeMap<(Window, usize), Vec<bool>> = BTreeMap::new();
        for (window, segment, place) in &self.counted {
            let tiles = counted.entry((*window, *segment));
            let tiles = tiles.or_insert_with(|| vec![false; self.windows[window].segments[*segment].cells.len()]);
            tiles[*place as usize] = true;
        }
        for ((window, number), tiles) in counted {
            let Indexed { segments, passing, .. } = &self.windows[&window];
            let segment = &segments[number];
            for value in (0..passing[number].len()).filter(|value| passing[number][*value]) {
                let postings = segment.postings(value).filter(|posting| tiles[segment.tiles[*posting] as usize]);
                let rows: u64 = postings.map(|posting| segment.counts[posting]).sum();
                if rows > 0 {
                    each(window, number, value, rows);
                }
            }
        }
    }
}

/// Counts by value.
struct Tally {
    width: usize,
    groups: HashMap<(Option<Window>, OwnedKey), usize>,
    counts: Vec<u64>,
    windows: Vec<Window>,
    /// Values of the groups, in the order in which they were first found.
    sets: Vec<Vec<ArrayRef>>,
    sets_bytes: usize,
    held: ReadCharge,
}

impl Tally {
    fn new(width: usize, held: ReadCharge) -> Self {
        Self { width, groups: HashMap::new(), counts: vec![], windows: vec![], sets: vec![], sets_bytes: 0, held }
    }

    /// Charges the memory of the groups, and refuses more than `groups_max`.
    fn check(&mut self, frame: &Frame, groups_max: Option<usize>) -> Result<()> {
        let group = size_of::<((Option<Window>, OwnedKey), usize)>() + size_of::<(u64, Window)>();
        self.held.set(self.groups.capacity() * group + self.sets_bytes)?;
        match groups_max {
            Some(groups_max) if self.counts.len() > groups_max => {
                Err(ArchiveError::TooManyGroups { dataset: frame.spec.name.clone(), groups_max })
            }
            _ => Ok(()),
        }
    }

    fn add_plan(&mut self, plan: &Plan, places: &[usize], by_window: bool) -> std::result::Result<(), ArrowError> {
        let mut found: BTreeMap<(Window, usize), (Vec<u32>, Vec<u64>)> = BTreeMap::new();
        plan.each_count(|window, segment, value, rows| {
            let (values, counts) = found.entry((window, segment)).or_default();
            values.push(value as u32);
            counts.push(rows);
        });
        for ((window, segment), (values, counts)) in found {
            let all = &plan.windows[&window].segments[segment].values;
            let columns: Vec<ArrayRef> = places.iter().map(|place| all[*place].clone()).collect();
            let columns = pick(&columns, &values)?;
            let windows = by_window.then(|| vec![window; counts.len()]);
            self.add(&columns, windows.as_deref(), &counts)?;
        }
        Ok(())
    }

    fn add_rows(
        &mut self,
        columns: &[ArrayRef],
        windows: Option<Vec<Window>>,
        rows: usize,
    ) -> std::result::Result<(), ArrowError> {
        // Group equal rows first: storing a key costs more than comparing one.
        let groups = Groups::new(columns, rows)?;
        let mut counted: HashMap<(u32, Option<Window>), u64> = HashMap::new();
        for (row, group) in groups.of_row.iter().enumerate() {
            let window = windows.as_ref().map(|windows| windows[row]);
            *counted.entry((*group, window)).or_default() += 1;
        }
        let mut counted: Vec<_> = counted.into_iter().collect();
        counted.sort_unstable();
        let columns = representatives(columns, &groups)?;
        let columns = pick(&columns, &counted.iter().map(|((group, _), _)| *group).collect::<Vec<_>>())?;
        let windows: Option<Vec<Window>> = counted.iter().map(|((_, window), _)| *window).collect();
        let counts: Vec<u64> = counted.iter().map(|(_, count)| *count).collect();
        self.add(&columns, windows.as_deref(), &counts)
    }

    fn add(
        &mut self,
        columns: &[ArrayRef],
        windows: Option<&[Window]>,
        counts: &[u64],
    ) -> std::result::Result<(), ArrowError> {
        let keys = if self.width > 0 { Some(Keys::new(columns)?) } else { None };
        let mut found = Vec::new();
        for (row, count) in counts.iter().enumerate() {
            let window = windows.map(|windows| windows[row]);
            let key = keys.as_ref().map_or(OwnedKey::Null, |keys| keys.get(row).to_owned());
            match self.groups.entry((window, key)) {
                hashbrown::hash_map::Entry::Occupied(group) => self.counts[*group.get()] += count,
                hashbrown::hash_map::Entry::Vacant(entry) => {
                    entry.insert(self.counts.len());
                    self.counts.push(*count);
                    self.windows.push(window.unwrap_or(Window(0)));
                    found.push(row as u32);
                }
            }
        }
        if !found.is_empty() {
            let set = pick(columns, &found)?;
            self.sets_bytes += set.iter().map(|column| column.get_array_memory_size()).sum::<usize>();
            self.sets.push(set);
        }
        Ok(())
    }

    fn finish(self, frame: &Frame, by: Vec<Field>, by_window: bool) -> std::result::Result<RecordBatch, ArrowError> {
        let mut order: Vec<(&(Option<Window>, OwnedKey), usize)> =
            self.groups.iter().map(|(key, group)| (key, *group)).collect();
        order.sort_unstable();
        let order: Vec<u32> = order.into_iter().map(|(_, group)| group as u32).collect();
        let mut fields = Vec::with_capacity(self.width + 2);
        let mut columns: Vec<ArrayRef> = Vec::with_capacity(self.width + 2);
        if by_window {
            let windows = order.iter().map(|group| self.windows[*group as usize]);
            columns.push(starts(frame, windows)?);
            fields.push(Field::new(WINDOW, frame.spec.time_type().clone(), false));
        }
        // Without groups there is nothing to join, but the result still has its columns.
        if self.sets.is_empty() {
            columns.extend(by.iter().map(|field| arrow_array::new_empty_array(field.data_type())));
        } else {
            columns.extend(pick(&join(&self.sets, self.width)?, &order)?);
        }
        fields.extend(by);
        fields.push(Field::new(COUNT, DataType::UInt64, false));
        columns.push(Arc::new(order.iter().map(|group| self.counts[*group as usize]).collect::<UInt64Array>()));
        RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)
    }
}
