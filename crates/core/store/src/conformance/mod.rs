//! The tests that every engine must pass: one for each claim of the [`Store`] contract.
//!
//! An engine's tests call [`run`] with a factory of fresh, empty stores and [`model`] with a seed of their own. A claim
//! that fails panics; its name is printed before it starts.
// These are tests, though a library in form: a panic is their way to fail.
#![allow(clippy::unwrap_used)]

mod chunks;
mod concurrency;
mod model;
mod records;
mod slices;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use chronotile_types::{Cell, ChunkId, DatasetName, SliceId, Tile, Window};
use futures::stream::StreamExt;

use crate::{Cells, Chunk, ChunkKey, Commit, DatasetRef, Expect, RecordPut, Scan, Store, Windows};

pub use model::model;

/// A claim: takes a fresh store and panics where it is not true of it.
pub type Claim = fn(Arc<dyn Store>) -> Pin<Box<dyn Future<Output = ()> + Send>>;

macro_rules! claims {
    ($($module:ident :: $name:ident),* $(,)?) => {
        /// Every claim with its name.
        pub const CLAIMS: &[(&str, Claim)] = &[$((stringify!($name), |store| Box::pin($module::$name(store)))),*];
    };
}

claims! {
    chunks::what_is_put_is_scanned_and_fetched_back,
    chunks::scans_go_by_slice_as_given_then_cell_window_and_id,
    chunks::scans_hold_exactly_the_cells_and_windows_asked_for,
    chunks::a_scan_covers_windows_of_several_datasets_in_the_slices_that_they_share,
    chunks::the_ends_of_every_key_type_are_kept_apart,
    chunks::bodies_are_left_out_when_not_asked_for,
    chunks::a_put_of_the_same_key_replaces,
    chunks::chunks_of_every_size_come_back,
    chunks::repeating_a_commit_changes_nothing,
    chunks::removed_chunks_are_gone_and_missing_ones_no_error,
    chunks::a_required_removal_of_a_missing_chunk_has_no_effect,
    chunks::a_chunk_put_and_removed_in_one_commit_is_gone,
    chunks::a_chunk_over_the_limit_is_refused,
    chunks::a_scan_comes_in_bounded_groups,
    chunks::a_fetch_keeps_the_order_of_keys_and_leaves_out_missing,
    chunks::datasets_do_not_mix,
    slices::a_put_into_a_missing_slice_has_no_effect,
    slices::slices_are_created_once_and_listed_ascending,
    slices::a_missing_slice_holds_nothing,
    slices::a_dropped_slice_is_gone_with_its_chunks,
    slices::statistics_count_each_tile,
    slices::a_slice_is_dropped_only_while_it_holds_what_was_seen,
    slices::rows_are_refused_by_an_engine_that_has_none,
    records::a_record_is_put_read_and_deleted,
    records::conditions_hold_back_the_whole_commit,
    records::a_failing_condition_after_undoes_an_atomic_commit,
    records::conditions_see_earlier_puts_of_the_same_commit,
    records::an_empty_value_is_not_an_absent_record,
    records::records_come_by_prefix_in_byte_order,
    records::records_are_paged_without_gap_or_repetition,
    records::records_over_the_limits_are_refused,
    records::the_clock_is_the_latest_stamp_or_the_time_of_a_machine,
    concurrency::increments_of_many_tasks_are_all_counted,
    concurrency::of_many_that_expect_absence_one_wins,
    concurrency::a_slice_may_be_created_by_many_at_once,
    concurrency::commits_of_many_tasks_all_land,
    concurrency::a_scan_beside_replacements_returns_no_chunk_twice_or_half,
    concurrency::a_scan_of_a_slice_being_dropped_returns_no_wrong_chunk,
    concurrency::a_commit_is_seen_as_a_whole_or_in_its_order,
    concurrency::a_put_beside_a_drop_is_compared_or_refused,
}

/// Runs every claim, each on a store of its own.
pub async fn run<F: Future<Output = Arc<dyn Store>>>(fresh: impl Fn() -> F) {
    for (name, claim) in CLAIMS {
        println!("claim {name}");
        claim(fresh().await).await;
    }
}

fn dataset() -> DatasetRef {
    named("detections")
}

fn named(name: &str) -> DatasetRef {
    DatasetRef::of_chunks(DatasetName::new(name).expect("a test uses a usable name"))
}

fn key(slice: i32, cell: i64, window: i32, id: u128) -> ChunkKey {
    ChunkKey { slice: SliceId(slice), tile: Tile { cell: Cell(cell), window: Window(window) }, id: ChunkId(id) }
}

/// A chunk whose bytes tell its key, so that one returned under another key is noticed.
fn chunk(key: ChunkKey) -> Chunk {
    let body = Bytes::from(format!("body of {} {} {}", key.slice.0, key.tile, key.id));
    Chunk { key, rows: (key.id.0 % 1_000) as u32, head: Bytes::from(format!("head of {}", key.id)), body }
}

fn put(chunks: impl IntoIterator<Item = Chunk>) -> Commit {
    Commit { put: chunks.into_iter().collect(), ..Commit::default() }
}

fn record(key: &str, value: Option<&str>, expect: Expect) -> RecordPut {
    RecordPut { key: key.to_owned(), value: value.map(|value| Bytes::copy_from_slice(value.as_bytes())), expect }
}

fn is(value: &str) -> Expect {
    Expect::Is(Bytes::copy_from_slice(value.as_bytes()))
}

fn scan_all(slices: &[i32]) -> Scan {
    Scan {
        slices: slices.iter().copied().map(SliceId).collect(),
        cells: Cells::All,
        windows: Windows::ALL,
        bodies: true,
        older: true,
    }
}

async fn collect(store: &Arc<dyn Store>, dataset: &DatasetRef, scan: Scan) -> Vec<Chunk> {
    let mut groups = store.scan(dataset, scan).await.expect("a scan begins");
    let mut chunks = vec![];
    while let Some(group) = groups.next().await {
        chunks.extend(group.expect("a scan goes on"));
    }
    chunks
}

async fn keys_in(store: &Arc<dyn Store>, slices: &[i32]) -> Vec<ChunkKey> {
    collect(store, &dataset(), scan_all(slices)).await.iter().map(|chunk| chunk.key).collect()
}

async fn with_slices(store: &Arc<dyn Store>, slices: &[i32]) {
    for &slice in slices {
        store.create_slice(&dataset(), SliceId(slice)).await.expect("a slice is created");
    }
}
