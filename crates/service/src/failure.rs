//! Errors of requests, and their HTTP status and body.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use chronotile_archive::ArchiveError;
use chronotile_archive::memory::MemoryError;
use chronotile_historian::HistorianError;
use chronotile_types::ErrorKind;
use serde_json::{Map, Value, json};
use tokio::task::JoinError;

use crate::points::cut;

/// An error of a request: its kind, which decides the status, a message, and details.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub kind: ErrorKind,
    pub message: String,
    pub details: Map<String, Value>,
    /// Seconds after which to try again.
    pub retry_after_s: Option<u32>,
}

/// Maximum length of a message in a response, in bytes.
const MESSAGE_BYTES_MAX: usize = 2_000;

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let again = matches!(kind.http_status(), 429 | 503) && kind != ErrorKind::Cancelled;
        Self { kind, message: message.into(), details: Map::new(), retry_after_s: again.then_some(1) }
    }

    /// The status of the response.
    pub fn status(&self) -> StatusCode {
        // A request that exceeds the whole quota of a stream can never succeed, so it must not be retried unchanged.
        if self.kind == ErrorKind::QuotaExceeded && self.retry_after_s.is_none() {
            return StatusCode::PAYLOAD_TOO_LARGE;
        }
        StatusCode::from_u16(self.kind.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// An invalid argument.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidRequest, message)
    }

    /// A request that exceeds a limit.
    pub fn too_large(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::TooLarge, message)
    }

    /// A request that was refused because of load, and may be retried.
    pub fn busy(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::TooManyRequests, message)
    }

    /// A request that exceeded its time limit.
    pub fn out_of_time(seconds: u64) -> Self {
        let message = format!(
            "the request was cancelled after {seconds} s: ask for a shorter range, fewer tags, or an aggregate"
        );
        Self::new(ErrorKind::TimedOut, message)
    }

    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.details.insert(name.to_owned(), value.into());
        self
    }

    pub fn response(mut self, request_id: &str) -> Response {
        let status = self.status();
        // The message may quote what the client sent.
        if self.message.len() > MESSAGE_BYTES_MAX {
            self.message = format!("{}...", cut(&self.message, MESSAGE_BYTES_MAX));
        }
        let mut error = self.details;
        error.insert("kind".into(), self.kind.name().into());
        error.insert("message".into(), self.message.into());
        error.insert("request_id".into(), request_id.into());
        let mut response = Response::new(Body::from(json!({ "error": error }).to_string()));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl From<HistorianError> for Failure {
    fn from(error: HistorianError) -> Self {
        use HistorianError as H;
        let failure = Self::new(error.kind(), error.to_string());
        match &error {
            H::UnknownTag { tag, .. } => failure.with("tag", tag.plain()),
            H::Definition { tag, .. } | H::TooManyValues { tag, .. } => failure.with("tag", tag.as_str()),
            H::Point { tag, row, .. } => failure.with("tag", tag.as_str()).with("row", *row),
            _ => failure,
        }
    }
}

impl From<MemoryError> for Failure {
    fn from(error: MemoryError) -> Self {
        Self::new(error.kind(), error.to_string())
    }
}

impl From<JoinError> for Failure {
    fn from(error: JoinError) -> Self {
        ArchiveError::from(error).into()
    }
}

impl From<ArchiveError> for Failure {
    fn from(error: ArchiveError) -> Self {
        Self::new(error.kind(), error.to_string())
    }
}
