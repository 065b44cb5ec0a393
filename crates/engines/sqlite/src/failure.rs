//! Maps errors of SQLite to errors of the store.

use std::path::Path;

use chronotile_store::StoreError;
use rusqlite::ErrorCode;

/// Name of the engine in messages.
pub(crate) const ENGINE: &str = "sqlite";

/// SQLite could not grow the shared-memory file beside the archive; only a full disk makes that happen.
const IOERR_SHMSIZE: i32 = rusqlite::ffi::SQLITE_IOERR_SHMSIZE;

/// The phase in which SQLite failed; it decides whether a write may have taken effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Before the commit record was written: SQLite rolls back, and nothing is stored.
    Before,
    /// While the commit record was written: it may be durable although SQLite says it failed.
    Commit,
}

/// Maps an error of SQLite to a store error.
pub(crate) fn store_error(path: &Path, phase: Phase, waited_s: u64, error: rusqlite::Error) -> StoreError {
    let path = path.display().to_string();
    let reason = reason(&error);
    let Some(failure) = error.sqlite_error() else {
        return match is_corrupt(&error) {
            true => StoreError::Corrupt { path, reason },
            false => StoreError::Refused { engine: ENGINE, reason },
        };
    };
    match failure.code {
        // A full disk or a lock stops SQLite before the commit record is written, so both are certain in either phase.
        ErrorCode::DiskFull => StoreError::Full { path },
        ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => StoreError::Busy { path, waited_s },
        _ if phase == Phase::Commit => StoreError::Unknown { engine: ENGINE, reason },
        _ if failure.extended_code == IOERR_SHMSIZE => StoreError::Full { path },
        ErrorCode::ReadOnly => StoreError::ReadOnly { path, reason },
        ErrorCode::CannotOpen => {
            let reason = format!("{reason}; SQLite must be able to create files in the folder of the archive");
            StoreError::ReadOnly { path, reason }
        }
        ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase => StoreError::Corrupt { path, reason },
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

/// Whether another connection held a lock.
pub(crate) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// Whether SQLite found its own file damaged, or a value is none that was ever stored in its column.
pub(crate) fn is_corrupt(error: &rusqlite::Error) -> bool {
    use rusqlite::Error::{FromSqlConversionFailure, IntegralValueOutOfRange, InvalidColumnType, Utf8Error};
    matches!(error, FromSqlConversionFailure(..) | IntegralValueOutOfRange(..) | InvalidColumnType(..) | Utf8Error(..))
        || error.sqlite_error_code() == Some(ErrorCode::DatabaseCorrupt)
}

#[cfg(test)]
mod tests {
    use super::*;
    use chronotile_store::Outcome;
    use rusqlite::ffi;

    fn outcome_of(code: i32, phase: Phase) -> StoreError {
        let failure = rusqlite::Error::SqliteFailure(ffi::Error::new(code), Some("disk trouble".to_owned()));
        store_error(Path::new("/data/survey.db"), phase, 7, failure)
    }

    #[test]
    fn a_commit_that_failed_on_the_disk_is_unknown_and_any_other_write_is_not() {
        for code in [ffi::SQLITE_IOERR, ffi::SQLITE_IOERR_FSYNC, ffi::SQLITE_IOERR_WRITE, ffi::SQLITE_IOERR_SHMSIZE] {
            assert_eq!(outcome_of(code, Phase::Commit).outcome(), Outcome::Unknown, "{code}");
            assert_eq!(outcome_of(code, Phase::Before).outcome(), Outcome::Refused, "{code}");
        }
    }

    #[test]
    fn each_failure_has_its_error_and_names_the_archive() {
        let is = |code, expected: fn(&StoreError) -> bool| {
            let error = outcome_of(code, Phase::Before);
            assert!(expected(&error) && error.to_string().contains("/data/survey.db"), "{error}");
        };
        is(ffi::SQLITE_FULL, |error| matches!(error, StoreError::Full { .. }));
        is(ffi::SQLITE_IOERR_SHMSIZE, |error| matches!(error, StoreError::Full { .. }));
        is(ffi::SQLITE_BUSY, |error| matches!(error, StoreError::Busy { waited_s: 7, .. }));
        is(ffi::SQLITE_BUSY_RECOVERY, |error| matches!(error, StoreError::Busy { .. }));
        is(ffi::SQLITE_READONLY, |error| matches!(error, StoreError::ReadOnly { .. }));
        is(ffi::SQLITE_READONLY_DIRECTORY, |error| matches!(error, StoreError::ReadOnly { .. }));
        is(ffi::SQLITE_CANTOPEN, |error| matches!(error, StoreError::ReadOnly { .. }));
        is(ffi::SQLITE_CORRUPT, |error| matches!(error, StoreError::Corrupt { .. }));
        is(ffi::SQLITE_NOTADB, |error| matches!(error, StoreError::Corrupt { .. }));
    }

    #[test]
    fn values_that_were_never_stored_are_damage() {
        let conn = rusqlite::Connection::open_in_memory().unwrap();
        let read = |sql: &str| conn.query_row(sql, [], |row| row.get::<_, u32>(0)).unwrap_err();
        let text = |sql: &str| conn.query_row(sql, [], |row| row.get::<_, String>(0)).unwrap_err();
        for error in [read("SELECT 'a'"), read("SELECT NULL"), read("SELECT -1"), text("SELECT CAST(x'ff' AS TEXT)")] {
            assert!(is_corrupt(&error), "{error}");
            let reported = store_error(Path::new("/data/survey.db"), Phase::Before, 7, error);
            assert!(matches!(reported, StoreError::Corrupt { .. }), "{reported}");
        }
    }
}
