//! Archives over HTTP: the middleware in front of one, of which any number may run side by side. The historian is served by this
//! crate, events and jobs by what the program gives it ([`FrontEnds`]).
//!
//! [`serve`] is the whole of it, [`routes`] all but its connections. `server` takes connections, `requests` leads a request through everything that holds for all of
//! them, `endpoints` is the table of what there is. What reads bytes and words of others is public, so that it can be tried with
//! any.

mod access;
mod answers;
mod app;
pub mod arrow_stream;
mod bodies;
mod browsers;
mod collector;
mod connections;
pub mod csv;
mod datasets;
mod diagnostics;
mod endpoints;
mod failure;
mod front_ends;
mod grafana;
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
pub use front_ends::{Answer, FrontEnds, Held, Refusal, Request};
pub use server::{routes, serve};
pub use settings::{Limits, LogFormat, ServiceError, Settings};
