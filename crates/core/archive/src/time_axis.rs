//! The time column of a batch: ticks of its rows, and exact comparisons with a time range.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Float64Type, TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
    TimestampSecondType,
};
use arrow_array::{Array, ArrayRef, Int64Array};
use arrow_cast::cast;
use arrow_cast::display::array_value_to_string;
use arrow_schema::{DataType, TimeUnit};
use chronotile_types::{DatasetSpec, Instant, Placed, TimeError, TimeFormat, TimeRange, Window};

/// Values of the time column in its own unit, without nulls.
pub(crate) enum Times<'a> {
    Ticks(std::borrow::Cow<'a, [i64]>),
    Days(&'a [f64]),
}

/// The values of the time column; `None` if the array has no type of time columns.
pub(crate) fn times(array: &ArrayRef) -> Option<Times<'_>> {
    use std::borrow::Cow::{Borrowed, Owned};
    Some(match array.data_type() {
        DataType::Float64 => Times::Days(array.as_primitive_opt::<Float64Type>()?.values()),
        DataType::Date32 => Times::Ticks(Owned(
            array.as_primitive_opt::<Date32Type>()?.values().iter().map(|d| i64::from(*d)).collect(),
        )),
        DataType::Timestamp(TimeUnit::Second, _) => {
            Times::Ticks(Borrowed(array.as_primitive_opt::<TimestampSecondType>()?.values()))
        }
        DataType::Timestamp(TimeUnit::Millisecond, _) => {
            Times::Ticks(Borrowed(array.as_primitive_opt::<TimestampMillisecondType>()?.values()))
        }
        DataType::Timestamp(TimeUnit::Microsecond, _) => {
            Times::Ticks(Borrowed(array.as_primitive_opt::<TimestampMicrosecondType>()?.values()))
        }
        DataType::Timestamp(TimeUnit::Nanosecond, _) => {
            Times::Ticks(Borrowed(array.as_primitive_opt::<TimestampNanosecondType>()?.values()))
        }
        _ => return None,
    })
}

/// A row whose time has no tick on the axis, and why.
pub(crate) type TimeFailure = (usize, &'static str);

/// Tick and window of every row; otherwise the first row without one, and the reason.
pub(crate) fn place_rows(spec: &DatasetSpec, array: &ArrayRef) -> Result<(Vec<i64>, Vec<Window>), TimeFailure> {
    const NULL: &str = "is null; every record needs a time";
    const OUTSIDE: &str = "holds a time the axis cannot count (NaN, infinite or too far away)";
    const MJD: &str = "holds a Modified Julian Date, but counts Julian Dates: add 2400000.5, or create the dataset with a time \
                       column of format mjd";
    const JD: &str = "holds a Julian Date, but counts Modified Julian Dates: subtract 2400000.5, or create the dataset with a time \
                      column of format jd";
    if let Some(row) = (0..array.len()).find(|row| array.is_null(*row)) {
        return Err((row, NULL));
    }
    let ticks: Vec<i64> = match times(array) {
        Some(Times::Ticks(ticks)) => ticks.into_owned(),
        Some(Times::Days(days)) => {
            let tick = |(row, day): (usize, &f64)| match spec.time.other_format(*day) {
                Some(TimeFormat::Mjd) => Err((row, MJD)),
                Some(_) => Err((row, JD)),
                None => spec.time.tick_of_days(*day).ok_or((row, OUTSIDE)),
            };
            days.iter().enumerate().map(tick).collect::<Result<_, _>>()?
        }
        None => return Err((0, "is not of the dataset's type")),
    };
    let window = |(row, tick): (usize, &i64)| spec.window_of(*tick).ok_or((row, OUTSIDE));
    let windows = ticks.iter().enumerate().map(window).collect::<Result<_, _>>()?;
    Ok((ticks, windows))
}

/// Sort key of a row's time: the value of a timestamp, or the bits of a float day in a form that keeps the order.
pub(crate) type TimeKey = i64;

/// The sort keys of the rows' times.
pub(crate) fn time_keys(time: &ArrayRef) -> Vec<TimeKey> {
    match times(time) {
        Some(Times::Ticks(ticks)) => ticks.to_vec(),
        // As integers, float bits have the order of the floats once all bits but the sign of negative ones are flipped.
        Some(Times::Days(days)) => {
            days.iter().map(|day| day.to_bits() as i64).map(|b| b ^ ((b >> 63) & i64::MAX)).collect()
        }
        None => vec![i64::MIN; time.len()],
    }
}

/// A half-open time range on a dataset's axis: exact for rows, and as inclusive ticks for chunks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    start: Option<Placed>,
    end: Option<Placed>,
    /// Smallest tick a row in range can have.
    pub tick_min: i64,
    /// Largest tick a row in range can have.
    pub tick_max: i64,
}

impl Bounds {
    /// Converts `range` to the axis; refuses one whose start is after its end.
    pub(crate) fn new(spec: &DatasetSpec, range: &TimeRange) -> Result<Self, TimeError> {
        let place = |instant: Option<Instant>| instant.map(|i| spec.time.place(spec.time_type(), i)).transpose();
        let (start, end) = (place(range.start)?, place(range.end)?);
        // A day beyond the axis (infinity) is no bound.
        let tick = |placed, beyond: i64| match placed {
            Placed::Ticks(tick) => tick,
            Placed::Days(days) => spec.time.tick_of_days(days).unwrap_or(if days > 0.0 { i64::MAX } else { beyond }),
        };
        let tick_min = start.map_or(i64::MIN, |s| tick(s, i64::MIN));
        let tick_max = match end {
            None => i64::MAX,
            // No tick is before the first one: the range is empty.
            Some(Placed::Ticks(i64::MIN)) => return Ok(Self { start, end, tick_min: i64::MAX, tick_max: i64::MIN }),
            Some(Placed::Ticks(end)) => end - 1,
            // Days before the end may fall on the same tick as the end, so that tick is included.
            Some(days) => tick(days, i64::MIN),
        };
        let inverted = match (start, end) {
            (Some(Placed::Ticks(s)), Some(Placed::Ticks(e))) => s > e,
            (Some(Placed::Days(s)), Some(Placed::Days(e))) => s > e,
            _ => false,
        };
        if inverted {
            return Err(TimeError::InvertedRange { start: show(spec, start), end: show(spec, end) });
        }
        Ok(Self { start, end, tick_min, tick_max })
    }

    /// Whether every row with a tick in `[min, max]` is in range.
    pub(crate) fn holds_all(&self, min: i64, max: i64) -> bool {
        let starts = match self.start {
            None => true,
            Some(Placed::Ticks(_)) => self.tick_min <= min,
            // Days within the tick of the start may be before or after it.
            Some(Placed::Days(_)) => self.tick_min < min,
        };
        let ends = match self.end {
            None => true,
            Some(Placed::Ticks(_)) => max <= self.tick_max,
            Some(Placed::Days(_)) => max < self.tick_max,
        };
        starts && ends
    }

    /// Whether every time before `tick` is before the end of the range.
    pub(crate) fn ends_after(&self, tick: i64) -> bool {
        match self.end {
            None => true,
            Some(Placed::Ticks(end)) => tick <= end,
            // Every day before `tick` falls on an earlier tick than the end does.
            Some(Placed::Days(_)) => tick <= self.tick_max,
        }
    }

    /// Whether a row with a tick in `[min, max]` can be in range.
    pub(crate) fn touches(&self, min: i64, max: i64) -> bool {
        min <= self.tick_max && self.tick_min <= max
    }

    /// Inclusive range of windows that can contain a row in range.
    pub(crate) fn windows(&self, spec: &DatasetSpec) -> (Window, Window) {
        (spec.nearest_window(self.tick_min), spec.nearest_window(self.tick_max))
    }

    /// Clears `keep` for rows out of range. `array` is the time column; `keep` has its length.
    pub(crate) fn filter(&self, array: &ArrayRef, keep: &mut [bool]) {
        match times(array) {
            Some(Times::Ticks(ticks)) => {
                for (keep, tick) in keep.iter_mut().zip(ticks.iter()) {
                    *keep &= self.tick_min <= *tick && *tick <= self.tick_max;
                }
            }
            Some(Times::Days(days)) => {
                let days_of = |placed| match placed {
                    Some(Placed::Days(days)) => Some(days),
                    _ => None,
                };
                let (start, end) = (days_of(self.start), days_of(self.end));
                for (keep, day) in keep.iter_mut().zip(days) {
                    *keep &= start.is_none_or(|s| s <= *day) && end.is_none_or(|e| *day < e);
                }
            }
            None => keep.fill(false),
        }
    }
}

/// A time on the axis as text for people; the number of ticks if it is outside the calendar.
fn show(spec: &DatasetSpec, placed: Option<Placed>) -> String {
    match placed {
        Some(Placed::Ticks(tick)) => {
            let time = cast(&Int64Array::from(vec![tick]), spec.time_type());
            let text = time.and_then(|time| array_value_to_string(&time, 0));
            text.unwrap_or_else(|_| tick.to_string())
        }
        Some(Placed::Days(days)) => {
            format!("{} {days}", if spec.time.format == TimeFormat::Jd { "JD" } else { "MJD" })
        }
        None => "none".to_owned(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may unwrap
pub(crate) mod tests {
    use super::*;
    use arrow_array::{
        Date32Array, Float64Array, TimestampMicrosecondArray, TimestampMillisecondArray, TimestampNanosecondArray,
        TimestampSecondArray,
    };
    use arrow_schema::{Field, Schema};
    use chronotile_types::{CellRule, DatasetName, TimeScale, TimeSpec};
    use proptest::prelude::*;
    use std::sync::Arc;

    /// A dataset with windows of a second, a time column `t` and a tag.
    pub(crate) fn spec(format: TimeFormat) -> DatasetSpec {
        let time_type = match format {
            TimeFormat::Timestamp => DataType::Timestamp(TimeUnit::Microsecond, None),
            _ => DataType::Float64,
        };
        let fields = vec![Field::new("t", time_type, true), Field::new("tag", DataType::Int64, true)];
        let time = TimeSpec { column: "t".into(), format, scale: TimeScale::Utc };
        let name = DatasetName::new("records").unwrap();
        DatasetSpec {
            schema_versions: vec![2],
            cell: CellRule::Value { column: "tag".into() },
            windows_per_slice: 2,
            ..DatasetSpec::new(name, Arc::new(Schema::new(fields)), time, "1s".parse().unwrap())
        }
    }

    fn bounds(spec: &DatasetSpec, start: Option<f64>, end: Option<f64>) -> Result<Bounds, TimeError> {
        Bounds::new(spec, &TimeRange { start: start.map(Instant::Native), end: end.map(Instant::Native) })
    }

    /// Days so near one another that several fall on one tick: the `step`th double after a day that begins with a tick.
    fn day(step: i64) -> f64 {
        f64::from_bits(60_000_f64.to_bits().wrapping_add_signed(step))
    }

    proptest! {
        #[test]
        fn bounds_of_ticks_tell_of_rows_and_ranges_what_the_rows_do(
            start in prop::option::of(-5..5_i64), end in prop::option::of(-5..5_i64), (low, high) in (-7..7_i64, -7..7_i64),
        ) {
            let spec = spec(TimeFormat::Timestamp);
            // Ticks around the borders of windows.
            let at = |tick: i64| tick.div_euclid(2) * 1_000_000 + tick.rem_euclid(2) - 1;
            let (low, high) = (low.min(high), low.max(high));
            let found = bounds(&spec, start.map(|tick| at(tick) as f64), end.map(|tick| at(tick) as f64));
            if let (Some(start), Some(end)) = (start, end) && start > end {
                let is_refused = matches!(found, Err(TimeError::InvertedRange { .. }));
                prop_assert!(is_refused);
                return Ok(());
            }
            let found = found.unwrap();
            let is_in = |tick: i64| start.is_none_or(|start| at(start) <= tick) && end.is_none_or(|end| tick < at(end));
            let ticks: Vec<i64> = (-8..8).map(at).collect();
            let rows: ArrayRef = Arc::new(TimestampMicrosecondArray::from(ticks.clone()));
            let mut keep: Vec<bool> = ticks.iter().map(|tick| tick % 3 != 0).collect();
            let expected: Vec<bool> = ticks.iter().map(|tick| tick % 3 != 0 && is_in(*tick)).collect();
            found.filter(&rows, &mut keep);
            prop_assert_eq!(keep, expected);
            let (min, max) = (at(low), at(high));
            prop_assert_eq!(found.holds_all(min, max), is_in(min) && is_in(max));
            let begins = start.map_or(i64::MIN, at).max(min);
            let ends = end.map_or(i64::MAX, at).min(max + 1);
            if end != start {
                prop_assert_eq!(found.touches(min, max), begins < ends);
            }
            prop_assert_eq!(found.ends_after(min), end.is_none_or(|end| min <= at(end)));
            let (first, last) = found.windows(&spec);
            prop_assert_eq!(first.0, start.map_or(i32::MIN, |start| at(start).div_euclid(1_000_000) as i32));
            prop_assert_eq!(last.0, end.map_or(i32::MAX, |end| (at(end) - 1).div_euclid(1_000_000) as i32));
        }

        #[test]
        fn bounds_of_days_are_exact_for_rows_and_on_the_safe_side_for_ranges(
            start in prop::option::of(0..24_i64), end in prop::option::of(0..24_i64), (low, high) in (-9..33_i64, -9..33_i64),
        ) {
            let spec = spec(TimeFormat::Mjd);
            let found = bounds(&spec, start.map(day), end.map(day));
            if let (Some(start), Some(end)) = (start, end) && start > end {
                let is_refused = matches!(found, Err(TimeError::InvertedRange { .. }));
                prop_assert!(is_refused);
                return Ok(());
            }
            let found = found.unwrap();
            let days: Vec<f64> = (-9..33).map(day).collect();
            let rows: ArrayRef = Arc::new(Float64Array::from(days.clone()));
            let is_in = |day_: f64| start.is_none_or(|start| day(start) <= day_) && end.is_none_or(|end| day_ < day(end));
            let mut keep = vec![true; days.len()];
            found.filter(&rows, &mut keep);
            prop_assert_eq!(&keep, &days.iter().map(|day| is_in(*day)).collect::<Vec<_>>());

            let (ticks, windows) = place_rows(&spec, &rows).unwrap();
            let tick = |step: i64| spec.time.tick_of_days(day(step)).unwrap();
            let (min, max) = (tick(low.min(high)), tick(low.max(high)));
            let within = || ticks.iter().zip(&keep).filter(|(tick, _)| (min..=max).contains(*tick));
            prop_assert!(!found.holds_all(min, max) || within().all(|(_, kept)| *kept));
            prop_assert!(found.touches(min, max) || !within().any(|(_, kept)| *kept));
            prop_assert!(!found.ends_after(min) || ticks.iter().zip(&days).all(|(tick, row)| *tick >= min || end.is_none_or(|end| *row < day(end))));
            // One tick away from a bound there is no doubt.
            let starts = start.is_none_or(|start| tick(start) < min);
            let ends = end.is_none_or(|end| max < tick(end));
            prop_assert_eq!(found.holds_all(min, max), starts && ends);
            let apart = start.is_some_and(|start| max < tick(start)) || end.is_some_and(|end| tick(end) < min);
            prop_assert_eq!(found.touches(min, max), !apart);
            prop_assert_eq!(found.ends_after(min), end.is_none_or(|end| min <= tick(end)));
            let (first, last) = found.windows(&spec);
            prop_assert!(windows.iter().zip(&keep).all(|(window, kept)| !kept || (first.0..=last.0).contains(&window.0)));
        }

        #[test]
        fn order_in_time_is_that_of_the_days(a: f64, b: f64) {
            prop_assume!(!a.is_nan() && !b.is_nan() && a != b);
            let array: ArrayRef = Arc::new(Float64Array::from(vec![a, b]));
            let order = time_keys(&array);
            prop_assert_eq!(order[0] < order[1], a < b);
        }
    }

    #[test]
    fn bounds_at_the_ends_of_the_axis_hold_nothing_beyond() {
        let ticks = spec(TimeFormat::Timestamp);
        let range = |start, end| TimeRange { start, end };
        let none = Bounds::new(&ticks, &range(None, Some(Instant::NativeTicks(i64::MIN)))).unwrap();
        assert!(!none.touches(i64::MIN, 0) && !none.touches(0, i64::MAX) && !none.ends_after(0));
        let one = Bounds::new(&ticks, &range(None, Some(Instant::NativeTicks(i64::MIN + 1)))).unwrap();
        assert!(one.touches(i64::MIN, i64::MIN) && !one.touches(i64::MIN + 1, i64::MAX));
        let days = spec(TimeFormat::Mjd);
        let rows: ArrayRef = Arc::new(Float64Array::from(vec![-1e9, 60_000.0, 3e9]));
        let infinity = f64::INFINITY;
        for (start, end, kept) in [
            (Some(-infinity), Some(infinity), [true; 3]),
            (Some(infinity), None, [false; 3]),
            (None, Some(-infinity), [false; 3]),
            (Some(0.0), None, [false, true, true]),
            (None, Some(0.0), [true, false, false]),
        ] {
            let found = bounds(&days, start, end).unwrap();
            let mut keep = [true; 3];
            found.filter(&rows, &mut keep);
            assert_eq!(keep, kept, "{start:?} {end:?}");
            assert_eq!(
                found.touches(0, 0),
                start.is_none_or(|s| s <= 0.0) && end.is_none_or(|e| e > 1e5),
                "{start:?} {end:?}"
            );
        }
    }

    #[test]
    fn an_inverted_range_is_shown_as_people_write_times() {
        let shown = |format, start, end| bounds(&spec(format), Some(start), Some(end)).unwrap_err().to_string();
        let text = shown(TimeFormat::Timestamp, 7.0, 5.0);
        let (start, end) = ("1970-01-01T00:00:00.000007", "1970-01-01T00:00:00.000005");
        assert!(text.contains(&format!("start {start} is after end {end}")), "{text}");
        assert!(shown(TimeFormat::Mjd, 60_000.5, 60_000.0).contains("start MJD 60000.5 is after end MJD 60000"));
        assert!(shown(TimeFormat::Jd, 2_460_000.5, 2_460_000.0).contains("start JD 2460000.5"));
    }

    #[test]
    fn rows_without_a_place_are_named_with_the_reason() {
        let days = |values: Vec<Option<f64>>| Arc::new(Float64Array::from(values)) as ArrayRef;
        let refused = |format, array: &ArrayRef| place_rows(&spec(format), array).unwrap_err();
        for (format, last, reason) in [
            (TimeFormat::Mjd, None, "is null"),
            (TimeFormat::Mjd, Some(f64::NAN), "cannot count"),
            (TimeFormat::Mjd, Some(f64::INFINITY), "cannot count"),
            (TimeFormat::Mjd, Some(1e9), "cannot count"),
            (TimeFormat::Mjd, Some(2_460_000.5), "holds a Julian Date"),
            (TimeFormat::Jd, Some(60_000.5), "holds a Modified Julian Date"),
        ] {
            let good = if format == TimeFormat::Mjd { 60_000.0 } else { 2_460_000.0 };
            let (row, message) = refused(format, &days(vec![Some(good), Some(good), last]));
            assert!(row == 2 && message.contains(reason), "{row}: {message}");
        }
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1]));
        assert!(refused(TimeFormat::Timestamp, &numbers).1.contains("not of the dataset's type"));
        assert_eq!(time_keys(&numbers), [i64::MIN]);
        let far: ArrayRef = Arc::new(TimestampMicrosecondArray::from(vec![0, i64::MAX]));
        assert_eq!(refused(TimeFormat::Timestamp, &far).0, 1);
        let mut keep = [true];
        bounds(&spec(TimeFormat::Timestamp), None, None).unwrap().filter(&numbers, &mut keep);
        assert_eq!(keep, [false]);
    }

    #[test]
    fn ticks_are_the_values_of_a_column_of_times() {
        let values = vec![-1_i64, 0, 7];
        let arrays: [ArrayRef; 5] = [
            Arc::new(TimestampSecondArray::from(values.clone())),
            Arc::new(TimestampMillisecondArray::from(values.clone())),
            Arc::new(TimestampMicrosecondArray::from(values.clone())),
            Arc::new(TimestampNanosecondArray::from(values.clone())),
            Arc::new(Date32Array::from(vec![-1, 0, 7])),
        ];
        for array in &arrays {
            assert_eq!(time_keys(array), values, "{}", array.data_type());
        }
        let (ticks, windows) = place_rows(&spec(TimeFormat::Timestamp), &arrays[2]).unwrap();
        assert_eq!((ticks, windows), (values, vec![Window(-1), Window(0), Window(0)]));
    }
}
