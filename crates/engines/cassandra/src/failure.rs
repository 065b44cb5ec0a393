//! Maps errors of the cluster to store errors.

use chronotile_cql::{Applied, CqlError};
use chronotile_store::StoreError;

pub(crate) const ENGINE: &str = "cassandra";

/// The error of a read, or of a write that certainly had no effect.
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

/// The error of a write that may have taken effect in part; `begun` if an earlier part certainly has.
pub(crate) fn of_write(error: CqlError, begun: bool) -> StoreError {
    if begun || error.applied() == Applied::Maybe {
        return StoreError::Unknown { engine: ENGINE, reason: error.to_string() };
    }
    refused(error)
}

/// The error for a response that cannot be interpreted.
pub(crate) fn malformed(error: impl std::fmt::Display) -> CqlError {
    CqlError::Protocol { reason: error.to_string() }
}
