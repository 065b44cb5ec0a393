//! Groups: datasets that are written together.
//!
//! A batch is one over all datasets of its group: it has one record, so it counts in all of them or in none. Engine and catalog keep
//! the chunks and batches of all under the name of the group; each dataset has slices of its own, told apart by its number in their
//! upper bits ([`chronotile_types::Membership`]).

use std::collections::HashSet;
use std::sync::Arc;

use chronotile_store::{Expect, RecordPut};
use chronotile_types::{BatchId, DatasetName, DatasetSpec, GROUP_DATASETS_MAX, Membership, SpecError, name_hint};

use crate::archive::Archive;
use crate::catalog::{self, BatchRecord, GroupRecord, Intent};
use crate::dataset::Dataset;
use crate::error::{ArchiveError, Result};
use crate::maintenance::batches;
use crate::report::BatchInfo;

/// The datasets of a group. Cheap to clone; safe to use from many threads and processes at once.
#[derive(Clone, Debug)]
pub struct Group {
    name: DatasetName,
    /// By number; at least one.
    datasets: Arc<[Dataset]>,
}

impl Group {
    /// Opens a group of an archive.
    ///
    /// # Errors
    /// No group of this name; the engine.
    pub(crate) async fn open(archive: &Archive, name: &str) -> Result<Self> {
        let store = archive.store().as_ref();
        let Some((record, _)) = catalog::get::<GroupRecord>(store, &catalog::group_key(name)).await? else {
            return Err(ArchiveError::GroupNotFound { name: name.to_owned(), hint: archive.groups_hint(name).await? });
        };
        let common = archive.common();
        let mut datasets = Vec::with_capacity(record.datasets.len());
        for name in &record.datasets {
            let key = catalog::dataset_key(name.as_str());
            let Some((spec, stored)) = catalog::get::<DatasetSpec>(store, &key).await? else {
                return Err(ArchiveError::DatasetNotFound { name: name.to_string(), hint: "; it was dropped".into() });
            };
            datasets.push(archive.opened(spec, stored, common.clone())?);
        }
        let name = DatasetName::new(name).map_err(SpecError::from)?;
        Ok(Self { name, datasets: datasets.into() })
    }

    /// Its name.
    pub fn name(&self) -> &DatasetName {
        &self.name
    }

    /// Its datasets, in the order in which they joined it.
    pub fn datasets(&self) -> &[Dataset] {
        &self.datasets
    }

    /// One of its datasets.
    ///
    /// # Errors
    /// It has none of this name.
    pub fn dataset(&self, name: &str) -> Result<&Dataset> {
        self.datasets.iter().find(|dataset| dataset.spec().name.as_str() == name).ok_or_else(|| {
            let names: Vec<String> = self.datasets.iter().map(|dataset| dataset.spec().name.to_string()).collect();
            let hint = format!(" in group {}{}", self.name, name_hint(name, &names));
            ArchiveError::DatasetNotFound { name: name.to_owned(), hint }
        })
    }

    /// The batch of this key; `None` where there is none.
    ///
    /// # Errors
    /// The engine.
    pub async fn batch(&self, key: &str) -> Result<Option<GroupBatch>> {
        let (dataset, batch) = (self.first().reader(), BatchId::of_key(key));
        let home = &dataset.frame().dataset;
        let begun = catalog::get::<Intent>(dataset.store(), &catalog::intent_key(home, batch)).await?;
        let stored = catalog::get::<BatchRecord>(dataset.store(), &catalog::batch_key(home, batch)).await?;
        let of_removal =
            |record: &BatchRecord, intent: &Intent| record.removed && record.written_us == intent.written_us;
        match (stored, begun) {
            (Some((record, _)), _) if !record.removed => Ok(Some(self.stored(&dataset, batch, &record).await?)),
            (Some((record, _)), Some((intent, _))) if of_removal(&record, &intent) => Ok(None),
            (_, Some((intent, _))) => Ok(Some(GroupBatch::unfinished(batch, intent))),
            _ => Ok(None),
        }
    }

    /// Its batches by write stamp, unfinished ones included and marked so.
    ///
    /// # Errors
    /// The engine.
    pub async fn batches(&self) -> Result<Vec<GroupBatch>> {
        let dataset = self.first().reader();
        let home = &dataset.frame().dataset;
        let begun = catalog::unfinished(dataset.store(), home).await?;
        let mut batches = Vec::new();
        let mut ended = HashSet::new();
        for (batch, record) in catalog::finished(dataset.store(), home).await?.into_iter().filter(|(_, r)| !r.removed) {
            ended.insert(batch);
            batches.push(self.stored(&dataset, batch, &record).await?);
        }
        let begun = begun.into_iter().filter(|(batch, _)| !ended.contains(batch));
        batches.extend(begun.map(|(batch, intent)| GroupBatch::unfinished(batch, intent)));
        batches.sort_by_key(|batch| (batch.written_us, batch.batch));
        Ok(batches)
    }

    async fn stored(&self, dataset: &Dataset, batch: BatchId, record: &BatchRecord) -> Result<GroupBatch> {
        let mut datasets = Vec::new();
        for frame in dataset.frames() {
            if let Some(own) = record.of_dataset(frame.spec.group.as_ref()) {
                let retired = dataset.retirement(batch, record, Some(&frame.spec)).await?;
                datasets.push((frame.spec.name.clone(), batches::info(batch, own, &retired)));
            }
        }
        Ok(GroupBatch { key: record.key.clone(), batch, written_us: record.written_us, finished: true, datasets })
    }

    /// Takes a batch out of all datasets that it was written to, as [`Dataset::remove_batch`] does, and returns how many rows it had
    /// that were not retired before.
    ///
    /// # Errors
    /// As [`Dataset::remove_batch`].
    pub async fn remove_batch(&self, key: &str) -> Result<u64> {
        self.first().remove_from_all(key).await
    }

    /// The dataset through which what concerns all of them is done.
    pub(crate) fn first(&self) -> &Dataset {
        &self.datasets[0]
    }
}

/// A batch of a group.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupBatch {
    /// The key its writer gave; `None` for one without.
    pub key: Option<String>,
    /// Its id.
    pub batch: BatchId,
    /// Write stamp of its rows, microseconds since 1970.
    pub written_us: i64,
    /// Whether it is stored; otherwise it was begun and may be on its way.
    pub finished: bool,
    /// The datasets that it was written to, by their order in the group; none of an unfinished batch.
    pub datasets: Vec<(DatasetName, BatchInfo)>,
}

impl GroupBatch {
    fn unfinished(batch: BatchId, intent: Intent) -> Self {
        let Intent { key, written_us, .. } = intent;
        Self { key, batch, written_us, finished: false, datasets: vec![] }
    }
}

impl Archive {
    /// Opens a group.
    ///
    /// # Errors
    /// No group of this name; the engine.
    pub async fn group(&self, name: &str) -> Result<Group> {
        Group::open(self, name).await
    }

    /// The names of all groups, in order.
    pub async fn group_names(&self) -> Result<Vec<String>> {
        let prefix = catalog::group_key("");
        let records = catalog::list(self.store().as_ref(), &prefix).await?;
        Ok(records.iter().filter_map(|record| record.key.strip_prefix(&prefix)).map(str::to_owned).collect())
    }

    async fn groups_hint(&self, name: &str) -> Result<String> {
        let names = self.group_names().await?;
        Ok(if names.is_empty() { "; it has none".to_owned() } else { name_hint(name, &names) })
    }

    /// A definition with its number in the group that it names, and what is to be put with it.
    pub(crate) async fn joined(&self, spec: DatasetSpec) -> Result<(DatasetSpec, Vec<RecordPut>)> {
        // Datasets and groups share their names.
        let free = catalog::no_record(catalog::group_key(spec.name.as_str()));
        let Some(Membership { group, .. }) = &spec.group else { return Ok((spec, vec![free])) };
        let key = catalog::group_key(group.as_str());
        let found = catalog::get::<GroupRecord>(self.store().as_ref(), &key).await?;
        let (mut record, bytes) = found.map_or_else(Default::default, |(record, bytes)| (record, Some(bytes)));
        let number = record.datasets.iter().position(|name| *name == spec.name).unwrap_or(record.datasets.len());
        if number >= GROUP_DATASETS_MAX {
            return Err(SpecError::Limit {
                setting: "group",
                value: group.to_string(),
                expected: "a group has at most 16 datasets",
            }
            .into());
        }
        let mut before = vec![free];
        if number == record.datasets.len() {
            if bytes.is_none() {
                before.push(catalog::no_record(catalog::dataset_key(group.as_str())));
            }
            record.datasets.push(spec.name.clone());
            let expect = bytes.map_or(Expect::Absent, Expect::Is);
            before.push(catalog::put(key.clone(), catalog::to_json(&key, &record)?, expect));
        }
        let group = Membership { group: group.clone(), number: number as u8 };
        Ok((DatasetSpec { group: Some(group), ..spec }, before))
    }
}
