//! Statistics that replace a run of Good points.

use super::Status;
use super::status::Point;

/// Statistics of consecutive points that are all Good: sufficient for most aggregates, without the points.
///
/// Exact except for the rounding of sums, which are added in another order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Segment {
    /// Number of points, at least one.
    pub count: u64,
    /// Time of the first point, ns.
    pub first_time: i64,
    /// Time of the last point, ns.
    pub last_time: i64,
    /// Value of the first point.
    pub first: f64,
    /// Value of the last point.
    pub last: f64,
    /// Sum of the values.
    pub sum: f64,
    /// Sum of the squared deviations from the mean.
    pub squares: f64,
    /// The minimum.
    pub min: f64,
    /// Time of its first occurrence, ns.
    pub min_time: i64,
    /// Whether it occurs more than once.
    pub min_again: bool,
    /// The maximum.
    pub max: f64,
    /// Time of its first occurrence, ns.
    pub max_time: i64,
    /// Whether it occurs more than once.
    pub max_again: bool,
    /// Area under the lines between the points, value x s.
    pub area_sloped: f64,
    /// Area if each value holds until the next one, value x s.
    pub area_stepped: f64,
    /// Number of changes of the value from one point to the next.
    pub transitions: u64,
}

impl Segment {
    /// The statistics of points in ascending time; `None` without points, or if one is not Good or not finite.
    pub fn of(times: &[i64], values: &[f64], statuses: Option<&[u32]>) -> Option<Self> {
        let all_good = statuses.is_none_or(|statuses| statuses.iter().all(|status| Status(*status).is_good()));
        if times.is_empty() || !all_good || !values.iter().all(|value| value.is_finite()) {
            return None;
        }
        let (last, count) = (times.len() - 1, times.len() as u64);
        let sum: f64 = values.iter().sum();
        let mean = sum / count as f64;
        let mut segment = Self {
            count,
            first_time: times[0],
            last_time: times[last],
            first: values[0],
            last: values[last],
            sum,
            // A second pass over the values: the difference of sums of squares is inexact for values far from zero.
            squares: values.iter().map(|value| (value - mean) * (value - mean)).sum(),
            min: values[0],
            min_time: times[0],
            min_again: false,
            max: values[0],
            max_time: times[0],
            max_again: false,
            area_sloped: 0.0,
            area_stepped: 0.0,
            transitions: 0,
        };
        for row in 1..times.len() {
            let (before, value, time) = (values[row - 1], values[row], times[row]);
            let seconds = (time - times[row - 1]) as f64 * 1e-9;
            segment.area_stepped += before * seconds;
            segment.area_sloped += (before + value) * 0.5 * seconds;
            segment.transitions += u64::from(before != value);
            if value < segment.min {
                (segment.min, segment.min_time, segment.min_again) = (value, time, false);
            } else if value == segment.min {
                segment.min_again = true;
            }
            if value > segment.max {
                (segment.max, segment.max_time, segment.max_again) = (value, time, false);
            } else if value == segment.max {
                segment.max_again = true;
            }
        }
        Some(segment)
    }

    /// The first point.
    pub fn first_point(&self) -> Point {
        Point { time: self.first_time, value: self.first, status: Status::GOOD }
    }

    /// The last point.
    pub fn last_point(&self) -> Point {
        Point { time: self.last_time, value: self.last, status: Status::GOOD }
    }
}
