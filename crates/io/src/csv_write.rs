//! Record batches to CSV and TSV text.

use std::fmt::Write as _;

use arrow_array::{Array, RecordBatch};
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use arrow_json::EncoderOptions;
use arrow_json::writer::{NullableEncoder, make_encoder};
use arrow_schema::{ArrowError, DataType, FieldRef, Schema};

use crate::text::is_nested;

/// Resolved style of CSV text.
pub(crate) struct CsvStyle {
    pub(crate) delimiter: u8,
    pub(crate) null: String,
}

/// How the values of one column are converted to text.
enum Cells<'a> {
    Plain(ArrayFormatter<'a>),
    Text(ArrayFormatter<'a>),
    Json(NullableEncoder<'a>),
}

impl CsvStyle {
    pub(crate) fn header(&self, schema: &Schema, out: &mut Vec<u8>) {
        for (index, field) in schema.fields().iter().enumerate() {
            if index > 0 {
                out.push(self.delimiter);
            }
            self.push(field.name(), true, out);
        }
        out.push(b'\n');
    }

    pub(crate) fn rows(&self, batch: &RecordBatch, out: &mut Vec<u8>) -> Result<(), ArrowError> {
        // A value that cannot be formatted must fail the write instead of appearing as error text in the file.
        let options = FormatOptions::new().with_display_error(false);
        let json = EncoderOptions::default().with_explicit_nulls(true);
        let fields = batch.schema_ref().fields();
        let mut columns = Vec::with_capacity(fields.len());
        for (field, array) in fields.iter().zip(batch.columns()) {
            columns.push((array, cells(field, array, &options, &json)?));
        }
        let (mut cell, mut bytes) = (String::new(), Vec::new());
        for row in 0..batch.num_rows() {
            for (index, (array, cells)) in columns.iter_mut().enumerate() {
                if index > 0 {
                    out.push(self.delimiter);
                }
                if is_null(array, row) {
                    out.extend_from_slice(self.null.as_bytes());
                    continue;
                }
                cell.clear();
                match cells {
                    Cells::Plain(formatter) | Cells::Text(formatter) => {
                        write!(cell, "{}", formatter.value(row)).map_err(|_| unprintable(row))?;
                    }
                    Cells::Json(encoder) => {
                        bytes.clear();
                        encoder.encode(row, &mut bytes);
                        cell.push_str(&String::from_utf8_lossy(&bytes));
                    }
                }
                self.push(&cell, matches!(cells, Cells::Text(_)), out);
            }
            out.push(b'\n');
        }
        Ok(())
    }

    /// Appends a value, quoted if it would otherwise be read back differently.
    fn push(&self, value: &str, is_text: bool, out: &mut Vec<u8>) {
        let special = |b: u8| b == self.delimiter || matches!(b, b'"' | b'\n' | b'\r');
        let edge = |b: Option<&u8>| b.is_some_and(u8::is_ascii_whitespace);
        let bytes = value.as_bytes();
        // An empty field without quotes is a null. A reader may take `#` at the start of a line for a comment.
        let quote = bytes.is_empty()
            || bytes.iter().any(|&b| special(b))
            || is_text && (edge(bytes.first()) || edge(bytes.last()) || value == self.null || value.starts_with('#'));
        if !quote {
            out.extend_from_slice(bytes);
            return;
        }
        out.push(b'"');
        for &byte in bytes {
            if byte == b'"' {
                out.push(b'"');
            }
            out.push(byte);
        }
        out.push(b'"');
    }
}

fn unprintable(row: usize) -> ArrowError {
    ArrowError::InvalidArgumentError(format!("the value in row {row} of the batch is out of the range of its type"))
}

/// Whether a value is null; the null type has no null bitmap.
fn is_null(array: &dyn Array, row: usize) -> bool {
    array.is_null(row) || array.data_type() == &DataType::Null
}

fn cells<'a>(
    field: &'a FieldRef,
    array: &'a dyn Array,
    options: &FormatOptions<'a>,
    json: &'a EncoderOptions,
) -> Result<Cells<'a>, ArrowError> {
    if is_nested(field.data_type()) || matches!(field.data_type(), DataType::Map(..)) {
        return Ok(Cells::Json(make_encoder(field, array, json)?));
    }
    let formatter = ArrayFormatter::try_new(array, options)?;
    let is_text = match field.data_type() {
        DataType::Dictionary(_, values) => crate::text::keeps_spaces(values),
        other => crate::text::keeps_spaces(other),
    };
    Ok(if is_text { Cells::Text(formatter) } else { Cells::Plain(formatter) })
}
