//! The historian: one method for each operation of the historian crate on tags, points and aggregates.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type, TimestampNanosecondType, UInt32Type};
use arrow_array::{Array as _, Float64Array, RecordBatch, TimestampNanosecondArray, UInt32Array};
use arrow_schema::{DataType as ArrowType, Field, Schema as ArrowSchema, TimeUnit};
use chronotile_archive::exact_values;
use chronotile_historian::rules::{Aggregate, Calculator, Grid, Settings};
use chronotile_historian::{
    AggregateRequest, DataType, Downsampling, Historian as Inner, HistorianError, HistorianOptions, NotFinite,
    PointFilter as InnerFilter, PointsOptions, RawRequest, Tag, TagKey,
};
use chronotile_types::ErrorKind;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::archive::Archive;
use crate::arrow::Table;
use crate::errors::{Fault, arrow_error, historian_error, invalid};
use crate::result::ReadResult;
use crate::runtime::{runtime, wait_with};
use crate::source;

/// A tag by name or number.
#[derive(FromPyObject)]
pub enum Key {
    Number(i64),
    Name(String),
}

impl From<Key> for TagKey {
    fn from(key: Key) -> Self {
        match key {
            Key::Number(number) => Self::Number(number),
            Key::Name(name) => Self::Name(name),
        }
    }
}

fn keys(given: Vec<Key>) -> Vec<TagKey> {
    given.into_iter().map(TagKey::from).collect()
}

/// The definition of a tag, as a Python dictionary.
#[derive(FromPyObject)]
struct Definition {
    #[pyo3(item)]
    number: i64,
    #[pyo3(item)]
    name: String,
    #[pyo3(item)]
    unit: String,
    #[pyo3(item)]
    description: String,
    #[pyo3(item)]
    group: String,
    #[pyo3(item)]
    data_type: String,
    #[pyo3(item)]
    stepped: bool,
    #[pyo3(item)]
    treat_uncertain_as_bad: bool,
    #[pyo3(item)]
    percent_good: f64,
    #[pyo3(item)]
    percent_bad: f64,
    #[pyo3(item)]
    sloped_extrapolation: bool,
    #[pyo3(item)]
    exception_deviation: f64,
    #[pyo3(item)]
    compression_deviation: f64,
}

impl Definition {
    fn tag(self) -> PyResult<Tag> {
        let unknown = || {
            let message =
                format!("unknown data type {:?} of a tag: use float, integer, bool or string", self.data_type);
            invalid(ErrorKind::InvalidTag, message)
        };
        let data_type = DataType::from_name(&self.data_type).ok_or_else(unknown)?;
        Ok(Tag {
            number: self.number,
            name: self.name,
            unit: self.unit,
            description: self.description,
            group: self.group,
            data_type,
            settings: Settings {
                stepped: self.stepped,
                treat_uncertain_as_bad: self.treat_uncertain_as_bad,
                percent_good: self.percent_good,
                percent_bad: self.percent_bad,
                sloped_extrapolation: self.sloped_extrapolation,
                ..Settings::default()
            },
            exception_deviation: self.exception_deviation,
            compression_deviation: self.compression_deviation,
        })
    }
}

/// Options of an aggregate. For an option that is None, the setting of the tag applies.
#[derive(FromPyObject)]
pub struct Overrides {
    #[pyo3(item)]
    stepped: Option<bool>,
    #[pyo3(item)]
    treat_uncertain_as_bad: Option<bool>,
    #[pyo3(item)]
    percent_good: Option<f64>,
    #[pyo3(item)]
    percent_bad: Option<f64>,
    #[pyo3(item)]
    sloped_extrapolation: Option<bool>,
    #[pyo3(item)]
    percent: f64,
    #[pyo3(item)]
    sample_results: bool,
    #[pyo3(item)]
    points_only: bool,
}

fn aggregate_named(name: &str) -> PyResult<Aggregate> {
    Aggregate::from_name(name)
        .ok_or_else(|| invalid(ErrorKind::InvalidRequest, Aggregate::unknown(name, &format!("{name:?}"))))
}

/// Tags and their points in an archive. All methods fail once the archive is closed.
#[pyclass(frozen, module = "chronotile._native")]
pub struct Historian {
    inner: RwLock<Option<Arc<Inner>>>,
    archive: Py<Archive>,
}

impl Historian {
    fn open_inner(&self) -> PyResult<Arc<Inner>> {
        let closed = || Fault::new(ErrorKind::Closed, "the historian is closed: open it again").raise();
        self.archive.get().open_inner()?;
        self.inner.read().unwrap_or_else(PoisonError::into_inner).clone().ok_or_else(closed)
    }
}

fn wait<T: Send>(py: Python<'_>, future: impl Future<Output = Result<T, HistorianError>> + Send) -> PyResult<T> {
    wait_with(py, future, historian_error)
}

fn table(batches: Vec<RecordBatch>) -> Table {
    let schema = batches.first().map_or_else(|| Arc::new(ArrowSchema::empty()), RecordBatch::schema);
    Table::new(schema, batches)
}

#[pymethods]
impl Historian {
    #[staticmethod]
    fn open(py: Python<'_>, archive: Py<Archive>, create: bool, future_max_ns: Option<i64>) -> PyResult<Self> {
        let inner = archive.get().open_inner()?;
        let options = HistorianOptions { create, future_max_ns };
        let historian = wait(py, Inner::open(inner, options))?;
        Ok(Self { inner: RwLock::new(Some(Arc::new(historian))), archive })
    }

    /// Releases the archive without closing it.
    fn close(&self) {
        self.inner.write().unwrap_or_else(PoisonError::into_inner).take();
    }

    #[getter]
    fn closed(&self) -> bool {
        self.open_inner().is_err()
    }

    fn define(&self, py: Python<'_>, tags: Vec<Definition>) -> PyResult<Table> {
        let inner = self.open_inner()?;
        let tags = tags.into_iter().map(Definition::tag).collect::<PyResult<Vec<_>>>()?;
        let defined = wait(py, inner.define(tags))?;
        Ok(table(vec![Inner::table(&defined).map_err(historian_error)?]))
    }

    /// Tags whose names match a pattern.
    fn tags(&self, py: Python<'_>, pattern: &str, limit: usize) -> PyResult<Table> {
        let inner = self.open_inner()?;
        let found = wait(py, inner.find(pattern, limit))?;
        Ok(table(vec![Inner::table(&found).map_err(historian_error)?]))
    }

    /// Tags by name or number.
    fn resolve(&self, py: Python<'_>, tags: Vec<Key>) -> PyResult<Table> {
        let inner = self.open_inner()?;
        let found = wait(py, inner.resolve(&keys(tags)))?;
        Ok(table(vec![Inner::table(&found).map_err(historian_error)?]))
    }

    fn refresh(&self, py: Python<'_>) -> PyResult<()> {
        let inner = self.open_inner()?;
        wait(py, async {
            inner.refresh().await;
            Ok(())
        })
    }

    /// Stores points; returns (points, duplicates, whether anything was stored).
    fn write(
        &self,
        py: Python<'_>,
        rows: &Bound<'_, PyAny>,
        batch: Option<String>,
        replace: bool,
        bad_values: bool,
    ) -> PyResult<(u64, u64, bool)> {
        let inner = self.open_inner()?;
        let rows = source::open(rows)?;
        let not_finite = if bad_values { NotFinite::Bad } else { NotFinite::Refuse };
        let options = PointsOptions { batch, replace, not_finite };
        let batches = py.detach(|| rows.collect::<Result<Vec<_>, _>>()).map_err(arrow_error)?;
        let report = wait(py, inner.write(batches, &options))?;
        Ok((report.points, report.duplicates, report.stored))
    }

    /// The points that pass a filter, as tables, since their columns may differ.
    fn filter(&self, py: Python<'_>, filter: &PointFilter, rows: &Bound<'_, PyAny>) -> PyResult<Vec<Table>> {
        let inner = self.open_inner()?;
        let rows = source::open(rows)?;
        let batches = py.detach(|| rows.collect::<Result<Vec<_>, _>>()).map_err(arrow_error)?;
        let passed = wait(py, inner.filter(&filter.inner, batches))?;
        Ok(passed.into_iter().map(|batch| table(vec![batch])).collect())
    }

    fn delete(&self, py: Python<'_>, tag: Key, start: i64, end: i64) -> PyResult<u64> {
        let inner = self.open_inner()?;
        wait(py, inner.delete(&tag.into(), start, end))
    }

    fn raw(&self, py: Python<'_>, tags: Vec<Key>, start: i64, end: i64, bounds: bool) -> PyResult<ReadResult> {
        let inner = self.open_inner()?;
        let batches = wait(py, inner.raw(RawRequest { tags: keys(tags), start, end, bounds }))?;
        Ok(ReadResult::of_batches(batches.schema, batches.stream))
    }

    fn latest(&self, py: Python<'_>, tags: Vec<Key>) -> PyResult<Table> {
        let inner = self.open_inner()?;
        Ok(table(wait(py, inner.latest(&keys(tags)))?))
    }

    fn at(&self, py: Python<'_>, tags: Vec<Key>, times: Vec<i64>, stepped: Option<bool>) -> PyResult<Table> {
        let inner = self.open_inner()?;
        Ok(table(wait(py, inner.at(&keys(tags), &times, stepped))?))
    }

    #[allow(clippy::too_many_arguments, reason = "the parts of a request")]
    fn aggregate(
        &self,
        py: Python<'_>,
        tags: Vec<Key>,
        start: i64,
        end: i64,
        interval: i64,
        aggregate: &str,
        overrides: Overrides,
    ) -> PyResult<ReadResult> {
        let inner = self.open_inner()?;
        let request = AggregateRequest {
            tags: keys(tags),
            start,
            end,
            interval,
            aggregate: aggregate_named(aggregate)?,
            stepped: overrides.stepped,
            treat_uncertain_as_bad: overrides.treat_uncertain_as_bad,
            percent_good: overrides.percent_good,
            percent_bad: overrides.percent_bad,
            sloped_extrapolation: overrides.sloped_extrapolation,
            percent: overrides.percent,
            sample_results: overrides.sample_results,
            points_only: overrides.points_only,
        };
        let batches = wait(py, inner.aggregate(request))?;
        Ok(ReadResult::of_batches(batches.schema, batches.stream))
    }

    fn plot(&self, py: Python<'_>, tag: Key, start: i64, end: i64, count: usize, method: &str) -> PyResult<Table> {
        let inner = self.open_inner()?;
        let how = match method {
            "lttb" => Downsampling::Lttb,
            "minmax" => Downsampling::MinMax,
            other => {
                return Err(invalid(
                    ErrorKind::InvalidRequest,
                    format!("unknown plot method {other:?}: use lttb or minmax"),
                ));
            }
        };
        Ok(table(vec![wait(py, inner.plot(&tag.into(), start, end, count, how))?]))
    }

    fn annotate(&self, py: Python<'_>, tag: Key, time: i64, author: &str, text: &str) -> PyResult<()> {
        let inner = self.open_inner()?;
        wait(py, inner.annotate(&tag.into(), time, author, text))
    }

    fn annotations(&self, py: Python<'_>, tags: Vec<Key>, start: i64, end: i64) -> PyResult<ReadResult> {
        let inner = self.open_inner()?;
        Ok(ReadResult::new(wait(py, inner.annotations(&keys(tags), start, end))?))
    }

    fn groups(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let inner = self.open_inner()?;
        wait(py, inner.groups())
    }

    fn set_retention(&self, py: Python<'_>, group: &str, retention: Option<&str>) -> PyResult<()> {
        let inner = self.open_inner()?;
        let bad = |error: chronotile_types::TimeError| invalid(ErrorKind::InvalidTime, error.to_string());
        let retention = retention.map(str::parse).transpose().map_err(bad)?;
        wait(py, inner.set_retention(group, retention))
    }

    fn retire(&self, py: Python<'_>, group: &str, dry_run: bool) -> PyResult<u64> {
        let inner = self.open_inner()?;
        wait(py, inner.retire(group, dry_run))
    }

    /// Returns (tiles consolidated, tiles summarized, hours stored, tiles that failed).
    fn maintain(&self, py: Python<'_>) -> PyResult<(u64, u64, u64, Vec<String>)> {
        let inner = self.open_inner()?;
        let report = wait(py, inner.maintain())?;
        Ok((report.tiles_consolidated, report.tiles_summarized, report.hours, report.failed))
    }
}

/// State of exception and compression filtering for the points that pass through it.
#[pyclass(frozen, module = "chronotile._native")]
#[derive(Default)]
pub struct PointFilter {
    inner: Mutex<InnerFilter>,
}

#[pymethods]
impl PointFilter {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// The points that the filter still holds back.
    fn finish(&self) -> PyResult<Table> {
        let mut filter = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(table(vec![filter.finish().map_err(historian_error)?]))
    }
}

/// Names of the aggregates.
#[pyfunction]
pub fn aggregate_names() -> Vec<String> {
    Aggregate::ALL.iter().map(|aggregate| aggregate.name().to_owned()).collect()
}

/// The distinct tags in the column `tag` of points: names or numbers.
#[pyfunction]
pub fn tags_of_points<'py>(py: Python<'py>, points: PyRef<'_, Table>) -> PyResult<Bound<'py, PyAny>> {
    let (mut names, mut numbers) = (BTreeSet::new(), BTreeSet::new());
    for batch in points.batches() {
        let Some(column) = batch.column_by_name("tag") else { continue };
        let wanted = if column.data_type().is_integer() { ArrowType::Int64 } else { ArrowType::Utf8 };
        let column = arrow_cast::cast(column, &wanted).map_err(arrow_error)?;
        match wanted {
            ArrowType::Int64 => numbers.extend(column.as_primitive::<Int64Type>().iter().flatten()),
            _ => names.extend(column.as_string::<i32>().iter().flatten().map(str::to_owned)),
        }
    }
    let names: Vec<String> = names.into_iter().collect();
    if names.is_empty() { numbers.into_iter().collect::<Vec<i64>>().into_pyobject(py) } else { names.into_pyobject(py) }
}

/// The values of a table of tags, by column.
#[pyfunction]
pub fn tag_columns<'py>(py: Python<'py>, table: PyRef<'_, Table>) -> PyResult<Bound<'py, PyDict>> {
    let columns = PyDict::new(py);
    for batch in table.batches() {
        for (field, array) in batch.schema().fields().iter().zip(batch.columns()) {
            let values: Bound<'py, PyAny> = match array.data_type() {
                ArrowType::Utf8 => array.as_string::<i32>().iter().collect::<Vec<_>>().into_pyobject(py)?,
                ArrowType::Boolean => array.as_boolean().iter().collect::<Vec<_>>().into_pyobject(py)?,
                ArrowType::Float64 => {
                    array.as_primitive::<Float64Type>().iter().collect::<Vec<_>>().into_pyobject(py)?
                }
                _ => array.as_primitive::<Int64Type>().iter().collect::<Vec<_>>().into_pyobject(py)?,
            };
            columns.set_item(field.name(), values)?;
        }
    }
    Ok(columns)
}

/// Computes an aggregate of points in memory: batches with columns time, value and optionally status, in ascending
/// time.
#[pyfunction]
pub fn compute_aggregate(
    py: Python<'_>,
    points: &Bound<'_, PyAny>,
    range: (i64, i64, i64),
    aggregate: &str,
    overrides: Overrides,
) -> PyResult<Table> {
    runtime()?;
    let standard = Settings::default();
    let settings = Settings {
        stepped: overrides.stepped.unwrap_or(standard.stepped),
        treat_uncertain_as_bad: overrides.treat_uncertain_as_bad.unwrap_or(standard.treat_uncertain_as_bad),
        percent_good: overrides.percent_good.unwrap_or(standard.percent_good),
        percent_bad: overrides.percent_bad.unwrap_or(standard.percent_bad),
        sloped_extrapolation: overrides.sloped_extrapolation.unwrap_or(standard.sloped_extrapolation),
        percent: overrides.percent,
        sample_results: overrides.sample_results,
    };
    let refused = |error: &dyn std::fmt::Display| invalid(ErrorKind::InvalidRequest, error.to_string());
    settings.check().map_err(|error| refused(&error))?;
    let grid = Grid::new(range.0, range.1, range.2).map_err(|error| refused(&error))?;
    let mut calculator = Calculator::new(aggregate_named(aggregate)?, settings, grid);
    let batches = source::open(points)?;
    let batches = py.detach(|| batches.collect::<Result<Vec<_>, _>>()).map_err(arrow_error)?;
    let mut last = i64::MIN;
    for batch in &batches {
        let (times, values, statuses) = series(batch)?;
        let times = times.values();
        let first = times.first().copied().unwrap_or(last);
        if first < last || !times.is_sorted() {
            return Err(invalid(ErrorKind::InvalidRows, "the points are not in ascending time: sort them"));
        }
        last = times.last().copied().unwrap_or(last);
        let pushed = calculator.push(times, values.values(), statuses.as_ref().map(|codes| codes.values().as_ref()));
        pushed.map_err(|error| refused(&error))?;
    }
    let mut output = calculator.finish();
    if grid.backward() {
        output.reverse();
    }
    // The calculator marks intervals without a value by NaN.
    let values: Float64Array = output.values.iter().map(|value| (!value.is_nan()).then_some(*value)).collect();
    let times = TimestampNanosecondArray::from(output.times).with_timezone("UTC");
    let schema = Arc::new(ArrowSchema::new(vec![
        Field::new("time", ArrowType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into())), false),
        Field::new("value", ArrowType::Float64, true),
        Field::new("status", ArrowType::UInt32, false),
    ]));
    let columns: Vec<arrow_array::ArrayRef> =
        vec![Arc::new(times), Arc::new(values), Arc::new(UInt32Array::from(output.statuses))];
    Ok(table(vec![RecordBatch::try_new(schema, columns).map_err(arrow_error)?]))
}

/// Times, values with NaN for null, and statuses of a batch.
fn series(batch: &RecordBatch) -> PyResult<(TimestampNanosecondArray, Float64Array, Option<UInt32Array>)> {
    let refused = |name: &str, reason: &str| invalid(ErrorKind::InvalidRows, format!("column {name:?} {reason}"));
    let column = |name: &str, to: &ArrowType| {
        let options = arrow_cast::CastOptions { safe: false, ..arrow_cast::CastOptions::default() };
        let array = batch
            .column_by_name(name)
            .ok_or_else(|| invalid(ErrorKind::InvalidRows, format!("the points have no column {name:?}")))?;
        arrow_cast::cast_with_options(array, to, &options)
            .map_err(|error| refused(name, &format!("does not fit: {error}")))
    };
    let times = column("time", &ArrowType::Timestamp(TimeUnit::Nanosecond, None))?;
    if times.null_count() > 0 {
        return Err(refused("time", "has rows without a time: leave them out"));
    }
    let values = column("value", &ArrowType::Float64)?;
    let statuses = batch.column_by_name("status").map(|codes| exact_values(codes, &ArrowType::UInt32)).transpose();
    let statuses = statuses.map_err(|reason| refused("status", &reason))?;
    let values = values.as_primitive::<Float64Type>();
    let values = values.iter().map(|value| Some(value.unwrap_or(f64::NAN))).collect();
    let statuses = statuses.map(|codes| codes.as_primitive::<UInt32Type>().clone());
    Ok((times.as_primitive::<TimestampNanosecondType>().clone(), values, statuses))
}
