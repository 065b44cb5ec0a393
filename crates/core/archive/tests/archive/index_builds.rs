//! What builds of indexes do and report, what they store, and how reads and counts report their use of an index.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use arrow_array::{ArrayRef, StringArray};
use chronotile_archive::{
    ArchiveError, CellSelection, Comparison, Dataset, IndexBuildOptions, IndexBuildReport, IndexStatus, IndexUse,
    Predicate, ReadRequest, RetireLimit,
};
use chronotile_memory::MemoryStore;
use chronotile_store::{Call, Commit, Decision, FaultyStore, Metered, Operation, Store, StoreError};
use chronotile_types::{DatasetSpec, Instant, MergeRule, Window};

use crate::common::*;

/// Three hours with three tags each, so nine tiles; each holds a row with the note `a` and one with `b`.
async fn nine_tiles(store: &Arc<dyn Store>) -> Dataset {
    let dataset = create(store, spec()).await;
    for (note, shift) in [("a", 0), ("b", 100)] {
        let places: Vec<_> = (0..9).map(|tile| (tile / 3 * HOUR + tile + shift, tile + shift, tile % 3)).collect();
        write(&dataset, &noted(&places, note), named(note)).await.unwrap();
    }
    dataset.create_index("by_note", &["note".to_owned()]).await.unwrap();
    dataset
}

async fn build(dataset: &Dataset, options: &IndexBuildOptions) -> IndexBuildReport {
    dataset.build_indexes(options, None).await.unwrap()
}

async fn status(dataset: &Dataset) -> IndexStatus {
    dataset.index_status().await.unwrap().remove(0)
}

fn note(text: &str) -> ReadRequest {
    let values: ArrayRef = Arc::new(StringArray::from(vec![text]));
    let predicate = Predicate { column: "note".into(), comparison: Comparison::Equal, values };
    ReadRequest { predicates: vec![predicate], ..ReadRequest::default() }
}

/// Names and bytes of the stored postings.
async fn postings(store: &Arc<dyn Store>) -> (BTreeSet<String>, u64) {
    let records = store.records("posting/records/", None, 1_000).await.unwrap();
    let bytes = records.iter().map(|record| record.value.len() as u64).sum();
    (records.into_iter().map(|record| record.key).collect(), bytes)
}

#[tokio::test]
async fn a_build_reports_what_it_did_and_the_status_what_there_is() {
    const NOW_US: i64 = 4_000_000_000_000_000;
    for (store, _folder) in engines() {
        nine_tiles(&store).await;
        let at = Arc::new(AtomicU64::new(0));
        let clock = at.clone();
        let now_us = move || NOW_US + clock.load(Ordering::Relaxed) as i64;
        let dataset = archive(&store).with_machine_time(now_us).dataset("records").await.unwrap();
        let by_note = || ("by_note".to_owned(), vec!["note".to_owned()]);
        let (name, columns) = by_note();
        assert_eq!(status(&dataset).await, IndexStatus { name, columns, ..IndexStatus::default() });

        let seen = Mutex::new(vec![]);
        let progress = |done, all| seen.lock().unwrap().push((done, all));
        let first = dataset.build_indexes(&IndexBuildOptions::default(), Some(&progress)).await.unwrap();
        let (_, bytes) = postings(&store).await;
        let wanted =
            IndexBuildReport { windows: 3, windows_built: 3, tiles_read: 9, rows: 18, bytes, ..Default::default() };
        assert_eq!(first, wanted);
        // A slice has two windows, and is looked at after the one before is done.
        assert_eq!(std::mem::take(&mut *seen.lock().unwrap()), [(1, 2), (2, 2), (3, 3)]);
        let (name, columns) = by_note();
        let before = IndexStatus {
            name,
            columns,
            windows: 3,
            ticks: Some((0, 3 * HOUR)),
            tiles: 9,
            tiles_left_out: 0,
            rows: 18,
            values: 3 * 2,
            bytes,
            built_us: Some(NOW_US),
        };
        assert_eq!(status(&dataset).await, before);

        // One tile changes: it is read, the others of its window are reused, and the window's old postings are
        // deleted.
        at.store(5_000, Ordering::Relaxed);
        write(&dataset, &noted(&[(HOUR + 5, 1_000, 1)], "c"), named("late")).await.unwrap();
        let (stale, bytes) = postings(&store).await;
        let second = dataset.build_indexes(&IndexBuildOptions::default(), Some(&progress)).await.unwrap();
        assert_eq!(std::mem::take(&mut *seen.lock().unwrap()), [(1, 1)]);
        let (now, bytes_now) = postings(&store).await;
        assert_eq!((now.len(), now.difference(&stale).count()), (3, 1));
        let wanted = IndexBuildReport {
            windows: 3,
            windows_built: 1,
            tiles_read: 1,
            tiles_kept: 2,
            rows: 3,
            ..Default::default()
        };
        assert_eq!(IndexBuildReport { bytes: 0, ..second.clone() }, wanted);
        let after = IndexStatus { rows: 19, values: 7, bytes: bytes_now, built_us: Some(NOW_US + 5_000), ..before };
        assert_eq!(status(&dataset).await, after);
        assert!(second.bytes > 0 && second.bytes < bytes.max(bytes_now), "those of one window: {second:?}");

        // A rebuild reads everything in the windows of its period and stores the same.
        let time = between(HOUR, HOUR + 1);
        let options = IndexBuildOptions { rebuild: true, time, ..IndexBuildOptions::default() };
        let wanted = IndexBuildReport { tiles_read: 3, tiles_kept: 0, rows: 7, windows: 1, ..second };
        assert_eq!(build(&dataset, &options).await, wanted);
        assert_eq!(postings(&store).await, (now, bytes_now));
        assert_eq!(status(&dataset).await, after);
    }
}

#[tokio::test]
async fn a_read_and_a_count_say_what_they_take_from_an_index() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let dataset = nine_tiles(&store).await;
    write(&dataset, &noted(&[(0, 500, 0)], "rare"), named("rare")).await.unwrap();
    let explain =
        async |request: &ReadRequest, counts: bool| dataset.explain(request, counts.then_some(&[][..])).await.unwrap();
    let reason = |text: &str| IndexUse { reason: Some(text.to_owned()), ..IndexUse::default() };
    let nothing = "the index is not built for this period: build it";
    assert_eq!(explain(&note("rare"), false).await, reason(nothing));
    assert_eq!(explain(&note("rare"), true).await, IndexUse { counts: true, ..reason(nothing) });
    build(&dataset, &IndexBuildOptions { time: between(0, 2 * HOUR), ..Default::default() }).await;
    // Two hours are indexed, of which one has a tile that changed, and the third is not.
    write(&dataset, &noted(&[(HOUR + 9, 501, 2)], "b"), named("late")).await.unwrap();
    let base = IndexUse { index: Some("by_note".to_owned()), tiles: 9, chunks: 20, ..IndexUse::default() };
    let indexed = IndexUse {
        tiles_indexed: 4,
        tiles_unindexed: 3,
        tiles_changed: 1,
        tiles_read: 5,
        chunks_read: 3 + 3 + 6,
        windows_indexed: vec![Window(0)],
        windows_direct: vec![Window(1), Window(2)],
        ..base.clone()
    };
    assert_eq!(explain(&note("rare"), false).await, indexed);
    let counted = IndexUse { counts: true, tiles_indexed: 5, tiles_read: 4, chunks_read: 3 + 6, ..indexed.clone() };
    assert_eq!(explain(&note("rare"), true).await, counted);
    // A range that cuts the tiles of the first hour. It holds the tiles at their first rows, and not at their last.
    let cut = ReadRequest { time: between(0, 102), ..note("b") };
    let partial = IndexUse {
        counts: true,
        tiles: 3,
        tiles_indexed: 2,
        tiles_partial: 1,
        tiles_read: 1,
        chunks: 7,
        chunks_read: 2,
        windows_direct: vec![Window(0)],
        ..base
    };
    assert_eq!(explain(&cut, true).await, partial);
    assert_eq!(dataset.count(cut).await.unwrap(), 2);
    let whole = ReadRequest { time: between(0, HOUR), ..note("a") };
    let most = "most tiles match, so that a scan of all is cheaper";
    let all_read = IndexUse {
        tiles: 3,
        tiles_read: 3,
        chunks: 7,
        chunks_read: 7,
        windows_indexed: vec![Window(0)],
        ..reason(most)
    };
    assert_eq!(explain(&whole, false).await, all_read);
}

#[tokio::test]
async fn the_index_of_fewest_columns_that_covers_most_conditions_is_used() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let dataset = nine_tiles(&store).await;
    let reason = async |request: &ReadRequest, by: Option<&[String]>| {
        dataset.explain(request, by).await.unwrap().reason.unwrap_or_default()
    };
    for (name, columns) in [("wide", &["note", "id", "x"][..]), ("both", &["id", "note"]), ("by_x", &["x"])] {
        let columns: Vec<String> = columns.iter().map(|column| (*column).to_owned()).collect();
        dataset.create_index(name, &columns).await.unwrap();
    }
    build(&dataset, &IndexBuildOptions::default()).await;
    let id = |id: i64| Predicate {
        column: "id".into(),
        comparison: Comparison::Equal,
        values: Arc::new(arrow_array::Int64Array::from(vec![id])),
    };
    let x = Predicate {
        column: "x".into(),
        comparison: Comparison::Less,
        values: Arc::new(arrow_array::Float64Array::from(vec![0.0])),
    };
    let with = |predicates: Vec<Predicate>| ReadRequest { predicates, ..ReadRequest::default() };
    let used = async |request: ReadRequest, by: Option<&[&str]>| {
        let by: Option<Vec<String>> = by.map(|by| by.iter().map(|name| (*name).to_owned()).collect());
        dataset.explain(&request, by.as_deref()).await.unwrap().index.unwrap_or_default()
    };
    let b = note("b").predicates.remove(0);
    assert_eq!(used(with(vec![id(4)]), None).await, "both");
    assert_eq!(used(with(vec![b.clone(), id(104)]), None).await, "both");
    assert_eq!(used(with(vec![b.clone(), id(104), x.clone()]), None).await, "wide");
    assert_eq!(used(with(vec![x.clone()]), None).await, "by_x");
    assert_eq!(used(with(vec![]), Some(&[])).await, "by_note");
    assert_eq!(used(with(vec![]), Some(&["id"])).await, "both");
    assert_eq!(used(with(vec![b]), Some(&["x"])).await, "wide");
    assert_eq!(reason(&with(vec![]), None).await, "no index has a column of the conditions");
    let tag = ["tag".to_owned()];
    assert_eq!(reason(&with(vec![]), Some(&tag)).await, "no index has all requested columns");
    let keys = CellSelection::Keys(vec![Arc::new(arrow_array::Int64Array::from(vec![1]))]);
    let by_key = ReadRequest { cells: keys, ..note("a") };
    assert_eq!(reason(&by_key, Some(&[])).await, "rows must be tested against the keys or the region");
    let ids: ArrayRef = Arc::new(arrow_array::Int64Array::from(vec![1]));
    let by_id = ReadRequest { ids: Some(vec![ids]), ..note("a") };
    assert_eq!(reason(&by_id, None).await, "records are looked up by id");
    let bare =
        create(&store, DatasetSpec { name: chronotile_types::DatasetName::new("bare").unwrap(), ..spec() }).await;
    let none = bare.explain(&note("a"), None).await.unwrap();
    assert_eq!(none, IndexUse { reason: Some("the dataset has no index".to_owned()), ..IndexUse::default() });
    let missing = bare.drop_index("by_note").await.unwrap_err().to_string();
    assert!(missing.contains("no index \"by_note\"; it has none"), "{missing}");
    let options = IndexBuildOptions { name: Some("by_nte".to_owned()), ..Default::default() };
    let unknown = dataset.build_indexes(&options, None).await.unwrap_err().to_string();
    assert!(unknown.contains("no index \"by_nte\"") && unknown.contains("by_note"), "{unknown}");
}

/// Tiles that may have versions of the same records are read together, unless the index knows that none of them has a
/// requested row.
#[tokio::test]
async fn tiles_with_ids_in_common_are_read_where_versions_may_move_between_them() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let spec = DatasetSpec { merge: MergeRule::Latest { version: None }, ..spec() };
    let dataset = create(&store, spec).await;
    dataset.create_index("by_note", &["note".to_owned()]).await.unwrap();
    // Ids of the tiles: 0 to 9, 9 to 12, 13 to 20, 30 and 40: the first two share one.
    for (tag, places, text) in
        [(0, vec![0, 9], "a"), (1, vec![9, 12], "b"), (2, vec![13, 20], "a"), (3, vec![30], "rare"), (4, vec![40], "b")]
    {
        let places: Vec<_> = places.into_iter().map(|id| (id, id, tag)).collect();
        write(&dataset, &noted(&places, text), named(&tag.to_string())).await.unwrap();
    }
    build(&dataset, &IndexBuildOptions::default()).await;
    let counted = dataset.explain(&note("a"), Some(&[])).await.unwrap();
    assert_eq!((counted.tiles_shared, counted.tiles_indexed, counted.tiles_read), (2, 3, 2), "{counted:?}");
    assert_eq!(dataset.count(note("a")).await.unwrap(), 1 + 2, "record 9 is of note b by now");
    // Reads of rows add only tiles that share ids with a requested one.
    let rare = dataset.explain(&note("rare"), None).await.unwrap();
    assert_eq!((rare.tiles_shared, rare.tiles_indexed, rare.tiles_read), (0, 4, 1), "{rare:?}");
    let b = dataset.explain(&note("b"), None).await.unwrap();
    assert_eq!((b.tiles_shared, b.tiles_indexed, b.tiles_read), (1, 2, 3), "{b:?}");
    assert_eq!(ids(&read(&dataset, note("b")).await.unwrap()), [9, 12, 40]);
}

#[tokio::test]
async fn the_next_build_clears_away_what_is_left_of_retired_slices_and_dropped_indexes() {
    for (store, _folder) in engines() {
        let dataset = nine_tiles(&store).await;
        build(&dataset, &IndexBuildOptions::default()).await;
        let kept = postings(&store).await.0;
        dataset.retire(RetireLimit::Before(Instant::NativeTicks(2 * HOUR)), false).await.unwrap();
        assert_eq!(status(&dataset).await.windows, 3);
        assert_eq!(
            build(&dataset, &IndexBuildOptions::default()).await,
            IndexBuildReport { windows: 1, ..Default::default() }
        );
        assert_eq!((status(&dataset).await.windows, status(&dataset).await.ticks), (1, Some((2 * HOUR, 3 * HOUR))));
        let left = postings(&store).await.0;
        assert!(left.len() == 1 && left.is_subset(&kept), "{left:?}");

        // A builder of an index that is dropped meanwhile ends after that, and the next build takes out what it has put.
        let (other, done) = (dataset.clone(), AtomicU64::new(0));
        let late = FaultyStore::new(store.clone(), move |call: Call<'_>| {
            let builds =
                call.commit.is_some_and(|commit| commit.before.iter().any(|put| put.key.starts_with("posting/")));
            if builds && done.fetch_add(1, Ordering::Relaxed) == 0 {
                let other = other.clone();
                let drops = async move { other.drop_index("by_note").await.unwrap() };
                assert_eq!(on_other_thread(drops), 1);
            }
            Decision::Pass
        });
        let late: Arc<dyn Store> = Arc::new(late);
        let builder = open(&late, "records").await;
        write(&dataset, &noted(&[(2 * HOUR + 5, 1_000, 1)], "c"), named("late")).await.unwrap();
        let _ = builder.build_indexes(&IndexBuildOptions::default(), None).await.unwrap();
        dataset.create_index("by_tag", &["tag".to_owned()]).await.unwrap();
        build(&dataset, &IndexBuildOptions::default()).await;
        assert_eq!(postings(&store).await.0.len(), 1, "those of the index that there is");
        assert_eq!(dataset.drop_index("by_tag").await.unwrap(), 1);
        for kind in ["index", "posting", "lease"] {
            assert_eq!(store.records(&format!("{kind}/records/"), None, 10).await.unwrap(), vec![], "{kind}");
        }
    }
}

/// Fails every call after a lease was acquired.
fn cut_off_with_a_lease() -> impl Fn(Call<'_>) -> Decision + Send + Sync {
    let taken = AtomicU64::new(0);
    move |call| {
        let lost = || StoreError::Unknown { engine: "test", reason: "cut off".to_owned() };
        let takes = |commit: &Commit| commit.before.iter().any(|put| put.key.starts_with("lease/"));
        match (taken.load(Ordering::Relaxed), call.commit.is_some_and(takes)) {
            (0, true) => {
                taken.store(1, Ordering::Relaxed);
                Decision::Pass
            }
            (0, false) => Decision::Pass,
            _ => Decision::FailBefore(lost()),
        }
    }
}

#[tokio::test]
async fn a_builder_that_does_not_wait_leaves_windows_that_others_are_at_to_them() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let dataset = nine_tiles(&store).await;
    let faulty: Arc<dyn Store> = Arc::new(FaultyStore::new(store.clone(), cut_off_with_a_lease()));
    let options = IndexBuildOptions { lease_s: 3_600, wait: false, ..IndexBuildOptions::default() };
    assert!(open(&faulty, "records").await.build_indexes(&options, None).await.is_err());
    let leases = || async { store.records("lease/records/", None, 10).await.unwrap().len() };
    assert_eq!(leases().await, 1);
    let seen = Mutex::new(vec![]);
    let progress = |done, all| seen.lock().unwrap().push((done, all));
    let report = dataset.build_indexes(&options, Some(&progress)).await.unwrap();
    assert_eq!((report.windows, report.windows_built, report.windows_elsewhere), (3, 2, 1));
    assert_eq!(*seen.lock().unwrap(), [(1, 2), (2, 2), (3, 3)]);
    // A sweep of windows spares those that are being built; dropping the index does not.
    dataset.retire(RetireLimit::Before(Instant::NativeTicks(2 * HOUR)), false).await.unwrap();
    build(&dataset, &options).await;
    assert_eq!((leases().await, status(&dataset).await.windows), (1, 1));
    assert_eq!(dataset.drop_index("by_note").await.unwrap(), 1);
    assert_eq!(leases().await, 0);
}

#[tokio::test]
async fn cells_before_and_behind_those_that_are_asked_for_do_not_count() {
    for (store, _folder) in engines() {
        let dataset = nine_tiles(&store).await;
        build(&dataset, &IndexBuildOptions::default()).await;
        // After some counts of everything, the tiles are cached.
        for _ in 0..3 {
            assert_eq!(dataset.count(note("a")).await.unwrap(), 9);
        }
        for (cells, rows) in [(vec![1], 3), (vec![0], 3), (vec![2], 3), (vec![0, 2], 6), (vec![5], 0), (vec![-5], 0)] {
            let request = ReadRequest { cells: CellSelection::Cells(cells.clone()), ..note("a") };
            assert_eq!(dataset.count(request.clone()).await.unwrap(), rows, "{cells:?}");
            assert_eq!(read(&dataset, request).await.unwrap().num_rows() as u64, rows, "{cells:?}");
        }
    }
}

#[tokio::test]
async fn a_tile_whose_values_take_too_many_bytes_is_left_out_of_an_index_and_said_so() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let dataset = nine_tiles(&store).await;
    let texts: Vec<_> = (0..120).map(|row| noted(&[(row, 1_000 + row, 0)], &noise(row as u64, 50_000))).collect();
    dataset.write(input(texts), named("long")).await.unwrap();
    let report = build(&dataset, &IndexBuildOptions::default()).await;
    assert_eq!((report.tiles_read, report.tiles_left_out, report.rows), (9, 1, 138));
    assert_eq!((status(&dataset).await.tiles, status(&dataset).await.tiles_left_out), (8, 1));
    assert_eq!(dataset.count(note("a")).await.unwrap(), 9);
    assert_eq!(dataset.count(note(&noise(7, 50_000))).await.unwrap(), 1);
}

#[tokio::test]
async fn a_damaged_tile_is_left_out_of_an_index_and_said_so() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let dataset = nine_tiles(&store).await;
    for part in ["head", "body"] {
        let mut stored = chunks(store.as_ref(), &placed()).await;
        stored.retain(|chunk| chunk.key.tile.window == Window(2) && chunk.key.tile.cell.0 == 1);
        let sound = stored.clone();
        for chunk in &mut stored {
            let bytes = if part == "head" { &mut chunk.head } else { &mut chunk.body };
            let mut changed = bytes.to_vec();
            let last = changed.len() - 1;
            changed[last] ^= 1;
            *bytes = changed.into();
        }
        put_chunks(store.as_ref(), &placed(), stored).await;
        let built = dataset.build_indexes(&IndexBuildOptions { rebuild: true, ..Default::default() }, None).await;
        if part == "head" {
            // The list of tiles is known from their heads.
            assert!(matches!(built, Err(ArchiveError::Damaged { .. })), "{built:?}");
        } else {
            let report = built.unwrap();
            assert_eq!((report.tiles_read, report.tiles_left_out, report.rows), (8, 1, 16));
            let status = status(&dataset).await;
            assert_eq!((status.tiles, status.tiles_left_out, status.rows), (8, 1, 16));
            let used = dataset.explain(&note("a"), Some(&[])).await.unwrap();
            assert_eq!((used.tiles_indexed, used.tiles_unindexed), (8, 1));
        }
        put_chunks(store.as_ref(), &placed(), sound).await;
    }
    assert_eq!(dataset.count(note("a")).await.unwrap(), 9);
}

#[tokio::test]
async fn windows_of_an_index_are_looked_up_one_by_one_where_they_are_few() {
    let metered = Arc::new(Metered::new(Arc::new(MemoryStore::new())));
    let store: Arc<dyn Store> = metered.clone();
    let dataset = create(&store, spec()).await;
    write(&dataset, &noted(&(0..70).map(|hour| (hour * HOUR, hour, 0)).collect::<Vec<_>>(), "a"), named("a"))
        .await
        .unwrap();
    dataset.create_index("by_note", &["note".to_owned()]).await.unwrap();
    build(&dataset, &IndexBuildOptions::default()).await;
    let listings = || metered.snapshot().iter().find(|each| each.operation == Operation::Records).unwrap().calls;
    for (hours, listed) in [(64, 0), (65, 1)] {
        let before = listings();
        let request = ReadRequest { time: between(0, hours * HOUR), ..note("a") };
        assert_eq!(dataset.count(request).await.unwrap(), hours as u64);
        assert_eq!(listings() - before, listed, "{hours} windows");
    }
}

#[tokio::test]
async fn a_builder_that_waits_builds_what_others_have_given_up() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let dataset = nine_tiles(&store).await;
    let faulty: Arc<dyn Store> = Arc::new(FaultyStore::new(store.clone(), cut_off_with_a_lease()));
    let options = IndexBuildOptions { lease_s: 1, ..IndexBuildOptions::default() };
    assert!(open(&faulty, "records").await.build_indexes(&options, None).await.is_err());
    let report = build(&dataset, &options).await;
    assert_eq!((report.windows, report.windows_built, report.windows_elsewhere), (3, 3, 0));
}

/// They stay where they are for readers that began before, in a tile that is as it was when it was indexed.
#[tokio::test]
async fn rows_of_a_removed_batch_are_not_counted_from_an_index() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let dataset = chronotile_archive::Archive::on("test:", store.clone()).create(spec(), false).await.unwrap();
    let rows = |first: i64| (0..4).map(|i| (first + i, first + i, 1)).collect::<Vec<_>>();
    for (number, note) in (0..).zip(["a", "b"]) {
        write(&dataset, &noted(&rows(10 * number), note), named(note)).await.unwrap();
    }
    dataset.consolidate(chronotile_archive::ConsolidateOptions::default(), None).await.unwrap();
    for (number, note) in (2..).zip(["c", "d"]) {
        write(&dataset, &noted(&rows(10 * number), note), named(note)).await.unwrap();
    }
    dataset.create_index("by_note", &["note".to_owned()]).await.unwrap();
    build(&dataset, &IndexBuildOptions::default()).await;
    let counts = async || {
        let mut counts = vec![];
        for text in ["a", "b", "c", "d"] {
            counts.push(dataset.count(note(text)).await.unwrap());
        }
        counts
    };
    assert_eq!(counts().await, [4, 4, 4, 4]);
    dataset.remove_batch("b").await.unwrap();
    assert_eq!(counts().await, [4, 0, 4, 4]);
    build(&dataset, &IndexBuildOptions::default()).await;
    // A chunk of a replaced batch also stays, where the new rows are in another tile.
    write(&dataset, &noted(&[(1, 1, 2)], "e"), replacing("d")).await.unwrap();
    build(&dataset, &IndexBuildOptions::default()).await;
    assert_eq!(counts().await, [4, 0, 4, 0]);
    let again = build(&dataset, &IndexBuildOptions::default()).await;
    assert_eq!((again.windows, again.windows_built), (1, 0), "nothing has changed since");
}
