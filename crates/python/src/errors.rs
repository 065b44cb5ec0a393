//! Maps Rust errors to the exception classes of `chronotile.errors`.

use std::collections::BTreeMap;

use arrow_schema::ArrowError;
use chronotile_archive::memory::MemoryError;
use chronotile_archive::{ArchiveError, BackupError};
use chronotile_cql::{Applied, CqlError};
use chronotile_historian::HistorianError;
use chronotile_io::IoError;
use chronotile_tables::TablesError;
use chronotile_types::ErrorKind as K;
use chronotile_types::ErrorKind;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// An exception before it is raised: its kind, which decides its class in `chronotile.errors`, its message and
/// attributes.
pub struct Fault {
    kind: ErrorKind,
    message: String,
    details: Vec<(&'static str, Detail)>,
}

enum Detail {
    Text(String),
    Number(i64),
}

impl Fault {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), details: vec![] }
    }

    fn text(mut self, name: &'static str, value: impl ToString) -> Self {
        self.details.push((name, Detail::Text(value.to_string())));
        self
    }

    fn number(mut self, name: &'static str, value: impl Into<i64>) -> Self {
        self.details.push((name, Detail::Number(value.into())));
        self
    }

    /// The exception; if its class cannot be imported, the import error.
    pub fn raise(self) -> PyErr {
        Python::attach(|py| match self.instance(py) {
            Ok(exception) => PyErr::from_value(exception),
            Err(error) => error,
        })
    }

    fn instance(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        let details = PyDict::new(py);
        details.set_item("kind", self.kind.name())?;
        for (name, value) in self.details {
            match value {
                Detail::Text(text) => details.set_item(name, text)?,
                Detail::Number(number) => details.set_item(name, number)?,
            }
        }
        py.import("chronotile.errors")?.getattr(self.kind.class().name())?.call((self.message,), Some(&details))
    }
}

/// The exception class of each kind of error.
#[pyfunction]
pub fn error_kinds() -> BTreeMap<&'static str, &'static str> {
    ErrorKind::all().iter().map(|kind| (kind.name(), kind.class().name())).collect()
}

/// The exception for exceeding a memory limit that the program has set.
pub fn memory_error(error: MemoryError) -> PyErr {
    Fault::new(error.kind(), error.to_string()).raise()
}

/// An exception for an invalid argument.
pub fn invalid(kind: ErrorKind, message: impl Into<String>) -> PyErr {
    Fault::new(kind, message).raise()
}

/// The exception for an error of the archive, with its details.
pub fn archive_error(error: ArchiveError) -> PyErr {
    use ArchiveError as A;
    let error = match error {
        A::Source(error) => return source_error(error),
        other => other,
    };
    let fault = Fault::new(error.kind(), error.to_string());
    match &error {
        A::Request { dataset, .. }
        | A::TooManyGroups { dataset, .. }
        | A::Immutable { dataset, .. }
        | A::Encode { dataset, .. }
        | A::NotACopy { dataset, .. }
        | A::SliceRetired { dataset, .. }
        | A::RetiredMeanwhile { dataset, .. }
        | A::SliceInUse { dataset, .. }
        | A::RetireRace { dataset, .. }
        | A::CopyRace { dataset }
        | A::Compute { dataset, .. } => fault.text("dataset", dataset),
        A::Input { dataset, column, .. } => fault.text("dataset", dataset).text("column", column),
        A::Row { dataset, column, row, .. } => {
            fault.text("dataset", dataset).text("column", column).number("row", i64::try_from(*row).unwrap_or(i64::MAX))
        }
        A::DatasetNotFound { name, .. } => fault.text("dataset", name),
        A::DatasetExists { name, .. } => fault.text("dataset", name),
        A::BatchNotFound { dataset, key, .. } => fault.text("dataset", dataset).text("batch", key),
        A::BatchDiffers { dataset, key, .. } | A::BatchRace { dataset, key } => {
            fault.text("dataset", dataset).text("batch", key)
        }
        A::Damaged { dataset, tile, chunk, .. } => fault
            .text("dataset", dataset)
            .number("cell", tile.cell.0)
            .number("window", tile.window.0)
            .text("chunk", chunk),
        _ => fault,
    }
    .raise()
}

/// The exception for an error of a cluster. `wrote` is whether the request could have changed anything: if so, an
/// unknown outcome becomes `OutcomeUnknownError`; a read can simply be repeated.
pub fn cql_error(error: CqlError, wrote: bool) -> PyErr {
    use CqlError as C;
    let message = error.to_string();
    let unknown = wrote && error.applied() == Applied::Maybe;
    let fault = |kind| Fault::new(kind, message.clone());
    match &error {
        C::Url { .. } => fault(K::InvalidUrl),
        C::TlsFiles { .. } => fault(K::InvalidSetting),
        C::NoTable { .. } => fault(K::TableNotFound),
        C::Invalid { .. } => fault(K::InvalidCql),
        C::Login { .. } => fault(K::Login),
        C::Certificate { .. } => fault(K::Certificate),
        C::Denied { .. } => fault(K::Permission),
        C::Connect { .. } => fault(K::NoNode),
        C::Unavailable { consistency, required, alive } => fault(K::TooFewReplicas)
            .text("consistency", consistency)
            .number("required", *required)
            .number("alive", *alive),
        // The errors above certainly changed nothing. One below becomes OutcomeUnknown if the request may have changed
        // something.
        _ if unknown => fault(K::OutcomeUnknown),
        C::Broken { .. } => fault(K::NoConnection),
        C::Overloaded { .. } => fault(K::Overloaded),
        C::TimedOut { .. } | C::GaveUp { .. } => fault(K::TimedOut),
        C::ReplicaFailed { .. } => fault(K::ReplicaFailed),
        C::Protocol { .. } => fault(K::Protocol),
        _ => fault(K::Other),
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
    let fault = |kind| Fault::new(kind, message.clone());
    match &error {
        T::Request { .. } => fault(K::InvalidRequest),
        T::Parameter { .. } => fault(K::InvalidParameter),
        T::Checkpoint { .. } => fault(K::InvalidCheckpoint),
        T::Range { column, .. } => fault(K::ValueRange).text("column", column),
        T::UnknownType { column, .. } => fault(K::UnknownType).text("column", column),
        T::Malformed { column, .. } => fault(K::MalformedAnswer).text("column", column),
        T::Altered { .. } => fault(K::TableAltered),
        T::Interrupted { .. } => fault(K::Interrupted),
        _ => fault(K::Other),
    }
    .raise()
}

/// The exception for an error in the input of a write. If the input raised an exception of its own, such as inside a
/// caller's generator, it is passed on unchanged.
fn source_error(error: ArrowError) -> PyErr {
    let external = match error {
        ArrowError::ExternalError(external) => external,
        other => return invalid(K::InvalidSource, ArchiveError::Source(other).to_string()),
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
            invalid(K::InvalidSource, ArchiveError::Source(ArrowError::ExternalError(external)).to_string())
        }
    }
}

/// The exception for an error of the historian, with its details.
pub fn historian_error(error: HistorianError) -> PyErr {
    use HistorianError as H;
    let error = match error {
        H::Archive(error) => return archive_error(error),
        other => other,
    };
    let fault = Fault::new(error.kind(), error.to_string());
    match &error {
        H::UnknownTag { tag, .. } => fault.text("tag", tag.plain()),
        H::Definition { tag, .. } | H::TooManyValues { tag, .. } => fault.text("tag", tag),
        H::Point { tag, row, .. } => fault.text("tag", tag).number("row", i64::try_from(*row).unwrap_or(i64::MAX)),
        _ => fault,
    }
    .raise()
}

/// The exception for an error of reading or writing files.
pub fn io_error(error: IoError) -> PyErr {
    use IoError as I;
    let message = error.to_string();
    let file = |kind| Fault::new(kind, message.clone());
    match &error {
        I::NotFound { .. } | I::NoFolder { .. } => file(K::FileNotFound),
        I::Denied { .. } => file(K::FileAccess),
        I::Exists { .. } => file(K::FileExists),
        I::IsFolder { .. } | I::UnknownFormat { .. } | I::WrongFormat { .. } => file(K::FileFormat),
        I::BrokenPipe => file(K::BrokenPipe),
        I::Read { .. } | I::Write { .. } => file(K::FileIo),
        I::Damaged { .. } => file(K::FileDamaged),
        I::SpoolTooLarge { .. } => file(K::FileTooLarge),
        I::BadSetting { .. } | I::UnknownType { .. } => Fault::new(K::InvalidSetting, message),
        _ => file(K::FileContent),
    }
    .raise()
}

/// The exception for an error of copying an archive file.
pub fn backup_error(error: BackupError) -> PyErr {
    use BackupError as B;
    let error = match error {
        B::Store(error) => return Fault::new(error.kind(), error.to_string()).raise(),
        other => other,
    };
    let message = error.to_string();
    match &error {
        B::Exists { .. } | B::Companion { .. } => Fault::new(K::FileExists, message),
        B::NoFolder { .. } => Fault::new(K::FileNotFound, message),
        B::Damaged { .. } => Fault::new(K::DamagedArchive, message),
        _ => Fault::new(K::FileIo, message),
    }
    .raise()
}

/// The exception for an Arrow error outside a write.
pub fn arrow_error(error: ArrowError) -> PyErr {
    match error {
        ArrowError::ExternalError(_) => source_error(error),
        other => invalid(K::InvalidArrow, other.to_string()),
    }
}
