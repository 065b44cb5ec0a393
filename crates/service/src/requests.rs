//! The path of every request: authentication, limits and deadline before the handler; metrics and a log line after it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, HttpBody};
use axum::extract::{FromRequestParts, RawPathParams, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use axum::routing::{MethodFilter, on};
use bytes::Bytes;
use futures::StreamExt;
use tokio::time::Instant;

use chronotile_types::ErrorKind;

use crate::answers::Reply;
use crate::app::{App, Call, CostClass, Peer, Permit, REQUEST_ID, given_id, now_ns};
use crate::bodies;
use crate::browsers;
use crate::endpoints::{ENDPOINTS, Endpoint};
use crate::failure::{Failure, Result};
use crate::log::REQUESTS;
use crate::parameters::Parameters;
use crate::work;

/// The routes of a service.
pub(crate) fn router(app: &Arc<App>) -> Router {
    let mut router = Router::new();
    for endpoint in ENDPOINTS {
        let app = app.clone();
        let filter = match endpoint.method {
            "GET" => MethodFilter::GET,
            "PUT" => MethodFilter::PUT,
            "DELETE" => MethodFilter::DELETE,
            _ => MethodFilter::POST,
        };
        router = router.route(endpoint.path, on(filter, move |request: Request| run(app, endpoint, request)));
    }
    let (absent, other) = (app.clone(), app.clone());
    router
        .fallback(move |request: Request| async move {
            let message = format!("unknown path {}: /openapi.json lists all endpoints", request.uri().path());
            stray(&absent, &request, Failure::new(ErrorKind::NoSuchPath, message))
        })
        .method_not_allowed_fallback(move |request: Request| async move {
            let message = format!("{} does not take {}", request.uri().path(), request.method());
            stray(&other, &request, Failure::new(ErrorKind::MethodNotAllowed, message))
        })
}

fn stray(app: &Arc<App>, request: &Request, failure: Failure) -> Response {
    let id = request_id(request.headers());
    // All unknown paths share one label: with labels of their own, clients could create metrics without limit.
    app.metrics.observe("", "none", failure.status().as_u16(), Duration::ZERO);
    let mut response = dressed(failure.response(&id), &id);
    if !request.body().is_end_stream() {
        close_early(&mut response, request.extensions().get());
    }
    response
}

/// The request id that the client sent, or a new one.
fn request_id(headers: &HeaderMap) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    given_id(headers).map_or_else(
        || {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let seed = format!("{}-{}-{number}", std::process::id(), now_ns());
            blake3::hash(seed.as_bytes()).to_hex()[..16].to_owned()
        },
        str::to_owned,
    )
}

/// Prepares the connection for a response that is sent before the request body has arrived: no further request can
/// follow on it.
fn close_early(response: &mut Response, peer: Option<&Peer>) {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    if let Some(peer) = peer {
        peer.discards.store(true, Ordering::Relaxed);
    }
}

fn dressed(mut response: Response, id: &str) -> Response {
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(id) {
        headers.insert(REQUEST_ID, id);
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

/// Counts and logs a request once its response has ended.
struct RequestRecorder {
    app: Arc<App>,
    endpoint: &'static Endpoint,
    id: String,
    path: String,
    peer: Option<Peer>,
    token: Option<String>,
    began: Instant,
    status: StatusCode,
    error: Option<String>,
    rows: Arc<AtomicU64>,
    body_bytes: usize,
    /// Whether the request body has not arrived yet.
    body_awaited: bool,
    /// Whether the whole response was sent.
    complete: bool,
    /// Held until the response ends.
    permit: Option<Arc<Permit>>,
}

impl Drop for RequestRecorder {
    fn drop(&mut self) {
        let (metrics, took) = (&self.app.metrics, self.began.elapsed());
        metrics.in_flight.dec();
        metrics.observe(self.endpoint.method, self.endpoint.path, self.status.as_u16(), took);
        let rows = self.rows.load(Ordering::Relaxed);
        metrics.rows_out.inc_by(rows);
        if !self.complete {
            metrics.broken_off.inc();
            self.error.get_or_insert_with(|| "the client went away".to_owned());
        }
        // tracing needs a constant level at each call site.
        macro_rules! log_at {
            ($level:ident) => {
                tracing::$level!(
                    target: REQUESTS,
                    request_id = self.id,
                    method = self.endpoint.method,
                    path = self.path,
                    status = self.status.as_u16(),
                    took_ms = (took.as_secs_f64() * 1e5).round() / 100.0,
                    rows = (rows > 0).then_some(rows),
                    body_bytes = (self.body_bytes > 0).then_some(self.body_bytes),
                    token = self.token,
                    client = self.peer.as_ref().map(|peer| tracing::field::display(peer.address)),
                    error = self.error,
                )
            };
        }
        match self.status.as_u16() {
            500.. => log_at!(error),
            400.. => log_at!(warn),
            _ if !self.complete => log_at!(warn),
            _ => log_at!(info),
        }
    }
}

async fn run(app: Arc<App>, endpoint: &'static Endpoint, request: Request) -> Response {
    let (mut parts, body) = request.into_parts();
    let id = request_id(&parts.headers);
    app.metrics.in_flight.inc();
    let mut ending = RequestRecorder {
        endpoint,
        id: id.clone(),
        path: parts.uri.path().to_owned(),
        peer: parts.extensions.get::<Peer>().cloned(),
        token: None,
        began: Instant::now(),
        // The status that is logged if the client disconnects before the response.
        status: StatusCode::from_u16(499).unwrap_or(StatusCode::REQUEST_TIMEOUT),
        error: None,
        rows: Arc::default(),
        body_bytes: 0,
        body_awaited: !body.is_end_stream(),
        complete: false,
        permit: None,
        app,
    };
    let outcome = answer(&mut ending, &mut parts, body).await;
    let response = match outcome {
        Err(failure) => {
            // A whole response counts as complete once it is handed over; only a streamed one is followed to its end.
            (ending.status, ending.complete) = (failure.status(), true);
            ending.error = Some(failure.message.clone());
            let mut response = failure.response(&id);
            if ending.body_awaited {
                close_early(&mut response, ending.peer.as_ref());
            }
            response
        }
        Ok(Reply::Whole(response)) => {
            (ending.status, ending.complete) = (response.status(), true);
            response
        }
        Ok(Reply::Stream(content_type, pieces)) => {
            ending.status = StatusCode::OK;
            let mut response = Response::new(Body::from_stream(watched(pieces, ending)));
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
            response
        }
    };
    dressed(response, &id)
}

/// Forwards the pieces of a response and records how it ended.
fn watched(
    pieces: futures::stream::BoxStream<'static, Result<Bytes>>,
    ending: RequestRecorder,
) -> impl futures::Stream<Item = Result<Bytes>> + Send + 'static {
    futures::stream::unfold((pieces, Some(ending)), |(mut pieces, ending)| async move {
        let mut ending = ending?;
        match pieces.next().await {
            Some(Ok(piece)) => Some((Ok(piece), (pieces, Some(ending)))),
            Some(Err(failure)) => {
                ending.error = Some(failure.message.clone());
                Some((Err(failure), (pieces, None)))
            }
            None => {
                ending.complete = true;
                None
            }
        }
    })
}

async fn answer(ending: &mut RequestRecorder, parts: &mut Parts, body: Body) -> Result<Reply> {
    let (app, endpoint) = (ending.app.clone(), ending.endpoint);
    let limits = app.settings.limits;
    // What is checked up to `taken_in` costs little and needs no body, so a stranger cannot make the service receive
    // one.
    if !app.access.is_required() {
        browsers::check(parts, endpoint.role)?;
    }
    let caller = app.access.check(&parts.headers, endpoint.role, now_ns())?;
    ending.token = caller.name;
    let parameters = Parameters::parse(parts.uri.query().unwrap_or_default())?;
    endpoint.check(&parameters)?;
    let body = if ending.body_awaited {
        bodies::check(&app, endpoint, parts, &body)?;
        bodies::taken_in(&app, body).await?
    } else {
        Bytes::new()
    };
    // From here on, errors leave the connection open for further requests: the body has been received.
    (ending.body_awaited, ending.body_bytes) = (false, body.len());
    // The slot is taken only now, so that clients that send slowly do not occupy slots.
    ending.permit = app.permit(endpoint.work)?;
    let path = RawPathParams::from_request_parts(parts, &()).await;
    let path = path.map_err(|_| Failure::invalid("the path is invalid UTF-8 once decoded"))?;
    let call = Call {
        parameters,
        headers: std::mem::take(&mut parts.headers),
        body,
        now_ns: now_ns(),
        deadline: Instant::now() + limits.query_time,
        rows: ending.rows.clone(),
        may_define: caller.may_define,
        permit: ending.permit.clone(),
        path: path.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
    };
    if is_small(endpoint, &call) {
        return served(app, endpoint, call).await;
    }
    Ok(match work::in_background(served(app, endpoint, call)).await?? {
        Reply::Stream(content_type, pieces) => Reply::Stream(content_type, work::stream_in_background(pieces)),
        whole => whole,
    })
}

/// Maximum bytes of the parameters of a small request.
const SMALL_QUERY_BYTES: usize = 1_024;

/// Whether a request is known beforehand to cost little: a look-up of tags by name or number, or a write of a few
/// lines.
fn is_small(endpoint: &Endpoint, call: &Call) -> bool {
    let named: usize = call.parameters.pairs().map(|(name, value)| name.len() + value.len()).sum();
    named <= SMALL_QUERY_BYTES
        && bodies::work_bytes(&call.headers, &call.body) < work::APART_BYTES
        && match endpoint.work {
            CostClass::Light => true,
            // A pattern is compared with all names, and may match any number of them.
            CostClass::Lookup => call.body.is_empty() && call.parameters.names().all(|name| name != "match"),
            // A write without a body is a deletion, which may concern any number of points.
            CostClass::Write => !call.body.is_empty(),
            CostClass::Query | CostClass::Maintenance => false,
        }
}

async fn served(app: Arc<App>, endpoint: &'static Endpoint, mut call: Call) -> Result<Reply> {
    call.body = bodies::unpacked(&app, &call.headers, call.body).await?;
    let (deadline, query_time) = (call.deadline, app.settings.limits.query_time);
    let work = (endpoint.handler)(app, call);
    match endpoint.work {
        CostClass::Query | CostClass::Lookup => tokio::time::timeout_at(deadline, work)
            .await
            .unwrap_or_else(|_| Err(Failure::out_of_time(query_time.as_secs()))),
        // Writes and maintenance have no deadline: once begun, they should complete.
        _ => work.await,
    }
}
