//! The time axis of a dataset: durations, formats, scales and instants.

use std::fmt;
use std::str::FromStr;

use arrow_schema::{DataType, TimeUnit};
use serde::{Deserialize, Serialize};

/// A time, duration or time column that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TimeError {
    /// The text is not a duration.
    #[error("{0:?} is not a duration: write a whole number and a unit, such as 30d, 12h, 15m or 10s")]
    Duration(String),
    /// The name is not a time format.
    #[error("{0:?} is not a time format: use timestamp, mjd or jd")]
    Format(String),
    /// The name is not a time scale.
    #[error("{0:?} is not a time scale: use utc or tai")]
    Scale(String),
    /// The column's type cannot be the time column.
    #[error(
        "time column {column:?} has type {data_type}: use a timestamp or date32, or float64 days with format mjd or jd"
    )]
    ColumnType {
        /// The column.
        column: String,
        /// Its Arrow type.
        data_type: String,
    },
    /// A time outside the range of the axis.
    #[error("time {0} lies outside the range the time column can hold")]
    OutOfRange(String),
    /// A number of days that is probably in another format.
    #[error("time {value} looks like a {}, but column {column:?} counts {}s", days_name(*found), days_name(*format))]
    OtherFormat {
        /// The number.
        value: String,
        /// The time column.
        column: String,
        /// The probable format of the number.
        found: TimeFormat,
        /// The format of the column.
        format: TimeFormat,
    },
    /// A range that ends before it starts.
    #[error("the time range is inverted: start {start} is after end {end}")]
    InvertedRange {
        /// Inclusive start, in the time column's unit.
        start: String,
        /// Exclusive end, in the time column's unit.
        end: String,
    },
    /// The text is not a time.
    #[error(
        "{0:?} is not a time: write ISO 8601 such as 2026-01-31T12:00:00Z, or a number in the unit of the time column"
    )]
    Text(String),
}

fn days_name(format: TimeFormat) -> &'static str {
    if format == TimeFormat::Jd { "Julian Date" } else { "Modified Julian Date" }
}

/// A positive length of time in whole seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Duration {
    seconds: i64,
}

impl Duration {
    const UNITS: [(char, i64); 5] = [('w', 604_800), ('d', 86_400), ('h', 3_600), ('m', 60), ('s', 1)];

    /// `None` unless 1 second to 10,000 years.
    pub fn from_seconds(seconds: i64) -> Option<Self> {
        (1..=315_576_000_000).contains(&seconds).then_some(Self { seconds })
    }

    /// Length in seconds.
    pub fn seconds(self) -> i64 {
        self.seconds
    }
}

impl FromStr for Duration {
    type Err = TimeError;
    fn from_str(text: &str) -> Result<Self, TimeError> {
        let bad = || TimeError::Duration(text.to_owned());
        let trimmed = text.trim();
        let unit = trimmed.chars().last().ok_or_else(bad)?;
        let (_, seconds) = Self::UNITS.into_iter().find(|(name, _)| *name == unit).ok_or_else(bad)?;
        let count: i64 = trimmed[..trimmed.len() - unit.len_utf8()].trim().parse().map_err(|_| bad())?;
        count.checked_mul(seconds).and_then(Self::from_seconds).ok_or_else(bad)
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = |unit: i64| self.seconds % unit == 0;
        let units = Self::UNITS.into_iter().filter(|(name, _)| *name != 'w');
        let (name, unit) = units.into_iter().find(|(_, unit)| whole(*unit)).unwrap_or(('s', 1));
        write!(f, "{}{}", self.seconds / unit, name)
    }
}

impl TryFrom<String> for Duration {
    type Error = TimeError;
    fn try_from(text: String) -> Result<Self, TimeError> {
        text.parse()
    }
}

impl From<Duration> for String {
    fn from(duration: Duration) -> Self {
        duration.to_string()
    }
}

/// The format of a dataset's time column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TimeFormat {
    /// An Arrow timestamp (any unit, with or without zone) or date32.
    Timestamp,
    /// float64 days, Modified Julian Date: 40587.0 is 1970-01-01T00:00.
    Mjd,
    /// float64 days, Julian Date: 2440587.5 is 1970-01-01T00:00.
    Jd,
}

impl FromStr for TimeFormat {
    type Err = TimeError;
    fn from_str(text: &str) -> Result<Self, TimeError> {
        match text {
            "timestamp" => Ok(Self::Timestamp),
            "mjd" => Ok(Self::Mjd),
            "jd" => Ok(Self::Jd),
            _ => Err(TimeError::Format(text.to_owned())),
        }
    }
}

/// The time scale of a dataset's time column.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TimeScale {
    /// Coordinated Universal Time, days of 86,400 s (leap seconds not counted).
    Utc,
    /// International Atomic Time.
    Tai,
}

impl FromStr for TimeScale {
    type Err = TimeError;
    fn from_str(text: &str) -> Result<Self, TimeError> {
        match text {
            "utc" => Ok(Self::Utc),
            "tai" => Ok(Self::Tai),
            _ => Err(TimeError::Scale(text.to_owned())),
        }
    }
}

/// An instant given by a caller, before it is converted to a dataset's time axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Instant {
    /// Nanoseconds since 1970-01-01T00:00 UTC, as clocks and `datetime` count.
    UtcNanoseconds(i128),
    /// A number in the unit, format and scale of the time column itself.
    Native(f64),
    /// A whole number in the unit of a timestamp column.
    NativeTicks(i64),
}

/// Ticks per second of float-day axes: microseconds.
const DAY_TICKS_PER_SECOND: i64 = 1_000_000;
const MJD_OF_UNIX_EPOCH: f64 = 40_587.0;
const JD_OF_UNIX_EPOCH: f64 = 2_440_587.5;

/// The time axis of a dataset: the time column, its format and its scale.
///
/// Internally, an instant is a signed count of *ticks* since 1970-01-01T00:00 in the column's scale. A tick is the column's unit
/// for timestamps (a day for date32) and a microsecond for MJD and JD. The conversion from float days to ticks is monotone, so
/// ticks suffice to compute windows and prune chunks; range tests of single rows compare the column's own values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimeSpec {
    /// Name of the time column.
    pub column: String,
    /// Format of the column.
    pub format: TimeFormat,
    /// Time scale of the column.
    pub scale: TimeScale,
}

/// Half-open range `[start, end)` of ticks; `None` is unbounded.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TimeRange {
    /// Inclusive start.
    pub start: Option<Instant>,
    /// Exclusive end.
    pub end: Option<Instant>,
}

impl TimeSpec {
    /// Checks that a column of `data_type` can have this format.
    pub fn check_column(&self, data_type: &DataType) -> Result<(), TimeError> {
        let fits = match self.format {
            TimeFormat::Timestamp => matches!(data_type, DataType::Timestamp(_, _) | DataType::Date32),
            TimeFormat::Mjd | TimeFormat::Jd => matches!(data_type, DataType::Float64),
        };
        let refused = || TimeError::ColumnType { column: self.column.clone(), data_type: data_type.to_string() };
        if fits { Ok(()) } else { Err(refused()) }
    }

    /// Nanoseconds in one tick of a column of `data_type`.
    pub fn tick_nanoseconds(data_type: &DataType) -> i64 {
        match data_type {
            DataType::Timestamp(TimeUnit::Second, _) => 1_000_000_000,
            DataType::Timestamp(TimeUnit::Millisecond, _) => 1_000_000,
            DataType::Timestamp(TimeUnit::Nanosecond, _) => 1,
            DataType::Date32 => 86_400_000_000_000,
            _ => 1_000_000_000 / DAY_TICKS_PER_SECOND,
        }
    }

    /// Ticks in `duration`; `None` if it is not a whole number of ticks (an hour on a date32 axis).
    pub fn ticks_of(data_type: &DataType, duration: Duration) -> Option<i64> {
        // In nanoseconds, the longest duration (10,000 years) exceeds 64 bits.
        let nanoseconds = i128::from(duration.seconds()) * 1_000_000_000;
        let tick = i128::from(Self::tick_nanoseconds(data_type));
        (nanoseconds % tick == 0).then(|| i64::try_from(nanoseconds / tick).ok())?
    }

    /// The probable format of a number of days, if it differs from the column's. The formats are unlikely to be confused: an MJD of
    /// the years 1900 to 2132, read as a JD, is before 4400 BC, and a JD of 1858 to 2132, read as an MJD, is after the year 8400.
    pub fn other_format(&self, days: f64) -> Option<TimeFormat> {
        match self.format {
            TimeFormat::Jd if (15_000.0..=100_000.0).contains(&days) => Some(TimeFormat::Mjd),
            TimeFormat::Mjd if (2_400_000.0..=2_500_000.0).contains(&days) => Some(TimeFormat::Jd),
            _ => None,
        }
    }

    fn days(&self, value: f64) -> Result<Placed, TimeError> {
        match self.other_format(value) {
            None => Ok(Placed::Days(value)),
            Some(found) => {
                let (column, format) = (self.column.clone(), self.format);
                Err(TimeError::OtherFormat { value: value.to_string(), column, found, format })
            }
        }
    }

    /// The tick of a float day in this format; `None` for NaN, infinities and days outside the axis.
    pub fn tick_of_days(&self, days: f64) -> Option<i64> {
        let epoch = if self.format == TimeFormat::Jd { JD_OF_UNIX_EPOCH } else { MJD_OF_UNIX_EPOCH };
        let ticks = ((days - epoch) * (86_400 * DAY_TICKS_PER_SECOND) as f64).floor();
        // 2^62 ticks, 146,000 years on either side, keep sums and window arithmetic from overflowing.
        (ticks.abs() < 4.6e18).then_some(ticks as i64)
    }

    /// The float day closest to a tick, in this format.
    pub fn days_of_tick(&self, tick: i64) -> f64 {
        let epoch = if self.format == TimeFormat::Jd { JD_OF_UNIX_EPOCH } else { MJD_OF_UNIX_EPOCH };
        tick as f64 / (86_400 * DAY_TICKS_PER_SECOND) as f64 + epoch
    }

    /// Converts `instant` to the unit of a column of `data_type`.
    ///
    /// An instant between two ticks is rounded up, so that `t < end` and `t >= start` have the same result for the rounded value
    /// as for the instant itself.
    pub fn place(&self, data_type: &DataType, instant: Instant) -> Result<Placed, TimeError> {
        let outside = || TimeError::OutOfRange(format!("{instant:?}"));
        let days = !matches!(self.format, TimeFormat::Timestamp);
        match instant {
            Instant::Native(value) if value.is_nan() => Err(outside()),
            Instant::Native(value) if days => self.days(value),
            Instant::NativeTicks(value) if days => self.days(value as f64),
            Instant::NativeTicks(value) => Ok(Placed::Ticks(value)),
            // The bound is just below 2^63, so that the cast does not saturate.
            Instant::Native(value) if value.abs() < 9.2e18 => Ok(Placed::Ticks(value.ceil() as i64)),
            Instant::Native(_) => Err(outside()),
            Instant::UtcNanoseconds(utc) => {
                let nanoseconds = utc + if self.scale == TimeScale::Tai { tai_minus_utc_nanoseconds(utc) } else { 0 };
                if days {
                    return Ok(Placed::Days(self.days_of_nanoseconds(nanoseconds)));
                }
                let tick = i128::from(Self::tick_nanoseconds(data_type));
                // `div_euclid` rounds down before 1970, too; a remainder then leads to the next tick.
                let ticks = nanoseconds.div_euclid(tick) + i128::from(nanoseconds.rem_euclid(tick) != 0);
                i64::try_from(ticks).map(Placed::Ticks).map_err(|_| outside())
            }
        }
    }

    fn days_of_nanoseconds(&self, nanoseconds: i128) -> f64 {
        const DAY: i128 = 86_400_000_000_000;
        let epoch = if self.format == TimeFormat::Jd { JD_OF_UNIX_EPOCH } else { MJD_OF_UNIX_EPOCH };
        // Whole days and the fraction are computed separately, so that only their sum is rounded.
        (nanoseconds.div_euclid(DAY) as f64 + epoch) + nanoseconds.rem_euclid(DAY) as f64 / DAY as f64
    }
}

/// An instant in the unit of a dataset's time column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Placed {
    /// Ticks of a timestamp or date32 column.
    Ticks(i64),
    /// Days of a float column, in the column's format.
    Days(f64),
}

/// TAI - UTC in nanoseconds at a UTC instant, from IERS Bulletin C: 10 s at 1972-01-01, 37 s since 2017-01-01.
/// Before 1972 it is taken as 10 s.
pub fn tai_minus_utc_nanoseconds(utc_nanoseconds: i128) -> i128 {
    let seconds = utc_nanoseconds.div_euclid(1_000_000_000);
    let steps = LEAP_SECONDS_UNIX.iter().take_while(|start| seconds >= i128::from(**start)).count();
    (10 + steps as i128) * 1_000_000_000
}

/// Unix times at which TAI - UTC increased by one second.
const LEAP_SECONDS_UNIX: [i64; 27] = [
    78_796_800,
    94_694_400,
    126_230_400,
    157_766_400,
    189_302_400,
    220_924_800,
    252_460_800,
    283_996_800,
    315_532_800,
    362_793_600,
    394_329_600,
    425_865_600,
    489_024_000,
    567_993_600,
    631_152_000,
    662_688_000,
    709_948_800,
    741_484_800,
    773_020_800,
    820_454_400,
    867_715_200,
    915_148_800,
    1_136_073_600,
    1_230_768_000,
    1_341_100_800,
    1_435_708_800,
    1_483_228_800,
];

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn axis(format: TimeFormat, scale: TimeScale) -> TimeSpec {
        TimeSpec { column: "t".to_owned(), format, scale }
    }

    #[test]
    fn days_in_the_other_format_are_recognized() {
        let place = |format, days| axis(format, TimeScale::Utc).place(&DataType::Float64, Instant::Native(days));
        for (format, days, is_other) in [
            (TimeFormat::Jd, 61_041.5, true),
            (TimeFormat::Jd, 2_461_042.0, false),
            (TimeFormat::Jd, 14_999.0, false),
            (TimeFormat::Jd, 100_001.0, false),
            (TimeFormat::Mjd, 2_461_042.0, true),
            (TimeFormat::Mjd, 61_041.5, false),
            (TimeFormat::Mjd, 0.0, false),
            (TimeFormat::Mjd, 2_500_001.0, false),
        ] {
            assert_eq!(
                matches!(place(format, days), Err(TimeError::OtherFormat { .. })),
                is_other,
                "{format:?} {days}"
            );
        }
    }

    #[test]
    fn durations_are_read_and_written_the_same() {
        for (text, seconds) in [("30d", 2_592_000), ("1h", 3600), ("90s", 90), ("2w", 1_209_600), ("15m", 900)] {
            let duration: Duration = text.parse().unwrap();
            assert_eq!(duration.seconds(), seconds);
            assert_eq!(duration.to_string().parse::<Duration>().unwrap(), duration);
        }
        for bad in ["", "d", "1", "0d", "-1d", "1.5h", "1y", "9999999999999d", "é"] {
            assert!(bad.parse::<Duration>().is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn float_days_agree_with_known_instants() {
        let mjd = axis(TimeFormat::Mjd, TimeScale::Utc);
        assert_eq!(mjd.tick_of_days(40_587.0), Some(0));
        assert_eq!(axis(TimeFormat::Jd, TimeScale::Utc).tick_of_days(2_440_588.5), Some(86_400_000_000));
        // 2017-01-01T00:00:00 UTC is MJD 57754, and 37 s later in TAI.
        let utc = Instant::UtcNanoseconds(1_483_228_800_000_000_000);
        assert_eq!(mjd.place(&DataType::Float64, utc).unwrap(), Placed::Days(57_754.0));
        let tai = axis(TimeFormat::Mjd, TimeScale::Tai).place(&DataType::Float64, utc).unwrap();
        assert_eq!(tai, Placed::Days(57_754.0 + 37.0 / 86_400.0));
        assert_eq!(mjd.tick_of_days(f64::NAN), None);
        assert_eq!(mjd.tick_of_days(f64::INFINITY), None);
    }

    #[test]
    fn names_of_formats_and_scales_are_those_of_the_stored_definition() {
        for format in [TimeFormat::Timestamp, TimeFormat::Mjd, TimeFormat::Jd] {
            let stored = serde_json::to_string(&format).unwrap();
            assert_eq!(stored.trim_matches('"').parse(), Ok(format));
        }
        for scale in [TimeScale::Utc, TimeScale::Tai] {
            let stored = serde_json::to_string(&scale).unwrap();
            assert_eq!(stored.trim_matches('"').parse(), Ok(scale));
        }
        assert!("JD".parse::<TimeFormat>().is_err() && "gps".parse::<TimeScale>().is_err());
    }

    #[test]
    fn an_error_says_which_days_were_expected_and_which_given() {
        for (format, days, expected, given) in [
            (TimeFormat::Jd, 61_041.5, "Julian Date", "Modified Julian Date"),
            (TimeFormat::Mjd, 2_461_042.0, "Modified Julian Date", "Julian Date"),
        ] {
            let placed = axis(format, TimeScale::Utc).place(&DataType::Float64, Instant::Native(days));
            let message = placed.unwrap_err().to_string();
            assert!(message.contains(&format!("counts {expected}")), "{message}");
            assert!(message.contains(&format!("looks like a {given}")), "{message}");
        }
    }

    #[test]
    fn ticks_have_the_unit_of_the_column() {
        use TimeUnit::{Microsecond, Millisecond, Nanosecond, Second};
        let hour: Duration = "1h".parse().unwrap();
        for (data_type, nanoseconds, hours) in [
            (DataType::Timestamp(Second, None), 1_000_000_000, Some(3_600)),
            (DataType::Timestamp(Millisecond, None), 1_000_000, Some(3_600_000)),
            (DataType::Timestamp(Microsecond, None), 1_000, Some(3_600_000_000)),
            (DataType::Timestamp(Nanosecond, None), 1, Some(3_600_000_000_000)),
            (DataType::Date32, 86_400_000_000_000, None),
            (DataType::Float64, 1_000, Some(3_600_000_000)),
        ] {
            assert_eq!(TimeSpec::tick_nanoseconds(&data_type), nanoseconds, "{data_type}");
            assert_eq!(TimeSpec::ticks_of(&data_type, hour), hours, "{data_type}");
        }
        assert_eq!(TimeSpec::ticks_of(&DataType::Date32, "3d".parse().unwrap()), Some(3));
    }

    #[test]
    fn numbers_of_a_caller_are_in_the_unit_of_the_column() {
        let seconds = DataType::Timestamp(TimeUnit::Second, None);
        let stamps = axis(TimeFormat::Timestamp, TimeScale::Utc);
        let mjd = axis(TimeFormat::Mjd, TimeScale::Utc);
        let placed = |given| stamps.place(&seconds, given).ok();
        assert_eq!(placed(Instant::Native(6.25)), Some(Placed::Ticks(7)));
        assert_eq!(placed(Instant::Native(-6.25)), Some(Placed::Ticks(-6)));
        assert_eq!(placed(Instant::NativeTicks(7)), Some(Placed::Ticks(7)));
        let (largest, beyond) = (9.2e18f64.next_down(), 9.2e18);
        assert_eq!(placed(Instant::Native(largest)), Some(Placed::Ticks(largest as i64)));
        assert_eq!(placed(Instant::Native(-largest)), Some(Placed::Ticks(-largest as i64)));
        for outside in [f64::NAN, f64::INFINITY, beyond, -beyond, 9.3e18] {
            assert_eq!(placed(Instant::Native(outside)), None, "{outside}");
        }
        assert_eq!(mjd.place(&DataType::Float64, Instant::Native(6.25)), Ok(Placed::Days(6.25)));
        assert_eq!(mjd.place(&DataType::Float64, Instant::NativeTicks(61_041)), Ok(Placed::Days(61_041.0)));
        assert!(mjd.place(&DataType::Float64, Instant::Native(f64::NAN)).is_err());
    }

    #[test]
    fn instants_between_ticks_round_up() {
        let seconds = DataType::Timestamp(TimeUnit::Second, None);
        let spec = axis(TimeFormat::Timestamp, TimeScale::Utc);
        let place = |ns| spec.place(&seconds, Instant::UtcNanoseconds(ns)).unwrap();
        assert_eq!(place(1), Placed::Ticks(1));
        assert_eq!(place(-1), Placed::Ticks(0));
        assert_eq!(place(2_000_000_000), Placed::Ticks(2));
    }

    proptest! {
        #[test]
        fn ticks_of_days_never_reverse_the_order(a in -1e6..1e7f64, b in -1e6..1e7f64) {
            let spec = axis(TimeFormat::Jd, TimeScale::Utc);
            if a <= b {
                prop_assert!(spec.tick_of_days(a) <= spec.tick_of_days(b));
            }
        }

        #[test]
        fn days_and_ticks_are_each_others_inverse(hours in -1_000_000i64..1_000_000) {
            // Whole hours, in microseconds: float days of these centuries resolve them.
            let tick = hours * 3_600_000_000;
            for (format, epoch) in [(TimeFormat::Mjd, 40_587.0), (TimeFormat::Jd, 2_440_587.5)] {
                let spec = axis(format, TimeScale::Utc);
                let days = spec.days_of_tick(tick);
                prop_assert!((days - epoch - hours as f64 / 24.0).abs() < 1e-9);
                prop_assert!((spec.tick_of_days(days + 1e-9).unwrap() - tick).abs() < 1_000);
            }
        }
    }
}
