//! Opens the engine that a URL names: the only module above the `Store` trait that uses the engines.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use chronotile_cassandra::CassandraStore;
use chronotile_memory::MemoryStore;
use chronotile_sqlite::SqliteStore;
pub use chronotile_sqlite::{BackupError, FileDraft, copy_file};
use chronotile_store::Store;

use crate::catalog::superseded::SUPERSEDED_KEPT;
use crate::error::{ArchiveError, Result};
use crate::url::Engine;

/// How to open an archive.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Create the archive if it does not exist.
    pub create: bool,
    /// Refuse every write.
    pub read_only: bool,
    /// Seconds to wait for other writers, 0 to 86,400. A cluster's time limit is part of its URL.
    pub timeout_s: u64,
    /// How long rows of replaced and removed batches are kept for running reads.
    pub superseded_kept: Duration,
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self { create: true, read_only: false, timeout_s: 60, superseded_kept: SUPERSEDED_KEPT }
    }
}

/// Opens the engine that `url` names, in one of the [`URL_FORMS`](crate::url::URL_FORMS).
pub(crate) async fn open_store(url: &str, options: &OpenOptions) -> Result<Arc<dyn Store>> {
    let refuse = |reason: &str| ArchiveError::Url {
        url: chronotile_cassandra::without_password(url),
        reason: reason.to_owned(),
    };
    let (scheme, rest) = url.split_once(':').ok_or_else(|| refuse("it names no engine"))?;
    match Engine::of(scheme) {
        Some(Engine::Memory) if rest.is_empty() => Ok(Arc::new(MemoryStore::new())),
        Some(Engine::Memory) => Err(refuse("memory: takes no path")),
        Some(Engine::Sqlite) => open_sqlite(rest.strip_prefix("//").unwrap_or(rest), options, refuse).await,
        Some(Engine::Cassandra) => open_cassandra(url, options, refuse).await,
        None => Err(refuse(&format!("{scheme:?} is not an engine of this release"))),
    }
}

async fn open_sqlite(
    path: &str,
    options: &OpenOptions,
    refuse: impl Fn(&str) -> ArchiveError,
) -> Result<Arc<dyn Store>> {
    if path.is_empty() {
        return Err(refuse("the path is empty"));
    }
    let settings = chronotile_sqlite::Options {
        create: options.create && !options.read_only,
        read_only: options.read_only,
        busy_timeout_s: options.timeout_s,
        ..Default::default()
    };
    let path = Path::new(path).to_path_buf();
    // SQLite blocks its thread, for up to `timeout_s` while another process holds the lock.
    let opened = tokio::task::spawn_blocking(move || SqliteStore::open(&path, settings)).await;
    Ok(Arc::new(opened??))
}

async fn open_cassandra(
    url: &str,
    options: &OpenOptions,
    refuse: impl Fn(&str) -> ArchiveError,
) -> Result<Arc<dyn Store>> {
    let settings = chronotile_cassandra::settings(url).map_err(|reason| refuse(&reason))?;
    let OpenOptions { create, read_only, .. } = *options;
    Ok(Arc::new(CassandraStore::open(settings, chronotile_cassandra::Options { create, read_only }).await?))
}
