//! Claims about chunks: what scans and fetches return, and what puts and removals change.

use std::sync::Arc;

use bytes::Bytes;
use chronotile_types::{Cell, SliceId, Window};
use futures::stream::StreamExt;

use super::*;
use crate::{DropSlice, Outcome, StoreError};

/// Keys around a few tiles, in the order a scan returns them.
fn grid(slice: i32) -> Vec<ChunkKey> {
    let mut keys = vec![];
    for cell in [-7, -1, 0, 1, 2, 5, 300, 70_000] {
        for window in [-2, -1, 0, 1, 40_000] {
            keys.extend([0, 1, 255, 256, 1 << 64, u128::MAX].map(|id| key(slice, cell, window, id)));
        }
    }
    keys
}

async fn with_grid(store: &Arc<dyn Store>, slices: &[i32]) {
    with_slices(store, slices).await;
    for &slice in slices {
        // Written backwards: the order of a scan is not that of the writes.
        store.commit(&dataset(), put(grid(slice).into_iter().rev().map(chunk))).await.unwrap();
    }
}

pub(super) async fn what_is_put_is_scanned_and_fetched_back(store: Arc<dyn Store>) {
    with_slices(&store, &[3]).await;
    let keys = [key(3, 1, 2, 9), key(3, 8, 2, 1)];
    store.commit(&dataset(), put(keys.map(chunk))).await.unwrap();
    assert_eq!(collect(&store, &dataset(), scan_all(&[3])).await, keys.map(chunk));
    assert_eq!(store.fetch(&dataset(), keys.to_vec()).await.unwrap(), keys.map(chunk));
}

pub(super) async fn scans_go_by_slice_as_given_then_cell_window_and_id(store: Arc<dyn Store>) {
    with_grid(&store, &[-1, 4, 2]).await;
    for order in [[2, -1, 4], [4, 2, -1]] {
        let expected: Vec<_> = order.into_iter().flat_map(grid).map(chunk).collect();
        assert_eq!(collect(&store, &dataset(), scan_all(&order)).await, expected);
    }
}

pub(super) async fn scans_hold_exactly_the_cells_and_windows_asked_for(store: Arc<dyn Store>) {
    with_grid(&store, &[0, 1]).await;
    let cells: [&[(i64, i64)]; 8] = [
        &[],
        &[(0, 0)],
        &[(-7, -7), (-1, 1), (300, i64::MAX)],
        &[(i64::MIN, i64::MAX)],
        &[(3, 4), (6, 299)],
        &[(2, 5), (70_000, 70_000)],
        &[(i64::MIN, -8), (-1, -1)],
        &[(0, 0), (1, 1), (2, 2)],
    ];
    let windows: [&[(i32, i32)]; 10] = [
        &[(i32::MIN, i32::MAX)],
        &[(0, 0)],
        &[(-1, 1)],
        &[(2, 39_999)],
        &[(40_000, i32::MAX)],
        &[(i32::MIN, -2)],
        &[(1, 0)],
        &[(-1, -1), (1, 1)],
        &[(i32::MIN, -1), (2, i32::MAX)],
        &[(0, 1), (40_000, 40_000)],
    ];
    for ranges in cells {
        for windows in windows {
            let covered = Windows::of(windows.iter().map(|(first, last)| (Window(*first), Window(*last))));
            let scan = Scan {
                cells: Cells::Ranges(ranges.iter().map(|&(first, last)| (Cell(first), Cell(last))).collect()),
                windows: covered.clone(),
                ..scan_all(&[0, 1])
            };
            let wanted = |key: &ChunkKey| {
                let cell = key.tile.cell.0;
                ranges.iter().any(|range| (range.0..=range.1).contains(&cell))
                    && windows.iter().any(|range| (range.0..=range.1).contains(&key.tile.window.0))
            };
            let expected: Vec<_> = [0, 1].into_iter().flat_map(grid).filter(wanted).map(chunk).collect();
            assert_eq!(collect(&store, &dataset(), scan.clone()).await, expected, "{ranges:?} {windows:?}");
            let newer = expected.into_iter().filter(|chunk| !chunk.key.id.is_older()).collect::<Vec<_>>();
            let scan = Scan { older: false, ..scan };
            assert_eq!(collect(&store, &dataset(), scan).await, newer, "{ranges:?} {windows:?} without older versions");
        }
    }
}

pub(super) async fn a_scan_covers_windows_of_several_datasets_in_the_slices_that_they_share(store: Arc<dyn Store>) {
    const OTHER: i32 = 1 << 27;
    let both = DatasetRef { windows_per_slice: Some(4), first_windows: vec![0, OTHER], ..dataset() };
    with_slices(&store, &[1, 2]).await;
    let windows = [4, 5, 7, OTHER + 4, OTHER + 6];
    let keys: Vec<ChunkKey> = [(1, 0), (2, 4)]
        .into_iter()
        .flat_map(|(slice, later)| (0..5).map(move |cell| (slice, later, cell)))
        .flat_map(|(slice, later, cell)| windows.map(|window| (slice, cell, window + later)))
        .flat_map(|(slice, cell, window)| [1, 9, u128::MAX].map(|id| key(slice, cell, window, id)))
        .collect();
    store.commit(&both, put(keys.iter().copied().map(chunk))).await.unwrap();
    let range = |first: i32, last: i32| (Window(first), Window(last));
    let all = range(i32::MIN, i32::MAX);
    for covered in [
        vec![range(4, 5)],
        vec![range(5, 9), range(OTHER + 4, OTHER + 8)],
        vec![range(0, 3), range(OTHER + 6, OTHER + 6)],
        vec![range(i32::MIN, OTHER - 1), range(OTHER + 6, i32::MAX)],
        vec![all],
    ] {
        for (older, cells) in [(true, 3), (false, 3), (false, 5)] {
            let scan = Scan {
                cells: Cells::Ranges([(Cell(0), Cell(cells - 1))].into()),
                windows: Windows::of(covered.clone()),
                older,
                ..scan_all(&[1, 2])
            };
            let wanted = |key: &&ChunkKey| {
                let window = key.tile.window;
                key.tile.cell.0 < cells
                    && (older || !key.id.is_older())
                    && covered.iter().any(|(first, last)| (*first..=*last).contains(&window))
            };
            let expected: Vec<_> = keys.iter().filter(wanted).copied().map(chunk).collect();
            assert_eq!(collect(&store, &both, scan).await, expected, "{covered:?} {older} {cells}");
        }
    }
}

pub(super) async fn the_ends_of_every_key_type_are_kept_apart(store: Arc<dyn Store>) {
    let slices = [i32::MIN, -1, 0, i32::MAX];
    with_slices(&store, &slices).await;
    let mut keys = vec![];
    for slice in slices {
        for cell in [i64::MIN, i64::MIN + 1, -1, 0, i64::MAX - 1, i64::MAX] {
            for window in [i32::MIN, -1, 0, i32::MAX] {
                keys.extend([0, 1 << 127, u128::MAX].map(|id| key(slice, cell, window, id)));
            }
        }
    }
    store.commit(&dataset(), put(keys.iter().copied().map(chunk))).await.unwrap();
    assert_eq!(keys_in(&store, &slices).await, keys);
    let ends = [(Cell(i64::MIN), Cell(i64::MIN)), (Cell(i64::MAX), Cell(i64::MAX))];
    let scan = Scan { cells: Cells::Ranges(ends.into()), ..scan_all(&slices) };
    let found = collect(&store, &dataset(), scan).await;
    assert_eq!(found.len(), 4 * 2 * 4 * 3);
    assert!(found.iter().all(|chunk| [i64::MIN, i64::MAX].contains(&chunk.key.tile.cell.0)));
    assert_eq!(store.fetch(&dataset(), keys.clone()).await.unwrap().len(), keys.len());
}

pub(super) async fn bodies_are_left_out_when_not_asked_for(store: Arc<dyn Store>) {
    with_slices(&store, &[0]).await;
    let large = Chunk { body: Bytes::from(vec![7; 100_000]), ..chunk(key(0, 1, 1, 2)) };
    let chunks = [chunk(key(0, 1, 1, 1)), large];
    store.commit(&dataset(), put(chunks.clone())).await.unwrap();
    let heads = collect(&store, &dataset(), Scan { bodies: false, ..scan_all(&[0]) }).await;
    assert_eq!(heads, chunks.map(|chunk| Chunk { body: Bytes::new(), ..chunk }));
}

pub(super) async fn a_put_of_the_same_key_replaces(store: Arc<dyn Store>) {
    with_slices(&store, &[0]).await;
    let (first, neighbour) = (key(0, 1, 1, 1), key(0, 1, 1, 2));
    store.commit(&dataset(), put([chunk(first), chunk(neighbour)])).await.unwrap();
    for bytes in [10, 100_000, 90_000, 3, 0, 20_000] {
        let newer =
            Chunk { key: first, rows: bytes, head: Bytes::new(), body: vec![bytes as u8; bytes as usize].into() };
        store.commit(&dataset(), put([newer.clone()])).await.unwrap();
        assert_eq!(collect(&store, &dataset(), scan_all(&[0])).await, [newer, chunk(neighbour)]);
    }
}

pub(super) async fn chunks_of_every_size_come_back(store: Arc<dyn Store>) {
    with_slices(&store, &[0]).await;
    let sizes = (0..20).map(|power| 1_usize << power).flat_map(|bytes| [bytes - 1, bytes, bytes + 1]);
    let sizes = sizes.chain(3_900..4_120).chain(16_330..16_390);
    let chunks: Vec<_> = sizes
        .enumerate()
        .map(|(id, bytes)| {
            let pattern = |count: usize, step: usize| (0..count).map(|at| (at * step + id) as u8).collect::<Bytes>();
            let head = if id % 7 == 0 { bytes } else { bytes % 50 };
            Chunk { key: key(0, 5, 5, id as u128), rows: 1, head: pattern(head, 3), body: pattern(bytes, 7) }
        })
        .filter(|chunk| chunk.head.len() + chunk.body.len() <= store.capabilities().chunk_bytes_max)
        .collect();
    for some in chunks.chunks(50) {
        store.commit(&dataset(), put(some.to_vec())).await.unwrap();
    }
    let found = collect(&store, &dataset(), scan_all(&[0])).await;
    assert!(found == chunks, "a chunk of some size came back changed");
}

pub(super) async fn repeating_a_commit_changes_nothing(store: Arc<dyn Store>) {
    with_slices(&store, &[0]).await;
    store.commit(&dataset(), put([chunk(key(0, 3, 3, 3))])).await.unwrap();
    let commit = Commit {
        before: vec![record("a", Some("1"), Expect::Any)],
        put: vec![chunk(key(0, 1, 1, 1)), chunk(key(0, 2, 2, 2))],
        remove: vec![key(0, 3, 3, 3)],
        require_removed: false,
        after: vec![record("b", Some("2"), Expect::Any)],
        ..Commit::default()
    };
    for _ in 0..3 {
        store.commit(&dataset(), commit.clone()).await.unwrap();
        assert_eq!(collect(&store, &dataset(), scan_all(&[0])).await, commit.put);
        assert_eq!(store.records("", None, 10).await.unwrap().len(), 2);
    }
}

pub(super) async fn removed_chunks_are_gone_and_missing_ones_no_error(store: Arc<dyn Store>) {
    with_slices(&store, &[0]).await;
    let keys = [key(0, 1, 1, 1), key(0, 1, 1, 2), key(0, 1, 2, 1), key(0, 2, 1, 1)];
    let large = Chunk { body: Bytes::from(vec![7; 100_000]), ..chunk(keys[3]) };
    store.commit(&dataset(), put(keys.map(chunk))).await.unwrap();
    store.commit(&dataset(), put([large])).await.unwrap();
    let remove = vec![keys[0], key(0, 9, 9, 9), key(5, 1, 1, 1), keys[3]];
    store.commit(&dataset(), Commit { remove, ..Commit::default() }).await.unwrap();
    assert_eq!(keys_in(&store, &[0]).await, [keys[1], keys[2]]);
    assert_eq!(store.fetch(&dataset(), keys.to_vec()).await.unwrap(), [chunk(keys[1]), chunk(keys[2])]);
}

pub(super) async fn a_required_removal_of_a_missing_chunk_has_no_effect(store: Arc<dyn Store>) {
    with_slices(&store, &[0]).await;
    let kept = key(0, 1, 1, 1);
    store.commit(&dataset(), put([chunk(kept)])).await.unwrap();
    for missing in [key(0, 1, 1, 2), key(0, 1, 2, 1), key(0, 2, 1, 1), key(9, 1, 1, 1)] {
        let commit = Commit {
            before: vec![record("mark", Some("1"), Expect::Any)],
            put: vec![chunk(key(0, 4, 4, 4))],
            remove: vec![kept, missing],
            require_removed: true,
            after: vec![record("mark2", Some("1"), Expect::Any)],
            ..Commit::default()
        };
        let error = store.commit(&dataset(), commit).await.unwrap_err();
        assert!(matches!(&error, StoreError::ChunkConflict { key, .. } if *key == missing), "{error}");
        assert_eq!(error.outcome(), Outcome::LostRace);
        assert_eq!(keys_in(&store, &[0]).await, [kept]);
        assert_eq!(store.records("", None, 10).await.unwrap(), []);
    }
    let commit = Commit { remove: vec![kept], require_removed: true, ..Commit::default() };
    store.commit(&dataset(), commit).await.unwrap();
    assert_eq!(keys_in(&store, &[0]).await, []);
}

pub(super) async fn a_chunk_put_and_removed_in_one_commit_is_gone(store: Arc<dyn Store>) {
    with_slices(&store, &[0]).await;
    let (gone, kept) = (key(0, 1, 1, 1), key(0, 1, 1, 2));
    let commit = Commit { remove: vec![gone], require_removed: true, ..put([chunk(gone), chunk(kept)]) };
    store.commit(&dataset(), commit).await.unwrap();
    assert_eq!(keys_in(&store, &[0]).await, [kept]);
}

pub(super) async fn a_chunk_over_the_limit_is_refused(store: Arc<dyn Store>) {
    with_slices(&store, &[0]).await;
    let bytes_max = store.capabilities().chunk_bytes_max;
    let head = Bytes::from_static(b"head");
    let large = |bytes: usize| Chunk {
        head: head.clone(),
        body: Bytes::from(vec![1; bytes - head.len()]),
        ..chunk(key(0, 1, 1, 1))
    };
    let commit = Commit { before: vec![record("mark", Some("1"), Expect::Any)], ..put([large(bytes_max + 1)]) };
    let error = store.commit(&dataset(), commit).await.unwrap_err();
    let as_said = |error: &StoreError| matches!(error, StoreError::TooLarge { bytes, bytes_max: limit, .. } if *bytes == bytes_max + 1 && *limit == bytes_max);
    assert!(as_said(&error), "{error}");
    assert_eq!(error.outcome(), Outcome::Refused);
    assert_eq!(store.record("mark").await.unwrap(), None);
    store.commit(&dataset(), put([large(bytes_max)])).await.unwrap();
    assert_eq!(collect(&store, &dataset(), scan_all(&[0])).await, [large(bytes_max)]);
}

pub(super) async fn a_scan_comes_in_bounded_groups(store: Arc<dyn Store>) {
    /// Far above any engine's group, far below the data.
    const GROUP_BYTES_LIMIT: usize = 24 << 20;
    with_slices(&store, &[0]).await;
    // 20,000 chunks of 2 KB, a tenth of them in one large tile.
    let keys: Vec<_> = (0..20_000_u32)
        .map(|id| key(0, if id < 2_000 { 0 } else { i64::from(id / 100) }, (id % 2) as i32, u128::from(id)))
        .collect();
    let body = Bytes::from(vec![9; 2_000]);
    for some in keys.chunks(2_000) {
        let chunks = some.iter().map(|key| Chunk { body: body.clone(), ..chunk(*key) });
        store.commit(&dataset(), put(chunks)).await.unwrap();
    }
    let mut groups = store.scan(&dataset(), scan_all(&[0])).await.unwrap();
    let mut found = vec![];
    while let Some(group) = groups.next().await {
        let group = group.unwrap();
        let bytes: usize = group.iter().map(|chunk| chunk.head.len() + chunk.body.len()).sum();
        assert!(bytes <= GROUP_BYTES_LIMIT, "{bytes} bytes in one group");
        found.extend(group);
    }
    let mut expected = keys.clone();
    expected.sort_unstable();
    assert!(found.iter().map(|chunk| chunk.key).eq(expected), "keys are wrong");
    assert!(found.iter().all(|chunk| chunk.body == body), "bodies are wrong");
}

pub(super) async fn a_fetch_keeps_the_order_of_keys_and_leaves_out_missing(store: Arc<dyn Store>) {
    with_grid(&store, &[0, 1]).await;
    let wanted = [key(1, 5, 0, 1), key(0, 70_000, -1, 256), key(0, 5, 0, 7), key(7, 5, 0, 1), key(0, -7, -2, 0)];
    let found = store.fetch(&dataset(), wanted.to_vec()).await.unwrap();
    assert_eq!(found, [wanted[0], wanted[1], wanted[4]].map(chunk));
    assert_eq!(store.fetch(&dataset(), vec![]).await.unwrap(), []);
}

pub(super) async fn datasets_do_not_mix(store: Arc<dyn Store>) {
    // In engines with tables for each slice, the name for slice 1 of `a` begins the names for `a_1`, and `m` is a minus
    // sign.
    let names = ["a", "a_1", "a_m1", "a_1_1"].map(named);
    for name in &names {
        for slice in [-1, 1, 11] {
            store.create_slice(name, SliceId(slice)).await.unwrap();
            let own = Chunk { body: Bytes::from(format!("{} {slice}", name.name)), ..chunk(key(slice, 1, 1, 1)) };
            store.commit(name, put([own])).await.unwrap();
        }
    }
    store.drop_slice(&names[0], SliceId(1), DropSlice::default()).await.unwrap();
    let remove = Commit { remove: vec![key(-1, 1, 1, 1)], ..Commit::default() };
    store.commit(&names[1], remove).await.unwrap();
    for (name, slices) in names.iter().zip([vec![-1, 11], vec![1, 11], vec![-1, 1, 11], vec![-1, 1, 11]]) {
        let bodies: Vec<_> = slices.iter().map(|slice| Bytes::from(format!("{} {slice}", name.name))).collect();
        let found = collect(&store, name, scan_all(&[-1, 1, 11])).await;
        assert_eq!(found.into_iter().map(|chunk| chunk.body).collect::<Vec<_>>(), bodies, "{name:?}");
    }
    assert_eq!(collect(&store, &named("other"), scan_all(&[1])).await, []);
}
