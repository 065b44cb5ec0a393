//! Predicates prepared for a dataset's columns and applied to rows.

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, Float64Type};
use arrow_array::{Array, ArrayRef, BooleanArray, Scalar};
use arrow_ord::cmp;
use arrow_schema::{ArrowError, DataType};

use crate::error::Result;
use crate::frame::Frame;
use crate::keys::KeySet;
use crate::read::literal::{self, LocatedConstants, whole_array};
use crate::read::number::ConstantPosition;
use crate::read::pattern::Pattern;
use crate::read::text::TextRequirement;
use crate::request::{Comparison, Predicate};

/// A predicate on an existing column, with constants of its type.
pub(crate) struct Test {
    /// Position of the column in the dataset.
    pub column: usize,
    /// What the column's text filter must contain if the predicate holds for some row; `None` if filters cannot tell.
    pub need: Option<TextRequirement>,
    /// All of them must be satisfied.
    kinds: Vec<Kind>,
}

enum Kind {
    /// Float columns follow IEEE 754, which Arrow's kernels (total order) do not.
    Floats(Comparison, Vec<f64>),
    Compare(Comparison, Scalar<ArrayRef>),
    In(KeySet),
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
            return Err(refuse("compares with null, which matches nothing".to_owned()));
        }
        let spots = literal::spots(values, data_type).map_err(&refuse)?;
        let need = match (&spots, predicate.comparison) {
            (LocatedConstants::Plain(values), Comparison::Equal | Comparison::In) => TextRequirement::of_values(values),
            _ => None,
        };
        let kinds = kinds(predicate.comparison, spots, data_type).map_err(refuse)?;
        Ok(Self { column, need, kinds })
    }

    /// Clears `keep` for rows of `column` that do not satisfy the predicate.
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

/// An exact comparison with values of the type, equivalent to one whose constants may lie between such values.
enum Exact<T> {
    /// True for every value that is not null.
    Always,
    OneOf(Vec<T>),
    Compare(Comparison, T),
}

/// The comparisons with values of the type that are equivalent to the one with the constants.
fn exact<T: Copy>(comparison: Comparison, spots: &[ConstantPosition<T>]) -> Vec<Exact<T>> {
    use Comparison::{Equal, Greater, GreaterOrEqual, In, Less, LessOrEqual, NotEqual};
    if let (Comparison::Between, [low, high]) = (comparison, spots) {
        let mut both = exact(GreaterOrEqual, &[*low]);
        both.extend(exact(LessOrEqual, &[*high]));
        return both;
    }
    let held = spots.iter().filter_map(|spot| if let ConstantPosition::At(value) = spot { Some(*value) } else { None });
    let [spot] = spots else { return vec![Exact::OneOf(held.collect())] };
    vec![match (comparison, *spot) {
        (In, _) => Exact::OneOf(held.collect()),
        (_, ConstantPosition::At(value)) => Exact::Compare(comparison, value),
        (Less | LessOrEqual, ConstantPosition::After(value)) => Exact::Compare(LessOrEqual, value),
        (Greater | GreaterOrEqual, ConstantPosition::After(value)) => Exact::Compare(Greater, value),
        // With NaN, which is neither less nor greater, only `NotEqual` holds, as IEEE 754 defines it.
        (NotEqual, _)
        | (Less | LessOrEqual, ConstantPosition::Above)
        | (Greater | GreaterOrEqual, ConstantPosition::Below) => Exact::Always,
        (Equal | Less | LessOrEqual | Greater | GreaterOrEqual, _) => Exact::OneOf(vec![]),
        // Handled before.
        (
            Comparison::Between | Comparison::Contains | Comparison::Matches | Comparison::Prefix | Comparison::Exists,
            _,
        ) => Exact::OneOf(vec![]),
    }]
}

fn kinds(
    comparison: Comparison,
    spots: LocatedConstants,
    data_type: &DataType,
) -> std::result::Result<Vec<Kind>, String> {
    let wanted = |values: ArrayRef| KeySet::new(&[values]).map(Kind::In).map_err(|e| e.to_string());
    match spots {
        LocatedConstants::Floats(spots) => Ok(exact(comparison, &spots).into_iter().map(Kind::of_floats).collect()),
        LocatedConstants::Whole(spots) => {
            let kind = |exact: Exact<i128>| match exact {
                Exact::Always => Ok(Kind::Exists(true)),
                Exact::OneOf(values) => wanted(whole_array(&values, data_type)?),
                Exact::Compare(comparison, value) => {
                    Ok(Kind::Compare(comparison, Scalar::new(whole_array(&[value], data_type)?)))
                }
            };
            exact(comparison, &spots).into_iter().map(kind).collect()
        }
        LocatedConstants::Plain(values) => {
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

fn pattern(
    predicate: &Predicate,
    data_type: &DataType,
) -> std::result::Result<(Pattern, Option<TextRequirement>), String> {
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
        Comparison::Contains => Ok((Pattern::contains(text), TextRequirement::of_text(text))),
        Comparison::Prefix => Ok((Pattern::Prefix(text.to_owned()), TextRequirement::of_text(text))),
        _ => Pattern::matches(text).map(|(pattern, tree)| (pattern, TextRequirement::of_pattern(&tree))),
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

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may unwrap
mod tests {
    use super::*;
    use arrow_array::{Decimal128Array, Float32Array, Float64Array, Int8Array, Int64Array, StringArray};
    use proptest::prelude::*;
    use std::sync::Arc;

    const ORDERED: [Comparison; 6] = [
        Comparison::Equal,
        Comparison::NotEqual,
        Comparison::Less,
        Comparison::LessOrEqual,
        Comparison::Greater,
        Comparison::GreaterOrEqual,
    ];

    /// Keeps only those rows of a column for which a comparison holds.
    fn held(comparison: Comparison, constants: ArrayRef, column: &ArrayRef, mut keep: Vec<bool>) -> Vec<bool> {
        let spots = literal::spots(&constants, column.data_type()).unwrap();
        for kind in kinds(comparison, spots, column.data_type()).unwrap() {
            kind.filter(column, &mut keep).unwrap();
        }
        keep
    }

    fn compares<T: PartialOrd>(comparison: Comparison, value: T, constants: &[T]) -> bool {
        match comparison {
            Comparison::Equal => value == constants[0],
            Comparison::NotEqual => value != constants[0],
            Comparison::Less => value < constants[0],
            Comparison::LessOrEqual => value <= constants[0],
            Comparison::Greater => value > constants[0],
            Comparison::GreaterOrEqual => value >= constants[0],
            Comparison::In => constants.contains(&value),
            Comparison::Between => value >= constants[0] && value <= constants[1],
            _ => unreachable!("no order"),
        }
    }

    fn any_comparison() -> impl Strategy<Value = (Comparison, usize)> {
        prop_oneof![
            6 => prop::sample::select(ORDERED.to_vec()).prop_map(|comparison| (comparison, 1)),
            1 => (0..4_usize).prop_map(|count| (Comparison::In, count)),
            1 => Just((Comparison::Between, 2)),
        ]
    }

    fn any_float() -> impl Strategy<Value = f64> {
        prop_oneof![
            8 => (-12..12_i32).prop_map(|quarters| f64::from(quarters) / 4.0),
            2 => prop::sample::select(vec![f64::NAN, -0.0, f64::INFINITY, f64::NEG_INFINITY, 200.5, -200.5]),
        ]
    }

    proptest! {
        #[test]
        fn numbers_compare_with_constants_of_any_type_as_numbers_do(
            (comparison, count) in any_comparison(),
            constants in prop::collection::vec(any_float(), 3),
            values in prop::collection::vec((prop::option::of(-3..4_i8), any::<bool>()), 0..20),
        ) {
            let constants = &constants[..count];
            let keep: Vec<bool> = values.iter().map(|(_, keep)| *keep).collect();
            let floats = || values.iter().map(|(value, _)| value.map(f64::from));
            let columns: [ArrayRef; 5] = [
                Arc::new(values.iter().map(|(value, _)| *value).collect::<Int8Array>()),
                Arc::new(floats().collect::<Float64Array>()),
                Arc::new(floats().map(|value| value.map(|value| value as f32)).collect::<Float32Array>()),
                Arc::new(values.iter().map(|(value, _)| value.map(i64::from)).collect::<Int64Array>()),
                Arc::new(
                    values.iter().map(|(value, _)| value.map(|value| i128::from(value) * 10)).collect::<Decimal128Array>()
                        .with_precision_and_scale(9, 1).unwrap(),
                ),
            ];
            let expected: Vec<bool> = floats().zip(&keep)
                .map(|(value, keep)| *keep && value.is_some_and(|value| compares(comparison, value, constants)))
                .collect();
            for column in &columns {
                let found = held(comparison, Arc::new(Float64Array::from(constants.to_vec())), column, keep.clone());
                prop_assert_eq!(&found, &expected, "{:?} {:?} of {}", comparison, constants, column.data_type());
            }
        }

        #[test]
        fn floats_compare_as_ieee_has_it(
            (comparison, count) in any_comparison(),
            constants in prop::collection::vec(any_float(), 3),
            values in prop::collection::vec(prop::option::of(any_float()), 0..20),
        ) {
            let constants = &constants[..count];
            let column: ArrayRef = Arc::new(values.iter().copied().collect::<Float64Array>());
            let narrow: ArrayRef = Arc::new(values.iter().map(|value| value.map(|value| value as f32)).collect::<Float32Array>());
            let expected: Vec<bool> =
                values.iter().map(|value| value.is_some_and(|value| compares(comparison, value, constants))).collect();
            for column in [column, narrow] {
                let found = held(comparison, Arc::new(Float64Array::from(constants.to_vec())), &column, vec![true; values.len()]);
                prop_assert_eq!(&found, &expected, "{:?} {:?}", comparison, constants);
            }
        }

        #[test]
        fn texts_compare_by_their_bytes(
            (comparison, count) in any_comparison(),
            constants in prop::collection::vec("[abé]{0,2}", 3),
            values in prop::collection::vec((prop::option::of("[abé]{0,2}"), any::<bool>()), 0..20),
        ) {
            let constants = &constants[..count];
            let keep: Vec<bool> = values.iter().map(|(_, keep)| *keep).collect();
            let column: ArrayRef = Arc::new(values.iter().map(|(value, _)| value.as_deref()).collect::<StringArray>());
            let expected: Vec<bool> = values.iter()
                .map(|(value, keep)| *keep && value.as_ref().is_some_and(|value| compares(comparison, value, &constants.iter().collect::<Vec<_>>())))
                .collect();
            prop_assert_eq!(held(comparison, Arc::new(StringArray::from(constants.to_vec())), &column, keep), expected);
        }
    }

    #[test]
    fn what_exists_is_what_is_not_null() {
        let column: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(2), None]));
        for (wanted, expected) in [(true, [true, false, false, false]), (false, [false, true, false, false])] {
            let mut keep = [true, true, false, false];
            Kind::Exists(wanted).filter(&column, &mut keep).unwrap();
            assert_eq!(keep, expected);
        }
        let truths = |values: Vec<Option<bool>>| boolean(&(Arc::new(BooleanArray::from(values)) as ArrayRef));
        assert_eq!((truths(vec![Some(true)]), truths(vec![Some(false)])), (Some(true), Some(false)));
        assert_eq!((truths(vec![]), truths(vec![None]), truths(vec![Some(true); 2])), (None, None, None));
    }

    #[test]
    fn conditions_on_texts_take_one_text() {
        let predicate = |comparison, values: ArrayRef| Predicate { column: "note".into(), comparison, values };
        let texts = |values: Vec<Option<&str>>| Arc::new(StringArray::from(values)) as ArrayRef;
        for (comparison, name, part, found) in [
            (Comparison::Contains, "contains", "b.", [false, false, true]),
            (Comparison::Prefix, "prefix", "ab.", [false, false, true]),
            (Comparison::Matches, "matches", "b.", [true, false, true]),
        ] {
            let one = predicate(comparison, texts(vec![Some(part)]));
            let (pattern_, _) = pattern(&one, &DataType::Utf8).unwrap();
            let mut keep = [true; 3];
            pattern_.filter(&texts(vec![Some("abc"), None, Some("ab.")]), &mut keep);
            assert_eq!(keep, found, "{name}");
            for values in
                [texts(vec![]), texts(vec![None]), texts(vec![Some("a"); 2]), Arc::new(Int64Array::from(vec![1]))]
            {
                let refused = pattern(&predicate(comparison, values), &DataType::Utf8).err().unwrap();
                assert!(refused.ends_with(name), "{refused}");
            }
            assert!(pattern(&one, &DataType::Int64).err().unwrap().contains(&format!("{name} is for text")));
        }
        let long = pattern(&predicate(Comparison::Prefix, texts(vec![Some("denied")])), &DataType::Utf8).unwrap().1;
        assert_eq!(long, TextRequirement::of_text("denied"));
    }
}
