//! Handlers of the endpoints of front ends: build the request, call the front end, convert its answer to a response.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow_array::RecordBatch;
use axum::http::header;
use futures::StreamExt;

use chronotile_types::ErrorKind;

use crate::answers::{self, Reply, RowStream};
use crate::app::{App, Call, Permit, given_id};
use crate::failure::{Failure, Result};
use crate::front_ends::{Answer, MemoryCharge, Refusal, Request};
use crate::work;

/// Responds to a query.
pub(crate) async fn ask(app: Arc<App>, call: Call, operation: &'static str) -> Result<Reply> {
    let mut parameters = parameters(&call)?;
    parameters.retain(|(name, _)| name != "format");
    let (answer, waiting) = put(&app, &call, operation, parameters).await?;
    reply(&app, &call, answer, waiting).await
}

/// Responds to a search with rows or, in the format `raw`, with the documents themselves.
pub(crate) async fn search(app: Arc<App>, call: Call, operation: &'static str) -> Result<Reply> {
    if !wants_documents(&call)? {
        return ask(app, call, operation).await;
    }
    let mut parameters = parameters(&call)?;
    parameters.retain(|(name, _)| name != "format");
    if parameters.iter().any(|(name, _)| name == "columns") {
        return Err(Failure::invalid("raw documents have no columns: leave columns out, or ask for another format"));
    }
    parameters.push(("columns".into(), "body".into()));
    let (answer, waiting) = put(&app, &call, operation, parameters).await?;
    match answer {
        Answer::Rows { schema, batches } => {
            let stream = stream(batches, call.permit.clone(), waiting);
            answers::lines(&app, &call, RowStream { schema, stream }).await
        }
        other => reply(&app, &call, other, waiting).await,
    }
}

/// Stores the body of a request.
pub(crate) async fn store(app: Arc<App>, call: Call, operation: &'static str) -> Result<Reply> {
    let mut parameters = parameters(&call)?;
    parameters.extend(given_id(&call.headers).map(|id| ("request_id".to_owned(), id.to_owned())));
    let request = request(&app, &call, operation, parameters);
    // The write continues if the client disconnects: half a write would have to be repeated.
    let answer = blocking(&app, &call, request).await?;
    if let Answer::Stored { documents, refused, .. } = &answer {
        app.metrics.documents_in.inc_by(*documents);
        app.metrics.lines_refused.inc_by(*refused);
    }
    // A flag of its own, so that nothing sets `given_up` of the write.
    reply(&app, &call, answer, GiveUpOnDrop::default()).await
}

/// Whether the client asks for documents, by `format` or by the first type in `Accept`.
fn wants_documents(call: &Call) -> Result<bool> {
    if let Some(format) = call.parameters.one("format")? {
        return Ok(format == "raw");
    }
    let accepted = call.headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    Ok(accepted.split([',', ';']).next().is_some_and(|first| first.trim() == "text/plain"))
}

/// The query parameters, with times converted to nanoseconds.
fn parameters(call: &Call) -> Result<Vec<(String, String)>> {
    let put = |(name, value): (&str, &str)| match name {
        "start" | "end" => {
            let time = call.parameters.time(name, call.now_ns)?;
            Ok((name.to_owned(), time.unwrap_or_default().to_string()))
        }
        _ => Ok((name.to_owned(), value.to_owned())),
    };
    call.parameters.pairs().map(put).collect()
}

/// Sets [`Request::given_up`] on drop, to tell the front end that nobody waits for its answer.
#[derive(Default)]
struct GiveUpOnDrop(Arc<AtomicBool>);

impl Drop for GiveUpOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn request(app: &App, call: &Call, operation: &'static str, parameters: Vec<(String, String)>) -> Request {
    let name = call.part("name").to_owned();
    Request {
        operation,
        name,
        parameters,
        body: call.body.clone(),
        given_up: Arc::default(),
        held: MemoryCharge::of(&app.memory),
    }
}

async fn put(
    app: &App,
    call: &Call,
    operation: &'static str,
    parameters: Vec<(String, String)>,
) -> Result<(Answer, GiveUpOnDrop)> {
    let request = request(app, call, operation, parameters);
    let waiting = GiveUpOnDrop(request.given_up.clone());
    Ok((blocking(app, call, request).await?, waiting))
}

/// Memory of a body while a front end stores it, as a multiple of its bytes.
const BODY_COPIES: usize = 8;

async fn blocking(app: &App, call: &Call, request: Request) -> Result<Answer> {
    let Some(front_ends) = app.front_ends.clone() else {
        let message = "this service serves only the historian: start it with  chronotile serve";
        return Err(Failure::new(ErrorKind::NotServed, message));
    };
    let permit = call.permit.clone();
    let memory = app.memory.clone();
    let work = work::with_front_end_permit(move || {
        // Lines are split into columns, which are then converted to the stored columns.
        let charge = memory.charge(request.body.len().saturating_mul(BODY_COPIES))?;
        let answer = front_ends.answer(request);
        drop(charge);
        // Abandoned work still counts towards the limit of concurrent requests until it ends.
        drop(permit);
        Ok::<_, Failure>(answer)
    });
    work.await??.map_err(|refusal| {
        if refusal.kind == ErrorKind::QuotaExceeded {
            app.metrics.turned_away.inc();
        }
        refusal.into()
    })
}

async fn reply(app: &Arc<App>, call: &Call, answer: Answer, waiting: GiveUpOnDrop) -> Result<Reply> {
    match answer {
        Answer::Json(text) | Answer::Stored { report: text, .. } => Ok(Reply::text("application/json", text)),
        Answer::Rows { schema, batches } => {
            let stream = stream(batches, call.permit.clone(), waiting);
            answers::rows(app, call, RowStream { schema, stream }).await
        }
    }
}

type Batches = Box<dyn Iterator<Item = std::result::Result<RecordBatch, Refusal>> + Send>;

/// Fetches the batches one by one on threads for blocking work.
fn stream(
    batches: Batches,
    permit: Option<Arc<Permit>>,
    waiting: GiveUpOnDrop,
) -> futures::stream::BoxStream<'static, Result<RecordBatch>> {
    futures::stream::unfold((Some((batches, permit)), waiting), |(held, waiting)| async move {
        // The iterator and the permit go to the thread and come back. `waiting` stays here, so that dropping the
        // response sets `given_up` while a batch is being fetched.
        let (mut batches, permit) = held?;
        match work::with_front_end_permit(move || (batches.next(), batches, permit)).await {
            Ok((Some(Ok(batch)), batches, permit)) => Some((Ok(batch), (Some((batches, permit)), waiting))),
            Ok((Some(Err(refusal)), ..)) => Some((Err(refusal.into()), (None, waiting))),
            Ok((None, ..)) => None,
            Err(failure) => Some((Err(failure), (None, waiting))),
        }
    })
    .boxed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    use axum::Router;
    use axum::body::Body;
    use axum::http::Request as HttpRequest;
    use chronotile_archive::{Archive, OpenOptions};
    use chronotile_historian::{Historian, HistorianOptions};
    use serde_json::Map;
    use tower_service::Service as _;

    use crate::front_ends::FrontEnds;
    use crate::settings::{Limits, LogFormat, Settings};

    /// Waits until the request is given up, reports that, and blocks until it is released.
    struct Stubborn {
        reported: Mutex<Sender<()>>,
        let_go: Mutex<Receiver<()>>,
    }

    impl FrontEnds for Stubborn {
        fn answer(&self, request: Request) -> std::result::Result<Answer, Refusal> {
            if request.operation == "events.count" {
                while !request.given_up.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(1));
                }
                self.reported.lock().unwrap().send(()).unwrap();
                self.let_go.lock().unwrap().recv().unwrap();
            }
            Ok(Answer::Json(b"{}".to_vec()))
        }
    }

    async fn routes(front_ends: Option<Arc<dyn FrontEnds>>) -> Router {
        let archive = Archive::open("memory:", &OpenOptions::default()).await.unwrap();
        let historian = Historian::open(archive, HistorianOptions::default()).await.unwrap();
        let limits = Limits { queries: 1, query_time: Duration::from_millis(50), ..Limits::default() };
        let settings = Settings {
            listen: "127.0.0.1:0".parse().unwrap(),
            tokens: None,
            tls: None,
            log: LogFormat::Off,
            limits,
            diagnostics: None,
        };
        crate::routes(historian, settings, front_ends).unwrap()
    }

    async fn status(routes: &Router, path: &str) -> u16 {
        let request = HttpRequest::builder().uri(path).body(Body::empty()).unwrap();
        routes.clone().call(request).await.unwrap().status().as_u16()
    }

    #[tokio::test]
    async fn work_that_nobody_waits_for_is_told_so_and_keeps_its_place_until_it_ends() {
        let ((reported, was_reported), (release, let_go)) = (channel(), channel());
        let front_ends = Arc::new(Stubborn { reported: Mutex::new(reported), let_go: Mutex::new(let_go) });
        let routes = routes(Some(front_ends)).await;
        assert_eq!(status(&routes, "/v1/events/web/count").await, 504);
        was_reported.recv_timeout(Duration::from_secs(30)).unwrap();
        assert_eq!(status(&routes, "/v1/jobs/grid/count").await, 429);
        release.send(()).unwrap();
        let mut last = 0;
        for _ in 0..3_000 {
            last = status(&routes, "/v1/jobs/grid/count").await;
            if last == 200 {
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(last, 200);
    }

    #[tokio::test]
    async fn without_front_ends_their_operations_say_so() {
        let routes = routes(None).await;
        assert_eq!(status(&routes, "/v1/events/web").await, 501);
        assert_eq!(status(&routes, "/v1/tags").await, 200);
    }

    #[test]
    fn refusals_that_pass_say_when_to_come_back() {
        let refusal =
            |kind, retry_after_s| Refusal { kind, message: String::new(), details: Map::new(), retry_after_s };
        for (kind, given, status, retry_after_s) in [
            (ErrorKind::QuotaExceeded, Some(7), 429, Some(7)),
            (ErrorKind::QuotaExceeded, None, 413, None),
            (ErrorKind::Busy, None, 503, Some(1)),
            (ErrorKind::ClusterUnavailable, None, 503, Some(1)),
            (ErrorKind::OutcomeUnknown, None, 503, Some(1)),
            (ErrorKind::TooLarge, Some(7), 413, None),
            (ErrorKind::InvalidRows, None, 400, None),
        ] {
            let failure = Failure::from(refusal(kind, given));
            assert_eq!((failure.status().as_u16(), failure.kind), (status, kind));
            assert_eq!(failure.retry_after_s, retry_after_s, "{kind:?}");
        }
    }
}
