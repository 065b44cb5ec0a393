//! Endpoints for operators: metrics, health, API description, web page.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::http::{HeaderValue, header};
use prometheus_client::encoding::prometheus_text;
use serde_json::json;
use tokio::time::Instant;

use chronotile_types::ErrorKind;

use crate::answers::Reply;
use crate::app::{App, Call};
use crate::failure::{Failure, Result};

pub(crate) async fn metrics(app: Arc<App>, _: Call) -> Result<Reply> {
    Ok(Reply::text(prometheus_text::CONTENT_TYPE, app.metrics.text()))
}

pub(crate) async fn health(_: Arc<App>, _: Call) -> Result<Reply> {
    Ok(Reply::json(&json!({ "state": "serving", "version": env!("CARGO_PKG_VERSION") })))
}

/// How long a readiness check remains valid. Anyone may request it, so this limits the load on the engine.
const READY_FOR: Duration = Duration::from_millis(250);

pub(crate) async fn ready(app: Arc<App>, _: Call) -> Result<Reply> {
    let unready = |message: &str| Failure::new(ErrorKind::NotReady, message);
    if app.stopping.load(Ordering::Relaxed) {
        return Err(unready("the service is about to stop: ask another one"));
    }
    // The lock is held while the archive is asked, so that simultaneous requests share one check.
    let mut last = app.readiness.lock().await;
    let fresh = last.as_ref().filter(|(asked, _)| asked.elapsed() < READY_FOR).map(|(_, state)| state.clone());
    let state = match fresh {
        Some(state) => state,
        None => {
            let asked = tokio::time::timeout(Duration::from_secs(2), app.historian.archive().dataset_names()).await;
            let state = match asked {
                Ok(found) => found.map(drop).map_err(Failure::from),
                Err(_) => Err(unready("the archive did not answer within 2 s")),
            };
            last.insert((Instant::now(), state)).1.clone()
        }
    };
    drop(last);
    state?;
    Ok(Reply::json(&json!({ "state": "ready", "engine": app.historian.archive().engine() })))
}

/// The page may run no scripts of other origins, and may connect only to this service.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

fn asset(content_type: &'static str, text: &'static str) -> Reply {
    let reply = Reply::text(content_type, text);
    if let Reply::Whole(mut response) = reply {
        response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
        return Reply::Whole(response);
    }
    reply
}

pub(crate) async fn page(_: Arc<App>, _: Call) -> Result<Reply> {
    Ok(asset("text/html; charset=utf-8", include_str!("page/page.html")))
}

pub(crate) async fn page_script(_: Arc<App>, _: Call) -> Result<Reply> {
    Ok(asset("text/javascript; charset=utf-8", include_str!("page/page.js")))
}

pub(crate) async fn page_style(_: Arc<App>, _: Call) -> Result<Reply> {
    Ok(asset("text/css; charset=utf-8", include_str!("page/page.css")))
}
