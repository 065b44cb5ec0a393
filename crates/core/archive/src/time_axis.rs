//! The time column of a batch: ticks of its rows, and exact tests against a range.

use arrow_array::cast::AsArray;
use arrow_array::types::{
    Date32Type, Float64Type, TimestampMicrosecondType, TimestampMillisecondType, TimestampNanosecondType,
    TimestampSecondType,
};
use arrow_array::{Array, ArrayRef};
use arrow_schema::{DataType, TimeUnit};
use chronotile_types::{DatasetSpec, Instant, Placed, TimeError, TimeFormat, TimeRange, TimeSpec, Window};

/// Values of the time column in its own unit, without nulls.
pub(crate) enum Times<'a> {
    Ticks(std::borrow::Cow<'a, [i64]>),
    Days(&'a [f64]),
}

/// The values of the time column; `None` when the array is not of the column's type.
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

/// A row that has no place on the axis, and why.
pub(crate) type Unplaced = (usize, &'static str);

/// Tick and window of every row, or the first row that has none with the reason.
pub(crate) fn place_rows(spec: &DatasetSpec, array: &ArrayRef) -> Result<(Vec<i64>, Vec<Window>), Unplaced> {
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

/// Order of a row in time: the value of a timestamp, or the bits of a float day in an order-keeping form.
pub(crate) type When = i64;

/// The order of rows in time, by the time column.
pub(crate) fn whens(time: &ArrayRef) -> Vec<When> {
    match times(time) {
        Some(Times::Ticks(ticks)) => ticks.to_vec(),
        // Bits of a float order as the float does once those of negative ones are turned over.
        Some(Times::Days(days)) => {
            days.iter().map(|day| day.to_bits() as i64).map(|b| b ^ ((b >> 63) & i64::MAX)).collect()
        }
        None => vec![i64::MIN; time.len()],
    }
}

/// A half-open time range on a dataset's axis, exact for single rows and as inclusive ticks for chunks.
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
    /// Puts `range` on the axis; refuses one whose start is after its end.
    pub(crate) fn new(spec: &DatasetSpec, range: &TimeRange) -> Result<Self, TimeError> {
        let place = |instant: Option<Instant>| instant.map(|i| spec.time.place(spec.time_type(), i)).transpose();
        let (start, end) = (place(range.start)?, place(range.end)?);
        // A day beyond the axis (infinity) bounds nothing.
        let tick = |placed, beyond: i64| match placed {
            Placed::Ticks(tick) => tick,
            Placed::Days(days) => spec.time.tick_of_days(days).unwrap_or(if days > 0.0 { i64::MAX } else { beyond }),
        };
        let tick_min = start.map_or(i64::MIN, |s| tick(s, i64::MIN));
        let tick_max = match end {
            None => i64::MAX,
            // Nothing lies before the first tick there is.
            Some(Placed::Ticks(i64::MIN)) => return Ok(Self { start, end, tick_min: i64::MAX, tick_max: i64::MIN }),
            Some(Placed::Ticks(end)) => end - 1,
            Some(days) => tick(days, i64::MIN),
        };
        let inverted = match (start, end) {
            (Some(Placed::Ticks(s)), Some(Placed::Ticks(e))) => s > e,
            (Some(Placed::Days(s)), Some(Placed::Days(e))) => s > e,
            _ => false,
        };
        if inverted {
            return Err(TimeError::InvertedRange { start: show(&spec.time, start), end: show(&spec.time, end) });
        }
        Ok(Self { start, end, tick_min, tick_max })
    }

    /// Whether no row of the range `[min, max]` of ticks can be left out.
    pub(crate) fn holds_all(&self, min: i64, max: i64) -> bool {
        let starts = match self.start {
            None => true,
            Some(Placed::Ticks(_)) => self.tick_min <= min,
            // Days within one tick of the start may lie on either side of it.
            Some(Placed::Days(_)) => self.tick_min < min,
        };
        let ends = match self.end {
            None => true,
            Some(Placed::Ticks(_)) => max <= self.tick_max,
            Some(Placed::Days(_)) => max < self.tick_max,
        };
        starts && ends
    }

    /// Whether everything before `tick` lies before the end of the range.
    pub(crate) fn ends_after(&self, tick: i64) -> bool {
        match self.end {
            None => true,
            Some(Placed::Ticks(end)) => tick <= end,
            Some(Placed::Days(_)) => tick <= self.tick_max,
        }
    }

    /// Whether some row of the range `[min, max]` of ticks can be in range.
    pub(crate) fn touches(&self, min: i64, max: i64) -> bool {
        min <= self.tick_max && self.tick_min <= max
    }

    /// Inclusive range of windows that can hold a row in range.
    pub(crate) fn windows(&self, spec: &DatasetSpec) -> (Window, Window) {
        let clamp =
            |tick: i64| Window(tick.div_euclid(spec.window_ticks()).clamp(i32::MIN.into(), i32::MAX.into()) as i32);
        (clamp(self.tick_min), clamp(self.tick_max))
    }

    /// Clears `keep` for rows out of range. `array` is the time column, `keep` as long.
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

fn show(spec: &TimeSpec, placed: Option<Placed>) -> String {
    match placed {
        Some(Placed::Ticks(tick)) => tick.to_string(),
        Some(Placed::Days(days)) => format!("{} {days}", if spec.format == TimeFormat::Jd { "JD" } else { "MJD" }),
        None => "none".to_owned(),
    }
}
