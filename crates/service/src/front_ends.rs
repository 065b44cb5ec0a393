//! Front ends whose meaning lies outside this crate: archives of events and of jobs.
//!
//! A program that serves an archive gives [`serve`](crate::serve) an implementation of [`FrontEnds`]. Its operations are rows of
//! the table of endpoints like all others, so what holds for requests holds for them.

pub(crate) mod handlers;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use bytes::Bytes;
use chronotile_archive::memory::{Charge, Memory, MemoryError};
use chronotile_types::ErrorKind;
use serde_json::{Map, Value};

use crate::failure::Failure;

/// What answers requests to front ends.
pub trait FrontEnds: Send + Sync + 'static {
    /// Answers one request. It may block: it is called on a thread for blocking work, by many at once.
    ///
    /// When this returns, what a request brought is durable. Nothing else is promised of requests whose client has gone: a
    /// question may be given up once [`Request::given_up`] is set, what is stored never is.
    ///
    /// # Errors
    /// Everything that the front end refuses.
    fn answer(&self, request: Request) -> std::result::Result<Answer, Refusal>;
}

/// A request that may be served.
#[derive(Clone, Debug)]
pub struct Request {
    /// Front end and operation: `events.search`.
    pub operation: &'static str,
    /// The archive of events or jobs.
    pub name: String,
    /// Names and values behind the question mark, in the order given. `start` and `end` are nanoseconds since 1970. With what
    /// is stored there is `request_id`, where the client gave one.
    pub parameters: Vec<(String, String)>,
    /// The body, unpacked.
    pub body: Bytes,
    /// Set when nobody waits for the answer any more. Never set while something is stored.
    pub given_up: Arc<AtomicBool>,
    /// What the answer holds, beyond what every query does.
    pub held: Held,
}

/// Memory of the service that a front end holds for a request, until the request and its rows are dropped. Clones share it.
#[derive(Clone, Debug)]
pub struct Held(Arc<Mutex<Charge>>);

impl Held {
    /// Nothing yet, of this budget.
    pub fn of(memory: &Memory) -> Self {
        Self(Arc::new(Mutex::new(memory.empty())))
    }

    /// Holds so many bytes from now on, in place of what was held before: said before they are taken.
    ///
    /// # Errors
    /// Where the budget has no room for them; what was held stays.
    pub fn set(&self, bytes: usize) -> std::result::Result<(), MemoryError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).set(bytes)
    }
}

/// What a front end answers.
pub enum Answer {
    /// A JSON text.
    Json(Vec<u8>),
    /// What became of a body.
    Stored {
        /// The report, a JSON text.
        report: Vec<u8>,
        /// Documents stored now.
        documents: u64,
        /// Lines that are no documents.
        refused: u64,
    },
    /// Rows, in the format that the client asks for.
    Rows {
        /// Their columns.
        schema: SchemaRef,
        /// The rows. Taking the next ones may block.
        batches: Box<dyn Iterator<Item = std::result::Result<RecordBatch, Refusal>> + Send>,
    },
}

/// A request that is not served.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// What went wrong.
    pub kind: ErrorKind,
    /// What failed, on what, and what to try.
    pub message: String,
    /// What it is about.
    pub details: Map<String, Value>,
    /// Seconds after which to try again, where that is known.
    pub retry_after_s: Option<u32>,
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let Refusal { kind, message, details, retry_after_s } = refusal;
        let failure = Self { details, ..Self::new(kind, message) };
        let usual = failure.retry_after_s.filter(|_| kind != ErrorKind::QuotaExceeded);
        Self {
            retry_after_s: failure.retry_after_s.and(retry_after_s.or(usual)).map(|seconds| seconds.max(1)),
            ..failure
        }
    }
}
