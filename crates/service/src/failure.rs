//! What went wrong, as the status and body of an answer.

use std::borrow::Cow;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use chronotile_archive::ArchiveError;
use chronotile_archive::memory::MemoryError;
use chronotile_historian::HistorianError;
use chronotile_store::StoreError;
use serde_json::{Map, Value, json};

use crate::points::cut;

/// An error of a request: its status, a stable word for it, a text for people, and details.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub status: StatusCode,
    pub kind: Cow<'static, str>,
    pub message: String,
    pub details: Map<String, Value>,
    /// Seconds after which to try again.
    pub retry_after_s: Option<u32>,
}

/// Bytes of a message that are answered.
const MESSAGE_BYTES_MAX: usize = 2_000;

pub(crate) type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self { status, kind: kind.into(), message: message.into(), details: Map::new(), retry_after_s: None }
    }

    /// An argument that cannot be used.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid-request", message)
    }

    /// A request beyond one of the limits.
    pub fn too_large(message: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "too-large", message)
    }

    /// A request that would be served at another moment.
    pub fn busy(message: impl Into<String>) -> Self {
        let failure = Self::new(StatusCode::TOO_MANY_REQUESTS, "busy", message);
        Self { retry_after_s: Some(1), ..failure }
    }

    /// A request for which there is no memory while others have it.
    pub fn memory_in_use(message: impl Into<String>) -> Self {
        let failure = Self::new(StatusCode::SERVICE_UNAVAILABLE, "memory-in-use", message);
        Self { retry_after_s: Some(1), ..failure }
    }

    /// A request that took longer than it may.
    pub fn out_of_time(seconds: u64) -> Self {
        let message =
            format!("the request was given up after {seconds} s: ask for a shorter range, fewer tags, or an aggregate");
        Self::new(StatusCode::GATEWAY_TIMEOUT, "timed-out", message)
    }

    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.details.insert(name.to_owned(), value.into());
        self
    }

    pub fn response(mut self, request_id: &str) -> Response {
        // What was sent may stand in it.
        if self.message.len() > MESSAGE_BYTES_MAX {
            self.message = format!("{}...", cut(&self.message, MESSAGE_BYTES_MAX));
        }
        let mut error = self.details;
        error.insert("kind".into(), self.kind.into_owned().into());
        error.insert("message".into(), self.message.into());
        error.insert("request_id".into(), request_id.into());
        let mut response = Response::new(Body::from(json!({ "error": error }).to_string()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, seconds.into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
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
        let error = match error {
            H::Archive(error) => return error.into(),
            other => other,
        };
        let message = error.to_string();
        let bad = |kind| Self::new(StatusCode::BAD_REQUEST, kind, message.clone());
        match &error {
            H::UnknownTag { tag, .. } => {
                Self::new(StatusCode::NOT_FOUND, "tag-not-found", message).with("tag", tag.plain())
            }
            H::Definition { tag, .. } => bad("invalid-tag").with("tag", tag.as_str()),
            H::Columns(_) => bad("invalid-rows"),
            H::Point { tag, row, .. } => bad("invalid-rows").with("tag", tag.as_str()).with("row", *row),
            H::TooManyValues { tag, .. } => Self::too_large(message).with("tag", tag.as_str()),
            H::Compute { .. } => Self::new(StatusCode::INTERNAL_SERVER_ERROR, "compute", message),
            _ => bad("invalid-request"),
        }
    }
}

impl From<MemoryError> for Failure {
    fn from(error: MemoryError) -> Self {
        match error {
            MemoryError::InUse { .. } => Self::memory_in_use(error.to_string()),
            MemoryError::TooLarge { .. } => Self::too_large(error.to_string()),
        }
    }
}

impl From<ArchiveError> for Failure {
    fn from(error: ArchiveError) -> Self {
        use ArchiveError as A;
        let error = match error {
            A::Store(error) => return error.into(),
            A::Memory(error) => return error.into(),
            other => other,
        };
        let message = error.to_string();
        let of = |status, kind| Self::new(status, kind, message.clone());
        match &error {
            A::DatasetNotFound { .. } => of(StatusCode::NOT_FOUND, "dataset-not-found"),
            A::BatchNotFound { .. } => of(StatusCode::NOT_FOUND, "batch-not-found"),
            A::DatasetExists { .. } => of(StatusCode::CONFLICT, "dataset-exists"),
            A::BatchDiffers { .. } => of(StatusCode::CONFLICT, "batch-differs"),
            A::BatchRace { .. } => of(StatusCode::CONFLICT, "batch-race"),
            A::TooManyGroups { .. } => Self::too_large(message),
            A::Damaged { .. } => of(StatusCode::INTERNAL_SERVER_ERROR, "damaged-chunk"),
            A::Catalog { .. } => of(StatusCode::INTERNAL_SERVER_ERROR, "damaged-catalog"),
            A::Compute { .. } => of(StatusCode::INTERNAL_SERVER_ERROR, "compute"),
            A::Cancelled => of(StatusCode::SERVICE_UNAVAILABLE, "cancelled"),
            A::Time(_) => of(StatusCode::BAD_REQUEST, "invalid-time"),
            A::Input { .. } | A::Row { .. } | A::Encode { .. } => of(StatusCode::BAD_REQUEST, "invalid-rows"),
            _ => of(StatusCode::BAD_REQUEST, "invalid-request"),
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        use StoreError as S;
        let message = error.to_string();
        let of = |status, kind| Self::new(status, kind, message.clone());
        let again = |kind| Self { retry_after_s: Some(1), ..of(StatusCode::SERVICE_UNAVAILABLE, kind) };
        match &error {
            S::Busy { .. } => again("busy"),
            S::NoSlice { .. } | S::RecordConflict { .. } | S::ChunkConflict { .. } => again("lost-race"),
            S::Unavailable { .. } => again("cluster-unavailable"),
            S::Unknown { .. } => again("outcome-unknown"),
            S::Full { .. } => of(StatusCode::INSUFFICIENT_STORAGE, "storage-full"),
            S::ReadOnly { .. } => of(StatusCode::INSUFFICIENT_STORAGE, "read-only"),
            S::TooLarge { .. } => of(StatusCode::PAYLOAD_TOO_LARGE, "too-large"),
            S::Unfit { .. } => of(StatusCode::BAD_REQUEST, "invalid-rows"),
            S::Denied { .. } => of(StatusCode::BAD_GATEWAY, "engine-denied"),
            S::Moved { .. } => of(StatusCode::INTERNAL_SERVER_ERROR, "archive-moved"),
            S::Corrupt { .. } => of(StatusCode::INTERNAL_SERVER_ERROR, "damaged-archive"),
            _ => of(StatusCode::INTERNAL_SERVER_ERROR, "engine-refused"),
        }
    }
}
