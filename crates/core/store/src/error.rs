//! Errors of engines, and what each says about the outcome of a write.

use std::path::PathBuf;

use chronotile_types::{DatasetName, ErrorKind, SliceId};

use crate::ChunkKey;

/// What an error says about the outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing was written. The kind of the error says whether repeating the write unchanged can help.
    Refused,
    /// Nothing was written because another writer was first; read the current state, then decide.
    LostRace,
    /// The write may have taken effect. Repeating it is safe and determines the outcome.
    Unknown,
}

/// Why an operation of an engine failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A chunk was written to a slice that does not exist (it may have been retired meanwhile).
    #[error("slice {} of dataset {dataset} does not exist: create it first", slice.0)]
    NoSlice {
        /// The dataset.
        dataset: DatasetName,
        /// The missing slice.
        slice: SliceId,
    },
    /// The condition of a catalog record did not hold.
    #[error("another process changed catalog record {key:?}")]
    RecordConflict {
        /// Its key.
        key: String,
    },
    /// A chunk to remove does not exist.
    #[error("another process removed chunk {} of dataset {dataset}, {}", key.id, key.tile)]
    ChunkConflict {
        /// The dataset.
        dataset: DatasetName,
        /// Where the chunk was.
        key: ChunkKey,
    },
    /// A slice to drop holds other chunks than expected.
    #[error("another process wrote to slice {} of dataset {dataset}", slice.0)]
    SliceConflict {
        /// The dataset.
        dataset: DatasetName,
        /// The slice.
        slice: SliceId,
    },
    /// The chunk or record exceeds the engine's limit.
    #[error("{what} of {bytes} bytes is more than the {bytes_max} that {engine} takes: write smaller records")]
    TooLarge {
        /// A chunk or a catalog record, with its name.
        what: String,
        /// Its size.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
        /// The engine.
        engine: &'static str,
    },
    /// The engine's own types cannot represent a value; nothing was written.
    #[error("rows of dataset {dataset} do not fit layout rows: {reason}")]
    Unfit {
        /// The dataset.
        dataset: DatasetName,
        /// The column, what is wrong, and what to do.
        reason: String,
    },
    /// The place exists but holds no archive.
    #[error("{} is not a Chronotile archive: {reason}", path.display())]
    NotAnArchive {
        /// The file.
        path: PathBuf,
        /// What was found.
        reason: String,
    },
    /// The archive was made by a later release.
    #[error("{} has archive format {found}; this release reads up to {known}: upgrade chronotile", path.display())]
    NewerFormat {
        /// The file.
        path: PathBuf,
        /// Format of the archive.
        found: u32,
        /// Newest format this release knows.
        known: u32,
    },
    /// There is no archive and creation was not requested, or its folder is missing.
    #[error("no archive at {}: {reason}", path.display())]
    NotFound {
        /// The file.
        path: PathBuf,
        /// What is missing.
        reason: String,
    },
    /// The archive cannot be written.
    #[error("{path} is read-only: {reason}")]
    ReadOnly {
        /// The archive.
        path: String,
        /// Why.
        reason: String,
    },
    /// No space is left; nothing was written.
    #[error("{path} is full: free some disk space and repeat the write; nothing of it was kept")]
    Full {
        /// The archive.
        path: String,
    },
    /// Other writers held the archive for longer than the timeout; nothing was written.
    #[error("{path} was held by other writers for {waited_s} s: repeat the write, or raise the timeout")]
    Busy {
        /// The archive.
        path: String,
        /// Seconds waited.
        waited_s: u64,
    },
    /// Too few nodes answer; nothing was written.
    #[error("{engine} is unavailable: {reason}; nothing was written: repeat when the nodes are back")]
    Unavailable {
        /// The engine.
        engine: &'static str,
        /// What it says: the consistency level, the replicas required and alive.
        reason: String,
    },
    /// The engine denies this client access or this operation.
    #[error("{engine}: {reason}")]
    Denied {
        /// The engine.
        engine: &'static str,
        /// What it says.
        reason: String,
    },
    /// The engine's file is no longer at its path; nothing was written.
    #[error(
        "{path} {reason} while it was open: writes to it would be lost, so nothing was stored. Put the file back, or \
        open the archive again"
    )]
    Moved {
        /// The archive.
        path: String,
        /// What became of it.
        reason: &'static str,
    },
    /// The engine's own file is damaged.
    #[error("{path} is damaged: {reason}; restore it from a copy")]
    Corrupt {
        /// The archive.
        path: String,
        /// What the engine says.
        reason: String,
    },
    /// The engine failed before it began the write.
    #[error("{engine} refused: {reason}")]
    Refused {
        /// The engine.
        engine: &'static str,
        /// What it says.
        reason: String,
    },
    /// The outcome of the write is unknown, and a catalog record that it should have changed has another value: another writer was
    /// first, or changed the record after this write.
    #[error("{engine} did not confirm: {reason}; the write may or may not have happened, repeat it")]
    Overtaken {
        /// The engine.
        engine: &'static str,
        /// What it says.
        reason: String,
    },
    /// The outcome of the write is unknown.
    #[error("{engine} did not confirm: {reason}; the write may or may not have happened, repeat it")]
    Unknown {
        /// The engine.
        engine: &'static str,
        /// What it says.
        reason: String,
    },
}

impl StoreError {
    /// The stable name of the case.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NoSlice { .. }
            | Self::RecordConflict { .. }
            | Self::ChunkConflict { .. }
            | Self::SliceConflict { .. } => ErrorKind::LostRace,
            Self::TooLarge { .. } => ErrorKind::TooLarge,
            Self::Unfit { .. } => ErrorKind::InvalidRows,
            Self::NotAnArchive { .. } => ErrorKind::NotAnArchive,
            Self::NewerFormat { .. } => ErrorKind::NewerFormat,
            Self::NotFound { .. } => ErrorKind::ArchiveNotFound,
            Self::ReadOnly { .. } => ErrorKind::ReadOnly,
            Self::Full { .. } => ErrorKind::StorageFull,
            Self::Busy { .. } => ErrorKind::Busy,
            Self::Unavailable { .. } => ErrorKind::ClusterUnavailable,
            Self::Denied { .. } => ErrorKind::AccessDenied,
            Self::Moved { .. } => ErrorKind::ArchiveMoved,
            Self::Corrupt { .. } => ErrorKind::DamagedArchive,
            Self::Refused { .. } => ErrorKind::EngineRefused,
            Self::Unknown { .. } | Self::Overtaken { .. } => ErrorKind::OutcomeUnknown,
        }
    }

    /// The outcome of the write that failed with this error.
    pub fn outcome(&self) -> Outcome {
        match self {
            Self::RecordConflict { .. }
            | Self::ChunkConflict { .. }
            | Self::SliceConflict { .. }
            | Self::NoSlice { .. } => Outcome::LostRace,
            Self::Unknown { .. } | Self::Overtaken { .. } => Outcome::Unknown,
            // Callers rely on `Refused` for the claim that nothing was written: an error that leaves the outcome open
            // belongs above.
            _ => Outcome::Refused,
        }
    }
}
