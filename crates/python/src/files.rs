//! Record files as streams of rows, the input of writes.

use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow_array::{ArrayRef, RecordBatch, RecordBatchReader, UInt64Array};
use arrow_schema::{ArrowError, Field, Schema as ArrowSchema, SchemaRef};
use arrow_select::take::take;
use chronotile_io::{CsvOptions, Format, IoError, Progress, ReadOptions, Source};
use chronotile_types::ErrorKind;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::arrow::{Array, Schema, stream_capsule};
use crate::errors::{arrow_error, invalid, io_error};
use crate::lines::{LineOptions, LineReader};
use crate::runtime::interruptible;

type Batches = Box<dyn Iterator<Item = Result<RecordBatch, IoError>> + Send>;

/// An open record file. Its rows can be read once, as a whole or in blocks.
#[pyclass(frozen, module = "chronotile._native")]
pub struct RecordFile {
    shared: Arc<Shared>,
}

struct Shared {
    schema: SchemaRef,
    state: Mutex<State>,
    rows_read: AtomicU64,
    progress: Option<Progress>,
    rows_total: Option<u64>,
    format: String,
}

struct State {
    batches: Batches,
    /// Constant columns that are added to every row.
    constants: Vec<ArrayRef>,
    pending: Option<RecordBatch>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next batch of at most `rows_max` rows.
    fn next(&self, rows_max: u64) -> Option<Result<RecordBatch, ArrowError>> {
        let mut state = self.lock();
        let batch = match state.fill(&self.schema)? {
            Ok(batch) => batch,
            Err(error) => return Some(Err(error)),
        };
        let taken = usize::try_from(rows_max).unwrap_or(usize::MAX).min(batch.num_rows());
        if taken < batch.num_rows() {
            state.pending = Some(batch.slice(taken, batch.num_rows() - taken));
        }
        self.rows_read.fetch_add(taken as u64, Ordering::Relaxed);
        Some(Ok(batch.slice(0, taken)))
    }
}

impl State {
    fn fill(&mut self, schema: &SchemaRef) -> Option<Result<RecordBatch, ArrowError>> {
        if let Some(batch) = self.pending.take() {
            return Some(Ok(batch));
        }
        let batch = match self.batches.next()? {
            Ok(batch) => batch,
            Err(error) => return Some(Err(ArrowError::ExternalError(Box::new(error)))),
        };
        Some(self.with_constants(schema, &batch))
    }

    fn with_constants(&self, schema: &SchemaRef, batch: &RecordBatch) -> Result<RecordBatch, ArrowError> {
        if self.constants.is_empty() {
            return Ok(batch.clone());
        }
        // `take` with indices that are all 0 repeats the one value, for any type.
        let first = UInt64Array::from(vec![0; batch.num_rows()]);
        let mut columns = batch.columns().to_vec();
        for constant in &self.constants {
            columns.push(take(constant, &first, None)?);
        }
        RecordBatch::try_new(schema.clone(), columns)
    }
}

/// An iterator over a limited number of rows of a file.
struct Block {
    shared: Arc<Shared>,
    left: u64,
}

impl Iterator for Block {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        let batch = self.shared.next(self.left)?;
        // A block ends with its first error: nothing is left after it.
        self.left -= batch.as_ref().map_or(self.left, |batch| batch.num_rows() as u64);
        Some(batch)
    }
}

impl RecordBatchReader for Block {
    fn schema(&self) -> SchemaRef {
        self.shared.schema.clone()
    }
}

impl RecordFile {
    fn new(
        schema: &SchemaRef,
        batches: Batches,
        constants: Vec<(String, PyRef<'_, Array>)>,
        progress: Option<Progress>,
        rows_total: Option<u64>,
        format: String,
    ) -> PyResult<Self> {
        let mut fields: Vec<Arc<Field>> = schema.fields().iter().cloned().collect();
        for (name, value) in &constants {
            if fields.iter().any(|field| field.name() == name) {
                let message = format!("the file has a column {name:?} already: give the constant column another name");
                return Err(invalid(ErrorKind::InvalidSetting, message));
            }
            fields.push(Arc::new(Field::new(name, value.inner.data_type().clone(), true)));
        }
        let schema = Arc::new(ArrowSchema::new_with_metadata(fields, schema.metadata().clone()));
        let constants = constants.into_iter().map(|(_, value)| value.inner.clone()).collect();
        let state = Mutex::new(State { batches, constants, pending: None });
        let shared = Shared { schema, state, rows_read: AtomicU64::new(0), progress, rows_total, format };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The rest of the rows.
    pub fn take(&self) -> PyResult<Box<dyn RecordBatchReader + Send>> {
        Ok(Box::new(Block { shared: self.shared.clone(), left: u64::MAX }))
    }
}

#[pymethods]
impl RecordFile {
    /// Opens a CSV, TSV, NDJSON, Parquet or Arrow IPC file; `-` is standard input.
    #[staticmethod]
    #[pyo3(signature = (
        path, *, format=None, types=vec![], hints=vec![], columns=None, delimiter=None, header=true, column_names=None, nulls=vec![],
        comment=None, skip_rows=0, constants=vec![]
    ))]
    #[allow(clippy::too_many_arguments, reason = "the keyword arguments of one Python constructor")]
    fn open(
        py: Python<'_>,
        path: &str,
        format: Option<&str>,
        types: Vec<(String, String)>,
        hints: Vec<(String, String)>,
        columns: Option<Vec<String>>,
        delimiter: Option<char>,
        header: bool,
        column_names: Option<Vec<String>>,
        nulls: Vec<String>,
        comment: Option<char>,
        skip_rows: u64,
        constants: Vec<(String, PyRef<'_, Array>)>,
    ) -> PyResult<Self> {
        let typed = |(name, text): (String, String)| Ok((name, chronotile_io::parse_type(&text)?));
        let csv = CsvOptions {
            delimiter: delimiter.map(ascii).transpose()?,
            header,
            column_names,
            nulls,
            comment: comment.map(ascii).transpose()?,
            ..CsvOptions::default()
        };
        let options = ReadOptions {
            format: format.map(Format::from_str).transpose().map_err(|error| io_error(error.into()))?,
            types: types.into_iter().map(typed).collect::<Result<_, IoError>>().map_err(io_error)?,
            hints,
            columns,
            skip_rows,
            csv,
            ..ReadOptions::default()
        };
        let source = Source::of_argument(path);
        let reader = interruptible(py, move || chronotile_io::open(source, &options))?.map_err(io_error)?;
        let (progress, total) = (reader.progress(), reader.rows_total());
        let format = reader.format().to_string();
        Self::new(&reader.schema(), Box::new(reader), constants, Some(progress), total, format)
    }

    /// Opens a text file as records of one line each: columns `line_number` (int64, from 1), `line` (utf8) and, with
    /// `time_format`, `time` (`timestamp[us]`).
    #[staticmethod]
    #[pyo3(signature = (path, *, time_format=None, year=None, skip_rows=0, constants=vec![]))]
    fn open_lines(
        py: Python<'_>,
        path: &str,
        time_format: Option<String>,
        year: Option<i32>,
        skip_rows: u64,
        constants: Vec<(String, PyRef<'_, Array>)>,
    ) -> PyResult<Self> {
        let options = LineOptions { time_format, year, skip_rows };
        let path = PathBuf::from(path);
        let reader = interruptible(py, move || LineReader::open(&path, options))?.map_err(io_error)?;
        let schema = reader.schema();
        Self::new(&schema, Box::new(reader), constants, None, None, "lines".to_owned())
    }

    #[getter]
    fn format(&self) -> &str {
        &self.shared.format
    }

    fn schema(&self) -> Schema {
        Schema { inner: self.shared.schema.clone() }
    }

    /// Number of rows returned so far.
    #[getter]
    fn rows_read(&self) -> u64 {
        self.shared.rows_read.load(Ordering::Relaxed)
    }

    /// Number of rows of the whole file, if its format records it.
    #[getter]
    fn rows_total(&self) -> Option<u64> {
        self.shared.rows_total
    }

    /// Bytes of the file read so far, before decompression.
    #[getter]
    fn bytes_read(&self) -> u64 {
        self.shared.progress.as_ref().map_or(0, Progress::bytes_read)
    }

    /// Size of the file, if known.
    #[getter]
    fn bytes_total(&self) -> Option<u64> {
        self.shared.progress.as_ref().and_then(Progress::total_bytes)
    }

    /// Whether there are more rows.
    fn has_rows(&self, py: Python<'_>) -> PyResult<bool> {
        py.detach(|| {
            // Locked only with the interpreter lock released: another thread may hold the mutex while it reads from the
            // file.
            let mut state = self.shared.lock();
            match state.fill(&self.shared.schema) {
                None => Ok(false),
                Some(batch) => {
                    state.pending = Some(batch?);
                    Ok(true)
                }
            }
        })
        .map_err(arrow_error)
    }

    /// The next `rows` rows, or fewer at the end, as a stream of their own. Read from one block at a time.
    pub fn block(&self, rows: u64) -> RecordBlock {
        RecordBlock { shared: self.shared.clone(), rows }
    }

    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyCapsule>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        stream_capsule(py, self.take()?, requested_schema)
    }
}

/// Some rows of a record file.
#[pyclass(frozen, module = "chronotile._native")]
pub struct RecordBlock {
    shared: Arc<Shared>,
    rows: u64,
}

impl RecordBlock {
    pub fn take(&self) -> Box<dyn RecordBatchReader + Send> {
        Box::new(Block { shared: self.shared.clone(), left: self.rows })
    }
}

#[pymethods]
impl RecordBlock {
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyCapsule>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        stream_capsule(py, self.take(), requested_schema)
    }
}

pub fn ascii(character: char) -> PyResult<u8> {
    u8::try_from(character).ok().filter(u8::is_ascii).ok_or_else(|| {
        invalid(ErrorKind::InvalidSetting, format!("{character:?} cannot be used: give one ASCII character"))
    })
}

/// A content hash of a file as 32 hexadecimal digits.
#[pyfunction]
pub fn content_hash(py: Python<'_>, path: &str) -> PyResult<String> {
    let path = PathBuf::from(path);
    let hash = interruptible(py, move || chronotile_io::content_hash(&path))?.map_err(io_error)?;
    Ok(hash.iter().map(|byte| format!("{byte:02x}")).collect())
}
