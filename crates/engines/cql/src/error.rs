//! Errors of requests to a cluster, and which of them may have taken effect.

use std::sync::Arc;
use std::time::Duration;

use scylla::errors::{
    ConnectionError, ConnectionPoolError, ConnectionSetupRequestErrorKind, DbError, ExecutionError, MetadataError,
    NewSessionError, PrepareError, RequestAttemptError, SchemaAgreementError,
};
use scylla::statement::Consistency;

/// Result of an operation on a cluster.
pub type Result<T> = std::result::Result<T, CqlError>;

/// Whether a failed write may have taken effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// No replica has it.
    No,
    /// Some replicas may have it.
    Maybe,
}

/// Why a request to a cluster failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CqlError {
    /// The URL lacks a required part.
    #[error("{url}: {reason}")]
    Url {
        /// The URL.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A certificate or key file cannot be used.
    #[error("TLS: {reason}")]
    TlsFiles {
        /// The file and what is wrong with it.
        reason: String,
        /// The error of the TLS library, if it found the problem.
        source: Option<Arc<dyn std::error::Error + Send + Sync>>,
    },
    /// No contact point answered.
    #[error("no node answers at {}: {reason}; check the addresses, and that a node is up", contact_points.join(", "))]
    Connect {
        /// The nodes that were asked.
        contact_points: Vec<String>,
        /// What the last of them said.
        reason: String,
    },
    /// User or password are wrong, or missing.
    #[error("login refused for {}: {reason}", user.as_deref().unwrap_or("a client without user and password"))]
    Login {
        /// The user, where one was given.
        user: Option<String>,
        /// What the node says, and what to do.
        reason: String,
    },
    /// The two sides do not trust each other's certificates.
    #[error("the node's or the client's certificate was not accepted: {reason}")]
    Certificate {
        /// What the check said.
        reason: String,
    },
    /// The role may not do this.
    #[error("permission denied: {reason}")]
    Denied {
        /// What the node says: the role, the permission and the resource.
        reason: String,
    },
    /// Too few replicas are alive for the consistency level. Nothing was attempted.
    #[error("consistency level {} needs {required} replicas and {alive} are alive", level_name(*consistency))]
    Unavailable {
        /// The level asked for.
        consistency: Consistency,
        /// Replicas it needs.
        required: i32,
        /// Replicas that the coordinator believes alive.
        alive: i32,
    },
    /// Too few replicas answered in the servers' time.
    #[error("{operation} timed out: consistency level {} needs {required} replicas and {received} answered", level_name(*consistency))]
    TimedOut {
        /// `read`, `write` or `conditional write`.
        operation: &'static str,
        /// The level asked for.
        consistency: Consistency,
        /// Replicas it needs.
        required: i32,
        /// Replicas that answered.
        received: i32,
    },
    /// A replica failed while it executed the request.
    #[error("{operation} failed on {failed} replicas: {reason}")]
    ReplicaFailed {
        /// `read` or `write`.
        operation: &'static str,
        /// Replicas that failed.
        failed: i32,
        /// What the coordinator says.
        reason: String,
    },
    /// The cluster is overloaded.
    #[error("the cluster is overloaded: {reason}")]
    Overloaded {
        /// What the node says.
        reason: String,
    },
    /// The connection broke, or none was there, before the answer came.
    #[error("the connection was lost: {reason}")]
    Broken {
        /// What happened to it.
        reason: String,
        /// Whether the request had been sent.
        sent: bool,
    },
    /// No answer came in the client's time.
    #[error("no answer within {} s{}", timeout.as_secs_f64(), last.as_ref().map(|e| format!("; last: {e}")).unwrap_or_default())]
    GaveUp {
        /// How long the client waited.
        timeout: Duration,
        /// What failed meanwhile.
        #[source]
        last: Option<Box<CqlError>>,
    },
    /// The last attempt had no effect, but an earlier one may have had it.
    #[error("{last}; an earlier attempt may have been carried out")]
    InDoubt {
        /// Why the last attempt failed.
        #[source]
        last: Box<CqlError>,
    },
    /// The table is not there.
    #[error("the table is missing: {reason}")]
    NoTable {
        /// What the node says.
        reason: String,
    },
    /// The node rejects the statement or a value.
    #[error("the node refused: {reason}")]
    Invalid {
        /// What the node says.
        reason: String,
    },
    /// A response that cannot be interpreted.
    #[error("unexpected answer: {reason}")]
    Protocol {
        /// What came.
        reason: String,
    },
}

impl CqlError {
    /// Whether a write that failed with this error may have reached a replica.
    pub fn applied(&self) -> Applied {
        match self {
            Self::TimedOut { .. }
            | Self::ReplicaFailed { .. }
            | Self::Overloaded { .. }
            | Self::Protocol { .. }
            | Self::InDoubt { .. } => Applied::Maybe,
            Self::Broken { sent: true, .. } => Applied::Maybe,
            // Without an error of the last attempt, that attempt was still waiting for its answer.
            Self::GaveUp { last, .. } => last.as_ref().map_or(Applied::Maybe, |last| last.applied()),
            _ => Applied::No,
        }
    }

    /// Whether the same request may succeed a little later.
    pub fn passes(&self) -> bool {
        match self {
            Self::Unavailable { .. }
            | Self::TimedOut { .. }
            | Self::ReplicaFailed { .. }
            | Self::Overloaded { .. }
            | Self::Broken { .. }
            | Self::GaveUp { .. } => true,
            Self::InDoubt { last } => last.passes(),
            _ => false,
        }
    }

    /// Whether the last attempt met a node that does not know the table or its keyspace.
    pub fn names_no_table(&self) -> bool {
        match self {
            Self::NoTable { .. } => true,
            Self::InDoubt { last } => last.names_no_table(),
            _ => false,
        }
    }

    /// Whether the error reports the required and the available replicas.
    pub(crate) fn names_replicas(&self) -> bool {
        match self {
            Self::Unavailable { .. } | Self::TimedOut { .. } => true,
            Self::InDoubt { last } => last.names_replicas(),
            Self::GaveUp { last, .. } => last.as_ref().is_some_and(|last| last.names_replicas()),
            _ => false,
        }
    }

    pub(crate) fn of_new_session(error: NewSessionError, contact_points: &[String], user: Option<&str>) -> Self {
        let other = |reason: String| Self::Connect { contact_points: contact_points.to_vec(), reason };
        match error {
            NewSessionError::MetadataError(MetadataError::ConnectionPoolError(pool)) => {
                of_pool(&pool, user).unwrap_or_else(|| other(pool.to_string()))
            }
            error => other(error.to_string()),
        }
    }
}

/// Causes that a retry on another node cannot fix.
fn of_pool(error: &ConnectionPoolError, user: Option<&str>) -> Option<CqlError> {
    let ConnectionPoolError::Broken { last_connection_error } = error else { return None };
    match last_connection_error {
        ConnectionError::IoError(error) => {
            // The driver reports a failed TLS handshake as an I/O error that contains the cause.
            let tls = error.get_ref()?.downcast_ref::<rustls::Error>()?;
            Some(CqlError::Certificate { reason: tls.to_string() })
        }
        ConnectionError::ConnectionSetupRequestError(setup) => {
            let login = |reason: String| Some(CqlError::Login { user: user.map(str::to_owned), reason });
            match &setup.error {
                ConnectionSetupRequestErrorKind::DbError(DbError::AuthenticationError, text) => login(text.clone()),
                ConnectionSetupRequestErrorKind::MissingAuthentication => login(
                    "the cluster asks for user and password: name the user in the URL (cassandra://USER@HOST) and \
                           the password's file with password_file="
                        .to_owned(),
                ),
                _ => None,
            }
        }
        _ => None,
    }
}

impl From<RequestAttemptError> for CqlError {
    fn from(error: RequestAttemptError) -> Self {
        match error {
            RequestAttemptError::DbError(error, text) => of_db(error, text),
            RequestAttemptError::BrokenConnectionError(error) => Self::Broken { reason: error.to_string(), sent: true },
            RequestAttemptError::UnableToAllocStreamId => {
                Self::Overloaded { reason: "every slot of the connection is in use".to_owned() }
            }
            error @ (RequestAttemptError::SerializationError(_) | RequestAttemptError::CqlRequestSerialization(_)) => {
                Self::Invalid { reason: error.to_string() }
            }
            error => Self::Protocol { reason: error.to_string() },
        }
    }
}

fn of_db(error: DbError, text: String) -> CqlError {
    use scylla::errors::WriteType;
    match error {
        DbError::Unavailable { consistency, required, alive } => CqlError::Unavailable { consistency, required, alive },
        DbError::ReadTimeout { consistency, received, required, .. } => {
            CqlError::TimedOut { operation: "read", consistency, required, received }
        }
        DbError::WriteTimeout { consistency, received, required, write_type } => {
            let operation = if write_type == WriteType::Cas { "conditional write" } else { "write" };
            CqlError::TimedOut { operation, consistency, required, received }
        }
        DbError::ReadFailure { numfailures, .. } => {
            CqlError::ReplicaFailed { operation: "read", failed: numfailures, reason: text }
        }
        DbError::WriteFailure { numfailures, .. } => {
            CqlError::ReplicaFailed { operation: "write", failed: numfailures, reason: text }
        }
        // 0x1700: a conditional write whose outcome the coordinator does not know (Cassandra 4.0 and later).
        DbError::Other(0x1700) => CqlError::Broken { reason: text, sent: true },
        DbError::Overloaded | DbError::RateLimitReached { .. } => CqlError::Overloaded { reason: text },
        DbError::IsBootstrapping => CqlError::Broken { reason: text, sent: false },
        DbError::TruncateError | DbError::ServerError => {
            CqlError::ReplicaFailed { operation: "request", failed: 0, reason: text }
        }
        DbError::Unauthorized => CqlError::Denied { reason: text },
        DbError::AuthenticationError => CqlError::Login { user: None, reason: text },
        DbError::Invalid if missing_table(&text) => CqlError::NoTable { reason: text },
        _ => CqlError::Invalid { reason: text },
    }
}

/// A level as URLs and CQL shells write it.
fn level_name(level: Consistency) -> &'static str {
    match level {
        Consistency::Any => "ANY",
        Consistency::One => "ONE",
        Consistency::Two => "TWO",
        Consistency::Three => "THREE",
        Consistency::Quorum => "QUORUM",
        Consistency::All => "ALL",
        Consistency::LocalQuorum => "LOCAL_QUORUM",
        Consistency::EachQuorum => "EACH_QUORUM",
        Consistency::LocalOne => "LOCAL_ONE",
        Consistency::Serial => "SERIAL",
        Consistency::LocalSerial => "LOCAL_SERIAL",
    }
}

/// Cassandra 4 and later say "table t does not exist", ScyllaDB and older ones "unconfigured table t"; without the keyspace all
/// but ScyllaDB say "keyspace k does not exist", and "Keyspace 'k' doesn't exist" where a table is made in it.
pub(crate) fn missing_table(text: &str) -> bool {
    let text = text.to_lowercase();
    let missing = text.contains("does not exist") || text.contains("doesn't exist");
    let missing = missing && (text.contains("table") || text.contains("keyspace"));
    missing || text.contains("unconfigured table")
}

impl From<ConnectionPoolError> for CqlError {
    fn from(error: ConnectionPoolError) -> Self {
        of_pool(&error, None).unwrap_or_else(|| Self::Broken { reason: error.to_string(), sent: false })
    }
}

impl From<PrepareError> for CqlError {
    fn from(error: PrepareError) -> Self {
        match error {
            PrepareError::ConnectionPoolError(error) => error.into(),
            // Preparing has no effect that could have been applied.
            PrepareError::AllAttemptsFailed { first_attempt } => match first_attempt.into() {
                Self::Broken { reason, .. } => Self::Broken { reason, sent: false },
                other => other,
            },
            error => Self::Protocol { reason: error.to_string() },
        }
    }
}

impl From<ExecutionError> for CqlError {
    fn from(error: ExecutionError) -> Self {
        match error {
            ExecutionError::BadQuery(error) => Self::Invalid { reason: error.to_string() },
            ExecutionError::EmptyPlan => Self::Broken {
                reason: "no known node of the requested data centre is up (dc= and dc_failover= of the URL)".to_owned(),
                sent: false,
            },
            ExecutionError::PrepareError(error) => error.into(),
            ExecutionError::ConnectionPoolError(error) => error.into(),
            ExecutionError::LastAttemptError(error) => error.into(),
            ExecutionError::RequestTimeout(timeout) => Self::GaveUp { timeout, last: None },
            ExecutionError::SchemaAgreementError(error) => error.into(),
            error => Self::Protocol { reason: error.to_string() },
        }
    }
}

impl From<SchemaAgreementError> for CqlError {
    fn from(error: SchemaAgreementError) -> Self {
        match error {
            SchemaAgreementError::Timeout(timeout) => Self::GaveUp {
                timeout,
                last: Some(Box::new(Self::Broken {
                    reason: "the nodes do not agree on the schema".to_owned(),
                    sent: true,
                })),
            },
            SchemaAgreementError::ConnectionPoolError(error) => error.into(),
            SchemaAgreementError::PrepareError(error) => error.into(),
            SchemaAgreementError::RequestError(error) => error.into(),
            error => Self::Broken { reason: error.to_string(), sent: true },
        }
    }
}
