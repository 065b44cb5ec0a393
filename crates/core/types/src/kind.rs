//! The kinds of errors, with stable names that every front end uses.
//!
//! Python's exception classes and HTTP statuses are derived from this table.

use strum::{EnumString, IntoStaticStr, VariantArray};

/// Errors grouped by what the caller should do next. Each group is an exception class of the Python package.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, IntoStaticStr, VariantArray)]
pub enum ErrorClass {
    /// The access rights must be changed.
    #[strum(serialize = "AccessDeniedError")]
    AccessDenied,
    /// The archive's address must be corrected.
    #[strum(serialize = "ArchiveNotFoundError")]
    ArchiveNotFound,
    /// The batch is stored with different content.
    #[strum(serialize = "BatchConflictError")]
    BatchConflict,
    /// The batch's key must be corrected.
    #[strum(serialize = "BatchNotFoundError")]
    BatchNotFound,
    /// Nothing was done: repeat the operation.
    #[strum(serialize = "BusyError")]
    Busy,
    /// The object is closed: open it again.
    #[strum(serialize = "ClosedError")]
    Closed,
    /// Stored bytes of a chunk cannot be read.
    #[strum(serialize = "DamagedChunkError")]
    DamagedChunk,
    /// Stored bytes cannot be read.
    #[strum(serialize = "DamagedError")]
    Damaged,
    /// A file, or the options for reading it, must be corrected.
    #[strum(serialize = "DataFileError")]
    DataFile,
    /// The dataset exists.
    #[strum(serialize = "DatasetExistsError")]
    DatasetExists,
    /// The dataset's name must be corrected.
    #[strum(serialize = "DatasetNotFoundError")]
    DatasetNotFound,
    /// The argument or the rows must be changed.
    #[strum(serialize = "InvalidInputError")]
    InvalidInput,
    /// A package must be installed.
    #[strum(serialize = "MissingPackageError")]
    MissingPackage,
    /// The file is not an archive that this release can open.
    #[strum(serialize = "NotAnArchiveError")]
    NotAnArchive,
    /// Other errors, which a program cannot handle.
    #[strum(serialize = "ChronotileError")]
    Other,
    /// The operation may have been done: repeat it.
    #[strum(serialize = "OutcomeUnknownError")]
    OutcomeUnknown,
    /// The archive must be opened for writing.
    #[strum(serialize = "ReadOnlyError")]
    ReadOnly,
    /// Space must be freed.
    #[strum(serialize = "StorageFullError")]
    StorageFull,
    /// The tag's name must be corrected.
    #[strum(serialize = "TagNotFoundError")]
    TagNotFound,
    /// Nodes or the service must become available again.
    #[strum(serialize = "UnavailableError")]
    Unavailable,
}

macro_rules! error_kinds {
    ($($class:ident { $($kind:ident $status:literal,)+ })+) => {
        /// The kind of an error. Its name, such as `invalid-rows`, does not change between releases.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EnumString, IntoStaticStr, VariantArray)]
        #[strum(serialize_all = "kebab-case")]
        #[allow(missing_docs)]
        pub enum ErrorKind {
            $($($kind,)+)+
        }

        impl ErrorKind {
            /// The class of the kind.
            pub fn class(self) -> ErrorClass {
                match self {
                    $($(Self::$kind)|+ => ErrorClass::$class,)+
                }
            }

            /// The HTTP status of a response with this error.
            pub fn http_status(self) -> u16 {
                match self {
                    $($(Self::$kind => $status,)+)+
                }
            }
        }
    };
}

error_kinds! {
    AccessDenied {
        AccessDenied 502, Certificate 502, Login 502, Permission 502,
        ForeignHost 403, ForeignOrigin 403, RoleMissing 403,
        TokenExpired 401, TokenMissing 401, TokenUnknown 401,
    }
    ArchiveNotFound { ArchiveMoved 500, ArchiveNotFound 500, }
    BatchConflict { BatchDiffers 409, BatchRace 409, }
    BatchNotFound { BatchNotFound 404, }
    Busy {
        Busy 503, FolderInUse 503, LostRace 503, MemoryInUse 503, Overloaded 503, SliceInUse 503, SliceRetired 503, TableAltered 503,
        QuotaExceeded 429, TooManyRequests 429, SlowClient 408, TimedOut 504,
    }
    Closed { Closed 503, Forked 500, ResultConsumed 500, }
    DamagedChunk { DamagedChunk 500, }
    Damaged { DamagedArchive 500, DamagedCatalog 500, DamagedFile 500, }
    DataFile {
        BrokenPipe 500, FileAccess 400, FileContent 400, FileDamaged 400, FileExists 409, FileFormat 400, FileIo 500,
        FileNotFound 404, FileTooLarge 413,
    }
    DatasetExists { DatasetExists 409, NotACopy 409, }
    DatasetNotFound { DatasetNotFound 404, }
    InvalidInput {
        ArchivedRecords 400, ChangedRecords 400, Immutable 400, IndexExists 409, InvalidArrow 400, InvalidCheckpoint 400, InvalidCql 400,
        InvalidDefinition 400, InvalidParameter 400, InvalidRequest 400, InvalidRows 400, InvalidSetting 400,
        InvalidSky 400, InvalidSource 400, InvalidTag 400, InvalidTime 400, InvalidUrl 400, KeyExists 400,
        NoTokens 400, SameArchive 400, TableNotFound 400, UnknownId 400, UnknownType 400, ValueRange 400,
        GroupNotFound 404, NoSuchPath 404, MethodNotAllowed 405, NotAcceptable 406, TooLarge 413,
        UnsupportedEncoding 415, UnsupportedType 415,
    }
    MissingPackage { MissingPackage 501, }
    NotAnArchive { NewerFormat 500, NotAnArchive 500, }
    Other {
        Compute 500, EngineRefused 500, Internal 500, Interrupted 500, MalformedAnswer 500, NotInstalled 501,
        NotServed 501, Other 500, Protocol 500, ReplicaFailed 500, WorkerLost 500,
    }
    OutcomeUnknown { Cancelled 503, OutcomeUnknown 503, }
    ReadOnly { ReadOnly 507, }
    StorageFull { StorageFull 507, }
    TagNotFound { TagNotFound 404, }
    Unavailable {
        AddressInUse 500, BrokenOff 503, ClusterUnavailable 503, Database 503, NoConnection 503, NoNode 503,
        NoService 503, NotReady 503, TooFewReplicas 503,
    }
}

impl ErrorKind {
    /// The name: `invalid-rows`.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Every kind.
    pub fn all() -> &'static [Self] {
        Self::VARIANTS
    }

    /// The kind with this name.
    pub fn named(name: &str) -> Option<Self> {
        name.parse().ok()
    }
}

impl ErrorClass {
    /// The name of the exception: `InvalidInputError`.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_kinds_are_one_to_one() {
        for kind in ErrorKind::VARIANTS {
            assert_eq!(ErrorKind::named(kind.name()), Some(*kind));
        }
        assert_eq!(ErrorKind::InvalidCql.name(), "invalid-cql");
        assert_eq!(ErrorKind::named("no-such-kind"), None);
        assert_eq!(ErrorKind::all(), ErrorKind::VARIANTS);
        assert_eq!(ErrorClass::InvalidInput.name(), "InvalidInputError");
    }

    #[test]
    fn every_class_has_a_case_and_every_status_is_one_of_an_error() {
        for class in ErrorClass::VARIANTS {
            assert!(ErrorKind::VARIANTS.iter().any(|kind| kind.class() == *class), "{}", class.name());
        }
        assert!(ErrorKind::VARIANTS.iter().all(|kind| (400..600).contains(&kind.http_status())));
    }
}
