//! Reads of some datasets in the cells that rows of another name, from one snapshot whatever ends meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arrow_array::Int64Array;
use chronotile_archive::{Archive, CellSelection, Group, ReadRequest, Result, Rows};
use chronotile_memory::MemoryStore;
use chronotile_store::{Decision, FaultyStore, Operation, Store};

use crate::common::*;
use crate::groups::{survey, write_all};
use crate::interposed::Interposed;

const OBJECT: i64 = 7;

/// Objects say in which cells an object has sources: its rows have the tags of these.
async fn store_visit(group: &Group, visit: &str, tag: i64) {
    let places = [(tag, OBJECT, tag), (1, OBJECT + 1, 0)];
    let tables = ["objects", "sources", "forced"].map(|name| (name, noted(&places, visit)));
    write_all(group, tables.to_vec(), named(visit)).await.unwrap();
}

fn of_the_object() -> ReadRequest {
    ReadRequest { ids: Some(vec![Arc::new(Int64Array::from(vec![OBJECT]))]), history: true, ..ReadRequest::default() }
}

async fn look(group: &Group) -> Result<Vec<Vec<(i64, String)>>> {
    let others = ["sources", "forced"].map(|name| (name, ReadRequest { history: false, ..of_the_object() }));
    let found = group.read_in_cells_of(("objects", of_the_object()), "tag", others.to_vec()).await?;
    Ok(found.iter().map(notes_of).collect())
}

fn notes_of((schema, batches): &Rows) -> Vec<(i64, String)> {
    id_notes(&arrow_select::concat::concat_batches(schema, batches).unwrap())
}

fn visits(names: &[&str]) -> Vec<(i64, String)> {
    names.iter().map(|name| (OBJECT, (*name).to_owned())).collect()
}

#[tokio::test]
async fn rows_lie_in_the_cells_that_the_first_dataset_names() {
    for (store, _folder) in engines() {
        let group = survey(&store).await;
        assert_eq!(look(&group).await.unwrap(), vec![visits(&[]); 3]);
        store_visit(&group, "a", 1).await;
        store_visit(&group, "b", 2).await;
        assert_eq!(look(&group).await.unwrap(), vec![visits(&["a", "b"]); 3]);
        // Reads skip cells that no row names.
        let elsewhere = vec![("sources", noted(&[(9, OBJECT, 5)], "c"))];
        write_all(&group, elsewhere, named("c")).await.unwrap();
        assert_eq!(look(&group).await.unwrap(), vec![visits(&["a", "b"]); 3]);
        let place = CellSelection::Cells(vec![5]);
        let everywhere = read(group.dataset("sources").unwrap(), ReadRequest { cells: place, ..of_the_object() }).await;
        assert_eq!(id_notes(&everywhere.unwrap()), visits(&["c"]));
    }
}

#[tokio::test]
async fn cells_come_from_a_column_of_whole_numbers_that_is_read() {
    let group = survey(&(Arc::new(MemoryStore::new()) as Arc<dyn Store>)).await;
    let of = async |columns: &[&str], cells: &str| {
        let columns = Some(columns.iter().map(|name| (*name).to_owned()).collect());
        let index = ("objects", ReadRequest { columns, ..of_the_object() });
        group.read_in_cells_of(index, cells, vec![]).await.unwrap_err().to_string()
    };
    assert_eq!(
        of(&["id"], "tag").await,
        "dataset objects: cells_from needs column \"tag\": add it to the columns of this request"
    );
    let refused = "column \"x\" has type Float64: the numbers of cells come from a column of int64";
    assert_eq!(of(&["id", "x"], "x").await, format!("dataset objects: {refused}"));
}

#[tokio::test]
async fn what_datasets_of_a_group_have_in_common_is_looked_up_once() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    store_visit(&survey(&store).await, "a", 1).await;
    let counts: Arc<[AtomicU64; 2]> = Arc::default();
    let counted = counts.clone();
    let watched: Arc<dyn Store> = Arc::new(FaultyStore::new(store, move |call| {
        match call.operation {
            Operation::Slices => counted[0].fetch_add(1, Ordering::SeqCst),
            Operation::Scan => counted[1].fetch_add(1, Ordering::SeqCst),
            _ => 0,
        };
        Decision::Pass
    }));
    let group = archive(&watched).group("survey").await.unwrap();
    let requests = async |read: bool| {
        let before = [0, 1].map(|at| counts[at].load(Ordering::SeqCst));
        let found = match read {
            true => group.read(["objects", "sources", "forced"].map(|name| (name, of_the_object())).to_vec()).await,
            false => look(&group).await.map(|_| vec![]),
        };
        found.unwrap();
        [0, 1].map(|at| counts[at].load(Ordering::SeqCst) - before[at])
    };
    // A batch that ended recently is looked up when it is first found.
    look(&group).await.unwrap();
    assert_eq!(requests(true).await, [1, 3]);
    assert_eq!(requests(false).await, [1, 3]);
}

/// A visit is stored, replaced by one in another cell, or removed, before each call of a read.
#[tokio::test]
async fn what_ends_between_the_reads_is_in_all_of_the_results_or_in_none() {
    for change in ["stored", "replaced", "removed"] {
        let mut seen = (0, 0);
        for at in 0.. {
            let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
            survey(&store).await;
            // Replaced and removed rows stay for a while for reads that began earlier.
            let group = Archive::on("test:", store.clone()).group("survey").await.unwrap();
            store_visit(&group, "a", 1).await;
            if change != "stored" {
                store_visit(&group, "b", 2).await;
            }
            let struck = Arc::new(AtomicU64::new(0));
            let (theirs, noted_struck) = (group.clone(), struck.clone());
            let action = move || {
                noted_struck.fetch_add(1, Ordering::SeqCst);
                let theirs = theirs.clone();
                Box::pin(async move {
                    match change {
                        "stored" => store_visit(&theirs, "b", 2).await,
                        "removed" => drop(theirs.remove_batch("b").await.unwrap()),
                        _ => {
                            let rows = noted(&[(3, OBJECT, 3)], "c");
                            let tables = ["objects", "sources", "forced"].map(|name| (name, rows.clone()));
                            write_all(&theirs, tables.to_vec(), replacing("b")).await.unwrap();
                        }
                    }
                }) as futures::future::BoxFuture<'static, ()>
            };
            let reading = archive(&Interposed::at(store, at, Box::new(action))).group("survey").await.unwrap();
            // The result must not depend on what the reader already knows about batches.
            let opened = struck.load(Ordering::SeqCst);
            let found = look(&reading).await.unwrap();
            assert_eq!([&found[1], &found[2]], [&found[0]; 2], "{change} before call {at}");
            let (before, after) = match change {
                "stored" => (visits(&["a"]), visits(&["a", "b"])),
                "removed" => (visits(&["a", "b"]), visits(&["a"])),
                _ => (visits(&["a", "b"]), visits(&["a", "c"])),
            };
            match &found[0] {
                rows if *rows == before => seen.0 += 1,
                rows if *rows == after => seen.1 += 1,
                rows => panic!("{change} before call {at}: {rows:?}"),
            }
            if opened > 0 {
                assert_eq!(found[0], after, "acknowledged before the read began");
            }
            if struck.load(Ordering::SeqCst) == 0 {
                break;
            }
        }
        assert!(seen.0 > 0 && seen.1 > 2, "{change}: {seen:?}");
    }
}
