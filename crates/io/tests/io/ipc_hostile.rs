//! Claims about Arrow IPC whose data contradict its schema.

use std::io::Cursor;
use std::sync::Arc;

use arrow_array::types::Int8Type;
use arrow_array::{
    Array, ArrayRef, DictionaryArray, Int8Array, Int64Array, ListArray, RecordBatch, StringArray, StringViewArray,
    StructArray,
};
use arrow_ipc::MetadataVersion;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use chronotile_io::{Format, IoError, IpcStream, ReadOptions, Source, open};

use crate::common::{data, error, numbers, read_all, stream};

fn as_stream(batches: &[RecordBatch]) -> Vec<u8> {
    let mut writer = StreamWriter::try_new(Vec::new(), &batches[0].schema()).unwrap();
    batches.iter().for_each(|batch| writer.write(batch).unwrap());
    writer.into_inner().unwrap()
}

fn as_file(batches: &[RecordBatch]) -> Vec<u8> {
    let options = IpcWriteOptions::try_new(8, false, MetadataVersion::V5).unwrap();
    let mut writer = FileWriter::try_new_with_options(Vec::new(), &batches[0].schema(), options).unwrap();
    batches.iter().for_each(|batch| writer.write(batch).unwrap());
    writer.into_inner().unwrap()
}

/// A stream of the schema `claimed` whose batches are those of `batch`.
fn lying(claimed: &Schema, batch: &RecordBatch) -> Vec<u8> {
    let schema_only = |schema: &Schema| StreamWriter::try_new(Vec::new(), schema).unwrap().get_ref().clone();
    let honest = as_stream(std::slice::from_ref(batch));
    [&schema_only(claimed)[..], &honest[schema_only(&batch.schema()).len()..]].concat()
}

fn schema(fields: &[(&str, DataType, bool)]) -> Schema {
    Schema::new(
        fields.iter().map(|(name, kind, nullable)| Field::new(*name, kind.clone(), *nullable)).collect::<Vec<_>>(),
    )
}

fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
    RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, column)| (name, column, true))).unwrap()
}

/// Columns of each kind of layout.
fn many_kinds() -> RecordBatch {
    let texts = ["a", "a longer text than a view holds inline", "", "ü"];
    let ids: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(3), Some(4)]));
    let names: ArrayRef = Arc::new(StringArray::from_iter_values(texts));
    let lists = ListArray::from_iter_primitive::<arrow_array::types::Int64Type, _, _>([
        Some(vec![Some(1), None]),
        None,
        Some(vec![]),
        Some(vec![Some(2)]),
    ]);
    let fields = vec![Field::new("x", DataType::Int64, true), Field::new("s", DataType::Utf8, true)];
    batch(vec![
        ("id", ids.clone()),
        ("name", names.clone()),
        ("view", Arc::new(StringViewArray::from_iter_values(texts))),
        ("list", Arc::new(lists)),
        ("struct", Arc::new(StructArray::new(fields.into(), vec![ids, names], None))),
        ("kind", Arc::new(texts.into_iter().map(Some).collect::<DictionaryArray<Int8Type>>())),
    ])
}

fn samples() -> Vec<RecordBatch> {
    let sample = |file: &str| {
        let source = Source::Path(data(file));
        open(source, &ReadOptions { batch_rows: 20, ..ReadOptions::default() }).unwrap().next().unwrap().unwrap()
    };
    vec![many_kinds(), sample("ztf_detections.parquet"), sample("lsst_dia_objects.parquet")]
}

fn is_sound(batch: &RecordBatch) {
    for (field, column) in batch.schema().fields().iter().zip(batch.columns()) {
        column.to_data().validate_full().unwrap();
        assert!(field.is_nullable() || column.logical_null_count() == 0, "{field}");
        assert_eq!(column.len(), batch.num_rows());
    }
}

#[test]
fn batches_that_contradict_their_schema_are_refused_with_the_contradiction() {
    let (int, text) = (DataType::Int64, DataType::Utf8);
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None]));
    let texts: ArrayRef = Arc::new(StringArray::from(vec!["one", "two"]));
    let one = batch(vec![("a", numbers.clone())]);
    let two = batch(vec![("a", numbers.clone()), ("b", texts.clone())]);
    let keys = Int8Array::from(vec![0, 1]);
    let values: ArrayRef = Arc::new(StringArray::from(vec![Some("x"), None]));
    let dictionary = batch(vec![("a", Arc::new(DictionaryArray::new(keys, values)) as ArrayRef)]);
    let coded = DataType::Dictionary(Box::new(DataType::Int8), Box::new(text.clone()));
    for (claimed, batch, expected) in [
        (schema(&[("a", int.clone(), false)]), &one, "'a' is declared as non-nullable but contains null"),
        (schema(&[("a", coded, false)]), &dictionary, "the value is missing"),
        (schema(&[("a", int.clone(), true)]), &two, "more columns or buffers than its schema"),
        (schema(&[("a", int.clone(), true), ("c", int.clone(), true)]), &one, "\"c\" is missing"),
        (schema(&[("a", text.clone(), true), ("b", text.clone(), true)]), &two, "those of \"b\" are missing"),
        (schema(&[("a", DataType::Decimal128(38, 0), true)]), &one, "at least 32 bytes"),
        (schema(&[("a", DataType::Utf8View, true)]), &one, "lacks its number of data buffers"),
        (schema(&[("a", int, true), ("b", DataType::Null, true)]), &two, "more columns or buffers than its schema"),
    ] {
        let bytes = lying(&claimed, batch);
        let error = error(stream(&bytes), &ReadOptions::default());
        assert!(error.to_string().contains(expected), "{expected:?} is not in: {error}");
    }
}

/// Every place of a message where `old` stands as a number of 64 bits, with `new` there.
fn changed(bytes: &[u8], old: i64, new: i64) -> Vec<Vec<u8>> {
    let at = (0..bytes.len() - 8).filter(|at| bytes[*at..at + 8] == old.to_le_bytes());
    at.map(|at| [&bytes[..at], &new.to_le_bytes(), &bytes[at + 8..]].concat()).collect()
}

#[test]
fn lengths_of_headers_that_the_body_does_not_have_are_refused() {
    // 777 rows, of which 111 are null; the values take 6,216 bytes.
    let values = Int64Array::from_iter((0..777).map(|i| (i % 7 != 0).then_some(i + 100_000)));
    let batch = batch(vec![("a", Arc::new(values) as ArrayRef)]);
    for bytes in [as_stream(std::slice::from_ref(&batch)), as_file(std::slice::from_ref(&batch))] {
        assert_eq!(read_all(stream(&bytes), &ReadOptions::default()).unwrap(), batch);
        for (old, new) in [(777, 776), (777, 778), (777, -1), (777, i64::MAX), (111, 110), (111, -1), (111, 1 << 40)] {
            let all = changed(&bytes, old, new);
            assert!(!all.is_empty());
            for bytes in all {
                let error = error(stream(&bytes), &ReadOptions::default());
                assert!(matches!(error, IoError::Damaged { .. }), "{old} as {new}: {error}");
                assert!(!error.to_string().contains("the decoder failed"), "{old} as {new}: {error}");
            }
        }
        for new in [7_000, -8, i64::MAX, 1 << 40] {
            for bytes in changed(&bytes, 6_216, new) {
                let error = error(stream(&bytes), &ReadOptions::default());
                assert!(error.to_string().contains("outside of its"), "{new}: {error}");
            }
        }
    }
}

#[test]
fn a_file_that_is_shorter_than_its_trailer_is_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("short.arrow");
    for length in 6..=16 {
        let bytes = &b"ARROW1\0\0\0\0\0\0\0\0\0\0"[..length];
        std::fs::write(&path, bytes).unwrap();
        for source in [stream(bytes), Source::Path(path.clone())] {
            let error = error(source, &ReadOptions::default());
            assert!(matches!(error, IoError::Damaged { .. }), "{length}: {error}");
        }
    }
}

#[test]
fn changed_real_tables_are_read_whole_or_refused_as_damaged() {
    let mut next = numbers(21);
    let (mut read, mut damaged) = (0, 0);
    for sample in samples() {
        for whole in [as_stream(&[sample.clone(), sample.clone()]), as_file(&[sample.clone(), sample.clone()])] {
            for _ in 0..700 {
                let mut bytes = whole.clone();
                for _ in 0..1 + next(3) {
                    // Numbers of headers have 4 or 8 bytes and stand at multiples of 4.
                    let at = next(bytes.len() / 4 - 1) * 4;
                    let new = [0, 1, -1, 7, i64::MAX, i64::MIN, 1 << 31, next(1 << 20) as i64][next(8)].to_le_bytes();
                    let count = [1, 4, 8][next(3)];
                    bytes[at..at + count].copy_from_slice(&new[..count]);
                }
                match open(stream(&bytes), &ReadOptions::default()).and_then(Iterator::collect::<Result<Vec<_>, _>>) {
                    Ok(batches) => {
                        batches.iter().for_each(is_sound);
                        read += 1;
                    }
                    Err(error) => {
                        assert!(!error.to_string().contains('\n'), "{error}");
                        damaged += 1;
                    }
                }
            }
        }
    }
    assert!(read > 500 && damaged > 500, "{read} read, {damaged} damaged");
}

#[test]
fn a_stream_of_a_service_is_held_like_a_file() {
    let honest = as_stream(&[many_kinds()]);
    let whole = IpcStream::open(Box::new(Cursor::new(honest))).unwrap();
    let found: SchemaRef = whole.schema();
    assert_eq!((found, whole.count()), (many_kinds().schema(), 1));
    let one = batch(vec![("a", Arc::new(Int64Array::from(vec![1, 2])) as ArrayRef)]);
    let bytes = lying(&schema(&[("a", DataType::Int64, true), ("b", DataType::Utf8, true)]), &one);
    let read = IpcStream::open(Box::new(Cursor::new(bytes))).map(|_| ());
    assert!(read.unwrap_err().to_string().contains("\"b\" is missing"));
    // The length of a body that is not there costs nothing.
    let body = as_stream(std::slice::from_ref(&one));
    for bytes in changed(&body, body.len() as i64, i64::MAX) {
        assert!(IpcStream::open(Box::new(Cursor::new(bytes))).is_err());
    }
    let options = ReadOptions { format: Some(Format::Arrow), ..ReadOptions::default() };
    assert!(read_all(stream(&body), &options).is_ok());
}
