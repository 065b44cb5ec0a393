//! Rows of CQL tables as Arrow: decodes the bytes of results directly into columns, page by page, for one statement or for a
//! scan of a whole table by token ranges.

mod checkpoint;
mod decode;
mod error;
mod pages;
mod params;
mod ring;
mod scan;
mod session;
mod stream;
mod types;

pub use decode::Decoder;
pub use error::{Result, TablesError};
pub use pages::PAGE_BYTES;
pub use params::{Bound, Parameters, Value};
pub use scan::Scan;
pub use session::{ReadOptions, Tables};
pub use stream::RowStream;
pub use types::{DecimalAs, DurationAs, Mapping, UuidAs, VarintAs};
