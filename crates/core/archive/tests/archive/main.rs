//! Tests of the archive's behaviour, in one program: each further program would link everything that an archive
//! needs.
#![allow(clippy::unwrap_used)] // In a test a panic is the way to fail.

mod batches;
mod cells_from;
mod clearing;
mod clocks;
mod common;
mod concurrent;
mod consolidating;
mod copy;
mod counts;
mod damage;
mod drop_races;
mod edges;
mod evolution;
mod groups;
mod index_builds;
mod indexes;
mod interleaved;
mod interposed;
mod interrupted;
mod large;
mod looks;
mod moves;
mod opening;
mod overlaps;
mod retiring;
mod returning;
mod spans;
mod statistics;
mod texts;
mod verify;
mod views;
mod weakened;
