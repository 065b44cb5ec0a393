//! Tests of the distributed engine on a real cluster.
#![allow(clippy::unwrap_used)] // In a test a panic is the way to fail.

mod common;
mod conformance;
mod rows;
