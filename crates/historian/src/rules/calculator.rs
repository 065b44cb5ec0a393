//! One aggregate of one series.

use super::aggregate::{Aggregate, Family, Settings};
use super::grid::Grid;
use super::interpolated::InterpolatedFold;
use super::raw::RawFold;
use super::segment::Segment;
use super::simple::SimpleFold;
use super::status::{Point, Status};

/// The most values of one interval that `Percentile` and `Distinct` keep.
pub const VALUES_PER_INTERVAL_MAX: usize = 1 << 25;

/// `Percentile` or `Distinct` of more values than are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "an interval holds more than {VALUES_PER_INTERVAL_MAX} values, which this aggregate would have to keep: \
     shorten the interval"
)]
pub struct TooManyValues;

/// Results: one per interval, or per time asked for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Output {
    /// Nanoseconds since the Unix epoch.
    pub times: Vec<i64>,
    /// Results; NaN where there is none.
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

    /// The same results, at most `rows` at a time.
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

    /// Turns the order around.
    pub fn reverse(&mut self) {
        self.times.reverse();
        self.values.reverse();
        self.statuses.reverse();
    }
}

/// What every way of computing shares: the request, and where the data begin and end.
#[derive(Debug)]
pub(crate) struct Frame {
    pub grid: Grid,
    pub aggregate: Aggregate,
    pub settings: Settings,
    /// Time of the first point there is.
    pub first: Option<i64>,
    /// Time of the last point so far.
    pub last: Option<i64>,
    /// Added to boundaries in comparisons with points: backwards, an interval holds its later end.
    pub shift: i64,
    pub out: Output,
}

impl Frame {
    /// Whether interval `index` lies outside of the data. `ended` says that no point follows.
    pub(crate) fn no_data(&self, index: usize, ended: bool) -> bool {
        let (Some(first), Some(last)) = (self.first, self.last) else { return true };
        let before = self.grid.boundary(index + 1) + self.shift <= first;
        before || ended && self.grid.boundary(index) + self.shift > last
    }

    pub(crate) fn emit_no_data(&mut self, index: usize, ended: bool) {
        self.emit(index, None, f64::NAN, Status::BAD_NO_DATA, ended);
    }

    /// Puts the result of interval `index`, stamped with `time` where that is not the interval's own stamp.
    ///
    /// The Partial bit says that the data begin or end inside the interval; by the samples, end inside the last one.
    pub(crate) fn emit(&mut self, index: usize, time: Option<i64>, value: f64, status: Status, ended: bool) {
        let (start, end) = (self.grid.boundary(index), self.grid.boundary(index + 1));
        let begins_inside = self.first.is_some_and(|first| start < first && first < end);
        let may_end = ended && (index + 1 == self.grid.count() || !self.settings.sample_results);
        let ends_inside = may_end && self.last.is_some_and(|last| start <= last && last < end);
        let partial = (begins_inside || ends_inside) && self.aggregate != Aggregate::Interpolative;
        let status = status.with(if partial { Status::PARTIAL } else { 0 });
        self.out.push(time.unwrap_or_else(|| self.grid.stamp(index)), value, status);
    }

    pub(crate) fn saw(&mut self, time: i64) {
        self.first.get_or_insert(time);
        self.last = Some(time);
    }
}

/// Computes one aggregate of one series that is given piece by piece.
#[derive(Debug)]
pub struct Calculator {
    frame: Frame,
    fold: Fold,
}

#[derive(Debug)]
enum Fold {
    Raw(Box<RawFold>),
    Simple(Box<SimpleFold>),
    Interpolated(Box<InterpolatedFold>),
}

impl Calculator {
    /// Begins.
    pub fn new(aggregate: Aggregate, settings: Settings, grid: Grid) -> Self {
        let family = aggregate.family(&settings);
        let shift = i64::from(grid.backward() && family == Family::Raw);
        let fold = match family {
            Family::Raw => Fold::Raw(Box::new(RawFold::new(aggregate, &settings))),
            Family::Simple => Fold::Simple(Box::new(SimpleFold::new(aggregate, &settings))),
            Family::Interpolated => Fold::Interpolated(Box::default()),
        };
        // Room for exactly what there will be: it is not touched before, and never moved.
        let out = Output {
            times: Vec::with_capacity(grid.count()),
            values: Vec::with_capacity(grid.count()),
            statuses: Vec::with_capacity(grid.count()),
        };
        let frame = Frame { grid, aggregate, settings, first: None, last: None, shift, out };
        Self { frame, fold }
    }

    /// Takes the next points, in ascending time: those of the range, before them enough for the bounding values (the last
    /// usable point, with sloped extrapolation two of them), after them those up to the next usable one. `statuses` is `None`
    /// where all are Good.
    ///
    /// # Errors
    /// More values in one interval than `Percentile` and `Distinct` keep.
    ///
    /// # Panics
    /// If the slices differ in length.
    pub fn push(&mut self, times: &[i64], values: &[f64], statuses: Option<&[u32]>) -> Result<(), TooManyValues> {
        assert_eq!(times.len(), values.len());
        assert!(statuses.is_none_or(|statuses| statuses.len() == times.len()));
        let good = statuses.is_none_or(|statuses| statuses.iter().all(|status| Status(*status).is_good()))
            && !values.iter().any(|value| value.is_nan());
        let frame = &mut self.frame;
        if good {
            let (times, values) = near(frame, times, values);
            return match &mut self.fold {
                Fold::Raw(fold) => fold.push_good(frame, times, values),
                Fold::Simple(fold) => {
                    fold.push_good(frame, times, values);
                    Ok(())
                }
                Fold::Interpolated(fold) => {
                    fold.push_good(frame, times, values);
                    Ok(())
                }
            };
        }
        for (row, (time, value)) in times.iter().zip(values).enumerate() {
            let status = statuses.map_or(Status::GOOD, |statuses| Status(statuses[row]));
            let point = Point { time: *time, value: *value, status };
            match &mut self.fold {
                Fold::Raw(fold) => fold.push(frame, point)?,
                Fold::Simple(fold) => fold.push(frame, point),
                Fold::Interpolated(fold) => fold.push(frame, point),
            }
        }
        Ok(())
    }

    /// Whether no later point can change a result: those of the range are known, and a usable one behind it.
    pub fn done(&self) -> bool {
        let count = self.frame.grid.count();
        match &self.fold {
            Fold::Raw(fold) => fold.passed(count),
            Fold::Simple(fold) => fold.passed(count),
            Fold::Interpolated(fold) => fold.passed(count),
        }
    }

    /// Takes a segment in the place of its points. Refused, with nothing done, where it does not lie within one interval
    /// or the aggregate needs the points: then push them.
    #[must_use]
    pub fn push_segment(&mut self, segment: &Segment) -> bool {
        let frame = &mut self.frame;
        if !frame.aggregate.takes_segments(&frame.settings) {
            return false;
        }
        match &mut self.fold {
            Fold::Raw(fold) => fold.segment(frame, segment),
            Fold::Simple(fold) => fold.segment(frame, segment),
            Fold::Interpolated(fold) => fold.segment(frame, segment),
        }
    }

    /// The results that are known by now, in the order of time.
    pub fn take(&mut self) -> Output {
        std::mem::take(&mut self.frame.out)
    }

    /// The results that are left once there are no more points, in the order of time.
    pub fn finish(mut self) -> Output {
        let frame = &mut self.frame;
        match &mut self.fold {
            Fold::Raw(fold) => fold.finish(frame),
            Fold::Simple(fold) => fold.finish(frame),
            Fold::Interpolated(fold) => fold.finish(frame),
        }
        self.frame.out
    }
}

/// Of points that are all Good those that matter: in the range, the last two before it and the first behind it.
fn near<'a>(frame: &mut Frame, times: &'a [i64], values: &'a [f64]) -> (&'a [i64], &'a [f64]) {
    let Some(first) = times.first() else { return (times, values) };
    frame.first.get_or_insert(*first);
    let (low, high) = (frame.grid.low(), frame.grid.high());
    let start = times.partition_point(|time| *time < low).saturating_sub(2);
    let end = (times.partition_point(|time| *time <= high) + 1).clamp(start + 1, times.len());
    (&times[start..end], &values[start..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pieces_of_results_are_all_of_them_in_order() {
        let mut output = Output::default();
        for time in 0..10 {
            output.push(time, time as f64 / 2.0, Status(time as u32));
        }
        for rows in [1, 3, 5, 10, 11] {
            let mut joined = Output::default();
            for piece in output.clone().pieces(rows) {
                assert!((1..=rows).contains(&piece.times.len()));
                joined.times.extend(piece.times);
                joined.values.extend(piece.values);
                joined.statuses.extend(piece.statuses);
            }
            assert_eq!(joined, output);
        }
        assert_eq!(Output::default().pieces(4).count(), 0);
    }

    #[test]
    fn results_have_room_for_all_intervals_and_never_more() {
        let grid = Grid::new(0, 1_000_000, 1).unwrap();
        let output = Calculator::new(Aggregate::Count, Settings::default(), grid).finish();
        assert_eq!((output.times.len(), output.times.capacity()), (1_000_000, 1_000_000));
    }
}
