//! Several handles that change one dataset concurrently.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use chronotile_archive::{ArchiveError, ConsolidateOptions, Dataset, ReadRequest, WriteOptions, WriteReport};
use chronotile_memory::MemoryStore;
use chronotile_store::{Commit, Decision, FaultyStore, Store, StoreError};
use chronotile_types::{DatasetSpec, ErrorKind, MergeRule};

use crate::common::*;

/// Repeats a write while other writers hold the batch.
async fn insist(dataset: &Dataset, note: &str, options: WriteOptions) -> chronotile_archive::Result<WriteReport> {
    let mut races = 0;
    loop {
        match write(dataset, &spread_rows(0, 40, 3, note), options.clone()).await {
            Err(ArchiveError::BatchRace { .. }) if races < 100 => races += 1,
            result => return result,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_same_batch_written_by_many_at_once_is_stored_once() {
    for (store, _folder) in engines() {
        let dataset = create(&store, spec()).await;
        for round in 0..10 {
            let name = format!("batch {round}");
            let mut writers = vec![];
            for _ in 0..4 {
                let (handle, name) = (open(&store, "records").await, name.clone());
                writers.push(tokio::spawn(async move { insist(&handle, "same", named(&name)).await.unwrap() }));
            }
            for writer in writers {
                writer.await.unwrap();
            }
            assert_eq!(id_notes(&read_all(&dataset).await), id_notes(&spread_rows(0, 40, 3, "same")));
            assert!(!insist(&dataset, "same", named(&name)).await.unwrap().stored);
            assert_sound(&dataset).await;
            dataset.remove_batch(&name).await.unwrap();
        }
        assert_eq!(chunks(store.as_ref(), &placed()).await, vec![]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_large_batch_that_somebody_ends_while_another_begins_it_stays_finished() {
    let large = || input((0..2).map(|part| spread_rows(part * 10, 10, 2, &"large".repeat(40_000))));
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let dataset = create(&store, spec()).await;
    let (other, done) = (dataset.clone(), AtomicBool::new(false));
    let late = FaultyStore::new(store.clone(), move |call| {
        if call.commit.is_some() && !done.swap(true, Ordering::SeqCst) {
            let other = other.clone();
            let write = async move { other.write(large(), tight(named("a"))).await.unwrap() };
            on_other_thread(write);
        }
        Decision::Pass
    });
    let late: Arc<dyn Store> = Arc::new(late);
    let late = open(&late, "records").await;
    let raced = late.write(large(), tight(named("a"))).await;
    assert!(matches!(raced, Err(ArchiveError::BatchRace { .. })), "{raced:?}");
    assert_eq!(ids(&read_all(&dataset).await), (0..20).collect::<Vec<_>>());
    assert!(!late.write(large(), tight(named("a"))).await.unwrap().stored);
    assert_sound(&dataset).await;
}

/// What happens to batch "a" after its first writer has lost the answer and before it looks up the outcome.
#[derive(Clone, Copy, Debug)]
enum Interference {
    /// The first writer's commit takes effect.
    Lands,
    /// Another writer stores rows with this note.
    Stores(&'static str),
    /// Another writer replaces the rows by some with this note.
    Replaces(&'static str),
    Removes,
}

impl Interference {
    async fn happen(self, store: &Arc<dyn Store>, lost: Commit) {
        let other = async |note, replace| {
            let options = WriteOptions { replace, ..named("a") };
            assert!(write(&open(store, "records").await, &spread_rows(0, 5, 2, note), options).await.unwrap().stored);
        };
        match self {
            Self::Lands => store.commit(&placed(), lost).await.unwrap(),
            Self::Stores(note) => other(note, false).await,
            Self::Replaces(note) => other(note, true).await,
            Self::Removes => assert_eq!(open(store, "records").await.remove_batch("a").await.unwrap(), 5),
        }
    }
}

/// Writes batch "a" with the note "first". The commit with its record is answered as overtaken: other writers have
/// changed the records.
async fn write_overtaken(
    store: &Arc<dyn Store>,
    meanwhile: &'static [Interference],
) -> chronotile_archive::Result<WriteReport> {
    let (below, done) = (store.clone(), AtomicBool::new(false));
    let late: Arc<dyn Store> = Arc::new(FaultyStore::new(store.clone(), move |call| {
        let ends =
            |commit: &&Commit| commit.before.iter().chain(&commit.after).any(|put| put.key.starts_with("batch/"));
        let Some(lost) = call.commit.filter(ends).filter(|_| !done.swap(true, Ordering::SeqCst)).cloned() else {
            return Decision::Pass;
        };
        let below = below.clone();
        let work = async move {
            for act in meanwhile {
                act.happen(&below, lost.clone()).await;
            }
        };
        on_other_thread(work);
        Decision::FailBefore(StoreError::Overtaken { engine: "test", reason: "no answer".to_owned() })
    }));
    write(&open(&late, "records").await, &spread_rows(0, 5, 2, "first"), named("a")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_whose_answer_was_lost_to_others_finds_out_whether_its_rows_counted() {
    use Interference::{Lands, Removes, Replaces, Stores};
    type Outcome = std::result::Result<bool, ErrorKind>;
    let cases: [(&'static [Interference], Outcome, Option<&str>); 9] = [
        (&[], Ok(true), Some("first")),
        (&[Lands], Ok(true), Some("first")),
        (&[Lands, Replaces("second")], Ok(true), Some("second")),
        (&[Lands, Removes], Ok(true), None),
        (&[Stores("first")], Ok(false), Some("first")),
        (&[Stores("second")], Err(ErrorKind::BatchDiffers), Some("second")),
        // The catalog records only the last two attempts.
        (&[Stores("second"), Removes], Err(ErrorKind::OutcomeUnknown), None),
        (&[Lands, Replaces("second"), Replaces("third")], Err(ErrorKind::OutcomeUnknown), Some("third")),
        (&[Stores("second"), Replaces("third")], Err(ErrorKind::OutcomeUnknown), Some("third")),
    ];
    for (meanwhile, reported, note) in cases {
        let memory: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let stepwise: Arc<dyn Store> = Arc::new(LimitedStore::stepwise(Arc::new(MemoryStore::new())));
        for store in [memory, stepwise] {
            let dataset = create(&store, spec()).await;
            let result = write_overtaken(&store, meanwhile).await;
            assert_eq!(result.map(|report| report.stored).map_err(|error| error.kind()), reported, "{meanwhile:?}");
            let shown = note.map(|note| id_notes(&spread_rows(0, 5, 2, note))).unwrap_or_default();
            assert_eq!(id_notes(&read_all(&dataset).await), shown, "{meanwhile:?}");
            assert_sound(&dataset).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_different_contents_under_one_name_exactly_one_wins() {
    for (store, _folder) in engines() {
        let dataset = create(&store, spec()).await;
        for round in 0..10 {
            let name = format!("batch {round}");
            let mut writers = vec![];
            for note in ["one", "two", "three"] {
                let (handle, name) = (open(&store, "records").await, name.clone());
                writers.push(tokio::spawn(async move { (note, insist(&handle, note, named(&name)).await) }));
            }
            let mut winners = vec![];
            for writer in writers {
                match writer.await.unwrap() {
                    (note, Ok(report)) => {
                        assert!(report.stored);
                        winners.push(note);
                    }
                    (_, Err(ArchiveError::BatchDiffers { .. })) => {}
                    (note, Err(error)) => panic!("{note}: {error}"),
                }
            }
            assert_eq!(winners.len(), 1, "{winners:?}");
            assert_eq!(id_notes(&read_all(&dataset).await), id_notes(&spread_rows(0, 40, 3, winners[0])));
            assert_sound(&dataset).await;
            dataset.remove_batch(&name).await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn writes_reads_removals_and_consolidations_at_once_lose_nothing() {
    const BATCHES: i64 = 24;
    for (store, _folder) in engines() {
        let dataset = create(&store, spec()).await;
        let mut tasks = vec![];
        for writer in 0..2 {
            let handle = open(&store, "records").await;
            tasks.push(tokio::spawn(async move {
                for batch in (0..BATCHES).filter(|batch| batch % 2 == writer) {
                    let key = format!("batch {batch}");
                    let rows = |note: &str| spread_rows(batch * 20, 20, 3, note);
                    write(&handle, &rows("first"), named(&key)).await.unwrap();
                    match batch % 3 {
                        1 => drop(write(&handle, &rows("second"), replacing(&key)).await.unwrap()),
                        2 => drop(handle.remove_batch(&key).await.unwrap()),
                        _ => {}
                    }
                }
            }));
        }
        let handle = open(&store, "records").await;
        let consolidator = tokio::spawn(async move {
            for _ in 0..12 {
                handle.consolidate(ConsolidateOptions::default(), None).await.unwrap();
            }
        });
        let handle = open(&store, "records").await;
        let reader = tokio::spawn(async move {
            for _ in 0..12 {
                let found = ids(&read_all(&handle).await);
                let distinct: BTreeSet<_> = found.iter().collect();
                assert_eq!(distinct.len(), found.len(), "a record was read twice");
                handle.count(ReadRequest::default()).await.unwrap();
            }
        });
        for task in tasks.into_iter().chain([consolidator, reader]) {
            task.await.unwrap();
        }
        let mut expected = vec![];
        for batch in (0..BATCHES).filter(|batch| batch % 3 != 2) {
            let note = if batch % 3 == 1 { "second" } else { "first" };
            expected.extend(id_notes(&spread_rows(batch * 20, 20, 3, note)));
        }
        for _ in 0..2 {
            assert_eq!(id_notes(&read_all(&dataset).await), expected);
            dataset.consolidate(ConsolidateOptions::default(), None).await.unwrap();
        }
        assert_sound(&dataset).await;
    }
}

/// If an engine gives the time of a machine, stamps never fall behind what the writer has read.
#[tokio::test]
async fn a_write_is_newer_than_what_its_writer_has_read_of_a_machine_whose_clock_is_ahead() {
    let memory: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let ahead = LimitedStore::with_clock_ahead(memory.clone(), 120_000_000);
    let dataset = create(&ahead, DatasetSpec { merge: MergeRule::Latest { version: None }, ..spec() }).await;
    write(&dataset, &noted(&[(0, 1, 0), (0, 2, 0)], "ahead"), named("a")).await.unwrap();

    let other = open(&LimitedStore::with_clock_ahead(memory, 0), "records").await;
    assert_eq!(read_all(&other).await.num_rows(), 2);
    write(&other, &noted(&[(0, 1, 0)], "later"), named("b")).await.unwrap();
    let expected = [(1, "later".to_owned()), (2, "ahead".to_owned())];
    assert_eq!(id_notes(&read_all(&other).await), expected);
    assert_eq!(id_notes(&read_all(&dataset).await), expected);
}
