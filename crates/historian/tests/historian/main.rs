//! Tests of the historian.
#![allow(clippy::unwrap_used)] // In a test a panic is the way to fail.

mod reads;
mod reference;
mod rules;
mod support;
mod vectors;
