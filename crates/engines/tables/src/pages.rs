//! Answers page by page: how many rows to ask for, and the bytes that came.

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

/// Bytes that a page should have, where a caller says nothing.
pub const PAGE_BYTES: usize = 2 << 20;
/// Rows of the first page, whose size nobody knows.
const ROWS_FIRST: usize = 100;
/// Rows of a page at most: a node collects them before it answers.
const ROWS_MAX: usize = 200_000;
/// How much longer than the last a page may become.
const GROWTH_MAX: usize = 16;
/// Arrow bytes of a page at most that its types alone make, however little came for it (vectors that are null).
const ARROW_BYTES_MAX: usize = 64 << 20;
/// Tries of one page, each with fewer rows, when the servers do not manage it in time.
const TRIES: u32 = 3;

/// Rows to ask for, learnt from the pages that came. Shared by all that read the same columns.
#[derive(Debug)]
pub(crate) struct PageSize {
    rows: AtomicUsize,
    rows_max: AtomicUsize,
    bytes: usize,
}

impl PageSize {
    /// For pages of about so many bytes.
    pub(crate) fn new(bytes: usize) -> Self {
        Self { rows: AtomicUsize::new(ROWS_FIRST), rows_max: AtomicUsize::new(ROWS_MAX), bytes }
    }

    /// Bounds the rows by what each takes in Arrow.
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
        let fitting = self.bytes.saturating_mul(rows) / bytes.max(1);
        let asked = self.rows.load(Ordering::Relaxed);
        self.rows.store(fitting.clamp(1, asked.saturating_mul(GROWTH_MAX)), Ordering::Relaxed);
    }
}

/// A statement with its values, to be read page by page.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) session: Arc<Session>,
    pub(crate) statement: PreparedStatement,
    pub(crate) values: Bound,
    pub(crate) call: Call,
    pub(crate) size: Arc<PageSize>,
}

/// Rows as they came, and where the next page begins if there is one.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) rows: QueryRowsResult,
    pub(crate) next: Option<PagingState>,
}

impl Source {
    /// The page that begins at `from`. Where the servers do not manage it in time it is asked for again with fewer rows.
    pub(crate) async fn page(&self, from: PagingState) -> Result<Page> {
        let mut rows = self.size.rows();
        let mut statement = self.statement.clone();
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
