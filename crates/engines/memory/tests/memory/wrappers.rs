//! The wrappers of [`Store`] are transparent, count correctly and inject the requested faults.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use chronotile_memory::MemoryStore;
use chronotile_store::{
    Cells, Chunk, ChunkKey, Commit, DatasetRef, Decision, Expect, FaultyStore, Metered, Operation, Outcome, RecordPut,
    Scan, Store, StoreError, Windows, conformance,
};
use chronotile_types::{Cell, ChunkId, DatasetName, SliceId, Tile, Window};
use futures::stream::StreamExt;

fn dataset() -> DatasetRef {
    DatasetRef::of_chunks(DatasetName::new("detections").unwrap())
}

fn put(ids: std::ops::Range<u128>) -> Commit {
    let chunk = |id| Chunk {
        key: ChunkKey { slice: SliceId(0), tile: Tile { cell: Cell(0), window: Window(0) }, id: ChunkId(id) },
        rows: 1,
        head: Bytes::from_static(b"head"),
        body: Bytes::from(vec![1; 96]),
    };
    Commit { put: ids.map(chunk).collect(), ..Commit::default() }
}

fn everything() -> Scan {
    Scan { slices: vec![SliceId(0)], cells: Cells::All, windows: Windows::one(Window(0)), bodies: true, older: true }
}

#[tokio::test(flavor = "multi_thread")]
async fn wrapped_stores_keep_the_contract() {
    conformance::run(|| async { Arc::new(Metered::new(Arc::new(MemoryStore::new()))) as Arc<dyn Store> }).await;
    conformance::run(|| async {
        Arc::new(FaultyStore::new(Arc::new(MemoryStore::new()), |_| Decision::Pass)) as Arc<dyn Store>
    })
    .await;
}

#[tokio::test]
async fn what_goes_through_is_counted() {
    let store = Metered::new(Arc::new(MemoryStore::new()));
    store.commit(&dataset(), put(0..1)).await.unwrap_err();
    store.create_slice(&dataset(), SliceId(0)).await.unwrap();
    let record = RecordPut { key: "a".into(), value: Some(Bytes::from_static(b"12345")), expect: Expect::Any };
    store.commit(&dataset(), Commit { after: vec![record], ..put(0..5_000) }).await.unwrap();
    store.slices(&dataset()).await.unwrap();
    let mut groups = store.scan(&dataset(), everything()).await.unwrap();
    while let Some(group) = groups.next().await {
        group.unwrap();
    }
    drop(groups);
    let metrics = store.snapshot();
    let of = |operation: Operation| metrics[operation as usize];
    assert!(metrics.iter().map(|metrics| metrics.operation).eq(Operation::ALL));
    let commit = of(Operation::Commit);
    assert_eq!((commit.calls, commit.errors, commit.items, commit.bytes), (2, 1, 5_001, 500_005));
    let scan = of(Operation::Scan);
    assert_eq!((scan.calls, scan.errors, scan.items, scan.bytes), (1, 0, 5_000, 500_000));
    assert_eq!((of(Operation::Slices).calls, of(Operation::Fetch).calls), (1, 0));
}

#[tokio::test]
async fn faults_come_before_or_after_the_call_as_decided() {
    let inner: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let faulty = FaultyStore::new(inner.clone(), |call| match (call.number, call.operation) {
        (1, Operation::Commit) => {
            assert_eq!(call.commit.unwrap().put.len(), 1);
            Decision::FailBefore(StoreError::Full { path: "test".into() })
        }
        (2, Operation::Commit) => Decision::FailAfter("timeout".into()),
        (3, Operation::Scan) => Decision::FailAfter("cut".into()),
        _ => Decision::Pass,
    });
    faulty.create_slice(&dataset(), SliceId(0)).await.unwrap();
    let before = faulty.commit(&dataset(), put(0..1)).await.unwrap_err();
    assert_eq!(before.outcome(), Outcome::Refused);
    let count =
        async || inner.statistics(&dataset(), SliceId(0)).await.unwrap().iter().map(|tile| tile.chunks).sum::<u64>();
    assert_eq!(count().await, 0_u64);
    let after = faulty.commit(&dataset(), put(0..5_000)).await.unwrap_err();
    assert_eq!(after.outcome(), Outcome::Unknown);
    assert_eq!(count().await, 5_000);
    let groups: Vec<_> = faulty.scan(&dataset(), everything()).await.unwrap().collect().await;
    assert!(matches!(&groups[..], [Ok(_), Err(StoreError::Unknown { .. })]), "one group, then the fault");
    let start = Instant::now();
    let slow = FaultyStore::new(inner, |_| Decision::Delay(Duration::from_millis(30)));
    slow.slices(&dataset()).await.unwrap();
    assert!(start.elapsed() >= Duration::from_millis(30));
}
