//! Consolidation cleans up: it removes what writes left that were interrupted a day ago, and rows that no reader
//! needs any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use chronotile_archive::{Archive, ConsolidateOptions, Dataset};
use chronotile_memory::MemoryStore;
use chronotile_store::{Commit, Decision, Expect, FaultyStore, RecordPut, Store};
use chronotile_types::BatchId;

use crate::common::*;

const DAY_US: i64 = 24 * HOUR;
/// The current time in these tests, in microseconds since 1970.
const NOW_US: i64 = 1_700_000_000_000_000;
/// How long rows that no longer count are kept.
const KEPT: Duration = Duration::from_secs(600);

/// An engine and its clock.
#[derive(Clone)]
struct Engine {
    store: Arc<dyn Store>,
    /// The store whose clock is set by the stamps of commits.
    below: Arc<dyn Store>,
}

impl Engine {
    fn memory() -> Self {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        Self { below: store.clone(), store }
    }

    /// Memory, with and without the capabilities of an engine on one machine.
    fn all() -> [Self; 2] {
        let (memory, other) = (Self::memory(), Self::memory());
        [memory, Self { store: Arc::new(LimitedStore::stepwise(other.below.clone())), ..other }]
    }

    /// The dataset in a process whose machine, like those of the engine, has this time.
    async fn at(&self, now_us: i64) -> Dataset {
        self.below.commit(&placed(), Commit { stamp_us: now_us, ..Commit::default() }).await.unwrap();
        let archive = Archive::on("test:", self.store.clone()).with_machine_time(move || now_us);
        archive.with_superseded_kept(KEPT).create(spec(), true).await.unwrap()
    }

    async fn keys(&self, kind: &str) -> Vec<String> {
        let records = self.store.records(&format!("{kind}/records/"), None, 100).await.unwrap();
        records.into_iter().map(|record| record.key).collect()
    }

    async fn chunks(&self) -> usize {
        chunks(self.store.as_ref(), &placed()).await.len()
    }
}

async fn consolidate(dataset: &Dataset) {
    dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap();
}

/// Begins a write of several steps and dies in the middle of it.
async fn begin(engine: &Engine, now_us: i64) {
    let cut = Engine { store: dying_in_a_write(&engine.store), ..engine.clone() };
    cut.at(now_us).await.write(several_steps("cut off"), tight(named("cut"))).await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn a_write_that_was_cut_off_is_cleared_away_a_day_after_it_began() {
    for engine in Engine::all() {
        write(&engine.at(NOW_US - 2 * DAY_US).await, &rows(&[(0, 1_000, 0)]), named("whole")).await.unwrap();
        begin(&engine, NOW_US - DAY_US).await;
        let held = engine.chunks().await;
        assert!(held > 1, "the write left nothing, so nothing is tested");
        let began_us = engine.at(NOW_US - HOUR).await.batch("cut").await.unwrap().unwrap().written_us;

        consolidate(&engine.at(began_us + DAY_US - 60_000_000).await).await;
        assert_eq!((engine.chunks().await, engine.keys("intent").await.len()), (held, 1));
        let dry = ConsolidateOptions { dry_run: true, ..ConsolidateOptions::default() };
        engine.at(began_us + DAY_US).await.consolidate(dry, None).await.unwrap();
        assert_eq!(
            (engine.chunks().await, engine.keys("intent").await.len()),
            (held, 1),
            "a dry run changed something"
        );
        let now = engine.at(began_us + DAY_US).await;
        consolidate(&now).await;
        assert_eq!((engine.chunks().await, engine.keys("intent").await), (1, vec![]));
        assert_eq!(engine.keys("part").await.len(), 1, "lists of chunks that are gone stay");
        assert_eq!(now.batches().await.unwrap().len(), 1);
        assert_eq!(ids(&read_all(&now).await), [1_000]);
        assert_sound(&now).await;
        assert!(write(&now, &rows(&[(0, 1, 0)]), named("cut")).await.unwrap().stored);
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_write_left_that_went_on_meanwhile_is_not_cleared_away() {
    let engine = Engine::memory();
    begin(&engine, NOW_US - DAY_US).await;
    let (other, done) = (engine.clone(), AtomicBool::new(false));
    // The consolidation has found the write and is taking it over.
    let busy = FaultyStore::new(engine.store.clone(), move |call| {
        let takes = |commit: &Commit| commit.before.iter().any(|put| put.key.starts_with("intent/"));
        if call.commit.is_some_and(takes) && !done.swap(true, Ordering::SeqCst) {
            let other = other.clone();
            let work = async move { write(&other.at(NOW_US).await, &rows(&[(0, 1, 0)]), named("cut")).await.unwrap() };
            on_other_thread(work);
        }
        Decision::Pass
    });
    let busy = Engine { store: Arc::new(busy), ..engine.clone() };
    consolidate(&busy.at(NOW_US + 60_000_000).await).await;
    let dataset = engine.at(NOW_US + 60_000_000).await;
    assert_eq!(ids(&read_all(&dataset).await), [1]);
    assert_sound(&dataset).await;
}

#[tokio::test(start_paused = true)]
async fn rows_that_were_replaced_or_removed_are_taken_away_once_no_reader_needs_them() {
    for removes in [false, true] {
        for engine in Engine::all() {
            let dataset = engine.at(NOW_US).await;
            write(&dataset, &rows(&[(0, 1, 0)]), named("a")).await.unwrap();
            write(&dataset, &rows(&[(1, 2, 0)]), named("b")).await.unwrap();
            let later = engine.at(NOW_US + HOUR).await;
            match removes {
                false => drop(write(&later, &rows(&[(0, 3, 0)]), replacing("a")).await.unwrap()),
                true => drop(later.remove_batch("a").await.unwrap()),
            }
            let left = if removes { vec![2] } else { vec![2, 3] };
            let kept_us = KEPT.as_micros() as i64;
            // One chunk has the rows that count, another those that do not.
            for (passed_us, expected) in [(0, 2), (kept_us - 1_000_000, 2), (kept_us + 1_000_000, 1)] {
                let now = engine.at(NOW_US + HOUR + passed_us).await;
                assert_eq!(ids(&read_all(&now).await), left);
                consolidate(&now).await;
                assert_eq!(engine.chunks().await, expected, "removes={removes} after {passed_us}");
                assert_eq!(ids(&read_all(&now).await), left);
                assert_eq!(engine.keys("intent").await.is_empty(), expected == 1);
                assert_sound(&now).await;
            }
        }
    }
}

/// Chunks without any record of their batch, as left by a write that was interrupted before its first record, or by a
/// backup made in between.
async fn with_unknown_rows(engine: &Engine, written_us: i64) -> Dataset {
    let dataset = engine.at(written_us).await;
    write(&dataset, &rows(&[(0, 1, 0), (3 * HOUR, 2, 0)]), named("unknown")).await.unwrap();
    for kind in ["batch", "part"] {
        for key in engine.keys(kind).await {
            let put = RecordPut { key, value: None, expect: Expect::Any };
            engine.store.commit(&placed(), Commit { before: vec![put], ..Commit::default() }).await.unwrap();
        }
    }
    let later = engine.at(written_us + 1_000).await;
    write(&later, &rows(&[(1, 3, 0), (3 * HOUR + 1, 4, 0)]), named("known")).await.unwrap();
    later
}

#[tokio::test(start_paused = true)]
async fn rows_of_a_batch_that_the_catalog_does_not_know_are_taken_away_after_a_day() {
    for engine in Engine::all() {
        with_unknown_rows(&engine, NOW_US).await;
        let stamp_us = engine.at(NOW_US).await.batch("known").await.unwrap().unwrap().written_us;
        consolidate(&engine.at(stamp_us + DAY_US - 60_000_000).await).await;
        assert_eq!(engine.chunks().await, 4, "its writer may go on");
        let now = engine.at(stamp_us + DAY_US).await;
        consolidate(&now).await;
        assert_eq!(engine.chunks().await, 2);
        assert_eq!(ids(&read_all(&now).await), [3, 4]);
        // The writer would find the record of the removal and begin again.
        let removed = format!("batch/records/{}", BatchId::of_key("unknown"));
        assert!(engine.keys("batch").await.contains(&removed));
        assert_eq!(engine.keys("intent").await, Vec::<String>::new());
        assert_eq!(now.batch("unknown").await.unwrap(), None);
        assert_sound(&now).await;
        assert!(write(&now, &rows(&[(0, 1, 0)]), named("unknown")).await.unwrap().stored);
        assert_eq!(ids(&read_all(&now).await), [1, 3, 4]);
    }
}

/// A chunk of an earlier attempt that no record refers to: it returned from a node that missed its removal.
#[tokio::test(start_paused = true)]
async fn rows_of_an_earlier_attempt_that_came_back_are_taken_away_once_no_reader_needs_them() {
    let engine = Engine::memory();
    let dataset = engine.at(NOW_US).await;
    write(&dataset, &rows(&[(0, 1, 0)]), named("a")).await.unwrap();
    let returning = chunks(engine.store.as_ref(), &placed()).await;
    write(&engine.at(NOW_US + HOUR).await, &rows(&[(0, 2, 0)]), replacing("a")).await.unwrap();
    write(&engine.at(NOW_US + HOUR).await, &rows(&[(1, 3, 0)]), named("b")).await.unwrap();
    let kept_us = KEPT.as_micros() as i64;
    consolidate(&engine.at(NOW_US + HOUR + kept_us + 1_000_000).await).await;
    assert_eq!(engine.chunks().await, 1);
    put_chunks(engine.store.as_ref(), &placed(), returning).await;
    write(&engine.at(NOW_US + 2 * HOUR).await, &rows(&[(2, 4, 0)]), named("c")).await.unwrap();
    // To a process whose clock is behind, the replacement is recent.
    consolidate(&engine.at(NOW_US + HOUR + kept_us - 1_000_000).await).await;
    let dataset = engine.at(NOW_US + 2 * HOUR).await;
    assert_eq!(dataset.verify(None).await.unwrap().foreign.len(), 1);
    write(&engine.at(NOW_US + 2 * HOUR).await, &rows(&[(3, 5, 0)]), named("d")).await.unwrap();
    consolidate(&dataset).await;
    assert_sound(&dataset).await;
    assert_eq!(ids(&read_all(&dataset).await), [2, 3, 4, 5]);
    assert_eq!(engine.chunks().await, 1);
}
