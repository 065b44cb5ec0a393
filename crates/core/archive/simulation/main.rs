//! Simulates the batch protocol: processes write, replace and remove the same batches, consolidate, read, and drop
//! slices. The engine is slow, loses answers and brings removed chunks back; clocks are wrong and processes die.
//!
//! Half of the histories write each batch to both datasets of a group. In half of them the rows of a batch are versions
//! of the same records, and consolidation separates older versions from the newest. Some histories retire old slices;
//! others move them elsewhere: they read and keep the rows, and drop the slice if it still holds the same. In half of
//! them two processes build an index, by which readers count rows or skip tiles. In a third, a process copies the
//! archive to another one, whose readers see only whole batches and which in the end equals the source.
//!
//! The [`model`] checks what readers see. A batch is visible as a whole or not at all, and in both datasets of a group
//! where these are read together, except for slices that were dropped. The state that a reader sees is one that some
//! call asked for, and no call that was acknowledged before the read began came after it. Rows are absent only where
//! they may have been retired, or where the process that moved them holds them. In the end every operation ends, no
//! interrupted write leaves anything behind, and verification finds no errors.
//!
//! A seed always gives the same history ([`calls`]): it determines time, chance and ids, and a history runs on one
//! thread.
//!
//! `CHRONOTILE_HISTORIES` is the number of histories, `CHRONOTILE_SEED` the first seed, `CHRONOTILE_REPEATED` the
//! number of histories that are run twice. With `CHRONOTILE_CALLS=1` a failure lists all calls to the engine and its
//! answers.
#![allow(clippy::unwrap_used)]

mod calls;
#[path = "../tests/archive/common.rs"]
mod common;
mod drops;
mod engine;
mod handle;
mod model;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_array::{ArrayRef, Int64Array, RecordBatch, UInt64Array};
use chronotile_archive::{
    Archive, ArchiveError, CellSelection, Comparison, CopyOptions, IndexBuildOptions, Predicate, ReadRequest,
    WriteOptions,
};
use chronotile_memory::MemoryStore;
use chronotile_store::{Outcome, Store};
use chronotile_types::{DatasetName, DatasetSpec, Membership, MergeRule, SliceOwner};
use futures::future::BoxFuture;
use tokio::time::Instant;

use calls::Calls;
use common::{HOUR, between, latest, read, spec};
use engine::{EngineConnection, FaultPlan, Prng, World};
use handle::{Handle, PAIR};
use model::{Model, ObservedRows, ReadRecord, Slices, WrittenBatch};

/// Seeds that found defects; every run includes them. A change that adds a call gives them other histories.
const FOUND: [u64; 7] = [5_062, 12_539, 27_868, 90_431, 164_360, 404_988, 749_985];
/// Number of batch names that writers share.
const NAMES: u64 = 2;
/// An operation that takes longer hangs: without faults none takes this long.
const HANGS: Duration = Duration::from_secs(6 * 3_600);

/// The kind of read by which a reader checks the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadKind {
    Rows,
    /// Rows with any existing tag: an index gives the tiles to read.
    Tags,
    /// Rows of all existing ids.
    Ids,
    /// Rows of the second dataset in the cells of those of the first.
    Cells,
    /// Counts of rows by the columns of an index, of one dataset.
    Counts,
    /// The number of rows of one dataset.
    Number,
    /// The newest row of each tag, of one dataset.
    Latest,
}

impl ReadKind {
    fn is_of_one(self) -> bool {
        matches!(self, Self::Counts | Self::Number | Self::Latest)
    }
}

/// The columns of the index.
const INDEXED: [&str; 3] = ["id", "tag", "note"];

/// The definitions: one dataset, or two of a group, with windows of different lengths unless they share their slices.
fn specs(grouped: bool, shared: bool, versions: bool) -> Vec<DatasetSpec> {
    let merge = if versions { MergeRule::Latest { version: Some("x".into()) } } else { MergeRule::Append };
    let spec = || DatasetSpec { merge: merge.clone(), ..spec() };
    if !grouped {
        return vec![spec()];
    }
    let group = Membership::of(DatasetName::new("both").unwrap());
    let owner = SliceOwner { dataset: spec().name, number: 0 };
    let slices_of = shared.then_some(owner);
    let window = if shared { spec().window } else { "2h".parse().unwrap() };
    let other = DatasetSpec { name: DatasetName::new(PAIR[1]).unwrap(), window, ..spec() };
    vec![
        DatasetSpec { group: Some(group.clone()), ..spec() },
        DatasetSpec { group: Some(Membership { slices_of, ..group }), ..other },
    ]
}

/// What a history does with old slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expiry {
    Stay,
    Go,
    /// Are copied elsewhere, then dropped.
    Move,
}

struct History {
    grouped: bool,
    shared: bool,
    versions: bool,
    indexed: bool,
    /// The target of copies; `None` if the archive is not copied.
    copy: Option<Arc<MemoryStore>>,
    /// Whether a process consolidates the copy, also while it is being made.
    copy_consolidated: bool,
    began: Instant,
    old: Expiry,
    /// Slices that end before this hour are old.
    hour: i64,
    world: Arc<World>,
    model: Model,
    chance: Prng,
    reads: Mutex<u64>,
}

impl History {
    /// The archive as one process opens it, with a clock of its own.
    fn archive(&self, url: &str, store: Arc<dyn Store>) -> Archive {
        let skew_us = self.chance.below(240_000_000) as i64 - 120_000_000;
        let (clock, bits) = (self.world.clone(), self.world.clone());
        Archive::on(url, store).in_simulation(move || clock.now_us() + skew_us, move || bits.id_bits())
    }

    fn source(&self, who: &'static str) -> Archive {
        self.archive("simulated:", EngineConnection::of(&self.world, who))
    }

    async fn open(&self, who: &'static str) -> Handle {
        self.handle(&self.source(who)).await
    }

    async fn handle(&self, archive: &Archive) -> Handle {
        match self.grouped {
            false => Handle::One(archive.dataset("records").await.unwrap()),
            true => Handle::Two(archive.group("both").await.unwrap()),
        }
    }

    /// Waits for a random time. Closing slices before a drop takes seconds, so other processes may wait long enough to
    /// overlap with it.
    async fn idle(&self, ms: u64) {
        let slow = self.old != Expiry::Stay && !self.world.is_one_step() && self.chance.below(2) == 0;
        tokio::time::sleep(Duration::from_millis(self.chance.below(if slow { 60 * ms } else { ms }))).await;
    }

    /// Lifetime of a process: below `ms` in one of `once_in` cases, unlimited otherwise.
    fn patience(&self, once_in: u64, ms: u64) -> Duration {
        if self.chance.below(once_in) == 0 { Duration::from_millis(self.chance.below(ms)) } else { HANGS }
    }

    /// Reads in a random way and checks what the reader sees of each batch.
    async fn look(&self, handle: &Handle, who: &'static str) {
        let by = match self.chance.below(8) {
            0 | 1 => ReadKind::Tags,
            2 => ReadKind::Counts,
            3 => ReadKind::Ids,
            // The model does not predict these with drops or versions.
            4 if !self.versions && self.old == Expiry::Stay => ReadKind::Number,
            5 if !self.versions && self.old == Expiry::Stay => ReadKind::Latest,
            // With drops, the datasets lose their old slices one after the other.
            6 if self.grouped && self.old == Expiry::Stay => ReadKind::Cells,
            _ => ReadKind::Rows,
        };
        self.look_by(by, handle, who).await;
    }

    async fn look_by(&self, by: ReadKind, handle: &Handle, who: &'static str) {
        let began = Instant::now();
        let part = match self.chance.below(4) {
            0 => ReadRequest { time: between(0, 2 * HOUR), ..ReadRequest::default() },
            _ => ReadRequest::default(),
        };
        let hours = if part.time.end.is_some() { 0..2 } else { 0..i64::MAX };
        let one = (self.chance.below(2) == 0 || by.is_of_one()).then(|| self.chance.below(2) as usize);
        let one = one.filter(|_| by != ReadKind::Cells);
        let newest = self.versions && self.chance.below(3) > 0;
        let part = ReadRequest { history: self.versions && !newest, ..part };
        let what = if newest { "newest versions" } else { "all" };
        self.world.note(who, move || format!("reads {what} of {one:?} by {by:?}"));
        let dataset = &handle.datasets()[one.filter(|_| self.grouped).unwrap_or(0)];
        let found = match by {
            ReadKind::Rows => handle.read(part, one).await,
            ReadKind::Cells => handle.read_in_cells(part).await,
            ReadKind::Ids => {
                let ids: Vec<ArrayRef> = vec![Arc::new(Int64Array::from(self.model.ids(self.versions)))];
                handle.read(ReadRequest { ids: Some(ids), ..part }, one).await
            }
            ReadKind::Tags => {
                let tags = Arc::new(Int64Array::from(vec![0, 1, 2]));
                let any = Predicate { column: "tag".into(), comparison: Comparison::In, values: tags };
                handle.read(ReadRequest { predicates: vec![any], ..part }, one).await
            }
            ReadKind::Counts => {
                dataset.count_by(part, &INDEXED.map(str::to_owned), true, None).await.map(|(counts, _)| vec![counts])
            }
            ReadKind::Number => dataset.count(part).await.map(|rows| {
                vec![
                    RecordBatch::try_from_iter([("rows", Arc::new(UInt64Array::from(vec![rows])) as ArrayRef)])
                        .unwrap(),
                ]
            }),
            ReadKind::Latest => {
                let tags: ArrayRef = Arc::new(Int64Array::from(vec![0, 1, 2]));
                latest(dataset, ReadRequest { cells: CellSelection::Keys(vec![tags]), ..part })
                    .await
                    .map(|rows| vec![rows])
            }
        };
        let found = match found {
            Ok(found) => found,
            Err(error) if error.outcome() != Outcome::Refused => return,
            Err(error) => panic!("{who} cannot read: {error}"),
        };
        *self.reads.lock().unwrap() += 1;
        self.world.note(who, || "has read".into());
        let datasets = if self.grouped { one.map_or(vec![0, 1], |one| vec![one]) } else { vec![0] };
        let mut seen = ObservedRows::default();
        let look = ReadRecord { who, datasets, hours, began, ended: Instant::now(), but: None };
        if by == ReadKind::Number {
            return self.model.judge_number(&look, found[0].column(0).as_primitive::<UInt64Type>().value(0));
        }
        for (dataset, rows) in look.datasets.iter().zip(&found) {
            match by {
                ReadKind::Counts => {
                    let window = handle.datasets()[*dataset].spec().window_ticks();
                    seen.enter_counts(*dataset, rows, window, self.versions);
                }
                _ => seen.enter(*dataset, rows, self.versions),
            }
        }
        if by == ReadKind::Latest {
            return self.model.judge_latest(&look, &seen);
        }
        if newest { self.model.judge_newest(&look, &seen) } else { self.model.judge(&look, &seen) }
    }

    /// Writes or removes a batch, or repeats the last write.
    async fn act(&self, handle: &Handle, who: &'static str, number: u64, last: &mut Option<(String, String)>) {
        let private = self.chance.below(4) == 0;
        let name = if private { format!("{who}{number}") } else { format!("n{}", self.chance.below(NAMES)) };
        let kind = self.chance.below(8);
        let note = format!("{name}-{who}{number}{}", if self.chance.below(3) == 0 { "long" } else { "" });
        let removes = kind == 0 || kind == 2 && self.old == Expiry::Move;
        let repeated = last.take().filter(|_| !removes && self.chance.below(4) == 0);
        let (name, note) = repeated.unwrap_or((name, note));
        let written = (!removes).then(|| WrittenBatch::of(&note));
        let at = self.model.begin(&name, written.clone());
        let (what, of) = (if removes { "to remove" } else { "to write" }, note.clone());
        self.world.note(who, move || format!("begins {what} {of}"));
        let patience = self.patience(5, 600);
        let result = {
            let work: BoxFuture<'_, Result<Option<u64>, ArchiveError>> = match &written {
                None => Box::pin(async { handle.remove(&name).await.map(Some) }),
                Some(written) => {
                    let rows = written.rows(&name, self.versions);
                    let replace = kind != 1;
                    let options = WriteOptions { batch: Some(name.clone()), replace, buffer_bytes: 0 };
                    let fails = self.chance.below(12) == 0;
                    Box::pin(async move { handle.write(&rows, fails, options).await.map(|()| None) })
                }
            };
            tokio::time::timeout(patience, work).await
        };
        match result {
            Err(_) => {
                assert!(patience < HANGS, "{who} never ended what it did to {name}");
                self.world.note(who, || "dies".into());
                self.model.end(&name, at, None, None);
            }
            Ok(Ok(removed)) => self.model.end(&name, at, Some(true), removed),
            Ok(Err(error)) => {
                let done = match error.outcome() {
                    Outcome::Unknown => None,
                    _ => Some(false),
                };
                self.world.note(who, move || format!("fails: {error}"));
                self.model.end(&name, at, done, None);
            }
        }
        *last = written.map(|_| (name, note));
        self.world.note(who, || "ends".into());
    }

    async fn writer(&self, who: &'static str, acts: u64, shared: Option<Handle>) {
        let mut handle = match shared {
            Some(shared) => shared,
            None => self.open(who).await,
        };
        let mut last = None;
        for number in 0..acts {
            self.idle(200).await;
            self.act(&handle, who, number, &mut last).await;
            if self.chance.below(3) == 0 {
                handle = self.open(who).await;
            }
        }
    }

    async fn reader(&self, who: &'static str, reads: u64, shared: Option<Handle>) {
        let handle = match shared {
            Some(shared) => shared,
            None => self.open(who).await,
        };
        for _ in 0..reads {
            self.idle(150).await;
            self.look(&handle, who).await;
        }
    }

    async fn consolidator(&self, rounds: u64) {
        let handle = self.open("k").await;
        for _ in 0..rounds {
            self.idle(300).await;
            let work = match &handle {
                Handle::One(_) => handle.consolidate(Some(0)),
                Handle::Two(_) => handle.consolidate([Some(0), Some(1), None][self.chance.below(3) as usize]),
            };
            let patience = self.patience(4, 300);
            self.world.note("k", || "consolidates".into());
            match tokio::time::timeout(patience, work).await {
                Ok(Err(error)) => assert!(error.outcome() != Outcome::Refused, "{error}"),
                Ok(Ok(failed)) => assert_eq!(failed, vec![]),
                Err(_) => assert!(patience < HANGS, "consolidation never ends"),
            }
            self.world.note("k", || "ends".into());
        }
    }

    /// Updates indexes from time to time.
    async fn indexer(&self, who: &'static str, rounds: u64) {
        let mut handle = self.open(who).await;
        for _ in 0..rounds {
            self.idle(300).await;
            let datasets = handle.datasets();
            let dataset = &datasets[self.chance.below(datasets.len() as u64) as usize];
            let options = IndexBuildOptions {
                lease_s: 1 + self.chance.below(3),
                wait: self.chance.below(2) == 0,
                rebuild: self.chance.below(4) == 0,
                ..IndexBuildOptions::default()
            };
            let work = dataset.build_indexes(&options, None);
            let patience = self.patience(4, 300);
            self.world.note(who, || "builds indexes".into());
            match tokio::time::timeout(patience, work).await {
                Ok(Err(error)) => assert!(error.outcome() != Outcome::Refused, "{who} cannot build indexes: {error}"),
                Ok(Ok(_)) => {}
                Err(_) => assert!(patience < HANGS, "an index is never built"),
            }
            self.world.note(who, || "ends".into());
            if self.chance.below(3) == 0 {
                handle = self.open(who).await;
            }
        }
    }

    /// Updates indexes after the faults have stopped; counts then come from the indexes alone.
    async fn index_last(&self, handle: &Handle) {
        for dataset in handle.datasets() {
            let report = dataset.build_indexes(&IndexBuildOptions::default(), None).await.unwrap();
            let (_, used) =
                dataset.count_by(ReadRequest::default(), &INDEXED.map(str::to_owned), true, None).await.unwrap();
            let unknown = used.tiles_unindexed + used.tiles_changed;
            let is_used = used.index.is_some() || report.windows == 0;
            assert!(is_used && unknown == 0, "an index that was just built does not know all: {used:?}");
            assert!(self.versions || used.tiles_read == 0, "{used:?}");
        }
        self.look_by(ReadKind::Counts, handle, "z").await;
        self.look_by(ReadKind::Tags, handle, "z").await;
    }

    /// Copies the archive from time to time and checks the copy, which shows whole batches, each as it was at some
    /// time.
    async fn copier(&self, rounds: u64) {
        let Some(target) = &self.copy else { return };
        for _ in 0..rounds {
            self.idle(300).await;
            let (source, target) = (self.source("c"), self.archive("copy:", target.clone()));
            let options = CopyOptions { passes_max: 1 + self.chance.below(3) as u32, ..CopyOptions::default() };
            let patience = self.patience(3, 600);
            self.world.note("c", || "copies".into());
            let copying = tokio::time::timeout(patience, source.copy_to(&target, options, None));
            let (copied, ()) = tokio::join!(copying, self.consolidate_copy(&target));
            match copied {
                Ok(Err(error)) => assert!(error.outcome() != Outcome::Refused, "c cannot copy: {error}"),
                Ok(Ok(report)) => assert!(report.datasets.iter().all(|dataset| dataset.ok()), "{report:?}"),
                Err(_) => assert!(patience < HANGS, "a copy never ends"),
            }
            self.world.note("c", || "ends".into());
            if !target.dataset_names().await.unwrap().is_empty() {
                self.look_at_copy(&target, self.began).await;
            }
        }
    }

    /// Consolidates the copy at a random moment, if it exists then.
    async fn consolidate_copy(&self, target: &Archive) {
        if !self.copy_consolidated {
            return;
        }
        self.idle(300).await;
        if target.dataset_names().await.unwrap().len() < if self.grouped { PAIR.len() } else { 1 } {
            return;
        }
        let handle = self.handle(target).await;
        self.world.note("c", || "consolidates the copy".into());
        match handle.consolidate(None).await {
            Ok(failed) => assert_eq!(failed, vec![], "the copy cannot be consolidated"),
            Err(error) => assert!(error.outcome() != Outcome::Refused, "the copy cannot be consolidated: {error}"),
        }
    }

    /// Checks that readers of the copy see a state that the source had since `began`.
    async fn look_at_copy(&self, target: &Archive, began: Instant) {
        let handle = self.handle(target).await;
        for dataset in 0..handle.datasets().len() {
            let request = ReadRequest { history: self.versions, ..ReadRequest::default() };
            let rows = read(&handle.datasets()[dataset], request).await.unwrap();
            let mut seen = ObservedRows::default();
            seen.enter(dataset, &rows, self.versions);
            let look = ReadRecord {
                who: "copy",
                datasets: vec![dataset],
                hours: 0..i64::MAX,
                began,
                ended: Instant::now(),
                but: None,
            };
            self.model.judge(&look, &seen);
        }
    }

    /// Copies the archive after the faults have stopped; the copy then equals the source.
    async fn copy_last(&self) {
        let Some(target) = &self.copy else { return };
        let (began, target) = (Instant::now(), self.archive("copy:", target.clone()));
        let report = self.source("z").copy_to(&target, CopyOptions::default(), None).await.unwrap();
        assert!(report.datasets.iter().all(|dataset| dataset.ok() && dataset.caught_up), "{report:?}");
        self.look_at_copy(&target, began).await;
    }
}

async fn run(history: &Arc<History>) {
    {
        let world = history.world.clone();
        let (bits, clock) = (world.clone(), world.clone());
        let archive =
            Archive::on("memory:", world.memory.clone()).in_simulation(move || clock.now_us(), move || bits.id_bits());
        for spec in specs(history.grouped, history.shared, history.versions) {
            let dataset = archive.create(spec, true).await.unwrap();
            if history.indexed {
                dataset.create_index("rows", &INDEXED.map(str::to_owned)).await.unwrap();
            }
        }
    }
    // One writer and two readers may share a process and its caches.
    let shared = history.open("p").await;
    let own = |alone: bool| (!alone).then(|| shared.clone());
    let alone = history.chance.below(2) == 0;
    // Each process is a task of its own, so that a waiting one does not block the others.
    let (one, other, seconds) = (own(alone), own(alone), history.chance.below(2) * 2);
    let (second_reader, of) = (own(alone), || history.clone());
    let (a, b, r, s, t, k, d, e, i, j, c) = (of(), of(), of(), of(), of(), of(), of(), of(), of(), of(), of());
    let builds = if history.indexed { 4 } else { 0 };
    let processes = [
        tokio::spawn(async move { a.writer("a", 6, None).await }),
        tokio::spawn(async move { b.writer("b", 6, one).await }),
        tokio::spawn(async move { r.reader("r", 10, other).await }),
        tokio::spawn(async move { s.reader("s", 10, second_reader).await }),
        tokio::spawn(async move { t.reader("t", 4, None).await }),
        tokio::spawn(async move { k.consolidator(5).await }),
        tokio::spawn(async move { d.dropper("d", 6).await }),
        tokio::spawn(async move { e.dropper("e", seconds).await }),
        tokio::spawn(async move { i.indexer("i", builds).await }),
        tokio::spawn(async move { j.indexer("j", builds).await }),
        tokio::spawn(async move { c.copier(4).await }),
    ];
    for process in processes {
        if let Err(error) = process.await {
            std::panic::resume_unwind(error.into_panic());
        }
    }
    history.world.calm_down();
    // An attempt that was interrupted counts as dead after a day.
    tokio::time::sleep(Duration::from_secs(30 * 3_600)).await;
    let last = history.open("z").await;
    history.look(&last, "z").await;
    history.end_all_drops(&last).await;
    history.look(&last, "z").await;
    for _ in 0..2 {
        assert_eq!(last.consolidate(None).await.unwrap(), vec![]);
        history.look(&last, "z").await;
    }
    verify(history, &last).await;
    if history.indexed {
        history.index_last(&last).await;
    }
    history.copy_last().await;
    history.drop_last(&last).await;
    history.look(&last, "z").await;
    if history.old != Expiry::Stay {
        verify(history, &last).await;
        history.copy_last().await;
    }
    history.model.judge_counts(last.datasets().len());
}

/// Verification finds no errors after all operations have ended, except chunks that the engine brought back.
async fn verify(history: &History, last: &Handle) {
    for dataset in last.datasets() {
        let report = dataset.verify(None).await.unwrap();
        let returns = report.foreign.len();
        assert!(
            report.damage.is_empty() && report.rows_missing.is_empty() && report.records.is_empty(),
            "verification finds {report:?}"
        );
        assert_eq!(report.batches_unfinished, 0, "interrupted writes left something behind");
        if returns > 0 {
            dataset.remove_foreign().await.unwrap();
            history.look(last, "z").await;
            assert!(dataset.verify(None).await.unwrap().ok());
        }
    }
}

/// The result of one history.
struct HistoryResult {
    /// The number of reads, or the failure with its log.
    reads: Result<u64, String>,
    /// The calls to the engine and its answers, if they were recorded.
    calls: Vec<String>,
}

/// Runs the history of a seed.
fn history(seed: u64, note_calls: bool) -> HistoryResult {
    let chance = Prng::new(seed ^ 0x5eed);
    let weather = FaultPlan {
        one_step: chance.below(3) == 0,
        fails: [0, 60, 200][chance.below(3) as usize],
        returns: [0, 0, 12][chance.below(3) as usize],
        slow_ms: [1, 8, 40][chance.below(3) as usize],
        stalls: [0, 150, 40][chance.below(3) as usize],
        looks_again: seed % 8 == 5,
    };
    let log = Arc::new(Mutex::new(None::<Arc<World>>));
    let kept = log.clone();
    let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async move {
            let world = World::new(weather, seed, note_calls.then(Calls::default));
            *kept.lock().unwrap() = Some(world.clone());
            let (grouped, versions, indexed) = (chance.below(2) == 0, chance.below(2) == 0, chance.below(2) == 0);
            let (reads, shared) = (Mutex::default(), seed % 4 >= 2);
            let copy = seed.is_multiple_of(3).then(Arc::default);
            let copy_consolidated = seed % 12 == 3;
            let old = [Expiry::Stay, Expiry::Go, Expiry::Move, Expiry::Move][chance.below(4) as usize];
            let (hour, model) = (2 + 2 * chance.below(2) as i64, Model::new(Slices { shared: grouped && shared }));
            let history = Arc::new(History {
                grouped,
                shared,
                versions,
                indexed,
                copy,
                copy_consolidated,
                began: Instant::now(),
                old,
                hour,
                world,
                model,
                chance,
                reads,
            });
            run(&history).await;
            *history.reads.lock().unwrap()
        })
    }));
    let world = log.lock().unwrap().take();
    let reads = ran.map_err(|panic| {
        let text =
            panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        let lines = world.as_ref().map_or_else(Vec::new, |world| world.lines());
        format!("seed {seed}, {weather:?}: {}\n{}", text.unwrap_or_default(), lines.join("\n"))
    });
    HistoryResult { reads, calls: world.and_then(|world| world.calls.as_ref().map(Calls::take)).unwrap_or_default() }
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// Runs `work` for each seed on all cores until one fails, and returns the sum of its results.
fn for_each_seed(seeds: &[u64], work: impl Fn(u64) -> Result<u64, String> + Sync) -> u64 {
    let next = AtomicUsize::new(0);
    let (sum, failure) = (AtomicU64::new(0), Mutex::new(None));
    let run = || {
        // A pool of this thread alone: CPU-bound work then waits for no other thread. Fails if the thread is in a pool
        // already.
        let _ = rayon::ThreadPoolBuilder::new().num_threads(1).use_current_thread().build();
        loop {
            let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) else { return };
            if failure.lock().unwrap().is_some() {
                return;
            }
            match work(*seed) {
                Ok(number) => _ = sum.fetch_add(number, Ordering::Relaxed),
                Err(text) => *failure.lock().unwrap() = Some(text),
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, std::num::NonZero::get) {
            scope.spawn(run);
        }
    });
    let failure = failure.into_inner().unwrap();
    assert!(failure.is_none(), "{}", failure.unwrap());
    sum.into_inner()
}

#[test]
fn no_history_loses_mixes_or_brings_back_rows() {
    let (histories, first) = (setting("CHRONOTILE_HISTORIES", 20_000), setting("CHRONOTILE_SEED", 1));
    let note_calls = setting("CHRONOTILE_CALLS", 0) > 0;
    let seeds: Vec<u64> = FOUND.into_iter().chain(first..first + histories).collect();
    let reads = for_each_seed(&seeds, |seed| {
        let ran = history(seed, note_calls);
        ran.reads.map_err(|text| format!("{text}\n{}", ran.calls.join("\n")))
    });
    println!("{} histories with {reads} reads", seeds.len());
}

#[test]
fn a_seed_repeats_its_history() {
    let (histories, first) = (setting("CHRONOTILE_REPEATED", 40), setting("CHRONOTILE_SEED", 1));
    let seeds: Vec<u64> = (first..first + histories).collect();
    for_each_seed(&seeds, |seed| {
        let (first, again) = (history(seed, true), history(seed, true));
        match calls::first_difference(&first.calls, &again.calls) {
            Some(difference) => Err(format!("seed {seed} goes another way: {difference}")),
            None if first.reads != again.reads => {
                Err(format!("seed {seed}: {:?}, then {:?}", first.reads, again.reads))
            }
            None => Ok(0),
        }
    });
}
