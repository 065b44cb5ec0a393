//! Opens an input of any format as a stream of record batches.

use std::fmt;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;

use chronotile_types::contained;

use crate::columnar_read::ParquetReader;
use crate::csv_read::CsvReader;
use crate::error::{IoError, Result};
use crate::format::Format;
use crate::ipc_read::IpcReader;
use crate::ndjson_read::NdjsonReader;
use crate::options::ReadOptions;
use crate::source::{BatchSource, Input, Progress, Source};

/// A stream of record batches from one input.
///
/// Iterates over batches of at most `batch_rows` rows, none of them empty, all with [`schema`](Self::schema). Memory is
/// bounded by the sample and one batch for text, one row group for Parquet, and one stored batch for Arrow. Parquet and
/// Arrow IPC files that are compressed or come through a pipe are first copied to an unnamed temporary file, because
/// reading starts at their end. The iteration ends after an error.
pub struct Reader {
    source: Box<dyn BatchSource>,
    name: String,
    format: Format,
    progress: Progress,
    rows_total: Option<u64>,
    ended: bool,
}

/// Opens an input and determines its schema.
///
/// # Errors
/// The [`IoError`] of an input that is missing, a folder, denied, empty, of another or an unknown format, damaged, or
/// lacks requested columns.
pub fn open(source: Source, options: &ReadOptions) -> Result<Reader> {
    options.check()?;
    let name = source.name();
    let format = options.format.map_or_else(|| "its start".to_owned(), |format| format.to_string());
    // Decoders may panic at damaged bytes, which is then an error of the input.
    contained(|| open_any(source, options))
        .unwrap_or_else(|reason| Err(IoError::Damaged { name, what: format, reason, source: None }))
}

fn open_any(source: Source, options: &ReadOptions) -> Result<Reader> {
    let input = Input::open(source, options.format)?;
    let (name, format, progress) = (input.name.clone(), input.format, input.progress.clone());
    if input.head.is_empty() {
        let needs = match format {
            Format::Csv | Format::Tsv => "a line with the column names, or names that are given",
            Format::Ndjson => "at least one record",
            Format::Parquet | Format::Arrow => "a schema",
        };
        // The columns of an empty input are known only if they are given.
        let known = options.schema.is_some() && format == Format::Ndjson
            || options.csv.column_names.is_some() && !options.csv.header && matches!(format, Format::Csv | Format::Tsv);
        if !known {
            return Err(IoError::Empty { name, format: format.to_string(), needs });
        }
    }
    let (source, rows_total): (Box<dyn BatchSource>, _) = match format {
        Format::Csv | Format::Tsv => (Box::new(CsvReader::open(input, options)?), None),
        Format::Ndjson => (Box::new(NdjsonReader::open(input, options)?), None),
        Format::Parquet => {
            let reader = ParquetReader::open(input, options)?;
            let rows = reader.rows_total();
            (Box::new(reader), Some(rows))
        }
        Format::Arrow => {
            let reader = IpcReader::open(input, options)?;
            let rows = reader.rows_total();
            (Box::new(reader), rows)
        }
    };
    Ok(Reader { source, name, format, progress, rows_total, ended: false })
}

impl Reader {
    /// The schema of every batch.
    #[must_use]
    pub fn schema(&self) -> SchemaRef {
        self.source.schema()
    }

    /// The name of the input in messages.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The format that was given or detected.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// Progress in bytes, for a progress bar.
    #[must_use]
    pub fn progress(&self) -> Progress {
        self.progress.clone()
    }

    /// Number of rows of the input, including skipped ones, if the format records it: Parquet and Arrow IPC files.
    #[must_use]
    pub fn rows_total(&self) -> Option<u64> {
        self.rows_total
    }
}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reader({}, {})", self.name, self.format)
    }
}

impl Iterator for Reader {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.ended {
            let batch = contained(|| self.source.next_batch()).unwrap_or_else(|reason| {
                let (name, what) = (self.name.clone(), self.format.to_string());
                Err(IoError::Damaged { name, what, reason, source: None })
            });
            match batch {
                Ok(Some(batch)) if batch.num_rows() == 0 => {}
                Ok(Some(batch)) => return Some(Ok(batch)),
                Ok(None) => {
                    self.ended = true;
                    // Readers may leave out bytes, such as those of columns that are not returned.
                    self.progress.finish();
                }
                Err(error) => {
                    self.ended = true;
                    return Some(Err(error));
                }
            }
        }
        None
    }
}
