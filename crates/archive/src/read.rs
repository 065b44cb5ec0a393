//! Reading: a scan of the engine, cut into groups of whole tiles, assembled on all cores, streamed in order.

use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use chronotile_store::{Cells, Chunk, ChunkKey, Scan, Store};
use chronotile_types::SliceId;
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt, TryStreamExt};
use hashbrown::{HashMap, HashSet};

use crate::assemble::{Part, assemble, is_clean, prepare, tile_ranges};
use crate::dataset::Dataset;
use crate::error::{ArchiveError, Result};
use crate::query::{Query, slices_of};
use crate::request::ReadRequest;

/// Encoded bytes in a group: enough rows to make decoding worth a task, few enough to share among cores.
const GROUP_BYTES: usize = 1 << 20;
/// Rows in a group, unless one tile alone has more.
const GROUP_ROWS: usize = 1 << 17;
/// Groups below this many encoded bytes are decoded where they are: a thread of their own would take longer to start.
const INLINE_BYTES: usize = 16 << 10;
/// Chunks fetched at once where heads decide which are needed.
const FETCH_CHUNKS: usize = 512;
/// Chunks of a run that is fetched by key: some may be of the greatest size.
const RUN_CHUNKS: usize = 64;

/// Rows as they are read: Arrow record batches of one schema, by slice, cell, window, time and ids.
pub struct ReadStream {
    schema: SchemaRef,
    batches: BoxStream<'static, Result<RecordBatch>>,
}

impl ReadStream {
    pub(crate) fn new(schema: SchemaRef, batches: BoxStream<'static, Result<RecordBatch>>) -> Self {
        Self { schema, batches }
    }

    /// The schema of every batch.
    pub fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
}

impl std::fmt::Debug for ReadStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadStream").field("schema", &self.schema).finish_non_exhaustive()
    }
}

impl Stream for ReadStream {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.batches.as_mut().poll_next(context)
    }
}

impl Dataset {
    /// Reads what `request` asks for, exactly: rows outside its region, keys, ids, time range or predicates are not returned.
    ///
    /// Rows are chosen in this order: cells and time range; then, of the rows with equal ids, the one the merge rule keeps;
    /// then region, keys and predicates. The result does not depend on how rows were batched, chunked or consolidated. It
    /// holds every batch acknowledged before the call.
    ///
    /// # Errors
    /// A request that makes no sense for the dataset at once; a damaged chunk or a failing engine while streaming.
    pub async fn read(&self, request: ReadRequest) -> Result<ReadStream> {
        let mut query = self.anew(&request).await?;
        self.prune_by_index(&mut query, &request).await?;
        stream(self.store_arc(), Arc::new(query)).await
    }

    /// As [`Dataset::read`], with the definition as this process last saw it: one look into the catalog less, for readers who
    /// know that nobody adds columns.
    ///
    /// # Errors
    /// As [`Dataset::read`]; where columns were added meanwhile, a chunk that has them counts as damaged.
    pub async fn read_as_known(&self, request: ReadRequest) -> Result<ReadStream> {
        let query = self.query_as_known(&request).await?;
        stream(self.store_arc(), Arc::new(query)).await
    }

    /// As [`Dataset::read_as_known`], but each chunk for itself, in any order: a record that stands in several comes several
    /// times, in all its versions. For readers who mind neither, since chunks are decoded on all cores and their rows are not
    /// compared.
    ///
    /// # Errors
    /// As [`Dataset::read_as_known`].
    pub async fn read_unmerged(&self, request: ReadRequest) -> Result<ReadStream> {
        let query = Arc::new(self.query_as_known(&request).await?);
        let groups = groups(self.store_arc(), query.clone()).await?;
        let alone = groups.map_ok(|parts| stream::iter(parts).map(|part| Ok(vec![part]))).try_flatten();
        Ok(ReadStream::new(query.schema.clone(), assembled(alone, query)))
    }

    /// Number of rows that [`Dataset::read`] would return. Reads chunk heads alone, or an index, where those suffice.
    ///
    /// # Errors
    /// As [`Dataset::read`].
    pub async fn count(&self, request: ReadRequest) -> Result<u64> {
        let query = self.query(&ReadRequest { columns: Some(vec![]), ..request.clone() }).await?;
        if query.newest_only || query.tests_rows() {
            if let Some(rows) = self.count_by_index(&request).await? {
                return Ok(rows);
            }
            let rows = self.read(ReadRequest { columns: Some(vec![]), ..request }).await?;
            return rows.try_fold(0, |sum, batch| async move { Ok(sum + batch.num_rows() as u64) }).await;
        }
        self.count_heads(query).await
    }

    /// Counts by heads; only tiles whose chunks overlap, or lie across the time range, are decoded.
    async fn count_heads(&self, query: Arc<Query>) -> Result<u64> {
        let store = self.store_arc();
        let mut tiles = whole_tiles(scan(store.clone(), &query, false).await?).boxed();
        let mut rows = 0;
        while let Some(chunks) = tiles.try_next().await? {
            let parts = prepare(&query, chunks)?;
            let mut unclear: Vec<ChunkKey> = Vec::new();
            for tile in tile_ranges(&parts) {
                let tile = &parts[tile];
                let inside = |p: &Part| query.bounds.holds_all(p.head.zone.time_min, p.head.zone.time_max);
                let whole = |p: &Part| inside(p) && !query.leaves_out_rows_of(&p.head);
                if tile.iter().all(whole) && is_clean(query.identity, &query.frame, tile) {
                    rows += tile.iter().map(|part| u64::from(part.head.rows)).sum::<u64>();
                } else {
                    unclear.extend(tile.iter().map(|part| part.chunk.key));
                }
            }
            if !unclear.is_empty() {
                let chunks = fetch_tiles(store.as_ref(), &query, &unclear).await?;
                let query = query.clone();
                rows += on_pool(move || assemble(&query, &prepare(&query, chunks)?, None)).await?.num_rows() as u64;
            }
        }
        Ok(rows)
    }

    /// Makes `request` ready, with the newest definition where it names a column this process has not seen.
    pub(crate) async fn query(&self, request: &ReadRequest) -> Result<Arc<Query>> {
        Ok(Arc::new(self.anew(request).await?))
    }

    async fn anew(&self, request: &ReadRequest) -> Result<Query> {
        // What a definition says of slices never changes: both are looked up at once.
        let before = self.frame();
        let (refreshed, slices) = futures::join!(self.refresh(), slices_of(self.store(), &before, request));
        refreshed?;
        self.over(request, slices?).await
    }

    /// Makes `request` ready with the definition as this process last saw it.
    pub(crate) async fn query_as_known(&self, request: &ReadRequest) -> Result<Query> {
        let slices = slices_of(self.store(), &self.frame(), request).await?;
        self.over(request, slices).await
    }

    async fn over(&self, request: &ReadRequest, slices: Vec<SliceId>) -> Result<Query> {
        let mut query = Query::over(self.frame(), request, slices)?;
        if request.finished_only {
            query.only = Some(self.finished_of(&query).await?);
        }
        Ok(query)
    }
}

/// The rows of a query.
pub(crate) async fn stream(store: Arc<dyn Store>, query: Arc<Query>) -> Result<ReadStream> {
    if query.newest_only {
        return crate::newest::read(store, query).await;
    }
    let schema = query.schema.clone();
    Ok(ReadStream::new(schema, rows(store, query).await?))
}

/// The rows of a query that asks for more than the newest versions, tile by tile.
async fn rows(store: Arc<dyn Store>, query: Arc<Query>) -> Result<BoxStream<'static, Result<RecordBatch>>> {
    Ok(assembled(groups(store, query.clone()).await?, query))
}

/// The rows of each group, in order of the groups, several of which are decoded at once.
fn assembled(
    groups: impl Stream<Item = Result<Vec<Part>>> + Send + 'static,
    query: Arc<Query>,
) -> BoxStream<'static, Result<RecordBatch>> {
    groups
        .map_ok(move |parts| {
            let query = query.clone();
            async move {
                if is_light(&parts) {
                    return assemble(&query, &parts, None);
                }
                on_pool(move || assemble(&query, &parts, None)).await
            }
        })
        .try_buffered(rayon::current_num_threads())
        .try_filter(|batch| std::future::ready(batch.num_rows() > 0))
        .boxed()
}

/// Whether a group is decoded where it is.
pub(crate) fn is_light(parts: &[Part]) -> bool {
    parts.iter().map(|part| part.chunk.body.len()).sum::<usize>() < INLINE_BYTES
}

/// Runs CPU-bound work off the threads that drive the engine.
pub(crate) async fn on_pool<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|_| ArchiveError::Cancelled)?
}

/// The engine's chunks for the query. Where they come with bodies from several slices, two scans run at once, each on one
/// half of the slices; the chunks still come in the order of one scan.
pub(crate) async fn scan(
    store: Arc<dyn Store>,
    query: &Query,
    bodies: bool,
) -> Result<BoxStream<'static, Result<Vec<Chunk>>>> {
    let name = &query.frame.spec.name;
    let scan = query.scan(bodies);
    if !bodies || scan.slices.len() < 2 {
        return Ok(store.scan(name, scan).await?.map_err(ArchiveError::from).boxed());
    }
    let (early, late) = scan.slices.split_at(scan.slices.len() / 2);
    let early = ahead(store.scan(name, Scan { slices: early.to_vec(), ..scan.clone() }).await?);
    let late = ahead(store.scan(name, Scan { slices: late.to_vec(), ..scan.clone() }).await?);
    Ok(early.chain(late).boxed())
}

/// Draws from a scan on a task of its own, a group ahead of its reader.
fn ahead(
    mut chunks: BoxStream<'static, chronotile_store::Result<Vec<Chunk>>>,
) -> impl Stream<Item = Result<Vec<Chunk>>> + Send {
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    tokio::spawn(async move {
        while let Some(group) = chunks.next().await {
            // The reader may have lost interest.
            if sender.send(group.map_err(ArchiveError::from)).await.is_err() {
                break;
            }
        }
    });
    stream::unfold(receiver, |mut receiver| async move { receiver.recv().await.map(|group| (group, receiver)) })
}

/// Groups of whole tiles, parsed and in order, of a good size to work on.
pub(crate) async fn groups(store: Arc<dyn Store>, query: Arc<Query>) -> Result<BoxStream<'static, Result<Vec<Part>>>> {
    if let Some(keys) = query.keys.clone() {
        return Ok(of_keys(store, query, &keys));
    }
    let bodies = !query.prunes_by_head();
    let tiles = whole_tiles(scan(store.clone(), &query, bodies).await?);
    if bodies {
        return Ok(tiles.map(move |chunks| prepare(&query, chunks?)).boxed());
    }
    let fetched = tiles.and_then(move |chunks| {
        let (store, query) = (store.clone(), query.clone());
        async move { fetch(store, &query, chunks).await }
    });
    Ok(fetched.boxed())
}

/// The chunks of these keys, which are whole tiles, in groups.
fn of_keys(store: Arc<dyn Store>, query: Arc<Query>, keys: &Arc<[ChunkKey]>) -> BoxStream<'static, Result<Vec<Part>>> {
    const AT_ONCE: usize = 4;
    let (runs, keys) = (tile_runs(keys), keys.clone());
    let fetch = move |run: Range<usize>| {
        let (store, query, keys) = (store.clone(), query.clone(), keys.clone());
        async move { prepare(&query, fetch_tiles(store.as_ref(), &query, &keys[run]).await?) }
    };
    stream::iter(runs).map(fetch).buffered(AT_ONCE).boxed()
}

/// Ranges of keys of at least [`RUN_CHUNKS`], the last apart, that end where a tile does.
pub(crate) fn tile_runs(keys: &[ChunkKey]) -> Vec<Range<usize>> {
    let mut runs = Vec::new();
    let mut start = 0;
    for end in 1..=keys.len() {
        let border =
            end == keys.len() || (keys[end - 1].slice, keys[end - 1].tile) != (keys[end].slice, keys[end].tile);
        if border && (end - start >= RUN_CHUNKS || end == keys.len()) {
            runs.push(start..end);
            start = end;
        }
    }
    runs
}

/// Fetches the bodies of those chunks whose heads the query touches.
async fn fetch(store: Arc<dyn Store>, query: &Query, heads: Vec<Chunk>) -> Result<Vec<Part>> {
    let keys: Vec<ChunkKey> = prepare(query, heads)?.iter().map(|part| part.chunk.key).collect();
    prepare(query, fetch_tiles(store.as_ref(), query, &keys).await?)
}

/// The chunks of these keys, which a scan of heads has found. Where one of them is gone, its rows lie in other chunks of its
/// tile by now: all that the tile holds comes instead, as one state of it.
pub(crate) async fn fetch_tiles(store: &dyn Store, query: &Query, keys: &[ChunkKey]) -> Result<Vec<Chunk>> {
    let name = &query.frame.spec.name;
    let mut chunks = Vec::with_capacity(keys.len());
    for keys in keys.chunks(FETCH_CHUNKS) {
        chunks.extend(store.fetch(name, keys.to_vec()).await?);
    }
    if chunks.len() == keys.len() {
        return Ok(chunks);
    }
    let found: HashSet<ChunkKey> = chunks.iter().map(|chunk| chunk.key).collect();
    let place = |key: &ChunkKey| (key.slice, key.tile);
    let changed: HashSet<_> = keys.iter().filter(|key| !found.contains(*key)).map(place).collect();
    chunks.retain(|chunk| !changed.contains(&place(&chunk.key)));
    for (slice, tile) in changed {
        let cells = Cells::Ranges([(tile.cell, tile.cell)].into());
        let scan = Scan { slices: vec![slice], cells, windows: (tile.window, tile.window), bodies: true };
        chunks.extend(store.scan(name, scan).await?.try_concat().await?);
    }
    // The chunks of a tile stay neighbours, tiles in the order of the keys.
    let mut order = HashMap::new();
    keys.iter().for_each(|key| {
        let next = order.len();
        order.entry(place(key)).or_insert(next);
    });
    chunks.sort_by_key(|chunk| (order.get(&place(&chunk.key)).copied(), chunk.key.id));
    Ok(chunks)
}

/// Cuts a stream of chunks at tile borders into groups of about [`GROUP_BYTES`].
pub(crate) fn whole_tiles(
    chunks: BoxStream<'static, Result<Vec<Chunk>>>,
) -> impl Stream<Item = Result<Vec<Chunk>>> + Send {
    let begin = (chunks, Vec::<Chunk>::new(), false);
    let groups = stream::try_unfold(begin, |(mut chunks, mut held, mut ended)| async move {
        loop {
            if let Some(cut) = cut_point(&held, ended) {
                let rest = held.split_off(cut);
                return Ok(Some((held, (chunks, rest, ended))));
            }
            if ended {
                return Ok::<_, ArchiveError>(None);
            }
            match chunks.try_next().await? {
                Some(more) => held.extend(more),
                None => ended = true,
            }
        }
    });
    groups.boxed()
}

/// Where to cut off a group: at the first tile border past the wanted size; at the end once nothing follows.
fn cut_point(held: &[Chunk], ended: bool) -> Option<usize> {
    let (mut bytes, mut rows) = (0, 0);
    for (index, chunk) in held.iter().enumerate() {
        let border = index > 0 && held[index - 1].key.tile != chunk.key.tile;
        if border && (bytes >= GROUP_BYTES || rows >= GROUP_ROWS) {
            return Some(index);
        }
        bytes += chunk.head.len() + chunk.body.len();
        rows += chunk.rows as usize;
    }
    (ended && !held.is_empty()).then_some(held.len())
}
