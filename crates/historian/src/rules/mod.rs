//! The rules of OPC UA Part 13 (OPC 10000-13, Aggregates), without any I/O.
//!
//! A series is a sequence of points in ascending time, each with a value and a status code. A [`Calculator`] accepts it
//! in pieces of any size and returns one result per interval. The sizes of the pieces do not affect the results. Its
//! memory does not grow with the series, except for `Percentile` and `Distinct`, which have a limit.

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
pub use bounds::ValuesAtTimes;
pub use calculator::Calculator;
pub use frame::{Output, TooManyValues, VALUES_PER_INTERVAL_MAX};
pub use grid::{Grid, GridError, INTERVALS_MAX};
pub use segment::Segment;
pub use status::{Point, Status};
