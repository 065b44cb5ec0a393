//! An in-memory engine whose calls take simulated time, fail, and take effect step by step, as on a cluster.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use chronotile_memory::MemoryStore;
use chronotile_store::{
    CLOCK_KEY, CallOptions, Capabilities, Cells, Chunk, ChunkKey, ClockSource, Commit, DatasetRef, DropSlice, Expect,
    Record, RecordPut, Result, Scan, Store, StoreError, TileStatistics, Visibility, record_group,
};
use chronotile_types::{DatasetName, SliceId};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use tokio::time::Instant;

use crate::calls::{Calls, LoggedStore};

/// Duration of a step that stalls, in milliseconds: longer than a process that closes a slice waits for writers.
const STALL_MS: std::ops::Range<u64> = 12_000..25_000;

/// A pseudo-random number generator with a seed.
#[derive(Debug)]
pub struct Prng(AtomicU64);

impl Prng {
    pub fn new(seed: u64) -> Self {
        Self(AtomicU64::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1))
    }

    pub fn below(&self, limit: u64) -> u64 {
        let step = |state: u64| state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let state = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |state| Some(step(state))).unwrap();
        (step(state) >> 33) % limit
    }

    /// True with a probability of 1 in `times`; never for 0.
    pub fn once_in(&self, times: u64) -> bool {
        times > 0 && self.below(times) == 0
    }
}

/// The faults and delays of one history.
#[derive(Clone, Copy, Debug)]
pub struct FaultPlan {
    /// Whether commits, scans and drops are one step each, as in a file.
    pub one_step: bool,
    /// One step in this many fails before or after it takes effect; the caller does not learn which. 0 for none.
    pub fails: u64,
    /// One removed chunk in this many reappears some time later. 0 for none.
    pub returns: u64,
    /// The longest duration of an ordinary step, in milliseconds.
    pub slow_ms: u64,
    /// One step in this many stalls. 0 for none.
    pub stalls: u64,
    /// Whether the engine reads records again after the step that puts them failed.
    pub looks_again: bool,
}

/// A line of the log. The logs of most histories are never read, so a line is formatted only on demand.
struct Line {
    at: Duration,
    who: &'static str,
    what: Box<dyn Fn() -> String + Send>,
}

/// The state that all processes of one history share.
pub struct World {
    pub memory: Arc<MemoryStore>,
    weather: FaultPlan,
    began: Instant,
    /// Number of clock reads. Simulated time advances by milliseconds; this adds the microseconds.
    looks: AtomicU64,
    chance: Prng,
    /// 1 once faults have stopped, at the end of a history.
    calm: AtomicU64,
    drops: Mutex<BTreeMap<(DatasetName, SliceId), u64>>,
    log: Mutex<Vec<Line>>,
    /// Source of random bits for ids.
    ids: Prng,
    /// All calls, if they are recorded.
    pub calls: Option<Calls>,
}

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("World").field("weather", &self.weather).finish_non_exhaustive()
    }
}

impl World {
    pub fn new(weather: FaultPlan, seed: u64, calls: Option<Calls>) -> Arc<Self> {
        let memory = Arc::new(MemoryStore::new());
        let (began, chance, ids) = (Instant::now(), Prng::new(seed), Prng::new(seed ^ 0x1d5));
        let (looks, calm, drops, log) = Default::default();
        Arc::new(Self { memory, weather, began, looks, chance, calm, drops, log, ids, calls })
    }

    /// Microseconds since the Unix epoch by the engine's clock.
    pub fn now_us(&self) -> i64 {
        let fine_us = self.looks.fetch_add(1, Ordering::Relaxed) % 1_000;
        1_700_000_000_000_000 + self.began.elapsed().as_micros() as i64 + fine_us as i64
    }

    /// Random bits for an id.
    pub fn id_bits(&self) -> u64 {
        self.ids.below(1 << 31) << 32 | self.ids.below(1 << 31)
    }

    /// Simulated time since the history began.
    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Adds a line to the log; `what` formats it on demand.
    pub fn note(&self, who: &'static str, what: impl Fn() -> String + Send + 'static) {
        let line = Line { at: self.began.elapsed(), who, what: Box::new(what) };
        self.log.lock().unwrap().push(line);
    }

    /// The log as text.
    pub fn lines(&self) -> Vec<String> {
        let log = self.log.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        log.iter().map(|Line { at, who, what }| format!("{:>10} {who}: {}", at.as_millis(), what())).collect()
    }

    /// Stops faults: from now on no step fails or stalls, and no chunk reappears.
    pub fn calm_down(&self) {
        self.calm.store(1, Ordering::Relaxed);
    }

    pub fn is_one_step(&self) -> bool {
        self.weather.one_step
    }

    /// How often a slice was dropped.
    fn drops(&self, dataset: &DatasetRef, slice: SliceId) -> u64 {
        self.drops.lock().unwrap().get(&(dataset.name.clone(), slice)).copied().unwrap_or(0)
    }

    /// Drops a slice, provided that it was dropped `drops` times before; keeps a new slice of the same name.
    async fn drop_same(&self, dataset: &DatasetRef, slice: SliceId, drops: u64) -> Result<()> {
        match self.drops(dataset, slice) == drops {
            true => self.drop_slice(dataset, slice, DropSlice::default()).await,
            false => Ok(()),
        }
    }

    /// Drops a slice. Its chunks never reappear, even if a slice of the same name is created: that is another slice.
    async fn drop_slice(&self, dataset: &DatasetRef, slice: SliceId, when: DropSlice) -> Result<()> {
        self.memory.drop_slice(dataset, slice, when).await?;
        *self.drops.lock().unwrap().entry((dataset.name.clone(), slice)).or_default() += 1;
        Ok(())
    }

    fn is_calm(&self) -> bool {
        self.calm.load(Ordering::Relaxed) == 1
    }
}

/// The connection of one process to the engine.
#[derive(Debug)]
pub struct EngineConnection {
    world: Arc<World>,
    who: &'static str,
}

impl EngineConnection {
    pub fn of(world: &Arc<World>, who: &'static str) -> Arc<dyn Store> {
        let link = Arc::new(Self { world: world.clone(), who });
        if world.calls.is_some() { LoggedStore::on(link, world, who) } else { link }
    }

    async fn pause(&self) {
        let World { chance, weather, .. } = &*self.world;
        if !self.world.is_calm() && chance.once_in(weather.stalls) {
            let ms = STALL_MS.start + chance.below(STALL_MS.end - STALL_MS.start);
            tokio::time::sleep(Duration::from_millis(ms)).await;
        }
        self.pause_shortly().await;
    }

    async fn pause_shortly(&self) {
        let World { chance, weather, .. } = &*self.world;
        let ms =
            if chance.once_in(20) { chance.below(20 * weather.slow_ms + 1) } else { chance.below(weather.slow_ms + 1) };
        tokio::time::sleep(Duration::from_micros(1_000 * ms + chance.below(1_000))).await;
    }

    /// One step: takes time, and may fail before or after it takes effect.
    async fn step<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let lost = || StoreError::Unknown { engine: "simulated", reason: "the answer was lost".into() };
        let fails = || !self.world.is_calm() && self.world.chance.once_in(self.world.weather.fails);
        self.pause().await;
        if fails() {
            return Err(lost());
        }
        let done = work.await?;
        self.pause().await;
        if fails() { Err(lost()) } else { Ok(done) }
    }

    fn note_commit(&self, commit: &Commit) {
        let keys = |puts: &[RecordPut]| -> Vec<(bool, String)> {
            puts.iter().map(|put| (put.value.is_some(), put.key.clone())).collect()
        };
        let (before, after) = (keys(&commit.before), keys(&commit.after));
        let (put, remove) = (commit.put.len(), commit.remove.len());
        self.world.note(self.who, move || {
            let key = |(put, key): &(bool, String)| format!("{}{}", if *put { "+" } else { "-" }, short(key));
            let keys = |keys: &[(bool, String)]| keys.iter().map(key).collect::<Vec<_>>().join(" ");
            format!("commits [{}] put {put} remove {remove} [{}]", keys(&before), keys(&after))
        });
    }

    /// Puts records, one step for each record group, in order.
    async fn put_records(&self, dataset: &DatasetRef, puts: Vec<RecordPut>) -> Result<()> {
        let mut puts = puts;
        while !puts.is_empty() {
            let group = record_group(&puts[0].key).map(|(a, b)| (a.to_owned(), b.to_owned()));
            let same = |put: &RecordPut| record_group(&put.key).map(|(a, b)| (a.to_owned(), b.to_owned())) == group;
            let (before, rest): (Vec<_>, Vec<_>) = puts.into_iter().partition(same);
            let done = self
                .step(self.world.memory.commit(dataset, Commit { before: before.clone(), ..Commit::default() }))
                .await;
            match done {
                Err(StoreError::Unknown { reason, .. }) if self.world.weather.looks_again => {
                    self.look_again(&before, reason).await?;
                }
                done => done?,
            }
            puts = rest;
        }
        Ok(())
    }

    /// Reads records again whose put has an unknown outcome: they were put, were overtaken by other values, or it
    /// remains unknown.
    async fn look_again(&self, puts: &[RecordPut], reason: String) -> Result<()> {
        self.pause().await;
        let (mut done, mut overtaken) = (true, false);
        for put in puts {
            let found = self.world.memory.record(&put.key).await?;
            done &= found == put.value;
            overtaken |= match &put.expect {
                Expect::Any => false,
                Expect::Absent => found.is_some(),
                Expect::Is(value) => found.as_ref() != Some(value),
            };
        }
        match (done, overtaken) {
            (true, _) => Ok(()),
            (false, true) => Err(StoreError::Overtaken { engine: "simulated", reason }),
            (false, false) => Err(StoreError::Unknown { engine: "simulated", reason }),
        }
    }

    /// Puts and removes chunks of one tile in one step.
    async fn exchange(&self, dataset: &DatasetRef, put: Vec<Chunk>, remove: Vec<ChunkKey>, all: bool) -> Result<()> {
        let removed = self.returning(dataset, &remove).await?;
        let commit = Commit { put, remove, require_removed: all, ..Commit::default() };
        let done = self.step(self.world.memory.commit(dataset, commit)).await;
        self.come_back(dataset, removed);
        done
    }

    /// Chooses those of the chunks about to be removed that reappear later; each with the number of drops of its slice.
    async fn returning(&self, dataset: &DatasetRef, remove: &[ChunkKey]) -> Result<Vec<(u64, Chunk)>> {
        let World { chance, weather, .. } = &*self.world;
        if weather.returns == 0 || self.world.is_calm() {
            return Ok(vec![]);
        }
        let found = self.world.memory.fetch(dataset, remove.to_vec()).await?;
        let found = found.into_iter().filter(|_| chance.once_in(weather.returns));
        Ok(found.map(|chunk| (self.world.drops(dataset, chunk.key.slice), chunk)).collect())
    }

    /// Lets removed chunks reappear later.
    fn come_back(&self, dataset: &DatasetRef, chunks: Vec<(u64, Chunk)>) {
        for (drops, chunk) in chunks {
            let (world, dataset) = (self.world.clone(), dataset.clone());
            let after = Duration::from_millis(self.world.chance.below(20_000));
            tokio::spawn(async move {
                tokio::time::sleep(after).await;
                let (id, slice) = (chunk.key.id, chunk.key.slice);
                if !world.is_calm() && world.drops(&dataset, slice) == drops {
                    world.note("engine", move || format!("chunk {id} comes back"));
                    let _ = world.memory.commit(&dataset, Commit { put: vec![chunk], ..Commit::default() }).await;
                }
            });
        }
    }
}

#[async_trait]
impl Store for EngineConnection {
    fn capabilities(&self) -> Capabilities {
        let one_step = self.world.weather.one_step;
        Capabilities {
            engine: "simulated",
            atomic_commits: one_step,
            atomic_drops: one_step,
            group_commits: one_step,
            clock: if one_step { ClockSource::LatestStamp } else { ClockSource::MachineTime },
            cheap_missing_slices: one_step,
            ..self.world.memory.capabilities()
        }
    }

    fn with_options(&self, options: &CallOptions) -> Result<Arc<dyn Store>> {
        self.world.memory.with_options(options)
    }

    fn with_visibility(&self, _visibility: Visibility) -> Option<Arc<dyn Store>> {
        None
    }

    async fn commit(&self, dataset: &DatasetRef, commit: Commit) -> Result<()> {
        let tile = |chunk: &Chunk| (chunk.key.slice, chunk.key.tile);
        self.note_commit(&commit);
        let memory = &self.world.memory;
        if self.world.weather.one_step {
            let removed = self.returning(dataset, &commit.remove).await?;
            let done = self.step(memory.commit(dataset, commit)).await;
            if done.is_ok() {
                self.come_back(dataset, removed);
            }
            return done;
        }
        let Commit { before, put, remove, require_removed, after, .. } = commit;
        // The contract of every engine: a missing slice or a missing required chunk prevents the whole commit.
        let slices = memory.slices(dataset).await?;
        if let Some(chunk) = put.iter().find(|chunk| !slices.contains(&chunk.key.slice)) {
            return Err(StoreError::NoSlice { dataset: dataset.name.clone(), slice: chunk.key.slice });
        }
        if require_removed {
            let found = memory.fetch(dataset, remove.clone()).await?;
            let there = |key: &ChunkKey| found.iter().chain(&put).any(|chunk| chunk.key == *key);
            if let Some(key) = remove.iter().find(|key| !there(key)) {
                return Err(StoreError::ChunkConflict { dataset: dataset.name.clone(), key: *key });
            }
        }
        self.put_records(dataset, before).await?;
        let mut tiles: Vec<_> = put.iter().map(tile).chain(remove.iter().map(|key| (key.slice, key.tile))).collect();
        tiles.sort_unstable();
        tiles.dedup();
        for place in tiles {
            let put: Vec<Chunk> = put.iter().filter(|chunk| tile(chunk) == place).cloned().collect();
            let remove: Vec<ChunkKey> = remove.iter().filter(|key| (key.slice, key.tile) == place).copied().collect();
            if require_removed {
                self.exchange(dataset, put, remove, true).await?;
                continue;
            }
            self.exchange(dataset, put, vec![], false).await.map_err(|error| match error {
                StoreError::NoSlice { .. } => StoreError::Unknown { engine: "simulated", reason: error.to_string() },
                error => error,
            })?;
            if !remove.is_empty() {
                self.exchange(dataset, vec![], remove, false).await?;
            }
        }
        self.put_records(dataset, after).await
    }

    async fn scan(&self, dataset: &DatasetRef, scan: Scan) -> Result<BoxStream<'static, Result<Vec<Chunk>>>> {
        self.pause().await;
        let found: Vec<Chunk> = self.world.memory.scan(dataset, scan.clone()).await?.try_concat().await?;
        if self.world.weather.one_step {
            return Ok(stream::iter([Ok(found)]).boxed());
        }
        // Each cell of each slice is read at a different time, including cells that are still empty.
        let mut places: Vec<_> = (0..3)
            .flat_map(|cell| scan.slices.iter().map(move |slice| (*slice, chronotile_types::Cell(cell))))
            .collect();
        places.sort_unstable();
        let (world, who, dataset) = (self.world.clone(), self.who, dataset.clone());
        let wanted = move |cell| match &scan.cells {
            Cells::All => true,
            Cells::Ranges(ranges) => ranges.iter().any(|(first, last)| (*first..=*last).contains(&cell)),
        };
        let places: Vec<_> = places.into_iter().filter(|(_, cell)| wanted(*cell)).collect();
        let look = move |(slice, cell)| {
            let (link, dataset) = (EngineConnection { world: world.clone(), who }, dataset.clone());
            let (windows, bodies) = (scan.windows.clone(), scan.bodies);
            async move {
                link.pause().await;
                let scan = Scan {
                    slices: vec![slice],
                    cells: Cells::Ranges([(cell, cell)].into()),
                    windows,
                    bodies,
                    older: true,
                };
                link.world.memory.scan(&dataset, scan).await?.try_concat().await
            }
        };
        Ok(stream::iter(places).then(look).boxed())
    }

    async fn fetch(&self, dataset: &DatasetRef, keys: Vec<ChunkKey>) -> Result<Vec<Chunk>> {
        self.pause().await;
        self.world.memory.fetch(dataset, keys).await
    }

    async fn record(&self, key: &str) -> Result<Option<Bytes>> {
        if key == CLOCK_KEY && !self.world.weather.one_step {
            // No stall: the caller corrects the time by the duration of the call.
            self.pause_shortly().await;
            return Ok(Some(self.world.now_us().to_string().into()));
        }
        self.pause().await;
        self.world.memory.record(key).await
    }

    async fn records(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<Vec<Record>> {
        self.pause().await;
        self.world.memory.records(prefix, after, limit).await
    }

    async fn create_slice(&self, dataset: &DatasetRef, slice: SliceId) -> Result<()> {
        self.step(self.world.memory.create_slice(dataset, slice)).await
    }

    async fn drop_slice(&self, dataset: &DatasetRef, slice: SliceId, when: DropSlice) -> Result<()> {
        if self.world.weather.one_step {
            return self.step(self.world.drop_slice(dataset, slice, when)).await;
        }
        let drops = self.world.drops(dataset, slice);
        if when.holding.is_some_and(|holding| {
            futures::executor::block_on(self.world.memory.statistics(dataset, slice)).unwrap() != holding
        }) {
            return Err(StoreError::SliceConflict { dataset: dataset.name.clone(), slice });
        }
        self.put_records(dataset, when.before).await?;
        self.step(self.world.drop_same(dataset, slice, drops)).await
    }

    async fn slices(&self, dataset: &DatasetRef) -> Result<Vec<SliceId>> {
        self.pause().await;
        self.world.memory.slices(dataset).await
    }

    async fn statistics(&self, dataset: &DatasetRef, slice: SliceId) -> Result<Vec<TileStatistics>> {
        self.pause().await;
        self.world.memory.statistics(dataset, slice).await
    }
}

/// A key with its parts shortened, for the log.
fn short(key: &str) -> String {
    key.split('/').map(|part| part.get(..8).unwrap_or(part)).collect::<Vec<_>>().join("/")
}
