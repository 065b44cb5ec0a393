//! CSV text as records of fields, for callers that check each line themselves.

use std::fmt;

use bytes::{Buf, Bytes};

use crate::csv_tokens::{Dialect, RawRecords, Tokens};
use crate::error::{IoError, Result};

/// The records of CSV text with commas and double quotes. Blank lines are skipped.
pub struct CsvRecords {
    tokens: Tokens,
    name: String,
    rows: RawRecords,
}

impl CsvRecords {
    /// Reads `text`, which messages call `name`.
    ///
    /// # Errors
    /// [`IoError::NotUtf8`] if the text starts with the byte order mark of UTF-16.
    pub fn new(name: &str, text: Bytes) -> Result<Self> {
        let dialect = Dialect { delimiter: b',', quote: Some(b'"'), comment: None };
        let tokens = Tokens::new(Box::new(text.reader()), dialect, name.to_owned(), None)?;
        Ok(Self { tokens, name: name.to_owned(), rows: RawRecords::default() })
    }

    /// Puts the fields of the next record into `fields` and returns the line it starts on, counted from 1; `None` at
    /// the end.
    ///
    /// # Errors
    /// An unclosed quote, or text after a closing quote; the rest of the text cannot be split reliably.
    /// [`IoError::NotUtf8`], after which the next record can be read.
    pub fn next_record<'a>(&'a mut self, fields: &mut Vec<&'a str>) -> Result<Option<u64>> {
        self.rows.clear();
        let Some(count) = self.tokens.next_record(&mut self.rows, false)? else { return Ok(None) };
        let line = self.rows.line(0);
        fields.clear();
        for field in 0..count {
            let text = std::str::from_utf8(self.rows.field(0, field).0);
            fields.push(text.map_err(|_| IoError::NotUtf8 { name: self.name.clone(), line })?);
        }
        Ok(Some(line))
    }
}

impl fmt::Debug for CsvRecords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CsvRecords({})", self.name)
    }
}
