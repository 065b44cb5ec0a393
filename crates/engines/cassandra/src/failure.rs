//! What an error of the cluster means for the caller of a store.

use chronotile_cql::{Applied, CqlError};
use chronotile_store::StoreError;

pub(crate) const ENGINE: &str = "cassandra";

/// The error of an operation that changes nothing, or surely changed nothing.
pub(crate) fn refused(error: CqlError) -> StoreError {
    let reason = error.to_string();
    match error {
        CqlError::Denied { .. } | CqlError::Login { .. } | CqlError::Certificate { .. } => {
            StoreError::Denied { engine: ENGINE, reason }
        }
        error if error.passes() || matches!(error, CqlError::Connect { .. }) => {
            StoreError::Unavailable { engine: ENGINE, reason }
        }
        _ => StoreError::Refused { engine: ENGINE, reason },
    }
}

/// The error of a write of which some part may have landed; `begun` where an earlier part surely has.
pub(crate) fn of_write(error: CqlError, begun: bool) -> StoreError {
    if begun || error.applied() == Applied::Maybe {
        return StoreError::Unknown { engine: ENGINE, reason: error.to_string() };
    }
    refused(error)
}

/// An answer whose columns are not those asked for.
pub(crate) fn malformed(error: impl std::fmt::Display) -> CqlError {
    CqlError::Protocol { reason: error.to_string() }
}
