//! Rewriting the many small chunks of a tile as few large ones, or without the rows of one batch.
//!
//! Nothing is lost by it: every row keeps its batch and write stamp, rows that share an id are all kept (a batch may be
//! removed later), and only rows that stand twice with the same id, version and batch become one. The chunks that were
//! read are taken away by id in the same commit that puts the new ones, and only if all of them are still there. Any chunks of a
//! tile may be rewritten without the others, so a tile of any size is rewritten in bounded memory.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, UInt32Array};
use arrow_select::take::{take, take_record_batch};
use chronotile_chunk::{Body, Columns, Origin};
use chronotile_store::{Cells, Chunk, ChunkKey, Commit, Scan, StoreError, TileStatistics};
use chronotile_types::{BatchId, ChunkId, SliceId, Tile};
use futures::{StreamExt, TryStreamExt};
use xxhash_rust::xxh3::xxh3_128;

use crate::LOG;
use crate::catalog::{ChunkRef, fence};
use crate::dataset::Dataset;
use crate::error::{ArchiveError, Result};
use crate::frame::Frame;
use crate::keys::{Key, Keys};
use crate::maintenance::retire::Watch;
use crate::read::assemble::{Rank, order_key, part_ranks};
use crate::read::on_pool;
use crate::read::part::ParsedChunk;
use crate::report::{ConsolidateReport, TileFailure};
use crate::request::ConsolidateOptions;
use crate::time_axis::{Bounds, place_rows};
use crate::write::pack::{CHUNK_BYTES_MAX, TileRows, bytes_of, pack, rows_per_chunk, zones};

/// Called with tiles done and tiles in all.
pub type Progress<'a> = &'a (dyn Fn(u64, u64) + Send + Sync);

/// Tiles rewritten in one commit, and the bytes of chunks from which on a commit takes no further tile.
const TILES_PER_COMMIT: usize = 64;
const BYTES_PER_COMMIT: u64 = 16 << 20;
/// Bytes of chunks of one tile that are read at once; a tile with more is rewritten a part of its chunks at a time.
const SET_BYTES: usize = 16 << 20;
/// Decoded bytes of chunks that are rewritten together, as far as one chunk does not have more.
const SET_BYTES_DECODED: usize = 32 << 20;
/// Commits at the same time where one is for one partition, and bytes of new chunks in each.
const COMMITS_AT_ONCE: usize = 16;
const PARTITION_BYTES: usize = 1 << 20;
/// Chunks of older versions are rewritten as fewer where a tile has so many.
const OLDER_CHUNKS: u64 = 8;
/// Chunks of so many bytes are large enough.
const CHUNK_BYTES_GOOD: u64 = 128 << 10;
/// Chunks looked up at once.
const FETCH_CHUNKS: usize = 64;

/// The attempts at a batch whose rows are taken away. Others that begin meanwhile are never among them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unwanted {
    pub batch: BatchId,
    /// Attempts with this stamp or a later one are not among them.
    pub before_us: i64,
    /// Nor is this one.
    pub keep: Option<Origin>,
}

impl Unwanted {
    fn has(&self, origin: &Origin) -> bool {
        origin.batch == self.batch && origin.written_us < self.before_us && Some(*origin) != self.keep
    }
}

/// The chunks of a tile that are rewritten together: those of older versions, or all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Written as they are, or the newest versions in the tile.
    Current,
    /// Older versions alone.
    Older,
}

impl Kind {
    fn of(id: ChunkId) -> Self {
        if id.is_older() { Self::Older } else { Self::Current }
    }
}

/// Where older versions get chunks of their own: they are at least so many, and at least one `among` so many rows.
#[derive(Clone, Copy, Debug)]
struct Parting {
    rows_min: usize,
    among: usize,
}

impl Default for Parting {
    fn default() -> Self {
        Self { rows_min: 64, among: 4 }
    }
}

impl Parting {
    fn by(options: &ConsolidateOptions) -> Self {
        let told = |rows: u64| Self { rows_min: usize::try_from(rows).unwrap_or(usize::MAX), among: usize::MAX };
        options.older_min.map_or_else(Self::default, told)
    }
}

/// What a tile has of one kind of chunks.
struct Load {
    tile: Tile,
    chunks: u64,
    /// How many are as one write left them, or of older versions.
    loose: u64,
    rows: u64,
    bytes: u64,
}

impl Load {
    fn of(tile: &TileStatistics, kind: Kind) -> Self {
        let (chunks, rows, bytes) = (tile.older_chunks, tile.older_rows, tile.older_bytes);
        match kind {
            Kind::Older => Self { tile: tile.tile, chunks, loose: chunks, rows, bytes },
            Kind::Current => Self {
                tile: tile.tile,
                chunks: tile.chunks - chunks,
                loose: tile.written_chunks,
                rows: tile.rows - rows,
                bytes: tile.bytes - bytes,
            },
        }
    }
}

/// Rewrites that are committed together, and the bytes of their new chunks.
type SizedRun = (usize, Vec<Rewrite>);

/// Attempts that do not count, with the tiles where rows of them were met.
type Strays = HashMap<Origin, HashSet<(SliceId, Tile)>>;

/// Chunks of one tile and what takes their place.
struct Rewrite {
    /// At least one.
    old: Vec<Chunk>,
    new: Vec<Chunk>,
}

impl Rewrite {
    fn tile(&self) -> Tile {
        self.old[0].key.tile
    }

    /// Whether the chunks come out as they were.
    fn is_idle(&self) -> bool {
        let old: HashSet<&[u8]> = self.old.iter().map(|chunk| &*chunk.body).collect();
        self.new.len() == self.old.len() && self.new.iter().all(|chunk| old.contains(&*chunk.body))
    }
}

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
                match tiles {
                    [large] if large.bytes > BYTES_PER_COMMIT => {
                        self.consolidate_large(&frame, to, large.tile, &options, found).await?;
                    }
                    tiles => self.consolidate_tiles(&frame, to, tiles, &options, found).await?,
                }
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
        let end = |tile: &Tile| (i64::from(tile.window.0) + 1).saturating_mul(frame.spec.window_ticks());
        let ended = |tile: &Tile| limit.ends_after(end(tile));
        let row_bytes = fixed_row_bytes(frame);
        let mut work = Vec::new();
        for slice in self.slices().await? {
            let mut tiles = self.store().statistics(&frame.dataset, slice).await?;
            tiles.retain(|tile| ended(&tile.tile));
            let older_min = if options.older_min.is_some() { 2 } else { OLDER_CHUNKS };
            for (kind, chunks_min) in [(Kind::Current, chunks_min), (Kind::Older, chunks_min.max(older_min))] {
                let mut loads: Vec<Load> = tiles.iter().map(|tile| Load::of(tile, kind)).collect();
                // Others are as a consolidation left them.
                loads.retain(|load| load.chunks >= chunks_min && load.loose > 0 && !well_filled(load, row_bytes));
                if !loads.is_empty() {
                    work.push((slice, kind, loads));
                }
            }
        }
        Ok(work)
    }

    async fn consolidate_tiles(
        &self,
        frame: &Frame,
        (slice, kind): (SliceId, Kind),
        tiles: &[Load],
        options: &ConsolidateOptions,
        (report, strays): (&mut ConsolidateReport, &mut Strays),
    ) -> Result<()> {
        let wanted: HashSet<Tile> = tiles.iter().map(|load| load.tile).collect();
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
        let heads = self.chunks_of(frame, slice, &HashSet::from([tile]), (false, kind)).await?;
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

    /// The chunks of some tiles of a slice, of one kind.
    async fn chunks_of(
        &self,
        frame: &Frame,
        slice: SliceId,
        tiles: &HashSet<Tile>,
        (bodies, kind): (bool, Kind),
    ) -> Result<Vec<Chunk>> {
        let mut cells: Vec<_> = tiles.iter().map(|tile| tile.cell).collect();
        cells.sort_unstable();
        cells.dedup();
        let windows = tiles.iter().map(|tile| tile.window);
        let (Some(first), Some(last)) = (windows.clone().min(), windows.max()) else { return Ok(vec![]) };
        let ranges: Arc<[_]> = cells.into_iter().map(|cell| (cell, cell)).collect();
        let (cells, older) = (Cells::Ranges(ranges), kind == Kind::Older);
        let scan = Scan { slices: vec![slice], cells, windows: (first, last), bodies, older };
        let scanned = self.store().scan(&frame.dataset, scan).await?.map_err(ArchiveError::from);
        let mut chunks: Vec<Chunk> = scanned.try_concat().await?;
        chunks.retain(|chunk| tiles.contains(&chunk.key.tile) && Kind::of(chunk.key.id) == kind);
        Ok(chunks)
    }

    /// Commits rewrites, all at once or, where the engine cannot, those of each partition; where it does not take one of them, or
    /// somebody changed one of the tiles, one by one. `false` for those that lost.
    async fn replace(&self, rewrites: Vec<Rewrite>) -> Result<Vec<(Rewrite, Result<bool>)>> {
        if rewrites.is_empty() {
            return Ok(vec![]);
        }
        // One transaction for many tiles is much cheaper than one for each, but a change of any tile fails all of them.
        let runs = match self.store().capabilities().atomic_commits {
            true => vec![rewrites],
            false => self.by_partition(rewrites),
        };
        let work: Vec<_> = runs.into_iter().map(|run| self.replace_run(run)).collect();
        let done: Vec<_> = futures::stream::iter(work).buffered(COMMITS_AT_ONCE).try_collect().await?;
        Ok(done.into_iter().flatten().collect())
    }

    /// Rewrites of tiles that share a partition, together as far as a commit takes them.
    fn by_partition(&self, rewrites: Vec<Rewrite>) -> Vec<Vec<Rewrite>> {
        let spec = self.spec();
        let place = |rewrite: &Rewrite| (rewrite.old[0].key.slice, spec.partition_of(rewrite.tile().cell));
        let mut runs: BTreeMap<(SliceId, i64), Vec<SizedRun>> = BTreeMap::new();
        for rewrite in rewrites {
            let runs = runs.entry(place(&rewrite)).or_default();
            let size: usize = rewrite.new.iter().map(|chunk| chunk.head.len() + chunk.body.len()).sum();
            match runs.last_mut() {
                Some((bytes, run)) if *bytes + size <= PARTITION_BYTES => {
                    *bytes += size;
                    run.push(rewrite);
                }
                _ => runs.push((size, vec![rewrite])),
            }
        }
        runs.into_values().flatten().map(|(_, run)| run).collect()
    }

    async fn replace_run(&self, run: Vec<Rewrite>) -> Result<Vec<(Rewrite, Result<bool>)>> {
        if run.len() > 1 {
            match self.try_replace(&run).await {
                Ok(true) => return Ok(run.into_iter().map(|rewrite| (rewrite, Ok(true))).collect()),
                Ok(false) => {}
                Err(error) if is_of_the_rows(&error) => {}
                Err(error) => return Err(error),
            }
        }
        let mut done = Vec::with_capacity(run.len());
        for rewrite in run {
            let won = self.try_replace(std::slice::from_ref(&rewrite)).await;
            done.push((rewrite, won));
        }
        Ok(done)
    }

    /// Whether the rewrites took effect; `false` where a chunk they replace is gone.
    async fn try_replace(&self, rewrites: &[Rewrite]) -> Result<bool> {
        let new_keys: HashSet<ChunkKey> = rewrites.iter().flat_map(|r| r.new.iter().map(|chunk| chunk.key)).collect();
        let old = rewrites.iter().flat_map(|r| r.old.iter().map(|chunk| chunk.key));
        // A chunk's id is derived from its sources, so a rewrite that changes nothing has the key of the chunk that it replaces.
        // That chunk must not be removed.
        let commit = Commit {
            put: rewrites.iter().flat_map(|r| r.new.iter().cloned()).collect(),
            remove: old.filter(|key| !new_keys.contains(key)).collect(),
            require_removed: true,
            ..Commit::default()
        };
        match self.commit(commit).await {
            Ok(()) => Ok(true),
            Err(
                ArchiveError::Store(StoreError::ChunkConflict { .. } | StoreError::NoSlice { .. })
                | ArchiveError::SliceRetired { .. },
            ) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Takes rows of a batch away: out of consolidated chunks, and with `last`, the
    /// commit that ends it, the chunks in `refs`, which the batch was written as. They are looked for in the tiles of `refs` and in
    /// `tiles`. Where slices are closed before they are dropped, `last` comes once the rows are gone and no slice that is watched was dropped with them.
    ///
    /// A consolidation that read one of these chunks before may still commit. The chunks are looked up first, then the
    /// consolidated ones are cleared, and the last commit demands every chunk that was found: one consolidated meanwhile
    /// fails it, and all of it is done again.
    async fn clear_out(
        &self,
        of: Unwanted,
        what: (&[ChunkRef], &HashSet<(SliceId, Tile)>),
        last: Commit,
        watch: &Watch,
    ) -> Result<()> {
        // Others may have added columns, which rewritten chunks must keep.
        self.refresh_group().await?;
        let this = self.seeing_every_write();
        if !self.fence().needs_closing() {
            return this.take_away(of, what, last).await;
        }
        // Until the rows are gone, a process that moves the slice elsewhere may still copy them. The removal is acknowledged only
        // after a check that no such process has dropped the slice.
        this.take_away(of, what, Commit { before: last.before.clone(), ..Commit::default() }).await?;
        self.nothing_dropped(watch).await?;
        self.commit(last).await
    }

    /// Takes away rows of a batch that do not count any more, as [`Dataset::clear_out`] does.
    ///
    /// # Errors
    /// [`ArchiveError::SliceRetired`] where one of the slices is being dropped, or was meanwhile; the engine.
    pub(crate) async fn clear_attempts(
        &self,
        of: Unwanted,
        what: (&[ChunkRef], &HashSet<(SliceId, Tile)>),
        last: Commit,
    ) -> Result<()> {
        let slices: BTreeSet<SliceId> = what.0.iter().map(|chunk| chunk.key.slice).collect();
        let slices = slices.into_iter().chain(what.1.iter().map(|(slice, _)| *slice)).collect::<BTreeSet<_>>();
        loop {
            let watch = self.watch(slices.clone()).await?;
            let mut last = last.clone();
            last.before.extend(self.fence().no_drop_since(&watch.seen));
            match self.clear_out(of, what, last, &watch).await {
                Err(error) if fence::has_changed(&error) => continue,
                cleared => cleared?,
            }
            break;
        }
        Ok(())
    }

    /// Takes away the rows of a batch; `last` goes with the last of them.
    async fn take_away(
        &self,
        of: Unwanted,
        (refs, tiles): (&[ChunkRef], &HashSet<(SliceId, Tile)>),
        last: Commit,
    ) -> Result<()> {
        loop {
            let remove = self.existing(refs).await?;
            self.take_out(of, refs, tiles).await?;
            let commit = Commit { remove, require_removed: true, ..last.clone() };
            match self.commit(commit).await {
                Err(ArchiveError::Store(StoreError::ChunkConflict { .. })) => continue,
                result => return result,
            }
        }
    }

    /// The chunks in `refs` that exist.
    pub(crate) async fn existing(&self, refs: &[ChunkRef]) -> Result<Vec<ChunkKey>> {
        let mut existing = Vec::new();
        for refs in refs.chunks(FETCH_CHUNKS) {
            let keys = refs.iter().map(|chunk| chunk.key).collect();
            let found = self.fetch(keys).await?;
            existing.extend(found.into_iter().map(|chunk| chunk.key));
        }
        existing.sort_unstable();
        existing.dedup();
        Ok(existing)
    }

    /// Takes rows of a batch out of consolidated chunks. `refs` are the chunks the
    /// batch was written as; those that still exist are not touched.
    async fn take_out(&self, of: Unwanted, refs: &[ChunkRef], others: &HashSet<(SliceId, Tile)>) -> Result<()> {
        let mut tiles: HashMap<SliceId, HashSet<Tile>> = HashMap::new();
        let written = refs.iter().map(|chunk| (chunk.key.slice, chunk.key.tile));
        for (slice, tile) in written.chain(others.iter().copied()) {
            tiles.entry(slice).or_default().insert(tile);
        }
        let written: HashSet<ChunkKey> = refs.iter().map(|chunk| chunk.key).collect();
        for (slice, tiles) in tiles {
            while !self.take_out_once(slice, &tiles, &written, of).await? {}
        }
        Ok(())
    }

    /// One try; `false` where somebody changed one of the tiles meanwhile.
    ///
    /// Where the rows are taken out of a chunk of newest versions, what they have replaced may be the newest again: the older
    /// versions of its tile become ordinary rows first, for the next consolidation to compare.
    async fn take_out_once(
        &self,
        slice: SliceId,
        tiles: &HashSet<Tile>,
        written: &HashSet<ChunkKey>,
        of: Unwanted,
    ) -> Result<bool> {
        let frame = &self.frame_of(slice)?;
        let unwanted = move |origin: &Origin| of.has(origin);
        let mut mixed: Vec<ParsedChunk> = Vec::new();
        let mut exposed: HashSet<Tile> = HashSet::new();
        for chunk in self.chunks_of(frame, slice, tiles, (false, Kind::Current)).await? {
            let head = frame.head(&chunk)?;
            if !written.contains(&chunk.key) && head.origins.iter().any(unwanted) {
                if chunk.key.id.is_parted() {
                    exposed.insert(chunk.key.tile);
                }
                mixed.push(ParsedChunk::new(chunk, head));
            }
        }
        let mut older: Vec<ParsedChunk> = Vec::new();
        if frame.keeps_latest() {
            for chunk in self.chunks_of(frame, slice, tiles, (false, Kind::Older)).await? {
                let head = frame.head(&chunk)?;
                if exposed.contains(&chunk.key.tile) || head.origins.iter().any(unwanted) {
                    older.push(ParsedChunk::new(chunk, head));
                }
            }
        }
        let exposed = Arc::new(exposed);
        for set in sets(&older).into_iter().chain(sets(&mixed)) {
            let chunks = self.store().fetch(&frame.dataset, set.iter().map(|part| part.chunk.key).collect()).await?;
            if chunks.len() < set.len() {
                return Ok(false);
            }
            let mut tiles: HashMap<Tile, Vec<ParsedChunk>> = HashMap::new();
            for chunk in chunks {
                let head = frame.head(&chunk)?;
                tiles.entry(chunk.key.tile).or_default().push(ParsedChunk::new(chunk, head));
            }
            let (worker, exposed) = (frame.clone(), exposed.clone());
            let rewrites = on_pool(move || {
                let rewrite = |parts: Vec<ParsedChunk>| {
                    let (tile, kind) = (parts[0].chunk.key.tile, Kind::of(parts[0].chunk.key.id));
                    let becomes = if exposed.contains(&tile) { Kind::Current } else { kind };
                    rewrite(&worker, parts, (becomes, Parting::default()), Some(&unwanted))
                };
                tiles.into_values().map(rewrite).collect::<Result<Vec<_>>>()
            });
            for (_, replaced) in self.replace(rewrites.await?.into_iter().flatten().collect()).await? {
                if !replaced? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

/// Whether an engine refuses a commit for the rows in it, and may take others.
fn is_of_the_rows(error: &ArchiveError) -> bool {
    matches!(error, ArchiveError::Store(StoreError::TooLarge { .. } | StoreError::Unfit { .. }))
}

impl TileFailure {
    /// Why a tile cannot be rewritten; the error itself where it is not of the tile alone.
    fn of(tile: Tile, error: ArchiveError) -> Result<Self> {
        let of_the_tile = match &error {
            ArchiveError::Damaged { .. }
            | ArchiveError::Encode { .. }
            | ArchiveError::Compute { .. }
            | ArchiveError::Request { .. } => true,
            error => is_of_the_rows(error),
        };
        if of_the_tile { Ok(Self { tile, reason: error.to_string() }) } else { Err(error) }
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

/// Runs of chunks, given by their heads, whose bodies are read at once.
fn sets(heads: &[ParsedChunk]) -> Vec<&[ParsedChunk]> {
    let (mut runs, mut start, mut bytes) = (Vec::new(), 0, 0);
    for (at, part) in heads.iter().enumerate() {
        if at > start && (at - start >= FETCH_CHUNKS || bytes + part.head.body_bytes > SET_BYTES) {
            runs.push(&heads[start..at]);
            (start, bytes) = (at, 0);
        }
        bytes += part.head.body_bytes;
    }
    if start < heads.len() {
        runs.push(&heads[start..]);
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

/// The rows of the parts, all of one kind and tile, as new chunks of a kind, without those of unwanted origins. Parts that decode
/// to much are rewritten in several steps, each for some of them; one part by itself only where origins are unwanted.
fn rewrite(
    frame: &Frame,
    mut parts: Vec<ParsedChunk>,
    (becomes, parting): (Kind, Parting),
    unwanted: Option<&dyn Fn(&Origin) -> bool>,
) -> Result<Vec<Rewrite>> {
    let mut rewrites = Vec::new();
    parts.sort_by_key(order_key);
    while !parts.is_empty() {
        let gathered = Gathered::new(frame, &parts)?;
        let rest = parts.split_off(gathered.parts);
        let old: Vec<Chunk> = std::mem::replace(&mut parts, rest).into_iter().map(|part| part.chunk).collect();
        if old.len() == 1 && unwanted.is_none() {
            continue;
        }
        let order = gathered.order(frame, unwanted.unwrap_or(&|_| false))?;
        let (newest, older) = match becomes {
            Kind::Current => gathered.by_age(frame, order, parting)?,
            Kind::Older => (vec![], order),
        };
        let parted = !older.is_empty() || old.iter().any(|chunk| chunk.key.id.is_parted());
        let mut new = gathered.pack(frame, &old, &newest, if parted { Age::Newest } else { Age::Any })?;
        new.extend(gathered.pack(frame, &old, &older, Age::Older)?);
        rewrites.push(Rewrite { old, new });
    }
    Ok(rewrites)
}

/// Which versions of records a chunk was given.
#[derive(Clone, Copy)]
enum Age {
    /// Any: none were parted from them.
    Any,
    /// The newest of those that were together at some time.
    Newest,
    Older,
}

/// The decoded rows of chunks of a tile with where each came from.
struct Gathered {
    tile: Tile,
    /// How many of the chunks given they are from.
    parts: usize,
    rows: RecordBatch,
    ranks: Vec<Rank>,
    origins: Vec<Origin>,
    row_origin: Vec<u32>,
}

impl Gathered {
    /// Of the first of `parts`, at least one and as many as decode to [`SET_BYTES_DECODED`].
    fn new(frame: &Frame, parts: &[ParsedChunk]) -> Result<Self> {
        let all: Vec<usize> = (0..frame.spec.schema.fields().len()).collect();
        let mut set = Columns::new(&frame.layout, &all, &frame.defaults);
        let (mut ranks, mut taken) = (Vec::new(), 0);
        for part in parts {
            if set.bytes() > SET_BYTES_DECODED {
                break;
            }
            let damaged = |damage| frame.damaged(&part.chunk.key, damage);
            let body = Body::open(&part.head, &part.chunk.body).map_err(damaged)?;
            set.append_body(&body, frame.columns_in(&part.chunk.key, &part.head)?).map_err(damaged)?;
            ranks.extend(part_ranks(frame, part, &body)?);
            taken += 1;
        }
        let mut places: HashMap<Origin, u32> = HashMap::new();
        let mut origins = Vec::new();
        let mut row_origin = Vec::with_capacity(ranks.len());
        for rank in &ranks {
            let origin = Origin { batch: rank.batch, written_us: rank.written_us, token: rank.token };
            let place = *places.entry(origin).or_insert_with(|| {
                origins.push(origin);
                origins.len() as u32 - 1
            });
            row_origin.push(place);
        }
        let tile =
            parts.first().map_or(Tile { cell: chronotile_types::Cell(0), window: chronotile_types::Window(0) }, |p| {
                p.chunk.key.tile
            });
        Ok(Self { tile, parts: taken, rows: set.finish(), ranks, origins, row_origin })
    }

    fn columns(&self, positions: &[usize]) -> Vec<ArrayRef> {
        positions.iter().map(|position| self.rows.column(*position).clone()).collect()
    }

    /// The rows to keep, by time, ids and age.
    fn order(&self, frame: &Frame, unwanted: &dyn Fn(&Origin) -> bool) -> Result<Vec<u32>> {
        let failed = |e| frame.compute("comparing ids", e);
        let ids = (!frame.ids.is_empty()).then(|| Keys::new(&self.columns(&frame.ids))).transpose().map_err(failed)?;
        let version = frame.version.map(|v| Keys::new(&self.columns(&[v]))).transpose().map_err(failed)?;
        let mut newest: hashbrown::HashMap<(Key, Key, BatchId, i64), u32> = hashbrown::HashMap::new();
        for (row, rank) in self.ranks.iter().enumerate() {
            if unwanted(&self.origins[self.row_origin[row] as usize]) {
                continue;
            }
            let id = ids.as_ref().map_or(Key::Null, |keys| keys.get(row));
            let version = version.as_ref().map_or(Key::Null, |keys| keys.get(row));
            let ordinal = if frame.ids.is_empty() { rank.ordinal } else { 0 };
            let kept = newest.entry((id, version, rank.batch, ordinal)).or_insert(row as u32);
            if self.ranks[*kept as usize] < *rank {
                *kept = row as u32;
            }
        }
        let mut order: Vec<u32> = newest.into_values().collect();
        let (ticks, _) = self.places(frame)?;
        order.sort_unstable_by(|a, b| {
            let (a, b) = (*a as usize, *b as usize);
            let by_ids = || ids.as_ref().map_or(std::cmp::Ordering::Equal, |keys| keys.compare(a, b));
            ticks[a]
                .cmp(&ticks[b])
                .then_with(|| self.compare_days(frame, a, b))
                .then_with(by_ids)
                .then_with(|| self.ranks[a].cmp(&self.ranks[b]))
        });
        Ok(order)
    }

    /// Float days of the same tick may still differ.
    fn compare_days(&self, frame: &Frame, a: usize, b: usize) -> std::cmp::Ordering {
        match crate::time_axis::times(self.rows.column(frame.time)) {
            Some(crate::time_axis::Times::Days(days)) => days[a].total_cmp(&days[b]),
            _ => std::cmp::Ordering::Equal,
        }
    }

    fn places(&self, frame: &Frame) -> Result<(Vec<i64>, Vec<chronotile_types::Window>)> {
        let malformed = |_| frame.refuse("a stored row has no time; run verify");
        place_rows(&frame.spec, self.rows.column(frame.time)).map_err(malformed)
    }

    /// Parts the rows of `order` in the newest versions of their records and older ones, both in that order. Most reads want the
    /// newest alone, and then leave out chunks that have none. A few older versions are not worth a chunk.
    fn by_age(&self, frame: &Frame, order: Vec<u32>, parting: Parting) -> Result<(Vec<u32>, Vec<u32>)> {
        if !frame.keeps_latest() {
            return Ok((order, vec![]));
        }
        let failed = |e| frame.compute("comparing versions", e);
        let ids = Keys::new(&self.columns(&frame.ids)).map_err(failed)?;
        let version = frame.version.map(|v| Keys::new(&self.columns(&[v]))).transpose().map_err(failed)?;
        let age = |row: u32| (version.as_ref().map(|keys| keys.get(row as usize)), self.ranks[row as usize]);
        let mut newest: hashbrown::HashMap<Key, u32> = hashbrown::HashMap::with_capacity(order.len());
        for row in &order {
            let kept = newest.entry(ids.get(*row as usize)).or_insert(*row);
            if age(*kept) < age(*row) {
                *kept = *row;
            }
        }
        let older = order.len() - newest.len();
        if older == 0 || older < parting.rows_min || older.saturating_mul(parting.among) < order.len() {
            return Ok((order, vec![]));
        }
        Ok(order.into_iter().partition(|row| newest.get(&ids.get(*row as usize)) == Some(row)))
    }

    fn pack(&self, frame: &Frame, old: &[Chunk], order: &[u32], age: Age) -> Result<Vec<Chunk>> {
        if order.is_empty() {
            return Ok(vec![]);
        }
        let failed = |e| frame.compute("sorting rows", e);
        let rows = take_record_batch(&self.rows, &UInt32Array::from(order.to_vec())).map_err(failed)?;
        let (ticks, _) = self.places(frame)?;
        let pick = |row: &u32| *row as usize;
        let ticks: Vec<i64> = order.iter().map(|row| ticks[pick(row)]).collect();
        let row_origin: Vec<u32> = order.iter().map(|row| self.row_origin[pick(row)]).collect();
        let ordinals: Vec<i64> = order.iter().map(|row| self.ranks[pick(row)].ordinal).collect();
        let indexes = UInt32Array::from(order.to_vec());
        let ids =
            frame.ids.first().map(|id| take(self.rows.column(*id), &indexes, None)).transpose().map_err(failed)?;
        let row_origins = row_origin.iter().map(|origin| self.origins[*origin as usize]);
        let zones = zones(ids.as_ref(), frame, row_origins)?;
        let unique_ids = unique(frame, &rows)?;
        let row_bytes = bytes_of(&rows) / rows.num_rows().max(1);
        let tile = TileRows {
            tile: self.tile,
            rows,
            ticks: &ticks,
            zones: &zones,
            origins: &self.origins,
            row_origin: Some(&row_origin),
            ordinals: frame.ids.is_empty().then_some(ordinals.as_slice()),
            unique_ids,
        };
        let mut sources: Vec<ChunkId> = old.iter().map(|chunk| chunk.key.id).collect();
        sources.sort_unstable();
        let mut kept: Vec<Origin> = row_origin.iter().map(|origin| self.origins[*origin as usize]).collect();
        kept.sort_unstable();
        kept.dedup();
        pack(frame, &tile, row_bytes, &|range| consolidated_id(&sources, &kept, age, range))
    }
}

fn unique(frame: &Frame, rows: &RecordBatch) -> Result<bool> {
    let columns: Vec<ArrayRef> = frame.ids.iter().map(|id| rows.column(*id).clone()).collect();
    if columns.is_empty() {
        return Ok(true);
    }
    let keys = Keys::new(&columns).map_err(|e| frame.compute("comparing ids", e))?;
    let mut seen = hashbrown::HashSet::with_capacity(rows.num_rows());
    Ok((0..rows.num_rows()).all(|row| seen.insert(keys.get(row))))
}

/// The same chunks consolidated to the same pieces always give the same id; without the rows of a batch they give another.
fn consolidated_id(sources: &[ChunkId], kept: &[Origin], age: Age, range: std::ops::Range<usize>) -> ChunkId {
    let mut bytes = Vec::with_capacity(sources.len() * 16 + kept.len() * 24 + 16);
    sources.iter().for_each(|id| bytes.extend_from_slice(&id.to_bytes()));
    for origin in kept {
        bytes.extend_from_slice(&origin.batch.to_bytes());
        bytes.extend_from_slice(&origin.written_us.to_be_bytes());
        bytes.extend_from_slice(&origin.token.to_be_bytes());
    }
    bytes.extend_from_slice(&(range.start as u64).to_be_bytes());
    bytes.extend_from_slice(&(range.end as u64).to_be_bytes());
    let hash = xxh3_128(&bytes);
    match age {
        Age::Any => ChunkId::of_any(hash),
        Age::Newest => ChunkId::of_newest(hash),
        Age::Older => ChunkId::of_older(hash),
    }
}
