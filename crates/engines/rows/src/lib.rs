//! Converts chunks to rows of a CQL table, one per record, and back: the storage of layout `rows`.
//!
//! A row has the dataset's columns in native CQL types, so that every tool of the cluster reads them, and a few of ours whose
//! names begin with `ct_`: which chunk it belongs to and its number there, and which batch it came from. The chunk's own
//! head stands in its first row. From the rows of a chunk its body is made again byte by byte (`chronotile_chunk`, plain
//! form), so that the checksum in the head tells whether every value is as it was written.
//!
//! Nothing here does I/O. `docs/format.md` has the table, `docs/decisions/006-row-layout.md` the reasons.

mod codec;
mod convert;
mod error;
mod gather;
mod lines;
mod types;
mod values;

pub use codec::Codec;
pub use error::{Result, RowsError};
pub use gather::{GatheredChunks, Gatherer};
pub use lines::{Line, Lines};

/// Columns of a row besides the dataset's, with their CQL types. `ct_rows`, `ct_bytes` and `ct_head` have values in the first
/// row of a chunk only.
pub const OWN_COLUMNS: &str = "ct_cell bigint, ct_window int, ct_chunk blob, ct_row int, ct_epoch bigint STATIC, \
     ct_rows int, ct_bytes int, ct_head blob, ct_batch blob, ct_written bigint, ct_ordinal bigint";

/// The key of the table.
pub const PRIMARY_KEY: &str = "PRIMARY KEY ((ct_cell), ct_window, ct_chunk, ct_row)";

/// The bookkeeping columns that are written, in the order of a line's values.
const WRITTEN: &str =
    "ct_cell, ct_window, ct_chunk, ct_row, ct_rows, ct_bytes, ct_head, ct_batch, ct_written, ct_ordinal";
const WRITTEN_COUNT: usize = 10;

/// The bookkeeping columns that are read, in the order that [`Gatherer`] expects. It does not use the counts, but read repair writes
/// only selected columns and compares replicas by all: without them, a row that a replica lacked would be found different on every read.
const READ: &str =
    "ct_epoch, ct_window, ct_chunk, ct_row, ct_head, ct_batch, ct_written, ct_ordinal, ct_rows, ct_bytes";
const READ_COUNT: usize = 10;

#[cfg(test)]
mod tests;
