//! Statistics of slices and tiles, and slices created in advance of writes.

use std::sync::Arc;

use chronotile_archive::{ArchiveError, Spread};
use chronotile_memory::MemoryStore;
use chronotile_store::Store;
use chronotile_types::{DatasetSpec, Instant, SliceId, TimeRange};

use crate::common::*;

fn memory() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new())
}

#[tokio::test]
async fn tiles_are_described_by_their_smallest_median_nearly_largest_and_largest() {
    let store = memory();
    let dataset = create(&store, spec()).await;
    assert_eq!(dataset.info().await.unwrap(), Default::default());
    // Tag 1 has one row, tag 2 two, and so on; one batch a row, so that chunks are as many.
    for (tags, expected) in [
        (1, Spread { min: 1, median: 1, p99: 1, max: 1 }),
        (2, Spread { min: 1, median: 1, p99: 2, max: 2 }),
        (3, Spread { min: 1, median: 2, p99: 3, max: 3 }),
    ] {
        for number in 0..tags {
            write(&dataset, &rows(&[(0, tags * 100 + number, tags)]), named(&format!("{tags} {number}")))
                .await
                .unwrap();
        }
        let info = dataset.info().await.unwrap();
        assert_eq!((info.tile_rows, info.tile_chunks), (expected, expected));
    }
    let places: Vec<_> = (4..201).flat_map(|tag| (0..tag).map(move |row| (row, tag * 1_000 + row, tag))).collect();
    write(&dataset, &rows(&places), named("others")).await.unwrap();
    let info = dataset.info().await.unwrap();
    assert_eq!(info.tile_rows, Spread { min: 1, median: 100, p99: 198, max: 200 });
    assert_eq!(info.tile_chunks, Spread { min: 1, median: 1, p99: 1, max: 3 });
    // The bytes are those of the chunks.
    let all = chunks(store.as_ref(), &placed()).await;
    let bytes = |tag: i64| {
        let own = all.iter().filter(|chunk| chunk.key.tile.cell.0 == tag);
        own.map(|chunk| (chunk.head.len() + chunk.body.len()) as u64).sum::<u64>()
    };
    let largest = (1..201).max_by_key(|tag| bytes(*tag)).unwrap();
    assert_eq!(info.tile_bytes.max, bytes(largest));
    assert_eq!(info.tile_largest.map(|tile| tile.cell.0), Some(largest));
    assert_eq!(info.tile_bytes.min, (1..201).map(bytes).min().unwrap());
}

#[tokio::test]
async fn slices_are_described_with_their_largest_partitions() {
    let cells = |partition_cells| DatasetSpec { partition_cells, ..spec() };
    for partition_cells in [1, 4] {
        let below = memory();
        let dataset = create(&below, cells(partition_cells)).await;
        // Two slices of two windows; of the cells, 0 to 3 may share a partition, and 4 is beside them.
        let places: Vec<_> =
            (0..5).flat_map(|tag| (0..4).map(move |hour| (hour * HOUR, tag * 10 + hour, tag))).collect();
        write(&dataset, &rows(&places), named("a")).await.unwrap();
        write(&dataset, &rows(&[(3 * HOUR, 100, 4), (3 * HOUR + 1, 101, 4)]), named("b")).await.unwrap();
        let all = chunks(below.as_ref(), &placed()).await;
        let bytes = |slice: i32, cells: std::ops::Range<i64>| {
            let own = |chunk: &&chronotile_store::Chunk| {
                chunk.key.slice == SliceId(slice) && cells.contains(&chunk.key.tile.cell.0)
            };
            all.iter().filter(own).map(|chunk| (chunk.head.len() + chunk.body.len()) as u64).sum::<u64>()
        };
        let partitions = |slice| match partition_cells {
            1 => (0..5).map(|cell| bytes(slice, cell..cell + 1)).collect::<Vec<_>>(),
            _ => vec![bytes(slice, 0..4), bytes(slice, 4..5)],
        };
        // An engine that works well with partitions of this size: those that are larger are counted, not those of just the size.
        for good in [partitions(1)[0], *partitions(1).last().unwrap(), 0] {
            let store: Arc<dyn Store> =
                Arc::new(LimitedStore::new(below.clone(), |able| able.cell_bytes_good = Some(good)));
            let info = open(&store, "records").await.info().await.unwrap();
            assert_eq!(info.slices.len(), 2);
            for (slice, found) in (0..).zip(&info.slices) {
                let ticks = (i64::from(slice) * 2 * HOUR, i64::from(slice + 1) * 2 * HOUR);
                assert_eq!((found.slice, found.ticks), (SliceId(slice), ticks));
                let more = u64::from(slice == 1);
                assert_eq!((found.tiles, found.chunks, found.rows), (10, 10 + more, 10 + 2 * more));
                assert_eq!(found.bytes, bytes(slice, 0..5));
                assert_eq!(found.cell_bytes_max, partitions(slice).into_iter().max().unwrap());
                let oversized = partitions(slice).into_iter().filter(|bytes| *bytes > good).count() as u64;
                assert_eq!(found.cells_oversized, oversized, "partitions of {partition_cells}, {good}");
            }
        }
        assert!(
            dataset.info().await.unwrap().slices.iter().all(|slice| slice.cells_oversized == 0),
            "it does not matter"
        );
    }
}

#[tokio::test]
async fn slices_of_a_period_are_made_ahead_and_not_those_beside_it() {
    for (store, _folder) in engines() {
        let dataset = create(&store, spec()).await;
        // Slices of two hours; the end of a period is not part of it.
        for (start, end, expected) in [
            (HOUR, HOUR, 0..0),
            (HOUR + 5, HOUR + 5, 0..0),
            (HOUR, HOUR + 1, 0..1),
            (0, 2 * HOUR, 0..1),
            (2 * HOUR - 1, 2 * HOUR + 1, 0..2),
            (-1, 0, -1..0),
            (4 * HOUR, 9 * HOUR, 2..5),
        ] {
            let made = dataset.prepare(&between(start, end)).await.unwrap();
            assert_eq!(made, expected.clone().map(SliceId).collect::<Vec<_>>(), "{start} {end}");
            let there = store.slices(&placed()).await.unwrap();
            assert!(made.iter().all(|slice| there.contains(slice)), "{start} {end}");
        }
        assert_eq!(store.slices(&placed()).await.unwrap(), (-1..5).map(SliceId).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn a_period_to_prepare_has_both_ends_and_at_most_a_thousand_slices() {
    let store = memory();
    let dataset = create(&store, spec()).await;
    let most = dataset.prepare(&between(0, 2_000 * HOUR)).await.unwrap();
    assert_eq!((most.len(), most.last()), (1_000, Some(&SliceId(999))));
    let bound = |ticks| Some(Instant::NativeTicks(ticks));
    let (none, start, end) = (TimeRange::default(), bound(5_000 * HOUR), bound(5_001 * HOUR));
    for (period, reason) in [
        (none, "a start and an end"),
        (TimeRange { start, ..none }, "a start and an end"),
        (TimeRange { end, ..none }, "a start and an end"),
        (between(5_000 * HOUR, 7_000 * HOUR + 1), "at most 1,000 slices"),
    ] {
        let error = dataset.prepare(&period).await.unwrap_err();
        assert!(matches!(&error, ArchiveError::Request { .. }), "{error}");
        assert!(error.to_string().contains(reason), "{error}");
    }
    assert_eq!(store.slices(&placed()).await.unwrap().len(), 1_000, "a period that is refused makes no slices");
}
