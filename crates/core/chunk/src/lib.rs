//! The chunk format, version 1: rows of one tile written together, as bytes.
//!
//! A chunk consists of two byte strings, a *head* and a *body*, which engines store in two columns so that heads can be scanned
//! without bodies. The Arrow schema is not part of the chunk: a tile receives four or five rows of a hundred columns at a time,
//! and a self-describing file would take ten times its payload. `docs/format.md` specifies every byte.
//!
//! [`encode()`] encodes a chunk, [`Head::parse`] parses its head, [`Columns`] decodes projected columns of many chunks into one
//! `RecordBatch`. Nothing here does I/O.
//!
//! # Limits
//!
//! A chunk has at most [`ROWS_MAX`] rows and decodes to at most [`DECODED_BYTES_MAX`] bytes. Encoder and decoder enforce this, so
//! for any input one call of the decoder allocates at most ten times [`DECODED_BYTES_MAX`].

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
#[doc(hidden)]
pub use encode::decoded_bytes;
pub use encode::{Encoded, encode, encode_as, encode_plain, plain_body};
pub use error::EncodeError;
#[doc(hidden)]
pub use head::reseal;
pub use head::{Binding, BodyLayout, ChunkRows, Head, Origin, Origins, Zone};
pub use layout::Layout;
pub use stats::ColumnStats;
pub use text::{GRAM_BYTES, Grams, TextFilter, fold};

/// The container version that this release writes, and the newest that it reads.
pub const FORMAT_VERSION: u8 = 1;

/// Maximum number of rows in a chunk.
pub const ROWS_MAX: u32 = 1 << 20;

/// Maximum size of a body, of a decompressed block, and of a chunk's decoded columns, in bytes.
pub const DECODED_BYTES_MAX: usize = 64 << 20;

/// Maximum size of the columns that a chunk lacks, in bytes: those that were added to the schema after it was written.
pub const MISSING_BYTES_MAX: usize = 512 << 20;
