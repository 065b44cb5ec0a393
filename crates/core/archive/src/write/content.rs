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
        // Sums do not depend on the order of rows and, unlike an exclusive or, count each of several equal rows.
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

/// The hash of every row, over the exact bits of each column (so NaNs differ by payload, and -0.0 from 0.0).
///
/// A column that was added later contributes only where its value differs from the default that earlier rows read as:
/// the same rows, written again after the column was added, have the same content.
pub(crate) fn row_hashes(spec: &DatasetSpec, rows: &RecordBatch) -> std::result::Result<Vec<u64>, ArrowError> {
    let first = spec.schema_versions.first().map_or(rows.num_columns(), |count| *count as usize);
    // The same row in another dataset of a group is another row of the batch.
    let seed = spec.group.as_ref().map_or(FIRST, |group| mix(FIRST, u64::from(group.number) + 1));
    let mut hashes = vec![seed; rows.num_rows()];
    for (position, column) in rows.columns().iter().enumerate() {
        if position < first {
            add_column(&mut hashes, column)?;
        } else {
            add_later_column(&mut hashes, position, &absent_value(spec.schema.field(position))?, column)?;
        }
    }
    Ok(hashes)
}

fn add_later_column(
    hashes: &mut [u64],
    position: usize,
    absent: &ArrayRef,
    column: &ArrayRef,
) -> std::result::Result<(), ArrowError> {
    // The position of the column is the seed, so that the same value in two later columns gives two different hashes.
    let mut unset = [position as u64];
    add_column(&mut unset, absent)?;
    let mut values = vec![position as u64; hashes.len()];
    add_column(&mut values, column)?;
    for (hash, value) in hashes.iter_mut().zip(values).filter(|(_, value)| *value != unset[0]) {
        *hash = mix(*hash, value);
    }
    Ok(())
}

/// Makes equal rows of one batch differ by their number in it.
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
            // Arrow's row form has the values and nulls of all levels, and nothing of the values under nulls.
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
    /// Number and hash of the given rows, which need not be stored. The same rows give the same result, from any source
    /// and in any order.
    ///
    /// # Errors
    /// Rows that do not fit the dataset; errors of the input.
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
    use arrow_array::types::Int64Type;
    use arrow_array::{
        BinaryArray, BooleanArray, Decimal128Array, FixedSizeBinaryArray, Float32Array, Float64Array, Int8Array,
        Int32Array, Int64Array, ListArray, StringArray, StructArray, TimestampMicrosecondArray, UInt16Array,
    };
    use arrow_buffer::NullBuffer;
    use arrow_schema::Field;
    use chronotile_types::{DatasetName, Membership, TimeFormat};
    use std::sync::Arc;

    use crate::time_axis::tests::spec;

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

    /// The record of a batch holds its content, by which a release must know what an earlier one has written.
    #[test]
    fn the_hash_of_a_value_is_the_same_in_every_release() {
        let lists: ArrayRef =
            Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>([Some(vec![Some(1), None]), None]));
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None]));
        let field = Arc::new(Field::new("n", DataType::Int64, true));
        let nulls = Some(NullBuffer::from(vec![true, false]));
        let structs: ArrayRef = Arc::new(StructArray::new(vec![field].into(), vec![numbers.clone()], nulls));
        let bytes = FixedSizeBinaryArray::try_from_sparse_iter_with_size([Some([1, 2, 3]), None].into_iter(), 3);
        let columns: [(ArrayRef, u64); 14] = [
            (numbers, 0x4d0a_2bb8_82f4_f4cc),
            (Arc::new(Int8Array::from(vec![Some(-2), None])), 0xfa19_e0a0_8eef_7f97),
            (Arc::new(UInt16Array::from(vec![Some(65_533), None])), 0xaa2c_dc1c_29e5_7fb3),
            (Arc::new(Int32Array::from(vec![Some(-2), None])), 0xc106_2815_734c_dbcb),
            (Arc::new(Float32Array::from(vec![Some(1.5), None])), 0xf40b_29f4_316b_7d2d),
            (Arc::new(Float64Array::from(vec![Some(-0.0), None])), 0x5769_5905_0097_b89c),
            (Arc::new(TimestampMicrosecondArray::from(vec![Some(-1), None])), 0x61c8_8641_7f4a_7c14),
            (Arc::new(Decimal128Array::from(vec![Some(-(1 << 100) - 1), None])), 0x57d1_10e2_b2ec_7d97),
            (Arc::new(BooleanArray::from(vec![Some(true), None])), 0x4d0a_2bb8_82f4_f4cc),
            (Arc::new(StringArray::from(vec![Some("é"), None])), 0x5462_6a69_e944_48d5),
            (Arc::new(BinaryArray::from_opt_vec(vec![Some(&[1, 2]), None])), 0x64ce_83cd_ca52_1ec9),
            (Arc::new(bytes.unwrap()), 0x4dd2_c671_8704_e689),
            (lists, 0xb97c_ff4d_0091_1fb6),
            (structs, 0x7c54_ab98_e76c_803a),
        ];
        for (column, expected) in columns {
            let of = |column: ArrayRef| hashes(&RecordBatch::try_from_iter([("a", column)]).unwrap());
            let found = of(column.clone());
            assert_eq!(found, [expected, 0xc3b1_24ec_3e08_e08d], "{}", column.data_type());
            // Nulls in other rows and the position in the array do not matter.
            assert_eq!(of(column.slice(0, 1)), found[..1]);
            assert_eq!(of(column.slice(1, 1)), found[1..]);
        }
        let mut one = [FIRST];
        add_ordinals(&mut one, 7);
        assert_eq!(one, [0x0431_d194_f987_2356]);
    }

    #[test]
    fn the_sum_of_hashes_is_shown_and_stored_alike() {
        let mut content = Content::default();
        [FIRST, SECOND, u64::MAX].into_iter().for_each(|hash| content.add(hash));
        assert_eq!(content.to_string(), "f51d2969e486f79a75207871e5a479a7");
        assert_eq!(format!("{:032x}", u128::from_be_bytes(content.to_bytes())), content.to_string());
    }

    #[test]
    fn the_same_row_in_another_dataset_of_a_group_is_another_row() {
        let time: ArrayRef = Arc::new(TimestampMicrosecondArray::from(vec![7, 8]));
        let rows =
            RecordBatch::try_from_iter([("t", time), ("tag", Arc::new(Int64Array::from(vec![1, 1])) as ArrayRef)]);
        let rows = rows.unwrap();
        let alone = spec(TimeFormat::Timestamp);
        let member = |number: u8| {
            let group = Membership { number, ..Membership::of(DatasetName::new("survey").unwrap()) };
            row_hashes(&DatasetSpec { group: Some(group), ..alone.clone() }, &rows).unwrap()
        };
        assert_eq!(row_hashes(&alone, &rows).unwrap(), hashes(&rows));
        for number in 0..16_u8 {
            let mut expected = vec![mix(FIRST, u64::from(number) + 1); 2];
            rows.columns().iter().for_each(|column| add_column(&mut expected, column).unwrap());
            assert_eq!(member(number), expected);
        }
    }
}
