//! Puts whole requests to a service: everything that its own description names, with words and bodies as described, nearly
//! so, or made of arbitrary text. An input is up to four requests, so that one reads what another stored.
//!
//! `./dev fuzz`.

#![no_main]

use std::cell::RefCell;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use chronotile_archive::{Archive, OpenOptions};
use chronotile_historian::{Historian, HistorianOptions};
use chronotile_service::{Answer, FrontEnds, Limits, LogFormat, Refusal, Settings, routes};
use http_body_util::BodyExt;
use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value, json};
use tokio::runtime::Runtime;
use tower_service::Service as _;

const REQUESTS_MAX: usize = 4;
const TEXT_BYTES_MAX: usize = 64;
/// Lists within lists of a body.
const DEPTH_MAX: usize = 6;

/// Words that a parameter or property of this name or type is likely to understand.
fn fitting(name: &str, kind: &str) -> &'static [&'static str] {
    match (name, kind) {
        ("tag" | "name" | "target", _) => &["a.temp", "a.count", "a.on", "b.text", "TimeAverage(a.temp)", "new"],
        ("dataset", _) => &["historian_tags", "historian_main_float", "historian_main_string", "historian_annotations"],
        ("group", _) => &["main", "other"],
        ("start" | "from", _) => &["2026-01-01", "2026-01-01T12:00", "now-3d", "1767225600000000000", "2025-06-01"],
        ("end" | "to" | "time", _) => {
            &["2026-01-02", "2026-01-01T13:00+01:00", "now", "now-1h", "2026-01-03T00:00:00.5Z"]
        }
        ("match" | "query", _) => &["*", "a.*", "*.t?mp", "?.*", "*t*", "b.text"],
        ("aggregate", _) => &[
            "TimeAverage",
            "Interpolative",
            "Count",
            "Percentile",
            "Rate",
            "Distinct",
            "EndBound",
            "Total2",
            "DurationGood",
            "MinimumActualTime2",
            "StandardDeviationSample",
            "WorstQuality2",
            "NumberOfTransitions",
        ],
        ("interval" | "retention", _) => &["1h", "7m", "1d", "1ns", "30d", "999999w"],
        ("where", _) => &["name==a.temp", "value>=1.5", "tag in 1,2", "time>=2026-01-01", "status!=0", "name in a,b"],
        ("columns", _) => &["name", "time,value", "tag,status", "text"],
        ("id" | "key", _) => &["1", "2", "a.temp", "a.count"],
        ("region", _) => &["circle,10,20,0.5"],
        ("format", _) => &["json", "ndjson", "csv", "arrow", "parquet", "raw"],
        ("method", _) => &["lttb", "minmax"],
        ("rules", _) => &["samples", "standard"],
        ("not_finite", _) => &["bad", "refuse"],
        ("precision", _) => &["ns", "u", "ms", "s", "h"],
        ("type", _) => &["table", "timeseries"],
        (_, "boolean") => &["true", "false"],
        (_, "integer" | "number") => &["1", "2", "3", "4", "50", "2.5", "-1", "1000000", "9223372036854775807"],
        _ => WORDS,
    }
}

/// Words of other meanings.
const WORDS: &[&str] =
    &["a.temp", "*", "now", "-9223372036854775808", "0", "NaN", "inf", "-1e308", "9999-12-31", "true", "1h"];

/// Stands for events and jobs: their front ends are not written in Rust.
struct Other;

impl FrontEnds for Other {
    fn answer(&self, request: chronotile_service::Request) -> std::result::Result<Answer, Refusal> {
        let times = request.parameters.iter().filter(|(name, _)| name == "start" || name == "end");
        times.for_each(|(name, time)| assert!(time.parse::<i64>().is_ok(), "{name} {time}"));
        Ok(Answer::Json(b"{}".to_vec()))
    }
}

/// What a service says of itself.
static DESCRIPTION: OnceLock<Value> = OnceLock::new();

thread_local! {
    static RUNTIME: Runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    static SERVICE: RefCell<Option<Router>> = const { RefCell::new(None) };
}

fuzz_target!(|data: &[u8]| {
    let mut input = Unstructured::new(data);
    RUNTIME.with(|runtime| {
        SERVICE.with_borrow_mut(|service| {
            let mut wrote = false;
            for _ in 0..REQUESTS_MAX {
                let routes = service.get_or_insert_with(|| runtime.block_on(opened()));
                let description = DESCRIPTION.get_or_init(|| runtime.block_on(described_by(routes)));
                let Ok((request, what)) = request(&mut input, description) else { break };
                wrote |= request.method() != "GET" && !request.uri().path().starts_with("/grafana");
                runtime.block_on(judged(routes, request, &what));
                if input.is_empty() {
                    break;
                }
            }
            // Every input finds the same archive, or what it found could not be found again.
            *service = service.take().filter(|_| !wrote);
        });
    });
});

/// A service of an archive with four tags and some points.
async fn opened() -> Router {
    let archive = Archive::open("memory:", &OpenOptions::default()).await.expect("an archive in memory");
    let historian = Historian::open(archive, HistorianOptions::default()).await.expect("a historian");
    let limits = Limits {
        body_bytes: 1 << 20,
        points: 10_000,
        tags: 100,
        query_time: Duration::from_secs(5),
        future_max_ns: None,
        ..Limits::default()
    };
    let listen = "127.0.0.1:0".parse().expect("an address");
    let settings = Settings { listen, tokens: None, tls: None, log: LogFormat::Off, limits, diagnostics: None };
    let routes = routes(historian, settings, Some(Arc::new(Other))).expect("settings that fit");
    let kinds = [("a.temp", "float"), ("a.count", "integer"), ("a.on", "bool"), ("b.text", "string")];
    let numbered = kinds.iter().zip(1..);
    let tags = numbered.map(|((name, kind), number)| json!({ "name": name, "number": number, "data_type": kind }));
    put(&routes, "/v1/tags", json!({ "tags": tags.collect::<Vec<_>>() })).await;
    let points: Vec<Value> = (0..48)
        .map(|row| {
            let (name, kind) = kinds[row % 4];
            let value = match kind {
                "bool" => json!(row % 8 == 2),
                "string" => json!(format!("state {row}")),
                _ => json!(row),
            };
            let status = if row % 5 == 0 { 0x4000_0000_u32 } else { 0 };
            let time = format!("2026-01-0{}T{:02}:00:00Z", 1 + row / 24, row % 24);
            json!({ "tag": name, "time": time, "value": value, "status": status })
        })
        .collect();
    put(&routes, "/v1/points", json!(points)).await;
    put(&routes, "/v1/annotations", json!({ "tag": "a.temp", "time": "2026-01-01", "text": "note" })).await;
    routes
}

async fn described_by(routes: &Router) -> Value {
    let (_, text) = asked(routes, Request::get("/openapi.json").body(Body::empty()).expect("a request")).await;
    serde_json::from_slice(&text).expect("the description")
}

async fn put(routes: &Router, path: &str, body: Value) {
    let request = Request::post(path).header("content-type", "application/json").body(Body::from(body.to_string()));
    let (status, answer) = asked(routes, request.expect("a request")).await;
    assert!(status.is_success(), "{path}: {status} {}", String::from_utf8_lossy(&answer));
}

async fn asked(routes: &Router, request: Request<Body>) -> (StatusCode, Vec<u8>) {
    let Ok(response) = routes.clone().call(request).await;
    let status = response.status();
    let body = response.into_body().collect().await.expect("an answer is never broken off here");
    (status, body.to_bytes().to_vec())
}

/// Puts a request: never a fault of the service, and what is refused is refused in the form that is described.
async fn judged(routes: &Router, request: Request<Body>, what: &str) {
    let (status, body) = asked(routes, request).await;
    assert!(status.as_u16() < 500, "{what}: {status} {}", String::from_utf8_lossy(&body));
    if status.is_client_error() {
        let refusal: Value = serde_json::from_slice(&body).unwrap_or_else(|error| panic!("{what}: {error}"));
        for name in ["kind", "message", "request_id"] {
            let word = refusal["error"][name].as_str().unwrap_or_default();
            assert!(!word.is_empty(), "{what}: the refusal has no {name}: {refusal}");
        }
    }
}

/// A request to one of the operations, and the same as text.
fn request(input: &mut Unstructured<'_>, description: &Value) -> Result<(Request<Body>, String)> {
    let paths = description["paths"].as_object().expect("paths");
    // What takes nothing answers the same to everybody, and so does the page.
    let takes = |operation: &Value| operation["parameters"] != json!([]) || operation["requestBody"] != Value::Null;
    let operations: Vec<(&str, &str, &Value)> = paths
        .iter()
        .flat_map(|(path, of)| of.as_object().into_iter().flatten().map(move |(method, op)| (&**path, &**method, op)))
        .filter(|(path, _, operation)| *path != "/" && takes(operation))
        .collect();
    let (path, method, operation) = *input.choose(&operations)?;
    let target = target(input, path, operation)?;
    let mut request = Request::builder().method(&*method.to_uppercase()).uri(&target);
    let mut text = Vec::new();
    if let Some(content) = operation["requestBody"]["content"].as_object() {
        let kinds: Vec<(&String, &Value)> = content.iter().collect();
        let (kind, body) = *input.choose(&kinds)?;
        request = request.header("content-type", kind);
        text = match &body["schema"] {
            Value::Null => lines(input)?,
            schema if input.ratio(15, 16)? => described(input, description, ("", schema), 0)?.to_string().into_bytes(),
            _ => lines(input)?,
        };
    }
    let what = format!("{method} {target} {}", String::from_utf8_lossy(&text));
    // Names of any text may be longer than an address may be.
    let request = request.body(Body::from(text)).map_err(|_| libfuzzer_sys::arbitrary::Error::IncorrectFormat)?;
    Ok((request, what))
}

/// Path and parameters of an operation.
fn target(input: &mut Unstructured<'_>, path: &str, operation: &Value) -> Result<String> {
    let (mut target, mut query) = (path.to_owned(), Vec::new());
    for parameter in operation["parameters"].as_array().into_iter().flatten() {
        let name = parameter["name"].as_str().unwrap_or_default();
        let kind = parameter["schema"]["items"]["type"].as_str().or(parameter["schema"]["type"].as_str());
        if parameter["in"] == "path" {
            let words = fitting(if path.starts_with("/v1/datasets") { "dataset" } else { name }, "string");
            target = target.replace(&format!("{{{name}}}"), &escaped(&word(input, words)?));
            continue;
        }
        let needed = (parameter["required"] == true || name == "tag") && input.ratio(15, 16)?;
        let count = if needed { 1 } else { input.int_in_range(0..=3)? / 3 };
        let more = usize::from(count > 0 && parameter["schema"]["type"] == "array" && !input.ratio(3, 4)?);
        for _ in 0..count + more {
            query.push(format!("{name}={}", escaped(&word(input, fitting(name, kind.unwrap_or_default()))?)));
        }
    }
    if !input.ratio(31, 32)? {
        query.push(format!("{}={}", escaped(&word(input, WORDS)?), escaped(&word(input, WORDS)?)));
    }
    Ok(if query.is_empty() { target } else { format!("{target}?{}", query.join("&")) })
}

fn escaped(word: &str) -> String {
    word.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// One of the words, now and then changed, or any text. Where the input has ended, all choices here take the first, which is
/// the plain one.
fn word(input: &mut Unstructured<'_>, words: &[&str]) -> Result<String> {
    let mut word = (*input.choose(words)?).to_owned();
    match input.int_in_range(0..=15)? {
        12 => word = any(input)?,
        13 => {
            let places: Vec<usize> = (0..=word.len()).collect();
            word.insert_str(*input.choose(&places)?, &any(input)?);
        }
        14 => word.push_str(input.choose(words)?),
        15 => word = (*input.choose(WORDS)?).to_owned(),
        _ => {}
    }
    Ok(word)
}

fn any(input: &mut Unstructured<'_>) -> Result<String> {
    let text: &str = input.arbitrary()?;
    Ok(text.chars().take(TEXT_BYTES_MAX / 4).collect())
}

/// Lines of words.
fn lines(input: &mut Unstructured<'_>) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    for _ in 0..input.int_in_range(0..=8)? {
        text.extend_from_slice(word(input, fitting("where", "string"))?.as_bytes());
        text.push(*input.choose(b"\n, =\t\"")?);
    }
    Ok(text)
}

/// A value as a schema describes it; now and then another.
fn described(
    input: &mut Unstructured<'_>,
    description: &Value,
    (name, schema): (&str, &Value),
    depth: usize,
) -> Result<Value> {
    if depth > DEPTH_MAX {
        return Ok(Value::Null);
    }
    if let Some(path) = schema["$ref"].as_str().and_then(|path| path.strip_prefix("#/components/schemas/")) {
        return described(input, description, (name, &description["components"]["schemas"][path]), depth + 1);
    }
    if let Some(choices) = schema["oneOf"].as_array() {
        let choice = input.choose(choices)?;
        return described(input, description, (name, choice), depth + 1);
    }
    if let Some(choices) = schema["enum"].as_array() {
        return Ok(input.choose(choices)?.clone());
    }
    const KINDS: [&str; 7] = ["string", "integer", "number", "boolean", "null", "array", "object"];
    let kinds = match &schema["type"] {
        Value::String(kind) if input.ratio(63, 64)? => vec![kind.as_str()],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => KINDS.to_vec(),
    };
    Ok(match *input.choose(&kinds)? {
        "string" => word(input, fitting(name, "string"))?.into(),
        "integer" if !input.ratio(7, 8)? => input.arbitrary::<i64>()?.into(),
        "integer" => input.int_in_range(-2..=400)?.into(),
        "number" if input.arbitrary()? => input.arbitrary::<f64>()?.into(),
        "number" => input.int_in_range(0..=100)?.into(),
        "boolean" => input.arbitrary::<bool>()?.into(),
        "array" => {
            let count = input.int_in_range(0..=3)?;
            let items = (0..count).map(|_| described(input, description, (name, &schema["items"]), depth + 1));
            items.collect::<Result<_>>()?
        }
        "object" => object(input, description, schema, depth)?.into(),
        _ => Value::Null,
    })
}

fn object(
    input: &mut Unstructured<'_>,
    description: &Value,
    schema: &Value,
    depth: usize,
) -> Result<Map<String, Value>> {
    let mut found = Map::new();
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        let needed = schema["required"].as_array().is_some_and(|names| names.iter().any(|known| known == name));
        // Settings of a tag are many, and one that makes no sense refuses all.
        if if needed { input.ratio(31, 32)? } else { !input.ratio(3, 4)? } {
            found.insert(name.clone(), described(input, description, (name, inner), depth + 1)?);
        }
    }
    if !input.ratio(31, 32)? {
        found.insert(word(input, WORDS)?, Value::Null);
    }
    Ok(found)
}
