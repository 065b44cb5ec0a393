//! What reads fetch: only chunks that may contain a requested row, and only the bodies of those.

use std::sync::Arc;

use arrow_array::{ArrayRef, Int64Array, StringArray};
use chronotile_archive::{CellSelection, Comparison, Dataset, Predicate, ReadRequest};
use chronotile_memory::MemoryStore;
use chronotile_store::{Metered, Operation, OperationMetrics, Store};
use chronotile_types::{CellRule, DatasetSpec, MergeRule};

use crate::common::*;

/// A store that counts, and a dataset on it.
async fn counted(spec: DatasetSpec) -> (Arc<Metered>, Dataset) {
    let metered = Arc::new(Metered::new(Arc::new(MemoryStore::new())));
    let store: Arc<dyn Store> = metered.clone();
    (metered, create(&store, spec).await)
}

/// Chunks returned so far, by scans and by fetches.
fn looked_at(metered: &Metered) -> (u64, u64) {
    let items = |operation| {
        let found: Vec<OperationMetrics> = metered.snapshot();
        found.iter().find(|each| each.operation == operation).unwrap().items
    };
    (items(Operation::Scan), items(Operation::Fetch))
}

/// Ids of the rows of a request, and how many chunks were scanned and fetched for them.
async fn spent(metered: &Metered, dataset: &Dataset, request: ReadRequest) -> (Vec<i64>, (u64, u64)) {
    let before = looked_at(metered);
    let found = ids(&read(dataset, request).await.unwrap());
    let after = looked_at(metered);
    (found, (after.0 - before.0, after.1 - before.1))
}

fn by_id(ids: &[i64]) -> ReadRequest {
    ReadRequest { ids: Some(vec![Arc::new(Int64Array::from(ids.to_vec()))]), ..ReadRequest::default() }
}

fn by_note(comparison: Comparison, text: &str) -> ReadRequest {
    let values: ArrayRef = Arc::new(StringArray::from(vec![text]));
    let predicate = Predicate { column: "note".into(), comparison, values };
    ReadRequest { predicates: vec![predicate], ..ReadRequest::default() }
}

#[tokio::test]
async fn a_look_up_by_id_fetches_the_chunks_whose_ids_reach_to_it() {
    let (metered, dataset) = counted(spec()).await;
    // Chunks of ten ids each, in the tiles of three tags: 0 to 9, 20 to 29 and so on.
    for batch in 0..9 {
        let places: Vec<_> = (0..10).map(|i| (batch * 100 + i, batch * 20 + i, batch % 3)).collect();
        write(&dataset, &noted(&places, "n"), named(&batch.to_string())).await.unwrap();
    }
    for (wanted, found, fetched) in [
        (vec![20], vec![20], 1),
        (vec![29], vec![29], 1),
        (vec![30], vec![], 0),
        (vec![19], vec![], 0),
        (vec![29, 40, 165], vec![29, 40, 165], 3),
        (vec![], vec![], 0),
    ] {
        assert_eq!(spent(&metered, &dataset, by_id(&wanted)).await, (found, (9, fetched)), "{wanted:?}");
    }
    // With a time range, only the chunks that overlap it.
    let early = ReadRequest { time: between(0, 109), ..by_id(&[9, 29, 40]) };
    assert_eq!(spent(&metered, &dataset, early).await, (vec![9], (9, 2)));
    // Bodies that are certain to be needed come with the scan.
    assert_eq!(spent(&metered, &dataset, ReadRequest::default()).await.1, (9, 0));
    let cells = ReadRequest { cells: CellSelection::Cells(vec![1]), ..ReadRequest::default() };
    assert_eq!(spent(&metered, &dataset, cells).await.1, (3, 0));
}

#[tokio::test]
async fn ids_that_make_the_cell_are_looked_up_in_their_cells() {
    let bucket = CellRule::IdBucket { column: "id".into(), size: 10 };
    let value = CellRule::Value { column: "id".into() };
    let tagged = DatasetSpec { id: vec!["tag".into(), "id".into()], ..spec() };
    for (spec, scanned) in [
        (DatasetSpec { cell: bucket.clone(), ..spec() }, 4),
        (DatasetSpec { cell: value, ..spec() }, 3),
        (DatasetSpec { cell: bucket.clone(), merge: MergeRule::Latest { version: None }, ..spec() }, 4),
        // The column that makes the cell is not the first of the ids.
        (DatasetSpec { cell: bucket, ..tagged }, 5),
    ] {
        let (metered, dataset) = counted(spec.clone()).await;
        for id in [5, 7, 23, 41, 65] {
            write(&dataset, &noted(&[(id, id, id)], "n"), named(&id.to_string())).await.unwrap();
        }
        let (found, (looked, _)) = spent(&metered, &dataset, by_id(&[5, 23, 41])).await;
        assert_eq!((found, looked), (vec![5, 23, 41], scanned), "{spec:?}");
    }
}

#[tokio::test]
async fn a_prefix_of_the_first_id_leaves_out_chunks_whose_ids_begin_otherwise() {
    let (metered, dataset) = counted(DatasetSpec { id: vec!["note".into()], text: vec![], ..spec() }).await;
    for (number, text) in (0..).zip(["alpha", "alpine", "beta", "gamma", "gamma ray", "a name longer than a zone key"])
    {
        write(&dataset, &noted(&[(number, number, 0)], text), named(text)).await.unwrap();
    }
    for (prefix, found, fetched) in [
        ("al", vec![0, 1], 2),
        ("alp", vec![0, 1], 2),
        ("alpi", vec![1], 1),
        ("gamma", vec![3, 4], 2),
        ("gamma ray", vec![4], 1),
        ("delta", vec![], 0),
        ("a name longer than a z", vec![5], 1),
        ("a name longer than a dog", vec![], 1),
    ] {
        let request = by_note(Comparison::Prefix, prefix);
        assert_eq!(spent(&metered, &dataset, request).await, (found, (6, fetched)), "{prefix}");
    }
    // Filters tell nothing about other conditions, and an empty prefix is no condition.
    for request in [by_note(Comparison::Contains, "al"), by_note(Comparison::Prefix, "")] {
        assert_eq!(spent(&metered, &dataset, request).await.1, (6, 0));
    }
}

/// Chunks of one hour each, two to a slice, with the keys 1 and 2; key 2 has none after the third hour.
#[tokio::test]
async fn the_newest_row_of_a_key_is_found_without_a_look_at_what_is_older() {
    let (metered, dataset) = counted(spec()).await;
    for hour in 0..8 {
        let keys: &[i64] = if hour < 3 { &[1, 2] } else { &[1] };
        let places: Vec<_> = keys.iter().map(|key| (hour * HOUR, 10 * hour + key, *key)).collect();
        write(&dataset, &noted(&places, "n"), named(&hour.to_string())).await.unwrap();
    }
    for (keys, time, found, looked) in [
        (vec![1], None, vec![71], (2, 1)),
        (vec![2], None, vec![22], (1, 1)),
        (vec![2, 1, 2], None, vec![22, 71], (2 + 1, 2)),
        (vec![1], Some(between(0, 5 * HOUR)), vec![41], (1, 1)),
        (vec![1], Some(between(HOUR, 4 * HOUR)), vec![31], (2, 1)),
        // For a key that does not exist, all slices are searched.
        (vec![1, 3], None, vec![71], (2, 1)),
        (vec![], None, vec![], (0, 0)),
    ] {
        let place = CellSelection::Keys(vec![Arc::new(Int64Array::from(keys.clone()))]);
        let request = ReadRequest { cells: place, time: time.unwrap_or_default(), ..ReadRequest::default() };
        let before = looked_at(&metered);
        let rows = latest(&dataset, request).await.unwrap();
        let after = looked_at(&metered);
        assert_eq!(ids(&rows), found, "{keys:?}");
        assert_eq!((after.0 - before.0, after.1 - before.1), looked, "{keys:?}");
    }
}

/// Chunks of one tile and key: only those that may have the newest row are fetched.
#[tokio::test]
async fn of_a_tile_the_chunks_of_the_newest_times_are_fetched() {
    let ids = vec!["id".to_owned(), "t".to_owned()];
    let (metered, dataset) = counted(DatasetSpec { id: ids, ..spec() }).await;
    for (batch, times) in [[0, 10], [20, 30], [30, 40], [35, 50]].into_iter().enumerate() {
        let id = batch as i64;
        write(&dataset, &noted(&times.map(|t| (t, id, 1)), "n"), named(&batch.to_string())).await.unwrap();
    }
    for (end, found, fetched) in [(100, 3, 3), (50, 2, 3), (36, 3, 3), (20, 0, 1)] {
        let place = CellSelection::Keys(vec![Arc::new(Int64Array::from(vec![1]))]);
        let request = ReadRequest { cells: place, time: between(0, end), ..ReadRequest::default() };
        let before = looked_at(&metered).1;
        let rows = latest(&dataset, request).await.unwrap();
        assert_eq!((integers(&rows, "id"), looked_at(&metered).1 - before), (vec![found], fetched), "before {end}");
    }
}
