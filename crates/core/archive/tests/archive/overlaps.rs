//! Chunks of one tile that follow one another, touch or overlap, in time and in ids: rows are returned in order and
//! each record once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow_array::cast::AsArray;
use arrow_array::types::TimestampMicrosecondType;
use arrow_array::{ArrayRef, Int64Array, RecordBatch};
use chronotile_archive::{CellSelection, ConsolidateOptions, Dataset, ReadRequest};
use chronotile_memory::MemoryStore;
use chronotile_store::{Decision, FaultyStore, Operation, Store};
use chronotile_types::{DatasetSpec, MergeRule};

use crate::common::*;

/// (time, id) of each row, in order.
fn places(rows: &RecordBatch) -> Vec<(i64, i64)> {
    let times = rows.column_by_name("t").unwrap().as_primitive::<TimestampMicrosecondType>().values();
    times.iter().copied().zip(integers(rows, "id")).collect()
}

async fn check(dataset: &Dataset, wanted: &[(i64, i64)], context: &str) {
    assert_eq!(places(&read_all(dataset).await), wanted, "{context}");
    assert_eq!(dataset.count(ReadRequest::default()).await.unwrap(), wanted.len() as u64, "{context}");
    for time in [between(2, 6), between(5, 11), between(0, 5)] {
        let request = ReadRequest { time, ..ReadRequest::default() };
        let found = places(&read(dataset, request.clone()).await.unwrap());
        assert_eq!(dataset.count(request).await.unwrap(), found.len() as u64, "{context}, {time:?}");
    }
}

#[tokio::test]
async fn two_chunks_of_a_tile_are_read_in_order_and_each_record_once() {
    // (time, id) of the rows of two chunks.
    let cases: [[&[(i64, i64)]; 2]; 9] = [
        [&[(0, 1), (1, 2)], &[(2, 3), (3, 4)]],
        [&[(0, 1), (10, 2)], &[(5, 3), (15, 4)]],
        // They share one time, at which the ids are in the opposite order.
        [&[(0, 1), (5, 9)], &[(5, 3), (8, 4)]],
        [&[(5, 1), (5, 2)], &[(5, 3), (5, 4)]],
        [&[(5, 1), (5, 3)], &[(5, 2), (5, 4)]],
        [&[(5, 1), (5, 2)], &[(5, 2), (5, 4)]],
        // They follow one another and share one id, at the end of the ids of one or of the other.
        [&[(0, 1), (1, 3)], &[(10, 3), (11, 5)]],
        [&[(0, 5), (1, 3)], &[(10, 1), (11, 3)]],
        [&[(0, 3), (1, 5)], &[(10, 1), (11, 2)]],
    ];
    let timed = || vec!["id".to_owned(), "t".to_owned()];
    let latest = MergeRule::Latest { version: None };
    let specs = [
        spec(),
        DatasetSpec { id: timed(), ..spec() },
        DatasetSpec { merge: latest.clone(), ..spec() },
        DatasetSpec { merge: latest, id: timed(), ..spec() },
        DatasetSpec { id: vec![], ..spec() },
    ];
    for (number, spec) in specs.iter().enumerate() {
        for case in &cases {
            for turned in [false, true] {
                let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
                let dataset = create(&store, spec.clone()).await;
                let mut parts = case.to_vec();
                if turned {
                    parts.reverse();
                }
                let mut newest: BTreeMap<(i64, i64, usize), (i64, i64)> = BTreeMap::new();
                for (batch, part) in parts.iter().enumerate() {
                    let placed: Vec<_> = part.iter().map(|(t, id)| (*t, *id, 0)).collect();
                    write(&dataset, &rows(&placed), named(&batch.to_string())).await.unwrap();
                    for row in *part {
                        let record = match spec.id.len() {
                            0 => (row.1, row.0, batch),
                            1 => (row.1, 0, 0),
                            _ => (row.1, row.0, 0),
                        };
                        newest.insert(record, *row);
                    }
                }
                let mut wanted: Vec<(i64, i64)> = newest.into_values().collect();
                wanted.sort_unstable();
                let context = format!("dataset {number}, {parts:?}");
                if spec.id.is_empty() {
                    // Rows of one time have no order of ids.
                    let mut found = places(&read_all(&dataset).await);
                    assert!(found.is_sorted_by_key(|row| row.0), "{context}: {found:?}");
                    found.sort_unstable();
                    assert_eq!(found, wanted, "{context}");
                    continue;
                }
                check(&dataset, &wanted, &context).await;
                dataset
                    .consolidate(ConsolidateOptions { older_min: Some(1), ..Default::default() }, None)
                    .await
                    .unwrap();
                check(&dataset, &wanted, &context).await;
            }
        }
    }
}

/// More rows than are sorted together, and more records than are compared together.
#[tokio::test(flavor = "multi_thread")]
async fn a_tile_of_very_many_rows_is_read_in_order_and_each_record_once() {
    const BATCHES: i64 = 10;
    const ROWS: i64 = 60_000;
    const LAST: i64 = BATCHES - 1;
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let dataset = create(&store, spec()).await;
    // Each batch begins with the hour; half of the last has states of records of the second, at other times.
    // Two at a time have the same times; those of others lie closer together, so that each chunk overlaps some of every other batch.
    let time = |batch: i64, row: i64| 1_000 + row * (20 + batch / 2);
    let id = |batch: i64, row: i64| match batch {
        LAST if row % 2 == 0 => row * BATCHES + 1,
        _ => row * BATCHES + batch,
    };
    for batch in 0..BATCHES {
        let places: Vec<_> = (0..ROWS).map(|row| (time(batch, row), id(batch, row), 0)).collect();
        write(&dataset, &noted(&places, "rows that are wider"), named(&batch.to_string())).await.unwrap();
    }
    // One chunk lies before all others.
    write(&dataset, &rows(&[(0, -1, 0), (1, -2, 0)]), named("early")).await.unwrap();
    let newest = |range: std::ops::Range<i64>| {
        let mut newest: BTreeMap<i64, i64> =
            [(-1, 0), (-2, 1)].into_iter().filter(|(_, t)| range.contains(t)).collect();
        for batch in 0..BATCHES {
            let rows = (0..ROWS).map(|row| (id(batch, row), time(batch, row)));
            newest.extend(rows.filter(|(_, t)| range.contains(t)));
        }
        let mut places: Vec<(i64, i64)> = newest.into_iter().map(|(id, t)| (t, id)).collect();
        places.sort_unstable();
        places
    };
    let wanted = newest(0..HOUR);
    assert!(places(&read_all(&dataset).await) == wanted);
    let none = ReadRequest { columns: Some(vec![]), ..ReadRequest::default() };
    assert_eq!(read(&dataset, none).await.unwrap().num_rows(), wanted.len());
    let some = ReadRequest { time: between(300_003, 900_001), ..ReadRequest::default() };
    // Records of which the newest state lies outside of the range come as they were within it.
    assert!(places(&read(&dataset, some).await.unwrap()) == newest(300_003..900_001));
}

/// The keys of chunks are known from their heads; before they are fetched, their rows may move to other chunks.
#[tokio::test(flavor = "multi_thread")]
async fn rows_of_chunks_that_are_consolidated_before_they_are_fetched_are_found_where_they_lie_then() {
    for indexed in [false, true] {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let dataset = create(&store, spec()).await;
        for batch in 0..4 {
            let places: Vec<_> = (0..12).map(|i| (batch + 10 * i, batch * 100 + i, i % 4)).collect();
            write(&dataset, &noted(&places, if batch == 2 { "rare" } else { "n" }), named(&batch.to_string()))
                .await
                .unwrap();
        }
        let request = if indexed {
            dataset.create_index("by_x", &["x".to_owned()]).await.unwrap();
            dataset.build_indexes(&chronotile_archive::IndexBuildOptions::default(), None).await.unwrap();
            let values: ArrayRef = Arc::new(arrow_array::Float64Array::from(vec![203.0 / 7.0]));
            let (column, comparison) = ("x".to_owned(), chronotile_archive::Comparison::Equal);
            let predicates = vec![chronotile_archive::Predicate { column, comparison, values }];
            ReadRequest { predicates, ..ReadRequest::default() }
        } else {
            ReadRequest { ids: Some(vec![Arc::new(Int64Array::from(vec![203, 1_000]))]), ..ReadRequest::default() }
        };
        let (other, done) = (dataset.clone(), Arc::new(AtomicBool::new(false)));
        let seen = done.clone();
        let late: Arc<dyn Store> = Arc::new(FaultyStore::new(store.clone(), move |call| {
            if call.operation == Operation::Fetch && !seen.swap(true, Ordering::SeqCst) {
                let other = other.clone();
                let work = async move { other.consolidate(ConsolidateOptions::default(), None).await.unwrap().tiles };
                assert_eq!(on_other_thread(work), 4);
            }
            Decision::Pass
        }));
        let found = read(&open(&late, "records").await, request).await.unwrap();
        assert!(done.load(Ordering::SeqCst), "nothing was fetched by key");
        assert_eq!(places(&found), [(32, 203)], "indexed: {indexed}");
    }
}

/// A key has the row of its record's newest state, even if that has an earlier time than an older state.
#[tokio::test]
async fn the_newest_row_of_a_key_is_that_of_the_newest_states_of_records() {
    let timed = || vec!["id".to_owned(), "t".to_owned()];
    let latest_of = |version: Option<&str>| MergeRule::Latest { version: version.map(str::to_owned) };
    for (spec, wanted) in [
        (DatasetSpec { merge: latest_of(None), ..spec() }, (5, 1)),
        (DatasetSpec { merge: latest_of(Some("x")), ..spec() }, (5, 1)),
        (DatasetSpec { merge: latest_of(None), id: timed(), ..spec() }, (9 * HOUR, 1)),
        (spec(), (5, 1)),
    ] {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let dataset = create(&store, spec.clone()).await;
        // An append-only dataset keeps one state of a record in each tile.
        let later = if spec.merge == MergeRule::Append { 100 } else { 9 * HOUR };
        write(&dataset, &rows(&[(later, 1, 7), (3, 2, 8)]), named("a")).await.unwrap();
        write(&dataset, &rows(&[(5, 1, 7)]), named("b")).await.unwrap();
        let keys = CellSelection::Keys(vec![Arc::new(Int64Array::from(vec![7]))]);
        let request = ReadRequest { cells: keys, ..ReadRequest::default() };
        assert_eq!(places(&latest(&dataset, request.clone()).await.unwrap()), [wanted], "{spec:?}");
        let columns = Some(vec!["note".to_owned(), "id".to_owned()]);
        let found = latest(&dataset, ReadRequest { columns, ..request }).await.unwrap();
        let names: Vec<_> = found.schema().fields().iter().map(|field| field.name().clone()).collect();
        assert_eq!((names, integers(&found, "id")), (vec!["note".to_owned(), "id".to_owned()], vec![wanted.1]));
    }
}

/// Until they are cleaned up, rows of a removed batch are stored beside rows that count, also in consolidated chunks.
#[tokio::test]
async fn older_versions_count_again_as_soon_as_the_batch_with_the_newer_ones_is_removed() {
    let latest = MergeRule::Latest { version: None };
    for ids in [vec!["id".to_owned()], vec!["id".to_owned(), "t".to_owned()]] {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let archive = chronotile_archive::Archive::on("test:", store.clone());
        let dataset = archive.create(DatasetSpec { merge: latest.clone(), id: ids, ..spec() }, false).await.unwrap();
        for note in ["old", "new"] {
            write(&dataset, &spread_rows(0, 30, 3, note), named(note)).await.unwrap();
        }
        write(&dataset, &spread_rows(30, 10, 3, "other"), named("other")).await.unwrap();
        dataset.consolidate(ConsolidateOptions { older_min: Some(1), ..Default::default() }, None).await.unwrap();
        dataset.create_index("by_note", &["note".to_owned()]).await.unwrap();
        dataset.build_indexes(&chronotile_archive::IndexBuildOptions::default(), None).await.unwrap();
        write(&dataset, &spread_rows(40, 10, 3, "last"), named("last")).await.unwrap();
        dataset.build_indexes(&chronotile_archive::IndexBuildOptions::default(), None).await.unwrap();
        dataset.remove_batch("new").await.unwrap();
        let mut wanted = id_notes(&spread_rows(0, 30, 3, "old"));
        wanted.extend(id_notes(&spread_rows(30, 10, 3, "other")));
        wanted.extend(id_notes(&spread_rows(40, 10, 3, "last")));
        for reader in [dataset.clone(), open(&store, "records").await] {
            assert_eq!(id_notes(&read_all(&reader).await), wanted);
            assert_eq!(reader.count(ReadRequest::default()).await.unwrap(), 50);
            let (counts, _) = reader.count_by(ReadRequest::default(), &["note".to_owned()], false, None).await.unwrap();
            let rows = counts.column(1).as_primitive::<arrow_array::types::UInt64Type>().values().to_vec();
            assert_eq!(rows, [10, 30, 10], "last, old, other");
        }
    }
}

/// When all versions are requested, each version is a record of its own, including several of one id in one batch.
#[tokio::test]
async fn every_version_of_a_record_in_one_batch_is_read_where_chunks_overlap() {
    for ids in [vec!["id".to_owned()], vec!["id".to_owned(), "t".to_owned()]] {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let merge = MergeRule::Latest { version: Some("x".into()) };
        let dataset = create(&store, DatasetSpec { id: ids, merge, ..spec() }).await;
        let versions = |places: &[(i64, i64, i64)], x: Vec<f64>| {
            let mut columns = rows(places).columns().to_vec();
            columns[3] = Arc::new(arrow_array::Float64Array::from(x));
            RecordBatch::try_new(rows(places).schema(), columns).unwrap()
        };
        let batch = versions(&[(0, 1, 0), (5, 1, 0), (9, 1, 0), (9, 1, 0)], vec![1.0, 3.0, 2.0, 4.0]);
        write(&dataset, &batch, named("a")).await.unwrap();
        write(&dataset, &versions(&[(3, 2, 0), (7, 3, 0)], vec![1.0, 1.0]), named("b")).await.unwrap();
        let history = ReadRequest { history: true, ..ReadRequest::default() };
        for round in ["as written", "consolidated"] {
            let found = places(&read(&dataset, history.clone()).await.unwrap());
            assert_eq!(found, [(0, 1), (3, 2), (5, 1), (7, 3), (9, 1), (9, 1)], "{round}");
            assert_eq!(dataset.count(history.clone()).await.unwrap(), 6, "{round}");
            dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap();
        }
    }
}
