//! Tests of the SQLite engine.
#![allow(clippy::unwrap_used)] // In a test a panic is the way to fail.

mod changes;
mod common;
mod conformance;
mod files;
mod processes;
mod scans;
