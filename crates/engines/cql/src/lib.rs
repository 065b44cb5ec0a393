//! Connections to Cassandra and ScyllaDB: URL settings, sessions, and errors.

mod attempts;
mod error;
mod retry;
mod session;
mod settings;
mod tls;

pub use error::{Applied, CqlError, Result};
pub use session::{Call, Session};
pub use settings::{
    CATALOG_BUCKETS_MAX, Credentials, Refusal, Replication, Settings, TableOptions, Tls, read_consistency,
    without_password, write_consistency,
};

// The driver's own types appear in the signatures above.
pub use scylla;
