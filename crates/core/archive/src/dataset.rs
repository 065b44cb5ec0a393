use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use arrow_array::{Array, ArrayRef};
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use arrow_schema::{Field, Schema};
use bytes::Bytes;
use chronotile_chunk::Origin;
use chronotile_store::{CallOptions, Commit, Expect, Store, StoreError, Visibility};
use chronotile_types::{DatasetSpec, Duration, SliceId, normalize_schema};
use tokio::time::Instant;

use crate::LOG;
use crate::catalog;
use crate::catalog::clock::Clock;
use crate::catalog::fence::Fence;
use crate::catalog::superseded::KnownSuperseded;
use crate::error::{ArchiveError, Result};
use crate::frame::{DEFAULT_METADATA, Frame, default_value};
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
    /// Slices known to exist. One may have been retired since: the engine then says so.
    slices: RwLock<HashSet<SliceId>>,
    /// Attempts that were seen to count, and since when that is known.
    counting: RwLock<HashMap<Origin, Instant>>,
    superseded: RwLock<KnownSuperseded>,
    memory: MemoryLimit,
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
        memory: MemoryLimit,
        superseded_kept: std::time::Duration,
    ) -> Result<Self> {
        let known = Known { frame: Frame::new(spec, clock)?, stored, revision: 0, looked: Instant::now() };
        let shared = Shared {
            known: RwLock::new(known),
            slices: RwLock::default(),
            counting: RwLock::default(),
            superseded: RwLock::default(),
            memory,
        };
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

    /// What reads are charged to.
    pub(crate) fn memory(&self) -> Option<Memory> {
        self.shared.memory.read().unwrap_or_else(PoisonError::into_inner).clone()
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
        *known = Known { frame, stored, revision: known.revision + 1, looked: Instant::now() };
    }

    /// Reads the definition again, in case another process added columns, or dropped the dataset and created another of its name.
    ///
    /// # Errors
    /// There is no dataset of this name any more.
    pub async fn refresh(&self) -> Result<()> {
        let (key, looked) = (catalog::dataset_key(self.spec().name.as_str()), Instant::now());
        let Some(stored) = self.reading.record(&key).await? else {
            let name = self.spec().name.to_string();
            return Err(ArchiveError::DatasetNotFound { name, hint: "; it was dropped".into() });
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
            let put = catalog::put(key.clone(), stored.clone(), Expect::Is(bytes));
            match self.store.commit(&frame.dataset, Commit { before: vec![put], ..Commit::default() }).await {
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
        let dataset = self.frame().dataset;
        let slices: HashSet<SliceId> = commit.put.iter().map(|chunk| chunk.key.slice).collect();
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

    pub(crate) async fn ensure_slices(&self, slices: &HashSet<SliceId>) -> Result<()> {
        let missing: Vec<SliceId> =
            self.known_slices(|known| slices.iter().filter(|slice| !known.contains(slice)).copied().collect());
        for slice in missing {
            self.store.create_slice(&self.frame().dataset, slice).await?;
            self.known_slices(|known| known.insert(slice));
        }
        Ok(())
    }

    pub(crate) fn counting<T>(&self, use_it: impl FnOnce(&mut HashMap<Origin, Instant>) -> T) -> T {
        use_it(&mut self.shared.counting.write().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn known_superseded<T>(&self, use_it: impl FnOnce(&mut KnownSuperseded) -> T) -> T {
        use_it(&mut self.shared.superseded.write().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn known_slices<T>(&self, use_it: impl FnOnce(&mut HashSet<SliceId>) -> T) -> T {
        use_it(&mut self.shared.slices.write().unwrap_or_else(PoisonError::into_inner))
    }
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
