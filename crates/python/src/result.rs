//! The result of a read: a stream of record batches that Python consumes.

use std::error::Error;
use std::pin::Pin;
use std::sync::{Mutex, MutexGuard, PoisonError};

use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::{ArrowError, SchemaRef};
use chronotile_archive::ReadStream;
use chronotile_io::{OrderKey, Ordered, in_order};
use chronotile_types::{ErrorKind, name_hint};
use futures::{Stream, StreamExt};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use pyo3_arrow::ffi::to_schema_pycapsule;

use crate::arrow::{Table, stream_capsule};
use crate::errors::{Fault, arrow_error, invalid};
use crate::runtime::{block_on, runtime};

/// The rows of one read, streamed once.
#[pyclass(frozen, module = "chronotile._native")]
pub struct ReadResult {
    schema: SchemaRef,
    rows: Mutex<Option<LimitedReader>>,
}

/// Batches of an archive or of a cluster, with their original errors.
type Batches = Pin<Box<dyn Stream<Item = Result<RecordBatch, ArrowError>> + Send>>;

/// A stream of at most `left` more rows.
struct LimitedReader {
    schema: SchemaRef,
    stream: Source,
    left: usize,
}

enum Source {
    Stream(Batches),
    Ordered(Ordered),
}

impl ReadResult {
    /// The result of a read from an archive.
    pub fn new(stream: ReadStream) -> Self {
        Self::of_batches(stream.schema(), stream)
    }

    /// A result from any stream of batches with the same schema.
    pub fn of_batches<E: Error + Send + Sync + 'static>(
        schema: SchemaRef,
        stream: impl Stream<Item = Result<RecordBatch, E>> + Send + 'static,
    ) -> Self {
        let stream = stream.map(|batch| batch.map_err(|error| ArrowError::ExternalError(Box::new(error))));
        let rows = LimitedReader { schema: schema.clone(), stream: Source::Stream(stream.boxed()), left: usize::MAX };
        Self { schema, rows: Mutex::new(Some(rows)) }
    }

    /// Takes the stream; this object is consumed afterwards.
    pub fn take(&self) -> PyResult<Box<dyn RecordBatchReader + Send>> {
        Ok(Box::new(self.take_rows()?))
    }

    fn take_rows(&self) -> PyResult<LimitedReader> {
        self.lock().take().ok_or_else(|| {
            Fault::new(
                ErrorKind::ResultConsumed,
                "this result has been read already; a result streams its rows once: call read() again, or keep what \
                 to_arrow() returned",
            )
            .raise()
        })
    }

    fn lock(&self) -> MutexGuard<'_, Option<LimitedReader>> {
        // A panic while the lock was held cannot have left the option in an invalid state.
        self.rows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Iterator for LimitedReader {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        let external = |error: PyErr| ArrowError::ExternalError(Box::new(error));
        let next = match &mut self.stream {
            Source::Ordered(ordered) => ordered.next(),
            Source::Stream(stream) => match runtime().and_then(|runtime| block_on(runtime, stream.next())) {
                Err(error) => return Some(Err(external(error))),
                Ok(next) => next,
            },
        };
        let batch = match next? {
            Err(error) => return Some(Err(error)),
            Ok(batch) => batch,
        };
        let taken = batch.num_rows().min(self.left);
        self.left -= taken;
        Some(Ok(batch.slice(0, taken)))
    }
}

impl RecordBatchReader for LimitedReader {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
}

#[pymethods]
impl ReadResult {
    /// A result with the rows of a table.
    #[staticmethod]
    fn of_table(table: &Table) -> Self {
        let batches: Vec<Result<RecordBatch, ArrowError>> = table.batches().iter().cloned().map(Ok).collect();
        Self::of_batches(table.schema().clone(), futures::stream::iter(batches))
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        Ok(to_schema_pycapsule(py, self.schema.as_ref())?)
    }

    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyCapsule>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        stream_capsule(py, self.take()?, requested_schema)
    }

    /// Whether the rows have been taken.
    #[getter]
    fn consumed(&self) -> bool {
        self.lock().is_none()
    }

    /// Names of the columns.
    #[getter]
    fn column_names(&self) -> Vec<String> {
        self.schema.fields().iter().map(|field| field.name().clone()).collect()
    }

    /// Limits the result to the first `rows` rows.
    fn limit(&self, rows: usize) {
        if let Some(stream) = self.lock().as_mut() {
            stream.left = rows;
        }
    }

    /// Sorts the rows by columns, given as (name, descending), keeping at most `limit`. No rows are read yet.
    #[pyo3(signature = (keys, limit=None))]
    fn order_by(&self, keys: Vec<(String, bool)>, limit: Option<usize>) -> PyResult<Self> {
        let key = |(name, descending): &(String, bool)| {
            let column = self.schema.index_of(name).map_err(|_| {
                let hint = name_hint(name, &self.column_names());
                invalid(ErrorKind::InvalidRequest, format!("no column {name:?} to order by{hint}"))
            })?;
            Ok(OrderKey { column, descending: *descending })
        };
        let keys = keys.iter().map(key).collect::<PyResult<Vec<_>>>()?;
        let ordered = in_order(self.take()?, self.schema.clone(), &keys, limit).map_err(arrow_error)?;
        let rows = LimitedReader { schema: self.schema.clone(), stream: Source::Ordered(ordered), left: usize::MAX };
        Ok(Self { schema: self.schema.clone(), rows: Mutex::new(Some(rows)) })
    }

    /// All rows in memory.
    fn collect(&self, py: Python<'_>) -> PyResult<Table> {
        let rows = self.take_rows()?;
        let batches = py.detach(|| rows.collect::<Result<Vec<_>, _>>()).map_err(arrow_error)?;
        Ok(Table::new(self.schema.clone(), batches))
    }

    /// The next batch as a table, or None at the end, after which the result is consumed.
    fn next_batch(&self, py: Python<'_>) -> PyResult<Option<Table>> {
        // The rows are taken out, not locked, during the read: the read takes the interpreter lock to check signals,
        // and a thread that waits for the mutex would hold that lock. After an error, the result stays consumed.
        let mut rows = self.take_rows()?;
        let (batch, rows) = py.detach(move || (rows.next(), rows));
        let Some(batch) = batch else { return Ok(None) };
        let batch = batch.map_err(arrow_error)?;
        *self.lock() = Some(rows);
        Ok(Some(Table::new(self.schema.clone(), vec![batch])))
    }
}
