//! The records of the list of superseded batches: those that were replaced or removed.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use chronotile_store::DatasetRef;
use chronotile_types::BatchId;
use serde::{Deserialize, Serialize};

/// How long rows of replaced and removed batches are kept for running readers.
pub(crate) const SUPERSEDED_KEPT: Duration = Duration::from_secs(600);
/// Batches in a page of the list.
pub(crate) const PAGE_BATCHES: usize = 2_000;

/// The head of the list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SupersededHead {
    /// Changes with every change of the list, and at the end of every replacement or removal.
    pub token: String,
    pub pages: u32,
    /// Whether consolidated chunks may contain rows that do not count.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unsettled: bool,
}

/// The list as a process last read it.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownSuperseded {
    pub token: String,
    pub pages: u32,
    pub unsettled: bool,
    pub batches: Arc<HashSet<BatchId>>,
}

pub(crate) fn head_key(dataset: &DatasetRef) -> String {
    format!("superseded/{}", dataset.name)
}

pub(crate) fn page_key(dataset: &DatasetRef, page: u32) -> String {
    format!("superseded/{}/{page:06}", dataset.name)
}
