//! A value as it comes from a text format.

use std::borrow::Cow;

use chronotile_historian::DataType;

use super::refusals::shown;

/// Maximum length of a text value in bytes.
pub const TEXT_BYTES_MAX: usize = 1 << 20;

/// A value as the client sent it.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<'a> {
    /// A number.
    Float(f64),
    /// An integer, exact in all digits.
    Integer(i64),
    /// True or false.
    Bool(bool),
    /// Text.
    Text(Cow<'a, str>),
    /// No value.
    Null,
}

impl Value<'_> {
    /// The data type of a new tag whose first value is this one.
    pub(super) fn data_type(&self) -> DataType {
        match self {
            Self::Float(_) | Self::Null => DataType::Float,
            Self::Integer(_) => DataType::Integer,
            Self::Bool(_) => DataType::Bool,
            Self::Text(_) => DataType::String,
        }
    }

    pub(super) fn float(&self) -> Option<f64> {
        match self {
            Self::Float(number) => Some(*number),
            Self::Integer(number) => Some(*number as f64),
            _ => None,
        }
    }

    pub(super) fn integer(&self) -> Option<i64> {
        match self {
            Self::Integer(number) => Some(*number),
            Self::Float(number) if number.is_finite() => Some(*number as i64),
            _ => None,
        }
    }

    pub(super) fn bool(&self) -> Option<bool> {
        match self {
            Self::Bool(value) => Some(*value),
            other => other.float().filter(|number| number.is_finite()).map(|number| number != 0.0),
        }
    }

    /// Describes the value in an error message, after "the value".
    pub(super) fn description(&self) -> String {
        match self {
            Self::Float(number) => format!("is {number}"),
            Self::Integer(number) => format!("is {number}"),
            Self::Bool(_) => "is a bool".to_owned(),
            Self::Text(text) => format!("{} is text", shown(text)),
            Self::Null => "is a null".to_owned(),
        }
    }
}

/// Refuses a text that is too long for a value.
pub(crate) fn check_texts<'a>(values: impl IntoIterator<Item = &'a Value<'a>>) -> Result<(), String> {
    let long = |value: &&Value<'_>| matches!(value, Value::Text(text) if text.len() > TEXT_BYTES_MAX);
    match values.into_iter().find(long) {
        Some(_) => Err(format!("a text value is longer than {TEXT_BYTES_MAX} bytes")),
        None => Ok(()),
    }
}
