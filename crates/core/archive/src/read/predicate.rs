//! Predicates, made ready for a dataset's columns and applied to rows.

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Float64Type};
use arrow_array::{Array, ArrayRef, BooleanArray, Scalar};
use arrow_ord::cmp;
use arrow_schema::{ArrowError, DataType};

use crate::error::Result;
use crate::frame::Frame;
use crate::keys::Wanted;
use crate::read::literal::{self, Spots, whole_array};
use crate::read::number::Spot;
use crate::read::pattern::Pattern;
use crate::read::text::Need;
use crate::request::{Comparison, Predicate};

/// A predicate on a known column with constants of its type.
pub(crate) struct Test {
    /// Position of the column in the dataset.
    pub column: usize,
    /// What a filter of the column's texts must have for the predicate to hold for some row; `None` where it tells nothing.
    pub need: Option<Need>,
    /// All of them must hold.
    kinds: Vec<Kind>,
}

enum Kind {
    /// Float columns follow IEEE 754, which Arrow's kernels (total order) do not.
    Floats(Comparison, Vec<f64>),
    Compare(Comparison, Scalar<ArrayRef>),
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
            return Ok(Self { column, need, kinds: vec![Kind::Text(pattern)] });
        }
        if predicate.comparison == Comparison::Exists {
            let wanted = boolean(&predicate.values).ok_or_else(|| refuse("exists takes true or false".to_owned()))?;
            return Ok(Self { column, need: None, kinds: vec![Kind::Exists(wanted)] });
        }
        if data_type.is_nested() {
            return Err(refuse(format!("is not possible for its type {data_type}")));
        }
        let values = &predicate.values;
        let wanted = match predicate.comparison {
            Comparison::In => None,
            Comparison::Between => Some(2),
            _ => Some(1),
        };
        if wanted.is_some_and(|count| count != values.len()) {
            return Err(refuse(format!("takes {} constant(s), not {}", wanted.unwrap_or(0), values.len())));
        }
        if values.logical_null_count() > 0 {
            return Err(refuse("compares with null, which nothing matches".to_owned()));
        }
        let spots = literal::spots(values, data_type).map_err(&refuse)?;
        let need = match (&spots, predicate.comparison) {
            (Spots::Plain(values), Comparison::Equal | Comparison::In) => Need::of_values(values),
            _ => None,
        };
        let kinds = kinds(predicate.comparison, spots, data_type).map_err(refuse)?;
        Ok(Self { column, need, kinds })
    }

    /// Clears `keep` for rows of `column` for which the predicate does not hold.
    pub(crate) fn filter(&self, column: &ArrayRef, keep: &mut [bool]) -> std::result::Result<(), ArrowError> {
        self.kinds.iter().try_for_each(|kind| kind.filter(column, keep))
    }
}

impl Kind {
    fn filter(&self, column: &ArrayRef, keep: &mut [bool]) -> std::result::Result<(), ArrowError> {
        match self {
            Self::Floats(comparison, constants) => filter_floats(column, *comparison, constants, keep),
            Self::Text(pattern) => pattern.filter(column, keep),
            Self::Exists(wanted) => {
                let nulls = column.logical_nulls();
                let exists = |row: usize| nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row));
                keep.iter_mut().enumerate().for_each(|(row, keep)| *keep = *keep && exists(row) == *wanted);
            }
            Self::In(wanted) => wanted.filter(std::slice::from_ref(column), keep)?,
            Self::Compare(comparison, value) => {
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

/// A comparison with constants that may lie between the values of a type, as one with values of the type.
enum Exact<T> {
    /// Holds for every value that is not null.
    Always,
    OneOf(Vec<T>),
    Compare(Comparison, T),
}

/// Which comparisons with values of the type hold exactly where the one with the constants does.
fn exact<T: Copy>(comparison: Comparison, spots: &[Spot<T>]) -> Vec<Exact<T>> {
    use Comparison::{Equal, Greater, GreaterOrEqual, In, Less, LessOrEqual, NotEqual};
    if let (Comparison::Between, [low, high]) = (comparison, spots) {
        let mut both = exact(GreaterOrEqual, &[*low]);
        both.extend(exact(LessOrEqual, &[*high]));
        return both;
    }
    let held = spots.iter().filter_map(|spot| if let Spot::At(value) = spot { Some(*value) } else { None });
    let [spot] = spots else { return vec![Exact::OneOf(held.collect())] };
    vec![match (comparison, *spot) {
        (In, _) => Exact::OneOf(held.collect()),
        (_, Spot::At(value)) => Exact::Compare(comparison, value),
        (Less | LessOrEqual, Spot::After(value)) => Exact::Compare(LessOrEqual, value),
        (Greater | GreaterOrEqual, Spot::After(value)) => Exact::Compare(Greater, value),
        (NotEqual, _) | (Less | LessOrEqual, Spot::Above) | (Greater | GreaterOrEqual, Spot::Below) => Exact::Always,
        (Equal | Less | LessOrEqual | Greater | GreaterOrEqual, _) => Exact::OneOf(vec![]),
        // Compared above, by other means.
        (
            Comparison::Between | Comparison::Contains | Comparison::Matches | Comparison::Prefix | Comparison::Exists,
            _,
        ) => Exact::OneOf(vec![]),
    }]
}

fn kinds(comparison: Comparison, spots: Spots, data_type: &DataType) -> std::result::Result<Vec<Kind>, String> {
    let wanted = |values: ArrayRef| Wanted::new(&[values]).map(Kind::In).map_err(|e| e.to_string());
    match spots {
        Spots::Floats(spots) => Ok(exact(comparison, &spots).into_iter().map(Kind::of_floats).collect()),
        Spots::Whole(spots) => {
            let kind = |exact: Exact<i128>| match exact {
                Exact::Always => Ok(Kind::Exists(true)),
                Exact::OneOf(values) => wanted(whole_array(&values, data_type)?),
                Exact::Compare(comparison, value) => {
                    Ok(Kind::Compare(comparison, Scalar::new(whole_array(&[value], data_type)?)))
                }
            };
            exact(comparison, &spots).into_iter().map(kind).collect()
        }
        Spots::Plain(values) => {
            let scalar = |place: usize| Scalar::new(values.slice(place, 1));
            match comparison {
                Comparison::In => Ok(vec![wanted(values)?]),
                Comparison::Between => Ok(vec![
                    Kind::Compare(Comparison::GreaterOrEqual, scalar(0)),
                    Kind::Compare(Comparison::LessOrEqual, scalar(1)),
                ]),
                comparison => Ok(vec![Kind::Compare(comparison, scalar(0))]),
            }
        }
    }
}

impl Kind {
    fn of_floats(exact: Exact<f64>) -> Self {
        match exact {
            Exact::Always => Self::Exists(true),
            Exact::OneOf(values) => Self::Floats(Comparison::In, values),
            Exact::Compare(comparison, value) => Self::Floats(comparison, vec![value]),
        }
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
    let holds = |value: f64| match comparison {
        Comparison::Equal => value == first,
        Comparison::NotEqual => value != first,
        Comparison::Less => value < first,
        Comparison::LessOrEqual => value <= first,
        Comparison::Greater => value > first,
        Comparison::GreaterOrEqual => value >= first,
        Comparison::In => constants.contains(&value),
        // Compared by other means.
        _ => false,
    };
    for (row, keep) in keep.iter_mut().enumerate() {
        *keep = *keep && column.is_valid(row) && holds(values[row]);
    }
}
