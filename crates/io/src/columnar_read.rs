//! Parquet and Arrow IPC to record batches.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_buffer::Buffer;
use arrow_cast::{CastOptions, cast_with_options};
use arrow_ipc::reader::{FileReader, StreamDecoder, read_footer_length};
use arrow_schema::{ArrowError, DataType, Field, Fields, Schema, SchemaRef};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use parquet::errors::Result as ParquetResult;
use parquet::file::reader::{ChunkReader, Length};

use crate::csv_read::check_nulls;
use crate::error::{IoError, Result};
use crate::format::Format;
use crate::options::ReadOptions;
use crate::reader::BatchSource;
use crate::source::{Counted, Input, Progress};
use crate::text;
use crate::types::format_type;

/// Orders and converts the columns of stored batches as the options ask.
struct Shape {
    name: String,
    format: Format,
    schema: SchemaRef,
    /// For each column of the schema its place in the decoded batch.
    places: Vec<usize>,
}

impl Shape {
    /// `places` are columns of `stored`; the decoder returns them in ascending order.
    fn new(name: &str, format: Format, stored: &Schema, chosen: &[usize], options: &ReadOptions) -> Result<Self> {
        let mut sorted = chosen.to_vec();
        sorted.sort_unstable();
        let fields = chosen.iter().map(|&at| {
            let field = stored.field(at);
            let Some(wanted) = options.given_type(field.name()) else { return Ok(stored.fields()[at].clone()) };
            if !arrow_cast::can_cast_types(field.data_type(), &wanted) {
                return Err(convert_error(name, field, &wanted, "there is no conversion"));
            }
            let nullable = field.is_nullable() && options.given_nullable(field.name());
            Ok(Arc::new(Field::new(field.name(), wanted, nullable)))
        });
        let schema = Arc::new(Schema::new(fields.collect::<Result<Fields>>()?));
        // Every chosen column is in the sorted list it was copied to.
        let places = chosen.iter().filter_map(|at| sorted.iter().position(|s| s == at)).collect();
        Ok(Self { name: name.to_owned(), format, schema, places })
    }

    fn apply(&self, batch: &RecordBatch, rows_before: u64) -> Result<RecordBatch> {
        let columns = self.schema.fields().iter().zip(&self.places).map(|(field, &place)| {
            let column = batch.column(place);
            let array = convert(&self.name, column, batch.schema_ref().field(place), field)?;
            check_nulls(&array, field, &self.name, |row| rows_before + row as u64 + 1)?;
            Ok(array)
        });
        let columns = columns.collect::<Result<Vec<ArrayRef>>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)
            .map_err(|e| IoError::decoding(&self.name, self.format, e))
    }
}

/// Converts a column to the type asked for and proves, by converting back, that no value changed.
fn convert(name: &str, column: &ArrayRef, from: &Field, to: &Field) -> Result<ArrayRef> {
    let (source, target) = (column.data_type(), to.data_type());
    if source == target {
        return Ok(column.clone());
    }
    let options = CastOptions { safe: false, ..CastOptions::default() };
    let failed = |e: ArrowError| convert_error(name, from, target, &e.to_string());
    if is_text(source) && text::is_readable(target) {
        let texts = cast_with_options(column, &DataType::Utf8, &options).map_err(failed)?;
        return text::parse_column(texts.as_string::<i32>(), target).map_err(|bad| {
            let reason = format!("the value {:?} does not fit{}", bad.value.unwrap_or_default(), bad.detail);
            convert_error(name, from, target, &reason)
        });
    }
    let converted = cast_with_options(column, target, &options).map_err(failed)?;
    if arrow_cast::can_cast_types(target, source) {
        let back = cast_with_options(&converted, source, &options).map_err(failed)?;
        if back.to_data() != column.to_data() && !same_values(&back, column) {
            return Err(convert_error(name, from, target, "a value would be rounded or cut"));
        }
    }
    Ok(converted)
}

/// Equal row by row; NaN equals NaN, which plain comparison of buffers may deny for other payloads.
fn same_values(a: &ArrayRef, b: &ArrayRef) -> bool {
    let text = |array: &ArrayRef| arrow_cast::cast(array, &DataType::Utf8);
    match (text(a), text(b)) {
        (Ok(a), Ok(b)) => a.to_data() == b.to_data(),
        _ => false,
    }
}

/// Text prints in many ways, so it is not compared but parsed by the rules for text.
fn is_text(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

fn convert_error(name: &str, from: &Field, to: &DataType, reason: &str) -> IoError {
    IoError::Convert {
        name: name.to_owned(),
        column: from.name().clone(),
        from: format_type(from.data_type()).into(),
        to: format_type(to).into(),
        reason: reason.to_owned(),
    }
}

fn column_names(schema: &Schema, name: &str) -> Result<Vec<String>> {
    let names: Vec<String> = schema.fields().iter().map(|f| f.name().clone()).collect();
    for (i, column) in names.iter().enumerate() {
        if names[..i].contains(column) {
            return Err(IoError::DuplicateColumn { name: name.to_owned(), column: column.clone() });
        }
    }
    Ok(names)
}

/// A Parquet file that counts the page bytes taken from it.
struct CountedFile {
    file: File,
    progress: Progress,
}

impl Length for CountedFile {
    fn len(&self) -> u64 {
        self.file.len()
    }
}

impl ChunkReader for CountedFile {
    type T = <File as ChunkReader>::T;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        self.file.get_read(start)
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<bytes::Bytes> {
        self.progress.add(length as u64);
        self.file.get_bytes(start, length)
    }
}

pub(crate) struct ParquetReader {
    batches: ParquetRecordBatchReader,
    shape: Shape,
    rows_total: u64,
    rows_seen: u64,
}

impl ParquetReader {
    pub(crate) fn open(input: Input, options: &ReadOptions) -> Result<Self> {
        let (name, progress) = (input.name.clone(), input.progress.clone());
        let file = CountedFile { file: input.into_file()?, progress };
        let failed = |e| IoError::parquet(&name, e);
        let builder = ParquetRecordBatchReaderBuilder::try_new(file).map_err(failed)?;
        let stored = builder.schema().clone();
        let chosen = options.chosen(&name, &column_names(&stored, &name)?)?;
        let shape = Shape::new(&name, Format::Parquet, &stored, &chosen, options)?;
        let mask = ProjectionMask::roots(builder.parquet_schema(), chosen.iter().copied());
        let rows: Vec<u64> =
            builder.metadata().row_groups().iter().map(|g| u64::try_from(g.num_rows()).unwrap_or(0)).collect();
        // Whole row groups before the start are not opened.
        let (mut first, mut before) = (0, 0);
        while first < rows.len() && before + rows[first] <= options.skip_rows {
            before += rows[first];
            first += 1;
        }
        let offset = usize::try_from(options.skip_rows.saturating_sub(before)).unwrap_or(usize::MAX);
        let batches = builder
            .with_projection(mask)
            .with_batch_size(options.batch_rows)
            .with_row_groups((first..rows.len()).collect())
            .with_offset(if first == rows.len() { 0 } else { offset })
            .build()
            .map_err(failed)?;
        let rows_total = rows.iter().sum();
        Ok(Self { batches, shape, rows_total, rows_seen: options.skip_rows.min(rows_total) })
    }

    pub(crate) fn rows_total(&self) -> u64 {
        self.rows_total
    }
}

impl BatchSource for ParquetReader {
    fn schema(&self) -> SchemaRef {
        self.shape.schema.clone()
    }

    fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        let Some(batch) = self.batches.next() else { return Ok(None) };
        let batch = batch.map_err(|e| IoError::decoding(&self.shape.name, Format::Parquet, e))?;
        let shaped = self.shape.apply(&batch, self.rows_seen)?;
        self.rows_seen += batch.num_rows() as u64;
        Ok(Some(shaped))
    }
}

/// Bytes of a stream taken at once, at most.
const BLOCK_BYTES: usize = 64 << 10;

type IpcFile = io::BufReader<Counted<File>>;

enum IpcBatches {
    File(Box<FileReader<IpcFile>>),
    Stream(Box<IpcStream>),
}

/// An Arrow IPC stream. The lengths in it are believed as far as there are bytes: a damaged one asks for no memory.
struct IpcStream {
    input: Box<dyn Read + Send>,
    decoder: StreamDecoder,
    schema: SchemaRef,
    /// What was read and is not decoded yet.
    rest: Buffer,
    /// The first batch, which was decoded with the schema.
    first: Option<RecordBatch>,
}

impl IpcStream {
    fn open(input: Box<dyn Read + Send>) -> Result<Self, ArrowError> {
        let (decoder, schema, rest) = (StreamDecoder::new(), Arc::new(Schema::empty()), Buffer::default());
        let mut stream = Self { input, decoder, schema, rest, first: None };
        stream.first = stream.decode()?;
        let none = || ArrowError::IpcError("it ends before its schema".to_owned());
        stream.schema = stream.decoder.schema().ok_or_else(none)?;
        Ok(stream)
    }

    fn decode(&mut self) -> Result<Option<RecordBatch>, ArrowError> {
        loop {
            if let Some(batch) = self.decoder.decode(&mut self.rest)? {
                return Ok(Some(batch));
            }
            let block = self.block()?;
            if block.is_empty() {
                self.decoder.finish()?;
                return Ok(None);
            }
            self.rest = Buffer::from_vec(block);
        }
    }

    /// What has come of the stream, a block at most; nothing at its end.
    fn block(&mut self) -> io::Result<Vec<u8>> {
        let mut block = vec![0; BLOCK_BYTES];
        let count = loop {
            match self.input.read(&mut block) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read?,
            }
        };
        block.truncate(count);
        Ok(block)
    }

    fn next(&mut self) -> Option<Result<RecordBatch, ArrowError>> {
        match self.first.take() {
            Some(batch) => Some(Ok(batch)),
            None => self.decode().transpose(),
        }
    }
}

pub(crate) struct IpcReader {
    batches: IpcBatches,
    shape: Shape,
    rows_total: Option<u64>,
    rows_seen: u64,
    skip_left: u64,
    batch_rows: usize,
    /// A stored batch larger than `batch_rows`, returned in parts.
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
        let mut file = input.into_file()?;
        let rows = batch_rows(&mut file).map_err(failed)?;
        let copy = file.try_clone().map_err(|e| IoError::reading(&name, None, e))?;
        let stored = FileReader::try_new(copy, None).map_err(failed)?.schema();
        let chosen = options.chosen(&name, &column_names(&stored, &name)?)?;
        let shape = Shape::new(&name, Format::Arrow, &stored, &chosen, options)?;
        let mut reader =
            FileReader::try_new_buffered(Counted::new(file, progress), Some(sorted(&chosen))).map_err(failed)?;
        let (mut first, mut skip_left, mut rows_seen) = (0, options.skip_rows, 0);
        while first < rows.len() && rows[first] <= skip_left {
            skip_left -= rows[first];
            rows_seen += rows[first];
            first += 1;
        }
        if first > 0 && first < rows.len() {
            reader.set_index(first).map_err(failed)?;
        }
        let skip_left = if first == rows.len() { u64::MAX } else { skip_left };
        Ok(Self {
            batches: IpcBatches::File(Box::new(reader)),
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
        let chosen = options.chosen(&name, &column_names(&stored, &name)?)?;
        let mut shape = Shape::new(&name, Format::Arrow, &stored, &chosen, options)?;
        // A stream is decoded whole, so the places are those of the stored columns.
        shape.places = chosen;
        Ok(Self {
            batches: IpcBatches::Stream(Box::new(reader)),
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

fn sorted(chosen: &[usize]) -> Vec<usize> {
    let mut sorted = chosen.to_vec();
    sorted.sort_unstable();
    sorted
}

/// The rows of each batch of an IPC file, from the headers of its batches only.
fn batch_rows(file: &mut File) -> Result<Vec<u64>, ArrowError> {
    let parse = |e: &dyn std::fmt::Display| ArrowError::IpcError(e.to_string());
    let mut trailer = [0; 10];
    file.seek(SeekFrom::End(-10))?;
    file.read_exact(&mut trailer)?;
    let size = read_footer_length(trailer)?;
    let back = i64::try_from(size).map_err(|e| parse(&e))? + 10;
    file.seek(SeekFrom::End(-back))?;
    let mut footer = vec![0; size];
    file.read_exact(&mut footer)?;
    let footer = arrow_ipc::root_as_footer(&footer).map_err(|e| parse(&e))?;
    let mut rows = Vec::new();
    for block in footer.recordBatches().into_iter().flatten() {
        let start = u64::try_from(block.offset()).map_err(|e| parse(&e))?;
        let length = u64::try_from(block.metaDataLength()).map_err(|e| parse(&e))?;
        file.seek(SeekFrom::Start(start))?;
        let mut header = Vec::new();
        (&mut *file).take(length).read_to_end(&mut header)?;
        // The length prefix has a marker before it since release 0.15.
        let prefix = if header.starts_with(&[0xff; 4]) { 8 } else { 4 };
        let message = header.get(prefix..).ok_or_else(|| parse(&"a batch header is cut short"))?;
        let message = arrow_ipc::root_as_message(message).map_err(|e| parse(&e))?;
        let batch = message.header_as_record_batch().ok_or_else(|| parse(&"a block holds no record batch"))?;
        rows.push(u64::try_from(batch.length()).map_err(|e| parse(&e))?);
    }
    file.rewind()?;
    Ok(rows)
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
                IpcBatches::File(reader) => reader.next(),
                IpcBatches::Stream(reader) => reader.next(),
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
