//! Groups: datasets that are written together.
//!
//! A batch covers all datasets of its group: it has one record, so it counts in all of them or in none. Engine and
//! catalog keep the chunks and batches of all datasets under the name of the group. Each dataset has its own slices,
//! unless it shares another's; the upper bits of a slice's id are the number of its dataset
//! ([`chronotile_types::Membership`]).

use std::sync::Arc;

use chronotile_types::{DatasetName, name_hint};

use crate::dataset::Dataset;
use crate::error::{ArchiveError, Result};

/// The datasets of a group. Cheap to clone; safe to use from many threads and processes at once.
#[derive(Clone, Debug)]
pub struct Group {
    name: DatasetName,
    /// By number; at least one.
    datasets: Arc<[Dataset]>,
}

impl Group {
    /// A group of these datasets, by number; at least one.
    pub(crate) fn of(name: DatasetName, datasets: Vec<Dataset>) -> Self {
        Self { name, datasets: datasets.into() }
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
    /// The group has no dataset of this name.
    pub fn dataset(&self, name: &str) -> Result<&Dataset> {
        self.datasets.iter().find(|dataset| dataset.spec().name.as_str() == name).ok_or_else(|| {
            let names: Vec<String> = self.datasets.iter().map(|dataset| dataset.spec().name.to_string()).collect();
            let (home, hint) = (format!("group {}", self.name), name_hint(name, &names));
            ArchiveError::DatasetNotFound { name: name.to_owned(), home, hint }
        })
    }

    /// The dataset through which operations on the whole group run.
    pub(crate) fn first(&self) -> &Dataset {
        &self.datasets[0]
    }
}
