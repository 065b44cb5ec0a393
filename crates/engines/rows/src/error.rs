//! Errors of converting chunks to rows and back.

use chronotile_types::Damage;

/// Result of converting chunks to rows or back.
pub type Result<T> = std::result::Result<T, RowsError>;

/// Why a chunk cannot be stored as rows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RowsError {
    /// A column, or one of its values, cannot be represented in a CQL table.
    #[error("column {column:?}: {reason}")]
    Column {
        /// The column.
        column: String,
        /// What is wrong with it, and what to do.
        reason: String,
    },
    /// The chunk is not in plain form.
    #[error(
        "a chunk of layout rows must be in plain form with distinct origins: write the rows, do not move chunks of another layout"
    )]
    NotPlain,
    /// The chunk's schema version is newer than the known definition of the dataset.
    #[error("schema version {0} is newer than the open definition: open the dataset again")]
    Version(u32),
    /// The chunk is damaged.
    #[error("a damaged chunk cannot be stored as rows: {0}")]
    Damaged(#[from] Damage),
    /// A result of the cluster does not have the selected columns.
    #[error("unexpected answer: {reason}")]
    Answer {
        /// What differs.
        reason: String,
    },
}
