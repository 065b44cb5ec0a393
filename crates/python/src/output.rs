//! Writes streams to files, for the command line.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::UInt32Type;
use arrow_array::{RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema as ArrowSchema, SchemaRef};
use chronotile_io::{OutFormat, Sink, TableOptions, WriteOptions};
use pyo3::prelude::*;

use crate::errors::{arrow_error, io_error};
use crate::files::ascii;
use crate::runtime::interruptible;
use crate::source;

/// Replaces the codes in the column `status` by the texts that a Python function returns; calls it once per code.
struct StatusLabels {
    function: Py<PyAny>,
    known: HashMap<u32, String>,
}

impl StatusLabels {
    fn new(function: Py<PyAny>) -> Self {
        Self { function, known: HashMap::new() }
    }

    fn is_status(field: &Field) -> bool {
        field.name() == "status" && field.data_type() == &DataType::UInt32
    }

    fn schema(&self, schema: &ArrowSchema) -> SchemaRef {
        let fields = schema.fields().iter().map(|field| {
            if Self::is_status(field) { Arc::new(Field::new("status", DataType::Utf8, true)) } else { field.clone() }
        });
        Arc::new(ArrowSchema::new(fields.collect::<Vec<_>>()))
    }

    fn apply(&mut self, batch: &RecordBatch, schema: &SchemaRef) -> PyResult<RecordBatch> {
        let mut columns = batch.columns().to_vec();
        for (place, field) in batch.schema().fields().iter().enumerate() {
            if Self::is_status(field) {
                let codes = columns[place].as_primitive::<UInt32Type>().clone();
                for code in codes.iter().flatten() {
                    if let Entry::Vacant(place) = self.known.entry(code) {
                        let label = Python::attach(|py| self.function.call1(py, (code,))?.extract::<String>(py))?;
                        place.insert(label);
                    }
                }
                let labels = codes.iter().map(|code| code.and_then(|code| self.known.get(&code)));
                columns[place] = Arc::new(labels.map(|label| label.map(String::as_str)).collect::<StringArray>());
            }
        }
        RecordBatch::try_new(schema.clone(), columns).map_err(arrow_error)
    }
}

/// Writes a table or stream to a file, or to standard output if `path` is `-`; returns the number of rows.
#[pyfunction]
#[pyo3(signature = (
    rows, path, format, *, overwrite=false, delimiter=None, header=true, null="", table_rows=40, table_width=None,
    status_label=None
))]
#[allow(clippy::too_many_arguments, reason = "the keyword arguments of one Python function")]
pub fn write_records(
    py: Python<'_>,
    rows: &Bound<'_, PyAny>,
    path: &str,
    format: &str,
    overwrite: bool,
    delimiter: Option<char>,
    header: bool,
    null: &str,
    table_rows: usize,
    table_width: Option<usize>,
    status_label: Option<Py<PyAny>>,
) -> PyResult<u64> {
    let format = OutFormat::from_str(format).map_err(|error| io_error(error.into()))?;
    let options = WriteOptions {
        row_group_bytes: None,
        overwrite,
        delimiter: delimiter.map(ascii).transpose()?,
        no_header: !header,
        null: null.to_owned(),
        table: TableOptions { max_rows: table_rows, width: table_width, ..TableOptions::default() },
    };
    let rows = source::open_one(rows)?;
    let sink = Sink::of_argument(path);
    let mut labels = status_label.map(StatusLabels::new);
    let schema = labels.as_ref().map_or_else(|| rows.schema(), |labels| labels.schema(&rows.schema()));
    let written = schema.clone();
    let mut writer =
        // Opening may block, such as for a pipe that has no reader.
        interruptible(py, move || chronotile_io::writer(sink, format, written, &options))?.map_err(io_error)?;
    py.detach(|| {
        for batch in rows {
            Python::attach(|py| py.check_signals())?;
            let batch = batch.map_err(arrow_error)?;
            let batch = match &mut labels {
                Some(labels) => labels.apply(&batch, &schema)?,
                None => batch,
            };
            writer.write(&batch).map_err(io_error)?;
        }
        writer.finish().map_err(io_error)
    })
}

/// The output format for the extension of a path.
#[pyfunction]
pub fn format_of_path(path: &str) -> PyResult<String> {
    let format = OutFormat::of_path(Path::new(path)).map_err(|error| io_error(error.into()))?;
    let label = match format {
        OutFormat::ArrowStream => "arrow-stream",
        OutFormat::Arrow => "arrow",
        OutFormat::Csv => "csv",
        OutFormat::Tsv => "tsv",
        OutFormat::Ndjson => "ndjson",
        OutFormat::Parquet => "parquet",
        OutFormat::Table => "table",
        // Formats that the io crate may add later are named by their `Display`.
        other => return Ok(other.to_string().to_lowercase()),
    };
    Ok(label.to_owned())
}
