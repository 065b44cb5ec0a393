//! The protocol of batches under simulated time: processes that write, replace and remove the same batches, consolidate and read, on an
//! engine that is slow, loses answers and brings removed chunks back, with clocks that are wrong and processes that die.
//!
//! In every other history the batches are those of a group of two datasets, and are written to both. In every other one their rows are
//! versions of the same records, of which the older are parted from the newest.
//!
//! What readers see is held against what they may see. A batch is whole or not there, in both datasets of a group where these are read
//! together. The state that a reader sees of it is one
//! that some call has asked for, and no call that was acknowledged before the read began has come after that one. In the end everything
//! ends, nothing is left of writes that were cut off, and verification finds nothing wrong.
//!
//! `CHRONOTILE_HISTORIES` is the number of histories, `CHRONOTILE_SEED` the first seed.
#![allow(clippy::unwrap_used)]

#[path = "../archive/common.rs"]
mod common;
mod engine;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arrow_array::RecordBatch;
use arrow_select::concat::concat_batches;
use chronotile_archive::{Archive, ArchiveError, ConsolidateOptions, Dataset, Group, ReadRequest, WriteOptions};
use chronotile_store::Outcome;
use chronotile_types::{DatasetName, DatasetSpec, Membership, MergeRule, SliceOwner};
use futures::future::BoxFuture;
use tokio::time::Instant;

use common::{HOUR, between, id_notes, noted, read, spec};
use engine::{Chance, Link, Weather, World};

/// Names that writers share.
const NAMES: u64 = 2;
/// Longer than anything takes in calm weather.
const HANGS: Duration = Duration::from_secs(6 * 3_600);

/// What a batch is after a call: these rows, all under one note, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    note: Option<String>,
}

/// A call that changes a batch.
#[derive(Clone, Debug)]
struct Act {
    began: Instant,
    /// `None` until it has ended, and for ever where its process died: then it may have taken effect or not.
    ended: Option<Instant>,
    /// Whether it was acknowledged; `None` where nobody knows.
    done: Option<bool>,
    state: State,
}

/// All that was asked for of the batches.
#[derive(Debug, Default)]
struct Acts(Mutex<BTreeMap<String, Vec<Act>>>);

impl Acts {
    fn begin(&self, name: &str, note: Option<String>) -> usize {
        let mut acts = self.0.lock().unwrap();
        let of = acts.entry(name.to_owned()).or_default();
        of.push(Act { began: Instant::now(), ended: None, done: None, state: State { note } });
        of.len() - 1
    }

    fn end(&self, name: &str, at: usize, done: Option<bool>) {
        let mut acts = self.0.lock().unwrap();
        let act = &mut acts.get_mut(name).unwrap()[at];
        (act.ended, act.done) = (Some(Instant::now()), done);
    }

    /// A process died: what it was at may have taken effect until now.
    fn died(&self, name: &str, at: usize) {
        self.end(name, at, None);
    }

    /// The states in which a reader may see the batch that began to read and ended at these times.
    fn possible(&self, name: &str, began: Instant, ended: Instant) -> Vec<State> {
        let acts = self.0.lock().unwrap();
        let acts = acts.get(name).map_or(&[][..], Vec::as_slice);
        let overtaken = |since: Instant| {
            acts.iter()
                .any(|act| act.done == Some(true) && act.began > since && act.ended.is_some_and(|end| end < began))
        };
        let mut states = Vec::new();
        // What a batch is before anything was done with it.
        if !acts.iter().any(|act| act.done == Some(true) && act.ended.is_some_and(|end| end < began)) {
            states.push(State { note: None });
        }
        for act in acts {
            let refused = act.done == Some(false);
            if !refused && act.began < ended && !act.ended.is_some_and(overtaken) {
                states.push(act.state.clone());
            }
        }
        states
    }

    fn names(&self) -> Vec<String> {
        self.0.lock().unwrap().keys().cloned().collect()
    }
}

/// What the ids of a batch begin with.
fn number_of(name: &str) -> i64 {
    name.bytes().fold(0, |number, byte| number * 256 + i64::from(byte))
}

/// The rows of a batch under a note, in several tiles: two or three steps of a write where they are long. As `versions`, those of all
/// batches have the same ids.
fn rows_of(name: &str, note: &str, versions: bool) -> RecordBatch {
    let number = if versions { 0 } else { number_of(name) * 1_000 };
    let long = note.contains("long");
    let size = 3 + (note.len() as i64 + note.bytes().map(i64::from).sum::<i64>()) % 4;
    let text = if long { format!("{note}{}", "x".repeat(4_000)) } else { note.to_owned() };
    let places: Vec<_> = (0..size).map(|i| (i * 47 % 3 * HOUR, number + i, i % 3)).collect();
    noted(&places, &text).with_column("x", version_of(note))
}

/// The version of the rows under a note. They follow each other in another order than they are written.
fn version_of(note: &str) -> f64 {
    note.bytes().fold(7u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)) as f64
}

/// Replaces a column by one value for all rows.
trait WithColumn {
    fn with_column(self, name: &str, value: f64) -> Self;
}

impl WithColumn for RecordBatch {
    fn with_column(self, name: &str, value: f64) -> Self {
        let place = self.schema().index_of(name).unwrap();
        let mut columns = self.columns().to_vec();
        columns[place] = Arc::new(arrow_array::Float64Array::from(vec![value; self.num_rows()]));
        Self::try_new(self.schema(), columns).unwrap()
    }
}

/// A version, and the ids and notes of its rows.
type Versions = (f64, Vec<(i64, String)>);

/// What the note of a row begins with.
fn batch_of(note: &str) -> &str {
    note.split('-').next().unwrap_or_default()
}

/// Ids and notes of the rows between two times.
fn inside(rows: &RecordBatch, (start, end): (i64, i64)) -> Vec<(i64, String)> {
    let t = rows.column(0).as_any().downcast_ref::<arrow_array::TimestampMicrosecondArray>().unwrap();
    let ids = common::integers(rows, "id");
    let at = ids.into_iter().zip(t.values()).filter(|(_, t)| (start..end).contains(*t));
    let wanted: BTreeSet<i64> = at.map(|(id, _)| id).collect();
    id_notes(rows).into_iter().filter(|(id, _)| wanted.contains(id)).collect()
}

/// Rows for a message.
fn short(rows: &[(i64, String)]) -> Vec<(i64, String)> {
    rows.iter().map(|(id, note)| (*id, note[..note.len().min(24)].to_owned())).collect()
}

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

    async fn remove(&self, name: &str) -> Result<(), ArchiveError> {
        match self {
            Self::One(dataset) => dataset.remove_batch(name).await.map(drop),
            Self::Two(group) => group.remove_batch(name).await.map(drop),
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

    /// Rows of each dataset as of one moment, or of one dataset.
    async fn read(&self, request: ReadRequest, one: Option<usize>) -> Result<Vec<RecordBatch>, ArchiveError> {
        match (self, one) {
            (Self::One(dataset), _) => Ok(vec![read(dataset, request).await?]),
            (Self::Two(group), Some(one)) => Ok(vec![read(&group.datasets()[one], request).await?]),
            (Self::Two(group), None) => {
                let found = group.read(PAIR.map(|name| (name, request.clone())).to_vec()).await?;
                Ok(found.iter().map(|(schema, batches)| concat_batches(schema, batches).unwrap()).collect())
            }
        }
    }
}

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

struct History {
    grouped: bool,
    shared: bool,
    versions: bool,
    world: Arc<World>,
    acts: Acts,
    chance: Chance,
    reads: Mutex<u64>,
}

impl History {
    async fn open(&self, who: &'static str) -> Handle {
        let skew_us = self.chance.below(240_000_000) as i64 - 120_000_000;
        let (world, link) = (self.world.clone(), Link::of(&self.world, who));
        let archive = Archive::on("simulated:", link).with_machine_time(move || world.now_us() + skew_us);
        match self.grouped {
            false => Handle::One(archive.dataset("records").await.unwrap()),
            true => Handle::Two(archive.group("both").await.unwrap()),
        }
    }

    /// What readers saw of each batch, by the notes of their rows.
    async fn look(&self, handle: &Handle, who: &'static str) {
        let began = Instant::now();
        let part = match self.chance.below(4) {
            0 => ReadRequest { time: between(0, 2 * HOUR), ..ReadRequest::default() },
            _ => ReadRequest::default(),
        };
        let (start, end) = if part.time.end.is_some() { (0, 2 * HOUR) } else { (0, i64::MAX) };
        let one = (self.chance.below(2) == 0).then(|| self.chance.below(2) as usize);
        let newest = self.versions && self.chance.below(3) > 0;
        let part = ReadRequest { history: self.versions && !newest, ..part };
        let found = match handle.read(part, one).await {
            Ok(found) => found,
            Err(error) if error.outcome() != Outcome::Refused => return,
            Err(error) => panic!("{who} cannot read: {error}"),
        };
        let ended = Instant::now();
        *self.reads.lock().unwrap() += 1;
        if newest {
            self.judge_newest(who, &found, (start, end), (began, ended));
            return;
        }
        // Of each batch, what each of the datasets holds.
        let mut seen: BTreeMap<i64, Vec<Vec<(i64, String)>>> = BTreeMap::new();
        for (place, rows) in found.iter().enumerate() {
            for (id, note) in id_notes(rows) {
                let batch = if self.versions { number_of(batch_of(&note)) } else { id / 1_000 };
                seen.entry(batch).or_insert_with(|| vec![vec![]; found.len()])[place].push((id, note));
            }
        }
        for name in self.acts.names() {
            let seen = seen.remove(&number_of(&name)).unwrap_or_else(|| vec![vec![]; found.len()]);
            let possible = self.acts.possible(&name, began, ended);
            let wanted = |state: &State| {
                let rows = state.note.as_ref().map(|note| rows_of(&name, note, self.versions));
                rows.map_or_else(Vec::new, |rows| inside(&rows, (start, end)))
            };
            assert!(
                possible.iter().any(|state| seen.iter().all(|seen| wanted(state) == *seen)),
                "{who} sees {:?} of {name}, and may see {possible:?}, reading from {:?} to {:?}",
                seen.iter().map(|seen| short(seen)).collect::<Vec<_>>(),
                began,
                ended,
            );
        }
        assert!(seen.is_empty(), "{who} sees rows of no batch: {seen:?}");
    }

    /// Holds the newest versions that a reader saw against those of what it may have seen of each batch.
    fn judge_newest(
        &self,
        who: &str,
        found: &[RecordBatch],
        (start, end): (i64, i64),
        (began, ended): (Instant, Instant),
    ) {
        /// Of more sets of states than these, this many are looked at, and nothing is said of a read that fits none of them.
        const SETS: usize = 4_096;
        let mut sets: Vec<Vec<Versions>> = vec![vec![]];
        for name in self.acts.names() {
            let mut more = Vec::new();
            for state in self.acts.possible(&name, began, ended) {
                let of = state.note.map(|note| (version_of(&note), inside(&rows_of(&name, &note, true), (start, end))));
                more.extend(sets.iter().map(|set| set.iter().cloned().chain(of.clone()).collect::<Vec<_>>()));
            }
            sets = more;
            if sets.len() > SETS {
                return;
            }
        }
        let newest = |mut set: Vec<Versions>| {
            set.sort_by(|a, b| a.0.total_cmp(&b.0));
            set.into_iter().flat_map(|(_, rows)| rows).collect::<BTreeMap<i64, String>>()
        };
        let seen: Vec<Vec<(i64, String)>> = found.iter().map(id_notes).collect();
        let possible: Vec<Vec<(i64, String)>> = sets.into_iter().map(|set| newest(set).into_iter().collect()).collect();
        assert!(
            possible.iter().any(|wanted| seen.iter().all(|seen| seen == wanted)),
            "{who} sees {:?} as the newest, and may see one of {:?}, reading from {began:?} to {ended:?}",
            seen.iter().map(|seen| short(seen)).collect::<Vec<_>>(),
            possible.iter().map(|wanted| short(wanted)).collect::<Vec<_>>(),
        );
    }

    async fn act(&self, handle: &Handle, who: &'static str, number: u64) {
        let private = self.chance.below(4) == 0;
        let name = if private { format!("{who}{number}") } else { format!("n{}", self.chance.below(NAMES)) };
        let kind = self.chance.below(8);
        let note = format!("{name}-{who}{number}{}", if self.chance.below(3) == 0 { "long" } else { "" });
        let removes = kind == 0;
        let at = self.acts.begin(&name, (!removes).then(|| note.clone()));
        let (what, of) = (if removes { "to remove" } else { "to write" }, note.clone());
        self.world.note(who, move || format!("begins {what} {of}"));
        // A process dies at any time.
        let patience = if self.chance.below(5) == 0 { Duration::from_millis(self.chance.below(600)) } else { HANGS };
        let result = {
            let work: BoxFuture<'_, Result<(), ArchiveError>> = if removes {
                Box::pin(handle.remove(&name))
            } else {
                let rows = rows_of(&name, &note, self.versions);
                let replace = kind != 1;
                let options = WriteOptions { batch: Some(name.clone()), replace, buffer_bytes: 0 };
                let fails = self.chance.below(12) == 0;
                Box::pin(async move { handle.write(&rows, fails, options).await })
            };
            tokio::time::timeout(patience, work).await
        };
        match result {
            Err(_) => {
                assert!(patience < HANGS, "{who} never ended what it did to {name}");
                self.world.note(who, || "dies".into());
                self.acts.died(&name, at);
            }
            Ok(Ok(())) => self.acts.end(&name, at, Some(true)),
            Ok(Err(error)) => {
                let done = match error.outcome() {
                    Outcome::Unknown => None,
                    _ => Some(false),
                };
                self.world.note(who, move || format!("fails: {error}"));
                self.acts.end(&name, at, done);
            }
        }
        self.world.note(who, || "ends".into());
    }

    async fn writer(&self, who: &'static str, acts: u64, shared: Option<Handle>) {
        let mut handle = match shared {
            Some(shared) => shared,
            None => self.open(who).await,
        };
        for number in 0..acts {
            tokio::time::sleep(Duration::from_millis(self.chance.below(200))).await;
            self.act(&handle, who, number).await;
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
            tokio::time::sleep(Duration::from_millis(self.chance.below(150))).await;
            self.look(&handle, who).await;
        }
    }

    async fn consolidator(&self, rounds: u64) {
        let handle = self.open("k").await;
        for _ in 0..rounds {
            tokio::time::sleep(Duration::from_millis(self.chance.below(300))).await;
            let datasets = handle.datasets();
            let dataset = &datasets[self.chance.below(datasets.len() as u64) as usize];
            let work = dataset.consolidate(parting(), None);
            let patience =
                if self.chance.below(4) == 0 { Duration::from_millis(self.chance.below(300)) } else { HANGS };
            self.world.note("k", || "consolidates".into());
            match tokio::time::timeout(patience, work).await {
                Ok(Err(error)) => assert!(error.outcome() != Outcome::Refused, "{error}"),
                Ok(Ok(report)) => assert_eq!(report.failed, vec![]),
                Err(_) => assert!(patience < HANGS, "consolidation never ends"),
            }
            self.world.note("k", || "ends".into());
        }
    }
}

async fn run(history: &History) {
    {
        let world = history.world.clone();
        let archive = Archive::on("memory:", world.memory.clone());
        for spec in specs(history.grouped, history.shared, history.versions) {
            archive.create(spec, true).await.unwrap();
        }
    }
    // One writer and two readers may share a process, and what it knows.
    let shared = history.open("p").await;
    let own = |alone: bool| (!alone).then(|| shared.clone());
    let alone = history.chance.below(2) == 0;
    tokio::join!(
        history.writer("a", 6, None),
        history.writer("b", 6, own(alone)),
        history.reader("r", 10, own(alone)),
        history.reader("s", 10, own(alone)),
        history.reader("t", 4, None),
        history.consolidator(5),
    );
    history.world.calm_down();
    // Whoever died is taken to be dead after a day.
    tokio::time::sleep(Duration::from_secs(30 * 3_600)).await;
    let last = history.open("z").await;
    history.look(&last, "z").await;
    for _ in 0..2 {
        for dataset in last.datasets() {
            dataset.consolidate(parting(), None).await.unwrap();
        }
        history.look(&last, "z").await;
    }
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
            history.look(&last, "z").await;
            assert!(dataset.verify(None).await.unwrap().ok());
        }
    }
}

/// One history; its reads, or what went wrong with the log of it.
fn history(seed: u64) -> Result<u64, String> {
    let chance = Chance::new(seed ^ 0x5eed);
    let weather = Weather {
        one_step: chance.below(3) == 0,
        fails: [0, 60, 200][chance.below(3) as usize],
        returns: [0, 0, 12][chance.below(3) as usize],
        slow_ms: [1, 8, 40][chance.below(3) as usize],
    };
    let log = Arc::new(Mutex::new(None::<Arc<World>>));
    let kept = log.clone();
    let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async move {
            let world = World::new(weather, seed);
            *kept.lock().unwrap() = Some(world.clone());
            let (grouped, versions) = (chance.below(2) == 0, chance.below(2) == 0);
            let (acts, reads, shared) = (Acts::default(), Mutex::default(), seed % 4 >= 2);
            let history = History { grouped, shared, versions, world, acts, chance, reads };
            run(&history).await;
            *history.reads.lock().unwrap()
        })
    }));
    ran.map_err(|panic| {
        let text =
            panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()));
        let world = log.lock().unwrap().clone();
        let lines = world.map_or_else(Vec::new, |world| world.lines());
        format!("seed {seed}, {weather:?}: {}\n{}", text.unwrap_or_default(), lines.join("\n"))
    })
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

#[test]
fn no_history_loses_mixes_or_brings_back_rows() {
    let (histories, first) = (setting("CHRONOTILE_HISTORIES", 1_500), setting("CHRONOTILE_SEED", 1));
    let next = std::sync::atomic::AtomicU64::new(first);
    let (reads, failure) = (std::sync::atomic::AtomicU64::new(0), Mutex::new(None));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, std::num::NonZero::get) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    if seed >= first + histories || failure.lock().unwrap().is_some() {
                        return;
                    }
                    match history(seed) {
                        Ok(number) => _ = reads.fetch_add(number, std::sync::atomic::Ordering::Relaxed),
                        Err(text) => *failure.lock().unwrap() = Some(text),
                    }
                }
            });
        }
    });
    let failure = failure.into_inner().unwrap();
    assert!(failure.is_none(), "{}", failure.unwrap());
    println!("{histories} histories with {} reads", reads.into_inner());
}
