//! Read requests from Python.

use arrow_array::ArrayRef;
use chronotile_archive::{CellSelection, Comparison, Predicate, ReadRequest};
use chronotile_types::{ErrorKind, Instant, TimeRange};
use pyo3::prelude::*;

use crate::arrow::Array;
use crate::errors::invalid;
use crate::sky::PyRegion;

/// A moment: `("utc_ns", int)`, `("native", float)` or `("ticks", int)`.
#[derive(FromPyObject)]
pub struct Moment(String, MomentValue);

#[derive(FromPyObject)]
enum MomentValue {
    Whole(i128),
    Real(f64),
}

impl Moment {
    pub fn instant(self) -> PyResult<Instant> {
        let outside = || invalid(ErrorKind::InvalidTime, "the time lies outside the range that can be counted");
        match (self.0.as_str(), self.1) {
            ("utc_ns", MomentValue::Whole(value)) => Ok(Instant::UtcNanoseconds(value)),
            ("ticks", MomentValue::Whole(value)) => {
                i64::try_from(value).map(Instant::NativeTicks).map_err(|_| outside())
            }
            ("native", MomentValue::Real(value)) => Ok(Instant::Native(value)),
            ("native", MomentValue::Whole(value)) => Ok(Instant::Native(value as f64)),
            _ => Err(outside()),
        }
    }
}

/// A read request.
#[pyclass(frozen, module = "chronotile._native")]
pub struct Request {
    pub inner: ReadRequest,
}

#[pymethods]
impl Request {
    #[new]
    #[pyo3(signature = (
        *, region=None, cells=None, keys=None, ids=None, start=None, end=None, columns=None, predicates=vec![],
        history=false
    ))]
    #[allow(clippy::too_many_arguments, reason = "the keyword arguments of one Python constructor")]
    fn new(
        region: Option<PyRef<'_, PyRegion>>,
        cells: Option<Vec<i64>>,
        keys: Option<Vec<PyRef<'_, Array>>>,
        ids: Option<Vec<PyRef<'_, Array>>>,
        start: Option<Moment>,
        end: Option<Moment>,
        columns: Option<Vec<String>>,
        predicates: Vec<(String, String, PyRef<'_, Array>)>,
        history: bool,
    ) -> PyResult<Self> {
        let arrays = |given: Vec<PyRef<'_, Array>>| given.iter().map(|array| array.inner.clone()).collect::<Vec<_>>();
        let cells = cell_selection(region, cells, keys.map(arrays))?;
        let time =
            TimeRange { start: start.map(Moment::instant).transpose()?, end: end.map(Moment::instant).transpose()? };
        let predicates = predicates.into_iter().map(predicate).collect::<PyResult<_>>()?;
        let ids = ids.map(arrays);
        Ok(Self { inner: ReadRequest { cells, time, ids, columns, predicates, history } })
    }
}

fn cell_selection(
    region: Option<PyRef<'_, PyRegion>>,
    cells: Option<Vec<i64>>,
    keys: Option<Vec<ArrayRef>>,
) -> PyResult<CellSelection> {
    match (region, cells, keys) {
        (None, None, None) => Ok(CellSelection::All),
        (Some(region), None, None) => Ok(CellSelection::Region(region.inner.clone())),
        (None, Some(cells), None) => Ok(CellSelection::Cells(cells)),
        (None, None, Some(keys)) => Ok(CellSelection::Keys(keys)),
        _ => Err(invalid(ErrorKind::InvalidRequest, "give only one of region, cells and keys")),
    }
}

fn predicate((column, operator, values): (String, String, PyRef<'_, Array>)) -> PyResult<Predicate> {
    let comparison = match operator.as_str() {
        "==" => Comparison::Equal,
        "!=" => Comparison::NotEqual,
        "<" => Comparison::Less,
        "<=" => Comparison::LessOrEqual,
        ">" => Comparison::Greater,
        ">=" => Comparison::GreaterOrEqual,
        "in" => Comparison::In,
        "between" => Comparison::Between,
        "contains" => Comparison::Contains,
        "matches" => Comparison::Matches,
        "prefix" => Comparison::Prefix,
        "exists" => Comparison::Exists,
        other => {
            let message = format!(
                "unknown comparison {other:?}: use one of == != < <= > >= in between contains matches prefix exists"
            );
            return Err(invalid(ErrorKind::InvalidRequest, message));
        }
    };
    Ok(Predicate { column, comparison, values: values.inner.clone() })
}
