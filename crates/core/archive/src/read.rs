//! Reading: scans the engine, splits the chunks into groups of whole tiles, assembles the groups on all cores, and
//! streams rows in order and in bounded memory.

pub(crate) mod assemble;
pub(crate) mod cells;
pub(crate) mod groups;
pub(crate) mod joint;
pub(crate) mod latest;
pub(crate) mod literal;
pub(crate) mod merge;
pub(crate) mod newest;
pub(crate) mod number;
pub(crate) mod part;
pub(crate) mod pattern;
pub(crate) mod pieces;
pub(crate) mod predicate;
pub(crate) mod query;
pub(crate) mod shared_scan;
pub(crate) mod slices;
pub(crate) mod spans;
pub(crate) mod superseded;
pub(crate) mod text;
pub(crate) mod unique;
pub(crate) mod visible;

use std::collections::BTreeSet;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::Int64Type;
use arrow_schema::{DataType, SchemaRef};
use chronotile_store::Store;
use chronotile_types::SliceId;
use futures::future::{join_all, try_join_all};
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt, TryStreamExt};

use crate::dataset::Dataset;
use crate::error::{ArchiveError, Result};
use crate::group::Group;
use crate::read::assemble::is_clean;
use crate::read::groups::{fetch_parts, groups, groups_of_heads};
use crate::read::joint::share_scans;
use crate::read::part::ParsedChunk;
use crate::read::pieces::Pieces;
use crate::read::query::{Query, slices_of};
use crate::read::slices::SliceList;
use crate::read::visible::{AttemptSnapshot, Visibility};
use crate::request::{CellSelection, ReadRequest};

/// Most groups decoded at once; fewer on a machine with fewer cores.
const GROUPS_AT_ONCE: usize = 8;

/// A stream of rows: Arrow record batches of one schema, sorted by slice, cell, window, time, ids and version.
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
    /// Reads exactly the rows that `request` asks for: none outside its region, keys, ids, time range or predicates.
    ///
    /// Rows are selected in this order: by cells and time range; then, of rows with equal ids, the one that the merge
    /// rule keeps; then by region, keys and predicates. The result does not depend on how rows were batched, chunked or
    /// consolidated. It includes every batch acknowledged before the call.
    ///
    /// # Errors
    /// A request that is not valid for the dataset, at once; a damaged chunk or a failing engine, while streaming.
    pub async fn read(&self, request: ReadRequest) -> Result<ReadStream> {
        let this = &self.reader();
        let mut query = this.replan(&request).await?;
        this.prune_by_index(&mut query, &request).await?;
        stream(this.store_arc(), Arc::new(query)).await
    }

    /// As [`Dataset::read`], with the definition that this process last read. This saves one read of the catalog, for
    /// callers who know that nobody adds columns.
    ///
    /// # Errors
    /// As [`Dataset::read`]; if columns were added meanwhile, a chunk with them counts as damaged.
    pub async fn read_as_known(&self, request: ReadRequest) -> Result<ReadStream> {
        let this = &self.reader();
        let query = this.query_as_known(&request).await?;
        stream(this.store_arc(), Arc::new(query)).await
    }

    /// As [`Dataset::read_as_known`], but chunk by chunk in any order: a record that occurs in several chunks is
    /// returned several times, in all its versions. Faster, since chunks are decoded on all cores and their rows are
    /// not compared.
    ///
    /// # Errors
    /// As [`Dataset::read_as_known`].
    pub async fn read_unmerged(&self, request: ReadRequest) -> Result<ReadStream> {
        let this = &self.reader();
        let query = Arc::new(this.query_as_known(&request).await?);
        let groups = groups(this.store_arc(), query.clone()).await?;
        let alone = groups.map_ok(|parts| stream::iter(parts).map(|part| Ok(vec![part]))).try_flatten();
        Ok(ReadStream::new(query.schema.clone(), assembled(alone, query)))
    }

    /// Number of rows that [`Dataset::read`] would return. Reads only chunk heads, or an index, if these suffice.
    ///
    /// # Errors
    /// As [`Dataset::read`].
    pub async fn count(&self, request: ReadRequest) -> Result<u64> {
        let this = &self.reader();
        // A count needs no values: the read decodes only columns that determine which rows it returns.
        let request = ReadRequest { columns: Some(vec![]), ..request };
        let (planned, begun) = futures::join!(this.replan_without_visibility(&request), this.begin_read());
        let (query, begun) = (planned?, begun?);
        // Heads tell neither which version is the newest nor which rows satisfy a condition, so an index or the rows
        // themselves have to answer.
        if query.newest_only || query.tests_rows() {
            if let Some(rows) = this.count_by_index(query.with_visibility(begun.alone()), &request).await? {
                return Ok(rows);
            }
            let rows = this.read(request).await?;
            return rows.try_fold(0, |sum, batch| async move { Ok(sum + batch.num_rows() as u64) }).await;
        }
        this.as_of_one_moment(&request, (query, begun), |query| this.count_heads(query)).await
    }

    /// Runs a read that returns nothing before its end. Starts it again if a batch ended so late that the read may have
    /// missed its rows.
    async fn as_of_one_moment<T, F: Future<Output = Result<T>>>(
        &self,
        request: &ReadRequest,
        (mut query, begun): (Query, AttemptSnapshot),
        read: impl Fn(Arc<Query>) -> F,
    ) -> Result<T> {
        let visible = begun.jointly();
        loop {
            // The scan names no slices: the look at all heads lists those that exist by then.
            let (frame, scan) = (query.frame.clone(), query.scan(vec![], false));
            match read(Arc::new(query.with_visibility(visible.clone()))).await {
                Err(ArchiveError::ReadRace { .. }) if visible.is_late() => {}
                done => return done,
            }
            visible.look_ahead_jointly(self.store(), &[(&frame, scan)]).await?;
            // A batch that ended meanwhile may have created slices.
            query = self.plan_without_visibility(request, &SliceList::new(self.store())).await?;
        }
    }

    /// Counts rows by chunk heads. Decodes only tiles whose chunks overlap, or extend beyond the time range.
    async fn count_heads(&self, query: Arc<Query>) -> Result<u64> {
        let store = self.store_arc();
        let mut groups = groups_of_heads(store.clone(), &query).await?;
        let mut rows = 0;
        while let Some(parts) = groups.try_next().await? {
            let mut unclear: Vec<ParsedChunk> = Vec::new();
            let mut parts = parts.into_iter().peekable();
            while let Some(first) = parts.next() {
                let mut tile = vec![first];
                while let Some(next) = parts.next_if(|part| part.chunk.key.tile == tile[0].chunk.key.tile) {
                    tile.push(next);
                }
                // A tile is counted by its heads only if every row counts, is in the time range, and is the only row of
                // its record.
                let inside = |p: &ParsedChunk| query.bounds.holds_all(p.head.zone.time_min, p.head.zone.time_max);
                let whole = |p: &ParsedChunk| inside(p) && !query.hides_rows_of(&p.head);
                if tile.iter().all(whole) && is_clean(query.identity, &query.frame, &tile) {
                    rows += tile.iter().map(|part| u64::from(part.head.rows)).sum::<u64>();
                } else {
                    unclear.append(&mut tile);
                }
            }
            if !unclear.is_empty() {
                let parts = fetch_parts(store.as_ref(), &query, &unclear).await?;
                let parts = query.visible_or_begin_again(parts).await?;
                let mut pieces = pin!(stream_of(Pieces::new(query.clone(), parts, None)));
                while let Some(piece) = pieces.try_next().await? {
                    rows += piece.num_rows() as u64;
                }
            }
        }
        Ok(rows)
    }

    /// Plans `request` with the current definition.
    pub(crate) async fn query(&self, request: &ReadRequest) -> Result<Arc<Query>> {
        Ok(Arc::new(self.replan(request).await?))
    }

    async fn replan(&self, request: &ReadRequest) -> Result<Query> {
        let (planned, visible) = futures::join!(self.replan_without_visibility(request), self.visibility());
        Ok(planned?.with_visibility(visible?))
    }

    /// Plans `request` with the definition that this process last read, not yet with the attempts that count.
    async fn plan_without_visibility(&self, request: &ReadRequest, slices: &SliceList<'_>) -> Result<Query> {
        let slices = slices_of(slices, &self.frame(), request).await?;
        self.plan(request, slices)
    }

    /// As [`Self::replan`], but not yet with the attempts that count.
    pub(crate) async fn replan_without_visibility(&self, request: &ReadRequest) -> Result<Query> {
        // The definition seldom changes: look up slices by the known one concurrently.
        let (before, list) = (self.frame(), SliceList::new(self.store()));
        let (refreshed, slices) = futures::join!(self.refresh(), slices_of(&list, &before, request));
        refreshed?;
        match Arc::ptr_eq(&before.spec, &self.spec()) {
            true => self.plan(request, slices?),
            false => self.plan_without_visibility(request, &SliceList::new(self.store())).await,
        }
    }

    /// Plans `request` with the definition that this process last read.
    pub(crate) async fn query_as_known(&self, request: &ReadRequest) -> Result<Query> {
        let (frame, list) = (self.frame(), SliceList::new(self.store()));
        let (slices, visible) = futures::join!(slices_of(&list, &frame, request), self.visibility());
        Ok(self.plan(request, slices?)?.with_visibility(visible?))
    }

    fn plan(&self, request: &ReadRequest, slices: Vec<SliceId>) -> Result<Query> {
        let mut query = Query::new(self.frame(), request, slices)?;
        query.memory = self.memory();
        Ok(query)
    }
}

impl Group {
    /// Reads several of its datasets, given by name, as of one moment: a batch is in all of the results or in none.
    /// Holds the results in memory; otherwise as [`Dataset::read`].
    ///
    /// # Errors
    /// A dataset that is not in the group; as [`Dataset::read`].
    pub async fn read(&self, requests: Vec<(&str, ReadRequest)>) -> Result<Vec<Rows>> {
        let parts = self.parts(requests)?;
        let first = self.first().reader();
        let (visible, mut plans) = self.begin_jointly(&first, &parts).await?;
        loop {
            match read_parts(&first, &parts, plans, &visible).await {
                Err(ArchiveError::ReadRace { .. }) if visible.is_late() => {}
                read => return read,
            }
            plans = plan_parts(&first, &parts).await?;
            let heads: Vec<_> = plans.iter().map(|plan| (&plan.frame, plan.scan(vec![], false))).collect();
            visible.look_ahead_jointly(first.store(), &heads).await?;
            // A batch that ended meanwhile may have created slices.
            plans = plan_parts(&first, &parts).await?;
        }
    }

    /// Reads one of its datasets, and then others in the cells that the rows of the first name, all as of one moment.
    /// `cells` is an integer column of the first dataset; the places of the other requests are ignored. The rows of the
    /// first dataset come first.
    ///
    /// # Errors
    /// A column that the first request does not return, or that has another type; as [`Group::read`].
    pub async fn read_in_cells_of(
        &self,
        index: (&str, ReadRequest),
        cells: &str,
        requests: Vec<(&str, ReadRequest)>,
    ) -> Result<Vec<Rows>> {
        let (dataset, request) = index;
        let first = self.first().reader();
        let parts = self.parts([vec![(dataset, request.clone())], requests.clone()].concat())?;
        let (visible, mut plans) = self.begin_jointly(&first, &parts).await?;
        check_cells(&plans[0], cells)?;
        let found = read_parts(&first, &parts[..1], vec![plans.remove(0)], &visible).await;
        let mut numbers = match found {
            Ok(mut found) => {
                let numbers = cells_in(&found[0], cells);
                let slices: Vec<_> = plans.into_iter().map(|plan| plan.slices).collect();
                let others = in_cells(&parts[1..], &numbers);
                let plans = others.iter().zip(slices).map(|((dataset, request), slices)| dataset.plan(request, slices));
                match read_parts(&first, &others, plans.collect::<Result<_>>()?, &visible).await {
                    Err(ArchiveError::ReadRace { .. }) if visible.is_late() => numbers,
                    read => {
                        found.extend(read?);
                        return Ok(found);
                    }
                }
            }
            // No cell is known yet, so the first round of the loop below reads only the first dataset.
            Err(ArchiveError::ReadRace { .. }) if visible.is_late() => BTreeSet::new(),
            Err(error) => return Err(error),
        };
        // A batch ended so late that one of the reads may have missed its rows. A joint read looks at all heads first,
        // which requires that the cells are known.
        loop {
            let others = requests.iter().map(|(name, request)| (*name, in_these_cells(request, &numbers)));
            let read = self.read([(dataset, request.clone())].into_iter().chain(others).collect()).await?;
            // The rows of the first dataset may now name cells that this read has not covered: it is repeated with
            // those added.
            let found = cells_in(&read[0], cells);
            if found.is_subset(&numbers) {
                return Ok(read);
            }
            numbers.extend(found);
        }
    }

    fn parts(&self, requests: Vec<(&str, ReadRequest)>) -> Result<Vec<(Dataset, ReadRequest)>> {
        requests.into_iter().map(|(name, request)| Ok((self.dataset(name)?.reader(), request))).collect()
    }

    /// The visibility that reads beginning now share, and their plans.
    async fn begin_jointly(
        &self,
        first: &Dataset,
        parts: &[(Dataset, ReadRequest)],
    ) -> Result<(Arc<Visibility>, Vec<Query>)> {
        // Definitions seldom change: look up slices by the known ones concurrently.
        let refresh = first.refresh_together(self.datasets(), false);
        let (visible, planned, refreshed) = futures::join!(first.begin_read(), plan_parts(first, parts), refresh);
        refreshed?;
        let current = |plans: &[Query]| {
            plans.iter().zip(parts).all(|(plan, (dataset, _))| Arc::ptr_eq(&plan.frame.spec, &dataset.spec()))
        };
        let plans = match planned {
            // An error may come from an outdated definition, such as one without a column that was added since. The
            // second attempt plans with the current ones.
            Ok(plans) if current(&plans) => plans,
            _ => plan_parts(first, parts).await?,
        };
        Ok((visible?.jointly(), plans))
    }
}

/// Plans reads of datasets of one group; looks up their slices together.
async fn plan_parts(first: &Dataset, parts: &[(Dataset, ReadRequest)]) -> Result<Vec<Query>> {
    let slices = SliceList::new(first.store());
    try_join_all(parts.iter().map(|(dataset, request)| dataset.plan_without_visibility(request, &slices))).await
}

/// The rows of each part.
async fn read_parts(
    first: &Dataset,
    parts: &[(Dataset, ReadRequest)],
    mut plans: Vec<Query>,
    visible: &Arc<Visibility>,
) -> Result<Vec<Rows>> {
    share_scans(&first.store_arc(), &mut plans).await?;
    // Each in a task of its own: small tables are decoded by the task that reads them.
    let reads = parts.iter().cloned().zip(plans).map(|((dataset, request), plan)| {
        let mut query = plan.with_visibility(visible.clone());
        let read = tokio::spawn(async move {
            dataset.prune_by_index(&mut query, &request).await?;
            let rows = stream(dataset.store_arc(), Arc::new(query)).await?;
            Ok::<Rows, ArchiveError>((rows.schema(), rows.try_collect().await?))
        });
        async { read.await? }
    });
    // Wait for all of them, also after an error: none may still decide which attempts count while the caller looks at
    // the heads.
    join_all(reads).await.into_iter().collect()
}

/// The parts, restricted to these cells.
fn in_cells(parts: &[(Dataset, ReadRequest)], cells: &BTreeSet<i64>) -> Vec<(Dataset, ReadRequest)> {
    parts.iter().map(|(dataset, request)| (dataset.clone(), in_these_cells(request, cells))).collect()
}

fn in_these_cells(request: &ReadRequest, cells: &BTreeSet<i64>) -> ReadRequest {
    ReadRequest { cells: CellSelection::Cells(cells.iter().copied().collect()), ..request.clone() }
}

/// The cells named in a column of rows.
fn cells_in((_, batches): &Rows, column: &str) -> BTreeSet<i64> {
    let columns = batches.iter().filter_map(|batch| batch.column_by_name(column)?.as_primitive_opt::<Int64Type>());
    columns.flat_map(|numbers| numbers.iter().flatten()).collect()
}

/// Refuses, before anything is read, a column that [`cells_in`] cannot use.
fn check_cells(plan: &Query, column: &str) -> Result<()> {
    match plan.schema.field_with_name(column) {
        Ok(field) if field.data_type() == &DataType::Int64 => Ok(()),
        Ok(field) => Err(plan.frame.refuse(format!(
            "column {column:?} has type {}: the numbers of cells come from a column of int64",
            field.data_type()
        ))),
        Err(_) => {
            Err(plan.frame.refuse(format!("cells_from needs column {column:?}: add it to the columns of this request")))
        }
    }
}

/// Rows that were read, and their schema.
pub type Rows = (SchemaRef, Vec<RecordBatch>);

/// The rows of a query.
pub(crate) async fn stream(store: Arc<dyn Store>, query: Arc<Query>) -> Result<ReadStream> {
    if query.newest_only {
        return crate::read::newest::read(store, query).await;
    }
    let schema = query.schema.clone();
    Ok(ReadStream::new(schema, rows(store, query).await?))
}

/// The rows of a query, tile by tile; for queries that do not ask only for the newest versions.
async fn rows(store: Arc<dyn Store>, query: Arc<Query>) -> Result<BoxStream<'static, Result<RecordBatch>>> {
    Ok(assembled(groups(store, query.clone()).await?, query))
}

/// The rows of the groups, in order. Decodes several groups at once.
fn assembled(
    groups: impl Stream<Item = Result<Vec<ParsedChunk>>> + Send + 'static,
    query: Arc<Query>,
) -> BoxStream<'static, Result<RecordBatch>> {
    groups
        // Only the first piece of each group is decoded ahead. The other pieces are decoded when the reader reaches
        // them, so that memory stays bounded.
        .map_ok(move |parts| next_piece(Pieces::new(query.clone(), parts, None)))
        .try_buffered(rayon::current_num_threads().min(GROUPS_AT_ONCE))
        .map_ok(|(first, rest)| stream::iter(first.map(Ok)).chain(stream_of(rest)))
        .try_flatten()
        .boxed()
}

/// The next piece, and the remaining ones.
async fn next_piece(mut pieces: Pieces) -> Result<(Option<RecordBatch>, Pieces)> {
    let light = pieces.is_light();
    let work = move || Ok((pieces.next()?, pieces));
    if light { work() } else { on_pool(work).await }
}

/// The remaining pieces, one after the other.
pub(crate) fn stream_of(pieces: Pieces) -> impl Stream<Item = Result<RecordBatch>> + Send {
    stream::try_unfold(pieces, |pieces| async move {
        if pieces.is_done() {
            return Ok(None);
        }
        let (rows, rest) = next_piece(pieces).await?;
        Ok(rows.map(|rows| (rows, rest)))
    })
}

/// Runs CPU-bound work off the threads that drive the engine. A thread of a rayon pool does the work itself: a
/// simulation runs on such a thread, so that everything happens on one thread and is reproducible.
pub(crate) async fn on_pool<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    if rayon::current_thread_index().is_some() {
        return work();
    }
    tokio::task::spawn_blocking(work).await?
}
