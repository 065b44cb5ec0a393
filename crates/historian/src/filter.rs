//! Exception and compression filters, which drop points that need not be stored.

use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch, TimestampNanosecondArray, UInt32Array};
use arrow_schema::{DataType as ArrowType, Field, Schema, SchemaRef};
use hashbrown::HashMap;

use crate::error::{HistorianError, Result};
use crate::rules::Status;
use crate::schema::nanoseconds;
use crate::tag::Tag;

/// A point: tag, time, value, status.
pub(crate) type Row = (i64, i64, f64, u32);

/// State of the filters, per tag.
///
/// The exception deviation compares each value with the last one reported. The swinging door then holds back the newest
/// point as long as every point since the last stored one is within the compression deviation of the line to it.
#[derive(Debug, Default)]
pub struct PointFilter {
    tags: HashMap<i64, Door>,
}

#[derive(Debug)]
struct Door {
    reported: Row,
    kept: Row,
    held: Option<Row>,
    /// Range of slopes, value per ns, of lines from `kept` that pass all later points within the deviation.
    slopes: (f64, f64),
}

const OPEN: (f64, f64) = (f64::NEG_INFINITY, f64::INFINITY);

impl PointFilter {
    /// Adds a point, and pushes the points that must be stored to `out`.
    pub(crate) fn push(&mut self, tag: &Tag, point: Row, out: &mut Vec<Row>) {
        let plain = Status(point.3).is_good() && point.2.is_finite();
        let Some(door) = self.tags.get_mut(&tag.number) else {
            self.tags.insert(tag.number, Door { reported: point, kept: point, held: None, slopes: OPEN });
            return out.push(point);
        };
        if point.1 <= door.reported.1 {
            // A late point says nothing about the course of the newest ones, so store it.
            return out.push(point);
        }
        let same_quality = point.3 == door.reported.3;
        // A negative deviation stands for none and is less than every difference.
        if same_quality && plain && (point.2 - door.reported.2).abs() <= tag.exception_deviation {
            return;
        }
        door.reported = point;
        if !plain || !same_quality || tag.compression_deviation < 0.0 {
            // The line ends at the held point, which must be stored before the point that begins the next line.
            out.extend(door.held.take());
            (door.kept, door.slopes) = (point, OPEN);
            return out.push(point);
        }
        door.swing(point, tag.compression_deviation, out);
    }

    /// Takes the points of all tags that are held back.
    pub(crate) fn drain(&mut self) -> Vec<Row> {
        self.tags.drain().filter_map(|(_, door)| door.held).collect()
    }

    /// Ends the filter: returns the points that the swinging door held back, which must be stored.
    ///
    /// # Errors
    /// An Arrow kernel failed.
    pub fn finish(&mut self) -> Result<RecordBatch> {
        rows(self.drain())
    }
}

impl Door {
    fn swing(&mut self, point: Row, deviation: f64, out: &mut Vec<Row>) {
        let slope = |from: Row, value: f64| (value - from.2) / (point.1 - from.1) as f64;
        let direct = slope(self.kept, point.2);
        let outside = direct < self.slopes.0 || direct > self.slopes.1;
        if let Some(held) = self.held.filter(|_| outside) {
            out.push(held);
            // The next line begins at the held point. The current point limits its slopes below.
            (self.kept, self.slopes) = (held, OPEN);
        }
        let (low, high) = (slope(self.kept, point.2 - deviation), slope(self.kept, point.2 + deviation));
        self.slopes = (self.slopes.0.max(low), self.slopes.1.min(high));
        self.held = Some(point);
    }
}

/// The columns of filtered points.
pub(crate) fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("tag", ArrowType::Int64, false),
        Field::new("time", nanoseconds(), false),
        Field::new("value", ArrowType::Float64, true),
        Field::new("status", ArrowType::UInt32, false),
    ]))
}

pub(crate) fn rows(rows: Vec<Row>) -> Result<RecordBatch> {
    let values: Float64Array = rows.iter().map(|row| (!row.2.is_nan()).then_some(row.2)).collect();
    let times = TimestampNanosecondArray::from_iter_values(rows.iter().map(|row| row.1)).with_timezone("UTC");
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from_iter_values(rows.iter().map(|row| row.0))),
        Arc::new(times),
        Arc::new(values),
        Arc::new(UInt32Array::from_iter_values(rows.iter().map(|row| row.3))),
    ];
    RecordBatch::try_new(schema(), columns).map_err(HistorianError::compute("filtering points"))
}

/// Whether a tag has a filter.
pub(crate) fn filters(tag: &Tag) -> bool {
    tag.exception_deviation >= 0.0 || tag.compression_deviation >= 0.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::Settings;
    use crate::tag::DataType;
    use proptest::prelude::*;

    fn tag(exception_deviation: f64, compression_deviation: f64) -> Tag {
        Tag {
            number: 1,
            name: "t".into(),
            unit: String::new(),
            description: String::new(),
            group: "main".into(),
            data_type: DataType::Float,
            settings: Settings::default(),
            exception_deviation,
            compression_deviation,
        }
    }

    fn pass(tag: &Tag, values: &[f64]) -> Vec<Row> {
        let (mut filter, mut out) = (PointFilter::default(), Vec::new());
        for (time, value) in values.iter().enumerate() {
            filter.push(tag, (1, time as i64 * 1_000, *value, 0), &mut out);
        }
        out.extend(filter.drain());
        out
    }

    #[test]
    fn a_deviation_of_zero_keeps_changes_alone() {
        let kept: Vec<f64> = pass(&tag(0.0, -1.0), &[1.0, 1.0, 2.0, 2.0, 1.0]).iter().map(|row| row.2).collect();
        assert_eq!(kept, [1.0, 2.0, 1.0]);
    }

    #[test]
    fn a_straight_line_needs_its_ends_alone() {
        let line: Vec<f64> = (0..100).map(f64::from).collect();
        assert_eq!(pass(&tag(-1.0, 0.01), &line).len(), 2);
    }

    proptest! {
        #[test]
        fn the_swinging_door_never_errs_by_more_than_its_deviation(values in prop::collection::vec(-10.0..10.0, 2..200)) {
            let kept = pass(&tag(-1.0, 0.5), &values);
            for (index, value) in values.iter().enumerate() {
                let time = index as i64 * 1_000;
                let after = kept.partition_point(|row| row.1 < time);
                let (a, b) = (kept[after.saturating_sub(1)], kept[after]);
                let share = if b.1 == a.1 { 1.0 } else { (time - a.1) as f64 / (b.1 - a.1) as f64 };
                let line = a.2 + (b.2 - a.2) * share;
                prop_assert!((line - value).abs() <= 0.5 + 1e-9, "{line} for {value}");
            }
        }
    }
}
