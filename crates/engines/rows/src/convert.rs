//! Converts the Arrow types of CQL results to the types of the dataset.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{
    Array, ArrayRef, ArrowPrimitiveType, FixedSizeBinaryArray, GenericListArray, PrimitiveArray, StructArray,
};
use arrow_schema::{ArrowError, DataType, TimeUnit};

/// Converts the array to type `wanted`. A number out of range, which only another tool can have written, becomes a different one,
/// which the chunk's checksum detects.
pub(crate) fn convert(array: &ArrayRef, wanted: &DataType) -> Result<ArrayRef, ArrowError> {
    use DataType as D;
    if array.data_type() == wanted {
        return Ok(array.clone());
    }
    Ok(match wanted {
        D::UInt8 => number::<Int16Type, UInt8Type>(array, wanted, |value| value as u8)?,
        D::UInt16 => number::<Int32Type, UInt16Type>(array, wanted, |value| value as u16)?,
        D::UInt32 => number::<Int64Type, UInt32Type>(array, wanted, |value| value as u32)?,
        D::UInt64 => number::<Decimal256Type, UInt64Type>(array, wanted, |value| value.as_i128() as u64)?,
        D::Duration(TimeUnit::Second) => number::<Int64Type, DurationSecondType>(array, wanted, |value| value)?,
        D::Duration(TimeUnit::Millisecond) => {
            number::<Int64Type, DurationMillisecondType>(array, wanted, |value| value)?
        }
        D::Duration(TimeUnit::Microsecond) => {
            number::<Int64Type, DurationMicrosecondType>(array, wanted, |value| value)?
        }
        D::Duration(TimeUnit::Nanosecond) => number::<Int64Type, DurationNanosecondType>(array, wanted, |value| value)?,
        D::Date64 => number::<TimestampMillisecondType, Date64Type>(array, wanted, |value| value)?,
        D::Timestamp(TimeUnit::Second, _) => {
            number::<TimestampMillisecondType, TimestampSecondType>(array, wanted, |value| value / 1_000)?
        }
        D::Timestamp(TimeUnit::Millisecond, _) => {
            number::<TimestampMillisecondType, TimestampMillisecondType>(array, wanted, |value| value)?
        }
        D::Timestamp(TimeUnit::Microsecond, _) => {
            number::<Int64Type, TimestampMicrosecondType>(array, wanted, |value| value)?
        }
        D::Timestamp(TimeUnit::Nanosecond, _) => {
            number::<Int64Type, TimestampNanosecondType>(array, wanted, |value| value)?
        }
        D::Time32(TimeUnit::Second) => {
            number::<Time64NanosecondType, Time32SecondType>(array, wanted, |value| (value / 1_000_000_000) as i32)?
        }
        D::Time32(_) => {
            number::<Time64NanosecondType, Time32MillisecondType>(array, wanted, |value| (value / 1_000_000) as i32)?
        }
        D::Time64(TimeUnit::Microsecond) => {
            number::<Time64NanosecondType, Time64MicrosecondType>(array, wanted, |value| value / 1_000)?
        }
        // Pages are decoded with 38 digits (`types::mapping`): only the precision of the type changes.
        D::Decimal128(_, _) => number::<Decimal128Type, Decimal128Type>(array, wanted, |value| value)?,
        D::FixedSizeBinary(width) => fixed_binary(array, *width)?,
        D::List(item) => {
            let lists = array.as_list_opt::<i32>().ok_or_else(|| mismatch(array, wanted))?;
            let items = convert(lists.values(), item.data_type())?;
            let nulls = lists.nulls().cloned();
            Arc::new(GenericListArray::<i32>::try_new(item.clone(), lists.offsets().clone(), items, nulls)?)
        }
        D::Struct(fields) => {
            let structs = array.as_struct_opt().filter(|found| found.num_columns() == fields.len());
            let structs = structs.ok_or_else(|| mismatch(array, wanted))?;
            let children = structs.columns().iter().zip(fields);
            let children = children.map(|(child, field)| convert(child, field.data_type()));
            let children = children.collect::<Result<Vec<_>, _>>()?;
            Arc::new(StructArray::try_new(fields.clone(), children, structs.nulls().cloned())?)
        }
        _ => return Err(mismatch(array, wanted)),
    })
}

fn mismatch(array: &ArrayRef, wanted: &DataType) -> ArrowError {
    ArrowError::CastError(format!("the table has {}, the dataset {wanted}", array.data_type()))
}

fn number<F: ArrowPrimitiveType, T: ArrowPrimitiveType>(
    array: &ArrayRef,
    wanted: &DataType,
    change: impl Fn(F::Native) -> T::Native,
) -> Result<ArrayRef, ArrowError> {
    let found = array.as_primitive_opt::<F>().ok_or_else(|| mismatch(array, wanted))?;
    let changed: PrimitiveArray<T> = found.unary(change);
    Ok(Arc::new(changed.with_data_type(wanted.clone())))
}

/// A value of another length becomes zeros.
fn fixed_binary(array: &ArrayRef, width: i32) -> Result<ArrayRef, ArrowError> {
    let found = array.as_binary_opt::<i32>().ok_or_else(|| mismatch(array, &DataType::FixedSizeBinary(width)))?;
    let zeros = vec![0; usize::try_from(width).unwrap_or(0)];
    let mut bytes = Vec::with_capacity(found.len() * zeros.len());
    for value in found {
        bytes.extend_from_slice(value.filter(|value| value.len() == zeros.len()).unwrap_or(&zeros));
    }
    Ok(Arc::new(FixedSizeBinaryArray::try_new(width, bytes.into(), found.nulls().cloned())?))
}
