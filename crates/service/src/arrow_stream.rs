//! Decodes Arrow IPC streams from clients. Lengths declared in a stream are checked against its bytes before anything
//! is allocated.

use std::fmt;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, RecordBatch};
use arrow_buffer::Buffer;
use arrow_ipc::convert::fb_to_schema;
use arrow_ipc::reader::StreamDecoder;
use arrow_ipc::{MessageHeader, root_as_message};
use arrow_schema::DataType;
use bytes::Bytes;
use chronotile_io::check_batch;
use chronotile_types::contained;

/// Decodes a body.
///
/// # Errors
/// The body is not an Arrow IPC stream, is truncated, contradicts its schema, or has compressed columns.
pub fn read(body: Bytes) -> Result<Vec<RecordBatch>, String> {
    // Arrow's reader panics on types of a schema that it cannot represent.
    contained(|| decode(body)).unwrap_or_else(|reason| Err(format!("the body is not an Arrow IPC stream: {reason}")))
}

fn decode(body: Bytes) -> Result<Vec<RecordBatch>, String> {
    check_messages(&body)?;
    let refuse = |error: arrow_schema::ArrowError| format!("the body is not an Arrow IPC stream: {error}");
    let mut decoder = StreamDecoder::new();
    let mut rest = Buffer::from(body);
    let mut batches = Vec::new();
    let bytes_max = rest.len().saturating_mul(SHARED_TEXTS).max(1 << 20);
    let mut bytes = 0_usize;
    while let Some(batch) = decoder.decode(&mut rest).map_err(refuse)? {
        bytes = bytes.saturating_add(batch.columns().iter().map(text_bytes).sum());
        if bytes > bytes_max {
            return Err(format!(
                "the text columns of the stream take more than {bytes_max} bytes: send fewer rows at a time"
            ));
        }
        batches.push(batch);
    }
    decoder.finish().map_err(refuse)?;
    if decoder.schema().is_none() {
        return Err("the body is not an Arrow IPC stream: it has no schema".to_owned());
    }
    Ok(batches)
}

/// Maximum size of the texts of a stream, as a multiple of its bytes. Rows may share the bytes of a text.
const SHARED_TEXTS: usize = 4;

/// Size of the texts of a column, counting a text that several rows share once for each row.
fn text_bytes(column: &ArrayRef) -> usize {
    // The lowest 32 bits of a view are the length of its text.
    let lengths = |views: &[u128]| views.iter().map(|view| (*view as u32) as usize).sum();
    // The historian looks up each name of a dictionary once and takes no dictionaries as values, so it never expands
    // one.
    if let Some(dictionary) = column.as_any_dictionary_opt() {
        return text_bytes(dictionary.values());
    }
    match column.data_type() {
        DataType::Utf8View => lengths(column.as_string_view().views()),
        DataType::BinaryView => lengths(column.as_binary_view().views()),
        _ => 0,
    }
}

/// Refuses batches that contradict the schema, and compressed columns, whose unpacked size is declared by numbers that
/// cannot be trusted.
fn check_messages(body: &[u8]) -> Result<(), String> {
    let refuse = |error: &dyn fmt::Display| format!("the body is not an Arrow IPC stream: {error}");
    let (mut at, mut schema) = (0, None);
    while let Some(mut size) = word(body, at) {
        at += 4;
        // The size follows a continuation marker; older streams have no marker.
        if size == u32::MAX {
            let Some(second) = word(body, at) else { return Ok(()) };
            (size, at) = (second, at + 4);
        }
        // A size of 0 ends the stream. What is cut off here, the decoder refuses with its own message.
        let Some(message) = body.get(at..at.saturating_add(size as usize)).filter(|_| size > 0) else { return Ok(()) };
        let message = root_as_message(message).map_err(|error| refuse(&error))?;
        let batch = match message.header_type() {
            MessageHeader::RecordBatch => message.header_as_record_batch(),
            MessageHeader::DictionaryBatch => message.header_as_dictionary_batch().and_then(|batch| batch.data()),
            _ => None,
        };
        if batch.is_some_and(|batch| batch.compression().is_some()) {
            return Err(
                "the columns of the Arrow stream are compressed: send them uncompressed, or compress the body with gzip"
                    .into(),
            );
        }
        let Ok(length) = usize::try_from(message.bodyLength()) else { return Ok(()) };
        schema = schema.or_else(|| message.header_as_schema().map(fb_to_schema));
        if let Some(schema) = &schema {
            check_batch(&message, schema, length).map_err(|error| refuse(&error))?;
        }
        // A wrapping sum could lead back to an earlier message, and so into an endless loop.
        at = at.saturating_add(size as usize).saturating_add(length);
    }
    Ok(())
}

fn word(body: &[u8], at: usize) -> Option<u32> {
    body.get(at..at.checked_add(4)?)?.try_into().ok().map(u32::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use arrow_array::builder::GenericByteViewBuilder;
    use arrow_array::types::{BinaryViewType, ByteViewType, Int32Type, StringViewType};
    use arrow_array::{DictionaryArray, Int64Array};
    use arrow_ipc::CompressionType;
    use arrow_ipc::writer::{IpcWriteOptions, StreamWriter};
    use arrow_schema::{Field, Schema};

    fn stream(compression: Option<CompressionType>) -> Vec<u8> {
        let values: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1_000));
        let batch = RecordBatch::try_from_iter([("value", values)]).unwrap();
        let options = IpcWriteOptions::default().try_with_compression(compression).unwrap();
        let mut writer = StreamWriter::try_new_with_options(Vec::new(), &batch.schema(), options).unwrap();
        writer.write(&batch).unwrap();
        writer.write(&batch).unwrap();
        writer.into_inner().unwrap()
    }

    #[test]
    fn batches_come_out_as_they_went_in() {
        let batches = read(stream(None).into()).unwrap();
        assert_eq!(batches.iter().map(RecordBatch::num_rows).sum::<usize>(), 2_000);
    }

    #[test]
    fn a_stream_that_ends_in_a_message_is_refused() {
        let whole = stream(None);
        for length in [1, 7, 100, 1_000, whole.len() - 100] {
            assert!(read(whole[..length].to_vec().into()).is_err(), "{length}");
        }
        assert!(read(Bytes::new()).is_err());
    }

    #[test]
    fn a_length_that_is_not_there_costs_nothing() {
        assert!(read(b"ARROW1".to_vec().into()).is_err());
        assert!(read([0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f].to_vec().into()).is_err());
    }

    /// A column whose rows all share the same bytes.
    fn shared<T: ByteViewType>(bytes: usize, count: usize) -> ArrayRef {
        let mut views = GenericByteViewBuilder::<T>::new();
        let block = views.append_block("x".repeat(bytes).into_bytes().into());
        (0..count).for_each(|_| views.try_append_view(block, 0, bytes as u32).unwrap());
        Arc::new(views.finish())
    }

    fn plain(column: ArrayRef) -> Vec<u8> {
        plain_of(&RecordBatch::try_from_iter([("value", column)]).unwrap())
    }

    fn plain_of(batch: &RecordBatch) -> Vec<u8> {
        let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
        writer.write(batch).unwrap();
        writer.into_inner().unwrap()
    }

    #[test]
    fn rows_that_all_point_to_one_text_are_refused() {
        let views = |count: usize| plain(shared::<StringViewType>(100_000, count));
        assert_eq!(read(views(5).into()).unwrap()[0].num_rows(), 5);
        assert!(read(views(10_000).into()).unwrap_err().contains("take more than"));
    }

    #[test]
    fn compressed_columns_are_refused() {
        let message = read(stream(Some(CompressionType::ZSTD)).into()).unwrap_err();
        assert!(message.contains("compressed"), "{message}");
    }

    #[test]
    fn shared_texts_and_bytes_have_at_most_a_mebibyte() {
        // The stream itself has a sixteenth of these bytes.
        for (count, is_read) in [(16, true), (17, false)] {
            for column in [shared::<StringViewType>(1 << 16, count), shared::<BinaryViewType>(1 << 16, count)] {
                assert_eq!(read(plain(column).into()).is_ok(), is_read, "{count} rows");
            }
        }
    }

    #[test]
    fn batches_that_contradict_their_schema_are_refused() {
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None]));
        let one = RecordBatch::try_from_iter_with_nullable([("a", numbers.clone(), true)]).unwrap();
        let two =
            RecordBatch::try_from_iter_with_nullable([("a", numbers.clone(), true), ("b", numbers, true)]).unwrap();
        let field = |name: &str, nullable| Field::new(name, DataType::Int64, nullable);
        for (claimed, batch, expected) in [
            (vec![field("a", false)], &one, "declared as non-nullable"),
            (vec![field("a", true)], &two, "more columns"),
            (vec![field("a", true), field("b", true)], &one, "\"b\" is missing"),
        ] {
            let head = StreamWriter::try_new(Vec::new(), &Schema::new(claimed)).unwrap().get_ref().clone();
            let mut honest = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
            let start = honest.get_ref().len();
            honest.write(batch).unwrap();
            let refused = read([&head[..], &honest.get_ref()[start..]].concat().into()).unwrap_err();
            assert!(refused.contains(expected), "{expected:?} is not in: {refused}");
        }
    }

    #[test]
    fn changed_numbers_in_a_stream_are_refused_or_leave_rows_that_are_sound() {
        let texts: DictionaryArray<Int32Type> = ["a", "b", "a"].into_iter().collect();
        let columns: [(&str, ArrayRef); 3] = [
            ("text", Arc::new(texts)),
            ("value", Arc::new(Int64Array::from(vec![Some(1), None, Some(3)]))),
            ("view", shared::<StringViewType>(100, 3)),
        ];
        let whole = plain_of(&RecordBatch::try_from_iter(columns).unwrap());
        let (mut state, mut refused) = (7_u64, 0);
        let mut next = |end: usize| {
            state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 33) as usize % end
        };
        for _ in 0..4_000 {
            let mut bytes = whole.clone();
            let at = next(bytes.len() / 4 - 1) * 4;
            let new = [0, 1, -1, 7, i64::MAX, i64::MIN, 1 << 31, next(1 << 16) as i64][next(8)].to_le_bytes();
            let count = [1, 4, 8][next(3)];
            bytes[at..at + count].copy_from_slice(&new[..count]);
            match read(bytes.into()) {
                Ok(batches) => {
                    batches.iter().flat_map(RecordBatch::columns).for_each(|c| c.to_data().validate_full().unwrap())
                }
                Err(_) => refused += 1,
            }
        }
        assert!(refused > 500, "{refused}");
    }

    /// The byte range of each message with its body.
    fn messages(stream: &[u8]) -> Vec<std::ops::Range<usize>> {
        let (mut at, mut found) = (0, vec![]);
        while let Some(size) = word(stream, at + 4).filter(|size| *size > 0) {
            let behind = at + 8 + size as usize;
            let body = root_as_message(&stream[at + 8..behind]).unwrap().bodyLength() as usize;
            found.push(at..behind + body);
            at = behind + body;
        }
        found
    }

    #[test]
    fn a_compressed_message_is_found_behind_plain_ones() {
        let (plain, packed) = (stream(None), stream(Some(CompressionType::LZ4_FRAME)));
        let (of_plain, of_packed) = (messages(&plain), messages(&packed));
        assert_eq!((of_plain.len(), of_packed.len()), (3, 3));
        let mixed = [&plain[..of_plain[2].start], &packed[of_packed[2].start..]].concat();
        assert!(read(mixed.into()).unwrap_err().contains("compressed"));
        // Older streams have no continuation marker before the size of a message.
        let old: Vec<u8> =
            of_packed.iter().flat_map(|message| packed[message.start + 4..message.end].to_vec()).collect();
        assert!(read(old.into()).unwrap_err().contains("compressed"));
        let old: Vec<u8> = of_plain.iter().flat_map(|message| plain[message.start + 4..message.end].to_vec()).collect();
        assert_eq!(read(old.into()).unwrap().len(), 2);
    }

    #[test]
    fn a_compressed_dictionary_is_refused_before_its_rows_come() {
        let texts = (0..1_000).map(|i| format!("a text of some length {}", i / 2));
        let texts: Vec<String> = texts.collect();
        let column: ArrayRef = Arc::new(texts.iter().map(|text| &**text).collect::<DictionaryArray<Int32Type>>());
        let batch = RecordBatch::try_from_iter([("value", column)]).unwrap();
        let options = IpcWriteOptions::default().try_with_compression(Some(CompressionType::ZSTD)).unwrap();
        let mut writer = StreamWriter::try_new_with_options(Vec::new(), &batch.schema(), options).unwrap();
        writer.write(&batch).unwrap();
        let stream = writer.into_inner().unwrap();
        let dictionary = messages(&stream)[1].clone();
        assert!(read(stream[..dictionary.end].to_vec().into()).unwrap_err().contains("compressed"));
    }
}
