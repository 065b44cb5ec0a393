//! Columns from Python lists and from buffers of Python objects (numpy arrays), for users without pyarrow.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{
    Array as _, ArrayRef, ArrowPrimitiveType, BinaryArray, BooleanArray, Float64Array, Int64Array, PrimitiveArray,
    StringArray, UInt64Array, new_null_array,
};
use arrow_buffer::{BooleanBuffer, NullBuffer, ScalarBuffer};
use arrow_cast::{CastOptions, cast, cast_with_options};
use arrow_schema::{ArrowError, DataType};
use chronotile_types::ErrorKind;
use pyo3::buffer::{Element, PyBuffer};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyInt, PyList, PyString};

use crate::arrow::Array;
use crate::errors::{arrow_error, invalid, io_error};

/// A column from a list of None, bool, int, float, str or bytes. The type is given as text, or inferred from the
/// values.
///
/// Python has already replaced times by integers in the unit of `type`.
#[pyfunction]
#[pyo3(signature = (values, r#type=None))]
pub fn column_of_list(values: &Bound<'_, PyList>, r#type: Option<&str>) -> PyResult<Array> {
    let wanted = r#type.map(chronotile_io::parse_type).transpose().map_err(io_error)?;
    let natural = natural_column(values, wanted.as_ref())?;
    let inner = match wanted {
        Some(wanted) => convert(natural, &wanted)?,
        None => natural,
    };
    Ok(Array { inner })
}

fn natural_column(values: &Bound<'_, PyList>, wanted: Option<&DataType>) -> PyResult<ArrayRef> {
    let Some(first) = values.iter().find(|value| !value.is_none()) else {
        return Ok(new_null_array(wanted.unwrap_or(&DataType::Null), values.len()));
    };
    // Before PyInt, because a bool of Python is also an int.
    if first.is_instance_of::<PyBool>() {
        return Ok(Arc::new(BooleanArray::from(extract::<bool>(values, "bool")?)));
    }
    if first.is_instance_of::<PyString>() {
        return Ok(Arc::new(StringArray::from(extract::<String>(values, "str")?)));
    }
    if first.is_instance_of::<PyBytes>() {
        let bytes = extract::<Vec<u8>>(values, "bytes")?;
        return Ok(Arc::new(BinaryArray::from_iter(bytes)));
    }
    // A list may begin with an int and contain floats, so one value does not decide.
    let floats = values.iter().any(|value| value.is_instance_of::<PyFloat>());
    if floats || wanted.is_some_and(DataType::is_floating) {
        return Ok(Arc::new(Float64Array::from(extract::<f64>(values, "float")?)));
    }
    if first.is_instance_of::<PyInt>() {
        if let Ok(signed) = extract::<i64>(values, "int") {
            return Ok(Arc::new(Int64Array::from(signed)));
        }
        return Ok(Arc::new(UInt64Array::from(extract::<u64>(values, "int")?)));
    }
    let kind = first.get_type().name()?.to_string();
    Err(invalid(
        ErrorKind::InvalidRows,
        format!("values of type {kind} cannot form a column: give numbers, text, bytes or an Arrow array"),
    ))
}

/// The values of a list, all of which must be of the type that Python calls `expected`, or None.
fn extract<'py, T: for<'a> FromPyObject<'a, 'py>>(
    values: &Bound<'py, PyList>,
    expected: &str,
) -> PyResult<Vec<Option<T>>> {
    let one = |(index, value): (usize, Bound<'py, PyAny>)| {
        if value.is_none() {
            return Ok(None);
        }
        value.extract::<T>().map(Some).map_err(|_| {
            let shown = value.repr().map_or_else(|_| "a value".to_owned(), |text| text.to_string());
            let given = value.get_type().name().map_or_else(|_| "another type".to_owned(), |name| name.to_string());
            invalid(
                ErrorKind::InvalidRows,
                format!(
                    "value {index} is {shown}, of type {given}, but the others are {expected}: give values of one type"
                ),
            )
        })
    };
    values.iter().enumerate().map(one).collect()
}

fn convert(array: ArrayRef, wanted: &DataType) -> PyResult<ArrayRef> {
    if array.data_type() == wanted {
        return Ok(array);
    }
    let refuse = |why: String| {
        invalid(ErrorKind::InvalidRows, format!("{} values do not fit {wanted}: {why}", array.data_type()))
    };
    let whole = wanted.is_integer() || wanted.is_temporal();
    if whole && array.data_type().is_floating() {
        let floats = array.as_primitive::<Float64Type>();
        let is_fraction = |row: &usize| floats.is_valid(*row) && floats.value(*row).fract() != 0.0;
        let first = (0..floats.len()).find(is_fraction);
        return Err(refuse(first.map_or_else(
            || "they are floats, give integers".to_owned(),
            |row| format!("value {row}, {}, is not a whole number", floats.value(row)),
        )));
    }
    let exact = whole || matches!(wanted, DataType::Decimal128(_, _) | DataType::Boolean);
    if exact {
        return chronotile_archive::exact_values(&array, wanted)
            .map_err(|reason| invalid(ErrorKind::InvalidRows, format!("the list {reason}")));
    }
    let options = CastOptions { safe: false, ..CastOptions::default() };
    let converted = cast_with_options(&array, wanted, &options).map_err(|e| refuse(e.to_string()))?;
    match first_overflow(&array, &converted).map_err(arrow_error)? {
        Some((row, value)) => Err(refuse(format!("value {row}, {value:e}, is out of range"))),
        None => Ok(converted),
    }
}

/// The first finite number that became infinite in a conversion between float widths, with its position.
fn first_overflow(given: &ArrayRef, converted: &ArrayRef) -> Result<Option<(usize, f64)>, ArrowError> {
    if !converted.data_type().is_floating() {
        return Ok(None);
    }
    let [given, converted] = [given, converted].map(|array| cast(array, &DataType::Float64));
    let (given, converted) = (given?, converted?);
    let (given, converted) = (given.as_primitive::<Float64Type>(), converted.as_primitive::<Float64Type>());
    let overflows = |row: &usize| given.value(*row).is_finite() && converted.value(*row).is_infinite();
    let first = (0..given.len()).filter(|row| given.is_valid(*row)).find(overflows);
    Ok(first.map(|row| (row, given.value(row))))
}

/// A column from the buffer protocol (a one-dimensional array of numbers in native byte order). `dtype` is the type of
/// the numbers (`float64`, `bool`); `type` an Arrow type of the same width as which they are read (a timestamp for
/// int64); values where `nulls`, bytes of 0 and 1, is set are null.
#[pyfunction]
#[pyo3(signature = (values, dtype, r#type=None, nulls=None))]
pub fn column_of_buffer(
    py: Python<'_>,
    values: &Bound<'_, PyAny>,
    dtype: &str,
    r#type: Option<&str>,
    nulls: Option<&Bound<'_, PyAny>>,
) -> PyResult<Array> {
    let nulls = match nulls {
        Some(nulls) => {
            Some(NullBuffer::new(BooleanBuffer::from_iter(copied::<u8>(py, nulls)?.iter().map(|b| *b == 0))))
        }
        None => None,
    };
    macro_rules! numbers {
        ($t:ty) => {
            primitive::<$t>(py, values, nulls)?
        };
    }
    let array: ArrayRef = match dtype {
        "bool" => Arc::new(BooleanArray::new(
            BooleanBuffer::from_iter(copied::<u8>(py, values)?.iter().map(|b| *b != 0)),
            nulls,
        )),
        "int8" => numbers!(Int8Type),
        "int16" => numbers!(Int16Type),
        "int32" => numbers!(Int32Type),
        "int64" => numbers!(Int64Type),
        "uint8" => numbers!(UInt8Type),
        "uint16" => numbers!(UInt16Type),
        "uint32" => numbers!(UInt32Type),
        "uint64" => numbers!(UInt64Type),
        "float32" => numbers!(Float32Type),
        "float64" => numbers!(Float64Type),
        other => {
            return Err(invalid(
                ErrorKind::InvalidRows,
                format!("arrays of {other} cannot form a column: convert them first"),
            ));
        }
    };
    let Some(wanted) = r#type else { return Ok(Array { inner: array }) };
    let wanted = chronotile_io::parse_type(wanted).map_err(io_error)?;
    let inner = cast_with_options(&array, &wanted, &CastOptions { safe: false, ..CastOptions::default() });
    inner.map(|inner| Array { inner }).map_err(arrow_error)
}

fn primitive<T: ArrowPrimitiveType>(
    py: Python<'_>,
    values: &Bound<'_, PyAny>,
    nulls: Option<NullBuffer>,
) -> PyResult<ArrayRef>
where
    T::Native: Element,
{
    let values = ScalarBuffer::from(copied::<T::Native>(py, values)?);
    PrimitiveArray::<T>::try_new(values, nulls).map(|array| Arc::new(array) as ArrayRef).map_err(arrow_error)
}

fn copied<T: Element>(py: Python<'_>, values: &Bound<'_, PyAny>) -> PyResult<Vec<T>> {
    let buffer = PyBuffer::<T>::get(values)?;
    if buffer.dimensions() != 1 {
        let message =
            format!("an array of {} dimensions cannot form a column: give one dimension", buffer.dimensions());
        return Err(invalid(ErrorKind::InvalidRows, message));
    }
    // Copied, because Python may change the buffer later, while an Arrow array never changes.
    buffer.to_vec(py)
}

/// The end of a message about an unknown name: the nearest names, if any are near, and the known names.
#[pyfunction]
pub fn name_hint(name: &str, known: Vec<String>) -> String {
    chronotile_types::name_hint(name, &known)
}

/// Names for a message: all if there are up to 20, else the first 20 and the total count.
#[pyfunction]
pub fn list_names(names: Vec<String>) -> String {
    chronotile_types::list_names(&names)
}

/// Up to three known names that are similar to `name`, the nearest first.
#[pyfunction]
pub fn nearest_names(name: &str, known: Vec<String>) -> Vec<String> {
    chronotile_types::nearest(name, &known).into_iter().map(str::to_owned).collect()
}
