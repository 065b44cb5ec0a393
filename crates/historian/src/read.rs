//! Reads points: ranges, latest points, and values at given times.

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::{Int64Type, TimestampNanosecondType, UInt32Type};
use arrow_array::{ArrayRef, Int64Array};
use arrow_schema::SchemaRef;
use chronotile_archive::{CellSelection, Dataset, ReadRequest, ReadStream};
use chronotile_types::{Instant, TimeRange};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};

use crate::columns::{DELETED, POINT_COLUMNS, Points, common_type, computed, points_schema, shown, undeleted};
use crate::error::{HistorianError, Result};
use crate::historian::{Historian, SharedTag};
use crate::rules::{Point, Settings, Status, ValuesAtTimes};
use crate::tag::{DataType, TagKey};

/// A stream of record batches with the same schema.
pub struct Batches {
    /// The schema.
    pub schema: SchemaRef,
    /// The batches.
    pub stream: BoxStream<'static, Result<RecordBatch>>,
}

impl std::fmt::Debug for Batches {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batches").field("schema", &self.schema).finish_non_exhaustive()
    }
}

/// A request for stored points.
#[derive(Clone, Debug)]
pub struct RawRequest {
    /// The tags.
    pub tags: Vec<TagKey>,
    /// Inclusive start, ns.
    pub start: i64,
    /// Exclusive end, ns.
    pub end: i64,
    /// Whether to include the last point before the range, unless there is one at its start, and the first at or after
    /// its end.
    pub bounds: bool,
}

/// A request for points of one tag in `[start, end)`.
pub(crate) fn range_request(tag: i64, start: i64, end: i64) -> ReadRequest {
    let instant = |tick: i64| Some(Instant::NativeTicks(tick));
    ReadRequest {
        cells: CellSelection::Cells(vec![tag]),
        time: TimeRange { start: instant(start), end: instant(end) },
        columns: Some(POINT_COLUMNS.iter().map(|name| (*name).to_owned()).collect()),
        ..ReadRequest::default()
    }
}

pub(crate) async fn range(dataset: &Dataset, tag: i64, start: i64, end: i64) -> Result<ReadStream> {
    // The historian never adds columns to its datasets, so the definition need not be read again.
    Ok(dataset.read_as_known(range_request(tag, start, end)).await?)
}

pub(crate) async fn range_whole(dataset: &Dataset, tag: i64, start: i64, end: i64) -> Result<Vec<RecordBatch>> {
    Ok(range(dataset, tag, start, end).await?.try_collect().await?)
}

/// The last point before `tick` that was not deleted.
pub(crate) async fn last_before(dataset: &Dataset, tag: i64, mut tick: i64) -> Result<Option<RecordBatch>> {
    while let Some(span) = dataset.span_before(tag, tick).await? {
        // A tile that extends to `tick` or beyond does not show its last point before `tick`.
        if span.tick_max < tick {
            // Usually the last point of the span is not deleted.
            let last = range_whole(dataset, tag, span.tick_max, span.tick_max.saturating_add(1)).await?;
            for batch in last {
                let batch = undeleted(batch)?;
                if batch.num_rows() > 0 {
                    return Ok(Some(batch));
                }
            }
        }
        let rows = range_whole(dataset, tag, span.tick_min, tick).await?;
        for batch in rows.into_iter().rev() {
            let batch = undeleted(batch)?;
            if batch.num_rows() > 0 {
                return Ok(Some(batch.slice(batch.num_rows() - 1, 1)));
            }
        }
        // All points of this tile before `tick` are deleted, so continue with the tile before it.
        tick = span.tick_min;
    }
    Ok(None)
}

/// The first point at or after `tick` that was not deleted.
pub(crate) async fn first_from(dataset: &Dataset, tag: i64, mut tick: i64) -> Result<Option<RecordBatch>> {
    while let Some(span) = dataset.span_from(tag, tick).await? {
        let end = span.tick_max.saturating_add(1);
        let mut rows = range(dataset, tag, tick, end).await?;
        while let Some(batch) = rows.try_next().await? {
            let batch = undeleted(batch)?;
            if batch.num_rows() > 0 {
                return Ok(Some(batch.slice(0, 1)));
            }
        }
        tick = end;
    }
    Ok(None)
}

impl Historian {
    /// The points of tags in a range, ordered by tag as requested, then by time.
    ///
    /// # Errors
    /// Immediately for an unknown tag or an inverted range; while streaming for an error of the engine.
    pub async fn raw(&self, request: RawRequest) -> Result<Batches> {
        if request.start > request.end {
            return Err(HistorianError::Request("the range ends before it starts: swap start and end".into()));
        }
        let tags = self.resolve(&request.tags).await?;
        let schema = points_schema(common_type(tags.iter().map(|tag| &tag.data_type)));
        let mut work = Vec::with_capacity(tags.len());
        for tag in tags {
            work.push((self.points(&tag).await?, tag));
        }
        let shape = schema.clone();
        let stream = stream::iter(work)
            .then(move |(dataset, tag)| {
                let (schema, request) = (shape.clone(), request.clone());
                async move { raw_of(dataset, tag, request, schema).await }
            })
            .try_flatten()
            .try_filter(|batch| std::future::ready(batch.num_rows() > 0));
        Ok(Batches { schema, stream: stream.boxed() })
    }

    /// The number of points in tiles that are completely inside `[start, end)`, from metadata only; corrections and
    /// deletions count as points. An estimate, to refuse requests that are far too large.
    ///
    /// # Errors
    /// An unknown tag; an error of the engine.
    pub async fn points_within(&self, keys: &[TagKey], start: i64, end: i64) -> Result<u64> {
        let mut points = 0;
        for tag in self.resolve(keys).await? {
            // Ranges of `spans` include their end.
            let spans = self.points(&tag).await?.spans(&[tag.number], (start, end.saturating_sub(1))).await?;
            let inside = spans.iter().filter(|span| span.tick_min >= start && span.tick_max < end);
            points += inside.map(|span| span.rows).sum::<u64>();
        }
        Ok(points)
    }

    /// The newest point of each tag, ordered by tag as requested; a tag without points has no row.
    ///
    /// # Errors
    /// An unknown tag; an error of the engine.
    pub async fn latest(&self, keys: &[TagKey]) -> Result<Vec<RecordBatch>> {
        let tags = self.resolve(keys).await?;
        let schema = points_schema(common_type(tags.iter().map(|tag| &tag.data_type)));
        let mut rows: Vec<Option<RecordBatch>> = vec![None; tags.len()];
        let mut left: Vec<usize> = (0..tags.len()).collect();
        while let Some(first) = left.first().copied() {
            let place = |tag: &SharedTag| (tag.group.clone(), tag.data_type.storage());
            let (here, rest): (Vec<usize>, Vec<usize>) =
                left.into_iter().partition(|index| place(&tags[*index]) == place(&tags[first]));
            left = rest;
            let dataset = self.points(&tags[first]).await?;
            for (number, row) in newest(&dataset, here.iter().map(|index| tags[*index].number)).await? {
                // A tag that is requested several times is read once and returned each time.
                for index in here.iter().filter(|index| tags[**index].number == number) {
                    rows[*index] = Some(shown(&tags[*index], row.clone(), &schema)?);
                }
            }
        }
        let found: Vec<RecordBatch> = rows.into_iter().flatten().collect();
        let joined = arrow_select::concat::concat_batches(&schema, &found);
        Ok(vec![joined.map_err(HistorianError::compute("joining rows"))?])
    }

    /// The values of tags at given times: the stored points, or values interpolated between their neighbours, stepped
    /// or sloped as the tag is. Ordered by tag as requested, then in the order of `times`.
    ///
    /// # Errors
    /// An unknown tag; a text tag without a point at one of the times; an error of the engine.
    pub async fn at(&self, keys: &[TagKey], times: &[i64], stepped: Option<bool>) -> Result<Vec<RecordBatch>> {
        self.values_at(keys, times, stepped).await?.stream.try_collect().await
    }

    /// Like [`Historian::at`], with one batch for each tag as soon as it is computed.
    ///
    /// # Errors
    /// As [`Historian::at`]; errors of the engine while streaming.
    pub async fn values_at(&self, keys: &[TagKey], times: &[i64], stepped: Option<bool>) -> Result<Batches> {
        let tags = self.resolve(keys).await?;
        if let Some(tag) = tags.iter().find(|tag| tag.data_type == DataType::String) {
            let (tag, aggregate) = (tag.name.clone(), "a value between points");
            return Err(HistorianError::NotNumeric { tag, aggregate });
        }
        let mut sorted: Vec<i64> = times.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        // Finds every time, because `sorted` has all of them once.
        let order = times.iter().map(|time| sorted.partition_point(|known| known < time) as i64);
        let asked = Arc::new((Int64Array::from_iter_values(order), sorted));
        let mut works = Vec::with_capacity(tags.len());
        for tag in tags {
            let mut settings = tag.settings;
            settings.stepped = stepped.unwrap_or(settings.stepped || tag.data_type == DataType::Bool);
            works.push((self.points(&tag).await?, tag, settings));
        }
        let schema = points_schema(arrow_schema::DataType::Float64);
        let shape = schema.clone();
        let stream = stream::iter(works).then(move |(dataset, tag, settings)| {
            let (schema, asked) = (shape.clone(), asked.clone());
            async move {
                let (order, sorted) = &*asked;
                let mut output = crate::rules::Output::default();
                for cluster in sorted.chunk_by(|a, b| b.saturating_sub(*a) < CLUSTER_GAP_NS) {
                    let found = at_cluster(&dataset, &tag, cluster, settings).await?;
                    output.times.extend(found.times);
                    output.values.extend(found.values);
                    output.statuses.extend(found.statuses);
                }
                let batch = computed(&tag, output, &schema)?;
                let batch = arrow_select::take::take_record_batch(&batch, order);
                batch.map_err(HistorianError::compute("ordering values"))
            }
        });
        Ok(Batches { schema, stream: stream.boxed() })
    }

    /// The annotations of tags in `[start, end)`: columns tag (number), time, entered, author, text.
    ///
    /// # Errors
    /// An unknown tag; an error of the engine.
    pub async fn annotations(&self, keys: &[TagKey], start: i64, end: i64) -> Result<ReadStream> {
        let tags = self.resolve(keys).await?;
        let request = ReadRequest {
            cells: CellSelection::Cells(tags.iter().map(|tag| tag.number).collect()),
            columns: None,
            ..range_request(0, start, end)
        };
        Ok(self.annotations.read(request).await?)
    }
}

/// Times that are further apart are read separately.
const CLUSTER_GAP_NS: i64 = 2 * 86_400_000_000_000;

async fn at_cluster(
    dataset: &Dataset,
    tag: &SharedTag,
    times: &[i64],
    settings: Settings,
) -> Result<crate::rules::Output> {
    let (Some(low), Some(high)) = (times.first(), times.last()) else { return Ok(crate::rules::Output::default()) };
    let mut at = ValuesAtTimes::new(times.to_vec(), settings);
    let feed = Feed { dataset, tag: tag.number, settings, back_always: false };
    feed.run(*low, high.saturating_add(1), &mut |points| {
        for row in 0..points.times().len() {
            let status = points.statuses().map_or(Status::GOOD, |statuses| Status(statuses[row]));
            at.push(Point { time: points.times()[row], value: points.values()[row], status });
        }
        Ok(at.done())
    })
    .await?;
    Ok(at.finish())
}

/// Passes the points of a range to a sink, with the points that it needs before and after the range.
pub(crate) struct Feed<'a> {
    pub dataset: &'a Dataset,
    pub tag: i64,
    pub settings: Settings,
    /// Whether points before the range are needed even if there is one at its start.
    pub back_always: bool,
}

/// Consumes points; returns whether it needs no more.
pub(crate) type Sink<'a> = dyn FnMut(&Points) -> Result<bool> + Send + 'a;

impl Feed<'_> {
    pub(crate) async fn run(&self, low: i64, high: i64, sink: &mut Sink<'_>) -> Result<()> {
        let mut rows = range(self.dataset, self.tag, low, high).await?;
        // The first points of the range show whether earlier ones matter, but the sink takes points in order of time.
        // So the first batch is held until the earlier points have passed.
        let mut first = None;
        while let Some(batch) = rows.try_next().await? {
            let points = Points::new(batch)?;
            if !points.times().is_empty() {
                first = Some(points);
                break;
            }
        }
        if self.back_always || !first.as_ref().is_some_and(|points| self.begins_at(points, low)) {
            for points in self.before(low).await?.iter().rev() {
                sink(points)?;
            }
        }
        if let Some(points) = first {
            sink(&points)?;
            // Free this batch before the next one is read.
            drop(points);
            while let Some(batch) = rows.try_next().await? {
                sink(&Points::new(batch)?)?;
            }
        }
        self.behind(high, sink).await
    }

    /// Whether there is a usable point at the start, so that earlier ones do not matter. Sloped extrapolation needs the
    /// point before.
    fn begins_at(&self, points: &Points, low: i64) -> bool {
        !self.settings.sloped_extrapolation && points.times()[0] == low && usable(&self.settings, points, 0)
    }

    /// The points before `low` that matter, newest piece first: back to the last usable one, or the last two for sloped
    /// extrapolation.
    pub(crate) async fn before(&self, low: i64) -> Result<Vec<Points>> {
        let wanted = if self.settings.sloped_extrapolation { 2 } else { 1 };
        let (mut pieces, mut found, mut tick) = (Vec::new(), 0, low);
        while found < wanted {
            let Some(span) = self.dataset.span_before(self.tag, tick).await? else { break };
            for batch in range_whole(self.dataset, self.tag, span.tick_min, tick).await?.into_iter().rev() {
                let points = Points::new(batch)?;
                found +=
                    (0..points.times().len()).rev().filter(|row| usable(&self.settings, &points, *row)).take(2).count();
                pieces.push(points);
            }
            tick = span.tick_min;
        }
        Ok(pieces)
    }

    /// Passes the points from `high` on until the sink needs no more.
    pub(crate) async fn behind(&self, high: i64, sink: &mut Sink<'_>) -> Result<()> {
        let mut tick = high;
        while let Some(span) = self.dataset.span_from(self.tag, tick).await? {
            let end = span.tick_max.saturating_add(1);
            let mut rows = range(self.dataset, self.tag, tick, end).await?;
            while let Some(batch) = rows.try_next().await? {
                let points = Points::new(batch)?;
                if !points.times().is_empty() && sink(&points)? {
                    return Ok(());
                }
            }
            tick = end;
        }
        Ok(())
    }
}

fn usable(settings: &Settings, points: &Points, row: usize) -> bool {
    let status = points.statuses().map_or(Status::GOOD, |statuses| Status(statuses[row]));
    let good = status.is_good() || status.is_uncertain() && !settings.treat_uncertain_as_bad;
    good && !points.values()[row].is_nan()
}

async fn raw_of(
    dataset: Dataset,
    tag: SharedTag,
    request: RawRequest,
    schema: SchemaRef,
) -> Result<BoxStream<'static, Result<RecordBatch>>> {
    let number = tag.number;
    let (start, end) = (request.start, request.end);
    let mut before = None;
    let mut behind = None;
    if request.bounds {
        let exact = range_whole(&dataset, number, start, start.saturating_add(1)).await?;
        let exact = exact.into_iter().map(undeleted).collect::<Result<Vec<_>>>()?;
        if exact.iter().all(|batch| batch.num_rows() == 0) {
            before = last_before(&dataset, number, start).await?;
        }
        behind = first_from(&dataset, number, end).await?;
    }
    let rows = range(&dataset, number, start, end).await?.map_err(HistorianError::from);
    let ends = |batch: Option<RecordBatch>| stream::iter(batch.map(Ok));
    let all = ends(before).chain(rows).chain(ends(behind));
    Ok(all.map(move |batch| shown(&tag, batch?, &schema)).boxed())
}

/// Up to this many tags are read one after the other.
const ONE_BY_ONE: usize = 8;

/// The newest point of each of these tags that is not deleted.
async fn newest(dataset: &Dataset, numbers: impl Iterator<Item = i64>) -> Result<Vec<(i64, RecordBatch)>> {
    let numbers: Vec<i64> = numbers.collect();
    if numbers.len() <= ONE_BY_ONE {
        let mut found = Vec::with_capacity(numbers.len());
        for number in numbers {
            found.extend(last_before(dataset, number, i64::MAX).await?.map(|row| (number, row)));
        }
        return Ok(found);
    }
    let keys: ArrayRef = Arc::new(Int64Array::from(numbers));
    let request = ReadRequest { cells: CellSelection::Keys(vec![keys]), ..ReadRequest::default() };
    let batches: Vec<RecordBatch> = dataset.latest(request, None).await?.try_collect().await?;
    let mut found = Vec::new();
    for batch in &batches {
        let tags = batch.column(0).as_primitive::<Int64Type>();
        let times = batch.column(1).as_primitive::<TimestampNanosecondType>();
        let statuses = batch.column(3).as_primitive::<UInt32Type>();
        for row in 0..batch.num_rows() {
            let one = match statuses.value(row) {
                // The newest row is a deletion marker, so the newest point is before it.
                DELETED => last_before(dataset, tags.value(row), times.value(row)).await?,
                _ => Some(batch.slice(row, 1).project(&[1, 2, 3]).map_err(HistorianError::compute("reading"))?),
            };
            found.extend(one.map(|one| (tags.value(row), one)));
        }
    }
    Ok(found)
}
