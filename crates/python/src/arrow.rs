//! Schemas, arrays and tables, exchanged between Python and Rust through the Arrow PyCapsule interface without a Python
//! Arrow library.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array as _, ArrayRef, RecordBatch, RecordBatchIterator, RecordBatchReader, StructArray};
use arrow_schema::{ArrowError, Field, Schema as ArrowSchema, SchemaRef};
use arrow_select::concat::concat;
use chronotile_types::ErrorKind;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};
use pyo3_arrow::ffi::{ArrayIterator, to_array_pycapsules, to_schema_pycapsule, to_stream_pycapsule};
use pyo3_arrow::input::AnyArray;
use pyo3_arrow::{PyRecordBatchReader, PySchema};

use crate::errors::{arrow_error, invalid, io_error};

/// Column names and types.
#[pyclass(frozen, module = "chronotile._native")]
pub struct Schema {
    pub inner: SchemaRef,
}

#[pymethods]
impl Schema {
    /// From an object with `__arrow_c_schema__`, or a table or stream; a stream is opened only for its schema.
    #[staticmethod]
    fn of(source: &Bound<'_, PyAny>) -> PyResult<Self> {
        let schema = if source.hasattr("__arrow_c_schema__")? {
            source.extract::<PySchema>()?.into_inner()
        } else if source.hasattr("__arrow_c_array__")? {
            source.extract::<pyo3_arrow::PyRecordBatch>()?.into_inner().schema()
        } else {
            source.extract::<PyRecordBatchReader>()?.schema_ref()?
        };
        Ok(Self { inner: without_hints(&schema) })
    }

    /// From (name, type) pairs, the type as text: `float64`, `timestamp[us]`, `list<int32>`.
    #[staticmethod]
    fn of_types(columns: Vec<(String, String)>) -> PyResult<Self> {
        let field = |(name, kind): (String, String)| {
            let data_type = chronotile_io::parse_type(&kind).map_err(io_error)?;
            Ok(Field::new(name, data_type, true))
        };
        let fields = columns.into_iter().map(field).collect::<PyResult<Vec<_>>>()?;
        Ok(Self { inner: Arc::new(ArrowSchema::new(fields)) })
    }

    /// (name, type as text, may be null) of each column.
    fn columns(&self) -> Vec<(String, String, bool)> {
        let describe = |f: &Arc<Field>| (f.name().clone(), chronotile_io::format_type(f.data_type()), f.is_nullable());
        self.inner.fields().iter().map(describe).collect()
    }

    /// The schema with further columns appended.
    fn with_columns(&self, more: &Schema) -> Self {
        let fields: Vec<_> = self.inner.fields().iter().chain(more.inner.fields()).cloned().collect();
        Self { inner: Arc::new(ArrowSchema::new_with_metadata(fields, self.inner.metadata().clone())) }
    }

    /// A table with this schema and no rows.
    fn empty_table(&self) -> Table {
        Table::new(self.inner.clone(), vec![])
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        Ok(to_schema_pycapsule(py, self.inner.as_ref())?)
    }
}

/// Refuses an array from the C interface whose offsets, text, dictionary indices or nulls contradict its type: pyarrow
/// and others build arrays from unchecked buffers. The lengths of the buffers cannot be checked.
pub fn check_sound(array: &ArrayRef, name: &str) -> Result<(), ArrowError> {
    let wrong =
        |error| ArrowError::InvalidArgumentError(format!("the values of {name:?} contradict their type: {error}"));
    array.to_data().validate_full().map_err(wrong)
}

/// Removes the metadata that pandas and pyarrow add about the original table. Otherwise, converting a read to a
/// DataFrame would look for an index that the dataset does not store.
fn without_hints(schema: &ArrowSchema) -> SchemaRef {
    let mut metadata = schema.metadata().clone();
    metadata.retain(|key, _| key != "pandas" && key != "ARROW:schema");
    Arc::new(ArrowSchema::new_with_metadata(schema.fields().clone(), metadata))
}

/// One column of values.
#[pyclass(frozen, module = "chronotile._native")]
pub struct Array {
    pub inner: ArrayRef,
}

#[pymethods]
impl Array {
    /// From an object with `__arrow_c_array__` or `__arrow_c_stream__`; the arrays of a stream are concatenated.
    #[staticmethod]
    fn of(py: Python<'_>, source: &Bound<'_, PyAny>) -> PyResult<Self> {
        let reader = source.extract::<AnyArray>()?.into_reader()?;
        let data_type = reader.field().data_type().clone();
        py.detach(|| {
            let pieces = reader.collect::<Result<Vec<_>, _>>()?;
            pieces.iter().try_for_each(|piece| check_sound(piece, "the column"))?;
            let pieces: Vec<&dyn arrow_array::Array> = pieces.iter().map(AsRef::as_ref).collect();
            if pieces.is_empty() { Ok(arrow_array::new_empty_array(&data_type)) } else { concat(&pieces) }
        })
        .map(|inner| Self { inner })
        .map_err(arrow_error)
    }

    /// The type as text.
    #[getter]
    fn r#type(&self) -> String {
        chronotile_io::format_type(self.inner.data_type())
    }

    fn __len__(&self) -> usize {
        self.inner.len()
    }

    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyCapsule>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let field = Arc::new(Field::new("", self.inner.data_type().clone(), true));
        Ok(to_array_pycapsules(py, field, &self.inner, requested_schema)?)
    }
}

/// Rows in memory.
#[pyclass(frozen, module = "chronotile._native")]
pub struct Table {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
}

impl Table {
    pub fn new(schema: SchemaRef, batches: Vec<RecordBatch>) -> Self {
        Self { schema, batches }
    }

    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    pub fn batches(&self) -> &[RecordBatch] {
        &self.batches
    }
}

#[pymethods]
impl Table {
    /// From (name, column) pairs of equal length.
    #[staticmethod]
    fn of_columns(columns: Vec<(String, PyRef<'_, Array>)>) -> PyResult<Self> {
        let first = columns.first().map_or(0, |(_, array)| array.inner.len());
        if let Some((name, array)) = columns.iter().find(|(_, array)| array.inner.len() != first) {
            let message = format!(
                "column {name:?} has {} values, column {:?} has {first}: give arrays of equal length",
                array.inner.len(),
                columns[0].0
            );
            return Err(invalid(ErrorKind::InvalidRows, message));
        }
        let fields: Vec<_> =
            columns.iter().map(|(name, array)| Field::new(name, array.inner.data_type().clone(), true)).collect();
        let schema = Arc::new(ArrowSchema::new(fields));
        let arrays = columns.iter().map(|(_, array)| array.inner.clone()).collect();
        let batch = RecordBatch::try_new(schema.clone(), arrays).map_err(arrow_error)?;
        Ok(Self::new(schema, vec![batch]))
    }

    /// The distinct texts of a column, sorted.
    fn distinct_texts(&self, column: &str) -> PyResult<Vec<String>> {
        let missing = || invalid(ErrorKind::InvalidRows, format!("the rows have no column {column:?}"));
        let mut texts = std::collections::BTreeSet::new();
        for batch in &self.batches {
            let array = batch.column_by_name(column).ok_or_else(missing)?;
            let array = arrow_cast::cast(array, &arrow_schema::DataType::Utf8).map_err(arrow_error)?;
            texts.extend(array.as_string::<i32>().iter().flatten().map(str::to_owned));
        }
        Ok(texts.into_iter().collect())
    }

    #[getter]
    fn num_rows(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
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
        let reader = RecordBatchIterator::new(self.batches.clone().into_iter().map(Ok), self.schema.clone());
        stream_capsule(py, Box::new(reader), requested_schema)
    }
}

/// The capsule of `__arrow_c_stream__` for a stream of batches.
pub fn stream_capsule<'py>(
    py: Python<'py>,
    reader: Box<dyn RecordBatchReader + Send>,
    requested_schema: Option<Bound<'py, PyCapsule>>,
) -> PyResult<Bound<'py, PyAny>> {
    let schema = reader.schema();
    let field = Field::new_struct("", schema.fields().clone(), false).with_metadata(schema.metadata().clone());
    let arrays = reader.map(|batch| batch.map(|batch| Arc::new(StructArray::from(batch)) as ArrayRef));
    let arrays = Box::new(ArrayIterator::new(arrays, Arc::new(field)));
    Ok(to_stream_pycapsule(py, arrays, requested_schema)?.into_any())
}
