//! Constants compared with a column: compared exactly, never rounded to the column's type.
//!
//! In a discrete type (integers, decimals, times, booleans), a constant is either a value of the type or lies between
//! two of them. Text is read exactly. A float64 stands for its shortest decimal, as it is written and printed; in a
//! float32 column, 0.1 matches a value that was stored as 0.1.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::timezone::Tz;
use arrow_array::types::{Decimal128Type, Float64Type, Int64Type, UInt64Type};
use arrow_array::{Array, ArrayRef, Decimal128Array, Float64Array, Int64Array, UInt64Array};
use arrow_cast::parse::{string_to_datetime, string_to_time_nanoseconds};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{DataType, TimeUnit};

use crate::read::number::{ConstantPosition, Number};
use crate::write::input::conform_array;

/// Constants located in a column's type.
pub(crate) enum LocatedConstants {
    /// In units of a discrete type.
    Whole(Vec<ConstantPosition<i128>>),
    Floats(Vec<ConstantPosition<f64>>),
    /// Text and bytes, of the column's type.
    Plain(ArrayRef),
}

type Converted<T> = std::result::Result<T, String>;

const STRICT: CastOptions<'static> = CastOptions { safe: false, format_options: FORMAT };
const FORMAT: arrow_cast::display::FormatOptions<'static> = arrow_cast::display::FormatOptions::new();

/// Locates each constant in the column's type; the constants must not be null.
pub(crate) fn spots(given: &ArrayRef, wanted: &DataType) -> Converted<LocatedConstants> {
    let given = &plain(given)?;
    if wanted.is_temporal() {
        return times(given, wanted).map(LocatedConstants::Whole);
    }
    match wanted {
        DataType::Float32 | DataType::Float64 => {
            let narrow = *wanted == DataType::Float32;
            Ok(LocatedConstants::Floats(
                numbers(given, wanted)?.iter().map(|number| number.among_floats(narrow)).collect(),
            ))
        }
        _ => match whole_range(wanted) {
            Some(range) => {
                let scale = if let DataType::Decimal128(_, scale) = wanted { *scale } else { 0 };
                let spot = |number: Number| within(number.among_steps(scale), range);
                Ok(LocatedConstants::Whole(numbers(given, wanted)?.into_iter().map(spot).collect()))
            }
            None => text(given, wanted).map(LocatedConstants::Plain),
        },
    }
}

/// Converts constants to the column's type, keeping nulls. Refuses a value that the type cannot hold exactly.
///
/// # Errors
/// The reason, worded to follow the name of the column.
pub fn exact_values(given: &ArrayRef, wanted: &DataType) -> Converted<ArrayRef> {
    if given.data_type() == wanted {
        return Ok(given.clone());
    }
    // In a dictionary, the null may be among the values: only logical nulls show it.
    let nulls = given.logical_nulls().filter(|nulls| nulls.null_count() > 0);
    let Some(nulls) = nulls else {
        return values_at(&spots(given, wanted)?, wanted);
    };
    let places: Vec<u64> = (0..given.len()).filter(|row| nulls.is_valid(*row)).map(|row| row as u64).collect();
    let failed = |e: arrow_schema::ArrowError| e.to_string();
    let present = arrow_select::take::take(given, &UInt64Array::from(places), None).map_err(failed)?;
    let values = if present.is_empty() {
        arrow_array::new_empty_array(wanted)
    } else {
        values_at(&spots(&present, wanted)?, wanted)?
    };
    let mut next = 0;
    let spread = nulls.iter().map(|valid| {
        next += u64::from(valid);
        valid.then(|| next - 1)
    });
    arrow_select::take::take(&values, &UInt64Array::from_iter(spread), None).map_err(failed)
}

fn values_at(spots: &LocatedConstants, wanted: &DataType) -> Converted<ArrayRef> {
    fn all<T: Copy>(spots: &[ConstantPosition<T>], wanted: &DataType) -> Converted<Vec<T>> {
        let at = |(place, spot): (usize, &ConstantPosition<T>)| match spot {
            ConstantPosition::At(value) => Ok(*value),
            _ => Err(format!("has a value, number {place}, that {wanted} cannot hold exactly")),
        };
        spots.iter().enumerate().map(at).collect()
    }
    match spots {
        LocatedConstants::Whole(spots) => whole_array(&all(spots, wanted)?, wanted),
        LocatedConstants::Floats(spots) => {
            let values = all(spots, wanted)?;
            let array: ArrayRef = Arc::new(Float64Array::from(values));
            // A cast to float32 rounds without an error, so only the way back shows whether the value fits.
            let cast = cast_with_options(&array, wanted, &STRICT).map_err(|e| e.to_string())?;
            let back = cast_with_options(&cast, &DataType::Float64, &STRICT).map_err(|e| e.to_string())?;
            let differs = |(a, b): (&f64, &f64)| a != b && !(a.is_nan() && b.is_nan());
            let (back, array) = (back.as_primitive::<Float64Type>(), array.as_primitive::<Float64Type>());
            match back.values().iter().zip(array.values()).position(differs) {
                Some(place) => Err(format!("has a value, number {place}, that {wanted} cannot hold exactly")),
                None => Ok(cast),
            }
        }
        LocatedConstants::Plain(values) => Ok(values.clone()),
    }
}

/// Values of a discrete type in its units; the reverse of [`whole_array`].
fn counts(array: &ArrayRef) -> Converted<Vec<i128>> {
    match array.data_type() {
        // The cast below would refuse values past the greatest int64.
        DataType::UInt64 => Ok(array.as_primitive::<UInt64Type>().values().iter().map(|v| i128::from(*v)).collect()),
        DataType::Decimal128(_, _) => Ok(array.as_primitive::<Decimal128Type>().values().to_vec()),
        _ => {
            let counts = cast_with_options(array, &DataType::Int64, &STRICT).map_err(|e| e.to_string())?;
            Ok(counts.as_primitive::<Int64Type>().values().iter().map(|v| i128::from(*v)).collect())
        }
    }
}

/// A column of a discrete type, from values in its units that are within its range.
pub(crate) fn whole_array(counts: &[i128], wanted: &DataType) -> Converted<ArrayRef> {
    let failed = |e: arrow_schema::ArrowError| e.to_string();
    match wanted {
        DataType::Decimal128(precision, scale) => {
            let values = Decimal128Array::from(counts.to_vec()).with_precision_and_scale(*precision, *scale);
            Ok(Arc::new(values.map_err(failed)?))
        }
        DataType::UInt64 => Ok(Arc::new(UInt64Array::from_iter_values(counts.iter().map(|count| *count as u64)))),
        _ => {
            let mut array: ArrayRef = Arc::new(Int64Array::from_iter_values(counts.iter().map(|count| *count as i64)));
            // Arrow has no cast from int64 to a 32-bit time of day, only from int32.
            if wanted.is_temporal() && wanted.primitive_width() == Some(4) {
                array = cast_with_options(&array, &DataType::Int32, &STRICT).map_err(failed)?;
            }
            cast_with_options(&array, wanted, &STRICT).map_err(failed)
        }
    }
}

/// The least and the greatest value of a discrete type in its units.
fn whole_range(wanted: &DataType) -> Option<(i128, i128)> {
    let bits = |bits: u32| (-(1_i128 << (bits - 1)), (1_i128 << (bits - 1)) - 1);
    let unsigned = |bits: u32| (0, (1_i128 << bits) - 1);
    Some(match wanted {
        DataType::Boolean => (0, 1),
        DataType::Int8 => bits(8),
        DataType::Int16 => bits(16),
        DataType::Int32 | DataType::Date32 | DataType::Time32(_) => bits(32),
        DataType::UInt8 => unsigned(8),
        DataType::UInt16 => unsigned(16),
        DataType::UInt32 => unsigned(32),
        DataType::UInt64 => unsigned(64),
        DataType::Decimal128(precision, _) => {
            let end = 10_i128.pow(u32::from(*precision).min(38)) - 1;
            (-end, end)
        }
        DataType::Int64
        | DataType::Date64
        | DataType::Time64(_)
        | DataType::Timestamp(_, _)
        | DataType::Duration(_) => bits(64),
        _ => return None,
    })
}

fn within(spot: ConstantPosition<i128>, (low, high): (i128, i128)) -> ConstantPosition<i128> {
    match spot {
        ConstantPosition::At(value) | ConstantPosition::After(value) if value < low => ConstantPosition::Below,
        ConstantPosition::At(value) if value > high => ConstantPosition::Above,
        ConstantPosition::After(value) if value >= high => ConstantPosition::Above,
        spot => spot,
    }
}

/// Without dictionaries, and text in its plain form.
fn plain(given: &ArrayRef) -> Converted<ArrayRef> {
    let kind = match given.data_type() {
        DataType::Dictionary(_, values) => values.as_ref(),
        DataType::LargeUtf8 | DataType::Utf8View => &DataType::Utf8,
        _ => return Ok(given.clone()),
    };
    plain(&cast_with_options(given, kind, &STRICT).map_err(|e| e.to_string())?)
}

fn numbers(given: &ArrayRef, wanted: &DataType) -> Converted<Vec<Number>> {
    match given.data_type() {
        DataType::Utf8 => {
            let number = |text: Option<&str>| {
                let text = text.unwrap_or_default();
                let truth = (*wanted == DataType::Boolean).then(|| text.trim().to_ascii_lowercase());
                match truth.as_deref() {
                    Some("true") => Ok(Number::from(1)),
                    Some("false") => Ok(Number::from(0)),
                    _ => Number::parse(text).ok_or_else(|| {
                        let takes = if truth.is_some() { "true or false" } else { "a number" };
                        format!("is {wanted} and takes {takes}, not {text:?}")
                    }),
                }
            };
            given.as_string::<i32>().iter().map(number).collect()
        }
        kind if kind.is_floating() => {
            let floats = cast_with_options(given, &DataType::Float64, &STRICT).map_err(|e| e.to_string())?;
            Ok(floats.as_primitive::<Float64Type>().values().iter().map(|value| Number::Float(*value)).collect())
        }
        DataType::Decimal128(_, scale) => {
            let decimal = |value: i128| Number::decimal(value, -i32::from(*scale));
            Ok(counts(given)?.into_iter().map(decimal).collect())
        }
        kind if kind.is_integer() || *kind == DataType::Boolean => {
            Ok(counts(given)?.into_iter().map(Number::from).collect())
        }
        DataType::Null if given.is_empty() => Ok(vec![]),
        kind => Err(format!("is {wanted}, which does not compare with {kind}")),
    }
}

const SECOND_NS: i128 = 1_000_000_000;
const DAY_NS: i128 = 86_400 * SECOND_NS;

/// What times count.
#[derive(PartialEq, Eq)]
enum Clock {
    /// From 1970 on: instants and days, which begin at midnight. Without zone they are UTC.
    Epoch,
    Midnight,
    Length,
}

/// What a time type counts, and nanoseconds in a step of it.
fn clock(kind: &DataType) -> Option<(Clock, i128)> {
    let unit_ns = |unit: &TimeUnit| match unit {
        TimeUnit::Second => SECOND_NS,
        TimeUnit::Millisecond => 1_000_000,
        TimeUnit::Microsecond => 1_000,
        TimeUnit::Nanosecond => 1,
    };
    Some(match kind {
        DataType::Timestamp(unit, _) => (Clock::Epoch, unit_ns(unit)),
        DataType::Date32 => (Clock::Epoch, DAY_NS),
        DataType::Date64 => (Clock::Epoch, 1_000_000),
        DataType::Time32(unit) | DataType::Time64(unit) => (Clock::Midnight, unit_ns(unit)),
        DataType::Duration(unit) => (Clock::Length, unit_ns(unit)),
        _ => return None,
    })
}

fn times(given: &ArrayRef, wanted: &DataType) -> Converted<Vec<ConstantPosition<i128>>> {
    let (Some((counts_of, step_ns)), Some(range)) = (clock(wanted), whole_range(wanted)) else {
        return Err(format!("is not possible for its type {wanted}"));
    };
    let kind = given.data_type();
    let spot = |ns: i128| {
        // Steps are rounded down, before 1970 too: `After` names the step before the time.
        let step = ns.div_euclid(step_ns);
        within(
            if ns.rem_euclid(step_ns) == 0 { ConstantPosition::At(step) } else { ConstantPosition::After(step) },
            range,
        )
    };
    // Text for a duration is a number of its units and is read with the numbers below.
    if *kind == DataType::Utf8 && counts_of != Clock::Length {
        let parse = |text: Option<&str>| time_ns(text.unwrap_or_default(), &counts_of, wanted).map(spot);
        return given.as_string::<i32>().iter().map(parse).collect();
    }
    if let Some((given_counts, given_ns)) = clock(kind) {
        if given_counts != counts_of {
            return Err(format!("is {wanted}, which does not compare with {kind}"));
        }
        return Ok(counts(given)?.into_iter().map(|count| spot(count * given_ns)).collect());
    }
    // Numbers count steps of the column's own type.
    Ok(numbers(given, wanted)?.into_iter().map(|number| within(number.among_steps(0), range)).collect())
}

/// A time as text in nanoseconds, exactly.
fn time_ns(text: &str, counts: &Clock, wanted: &DataType) -> Converted<i128> {
    let text = text.trim();
    let fraction = text.rsplit_once('.').map_or("", |(_, fraction)| fraction);
    let digits = fraction.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
    // Nanoseconds are the finest unit here, so further places could only be cut off.
    if digits.bytes().skip(9).any(|digit| digit != b'0') {
        return Err(format!("is {wanted} and takes times of up to 9 decimal places, not {text:?}"));
    }
    let utc: Tz = "+00:00".parse().map_err(|e: arrow_schema::ArrowError| e.to_string())?;
    let parsed = match counts {
        // Nanoseconds in 64 bits end in 2262, so seconds and their fraction are added in 128 bits.
        Clock::Epoch => string_to_datetime(&utc, text)
            .map(|time| i128::from(time.timestamp()) * SECOND_NS + i128::from(time.timestamp_subsec_nanos())),
        _ => string_to_time_nanoseconds(text).map(i128::from),
    };
    let sample = if *counts == Clock::Epoch { "2026-01-31T12:00:00Z" } else { "12:00:00" };
    parsed.map_err(|_| format!("is {wanted} and takes times in ISO 8601, such as {sample}, not {text:?}"))
}

/// Text and bytes.
fn text(given: &ArrayRef, wanted: &DataType) -> Converted<ArrayRef> {
    let bytes = matches!(wanted, DataType::Binary | DataType::FixedSizeBinary(_));
    if *given.data_type() == DataType::Utf8 && bytes {
        let given = cast_with_options(given, &DataType::Binary, &STRICT).map_err(|e| e.to_string())?;
        return text(&given, wanted);
    }
    conform_array(given, wanted).map_err(|misfit| format!("has constants whose column {}", misfit.reason))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may unwrap
mod tests {
    use super::*;
    use arrow_array::types::Int8Type;
    use arrow_array::{
        BooleanArray, Date32Array, DictionaryArray, DurationSecondArray, Float32Array, LargeStringArray, NullArray,
        StringArray, StringViewArray, Time32MillisecondArray, Time64NanosecondArray, TimestampMillisecondArray,
        TimestampNanosecondArray, TimestampSecondArray,
    };
    use proptest::prelude::*;

    fn array<A: Array + 'static>(array: A) -> ArrayRef {
        Arc::new(array)
    }

    fn whole(given: ArrayRef, wanted: &DataType) -> Converted<Vec<ConstantPosition<i128>>> {
        match spots(&given, wanted)? {
            LocatedConstants::Whole(spots) => Ok(spots),
            _ => Err("no type of whole steps".to_owned()),
        }
    }

    fn of_text(text: &str, wanted: &DataType) -> Converted<ConstantPosition<i128>> {
        whole(array(StringArray::from(vec![text])), wanted).map(|spots| spots[0])
    }

    /// Every type of whole steps that numbers compare with, with its least and greatest count.
    fn whole_types() -> Vec<(DataType, i128, i128)> {
        use DataType::*;
        let (i32_, i64_) = ((i32::MIN.into(), i32::MAX.into()), (i64::MIN.into(), i64::MAX.into()));
        let types = [
            (Boolean, (0, 1)),
            (Int8, (i8::MIN.into(), i8::MAX.into())),
            (Int16, (i16::MIN.into(), i16::MAX.into())),
            (Int32, i32_),
            (Int64, i64_),
            (UInt8, (0, u8::MAX.into())),
            (UInt16, (0, u16::MAX.into())),
            (UInt32, (0, u32::MAX.into())),
            (UInt64, (0, u64::MAX.into())),
            (Decimal128(5, 0), (-99_999, 99_999)),
            (Decimal128(38, 0), (1 - 10_i128.pow(38), 10_i128.pow(38) - 1)),
            (Duration(TimeUnit::Second), i64_),
            (Date32, i32_),
            (Time32(TimeUnit::Second), i32_),
            (Date64, i64_),
            (Time64(TimeUnit::Nanosecond), i64_),
            (Timestamp(TimeUnit::Second, None), i64_),
        ];
        types.map(|(wanted, (low, high))| (wanted, low, high)).to_vec()
    }

    #[test]
    fn constants_beyond_a_type_lie_below_or_above_all_of_it() {
        for (wanted, low, high) in whole_types() {
            // Text is a time of day or a moment for the types that count those; decimals are numbers for all.
            let spot = |tenths: i128| {
                let digits = Decimal128Array::from(vec![tenths]).with_precision_and_scale(38, 1).unwrap();
                whole(array(digits), &wanted).unwrap()[0]
            };
            if high < 10_i128.pow(37) - 1 {
                for (tenths, expected) in [
                    (low * 10 - 10, ConstantPosition::Below),
                    (low * 10 - 5, ConstantPosition::Below),
                    (low * 10, ConstantPosition::At(low)),
                    (low * 10 + 5, ConstantPosition::After(low)),
                    (high * 10 - 5, ConstantPosition::After(high - 1)),
                    (high * 10, ConstantPosition::At(high)),
                    (high * 10 + 5, ConstantPosition::Above),
                    (high * 10 + 10, ConstantPosition::Above),
                ] {
                    assert_eq!(spot(tenths), expected, "{tenths} tenths of {wanted}");
                }
            }
            assert_eq!(whole_range(&wanted), Some((low, high)), "{wanted}");
            let values = whole_array(&[low, high], &wanted).unwrap();
            assert_eq!((values.data_type(), counts(&values).unwrap()), (&wanted, vec![low, high]));
        }
        assert_eq!((whole_range(&DataType::Utf8), whole_range(&DataType::Float64)), (None, None));
    }

    #[test]
    fn steps_of_decimals_are_of_their_scale() {
        let cents = DataType::Decimal128(5, 2);
        for (text, expected) in [
            ("999.99", ConstantPosition::At(99_999)),
            ("999.991", ConstantPosition::Above),
            ("-1.005", ConstantPosition::After(-101)),
            ("1000", ConstantPosition::Above),
        ] {
            assert_eq!(of_text(text, &cents), Ok(expected), "{text}");
        }
        let mills = array(Decimal128Array::from(vec![1_230, 1_235]).with_precision_and_scale(9, 3).unwrap());
        assert_eq!(whole(mills, &cents).unwrap(), [ConstantPosition::At(123), ConstantPosition::After(123)]);
    }

    #[test]
    fn numbers_and_truths_are_read_from_text_of_every_form() {
        let all: [ArrayRef; 4] = [
            array(StringArray::from(vec![" TRUE ", "false", "1"])),
            array(LargeStringArray::from(vec![" TRUE ", "false", "1"])),
            array(StringViewArray::from(vec![" TRUE ", "false", "1"])),
            array([" TRUE ", "false", "1"].into_iter().collect::<DictionaryArray<Int8Type>>()),
        ];
        for given in all {
            assert_eq!(
                whole(given, &DataType::Boolean).unwrap(),
                [ConstantPosition::At(1), ConstantPosition::At(0), ConstantPosition::At(1)]
            );
        }
        assert!(of_text("yes", &DataType::Boolean).unwrap_err().contains("takes true or false"));
        assert!(of_text("true", &DataType::Int8).unwrap_err().contains("takes a number"));
        assert_eq!(whole(array(BooleanArray::from(vec![true])), &DataType::Int8).unwrap(), [ConstantPosition::At(1)]);
        assert_eq!(
            whole(array(UInt64Array::from(vec![u64::MAX])), &DataType::UInt64).unwrap(),
            [ConstantPosition::At(u64::MAX.into())]
        );
        assert_eq!(whole(array(Float32Array::from(vec![0.5])), &DataType::Int8).unwrap(), [ConstantPosition::After(0)]);
        assert_eq!(whole(array(NullArray::new(0)), &DataType::Int8).unwrap(), []);
        assert!(whole(array(NullArray::new(1)), &DataType::Int8).unwrap_err().contains("does not compare with"));
        let times = array(TimestampSecondArray::from(vec![1]));
        assert!(whole(times, &DataType::Int64).unwrap_err().contains("does not compare with"));
    }

    #[test]
    fn times_meet_times_of_other_units_exactly() {
        let seconds = DataType::Timestamp(TimeUnit::Second, None);
        let ns = array(TimestampNanosecondArray::from(vec![-1, 0, 1, 2_000_000_000]));
        let expected =
            [ConstantPosition::After(-1), ConstantPosition::At(0), ConstantPosition::After(0), ConstantPosition::At(2)];
        assert_eq!(whole(ns, &seconds).unwrap(), expected);
        let ms = array(TimestampMillisecondArray::from(vec![86_400_000, 86_400_001, -1]));
        assert_eq!(
            whole(ms.clone(), &DataType::Date32).unwrap(),
            [ConstantPosition::At(1), ConstantPosition::After(1), ConstantPosition::After(-1)]
        );
        assert_eq!(
            whole(ms.clone(), &DataType::Date64).unwrap(),
            [86_400_000, 86_400_001, -1].map(ConstantPosition::At)
        );
        let us = DataType::Timestamp(TimeUnit::Microsecond, None);
        assert_eq!(whole(ms, &us).unwrap(), [86_400_000_000, 86_400_001_000, -1_000].map(ConstantPosition::At));
        let days = array(Date32Array::from(vec![2]));
        assert_eq!(whole(days.clone(), &seconds).unwrap(), [ConstantPosition::At(172_800)]);
        let clocks =
            [array(Time32MillisecondArray::from(vec![1_500])), array(Time64NanosecondArray::from(vec![1_500_000_000]))];
        for given in clocks {
            assert_eq!(
                whole(given.clone(), &DataType::Time32(TimeUnit::Second)).unwrap(),
                [ConstantPosition::After(1)]
            );
            assert_eq!(
                whole(given.clone(), &DataType::Time64(TimeUnit::Microsecond)).unwrap(),
                [ConstantPosition::At(1_500_000)]
            );
            assert!(whole(given, &seconds).unwrap_err().contains("does not compare with"));
        }
        let lengths = array(DurationSecondArray::from(vec![3]));
        assert_eq!(
            whole(lengths.clone(), &DataType::Duration(TimeUnit::Millisecond)).unwrap(),
            [ConstantPosition::At(3_000)]
        );
        assert!(whole(lengths, &DataType::Time32(TimeUnit::Second)).unwrap_err().contains("does not compare with"));
        assert!(whole(days, &DataType::Duration(TimeUnit::Second)).unwrap_err().contains("does not compare with"));
    }

    #[test]
    fn texts_are_times_of_nine_decimal_places_or_lengths_in_steps() {
        let timestamp = |unit| DataType::Timestamp(unit, None);
        for (text, wanted, expected) in [
            ("1970-01-01T00:00:01.5Z", timestamp(TimeUnit::Second), ConstantPosition::After(1)),
            (" 1970-01-01 00:00:01.5 ", timestamp(TimeUnit::Millisecond), ConstantPosition::At(1_500)),
            ("1970-01-01T01:00:00.000000001+01:00", timestamp(TimeUnit::Nanosecond), ConstantPosition::At(1)),
            ("1970-01-01T00:00:00.12345678900Z", timestamp(TimeUnit::Nanosecond), ConstantPosition::At(123_456_789)),
            ("1969-12-31T23:59:59.999", timestamp(TimeUnit::Second), ConstantPosition::After(-1)),
            ("1970-01-03", DataType::Date32, ConstantPosition::At(2)),
            ("1970-01-03T00:00:01", DataType::Date32, ConstantPosition::After(2)),
            ("00:00:01.25", DataType::Time32(TimeUnit::Millisecond), ConstantPosition::At(1_250)),
            ("12:00:00.000000001", DataType::Time64(TimeUnit::Microsecond), ConstantPosition::After(43_200_000_000)),
            ("7", DataType::Duration(TimeUnit::Second), ConstantPosition::At(7)),
            ("-7.5", DataType::Duration(TimeUnit::Second), ConstantPosition::After(-8)),
        ] {
            assert_eq!(of_text(text, &wanted), Ok(expected), "{text} as {wanted}");
        }
        for (text, wanted, reason) in [
            ("1970-01-01T00:00:00.1234567891Z", timestamp(TimeUnit::Nanosecond), "up to 9 decimal places"),
            ("soon", timestamp(TimeUnit::Nanosecond), "such as 2026-01-31T12:00:00Z, not"),
            ("soon", DataType::Time32(TimeUnit::Second), "such as 12:00:00, not"),
            ("soon", DataType::Duration(TimeUnit::Second), "takes a number"),
        ] {
            assert!(of_text(text, &wanted).unwrap_err().contains(reason), "{text} as {wanted}");
        }
    }

    #[test]
    fn texts_meet_bytes_and_texts_alone() {
        let given = array(StringArray::from(vec!["ab"]));
        for wanted in [DataType::Utf8, DataType::Binary, DataType::FixedSizeBinary(2)] {
            let Ok(LocatedConstants::Plain(values)) = spots(&given, &wanted) else { panic!("{wanted}") };
            assert_eq!(values.data_type(), &wanted);
        }
        assert!(spots(&given, &DataType::FixedSizeBinary(3)).is_err());
        assert!(
            spots(&array(Int64Array::from(vec![1])), &DataType::Utf8)
                .is_err_and(|reason| reason.contains("cast it first"))
        );
    }

    #[test]
    fn floats_are_taken_where_they_are_floats_of_the_width() {
        let exact = |value: f64, wanted: &DataType| exact_values(&array(Float64Array::from(vec![0.5, value])), wanted);
        for (value, fits) in
            [(0.1, true), (0.100_000_000_1, false), (f64::NAN, true), (1e300, false), (f64::INFINITY, true)]
        {
            assert_eq!(exact(value, &DataType::Float32).is_ok(), fits, "{value}");
        }
        assert!(exact(0.100_000_000_1, &DataType::Float32).unwrap_err().contains("number 1, that Float32 cannot"));
        let narrow = exact(0.1, &DataType::Float32).unwrap();
        assert_eq!(&narrow, &array(Float32Array::from(vec![0.5, 0.1])));
        let wide = exact_values(&array(Float32Array::from(vec![0.1])), &DataType::Float64).unwrap();
        assert_eq!(&wide, &array(Float64Array::from(vec![f64::from(0.1_f32)])));
        let text = exact_values(&array(StringArray::from(vec!["0.1"])), &DataType::Float64).unwrap();
        assert_eq!(&text, &array(Float64Array::from(vec![0.1])));
        assert!(exact_values(&array(Int64Array::from(vec![(1 << 53) + 1])), &DataType::Float64).is_err());
    }

    proptest! {
        #[test]
        fn values_come_back_from_every_type_that_has_them_all(values in prop::collection::vec(prop::option::of(-300..300_i64), 0..9)) {
            let given = array(Int64Array::from(values.clone()));
            for (wanted, low, high) in whole_types() {
                let first = values.iter().flatten().position(|value| !(low..=high).contains(&i128::from(*value)));
                match (exact_values(&given, &wanted), first) {
                    (Ok(found), None) => {
                        prop_assert_eq!(found.data_type(), &wanted);
                        let back = (0..found.len()).map(|row| found.is_valid(row).then(|| counts(&found.slice(row, 1)).unwrap()[0]));
                        prop_assert_eq!(back.collect::<Vec<_>>(), values.iter().map(|value| value.map(i128::from)).collect::<Vec<_>>());
                    }
                    (Err(reason), Some(place)) => {
                        prop_assert!(reason.contains(&format!("number {place}, that {wanted} cannot")), "{}", reason);
                    }
                    (found, _) => prop_assert!(false, "{:?} as {}", found, wanted),
                }
            }
        }
    }
}
