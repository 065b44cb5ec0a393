//! Datasets: their definition, the state that a process caches of them, and commits.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use arrow_array::{Array, ArrayRef};
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use arrow_schema::{Field, Schema};
use bytes::Bytes;
use chronotile_chunk::{Head, Origin};
use chronotile_store::{
    CallOptions, Chunk, ChunkKey, Commit, DatasetRef, Expect, RecordPut, Store, StoreError, Visibility,
};
use chronotile_types::{DatasetName, DatasetSpec, Duration, Membership, SliceId, Window, normalize_schema};
use futures::future::try_join_all;
use tokio::time::Instant;

use crate::LOG;
use crate::catalog::clock::Clock;
use crate::catalog::fence::Fence;
use crate::catalog::superseded::KnownSuperseded;
use crate::catalog::{self, GroupRecord};
use crate::error::{ArchiveError, Result};
use crate::frame::{DEFAULT_METADATA, Frame, default_value};
use crate::index::IndexCache;
use crate::memory::{Memory, MemoryLimit};

/// How long a writer on a cluster may rely on the definition that it has read.
const LOOKED_FRESH: std::time::Duration = std::time::Duration::from_secs(10);

/// How often a commit creates a slice again that others drop before it has rows.
const SLICE_TRIES: usize = 8;

/// One dataset of an archive. Cheap to clone; safe to use from many threads and processes at once.
#[derive(Clone, Debug)]
pub struct Dataset {
    store: Arc<dyn Store>,
    /// The same engine, for work that changes nothing.
    reading: Arc<dyn Store>,
    shared: Arc<Shared>,
    fence: Fence,
    superseded_kept: std::time::Duration,
}

#[derive(Debug)]
struct Shared {
    known: RwLock<CachedDefinition>,
    common: Arc<SharedState>,
    index_cache: IndexCache,
}

/// The state that the datasets of a group share; an ungrouped dataset has its own.
#[derive(Debug)]
pub(crate) struct SharedState {
    /// The datasets of the group by number; empty without a group.
    frames: RwLock<BTreeMap<u8, Frame>>,
    /// The record of the group as last read, and when it was read.
    group: RwLock<Option<(Bytes, Instant)>>,
    /// Slices known to exist. If one was retired since, the engine refuses the commit.
    slices: RwLock<HashSet<SliceId>>,
    /// Attempts known to count, and since when.
    counting: RwLock<HashMap<Origin, Instant>>,
    superseded: RwLock<KnownSuperseded>,
    memory: MemoryLimit,
}

impl SharedState {
    pub(crate) fn new(memory: MemoryLimit) -> Arc<Self> {
        let (frames, group, slices) = Default::default();
        Arc::new(Self { frames, group, slices, counting: RwLock::default(), superseded: RwLock::default(), memory })
    }

    /// Remembers the current record of the group. `looked` precedes the request that read it.
    pub(crate) fn saw_group(&self, stored: Bytes, looked: Instant) {
        *self.group.write().unwrap_or_else(PoisonError::into_inner) = Some((stored, looked));
    }

    fn put_frame(&self, frame: &Frame) {
        if let Some(group) = &frame.spec.group {
            let mut frames = self.frames.write().unwrap_or_else(PoisonError::into_inner);
            frames.insert(group.number, frame.clone());
        }
    }
}

/// The definition as this process last saw it.
#[derive(Debug)]
struct CachedDefinition {
    frame: Frame,
    /// The catalog record from which `frame` was made.
    stored: Bytes,
    /// Increases with each change that this process makes or observes.
    revision: u64,
    /// When the request that last read or wrote the record began: the definition may have changed since.
    looked: Instant,
}

/// A column to add to a dataset.
#[derive(Clone, Debug)]
pub struct AddedColumn {
    /// Its definition. It must allow nulls unless there is a default.
    pub field: Field,
    /// The value, an array of length 1, that rows written earlier read as; `None` stands for null.
    pub default: Option<ArrayRef>,
}

impl Dataset {
    /// A dataset of the archive to which the other arguments belong. `stored` is its catalog record, empty if unknown;
    /// `looked` precedes the request that read or wrote it.
    pub(crate) fn new(
        spec: DatasetSpec,
        (stored, looked): (Bytes, Instant),
        store: Arc<dyn Store>,
        clock: Arc<Clock>,
        fence: Fence,
        common: Arc<SharedState>,
        superseded_kept: std::time::Duration,
    ) -> Result<Self> {
        let known = CachedDefinition { frame: Frame::new(spec, clock)?, stored, revision: 0, looked };
        common.put_frame(&known.frame);
        let shared = Shared { known: RwLock::new(known), common, index_cache: IndexCache::default() };
        Ok(Self { reading: reading(&store), store, shared: Arc::new(shared), fence, superseded_kept })
    }

    /// The same dataset with another consistency level or time limit for calls through it.
    ///
    /// # Errors
    /// An engine without such options; an unknown level.
    pub fn with_options(&self, options: &CallOptions) -> Result<Self> {
        let store = self.store.with_options(options)?;
        Ok(Self { reading: reading(&store), store, ..self.clone() })
    }

    /// The same dataset, whose reads see every row that was acknowledged at the archive's write consistency level. For
    /// callers that copy slices elsewhere and then drop them with [`Dataset::retire_unchanged`].
    pub fn seeing_every_write(&self) -> Self {
        let Some(store) = self.store.with_visibility(Visibility::EveryWrite) else { return self.clone() };
        Self { reading: store.clone(), store, ..self.clone() }
    }

    /// The same dataset for work that changes nothing.
    pub(crate) fn reader(&self) -> Self {
        Self { store: self.reading.clone(), ..self.clone() }
    }

    /// Its definition as last read: another process may have added columns since.
    pub fn spec(&self) -> Arc<DatasetSpec> {
        self.frame().spec
    }

    pub(crate) fn store(&self) -> &dyn Store {
        self.store.as_ref()
    }

    /// The index data that this process caches.
    pub(crate) fn index_cache(&self) -> &IndexCache {
        &self.shared.index_cache
    }

    pub(crate) fn fence(&self) -> &Fence {
        &self.fence
    }

    /// How long rows that no longer count are kept, in microseconds.
    pub(crate) fn kept_us(&self) -> i64 {
        i64::try_from(self.superseded_kept.as_micros()).unwrap_or(i64::MAX)
    }

    pub(crate) fn store_arc(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    /// Its definition, with a number that changes whenever this process sees another definition.
    pub fn spec_and_revision(&self) -> (Arc<DatasetSpec>, u64) {
        let known = self.known();
        (known.frame.spec.clone(), known.revision)
    }

    fn known(&self) -> RwLockReadGuard<'_, CachedDefinition> {
        self.shared.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn frame(&self) -> Frame {
        self.known().frame.clone()
    }

    /// The frame of the dataset that a window of a slice belongs to: this dataset, or another one of its group.
    ///
    /// # Errors
    /// A window of a dataset that this process does not know.
    pub(crate) fn frame_of(&self, slice: SliceId, window: Window) -> Result<Frame> {
        let own = self.frame();
        if own.spec.has_window(slice, window) {
            return Ok(own);
        }
        let found = self.frames().into_iter().find(|frame| frame.spec.has_window(slice, window));
        let unknown =
            || own.refuse("its group has datasets that were added after the archive was opened: open it again");
        found.ok_or_else(unknown)
    }

    /// The reference by which the engine finds a slice: that of the datasets that own or share it.
    ///
    /// # Errors
    /// A slice of a dataset that this process does not know.
    pub(crate) fn home_of(&self, slice: SliceId) -> Result<DatasetRef> {
        let own = self.frame();
        let frames: Vec<Frame> = self.frames().into_iter().filter(|frame| frame.spec.has_slice(slice)).collect();
        let Some(first) = frames.first() else {
            let number = Membership::owner_of(slice);
            return Err(own.refuse(format!("its group has no dataset number {number}: open the archive again")));
        };
        Ok(first.dataset.together(frames.iter().map(|frame| &frame.dataset)))
    }

    /// The names of the other datasets that share its slices. Dropping a slice also drops their rows.
    pub fn shares_slices_with(&self) -> Vec<DatasetName> {
        self.sharers().iter().map(|frame| frame.spec.name.clone()).collect()
    }

    /// The frames of the other datasets that share its slices.
    pub(crate) fn sharers(&self) -> Vec<Frame> {
        let own = self.frame().spec;
        let others = self.frames().into_iter().filter(|frame| frame.spec.name != own.name);
        others.filter(|frame| frame.spec.slices_name() == own.slices_name()).collect()
    }

    /// The frames of all datasets of its group, or its own.
    pub(crate) fn frames(&self) -> Vec<Frame> {
        let own = self.frame();
        if own.spec.group.is_none() {
            return vec![own];
        }
        self.shared.common.frames.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Whether attempts at new batches put their chunks before they write anything to the catalog. This gains nothing
    /// where a commit is atomic, or where slices are not closed before they are dropped.
    pub(crate) fn puts_unclaimed(&self) -> bool {
        !self.store.capabilities().atomic_commits && self.fence.needs_closing()
    }

    /// The number, in the group, of the dataset that owns the slice; 0 without a group.
    pub(crate) fn owner_of(&self, slice: SliceId) -> u8 {
        if self.frame().spec.group.is_some() { Membership::owner_of(slice) } else { 0 }
    }

    /// Reads the definitions of these datasets of its group again if any definition of the group has changed. If none
    /// has, this is one read of the catalog. With `fresh`, a read within [`LOOKED_FRESH`] suffices on a cluster.
    ///
    /// # Errors
    /// The group, or one of the datasets, was dropped; the engine.
    pub(crate) async fn refresh_together(&self, datasets: &[Self], fresh: bool) -> Result<()> {
        let seen = self.shared.common.group.read().unwrap_or_else(PoisonError::into_inner).clone();
        if fresh
            && self.fence.needs_closing()
            && seen.as_ref().is_some_and(|(_, looked)| looked.elapsed() < LOOKED_FRESH)
        {
            return Ok(());
        }
        let (name, looked) = (self.frame().dataset.name, Instant::now());
        let Some(stored) = self.reading.record(&catalog::group_key(name.as_str())).await? else {
            return Err(ArchiveError::GroupNotFound { name: name.to_string(), hint: "; it was dropped".into() });
        };
        if seen.is_none_or(|(known, _)| known != stored) {
            try_join_all(datasets.iter().map(Self::refresh)).await?;
        }
        // The record is remembered last: after an error above, the next call reads the definitions again.
        self.shared.common.saw_group(stored, looked);
        Ok(())
    }

    /// Its slices that exist, ascending.
    pub(crate) async fn slices(&self) -> Result<Vec<SliceId>> {
        let frame = self.frame();
        let mut slices = self.store().slices(&frame.dataset).await?;
        slices.retain(|slice| frame.spec.has_slice(*slice));
        Ok(slices)
    }

    /// The chunks of these keys with their bodies, from any datasets of the group. Leaves out chunks that do not exist.
    pub(crate) async fn fetch(&self, keys: Vec<ChunkKey>) -> Result<Vec<Chunk>> {
        let mut found = Vec::new();
        for keys in self.by_owner(keys) {
            let dataset = self.home_of(keys[0].slice)?;
            found.extend(self.store().fetch(&dataset, keys).await?);
        }
        Ok(found)
    }

    /// Groups keys by the dataset that owns their slice.
    fn by_owner(&self, keys: Vec<ChunkKey>) -> Vec<Vec<ChunkKey>> {
        let mut parts: BTreeMap<u8, Vec<ChunkKey>> = BTreeMap::new();
        keys.into_iter().for_each(|key| parts.entry(self.owner_of(key.slice)).or_default().push(key));
        parts.into_values().collect()
    }

    /// The memory budget of reads.
    pub(crate) fn memory(&self) -> Option<Memory> {
        self.shared.common.memory.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn clock(&self) -> Arc<Clock> {
        self.known().frame.clock.clone()
    }

    /// A write stamp: see [`Clock::stamp_us`].
    pub(crate) async fn stamp_us(&self) -> Result<i64> {
        self.clock().stamp_us(self.store()).await
    }

    fn set_frame(&self, frame: Frame, stored: Bytes, looked: Instant) {
        let mut known = self.shared.known.write().unwrap_or_else(PoisonError::into_inner);
        // If the dataset was dropped and created again, the slices known so far are gone.
        self.known_slices(HashSet::clear);
        self.known_superseded(|known| *known = KnownSuperseded::default());
        self.shared.common.put_frame(&frame);
        *known = CachedDefinition { frame, stored, revision: known.revision + 1, looked };
    }

    /// Reads the definition again: another process may have added columns, or dropped the dataset and created another
    /// of its name.
    ///
    /// # Errors
    /// The dataset no longer exists.
    pub async fn refresh(&self) -> Result<()> {
        // `looked` precedes the request, because the definition may change while the answer is under way.
        let (key, looked) = (catalog::dataset_key(self.spec().name.as_str()), Instant::now());
        let Some(stored) = self.reading.record(&key).await? else {
            return Err(ArchiveError::dropped(self.spec().name.to_string()));
        };
        // Every read calls this, and the definition seldom changes: parse it only if its bytes differ.
        let changed = self.known().stored != stored;
        if changed {
            let frame = Frame::new(catalog::from_json(&key, &stored)?, self.clock())?;
            self.set_frame(frame, stored, looked);
        } else {
            self.shared.known.write().unwrap_or_else(PoisonError::into_inner).looked = looked;
        }
        Ok(())
    }

    /// As [`Self::refresh`], for all datasets of its group.
    ///
    /// # Errors
    /// As [`Self::refresh`].
    pub(crate) async fn refresh_group(&self) -> Result<()> {
        self.refresh().await?;
        let own = self.spec().name.clone();
        for frame in self.frames().into_iter().filter(|frame| frame.spec.name != own) {
            let key = catalog::dataset_key(frame.spec.name.as_str());
            // A missing definition means that the group was dropped, which the next `refresh` reports.
            if let Some((spec, _)) = catalog::get::<DatasetSpec>(self.reading.as_ref(), &key).await?
                && spec != *frame.spec
            {
                self.shared.common.put_frame(&Frame::new(spec, self.clock())?);
            }
        }
        Ok(())
    }

    /// Call this before chunks with these heads are decoded with `frame`: reads the definition again if columns were
    /// added to the dataset since.
    ///
    /// # Errors
    /// The engine.
    pub(crate) async fn learn_columns(&self, frame: &Frame, heads: impl Iterator<Item = &Head> + Clone) -> Result<()> {
        if frame.decodes(heads) {
            return Ok(());
        }
        let key = catalog::dataset_key(frame.spec.name.as_str());
        match catalog::get::<DatasetSpec>(self.reading.as_ref(), &key).await? {
            Some((spec, _)) => frame.extend(spec),
            None => Ok(()),
        }
    }

    /// The record of the definition of a dataset of its group, which has been `frame`.
    ///
    /// # Errors
    /// The dataset was dropped, and perhaps created again with another definition; the engine.
    pub(crate) async fn definition(&self, frame: &Frame) -> Result<Bytes> {
        let key = catalog::dataset_key(frame.spec.name.as_str());
        match catalog::get::<DatasetSpec>(self.store(), &key).await? {
            Some((spec, stored)) => frame.check_still(&spec).map(|()| stored),
            None => Err(ArchiveError::dropped(frame.spec.name.to_string())),
        }
    }

    /// The conditions under which these datasets of its group stay defined as they are now.
    ///
    /// # Errors
    /// As [`Self::definition`].
    pub(crate) async fn as_defined(&self, frames: &[Frame]) -> Result<Vec<RecordPut>> {
        try_join_all(frames.iter().map(async |frame| Ok(frame.defined_as(self.definition(frame).await?)))).await
    }

    /// As [`Self::refresh`], before a write, which might otherwise store rows in the windows of a dropped dataset.
    pub(crate) async fn refresh_to_write(&self) -> Result<()> {
        if self.looked_recently() { Ok(()) } else { self.refresh().await }
    }

    /// Whether it is on a cluster, and a writer may still rely on the definition.
    pub(crate) fn looked_recently(&self) -> bool {
        self.fence.needs_closing() && self.known().looked.elapsed() < LOOKED_FRESH
    }

    /// Adds columns at the end. Rows written earlier read as the default given, or as null.
    ///
    /// # Errors
    /// A name that exists; a type that cannot be stored; a column that allows no nulls and has no default; more than
    /// 8 KiB of added columns for each older row.
    pub async fn add_columns(&self, columns: Vec<AddedColumn>) -> Result<()> {
        self.alter(|spec| {
            let mut fields: Vec<Field> = spec.schema.fields().iter().map(|f| f.as_ref().clone()).collect();
            for column in &columns {
                fields.push(added_field(spec, column)?);
            }
            spec.schema = normalize_schema(&Schema::new_with_metadata(fields, spec.schema.metadata().clone()))?;
            spec.schema_versions.push(spec.schema.fields().len() as u32);
            Frame::new(spec.clone(), self.clock())?.check_added_columns()
        })
        .await
    }

    /// Sets the age past which `retire` drops slices.
    pub async fn set_retention(&self, retention: Option<Duration>) -> Result<()> {
        self.alter(|spec| {
            spec.retention = retention;
            Ok(())
        })
        .await
    }

    /// Sets how far apart two versions of a record may be, in degrees; 0 if records do not move.
    ///
    /// # Errors
    /// An angle outside of 0 to 10 degrees; a dataset without merge `latest` or sky pixels.
    pub async fn set_moves(&self, moves_deg: f64) -> Result<()> {
        self.alter(|spec| {
            spec.moves_deg = moves_deg;
            Ok(spec.check_moves()?)
        })
        .await
    }

    /// Changes the definition in the catalog; starts again if another process changed it first.
    pub(crate) async fn alter(&self, change: impl Fn(&mut DatasetSpec) -> Result<()>) -> Result<()> {
        let key = catalog::dataset_key(self.spec().name.as_str());
        loop {
            let Some((mut spec, bytes)) = catalog::get::<DatasetSpec>(self.store(), &key).await? else {
                // Dropped, unless another process has created it again by now.
                self.refresh().await?;
                continue;
            };
            change(&mut spec)?;
            spec.check_layout()?;
            let frame = Frame::new(spec.clone(), self.clock())?;
            let stored = catalog::to_json(&key, &spec)?;
            let mut before = vec![catalog::put(key.clone(), stored.clone(), Expect::Is(bytes))];
            before.extend(group_change(self.store(), &self.clock(), &spec).await?);
            let looked = Instant::now();
            match self.store.commit(&frame.dataset, Commit { before, ..Commit::default() }).await {
                Ok(()) => {
                    self.set_frame(frame, stored, looked);
                    return Ok(());
                }
                Err(StoreError::RecordConflict { .. }) => continue,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Commits, and creates the slices that the chunks need.
    pub(crate) async fn commit(&self, mut commit: Commit) -> Result<()> {
        if !commit.put.is_empty() {
            // The clock has made or seen the stamps of these chunks. An engine that keeps the latest stamp passes it on
            // to the writers of other processes.
            commit.stamp_us = self.clock().last_us();
        }
        if self.store.capabilities().group_commits {
            return self.commit_to(self.frame().dataset, commit).await;
        }
        let Commit { before, put, remove, require_removed, after, stamp_us } = commit;
        // Each call names one dataset with its tables, so chunks are divided by the owner of their slice.
        let mut parts: BTreeMap<u8, (Vec<Chunk>, Vec<ChunkKey>)> = BTreeMap::new();
        put.into_iter().for_each(|chunk| parts.entry(self.owner_of(chunk.key.slice)).or_default().0.push(chunk));
        remove.into_iter().for_each(|key| parts.entry(self.owner_of(key.slice)).or_default().1.push(key));
        let of_part = |put: &[Chunk], remove: &[ChunkKey]| {
            let slice = put.first().map(|chunk| chunk.key.slice).or(remove.first().map(|key| key.slice));
            slice.map_or_else(|| Ok(self.frame().dataset), |slice| self.home_of(slice))
        };
        if parts.len() < 2 {
            let (put, remove) = parts.into_values().next().unwrap_or_default();
            let dataset = of_part(&put, &remove)?;
            return self.commit_to(dataset, Commit { before, put, remove, require_removed, after, stamp_us }).await;
        }
        // Each step is durable before the next, as within one commit. Chunks of different datasets are independent of
        // each other.
        let own = self.frame().dataset;
        if !before.is_empty() {
            self.commit_to(own.clone(), Commit { before, ..Commit::default() }).await?;
        }
        let commits = parts.into_values().map(|(put, remove)| async {
            let dataset = of_part(&put, &remove)?;
            self.commit_to(dataset, Commit { put, remove, require_removed, stamp_us, ..Commit::default() }).await
        });
        try_join_all(commits).await?;
        if after.is_empty() {
            return Ok(());
        }
        self.commit_to(own, Commit { after, ..Commit::default() }).await
    }

    async fn commit_to(&self, dataset: DatasetRef, commit: Commit) -> Result<()> {
        let slices: BTreeSet<SliceId> = commit.put.iter().map(|chunk| chunk.key.slice).collect();
        let mut tries = 0;
        loop {
            self.ensure_slices(&slices).await?;
            match self.store.commit(&dataset, commit.clone()).await {
                // The slice was retired since this process last saw it, and nothing was put. These rows are newer than
                // that drop.
                Err(StoreError::NoSlice { slice, .. }) => {
                    // Others of these slices may be gone too, and creating a slice that exists changes nothing.
                    self.known_slices(|known| known.retain(|slice| !slices.contains(slice)));
                    tries += 1;
                    tracing::info!(
                        target: LOG, dataset = %dataset.name, slice = slice.0,
                        "a slice was dropped before its first rows came: creating it again"
                    );
                    if tries == SLICE_TRIES {
                        return Err(ArchiveError::SliceRetired { dataset: dataset.name, slice });
                    }
                }
                result => return Ok(result?),
            }
        }
    }

    pub(crate) async fn ensure_slices(&self, slices: &BTreeSet<SliceId>) -> Result<()> {
        let missing: Vec<SliceId> =
            self.known_slices(|known| slices.iter().filter(|slice| !known.contains(slice)).copied().collect());
        // The lock is not held across the calls. Two tasks may create the same slice, which changes nothing.
        for slice in missing {
            self.store.create_slice(&self.home_of(slice)?, slice).await?;
            self.known_slices(|known| known.insert(slice));
        }
        Ok(())
    }

    pub(crate) fn counting<T>(&self, use_it: impl FnOnce(&mut HashMap<Origin, Instant>) -> T) -> T {
        use_it(&mut self.shared.common.counting.write().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn known_superseded<T>(&self, use_it: impl FnOnce(&mut KnownSuperseded) -> T) -> T {
        use_it(&mut self.shared.common.superseded.write().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn known_slices<T>(&self, use_it: impl FnOnce(&mut HashSet<SliceId>) -> T) -> T {
        use_it(&mut self.shared.common.slices.write().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The change to the group's record that goes with a changed definition, so that readers of the whole group notice it.
pub(crate) async fn group_change(store: &dyn Store, clock: &Clock, spec: &DatasetSpec) -> Result<Option<RecordPut>> {
    let Some(member) = &spec.group else { return Ok(None) };
    let key = catalog::group_key(member.group.as_str());
    let Some((record, bytes)) = catalog::get::<GroupRecord>(store, &key).await? else { return Ok(None) };
    let changed = catalog::to_json(&key, &record.changed(clock))?;
    Ok(Some(catalog::put(key, changed, Expect::Is(bytes))))
}

fn reading(store: &Arc<dyn Store>) -> Arc<dyn Store> {
    store.with_visibility(Visibility::Configured).unwrap_or_else(|| store.clone())
}

/// The field as stored: its metadata holds the default as text.
fn added_field(spec: &DatasetSpec, column: &AddedColumn) -> Result<Field> {
    let refuse = |reason: &str| ArchiveError::Immutable {
        dataset: spec.name.clone(),
        part: format!("column {:?}", column.field.name()),
        reason: reason.to_owned(),
    };
    if spec.schema.field_with_name(column.field.name()).is_ok() {
        return Err(refuse("the column exists already"));
    }
    let Some(default) = &column.default else {
        return match column.field.is_nullable() {
            true => Ok(column.field.clone()),
            false => Err(refuse("rows written earlier have no value for it: allow nulls, or give a default")),
        };
    };
    if default.len() != 1 || default.is_null(0) {
        return Err(refuse("its default must be one value that is not null"));
    }
    let options = FormatOptions::new();
    let text = ArrayFormatter::try_new(default.as_ref(), &options).map(|f| f.value(0).to_string());
    let text = text.map_err(|e| refuse(&format!("its default cannot be kept: {e}")))?;
    let mut metadata = column.field.metadata().clone();
    metadata.insert(DEFAULT_METADATA.to_owned(), text);
    let field = column.field.clone().with_metadata(metadata);
    // Parsing the text must give the same value: types without an exact text form have no defaults.
    match default_value(&field) {
        Ok(Some(read)) if read.as_ref() == default.as_ref() => Ok(field),
        _ => Err(refuse("a default of this type is not supported: add the column without one")),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use chronotile_memory::MemoryStore;
    use chronotile_store::{Decision, FaultyStore};

    use super::*;
    use crate::Archive;
    use crate::testing::spec;

    /// Another process may change the definition while the answer is under way.
    #[tokio::test(start_paused = true)]
    async fn a_definition_is_as_old_as_the_request_for_it() {
        const SLOW: Duration = Duration::from_secs(5);
        let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
        let slow = Archive::on("memory:", Arc::new(FaultyStore::new(store.clone(), |_| Decision::Delay(SLOW))));
        let age = |dataset: &Dataset| dataset.known().looked.elapsed();
        let created = slow.create(spec(), false).await.unwrap();
        assert!(age(&created) >= SLOW, "created");
        let opened = slow.dataset("records").await.unwrap();
        assert!(age(&opened) >= SLOW, "opened");
        let other = Archive::on("memory:", store).dataset("records").await.unwrap();
        other.set_retention(Some("1d".parse().unwrap())).await.unwrap();
        opened.refresh().await.unwrap();
        assert!(opened.spec().retention.is_some() && age(&opened) >= SLOW, "changed by another process");
        opened.set_retention(None).await.unwrap();
        assert!(age(&opened) >= SLOW, "changed");
    }
}
