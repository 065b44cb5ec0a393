//! Tests of reading and writing files.
#![allow(clippy::unwrap_used)] // In a test a panic is the way to fail.

mod common;
mod csv;
mod files;
mod hostile;
mod ipc_hostile;
mod roundtrip;
