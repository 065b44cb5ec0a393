//! Which windows a scan covers.

use chronotile_types::Window;

/// Inclusive ranges of windows, ascending and disjoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Windows {
    /// The first range; empty where there is none.
    first: (Window, Window),
    others: Vec<(Window, Window)>,
}

impl Windows {
    /// Every window.
    pub const ALL: Self = Self { first: (Window(i32::MIN), Window(i32::MAX)), others: Vec::new() };
    /// No window.
    pub const NONE: Self = Self { first: (Window(i32::MAX), Window(i32::MIN)), others: Vec::new() };

    /// Disjoint ranges, given by their first and last windows; empty ones are left out.
    pub fn of(ranges: impl IntoIterator<Item = (Window, Window)>) -> Self {
        let mut ranges: Vec<_> = ranges.into_iter().filter(|(first, last)| first <= last).collect();
        if ranges.is_empty() {
            return Self::NONE;
        }
        ranges.sort_unstable();
        let others = ranges.split_off(1);
        Self { first: ranges[0], others }
    }

    /// These windows alone, in any order; neighbours come into one range.
    pub fn each(windows: impl IntoIterator<Item = Window>) -> Self {
        let mut windows: Vec<_> = windows.into_iter().collect();
        windows.sort_unstable();
        windows.dedup();
        // No window follows i32::MAX.
        Self::of(windows.chunk_by(|a, b| a.0.checked_add(1) == Some(b.0)).map(|run| (run[0], run[run.len() - 1])))
    }

    /// One window.
    pub fn one(window: Window) -> Self {
        Self { first: (window, window), others: Vec::new() }
    }

    /// Whether there is no window.
    pub fn is_empty(&self) -> bool {
        self.first.0 > self.first.1
    }

    /// The ranges, ascending.
    pub fn ranges(&self) -> impl Iterator<Item = (Window, Window)> + '_ {
        let first = (!self.is_empty()).then_some(self.first);
        first.into_iter().chain(self.others.iter().copied())
    }

    /// The first and the last of all windows; of none, a range that is empty.
    pub fn outer(&self) -> (Window, Window) {
        (self.first.0, self.others.last().unwrap_or(&self.first).1)
    }

    /// Returns whether `window` is in one of the ranges.
    pub fn contains(&self, window: Window) -> bool {
        let holds = |(first, last): &(Window, Window)| (*first..=*last).contains(&window);
        holds(&self.first) || self.others.iter().any(holds)
    }

    /// Returns the windows that are in both.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        // Two ranges without a common window give an empty one, which `of` leaves out.
        let both = |a: (Window, Window)| other.ranges().map(move |b| (a.0.max(b.0), a.1.min(b.1)));
        Self::of(self.ranges().flat_map(both))
    }

    /// Returns the number of windows.
    pub fn count(&self) -> u64 {
        // The number of all windows, 2^32, exceeds 32 bits.
        self.ranges().map(|(first, last)| (i64::from(last.0) - i64::from(first.0) + 1) as u64).sum()
    }

    /// Iterates over all windows.
    pub fn iter(&self) -> impl Iterator<Item = Window> + '_ {
        self.ranges().flat_map(|(first, last)| (first.0..=last.0).map(Window))
    }
}

impl From<(Window, Window)> for Windows {
    /// All from the first to the last, which may be none.
    fn from(range: (Window, Window)) -> Self {
        Self::of([range])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(ranges: &[(i32, i32)]) -> Windows {
        Windows::of(ranges.iter().map(|(first, last)| (Window(*first), Window(*last))))
    }

    #[test]
    fn ranges_are_ordered_and_empty_ones_left_out() {
        let some = windows(&[(7, 9), (5, 4), (-2, -2)]);
        assert_eq!(some.iter().map(|window| window.0).collect::<Vec<_>>(), [-2, 7, 8, 9]);
        assert_eq!((some.count(), some.outer()), (4, (Window(-2), Window(9))));
        assert!(some.contains(Window(8)) && !some.contains(Window(0)) && !some.contains(Window(4)));
        assert_eq!(windows(&[(3, 2)]), Windows::NONE);
        assert_eq!(Windows::NONE.ranges().count(), 0);
        let (first, last) = Windows::NONE.outer();
        assert!(first > last && !Windows::NONE.contains(first) && Windows::NONE.is_empty());
        assert_eq!(Windows::ALL.count(), 1 << 32);
    }

    #[test]
    fn single_windows_come_into_ranges() {
        let each = |numbers: &[i32]| Windows::each(numbers.iter().map(|number| Window(*number)));
        assert_eq!(each(&[5, 4, 9, 5, 10, 2]), windows(&[(2, 2), (4, 5), (9, 10)]));
        assert_eq!(each(&[i32::MAX, i32::MIN]), windows(&[(i32::MIN, i32::MIN), (i32::MAX, i32::MAX)]));
        assert_eq!(each(&[]), Windows::NONE);
    }

    #[test]
    fn what_two_have_in_common() {
        let some = windows(&[(0, 5), (10, 15)]);
        assert_eq!(some.and(&windows(&[(4, 11), (15, 20)])), windows(&[(4, 5), (10, 11), (15, 15)]));
        assert_eq!(some.and(&Windows::ALL), some);
        assert_eq!(some.and(&windows(&[(6, 9)])), Windows::NONE);
        assert_eq!(some.and(&Windows::NONE), Windows::NONE);
    }
}
