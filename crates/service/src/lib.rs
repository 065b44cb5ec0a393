//! Serves archives over HTTP. Any number of services may run on one archive. This crate serves the historian; the
//! program provides the handlers for events and jobs ([`FrontEnds`]).
//!
//! [`serve`] runs a complete service, [`routes`] returns its router without connections. `server` accepts connections,
//! `requests` applies the checks and limits that all requests share, and `endpoints` is the table of endpoints. The
//! parsers of client input are public, so that tests and fuzzing can call them directly.

mod access;
mod answers;
mod app;
pub mod arrow_stream;
mod bodies;
mod browsers;
mod connections;
pub mod csv;
mod datasets;
mod diagnostics;
mod endpoints;
mod failure;
mod front_ends;
mod grafana;
mod group_commit;
pub mod json;
pub mod line_protocol;
mod log;
mod machine;
mod metrics;
mod operation;
pub mod parameters;
pub mod points;
mod reads;
pub mod remote_write;
mod requests;
mod server;
mod settings;
mod signals;
mod streams;
mod tags;
mod work;
mod writes;

pub use chronotile_archive::memory;
pub use front_ends::{Answer, FrontEnds, MemoryCharge, Refusal, Request};
pub use server::{routes, serve};
pub use settings::{Limits, LogFormat, ServiceError, Settings};
