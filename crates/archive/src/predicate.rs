//! Predicates, made ready for a dataset's columns and applied to rows.

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Float64Type};
use arrow_array::{Array, ArrayRef, BooleanArray, Scalar};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_ord::cmp;
use arrow_schema::{ArrowError, DataType};

use crate::error::Result;
use crate::frame::Frame;
use crate::input::conform_array;
use crate::keys::Wanted;
use crate::pattern::Pattern;
use crate::request::{Comparison, Predicate};
use crate::text::Need;

/// A predicate on a known column with constants of its type.
pub(crate) struct Test {
    /// Position of the column in the dataset.
    pub column: usize,
    /// What a filter of the column's texts must have for the predicate to hold for some row; `None` where it tells nothing.
    pub need: Option<Need>,
    kind: Kind,
}

enum Kind {
    /// Float columns follow IEEE 754, which Arrow's kernels (total order) do not.
    Floats(Comparison, Vec<f64>),
    Compare(Comparison, Scalar<ArrayRef>),
    Between(Scalar<ArrayRef>, Scalar<ArrayRef>),
    In(Wanted),
    Text(Pattern),
    Exists(bool),
}

impl Test {
    pub(crate) fn new(frame: &Frame, predicate: &Predicate) -> Result<Self> {
        let column = frame.column(&predicate.column)?;
        let data_type = frame.spec.schema.field(column).data_type();
        let refuse = |reason: String| frame.refuse(format!("predicate on column {:?} {reason}", predicate.column));
        if let Comparison::Contains | Comparison::Matches | Comparison::Prefix = predicate.comparison {
            let (pattern, need) = pattern(predicate, data_type).map_err(refuse)?;
            return Ok(Self { column, need, kind: Kind::Text(pattern) });
        }
        if predicate.comparison == Comparison::Exists {
            let wanted = boolean(&predicate.values).ok_or_else(|| refuse("exists takes true or false".to_owned()))?;
            return Ok(Self { column, need: None, kind: Kind::Exists(wanted) });
        }
        if data_type.is_nested() {
            return Err(refuse(format!("is not possible for its type {data_type}")));
        }
        let values = constants(&predicate.values, data_type).map_err(&refuse)?;
        let wanted = match predicate.comparison {
            Comparison::In => None,
            Comparison::Between => Some(2),
            _ => Some(1),
        };
        if wanted.is_some_and(|count| count != values.len()) {
            return Err(refuse(format!("takes {} constant(s), not {}", wanted.unwrap_or(0), values.len())));
        }
        if values.null_count() > 0 {
            return Err(refuse("compares with null, which nothing matches".to_owned()));
        }
        let need = match predicate.comparison {
            Comparison::Equal | Comparison::In => Need::of_values(&values),
            _ => None,
        };
        let scalar = |place: usize| Scalar::new(values.slice(place, 1));
        let kind = match (predicate.comparison, floats(&values)) {
            (comparison, Some(constants)) => Kind::Floats(comparison, constants),
            (Comparison::In, None) => Kind::In(Wanted::new(&[values]).map_err(|e| refuse(e.to_string()))?),
            (Comparison::Between, None) => Kind::Between(scalar(0), scalar(1)),
            (comparison, None) => Kind::Compare(comparison, scalar(0)),
        };
        Ok(Self { column, need, kind })
    }

    /// Clears `keep` for rows of `column` for which the predicate does not hold.
    pub(crate) fn filter(&self, column: &ArrayRef, keep: &mut [bool]) -> std::result::Result<(), ArrowError> {
        match &self.kind {
            Kind::Floats(comparison, constants) => filter_floats(column, *comparison, constants, keep),
            Kind::Text(pattern) => pattern.filter(column, keep),
            Kind::Exists(wanted) => {
                let nulls = column.logical_nulls();
                let exists = |row: usize| nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row));
                keep.iter_mut().enumerate().for_each(|(row, keep)| *keep = *keep && exists(row) == *wanted);
            }
            Kind::In(wanted) => wanted.filter(std::slice::from_ref(column), keep)?,
            Kind::Between(low, high) => {
                clear(keep, &cmp::gt_eq(column, low)?);
                clear(keep, &cmp::lt_eq(column, high)?);
            }
            Kind::Compare(comparison, value) => {
                let holds = match comparison {
                    Comparison::NotEqual => cmp::neq(column, value)?,
                    Comparison::Less => cmp::lt(column, value)?,
                    Comparison::LessOrEqual => cmp::lt_eq(column, value)?,
                    Comparison::Greater => cmp::gt(column, value)?,
                    Comparison::GreaterOrEqual => cmp::gt_eq(column, value)?,
                    _ => cmp::eq(column, value)?,
                };
                clear(keep, &holds);
            }
        }
        Ok(())
    }
}

fn pattern(predicate: &Predicate, data_type: &DataType) -> std::result::Result<(Pattern, Option<Need>), String> {
    let name = match predicate.comparison {
        Comparison::Contains => "contains",
        Comparison::Prefix => "prefix",
        _ => "matches",
    };
    if *data_type != DataType::Utf8 {
        return Err(format!("is not possible for its type {data_type}: {name} is for text (utf8)"));
    }
    let values = predicate.values.as_string_opt::<i32>().filter(|values| values.len() == 1 && values.is_valid(0));
    let text = values.ok_or_else(|| format!("takes one text for {name}"))?.value(0);
    match predicate.comparison {
        Comparison::Contains => Ok((Pattern::contains(text), Need::of_text(text))),
        Comparison::Prefix => Ok((Pattern::Prefix(text.to_owned()), Need::of_text(text))),
        _ => Pattern::matches(text).map(|(pattern, tree)| (pattern, Need::of_pattern(&tree))),
    }
}

fn boolean(values: &ArrayRef) -> Option<bool> {
    values.as_boolean_opt().filter(|values| values.len() == 1 && values.is_valid(0)).map(|values| values.value(0))
}

fn clear(keep: &mut [bool], holds: &BooleanArray) {
    for (row, keep) in keep.iter_mut().enumerate() {
        *keep = *keep && holds.is_valid(row) && holds.value(row);
    }
}

/// The constants in the column's type. float64 constants are rounded to a float32 column; a number that the column's type
/// cannot hold is refused; text becomes a time where the column holds times.
fn constants(given: &ArrayRef, wanted: &DataType) -> std::result::Result<ArrayRef, String> {
    use DataType::*;
    let options = CastOptions { safe: false, ..CastOptions::default() };
    let cast =
        || cast_with_options(given, wanted, &options).map_err(|e| format!("has a constant that does not fit: {e}"));
    let number = |t: &DataType| t.is_integer() || t.is_floating();
    match (given.data_type(), wanted) {
        (Float64, Float32) => cast(),
        (a, b) if number(a) && number(b) => {
            let exact = cast_with_options(&cast()?, a, &options).is_ok_and(|back| &back == given);
            if exact { cast() } else { Err(format!("has a constant that {wanted} cannot hold exactly")) }
        }
        (Utf8 | LargeUtf8 | Utf8View, Timestamp(_, _) | Date32 | Date64 | Time32(_) | Time64(_) | Decimal128(_, _)) => {
            cast()
        }
        (Timestamp(_, _), Timestamp(_, _) | Date32 | Date64) | (Date32, Timestamp(_, _)) => cast(),
        (a, Decimal128(_, _)) if number(a) => cast(),
        _ => conform_array(given, wanted).map_err(|reason| format!("has constants whose column {reason}")),
    }
}

fn floats(values: &ArrayRef) -> Option<Vec<f64>> {
    match values.data_type() {
        DataType::Float64 => Some(values.as_primitive::<Float64Type>().values().to_vec()),
        DataType::Float32 => {
            Some(values.as_primitive::<Float32Type>().values().iter().map(|v| f64::from(*v)).collect())
        }
        _ => None,
    }
}

fn filter_floats(column: &ArrayRef, comparison: Comparison, constants: &[f64], keep: &mut [bool]) {
    let Some(values) = floats(column) else { return keep.fill(false) };
    let first = constants.first().copied().unwrap_or(f64::NAN);
    let last = constants.last().copied().unwrap_or(f64::NAN);
    let holds = |value: f64| match comparison {
        Comparison::Equal => value == first,
        Comparison::NotEqual => value != first,
        Comparison::Less => value < first,
        Comparison::LessOrEqual => value <= first,
        Comparison::Greater => value > first,
        Comparison::GreaterOrEqual => value >= first,
        Comparison::In => constants.contains(&value),
        Comparison::Between => first <= value && value <= last,
        // Compared above, by other means.
        Comparison::Contains | Comparison::Matches | Comparison::Prefix | Comparison::Exists => false,
    };
    for (row, keep) in keep.iter_mut().enumerate() {
        *keep = *keep && column.is_valid(row) && holds(values[row]);
    }
}
