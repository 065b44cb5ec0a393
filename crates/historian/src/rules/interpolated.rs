//! Aggregates with interpolated bounding values: only usable points count, and Bad points between them make the result
//! Uncertain.

use super::aggregate::Aggregate;
use super::bounds::PrecedingPoints;
use super::frame::Frame;
use super::segment::Segment;
use super::status::{Class, Point, Status};

/// `Interpolative`, `TimeAverage`, `Total` and `Rate`.
#[derive(Debug, Default)]
pub(crate) struct InterpolatedFold {
    around: PrecedingPoints,
    /// Index of the next boundary; interval `next - 1` is being filled.
    next: usize,
    area: f64,
    covered: i64,
    all_good: bool,
}

/// A part of an interval between usable points.
struct Region {
    start: i64,
    end: i64,
    from: f64,
    to: f64,
    good: bool,
}

impl InterpolatedFold {
    pub(crate) fn push(&mut self, frame: &mut Frame, point: Point) {
        frame.saw(point.time);
        if point.class(frame.settings.treat_uncertain_as_bad).usable() {
            self.advance(frame, point);
        } else {
            self.around.bad(point.time);
        }
    }

    /// As [`Self::push`], for points that are all Good.
    pub(crate) fn push_good(&mut self, frame: &mut Frame, times: &[i64], values: &[f64]) {
        let good = |row: usize| Point { time: times[row], value: values[row], status: Status::GOOD };
        let mut row = 0;
        while row < times.len() {
            self.push(frame, good(row));
            row += 1;
            if frame.aggregate == Aggregate::Rate {
                continue;
            }
            // This includes points before the range, whose area is dropped. After the range no point satisfies it.
            let end = row + times[row..].partition_point(|time| *time < frame.grid.boundary(self.next));
            if end == row {
                continue;
            }
            if frame.aggregate != Aggregate::Interpolative {
                self.area += area(&times[row - 1..end], &values[row - 1..end], frame.settings.stepped);
                self.covered += times[end - 1] - times[row - 1];
            }
            // Sloped extrapolation needs the last two points.
            self.around.step(good(end - 2));
            self.around.step(good(end - 1));
            // `push` saw only the first of these points.
            frame.last = Some(times[end - 1]);
            row = end;
        }
    }

    pub(crate) fn segment(&mut self, frame: &mut Frame, segment: &Segment) -> bool {
        if crosses(frame, self.next, segment) {
            return false;
        }
        self.push(frame, segment.first_point());
        // Outside of the range, the area belongs to no interval and is dropped.
        self.area += if frame.settings.stepped { segment.area_stepped } else { segment.area_sloped };
        self.covered += segment.last_time - segment.first_time;
        // One point is enough: no segment is taken with sloped extrapolation, which needs the last two points.
        self.around.step(segment.last_point());
        frame.last = Some(segment.last_time);
        true
    }

    /// Fills up to a usable point, and closes the intervals that end at or before it.
    fn advance(&mut self, frame: &mut Frame, point: Point) {
        while self.next <= frame.grid.count() && frame.grid.boundary(self.next) <= point.time {
            let time = frame.grid.boundary(self.next);
            let bound =
                if time == point.time { point } else { self.around.interpolate(time, Some(point), &frame.settings) };
            self.fill(frame, time, Some(point));
            self.pass(frame, bound, false);
        }
        self.fill(frame, point.time, Some(point));
        self.around.step(point);
    }

    /// Adds the region that ends at `end`, between the last usable point and `after`.
    fn fill(&mut self, frame: &Frame, end: i64, after: Option<Point>) {
        if self.next == 0 || self.next > frame.grid.count() {
            return;
        }
        let interval_start = frame.grid.boundary(self.next - 1);
        let Some(before) = self.around.before else {
            // Before the first usable point the value is unknown.
            self.all_good &= end <= interval_start;
            return;
        };
        let start = before.time.max(interval_start);
        if start >= end {
            return;
        }
        if frame.aggregate == Aggregate::Rate {
            return self.fill_rate(before, after, start, end);
        }
        let settings = &frame.settings;
        let value = |time: i64| match after {
            // At a point, take its value: between values of opposite sign near the greatest number, the line overflows.
            Some(after) if time == after.time && !settings.stepped => after.value,
            _ if time == before.time => before.value,
            _ => self.around.interpolate(time, after, settings).value,
        };
        let class = |point: Point| point.class(true);
        let good = class(before) == Class::Good
            && match after {
                None => false,
                Some(_) if settings.stepped => self.around.first_bad.is_none_or(|bad| bad >= end),
                Some(after) => class(after) == Class::Good && self.around.first_bad.is_none(),
            };
        let from = value(start);
        let to = if settings.stepped { from } else { value(end) };
        self.add(&Region { start, end, from, to, good });
    }

    fn add(&mut self, region: &Region) {
        let duration = region.end - region.start;
        self.area += (region.from + region.to) * 0.5 * seconds(duration);
        self.covered += duration;
        self.all_good &= region.good;
    }

    /// The increase of a counter between two points is distributed evenly over the time between them. A lower value
    /// means that the counter has restarted at zero.
    fn fill_rate(&mut self, before: Point, after: Option<Point>, start: i64, end: i64) {
        let Some(after) = after else {
            self.all_good = false;
            return;
        };
        let increase = if after.value < before.value { after.value } else { after.value - before.value };
        self.area += increase * ((end - start) as f64 / (after.time - before.time) as f64);
        self.covered += end - start;
        let certain = before.class(true) == Class::Good && after.class(true) == Class::Good;
        self.all_good &= certain && self.around.first_bad.is_none();
    }

    /// Passes boundary `next`: closes the interval before it and opens the one after it.
    fn pass(&mut self, frame: &mut Frame, bound: Point, ended: bool) {
        let boundary = self.next;
        if frame.aggregate == Aggregate::Interpolative {
            // Backwards, the value of an interval is that at its later end.
            let index = if frame.grid.backward() { boundary.checked_sub(1) } else { Some(boundary) };
            if let Some(index) = index.filter(|index| *index < frame.grid.count()) {
                frame.emit(index, None, bound.value, bound.status, false);
            }
        } else if let Some(index) = boundary.checked_sub(1) {
            self.close(frame, index, ended);
        }
        (self.area, self.covered, self.all_good) = (0.0, 0, true);
        self.next += 1;
    }

    fn close(&self, frame: &mut Frame, index: usize, ended: bool) {
        if self.covered == 0 {
            return frame.emit_no_data(index, ended);
        }
        let value = match frame.aggregate {
            Aggregate::Total => self.area,
            _ => self.area / seconds(self.covered),
        };
        let status = if self.all_good { Status::GOOD } else { Status::UNCERTAIN_SUB_NORMAL };
        // Extrapolation covers the interval to its end, so it is not Partial. `Rate` does not extrapolate.
        let ended = ended && frame.aggregate == Aggregate::Rate;
        frame.emit(index, None, value, status.with(Status::CALCULATED), ended);
    }

    /// Whether all of `count` intervals are closed.
    pub(crate) fn passed(&self, count: usize) -> bool {
        self.next > count
    }

    pub(crate) fn finish(&mut self, frame: &mut Frame) {
        while self.next <= frame.grid.count() {
            let time = frame.grid.boundary(self.next);
            let bound = self.around.interpolate(time, None, &frame.settings);
            self.fill(frame, time, None);
            self.pass(frame, bound, true);
        }
    }
}

/// Whether a segment extends past the boundary that follows its first point.
pub(crate) fn crosses(frame: &Frame, next: usize, segment: &Segment) -> bool {
    let mut next = next;
    let count = frame.grid.count();
    let key = segment.first_time - frame.shift;
    // The intervals skipped here are few or empty.
    while next <= count && frame.grid.boundary(next) <= key {
        next += 1;
    }
    next <= count && frame.grid.boundary(next) <= segment.last_time - frame.shift
}

pub(crate) fn seconds(nanoseconds: i64) -> f64 {
    nanoseconds as f64 * 1e-9
}

/// Area under consecutive Good points, value x s.
pub(crate) fn area(times: &[i64], values: &[f64], stepped: bool) -> f64 {
    let mut area = 0.0;
    for row in 1..times.len() {
        let height = if stepped { values[row - 1] } else { (values[row - 1] + values[row]) * 0.5 };
        area += height * seconds(times[row] - times[row - 1]);
    }
    area
}
