//! Ownership of a dataset on the target: the definition that it must have, and the record that makes it a copy.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use chronotile_store::{Commit, DatasetRef, Expect, RecordPut, Store, StoreError};
use chronotile_types::{DatasetSpec, StorageLayout};
use tokio::time::Instant;

use super::ledger::Ledger;
use super::{Copy, CopyOptions, Shared, lost_race};
use crate::archive::Archive;
use crate::catalog::{self, CopyRecord, GroupRecord};
use crate::dataset::{Dataset, group_change};
use crate::error::{ArchiveError, Result};
use crate::frame::difference;
use crate::url::{identifies_archive, location};

/// The copy record that this run has put for the dataset; for a comparison, an empty one that is not stored.
pub(super) struct Claim {
    pub record: CopyRecord,
}

/// Refuses to copy an archive to itself, as far as the URLs show.
pub(super) fn check_distinct(source: &Archive, target: &Archive) -> Result<()> {
    let same_location = identifies_archive(source.url()) && location(source.url()) == location(target.url());
    if same_location || Arc::ptr_eq(source.store(), target.store()) {
        return Err(ArchiveError::SameArchive { url: target.url().to_owned() });
    }
    Ok(())
}

/// Creates or finds the dataset on the target and claims it for a copy.
pub(super) async fn begin(
    source: &Archive,
    dataset: &Dataset,
    target: &Archive,
    options: &CopyOptions,
) -> Result<Copy> {
    let home = dataset.frame().dataset;
    let copy_key = catalog::copy_key(&home);
    let store = target.store().as_ref();
    let claimed = catalog::get::<CopyRecord>(store, &copy_key).await?;
    let clock = target.clock();
    let attempt = clock.token();
    let fresh = CopyRecord {
        source: location(source.url()),
        copy: clock.token(),
        attempt: attempt.clone(),
        begun_us: clock.about_now_us(),
        caught_up_us: None,
    };
    // An earlier claim keeps its `copy`, which the records of its batches carry; a run only has an attempt of its own.
    let record = match &claimed {
        Some((record, _)) => CopyRecord { source: fresh.source.clone(), attempt, ..record.clone() },
        None => fresh,
    };
    let mut before = group_records(source, dataset, target).await?;
    let mut exists = false;
    for spec in specs_on_target(dataset, target) {
        let key = catalog::dataset_key(spec.name.as_str());
        match catalog::get::<DatasetSpec>(store, &key).await? {
            None => before.push(catalog::put(key.clone(), catalog::to_json(&key, &spec)?, Expect::Absent)),
            Some((theirs, _)) => {
                check_definition(&theirs, &spec)?;
                exists = true;
            }
        }
    }
    match &claimed {
        Some((claimed, _)) if exists => check_lineage(source, target, &home, claimed, &record).await?,
        None if exists => check_empty(store, &home).await?,
        _ => {}
    }
    let first = claimed.is_none();
    let expect = claimed.map_or(Expect::Absent, |(_, bytes)| Expect::Is(bytes));
    // The keys of definitions, of the group and of the claim have two parts each: they are one group of records, which
    // every engine puts in one step. The target never has a new dataset without its claim.
    before.push(catalog::put(copy_key.clone(), catalog::to_json(&copy_key, &record)?, expect));
    let shared = shared(dataset, target, Claim { record }, options)?;
    put(&shared, before).await?;
    check_same(&shared, source, first).await?;
    Ok(Copy { shared })
}

/// The definitions that the copied datasets have on the target.
fn specs_on_target(dataset: &Dataset, target: &Archive) -> Vec<DatasetSpec> {
    dataset.frames().iter().map(|frame| on_target(&frame.spec, target)).collect()
}

/// Puts that create the group of the datasets on the target, or add the datasets that it lacks.
async fn group_records(source: &Archive, dataset: &Dataset, target: &Archive) -> Result<Vec<RecordPut>> {
    let Some(group) = dataset.spec().group.as_ref().map(|member| member.group.clone()) else { return Ok(vec![]) };
    let key = catalog::group_key(group.as_str());
    let ours = catalog::get::<GroupRecord>(source.store().as_ref(), &key).await?;
    let theirs = catalog::get::<GroupRecord>(target.store().as_ref(), &key).await?;
    let Some((ours, bytes)) = ours else { return Ok(vec![]) };
    match theirs {
        None => Ok(vec![catalog::put(key, bytes, Expect::Absent)]),
        Some((theirs, _)) if theirs.datasets == ours.datasets => Ok(vec![]),
        Some((theirs, stored)) if ours.datasets.starts_with(&theirs.datasets) => {
            Ok(vec![catalog::put(key, bytes, Expect::Is(stored))])
        }
        Some(_) => {
            let difference = " on the target with another list of datasets".to_owned();
            Err(ArchiveError::DatasetExists { name: group, difference })
        }
    }
}

/// Finds the dataset on the target for a comparison, without changing anything.
pub(super) async fn compare(dataset: &Dataset, target: &Archive, options: &CopyOptions) -> Result<Copy> {
    for spec in specs_on_target(dataset, target) {
        let theirs = target.dataset(spec.name.as_str()).await?;
        check_definition(&theirs.spec(), &spec)?;
    }
    let none = String::new();
    let record =
        CopyRecord { source: none.clone(), copy: none.clone(), attempt: none, begun_us: 0, caught_up_us: None };
    Ok(Copy { shared: shared(dataset, target, Claim { record }, options)? })
}

fn shared(dataset: &Dataset, target: &Archive, claim: Claim, options: &CopyOptions) -> Result<Arc<Shared>> {
    let (common, unknown) = (target.common(), (Bytes::new(), Instant::now()));
    for spec in specs_on_target(dataset, target) {
        // Opening a dataset enters its definition in `common`, from which `into` takes those of its whole group.
        target.opened(spec, unknown.clone(), common.clone())?;
    }
    let into = target.opened(on_target(&dataset.spec(), target), unknown, common)?;
    Ok(Arc::new(Shared {
        from: dataset.clone(),
        source: dataset.store_arc(),
        target: into.store_arc(),
        home: dataset.frame().dataset,
        into,
        claim,
        workers: options.workers.clamp(1, 64),
    }))
}

/// The definition of the copy. Chunks are copied unchanged, so on a target without native rows the layout is chunks.
fn on_target(spec: &DatasetSpec, target: &Archive) -> DatasetSpec {
    let layout = if target.store().capabilities().native_rows { spec.layout } else { StorageLayout::Chunks };
    DatasetSpec { layout, ..spec.clone() }
}

async fn put(shared: &Shared, before: Vec<RecordPut>) -> Result<()> {
    match shared.target.commit(&shared.home, Commit { before, ..Commit::default() }).await {
        Err(StoreError::RecordConflict { .. }) => Err(lost_race(shared)),
        result => Ok(result?),
    }
}

/// Chunks refer to schema versions by number, so both sides must have the same history of columns; the target may
/// lack the newest ones.
fn check_definition(theirs: &DatasetSpec, ours: &DatasetSpec) -> Result<()> {
    let widened = widened(theirs, ours);
    let difference = difference(&widened, ours)
        .or_else(|| (widened.schema_versions != ours.schema_versions).then_some("history of added columns"));
    match difference {
        None => Ok(()),
        Some(part) => Err(ArchiveError::DatasetExists {
            name: ours.name.clone(),
            difference: format!(" on the target with another {part}"),
        }),
    }
}

/// The target's definition with the columns that the source has gained since.
fn widened(theirs: &DatasetSpec, ours: &DatasetSpec) -> DatasetSpec {
    let (fields, more) = (theirs.schema.fields(), ours.schema.fields());
    let begins_alike = more.iter().take(fields.len()).eq(fields.iter());
    let mut widened = theirs.clone();
    if begins_alike && fields.len() < more.len() && ours.schema_versions.starts_with(&theirs.schema_versions) {
        widened.schema = ours.schema.clone();
        widened.schema_versions = ours.schema_versions.clone();
    }
    widened
}

/// Refuses to copy a different dataset over an earlier copy: the sources must have the same location, or at least one
/// batch in common, unchanged.
async fn check_lineage(
    source: &Archive,
    target: &Archive,
    home: &DatasetRef,
    claimed: &CopyRecord,
    ours: &CopyRecord,
) -> Result<()> {
    if claimed.source == ours.source {
        return Ok(());
    }
    let there = Ledger::read(target.store().as_ref(), home).await?;
    let here = Ledger::read(source.store().as_ref(), home).await?;
    let common = |(batch, known): (&chronotile_types::BatchId, &super::ledger::BatchSummary)| {
        here.finished.get(batch).is_some_and(|ours| ours.fingerprint == known.fingerprint)
    };
    // A copy that has brought no batch yet may continue from any source.
    if there.finished.is_empty() || there.finished.iter().any(common) {
        return Ok(());
    }
    let reason = format!("it was copied from {}, and shares no unchanged batch with {}", claimed.source, ours.source);
    Err(ArchiveError::NotACopy { dataset: home.name.clone(), reason })
}

/// A dataset that was not made by a copy may become one while it is empty.
async fn check_empty(store: &dyn Store, home: &DatasetRef) -> Result<()> {
    let refuse = |reason: &str| {
        Err(ArchiveError::NotACopy {
            dataset: home.name.clone(),
            reason: format!("it was not made by a copy and {reason}"),
        })
    };
    let ledger = Ledger::read(store, home).await?;
    if !ledger.begun.is_empty() || !ledger.finished.is_empty() {
        return refuse("has batches");
    }
    for slice in store.slices(home).await? {
        if !store.statistics(home, slice).await?.is_empty() {
            return refuse("has chunks");
        }
    }
    Ok(())
}

/// Detects two URLs of the same archive: the source then has the record that was put on the target. Removes the
/// record if it was not there before.
async fn check_same(shared: &Shared, source: &Archive, first: bool) -> Result<()> {
    let key = catalog::copy_key(&shared.home);
    match catalog::get::<CopyRecord>(source.store().as_ref(), &key).await? {
        Some((record, bytes)) if record.attempt == shared.claim.record.attempt => {
            if first {
                put(shared, vec![catalog::delete_known(key, bytes)]).await?;
            }
        }
        _ => return Ok(()),
    }
    Err(ArchiveError::SameArchive { url: source.url().to_owned() })
}

impl Claim {
    /// Stops this run if another one has taken over the copy.
    pub(super) async fn check(&self, shared: &Shared) -> Result<()> {
        self.stored(shared).await.map(drop)
    }

    /// The record on the target, if it still belongs to this run.
    async fn stored(&self, shared: &Shared) -> Result<(CopyRecord, Bytes)> {
        let key = catalog::copy_key(&shared.home);
        match catalog::get::<CopyRecord>(shared.target.as_ref(), &key).await? {
            Some((found, bytes)) if found.attempt == self.record.attempt => Ok((found, bytes)),
            _ => Err(lost_race(shared)),
        }
    }

    /// Records that the target has everything that was finished on the source. If it is not `settled`, it also has
    /// chunks of batches that the source has begun to change: readers must then look up the records of batches, as
    /// they do before a copy has caught up.
    pub(super) async fn note_caught_up(&self, shared: &Shared, settled: bool) -> Result<()> {
        // Consolidated chunks may contain rows that no longer count on the source either.
        let superseded = shared.from.superseded_batches().await?;
        if !superseded.is_subset(shared.into.superseded_batches().await?.as_ref()) {
            shared.into.supersede_all(&superseded).await?;
        }
        shared.into.set_unsettled(!settled).await?;
        let key = catalog::copy_key(&shared.home);
        let (stored, bytes) = self.stored(shared).await?;
        let record = CopyRecord { caught_up_us: Some(shared.into.clock().about_now_us()), ..stored };
        put(shared, vec![catalog::put(key.clone(), catalog::to_json(&key, &record)?, Expect::Is(bytes))]).await
    }

    /// Adds the source's new columns on the target. Returns the number of schema versions of each dataset, by its
    /// number in the group.
    pub(super) async fn adopt_columns(&self, shared: &Shared) -> Result<HashMap<u8, usize>> {
        // A store with native rows must know the columns before it receives chunks that have them.
        shared.from.refresh_group().await?;
        let mut versions = HashMap::new();
        for frame in shared.into.frames() {
            let name = &frame.spec.name;
            let key = catalog::dataset_key(name.as_str());
            let gone = || ArchiveError::dropped(name.to_string());
            let (mut ours, _): (DatasetSpec, Bytes) =
                catalog::get(shared.source.as_ref(), &key).await?.ok_or_else(gone)?;
            let (theirs, bytes): (DatasetSpec, Bytes) =
                catalog::get(shared.target.as_ref(), &key).await?.ok_or_else(gone)?;
            // The layout may differ: a target without native rows stores chunks.
            ours.layout = frame.spec.layout;
            check_definition(&theirs, &ours)?;
            let widened = widened(&theirs, &ours);
            if widened != theirs {
                let put_wide = catalog::put(key.clone(), catalog::to_json(&key, &widened)?, Expect::Is(bytes));
                let mut before = vec![put_wide];
                before.extend(group_change(shared.target.as_ref(), &shared.into.clock(), &widened).await?);
                put(shared, before).await?;
                shared.into.refresh_group().await?;
            }
            versions.insert(ours.group.as_ref().map_or(0, |group| group.number), ours.schema_versions.len());
        }
        Ok(versions)
    }
}
