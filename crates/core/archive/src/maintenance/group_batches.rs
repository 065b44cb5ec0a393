//! Lists and removes batches of groups.

use std::collections::HashSet;

use chronotile_types::{BatchId, DatasetName};

use crate::catalog::{self, BatchRecord, Intent};
use crate::dataset::Dataset;
use crate::error::Result;
use crate::group::Group;
use crate::maintenance::batches;
use crate::report::BatchInfo;

impl Group {
    /// The batch with this key; `None` if there is none.
    ///
    /// # Errors
    /// The engine.
    pub async fn batch(&self, key: &str) -> Result<Option<GroupBatch>> {
        let (dataset, batch) = (self.first().reader(), BatchId::of_key(key));
        let home = &dataset.frame().dataset;
        // The intent is read first, so that the record reveals a write that ends between the two reads.
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

    /// Its batches by write stamp, including unfinished ones, which are marked.
    ///
    /// # Errors
    /// The engine.
    pub async fn batches(&self) -> Result<Vec<GroupBatch>> {
        let dataset = self.first().reader();
        let home = &dataset.frame().dataset;
        // Intents are read first: a batch that ends between the two reads then has a record, so that it is listed in
        // any case.
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

    /// Removes a batch from all datasets to which it was written, as [`Dataset::remove_batch`] does. Returns the number
    /// of its rows that were not already retired.
    ///
    /// # Errors
    /// As [`Dataset::remove_batch`].
    pub async fn remove_batch(&self, key: &str) -> Result<u64> {
        self.first().remove_from_all(key).await
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
    /// Whether it is stored; otherwise it has begun and may still be being written.
    pub finished: bool,
    /// The datasets that it was written to, in the order of the group; empty for an unfinished batch.
    pub datasets: Vec<(DatasetName, BatchInfo)>,
}

impl GroupBatch {
    fn unfinished(batch: BatchId, intent: Intent) -> Self {
        let Intent { key, written_us, .. } = intent;
        Self { key, batch, written_us, finished: false, datasets: vec![] }
    }
}
