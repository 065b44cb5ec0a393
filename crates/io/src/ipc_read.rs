//! Reads Arrow IPC files and streams as record batches.
//!
//! Lengths declared in the input are compared with the bytes that exist before memory is allocated: a failed allocation
//! would end the process, whereas a damaged input must be an error.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_ipc::convert::fb_to_schema;
use arrow_ipc::reader::{FileDecoder, StreamDecoder, read_footer_length};
use arrow_ipc::{Block, Message, RecordBatch as StoredBatch};
use arrow_schema::{ArrowError, Schema, SchemaRef};
use chronotile_types::contained;

use crate::columnar_read::{Shape, column_names};
use crate::error::{IoError, Result};
use crate::format::Format;
use crate::ipc_check::check_batch;
use crate::options::{ColumnOptions, ReadOptions};
use crate::source::{BatchSource, CountingReader, Input};

/// Maximum unpacked size of the compressed columns of one batch.
const UNPACKED_BYTES_MAX: u64 = 1 << 30;
/// Maximum length of a header. It describes only buffers and columns, so a longer one is damaged.
const HEADER_BYTES_MAX: u64 = 64 << 20;
/// Length of the prefix of each compressed buffer: its unpacked length.
const LENGTH_BYTES: usize = 8;
/// Value of that prefix if the buffer is not compressed.
const NOT_COMPRESSED: i64 = -1;

fn damaged(reason: impl Into<String>) -> ArrowError {
    ArrowError::IpcError(reason.into())
}

enum Batches {
    File(Box<IpcFile>),
    Stream(Box<IpcStream>),
}

/// A file, read block by block.
struct IpcFile {
    file: BufReader<CountingReader<File>>,
    /// Schema of all stored columns.
    stored: SchemaRef,
    decoder: FileDecoder,
    blocks: Vec<Block>,
    next: usize,
}

impl IpcFile {
    fn open(mut file: BufReader<CountingReader<File>>, footer: &Footer, chosen: &[usize]) -> Result<Self, ArrowError> {
        // Decoded columns come in ascending order, as `Shape` expects them.
        let mut columns = chosen.to_vec();
        columns.sort_unstable();
        let mut decoder = FileDecoder::new(footer.schema.clone(), footer.version).with_projection(columns);
        for block in &footer.dictionaries {
            let bytes = read_block(&mut file, block, &footer.schema)?;
            decoder.read_dictionary(block, &bytes)?;
        }
        Ok(Self { file, stored: footer.schema.clone(), decoder, blocks: footer.batches.clone(), next: 0 })
    }

    fn next(&mut self) -> Option<Result<RecordBatch, ArrowError>> {
        while let Some(block) = self.blocks.get(self.next) {
            self.next += 1;
            let batch = read_block(&mut self.file, block, &self.stored);
            match batch.and_then(|bytes| self.decoder.read_record_batch(block, &bytes)) {
                Ok(None) => {}
                Ok(Some(batch)) => return Some(Ok(batch)),
                Err(error) => return Some(Err(error)),
            }
        }
        None
    }
}

/// The footer of a file, which describes its contents.
struct Footer {
    schema: SchemaRef,
    version: arrow_ipc::MetadataVersion,
    batches: Vec<Block>,
    dictionaries: Vec<Block>,
}

impl Footer {
    fn read(file: &mut File) -> Result<Self, ArrowError> {
        let file_bytes = file.seek(SeekFrom::End(0))?;
        // A file ends with the length of its footer (4 bytes) and `ARROW1`.
        let mut trailer = [0; 10];
        let end = file_bytes.checked_sub(10).ok_or_else(|| damaged("it ends before its footer"))?;
        file.seek(SeekFrom::Start(end))?;
        file.read_exact(&mut trailer)?;
        let size = read_footer_length(trailer)? as u64;
        let start = end.checked_sub(size).ok_or_else(|| damaged("its footer is longer than the file"))?;
        file.seek(SeekFrom::Start(start))?;
        let bytes = read_bytes(file, size)?;
        let footer = arrow_ipc::root_as_footer(&bytes).map_err(|e| damaged(e.to_string()))?;
        let schema = footer.schema().ok_or_else(|| damaged("its footer has no schema"))?;
        if !schema.endianness().equals_to_target_endianness() {
            return Err(damaged("it was written in the byte order of another machine"));
        }
        let batches: Vec<Block> = footer.recordBatches().into_iter().flatten().copied().collect();
        let dictionaries: Vec<Block> = footer.dictionaries().into_iter().flatten().copied().collect();
        if !batches.iter().chain(&dictionaries).all(|block| is_inside(block, start)) {
            return Err(damaged("a block lies outside the file"));
        }
        Ok(Self { schema: Arc::new(fb_to_schema(schema)), version: footer.version(), batches, dictionaries })
    }

    /// The number of rows of each batch, read from headers only.
    fn rows(&self, file: &mut File) -> Result<Vec<u64>, ArrowError> {
        let mut rows = Vec::with_capacity(self.batches.len());
        for block in &self.batches {
            file.seek(SeekFrom::Start(block.offset().unsigned_abs()))?;
            let header = read_bytes(file, u64::from(block.metaDataLength().unsigned_abs()))?;
            let message = message(&header)?;
            let batch = message.header_as_record_batch().ok_or_else(|| damaged("a block holds no record batch"))?;
            rows.push(u64::try_from(batch.length()).map_err(|_| damaged("a batch has a negative number of rows"))?);
        }
        Ok(rows)
    }
}

fn is_inside(block: &Block, end: u64) -> bool {
    let parts =
        (u64::try_from(block.offset()), u64::try_from(block.metaDataLength()), u64::try_from(block.bodyLength()));
    let (Ok(offset), Ok(header), Ok(body)) = parts else { return false };
    let past = offset.checked_add(header).and_then(|at| at.checked_add(body));
    (8..=HEADER_BYTES_MAX).contains(&header) && past.is_some_and(|past| past <= end)
}

/// Reads a header and its body from a block that is inside the file.
fn read_block(
    file: &mut BufReader<CountingReader<File>>,
    block: &Block,
    schema: &Schema,
) -> Result<Buffer, ArrowError> {
    let header = u64::from(block.metaDataLength().unsigned_abs());
    file.seek(SeekFrom::Start(block.offset().unsigned_abs()))?;
    let bytes = read_bytes(file, header + block.bodyLength().unsigned_abs())?;
    let (header, body) = bytes.split_at(header as usize);
    let message = message(header)?;
    check_batch(&message, schema, body.len())?;
    check_unpacked(&message, body)?;
    Ok(Buffer::from_vec(bytes))
}

/// Reads exactly `count` bytes. Memory grows with the bytes read, so a wrong count allocates nothing.
fn read_bytes(input: &mut (impl Read + ?Sized), count: u64) -> Result<Vec<u8>, ArrowError> {
    let mut bytes = Vec::new();
    match input.take(count).read_to_end(&mut bytes)? as u64 == count {
        true => Ok(bytes),
        false => Err(ArrowError::from(io::Error::from(io::ErrorKind::UnexpectedEof))),
    }
}

/// Parses the message of a header, which begins with its length and, since release 0.15, a marker before that.
fn message(header: &[u8]) -> Result<Message<'_>, ArrowError> {
    let prefix = if header.starts_with(&[0xff; 4]) { 8 } else { 4 };
    let message = header.get(prefix..).ok_or_else(|| damaged("a header is cut short"))?;
    arrow_ipc::root_as_message(message).map_err(|e| damaged(e.to_string()))
}

/// Refuses a batch whose columns unpack to more than the limit, whether it is damaged or really that large.
fn check_unpacked(message: &Message<'_>, body: &[u8]) -> Result<(), ArrowError> {
    let batch = message.header_as_record_batch();
    let batch = batch.or_else(|| message.header_as_dictionary_batch().and_then(|batch| batch.data()));
    let Some(batch) = batch.filter(|batch| batch.compression().is_some()) else { return Ok(()) };
    let unpacked = unpacked_bytes(&batch, body).ok_or_else(|| damaged("a buffer lies outside its batch"))?;
    match unpacked <= UNPACKED_BYTES_MAX {
        true => Ok(()),
        false => Err(damaged(format!(
            "the compressed columns of a batch say that they unpack to {unpacked} bytes, more than {UNPACKED_BYTES_MAX}; if they \
             do, write smaller batches"
        ))),
    }
}

/// The unpacked size of the buffers; `None` if one is outside the body or has a negative length.
fn unpacked_bytes(batch: &StoredBatch<'_>, body: &[u8]) -> Option<u64> {
    let mut total = 0u64;
    for buffer in batch.buffers().into_iter().flatten() {
        let (start, length) = (usize::try_from(buffer.offset()).ok()?, usize::try_from(buffer.length()).ok()?);
        let bytes = body.get(start..start.checked_add(length)?)?;
        // An empty buffer has no prefix. Arrow's decoder refuses a shorter one that is not empty.
        let Some(prefix) = bytes.first_chunk::<LENGTH_BYTES>() else { continue };
        let unpacked = match i64::from_le_bytes(*prefix) {
            NOT_COMPRESSED => 0,
            length => u64::try_from(length).ok()?,
        };
        // Lengths of a damaged input may add up to more than a u64; the sum is then above every limit.
        total = total.saturating_add(unpacked);
    }
    Some(total)
}

/// An Arrow IPC stream, read message by message.
///
/// Iterates over its batches. A stream that is damaged or contradicts its schema yields an error, after which it must
/// be dropped.
pub struct IpcStream {
    input: Box<dyn Read + Send>,
    decoder: StreamDecoder,
    schema: SchemaRef,
    /// Bytes that are read but not decoded: the decoder handles a message without a body when it sees the next one.
    rest: Buffer,
    ended: bool,
    /// The first batch, which was decoded together with the schema.
    first: Option<RecordBatch>,
}

/// The end-of-stream marker.
const END: [u8; 8] = [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];

impl IpcStream {
    /// Reads the schema, and the first batch if there is one.
    ///
    /// # Errors
    /// `input` fails, or its bytes are invalid.
    pub fn open(input: Box<dyn Read + Send>) -> Result<Self, ArrowError> {
        contained(|| Self::start(input)).unwrap_or_else(|reason| Err(damaged(reason)))
    }

    /// The schema of every batch.
    #[must_use]
    pub fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn start(input: Box<dyn Read + Send>) -> Result<Self, ArrowError> {
        let (decoder, schema, rest) = (StreamDecoder::new(), Arc::new(Schema::empty()), Buffer::default());
        let mut stream = Self { input, decoder, schema, rest, ended: false, first: None };
        stream.first = stream.decode()?;
        stream.schema = stream.decoder.schema().ok_or_else(|| damaged("it ends before its schema"))?;
        Ok(stream)
    }

    /// The next batch, or `None` at the end.
    fn decode(&mut self) -> Result<Option<RecordBatch>, ArrowError> {
        loop {
            if let Some(batch) = self.decoder.decode(&mut self.rest)? {
                return Ok(Some(batch));
            }
            if self.ended {
                return Ok(None);
            }
            let message = self.next_message()?;
            self.ended = message.is_none();
            // The end marker lets the decoder process a last message without a body.
            self.rest = Buffer::from_vec(message.unwrap_or_else(|| END.to_vec()));
        }
    }

    /// The bytes of a message with its prefix and body; `None` at the end of the stream. The end marker is optional.
    fn next_message(&mut self) -> Result<Option<Vec<u8>>, ArrowError> {
        let mut bytes = Vec::new();
        (&mut self.input).take(4).read_to_end(&mut bytes)?;
        if bytes.is_empty() {
            return Ok(None);
        }
        if bytes == [0xff; 4] {
            (&mut self.input).take(4).read_to_end(&mut bytes)?;
        }
        let size = bytes.last_chunk::<4>().map(|size| u32::from_le_bytes(*size));
        // Refuses a length of less than four bytes, and a marker without a length behind it.
        let Some(size) = size.filter(|_| bytes.len() % 4 == 0 && bytes != [0xff; 4]) else {
            return Err(damaged("it ends in the length of a message"));
        };
        if size == 0 {
            return Ok(None);
        }
        if u64::from(size) > HEADER_BYTES_MAX {
            return Err(damaged(format!("a header of {size} bytes")));
        }
        bytes.append(&mut read_bytes(&mut self.input, u64::from(size))?);
        let message = message(&bytes)?;
        let length = u64::try_from(message.bodyLength()).map_err(|_| damaged("a body of negative length"))?;
        let mut body = read_bytes(&mut self.input, length)?;
        // The decoder has not processed the schema message when the first batch is read.
        if let Some(schema) = message.header_as_schema() {
            self.schema = Arc::new(fb_to_schema(schema));
        }
        check_batch(&message, &self.schema, body.len())?;
        check_unpacked(&message, &body)?;
        bytes.append(&mut body);
        Ok(Some(bytes))
    }
}

impl Iterator for IpcStream {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.first.take() {
            Some(batch) => Some(Ok(batch)),
            None => contained(|| self.decode()).unwrap_or_else(|reason| Err(damaged(reason))).transpose(),
        }
    }
}

pub(crate) struct IpcReader {
    batches: Batches,
    shape: Shape,
    rows_total: Option<u64>,
    rows_seen: u64,
    skip_left: u64,
    batch_rows: usize,
    /// A stored batch larger than `batch_rows`, which is returned in parts.
    pending: Option<RecordBatch>,
}

impl IpcReader {
    pub(crate) fn open(input: Input, options: &ReadOptions) -> Result<Self> {
        if input.head.starts_with(b"ARROW1") {
            Self::open_file(input, options)
        } else {
            Self::open_stream(input, options)
        }
    }

    fn open_file(input: Input, options: &ReadOptions) -> Result<Self> {
        let (name, progress) = (input.name.clone(), input.progress.clone());
        let failed = |e| IoError::decoding(&name, Format::Arrow, e);
        let mut file = input.into_file(options.spool_bytes_max)?;
        let footer = Footer::read(&mut file).map_err(failed)?;
        let rows = footer.rows(&mut file).map_err(failed)?;
        let asked = ColumnOptions::new(options);
        let chosen = asked.chosen(&name, &column_names(&footer.schema, &name)?)?;
        let shape = Shape::new(&name, Format::Arrow, &footer.schema, &chosen, &asked)?;
        let file = BufReader::new(CountingReader::new(file, progress));
        let mut reader = IpcFile::open(file, &footer, &chosen).map_err(failed)?;
        let (mut first, mut skip_left, mut rows_seen) = (0, options.skip_rows, 0);
        // Skip whole batches before the start without reading them.
        while first < rows.len() && rows[first] <= skip_left {
            skip_left -= rows[first];
            rows_seen += rows[first];
            first += 1;
        }
        reader.next = first;
        Ok(Self {
            batches: Batches::File(Box::new(reader)),
            shape,
            rows_total: Some(rows.iter().sum()),
            rows_seen,
            skip_left,
            batch_rows: options.batch_rows,
            pending: None,
        })
    }

    fn open_stream(input: Input, options: &ReadOptions) -> Result<Self> {
        let name = input.name.clone();
        let failed = |e| IoError::decoding(&name, Format::Arrow, e);
        let reader = IpcStream::open(input.into_stream()?).map_err(failed)?;
        let stored = reader.schema.clone();
        let asked = ColumnOptions::new(options);
        let chosen = asked.chosen(&name, &column_names(&stored, &name)?)?;
        let mut shape = Shape::new(&name, Format::Arrow, &stored, &chosen, &asked)?;
        // Streams are decoded with all columns, so the positions are those of the stored columns.
        shape.places = chosen;
        Ok(Self {
            batches: Batches::Stream(Box::new(reader)),
            shape,
            rows_total: None,
            rows_seen: 0,
            skip_left: options.skip_rows,
            batch_rows: options.batch_rows,
            pending: None,
        })
    }

    pub(crate) fn rows_total(&self) -> Option<u64> {
        self.rows_total
    }
}

impl BatchSource for IpcReader {
    fn schema(&self) -> SchemaRef {
        self.shape.schema.clone()
    }

    fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if let Some(batch) = self.pending.take() {
                let rows = batch.num_rows().min(self.batch_rows);
                if rows < batch.num_rows() {
                    self.pending = Some(batch.slice(rows, batch.num_rows() - rows));
                }
                let shaped = self.shape.apply(&batch.slice(0, rows), self.rows_seen)?;
                self.rows_seen += rows as u64;
                return Ok(Some(shaped));
            }
            let next = match &mut self.batches {
                Batches::File(reader) => reader.next(),
                Batches::Stream(reader) => reader.next(),
            };
            let Some(batch) = next else { return Ok(None) };
            let batch = batch.map_err(|e| IoError::decoding(&self.shape.name, Format::Arrow, e))?;
            let skipped = usize::try_from(self.skip_left).unwrap_or(usize::MAX).min(batch.num_rows());
            self.skip_left -= skipped as u64;
            self.rows_seen += skipped as u64;
            if skipped < batch.num_rows() {
                self.pending = Some(batch.slice(skipped, batch.num_rows() - skipped));
            }
        }
    }
}
