//! What a consolidation rewrites and what it leaves alone: which tiles, which parts of a large tile, and which older
//! versions it moves to chunks of their own.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use chronotile_archive::{ConsolidateOptions, ConsolidateReport, Dataset};
use chronotile_memory::MemoryStore;
use chronotile_store::{Chunk, Decision, FaultyStore, Metered, Operation, Store};
use chronotile_types::{DatasetSpec, Instant, MergeRule, SliceId, Window};

use crate::common::*;

fn memory() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new())
}

async fn consolidate(dataset: &Dataset) -> ConsolidateReport {
    dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap()
}

/// Consolidates; returns the report and the progress calls.
async fn with_progress(dataset: &Dataset, options: ConsolidateOptions) -> (ConsolidateReport, Vec<(u64, u64)>) {
    let seen = Mutex::new(Vec::new());
    let report =
        dataset.consolidate(options, Some(&|done, total| seen.lock().unwrap().push((done, total)))).await.unwrap();
    (report, seen.into_inner().unwrap())
}

fn bytes(chunks: &[&Chunk]) -> u64 {
    chunks.iter().map(|chunk| (chunk.head.len() + chunk.body.len()) as u64).sum()
}

/// The expected report, from the chunks before and after.
fn difference(before: &[Chunk], after: &[Chunk]) -> ConsolidateReport {
    let gone: Vec<&Chunk> = before.iter().filter(|chunk| !after.contains(chunk)).collect();
    let new: Vec<&Chunk> = after.iter().filter(|chunk| !before.contains(chunk)).collect();
    let mut tiles: Vec<_> = gone.iter().map(|chunk| chunk.key.tile).collect();
    tiles.sort_unstable();
    tiles.dedup();
    ConsolidateReport {
        tiles: tiles.len() as u64,
        chunks_before: gone.len() as u64,
        chunks_after: new.len() as u64,
        bytes_before: bytes(&gone),
        bytes_after: bytes(&new),
        ..ConsolidateReport::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_report_says_what_was_rewritten_and_a_dry_run_says_it_beforehand() {
    for store in [memory(), Arc::new(LimitedStore::stepwise(memory())) as Arc<dyn Store>] {
        let dataset = create(&store, spec()).await;
        // Tiles of 150 cells; only one batch has the last five.
        for batch in 0..3_i64 {
            let rows: Vec<_> = (0..150 - batch * 5).map(|tag| (batch, batch * 1_000 + tag, tag)).collect();
            write(&dataset, &noted(&rows, &batch.to_string()), named(&batch.to_string())).await.unwrap();
        }
        let before = chunks(store.as_ref(), &placed()).await;
        let dry = ConsolidateOptions { dry_run: true, ..ConsolidateOptions::default() };
        let (would, _) = with_progress(&dataset, dry).await;
        assert_eq!(chunks(store.as_ref(), &placed()).await, before, "a dry run changed something");
        let (report, progress) = with_progress(&dataset, ConsolidateOptions::default()).await;
        let after = chunks(store.as_ref(), &placed()).await;
        assert_eq!(report, difference(&before, &after));
        assert_eq!((report.tiles, report.chunks_after), (145, 145));
        assert_eq!(would, report);
        assert_eq!(progress, [(64, 145), (128, 145), (145, 145)], "a commit has 64 tiles at most");
        assert_eq!(with_progress(&dataset, ConsolidateOptions::default()).await, Default::default());
        assert_sound(&dataset).await;
    }
}

#[tokio::test]
async fn only_windows_that_end_by_the_limit_and_tiles_with_enough_chunks_are_rewritten() {
    let store = memory();
    let dataset = create(&store, spec()).await;
    // Window 0 gets two chunks, window 1 three, window 2 four.
    for batch in 0..4_i64 {
        let places = (0..3).filter(|hour| batch < hour + 2).map(|hour| (hour * HOUR, batch * 10 + hour, 0));
        write(&dataset, &rows(&places.collect::<Vec<_>>()), named(&batch.to_string())).await.unwrap();
    }
    let rewritten = async |chunks_min, before: Option<i64>| {
        let before = before.map(Instant::NativeTicks);
        let options = ConsolidateOptions { chunks_min, before, dry_run: true, ..ConsolidateOptions::default() };
        dataset.consolidate(options, None).await.unwrap().chunks_before
    };
    for (chunks_min, before, expected) in [
        (None, None, 9),
        (Some(0), None, 9),
        (Some(3), None, 7),
        (Some(4), None, 4),
        (Some(5), None, 0),
        (None, Some(3 * HOUR), 9),
        (None, Some(3 * HOUR - 1), 5),
        (Some(3), Some(2 * HOUR), 3),
        (None, Some(HOUR), 2),
        (None, Some(HOUR - 1), 0),
    ] {
        assert_eq!(rewritten(chunks_min, before).await, expected, "{chunks_min:?} {before:?}");
    }
}

/// Writes rows of several MiB each, one batch per row.
async fn write_great(dataset: &Dataset, places: impl Iterator<Item = (i64, i64, i64)>, length: usize) {
    for place in places {
        let key = format!("great {place:?}");
        write(dataset, &noted(&[place], &noise(place.1 as u64, length)), named(&key)).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_commit_takes_no_tile_that_would_give_it_more_than_16_mebibytes() {
    let store = memory();
    let dataset = create(&store, spec()).await;
    // Two chunks of about three MiB in each of three tiles.
    write_great(&dataset, (0..6).map(|row| (row, row, row / 2)), 7 << 19).await;
    let sizes = dataset.info().await.unwrap().tile_bytes;
    assert!(sizes.min > 16 << 18 && sizes.max < 16 << 19, "neither two nor three fit: {sizes:?}");
    let (_, progress) = with_progress(&dataset, ConsolidateOptions::default()).await;
    assert_eq!(progress, [(2, 3), (3, 3)]);
}

/// A tile of more than 16 MiB: large rows early and late, small ones between them.
async fn large_tile(store: &Arc<dyn Store>) -> Dataset {
    let dataset = create(store, spec()).await;
    write_great(&dataset, (0..4).chain(2_000..2_005).map(|t| (t, t, 0)), 27 << 17).await;
    for t in 1_000..1_006 {
        write(&dataset, &rows(&[(t, t, 0)]), named(&t.to_string())).await.unwrap();
    }
    let info = dataset.info().await.unwrap();
    assert!(info.tile_bytes.max > 16 << 20, "{info:?}");
    dataset
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_large_tile_only_parts_that_were_written_to_are_rewritten() {
    let store = memory();
    let dataset = large_tile(&store).await;
    let expected = id_notes(&read_all(&dataset).await);
    // The small rows are merged; the last large ones are not touched.
    let before = chunks(store.as_ref(), &placed()).await;
    let (report, progress) = with_progress(&dataset, ConsolidateOptions::default()).await;
    let after = chunks(store.as_ref(), &placed()).await;
    assert_eq!(progress, [(1, 1)]);
    assert_eq!((report.tiles, report.tiles_contended, &report.failed[..]), (1, 0, &[][..]));
    assert_eq!((before.len(), after.len()), (15, 10));
    let late = |chunks: &[Chunk]| chunks.iter().filter(|chunk| before.contains(chunk)).count();
    assert!((1..6).contains(&late(&after)), "{} chunks stay as they are", late(&after));
    assert_eq!(report, difference(&before, &after));
    assert_eq!(consolidate(&dataset).await, ConsolidateReport::default(), "nothing was written since");
    assert_eq!(chunks(store.as_ref(), &placed()).await, after);

    // A row after all others does not touch the earlier part.
    write(&dataset, &rows(&[(3_000, 3_000, 0), (3_001, 3_001, 0)]), named("late")).await.unwrap();
    let before = chunks(store.as_ref(), &placed()).await;
    let report = consolidate(&dataset).await;
    assert_eq!(report.tiles, 0, "one small chunk behind great ones cannot come together with another");
    assert_eq!(chunks(store.as_ref(), &placed()).await, before);
    write(&dataset, &rows(&[(3_002, 3_002, 0)]), named("later")).await.unwrap();
    let before = chunks(store.as_ref(), &placed()).await;
    let report = consolidate(&dataset).await;
    assert_eq!(report, difference(&before, &chunks(store.as_ref(), &placed()).await));
    assert_eq!(report.chunks_before - report.chunks_after, 1);
    assert!(report.chunks_before < 8, "{report:?}");

    for batch in ["late", "later"] {
        dataset.remove_batch(batch).await.unwrap();
    }
    assert!(id_notes(&read_all(&dataset).await) == expected);
    assert_sound(&dataset).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_tile_that_changes_while_it_is_rewritten_is_counted_and_left() {
    let store = memory();
    large_tile(&store).await;
    let (other, done) = (store.clone(), AtomicBool::new(false));
    // At the first fetch, the heads have already been read.
    let busy: Arc<dyn Store> = Arc::new(FaultyStore::new(store.clone(), move |call| {
        if call.operation == Operation::Fetch && !done.swap(true, Ordering::SeqCst) {
            let other = other.clone();
            let work = async move { open(&other, "records").await.remove_batch("1003").await.unwrap() };
            on_other_thread(work);
        }
        Decision::Pass
    }));
    let report = consolidate(&open(&busy, "records").await).await;
    assert_eq!(report, ConsolidateReport { tiles_contended: 1, ..ConsolidateReport::default() });
    let dataset = open(&store, "records").await;
    assert_eq!(consolidate(&dataset).await.tiles, 1);
    assert_eq!(read_all(&dataset).await.num_rows(), 14);
    assert_sound(&dataset).await;
}

fn latest() -> DatasetSpec {
    DatasetSpec { merge: MergeRule::Latest { version: None }, ..spec() }
}

/// Chunks and rows of older versions in the only tile.
async fn older(store: &Arc<dyn Store>) -> (u64, u64) {
    let tiles = store.statistics(&placed(), SliceId(0)).await.unwrap();
    assert_eq!(tiles.len(), 1);
    (tiles[0].older_chunks, tiles[0].older_rows)
}

fn versions(count: i64, note: &str) -> arrow_array::RecordBatch {
    noted(&(0..count).map(|id| (id, id, 0)).collect::<Vec<_>>(), note)
}

#[tokio::test]
async fn older_versions_come_apart_where_they_are_64_and_a_fourth_of_all_or_as_many_as_was_said() {
    for (total, replaced, older_min, apart) in [
        (256, 64, None, true),
        (252, 63, None, false),
        (257, 64, None, false),
        (130, 65, None, true),
        (40, 10, None, false),
        (40, 10, Some(10), true),
        (40, 10, Some(11), false),
        (300, 1, Some(1), true),
        (300, 0, Some(0), false),
        (300, 64, Some(u64::MAX), false),
    ] {
        let store = memory();
        let dataset = create(&store, latest()).await;
        write(&dataset, &versions(total - replaced, "old"), named("old")).await.unwrap();
        write(&dataset, &versions(replaced, "new"), named("new")).await.unwrap();
        // Ensures two chunks even if nothing was replaced.
        write(&dataset, &rows(&[]), named("empty")).await.unwrap();
        let expected = id_notes(&read_all(&dataset).await);
        dataset.consolidate(ConsolidateOptions { older_min, ..Default::default() }, None).await.unwrap();
        let context = format!("{replaced} of {total}, {older_min:?}");
        assert_eq!(older(&store).await, if apart { (1, replaced as u64) } else { (0, 0) }, "{context}");
        assert_eq!(id_notes(&read_all(&dataset).await), expected, "{context}");
        assert_sound(&dataset).await;
    }
}

#[tokio::test]
async fn chunks_of_older_versions_come_together_once_there_are_eight() {
    let store = memory();
    let dataset = create(&store, latest()).await;
    write(&dataset, &versions(100, "0"), named("0")).await.unwrap();
    let mut seen = Vec::new();
    for round in 1..10 {
        write(&dataset, &versions(100, &round.to_string()), named(&round.to_string())).await.unwrap();
        consolidate(&dataset).await;
        seen.push(older(&store).await);
    }
    let all: Vec<_> = (1..9).map(|round| (round, round * 100)).chain([(1, 900)]).collect();
    assert_eq!(seen, all);
    assert_eq!(consolidate(&dataset).await, ConsolidateReport::default());
    let newest: Vec<_> = (0..100).map(|id| (id, "9".to_owned())).collect();
    assert_eq!(id_notes(&read_all(&dataset).await), newest);
    assert_sound(&dataset).await;
}

#[tokio::test]
async fn tiles_that_nobody_wrote_to_and_chunks_of_a_good_size_are_not_read() {
    let metered = Arc::new(Metered::new(memory()));
    let store: Arc<dyn Store> = metered.clone();
    let dataset = create(&store, spec()).await;
    // A large write leaves chunks of a good size; texts that shrink leave small ones where their rows would not fit into one.
    let noisy: Vec<_> = (0..6).map(|row| noted(&[(row, row, 1)], &noise(row as u64, 250_000))).collect();
    dataset.write(input(noisy), named("good")).await.unwrap();
    for batch in 0..6_i64 {
        let rows: Vec<_> = (0..8).map(|row| (10 * row + batch, 10 * row + batch, 0)).collect();
        write(&dataset, &noted(&rows, &noise(batch as u64, 30_000)), named(&batch.to_string())).await.unwrap();
    }
    assert_eq!(consolidate(&dataset).await.tiles, 1);
    let of_cell = |cell: i64, chunks: &[Chunk]| chunks.iter().filter(|chunk| chunk.key.tile.cell.0 == cell).count();
    let made = chunks(store.as_ref(), &placed()).await;
    assert!(of_cell(0, &made) > 1 && of_cell(1, &made) > 1, "the tiles have one chunk, so nothing is tested");
    assert!(made.iter().all(|chunk| chunk.key.tile.window == Window(0)));
    let calls = |operation| metered.snapshot().into_iter().find(|each| each.operation == operation).unwrap().calls;
    let before = calls(Operation::Scan);
    assert_eq!(consolidate(&dataset).await, ConsolidateReport::default());
    assert_eq!(calls(Operation::Scan), before);
}
