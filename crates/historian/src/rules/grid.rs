//! The intervals of a request.

/// Maximum number of intervals of a request.
pub const INTERVALS_MAX: u64 = 10_000_000;

/// Consecutive intervals, in ascending time for either direction of the request.
///
/// If the request runs forwards, intervals include their start and exclude their end, and are counted from the start of
/// the request; the last may be short. If it runs backwards, they include their later end and exclude the earlier one,
/// and are counted backwards from the start of the request; the earliest may be short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid {
    low: i64,
    high: i64,
    width: i64,
    /// Where interval 0 would begin if it were not short.
    base: i64,
    count: usize,
    backward: bool,
}

/// An invalid request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GridError {
    /// Start and end are equal.
    #[error("start and end are the same instant: give a range that lasts")]
    Empty,
    /// The range in nanoseconds exceeds an i64.
    #[error("the range is longer than 292 years: narrow it")]
    TooLong,
    /// The length of an interval is negative.
    #[error("the interval must be longer than 0")]
    NoInterval,
    /// Too many intervals.
    #[error(
        "the range has {0} intervals, above the limit of {INTERVALS_MAX}: lengthen the interval or narrow the range"
    )]
    TooMany(u64),
}

impl Grid {
    /// Intervals of `width` nanoseconds from `start` to `end`; one over the whole range if `width` is 0.
    ///
    /// # Errors
    /// An empty range, a negative width, more than [`INTERVALS_MAX`] intervals.
    pub fn new(start: i64, end: i64, width: i64) -> Result<Self, GridError> {
        let (low, high) = (start.min(end), start.max(end));
        let length = match high.checked_sub(low).ok_or(GridError::TooLong)? {
            0 => return Err(GridError::Empty),
            length => length,
        };
        let width = match width {
            0 => length,
            width if width < 0 => return Err(GridError::NoInterval),
            width => width.min(length),
        };
        let count = length as u64 / width as u64 + u64::from(length % width != 0);
        if count > INTERVALS_MAX {
            return Err(GridError::TooMany(count));
        }
        let backward = end < start;
        // The intervals together may be longer than the range and exceed an i64; `short` is less than one interval.
        let short = (count as i128 * i128::from(width) - i128::from(length)) as i64;
        // Backwards, the earliest interval may begin before the range; `low` then replaces this boundary.
        let base = if backward { low.saturating_sub(short) } else { low };
        Ok(Self { low, high, width, base, count: count as usize, backward })
    }

    /// The earliest time of the range.
    pub fn low(&self) -> i64 {
        self.low
    }

    /// The latest time of the range.
    pub fn high(&self) -> i64 {
        self.high
    }

    /// Number of intervals.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether the request runs backwards in time.
    pub fn backward(&self) -> bool {
        self.backward
    }

    /// Start of interval `index`; the end of the last one for `index == count`.
    pub fn boundary(&self, index: usize) -> i64 {
        match index {
            0 => self.low,
            index if index >= self.count => self.high,
            // Fits i64, because it is between low and high.
            index => (i128::from(self.base) + index as i128 * i128::from(self.width)) as i64,
        }
    }

    /// The timestamp of the result of interval `index`.
    pub fn stamp(&self, index: usize) -> i64 {
        self.boundary(if self.backward { index + 1 } else { index })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn boundaries(grid: Grid) -> Vec<i64> {
        (0..=grid.count()).map(|index| grid.boundary(index)).collect()
    }

    #[test]
    fn forward_intervals_begin_at_the_start_and_the_last_is_short() {
        assert_eq!(boundaries(Grid::new(0, 100, 16).unwrap()), [0, 16, 32, 48, 64, 80, 96, 100]);
    }

    #[test]
    fn backward_intervals_begin_at_the_later_end_and_the_earliest_is_short() {
        let grid = Grid::new(100, 0, 16).unwrap();
        assert_eq!(boundaries(grid), [0, 4, 20, 36, 52, 68, 84, 100]);
        assert_eq!(grid.stamp(0), 4);
    }

    #[test]
    fn senseless_ranges_are_refused() {
        assert_eq!(Grid::new(5, 5, 1), Err(GridError::Empty));
        assert_eq!(Grid::new(i64::MIN, i64::MAX, 1), Err(GridError::TooLong));
        assert_eq!(Grid::new(0, i64::MAX, 1), Err(GridError::TooMany(i64::MAX as u64)));
        assert_eq!(Grid::new(0, 10, -1), Err(GridError::NoInterval));
        assert_eq!(Grid::new(0, 10, 0).unwrap().count(), 1);
    }
}
