//! Computes one aggregate of one series.

use super::aggregate::{Aggregate, Family, Settings};
use super::frame::{Frame, Output, TooManyValues};
use super::grid::Grid;
use super::interpolated::InterpolatedFold;
use super::raw::RawFold;
use super::segment::Segment;
use super::simple::SimpleFold;
use super::status::{Point, Status};

/// Computes one aggregate of one series, whose points are pushed in pieces.
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
    /// Starts a computation.
    pub fn new(aggregate: Aggregate, settings: Settings, grid: Grid) -> Self {
        let family = aggregate.family(&settings);
        let shift = i64::from(grid.backward() && family == Family::Raw);
        let fold = match family {
            Family::Raw => Fold::Raw(Box::new(RawFold::new(aggregate, &settings))),
            Family::Simple => Fold::Simple(Box::new(SimpleFold::new(aggregate, &settings))),
            Family::Interpolated => Fold::Interpolated(Box::default()),
        };
        // Reserve the exact size, so that the results are never moved. Pages are not touched before they are written.
        let out = Output {
            times: Vec::with_capacity(grid.count()),
            values: Vec::with_capacity(grid.count()),
            statuses: Vec::with_capacity(grid.count()),
        };
        let frame = Frame { grid, aggregate, settings, first: None, last: None, shift, out };
        Self { frame, fold }
    }

    /// Adds the next points, in ascending time: those of the range; before it, enough for the bounding values (the last
    /// usable point, or the last two for sloped extrapolation); after it, those up to the next usable one. `statuses`
    /// is `None` if all are Good.
    ///
    /// # Errors
    /// An interval has more values than `Percentile` and `Distinct` can keep.
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

    /// Whether later points cannot change a result: all points of the range are known, and a usable one after it.
    pub fn done(&self) -> bool {
        let count = self.frame.grid.count();
        match &self.fold {
            Fold::Raw(fold) => fold.passed(count),
            Fold::Simple(fold) => fold.passed(count),
            Fold::Interpolated(fold) => fold.passed(count),
        }
    }

    /// Adds a segment instead of its points. Returns false without any effect if the segment crosses an interval
    /// boundary or the aggregate needs the points, which the caller must then push.
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

    /// Ends the computation and returns the results in order of time.
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

/// The relevant part of points that are all Good: those in the range, the last two up to its start and the first after
/// it.
fn near<'a>(frame: &mut Frame, times: &'a [i64], values: &'a [f64]) -> (&'a [i64], &'a [f64]) {
    let Some(first) = times.first() else { return (times, values) };
    // The data begin here, even if points before the range are left out below: the Partial bit depends on this time.
    frame.first.get_or_insert(*first);
    let (low, high) = (frame.grid.low(), frame.grid.high());
    let start = times.partition_point(|time| *time <= low).saturating_sub(2);
    let end = (times.partition_point(|time| *time <= high) + 1).min(times.len());
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
