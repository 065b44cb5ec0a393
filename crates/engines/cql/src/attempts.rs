//! Records the outcomes of all attempts at one request, since the driver reports only the last error.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use scylla::errors::{RequestAttemptError, RequestError};
use scylla::observability::history::{AttemptId, HistoryListener, RequestId, SpeculativeId};
use scylla::policies::retry::RetryDecision;

use crate::error::{Applied, CqlError};

/// Counts the attempts that may have had an effect: those sent, except failures that prove the opposite. Keeps the last error that
/// reports replica counts: a failure to reach one more node says less.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    only_reads: bool,
    doubtful: AtomicUsize,
    of_replicas: Mutex<Option<CqlError>>,
}

impl Attempts {
    pub(crate) fn at(cql: &str) -> Self {
        Self { only_reads: only_reads(cql), ..Self::default() }
    }

    /// Whether any attempt may have had an effect.
    pub(crate) fn may_have_applied(&self) -> bool {
        !self.only_reads && self.doubtful.load(Ordering::Acquire) > 0
    }

    /// The error with replica counts, if the request then ended with `last`, which says less.
    pub(crate) fn of_replicas(&self, last: &CqlError) -> Option<CqlError> {
        let reported = self.of_replicas.lock().unwrap_or_else(PoisonError::into_inner).clone();
        reported.filter(|_| last.passes() && !last.names_replicas())
    }

    /// The error to report for a request that ended with `last`.
    pub(crate) fn conclude(&self, last: CqlError) -> CqlError {
        let error = self.of_replicas(&last).unwrap_or(last);
        if self.may_have_applied() && error.applied() == Applied::No {
            return CqlError::InDoubt { last: Box::new(error) };
        }
        error
    }
}

/// Whether a statement changes nothing.
fn only_reads(cql: &str) -> bool {
    cql.trim_start().get(..6).is_some_and(|verb| verb.eq_ignore_ascii_case("SELECT"))
}

impl HistoryListener for Attempts {
    fn log_request_start(&self) -> RequestId {
        RequestId(0)
    }

    fn log_request_success(&self, _: RequestId) {}

    fn log_request_error(&self, _: RequestId, _: &RequestError) {}

    fn log_new_speculative_fiber(&self, _: RequestId) -> SpeculativeId {
        SpeculativeId(0)
    }

    fn log_attempt_start(&self, _: RequestId, _: Option<SpeculativeId>, _: SocketAddr) -> AttemptId {
        // An attempt counts as doubtful from its start, because an abandoned attempt never reports its end.
        AttemptId(self.doubtful.fetch_add(1, Ordering::AcqRel))
    }

    // An attempt that succeeds stays counted, which has no effect: its request ends without an error to interpret.
    fn log_attempt_success(&self, _: AttemptId) {}

    fn log_attempt_error(&self, _: AttemptId, error: &RequestAttemptError, _: &RetryDecision) {
        let error = CqlError::from(error.clone());
        if error.applied() == Applied::No {
            self.doubtful.fetch_sub(1, Ordering::AcqRel);
        }
        if error.names_replicas() {
            *self.of_replicas.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use scylla::errors::DbError;
    use scylla::statement::Consistency;

    const UNAVAILABLE: DbError = DbError::Unavailable { consistency: Consistency::Quorum, required: 2, alive: 1 };

    fn attempt(attempts: &Attempts, error: Option<DbError>) {
        let id = attempts.log_attempt_start(attempts.log_request_start(), None, SocketAddr::from(([127, 0, 0, 1], 9)));
        if let Some(error) = error {
            let error = RequestAttemptError::DbError(error, String::new());
            attempts.log_attempt_error(id, &error, &RetryDecision::DontRetry);
        }
    }

    fn refused() -> CqlError {
        CqlError::Broken { reason: "connection refused".to_owned(), sent: false }
    }

    #[test]
    fn a_refusal_after_an_attempt_of_unknown_fate_does_not_prove_that_nothing_landed() {
        let attempts = Attempts::at("INSERT");
        attempt(&attempts, Some(UNAVAILABLE));
        assert_eq!(attempts.conclude(refused()).applied(), Applied::No);
        attempt(&attempts, None);
        attempt(&attempts, Some(UNAVAILABLE));
        assert_eq!(attempts.conclude(refused()).applied(), Applied::Maybe);
        let reads = Attempts::at(" select x");
        attempt(&reads, None);
        assert!(!reads.may_have_applied());
    }

    #[test]
    fn what_a_node_said_of_replicas_is_told_rather_than_that_another_was_not_reached() {
        let attempts = Attempts::at("SELECT");
        attempt(&attempts, Some(UNAVAILABLE));
        // The answer of the node that was asked first counts, although the request ended otherwise: a lower level may have enough replicas.
        assert!(matches!(attempts.of_replicas(&refused()), Some(CqlError::Unavailable { required: 2, alive: 1, .. })));
        assert!(matches!(attempts.conclude(refused()), CqlError::Unavailable { required: 2, alive: 1, .. }));
        let denied = CqlError::Denied { reason: String::new() };
        assert!(attempts.of_replicas(&denied).is_none());
        assert!(matches!(attempts.conclude(denied), CqlError::Denied { .. }));
    }
}
