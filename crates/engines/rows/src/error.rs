use chronotile_types::Damage;

/// Result of turning chunks into rows or back.
pub type Result<T> = std::result::Result<T, RowsError>;

/// Why a chunk cannot be kept as rows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RowsError {
    /// A column, or one of its values, has no place in a CQL table.
    #[error("column {column:?}: {reason}")]
    Column {
        /// The column.
        column: String,
        /// What is wrong with it, and what to do.
        reason: String,
    },
    /// The chunk was not written for rows.
    #[error(
        "a chunk of layout rows must be in plain form with distinct origins: write the rows, do not move chunks of another layout"
    )]
    NotPlain,
    /// The chunk has a schema version that the definition at hand does not know.
    #[error("schema version {0} is newer than the definition at hand: open the dataset again")]
    Version(u32),
    /// The chunk cannot be read.
    #[error("a chunk that is to be kept as rows is damaged: {0}")]
    Damaged(Damage),
    /// An answer of the cluster has other columns than were asked for.
    #[error("an answer is not what was asked for: {reason}")]
    Answer {
        /// What differs.
        reason: String,
    },
}

impl From<Damage> for RowsError {
    fn from(damage: Damage) -> Self {
        Self::Damaged(damage)
    }
}
