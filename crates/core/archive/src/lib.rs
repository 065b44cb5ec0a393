//! The archive: gives records their meaning, independently of the engine.
//!
//! An [`Archive`] holds [`Dataset`]s. A dataset writes batches, reads places and periods, and maintains its storage.
//! Everything is built on the [`chronotile_store::Store`] trait; only `open.rs` uses the engines.

#![warn(clippy::iter_over_hash_type)]

mod archive;
mod catalog;
mod copy;
mod dataset;
mod error;
mod frame;
mod group;
mod index;
mod keys;
mod maintenance;
pub mod memory;
mod open;
mod read;
mod report;
mod request;
#[cfg(test)]
mod testing;
mod time_axis;
mod url;
mod write;

/// The target of the archive's log messages. Python's logger is `chronotile.archive`.
const LOG: &str = "chronotile::archive";

pub use archive::Archive;
pub use copy::{CopyOptions, CopyProgress, CopyReporter};
pub use dataset::{AddedColumn, Dataset};
pub use error::{ArchiveError, Result};
pub use group::Group;
pub use index::{IndexBuildOptions, IndexBuildReport, IndexStatus, IndexUse};
pub use maintenance::consolidate::Progress;
pub use maintenance::group_batches::GroupBatch;
pub use open::{BackupError, FileDraft, OpenOptions, copy_file};
pub use read::literal::exact_values;
pub use read::spans::TileSpan;
pub use read::{ReadStream, Rows};
pub use report::{
    BatchInfo, ConsolidateReport, CopyReport, DamageReport, DatasetCopyReport, DatasetInfo, ForeignChunk, RecordDamage,
    RowsMissing, SliceInfo, Spread, TileDifference, TileFailure, VerifyReport, WriteReport,
};
pub use request::{
    CellSelection, Comparison, ConsolidateOptions, Predicate, ReadRequest, RetireLimit, Shard, WriteOptions,
};
