//! Groups: one batch over several datasets, which counts in all of them or in none.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arrow_array::RecordBatch;
use chronotile_archive::{
    AddedColumn, Archive, ArchiveError, CellSelection, ConsolidateOptions, CopyOptions, Group, ReadRequest, Result,
    RetireLimit, Shard, WriteOptions, WriteReport,
};
use chronotile_memory::MemoryStore;
use chronotile_store::{Decision, FaultyStore, Operation, Store, StoreError};
use chronotile_types::{DatasetName, DatasetSpec, Instant, Membership, MergeRule, SliceOwner, TimeRange};

use crate::common::*;

const NAMES: [&str; 3] = ["objects", "sources", "forced"];

fn member(name: &str, group: &str) -> DatasetSpec {
    let base = DatasetSpec {
        name: DatasetName::new(name).unwrap(),
        group: Some(Membership::of(DatasetName::new(group).unwrap())),
        ..spec()
    };
    match name {
        "objects" => DatasetSpec {
            window: "3h".parse().unwrap(),
            windows_per_slice: 1,
            merge: MergeRule::Latest { version: None },
            ..base
        },
        "forced" => {
            let slices_of = Some(SliceOwner { dataset: DatasetName::new("sources").unwrap(), number: 0 });
            let group = Membership { slices_of, ..Membership::of(DatasetName::new(group).unwrap()) };
            DatasetSpec { group: Some(group), partition_cells: 4, ..base }
        }
        "sources" => DatasetSpec { partition_cells: 4, ..base },
        _ => base,
    }
}

pub async fn survey(store: &Arc<dyn Store>) -> Group {
    let archive = archive(store);
    for name in NAMES {
        archive.create(member(name, "survey"), true).await.unwrap();
    }
    archive.group("survey").await.unwrap()
}

/// Rows for each dataset; those of different datasets have the same ids, times and tags.
pub fn tables(note: &str, hours: i64) -> Vec<(&'static str, RecordBatch)> {
    vec![
        ("objects", spread_rows(0, 25, hours, note)),
        ("sources", spread_rows(0, 40, hours, note)),
        ("forced", spread_rows(0, 45, hours, note)),
    ]
}

pub async fn write_all(
    group: &Group,
    tables: Vec<(&'static str, RecordBatch)>,
    options: WriteOptions,
) -> Result<Vec<WriteReport>> {
    group.write(tables.into_iter().map(|(name, rows)| (name, input([rows]))).collect(), options).await
}

/// The content of all datasets, in order.
async fn contents(group: &Group) -> Vec<Vec<(i64, String)>> {
    let mut all = Vec::new();
    for name in NAMES {
        all.push(id_notes(&read_all(group.dataset(name).unwrap()).await));
    }
    all
}

fn notes(tables: &[(&'static str, RecordBatch)]) -> Vec<Vec<(i64, String)>> {
    tables.iter().map(|(_, rows)| id_notes(rows)).collect()
}

fn nothing() -> Vec<Vec<(i64, String)>> {
    vec![vec![]; NAMES.len()]
}

async fn assert_all_sound(group: &Group) {
    for dataset in group.datasets() {
        assert_sound(dataset).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_one_over_all_its_datasets() {
    for (store, _folder) in engines() {
        for store in weakened(&store) {
            let group = survey(&store).await;
            let old = tables("old", 12);
            let reports = write_all(&group, old.clone(), named("visit")).await.unwrap();
            assert_eq!(reports.iter().map(|report| report.rows).collect::<Vec<_>>(), [25, 40, 45]);
            assert!(reports.iter().all(|report| report.stored));
            assert_eq!(contents(&group).await, notes(&old));
            assert_all_sound(&group).await;

            let again = write_all(&group, old.clone(), named("visit")).await.unwrap();
            assert!(again.iter().all(|report| !report.stored), "{again:?}");
            assert_eq!(again.iter().map(|report| report.rows).collect::<Vec<_>>(), [25, 40, 45]);

            // The same rows in other datasets are different content.
            let swapped = vec![("sources", old[2].1.clone()), ("forced", old[1].1.clone()), old[0].clone()];
            let refused = write_all(&group, swapped, named("visit")).await;
            assert!(matches!(refused, Err(ArchiveError::BatchDiffers { .. })), "{refused:?}");

            // Datasets without rows in the new content are empty afterwards.
            let new = vec![("objects", spread_rows(3, 4, 2, "new")), ("forced", spread_rows(3, 2, 2, "new"))];
            let reports = write_all(&group, new.clone(), replacing("visit")).await.unwrap();
            assert_eq!(reports.len(), 2);
            assert_eq!(contents(&group).await, [id_notes(&new[0].1), vec![], id_notes(&new[1].1)]);
            let batch = group.batch("visit").await.unwrap().unwrap();
            let rows: Vec<_> = batch.datasets.iter().map(|(name, info)| (name.as_str(), info.rows)).collect();
            assert_eq!(rows, [("objects", 4), ("forced", 2)]);
            assert_eq!(group.batches().await.unwrap(), [batch]);
            assert_eq!(group.dataset("objects").unwrap().batch("visit").await.unwrap().unwrap().rows, 4);
            assert_eq!(group.dataset("sources").unwrap().batch("visit").await.unwrap(), None);
            assert_eq!(group.dataset("sources").unwrap().batches().await.unwrap(), []);
            assert_all_sound(&group).await;

            let refused = group.dataset("forced").unwrap().remove_batch("visit").await;
            assert!(refused.unwrap_err().to_string().contains("remove the batch from the group"));
            assert_eq!(group.remove_batch("visit").await.unwrap(), 6);
            assert_eq!(contents(&group).await, nothing());
            assert_eq!(group.batch("visit").await.unwrap(), None);
            assert!(matches!(group.remove_batch("visit").await, Err(ArchiveError::BatchNotFound { .. })));
            assert_all_sound(&group).await;
            archive(&store).drop_group("survey").await.unwrap();
            assert_eq!(archive(&store).dataset_names().await.unwrap(), Vec::<String>::new());
        }
    }
}

#[tokio::test]
async fn a_batch_of_one_dataset_of_a_group_is_a_batch_of_the_group() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let group = survey(&store).await;
    let unknown = group.dataset("force").unwrap_err().to_string();
    assert!(unknown.starts_with("no dataset \"force\" in group survey; "), "{unknown}");
    let alone = spread_rows(0, 9, 3, "alone");
    write(group.dataset("forced").unwrap(), &alone, named("one")).await.unwrap();
    // Another handle, as another process has it.
    let again = write_all(&survey(&store).await, vec![("forced", alone.clone())], named("one")).await.unwrap();
    assert!(!again[0].stored);
    let other = write(group.dataset("sources").unwrap(), &alone, named("one")).await;
    assert!(matches!(other, Err(ArchiveError::BatchDiffers { .. })));
    assert_eq!(contents(&group).await, [vec![], vec![], id_notes(&alone)]);
    assert_eq!(group.remove_batch("one").await.unwrap(), 9);
    assert_eq!(contents(&group).await, nothing());
}

/// A store that fails at one call, or from one call on.
fn failing(inner: Arc<dyn Store>, at: u64, after: bool, dead: bool) -> (Arc<dyn Store>, Arc<AtomicBool>) {
    let struck = Arc::new(AtomicBool::new(false));
    let strikes = struck.clone();
    let faulty = FaultyStore::new(inner, move |call| {
        if call.number < at {
            return Decision::Pass;
        }
        match (strikes.swap(true, Ordering::SeqCst), dead, after) {
            (true, false, _) => Decision::Pass,
            (false, _, true) => Decision::FailAfter("the fault of this test".into()),
            _ => Decision::FailBefore(StoreError::Refused { engine: "test", reason: "the fault of this test".into() }),
        }
    });
    (Arc::new(faulty), struck)
}

#[derive(Clone, Copy, Debug)]
enum Work {
    Write,
    Replace,
    Remove,
    RemoveConsolidated,
}

impl Work {
    async fn prepare(self, group: &Group) {
        if !matches!(self, Self::Write) {
            write_all(group, tables("old", 12), named("visit")).await.unwrap();
        }
        write_all(group, others(), named("other")).await.unwrap();
        if matches!(self, Self::RemoveConsolidated) {
            for dataset in group.datasets() {
                assert!(dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap().tiles > 0);
            }
        }
    }

    async fn run(self, group: &Group) -> Result<()> {
        match self {
            Self::Write => write_all(group, tables("new", 9), tight(named("visit"))).await.map(drop),
            Self::Replace => write_all(group, tables("new", 9), replacing("visit")).await.map(drop),
            Self::Remove | Self::RemoveConsolidated => match group.remove_batch("visit").await {
                Err(ArchiveError::BatchNotFound { .. }) => Ok(()),
                removed => removed.map(drop),
            },
        }
    }

    /// What the datasets hold before and after.
    fn states(self) -> [Vec<Vec<(i64, String)>>; 2] {
        let with_others = |tables: Vec<(&'static str, RecordBatch)>| {
            let mut all = notes(&others());
            for (part, more) in all.iter_mut().zip(notes(&tables)) {
                part.extend(more);
                part.sort();
            }
            all
        };
        let (old, new) = (with_others(tables("old", 12)), with_others(tables("new", 9)));
        match self {
            Self::Write => [notes(&others()), new],
            Self::Replace => [old, new],
            Self::Remove | Self::RemoveConsolidated => [old, notes(&others())],
        }
    }
}

fn others() -> Vec<(&'static str, RecordBatch)> {
    NAMES.map(|name| (name, spread_rows(1_000, 12, 12, "other"))).to_vec()
}

#[tokio::test(flavor = "multi_thread")]
async fn work_that_is_cut_off_anywhere_shows_all_of_a_batch_or_nothing_and_is_repeated() {
    for work in [Work::Write, Work::Replace, Work::Remove, Work::RemoveConsolidated] {
        for stepwise in [false, true] {
            for (after, dead) in [(false, false), (true, false), (false, true), (true, true)] {
                for call in 0.. {
                    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
                    let store =
                        if stepwise { Arc::new(LimitedStore::stepwise(store)) as Arc<dyn Store> } else { store };
                    work.prepare(&survey(&store).await).await;
                    let struck = cut_off(work, &store, call, after, dead).await;
                    let what = format!("{work:?} stepwise {stepwise} after {after} dead {dead} call {call}");
                    let group = survey(&store).await;
                    let [before, done] = work.states();
                    let seen = contents(&group).await;
                    assert!(seen == before || seen == done, "{what}: {seen:?}");
                    work.run(&group).await.unwrap_or_else(|error| panic!("{what}: {error}"));
                    assert_eq!(contents(&group).await, done, "{what}");
                    for dataset in group.datasets() {
                        dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap();
                    }
                    assert_eq!(contents(&group).await, done, "{what}");
                    assert_all_sound(&group).await;
                    if !struck {
                        break;
                    }
                }
            }
        }
    }
}

/// Does the work on a store that fails at one call; returns whether it failed.
async fn cut_off(work: Work, store: &Arc<dyn Store>, call: u64, after: bool, dead: bool) -> bool {
    let (faulty, struck) = failing(store.clone(), call, after, dead);
    if let Ok(group) = archive(&faulty).group("survey").await {
        let _ = work.run(&group).await;
    }
    struck.load(Ordering::SeqCst)
}

#[tokio::test(start_paused = true)]
async fn slices_of_one_dataset_are_retired_by_themselves() {
    for (store, _folder) in engines() {
        for store in weakened(&store) {
            let group = survey(&store).await;
            let old = tables("old", 12);
            write_all(&group, old.clone(), named("visit")).await.unwrap();
            let objects = group.dataset("objects").unwrap();
            let limit = RetireLimit::Before(Instant::NativeTicks(6 * HOUR));
            let dropped = objects.retire(limit, false).await.unwrap();
            assert_eq!(dropped.len(), 2);
            assert!(dropped.iter().all(|slice| slice.ticks.1 <= 6 * HOUR));
            let gone: u64 = dropped.iter().map(|slice| slice.rows).sum();
            assert!(gone > 0);
            let seen = contents(&group).await;
            assert_eq!(seen[1..], notes(&old)[1..]);
            assert_eq!(seen[0].len() as u64, 25 - gone);
            let batch = group.batch("visit").await.unwrap().unwrap();
            let retired: Vec<u64> = batch.datasets.iter().map(|(_, info)| info.rows_retired).collect();
            assert_eq!(retired, [gone, 0, 0]);
            assert_all_sound(&group).await;
            // Writing it again completes it.
            let again = write_all(&group, old.clone(), named("visit")).await.unwrap();
            assert!(again.iter().all(|report| report.stored));
            assert_eq!(contents(&group).await, notes(&old));
            assert_all_sound(&group).await;
            archive(&store).drop_group("survey").await.unwrap();
        }
    }
}

/// Writers are told that slices will go, and are waited for, once for all datasets.
#[tokio::test(start_paused = true)]
async fn slices_of_several_datasets_are_retired_in_the_time_of_one() {
    for fails in [false, true] {
        let memory: Arc<dyn Store> = Arc::new(MemoryStore::new());
        // A slice of one dataset cannot be dropped: those of the others go all the same.
        let failed = AtomicBool::new(!fails);
        let store = FaultyStore::new(memory.clone(), move |call| match call.operation {
            Operation::DropSlice if !failed.swap(true, Ordering::SeqCst) => {
                Decision::FailBefore(StoreError::Refused { engine: "test", reason: "the fault of this test".into() })
            }
            _ => Decision::Pass,
        });
        let store: Arc<dyn Store> = Arc::new(LimitedStore::stepwise(Arc::new(store)));
        let group = survey(&store).await;
        write_all(&group, tables("old", 12), named("visit")).await.unwrap();
        let before = contents(&group).await;
        let (limit, began) = (RetireLimit::Before(Instant::NativeTicks(6 * HOUR)), tokio::time::Instant::now());
        let retired = group.retire(&["objects", "sources", "forced"], limit, false).await;
        assert!(began.elapsed() < std::time::Duration::from_secs(13), "{:?}", began.elapsed());
        let left = contents(&group).await;
        let went: Vec<u64> =
            before.iter().zip(&left).map(|(before, left)| (before.len() - left.len()) as u64).collect();
        if fails {
            assert!(retired.unwrap_err().to_string().contains("the fault of this test"));
            assert_eq!(went.iter().filter(|rows| **rows > 0).count(), 2);
        } else {
            let reported: Vec<(String, u64)> = retired
                .unwrap()
                .into_iter()
                .map(|(name, slices)| (name.to_string(), slices.iter().map(|slice| slice.rows).sum()))
                .collect();
            assert_eq!(
                reported,
                ["objects", "sources", "forced"].map(str::to_owned).into_iter().zip(went).collect::<Vec<_>>()
            );
            assert_all_sound(&group).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn slices_that_are_shared_are_retired_together() {
    for (store, _folder) in engines() {
        for store in weakened(&store) {
            let group = survey(&store).await;
            let old = tables("old", 12);
            write_all(&group, old.clone(), named("visit")).await.unwrap();
            let limit = RetireLimit::Before(Instant::NativeTicks(4 * HOUR));
            let [sources, forced] = ["sources", "forced"].map(|name| group.dataset(name).unwrap());
            for refused in [
                sources.retire(limit, false).await.unwrap_err(),
                forced.retire_unchanged(&[]).await.unwrap_err(),
                group.retire(&["objects", "forced"], limit, false).await.unwrap_err(),
            ] {
                assert!(matches!(refused, ArchiveError::Request { .. }), "{refused:?}");
                assert!(refused.to_string().contains("its slices also hold rows of"), "{refused}");
            }
            let nothing_in_common = group.retire_unchanged(&NAMES, &[]).await.unwrap_err();
            assert!(nothing_in_common.to_string().contains("do not share their slices"), "{nothing_in_common}");
            assert_eq!(contents(&group).await, notes(&old));

            let planned = group.retire(&["sources", "forced"], limit, true).await.unwrap();
            assert_eq!(planned[0].1, sources.retire(limit, true).await.unwrap());
            assert_eq!(planned[1].1, forced.retire(limit, true).await.unwrap());
            let prints: Vec<_> = planned[0].1.iter().map(|slice| (slice.slice, slice.fingerprint)).collect();
            // What comes to one of them changes the slice for both.
            let late = vec![("forced", spread_rows(100, 3, 1, "late"))];
            write_all(&group, late.clone(), named("late")).await.unwrap();
            let dropped = group.retire_unchanged(&["sources", "forced"], &prints).await.unwrap();
            let kept = planned[0].1.len() - 1;
            assert_eq!(dropped.iter().map(|(_, slices)| slices.len()).collect::<Vec<_>>(), [kept, kept]);

            let dropped = group.retire(&["forced", "sources"], limit, false).await.unwrap();
            assert_eq!(dropped.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["forced", "sources"]);
            let rows = |slices: &[chronotile_archive::SliceInfo]| slices.iter().map(|slice| slice.rows).sum::<u64>();
            assert_eq!(rows(&dropped[1].1), planned[0].1[0].rows);
            assert_eq!(rows(&dropped[0].1), planned[1].1[0].rows + 3);
            let seen = contents(&group).await;
            assert_eq!(seen[0], notes(&old)[0]);
            let left = |place: usize, all: u64| all - rows(&planned[place].1);
            assert_eq!((seen[1].len() as u64, seen[2].len() as u64), (left(0, 40), left(1, 45)));
            let batch = group.batch("visit").await.unwrap().unwrap();
            let retired: Vec<u64> = batch.datasets.iter().map(|(_, info)| info.rows_retired).collect();
            assert_eq!(retired, [0, rows(&planned[0].1), rows(&planned[1].1)]);
            assert_all_sound(&group).await;
            // Writing it again completes it.
            let again = write_all(&group, old.clone(), named("visit")).await.unwrap();
            assert!(again.iter().all(|report| report.stored));
            assert_eq!(contents(&group).await, notes(&old));
            assert_all_sound(&group).await;
            archive(&store).drop_group("survey").await.unwrap();
        }
    }
}

/// A store that counts its calls by kind.
fn counting(below: Arc<dyn Store>) -> (Arc<dyn Store>, impl Fn(Operation) -> u64) {
    let calls: Arc<[AtomicU64; Operation::ALL.len()]> = Arc::default();
    let counted = calls.clone();
    let store = FaultyStore::new(below, move |call| {
        counted[call.operation as usize].fetch_add(1, Ordering::SeqCst);
        Decision::Pass
    });
    (Arc::new(store), move |operation| calls[operation as usize].load(Ordering::SeqCst))
}

#[tokio::test]
async fn datasets_that_share_slices_are_consolidated_together_as_each_by_itself() {
    for stepwise in [false, true] {
        let [apart, together] = [(); 2].map(|()| {
            let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
            counting(if stepwise { Arc::new(LimitedStore::stepwise(store)) } else { store })
        });
        let [(apart, calls_apart), (together, calls_together)] = [apart, together];
        let [apart, together] = [survey(&apart).await, survey(&together).await];
        for part in 0..4 {
            for group in [&apart, &together] {
                let rows = tables(&format!("part {part}"), 12);
                write_all(group, rows, named(&format!("visit {part}"))).await.unwrap();
            }
        }
        let before = contents(&together).await;
        let counts = |calls: &dyn Fn(Operation) -> u64| [Operation::Statistics, Operation::Commit].map(calls);
        let began = [counts(&calls_apart), counts(&calls_together)];
        let mut expected = Vec::new();
        for dataset in apart.datasets() {
            let report = dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap();
            assert!(report.tiles > 0);
            expected.push((dataset.spec().name.to_string(), report.tiles, report.chunks_before, report.chunks_after));
        }
        let progress = std::sync::Mutex::new((0, 0));
        let note = |done: u64, total: u64| *progress.lock().unwrap() = (done, total);
        let found = together.consolidate(&NAMES, ConsolidateOptions::default(), Some(&note)).await.unwrap();
        let ended = [counts(&calls_apart), counts(&calls_together)];
        let found = found.into_iter().map(|(name, r)| (name.to_string(), r.tiles, r.chunks_before, r.chunks_after));
        assert_eq!(found.collect::<Vec<_>>(), expected);
        let tiles = expected.iter().map(|(_, tiles, ..)| tiles).sum();
        assert_eq!(*progress.lock().unwrap(), (tiles, tiles));
        assert_eq!(contents(&together).await, before);
        for (name, info) in together.info(&NAMES).await.unwrap() {
            assert_eq!(info, together.dataset(name.as_str()).unwrap().info().await.unwrap());
        }
        // Each shared slice is read once instead of twice, and each of its partitions is replaced once.
        let calls = |of: usize, what: usize| ended[of][what] - began[of][what];
        let shared = together.dataset("sources").unwrap().info().await.unwrap().slices.len() as u64;
        assert_eq!(calls(0, 0) - calls(1, 0), shared);
        assert_eq!(calls(0, 1) - calls(1, 1), shared);
    }
}

#[tokio::test]
async fn shards_are_all_of_the_work_and_do_not_meet() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let group = survey(&store).await;
    for part in 0..3 {
        let rows = tables(&format!("part {part}"), 12);
        write_all(&group, rows, named(&format!("visit {part}"))).await.unwrap();
    }
    let before = contents(&group).await;
    let tiles = async |shard: Option<Shard>, dry_run: bool| {
        let options = ConsolidateOptions { shard, dry_run, ..Default::default() };
        let reports = group.consolidate(&NAMES, options, None).await.unwrap();
        reports.into_iter().map(|(_, report)| report.tiles).sum::<u64>()
    };
    let all = tiles(None, true).await;
    assert_eq!(tiles(Shard::new(1, 1), true).await, all);
    let mut done = Vec::new();
    for number in 1..=3 {
        let shard = Shard::new(number, 3);
        let own = tiles(shard, true).await;
        assert_eq!(tiles(shard, false).await, own, "{number}: no other shard rewrites its tiles");
        assert_eq!(tiles(shard, true).await, 0);
        done.push(own);
    }
    assert_eq!(done.iter().sum::<u64>(), all);
    assert!(done.iter().all(|own| *own > all / 10), "{done:?} of {all}");
    assert_eq!(tiles(None, true).await, 0);
    assert_eq!(contents(&group).await, before);
    for (number, of) in [(0, 3), (4, 3), (1, 0), (0, 0)] {
        assert_eq!(Shard::new(number, of), None);
    }
}

#[tokio::test(start_paused = true)]
async fn consolidation_takes_the_time_that_its_rate_asks_for() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let group = survey(&store).await;
    for part in 0..2 {
        write_all(&group, tables(&format!("part {part}"), 12), named(&format!("visit {part}"))).await.unwrap();
    }
    let run = async |tiles_per_s, dry_run| {
        let began = tokio::time::Instant::now();
        let options = ConsolidateOptions { tiles_per_s, dry_run, ..Default::default() };
        group.consolidate(&NAMES, options, None).await.map(|reports| {
            let tiles: u64 = reports.iter().map(|(_, report)| report.tiles).sum();
            (tiles, began.elapsed().as_secs_f64())
        })
    };
    for wrong in [0.0, -1.0, f64::NAN] {
        let refused = run(Some(wrong), false).await.unwrap_err();
        assert!(refused.to_string().contains("give a number above 0"), "{refused}");
    }
    let (planned, took) = run(Some(0.25), true).await.unwrap();
    assert!(planned > 50 && took < 1.0, "{planned} tiles, {took} s");
    let (tiles, took) = run(Some(0.25), false).await.unwrap();
    assert_eq!(tiles, planned);
    assert!((4.0 * tiles as f64..4.0 * tiles as f64 + 1.0).contains(&took), "{tiles} tiles, {took} s");
}

#[tokio::test]
async fn one_scan_serves_reads_of_datasets_that_share_slices() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let group = survey(&store).await;
    let old = tables("old", 12);
    write_all(&group, old.clone(), named("visit")).await.unwrap();
    let count = Arc::new(AtomicU64::new(0));
    let counted = count.clone();
    let watched: Arc<dyn Store> = Arc::new(FaultyStore::new(store.clone(), move |call| {
        counted.fetch_add(u64::from(call.operation == Operation::Scan), Ordering::SeqCst);
        Decision::Pass
    }));
    let group = archive(&watched).group("survey").await.unwrap();
    let scans = || count.load(Ordering::SeqCst);
    let between = |start: i64, end: i64| ReadRequest {
        time: TimeRange {
            start: Some(Instant::NativeTicks(start * HOUR)),
            end: Some(Instant::NativeTicks(end * HOUR)),
        },
        ..ReadRequest::default()
    };
    let both = vec![("sources", between(0, 2)), ("forced", between(0, 2))];
    // A batch that ended recently is looked up when it is first found.
    group.read(both.clone()).await.unwrap();
    let before = scans();
    let found = group.read(both).await.unwrap();
    let joint = scans() - before;
    let alone = read(group.dataset("sources").unwrap(), between(0, 2)).await.unwrap();
    let apart = scans() - before - joint;
    assert_eq!((joint, apart), (1, 1));
    assert_eq!(id_notes(&found[0].1[0]), id_notes(&alone));
    // Other times for each, and of one of them none.
    for (first, second) in [(between(0, 4), between(2, 9)), (between(3, 3), between(0, 12))] {
        let requests = vec![("sources", first), ("forced", second)];
        let found = group.read(requests.clone()).await.unwrap();
        for ((name, request), (schema, batches)) in requests.into_iter().zip(found) {
            let together = arrow_select::concat::concat_batches(&schema, &batches).unwrap();
            let alone = read(group.dataset(name).unwrap(), request).await.unwrap();
            assert_eq!(id_notes(&together), id_notes(&alone), "{name}");
        }
    }
    // Lookups by id scan heads separately for each dataset, and no more than alone.
    let by_id = |id: i64| ReadRequest {
        ids: Some(vec![Arc::new(arrow_array::Int64Array::from(vec![id]))]),
        ..ReadRequest::default()
    };
    let before = scans();
    let found = group.read(vec![("sources", by_id(7)), ("forced", by_id(44))]).await.unwrap();
    assert_eq!(found.iter().map(|(_, batches)| ids(&batches[0])).collect::<Vec<_>>(), [[7], [44]]);
    assert_eq!(scans() - before, 2);
    // So do reads of other cells.
    let cells = |cells: Vec<i64>| ReadRequest { cells: CellSelection::Cells(cells), ..ReadRequest::default() };
    let before = scans();
    let found = group.read(vec![("sources", cells(vec![1])), ("forced", cells(vec![1, 2]))]).await.unwrap();
    assert!(found.iter().all(|(_, batches)| !batches.is_empty()));
    let apart = scans() - before;
    group.read(vec![("sources", cells(vec![1])), ("forced", cells(vec![1]))]).await.unwrap();
    assert!(scans() - before - apart < apart, "the same cells are scanned once");
}

/// One of the reads asks for all versions, the other only for the newest.
#[tokio::test]
async fn reads_of_a_shared_scan_get_older_versions_where_they_ask_for_them() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let archive = archive(&store);
    for name in ["sources", "forced"] {
        let merge = MergeRule::Latest { version: None };
        let ids = vec!["id".to_owned(), "t".to_owned()];
        archive.create(DatasetSpec { merge, id: ids, ..member(name, "survey") }, true).await.unwrap();
    }
    let group = archive.group("survey").await.unwrap();
    for note in ["old", "new"] {
        let tables = ["sources", "forced"].map(|name| (name, spread_rows(0, 20, 4, note)));
        write_all(&group, tables.to_vec(), named(note)).await.unwrap();
    }
    for dataset in group.datasets() {
        let options = ConsolidateOptions { older_min: Some(1), ..ConsolidateOptions::default() };
        dataset.consolidate(options, None).await.unwrap();
    }
    let history = ReadRequest { history: true, ..ReadRequest::default() };
    for requests in [
        vec![("sources", history.clone()), ("forced", ReadRequest::default())],
        vec![("sources", ReadRequest::default()), ("forced", history)],
    ] {
        let found = group.read(requests.clone()).await.unwrap();
        for ((name, request), (schema, batches)) in requests.into_iter().zip(found) {
            let together = arrow_select::concat::concat_batches(&schema, &batches).unwrap();
            let versions = if request.history { 2 } else { 1 };
            let alone = read(group.dataset(name).unwrap(), request).await.unwrap();
            assert_eq!((id_notes(&together), together.num_rows()), (id_notes(&alone), 20 * versions), "{name}");
        }
    }
}

#[tokio::test]
async fn a_shared_scan_that_fails_fails_all_of_its_reads() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let old = tables("old", 12);
    write_all(&survey(&store).await, old.clone(), named("visit")).await.unwrap();
    let mut struck_reads = 0;
    for at in 0.. {
        let (faulty, struck) = failing(store.clone(), at, true, false);
        let group = archive(&faulty).group("survey").await;
        let reads = || NAMES.map(|name| (name, ReadRequest::default())).to_vec();
        let found = match group {
            Ok(group) => group.read(reads()).await,
            Err(error) => Err(error),
        };
        if !struck.load(Ordering::SeqCst) {
            break;
        }
        match found {
            Err(_) => struck_reads += 1,
            Ok(found) => {
                for ((_, expected), (schema, batches)) in old.iter().zip(found) {
                    let rows = arrow_select::concat::concat_batches(&schema, &batches).unwrap();
                    assert_eq!(id_notes(&rows), id_notes(expected), "call {at}");
                }
            }
        }
    }
    assert!(struck_reads > 3, "{struck_reads}");
}

#[tokio::test]
async fn datasets_share_only_slices_that_fit() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let archive = archive(&store);
    survey(&store).await;
    let sharing = |owner: &str| {
        let slices_of = Some(SliceOwner { dataset: DatasetName::new(owner).unwrap(), number: 0 });
        let group = Membership { slices_of, ..Membership::of(DatasetName::new("survey").unwrap()) };
        DatasetSpec { name: DatasetName::new("more").unwrap(), group: Some(group), partition_cells: 4, ..spec() }
    };
    let short = DatasetSpec { window: "60s".parse().unwrap(), ..sharing("sources") };
    let refused = [
        (sharing("nothing"), "joined the same group before"),
        (sharing("more"), "joined the same group before"),
        (sharing("forced"), "not one that shares them"),
        (sharing("objects"), "have the same window"),
        (short, "have the same window"),
        (DatasetSpec { partition_cells: 1, ..sharing("sources") }, "have the same window"),
    ];
    for (spec, reason) in refused {
        let error = archive.create(spec, false).await.unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
    archive.create(sharing("sources"), false).await.unwrap();
    archive.create(sharing("sources"), true).await.unwrap();
    let other = DatasetSpec { group: Some(Membership::of(DatasetName::new("survey").unwrap())), ..sharing("sources") };
    let error = archive.create(other, true).await.unwrap_err().to_string();
    assert!(error.contains("owner of its slices"), "{error}");
}

#[tokio::test]
async fn a_batch_is_taken_out_of_consolidated_chunks_that_have_columns_added_by_others() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let group = survey(&store).await;
    write_all(&group, tables("old", 2), named("visit")).await.unwrap();
    // Another process.
    let theirs = survey(&store).await;
    let forced = theirs.dataset("forced").unwrap();
    let field = arrow_schema::Field::new("more", arrow_schema::DataType::Int64, true);
    forced.add_columns(vec![AddedColumn { field, default: None }]).await.unwrap();
    write_all(&theirs, others(), named("other")).await.unwrap();
    for dataset in theirs.datasets() {
        assert!(dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap().tiles > 0);
    }
    assert_eq!(group.remove_batch("visit").await.unwrap(), 110);
    assert_eq!(contents(&theirs).await, notes(&others()));
    assert_all_sound(&theirs).await;
}

#[tokio::test]
async fn a_group_is_copied_as_one() {
    let (source, target): (Arc<dyn Store>, Arc<dyn Store>) =
        (Arc::new(MemoryStore::new()), Arc::new(MemoryStore::new()));
    let group = survey(&source).await;
    archive(&source).create(spec(), false).await.unwrap();
    write_all(&group, tables("old", 12), named("visit")).await.unwrap();
    let one = CopyOptions { datasets: Some(vec!["sources".into()]), ..CopyOptions::default() };
    let refused = archive(&source).copy_to(&archive(&target), one, None).await;
    assert!(refused.unwrap_err().to_string().contains("also name dataset"));
    for stage in 0..3 {
        match stage {
            1 => {
                let forced = group.dataset("forced").unwrap();
                let field = arrow_schema::Field::new("more", arrow_schema::DataType::Int64, true);
                forced.add_columns(vec![AddedColumn { field, default: None }]).await.unwrap();
                write_all(&group, others(), named("other")).await.unwrap();
                for dataset in group.datasets() {
                    dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap();
                }
            }
            2 => _ = group.remove_batch("visit").await.unwrap(),
            _ => {}
        }
        let report = archive(&source).copy_to(&archive(&target), CopyOptions::default(), None).await.unwrap();
        assert!(report.datasets.iter().all(|copied| copied.differences.is_empty() && copied.caught_up), "{report:?}");
        assert_eq!(
            report.datasets.iter().map(|copied| copied.dataset.as_str()).collect::<Vec<_>>(),
            ["survey", "records"]
        );
        let there = archive(&target).group("survey").await.unwrap();
        assert_eq!(contents(&there).await, contents(&group).await, "{stage}");
        assert_all_sound(&there).await;
    }
}

#[tokio::test]
async fn names_are_of_one_dataset_or_one_group() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let archive = archive(&store);
    let group = survey(&store).await;
    assert_eq!(archive.group_names().await.unwrap(), ["survey"]);
    let alone = |name: &str| DatasetSpec { name: DatasetName::new(name).unwrap(), ..spec() };
    let taken = archive.create(alone("survey"), false).await;
    assert!(taken.unwrap_err().to_string().contains("choose another"));
    archive.create(alone("single"), false).await.unwrap();
    let taken = archive.create(member("objects2", "single"), false).await;
    assert!(taken.unwrap_err().to_string().contains("choose another"));
    let other = archive.create(member("objects", "elsewhere"), true).await;
    assert!(other.unwrap_err().to_string().contains("with another group"));
    assert!(archive.group("survy").await.unwrap_err().to_string().contains("survey"));
    assert!(group.dataset("sorces").unwrap_err().to_string().contains("sources"));
    assert!(archive.drop_dataset("objects").await.unwrap_err().to_string().contains("drop the whole group survey"));
    let twice = write_all(&group, vec![tables("a", 2)[0].clone(), tables("a", 2)[0].clone()], named("x")).await;
    assert!(twice.unwrap_err().to_string().contains("named twice"));
    assert!(write_all(&group, vec![], named("x")).await.unwrap_err().to_string().contains("at least one dataset"));
    for number in 0..13 {
        archive.create(member(&format!("more{number}"), "survey"), false).await.unwrap();
    }
    let full = archive.create(member("more13", "survey"), false).await;
    assert!(full.unwrap_err().to_string().contains("at most 16 datasets"));
    let numbers: Vec<u8> = archive
        .group("survey")
        .await
        .unwrap()
        .datasets()
        .iter()
        .map(|dataset| dataset.spec().group.clone().unwrap().number)
        .collect();
    assert_eq!(numbers, (0..16).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_dataset_that_joins_a_group_knows_the_others_at_once() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    for (name, sharers) in NAMES.into_iter().zip([&[][..], &[], &["sources"]]) {
        let joined = archive(&store).create(member(name, "survey"), false).await.unwrap();
        let names: Vec<String> = joined.shares_slices_with().iter().map(ToString::to_string).collect();
        assert_eq!(names, sharers, "{name}");
    }
    let sources = open(&store, "sources").await;
    assert_eq!(sources.shares_slices_with(), [DatasetName::new("forced").unwrap()]);
}

#[tokio::test(flavor = "multi_thread")]
async fn datasets_join_a_group_at_the_same_moment() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let create = |number: usize| {
        let archive: Archive = archive(&store);
        async move { archive.create(member(&format!("d{number}"), "survey"), true).await.map(drop) }
    };
    futures::future::try_join_all((0..16).map(create)).await.unwrap();
    assert_eq!(archive(&store).group("survey").await.unwrap().datasets().len(), 16);
}

#[tokio::test]
async fn a_group_notices_columns_that_others_add_and_that_it_was_dropped() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let group = survey(&store).await;
    write_all(&group, tables("old", 2), named("visit")).await.unwrap();
    let theirs = survey(&store).await;
    let field = arrow_schema::Field::new("more", arrow_schema::DataType::Int64, true);
    theirs.dataset("forced").unwrap().add_columns(vec![AddedColumn { field, default: None }]).await.unwrap();
    let columns = async |group: &Group| {
        let found = group.read(vec![("forced", ReadRequest::default()), ("objects", ReadRequest::default())]).await;
        found.map(|found| found.iter().map(|(schema, _)| schema.fields().len()).collect::<Vec<_>>())
    };
    assert_eq!(columns(&group).await.unwrap(), [6, 5]);
    archive(&store).drop_group("survey").await.unwrap();
    for error in [columns(&group).await.map(drop), write_all(&group, tables("new", 2), named("x")).await.map(drop)] {
        assert!(matches!(error, Err(ArchiveError::GroupNotFound { .. })), "{error:?}");
    }
    // After it is created again, it has none of the old rows.
    let again = survey(&store).await;
    assert_eq!(contents(&again).await, nothing());
    assert_eq!(columns(&group).await.unwrap(), [5, 5]);
    assert_eq!(contents(&group).await, nothing());
}
