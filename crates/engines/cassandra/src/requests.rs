//! How this engine asks: consistency and time of a request, statements that nodes may not know yet, answers of transactions.

use std::time::{Duration, Instant};

use chronotile_cql::scylla::response::query_result::QueryResult;
use chronotile_cql::scylla::statement::prepared::PreparedStatement;
use chronotile_cql::scylla::value::{CqlValue, Row};
use chronotile_cql::{Call, CqlError, Session};

use crate::failure::malformed;

/// Pause before a node that does not know a table is asked again.
pub(crate) const TABLE_PAUSE: Duration = Duration::from_millis(100);
/// Time for a request although the deadline has come: it tells what became of an earlier one.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// Prepares a statement about a table that every archive has. The nodes that there are connections to may have been away
/// when it was made, or too busy to hear of it.
pub(crate) async fn prepared(
    session: &Session,
    cql: &str,
    repeatable: bool,
) -> std::result::Result<PreparedStatement, CqlError> {
    let deadline = Instant::now() + session.settings().timeout;
    loop {
        match session.prepare(cql, repeatable).await {
            Err(CqlError::NoTable { reason }) if Instant::now() > deadline => return Err(lagging(&reason, "archive")),
            Err(CqlError::NoTable { .. }) => tokio::time::sleep(TABLE_PAUSE).await,
            result => return result,
        }
    }
}

/// The error where nodes still do not know a table that `owner` has.
pub(crate) fn lagging(reason: &str, owner: &str) -> CqlError {
    let reason = format!("{reason}, although its {owner} does: a node was away and has not learnt of it yet");
    CqlError::ReplicaFailed { operation: "request", failed: 1, reason }
}

/// A majority, whatever level the user reads and writes rows with: the catalog must be seen by all.
pub(crate) fn quorum_call(session: &Session) -> Call {
    use chronotile_cql::scylla::statement::Consistency;
    let settings = session.settings();
    let consistency = if settings.local_serial { Consistency::LocalQuorum } else { Consistency::Quorum };
    Call { consistency, timeout: settings.timeout, instead: None }
}

/// A majority; where a keyspace has more copies than there are nodes, as while a cluster grows, a majority of the nodes, which
/// is what transactions are decided by.
pub(crate) fn certain(session: &Session) -> Call {
    Call { instead: Some(session.serial_read()), ..quorum_call(session) }
}

/// A majority; where so many replicas are not alive, as many as rows are read from. Such a reader has been told that it may
/// miss what one replica lacks, and is not to be refused for more than it asked for. Whatever it then changes is decided by
/// a majority, as ever.
pub(crate) fn seen(session: &Session, rows: chronotile_cql::scylla::statement::Consistency) -> Call {
    Call { instead: Some(rows), ..quorum_call(session) }
}

/// As [`quorum_call`], for one of several requests that together have a deadline.
pub(crate) fn until(session: &Session, deadline: Instant) -> Call {
    let left = deadline.saturating_duration_since(Instant::now());
    Call { timeout: left.max(LAST_WAIT), ..quorum_call(session) }
}

/// The first column of the answer to a lightweight transaction.
pub(crate) fn applied(result: QueryResult) -> std::result::Result<bool, CqlError> {
    let rows = result.into_rows_result().map_err(malformed)?;
    let row = rows.first_row::<Row>().map_err(malformed)?;
    match row.columns.first() {
        Some(Some(CqlValue::Boolean(applied))) => Ok(*applied),
        other => Err(malformed(format!("a transaction answered {other:?}"))),
    }
}
