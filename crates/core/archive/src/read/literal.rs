//! Constants that meet a column: compared as what they are, never rounded to the column's type.
//!
//! A constant of a type of whole steps (integers, decimals, times, booleans) is either a value of the type or lies between two of them.
//! Text is read exactly; a float64 means its shortest decimal, as it is written and printed, and a float32 column holds
//! 0.1 where 0.1 was stored.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::timezone::Tz;
use arrow_array::types::{Decimal128Type, Float64Type, Int64Type, UInt64Type};
use arrow_array::{Array, ArrayRef, BooleanArray, Decimal128Array, Float64Array, Int64Array, UInt64Array};
use arrow_cast::parse::{string_to_datetime, string_to_time_nanoseconds};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{DataType, TimeUnit};

use crate::read::number::{Number, Spot};
use crate::write::input::conform_array;

/// Constants as a column's type has them.
pub(crate) enum Spots {
    /// Counts of the type's own steps.
    Whole(Vec<Spot<i128>>),
    Floats(Vec<Spot<f64>>),
    /// Text and bytes, of the column's type.
    Plain(ArrayRef),
}

type Converted<T> = std::result::Result<T, String>;

const STRICT: CastOptions<'static> = CastOptions { safe: false, format_options: FORMAT };
const FORMAT: arrow_cast::display::FormatOptions<'static> = arrow_cast::display::FormatOptions::new();

/// Where each of the constants lies; none of them is null.
pub(crate) fn spots(given: &ArrayRef, wanted: &DataType) -> Converted<Spots> {
    let given = &plain(given)?;
    if wanted.is_temporal() {
        return times(given, wanted).map(Spots::Whole);
    }
    match wanted {
        DataType::Float32 | DataType::Float64 => {
            let narrow = *wanted == DataType::Float32;
            Ok(Spots::Floats(numbers(given, wanted)?.iter().map(|number| number.among_floats(narrow)).collect()))
        }
        _ => match whole_range(wanted) {
            Some(range) => {
                let scale = if let DataType::Decimal128(_, scale) = wanted { *scale } else { 0 };
                let spot = |number: Number| within(number.among_steps(scale), range);
                Ok(Spots::Whole(numbers(given, wanted)?.into_iter().map(spot).collect()))
            }
            None => text(given, wanted).map(Spots::Plain),
        },
    }
}

/// The constants in the column's type, nulls kept; refused where the type does not have one of them.
///
/// # Errors
/// What does not fit, to follow the name of the column.
pub fn exact_values(given: &ArrayRef, wanted: &DataType) -> Converted<ArrayRef> {
    if given.data_type() == wanted {
        return Ok(given.clone());
    }
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

fn values_at(spots: &Spots, wanted: &DataType) -> Converted<ArrayRef> {
    fn all<T: Copy>(spots: &[Spot<T>], wanted: &DataType) -> Converted<Vec<T>> {
        let at = |(place, spot): (usize, &Spot<T>)| match spot {
            Spot::At(value) => Ok(*value),
            _ => Err(format!("has a value, number {place}, that {wanted} cannot hold exactly")),
        };
        spots.iter().enumerate().map(at).collect()
    }
    match spots {
        Spots::Whole(spots) => whole_array(&all(spots, wanted)?, wanted),
        Spots::Floats(spots) => {
            let values = all(spots, wanted)?;
            let array: ArrayRef = Arc::new(Float64Array::from(values));
            let cast = cast_with_options(&array, wanted, &STRICT).map_err(|e| e.to_string())?;
            let back = cast_with_options(&cast, &DataType::Float64, &STRICT).map_err(|e| e.to_string())?;
            let differs = |(a, b): (&f64, &f64)| a != b && !(a.is_nan() && b.is_nan());
            let (back, array) = (back.as_primitive::<Float64Type>(), array.as_primitive::<Float64Type>());
            match back.values().iter().zip(array.values()).position(differs) {
                Some(place) => Err(format!("has a value, number {place}, that {wanted} cannot hold exactly")),
                None => Ok(cast),
            }
        }
        Spots::Plain(values) => Ok(values.clone()),
    }
}

/// Values of a type of whole steps, as counts of its steps; the reverse of [`whole_array`].
fn counts(array: &ArrayRef) -> Converted<Vec<i128>> {
    match array.data_type() {
        DataType::Boolean => Ok(array.as_boolean().values().iter().map(i128::from).collect()),
        DataType::UInt64 => Ok(array.as_primitive::<UInt64Type>().values().iter().map(|v| i128::from(*v)).collect()),
        DataType::Decimal128(_, _) => Ok(array.as_primitive::<Decimal128Type>().values().to_vec()),
        _ => {
            let counts = cast_with_options(array, &DataType::Int64, &STRICT).map_err(|e| e.to_string())?;
            Ok(counts.as_primitive::<Int64Type>().values().iter().map(|v| i128::from(*v)).collect())
        }
    }
}

/// A column of a type of whole steps, of counts that lie in its range.
pub(crate) fn whole_array(counts: &[i128], wanted: &DataType) -> Converted<ArrayRef> {
    let failed = |e: arrow_schema::ArrowError| e.to_string();
    match wanted {
        DataType::Boolean => Ok(Arc::new(BooleanArray::from_iter(counts.iter().map(|count| Some(*count != 0))))),
        DataType::Decimal128(precision, scale) => {
            let values = Decimal128Array::from(counts.to_vec()).with_precision_and_scale(*precision, *scale);
            Ok(Arc::new(values.map_err(failed)?))
        }
        DataType::UInt64 => Ok(Arc::new(UInt64Array::from_iter_values(counts.iter().map(|count| *count as u64)))),
        _ => {
            let mut array: ArrayRef = Arc::new(Int64Array::from_iter_values(counts.iter().map(|count| *count as i64)));
            if wanted.is_temporal() && wanted.primitive_width() == Some(4) {
                array = cast_with_options(&array, &DataType::Int32, &STRICT).map_err(failed)?;
            }
            cast_with_options(&array, wanted, &STRICT).map_err(failed)
        }
    }
}

/// The least and the greatest count of a type of whole steps.
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

fn within(spot: Spot<i128>, (low, high): (i128, i128)) -> Spot<i128> {
    match spot {
        Spot::At(value) | Spot::After(value) if value < low => Spot::Below,
        Spot::At(value) if value > high => Spot::Above,
        Spot::After(value) if value >= high => Spot::Above,
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

fn times(given: &ArrayRef, wanted: &DataType) -> Converted<Vec<Spot<i128>>> {
    let (Some((counts_of, step_ns)), Some(range)) = (clock(wanted), whole_range(wanted)) else {
        return Err(format!("is not possible for its type {wanted}"));
    };
    let kind = given.data_type();
    let spot = |ns: i128| {
        let step = ns.div_euclid(step_ns);
        within(if ns.rem_euclid(step_ns) == 0 { Spot::At(step) } else { Spot::After(step) }, range)
    };
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
    if digits.bytes().skip(9).any(|digit| digit != b'0') {
        return Err(format!("is {wanted} and takes times of up to 9 decimal places, not {text:?}"));
    }
    let utc: Tz = "+00:00".parse().map_err(|e: arrow_schema::ArrowError| e.to_string())?;
    let parsed = match counts {
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
    conform_array(given, wanted).map_err(|reason| format!("has constants whose column {reason}"))
}
