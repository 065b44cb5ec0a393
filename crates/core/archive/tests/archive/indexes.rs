//! An index changes no answer, whatever happened to the rows since it was built, and whoever built it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arrow_array::{Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray, UInt64Array};
use bytes::Bytes;
use chronotile_archive::{
    CellSelection, Comparison, ConsolidateOptions, Dataset, IndexBuildOptions, IndexUse, Predicate, ReadRequest,
    RetireLimit,
};
use chronotile_memory::MemoryStore;
use chronotile_sqlite::{Options, SqliteStore};
use chronotile_store::{
    Call, DatasetRef, Decision, FaultyStore, Metered, Operation, OperationMetrics, Store, StoreError,
};
use chronotile_types::{CellRule, DatasetName, DatasetSpec, Instant, MergeRule, Window};
use proptest::prelude::*;

use crate::common::*;

const HOURS: i64 = 6;

/// Rows of the common spec: id, hour, tag and note follow from a seed.
fn some_rows(seed: u64, count: u64, ids: i64) -> RecordBatch {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = |below: i64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) as i64) % below
    };
    let (mut t, mut id, mut tag, mut x, mut note) = (vec![], vec![], vec![], vec![], vec![]);
    for _ in 0..count {
        id.push(next(ids));
        t.push(next(HOURS) * HOUR + next(HOUR));
        tag.push(next(4));
        x.push(next(3) as f64);
        note.push(["done", "failed", "lost"][next(3) as usize]);
    }
    RecordBatch::try_from_iter([
        ("t", Arc::new(TimestampMicrosecondArray::from(t)) as arrow_array::ArrayRef),
        ("id", Arc::new(Int64Array::from(id))),
        ("tag", Arc::new(Int64Array::from(tag))),
        ("x", Arc::new(arrow_array::Float64Array::from(x))),
        ("note", Arc::new(StringArray::from(note))),
    ])
    .unwrap()
}

/// Datasets with every merge rule; with `latest`, versions of a record are in several tiles.
fn specs() -> Vec<DatasetSpec> {
    let named = |name: &str, spec: DatasetSpec| DatasetSpec { name: DatasetName::new(name).unwrap(), ..spec };
    let latest = |version: Option<&str>| MergeRule::Latest { version: version.map(str::to_owned) };
    let id_bucket = CellRule::IdBucket { column: "id".into(), size: 10 };
    vec![
        named("append", spec()),
        named("no_ids", DatasetSpec { id: vec![], ..spec() }),
        named("wandering", DatasetSpec { merge: latest(Some("x")), ..spec() }),
        named("bucketed", DatasetSpec { merge: latest(None), cell: id_bucket.clone(), ..spec() }),
        named(
            "fixed",
            DatasetSpec { merge: latest(Some("x")), cell: id_bucket, id: vec!["id".into(), "t".into()], ..spec() },
        ),
    ]
}

fn equal(column: &str, values: arrow_array::ArrayRef) -> Predicate {
    Predicate { column: column.into(), comparison: Comparison::In, values }
}

fn notes(values: &[&str]) -> Predicate {
    equal("note", Arc::new(StringArray::from(values.to_vec())))
}

fn tags(values: &[i64]) -> Predicate {
    equal("tag", Arc::new(Int64Array::from(values.to_vec())))
}

/// Requests that an index may speed up.
fn requests() -> Vec<ReadRequest> {
    let all = ReadRequest::default();
    let whole = ReadRequest { time: between(HOUR, 4 * HOUR), ..all.clone() };
    let partial = ReadRequest { time: between(HOUR / 2, 3 * HOUR + 17), ..all.clone() };
    let mut requests = vec![all.clone()];
    for base in [&all, &whole, &partial] {
        requests.push(ReadRequest { predicates: vec![notes(&["failed"])], ..base.clone() });
        requests.push(ReadRequest { predicates: vec![notes(&["done", "no such"]), tags(&[0, 3])], ..base.clone() });
        let x = Predicate {
            column: "x".into(),
            comparison: Comparison::GreaterOrEqual,
            values: Arc::new(arrow_array::Float64Array::from(vec![1.0])),
        };
        requests.push(ReadRequest { predicates: vec![tags(&[1]), x], ..base.clone() });
    }
    let cells = CellSelection::Cells(vec![0, 2, 3]);
    requests.push(ReadRequest { cells, predicates: vec![notes(&["failed"])], ..all.clone() });
    requests.push(ReadRequest { history: true, predicates: vec![notes(&["lost"])], ..all });
    requests
}

/// The expected rows of a request, without any index: reads without conditions and applies them here.
async fn rows_by_hand(dataset: &Dataset, request: &ReadRequest) -> Vec<(i64, i64, i64, String, String)> {
    let rows = read(dataset, ReadRequest { predicates: vec![], ..request.clone() }).await.unwrap();
    let mut rows = lines(&rows);
    rows.retain(|(_, _, tag, x, note)| {
        request.predicates.iter().all(|predicate| match predicate.column.as_str() {
            "note" => {
                let wanted = predicate.values.as_any().downcast_ref::<StringArray>().unwrap();
                wanted.iter().any(|value| value == Some(note.as_str()))
            }
            "tag" => predicate.values.as_any().downcast_ref::<Int64Array>().unwrap().values().contains(tag),
            _ => x.parse::<f64>().unwrap() >= 1.0,
        })
    });
    rows
}

fn lines(rows: &RecordBatch) -> Vec<(i64, i64, i64, String, String)> {
    let time = rows.column_by_name("t").unwrap().as_any().downcast_ref::<TimestampMicrosecondArray>().unwrap().clone();
    let x = rows.column_by_name("x").unwrap().as_any().downcast_ref::<arrow_array::Float64Array>().unwrap().clone();
    let note = rows.column_by_name("note").unwrap().as_any().downcast_ref::<StringArray>().unwrap().clone();
    let (id, tag) = (integers(rows, "id"), integers(rows, "tag"));
    let line = |i: usize| (id[i], time.value(i), tag[i], x.value(i).to_string(), note.value(i).to_owned());
    let mut lines: Vec<_> = (0..rows.num_rows()).map(line).collect();
    lines.sort();
    lines
}

/// Counts by note and tag, and by window.
async fn counted(dataset: &Dataset, request: &ReadRequest) -> (BTreeMap<(i64, String, i64), u64>, IndexUse) {
    let by = ["note".to_owned(), "tag".to_owned()];
    let (counts, used) = dataset.count_by(request.clone(), &by, true, None).await.unwrap();
    let window = counts.column(0).as_any().downcast_ref::<TimestampMicrosecondArray>().unwrap().clone();
    let note = counts.column(1).as_any().downcast_ref::<StringArray>().unwrap().clone();
    let tag = counts.column(2).as_any().downcast_ref::<Int64Array>().unwrap().clone();
    let count = counts.column(3).as_any().downcast_ref::<UInt64Array>().unwrap().clone();
    let row = |i: usize| ((window.value(i), note.value(i).to_owned(), tag.value(i)), count.value(i));
    let found: BTreeMap<_, _> = (0..counts.num_rows()).map(row).collect();
    assert_eq!(found.len(), counts.num_rows(), "a group came twice");
    (found, used)
}

/// Asserts that every answer with indexes equals the one without.
async fn check(dataset: &Dataset) {
    for request in requests() {
        let wanted = rows_by_hand(dataset, &request).await;
        let got = lines(&read(dataset, request.clone()).await.unwrap());
        assert_eq!(got, wanted, "rows of {request:?}: {:?}", dataset.explain(&request, None).await.unwrap());
        let used = dataset.explain(&request, Some(&[])).await.unwrap();
        assert_eq!(dataset.count(request.clone()).await.unwrap(), wanted.len() as u64, "{request:?}: {used:?}");
        let mut by_hand = BTreeMap::new();
        for (_, t, tag, _, note) in wanted {
            *by_hand.entry((t.div_euclid(HOUR) * HOUR, note, tag)).or_insert(0) += 1;
        }
        let (by_index, used) = counted(dataset, &request).await;
        assert_eq!(by_index, by_hand, "{request:?}: {used:?}");
    }
}

async fn create_indexes(dataset: &Dataset) {
    dataset.create_index("by_note_tag", &["note".into(), "tag".into()]).await.unwrap();
    dataset.create_index("by_x", &["x".into()]).await.unwrap();
    dataset.create_index("by_all", &["tag".into(), "x".into(), "note".into()]).await.unwrap();
}

#[derive(Clone, Debug)]
enum Step {
    Write(u64, u64),
    Replace(u64, u64),
    Remove(u64),
    Consolidate,
    Build,
    BuildSome(i64, i64),
    Rebuild,
    Retire(i64),
    ComeBack(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..5u64, 1..60u64).prop_map(|(batch, rows)| Step::Write(batch, rows)),
        2 => (0..5u64, 1..60u64).prop_map(|(batch, rows)| Step::Replace(batch, rows)),
        1 => (0..5u64).prop_map(Step::Remove),
        2 => Just(Step::Consolidate),
        5 => Just(Step::Build),
        2 => (0..HOURS, 1..HOURS).prop_map(|(first, hours)| Step::BuildSome(first, hours)),
        1 => Just(Step::Rebuild),
        1 => (0..3i64).prop_map(Step::Retire),
        1 => (1..4usize).prop_map(Step::ComeBack),
    ];
    prop::collection::vec(step, 4..14)
}

async fn build(dataset: &Dataset, options: IndexBuildOptions) {
    dataset.build_indexes(&options, None).await.unwrap();
}

async fn take(store: &Arc<dyn Store>, dataset: &Dataset, step: &Step, number: usize) {
    let key = |batch: &u64| format!("batch {batch}");
    match step {
        Step::Write(batch, rows) => {
            // Other content under a used name is refused, which is expected here.
            let _ = write(dataset, &some_rows(number as u64 + 1, *rows, 80), named(&key(batch))).await;
        }
        Step::Replace(batch, rows) => {
            write(dataset, &some_rows(1_000 + number as u64, *rows, 80), replacing(&key(batch))).await.unwrap();
        }
        Step::Remove(batch) => drop(dataset.remove_batch(&key(batch)).await),
        Step::Consolidate => drop(dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap()),
        Step::Build => build(dataset, IndexBuildOptions::default()).await,
        Step::BuildSome(first, hours) => {
            let time = between(first * HOUR, (first + hours) * HOUR);
            build(dataset, IndexBuildOptions { time, name: Some("by_note_tag".into()), ..Default::default() }).await;
        }
        Step::Rebuild => build(dataset, IndexBuildOptions { rebuild: true, ..Default::default() }).await,
        Step::Retire(hours) => {
            let limit = RetireLimit::Before(Instant::NativeTicks(hours * HOUR));
            dataset.retire(limit, false).await.unwrap();
        }
        Step::ComeBack(every) => {
            let name = DatasetRef::from(dataset.spec().as_ref());
            let stored = chunks(store.as_ref(), &name).await;
            dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap();
            put_chunks(store.as_ref(), &name, stored.into_iter().step_by(*every).collect()).await;
        }
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn answers_with_an_index_are_those_without(steps in steps(), which in 0..5usize, stepwise: bool) {
        runtime().block_on(async {
            let memory: Arc<dyn Store> = Arc::new(MemoryStore::new());
            let store: Arc<dyn Store> = if stepwise { Arc::new(LimitedStore::stepwise(memory)) } else { memory };
            let dataset = create(&store, specs()[which].clone()).await;
            create_indexes(&dataset).await;
            for (number, step) in steps.iter().enumerate() {
                take(&store, &dataset, step, number).await;
                check(&dataset).await;
            }
            build(&dataset, IndexBuildOptions::default()).await;
            check(&dataset).await;
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn answers_from_what_is_kept_are_never_older_than_what_others_wrote(steps in steps(), which in 0..5usize) {
        runtime().block_on(async {
            let (store, folder) = sqlite();
            let others: Arc<dyn Store> =
                Arc::new(SqliteStore::open(folder.path().join("archive.db"), Options::default()).unwrap());
            let spec = specs()[which].clone();
            let writer = create(&others, spec.clone()).await;
            create_indexes(&writer).await;
            let reader = open(&store, spec.name.as_str()).await;
            for (number, step) in steps.iter().enumerate() {
                take(&others, &writer, step, number).await;
                check(&reader).await;
            }
            build(&writer, IndexBuildOptions::default()).await;
            check(&reader).await;
            check(&reader).await;
        });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_count_that_is_asked_again_looks_at_no_chunk_of_slices_that_have_not_changed() {
    let (inner, _folder) = sqlite();
    let metered = Arc::new(Metered::new(inner));
    let store: Arc<dyn Store> = metered.clone();
    let dataset = create(&store, DatasetSpec { windows_per_slice: 1, ..spec() }).await;
    dataset.create_index("by_note", &["note".into()]).await.unwrap();
    write(&dataset, &some_rows(1, 400, 10_000), named("a")).await.unwrap();
    build(&dataset, IndexBuildOptions::default()).await;
    let request = ReadRequest { predicates: vec![notes(&["failed"])], ..ReadRequest::default() };
    let looked_at = || {
        let of = |metrics: &OperationMetrics| match metrics.operation {
            Operation::Scan | Operation::Fetch => metrics.items,
            _ => 0,
        };
        metered.snapshot().iter().map(of).sum::<u64>()
    };
    let wanted = dataset.count(request.clone()).await.unwrap();
    assert_eq!(dataset.count(request.clone()).await.unwrap(), wanted);
    let before = looked_at();
    assert_eq!(dataset.count(request.clone()).await.unwrap(), wanted);
    assert_eq!(looked_at() - before, 0);
    // A write to one hour: only that hour's tiles are observed, and the new rows are counted.
    write(&dataset, &noted(&[(2 * HOUR + 5, 20_000, 1)], "failed"), named("late")).await.unwrap();
    let before = looked_at();
    assert_eq!(dataset.count(request.clone()).await.unwrap(), wanted + 1);
    let chunks = looked_at() - before;
    assert!((1..=8).contains(&chunks), "{chunks} chunks looked at: those of one hour are {}", 4 + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_head_outside_the_period_of_a_request_is_not_its_concern() {
    let (store, _folder) = sqlite();
    let dataset = create(&store, spec()).await;
    dataset.create_index("by_note", &["note".into()]).await.unwrap();
    write(&dataset, &some_rows(1, 400, 10_000), named("a")).await.unwrap();
    build(&dataset, IndexBuildOptions::default()).await;
    let time = between(0, HOUR);
    let request = ReadRequest { predicates: vec![notes(&["failed"])], time, ..ReadRequest::default() };
    let wanted = dataset.count(request.clone()).await.unwrap();
    let name = DatasetRef::from(dataset.spec().as_ref());
    let mut stored = chunks(store.as_ref(), &name).await;
    stored.retain(|chunk| chunk.key.tile.window == Window(1));
    stored.iter_mut().for_each(|chunk| chunk.head = Bytes::from_static(b"no head"));
    put_chunks(store.as_ref(), &name, stored).await;
    for _ in 0..4 {
        assert_eq!(dataset.count(request.clone()).await.unwrap(), wanted);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_is_used_where_it_is_fresh_and_only_there() {
    for (store, _folder) in engines() {
        let dataset = create(&store, spec()).await;
        dataset.create_index("by_note", &["note".into()]).await.unwrap();
        write(&dataset, &some_rows(1, 400, 10_000), named("a")).await.unwrap();
        let request = ReadRequest { predicates: vec![notes(&["failed"])], ..ReadRequest::default() };
        let before = dataset.explain(&request, Some(&[])).await.unwrap();
        assert_eq!((before.index, before.windows_indexed.len()), (None, 0));

        build(&dataset, IndexBuildOptions::default()).await;
        let after = dataset.explain(&request, Some(&[])).await.unwrap();
        assert_eq!((after.index.as_deref(), after.chunks_read), (Some("by_note"), 0), "{after:?}");
        assert_eq!(after.windows_indexed.len(), HOURS as usize);

        // Late rows in one hour: that hour's tiles are read, the others counted.
        write(&dataset, &rows(&[(2 * HOUR + 5, 20_000, 1), (2 * HOUR + 6, 20_001, 2)]), named("late")).await.unwrap();
        let late = dataset.explain(&request, Some(&[])).await.unwrap();
        assert_eq!((late.tiles_changed, late.windows_direct.len()), (2, 1), "{late:?}");
        let report = dataset.build_indexes(&IndexBuildOptions::default(), None).await.unwrap();
        assert_eq!((report.windows_built, report.tiles_read), (1, 2), "only what changed is read: {report:?}");
        assert_eq!(dataset.explain(&request, Some(&[])).await.unwrap().chunks_read, 0);

        let nothing = dataset.build_indexes(&IndexBuildOptions::default(), None).await.unwrap();
        assert_eq!((nothing.windows, nothing.windows_built), (HOURS as u64, 0));
        check(&dataset).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_come_from_the_tiles_that_the_index_names() {
    let (store, _folder) = sqlite();
    let dataset = create(&store, spec()).await;
    dataset.create_index("by_note", &["note".into()]).await.unwrap();
    for tag in 0..20 {
        let note = if tag == 7 { "rare" } else { "common" };
        write(&dataset, &noted(&[(5, tag, tag), (HOUR + 5, tag + 100, tag)], note), named(&format!("{tag}")))
            .await
            .unwrap();
    }
    build(&dataset, IndexBuildOptions::default()).await;
    let request = ReadRequest { predicates: vec![notes(&["rare"])], ..ReadRequest::default() };
    let used = dataset.explain(&request, None).await.unwrap();
    assert_eq!((used.index.as_deref(), used.tiles, used.tiles_read), (Some("by_note"), 40, 2), "{used:?}");
    assert_eq!(ids(&read(&dataset, request).await.unwrap()), [7, 107]);
    let request = ReadRequest { predicates: vec![notes(&["common"])], ..ReadRequest::default() };
    let used = dataset.explain(&request, None).await.unwrap();
    assert_eq!((used.index, used.tiles_read), (None, 40), "reading all in one walk is faster");
    assert_eq!(read(&dataset, request).await.unwrap().num_rows(), 38);
}

#[tokio::test(flavor = "multi_thread")]
async fn several_builders_share_the_windows_and_build_each_once() {
    for (store, _folder) in engines() {
        let dataset = create(&store, spec()).await;
        create_indexes(&dataset).await;
        write(&dataset, &some_rows(3, 2_000, 5_000), named("a")).await.unwrap();
        let options = IndexBuildOptions::default();
        let builders: Vec<Dataset> = futures::future::join_all((0..4).map(|_| open(&store, "records"))).await;
        let reports =
            futures::future::join_all(builders.iter().map(|builder| builder.build_indexes(&options, None))).await;
        let reports: Vec<_> = reports.into_iter().map(Result::unwrap).collect();
        let built: u64 = reports.iter().map(|report| report.windows_built).sum();
        assert_eq!(built, 3 * HOURS as u64, "{reports:?}");
        assert!(reports.iter().all(|report| report.windows == 3 * HOURS as u64));
        check(&dataset).await;
    }
}

/// Lets a number of commits pass; the next one takes effect without an acknowledgement, and all later calls fail.
fn cut_off_after(commits: u64) -> impl Fn(Call<'_>) -> Decision + Send + Sync {
    let seen = AtomicU64::new(0);
    move |call| {
        let before = seen.fetch_add(u64::from(call.operation == Operation::Commit), Ordering::Relaxed);
        let lost = || StoreError::Unknown { engine: "test", reason: "cut off".to_owned() };
        match (call.operation, before.cmp(&commits)) {
            (Operation::Commit, std::cmp::Ordering::Equal) => Decision::FailAfter("cut off".to_owned()),
            (_, std::cmp::Ordering::Less | std::cmp::Ordering::Equal) => Decision::Pass,
            _ => Decision::FailBefore(lost()),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_builder_that_is_cut_off_leaves_its_windows_to_others() {
    let memory: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let dataset = create(&memory, spec()).await;
    create_indexes(&dataset).await;
    write(&dataset, &some_rows(4, 500, 5_000), named("a")).await.unwrap();
    // Interrupted at every commit in turn: of the lease, the postings, the record.
    for commits in 0..8 {
        let faulty: Arc<dyn Store> = Arc::new(FaultyStore::new(memory.clone(), cut_off_after(commits)));
        let cut_off = open(&faulty, "records").await;
        let options = IndexBuildOptions { lease_s: 1, ..Default::default() };
        assert!(cut_off.build_indexes(&options, None).await.is_err(), "commit {commits}");
        check(&dataset).await;
    }
    let report = dataset.build_indexes(&IndexBuildOptions::default(), None).await.unwrap();
    assert!(report.windows_built > 0, "{report:?}");
    check(&dataset).await;
    let request = ReadRequest { predicates: vec![notes(&["failed"])], ..ReadRequest::default() };
    assert_eq!(dataset.explain(&request, Some(&[])).await.unwrap().chunks_read, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_builder_that_lost_its_windows_stores_nothing() {
    let memory: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let dataset = create(&memory, spec()).await;
    create_indexes(&dataset).await;
    write(&dataset, &some_rows(6, 500, 5_000), named("a")).await.unwrap();
    let slow = |call: Call<'_>| {
        let puts = call.commit.into_iter().flat_map(|commit| &commit.before);
        let ends = puts.into_iter().any(|put| put.key.starts_with("index/"));
        if ends { Decision::Delay(Duration::from_millis(2_500)) } else { Decision::Pass }
    };
    let slow: Arc<dyn Store> = Arc::new(FaultyStore::new(memory.clone(), slow));
    let slow = open(&slow, "records").await;
    // Windows of one slice, which a builder is at together: it puts them after its leases have run out.
    let (name, time) = (Some("by_note_tag".to_owned()), between(0, 2 * HOUR));
    let options = IndexBuildOptions { name, time, lease_s: 1, ..IndexBuildOptions::default() };
    let (late, report) = futures::join!(slow.build_indexes(&options, None), async {
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        write(&dataset, &some_rows(7, 500, 5_000), named("b")).await.unwrap();
        dataset.build_indexes(&options, None).await.unwrap()
    });
    let late = late.unwrap();
    assert_eq!((late.windows_built, late.windows_elsewhere, report.windows_built), (0, 2, 2), "{late:?} {report:?}");
    let request = ReadRequest { time: between(0, 2 * HOUR), ..ReadRequest::default() };
    let used = dataset.explain(&request, Some(&["note".to_owned()])).await.unwrap();
    assert_eq!((used.tiles_indexed, used.tiles_read), (used.tiles, 0), "{used:?}");
    check(&dataset).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_index_leaves_nothing_behind() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let dataset = create(&store, spec()).await;
    create_indexes(&dataset).await;
    write(&dataset, &some_rows(5, 500, 5_000), named("a")).await.unwrap();
    build(&dataset, IndexBuildOptions::default()).await;
    let status = dataset.index_status().await.unwrap();
    let names: Vec<_> = status.iter().map(|index| (index.name.as_str(), index.windows, index.rows)).collect();
    let rows = read_all(&dataset).await.num_rows() as u64;
    assert_eq!(names, [("by_note_tag", 6, rows), ("by_x", 6, rows), ("by_all", 6, rows)]);
    for name in ["by_note_tag", "by_x", "by_all"] {
        assert_eq!(dataset.drop_index(name).await.unwrap(), 6);
    }
    for kind in ["index", "posting", "lease"] {
        let left = store.records(&format!("{kind}/records/"), None, 10).await.unwrap();
        assert_eq!(left, vec![], "{kind}");
    }
    assert!(dataset.drop_index("by_x").await.is_err());
    check(&dataset).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn postings_that_are_lost_or_damaged_change_nothing() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let dataset = create(&store, spec()).await;
    create_indexes(&dataset).await;
    write(&dataset, &some_rows(6, 500, 5_000), named("a")).await.unwrap();
    build(&dataset, IndexBuildOptions::default()).await;
    let name = DatasetRef::from(dataset.spec().as_ref());
    let postings = store.records("posting/records/", None, 100).await.unwrap();
    assert_eq!(postings.len(), 18);
    for (number, record) in postings.into_iter().enumerate() {
        let value = match number % 3 {
            0 => None,
            1 => Some(record.value.slice(..record.value.len() / 2)),
            _ => continue,
        };
        let put = chronotile_store::RecordPut { key: record.key, value, expect: chronotile_store::Expect::Any };
        store.commit(&name, chronotile_store::Commit { before: vec![put], ..Default::default() }).await.unwrap();
    }
    check(&dataset).await;
    build(&dataset, IndexBuildOptions { rebuild: true, ..Default::default() }).await;
    check(&dataset).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn columns_added_later_are_indexed_with_their_defaults() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let dataset = create(&store, spec()).await;
    write(&dataset, &some_rows(7, 100, 5_000), named("a")).await.unwrap();
    let field = arrow_schema::Field::new("site", arrow_schema::DataType::Utf8, true);
    let default: arrow_array::ArrayRef = Arc::new(StringArray::from(vec!["cern"]));
    let column = chronotile_archive::AddedColumn { field, default: Some(default) };
    dataset.add_columns(vec![column]).await.unwrap();
    dataset.create_index("by_site", &["site".into()]).await.unwrap();
    build(&dataset, IndexBuildOptions::default()).await;
    let cern = equal("site", Arc::new(StringArray::from(vec!["cern"])));
    let request = ReadRequest { predicates: vec![cern], ..ReadRequest::default() };
    assert_eq!(dataset.explain(&request, Some(&[])).await.unwrap().chunks_read, 0);
    assert_eq!(dataset.count(request).await.unwrap(), read_all(&dataset).await.num_rows() as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn indexes_that_make_no_sense_are_refused() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let dataset = create(&store, spec()).await;
    dataset.create_index("one", &["note".into()]).await.unwrap();
    let text = |result: chronotile_archive::Result<()>| result.unwrap_err().to_string();
    assert!(text(dataset.create_index("one", &["tag".into()]).await).contains("index one exists already, on note"));
    assert!(text(dataset.create_index("Two", &["tag".into()]).await).contains("a-z"));
    assert!(text(dataset.create_index("two", &["nothing".into()]).await).contains("not in the schema"));
    assert!(text(dataset.create_index("two", &["tag".into(), "tag".into()]).await).contains("twice"));
    assert!(text(dataset.create_index("two", &[]).await).contains("1 to 16"));
}
