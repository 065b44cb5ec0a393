//! Streams of record batches from the cluster.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use chronotile_cql::scylla::response::PagingState;
use futures::Stream;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};

use crate::checkpoint::{ReadPosition, Recorder};
use crate::decode::Decoder;
use crate::error::{Result, TablesError};
use crate::pages::{Page, Source};

/// Capacity of the channel to the consumer, in batches.
const WAITING: usize = 2;

/// The rows of one page, and the progress of the range after them.
#[derive(Debug)]
pub(crate) struct Delivery {
    batch: Option<RecordBatch>,
    range: usize,
    place: ReadPosition,
}

/// Rows of a query or a scan, in record batches of about a page each. Dropping the stream stops the readers.
///
/// Memory is bounded: two batches wait, and each range that is being read holds one more and the next page.
#[derive(Debug)]
pub struct RowStream {
    schema: SchemaRef,
    receiver: mpsc::Receiver<Result<Delivery>>,
    readers: JoinSet<()>,
    /// Ranges whose end has not been delivered. If the channel closes before this is 0, rows are missing.
    ranges_left: usize,
    recorder: Option<Recorder>,
    ended: bool,
}

impl RowStream {
    /// A stream of one query, with one reader and one range.
    pub(crate) fn of_query(source: Source, decoder: Arc<Decoder>, first: Page) -> Self {
        let schema = decoder.schema();
        let (sender, receiver) = mpsc::channel(WAITING);
        let mut readers = JoinSet::new();
        readers.spawn(async move {
            read(Arc::new(source), &decoder, Start::Page(Box::new(first)), 0, &sender).await;
        });
        Self { schema, receiver, readers, ranges_left: 1, recorder: None, ended: false }
    }

    pub(crate) fn of_scan(
        schema: SchemaRef,
        ranges_left: usize,
        recorder: Option<Recorder>,
        start: impl FnOnce(&mut JoinSet<()>, mpsc::Sender<Result<Delivery>>),
    ) -> Self {
        let (sender, receiver) = mpsc::channel(WAITING);
        let mut readers = JoinSet::new();
        start(&mut readers, sender);
        Self { schema, receiver, readers, ranges_left, recorder, ended: false }
    }

    /// The columns.
    pub fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn end(&mut self) -> Option<Result<RecordBatch>> {
        self.ended = true;
        // A reader that panics or is cancelled closes the channel like one that has finished.
        if self.ranges_left > 0 {
            let reason = format!("reading ended early: {} ranges were not finished", self.ranges_left);
            return Some(Err(TablesError::Interrupted { reason }));
        }
        self.recorder.as_mut().and_then(|recorder| recorder.finish().err()).map(Err)
    }

    fn fail(&mut self, error: TablesError) -> Poll<Option<Result<RecordBatch>>> {
        self.ended = true;
        self.readers.abort_all();
        Poll::Ready(Some(Err(error)))
    }
}

impl Stream for RowStream {
    type Item = Result<RecordBatch>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        // A request for the next batch acknowledges the last one.
        if let Some(Err(error)) = self.recorder.as_mut().map(Recorder::acknowledge) {
            return self.fail(error);
        }
        loop {
            let delivery = match ready!(self.receiver.poll_recv(context)) {
                None => return Poll::Ready(self.end()),
                Some(Err(error)) => return self.fail(error),
                Some(Ok(delivery)) => delivery,
            };
            if delivery.place == ReadPosition::Done {
                self.ranges_left = self.ranges_left.saturating_sub(1);
            }
            if let Some(recorder) = &mut self.recorder {
                recorder.deliver(delivery.range, delivery.place);
            }
            // A page without rows has only progress to note: the next delivery follows.
            if let Some(batch) = delivery.batch {
                return Poll::Ready(Some(Ok(batch)));
            }
        }
    }
}

/// Where a reader starts.
pub(crate) enum Start {
    /// With a page that was already fetched.
    Page(Box<Page>),
    /// With the page of this paging state.
    At(PagingState),
}

/// Reads a statement to its end. Returns false if the receiver was dropped, or after an error, which is sent.
pub(crate) async fn read(
    source: Arc<Source>,
    decoder: &Decoder,
    start: Start,
    range: usize,
    sender: &mpsc::Sender<Result<Delivery>>,
) -> bool {
    let mut page = match start {
        Start::Page(page) => Ok(*page),
        Start::At(from) => source.page(from).await,
    };
    loop {
        let current = match page {
            Ok(current) => current,
            Err(error) => {
                // Without a receiver, nobody needs the error.
                let _ = sender.send(Err(error)).await;
                return false;
            }
        };
        let place = current.next.clone().map_or(ReadPosition::Done, ReadPosition::At);
        // The next page is fetched while this one is decoded and waits for the consumer.
        let next = current.next.clone().map(|from| {
            let source = source.clone();
            AbortOnDrop(tokio::spawn(async move { source.page(from).await }))
        });
        let batch = match current.rows.rows_num() {
            0 => Ok(None),
            _ => current.decode(decoder).map(Some),
        };
        let failed = batch.is_err();
        // The bytes of the page are freed before the wait for the consumer.
        drop(current);
        let delivery = batch.map(|batch| Delivery { batch, range, place });
        if sender.send(delivery).await.is_err() || failed {
            return false;
        }
        let Some(mut next) = next else { return true };
        // The handle is polled by reference, because it cannot be moved out of a type with `Drop`.
        page = match (&mut next.0).await {
            Ok(page) => page,
            Err(error) => Err(TablesError::Interrupted { reason: format!("reading a page was ended: {error}") }),
        };
    }
}

/// Aborts a task when dropped.
struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        // A dropped handle only detaches its task, which would go on fetching a page that nobody reads.
        self.0.abort();
    }
}
