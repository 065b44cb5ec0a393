//! Replaces chunks of a tile by fewer, or by chunks without the rows of one batch: builds the new chunks and commits
//! them.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use arrow_array::{ArrayRef, RecordBatch, UInt32Array};
use arrow_select::take::{take, take_record_batch};
use chronotile_chunk::{Body, Columns, Origin};
use chronotile_store::{Cells, Chunk, ChunkKey, Commit, DatasetRef, Scan, StoreError, Windows};
use chronotile_types::{BatchId, ChunkId, SliceId, Tile};
use futures::{StreamExt, TryStreamExt};
use xxhash_rust::xxh3::xxh3_128;

use crate::dataset::Dataset;
use crate::error::{ArchiveError, Result};
use crate::frame::Frame;
use crate::keys::{Key, Keys, compare_by};
use crate::read::assemble::{Rank, order_key, part_ranks};
use crate::read::part::ParsedChunk;
use crate::request::ConsolidateOptions;
use crate::time_axis::place_rows;
use crate::write::pack::{TileRows, bytes_of, pack, zones};

/// Most bytes of chunks of one tile that are read at once; a larger tile is rewritten in parts.
const SET_BYTES: usize = 16 << 20;
/// Decoded bytes from which on no further chunk is added to a rewrite.
const SET_BYTES_DECODED: usize = 32 << 20;
/// On engines that commit by partition: concurrent commits, and most bytes of new chunks in each.
const COMMITS_AT_ONCE: usize = 16;
const PARTITION_BYTES: usize = 1 << 20;
/// Chunks fetched at once.
pub(super) const FETCH_CHUNKS: usize = 64;

/// The chunks of a tile that are rewritten together: those of older versions, or all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Chunks as written, or with the newest versions of their records.
    Current,
    /// Chunks with older versions only.
    Older,
}

impl Kind {
    pub(super) fn of(id: ChunkId) -> Self {
        if id.is_older() { Self::Older } else { Self::Current }
    }
}

/// Older versions get chunks of their own if there are at least `rows_min`, and at least one in `among` rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct VersionSplit {
    rows_min: usize,
    among: usize,
}

impl Default for VersionSplit {
    fn default() -> Self {
        Self { rows_min: 64, among: 4 }
    }
}

impl VersionSplit {
    pub(super) fn by(options: &ConsolidateOptions) -> Self {
        let given = |rows: u64| Self { rows_min: usize::try_from(rows).unwrap_or(usize::MAX), among: usize::MAX };
        options.older_min.map_or_else(Self::default, given)
    }
}

/// Rewrites that are committed together, and the bytes of their new chunks.
pub(super) type SizedRun = (usize, Vec<Rewrite>);

/// Chunks of one tile and those that replace them.
pub(super) struct Rewrite {
    /// At least one.
    pub old: Vec<Chunk>,
    pub new: Vec<Chunk>,
}

impl Rewrite {
    /// The slice and tile of the chunks.
    pub(super) fn place(&self) -> (SliceId, Tile) {
        (self.old[0].key.slice, self.old[0].key.tile)
    }

    /// Whether the new chunks equal the old ones.
    pub(super) fn is_idle(&self) -> bool {
        let parted = self.new.iter().any(|chunk| Kind::of(chunk.key.id) != Kind::of(self.old[0].key.id));
        let old: HashSet<&[u8]> = self.old.iter().map(|chunk| &*chunk.body).collect();
        !parted && self.new.len() == self.old.len() && self.new.iter().all(|chunk| old.contains(&*chunk.body))
    }
}

impl Dataset {
    /// The chunks of some tiles of a slice, of one kind. Holds no other chunks of the slice in memory.
    pub(super) async fn chunks_of(
        &self,
        dataset: &DatasetRef,
        slice: SliceId,
        tiles: &BTreeSet<Tile>,
        (bodies, kind): (bool, Kind),
    ) -> Result<Vec<Chunk>> {
        let mut cells: Vec<_> = tiles.iter().map(|tile| (tile.cell, tile.cell)).collect();
        // Tiles are ordered by cell first, so that equal cells are neighbours, and the ranges ascend as a scan
        // requires.
        cells.dedup();
        let older = kind == Kind::Older;
        // A scan for older versions also returns the current chunks: fetch the bodies of the older ones alone,
        // afterwards.
        let scan = Scan {
            slices: vec![slice],
            cells: Cells::Ranges(cells.into()),
            windows: Windows::each(tiles.iter().map(|tile| tile.window)),
            bodies: bodies && !older,
            older,
        };
        let mut groups = self.store().scan(dataset, scan).await?;
        let mut chunks: Vec<Chunk> = Vec::new();
        while let Some(mut group) = groups.try_next().await? {
            // A scan covers all of these windows in all of these cells, which includes tiles that are not wanted.
            group.retain(|chunk| tiles.contains(&chunk.key.tile) && Kind::of(chunk.key.id) == kind);
            chunks.append(&mut group);
        }
        if !(bodies && older) {
            return Ok(chunks);
        }
        let mut whole = Vec::with_capacity(chunks.len());
        for heads in chunks.chunks(FETCH_CHUNKS) {
            let keys = heads.iter().map(|chunk| chunk.key).collect();
            whole.append(&mut self.store().fetch(dataset, keys).await?);
        }
        Ok(whole)
    }

    /// Commits rewrites: all in one commit, or one commit for each partition if the engine cannot do that. If the
    /// engine refuses the rows of one rewrite, or a tile was changed meanwhile, commits one by one. `false` for
    /// rewrites that lost such a race.
    pub(super) async fn replace(&self, rewrites: Vec<Rewrite>) -> Result<Vec<(Rewrite, Result<bool>)>> {
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

    /// Groups rewrites by partition, each group within the size limit of a commit.
    fn by_partition(&self, rewrites: Vec<Rewrite>) -> Vec<Vec<Rewrite>> {
        let spec = self.spec();
        let place = |rewrite: &Rewrite| {
            let (slice, tile) = rewrite.place();
            (slice, spec.partition_of(tile.cell))
        };
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

    /// Whether the rewrites were applied; `false` if a chunk that they replace is gone.
    async fn try_replace(&self, rewrites: &[Rewrite]) -> Result<bool> {
        let new_keys: HashSet<ChunkKey> = rewrites.iter().flat_map(|r| r.new.iter().map(|chunk| chunk.key)).collect();
        let old = rewrites.iter().flat_map(|r| r.old.iter().map(|chunk| chunk.key));
        // Ids are hashes of the sources. If a new chunk ever had the id of one that it replaces, removing the old one
        // would remove the new one.
        let commit = Commit {
            put: rewrites.iter().flat_map(|r| r.new.iter().cloned()).collect(),
            remove: old.filter(|key| !new_keys.contains(key)).collect(),
            require_removed: true,
            ..Commit::default()
        };
        match self.commit(commit).await {
            Ok(()) => Ok(true),
            Err(
                // A drop of the slice is a lost race too: it has removed the chunks to replace.
                ArchiveError::Store(StoreError::ChunkConflict { .. } | StoreError::NoSlice { .. })
                | ArchiveError::SliceRetired { .. },
            ) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Whether the engine refused a commit because of its rows, so that it may accept others.
pub(super) fn is_of_the_rows(error: &ArchiveError) -> bool {
    matches!(error, ArchiveError::Store(StoreError::TooLarge { .. } | StoreError::Unfit { .. }))
}

/// Splits chunks, given by their heads, into runs whose bodies are read at once.
pub(super) fn sets(heads: &[ParsedChunk]) -> Vec<&[ParsedChunk]> {
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

/// Rewrites parts, all of one kind and tile, as new chunks of kind `becomes`, without rows of unwanted origins. Parts
/// that decode to more than [`SET_BYTES_DECODED`] are rewritten in several steps. A single part is rewritten only to
/// leave out origins.
pub(super) fn rewrite(
    frame: &Frame,
    mut parts: Vec<ParsedChunk>,
    (becomes, split): (Kind, VersionSplit),
    unwanted: Option<&dyn Fn(&Origin) -> bool>,
) -> Result<Vec<Rewrite>> {
    let mut rewrites = Vec::new();
    // New chunks keep the columns that were added since `frame` was read.
    let frame = frame.decoding(parts.iter().map(|part| &part.head));
    // The parts are in order of time, so that rows that are close in time share new chunks, even if the rewrite takes
    // several steps.
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
            Kind::Current => gathered.by_age(frame, order, split)?,
            Kind::Older => (vec![], order),
        };
        // The mark must outlive every rewrite: if a newest version stops counting, only the mark makes readers look at
        // the older versions of the tile.
        let separated = !older.is_empty() || old.iter().any(|chunk| chunk.key.id.is_separated());
        let mut new = gathered.pack(frame, &old, &newest, if separated { Versions::Newest } else { Versions::Any })?;
        new.extend(gathered.pack(frame, &old, &older, Versions::Older)?);
        rewrites.push(Rewrite { old, new });
    }
    Ok(rewrites)
}

/// Which versions of records a chunk contains.
#[derive(Clone, Copy)]
enum Versions {
    /// Any: older versions were never separated.
    Any,
    /// The newest, after older versions were separated at some time.
    Newest,
    Older,
}

/// The decoded rows of chunks of a tile, with the origin of each.
struct Gathered {
    tile: Tile,
    /// How many of the given chunks were decoded.
    parts: usize,
    rows: RecordBatch,
    ranks: Vec<Rank>,
    origins: Vec<Origin>,
    row_origin: Vec<u32>,
}

impl Gathered {
    /// Decodes the first of `parts`: at least one, until their rows exceed [`SET_BYTES_DECODED`].
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

    /// The rows to keep, sorted by time, ids, version and rank.
    fn order(&self, frame: &Frame, unwanted: &dyn Fn(&Origin) -> bool) -> Result<Vec<u32>> {
        let failed = |e| frame.compute("comparing ids", e);
        let ids = (!frame.ids.is_empty()).then(|| Keys::new(&self.columns(&frame.ids))).transpose().map_err(failed)?;
        let version = frame.versions(|version| self.rows.column(version).clone())?;
        let mut newest: hashbrown::HashMap<(Key, Key, BatchId, i64), u32> = hashbrown::HashMap::new();
        for (row, rank) in self.ranks.iter().enumerate() {
            if unwanted(&self.origins[self.row_origin[row] as usize]) {
                continue;
            }
            let id = ids.as_ref().map_or(Key::Null, |keys| keys.get(row));
            let version = version.as_ref().map_or(Key::Null, |keys| keys.get(row));
            // Rows of different batches stay apart, because one of the batches may be removed later. Without ids, the
            // number of a row in its batch identifies it.
            let ordinal = if frame.ids.is_empty() { rank.ordinal } else { 0 };
            let kept = newest.entry((id, version, rank.batch, ordinal)).or_insert(row as u32);
            if self.ranks[*kept as usize] < *rank {
                *kept = row as u32;
            }
        }
        let mut order: Vec<u32> = newest.into_values().collect();
        let (ticks, _) = self.places(frame)?;
        // The order is total, down to the rank, although the rows come from a hash table: the id of a chunk is derived
        // from its sources and its range of rows, so the range must always have the same rows.
        order.sort_unstable_by(|a, b| {
            let (a, b) = (*a as usize, *b as usize);
            ticks[a]
                .cmp(&ticks[b])
                .then_with(|| self.compare_days(frame, a, b))
                .then_with(|| compare_by(ids.as_ref(), a, b))
                .then_with(|| compare_by(version.as_ref(), a, b))
                .then_with(|| self.ranks[a].cmp(&self.ranks[b]))
        });
        Ok(order)
    }

    /// Compares times within a tick: float days of the same tick may still differ.
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

    /// Splits the rows of `order` into the newest versions of their records and the older ones; both keep the order.
    /// Most reads want only the newest and skip chunks of older versions. A few older versions are not worth a chunk of
    /// their own.
    fn by_age(&self, frame: &Frame, order: Vec<u32>, split: VersionSplit) -> Result<(Vec<u32>, Vec<u32>)> {
        if !frame.keeps_latest() {
            return Ok((order, vec![]));
        }
        let failed = |e| frame.compute("comparing versions", e);
        let ids = Keys::new(&self.columns(&frame.ids)).map_err(failed)?;
        let version = frame.versions(|version| self.rows.column(version).clone())?;
        let age = |row: u32| (version.as_ref().map(|keys| keys.get(row as usize)), self.ranks[row as usize]);
        let mut newest: hashbrown::HashMap<Key, u32> = hashbrown::HashMap::with_capacity(order.len());
        for row in &order {
            let kept = newest.entry(ids.get(*row as usize)).or_insert(*row);
            if age(*kept) < age(*row) {
                *kept = *row;
            }
        }
        let older = order.len() - newest.len();
        // `among` may be usize::MAX, with which any share is large enough.
        if older == 0 || older < split.rows_min || older.saturating_mul(split.among) < order.len() {
            return Ok((order, vec![]));
        }
        Ok(order.into_iter().partition(|row| newest.get(&ids.get(*row as usize)) == Some(row)))
    }

    fn pack(&self, frame: &Frame, old: &[Chunk], order: &[u32], versions: Versions) -> Result<Vec<Chunk>> {
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
        // The sources are sorted, so that the id does not depend on the order in which the chunks were read.
        sources.sort_unstable();
        let mut kept: Vec<Origin> = row_origin.iter().map(|origin| self.origins[*origin as usize]).collect();
        kept.sort_unstable();
        kept.dedup();
        pack(frame, &tile, row_bytes, &|range| consolidated_id(&sources, &kept, versions, range))
    }
}

fn unique(frame: &Frame, rows: &RecordBatch) -> Result<bool> {
    let columns: Vec<ArrayRef> = frame.ids.iter().map(|id| rows.column(*id).clone()).collect();
    // Without ids, every row is a record of its own.
    if columns.is_empty() {
        return Ok(true);
    }
    let keys = Keys::new(&columns).map_err(|e| frame.compute("comparing ids", e))?;
    let mut seen = hashbrown::HashSet::with_capacity(rows.num_rows());
    Ok((0..rows.num_rows()).all(|row| seen.insert(keys.get(row))))
}

/// The id of a new chunk. The same sources and row range always give the same id; leaving out the rows of a batch
/// changes it.
fn consolidated_id(sources: &[ChunkId], kept: &[Origin], versions: Versions, range: std::ops::Range<usize>) -> ChunkId {
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
    match versions {
        Versions::Any => ChunkId::of_any(hash),
        Versions::Newest => ChunkId::of_newest(hash),
        Versions::Older => ChunkId::of_older(hash),
    }
}
