//! From Rust errors to the exception classes of `chronotile.errors`.

use arrow_schema::ArrowError;
use chronotile_archive::memory::MemoryError;
use chronotile_archive::{ArchiveError, BackupError};
use chronotile_cql::{CqlError, Landed};
use chronotile_historian::HistorianError;
use chronotile_io::IoError;
use chronotile_store::{Outcome, StoreError};
use chronotile_tables::TablesError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// An exception before it is raised: its class in `chronotile.errors`, its stable `kind`, its text, and attributes.
pub struct Fault {
    class: &'static str,
    kind: &'static str,
    message: String,
    details: Vec<(&'static str, Detail)>,
}

enum Detail {
    Text(String),
    Number(i64),
}

impl Fault {
    pub fn new(class: &'static str, kind: &'static str, message: impl Into<String>) -> Self {
        Self { class, kind, message: message.into(), details: vec![] }
    }

    fn text(mut self, name: &'static str, value: impl ToString) -> Self {
        self.details.push((name, Detail::Text(value.to_string())));
        self
    }

    fn number(mut self, name: &'static str, value: impl Into<i64>) -> Self {
        self.details.push((name, Detail::Number(value.into())));
        self
    }

    /// The exception; if the class cannot be imported, the reason of that.
    pub fn raise(self) -> PyErr {
        Python::attach(|py| match self.instance(py) {
            Ok(exception) => PyErr::from_value(exception),
            Err(error) => error,
        })
    }

    fn instance(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        let details = PyDict::new(py);
        details.set_item("kind", self.kind)?;
        for (name, value) in self.details {
            match value {
                Detail::Text(text) => details.set_item(name, text)?,
                Detail::Number(number) => details.set_item(name, number)?,
            }
        }
        py.import("chronotile.errors")?.getattr(self.class)?.call((self.message,), Some(&details))
    }
}

/// An argument that cannot be used.
pub fn invalid(kind: &'static str, message: impl Into<String>) -> PyErr {
    Fault::new("InvalidInputError", kind, message).raise()
}

/// The exception for memory that a program has bounded.
pub fn memory_error(error: MemoryError) -> PyErr {
    match error {
        MemoryError::InUse { .. } => Fault::new("BusyError", "memory-in-use", error.to_string()).raise(),
        MemoryError::TooLarge { .. } => invalid("too-large", error.to_string()),
    }
}

/// The exception for an error of the archive: the only place that decides which class and kind it gets.
pub fn archive_error(error: ArchiveError) -> PyErr {
    use ArchiveError as A;
    let error = match error {
        A::Source(error) => return source_error(error),
        A::Store(error) => return store_fault(error).raise(),
        A::Memory(error) => return memory_error(error),
        other => other,
    };
    let message = error.to_string();
    let invalid = |kind| Fault::new("InvalidInputError", kind, message.clone());
    match &error {
        A::Spec(_) => invalid("invalid-definition"),
        A::Time(_) => invalid("invalid-time"),
        A::Sky(_) => invalid("invalid-sky"),
        A::Url { .. } => invalid("invalid-url"),
        A::TooManyGroups { dataset, .. } => invalid("too-large").text("dataset", dataset),
        A::Request { dataset, .. } => invalid("invalid-request").text("dataset", dataset),
        A::Immutable { dataset, .. } => invalid("immutable").text("dataset", dataset),
        A::Input { dataset, column, .. } => invalid("invalid-rows").text("dataset", dataset).text("column", column),
        A::Row { dataset, column, row, .. } => invalid("invalid-rows")
            .text("dataset", dataset)
            .text("column", column)
            .number("row", i64::try_from(*row).unwrap_or(i64::MAX)),
        A::Encode { dataset, .. } => invalid("invalid-rows").text("dataset", dataset),
        A::DatasetNotFound { name, .. } => {
            Fault::new("DatasetNotFoundError", "dataset-not-found", message).text("dataset", name)
        }
        A::DatasetExists { name, .. } => {
            Fault::new("DatasetExistsError", "dataset-exists", message).text("dataset", name)
        }
        A::BatchNotFound { dataset, key } => {
            Fault::new("BatchNotFoundError", "batch-not-found", message).text("dataset", dataset).text("batch", key)
        }
        A::BatchDiffers { dataset, key, .. } => {
            Fault::new("BatchConflictError", "batch-differs", message).text("dataset", dataset).text("batch", key)
        }
        A::SameArchive { .. } => invalid("same-archive"),
        A::NotACopy { dataset, .. } => Fault::new("DatasetExistsError", "not-a-copy", message).text("dataset", dataset),
        A::SliceRetired { dataset, .. } => Fault::new("BusyError", "slice-retired", message).text("dataset", dataset),
        A::SliceInUse { dataset, .. } | A::RetireRace { dataset, .. } => {
            Fault::new("BusyError", "slice-in-use", message).text("dataset", dataset)
        }
        A::CopyRace { dataset } => Fault::new("BusyError", "lost-race", message).text("dataset", dataset),
        A::BatchRace { dataset, key } => {
            Fault::new("BatchConflictError", "batch-race", message).text("dataset", dataset).text("batch", key)
        }
        A::Damaged { dataset, tile, chunk, .. } => Fault::new("DamagedChunkError", "damaged-chunk", message)
            .text("dataset", dataset)
            .number("cell", tile.cell.0)
            .number("window", tile.window.0)
            .text("chunk", chunk),
        A::Catalog { .. } => Fault::new("DamagedError", "damaged-catalog", message),
        A::Cancelled => Fault::new("OutcomeUnknownError", "cancelled", message),
        A::Compute { dataset, .. } => Fault::new("ChronotileError", "compute", message).text("dataset", dataset),
        other => Fault::new(class_of(other.outcome()), "other", message),
    }
    .raise()
}

fn store_fault(error: StoreError) -> Fault {
    use StoreError as S;
    let message = error.to_string();
    match &error {
        S::NotAnArchive { .. } => Fault::new("NotAnArchiveError", "not-an-archive", message),
        S::NewerFormat { .. } => Fault::new("NotAnArchiveError", "newer-format", message),
        S::NotFound { .. } => Fault::new("ArchiveNotFoundError", "archive-not-found", message),
        S::Moved { .. } => Fault::new("ArchiveNotFoundError", "archive-moved", message),
        S::ReadOnly { .. } => Fault::new("ReadOnlyError", "read-only", message),
        S::Full { .. } => Fault::new("StorageFullError", "storage-full", message),
        S::Busy { .. } => Fault::new("BusyError", "busy", message),
        S::NoSlice { .. } | S::RecordConflict { .. } | S::ChunkConflict { .. } | S::SliceConflict { .. } => {
            Fault::new("BusyError", "lost-race", message)
        }
        S::Unavailable { .. } => Fault::new("UnavailableError", "cluster-unavailable", message),
        S::Denied { .. } => Fault::new("AccessDeniedError", "access-denied", message),
        S::Corrupt { .. } => Fault::new("DamagedError", "damaged-archive", message),
        S::TooLarge { .. } => Fault::new("InvalidInputError", "too-large", message),
        S::Unfit { .. } => Fault::new("InvalidInputError", "invalid-rows", message),
        S::Refused { .. } => Fault::new("ChronotileError", "engine-refused", message),
        S::Unknown { .. } => Fault::new("OutcomeUnknownError", "outcome-unknown", message),
        other => Fault::new(class_of(other.outcome()), "other", message),
    }
}

/// The exception for an error of a cluster. `wrote` tells whether the request could have changed anything: then one that
/// may have landed is `OutcomeUnknownError`, while a read that failed so is only to be repeated.
pub fn cql_error(error: CqlError, wrote: bool) -> PyErr {
    use CqlError as C;
    let message = error.to_string();
    let unknown = wrote && error.landed() == Landed::Maybe;
    let fault = |class, kind| Fault::new(class, kind, message.clone());
    match &error {
        C::Url { .. } => fault("InvalidInputError", "invalid-url"),
        C::TlsFiles { .. } => fault("InvalidInputError", "invalid-setting"),
        C::NoTable { .. } => fault("InvalidInputError", "table-not-found"),
        C::Invalid { .. } => fault("InvalidInputError", "invalid-cql"),
        C::Login { .. } => fault("AccessDeniedError", "login"),
        C::Certificate { .. } => fault("AccessDeniedError", "certificate"),
        C::Denied { .. } => fault("AccessDeniedError", "permission"),
        C::Connect { .. } => fault("UnavailableError", "no-node"),
        C::Unavailable { consistency, required, alive } => fault("UnavailableError", "too-few-replicas")
            .text("consistency", consistency)
            .number("required", *required)
            .number("alive", *alive),
        _ if unknown => fault("OutcomeUnknownError", "outcome-unknown"),
        C::Broken { .. } => fault("UnavailableError", "no-connection"),
        C::Overloaded { .. } => fault("BusyError", "overloaded"),
        C::TimedOut { .. } | C::GaveUp { .. } => fault("BusyError", "timed-out"),
        C::ReplicaFailed { .. } => fault("ChronotileError", "replica-failed"),
        C::Protocol { .. } => fault("ChronotileError", "protocol"),
        _ => fault("ChronotileError", "other"),
    }
    .raise()
}

/// The exception for an error of reading or changing tables of a cluster; `wrote` as in [`cql_error`].
pub fn tables_error(error: TablesError, wrote: bool) -> PyErr {
    use TablesError as T;
    let error = match error {
        T::Cluster(error) => return cql_error(error, wrote),
        other => other,
    };
    let message = error.to_string();
    let fault = |class, kind| Fault::new(class, kind, message.clone());
    match &error {
        T::Request { .. } => fault("InvalidInputError", "invalid-request"),
        T::Parameter { .. } => fault("InvalidInputError", "invalid-parameter"),
        T::Checkpoint { .. } => fault("InvalidInputError", "invalid-checkpoint"),
        T::Range { column, .. } => fault("InvalidInputError", "value-range").text("column", column),
        T::UnknownType { column, .. } => fault("InvalidInputError", "unknown-type").text("column", column),
        T::Malformed { column, .. } => fault("ChronotileError", "malformed-answer").text("column", column),
        T::Altered { .. } => fault("BusyError", "table-altered"),
        T::Interrupted { .. } => fault("ChronotileError", "interrupted"),
        _ => fault("ChronotileError", "other"),
    }
    .raise()
}

/// The class of an error that this release has no name for yet.
fn class_of(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Refused => "ChronotileError",
        Outcome::LostRace => "BusyError",
        Outcome::Unknown => "OutcomeUnknownError",
    }
}

/// What the producer of a write's rows raised: its own exception where it is known, so that an error inside a caller's
/// generator reaches the caller as it was.
fn source_error(error: ArrowError) -> PyErr {
    let external = match error {
        ArrowError::ExternalError(external) => external,
        other => return invalid("invalid-source", ArchiveError::Source(other).to_string()),
    };
    let external = match external.downcast::<PyErr>() {
        Ok(raised) => return *raised,
        Err(external) => external,
    };
    let external = match external.downcast::<ArchiveError>() {
        Ok(inner) => return archive_error(*inner),
        Err(external) => external,
    };
    let external = match external.downcast::<HistorianError>() {
        Ok(inner) => return historian_error(*inner),
        Err(external) => external,
    };
    let external = match external.downcast::<TablesError>() {
        Ok(inner) => return tables_error(*inner, false),
        Err(external) => external,
    };
    match external.downcast::<IoError>() {
        Ok(inner) => io_error(*inner),
        Err(external) => {
            invalid("invalid-source", ArchiveError::Source(ArrowError::ExternalError(external)).to_string())
        }
    }
}

/// The exception for an error of the historian.
pub fn historian_error(error: HistorianError) -> PyErr {
    use HistorianError as H;
    let error = match error {
        H::Archive(error) => return archive_error(error),
        other => other,
    };
    let message = error.to_string();
    let invalid = |kind| Fault::new("InvalidInputError", kind, message.clone());
    match &error {
        H::UnknownTag { tag, .. } => Fault::new("TagNotFoundError", "tag-not-found", message).text("tag", tag.plain()),
        H::Definition { tag, .. } => invalid("invalid-tag").text("tag", tag),
        H::Columns(_) => invalid("invalid-rows"),
        H::Point { tag, row, .. } => {
            invalid("invalid-rows").text("tag", tag).number("row", i64::try_from(*row).unwrap_or(i64::MAX))
        }
        H::TooManyValues { tag, .. } => invalid("too-large").text("tag", tag),
        H::Compute { .. } => Fault::new("ChronotileError", "compute", message),
        _ => invalid("invalid-request"),
    }
    .raise()
}

/// The exception for an error of reading or writing files.
pub fn io_error(error: IoError) -> PyErr {
    use IoError as I;
    let message = error.to_string();
    let file = |kind| Fault::new("DataFileError", kind, message.clone());
    match &error {
        I::NotFound { .. } | I::NoFolder { .. } => file("file-not-found"),
        I::IsFolder { .. } | I::Denied { .. } => file("file-access"),
        I::Exists { .. } => file("file-exists"),
        I::UnknownFormat { .. } | I::WrongFormat { .. } => file("file-format"),
        I::BrokenPipe => file("broken-pipe"),
        I::Read { .. } | I::Write { .. } => file("file-io"),
        I::Damaged { .. } => file("file-damaged"),
        I::BadSetting { .. } | I::UnknownType { .. } => Fault::new("InvalidInputError", "invalid-setting", message),
        _ => file("file-content"),
    }
    .raise()
}

/// The exception for an error of copying an archive file.
pub fn backup_error(error: BackupError) -> PyErr {
    use BackupError as B;
    let error = match error {
        B::Store(error) => return store_fault(error).raise(),
        other => other,
    };
    let message = error.to_string();
    match &error {
        B::Exists { .. } | B::Companion { .. } => Fault::new("DataFileError", "file-exists", message),
        B::NoFolder { .. } => Fault::new("DataFileError", "file-not-found", message),
        B::Damaged { .. } => Fault::new("DamagedError", "damaged-archive", message),
        _ => Fault::new("DataFileError", "file-io", message),
    }
    .raise()
}

/// The exception for an Arrow error outside a write.
pub fn arrow_error(error: ArrowError) -> PyErr {
    match error {
        ArrowError::ExternalError(_) => source_error(error),
        other => invalid("invalid-arrow", other.to_string()),
    }
}
