//! Converts chunks to rows of a CQL table, one per record, and back: the storage of layout `rows`.
//!
//! A row has the dataset's columns in native CQL types, so that every CQL tool can read them, and a few bookkeeping columns whose
//! names begin with `ct_`: the row's chunk, its number in the chunk, and its batch. The first row of a chunk also stores the
//! chunk's head. The body is rebuilt byte for byte from the rows (`chronotile_chunk`, plain form), so the checksum in the head
//! verifies every value.
//!
//! Nothing here does I/O. `docs/format.md` describes the table, `docs/decisions/006-row-layout.md` the reasons.

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

/// Bookkeeping columns of a row, with their CQL types. `ct_rows`, `ct_bytes` and `ct_head` have values only in the first row of a
/// chunk.
pub const OWN_COLUMNS: &str = "ct_cell bigint, ct_window int, ct_chunk blob, ct_row int, ct_epoch bigint STATIC, \
     ct_rows int, ct_bytes int, ct_head blob, ct_batch blob, ct_written bigint, ct_ordinal bigint";

/// The key of the table.
pub const PRIMARY_KEY: &str = "PRIMARY KEY ((ct_cell), ct_window, ct_chunk, ct_row)";

/// The bookkeeping columns that are written, in the order of a line's values.
const WRITTEN: &str =
    "ct_cell, ct_window, ct_chunk, ct_row, ct_rows, ct_bytes, ct_head, ct_batch, ct_written, ct_ordinal";
const WRITTEN_COUNT: usize = 10;

/// The bookkeeping columns that are read, in the order that [`Gatherer`] expects. It does not use the counts, but read repair
/// writes only selected columns and compares all of them: without the counts, a row that a replica lacked would differ on every
/// read.
const READ: &str =
    "ct_epoch, ct_window, ct_chunk, ct_row, ct_head, ct_batch, ct_written, ct_ordinal, ct_rows, ct_bytes";
const READ_COUNT: usize = 10;

#[cfg(test)]
mod tests;
