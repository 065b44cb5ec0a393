//! Dropping a dataset.

use chronotile_store::{Commit, DropSlice};

use crate::archive::Archive;
use crate::catalog::{self, superseded};
use crate::error::Result;

/// Kinds of records that are kept by the item, as `KIND/DATASET/ITEM`.
const KINDS: [&str; 8] = ["batch", "intent", "superseded", "part", "retired", "index", "lease", "posting"];
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
        let (store, frame) = (dataset.store(), dataset.frame());
        let (dataset, name) = (&frame.dataset, &frame.spec.name);
        for slice in store.slices(dataset).await? {
            store.drop_slice(dataset, slice, DropSlice::default()).await?;
        }
        for kind in KINDS {
            let records = catalog::list(store, &format!("{kind}/{name}/")).await?;
            for some in records.chunks(RECORDS) {
                let before = some.iter().map(|record| catalog::delete(record.key.clone())).collect();
                store.commit(dataset, Commit { before, ..Commit::default() }).await?;
            }
        }
        let others = [superseded::head_key(name), catalog::copy_key(name)].map(catalog::delete);
        // The definition goes last: until then the dataset is there, and can be dropped again.
        let definition = catalog::delete(catalog::dataset_key(name.as_str()));
        let (before, after) = (others.to_vec(), vec![definition]);
        Ok(store.commit(dataset, Commit { before, after, ..Commit::default() }).await?)
    }
}
