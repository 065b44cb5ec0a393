//! The protocol of batches under simulated time: processes that write, replace and remove the same batches, consolidate, read, and drop
//! slices, on an engine that is slow, loses answers and brings removed chunks back, with clocks that are wrong and processes that die.
//!
//! In every other history the batches are those of a group of two datasets, and are written to both. In every other one their rows are
//! versions of the same records, of which the older are parted from the newest. In some, old slices are retired; in others they are
//! moved elsewhere: read, kept, and dropped if they hold what was read still. In every other one there is an index, which two processes
//! build, and readers count rows by it or leave out tiles. In a third a process copies the archive to another one, whose readers see whole
//! batches all the while, and in the end what the source has.
//!
//! What readers see is held against what they may see ([`model`]). A batch is whole or not there, in both datasets of a group where these
//! are read together, but for slices that were dropped. The state that a reader sees of it is one
//! that some call has asked for, and no call that was acknowledged before the read began has come after that one. Rows are absent only
//! where they may have been retired, or where who moved them has them. In the end everything
//! ends, nothing is left of writes that were cut off, and verification finds nothing wrong.
//!
//! A seed gives the same history each time ([`calls`]): time, chance and ids come from it, and all of a history runs on one thread.
//!
//! `CHRONOTILE_HISTORIES` is the number of histories, `CHRONOTILE_SEED` the first seed, `CHRONOTILE_REPEATED` the number of histories that
//! are run twice. With `CHRONOTILE_CALLS=1` a failure tells all that was asked of the engine, and its answers.
#![allow(clippy::unwrap_used)]

mod calls;
#[path = "../tests/archive/common.rs"]
mod common;
mod engine;
mod model;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_array::{ArrayRef, Int64Array, RecordBatch, UInt64Array};
use arrow_select::concat::concat_batches;
use chronotile_archive::{
    Archive, ArchiveError, Comparison, ConsolidateOptions, CopyOptions, Dataset, Group, IndexBuildOptions, Place,
    Predicate, ReadRequest, RetireLimit, Rows, SliceInfo, TileFailure, WriteOptions,
};
use chronotile_memory::MemoryStore;
use chronotile_store::{Outcome, Store};
use chronotile_types::{DatasetName, DatasetSpec, Membership, MergeRule, SliceId, SliceOwner};
use futures::future::BoxFuture;
use tokio::time::Instant;

use calls::Calls;
use common::{HOUR, between, latest, read, spec};
use engine::{Chance, Link, Weather, World};
use model::{Look, Model, Seen, Slices, Written};

/// Seeds that have found defects, beside those that every run begins with. A change that adds a call gives them other histories.
const FOUND: [u64; 7] = [5_062, 12_539, 27_868, 90_431, 164_360, 404_988, 749_985];
/// Names that writers share.
const NAMES: u64 = 2;
/// Longer than anything takes in calm weather.
const HANGS: Duration = Duration::from_secs(6 * 3_600);

/// Rows of tests are few: each older version is parted.
fn parting() -> ConsolidateOptions {
    ConsolidateOptions { older_min: Some(1), ..ConsolidateOptions::default() }
}

/// What a process writes to and reads from.
#[derive(Clone)]
enum Handle {
    One(Dataset),
    Two(Group),
}

/// The datasets of a group.
const PAIR: [&str; 2] = ["records", "others"];

impl Handle {
    fn datasets(&self) -> &[Dataset] {
        match self {
            Self::One(dataset) => std::slice::from_ref(dataset),
            Self::Two(group) => group.datasets(),
        }
    }

    async fn remove(&self, name: &str) -> Result<u64, ArchiveError> {
        match self {
            Self::One(dataset) => dataset.remove_batch(name).await,
            Self::Two(group) => group.remove_batch(name).await,
        }
    }

    /// Consolidates one dataset, or both together where `None`; the tiles that failed.
    async fn consolidate(&self, dataset: Option<usize>) -> Result<Vec<TileFailure>, ArchiveError> {
        match (self, dataset) {
            (Self::Two(group), None) => {
                let reports = group.consolidate(&PAIR, parting(), None).await?;
                Ok(reports.into_iter().flat_map(|(_, report)| report.failed).collect())
            }
            (_, dataset) => Ok(self.datasets()[dataset.unwrap_or(0)].consolidate(parting(), None).await?.failed),
        }
    }

    /// Drops the slices that end before an hour, or says which they are: by dataset.
    async fn retire(&self, hour: i64, dry_run: bool) -> Result<Vec<Vec<SliceInfo>>, ArchiveError> {
        let limit = RetireLimit::Before(chronotile_types::Instant::NativeTicks(hour * HOUR));
        match self {
            Self::One(dataset) => Ok(vec![dataset.retire(limit, dry_run).await?]),
            Self::Two(group) => {
                let retired = group.retire(&PAIR, limit, dry_run).await?;
                Ok(retired.into_iter().map(|(_, slices)| slices).collect())
            }
        }
    }

    /// Drops those slices of datasets, which share them, that have these fingerprints still; says which went.
    async fn retire_unchanged(&self, of: &[usize], wanted: &[(SliceId, u128)]) -> Result<Vec<SliceInfo>, ArchiveError> {
        match self {
            Self::One(dataset) => dataset.retire_unchanged(wanted).await,
            Self::Two(group) => {
                let names: Vec<&str> = of.iter().map(|dataset| PAIR[*dataset]).collect();
                Ok(group.retire_unchanged(&names, wanted).await?.swap_remove(0).1)
            }
        }
    }

    /// Writes the rows, one at a time, and the failure of the input if there is one.
    async fn write(&self, rows: &RecordBatch, fails: bool, options: WriteOptions) -> Result<(), ArchiveError> {
        let parts = || (0..rows.num_rows()).map(|row| Ok(rows.slice(row, 1))).collect::<Vec<_>>();
        let mut last: Vec<Result<RecordBatch, arrow_schema::ArrowError>> = parts();
        if fails {
            last.push(Err(arrow_schema::ArrowError::ComputeError("the input's own".into())));
        }
        match self {
            Self::One(dataset) => dataset.write(last, options).await.map(drop),
            Self::Two(group) => group.write(vec![(PAIR[0], parts()), (PAIR[1], last)], options).await.map(drop),
        }
    }

    /// Rows of one dataset, as who moves them elsewhere reads them.
    async fn read_every_write(&self, dataset: usize, request: ReadRequest) -> Result<RecordBatch, ArchiveError> {
        read(&self.datasets()[dataset].seeing_every_write(), request).await
    }

    /// Rows of each dataset as of one moment, or of one dataset.
    async fn read(&self, request: ReadRequest, one: Option<usize>) -> Result<Vec<RecordBatch>, ArchiveError> {
        match (self, one) {
            (Self::One(dataset), _) => Ok(vec![read(dataset, request).await?]),
            (Self::Two(group), Some(one)) => Ok(vec![read(&group.datasets()[one], request).await?]),
            (Self::Two(group), None) => Ok(whole(group.read(PAIR.map(|name| (name, request.clone())).to_vec()).await?)),
        }
    }

    /// Rows of both datasets as of one moment, those of the second in the cells of the first alone, where they all are.
    async fn read_in_cells(&self, request: ReadRequest) -> Result<Vec<RecordBatch>, ArchiveError> {
        let Self::Two(group) = self else { return self.read(request, None).await };
        let [first, second] = PAIR;
        Ok(whole(group.read_in_cells_of((first, request.clone()), "tag", vec![(second, request)]).await?))
    }
}

fn whole(found: Vec<Rows>) -> Vec<RecordBatch> {
    found.iter().map(|(schema, batches)| concat_batches(schema, batches).unwrap()).collect()
}

/// How a reader gets to know the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Rows,
    /// Rows that hold any of the tags there are, which an index tells the tiles of.
    Tags,
    /// Rows of all ids that there are.
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

impl By {
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

/// What becomes of old slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Old {
    Stay,
    Go,
    /// Are kept elsewhere, and go.
    Move,
}

struct History {
    grouped: bool,
    shared: bool,
    versions: bool,
    indexed: bool,
    /// What the archive is copied to, where it is.
    copy: Option<Arc<MemoryStore>>,
    /// Whether somebody consolidates the copy, also while it is made.
    copy_consolidated: bool,
    began: Instant,
    old: Old,
    /// Slices that end before are old.
    hour: i64,
    world: Arc<World>,
    model: Model,
    chance: Chance,
    reads: Mutex<u64>,
}

impl History {
    /// The archive as a process reaches it, which goes by a clock of its own.
    fn archive(&self, url: &str, store: Arc<dyn Store>) -> Archive {
        let skew_us = self.chance.below(240_000_000) as i64 - 120_000_000;
        let (clock, bits) = (self.world.clone(), self.world.clone());
        Archive::on(url, store).in_simulation(move || clock.now_us() + skew_us, move || bits.id_bits())
    }

    fn source(&self, who: &'static str) -> Archive {
        self.archive("simulated:", Link::of(&self.world, who))
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

    /// Waits a while. Where slices are closed before they are dropped, which takes some seconds, others go on meanwhile.
    async fn idle(&self, ms: u64) {
        let slow = self.old != Old::Stay && !self.world.is_one_step() && self.chance.below(2) == 0;
        tokio::time::sleep(Duration::from_millis(self.chance.below(if slow { 60 * ms } else { ms }))).await;
    }

    /// How long a process lives: once in so many times, not longer than this.
    fn patience(&self, once_in: u64, ms: u64) -> Duration {
        if self.chance.below(once_in) == 0 { Duration::from_millis(self.chance.below(ms)) } else { HANGS }
    }

    /// Holds what a reader sees of each batch against what it may see.
    async fn look(&self, handle: &Handle, who: &'static str) {
        let by = match self.chance.below(8) {
            0 | 1 => By::Tags,
            2 => By::Counts,
            3 => By::Ids,
            // What drops and versions make of these is not worked out.
            4 if !self.versions && self.old == Old::Stay => By::Number,
            5 if !self.versions && self.old == Old::Stay => By::Latest,
            // The datasets' old slices go one after the other.
            6 if self.grouped && self.old == Old::Stay => By::Cells,
            _ => By::Rows,
        };
        self.look_by(by, handle, who).await;
    }

    async fn look_by(&self, by: By, handle: &Handle, who: &'static str) {
        let began = Instant::now();
        let part = match self.chance.below(4) {
            0 => ReadRequest { time: between(0, 2 * HOUR), ..ReadRequest::default() },
            _ => ReadRequest::default(),
        };
        let hours = if part.time.end.is_some() { 0..2 } else { 0..i64::MAX };
        let one = (self.chance.below(2) == 0 || by.is_of_one()).then(|| self.chance.below(2) as usize);
        let one = one.filter(|_| by != By::Cells);
        let newest = self.versions && self.chance.below(3) > 0;
        let part = ReadRequest { history: self.versions && !newest, ..part };
        let what = if newest { "newest versions" } else { "all" };
        self.world.note(who, move || format!("reads {what} of {one:?} by {by:?}"));
        let dataset = &handle.datasets()[one.filter(|_| self.grouped).unwrap_or(0)];
        let found = match by {
            By::Rows => handle.read(part, one).await,
            By::Cells => handle.read_in_cells(part).await,
            By::Ids => {
                let ids: Vec<ArrayRef> = vec![Arc::new(Int64Array::from(self.model.ids(self.versions)))];
                handle.read(ReadRequest { ids: Some(ids), ..part }, one).await
            }
            By::Tags => {
                let tags = Arc::new(Int64Array::from(vec![0, 1, 2]));
                let any = Predicate { column: "tag".into(), comparison: Comparison::In, values: tags };
                handle.read(ReadRequest { predicates: vec![any], ..part }, one).await
            }
            By::Counts => {
                dataset.count_by(part, &INDEXED.map(str::to_owned), true, None).await.map(|(counts, _)| vec![counts])
            }
            By::Number => dataset.count(part).await.map(|rows| {
                vec![
                    RecordBatch::try_from_iter([("rows", Arc::new(UInt64Array::from(vec![rows])) as ArrayRef)])
                        .unwrap(),
                ]
            }),
            By::Latest => {
                let tags: ArrayRef = Arc::new(Int64Array::from(vec![0, 1, 2]));
                latest(dataset, ReadRequest { place: Place::Keys(vec![tags]), ..part }).await.map(|rows| vec![rows])
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
        let mut seen = Seen::default();
        let look = Look { who, datasets, hours, began, ended: Instant::now(), but: None };
        if by == By::Number {
            return self.model.judge_number(&look, found[0].column(0).as_primitive::<UInt64Type>().value(0));
        }
        for (dataset, rows) in look.datasets.iter().zip(&found) {
            match by {
                By::Counts => {
                    let window = handle.datasets()[*dataset].spec().window_ticks();
                    seen.enter_counts(*dataset, rows, window, self.versions);
                }
                _ => seen.enter(*dataset, rows, self.versions),
            }
        }
        if by == By::Latest {
            return self.model.judge_latest(&look, &seen);
        }
        if newest { self.model.judge_newest(&look, &seen) } else { self.model.judge(&look, &seen) }
    }

    /// Changes a batch, or repeats what was asked for last.
    async fn act(&self, handle: &Handle, who: &'static str, number: u64, last: &mut Option<(String, String)>) {
        let private = self.chance.below(4) == 0;
        let name = if private { format!("{who}{number}") } else { format!("n{}", self.chance.below(NAMES)) };
        let kind = self.chance.below(8);
        let note = format!("{name}-{who}{number}{}", if self.chance.below(3) == 0 { "long" } else { "" });
        let removes = kind == 0 || kind == 2 && self.old == Old::Move;
        let repeated = last.take().filter(|_| !removes && self.chance.below(4) == 0);
        let (name, note) = repeated.unwrap_or((name, note));
        let written = (!removes).then(|| Written::of(&note));
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

    /// Brings indexes up to date from time to time.
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

    /// Brings indexes up to date once nothing fails, after which counts come from them alone.
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
        self.look_by(By::Counts, handle, "z").await;
        self.look_by(By::Tags, handle, "z").await;
    }

    /// Copies the archive from time to time, and looks at the copy. It shows whole batches, each as it was at some time.
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

    /// Consolidates the copy at some moment, if it is there by then.
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

    /// Holds what readers of the copy see against what was there since some time.
    async fn look_at_copy(&self, target: &Archive, began: Instant) {
        let handle = self.handle(target).await;
        for dataset in 0..handle.datasets().len() {
            let request = ReadRequest { history: self.versions, ..ReadRequest::default() };
            let rows = read(&handle.datasets()[dataset], request).await.unwrap();
            let mut seen = Seen::default();
            seen.enter(dataset, &rows, self.versions);
            let look = Look {
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

    /// Copies the archive once nothing fails: then the copy has what it has.
    async fn copy_last(&self) {
        let Some(target) = &self.copy else { return };
        let (began, target) = (Instant::now(), self.archive("copy:", target.clone()));
        let report = self.source("z").copy_to(&target, CopyOptions::default(), None).await.unwrap();
        assert!(report.datasets.iter().all(|dataset| dataset.ok() && dataset.caught_up), "{report:?}");
        self.look_at_copy(&target, began).await;
    }

    /// How long a process that drops slices lives where it dies.
    fn drop_patience(&self) -> Duration {
        self.patience(3, if self.world.is_one_step() { 400 } else { 15_000 })
    }

    /// Drops old slices, which keeps nobody from writing to them again.
    async fn retire(&self, handle: &Handle, who: &'static str, patience: Duration) -> Result<(), ArchiveError> {
        let at = self.model.begin_retire(self.model.slices.before(self.hour), None);
        self.world.note(who, || "retires".into());
        let result = tokio::time::timeout(patience, handle.retire(self.hour, false)).await;
        self.end_retire(who, at, patience, result.map(|result| result.map(|_| true))).await.map(drop)
    }

    /// Notes how a drop has ended, that of all slices where it says so; `None` where nobody knows.
    async fn end_retire<E>(
        &self,
        who: &'static str,
        at: usize,
        patience: Duration,
        result: Result<Result<bool, ArchiveError>, E>,
    ) -> Result<Option<bool>, ArchiveError> {
        let done = result.as_ref().ok().and_then(|result| result.as_ref().ok()).copied();
        self.model.end_retire(at, done);
        match result {
            Err(_) => {
                assert!(patience < HANGS, "a drop never ends");
                self.world.note(who, || "dies".into());
                Ok(None)
            }
            Ok(Ok(done)) => {
                self.world.note(who, move || format!("ends: {}", if done { "dropped" } else { "changed" }));
                Ok(Some(done))
            }
            Ok(Err(error)) => {
                let text = error.to_string();
                self.world.note(who, move || format!("fails: {text}"));
                assert!(error.outcome() != Outcome::Refused, "{who} cannot drop slices: {error}");
                Err(error)
            }
        }
    }

    /// Ends drops that were cut off.
    async fn end_drops(&self, handle: &Handle, who: &'static str, patience: Duration) -> Result<(), ArchiveError> {
        for set in self.sets() {
            let at = self.model.begin_retire([].into(), None);
            self.world.note(who, || "ends drops".into());
            let result = tokio::time::timeout(patience, handle.retire_unchanged(&set, &[])).await;
            self.end_retire(who, at, patience, result.map(|result| result.map(|_| true))).await?;
        }
        Ok(())
    }

    /// The datasets by the slices that they have.
    fn sets(&self) -> Vec<Vec<usize>> {
        match (self.grouped, self.shared) {
            (false, _) => vec![vec![0]],
            (true, false) => vec![vec![0], vec![1]],
            (true, true) => vec![vec![0, 1]],
        }
    }

    /// Moves old slices elsewhere: reads and keeps what each holds, then drops it if it holds the same still. Says whether all are gone.
    async fn move_old(&self, handle: &Handle, who: &'static str, dies: bool) -> Result<bool, ArchiveError> {
        let patience = || if dies { self.drop_patience() } else { HANGS };
        self.end_drops(handle, who, patience()).await?;
        let mut all = true;
        for set in self.sets() {
            let mut slices: BTreeMap<(i64, i64), (SliceId, u128)> = BTreeMap::new();
            let found = handle.retire(self.hour, true).await?;
            slices.extend(found[set[0]].iter().map(|info| (info.ticks, (info.slice, info.fingerprint))));
            for ((start, end), wanted) in slices {
                let (began, mut copy) = (Instant::now(), Seen::default());
                for dataset in &set {
                    let part =
                        ReadRequest { time: between(start, end), history: self.versions, ..ReadRequest::default() };
                    copy.enter(*dataset, &handle.read_every_write(*dataset, part).await?, self.versions);
                }
                let hours = start / HOUR..end / HOUR;
                for dataset in &set {
                    // Each is as of a moment of its own.
                    let look = Look {
                        who,
                        datasets: vec![*dataset],
                        hours: hours.clone(),
                        began,
                        ended: Instant::now(),
                        but: None,
                    };
                    self.model.judge(&look, &copy.only(*dataset));
                }
                let slice = self.model.slices.at(set[0], hours.start);
                let began = Instant::now();
                let at = self.model.begin_retire([slice].into(), Some(copy.clone()));
                self.world.note(who, move || format!("moves slice {slice:?}"));
                let patience = patience();
                let result = tokio::time::timeout(patience, handle.retire_unchanged(&set, &[wanted])).await;
                let result = result.map(|result| result.map(|dropped| !dropped.is_empty()));
                let done = self.end_retire(who, at, patience, result).await?;
                if done == Some(true) {
                    // What was kept is what was there when the slice was dropped.
                    let look = Look { who, datasets: set.clone(), hours, began, ended: Instant::now(), but: Some(at) };
                    self.model.judge(&look, &copy);
                }
                all &= done == Some(true);
            }
        }
        Ok(all)
    }

    /// Drops old slices from time to time, or moves them elsewhere.
    async fn dropper(&self, who: &'static str, rounds: u64) {
        let mut handle = self.open(who).await;
        for _ in 0..rounds {
            self.idle(300).await;
            // An error tells that others are at it, or that nobody knows.
            match self.old {
                Old::Stay => return,
                Old::Go => _ = self.retire(&handle, who, self.drop_patience()).await,
                Old::Move => {
                    if let Err(error) = self.move_old(&handle, who, true).await {
                        assert!(error.outcome() != Outcome::Refused, "{who} cannot move slices: {error}");
                    }
                }
            }
            if self.chance.below(3) == 0 {
                handle = self.open(who).await;
            }
        }
    }

    /// Ends drops that were cut off, once nothing fails.
    async fn end_all_drops(&self, handle: &Handle) {
        if self.old != Old::Stay {
            self.end_drops(handle, "z", HANGS).await.unwrap();
        }
    }

    /// Drops old slices once nothing fails.
    async fn drop_last(&self, handle: &Handle) {
        match self.old {
            Old::Stay => {}
            Old::Go => self.retire(handle, "z", HANGS).await.unwrap(),
            Old::Move => assert!(self.move_old(handle, "z", false).await.unwrap(), "a slice in no use is not dropped"),
        }
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
    // One writer and two readers may share a process, and what it knows.
    let shared = history.open("p").await;
    let own = |alone: bool| (!alone).then(|| shared.clone());
    let alone = history.chance.below(2) == 0;
    // Each process is a task of its own, so that one that waits costs the others nothing.
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
    // Whoever died is taken to be dead after a day.
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
    if history.old != Old::Stay {
        verify(history, &last).await;
        history.copy_last().await;
    }
    history.model.judge_counts(last.datasets().len());
}

/// Verification finds nothing wrong once everything has ended, but for chunks that came back.
async fn verify(history: &History, last: &Handle) {
    for dataset in last.datasets() {
        let report = dataset.verify(None).await.unwrap();
        let returns = report.foreign.len();
        assert!(
            report.damage.is_empty() && report.rows_missing.is_empty() && report.records.is_empty(),
            "verification finds {report:?}"
        );
        assert_eq!(report.batches_unfinished, 0, "something is left of writes that were cut off");
        if returns > 0 {
            dataset.remove_foreign().await.unwrap();
            history.look(last, "z").await;
            assert!(dataset.verify(None).await.unwrap().ok());
        }
    }
}

/// What became of one history.
struct Ran {
    /// How many reads it had, or what went wrong, with the log of it.
    reads: Result<u64, String>,
    /// What was asked of the engine, and answered, where that was to be noted.
    calls: Vec<String>,
}

/// One history.
fn history(seed: u64, note_calls: bool) -> Ran {
    let chance = Chance::new(seed ^ 0x5eed);
    let weather = Weather {
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
            let old = [Old::Stay, Old::Go, Old::Move, Old::Move][chance.below(4) as usize];
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
    Ran { reads, calls: world.and_then(|world| world.calls.as_ref().map(Calls::take)).unwrap_or_default() }
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// Runs work for each seed on all cores, until one fails; the sum of what it gave.
fn for_each_seed(seeds: &[u64], work: impl Fn(u64) -> Result<u64, String> + Sync) -> u64 {
    let next = AtomicUsize::new(0);
    let (sum, failure) = (AtomicU64::new(0), Mutex::new(None));
    let run = || {
        // The thread is all of the pool for what takes long, which then waits for no other thread. It may be in one already.
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

/// What a seed has found once, it finds again.
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
