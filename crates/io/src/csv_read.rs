//! Reads CSV and TSV as record batches.

use std::sync::Arc;

use arrow_array::builder::StringBuilder;
use arrow_array::{Array, ArrayRef, RecordBatch, RecordBatchOptions, StringArray};
use arrow_schema::{DataType, Field, Fields, Schema, SchemaRef};

use crate::csv_tokens::{Dialect, RawRecords, Tokens};
use crate::error::{IoError, Result};
use crate::format::Format;
use crate::infer::Kind;
use crate::options::{ColumnOptions, ReadOptions, refuse_duplicates};
use crate::source::{BatchSource, Input, PIECE_BYTES_MAX};
use crate::text::{self, BadValue};
use crate::types::format_type;

pub(crate) struct CsvReader {
    tokens: Tokens,
    name: String,
    nulls: Vec<String>,
    /// Number of fields of every record.
    width: usize,
    schema: SchemaRef,
    /// For each column of the schema, its position in the file.
    places: Vec<usize>,
    given: Vec<bool>,
    hints: Vec<(String, String)>,
    batch_rows: usize,
    skip_left: u64,
    /// The sample, which is returned before anything else is read.
    sample: RawRecords,
    sample_at: usize,
}

impl CsvReader {
    pub(crate) fn open(input: Input, options: &ReadOptions) -> Result<Self> {
        let format = input.format;
        let tab = format == Format::Tsv;
        let dialect = Dialect {
            delimiter: options.csv.delimiter.unwrap_or(if tab { b'\t' } else { b',' }),
            quote: options.csv.quote,
            comment: options.csv.comment,
        };
        let (name, layer) = (input.name.clone(), input.wrapping.label());
        let mut tokens = Tokens::new(input.into_stream()?, dialect, name.clone(), layer)?;
        let (names, first) = column_names(&mut tokens, &name, format, options)?;
        let asked = ColumnOptions::new(options);
        let chosen = asked.chosen(&name, &names)?;
        let given: Vec<bool> = chosen.iter().map(|&i| asked.data_type(&names[i]).is_some()).collect();
        let mut reader = Self {
            tokens,
            name,
            nulls: options.csv.nulls.clone(),
            width: names.len(),
            schema: Arc::new(Schema::empty()),
            places: chosen,
            given,
            hints: options.hints.clone(),
            batch_rows: options.batch_rows,
            skip_left: options.skip_rows,
            sample: first,
            sample_at: 0,
        };
        // Without a type to infer, no sample is read into memory.
        if reader.given.iter().any(|given| !given) {
            let first = std::mem::take(&mut reader.sample);
            reader.sample = reader.fill(first, options.sample_rows)?;
        }
        let fields = reader.places.iter().map(|&place| reader.field(place, &names[place], format, &asked));
        reader.schema = Arc::new(Schema::new(fields.collect::<Result<Fields>>()?));
        Ok(reader)
    }

    fn field(&self, place: usize, name: &str, format: Format, asked: &ColumnOptions<'_>) -> Result<Field> {
        let data_type = match asked.data_type(name) {
            Some(given) if text::is_readable(given) => given.clone(),
            Some(given) => {
                return Err(IoError::UnsupportedType {
                    column: name.to_owned(),
                    data_type: format_type(given),
                    format: format.to_string(),
                });
            }
            None => self.infer(place)?,
        };
        Ok(Field::new(name, data_type, asked.nullable(name)))
    }

    fn infer(&self, place: usize) -> Result<DataType> {
        let mut kind = Kind::Null;
        for row in 0..self.sample.len() {
            let (bytes, quoted) = self.sample.field(row, place);
            let text = self.utf8(bytes, self.sample.line(row))?;
            if !self.is_null(text.trim(), quoted, false) {
                kind = kind.merge(Kind::of_field(text));
            }
            // Text includes every other class of a field, so the remaining rows change nothing.
            if kind == Kind::Text {
                break;
            }
        }
        // The classes of CSV fields can always be merged, because all are plain values.
        Ok(kind.data_type().unwrap_or(DataType::Utf8))
    }

    fn utf8<'a>(&self, bytes: &'a [u8], line: u64) -> Result<&'a str> {
        std::str::from_utf8(bytes).map_err(|_| IoError::NotUtf8 { name: self.name.clone(), line })
    }

    /// An unquoted field is null if it is empty or a null word. A quoted one is never null if quotes mark values of its
    /// type.
    fn is_null(&self, text: &str, quoted: bool, quotes_keep: bool) -> bool {
        !(quoted && quotes_keep) && (text.is_empty() || self.nulls.iter().any(|null| null == text))
    }

    /// Reads records into `rows` up to `rows_max` rows, the limit of text, or the end of the input.
    fn fill(&mut self, mut rows: RawRecords, rows_max: usize) -> Result<RawRecords> {
        while rows.len() < rows_max && rows.held_bytes() < PIECE_BYTES_MAX {
            // In a file with one column, a blank line is a null.
            match self.tokens.next_record(&mut rows, self.width == 1)? {
                None => break,
                Some(found) if found == self.width => {}
                Some(found) => {
                    let line = rows.line(rows.len() - 1);
                    return Err(IoError::FieldCount { name: self.name.clone(), line, found, expected: self.width });
                }
            }
        }
        Ok(rows)
    }

    fn convert(&self, rows: &RawRecords, from: usize, to: usize) -> Result<RecordBatch> {
        let columns = self.schema.fields().iter().enumerate().map(|(at, field)| {
            let texts = self.texts(rows, from, to, self.places[at], field.data_type())?;
            let array = text::parse_column(&texts, field.data_type())
                .map_err(|bad| self.bad_value(bad, field, at, |index| rows.line(from + index)))?;
            check_nulls(&array, field, &self.name, |index| rows.line(from + index))?;
            Ok(array)
        });
        let columns = columns.collect::<Result<Vec<ArrayRef>>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(to - from));
        RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)
            .map_err(|e| IoError::decoding(&self.name, Format::Csv, e))
    }

    fn texts(&self, rows: &RawRecords, from: usize, to: usize, place: usize, target: &DataType) -> Result<StringArray> {
        let (keeps_spaces, quotes_keep) = (text::keeps_spaces(target), text::quotes_keep(target));
        let mut builder = StringBuilder::with_capacity(to - from, (to - from) * 8);
        for row in from..to {
            let (bytes, quoted) = rows.field(row, place);
            let text = self.utf8(bytes, rows.line(row))?;
            let text = if keeps_spaces { text } else { text.trim() };
            match self.is_null(text, quoted, quotes_keep) {
                true => builder.append_null(),
                false => builder.append_value(text),
            }
        }
        Ok(builder.finish())
    }

    fn bad_value(&self, bad: BadValue, field: &Field, at: usize, line: impl Fn(usize) -> u64) -> IoError {
        let hint = hint_for(field.name(), self.given[at], &self.hints);
        bad_value(&self.name, line(bad.index), field.name(), bad, hint, true)
    }
}

/// The names of the columns, and the first record if it had to be read to count them.
fn column_names(
    tokens: &mut Tokens,
    name: &str,
    format: Format,
    options: &ReadOptions,
) -> Result<(Vec<String>, RawRecords)> {
    let csv = &options.csv;
    let given = csv.column_names.clone();
    let needs_first = csv.header || given.is_none();
    let mut first = RawRecords::default();
    let found = if needs_first { tokens.next_record(&mut first, false)? } else { None };
    let mut names = match (given, found) {
        (Some(names), _) => names,
        (None, Some(found)) if csv.header => header_names(&first, found, name)?,
        (None, Some(found)) => (1..=found).map(|i| format!("column_{i}")).collect(),
        (None, None) => {
            let needs = if csv.header { "a line with the column names" } else { "at least one record" };
            return Err(IoError::Empty { name: name.to_owned(), format: format.to_string(), needs });
        }
    };
    if let Some(found) = found
        && found != names.len()
    {
        let (line, expected) = (first.line(0), names.len());
        return Err(IoError::FieldCount { name: name.to_owned(), line, found, expected });
    }
    for (i, column) in names.iter_mut().enumerate() {
        if column.is_empty() {
            *column = format!("column_{}", i + 1);
        }
    }
    refuse_duplicates(name, &names)?;
    let rows = if csv.header || found.is_none() { RawRecords::new(names.len()) } else { first.with_width(names.len()) };
    Ok((names, rows))
}

fn header_names(first: &RawRecords, found: usize, name: &str) -> Result<Vec<String>> {
    let header = (0..found).map(|i| match std::str::from_utf8(first.field(0, i).0) {
        Ok(text) => Ok(text.trim().to_owned()),
        Err(_) => Err(IoError::NotUtf8 { name: name.to_owned(), line: first.line(0) }),
    });
    header.collect()
}

/// Refuses nulls in a column that does not allow them.
pub(crate) fn check_nulls(array: &dyn Array, field: &Field, name: &str, line: impl Fn(usize) -> u64) -> Result<()> {
    // The values of a dictionary may include null.
    if field.is_nullable() || array.logical_null_count() == 0 {
        return Ok(());
    }
    let nulls = array.logical_nulls();
    let index = nulls.and_then(|nulls| nulls.iter().position(|is_valid| !is_valid)).unwrap_or(0);
    Err(IoError::MissingValue { name: name.to_owned(), line: line(index), column: field.name().clone() })
}

/// The advice for a value that does not convert: the caller's, or general advice for a given or an inferred type.
pub(crate) fn hint_for(column: &str, given: bool, hints: &[(String, String)]) -> String {
    match (hints.iter().find(|(name, _)| name == column), given) {
        (Some((_, hint)), _) => hint.clone(),
        (None, true) => {
            format!("correct the value or give the column a type that fits all values (--types {column}=utf8)")
        }
        (None, false) => format!("the type comes from the first records; give it (--types {column}=utf8)"),
    }
}

/// The error for a value that does not convert.
pub(crate) fn bad_value(
    name: &str,
    line: u64,
    column: &str,
    bad: BadValue,
    mut hint: String,
    has_null_words: bool,
) -> IoError {
    let path = format!("{column}{}", bad.path);
    let Some(value) = bad.value else {
        return IoError::MissingValue { name: name.to_owned(), line, column: path };
    };
    let shown: String = value.chars().take(80).collect();
    if has_null_words && value.chars().count() <= 12 && bad.path.is_empty() {
        hint.push_str(&format!(", or name the word if it means null (--nulls {shown:?})"));
    }
    IoError::BadValue {
        name: name.to_owned(),
        line,
        column: path.into(),
        value: shown.into(),
        data_type: format_type(&bad.data_type).into(),
        detail: bad.detail.into(),
        hint: hint.into(),
    }
}

impl BatchSource for CsvReader {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if self.sample_at == self.sample.len() {
                let rows = self.fill(RawRecords::new(self.width), self.batch_rows)?;
                if rows.len() == 0 {
                    return Ok(None);
                }
                self.sample = rows;
                self.sample_at = 0;
            }
            let left = self.sample.len() - self.sample_at;
            let skipped = usize::try_from(self.skip_left).unwrap_or(usize::MAX).min(left);
            self.skip_left -= skipped as u64;
            self.sample_at += skipped;
            if skipped == left {
                continue;
            }
            let (from, to) = (self.sample_at, (self.sample_at + self.batch_rows).min(self.sample.len()));
            self.sample_at = to;
            return self.convert(&self.sample, from, to).map(Some);
        }
    }
}
