//! Rows as Arrow IPC streams, for clients of the service.

use std::io::{self, Read};

use arrow_ipc::writer::StreamWriter;
use arrow_schema::{ArrowError, SchemaRef};
use chronotile_io::IpcStream;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errors::arrow_error;
use crate::result::ReadResult;
use crate::source;

/// Encodes the rows of a table, a stream or an iterator of these as Arrow IPC streams: one for each run of batches with
/// the same schema.
#[pyfunction]
pub fn arrow_streams<'py>(py: Python<'py>, rows: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
    let rows = source::open(rows)?;
    let encoded = py.detach(|| -> Result<Vec<Vec<u8>>, ArrowError> {
        let mut done = Vec::new();
        let mut open: Option<(SchemaRef, StreamWriter<Vec<u8>>)> = None;
        for batch in rows {
            let batch = batch?;
            // An IPC stream has one schema, so a batch with another one begins a new stream.
            if let Some((_, writer)) = open.take_if(|(schema, _)| *schema != batch.schema()) {
                done.push(writer.into_inner()?);
            }
            let (_, writer) = match &mut open {
                Some(open) => open,
                None => open.insert((batch.schema(), StreamWriter::try_new(Vec::new(), &batch.schema())?)),
            };
            writer.write(&batch)?;
        }
        if let Some((_, writer)) = open {
            done.push(writer.into_inner()?);
        }
        Ok(done)
    });
    Ok(encoded.map_err(arrow_error)?.iter().map(|bytes| PyBytes::new(py, bytes)).collect())
}

/// The rows of an Arrow IPC stream that is read in pieces with `source.read(count)`.
#[pyfunction]
pub fn read_arrow_stream(py: Python<'_>, source: Py<PyAny>) -> PyResult<ReadResult> {
    let reader = py.detach(|| IpcStream::open(Box::new(PythonReader { source }))).map_err(raised)?;
    let schema = reader.schema();
    Ok(ReadResult::of_batches(schema, futures::stream::iter(reader.map(|batch| batch.map_err(raised)))))
}

/// The exception that the Python object raised, or one that describes the invalid bytes.
fn raised(error: ArrowError) -> PyErr {
    match error {
        ArrowError::IoError(text, source) => match source.downcast::<PyErr>() {
            Ok(error) => error,
            Err(source) => arrow_error(ArrowError::IoError(text, source)),
        },
        other => arrow_error(other),
    }
}

/// A reader over a Python object. Exceptions that it raises are passed on unchanged.
struct PythonReader {
    source: Py<PyAny>,
}

impl Read for PythonReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Python::attach(|py| {
            let piece = self.source.call_method1(py, "read", (buffer.len(),)).map_err(io::Error::other)?;
            let piece = piece.bind(py).cast::<PyBytes>().map_err(|error| io::Error::other(error.to_string()))?;
            let bytes = piece.as_bytes();
            if bytes.len() > buffer.len() {
                let (wanted, got) = (buffer.len(), bytes.len());
                return Err(io::Error::other(format!("read({wanted}) of the source returned {got} bytes")));
            }
            buffer[..bytes.len()].copy_from_slice(bytes);
            Ok(bytes.len())
        })
    }
}
