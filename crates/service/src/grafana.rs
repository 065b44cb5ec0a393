//! Serves the API of Grafana's JSON data sources: searches names, queries series and tables, reads annotations.
//!
//! A target is the name of a tag, or an aggregate of one, such as `TimeAverage(boiler.temperature)`. A plain tag is
//! downsampled to points that preserve its shape.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, TimestampNanosecondType};
use arrow_array::{Array, RecordBatch};
use arrow_cast::cast;
use arrow_schema::DataType as ArrowType;
use bytes::Bytes;
use chronotile_historian::rules::Aggregate;
use chronotile_historian::{AggregateRequest, Downsampling, TagKey};
use futures::stream;
use futures::{StreamExt, TryStreamExt};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::answers::{self, Reply, RowStream, too_many};
use crate::app::{App, Call};
use crate::failure::{Failure, Result};
use crate::parameters::time_ns;
use crate::reads::{aggregate_named, check_intervals, check_range};
use crate::work;
use crate::writes::body;

pub(crate) async fn test(_: Arc<App>, _: Call) -> Result<Reply> {
    Ok(Reply::text("text/plain", "ok"))
}

#[derive(Deserialize, Default)]
struct Search {
    #[serde(default)]
    target: String,
}

/// Maximum number of names in the selection list of Grafana.
const NAMES_MAX: usize = 1_000;

pub(crate) async fn search(app: Arc<App>, call: Call) -> Result<Reply> {
    let given: Search = if call.body.is_empty() { Search::default() } else { body(&call)? };
    // The text typed so far may match any part of a name.
    let pattern = if given.target.contains(['*', '?']) { given.target } else { format!("*{}*", given.target) };
    let tags = app.historian.find(&pattern, NAMES_MAX).await?;
    Ok(Reply::json(&tags.iter().map(|tag| tag.name.as_str()).collect()))
}

#[derive(Deserialize)]
struct Range {
    from: String,
    to: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Query {
    range: Range,
    #[serde(default)]
    interval_ms: Option<u64>,
    #[serde(default)]
    max_data_points: Option<usize>,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Target {
    #[serde(default)]
    target: String,
    #[serde(default)]
    ref_id: Value,
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    hide: bool,
}

/// Start and end of a range, ns.
fn times(app: &App, call: &Call, range: &Range) -> Result<(i64, i64)> {
    let time = |text: &str| {
        time_ns(text, call.now_ns).map_err(|reason| Failure::invalid(format!("a time of the range {reason}")))
    };
    let (start, end) = (time(&range.from)?, time(&range.to)?);
    check_range(app, start, end)?;
    Ok((start, end))
}

/// The tag and aggregate that a target requests.
struct TargetQuery {
    target: Target,
    tag: TagKey,
    /// `None` to plot the tag itself.
    aggregate: Option<Aggregate>,
}

impl From<Target> for TargetQuery {
    fn from(target: Target) -> Self {
        let parts = target.target.strip_suffix(')').and_then(|rest| rest.split_once('('));
        // The text in brackets may be part of a tag name, so it counts as an aggregate only if there is one of that
        // name.
        let aggregate =
            parts.and_then(|(name, tag)| aggregate_named(name.trim()).ok().map(|aggregate| (aggregate, tag.trim())));
        let tag = TagKey::Name(aggregate.map_or(&*target.target, |(_, tag)| tag).to_owned());
        let aggregate = aggregate.map(|(aggregate, _)| aggregate);
        Self { target, tag, aggregate }
    }
}

/// Maximum number of points of one target.
const POINTS_MAX: usize = 100_000;

pub(crate) async fn query(app: Arc<App>, call: Call) -> Result<Reply> {
    let given: Query = body(&call)?;
    let range = times(&app, &call, &given.range)?;
    // `Historian::plot` refuses fewer than 4 points.
    let count = given.max_data_points.unwrap_or(1_000).clamp(4, POINTS_MAX);
    let interval_ms = given.interval_ms.unwrap_or(0);
    let shown = given.targets.into_iter().filter(|target| !target.hide && !target.target.is_empty());
    let asked: Vec<TargetQuery> = shown.map(TargetQuery::from).collect();
    let limits = app.settings.limits;
    if asked.len() > limits.tags {
        return Err(Failure::too_large(format!(
            "the query has more than {} targets: ask for some at a time",
            limits.tags
        )));
    }
    if (asked.len() as u64).saturating_mul(count as u64) > limits.points {
        return Err(too_many(limits.points));
    }
    // Resolve all tags before the first row is sent, so that an unknown one still sets the HTTP status.
    app.historian.resolve(&asked.iter().map(|asked| asked.tag.clone()).collect::<Vec<_>>()).await?;
    let first = std::iter::once(true).chain(std::iter::repeat(false));
    let (points_of, rows) = (app.clone(), call.rows.clone());
    let answers = stream::iter(asked.into_iter().zip(first)).then(move |(asked, is_first)| {
        let (app, rows) = (points_of.clone(), rows.clone());
        async move {
            let batches = points(&app, &asked, range, interval_ms, count).await?;
            rows.fetch_add(batches.iter().map(|batch| batch.num_rows() as u64).sum(), Ordering::Relaxed);
            let bytes = batches.iter().map(answers::bytes_of).sum();
            let text = work::apart(bytes, move || {
                let mut text = Vec::from(if is_first { "" } else { "," });
                written(&mut text, &asked.target, &batches).map(|()| text)
            });
            Ok(Bytes::from(text.await??))
        }
    });
    let around = |text: &'static str| stream::once(std::future::ready(Ok(Bytes::from_static(text.as_bytes()))));
    let whole = around("[").chain(answers).chain(around("]"));
    answers::bytes(&app, &call, "application/json", whole.boxed()).await
}

async fn points(
    app: &App,
    asked: &TargetQuery,
    range: (i64, i64),
    interval_ms: u64,
    count: usize,
) -> Result<Vec<RecordBatch>> {
    let Some(aggregate) = asked.aggregate else {
        return Ok(vec![app.historian.plot(&asked.tag, range.0, range.1, count, Downsampling::MinMax).await?]);
    };
    let span_ms = range.0.abs_diff(range.1) / 1_000_000;
    // An interval shorter than the span divided by `count` would give more points than were requested.
    let interval_ms = interval_ms.max(span_ms.div_ceil(count as u64)).max(1);
    let request = AggregateRequest {
        tags: vec![asked.tag.clone()],
        start: range.0,
        end: range.1,
        interval: i64::try_from(interval_ms.saturating_mul(1_000_000)).unwrap_or(i64::MAX),
        aggregate,
        stepped: None,
        treat_uncertain_as_bad: None,
        percent_good: None,
        percent_bad: None,
        sloped_extrapolation: None,
        percent: 50.0,
        sample_results: true,
        points_only: false,
    };
    check_intervals(app, &request)?;
    Ok(app.historian.aggregate(request).await?.stream.try_collect().await?)
}

/// Encodes the response to a target: a series of `[value, time]`, or a table of `[time, value, status]`, times in
/// milliseconds.
fn written(text: &mut Vec<u8>, target: &Target, batches: &[RecordBatch]) -> Result<()> {
    let is_table = target.kind == "table";
    match is_table {
        true => text.extend_from_slice(b"{\"columns\":"),
        false => text.extend_from_slice(b"{\"datapoints\":["),
    }
    if is_table {
        let columns = json!([
            { "text": "Time", "type": "time" },
            { "text": target.target, "type": "number" },
            { "text": "Status", "type": "number" },
        ]);
        put(text, &columns)?;
        text.extend_from_slice(b",\"rows\":[");
    }
    let mut comma: &[u8] = b"";
    for batch in batches {
        let times = batch.column(1).as_primitive::<TimestampNanosecondType>();
        let values = cast(batch.column(2), &ArrowType::Float64).map_err(|error| Failure::invalid(error.to_string()))?;
        let values = values.as_primitive::<Float64Type>();
        let statuses = batch.column(3).as_primitive::<arrow_array::types::UInt32Type>();
        for row in 0..batch.num_rows() {
            text.extend_from_slice(comma);
            comma = b",";
            let value = values.is_valid(row).then(|| values.value(row));
            // Times before 1970 are negative: `div_euclid` rounds them down, as it does later ones; `/` would round up.
            let time = times.value(row).div_euclid(1_000_000);
            match is_table {
                true => put(text, &(time, value, statuses.value(row)))?,
                false => put(text, &(value, time))?,
            }
        }
    }
    text.extend_from_slice(b"],\"refId\":");
    put(text, &target.ref_id)?;
    match is_table {
        true => text.extend_from_slice(b",\"type\":\"table\"}"),
        false => {
            text.extend_from_slice(b",\"target\":");
            put(text, &target.target)?;
            text.push(b'}');
        }
    }
    Ok(())
}

fn put(text: &mut Vec<u8>, value: &impl Serialize) -> Result<()> {
    serde_json::to_writer(text, value)
        .map_err(|error| Failure::invalid(format!("the answer cannot be encoded as JSON: {error}")))
}

#[derive(Deserialize)]
struct AnnotationQuery {
    range: Range,
    annotation: Value,
}

/// Maximum bytes of the annotation object that a client sends, because each of its results repeats it.
const ANNOTATION_BYTES_MAX: usize = 4_096;
/// Number of annotations that are encoded at a time.
const NOTES_AT_ONCE: usize = 256;

pub(crate) async fn annotations(app: Arc<App>, call: Call) -> Result<Reply> {
    let given: AnnotationQuery = body(&call)?;
    let (start, end) = times(&app, &call, &given.range)?;
    let about = given.annotation.to_string();
    if about.len() > ANNOTATION_BYTES_MAX {
        return Err(Failure::too_large(format!(
            "annotation has {} bytes, of at most {ANNOTATION_BYTES_MAX}",
            about.len()
        )));
    }
    let pattern = given.annotation.get("query").and_then(Value::as_str).unwrap_or_default();
    let tags = app.historian.find(if pattern.is_empty() { "*" } else { pattern }, NAMES_MAX).await?;
    if tags.is_empty() {
        return Ok(Reply::json(&json!([])));
    }
    let keys: Vec<TagKey> = tags.iter().map(|tag| TagKey::Number(tag.number)).collect();
    let names: HashMap<i64, String> = tags.iter().map(|tag| (tag.number, tag.name.clone())).collect();
    let around = Arc::new((names, about));
    let notes = RowStream::from(app.historian.annotations(&keys, start, end).await?);
    let notes = answers::limited(notes.stream, app.settings.limits.points, call.rows.clone());
    let notes = notes.flat_map(|batch| stream::iter(answers::pieces_of(batch, NOTES_AT_ONCE)));
    let mut first: &[u8] = b"[";
    let texts = notes.then(move |batch| {
        let (comma, around) = (first, around.clone());
        if batch.as_ref().is_ok_and(|batch| batch.num_rows() > 0) {
            first = b",";
        }
        async move {
            let batch = batch?;
            let bytes = answers::bytes_of(&batch) + batch.num_rows() * around.1.len();
            work::apart(bytes, move || noted(&batch, &around.0, &around.1, comma)).await?
        }
    });
    let end = stream::once(std::future::ready(Ok(Bytes::from_static(b"]"))));
    let opened = texts.chain(end).scan(false, |begun, text: Result<Bytes>| {
        // If there were no annotations, the closing bracket comes first and the list has not been opened.
        let text = text.map(|text| match (*begun, text.first()) {
            (false, Some(b']')) => Bytes::from_static(b"[]"),
            _ => text,
        });
        *begun |= text.as_ref().is_ok_and(|text| !text.is_empty());
        std::future::ready(Some(text))
    });
    answers::bytes(&app, &call, "application/json", opened.boxed()).await
}

/// Encodes the annotations of a batch as elements of a list, with `comma` before the first.
fn noted(batch: &RecordBatch, names: &HashMap<i64, String>, about: &str, comma: &[u8]) -> Result<Bytes> {
    let numbers = batch.column(0).as_primitive::<arrow_array::types::Int64Type>();
    let times = batch.column(1).as_primitive::<TimestampNanosecondType>();
    let (authors, texts) = (batch.column(3).as_string::<i32>(), batch.column(4).as_string::<i32>());
    let (mut out, mut comma) = (Vec::new(), comma);
    for row in 0..batch.num_rows() {
        out.extend_from_slice(comma);
        comma = b",";
        out.extend_from_slice(b"{\"annotation\":");
        out.extend_from_slice(about.as_bytes());
        out.extend_from_slice(b",\"tags\":");
        put(&mut out, &names.get(&numbers.value(row)))?;
        out.extend_from_slice(b",\"text\":");
        put(&mut out, &texts.value(row))?;
        out.extend_from_slice(b",\"time\":");
        put(&mut out, &times.value(row).div_euclid(1_000_000))?;
        out.extend_from_slice(b",\"title\":");
        put(&mut out, &authors.value(row))?;
        out.push(b'}');
    }
    Ok(out.into())
}
