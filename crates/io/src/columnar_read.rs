//! Reads Parquet files as record batches; selects and converts the columns of stored batches.

use std::fs::File;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_cast::display::array_value_to_string;
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{ArrowError, DataType, Field, Fields, Schema, SchemaRef};
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::reader::{ChunkReader, Length};

use crate::csv_read::check_nulls;
use crate::error::{IoError, Result};
use crate::format::Format;
use crate::options::{ColumnOptions, ReadOptions, refuse_duplicates};
use crate::source::{BatchSource, Input, Progress};
use crate::text;
use crate::types::format_type;

/// Selects, orders and converts the columns of stored batches according to the options.
pub(crate) struct Shape {
    pub(crate) name: String,
    format: Format,
    pub(crate) schema: SchemaRef,
    /// For each column of the schema, its position in the decoded batch.
    pub(crate) places: Vec<usize>,
}

impl Shape {
    /// `places` are columns of `stored`; the decoder returns them in ascending order.
    pub(crate) fn new(
        name: &str,
        format: Format,
        stored: &Schema,
        chosen: &[usize],
        asked: &ColumnOptions<'_>,
    ) -> Result<Self> {
        let mut sorted = chosen.to_vec();
        sorted.sort_unstable();
        let fields = chosen.iter().map(|&at| {
            let field = stored.field(at);
            let Some(wanted) = asked.data_type(field.name()) else { return Ok(stored.fields()[at].clone()) };
            if !arrow_cast::can_cast_types(field.data_type(), wanted) {
                return Err(convert_error(name, field, wanted, "there is no conversion"));
            }
            let nullable = field.is_nullable() && asked.nullable(field.name());
            Ok(Arc::new(Field::new(field.name(), wanted.clone(), nullable)))
        });
        let schema = Arc::new(Schema::new(fields.collect::<Result<Fields>>()?));
        // Never drops a column: `sorted` is a sorted copy of `chosen`.
        let places = chosen.iter().filter_map(|at| sorted.binary_search(at).ok()).collect();
        Ok(Self { name: name.to_owned(), format, schema, places })
    }

    pub(crate) fn apply(&self, batch: &RecordBatch, rows_before: u64) -> Result<RecordBatch> {
        let columns = self.schema.fields().iter().zip(&self.places).map(|(field, &place)| {
            let column = batch.column(place);
            let array = convert(&self.name, column, batch.schema_ref().field(place), field, rows_before)?;
            check_nulls(&array, field, &self.name, |row| rows_before + row as u64 + 1)?;
            Ok(array)
        });
        let columns = columns.collect::<Result<Vec<ArrayRef>>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)
            .map_err(|e| IoError::decoding(&self.name, self.format, e))
    }
}

/// Converts a column to the requested type. An error names the first value that would change.
fn convert(name: &str, column: &ArrayRef, from: &Field, to: &Field, rows_before: u64) -> Result<ArrayRef> {
    let target = to.data_type();
    if column.data_type() == target {
        return Ok(column.clone());
    }
    exactly(column, target).map_err(|_| {
        // Find the first failing value by bisection: a prefix converts only if each of its values does.
        let (mut fitting, mut failing) = (0, column.len());
        while fitting + 1 < failing {
            let middle = usize::midpoint(fitting, failing);
            *(if exactly(&column.slice(0, middle), target).is_ok() { &mut fitting } else { &mut failing }) = middle;
        }
        let reason = exactly(&column.slice(fitting, 1), target).err().unwrap_or_default();
        let value: String = array_value_to_string(column, fitting).unwrap_or_default().chars().take(80).collect();
        let row = rows_before + fitting as u64 + 1;
        let reason = format!(
            "row {row} holds {value}, which {reason}; correct the value, or give the column a type that holds all values \
             (--types {}={})",
            from.name(),
            format_type(from.data_type())
        );
        convert_error(name, from, target, &reason)
    })
}

/// Converts a column to another type, and back to prove that no value changed; otherwise returns the reason.
fn exactly(column: &ArrayRef, target: &DataType) -> std::result::Result<ArrayRef, String> {
    let options = CastOptions { safe: false, ..CastOptions::default() };
    let failed = |_: ArrowError| "does not fit".to_owned();
    let column = &in_utc(column, target).map_err(failed)?;
    let source = column.data_type();
    if is_text(source) && text::is_readable(target) {
        let texts = cast_with_options(column, &DataType::Utf8, &options).map_err(failed)?;
        return text::parse_column(texts.as_string::<i32>(), target)
            .map_err(|bad| format!("does not fit{}", bad.detail));
    }
    let converted = cast_with_options(column, target, &options).map_err(failed)?;
    if arrow_cast::can_cast_types(target, source) {
        let back = cast_with_options(&converted, source, &options).map_err(failed)?;
        if back.to_data() != column.to_data() && !same_values(&back, column) {
            return Err("would be rounded or cut".to_owned());
        }
    }
    Ok(converted)
}

/// Times with a zone as UTC if the target type has no zone: a cast would take local times of their zone.
fn in_utc(column: &ArrayRef, target: &DataType) -> std::result::Result<ArrayRef, ArrowError> {
    match (column.data_type(), target) {
        (DataType::Timestamp(unit, Some(_)), DataType::Timestamp(_, None)) => {
            arrow_cast::cast(column, &DataType::Timestamp(*unit, None))
        }
        _ => Ok(column.clone()),
    }
}

/// Compares row by row as text, so that NaN equals NaN whatever its payload.
fn same_values(a: &ArrayRef, b: &ArrayRef) -> bool {
    let text = |array: &ArrayRef| arrow_cast::cast(array, &DataType::Utf8);
    match (text(a), text(b)) {
        (Ok(a), Ok(b)) => a.to_data() == b.to_data(),
        _ => false,
    }
}

/// Text has several forms for one value, so it is parsed by the rules for text instead of compared.
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

pub(crate) fn column_names(schema: &Schema, name: &str) -> Result<Vec<String>> {
    let names: Vec<String> = schema.fields().iter().map(|f| f.name().clone()).collect();
    refuse_duplicates(name, &names)?;
    Ok(names)
}

/// A Parquet file that counts the page bytes read from it.
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
        // The length comes from the file and may be damaged; allocate only for bytes that exist.
        if start.checked_add(length as u64).is_none_or(|end| end > self.file.len()) {
            return Err(ParquetError::EOF(format!("{length} bytes at {start} reach past the end of the file")));
        }
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
        let file = CountedFile { file: input.into_file(options.spool_bytes_max)?, progress };
        let failed = |e| IoError::parquet(&name, e);
        let builder = ParquetRecordBatchReaderBuilder::try_new(file).map_err(failed)?;
        let stored = builder.schema().clone();
        let asked = ColumnOptions::new(options);
        let chosen = asked.chosen(&name, &column_names(&stored, &name)?)?;
        let shape = Shape::new(&name, Format::Parquet, &stored, &chosen, &asked)?;
        let mask = ProjectionMask::roots(builder.parquet_schema(), chosen.iter().copied());
        let rows: Vec<u64> =
            builder.metadata().row_groups().iter().map(|g| u64::try_from(g.num_rows()).unwrap_or(0)).collect();
        // Skip whole row groups before the start without decoding them.
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
