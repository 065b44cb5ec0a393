//! A session with a cluster: connections, prepared statements, bounded work, and repetition until a deadline.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use scylla::client::execution_profile::ExecutionProfile;
use scylla::client::session_builder::SessionBuilder;
use scylla::policies::load_balancing::{DefaultPolicy, LoadBalancingPolicy};
use scylla::policies::speculative_execution::{SimpleSpeculativeExecutionPolicy, SpeculativeExecutionPolicy};
use scylla::response::query_result::QueryResult;
use scylla::response::{PagingState, PagingStateResponse};
use scylla::serialize::batch::BatchValues;
use scylla::serialize::row::SerializeRow;
use scylla::statement::batch::Batch;
use scylla::statement::prepared::PreparedStatement;
use scylla::statement::{Consistency, SerialConsistency};
use tokio::sync::Semaphore;

use crate::error::{CqlError, Landed, Result};
use crate::retry::NextNode;
use crate::settings::Settings;
use crate::tls::client_config;

/// Longest wait for one answer; a request that may be repeated is then sent again.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// First pause before a repetition; it doubles each time, up to [`PAUSE_MAX`].
const PAUSE_FIRST: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How long a silent connection is trusted.
const KEEPALIVE: Duration = Duration::from_secs(3);

/// How one request is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Replicas that must answer.
    pub consistency: Consistency,
    /// When to give up, repetitions included.
    pub timeout: Duration,
}

/// An open session. Every method may be called from many tasks.
pub struct Session {
    inner: scylla::client::session::Session,
    settings: Settings,
    slots: Semaphore,
    prepared: Mutex<HashMap<Box<str>, PreparedStatement>>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("contact_points", &self.settings.contact_points).finish_non_exhaustive()
    }
}

impl Session {
    /// Connects to the first contact point that answers, and from there to the cluster.
    ///
    /// # Errors
    /// [`CqlError::Connect`], [`CqlError::Login`], [`CqlError::Certificate`] and [`CqlError::TlsFiles`].
    pub async fn connect(settings: Settings) -> Result<Self> {
        let mut builder = SessionBuilder::new()
            .known_nodes(&settings.contact_points)
            .default_execution_profile_handle(profile(&settings).into_handle())
            .fetch_full_schema_metadata(false)
            .keepalive_interval(KEEPALIVE)
            .keepalive_timeout(KEEPALIVE)
            .connection_timeout(Duration::from_secs(5))
            .auto_await_schema_agreement(false)
            .driver_config_reporting(false);
        if let Some(credentials) = &settings.credentials {
            builder = builder.user(&credentials.user, &credentials.password);
        }
        if let Some(tls) = &settings.tls {
            if let Some(missing) = tls.files().find(|file| !file.is_file()) {
                return Err(CqlError::TlsFiles { reason: format!("{} is not a file", missing.display()) });
            }
            builder = builder.tls_context(Some(client_config(tls)?));
        }
        let user = settings.credentials.as_ref().map(|credentials| credentials.user.as_str());
        let inner =
            builder.build().await.map_err(|error| CqlError::of_new_session(error, &settings.contact_points, user))?;
        let slots = Semaphore::new(settings.in_flight);
        Ok(Self { inner, settings, slots, prepared: Mutex::default() })
    }

    /// What it was opened with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The driver's session, for what this one does not wrap.
    pub fn driver(&self) -> &scylla::client::session::Session {
        &self.inner
    }

    /// Prepares a statement once; `repeatable` ones may be sent twice without changing what they do.
    pub async fn prepare(&self, cql: &str, repeatable: bool) -> Result<PreparedStatement> {
        let known = || self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(statement) = known().get(cql) {
            return Ok(statement.clone());
        }
        let mut statement = self.prepare_anew(cql).await?;
        statement.set_is_idempotent(repeatable);
        statement.set_use_cached_result_metadata(true);
        known().insert(cql.into(), statement.clone());
        Ok(statement)
    }

    /// Prepares a statement without keeping it: for text that may never come again. Each answer describes its columns
    /// itself, so that one of a table that was altered meanwhile is not misread.
    pub async fn prepare_anew(&self, cql: &str) -> Result<PreparedStatement> {
        let call = Call { consistency: Consistency::One, timeout: self.settings.timeout };
        self.repeat(&call, true, || async { Ok(self.inner.prepare(cql).await?) }).await
    }

    /// Forgets prepared statements that name a table which is gone.
    pub fn forget(&self, table: &str) {
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner).retain(|cql, _| !cql.contains(table));
    }

    /// Runs a statement and returns its whole answer, which must be small.
    pub async fn execute(
        &self,
        statement: &PreparedStatement,
        values: impl SerializeRow + Sync,
        call: &Call,
    ) -> Result<QueryResult> {
        let statement = with_call(statement, call);
        let repeatable = statement.get_is_idempotent();
        self.repeat(call, repeatable, || async { Ok(self.inner.execute_unpaged(&statement, &values).await?) }).await
    }

    /// Runs a statement that is not prepared, once: it is sent again only where it surely had no effect.
    pub async fn run(&self, cql: &str, call: &Call) -> Result<QueryResult> {
        let mut statement = scylla::statement::unprepared::Statement::new(cql);
        statement.set_consistency(call.consistency);
        statement.set_serial_consistency(Some(self.serial()));
        statement.set_request_timeout(Some(call.timeout));
        self.repeat(call, false, || async { Ok(self.inner.query_unpaged(statement.clone(), &[]).await?) }).await
    }

    /// How requests are routed, for statements that want more than that.
    pub fn routing(&self) -> Arc<dyn LoadBalancingPolicy> {
        routing(&self.settings)
    }

    /// Runs a statement and returns one page of its answer, with where the next begins.
    pub async fn page(
        &self,
        statement: &PreparedStatement,
        values: impl SerializeRow + Sync,
        from: PagingState,
        call: &Call,
    ) -> Result<(QueryResult, PagingStateResponse)> {
        let statement = with_call(statement, call);
        let send = || async { Ok(self.inner.execute_single_page(&statement, &values, from.clone()).await?) };
        self.repeat(call, true, send).await
    }

    /// Runs a batch. One that is not marked idempotent is sent again only where it surely had no effect.
    pub async fn batch(&self, batch: &Batch, values: impl BatchValues + Sync, call: &Call) -> Result<QueryResult> {
        let mut batch = batch.clone();
        batch.set_consistency(call.consistency);
        batch.set_serial_consistency(Some(self.serial()));
        batch.set_request_timeout(Some(call.timeout.min(ANSWER_WAIT)));
        let repeatable = batch.get_is_idempotent();
        self.repeat(call, repeatable, || async { Ok(self.inner.batch(&batch, &values).await?) }).await
    }

    /// Changes the schema and waits until all nodes that are up know the change.
    pub async fn change_schema(&self, cql: &str) -> Result<()> {
        let mut statement = scylla::statement::unprepared::Statement::new(cql);
        statement.set_request_timeout(Some(self.settings.timeout.max(Duration::from_secs(30))));
        self.inner.query_unpaged(statement, &[]).await?;
        self.agree_on_schema().await?;
        // Routing needs to know new keyspaces and tables.
        self.inner.refresh_metadata().await.map_err(|e| CqlError::Broken { reason: e.to_string(), sent: true })
    }

    /// Waits until all nodes that are up have the same schema.
    pub async fn agree_on_schema(&self) -> Result<()> {
        self.inner.await_schema_agreement().await?;
        Ok(())
    }

    /// Level under which conditional writes are decided.
    pub fn serial(&self) -> SerialConsistency {
        if self.settings.local_serial { SerialConsistency::LocalSerial } else { SerialConsistency::Serial }
    }

    /// The same as a level of reads, which see every conditional write that was decided before.
    pub fn serial_read(&self) -> Consistency {
        if self.settings.local_serial { Consistency::LocalSerial } else { Consistency::Serial }
    }

    /// Sends, and sends again after failures that pass, until it succeeds or the time is up. Waiting for a slot is what
    /// slows callers down when the cluster is slow.
    async fn repeat<T, F: Future<Output = Result<T>>>(
        &self,
        call: &Call,
        repeatable: bool,
        send: impl Fn() -> F,
    ) -> Result<T> {
        let deadline = Instant::now() + call.timeout;
        let gave_up = |last| CqlError::GaveUp { timeout: call.timeout, last };
        let mut pause = PAUSE_FIRST;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let slot = tokio::time::timeout(left, self.slots.acquire()).await;
            // The semaphore is never closed; without a slot in time nothing was sent.
            let Ok(Ok(slot)) = slot else {
                let reason = "every request slot stayed in use".to_owned();
                return Err(gave_up(Some(Box::new(CqlError::Broken { reason, sent: false }))));
            };
            let result = send().await;
            drop(slot);
            let Err(error) = result else { return result };
            let again = error.passes() && (repeatable || error.landed() == Landed::No);
            if !again || Instant::now() + pause >= deadline {
                return Err(error);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}

fn with_call(statement: &PreparedStatement, call: &Call) -> PreparedStatement {
    let mut statement = statement.clone();
    statement.set_consistency(call.consistency);
    statement.set_request_timeout(Some(call.timeout.min(ANSWER_WAIT)));
    statement
}

fn routing(settings: &Settings) -> Arc<dyn LoadBalancingPolicy> {
    let policy = DefaultPolicy::builder().token_aware(true);
    let policy = match (&settings.data_centre, &settings.rack) {
        (Some(dc), Some(rack)) => policy.prefer_datacenter_and_rack(dc.clone(), rack.clone()),
        (Some(dc), None) => policy.prefer_datacenter(dc.clone()),
        _ => policy,
    };
    policy.permit_dc_failover(settings.data_centre_failover).build()
}

fn profile(settings: &Settings) -> ExecutionProfile {
    let speculative = settings.speculative.map(|interval| {
        Arc::new(SimpleSpeculativeExecutionPolicy { max_retry_count: 2, retry_interval: interval })
            as Arc<dyn SpeculativeExecutionPolicy>
    });
    let serial = if settings.local_serial { SerialConsistency::LocalSerial } else { SerialConsistency::Serial };
    ExecutionProfile::builder()
        .consistency(settings.read_consistency)
        .serial_consistency(Some(serial))
        .request_timeout(Some(ANSWER_WAIT))
        .load_balancing_policy(routing(settings))
        .retry_policy(Arc::new(NextNode))
        .speculative_execution_policy(speculative)
        .build()
}
