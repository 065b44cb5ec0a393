//! Rewriting the many small chunks of a tile as few large ones.
//!
//! Nothing is lost by it: every row keeps its batch and write stamp, rows that share an id are all kept (a batch may be
//! removed later), and only rows that stand twice with the same id, version and batch become one. The chunks that were
//! read are taken away by id in the same commit that puts the new ones, and only if all of them are still there. Any chunks of a
//! tile may be rewritten without the others, so a tile of any size is rewritten in bounded memory.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use chronotile_chunk::Origin;
use chronotile_store::{Chunk, ChunkKey, StoreError, TileStatistics};
use chronotile_types::{SliceId, Tile};
use futures::TryStreamExt;

use crate::LOG;
use crate::dataset::Dataset;
use crate::error::{ArchiveError, Result};
use crate::frame::Frame;
use crate::maintenance::rewrite::{Kind, Parting, Rewrite, is_of_the_rows, rewrite, sets};
use crate::read::assemble::order_key;
use crate::read::on_pool;
use crate::read::part::ParsedChunk;
use crate::report::{ConsolidateReport, TileFailure};
use crate::request::ConsolidateOptions;
use crate::time_axis::Bounds;
use crate::write::pack::{CHUNK_BYTES_MAX, rows_per_chunk};

/// Called with tiles done and tiles in all.
pub type Progress<'a> = &'a (dyn Fn(u64, u64) + Send + Sync);

/// Tiles rewritten in one commit, and the bytes of chunks from which on a commit takes no further tile.
const TILES_PER_COMMIT: usize = 64;
const BYTES_PER_COMMIT: u64 = 16 << 20;
/// Chunks of older versions are rewritten as fewer where a tile has so many.
const OLDER_CHUNKS: u64 = 8;
/// Chunks of so many bytes are large enough.
const CHUNK_BYTES_GOOD: u64 = 128 << 10;

/// What a tile has of one kind of chunks.
struct Load {
    tile: Tile,
    chunks: u64,
    /// How many are as one write left them, or of older versions.
    written: u64,
    rows: u64,
    bytes: u64,
}

impl Load {
    fn of(tile: &TileStatistics, kind: Kind) -> Self {
        let (chunks, rows, bytes) = (tile.older_chunks, tile.older_rows, tile.older_bytes);
        match kind {
            Kind::Older => Self { tile: tile.tile, chunks, written: chunks, rows, bytes },
            Kind::Current => Self {
                tile: tile.tile,
                chunks: tile.chunks - chunks,
                written: tile.written_chunks,
                rows: tile.rows - rows,
                bytes: tile.bytes - bytes,
            },
        }
    }
}

/// Attempts that do not count, with the tiles where rows of them were met.
type Strays = BTreeMap<Origin, BTreeSet<(SliceId, Tile)>>;

impl Dataset {
    /// Rewrites tiles of many chunks as few. Safe beside writers, readers and other consolidations, and safe to interrupt:
    /// a tile that somebody else changed meanwhile is left as it is and counted. Batches that are still being written are
    /// left alone, and what is left of writes that were cut off a day ago or more is taken away. A tile that cannot be rewritten, for a damaged chunk or rows that the engine does not take, is left as it is
    /// and named in the report; the others are rewritten all the same.
    ///
    /// Memory does not grow with the size of a tile: one of more than 16 MiB is rewritten in parts, neighbours in time together.
    ///
    /// # Errors
    /// The engine.
    pub async fn consolidate(
        &self,
        options: ConsolidateOptions,
        progress: Option<Progress<'_>>,
    ) -> Result<ConsolidateReport> {
        self.refresh().await?;
        if !options.dry_run {
            self.sweep_attempts().await?;
        }
        let frame = self.frame();
        let mut report = ConsolidateReport::default();
        let mut strays = Strays::new();
        let work = self.tiles_to_consolidate(&frame, &options).await?;
        let total: u64 = work.iter().map(|(_, _, tiles)| tiles.len() as u64).sum();
        let mut done = 0;
        for (slice, kind, tiles) in work {
            for tiles in per_commit(&tiles) {
                let (to, found) = ((slice, kind), (&mut report, &mut strays));
                self.consolidate_run(&frame, to, tiles, &options, found).await?;
                done += tiles.len() as u64;
                if let Some(progress) = progress {
                    progress(done, total);
                }
            }
        }
        if !options.dry_run {
            self.sweep_strays(strays).await?;
        }
        for TileFailure { tile, reason } in &report.failed {
            tracing::warn!(target: LOG, dataset = %frame.spec.name, "a tile was not consolidated: {tile}: {reason}");
        }
        Ok(report)
    }

    async fn tiles_to_consolidate(
        &self,
        frame: &Frame,
        options: &ConsolidateOptions,
    ) -> Result<Vec<(SliceId, Kind, Vec<Load>)>> {
        let chunks_min = options.chunks_min.unwrap_or(2).max(2);
        let range = chronotile_types::TimeRange { start: None, end: options.before };
        let limit = Bounds::new(&frame.spec, &range)?;
        let end = |tile: &Tile| frame.spec.window_start(tile.window).saturating_add(frame.spec.window_ticks());
        let ended = |tile: &Tile| limit.ends_after(end(tile));
        let row_bytes = fixed_row_bytes(frame);
        let mut work = Vec::new();
        let mut found = self.statistics_of(frame, self.slices().await?);
        while let Some((slice, mut tiles)) = found.try_next().await? {
            tiles.retain(|tile| frame.spec.has_window(slice, tile.tile.window) && ended(&tile.tile));
            let older_min = if options.older_min.is_some() { 2 } else { OLDER_CHUNKS };
            for (kind, chunks_min) in [(Kind::Current, chunks_min), (Kind::Older, chunks_min.max(older_min))] {
                let mut loads: Vec<Load> = tiles.iter().map(|tile| Load::of(tile, kind)).collect();
                // Others are as a consolidation left them.
                loads.retain(|load| load.chunks >= chunks_min && load.written > 0 && !well_filled(load, row_bytes));
                if !loads.is_empty() {
                    work.push((slice, kind, loads));
                }
            }
        }
        Ok(work)
    }

    /// Consolidates the tiles of a run. Where the engine cannot read one of them, the others are done all the same.
    async fn consolidate_run(
        &self,
        frame: &Frame,
        to: (SliceId, Kind),
        tiles: &[Load],
        options: &ConsolidateOptions,
        (report, strays): (&mut ConsolidateReport, &mut Strays),
    ) -> Result<()> {
        let found = (&mut *report, &mut *strays);
        let done = match tiles {
            [large] if large.bytes > BYTES_PER_COMMIT => {
                self.consolidate_large(frame, to, large.tile, options, found).await
            }
            tiles => self.consolidate_tiles(frame, to, tiles, options, found).await,
        };
        match (done, tiles) {
            (Err(error), [tile]) => report.failed.push(TileFailure::of(tile.tile, error)?),
            (Err(error), tiles) if is_of_a_tile(&error) => {
                for tile in tiles.chunks(1) {
                    Box::pin(self.consolidate_run(frame, to, tile, options, (&mut *report, &mut *strays))).await?;
                }
            }
            (done, _) => done?,
        }
        Ok(())
    }

    async fn consolidate_tiles(
        &self,
        frame: &Frame,
        (slice, kind): (SliceId, Kind),
        tiles: &[Load],
        options: &ConsolidateOptions,
        (report, strays): (&mut ConsolidateReport, &mut Strays),
    ) -> Result<()> {
        let wanted: BTreeSet<Tile> = tiles.iter().map(|load| load.tile).collect();
        let chunks = self.chunks_of(frame, slice, &wanted, (true, kind)).await?;
        let (tiles, failed) = self.tiles_of(frame, chunks, strays).await?;
        report.failed.extend(failed);
        let (worker, parting) = (frame.clone(), Parting::by(options));
        let rewrites = on_pool(move || Ok(rewrite_tiles(&worker, tiles, (true, parting)))).await?;
        let mut work = Vec::new();
        for (tile, rewritten) in rewrites {
            match rewritten {
                Ok(rewrites) => work.extend(rewrites),
                Err(error) => report.failed.push(TileFailure::of(tile, error)?),
            }
        }
        self.commit_rewrites(work, options.dry_run, report).await
    }

    /// Rewrites a large tile, some of its chunks at a time, in order of time: what lies together in time comes together. Where
    /// nothing was written to such a part since it was last rewritten it is left as it is.
    async fn consolidate_large(
        &self,
        frame: &Frame,
        (slice, kind): (SliceId, Kind),
        tile: Tile,
        options: &ConsolidateOptions,
        (report, strays): (&mut ConsolidateReport, &mut Strays),
    ) -> Result<()> {
        let heads = self.chunks_of(frame, slice, &BTreeSet::from([tile]), (false, kind)).await?;
        let (mut tiles, failed) = self.tiles_of(frame, heads, strays).await?;
        report.failed.extend(failed);
        let mut heads = tiles.pop().unwrap_or_default();
        heads.sort_by_key(order_key);
        let (before, mut changed) = (report.tiles, false);
        for set in sets(&heads) {
            let keys: Vec<ChunkKey> = set.iter().map(|part| part.chunk.key).collect();
            let is_good =
                |part: &ParsedChunk| !part.chunk.key.id.is_written() || part.head.body_bytes as u64 >= CHUNK_BYTES_GOOD;
            if keys.len() < 2 || set.iter().all(is_good) {
                continue;
            }
            let chunks = self.store().fetch(&frame.dataset, keys).await?;
            if chunks.len() < set.len() {
                report.tiles_contended += 1;
                break;
            }
            let (tiles, failed) = self.tiles_of(frame, chunks, strays).await?;
            report.failed.extend(failed);
            let (worker, parting) = (frame.clone(), Parting::by(options));
            let rewritten = on_pool(move || Ok(rewrite_tiles(&worker, tiles, (false, parting)))).await?;
            for (tile, rewrites) in rewritten {
                match rewrites {
                    Ok(rewrites) => self.commit_rewrites(rewrites, options.dry_run, report).await?,
                    Err(error) => report.failed.push(TileFailure::of(tile, error)?),
                }
            }
            changed |= report.tiles > before;
            report.tiles = before;
        }
        report.tiles += u64::from(changed);
        report.failed.dedup_by_key(|failure| failure.tile);
        Ok(())
    }

    /// The chunks of each tile, without those with rows that do not count, whose attempts are entered in `strays`. A tile with a
    /// damaged head is left out and told.
    async fn tiles_of(
        &self,
        frame: &Frame,
        chunks: Vec<Chunk>,
        strays: &mut Strays,
    ) -> Result<(Vec<Vec<ParsedChunk>>, Vec<TileFailure>)> {
        let visible = self.visibility().await?;
        let mut parts: Vec<ParsedChunk> = Vec::with_capacity(chunks.len());
        let mut failed: Vec<TileFailure> = Vec::new();
        for chunk in chunks {
            let tile = chunk.key.tile;
            match frame.head(&chunk) {
                Ok(head) => parts.push(ParsedChunk::new(chunk, head)),
                Err(_) if failed.last().is_some_and(|failure| failure.tile == tile) => {}
                Err(error) => failed.push(TileFailure { tile, reason: error.to_string() }),
            }
        }
        // Whether a batch ended a moment ago is no matter here: a tile is rewritten as one state of it.
        let _ = visible.decide_now(parts.iter().map(|part| &part.head)).await?;
        for part in parts.iter().filter(|part| visible.hides_all_of(&part.head)) {
            let place = (part.chunk.key.slice, part.chunk.key.tile);
            part.head.origins.iter().for_each(|origin| _ = strays.entry(*origin).or_default().insert(place));
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
        Ok((tiles, failed))
    }

    async fn commit_rewrites(
        &self,
        rewrites: Vec<Rewrite>,
        dry_run: bool,
        report: &mut ConsolidateReport,
    ) -> Result<()> {
        let mut tiles: HashSet<Tile> = HashSet::new();
        if dry_run {
            rewrites.iter().for_each(|rewrite| count(report, rewrite, &mut tiles));
            return Ok(());
        }
        let mut contended = HashSet::new();
        for (rewrite, replaced) in self.replace(rewrites).await? {
            match replaced {
                Ok(true) => count(report, &rewrite, &mut tiles),
                Ok(false) => _ = contended.insert(rewrite.tile()),
                Err(error) => report.failed.push(TileFailure::of(rewrite.tile(), error)?),
            }
        }
        report.tiles_contended += contended.len() as u64;
        Ok(())
    }
}

impl TileFailure {
    /// Why a tile cannot be rewritten; the error itself where it is not of the tile alone.
    fn of(tile: Tile, error: ArchiveError) -> Result<Self> {
        if is_of_a_tile(&error) { Ok(Self { tile, reason: error.to_string() }) } else { Err(error) }
    }
}

/// Whether what failed says nothing of other tiles.
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

/// Runs of tiles that are rewritten in one commit.
fn per_commit(tiles: &[Load]) -> Vec<&[Load]> {
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

/// Whether the tile's chunks are as large as consolidation would make them, or as few where rows take `row_bytes` bytes.
fn well_filled(tile: &Load, row_bytes: Option<usize>) -> bool {
    let few = |bytes: usize| tile.chunks <= tile.rows.div_ceil(rows_per_chunk(bytes) as u64);
    let mean = tile.bytes / tile.chunks.max(1);
    // A mean above what chunks are cut at comes of great values, beside which any number of chunks may be small.
    (CHUNK_BYTES_GOOD..=CHUNK_BYTES_MAX as u64).contains(&mean) || row_bytes.is_some_and(few)
}

/// Bytes of a row before encoding, where every column has a width.
fn fixed_row_bytes(frame: &Frame) -> Option<usize> {
    frame.spec.schema.fields().iter().map(|field| field.data_type().primitive_width()).sum()
}

fn count(report: &mut ConsolidateReport, rewrite: &Rewrite, tiles: &mut HashSet<Tile>) {
    let bytes = |chunks: &[Chunk]| chunks.iter().map(|chunk| (chunk.head.len() + chunk.body.len()) as u64).sum::<u64>();
    report.tiles += u64::from(tiles.insert(rewrite.tile()));
    report.chunks_before += rewrite.old.len() as u64;
    report.chunks_after += rewrite.new.len() as u64;
    report.bytes_before += bytes(&rewrite.old);
    report.bytes_after += bytes(&rewrite.new);
}

/// What takes the place of chunks of each tile, or why there is nothing. `whole` tells whether the parts are all that the tile has.
/// Some chunks of a tile are only rewritten as fewer: else a tile that is never together would be rewritten without end.
fn rewrite_tiles(
    frame: &Frame,
    tiles: Vec<Vec<ParsedChunk>>,
    (whole, parting): (bool, Parting),
) -> Vec<(Tile, Result<Vec<Rewrite>>)> {
    use rayon::prelude::*;
    let rewrite = |parts: Vec<ParsedChunk>| {
        let (tile, chunks) = (parts[0].chunk.key.tile, parts.len());
        let kind = Kind::of(parts[0].chunk.key.id);
        let rewrites = rewrite(frame, parts, (kind, parting), None).map(|mut rewrites| {
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
