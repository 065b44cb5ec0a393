//! Groups an engine's chunks into whole tiles, parsed and in order. Each group is sized for one task.
//!
//! Groups are cut by bytes. A tile that is larger than a group is still one group, but only its heads and some bodies
//! stay in memory. The other bodies go to a temporary file, so that the whole tile is available in one consistent
//! state, whatever its size.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use chronotile_store::{Cells, Chunk, ChunkKey, DatasetRef, Scan, Store, Windows};
use chronotile_types::{SliceId, Tile};
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt, TryStreamExt};
use hashbrown::HashSet;

use crate::error::{ArchiveError, Result};
use crate::read::assemble::order_key;
use crate::read::part::{BodyStore, ParsedChunk};
use crate::read::query::Query;

/// Encoded bytes in a group: enough to make decoding worth a task, few enough to spread a read over the cores.
const GROUP_BYTES: usize = 1 << 20;
/// Rows in a group, unless a single tile has more.
const GROUP_ROWS: usize = 1 << 17;
/// Bytes of bodies of one tile, or of one lookup, that stay in memory.
const KEPT_BYTES: usize = 16 << 20;
/// Bytes of chunks to fetch at once, if their sizes are known.
const FETCH_BYTES: usize = 8 << 20;
/// Chunks to fetch at once if they are small, and as long as their sizes are unknown.
const FETCH_CHUNKS: usize = 512;
const FETCH_UNKNOWN: usize = 16;
/// Minimum number of chunks in a run that is fetched by key.
const RUN_CHUNKS: usize = 64;

/// The engine's chunks for the query. If bodies are wanted from several slices, two scans run concurrently, each on
/// one half of the slices; the chunks still come in the order of a single scan.
pub(crate) async fn scan(
    store: Arc<dyn Store>,
    query: &Query,
    slices: Vec<SliceId>,
    what: ScanContent,
) -> Result<BoxStream<'static, Result<Vec<Chunk>>>> {
    let scan = Scan { older: what.older, ..query.scan(slices, what.bodies) };
    scan_all(&store, &query.frame.dataset, scan).await
}

/// The engine's chunks for a scan, as in [`scan`].
pub(crate) async fn scan_all(
    store: &Arc<dyn Store>,
    dataset: &DatasetRef,
    scan: Scan,
) -> Result<BoxStream<'static, Result<Vec<Chunk>>>> {
    if !scan.bodies || scan.slices.len() < 2 {
        return Ok(store.scan(dataset, scan).await?.map_err(ArchiveError::from).boxed());
    }
    let (early, late) = scan.slices.split_at(scan.slices.len() / 2);
    // A stream proceeds only while it is polled. A task for each half lets the later half proceed while the earlier one
    // is read.
    let early = ahead(store.scan(dataset, Scan { slices: early.to_vec(), ..scan.clone() }).await?);
    let late = ahead(store.scan(dataset, Scan { slices: late.to_vec(), ..scan.clone() }).await?);
    Ok(early.chain(late).boxed())
}

/// Runs a scan in a task of its own, one group ahead of its reader.
fn ahead(
    mut chunks: BoxStream<'static, chronotile_store::Result<Vec<Chunk>>>,
) -> impl Stream<Item = Result<Vec<Chunk>>> + Send {
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    tokio::spawn(async move {
        while let Some(group) = chunks.next().await {
            // The reader may have been dropped.
            if sender.send(group.map_err(ArchiveError::from)).await.is_err() {
                break;
            }
        }
    });
    stream::unfold(receiver, |mut receiver| async move { receiver.recv().await.map(|group| (group, receiver)) })
}

/// Which chunks, and what of them, a scan returns.
#[derive(Clone, Copy)]
pub(crate) struct ScanContent {
    pub bodies: bool,
    /// Whether the scan includes chunks of older versions.
    pub older: bool,
}

/// The heads of all chunks.
pub(crate) const HEADS: ScanContent = ScanContent { bodies: false, older: true };

/// The groups of chunks that a query reads.
pub(crate) async fn groups(
    store: Arc<dyn Store>,
    query: Arc<Query>,
) -> Result<BoxStream<'static, Result<Vec<ParsedChunk>>>> {
    groups_of(store, query, true).await
}

/// As [`groups`], without chunks of older versions if the query covers every newer version.
pub(crate) async fn newest_groups(
    store: Arc<dyn Store>,
    query: Arc<Query>,
) -> Result<BoxStream<'static, Result<Vec<ParsedChunk>>>> {
    let older = query.asks_older();
    groups_of(store, query, older).await
}

async fn groups_of(
    store: Arc<dyn Store>,
    query: Arc<Query>,
    older: bool,
) -> Result<BoxStream<'static, Result<Vec<ParsedChunk>>>> {
    if let Some(keys) = query.keys.clone() {
        return Ok(of_keys(store, query, &keys));
    }
    let bodies = if query.prunes_by_head() { Bodies::Later } else { Bodies::AtOnce };
    in_groups(store, query, bodies, older).await
}

/// When bodies of chunks are read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bodies {
    AtOnce,
    /// After the heads of a group, since the heads may rule out most chunks.
    Later,
    Never,
}

/// The heads that a query covers, in groups.
pub(crate) async fn groups_of_heads(
    store: Arc<dyn Store>,
    query: &Arc<Query>,
) -> Result<BoxStream<'static, Result<Vec<ParsedChunk>>>> {
    in_groups(store, query.clone(), Bodies::Never, HEADS.older).await
}

/// The chunks with these keys, which are whole tiles, in groups. The read must have looked at all heads in its range.
fn of_keys(
    store: Arc<dyn Store>,
    query: Arc<Query>,
    keys: &Arc<[ChunkKey]>,
) -> BoxStream<'static, Result<Vec<ParsedChunk>>> {
    const AT_ONCE: usize = 4;
    let (runs, keys) = (tile_runs(keys), keys.clone());
    let fetch = move |run: Range<usize>| {
        let (store, query, keys) = (store.clone(), query.clone(), keys.clone());
        async move {
            let parts = fetch_tiles(store.as_ref(), &query, &keys[run], &[]).await?;
            query.visible_or_begin_again(parts).await
        }
    };
    stream::iter(runs).map(fetch).buffered(AT_ONCE).boxed()
}

/// Splits keys at tile borders into ranges of at least [`RUN_CHUNKS`]; the last range may be shorter.
pub(crate) fn tile_runs(keys: &[ChunkKey]) -> Vec<Range<usize>> {
    let mut runs = Vec::new();
    let mut start = 0;
    for end in 1..=keys.len() {
        let border = end == keys.len() || place(&keys[end - 1]) != place(&keys[end]);
        if border && (end - start >= RUN_CHUNKS || end == keys.len()) {
            runs.push(start..end);
            start = end;
        }
    }
    runs
}

fn place(key: &ChunkKey) -> (SliceId, Tile) {
    (key.slice, key.tile)
}

/// Cuts the chunks of a query at tile borders into groups of about [`GROUP_BYTES`], without chunks outside the query.
///
/// A group is not returned if one of its batches ended so late that some of its chunks may be at places that the scan
/// has passed. The read then looks at all heads, which tells it every batch that has ended, and continues with a new
/// scan.
async fn in_groups(
    store: Arc<dyn Store>,
    query: Arc<Query>,
    bodies: Bodies,
    older: bool,
) -> Result<BoxStream<'static, Result<Vec<ParsedChunk>>>> {
    let what = ScanContent { bodies: bodies == Bodies::AtOnce, older };
    // Only the first scan of a read is shared, and it has bodies. A scan that begins again after a late batch is the
    // read's own.
    let shared = query.shared_scan.as_ref().filter(|_| what.bodies).and_then(|scan| scan.take(what.older));
    let begin = Grouping {
        chunks: match shared {
            Some(chunks) => chunks,
            None => scan(store.clone(), &query, query.slices.clone(), what).await?,
        },
        waiting: Vec::new().into_iter(),
        gather: Gather::new(),
        taken: None,
        ended: false,
    };
    let groups = stream::try_unfold(begin, move |mut grouping| {
        let (store, query) = (store.clone(), query.clone());
        async move {
            loop {
                let Some(mut group) = grouping.next(&query).await? else { return Ok::<_, ArchiveError>(None) };
                let mut late = query.is_late(&group).await?;
                if !late && !what.older {
                    // The scan left out chunks of older versions. In a tile in which a newer version does not count, an
                    // older one may be the newest again, so the whole tile is read.
                    let exposed = exposed_tiles(&query, &group);
                    if !exposed.is_empty() {
                        group = read_again(store.as_ref(), &query, group, exposed, what.bodies).await?;
                        // The tiles may now have rows of batches that no head of the scan has shown.
                        late = query.is_late(&group).await?;
                    }
                }
                if !late {
                    // The end is taken before chunks are left out: a tile without a row to return has been passed as
                    // well.
                    let end = group.last().map(|part| place(&part.chunk.key));
                    group = query.visible(query.skip_unmatchable(group));
                    if bodies == Bodies::Later {
                        group = fetch_parts(store.as_ref(), &query, &group).await?;
                        late = query.is_late(&group).await?;
                        group = query.visible(group);
                    }
                    if !late {
                        grouping.taken = end.or(grouping.taken);
                        return Ok(Some((group, grouping)));
                    }
                }
                // The group is dropped undecided. The look at all heads decides about every batch that has ended, and a
                // new scan then continues after the last tile that was returned.
                let slices = match &query.visible {
                    Some(visible) => {
                        visible
                            .look_ahead(store.as_ref(), &query.frame, &query.scan(vec![], false), grouping.taken)
                            .await?
                    }
                    None => query.slices.clone(),
                };
                grouping = Grouping {
                    chunks: scan(store.clone(), &query, slices, what).await?,
                    waiting: Vec::new().into_iter(),
                    gather: Gather::new(),
                    ended: false,
                    ..grouping
                };
            }
        }
    });
    Ok(groups.boxed())
}

/// A scan that is being cut into groups.
struct Grouping {
    chunks: BoxStream<'static, Result<Vec<Chunk>>>,
    waiting: std::vec::IntoIter<Chunk>,
    gather: Gather,
    /// The last tile of the groups that were returned.
    taken: Option<(SliceId, Tile)>,
    ended: bool,
}

impl Grouping {
    async fn next(&mut self, query: &Query) -> Result<Option<Vec<ParsedChunk>>> {
        loop {
            for chunk in self.waiting.by_ref() {
                // Scans are ordered by slice, cell and window, as these keys are. A scan that begins again returns the
                // tiles before `taken` a second time.
                if self.taken.is_some_and(|taken| place(&chunk.key) <= taken) {
                    continue;
                }
                if let Some(group) = self.gather.push(query, chunk)? {
                    return Ok(Some(group));
                }
            }
            // A stream must not be polled again after its end, but the caller asks once more after the last group.
            let more = if self.ended { None } else { self.chunks.try_next().await? };
            match more {
                Some(more) => self.waiting = more.into_iter(),
                None => {
                    self.ended = true;
                    return Ok((!self.gather.held.is_empty()).then(|| self.gather.take()));
                }
            }
        }
    }
}

/// The group being collected: complete tiles, and a last one that may be incomplete.
struct Gather {
    held: Vec<ParsedChunk>,
    bytes: usize,
    rows: usize,
    shelf: BodyStore,
}

impl Gather {
    fn new() -> Self {
        Self { held: vec![], bytes: 0, rows: 0, shelf: BodyStore::new(KEPT_BYTES) }
    }

    /// Adds a chunk. Returns the group before it if that group is full and the chunk begins a new tile.
    fn push(&mut self, query: &Query, chunk: Chunk) -> Result<Option<Vec<ParsedChunk>>> {
        let head = query.frame.head(&chunk)?;
        if !query.touches(&head) {
            return Ok(None);
        }
        // Groups end where a tile does, since rows of a tile are compared with each other.
        let border = self.held.last().is_some_and(|last| place(&last.chunk.key) != place(&chunk.key));
        let full = self.bytes >= GROUP_BYTES || self.rows >= GROUP_ROWS;
        let group = (border && full).then(|| self.take());
        // A head without its body counts with the size of its body too, since the body may be fetched next.
        self.bytes += chunk.head.len() + chunk.body.len().max(head.body_bytes);
        self.rows += chunk.rows as usize;
        let mut part = ParsedChunk::new(chunk, head);
        self.shelf.keep(&query.frame, &mut part)?;
        self.held.push(part);
        Ok(group)
    }

    fn take(&mut self) -> Vec<ParsedChunk> {
        let mut parts = std::mem::replace(self, Self::new()).held;
        parts.sort_by_key(order_key);
        parts
    }
}

/// The chunks of these heads, which a scan has found, as in [`fetch_tiles`].
pub(crate) async fn fetch_parts(store: &dyn Store, query: &Query, heads: &[ParsedChunk]) -> Result<Vec<ParsedChunk>> {
    let keys: Vec<ChunkKey> = heads.iter().map(|part| part.chunk.key).collect();
    let sizes: Vec<usize> = heads.iter().map(|part| part.head.body_bytes).collect();
    fetch_tiles(store, query, &keys, &sizes).await
}

/// The chunks with these keys, which a scan of heads has found, parsed and in order, without chunks outside the
/// query. If a chunk is gone, its rows have moved to other chunks of its tile: the whole tile is then read again in
/// one consistent state, which may include batches that were not there before. `sizes` are the sizes of the bodies,
/// or empty if unknown.
pub(crate) async fn fetch_tiles(
    store: &dyn Store,
    query: &Query,
    keys: &[ChunkKey],
    sizes: &[usize],
) -> Result<Vec<ParsedChunk>> {
    let dataset = &query.frame.dataset;
    let mut fetched = Fetched { query, parts: Vec::with_capacity(keys.len()), shelf: BodyStore::new(KEPT_BYTES) };
    let mut changed: BTreeSet<(SliceId, Tile)> = BTreeSet::new();
    let (mut done, mut at_once) = (0, FETCH_UNKNOWN);
    while done < keys.len() {
        if let Some(sizes) = sizes.get(done..).filter(|sizes| !sizes.is_empty()) {
            at_once = fetched_at_once(sizes);
        }
        let now = &keys[done..(done + at_once).min(keys.len())];
        done += now.len();
        let chunks = store.fetch(dataset, now.to_vec()).await?;
        // The missing chunks were replaced or removed after the scan of their heads.
        if chunks.len() < now.len() {
            let found: HashSet<ChunkKey> = chunks.iter().map(|chunk| chunk.key).collect();
            changed.extend(now.iter().filter(|key| !found.contains(*key)).map(place));
        }
        // While sizes are unknown, the chunks that have just arrived predict those of the next ones. A known size takes
        // precedence above.
        let mean = chunks.iter().map(|chunk| chunk.body.len()).sum::<usize>() / chunks.len().max(1);
        at_once = (FETCH_BYTES / mean.max(1)).clamp(1, FETCH_CHUNKS);
        fetched.push_all(chunks)?;
    }
    Ok(query.skip_unmatchable(read_again(store, query, fetched.parts, changed, true).await?))
}

/// Tiles whose older versions may count, because rows of newer versions do not.
fn exposed_tiles(query: &Query, parts: &[ParsedChunk]) -> BTreeSet<(SliceId, Tile)> {
    let exposed = parts.iter().filter(|part| part.chunk.key.id.is_separated() && query.hides_rows_of(&part.head));
    exposed.map(|part| place(&part.chunk.key)).collect()
}

/// Parts in order, with all chunks of these tiles read again, each tile in one consistent state.
async fn read_again(
    store: &dyn Store,
    query: &Query,
    mut parts: Vec<ParsedChunk>,
    tiles: BTreeSet<(SliceId, Tile)>,
    bodies: bool,
) -> Result<Vec<ParsedChunk>> {
    // Chunks of such a tile that were found may precede the change, and a tile is returned in one state only.
    parts.retain(|part| !tiles.contains(&place(&part.chunk.key)));
    let mut fetched = Fetched { query, parts, shelf: BodyStore::new(KEPT_BYTES) };
    for (slice, tile) in tiles {
        let cells = Cells::Ranges([(tile.cell, tile.cell)].into());
        // A scan sees a rewrite of a tile completely or not at all, which several fetches by key do not.
        let scan = Scan { slices: vec![slice], cells, windows: Windows::one(tile.window), bodies, older: true };
        let mut chunks = store.scan(&query.frame.dataset, scan).await?;
        while let Some(chunks) = chunks.try_next().await? {
            fetched.push_all(chunks)?;
        }
    }
    fetched.parts.sort_by_key(order_key);
    Ok(fetched.parts)
}

/// Parses chunks and sorts them, without chunks outside the query.
pub(crate) fn touched(query: &Query, chunks: Vec<Chunk>) -> Result<Vec<ParsedChunk>> {
    let mut parts = Vec::with_capacity(chunks.len());
    for chunk in chunks {
        let head = query.frame.head(&chunk)?;
        if query.touches(&head) {
            parts.push(ParsedChunk::new(chunk, head));
        }
    }
    parts.sort_by_key(order_key);
    Ok(parts)
}

/// How many chunks to fetch at once, given the sizes of the next ones.
fn fetched_at_once(sizes: &[usize]) -> usize {
    let mut bytes = 0;
    let fit = sizes.iter().take_while(|size| {
        bytes += **size;
        bytes <= FETCH_BYTES
    });
    fit.take(FETCH_CHUNKS).count().max(1)
}

struct Fetched<'a> {
    query: &'a Query,
    parts: Vec<ParsedChunk>,
    shelf: BodyStore,
}

impl Fetched<'_> {
    fn push_all(&mut self, chunks: Vec<Chunk>) -> Result<()> {
        for chunk in chunks {
            let head = self.query.frame.head(&chunk)?;
            if self.query.touches(&head) {
                let mut part = ParsedChunk::new(chunk, head);
                self.shelf.keep(&self.query.frame, &mut part)?;
                self.parts.push(part);
            }
        }
        Ok(())
    }
}

/// The chunks of a scan, regrouped so that each item has one or more whole tiles.
pub(crate) fn whole_tiles(chunks: BoxStream<'static, Result<Vec<Chunk>>>) -> BoxStream<'static, Result<Vec<Chunk>>> {
    let begin = (chunks.fuse(), Vec::<Chunk>::new());
    let tiles = stream::try_unfold(begin, |(mut chunks, mut held)| async move {
        loop {
            match chunks.try_next().await? {
                Some(more) => held.extend(more),
                None if held.is_empty() => return Ok::<_, ArchiveError>(None),
                None => return Ok(Some((std::mem::take(&mut held), (chunks, held)))),
            }
            // The last tile may continue in the next item.
            let last = held.last().map(|chunk| place(&chunk.key));
            let start = held.iter().position(|chunk| Some(place(&chunk.key)) == last).unwrap_or(0);
            if start > 0 {
                let rest = held.split_off(start);
                return Ok(Some((held, (chunks, rest))));
            }
        }
    });
    tiles.boxed()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may unwrap
mod tests {
    use super::*;
    use chronotile_types::{Cell, ChunkId, Window};
    use proptest::prelude::*;

    /// Keys of tiles with these numbers of chunks, two tiles to a window and two windows to a slice.
    fn keys(tiles: &[usize]) -> Vec<ChunkKey> {
        let key = |(number, chunks): (usize, &usize)| {
            let (slice, window, cell) =
                (SliceId(number as i32 / 4), Window(number as i32 / 2), Cell(number as i64 % 2));
            let key = move |id| ChunkKey { slice, tile: Tile { cell, window }, id: ChunkId(id as u128) };
            (0..*chunks).map(key)
        };
        tiles.iter().enumerate().flat_map(key).collect()
    }

    #[test]
    fn keys_are_fetched_in_runs_that_end_where_a_tile_does() {
        let runs = |tiles: &[usize]| tile_runs(&keys(tiles));
        assert!(runs(&[]).is_empty());
        assert_eq!(runs(&[3, 4]), std::slice::from_ref(&(0..7)));
        assert_eq!(runs(&[RUN_CHUNKS - 1, 1, 1]), [0..RUN_CHUNKS, RUN_CHUNKS..RUN_CHUNKS + 1]);
        assert_eq!(runs(&[RUN_CHUNKS - 1, 5, 1]), [0..RUN_CHUNKS + 4, RUN_CHUNKS + 4..RUN_CHUNKS + 5]);
        assert_eq!(runs(&[2 * RUN_CHUNKS, 2]), [0..2 * RUN_CHUNKS, 2 * RUN_CHUNKS..2 * RUN_CHUNKS + 2]);
        // Tiles of different slices differ even if cell and window are equal.
        let mut keys = keys(&[RUN_CHUNKS, RUN_CHUNKS]);
        keys.iter_mut().for_each(|key| key.tile = Tile { cell: Cell(0), window: Window(0) });
        keys[RUN_CHUNKS..].iter_mut().for_each(|key| key.slice = SliceId(1));
        assert_eq!(tile_runs(&keys), [0..RUN_CHUNKS, RUN_CHUNKS..2 * RUN_CHUNKS]);
    }

    #[test]
    fn as_many_bodies_are_fetched_at_once_as_their_bytes_allow() {
        assert_eq!(fetched_at_once(&[FETCH_BYTES + 1, 1]), 1);
        assert_eq!(fetched_at_once(&[FETCH_BYTES, 1]), 1);
        assert_eq!(fetched_at_once(&[FETCH_BYTES - 1, 1, 1]), 2);
        assert_eq!(fetched_at_once(&[FETCH_BYTES / 2, FETCH_BYTES, 0]), 1);
        assert_eq!(fetched_at_once(&vec![1; FETCH_CHUNKS + 1]), FETCH_CHUNKS);
    }

    proptest! {
        #[test]
        fn tiles_come_whole_however_a_scan_cuts_them(
            tiles in prop::collection::vec(1..5usize, 0..8),
            cuts in prop::collection::vec(0..5usize, 0..12),
        ) {
            let chunk = |key| Chunk { key, rows: 1, head: bytes::Bytes::new(), body: bytes::Bytes::new() };
            let all: Vec<Chunk> = keys(&tiles).into_iter().map(chunk).collect();
            let (mut rest, mut groups) = (all.clone(), vec![]);
            for cut in cuts {
                groups.push(Ok(rest.drain(..cut.min(rest.len())).collect()));
            }
            groups.push(Ok(rest));
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let found: Vec<Vec<Chunk>> = runtime.block_on(whole_tiles(stream::iter(groups).boxed()).try_collect()).unwrap();
            let places = found.iter().map(|group| group.iter().map(|chunk| place(&chunk.key)).collect::<BTreeSet<_>>());
            prop_assert_eq!(places.map(|places| places.len()).sum::<usize>(), tiles.len(), "a tile came in two parts");
            prop_assert_eq!(found.concat(), all);
        }
    }
}
