//! What is written reads back equal: every format, every type, any values.

use std::sync::Arc;

use arrow_array::builder::{BinaryBuilder, FixedSizeBinaryBuilder, Int32Builder, ListBuilder, StringBuilder};
use arrow_array::types::Int8Type;
use arrow_array::{
    Array, ArrayRef, BooleanArray, Date32Array, Decimal128Array, DictionaryArray, Float32Array, Float64Array,
    Int8Array, Int16Array, Int32Array, Int64Array, LargeStringArray, RecordBatch, StringArray, StructArray,
    Time32SecondArray, Time64NanosecondArray, TimestampMicrosecondArray, TimestampMillisecondArray,
    TimestampNanosecondArray, TimestampSecondArray, UInt8Array, UInt16Array, UInt32Array, UInt64Array,
};
use arrow_schema::{DataType, Field};
use chronotile_io::{Format, OutFormat, ReadOptions, WriteOptions};
use proptest::prelude::*;

use crate::common::{read_all, stream, write_all};

/// One row of seeds; every column is made from it. `mask` says which columns are null.
#[derive(Debug, Clone)]
struct Row {
    mask: u32,
    bits: u64,
    wide: i128,
    float: f64,
    single: f32,
    text: String,
    bytes: Vec<u8>,
    items: Vec<Option<i32>>,
    words: Vec<Option<String>>,
}

fn rows(with_nan: bool) -> impl Strategy<Value = Vec<Row>> {
    let float = if with_nan {
        prop_oneof![any::<f64>().boxed(), Just(f64::NAN).boxed(), Just(f64::INFINITY).boxed()].boxed()
    } else {
        any::<f64>().boxed()
    };
    // Other payloads of NaN have no text.
    let float = float.prop_map(|f| if f.is_nan() { f64::NAN } else { f });
    let text = prop_oneof![".{0,8}", "[ ,\"\n\r#\tNa0-9-]{0,6}", Just(String::new())];
    let words = prop::collection::vec(prop::option::of(text.clone()), 0..3);
    let row = (
        any::<u32>(),
        any::<u64>(),
        any::<i128>(),
        float,
        any::<f32>(),
        text,
        any::<Vec<u8>>(),
        prop::collection::vec(any::<Option<i32>>(), 0..3),
        words,
    );
    let row = row.prop_map(|(mask, bits, wide, float, single, text, bytes, items, words)| Row {
        mask,
        bits,
        wide,
        float,
        single,
        text,
        bytes,
        items,
        words,
    });
    prop::collection::vec(row, 1..20)
}

const YEAR_1_S: i64 = -62_135_596_800;
const YEAR_10000_S: i64 = 253_402_300_800;

/// A time in seconds of the years 1 to 9999, which ISO 8601 writes with four digits.
fn second(bits: u64) -> i64 {
    YEAR_1_S + (bits % (YEAR_10000_S - YEAR_1_S) as u64) as i64
}

fn batch(rows: &[Row]) -> RecordBatch {
    let mut columns: Vec<(&str, ArrayRef)> = Vec::new();
    macro_rules! add {
        ($name:literal, $array:ty, $make:expr) => {{
            let place = columns.len() as u32;
            let make = $make;
            let values: Vec<_> = rows.iter().map(|r| (r.mask >> (place % 32) & 3 != 0).then(|| make(r))).collect();
            columns.push(($name, Arc::new(<$array>::from(values))));
        }};
    }
    add!("bool", BooleanArray, |r: &Row| r.bits & 1 == 1);
    add!("i8", Int8Array, |r: &Row| r.bits as i8);
    add!("i16", Int16Array, |r: &Row| r.bits as i16);
    add!("i32", Int32Array, |r: &Row| r.bits as i32);
    add!("i64", Int64Array, |r: &Row| r.bits as i64);
    add!("u8", UInt8Array, |r: &Row| r.bits as u8);
    add!("u16", UInt16Array, |r: &Row| r.bits as u16);
    add!("u32", UInt32Array, |r: &Row| r.bits as u32);
    add!("u64", UInt64Array, |r: &Row| r.bits);
    add!("f32", Float32Array, |r: &Row| if r.single.is_finite() { r.single } else { 0.1 });
    add!("f64", Float64Array, |r: &Row| r.float);
    add!("utf8", StringArray, |r: &Row| r.text.clone());
    add!("large", LargeStringArray, |r: &Row| r.text.clone());
    add!("date", Date32Array, |r: &Row| second(r.bits).div_euclid(86_400) as i32);
    add!("time32", Time32SecondArray, |r: &Row| (r.bits % 86_400) as i32);
    add!("time64", Time64NanosecondArray, |r: &Row| (r.bits % 86_400_000_000_000) as i64);
    add!("ts_s", TimestampSecondArray, |r: &Row| second(r.bits));
    add!("ts_ms", TimestampMillisecondArray, |r: &Row| second(r.bits) * 1000 + (r.wide as i64).rem_euclid(1000));
    add!("ts_ns", TimestampNanosecondArray, |r: &Row| r.bits as i64);
    let micros: Vec<_> =
        rows.iter().map(|r| Some(second(r.bits) * 1_000_000 + (r.wide as i64).rem_euclid(1_000_000))).collect();
    let micros = TimestampMicrosecondArray::from(micros);
    columns.push(("ts_utc", Arc::new(micros.clone().with_timezone("UTC"))));
    // Kept a day away from the years that an offset would leave.
    let inner: Vec<_> =
        rows.iter().map(|r| Some(second(r.bits).clamp(YEAR_1_S + 86_400, YEAR_10000_S - 86_401) * 1_000_000)).collect();
    columns.push(("ts_zone", Arc::new(TimestampMicrosecondArray::from(inner).with_timezone("+05:30"))));
    let decimals: Decimal128Array = rows.iter().map(|r| Some(r.wide % 10i128.pow(38))).collect();
    columns.push(("decimal", Arc::new(decimals.with_precision_and_scale(38, 7).unwrap())));
    nested(rows, &mut columns);
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, array)| (name, array, true))).unwrap()
}

fn nested(rows: &[Row], columns: &mut Vec<(&str, ArrayRef)>) {
    let mut binary = BinaryBuilder::new();
    let mut fixed = FixedSizeBinaryBuilder::new(8);
    let mut items = ListBuilder::new(Int32Builder::new());
    let mut words = ListBuilder::new(StringBuilder::new());
    for row in rows {
        binary.append_option((row.mask & 3 != 0).then_some(&row.bytes));
        fixed.append_value(row.bits.to_be_bytes()).unwrap();
        items.append_option((row.mask & 5 != 0).then_some(row.items.clone()));
        words.append_option((row.mask & 9 != 0).then_some(row.words.clone()));
    }
    columns.push(("binary", Arc::new(binary.finish())));
    columns.push(("fixed", Arc::new(fixed.finish())));
    columns.push(("items", Arc::new(items.finish())));
    let words: ArrayRef = Arc::new(words.finish());
    let finite = |r: &Row| r.float.is_finite().then_some(r.float);
    let floats: ArrayRef = Arc::new(rows.iter().map(finite).collect::<Float64Array>());
    let structure = StructArray::from(vec![
        (Arc::new(Field::new("x", DataType::Float64, true)), floats),
        (Arc::new(Field::new("words", words.data_type().clone(), true)), words),
    ]);
    columns.push(("struct", Arc::new(structure)));
    let dictionary: DictionaryArray<Int8Type> =
        rows.iter().map(|r| (r.mask & 6 != 0).then_some(r.text.as_str())).collect();
    columns.push(("dictionary", Arc::new(dictionary)));
}

fn read_back(format: OutFormat, batch: &RecordBatch) -> RecordBatch {
    let parts = [batch.slice(0, batch.num_rows() / 2), batch.slice(batch.num_rows() / 2, batch.num_rows().div_ceil(2))];
    let bytes = write_all(format, &parts, &WriteOptions::default()).unwrap();
    let given = match format {
        OutFormat::Csv => Some(Format::Csv),
        OutFormat::Tsv => Some(Format::Tsv),
        OutFormat::Ndjson => Some(Format::Ndjson),
        _ => None,
    };
    let options = ReadOptions { format: given, schema: Some(batch.schema()), batch_rows: 7, ..ReadOptions::default() };
    read_all(stream(&bytes), &options).unwrap()
}

fn check(format: OutFormat, rows: &[Row]) {
    let batch = batch(rows);
    let back = read_back(format, &batch);
    assert_eq!(back.num_rows(), batch.num_rows());
    for (index, field) in batch.schema().fields().iter().enumerate() {
        let (a, b) = (back.column(index), batch.column(index));
        assert_eq!(a.data_type(), b.data_type());
        match b.data_type() {
            // The numbering of a dictionary is free; its values are not.
            DataType::Dictionary(_, values) => {
                let plain = |array: &ArrayRef| arrow_cast::cast(array, values).unwrap();
                assert_eq!(plain(a).to_data(), plain(b).to_data(), "{format} {}", field.name());
            }
            DataType::Float64 => {
                let bits = |array: &ArrayRef| {
                    let floats = array.as_any().downcast_ref::<Float64Array>().unwrap();
                    floats.iter().map(|f| f.map(f64::to_bits)).collect::<Vec<_>>()
                };
                assert_eq!(bits(a), bits(b), "{format} {}", field.name());
            }
            _ => assert_eq!(a.to_data(), b.to_data(), "{format} {}", field.name()),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn csv_and_tsv_read_back_equal(rows in rows(true)) {
        check(OutFormat::Csv, &rows);
        check(OutFormat::Tsv, &rows);
    }

    #[test]
    fn ndjson_without_nan_reads_back_equal(rows in rows(false)) {
        let mut rows = rows;
        rows.iter_mut().filter(|r| !r.float.is_finite()).for_each(|r| r.float = -0.0);
        check(OutFormat::Ndjson, &rows);
    }

    #[test]
    fn parquet_and_arrow_read_back_equal(rows in rows(true)) {
        for format in [OutFormat::Parquet, OutFormat::Arrow, OutFormat::ArrowStream] {
            check(format, &rows);
        }
    }

    #[test]
    fn no_bytes_make_a_text_reader_panic_or_hang(bytes in any::<Vec<u8>>(), text in "[a,\"\n\r{}:1\\[\\]]{0,60}") {
        for format in [Format::Csv, Format::Tsv, Format::Ndjson] {
            let options = ReadOptions { format: Some(format), ..ReadOptions::default() };
            let _ = read_all(stream(&bytes), &options);
            let _ = read_all(stream(&text), &options);
        }
    }
}
