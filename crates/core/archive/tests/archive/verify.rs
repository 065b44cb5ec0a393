//! What verification finds besides damaged chunks: lost rows, chunks without a batch, damaged catalog records.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow_array::StringArray;
use bytes::Bytes;
use chronotile_archive::{
    Archive, ArchiveError, ConsolidateOptions, CopyOptions, Dataset, IndexBuildOptions, RetireLimit, VerifyReport,
};
use chronotile_memory::MemoryStore;
use chronotile_store::{
    CLOCK_KEY, Chunk, Commit, Decision, DropSlice, Expect, FaultyStore, Record, RecordPut, Store, StoreError,
};
use chronotile_types::{BatchId, CellRule, Damage, DatasetSpec, Instant};

use crate::common::*;
use crate::groups;
use crate::interposed::{Action, Interposed};

async fn consolidated(store: &Arc<dyn Store>) -> Dataset {
    let dataset = create(store, spec()).await;
    for batch in 0..5 {
        let note = format!("{batch}");
        write(&dataset, &spread_rows(batch * 60, 60, 1, &note), named(&note)).await.unwrap();
    }
    dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap();
    dataset
}

async fn remove(store: &Arc<dyn Store>, chunk: &Chunk) {
    store.commit(&placed(), Commit { remove: vec![chunk.key], ..Commit::default() }).await.unwrap();
}

fn counts(report: &VerifyReport) -> (usize, u64, usize, usize) {
    let rows = report.rows_missing.iter().map(|missing| missing.rows).sum();
    (report.damage.len(), rows, report.foreign.len(), report.records.len())
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_a_lost_consolidated_chunk_are_found_by_batch() {
    for (store, _folder) in engines() {
        let dataset = consolidated(&store).await;
        for chunk in chunks(store.as_ref(), &placed()).await {
            remove(&store, &chunk).await;
            let report = dataset.verify(None).await.unwrap();
            // All of the tile is gone, which is told chunk by chunk as it was written: five batches had one each.
            assert_eq!(counts(&report), (5, 0, 0, 0));
            assert!(report.damage.iter().all(|damage| damage.tile == chunk.key.tile && damage.damage.is_none()));
            assert_eq!(report.damage.iter().map(|damage| damage.rows).sum::<u64>(), u64::from(chunk.rows));
            put_chunks(store.as_ref(), &placed(), vec![chunk]).await;
        }
        assert_sound(&dataset).await;
    }
}

/// A tile of two batches, consolidated into several chunks with rows of both.
async fn several_chunks(store: &Arc<dyn Store>, id: Vec<String>) -> (Dataset, Vec<Chunk>) {
    let dataset = create(store, DatasetSpec { id, ..spec() }).await;
    let mut written = Vec::new();
    for batch in 0..2 {
        let note = format!("{batch}").repeat(100_000);
        let rows = noted(&(0..20).map(|row| (row * 2 + batch, row * 2 + batch, 0)).collect::<Vec<_>>(), &note);
        write(&dataset, &rows, named(&format!("batch {batch}"))).await.unwrap();
        written = chunks(store.as_ref(), &placed()).await;
    }
    dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap();
    assert!(chunks(store.as_ref(), &placed()).await.len() > 1);
    (dataset, written)
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_one_of_several_consolidated_chunks_are_missed() {
    for ((store, _folder), id) in engines().into_iter().zip([spec().id, vec![]]) {
        let (dataset, written) = several_chunks(&store, id).await;
        let all = chunks(store.as_ref(), &placed()).await;
        remove(&store, &all[0]).await;
        let lost = u64::from(all[0].rows);
        let report = dataset.verify(None).await.unwrap();
        assert_eq!(counts(&report), (0, lost, 0, 0));
        let mut keys: Vec<_> = report.rows_missing.iter().map(|missing| missing.key.as_deref()).collect();
        keys.sort_unstable();
        assert_eq!(keys, [Some("batch 0"), Some("batch 1")]);
        // A chunk that comes back from before the consolidation holds some of the rows twice, and hides no loss.
        put_chunks(store.as_ref(), &placed(), vec![written[0].clone()]).await;
        let report = dataset.verify(None).await.unwrap();
        let found = counts(&report);
        assert!(found.1 > 0 && found.1 <= lost, "{found:?}");
        put_chunks(store.as_ref(), &placed(), vec![all[0].clone()]).await;
        assert_sound(&dataset).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_that_became_one_are_not_missed() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let dataset = create(&store, spec()).await;
    let step = |first: i64, note: &str| {
        noted(&(first..first + 4).map(|id| (id, id, 0)).collect::<Vec<_>>(), &note.repeat(400_000))
    };
    // A step is put once a mebibyte has come; each has ids of the one before, the last one also its rows.
    let steps = [step(0, "x"), step(2, "y"), step(4, "z"), step(4, "z")];
    dataset.write(input(steps), tight(named("steps"))).await.unwrap();
    let batch = chronotile_types::BatchId::of_key("steps");
    let record = store.record(&format!("batch/records/{batch}")).await.unwrap().unwrap();
    let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    assert_eq!((record["rows"].as_u64(), record["repeated"].as_u64()), (Some(16), Some(8)));
    assert_sound(&dataset).await;
    dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap();
    assert_eq!(read_all(&dataset).await.num_rows(), 8);
    assert_sound(&dataset).await;
    let all = chunks(store.as_ref(), &placed()).await;
    remove(&store, &all[0]).await;
    assert!(!dataset.verify(None).await.unwrap().ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_slice_that_was_not_retired_is_missed() {
    for (store, _folder) in engines() {
        let dataset = create(&store, spec()).await;
        write(&dataset, &rows(&[(0, 1, 0), (5 * HOUR, 2, 0)]), named("a")).await.unwrap();
        let slices = store.slices(&placed()).await.unwrap();
        store.drop_slice(&placed(), slices[0], DropSlice::default()).await.unwrap();
        assert_eq!(counts(&dataset.verify(None).await.unwrap()), (1, 0, 0, 0));
    }
}

#[tokio::test]
async fn a_batch_that_came_after_its_slice_was_retired_is_missed() {
    for (store, _folder) in engines() {
        let dataset = create(&store, spec()).await;
        write(&dataset, &rows(&[(0, 1, 0), (5 * HOUR, 2, 0)]), named("before")).await.unwrap();
        dataset.retire(RetireLimit::Before(Instant::NativeTicks(2 * HOUR)), false).await.unwrap();
        assert_sound(&dataset).await;
        write(&dataset, &rows(&[(0, 3, 0)]), named("after")).await.unwrap();
        let own = chunks(store.as_ref(), &placed()).await.remove(0);
        remove(&store, &own).await;
        let report = dataset.verify(None).await.unwrap();
        assert_eq!(report.damage.iter().map(|damage| damage.chunk).collect::<Vec<_>>(), [own.key.id]);
        assert_eq!(counts(&report), (1, 0, 0, 0));
    }
}

#[tokio::test]
async fn a_report_counts_what_was_read_slice_by_slice() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let dataset = create(&store, spec()).await;
    for batch in 0..3 {
        write(&dataset, &spread_rows(batch * 100, 40, 6, "a"), named(&batch.to_string())).await.unwrap();
    }
    dataset.remove_batch("1").await.unwrap();
    let all = chunks(store.as_ref(), &placed()).await;
    let seen = std::sync::Mutex::new(Vec::new());
    let report = dataset.verify(Some(&|done, total| seen.lock().unwrap().push((done, total)))).await.unwrap();
    let expected = VerifyReport {
        chunks: all.len() as u64,
        rows: 80,
        bytes: all.iter().map(|chunk| (chunk.head.len() + chunk.body.len()) as u64).sum(),
        batches: 2,
        ..VerifyReport::default()
    };
    assert_eq!(report, expected);
    assert_eq!(seen.into_inner().unwrap(), [(1, 3), (2, 3), (3, 3)]);
}

/// Puts a chunk written under one definition into a dataset whose definition would place its rows elsewhere. Returns
/// the damage found.
async fn misfiled(written: DatasetSpec, read: DatasetSpec, change: impl Fn(&mut Chunk)) -> String {
    let (store, elsewhere): (Arc<dyn Store>, Arc<dyn Store>) =
        (Arc::new(MemoryStore::new()), Arc::new(MemoryStore::new()));
    let writer = create(&elsewhere, written).await;
    write(&writer, &rows(&[(HOUR / 2, 7, 7), (3 * HOUR / 2, 7, 7)]), named("a")).await.unwrap();
    let dataset = create(&store, read).await;
    let mut chunk = chunks(elsewhere.as_ref(), &placed()).await.remove(0);
    change(&mut chunk);
    store.create_slice(&placed(), chunk.key.slice).await.unwrap();
    put_chunks(store.as_ref(), &placed(), vec![chunk.clone()]).await;
    let report = dataset.verify(None).await.unwrap();
    let found: Vec<_> = report.damage.iter().map(|damage| (damage.chunk, damage.rows)).collect();
    assert_eq!(found, [(chunk.key.id, u64::from(chunk.rows))], "{report:?}");
    report.damage.into_iter().filter_map(|damage| damage.damage).map(|damage: Damage| damage.to_string()).collect()
}

#[tokio::test]
async fn rows_that_lie_in_the_wrong_tile_are_damage() {
    let two_hours = DatasetSpec { window: "2h".parse().unwrap(), windows_per_slice: 1, ..spec() };
    let by_id = DatasetSpec { cell: CellRule::Value { column: "id".into() }, ..spec() };
    let same = |_: &mut Chunk| {};
    // Of the two rows, the later one belongs to the next window.
    assert!(misfiled(two_hours.clone(), spec(), same).await.contains("a row does not belong to its tile"));
    let single = DatasetSpec { cell: CellRule::Single, ..spec() };
    assert!(misfiled(single, by_id, same).await.contains("a row does not belong to its tile"));
    let fewer = |chunk: &mut Chunk| chunk.rows -= 1;
    assert!(misfiled(two_hours.clone(), two_hours, fewer).await.contains("its row count"));
}

/// What other processes may do while a dataset is verified.
const CHANGES: [&str; 6] = ["write", "replace", "replace consolidated", "remove", "remove consolidated", "consolidate"];

async fn change(dataset: &Dataset, change: &str) {
    match change {
        "write" => drop(write(dataset, &spread_rows(500, 20, 2, "new"), named("new")).await.unwrap()),
        "replace" => drop(write(dataset, &spread_rows(500, 20, 2, "new"), replacing("late")).await.unwrap()),
        "replace consolidated" => drop(write(dataset, &spread_rows(500, 20, 2, "new"), replacing("1")).await.unwrap()),
        "remove" => drop(dataset.remove_batch("late").await.unwrap()),
        "remove consolidated" => drop(dataset.remove_batch("1").await.unwrap()),
        _ => drop(dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap()),
    }
}

#[tokio::test]
async fn what_others_change_between_any_two_calls_of_a_verification_is_no_damage() {
    for stepwise in [false, true] {
        for what in CHANGES {
            for at in 0.. {
                let memory: Arc<dyn Store> = Arc::new(MemoryStore::new());
                let store = if stepwise { Arc::new(LimitedStore::stepwise(memory)) } else { memory };
                let dataset = consolidated(&store).await;
                write(&dataset, &spread_rows(400, 20, 2, "late"), named("late")).await.unwrap();
                let (other, happened) = (store.clone(), Arc::new(AtomicBool::new(false)));
                let noted = happened.clone();
                let action: Action = Box::new(move || {
                    let (other, noted) = (other.clone(), noted.clone());
                    Box::pin(async move {
                        noted.store(true, Ordering::SeqCst);
                        change(&open(&other, "records").await, what).await;
                    })
                });
                let busy = open(&Interposed::at(store.clone(), at, action), "records").await;
                let report = busy.verify(None).await.unwrap();
                assert!(report.ok(), "{what} at {at}, stepwise={stepwise}: {report:?}");
                if !happened.load(Ordering::SeqCst) {
                    assert!(at > 8, "verification made only {at} calls");
                    break;
                }
                assert_sound(&dataset).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn chunks_of_a_removed_batch_that_came_back_are_found_and_removed_again() {
    for (store, _folder) in engines() {
        let dataset = create(&store, spec()).await;
        write(&dataset, &spread_rows(0, 12, 1, "a"), named("a")).await.unwrap();
        let fresh = chunks(store.as_ref(), &placed()).await;
        write(&dataset, &spread_rows(12, 12, 1, "b"), named("b")).await.unwrap();
        dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap();
        let mixed = chunks(store.as_ref(), &placed()).await;
        dataset.remove_batch("a").await.unwrap();
        assert_sound(&dataset).await;
        for returned in [fresh, mixed] {
            let (count, rows) = (returned.len(), read_all(&dataset).await.num_rows());
            put_chunks(store.as_ref(), &placed(), returned.clone()).await;
            let report = dataset.verify(None).await.unwrap();
            assert_eq!(counts(&report), (0, 0, count, 0));
            let chunk = &report.foreign[0];
            assert_eq!((chunk.key.as_deref(), chunk.removed, chunk.replaced), (Some("a"), true, false));
            assert_eq!(report.foreign.iter().map(|chunk| chunk.rows).sum::<u64>(), 12);
            assert!(chunk.reason().contains("\"a\", which was removed"), "{}", chunk.reason());
            dataset.remove_batch("a").await.unwrap();
            assert_sound(&dataset).await;
            assert_eq!(read_all(&dataset).await.num_rows(), rows);
        }
        let error = dataset.remove_batch("a").await.unwrap_err();
        assert!(matches!(error, ArchiveError::BatchNotFound { .. }), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn chunks_of_replaced_content_and_of_unknown_batches_are_found() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let dataset = create(&store, spec()).await;
    write(&dataset, &rows(&[(0, 1, 0)]), named("a")).await.unwrap();
    let old = chunks(store.as_ref(), &placed()).await;
    write(&dataset, &rows(&[(1, 2, 0)]), replacing("a")).await.unwrap();
    put_chunks(store.as_ref(), &placed(), old).await;
    let report = dataset.verify(None).await.unwrap();
    assert_eq!((counts(&report), report.foreign[0].replaced), ((0, 0, 1, 0), true));
    dataset.remove_batch("a").await.unwrap();
    assert_sound(&dataset).await;
    write(&dataset, &rows(&[(0, 1, 0)]), named("b")).await.unwrap();
    for kind in ["batch", "part"] {
        for record in records(&store, &format!("{kind}/records/")).await {
            put_record(&store, &record.key, None).await;
        }
    }
    let report = dataset.verify(None).await.unwrap();
    assert_eq!(counts(&report), (0, 0, 1, 0));
    let chunk = &report.foreign[0];
    assert_eq!((&chunk.key, chunk.removed, chunk.replaced, chunk.rows), (&None, false, false, 1));
}

#[tokio::test]
async fn all_damaged_records_are_named_once() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let dataset = consolidated(&store).await;
    let mut damaged = Vec::new();
    for kind in ["batch", "part"] {
        for record in records(&store, &format!("{kind}/records/")).await {
            put_record(&store, &record.key, Some(Bytes::from_static(b"{}"))).await;
            damaged.push(record.key);
        }
    }
    let report = dataset.verify(None).await.unwrap();
    assert_eq!(
        report.records.iter().map(|record| &record.key).collect::<Vec<_>>(),
        damaged[..5].iter().collect::<Vec<_>>()
    );
    assert_eq!((counts(&report), report.batches), ((0, 0, 0, 5), 0), "nothing can be said of their rows");
}

/// Of a copy, rows may come before the records of their batches, and rows that were replaced on the source a moment ago.
#[tokio::test]
async fn rows_that_a_copy_brings_are_not_foreign() {
    const NOW_US: i64 = 1_700_000_000_000_000;
    for is_copy in [false, true] {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let at = |now_us: i64| archive(&store).with_machine_time(move || now_us);
        let dataset = at(NOW_US).create(spec(), true).await.unwrap();
        write(&dataset, &rows(&[(0, 1, 0)]), named("a")).await.unwrap();
        let old = chunks(store.as_ref(), &placed()).await;
        write(&dataset, &rows(&[(0, 2, 0)]), replacing("a")).await.unwrap();
        put_chunks(store.as_ref(), &placed(), old).await;
        write(&dataset, &rows(&[(HOUR, 3, 0)]), named("b")).await.unwrap();
        for kind in ["batch", "part"] {
            put_record(&store, &format!("{kind}/records/{}", BatchId::of_key("b")), None).await;
            for record in records(&store, &format!("{kind}/records/{}/", BatchId::of_key("b"))).await {
                put_record(&store, &record.key, None).await;
            }
        }
        if is_copy {
            put_record(&store, "copy/records", Some(Bytes::from_static(b"{}"))).await;
        }
        for (passed_us, of_copy) in [(HOUR - 1_000_000, 0), (HOUR + 1_000_000, 1)] {
            let foreign = at(NOW_US + passed_us).dataset("records").await.unwrap().verify(None).await.unwrap().foreign;
            assert_eq!(foreign.len(), if is_copy { of_copy } else { 2 }, "{is_copy} {passed_us}: {foreign:?}");
        }
    }
}

/// On a cluster, a write puts its first chunks before its first record in the catalog.
#[tokio::test(start_paused = true)]
async fn rows_of_a_write_that_may_have_begun_are_not_foreign_on_nodes_for_a_day() {
    const NOW_US: i64 = 1_700_000_000_000_000;
    for stepwise in [false, true] {
        let below: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let store = if stepwise { Arc::new(LimitedStore::stepwise(below.clone())) } else { below.clone() };
        let at = async |now_us: i64| {
            below.commit(&placed(), Commit { stamp_us: now_us, ..Commit::default() }).await.unwrap();
            archive(&store).with_machine_time(move || now_us).create(spec(), true).await.unwrap()
        };
        let dataset = at(NOW_US).await;
        write(&dataset, &rows(&[(0, 1, 0)]), named("first")).await.unwrap();
        let first = chunks(store.as_ref(), &placed()).await;
        dataset.remove_batch("first").await.unwrap();
        write(&dataset, &rows(&[(0, 2, 0)]), named("a")).await.unwrap();
        let a = chunks(store.as_ref(), &placed()).await;
        dataset.remove_batch("a").await.unwrap();
        write(&dataset, &rows(&[(0, 3, 0)]), named("never removed")).await.unwrap();
        let unknown = chunks(store.as_ref(), &placed()).await;
        for kind in ["batch", "part"] {
            for record in records(&store, &format!("{kind}/records/")).await {
                if record.key.contains(&BatchId::of_key("never removed").to_string())
                    || record.key.contains(&BatchId::of_key("a").to_string())
                {
                    put_record(&store, &record.key, None).await;
                }
            }
        }
        put_chunks(store.as_ref(), &placed(), [first, a].concat()).await;
        assert_eq!(unknown.len(), 1);
        // The rows of a batch whose removal is known are old ones that came back, whatever their age.
        for (passed_us, on_nodes) in [(24 * HOUR - 60_000_000, 1), (24 * HOUR + 60_000_000, 3)] {
            let foreign = at(NOW_US + passed_us).await.verify(None).await.unwrap().foreign;
            assert_eq!(foreign.len(), if stepwise { on_nodes } else { 3 }, "{stepwise} {passed_us}: {foreign:?}");
        }
    }
}

async fn records(store: &Arc<dyn Store>, prefix: &str) -> Vec<Record> {
    store.records(prefix, None, 1_000).await.unwrap()
}

async fn put_record(store: &Arc<dyn Store>, key: &str, value: Option<Bytes>) {
    let put = RecordPut { key: key.to_owned(), value, expect: Expect::Any };
    store.commit(&placed(), Commit { before: vec![put], ..Commit::default() }).await.unwrap();
}

/// Flips bits of every stored record and checks that verification names it. Returns the kinds of records.
async fn assert_every_flip_is_found(store: &Arc<dyn Store>, dataset: &Dataset) -> BTreeSet<String> {
    let mut of_kind: BTreeMap<String, Vec<Record>> = BTreeMap::new();
    let own = format!("dataset/{}", dataset.spec().name);
    let of_others = |key: &str| key == CLOCK_KEY || key.starts_with("dataset/") && key != own;
    for record in records(store, "").await.into_iter().filter(|record| !of_others(&record.key)) {
        let (kind, rest) = record.key.split_once('/').unwrap_or((&record.key, ""));
        // Pages of a list have another form than its head, so they are a kind of their own.
        let depth = rest.split('/').count();
        of_kind.entry(format!("{kind} {depth}")).or_default().push(record);
    }
    for record in of_kind.values().flat_map(|records| records.iter().take(2)) {
        for place in (0..record.value.len()).step_by(1 + record.value.len() / 40) {
            let mut bad = record.value.to_vec();
            bad[place] ^= 1 << (place % 8);
            put_record(store, &record.key, Some(bad.into())).await;
            let report = dataset.verify(None).await.unwrap();
            let named = report.records.iter().any(|damaged| damaged.key == record.key);
            assert!(named && !report.ok(), "{} byte {place}: {:?}", record.key, report.records);
        }
        put_record(store, &record.key, Some(record.value.clone())).await;
    }
    assert_sound(dataset).await;
    of_kind.into_keys().collect()
}

#[tokio::test(start_paused = true)]
async fn a_flipped_bit_of_any_catalog_record_is_found() {
    let mut kinds = BTreeSet::new();
    for stepwise in [false, true] {
        let memory: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let store = if stepwise { Arc::new(LimitedStore::stepwise(memory)) } else { memory };
        create(&store, spec()).await;
        archive(&store).drop_dataset("records").await.unwrap();
        let dataset = consolidated(&store).await;
        dataset.set_retention(Some("3650d".parse().unwrap())).await.unwrap();
        dataset.create_index("tags", &["tag".to_owned()]).await.unwrap();
        dataset.build_indexes(&IndexBuildOptions::default(), None).await.unwrap();
        write(&dataset, &spread_rows(1_000, 60, 2, "4"), replacing("4")).await.unwrap();
        dataset.remove_batch("3").await.unwrap();
        write(&dataset, &spread_rows(2_000, 60, 6, "late"), named("late")).await.unwrap();
        dataset.retire(RetireLimit::Before(Instant::NativeTicks(2 * HOUR)), false).await.unwrap();
        // A write that was cut off.
        let cut: Arc<dyn Store> = Arc::new(FaultyStore::new(store.clone(), |call| {
            let ends = |commit: &Commit| commit.put.is_empty() && !commit.before.is_empty() || !commit.after.is_empty();
            match call.commit.is_some_and(ends) {
                true => Decision::FailBefore(StoreError::Unavailable { engine: "test", reason: "cut off".into() }),
                false => Decision::Pass,
            }
        }));
        let parts = (0..2).map(|i| spread_rows(i * 40_000, 40_000, 6, "cut"));
        open(&cut, "records").await.write(input(parts), tight(named("cut"))).await.unwrap_err();
        kinds.append(&mut assert_every_flip_is_found(&store, &dataset).await);

        let target: Arc<dyn Store> = Arc::new(MemoryStore::new());
        archive(&store).copy_to(&archive(&target), CopyOptions::default(), None).await.unwrap();
        kinds.append(&mut assert_every_flip_is_found(&target, &open(&target, "records").await).await);
    }
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let group = groups::survey(&store).await;
    groups::write_all(&group, groups::tables("a", 2), named("a")).await.unwrap();
    kinds.append(&mut assert_every_flip_is_found(&store, &group.datasets()[0]).await);
    let expected = "batch 2, copy 1, dataset 1, group 1, index 2, intent 2, part 3, posting 3, retired 2, retiring 1, superseded 1, \
                    superseded 2";
    assert_eq!(kinds.into_iter().collect::<Vec<_>>().join(", "), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_definition_with_a_flipped_byte_is_not_used() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let dataset = create(&store, spec()).await;
    dataset.set_retention(Some("3650d".parse().unwrap())).await.unwrap();
    let record = records(&store, "dataset/records").await.remove(0);
    let text = String::from_utf8(record.value.to_vec()).unwrap();
    assert!(text.contains("3650d"), "{text}");
    put_record(&store, &record.key, Some(text.replace("3650d", "0650d").into())).await;
    let error = Archive::on("test:", store.clone()).dataset("records").await.unwrap_err();
    assert!(matches!(&error, ArchiveError::Catalog { key, .. } if *key == record.key), "{error}");
    assert!(error.to_string().contains("checksum"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_without_its_checksum_is_damaged() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let dataset = consolidated(&store).await;
    let record = records(&store, "batch/records/").await.remove(0);
    let mut value: serde_json::Value = serde_json::from_slice(&record.value).unwrap();
    assert!(value.as_object_mut().unwrap().remove("checksum").is_some());
    put_record(&store, &record.key, Some(serde_json::to_vec(&value).unwrap().into())).await;
    let report = dataset.verify(None).await.unwrap();
    assert_eq!(report.records.iter().map(|damage| &damage.key).collect::<Vec<_>>(), [&record.key]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_whose_lists_are_incomplete_is_told() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let dataset = consolidated(&store).await;
    let part = records(&store, "part/records/").await.remove(0);
    put_record(&store, &part.key, None).await;
    let report = dataset.verify(None).await.unwrap();
    assert_eq!(counts(&report), (0, 0, 0, 1));
    assert!(report.records[0].key.starts_with("batch/records/"), "{:?}", report.records);
}

/// A dataset with rows of three kinds that are not stored, beside 12 rows of batch `b` in the same consolidated chunks: the catalog
/// forgot batch `a`, chunks of the removed batch `c` and of the former content of `d` came back.
async fn with_foreign_rows(store: &Arc<dyn Store>) -> Dataset {
    let (dataset, name) = (create(store, spec()).await, spec().name);
    for (first, key) in [(0, "a"), (12, "b"), (24, "c"), (36, "d")] {
        write(&dataset, &spread_rows(first, 12, 1, key), named(key)).await.unwrap();
    }
    dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap();
    let returning = chunks(store.as_ref(), &placed()).await;
    dataset.remove_batch("c").await.unwrap();
    write(&dataset, &spread_rows(48, 12, 1, "new d"), replacing("d")).await.unwrap();
    let present: Vec<_> = chunks(store.as_ref(), &placed()).await.into_iter().map(|chunk| chunk.key).collect();
    // They hold `b` too, which is then there twice; identity by id makes it one again.
    put_chunks(store.as_ref(), &placed(), returning.into_iter().filter(|c| !present.contains(&c.key)).collect()).await;
    for kind in ["batch", "part"] {
        for record in records(store, &format!("{kind}/{name}/")).await {
            if String::from_utf8_lossy(&record.value).contains("\"a\"")
                || record.key.contains(&BatchId::of_key("a").to_string())
            {
                put_record(store, &record.key, None).await;
            }
        }
    }
    dataset
}

async fn notes(dataset: &Dataset) -> Vec<String> {
    let rows = read_all(dataset).await;
    let column = rows.column_by_name("note").unwrap();
    let column: &StringArray = column.as_any().downcast_ref().unwrap();
    let mut notes: Vec<String> = column.iter().map(|note| note.unwrap_or_default().to_owned()).collect();
    notes.sort_unstable();
    notes
}

fn stored_notes() -> Vec<String> {
    [vec!["b".to_owned(); 12], vec!["new d".to_owned(); 12]].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_rows_are_removed_and_stored_ones_stay() {
    for (store, _folder) in engines() {
        let dataset = with_foreign_rows(&store).await;
        // Rows of batches that were removed or replaced do not count, wherever they come from. Of `a` nothing tells that.
        assert_eq!(notes(&dataset).await.len(), 36);
        let found = dataset.verify(None).await.unwrap().foreign;
        // Those of `a` lie in the chunks that came back and in those that were there.
        assert_eq!(found.iter().map(|chunk| chunk.rows).sum::<u64>(), 2 * 12 + 12 + 12);
        assert_eq!(dataset.remove_foreign().await.unwrap(), found);
        assert_sound(&dataset).await;
        assert_eq!(notes(&dataset).await, stored_notes());
        assert_eq!(dataset.remove_foreign().await.unwrap(), []);
        // The batch that the catalog had forgotten is written like a new one.
        assert_eq!(write(&dataset, &spread_rows(0, 12, 1, "a"), named("a")).await.unwrap().rows, 12);
        assert_sound(&dataset).await;
        assert_eq!(notes(&dataset).await.len(), 36);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_removal_of_foreign_rows_is_finished_by_the_next() {
    for after in [false, true] {
        for fault in 0.. {
            let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
            with_foreign_rows(&store).await;
            let struck = Arc::new(AtomicBool::new(false));
            let strikes = struck.clone();
            let faulty = FaultyStore::new(store.clone(), move |call| {
                if call.number < fault || strikes.swap(true, Ordering::SeqCst) {
                    return Decision::Pass;
                }
                match after {
                    true => Decision::FailAfter("the fault of this test".into()),
                    false => Decision::FailBefore(StoreError::Refused {
                        engine: "test",
                        reason: "the fault of this test".into(),
                    }),
                }
            });
            let faulty: Arc<dyn Store> = Arc::new(faulty);
            let removed = match Archive::on("test:", faulty).dataset(spec().name.as_str()).await {
                Ok(dataset) => dataset.remove_foreign().await.map(|_| ()),
                Err(error) => Err(error),
            };
            let struck = struck.load(Ordering::SeqCst);
            assert!(struck || removed.is_ok(), "fault {fault}: {removed:?}");
            let dataset = open(&store, spec().name.as_str()).await;
            if removed.is_ok() {
                // Where the fault struck after all was done, nothing is left to do.
                assert_eq!(notes(&dataset).await, stored_notes(), "fault {fault}");
            }
            dataset.remove_foreign().await.unwrap();
            assert_sound(&dataset).await;
            assert_eq!(notes(&dataset).await, stored_notes(), "fault {fault}");
            if !struck {
                break;
            }
        }
    }
}
