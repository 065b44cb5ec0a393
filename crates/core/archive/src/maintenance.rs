//! Maintenance of datasets: consolidation, retention, removal, statistics and verification.

pub(crate) mod attempts;
pub(crate) mod batches;
pub(crate) mod consolidate;
pub(crate) mod drop;
pub(crate) mod foreign;
pub(crate) mod group_batches;
pub(crate) mod retire;
pub(crate) mod rewrite;
pub(crate) mod statistics;
pub(crate) mod take_out;
pub(crate) mod verify;
