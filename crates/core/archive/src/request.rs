use arrow_array::ArrayRef;
use chronotile_sky::Region;
use chronotile_types::{Instant, SliceId, TimeRange};
use xxhash_rust::xxh3::xxh3_64;

/// Which localities a read covers.
#[derive(Clone, Debug, Default)]
pub enum Place {
    /// All of them.
    #[default]
    All,
    /// Whole cells by number.
    Cells(Vec<i64>),
    /// Records whose cell columns have these values: one array per column of the cell rule, of equal length.
    Keys(Vec<ArrayRef>),
    /// Records whose position lies in the region, its border included.
    Region(Region),
}

/// Comparison of one column with constants. Null never matches but where `Exists` asks for it; NaN matches nothing but `NotEqual`; -0.0 equals 0.0.
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
    /// A text that has the value in it.
    Contains,
    /// A text in which the value, a regular expression, finds something.
    Matches,
    /// A text that begins with the value.
    Prefix,
    /// Not null if the value is true, null if it is false.
    Exists,
}

/// A simple predicate; a read takes rows for which all of its predicates hold.
#[derive(Clone, Debug)]
pub struct Predicate {
    /// The column.
    pub column: String,
    /// The comparison.
    pub comparison: Comparison,
    /// The constants: one value, two for `Between`, any number for `In`; cast to the column's type. Of
    /// `Exists` a boolean, of the comparisons of texts a text.
    pub values: ArrayRef,
}

/// What to read.
#[derive(Clone, Debug, Default)]
pub struct ReadRequest {
    /// Localities.
    pub place: Place,
    /// Half-open time range.
    pub time: TimeRange,
    /// Records with these ids: one array per id column (of the first few id columns at least one), of equal length.
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
    /// Whether new content takes the place of a stored batch of this name.
    pub replace: bool,
    /// Bytes of input kept in memory before they are written out, 16 KiB to 4 GiB.
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
    /// Tiles with fewer chunks are left alone; 2 where `None`.
    pub chunks_min: Option<u64>,
    /// Only windows that end at or before this instant.
    pub before: Option<Instant>,
    /// Rows that are older versions of others in their tile get chunks of their own where they are at least so many; where `None` they
    /// do if there are 64, and a fourth of all rows.
    pub older_min: Option<u64>,
    /// Count what would be done and do nothing.
    pub dry_run: bool,
    /// Only the tiles of one of the processes that share the work; all where `None`.
    pub shard: Option<Shard>,
    /// Tiles rewritten in a second, at most; any number where `None`.
    pub tiles_per_s: Option<f64>,
}

/// One of several processes that share work by partition of the engine, so that no two of them meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    number: u32,
    of: u32,
}

impl Shard {
    /// The process of this number, from 1, among so many; `None` where there is no such process.
    pub fn new(number: u32, of: u32) -> Option<Self> {
        (1..=of).contains(&number).then_some(Self { number, of })
    }

    /// Whether a partition of a slice is of this process.
    pub(crate) fn has(self, slice: SliceId, partition: i64) -> bool {
        // Neighbours go to different processes, however partitions are numbered.
        let bytes = [i64::from(slice.0).to_be_bytes(), partition.to_be_bytes()].concat();
        xxh3_64(&bytes) % u64::from(self.of) == u64::from(self.number - 1)
    }
}

/// Which slices to retire.
#[derive(Clone, Copy, Debug)]
pub enum RetireLimit {
    /// Slices that end at or before this instant.
    Before(Instant),
    /// Slices that ended at least this long before now, by this machine's clock; never by the data's own times.
    OlderThan(chronotile_types::Duration),
    /// As `OlderThan`, with the dataset's own retention.
    Retention,
}
