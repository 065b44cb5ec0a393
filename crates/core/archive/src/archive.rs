//! Archives: creating and opening datasets.

mod groups;

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use chronotile_store::{Commit, DatasetRef, Expect, Store, StoreError, Visibility};
use chronotile_types::{DatasetSpec, SpecError, StorageLayout, name_hint};
use tokio::time::Instant;

use crate::catalog;
use crate::catalog::clock::Clock;
use crate::catalog::fence::Fence;
use crate::catalog::superseded::SUPERSEDED_KEPT;
use crate::dataset::{Dataset, SharedState};
use crate::error::{ArchiveError, Result};
use crate::frame::difference;
use crate::memory::{Memory, MemoryLimit};
use crate::open::{OpenOptions, open_store};
use crate::read::cells;

/// Datasets under one URL. Cheap to clone; safe to use from many threads and processes at once.
#[derive(Clone, Debug)]
pub struct Archive {
    url: Arc<str>,
    store: Arc<dyn Store>,
    clock: Arc<Clock>,
    fence: Fence,
    memory: MemoryLimit,
    superseded_kept: Duration,
}

impl Archive {
    /// Opens the archive at `url`; creates it if it does not exist and the options allow that.
    pub async fn open(url: &str, options: &OpenOptions) -> Result<Self> {
        Ok(Self::on(url, open_store(url, options).await?).with_superseded_kept(options.superseded_kept))
    }

    /// An archive on an engine that is open already; `url` is for messages.
    pub fn on(url: &str, store: Arc<dyn Store>) -> Self {
        let (clock, memory) = (Arc::<Clock>::default(), Arc::default());
        let fence = Fence::new(store.clone(), clock.clone());
        Self { url: url.into(), fence, store, clock, memory, superseded_kept: SUPERSEDED_KEPT }
    }

    /// The same archive for a process that uses `now_us`, microseconds since the Unix epoch, as the time of its
    /// machine: for simulations of wrong clocks.
    #[must_use]
    pub fn with_machine_time(self, now_us: impl Fn() -> i64 + Send + Sync + 'static) -> Self {
        self.with_clock(Clock::of_machine(now_us))
    }

    /// The same archive for a process of a reproducible simulation: as [`Archive::with_machine_time`], with
    /// `random_bits` as the source of random bits for new ids.
    #[must_use]
    pub fn in_simulation(
        self,
        now_us: impl Fn() -> i64 + Send + Sync + 'static,
        random_bits: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Self {
        self.with_clock(Clock::of_machine(now_us).with_random(random_bits))
    }

    fn with_clock(self, clock: Clock) -> Self {
        let clock = Arc::new(clock);
        Self { fence: Fence::new(self.store.clone(), clock.clone()), clock, ..self }
    }

    /// The same archive, whose processes keep rows of replaced and removed batches for `time`; ten minutes by default.
    /// Reads that take no longer than that see each batch as a whole. Zero removes such rows at once, for an archive
    /// without concurrent readers.
    #[must_use]
    pub fn with_superseded_kept(self, time: Duration) -> Self {
        Self { superseded_kept: time, ..self }
    }

    /// Its engine, for work that changes nothing.
    fn reading(&self) -> Arc<dyn Store> {
        self.store.with_visibility(Visibility::Configured).unwrap_or_else(|| self.store.clone())
    }

    /// The URL it was opened with.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Charges the memory of reads to `memory` from now on, for all clones and datasets of this archive. A read that
    /// exceeds the budget fails with [`ArchiveError::Memory`]. Running reads keep the budget with which they began.
    pub fn limit_memory(&self, memory: Memory) {
        *self.memory.write().unwrap_or_else(PoisonError::into_inner) = Some(memory);
    }

    pub(crate) fn fence(&self) -> &Fence {
        &self.fence
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Name of its engine.
    pub fn engine(&self) -> &'static str {
        self.store.capabilities().engine
    }

    /// Creates a dataset. With `exist_ok`, opens an existing one of the same name and definition; any difference is
    /// refused.
    ///
    /// A dataset that names a group joins it and gets its number in it; the first one creates the group.
    pub async fn create(&self, spec: DatasetSpec, exist_ok: bool) -> Result<Dataset> {
        let spec = spec.checked()?;
        cells::check(&spec)?;
        if spec.layout == StorageLayout::Rows && !self.store.capabilities().native_rows {
            return Err(SpecError::Limit {
                setting: "layout",
                value: format!("rows, on engine {}", self.engine()),
                expected: "use layout chunks, or an archive on a cluster",
            }
            .into());
        }
        let key = catalog::dataset_key(spec.name.as_str());
        loop {
            let (spec, mut before) = self.assign_group(spec.clone()).await?;
            let group = spec.group.as_ref().map(|member| catalog::group_key(member.group.as_str()));
            let is_of_group = |key: &str| group.as_deref() == Some(key);
            let stored = catalog::to_json(&key, &spec)?;
            before.push(catalog::put(key.clone(), stored.clone(), Expect::Absent));
            let home = DatasetRef::from(&spec);
            before.push(self.take_over_name(&home).await?);
            let is_dropped = |key: &str| key == catalog::dropped_key(home.name.as_str());
            let looked = Instant::now();
            // The keys of all these records have two parts, so an engine decides the conditions together.
            match self.store.commit(&home, Commit { before, ..Commit::default() }).await {
                // A dataset of a group is opened with the other datasets of the group, because they share state.
                Ok(()) if spec.group.is_some() => return self.dataset(spec.name.as_str()).await,
                Ok(()) => return self.opened(spec, (stored, looked), self.common()),
                Err(StoreError::RecordConflict { key: changed }) if changed == key => {
                    return self.existing(&spec, exist_ok).await;
                }
                // Another dataset joined the group, or created it, at the same moment.
                Err(StoreError::RecordConflict { key: changed }) if is_of_group(&changed) => continue,
                // Another process dropped a dataset of this name at the same moment, or took over the name.
                Err(StoreError::RecordConflict { key: changed }) if is_dropped(&changed) => continue,
                Err(StoreError::RecordConflict { key }) => {
                    let value = key.rsplit('/').next().unwrap_or_default().to_owned();
                    let expected = "datasets and groups have different names: choose another";
                    return Err(SpecError::Limit { setting: "name", value, expected }.into());
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    async fn existing(&self, wanted: &DatasetSpec, exist_ok: bool) -> Result<Dataset> {
        let found = self.dataset(wanted.name.as_str()).await?;
        let difference = difference(&found.spec(), wanted);
        if exist_ok && difference.is_none() {
            return Ok(found);
        }
        let difference = difference.map_or_else(String::new, |part| format!(" with another {part}"));
        Err(ArchiveError::DatasetExists { name: wanted.name.clone(), difference })
    }

    /// A dataset of this archive with a known definition; `stored` is its catalog record, empty if unknown. `looked`
    /// precedes the request that read or wrote the definition.
    pub(crate) fn opened(
        &self,
        spec: DatasetSpec,
        (stored, looked): (Bytes, Instant),
        common: Arc<SharedState>,
    ) -> Result<Dataset> {
        let (store, clock, fence) = (self.store.clone(), self.clock.clone(), self.fence.clone());
        Dataset::new(spec, (stored, looked), store, clock, fence, common, self.superseded_kept)
    }

    pub(crate) fn common(&self) -> Arc<SharedState> {
        SharedState::new(self.memory.clone())
    }

    /// Opens a dataset.
    pub async fn dataset(&self, name: &str) -> Result<Dataset> {
        let (key, looked) = (catalog::dataset_key(name), Instant::now());
        match catalog::get::<DatasetSpec>(self.reading().as_ref(), &key).await? {
            Some((DatasetSpec { group: Some(member), .. }, _)) => {
                let group = self.group(member.group.as_str()).await?;
                group.dataset(name).cloned()
            }
            Some((spec, stored)) => self.opened(spec, (stored, looked), self.common()),
            None => {
                let names = self.dataset_names().await?;
                let hint = if names.is_empty() { "; it has none yet".to_owned() } else { name_hint(name, &names) };
                Err(ArchiveError::DatasetNotFound { name: name.to_owned(), home: "the archive".into(), hint })
            }
        }
    }

    /// The names of all datasets, in order, including those whose definition is damaged.
    pub async fn dataset_names(&self) -> Result<Vec<String>> {
        let records = catalog::list(self.reading().as_ref(), catalog::DATASETS).await?;
        Ok(records.iter().filter_map(|record| record.key.strip_prefix(catalog::DATASETS)).map(str::to_owned).collect())
    }

    /// The definitions of all datasets, by name.
    pub async fn datasets(&self) -> Result<Vec<Arc<DatasetSpec>>> {
        let records = catalog::list(self.reading().as_ref(), catalog::DATASETS).await?;
        records.iter().map(|record| Ok(Arc::new(catalog::from_json(&record.key, &record.value)?))).collect()
    }
}
