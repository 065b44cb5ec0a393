use arrow_schema::ArrowError;
use chronotile_archive::ArchiveError;
use chronotile_types::ErrorKind;

use crate::rules::{GridError, TooManyValues};
use crate::tag::TagKey;

/// Result of an operation of the historian.
pub type Result<T> = std::result::Result<T, HistorianError>;

/// Why the historian could not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HistorianError {
    /// The archive.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// A tag that is not defined.
    #[error("no tag {tag}{}: define it first, or look for its name by a pattern such as *part*", meant(near))]
    UnknownTag {
        /// How it was named.
        tag: TagKey,
        /// Names of tags that are near, the nearest first.
        near: Vec<String>,
    },
    /// A group of which no tag is, and no point.
    #[error("no group {group:?}{hint}")]
    UnknownGroup {
        /// How it was named.
        group: String,
        /// The groups there are.
        hint: String,
    },
    /// A definition that cannot be used.
    #[error("tag {tag:?} cannot be defined: {reason}")]
    Definition {
        /// Its name.
        tag: String,
        /// What is wrong and what to do.
        reason: String,
    },
    /// Points whose columns do not fit.
    #[error("points need columns tag, time and value, and may have status: {0}")]
    Columns(String),
    /// A point that cannot be stored.
    #[error("row {row}, tag {tag:?}: {reason}; nothing of this batch was acknowledged")]
    Point {
        /// Row number in the input, from 0.
        row: u64,
        /// Name of its tag.
        tag: String,
        /// What is wrong and what to do.
        reason: String,
    },
    /// Intervals that make no sense.
    #[error(transparent)]
    Grid(#[from] GridError),
    /// An interval with more values than an aggregate can keep.
    #[error("tag {tag:?}: {source}")]
    TooManyValues {
        /// The tag.
        tag: String,
        /// The limit.
        source: TooManyValues,
    },
    /// An aggregate of values that are no numbers.
    #[error(
        "tag {tag:?} holds text, of which {aggregate} cannot be computed: use Count, WorstQuality or one of the durations \
         and percents of quality"
    )]
    NotNumeric {
        /// The tag.
        tag: String,
        /// Name of the aggregate.
        aggregate: String,
    },
    /// A request that makes no sense.
    #[error("{0}")]
    Request(String),
    /// An Arrow kernel refused.
    #[error("{work} failed: {source}")]
    Compute {
        /// What was being done.
        work: &'static str,
        /// What Arrow says.
        source: ArrowError,
    },
}

/// What a message says of names that are near: ` (did you mean a or b?)`.
pub fn meant(near: &[String]) -> String {
    if near.is_empty() { String::new() } else { format!(" (did you mean {}?)", near.join(" or ")) }
}

impl HistorianError {
    pub(crate) fn compute(work: &'static str) -> impl Fn(ArrowError) -> Self {
        move |source| Self::Compute { work, source }
    }
}

impl HistorianError {
    /// The stable name of the case.
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
