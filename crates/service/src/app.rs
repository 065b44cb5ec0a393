//! What requests share, and what is known of each: its limits, its place among those that run, its time.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use axum::http::{HeaderMap, HeaderName};
use bytes::Bytes;
use chronotile_historian::Historian;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use crate::access::Access;
use crate::collector::Collector;
use crate::failure::{Failure, Result};
use crate::front_ends::FrontEnds;
use crate::metrics::Metrics;
use crate::parameters::Parameters;
use crate::settings::Settings;
use crate::work;
use chronotile_archive::memory::{Charge, Memory};

/// A service: what its requests share.
pub(crate) struct App {
    pub historian: Arc<Historian>,
    pub settings: Settings,
    pub access: Access,
    pub metrics: Arc<Metrics>,
    /// What stores small writes.
    pub collector: Collector,
    /// What stores all others, in the background.
    pub large_collector: Collector,
    /// What bodies, queries and answers are charged to.
    pub memory: Memory,
    /// What answers for events and jobs, where the program that serves has it.
    pub front_ends: Option<Arc<dyn FrontEnds>>,
    pub stopping: AtomicBool,
    /// Whether the archive answered when it was last asked, and when that was.
    pub readiness: tokio::sync::Mutex<Option<(Instant, Result<()>)>>,
    queries: Arc<Semaphore>,
    writes: Arc<Semaphore>,
}

/// What a request costs, and so which limits hold for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Next to nothing.
    Light,
    /// One of the queries that may run, in its time.
    Query,
    /// One of the same that takes little memory.
    Lookup,
    /// One of the writes that may run.
    Write,
    /// One of the queries, for as long as it takes.
    Maintenance,
}

/// A request that may be served.
pub(crate) struct Call {
    pub parameters: Parameters,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub now_ns: i64,
    /// When the time of a query is over.
    pub deadline: Instant,
    /// Rows of the answer so far.
    pub rows: Arc<AtomicU64>,
    /// Whether tags that are unknown may be defined.
    pub may_define: bool,
    /// The place among the requests that may run. Work that goes on without its client keeps it.
    pub permit: Option<Arc<Permit>>,
    pub path: Vec<(String, String)>,
}

/// The place of a request among those that may run, and the memory that its work takes beyond what is charged by its size.
#[derive(Debug)]
pub(crate) struct Permit {
    _place: OwnedSemaphorePermit,
    _charge: Charge,
}

/// What a query takes beside the chunks and rows that the archive charges: chunks on their way from the engine.
const QUERY_BYTES: usize = 4 << 20;
/// What a look-up takes.
const LOOKUP_BYTES: usize = 256 << 10;
/// A small budget is shared by this many queries at least.
const QUERIES_MIN: usize = 16;

impl Call {
    /// A part of the path.
    pub fn part(&self, name: &str) -> &str {
        self.path.iter().find_map(|(known, value)| (known == name).then_some(value.as_str())).unwrap_or_default()
    }
}

/// The connection of a request.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub address: SocketAddr,
    /// Set where an answer leaves before the body of its request is there: the rest is then thrown away.
    pub discards: Arc<AtomicBool>,
}

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

impl App {
    pub fn new(
        historian: Historian,
        settings: Settings,
        access: Access,
        front_ends: Option<Arc<dyn FrontEnds>>,
    ) -> Arc<Self> {
        let limits = settings.limits;
        let memory = Memory::new(limits.memory_bytes);
        historian.archive().limit_memory(memory.clone());
        let (historian, metrics) = (Arc::new(historian), Arc::new(Metrics::new(memory.clone())));
        let collector = Collector::start(&Handle::current(), historian.clone(), metrics.clone());
        let large_collector = Collector::start(&work::background(), historian.clone(), metrics.clone());
        Arc::new(Self {
            historian,
            access,
            metrics,
            collector,
            large_collector,
            memory,
            front_ends,
            stopping: AtomicBool::new(false),
            readiness: tokio::sync::Mutex::default(),
            queries: Arc::new(Semaphore::new(limits.queries)),
            writes: Arc::new(Semaphore::new(limits.writes)),
            settings,
        })
    }

    pub fn permit(&self, work: Work) -> Result<Option<Arc<Permit>>> {
        let limits = self.settings.limits;
        let (slots, count, what, bytes) = match work {
            Work::Light => return Ok(None),
            Work::Lookup => (&self.queries, limits.queries, "queries", LOOKUP_BYTES),
            Work::Query | Work::Maintenance => (&self.queries, limits.queries, "queries", QUERY_BYTES),
            // Of a write the body tells.
            Work::Write => (&self.writes, limits.writes, "writes", 0),
        };
        let place = slots.clone().try_acquire_owned().map_err(|_| {
            self.metrics.turned_away.inc();
            Failure::busy(format!("{count} {what} are running, as many as may: repeat the request in a second"))
        })?;
        let charge = self.memory.charge(bytes.min(self.memory.bytes_max() / QUERIES_MIN))?;
        Ok(Some(Arc::new(Permit { _place: place, _charge: charge })))
    }
}

/// The id that a client gave, if it is a decent one.
pub(crate) fn given_id(headers: &HeaderMap) -> Option<&str> {
    let given = headers.get(REQUEST_ID).and_then(|value| value.to_str().ok());
    given.filter(|id| !id.is_empty() && id.len() <= 128 && id.bytes().all(|byte| byte.is_ascii_graphic()))
}

pub(crate) fn now_ns() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}
