//! Errors of archives.

use std::sync::Arc;

use arrow_schema::ArrowError;
use chronotile_chunk::EncodeError;
use chronotile_sky::SkyError;
use chronotile_store::{Outcome, StoreError};
use chronotile_types::{Damage, DatasetName, ErrorKind, SchemaError, SliceId, SpecError, Tile, TimeError};
use tokio::task::JoinError;

use crate::memory::MemoryError;
use crate::url::URL_FORMS;

/// Result of an archive operation.
pub type Result<T> = std::result::Result<T, ArchiveError>;

/// Why an operation of an archive failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// The engine.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The definition of a dataset.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// A time or a time range.
    #[error(transparent)]
    Time(#[from] TimeError),
    /// A region, a pixelization or a position.
    #[error(transparent)]
    Sky(#[from] SkyError),
    /// A URL that does not name an archive.
    #[error("{url:?} is not an archive URL: {reason}; write {URL_FORMS}")]
    Url {
        /// The URL.
        url: String,
        /// What is wrong.
        reason: String,
    },
    /// No dataset has this name.
    #[error("no dataset {name:?} in {home}{hint}")]
    DatasetNotFound {
        /// The name asked for.
        name: String,
        /// Where it was looked up: the archive, or a group.
        home: String,
        /// The nearest names and the existing ones; begins with a semicolon.
        hint: String,
    },
    /// No group has this name.
    #[error("no group {name:?} in the archive{hint}")]
    GroupNotFound {
        /// The name asked for.
        name: String,
        /// The nearest names and the existing ones; begins with a semicolon.
        hint: String,
    },
    /// A dataset of this name exists with another definition.
    #[error("dataset {name} exists already{difference}: open it, or take another name")]
    DatasetExists {
        /// Its name.
        name: DatasetName,
        /// The first part that differs, or empty.
        difference: String,
    },
    /// A part of the definition that is fixed at creation.
    #[error("{part} of dataset {dataset} cannot be changed: {reason}")]
    Immutable {
        /// The dataset.
        dataset: DatasetName,
        /// The part.
        part: String,
        /// Why.
        reason: String,
    },
    /// Rows whose columns do not fit the dataset.
    #[error("rows do not fit dataset {dataset}: column {column:?} {reason}")]
    Input {
        /// The dataset.
        dataset: DatasetName,
        /// The column.
        column: String,
        /// What is wrong and what to do.
        reason: String,
    },
    /// A row that cannot be stored.
    #[error(
        "row {row} does not fit dataset {dataset}: column {column:?} {reason}; nothing of this batch was acknowledged"
    )]
    Row {
        /// The dataset.
        dataset: DatasetName,
        /// Row number in the input, from 0.
        row: u64,
        /// The column.
        column: String,
        /// What is wrong and what to do.
        reason: String,
    },
    /// The producer of the rows failed.
    #[error("the input failed: {0}; nothing of this batch was acknowledged")]
    Source(ArrowError),
    /// A batch of this key is stored with other content.
    #[error(
        "batch {key:?} of dataset {dataset} is stored with other content ({stored_rows} rows there, {given_rows} given): \
         write it with replace to put the new content in its place, or name the batch differently"
    )]
    BatchDiffers {
        /// The dataset.
        dataset: DatasetName,
        /// The batch key.
        key: String,
        /// Rows stored.
        stored_rows: u64,
        /// Rows given.
        given_rows: u64,
    },
    /// No batch has this key.
    #[error("no batch {key:?} in dataset {dataset}{hint}")]
    BatchNotFound {
        /// The dataset.
        dataset: DatasetName,
        /// The batch key.
        key: String,
        /// The nearest keys and the existing ones; begins with a semicolon.
        hint: String,
    },
    /// Another writer finished the same batch, with other content, at the same time.
    #[error(
        "another process wrote batch {key:?} of dataset {dataset} at the same time: check its content, then repeat"
    )]
    BatchRace {
        /// The dataset.
        dataset: DatasetName,
        /// The batch key.
        key: String,
    },
    /// A slice was retired while rows were written to it.
    #[error(
        "slice {} of dataset {dataset} was retired while a batch with rows in it was written or removed; the call was \
        not acknowledged: repeat it. If it keeps failing, a retire was interrupted: run retire again", slice.0
    )]
    SliceRetired {
        /// The dataset.
        dataset: DatasetName,
        /// The slice.
        slice: SliceId,
    },
    /// A slice was retired while a batch with rows in it was replaced or removed, after the change had become visible
    /// to readers.
    #[error(
        "slice {} of dataset {dataset} was retired while a batch with rows in it was replaced or removed: readers see the \
         change, but a copy of the slice may hold the rows from before it; repeat the call", slice.0
    )]
    RetiredMeanwhile {
        /// The dataset.
        dataset: DatasetName,
        /// The slice.
        slice: SliceId,
    },
    /// A slice that others keep writing to could not be retired.
    #[error(
        "slice {} of dataset {dataset} was not dropped, because other processes keep writing to it: retire it again \
        when they have ended", slice.0
    )]
    SliceInUse {
        /// The dataset.
        dataset: DatasetName,
        /// The slice.
        slice: SliceId,
    },
    /// Another process is retiring the same slice.
    #[error("another process is retiring slice {} of dataset {dataset}: repeat when it has ended", slice.0)]
    RetireRace {
        /// The dataset.
        dataset: DatasetName,
        /// The slice.
        slice: SliceId,
    },
    /// A request that is not valid for the dataset.
    #[error("dataset {dataset}: {reason}")]
    Request {
        /// The dataset.
        dataset: DatasetName,
        /// What is wrong and what to do.
        reason: String,
    },
    /// A batch that was replaced more than once while it was read.
    #[error("a batch of dataset {dataset} was replaced several times while it was read: read again")]
    ReadRace {
        /// The dataset.
        dataset: DatasetName,
    },
    /// A count with more groups than the caller allows.
    #[error(
        "the rows of dataset {dataset} have more than {groups_max} groups: count by fewer columns, or a shorter period"
    )]
    TooManyGroups {
        /// The dataset.
        dataset: DatasetName,
        /// Most groups allowed.
        groups_max: usize,
    },
    /// A read would exceed the memory budget: see [`Archive::limit_memory`](crate::Archive::limit_memory).
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A copy from an archive to itself.
    #[error("{url} is both the source and the target of the copy: give two archives")]
    SameArchive {
        /// Its URL.
        url: String,
    },
    /// A dataset on the target that the copy must not change.
    #[error(
        "dataset {dataset} of the target is not a copy of the source's: {reason}; copy to another archive, or verify only"
    )]
    NotACopy {
        /// The dataset.
        dataset: DatasetName,
        /// What was found.
        reason: String,
    },
    /// Another process changed the target's dataset during the copy.
    #[error("another copy or a writer changed dataset {dataset} of the target meanwhile: stop it, then repeat")]
    CopyRace {
        /// The dataset.
        dataset: DatasetName,
    },
    /// A chunk cannot be decoded.
    #[error(
        "chunk {chunk} of dataset {dataset}, {tile} is damaged: {damage}; run verify to see all damage, then write its \
         batch again with replace, or restore a copy"
    )]
    Damaged {
        /// The dataset.
        dataset: DatasetName,
        /// The tile.
        tile: Tile,
        /// The chunk id.
        chunk: chronotile_types::ChunkId,
        /// What is wrong with it.
        #[source]
        damage: Damage,
    },
    /// A catalog record cannot be read.
    #[error("catalog record {key:?} is damaged: {reason}")]
    Catalog {
        /// Its key.
        key: String,
        /// What is wrong.
        reason: String,
        /// The error of the parser, if it found the problem.
        source: Option<serde_json::Error>,
    },
    /// Rows that the chunk format cannot represent.
    #[error("rows of dataset {dataset} cannot be encoded: {source}")]
    Encode {
        /// The dataset.
        dataset: DatasetName,
        /// Why.
        source: EncodeError,
    },
    /// An error of work that several reads share.
    #[error(transparent)]
    Shared(Arc<Self>),
    /// Work on a background thread was cancelled because the process is ending.
    #[error("the operation was interrupted because the process is exiting")]
    Cancelled,
    /// Work on a background thread panicked.
    #[error("an internal error, please report it: {message}")]
    Panicked {
        /// What the panic says.
        message: String,
    },
    /// An Arrow kernel failed; `work` names what it was used for.
    #[error("{work} of dataset {dataset} failed: {source}")]
    Compute {
        /// The dataset.
        dataset: DatasetName,
        /// What was being done.
        work: &'static str,
        /// Arrow's error.
        source: ArrowError,
    },
}

impl From<SchemaError> for ArchiveError {
    fn from(error: SchemaError) -> Self {
        Self::Spec(SpecError::Schema(error))
    }
}

impl ArchiveError {
    /// Converts the row number within a part of the input that begins at row `first` to a row number of the whole
    /// input.
    #[must_use]
    pub(crate) fn behind_rows(mut self, first: u64) -> Self {
        if let Self::Row { row, .. } = &mut self {
            *row += first;
        }
        self
    }

    /// The error for a dataset that was dropped after it was opened.
    #[must_use]
    pub(crate) fn dropped(name: String) -> Self {
        Self::DatasetNotFound { name, home: "the archive".into(), hint: "; it was dropped".into() }
    }

    /// The error after the batch record was put: the operation has already taken effect.
    #[must_use]
    pub(crate) fn behind_record(self) -> Self {
        match self {
            Self::SliceRetired { dataset, slice } => Self::RetiredMeanwhile { dataset, slice },
            other => other,
        }
    }

    /// The stable name of the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Store(error) => error.kind(),
            Self::Spec(SpecError::IndexExists { .. }) => ErrorKind::IndexExists,
            Self::Spec(_) => ErrorKind::InvalidDefinition,
            Self::Time(_) => ErrorKind::InvalidTime,
            Self::Sky(_) => ErrorKind::InvalidSky,
            Self::Url { .. } => ErrorKind::InvalidUrl,
            Self::Request { .. } => ErrorKind::InvalidRequest,
            Self::Immutable { .. } => ErrorKind::Immutable,
            Self::Input { .. } | Self::Row { .. } | Self::Encode { .. } => ErrorKind::InvalidRows,
            Self::Source(_) => ErrorKind::InvalidSource,
            Self::DatasetNotFound { .. } | Self::GroupNotFound { .. } => ErrorKind::DatasetNotFound,
            Self::DatasetExists { .. } => ErrorKind::DatasetExists,
            Self::NotACopy { .. } => ErrorKind::NotACopy,
            Self::SameArchive { .. } => ErrorKind::SameArchive,
            Self::BatchNotFound { .. } => ErrorKind::BatchNotFound,
            Self::BatchDiffers { .. } => ErrorKind::BatchDiffers,
            Self::BatchRace { .. } => ErrorKind::BatchRace,
            Self::SliceRetired { .. } => ErrorKind::SliceRetired,
            Self::RetiredMeanwhile { .. } => ErrorKind::OutcomeUnknown,
            Self::SliceInUse { .. } | Self::RetireRace { .. } => ErrorKind::SliceInUse,
            Self::CopyRace { .. } | Self::ReadRace { .. } => ErrorKind::LostRace,
            Self::Damaged { .. } => ErrorKind::DamagedChunk,
            Self::Catalog { .. } => ErrorKind::DamagedCatalog,
            Self::Shared(error) => error.kind(),
            Self::Cancelled => ErrorKind::Cancelled,
            Self::Panicked { .. } => ErrorKind::Internal,
            Self::Compute { .. } => ErrorKind::Compute,
            Self::TooManyGroups { .. } => ErrorKind::TooLarge,
            Self::Memory(error) => error.kind(),
        }
    }

    /// Whether the write may have taken effect.
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::Store(error) => error.outcome(),
            Self::Shared(error) => error.outcome(),
            Self::BatchRace { .. }
            | Self::CopyRace { .. }
            | Self::ReadRace { .. }
            | Self::SliceRetired { .. }
            | Self::SliceInUse { .. }
            | Self::RetireRace { .. } => Outcome::LostRace,
            Self::Cancelled | Self::Panicked { .. } | Self::RetiredMeanwhile { .. } => Outcome::Unknown,
            _ => Outcome::Refused,
        }
    }
}

impl From<JoinError> for ArchiveError {
    fn from(error: JoinError) -> Self {
        let Ok(panic) = error.try_into_panic() else { return Self::Cancelled };
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let message = text.or_else(|| panic.downcast_ref::<String>().cloned());
        Self::Panicked { message: message.unwrap_or_else(|| "a background thread panicked".to_owned()) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may unwrap
mod tests {
    use super::*;

    #[test]
    fn kind_and_outcome_say_what_a_caller_does_next() {
        let dataset = || DatasetName::new("records").unwrap();
        let (slice, key) = (SliceId(7), || "night 1".to_owned());
        let retired = || ArchiveError::SliceRetired { dataset: dataset(), slice };
        let unknown = StoreError::Unknown { engine: "test", reason: "no answer".into() };
        let differs = ArchiveError::BatchDiffers { dataset: dataset(), key: key(), stored_rows: 1, given_rows: 2 };
        for (error, kind, outcome) in [
            (ArchiveError::Store(unknown), ErrorKind::OutcomeUnknown, Outcome::Unknown),
            (ArchiveError::BatchRace { dataset: dataset(), key: key() }, ErrorKind::BatchRace, Outcome::LostRace),
            (ArchiveError::CopyRace { dataset: dataset() }, ErrorKind::LostRace, Outcome::LostRace),
            (ArchiveError::ReadRace { dataset: dataset() }, ErrorKind::LostRace, Outcome::LostRace),
            (ArchiveError::SliceInUse { dataset: dataset(), slice }, ErrorKind::SliceInUse, Outcome::LostRace),
            (ArchiveError::RetireRace { dataset: dataset(), slice }, ErrorKind::SliceInUse, Outcome::LostRace),
            (retired(), ErrorKind::SliceRetired, Outcome::LostRace),
            (ArchiveError::Shared(Arc::new(retired())), ErrorKind::SliceRetired, Outcome::LostRace),
            // Readers see the change already.
            (retired().behind_record(), ErrorKind::OutcomeUnknown, Outcome::Unknown),
            (ArchiveError::Cancelled, ErrorKind::Cancelled, Outcome::Unknown),
            (differs, ErrorKind::BatchDiffers, Outcome::Refused),
        ] {
            assert_eq!((error.kind(), error.outcome()), (kind, outcome), "{error}");
        }
    }

    #[tokio::test]
    async fn a_panic_of_a_background_thread_is_reported_as_one() {
        for text in ["a place", "an index"] {
            let panicked =
                tokio::task::spawn_blocking(move || if text.len() > 7 { panic!("{text}") } else { panic!("a place") });
            let error = ArchiveError::from(panicked.await.unwrap_err());
            assert_eq!((error.kind(), error.outcome()), (ErrorKind::Internal, Outcome::Unknown));
            assert_eq!(error.to_string(), format!("an internal error, please report it: {text}"));
        }
        let task = tokio::spawn(std::future::pending::<()>());
        task.abort();
        assert!(matches!(ArchiveError::from(task.await.unwrap_err()), ArchiveError::Cancelled));
    }

    #[test]
    fn rows_are_counted_from_the_beginning_of_the_input() {
        let (column, reason) = ("t".to_owned(), "is null".to_owned());
        let error = ArchiveError::Row { dataset: DatasetName::new("records").unwrap(), row: 2, column, reason };
        assert!(error.behind_rows(40).to_string().starts_with("row 42 "));
    }
}
