//! Tests of the chunk format, in one program, which compiles and links faster than one for each file.
#![allow(clippy::unwrap_used)] // In a test a panic is the way to fail.

mod common;
mod damage;
mod golden;
mod limits;
mod round_trip;
mod rules;
mod sizes;
