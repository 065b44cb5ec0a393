//! Rows from Python, as an iterator of record batches.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array as _, RecordBatch, RecordBatchIterator, RecordBatchOptions, RecordBatchReader};
use arrow_schema::{ArrowError, DataType, Field, Fields, Schema};
use chronotile_types::ErrorKind;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyIterator;
use pyo3_arrow::input::AnyArray;

use crate::arrow::{Table, check_sound};
use crate::errors::{arrow_error, invalid};
use crate::files::{RecordBlock, RecordFile};
use crate::result::ReadResult;

/// The rows of one write.
pub type BatchIterator = Box<dyn Iterator<Item = Result<RecordBatch, ArrowError>> + Send>;

/// Opens an object with an Arrow PyCapsule method, or an iterator of such objects, which is consumed as rows are
/// needed.
pub fn open(source: &Bound<'_, PyAny>) -> PyResult<BatchIterator> {
    if is_arrow(source)? {
        return Ok(Box::new(open_one(source)?));
    }
    let items = source.cast::<PyIterator>().map_err(|_| {
        let kind = source.get_type().name().map_or_else(|_| "object".to_owned(), |name| name.to_string());
        invalid(
            ErrorKind::InvalidRows,
            format!("cannot take rows from a {kind}: give an object with __arrow_c_stream__"),
        )
    })?;
    Ok(Box::new(Items { items: items.clone().unbind(), current: None }))
}

fn is_arrow(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(object.hasattr("__arrow_c_stream__")? || object.hasattr("__arrow_c_array__")?)
}

/// Opens one table or stream. Streams of this module bypass the C interface, which would reduce their errors to text.
pub fn open_one(source: &Bound<'_, PyAny>) -> PyResult<Box<dyn RecordBatchReader + Send>> {
    if let Ok(result) = source.cast::<ReadResult>() {
        return result.get().take();
    }
    if let Ok(file) = source.cast::<RecordFile>() {
        return file.get().take();
    }
    if let Ok(block) = source.cast::<RecordBlock>() {
        return Ok(block.get().take());
    }
    imported(source).map_err(|error| {
        // Exceptions of the object's own method are passed on; only errors about the schema are reworded.
        if error.is_instance_of::<PyValueError>(source.py()) {
            return invalid(
                ErrorKind::InvalidRows,
                format!("the rows cannot be taken as a table: {}", error.value(source.py())),
            );
        }
        error
    })
}

/// Imports rows through the C interface. Every column is treated as nullable, whatever its schema says: the archive
/// refuses nulls where the dataset does not allow them, and names the row.
fn imported(source: &Bound<'_, PyAny>) -> PyResult<Box<dyn RecordBatchReader + Send>> {
    let arrays = source.extract::<AnyArray>()?.into_reader()?;
    let field = arrays.field();
    let DataType::Struct(fields) = field.data_type() else {
        return Err(PyValueError::new_err(format!("they are one column of {}", field.data_type())));
    };
    let fields: Fields = fields.iter().map(|field| Field::clone(field).with_nullable(true)).collect();
    let schema = Arc::new(Schema::new_with_metadata(fields, field.metadata().clone()));
    let batch_schema = schema.clone();
    let batches = arrays.map(move |array| {
        let array = array?;
        let rows = array.as_struct();
        if rows.null_count() > 0 {
            return Err(ArrowError::InvalidArgumentError("a row is null as a whole, not in its columns".to_owned()));
        }
        for (field, column) in batch_schema.fields().iter().zip(rows.columns()) {
            check_sound(column, field.name())?;
        }
        // Without columns, a batch cannot know its number of rows.
        let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
        RecordBatch::try_new_with_options(batch_schema.clone(), rows.columns().to_vec(), &options)
    });
    Ok(Box::new(RecordBatchIterator::new(batches, schema)))
}

/// All rows of a table or stream.
#[pyfunction]
pub fn read_table(py: Python<'_>, source: &Bound<'_, PyAny>) -> PyResult<Table> {
    let reader = open_one(source)?;
    let schema = reader.schema();
    let batches = py.detach(|| reader.collect::<Result<Vec<_>, _>>()).map_err(arrow_error)?;
    Ok(Table::new(schema, batches))
}

/// The tables of a Python iterator, one after the other.
struct Items {
    items: Py<PyIterator>,
    current: Option<Box<dyn RecordBatchReader + Send>>,
}

impl Items {
    fn advance(&mut self) -> Option<PyResult<()>> {
        Python::attach(|py| {
            let item = self.items.bind(py).clone().next()?;
            Some(item.and_then(|item| open_one(&item)).map(|reader| self.current = Some(reader)))
        })
    }
}

impl Iterator for Items {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(batch) = self.current.as_mut().and_then(Iterator::next) {
                return Some(batch);
            }
            self.current = None;
            match self.advance()? {
                Ok(()) => {}
                Err(error) => return Some(Err(ArrowError::ExternalError(Box::new(error)))),
            }
        }
    }
}
