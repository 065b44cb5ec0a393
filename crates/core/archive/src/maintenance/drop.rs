//! Drops datasets, and prepares their names for reuse.

use std::time::Duration;

use chronotile_store::{Commit, DatasetRef, DropSlice, Expect, RecordPut, StoreError};
use chronotile_types::DatasetName;

use crate::LOG;
use crate::archive::Archive;
use crate::catalog::{self, DroppedRecord, fence, superseded};
use crate::dataset::Dataset;
use crate::error::{ArchiveError, Result};

/// Kinds of records with one record per item, under `KIND/NAME/ITEM`: `KINDS` by dataset or group, `INDEX_KINDS` by
/// dataset.
const KINDS: [&str; 5] = ["batch", "intent", "superseded", "part", "retired"];
const INDEX_KINDS: [&str; 3] = ["index", "lease", "posting"];
/// Records deleted in one commit.
const RECORDS: usize = 500;

impl Archive {
    /// Drops a dataset with all its rows, permanently. After an interrupted drop the dataset still exists with fewer
    /// rows: drop it again.
    ///
    /// A write that begins later is refused, or uses the definition of a new dataset of that name. Before a dataset can
    /// be created under the name again, whatever writes in progress left behind is removed. On a cluster writers rely
    /// on the definition for some seconds after reading it, so creation waits that long. Only a writer that was paused
    /// meanwhile can leave rows behind.
    ///
    /// # Errors
    /// No such dataset; the engine.
    pub async fn drop_dataset(&self, name: &str) -> Result<()> {
        let dataset = self.dataset(name).await?;
        if let Some(group) = &dataset.spec().group {
            let reason = format!("batches cover all datasets of group {0}: drop the whole group {0}", group.group);
            return Err(ArchiveError::Request { dataset: dataset.spec().name.clone(), reason });
        }
        let key = catalog::dataset_key(name);
        self.drop_stored(&dataset, vec![key]).await
    }

    /// Drops a group with all its datasets and their rows, as [`Archive::drop_dataset`] drops a dataset.
    ///
    /// # Errors
    /// No such group; the engine.
    pub async fn drop_group(&self, name: &str) -> Result<()> {
        let group = self.group(name).await?;
        let mut keys: Vec<String> =
            group.datasets().iter().map(|dataset| catalog::dataset_key(dataset.spec().name.as_str())).collect();
        keys.push(catalog::group_key(name));
        self.drop_stored(group.first(), keys).await
    }

    /// Drops all slices and records of a dataset or a group, and these definitions last.
    async fn drop_stored(&self, dataset: &Dataset, definitions: Vec<String>) -> Result<()> {
        let home = dataset.frame().dataset;
        let datasets: Vec<DatasetName> = dataset.frames().iter().map(|frame| frame.spec.name.clone()).collect();
        self.clear(&home, &datasets, &[]).await?;
        // The definitions go last: until then the datasets exist, and an interrupted drop can be repeated.
        let mut after: Vec<RecordPut> = definitions.into_iter().map(catalog::delete).collect();
        let key = catalog::dropped_key(home.name.as_str());
        // The stamp is taken right before the commit: writers may read the definitions until then, and `take_over_name`
        // waits from this stamp.
        let dropped_us = self.clock().stamp_us(self.store().as_ref()).await?;
        let value = catalog::to_json(&key, &DroppedRecord { dropped_us, datasets })?;
        after.push(catalog::put(key, value, Expect::Any));
        // Keys of two parts are one group of records, which every engine changes in one step: no process finds the
        // definitions gone without the `dropped` record.
        Ok(self.store().commit(&home, Commit { after, ..Commit::default() }).await?)
    }

    /// Removes all slices and records, except the definitions, of these datasets, which are all datasets of `home`;
    /// each step under these conditions.
    async fn clear(&self, home: &DatasetRef, datasets: &[DatasetName], conditions: &[RecordPut]) -> Result<()> {
        let store = self.store();
        for slice in store.slices(home).await? {
            store.drop_slice(home, slice, DropSlice { before: conditions.to_vec(), ..DropSlice::default() }).await?;
        }
        let mut prefixes: Vec<String> = KINDS.iter().map(|kind| catalog::items(kind, home)).collect();
        for name in datasets {
            prefixes.extend(INDEX_KINDS.iter().map(|kind| format!("{kind}/{name}/")));
        }
        let mut keys = vec![superseded::head_key(home), catalog::copy_key(home)];
        for prefix in prefixes {
            keys.extend(catalog::list(store.as_ref(), &prefix).await?.into_iter().map(|record| record.key));
        }
        for some in keys.chunks(RECORDS) {
            let mut before = conditions.to_vec();
            before.extend(some.iter().cloned().map(catalog::delete));
            store.commit(home, Commit { before, ..Commit::default() }).await?;
        }
        Ok(())
    }

    /// Removes what writers left behind of a dropped dataset or group of this name, once none of them can rely on its
    /// definition any longer. Returns the condition under which the name can be taken.
    ///
    /// # Errors
    /// The engine.
    pub(crate) async fn take_over_name(&self, home: &DatasetRef) -> Result<RecordPut> {
        let key = catalog::dropped_key(home.name.as_str());
        let Some((dropped, bytes)) = catalog::get::<DroppedRecord>(self.store().as_ref(), &key).await? else {
            return Ok(catalog::no_record(key));
        };
        let now_us = self.clock().stamp_us(self.store().as_ref()).await?;
        // If the clock has been set back, the difference is negative: this process then waits the whole time.
        let since = Duration::from_micros(now_us.saturating_sub(dropped.dropped_us).try_into().unwrap_or(0));
        let wait = fence::WAIT.saturating_sub(since);
        if self.fence().needs_closing() && !wait.is_zero() {
            tracing::info!(target: LOG, name = %home.name, ?wait, "waiting until writers know that it was dropped");
            tokio::time::sleep(wait).await;
        }
        // Another process may take the name and write rows meanwhile: then a definition exists, and the `dropped`
        // record does not. Nothing that has a definition is ever removed, whatever happened to that record.
        let name = home.name.as_str();
        let conditions = [
            catalog::unchanged(key.clone(), bytes.clone()),
            catalog::no_record(catalog::dataset_key(name)),
            catalog::no_record(catalog::group_key(name)),
        ];
        // A conflict need not be reported here: the commit that takes the name has the returned condition, and that no
        // definition exists, and fails too.
        match self.clear(home, &dropped.datasets, &conditions).await {
            Ok(()) | Err(ArchiveError::Store(StoreError::RecordConflict { .. })) => {}
            Err(error) => return Err(error),
        }
        Ok(catalog::delete_known(key, bytes))
    }
}
