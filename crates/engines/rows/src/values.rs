//! Serializes values of Arrow arrays for CQL.

use arrow_array::Array;
use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_schema::{DataType, TimeUnit};

/// Why CQL cannot represent a value.
pub(crate) type Reason = &'static str;

/// Negative lengths that mark a null and an unset value.
const NULL: i32 = -1;
const UNSET: i32 = -2;

/// Appends a column's value after its length. A null is left unset: writing it would create a tombstone.
pub(crate) fn put_top(out: &mut Vec<u8>, array: &dyn Array, row: usize) -> Result<(), Reason> {
    if array.is_null(row) {
        put_unset(out);
        return Ok(());
    }
    put_counted(out, |out| put_value(out, array, row))
}

/// Appends bytes after their length.
pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    // Chunks have at most 8 MiB.
    out.extend_from_slice(&(bytes.len() as i32).to_be_bytes());
    out.extend_from_slice(bytes);
}

/// Appends the marker of an unset value, which leaves the column unchanged.
pub(crate) fn put_unset(out: &mut Vec<u8>) {
    out.extend_from_slice(&UNSET.to_be_bytes());
}

fn put_counted(out: &mut Vec<u8>, put: impl FnOnce(&mut Vec<u8>) -> Result<(), Reason>) -> Result<(), Reason> {
    let at = out.len();
    out.extend_from_slice(&[0; 4]);
    put(out)?;
    let len = (out.len() - at - 4) as i32;
    out[at..at + 4].copy_from_slice(&len.to_be_bytes());
    Ok(())
}

/// Appends an element of a nested value.
fn put_inner(out: &mut Vec<u8>, array: &dyn Array, row: usize) -> Result<(), Reason> {
    // Only a whole column can be unset. A part of a tuple without a value is a null.
    if array.is_null(row) {
        out.extend_from_slice(&NULL.to_be_bytes());
        return Ok(());
    }
    put_counted(out, |out| put_value(out, array, row))
}

/// Appends the bytes of a value that is not null.
fn put_value(out: &mut Vec<u8>, array: &dyn Array, row: usize) -> Result<(), Reason> {
    macro_rules! number {
        ($type:ty) => {
            out.extend_from_slice(&array.as_primitive::<$type>().value(row).to_be_bytes())
        };
        ($type:ty as $wide:ty) => {
            out.extend_from_slice(&<$wide>::from(array.as_primitive::<$type>().value(row)).to_be_bytes())
        };
        ($type:ty, times $factor:expr) => {{
            let wide = i64::from(array.as_primitive::<$type>().value(row)).checked_mul($factor);
            let wide = wide.ok_or("a time is out of the range of CQL's finer unit: use layout chunks")?;
            out.extend_from_slice(&wide.to_be_bytes());
        }};
    }
    match array.data_type() {
        DataType::Boolean => out.push(u8::from(array.as_boolean().value(row))),
        DataType::Int8 => number!(Int8Type),
        DataType::Int16 => number!(Int16Type),
        DataType::Int32 => number!(Int32Type),
        DataType::Int64 => number!(Int64Type),
        DataType::UInt8 => number!(UInt8Type as i16),
        DataType::UInt16 => number!(UInt16Type as i32),
        DataType::UInt32 => number!(UInt32Type as i64),
        DataType::UInt64 => put_varint(out, i128::from(array.as_primitive::<UInt64Type>().value(row))),
        DataType::Float32 => number!(Float32Type),
        DataType::Float64 => number!(Float64Type),
        // Day 2^31 is 1 January 1970.
        DataType::Date32 => {
            let days = array.as_primitive::<Date32Type>().value(row) as u32 ^ 0x8000_0000;
            out.extend_from_slice(&days.to_be_bytes());
        }
        DataType::Date64 => number!(Date64Type),
        DataType::Time32(TimeUnit::Second) => number!(Time32SecondType, times 1_000_000_000),
        DataType::Time32(_) => number!(Time32MillisecondType, times 1_000_000),
        DataType::Time64(TimeUnit::Microsecond) => number!(Time64MicrosecondType, times 1_000),
        DataType::Time64(_) => number!(Time64NanosecondType),
        DataType::Timestamp(TimeUnit::Second, _) => number!(TimestampSecondType, times 1_000),
        DataType::Timestamp(TimeUnit::Millisecond, _) => number!(TimestampMillisecondType),
        DataType::Timestamp(TimeUnit::Microsecond, _) => number!(TimestampMicrosecondType),
        DataType::Timestamp(TimeUnit::Nanosecond, _) => number!(TimestampNanosecondType),
        DataType::Duration(TimeUnit::Second) => number!(DurationSecondType),
        DataType::Duration(TimeUnit::Millisecond) => number!(DurationMillisecondType),
        DataType::Duration(TimeUnit::Microsecond) => number!(DurationMicrosecondType),
        DataType::Duration(TimeUnit::Nanosecond) => number!(DurationNanosecondType),
        DataType::Utf8 => out.extend_from_slice(array.as_string::<i32>().value(row).as_bytes()),
        DataType::Binary => out.extend_from_slice(array.as_binary::<i32>().value(row)),
        DataType::FixedSizeBinary(_) => out.extend_from_slice(array.as_fixed_size_binary().value(row)),
        DataType::Decimal128(precision, scale) => {
            let value = array.as_primitive::<Decimal128Type>().value(row);
            if value.unsigned_abs() >= 10_u128.pow(u32::from(*precision)) {
                return Err("a decimal has more digits than its type says");
            }
            out.extend_from_slice(&i32::from(*scale).to_be_bytes());
            put_varint(out, value);
        }
        DataType::List(_) => {
            let items = array.as_list::<i32>().value(row);
            out.extend_from_slice(&(items.len() as i32).to_be_bytes());
            for item in 0..items.len() {
                if items.is_null(item) {
                    return Err(
                        "a list has a null element, which CQL's lists cannot hold: leave it out, or use chunks",
                    );
                }
                put_inner(out, items.as_ref(), item)?;
            }
        }
        DataType::Struct(_) => {
            for child in array.as_struct().columns() {
                put_inner(out, child.as_ref(), row)?;
            }
        }
        _ => return Err("it has no CQL type"),
    }
    Ok(())
}

/// Appends a whole number in as few bytes as its sign allows.
fn put_varint(out: &mut Vec<u8>, value: i128) {
    let bytes = value.to_be_bytes();
    let fill = if value < 0 { 0xff } else { 0 };
    // A leading byte is redundant if the next byte begins with the same sign bit. At least one byte is left.
    let extra = bytes.windows(2).take_while(|pair| pair[0] == fill && pair[1] & 0x80 == fill & 0x80).count();
    out.extend_from_slice(&bytes[extra..]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_take_the_fewest_bytes_that_keep_their_sign() {
        let shown = |value: i128| {
            let mut out = vec![];
            put_varint(&mut out, value);
            out
        };
        assert_eq!(shown(0), [0]);
        assert_eq!(shown(127), [0x7f]);
        assert_eq!(shown(128), [0, 0x80]);
        assert_eq!(shown(-1), [0xff]);
        assert_eq!(shown(-128), [0x80]);
        assert_eq!(shown(-129), [0xff, 0x7f]);
        assert_eq!(shown(i128::MIN), i128::MIN.to_be_bytes());
        assert_eq!(shown(i128::from(u64::MAX)).len(), 9);
    }
}
