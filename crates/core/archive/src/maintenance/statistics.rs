//! Statistics of datasets, and slices created ahead of writers.

use std::collections::BTreeSet;

use chronotile_store::TileStatistics;
use chronotile_types::{DatasetName, SliceId, TimeRange};
use futures::{StreamExt, TryStream, TryStreamExt, stream};

use crate::dataset::Dataset;
use crate::error::{ArchiveError, Result};
use crate::frame::Frame;
use crate::group::Group;
use crate::maintenance::retire::{by_dataset, fingerprint, retired_text};
use crate::report::{DatasetInfo, SliceInfo, Spread};
use crate::time_axis::Bounds;

/// Slices whose statistics are requested concurrently: an engine reads all of a slice for them.
const SLICES_AT_ONCE: usize = 4;

impl Dataset {
    /// Statistics of every slice and of the sizes of tiles.
    pub async fn info(&self) -> Result<DatasetInfo> {
        let this = self.reader();
        let found = this.info_sharing(&[this.frame()]).await?;
        Ok(found.into_iter().next().unwrap_or_default())
    }

    /// Statistics of datasets that share their slices; this is one of them.
    async fn info_sharing(&self, frames: &[Frame]) -> Result<Vec<DatasetInfo>> {
        let mut tiles: Vec<Vec<TileStatistics>> = vec![vec![]; frames.len()];
        let mut slices = Vec::new();
        // The token is read first: if rows are removed while the slices are listed, the token changes, and with it the
        // fingerprint that a later drop computes.
        let token = self.change_token().await?;
        let asked = self.slices().await?;
        // Read before the content of the slices, so that a later drop is noticed.
        let retired = self.retired_since(asked.iter().copied().collect(), i64::MIN).await?;
        let mut found = self.statistics_of(&frames[0], asked);
        while let Some((slice, found)) = found.try_next().await? {
            let changes = format!("{token}{}", retired_text(&retired, slice));
            slices.push(self.slice_infos(frames, slice, &found, &changes));
            for (frame, tiles) in frames.iter().zip(&mut tiles) {
                tiles.extend(own_tiles(frame, slice, &found).cloned());
            }
        }
        let info = |(slices, tiles): (Vec<SliceInfo>, Vec<TileStatistics>)| DatasetInfo {
            slices,
            tile_chunks: spread(tiles.iter().map(|tile| tile.chunks)),
            tile_rows: spread(tiles.iter().map(|tile| tile.rows)),
            tile_bytes: spread(tiles.iter().map(|tile| tile.bytes)),
            tile_largest: tiles.iter().max_by_key(|tile| tile.bytes).map(|tile| tile.tile),
        };
        Ok(by_dataset(frames, slices).into_iter().zip(tiles).map(info).collect())
    }

    /// Statistics of slices, including rows of other datasets that share them, in the order given. Reads several
    /// concurrently.
    pub(crate) fn statistics_of<'a>(
        &'a self,
        frame: &'a Frame,
        slices: Vec<SliceId>,
    ) -> impl TryStream<Ok = (SliceId, Vec<TileStatistics>), Error = ArchiveError> + Unpin + 'a {
        let ask = move |slice| async move { Ok((slice, self.store().statistics(&frame.dataset, slice).await?)) };
        stream::iter(slices).map(ask).buffered(SLICES_AT_ONCE).boxed()
    }

    /// Describes a slice for one dataset, from the statistics of all tiles of the slice, including those of other
    /// datasets.
    pub(crate) fn slice_info(
        &self,
        frame: &Frame,
        slice: SliceId,
        tiles: &[TileStatistics],
        changes: &str,
    ) -> SliceInfo {
        let good = self.store().capabilities().cell_bytes_good.unwrap_or(u64::MAX);
        // Tiles of a cell are neighbours, and so are cells that share a partition.
        let partition = |tile: &TileStatistics| frame.spec.partition_of(tile.tile.cell);
        let cells: Vec<u64> = tiles
            .chunk_by(|a, b| partition(a) == partition(b))
            .map(|cell| cell.iter().map(|tile| tile.bytes).sum())
            .collect();
        let own = || own_tiles(frame, slice, tiles);
        SliceInfo {
            slice,
            ticks: frame.spec.slice_ticks(slice),
            tiles: own().count() as u64,
            chunks: own().map(|tile| tile.chunks).sum(),
            rows: own().map(|tile| tile.rows).sum(),
            bytes: own().map(|tile| tile.bytes).sum(),
            cell_bytes_max: cells.iter().copied().max().unwrap_or(0),
            cells_oversized: cells.iter().filter(|bytes| **bytes > good).count() as u64,
            fingerprint: fingerprint(tiles, changes),
        }
    }

    /// Creates the slices of a period ahead of writers, who on a cluster would otherwise wait for them. Returns all
    /// slices of the period, oldest first, including those that existed before.
    ///
    /// # Errors
    /// A period without a start or an end, or of more than 1,000 slices; the engine.
    pub async fn prepare(&self, period: &TimeRange) -> Result<Vec<SliceId>> {
        const SLICES_MAX: usize = 1_000;
        let frame = self.frame();
        if period.start.is_none() || period.end.is_none() {
            return Err(frame.refuse("a period to prepare needs a start and an end"));
        }
        let (first, last) = Bounds::new(&frame.spec, period)?.windows(&frame.spec);
        // An empty period in the middle of a window has that window as its first and its last one.
        if first > last || period.start == period.end {
            return Ok(vec![]);
        }
        // One more than allowed is enough to refuse the period: a wrong date may give millions of slices.
        let slices: Vec<SliceId> =
            (frame.spec.slice_of(first).0..=frame.spec.slice_of(last).0).map(SliceId).take(SLICES_MAX + 1).collect();
        if slices.len() > SLICES_MAX {
            return Err(frame.refuse("a period to prepare has at most 1,000 slices: give a shorter one"));
        }
        for slice in &slices {
            self.ensure_slices(&BTreeSet::from([*slice])).await?;
        }
        Ok(slices.iter().map(|slice| SliceId(frame.spec.own_slice(*slice))).collect())
    }
}

impl Group {
    /// Statistics of these datasets as [`Dataset::info`] gives them. Statistics of shared slices are read once.
    ///
    /// # Errors
    /// A dataset that is not in the group; the engine.
    pub async fn info(&self, names: &[&str]) -> Result<Vec<(DatasetName, DatasetInfo)>> {
        let mut found = Vec::with_capacity(names.len());
        for (dataset, frames) in self.by_slices(names).await? {
            let infos = dataset.reader().info_sharing(&frames).await?;
            found.extend(frames.iter().map(|frame| frame.spec.name.clone()).zip(infos));
        }
        Ok(found)
    }
}

/// The tiles of a slice that belong to this dataset: others may share the slice.
fn own_tiles<'a>(
    frame: &'a Frame,
    slice: SliceId,
    tiles: &'a [TileStatistics],
) -> impl Iterator<Item = &'a TileStatistics> + 'a {
    tiles.iter().filter(move |tile| frame.spec.has_window(slice, tile.tile.window))
}

fn spread(values: impl Iterator<Item = u64>) -> Spread {
    let mut values: Vec<u64> = values.collect();
    values.sort_unstable();
    // The nearest rank counts from 1, and the saturation makes share 0 the minimum.
    let at = |share: f64| values.get(((values.len() as f64 * share).ceil() as usize).saturating_sub(1)).copied();
    let get = |share| at(share).unwrap_or(0);
    Spread { min: get(0.0), median: get(0.5), p99: get(0.99), max: get(1.0) }
}
