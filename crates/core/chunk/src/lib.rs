//! The chunk format, version 1: rows of one tile written together, as bytes.
//!
//! A chunk is two byte strings, a *head* and a *body*, which engines keep in two columns so that heads can be scanned
//! without their bodies. The Arrow schema lies outside the chunk: a tile receives four or five rows of a hundred columns
//! at a time, and a self-describing file would cost ten times its payload. `docs/format.md` gives every byte.
//!
//! [`encode()`] writes a chunk, [`Head::parse`] reads its head, [`Columns`] gathers projected columns of many chunks into
//! one `RecordBatch`. Nothing here does I/O.
//!
//! # Limits
//!
//! A chunk holds at most [`ROWS_MAX`] rows and decodes to at most [`DECODED_BYTES_MAX`] bytes. Both sides enforce this,
//! so whatever bytes it is given, one call of the decoder allocates at most ten times [`DECODED_BYTES_MAX`].

#[cfg(target_endian = "big")]
compile_error!("chunk bytes are little-endian and are copied as they are");

mod bit_packed;
mod bits;
mod builder;
mod columnar_read;
mod columnar_write;
mod columns;
mod decimal;
mod encode;
mod error;
mod extract;
mod head;
mod layout;
mod number;
mod packed;
mod small_pick;
mod small_read;
mod small_write;
mod stats;
mod text;
mod wire;

pub use columns::{Body, Columns, Defaults, ordinals, row_origins};
pub use encode::{Encoded, encode, encode_as, encode_plain, plain_body};
pub use error::EncodeError;
#[doc(hidden)]
pub use head::reseal;
pub use head::{Binding, BodyLayout, ChunkRows, Head, Origin, Origins, Zone};
pub use layout::Layout;
pub use stats::ColumnStats;
pub use text::{GRAM_BYTES, Grams, TextFilter, fold};

/// The version of the container this release writes, and the newest it reads.
pub const FORMAT_VERSION: u8 = 1;

/// The greatest number of rows in a chunk.
pub const ROWS_MAX: u32 = 1 << 20;

/// The greatest size of a body, of a decompressed block, and of a chunk's decoded columns, in bytes.
pub const DECODED_BYTES_MAX: usize = 64 << 20;
