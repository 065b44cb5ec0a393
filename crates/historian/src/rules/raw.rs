//! Aggregates over the values of an interval only.

use std::collections::HashSet;

use super::aggregate::{Aggregate, Settings};
use super::frame::{Frame, TooManyValues, VALUES_PER_INTERVAL_MAX};
use super::segment::Segment;
use super::simple::{Extreme, Replaces, WorstQualityCount};
use super::status::{Class, Point, Status};

/// Counts, averages, extremes, ends and deviations.
#[derive(Debug)]
pub(crate) struct RawFold {
    /// Index of the interval being filled.
    index: usize,
    sums: Sums,
    work: Statistics,
    /// The last usable point.
    usable: Option<Point>,
}

/// The statistics that must be updated for each value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Statistics {
    Counts,
    Sum,
    Moments,
    SampleMoments,
    Extremes,
    Transitions,
    Worst,
    Values,
    Distinct,
}

#[derive(Debug, Default)]
struct Sums {
    total: u64,
    good: u64,
    bad: u64,
    /// The values in `bad` that are Uncertain and count as Bad.
    doubtful: u64,
    sum: f64,
    /// Sum and sum of squares of the Good values minus `origin`.
    moments: (f64, f64),
    origin: Option<f64>,
    /// Number of values in `moments`; the sample results leave some out.
    moment_count: u64,
    moment_non_good: bool,
    least: Option<Extreme>,
    greatest: Option<Extreme>,
    /// Minimum and maximum of the Uncertain values.
    uncertain: Option<(f64, f64)>,
    first: Option<Point>,
    last: Option<Point>,
    first_good: Option<f64>,
    last_good: Option<f64>,
    skipped_before: bool,
    skipped_after: bool,
    transitions: u64,
    previous: Option<f64>,
    /// Whether the first value is a transition if there is none before it.
    first_is_change: bool,
    worst: WorstQualityCount,
    values: Vec<f64>,
    distinct: HashSet<u64>,
}

/// The bits of a value; both zeros have the same bits.
fn bits(value: f64) -> u64 {
    (value + 0.0).to_bits()
}

impl RawFold {
    pub(crate) fn new(aggregate: Aggregate, settings: &Settings) -> Self {
        use Aggregate::*;
        let work = match aggregate {
            Average => Statistics::Sum,
            Minimum | Maximum | MinimumActualTime | MaximumActualTime | Range => Statistics::Extremes,
            NumberOfTransitions => Statistics::Transitions,
            WorstQuality => Statistics::Worst,
            StandardDeviationSample | StandardDeviationPopulation if settings.sample_results => {
                Statistics::SampleMoments
            }
            StandardDeviationSample | StandardDeviationPopulation | VarianceSample | VariancePopulation => {
                Statistics::Moments
            }
            Percentile => Statistics::Values,
            Distinct => Statistics::Distinct,
            _ => Statistics::Counts,
        };
        Self { index: 0, sums: Sums::default(), work, usable: None }
    }

    /// Closes the intervals that end before `time`; returns whether `time` is in an interval.
    fn reach(&mut self, frame: &mut Frame, time: i64) -> bool {
        frame.saw(time);
        let time = time - frame.shift;
        while self.index < frame.grid.count() && time >= frame.grid.boundary(self.index + 1) {
            self.close(frame, false);
        }
        self.index < frame.grid.count() && time >= frame.grid.low()
    }

    pub(crate) fn push(&mut self, frame: &mut Frame, point: Point) -> Result<(), TooManyValues> {
        let class = point.class(frame.settings.treat_uncertain_as_bad);
        if self.reach(frame, point.time) {
            self.begin(frame);
            self.sums.meet(self.work, point, class)?;
        }
        if class.usable() {
            // Only now: `begin` takes the last usable value before this point.
            self.usable = Some(point);
        }
        Ok(())
    }

    /// At the first value of an interval, takes the last usable value before it as the previous one. In the sample
    /// results it must be Good.
    fn begin(&mut self, frame: &Frame) {
        if self.sums.total == 0 {
            let samples = frame.settings.sample_results;
            let previous = self.usable.filter(|point| !samples || point.class(true) == Class::Good);
            self.sums.previous = previous.map(|point| point.value);
            self.sums.first_is_change = !samples;
        }
    }

    /// As [`Self::push`], for points that are all Good.
    pub(crate) fn push_good(&mut self, frame: &mut Frame, times: &[i64], values: &[f64]) -> Result<(), TooManyValues> {
        let mut row = 0;
        while row < times.len() {
            let good = |row: usize| Point { time: times[row], value: values[row], status: Status::GOOD };
            if !self.reach(frame, times[row]) {
                // The point is before or after the range.
                self.usable = Some(good(row));
                row += 1;
                continue;
            }
            let boundary = frame.grid.boundary(self.index + 1) + frame.shift;
            let end = row + times[row..].partition_point(|time| *time < boundary);
            self.begin(frame);
            self.sums.meet_good(self.work, &times[row..end], &values[row..end])?;
            self.usable = Some(good(end - 1));
            // `reach` saw only the first of these points.
            frame.last = Some(times[end - 1]);
            row = end;
        }
        Ok(())
    }

    pub(crate) fn segment(&mut self, frame: &mut Frame, segment: &Segment) -> bool {
        if super::interpolated::crosses(frame, self.index, segment) {
            return false;
        }
        if self.reach(frame, segment.first_time) {
            self.begin(frame);
            self.sums.meet_segment(segment);
        }
        self.usable = Some(segment.last_point());
        frame.last = Some(segment.last_time);
        true
    }

    /// Whether all of `count` intervals are closed.
    pub(crate) fn passed(&self, count: usize) -> bool {
        self.index >= count
    }

    pub(crate) fn finish(&mut self, frame: &mut Frame) {
        while self.index < frame.grid.count() {
            self.close(frame, true);
        }
    }

    fn close(&mut self, frame: &mut Frame, ended: bool) {
        let index = self.index;
        self.index += 1;
        let mut sums = std::mem::take(&mut self.sums);
        let annotations = frame.aggregate == Aggregate::AnnotationCount && !frame.settings.sample_results;
        if annotations {
            // Annotations do not depend on where the data begin and end.
            let status = Status::GOOD.with(Status::CALCULATED);
            return frame.out.push(frame.grid.stamp(index), sums.total as f64, status);
        }
        let result = if frame.no_data(index, ended) { None } else { sums.result(frame, index) };
        match result {
            Some((time, value, status)) => frame.emit(index, time, value, status, ended),
            None => frame.emit_no_data(index, ended),
        }
    }
}

impl Sums {
    fn meet(&mut self, work: Statistics, point: Point, class: Class) -> Result<(), TooManyValues> {
        let good = point.class(true) == Class::Good;
        self.total += 1;
        self.good += u64::from(good);
        self.bad += u64::from(class == Class::Bad);
        self.doubtful += u64::from(class == Class::Bad && point.status.is_uncertain());
        if work == Statistics::SampleMoments {
            // In the sample results, a value counts only if another follows it in the interval.
            if let Some(last) = self.last {
                self.meet_moment(last.value, last.class(true) == Class::Good);
            }
        }
        self.first.get_or_insert(point);
        self.last = Some(point);
        self.skipped_after = !good;
        if !good {
            self.skipped_before |= self.first_good.is_none();
        } else {
            self.first_good.get_or_insert(point.value);
            self.last_good = Some(point.value);
        }
        match work {
            Statistics::Worst => self.worst.meet(point.status),
            Statistics::Transitions if class.usable() => self.meet_change(point.value),
            Statistics::Extremes if class == Class::Uncertain => {
                let (least, greatest) = self.uncertain.get_or_insert((point.value, point.value));
                (*least, *greatest) = (least.min(point.value), greatest.max(point.value));
            }
            _ if !good => {}
            Statistics::Sum => self.sum += point.value,
            Statistics::Moments => self.meet_moment(point.value, true),
            Statistics::Extremes => {
                Extreme::meet(&mut self.least, point, f64::lt);
                Extreme::meet(&mut self.greatest, point, f64::gt);
            }
            Statistics::Values => {
                self.values.push(point.value);
                check(self.values.len())?;
            }
            Statistics::Distinct => {
                self.distinct.insert(bits(point.value));
                check(self.distinct.len())?;
            }
            Statistics::Counts | Statistics::SampleMoments | Statistics::Transitions => {}
        }
        Ok(())
    }

    fn meet_change(&mut self, value: f64) {
        self.transitions += u64::from(self.previous.map_or(self.first_is_change, |previous| previous != value));
        self.previous = Some(value);
    }

    fn meet_moment(&mut self, value: f64, good: bool) {
        if good {
            // Sums of squares lose digits if the values are far from zero, so count from the first value.
            let away = value - *self.origin.get_or_insert(value);
            self.moments = (self.moments.0 + away, self.moments.1 + away * away);
            self.moment_count += 1;
        } else {
            self.moment_non_good = true;
        }
    }

    /// As [`Self::meet`], for points that are all Good.
    fn meet_good(&mut self, work: Statistics, times: &[i64], values: &[f64]) -> Result<(), TooManyValues> {
        match work {
            Statistics::Counts => {}
            Statistics::Sum => values.iter().for_each(|value| self.sum += value),
            Statistics::Moments => values.iter().for_each(|value| self.meet_moment(*value, true)),
            _ => {
                for (time, value) in times.iter().zip(values) {
                    let point = Point { time: *time, value: *value, status: Status::GOOD };
                    self.meet(work, point, Class::Good)?;
                }
                return Ok(());
            }
        }
        let good = |row: usize| Point { time: times[row], value: values[row], status: Status::GOOD };
        self.meet_ends(times.len() as u64, good(0), good(times.len() - 1));
        Ok(())
    }

    fn meet_ends(&mut self, count: u64, first: Point, last: Point) {
        self.total += count;
        self.good += count;
        self.first.get_or_insert(first);
        self.last = Some(last);
        self.first_good.get_or_insert(first.value);
        self.last_good = Some(last.value);
        self.skipped_after = false;
    }

    fn meet_segment(&mut self, segment: &Segment) {
        // Adds every statistic of the segment. Those that were not read are zero, and the aggregate does not use them.
        self.sum += segment.sum;
        let mean = segment.sum / segment.count as f64;
        let away = mean - *self.origin.get_or_insert(mean);
        // The squares around `origin` are those around the mean plus count x (mean - origin)^2.
        let count = segment.count as f64;
        self.moments = (self.moments.0 + count * away, self.moments.1 + segment.squares + count * away * away);
        self.moment_count += segment.count;
        let mut one = |least: bool, time: i64, value: f64, again: bool| {
            let (held, beats): (_, Replaces) =
                if least { (&mut self.least, f64::lt) } else { (&mut self.greatest, f64::gt) };
            Extreme::meet(held, Point { time, value, status: Status::GOOD }, beats);
            if let Some(held) = held.as_mut().filter(|held| held.value == value) {
                held.again |= again;
            }
        };
        one(true, segment.min_time, segment.min, segment.min_again);
        one(false, segment.max_time, segment.max, segment.max_again);
        self.meet_change(segment.first);
        self.transitions += segment.transitions;
        self.previous = Some(segment.last);
        self.worst.meet(Status::GOOD);
        self.meet_ends(segment.count, segment.first_point(), segment.last_point());
    }

    /// Time (if not that of the interval), value and status; `None` without data from which to compute them.
    fn result(&mut self, frame: &Frame, index: usize) -> Option<(Option<i64>, f64, Status)> {
        use Aggregate::*;
        let calculated = Status::GOOD.with(Status::CALCULATED);
        let code = self.code(&frame.settings);
        // A Bad result is not calculated, so it does not get that bit.
        let counted = if code.is_bad() { code } else { code.with(Status::CALCULATED) };
        let own = |point: Point| (Some(point.time), point.value, point.status);
        Some(match frame.aggregate {
            Count => (None, self.good as f64, counted),
            AnnotationCount => (None, self.total as f64, calculated),
            NumberOfTransitions => (None, self.transitions as f64, counted),
            Distinct => (None, self.distinct.len() as f64, counted),
            Start => own(self.first?),
            End => own(self.last?),
            Delta if self.total == 0 || self.good == 0 && !frame.settings.sample_results => return None,
            Delta => self.delta(),
            WorstQuality => {
                let (value, status) = self.worst.result()?;
                (None, value, status)
            }
            _ if self.good == 0 => return None,
            Average => (None, self.sum / self.good as f64, counted),
            Percentile => (None, self.percentile(frame.settings.percent), counted),
            StandardDeviationSample | StandardDeviationPopulation | VarianceSample | VariancePopulation => {
                return self.deviation(frame);
            }
            _ => return self.extreme(frame, index),
        })
    }

    /// The status of a result by number of values. Uncertain values that count as Bad make it Bad only if there are too
    /// few Good ones.
    fn code(&self, settings: &Settings) -> Status {
        let code = |bad: u64| settings.code_of_parts(self.good as f64, bad as f64, self.total as f64);
        match code(self.bad - self.doubtful) {
            Status::UNCERTAIN_SUB_NORMAL => code(self.bad),
            code => code,
        }
    }

    fn delta(&self) -> (Option<i64>, f64, Status) {
        let skipped = self.skipped_before || self.skipped_after;
        let code = if skipped { Status::UNCERTAIN_SUB_NORMAL } else { Status::GOOD };
        let value = match (self.first_good, self.last_good) {
            (Some(first), Some(last)) => last - first,
            _ => 0.0,
        };
        (None, value, code.with(Status::CALCULATED))
    }

    fn extreme(&self, frame: &Frame, index: usize) -> Option<(Option<i64>, f64, Status)> {
        use Aggregate::*;
        let (least, greatest) = (self.least?, self.greatest?);
        let (wants_least, wants_greatest) = match frame.aggregate {
            Minimum | MinimumActualTime => (true, false),
            Maximum | MaximumActualTime => (false, true),
            _ => (true, true),
        };
        // An Uncertain value beyond the result makes the result Uncertain.
        let beyond = self
            .uncertain
            .is_some_and(|(low, high)| wants_least && low < least.value || wants_greatest && high > greatest.value);
        let code = if self.bad > 0 || beyond { Status::UNCERTAIN_SUB_NORMAL } else { Status::GOOD };
        if frame.aggregate == Range {
            return Some((None, greatest.value - least.value, code.with(Status::CALCULATED)));
        }
        let found = if wants_least { least } else { greatest };
        let again = if found.again { Status::MULTIPLE_VALUES } else { 0 };
        if matches!(frame.aggregate, MinimumActualTime | MaximumActualTime) {
            return Some((Some(found.time), found.value, code.with(again)));
        }
        let at_stamp = found.time == frame.grid.stamp(index);
        let calculated = if at_stamp { 0 } else { Status::CALCULATED };
        Some((None, found.value, code.with(again | calculated)))
    }

    fn deviation(&self, frame: &Frame) -> Option<(Option<i64>, f64, Status)> {
        use Aggregate::*;
        let sample_results = frame.settings.sample_results;
        let count = self.moment_count as f64;
        if self.moment_count == 0 {
            return None;
        }
        // Rounding may leave a difference below zero, whose root would be NaN.
        let squares = (self.moments.1 - self.moments.0 * self.moments.0 / count).max(0.0);
        let of_sample = matches!(frame.aggregate, StandardDeviationSample | VarianceSample);
        let value = if sample_results {
            // In the sample results, the variant named "sample" is the square of the other.
            if of_sample { squares / count } else { (squares / count).sqrt() }
        } else {
            let divisor = if of_sample { count - 1.0 } else { count };
            // The divisor of a sample of one value would be zero.
            let variance = if self.moment_count == 1 { 0.0 } else { squares / divisor };
            let squared = matches!(frame.aggregate, VarianceSample | VariancePopulation);
            if squared { variance } else { variance.sqrt() }
        };
        let ignored = if sample_results { self.moment_non_good } else { self.total > self.good };
        let code = if ignored { Status::UNCERTAIN_SUB_NORMAL } else { Status::GOOD };
        Some((None, value, code.with(Status::CALCULATED)))
    }

    /// Interpolates linearly between the values next to the rank: type 7 of Hyndman and Fan (1996).
    fn percentile(&mut self, percent: f64) -> f64 {
        let values = &mut self.values;
        let rank = percent.clamp(0.0, 100.0) / 100.0 * (values.len() - 1) as f64;
        // Two neighbouring values suffice, so nothing is sorted. `values` is not empty: without a Good value, `result`
        // returns before.
        let (_, low, above) = values.select_nth_unstable_by(rank as usize, f64::total_cmp);
        let (low, part) = (*low, rank.fract());
        if part == 0.0 {
            return low;
        }
        let high = above.iter().copied().fold(f64::INFINITY, f64::min);
        low + (high - low) * part
    }
}

fn check(count: usize) -> Result<(), TooManyValues> {
    if count > VALUES_PER_INTERVAL_MAX { Err(TooManyValues) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_may_hold_as_many_values_as_are_kept_and_no_more() {
        assert_eq!(check(VALUES_PER_INTERVAL_MAX), Ok(()));
        assert_eq!(check(VALUES_PER_INTERVAL_MAX + 1), Err(TooManyValues));
    }
}
