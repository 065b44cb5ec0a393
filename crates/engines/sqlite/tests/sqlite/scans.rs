//! What the SQLite engine's scans promise beyond the contract.

use std::sync::Arc;

use chronotile_sqlite::{Options, SqliteStore, Synchronous};
use chronotile_store::{Commit, Store};
use chronotile_types::SliceId;
use futures::stream::StreamExt;
use tempfile::TempDir;

use crate::common::{chunk, chunks, dataset, everything, key, open, put};

async fn store_with(folder: &TempDir, tiles: i64, chunks_per_tile: u128, bytes: usize) -> Arc<dyn Store> {
    let store = open(&folder.path().join("archive.db"));
    store.create_slice(&dataset(), SliceId(0)).await.unwrap();
    for cell in 0..tiles {
        let chunks = (1..=chunks_per_tile).map(|id| chunk(key(cell, id), bytes));
        store.commit(&dataset(), put(chunks)).await.unwrap();
    }
    store
}

/// Replaces the chunks of a tile by one whose id comes before all of theirs.
async fn consolidate(store: &Arc<dyn Store>, cell: i64, chunks: u128) {
    let remove = (1..=chunks).map(|id| key(cell, id)).collect();
    let commit = Commit { remove, require_removed: true, ..put([chunk(key(cell, 0), 10)]) };
    store.commit(&dataset(), commit).await.unwrap();
}

#[tokio::test]
async fn a_tile_larger_than_a_group_is_read_from_one_state() {
    let folder = TempDir::new().unwrap();
    let store = store_with(&folder, 2, 300, 60_000).await;
    let mut groups = store.scan(&dataset(), everything()).await.unwrap();
    let mut found: Vec<_> = groups.next().await.unwrap().unwrap().into_iter().map(|chunk| chunk.key).collect();
    assert!(found.len() < 300, "the first group must end within the tile for this test to mean something");
    consolidate(&store, 0, 300).await;
    consolidate(&store, 1, 300).await;
    while let Some(group) = groups.next().await {
        found.extend(group.unwrap().into_iter().map(|chunk| chunk.key));
    }
    let old = (1..=300).map(|id| key(0, id));
    // The second tile was consolidated before its turn came.
    assert_eq!(found[..300], old.collect::<Vec<_>>());
    assert!(found[300..] == [key(1, 0)] || found[300..].len() == 300, "half of the second tile: {:?}", &found[300..]);
}

#[tokio::test]
async fn a_scan_that_nobody_polls_does_not_hold_the_log_between_tiles() {
    let folder = TempDir::new().unwrap();
    let store = store_with(&folder, 200, 10, 10_000).await;
    let mut groups = store.scan(&dataset(), everything()).await.unwrap();
    let first = groups.next().await.unwrap().unwrap().len();
    store.commit(&dataset(), put([chunk(key(500, 1), 10_000)])).await.unwrap();
    let other = rusqlite::Connection::open(folder.path().join("archive.db")).unwrap();
    let busy: i64 = other.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0)).unwrap();
    assert_eq!(busy, 0, "the scan holds the log");
    let mut rest = 0;
    while let Some(group) = groups.next().await {
        rest += group.unwrap().len();
    }
    assert!(rest > 0, "the scan must have more than one group for this test to mean something");
    assert_eq!(first + rest, 2_001);
}

#[tokio::test]
async fn an_abandoned_scan_leaves_nothing_open() {
    let folder = TempDir::new().unwrap();
    let store = store_with(&folder, 1, 300, 60_000).await;
    for _ in 0..40 {
        let mut groups = store.scan(&dataset(), everything()).await.unwrap();
        groups.next().await.unwrap().unwrap();
    }
    store.commit(&dataset(), put([chunk(key(500, 1), 10_000)])).await.unwrap();
    let other = rusqlite::Connection::open(folder.path().join("archive.db")).unwrap();
    let busy: i64 = other.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0)).unwrap();
    assert_eq!(busy, 0, "an abandoned scan holds the log");
}

#[tokio::test(flavor = "multi_thread")]
async fn more_half_read_tiles_than_connections_do_not_block_each_other() {
    let folder = TempDir::new().unwrap();
    let store = store_with(&folder, 1, 150, 60_000).await;
    let mut scans = vec![];
    for _ in 0..40 {
        let mut groups = store.scan(&dataset(), everything()).await.unwrap();
        assert!(groups.next().await.unwrap().unwrap().len() < 150);
        scans.push(groups);
    }
    for groups in &mut scans {
        assert!(!groups.next().await.unwrap().unwrap().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_does_not_grow_for_ever_beside_scans() {
    let folder = TempDir::new().unwrap();
    drop(store_with(&folder, 1, 10, 1_000).await);
    let options = Options { synchronous: Synchronous::Normal, ..Options::default() };
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(folder.path().join("archive.db"), options).unwrap());
    let scanning = tokio::spawn({
        let store = store.clone();
        async move {
            loop {
                chunks(&store).await.unwrap();
            }
        }
    });
    for round in 0..400_u128 {
        let chunks = (0..4).map(|id| chunk(key(3, round % 3 * 10 + id), 250_000));
        store.commit(&dataset(), put(chunks)).await.unwrap();
    }
    scanning.abort();
    let log = std::fs::metadata(folder.path().join("archive.db-wal")).unwrap().len();
    // 400 MB went through it.
    assert!(log < 300 << 20, "the log has {log} bytes");
}
