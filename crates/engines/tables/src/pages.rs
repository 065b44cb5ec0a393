//! Fetches results page by page, and chooses how many rows to request.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow_array::RecordBatch;
use chronotile_cql::scylla::response::PagingState;
use chronotile_cql::scylla::response::query_result::QueryRowsResult;
use chronotile_cql::scylla::statement::prepared::PreparedStatement;
use chronotile_cql::{Call, CqlError, Session};

use crate::decode::{Decoder, unexpected};
use crate::error::Result;
use crate::params::Bound;

/// Default target size of a page in bytes.
pub const PAGE_BYTES: usize = 2 << 20;
/// Rows of the first page: the size of a row is not known yet.
const ROWS_FIRST: usize = 100;
/// Maximum number of rows in a page: a node collects them before it answers.
const ROWS_MAX: usize = 200_000;
/// Maximum growth of a page relative to the one before.
const GROWTH_MAX: usize = 16;
/// Maximum size of a page in Arrow that follows from its types alone: null vectors take few bytes on the wire and many in Arrow.
const ARROW_BYTES_MAX: usize = 64 << 20;
/// Number of attempts at one page. After a time-out the next attempt requests fewer rows.
const TRIES: u32 = 3;

/// Number of rows to request, adapted to the sizes of earlier pages. Shared by all readers of the same columns.
#[derive(Debug)]
pub(crate) struct PageSize {
    rows: AtomicUsize,
    rows_max: AtomicUsize,
    bytes: usize,
}

impl PageSize {
    /// Targets pages of about `bytes`.
    pub(crate) fn new(bytes: usize) -> Self {
        Self { rows: AtomicUsize::new(ROWS_FIRST), rows_max: AtomicUsize::new(ROWS_MAX), bytes }
    }

    /// Limits the rows by their size in Arrow.
    pub(crate) fn bound(&self, row_bytes: usize) {
        self.rows_max.store((ARROW_BYTES_MAX / row_bytes.max(1)).clamp(1, ROWS_MAX), Ordering::Relaxed);
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows.load(Ordering::Relaxed).clamp(1, self.rows_max.load(Ordering::Relaxed))
    }

    fn learn(&self, rows: usize, bytes: usize) {
        if rows == 0 {
            return;
        }
        // Readers may overwrite each other's value: each is an estimate from a recent page.
        let fitting = self.bytes.saturating_mul(rows) / bytes.max(1);
        let asked = self.rows.load(Ordering::Relaxed);
        self.rows.store(fitting.clamp(1, asked.saturating_mul(GROWTH_MAX)), Ordering::Relaxed);
    }
}

/// A statement with its values, which is read page by page.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) session: Arc<Session>,
    pub(crate) statement: PreparedStatement,
    pub(crate) values: Bound,
    pub(crate) call: Call,
    pub(crate) size: Arc<PageSize>,
}

/// The rows of a page, and the paging state of the next page, if any.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) rows: QueryRowsResult,
    pub(crate) next: Option<PagingState>,
}

impl Source {
    /// The page that begins at `from`. If the servers time out, it is requested again with fewer rows.
    pub(crate) async fn page(&self, from: PagingState) -> Result<Page> {
        let mut rows = self.size.rows();
        let mut statement = self.statement.clone();
        // All tries together take no longer than the caller's limit.
        let call = Call { timeout: self.call.timeout / TRIES, ..self.call };
        let mut tries = 0;
        loop {
            // At most ROWS_MAX.
            statement.set_page_size(rows as i32);
            tries += 1;
            match self.session.page(&statement, &self.values, from.clone(), &call).await {
                Ok((answer, paging)) => {
                    let next = paging.into_paging_control_flow().continue_value();
                    let rows = answer.into_rows_result().map_err(|error| unexpected(&error))?;
                    self.size.learn(rows.rows_num(), rows.rows_bytes_size());
                    return Ok(Page { rows, next });
                }
                Err(error) if tries == TRIES || !error.passes() => return Err(error.into()),
                Err(CqlError::TimedOut { .. } | CqlError::GaveUp { .. } | CqlError::ReplicaFailed { .. }) => {
                    rows = (rows / 8).max(1);
                }
                Err(_) => {}
            }
        }
    }
}

impl Page {
    /// The rows as Arrow.
    pub(crate) fn decode(&self, decoder: &Decoder) -> Result<RecordBatch> {
        decoder.answer(&self.rows)
    }
}
