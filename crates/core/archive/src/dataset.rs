use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use arrow_array::{Array, ArrayRef};
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use arrow_schema::{Field, Schema};
use bytes::Bytes;
use chronotile_chunk::Origin;
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
use crate::index::Kept;
use crate::memory::{Memory, MemoryLimit};

/// How long a writer on nodes may go by the definition it has seen.
const LOOKED_FRESH: std::time::Duration = std::time::Duration::from_secs(10);

/// How many times a commit creates a slice that others drop before the slice has rows.
const SLICE_TRIES: usize = 8;

/// One dataset of an archive. Cheap to clone; safe to use from many threads and processes at once.
#[derive(Clone, Debug)]
pub struct Dataset {
    store: Arc<dyn Store>,
    /// The same for what changes nothing.
    reading: Arc<dyn Store>,
    shared: Arc<Shared>,
    fence: Fence,
    superseded_kept: std::time::Duration,
}

#[derive(Debug)]
struct Shared {
    known: RwLock<Known>,
    common: Arc<Common>,
    kept: Kept,
}

/// What the datasets of a group have in common; a dataset by itself has its own.
#[derive(Debug)]
pub(crate) struct Common {
    /// The datasets of the group by number; none where there is no group.
    frames: RwLock<BTreeMap<u8, Frame>>,
    /// The record of the group as it was looked at last, and when.
    group: RwLock<Option<(Bytes, Instant)>>,
    /// Slices known to exist. One may have been retired since: the engine then says so.
    slices: RwLock<HashSet<SliceId>>,
    /// Attempts that were seen to count, and since when that is known.
    counting: RwLock<HashMap<Origin, Instant>>,
    superseded: RwLock<KnownSuperseded>,
    memory: MemoryLimit,
}

impl Common {
    pub(crate) fn new(memory: MemoryLimit) -> Arc<Self> {
        let (frames, group, slices) = Default::default();
        Arc::new(Self { frames, group, slices, counting: RwLock::default(), superseded: RwLock::default(), memory })
    }

    /// Notes what the record of the group is now.
    pub(crate) fn saw_group(&self, stored: Bytes) {
        *self.group.write().unwrap_or_else(PoisonError::into_inner) = Some((stored, Instant::now()));
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
struct Known {
    frame: Frame,
    /// The record in the catalog that `frame` was made from.
    stored: Bytes,
    /// Grows with each change that this process makes or finds.
    revision: u64,
    /// When the record was last looked at.
    looked: Instant,
}

/// A column to add to a dataset.
#[derive(Clone, Debug)]
pub struct AddedColumn {
    /// Its definition. It must allow nulls unless there is a default.
    pub field: Field,
    /// What rows written earlier read as, one value; null where `None`.
    pub default: Option<ArrayRef>,
}

impl Dataset {
    /// A dataset of the archive that has these. `stored` is its record in the catalog, empty where that is not known.
    pub(crate) fn new(
        spec: DatasetSpec,
        stored: Bytes,
        store: Arc<dyn Store>,
        clock: Arc<Clock>,
        fence: Fence,
        common: Arc<Common>,
        superseded_kept: std::time::Duration,
    ) -> Result<Self> {
        let known = Known { frame: Frame::new(spec, clock)?, stored, revision: 0, looked: Instant::now() };
        common.put_frame(&known.frame);
        let shared = Shared { known: RwLock::new(known), common, kept: Kept::default() };
        Ok(Self { reading: reading(&store), store, shared: Arc::new(shared), fence, superseded_kept })
    }

    /// The same dataset with another consistency level or time limit for what is done through it.
    ///
    /// # Errors
    /// An engine that has no such choices; a level that does not exist.
    pub fn with_options(&self, options: &CallOptions) -> Result<Self> {
        let store = self.store.with_options(options)?;
        Ok(Self { reading: reading(&store), store, ..self.clone() })
    }

    /// The same dataset, of which every read sees every row that was acknowledged before at the archive's level of writes: for
    /// whoever drops, by [`Dataset::retire_unchanged`], what was read and put elsewhere.
    pub fn seeing_every_write(&self) -> Self {
        let Some(store) = self.store.with_visibility(Visibility::EveryWrite) else { return self.clone() };
        Self { reading: store.clone(), store, ..self.clone() }
    }

    /// The same dataset for work that changes nothing.
    pub(crate) fn reader(&self) -> Self {
        Self { store: self.reading.clone(), ..self.clone() }
    }

    /// Its definition, as of when it was last looked at: another process may have added columns since.
    pub fn spec(&self) -> Arc<DatasetSpec> {
        self.frame().spec
    }

    pub(crate) fn store(&self) -> &dyn Store {
        self.store.as_ref()
    }

    /// What this process keeps of its indexes.
    pub(crate) fn kept(&self) -> &Kept {
        &self.shared.kept
    }

    pub(crate) fn fence(&self) -> &Fence {
        &self.fence
    }

    /// How long rows stay that do not count any more, in microseconds.
    pub(crate) fn kept_us(&self) -> i64 {
        i64::try_from(self.superseded_kept.as_micros()).unwrap_or(i64::MAX)
    }

    pub(crate) fn store_arc(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    /// Its definition with a number that differs wherever this process saw another one before.
    pub fn spec_and_revision(&self) -> (Arc<DatasetSpec>, u64) {
        let known = self.known();
        (known.frame.spec.clone(), known.revision)
    }

    fn known(&self) -> RwLockReadGuard<'_, Known> {
        self.shared.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn frame(&self) -> Frame {
        self.known().frame.clone()
    }

    /// The definition of the dataset that a window of a slice belongs to: its own, or that of another one of its group.
    ///
    /// # Errors
    /// A window of a dataset that this process does not know.
    pub(crate) fn frame_of(&self, slice: SliceId, window: Window) -> Result<Frame> {
        let own = self.frame();
        if own.spec.has_window(slice, window) {
            return Ok(own);
        }
        let found = self.frames().into_iter().find(|frame| frame.spec.has_window(slice, window));
        let unknown = || own.refuse("its group has datasets that are not known here: open the archive again");
        found.ok_or_else(unknown)
    }

    /// How the engine is told of a slice: as one of the dataset whose slice it is, or of one that shares it.
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

    /// The names of the other datasets whose rows lie in the same slices, which are dropped with them.
    pub fn shares_slices_with(&self) -> Vec<DatasetName> {
        self.sharers().iter().map(|frame| frame.spec.name.clone()).collect()
    }

    /// The other datasets that have the same slices.
    pub(crate) fn sharers(&self) -> Vec<Frame> {
        let own = self.frame().spec;
        let others = self.frames().into_iter().filter(|frame| frame.spec.name != own.name);
        others.filter(|frame| frame.spec.slices_named() == own.slices_named()).collect()
    }

    /// The definitions of all datasets of its group, or its own.
    pub(crate) fn frames(&self) -> Vec<Frame> {
        let own = self.frame();
        if own.spec.group.is_none() {
            return vec![own];
        }
        self.shared.common.frames.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Whether attempts at new batches put their chunks before they say anything in the catalog. Where a commit is one step, or slices
    /// are not closed before they are dropped, nothing would be gained by it.
    pub(crate) fn puts_unclaimed(&self) -> bool {
        !self.store.capabilities().atomic_commits && self.fence.needs_closing()
    }

    /// The number of the dataset in its group whose slice it is; 0 where there is no group.
    pub(crate) fn owner_of(&self, slice: SliceId) -> u8 {
        if self.frame().spec.group.is_some() { Membership::owner_of(slice) } else { 0 }
    }

    /// Reads the definitions of these datasets of its group again, if one of the group has changed: with one look into the catalog
    /// if none has. With `fresh`, a look of the last seconds counts where one is a request to nodes.
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
        let name = self.frame().dataset.name;
        let Some(stored) = self.reading.record(&catalog::group_key(name.as_str())).await? else {
            return Err(ArchiveError::GroupNotFound { name: name.to_string(), hint: "; it was dropped".into() });
        };
        if seen.is_none_or(|(known, _)| known != stored) {
            try_join_all(datasets.iter().map(Self::refresh)).await?;
        }
        self.shared.common.saw_group(stored);
        Ok(())
    }

    /// Its slices that exist, ascending.
    pub(crate) async fn slices(&self) -> Result<Vec<SliceId>> {
        let frame = self.frame();
        let mut slices = self.store().slices(&frame.dataset).await?;
        slices.retain(|slice| frame.spec.has_slice(*slice));
        Ok(slices)
    }

    /// The chunks of these keys with their bodies, whichever datasets of the group they are of; those that do not exist are left out.
    pub(crate) async fn fetch(&self, keys: Vec<ChunkKey>) -> Result<Vec<Chunk>> {
        let mut found = Vec::new();
        for keys in self.by_owner(keys) {
            let dataset = self.home_of(keys[0].slice)?;
            found.extend(self.store().fetch(&dataset, keys).await?);
        }
        Ok(found)
    }

    /// Keys by the dataset of the group in whose slices they are.
    fn by_owner(&self, keys: Vec<ChunkKey>) -> Vec<Vec<ChunkKey>> {
        let mut parts: BTreeMap<u8, Vec<ChunkKey>> = BTreeMap::new();
        keys.into_iter().for_each(|key| parts.entry(self.owner_of(key.slice)).or_default().push(key));
        parts.into_values().collect()
    }

    /// What reads are charged to.
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

    fn set_frame(&self, frame: Frame, stored: Bytes) {
        let mut known = self.shared.known.write().unwrap_or_else(PoisonError::into_inner);
        // A dataset that was dropped and created again has none of the slices that were there.
        self.known_slices(HashSet::clear);
        self.known_superseded(|known| *known = KnownSuperseded::default());
        self.shared.common.put_frame(&frame);
        *known = Known { frame, stored, revision: known.revision + 1, looked: Instant::now() };
    }

    /// Reads the definition again, in case another process added columns, or dropped the dataset and created another of its name.
    ///
    /// # Errors
    /// There is no dataset of this name any more.
    pub async fn refresh(&self) -> Result<()> {
        let (key, looked) = (catalog::dataset_key(self.spec().name.as_str()), Instant::now());
        let Some(stored) = self.reading.record(&key).await? else {
            return Err(ArchiveError::dropped(self.spec().name.to_string()));
        };
        // Every read comes by here, and the definition seldom changes.
        let changed = self.known().stored != stored;
        if changed {
            let frame = Frame::new(catalog::from_json(&key, &stored)?, self.clock())?;
            self.set_frame(frame, stored);
        } else {
            self.shared.known.write().unwrap_or_else(PoisonError::into_inner).looked = looked;
        }
        Ok(())
    }

    /// The same for all datasets of its group.
    ///
    /// # Errors
    /// As [`Self::refresh`].
    pub(crate) async fn refresh_group(&self) -> Result<()> {
        self.refresh().await?;
        let own = self.spec().name.clone();
        for frame in self.frames().into_iter().filter(|frame| frame.spec.name != own) {
            let key = catalog::dataset_key(frame.spec.name.as_str());
            if let Some((spec, _)) = catalog::get::<DatasetSpec>(self.reading.as_ref(), &key).await?
                && spec != *frame.spec
            {
                self.shared.common.put_frame(&Frame::new(spec, self.clock())?);
            }
        }
        Ok(())
    }

    /// The same before a write, which would otherwise file rows by the windows of a dataset that is gone. Where a look is a request
    /// to nodes, one of the last seconds counts.
    pub(crate) async fn refresh_to_write(&self) -> Result<()> {
        if self.fence.needs_closing() && self.known().looked.elapsed() < LOOKED_FRESH {
            return Ok(());
        }
        self.refresh().await
    }

    /// Adds columns at the end. Rows written earlier read as null there, or as the default given.
    ///
    /// # Errors
    /// A name that is taken, a type that cannot be stored, a column that allows no nulls and has no default.
    pub async fn add_columns(&self, columns: Vec<AddedColumn>) -> Result<()> {
        self.alter(|spec| {
            let mut fields: Vec<Field> = spec.schema.fields().iter().map(|f| f.as_ref().clone()).collect();
            for column in &columns {
                fields.push(added_field(spec, column)?);
            }
            spec.schema = normalize_schema(&Schema::new_with_metadata(fields, spec.schema.metadata().clone()))?;
            spec.schema_versions.push(spec.schema.fields().len() as u32);
            Ok(())
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

    /// Sets how far apart two versions of a record may lie, in degrees; 0 where records do not move.
    ///
    /// # Errors
    /// No angle of 0 to 10 degrees; a dataset without merge `latest` or sky pixels.
    pub async fn set_moves(&self, moves_deg: f64) -> Result<()> {
        self.alter(|spec| {
            spec.moves_deg = moves_deg;
            Ok(spec.check_moves()?)
        })
        .await
    }

    /// Changes the definition in the catalog, again from the start where somebody else was first.
    pub(crate) async fn alter(&self, change: impl Fn(&mut DatasetSpec) -> Result<()>) -> Result<()> {
        let key = catalog::dataset_key(self.spec().name.as_str());
        loop {
            let Some((mut spec, bytes)) = catalog::get::<DatasetSpec>(self.store(), &key).await? else {
                return self.refresh().await;
            };
            change(&mut spec)?;
            spec.check_layout()?;
            let frame = Frame::new(spec.clone(), self.clock())?;
            let stored = catalog::to_json(&key, &spec)?;
            let mut before = vec![catalog::put(key.clone(), stored.clone(), Expect::Is(bytes))];
            before.extend(group_change(self.store(), &self.clock(), &spec).await?);
            match self.store.commit(&frame.dataset, Commit { before, ..Commit::default() }).await {
                Ok(()) => {
                    self.set_frame(frame, stored);
                    return Ok(());
                }
                Err(StoreError::RecordConflict { .. }) => continue,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Commits, making the slices that the chunks need.
    pub(crate) async fn commit(&self, mut commit: Commit) -> Result<()> {
        if !commit.put.is_empty() {
            commit.stamp_us = self.clock().last_us();
        }
        if self.store.capabilities().atomic_commits {
            return self.commit_to(self.frame().dataset, commit).await;
        }
        let Commit { before, put, remove, require_removed, after, stamp_us } = commit;
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
        // Each step is durable before the next, as within one commit; what slices of one dataset get is independent of the others.
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
                // The slice was retired since we last saw it, and nothing was put. Our rows are newer than that drop.
                Err(StoreError::NoSlice { slice, .. }) => {
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

/// What is to be put with a changed definition for those who read all datasets of its group.
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

/// The field as it is stored: with its default as text in the metadata.
fn added_field(spec: &DatasetSpec, column: &AddedColumn) -> Result<Field> {
    let refuse = |reason: &str| ArchiveError::Immutable {
        dataset: spec.name.clone(),
        part: format!("column {:?}", column.field.name()),
        reason: reason.to_owned(),
    };
    if spec.schema.field_with_name(column.field.name()).is_ok() {
        return Err(refuse("it exists already, and columns are only added"));
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
    // What is read back must be the value given: types without an exact text form have no defaults.
    match default_value(&field) {
        Ok(Some(read)) if read.as_ref() == default.as_ref() => Ok(field),
        _ => Err(refuse("a default of this type is not supported: add the column without one")),
    }
}
