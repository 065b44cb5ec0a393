//! Decodes bytes written by hand from the protocol's specification, and bytes that no node would send.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_array::{Array, RecordBatch};
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use chronotile_cql::scylla::frame::response::result::{
    CollectionType, ColumnSpec, ColumnType, NativeType, TableSpec, UserDefinedType,
};
use proptest::prelude::*;

use super::*;
use crate::types::{DecimalAs, DurationAs, UuidAs, VarintAs};

type Cql = ColumnType<'static>;

const INT: Cql = ColumnType::Native(NativeType::Int);
const TEXT: Cql = ColumnType::Native(NativeType::Text);

fn list(element: Cql) -> Cql {
    ColumnType::Collection { frozen: false, typ: CollectionType::List(Box::new(element)) }
}

fn map(key: Cql, value: Cql) -> Cql {
    ColumnType::Collection { frozen: true, typ: CollectionType::Map(Box::new(key), Box::new(value)) }
}

fn vector(element: Cql, dimensions: u16) -> Cql {
    ColumnType::Vector { typ: Box::new(element), dimensions }
}

fn person() -> Cql {
    let field_types = vec![("id".into(), INT), ("tags".into(), list(TEXT))];
    let definition = UserDefinedType { name: "person".into(), keyspace: "ks".into(), field_types };
    ColumnType::UserDefinedType { frozen: false, definition: Arc::new(definition) }
}

fn specs(types: &[Cql]) -> Vec<ColumnSpec<'static>> {
    let spec = |(place, cql): (usize, &Cql)| {
        ColumnSpec::owned(format!("c{place}"), cql.clone(), TableSpec::owned("ks".to_owned(), "t".to_owned()))
    };
    types.iter().enumerate().map(spec).collect()
}

fn decoder(types: &[Cql], mapping: Mapping) -> Decoder {
    Decoder::new(&specs(types), mapping).unwrap()
}

/// A value with its length prefix; None is a null.
fn value(bytes: Option<&[u8]>) -> Vec<u8> {
    match bytes {
        None => (-1_i32).to_be_bytes().to_vec(),
        Some(bytes) => [&i32::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat(),
    }
}

/// The text of one column with these values.
fn shown(cql: &Cql, mapping: Mapping, values: &[Option<&[u8]>]) -> Vec<String> {
    let frame = values.iter().flat_map(|bytes| value(*bytes)).collect::<Vec<_>>();
    let batch = decoder(std::slice::from_ref(cql), mapping).decode(&frame, values.len()).unwrap();
    let options = FormatOptions::new().with_null("null");
    let mut column = batch.column(0).clone();
    if let DataType::Timestamp(unit, Some(zone)) = column.data_type() {
        assert_eq!(zone.as_ref(), "UTC");
        column = arrow_cast::cast(&column, &DataType::Timestamp(*unit, None)).unwrap();
    }
    let formatter = ArrayFormatter::try_new(column.as_ref(), &options).unwrap();
    (0..batch.num_rows()).map(|row| formatter.value(row).to_string()).collect()
}

fn shown_one(cql: &Cql, bytes: &[u8]) -> String {
    shown(cql, Mapping::default(), &[Some(bytes)]).remove(0)
}

#[test]
fn every_native_type_reads_as_the_specification_writes_it() {
    use NativeType as N;
    let uuid: Vec<u8> = (0..16).collect();
    for (native, bytes, expected) in [
        (N::Ascii, &b"abc"[..], "abc"),
        (N::Text, "tä".as_bytes(), "tä"),
        (N::Blob, &[0, 255], "00ff"),
        (N::Boolean, &[1], "true"),
        (N::TinyInt, &[0x80], "-128"),
        (N::SmallInt, &[0xff, 0xfe], "-2"),
        (N::Int, &[0, 0, 1, 0], "256"),
        (N::BigInt, &[0x80, 0, 0, 0, 0, 0, 0, 0], "-9223372036854775808"),
        (N::Counter, &[0, 0, 0, 0, 0, 0, 0, 7], "7"),
        (N::Float, &[0x3f, 0xc0, 0, 0], "1.5"),
        (N::Double, &[0xc0, 4, 0, 0, 0, 0, 0, 0], "-2.5"),
        (N::Inet, &[127, 0, 0, 1], "127.0.0.1"),
        (N::Inet, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], "::1"),
        (N::Uuid, &uuid, "000102030405060708090a0b0c0d0e0f"),
        (N::Timestamp, &[0, 0, 0, 0, 0, 0, 3, 0xe8], "1970-01-01T00:00:01"),
        (N::Date, &[0x80, 0, 0, 1], "1970-01-02"),
        (N::Date, &[0x7f, 0xff, 0xff, 0xff], "1969-12-31"),
        (N::Time, &[0, 0, 0, 0, 0, 0, 0, 1], "00:00:00.000000001"),
        // -1 month, 2 days, 300 nanoseconds: 600 after zigzag coding takes two bytes.
        (N::Duration, &[0x01, 0x04, 0x82, 0x58], "-1 mons 2 days 0.000000300 secs"),
        (N::Varint, &[0xff, 0x7f], "-129"),
        (N::Decimal, &[0, 0, 0, 2, 0x96], "-1.06"),
    ] {
        assert_eq!(shown_one(&ColumnType::Native(native.clone()), bytes), expected, "{native:?}");
    }
}

#[test]
fn the_other_mappings_read_the_same_values() {
    let native = ColumnType::Native;
    let with = |mapping, cql: NativeType, bytes: &[u8]| shown(&native(cql), mapping, &[Some(bytes), None]).remove(0);
    let mapping = Mapping {
        decimal: DecimalAs::Number { precision: 5, scale: 3 },
        varint: VarintAs::Int64,
        uuid: UuidAs::Text,
        duration: DurationAs::Text,
    };
    let uuid: Vec<u8> = (0..16).collect();
    assert_eq!(with(mapping, NativeType::Uuid, &uuid), "00010203-0405-0607-0809-0a0b0c0d0e0f");
    assert_eq!(with(mapping, NativeType::Decimal, &[0, 0, 0, 2, 0x96]), "-1.060");
    assert_eq!(with(mapping, NativeType::Varint, &[0xff, 0x7f]), "-129");
    assert_eq!(with(mapping, NativeType::Duration, &[1, 3, 0x82, 0x57]), "-1mo2d300ns");
    assert_eq!(with(mapping, NativeType::Duration, &[0, 0, 0]), "0ns");
    let mapping =
        Mapping { decimal: DecimalAs::Number { precision: 76, scale: 40 }, varint: VarintAs::Decimal, ..mapping };
    assert_eq!(with(mapping, NativeType::Varint, &[0xff, 0x7f]), "-129");
    assert!(with(mapping, NativeType::Decimal, &[0, 0, 0, 40, 1]).ends_with("0001"));
    let wrong = Mapping { decimal: DecimalAs::Number { precision: 5, scale: 6 }, ..mapping };
    assert!(matches!(Decoder::new(&specs(&[INT]), wrong), Err(TablesError::Request { .. })));
}

#[test]
fn nested_types_hold_nulls_at_every_depth() {
    let one = 1_i32.to_be_bytes();
    let two = 2_i32.to_be_bytes();
    let numbers = [&two[..], &value(Some(&one)), &value(None)].concat();
    assert_eq!(shown_one(&list(INT), &numbers), "[1, null]");
    let lists = [&one[..], &value(Some(&numbers))].concat();
    assert_eq!(shown_one(&list(list(INT)), &lists), "[[1, null]]");
    let pairs = [&one[..], &value(Some(b"k")), &value(None)].concat();
    assert_eq!(shown_one(&map(TEXT, INT), &pairs), "{k: null}");
    let tuple = ColumnType::Tuple(vec![INT, TEXT, INT]);
    // The third field is missing, as from a writer that knew a shorter type.
    let short = [value(None), value(Some(b"x"))].concat();
    assert_eq!(shown_one(&tuple, &short), "{0: null, 1: x, 2: null}");
    let fields = [value(Some(&two)), value(Some(&[&one[..], &value(Some(b"t"))].concat()))].concat();
    assert_eq!(shown_one(&person(), &fields), "{id: 2, tags: [t]}");
    assert_eq!(shown_one(&vector(INT, 2), &[one, two].concat()), "[1, 2]");
    assert_eq!(shown_one(&vector(TEXT, 2), b"\x01a\x02bc"), "[a, bc]");
    let nested = vector(vector(INT, 1), 2);
    assert_eq!(shown_one(&nested, &[one, two].concat()), "[[1], [2]]");
    for cql in [list(INT), map(TEXT, INT), tuple, person(), nested, vector(TEXT, 2)] {
        assert_eq!(shown(&cql, Mapping::default(), &[None, Some(&[])]), ["null", "null"], "{cql:?}");
    }
}

#[test]
fn a_value_of_no_bytes_is_null_except_for_text_and_blobs() {
    use NativeType as N;
    for native in [N::Ascii, N::Text, N::Blob] {
        assert_eq!(shown(&ColumnType::Native(native), Mapping::default(), &[Some(&[]), None]), ["", "null"]);
    }
    for native in [N::Int, N::Boolean, N::Inet, N::Uuid, N::Varint, N::Decimal, N::Duration, N::Timestamp, N::Double] {
        let read = shown(&ColumnType::Native(native.clone()), Mapping::default(), &[Some(&[]), None]);
        assert_eq!(read, ["null", "null"], "{native:?}");
    }
}

#[test]
fn rows_beyond_one_block_stay_in_order() {
    let rows = 3 * BLOCK_VALUES / 2 + 7;
    let mut frame = vec![];
    for row in 0..rows as i32 {
        frame.extend(value((row % 5 != 0).then_some(&row.to_be_bytes())));
        frame.extend(value(Some(row.to_string().as_bytes())));
    }
    let batch = decoder(&[INT, TEXT], Mapping::default()).decode(&frame, rows).unwrap();
    let (numbers, texts) = (batch.column(0).as_primitive::<Int32Type>(), batch.column(1).as_string::<i32>());
    for row in 0..rows {
        assert_eq!(numbers.is_null(row), row % 5 == 0);
        assert!(numbers.is_null(row) || numbers.value(row) == row as i32);
        assert_eq!(texts.value(row), row.to_string());
    }
}

/// A row with a value of every shape, and its types.
fn sample() -> (Vec<Cql>, Vec<u8>) {
    let one = 1_i32.to_be_bytes();
    let long = 5_i64.to_be_bytes();
    let number = [&one[..], &value(Some(&one))].concat();
    let pair = [&one[..], &value(Some(b"k")), &value(Some(&one))].concat();
    let fields = [value(Some(&one)), value(Some(&[&one[..], &value(Some(b"t"))].concat()))].concat();
    let native = ColumnType::Native;
    let values: Vec<(Cql, &[u8])> = vec![
        (INT, &one),
        (TEXT, b"text"),
        (native(NativeType::Timestamp), &long),
        (native(NativeType::Decimal), &[0, 0, 0, 2, 0x96]),
        (native(NativeType::Varint), &[1; 40]),
        (native(NativeType::Duration), &[1, 4, 0x82, 0x58]),
        (native(NativeType::Inet), &[1, 2, 3, 4]),
        (native(NativeType::Uuid), &[7; 16]),
        (native(NativeType::Boolean), &[1]),
        (list(INT), &number),
        (map(TEXT, INT), &pair),
        (person(), &fields),
        (vector(INT, 1), &one),
        (vector(TEXT, 1), b"\x02ab"),
    ];
    let frame = values.iter().flat_map(|(_, bytes)| value(Some(bytes))).collect();
    (values.into_iter().map(|(cql, _)| cql).collect(), frame)
}

fn decode_sample(frame: &[u8], rows: usize) -> Result<RecordBatch> {
    decoder(&sample().0, Mapping::default()).decode(frame, rows)
}

#[test]
fn a_frame_cut_anywhere_or_too_long_is_refused() {
    let (_, frame) = sample();
    assert_eq!(decode_sample(&frame, 1).unwrap().num_rows(), 1);
    for end in 0..frame.len() {
        let error = decode_sample(&frame[..end], 1).unwrap_err();
        assert!(matches!(error, TablesError::Malformed { .. }), "{end}: {error}");
    }
    assert!(decode_sample(&[&frame[..], &[0]].concat(), 1).is_err());
    assert!(decode_sample(&frame, 2).is_err());
    assert!(decode_sample(&frame, usize::MAX).is_err());
}

#[test]
fn an_altered_table_is_noticed() {
    let before = decoder(&[INT, TEXT], Mapping::default());
    assert!(before.check(&specs(&[INT, TEXT])).is_ok());
    assert!(before.check(&specs(&[INT, TEXT, INT])).is_err());
    let error = before.check(&specs(&[INT, INT])).unwrap_err().to_string();
    assert!(error.contains("\"c1\"") && error.contains("read it again"), "{error}");
}

#[test]
fn a_null_key_of_a_map_is_named() {
    let one = 1_i32.to_be_bytes();
    let pairs = [&one[..], &value(None), &value(Some(&one))].concat();
    let error = decoder(&[map(TEXT, INT)], Mapping::default()).decode(&value(Some(&pairs)), 1).unwrap_err();
    assert!(error.to_string().contains("\"c0\"") && error.to_string().contains("empty key"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn no_bytes_make_the_decoder_panic(
        flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        rows in 1_usize..3,
    ) {
        let (_, mut frame) = sample();
        frame = frame.repeat(rows);
        for (place, byte) in flips {
            let at = place.index(frame.len());
            frame[at] = byte;
        }
        let _ = decode_sample(&frame, rows);
    }

    #[test]
    fn noise_is_refused_without_a_panic(frame in proptest::collection::vec(any::<u8>(), 0..300), rows in 0_usize..4) {
        let _ = decode_sample(&frame, rows);
    }

    #[test]
    fn written_parameters_read_back_unchanged(number in any::<i32>(), text in ".{0,20}", numbers in proptest::collection::vec(any::<i32>(), 1..5)) {
        use crate::params::{Parameters, Value};
        let int = |number: i32| Value::Int(number.to_be_bytes().to_vec());
        let types = [INT, TEXT, list(INT), ColumnType::Native(NativeType::Varint)];
        let given = vec![
            int(number),
            Value::Text(text.clone()),
            Value::Sequence(numbers.iter().copied().map(int).collect()),
            int(number),
        ];
        let bound = Parameters::ByPlace(given).bind(&specs(&types)).unwrap();
        let frame: Vec<u8> = bound.iter().flat_map(value).collect();
        let batch = decoder(&types, Mapping::default()).decode(&frame, 1).unwrap();
        prop_assert_eq!(batch.column(0).as_primitive::<Int32Type>().value(0), number);
        prop_assert_eq!(batch.column(1).as_string::<i32>().value(0), text);
        let read = batch.column(2).as_list::<i32>().value(0);
        prop_assert_eq!(read.as_primitive::<Int32Type>().values().to_vec(), numbers);
        prop_assert_eq!(batch.column(3).as_string::<i32>().value(0), number.to_string());
    }
}
