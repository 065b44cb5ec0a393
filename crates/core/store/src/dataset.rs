//! A dataset as a store sees it: its name and the placement of its chunks.

use std::sync::Arc;

use chronotile_types::{DatasetName, DatasetSpec, NativeColumns, SliceId, StorageLayout, Window};

use crate::{Result, StoreError, Windows};

/// How an engine lays out the chunks of a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Each chunk as it is. An engine with partitions keeps this many neighbouring cells in one: cell `c` lies in partition
    /// `floor(c / partition_cells)`. Engines without partitions ignore the number.
    Chunks {
        /// Cells in a partition, at least 1.
        partition_cells: u32,
    },
    /// One row of the engine's own tables for each record, with these columns in the engine's own types.
    ///
    /// The contract is the same with three differences. Chunks must be in plain form (`chronotile_chunk::encode_plain`). A chunk
    /// that is put under an existing key must hold the same rows, as the ids of an archive's chunks ensure. A chunk with missing or
    /// changed rows is returned with its head and a body that does not match its checksum. Columns may be added between calls: a
    /// later call then lists the new ones after the old ones.
    Rows(Arc<NativeColumns>),
}

/// A dataset as a store knows it. Plain data: two values that are equal name the same chunks in the same place.
///
/// Every call about a dataset's chunks takes one, so a wrapper cannot lose the placement on the way to the engine. The placement of a
/// dataset never changes but for columns added to [`Placement::Rows`]; a call with another placement than the chunks were written
/// with may find none of them. What an archive keeps under one name may be several datasets, each with slices of its own: the
/// placement is that of the slices in the call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatasetRef {
    /// The name under which its chunks are filed.
    pub name: DatasetName,
    /// Prefix of the table names in an engine with a table per slice, for people and other tools: slice `s` is number
    /// `s - first_slice` of this name.
    pub label: DatasetName,
    /// The slice with number 0.
    pub first_slice: i32,
    /// How many windows a slice has; `None` where each may have any.
    pub windows_per_slice: Option<u32>,
    /// The windows that slice number 0 begins with: several where datasets that share slices are scanned together.
    pub first_windows: Vec<i32>,
    /// How its chunks are laid out.
    pub placement: Placement,
}

impl DatasetRef {
    /// A dataset whose chunks are kept as they are, each cell by itself.
    pub fn of_chunks(name: DatasetName) -> Self {
        let placement = Placement::Chunks { partition_cells: 1 };
        Self { label: name.clone(), first_slice: 0, windows_per_slice: None, first_windows: vec![0], name, placement }
    }

    /// This dataset and others that share its slices, for scans of all of them.
    pub fn together<'a>(&self, others: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut all = self.clone();
        all.first_windows.extend(others.into_iter().flat_map(|other| &other.first_windows));
        all.first_windows.sort_unstable();
        all.first_windows.dedup();
        all
    }

    /// The windows of a slice, as far as known. A scan may leave out others.
    pub fn windows_of(&self, slice: SliceId) -> Windows {
        let Some(count) = self.windows_per_slice else { return Windows::ALL };
        // The product may exceed 32 bits. Windows do not, so clamping to their range leaves out none.
        let own = (i64::from(slice.0) - i64::from(self.first_slice)) * i64::from(count);
        let window = |number: i64| Window(number.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as i32);
        let range = |first: &i32| {
            let first = own + i64::from(*first);
            (window(first), window(first + i64::from(count) - 1))
        };
        Windows::of(self.first_windows.iter().map(range))
    }

    /// The name of a dataset with [`Placement::Chunks`]. An engine without [`crate::Capabilities::native_rows`] gets it first in every
    /// call about chunks.
    ///
    /// # Errors
    /// [`StoreError::Refused`] for [`Placement::Rows`].
    pub fn chunks_only(&self, engine: &'static str) -> Result<&DatasetName> {
        match self.placement {
            Placement::Chunks { .. } => Ok(&self.name),
            Placement::Rows(_) => Err(StoreError::Refused {
                engine,
                reason: format!(
                    "dataset {} has layout rows, which {engine} cannot store: use layout chunks, or a cluster",
                    self.name
                ),
            }),
        }
    }
}

impl From<&DatasetSpec> for DatasetRef {
    fn from(spec: &DatasetSpec) -> Self {
        let placement = match spec.layout {
            // The definition may not have been checked; engines divide by this number.
            StorageLayout::Chunks => Placement::Chunks { partition_cells: spec.partition_cells.max(1) },
            StorageLayout::Rows => Placement::Rows(Arc::new(NativeColumns {
                schema: spec.schema.clone(),
                versions: spec.schema_versions.clone(),
            })),
        };
        let first_slice = spec.slice_numbered(0).0;
        Self {
            name: spec.stored_as().clone(),
            label: spec.slices_name().clone(),
            first_slice,
            windows_per_slice: Some(spec.windows_per_slice),
            first_windows: vec![spec.first_window()],
            placement,
        }
    }
}
