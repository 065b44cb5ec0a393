//! What is known of a tag.

use crate::rules::Settings;

/// What kind of values a tag has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DataType {
    /// float64.
    Float,
    /// int64.
    Integer,
    /// True or false.
    Bool,
    /// Text.
    String,
}

impl DataType {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Float => "float",
            Self::Integer => "integer",
            Self::Bool => "bool",
            Self::String => "string",
        }
    }

    /// The type of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Float, Self::Integer, Self::Bool, Self::String].into_iter().find(|kind| kind.name() == name)
    }

    pub(crate) fn storage(self) -> Storage {
        match self {
            Self::Float | Self::Bool => Storage::Float,
            Self::Integer => Storage::Integer,
            Self::String => Storage::Text,
        }
    }
}

/// In what type values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Storage {
    Float,
    Integer,
    Text,
}

/// A tag: one measured or computed quantity of a plant.
#[derive(Clone, Debug, PartialEq)]
pub struct Tag {
    /// Its number, the cell its values lie in.
    pub number: i64,
    /// Its name, unique in the archive.
    pub name: String,
    /// Engineering unit.
    pub unit: String,
    /// What it is.
    pub description: String,
    /// Tags of a group share their retention.
    pub group: String,
    /// What its values are.
    pub data_type: DataType,
    /// How its aggregates are computed unless a request says otherwise. The percentile is no part of it.
    pub settings: Settings,
    /// A value that differs from the last reported one by no more than this is not reported; negative for no such filter.
    pub exception_deviation: f64,
    /// The greatest error of a line through the values kept, of the swinging door; negative for no compression.
    pub compression_deviation: f64,
}

/// How a caller names a tag.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TagKey {
    /// By name.
    Name(String),
    /// By number.
    Number(i64),
}

impl TagKey {
    /// The name, or the number's digits, as callers compare them.
    pub fn plain(&self) -> String {
        match self {
            Self::Name(name) => name.clone(),
            Self::Number(number) => number.to_string(),
        }
    }
}

impl std::fmt::Display for TagKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name(name) => write!(f, "{name:?}"),
            Self::Number(number) => write!(f, "number {number}"),
        }
    }
}

/// The longest name of a tag, in bytes.
pub const NAME_BYTES_MAX: usize = 512;
/// The group of tags that are defined without one.
pub(crate) const GROUP_DEFAULT: &str = "main";
/// The longest unit of a tag, in bytes.
pub(crate) const UNIT_BYTES_MAX: usize = NAME_BYTES_MAX;
/// The longest name of a group: it becomes a part of the names of datasets.
pub(crate) const GROUP_BYTES_MAX: usize = 24;
