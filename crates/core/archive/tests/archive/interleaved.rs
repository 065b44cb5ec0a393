//! What another process changes between any two calls of an operation.

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema};
use chronotile_archive::{
    AddedColumn, Archive, ArchiveError, Comparison, ConsolidateOptions, CopyOptions, Dataset, IndexBuildOptions,
    Predicate, ReadRequest, Result, RetireLimit,
};
use chronotile_memory::MemoryStore;
use chronotile_store::{Outcome, Store};
use chronotile_types::{CellRule, DatasetName, DatasetSpec, Instant, Membership, MergeRule, SliceOwner};
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};

use crate::common::*;
use crate::interposed::{Action, Interposed};

/// Ids, ascending.
type Ids = BTreeSet<i64>;

const READS: [&str; 12] = [
    "read",
    "read by index",
    "read by ids",
    "read by texts",
    "latest",
    "count",
    "count by index",
    "count by",
    "explain",
    "spans",
    "verify",
    "copy",
];
const WRITES: [&str; 13] = [
    "write",
    "write in steps",
    "write stored",
    "replace",
    "replace in steps",
    "remove",
    "consolidate",
    "retire",
    "move",
    "build indexes",
    "add column",
    "create index",
    "remove foreign",
];
const OF_GROUP: [&str; 5] =
    ["write group", "write group in steps", "remove from group", "consolidate group", "retire group"];

/// `CHANGES` leave the dataset what it is; `IN_GROUP` are those of a group. `NEW_DATASETS` are created under its name.
const CHANGES: [&str; 6] = ["columns", "definition", "index again", "replace", "consolidate", "drop"];
const IN_GROUP: [&str; 2] = ["columns of another", "another dataset"];
const NEW_DATASETS: [&str; 3] = ["other columns", "other order", "other cells"];
/// Only the second dataset of the new group has another definition.
const OTHER_MEMBER: &str = "other order of another";

fn is_new(what: &str) -> bool {
    NEW_DATASETS.contains(&what) || what == OTHER_MEMBER
}

/// A moment in the window of this hour.
fn hour(hour: i64, id: i64, tag: i64) -> (i64, i64, i64) {
    (hour * HOUR, id, tag)
}

fn member(name: &str, grouped: bool) -> DatasetSpec {
    let group = grouped.then(|| {
        let owner = SliceOwner { dataset: DatasetName::new("records").unwrap(), number: 0 };
        Membership {
            slices_of: (name != "records").then_some(owner),
            ..Membership::of(DatasetName::new("survey").unwrap())
        }
    });
    let merge = if grouped { MergeRule::Latest { version: None } } else { spec().merge };
    DatasetSpec { name: DatasetName::new(name).unwrap(), group, merge, ..spec() }
}

/// Like an archive in use: readers of what is replaced may be running.
async fn dataset_of(store: &Arc<dyn Store>) -> Result<Dataset> {
    Archive::on("test:", store.clone()).dataset("records").await
}

/// Ids 1 to 5 in three tiles of two slices.
async fn fill(store: &Arc<dyn Store>, grouped: bool) {
    let archive = archive(store);
    let dataset = archive.create(member("records", grouped), false).await.unwrap();
    if grouped {
        let other = archive.create(member("more", true), false).await.unwrap();
        write(&other, &noted(&[hour(0, 1, 0), hour(3, 2, 0)], "other"), named("other")).await.unwrap();
    }
    let dataset = if grouped { open(store, "records").await } else { dataset };
    write(&dataset, &noted(&[hour(0, 1, 0), hour(3, 2, 0)], "a text"), named("a")).await.unwrap();
    write(&dataset, &noted(&[hour(0, 3, 0), hour(3, 4, 1)], "b text"), named("b")).await.unwrap();
    dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap();
    dataset.create_index("by_id", &["id".to_owned()]).await.unwrap();
    dataset.build_indexes(&IndexBuildOptions::default(), None).await.unwrap();
    write(&dataset, &noted(&[hour(0, 5, 0)], "c text"), named("c")).await.unwrap();
}

fn with(rows: &RecordBatch, name: &str, column: ArrayRef) -> RecordBatch {
    let mut fields: Vec<_> = rows.schema().fields().iter().cloned().collect();
    fields.push(Arc::new(Field::new(name, column.data_type().clone(), true)));
    let columns = rows.columns().iter().cloned().chain([column]).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap()
}

fn column(name: &str) -> AddedColumn {
    let default: ArrayRef = Arc::new(Int32Array::from(vec![7]));
    AddedColumn { field: Field::new(name, DataType::Int32, true), default: Some(default) }
}

fn given() -> ArrayRef {
    Arc::new(Int32Array::from(vec![70]))
}

/// Leases are of true time, and the other process is stopped.
fn build_options() -> IndexBuildOptions {
    IndexBuildOptions { lease_s: 1, wait: false, ..IndexBuildOptions::default() }
}

/// The definition of a new dataset under the name of the old one.
fn new_spec(what: &str, grouped: bool) -> (DatasetSpec, RecordBatch) {
    let (old, rows) = (member("records", grouped), noted(&[hour(0, 21, 0), hour(3, 22, 0)], "n text"));
    match what {
        "other columns" => {
            let texts: ArrayRef = Arc::new(StringArray::from(vec!["one", "two"]));
            let mut columns = rows.columns().to_vec();
            columns[3] = texts;
            let mut fields = old.schema.fields().to_vec();
            fields[3] = Arc::new(Field::new("x", DataType::Utf8, true));
            let schema = Arc::new(Schema::new(fields));
            let rows = RecordBatch::try_new(schema.clone(), columns).unwrap();
            (DatasetSpec { schema, ..old }, rows)
        }
        "other order" => {
            let rows = rows.project(&[0, 2, 1, 3, 4]).unwrap();
            (DatasetSpec { schema: rows.schema(), ..old }, rows)
        }
        OTHER_MEMBER => (old, rows),
        // All rows are in one slice, which ends later than anything that is retired.
        _ => {
            let window = "2h".parse().unwrap();
            (DatasetSpec { cell: CellRule::Single, window, windows_per_slice: 4, ..old }, rows)
        }
    }
}

async fn change(store: &Arc<dyn Store>, what: &str, grouped: bool) {
    let archive = Archive::on("test:", store.clone());
    let dataset = archive.dataset("records").await.unwrap();
    let build = async || _ = dataset.build_indexes(&build_options(), None).await.unwrap();
    let late = noted(&[hour(0, 6, 0)], "d text");
    let dropped = async || match grouped {
        true => archive.drop_group("survey").await.unwrap(),
        false => archive.drop_dataset("records").await.unwrap(),
    };
    match what {
        "columns" => {
            dataset.add_columns(vec![column("first")]).await.unwrap();
            dataset.add_columns(vec![column("second")]).await.unwrap();
            write(&dataset, &with(&late, "second", given()), named("d")).await.unwrap();
            dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap();
        }
        "columns of another" => {
            let group = archive.group("survey").await.unwrap();
            group.dataset("more").unwrap().add_columns(vec![column("first")]).await.unwrap();
            let inputs = vec![("records", input([late.clone()])), ("more", input([with(&late, "first", given())]))];
            group.write(inputs, named("d")).await.unwrap();
        }
        "definition" => {
            dataset.set_retention(Some("1d".parse().unwrap())).await.unwrap();
            dataset.create_index("by_tag", &["tag".to_owned(), "id".to_owned()]).await.unwrap();
            build().await;
        }
        "index again" => {
            dataset.drop_index("by_id").await.unwrap();
            dataset.create_index("by_id", &["tag".to_owned()]).await.unwrap();
            build().await;
        }
        "another dataset" => {
            archive.create(member("third", true), false).await.unwrap();
            let group = archive.group("survey").await.unwrap();
            let inputs = ["records", "third"].map(|name| (name, input([late.clone()])));
            group.write(inputs.into(), named("d")).await.unwrap();
            group.dataset("third").unwrap().consolidate(ConsolidateOptions::default(), None).await.unwrap();
        }
        "replace" => _ = write(&dataset, &noted(&[hour(0, 7, 0)], "e text"), replacing("b")).await.unwrap(),
        "consolidate" => _ = dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap(),
        "drop" => dropped().await,
        new => {
            dropped().await;
            let (spec, rows) = new_spec(new, grouped);
            archive.create(spec, false).await.unwrap();
            if grouped {
                let more = member("more", true);
                let order: &[usize] = if what == OTHER_MEMBER { &[0, 2, 1, 3, 4] } else { &[0, 1, 2, 3, 4] };
                let schema = Arc::new(more.schema.project(order).unwrap());
                archive.create(DatasetSpec { schema, ..more }, false).await.ok();
            }
            let dataset = archive.dataset("records").await.unwrap();
            write(&dataset, &rows, named("n")).await.unwrap();
        }
    }
}

fn set(ids: impl IntoIterator<Item = i64>) -> Ids {
    ids.into_iter().collect()
}

/// The ids after the change.
fn after(what: &str) -> Ids {
    match what {
        "columns" | "columns of another" | "another dataset" => set(1..=6),
        "replace" => set([1, 2, 5, 7]),
        "drop" => set([]),
        new if is_new(new) => set([21, 22]),
        _ => set(1..=5),
    }
}

fn equal(column: &str, values: ArrayRef) -> Vec<Predicate> {
    vec![Predicate { column: column.into(), comparison: Comparison::In, values }]
}

/// The ids that the operation returned, or their number.
enum Observed {
    Ids(Ids),
    Count(usize),
    Nothing,
}

async fn found(stream: Result<RecordBatch>) -> Result<Observed> {
    let rows = stream?;
    let texts = rows.column_by_name("note").unwrap().as_string::<i32>().clone();
    assert!(texts.iter().all(|text| text.unwrap().ends_with("text")), "{texts:?}");
    let found = ids(&rows);
    assert_eq!(set(found.clone()).len(), found.len(), "a row twice: {found:?}");
    Ok(Observed::Ids(set(found)))
}

/// Rows with one large text each.
fn steps(ids: [i64; 3]) -> Vec<std::result::Result<RecordBatch, arrow_schema::ArrowError>> {
    let row = |id| noted(&[hour(0, id, 0)], &format!("{} text", "x".repeat(20_000)));
    input(ids.map(row))
}

async fn operate(what: &str, dataset: &Dataset, store: &Arc<dyn Store>) -> Result<Observed> {
    let all = || -> ArrayRef { Arc::new(Int64Array::from_iter_values(1..=30)) };
    let plain = ReadRequest::default;
    let by_ids = || ReadRequest { predicates: equal("id", all()), ..plain() };
    let by = ["id".to_owned()];
    match what {
        "read" => return found(read(dataset, plain()).await).await,
        "read by index" => return found(read(dataset, by_ids()).await).await,
        "read by ids" => return found(read(dataset, ReadRequest { ids: Some(vec![all()]), ..plain() }).await).await,
        "read by texts" => {
            let values: ArrayRef = Arc::new(StringArray::from(vec!["text"]));
            let texts = vec![Predicate { column: "note".into(), comparison: Comparison::Contains, values }];
            return found(read(dataset, ReadRequest { predicates: texts, ..plain() }).await).await;
        }
        "latest" => {
            let rows = dataset.latest(plain(), Some(by.to_vec())).await?;
            let batches: Vec<RecordBatch> = futures::TryStreamExt::try_collect(rows).await?;
            return Ok(Observed::Ids(batches.iter().flat_map(ids).collect()));
        }
        "count" => return Ok(Observed::Count(dataset.count(plain()).await? as usize)),
        "count by index" => return Ok(Observed::Count(dataset.count(by_ids()).await? as usize)),
        "count by" => {
            let (counts, _) = dataset.count_by(plain(), &by, false, None).await?;
            return Ok(Observed::Ids(set(ids(&counts))));
        }
        "explain" => _ = dataset.explain(&by_ids(), Some(&by)).await?,
        "spans" => {
            let spans = dataset.spans(&[0, 1], (0, 9 * HOUR)).await?;
            assert!(spans.iter().all(|span| span.tick_min <= span.tick_max));
            dataset.span_before(0, 9 * HOUR).await?;
            dataset.span_from(0, 0).await?;
        }
        "verify" => {
            let report = dataset.verify(None).await?;
            assert!(report.ok(), "{report:?}");
        }
        "copy" => {
            let target: Arc<dyn Store> = Arc::new(MemoryStore::new());
            let (from, to) = (Archive::on("test:source", store.clone()), Archive::on("test:target", target.clone()));
            let report = from.copy_to(&to, CopyOptions::default(), None).await?;
            assert!(report.datasets.iter().all(|copied| copied.ok()), "{report:?}");
            let copied = dataset_of(&target).await?;
            assert!(copied.verify(None).await?.ok());
            return found(read(&copied, plain()).await).await;
        }
        "write" => _ = write(dataset, &noted(&[hour(0, 11, 0)], "w text"), named("w")).await?,
        "write in steps" => _ = dataset.write(steps([11, 12, 13]), tight(named("w"))).await?,
        "write stored" => {
            let same = noted(&[hour(0, 1, 0), hour(3, 2, 0)], "a text");
            write(dataset, &same, named("a")).await?;
        }
        "replace" => _ = write(dataset, &noted(&[hour(0, 11, 0)], "w text"), replacing("a")).await?,
        "replace in steps" => _ = dataset.write(steps([11, 12, 13]), tight(replacing("c"))).await?,
        "remove" => _ = dataset.remove_batch("a").await?,
        "consolidate" => {
            let report = dataset.consolidate(ConsolidateOptions::default(), None).await?;
            assert!(report.failed.is_empty(), "{report:?}");
        }
        "retire" => _ = dataset.retire(RetireLimit::Before(Instant::NativeTicks(2 * HOUR)), false).await?,
        "move" => {
            let limit = RetireLimit::Before(Instant::NativeTicks(2 * HOUR));
            let slices = dataset.seeing_every_write().retire(limit, true).await?;
            let slices: Vec<_> = slices.iter().map(|slice| (slice.slice, slice.fingerprint)).collect();
            let moved = dataset.retire_unchanged(&slices).await?;
            return Ok(Observed::Count(moved.len()));
        }
        "build indexes" => {
            dataset.build_indexes(&build_options(), None).await?;
        }
        "add column" => dataset.add_columns(vec![column("own")]).await?,
        "create index" => {
            dataset.create_index("own", &["id".to_owned()]).await?;
            dataset.build_indexes(&build_options(), None).await?;
        }
        "remove foreign" => assert!(dataset.remove_foreign().await?.is_empty()),
        _ => {
            let group = Archive::on("test:", store.clone()).group("survey").await?;
            let row = noted(&[hour(0, 11, 0)], "w text");
            match what {
                "read group" => {
                    let mut read = group.read(vec![("records", plain()), ("more", plain())]).await?;
                    read.truncate(1);
                    return Ok(Observed::Ids(read[0].1.iter().flat_map(ids).collect()));
                }
                "write group" => {
                    let inputs = ["records", "more"].map(|name| (name, input([row.clone()])));
                    group.write(inputs.into(), named("w")).await?;
                }
                "write group in steps" => {
                    let inputs = ["records", "more"].map(|name| (name, steps([11, 12, 13])));
                    group.write(inputs.into(), tight(named("w"))).await?;
                }
                "remove from group" => _ = group.remove_batch("a").await?,
                "consolidate group" => {
                    drop(group.consolidate(&["records", "more"], ConsolidateOptions::default(), None).await?)
                }
                _ => drop(
                    group
                        .retire(&["records", "more"], RetireLimit::Before(Instant::NativeTicks(2 * HOUR)), false)
                        .await?,
                ),
            }
        }
    }
    Ok(Observed::Nothing)
}

/// The ids that must be there after the operation ended well, and those that may be.
fn effect(what: &str, there: &Ids, seen: Option<&Observed>) -> (Ids, Ids) {
    let (mut gone, mut new) = (Ids::new(), Ids::new());
    match what {
        "write" | "write group" => new = set([11]),
        "write stored" => new = set([1, 2]),
        "write in steps" | "write group in steps" => new = set(11..=13),
        "replace" => (gone, new) = (set([1, 2]), set([11])),
        "replace in steps" => (gone, new) = (set([5]), set(11..=13)),
        "remove" | "remove from group" => gone = set([1, 2]),
        "move" if matches!(seen, Some(Observed::Count(0))) => {}
        // What came after the drop stays.
        "retire" | "retire group" | "move" => gone = set([1, 3, 5]),
        _ => {}
    }
    let most = &(there - &gone) | &new;
    let mut least = most.clone();
    if what.starts_with("retire") || what == "move" {
        least = &least - &set([6, 7]);
    }
    (least, most)
}

/// Runs the change before one call of the operation. Returns whether it ran, and what is wrong.
async fn interleaved(
    what: &str,
    other: &'static str,
    grouped: bool,
    stepwise: bool,
    at: u64,
) -> (bool, Option<String>) {
    let memory: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let store = if stepwise { Arc::new(LimitedStore::stepwise(memory)) } else { memory };
    fill(&store, grouped).await;
    let change_task: Arc<Mutex<Option<Shared<BoxFuture<'static, bool>>>>> = Arc::default();
    let (theirs, started) = (store.clone(), change_task.clone());
    let action: Action = Box::new(move || {
        let (theirs, started) = (theirs.clone(), started.clone());
        Box::pin(async move {
            // The operation may end meanwhile: another of its calls has failed.
            let task = tokio::spawn(async move { change(&theirs, other, grouped).await });
            let task = task.map(|ended| ended.is_ok()).boxed().shared();
            *started.lock().unwrap() = Some(task.clone());
            task.await;
        })
    });
    let started = || change_task.lock().unwrap().clone();
    let busy = Interposed::at(store.clone(), at, action);
    let work = async {
        let dataset = dataset_of(&busy).await?;
        let opened = started().is_some();
        operate(what, &dataset, &busy).await.map(|seen| (opened, seen))
    };
    let ended = match AssertUnwindSafe(work).catch_unwind().await {
        Ok(ended) => ended,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            return (started().is_some(), Some(format!("panic: {}", text.unwrap_or_default())));
        }
    };
    let Some(task) = started() else {
        return (false, ended.err().map(|error| format!("without a change: {error}")));
    };
    if !task.await {
        return (true, Some("the change failed".into()));
    }
    (true, judge(what, other, stepwise, &store, ended).await.err())
}

async fn judge(
    what: &str,
    other: &str,
    stepwise: bool,
    store: &Arc<dyn Store>,
    ended: Result<(bool, Observed)>,
) -> std::result::Result<(), String> {
    let (before, after) = (set(1..=5), after(other));
    let made_again = is_new(other);
    let dropped = made_again || other == "drop";
    match &ended {
        Err(error) => {
            let gone = matches!(error, ArchiveError::DatasetNotFound { .. } | ArchiveError::GroupNotFound { .. });
            let is_missing = matches!(error, ArchiveError::BatchNotFound { .. } | ArchiveError::Input { .. });
            let is_other = matches!(error, ArchiveError::NotACopy { .. } | ArchiveError::DatasetExists { .. });
            let fair =
                dropped && (gone || is_missing || what == "copy" && is_other || error.outcome() == Outcome::LostRace);
            // A batch is replaced while it is compared with, or replaced itself.
            let raced = other == "replace" && error.outcome() == Outcome::LostRace;
            if !fair && !raced {
                return Err(format!("{:?}: {error}", error.kind()));
            }
        }
        Ok((opened, Observed::Ids(ids))) if READS.contains(&what) || what == "read group" => {
            let was = !opened && (*ids == before || dropped && ids.is_subset(&before));
            if !was && *ids != after {
                return Err(format!("opened={opened}: {ids:?}"));
            }
        }
        Ok((opened, Observed::Count(count))) if READS.contains(&what) => {
            let was = !opened && (*count == before.len() || dropped && *count < before.len());
            if !was && *count != after.len() {
                return Err(format!("opened={opened}: {count} rows"));
            }
        }
        Ok(_) => {}
    }
    if other == "drop" {
        let there = dataset_of(store).await.is_ok();
        let wrote = ended.is_ok() && (what.starts_with("write") || what.starts_with("replace"));
        // On a cluster, a writer relies on a definition that it has read for some seconds.
        return match (there, wrote && !stepwise && matches!(ended, Ok((false, _)))) {
            (true, _) => Err("the dataset is there again".into()),
            (_, true) if !store.slices(&placed()).await.unwrap().is_empty() => Err("rows of a dropped dataset".into()),
            _ => Ok(()),
        };
    }
    let there = open(store, "records").await;
    let report = there.verify(None).await.map_err(|error| format!("verify: {error}"))?;
    if !report.ok() {
        return Err(format!("verify after {:?}: {report:?}", ended.map(|_| ())));
    }
    if let Ok(more) = Archive::on("test:", store.clone()).dataset("more").await {
        let report = more.verify(None).await.map_err(|error| format!("verify: {error}"))?;
        if !report.ok() {
            return Err(format!("verify of another after {:?}: {report:?}", ended.map(|_| ())));
        }
    }
    let rows = read(&there, ReadRequest::default()).await.map_err(|error| format!("read: {error}"))?;
    let found = set(ids(&rows));
    if let Some(second) = rows.column_by_name("second") {
        let place = integers(&rows, "id").iter().position(|id| *id == 6);
        if place.is_some_and(|place| second.as_primitive::<arrow_array::types::Int32Type>().value(place) != 70) {
            return Err("the new column was lost".into());
        }
    }
    let is_ok = ended.is_ok();
    let seen = ended.ok().map(|(_, seen)| seen);
    let (least, most) = if is_ok { effect(what, &after, seen.as_ref()) } else { (after.clone(), after.clone()) };
    let right = least.is_subset(&found) && found.is_subset(&most);
    // In a new dataset there may be nothing of the operation, or it began later.
    let retired = is_ok && (what.starts_with("retire") || what == "move") && other != "other cells";
    if right || made_again && (found == after || retired && found == set([22])) {
        return Ok(());
    }
    Err(format!("ok={is_ok}, found {found:?}, expected {least:?} to {most:?}"))
}

/// Runs each of the changes before each call of each of the operations.
async fn assert_all_hold(operations: &[&str], grouped: bool, stepwise: bool) {
    let mut wrong: Vec<String> = Vec::new();
    let in_group = if grouped { [&IN_GROUP[..], &[OTHER_MEMBER]].concat() } else { Vec::new() };
    let changes = CHANGES.iter().chain(&in_group).chain(&NEW_DATASETS);
    for other in changes.copied() {
        for what in operations.iter().copied().filter(|what| !excluded(what, other, grouped, stepwise)) {
            let mut at = 0;
            loop {
                let (happened, error) = interleaved(what, other, grouped, stepwise, at).await;
                wrong.extend(error.map(|error| format!("{what} / {other} at {at}: {error}")));
                if !happened {
                    break;
                }
                at += 1;
            }
            assert!(at > 1, "{what} made only {at} calls");
        }
    }
    assert!(wrong.is_empty(), "grouped {grouped}, stepwise {stepwise}: {} wrong:\n{}", wrong.len(), wrong.join("\n"));
}

fn excluded(what: &str, other: &str, grouped: bool, stepwise: bool) -> bool {
    let retires = what.starts_with("retire") || what == "move";
    let new = is_new(other);
    let reads = READS.contains(&what) || what == "read group";
    // The slices of the group are shared, and its batches cover all datasets, which must be named together.
    grouped && ["retire", "move", "remove"].contains(&what)
        || other == "another dataset" && ["copy", "retire group"].contains(&what)
        // On a cluster, a writer that stands still for longer than a drop waits may write into the new dataset, and the
        // slices that a process is dropping refuse the rows of others.
        || stepwise && (new && !reads || retires && other != "definition")
}

#[tokio::test(start_paused = true)]
async fn reads_show_one_state_whatever_happens_between_their_calls() {
    assert_all_hold(&READS, false, false).await;
}

#[tokio::test(start_paused = true)]
async fn reads_of_a_group_on_a_cluster_show_one_state_whatever_happens_between_their_calls() {
    assert_all_hold(&READS, true, true).await;
    assert_all_hold(&["read group"], true, true).await;
}

#[tokio::test(start_paused = true)]
async fn writes_and_maintenance_lose_nothing_whatever_happens_between_their_calls() {
    assert_all_hold(&WRITES, false, false).await;
    assert_all_hold(&WRITES, true, true).await;
    // A writer on a cluster reads the definition again before it puts rows, if it has last read it long ago.
    for at in 1..4 {
        assert_eq!(interleaved("write in steps", "other order", false, true, at).await, (true, None), "at {at}");
    }
    for at in 7..11 {
        let of_group = interleaved("write group in steps", OTHER_MEMBER, true, true, at).await;
        assert_eq!(of_group, (true, None), "at {at}");
    }
}

#[tokio::test(start_paused = true)]
async fn work_on_a_group_loses_nothing_whatever_happens_between_its_calls() {
    assert_all_hold(&OF_GROUP, true, false).await;
    assert_all_hold(&OF_GROUP, true, true).await;
}
