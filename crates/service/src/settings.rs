//! Settings and limits of a service.

use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use chronotile_historian::HistorianError;

use crate::machine;

/// Settings of a service. They are not stored in the archive.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Address to listen on; port 0 takes a free port.
    pub listen: SocketAddr,
    /// File of bearer tokens. Without one, the service may listen only on a loopback address.
    pub tokens: Option<PathBuf>,
    /// Certificate chain and private key, PEM files; without them the service speaks plain HTTP.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Format of the log on standard error.
    pub log: LogFormat,
    /// Limits of requests.
    pub limits: Limits,
    /// Interval at which the service stores metrics of itself as points of tags; `None` to store none.
    pub diagnostics: Option<Duration>,
}

/// Format of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// One JSON object per line.
    Json,
    /// Lines of text.
    Text,
    /// No lines for requests; errors of the service are logged as text.
    Off,
}

impl LogFormat {
    /// The format with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        [("json", Self::Json), ("text", Self::Text), ("off", Self::Off)]
            .into_iter()
            .find_map(|(known, format)| (known == name).then_some(format))
    }
}

/// Limits of requests, connections and times.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum bytes of memory for bodies, queries and responses together. By default half of what this process may
    /// use: the least of the machine's memory, the limits of its control groups and the limit of its address space.
    pub memory_bytes: usize,
    /// Maximum bytes of a body, before and after decompression.
    pub body_bytes: usize,
    /// Maximum number of points in a response.
    pub points: u64,
    /// Maximum number of tags in a request.
    pub tags: usize,
    /// Maximum length of the time range of a request.
    pub range: Duration,
    /// Maximum number of concurrent queries; further ones are refused as busy.
    pub queries: usize,
    /// Maximum number of concurrent writes; further ones are refused as busy.
    pub writes: usize,
    /// Maximum number of connections. A new one beyond it replaces an idle one. By default 1,024, or fewer if the limit
    /// of open files is too low.
    pub connections: usize,
    /// Maximum time of a query, including its response.
    pub query_time: Duration,
    /// Time limit for a client to send a request, and to receive each piece of a response.
    pub client_time: Duration,
    /// Time limit for requests in progress once the service is stopping.
    pub stop_time: Duration,
    /// Interval at which tag definitions are reloaded, to see changes by other processes.
    pub definitions_time: Duration,
    /// How far the time of a point may be in the future, ns; `None` for no limit.
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

/// Why a service did not start, or ended with an error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServiceError {
    /// The service has no tokens, but its address can be reached from other machines.
    #[error(
        "without tokens the service listens only on this machine, but {listen} is reachable from others: give a file \
        of tokens, or listen on 127.0.0.1"
    )]
    Exposed {
        /// The address.
        listen: SocketAddr,
    },
    /// The address is in use, or is not an address of this machine.
    #[error("cannot listen on {listen}: {source}")]
    Listen {
        /// The address.
        listen: SocketAddr,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The file of tokens cannot be read.
    #[error("{}: {source}", path.display())]
    ReadTokens {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The file of tokens is invalid.
    #[error("{}: {reason}", path.display())]
    Tokens {
        /// The file.
        path: PathBuf,
        /// The problem.
        reason: String,
    },
    /// The certificate or key is invalid.
    #[error("{reason}")]
    Tls {
        /// The problem, with the name of the file.
        reason: String,
        /// The error of the TLS library, if it found the problem.
        source: Option<Box<dyn Error + Send + Sync>>,
    },
    /// A setting is invalid.
    #[error("{0}")]
    Setting(String),
    /// The archive failed.
    #[error(transparent)]
    Historian(#[from] HistorianError),
}
