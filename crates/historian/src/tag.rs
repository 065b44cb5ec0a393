//! The definition of a tag.

use crate::rules::Settings;

/// The data type of a tag's values.
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
    /// The name of the type.
    pub fn name(self) -> &'static str {
        match self {
            Self::Float => "float",
            Self::Integer => "integer",
            Self::Bool => "bool",
            Self::String => "string",
        }
    }

    /// The type with this name.
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

/// The type in which values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Storage {
    Float,
    Integer,
    Text,
}

/// A tag: one measured or computed quantity of a plant.
#[derive(Clone, Debug, PartialEq)]
pub struct Tag {
    /// Number of the tag, and the cell in which its points are stored.
    pub number: i64,
    /// Name, unique in the archive.
    pub name: String,
    /// Engineering unit.
    pub unit: String,
    /// Description for people.
    pub description: String,
    /// Tags of a group share their retention.
    pub group: String,
    /// Data type of the values.
    pub data_type: DataType,
    /// Default settings of its aggregates, which a request can override. The percentile is always that of the request.
    pub settings: Settings,
    /// Exception deviation: a value that differs from the last reported one by no more than this is not reported;
    /// negative for no filter.
    pub exception_deviation: f64,
    /// Compression deviation: maximum error of a line through the stored values (swinging door); negative for no
    /// compression.
    pub compression_deviation: f64,
}

/// The name or number by which a caller identifies a tag.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TagKey {
    /// By name.
    Name(String),
    /// By number.
    Number(i64),
}

impl TagKey {
    /// The name, or the digits of the number, as callers compare them.
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

/// Maximum length of the name of a tag, in bytes.
pub const NAME_BYTES_MAX: usize = 512;
/// The group of tags that are defined without one.
pub(crate) const GROUP_DEFAULT: &str = "main";
/// Maximum length of the unit of a tag, in bytes.
pub(crate) const UNIT_BYTES_MAX: usize = NAME_BYTES_MAX;
/// Maximum length of the name of a group, in bytes; it becomes part of the names of datasets.
pub(crate) const GROUP_BYTES_MAX: usize = 24;
