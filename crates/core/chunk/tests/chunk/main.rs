//! Tests of the chunk format.
#![allow(clippy::unwrap_used)] // In a test a panic is the way to fail.

mod common;
mod damage;
mod golden;
mod limits;
mod round_trip;
mod rules;
mod sizes;
