//! CQL sessions for arbitrary statements on any table of a cluster.

use std::future::Future;
use std::path::PathBuf;
use std::sync::{PoisonError, RwLock};
use std::time::Duration;

use chronotile_cql::Settings;
use chronotile_tables::{
    DecimalAs, DurationAs, Mapping, PAGE_BYTES, Parameters, ReadOptions, Scan, Tables, TablesError, UuidAs, Value,
    VarintAs,
};
use chronotile_types::ErrorKind;
use futures::stream;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyInt, PyString, PyTuple};

use crate::errors::{Fault, cql_error, invalid, tables_error};
use crate::result::ReadResult;
use crate::runtime::{block_on, runtime};

/// A session. All methods fail once it is closed.
#[pyclass(frozen, module = "chronotile._native")]
pub struct CqlSession {
    inner: RwLock<Option<Tables>>,
}

/// Read options from Python.
#[derive(FromPyObject)]
pub struct Options {
    consistency: Option<String>,
    timeout_s: Option<f64>,
    page_bytes: Option<usize>,
    decimal: Option<(u8, u8)>,
    varint: String,
    uuid: String,
    duration: String,
}

impl Options {
    fn read(self, writes: bool) -> PyResult<ReadOptions> {
        let refuse = |reason: String| invalid(ErrorKind::InvalidSetting, reason);
        let level = |name: String| {
            let parse = if writes { chronotile_cql::write_consistency } else { chronotile_cql::read_consistency };
            parse(&name).map_err(refuse)
        };
        let seconds = |seconds: f64| {
            Duration::try_from_secs_f64(seconds)
                .ok()
                .filter(|timeout| (1..=3_600).contains(&timeout.as_secs()))
                .ok_or_else(|| refuse(format!("timeout_s is {seconds}: give 1 to 3600 seconds")))
        };
        let decimal = self.decimal.map_or(DecimalAs::Text, |(precision, scale)| DecimalAs::Number { precision, scale });
        let varint = match self.varint.as_str() {
            "text" => VarintAs::Text,
            "int64" => VarintAs::Int64,
            "decimal" => VarintAs::Decimal,
            other => return Err(refuse(format!("varint is {other:?}: use \"text\", \"int64\" or \"decimal\""))),
        };
        let uuid = match self.uuid.as_str() {
            "bytes" => UuidAs::Bytes,
            "text" => UuidAs::Text,
            other => return Err(refuse(format!("uuid is {other:?}: use \"bytes\" or \"text\""))),
        };
        let duration = match self.duration.as_str() {
            "interval" => DurationAs::Interval,
            "text" => DurationAs::Text,
            other => return Err(refuse(format!("duration is {other:?}: use \"interval\" or \"text\""))),
        };
        let page_bytes = self.page_bytes.unwrap_or(PAGE_BYTES);
        if !(1 << 10..=64 << 20).contains(&page_bytes) {
            return Err(refuse(format!("page_bytes is {page_bytes}: give 1 KiB to 64 MiB")));
        }
        Ok(ReadOptions {
            mapping: Mapping { decimal, varint, uuid, duration },
            consistency: self.consistency.map(level).transpose()?,
            timeout: self.timeout_s.map(seconds).transpose()?,
            page_bytes,
        })
    }
}

impl CqlSession {
    fn open_inner(&self) -> PyResult<Tables> {
        // Fails in a forked process before a lock is taken that may never be released there.
        runtime()?;
        let inner = self.inner.read().unwrap_or_else(PoisonError::into_inner).clone();
        inner.ok_or_else(|| Fault::new(ErrorKind::Closed, "the session is closed: make another").raise())
    }
}

/// Waits with the interpreter lock released; an interrupt ends the wait.
fn wait<T: Send>(
    py: Python<'_>,
    wrote: bool,
    future: impl Future<Output = Result<T, TablesError>> + Send,
) -> PyResult<T> {
    let runtime = runtime()?;
    py.detach(|| block_on(runtime, future)).and_then(|outcome| outcome.map_err(|error| tables_error(error, wrote)))
}

#[pymethods]
impl CqlSession {
    #[staticmethod]
    fn connect(py: Python<'_>, url: &str) -> PyResult<Self> {
        let settings = Settings::parse(url).map_err(|error| cql_error(error, false))?;
        let inner = wait(py, false, Tables::connect(settings))?;
        Ok(Self { inner: RwLock::new(Some(inner)) })
    }

    #[getter]
    fn closed(&self) -> bool {
        self.inner.read().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    /// Closes the session. Its connections end once no result uses them.
    fn close(&self, py: Python<'_>) {
        let inner = self.inner.write().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(inner));
    }

    fn query(
        &self,
        py: Python<'_>,
        cql: &str,
        parameters: &Bound<'_, PyAny>,
        options: Options,
    ) -> PyResult<ReadResult> {
        let (tables, parameters, options) = (self.open_inner()?, bound(parameters)?, options.read(false)?);
        let rows = wait(py, false, tables.query(cql, &parameters, options))?;
        Ok(ReadResult::of_batches(rows.schema(), rows))
    }

    fn execute(
        &self,
        py: Python<'_>,
        cql: &str,
        parameters: &Bound<'_, PyAny>,
        repeatable: bool,
        options: Options,
    ) -> PyResult<Option<ReadResult>> {
        let (tables, parameters, options) = (self.open_inner()?, bound(parameters)?, options.read(true)?);
        let rows = wait(py, true, tables.execute(cql, &parameters, repeatable, options))?;
        Ok(rows.map(|batch| ReadResult::of_batches(batch.schema(), stream::iter([Ok::<_, TablesError>(batch)]))))
    }

    #[allow(clippy::too_many_arguments, reason = "the arguments of one Python method")]
    fn table(
        &self,
        py: Python<'_>,
        keyspace: String,
        table: String,
        columns: Option<Vec<String>>,
        condition: Option<String>,
        parameters: &Bound<'_, PyAny>,
        ranges: Option<usize>,
        concurrency: Option<usize>,
        checkpoint: Option<PathBuf>,
        options: Options,
    ) -> PyResult<ReadResult> {
        let (tables, parameters, options) = (self.open_inner()?, bound(parameters)?, options.read(false)?);
        let scan = Scan { keyspace, table, columns, condition, parameters, ranges, concurrency, checkpoint };
        let rows = wait(py, false, tables.scan(scan, options))?;
        Ok(ReadResult::of_batches(rows.schema(), rows))
    }
}

/// Parameters of a statement, from whether they are named and their values, as (name, value) pairs if named.
fn bound(parameters: &Bound<'_, PyAny>) -> PyResult<Parameters> {
    let (named, values): (bool, Vec<Bound<'_, PyAny>>) = parameters.extract()?;
    if !named {
        return Ok(Parameters::ByPlace(values.iter().map(value).collect::<PyResult<_>>()?));
    }
    let pair = |item: &Bound<'_, PyAny>| {
        let (name, given): (String, Bound<'_, PyAny>) = item.extract()?;
        Ok((name, value(&given)?))
    };
    Ok(Parameters::ByName(values.iter().map(pair).collect::<PyResult<_>>()?))
}

/// Converts a value that Python has already normalized: None, bool, int, float, str, bytes, or a tuple that starts with
/// its kind.
fn value(given: &Bound<'_, PyAny>) -> PyResult<Value> {
    if given.is_none() {
        Ok(Value::Null)
    } else if given.is_instance_of::<PyBool>() {
        Ok(Value::Bool(given.extract()?))
    } else if given.is_instance_of::<PyInt>() {
        // Tested after PyBool, because a bool of Python is also an int.
        Ok(Value::Int(integer(given)?))
    } else if given.is_instance_of::<PyFloat>() {
        Ok(Value::Float(given.extract()?))
    } else if given.is_instance_of::<PyString>() {
        Ok(Value::Text(given.extract()?))
    } else if given.is_instance_of::<PyBytes>() {
        Ok(Value::Bytes(given.extract()?))
    } else {
        tagged(given.cast::<PyTuple>()?)
    }
}

fn tagged(given: &Bound<'_, PyTuple>) -> PyResult<Value> {
    let kind: String = given.get_item(0)?.extract()?;
    let part = |place: usize| given.get_item(place);
    let out_of_range = |what: &str| invalid(ErrorKind::InvalidParameter, format!("the {what} is out of CQL's range"));
    Ok(match kind.as_str() {
        "decimal" => {
            let scale = part(2)?.extract().map_err(|_| out_of_range("decimal's exponent"))?;
            Value::Decimal { unscaled: integer(&part(1)?)?, scale }
        }
        "uuid" => Value::Uuid(part(1)?.extract()?),
        "timestamp" => Value::Timestamp(part(1)?.extract().map_err(|_| out_of_range("time"))?),
        "date" => Value::Date(part(1)?.extract().map_err(|_| out_of_range("date"))?),
        "time" => Value::Time(part(1)?.extract()?),
        "duration" => Value::Duration {
            months: part(1)?.extract().map_err(|_| out_of_range("duration"))?,
            days: part(2)?.extract().map_err(|_| out_of_range("duration"))?,
            nanoseconds: part(3)?.extract().map_err(|_| out_of_range("duration"))?,
        },
        "list" => {
            let values: Vec<Bound<'_, PyAny>> = part(1)?.extract()?;
            Value::Sequence(values.iter().map(value).collect::<PyResult<_>>()?)
        }
        "pairs" => {
            let pairs: Vec<(Bound<'_, PyAny>, Bound<'_, PyAny>)> = part(1)?.extract()?;
            let pair = |(key, mapped): &(Bound<'_, PyAny>, Bound<'_, PyAny>)| Ok((value(key)?, value(mapped)?));
            Value::Pairs(pairs.iter().map(pair).collect::<PyResult<_>>()?)
        }
        other => return Err(invalid(ErrorKind::InvalidParameter, format!("unknown kind of value {other:?}"))),
    })
}

/// Big-endian two's complement of a Python int of any size.
fn integer(given: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    if let Ok(small) = given.extract::<i64>() {
        return Ok(small.to_be_bytes().to_vec());
    }
    // `bit_length` leaves out the sign, which needs one bit more.
    let bits: usize = given.call_method0("bit_length")?.extract()?;
    let signed = pyo3::types::PyDict::new(given.py());
    signed.set_item("signed", true)?;
    given.call_method("to_bytes", (bits / 8 + 1, "big"), Some(&signed))?.extract()
}
