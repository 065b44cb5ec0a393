//! Writing one batch into several datasets of a group.

use std::collections::HashSet;

use arrow_array::RecordBatch;
use arrow_schema::ArrowError;

use crate::error::Result;
use crate::group::Group;
use crate::report::WriteReport;
use crate::request::WriteOptions;

impl Group {
    /// Writes rows into some of its datasets, given by name, as one batch, and returns when all of them are durable: a
    /// report for each dataset, in the order given. The batch counts in all of the datasets or in none, also when it is
    /// replaced or removed. Otherwise as [`crate::Dataset::write`].
    ///
    /// # Errors
    /// No dataset, or one named twice; a dataset that is not in the group; as [`crate::Dataset::write`].
    pub async fn write<I>(&self, inputs: Vec<(&str, I)>, options: WriteOptions) -> Result<Vec<WriteReport>>
    where
        I: IntoIterator<Item = std::result::Result<RecordBatch, ArrowError>>,
    {
        let mut names = HashSet::new();
        if let Some((twice, _)) = inputs.iter().find(|(name, _)| !names.insert(*name)) {
            return Err(self.first().frame().refuse(format!("dataset {twice:?} is named twice in one batch")));
        }
        let (mut datasets, mut rows) = (Vec::new(), Vec::new());
        for (name, input) in inputs {
            datasets.push(self.dataset(name)?);
            rows.push(input);
        }
        let Some(first) = datasets.first() else {
            return Err(self.first().frame().refuse("a batch needs rows of at least one dataset"));
        };
        first.refresh_together(self.datasets(), true).await?;
        let inputs = datasets.iter().map(|dataset| dataset.frame()).zip(rows).collect();
        super::write(first, inputs, options).await
    }
}
