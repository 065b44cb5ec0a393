//! Claims about opening, binary formats, NDJSON and writing.

use std::fs;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int8Type, Int64Type, TimestampMicrosecondType};
use arrow_array::{
    Array, ArrayRef, BinaryArray, Float64Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray,
};
use arrow_schema::{DataType, TimeUnit};
use chronotile_io::{
    Format, IoError, OutFormat, ReadOptions, Sink, Source, TableOptions, UnknownFormat, WriteOptions, content_hash,
    format_type, open, parse_type, writer,
};

use crate::common::{data, error, ndjson, read_all, stream, text, write_all};

fn table(rows: i64) -> RecordBatch {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
    let values: ArrayRef = Arc::new(Float64Array::from_iter_values((0..rows).map(|i| i as f64 * 0.1)));
    RecordBatch::try_from_iter_with_nullable([("id", ids, true), ("value", values, true)]).unwrap()
}

fn columns(names: &[&str]) -> ReadOptions {
    ReadOptions { columns: Some(names.iter().map(|n| (*n).to_owned()).collect()), ..ReadOptions::default() }
}

#[test]
fn opening_what_is_no_readable_file_is_one_clear_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| Source::Path(folder.path().join(name));
    let plain = ReadOptions::default();
    assert!(matches!(error(at("no.csv"), &plain), IoError::NotFound { .. }));
    assert!(matches!(error(Source::Path(folder.path().into()), &plain), IoError::IsFolder { .. }));
    for name in ["empty.csv", "empty.ndjson", "empty.parquet", "empty.arrow", "empty"] {
        fs::write(folder.path().join(name), "").unwrap();
        assert!(matches!(error(at(name), &plain), IoError::Empty { .. }), "{name}");
    }
    fs::write(folder.path().join("x.dat"), "a,b\n").unwrap();
    let message = error(at("x.dat"), &plain).to_string();
    assert!(message.contains("csv, tsv, ndjson, parquet, arrow"), "{message}");
    fs::write(folder.path().join("x.parquet"), "a,b\n1,2\n").unwrap();
    assert!(matches!(error(at("x.parquet"), &plain), IoError::WrongFormat { .. }));
    fs::write(folder.path().join("x.arrow"), "a,b\n1,2\nlonger than a header").unwrap();
    assert!(matches!(error(at("x.arrow"), &plain), IoError::WrongFormat { .. }));
    fs::write(folder.path().join("old.feather"), "FEA1xxxxxxxxxxxxxxxxFEA1").unwrap();
    assert!(error(at("old.feather"), &plain).to_string().contains("Feather version 1"));
}

#[test]
fn the_bytes_win_over_the_extension_and_contradict_a_given_format() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.csv");
    fs::write(&path, write_all(OutFormat::Parquet, &[table(5)], &WriteOptions::default()).unwrap()).unwrap();
    assert_eq!(read_all(Source::Path(path.clone()), &ReadOptions::default()).unwrap(), table(5));
    let given = ReadOptions { format: Some(Format::Csv), ..ReadOptions::default() };
    assert!(matches!(error(Source::Path(path), &given), IoError::WrongFormat { .. }));
}

#[cfg(unix)]
#[test]
fn a_denied_file_is_reported() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.csv");
    fs::write(&path, "a\n1\n").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o0)).unwrap();
    if fs::File::open(&path).is_ok() {
        eprintln!("SKIPPED: this user may read everything");
        return;
    }
    assert!(matches!(error(Source::Path(path), &ReadOptions::default()), IoError::Denied { action: "read", .. }));
}

#[test]
fn extensions_name_formats() {
    for (name, format) in [
        ("a.csv", Format::Csv),
        ("a.CSV.gz", Format::Csv),
        ("a.tsv", Format::Tsv),
        ("a.ndjson.gz", Format::Ndjson),
        ("a.jsonl", Format::Ndjson),
        ("a.parquet", Format::Parquet),
        ("a.feather", Format::Arrow),
        ("a.ipc.zst", Format::Arrow),
        ("a.b.arrow", Format::Arrow),
    ] {
        assert_eq!(Format::of_path(name.as_ref()).unwrap(), format, "{name}");
    }
    for name in ["a", "a.gz", "a.json", "a.txt", ".csv"] {
        assert!(matches!(Format::of_path(name.as_ref()), Err(UnknownFormat { .. })), "{name}");
    }
    assert_eq!(OutFormat::of_path("a.arrows".as_ref()).unwrap(), OutFormat::ArrowStream);
}

#[test]
fn a_binary_file_with_any_cut_is_an_error_not_fewer_rows() {
    for format in [OutFormat::Parquet, OutFormat::Arrow, OutFormat::ArrowStream] {
        let bytes = write_all(format, &[table(100), table(50)], &WriteOptions::default()).unwrap();
        let tail = if format == OutFormat::ArrowStream { 8 } else { 0 };
        for cut in (1..bytes.len() - tail).step_by(7) {
            let options = ReadOptions::default();
            let found = read_all(stream(&bytes[..cut]), &options);
            match found {
                // A stream may end without its end mark, between messages: then whole batches are missing.
                Ok(batch) if format == OutFormat::ArrowStream => {
                    assert!([0, 100, 150].contains(&batch.num_rows()), "{format} {cut}");
                }
                found => assert!(found.is_err(), "{format} {cut}"),
            }
        }
    }
}

#[test]
fn a_stream_that_promises_more_than_it_has_is_damaged() {
    for promised in [64, i32::MAX] {
        let bytes = [&[0xff; 4], promised.to_le_bytes().as_slice(), b"short"].concat();
        let found = read_all(stream(&bytes), &ReadOptions::default()).unwrap_err();
        assert!(matches!(found, IoError::Damaged { .. }), "{found:?}");
    }
}

#[test]
fn skipping_rows_equals_a_slice_in_every_format() {
    let parts: Vec<RecordBatch> = (0..5).map(|i| table(500).slice(i * 100, 100)).collect();
    for format in [OutFormat::Parquet, OutFormat::Arrow, OutFormat::ArrowStream, OutFormat::Ndjson, OutFormat::Csv] {
        let bytes = write_all(format, &parts, &WriteOptions::default()).unwrap();
        for skip in [0usize, 1, 99, 100, 101, 250, 499, 500, 501, 9999] {
            let given = match format {
                OutFormat::Ndjson => Some(Format::Ndjson),
                OutFormat::Csv => Some(Format::Csv),
                _ => None,
            };
            let options =
                ReadOptions { format: given, skip_rows: skip as u64, batch_rows: 33, ..ReadOptions::default() };
            let from = skip.min(500);
            let found = read_all(stream(&bytes), &options).unwrap();
            assert_eq!(found, table(500).slice(from, 500 - from), "{format} {skip}");
        }
    }
}

#[test]
fn parquet_skips_whole_row_groups_without_reading_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.parquet");
    let properties =
        parquet::file::properties::WriterProperties::builder().set_max_row_group_row_count(Some(1000)).build();
    let file = fs::File::create(&path).unwrap();
    let mut out = parquet::arrow::ArrowWriter::try_new(file, table(0).schema(), Some(properties)).unwrap();
    out.write(&table(10_000)).unwrap();
    out.close().unwrap();
    let bytes_of = |skip_rows: u64| {
        let options = ReadOptions { skip_rows, ..ReadOptions::default() };
        let mut reader = open(Source::Path(path.clone()), &options).unwrap();
        assert_eq!(reader.rows_total(), Some(10_000));
        let progress = reader.progress();
        let batch = reader.next().unwrap().unwrap();
        assert_eq!(batch, table(10_000).slice(skip_rows as usize, 10_000 - skip_rows as usize));
        progress.bytes_read()
    };
    let (all, last) = (bytes_of(0), bytes_of(9_500));
    assert!(last * 5 < all, "{last} of {all}");
}

#[test]
fn projection_and_types_apply_to_stored_columns() {
    for format in [OutFormat::Parquet, OutFormat::Arrow, OutFormat::ArrowStream] {
        let bytes = write_all(format, &[table(10)], &WriteOptions::default()).unwrap();
        let batch = read_all(stream(&bytes), &columns(&["value", "id"])).unwrap();
        assert_eq!(batch.schema().field(0).name(), "value");
        assert_eq!(batch.column(1).as_primitive::<Int64Type>().value(9), 9);
        let mut options = columns(&["id"]);
        options.types = vec![("id".to_owned(), DataType::Int8)];
        assert_eq!(read_all(stream(&bytes), &options).unwrap().column(0).data_type(), &DataType::Int8);
        let big = write_all(format, &[table(200)], &WriteOptions::default()).unwrap();
        assert!(matches!(error(stream(&big), &options), IoError::Convert { .. }));
        let mut lossy = columns(&["value"]);
        lossy.types = vec![("value".to_owned(), DataType::Int64)];
        assert!(matches!(error(stream(&bytes), &lossy), IoError::Convert { .. }));
        assert!(matches!(error(stream(&bytes), &columns(&["nope"])), IoError::UnknownColumn { .. }));
    }
}

#[test]
fn seconds_of_60_are_refused_in_every_form_of_a_time() {
    let micros = DataType::Timestamp(TimeUnit::Microsecond, None);
    let day = DataType::Time64(TimeUnit::Microsecond);
    for (text, to, fits) in [
        ("2016-12-31T23:59:60Z", &micros, false),
        ("2016-12-31 10:11:60", &micros, false),
        ("2016-12-31T10:11:60.5+01:00", &micros, false),
        ("2016-12-31T235960", &micros, false),
        ("10:11:60", &day, false),
        ("2016-12-31T10:11:59.60", &micros, true),
        ("2016-12-31T10:11:06", &micros, true),
        ("2016-12-31T101606", &micros, true),
    ] {
        let options = ReadOptions {
            format: Some(Format::Csv),
            types: vec![("t".to_owned(), to.clone())],
            ..ReadOptions::default()
        };
        let file = format!("t\n{text}\n");
        if fits {
            assert_eq!(read_all(stream(file.as_bytes()), &options).unwrap().num_rows(), 1, "{text}");
        } else {
            let message = error(stream(file.as_bytes()), &options).to_string();
            assert!(message.contains("line 2") && message.contains("give a leap second as 59"), "{message}");
        }
    }
}

#[test]
fn times_of_any_zone_are_utc_in_a_column_without_one() {
    let plain = TimestampMicrosecondArray::from(vec![Some(0), None, Some(2_000_003)]);
    for zone in ["+02:00", "-11:30", "UTC"] {
        let times: ArrayRef = Arc::new(plain.clone().with_timezone(zone));
        let batch = RecordBatch::try_from_iter([("t", times)]).unwrap();
        for format in [OutFormat::Parquet, OutFormat::Arrow] {
            let bytes = write_all(format, std::slice::from_ref(&batch), &WriteOptions::default()).unwrap();
            let typed = |unit: TimeUnit| ReadOptions {
                types: vec![("t".to_owned(), DataType::Timestamp(unit, None))],
                ..ReadOptions::default()
            };
            let read = read_all(stream(&bytes), &typed(TimeUnit::Microsecond)).unwrap();
            assert_eq!(read.column(0).as_primitive::<TimestampMicrosecondType>(), &plain, "{zone}");
            let message = error(stream(&bytes), &typed(TimeUnit::Second)).to_string();
            assert!(message.contains("row 3 holds") && message.contains("would be rounded or cut"), "{message}");
        }
    }
}

#[test]
fn stored_values_that_would_change_are_refused_with_their_row() {
    let whole = |rows: usize| vec![Some(1.0); rows].into_iter().chain([None]);
    let floats =
        |value: f64| -> ArrayRef { Arc::new(whole(80_000).chain([Some(value), Some(0.5)]).collect::<Float64Array>()) };
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["3", "3.7"]));
    for (column, to, row, shown) in [
        (floats(3.7), DataType::Int64, 80_002, "3.7, which would be rounded or cut"),
        (floats(f64::NAN), DataType::Int64, 80_002, "NaN, which does not fit"),
        (floats(1e19), DataType::Int64, 80_002, "1e19, which does not fit"),
        (floats(1e300), DataType::Float32, 80_002, "1e300, which would be rounded or cut"),
        (texts, DataType::Int32, 2, "3.7, which does not fit"),
    ] {
        let batch = RecordBatch::try_from_iter([("value", column)]).unwrap();
        let bytes = write_all(OutFormat::Parquet, &[batch], &WriteOptions::default()).unwrap();
        let options = ReadOptions { types: vec![("value".to_owned(), to.clone())], ..ReadOptions::default() };
        let message = error(stream(&bytes), &options).to_string();
        assert!(
            message.contains(&format!("row {row} holds {shown}")) && message.contains("column \"value\""),
            "{message}"
        );
    }
    // Whole numbers and nulls convert.
    let batch = RecordBatch::try_from_iter([("value", floats(3.0).slice(0, 80_002))]).unwrap();
    let bytes = write_all(OutFormat::Parquet, &[batch], &WriteOptions::default()).unwrap();
    let options = ReadOptions { types: vec![("value".to_owned(), DataType::Int8)], ..ReadOptions::default() };
    let read = read_all(stream(&bytes), &options).unwrap();
    assert_eq!((read.column(0).null_count(), read.column(0).as_primitive::<Int8Type>().value(80_001)), (1, 3));
}

#[test]
fn real_parquet_files_come_back_whole_from_disk_and_from_a_pipe() {
    for (file, rows, width) in
        [("ztf_detections.parquet", 582, 58), ("lsst_dia_sources.parquet", 1793, 136), ("gcvs.parquet", 0, 3)]
    {
        let path = data(file);
        let batch = read_all(Source::Path(path.clone()), &ReadOptions::default()).unwrap();
        assert!(rows == 0 || batch.num_rows() == rows, "{file} {}", batch.num_rows());
        assert!(batch.num_rows() > 500);
        assert_eq!(batch.num_columns(), width, "{file}");
        assert_eq!(read_all(stream(fs::read(&path).unwrap()), &ReadOptions::default()).unwrap(), batch);
        for format in [OutFormat::Csv, OutFormat::Ndjson, OutFormat::Arrow, OutFormat::ArrowStream, OutFormat::Parquet]
        {
            let bytes = write_all(format, std::slice::from_ref(&batch), &WriteOptions::default()).unwrap();
            let text = match format {
                OutFormat::Csv => Some(Format::Csv),
                // JSON has no NaN, so only a file without it comes back equal.
                OutFormat::Ndjson if file == "gcvs.parquet" => Some(Format::Ndjson),
                OutFormat::Ndjson => continue,
                _ => None,
            };
            let options = ReadOptions { format: text, schema: Some(batch.schema()), ..ReadOptions::default() };
            let back = read_all(stream(&bytes), &options).unwrap();
            for (index, field) in batch.schema().fields().iter().enumerate() {
                assert_eq!(
                    back.column(index).to_data(),
                    batch.column(index).to_data(),
                    "{file} {format} {}",
                    field.name()
                );
            }
        }
    }
}

#[test]
fn ndjson_infers_nested_columns_and_keeps_their_order() {
    let lines = concat!(
        "{\"z\": 1, \"t\": \"2020-01-01T00:00:00Z\", \"p\": {\"ra\": 1.5, \"tags\": [\"x\"]}, \"l\": [], \"e\": null}\n",
        "\n",
        "{\"z\": null, \"p\": {\"dec\": 2, \"tags\": null}, \"l\": [1, 2.5], \"m\": true}\n",
        "{\"z\": 3, \"m\": \"x\"}"
    );
    let batch = read_all(stream(lines), &ndjson()).unwrap();
    let fields: Vec<String> =
        batch.schema().fields().iter().map(|f| format!("{} {}", f.name(), format_type(f.data_type()))).collect();
    assert_eq!(
        fields,
        [
            "z int64",
            "t timestamp[us, UTC]",
            "p struct<ra: float64, tags: list<utf8>, dec: int64>",
            "l list<float64>",
            "e utf8",
            "m utf8"
        ]
    );
    assert_eq!(batch.column(0).as_primitive::<Int64Type>().iter().collect::<Vec<_>>(), [Some(1), None, Some(3)]);
    assert_eq!(batch.column(5).as_string::<i32>().value(1), "true");
    assert_eq!(batch.column(3).as_list::<i32>().value(1).as_primitive::<Float64Type>().values(), &[1.0, 2.5]);
}

#[test]
fn ndjson_never_rounds_or_drops_silently() {
    let sampled = ReadOptions { sample_rows: 1, ..ndjson() };
    match error(stream("{\"a\": 1}\n\n{\"a\": 1.5}\n"), &sampled) {
        IoError::BadValue { line: 3, column, value, .. } => assert_eq!((&*column, &*value), ("a", "1.5")),
        other => panic!("{other:?}"),
    }
    match error(stream("{\"a\": 1}\n{\"a\": 2, \"b\": 3}\n"), &sampled) {
        IoError::Json { line: 2, reason, .. } => assert!(reason.contains('b'), "{reason}"),
        other => panic!("{other:?}"),
    }
    match error(stream("{\"a\": [{\"b\": 1}, {\"b\": 2}]}\n{\"a\": [{\"b\": 3}, {\"b\": \"x\"}]}\n"), &sampled) {
        IoError::BadValue { line: 2, column, .. } => assert_eq!(&*column, "a[].b"),
        other => panic!("{other:?}"),
    }
    let wide = ReadOptions { types: vec![("a".to_owned(), parse_type("decimal128(30, 10)").unwrap())], ..ndjson() };
    let batch = read_all(stream("{\"a\": 12345678901234567890.0123456789}\n"), &wide).unwrap();
    assert_eq!(text(OutFormat::Csv, &batch, &WriteOptions::default()), "a\n12345678901234567890.0123456789\n");
}

#[test]
fn malformed_ndjson_is_named_by_line() {
    for bad in ["{\"a\": 1", "[1]", "5", "{\"a\": 1} {\"a\": 2}", "{\"a\": tru}", "{\"a\": {\"b\": 1}}"] {
        let input = format!("{{\"a\": 1}}\n{{\"a\": 2}}\n{bad}\n");
        for sample_rows in [1, 10_000] {
            let options = ReadOptions { sample_rows, ..ndjson() };
            let found = error(stream(&input), &options);
            let line = match &found {
                IoError::Json { line, .. } | IoError::MixedShapes { line, .. } => *line,
                other => panic!("{bad}: {other:?}"),
            };
            assert_eq!(line, 3, "{bad}: {found}");
        }
    }
    assert!(matches!(error(stream("{}\n"), &ndjson()), IoError::Empty { .. }));
    assert!(matches!(error(stream("\n \n"), &ndjson()), IoError::Empty { .. }));
}

#[test]
fn csv_text_is_exact_and_quoted_only_where_needed() {
    let strings: ArrayRef =
        Arc::new(StringArray::from(vec![Some("a,b"), Some(""), None, Some("say \"x\"\n"), Some(" é")]));
    let floats: ArrayRef = Arc::new(Float64Array::from(vec![0.1, -0.0, f64::NAN, f64::INFINITY, 1e300]));
    let bytes: ArrayRef = Arc::new(BinaryArray::from(vec![Some(&b"\x00\xff"[..]), None, Some(b""), Some(b"a"), None]));
    let batch = RecordBatch::try_from_iter([("s,t", strings), ("f", floats), ("b", bytes)]).unwrap();
    let expected = "\"s,t\",f,b\n\"a,b\",0.1,00ff\n\"\",-0.0,\n,NaN,\"\"\n\"say \"\"x\"\"\n\",inf,61\n\" é\",1e300,\n";
    assert_eq!(text(OutFormat::Csv, &batch, &WriteOptions::default()), expected);
    let lines = text(OutFormat::Ndjson, &batch.slice(2, 2), &WriteOptions::default());
    assert_eq!(lines, "{\"s,t\":null,\"f\":null,\"b\":\"\"}\n{\"s,t\":\"say \\\"x\\\"\\n\",\"f\":null,\"b\":\"61\"}\n");
}

#[test]
fn a_file_appears_whole_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.parquet");
    let names = || fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect::<Vec<_>>();
    let begin =
        |options: &WriteOptions| writer(Sink::Path(path.clone()), OutFormat::Parquet, table(0).schema(), options);
    let plain = WriteOptions::default();
    let mut dropped = begin(&plain).unwrap();
    dropped.write(&table(10)).unwrap();
    assert!(!path.exists());
    drop(dropped);
    assert!(names().is_empty());
    let mut failed = begin(&plain).unwrap();
    let other = RecordBatch::try_from_iter([("x", Arc::new(Int64Array::from(vec![1])) as ArrayRef)]).unwrap();
    assert!(matches!(failed.write(&other), Err(IoError::SchemaChanged { .. })));
    drop(failed);
    assert!(names().is_empty());
    let mut kept = begin(&plain).unwrap();
    kept.write(&table(10)).unwrap();
    assert_eq!(kept.finish().unwrap(), 10);
    assert_eq!(names(), ["out.parquet"]);
    assert!(matches!(begin(&plain), Err(IoError::Exists { .. })));
    let over = WriteOptions { overwrite: true, ..plain.clone() };
    let mut replaced = begin(&over).unwrap();
    replaced.write(&table(3)).unwrap();
    assert_eq!(read_all(Source::Path(path.clone()), &ReadOptions::default()).unwrap().num_rows(), 10);
    replaced.finish().unwrap();
    assert_eq!(read_all(Source::Path(path.clone()), &ReadOptions::default()).unwrap().num_rows(), 3);
    fs::remove_file(&path).unwrap();
    let raced = begin(&plain).unwrap();
    fs::write(&path, "mine").unwrap();
    assert!(matches!(raced.finish(), Err(IoError::Exists { .. })));
    assert_eq!(fs::read(&path).unwrap(), b"mine");
    assert_eq!(names(), ["out.parquet"]);
    let nowhere = Sink::Path(folder.path().join("no/out.csv"));
    assert!(matches!(writer(nowhere, OutFormat::Csv, table(0).schema(), &plain), Err(IoError::NoFolder { .. })));
}

#[cfg(unix)]
#[test]
fn a_written_file_has_the_usual_mode() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.csv");
    writer(Sink::Path(path.clone()), OutFormat::Csv, table(0).schema(), &WriteOptions::default())
        .unwrap()
        .finish()
        .unwrap();
    fs::write(folder.path().join("b"), "").unwrap();
    let mode = |name: &str| fs::metadata(folder.path().join(name)).unwrap().permissions().mode();
    assert_eq!(mode("a.csv"), mode("b"));
}

#[test]
fn compressed_outputs_follow_the_extension_and_read_back() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a.csv.gz", "a.ndjson.zst", "a.arrow.gz", "a.arrows.zst"] {
        let path = folder.path().join(name);
        let format = OutFormat::of_path(&path).unwrap();
        let mut out = writer(Sink::Path(path.clone()), format, table(0).schema(), &WriteOptions::default()).unwrap();
        out.write(&table(1000)).unwrap();
        out.finish().unwrap();
        let magic = fs::read(&path).unwrap()[..2].to_vec();
        assert!(magic == [0x1f, 0x8b] || magic == [0x28, 0xb5], "{name}");
        assert_eq!(read_all(Source::Path(path), &ReadOptions::default()).unwrap(), table(1000), "{name}");
    }
}

#[test]
fn a_closed_reader_and_a_full_disk_are_told_apart() {
    struct Failing(std::io::ErrorKind);
    impl std::io::Write for Failing {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(self.0.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let formats = [
        OutFormat::Csv,
        OutFormat::Ndjson,
        OutFormat::Parquet,
        OutFormat::Arrow,
        OutFormat::ArrowStream,
        OutFormat::Table,
    ];
    for format in formats {
        let run = |kind| {
            let sink = Sink::Stream { name: "output".to_owned(), writer: Box::new(Failing(kind)) };
            let mut out = writer(sink, format, table(0).schema(), &WriteOptions::default())?;
            for _ in 0..20 {
                out.write(&table(10_000))?;
            }
            out.finish()
        };
        assert!(matches!(run(std::io::ErrorKind::BrokenPipe), Err(IoError::BrokenPipe)), "{format}");
        match run(std::io::ErrorKind::StorageFull) {
            Err(error @ IoError::Write { .. }) => assert!(error.to_string().contains("free some space")),
            other => panic!("{format}: {other:?}"),
        }
    }
}

#[test]
fn a_table_is_aligned_cut_and_cannot_drive_the_terminal() {
    let names: ArrayRef =
        Arc::new(StringArray::from(vec![Some("é"), None, Some("\u{1b}[31mred"), Some("a very long text indeed")]));
    let values: ArrayRef = Arc::new(Float64Array::from(vec![1.5, -20.0, 3.0, 4.0]));
    let batch = RecordBatch::try_from_iter([("name", names), ("value", values.clone()), ("other", values)]).unwrap();
    let limits = TableOptions { max_rows: 3, max_cell_width: 12, width: Some(24) };
    let shown = text(OutFormat::Table, &batch, &WriteOptions { table: limits, ..WriteOptions::default() });
    let expected = "name             value\nutf8           float64\n─────────────  ───────\né                  1.5\nnull             -20.0\n\
        \\u{1b}[31mred      3.0\n… 1 more row\n… and 1 more column: use --columns or --json\n";
    assert_eq!(shown, expected);
    assert!(text(OutFormat::Table, &batch.slice(0, 0), &WriteOptions::default()).ends_with("no rows\n"));
}

#[test]
fn a_table_that_leaves_out_columns_says_so_in_one_line() {
    let value: ArrayRef = Arc::new(Int64Array::from(vec![1]));
    let batch = RecordBatch::try_from_iter((0..97).map(|i| (format!("column{i}"), value.clone()))).unwrap();
    let last = |columns: usize, width: usize| {
        let limits = TableOptions { width: Some(width), ..TableOptions::default() };
        let batch = batch.project(&(0..columns).collect::<Vec<_>>()).unwrap();
        let shown = text(OutFormat::Table, &batch, &WriteOptions { table: limits, ..WriteOptions::default() });
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(lines.len(), if columns > width / 9 { 5 } else { 4 }, "{shown}");
        assert!(lines.iter().all(|line| line.chars().count() <= width), "{shown}");
        lines[lines.len() - 1].to_owned()
    };
    assert_eq!(last(97, 80), "… and 88 more columns: use --columns or --json");
    assert_eq!(last(11, 90), "… and 1 more column (column10): use --columns or --json");
    assert_eq!(last(8, 80).trim(), "1        1        1        1        1        1        1        1");
}

#[test]
fn a_table_uses_the_width_of_the_terminal() {
    let message = "message ".repeat(20);
    let name = "n".repeat(60);
    let texts: ArrayRef = Arc::new(StringArray::from(vec![message.as_str(), "short"]));
    let names: ArrayRef = Arc::new(StringArray::from(vec![name.as_str(), "x"]));
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
    let batch = RecordBatch::try_from_iter([("id", numbers), ("name", names), ("text", texts)]).unwrap();
    let shown = |width| {
        let limits = TableOptions { width, ..TableOptions::default() };
        text(OutFormat::Table, &batch, &WriteOptions { table: limits, ..WriteOptions::default() })
    };
    let widest = |width| shown(Some(width)).lines().map(|line| line.chars().count()).max().unwrap();
    // Where there is room for all, nothing is cut: 5 + 2 + 60 + 2 + 160.
    assert_eq!(widest(500), 229);
    assert!(shown(Some(500)).contains(message.trim_end()));
    // Where there is not, the longest is cut, and only it.
    assert_eq!(widest(200), 200);
    assert!(shown(Some(200)).contains(&name));
    assert_eq!(widest(100), 99);
    // Cells of 40 are the narrowest; columns that do not fit then are named.
    assert_eq!(widest(80), 67);
    assert!(
        shown(Some(80)).contains(&format!("{name}\n"))
            && shown(Some(80)).ends_with("… and 1 more column (text): use --columns or --json\n")
    );
    assert!(shown(None).lines().all(|line| line.chars().count() <= 5 + 2 + 40 + 2 + 40));
}

#[test]
fn the_content_hash_is_that_of_the_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x");
    fs::write(&path, vec![7u8; 1 << 20]).unwrap();
    let hash = content_hash(&path).unwrap();
    assert_eq!(hash[..], blake3::hash(&vec![7u8; 1 << 20]).as_bytes()[..16]);
    fs::write(&path, vec![8u8; 1 << 20]).unwrap();
    assert_ne!(content_hash(&path).unwrap(), hash);
    assert!(matches!(content_hash(folder.path()), Err(IoError::IsFolder { .. })));
}

#[test]
fn type_names_read_back_and_nonsense_is_refused() {
    for name in [
        "bool",
        "int8",
        "uint64",
        "float16",
        "float32",
        "float64",
        "utf8",
        "large_utf8",
        "utf8_view",
        "binary",
        "large_binary",
        "binary_view",
        "fixed_size_binary(16)",
        "date32",
        "date64",
        "time32[s]",
        "time64[ns]",
        "timestamp[us]",
        "timestamp[ns, UTC]",
        "timestamp[ms, +02:00]",
        "timestamp[s, Europe/Paris]",
        "duration[us]",
        "decimal128(10, 2)",
        "decimal256(50, 0)",
        "list<int32>",
        "large_list<list<utf8>>",
        "fixed_size_list<float32, 3>",
        "struct<a: int64, b: list<struct<c: utf8>>>",
        "dictionary<int32, utf8>",
        "null",
    ] {
        assert_eq!(format_type(&parse_type(name).unwrap()), name);
    }
    for (spelling, name) in [
        ("Int64", "int64"),
        ("string", "utf8"),
        ("timestamp[us, tz=UTC]", "timestamp[us, UTC]"),
        ("date32[day]", "date32"),
        ("list<item: double>", "list<float64>"),
        ("fixed_size_binary[4]", "fixed_size_binary(4)"),
        ("dictionary<values=string, indices=int32, ordered=0>", "dictionary<int32, utf8>"),
        ("halffloat", "float16"),
        ("fixed_size_list<item: float>[3]", "fixed_size_list<float64, 3>"),
        ("decimal128(10,2)", "decimal128(10, 2)"),
    ] {
        assert_eq!(format_type(&parse_type(spelling).unwrap()), name);
    }
    let deep = format!("{}int8{}", "list<".repeat(5000), ">".repeat(5000));
    for text in [
        "",
        "int",
        "int7",
        "list",
        "list<",
        "list<int32",
        "list<>",
        "timestamp[fs]",
        "timestamp[us, Mars]",
        "time32[ns]",
        "decimal128(39, 2)",
        "decimal128(5, 9)",
        "struct<a>",
        "struct<a: int8, a: int8>",
        "dictionary<utf8, utf8>",
        "map<utf8, utf8>",
        "fixed_size_binary(-1)",
        "int64]",
        &deep,
    ] {
        match (text, parse_type(text)) {
            ("int", Ok(DataType::Int64)) => {}
            (_, Err(IoError::UnknownType { .. })) => {}
            (text, other) => panic!("{text}: {other:?}"),
        }
    }
}
