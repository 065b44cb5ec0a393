//! The interface to front ends that are implemented outside this crate: archives of events and of jobs.
//!
//! A program that serves an archive passes an implementation of [`FrontEnds`] to [`serve`](crate::serve). The
//! operations are in the table of endpoints like all others, so the same limits and checks apply to them.

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

/// Serves requests to front ends.
pub trait FrontEnds: Send + Sync + 'static {
    /// Serves one request. May block: it is called concurrently on threads for blocking work.
    ///
    /// When this returns, the rows of a write are durable. A query may be abandoned once [`Request::given_up`] is set;
    /// a write never is.
    ///
    /// # Errors
    /// The front end refuses the request.
    fn answer(&self, request: Request) -> std::result::Result<Answer, Refusal>;
}

/// A request that has passed all checks of the service.
#[derive(Clone, Debug)]
pub struct Request {
    /// Front end and operation, such as `events.search`.
    pub operation: &'static str,
    /// The name of the archive of events or jobs.
    pub name: String,
    /// The query parameters in the given order; `start` and `end` are nanoseconds since 1970. A write also has
    /// `request_id`, if the client sent one.
    pub parameters: Vec<(String, String)>,
    /// The body, decompressed.
    pub body: Bytes,
    /// Set when nobody waits for the answer any more. Never set during a write.
    pub given_up: Arc<AtomicBool>,
    /// Memory of the answer, beyond what every query is charged.
    pub held: MemoryCharge,
}

/// Memory of the service that is charged to a request until the request and its rows are dropped. Clones share it.
#[derive(Clone, Debug)]
pub struct MemoryCharge(Arc<Mutex<Charge>>);

impl MemoryCharge {
    /// An empty charge to this budget.
    pub fn of(memory: &Memory) -> Self {
        Self(Arc::new(Mutex::new(memory.empty())))
    }

    /// Sets the charge to `bytes`, replacing the previous one. Call this before allocating the memory.
    ///
    /// # Errors
    /// The budget has too little memory left; the previous charge remains.
    pub fn set(&self, bytes: usize) -> std::result::Result<(), MemoryError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).set(bytes)
    }
}

/// The answer of a front end.
pub enum Answer {
    /// A JSON text.
    Json(Vec<u8>),
    /// The outcome of a write.
    Stored {
        /// The report as JSON text.
        report: Vec<u8>,
        /// Number of documents stored by this request.
        documents: u64,
        /// Number of lines that are not valid documents.
        refused: u64,
    },
    /// Rows, in the format that the client asks for.
    Rows {
        /// The schema of the rows.
        schema: SchemaRef,
        /// The rows. Fetching the next batch may block.
        batches: Box<dyn Iterator<Item = std::result::Result<RecordBatch, Refusal>> + Send>,
    },
}

/// Why a request was not served.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The kind of error.
    pub kind: ErrorKind,
    /// What failed, on what, and what to try.
    pub message: String,
    /// Details for programs.
    pub details: Map<String, Value>,
    /// Seconds after which to try again, if known.
    pub retry_after_s: Option<u32>,
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let Refusal { kind, message, details, retry_after_s } = refusal;
        let failure = Self { details, ..Self::new(kind, message) };
        // Only errors that can pass have a delay: `Failure::new` decides which, and `and` drops any other. Without a
        // delay of its own, a refused quota never passes, so the usual delay does not apply to it.
        let usual = failure.retry_after_s.filter(|_| kind != ErrorKind::QuotaExceeded);
        Self {
            retry_after_s: failure.retry_after_s.and(retry_after_s.or(usual)).map(|seconds| seconds.max(1)),
            ..failure
        }
    }
}
