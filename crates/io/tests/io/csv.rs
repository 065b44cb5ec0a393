//! Claims about reading CSV and TSV.

use std::error::Error;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type, TimestampMicrosecondType};
use arrow_array::{Array, RecordBatch};
use arrow_schema::DataType;
use chronotile_io::{CsvOptions, Format, IoError, ReadOptions, Source, format_type, open, parse_type};

use crate::common::{csv, data, error, read_all, stream};

fn types(batch: &RecordBatch) -> Vec<String> {
    batch.schema().fields().iter().map(|f| format_type(f.data_type())).collect()
}

fn typed(types: &[(&str, &str)]) -> ReadOptions {
    let types = types.iter().map(|(name, text)| ((*name).to_owned(), parse_type(text).unwrap())).collect();
    ReadOptions { types, ..csv() }
}

#[test]
fn each_class_of_values_is_inferred() {
    let text = "b,i,u,f,d,t,z,n,s,code,big,empty\n\
        true,1,18446744073709551615,1.5,2020-02-29,2013-07-04 00:00:00,2013-07-04T00:00:00Z,2013-07-04T00:00:00.1234567,x,007,99999999999999999999,\n\
        FALSE,-2,1,nan,2021-01-01,2013-07-04T01:00:00.25,2013-07-04 02:00:00+02:00,2013-07-04,1,1,1,\n";
    let batch = read_all(stream(text), &csv()).unwrap();
    let expected = [
        "bool",
        "int64",
        "uint64",
        "float64",
        "date32",
        "timestamp[us]",
        "timestamp[us, UTC]",
        "timestamp[ns]",
        "utf8",
        "utf8",
        "utf8",
        "utf8",
    ];
    assert_eq!(types(&batch), expected);
    assert_eq!(batch.column(1).as_primitive::<Int64Type>().values(), &[1, -2]);
    assert!(batch.column(3).as_primitive::<Float64Type>().value(1).is_nan());
    let zoned = batch.column(6).as_primitive::<TimestampMicrosecondType>();
    assert_eq!(zoned.value(0), zoned.value(1));
    assert_eq!(batch.column(9).as_string::<i32>().value(0), "007");
    assert_eq!(batch.column(11).null_count(), 2);
}

#[test]
fn times_to_the_minute_are_times() {
    let text = "t,z,d\n2026-01-01 08:30,2026-01-01T08:30Z,2026-01-01\n2026-01-01 08:30:15,2026-01-01 09:30+01:00,2026-01-01 08:30\n";
    let batch = read_all(stream(text), &csv()).unwrap();
    assert_eq!(types(&batch), ["timestamp[us]", "timestamp[us, UTC]", "timestamp[us]"]);
    let ticks = |column: usize| batch.column(column).as_primitive::<TimestampMicrosecondType>().values().to_vec();
    let morning = 1_767_256_200_000_000;
    assert_eq!(ticks(0), [morning, morning + 15_000_000]);
    assert_eq!(ticks(1), [morning, morning]);
    assert_eq!(ticks(2)[1], morning);
    for text in ["2026-01-01 8:30", "2026-01-01 08:3", "2026-01-01 08:30x", "2026-01-01 25:00", "2026-01-01x08:30"] {
        let batch = read_all(stream(format!("t,x\n{text},1\n")), &csv()).unwrap();
        assert_eq!(types(&batch)[0], "utf8", "{text}");
    }
}

#[test]
fn a_column_widens_within_the_sample() {
    let batch = read_all(
        stream("a,b,c,d\n1,1,2020-01-01,2020-01-01\n2.5,x,2020-01-01 10:00:00,2020-01-01 10:00:00Z\n"),
        &csv(),
    );
    assert_eq!(types(&batch.unwrap()), ["float64", "utf8", "timestamp[us]", "utf8"]);
}

#[test]
fn a_value_past_the_sample_that_does_not_fit_is_named_with_its_line() {
    let options = ReadOptions { sample_rows: 2, ..csv() };
    let found = error(stream("t,v\n1,1\n2,2\n\"3\",\"3\"\n4,n/a\n"), &options);
    let IoError::BadValue { line, column, value, data_type, .. } = &found else { panic!("{found:?}") };
    assert_eq!((*line, &**column, &**value, &**data_type), (5, "v", "n/a", "int64"));
    let message = found.to_string();
    assert!(message.contains("--types v=utf8") && message.contains("--nulls"), "{message}");
}

#[test]
fn lines_are_counted_through_quoted_newlines_comments_and_blank_lines() {
    let text = "# about\na,b\n\"x\ny\",1\n\n# more\nz,2\r\nw,bad\n";
    let mut options = ReadOptions { sample_rows: 1, ..csv() };
    options.csv.comment = Some(b'#');
    match error(stream(text), &options) {
        IoError::BadValue { line: 8, .. } => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_given_type_is_strict() {
    let cases = [
        ("int8", "128"),
        ("int64", "1.0"),
        ("uint8", "-1"),
        ("float64", "1e999"),
        ("float32", "1e39"),
        ("float64", "1,5"),
        ("bool", "maybe"),
        ("date32", "2020-02-30"),
        ("date32", "2020-01-01 10:00:00"),
        ("timestamp[s]", "2020-01-01 00:00:00.5"),
        ("timestamp[ns]", "9999-01-01 00:00:00"),
        ("timestamp[us]", "yesterday"),
        ("timestamp[us]", "2020-01-01 00:00:00+01:00:00.5"),
        ("time32[s]", "10:00:00.5"),
        ("time64[us]", "25:00:00"),
        ("decimal128(4, 2)", "1.234"),
        ("decimal128(4, 2)", "12345"),
        ("decimal128(4, 2)", "1e2"),
        ("binary", "abc"),
        ("binary", "zz"),
        ("fixed_size_binary(2)", "ab"),
        ("list<int32>", "[1, \"x\"]"),
        ("list<int32>", "{}"),
        ("list<int32>", "[1"),
        ("list<int32>", "[1] [2]"),
        ("struct<a: int8>", "{\"a\": 300}"),
        ("null", "x"),
    ];
    for (data_type, value) in cases {
        let text = format!("id,v\n1,\n2,\"{}\"\n", value.replace('"', "\"\""));
        match error(stream(text), &typed(&[("v", data_type)])) {
            IoError::BadValue { line: 3, column, .. } => assert!(column.starts_with('v')),
            other => panic!("{data_type} {value}: {other:?}"),
        }
    }
}

#[test]
fn a_given_type_accepts_what_is_exact() {
    let cases = [
        ("float32", "0.1"),
        ("timestamp[s]", "2020-01-01 00:00:00.000"),
        ("decimal128(4, 2)", "-12.340"),
        ("int64", " 5 "),
        ("binary", "00ff"),
        ("list<float64>", "[1, null, 2.5]"),
        ("struct<a: list<date32>>", "{\"a\": [\"2020-01-01\"]}"),
        ("dictionary<int8, utf8>", "x"),
        ("fixed_size_list<int8, 2>", "[1, 2]"),
        ("float64", "-inf"),
        ("timestamp[us, Europe/Paris]", "2020-07-01 12:00:00"),
        ("large_utf8", "x"),
        ("utf8_view", "x"),
        ("float16", "0.5"),
    ];
    for (data_type, value) in cases {
        let text = format!("v,w\n\"{}\",1\n", value.replace('"', "\"\""));
        let batch = read_all(stream(text), &typed(&[("v", data_type)])).unwrap();
        assert_eq!(types(&batch)[0], data_type);
        assert_eq!(batch.column(0).null_count(), 0, "{data_type}");
    }
}

#[test]
fn an_empty_field_is_null_and_a_quoted_one_is_empty_text() {
    let batch = read_all(stream("s,i\n,1\n\"\",\"\"\nNA,\n\"NA\",NA\n"), &{
        let mut options = csv();
        options.csv.nulls = vec!["NA".to_owned()];
        options
    })
    .unwrap();
    let texts = batch.column(0).as_string::<i32>();
    assert_eq!(texts.iter().collect::<Vec<_>>(), [None, Some(""), None, Some("NA")]);
    let numbers = batch.column(1).as_primitive::<Int64Type>();
    assert_eq!(numbers.iter().collect::<Vec<_>>(), [Some(1), None, None, None]);
}

#[test]
fn a_blank_line_is_a_null_only_where_there_is_one_column() {
    assert_eq!(read_all(stream("a\n1\n\n3\n"), &csv()).unwrap().column(0).null_count(), 1);
    assert_eq!(read_all(stream("a,b\n1,1\n\n3,3\n"), &csv()).unwrap().num_rows(), 2);
}

#[test]
fn line_ends_byte_order_mark_and_quotes_are_understood() {
    let plain = read_all(stream("a,b\n1,\"x \"\"y\"\"\"\n2,\"p,q\"\n"), &csv()).unwrap();
    for text in [
        "\u{feff}a,b\r\n1,\"x \"\"y\"\"\"\r\n2,\"p,q\"\r\n",
        "a,b\r1,\"x \"\"y\"\"\"\r2,\"p,q\"",
        "\"a\",\"b\"\n\"1\",\"x \"\"y\"\"\"\n\"2\",\"p,q\"",
    ] {
        assert_eq!(read_all(stream(text), &csv()).unwrap(), plain, "{text:?}");
    }
    assert_eq!(plain.column(1).as_string::<i32>().value(0), "x \"y\"");
}

#[test]
fn a_header_may_be_absent_given_or_replaced() {
    let with = |csv_options: CsvOptions, text: &str| {
        let options = ReadOptions { csv: csv_options, ..csv() };
        let batch = read_all(stream(text), &options).unwrap();
        let names: Vec<String> = batch.schema().fields().iter().map(|f| f.name().clone()).collect();
        (names.join(" "), batch.num_rows())
    };
    let names = Some(vec!["x".to_owned(), "y".to_owned()]);
    let none = CsvOptions { header: false, ..CsvOptions::default() };
    assert_eq!(with(none.clone(), "1,2\n3,4\n"), ("column_1 column_2".to_owned(), 2));
    assert_eq!(with(CsvOptions { column_names: names.clone(), ..none }, "1,2\n3,4\n"), ("x y".to_owned(), 2));
    assert_eq!(with(CsvOptions { column_names: names, ..CsvOptions::default() }, "1,2\n3,4\n"), ("x y".to_owned(), 1));
    assert_eq!(with(CsvOptions::default(), ",b\n1,2\n"), ("column_1 b".to_owned(), 1));
}

#[test]
fn broken_lines_are_named() {
    let case = |text: &str| error(stream(text), &csv());
    assert!(matches!(case("a,b\n1,2\n1\n"), IoError::FieldCount { line: 3, found: 1, expected: 2, .. }));
    assert!(matches!(case("a,b\n1,2,3\n"), IoError::FieldCount { line: 2, found: 3, expected: 2, .. }));
    assert!(matches!(case("a,b\n1,\"x\"y\n"), IoError::StrayQuote { line: 2, .. }));
    assert!(matches!(case("a,b\n1,2\n1,\"x\ny\n"), IoError::OpenQuote { line: 3, .. }));
    assert!(matches!(case("a,a\n1,2\n"), IoError::DuplicateColumn { .. }));
    assert!(matches!(error(stream(b"a,b\n1,\xe9\n"), &csv()), IoError::NotUtf8 { line: 2, .. }));
    assert!(matches!(error(stream(b"\xff\xfea\0"), &csv()), IoError::NotUtf8 { line: 1, .. }));
    let endless = format!("a\n\"{}", "x".repeat(17 << 20));
    assert!(matches!(case(&endless), IoError::RecordTooLong { line: 2, .. }));
}

#[test]
fn an_input_without_content_is_refused_but_a_header_alone_is_no_rows() {
    assert!(matches!(error(stream(""), &csv()), IoError::Empty { .. }));
    assert!(matches!(error(stream("\n\n"), &csv()), IoError::Empty { .. }));
    assert_eq!(read_all(stream("a,b\n"), &csv()).unwrap().num_rows(), 0);
    let mut headless = csv();
    headless.csv.header = false;
    headless.csv.column_names = Some(vec!["a".to_owned()]);
    assert_eq!(read_all(stream(""), &headless).unwrap().num_rows(), 0);
}

#[test]
fn columns_are_chosen_by_name_in_the_order_asked() {
    let options = ReadOptions { columns: Some(vec!["c".to_owned(), "a".to_owned()]), ..csv() };
    let batch = read_all(stream("a,b,c\n1,x,2.5\n"), &options).unwrap();
    assert_eq!(types(&batch), ["float64", "int64"]);
    let unknown = ReadOptions { columns: Some(vec!["d".to_owned()]), ..csv() };
    let message = error(stream("a,b,c\n1,x,2.5\n"), &unknown).to_string();
    assert!(message.contains("\"d\"") && message.contains("a, b, c"), "{message}");
    assert!(matches!(error(stream("a\n1\n"), &typed(&[("b", "int8")])), IoError::UnknownColumn { .. }));
}

#[test]
fn tabs_separate_tsv() {
    let options = ReadOptions { format: Some(Format::Tsv), ..ReadOptions::default() };
    let batch = read_all(stream("a\tb\n1\tx,y\n"), &options).unwrap();
    assert_eq!(types(&batch), ["int64", "utf8"]);
}

#[test]
fn a_resumed_read_has_the_same_types_and_the_remaining_rows() {
    let mut text = "a,b\n".to_owned();
    for i in 0..1000 {
        text.push_str(&format!("{}{},{i}\n", i, if i == 3 { ".5" } else { "" }));
    }
    let whole = read_all(stream(&text), &ReadOptions { batch_rows: 64, ..csv() }).unwrap();
    for skip in [0usize, 1, 63, 64, 500, 999, 1000, 5000] {
        for sample_rows in [5, 100, 10_000] {
            let options = ReadOptions { skip_rows: skip as u64, batch_rows: 64, sample_rows, ..csv() };
            let rest = read_all(stream(&text), &options).unwrap();
            let from = skip.min(1000);
            assert_eq!(rest, whole.slice(from, 1000 - from));
        }
    }
}

#[test]
fn a_column_without_nulls_refuses_a_missing_value() {
    let field = arrow_schema::Field::new("a", DataType::Int64, false);
    let schema = std::sync::Arc::new(arrow_schema::Schema::new(vec![field]));
    let options = ReadOptions { schema: Some(schema), ..csv() };
    assert!(matches!(error(stream("a,b\n1,x\n,y\n"), &options), IoError::MissingValue { line: 3, .. }));
    assert_eq!(read_all(stream("b,a\nx,1\n"), &options).unwrap().num_columns(), 1);
}

#[test]
fn gzip_is_seen_by_its_bytes_and_a_cut_file_is_told() {
    use std::io::Write;
    let text = "a,b\n".to_owned() + &"1,2\n".repeat(100_000);
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(text.as_bytes()).unwrap();
    let packed = encoder.finish().unwrap();
    assert_eq!(read_all(stream(&packed), &csv()).unwrap().num_rows(), 100_000);
    let twice = [packed.clone(), packed[..0].to_vec()].concat();
    assert_eq!(read_all(stream(&twice), &csv()).unwrap().num_rows(), 100_000);
    let cut = error(stream(&packed[..packed.len() / 2]), &csv());
    assert!(matches!(cut, IoError::Damaged { .. }) && cut.source().is_some(), "{cut:?}");
    let mut flipped = packed.clone();
    let middle = flipped.len() - 5;
    flipped[middle] ^= 1;
    assert!(matches!(error(stream(&flipped), &csv()), IoError::Damaged { .. }));
    let zstd = zstd::encode_all(text.as_bytes(), 1).unwrap();
    assert_eq!(read_all(stream(&zstd), &csv()).unwrap().num_rows(), 100_000);
}

#[test]
fn real_sensor_files_are_timestamps_and_numbers() {
    for (file, value) in [
        ("sensors/ambient_temperature_system_failure.csv", "float64"),
        ("sensors/machine_temperature_system_failure.csv", "float64"),
        ("sensors/speed_7578.csv", "int64"),
    ] {
        let path = data(file);
        let reader = open(Source::Path(path.clone()), &ReadOptions::default()).unwrap();
        let progress = reader.progress();
        assert_eq!(reader.format(), Format::Csv);
        let content = std::fs::read(&path).unwrap();
        let total = content.len() as u64;
        let rows = content.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()).count() - 1;
        assert!(rows > 1_000);
        assert_eq!(progress.total_bytes(), Some(total));
        let batch = read_all(Source::Path(path.clone()), &ReadOptions::default()).unwrap();
        assert_eq!((batch.num_rows(), types(&batch).join(" ")), (rows, format!("timestamp[us] {value}")), "{file}");
        assert_eq!(batch.column(0).null_count() + batch.column(1).null_count(), 0);
        let read: usize = reader.map(|b| b.unwrap().num_rows()).sum();
        assert_eq!(read, rows);
        assert_eq!(progress.bytes_read(), total);
    }
}
