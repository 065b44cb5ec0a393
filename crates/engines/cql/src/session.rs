//! A session with a cluster: connections, prepared statements, limited concurrency, and retries until a deadline.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use scylla::client::execution_profile::ExecutionProfile;
use scylla::client::session_builder::SessionBuilder;
use scylla::cluster::Node;
use scylla::policies::load_balancing::{
    DefaultPolicy, LoadBalancingPolicy, NodeIdentifier, SingleTargetLoadBalancingPolicy,
};
use scylla::policies::speculative_execution::{SimpleSpeculativeExecutionPolicy, SpeculativeExecutionPolicy};
use scylla::policies::timestamp_generator::MonotonicTimestampGenerator;
use scylla::response::query_result::QueryResult;
use scylla::response::{PagingState, PagingStateResponse};
use scylla::serialize::batch::BatchValues;
use scylla::serialize::row::SerializeRow;
use scylla::statement::batch::Batch;
use scylla::statement::prepared::PreparedStatement;
use scylla::statement::{Consistency, SerialConsistency};
use scylla::value::CqlValue;
use tokio::sync::Semaphore;

use crate::attempts::Attempts;
use crate::error::{Applied, CqlError, Result};
use crate::retry::NextNode;
use crate::settings::Settings;
use crate::tls::client_config;

/// Longest wait for one response; a repeatable request is then sent again.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// First pause before a retry; it doubles each time, up to [`PAUSE_MAX`].
const PAUSE_FIRST: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Keepalive interval of a connection, and how long it may stay silent. After both, its requests fail: for that long, a stalled
/// node blocks requests that must not be sent twice.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(1);
const KEEPALIVE_WAIT: Duration = Duration::from_secs(3);
/// Least time for a change of the schema, whatever the timeout of other requests.
const SCHEMA_WAIT: Duration = Duration::from_secs(30);
/// How long a change of the schema waits for every node that is up, and the pause between looks after that.
const AGREEMENT_GRACE: Duration = Duration::from_secs(5);
const AGREEMENT_PAUSE: Duration = Duration::from_millis(50);
/// How long to wait for a node to report its schema version.
const VERSION_WAIT: Duration = Duration::from_secs(1);

/// Consistency and timeout of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// Replicas that must answer.
    pub consistency: Consistency,
    /// Total time for the request, retries included.
    pub timeout: Duration,
    /// For reads: the level to use if fewer replicas are alive than `consistency` needs. `None` to fail instead.
    pub instead: Option<Consistency>,
}

impl Call {
    /// The same request at the lower level, for use when too few replicas are alive.
    fn lowered(&self, error: &CqlError) -> Option<Self> {
        let CqlError::Unavailable { .. } = error else { return None };
        let consistency = self.instead.filter(|level| *level != self.consistency)?;
        Some(Self { consistency, instead: None, ..*self })
    }
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
            .keepalive_interval(KEEPALIVE_EVERY)
            .keepalive_timeout(KEEPALIVE_WAIT)
            .connection_timeout(Duration::from_secs(5))
            // `agree_on_schema` waits instead: after some seconds a majority of the nodes is enough.
            .auto_await_schema_agreement(false)
            .schema_agreement_interval(AGREEMENT_PAUSE)
            .driver_config_reporting(false)
            // A stalled node may execute a request long after it was retried: with the client's timestamp, it then overwrites
            // nothing newer.
            .timestamp_generator(Arc::new(MonotonicTimestampGenerator::new().without_warnings()));
        if let Some(credentials) = &settings.credentials {
            builder = builder.user(&credentials.user, &credentials.password);
        }
        if let Some(tls) = &settings.tls {
            if let Some(missing) = tls.files().find(|file| !file.is_file()) {
                return Err(CqlError::TlsFiles {
                    reason: format!("{} is not a file", missing.display()),
                    source: None,
                });
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

    /// The driver's session, for calls that this type does not wrap.
    pub fn driver(&self) -> &scylla::client::session::Session {
        &self.inner
    }

    /// Prepares a statement once; `repeatable` ones may be sent twice without changing what they do.
    pub async fn prepare(&self, cql: &str, repeatable: bool) -> Result<PreparedStatement> {
        let known = || self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(statement) = known().get(cql) {
            return Ok(statement.clone());
        }
        let mut statement = self.prepare_again(cql).await?;
        statement.set_is_idempotent(repeatable);
        // Statements of archives name their columns, which are never retyped. `Tables` turns the cache off.
        statement.set_use_cached_result_metadata(true);
        // The lock is not held while a statement is prepared. Two tasks may prepare the same one: either result is
        // valid.
        known().insert(cql.into(), statement.clone());
        Ok(statement)
    }

    /// Prepares a statement without caching it, for text that may not recur. Each result carries its column metadata, so that results
    /// of a table that was altered meanwhile are not misread.
    pub async fn prepare_again(&self, cql: &str) -> Result<PreparedStatement> {
        let call = Call { consistency: Consistency::One, timeout: self.settings.timeout, instead: None };
        self.repeat(&call, true, &Attempts::default(), || async { Ok(self.inner.prepare(cql).await?) }).await
    }

    /// Removes cached statements that name a dropped table.
    pub fn forget(&self, table: &str) {
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner).retain(|cql, _| !cql.contains(table));
    }

    /// Runs a statement and returns its whole result, which must be small. A statement that is not repeatable is retried only if it
    /// certainly had no effect.
    pub async fn execute(
        &self,
        statement: &PreparedStatement,
        values: impl SerializeRow + Sync,
        call: &Call,
    ) -> Result<QueryResult> {
        self.execute_as(statement, values, call, statement.get_is_idempotent()).await
    }

    /// Runs a conditional statement and retries it if its outcome is unknown: for callers to whom it does not matter which of their
    /// attempts took effect, and who read the row afterwards instead of the result. Never sends it to two nodes at once, since they
    /// would contend.
    pub async fn execute_retrying(
        &self,
        statement: &PreparedStatement,
        values: impl SerializeRow + Sync,
        call: &Call,
    ) -> Result<QueryResult> {
        self.execute_as(statement, values, call, true).await
    }

    async fn execute_as(
        &self,
        statement: &PreparedStatement,
        values: impl SerializeRow + Sync,
        call: &Call,
        repeatable: bool,
    ) -> Result<QueryResult> {
        let mut statement = with_call(statement, call);
        let attempts = Arc::new(Attempts::at(statement.get_statement()));
        statement.set_history_listener(attempts.clone());
        let send = || async {
            let failed = match self.inner.execute_unpaged(&statement, &values).await {
                Ok(found) => return Ok(found),
                Err(error) => CqlError::from(error),
            };
            // The driver may report last that it did not reach another node, which hides that replicas are missing.
            let reported = attempts.of_replicas(&failed);
            let Some(lowered) = call.lowered(reported.as_ref().unwrap_or(&failed)) else { return Err(failed) };
            Ok(self.inner.execute_unpaged(&with_call(&statement, &lowered), &values).await?)
        };
        self.repeat(call, repeatable, &attempts, send).await
    }

    /// Runs an unprepared statement once: it is retried only if it certainly had no effect.
    pub async fn run(&self, cql: &str, call: &Call) -> Result<QueryResult> {
        let mut statement = scylla::statement::unprepared::Statement::new(cql);
        statement.set_consistency(call.consistency);
        statement.set_serial_consistency(Some(self.serial()));
        statement.set_request_timeout(Some(call.timeout));
        let attempts = Arc::new(Attempts::at(cql));
        statement.set_history_listener(attempts.clone());
        let send = || async { Ok(self.inner.query_unpaged(statement.clone(), &[]).await?) };
        self.repeat(call, false, &attempts, send).await
    }

    /// The load-balancing policy, for statements that extend it.
    pub fn routing(&self) -> Arc<dyn LoadBalancingPolicy> {
        routing(&self.settings)
    }

    /// Runs a statement and returns one page of its result, with the start of the next.
    pub async fn page(
        &self,
        statement: &PreparedStatement,
        values: impl SerializeRow + Sync,
        from: PagingState,
        call: &Call,
    ) -> Result<(QueryResult, PagingStateResponse)> {
        let mut statement = with_call(statement, call);
        let attempts = Arc::new(Attempts::at(statement.get_statement()));
        statement.set_history_listener(attempts.clone());
        let send = || async {
            let failed = match self.inner.execute_single_page(&statement, &values, from.clone()).await {
                Ok(found) => return Ok(found),
                Err(error) => CqlError::from(error),
            };
            let reported = attempts.of_replicas(&failed);
            let Some(lowered) = call.lowered(reported.as_ref().unwrap_or(&failed)) else { return Err(failed) };
            let statement = with_call(&statement, &lowered);
            Ok(self.inner.execute_single_page(&statement, &values, from.clone()).await?)
        };
        self.repeat(call, true, &attempts, send).await
    }

    /// Runs a batch of unconditional writes. A batch that is not marked idempotent is retried only if it certainly had no effect.
    pub async fn batch(&self, batch: &Batch, values: impl BatchValues + Sync, call: &Call) -> Result<QueryResult> {
        let (batch, attempts) = self.batch_with_call(batch, call);
        let send = || async { Ok(self.inner.batch(&batch, &values).await?) };
        self.repeat(call, batch.get_is_idempotent(), &attempts, send).await
    }

    /// Runs a batch of conditional writes once. Its outcome is unknown also if too few replicas were alive: the coordinator may have
    /// found out after the others had agreed.
    pub async fn transact(&self, batch: &Batch, values: impl BatchValues + Sync, call: &Call) -> Result<QueryResult> {
        let (batch, attempts) = self.batch_with_call(batch, call);
        let send = || async {
            self.inner.batch(&batch, &values).await.map_err(|error| match CqlError::from(error) {
                last @ CqlError::Unavailable { .. } => CqlError::InDoubt { last: Box::new(last) },
                other => other,
            })
        };
        self.repeat(call, false, &attempts, send).await
    }

    fn batch_with_call(&self, batch: &Batch, call: &Call) -> (Batch, Arc<Attempts>) {
        let (mut batch, attempts) = (batch.clone(), Arc::<Attempts>::default());
        batch.set_consistency(call.consistency);
        batch.set_serial_consistency(Some(self.serial()));
        batch.set_request_timeout(Some(call.timeout.min(ANSWER_WAIT)));
        batch.set_history_listener(attempts.clone());
        (batch, attempts)
    }

    /// Changes the schema and waits until all nodes that are up know the change. The statement is retried if its outcome is unknown,
    /// so it must be idempotent.
    pub async fn change_schema(&self, cql: &str) -> Result<()> {
        let timeout = self.settings.timeout.max(SCHEMA_WAIT);
        let call = Call { consistency: self.settings.write_consistency, timeout, instead: None };
        let mut statement = scylla::statement::unprepared::Statement::new(cql);
        statement.set_request_timeout(Some(timeout));
        let attempts = Arc::new(Attempts::at(cql));
        statement.set_history_listener(attempts.clone());
        let send = || async { Ok(self.inner.query_unpaged(statement.clone(), &[]).await?) };
        self.repeat(&call, true, &attempts, send).await?;
        // The change is made: no later failure may claim that it is not.
        self.agree_on_schema().await.map_err(|error| attempts.conclude(error))?;
        // Routing needs to know new keyspaces and tables.
        let refresh = || async {
            let refreshed = self.inner.refresh_metadata().await;
            refreshed.map_err(|e| CqlError::Broken { reason: e.to_string(), sent: true })
        };
        self.repeat(&call, true, &attempts, refresh).await
    }

    /// Waits until all nodes that are up, and a majority of all nodes, have the same schema. A node that was down may take a minute to
    /// catch up; after some seconds a majority is enough.
    pub async fn agree_on_schema(&self) -> Result<()> {
        let timeout = self.settings.timeout.max(SCHEMA_WAIT);
        let call = Call { consistency: Consistency::One, timeout, instead: None };
        let attempts = Attempts::default();
        let all = || async { Ok(self.inner.await_schema_agreement().await.map(|_| ())?) };
        let all = tokio::time::timeout(AGREEMENT_GRACE, self.repeat(&call, true, &attempts, all));
        // The end of the time is no error: the majority below decides.
        if let Ok(Err(error)) = all.await {
            return Err(error);
        }
        // If few nodes are up, a change that only they know would be missed once the others return.
        let deadline = Instant::now() + timeout;
        while !self.most_have_one_schema(&call).await? {
            if Instant::now() > deadline {
                let reason = "the nodes disagree on the schema".to_owned();
                let last = Some(Box::new(CqlError::Broken { reason, sent: true }));
                return Err(CqlError::GaveUp { timeout, last });
            }
            tokio::time::sleep(AGREEMENT_PAUSE).await;
        }
        Ok(())
    }

    /// Whether more than half of all nodes have the same schema version: as each node reports for itself or, for nodes that do not
    /// answer, as their peers report, about a second late.
    async fn most_have_one_schema(&self, call: &Call) -> Result<bool> {
        let unreadable = |error: &dyn std::fmt::Display| CqlError::Protocol { reason: error.to_string() };
        let state = self.inner.get_cluster_state();
        let nodes = state.get_nodes_info();
        let asked = nodes.iter().filter(|node| node.is_connected()).map(|node| self.schema_version_of(node));
        // Two nodes may report a third: count each node once.
        let mut versions: Vec<(CqlValue, CqlValue)> =
            futures::future::join_all(asked).await.into_iter().flatten().collect();
        if most_agree(&versions, nodes.len()) {
            return Ok(true);
        }
        for table in ["local", "peers"] {
            let statement = self.prepare(&format!("SELECT host_id, schema_version FROM system.{table}"), true).await?;
            let found = self.execute(&statement, (), call).await?.into_rows_result().map_err(|e| unreadable(&e))?;
            for row in found.rows::<(Option<CqlValue>, Option<CqlValue>)>().map_err(|e| unreadable(&e))? {
                if let (Some(node), Some(version)) = row.map_err(|e| unreadable(&e))?
                    && versions.iter().all(|(known, _)| *known != node)
                {
                    versions.push((node, version));
                }
            }
        }
        // Peers may be listed that the driver does not know yet: they count as nodes.
        Ok(most_agree(&versions, nodes.len().max(versions.len())))
    }

    /// A node's id and schema version; `None` if it does not answer in time.
    async fn schema_version_of(&self, node: &Arc<Node>) -> Option<(CqlValue, CqlValue)> {
        let mut statement = scylla::statement::unprepared::Statement::new(
            "SELECT schema_version FROM system.local WHERE key = 'local'",
        );
        statement.set_consistency(Consistency::One);
        statement.set_request_timeout(Some(VERSION_WAIT));
        // The table `system.local` differs on every node, so only this node can answer.
        let there = SingleTargetLoadBalancingPolicy::new(NodeIdentifier::Node(node.clone()), None);
        statement.set_load_balancing_policy(Some(there));
        let found = self.inner.query_unpaged(statement, &[]).await.ok()?.into_rows_result().ok()?;
        let (version,) = found.single_row::<(CqlValue,)>().ok()?;
        Some((CqlValue::Uuid(node.host_id), version))
    }

    /// The serial consistency level of conditional writes.
    pub fn serial(&self) -> SerialConsistency {
        if self.settings.local_serial { SerialConsistency::LocalSerial } else { SerialConsistency::Serial }
    }

    /// The same level for reads, which then see every conditional write decided before.
    pub fn serial_read(&self) -> Consistency {
        if self.settings.local_serial { Consistency::LocalSerial } else { Consistency::Serial }
    }

    /// Sends a request and retries it after transient failures until it succeeds or times out. Waiting for a slot applies backpressure
    /// when the cluster is slow.
    async fn repeat<T, F: Future<Output = Result<T>>>(
        &self,
        call: &Call,
        repeatable: bool,
        attempts: &Attempts,
        send: impl Fn() -> F,
    ) -> Result<T> {
        let deadline = Instant::now() + call.timeout;
        let mut pause = PAUSE_FIRST;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            // The semaphore is never closed; without a slot in time nothing was sent.
            let error = match tokio::time::timeout(left, self.slots.acquire()).await {
                Ok(Ok(_slot)) => {
                    // The wait for the slot has used up part of the time.
                    let left = deadline.saturating_duration_since(Instant::now());
                    match tokio::time::timeout(left, send()).await {
                        Ok(Ok(value)) => return Ok(value),
                        Ok(Err(error)) => error,
                        Err(_) => CqlError::GaveUp { timeout: call.timeout, last: None },
                    }
                }
                _ => CqlError::Broken { reason: "every request slot stayed in use".to_owned(), sent: false },
            };
            // The slot is free again from here on: a request that pauses blocks no other.
            let had_no_effect = error.applied() == Applied::No && !attempts.may_have_applied();
            let again = error.passes() && (repeatable || had_no_effect);
            if !again || Instant::now() + pause >= deadline {
                return Err(attempts.conclude(error));
            }
            tracing::info!(target: "chronotile::cql", "repeating a request that failed: {error}");
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }
}

/// Whether more than half of `nodes` nodes have the same schema version.
fn most_agree(versions: &[(CqlValue, CqlValue)], nodes: usize) -> bool {
    let with = |version: &CqlValue| versions.iter().filter(|(_, other)| other == version).count();
    versions.iter().any(|(_, version)| 2 * with(version) > nodes)
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

#[cfg(test)]
mod tests {
    use super::*;

    const MISSING: CqlError = CqlError::Unavailable { consistency: Consistency::Quorum, required: 2, alive: 1 };

    fn call(instead: Option<Consistency>) -> Call {
        Call { consistency: Consistency::Quorum, timeout: Duration::from_secs(1), instead }
    }

    #[test]
    fn a_lower_level_is_asked_for_only_where_replicas_are_missing() {
        let lowered = call(Some(Consistency::One)).lowered(&MISSING);
        assert_eq!(lowered, Some(Call { consistency: Consistency::One, ..call(None) }));
        let late = CqlError::TimedOut { operation: "read", consistency: Consistency::Quorum, required: 2, received: 1 };
        assert_eq!(call(Some(Consistency::One)).lowered(&late), None);
        assert_eq!(call(Some(Consistency::Quorum)).lowered(&MISSING), None, "the same level would fail again");
        assert_eq!(call(None).lowered(&MISSING), None);
    }

    #[test]
    fn more_than_half_of_all_nodes_must_have_one_version() {
        let versions = |found: &[&str]| -> Vec<(CqlValue, CqlValue)> {
            found.iter().enumerate().map(|(n, v)| (CqlValue::BigInt(n as i64), CqlValue::Text((*v).into()))).collect()
        };
        assert!(most_agree(&versions(&["a"]), 1));
        assert!(most_agree(&versions(&["a", "b", "a"]), 3));
        assert!(!most_agree(&versions(&["a"]), 2));
        assert!(!most_agree(&versions(&["a", "a"]), 4));
        assert!(!most_agree(&versions(&["a", "b", "c"]), 3));
        assert!(!most_agree(&[], 0));
    }
}
