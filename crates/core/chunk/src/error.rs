//! Errors of encoding rows as a chunk.

use crate::{DECODED_BYTES_MAX, ROWS_MAX};

/// Why rows cannot be encoded as a chunk.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// No rows, or too many.
    #[error("a chunk holds 1 to {ROWS_MAX} rows, not {0}: split the rows")]
    RowCount(usize),
    /// The decoded columns would exceed the limit.
    #[error("the rows take more than {DECODED_BYTES_MAX} bytes: split them, or shorten the greatest values")]
    TooLarge,
    /// The batch and the layout have different columns.
    #[error("the batch has {found} columns where the schema has {expected}")]
    ColumnCount {
        /// Columns of the layout.
        expected: usize,
        /// Columns of the batch.
        found: usize,
    },
    /// A column does not match the schema.
    #[error("column {column:?}: {reason}")]
    Column {
        /// The column's name.
        column: String,
        /// What is wrong with it.
        #[source]
        reason: Box<EncodeError>,
    },
    /// The type of an array differs from that of its column.
    #[error("the array's type differs from the schema's: cast it first")]
    WrongType,
    /// A null where the schema allows none.
    #[error("a value is null where the schema allows no nulls")]
    UnexpectedNull,
    /// Origins, row origins or ordinals do not match the rows.
    #[error("invalid origins of rows: {0}")]
    Origins(&'static str),
    /// A range of the zone ends before it begins.
    #[error("the zone ends before it begins")]
    Zone,
}

impl EncodeError {
    /// Whether splitting the rows may help.
    pub fn is_too_large(&self) -> bool {
        match self {
            Self::TooLarge => true,
            Self::Column { reason, .. } => reason.is_too_large(),
            _ => false,
        }
    }
}
