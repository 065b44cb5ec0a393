//! Text files, such as logs, as records of one line each.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};
use chrono::NaiveDateTime;
use chronotile_io::IoError;
use flate2::read::MultiGzDecoder;

/// Maximum number of lines in a batch.
const BATCH_LINES: usize = 65_536;
/// Bytes of text at which a batch ends early.
const BATCH_BYTES: usize = 16 << 20;
/// Maximum length of a line, the same as for records of other formats.
const LINE_BYTES_MAX: u64 = 16 << 20;

/// How lines are converted to records.
pub struct LineOptions {
    /// strptime pattern of the time at the start of each line. A line without a time (a continuation of the message
    /// above) gets that of the line before.
    pub time_format: Option<String>,
    /// The year, for patterns without one.
    pub year: Option<i32>,
    /// Number of lines to skip at the start.
    pub skip_rows: u64,
}

/// A text file, plain or gzip, line by line.
pub struct LineReader {
    name: String,
    text: Box<dyn BufRead + Send>,
    schema: SchemaRef,
    stamp: Option<Stamp>,
    /// Number of the last line read, from 1.
    line: u64,
    skip_rows: u64,
    ended: bool,
}

/// Parses the time at the start of lines.
struct Stamp {
    pattern: String,
    prefix: String,
    last_us: Option<i64>,
}

impl Stamp {
    fn of(&mut self, line: &str) -> Option<i64> {
        let dated;
        let text = if self.prefix.is_empty() {
            line
        } else {
            dated = format!("{}{line}", self.prefix);
            &dated
        };
        if let Ok((time, _)) = NaiveDateTime::parse_and_remainder(text, &self.pattern) {
            self.last_us = Some(time.and_utc().timestamp_micros());
        }
        self.last_us
    }
}

impl LineReader {
    pub fn open(path: &Path, options: LineOptions) -> Result<Self, IoError> {
        let name = path.display().to_string();
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => IoError::NotFound { path: path.to_path_buf() },
            io::ErrorKind::IsADirectory => IoError::IsFolder { path: path.to_path_buf(), example: "*.log" },
            io::ErrorKind::PermissionDenied => IoError::Denied { path: path.to_path_buf(), action: "read" },
            _ => IoError::Read { name: path.display().to_string(), source },
        };
        let mut file = File::open(path).map_err(failed)?;
        // The first two bytes are chained, not read again, because a pipe cannot seek.
        let mut head = Vec::new();
        file.by_ref().take(2).read_to_end(&mut head).map_err(failed)?;
        let zipped = head == [0x1f, 0x8b];
        let whole = Cursor::new(head).chain(file);
        let text: Box<dyn BufRead + Send> = if zipped {
            Box::new(BufReader::with_capacity(1 << 18, MultiGzDecoder::new(BufReader::new(whole))))
        } else {
            Box::new(BufReader::with_capacity(1 << 18, whole))
        };
        let mut fields =
            vec![Field::new("line_number", DataType::Int64, false), Field::new("line", DataType::Utf8, false)];
        let stamp = options.time_format.map(|pattern| {
            fields.insert(0, Field::new("time", DataType::Timestamp(TimeUnit::Microsecond, None), false));
            match options.year {
                // chrono cannot make a date without a year, so the year precedes both pattern and line.
                Some(year) => Stamp { pattern: format!("%Y {pattern}"), prefix: format!("{year} "), last_us: None },
                None => Stamp { pattern, prefix: String::new(), last_us: None },
            }
        });
        let schema = Arc::new(Schema::new(fields));
        Ok(Self { name, text, schema, stamp, line: 0, skip_rows: options.skip_rows, ended: false })
    }

    pub fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    /// The next line without its end, or None after the last.
    fn next_line(&mut self) -> Result<Option<String>, IoError> {
        let mut bytes = Vec::new();
        // The limit keeps a file without line ends from being read into memory as a whole.
        let mut limited = self.text.by_ref().take(LINE_BYTES_MAX);
        let read = limited.read_until(b'\n', &mut bytes);
        let read = read.map_err(|source| IoError::Read { name: self.name.clone(), source })?;
        if read == 0 {
            return Ok(None);
        }
        self.line += 1;
        if read as u64 == LINE_BYTES_MAX {
            let bytes_max = LINE_BYTES_MAX as usize;
            return Err(IoError::RecordTooLong { name: self.name.clone(), line: self.line, bytes_max });
        }
        while matches!(bytes.last(), Some(b'\n' | b'\r')) {
            bytes.pop();
        }
        let text = String::from_utf8(bytes);
        text.map(Some).map_err(|_| IoError::NotUtf8 { name: self.name.clone(), line: self.line })
    }

    fn time_of(&mut self, line: &str) -> Result<i64, IoError> {
        let Some(stamp) = &mut self.stamp else { return Ok(0) };
        stamp.of(line).ok_or_else(|| IoError::BadValue {
            name: self.name.clone(),
            line: self.line,
            column: "time".into(),
            value: line.chars().take(80).collect(),
            data_type: format!("a line that begins with a time like {:?}", stamp.pattern).into(),
            detail: "".into(),
            hint: "give the pattern of this file, and the year if its times have none".into(),
        })
    }

    fn next_batch(&mut self) -> Result<Option<RecordBatch>, IoError> {
        let (mut times, mut numbers, mut lines) = (vec![], vec![], vec![]);
        let mut bytes = 0;
        while lines.len() < BATCH_LINES && bytes < BATCH_BYTES {
            let Some(line) = self.next_line()? else { break };
            // Parse skipped lines too: a later line without a time takes theirs.
            let time = self.time_of(&line)?;
            if self.line <= self.skip_rows {
                continue;
            }
            bytes += line.len();
            times.push(time);
            numbers.push(self.line as i64);
            lines.push(line);
        }
        if lines.is_empty() {
            return Ok(None);
        }
        let mut columns: Vec<ArrayRef> = vec![Arc::new(Int64Array::from(numbers)), Arc::new(StringArray::from(lines))];
        if self.stamp.is_some() {
            columns.insert(0, Arc::new(TimestampMicrosecondArray::from(times)));
        }
        let encoded = RecordBatch::try_new(self.schema.clone(), columns);
        encoded.map(Some).map_err(|source| IoError::Encode { name: self.name.clone(), source })
    }
}

impl Iterator for LineReader {
    type Item = Result<RecordBatch, IoError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.ended {
            return None;
        }
        let batch = self.next_batch().transpose();
        self.ended = !matches!(batch, Some(Ok(_)));
        batch
    }
}
