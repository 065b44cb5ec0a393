use std::path::Path;

use chronotile_store::StoreError;
use rusqlite::ErrorCode;

/// Name of the engine in messages.
pub(crate) const ENGINE: &str = "sqlite";

/// SQLite could not grow the shared-memory file beside the archive; only a full disk makes that happen.
const IOERR_SHMSIZE: i32 = rusqlite::ffi::SQLITE_IOERR_SHMSIZE;

/// What was being done when SQLite failed; it decides whether a write may have landed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Before the commit record was written: SQLite rolls back, nothing has happened.
    Before,
    /// While the commit record was written: it may be durable although SQLite says it failed.
    Commit,
}

/// Turns SQLite's error into what a caller can act on.
pub(crate) fn store_error(path: &Path, phase: Phase, waited_s: u64, error: rusqlite::Error) -> StoreError {
    let place = path.display().to_string();
    let reason = reason(&error);
    let Some(failure) = error.sqlite_error() else {
        return StoreError::Refused { engine: ENGINE, reason };
    };
    match failure.code {
        ErrorCode::DiskFull => StoreError::Full { place },
        ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => StoreError::Busy { place, waited_s },
        _ if phase == Phase::Commit => StoreError::Unknown { engine: ENGINE, reason },
        _ if failure.extended_code == IOERR_SHMSIZE => StoreError::Full { place },
        ErrorCode::ReadOnly => StoreError::ReadOnly { place, reason },
        ErrorCode::CannotOpen => {
            let reason = format!("{reason}; SQLite must be able to make files in the folder of the archive");
            StoreError::ReadOnly { place, reason }
        }
        ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => StoreError::Corrupt { place, reason },
        _ => StoreError::Refused { engine: ENGINE, reason },
    }
}

fn reason(error: &rusqlite::Error) -> String {
    match error {
        rusqlite::Error::SqliteFailure(failure, Some(message)) => {
            format!("{message} (SQLite code {})", failure.extended_code)
        }
        other => other.to_string(),
    }
}

/// Whether another connection was in the way.
pub(crate) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}
