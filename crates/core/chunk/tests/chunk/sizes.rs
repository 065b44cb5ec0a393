//! The sizes and encodings of columns of given shapes, so that a worse choice of the encoder is detected.
//!
//! `tests/golden/sizes.txt` has a line for each column, sweep and table of this file. The sizes also depend on the versions
//! of pco, zstd and lz4_flex in `Cargo.lock`. After an intended change,
//! `CHRONOTILE_WRITE_SIZES=1 cargo test -p chronotile-chunk --test chunk sizes` rewrites the file: review its diff.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use arrow_array::types::{Int16Type, Int32Type};
use arrow_array::{
    Array, ArrayRef, BinaryArray, BooleanArray, Date32Array, Decimal128Array, FixedSizeBinaryArray, Float32Array,
    Float64Array, Int8Array, Int16Array, Int32Array, Int64Array, ListArray, RecordBatch, StringArray, StructArray,
    TimestampMicrosecondArray, UInt8Array, UInt16Array, UInt32Array, UInt64Array,
};
use arrow_buffer::NullBuffer;
use arrow_schema::{Field, Schema};
use chronotile_chunk::{BodyLayout, ChunkRows, Encoded, Layout, Origin, encode, encode_as, encode_plain};
use chronotile_types::BatchId;

use crate::common::*;

const VARIABLE: &str = "CHRONOTILE_WRITE_SIZES";

/// A column: name, numbers of rows on both sides of the encoder's limits, and its values.
type Column = (&'static str, &'static [usize], fn(&mut Rng, usize) -> ArrayRef);

fn i64s(values: impl Iterator<Item = i64>) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values(values))
}

fn f64s(values: impl Iterator<Item = f64>) -> ArrayRef {
    Arc::new(Float64Array::from_iter_values(values))
}

fn f32s(values: impl Iterator<Item = f32>) -> ArrayRef {
    Arc::new(Float32Array::from_iter_values(values))
}

fn texts(values: impl Iterator<Item = String>) -> ArrayRef {
    Arc::new(StringArray::from_iter_values(values))
}

/// Unsigned noise of `bits` bits.
fn noise(rng: &mut Rng, bits: u32) -> u64 {
    rng.next() >> (64 - bits)
}

/// Sums of steps from zero up to `steps - 1`, minus `back` each.
fn walk(rng: &mut Rng, rows: usize, steps: usize, back: i64) -> impl Iterator<Item = i64> {
    let mut level = 5_000;
    (0..rows).map(move |_| {
        level += rng.below(steps) as i64 - back;
        level
    })
}

/// Noise of 20 bits, with random bits in one of every `odd_every` values.
fn with_outliers(rng: &mut Rng, rows: usize, odd_every: usize) -> ArrayRef {
    i64s((0..rows).map(|row| if row % odd_every == odd_every / 2 { rng.next() as i64 } else { noise(rng, 20) as i64 }))
}

/// A random walk in hundredths, with random bits in one of every `odd_every` values.
fn hundredths(rng: &mut Rng, rows: usize, odd_every: usize) -> ArrayRef {
    let levels: Vec<i64> = walk(rng, rows, 3, 1).collect();
    f64s(levels.iter().enumerate().map(|(row, level)| match row % odd_every {
        7 => f64::from_bits(rng.next() >> 2 | 1),
        _ => *level as f64 / 100.0,
    }))
}

/// The column with a null at each position for which `is_null` is true.
fn with_nulls(column: &ArrayRef, is_null: impl Fn(usize) -> bool) -> ArrayRef {
    let valid: NullBuffer = (0..column.len()).map(|row| !is_null(row)).collect::<Vec<_>>().into();
    arrow_array::make_array(column.to_data().into_builder().nulls(Some(valid)).build().unwrap())
}

fn log_line(rng: &mut Rng, row: usize) -> String {
    match rng.below(3) {
        0 => format!("Received block blk_{:08} of size 67108864 from /10.251.91.{}", row * 7, rng.below(90)),
        1 => format!("Connection {} from host{:02} closed", row * 3, rng.below(60)),
        _ => format!("PacketResponder {} terminating", rng.below(4)),
    }
}

fn lists(rng: &mut Rng, rows: usize, len: impl Fn(&mut Rng, usize) -> Option<usize>) -> ArrayRef {
    let values: Vec<_> = (0..rows)
        .map(|row| len(rng, row).map(|len| (0..len).map(|_| Some(noise(rng, 9) as i16)).collect::<Vec<_>>()))
        .collect();
    Arc::new(ListArray::from_iter_primitive::<Int16Type, _, _>(values))
}

const INTEGERS: &[Column] = &[
    ("int64_zero", &[1, 100], |_, rows| i64s((0..rows).map(|_| 0))),
    ("int64_constant", &[1, 2, 100, 1_000], |_, rows| i64s((0..rows).map(|_| -7))),
    ("int64_counter", &[3, 4, 300], |_, rows| i64s((0..rows).map(|row| 1 << 40 | row as i64))),
    ("int64_counter_with_gap", &[4, 300], |_, rows| i64s((0..rows as i64).map(|row| row + i64::from(row > 2) * 9))),
    ("int64_walk", &[16, 100, 255, 256, 1_000], |rng, rows| i64s(walk(rng, rows, 6, 0))),
    ("int64_coarse_walk", &[100, 1_000], |rng, rows| i64s(walk(rng, rows, 6, 2).map(|level| level * 1_000))),
    ("int64_noise_20", &[1, 2, 3, 15, 16, 17, 47, 48, 300, 5_000], |rng, rows| {
        i64s((0..rows).map(|_| noise(rng, 20) as i64))
    }),
    ("int64_noise_56", &[48, 300], |rng, rows| i64s((0..rows).map(|_| noise(rng, 56) as i64))),
    ("int64_noise_57", &[48, 300], |rng, rows| i64s((0..rows).map(|_| noise(rng, 57) as i64))),
    ("int64_noise_64", &[48, 300], |rng, rows| i64s((0..rows).map(|_| rng.next() as i64))),
    ("int64_few", &[48, 300], |rng, rows| i64s((0..rows).map(|_| [3, 70_000, i64::MAX, 5][rng.below(4)]))),
    ("int64_half_distinct", &[48, 300], |rng, rows| {
        let values: Vec<i64> = (0..rows.div_ceil(2)).map(|_| noise(rng, 20) as i64).collect();
        i64s((0..rows).map(|row| values[row / 2]))
    }),
    ("int64_outliers_200", &[100, 1_000, 5_000], |rng, rows| with_outliers(rng, rows, 200)),
    ("int64_outliers_60", &[100, 1_000, 5_000], |rng, rows| with_outliers(rng, rows, 60)),
    ("int64_outliers_24", &[100, 1_000, 5_000], |rng, rows| with_outliers(rng, rows, 24)),
    ("int64_outliers_10", &[100, 1_000, 5_000], |rng, rows| with_outliers(rng, rows, 10)),
    ("int32_signed", &[48, 300], |rng, rows| {
        Arc::new(Int32Array::from_iter_values((0..rows).map(|_| noise(rng, 12) as i32 - 2_000)))
    }),
    ("int16_signed", &[48, 300], |rng, rows| {
        Arc::new(Int16Array::from_iter_values((0..rows).map(|_| noise(rng, 9) as i16 - 256)))
    }),
    ("int8_signed", &[48, 300], |rng, rows| {
        Arc::new(Int8Array::from_iter_values((0..rows).map(|_| noise(rng, 5) as i8 - 16)))
    }),
    ("uint8_noise_5", &[48, 300], |rng, rows| {
        Arc::new(UInt8Array::from_iter_values((0..rows).map(|_| noise(rng, 5) as u8)))
    }),
    ("uint16_noise_11", &[5, 48, 300], |rng, rows| {
        Arc::new(UInt16Array::from_iter_values((0..rows).map(|_| 40_000 + noise(rng, 11) as u16)))
    }),
    ("uint32_noise_17", &[5, 48, 300], |rng, rows| {
        Arc::new(UInt32Array::from_iter_values((0..rows).map(|_| noise(rng, 17) as u32)))
    }),
    ("uint64_around_32_bits", &[20, 300], |rng, rows| {
        Arc::new(UInt64Array::from_iter_values((0..rows).map(|_| (1 << 63) + noise(rng, 32))))
    }),
    ("timestamp_with_jitter", &[20, 300, 2_000], |rng, rows| {
        let times = (0..rows as i64).map(|row| 1_767_225_600_000_000 + row * 1_000_000 + rng.below(900) as i64);
        Arc::new(TimestampMicrosecondArray::from_iter_values(times))
    }),
    ("date32_rising", &[20, 300], |rng, rows| {
        Arc::new(Date32Array::from_iter_values(walk(rng, rows, 3, 0).map(|day| day as i32)))
    }),
    ("decimal128", &[20, 300], |rng, rows| {
        Arc::new(Decimal128Array::from_iter_values((0..rows).map(|_| i128::from(noise(rng, 30)))))
    }),
    ("fixed_binary_5", &[20, 300], |rng, rows| {
        let values = (0..rows).map(|_| [1, 2, 3, 0, rng.next() as u8]);
        Arc::new(FixedSizeBinaryArray::try_from_iter(values).unwrap())
    }),
];

const FLOATS: &[Column] = &[
    ("float64_zero", &[1, 100], |_, rows| f64s((0..rows).map(|_| 0.0))),
    ("float64_constant_nan", &[1, 300], |_, rows| f64s((0..rows).map(|_| f64::NAN))),
    ("float64_whole", &[20, 300], |rng, rows| f64s((0..rows).map(|_| noise(rng, 9) as f64))),
    ("float64_tenths", &[20, 100, 300], |rng, rows| f64s(walk(rng, rows, 5, 2).map(|level| level as f64 / 10.0))),
    ("float64_hundredths", &[20, 300, 2_000], |rng, rows| hundredths(rng, rows, usize::MAX)),
    ("float64_thousandths", &[20, 300], |rng, rows| f64s((0..rows).map(|_| noise(rng, 14) as f64 / 1_000.0))),
    ("float64_signed_hundredths", &[20, 300], |rng, rows| {
        f64s((0..rows).map(|_| (noise(rng, 10) as f64 - 512.0) / 100.0))
    }),
    ("float64_wide_decimals", &[20, 300], |rng, rows| {
        f64s((0..rows).map(|_| (123_456_789_012 + noise(rng, 12) as i64) as f64 / 1e4))
    }),
    ("float64_exceptions_500", &[300, 2_000], |rng, rows| hundredths(rng, rows, 500)),
    ("float64_exceptions_100", &[300, 2_000], |rng, rows| hundredths(rng, rows, 100)),
    ("float64_exceptions_20", &[300, 2_000], |rng, rows| hundredths(rng, rows, 20)),
    ("float64_exceptions_16", &[160, 300], |rng, rows| hundredths(rng, rows, 16)),
    ("float64_exceptions_15", &[160, 300], |rng, rows| hundredths(rng, rows, 15)),
    ("float64_noise", &[1, 5, 16, 47, 48, 300, 5_000], |rng, rows| f64s((0..rows).map(|_| rng.unit()))),
    ("float64_noise_around_287", &[48, 300], |rng, rows| f64s((0..rows).map(|_| 287.0 + 0.18 * rng.unit()))),
    ("float64_noise_signed", &[48, 300], |rng, rows| f64s((0..rows).map(|_| rng.unit() - 0.5))),
    ("float64_sorted", &[48, 300], |rng, rows| {
        let mut values: Vec<f64> = (0..rows).map(|_| rng.unit()).collect();
        values.sort_by(f64::total_cmp);
        f64s(values.into_iter())
    }),
    ("float64_few", &[48, 300], |rng, rows| {
        let few: Vec<f64> = (0..10).map(|_| rng.unit()).collect();
        f64s((0..rows).map(|_| few[rng.below(10)]))
    }),
    ("float64_nan_among_noise", &[300, 1_000], |rng, rows| {
        f64s((0..rows).map(|row| if row % 50 == 3 { f64::NAN } else { 18.0 + rng.unit() }))
    }),
    ("float64_of_float32", &[48, 300], |rng, rows| f64s((0..rows).map(|_| f64::from(rng.unit() as f32)))),
    ("float64_of_float32_signed", &[48, 300], |rng, rows| f64s((0..rows).map(|_| f64::from(rng.unit() as f32 - 0.5)))),
    ("float64_off_by_one_ulp", &[300, 2_000], |rng, rows| {
        let levels: Vec<i64> = walk(rng, rows, 3, 1).collect();
        f64s(levels.iter().enumerate().map(|(row, level)| {
            let value = *level as f64 / 100.0;
            if row % 20 == 7 { value.next_up() } else { value }
        }))
    }),
    ("float64_seldom_off_by_one_ulp", &[300, 2_000], |rng, rows| {
        let levels: Vec<i64> = (0..rows).map(|_| noise(rng, 12) as i64).collect();
        f64s(levels.iter().enumerate().map(|(row, level)| {
            let value = *level as f64 / 100.0;
            if row % 260 == 7 { value.next_up() } else { value }
        }))
    }),
    ("float64_of_float32_decimals", &[48, 300], |rng, rows| {
        f64s(walk(rng, rows, 5, 2).map(|level| f64::from(level as f32 / 100.0)))
    }),
    ("float32_noise", &[1, 5, 48, 300, 5_000], |rng, rows| f32s((0..rows).map(|_| rng.unit() as f32))),
    ("float32_noise_signed", &[48, 300], |rng, rows| f32s((0..rows).map(|_| (rng.unit() - 0.5) as f32))),
    ("float32_magnitudes", &[20, 300], |rng, rows| f32s((0..rows).map(|_| 18.0 + 4.0 * rng.unit() as f32))),
    ("float32_hundredths", &[20, 300], |rng, rows| f32s(walk(rng, rows, 5, 2).map(|level| level as f32 / 100.0))),
    ("float32_exceptions", &[300, 2_000], |rng, rows| {
        f32s((0..rows).map(|row| if row % 90 == 8 { f32::NAN } else { noise(rng, 8) as f32 / 10.0 }))
    }),
];

const OTHERS: &[Column] = &[
    ("bool_true", &[1, 300], |_, rows| Arc::new(BooleanArray::from(vec![true; rows]))),
    ("bool_false", &[1, 300], |_, rows| Arc::new(BooleanArray::from(vec![false; rows]))),
    ("bool_seldom", &[20, 2_000], |rng, rows| {
        Arc::new((0..rows).map(|_| Some(rng.chance(2))).collect::<BooleanArray>())
    }),
    ("bool_noise", &[20, 300], |rng, rows| Arc::new((0..rows).map(|_| Some(rng.chance(50))).collect::<BooleanArray>())),
    ("bool_true_or_null", &[20, 300], |_, rows| {
        Arc::new((0..rows).map(|row| (row % 3 > 0).then_some(true)).collect::<BooleanArray>())
    }),
    ("text_empty", &[1, 300], |_, rows| texts((0..rows).map(|_| String::new()))),
    ("text_constant", &[1, 2, 300], |_, rows| texts((0..rows).map(|_| "ztf".to_owned()))),
    ("text_bands", &[1, 5, 20, 300, 2_000], |rng, rows| {
        texts((0..rows).map(|_| ["u", "g", "r", "i"][rng.below(4)].to_owned()))
    }),
    ("text_half_distinct", &[40, 300], |_, rows| texts((0..rows).map(|row| format!("object {:05}", row / 2)))),
    ("text_over_half_distinct", &[41, 301], |_, rows| texts((0..rows).map(|row| format!("object {:05}", row / 2)))),
    ("text_few_long", &[40, 300], |rng, rows| {
        let few: Vec<String> = (0..9).map(|_| format!("{:032x}", u128::from(rng.next()) << 60)).collect();
        texts((0..rows).map(|_| few[rng.below(9)].clone()))
    }),
    ("text_repeated_noise", &[40, 1_000], |rng, rows| {
        let names: Vec<String> = (0..rows / 3).map(|_| format!("{:016x}", rng.next())).collect();
        texts((0..rows).map(|_| names[rng.below(names.len())].clone()))
    }),
    ("text_urls", &[5, 100, 300], |_, rows| texts((0..rows).map(|row| format!("https://example.org/object/{row:06}")))),
    ("text_log", &[20, 300], |rng, rows| texts((0..rows).map(|row| log_line(rng, row)))),
    ("text_long", &[3, 20], |rng, rows| {
        texts((0..rows).map(|_| (0..90).map(|row| log_line(rng, row)).collect::<String>()))
    }),
    ("binary_noise", &[3, 300], |rng, rows| {
        Arc::new(BinaryArray::from_iter_values((0..rows).map(|_| rng.next().to_le_bytes()[..3].to_vec())))
    }),
    ("nulls_few", &[8, 100, 2_000], |rng, rows| {
        with_nulls(&i64s((0..rows).map(|_| noise(rng, 20) as i64)), |row| row % 97 == 5)
    }),
    ("nulls_most", &[20, 2_000], |rng, rows| with_nulls(&f64s((0..rows).map(|_| rng.unit())), |row| row % 41 != 5)),
    ("nulls_all", &[1, 300], |_, rows| arrow_array::new_null_array(&arrow_schema::DataType::Float32, rows)),
    ("nulls_in_walk", &[20, 1_000], |rng, rows| with_nulls(&i64s(walk(rng, rows, 6, 0)), |row| row % 5 == 1)),
    ("nulls_in_hundredths", &[300], |rng, rows| with_nulls(&hundredths(rng, rows, 1_000), |row| row % 9 == 1)),
    ("nulls_in_text", &[20, 300], |rng, rows| {
        with_nulls(&texts((0..rows).map(|row| log_line(rng, row))), |row| row % 4 == 1)
    }),
    ("list_empty", &[1, 300], |rng, rows| lists(rng, rows, |_, _| Some(0))),
    ("list_of_three", &[1, 5, 300], |rng, rows| lists(rng, rows, |_, _| Some(3))),
    ("list_of_some", &[5, 300], |rng, rows| lists(rng, rows, |rng, _| Some(rng.below(5)))),
    ("list_long_and_short", &[5, 40], |rng, rows| lists(rng, rows, |rng, row| Some(row % 3 * 80 + rng.below(9)))),
    ("list_or_null", &[5, 300], |rng, rows| lists(rng, rows, |_, row| (row % 3 > 0).then_some(row % 4))),
    ("list_null", &[5, 300], |rng, rows| lists(rng, rows, |_, _| None)),
    ("struct_with_nulls", &[5, 300], |rng, rows| {
        let (ids, names) =
            (i64s((0..rows).map(|_| noise(rng, 20) as i64)), texts((0..rows).map(|row| format!("n{row}"))));
        let field = |name, column: &ArrayRef| Arc::new(Field::new(name, column.data_type().clone(), true));
        let columns = vec![(field("id", &ids), with_nulls(&ids, |row| row % 5 == 2)), (field("name", &names), names)];
        with_nulls(&(Arc::new(StructArray::from(columns)) as ArrayRef), |row| row % 3 == 1)
    }),
    ("list_of_int32_in_order", &[5, 300], |_, rows| {
        let values = (0..rows as i32).map(|row| Some((0..4).map(move |at| Some(row * 4 + at))));
        Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(values))
    }),
];

/// Columns with every number of rows up to a limit. Sizes are added up, so that a limit that moves by one is detected.
const SWEEPS: &[Column] = &[
    ("int64_noise_5", &[130], |rng, rows| i64s((0..rows).map(|_| noise(rng, 5) as i64))),
    ("int64_noise_8", &[130], |rng, rows| i64s((0..rows).map(|_| noise(rng, 8) as i64))),
    ("int64_noise_3", &[130], |rng, rows| i64s((0..rows).map(|_| noise(rng, 3) as i64))),
    ("int64_noise_7", &[130], |rng, rows| i64s((0..rows).map(|_| noise(rng, 7) as i64))),
    ("int64_noise_10", &[130], |rng, rows| i64s((0..rows).map(|_| noise(rng, 10) as i64))),
    ("int64_noise_13", &[130], |rng, rows| i64s((0..rows).map(|_| noise(rng, 13) as i64))),
    ("int64_noise_21", &[130], |rng, rows| i64s((0..rows).map(|_| noise(rng, 21) as i64))),
    ("int64_noise_27", &[130], |rng, rows| i64s((0..rows).map(|_| noise(rng, 27) as i64))),
    ("int64_noise_39", &[130], |rng, rows| i64s((0..rows).map(|_| noise(rng, 39) as i64))),
    ("int32_noise_6", &[130], |rng, rows| {
        Arc::new(Int32Array::from_iter_values((0..rows).map(|_| noise(rng, 6) as i32)))
    }),
    ("int32_noise_7", &[130], |rng, rows| {
        Arc::new(Int32Array::from_iter_values((0..rows).map(|_| noise(rng, 7) as i32)))
    }),
    ("int32_noise_14", &[130], |rng, rows| {
        Arc::new(Int32Array::from_iter_values((0..rows).map(|_| noise(rng, 14) as i32)))
    }),
    ("int32_noise_23", &[130], |rng, rows| {
        Arc::new(Int32Array::from_iter_values((0..rows).map(|_| noise(rng, 23) as i32)))
    }),
    ("int32_noise_29", &[130], |rng, rows| {
        Arc::new(Int32Array::from_iter_values((0..rows).map(|_| noise(rng, 29) as i32)))
    }),
    ("int64_noise_15", &[130], |rng, rows| i64s((0..rows).map(|_| noise(rng, 15) as i64))),
    ("int64_noise_30", &[130], |rng, rows| i64s((0..rows).map(|_| noise(rng, 30) as i64))),
    ("int64_noise_60", &[130], |rng, rows| i64s((0..rows).map(|_| noise(rng, 60) as i64))),
    ("int32_noise_15", &[130], |rng, rows| {
        Arc::new(Int32Array::from_iter_values((0..rows).map(|_| noise(rng, 15) as i32)))
    }),
    ("int32_noise_30", &[130], |rng, rows| {
        Arc::new(Int32Array::from_iter_values((0..rows).map(|_| noise(rng, 30) as i32)))
    }),
    ("uint16_noise_7", &[130], |rng, rows| {
        Arc::new(UInt16Array::from_iter_values((0..rows).map(|_| noise(rng, 7) as u16)))
    }),
    ("uint16_noise_15", &[130], |rng, rows| {
        Arc::new(UInt16Array::from_iter_values((0..rows).map(|_| noise(rng, 15) as u16)))
    }),
    ("uint8_noise_7", &[130], |rng, rows| {
        Arc::new(UInt8Array::from_iter_values((0..rows).map(|_| noise(rng, 7) as u8)))
    }),
    ("int64_half_repeated", &[130], |rng, rows| i64s((0..rows).map(|_| rng.below(rows.div_ceil(2)) as i64 * 31))),
    ("int64_walk", &[130], |rng, rows| i64s(walk(rng, rows, 40, 0))),
    ("int64_outliers_16", &[130], |rng, rows| with_outliers(rng, rows, 16)),
    ("float64_hundredths", &[130], |rng, rows| hundredths(rng, rows, 70)),
    ("float32_noise", &[130], |rng, rows| f32s((0..rows).map(|_| (rng.unit() - 0.5) as f32))),
    ("text_some_distinct", &[130], |rng, rows| texts((0..rows).map(|_| format!("name{:03}", rng.below(40))))),
    ("text_half_distinct", &[130], |rng, rows| {
        let count = rows.div_ceil(2);
        texts((0..rows).map(|row| if row < count { format!("{row}") } else { format!("{}", rng.below(count)) }))
    }),
    ("text_noise", &[130], |rng, rows| texts((0..rows).map(|_| format!("{:x}", noise(rng, 30))))),
    ("bool_seldom", &[130], |rng, rows| {
        Arc::new((0..rows).map(|row| Some(row % 50 == rng.below(2))).collect::<BooleanArray>())
    }),
];

/// Too long for [`table`].
const LONG: &[Column] = &[("text_one_document", &[1, 2, 20], |rng, rows| {
    let document: String = (0..1_500).map(|row| log_line(rng, row)).collect();
    texts((0..rows).map(|_| document.clone()))
})];

fn seed(name: &str) -> Rng {
    Rng(name.bytes().fold(1, |seed, byte| seed * 31 % 1_000_003 + u64::from(byte)))
}

fn one_column(column: ArrayRef) -> RecordBatch {
    let field = Field::new("x", column.data_type().clone(), true);
    RecordBatch::try_new(Arc::new(Schema::new(vec![field])), vec![column]).unwrap()
}

/// The encoding of the only column: the first tag of the small form, or the first byte after the directory of the columnar form,
/// without the flags for nulls and extremes (`docs/format.md`).
fn encoding(body_layout: BodyLayout, chunk: &Encoded) -> &'static str {
    const CODECS: [&str; 8] = ["plain", "constant", "narrow", "zero", "pco", "dictionary", "decimal", "sequence"];
    const SHAPES: [&str; 4] = ["plain", "constant", "narrow", "zero"];
    if body_layout == BodyLayout::Columnar {
        let node = chunk.body.iter().position(|byte| *byte < 0x80).unwrap() + 1;
        let first = chunk.body[node];
        return if first & 16 != 0 { "null" } else { CODECS[usize::from(first & 7)] };
    }
    // Bits 4 and 5 of the flags are the compression of the block.
    match (chunk.head[1] >> 4 & 3, chunk.body[0] & 0xf) {
        (0, tag) if tag & 8 != 0 => "null",
        (0, tag) => SHAPES[usize::from(tag & 3)],
        _ => "lz4",
    }
}

/// Encodes a batch in a form, and checks that it decodes to the same rows.
fn written(body_layout: BodyLayout, batch: &RecordBatch) -> Encoded {
    let layout = Layout::new(batch.schema()).unwrap();
    let chunk = write_as(body_layout, &layout, batch);
    assert_eq!(read_all(&layout, &chunk).unwrap(), *batch);
    chunk
}

fn column_lines(lines: &mut BTreeMap<String, String>) {
    for (name, counts, column) in [INTEGERS, FLOATS, OTHERS, LONG].concat() {
        for rows in counts {
            let batch = one_column(column(&mut seed(name), *rows));
            let parts = [BodyLayout::Small, BodyLayout::Columnar].map(|body_layout| {
                let chunk = written(body_layout, &batch);
                format!("{} {}", encoding(body_layout, &chunk), chunk.body.len())
            });
            lines.insert(format!("column {name} {rows}"), format!("small {}, columnar {}", parts[0], parts[1]));
        }
    }
}

fn sweep_lines(lines: &mut BTreeMap<String, String>) {
    for (name, counts, column) in SWEEPS {
        let mut rng = seed(name);
        let mut totals: BTreeMap<String, (usize, usize)> = BTreeMap::new();
        for rows in 1..=counts[0] {
            let batch = one_column(column(&mut rng, rows));
            for (word, body_layout) in [("small", BodyLayout::Small), ("columnar", BodyLayout::Columnar)] {
                let chunk = written(body_layout, &batch);
                let total = totals.entry(format!("{word} {}", encoding(body_layout, &chunk))).or_default();
                *total = (total.0 + 1, total.1 + chunk.body.len());
            }
        }
        let totals: Vec<_> = totals.iter().map(|(word, (count, bytes))| format!("{word} {count} x {bytes}")).collect();
        lines.insert(format!("sweep {name} 1-{}", counts[0]), totals.join(", "));
    }
}

/// The first columns of all kinds as a table.
fn table(rows: usize, columns: usize) -> RecordBatch {
    let all = [INTEGERS, FLOATS, OTHERS].concat();
    let columns = all.iter().cycle().step_by(7).take(columns).enumerate().map(|(place, (name, _, column))| {
        let mut rng = seed(&format!("{name} {place}"));
        (format!("{place} {name}"), column(&mut rng, rows), true)
    });
    RecordBatch::try_from_iter_with_nullable(columns).unwrap()
}

fn table_lines(lines: &mut BTreeMap<String, String>) {
    for (rows, columns) in [(1, 1), (1, 100), (2, 30), (5, 100), (20, 12), (128, 12), (129, 12), (500, 30)] {
        // Some columns need more than two rows.
        let batch = if rows < 5 { table(5, columns).slice(0, rows) } else { table(rows, columns) };
        let layout = Layout::new(batch.schema()).unwrap();
        let given = ChunkRows { batch: &batch, origins: &[ORIGIN], row_origin: None, ordinals: None, text: &[] };
        let chunk = encode(&layout, 1, &given, &zone(), true, &BINDING).unwrap();
        assert_eq!(read_all(&layout, &chunk).unwrap(), batch);
        let plain = encode_plain(&layout, 1, &given, &zone(), true, &BINDING).unwrap();
        assert_eq!(read_all(&layout, &plain).unwrap(), batch);
        lines.insert(
            format!("table {rows} x {columns}"),
            format!("head {}, body {}, plain {}", chunk.head.len(), chunk.body.len(), plain.body.len()),
        );
    }
}

/// Lines for hidden columns, keys and text filters.
fn head_lines(lines: &mut BTreeMap<String, String>) {
    let mut rng = Rng(5);
    for rows in [5usize, 100, 1_000] {
        let batch = one_column(texts((0..rows).map(|row| log_line(&mut rng, row))));
        let layout = Layout::new(batch.schema()).unwrap();
        let origins: Vec<Origin> = (0..3)
            .map(|i| Origin { batch: BatchId(1_000 + i), written_us: ORIGIN.written_us + i as i64, token: i as u32 })
            .collect();
        let indexes: Vec<u32> = (0..rows).map(|_| rng.below(3) as u32).collect();
        let ordinals: Vec<i64> = (0..rows as i64).map(|row| row + i64::from(row > 2)).collect();
        let base = ChunkRows { batch: &batch, origins: &[ORIGIN], row_origin: None, ordinals: None, text: &[] };
        let kinds = [
            ("bare", base),
            ("origins", ChunkRows { origins: &origins, row_origin: Some(&indexes), ..base }),
            ("ordinals", ChunkRows { ordinals: Some(&ordinals), ..base }),
            ("filters", ChunkRows { text: &[0], ..base }),
        ];
        for (name, given) in kinds {
            let sizes = [BodyLayout::Small, BodyLayout::Columnar].map(|body_layout| {
                let chunk = encode_as(body_layout, &layout, 1, &given, &zone(), true, &BINDING).unwrap();
                assert_eq!(read_all(&layout, &chunk).unwrap(), batch);
                format!("head {} body {}", chunk.head.len(), chunk.body.len())
            });
            lines.insert(format!("log {name} {rows}"), format!("small {}, columnar {}", sizes[0], sizes[1]));
        }
    }
}

/// Differences between the file and the new lines, one line each.
fn differences(file: &str, lines: &BTreeMap<String, String>) -> Vec<String> {
    let known: HashMap<&str, &str> =
        file.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(": ")).collect();
    let gone = known.keys().filter(|name| !lines.contains_key(**name)).map(|name| format!("{name}: not made any more"));
    let changed = lines.iter().filter_map(|(name, now)| match known.get(name.as_str()) {
        Some(before) if before == now => None,
        before => Some(format!("{name}: {} -> {now}", before.unwrap_or(&"new"))),
    });
    changed.chain(gone).collect()
}

#[test]
fn columns_take_the_bytes_and_encodings_that_they_took() {
    let mut lines = BTreeMap::new();
    column_lines(&mut lines);
    sweep_lines(&mut lines);
    table_lines(&mut lines);
    head_lines(&mut lines);
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/sizes.txt");
    if std::env::var_os(VARIABLE).is_some() {
        let head = "# Bytes that columns and tables take. Written by tests/chunk/sizes.rs, which says how.\n";
        let text: String = lines.iter().map(|(name, sizes)| format!("{name}: {sizes}\n")).collect();
        fs::write(&path, format!("{head}{text}")).unwrap();
        return;
    }
    let found = differences(&fs::read_to_string(&path).unwrap(), &lines);
    assert!(
        found.is_empty(),
        "{} of {} sizes changed. Where that is intended, set {VARIABLE}=1, run this test again and review the diff of {}:\n{}",
        found.len(),
        lines.len(),
        path.display(),
        found.join("\n"),
    );
}
