//! State that all ways of computing an aggregate share: the request and its results.

use super::aggregate::{Aggregate, Settings};
use super::grid::Grid;
use super::status::Status;

/// Maximum number of values of one interval that `Percentile` and `Distinct` keep.
pub const VALUES_PER_INTERVAL_MAX: usize = 1 << 25;

/// `Percentile` or `Distinct` of more values than can be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "an interval holds more than {VALUES_PER_INTERVAL_MAX} values, which this aggregate would have to keep: \
     shorten the interval"
)]
pub struct TooManyValues;

/// Results: one per interval, or per requested time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Output {
    /// Nanoseconds since the Unix epoch.
    pub times: Vec<i64>,
    /// Results; NaN if there is none.
    pub values: Vec<f64>,
    /// OPC UA status codes.
    pub statuses: Vec<u32>,
}

impl Output {
    pub(crate) fn push(&mut self, time: i64, value: f64, status: Status) {
        self.times.push(time);
        self.values.push(if status.is_bad() { f64::NAN } else { value });
        self.statuses.push(status.0);
    }

    /// Splits the results into pieces of at most `rows`.
    pub(crate) fn pieces(self, rows: usize) -> impl Iterator<Item = Self> {
        (0..self.times.len()).step_by(rows).map(move |start| {
            let range = start..self.times.len().min(start + rows);
            Self {
                times: self.times[range.clone()].to_vec(),
                values: self.values[range.clone()].to_vec(),
                statuses: self.statuses[range].to_vec(),
            }
        })
    }

    /// Reverses the order.
    pub fn reverse(&mut self) {
        self.times.reverse();
        self.values.reverse();
        self.statuses.reverse();
    }
}

/// State that all ways of computing share: the request, its results, and where the data begin and end.
#[derive(Debug)]
pub(crate) struct Frame {
    pub grid: Grid,
    pub aggregate: Aggregate,
    pub settings: Settings,
    /// Time of the first point.
    pub first: Option<i64>,
    /// Time of the last point so far.
    pub last: Option<i64>,
    /// Added to boundaries in comparisons with points: 1 for aggregates over values only in a backward request, whose
    /// intervals include their later end; otherwise 0.
    pub shift: i64,
    pub out: Output,
}

impl Frame {
    /// Whether interval `index` is outside of the data. `ended` is whether there are no further points.
    pub(crate) fn no_data(&self, index: usize, ended: bool) -> bool {
        let (Some(first), Some(last)) = (self.first, self.last) else { return true };
        let before = self.grid.boundary(index + 1) + self.shift <= first;
        before || ended && self.grid.boundary(index) + self.shift > last
    }

    pub(crate) fn emit_no_data(&mut self, index: usize, ended: bool) {
        self.emit(index, None, f64::NAN, Status::BAD_NO_DATA, ended);
    }

    /// Adds the result of interval `index`. `time` replaces the timestamp of the interval.
    ///
    /// The Partial bit is set if the data begin or end inside the interval; in the sample results, an end counts only
    /// in the last interval.
    pub(crate) fn emit(&mut self, index: usize, time: Option<i64>, value: f64, status: Status, ended: bool) {
        let (start, end) = (self.grid.boundary(index), self.grid.boundary(index + 1));
        let begins_inside = self.first.is_some_and(|first| start < first && first < end + self.shift);
        let may_end = ended && (index + 1 == self.grid.count() || !self.settings.sample_results);
        let ends_inside = may_end && self.last.is_some_and(|last| start + self.shift <= last && last < end);
        let partial = (begins_inside || ends_inside) && self.aggregate != Aggregate::Interpolative;
        let status = status.with(if partial { Status::PARTIAL } else { 0 });
        self.out.push(time.unwrap_or_else(|| self.grid.stamp(index)), value, status);
    }

    pub(crate) fn saw(&mut self, time: i64) {
        self.first.get_or_insert(time);
        self.last = Some(time);
    }
}
