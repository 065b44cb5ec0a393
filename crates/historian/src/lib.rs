//! Process history on an archive: tags, their points, and the aggregates of OPC UA Part 13.
//!
//! [`rules`] computes aggregates and does not depend on archives. [`Historian`] stores the points of a tag in the tiles
//! of one cell of a dataset, one cell per tag. It feeds the rules with points, or with hourly statistics from
//! maintenance where these are still valid.

pub mod rules;

mod aggregate;
mod columns;
mod error;
mod filter;
mod historian;
mod hours;
mod maintenance;
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
pub use maintenance::MaintenanceReport;
pub use plot::Downsampling;
pub use read::{Batches, RawRequest};
pub use tag::{DataType, NAME_BYTES_MAX, Tag, TagKey};
pub use write::{NotFinite, PointsOptions, PointsReport};
