//! Tests of the memory engine and of the wrappers of stores.
#![allow(clippy::unwrap_used)] // In a test a panic is the way to fail.

mod conformance;
mod wrappers;
