//! Reads NDJSON as record batches.
//!
//! Every scalar is first decoded as its text in the file, and then converted by the same strict rules as CSV, so that
//! no number is rounded or truncated.

use std::io::{self, BufRead, BufReader, Read};
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_json::ReaderBuilder;
use arrow_json::reader::Decoder;
use arrow_schema::{ArrowError, DataType, Field, Fields, Schema, SchemaRef};

use chronotile_types::COLUMNS_MAX;

use crate::csv_read::{bad_value, check_nulls, hint_for};
use crate::csv_tokens::RECORD_BYTES_MAX;
use crate::error::{IoError, Result};
use crate::format::Format;
use crate::infer::{Kind, Members, TOO_MANY};
use crate::options::{ColumnOptions, ReadOptions};
use crate::source::{BatchSource, Input, PIECE_BYTES_MAX};
use crate::text;
use crate::types::format_type;

/// Maximum bytes of text decoded at once; the decoder takes up to eight times its memory.
const BATCH_BYTES_MAX: usize = 16 << 20;
/// Maximum number of values decoded at once, including those missing from records.
const CELLS_MAX: usize = 4 << 20;

/// Lines of the input, each ended by `\n`.
#[derive(Default)]
struct Lines {
    text: Vec<u8>,
    ends: Vec<usize>,
    numbers: Vec<u64>,
}

impl Lines {
    fn len(&self) -> usize {
        self.ends.len()
    }

    fn get(&self, index: usize) -> &[u8] {
        &self.text[self.start(index)..self.ends[index]]
    }

    fn start(&self, index: usize) -> usize {
        if index == 0 { 0 } else { self.ends[index - 1] }
    }
}

pub(crate) struct NdjsonReader {
    reader: BufReader<Box<dyn Read + Send>>,
    name: String,
    layer: Option<&'static str>,
    line: u64,
    schema: SchemaRef,
    /// The schema with the type of every scalar replaced by text.
    raw_schema: SchemaRef,
    given: Vec<bool>,
    hints: Vec<(String, String)>,
    /// Whether a field outside the schema is an error: with an inferred schema it would be lost.
    strict: bool,
    batch_rows: usize,
    /// Maximum number of rows decoded at once; fewer if there are many columns.
    rows_max: usize,
    skip_left: u64,
    lines: Lines,
    lines_at: usize,
    /// The columns to return, as indexes in the decoded schema.
    chosen: Vec<usize>,
}

impl NdjsonReader {
    pub(crate) fn open(input: Input, options: &ReadOptions) -> Result<Self> {
        let (name, layer) = (input.name.clone(), input.wrapping.label());
        let empty: SchemaRef = Arc::new(Schema::empty());
        let mut reader = Self {
            reader: BufReader::with_capacity(1 << 18, input.into_stream()?),
            name,
            layer,
            line: 0,
            schema: empty.clone(),
            raw_schema: empty,
            given: Vec::new(),
            hints: options.hints.clone(),
            strict: options.schema.is_none(),
            batch_rows: options.batch_rows,
            rows_max: options.batch_rows,
            skip_left: options.skip_rows,
            lines: Lines::default(),
            lines_at: 0,
            chosen: Vec::new(),
        };
        let asked = ColumnOptions::new(options);
        let fields = match &options.schema {
            Some(schema) => given_fields(schema, &asked),
            None => reader.inferred_fields(options, &asked)?,
        };
        for field in fields.iter() {
            if !text::is_readable(field.data_type()) {
                return Err(IoError::UnsupportedType {
                    column: field.name().clone(),
                    data_type: format_type(field.data_type()),
                    format: Format::Ndjson.to_string(),
                });
            }
        }
        let names: Vec<String> = fields.iter().map(|f| f.name().clone()).collect();
        reader.chosen = asked.chosen(&reader.name, &names)?;
        reader.given = names.iter().map(|name| asked.data_type(name).is_some()).collect();
        reader.rows_max = (CELLS_MAX / leaves(&fields).max(1)).clamp(1, options.batch_rows);
        reader.schema = Arc::new(Schema::new(fields));
        reader.raw_schema = Arc::new(text::text_schema(&reader.schema));
        Ok(reader)
    }

    /// Reads the sample and merges the classes of its records.
    fn inferred_fields(&mut self, options: &ReadOptions, asked: &ColumnOptions<'_>) -> Result<Fields> {
        self.lines = self.take_lines(options.sample_rows)?;
        if self.lines.len() == 0 {
            let (name, format) = (self.name.clone(), Format::Ndjson.to_string());
            return Err(IoError::Empty { name, format, needs: "at least one record" });
        }
        let mut merged = Kind::Struct(Members::default());
        for index in 0..self.lines.len() {
            let line = self.lines.numbers[index];
            let kind: Kind = serde_json::from_slice(self.lines.get(index)).map_err(|e| self.malformed(line, &e))?;
            if !matches!(kind, Kind::Struct(_)) {
                return Err(self.not_an_object(line));
            }
            merged = merged.merge(kind);
            if merged.members() > COLUMNS_MAX {
                return Err(self.too_many(line));
            }
            let Kind::Struct(fields) = &merged else { continue };
            let clash = fields.clash(|column| asked.wants(column) && asked.data_type(column).is_none());
            if let Some(column) = clash {
                return Err(IoError::MixedShapes { name: self.name.clone(), line, column });
            }
        }
        let Kind::Struct(Members { list: columns, .. }) = merged else { return Ok(Fields::empty()) };
        if columns.is_empty() {
            let (name, format) = (self.name.clone(), Format::Ndjson.to_string());
            return Err(IoError::Empty { name, format, needs: "at least one named value" });
        }
        // Columns that are not returned are not decoded, so fields outside the schema are allowed.
        self.strict = options.columns.is_none();
        let fields = columns.iter().filter(|(column, _)| asked.wants(column)).filter_map(|(column, kind)| {
            let data_type = asked.data_type(column).cloned().or_else(|| kind.data_type())?;
            Some(Field::new(column, data_type, true))
        });
        Ok(fields.collect())
    }

    /// Reads up to `lines_max` lines that are not blank.
    fn take_lines(&mut self, lines_max: usize) -> Result<Lines> {
        let mut lines = Lines::default();
        while lines.len() < lines_max && lines.text.len() < PIECE_BYTES_MAX {
            let start = lines.text.len();
            if !self.take_line(&mut lines.text)? {
                break;
            }
            self.line += 1;
            if self.line == 1 && lines.text.starts_with(&[0xef, 0xbb, 0xbf]) {
                lines.text.drain(..3);
            }
            if lines.text[start..].trim_ascii().is_empty() {
                lines.text.truncate(start);
                continue;
            }
            if lines.text.last() != Some(&b'\n') {
                lines.text.push(b'\n');
            }
            lines.ends.push(lines.text.len());
            lines.numbers.push(self.line);
        }
        Ok(lines)
    }

    /// Appends one line with its end; false at the end of the input.
    fn take_line(&mut self, out: &mut Vec<u8>) -> Result<bool> {
        let start = out.len();
        loop {
            let available = match self.reader.fill_buf() {
                Ok(available) => available,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(IoError::reading(&self.name, self.layer, e)),
            };
            if available.is_empty() {
                return Ok(out.len() > start);
            }
            let stop = available.iter().position(|&b| b == b'\n').map(|i| i + 1);
            let taken = stop.unwrap_or(available.len());
            out.extend_from_slice(&available[..taken]);
            self.reader.consume(taken);
            if out.len() - start > RECORD_BYTES_MAX {
                let (name, line) = (self.name.clone(), self.line + 1);
                return Err(IoError::RecordTooLong { name, line, bytes_max: RECORD_BYTES_MAX });
            }
            if stop.is_some() {
                return Ok(true);
            }
        }
    }

    fn too_many(&self, line: u64) -> IoError {
        IoError::TooManyColumns { name: self.name.clone(), line, columns_max: COLUMNS_MAX }
    }

    fn malformed(&self, line: u64, error: &serde_json::Error) -> IoError {
        if error.is_data() && error.to_string().starts_with(TOO_MANY) {
            return self.too_many(line);
        }
        let reason = format!("not a JSON object on one line ({error}); NDJSON holds one complete object a line");
        IoError::Json { name: self.name.clone(), line, reason }
    }

    fn not_an_object(&self, line: u64) -> IoError {
        let reason = "an object is expected; NDJSON holds one complete object a line, not one array of them";
        IoError::Json { name: self.name.clone(), line, reason: reason.to_owned() }
    }

    fn decoder(&self, rows: usize) -> Result<Decoder, ArrowError> {
        ReaderBuilder::new(self.raw_schema.clone())
            .with_batch_size(rows)
            .with_coerce_primitive(true)
            .with_strict_mode(self.strict)
            .build_decoder()
    }

    /// Decodes lines `from..to` to text. An error does not identify the line.
    fn decode(&self, from: usize, to: usize) -> Result<RecordBatch, ArrowError> {
        let text = &self.lines.text[self.lines.start(from)..self.lines.ends[to - 1]];
        // One spare row reveals a line that holds two records.
        let mut decoder = self.decoder(to - from + 1)?;
        let read = decoder.decode(text)?;
        if read != text.len() || decoder.has_partial_record() || decoder.len() != to - from {
            return Err(ArrowError::JsonError("a line does not hold exactly one object".to_owned()));
        }
        let batch = decoder.flush()?;
        batch.ok_or_else(|| ArrowError::JsonError("no object".to_owned()))
    }

    /// Finds the line that caused [`decode`](Self::decode) to fail.
    fn culprit(&self, from: usize, to: usize, error: ArrowError) -> IoError {
        for index in from..to {
            let line = self.lines.numbers[index];
            let Err(error) = self.decode(index, index + 1) else { continue };
            return match serde_json::from_slice::<Kind>(self.lines.get(index)) {
                Err(error) => self.malformed(line, &error),
                Ok(Kind::Struct(_)) => {
                    let message = match &error {
                        ArrowError::JsonError(message) => message.clone(),
                        other => other.to_string(),
                    };
                    let hint = "take a larger sample (sample_rows), give the schema, or name the columns (--columns)";
                    let reason = format!("the record does not fit the columns ({message}); {hint}");
                    IoError::Json { name: self.name.clone(), line, reason }
                }
                Ok(_) => self.not_an_object(line),
            };
        }
        // Each line can be decoded alone, so the error belongs to none of them.
        IoError::decoding(&self.name, Format::Ndjson, error)
    }

    /// The end of the batch that starts at line `from`. The decoder takes a multiple of the text, plus memory for
    /// values missing from records.
    fn batch_end(&self, from: usize) -> usize {
        let start = self.lines.start(from);
        let fits = self.lines.ends[from..].partition_point(|&end| end - start <= BATCH_BYTES_MAX);
        // A line above the limit is decoded alone.
        (from + fits.clamp(1, self.rows_max)).min(self.lines.len())
    }

    fn convert(&self, from: usize, to: usize) -> Result<RecordBatch> {
        let raw = self.decode(from, to).map_err(|error| self.culprit(from, to, error))?;
        let line = |index: usize| self.lines.numbers[(from + index).min(to - 1)];
        let columns = self.chosen.iter().map(|&at| {
            let field = self.schema.field(at);
            let open = Field::new(field.name(), field.data_type().clone(), true);
            let hint = || hint_for(field.name(), self.given[at], &self.hints);
            let array = text::parse_leaves(raw.column(at), &open)
                .map_err(|bad| bad_value(&self.name, line(bad.index), field.name(), bad, hint(), false))?;
            check_nulls(&array, field, &self.name, line)?;
            Ok(array)
        });
        let columns = columns.collect::<Result<Vec<ArrayRef>>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(to - from));
        RecordBatch::try_new_with_options(self.schema(), columns, &options)
            .map_err(|e| IoError::decoding(&self.name, Format::Ndjson, e))
    }
}

/// Number of columns without child fields, at any depth.
fn leaves(fields: &Fields) -> usize {
    let of = |data_type: &DataType| match data_type {
        DataType::Struct(fields) => leaves(fields),
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            leaves(&Fields::from(vec![item.clone()]))
        }
        _ => 1,
    };
    fields.iter().map(|field| of(field.data_type())).sum()
}

/// The fields of a given schema, with the types given for single columns.
fn given_fields(schema: &SchemaRef, asked: &ColumnOptions<'_>) -> Fields {
    let field = |f: &Arc<Field>| match asked.data_type(f.name()) {
        Some(data_type) => Arc::new(Field::new(f.name(), data_type.clone(), f.is_nullable())),
        None => f.clone(),
    };
    schema.fields().iter().map(field).collect()
}

impl BatchSource for NdjsonReader {
    fn schema(&self) -> SchemaRef {
        let fields: Fields = self.chosen.iter().map(|&at| self.schema.fields()[at].clone()).collect();
        Arc::new(Schema::new(fields))
    }

    fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if self.lines_at == self.lines.len() {
                self.lines = self.take_lines(self.batch_rows)?;
                self.lines_at = 0;
                if self.lines.len() == 0 {
                    return Ok(None);
                }
            }
            let left = self.lines.len() - self.lines_at;
            let skipped = usize::try_from(self.skip_left).unwrap_or(usize::MAX).min(left);
            self.skip_left -= skipped as u64;
            self.lines_at += skipped;
            if skipped == left {
                continue;
            }
            let (from, to) = (self.lines_at, self.batch_end(self.lines_at));
            self.lines_at = to;
            return self.convert(from, to).map(Some);
        }
    }
}
