//! Dropping a dataset.

use chronotile_store::{Commit, DropSlice};

use crate::archive::Archive;
use crate::catalog::{self, superseded};
use crate::dataset::Dataset;
use crate::error::{ArchiveError, Result};

/// Kinds of records that are kept by the item, as `KIND/DATASET/ITEM`; in a group those of the group, and those of each dataset.
const KINDS: [&str; 5] = ["batch", "intent", "superseded", "part", "retired"];
const INDEX_KINDS: [&str; 3] = ["index", "lease", "posting"];
/// Records deleted in one commit.
const RECORDS: usize = 500;

impl Archive {
    /// Drops a dataset with all its rows, for good. One that is cut off half-way is there still, with fewer rows: drop it again.
    ///
    /// A write that begins later is refused, or follows the definition of the dataset that was made again under the name. One that
    /// began before, or on nodes within ten seconds of a look at the definition, may leave rows that a later dataset of the same
    /// name would take for its own: end its writers first.
    ///
    /// # Errors
    /// No such dataset; the engine.
    pub async fn drop_dataset(&self, name: &str) -> Result<()> {
        let dataset = self.dataset(name).await?;
        if let Some(group) = &dataset.spec().group {
            let reason = format!("batches are stored over all of group {0}: drop the whole group {0}", group.group);
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

    /// Drops all that is stored as a dataset is, and last these records.
    async fn drop_stored(&self, dataset: &Dataset, definitions: Vec<String>) -> Result<()> {
        let store = dataset.store();
        for frame in dataset.frames() {
            for slice in store.slices(&frame.dataset).await?.into_iter().filter(|slice| frame.spec.has_slice(*slice)) {
                store.drop_slice(&frame.dataset, slice, DropSlice::default()).await?;
            }
        }
        let mut prefixes: Vec<String> = Vec::new();
        for frame in dataset.frames() {
            prefixes.extend(INDEX_KINDS.iter().map(|kind| format!("{kind}/{}/", frame.spec.name)));
        }
        let dataset = &dataset.frame().dataset;
        prefixes.extend(KINDS.iter().map(|kind| catalog::items(kind, dataset)));
        for prefix in prefixes {
            let records = catalog::list(store, &prefix).await?;
            for some in records.chunks(RECORDS) {
                let before = some.iter().map(|record| catalog::delete(record.key.clone())).collect();
                store.commit(dataset, Commit { before, ..Commit::default() }).await?;
            }
        }
        let others = [superseded::head_key(dataset), catalog::copy_key(dataset)].map(catalog::delete);
        // The definitions go last: until then the datasets are there, and can be dropped again.
        let (before, after) = (others.to_vec(), definitions.into_iter().map(catalog::delete).collect());
        Ok(store.commit(dataset, Commit { before, after, ..Commit::default() }).await?)
    }
}
