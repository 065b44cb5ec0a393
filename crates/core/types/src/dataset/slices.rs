//! Windows and slices of a dataset, and how the datasets of a group divide their numbers.

use serde::{Deserialize, Serialize};

use super::{DatasetSpec, SpecError, StorageLayout};
use crate::time::TimeSpec;
use crate::{DatasetName, SliceId, Window};

/// A dataset's membership in a group. Datasets of a group are written together: a batch is complete in all of them or in none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Membership {
    /// Name of the group. Engines and the catalog keep chunks and batches of all its datasets under it.
    pub group: DatasetName,
    /// Number of the dataset in the group; the upper bits of its slice numbers.
    pub number: u8,
    /// The dataset whose slices it shares; `None` if it has its own slices. Chunks of datasets that share slices are stored in the
    /// same tables and partitions, and are dropped together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slices_of: Option<SliceOwner>,
}

/// A dataset of a group whose slices other datasets share.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SliceOwner {
    /// Its name.
    pub dataset: DatasetName,
    /// Its number in the group.
    pub number: u8,
}

/// Maximum number of datasets in a group.
pub const GROUP_DATASETS_MAX: usize = 16;
/// Slice 0 of dataset `n` of a group is slice `n << GROUP_SLICE_BITS` of the group.
const GROUP_SLICE_BITS: u32 = 27;
/// A dataset of a group has as many slices before the epoch as after it.
const GROUP_SLICES_HALF: i32 = 1 << (GROUP_SLICE_BITS - 1);
/// If a dataset shares slices, its window 0 is stored as window `d << SHARED_WINDOW_BITS`, where `d` is its number minus the number
/// of the slices' owner.
const SHARED_WINDOW_BITS: u32 = 27;
/// A dataset that may share slices has as many windows before the epoch as after it.
const SHARED_WINDOWS_HALF: i32 = 1 << (SHARED_WINDOW_BITS - 1);
/// Datasets with shorter windows share no slices: they would run out of windows after some centuries.
const SHARED_WINDOW_SECONDS_MIN: i64 = 300;

impl Membership {
    /// A member of this group with its own slices and number 0, which the archive replaces when it creates the dataset.
    pub fn of(group: DatasetName) -> Self {
        Self { group, number: 0, slices_of: None }
    }

    /// The number of the dataset that owns its slices.
    fn slice_owner(&self) -> u8 {
        self.slices_of.as_ref().map_or(self.number, |owner| owner.number)
    }

    fn first_slice(&self) -> i32 {
        i32::from(self.slice_owner()) << GROUP_SLICE_BITS
    }

    fn first_window(&self) -> i32 {
        // The owner is the dataset itself or joined the group earlier, so its number is not greater.
        i32::from(self.number.saturating_sub(self.slice_owner())) << SHARED_WINDOW_BITS
    }

    /// The number of the dataset that owns a slice of a group; others may share it.
    pub fn owner_of(slice: SliceId) -> u8 {
        // Slices of dataset `n` before the epoch are below `n << GROUP_SLICE_BITS`; adding half of its range moves them
        // above.
        (slice.0.saturating_add(GROUP_SLICES_HALF) >> GROUP_SLICE_BITS) as u8
    }
}

impl DatasetSpec {
    /// Ticks in one window.
    pub fn window_ticks(&self) -> i64 {
        // `checked` refuses windows that are not whole ticks; 1 avoids a division by zero for definitions that were not
        // checked.
        TimeSpec::ticks_of(self.time_type(), self.window).unwrap_or(1).max(1)
    }

    /// The window that contains a tick; `None` if the number of the window or of its slice is out of range.
    pub fn window_of(&self, tick: i64) -> Option<Window> {
        // Euclidean division rounds down before the epoch, too: window -1 ends where window 0 begins.
        let number = i32::try_from(tick.div_euclid(self.window_ticks())).ok()?;
        let slice = number.div_euclid(self.windows_per_slice as i32);
        let has_slice = self.group.is_none() || (-GROUP_SLICES_HALF..GROUP_SLICES_HALF).contains(&slice);
        let has_window = !self.may_share_slices() || (-SHARED_WINDOWS_HALF..SHARED_WINDOWS_HALF).contains(&number);
        (has_slice && has_window).then(|| self.window_numbered(number))
    }

    /// The window that contains a tick, or the first or last window if the tick is out of range.
    pub fn nearest_window(&self, tick: i64) -> Window {
        let (first, last) = self.windows();
        self.window_of(tick).unwrap_or(if tick < 0 { first } else { last })
    }

    /// Its first and last window.
    pub fn windows(&self) -> (Window, Window) {
        if !self.may_share_slices() {
            return (Window(i32::MIN), Window(i32::MAX));
        }
        (self.window_numbered(-SHARED_WINDOWS_HALF), self.window_numbered(SHARED_WINDOWS_HALF - 1))
    }

    /// First tick of one of its windows.
    pub fn window_start(&self, window: Window) -> i64 {
        i64::from(self.own_window(window)).saturating_mul(self.window_ticks())
    }

    /// The number of one of its windows, counted within the dataset.
    pub fn own_window(&self, window: Window) -> i32 {
        window.0.wrapping_sub(self.first_window())
    }

    fn window_numbered(&self, number: i32) -> Window {
        Window(number.wrapping_add(self.first_window()))
    }

    /// The stored number of its window 0: not 0 if it shares the slices of another dataset.
    pub fn first_window(&self) -> i32 {
        self.group.as_ref().map_or(0, Membership::first_window)
    }

    /// Whether the range of its window numbers is limited, so that other datasets can share its slices.
    fn may_share_slices(&self) -> bool {
        self.group.is_some() && self.window.seconds() >= SHARED_WINDOW_SECONDS_MIN
    }

    /// The slice that contains a window.
    pub fn slice_of(&self, window: Window) -> SliceId {
        let slice = self.own_window(window).div_euclid(self.windows_per_slice as i32);
        let Some(group) = &self.group else { return SliceId(slice) };
        // Without the clamp, a window outside the range would be in a slice of another dataset of the group.
        SliceId(group.first_slice() + slice.clamp(-GROUP_SLICES_HALF, GROUP_SLICES_HALF - 1))
    }

    /// Half-open range of ticks of a slice.
    pub fn slice_ticks(&self, slice: SliceId) -> (i64, i64) {
        let width = self.window_ticks().saturating_mul(i64::from(self.windows_per_slice));
        let start = i64::from(self.own_slice(slice)).saturating_mul(width);
        (start, start.saturating_add(width))
    }

    /// The number of one of its slices, counted within the dataset.
    pub fn own_slice(&self, slice: SliceId) -> i32 {
        slice.0 - self.group.as_ref().map_or(0, Membership::first_slice)
    }

    /// The slice with a number counted within the dataset.
    pub fn slice_numbered(&self, number: i32) -> SliceId {
        SliceId(number.saturating_add(self.group.as_ref().map_or(0, Membership::first_slice)))
    }

    /// Whether this dataset owns or shares a slice stored under [`DatasetSpec::stored_as`].
    pub fn has_slice(&self, slice: SliceId) -> bool {
        self.group.as_ref().is_none_or(|group| group.slice_owner() == Membership::owner_of(slice))
    }

    /// Whether a window of a slice stored under [`DatasetSpec::stored_as`] belongs to this dataset.
    pub fn has_window(&self, slice: SliceId, window: Window) -> bool {
        let (first, last) = self.windows();
        self.has_slice(slice) && (first..=last).contains(&window)
    }

    /// The dataset after which its slices are named: the owner of shared slices, or the dataset itself.
    pub fn slices_name(&self) -> &DatasetName {
        let owner = self.group.as_ref().and_then(|group| group.slices_of.as_ref());
        owner.map_or(&self.name, |owner| &owner.dataset)
    }

    /// Checks that this dataset can share the slices of `owner`, a dataset of its group.
    ///
    /// # Errors
    /// Slices or partitions that differ from the owner's, a layout other than chunks, windows that are too short.
    pub fn check_sharing(&self, owner: &Self) -> Result<(), SpecError> {
        let refuse = |value: String, expected| Err(SpecError::Limit { setting: "slices_of", value, expected });
        let name = owner.name.to_string();
        if owner.group.as_ref().is_none_or(|group| group.slices_of.is_some()) {
            return refuse(name, "name the dataset that owns the slices, not one that shares them");
        }
        if self.layout != StorageLayout::Chunks || owner.layout != StorageLayout::Chunks {
            return refuse(format!("{name} with layout rows"), "only datasets with layout chunks share slices");
        }
        let shape = |spec: &Self| {
            (spec.window, spec.windows_per_slice, spec.partition_cells, spec.time.format, spec.time.scale)
        };
        if shape(self) != shape(owner) {
            return refuse(
                name,
                "datasets that share slices have the same window, slice, partition_cells, time format and scale",
            );
        }
        if self.window.seconds() < SHARED_WINDOW_SECONDS_MIN {
            return refuse(
                format!("{name} with windows of {}", self.window),
                "windows of datasets that share slices last 5 minutes or more",
            );
        }
        Ok(())
    }

    /// The name under which the engine and the catalog store its chunks and batches: its group's or its own.
    pub fn stored_as(&self) -> &DatasetName {
        self.group.as_ref().map_or(&self.name, |group| &group.group)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::spec;
    use super::*;

    #[test]
    fn slices_of_the_datasets_of_a_group_are_different_ones() {
        let of = |number| DatasetSpec {
            group: Some(Membership { number, ..Membership::of(DatasetName::new("survey").unwrap()) }),
            ..spec()
        };
        for number in 0..GROUP_DATASETS_MAX as u8 {
            let spec = of(number);
            for window in [i32::MIN, -GROUP_SLICES_HALF, -1, 0, 1, GROUP_SLICES_HALF - 1, i32::MAX] {
                let slice = spec.slice_of(Window(window));
                assert_eq!(Membership::owner_of(slice), number, "{number} {window}");
                let others = (0..GROUP_DATASETS_MAX as u8).filter(|other| of(*other).has_slice(slice)).count();
                assert_eq!(others, 1);
                let counted = (-GROUP_SLICES_HALF..GROUP_SLICES_HALF).contains(&window);
                assert_eq!(spec.own_slice(slice) == window, counted);
                assert_eq!(spec.slice_numbered(spec.own_slice(slice)), slice);
                if let Some(tick) = i64::from(window).checked_mul(spec.window_ticks()) {
                    assert_eq!(spec.window_of(tick), counted.then_some(Window(window)));
                    assert!(!counted || spec.slice_ticks(slice).0 == tick);
                }
            }
            assert_eq!(spec.stored_as().as_str(), "survey");
        }
        assert_eq!(spec().stored_as(), &spec().name);
    }

    #[test]
    fn windows_of_datasets_that_share_slices_are_different_ones() {
        let of = |number| {
            let slices_of = (number > 2).then(|| SliceOwner { dataset: DatasetName::new("owner").unwrap(), number: 2 });
            let membership = Membership { number, slices_of, ..Membership::of(DatasetName::new("survey").unwrap()) };
            let window = "5m".parse().unwrap();
            DatasetSpec { group: Some(membership), window, windows_per_slice: 3, ..spec() }
        };
        let (owner, others) = (of(2), [3, 4, 15].map(of));
        for tick in [0, -1, 61_000 * 86_400_000_000, -(SHARED_WINDOWS_HALF as i64) * owner.window_ticks()] {
            let window = owner.window_of(tick).unwrap();
            let slice = owner.slice_of(window);
            let mut seen = vec![window];
            for other in &others {
                let shared = other.window_of(tick).unwrap();
                assert_eq!(other.slice_of(shared), slice);
                assert_eq!(
                    (other.own_window(shared), other.window_start(shared)),
                    (window.0, owner.window_start(window))
                );
                assert_eq!(
                    (other.slices_name().as_str(), other.slice_ticks(slice)),
                    ("owner", owner.slice_ticks(slice))
                );
                let holds = |spec: &DatasetSpec| spec.has_window(slice, shared);
                assert!(holds(other) && !holds(&owner) && others.iter().filter(|spec| holds(spec)).count() == 1);
                seen.push(shared);
            }
            seen.sort_unstable();
            seen.dedup();
            assert_eq!(seen.len(), 4);
        }
        let after_all = i64::from(SHARED_WINDOWS_HALF) * owner.window_ticks();
        assert_eq!(owner.window_of(after_all), None);
        assert_eq!(owner.nearest_window(i64::MAX), Window(SHARED_WINDOWS_HALF - 1));
        assert_eq!(others[0].nearest_window(i64::MIN), others[0].windows().0);
        assert_eq!(others[0].slices_name(), others[2].slices_name());
    }

    #[test]
    fn only_datasets_of_a_group_with_slices_of_one_kind_share_them() {
        let name = |text| DatasetName::new(text).unwrap();
        let member = |window: &str| DatasetSpec {
            group: Some(Membership::of(name("survey"))),
            window: window.parse().unwrap(),
            ..spec()
        };
        let sharing = |spec: DatasetSpec, owner: &DatasetSpec| spec.check_sharing(owner).map_err(|e| e.to_string());
        for (window, good) in [("299s", false), ("5m", true), ("301s", true)] {
            assert_eq!(sharing(member(window), &member(window)).is_ok(), good, "{window}");
        }
        let owner = member("1h");
        let rows = |spec: DatasetSpec| DatasetSpec { layout: StorageLayout::Rows, ..spec };
        let twice = Membership {
            slices_of: Some(SliceOwner { dataset: name("third"), number: 0 }),
            ..Membership::of(name("survey"))
        };
        for (own, other, says) in [
            (member("1h"), DatasetSpec { group: None, ..owner.clone() }, "not one that shares them"),
            (member("1h"), DatasetSpec { group: Some(twice), ..owner.clone() }, "not one that shares them"),
            (rows(member("1h")), owner.clone(), "only datasets with layout chunks"),
            (member("1h"), rows(owner.clone()), "only datasets with layout chunks"),
            (member("2h"), owner.clone(), "the same window"),
            (DatasetSpec { partition_cells: 2, ..member("1h") }, owner.clone(), "the same window"),
        ] {
            let message = sharing(own, &other).unwrap_err();
            assert!(message.contains(says), "{message}");
        }
    }

    #[test]
    fn windows_that_may_be_shared_are_half_as_many_as_a_slice_index_counts() {
        let half = i64::from(SHARED_WINDOWS_HALF);
        let alone = DatasetSpec { window: "5m".parse().unwrap(), windows_per_slice: 3, ..spec() };
        let group = Some(Membership::of(DatasetName::new("survey").unwrap()));
        let member = DatasetSpec { group: group.clone(), ..alone.clone() };
        let short = DatasetSpec { window: "299s".parse().unwrap(), group, ..alone.clone() };
        for (spec, may_share) in [(&alone, false), (&member, true), (&short, false)] {
            let ticks = spec.window_ticks();
            for (window, inside) in [(-half, true), (-half - 1, false), (half - 1, true), (half, false)] {
                let found = spec.window_of(window * ticks);
                assert_eq!(found.is_some(), inside || !may_share, "{window}");
                if let Some(found) = found {
                    assert_eq!((i64::from(found.0), spec.window_start(found)), (window, window * ticks));
                }
            }
            let first = if may_share { -half } else { i64::from(i32::MIN) };
            let last = if may_share { half - 1 } else { i64::from(i32::MAX) };
            assert_eq!(spec.windows(), (Window(first as i32), Window(last as i32)));
            assert_eq!(spec.nearest_window(i64::MAX), Window(last as i32));
            assert_eq!(spec.nearest_window(i64::MIN), Window(first as i32));
            assert_eq!(spec.nearest_window(0), Window(0));
        }
    }

    #[test]
    fn windows_and_slices_floor_toward_the_past() {
        let mut spec = spec().checked().unwrap();
        spec.windows_per_slice = 2;
        let width = spec.window_ticks();
        assert_eq!(spec.window_of(-1), Some(Window(-1)));
        assert_eq!(spec.window_of(width), Some(Window(1)));
        assert_eq!(spec.slice_of(Window(-1)), SliceId(-1));
        assert_eq!(spec.slice_ticks(SliceId(-1)), (-2 * width, 0));
    }
}
