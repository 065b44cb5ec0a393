//! Aggregates of the points of tags.
//!
//! Whole hours of an interval are computed from the hourly statistics that maintenance stores, while these are valid;
//! points are read only at the edges. Statistics are valid for the chunk ids from which they were computed: after any
//! later write to a tile, its points are read.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::TimestampNanosecondType;
use arrow_schema::DataType as ArrowType;
use chronotile_archive::{Dataset, ReadRequest};
use futures::{StreamExt, TryStreamExt};

use crate::columns::{Points, common_type, computed, points_schema};
use crate::error::{HistorianError, Result};
use crate::historian::{Historian, SharedTag};
use crate::hours::{Hour, HourCache, load};
use crate::read::{Batches, Feed, range, range_request};
use crate::rules::{Aggregate, Calculator, Grid, Output, Settings};
use crate::tag::{DataType, Storage, TagKey};

/// An aggregate request. For settings that are `None`, those of the tag apply.
#[derive(Clone, Debug)]
pub struct AggregateRequest {
    /// The tags.
    pub tags: Vec<TagKey>,
    /// Start of the request, ns; later than `end` if it runs backwards.
    pub start: i64,
    /// End of the request, ns.
    pub end: i64,
    /// Length of an interval, ns; 0 for one interval over the whole range.
    pub interval: i64,
    /// The aggregate.
    pub aggregate: Aggregate,
    /// Whether each value holds until the next one.
    pub stepped: Option<bool>,
    /// Whether Uncertain values count as Bad.
    pub treat_uncertain_as_bad: Option<bool>,
    /// Minimum percentage of Good for a Good result.
    pub percent_good: Option<f64>,
    /// Minimum percentage of Bad for a Bad result.
    pub percent_bad: Option<f64>,
    /// Whether to extrapolate along the line through the last two points.
    pub sloped_extrapolation: Option<bool>,
    /// The percentile to compute.
    pub percent: f64,
    /// See [`Settings::sample_results`].
    pub sample_results: bool,
    /// Whether to compute from points only, without hourly statistics.
    pub points_only: bool,
}

impl AggregateRequest {
    /// Maximum memory of the results that are held at once.
    pub fn bytes_held_max(&self) -> usize {
        let width = u64::try_from(self.interval).unwrap_or(0);
        let intervals = if width == 0 { 1 } else { self.start.abs_diff(self.end).div_ceil(width) };
        let of_all = intervals.saturating_mul(self.tags.len() as u64);
        // Tags are grouped up to `RESULTS_AT_ONCE` results; only a single tag may have more.
        let held = of_all.min(intervals.max(RESULTS_AT_ONCE as u64));
        usize::try_from(held).unwrap_or(usize::MAX).saturating_mul(RESULT_BYTES)
    }

    fn settings(&self, tag: &SharedTag) -> Result<Settings> {
        let own = tag.settings;
        let settings = Settings {
            // There are no values between false and true to interpolate.
            stepped: self.stepped.unwrap_or(own.stepped || tag.data_type == DataType::Bool),
            treat_uncertain_as_bad: self.treat_uncertain_as_bad.unwrap_or(own.treat_uncertain_as_bad),
            percent_good: self.percent_good.unwrap_or(own.percent_good),
            percent_bad: self.percent_bad.unwrap_or(own.percent_bad),
            sloped_extrapolation: self.sloped_extrapolation.unwrap_or(own.sloped_extrapolation),
            percent: self.percent,
            sample_results: self.sample_results,
        };
        settings.check().map_err(|refused| HistorianError::Request(format!("tag {:?}: {refused}", tag.name)))?;
        Ok(settings)
    }
}

/// The type of an aggregate's values: boolean if it returns a stored value of boolean tags, else float.
fn value_type(aggregate: Aggregate, tags: &[SharedTag]) -> ArrowType {
    use Aggregate::*;
    let given_back = matches!(aggregate, Start | End | Minimum | Maximum | MinimumActualTime | MaximumActualTime);
    match common_type(tags.iter().map(|tag| &tag.data_type)) {
        ArrowType::Boolean if given_back => ArrowType::Boolean,
        _ => ArrowType::Float64,
    }
}

impl Historian {
    /// Aggregates of tags: one row per tag and interval, ordered by tag as requested, then in the order of the request.
    /// Tags are computed concurrently. Memory of stored data does not grow with the range; results in memory are those
    /// of one tag or about a million, see [`AggregateRequest::bytes_held_max`].
    ///
    /// # Errors
    /// Immediately for an unknown tag, invalid intervals or percentages, or a numeric aggregate of a text tag. While
    /// streaming for an error of the engine, or an interval with too many values.
    pub async fn aggregate(&self, request: AggregateRequest) -> Result<Batches> {
        let grid = Grid::new(request.start, request.end, request.interval)?;
        let tags = self.resolve(&request.tags).await?;
        let aggregate = request.aggregate;
        if let Some(tag) = tags.iter().find(|tag| tag.data_type == DataType::String && !aggregate.needs_no_number()) {
            return Err(HistorianError::NotNumeric { tag: tag.name.clone(), aggregate: aggregate.name() });
        }
        let schema = points_schema(value_type(aggregate, &tags));
        let mut works = Vec::with_capacity(tags.len());
        for tag in tags {
            let mut settings = request.settings(&tag)?;
            if aggregate == Aggregate::AnnotationCount
                && settings.sample_results
                && self.annotations.span_before(tag.number, i64::MAX).await?.is_some()
            {
                // The sample data annotate every value, so `AnnotationCount` counts values there. Count real
                // annotations instead.
                settings.sample_results = false;
            }
            let annotations = aggregate == Aggregate::AnnotationCount && !settings.sample_results;
            let points = if annotations { self.annotations.clone() } else { self.points(&tag).await? };
            let segments = !request.points_only
                && !annotations
                && tag.data_type.storage() != Storage::Text
                && aggregate.takes_segments(&settings);
            let summaries = if segments { Some(self.summaries(&tag.group).await?) } else { None };
            works.push(AggregateJob { tag, points, summaries, settings, aggregate, grid, annotations, known: None });
        }
        // The request is valid from here on. Groups are computed one after the other, as the stream is consumed.
        let shape = schema.clone();
        let mut groups: Vec<Vec<AggregateJob>> = Vec::new();
        // The count is at least 1, because `Grid` refuses an empty range. A tag with more results than the limit forms
        // a group of its own.
        let at_once = (RESULTS_AT_ONCE / grid.count()).clamp(1, TAGS_AT_ONCE);
        for work in works {
            // Only neighbours are grouped, so that the results keep the order of the request.
            match groups.last_mut().filter(|group| group.len() < at_once && group[0].goes_with(&work)) {
                Some(group) => group.push(work),
                None => groups.push(vec![work]),
            }
        }
        let stream = futures::stream::iter(groups)
            .then(move |group| {
                let schema = shape.clone();
                async move {
                    let outputs = together(group).await?;
                    // Convert results to columns only as they are consumed.
                    let batches = outputs.into_iter().flat_map(move |(tag, output)| {
                        let schema = schema.clone();
                        output.pieces(ROWS_AT_ONCE).map(move |piece| computed(&tag, piece, &schema))
                    });
                    Ok::<_, HistorianError>(futures::stream::iter(batches))
                }
            })
            .try_flatten();
        Ok(Batches { schema, stream: stream.boxed() })
    }
}

/// Number of tags whose heads and statistics are read together.
const TAGS_AT_ONCE: usize = 32;
/// Number of results of several tags that are held together.
const RESULTS_AT_ONCE: usize = 1 << 20;
/// Memory of one result: time, value and status.
const RESULT_BYTES: usize = 20;
/// Number of rows of a batch.
const ROWS_AT_ONCE: usize = 16_384;

/// The results of tags of one dataset, computed on all cores.
async fn together(mut group: Vec<AggregateJob>) -> Result<Vec<(SharedTag, Output)>> {
    // If one piece covers the whole range, the heads and statistics of all tags are read together. Otherwise each tag
    // reads its own, piece by piece.
    if let Some((work, summaries)) = group.first().and_then(|work| Some((work, work.summaries.as_ref()?))) {
        let (low, high) = work.range();
        let piece = Piece::new(low, low, high, work.points.spec().window_ticks());
        if piece.end == high {
            let tags: Vec<(i64, bool)> = group.iter().map(|work| (work.tag.number, work.settings.stepped)).collect();
            let known = load(&work.points, summaries, &tags, work.aggregate, (piece.first, piece.last)).await?;
            let known = Arc::new(known);
            group.iter_mut().for_each(|work| work.known = Some(known.clone()));
        }
    }
    let mut outputs = Vec::with_capacity(group.len());
    // From here on, each tag is independent. With valid statistics, few or no points are left to decode on other cores.
    if group.len() == 1 || group.iter().all(AggregateJob::is_known) {
        for work in group {
            let tag = work.tag.clone();
            outputs.push((tag, work.run().await?));
        }
        return Ok(outputs);
    }
    let tasks: Vec<_> = group.into_iter().map(|work| (work.tag.clone(), Task(tokio::spawn(work.run())))).collect();
    for (tag, mut task) in tasks {
        let output = (&mut task.0).await.map_err(chronotile_archive::ArchiveError::from)??;
        outputs.push((tag, output));
    }
    Ok(outputs)
}

/// A task that is aborted on drop, so that no work of a cancelled request continues.
struct Task<T>(tokio::task::JoinHandle<T>);

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A part of a range whose heads and statistics are held at once.
struct Piece {
    end: i64,
    /// First and last time of the windows to read.
    first: i64,
    last: i64,
}

impl Piece {
    fn new(start: i64, low: i64, high: i64, width: i64) -> Self {
        // Pieces meet at the borders of windows, so each tile is in one piece. `div_euclid` rounds down before 1970,
        // too.
        let cut = start.div_euclid(width).saturating_add(WINDOWS_AT_ONCE).saturating_mul(width);
        let end = cut.min(high);
        // Include the neighbouring tiles, which usually hold the points before and after the range.
        let first = if start == low { start.saturating_sub(width) } else { start };
        let last = if end == high { end.saturating_add(width) } else { end - 1 };
        Self { end, first, last }
    }
}

/// One aggregate of one tag.
struct AggregateJob {
    tag: SharedTag,
    points: Dataset,
    summaries: Option<Dataset>,
    settings: Settings,
    aggregate: Aggregate,
    grid: Grid,
    annotations: bool,
    /// Metadata of all tags that are computed together, if the whole range was read at once.
    known: Option<Arc<HashMap<i64, HourCache>>>,
}

impl AggregateJob {
    /// The range of times that belong to intervals: a request that runs backwards includes its later end.
    fn range(&self) -> (i64, i64) {
        (self.grid.low(), self.grid.high().saturating_add(i64::from(self.grid.backward())))
    }

    /// Whether both read the same datasets.
    fn goes_with(&self, other: &Self) -> bool {
        let name = |work: &Self| work.points.spec().name.clone();
        name(self) == name(other) && self.summaries.is_some() == other.summaries.is_some()
    }

    /// Whether all tiles in the range have valid hourly statistics, so that few or no points must be read.
    fn is_known(&self) -> bool {
        let Some(known) = self.known.as_ref() else { return false };
        let (low, high) = self.range();
        // A tag without an entry has no tile in the range, so there is nothing to read.
        known.get(&self.tag.number).is_none_or(|known| {
            let mut observed = known.spans.iter().filter(|span| span.tick_max >= low && span.tick_min < high);
            observed.all(|span| known.hours(span).is_some())
        })
    }

    async fn run(self) -> Result<Output> {
        let mut calculator = Calculator::new(self.aggregate, self.settings, self.grid);
        let (low, high) = self.range();
        if self.annotations {
            // Annotations have no bounding values, so the earlier end of a backward request, which its intervals
            // exclude, is not read.
            return self.count_annotations(calculator, low + i64::from(self.grid.backward()), high).await;
        }
        match &self.summaries {
            Some(summaries) => self.with_summaries(&mut calculator, summaries, low, high).await?,
            None => {
                let back_always = self.aggregate.looks_back_always();
                let mut sink = |points: &Points| self.push(&mut calculator, points);
                self.feed(back_always).run(low, high, &mut sink).await?;
            }
        }
        let mut output = calculator.finish();
        if self.grid.backward() {
            output.reverse();
        }
        Ok(output)
    }

    fn feed(&self, back_always: bool) -> Feed<'_> {
        Feed { dataset: &self.points, tag: self.tag.number, settings: self.settings, back_always }
    }

    fn push(&self, calculator: &mut Calculator, points: &Points) -> Result<bool> {
        let pushed = calculator.push(points.times(), points.values(), points.statuses());
        let too_many = |source| HistorianError::TooManyValues { tag: self.tag.name.clone(), source };
        pushed.map_err(too_many)?;
        Ok(calculator.done())
    }

    async fn count_annotations(&self, mut calculator: Calculator, low: i64, high: i64) -> Result<Output> {
        let columns = Some(vec!["time".to_owned()]);
        let request = ReadRequest { columns, ..range_request(self.tag.number, low, high) };
        let mut rows = self.points.read(request).await?;
        while let Some(batch) = rows.try_next().await? {
            let mut times = batch.column(0).as_primitive::<TimestampNanosecondType>().values().to_vec();
            times.sort_unstable();
            let ones = vec![1.0; times.len()];
            // Counting stores no values, so their limit cannot be exceeded.
            let _ = calculator.push(&times, &ones, None);
        }
        let mut output = calculator.finish();
        if self.grid.backward() {
            output.reverse();
        }
        Ok(output)
    }

    /// Computes a year or so at a time, so that the memory of heads and statistics does not grow with the range.
    async fn with_summaries(
        &self,
        calculator: &mut Calculator,
        summaries: &Dataset,
        low: i64,
        high: i64,
    ) -> Result<()> {
        let width = self.points.spec().window_ticks();
        let mut start = low;
        // The calculator takes points in order of time: first the point before the range, then the pieces, then the
        // point behind it.
        while start < high {
            let piece = Piece::new(start, low, high, width);
            let end = piece.end;
            let loaded = match &self.known {
                Some(known) => known.clone(),
                None => {
                    let tags = [(self.tag.number, self.settings.stepped)];
                    let range = (piece.first, piece.last);
                    Arc::new(load(&self.points, summaries, &tags, self.aggregate, range).await?)
                }
            };
            let nothing = HourCache::default();
            let known = loaded.get(&self.tag.number).unwrap_or(&nothing);
            if start == low && (self.aggregate.looks_back_always() || !known.begins_at(low)) {
                self.push_before(calculator, known.before(low), low).await?;
            }
            self.push_inside(calculator, known, start, end).await?;
            if end == high {
                self.push_behind(calculator, known.behind(high), high).await?;
            }
            start = end;
        }
        Ok(())
    }

    /// Pushes the points in `[low, high)`, from statistics where these are valid.
    async fn push_inside(&self, calculator: &mut Calculator, known: &HourCache, low: i64, high: i64) -> Result<()> {
        let mut unread: Option<(i64, i64)> = None;
        for span in known.spans.iter().filter(|span| span.tick_max >= low && span.tick_min < high) {
            let (start, end) = (span.tick_min.max(low), span.tick_max.saturating_add(1).min(high));
            // Successive tiles without valid statistics become one read, which must end before the next statistics are
            // pushed.
            let Some(hours) = known.hours(span) else {
                unread = Some((unread.map_or(start, |(start, _)| start), end));
                continue;
            };
            self.read(calculator, unread.take()).await?;
            self.push_hours(calculator, hours, low, high).await?;
        }
        self.read(calculator, unread).await
    }

    /// Pushes the last usable point before `low`, from statistics if they contain it.
    async fn push_before(&self, calculator: &mut Calculator, hours: Option<&[Hour]>, low: i64) -> Result<()> {
        // The hour with the last point before `low` counts only if it ends before `low`: otherwise its last point is a
        // later one.
        let last = hours.and_then(|hours| hours.iter().rev().find(|hour| hour.first_time < low));
        if let Some(segment) = last.filter(|hour| hour.last_time < low).and_then(|hour| hour.segment) {
            // This cannot fail: aggregates that keep values, and so may have too many, take no statistics.
            let _ = self.push_one(calculator, segment.last_time, segment.last);
            return Ok(());
        }
        for points in self.feed(true).before(low).await?.iter().rev() {
            self.push(calculator, points)?;
        }
        Ok(())
    }

    async fn push_behind(&self, calculator: &mut Calculator, hours: Option<&[Hour]>, high: i64) -> Result<()> {
        if calculator.done() {
            return Ok(());
        }
        // As in `push_before`: an hour that begins before `high` does not tell its first point from `high` on.
        let first = hours.and_then(|hours| hours.iter().find(|hour| hour.last_time >= high));
        if let Some(segment) = first.filter(|hour| hour.first_time >= high).and_then(|hour| hour.segment) {
            let _ = self.push_one(calculator, segment.first_time, segment.first);
            return Ok(());
        }
        let mut sink = |points: &Points| self.push(calculator, points);
        self.feed(true).behind(high, &mut sink).await
    }

    fn push_one(&self, calculator: &mut Calculator, time: i64, value: f64) -> Result<()> {
        let too_many = |source| HistorianError::TooManyValues { tag: self.tag.name.clone(), source };
        calculator.push(&[time], &[value], None).map_err(too_many)
    }

    async fn push_hours(&self, calculator: &mut Calculator, hours: &[Hour], low: i64, high: i64) -> Result<()> {
        let mut unread: Option<(i64, i64)> = None;
        for hour in hours.iter().filter(|hour| hour.last_time >= low && hour.first_time < high) {
            // At the ends of the range, statistics of an hour include points outside of it, so its points are read.
            let whole = hour.first_time >= low && hour.last_time < high;
            if let (Some(segment), true) = (hour.segment, whole) {
                self.read(calculator, unread.take()).await?;
                // A segment that crosses the border of an interval is refused, and its points are read.
                if calculator.push_segment(&segment) {
                    continue;
                }
            }
            let (start, end) = (hour.first_time.max(low), hour.last_time.saturating_add(1).min(high));
            unread = Some((unread.map_or(start, |(start, _)| start), end));
        }
        self.read(calculator, unread).await
    }

    async fn read(&self, calculator: &mut Calculator, unread: Option<(i64, i64)>) -> Result<()> {
        let Some((start, end)) = unread else { return Ok(()) };
        let mut rows = range(&self.points, self.tag.number, start, end).await?;
        while let Some(batch) = rows.try_next().await? {
            self.push(calculator, &Points::new(batch)?)?;
        }
        Ok(())
    }
}

/// Number of windows whose heads and statistics are held at once.
const WINDOWS_AT_ONCE: i64 = 400;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_told_for_the_largest_group_of_tags() {
        let request = |tags: usize, intervals: i64| AggregateRequest {
            tags: vec![TagKey::Number(1); tags],
            start: 0,
            end: intervals * 10,
            interval: 10,
            aggregate: Aggregate::Count,
            stepped: None,
            treat_uncertain_as_bad: None,
            percent_good: None,
            percent_bad: None,
            sloped_extrapolation: None,
            percent: 50.0,
            sample_results: true,
            points_only: false,
        };
        assert_eq!(request(1, 10_000_000).bytes_held_max(), 10_000_000 * RESULT_BYTES);
        assert_eq!(request(1_000, 10_000_000).bytes_held_max(), 10_000_000 * RESULT_BYTES);
        assert_eq!(request(2, 100).bytes_held_max(), 200 * RESULT_BYTES);
        assert_eq!(request(1_000_000, 100).bytes_held_max(), RESULTS_AT_ONCE * RESULT_BYTES);
        assert_eq!(AggregateRequest { interval: 0, ..request(3, 100) }.bytes_held_max(), 3 * RESULT_BYTES);
    }
}
