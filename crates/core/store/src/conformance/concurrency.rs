//! Claims about tasks that work on the same keys at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use chronotile_types::SliceId;
use futures::future::join_all;
use futures::stream::StreamExt;

use super::*;
use crate::{Capabilities, DropSlice, StoreError};

/// Runs the same work in several tasks at once.
async fn tasks<F: Future<Output = T> + Send + 'static, T: Send + 'static>(
    count: u32,
    work: impl Fn(u32) -> F,
) -> Vec<T> {
    let tasks: Vec<_> = (0..count).map(|task| tokio::spawn(work(task))).collect();
    join_all(tasks).await.into_iter().map(Result::unwrap).collect()
}

async fn increment(store: &Arc<dyn Store>) {
    loop {
        let current = store.record("counter").await.unwrap();
        let count: u64 = current.as_ref().map_or(0, |value| std::str::from_utf8(value).unwrap().parse().unwrap());
        let put = RecordPut {
            key: "counter".to_owned(),
            value: Some(Bytes::from((count + 1).to_string())),
            expect: current.map_or(Expect::Absent, Expect::Is),
        };
        match store.commit(&dataset(), Commit { before: vec![put], ..Commit::default() }).await {
            Ok(()) => return,
            Err(StoreError::RecordConflict { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

pub(super) async fn increments_of_many_tasks_are_all_counted(store: Arc<dyn Store>) {
    tasks(8, |_| {
        let store = store.clone();
        async move {
            for _ in 0..20 {
                increment(&store).await;
            }
        }
    })
    .await;
    assert_eq!(store.record("counter").await.unwrap().unwrap(), "160");
}

pub(super) async fn of_many_that_expect_absence_one_wins(store: Arc<dyn Store>) {
    for round in 0..10 {
        let key = format!("round {round}");
        let outcomes = tasks(8, |task| {
            let (store, key) = (store.clone(), key.clone());
            async move {
                let put = record(&key, Some(&task.to_string()), Expect::Absent);
                let commit = Commit { before: vec![put], ..Commit::default() };
                store.commit(&dataset(), commit).await.map(|()| task)
            }
        })
        .await;
        let winners: Vec<u32> = outcomes.into_iter().filter_map(Result::ok).collect();
        assert_eq!(winners.len(), 1);
        assert_eq!(store.record(&key).await.unwrap().unwrap(), winners[0].to_string());
    }
}

pub(super) async fn a_slice_may_be_created_by_many_at_once(store: Arc<dyn Store>) {
    let outcomes = tasks(16, |task| {
        let store = store.clone();
        async move {
            for slice in 0..5 {
                store.create_slice(&dataset(), SliceId(slice)).await.unwrap();
                let own = chunk(key(slice, i64::from(task), 0, u128::from(task)));
                store.commit(&dataset(), put([own])).await.unwrap();
            }
        }
    });
    outcomes.await;
    assert_eq!(store.slices(&dataset()).await.unwrap(), [0, 1, 2, 3, 4].map(SliceId));
    assert_eq!(keys_in(&store, &[0, 1, 2, 3, 4]).await.len(), 80);
}

pub(super) async fn commits_of_many_tasks_all_land(store: Arc<dyn Store>) {
    with_slices(&store, &[0]).await;
    tasks(8, |task| {
        let store = store.clone();
        async move {
            for number in 0..20 {
                let own = chunk(key(0, i64::from(task), number, 1));
                // Every fourth fails and must take nothing of its neighbours with it.
                let expect = if number % 4 == 3 { is("never") } else { Expect::Any };
                let before = vec![record("last", Some("x"), expect)];
                let outcome = store.commit(&dataset(), Commit { before, ..put([own]) }).await;
                assert_eq!(outcome.is_err(), number % 4 == 3, "{outcome:?}");
            }
        }
    })
    .await;
    let expected = (0..8).flat_map(|task| (0..20).filter(|n| n % 4 != 3).map(move |n| key(0, task, n, 1)));
    assert_eq!(keys_in(&store, &[0]).await, expected.collect::<Vec<_>>());
}

pub(super) async fn a_scan_beside_replacements_returns_no_chunk_twice_or_half(store: Arc<dyn Store>) {
    with_slices(&store, &[0]).await;
    let keys: Vec<_> = (0..600).map(|number| key(0, number / 10, 0, number as u128)).collect();
    // The body says its version in every byte and in its length.
    let version = |key: ChunkKey, version: u8| Chunk {
        rows: u32::from(version),
        head: Bytes::from(vec![version; 3]),
        body: Bytes::from(vec![version; usize::from(version) * 700]),
        ..chunk(key)
    };
    store.commit(&dataset(), put(keys.iter().map(|key| version(*key, 1)))).await.unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let writer = tokio::spawn({
        let (store, keys, done) = (store.clone(), keys.clone(), done.clone());
        async move {
            for round in 2..=20 {
                for some in keys.chunks(100) {
                    store.commit(&dataset(), put(some.iter().map(|key| version(*key, round)))).await.unwrap();
                }
            }
            done.store(true, Ordering::Relaxed);
        }
    });
    let mut scans = 0;
    while !done.load(Ordering::Relaxed) || scans < 3 {
        let found = collect(&store, &dataset(), scan_all(&[0])).await;
        assert!(found.iter().map(|chunk| chunk.key).eq(keys.iter().copied()), "a chunk is missing or doubled");
        assert!(found.iter().all(|chunk| *chunk == version(chunk.key, chunk.rows as u8)), "a chunk is half");
        scans += 1;
        tokio::task::yield_now().await;
    }
    writer.await.unwrap();
}

pub(super) async fn a_scan_of_a_slice_being_dropped_returns_no_wrong_chunk(store: Arc<dyn Store>) {
    for round in 0..2 {
        with_slices(&store, &[0, 1]).await;
        let keys: Vec<_> = (0..3_000).map(|number| key(0, number, 0, round)).collect();
        let body = Bytes::from(vec![round as u8; 3_000]);
        let own = |key: ChunkKey| Chunk { body: body.clone(), ..chunk(key) };
        store.commit(&dataset(), put(keys.iter().copied().map(own))).await.unwrap();
        let mut groups = store.scan(&dataset(), scan_all(&[0])).await.unwrap();
        let dropping = tokio::spawn({
            let store = store.clone();
            async move { store.drop_slice(&dataset(), SliceId(0), DropSlice::default()).await }
        });
        let mut found = vec![];
        while let Some(Ok(group)) = groups.next().await {
            found.extend(group);
        }
        dropping.await.unwrap().unwrap();
        assert!(found.into_iter().zip(&keys).all(|(chunk, key)| chunk == own(*key)), "a wrong chunk");
        assert_eq!(keys_in(&store, &[0, 1]).await, []);
    }
}

pub(super) async fn a_commit_is_seen_as_a_whole_or_in_its_order(store: Arc<dyn Store>) {
    const ROUNDS: u32 = 40;
    let number = |value: Option<&Bytes>| value.map_or(0, |value| std::str::from_utf8(value).unwrap().parse().unwrap());
    let writer = tokio::spawn({
        let store = store.clone();
        async move {
            for round in 1..=ROUNDS {
                let text = round.to_string();
                let (before, after) =
                    (record("k/d/a", Some(&text), Expect::Any), record("k/d/b", Some(&text), Expect::Any));
                let commit = Commit { before: vec![before], after: vec![after], ..Commit::default() };
                store.commit(&dataset(), commit).await.unwrap();
            }
        }
    });
    let mut second = 0;
    while second < ROUNDS {
        let first: u32 = if store.capabilities().atomic_commits {
            let found = store.records("k/d/", None, 10).await.unwrap();
            let of = |key: &str| number(found.iter().find(|record| record.key == key).map(|record| &record.value));
            second = of("k/d/b");
            assert_eq!(of("k/d/a"), second, "part of a commit is seen");
            second
        } else {
            // Each step is durable before the next begins.
            second = number(store.record("k/d/b").await.unwrap().as_ref());
            number(store.record("k/d/a").await.unwrap().as_ref())
        };
        assert!(first >= second, "a later step is seen before an earlier one");
        tokio::task::yield_now().await;
    }
    writer.await.unwrap();
}

/// Writers put chunks into a slice, while it is dropped with what it was seen to hold. They stop after some, for a slow engine
/// never finds what it saw just before while they go on.
pub(super) async fn a_put_beside_a_drop_is_compared_or_refused(store: Arc<dyn Store>) {
    let Capabilities { atomic_commits, atomic_drops, .. } = store.capabilities();
    for _ in 0..if atomic_drops { 20 } else { 1 } {
        with_slices(&store, &[0]).await;
        let writers = tokio::spawn(tasks(4, {
            let store = store.clone();
            move |task| {
                let store = store.clone();
                async move {
                    let mut acknowledged = 0;
                    for _ in 0..50 {
                        let own = chunk(key(0, i64::from(task), 0, acknowledged));
                        match store.commit(&dataset(), put([own])).await {
                            Ok(()) => acknowledged += 1,
                            Err(StoreError::NoSlice { .. }) => return acknowledged,
                            // Where the drop has steps, it may meet the put in any of them.
                            Err(_) if !atomic_drops => return acknowledged,
                            // Where the commit has steps, the slice may go between them.
                            Err(StoreError::Unknown { .. }) if !atomic_commits => return acknowledged,
                            Err(error) => panic!("{error}"),
                        }
                        tokio::task::yield_now().await;
                    }
                    acknowledged
                }
            }
        }));
        let compared: u64 = loop {
            let tiles = store.statistics(&dataset(), SliceId(0)).await.unwrap();
            let chunks = tiles.iter().map(|tile| tile.chunks).sum();
            match store.drop_slice(&dataset(), SliceId(0), DropSlice { holding: Some(tiles), before: vec![] }).await {
                Ok(()) => break chunks,
                Err(StoreError::SliceConflict { .. }) => tokio::task::yield_now().await,
                Err(error) => panic!("{error}"),
            }
        };
        let acknowledged: u128 = writers.await.unwrap().into_iter().sum();
        if atomic_drops {
            assert!(acknowledged <= u128::from(compared), "a put was acknowledged and dropped without a comparison");
        }
        if atomic_drops && atomic_commits {
            assert_eq!(acknowledged, u128::from(compared), "a put was refused and stored");
        }
        assert_eq!(store.slices(&dataset()).await.unwrap(), []);
    }
}
