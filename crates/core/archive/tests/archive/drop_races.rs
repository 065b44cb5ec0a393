//! Slices that are moved elsewhere while others change them: every change between any two calls of a move, and the
//! steps of a move between any two calls of a change.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use chronotile_archive::{ArchiveError, ConsolidateOptions, Dataset, ReadRequest, RetireLimit, WriteOptions};
use chronotile_memory::MemoryStore;
use chronotile_store::{Outcome, Store};
use chronotile_types::{Instant, SliceId};
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::common::*;
use crate::interposed::Interposed;

/// What another process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// Writes a batch.
    Write,
    /// Ends a write whose chunks are already durable.
    End,
    Replace,
    Remove,
    Consolidate,
    /// Drops the slice whatever it contains, and reports the number of rows.
    Retire,
    /// Moves the slice elsewhere: reads it, then drops it if it has not changed.
    Move,
    /// Reads the slice for such a move.
    Look,
    /// Drops the slice if it is as it was when it was read.
    Drop,
}

/// The rows read from a slice, and the slice's fingerprint at that time.
struct SliceSnapshot {
    slice: SliceId,
    fingerprint: u128,
    ids: Vec<i64>,
}

/// A write that pauses before its end.
struct Paused {
    go_on: Arc<Notify>,
    report: JoinHandle<chronotile_archive::Result<bool>>,
}

/// What the processes that change one archive know about it.
#[derive(Default)]
struct World {
    /// Ids of each batch whose write was acknowledged.
    stored: Mutex<BTreeMap<&'static str, Range<i64>>>,
    removed: Mutex<Vec<i64>>,
    /// Rows of moved slices, now stored elsewhere.
    elsewhere: Mutex<BTreeSet<i64>>,
    /// Number of rows dropped with slices, according to the reports.
    retired: AtomicU64,
    noted: Mutex<Vec<SliceSnapshot>>,
    paused: Mutex<Option<Paused>>,
}

/// The end of the slice.
const LIMIT: RetireLimit = RetireLimit::Before(Instant::NativeTicks(2 * HOUR));

const FIRST: Range<i64> = 0..20;
const SECOND: Range<i64> = 100..120;
const ENDED: Range<i64> = 200..220;
const REPLACED: Range<i64> = 300..320;

fn two_hours(ids: Range<i64>) -> arrow_array::RecordBatch {
    spread_rows(ids.start, ids.end - ids.start, 2, "a")
}

fn assert_is_race(error: &ArchiveError) {
    assert!(matches!(error, ArchiveError::SliceInUse { .. } | ArchiveError::RetireRace { .. }), "{error}");
}

impl World {
    /// A slice with the rows of one batch and of an unfinished write; or an empty slice.
    async fn new(store: &Arc<dyn Store>, empty: bool) -> Arc<Self> {
        let world = Arc::new(Self::default());
        let dataset = create(store, spec()).await;
        if empty {
            store.create_slice(&placed(), SliceId(0)).await.unwrap();
            return world;
        }
        world.write(&dataset, "first", FIRST, named("first")).await;
        let (reached, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (at, wait) = (reached.clone(), go_on.clone());
        let ends = |commit: &chronotile_store::Commit| {
            commit.before.iter().chain(&commit.after).any(|put| put.key.starts_with("batch/"))
        };
        let late = Interposed::when(
            store.clone(),
            move |_, commit| commit.is_some_and(ends),
            Box::new(move || {
                let (at, wait) = (at.clone(), wait.clone());
                Box::pin(async move {
                    at.notify_one();
                    wait.notified().await;
                    // A commit of more is not stopped again.
                    wait.notify_one();
                })
            }),
        );
        let late = open(&late, "records").await;
        let report =
            tokio::spawn(
                async move { write(&late, &two_hours(ENDED), named("ended")).await.map(|report| report.stored) },
            );
        reached.notified().await;
        *world.paused.lock().unwrap() = Some(Paused { go_on, report });
        world
    }

    async fn write(&self, dataset: &Dataset, batch: &'static str, ids: Range<i64>, options: WriteOptions) {
        // Repeated, as its error advises.
        for _ in 0..5 {
            match write(dataset, &two_hours(ids.clone()), options.clone()).await {
                Ok(_) => {
                    if let Some(old) = self.stored.lock().unwrap().insert(batch, ids.clone()) {
                        self.removed.lock().unwrap().extend(old.filter(|id| !ids.contains(id)));
                    }
                    return;
                }
                Err(error) => assert_ne!(error.outcome(), Outcome::Refused, "{error}"),
            }
        }
    }

    async fn change(self: Arc<Self>, change: Change, dataset: Dataset) {
        match change {
            Change::Write => self.write(&dataset, "second", SECOND, named("second")).await,
            Change::Replace => self.write(&dataset, "first", REPLACED, replacing("first")).await,
            Change::Remove => self.remove(&dataset).await,
            Change::End => self.end().await,
            Change::Consolidate => {
                dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap();
            }
            Change::Retire => match dataset.retire(LIMIT, false).await {
                Ok(dropped) => {
                    let rows: u64 = dropped.iter().map(|slice| slice.rows).sum();
                    self.retired.fetch_add(rows, Ordering::SeqCst);
                }
                Err(error) => assert_is_race(&error),
            },
            Change::Move => {
                let noted = look(&dataset).await;
                self.drop_noted(&dataset, noted).await;
            }
            Change::Look => {
                let noted = look(&dataset).await;
                self.noted.lock().unwrap().extend(noted);
            }
            Change::Drop => {
                let noted = std::mem::take(&mut *self.noted.lock().unwrap());
                self.drop_noted(&dataset, noted).await;
            }
        }
    }

    async fn end(&self) {
        let Some(Paused { go_on, report }) = self.paused.lock().unwrap().take() else { return };
        go_on.notify_one();
        match report.await.unwrap() {
            Ok(_) => drop(self.stored.lock().unwrap().insert("ended", ENDED)),
            // Not acknowledged: its rows may or may not be there.
            Err(error) => assert_ne!(error.outcome(), Outcome::Refused, "{error}"),
        }
    }

    async fn remove(&self, dataset: &Dataset) {
        for _ in 0..5 {
            match dataset.remove_batch("first").await {
                Err(error) if error.outcome() != Outcome::Refused => {}
                // Nothing is left of it where its slice was moved.
                Ok(_) | Err(ArchiveError::BatchNotFound { .. }) => {
                    self.removed
                        .lock()
                        .unwrap()
                        .extend(self.stored.lock().unwrap().remove("first").into_iter().flatten());
                    return;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Drops the slices that were looked at, where they are as they were; what was read of them is elsewhere from then on.
    async fn drop_noted(&self, dataset: &Dataset, noted: Vec<SliceSnapshot>) {
        for SliceSnapshot { slice, fingerprint, ids } in noted {
            match dataset.retire_unchanged(&[(slice, fingerprint)]).await {
                Ok(dropped) => match dropped.first() {
                    None => {}
                    Some(dropped) => {
                        assert!(dropped.rows >= ids.len() as u64, "{} rows were read of {dropped:?}", ids.len());
                        self.elsewhere.lock().unwrap().extend(ids);
                    }
                },
                Err(error) => assert_is_race(&error),
            }
        }
    }

    /// Asserts that every acknowledged row is here or elsewhere, and no removed row is here.
    async fn assert_whole(&self, store: &Arc<dyn Store>, context: &str) {
        let dataset = open(store, "records").await;
        let here: BTreeSet<i64> = ids(&read_all(&dataset).await).into_iter().collect();
        let (elsewhere, mut lost) = (self.elsewhere.lock().unwrap(), Vec::new());
        for (batch, ids) in self.stored.lock().unwrap().iter() {
            let is_lost = |id: &i64| !here.contains(id) && !elsewhere.contains(id);
            lost.extend(ids.clone().filter(is_lost).map(|id| (*batch, id)));
        }
        // A drop that fails does not report the rows that it dropped.
        let retired = self.retired.load(Ordering::SeqCst);
        assert!(lost.len() as u64 <= retired, "{context}: {retired} rows went, and nowhere are {lost:?}");
        let back: Vec<i64> = self.removed.lock().unwrap().iter().filter(|id| here.contains(id)).copied().collect();
        assert!(back.is_empty(), "{context}: removed rows are there: {back:?}");
    }
}

/// Reads the slices to be moved.
async fn look(dataset: &Dataset) -> Vec<SliceSnapshot> {
    let mut noted = Vec::new();
    for slice in dataset.retire(LIMIT, true).await.unwrap() {
        let time = between(slice.ticks.0, slice.ticks.1);
        let rows = read(dataset, ReadRequest { time, ..ReadRequest::default() }).await.unwrap();
        noted.push(SliceSnapshot { slice: slice.slice, fingerprint: slice.fingerprint, ids: ids(&rows) });
    }
    noted
}

/// Wraps a store into an engine.
type Engine = fn(Arc<dyn Store>) -> Arc<dyn Store>;

/// Engines with no, some and all capabilities.
const ENGINES: [Engine; 4] = [
    |below| Arc::new(LimitedStore::stepwise(below)),
    |below| Arc::new(LimitedStore::new(below, |promises| promises.atomic_commits = false)),
    |below| Arc::new(LimitedStore::new(below, |promises| promises.atomic_drops = false)),
    |below| below,
];

/// Does `work`, and each of `changes` just before a call of its number to the store below the engine, as other processes do.
/// Whether all of them happened.
async fn interposed(engine: Engine, empty: bool, work: Change, changes: &[(Change, u64)]) -> bool {
    let mut below: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let plain = engine(below.clone());
    let world = World::new(&plain, empty).await;
    let mut happened = Vec::new();
    // The last becomes the first that a call meets.
    for (change, at) in changes.iter().rev().copied() {
        let done = Arc::new(AtomicBool::new(false));
        happened.push(done.clone());
        let (world, other) = (world.clone(), plain.clone());
        let action = Box::new(move || -> BoxFuture<'static, ()> {
            let (world, other, done) = (world.clone(), other.clone(), done.clone());
            async move {
                done.store(true, Ordering::SeqCst);
                let dataset = open(&other, "records").await;
                world.change(change, dataset).await;
            }
            .boxed()
        });
        below = Interposed::at(below, at, action);
    }
    let dataset = open(&engine(below), "records").await;
    world.clone().change(work, dataset).await;
    let promises = plain.capabilities();
    let steps = (!promises.atomic_commits, !promises.atomic_drops);
    let context = format!("{work:?} with {changes:?}, commits and drops in steps {steps:?}, empty {empty}");
    world.assert_whole(&plain, &context).await;
    world.end().await;
    world.assert_whole(&plain, &context).await;
    happened.iter().all(|done| done.load(Ordering::SeqCst))
}

/// Each of the changes before any call of the work; where there is another, that before any later call. How many calls there were.
async fn everywhere(engine: Engine, empty: bool, work: Change, change: Change, another: Option<Change>) -> u64 {
    let mut at = 0;
    while interposed(engine, empty, work, &[(change, at)]).await {
        if let Some(another) = another {
            let mut then = at;
            while interposed(engine, empty, work, &[(change, at), (another, then)]).await {
                then += 1;
            }
        }
        at += 1;
    }
    at
}

#[tokio::test(start_paused = true)]
async fn a_slice_may_change_between_any_two_calls_of_its_move_or_drop() {
    let changes = [
        Change::Write,
        Change::End,
        Change::Replace,
        Change::Remove,
        Change::Consolidate,
        Change::Move,
        Change::Retire,
    ];
    for engine in ENGINES {
        for work in [Change::Move, Change::Retire] {
            for change in changes {
                let calls = everywhere(engine, false, work, change, None).await;
                assert!(calls > 5, "{change:?} had only {calls} moments of {work:?} to happen at");
            }
        }
    }
}

/// Rows are added between any two calls of a move, and dropped between any two later ones.
#[tokio::test(start_paused = true)]
async fn a_slice_may_be_filled_and_emptied_between_the_calls_of_its_move() {
    for engine in [ENGINES[0], ENGINES[3]] {
        for gone in [Change::Move, Change::Retire] {
            for (change, empty) in [(Change::Write, true), (Change::Write, false), (Change::End, false)] {
                everywhere(engine, empty, Change::Move, change, Some(gone)).await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_slice_may_go_between_any_two_calls_of_a_change() {
    for engine in ENGINES {
        for change in [Change::Write, Change::Replace, Change::Remove, Change::Consolidate] {
            everywhere(engine, false, change, Change::Look, Some(Change::Drop)).await;
            everywhere(engine, false, change, Change::Retire, None).await;
        }
    }
}
