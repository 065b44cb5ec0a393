//! Values between the points of a series: bounding values (Part 13, 3.1.8 and 3.1.9) and values at given times.

use super::Settings;
use super::frame::Output;
use super::status::{Class, Point, Status};

/// The latest usable points before an instant.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PrecedingPoints {
    /// The usable point before `before`.
    pub earlier: Option<Point>,
    /// The last usable point before the instant.
    pub before: Option<Point>,
    /// Time of the first unusable point after `before`.
    pub first_bad: Option<i64>,
}

impl PrecedingPoints {
    /// Advances to a usable point.
    pub(crate) fn step(&mut self, point: Point) {
        *self = Self { earlier: self.before, before: Some(point), first_bad: None };
    }

    /// Advances to a point that is not usable.
    pub(crate) fn bad(&mut self, time: i64) {
        self.first_bad.get_or_insert(time);
    }

    /// The interpolated bounding value at `time`, between `before` and the usable point `after`; extrapolated if there
    /// is no `after`.
    pub(crate) fn interpolate(&self, time: i64, after: Option<Point>, settings: &Settings) -> Point {
        let none = Point { time, value: f64::NAN, status: Status::BAD_NO_DATA };
        let Some(before) = self.before else { return none };
        let good = before.class(true) == Class::Good;
        let (value, good) = if settings.stepped {
            let followed = after.is_some() || self.first_bad.is_some();
            (before.value, good && followed && self.first_bad.is_none_or(|bad| bad > time))
        } else if let Some(after) = after {
            (line(before, after, time), good && after.class(true) == Class::Good && self.first_bad.is_none())
        } else if let (Some(earlier), true) = (self.earlier, settings.sloped_extrapolation) {
            (line(earlier, before, time), false)
        } else {
            (before.value, false)
        };
        let class = if good { Class::Good } else { Class::Uncertain };
        Point { time, value, status: class.interpolated() }
    }
}

/// The value at `time` on the line through two points.
pub(crate) fn line(a: Point, b: Point, time: i64) -> f64 {
    // The differences may not be exact as floats, so subtract as integers unless that overflows.
    let share = match (time.checked_sub(a.time), b.time.checked_sub(a.time)) {
        (Some(part), Some(whole)) => part as f64 / whole as f64,
        _ => (time as f64 - a.time as f64) / (b.time as f64 - a.time as f64),
    };
    a.value + (b.value - a.value) * share
}

/// The simple bounding value at `time`, strictly between the neighbouring points `before` and `after` of any quality.
pub(crate) fn simple_bound(time: i64, before: Option<Point>, after: Option<Point>, settings: &Settings) -> Point {
    let uncertain_as_bad = settings.treat_uncertain_as_bad;
    let none = Point { time, value: f64::NAN, status: Status::BAD_NO_DATA };
    let (Some(before), Some(after)) = (before, after) else { return none };
    let class = before.class(uncertain_as_bad);
    if class == Class::Bad {
        return none;
    }
    let after_class = after.class(uncertain_as_bad);
    if settings.stepped {
        return Point { time, value: before.value, status: class.interpolated() };
    }
    if after_class == Class::Bad {
        return Point { time, value: before.value, status: Class::Uncertain.interpolated() };
    }
    Point { time, value: line(before, after, time), status: class.min(after_class).interpolated() }
}

/// Computes the values of a series at given times: the points themselves, or interpolated as
/// [`super::Aggregate::Interpolative`] does.
#[derive(Debug)]
pub struct ValuesAtTimes {
    settings: Settings,
    times: Vec<i64>,
    next: usize,
    around: PrecedingPoints,
    out: Output,
}

impl ValuesAtTimes {
    /// `times` in ascending order.
    pub fn new(times: Vec<i64>, settings: Settings) -> Self {
        debug_assert!(times.is_sorted());
        Self { settings, times, next: 0, around: PrecedingPoints::default(), out: Output::default() }
    }

    /// Whether every time has its value, so that later points do not matter.
    pub fn done(&self) -> bool {
        self.next == self.times.len()
    }

    /// Adds the next point.
    pub fn push(&mut self, point: Point) {
        if !point.class(self.settings.treat_uncertain_as_bad).usable() {
            return self.around.bad(point.time);
        }
        while let Some(&time) = self.times.get(self.next).filter(|time| **time <= point.time) {
            let exact = time == point.time;
            let found = if exact { point } else { self.around.interpolate(time, Some(point), &self.settings) };
            self.put(found);
        }
        self.around.step(point);
    }

    fn put(&mut self, point: Point) {
        self.out.push(point.time, point.value, point.status);
        self.next += 1;
    }

    /// The values, one for each time.
    pub fn finish(mut self) -> Output {
        while let Some(&time) = self.times.get(self.next) {
            let found = self.around.interpolate(time, None, &self.settings);
            self.put(found);
        }
        self.out
    }
}
