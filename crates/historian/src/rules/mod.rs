//! The rules of OPC UA Part 13 (OPC 10000-13, Aggregates), and nothing that reads or writes.
//!
//! A series is a run of points in ascending time, each with a value and a status code. A [`Calculator`] takes it in pieces of
//! any size and gives one result per interval; what it holds meanwhile does not grow with the series, `Percentile` and
//! `Distinct` apart, which have a stated limit. How the pieces were cut changes nothing.

mod aggregate;
mod bounds;
mod calculator;
mod frame;
mod grid;
mod interpolated;
mod raw;
mod segment;
mod simple;
mod status;

pub use aggregate::{Aggregate, Settings, SettingsRefused};
pub use bounds::At;
pub use calculator::Calculator;
pub use frame::{Output, TooManyValues, VALUES_PER_INTERVAL_MAX};
pub use grid::{Grid, GridError, INTERVALS_MAX};
pub use segment::Segment;
pub use status::{Point, Status};
