//! Converts a caller's rows to the columns of the dataset.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ByteArrayType, Float32Type, Float64Type, Time32MillisecondType, Time32SecondType, Time64MicrosecondType,
    Time64NanosecondType,
};
use arrow_array::{
    Array, ArrayRef, ArrowPrimitiveType, GenericByteArray, OffsetSizeTrait, RecordBatch, RecordBatchOptions,
    UInt32Array, make_array,
};
use arrow_buffer::{OffsetBuffer, ScalarBuffer};
use arrow_cast::display::{ArrayFormatter, FormatOptions, array_value_to_string};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{ArrowError, DataType, Field, TimeUnit};
use arrow_select::take::take;
use chronotile_types::{DatasetSpec, TimeFormat, nearest};

use crate::error::{ArchiveError, Result};
use crate::frame::absent_value;

/// Most bytes of one text or binary column that are converted at once. Arrow types with 32-bit offsets hold at most 2
/// GiB; input columns may hold more.
const PART_BYTES: u64 = 128 << 20;

/// Splits an input into parts in which no column exceeds [`PART_BYTES`], except where a single row does.
pub(crate) fn in_parts<E>(
    batches: impl IntoIterator<Item = std::result::Result<RecordBatch, E>>,
) -> impl Iterator<Item = std::result::Result<RecordBatch, E>> {
    batches.into_iter().flat_map(|batch| match batch {
        Ok(batch) => {
            let mut parts = Vec::new();
            cut(batch, PART_BYTES, &mut parts);
            parts.into_iter().map(Ok).collect()
        }
        Err(error) => vec![Err(error)],
    })
}

fn cut(rows: RecordBatch, bytes_max: u64, parts: &mut Vec<RecordBatch>) {
    let count = rows.num_rows();
    if count < 2 || rows.columns().iter().all(|column| value_bytes(column) <= bytes_max) {
        return parts.push(rows);
    }
    // Slices share the buffers of the rows, so cutting copies no values.
    cut(rows.slice(0, count / 2), bytes_max, parts);
    cut(rows.slice(count / 2, count - count / 2), bytes_max, parts);
}

/// Bytes of the values of an array whose type may hold more than a column of a dataset; 0 for other types.
fn value_bytes(array: &ArrayRef) -> u64 {
    fn between<O: OffsetSizeTrait>(offsets: &[O]) -> u64 {
        let (first, last) = (offsets.first().copied(), offsets.last().copied());
        last.unwrap_or_default().as_usize().saturating_sub(first.unwrap_or_default().as_usize()) as u64
    }
    // The lower half of a view's first word is the length of its value.
    let of_views = |views: &[u128]| views.iter().map(|view| u64::from(*view as u32)).sum();
    match array.data_type() {
        DataType::LargeUtf8 => between(array.as_string::<i64>().value_offsets()),
        DataType::LargeBinary => between(array.as_binary::<i64>().value_offsets()),
        DataType::Utf8View => of_views(array.as_string_view().views()),
        DataType::BinaryView => of_views(array.as_binary_view().views()),
        _ => 0,
    }
}

/// Rebases a slice of a large array so that its offsets begin at 0: a cast to 32-bit offsets checks the last offset,
/// not the length of the values.
fn from_first_byte(array: &ArrayRef) -> ArrayRef {
    fn moved<T: ByteArrayType<Offset = i64>>(array: &GenericByteArray<T>) -> ArrayRef {
        let offsets = array.value_offsets();
        let (first, last) = (offsets[0], offsets[array.len()]);
        let own: ScalarBuffer<i64> = offsets.iter().map(|offset| offset - first).collect();
        let values = array.values().slice_with_length(first as usize, (last - first) as usize);
        Arc::new(GenericByteArray::<T>::new(OffsetBuffer::new(own), values, array.nulls().cloned()))
    }
    match array.data_type() {
        DataType::LargeUtf8 => moved(array.as_string::<i64>()),
        DataType::LargeBinary => moved(array.as_binary::<i64>()),
        _ => array.clone(),
    }
}

/// Rows with exactly the dataset's columns, in its order and types. Columns are matched by name. A missing column is
/// filled with its default, or with null if it is nullable; a column that the dataset does not have is refused.
pub(crate) fn conform(spec: &DatasetSpec, rows: &RecordBatch) -> Result<RecordBatch> {
    // By hash, since both may have thousands of columns.
    let known: HashSet<&str> = spec.schema.fields().iter().map(|field| field.name().as_str()).collect();
    if let Some(extra) = rows.schema_ref().fields().iter().find(|field| !known.contains(field.name().as_str())) {
        return refuse(spec, extra.name(), &not_in_dataset(spec, extra.name()));
    }
    let mut given = HashMap::with_capacity(rows.num_columns());
    for (field, column) in rows.schema_ref().fields().iter().zip(rows.columns()) {
        if given.insert(field.name().as_str(), column).is_some() {
            return refuse(spec, field.name(), "appears twice: rename one of the two columns, or leave it out");
        }
    }
    let column =
        |field: &Arc<Field>| conform_column(spec, given.get(field.name().as_str()).copied(), rows.num_rows(), field);
    let columns = spec.schema.fields().iter().map(column).collect::<Result<_>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(rows.num_rows()));
    RecordBatch::try_new_with_options(spec.schema.clone(), columns, &options).map_err(|source| ArchiveError::Compute {
        dataset: spec.name.clone(),
        work: "taking the input",
        source,
    })
}

/// Why a column that the dataset lacks is refused, with the nearest known names.
fn not_in_dataset(spec: &DatasetSpec, column: &str) -> String {
    let known: Vec<&str> = spec.schema.fields().iter().map(|field| field.name().as_str()).collect();
    let near = nearest(column, &known);
    let meant = if near.is_empty() { String::new() } else { format!(" (did you mean {}?)", near.join(" or ")) };
    format!("is not in the dataset{meant}: add it with add_columns, or leave it out")
}

fn conform_column(spec: &DatasetSpec, given: Option<&ArrayRef>, rows: usize, field: &Field) -> Result<ArrayRef> {
    let Some(given) = given else {
        let failed =
            |source| ArchiveError::Compute { dataset: spec.name.clone(), work: "filling in a default", source };
        let absent = absent_value(field).map_err(failed)?;
        if absent.is_null(0) && !field.is_nullable() {
            return refuse(spec, field.name(), "is missing, and every record needs a value: add the column");
        }
        return take(&absent, &UInt32Array::from(vec![0; rows]), None).map_err(failed);
    };
    if let Some(reason) = no_days(spec, field, given) {
        return refuse(spec, field.name(), &reason);
    }
    let times = times_of_text(given, field.data_type());
    let column = times.map_err(ConversionError::from).and_then(|given| {
        let rounded = rounded(&given, field.data_type())?;
        conform_array(&rounded, field.data_type())
    });
    let column = column.map_err(|ConversionError { row, reason }| {
        let (dataset, column) = (spec.name.clone(), field.name().clone());
        match row {
            Some(row) => ArchiveError::Row { dataset, row: row as u64, column, reason },
            None => ArchiveError::Input { dataset, column, reason },
        }
    })?;
    if !field.is_nullable() && column.null_count() > 0 {
        let row = (0..column.len()).find(|row| column.is_null(*row)).unwrap_or(0) as u64;
        let reason = "is null; every record needs a value: give one, or leave the record out".to_owned();
        return Err(ArchiveError::Row { dataset: spec.name.clone(), row, column: field.name().clone(), reason });
    }
    Ok(column)
}

fn refuse<T>(spec: &DatasetSpec, column: &str, reason: &str) -> Result<T> {
    Err(ArchiveError::Input { dataset: spec.name.clone(), column: column.to_owned(), reason: reason.to_owned() })
}

/// Why an array cannot be a time column that counts days (MJD or JD); `None` if it can, and for other columns.
fn no_days(spec: &DatasetSpec, field: &Field, array: &ArrayRef) -> Option<String> {
    let (dates, example) = match spec.time.format {
        TimeFormat::Mjd => ("Modified Julian Dates", "61071.5"),
        TimeFormat::Jd => ("Julian Dates", "2461072.0"),
        TimeFormat::Timestamp => return None,
    };
    let is_first = |row: &usize| array.is_valid(*row);
    let given = match array.data_type() {
        _ if *field.name() != spec.time.column => return None,
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => {
            let value = (0..array.len()).find(is_first).map(|row| array_value_to_string(array, row));
            let value: String = value.and_then(std::result::Result::ok)?.chars().take(64).collect();
            format!("text, such as {value:?}")
        }
        other @ (DataType::Timestamp(..) | DataType::Date32 | DataType::Date64) => format!("times of type {other}"),
        _ => return None,
    };
    Some(format!(
        "holds {given}, but counts {dates}: give numbers such as {example}, or create the dataset with a time column of timestamps"
    ))
}

/// Parses text for columns of times or dates: ISO 8601, in UTC unless it names a zone. Returns other arrays unchanged.
fn times_of_text(array: &ArrayRef, wanted: &DataType) -> std::result::Result<ArrayRef, String> {
    let is_text = matches!(array.data_type(), DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    let zone = match wanted {
        DataType::Timestamp(_, zone) => zone.clone(),
        DataType::Date32 => None,
        _ => return Ok(array.clone()),
    };
    if !is_text {
        return Ok(array.clone());
    }
    let failed =
        |e: ArrowError| format!("holds text that is not a time ({e}): write ISO 8601 such as 2026-01-31T12:00:00Z");
    let options = CastOptions { safe: false, ..CastOptions::default() };
    // Nanoseconds first: times finer than the column's unit are refused, not truncated.
    let times = cast_with_options(array, &DataType::Timestamp(TimeUnit::Nanosecond, zone), &options).map_err(failed)?;
    if *wanted != DataType::Date32 {
        return Ok(times);
    }
    let days = cast_with_options(&times, wanted, &options).map_err(failed)?;
    let back = cast_with_options(&days, times.data_type(), &options).map_err(failed)?;
    match back == times {
        true => Ok(days),
        false => Err("holds text with a time of day, which a column of dates does not keep".to_owned()),
    }
}

/// Rounds 64-bit floats for a column of 32-bit floats, since most libraries produce 64-bit floats by default. Returns
/// other arrays unchanged.
fn rounded(array: &ArrayRef, wanted: &DataType) -> std::result::Result<ArrayRef, ConversionError> {
    let (Some(given), DataType::Float32) = (array.as_primitive_opt::<Float64Type>(), wanted) else {
        return Ok(array.clone());
    };
    let beyond = |value: Option<f64>| value.is_some_and(|value| value.is_finite() && (value as f32).is_infinite());
    match given.iter().position(beyond) {
        None => Ok(Arc::new(given.unary::<_, Float32Type>(|value| value as f32))),
        Some(row) => {
            Err(ConversionError { row: Some(row), reason: does_not_fit(&format!("{:?}", given.value(row)), wanted) })
        }
    }
}

fn does_not_fit(value: &str, wanted: &DataType) -> String {
    format!("holds {value}, which does not fit {wanted}: correct it, or leave the record out")
}

/// Adds or removes the time zone as the column's type requires: times without a zone are UTC.
fn zoned(array: &ArrayRef, wanted: &DataType) -> ArrayRef {
    let (DataType::Timestamp(unit, given), DataType::Timestamp(_, zone)) = (array.data_type(), wanted) else {
        return array.clone();
    };
    if given.is_some() == zone.is_some() {
        return array.clone();
    }
    // Only the type changes. A cast to a type with a zone would move the values, because Arrow takes times without a
    // zone for local times of that zone.
    let named = array.to_data().into_builder().data_type(DataType::Timestamp(*unit, zone.clone()));
    // An array that cannot be built keeps its type, which the caller refuses (`lossless`).
    named.build().map_or_else(|_| array.clone(), make_array)
}

/// Why an array cannot be converted to another type; with the first bad row if the reason is a single value.
#[derive(Debug)]
pub(crate) struct ConversionError {
    pub(crate) row: Option<usize>,
    pub(crate) reason: String,
}

impl From<String> for ConversionError {
    fn from(reason: String) -> Self {
        Self { row: None, reason }
    }
}

/// Converts `array` to type `wanted` if no value changes; otherwise says what to do instead.
pub(crate) fn conform_array(array: &ArrayRef, wanted: &DataType) -> std::result::Result<ArrayRef, ConversionError> {
    let conformed = cast_without_loss(array, wanted)?;
    // Arrow accepts any number as a time of day, so arrays that need no cast are checked too.
    match first_outside_a_day(&conformed) {
        None => Ok(conformed),
        Some(row) => Err(ConversionError { row: Some(row), reason: does_not_fit(&shown(array, row), wanted) }),
    }
}

/// The first row whose time of day is outside of a day.
fn first_outside_a_day(array: &ArrayRef) -> Option<usize> {
    const DAY_S: i64 = 86_400;
    fn first<T: ArrowPrimitiveType>(array: &ArrayRef, day: i64) -> Option<usize>
    where
        T::Native: Into<i64>,
    {
        let mut times = array.as_primitive::<T>().iter();
        times.position(|time| time.is_some_and(|time| !(0..day).contains(&time.into())))
    }
    match array.data_type() {
        DataType::Time32(TimeUnit::Second) => first::<Time32SecondType>(array, DAY_S),
        DataType::Time32(TimeUnit::Millisecond) => first::<Time32MillisecondType>(array, DAY_S * 1_000),
        DataType::Time64(TimeUnit::Microsecond) => first::<Time64MicrosecondType>(array, DAY_S * 1_000_000),
        DataType::Time64(TimeUnit::Nanosecond) => first::<Time64NanosecondType>(array, DAY_S * 1_000_000_000),
        _ => None,
    }
}

fn cast_without_loss(array: &ArrayRef, wanted: &DataType) -> std::result::Result<ArrayRef, ConversionError> {
    let array = &zoned(array, wanted);
    let given = array.data_type();
    if given == wanted {
        return Ok(array.clone());
    }
    if !lossless(given, wanted) && !by_value(given, wanted) {
        return Err(format!("has type {given}, the dataset has {wanted}: cast it first").into());
    }
    match exact_cast(array, wanted) {
        Ok(Some(cast)) => return Ok(cast),
        // The error may concern all rows together: 32-bit offsets address at most 2 GiB.
        Err(e) if holds_text(wanted) => {
            let advice = "a write takes at most 2 GiB at once: write fewer rows at a time";
            return Err(format!("does not fit {wanted}: {e}: {advice}").into());
        }
        _ => {}
    }
    // Binary search: each row fits or not by itself, so the first bad row is the last row of the shortest prefix that
    // fails.
    let fits = |rows: usize| matches!(exact_cast(&array.slice(0, rows), wanted), Ok(Some(_)));
    let (mut fitting, mut failing) = (0, array.len());
    while fitting + 1 < failing {
        let middle = usize::midpoint(fitting, failing);
        *(if fits(middle) { &mut fitting } else { &mut failing }) = middle;
    }
    let value = shown(array, fitting);
    let narrows = narrows_time(given, wanted) || *wanted == DataType::Date32;
    // A cast that fails instead of truncating means that the time is beyond the range of the type: rounding would not
    // help.
    let reason = match narrows && exact_cast(&array.slice(fitting, 1), wanted).is_ok() {
        true => format!("holds {value}, which is finer than {wanted} keeps: round times first"),
        false => does_not_fit(&value, wanted),
    };
    Err(ConversionError { row: Some(fitting), reason })
}

/// The beginning of a value, for messages; a time outside the calendar is shown as its count.
fn shown(array: &ArrayRef, row: usize) -> String {
    let text = |array: &ArrayRef| {
        let options = FormatOptions::default().with_display_error(false);
        ArrayFormatter::try_new(array, &options)?.value(row).try_to_string()
    };
    let value = text(array).or_else(|_| text(&cast_with_options(array, &DataType::Int64, &CastOptions::default())?));
    value.unwrap_or_default().chars().take(64).collect()
}

/// A cast that changes no value; `None` if it would truncate times or numbers.
fn exact_cast(array: &ArrayRef, wanted: &DataType) -> std::result::Result<Option<ArrayRef>, ArrowError> {
    let options = CastOptions { safe: false, ..CastOptions::default() };
    let given = array.data_type();
    // Such a cast keeps every value or fails, so it needs no check by casting back.
    if !narrows_time(given, wanted) && (lossless(given, wanted) || !by_value(given, wanted)) {
        return cast_with_options(&from_first_byte(array), wanted, &options).map(Some);
    }
    // The check casts back, and times cannot be cast back to a dictionary: use the dictionary's values.
    let plain = match given {
        DataType::Dictionary(_, values) => &cast_with_options(array, values, &options)?,
        // Adding 0.0 turns -0.0 into 0.0, so that it passes the check as an integer.
        DataType::Float64 => &(Arc::new(array.as_primitive::<Float64Type>().unary::<_, Float64Type>(|v| v + 0.0)) as _),
        DataType::Float32 => &(Arc::new(array.as_primitive::<Float32Type>().unary::<_, Float32Type>(|v| v + 0.0)) as _),
        _ => array,
    };
    let cast = cast_with_options(plain, wanted, &options)?;
    let back = cast_with_options(&cast, plain.data_type(), &options)?;
    Ok((&back == plain).then_some(cast))
}

fn holds_text(wanted: &DataType) -> bool {
    match wanted {
        DataType::Utf8 | DataType::Binary => true,
        DataType::List(field) => holds_text(field.data_type()),
        DataType::Struct(fields) => fields.iter().any(|field| holds_text(field.data_type())),
        _ => false,
    }
}

/// Whether the cast keeps every value unchanged, or fails on values that it would change.
fn lossless(from: &DataType, to: &DataType) -> bool {
    use DataType::*;
    match (from, to) {
        (a, b) if a == b => true,
        (Null, _) => true,
        (a, b) if a.is_integer() && b.is_integer() => true,
        // A float32 keeps every integer of up to 24 bits, a float64 every integer of up to 53 bits.
        (Int8 | Int16 | UInt8 | UInt16, Float32) | (Float32, Float64) => true,
        (a, Float64) if a.is_integer() => !matches!(a, Int64 | UInt64),
        (Utf8 | LargeUtf8 | Utf8View, Utf8) => true,
        (Binary | LargeBinary | BinaryView | FixedSizeBinary(_), Binary) => true,
        (Binary, FixedSizeBinary(_)) => true,
        (Timestamp(_, a), Timestamp(_, b)) => a.is_some() == b.is_some(),
        (Duration(_), Duration(_)) | (Time32(_) | Time64(_), Time32(_) | Time64(_)) => true,
        (Date32, Date64) => true,
        // A smaller scale would round values; a smaller precision makes the cast fail where a value does not fit.
        (Decimal128(_, a), Decimal128(_, b)) => a <= b,
        (Dictionary(_, values), b) => lossless(values, b),
        (List(a) | LargeList(a) | ListView(a) | LargeListView(a), List(b)) => lossless(a.data_type(), b.data_type()),
        (Struct(a), Struct(b)) => {
            let pair =
                |(a, b): (&Arc<Field>, &Arc<Field>)| a.name() == b.name() && lossless(a.data_type(), b.data_type());
            a.len() == b.len() && a.iter().zip(b).all(pair)
        }
        _ => false,
    }
}

/// Whether the cast keeps some values unchanged, to be checked value by value: whole numbers in floats, and times at
/// midnight.
fn by_value(from: &DataType, to: &DataType) -> bool {
    use DataType::*;
    match (from, to) {
        (a, Float32 | Float64) => a.is_integer(),
        (Float32 | Float64, b) => b.is_integer(),
        (Timestamp(..), Date32) => true,
        _ => false,
    }
}

/// Whether an allowed cast goes to a coarser unit of time, at least in parts of the type.
fn narrows_time(from: &DataType, to: &DataType) -> bool {
    use DataType::*;
    let fineness = |unit: &TimeUnit| match unit {
        TimeUnit::Second => 0,
        TimeUnit::Millisecond => 1,
        TimeUnit::Microsecond => 2,
        TimeUnit::Nanosecond => 3,
    };
    match (from, to) {
        (Timestamp(a, _), Timestamp(b, _)) | (Duration(a), Duration(b)) => fineness(a) > fineness(b),
        (Time32(a) | Time64(a), Time32(b) | Time64(b)) => fineness(a) > fineness(b),
        (Dictionary(_, values), b) => narrows_time(values, b),
        (List(a) | LargeList(a) | ListView(a) | LargeListView(a), List(b)) => {
            narrows_time(a.data_type(), b.data_type())
        }
        (Struct(a), Struct(b)) => a.iter().zip(b).any(|(a, b)| narrows_time(a.data_type(), b.data_type())),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{
        BinaryArray, DictionaryArray, Float64Array, Int32Array, Int64Array, LargeBinaryArray, LargeStringArray,
        ListArray, StringArray, StringViewArray, StructArray, Time32MillisecondArray, Time32SecondArray,
        Time64MicrosecondArray, Time64NanosecondArray, TimestampMicrosecondArray, TimestampNanosecondArray,
        TimestampSecondArray,
    };
    use arrow_select::concat::concat_batches;

    use crate::time_axis::tests::spec;

    fn array<A: Array + 'static>(array: A) -> ArrayRef {
        Arc::new(array)
    }

    #[test]
    fn values_that_would_change_are_refused() {
        let int = array(Int64Array::from(vec![1, i64::MAX]));
        let misfit = conform_array(&int, &DataType::Int32).unwrap_err();
        assert_eq!(misfit.row, Some(1));
        assert!(misfit.reason.contains("9223372036854775807, which does not fit Int32"), "{}", misfit.reason);
        let float = array(Float64Array::from(vec![1.5]));
        assert!(conform_array(&float, &DataType::Float32).unwrap_err().reason.contains("cast it first"));
        assert!(conform_array(&float, &DataType::Boolean).unwrap_err().reason.contains("cast it first"));
    }

    #[test]
    fn whole_numbers_pass_between_integers_and_floats_and_others_are_refused_at_their_row() {
        use DataType::{Float32, Float64, Int32, Int64, UInt64};
        let cast = |array: &ArrayRef, to: &DataType| cast_with_options(array, to, &CastOptions::default()).unwrap();
        let integers = |values: Vec<Option<i64>>| array(Int64Array::from(values));
        let floats = |values: Vec<Option<f64>>| array(Float64Array::from(values));
        let (exact, exact_32) = (1_i64 << 53, 1_i64 << 24);
        for (given, wanted) in [
            (integers(vec![Some(exact), None, Some(-exact)]), Float64),
            (integers(vec![Some(exact_32), None, Some(-exact_32)]), Float32),
            (floats(vec![Some(f64::from(i32::MAX)), None, Some(f64::from(i32::MIN))]), Int32),
            (floats(vec![Some(2_f64.powi(60)), Some(-2_f64.powi(63))]), Int64),
            (cast(&floats(vec![Some(2_f64.powi(24)), None]), &Float32), UInt64),
        ] {
            let taken = conform_array(&given, &wanted).unwrap();
            assert_eq!((taken.data_type(), &cast(&taken, given.data_type())), (&wanted, &given));
        }
        let zeros = conform_array(&floats(vec![Some(-0.0), Some(0.0)]), &Int64).unwrap();
        assert_eq!(&zeros, &integers(vec![Some(0), Some(0)]));
        for (given, wanted, shown) in [
            (integers(vec![Some(1), Some(exact + 1)]), Float64, "9007199254740993"),
            (integers(vec![Some(1), Some(i64::MAX)]), Float64, "9223372036854775807"),
            (integers(vec![Some(1), Some(exact_32 + 1)]), Float32, "16777217"),
            (floats(vec![Some(1.0), Some(1.5)]), Int64, "1.5"),
            (floats(vec![Some(1.0), Some(f64::NAN)]), Int64, "NaN"),
            (floats(vec![Some(1.0), Some(f64::INFINITY)]), Int64, "inf"),
            (floats(vec![Some(1.0), Some(2_f64.powi(63))]), Int64, "9.223372036854776e18"),
            (floats(vec![Some(1.0), Some(-1.0)]), UInt64, "-1.0"),
        ] {
            let ConversionError { row, reason } = conform_array(&given, &wanted).unwrap_err();
            let expected = format!("holds {shown}, which does not fit {wanted}");
            assert!(row == Some(1) && reason.starts_with(&expected), "{row:?}: {reason}");
        }
    }

    #[test]
    fn times_of_day_are_those_of_a_day() {
        for (given, bad) in [
            (array(Time32SecondArray::from(vec![Some(0), Some(86_399), Some(86_400)])), Some(2)),
            (array(Time32MillisecondArray::from(vec![Some(86_399_999), None, Some(-1)])), Some(2)),
            (array(Time64MicrosecondArray::from(vec![Some(86_400_000_000)])), Some(0)),
            (array(Time64NanosecondArray::from(vec![None, Some(86_400_000_000_000)])), Some(1)),
            (array(Time64NanosecondArray::from(vec![None, Some(86_399_999_999_999)])), None),
        ] {
            for wanted in [given.data_type(), &DataType::Time64(TimeUnit::Nanosecond)] {
                match (conform_array(&given, wanted), bad) {
                    (Err(ConversionError { row, reason }), Some(_)) => {
                        assert!(row == bad && reason.contains("does not fit Time"), "{row:?}: {reason}");
                    }
                    (Ok(_), None) => {}
                    (found, _) => panic!("{wanted}: {found:?}"),
                }
            }
        }
    }

    #[test]
    fn wide_floats_are_rounded_to_narrow_ones_unless_they_become_infinite() {
        use DataType::{Float32, Float64};
        let given = array(Float64Array::from(vec![Some(0.1), None, Some(f64::NAN), Some(f64::NEG_INFINITY)]));
        let taken = rounded(&given, &Float32).unwrap();
        let values: Vec<Option<f32>> = taken.as_primitive::<Float32Type>().iter().collect();
        assert_eq!((values[0], values[1], values[3]), (Some(0.1_f32), None, Some(f32::NEG_INFINITY)));
        assert!(values[2].unwrap().is_nan());
        for other in [&Float64, &DataType::Int64] {
            assert!(Arc::ptr_eq(&rounded(&given, other).unwrap(), &given));
        }
        let large = array(Float64Array::from(vec![Some(f64::from(f32::MAX)), Some(-3.5e38)]));
        assert!(rounded(&large.slice(0, 1), &Float32).is_ok());
        let ConversionError { row, reason } = rounded(&large, &Float32).unwrap_err();
        assert!(row == Some(1) && reason.contains("which does not fit Float32"), "{reason}");
    }

    #[test]
    fn times_without_a_zone_are_utc() {
        let zone = |name: &str| DataType::Timestamp(TimeUnit::Microsecond, Some(name.into()));
        let without = DataType::Timestamp(TimeUnit::Microsecond, None);
        let ticks = vec![Some(1_767_268_800_250_000), None];
        let bare = array(TimestampMicrosecondArray::from(ticks.clone()));
        for name in ["UTC", "Europe/Paris", "+02:00"] {
            let named = array(TimestampMicrosecondArray::from(ticks.clone()).with_timezone(name));
            assert_eq!(&conform_array(&named, &without).unwrap(), &bare);
            assert_eq!(&conform_array(&bare, &zone(name)).unwrap(), &named);
        }
        // Units change as well.
        let nanoseconds = array(TimestampNanosecondArray::from(vec![2_000]).with_timezone("UTC"));
        let expected = array(TimestampMicrosecondArray::from(vec![2]));
        assert_eq!(&conform_array(&nanoseconds, &without).unwrap(), &expected);
    }

    #[test]
    fn times_at_midnight_are_dates() {
        let day = 86_400_000_000;
        let times = array(TimestampMicrosecondArray::from(vec![Some(20_000 * day), None, Some(-day)]));
        let dates = array(arrow_array::Date32Array::from(vec![Some(20_000), None, Some(-1)]));
        assert_eq!(&conform_array(&times, &DataType::Date32).unwrap(), &dates);
        let later = array(TimestampMicrosecondArray::from(vec![day, day + 1]));
        let ConversionError { row, reason } = conform_array(&later, &DataType::Date32).unwrap_err();
        assert!(row == Some(1) && reason.contains("finer than Date32 keeps"), "{reason}");
    }

    #[test]
    fn times_that_would_be_cut_are_refused_at_their_row_wherever_they_are() {
        let times = |ticks: Vec<i64>| array(TimestampNanosecondArray::from(ticks));
        let list = |item: &ArrayRef| {
            let offsets = OffsetBuffer::<i32>::from_lengths(vec![1; item.len()]);
            array(ListArray::new(
                Arc::new(Field::new("item", item.data_type().clone(), true)),
                offsets,
                item.clone(),
                None,
            ))
        };
        let view = |item: &ArrayRef| {
            let to = DataType::ListView(Arc::new(Field::new("item", item.data_type().clone(), true)));
            cast_with_options(&list(item), &to, &CastOptions::default()).unwrap()
        };
        let part = |item: &ArrayRef| array(StructArray::try_from(vec![("a", item.clone())]).unwrap());
        let dictionary = |item: &ArrayRef| {
            array(DictionaryArray::new(Int32Array::from_iter_values(0..item.len() as i32), item.clone()))
        };
        let plain = |item: &ArrayRef| item.clone();
        let coarse = DataType::Timestamp(TimeUnit::Microsecond, None);
        let (whole, cut) = (times(vec![1_000; 9]), times((1..10).map(|row| row / 7 + 1_000).collect()));
        let coarse_values = array(TimestampMicrosecondArray::from(vec![1; 9]));
        type Build<'a> = &'a dyn Fn(&ArrayRef) -> ArrayRef;
        let forms: [(Build<'_>, Build<'_>); 5] =
            [(&plain, &plain), (&dictionary, &plain), (&list, &list), (&view, &list), (&part, &part)];
        for (given, stored) in forms {
            let expected = stored(&coarse_values);
            assert_eq!(&conform_array(&given(&whole), expected.data_type()).unwrap(), &expected);
            let misfit = conform_array(&given(&cut), expected.data_type()).unwrap_err();
            assert_eq!(misfit.row, Some(6), "{}", misfit.reason);
            assert!(misfit.reason.contains("00.000001001") && misfit.reason.contains("finer"), "{}", misfit.reason);
        }
        // A time beyond the range of the coarser unit is not a matter of rounding.
        let early = array(TimestampSecondArray::from(vec![i64::MIN]));
        let reason = conform_array(&early, &coarse).unwrap_err().reason;
        assert!(reason.contains("holds -9223372036854775808, which does not fit"), "{reason}");
    }

    #[test]
    fn rows_are_cut_where_a_column_has_more_bytes_than_are_taken_at_once() {
        let texts: Vec<String> = (0..100).map(|i| "x".repeat(if i == 40 { 5_000 } else { i })).collect();
        let binary = array(LargeBinaryArray::from_iter_values(&texts));
        for column in [
            array(LargeStringArray::from_iter_values(&texts)),
            binary.clone(),
            array(StringViewArray::from_iter_values(&texts)),
            cast_with_options(&binary, &DataType::BinaryView, &CastOptions::default()).unwrap(),
        ] {
            let given = RecordBatch::try_from_iter([("text", column)]).unwrap();
            // A slice of a longer array, whose other values do not count.
            let given = given.slice(10, 80);
            let mut parts = Vec::new();
            cut(given.clone(), 1_000, &mut parts);
            assert!(parts.len() > 5, "{}", parts.len());
            let large = |part: &&RecordBatch| value_bytes(part.column(0)) > 1_000;
            assert!(parts.iter().filter(large).all(|part| part.num_rows() == 1));
            assert_eq!(parts.iter().filter(large).count(), 1);
            assert_eq!(concat_batches(&given.schema(), &parts).unwrap(), given);
            let whole: std::result::Result<Vec<_>, ArrowError> = in_parts([Ok(given.clone())]).collect();
            assert_eq!(whole.unwrap(), [given]);
        }
    }

    #[test]
    fn texts_behind_2_gib_of_others_are_taken_and_longer_ones_are_not() {
        // Zero pages that are only read take no memory.
        let long = (1_usize << 31) + 10;
        let offsets = OffsetBuffer::<i64>::from_lengths([long, 3, 0, 2]);
        let values = arrow_buffer::Buffer::from_vec(vec![0_u8; long + 5]);
        let nulls = arrow_buffer::NullBuffer::from(vec![true, true, false, true]);
        let all = array(LargeBinaryArray::new(offsets, values, Some(nulls)));
        let taken = conform_array(&all.slice(1, 3), &DataType::Binary).unwrap();
        let expected: ArrayRef = Arc::new(BinaryArray::from_opt_vec(vec![Some(&[0; 3]), None, Some(&[0; 2])]));
        assert_eq!(&taken, &expected);
        assert!(conform_array(&all, &DataType::Binary).unwrap_err().reason.contains("write fewer rows at a time"));
    }

    #[test]
    fn texts_become_times_exactly_or_are_refused() {
        let text = |text: &str| array(StringArray::from(vec![Some(text), None]));
        let us = DataType::Timestamp(TimeUnit::Microsecond, None);
        let taken = |given: &str, wanted: &DataType| {
            times_of_text(&text(given), wanted)
                .and_then(|times| conform_array(&times, wanted).map_err(|misfit| misfit.reason))
        };
        let expected = array(TimestampMicrosecondArray::from(vec![Some(1_767_268_800_250_000), None]));
        assert_eq!(&taken("2026-01-01T12:00:00.25", &us).unwrap(), &expected);
        assert_eq!(&taken("2026-01-01 12:00:00.25Z", &us).unwrap(), &expected);
        assert_eq!(&taken("2026-01-01T14:00:00.25+02:00", &us).unwrap(), &expected);
        assert!(taken("2026-01-01T12:00:00.0000001", &us).unwrap_err().contains("finer"));
        assert!(taken("yesterday", &us).unwrap_err().contains("ISO 8601"));
        assert!(taken("2026-01-01", &DataType::Date32).is_ok());
        assert!(taken("2026-01-01T12:00:00", &DataType::Date32).unwrap_err().contains("time of day"));
        assert!(taken("2026-01-01", &DataType::Int64).unwrap_err().contains("cast it first"));
    }

    #[test]
    fn harmless_differences_are_taken() {
        let small = array(Int32Array::from(vec![Some(1), None]));
        let wide = array(Int64Array::from(vec![Some(1), None]));
        assert_eq!(&conform_array(&small, &DataType::Int64).unwrap(), &wide);
        let text = array(LargeStringArray::from(vec!["a"]));
        assert_eq!(conform_array(&text, &DataType::Utf8).unwrap().data_type(), &DataType::Utf8);
        let whole = array(TimestampNanosecondArray::from(vec![2_000]));
        assert!(conform_array(&whole, &DataType::Timestamp(TimeUnit::Microsecond, None)).is_ok());
    }

    #[test]
    fn rows_are_halved_until_each_half_fits() {
        let texts: Vec<String> = (0..7).map(|i| i.to_string().repeat(10)).collect();
        let given = RecordBatch::try_from_iter([("text", array(LargeStringArray::from_iter_values(&texts)))]).unwrap();
        let rows = |bytes_max: u64| {
            let mut parts = Vec::new();
            cut(given.clone(), bytes_max, &mut parts);
            parts.iter().map(RecordBatch::num_rows).collect::<Vec<_>>()
        };
        assert_eq!((rows(70), rows(69), rows(29), rows(0)), (vec![7], vec![3, 4], vec![1, 2, 2, 2], vec![1; 7]));
        // Only the bytes of the first row differ.
        let views = array(StringViewArray::from_iter_values(["x".repeat(100), "y".into()]));
        let given = RecordBatch::try_from_iter([("text", views)]).unwrap();
        let mut parts = Vec::new();
        cut(given, 100, &mut parts);
        assert_eq!(parts.len(), 2);
        assert_eq!(PART_BYTES, 134_217_728);
    }

    #[test]
    fn a_time_column_of_days_takes_numbers_alone() {
        let text = array(StringArray::from(vec![None, Some("2026-01-31")]));
        let times = array(TimestampNanosecondArray::from(vec![1]));
        let days = array(Float64Array::from(vec![60_000.0]));
        let refused = |format, column: &str, given: &ArrayRef| {
            no_days(&spec(format), &Field::new(column, DataType::Float64, true), given)
        };
        for (format, name) in
            [(TimeFormat::Mjd, "counts Modified Julian Dates"), (TimeFormat::Jd, "counts Julian Dates")]
        {
            for (given, shown) in [(&text, "text, such as \"2026-01-31\""), (&times, "times of type Timestamp")] {
                let reason = refused(format, "t", given).unwrap();
                assert!(reason.contains(name) && reason.contains(shown), "{reason}");
                assert_eq!(refused(format, "tag", given), None);
            }
            assert_eq!(refused(format, "t", &days), None);
        }
        assert_eq!(refused(TimeFormat::Timestamp, "t", &text), None);
    }

    #[test]
    fn slices_of_large_texts_begin_with_their_first_byte() {
        let all = array(LargeStringArray::from(vec![Some("abc"), Some("de"), None, Some(""), Some("fgh")]));
        let expected = array(StringArray::from(vec![Some("abc"), Some("de"), None, Some(""), Some("fgh")]));
        for (start, count) in (0..5).flat_map(|start| (0..=5 - start).map(move |count| (start, count))) {
            let moved = from_first_byte(&all.slice(start, count));
            assert_eq!(moved.as_string::<i64>().value_offsets()[0], 0);
            assert_eq!(&conform_array(&moved, &DataType::Utf8).unwrap(), &expected.slice(start, count));
        }
    }

    #[test]
    fn types_are_taken_where_no_value_can_be_lost() {
        use DataType::*;
        let list = |item: DataType| List(Arc::new(Field::new("item", item, true)));
        let large = |item: DataType| LargeList(Arc::new(Field::new("item", item, true)));
        let fields = |fields: &[(&str, DataType)]| {
            Struct(fields.iter().map(|(name, t)| Field::new(*name, t.clone(), true)).collect::<Vec<_>>().into())
        };
        let zone = |unit| Timestamp(unit, Some("UTC".into()));
        let dictionary = |values: DataType| Dictionary(Box::new(Int8), Box::new(values));
        for (from, to, is_taken) in [
            (Null, Utf8, true),
            (Int64, UInt8, true),
            (UInt64, Int8, true),
            (Int16, Float32, true),
            (UInt16, Float32, true),
            (Int32, Float32, false),
            (Float32, Float64, true),
            (Float64, Float32, false),
            (Int32, Float64, true),
            (UInt32, Float64, true),
            (Int64, Float64, false),
            (UInt64, Float64, false),
            (Float64, Int64, false),
            (Boolean, Float64, false),
            (Boolean, Int8, false),
            (LargeUtf8, Utf8, true),
            (Utf8View, Utf8, true),
            (Utf8, Binary, false),
            (LargeBinary, Binary, true),
            (BinaryView, Binary, true),
            (FixedSizeBinary(3), Binary, true),
            (Binary, FixedSizeBinary(3), true),
            (FixedSizeBinary(2), FixedSizeBinary(3), false),
            (Timestamp(TimeUnit::Second, None), Timestamp(TimeUnit::Nanosecond, None), true),
            (zone(TimeUnit::Second), zone(TimeUnit::Nanosecond), true),
            (zone(TimeUnit::Second), Timestamp(TimeUnit::Second, None), false),
            (Timestamp(TimeUnit::Second, None), zone(TimeUnit::Second), false),
            (Duration(TimeUnit::Second), Duration(TimeUnit::Nanosecond), true),
            (Time32(TimeUnit::Second), Time64(TimeUnit::Nanosecond), true),
            (Time64(TimeUnit::Nanosecond), Time32(TimeUnit::Second), true),
            (Duration(TimeUnit::Second), Time32(TimeUnit::Second), false),
            (Date32, Date64, true),
            (Date64, Date32, false),
            (Date32, Timestamp(TimeUnit::Second, None), false),
            (Decimal128(5, 2), Decimal128(9, 2), true),
            (Decimal128(5, 2), Decimal128(9, 3), true),
            (Decimal128(5, 3), Decimal128(9, 2), false),
            (dictionary(LargeUtf8), Utf8, true),
            (dictionary(Int8), Utf8, false),
            (list(Int8), list(Int64), true),
            (large(Int8), list(Int64), true),
            (list(Float64), list(Int64), false),
            (list(Int8), Int8, false),
            (fields(&[("a", Int8)]), fields(&[("a", Int64)]), true),
            (fields(&[("a", Int8)]), fields(&[("b", Int64)]), false),
            (fields(&[("a", Float64)]), fields(&[("a", Int64)]), false),
            (fields(&[("a", Int8)]), fields(&[("a", Int64), ("b", Int8)]), false),
            (fields(&[("a", Int8), ("b", Int8)]), fields(&[("a", Int64)]), false),
        ] {
            assert_eq!(lossless(&from, &to), is_taken, "{from} to {to}");
            assert!(lossless(&to, &to) && lossless(&from, &from));
        }
        for (wanted, holds) in [
            (Utf8, true),
            (Binary, true),
            (Int8, false),
            (list(Utf8), true),
            (list(Int8), false),
            (fields(&[("a", Int8), ("b", Binary)]), true),
            (fields(&[("a", Int8)]), false),
        ] {
            assert_eq!(holds_text(&wanted), holds, "{wanted}");
        }
    }

    #[test]
    fn times_are_narrowed_by_coarser_units_alone() {
        use DataType::{Date32, Date64, Duration, Time32, Time64, Timestamp};
        let units = [TimeUnit::Second, TimeUnit::Millisecond, TimeUnit::Microsecond, TimeUnit::Nanosecond];
        let time = |place: usize| if place < 2 { Time32(units[place]) } else { Time64(units[place]) };
        for (from, to) in (0..16).map(|pair| (pair / 4, pair % 4)) {
            let (a, b) = (units[from], units[to]);
            assert_eq!(narrows_time(&Timestamp(a, None), &Timestamp(b, None)), from > to, "{a:?} {b:?}");
            assert_eq!(narrows_time(&Duration(a), &Duration(b)), from > to, "{a:?} {b:?}");
            assert_eq!(narrows_time(&time(from), &time(to)), from > to, "{a:?} {b:?}");
        }
        assert!(!narrows_time(&Date32, &Date64));
    }
}
