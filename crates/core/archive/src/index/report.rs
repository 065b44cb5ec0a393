//! What users ask of indexes, and what they are told.

use chronotile_types::{TimeRange, Window};

/// What to build.
#[derive(Clone, Debug)]
pub struct IndexBuildOptions {
    /// The index; all of the dataset where `None`.
    pub name: Option<String>,
    /// The period whose windows are built; all where open.
    pub time: TimeRange,
    /// Seconds after which others may take over a window that a builder has not finished or renewed, 1 to 3,600.
    pub lease_s: u64,
    /// Whether to wait for windows that others are building, and to build those that they give up.
    pub wait: bool,
    /// Build all windows anew, whether or not they have changed.
    pub rebuild: bool,
}

impl Default for IndexBuildOptions {
    fn default() -> Self {
        Self { name: None, time: TimeRange { start: None, end: None }, lease_s: 60, wait: true, rebuild: false }
    }
}

/// What a build did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexBuildReport {
    /// Windows looked at, once for each index.
    pub windows: u64,
    /// Windows that needed work and got it here.
    pub windows_built: u64,
    /// Windows that needed work which another builder did, or is doing.
    pub windows_elsewhere: u64,
    /// Tiles read.
    pub tiles_read: u64,
    /// Tiles in built windows whose part of the index stayed as it was.
    pub tiles_kept: u64,
    /// Tiles left out: damaged, of too many values, or with rows that did not count: they are read directly.
    pub tiles_left_out: u64,
    /// Rows read.
    pub rows: u64,
    /// Bytes stored.
    pub bytes: u64,
}

/// What there is of an index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexStatus {
    /// Its name.
    pub name: String,
    /// Its columns.
    pub columns: Vec<String>,
    /// Windows built.
    pub windows: u64,
    /// Half-open range of ticks from the first of them to the last.
    pub ticks: Option<(i64, i64)>,
    /// Tiles indexed.
    pub tiles: u64,
    /// Tiles left out: damaged, of too many values, or with rows that did not count.
    pub tiles_left_out: u64,
    /// Rows counted.
    pub rows: u64,
    /// Distinct values, each window's for itself.
    pub values: u64,
    /// Bytes stored.
    pub bytes: u64,
    /// When a window was last built, microseconds since the Unix epoch.
    pub built_us: Option<i64>,
}

/// How a read or a count uses an index, and filters of texts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexUse {
    /// The index used.
    pub index: Option<String>,
    /// Why none is used, or why not for all that it could do.
    pub reason: Option<String>,
    /// Whether the index alone gives the answer for tiles that it knows: counts.
    pub counts: bool,
    /// Tiles that lie in what was asked for.
    pub tiles: u64,
    /// Tiles answered by the index: counted, or known to hold no row that is asked for.
    pub tiles_indexed: u64,
    /// Tiles that the index does not know.
    pub tiles_unindexed: u64,
    /// Tiles whose chunks are not those that were indexed.
    pub tiles_changed: u64,
    /// Tiles that lie partly outside the time range.
    pub tiles_partial: u64,
    /// Tiles that may hold versions of records that lie in other tiles too.
    pub tiles_shared: u64,
    /// Tiles read: those above, and for rows those that the index names.
    pub tiles_read: u64,
    /// Chunks in all of the tiles; 0 where neither an index nor filters were looked at.
    pub chunks: u64,
    /// Chunks read.
    pub chunks_read: u64,
    /// Chunks that would be read, but for filters that show that they hold no text asked for.
    pub chunks_filtered: u64,
    /// Windows answered through the index, whole tiles of which may still have been read for their rows.
    pub windows_indexed: Vec<Window>,
    /// Windows of which some or all tiles are read because the index does not know their present state.
    pub windows_direct: Vec<Window>,
}
