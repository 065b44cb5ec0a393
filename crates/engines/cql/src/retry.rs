//! The driver's retry policy: which failures it retries at once on another node.

use scylla::errors::{DbError, RequestAttemptError, WriteType};
use scylla::policies::retry::{RequestInfo, RetryDecision, RetryPolicy, RetrySession};

use crate::error::missing_table;

/// Maximum immediate retries on other nodes; then the session's own retries with pauses begin. If a node does not know a table, all
/// nodes are tried: few of them can have missed its creation.
const NEXT_MAX: u32 = 2;

/// Retries on another node if the failure may concern this node alone. Never repeats a request that is not repeatable.
#[derive(Debug)]
pub(crate) struct NextNode;

impl RetryPolicy for NextNode {
    fn new_session(&self) -> Box<dyn RetrySession> {
        Box::new(NextNodeSession { others: 0 })
    }
}

struct NextNodeSession {
    others: u32,
}

impl RetrySession for NextNodeSession {
    fn decide_should_retry(&mut self, request: RequestInfo<'_>) -> RetryDecision {
        let asks_all = matches!(request.error, RequestAttemptError::DbError(DbError::Invalid, _));
        if self.others >= NEXT_MAX && !asks_all || !may_help(request.error, request.is_idempotent) {
            return RetryDecision::DontRetry;
        }
        self.others += 1;
        RetryDecision::RetryNextTarget(None)
    }

    fn reset(&mut self) {
        self.others = 0;
    }
}

fn may_help(error: &RequestAttemptError, repeatable: bool) -> bool {
    match error {
        RequestAttemptError::BrokenConnectionError(_) => repeatable,
        RequestAttemptError::DbError(error, text) => match error {
            // The coordinator sent nothing, unless the request was conditional: that can fail so halfway, too.
            DbError::Unavailable { .. } => repeatable,
            DbError::IsBootstrapping => true,
            // A node that was down serves again before it has received new tables.
            DbError::Invalid => missing_table(text),
            DbError::WriteTimeout { write_type, .. } => repeatable && *write_type != WriteType::Cas,
            DbError::ReadTimeout { .. } | DbError::ServerError | DbError::TruncateError => repeatable,
            _ => false,
        },
        _ => false,
    }
}
