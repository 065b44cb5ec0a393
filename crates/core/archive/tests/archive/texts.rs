//! Conditions on texts, and filters that let reads skip chunks without a text.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow_array::{TimestampMicrosecondArray, types::Int64Type};
use chronotile_archive::{Comparison, ConsolidateOptions, Dataset, IndexUse, Predicate, ReadRequest};
use chronotile_chunk::{Binding, Head};
use chronotile_memory::MemoryStore;
use chronotile_store::{DatasetRef, Metered, Operation, Store};
use chronotile_types::{DatasetSpec, MergeRule};
use proptest::prelude::*;

use crate::common::*;

fn condition(comparison: Comparison, text: &str) -> ReadRequest {
    let values: ArrayRef = Arc::new(StringArray::from(vec![text]));
    asking(Predicate { column: "note".into(), comparison, values })
}

fn asking(predicate: Predicate) -> ReadRequest {
    ReadRequest { predicates: vec![predicate], ..ReadRequest::default() }
}

fn filtered() -> DatasetSpec {
    DatasetSpec { text: vec!["note".into()], ..spec() }
}

/// Rows of one tag, each with its note, a second apart.
fn lines(first: i64, notes: &[Option<String>]) -> RecordBatch {
    let ids: Vec<i64> = (first..first + notes.len() as i64).collect();
    RecordBatch::try_from_iter([
        ("t", Arc::new(TimestampMicrosecondArray::from_iter_values(ids.iter().map(|id| id * 1_000_000))) as ArrayRef),
        ("id", Arc::new(Int64Array::from(ids))),
        ("tag", Arc::new(Int64Array::from(vec![7; notes.len()]))),
        ("x", Arc::new(Float64Array::from_iter_values((0..notes.len()).map(|i| (first as f64 + i as f64).sin())))),
        ("note", Arc::new(StringArray::from_iter(notes))),
    ])
    .unwrap()
}

fn line(batch: i64, i: i64) -> Option<String> {
    (i % 11 != 0).then(|| format!("host{batch:02} accepted connection {} from client{}", i % 20, i % 5))
}

/// Ten batches of lines, one of them with an error.
async fn ten_batches(spec: DatasetSpec) -> (Arc<dyn Store>, Dataset) {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let dataset = create(&store, spec).await;
    for batch in 0..10 {
        let mut notes: Vec<_> = (0..200).map(|i| line(batch, i)).collect();
        if batch == 6 {
            notes[77] = Some("Segmentation FAULT in worker".to_owned());
        }
        write(&dataset, &lines(batch * 200, &notes), named(&format!("batch {batch}"))).await.unwrap();
    }
    (store, dataset)
}

async fn used(dataset: &Dataset, request: &ReadRequest) -> (u64, u64, u64) {
    let IndexUse { chunks, chunks_read, chunks_filtered, .. } = dataset.explain(request, None).await.unwrap();
    (chunks, chunks_read, chunks_filtered)
}

#[tokio::test(flavor = "multi_thread")]
async fn chunks_without_a_text_are_passed_over() {
    for spec in [filtered(), DatasetSpec { id: vec![], ..filtered() }] {
        let (_, dataset) = ten_batches(spec).await;
        for (comparison, text) in [
            (Comparison::Contains, "Segmentation"),
            (Comparison::Prefix, "Segm"),
            (Comparison::Matches, r"(?i)^segmentation\s+fault\b"),
            (Comparison::Matches, "FAULT|out of memory"),
            (Comparison::Equal, "Segmentation FAULT in worker"),
            (Comparison::In, "Segmentation FAULT in worker"),
        ] {
            let request = condition(comparison, text);
            assert_eq!(used(&dataset, &request).await, (10, 1, 9), "{comparison:?} {text}");
            assert_eq!(ids(&read(&dataset, request.clone()).await.unwrap()), [6 * 200 + 77]);
            assert_eq!(dataset.count(request).await.unwrap(), 1);
        }
        // Case counts for rows, not for filters; of short texts and of their absence a filter knows nothing.
        assert_eq!(read(&dataset, condition(Comparison::Contains, "segmentation")).await.unwrap().num_rows(), 0);
        assert_eq!(used(&dataset, &condition(Comparison::Contains, "Seg")).await, (0, 0, 0));
        assert_eq!(used(&dataset, &condition(Comparison::Matches, "S.*n")).await, (0, 0, 0));
        assert_eq!(used(&dataset, &condition(Comparison::NotEqual, "Segmentation")).await, (0, 0, 0));
        let absent = condition(Comparison::Contains, "out of memory");
        assert_eq!(used(&dataset, &absent).await, (10, 0, 10));
        assert_eq!(dataset.count(absent).await.unwrap(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_of_chunks_passed_over_are_not_fetched() {
    let (store, dataset) = ten_batches(filtered()).await;
    let metered = Arc::new(Metered::new(store));
    let watched: Arc<dyn Store> = metered.clone();
    let watched = open(&watched, "records").await;
    let request = condition(Comparison::Contains, "Segmentation");
    assert_eq!(read(&watched, request.clone()).await.unwrap(), read(&dataset, request).await.unwrap());
    let fetched = metered.snapshot().into_iter().find(|metrics| metrics.operation == Operation::Fetch).unwrap();
    assert_eq!(fetched.items, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_columns_named_have_filters() {
    for (spec, expected) in [(filtered(), true), (spec(), false)] {
        let name = DatasetRef::from(&spec);
        let (store, _) = ten_batches(spec).await;
        for chunk in chunks(store.as_ref(), &name).await {
            let head = Head::parse(&chunk.head, &Binding { tile: chunk.key.tile, chunk: chunk.key.id }).unwrap();
            assert_eq!(head.text_filter(4).is_some(), expected);
            assert!(head.text_filter(1).is_none());
            assert!(chunk.head.len() < 160 + chunk.body.len() / 20);
        }
    }
}

/// A later state of a record hides an earlier one, wherever they are stored and whatever the filter of the later
/// one's chunk tells.
#[tokio::test(flavor = "multi_thread")]
async fn a_text_that_was_changed_is_not_found_again() {
    let texts = |text: &str| (0..60).map(|i| Some(format!("{text} number {i}"))).collect::<Vec<_>>();
    for merge in [MergeRule::Append, MergeRule::Latest { version: None }] {
        for (store, _folder) in engines() {
            let dataset = create(&store, DatasetSpec { merge: merge.clone(), ..filtered() }).await;
            write(&dataset, &lines(0, &texts("connection refused")), named("old")).await.unwrap();
            write(&dataset, &lines(0, &texts("session was opened")), named("new")).await.unwrap();
            let (old, new) = (condition(Comparison::Contains, "refused"), condition(Comparison::Contains, "opened"));
            for _ in 0..2 {
                assert_eq!(dataset.count(old.clone()).await.unwrap(), 0);
                assert_eq!(dataset.count(new.clone()).await.unwrap(), 60);
                let history = ReadRequest { history: true, ..old.clone() };
                let versions = if merge == MergeRule::Append { 0 } else { 60 };
                assert_eq!(dataset.count(history).await.unwrap(), versions);
                dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap();
            }
        }
    }
}

/// Lines with these ids and times and a common text.
fn noted_at(places: impl Iterator<Item = (i64, i64)>, text: &str) -> RecordBatch {
    let places: Vec<_> = places.map(|(id, t)| (t, id, 7)).collect();
    let notes = (0..places.len()).map(|i| format!("{text} number {i}"));
    let mut columns = rows(&places).columns().to_vec();
    columns[4] = Arc::new(StringArray::from_iter_values(notes));
    RecordBatch::try_new(rows(&places).schema(), columns).unwrap()
}

/// Two chunks share one record at the edge of their ids or times: its newer state has not the text.
#[tokio::test(flavor = "multi_thread")]
async fn a_chunk_without_a_text_counts_where_it_has_the_newer_state_of_a_record_at_its_edge() {
    let up = |first: i64, second: i64| (0..60).map(move |i| (first + i, second + i)).collect::<Vec<_>>();
    let down = |first: i64, second: i64| (0..60).map(move |i| (first - i, second + i)).collect::<Vec<_>>();
    // Microseconds, so that all of them lie in one tile.
    let old = up(0, 100);
    let timed = vec!["id".to_owned(), "t".to_owned()];
    // The ids, the newer lines, and how many of the older ones, of ids from 0 and times from 100 on, have a newer state among them.
    for (ids, newer, hidden) in [
        (vec!["id".to_owned()], up(59, 200), 1),
        (vec!["id".to_owned()], up(-59, 200), 1),
        (vec!["id".to_owned()], up(60, 200), 0),
        (vec!["id".to_owned()], up(0, 200), 60),
        (timed.clone(), down(59, 159), 1),
        (timed.clone(), down(59, 41), 1),
        (timed.clone(), up(0, 100), 60),
        (timed.clone(), up(30, 130), 30),
        (timed.clone(), up(0, 160), 0),
    ] {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let dataset = create(&store, DatasetSpec { id: ids, ..filtered() }).await;
        write(&dataset, &noted_at(old.iter().copied(), "connection refused"), named("old")).await.unwrap();
        write(&dataset, &noted_at(newer.iter().copied(), "session was opened"), named("new")).await.unwrap();
        let request = condition(Comparison::Contains, "refused");
        assert_eq!(dataset.count(request.clone()).await.unwrap(), 60 - hidden, "{newer:?}");
        assert_eq!(read(&dataset, request).await.unwrap().num_rows() as u64, 60 - hidden, "{newer:?}");
    }
}

/// Of the states that one batch has of one version, in chunks of its own, one counts: also where its chunk has not the text.
#[tokio::test(flavor = "multi_thread")]
async fn the_history_has_one_state_of_each_version_of_a_batch_whatever_is_asked_for() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let dataset = create(&store, DatasetSpec { merge: MergeRule::Latest { version: None }, ..filtered() }).await;
    // So many rows that the parts of a batch come into chunks of their own.
    let part = |batch: i64, text: &str| {
        let places: Vec<_> = (0..4_000).map(|i| (i, batch * 4_000 + i, batch)).collect();
        let note = |i: i64| format!("{text}{}", [" as usual", " as ever"][(i * i % 7 % 2) as usize].repeat(30));
        let mut columns = rows(&places).columns().to_vec();
        columns[4] = Arc::new(StringArray::from_iter_values((0..4_000).map(note)));
        RecordBatch::try_new(rows(&places).schema(), columns).unwrap()
    };
    for batch in 0..8 {
        let parts = ["connection refused", "session was opened"].map(|text| part(batch, text));
        dataset.write(input(parts), tight(named(&batch.to_string()))).await.unwrap();
    }
    let history = ReadRequest { history: true, ..ReadRequest::default() };
    let all = read(&dataset, history.clone()).await.unwrap();
    assert_eq!(all.num_rows(), 8 * 4_000);
    for text in ["refused", "opened"] {
        let request = ReadRequest { history: true, ..condition(Comparison::Contains, text) };
        assert_eq!(ids(&read(&dataset, request).await.unwrap()), brute_force(&all, text), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn conditions_that_make_no_sense_are_refused_by_the_name_of_their_column() {
    let (_, dataset) = ten_batches(filtered()).await;
    let refused = async |column: &str, comparison, values: ArrayRef| {
        let request = asking(Predicate { column: column.into(), comparison, values });
        dataset.read(request).await.unwrap_err().to_string()
    };
    let text = |text: &str| -> ArrayRef { Arc::new(StringArray::from(vec![text])) };
    let message = refused("tag", Comparison::Contains, text("7")).await;
    assert!(message.contains("\"tag\"") && message.contains("Int64") && message.contains("text"), "{message}");
    let message = refused("note", Comparison::Matches, text("(open")).await;
    assert!(message.contains("\"note\"") && message.contains("at character 1 of"), "{message}");
    let message = refused("note", Comparison::Prefix, Arc::new(Int64Array::from(vec![1]))).await;
    assert!(message.contains("one text for prefix"), "{message}");
    let message = refused("note", Comparison::Exists, text("yes")).await;
    assert!(message.contains("true or false"), "{message}");
}

#[tokio::test(flavor = "multi_thread")]
async fn nulls_are_found_by_exists_alone() {
    let (_, dataset) = ten_batches(filtered()).await;
    let exists = |wanted: bool| {
        let values: ArrayRef = Arc::new(BooleanArray::from(vec![wanted]));
        asking(Predicate { column: "note".into(), comparison: Comparison::Exists, values })
    };
    let nulls = read(&dataset, exists(false)).await.unwrap();
    assert!(nulls.num_rows() > 0 && nulls.column(4).null_count() == nulls.num_rows());
    let all = read_all(&dataset).await;
    assert_eq!(nulls.num_rows(), all.column(4).null_count());
    assert_eq!(dataset.count(exists(true)).await.unwrap() as usize, all.num_rows() - nulls.num_rows());
    for comparison in [Comparison::Contains, Comparison::Prefix, Comparison::Matches] {
        assert_eq!(dataset.count(condition(comparison, "")).await.unwrap() as usize, all.num_rows() - nulls.num_rows());
    }
}

fn note() -> impl Strategy<Value = Option<String>> {
    prop::option::weighted(
        0.9,
        prop_oneof![
            4 => "(user|host|disk)=[a-e]{1,6} (ok|FAILED|Größe|denied)",
            1 => "\\PC{0,16}",
            1 => "[kK\u{212a}sS\u{17f}]{0,8}",
            1 => Just(String::new()),
        ],
    )
}

/// Batches of lines, with ids that may overlap.
fn written() -> impl Strategy<Value = Vec<(i64, Vec<Option<String>>)>> {
    prop::collection::vec((0..60i64, prop::collection::vec(note(), 1..60)), 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn filters_change_no_answer(
        batches in written(), merge in 0..3usize, pick in 0..1_000usize, cut in (0..12usize, 0..12usize), other in "[a-f=kK]{1,6}",
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async {
            let merge = |spec: DatasetSpec| match merge {
                0 => DatasetSpec { id: vec![], ..spec },
                1 => spec,
                _ => DatasetSpec { merge: MergeRule::Latest { version: None }, ..spec },
            };
            let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
            let with = create(&store, merge(filtered())).await;
            let name = chronotile_types::DatasetName::new("plain").unwrap();
            let without = create(&store, merge(DatasetSpec { name, ..spec() })).await;
            let all: Vec<&String> = batches.iter().flat_map(|(_, notes)| notes.iter().flatten()).collect();
            let part: String = all.get(pick % all.len().max(1)).map_or(String::new(), |note| note.chars().skip(cut.0).take(cut.1).collect());
            for round in 0..2 {
                for (number, (first, notes)) in batches.iter().enumerate() {
                    for dataset in [&with, &without] {
                        write(dataset, &lines(*first, notes), named(&format!("{number}"))).await.unwrap();
                    }
                }
                for text in [&part, &other, &String::new()] {
                    let escaped = regex::escape(text);
                    for request in [
                        condition(Comparison::Contains, text),
                        condition(Comparison::Prefix, text),
                        condition(Comparison::Equal, text),
                        condition(Comparison::Matches, &escaped),
                        condition(Comparison::Matches, &format!("(?i){escaped}.?|^denied")),
                        ReadRequest { history: true, ..condition(Comparison::Contains, text) },
                    ] {
                        let (found, expected) = (read(&with, request.clone()).await.unwrap(), read(&without, request.clone()).await.unwrap());
                        assert_eq!(found, expected, "round {round}: {:?}", request.predicates);
                        assert_eq!(with.count(request).await.unwrap() as usize, expected.num_rows());
                    }
                    let contains = read(&with, condition(Comparison::Contains, text)).await.unwrap();
                    let brute = brute_force(&read_all(&without).await, text);
                    assert_eq!(ids(&contains), brute);
                }
                with.consolidate(ConsolidateOptions::default(), None).await.unwrap();
            }
        });
    }
}

fn brute_force(rows: &RecordBatch, part: &str) -> Vec<i64> {
    let notes = rows.column(4).as_string::<i32>().iter();
    let found = notes.zip(rows.column(1).as_primitive::<Int64Type>().values());
    let mut ids: Vec<i64> =
        found.filter(|(note, _)| note.is_some_and(|n| n.contains(part))).map(|(_, id)| *id).collect();
    ids.sort_unstable();
    ids
}
