//! What callers ask for: reads, writes and maintenance.

use arrow_array::ArrayRef;
use chronotile_sky::Region;
use chronotile_types::{Instant, SliceId, TimeRange};
use xxhash_rust::xxh3::xxh3_64;

/// Which cells a read covers.
#[derive(Clone, Debug, Default)]
pub enum CellSelection {
    /// All of them.
    #[default]
    All,
    /// Whole cells by number.
    Cells(Vec<i64>),
    /// Records whose cell columns have these values: one array per column of the cell rule, of equal length.
    Keys(Vec<ArrayRef>),
    /// Records whose position is in the region, its border included.
    Region(Region),
}

/// Comparison of one column with constants. Null matches only `Exists` with value false; NaN matches only `NotEqual`;
/// -0.0 equals 0.0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Comparison {
    /// `=`
    Equal,
    /// `!=`
    NotEqual,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
    /// One of the values.
    In,
    /// From the first value to the second, both included.
    Between,
    /// Text that contains the value.
    Contains,
    /// Text in which the value, a regular expression, has a match.
    Matches,
    /// Text that begins with the value.
    Prefix,
    /// Not null if the value is true, null if it is false.
    Exists,
}

/// A simple predicate; a read returns rows for which all of its predicates hold.
#[derive(Clone, Debug)]
pub struct Predicate {
    /// The column.
    pub column: String,
    /// The comparison.
    pub comparison: Comparison,
    /// The constants: one value, two for `Between`, any number for `In`; cast to the column's type. A boolean for
    /// `Exists`, text for the comparisons of text.
    pub values: ArrayRef,
}

/// What to read.
#[derive(Clone, Debug, Default)]
pub struct ReadRequest {
    /// The cells.
    pub cells: CellSelection,
    /// Half-open time range.
    pub time: TimeRange,
    /// Records with these ids: one array per id column, or for only the first few id columns, at least one; of equal
    /// length.
    pub ids: Option<Vec<ArrayRef>>,
    /// Columns to return, in this order; `None` for all.
    pub columns: Option<Vec<String>>,
    /// Predicates, all of which must hold.
    pub predicates: Vec<Predicate>,
    /// For merge rule `latest`: return every version instead of the newest.
    pub history: bool,
}

/// How to write.
#[derive(Clone, Debug)]
pub struct WriteOptions {
    /// Name of the batch. The same name with the same content is stored once, however often it is written.
    pub batch: Option<String>,
    /// Whether new content replaces a stored batch of this name.
    pub replace: bool,
    /// Bytes of input buffered in memory before they are written, 16 KiB to 4 GiB.
    pub buffer_bytes: usize,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self { batch: None, replace: false, buffer_bytes: 64 << 20 }
    }
}

/// Which tiles to consolidate.
#[derive(Clone, Debug, Default)]
pub struct ConsolidateOptions {
    /// Tiles with fewer chunks are left alone; 2 if `None`.
    pub chunks_min: Option<u64>,
    /// Only windows that end at or before this instant.
    pub before: Option<Instant>,
    /// Least number of older versions in a tile that get chunks of their own. If `None`: at least 64, and a fourth of
    /// the tile's rows.
    pub older_min: Option<u64>,
    /// Only count what would be done.
    pub dry_run: bool,
    /// Only the tiles of one of the processes that share the work; all if `None`.
    pub shard: Option<Shard>,
    /// Most tiles rewritten per second; unlimited if `None`.
    pub tiles_per_s: Option<f64>,
}

/// One of several processes that share work by partition of the engine, so that no two work on the same partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    number: u32,
    of: u32,
}

impl Shard {
    /// The process of this number, from 1, among `of`; `None` if there is no such process.
    pub fn new(number: u32, of: u32) -> Option<Self> {
        (1..=of).contains(&number).then_some(Self { number, of })
    }

    /// Whether a partition of a slice belongs to this process.
    pub(crate) fn has(self, slice: SliceId, partition: i64) -> bool {
        // A hash spreads neighbouring partitions over the processes, however partitions are numbered.
        let bytes = [i64::from(slice.0).to_be_bytes(), partition.to_be_bytes()].concat();
        xxh3_64(&bytes) % u64::from(self.of) == u64::from(self.number - 1)
    }
}

/// Which slices to retire.
#[derive(Clone, Copy, Debug)]
pub enum RetireLimit {
    /// Slices that end at or before this instant.
    Before(Instant),
    /// Slices that ended at least this long before now, by this machine's clock and never by the times in the data.
    OlderThan(chronotile_types::Duration),
    /// As `OlderThan`, with the dataset's own retention.
    Retention,
}
