//! Columns that are added later, and changes that are refused.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow_array::{Array, ArrayRef, BinaryArray, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema};
use chronotile_archive::{
    AddedColumn, Archive, ArchiveError, Comparison, ConsolidateOptions, Dataset, IndexBuildOptions, Predicate,
    ReadRequest,
};
use chronotile_memory::MemoryStore;
use chronotile_store::Store;
use chronotile_types::{CellRule, DatasetName, DatasetSpec, MergeRule, StorageLayout};

use crate::common::*;
use crate::interposed::{Action, Interposed};

fn added(name: &str, default: Option<ArrayRef>) -> AddedColumn {
    let data_type = default.as_ref().map_or(DataType::Int32, |value| value.data_type().clone());
    AddedColumn { field: Field::new(name, data_type, true), default }
}

fn int(value: i32) -> Option<ArrayRef> {
    Some(Arc::new(Int32Array::from(vec![value])))
}

/// `rows` with one more column.
fn with(rows: &RecordBatch, name: &str, column: ArrayRef) -> RecordBatch {
    let mut fields: Vec<_> = rows.schema().fields().iter().cloned().collect();
    fields.push(Arc::new(Field::new(name, column.data_type().clone(), true)));
    let columns = rows.columns().iter().cloned().chain([column]).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
}

async fn only(dataset: &Dataset, columns: &[&str]) -> RecordBatch {
    let columns = Some(columns.iter().map(|c| (*c).to_owned()).collect());
    read(dataset, ReadRequest { columns, ..ReadRequest::default() }).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn older_rows_read_as_null_or_default_before_and_after_consolidation() {
    for (store, _folder) in engines() {
        let dataset = create(&store, spec()).await;
        write(&dataset, &rows(&[(1, 1, 0), (2, 2, 0)]), named("old")).await.unwrap();
        dataset.add_columns(vec![added("plain", None), added("given", int(7))]).await.unwrap();
        let new = with(&rows(&[(3, 3, 0)]), "plain", Arc::new(Int32Array::from(vec![30])));
        write(&dataset, &new, named("new")).await.unwrap();
        for _ in 0..2 {
            let found = only(&dataset, &["given", "plain"]).await;
            assert_eq!(found.column(0).as_ref(), &Int32Array::from(vec![7, 7, 7]));
            assert_eq!(found.column(1).as_ref(), &Int32Array::from(vec![None, None, Some(30)]));
            let values: ArrayRef = Arc::new(Int32Array::from(vec![7]));
            let predicates = vec![Predicate { column: "given".into(), comparison: Comparison::Equal, values }];
            assert_eq!(dataset.count(ReadRequest { predicates, ..ReadRequest::default() }).await.unwrap(), 3);
            dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap();
        }
        assert_eq!(chunks(store.as_ref(), &placed()).await.len(), 1, "nothing was consolidated");
        assert_sound(&dataset).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_rows_written_after_a_column_was_added_are_the_same_content() {
    let (store, _folder) = sqlite();
    let dataset = create(&store, spec()).await;
    let old = rows(&[(1, 1, 0), (2, 2, 0)]);
    write(&dataset, &old, named("a")).await.unwrap();
    dataset.add_columns(vec![added("given", int(7))]).await.unwrap();
    assert!(!write(&dataset, &old, named("a")).await.unwrap().stored);
    let explicit = with(&old, "given", Arc::new(Int32Array::from(vec![7, 7])));
    assert!(!write(&dataset, &explicit, named("a")).await.unwrap().stored);
    let other = with(&old, "given", Arc::new(Int32Array::from(vec![Some(7), None])));
    assert!(matches!(write(&dataset, &other, named("a")).await, Err(ArchiveError::BatchDiffers { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handle_from_before_reads_writes_and_replaces() {
    for (store, _folder) in engines() {
        let dataset = create(&store, spec()).await;
        let stale = open(&store, "records").await;
        write(&dataset, &rows(&[(1, 1, 0)]), named("a")).await.unwrap();
        dataset.add_columns(vec![added("given", int(7))]).await.unwrap();
        let new = with(&rows(&[(2, 2, 0)]), "given", Arc::new(Int32Array::from(vec![70])));
        write(&dataset, &new, named("b")).await.unwrap();
        dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap();

        // The first call of this handle since then: it rewrites a chunk that has the new column.
        write(&stale, &rows(&[(3, 3, 0)]), replacing("a")).await.unwrap();
        let found = only(&dataset, &["id", "given"]).await;
        assert_eq!(integers(&found, "id"), [2, 3]);
        assert_eq!(found.column(1).as_ref(), &Int32Array::from(vec![70, 7]));

        let stale = open(&store, "records").await;
        dataset.add_columns(vec![added("later", None)]).await.unwrap();
        let later = with(&rows(&[(4, 4, 0)]), "later", Arc::new(Int32Array::from(vec![4])));
        write(&dataset, &later, named("c")).await.unwrap();
        assert_eq!(read_all(&stale).await, read_all(&dataset).await);
        assert_sound(&stale).await;
    }
}

#[tokio::test]
async fn chunks_of_many_rows_are_read_whatever_columns_were_added() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let few = |rows: &RecordBatch| rows.project(&[0, 1]).unwrap();
    let rows: Vec<_> = (0..1 << 16).map(|id| (id, id, 0)).collect();
    let rows = few(&noted(&rows, "n"));
    let narrow = DatasetSpec { schema: rows.schema(), cell: CellRule::Single, text: vec![], ..spec() };
    let dataset = create(&store, narrow).await;
    write(&dataset, &rows, named("a")).await.unwrap();
    assert_eq!(chunks(store.as_ref(), &placed()).await.len(), 1, "as many rows as a chunk may have");
    let wide = |name: &str, bytes: i32| AddedColumn {
        field: Field::new(name, DataType::FixedSizeBinary(bytes), true),
        default: None,
    };
    dataset.add_columns(vec![wide("wide", 8_000), added("given", int(7))]).await.unwrap();
    let found = read_all(&dataset).await;
    assert_eq!((found.num_rows(), found.column(2).null_count()), (1 << 16, 1 << 16));
    let error = dataset.add_columns(vec![wide("wider", 189)]).await.unwrap_err().to_string();
    assert!(error.contains("8193 bytes in each older row, more than 8192"), "{error}");
    let text: ArrayRef = Arc::new(StringArray::from(vec!["x".repeat(185)]));
    let error = dataset.add_columns(vec![added("text", Some(text))]).await.unwrap_err().to_string();
    assert!(error.contains("8193 bytes"), "{error}");
    dataset.add_columns(vec![wide("wider", 188)]).await.unwrap();
    assert_eq!(only(&dataset, &["wider", "given"]).await.num_rows(), 1 << 16);
}

/// What runs while another process adds a column, and writes rows that have it beside those of the tile.
const BESIDE: [&str; 8] =
    ["read", "read by id", "count", "latest", "count by index", "consolidate", "remove", "verify"];

/// The ids that are then read, given three rows of which the last is the one with the new column.
async fn beside(what: &str, dataset: &Dataset) -> Vec<i64> {
    let ids_of = |wanted: &[i64]| ReadRequest {
        ids: Some(vec![Arc::new(Int64Array::from(wanted.to_vec()))]),
        ..ReadRequest::default()
    };
    match what {
        "read" => return ids(&read_all(dataset).await),
        "read by id" => return ids(&read(dataset, ids_of(&[1, 2, 3])).await.unwrap()),
        "count" => {
            let rows = dataset.count(ReadRequest::default()).await.unwrap();
            return (1..).take(rows as usize).collect();
        }
        // All rows have the same key.
        "latest" => {
            let newest = ids(&latest(dataset, ReadRequest::default()).await.unwrap());
            return (1..=newest[0]).collect();
        }
        "count by index" => {
            dataset.build_indexes(&IndexBuildOptions::default(), None).await.unwrap();
            let by = ["id".to_owned()];
            return ids(&dataset.count_by(ReadRequest::default(), &by, false, None).await.unwrap().0);
        }
        "consolidate" => {
            assert!(dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap().failed.is_empty())
        }
        "remove" => _ = dataset.remove_batch("a").await.unwrap(),
        _ => assert_sound(dataset).await,
    }
    ids(&read_all(dataset).await)
}

#[tokio::test]
async fn a_column_may_be_added_and_written_between_any_two_calls_of_another_process() {
    for (what, consolidates) in BESIDE.into_iter().flat_map(|what| [(what, false), (what, true)]) {
        let gone: i64 = if what == "remove" { 1 } else { 0 };
        for at in 0.. {
            let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
            let dataset = create(&store, spec()).await;
            write(&dataset, &rows(&[(1, 1, 0)]), named("a")).await.unwrap();
            write(&dataset, &rows(&[(2, 2, 0)]), named("b")).await.unwrap();
            dataset.create_index("by_id", &["id".to_owned()]).await.unwrap();
            if gone > 0 {
                dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap();
            }
            let happened = Arc::new(AtomicBool::new(false));
            let (theirs, noted) = (dataset.clone(), happened.clone());
            let action: Action = Box::new(move || {
                let (theirs, noted) = (theirs.clone(), noted.clone());
                Box::pin(async move {
                    noted.store(true, Ordering::SeqCst);
                    theirs.add_columns(vec![added("given", int(7))]).await.unwrap();
                    let new = with(&rows(&[(3, 3, 0)]), "given", Arc::new(Int32Array::from(vec![70])));
                    write(&theirs, &new, named("c")).await.unwrap();
                    if consolidates {
                        theirs.consolidate(ConsolidateOptions::default(), None).await.unwrap();
                    }
                })
            });
            let busy = open(&Interposed::at(store.clone(), at, action), "records").await;
            let opened = happened.load(Ordering::SeqCst);
            let found = beside(what, &busy).await;
            let whole: Vec<i64> = (gone + 1..=3).collect();
            assert!(found == whole || !opened && found == whole[..whole.len() - 1], "{what} at {at}: {found:?}");
            if !happened.load(Ordering::SeqCst) {
                assert!(at > 4, "{what} made only {at} calls");
                break;
            }
            // The new column survives whatever was rewritten beside it.
            let found = only(&dataset, &["id", "given"]).await;
            let given = found.column(1).as_any().downcast_ref::<Int32Array>().unwrap();
            let place = integers(&found, "id").iter().position(|id| *id == 3).unwrap();
            assert_eq!(given.value(place), 70, "{what} at {at}");
            assert_sound(&dataset).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn incompatible_changes_are_refused_with_the_reason() {
    let (store, _folder) = sqlite();
    let dataset = create(&store, spec()).await;
    let refused = |result: Result<(), ArchiveError>| result.unwrap_err().to_string();
    let exists = refused(dataset.add_columns(vec![added("x", None)]).await);
    assert!(exists.contains("\"x\"") && exists.contains("exists already"), "{exists}");
    let field = Field::new("strict", DataType::Int32, false);
    let strict = refused(dataset.add_columns(vec![AddedColumn { field, default: None }]).await);
    assert!(strict.contains("\"strict\"") && strict.contains("default"), "{strict}");
    let half = AddedColumn { field: Field::new("half", DataType::Float16, true), default: None };
    let half = refused(dataset.add_columns(vec![half]).await);
    assert!(half.contains("\"half\"") && half.contains("Float16"), "{half}");
    let wrong = AddedColumn {
        field: Field::new("wrong", DataType::Int32, true),
        default: Some(Arc::new(StringArray::from(vec!["no"]))),
    };
    assert!(refused(dataset.add_columns(vec![wrong]).await).contains("\"wrong\""));
    // Values whose text is not read back as they are, and what is not one value.
    let bytes: ArrayRef = Arc::new(BinaryArray::from_vec(vec![&[1, 2]]));
    let none: ArrayRef = Arc::new(Int32Array::from(vec![None]));
    let two: ArrayRef = Arc::new(Int32Array::from(vec![1, 2]));
    for (default, reason) in [(bytes, "not supported"), (none, "one value that is not null"), (two, "one value")] {
        let text = refused(dataset.add_columns(vec![added("odd", Some(default))]).await);
        assert!(text.contains("\"odd\"") && text.contains(reason), "{text}");
    }
    assert_eq!(dataset.spec().schema, spec().schema, "a refused change left something behind");

    let archive = Archive::on("test:", store.clone());
    let changes: [(&str, DatasetSpec); 3] = [
        ("merge rule", DatasetSpec { merge: MergeRule::Latest { version: None }, ..spec() }),
        ("window", DatasetSpec { window: "2h".parse().unwrap(), ..spec() }),
        ("list of id columns", DatasetSpec { id: vec!["id".into(), "tag".into()], ..spec() }),
    ];
    for (part, changed) in changes {
        let error = archive.create(changed, true).await.unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    assert!(matches!(archive.create(spec(), false).await, Err(ArchiveError::DatasetExists { .. })));
    let as_rows = DatasetSpec { name: DatasetName::new("as_rows").unwrap(), layout: StorageLayout::Rows, ..spec() };
    let error = archive.create(as_rows, false).await.unwrap_err().to_string();
    assert!(error.contains("rows, on engine sqlite") && error.contains("use layout chunks"), "{error}");
}
