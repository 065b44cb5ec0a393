//! Splits CSV text into fields. Keeps the line number of each record and whether each field was quoted.

use std::io::{self, Read};

use chronotile_types::COLUMNS_MAX;

use crate::error::{IoError, Result};

/// A longer record indicates an unclosed quote or a file of another format.
pub(crate) const RECORD_BYTES_MAX: usize = 16 << 20;

/// Memory of a field in addition to its text: its end and whether it was quoted.
const FIELD_BYTES: usize = size_of::<usize>() + 1;

/// Untyped records. The fields of a record are consecutive.
#[derive(Default)]
pub(crate) struct RawRecords {
    text: Vec<u8>,
    /// End of each field in `text`.
    ends: Vec<usize>,
    /// Whether each field was quoted.
    quoted: Vec<bool>,
    /// Line on which each record starts, from 1.
    lines: Vec<u64>,
    fields_per_row: usize,
}

impl RawRecords {
    pub(crate) fn new(fields_per_row: usize) -> Self {
        Self { fields_per_row, ..Self::default() }
    }

    /// The same records, with the number of fields per record set.
    pub(crate) fn with_width(mut self, fields_per_row: usize) -> Self {
        self.fields_per_row = fields_per_row;
        self
    }

    /// Removes all records but keeps the capacity.
    pub(crate) fn clear(&mut self) {
        self.text.clear();
        self.ends.clear();
        self.quoted.clear();
        self.lines.clear();
    }

    pub(crate) fn len(&self) -> usize {
        self.lines.len()
    }

    /// Memory of the records. Includes an overhead per field, because a record of delimiters alone has no text.
    pub(crate) fn held_bytes(&self) -> usize {
        self.text.len() + self.ends.len() * FIELD_BYTES + self.lines.len() * size_of::<u64>()
    }

    pub(crate) fn line(&self, row: usize) -> u64 {
        self.lines[row]
    }

    /// The bytes of a field and whether it was quoted.
    pub(crate) fn field(&self, row: usize, field: usize) -> (&[u8], bool) {
        let at = row * self.fields_per_row + field;
        let start = if at == 0 { 0 } else { self.ends[at - 1] };
        (&self.text[start..self.ends[at]], self.quoted[at])
    }

    fn end_field(&mut self, quoted: bool) {
        self.ends.push(self.text.len());
        self.quoted.push(quoted);
    }

    fn drop_record(&mut self, mark: Mark) {
        self.text.truncate(mark.text);
        self.ends.truncate(mark.fields);
        self.quoted.truncate(mark.fields);
    }

    fn mark(&self) -> Mark {
        Mark { text: self.text.len(), fields: self.ends.len() }
    }
}

#[derive(Clone, Copy)]
struct Mark {
    text: usize,
    fields: usize,
}

/// Resolved settings of the tokenizer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dialect {
    pub(crate) delimiter: u8,
    pub(crate) quote: Option<u8>,
    pub(crate) comment: Option<u8>,
}

/// Reads records from a byte stream through a fixed buffer.
pub(crate) struct Tokens {
    reader: Box<dyn Read + Send>,
    dialect: Dialect,
    name: String,
    layer: Option<&'static str>,
    buffer: Vec<u8>,
    filled: usize,
    at: usize,
    line: u64,
}

impl Tokens {
    pub(crate) fn new(
        reader: Box<dyn Read + Send>,
        dialect: Dialect,
        name: String,
        layer: Option<&'static str>,
    ) -> Result<Self> {
        let mut tokens = Self { reader, dialect, name, layer, buffer: vec![0; 1 << 18], filled: 0, at: 0, line: 1 };
        tokens.skip_byte_order_mark()?;
        Ok(tokens)
    }

    fn skip_byte_order_mark(&mut self) -> Result<()> {
        // A pipe may return fewer bytes than were requested.
        while self.filled < 3 {
            let read = self.read_more(self.filled)?;
            if read == 0 {
                break;
            }
            self.filled += read;
        }
        let head = &self.buffer[..self.filled];
        if head.starts_with(&[0xef, 0xbb, 0xbf]) {
            self.at = 3;
        } else if head.starts_with(&[0xff, 0xfe]) || head.starts_with(&[0xfe, 0xff]) {
            return Err(IoError::NotUtf8 { name: self.name.clone(), line: 1 });
        }
        Ok(())
    }

    fn read_more(&mut self, from: usize) -> Result<usize> {
        loop {
            match self.reader.read(&mut self.buffer[from..]) {
                Ok(read) => return Ok(read),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(IoError::reading(&self.name, self.layer, e)),
            }
        }
    }

    fn peek(&mut self) -> Result<Option<u8>> {
        if self.at == self.filled {
            self.filled = self.read_more(0)?;
            self.at = 0;
        }
        Ok(self.buffer[..self.filled].get(self.at).copied())
    }

    /// Appends the next record to `rows` and returns its number of fields, or `None` at the end of the input.
    ///
    /// Blank lines are skipped unless `blank_is_record`. The caller compares the number of fields with the expected one
    /// before it reads another record.
    pub(crate) fn next_record(&mut self, rows: &mut RawRecords, blank_is_record: bool) -> Result<Option<usize>> {
        loop {
            let Some(first) = self.peek()? else { return Ok(None) };
            if self.dialect.comment == Some(first) {
                self.skip_line()?;
                continue;
            }
            let (mark, start) = (rows.mark(), self.line);
            let fields = self.cut_record(rows, mark)?;
            // A quoted empty field is an empty text, so its line is not blank.
            let is_blank = fields == 1 && rows.text.len() == mark.text && !rows.quoted[mark.fields];
            if is_blank && !blank_is_record {
                rows.drop_record(mark);
                continue;
            }
            rows.lines.push(start);
            return Ok(Some(fields));
        }
    }

    fn skip_line(&mut self) -> Result<()> {
        while let Some(byte) = self.peek()? {
            if byte == b'\n' || byte == b'\r' {
                return self.end_line(byte);
            }
            self.at += 1;
        }
        Ok(())
    }

    /// Consumes a line end: `\n`, `\r\n` or a lone `\r`.
    fn end_line(&mut self, byte: u8) -> Result<()> {
        self.at += 1;
        self.line += 1;
        if byte == b'\r' && self.peek()? == Some(b'\n') {
            self.at += 1;
        }
        Ok(())
    }

    fn cut_record(&mut self, rows: &mut RawRecords, mark: Mark) -> Result<usize> {
        let start = self.line;
        let mut fields = 0;
        loop {
            let quoted = self.dialect.quote.is_some() && self.peek()? == self.dialect.quote;
            if quoted {
                self.cut_quoted(rows, mark, start)?;
            } else {
                self.cut_plain(rows, mark, start)?;
            }
            if fields == COLUMNS_MAX {
                return Err(IoError::TooManyColumns { name: self.name.clone(), line: start, columns_max: COLUMNS_MAX });
            }
            rows.end_field(quoted);
            fields += 1;
            match self.peek()? {
                None => return Ok(fields),
                Some(byte) if byte == self.dialect.delimiter => self.at += 1,
                Some(byte @ (b'\n' | b'\r')) => {
                    self.end_line(byte)?;
                    return Ok(fields);
                }
                Some(_) => return Err(IoError::StrayQuote { name: self.name.clone(), line: self.line }),
            }
        }
    }

    fn cut_plain(&mut self, rows: &mut RawRecords, mark: Mark, start: u64) -> Result<()> {
        let delimiter = self.dialect.delimiter;
        while self.peek()?.is_some() {
            let rest = &self.buffer[self.at..self.filled];
            let stop = rest.iter().position(|&b| b == delimiter || b == b'\n' || b == b'\r');
            let taken = stop.unwrap_or(rest.len());
            rows.text.extend_from_slice(&rest[..taken]);
            self.at += taken;
            self.check_length(rows, mark, start)?;
            if stop.is_some() {
                break;
            }
        }
        Ok(())
    }

    /// Consumes a quoted field with its quotes; two quotes inside stand for one.
    fn cut_quoted(&mut self, rows: &mut RawRecords, mark: Mark, start: u64) -> Result<()> {
        let quote = self.dialect.quote;
        self.at += 1;
        while self.peek()?.is_some() {
            let rest = &self.buffer[self.at..self.filled];
            let stop = rest.iter().position(|&b| Some(b) == quote);
            let taken = stop.unwrap_or(rest.len());
            self.line += rest[..taken].iter().filter(|&&b| b == b'\n').count() as u64;
            rows.text.extend_from_slice(&rest[..taken]);
            self.at += taken;
            self.check_length(rows, mark, start)?;
            if stop.is_some() {
                self.at += 1;
                if self.peek()? != quote {
                    return Ok(());
                }
                rows.text.extend(quote);
                self.at += 1;
            }
        }
        Err(IoError::OpenQuote { name: self.name.clone(), line: start })
    }

    fn check_length(&self, rows: &RawRecords, mark: Mark, line: u64) -> Result<()> {
        match rows.text.len() - mark.text > RECORD_BYTES_MAX {
            true => Err(IoError::RecordTooLong { name: self.name.clone(), line, bytes_max: RECORD_BYTES_MAX }),
            false => Ok(()),
        }
    }
}
