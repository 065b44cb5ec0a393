//! Errors of reading tables as Arrow.

use std::error::Error;
use std::sync::Arc;

use chronotile_cql::CqlError;

/// Result of an operation on tables.
pub type Result<T> = std::result::Result<T, TablesError>;

/// Why rows could not be read as Arrow.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TablesError {
    /// A request to the cluster failed.
    #[error(transparent)]
    Cluster(#[from] CqlError),
    /// The request is invalid.
    #[error("{reason}")]
    Request {
        /// What is wrong with it.
        reason: String,
    },
    /// A value does not fit its marker in the statement.
    #[error("parameter {name}: {reason}")]
    Parameter {
        /// Number and name of the marker.
        name: String,
        /// The types of the marker and the value, and what to do.
        reason: String,
    },
    /// A stored value does not fit the Arrow type that its column is read as.
    #[error("column {column:?}: {reason}")]
    Range {
        /// The column.
        column: String,
        /// The value and what to do.
        reason: String,
    },
    /// The bytes of a result do not match its types.
    #[error("malformed answer in column {column:?}: {reason}")]
    Malformed {
        /// The column.
        column: String,
        /// What does not fit.
        reason: String,
    },
    /// A type that this release cannot read.
    #[error("column {column:?} has the type {cql}, which cannot be read as Arrow")]
    UnknownType {
        /// The column.
        column: String,
        /// The type.
        cql: String,
    },
    /// The columns changed while the result was read.
    #[error("the table was altered while it was read: {reason}; read it again")]
    Altered {
        /// What differs.
        reason: String,
    },
    /// Reading ended before all rows were delivered, for example because the process is shutting down.
    #[error("{reason}")]
    Interrupted {
        /// What was not finished.
        reason: String,
    },
    /// The file that a scan is resumed from cannot be used.
    #[error("checkpoint {path}: {reason}")]
    Checkpoint {
        /// The file.
        path: String,
        /// What is wrong with it, and what to do.
        reason: String,
        /// The error of the operating system or the cluster, if it refused.
        source: Option<Arc<dyn Error + Send + Sync>>,
    },
}
