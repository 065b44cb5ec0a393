//! Metadata of the tiles of tags, read without their points: spans, and the hourly statistics that are still valid.

use std::collections::{BTreeSet, HashMap};

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type, TimestampNanosecondType};
use arrow_array::{BooleanArray, Float64Array, Int64Array, RecordBatch};
use chronotile_archive::{CellSelection, Dataset, ReadRequest, TileSpan};
use chronotile_types::Window;
use futures::TryStreamExt;

use crate::error::Result;
use crate::read::range_request;
use crate::rules::{Aggregate, Segment};

/// Statistics of an hour. Without a segment, the points of the hour must be read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hour {
    pub first_time: i64,
    pub last_time: i64,
    pub segment: Option<Segment>,
}

/// The tiles of a tag and their hourly statistics.
#[derive(Debug, Default)]
pub(crate) struct HourCache {
    pub spans: Vec<TileSpan>,
    hours: HashMap<(Window, u64), Vec<Hour>>,
}

impl HourCache {
    /// The statistics of a tile, if they match its current chunks.
    pub(crate) fn hours(&self, span: &TileSpan) -> Option<&[Hour]> {
        self.hours.get(&(span.tile.window, span.fingerprint)).map(Vec::as_slice)
    }

    /// The statistics of the tile with the last point before `low`.
    pub(crate) fn before(&self, low: i64) -> Option<&[Hour]> {
        self.hours(self.spans.iter().rev().find(|span| span.tick_min < low)?)
    }

    /// The statistics of the tile with the first point at or after `high`.
    pub(crate) fn behind(&self, high: i64) -> Option<&[Hour]> {
        self.hours(self.spans.iter().find(|span| span.tick_max >= high)?)
    }

    /// Whether there is a point at `low`, the first of an hour of Good points.
    pub(crate) fn begins_at(&self, low: i64) -> bool {
        let begins = |hours: &[Hour]| hours.iter().any(|hour| hour.first_time == low && hour.segment.is_some());
        self.behind(low).is_some_and(begins)
    }
}

/// Reads the metadata of tags in the windows of an inclusive range of times; `tags` has whether each is stepped.
pub(crate) async fn load(
    points: &Dataset,
    summaries: &Dataset,
    tags: &[(i64, bool)],
    aggregate: Aggregate,
    (first, last): (i64, i64),
) -> Result<HashMap<i64, HourCache>> {
    let width = points.spec().window_ticks();
    let numbers: Vec<i64> = tags.iter().map(|(number, _)| *number).collect();
    let mut columns: BTreeSet<&str> =
        tags.iter().flat_map(|(_, stepped)| columns_of(aggregate, *stepped)).copied().collect();
    columns.extend(HOUR_COLUMNS);
    // Statistics are stored under their hour, so the first ones of a tile are at the start of that hour.
    let start = first.div_euclid(width).saturating_mul(width);
    let end = last.div_euclid(width).saturating_add(1).saturating_mul(width);
    let request = ReadRequest {
        cells: CellSelection::Cells(numbers.clone()),
        columns: Some(columns.into_iter().map(str::to_owned).collect()),
        ..range_request(0, start, end)
    };
    // The two reads may observe different states. Statistics of another state match no fingerprint, so points are read.
    let (spans, rows) = tokio::try_join!(points.spans(&numbers, (first, last)), async {
        summaries.read_as_known(request).await?.try_collect::<Vec<RecordBatch>>().await
    })?;
    let mut known: HashMap<i64, HourCache> = HashMap::with_capacity(numbers.len());
    for span in spans {
        known.entry(span.tile.cell.0).or_default().spans.push(span);
    }
    for batch in &rows {
        file(batch, width, &mut known);
    }
    Ok(known)
}

/// Adds the rows of a batch, which are in order of time for each tag.
fn file(batch: &RecordBatch, width: i64, known: &mut HashMap<i64, HourCache>) {
    let columns = HourColumns::new(batch);
    let (Some(tags), Some(prints), Some(good), Some(times)) = (
        columns.whole.get("tag"),
        columns.whole.get("fingerprint"),
        columns.flags.get("good"),
        batch.column_by_name("time").and_then(|c| c.as_primitive_opt::<TimestampNanosecondType>()),
    ) else {
        // Without these columns no statistics are known, and points are read instead.
        return;
    };
    for (row, segment) in columns.segments(batch.num_rows()).into_iter().enumerate() {
        let window = Window(times.value(row).div_euclid(width) as i32);
        let (first_time, last_time) = (segment.first_time, segment.last_time);
        // `good` is false if a value of the hour is not Good: the row then holds no statistics.
        let hour = Hour { first_time, last_time, segment: good.value(row).then_some(segment) };
        let hours = &mut known.entry(tags.value(row)).or_default().hours;
        hours.entry((window, prints.value(row) as u64)).or_default().push(hour);
    }
}

/// Columns of statistics that every aggregate needs.
const HOUR_COLUMNS: [&str; 7] = ["tag", "time", "fingerprint", "good", "first_time", "last_time", "count"];

/// Further columns of statistics that an aggregate needs.
fn columns_of(aggregate: Aggregate, stepped: bool) -> &'static [&'static str] {
    use Aggregate::*;
    match aggregate {
        Count | WorstQuality => &[],
        Average => &["sum"],
        StandardDeviationSample | StandardDeviationPopulation | VarianceSample | VariancePopulation => {
            &["sum", "squares"]
        }
        Minimum | MinimumActualTime => &["min", "min_time", "min_again"],
        Maximum | MaximumActualTime => &["max", "max_time", "max_again"],
        Range => &["min", "max"],
        TimeAverage | Total | TimeAverage2 | Total2 if stepped => &["first", "last", "area_stepped"],
        TimeAverage | Total | TimeAverage2 | Total2 => &["first", "last", "area_sloped"],
        NumberOfTransitions => &["first", "last", "transitions"],
        Minimum2 | Maximum2 | MinimumActualTime2 | MaximumActualTime2 | Range2 => {
            &["first", "last", "min", "min_time", "min_again", "max", "max_time", "max_again"]
        }
        _ => &["first", "last"],
    }
}

/// The columns of a batch of statistics; those that were not read count as zero.
struct HourColumns {
    whole: HashMap<String, Int64Array>,
    real: HashMap<String, Float64Array>,
    flags: HashMap<String, BooleanArray>,
}

impl HourColumns {
    fn new(batch: &RecordBatch) -> Self {
        let (mut whole, mut real, mut flags) = (HashMap::new(), HashMap::new(), HashMap::new());
        for (field, array) in batch.schema().fields().iter().zip(batch.columns()) {
            let name = field.name().clone();
            if let Some(array) = array.as_primitive_opt::<Int64Type>() {
                whole.insert(name, array.clone());
            } else if let Some(array) = array.as_primitive_opt::<Float64Type>() {
                real.insert(name, array.clone());
            } else if let Some(array) = array.as_boolean_opt() {
                flags.insert(name, array.clone());
            }
        }
        Self { whole, real, flags }
    }

    fn segments(&self, rows: usize) -> Vec<Segment> {
        let mut segments = vec![EMPTY; rows];
        let whole = |name: &str| self.whole.get(name).map(|array| array.values().as_ref());
        let real = |name: &str| self.real.get(name).map(|array| array.values().as_ref());
        put(&mut segments, whole("count"), |segment, value: i64| segment.count = value as u64);
        put(&mut segments, whole("first_time"), |segment, value| segment.first_time = value);
        put(&mut segments, whole("last_time"), |segment, value| segment.last_time = value);
        put(&mut segments, whole("min_time"), |segment, value| segment.min_time = value);
        put(&mut segments, whole("max_time"), |segment, value| segment.max_time = value);
        put(&mut segments, whole("transitions"), |segment, value: i64| segment.transitions = value as u64);
        put(&mut segments, real("first"), |segment, value| segment.first = value);
        put(&mut segments, real("last"), |segment, value| segment.last = value);
        put(&mut segments, real("sum"), |segment, value| segment.sum = value);
        put(&mut segments, real("squares"), |segment, value| segment.squares = value);
        put(&mut segments, real("min"), |segment, value| segment.min = value);
        put(&mut segments, real("max"), |segment, value| segment.max = value);
        put(&mut segments, real("area_sloped"), |segment, value| segment.area_sloped = value);
        put(&mut segments, real("area_stepped"), |segment, value| segment.area_stepped = value);
        for (row, segment) in segments.iter_mut().enumerate() {
            let flag = |name: &str| self.flags.get(name).is_some_and(|array| array.value(row));
            (segment.min_again, segment.max_again) = (flag("min_again"), flag("max_again"));
        }
        segments
    }
}

fn put<T: Copy>(segments: &mut [Segment], values: Option<&[T]>, set: impl Fn(&mut Segment, T)) {
    for (segment, value) in segments.iter_mut().zip(values.unwrap_or_default()) {
        set(segment, *value);
    }
}

const EMPTY: Segment = Segment {
    count: 0,
    first_time: 0,
    last_time: 0,
    first: 0.0,
    last: 0.0,
    sum: 0.0,
    squares: 0.0,
    min: 0.0,
    min_time: 0,
    min_again: false,
    max: 0.0,
    max_time: 0,
    max_again: false,
    area_sloped: 0.0,
    area_stepped: 0.0,
    transitions: 0,
};
