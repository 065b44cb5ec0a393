//! Chunks that return after they were removed, and chunks that arrive while a tile is consolidated.

use std::sync::Arc;

use arrow_array::RecordBatch;
use chronotile_archive::{CellSelection, ConsolidateOptions, Dataset, ReadRequest};
use chronotile_chunk::{Binding, Head};
use chronotile_memory::MemoryStore;
use chronotile_store::{Commit, DatasetRef, Decision, FaultyStore, Operation, Store};
use chronotile_types::{CellRule, DatasetSpec, MergeRule};

use crate::common::*;

/// The three ways in which records are identified.
fn specs() -> Vec<DatasetSpec> {
    let no_ids = DatasetSpec { id: vec![], ..spec() };
    let latest = DatasetSpec { merge: MergeRule::Latest { version: None }, ..spec() };
    vec![spec(), no_ids, latest]
}

async fn consolidate(dataset: &Dataset) {
    dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap();
}

/// Every kind of request that takes another path through the code.
async fn answers(dataset: &Dataset) -> Vec<RecordBatch> {
    let mut answers = vec![read_all(dataset).await];
    let history = ReadRequest { history: true, ..ReadRequest::default() };
    answers.push(read(dataset, history).await.unwrap());
    let early = ReadRequest { time: between(0, HOUR + 7), ..ReadRequest::default() };
    answers.push(read(dataset, early).await.unwrap());
    answers.push(read(dataset, ReadRequest::default()).await.unwrap());
    let keys = CellSelection::Keys(vec![Arc::new(arrow_array::Int64Array::from(vec![0, 2]))]);
    let request = ReadRequest { cells: keys, ..ReadRequest::default() };
    let stream = dataset.latest(request, Some(vec!["tag".into()])).await.unwrap();
    answers.extend(futures::TryStreamExt::try_collect::<Vec<_>>(stream).await.unwrap());
    assert_eq!(dataset.count(ReadRequest::default()).await.unwrap(), answers[0].num_rows() as u64);
    answers
}

#[tokio::test(flavor = "multi_thread")]
async fn chunks_back_from_the_dead_change_nothing_and_are_absorbed() {
    for (store, _folder) in engines() {
        for spec in specs() {
            let spec = DatasetSpec { name: spec_name(&spec), ..spec };
            let dataset = create(&store, spec.clone()).await;
            for (batch, first) in [("a", 0), ("b", 20), ("c", 10)] {
                write(&dataset, &spread_rows(first, 30, 3, batch), named(batch)).await.unwrap();
            }
            let expected = answers(&dataset).await;
            let written = chunks(store.as_ref(), &DatasetRef::from(&spec)).await;
            consolidate(&dataset).await;
            assert_eq!(answers(&dataset).await, expected);
            let consolidated = chunks(store.as_ref(), &DatasetRef::from(&spec)).await;
            assert!(consolidated.len() < written.len());

            put_chunks(store.as_ref(), &DatasetRef::from(&spec), written.clone()).await;
            assert_eq!(answers(&dataset).await, expected, "{}: all chunks came back", spec.name);
            assert_sound(&dataset).await;
            consolidate(&dataset).await;
            assert_eq!(answers(&dataset).await, expected);
            assert_eq!(chunks(store.as_ref(), &DatasetRef::from(&spec)).await.len(), consolidated.len(), "absorbed");

            // Some of the written and of the consolidated chunks at once.
            put_chunks(store.as_ref(), &DatasetRef::from(&spec), written.iter().step_by(2).cloned().collect()).await;
            put_chunks(store.as_ref(), &DatasetRef::from(&spec), consolidated.clone()).await;
            assert_eq!(answers(&dataset).await, expected, "{}: some chunks came back", spec.name);
            consolidate(&dataset).await;
            assert_eq!(answers(&dataset).await, expected);
            assert_eq!(
                chunks(store.as_ref(), &DatasetRef::from(&spec)).await.len(),
                consolidated.len(),
                "absorbed again"
            );
            assert_sound(&dataset).await;
        }
    }
}

fn spec_name(spec: &DatasetSpec) -> chronotile_types::DatasetName {
    let name = match (spec.id.is_empty(), &spec.merge) {
        (true, _) => "without_ids",
        (_, MergeRule::Append) => "append",
        _ => "latest",
    };
    chronotile_types::DatasetName::new(name).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_removed_after_consolidation_takes_its_rows_out_and_no_others() {
    for (store, _folder) in engines() {
        for spec in specs() {
            let spec = DatasetSpec { name: spec_name(&spec), ..spec };
            let dataset = create(&store, spec.clone()).await;
            write(&dataset, &spread_rows(0, 30, 3, "a"), named("a")).await.unwrap();
            write(&dataset, &spread_rows(40, 30, 3, "c"), named("c")).await.unwrap();
            let expected = answers(&dataset).await;
            // Shares ids with both, so that its versions hide theirs until it is gone.
            write(&dataset, &spread_rows(20, 30, 3, "b"), named("b")).await.unwrap();
            assert_ne!(answers(&dataset).await, expected);
            consolidate(&dataset).await;
            assert_eq!(dataset.remove_batch("b").await.unwrap(), 30);
            assert_eq!(answers(&dataset).await, expected, "{}", spec.name);
            assert_sound(&dataset).await;
        }
    }
}

/// Runs `late` once, just before the first commit that removes chunks.
fn with_something_late(
    inner: &Arc<dyn Store>,
    late: impl Fn() -> futures::future::BoxFuture<'static, ()> + Send + Sync + 'static,
) -> Arc<dyn Store> {
    let done = std::sync::atomic::AtomicBool::new(false);
    Arc::new(FaultyStore::new(inner.clone(), move |call| {
        let takes_away = call.commit.is_some_and(|commit| !commit.remove.is_empty());
        if takes_away && !done.swap(true, std::sync::atomic::Ordering::SeqCst) {
            assert_eq!(call.operation, Operation::Commit);
            let work = late();
            on_other_thread(work);
        }
        Decision::Pass
    }))
}

async fn two_batches() -> (Arc<dyn Store>, Dataset) {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let dataset = create(&store, spec()).await;
    write(&dataset, &spread_rows(0, 30, 3, "a"), named("a")).await.unwrap();
    write(&dataset, &spread_rows(30, 30, 3, "b"), named("b")).await.unwrap();
    (store, dataset)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chunk_that_arrives_during_consolidation_is_not_swept_away() {
    let (store, dataset) = two_batches().await;
    let writer = dataset.clone();
    let late = with_something_late(&store, move || {
        let writer = writer.clone();
        Box::pin(async move {
            write(&writer, &spread_rows(60, 30, 3, "late"), named("late")).await.unwrap();
        })
    });
    let report = open(&late, "records").await.consolidate(ConsolidateOptions::default(), None).await.unwrap();
    assert_eq!(report.tiles_contended, 0);
    assert_eq!(ids(&read_all(&dataset).await), (0..90).collect::<Vec<_>>());
    assert_sound(&dataset).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_removed_or_replaced_during_consolidation_stay_away() {
    for replaces in [false, true] {
        let (store, dataset) = two_batches().await;
        let other = dataset.clone();
        let late = with_something_late(&store, move || {
            let other = other.clone();
            Box::pin(async move {
                match replaces {
                    false => drop(other.remove_batch("b").await.unwrap()),
                    true => drop(write(&other, &spread_rows(60, 9, 1, "new"), replacing("b")).await.unwrap()),
                }
            })
        });
        let report = open(&late, "records").await.consolidate(ConsolidateOptions::default(), None).await.unwrap();
        assert!(report.tiles_contended > 0, "nothing was contended, so nothing was tested");
        let expected: Vec<i64> = if replaces { (0..30).chain(60..69).collect() } else { (0..30).collect() };
        assert_eq!(ids(&read_all(&dataset).await), expected);
        consolidate(&dataset).await;
        assert_eq!(ids(&read_all(&dataset).await), expected);
        assert_sound(&dataset).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consolidation_that_lands_during_a_removal_or_a_replacement_keeps_no_old_row() {
    for replaces in [false, true] {
        let (store, dataset) = two_batches().await;
        let consolidator = dataset.clone();
        // Read before the removal began, committed just before it ends: the chunks it took are still there.
        let before = chunks(store.as_ref(), &placed()).await;
        consolidate(&consolidator).await;
        let after = chunks(store.as_ref(), &placed()).await;
        let swap = |put: Vec<_>, away: &[chronotile_store::Chunk]| {
            let remove = away.iter().map(|chunk| chunk.key).collect();
            Commit { put, remove, ..Commit::default() }
        };
        store.commit(&placed(), swap(before.clone(), &after)).await.unwrap();
        let (inner, commit) = (store.clone(), swap(after.clone(), &before));
        let late = with_something_late(&store, move || {
            let (inner, commit) = (inner.clone(), commit.clone());
            Box::pin(async move { inner.commit(&placed(), commit).await.unwrap() })
        });
        let late = open(&late, "records").await;
        let expected: Vec<i64> = match replaces {
            false => {
                late.remove_batch("b").await.unwrap();
                (0..30).collect()
            }
            true => {
                write(&late, &spread_rows(60, 9, 1, "new"), replacing("b")).await.unwrap();
                (0..30).chain(60..69).collect()
            }
        };
        assert_eq!(ids(&read_all(&dataset).await), expected, "replaces={replaces}");
        assert_sound(&dataset).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_of_finished_batches_see_no_part_of_one_that_is_being_replaced() {
    // Its old rows lie in consolidated chunks beside those of others, and half of them are taken out by now.
    let (store, dataset) = two_batches().await;
    consolidate(&dataset).await;
    let reader = dataset.clone();
    let late = with_something_late(&store, move || {
        let reader = reader.clone();
        Box::pin(async move {
            assert_eq!(ids(&read_all(&reader).await), (0..30).chain(60..69).collect::<Vec<_>>());
            assert_eq!(reader.count(ReadRequest::default()).await.unwrap(), 39);
        })
    });
    write(&open(&late, "records").await, &spread_rows(60, 9, 3, "new"), replacing("b")).await.unwrap();
    assert_eq!(read_all(&dataset).await.num_rows(), 39);
}

#[tokio::test(flavor = "multi_thread")]
async fn consolidated_heads_name_every_batch() {
    let (store, dataset) = two_batches().await;
    consolidate(&dataset).await;
    for chunk in chunks(store.as_ref(), &placed()).await {
        let binding = Binding { tile: chunk.key.tile, chunk: chunk.key.id };
        assert_eq!(Head::parse(&chunk.head, &binding).unwrap().origins.len(), 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_newest_version_does_not_depend_on_chunks_where_one_batch_has_several() {
    // One batch holds versions of an id in several cells and windows: chunk ids, which are hashes, must not decide.
    for seed in 0..8 {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let latest = DatasetSpec {
            merge: MergeRule::Latest { version: None },
            cell: CellRule::Value { column: "tag".into() },
            ..spec()
        };
        let dataset = create(&store, latest).await;
        let places: Vec<_> = (0..6).map(|i| (i % 3 * HOUR + seed, 7, i / 3)).collect();
        write(&dataset, &rows(&places), named("a")).await.unwrap();
        write(&dataset, &rows(&[(0, 8, 0), (HOUR, 8, 1), (2 * HOUR, 8, 1)]), named("b")).await.unwrap();
        for _ in 0..2 {
            let found = read_all(&dataset).await;
            assert_eq!(integers(&found, "tag"), [1, 1]);
            assert_eq!(ids(&found), [7, 8]);
            let late = ReadRequest { time: between(2 * HOUR, 3 * HOUR), ..ReadRequest::default() };
            assert_eq!(read(&dataset, late).await.unwrap(), found);
            consolidate(&dataset).await;
        }
    }
}
