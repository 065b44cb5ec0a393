//! Rewriting the many small chunks of a tile as few large ones.
//!
//! Consolidation loses nothing: every row keeps its batch and write stamp. Rows of different batches that share an id
//! are all kept, since a batch may be removed later; only rows with the same id, version and batch are merged. One
//! commit removes the chunks that were read, by id, and puts the new ones; it fails unless all old chunks still exist.
//! Any subset of a tile's chunks may be rewritten, so a tile of any size is rewritten in bounded memory.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::Duration;

use chronotile_chunk::Origin;
use chronotile_store::{Chunk, ChunkKey, DatasetRef, StoreError, TileStatistics};
use chronotile_types::{DatasetName, SliceId, Tile, TimeRange};
use futures::TryStreamExt;
use tokio::time::{Instant, sleep_until};

use crate::LOG;
use crate::dataset::Dataset;
use crate::error::{ArchiveError, Result};
use crate::frame::Frame;
use crate::group::Group;
use crate::maintenance::rewrite::{Kind, Rewrite, VersionSplit, is_of_the_rows, rewrite, sets};
use crate::read::assemble::order_key;
use crate::read::on_pool;
use crate::read::part::ParsedChunk;
use crate::report::{ConsolidateReport, TileFailure};
use crate::request::ConsolidateOptions;
use crate::time_axis::Bounds;
use crate::write::pack::{CHUNK_BYTES_MAX, rows_per_chunk};

/// Called with the number of tiles done and the total.
pub type Progress<'a> = &'a (dyn Fn(u64, u64) + Send + Sync);

/// Most tiles in one commit, and most bytes of their chunks. A larger tile is committed alone.
const TILES_PER_COMMIT: usize = 64;
const BYTES_PER_COMMIT: u64 = 16 << 20;
/// The delay where `tiles_per_s` is so small that the computed one overflows.
const THROTTLE_MAX: Duration = Duration::from_secs(365 * 86_400);
/// Chunks of older versions from which on a tile's older versions are consolidated.
const OLDER_CHUNKS: u64 = 8;
/// Chunks of at least this many bytes are large enough.
const CHUNK_BYTES_GOOD: u64 = 128 << 10;

/// Statistics of a tile's chunks of one kind.
struct TileLoad {
    tile: Tile,
    /// The index of the tile's dataset among those that share the slice.
    of: usize,
    chunks: u64,
    /// Chunks not yet consolidated; of older versions, all of them.
    written: u64,
    rows: u64,
    bytes: u64,
}

impl TileLoad {
    fn of(tile: &TileStatistics, of: usize, kind: Kind) -> Self {
        let (chunks, rows, bytes) = (tile.older_chunks, tile.older_rows, tile.older_bytes);
        match kind {
            Kind::Older => Self { tile: tile.tile, of, chunks, written: chunks, rows, bytes },
            Kind::Current => Self {
                tile: tile.tile,
                of,
                chunks: tile.chunks - chunks,
                written: tile.written_chunks,
                rows: tile.rows - rows,
                bytes: tile.bytes - bytes,
            },
        }
    }
}

/// Attempts that do not count, with the tiles where rows of them were found.
type Strays = BTreeMap<Origin, BTreeSet<(SliceId, Tile)>>;

/// Tiles of a slice to rewrite, of one kind of chunks.
type SliceRewrite = (SliceId, Kind, Vec<TileLoad>);

/// The consolidation of one dataset, or of several that share their slices, and its results.
struct Consolidation<'a> {
    /// One of the datasets; gives access to the engine.
    dataset: &'a Dataset,
    /// At least one.
    frames: Vec<Frame>,
    /// All of them as one reference for the engine.
    together: DatasetRef,
    options: &'a ConsolidateOptions,
    /// By dataset.
    reports: Vec<ConsolidateReport>,
    strays: Strays,
}

impl Dataset {
    /// Rewrites the many small chunks of a tile as few. Safe beside writers, readers and other consolidations, and safe
    /// to interrupt: a tile that another process changed meanwhile is left unchanged and counted as contended. Batches
    /// that are still being written are left alone; chunks of writes that were interrupted a day ago or more are
    /// removed. A tile that cannot be rewritten, because of a damaged chunk or rows that the engine refuses, is left
    /// unchanged and named in the report; the other tiles are rewritten.
    ///
    /// Memory does not grow with the size of a tile: a tile of more than 16 MiB is rewritten in parts, in order of
    /// time.
    ///
    /// # Errors
    /// The engine.
    pub async fn consolidate(
        &self,
        options: ConsolidateOptions,
        progress: Option<Progress<'_>>,
    ) -> Result<ConsolidateReport> {
        self.refresh().await?;
        let runs = vec![Consolidation::new(self, vec![self.frame()], &options)];
        let reports = consolidate(runs, progress).await?;
        Ok(reports.into_iter().next().map(|(_, report)| report).unwrap_or_default())
    }
}

impl Group {
    /// Rewrites tiles of these datasets as [`Dataset::consolidate`] does. Statistics of shared slices are read once,
    /// and on a cluster one transaction replaces the tiles of all these datasets that are in the same partition.
    ///
    /// # Errors
    /// A dataset that is not in the group; the engine.
    pub async fn consolidate(
        &self,
        names: &[&str],
        options: ConsolidateOptions,
        progress: Option<Progress<'_>>,
    ) -> Result<Vec<(DatasetName, ConsolidateReport)>> {
        let sets = self.by_slices(names).await?;
        consolidate(
            sets.iter().map(|(dataset, frames)| Consolidation::new(dataset, frames.clone(), &options)).collect(),
            progress,
        )
        .await
    }
}

/// Consolidates datasets of one group, or a single one. Each run covers datasets that share slices.
async fn consolidate(
    mut runs: Vec<Consolidation<'_>>,
    progress: Option<Progress<'_>>,
) -> Result<Vec<(DatasetName, ConsolidateReport)>> {
    let Some(Consolidation { dataset, options, .. }) = runs.first() else { return Ok(vec![]) };
    let rate = options.tiles_per_s.unwrap_or(f64::INFINITY);
    if rate.is_nan() || rate <= 0.0 {
        return Err(dataset.frame().refuse(format!("tiles_per_s is {rate}: give a number above 0")));
    }
    if !options.dry_run {
        dataset.sweep_attempts().await?;
    }
    let mut work = Vec::with_capacity(runs.len());
    for run in &runs {
        work.push(run.tiles_to_consolidate().await?);
    }
    let total: u64 = work.iter().flatten().map(|(_, _, tiles)| tiles.len() as u64).sum();
    let (began, mut done, mut reports) = (Instant::now(), 0, Vec::new());
    for (run, work) in runs.iter_mut().zip(work) {
        for (slice, kind, tiles) in work {
            for tiles in per_commit(&tiles) {
                run.consolidate((slice, kind), tiles).await?;
                done += tiles.len() as u64;
                if let Some(progress) = progress {
                    progress(done, total);
                }
                if !run.options.dry_run {
                    // The schedule runs from the beginning, so the time that the commits take is part of it.
                    sleep_until(began + Duration::try_from_secs_f64(done as f64 / rate).unwrap_or(THROTTLE_MAX)).await;
                }
            }
        }
        reports.append(&mut run.end().await?);
    }
    Ok(reports)
}

impl<'a> Consolidation<'a> {
    fn new(dataset: &'a Dataset, frames: Vec<Frame>, options: &'a ConsolidateOptions) -> Self {
        let reports = frames.iter().map(|_| ConsolidateReport::default()).collect();
        let together = frames[0].dataset.together(frames.iter().map(|frame| &frame.dataset));
        Self { dataset, frames, together, options, reports, strays: Strays::new() }
    }

    /// The index of a tile's dataset; `None` if the tile belongs to none of these datasets.
    fn place(&self, slice: SliceId, tile: Tile) -> Option<usize> {
        self.frames.iter().position(|frame| frame.spec.has_window(slice, tile.window))
    }

    /// The frame of a tile's dataset.
    fn frame(&self, slice: SliceId, tile: Tile) -> &Frame {
        &self.frames[self.place(slice, tile).unwrap_or(0)]
    }

    /// The report of a tile's dataset.
    fn report(&mut self, slice: SliceId, tile: Tile) -> &mut ConsolidateReport {
        let place = self.place(slice, tile).unwrap_or(0);
        &mut self.reports[place]
    }

    fn fail(&mut self, slice: SliceId, failures: impl IntoIterator<Item = TileFailure>) {
        failures.into_iter().for_each(|failure| self.report(slice, failure.tile).failed.push(failure));
    }

    async fn tiles_to_consolidate(&self) -> Result<Vec<SliceRewrite>> {
        // A single chunk has nothing to be merged with.
        let chunks_min = self.options.chunks_min.unwrap_or(2).max(2);
        let older_min = if self.options.older_min.is_some() { 2 } else { OLDER_CHUNKS };
        let range = TimeRange { start: None, end: self.options.before };
        let limits =
            self.frames.iter().map(|frame| Ok(Bounds::new(&frame.spec, &range)?)).collect::<Result<Vec<_>>>()?;
        let row_bytes: Vec<Option<usize>> = self.frames.iter().map(fixed_row_bytes).collect();
        let ended = |of: usize, tile: Tile| {
            let spec = &self.frames[of].spec;
            limits[of].ends_after(spec.window_start(tile.window).saturating_add(spec.window_ticks()))
        };
        // Processes share the work by partition, not by tile: on a cluster one transaction rewrites the tiles of a
        // partition.
        let is_own = |of: usize, slice: SliceId, tile: Tile| {
            self.options.shard.is_none_or(|shard| shard.has(slice, self.frames[of].spec.partition_of(tile.cell)))
        };
        let mut work = Vec::new();
        let mut found = self.dataset.statistics_of(&self.frames[0], self.dataset.slices().await?);
        while let Some((slice, tiles)) = found.try_next().await? {
            let wanted: Vec<(usize, &TileStatistics)> = tiles
                .iter()
                .filter_map(|tile| Some((self.place(slice, tile.tile)?, tile)))
                .filter(|(of, tile)| is_own(*of, slice, tile.tile) && ended(*of, tile.tile))
                .collect();
            for (kind, chunks_min) in [(Kind::Current, chunks_min), (Kind::Older, chunks_min.max(older_min))] {
                let mut loads: Vec<TileLoad> = wanted.iter().map(|(of, tile)| TileLoad::of(tile, *of, kind)).collect();
                // A tile without newly written chunks is as a consolidation left it.
                loads.retain(|load| {
                    load.chunks >= chunks_min && load.written > 0 && !well_filled(load, row_bytes[load.of])
                });
                if !loads.is_empty() {
                    work.push((slice, kind, loads));
                }
            }
        }
        Ok(work)
    }

    /// Consolidates tiles that are committed together. If one of them fails, retries each by itself, so that the others
    /// succeed.
    async fn consolidate(&mut self, to: (SliceId, Kind), tiles: &[TileLoad]) -> Result<()> {
        let done = match tiles {
            [large] if large.bytes > BYTES_PER_COMMIT => self.consolidate_large(to, large.tile).await,
            tiles => self.consolidate_tiles(to, tiles).await,
        };
        match (done, tiles) {
            (Err(error), [tile]) => self.fail(to.0, [TileFailure::of(tile.tile, error)?]),
            (Err(error), tiles) if is_of_a_tile(&error) => {
                for tile in tiles.chunks(1) {
                    Box::pin(self.consolidate(to, tile)).await?;
                }
            }
            (done, _) => done?,
        }
        Ok(())
    }

    async fn consolidate_tiles(&mut self, (slice, kind): (SliceId, Kind), tiles: &[TileLoad]) -> Result<()> {
        let wanted: BTreeSet<Tile> = tiles.iter().map(|load| load.tile).collect();
        let chunks = self.dataset.chunks_of(&self.together, slice, &wanted, (true, kind)).await?;
        let tiles = self.sound_tiles(slice, chunks).await?;
        let mut work = Vec::new();
        for (tile, rewritten) in self.rewritten(slice, tiles, true).await? {
            match rewritten {
                Ok(rewrites) => work.extend(rewrites),
                Err(error) => self.fail(slice, [TileFailure::of(tile, error)?]),
            }
        }
        self.commit(work).await
    }

    /// Rewrites a large tile, some of its chunks at a time, in order of time, so that rows that are close in time share
    /// chunks. Skips parts whose chunks are all consolidated or large enough.
    async fn consolidate_large(&mut self, (slice, kind): (SliceId, Kind), tile: Tile) -> Result<()> {
        let frame = self.frame(slice, tile).clone();
        let heads = self.dataset.chunks_of(&frame.dataset, slice, &BTreeSet::from([tile]), (false, kind)).await?;
        let mut heads = self.sound_tiles(slice, heads).await?.pop().unwrap_or_default();
        heads.sort_by_key(order_key);
        let (before, mut changed) = (self.report(slice, tile).tiles, false);
        for set in sets(&heads) {
            let keys: Vec<ChunkKey> = set.iter().map(|part| part.chunk.key).collect();
            let is_good =
                |part: &ParsedChunk| !part.chunk.key.id.is_written() || part.head.body_bytes as u64 >= CHUNK_BYTES_GOOD;
            if keys.len() < 2 || set.iter().all(is_good) {
                continue;
            }
            let chunks = self.dataset.store().fetch(&frame.dataset, keys).await?;
            // Another process has changed the tile since its heads were read, so the other sets may be outdated too.
            if chunks.len() < set.len() {
                self.report(slice, tile).tiles_contended += 1;
                break;
            }
            let tiles = self.sound_tiles(slice, chunks).await?;
            for (tile, rewrites) in self.rewritten(slice, tiles, false).await? {
                match rewrites {
                    Ok(rewrites) => self.commit(rewrites).await?,
                    Err(error) => self.fail(slice, [TileFailure::of(tile, error)?]),
                }
            }
            let report = self.report(slice, tile);
            // Each commit counts the tile again, but the report counts it once, however many sets it has.
            changed |= report.tiles > before;
            report.tiles = before;
        }
        let report = self.report(slice, tile);
        report.tiles += u64::from(changed);
        report.failed.dedup_by_key(|failure| failure.tile);
        Ok(())
    }

    /// The chunks to rewrite, by tile. Leaves out chunks with rows that do not count and remembers their attempts as
    /// strays. Leaves out tiles with a damaged head, and reports them as failed.
    async fn sound_tiles(&mut self, slice: SliceId, chunks: Vec<Chunk>) -> Result<Vec<Vec<ParsedChunk>>> {
        let visible = self.dataset.visibility().await?;
        let mut parts: Vec<ParsedChunk> = Vec::with_capacity(chunks.len());
        let mut failed: Vec<TileFailure> = Vec::new();
        for chunk in chunks {
            let tile = chunk.key.tile;
            match self.frame(slice, tile).head(&chunk) {
                Ok(head) => parts.push(ParsedChunk::new(chunk, head)),
                // A scan returns the chunks of a tile one after the other, and one failure for each tile is enough.
                Err(_) if failed.last().is_some_and(|failure| failure.tile == tile) => {}
                Err(error) => failed.push(TileFailure { tile, reason: error.to_string() }),
            }
        }
        for part in &parts {
            let frame = self.frame(slice, part.chunk.key.tile);
            self.dataset.learn_columns(frame, std::iter::once(&part.head)).await?;
        }
        // A batch that has ended a moment ago may count or not: a rewrite only needs one consistent state of the tile.
        let _ = visible.decide_now(parts.iter().map(|part| &part.head)).await?;
        for part in parts.iter().filter(|part| visible.hides_all_of(&part.head)) {
            let place = (part.chunk.key.slice, part.chunk.key.tile);
            part.head.origins.iter().for_each(|origin| _ = self.strays.entry(*origin).or_default().insert(place));
        }
        parts.retain(|part| visible.settles(&part.head));
        let mut tiles: Vec<Vec<ParsedChunk>> = Vec::new();
        for part in parts {
            match tiles.last_mut() {
                Some(tile) if tile[0].chunk.key.tile == part.chunk.key.tile => tile.push(part),
                _ => tiles.push(vec![part]),
            }
        }
        let sound = |parts: &Vec<ParsedChunk>| failed.iter().all(|failure| failure.tile != parts[0].chunk.key.tile);
        tiles.retain(|parts| parts.len() > 1 && sound(parts));
        self.fail(slice, failed);
        Ok(tiles)
    }

    /// As [`rewrite_tiles`], on the thread pool.
    async fn rewritten(
        &self,
        slice: SliceId,
        tiles: Vec<Vec<ParsedChunk>>,
        whole: bool,
    ) -> Result<Vec<(Tile, Result<Vec<Rewrite>>)>> {
        let tiles: Vec<(Frame, Vec<ParsedChunk>)> =
            tiles.into_iter().map(|parts| (self.frame(slice, parts[0].chunk.key.tile).clone(), parts)).collect();
        let split = VersionSplit::by(self.options);
        on_pool(move || Ok(rewrite_tiles(tiles, (whole, split)))).await
    }

    async fn commit(&mut self, rewrites: Vec<Rewrite>) -> Result<()> {
        let mut tiles: HashSet<Tile> = HashSet::new();
        if self.options.dry_run {
            rewrites.iter().for_each(|rewrite| self.count(rewrite, &mut tiles));
            return Ok(());
        }
        let mut contended = HashSet::new();
        for (rewrite, replaced) in self.dataset.replace(rewrites).await? {
            let (slice, tile) = rewrite.place();
            match replaced {
                Ok(true) => self.count(&rewrite, &mut tiles),
                Ok(false) if contended.insert(tile) => self.report(slice, tile).tiles_contended += 1,
                Ok(false) => {}
                Err(error) => self.fail(slice, [TileFailure::of(tile, error)?]),
            }
        }
        Ok(())
    }

    /// Counts a rewrite as done; `tiles` are the tiles counted so far.
    fn count(&mut self, rewrite: &Rewrite, tiles: &mut HashSet<Tile>) {
        let bytes =
            |chunks: &[Chunk]| chunks.iter().map(|chunk| (chunk.head.len() + chunk.body.len()) as u64).sum::<u64>();
        let (slice, tile) = rewrite.place();
        let report = self.report(slice, tile);
        report.tiles += u64::from(tiles.insert(tile));
        report.chunks_before += rewrite.old.len() as u64;
        report.chunks_after += rewrite.new.len() as u64;
        report.bytes_before += bytes(&rewrite.old);
        report.bytes_after += bytes(&rewrite.new);
    }

    /// Removes chunks of attempts that do not count; returns the report of each dataset.
    async fn end(&mut self) -> Result<Vec<(DatasetName, ConsolidateReport)>> {
        if !self.options.dry_run {
            self.dataset.sweep_strays(std::mem::take(&mut self.strays)).await?;
        }
        let names = self.frames.iter().map(|frame| frame.spec.name.clone());
        let reports: Vec<_> = names.zip(std::mem::take(&mut self.reports)).collect();
        for (name, report) in &reports {
            for TileFailure { tile, reason } in &report.failed {
                tracing::warn!(target: LOG, dataset = %name, "a tile was not consolidated: {tile}: {reason}");
            }
        }
        Ok(reports)
    }
}

impl TileFailure {
    /// The failure of one tile; passes on an error that concerns more than this tile.
    fn of(tile: Tile, error: ArchiveError) -> Result<Self> {
        if is_of_a_tile(&error) { Ok(Self { tile, reason: error.to_string() }) } else { Err(error) }
    }
}

/// Whether the error concerns one tile alone, so that others may succeed.
fn is_of_a_tile(error: &ArchiveError) -> bool {
    match error {
        ArchiveError::Damaged { .. }
        | ArchiveError::Encode { .. }
        | ArchiveError::Compute { .. }
        | ArchiveError::Request { .. }
        | ArchiveError::Store(StoreError::Corrupt { .. }) => true,
        error => is_of_the_rows(error),
    }
}

/// Splits tiles into runs, each rewritten in one commit.
fn per_commit(tiles: &[TileLoad]) -> Vec<&[TileLoad]> {
    let (mut runs, mut start, mut bytes) = (Vec::new(), 0, 0);
    for (at, tile) in tiles.iter().enumerate() {
        if at > start && (at - start >= TILES_PER_COMMIT || bytes + tile.bytes > BYTES_PER_COMMIT) {
            runs.push(&tiles[start..at]);
            (start, bytes) = (at, 0);
        }
        bytes += tile.bytes;
    }
    if start < tiles.len() {
        runs.push(&tiles[start..]);
    }
    runs
}

/// Whether the tile's chunks are already as large as consolidation would make them, or, for rows of `row_bytes` bytes,
/// as few.
fn well_filled(tile: &TileLoad, row_bytes: Option<usize>) -> bool {
    let few = |bytes: usize| tile.chunks <= tile.rows.div_ceil(rows_per_chunk(bytes) as u64);
    let mean = tile.bytes / tile.chunks.max(1);
    // A mean above the size limit of chunks comes from very large values: the other chunks may still be small.
    (CHUNK_BYTES_GOOD..=CHUNK_BYTES_MAX as u64).contains(&mean) || row_bytes.is_some_and(few)
}

/// Bytes of a row before encoding; `None` if a column has no fixed width.
fn fixed_row_bytes(frame: &Frame) -> Option<usize> {
    frame.spec.schema.fields().iter().map(|field| field.data_type().primitive_width()).sum()
}

/// The rewrites of each tile, or why there are none. `whole` tells whether the parts are all of the tile's chunks. A
/// subset of a tile's chunks is rewritten only as fewer chunks: otherwise a tile that is never read as a whole would be
/// rewritten endlessly.
fn rewrite_tiles(
    tiles: Vec<(Frame, Vec<ParsedChunk>)>,
    (whole, split): (bool, VersionSplit),
) -> Vec<(Tile, Result<Vec<Rewrite>>)> {
    use rayon::prelude::*;
    let rewrite = |(frame, parts): (Frame, Vec<ParsedChunk>)| {
        let (tile, chunks) = (parts[0].chunk.key.tile, parts.len());
        let kind = Kind::of(parts[0].chunk.key.id);
        let rewrites = rewrite(&frame, parts, (kind, split), None).map(|mut rewrites| {
            rewrites.retain(|rewrite| match whole && rewrite.old.len() == chunks {
                true => !rewrite.is_idle(),
                false => rewrite.new.len() < rewrite.old.len(),
            });
            rewrites
        });
        (tile, rewrites)
    };
    tiles.into_par_iter().map(rewrite).collect()
}

#[cfg(test)]
mod tests {
    use chronotile_types::{Cell, Window};

    use super::*;

    fn tile(cell: i64) -> Tile {
        Tile { cell: Cell(cell), window: Window(0) }
    }

    fn load(cell: i64, bytes: u64) -> TileLoad {
        TileLoad { tile: tile(cell), of: 0, chunks: 2, written: 2, rows: 2, bytes }
    }

    #[test]
    fn chunks_of_older_versions_are_counted_apart_from_the_others() {
        let statistics = TileStatistics {
            ids: 0,
            tile: tile(1),
            chunks: 10,
            rows: 100,
            bytes: 1_000,
            written_chunks: 4,
            older_chunks: 3,
            older_rows: 20,
            older_bytes: 300,
        };
        let of = |kind| {
            let load = TileLoad::of(&statistics, 0, kind);
            (load.chunks, load.written, load.rows, load.bytes)
        };
        assert_eq!(of(Kind::Current), (7, 4, 80, 700));
        assert_eq!(of(Kind::Older), (3, 3, 20, 300));
    }

    #[test]
    fn a_commit_has_as_many_tiles_as_its_limits_allow_and_at_least_one() {
        let runs = |bytes: &[u64]| {
            let tiles: Vec<TileLoad> = (0..).zip(bytes).map(|(cell, bytes)| load(cell, *bytes)).collect();
            per_commit(&tiles).iter().map(|run| run.len()).collect::<Vec<_>>()
        };
        let half = BYTES_PER_COMMIT / 2;
        assert_eq!(runs(&[]), [0; 0]);
        assert_eq!(runs(&[half, half, 1]), [2, 1]);
        assert_eq!(runs(&[half, half + 1]), [1, 1]);
        assert_eq!(runs(&[2 * BYTES_PER_COMMIT, 1, 1]), [1, 2]);
        assert_eq!(runs(&[1; 2 * TILES_PER_COMMIT + 1]), [TILES_PER_COMMIT, TILES_PER_COMMIT, 1]);
    }
}
