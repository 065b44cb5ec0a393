//! Errors of the historian.

use arrow_schema::ArrowError;
use chronotile_archive::ArchiveError;
use chronotile_types::ErrorKind;

use crate::rules::{GridError, TooManyValues};
use crate::tag::TagKey;

/// Result of an operation of the historian.
pub type Result<T> = std::result::Result<T, HistorianError>;

/// An error of the historian.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HistorianError {
    /// An error of the archive.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The tag is not defined.
    #[error("no tag {tag}{}: define it first, or look for its name by a pattern such as *part*", meant(near))]
    UnknownTag {
        /// The name or number that was given.
        tag: TagKey,
        /// Names of similar tags, the nearest first.
        near: Vec<String>,
    },
    /// The group has neither tags nor points.
    #[error("no group {group:?}{hint}")]
    UnknownGroup {
        /// The name that was given.
        group: String,
        /// The existing groups.
        hint: String,
    },
    /// The definition of a tag is invalid.
    #[error("tag {tag:?} cannot be defined: {reason}")]
    Definition {
        /// The name of the tag.
        tag: String,
        /// The problem and its solution.
        reason: String,
    },
    /// The columns of points are invalid.
    #[error("points need columns tag, time and value, and may have status: {0}")]
    Columns(String),
    /// A point cannot be stored.
    #[error("row {row}, tag {tag:?}: {reason}; nothing of this batch was acknowledged")]
    Point {
        /// Row number in the input, from 0.
        row: u64,
        /// Name of the tag.
        tag: String,
        /// The problem and its solution.
        reason: String,
    },
    /// The intervals are invalid.
    #[error(transparent)]
    Grid(#[from] GridError),
    /// An interval has more values than the aggregate can keep.
    #[error("tag {tag:?}: {source}")]
    TooManyValues {
        /// The tag.
        tag: String,
        /// The limit.
        source: TooManyValues,
    },
    /// A numeric aggregate was requested for values that are not numbers.
    #[error(
        "tag {tag:?} holds text, of which {aggregate} cannot be computed: use Count, WorstQuality or one of the durations \
         and percents of quality"
    )]
    NotNumeric {
        /// The tag.
        tag: String,
        /// Name of the aggregate.
        aggregate: &'static str,
    },
    /// The request is invalid.
    #[error("{0}")]
    Request(String),
    /// An Arrow kernel failed.
    #[error("{work} failed: {source}")]
    Compute {
        /// The operation.
        work: &'static str,
        /// The error of Arrow.
        source: ArrowError,
    },
}

/// The suggestion of similar names in a message: ` (did you mean a or b?)`.
pub fn meant(near: &[String]) -> String {
    if near.is_empty() { String::new() } else { format!(" (did you mean {}?)", near.join(" or ")) }
}

impl HistorianError {
    pub(crate) fn compute(work: &'static str) -> impl Fn(ArrowError) -> Self {
        move |source| Self::Compute { work, source }
    }
}

impl HistorianError {
    /// The stable name of the kind of error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Archive(error) => error.kind(),
            Self::UnknownTag { .. } => ErrorKind::TagNotFound,
            Self::UnknownGroup { .. } => ErrorKind::GroupNotFound,
            Self::Definition { .. } => ErrorKind::InvalidTag,
            Self::Columns(_) | Self::Point { .. } => ErrorKind::InvalidRows,
            Self::Grid(_) | Self::NotNumeric { .. } | Self::Request(_) => ErrorKind::InvalidRequest,
            Self::TooManyValues { .. } => ErrorKind::TooLarge,
            Self::Compute { .. } => ErrorKind::Compute,
        }
    }
}
