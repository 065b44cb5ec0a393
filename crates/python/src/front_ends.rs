//! Runs the front ends for events and jobs in Python: calls a Python object for each request and converts its answer
//! from bytes or Arrow.
//!
//! The interpreter lock is held only while Python code runs, not while this module processes bodies and rows.

use arrow_array::{RecordBatch, RecordBatchReader};
use chronotile_service::{Answer, FrontEnds, MemoryCharge, Refusal, Request};
use chronotile_types::ErrorKind;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyTuple};
use serde_json::{Map, Value};

use crate::errors::{arrow_error, memory_error};
use crate::runtime::until_given_up;
use crate::source;

/// A Python object with `answer(operation, name, parameters, body, hold)`. It returns JSON as bytes; or a tuple of a
/// JSON report, the number of documents stored and of lines refused; or rows with an Arrow PyCapsule method.
pub struct PythonFrontEnds {
    object: Py<PyAny>,
}

impl PythonFrontEnds {
    pub fn new(object: Py<PyAny>) -> Self {
        Self { object }
    }

    fn ask(&self, py: Python<'_>, request: &Request) -> PyResult<Answer> {
        let body = PyBytes::new(py, &request.body);
        let hold = ChargeHandle(request.held.clone());
        let arguments = (request.operation, &request.name, request.parameters.clone(), body, hold);
        let found = self.object.bind(py).call_method1("answer", arguments)?;
        if let Ok(text) = found.cast::<PyBytes>() {
            return Ok(Answer::Json(text.as_bytes().to_vec()));
        }
        if found.cast::<PyTuple>().is_ok() {
            let (report, documents, refused) = found.extract::<(Vec<u8>, u64, u64)>()?;
            return Ok(Answer::Stored { report, documents, refused });
        }
        let reader = source::open_one(&found)?;
        let schema = reader.schema();
        // The clone of the request keeps its memory charged until the rows are dropped.
        Ok(Answer::Rows { schema, batches: Box::new(Batches { reader, request: request.clone() }) })
    }
}

impl FrontEnds for PythonFrontEnds {
    fn answer(&self, request: Request) -> Result<Answer, Refusal> {
        until_given_up(request.given_up.clone(), || {
            Python::attach(|py| self.ask(py, &request).map_err(|error| refusal(py, &error)))
        })
    }
}

/// Charges the memory of an answer to the service: Python calls it with the total bytes before it allocates them.
#[pyclass(frozen)]
struct ChargeHandle(MemoryCharge);

#[pymethods]
impl ChargeHandle {
    fn __call__(&self, bytes: usize) -> PyResult<()> {
        self.0.set(bytes).map_err(memory_error)
    }
}

/// Rows from an archive or from Python. They end early if nobody waits for them any more.
struct Batches {
    reader: Box<dyn RecordBatchReader + Send>,
    request: Request,
}

impl Iterator for Batches {
    type Item = Result<RecordBatch, Refusal>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = until_given_up(self.request.given_up.clone(), || self.reader.next())?;
        Some(batch.map_err(|error| Python::attach(|py| refusal(py, &arrow_error(error)))))
    }
}

/// Converts an exception to the refusal that the client receives.
fn refusal(py: Python<'_>, error: &PyErr) -> Refusal {
    let value = error.value(py);
    let Some(kind) = kind_of(value) else {
        let message = format!("the service failed to answer, which is an internal error: {error}");
        return Refusal { kind: ErrorKind::Internal, message, details: Map::new(), retry_after_s: None };
    };
    let details = value.getattr("details").ok().and_then(|details| details.cast_into::<PyDict>().ok());
    let details = details.map(|details| plain(&details)).unwrap_or_default();
    let seconds = details.get("retry_after_s").and_then(Value::as_f64);
    let retry_after_s = seconds.map(|seconds| seconds.ceil().clamp(1.0, 86_400.0) as u32);
    Refusal { kind, message: value.to_string(), details, retry_after_s }
}

/// The error kind of an exception of this package; None for any other.
fn kind_of(value: &Bound<'_, PyAny>) -> Option<ErrorKind> {
    let base = value.py().import("chronotile.errors").ok()?.getattr("ChronotileError").ok()?;
    value.is_instance(&base).ok().filter(|is_ours| *is_ours)?;
    ErrorKind::named(&value.getattr("kind").ok()?.extract::<String>().ok()?)
}

fn plain(details: &Bound<'_, PyDict>) -> Map<String, Value> {
    let value = |value: &Bound<'_, PyAny>| {
        if value.is_none() {
            Value::Null
        } else if value.is_instance_of::<PyBool>() {
            // Tested before PyInt, because a bool of Python is also an int.
            value.extract::<bool>().map_or(Value::Null, Value::from)
        } else if value.is_instance_of::<PyInt>() {
            value.extract::<i64>().map_or_else(|_| value.to_string().into(), Value::from)
        } else if value.is_instance_of::<PyFloat>() {
            value.extract::<f64>().map_or(Value::Null, Value::from)
        } else {
            value.to_string().into()
        }
    };
    details.iter().map(|(name, found)| (name.to_string(), value(&found))).collect()
}
