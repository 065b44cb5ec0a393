//! The archive: what records mean, once for every engine.
//!
//! An [`Archive`] holds [`Dataset`]s; a dataset writes batches, reads places and periods, and keeps itself in order. All of
//! it stands on the [`chronotile_store::Store`] trait; only `open.rs` knows engines by name.

mod archive;
mod assemble;
mod batches;
mod care;
mod catalog;
mod cells;
mod checksum;
mod clock;
mod consolidate;
mod content;
mod copy;
mod dataset;
mod drop;
mod error;
mod fence;
mod finished;
mod frame;
mod groups;
mod index;
mod input;
mod keys;
mod latest;
mod literal;
mod merge;
mod newest;
mod number;
mod open;
mod pack;
mod part;
mod pattern;
mod pieces;
mod predicate;
mod query;
mod read;
mod report;
mod request;
mod retire;
mod sort;
mod spans;
mod text;
mod time_axis;
mod verify;
mod write;

pub use archive::Archive;
pub use consolidate::Progress;
pub use copy::{CopyOptions, CopyProgress, CopyReporter};
pub use dataset::{AddedColumn, Dataset};
pub use error::{ArchiveError, Result};
pub use index::{IndexBuildOptions, IndexBuildReport, IndexStatus, IndexUse};
pub use literal::exact_values;
pub use open::{BackupError, FileDraft, OpenOptions, copy_file};
pub use read::ReadStream;
pub use report::{
    BatchInfo, ConsolidateReport, CopyReport, DamageReport, DatasetCopyReport, DatasetInfo, ForeignChunk, RecordDamage,
    RowsMissing, SliceInfo, Spread, TileDifference, TileFailure, VerifyReport, WriteReport,
};
pub use request::{Comparison, ConsolidateOptions, Place, Predicate, ReadRequest, RetireLimit, WriteOptions};
pub use spans::TileSpan;
