//! Requests of this engine: consistency levels and timeouts, statements on tables that nodes may not know yet, results of
//! transactions.

use std::time::{Duration, Instant};

use chronotile_cql::scylla::response::query_result::QueryResult;
use chronotile_cql::scylla::statement::prepared::PreparedStatement;
use chronotile_cql::scylla::value::{CqlValue, Row};
use chronotile_cql::{Call, CqlError, Session};

use crate::failure::malformed;

/// Pause before a request is retried because a node does not know a table yet.
pub(crate) const TABLE_PAUSE: Duration = Duration::from_millis(100);
/// Minimum timeout of a request even past the deadline: it finds out the outcome of an earlier one.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// Prepares a statement on a table that every archive has. Retries, since the connected nodes may have been down or too busy
/// to receive the table's creation.
pub(crate) async fn prepared(
    session: &Session,
    cql: &str,
    repeatable: bool,
) -> std::result::Result<PreparedStatement, CqlError> {
    let deadline = Instant::now() + session.settings().timeout;
    loop {
        match session.prepare(cql, repeatable).await {
            Err(CqlError::NoTable { reason }) if Instant::now() > deadline => {
                return Err(unknown_table(&reason, "archive"));
            }
            Err(CqlError::NoTable { .. }) => tokio::time::sleep(TABLE_PAUSE).await,
            result => return result,
        }
    }
}

/// The error when nodes still do not know a table of `owner`.
pub(crate) fn unknown_table(reason: &str, owner: &str) -> CqlError {
    let reason = format!("{reason}, although its {owner} does: a node that was down has not received the change yet");
    CqlError::ReplicaFailed { operation: "request", failed: 1, reason }
}

/// A majority, whatever levels the user chose for rows: every client must see the same catalog.
pub(crate) fn quorum_call(session: &Session) -> Call {
    use chronotile_cql::scylla::statement::Consistency;
    let settings = session.settings();
    let consistency = if settings.local_serial { Consistency::LocalQuorum } else { Consistency::Quorum };
    Call { consistency, timeout: settings.timeout, instead: None }
}

/// A majority. If a keyspace has more replicas than nodes, as while a cluster grows, the serial level instead: a majority of the
/// nodes, by which transactions are decided.
pub(crate) fn quorum_or_serial(session: &Session) -> Call {
    Call { instead: Some(session.serial_read()), ..quorum_call(session) }
}

/// A majority or, if too few replicas are alive, the level at which rows are read. A reader at a lower level has accepted that it
/// may miss recent writes, so its catalog reads need not fail. Its changes are still decided by a majority.
pub(crate) fn quorum_or(session: &Session, rows: chronotile_cql::scylla::statement::Consistency) -> Call {
    Call { instead: Some(rows), ..quorum_call(session) }
}

/// Like [`quorum_call`], for one of several requests that share a deadline.
pub(crate) fn until(session: &Session, deadline: Instant) -> Call {
    let left = deadline.saturating_duration_since(Instant::now());
    Call { timeout: left.max(LAST_WAIT), ..quorum_call(session) }
}

/// Whether a lightweight transaction was applied: the first column of its result.
pub(crate) fn applied(result: QueryResult) -> std::result::Result<bool, CqlError> {
    let rows = result.into_rows_result().map_err(malformed)?;
    let row = rows.first_row::<Row>().map_err(malformed)?;
    match row.columns.first() {
        Some(Some(CqlValue::Boolean(applied))) => Ok(*applied),
        other => Err(malformed(format!("a transaction answered {other:?}"))),
    }
}
