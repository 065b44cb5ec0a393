//! Options and reports of indexes.

use chronotile_types::{TimeRange, Window};

/// Options of a build.
#[derive(Clone, Debug)]
pub struct IndexBuildOptions {
    /// The index; `None` for all indexes of the dataset.
    pub name: Option<String>,
    /// The period whose windows are built; all windows if it is open.
    pub time: TimeRange,
    /// Seconds after which others may take over a window that a builder has not finished or renewed, 1 to 3,600.
    pub lease_s: u64,
    /// Whether to wait for windows that others are building, and to build those that they abandon.
    pub wait: bool,
    /// Whether to rebuild all windows, including unchanged ones.
    pub rebuild: bool,
}

impl Default for IndexBuildOptions {
    fn default() -> Self {
        Self { name: None, time: TimeRange { start: None, end: None }, lease_s: 60, wait: true, rebuild: false }
    }
}

/// The result of a build.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexBuildReport {
    /// Windows checked, once for each index.
    pub windows: u64,
    /// Changed windows that this builder built.
    pub windows_built: u64,
    /// Changed windows that another builder has built or is building.
    pub windows_elsewhere: u64,
    /// Tiles read.
    pub tiles_read: u64,
    /// Unchanged tiles in built windows, whose postings were reused.
    pub tiles_kept: u64,
    /// Tiles left out because they were damaged, had too many values or had rows that did not count. Queries read
    /// them directly.
    pub tiles_left_out: u64,
    /// Rows read.
    pub rows: u64,
    /// Bytes stored.
    pub bytes: u64,
}

/// The state of an index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexStatus {
    /// Its name.
    pub name: String,
    /// Its columns.
    pub columns: Vec<String>,
    /// Windows built.
    pub windows: u64,
    /// Half-open range of ticks from the first window to the last.
    pub ticks: Option<(i64, i64)>,
    /// Tiles indexed.
    pub tiles: u64,
    /// Tiles left out because they were damaged, had too many values or had rows that did not count.
    pub tiles_left_out: u64,
    /// Rows counted.
    pub rows: u64,
    /// Distinct values, counted separately for each window.
    pub values: u64,
    /// Bytes stored.
    pub bytes: u64,
    /// When a window was last built, microseconds since the Unix epoch.
    pub built_us: Option<i64>,
}

/// How a read or a count uses an index and text filters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IndexUse {
    /// The index used.
    pub index: Option<String>,
    /// Why no index is used, or why it is not used fully.
    pub reason: Option<String>,
    /// Whether the index can answer by itself for valid tiles: true for counts.
    pub counts: bool,
    /// Tiles within the cells and windows of the request.
    pub tiles: u64,
    /// Tiles answered by the index: counted, or known to contain no requested row.
    pub tiles_indexed: u64,
    /// Tiles that are not in the index.
    pub tiles_unindexed: u64,
    /// Tiles whose chunks have changed since they were indexed, or have rows that do not count.
    pub tiles_changed: u64,
    /// Tiles that are partly outside the time range.
    pub tiles_partial: u64,
    /// Tiles that may share records with other tiles.
    pub tiles_shared: u64,
    /// Tiles read: the four kinds above, and for reads of rows those in which the index finds matches.
    pub tiles_read: u64,
    /// Chunks in all of the tiles; 0 if neither an index nor text filters were used.
    pub chunks: u64,
    /// Chunks read.
    pub chunks_read: u64,
    /// Chunks that text filters exclude because they contain no matching text.
    pub chunks_filtered: u64,
    /// Windows in which the index is valid for all tiles; tiles with matching rows may still have been read.
    pub windows_indexed: Vec<Window>,
    /// Windows with some or all tiles read because the index is not valid for their current state.
    pub windows_direct: Vec<Window>,
}
