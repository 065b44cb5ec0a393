//! Tests of the historian, in one program, which compiles and links faster than one for each file.
#![allow(clippy::unwrap_used)] // In a test a panic is the way to fail.

mod reads;
mod reference;
mod rules;
mod support;
mod vectors;
