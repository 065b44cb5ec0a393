//! How a service runs.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use chronotile_historian::HistorianError;

use crate::machine;

/// Settings of a service. Nothing of them is stored.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where to listen; port 0 takes a free one.
    pub listen: SocketAddr,
    /// File of bearer tokens. Without one the service listens on the loopback interface alone.
    pub tokens: Option<PathBuf>,
    /// Certificate chain and private key, PEM files; without them the service speaks plain HTTP.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// How the log is written to standard error.
    pub log: LogFormat,
    /// What a request may ask for.
    pub limits: Limits,
    /// How often the service stores figures about itself as points of tags; never where `None`.
    pub diagnostics: Option<Duration>,
}

/// Form of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// A JSON object on each line.
    Json,
    /// A line of text.
    Text,
    /// No lines about requests; errors of the service are written as text.
    Off,
}

impl LogFormat {
    /// The format of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        [("json", Self::Json), ("text", Self::Text), ("off", Self::Off)]
            .into_iter()
            .find_map(|(known, format)| (known == name).then_some(format))
    }
}

/// What requests may ask for, and how long things may take.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of memory that bodies, queries and answers may take together. By default half of what this process may have: of the
    /// machine's memory, of the limits of its control groups and of its address space, the least.
    pub memory_bytes: usize,
    /// Bytes of a body, and of what it unpacks to.
    pub body_bytes: usize,
    /// Points in one answer.
    pub points: u64,
    /// Tags in one request.
    pub tags: usize,
    /// The longest range of one request.
    pub range: Duration,
    /// Queries that run at the same time; one more is told to come back.
    pub queries: usize,
    /// Writes that are taken in at the same time; one more is told to come back.
    pub writes: usize,
    /// Connections. One more takes the place of one that is idle. By default 1,024, or fewer where the limit of open files has no room for them.
    pub connections: usize,
    /// How long a query may take, its answer included.
    pub query_time: Duration,
    /// How long a client may take to send a request, or to take in a piece of an answer.
    pub client_time: Duration,
    /// How long requests may go on once the service was told to stop.
    pub stop_time: Duration,
    /// How long definitions of tags are believed before those that other processes changed are looked for.
    pub definitions_time: Duration,
    /// How far a point may lie ahead of the clock, ns; `None` for no limit.
    pub future_max_ns: Option<i64>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory_bytes: machine::memory_share(),
            body_bytes: 64 << 20,
            points: 10_000_000,
            tags: 10_000,
            range: Duration::from_secs(86_400 * 3_660),
            queries: 64,
            writes: 64,
            connections: machine::connections_max().map_or(1_024, |(count, _)| count.clamp(1, 1_024)),
            query_time: Duration::from_secs(60),
            client_time: Duration::from_secs(30),
            stop_time: Duration::from_secs(30),
            definitions_time: Duration::from_secs(300),
            future_max_ns: Some(86_400_000_000_000),
        }
    }
}

/// Why a service did not start, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// No tokens, and an address that others can reach.
    #[error(
        "without tokens the service listens on this machine alone, and {listen} can be reached from others: give a file of \
         tokens, or listen on 127.0.0.1"
    )]
    Exposed {
        /// The address.
        listen: SocketAddr,
    },
    /// The address is taken, or is none of this machine.
    #[error("cannot listen on {listen}: {reason}")]
    Listen {
        /// The address.
        listen: SocketAddr,
        /// What the system says.
        reason: String,
    },
    /// A file of tokens that cannot be used.
    #[error("{}: {reason}", path.display())]
    Tokens {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// A certificate or key that cannot be used.
    #[error("{reason}")]
    Tls {
        /// What is wrong, with the file.
        reason: String,
    },
    /// A setting that makes no sense.
    #[error("{0}")]
    Setting(String),
    /// The archive.
    #[error(transparent)]
    Historian(#[from] HistorianError),
}
