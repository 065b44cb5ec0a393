//! Writes a stream of record batches in any format.

use std::fmt;
use std::io::Write;
use std::sync::Arc;

use arrow_array::{RecordBatch, new_empty_array};
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use arrow_json::EncoderOptions;
use arrow_json::writer::{LineDelimited, WriterBuilder, make_encoder};
use arrow_schema::{ArrowError, DataType, Field, Fields, Schema, SchemaRef};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;

use crate::csv_write::CsvStyle;
use crate::error::{IoError, Result};
use crate::format::OutFormat;
use crate::options::WriteOptions;
use crate::sink::{CompressedSink, Failure, Out, Sink, wrapping_of};
use crate::table::Table;
use crate::types::format_type;

/// Default encoded size at which a Parquet row group ends, which bounds the memory of the writer.
const ROW_GROUP_BYTES_MAX: usize = 128 << 20;

enum Body {
    Csv(CompressedSink, CsvStyle),
    Ndjson(CompressedSink),
    /// The writer, and the encoded size at which a row group ends.
    Parquet(Box<ArrowWriter<CompressedSink>>, usize),
    ArrowFile(Box<FileWriter<CompressedSink>>),
    ArrowStream(Box<StreamWriter<CompressedSink>>),
    Table(CompressedSink, Table),
}

/// Writes record batches to one output.
///
/// A file appears at its path only when [`finish`](Self::finish) returns success. A writer that fails or is dropped
/// before that leaves no file.
pub struct Writer {
    body: Body,
    name: String,
    format: OutFormat,
    schema: SchemaRef,
    failure: Failure,
    rows: u64,
    /// Set by the first error: the output is incomplete.
    broken: bool,
}

/// Opens an output for batches of `schema`.
///
/// Parquet and Arrow IPC files are compressed with zstd, Arrow IPC streams are not compressed. A path that ends in
/// `.gz` or `.zst` is compressed as a whole. Arrow IPC files get the values of dictionary columns; text gets times of
/// named zones in UTC.
///
/// # Errors
/// [`IoError::Exists`] unless `overwrite` is set, [`IoError::NoFolder`], [`IoError::Denied`], [`IoError::IsFolder`],
/// [`IoError::UnsupportedType`] for a column that the format cannot store, [`IoError::BadSetting`].
pub fn writer(sink: Sink, format: OutFormat, schema: SchemaRef, options: &WriteOptions) -> Result<Writer> {
    // Invalid options and types are refused before the sink is opened, so that they leave no file.
    let style = csv_style(format, options)?;
    let schema = written_schema(&schema, format);
    if format == OutFormat::Ndjson {
        check_json(&schema)?;
    }
    let name = sink.name();
    let wrapping = wrapping_of(&sink);
    let out = Out::open(sink, options.overwrite)?;
    let failure = out.failure();
    let out = CompressedSink::new(out, wrapping).map_err(|source| IoError::Write { name: name.clone(), source })?;
    let failed = |e: ArrowError| failure.take(&name).unwrap_or(IoError::Encode { name: name.clone(), source: e });
    let body = match format {
        OutFormat::Csv | OutFormat::Tsv => {
            let mut out = out;
            if !options.no_header {
                let mut line = Vec::new();
                style.header(&schema, &mut line);
                out.write_all(&line).map_err(|e| failed(e.into()))?;
            }
            Body::Csv(out, style)
        }
        OutFormat::Ndjson => Body::Ndjson(out),
        OutFormat::Table => Body::Table(out, Table::new(&schema, options.table.clone())),
        OutFormat::Parquet => {
            let writer = ArrowWriter::try_new(out, schema.clone(), Some(parquet_properties()));
            let group_bytes = options.row_group_bytes.unwrap_or(ROW_GROUP_BYTES_MAX);
            Body::Parquet(Box::new(writer.map_err(|e| failed(parquet_error(e)))?), group_bytes)
        }
        OutFormat::Arrow => {
            let compressed =
                IpcWriteOptions::default().try_with_compression(Some(CompressionType::ZSTD)).map_err(failed)?;
            Body::ArrowFile(Box::new(FileWriter::try_new_with_options(out, &schema, compressed).map_err(failed)?))
        }
        OutFormat::ArrowStream => Body::ArrowStream(Box::new(StreamWriter::try_new(out, &schema).map_err(failed)?)),
    };
    Ok(Writer { body, name, format, schema, failure, rows: 0, broken: false })
}

fn csv_style(format: OutFormat, options: &WriteOptions) -> Result<CsvStyle> {
    let delimiter = options.delimiter.unwrap_or(if format == OutFormat::Tsv { b'\t' } else { b',' });
    if !delimiter.is_ascii() || matches!(delimiter, b'"' | b'\n' | b'\r') {
        return Err(IoError::BadSetting {
            setting: "delimiter",
            value: format!("{:?}", delimiter as char),
            reason: "it is one ASCII character, no quote and no line end",
        });
    }
    Ok(CsvStyle { delimiter, null: options.null.clone() })
}

fn parquet_properties() -> WriterProperties {
    WriterProperties::builder()
        .set_compression(Compression::ZSTD(ZstdLevel::default()))
        .set_created_by(concat!("chronotile ", env!("CARGO_PKG_VERSION")).to_owned())
        .build()
}

fn parquet_error(error: ParquetError) -> ArrowError {
    ArrowError::from(error)
}

/// Refuses types that JSON has no encoder for, before anything is written.
fn check_json(schema: &Schema) -> Result<()> {
    let options = EncoderOptions::default();
    for field in schema.fields() {
        let empty = new_empty_array(field.data_type());
        if make_encoder(field, &empty, &options).is_err() {
            return Err(IoError::UnsupportedType {
                column: field.name().clone(),
                data_type: format_type(field.data_type()),
                format: OutFormat::Ndjson.to_string(),
            });
        }
    }
    Ok(())
}

/// The schema as the format stores it. An IPC file has one dictionary per column, but batches may have different ones,
/// so dictionary columns are written as values. Text has offsets in minutes, but named zones had other offsets in the
/// past, so their times are written in UTC.
fn written_schema(schema: &Schema, format: OutFormat) -> SchemaRef {
    let fields: Fields = schema.fields().iter().map(|field| written_field(field, format)).collect();
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

fn written_field(field: &Field, format: OutFormat) -> Arc<Field> {
    Arc::new(field.clone().with_data_type(written_type(field.data_type(), format)))
}

fn written_type(data_type: &DataType, format: OutFormat) -> DataType {
    use DataType as T;
    let is_text = matches!(format, OutFormat::Csv | OutFormat::Tsv | OutFormat::Ndjson);
    let item = |field: &Arc<Field>| written_field(field, format);
    match data_type {
        T::Dictionary(_, values) if format == OutFormat::Arrow => written_type(values, format),
        T::Timestamp(unit, Some(zone)) if is_text && !zone.starts_with(['+', '-']) => {
            T::Timestamp(*unit, Some("UTC".into()))
        }
        T::List(field) => T::List(item(field)),
        T::LargeList(field) => T::LargeList(item(field)),
        T::FixedSizeList(field, size) => T::FixedSizeList(item(field), *size),
        T::Struct(fields) => T::Struct(fields.iter().map(item).collect()),
        other => other.clone(),
    }
}

impl Writer {
    /// Writes a batch whose columns have the names and types of the output's schema.
    ///
    /// # Errors
    /// [`IoError::SchemaChanged`]; [`IoError::Write`] or [`IoError::Encode`], after which the output cannot be
    /// completed;
    /// [`IoError::BrokenPipe`] if the reader of the output has closed it, which programs treat as a normal end.
    pub fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let batch = self.fit(batch)?;
        let written = self.encode(&batch);
        self.rows += batch.num_rows() as u64;
        written.map_err(|error| {
            self.broken = true;
            self.error(error)
        })
    }

    /// Completes the output and renames it to its path; returns the number of rows written.
    ///
    /// # Errors
    /// As [`write`](Self::write), and [`IoError::Exists`] if another program has created the file in the meantime.
    pub fn finish(self) -> Result<u64> {
        if self.broken {
            let source = ArrowError::InvalidArgumentError("an earlier batch failed".to_owned());
            return Err(IoError::Encode { name: self.name, source });
        }
        let Self { body, name, failure, rows, .. } = self;
        let out = finish_body(body).and_then(|wrapped| wrapped.finish().map_err(ArrowError::from));
        let out = out
            .map_err(|source| failure.take(&name).unwrap_or_else(|| IoError::Encode { name: name.clone(), source }))?;
        out.finish(&name)?;
        Ok(rows)
    }

    /// Number of rows written so far.
    #[must_use]
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Bytes of memory of rows that were written but not output yet: those of an unfinished row group.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        match &self.body {
            Body::Parquet(writer, _) => writer.memory_size(),
            _ => 0,
        }
    }

    fn error(&self, source: ArrowError) -> IoError {
        self.failure.take(&self.name).unwrap_or_else(|| IoError::Encode { name: self.name.clone(), source })
    }

    fn fit(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let columns = |schema: &Schema| -> Vec<(String, DataType)> {
            schema.fields().iter().map(|f| (f.name().clone(), written_type(f.data_type(), self.format))).collect()
        };
        if columns(batch.schema_ref()) != columns(&self.schema) {
            let list = |schema: &Schema| {
                let fields = schema.fields().iter().map(|f| format!("{} {}", f.name(), format_type(f.data_type())));
                fields.collect::<Vec<_>>().join(", ")
            };
            return Err(IoError::SchemaChanged { found: list(batch.schema_ref()), expected: list(&self.schema) });
        }
        let cast = batch.columns().iter().zip(self.schema.fields()).map(|(column, field)| {
            if column.data_type() == field.data_type() {
                return Ok(column.clone());
            }
            arrow_cast::cast(column, field.data_type())
        });
        // A batch without columns has rows, too, which only this option counts.
        let options = arrow_array::RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        cast.collect::<Result<Vec<_>, ArrowError>>()
            .and_then(|columns| RecordBatch::try_new_with_options(self.schema.clone(), columns, &options))
            .map_err(|source| IoError::Encode { name: self.name.clone(), source })
    }

    fn encode(&mut self, batch: &RecordBatch) -> Result<(), ArrowError> {
        match &mut self.body {
            Body::Csv(out, style) => {
                let mut text = Vec::new();
                style.rows(batch, &mut text)?;
                out.write_all(&text)?;
                out.hand_over()?;
            }
            Body::Ndjson(out) => {
                let mut text = Vec::new();
                // Write nulls, so that every line has every column.
                let mut lines = WriterBuilder::new().with_explicit_nulls(true).build::<_, LineDelimited>(&mut text);
                lines.write(batch)?;
                lines.finish()?;
                drop(lines);
                out.write_all(&text)?;
                out.hand_over()?;
            }
            Body::Parquet(writer, group_bytes) => {
                writer.write(batch).map_err(parquet_error)?;
                if writer.in_progress_size() > *group_bytes {
                    writer.flush().map_err(parquet_error)?;
                }
            }
            Body::ArrowFile(writer) => writer.write(batch)?,
            Body::ArrowStream(writer) => writer.write(batch)?,
            Body::Table(_, table) => table.add(batch)?,
        }
        Ok(())
    }
}

fn finish_body(body: Body) -> Result<CompressedSink, ArrowError> {
    match body {
        Body::Csv(out, _) | Body::Ndjson(out) => Ok(out),
        Body::Parquet(writer, _) => writer.into_inner().map_err(parquet_error),
        Body::ArrowFile(writer) => writer.into_inner(),
        Body::ArrowStream(writer) => writer.into_inner(),
        Body::Table(mut out, table) => {
            out.write_all(table.render().as_bytes())?;
            Ok(out)
        }
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Writer({}, {} rows)", self.name, self.rows)
    }
}
