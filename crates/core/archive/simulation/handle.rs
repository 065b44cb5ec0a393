//! One interface to a single dataset and to a group, so that a history runs the same on both.

use arrow_array::RecordBatch;
use arrow_select::concat::concat_batches;
use chronotile_archive::{
    ArchiveError, ConsolidateOptions, Dataset, Group, ReadRequest, RetireLimit, Rows, SliceInfo, TileFailure,
    WriteOptions,
};
use chronotile_types::SliceId;

use crate::common::{HOUR, read};

/// Separates every older version: the default minimum exceeds the few rows of a history.
fn split_versions() -> ConsolidateOptions {
    ConsolidateOptions { older_min: Some(1), ..ConsolidateOptions::default() }
}

/// The dataset or group that a process writes to and reads from.
#[derive(Clone)]
pub(crate) enum Handle {
    One(Dataset),
    Two(Group),
}

/// The datasets of a group.
pub(crate) const PAIR: [&str; 2] = ["records", "others"];

impl Handle {
    pub(crate) fn datasets(&self) -> &[Dataset] {
        match self {
            Self::One(dataset) => std::slice::from_ref(dataset),
            Self::Two(group) => group.datasets(),
        }
    }

    pub(crate) async fn remove(&self, name: &str) -> Result<u64, ArchiveError> {
        match self {
            Self::One(dataset) => dataset.remove_batch(name).await,
            Self::Two(group) => group.remove_batch(name).await,
        }
    }

    /// Consolidates one dataset, or both together if `None`; returns the tiles that failed.
    pub(crate) async fn consolidate(&self, dataset: Option<usize>) -> Result<Vec<TileFailure>, ArchiveError> {
        match (self, dataset) {
            (Self::Two(group), None) => {
                let reports = group.consolidate(&PAIR, split_versions(), None).await?;
                Ok(reports.into_iter().flat_map(|(_, report)| report.failed).collect())
            }
            (_, dataset) => Ok(self.datasets()[dataset.unwrap_or(0)].consolidate(split_versions(), None).await?.failed),
        }
    }

    /// Drops the slices that end before an hour, or only lists them in a dry run; by dataset.
    pub(crate) async fn retire(&self, hour: i64, dry_run: bool) -> Result<Vec<Vec<SliceInfo>>, ArchiveError> {
        let limit = RetireLimit::Before(chronotile_types::Instant::NativeTicks(hour * HOUR));
        match self {
            Self::One(dataset) => Ok(vec![dataset.retire(limit, dry_run).await?]),
            Self::Two(group) => {
                let retired = group.retire(&PAIR, limit, dry_run).await?;
                Ok(retired.into_iter().map(|(_, slices)| slices).collect())
            }
        }
    }

    /// Drops the slices whose fingerprints are unchanged, of datasets that share them; returns the dropped slices.
    pub(crate) async fn retire_unchanged(
        &self,
        of: &[usize],
        wanted: &[(SliceId, u128)],
    ) -> Result<Vec<SliceInfo>, ArchiveError> {
        match self {
            Self::One(dataset) => dataset.retire_unchanged(wanted).await,
            Self::Two(group) => {
                let names: Vec<&str> = of.iter().map(|dataset| PAIR[*dataset]).collect();
                Ok(group.retire_unchanged(&names, wanted).await?.swap_remove(0).1)
            }
        }
    }

    /// Writes the rows one at a time; with `fails`, the input ends with an error.
    pub(crate) async fn write(
        &self,
        rows: &RecordBatch,
        fails: bool,
        options: WriteOptions,
    ) -> Result<(), ArchiveError> {
        let parts = || (0..rows.num_rows()).map(|row| Ok(rows.slice(row, 1))).collect::<Vec<_>>();
        let mut last: Vec<Result<RecordBatch, arrow_schema::ArrowError>> = parts();
        if fails {
            last.push(Err(arrow_schema::ArrowError::ComputeError("the input fails".into())));
        }
        match self {
            Self::One(dataset) => dataset.write(last, options).await.map(drop),
            Self::Two(group) => group.write(vec![(PAIR[0], parts()), (PAIR[1], last)], options).await.map(drop),
        }
    }

    /// Rows of one dataset, as the process that moves slices reads them.
    pub(crate) async fn read_every_write(
        &self,
        dataset: usize,
        request: ReadRequest,
    ) -> Result<RecordBatch, ArchiveError> {
        read(&self.datasets()[dataset].seeing_every_write(), request).await
    }

    /// Rows of each dataset as of one moment, or of one dataset.
    pub(crate) async fn read(
        &self,
        request: ReadRequest,
        one: Option<usize>,
    ) -> Result<Vec<RecordBatch>, ArchiveError> {
        match (self, one) {
            (Self::One(dataset), _) => Ok(vec![read(dataset, request).await?]),
            (Self::Two(group), Some(one)) => Ok(vec![read(&group.datasets()[one], request).await?]),
            (Self::Two(group), None) => Ok(whole(group.read(PAIR.map(|name| (name, request.clone())).to_vec()).await?)),
        }
    }

    /// Rows of both datasets as of one moment. Reads the second dataset only in the cells of the first, which contain
    /// all its rows.
    pub(crate) async fn read_in_cells(&self, request: ReadRequest) -> Result<Vec<RecordBatch>, ArchiveError> {
        let Self::Two(group) = self else { return self.read(request, None).await };
        let [first, second] = PAIR;
        Ok(whole(group.read_in_cells_of((first, request.clone()), "tag", vec![(second, request)]).await?))
    }
}

fn whole(found: Vec<Rows>) -> Vec<RecordBatch> {
    found.iter().map(|(schema, batches)| concat_batches(schema, batches).unwrap()).collect()
}
