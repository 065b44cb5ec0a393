//! A hash of rows that does not depend on their order, on how they were cut into batches, or on how they are encoded.

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_data::ArrayData;
use arrow_row::{RowConverter, SortField};
use arrow_schema::{ArrowError, DataType};
use chronotile_types::DatasetSpec;
use xxhash_rust::xxh3::xxh3_64;

use crate::dataset::Dataset;
use crate::error::{ArchiveError, Result};
use crate::frame::absent_value;
use crate::write::input;

/// Sum of the hashes of a set of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Content {
    low: u64,
    high: u64,
}

impl Content {
    /// Adds one row's hash.
    pub(crate) fn add(&mut self, hash: u64) {
        self.low = self.low.wrapping_add(hash);
        self.high = self.high.wrapping_add(mix(hash, SECOND));
    }

    pub(crate) fn to_bytes(self) -> [u8; 16] {
        ((u128::from(self.high) << 64) | u128::from(self.low)).to_be_bytes()
    }
}

impl std::fmt::Display for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}{:016x}", self.high, self.low)
    }
}

const FIRST: u64 = 0x9e37_79b9_7f4a_7c15;
const SECOND: u64 = 0xd6e8_feb8_6659_fd93;
const NULL: u64 = 0xa076_1d64_78bd_642f;

/// Two rounds of multiply and fold: every bit of `value` reaches every bit of the result.
#[inline]
fn mix(hash: u64, value: u64) -> u64 {
    let product = u128::from(hash ^ value ^ FIRST).wrapping_mul(u128::from(SECOND));
    let folded = (product as u64) ^ ((product >> 64) as u64);
    folded.wrapping_mul(FIRST) ^ (folded >> 29)
}

/// The hash of every row, each column's bits taken as they are (so NaNs differ by payload and -0.0 from 0.0).
///
/// A column that was added later counts only where its value is not what a row without it reads as: the same rows, written
/// again after the column was added, are still the same content.
pub(crate) fn row_hashes(spec: &DatasetSpec, rows: &RecordBatch) -> std::result::Result<Vec<u64>, ArrowError> {
    let first = spec.schema_versions.first().map_or(rows.num_columns(), |count| *count as usize);
    // The same row in another dataset of a group is another row of the batch.
    let seed = spec.group.as_ref().map_or(FIRST, |group| mix(FIRST, u64::from(group.number) + 1));
    let mut hashes = vec![seed; rows.num_rows()];
    for (place, column) in rows.columns().iter().enumerate() {
        if place < first {
            add_column(&mut hashes, column)?;
        } else {
            add_later_column(&mut hashes, place, &absent_value(spec.schema.field(place))?, column)?;
        }
    }
    Ok(hashes)
}

fn add_later_column(
    hashes: &mut [u64],
    place: usize,
    absent: &ArrayRef,
    column: &ArrayRef,
) -> std::result::Result<(), ArrowError> {
    let mut unset = [place as u64];
    add_column(&mut unset, absent)?;
    let mut values = vec![place as u64; hashes.len()];
    add_column(&mut values, column)?;
    for (hash, value) in hashes.iter_mut().zip(values).filter(|(_, value)| *value != unset[0]) {
        *hash = mix(*hash, value);
    }
    Ok(())
}

/// Makes equal rows of one batch different by their place in it.
pub(crate) fn add_ordinals(hashes: &mut [u64], first: i64) {
    for (hash, ordinal) in hashes.iter_mut().zip(first..) {
        *hash = mix(*hash, ordinal as u64);
    }
}

fn add_column(hashes: &mut [u64], column: &ArrayRef) -> std::result::Result<(), ArrowError> {
    match column.data_type() {
        DataType::Utf8 => {
            let array = column.as_string::<i32>();
            add(hashes, column, |row| xxh3_64(array.value(row).as_bytes()));
        }
        DataType::Binary => {
            let array = column.as_binary::<i32>();
            add(hashes, column, |row| xxh3_64(array.value(row)));
        }
        DataType::Boolean => {
            let array = column.as_boolean();
            add(hashes, column, |row| array.value(row).into());
        }
        DataType::FixedSizeBinary(_) => {
            let array = column.as_fixed_size_binary();
            add(hashes, column, |row| xxh3_64(array.value(row)));
        }
        DataType::List(_) | DataType::Struct(_) => {
            let converter = RowConverter::new(vec![SortField::new(column.data_type().clone())])?;
            let rows = converter.convert_columns(std::slice::from_ref(column))?;
            add(hashes, column, |row| xxh3_64(rows.row(row).data()));
        }
        _ => add_fixed(hashes, column, &column.to_data()),
    }
    Ok(())
}

fn add_fixed(hashes: &mut [u64], column: &ArrayRef, data: &ArrayData) {
    match column.data_type().primitive_width() {
        Some(1) => add_values(hashes, column, data.buffer::<u8>(0), |v| u64::from(*v)),
        Some(2) => add_values(hashes, column, data.buffer::<u16>(0), |v| u64::from(*v)),
        Some(4) => add_values(hashes, column, data.buffer::<u32>(0), |v| u64::from(*v)),
        Some(8) => add_values(hashes, column, data.buffer::<u64>(0), |v| *v),
        _ => add_values(hashes, column, data.buffer::<u128>(0), |v| (*v as u64) ^ mix((*v >> 64) as u64, FIRST)),
    }
}

fn add_values<T>(hashes: &mut [u64], column: &ArrayRef, values: &[T], bits: impl Fn(&T) -> u64) {
    if column.null_count() == 0 {
        for (hash, value) in hashes.iter_mut().zip(values) {
            *hash = mix(*hash, bits(value));
        }
    } else {
        add(hashes, column, |row| bits(&values[row]));
    }
}

fn add(hashes: &mut [u64], column: &ArrayRef, bits: impl Fn(usize) -> u64) {
    let nulls = column.logical_nulls();
    for (row, hash) in hashes.iter_mut().enumerate() {
        let null = nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
        *hash = mix(*hash, if null { NULL } else { bits(row) });
    }
}

impl Dataset {
    /// Number and hash of rows, which the dataset need not hold: equal wherever the same rows come from, in whatever order.
    ///
    /// # Errors
    /// Rows that do not fit the dataset; what the input says.
    pub fn content<I>(&self, batches: I) -> Result<(u64, String)>
    where
        I: IntoIterator<Item = std::result::Result<RecordBatch, ArrowError>>,
    {
        let frame = self.frame();
        let (mut rows, mut content) = (0, Content::default());
        for batch in input::in_parts(batches) {
            let batch = input::conform(&frame.spec, &batch.map_err(ArchiveError::Source)?)
                .map_err(|error| error.behind_rows(rows))?;
            rows += batch.num_rows() as u64;
            let hashes = row_hashes(&frame.spec, &batch).map_err(|e| frame.compute("hashing rows", e))?;
            hashes.into_iter().for_each(|hash| content.add(hash));
        }
        Ok((rows, content.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{Float64Array, Int64Array, StringArray};
    use std::sync::Arc;

    fn rows(a: Vec<Option<i64>>, b: Vec<f64>, c: Vec<&str>) -> RecordBatch {
        RecordBatch::try_from_iter([
            ("a", Arc::new(Int64Array::from(a)) as ArrayRef),
            ("b", Arc::new(Float64Array::from(b))),
            ("c", Arc::new(StringArray::from(c))),
        ])
        .unwrap()
    }

    fn hashes(rows: &RecordBatch) -> Vec<u64> {
        let mut hashes = vec![FIRST; rows.num_rows()];
        rows.columns().iter().for_each(|column| add_column(&mut hashes, column).unwrap());
        hashes
    }

    fn content(rows: &RecordBatch) -> Content {
        let mut content = Content::default();
        hashes(rows).into_iter().for_each(|hash| content.add(hash));
        content
    }

    #[test]
    fn order_and_cutting_do_not_matter() {
        let all = rows(vec![Some(1), None, Some(3)], vec![0.5, 1.5, 2.5], vec!["x", "y", "z"]);
        let turned = rows(vec![Some(3), Some(1), None], vec![2.5, 0.5, 1.5], vec!["z", "x", "y"]);
        assert_eq!(content(&all), content(&turned));
        let mut cut = Content::default();
        for part in [all.slice(0, 1), all.slice(1, 2)] {
            hashes(&part).into_iter().for_each(|hash| cut.add(hash));
        }
        assert_eq!(content(&all), cut);
    }

    #[test]
    fn every_small_change_is_seen() {
        let base = content(&rows(vec![Some(0)], vec![0.0], vec!["x"]));
        for other in [
            rows(vec![None], vec![0.0], vec!["x"]),
            rows(vec![Some(1)], vec![0.0], vec!["x"]),
            rows(vec![Some(0)], vec![-0.0], vec!["x"]),
            rows(vec![Some(0)], vec![f64::NAN], vec!["x"]),
            rows(vec![Some(0)], vec![0.0], vec![""]),
        ] {
            assert_ne!(base, content(&other));
        }
    }
}
