//! Writes, replacements, removals and consolidations that are interrupted at any call, then repeated.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow_array::RecordBatch;
use chronotile_archive::{ArchiveError, ConsolidateOptions, Dataset, ReadRequest, Result, WriteOptions};
use chronotile_memory::MemoryStore;
use chronotile_store::{Decision, FaultyStore, Store, StoreError};

use crate::common::*;

/// Where the fault of a run occurs: at the call of this number, before or after it takes effect.
#[derive(Clone, Copy, Debug)]
struct Fault {
    call: u64,
    after: bool,
    /// Whether all later calls fail too, as if the process had died.
    dead: bool,
}

/// A store that fails, and a flag that tells whether it has.
fn failing(inner: Arc<dyn Store>, fault: Fault) -> (Arc<dyn Store>, Arc<AtomicBool>) {
    let struck = Arc::new(AtomicBool::new(false));
    let strikes = struck.clone();
    let faulty = FaultyStore::new(inner, move |call| {
        let refused = || StoreError::Refused { engine: "test", reason: "the fault of this test".into() };
        if call.number < fault.call {
            return Decision::Pass;
        }
        match (strikes.swap(true, Ordering::SeqCst), fault.dead, fault.after) {
            (true, false, _) => Decision::Pass,
            (false, _, true) => Decision::FailAfter("the fault of this test".into()),
            _ => Decision::FailBefore(refused()),
        }
    });
    (Arc::new(faulty), struck)
}

/// Ids and notes of all rows, ascending.
type Content = Vec<(i64, String)>;

/// The operation to interrupt.
#[derive(Clone, Copy, Debug)]
enum Work {
    Write,
    Replace,
    ReplaceConsolidated,
    Remove,
    RemoveConsolidated,
    Consolidate,
    LargeWrite,
    LargeReplace,
}

const SMALL: [Work; 6] =
    [Work::Write, Work::Replace, Work::ReplaceConsolidated, Work::Remove, Work::RemoveConsolidated, Work::Consolidate];

fn others() -> RecordBatch {
    spread_rows(1_000, 30, 3, "other")
}

fn old() -> RecordBatch {
    spread_rows(0, 30, 4, "old")
}

fn new() -> RecordBatch {
    spread_rows(10, 30, 5, "new")
}

/// Rows of several megabytes, so that the smallest buffer overflows twice.
fn large(note: &str) -> Vec<RecordBatch> {
    (0..2).map(|part| spread_rows(part * 10, 10, 2, &note.repeat(40_000))).collect()
}

impl Work {
    /// Writes another batch, and the batch that the operation works on unless it is new.
    async fn prepare(self, dataset: &Dataset) {
        write(dataset, &others(), named("other")).await.unwrap();
        match self {
            Self::Write | Self::LargeWrite => {}
            _ => drop(write(dataset, &old(), named("mine")).await.unwrap()),
        }
        if matches!(self, Self::ReplaceConsolidated | Self::RemoveConsolidated | Self::LargeReplace) {
            assert!(dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap().tiles > 0);
        }
    }

    async fn run(self, dataset: &Dataset) -> Result<()> {
        match self {
            Self::Write => write(dataset, &new(), named("mine")).await.map(drop),
            Self::Replace | Self::ReplaceConsolidated => write(dataset, &new(), replacing("mine")).await.map(drop),
            Self::LargeWrite => dataset.write(input(large("new")), tight(named("mine"))).await.map(drop),
            Self::LargeReplace => dataset.write(input(large("new")), tight(replacing("mine"))).await.map(drop),
            Self::Remove | Self::RemoveConsolidated => match dataset.remove_batch("mine").await {
                // The first attempt had succeeded.
                Err(ArchiveError::BatchNotFound { .. }) => Ok(()),
                result => result.map(drop),
            },
            Self::Consolidate => dataset.consolidate(ConsolidateOptions::default(), None).await.map(drop),
        }
    }

    /// Expected ids and notes before the operation and after it.
    fn states(self) -> (Content, Content) {
        let both = |parts: &[RecordBatch]| {
            let mut all: Vec<_> = parts.iter().chain([&others()]).flat_map(id_notes).collect();
            all.sort();
            all
        };
        match self {
            Self::Write => (both(&[]), both(&[new()])),
            Self::LargeWrite => (both(&[]), both(&large("new"))),
            Self::LargeReplace => (both(&[old()]), both(&large("new"))),
            Self::Replace | Self::ReplaceConsolidated => (both(&[old()]), both(&[new()])),
            Self::Remove | Self::RemoveConsolidated => (both(&[old()]), both(&[])),
            Self::Consolidate => (both(&[old()]), both(&[old()])),
        }
    }
}

/// Interrupts the operation at one call, checks what readers see, repeats the operation, and checks again. Returns
/// whether the fault occurred.
async fn cut_off(work: Work, stepwise: bool, fault: Fault) -> bool {
    let inner: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let sound = create(&inner, spec()).await;
    work.prepare(&sound).await;
    // The reader remembers which batches count; this must become out of date when the operation begins.
    assert_eq!(id_notes(&read_all(&sound).await), work.states().0);
    let (faulty, struck) = failing(inner.clone(), fault);
    let store: Arc<dyn Store> = if stepwise { Arc::new(LimitedStore::stepwise(faulty)) } else { faulty };
    // Opening makes calls of its own; faults in those do not concern the operation.
    let Ok(dataset) = chronotile_archive::Archive::on("test:", store)
        .with_superseded_kept(std::time::Duration::ZERO)
        .dataset("records")
        .await
    else {
        return true;
    };
    let first = work.run(&dataset).await;
    if !struck.load(Ordering::SeqCst) {
        first.unwrap();
        return false;
    }
    let context = format!("{work:?} stepwise={stepwise} {fault:?}, first try: {first:?}");
    let (before, after) = work.states();
    let seen = id_notes(&read_all(&sound).await);
    assert!([&before, &after].contains(&&seen), "part of a batch is seen, or none of it: {context}\n{seen:?}");
    if first.is_ok() {
        assert_eq!(seen, after, "{context}");
    }
    let again = if fault.dead { &sound } else { &dataset };
    for note in ["first repeat", "second repeat"] {
        work.run(again).await.unwrap_or_else(|error| panic!("{note}: {error}, {context}"));
        assert_eq!(id_notes(&read_all(&sound).await), after, "{note}: {context}");
        assert_eq!(id_notes(&read_all(&sound).await), after, "{note}: {context}");
        assert_eq!(sound.count(ReadRequest::default()).await.unwrap(), after.len() as u64, "{note}: {context}");
    }
    let report = sound.verify(None).await.unwrap();
    assert_eq!((report.damage, report.batches_unfinished), (vec![], 0), "{context}");
    sound.consolidate(ConsolidateOptions::default(), None).await.unwrap();
    assert_eq!(id_notes(&read_all(&sound).await), after, "after a consolidation: {context}");
    true
}

async fn cut_off_everywhere(work: Work, stepwise: bool) -> u64 {
    for call in 0.. {
        let mut struck = false;
        for (after, dead) in [(false, false), (false, true), (true, false), (true, true)] {
            struck |= cut_off(work, stepwise, Fault { call, after, dead }).await;
        }
        if !struck {
            return call;
        }
    }
    unreachable!("the work ends")
}

#[tokio::test]
async fn work_cut_off_at_any_call_and_repeated_happens_once() {
    for work in SMALL {
        let calls = cut_off_everywhere(work, false).await;
        assert!(calls >= 3, "{work:?} made only {calls} calls, so nothing was tested");
    }
}

#[tokio::test]
async fn work_cut_off_between_the_steps_of_a_commit_and_repeated_happens_once() {
    for work in SMALL {
        let calls = cut_off_everywhere(work, true).await;
        assert!(calls >= 10, "{work:?} made only {calls} calls, so nothing was tested");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_of_many_steps_cut_off_and_repeated_happens_once() {
    for work in [Work::LargeWrite, Work::LargeReplace] {
        let calls = cut_off_everywhere(work, false).await;
        assert!(calls >= 5, "{work:?} made only {calls} calls, so it had not many steps");
    }
}

/// Interrupts a write of several steps after the first, and returns the handle and the wrapped store.
async fn half_written(batch: WriteOptions, rows: Vec<RecordBatch>, store: &Arc<dyn Store>) {
    let sound = create(store, spec()).await;
    let put_before = chunks(store.as_ref(), &placed()).await.len();
    for call in 0.. {
        let (faulty, struck) = failing(store.clone(), Fault { call, after: true, dead: true });
        let dataset = create_on(&faulty).await;
        let Some(dataset) = dataset else { continue };
        let result = dataset.write(input(rows.clone()), tight(batch.clone())).await;
        assert!(struck.load(Ordering::SeqCst) && result.is_err());
        if chunks(store.as_ref(), &placed()).await.len() > put_before {
            break;
        }
    }
    assert_eq!(sound.verify(None).await.unwrap().batches_unfinished, 1);
}

async fn create_on(store: &Arc<dyn Store>) -> Option<Dataset> {
    chronotile_archive::Archive::on("test:", store.clone()).dataset("records").await.ok()
}

#[tokio::test(flavor = "multi_thread")]
async fn other_content_takes_an_unfinished_batch_over() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    half_written(named("mine"), large("cut off"), &store).await;
    let dataset = open(&store, "records").await;
    assert_eq!(read_all(&dataset).await.num_rows(), 0);
    assert!(write(&dataset, &new(), named("mine")).await.unwrap().stored);
    assert_eq!(id_notes(&read_all(&dataset).await), id_notes(&new()));
    assert_sound(&dataset).await;
    assert_eq!(chunks(store.as_ref(), &placed()).await.len(), tiles(&new()), "chunks of the first try are left");
}

fn tiles(rows: &RecordBatch) -> usize {
    let t = rows.column(0).as_any().downcast_ref::<arrow_array::TimestampMicrosecondArray>().unwrap().clone();
    let mut tiles: Vec<_> = t.values().iter().zip(integers(rows, "tag")).map(|(t, tag)| (t / HOUR, tag)).collect();
    tiles.sort_unstable();
    tiles.dedup();
    tiles.len()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replacement_that_was_cut_off_still_needs_the_word_replace_for_new_content() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let dataset = create(&store, spec()).await;
    write(&dataset, &old(), named("mine")).await.unwrap();
    half_written(replacing("mine"), large("cut off"), &store).await;
    let error = write(&dataset, &new(), named("mine")).await.unwrap_err();
    assert!(matches!(error, ArchiveError::BatchDiffers { .. }), "{error}");
    // What was stored stays.
    assert!(!write(&dataset, &old(), named("mine")).await.unwrap().stored);
    assert_eq!(id_notes(&read_all(&dataset).await), id_notes(&old()));
    assert!(!write(&dataset, &old(), named("mine")).await.unwrap().stored);
    assert_sound(&dataset).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unfinished_batch_is_listed_and_can_be_removed() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    half_written(named("mine"), large("cut off"), &store).await;
    let dataset = open(&store, "records").await;
    let listed = dataset.batches().await.unwrap();
    assert_eq!(listed.iter().map(|b| (b.key.as_deref(), b.finished)).collect::<Vec<_>>(), [(Some("mine"), false)]);
    assert!(!dataset.batch("mine").await.unwrap().unwrap().finished);
    dataset.remove_batch("mine").await.unwrap();
    assert_eq!(dataset.batch("mine").await.unwrap(), None);
    assert_eq!(chunks(store.as_ref(), &placed()).await, vec![]);
    assert!(matches!(dataset.remove_batch("mine").await, Err(ArchiveError::BatchNotFound { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn consolidation_leaves_unfinished_batches_alone() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let dataset = create(&store, spec()).await;
    write(&dataset, &others(), named("other")).await.unwrap();
    write(&dataset, &old(), named("old")).await.unwrap();
    half_written(named("mine"), large("cut off"), &store).await;
    dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap();
    dataset.remove_batch("mine").await.unwrap();
    let mut expected = [id_notes(&others()), id_notes(&old())].concat();
    expected.sort();
    assert_eq!(id_notes(&read_all(&dataset).await), expected);
    assert_sound(&dataset).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unnamed_write_that_fails_leaves_nothing_behind() {
    for (store, _folder) in engines() {
        let dataset = create(&store, spec()).await;
        let mut batches = input(large("lost"));
        batches.push(Err(arrow_schema::ArrowError::ComputeError("the producer failed".into())));
        let error = dataset.write(batches, tight(WriteOptions::default())).await.unwrap_err();
        assert!(matches!(error, ArchiveError::Source(_)), "{error}");
        assert_eq!(chunks(store.as_ref(), &placed()).await, vec![]);
        assert_eq!(dataset.batches().await.unwrap(), vec![]);
        assert_eq!(store.records("part/", None, 10).await.unwrap(), vec![]);
    }
}

/// A removal takes the batch away from a write between its chunks and its record, by a clock that is behind. The write goes on with chunks
/// of its own: those of its first try are not among them when they are taken away.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_lost_its_batch_on_the_way_goes_on_with_other_chunks() {
    let memory: Arc<dyn Store> = Arc::new(MemoryStore::new());
    create(&memory, spec()).await;
    let (below, done) = (memory.clone(), AtomicBool::new(false));
    let robbed = FaultyStore::new(memory.clone(), move |call| {
        let mut after = call.commit.into_iter().flat_map(|commit| &commit.after);
        if after.any(|put| put.key.starts_with("batch/")) && !done.swap(true, Ordering::SeqCst) {
            let store: Arc<dyn Store> = Arc::new(LimitedStore::stepwise(below.clone()));
            let calls = std::sync::atomic::AtomicI64::new(0);
            let behind = move || {
                let now = machine_us();
                // Set back by ten seconds after the engine was asked for the time.
                if calls.fetch_add(1, Ordering::SeqCst) == 0 { now } else { now - 10_000_000 }
            };
            let remove = async move {
                let archive = chronotile_archive::Archive::on("test:", store).with_machine_time(behind);
                let dataset = archive.dataset("records").await.unwrap();
                assert_eq!(dataset.remove_batch("mine").await.unwrap(), 0);
            };
            on_other_thread(remove);
        }
        Decision::Pass
    });
    let store: Arc<dyn Store> = Arc::new(LimitedStore::stepwise(Arc::new(robbed)));
    let dataset = open(&store, "records").await;
    assert!(write(&dataset, &new(), named("mine")).await.unwrap().stored);
    for _ in 0..2 {
        assert_eq!(id_notes(&read_all(&dataset).await), id_notes(&new()));
        dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap();
    }
    assert_sound(&dataset).await;
}
