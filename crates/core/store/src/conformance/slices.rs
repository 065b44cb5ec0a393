//! Claims about slices: creating, listing and dropping them, alone and with a commit.

use std::sync::Arc;

use bytes::Bytes;
use chronotile_types::{NativeColumns, SliceId};

use super::*;
use crate::{DropSlice, Outcome, Placement, StoreError, TileStatistics};

pub(super) async fn a_put_into_a_missing_slice_has_no_effect(store: Arc<dyn Store>) {
    with_slices(&store, &[0]).await;
    store.commit(&dataset(), put([chunk(key(0, 9, 9, 9))])).await.unwrap();
    let commit = Commit {
        before: vec![record("mark", Some("1"), Expect::Any)],
        remove: vec![key(0, 9, 9, 9)],
        ..put([chunk(key(0, 1, 1, 1)), chunk(key(4, 1, 1, 1))])
    };
    let error = store.commit(&dataset(), commit).await.unwrap_err();
    assert!(
        matches!(&error, StoreError::NoSlice { slice: SliceId(4), dataset } if *dataset == self::dataset().name),
        "{error}"
    );
    assert_eq!(error.outcome(), Outcome::LostRace);
    assert_eq!(keys_in(&store, &[0, 4]).await, [key(0, 9, 9, 9)]);
    assert_eq!(store.record("mark").await.unwrap(), None);
    assert_eq!(store.slices(&dataset()).await.unwrap(), [SliceId(0)]);
}

pub(super) async fn slices_are_created_once_and_listed_ascending(store: Arc<dyn Store>) {
    assert_eq!(store.slices(&dataset()).await.unwrap(), []);
    with_slices(&store, &[5, -3, 100, 0]).await;
    store.commit(&dataset(), put([chunk(key(5, 1, 1, 1))])).await.unwrap();
    with_slices(&store, &[5, 0]).await;
    assert_eq!(store.slices(&dataset()).await.unwrap(), [-3, 0, 5, 100].map(SliceId));
    assert_eq!(store.slices(&named("other")).await.unwrap(), []);
    assert_eq!(keys_in(&store, &[5]).await, [key(5, 1, 1, 1)]);
}

pub(super) async fn a_missing_slice_holds_nothing(store: Arc<dyn Store>) {
    with_slices(&store, &[0]).await;
    store.commit(&dataset(), put([chunk(key(0, 1, 1, 1))])).await.unwrap();
    assert_eq!(keys_in(&store, &[-8, 0, 8]).await, [key(0, 1, 1, 1)]);
    assert_eq!(keys_in(&store, &[8]).await, []);
    assert_eq!(store.statistics(&dataset(), SliceId(8)).await.unwrap(), []);
    store.drop_slice(&dataset(), SliceId(8), DropSlice::default()).await.unwrap();
    store.drop_slice(&named("other"), SliceId(0), DropSlice::default()).await.unwrap();
    assert_eq!(keys_in(&store, &[0]).await, [key(0, 1, 1, 1)]);
}

pub(super) async fn a_dropped_slice_is_gone_with_its_chunks(store: Arc<dyn Store>) {
    with_slices(&store, &[0, 1]).await;
    let large = Chunk { body: Bytes::from(vec![7; 100_000]), ..chunk(key(0, 1, 1, 2)) };
    store.commit(&dataset(), put([chunk(key(0, 1, 1, 1)), large, chunk(key(1, 1, 1, 1))])).await.unwrap();
    store.drop_slice(&dataset(), SliceId(0), DropSlice::default()).await.unwrap();
    assert_eq!(store.slices(&dataset()).await.unwrap(), [SliceId(1)]);
    assert_eq!(keys_in(&store, &[0, 1]).await, [key(1, 1, 1, 1)]);
    assert_eq!(store.fetch(&dataset(), vec![key(0, 1, 1, 1), key(0, 1, 1, 2)]).await.unwrap(), []);
    let error = store.commit(&dataset(), put([chunk(key(0, 1, 1, 1))])).await.unwrap_err();
    assert!(matches!(error, StoreError::NoSlice { .. }), "{error}");
    with_slices(&store, &[0]).await;
    assert_eq!(keys_in(&store, &[0]).await, []);
    store.commit(&dataset(), put([chunk(key(0, 1, 1, 3))])).await.unwrap();
    assert_eq!(keys_in(&store, &[0]).await, [key(0, 1, 1, 3)]);
}

pub(super) async fn statistics_count_each_tile(store: Arc<dyn Store>) {
    const OLDER: u128 = 1 << 127;
    with_slices(&store, &[0, 1]).await;
    let sized = |key, rows, head: usize, body: usize| Chunk {
        key,
        rows,
        head: Bytes::from(vec![1; head]),
        body: Bytes::from(vec![2; body]),
    };
    let chunks = [
        sized(key(0, 2, 1, 1), 10, 5, 100),
        sized(key(0, 2, 1, 2), u32::MAX, 0, 50_000),
        sized(key(0, 2, -1, 1), 0, 0, 0),
        sized(key(0, -2, 7, 1), 3, 70_000, 9),
        sized(key(0, -2, 7, OLDER), 4, 20, 6),
        sized(key(1, 2, 1, 1), 1, 1, 1),
    ];
    store.commit(&dataset(), put(chunks)).await.unwrap();
    let tile = |cell, window, chunks, rows, bytes, ids| TileStatistics {
        chunks,
        written_chunks: chunks,
        rows,
        bytes,
        ids,
        ..TileStatistics::none(key(0, cell, window, 0).tile)
    };
    let older = TileStatistics {
        written_chunks: 1,
        older_chunks: 1,
        older_rows: 4,
        older_bytes: 26,
        ..tile(-2, 7, 2, 3 + 4, 70_009 + 26, 1 ^ OLDER)
    };
    let expected = [older, tile(2, -1, 1, 0, 0, 1), tile(2, 1, 2, 10 + u64::from(u32::MAX), 50_105, 1 ^ 2)];
    assert_eq!(store.statistics(&dataset(), SliceId(0)).await.unwrap(), expected);
    store.commit(&dataset(), put([sized(key(0, 2, 1, 2), 1, 2, 3)])).await.unwrap();
    let found = store.statistics(&dataset(), SliceId(0)).await.unwrap();
    assert_eq!(found, [expected[0], expected[1], tile(2, 1, 2, 11, 110, 1 ^ 2)]);
}

/// A condition that does not hold leaves slice and catalog as they were; one that holds is noted before the slice goes.
pub(super) async fn a_slice_is_dropped_only_while_it_holds_what_was_seen(store: Arc<dyn Store>) {
    with_slices(&store, &[0, 1]).await;
    store.commit(&dataset(), put([chunk(key(0, 1, 1, 1)), chunk(key(1, 5, 5, 5))])).await.unwrap();
    let seen = store.statistics(&dataset(), SliceId(0)).await.unwrap();
    let drop = |holding: &[TileStatistics], expect| DropSlice {
        holding: Some(holding.to_vec()),
        before: vec![record("note", Some("gone"), expect)],
    };
    // The same tile, number, rows and bytes, but another chunk.
    let other =
        Chunk { rows: 1, body: chunk(key(0, 1, 1, 1)).body, head: chunk(key(0, 1, 1, 1)).head, key: key(0, 1, 1, 2) };
    for late in [chunk(key(0, 1, 2, 9)), other] {
        let swap = Commit { remove: vec![key(0, 1, 1, 1)], ..put([late.clone()]) };
        for change in [put([late.clone()]), swap] {
            store.commit(&dataset(), change).await.unwrap();
            let error = store.drop_slice(&dataset(), SliceId(0), drop(&seen, Expect::Any)).await.unwrap_err();
            assert!(
                matches!(&error, StoreError::SliceConflict { slice: SliceId(0), dataset } if *dataset == self::dataset().name),
                "{error}"
            );
            assert_eq!(error.outcome(), Outcome::LostRace);
            assert!(keys_in(&store, &[0]).await.contains(&late.key));
        }
        let back = Commit { remove: vec![late.key], ..put([chunk(key(0, 1, 1, 1))]) };
        store.commit(&dataset(), back).await.unwrap();
        assert_eq!(store.statistics(&dataset(), SliceId(0)).await.unwrap(), seen);
    }
    let error = store.drop_slice(&dataset(), SliceId(0), drop(&seen, is("another"))).await.unwrap_err();
    assert!(matches!(&error, StoreError::RecordConflict { key } if key == "note"), "{error}");
    assert_eq!(keys_in(&store, &[0]).await, [key(0, 1, 1, 1)]);
    assert_eq!(store.record("note").await.unwrap(), None);
    store.drop_slice(&dataset(), SliceId(0), drop(&seen, Expect::Absent)).await.unwrap();
    assert_eq!(store.slices(&dataset()).await.unwrap(), [SliceId(1)]);
    assert_eq!(store.record("note").await.unwrap().as_deref(), Some(b"gone".as_slice()));
    // One that does not exist holds nothing.
    let error = store.drop_slice(&dataset(), SliceId(0), drop(&seen, Expect::Any)).await.unwrap_err();
    assert!(matches!(error, StoreError::SliceConflict { .. }), "{error}");
    store.drop_slice(&dataset(), SliceId(0), drop(&[], Expect::Any)).await.unwrap();
    assert_eq!(keys_in(&store, &[1]).await, [key(1, 5, 5, 5)]);
}

/// An engine either keeps the records of a dataset as rows of its own tables, or refuses every call about such a dataset.
pub(super) async fn rows_are_refused_by_an_engine_that_has_none(store: Arc<dyn Store>) {
    let capabilities = store.capabilities();
    if capabilities.native_rows {
        return;
    }
    let rows = DatasetRef { placement: Placement::Rows(Arc::<NativeColumns>::default()), ..dataset() };
    with_slices(&store, &[0]).await;
    let refusals = [
        store.commit(&rows, put([chunk(key(0, 1, 1, 1))])).await.err(),
        store.scan(&rows, scan_all(&[0])).await.err(),
        store.fetch(&rows, vec![key(0, 1, 1, 1)]).await.err(),
        store.create_slice(&rows, SliceId(1)).await.err(),
        store.drop_slice(&rows, SliceId(0), DropSlice::default()).await.err(),
        store.slices(&rows).await.err(),
        store.statistics(&rows, SliceId(0)).await.err(),
    ];
    for refusal in refusals {
        assert!(
            matches!(&refusal, Some(StoreError::Refused { engine, .. }) if *engine == capabilities.engine),
            "{refusal:?}"
        );
    }
    assert_eq!(store.slices(&dataset()).await.unwrap(), [SliceId(0)]);
}
