//! Spans of tiles, read from the heads of their chunks.

use chronotile_archive::{ConsolidateOptions, WriteOptions};

use crate::common::*;

#[tokio::test]
async fn spans_tell_the_neighbours_of_a_time_in_every_slice() {
    for (store, _folder) in engines() {
        let dataset = create(&store, spec()).await;
        write(
            &dataset,
            &rows(&[(5, 1, 7), (9 * HOUR, 2, 7), (9 * HOUR + 3, 3, 7), (HOUR, 4, 8)]),
            WriteOptions::default(),
        )
        .await
        .unwrap();
        let spans = dataset.spans(&[7], (0, 20 * HOUR)).await.unwrap();
        let ends: Vec<_> = spans.iter().map(|span| (span.tick_min, span.tick_max, span.rows)).collect();
        assert_eq!(ends, [(5, 5, 1), (9 * HOUR, 9 * HOUR + 3, 2)]);
        assert_eq!(dataset.spans(&[7], (HOUR, 8 * HOUR)).await.unwrap(), vec![]);
        for (tick, before, from) in [
            (5, None, Some(5)),
            (6, Some(5), Some(9 * HOUR)),
            (9 * HOUR + 1, Some(9 * HOUR), Some(9 * HOUR)),
            (30 * HOUR, Some(9 * HOUR), None),
        ] {
            let start = |span: Option<chronotile_archive::TileSpan>| span.map(|span| span.tick_min);
            assert_eq!(start(dataset.span_before(7, tick).await.unwrap()), before, "before {tick}");
            assert_eq!(start(dataset.span_from(7, tick).await.unwrap()), from, "from {tick}");
        }
    }
}

#[tokio::test]
async fn a_fingerprint_changes_with_every_write_to_its_tile_and_no_other() {
    for (store, _folder) in engines() {
        let dataset = create(&store, spec()).await;
        write(&dataset, &rows(&[(5, 1, 7), (HOUR, 2, 7)]), WriteOptions::default()).await.unwrap();
        let first = dataset.spans(&[7], (0, 2 * HOUR)).await.unwrap();
        assert_eq!(dataset.spans(&[7], (0, 2 * HOUR)).await.unwrap(), first);
        write(&dataset, &rows(&[(6, 3, 7), (5, 4, 8)]), WriteOptions::default()).await.unwrap();
        let second = dataset.spans(&[7], (0, 2 * HOUR)).await.unwrap();
        assert_ne!(second[0].fingerprint, first[0].fingerprint);
        assert_eq!(second[1], first[1]);
        dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap();
        let third = dataset.spans(&[7], (0, 2 * HOUR)).await.unwrap();
        assert_eq!((third[0].chunks, third[0].rows), (1, 2));
        assert!(![first[0].fingerprint, second[0].fingerprint].contains(&third[0].fingerprint));
    }
}
