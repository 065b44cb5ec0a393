//! State that all requests share, and the context of each request: its permit and its deadline.

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
use crate::failure::{Failure, Result};
use crate::front_ends::FrontEnds;
use crate::group_commit::GroupCommit;
use crate::metrics::Metrics;
use crate::parameters::Parameters;
use crate::settings::Settings;
use crate::work;
use chronotile_archive::memory::{Charge, Memory};

/// A service: the state that its requests share.
pub(crate) struct App {
    pub historian: Arc<Historian>,
    pub settings: Settings,
    pub access: Access,
    pub metrics: Arc<Metrics>,
    /// Stores small writes.
    pub group_commit: GroupCommit,
    /// Stores large writes, in the background.
    pub large_group_commit: GroupCommit,
    /// The memory to which bodies, queries and responses are charged.
    pub memory: Memory,
    /// Serves events and jobs, if the program provides it.
    pub front_ends: Option<Arc<dyn FrontEnds>>,
    pub stopping: AtomicBool,
    /// The result and time of the last readiness check of the archive.
    pub readiness: tokio::sync::Mutex<Option<(Instant, Result<()>)>>,
    queries: Arc<Semaphore>,
    writes: Arc<Semaphore>,
}

/// The cost class of a request, which decides the limits that apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CostClass {
    /// Negligible cost: no limit.
    Light,
    /// Takes one of the slots for queries, and has the deadline of a query.
    Query,
    /// Like `Query`, with little memory.
    Lookup,
    /// Takes one of the slots for writes.
    Write,
    /// Takes one of the slots for queries, without a deadline.
    Maintenance,
}

/// A request that has passed all checks.
pub(crate) struct Call {
    pub parameters: Parameters,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub now_ns: i64,
    /// Deadline if the request is a query.
    pub deadline: Instant,
    /// Number of rows sent so far.
    pub rows: Arc<AtomicU64>,
    /// Whether unknown tags may be defined.
    pub may_define: bool,
    /// The slot of the request. Work that continues after the client has disconnected keeps it.
    pub permit: Option<Arc<Permit>>,
    pub path: Vec<(String, String)>,
}

/// The slot of a running request, and the memory that its work takes beyond what is charged by size.
#[derive(Debug)]
pub(crate) struct Permit {
    _place: OwnedSemaphorePermit,
    _charge: Charge,
}

/// Memory of a query in addition to the chunks and rows that the archive charges: chunks on their way from the engine.
const QUERY_BYTES: usize = 4 << 20;
/// Memory of a look-up.
const LOOKUP_BYTES: usize = 256 << 10;
/// No query is charged more than the budget divided by this number, so that a small budget still admits so many.
const QUERIES_MIN: usize = 16;

impl Call {
    /// A parameter of the path.
    pub fn part(&self, name: &str) -> &str {
        self.path.iter().find_map(|(known, value)| (known == name).then_some(value.as_str())).unwrap_or_default()
    }
}

/// The peer of a request's connection.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    pub address: SocketAddr,
    /// Set if the response is sent before the request body has arrived; the rest of the body is then discarded.
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
        let group_commit = GroupCommit::start(&Handle::current(), historian.clone(), metrics.clone());
        let large_group_commit = GroupCommit::start(&work::background(), historian.clone(), metrics.clone());
        Arc::new(Self {
            historian,
            access,
            metrics,
            group_commit,
            large_group_commit,
            memory,
            front_ends,
            stopping: AtomicBool::new(false),
            readiness: tokio::sync::Mutex::default(),
            queries: Arc::new(Semaphore::new(limits.queries)),
            writes: Arc::new(Semaphore::new(limits.writes)),
            settings,
        })
    }

    pub fn permit(&self, work: CostClass) -> Result<Option<Arc<Permit>>> {
        let limits = self.settings.limits;
        let (slots, count, what, bytes) = match work {
            CostClass::Light => return Ok(None),
            CostClass::Lookup => (&self.queries, limits.queries, "queries", LOOKUP_BYTES),
            CostClass::Query | CostClass::Maintenance => (&self.queries, limits.queries, "queries", QUERY_BYTES),
            // The memory of a write depends on its body and is charged later.
            CostClass::Write => (&self.writes, limits.writes, "writes", 0),
        };
        // Requests are refused instead of queued: waiting ones would hold their bodies in memory.
        let place = slots.clone().try_acquire_owned().map_err(|_| {
            self.metrics.turned_away.inc();
            Failure::busy(format!("{count} {what} are running, which is the limit: repeat the request in a second"))
        })?;
        let charge = self.memory.charge(bytes.min(self.memory.bytes_max() / QUERIES_MIN))?;
        Ok(Some(Arc::new(Permit { _place: place, _charge: charge })))
    }
}

/// The request id of the client, if it is printable and not too long.
pub(crate) fn given_id(headers: &HeaderMap) -> Option<&str> {
    let given = headers.get(REQUEST_ID).and_then(|value| value.to_str().ok());
    given.filter(|id| !id.is_empty() && id.len() <= 128 && id.bytes().all(|byte| byte.is_ascii_graphic()))
}

pub(crate) fn now_ns() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}
