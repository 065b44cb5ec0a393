//! Chunks as rows of a CQL table, one for each record, and back: what layout `rows` keeps in a cluster.
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

/// The columns of ours that are written, in the order of a line's values.
const WRITTEN: &str =
    "ct_cell, ct_window, ct_chunk, ct_row, ct_rows, ct_bytes, ct_head, ct_batch, ct_written, ct_ordinal";
const WRITTEN_COUNT: usize = 10;

/// The columns of ours that are read, in the order [`Gatherer`] wants them. It needs no counts; but nodes repair what is selected, and
/// compare replicas by the write times of all columns, so of a row that one of them lacked everything is to be read.
const READ: &str =
    "ct_epoch, ct_window, ct_chunk, ct_row, ct_head, ct_batch, ct_written, ct_ordinal, ct_rows, ct_bytes";
const READ_COUNT: usize = 10;

#[cfg(test)]
mod tests;
