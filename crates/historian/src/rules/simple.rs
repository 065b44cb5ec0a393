//! Aggregates with simple bounding values: every point counts, and the time after a Bad point is Bad.

use super::aggregate::{Aggregate, Settings};
use super::bounds::{line, simple_bound};
use super::frame::Frame;
use super::interpolated::{area, crosses, seconds};
use super::segment::Segment;
use super::status::{Class, Point, Status};

/// `TimeAverage2`, `Total2`, `Minimum2` and its kin, durations, percents, bounds and `WorstQuality2`.
#[derive(Debug)]
pub(crate) struct SimpleFold {
    before: Option<Point>,
    /// Index of the next boundary; interval `next - 1` is being filled.
    next: usize,
    start: Point,
    sums: Sums,
    extremes: bool,
    /// Whether the quality of a region is that at its start, regardless of the next point.
    by_start: bool,
}

/// Statistics of the current interval. Durations in ns, areas in value x s.
#[derive(Debug, Default)]
struct Sums {
    area: f64,
    covered: i64,
    good: i64,
    bad: i64,
    total: i64,
    zero: i64,
    non_zero: i64,
    least: Option<Extreme>,
    greatest: Option<Extreme>,
    worst: WorstQualityCount,
    /// Count, sum and sum of squares, minus `origin`, of the values at the start of Good regions; for the sample
    /// results.
    moments: (u64, f64, f64),
    origin: Option<f64>,
    non_good: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Extreme {
    pub time: i64,
    pub value: f64,
    pub status: Status,
    pub again: bool,
}

impl Extreme {
    /// Replaces the extreme by `point` if `beats` says so.
    pub(crate) fn meet(held: &mut Option<Self>, point: Point, beats: Replaces) {
        match held {
            Some(held) if point.value == held.value => held.again = true,
            Some(held) if !beats(&point.value, &held.value) => {}
            _ => *held = Some(Self { time: point.time, value: point.value, status: point.status, again: false }),
        }
    }
}

/// Whether the first value replaces the second as the extreme.
pub(crate) type Replaces = fn(&f64, &f64) -> bool;

/// The worst quality so far, and how many points have it.
#[derive(Debug, Default)]
pub(crate) struct WorstQualityCount {
    code: Option<Status>,
    count: u64,
}

impl WorstQualityCount {
    pub(crate) fn meet(&mut self, status: Status) {
        // The severities 2 and 3 are both Bad.
        let severity = |status: Status| (status.0 >> 30).min(2);
        match self.code {
            Some(code) if severity(code) > severity(status) => {}
            Some(code) if severity(code) == severity(status) => self.count += 1,
            _ => (self.code, self.count) = (Some(status.code()), 1),
        }
    }

    /// The status code as a value, and the status of the result; `None` without points.
    pub(crate) fn result(&self) -> Option<(f64, Status)> {
        let code = self.code?;
        let several = !code.is_good() && self.count > 1;
        let bits = Status::CALCULATED | if several { Status::MULTIPLE_VALUES } else { 0 };
        // Any Good code has the value zero.
        let code = if code.is_good() { Status::GOOD } else { code };
        Some((f64::from(code.0), Status::GOOD.with(bits)))
    }
}

/// A part of an interval between neighbouring points.
struct Region {
    start: i64,
    end: i64,
    from: f64,
    to: f64,
    class: Class,
}

const NO_DATA: Point = Point { time: 0, value: f64::NAN, status: Status::BAD_NO_DATA };

impl SimpleFold {
    pub(crate) fn new(aggregate: Aggregate, settings: &Settings) -> Self {
        use Aggregate::*;
        let extremes = matches!(aggregate, Minimum2 | Maximum2 | MinimumActualTime2 | MaximumActualTime2 | Range2);
        let slopes = extremes || matches!(aggregate, TimeAverage2 | Total2);
        let by_start = settings.stepped || !slopes;
        Self { before: None, next: 0, start: NO_DATA, sums: Sums::default(), extremes, by_start }
    }

    pub(crate) fn push(&mut self, frame: &mut Frame, point: Point) {
        frame.saw(point.time);
        self.advance(frame, Some(point), point.time, false);
        if self.inside(frame) {
            self.meet(frame, point);
        }
        self.before = Some(point);
    }

    fn inside(&self, frame: &Frame) -> bool {
        self.next >= 1 && self.next <= frame.grid.count()
    }

    /// As [`Self::push`], for points that are all Good.
    pub(crate) fn push_good(&mut self, frame: &mut Frame, times: &[i64], values: &[f64]) {
        use Aggregate::*;
        let good = |row: usize| Point { time: times[row], value: values[row], status: Status::GOOD };
        let in_bulk = matches!(
            frame.aggregate,
            TimeAverage2
                | Total2
                | StartBound
                | EndBound
                | DeltaBounds
                | DurationGood
                | DurationBad
                | PercentGood
                | PercentBad
        );
        let mut row = 0;
        while row < times.len() {
            self.push(frame, good(row));
            row += 1;
            if !in_bulk {
                continue;
            }
            // This includes points before the range, whose sums are dropped. After the range no point satisfies it.
            let end = row + times[row..].partition_point(|time| *time < frame.grid.boundary(self.next));
            if matches!(frame.aggregate, TimeAverage2 | Total2) {
                self.sums.area += area(&times[row - 1..end], &values[row - 1..end], frame.settings.stepped);
            }
            self.good_time(times[end - 1] - times[row - 1]);
            self.before = Some(good(end - 1));
            // `push` saw only the first of these points.
            frame.last = Some(times[end - 1]);
            row = end;
        }
    }

    fn good_time(&mut self, duration: i64) {
        self.sums.covered += duration;
        self.sums.good += duration;
        self.sums.total += duration;
    }

    pub(crate) fn segment(&mut self, frame: &mut Frame, segment: &Segment) -> bool {
        if crosses(frame, self.next, segment) {
            return false;
        }
        self.push(frame, segment.first_point());
        // Outside of the range, the sums belong to no interval and are dropped.
        self.sums.area += if frame.settings.stepped { segment.area_stepped } else { segment.area_sloped };
        self.good_time(segment.last_time - segment.first_time);
        self.meet_extremes(segment);
        self.before = Some(segment.last_point());
        frame.last = Some(segment.last_time);
        true
    }

    fn meet_extremes(&mut self, segment: &Segment) {
        let mut one = |least: bool, time: i64, value: f64, again: bool| {
            let (held, beats): (_, Replaces) =
                if least { (&mut self.sums.least, f64::lt) } else { (&mut self.sums.greatest, f64::gt) };
            // The first point has been counted already.
            let seen_first = time == segment.first_time;
            if !seen_first {
                Extreme::meet(held, Point { time, value, status: Status::GOOD }, beats);
            }
            if let Some(held) = held.as_mut().filter(|held| held.value == value) {
                held.again |= again;
            }
        };
        one(true, segment.min_time, segment.min, segment.min_again);
        one(false, segment.max_time, segment.max, segment.max_again);
    }

    /// Fills up to `until`, and closes the intervals that end at or before it. `after` is the point at `until`, if
    /// there is one.
    fn advance(&mut self, frame: &mut Frame, after: Option<Point>, until: i64, ended: bool) {
        while self.next <= frame.grid.count() && frame.grid.boundary(self.next) <= until {
            let time = frame.grid.boundary(self.next);
            let exact = after.filter(|after| after.time == time);
            let bound = exact.unwrap_or_else(|| simple_bound(time, self.before, after, &frame.settings));
            // Fill before passing: the region up to the boundary belongs to the interval that is closed there.
            self.fill(frame, time, after);
            self.pass(frame, bound, exact.is_some(), ended);
        }
        self.fill(frame, until, after);
    }

    /// Adds the region that ends at `end`, between the points `before` and `after`.
    fn fill(&mut self, frame: &Frame, end: i64, after: Option<Point>) {
        if !self.inside(frame) {
            return;
        }
        let interval_start = frame.grid.boundary(self.next - 1);
        let start = self.before.map_or(interval_start, |before| before.time.max(interval_start));
        if start >= end {
            return;
        }
        let settings = &frame.settings;
        let class = |point: Point| point.class(settings.treat_uncertain_as_bad);
        let before = self.before.filter(|before| class(*before).usable());
        let Some(before) = before else {
            return self.add(&Region { start, end, from: f64::NAN, to: f64::NAN, class: Class::Bad });
        };
        let usable = after.filter(|after| class(*after).usable());
        let worst = match usable {
            Some(after) => class(before).min(class(after)),
            None => Class::Uncertain,
        };
        let begins_with_point = start == before.time;
        let quality = if settings.stepped || self.by_start && begins_with_point { class(before) } else { worst };
        let slope = usable.filter(|_| !settings.stepped);
        let value = |time: i64| match slope {
            // At a point, take its value: between values of opposite sign near the greatest number, the line overflows.
            Some(after) if time == after.time => after.value,
            Some(after) if time != before.time => line(before, after, time),
            _ => before.value,
        };
        self.add(&Region { start, end, from: value(start), to: value(end), class: quality });
    }

    fn add(&mut self, region: &Region) {
        let (sums, duration) = (&mut self.sums, region.end - region.start);
        sums.total += duration;
        sums.non_good |= region.class != Class::Good;
        match region.class {
            Class::Bad => {
                sums.bad += duration;
                return;
            }
            Class::Good => sums.good += duration,
            Class::Uncertain => {}
        }
        sums.area += (region.from + region.to) * 0.5 * seconds(duration);
        sums.covered += duration;
        if region.class == Class::Good {
            *(if region.from == 0.0 { &mut sums.zero } else { &mut sums.non_zero }) += duration;
            let origin = *sums.origin.get_or_insert(region.from);
            let away = region.from - origin;
            let (count, sum, squares) = sums.moments;
            sums.moments = (count + 1, sum + away, squares + away * away);
        }
    }

    /// Counts a value of the interval, or a bounding value.
    fn meet(&mut self, frame: &Frame, point: Point) {
        self.sums.worst.meet(point.status);
        if self.extremes && point.class(frame.settings.treat_uncertain_as_bad).usable() {
            Extreme::meet(&mut self.sums.least, point, f64::lt);
            Extreme::meet(&mut self.sums.greatest, point, f64::gt);
        }
    }

    /// Passes boundary `next`: closes the interval before it and opens the one after it.
    fn pass(&mut self, frame: &mut Frame, bound: Point, is_point: bool, ended: bool) {
        if let Some(index) = self.next.checked_sub(1) {
            // A stepped value at the end belongs to the next interval.
            if !frame.settings.stepped {
                self.meet(frame, bound);
            } else {
                self.sums.worst.meet(bound.status);
            }
            self.close(frame, index, bound, ended);
        }
        self.sums = Sums::default();
        self.start = bound;
        self.next += 1;
        // A point exactly at the boundary will be counted as a point.
        if !is_point && self.inside(frame) {
            self.meet(frame, bound);
        }
    }

    fn close(&mut self, frame: &mut Frame, index: usize, end: Point, ended: bool) {
        if frame.no_data(index, ended) {
            return frame.emit_no_data(index, ended);
        }
        match self.result(frame, index, end) {
            Some((time, value, status)) => frame.emit(index, time, value, status, ended),
            None => frame.emit_no_data(index, ended),
        }
    }

    fn result(&self, frame: &Frame, index: usize, end: Point) -> Option<(Option<i64>, f64, Status)> {
        use Aggregate::*;
        let sums = &self.sums;
        let milliseconds = |duration: i64| duration as f64 / 1e6;
        let percent = |duration: i64| duration as f64 / sums.total as f64 * 100.0;
        let calculated = Status::GOOD.with(Status::CALCULATED);
        let code = || frame.settings.code_of_parts(sums.good as f64, sums.bad as f64, sums.total as f64);
        let timed = code().with(Status::CALCULATED);
        // Backwards, an interval starts at its later boundary.
        let (first, last) = if frame.grid.backward() { (end, self.start) } else { (self.start, end) };
        Some(match frame.aggregate {
            TimeAverage2 | Total2 if sums.covered == 0 => return None,
            TimeAverage2 => (None, sums.area / seconds(sums.covered), timed),
            Total2 => (None, sums.area, timed),
            DurationInStateZero => (None, milliseconds(sums.zero), timed),
            DurationInStateNonZero => (None, milliseconds(sums.non_zero), timed),
            DurationGood => (None, milliseconds(sums.good), calculated),
            DurationBad => (None, milliseconds(sums.bad), calculated),
            PercentGood => (None, percent(sums.good), calculated),
            PercentBad => (None, percent(sums.bad), calculated),
            WorstQuality2 => {
                let (value, status) = sums.worst.result()?;
                (None, value, status)
            }
            StartBound => {
                let status = if self.usable(frame, first) { first.status } else { Status::BAD_NO_DATA };
                (None, first.value, status)
            }
            EndBound => {
                let code = if self.usable(frame, last) { last.status.code() } else { Status::BAD_NO_DATA };
                (None, last.value, code.with(Status::CALCULATED))
            }
            DeltaBounds => {
                if !self.usable(frame, first) || !self.usable(frame, last) {
                    return None;
                }
                let status = if first.status.is_good() { Status::GOOD } else { Status::UNCERTAIN_SUB_NORMAL };
                (None, last.value - first.value, status.with(Status::CALCULATED))
            }
            VarianceSample | VariancePopulation => (None, self.sample_variance(frame)?, self.sample_status()),
            _ => return self.extreme(frame, index, code()),
        })
    }

    fn usable(&self, frame: &Frame, point: Point) -> bool {
        point.class(frame.settings.treat_uncertain_as_bad).usable()
    }

    fn extreme(&self, frame: &Frame, index: usize, code: Status) -> Option<(Option<i64>, f64, Status)> {
        use Aggregate::*;
        let (least, greatest) = (self.sums.least?, self.sums.greatest?);
        if frame.aggregate == Range2 {
            return Some((None, greatest.value - least.value, code.with(Status::CALCULATED)));
        }
        let found = if matches!(frame.aggregate, Minimum2 | MinimumActualTime2) { least } else { greatest };
        let actual_time = matches!(frame.aggregate, MinimumActualTime2 | MaximumActualTime2);
        let (start, end) = (frame.grid.boundary(index), frame.grid.boundary(index + 1));
        let interpolated = found.status.0 & Status::INTERPOLATED != 0;
        let mut bits = if interpolated { Status::INTERPOLATED } else { 0 };
        if !actual_time && !interpolated && found.time != start && found.time != end {
            bits |= Status::CALCULATED;
        }
        if found.again {
            bits |= Status::MULTIPLE_VALUES;
        }
        // The time of a bounding value at the excluded end is reported one millisecond inside the interval.
        const INSIDE: i64 = 1_000_000;
        let time = match found.time {
            time if time == end && !frame.grid.backward() => time.saturating_sub(INSIDE).max(start),
            time if time == start && frame.grid.backward() => time.saturating_add(INSIDE).min(end),
            time => time,
        };
        Some((actual_time.then_some(time), found.value, code.with(bits)))
    }

    fn sample_variance(&self, frame: &Frame) -> Option<f64> {
        let (count, sum, squares) = self.sums.moments;
        if count == 0 {
            return None;
        }
        let variance = (squares - sum * sum / count as f64).max(0.0) / (count + 1) as f64;
        Some(if frame.aggregate == Aggregate::VariancePopulation { variance.sqrt() } else { variance })
    }

    fn sample_status(&self) -> Status {
        let code = if self.sums.non_good { Status::UNCERTAIN_SUB_NORMAL } else { Status::GOOD };
        code.with(Status::CALCULATED)
    }

    /// Whether all of `count` intervals are closed.
    pub(crate) fn passed(&self, count: usize) -> bool {
        self.next > count
    }

    pub(crate) fn finish(&mut self, frame: &mut Frame) {
        self.advance(frame, None, frame.grid.high(), true);
    }
}
