//! Claims about inputs that are damaged, or made to cost more than they are.

use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch};
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use chronotile_io::{CsvOptions, IoError, OutFormat, ReadOptions, Source, WriteOptions, open};

use crate::common::{csv, error, ndjson, numbers, read_all, stream, write_all};

fn table(rows: i64) -> RecordBatch {
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..rows));
    let values: ArrayRef = Arc::new(Float64Array::from_iter_values((0..rows).map(|i| i as f64 * 0.1)));
    RecordBatch::try_from_iter_with_nullable([("id", ids, true), ("value", values, true)]).unwrap()
}

/// Bytes without an end.
struct Endless;

impl std::io::Read for Endless {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        buffer.fill(0);
        Ok(buffer.len())
    }
}

#[test]
fn the_temporary_copy_of_a_stream_is_bounded() {
    for format in [OutFormat::Parquet, OutFormat::Arrow] {
        let whole = write_all(format, &[table(1_000)], &WriteOptions::default()).unwrap();
        let options = |spool_bytes_max| ReadOptions { spool_bytes_max, ..ReadOptions::default() };
        assert_eq!(read_all(stream(&whole), &options(whole.len() as u64)).unwrap().num_rows(), 1_000);
        let error = read_all(stream(&whole), &options(whole.len() as u64 - 1)).unwrap_err();
        assert!(matches!(error, IoError::SpoolTooLarge { .. }), "{error}");
        let endless = std::io::Read::chain(std::io::Cursor::new(whole), Endless);
        let endless = Source::Stream { name: "endless".into(), reader: Box::new(endless) };
        let error = read_all(endless, &options(64 << 20)).unwrap_err();
        assert!(matches!(error, IoError::SpoolTooLarge { bytes_max: 0x400_0000, .. }), "{error}");
    }
}

#[test]
fn a_binary_file_with_changed_bytes_is_read_or_damaged_without_a_panic() {
    let mut next = numbers(1);
    let compressed = |format| {
        let batch = table(200);
        let mut bytes = Vec::new();
        let options = IpcWriteOptions::default().try_with_compression(Some(CompressionType::ZSTD)).unwrap();
        match format {
            OutFormat::Arrow => {
                let mut writer = FileWriter::try_new_with_options(&mut bytes, &batch.schema(), options).unwrap();
                writer.write(&batch).unwrap();
                writer.finish().unwrap();
            }
            _ => {
                let mut writer = StreamWriter::try_new_with_options(&mut bytes, &batch.schema(), options).unwrap();
                writer.write(&batch).unwrap();
                writer.finish().unwrap();
            }
        }
        bytes
    };
    for format in [OutFormat::Parquet, OutFormat::Arrow, OutFormat::ArrowStream] {
        let plain = write_all(format, &[table(100), table(50)], &WriteOptions::default()).unwrap();
        let packed = if format == OutFormat::Parquet { plain.clone() } else { compressed(format) };
        let mut damaged = 0;
        for round in 0..600 {
            let mut bytes = if round % 2 == 0 { plain.clone() } else { packed.clone() };
            for _ in 0..1 + next(5) {
                let at = next(bytes.len());
                bytes[at] = [0, 1, 127, 128, 255, next(256) as u8][next(6)];
            }
            if let Err(error) = read_all(stream(&bytes), &ReadOptions::default()) {
                let text = error.to_string();
                assert!(!text.contains('\n'), "{text}");
                damaged += usize::from(matches!(error, IoError::Damaged { .. }));
            }
        }
        assert!(damaged > 100, "{format}: {damaged}");
    }
}

#[test]
fn compressed_columns_that_unpack_to_more_than_memory_holds_are_refused() {
    let batch = table(1_000);
    let options = IpcWriteOptions::default().try_with_compression(Some(CompressionType::ZSTD)).unwrap();
    let mut bytes = Vec::new();
    let mut writer = FileWriter::try_new_with_options(&mut bytes, &batch.schema(), options).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    // The unpacked length stands before each buffer: 8 bytes for each of 1,000 int64.
    let length = 8_000i64.to_le_bytes();
    let at = bytes.windows(8).position(|found| found == length).unwrap();
    for lie in [1i64 << 31, 1 << 40, i64::MAX, -2] {
        bytes[at..at + 8].copy_from_slice(&lie.to_le_bytes());
        let error = error(stream(&bytes), &ReadOptions::default());
        assert!(matches!(error, IoError::Damaged { .. }), "{lie}: {error}");
    }
}

#[test]
fn records_of_very_many_fields_are_refused_at_once() {
    let names = |count: usize| (0..count).map(|i| format!("c{i}")).collect::<Vec<_>>();
    let object =
        |count| format!("{{{}}}\n", names(count).iter().map(|n| format!("\"{n}\":1")).collect::<Vec<_>>().join(","));
    let nested = format!(
        "{{\"a\":[{}]}}\n",
        names(20_000).iter().map(|n| format!("{{\"{n}\":1}}")).collect::<Vec<_>>().join(",")
    );
    for (text, options) in [
        (names(300_000).join(","), csv()),
        (",".repeat(12_000_000), csv()),
        (object(300_000), ndjson()),
        (nested, ndjson()),
        // Each record is small; together they name too many columns.
        (
            names(10_001).iter().map(|n| format!("{{\"{n}\":1}}\n")).collect(),
            ReadOptions { sample_rows: 20_000, ..ndjson() },
        ),
    ] {
        let error = error(stream(&text), &options);
        assert!(matches!(error, IoError::TooManyColumns { columns_max: 10_000, .. }), "{error}");
    }
    let wide = format!("{}\n{}\n", names(10_000).join(","), vec!["1"; 10_000].join(","));
    assert_eq!(read_all(stream(wide), &csv()).unwrap().num_columns(), 10_000);
    assert_eq!(read_all(stream(object(10_000)), &ndjson()).unwrap().num_columns(), 10_000);
}

#[test]
fn empty_fields_count_as_memory() {
    // 9,000 fields in a line of 9,000 bytes: without text, but each has its place.
    let text = format!("{}\n", ",".repeat(9_000)).repeat(2_000);
    let options = ReadOptions { csv: CsvOptions { header: false, ..CsvOptions::default() }, ..csv() };
    let mut reader = open(stream(text), &options).unwrap();
    let rows = reader.next().unwrap().unwrap().num_rows();
    assert!((100..1_000).contains(&rows), "{rows}");
    // Records that lack nearly all of many columns.
    let text = format!("{{{}}}\n", (0..5_000).map(|i| format!("\"c{i}\":1")).collect::<Vec<_>>().join(","))
        + &"{}\n".repeat(30_000);
    let rows = open(stream(text), &ndjson()).unwrap().map(|batch| batch.unwrap().num_rows()).collect::<Vec<_>>();
    assert_eq!((rows.iter().sum::<usize>(), rows.iter().max()), (30_001, Some(&838)));
}
