//! Sky pixels and regions: `chronotile.sky`.

use crate::errors::{arrow_error, invalid};
use crate::files::RecordFile;
use arrow_array::cast::AsArray;
use arrow_array::types::Float64Type;
use arrow_array::{Array, ArrayRef, BooleanArray, Float64Array, Int64Array, UInt64Array};
use arrow_cast::cast;
use arrow_schema::DataType;
use chronotile_sky::{AngleKind, PixelRange, Pixelization, Region, Scheme, Shape, SkyError, parse_angle};
use chronotile_types::ErrorKind;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyInt, PyString, PyTuple};
use pyo3_arrow::PyArray;
use pyo3_arrow::input::AnyArray;
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// Adds this file's class and functions to the extension module.
pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<PyRegion>()?;
    m.add_function(wrap_pyfunction!(angle_degrees, m)?)?;
    m.add_function(wrap_pyfunction!(pixel_index, m)?)?;
    m.add_function(wrap_pyfunction!(pixel_range, m)?)?;
    m.add_function(wrap_pyfunction!(tile_counts, m)?)?;
    m.add_function(wrap_pyfunction!(pixel_center, m)?)?;
    m.add_function(wrap_pyfunction!(pixel_vertices, m)?)?;
    m.add_function(wrap_pyfunction!(pixel_area, m)?)?;
    m.add_function(wrap_pyfunction!(region_contains, m)?)?;
    m.add_function(wrap_pyfunction!(region_cover, m)?)?;
    Ok(())
}

/// The exception for an error of the sky crate; the only place that chooses its class.
pub fn to_py(error: SkyError) -> PyErr {
    invalid(ErrorKind::InvalidSky, error.to_string())
}

/// A pixelization from the name of a scheme and a level. Negative levels get the same error as too large ones.
fn pixelization(scheme: &str, level: i64) -> PyResult<Pixelization> {
    let scheme: Scheme = scheme.parse().map_err(to_py)?;
    let Ok(level) = u32::try_from(level) else {
        let message = format!("level {level} is out of range for {scheme}: use 0 to {}", scheme.level_max());
        return Err(PyValueError::new_err(message));
    };
    Pixelization::new(scheme, level).map_err(to_py)
}

/// One number, or a column of them.
enum Angles {
    One(f64),
    Many(Column),
}

/// Doubles that stay valid without the GIL.
enum Column {
    Arrow(Float64Array),
    Copied(Vec<f64>),
}

impl Column {
    fn as_slice(&self) -> &[f64] {
        match self {
            Column::Arrow(array) => array.values(),
            Column::Copied(values) => values,
        }
    }
}

impl Angles {
    /// From a number, an Arrow array or stream of arrays, a buffer of floats, or a sequence of numbers.
    fn of(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Self> {
        let py = value.py();
        // numpy.float64 is a float too, and would otherwise pass as a buffer.
        if value.is_instance_of::<PyFloat>() || value.is_instance_of::<PyInt>() {
            return Ok(Angles::One(value.extract()?));
        }
        if value.hasattr(intern!(py, "__arrow_c_array__"))? || value.hasattr(intern!(py, "__arrow_c_stream__"))? {
            return Ok(Angles::Many(Column::Arrow(arrow_doubles(name, value)?)));
        }
        let copied = if let Ok(buffer) = PyBuffer::<f64>::get(value) {
            one_dimension(name, buffer.dimensions())?;
            buffer.to_vec(py)?
        } else if let Ok(buffer) = PyBuffer::<f32>::get(value) {
            one_dimension(name, buffer.dimensions())?;
            buffer.to_vec(py)?.into_iter().map(f64::from).collect()
        } else if let Ok(values) = value.extract::<Vec<f64>>() {
            values
        } else {
            let kind = value.get_type().name()?;
            return Err(PyTypeError::new_err(format!(
                "{name} is a {kind}: give a number, an Arrow array, a one-dimensional float array, or a sequence of numbers"
            )));
        };
        Ok(Angles::Many(Column::Copied(copied)))
    }
}

fn one_dimension(name: &str, dimensions: usize) -> PyResult<()> {
    if dimensions == 1 {
        return Ok(());
    }
    Err(PyValueError::new_err(format!("{name} has {dimensions} dimensions: give one")))
}

fn arrow_doubles(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Float64Array> {
    let (chunks, field) = value.extract::<AnyArray>()?.into_chunked_array()?.into_inner();
    let refuse = |error: arrow_schema::ArrowError| PyValueError::new_err(format!("{name}: {error}"));
    let chunks: Vec<&dyn Array> = chunks.iter().map(AsRef::as_ref).collect();
    let array: ArrayRef = if chunks.is_empty() {
        arrow_array::new_empty_array(field.data_type())
    } else {
        arrow_select::concat::concat(&chunks).map_err(refuse)?
    };
    if !array.data_type().is_numeric() {
        let message = format!("{name} is an Arrow array of {}: give numbers", array.data_type());
        return Err(PyTypeError::new_err(message));
    }
    if array.logical_null_count() > 0 {
        let row = (0..array.len()).find(|&row| array.is_null(row)).unwrap_or_default();
        return Err(PyValueError::new_err(format!("{name} is null in row {row}: drop or fill nulls first")));
    }
    let array = arrow_cast::cast(&array, &DataType::Float64).map_err(refuse)?;
    Ok(array.as_primitive::<Float64Type>().clone())
}

/// Both coordinates: two numbers, or two columns.
enum Positions {
    One(f64, f64),
    Many(Column, Column),
}

impl Positions {
    fn of(ra: &Bound<'_, PyAny>, dec: &Bound<'_, PyAny>) -> PyResult<Self> {
        match (Angles::of("ra", ra)?, Angles::of("dec", dec)?) {
            (Angles::One(ra), Angles::One(dec)) => Ok(Positions::One(ra, dec)),
            (Angles::Many(ra), Angles::Many(dec)) => Ok(Positions::Many(ra, dec)),
            _ => Err(PyTypeError::new_err("ra and dec must both be numbers or both be arrays")),
        }
    }
}

fn array_object(py: Python<'_>, array: ArrayRef) -> PyResult<Bound<'_, PyAny>> {
    Ok(PyArray::from_array_ref(array).into_pyobject(py)?.into_any())
}

/// Number of the pixel that holds each position.
///
/// Parameters
/// ----------
/// scheme : "mq3c", "q3c", "htm" or "healpix" (nested order, nside = 2**level)
/// level : 0 to 30 for mq3c and q3c, to 24 for htm, to 29 for healpix; as in lsst.sphgeom
/// ra, dec : degrees; two numbers, or two arrays of equal length n (Arrow, float64 or float32 buffers such as numpy's,
///     sequences). ra may be any finite number, dec is -90 to 90.
///
/// Returns
/// -------
/// An int for two numbers, else an int64 array of length n with the Arrow PyCapsule interface and ``__array__``
/// (uint64 for mq3c level 30, whose numbers need 64 bits).
///
/// The numbers equal those of lsst.sphgeom's pixelizations and of healpy.vec2pix.
///
/// Raises
/// ------
/// ValueError : an unknown scheme or level, a value that is no position (the message names the row), or arrays of
///     different length.
#[pyfunction]
pub fn pixel_index<'py>(
    py: Python<'py>,
    scheme: &str,
    level: i64,
    ra: &Bound<'py, PyAny>,
    dec: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let p = pixelization(scheme, level)?;
    let (ra, dec) = match Positions::of(ra, dec)? {
        Positions::One(ra, dec) => return Ok(p.index(ra, dec).map_err(to_py)?.into_pyobject(py)?.into_any()),
        Positions::Many(ra, dec) => (ra, dec),
    };
    let array = py.detach(|| -> Result<ArrayRef, SkyError> {
        let (ra, dec) = (ra.as_slice(), dec.as_slice());
        if i64::try_from(p.index_range().last).is_ok() {
            let mut out = vec![0; ra.len()];
            p.index_many(ra, dec, &mut out)?;
            Ok(Arc::new(Int64Array::from(out)))
        } else {
            let mut out = vec![0; ra.len()];
            p.index_many_u64(ra, dec, &mut out)?;
            Ok(Arc::new(UInt64Array::from(out)))
        }
    });
    array_object(py, array.map_err(to_py)?)
}

/// Counts the tiles with rows of a file at each level down to `level`: (rows used, [(level, tiles)]), from at most
/// `rows_max` rows. `window` is the length of a window in the unit of the time column. Rows without a position or time
/// are skipped.
#[pyfunction]
#[allow(clippy::too_many_arguments, reason = "the parts of a definition")]
pub fn tile_counts(
    py: Python<'_>,
    file: &RecordFile,
    ra: &str,
    dec: &str,
    time: &str,
    scheme: &str,
    level: i64,
    window: f64,
    rows_max: u64,
) -> PyResult<(u64, Vec<(u32, u64)>)> {
    let pixels = pixelization(scheme, level)?;
    let rows = file.block(rows_max).take();
    py.detach(move || {
        let (mut tiles, mut count) = (HashSet::new(), 0);
        for batch in rows {
            let batch = batch.map_err(arrow_error)?;
            let column = |name: &str| -> PyResult<Float64Array> {
                let found = batch
                    .column_by_name(name)
                    .ok_or_else(|| invalid(ErrorKind::InvalidRequest, format!("no column {name:?}")))?;
                // Convert times to floats as ticks; the rounding of float64 is negligible here.
                let plain = match found.data_type() {
                    DataType::Timestamp(_, _) => cast(found, &DataType::Int64).map_err(arrow_error)?,
                    DataType::Date32 => cast(found, &DataType::Int32).map_err(arrow_error)?,
                    _ => found.clone(),
                };
                Ok(cast(&plain, &DataType::Float64).map_err(arrow_error)?.as_primitive::<Float64Type>().clone())
            };
            let (ra, dec, time) = (column(ra)?, column(dec)?, column(time)?);
            for ((ra, dec), time) in ra.iter().zip(&dec).zip(&time) {
                let (Some(ra), Some(dec), Some(time)) = (ra, dec, time) else { continue };
                let Ok(pixel) = pixels.index(ra, dec) else { continue };
                tiles.insert((pixel, (time / window).floor() as i64));
                count += 1;
            }
        }
        let mut counts = vec![(pixels.level(), tiles.len() as u64)];
        for level in (0..pixels.level()).rev() {
            // In every scheme the four children of a pixel have consecutive numbers.
            tiles = tiles.iter().map(|(pixel, window)| (pixel >> 2, *window)).collect();
            counts.push((level, tiles.len() as u64));
        }
        counts.reverse();
        Ok((count, counts))
    })
}

/// First and one past the last pixel of the sky, as (int, int).
#[pyfunction]
pub fn pixel_range(scheme: &str, level: i64) -> PyResult<(u128, u128)> {
    Ok(half_open(pixelization(scheme, level)?.index_range()))
}

/// A point well inside a pixel, as (ra, dec) in degrees. ValueError if there is no such pixel.
#[pyfunction]
pub fn pixel_center(scheme: &str, level: i64, index: u64) -> PyResult<(f64, f64)> {
    pixelization(scheme, level)?.pixel_center(index).map_err(to_py)
}

/// The corners of a pixel, as a list of (ra, dec) in degrees, counter-clockwise seen from outside the sphere; three for
/// htm, else four. ValueError if there is no such pixel.
#[pyfunction]
pub fn pixel_vertices(scheme: &str, level: i64, index: u64) -> PyResult<Vec<(f64, f64)>> {
    pixelization(scheme, level)?.pixel_vertices(index).map_err(to_py)
}

/// The area of a pixel in steradians. ValueError if there is no such pixel.
#[pyfunction]
pub fn pixel_area(scheme: &str, level: i64, index: u64) -> PyResult<f64> {
    pixelization(scheme, level)?.pixel_area(index).map_err(to_py)
}

/// Does a region hold each position? As ``region.contains(ra, dec)``.
#[pyfunction]
pub fn region_contains<'py>(
    region: &Bound<'py, PyRegion>,
    ra: &Bound<'py, PyAny>,
    dec: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    region.get().contains(region.py(), ra, dec)
}

/// The pixels that may hold a point of a region. As ``region.cover(scheme, level, max_ranges)``.
#[pyfunction]
#[pyo3(signature = (region, scheme, level, max_ranges=None))]
pub fn region_cover(
    region: &Bound<'_, PyRegion>,
    scheme: &str,
    level: i64,
    max_ranges: Option<usize>,
) -> PyResult<Vec<(u128, u128)>> {
    region.get().cover(region.py(), scheme, level, max_ranges)
}

/// The last MQ3C pixel of level 30 is 2^64 - 1; the number after it needs more than 64 bits.
fn half_open(range: PixelRange) -> (u128, u128) {
    (u128::from(range.first), u128::from(range.last) + 1)
}

/// Converts a Python angle to degrees; `10:20:30` means hours.
fn right_ascension(angle: &Bound<'_, PyAny>) -> PyResult<f64> {
    angle_of(angle, AngleKind::RightAscension)
}

/// Converts a Python angle to degrees; `10:20:30` means degrees.
fn degrees(angle: &Bound<'_, PyAny>) -> PyResult<f64> {
    angle_of(angle, AngleKind::Other)
}

fn angle_of(angle: &Bound<'_, PyAny>, kind: AngleKind) -> PyResult<f64> {
    if let Ok(text) = angle.cast::<PyString>() {
        return parse_angle(&text.to_string_lossy(), kind).map_err(to_py);
    }
    // Quantities of astropy convert themselves, and refuse units other than angles.
    if angle.hasattr("to_value")? {
        return angle.call_method1("to_value", ("deg",))?.extract();
    }
    angle.extract()
}

/// Right ascension and declination in degrees of an astropy SkyCoord in any frame, each a number or an array; `None`
/// for other objects.
fn icrs_of<'py>(position: &Bound<'py, PyAny>) -> PyResult<Option<(Bound<'py, PyAny>, Bound<'py, PyAny>)>> {
    if !position.hasattr("icrs")? {
        return Ok(None);
    }
    let icrs = position.getattr("icrs")?;
    let degrees = |angle: &str| icrs.getattr(angle)?.call_method1("to_value", ("deg",));
    Ok(Some((degrees("ra")?, degrees("dec")?)))
}

/// One angle of a position, in degrees.
fn one_angle(angle: &Bound<'_, PyAny>) -> PyResult<f64> {
    let several = |_| PyTypeError::new_err("the center is a SkyCoord of several positions: give one of them");
    angle.extract().map_err(several)
}

/// Degrees of an angle: a number of degrees, text such as "10h20m", "-5d20m10s" or "3arcsec", or an astropy quantity.
/// `ra` says that `10:20:30` are hours.
#[pyfunction]
#[pyo3(signature = (angle, *, ra=false))]
pub fn angle_degrees(angle: &Bound<'_, PyAny>, ra: bool) -> PyResult<f64> {
    angle_of(angle, if ra { AngleKind::RightAscension } else { AngleKind::Other })
}

/// A closed part of the sky: a circle, a box in ra and dec, or a convex polygon. Its boundary belongs to it.
///
/// Made by ``circle``, ``box`` or ``polygon``. Immutable, hashable, picklable; equal when described by equal numbers.
#[pyclass(frozen, name = "Region", module = "chronotile._native")]
#[derive(Debug, Clone, PartialEq)]
pub struct PyRegion {
    pub inner: Region,
}

impl PyRegion {
    fn new(inner: Result<Region, SkyError>) -> PyResult<Self> {
        inner.map(|inner| Self { inner }).map_err(to_py)
    }
}

#[pymethods]
impl PyRegion {
    /// The points within `radius` (0 to 180) of (ra, dec): numbers of degrees, text such as "10h20m", "-5d20m10s" or "3arcsec", or
    /// an astropy Angle or Quantity. An astropy SkyCoord takes the place of ra and dec: ``circle(center, radius)``.
    #[staticmethod]
    #[pyo3(signature = (ra, dec=None, radius=None))]
    fn circle(
        ra: &Bound<'_, PyAny>,
        dec: Option<&Bound<'_, PyAny>>,
        radius: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let (ra, dec, radius) = match (icrs_of(ra)?, dec, radius) {
            (None, Some(dec), Some(radius)) => (right_ascension(ra)?, degrees(dec)?, degrees(radius)?),
            (Some((ra, dec)), Some(radius), None) | (Some((ra, dec)), None, Some(radius)) => {
                (one_angle(&ra)?, one_angle(&dec)?, degrees(radius)?)
            }
            _ => {
                return Err(PyTypeError::new_err("circle takes ra, dec and radius, or an astropy SkyCoord and radius"));
            }
        };
        Self::new(Region::circle(ra, dec, radius))
    }

    /// The points from `ra_min` eastwards to `ra_max` and from `dec_min` to `dec_max`, degrees. `ra_min` > `ra_max`
    /// crosses ra 0; a difference of 360 or more is the full circle. Angles as for `circle`.
    #[staticmethod]
    fn r#box(
        ra_min: &Bound<'_, PyAny>,
        ra_max: &Bound<'_, PyAny>,
        dec_min: &Bound<'_, PyAny>,
        dec_max: &Bound<'_, PyAny>,
    ) -> PyResult<Self> {
        let (ra_min, ra_max) = (right_ascension(ra_min)?, right_ascension(ra_max)?);
        Self::new(Region::lonlat_box(ra_min, ra_max, degrees(dec_min)?, degrees(dec_max)?))
    }

    /// The convex polygon with the given vertices, a sequence of (ra, dec) in degrees, an array of shape (n, 2) or an astropy
    /// SkyCoord of several positions, in either direction. Its edges are great circles. ValueError if it is not convex or larger than a hemisphere.
    #[staticmethod]
    fn polygon(vertices: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut points = Vec::new();
        if let Some((ra, dec)) = icrs_of(vertices)? {
            let (ra, dec): (Vec<f64>, Vec<f64>) = (ra.extract()?, dec.extract()?);
            return Self::new(Region::polygon(&ra.into_iter().zip(dec).collect::<Vec<_>>()));
        }
        for vertex in vertices.try_iter()? {
            let angles = vertex?.try_iter()?.collect::<PyResult<Vec<_>>>()?;
            let [ra, dec] = &angles[..] else {
                let message =
                    format!("vertex {} has {} numbers: give (ra, dec) in degrees", points.len(), angles.len());
                return Err(PyValueError::new_err(message));
            };
            points.push((right_ascension(ra)?, degrees(dec)?));
        }
        Self::new(Region::polygon(&points))
    }

    /// Is each position in the region? A bool for two numbers, else a boolean array with the Arrow PyCapsule interface
    /// and ``__array__``. Degrees; arrays as for ``pixel_index``. ValueError names the row of a value that is no position.
    fn contains<'py>(
        &self,
        py: Python<'py>,
        ra: &Bound<'py, PyAny>,
        dec: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (ra, dec) = match Positions::of(ra, dec)? {
            Positions::One(ra, dec) => {
                // Use the same code for both forms, so that both refuse invalid positions.
                let held = self.inner.contains_many(&[ra], &[dec]).map_err(to_py)?;
                return Ok(held[0].into_pyobject(py)?.to_owned().into_any());
            }
            Positions::Many(ra, dec) => (ra, dec),
        };
        let held = py.detach(|| self.inner.contains_many(ra.as_slice(), dec.as_slice())).map_err(to_py)?;
        array_object(py, Arc::new(BooleanArray::from(held)))
    }

    /// The pixels that may hold a point of the region: a sorted list of half-open ranges (first, end). No pixel that
    /// holds a point of the region is missing. With `max_ranges`, at most that many ranges, which list more pixels.
    /// ValueError if more than 4,000,000 ranges are needed.
    #[pyo3(signature = (scheme, level, max_ranges=None))]
    fn cover(
        &self,
        py: Python<'_>,
        scheme: &str,
        level: i64,
        max_ranges: Option<usize>,
    ) -> PyResult<Vec<(u128, u128)>> {
        let p = pixelization(scheme, level)?;
        let ranges = match max_ranges {
            Some(0) => return Err(PyValueError::new_err("max_ranges is 0: a cover needs at least one range")),
            Some(limit) => py.detach(|| self.inner.cover_limited(&p, limit)),
            None => py.detach(|| self.inner.cover(&p)).map_err(to_py)?,
        };
        Ok(ranges.into_iter().map(half_open).collect())
    }

    /// A circle that holds the region.
    fn bounding_cap(&self) -> Self {
        Self { inner: self.inner.bounding_cap() }
    }

    /// Area in steradians.
    #[getter]
    fn area(&self) -> f64 {
        self.inner.area_sr()
    }

    /// "circle", "box" or "polygon".
    #[getter]
    fn kind(&self) -> PyResult<&'static str> {
        match self.inner.shape() {
            Shape::Circle { .. } => Ok("circle"),
            Shape::Box { .. } => Ok("box"),
            Shape::Polygon { .. } => Ok("polygon"),
            other => Err(unknown_shape(other)),
        }
    }

    fn __eq__(&self, other: &Self) -> bool {
        self == other
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        // Zeros of either sign are equal but print differently.
        self.inner.to_string().replace("-0.0", "0.0").hash(&mut hasher);
        hasher.finish()
    }

    fn __repr__(&self) -> String {
        format!("Region.{}", self.inner)
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, Bound<'py, PyTuple>)> {
        let py = slf.py();
        let arguments = match slf.get().inner.shape() {
            Shape::Circle { ra, dec, radius_deg } => (*ra, *dec, *radius_deg).into_pyobject(py)?,
            Shape::Box { ra_min, ra_max, dec_min, dec_max } => {
                (*ra_min, *ra_max, *dec_min, *dec_max).into_pyobject(py)?
            }
            Shape::Polygon { vertices } => (vertices.clone(),).into_pyobject(py)?,
            other => return Err(unknown_shape(other)),
        };
        Ok((slf.get_type().getattr(slf.get().kind()?)?, arguments))
    }
}

/// The enum may grow in the sky crate; an unknown shape is an error.
fn unknown_shape(shape: &Shape) -> PyErr {
    PyTypeError::new_err(format!("a region of this shape cannot be described in Python: {shape:?}"))
}
