//! Process history on an archive: tags, their values, and the aggregates of OPC UA Part 13.
//!
//! [`rules`] computes and knows nothing of archives. [`Historian`] keeps the values of a tag in the tiles of one cell of a
//! dataset, one cell per tag, and gives the rules what they ask for: points, or statistics of hours that maintenance has
//! worked out, wherever these still hold.

pub mod rules;

mod aggregate;
mod columns;
mod error;
mod filter;
mod historian;
mod hours;
mod maintain;
mod names;
mod plot;
mod read;
mod schema;
mod tag;
mod write;

pub use aggregate::AggregateRequest;
pub use error::{HistorianError, Result, meant};
pub use filter::PointFilter;
pub use historian::{Historian, HistorianOptions};
pub use maintain::SummaryReport;
pub use plot::Downsampling;
pub use read::{Batches, RawRequest};
pub use tag::{DataType, NAME_BYTES_MAX, Tag, TagKey};
pub use write::{NotFinite, PointsOptions, PointsReport};
