//! Maintenance: consolidates chunks and computes hourly statistics.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_array::{ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, TimestampNanosecondArray};
use chronotile_archive::{
    CellSelection, ConsolidateOptions, ConsolidateReport, Dataset, ReadRequest, TileSpan, WriteOptions,
};
use futures::TryStreamExt;

use crate::columns::Points;
use crate::error::{HistorianError, Result};
use crate::historian::Historian;
use crate::read::range;
use crate::rules::Segment;
use crate::schema;
use crate::tag::Storage;

/// Report of [`Historian::maintain`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MaintenanceReport {
    /// Number of tiles consolidated.
    pub tiles_consolidated: u64,
    /// Number of tiles for which statistics were computed.
    pub tiles_summarized: u64,
    /// Number of hours for which statistics were stored.
    pub hours: u64,
    /// Tiles that could not be consolidated, each with its dataset and the reason.
    pub failed: Vec<String>,
}

/// Consolidates a dataset; returns the number of tiles consolidated, and those that failed.
pub(crate) async fn join_chunks(dataset: &Dataset) -> Result<(u64, Vec<String>)> {
    let done: ConsolidateReport = dataset.consolidate(ConsolidateOptions::default(), None).await?;
    let name = &dataset.spec().name;
    let failed = done.failed.iter().map(|failure| format!("{name}, {}: {}", failure.tile, failure.reason));
    Ok((done.tiles, failed.collect()))
}

/// Minimum number of points of a tile with statistics: fewer are read as fast as statistics.
const POINTS_MIN: u64 = 2_048;
/// Number of tags processed together.
const TAGS_AT_ONCE: usize = 64;
/// Period of the statistics: one hour.
const HOUR_NS: i64 = 3_600_000_000_000;

impl Historian {
    /// Consolidates tiles, and stores hourly statistics of those that have many points and no valid statistics. Safe
    /// beside writers and readers, and safe to repeat. A concurrent write to a tile invalidates its statistics, which
    /// the next call computes again. Tiles that cannot be consolidated, such as damaged ones, are left unchanged and
    /// listed in the report.
    ///
    /// # Errors
    /// An error of the engine, or a damaged chunk in a tile whose statistics are computed.
    pub async fn maintain(&self) -> Result<MaintenanceReport> {
        let mut report = MaintenanceReport::default();
        report.failed.extend(self.maintain_names().await?);
        for group in self.groups().await? {
            for (storage, dataset) in self.existing_points(&group).await? {
                // Consolidate before summarizing: consolidation replaces chunks, and statistics are valid only for the
                // chunks from which they were computed.
                let (tiles, failed) = join_chunks(&dataset).await?;
                report.tiles_consolidated += tiles;
                report.failed.extend(failed);
                if storage != Storage::Text {
                    self.summarize(&group, storage, &dataset, &mut report).await?;
                }
            }
            let summaries = self.summaries(&group).await?;
            report.failed.extend(join_chunks(&summaries).await?.1);
        }
        Ok(report)
    }

    async fn summarize(
        &self,
        group: &str,
        storage: Storage,
        points: &Dataset,
        report: &mut MaintenanceReport,
    ) -> Result<()> {
        let summaries = self.summaries(group).await?;
        let tags = self.all_tags().await?;
        let numbers: Vec<i64> = tags
            .iter()
            .filter(|tag| tag.group == group && tag.data_type.storage() == storage)
            .map(|tag| tag.number)
            .collect();
        for numbers in numbers.chunks(TAGS_AT_ONCE) {
            let known = fingerprints(&summaries, numbers).await?;
            let spans = points.spans(numbers, (i64::MIN, i64::MAX)).await?;
            let mut rows = SummaryRows::default();
            for span in spans.iter().filter(|span| span.rows >= POINTS_MIN) {
                if !known.contains(&(span.tile.cell.0, span.fingerprint as i64)) {
                    self.summarize_tile(points, span, &mut rows).await?;
                    report.tiles_summarized += 1;
                }
            }
            report.hours += rows.tag.len() as u64;
            if !rows.tag.is_empty() {
                summaries.write([rows.batch()], WriteOptions::default()).await?;
            }
        }
        Ok(())
    }

    async fn summarize_tile(&self, points: &Dataset, span: &TileSpan, rows: &mut SummaryRows) -> Result<()> {
        let (tag, end) = (span.tile.cell.0, span.tick_max.saturating_add(1));
        let mut stream = range(points, tag, span.tick_min, end).await?;
        // The points read may be newer than the span. Then its statistics are removed below, or never match a
        // fingerprint.
        let mut held = HeldHour::default();
        while let Some(batch) = stream.try_next().await? {
            let batch = Points::new(batch)?;
            let times = batch.times();
            let mut start = 0;
            while start < times.len() {
                // `div_euclid` rounds down before 1970, too.
                let hour = times[start].div_euclid(HOUR_NS).saturating_mul(HOUR_NS);
                let end = start + times[start..].partition_point(|time| *time < hour.saturating_add(HOUR_NS));
                // An hour may continue in the next batch, so it is complete only when another one begins.
                if held.hour != hour {
                    held.flush(span, rows);
                }
                held.take(hour, &batch, start..end);
                start = end;
            }
        }
        held.flush(span, rows);
        let after = points.spans(&[tag], (span.tick_min, span.tick_max)).await?;
        if !after.iter().any(|other| other.tile == span.tile && other.fingerprint == span.fingerprint) {
            rows.forget(span);
        }
        Ok(())
    }
}

/// The points of one hour.
#[derive(Default)]
struct HeldHour {
    hour: i64,
    times: Vec<i64>,
    values: Vec<f64>,
    statuses: Vec<u32>,
}

impl HeldHour {
    fn take(&mut self, hour: i64, points: &Points, range: Range<usize>) {
        self.hour = hour;
        self.times.extend_from_slice(&points.times()[range.clone()]);
        self.values.extend_from_slice(&points.values()[range.clone()]);
        match points.statuses() {
            Some(codes) => self.statuses.extend_from_slice(&codes[range]),
            None => self.statuses.resize(self.times.len(), 0),
        }
    }

    fn flush(&mut self, span: &TileSpan, rows: &mut SummaryRows) {
        if !self.times.is_empty() {
            let segment = Segment::of(&self.times, &self.values, Some(&self.statuses));
            rows.push(span, self.hour, &self.times, segment);
        }
        self.times.clear();
        self.values.clear();
        self.statuses.clear();
    }
}

/// Tag and fingerprint of the tiles that have statistics.
async fn fingerprints(summaries: &Dataset, tags: &[i64]) -> Result<HashSet<(i64, i64)>> {
    let columns = Some(vec!["tag".to_owned(), "fingerprint".to_owned()]);
    let request = ReadRequest { cells: CellSelection::Cells(tags.to_vec()), columns, ..ReadRequest::default() };
    let mut rows = summaries.read(request).await?;
    let mut known = HashSet::new();
    while let Some(batch) = rows.try_next().await? {
        let (tags, prints) = (batch.column(0).as_primitive::<Int64Type>(), batch.column(1).as_primitive::<Int64Type>());
        known.extend(tags.values().iter().copied().zip(prints.values().iter().copied()));
    }
    Ok(known)
}

/// Statistics to be stored.
#[derive(Default)]
struct SummaryRows {
    tag: Vec<i64>,
    time: Vec<i64>,
    fingerprint: Vec<i64>,
    ends: Vec<(i64, i64, i64)>,
    segments: Vec<Option<Segment>>,
}

impl SummaryRows {
    fn push(&mut self, span: &TileSpan, hour: i64, times: &[i64], segment: Option<Segment>) {
        self.tag.push(span.tile.cell.0);
        self.time.push(hour);
        self.fingerprint.push(span.fingerprint as i64);
        // Never empty: an hour begins with a point.
        let (first, last) = (times.first().copied().unwrap_or(hour), times.last().copied().unwrap_or(hour));
        self.ends.push((first, last, times.len() as i64));
        self.segments.push(segment);
    }

    /// Removes the statistics of the tile that was summarized last, because it has changed in the meantime.
    fn forget(&mut self, span: &TileSpan) {
        while self.tag.last() == Some(&span.tile.cell.0) && self.fingerprint.last() == Some(&(span.fingerprint as i64))
        {
            self.tag.pop();
            self.time.pop();
            self.fingerprint.pop();
            self.ends.pop();
            self.segments.pop();
        }
    }

    fn batch(self) -> std::result::Result<RecordBatch, arrow_schema::ArrowError> {
        // The columns are the same for every group.
        let schema = schema::summaries("main").map(|spec| spec.schema);
        let schema =
            schema.map_err(|error: HistorianError| arrow_schema::ArrowError::ExternalError(Box::new(error)))?;
        let segments = &self.segments;
        let real = |get: fn(&Segment) -> f64| -> ArrayRef {
            Arc::new(segments.iter().map(|s| Some(s.as_ref().map_or(0.0, get))).collect::<Float64Array>())
        };
        let whole = |get: fn(&Segment) -> i64| -> ArrayRef {
            Arc::new(segments.iter().map(|s| Some(s.as_ref().map_or(0, get))).collect::<Int64Array>())
        };
        let flag = |get: fn(&Segment) -> bool| -> ArrayRef {
            Arc::new(segments.iter().map(|s| Some(s.as_ref().is_some_and(get))).collect::<BooleanArray>())
        };
        let ends = |get: fn(&(i64, i64, i64)) -> i64| -> ArrayRef {
            Arc::new(Int64Array::from_iter_values(self.ends.iter().map(get)))
        };
        let columns: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from(self.tag.clone())),
            Arc::new(TimestampNanosecondArray::from(self.time.clone()).with_timezone("UTC")),
            Arc::new(Int64Array::from(self.fingerprint.clone())),
            // `good`: whether there is a segment.
            flag(|_| true),
            ends(|(_, _, count)| *count),
            ends(|(first, _, _)| *first),
            ends(|(_, last, _)| *last),
            real(|s| s.first),
            real(|s| s.last),
            real(|s| s.sum),
            real(|s| s.squares),
            real(|s| s.min),
            whole(|s| s.min_time),
            flag(|s| s.min_again),
            real(|s| s.max),
            whole(|s| s.max_time),
            flag(|s| s.max_again),
            real(|s| s.area_sloped),
            real(|s| s.area_stepped),
            whole(|s| s.transitions as i64),
        ];
        RecordBatch::try_new(schema, columns)
    }
}
