//! Arrow IPC streams from clients. Nothing is allocated because a length in the stream says so: what is not there is not read.

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_ipc::reader::StreamDecoder;
use arrow_ipc::{MessageHeader, root_as_message};
use bytes::Bytes;

/// Reads a body.
///
/// # Errors
/// A body that is no such stream, that ends too early, or whose columns are compressed.
pub fn read(body: Bytes) -> Result<Vec<RecordBatch>, String> {
    check_plain(&body)?;
    let refuse = |error: arrow_schema::ArrowError| format!("the body is no Arrow IPC stream: {error}");
    let mut decoder = StreamDecoder::new();
    let mut rest = Buffer::from(body);
    let mut batches = Vec::new();
    while let Some(batch) = decoder.decode(&mut rest).map_err(refuse)? {
        batches.push(batch);
    }
    decoder.finish().map_err(refuse)?;
    if decoder.schema().is_none() {
        return Err("the body is no Arrow IPC stream: it has no schema".to_owned());
    }
    Ok(batches)
}

/// Refuses compressed columns: how large they become is told by numbers that cannot be trusted.
fn check_plain(body: &[u8]) -> Result<(), String> {
    let mut at = 0;
    while let Some(mut size) = word(body, at) {
        at += 4;
        if size == u32::MAX {
            let Some(second) = word(body, at) else { return Ok(()) };
            (size, at) = (second, at + 4);
        }
        let Some(message) = body.get(at..at.saturating_add(size as usize)).filter(|_| size > 0) else { return Ok(()) };
        let message = root_as_message(message).map_err(|error| format!("the body is no Arrow IPC stream: {error}"))?;
        let batch = match message.header_type() {
            MessageHeader::RecordBatch => message.header_as_record_batch(),
            MessageHeader::DictionaryBatch => message.header_as_dictionary_batch().and_then(|batch| batch.data()),
            _ => None,
        };
        if batch.is_some_and(|batch| batch.compression().is_some()) {
            return Err(
                "the columns of the Arrow stream are compressed: send them plain, or the body packed with gzip".into(),
            );
        }
        let Ok(length) = usize::try_from(message.bodyLength()) else { return Ok(()) };
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

    use arrow_array::{ArrayRef, Int64Array};
    use arrow_ipc::CompressionType;
    use arrow_ipc::writer::{IpcWriteOptions, StreamWriter};

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

    #[test]
    fn compressed_columns_are_refused() {
        let message = read(stream(Some(CompressionType::ZSTD)).into()).unwrap_err();
        assert!(message.contains("compressed"), "{message}");
    }
}
