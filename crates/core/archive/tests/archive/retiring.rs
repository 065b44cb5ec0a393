//! Slices that are dropped while others write to them, and batches with dropped rows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use chronotile_archive::{ArchiveError, ConsolidateOptions, Dataset, ReadRequest, RetireLimit, WriteOptions};
use chronotile_memory::MemoryStore;
use chronotile_store::{
    DatasetRef, Decision, DropSlice, Expect, FaultyStore, Metered, Operation, Outcome, RecordPut, Store, StoreError,
};
use chronotile_types::{DatasetSpec, Instant, MergeRule};

use crate::common::*;

fn before(t: i64) -> RetireLimit {
    RetireLimit::Before(Instant::NativeTicks(t))
}

/// All engines, and memory without each of its capabilities.
fn all_engines() -> Vec<(Arc<dyn Store>, Option<tempfile::TempDir>)> {
    let memory = || -> Arc<dyn Store> { Arc::new(MemoryStore::new()) };
    let weak = PROMISES.map(|(_, take_away)| LimitedStore::new(memory(), take_away));
    let weak = weak.into_iter().chain([LimitedStore::stepwise(memory())]);
    engines().into_iter().chain(weak.map(|store| (Arc::new(store) as Arc<dyn Store>, None))).collect()
}

async fn count(dataset: &Dataset) -> u64 {
    dataset.count(ReadRequest::default()).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_batch_of_which_rows_were_retired_is_stored_again_and_says_so_before() {
    for (store, _folder) in all_engines() {
        let kinds = [spec(), DatasetSpec { id: vec![], ..spec() }];
        for (kind, options) in kinds.into_iter().zip([named as fn(&str) -> _, replacing]) {
            let name = format!("records_{}", kind.id.len());
            let dataset =
                create(&store, DatasetSpec { name: chronotile_types::DatasetName::new(&name).unwrap(), ..kind }).await;
            // Slices of two hours: three, of which the first is dropped, then all.
            let given = spread_rows(0, 60, 6, "a");
            write(&dataset, &given, options("a")).await.unwrap();
            for limit in [2 * HOUR, 6 * HOUR] {
                let dropped: u64 =
                    dataset.retire(before(limit), false).await.unwrap().iter().map(|slice| slice.rows).sum();
                let info = dataset.batch("a").await.unwrap().unwrap();
                assert_eq!((info.rows, info.rows_retired), (60, dropped), "limit {limit}");
                assert_eq!(dataset.batches().await.unwrap(), [info]);
                assert_eq!(count(&dataset).await, 60 - dropped);

                let report = write(&dataset, &given, options("a")).await.unwrap();
                assert!(report.stored && report.rows == 60, "{report:?}");
                assert_eq!(count(&dataset).await, 60);
                let info = dataset.batch("a").await.unwrap().unwrap();
                assert_eq!((info.rows, info.rows_retired), (60, 0));
                assert_sound(&dataset).await;
            }
            assert!(!write(&dataset, &given, named("a")).await.unwrap().stored, "it is there");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_large_batch_of_which_rows_were_retired_is_stored_again_in_steps() {
    for (store, _folder) in all_engines() {
        let dataset = create(&store, spec()).await;
        let part = |i: i64| spread_rows(i * 20_000, 20_000, 6, "a");
        let given = || input((0..3).map(part));
        dataset.write(given(), tight(named("a"))).await.unwrap();
        dataset.retire(before(2 * HOUR), false).await.unwrap();
        assert!(dataset.write(given(), tight(named("a"))).await.unwrap().stored);
        assert_eq!(count(&dataset).await, 60_000);
        // Where it has other content nothing of that is left.
        dataset.retire(before(2 * HOUR), false).await.unwrap();
        let rest = read_all(&dataset).await;
        let error = dataset.write(input((1..4).map(part)), tight(named("a"))).await.unwrap_err();
        assert!(matches!(error, ArchiveError::BatchDiffers { .. }), "{error}");
        assert_eq!(read_all(&dataset).await, rest);
        assert!(dataset.batch("a").await.unwrap().unwrap().finished);
        assert_sound(&dataset).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_name_of_a_batch_that_was_retired_whole_is_free_and_one_retired_in_part_keeps_it() {
    for (store, _folder) in all_engines() {
        let dataset = create(&store, spec()).await;
        write(&dataset, &spread_rows(0, 60, 6, "a"), named("a")).await.unwrap();
        dataset.retire(before(2 * HOUR), false).await.unwrap();
        let error = write(&dataset, &spread_rows(0, 50, 6, "b"), named("a")).await.unwrap_err();
        assert!(matches!(error, ArchiveError::BatchDiffers { .. }), "{error}");
        dataset.retire(before(6 * HOUR), false).await.unwrap();
        assert_eq!(count(&dataset).await, 0);
        assert!(write(&dataset, &spread_rows(0, 50, 6, "b"), named("a")).await.unwrap().stored);
        assert_eq!(count(&dataset).await, 50);
        assert_sound(&dataset).await;
    }
}

#[tokio::test(start_paused = true)]
async fn removing_a_batch_counts_the_rows_that_it_takes_out() {
    for (store, _folder) in all_engines() {
        let dataset = create(&store, spec()).await;
        write(&dataset, &spread_rows(0, 60, 6, "a"), named("a")).await.unwrap();
        let dropped: u64 = dataset.retire(before(2 * HOUR), false).await.unwrap().iter().map(|slice| slice.rows).sum();
        assert!(dropped > 0);
        assert_eq!(dataset.remove_batch("a").await.unwrap(), 60 - dropped);
        assert_eq!(count(&dataset).await, 0);
    }
}

/// Runs `work` once, just before the first call of an operation.
fn with_something_before(
    inner: &Arc<dyn Store>,
    operation: Operation,
    work: impl Fn() -> futures::future::BoxFuture<'static, ()> + Send + Sync + 'static,
) -> Arc<dyn Store> {
    let done = std::sync::atomic::AtomicBool::new(false);
    Arc::new(FaultyStore::new(inner.clone(), move |call| {
        if call.operation == operation && !done.swap(true, Ordering::SeqCst) {
            let work = work();
            on_other_thread(work);
        }
        Decision::Pass
    }))
}

#[tokio::test(start_paused = true)]
async fn rows_that_come_just_before_a_slice_is_dropped_are_counted_or_keep_it() {
    for exactly in [false, true] {
        for (store, _folder) in all_engines() {
            let dataset = create(&store, spec()).await;
            write(&dataset, &spread_rows(0, 30, 2, "a"), named("a")).await.unwrap();
            let other = store.clone();
            let late = with_something_before(&store, Operation::DropSlice, move || {
                let other = other.clone();
                Box::pin(async move {
                    let dataset = open(&other, "records").await;
                    let report = write(&dataset, &spread_rows(100, 30, 2, "late"), named("late")).await;
                    assert!(report.unwrap().stored);
                })
            });
            let retirer = open(&late, "records").await;
            let would = retirer.retire(before(2 * HOUR), true).await.unwrap();
            assert_eq!(would.iter().map(|slice| slice.rows).sum::<u64>(), 30);
            if exactly {
                let seen: Vec<_> = would.iter().map(|slice| (slice.slice, slice.fingerprint)).collect();
                assert_eq!(retirer.retire_unchanged(&seen).await.unwrap(), []);
                assert_eq!(count(&dataset).await, 60);
                let now = retirer.retire(before(2 * HOUR), true).await.unwrap();
                let seen: Vec<_> = now.iter().map(|slice| (slice.slice, slice.fingerprint)).collect();
                assert_eq!(retirer.retire_unchanged(&seen).await.unwrap(), now);
            } else {
                let dropped = retirer.retire(before(2 * HOUR), false).await.unwrap();
                assert_eq!(dropped.iter().map(|slice| slice.rows).sum::<u64>(), 60, "{exactly}");
            }
            assert_eq!(count(&dataset).await, 0);
            assert_eq!(dataset.batch("late").await.unwrap().unwrap().rows_retired, 30);
            // Nothing is left that would hinder writers.
            assert!(write(&dataset, &spread_rows(100, 30, 2, "late"), named("late")).await.unwrap().stored);
            assert_eq!(count(&dataset).await, 30);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn slices_that_held_rows_which_were_taken_back_since_are_not_as_they_were() {
    for (store, _folder) in all_engines() {
        let dataset = create(&store, spec()).await;
        write(&dataset, &spread_rows(0, 30, 2, "removed"), named("removed")).await.unwrap();
        let returning = chunks(store.as_ref(), &placed()).await;
        dataset.remove_batch("removed").await.unwrap();
        write(&dataset, &spread_rows(100, 30, 2, "a"), named("a")).await.unwrap();
        let noted = async || -> Vec<_> {
            let would = dataset.retire(before(2 * HOUR), true).await.unwrap();
            would.iter().map(|slice| (slice.slice, slice.fingerprint)).collect()
        };

        let seen = noted().await;
        put_chunks(store.as_ref(), &placed(), returning).await;
        assert_eq!(dataset.remove_foreign().await.unwrap().iter().map(|chunk| chunk.rows).sum::<u64>(), 30);
        assert_eq!(dataset.retire_unchanged(&seen).await.unwrap(), [], "rows of no stored batch");

        assert_eq!(dataset.retire_unchanged(&noted().await).await.unwrap().len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn slices_that_are_dropped_before_they_have_rows_are_made_again_and_not_for_ever() {
    let hasty = |times: u64| {
        let (below, dropped) = (Arc::new(MemoryStore::new()) as Arc<dyn Store>, AtomicU64::new(0));
        let dropper = below.clone();
        let store = Arc::new(FaultyStore::new(below, move |call| {
            let Some(chunk) = call.commit.and_then(|commit| commit.put.first()) else { return Decision::Pass };
            if dropped.fetch_add(1, Ordering::SeqCst) < times {
                let (slice, dataset) = (chunk.key.slice, DatasetRef::of_chunks(spec().name));
                futures::executor::block_on(dropper.drop_slice(&dataset, slice, DropSlice::default())).unwrap();
            }
            Decision::Pass
        }));
        store as Arc<dyn Store>
    };
    let given = spread_rows(0, 30, 2, "a");
    let often = hasty(5);
    let dataset = create(&often, spec()).await;
    assert!(write(&dataset, &given, named("a")).await.unwrap().stored);
    assert_eq!(count(&dataset).await, 30);

    let for_ever = hasty(u64::MAX);
    let dataset = create(&for_ever, spec()).await;
    let error = write(&dataset, &given, named("a")).await.unwrap_err();
    assert!(matches!(error, ArchiveError::SliceRetired { .. }), "{error}");
    assert_eq!(error.outcome(), Outcome::LostRace);
}

#[tokio::test(start_paused = true)]
async fn a_write_whose_first_rows_are_dropped_before_it_ends_is_refused_and_can_be_repeated() {
    for (store, _folder) in all_engines() {
        create(&store, spec()).await;
        // The test's clock advances during commits, as it does while a drop waits.
        let late: Arc<dyn Store> = Arc::new(FaultyStore::new(store.clone(), |call| match call.operation {
            Operation::Commit => Decision::Delay(Duration::from_secs(40)),
            _ => Decision::Pass,
        }));
        let dataset = open(&late, "records").await;
        let part = |i: i64| spread_rows(i * 40_000, 40_000, 2, "a");
        let other = open(&store, "records").await;
        let cut = async |options| {
            let (send, receive) = std::sync::mpsc::channel();
            // The second part arrives once the slice with rows of the first was dropped.
            let parts = (0..2).map(move |i| {
                if i == 1 {
                    receive.recv().unwrap();
                }
                Ok(part(i))
            });
            let other = other.clone();
            let ended = Arc::new(AtomicBool::new(false));
            let write_ended = ended.clone();
            let retire = std::thread::spawn(move || {
                let paused = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
                let drop = async {
                    while other.retire(before(2 * HOUR), false).await.unwrap().iter().all(|slice| slice.rows == 0) {
                        // If the write ended without these rows, none will come.
                        if write_ended.load(Ordering::SeqCst) {
                            return;
                        }
                        std::thread::sleep(Duration::from_millis(5));
                    }
                };
                paused.unwrap().block_on(drop);
                // A write that has ended no longer listens.
                let _ = send.send(());
            });
            let result = dataset.write(parts, tight(options)).await;
            ended.store(true, Ordering::SeqCst);
            retire.join().unwrap();
            result
        };
        for options in [named("a"), replacing("a"), named("b")] {
            let error = cut(options.clone()).await.unwrap_err();
            match error.outcome() {
                // The slice was dropped while the chunks of one commit were being put.
                Outcome::Unknown => assert!(!store.capabilities().atomic_commits, "{error}"),
                outcome => {
                    assert!(matches!(error, ArchiveError::SliceRetired { .. }), "{error}");
                    assert_eq!(outcome, Outcome::LostRace);
                }
            }
            assert!(dataset.write(input((0..2).map(part)), tight(options.clone())).await.unwrap().stored);
            assert_eq!(count(&dataset).await, 80_000);
            let info = dataset.batch(options.batch.as_deref().unwrap()).await.unwrap().unwrap();
            assert!(info.finished && info.rows_retired == 0, "{info:?}");
            assert_sound(&dataset).await;
            dataset.retire(before(2 * HOUR), false).await.unwrap();
        }
    }
}

/// A seeded random generator.
struct Prng(u64);

impl Prng {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Delays calls: drops always, one in `often` others by some seconds, and one in a hundred by more than writers go
/// without checking for drops.
fn slow(inner: &Arc<dyn Store>, seed: u64, often: u64) -> Arc<dyn Store> {
    let calls = AtomicU64::new(0);
    Arc::new(FaultyStore::new(inner.clone(), move |call| {
        let mut chance = Prng(seed.wrapping_add(calls.fetch_add(1, Ordering::SeqCst).wrapping_mul(0x9e37_79b9)));
        chance.below(7);
        let seconds = match chance.below(100) {
            0 => 20 + chance.below(80),
            _ if call.operation == Operation::DropSlice => 2 + chance.below(12),
            _ if chance.below(often) == 0 => 1 + chance.below(5),
            _ => 0,
        };
        Decision::Delay(Duration::from_secs(seconds))
    }))
}

/// What a process did with a batch, according to the reports.
#[derive(Clone)]
struct Reported {
    ids: std::ops::Range<i64>,
    /// How often a write began, whatever its outcome.
    attempts: u32,
    /// Number of rows that the acknowledged removal removed; `None` if the last acknowledged operation is the write.
    removed: Option<u64>,
}

/// Rows of slices that were moved elsewhere.
#[derive(Default)]
struct OffloadedRows {
    /// Rows that were read and stored elsewhere before any attempt to drop their slice.
    kept: BTreeSet<i64>,
    /// Rows of slices whose drop was acknowledged.
    moved: BTreeSet<i64>,
    cut_off: u64,
}

/// Cancels work after some seconds, as if its process had died; `None` if it was cancelled.
async fn cut_off<T>(chance: &mut Prng, one_in: u64, work: impl Future<Output = T>) -> Option<T> {
    let seconds = if chance.below(one_in) == 0 { chance.below(40) } else { 1_000_000 };
    tokio::time::timeout(Duration::from_secs(seconds), work).await.ok()
}

/// Moves slices elsewhere as an archiving job does: reads and stores the rows of a slice, then drops the slice if it
/// has not changed.
async fn move_away(dataset: Dataset, seed: u64, elsewhere: &mut OffloadedRows) {
    let mut chance = Prng(seed);
    for _ in 0..12 {
        let would = dataset.retire(before(4 * HOUR), true).await.unwrap();
        for slice in would {
            let (start, end) = slice.ticks;
            let rows =
                read(&dataset, ReadRequest { time: between(start, end), ..ReadRequest::default() }).await.unwrap();
            elsewhere.kept.extend(ids(&rows));
            let seen = [(slice.slice, slice.fingerprint)];
            match cut_off(&mut chance, 3, dataset.retire_unchanged(&seen)).await {
                None => elsewhere.cut_off += 1,
                Some(Ok(dropped)) if dropped.is_empty() => {}
                Some(Ok(_)) => elsewhere.moved.extend(ids(&rows)),
                Some(Err(ArchiveError::SliceInUse { .. } | ArchiveError::RetireRace { .. })) => {}
                Some(Err(error)) => panic!("{error}"),
            }
        }
    }
}

/// Writes batches, some of them again, in other slices or after they were moved, and removes others.
async fn write_some(dataset: Dataset, seed: u64, reported: &mut BTreeMap<String, Reported>, refused: &mut u64) {
    let mut chance = Prng(seed);
    for number in 0..40 {
        let (first, size) = (seed as i64 * 10_000_000 + number * 100_000, 1 + chance.below(20) as i64);
        let long = chance.below(150) == 0;
        // Each part of a write is at least as large as its buffer.
        let (parts, size) = if long { (3, 16_000) } else { (1, size) };
        let hours = 1 + chance.below(4) as i64;
        let part = |i: i64| spread_rows(first + i * size, size, hours, "w");
        let name = format!("{seed}-{number}");
        tokio::time::sleep(Duration::from_secs(chance.below(30))).await;
        let writes = if chance.below(5) == 0 { 2 } else { 1 };
        let mut attempts = 0;
        for replace in (0..writes).map(|again| again == 1 && seed.is_multiple_of(2)) {
            let options = WriteOptions { replace, ..named(&name) };
            for _ in 0..3 {
                let write = dataset.write(input((0..parts).map(part)), tight(options.clone()));
                attempts += 1;
                match cut_off(&mut chance, 8, write).await {
                    None => *refused += 1,
                    Some(Ok(_)) => {
                        let ids = first..first + parts * size;
                        reported.insert(name.clone(), Reported { ids, attempts, removed: None });
                        break;
                    }
                    // A lost race or an unknown outcome: what was not acknowledged may be written again.
                    Some(Err(error)) if error.outcome() != Outcome::Refused => *refused += 1,
                    Some(Err(error)) => panic!("{error}"),
                }
            }
        }
        if chance.below(3) == 0 {
            remove_one(&dataset, &mut chance, &name, reported, refused).await;
        }
    }
}

async fn remove_one(
    dataset: &Dataset,
    chance: &mut Prng,
    name: &str,
    reported: &mut BTreeMap<String, Reported>,
    refused: &mut u64,
) {
    let Some(mut batch) = reported.remove(name) else { return };
    for _ in 0..5 {
        match cut_off(chance, 8, dataset.remove_batch(name)).await {
            Some(Ok(rows)) => {
                batch.removed = Some(rows);
                reported.insert(name.to_owned(), batch);
                return;
            }
            Some(Err(error)) if error.outcome() == Outcome::Refused => {
                // An interrupted removal had succeeded.
                assert!(matches!(error, ArchiveError::BatchNotFound { .. }), "{error}");
                return;
            }
            _ => *refused += 1,
        }
    }
}

/// However long calls take and wherever processes die, acknowledged rows are readable or were moved elsewhere;
/// removed rows are in neither place, except those that the removal did not count because they had been moved before.
#[tokio::test(start_paused = true)]
async fn acknowledged_rows_are_never_dropped_unseen() {
    let (mut batches, mut removed, mut moved, mut refused, mut cuts) = (0, 0, 0, 0, 0);
    for seed in 0..6 {
        let memory: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let spec = DatasetSpec { merge: MergeRule::Latest { version: None }, ..spec() };
        create(&memory, spec).await;
        let (mut elsewhere, mut first, mut second) = (OffloadedRows::default(), BTreeMap::new(), BTreeMap::new());
        let (mut refused_first, mut refused_second) = (0, 0);
        // Each step takes its time where commits have steps.
        let process = |own: u64, often| -> Arc<dyn Store> {
            let slow = slow(&memory, own, often);
            match seed % 4 {
                0 => slow,
                1 => Arc::new(LimitedStore::stepwise(slow)),
                2 => Arc::new(LimitedStore::new(slow, |promises| promises.atomic_drops = false)),
                _ => Arc::new(LimitedStore::new(slow, |promises| promises.atomic_commits = false)),
            }
        };
        let handle = async |seed, often| open(&process(seed, often), "records").await;
        let (a, b, c) = (handle(seed * 3, 12).await, handle(seed * 3 + 1, 20).await, handle(seed * 3 + 2, 20).await);
        tokio::join!(
            move_away(a, seed, &mut elsewhere),
            write_some(b, seed * 2 + 1, &mut first, &mut refused_first),
            write_some(c, seed * 2 + 2, &mut second, &mut refused_second),
        );
        let here: BTreeSet<i64> = ids(&read_all(&open(&memory, "records").await).await).into_iter().collect();
        for (name, reported) in first.iter().chain(&second) {
            let own = |ids: &BTreeSet<i64>| ids.range(reported.ids.clone()).count() as u64;
            let total = reported.ids.end - reported.ids.start;
            match reported.removed {
                None => {
                    let lost = reported.ids.clone().find(|id| !here.contains(id) && !elsewhere.kept.contains(id));
                    assert_eq!(lost, None, "seed {seed}: a row of batch {name} is nowhere");
                }
                Some(rows) => {
                    assert_eq!(own(&here), 0, "seed {seed}: rows of removed batch {name} are there");
                    assert!(
                        // Rows moved elsewhere after one attempt may be stored again by the next, and then be removed
                        // too.
                        reported.attempts > 1 || own(&elsewhere.moved) + rows <= total as u64,
                        "seed {seed}: {rows} of {total} rows of batch {name} were removed, and {} moved away; {} attempts",
                        own(&elsewhere.moved),
                        reported.attempts,
                    );
                    removed += 1;
                }
            }
            batches += 1;
        }
        moved += elsewhere.moved.len();
        refused += refused_first + refused_second;
        cuts += elsewhere.cut_off;
    }
    let figures = format!(
        "{batches} batches, {removed} removed, {moved} rows moved, {refused} writes not acknowledged, {cuts} drops cut off"
    );
    println!("{figures}");
    assert!(batches > 300 && removed > 60 && moved > 100 && refused > 0 && cuts > 0, "{figures}");
}

/// Who drops a slice with what it held must not have, unknowingly, what others took out of it before that was acknowledged.
#[tokio::test(start_paused = true)]
async fn what_is_taken_out_of_a_slice_that_is_being_dropped_is_refused_until_it_is_gone() {
    for replace in [false, true] {
        for consolidated in [false, true] {
            for in_steps in
                [LimitedStore::stepwise, |below| LimitedStore::new(below, |promises| promises.atomic_drops = false)]
            {
                let memory: Arc<dyn Store> = Arc::new(MemoryStore::new());
                let plain: Arc<dyn Store> = Arc::new(in_steps(memory.clone()));
                let dataset = create(&plain, spec()).await;
                write(&dataset, &spread_rows(0, 30, 2, "a"), named("a")).await.unwrap();
                write(&dataset, &spread_rows(100, 30, 2, "b"), named("b")).await.unwrap();
                if consolidated {
                    assert!(dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap().tiles > 0);
                }
                let later = rows(&[(5 * HOUR, 0, 0), (5 * HOUR, 1, 1)]);
                let take_out = async move |dataset: &Dataset| match replace {
                    true => write(dataset, &later, replacing("a")).await.map(|report| report.rows),
                    false => dataset.remove_batch("a").await,
                };
                let (other, while_dropped) = (plain.clone(), take_out.clone());
                // After the slice was compared, before it is gone.
                let cut = with_something_before(&memory, Operation::DropSlice, move || {
                    let (other, take_out) = (other.clone(), while_dropped.clone());
                    Box::pin(async move {
                        let dataset = open(&other, "records").await;
                        let error = take_out(&dataset).await.unwrap_err();
                        assert!(matches!(error, ArchiveError::SliceRetired { .. }), "{error}");
                        assert_eq!(error.outcome(), Outcome::LostRace);
                    })
                });
                let retirer = open(&(Arc::new(in_steps(cut)) as Arc<dyn Store>), "records").await;
                let would = retirer.retire(before(2 * HOUR), true).await.unwrap();
                let seen: Vec<_> = would.iter().map(|slice| (slice.slice, slice.fingerprint)).collect();
                assert_eq!(retirer.retire_unchanged(&seen).await.unwrap(), would);
                // Repeated it is done, and says what it did not find.
                assert_eq!(take_out(&dataset).await.unwrap(), if replace { 2 } else { 0 });
                assert_eq!(count(&dataset).await, if replace { 2 } else { 0 });
                assert_sound(&dataset).await;
            }
        }
    }
}

/// A drop that was cut off ends when slices are dropped the next time, and then takes all that its slice has.
#[tokio::test(start_paused = true)]
async fn a_batch_that_goes_with_a_cut_off_drop_is_not_called_stored() {
    for options in [named as fn(&str) -> _, replacing] {
        for in_steps in
            [LimitedStore::stepwise, |below| LimitedStore::new(below, |promises| promises.atomic_drops = false)]
        {
            let memory: Arc<dyn Store> = Arc::new(MemoryStore::new());
            let plain: Arc<dyn Store> = Arc::new(in_steps(memory.clone()));
            let dataset = create(&plain, spec()).await;
            // Slices of two hours.
            let (old, new) = (rows(&[(HOUR, 0, 0), (HOUR, 1, 1)]), rows(&[(5 * HOUR, 2, 0)]));
            write(&dataset, &old, options("old")).await.unwrap();
            write(&dataset, &new, options("new")).await.unwrap();
            let fails = FaultyStore::new(memory.clone(), |call| match call.operation {
                Operation::DropSlice => {
                    Decision::FailBefore(StoreError::Unknown { engine: "test", reason: "cut off".into() })
                }
                _ => Decision::Pass,
            });
            let retirer = open(&(Arc::new(in_steps(Arc::new(fails))) as Arc<dyn Store>), "records").await;
            retirer.retire(before(2 * HOUR), false).await.unwrap_err();
            assert_eq!(count(&dataset).await, 3, "the rows are there until the drop ends");

            // Also a process that has looked a moment ago, and one that never has.
            for dataset in [dataset.clone(), open(&plain, "records").await] {
                let error = write(&dataset, &old, options("old")).await.unwrap_err();
                assert!(matches!(error, ArchiveError::SliceRetired { .. }), "{error}");
                assert_eq!(error.outcome(), Outcome::LostRace);
                let report = write(&dataset, &new, options("new")).await.unwrap();
                assert!(!report.stored, "no row of it goes");
            }
            dataset.retire(before(0), false).await.unwrap();
            assert_eq!(count(&dataset).await, 1);
            assert!(write(&dataset, &old, options("old")).await.unwrap().stored);
            assert!(!write(&dataset, &old, options("old")).await.unwrap().stored);
            assert_eq!(count(&dataset).await, 3);
            assert_sound(&dataset).await;
        }
    }
}

/// Nobody is told that nothing has happened where readers see the batch replaced or removed.
#[tokio::test(start_paused = true)]
async fn what_readers_see_replaced_or_removed_when_its_slice_is_dropped_has_an_unknown_outcome() {
    for replace in [false, true] {
        let plain: Arc<dyn Store> = Arc::new(LimitedStore::stepwise(Arc::new(MemoryStore::new())));
        let dataset = create(&plain, spec()).await;
        write(&dataset, &spread_rows(0, 60, 4, "a"), named("a")).await.unwrap();
        let is_new = |put: &RecordPut| match &put.expect {
            Expect::Is(value) => put.value.as_ref() != Some(value),
            _ => true,
        };
        // Just before the record is put, and longer ago than a look at the slices being dropped counts.
        let (other, dropped) = (plain.clone(), AtomicBool::new(false));
        let late: Arc<dyn Store> = Arc::new(FaultyStore::new(plain.clone(), move |call| {
            let ends = |put: &RecordPut| put.key.starts_with("batch/") && is_new(put);
            if !call.commit.is_some_and(|commit| commit.before.iter().any(ends)) || dropped.swap(true, Ordering::SeqCst)
            {
                return Decision::Pass;
            }
            let other = other.clone();
            let retire = async move { open(&other, "records").await.retire(before(2 * HOUR), false).await.unwrap() };
            let paused = || tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
            let went = std::thread::spawn(move || paused().unwrap().block_on(retire)).join().unwrap();
            assert_eq!(went.len(), 1);
            Decision::Delay(Duration::from_secs(20))
        }));
        let writer = open(&late, "records").await;
        let other = spread_rows(100, 40, 4, "b");
        let error = match replace {
            true => write(&writer, &other, replacing("a")).await.unwrap_err(),
            false => writer.remove_batch("a").await.unwrap_err(),
        };
        assert!(matches!(error, ArchiveError::RetiredMeanwhile { .. }), "{error}");
        assert_eq!(error.outcome(), Outcome::Unknown);
        let here = ids(&read_all(&dataset).await);
        assert!(here.iter().all(|id| *id >= 100) && here.is_empty() != replace, "{here:?}");
        if replace {
            assert!(write(&dataset, &other, replacing("a")).await.unwrap().stored);
            assert_eq!(count(&dataset).await, 40);
        } else {
            let error = dataset.remove_batch("a").await.unwrap_err();
            assert!(matches!(error, ArchiveError::BatchNotFound { .. }), "{error}");
        }
        assert_sound(&dataset).await;
    }
}

/// What an engine whose commits have steps is asked for by ordinary writes.
#[tokio::test(start_paused = true)]
async fn ordinary_writes_look_for_dropped_slices_once_in_a_while() {
    let metered = Arc::new(Metered::new(Arc::new(LimitedStore::stepwise(Arc::new(MemoryStore::new())))));
    let store: Arc<dyn Store> = metered.clone();
    let dataset = create(&store, spec()).await;
    let asked = |wanted| metered.snapshot().iter().find(|metrics| metrics.operation == wanted).unwrap().calls;
    let before = asked(Operation::Record);
    for number in 0..20 {
        write(&dataset, &spread_rows(number * 10, 10, 2, "a"), named(&number.to_string())).await.unwrap();
        tokio::time::advance(Duration::from_millis(500)).await;
    }
    // Besides, the first write asks for the time.
    assert_eq!(asked(Operation::Record) - before, 1 + 2, "ten seconds of writing");
    tokio::time::advance(Duration::from_secs(60)).await;
    let before = asked(Operation::Record);
    for number in 20..40 {
        write(&dataset, &spread_rows(number * 10, 10, 2, "a"), named(&number.to_string())).await.unwrap();
        tokio::time::advance(Duration::from_secs(60)).await;
    }
    assert_eq!(
        asked(Operation::Record) - before,
        60,
        "the record, the definition and the time for each write where they are a minute apart"
    );
}
