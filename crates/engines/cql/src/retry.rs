//! Which failures the driver answers by asking another node at once.

use scylla::errors::{DbError, RequestAttemptError, WriteType};
use scylla::policies::retry::{RequestInfo, RetryDecision, RetryPolicy, RetrySession};

use crate::error::missing_table;

/// Other nodes asked at once; after that the caller's own waiting and repeating begins. For a table that one node does not
/// know all are asked: those that were away are the exception.
const NEXT_MAX: u32 = 2;

/// Asks another node where the failure may be this node's alone, and never twice what may not be done twice.
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
            // The node did not try, unless the request was conditional: such a one finds replicas missing halfway, too.
            DbError::Unavailable { .. } => repeatable,
            DbError::IsBootstrapping => true,
            // A node that was away learns of new tables after it serves again.
            DbError::Invalid => missing_table(text),
            DbError::WriteTimeout { write_type, .. } => repeatable && *write_type != WriteType::Cas,
            DbError::ReadTimeout { .. } | DbError::ServerError | DbError::TruncateError => repeatable,
            _ => false,
        },
        _ => false,
    }
}
