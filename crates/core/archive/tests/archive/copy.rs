//! Copies to another archive: interrupted at any call and repeated, from a source that changes, and into targets that
//! do not belong to them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow_array::RecordBatch;
use arrow_schema::{DataType, Field, Schema};
use async_trait::async_trait;
use bytes::Bytes;
use chronotile_archive::{
    AddedColumn, Archive, ArchiveError, ConsolidateOptions, CopyOptions, CopyReport, Dataset, DatasetCopyReport,
    Result, RetireLimit,
};
use chronotile_memory::MemoryStore;
use chronotile_store::{
    CallOptions, Capabilities, Chunk, ChunkKey, Commit, DatasetRef, Decision, DropSlice, Expect, FaultyStore, Record,
    RecordPut, Result as StoreResult, Scan, Store, StoreError, TileStatistics, Visibility,
};
use chronotile_types::{DatasetSpec, Instant, SliceId};
use futures::stream::BoxStream;

use crate::common::*;
use crate::interposed::{Action, Interposed};

fn memory() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new())
}

fn archive(url: &str, store: &Arc<dyn Store>) -> Archive {
    Archive::on(url, store.clone()).with_superseded_kept(std::time::Duration::ZERO)
}

async fn copy_all(source: &Arc<dyn Store>, target: &Arc<dyn Store>) -> Result<CopyReport> {
    copy_with(source, target, CopyOptions::default()).await
}

async fn copy_with(source: &Arc<dyn Store>, target: &Arc<dyn Store>, options: CopyOptions) -> Result<CopyReport> {
    archive("test:source", source).copy_to(&archive("test:target", target), options, None).await
}

async fn copy_one(source: &Arc<dyn Store>, target: &Arc<dyn Store>) -> DatasetCopyReport {
    copy_all(source, target).await.unwrap().datasets.remove(0)
}

fn verify_only() -> CopyOptions {
    CopyOptions { verify_only: true, ..CopyOptions::default() }
}

/// The rows of an edition of a batch, which carry its name as their note: `a2` is edition 2 of batch `a`. Editions
/// differ in their number of rows.
fn edition(note: &str) -> RecordBatch {
    let (batch, number) = note.split_at(1);
    let first = 1_000 * i64::from(batch.as_bytes()[0] - b'a');
    spread_rows(first, 10 + 5 * number.parse::<i64>().unwrap(), 6, note)
}

async fn write_edition(dataset: &Dataset, note: &str) {
    write(dataset, &edition(note), replacing(&note[..1])).await.unwrap();
}

async fn consolidate(dataset: &Dataset) {
    dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap();
}

/// A source with written, consolidated, replaced and removed batches.
async fn fill(source: &Arc<dyn Store>) -> Dataset {
    let dataset = create(source, spec()).await;
    for note in ["a1", "b1", "c1"] {
        write_edition(&dataset, note).await;
    }
    consolidate(&dataset).await;
    for note in ["d1", "e1", "a2"] {
        write_edition(&dataset, note).await;
    }
    dataset.remove_batch("b").await.unwrap();
    dataset
}

/// Every kind of change to tiles, applied to the source after a copy.
async fn change(dataset: &Dataset) {
    dataset.remove_batch("c").await.unwrap();
    write_edition(dataset, "d2").await;
    let column = AddedColumn { field: Field::new("late", DataType::Int64, true), default: None };
    dataset.add_columns(vec![column]).await.unwrap();
    write_edition(dataset, "f1").await;
    consolidate(dataset).await;
    write_edition(dataset, "g1").await;
    dataset.retire(RetireLimit::Before(Instant::NativeTicks(2 * HOUR)), false).await.unwrap();
}

/// The records under a prefix, without what a copy adds and without the checksum.
async fn records(store: &dyn Store, prefix: &str) -> BTreeMap<String, String> {
    let bare = |record: Record| {
        let text = match std::str::from_utf8(&record.value) {
            Ok(text) if text.starts_with('{') => {
                let mut value: serde_json::Value = serde_json::from_str(text).unwrap();
                let members = value.as_object_mut().unwrap();
                // End stamp and predecessor of a record differ between archives.
                for own in ["copied", "ended_us", "previous"] {
                    members.remove(own);
                }
                members.remove("checksum");
                value.to_string()
            }
            _ => format!("{:?}", record.value),
        };
        (record.key, text)
    };
    store.records(prefix, None, 10_000).await.unwrap().into_iter().map(bare).collect()
}

/// Asserts that the raw state of both archives is the same, except for the marks of the copy.
async fn assert_equal(source: &Arc<dyn Store>, target: &Arc<dyn Store>, context: &str) {
    let (source, target) = (source.as_ref(), target.as_ref());
    let dataset = placed();
    assert_eq!(chunks(target, &dataset).await, chunks(source, &dataset).await, "{context}");
    for kind in ["dataset/", "batch/records/", "part/records/", "intent/records/", "retired/records/"] {
        assert_eq!(records(target, kind).await, records(source, kind).await, "{kind}: {context}");
    }
}

/// The intents and the batch records: which batches are being changed and which are finished.
async fn state(store: &Arc<dyn Store>) -> [BTreeMap<String, String>; 2] {
    [records(store.as_ref(), "intent/records/").await, records(store.as_ref(), "batch/records/").await]
}

/// Asserts that readers see every finished batch on the target in a single edition and completely, without damage or
/// missing chunks. A batch whose replacement begins during a read may be seen in part in any archive, so such reads
/// are ignored.
async fn assert_readable(target: &Arc<dyn Store>, context: &str) {
    let state_before = state(target).await;
    let Ok(dataset) = archive("test:target", target).dataset("records").await else { return };
    let seen = id_notes(&read_all(&dataset).await);
    let report = dataset.verify(None).await.unwrap();
    if state(target).await != state_before {
        return;
    }
    let mut by_batch: BTreeMap<String, (BTreeSet<String>, usize)> = BTreeMap::new();
    for (_, note) in &seen {
        let (notes, rows) = by_batch.entry(note[..1].to_owned()).or_default();
        notes.insert(note.clone());
        *rows += 1;
    }
    let retired = !target.records("retired/records/", None, 10).await.unwrap().is_empty();
    for (notes, rows) in by_batch.values() {
        assert_eq!(notes.len(), 1, "editions are mixed: {notes:?}, {context}");
        let whole = edition(notes.first().unwrap()).num_rows();
        assert!(*rows == whole || retired && *rows <= whole, "{rows} rows of {notes:?}: {context}");
    }
    assert_eq!(report.damage, vec![], "{context}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_is_the_same_to_the_byte_and_a_second_one_does_nothing() {
    for out_of_file in [false, true] {
        for (target, _folder) in engines() {
            let (source, _folder) = engines().remove(usize::from(out_of_file));
            let dataset = fill(&source).await;
            let report = copy_one(&source, &target).await;
            assert_equal(&source, &target, "first copy").await;
            assert!(report.ok() && report.caught_up, "{report:?}");
            assert_eq!((report.batches, report.batches_copied, report.batches_removed), (4, 4, 1));
            let all = chunks(source.as_ref(), &placed()).await;
            assert_eq!(report.chunks_copied, all.len() as u64);
            assert_eq!((report.chunks_verified, report.rows_verified), (report.chunks_copied, report.rows_copied));
            assert_eq!((report.batches_left, report.batches_foreign, report.passes), (0, 0, 2));
            let again = copy_one(&source, &target).await;
            assert_eq!((again.chunks_copied, again.batches_copied, again.chunks_removed, again.passes), (0, 0, 0, 1));
            assert_readable(&target, "after the copy").await;

            change(&dataset).await;
            let stale = copy_with(&source, &target, verify_only()).await.unwrap().datasets.remove(0);
            assert!(!stale.ok() && stale.tiles_differing > 0 && stale.batches_left > 0, "{stale:?}");
            let report = copy_one(&source, &target).await;
            assert!(report.ok() && report.caught_up && report.slices_dropped == 1, "{report:?}");
            assert!(report.chunks_removed > 0 && report.batches_removed == 1, "{report:?}");
            assert_equal(&source, &target, "second copy").await;
            assert!(copy_with(&source, &target, verify_only()).await.unwrap().datasets[0].ok());
            assert_eq!(id_notes(&read_all(&open(&target, "records").await).await), id_notes(&read_all(&dataset).await));
        }
    }
}

/// Where and when the single fault of a run occurs.
#[derive(Clone, Copy, Debug)]
struct Fault {
    call: u64,
    after: bool,
    on_target: bool,
}

/// A store that fails at one call and at all later ones, as if the process had died.
fn dying(inner: &Arc<dyn Store>, fault: Fault) -> (Arc<dyn Store>, Arc<AtomicBool>) {
    let struck = Arc::new(AtomicBool::new(false));
    let strikes = struck.clone();
    let faulty = FaultyStore::new(inner.clone(), move |call| {
        let refused = || StoreError::Refused { engine: "test", reason: "the fault of this test".into() };
        if call.number < fault.call {
            return Decision::Pass;
        }
        match (strikes.swap(true, Ordering::SeqCst), fault.after) {
            (false, true) => Decision::FailAfter("the fault of this test".into()),
            _ => Decision::FailBefore(refused()),
        }
    });
    (Arc::new(faulty), struck)
}

/// Prepares both archives for an interrupted copy: the source and, with `update`, a target filled by an earlier copy.
async fn before(source: &Arc<dyn Store>, target: &Arc<dyn Store>, update: bool) {
    let dataset = fill(source).await;
    if update {
        copy_one(source, target).await;
        change(&dataset).await;
    }
}

/// Interrupts a copy at one call, checks the target as readers see it, and repeats the copy. Returns whether the
/// fault occurred.
async fn cut_off(source: Arc<dyn Store>, update: bool, stepwise: bool, fault: Fault) -> bool {
    let target = memory();
    before(&source, &target, update).await;
    let (dying, struck) = dying(if fault.on_target { &target } else { &source }, fault);
    let (from, to) = if fault.on_target { (source.clone(), dying) } else { (dying, target.clone()) };
    let to: Arc<dyn Store> = if stepwise { Arc::new(LimitedStore::stepwise(to)) } else { to };
    let first = copy_all(&from, &to).await;
    if !struck.load(Ordering::SeqCst) {
        first.unwrap();
        return false;
    }
    let context = format!("update={update} stepwise={stepwise} {fault:?}");
    assert!(first.is_err(), "{context}");
    assert_readable(&target, &context).await;
    let report = copy_all(&source, &target).await.unwrap_or_else(|error| panic!("{context}: {error}"));
    assert!(report.datasets[0].ok() && report.datasets[0].caught_up, "{context}: {report:?}");
    assert_equal(&source, &target, &context).await;
    true
}

/// Interrupts a copy at every call, or at every `stride`-th.
async fn cut_off_everywhere(
    source: impl Fn() -> (Arc<dyn Store>, Option<tempfile::TempDir>),
    stepwise: bool,
    stride: usize,
) {
    for update in [false, true] {
        for on_target in [true, false] {
            // Each round starts at another call.
            let first = (usize::from(update) + 2 * usize::from(on_target)) % stride;
            for call in (first as u64..).step_by(stride) {
                let mut struck = false;
                for after in [false, true] {
                    let (source, _folder) = source();
                    struck |= cut_off(source, update, stepwise, Fault { call, after, on_target }).await;
                }
                if !struck {
                    assert!(call > 15, "a copy made only {call} calls, so nothing was tested");
                    break;
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_cut_off_at_any_call_loses_and_doubles_nothing() {
    cut_off_everywhere(|| (memory(), None), false, 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_cut_off_between_the_steps_of_a_commit_loses_and_doubles_nothing() {
    cut_off_everywhere(|| (memory(), None), true, 7).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_out_of_a_file_cut_off_at_any_call_loses_and_doubles_nothing() {
    let source = || {
        let (source, folder) = sqlite();
        (source, Some(folder))
    };
    cut_off_everywhere(source, false, 9).await;
}

/// What may happen on the source between two calls of a copy.
#[derive(Clone, Copy, Debug)]
enum Event {
    Write,
    WriteRemoved,
    Replace,
    ReplaceConsolidated,
    Remove,
    Consolidate,
    Retire,
    AddColumn,
}

const EVENTS: [Event; 8] = [
    Event::Write,
    Event::WriteRemoved,
    Event::Replace,
    Event::ReplaceConsolidated,
    Event::Remove,
    Event::Consolidate,
    Event::Retire,
    Event::AddColumn,
];

impl Event {
    async fn happen(self, dataset: Dataset) {
        match self {
            Self::Write => write_edition(&dataset, "h1").await,
            Self::WriteRemoved => write_edition(&dataset, "b2").await,
            Self::Replace => write_edition(&dataset, "a3").await,
            Self::ReplaceConsolidated => {
                write_edition(&dataset, "d3").await;
                write_edition(&dataset, "i1").await;
                consolidate(&dataset).await;
            }
            Self::Remove => drop(dataset.remove_batch("a").await.unwrap()),
            Self::Consolidate => consolidate(&dataset).await,
            Self::Retire => {
                dataset.retire(RetireLimit::Before(Instant::NativeTicks(4 * HOUR)), false).await.unwrap();
            }
            Self::AddColumn => {
                let column = AddedColumn { field: Field::new("later", DataType::Int64, true), default: None };
                dataset.add_columns(vec![column]).await.unwrap();
                write_edition(&dataset, "j1").await;
                consolidate(&dataset).await;
            }
        }
    }
}

/// Runs the event before one call of the copy to either store. Returns whether it ran.
async fn interposed(event: Event, update: bool, on_target: bool, at: u64) -> bool {
    let (source, target) = (memory(), memory());
    before(&source, &target, update).await;
    let happened = Arc::new(AtomicBool::new(false));
    let (store, noted, readers) = (source.clone(), happened.clone(), target.clone());
    let action: Action = Box::new(move || {
        let (store, noted, readers) = (store.clone(), noted.clone(), readers.clone());
        Box::pin(async move {
            noted.store(true, Ordering::SeqCst);
            assert_readable(&readers, &format!("{event:?} update={update} {on_target} at {at}, before")).await;
            event.happen(open(&store, "records").await).await;
        })
    });
    let inner = if on_target { target.clone() } else { source.clone() };
    let busy = Interposed::at(inner, at, action);
    let (from, to) = if on_target { (source.clone(), busy) } else { (busy, target.clone()) };
    let context = format!("{event:?} update={update} on_target={on_target} at={at}");
    let report = copy_all(&from, &to).await.unwrap_or_else(|error| panic!("{context}: {error}")).datasets.remove(0);
    assert!(report.ok(), "{context}: {report:?}");
    assert_readable(&target, &context).await;
    let report = copy_one(&source, &target).await;
    assert!(report.ok() && report.caught_up, "{context}: {report:?}");
    assert_equal(&source, &target, &context).await;
    happened.load(Ordering::SeqCst)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_source_may_change_between_any_two_calls_of_a_copy() {
    for event in EVENTS {
        for update in [false, true] {
            for on_target in [false, true].into_iter().take(1 + usize::from(update)) {
                let mut at = 0;
                while interposed(event, update, on_target, at).await {
                    at += 1;
                }
                assert!(at > 15, "the event had only {at} moments to happen at");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_beside_a_writer_shows_whole_batches_at_any_moment_and_ends_with_all() {
    let ((source, _folder), target) = (sqlite(), memory());
    let dataset = fill(&source).await;
    let done = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn({
        let (dataset, done) = (dataset.clone(), done.clone());
        async move {
            for round in 0..8 {
                for batch in ["k", "l", "m", "a"] {
                    write_edition(&dataset, &format!("{batch}{}", 3 + round)).await;
                }
                if round % 3 == 1 {
                    dataset.remove_batch("l").await.unwrap();
                }
                consolidate(&dataset).await;
            }
            done.store(true, Ordering::SeqCst);
        }
    });
    let reader = tokio::spawn({
        let (target, done) = (target.clone(), done.clone());
        async move {
            while !done.load(Ordering::SeqCst) {
                assert_readable(&target, "beside the copy").await;
            }
        }
    });
    let mut runs = 0;
    while !done.load(Ordering::SeqCst) {
        let options = CopyOptions { passes_max: 2, ..CopyOptions::default() };
        let report = copy_with(&source, &target, options).await.unwrap();
        assert!(report.datasets[0].ok(), "{report:?}");
        assert_readable(&target, "between two copies").await;
        runs += 1;
    }
    writer.await.unwrap();
    reader.await.unwrap();
    assert!(runs > 0);
    let report = copy_one(&source, &target).await;
    assert!(report.ok() && report.caught_up, "{report:?}");
    assert_equal(&source, &target, "in the end").await;
}

/// Begins a write of several steps that is interrupted after the first.
async fn write_half(store: &Arc<dyn Store>, key: &str) {
    let whole = chunks(store.as_ref(), &placed()).await.len();
    for call in 0.. {
        let (dying, _) = dying(store, Fault { call, after: true, on_target: false });
        let Ok(half) = archive("test:", &dying).dataset("records").await else { continue };
        let large: Vec<RecordBatch> = (0..2).map(|n| spread_rows(n * 10, 10, 2, &key.repeat(80_000))).collect();
        half.write(input(large), tight(named(key))).await.unwrap_err();
        if chunks(store.as_ref(), &placed()).await.len() > whole {
            assert!(!open(store, "records").await.batch(key).await.unwrap().unwrap().finished);
            return;
        }
    }
}

#[tokio::test]
async fn an_unfinished_batch_is_listed_and_not_copied() {
    let (source, target) = (memory(), memory());
    let dataset = fill(&source).await;
    let whole = chunks(source.as_ref(), &placed()).await;
    for key in ["half", "another"] {
        write_half(&source, key).await;
    }
    let report = copy_one(&source, &target).await;
    assert_eq!(report.batches_unfinished, ["another", "half"]);
    assert!(report.ok() && report.caught_up, "{report:?}");
    assert_eq!(chunks(target.as_ref(), &placed()).await, whole);
    let copied = open(&target, "records").await;
    assert_eq!(copied.batch("half").await.unwrap(), None);
    assert_eq!(id_notes(&read_all(&copied).await), id_notes(&read_all(&dataset).await));
    for key in ["half", "another"] {
        dataset.remove_batch(key).await.unwrap();
    }
    assert!(copy_one(&source, &target).await.ok());
    assert_equal(&source, &target, "after the removal").await;
}

#[tokio::test]
async fn a_batch_written_to_the_target_is_never_touched() {
    let (source, target) = (memory(), memory());
    let dataset = fill(&source).await;
    copy_one(&source, &target).await;
    let copied = open(&target, "records").await;
    write_edition(&copied, "z1").await;
    change(&dataset).await;
    let state = (chunks(target.as_ref(), &placed()).await, records(target.as_ref(), "").await);
    let error = copy_all(&source, &target).await.unwrap_err();
    assert!(matches!(error, ArchiveError::NotACopy { .. }), "{error}");
    let mut after = (chunks(target.as_ref(), &placed()).await, records(target.as_ref(), "").await);
    after.1.insert("copy/records".into(), state.1["copy/records"].clone());
    assert_eq!(after, state);
    let report = copy_with(&source, &target, verify_only()).await.unwrap().datasets.remove(0);
    assert!(!report.ok() && report.batches_foreign == 1, "{report:?}");
    // A copied batch that was replaced on the target counts as the target's own.
    let (source, target) = (memory(), memory());
    fill(&source).await;
    copy_one(&source, &target).await;
    write_edition(&open(&target, "records").await, "a9").await;
    assert!(matches!(copy_all(&source, &target).await.unwrap_err(), ArchiveError::NotACopy { .. }));
}

#[tokio::test]
async fn a_target_consolidated_by_itself_is_brought_in_line() {
    let (source, target) = (memory(), memory());
    fill(&source).await;
    copy_one(&source, &target).await;
    consolidate(&open(&target, "records").await).await;
    let report = copy_one(&source, &target).await;
    assert!(report.ok() && report.chunks_copied > 0 && report.chunks_removed > 0, "{report:?}");
    assert_equal(&source, &target, "after a consolidation of the target").await;
}

#[tokio::test]
async fn targets_that_are_no_copies_are_refused_and_stay_as_they_are() {
    let source = memory();
    fill(&source).await;
    let refused = |error: &ArchiveError| matches!(error, ArchiveError::NotACopy { .. });
    // One with batches of its own.
    let own = memory();
    write_edition(&create(&own, spec()).await, "a1").await;
    assert!(refused(&copy_all(&source, &own).await.unwrap_err()));
    // An empty one becomes a copy, but not with another definition.
    let empty = memory();
    create(&empty, spec()).await;
    assert!(copy_one(&source, &empty).await.ok());
    assert_equal(&source, &empty, "an empty dataset").await;
    let other = memory();
    create(&other, DatasetSpec { windows_per_slice: 3, ..spec() }).await;
    let error = copy_all(&source, &other).await.unwrap_err();
    assert!(error.to_string().contains("another slice length"), "{error}");
    // A copy of something else with batches of the same names.
    let stranger = memory();
    for note in ["a1", "d1"] {
        write_edition(&create(&stranger, spec()).await, note).await;
    }
    let error = archive("test:stranger", &stranger)
        .copy_to(&archive("test:target", &empty), CopyOptions::default(), None)
        .await
        .unwrap_err();
    assert!(refused(&error), "{error}");
    assert_equal(&source, &empty, "after a stranger").await;
    // The same archive, and an unknown dataset.
    assert!(matches!(copy_all(&source, &source).await.unwrap_err(), ArchiveError::SameArchive { .. }));
    let unknown = CopyOptions { datasets: Some(vec!["records".into(), "nothing".into()]), ..CopyOptions::default() };
    let target = memory();
    let error = copy_with(&source, &target, unknown).await.unwrap_err();
    assert!(matches!(error, ArchiveError::DatasetNotFound { .. }), "{error}");
    assert_eq!(target.records("", None, 10).await.unwrap(), vec![]);
}

/// All batches of it have the names of those that the copy brought, and none is the same.
#[tokio::test]
async fn a_source_with_batches_of_the_same_names_and_other_rows_is_refused() {
    let (source, target, stranger) = (memory(), memory(), memory());
    fill(&source).await;
    copy_one(&source, &target).await;
    let other = create(&stranger, spec()).await;
    for batch in ["a", "b", "c", "d", "e"] {
        write_edition(&other, &format!("{batch}9")).await;
    }
    let from = async |url: &str, store: &Arc<dyn Store>| {
        archive(url, store).copy_to(&archive("test:target", &target), CopyOptions::default(), None).await
    };
    let error = from("test:stranger", &stranger).await.unwrap_err();
    assert!(matches!(error, ArchiveError::NotACopy { .. }), "{error}");
    assert_equal(&source, &target, "after a stranger").await;
    // The same batches at another place are no stranger.
    let report = from("test:moved", &source).await.unwrap();
    assert!(report.datasets[0].ok() && report.datasets[0].caught_up, "{report:?}");
}

#[tokio::test]
async fn a_copy_notes_its_source_and_when_it_caught_up_and_takes_in_what_was_superseded() {
    let (source, target) = (memory(), memory());
    let dataset = fill(&source).await;
    let json = async |store: &Arc<dyn Store>, key: &str| -> serde_json::Value {
        serde_json::from_slice(&store.record(key).await.unwrap().unwrap()).unwrap()
    };
    let superseded = async |store: &Arc<dyn Store>| {
        let pages = store.records("superseded/records/", None, 100).await.unwrap();
        let batches = pages.iter().flat_map(|page| serde_json::from_slice::<Vec<String>>(&page.value).unwrap());
        batches.filter(|batch| !batch.starts_with("checksum:")).collect::<BTreeSet<_>>()
    };
    let mut begun_us = None;
    for from in ["test://source/", "test://moved/"] {
        dataset.remove_batch("c").await.unwrap();
        let report =
            archive(from, &source).copy_to(&archive("test:target", &target), CopyOptions::default(), None).await;
        assert!(report.unwrap().datasets[0].caught_up);
        let record = json(&target, "copy/records").await;
        assert_eq!(record["source"], from);
        assert!(record["caught_up_us"].as_i64() >= record["begun_us"].as_i64(), "{record}");
        assert_eq!(*begun_us.get_or_insert(record["begun_us"].clone()), record["begun_us"], "one copy goes on");
        assert_eq!(json(&target, "superseded/records").await.get("unsettled"), None, "all records are there");
        assert!(!superseded(&source).await.is_empty());
        assert!(superseded(&source).await.is_subset(&superseded(&target).await));
        write_edition(&dataset, "c2").await;
    }
}

#[tokio::test]
async fn one_archive_under_two_names_is_found_out() {
    let store = memory();
    create(&store, spec()).await;
    let alias: Arc<dyn Store> = Arc::new(LimitedStore::stepwise(store.clone()));
    assert!(matches!(copy_all(&store, &alias).await.unwrap_err(), ArchiveError::SameArchive { .. }));
    assert_eq!(store.records("copy/", None, 10).await.unwrap(), vec![]);
}

/// A store that accepts only small chunks.
#[derive(Debug)]
struct Narrow(Arc<dyn Store>, usize);

#[async_trait]
impl Store for Narrow {
    fn capabilities(&self) -> Capabilities {
        Capabilities { chunk_bytes_max: self.1, ..self.0.capabilities() }
    }
    fn with_options(&self, options: &CallOptions) -> StoreResult<Arc<dyn Store>> {
        Ok(Arc::new(Self(self.0.with_options(options)?, self.1)))
    }
    fn with_visibility(&self, visibility: Visibility) -> Option<Arc<dyn Store>> {
        Some(Arc::new(Self(self.0.with_visibility(visibility)?, self.1)))
    }
    async fn commit(&self, dataset: &DatasetRef, commit: Commit) -> StoreResult<()> {
        commit.check_sizes("narrow", self.1)?;
        self.0.commit(dataset, commit).await
    }
    async fn scan(&self, dataset: &DatasetRef, scan: Scan) -> StoreResult<BoxStream<'static, StoreResult<Vec<Chunk>>>> {
        self.0.scan(dataset, scan).await
    }
    async fn fetch(&self, dataset: &DatasetRef, keys: Vec<ChunkKey>) -> StoreResult<Vec<Chunk>> {
        self.0.fetch(dataset, keys).await
    }
    async fn record(&self, key: &str) -> StoreResult<Option<Bytes>> {
        self.0.record(key).await
    }
    async fn records(&self, prefix: &str, after: Option<&str>, limit: usize) -> StoreResult<Vec<Record>> {
        self.0.records(prefix, after, limit).await
    }
    async fn create_slice(&self, dataset: &DatasetRef, slice: SliceId) -> StoreResult<()> {
        self.0.create_slice(dataset, slice).await
    }
    async fn drop_slice(&self, dataset: &DatasetRef, slice: SliceId, when: DropSlice) -> StoreResult<()> {
        self.0.drop_slice(dataset, slice, when).await
    }
    async fn slices(&self, dataset: &DatasetRef) -> StoreResult<Vec<SliceId>> {
        self.0.slices(dataset).await
    }
    async fn statistics(&self, dataset: &DatasetRef, slice: SliceId) -> StoreResult<Vec<TileStatistics>> {
        self.0.statistics(dataset, slice).await
    }
}

#[tokio::test]
async fn a_tile_with_a_chunk_too_large_for_the_target_is_refused_before_any_of_it_is_written() {
    let (source, below) = (memory(), memory());
    let dataset = create(&source, spec()).await;
    write(&dataset, &rows(&[(0, 1, 1)]), named("small")).await.unwrap();
    // Text that does not compress, in the same tile.
    let noise: String =
        (0..4_000u32).map(|n| char::from(b'!' + (n.wrapping_mul(2_654_435_761) >> 25) as u8 % 90)).collect();
    write(&dataset, &noted(&[(1, 2, 1)], &noise), named("large")).await.unwrap();
    let target: Arc<dyn Store> = Arc::new(Narrow(below.clone(), 1_000));
    let error = copy_all(&source, &target).await.unwrap_err();
    assert!(matches!(&error, ArchiveError::Store(StoreError::TooLarge { bytes_max: 1_000, .. })), "{error}");
    assert!(error.to_string().contains("cell 1 window 0"), "{error}");
    assert_eq!(chunks(below.as_ref(), &placed()).await, vec![]);
    // A chunk of exactly the maximum size is accepted.
    let largest = chunks(source.as_ref(), &placed()).await.iter().map(|c| c.head.len() + c.body.len()).max().unwrap();
    let target: Arc<dyn Store> = Arc::new(Narrow(memory(), largest));
    assert!(copy_one(&source, &target).await.ok());
    let target: Arc<dyn Store> = Arc::new(Narrow(memory(), largest - 1));
    assert!(matches!(copy_all(&source, &target).await, Err(ArchiveError::Store(StoreError::TooLarge { .. }))));
}

#[tokio::test]
async fn a_damaged_chunk_of_the_target_is_put_again_and_one_of_the_source_reported() {
    let (source, target) = (memory(), memory());
    fill(&source).await;
    copy_one(&source, &target).await;
    let mut hurt = chunks(target.as_ref(), &placed()).await.remove(3);
    hurt.body = hurt.body.iter().map(|byte| byte ^ 1).collect::<Vec<u8>>().into();
    let place = hurt.key.tile;
    put_chunks(target.as_ref(), &placed(), vec![hurt.clone()]).await;
    let report = copy_with(&source, &target, verify_only()).await.unwrap().datasets.remove(0);
    assert!(!report.ok() && report.tiles_differing == 1 && report.differences[0].tile == place, "{report:?}");
    assert_eq!((report.differences[0].differing, &report.differences[0].chunks[..]), (1, &[hurt.key.id][..]));
    assert!(copy_one(&source, &target).await.ok());
    assert_equal(&source, &target, "mended").await;

    put_chunks(source.as_ref(), &placed(), vec![hurt.clone()]).await;
    let fresh = memory();
    let report = copy_one(&source, &fresh).await;
    assert!(!report.ok() && report.tiles_differing == 0, "{report:?}");
    assert_eq!(report.damage.iter().map(|damage| damage.chunk).collect::<Vec<_>>(), [hurt.key.id]);
    assert_equal(&source, &fresh, "damage and all").await;

    // So is a chunk stored with another number of rows than its head has.
    let source = memory();
    fill(&source).await;
    let mut hurt = chunks(source.as_ref(), &placed()).await.remove(3);
    hurt.rows += 1;
    put_chunks(source.as_ref(), &placed(), vec![hurt.clone()]).await;
    let report = copy_one(&source, &memory()).await;
    let found: Vec<_> = report.damage.iter().map(|damage| (damage.tile, damage.chunk, damage.rows)).collect();
    assert_eq!(found, [(hurt.key.tile, hurt.key.id, u64::from(hurt.rows))]);
}

#[tokio::test]
async fn a_copy_of_a_copy_carries_on_and_a_moved_source_is_known_by_its_batches() {
    let (first, second, third) = (memory(), memory(), memory());
    let dataset = fill(&first).await;
    copy_one(&first, &second).await;
    copy_one(&second, &third).await;
    assert_equal(&first, &third, "twice copied").await;
    change(&dataset).await;
    let moved = archive("test:moved", &first);
    let report = moved.copy_to(&archive("test:target", &second), CopyOptions::default(), None).await.unwrap();
    assert!(report.datasets[0].ok());
    assert!(copy_one(&second, &third).await.ok());
    assert_equal(&first, &third, "twice again").await;
}

#[tokio::test]
async fn a_second_copy_into_the_dataset_ends_the_first() {
    let (source, target) = (memory(), memory());
    fill(&source).await;
    let (from, to) = (source.clone(), target.clone());
    let action: Action = Box::new(move || {
        let (from, to) = (from.clone(), to.clone());
        Box::pin(async move { drop(copy_one(&from, &to).await) })
    });
    let busy = Interposed::at(source.clone(), 9, action);
    let error = copy_all(&busy, &target).await.unwrap_err();
    assert!(matches!(error, ArchiveError::CopyRace { .. }), "{error}");
    assert_equal(&source, &target, "by the second").await;
}

/// The second one has done no more than to begin.
#[tokio::test]
async fn a_copy_ends_as_soon_as_a_second_one_has_begun() {
    for at in [9, 12] {
        let (source, target) = (memory(), memory());
        let dataset = fill(&source).await;
        copy_one(&source, &target).await;
        write(&dataset, &rows(&[(0, 1, 0)]), named("late")).await.unwrap();
        let (from, to) = (source.clone(), target.clone());
        let action: Action = Box::new(move || {
            let (from, begun) = (from.clone(), AtomicBool::new(false));
            let second: Arc<dyn Store> = Arc::new(FaultyStore::new(to.clone(), move |call| {
                let claims = |commit: &Commit| commit.before.iter().any(|put| put.key == "copy/records");
                let refused = || StoreError::Refused { engine: "test", reason: "the process is dead".into() };
                match begun.swap(begun.load(Ordering::SeqCst) || call.commit.is_some_and(claims), Ordering::SeqCst) {
                    true => Decision::FailBefore(refused()),
                    false => Decision::Pass,
                }
            }));
            Box::pin(async move { assert!(copy_all(&from, &second).await.is_err()) })
        });
        let busy = Interposed::at(source.clone(), at, action);
        let error = copy_all(&busy, &target).await.unwrap_err();
        assert!(matches!(error, ArchiveError::CopyRace { .. }), "{at}: {error}");
        assert_eq!(open(&target, "records").await.batch("late").await.unwrap(), None, "{at}: by the first");
        assert!(copy_one(&source, &target).await.ok());
        assert_equal(&source, &target, "by a third").await;
    }
}

#[tokio::test]
async fn a_batch_of_many_chunks_is_finished_with_all_of_its_lists() {
    let (source, target) = (memory(), memory());
    let dataset = create(&source, spec()).await;
    let places: Vec<_> = (0..3_000).map(|tag| (tag, tag, tag)).collect();
    write(&dataset, &rows(&places), named("many")).await.unwrap();
    let lists: usize = source.records("part/", None, 100).await.unwrap().iter().map(|list| list.value.len()).sum();
    assert!(lists > 64 << 10, "lists of {lists} bytes go in one step with the record of the batch");
    assert!(copy_one(&source, &target).await.ok());
    assert_equal(&source, &target, "with all lists").await;
    assert_sound(&open(&target, "records").await).await;
}

#[tokio::test]
async fn progress_counts_every_tile_and_all_bytes() {
    let (source, target) = (memory(), memory());
    fill(&source).await;
    let seen = std::sync::Mutex::new(Vec::new());
    let report = archive("test:source", &source)
        .copy_to(
            &archive("test:target", &target),
            CopyOptions::default(),
            Some(&|progress| seen.lock().unwrap().push(progress.clone())),
        )
        .await
        .unwrap();
    let (seen, report) = (seen.into_inner().unwrap(), &report.datasets[0]);
    let verified = seen.iter().rfind(|progress| progress.verifying).unwrap();
    assert_eq!((verified.tiles_done, verified.bytes), (verified.tiles_total, report.bytes_verified));
    assert_eq!(verified.tiles_done, report.tiles_verified);
    assert_eq!(report.bytes_copied, report.bytes_verified);
    // Two passes, and then all is verified, each tile by tile.
    let tiles = report.tiles_verified;
    let counts = |pass: u32, verifying: bool| (1..=tiles).map(move |done| (pass, verifying, done, tiles));
    let expected: Vec<_> = counts(1, false).chain(counts(2, false)).chain(counts(0, true)).collect();
    let counted = seen.iter().map(|now| (now.pass, now.verifying, now.tiles_done, now.tiles_total));
    assert_eq!(counted.collect::<Vec<_>>(), expected);
    assert!(seen.iter().all(|now| now.dataset == spec().name));
    let copied = seen.iter().rfind(|progress| !progress.verifying).unwrap();
    assert_eq!(copied.bytes, report.bytes_copied);
}

#[tokio::test]
async fn a_copy_ends_after_its_passes_and_the_next_one_goes_on() {
    for (passes_max, passes, caught_up) in [(0, 1, false), (1, 1, false), (2, 2, true), (9, 2, true)] {
        let (source, target) = (memory(), memory());
        fill(&source).await;
        let options = CopyOptions { passes_max, ..CopyOptions::default() };
        let report = copy_with(&source, &target, options.clone()).await.unwrap().datasets.remove(0);
        assert_eq!((report.passes, report.caught_up, report.ok()), (passes, caught_up, true), "{passes_max}");
        let again = copy_with(&source, &target, options).await.unwrap().datasets.remove(0);
        assert_eq!((again.passes, again.caught_up, again.chunks_copied), (1, true, 0), "{passes_max}");
        assert_equal(&source, &target, "in the end").await;
    }
}

#[tokio::test]
async fn a_comparison_counts_what_is_missing_superfluous_and_left() {
    let (source, target) = (memory(), memory());
    let dataset = create(&source, spec()).await;
    // Two tiles, of which one gets six chunks.
    for row in 0..6 {
        write(&dataset, &rows(&[(row, row, 0)]), named(&row.to_string())).await.unwrap();
    }
    write(&dataset, &rows(&[(0, 100, 1)]), named("other")).await.unwrap();
    copy_one(&source, &target).await;
    let all = chunks(source.as_ref(), &placed()).await;
    let (own, others): (Vec<Chunk>, Vec<Chunk>) = all.into_iter().partition(|chunk| chunk.key.tile.cell.0 == 0);
    let compared = async || copy_with(&source, &target, verify_only()).await.unwrap().datasets.remove(0);
    let same = compared().await;
    assert!(same.ok() && same.verify_only && same.passes == 0, "{same:?}");
    assert_eq!((same.tiles_verified, same.chunks_verified, same.rows_verified), (2, 7, 7));
    assert_eq!((same.dataset.as_str(), same.batches), ("records", 7));

    let keys = |chunks: &[Chunk]| chunks.iter().map(|chunk| chunk.key).collect::<Vec<_>>();
    let remove = Commit { remove: keys(&own), ..Commit::default() };
    target.commit(&placed(), remove).await.unwrap();
    let report = compared().await;
    assert!(!report.ok(), "{report:?}");
    assert_eq!((report.tiles_differing, report.tiles_verified, report.chunks_verified), (1, 2, 1));
    let difference = &report.differences[0];
    assert_eq!((difference.missing, difference.superfluous, difference.differing), (6, 0, 0));
    assert_eq!((difference.tile, difference.chunks.len()), (own[0].key.tile, 4), "four of them are named");

    // What the source has no more is superfluous; what it did not finish when it was copied is left and not missing.
    let gone = Commit { remove: keys(&others), ..Commit::default() };
    source.commit(&placed(), gone).await.unwrap();
    put_chunks(target.as_ref(), &placed(), own.clone()).await;
    write(&dataset, &rows(&[(0, 200, 2), (1, 201, 2)]), named("new")).await.unwrap();
    let report = compared().await;
    assert_eq!((report.tiles_differing, report.batches_left, report.batches_foreign, report.batches), (1, 1, 0, 7));
    let difference = &report.differences[0];
    assert_eq!((difference.missing, difference.superfluous, difference.differing), (0, 1, 0));
    assert_eq!(difference.chunks, [others[0].key.id]);
}

#[tokio::test]
async fn a_dataset_with_anything_in_it_does_not_become_a_copy() {
    let source = memory();
    fill(&source).await;
    let refusal = async |target: &Arc<dyn Store>| copy_all(&source, target).await.unwrap_err().to_string();
    let (chunks, unfinished) = (memory(), memory());
    write_edition(&create(&chunks, spec()).await, "a1").await;
    for kind in ["batch", "part"] {
        for record in chunks.records(&format!("{kind}/records/"), None, 10).await.unwrap() {
            put_record(&chunks, &record.key, None).await;
        }
    }
    assert!(refusal(&chunks).await.contains("it was not made by a copy and has chunks"));
    create(&unfinished, spec()).await;
    write_half(&unfinished, "half").await;
    for slice in unfinished.slices(&placed()).await.unwrap() {
        unfinished.drop_slice(&placed(), slice, DropSlice::default()).await.unwrap();
    }
    assert!(refusal(&unfinished).await.contains("it was not made by a copy and has batches"));
}

async fn put_record(store: &Arc<dyn Store>, key: &str, value: Option<Bytes>) {
    let put = RecordPut { key: key.to_owned(), value, expect: Expect::Any };
    store.commit(&placed(), Commit { before: vec![put], ..Commit::default() }).await.unwrap();
}

#[tokio::test]
async fn a_dataset_with_another_history_of_columns_does_not_become_a_copy() {
    let late = |name: &str| AddedColumn { field: Field::new(name, DataType::Int64, true), default: None };
    let source = memory();
    let dataset = create(&source, spec()).await;
    dataset.add_columns(vec![late("late")]).await.unwrap();
    // The same columns from the beginning; the same as the source had at first, which is brought up; another column.
    let from_the_beginning = DatasetSpec { schema: dataset.spec().schema.clone(), ..spec() };
    // As many columns as the source had at first, one of another name.
    let mut fields = spec().schema.fields().to_vec();
    fields[3] = Arc::new(Field::new("y", DataType::Float64, true));
    let renamed = DatasetSpec { schema: Arc::new(Schema::new(fields)), ..spec() };
    for (target_spec, more, refused) in [
        (renamed, None, Some("on the target with another ")),
        (from_the_beginning, None, Some("another history of added columns")),
        (spec(), None, None),
        (spec(), Some(vec![late("late")]), None),
        (spec(), Some(vec![late("other")]), Some("on the target with another ")),
        (spec(), Some(vec![late("late"), late("later")]), Some("on the target with another ")),
    ] {
        let target = memory();
        let there = create(&target, target_spec).await;
        for column in more.into_iter().flatten() {
            there.add_columns(vec![column]).await.unwrap();
        }
        match (copy_all(&source, &target).await, refused) {
            (Ok(_), None) => assert_equal(&source, &target, "the definition").await,
            (Err(error), Some(reason)) => assert!(error.to_string().contains(reason), "{error}"),
            (result, _) => panic!("{result:?}"),
        }
    }
}

#[tokio::test]
async fn one_file_under_two_urls_is_one_archive_and_archives_in_memory_are_apart() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.db");
    std::fs::write(&file, "").unwrap();
    let (one, two) = (
        format!("sqlite:{}", file.display()),
        format!("sqlite:{}/../{}", folder.path().display(), {
            let name = folder.path().file_name().unwrap().to_string_lossy().into_owned();
            format!("{name}/a.db")
        }),
    );
    let beside = format!("sqlite:{}", folder.path().join("b.db").display());
    let hosts = "cassandra://user@h1,h2/survey";
    for (from, to, same) in [
        (one.as_str(), two.as_str(), true),
        (&one, &beside, false),
        (hosts, "cassandra://h2,h1/survey", true),
        (hosts, "cassandra://h2,h1/other", false),
        ("memory:", "memory:", false),
        (&one, "memory:", false),
    ] {
        let (source, target) = (memory(), memory());
        create(&source, spec()).await;
        let result = archive(from, &source).copy_to(&archive(to, &target), CopyOptions::default(), None).await;
        match result {
            Ok(_) => assert!(!same, "{from} {to}"),
            Err(error) => assert!(same && matches!(error, ArchiveError::SameArchive { .. }), "{from} {to}: {error}"),
        }
    }
}

#[tokio::test]
async fn notes_of_retired_slices_are_those_of_the_source() {
    let (source, target) = (memory(), memory());
    let dataset = fill(&source).await;
    dataset.retire(RetireLimit::Before(Instant::NativeTicks(2 * HOUR)), false).await.unwrap();
    copy_one(&source, &target).await;
    assert_equal(&source, &target, "with a note").await;
    let note = target.records("retired/records/", None, 10).await.unwrap().remove(0);
    put_record(&target, "retired/records/7", Some(note.value.clone())).await;
    put_record(&target, &note.key, None).await;
    copy_one(&source, &target).await;
    assert_equal(&source, &target, "notes of its own").await;
    // Retired once more, its note is another.
    write_edition(&dataset, "h1").await;
    dataset.retire(RetireLimit::Before(Instant::NativeTicks(2 * HOUR)), false).await.unwrap();
    let report = copy_one(&source, &target).await;
    assert!(report.ok(), "{report:?}");
    assert_equal(&source, &target, "a later note").await;
}

#[tokio::test]
async fn a_slice_that_began_anew_after_it_was_retired_is_copied() {
    let (source, target) = (memory(), memory());
    let dataset = fill(&source).await;
    dataset.retire(RetireLimit::Before(Instant::NativeTicks(2 * HOUR)), false).await.unwrap();
    for (batch, copied) in [("h1", "all of it"), ("i1", "what came to it later")] {
        write_edition(&dataset, batch).await;
        let report = copy_one(&source, &target).await;
        assert!(report.ok() && report.caught_up && report.slices_dropped == 0, "{report:?}");
        assert_equal(&source, &target, copied).await;
    }
}

/// A source whose one tile is rewritten before each of its calls, once a copy is on its way.
#[tokio::test]
async fn a_tile_that_is_rewritten_again_and_again_has_moved_and_does_not_differ() {
    let (source, target) = (memory(), memory());
    let dataset = create(&source, spec()).await;
    write(&dataset, &rows(&[(0, 1, 0)]), named("a")).await.unwrap();
    copy_one(&source, &target).await;
    let (other, count) = (source.clone(), Arc::new(std::sync::atomic::AtomicI64::new(10)));
    let action: Action = Box::new(move || {
        let (other, id) = (other.clone(), count.fetch_add(1, Ordering::SeqCst));
        Box::pin(async move {
            let dataset = open(&other, "records").await;
            write(&dataset, &rows(&[(0, id, 0)]), named(&id.to_string())).await.unwrap();
            consolidate(&dataset).await;
        })
    });
    let busy = Interposed::when(source.clone(), |number, _| number > 5, action);
    let report = copy_one(&busy, &target).await;
    assert_eq!((report.tiles_moved, report.tiles_differing, &report.differences[..]), (1, 0, &[][..]), "{report:?}");
    assert!(report.ok() && !report.caught_up, "{report:?}");
    let report = copy_one(&source, &target).await;
    assert_eq!((report.tiles_moved, report.ok(), report.caught_up), (0, true, true), "{report:?}");
    assert_equal(&source, &target, "once it rests").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_tile_that_was_rewritten_is_exchanged_in_parts_and_loses_its_old_chunks_with_the_last() {
    let (source, target) = (memory(), memory());
    let dataset = create(&source, spec()).await;
    for batch in 0..75_i64 {
        let row =
            |row: i64| noted(&[(row * 100 + batch, row * 100 + batch, 0)], &noise((batch * 2 + row) as u64, 75_000));
        dataset.write(input([row(0), row(1)]), named(&batch.to_string())).await.unwrap();
    }
    copy_one(&source, &target).await;
    let old = chunks(source.as_ref(), &placed()).await.len() as u64;
    consolidate(&dataset).await;
    let new = chunks(source.as_ref(), &placed()).await;
    let size = |chunks: &[Chunk]| chunks.iter().map(|chunk| chunk.head.len() + chunk.body.len()).sum::<usize>();
    assert!(size(&new) > 8 << 20 && new.len() > 4, "the tile fits into two commits: {} bytes", size(&new));
    let commits = Arc::new(std::sync::Mutex::new(Vec::new()));
    let noted = commits.clone();
    let watched = FaultyStore::new(target.clone(), move |call| {
        if let Some(commit) = call.commit.filter(|commit| !commit.put.is_empty() || !commit.remove.is_empty()) {
            let size = commit.put.iter().map(|chunk| chunk.head.len() + chunk.body.len()).sum::<usize>();
            noted.lock().unwrap().push((size, commit.remove.len() as u64));
        }
        Decision::Pass
    });
    let watched: Arc<dyn Store> = Arc::new(watched);
    let report = copy_one(&source, &watched).await;
    assert_eq!((report.chunks_copied, report.chunks_removed), (new.len() as u64, old), "{report:?}");
    assert_eq!((report.bytes_copied, report.rows_copied), (size(&new) as u64, 150));
    assert!(report.ok() && report.caught_up, "{report:?}");
    let commits = commits.lock().unwrap().clone();
    assert!(commits.iter().all(|(bytes, _)| *bytes <= 4 << 20), "{commits:?}");
    let (last, others) = commits.split_last().unwrap();
    assert!(others.len() >= 2 && others.iter().all(|(_, removed)| *removed == 0) && last.1 == old, "{commits:?}");
    assert_equal(&source, &target, "exchanged").await;
}

#[tokio::test]
async fn datasets_are_copied_that_were_named_and_reported_by_name() {
    let (source, target) = (memory(), memory());
    for name in ["c", "a", "b"] {
        let name = chronotile_types::DatasetName::new(name).unwrap();
        write_edition(&create(&source, DatasetSpec { name, ..spec() }).await, "a1").await;
    }
    let names = |report: &CopyReport| report.datasets.iter().map(|copied| copied.dataset.clone()).collect::<Vec<_>>();
    let some = Some(vec!["b".to_owned(), "a".to_owned(), "b".to_owned()]);
    let report = copy_with(&source, &target, CopyOptions { datasets: some, ..CopyOptions::default() }).await.unwrap();
    assert_eq!(names(&report), ["a", "b"]);
    assert_eq!(archive("test:target", &target).dataset_names().await.unwrap(), ["a", "b"]);
    assert_eq!(names(&copy_all(&source, &target).await.unwrap()), ["a", "b", "c"]);
}

/// Marking a batch relies on this: a put may expect a record to be absent and leave it absent.
#[tokio::test(flavor = "multi_thread")]
async fn an_absent_record_may_be_expected_and_left_absent() {
    for (store, _folder) in engines() {
        let put = |expect| RecordPut { key: "intent/records/x".into(), value: None, expect };
        let commit = |put| Commit { before: vec![put], ..Commit::default() };
        store.commit(&placed(), commit(put(Expect::Absent))).await.unwrap();
        let other = put(Expect::Is(Bytes::from_static(b"x")));
        assert!(matches!(store.commit(&placed(), commit(other)).await.unwrap_err(), StoreError::RecordConflict { .. }));
    }
}

/// A consolidated chunk brings rows of batches that the source has begun to replace. The copy has no record of these,
/// so its readers must not see their rows, and a consolidation of the copy must not remove them as leftovers of a
/// write.
#[tokio::test]
async fn a_consolidated_chunk_shows_nothing_of_a_batch_that_is_being_replaced() {
    const DAY_US: i64 = 86_400_000_000;
    let (source, target) = (memory(), memory());
    let old = archive("test:", &source).with_machine_time(|| machine_us() - 3 * DAY_US);
    let dataset = old.create(spec(), true).await.unwrap();
    for note in ["a1", "b1"] {
        write_edition(&dataset, note).await;
    }
    let early = ConsolidateOptions { before: Some(Instant::NativeTicks(3 * HOUR)), ..ConsolidateOptions::default() };
    dataset.consolidate(early, None).await.unwrap();
    let half = Archive::on("test:", dying_in_a_write(&source)).dataset("records").await.unwrap();
    let large: Vec<RecordBatch> = (0..2).map(|n| spread_rows(n * 10, 10, 2, &"a2".repeat(80_000))).collect();
    half.write(input(large), tight(replacing("a"))).await.unwrap_err();
    for look in 0..2 {
        let report = copy_one(&source, &target).await;
        assert!(report.ok() && report.caught_up, "{report:?}");
        assert_eq!(report.batches_unfinished, ["a"]);
        let copied = open(&target, "records").await;
        let notes: BTreeSet<String> = id_notes(&read_all(&copied).await).into_iter().map(|(_, note)| note).collect();
        assert_eq!(notes, BTreeSet::from(["b1".to_owned()]), "look {look}");
        consolidate(&copied).await;
    }
    dataset.remove_batch("a").await.unwrap();
    write_edition(&dataset, "a1").await;
    let report = copy_one(&source, &target).await;
    assert!(report.ok() && report.caught_up, "{report:?}");
    let copied = open(&target, "records").await;
    assert_eq!(id_notes(&read_all(&copied).await), id_notes(&read_all(&dataset).await));
}

/// Chunks are copied before the records of their batches and may be years old: a consolidation must not remove them
/// as leftovers of a write that was interrupted long ago.
#[tokio::test(flavor = "multi_thread")]
async fn consolidation_of_a_target_takes_nothing_of_a_copy_that_was_cut_off() {
    const THREE_DAYS_US: i64 = 3 * 86_400_000_000;
    let mut beside_chunks_without_records = 0;
    for call in 0.. {
        let (source, target) = (memory(), memory());
        let old = archive("test:", &source).with_machine_time(move || machine_us() - THREE_DAYS_US);
        let dataset = old.create(spec(), true).await.unwrap();
        for note in ["a1", "b1", "c1"] {
            write_edition(&dataset, note).await;
        }
        let (to, struck) = dying(&target, Fault { call, after: true, on_target: true });
        let _ = copy_all(&source, &to).await;
        if let Ok(copied) = archive("test:", &target).dataset("records").await {
            let held = chunks(target.as_ref(), &placed()).await.len();
            let known = copied.batches().await.unwrap().len();
            beside_chunks_without_records += usize::from(held > 0 && known == 0);
            consolidate(&copied).await;
            assert_eq!(chunks(target.as_ref(), &placed()).await.is_empty(), held == 0, "call {call}");
        }
        let report = copy_one(&source, &target).await;
        assert!(report.ok() && report.caught_up, "call {call}: {report:?}");
        let copied = open(&target, "records").await;
        assert_eq!(id_notes(&read_all(&copied).await), id_notes(&read_all(&dataset).await), "call {call}");
        if !struck.load(Ordering::SeqCst) {
            break;
        }
    }
    assert!(beside_chunks_without_records > 0);
}
