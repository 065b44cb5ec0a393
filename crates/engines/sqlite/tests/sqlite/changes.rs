//! The record that tells whether the chunks of a slice are what they were.

use std::collections::HashSet;

use bytes::Bytes;
use chronotile_sqlite::{Options, SqliteStore};
use chronotile_store::{Commit, DropSlice, Expect, RecordPut, Store, changes_key};
use chronotile_types::{DatasetName, SliceId};
use tempfile::TempDir;

use crate::common::{chunk, dataset, key, open, put};

async fn state(store: &dyn Store, slice: i32) -> Option<Bytes> {
    store.record(&changes_key(&dataset().name, SliceId(slice))).await.unwrap()
}

#[tokio::test]
async fn every_change_of_a_slice_gives_it_a_state_that_never_comes_back() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("archive.db");
    let (store, other) = (open(&path), SqliteStore::open(&path, Options::default()).unwrap());
    let mut seen = HashSet::new();
    for _ in 0..2 {
        store.create_slice(&dataset(), SliceId(0)).await.unwrap();
        store.create_slice(&dataset(), SliceId(1)).await.unwrap();
        assert_eq!(state(&other, 0).await, None, "a new slice");
        let remove = Commit { remove: vec![key(1, 2)], require_removed: true, ..Commit::default() };
        for change in [put([chunk(key(1, 1), 10)]), put([chunk(key(1, 1), 11)]), put([chunk(key(1, 2), 9)]), remove] {
            store.commit(&dataset(), change).await.unwrap();
            assert!(seen.insert(state(&other, 0).await.unwrap()), "a state came back");
        }
        assert_eq!(state(&other, 1).await, None, "the other slice has not changed");
        store.drop_slice(&dataset(), SliceId(0), DropSlice::default()).await.unwrap();
        store.drop_slice(&dataset(), SliceId(1), DropSlice::default()).await.unwrap();
        assert_eq!(state(&other, 0).await, None, "a dropped slice");
    }
}

#[tokio::test]
async fn what_leaves_the_chunks_alone_leaves_the_state_alone() {
    let folder = TempDir::new().unwrap();
    let store = open(&folder.path().join("archive.db"));
    store.create_slice(&dataset(), SliceId(0)).await.unwrap();
    store.commit(&dataset(), put([chunk(key(1, 1), 10)])).await.unwrap();
    let before = state(store.as_ref(), 0).await;
    let record = RecordPut { key: "a".to_owned(), value: Some(Bytes::from_static(b"1")), expect: Expect::Any };
    let failing = RecordPut { key: "a".to_owned(), value: None, expect: Expect::Absent };
    store.commit(&dataset(), Commit { before: vec![record], ..Commit::default() }).await.unwrap();
    let refused = Commit { after: vec![failing], ..put([chunk(key(1, 2), 10)]) };
    store.commit(&dataset(), refused).await.unwrap_err();
    let missing = Commit { remove: vec![key(7, 7)], ..Commit::default() };
    store.commit(&dataset(), missing).await.unwrap();
    store.commit(&dataset(), put([chunk(key(1, 1), 10)])).await.unwrap();
    assert_eq!(state(store.as_ref(), 0).await, before);
    assert_eq!(store.records("", None, 10).await.unwrap().len(), 1, "the state is in no listing");
    assert_eq!(store.records("changes/", None, 10).await.unwrap(), []);
}

#[tokio::test]
async fn slices_of_similar_names_have_states_of_their_own() {
    let name = |text: &str| DatasetName::new(text).unwrap();
    assert_ne!(changes_key(&name("a"), SliceId(-1)), changes_key(&name("a"), SliceId(1)));
    assert_ne!(changes_key(&name("a_1"), SliceId(1)), changes_key(&name("a"), SliceId(11)));
}
