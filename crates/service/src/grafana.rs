//! The contract of Grafana's JSON data sources: names, series and tables, notes.
//!
//! A target is the name of a tag, or an aggregate of one, such as `TimeAverage(boiler.temperature)`. A plain tag is drawn by
//! few points that show its course.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, TimestampNanosecondType};
use arrow_array::{Array, RecordBatch};
use arrow_cast::cast;
use arrow_schema::DataType as ArrowType;
use chronotile_historian::{AggregateRequest, Downsampling, TagKey};
use futures::TryStreamExt;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::answers::Reply;
use crate::app::{App, Call};
use crate::failure::{Failure, Result};
use crate::parameters::time_ns;
use crate::reads::{aggregate_named, check_intervals, check_range};
use crate::writes::body;

pub(crate) async fn test(_: Arc<App>, _: Call) -> Result<Reply> {
    Ok(Reply::text("text/plain", "ok"))
}

#[derive(Deserialize, Default)]
struct Search {
    #[serde(default)]
    target: String,
}

/// Names of a list: more would not fit in it.
const NAMES_MAX: usize = 1_000;

pub(crate) async fn search(app: Arc<App>, call: Call) -> Result<Reply> {
    let given: Search = if call.body.is_empty() { Search::default() } else { body(&call)? };
    // What is typed so far is looked for anywhere in a name.
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

/// The times of a range, ns.
fn times(app: &App, call: &Call, range: &Range) -> Result<(i64, i64)> {
    let time = |text: &str| {
        time_ns(text, call.now_ns).map_err(|reason| Failure::invalid(format!("a time of the range {reason}")))
    };
    let (start, end) = (time(&range.from)?, time(&range.to)?);
    check_range(app, start, end)?;
    Ok((start, end))
}

pub(crate) async fn query(app: Arc<App>, call: Call) -> Result<Reply> {
    let given: Query = body(&call)?;
    let (start, end) = times(&app, &call, &given.range)?;
    let mut answers = Vec::with_capacity(given.targets.len());
    for target in given.targets.iter().filter(|target| !target.hide && !target.target.is_empty()) {
        let points = points(&app, &target.target, (start, end), &given).await?;
        answers.push(if target.kind == "table" { table(target, &points)? } else { series(target, &points)? });
    }
    Ok(Reply::json(&Value::Array(answers)))
}

async fn points(app: &App, target: &str, range: (i64, i64), given: &Query) -> Result<Vec<RecordBatch>> {
    let count = given.max_data_points.unwrap_or(1_000).clamp(4, 100_000);
    let parts = target.strip_suffix(')').and_then(|rest| rest.split_once('('));
    // A name may have brackets of its own.
    let aggregate =
        parts.and_then(|(name, tag)| aggregate_named(name.trim()).ok().map(|aggregate| (aggregate, tag.trim())));
    let Some((aggregate, tag)) = aggregate else {
        let tag = TagKey::Name(target.to_owned());
        return Ok(vec![app.historian.plot(&tag, range.0, range.1, count, Downsampling::MinMax).await?]);
    };
    let span_ms = range.0.abs_diff(range.1) / 1_000_000;
    let interval_ms = given.interval_ms.unwrap_or(0).max(span_ms.div_ceil(count as u64)).max(1);
    let request = AggregateRequest {
        tags: vec![TagKey::Name(tag.to_owned())],
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

/// Times in milliseconds with values and statuses.
fn rows(batches: &[RecordBatch]) -> Result<Vec<(i64, Option<f64>, u32)>> {
    let mut rows = Vec::new();
    for batch in batches {
        let times = batch.column(1).as_primitive::<TimestampNanosecondType>();
        let values = cast(batch.column(2), &ArrowType::Float64).map_err(|error| Failure::invalid(error.to_string()))?;
        let values = values.as_primitive::<Float64Type>();
        let statuses = batch.column(3).as_primitive::<arrow_array::types::UInt32Type>();
        rows.extend((0..batch.num_rows()).map(|row| {
            let value = values.is_valid(row).then(|| values.value(row));
            (times.value(row).div_euclid(1_000_000), value, statuses.value(row))
        }));
    }
    Ok(rows)
}

fn series(target: &Target, batches: &[RecordBatch]) -> Result<Value> {
    let points: Vec<Value> = rows(batches)?.iter().map(|(time, value, _)| json!([value, time])).collect();
    Ok(json!({ "target": target.target, "refId": target.ref_id, "datapoints": points }))
}

fn table(target: &Target, batches: &[RecordBatch]) -> Result<Value> {
    let rows: Vec<Value> = rows(batches)?.iter().map(|(time, value, status)| json!([time, value, status])).collect();
    let columns = json!([
        { "text": "Time", "type": "time" },
        { "text": target.target, "type": "number" },
        { "text": "Status", "type": "number" },
    ]);
    Ok(json!({ "type": "table", "refId": target.ref_id, "columns": columns, "rows": rows }))
}

#[derive(Deserialize)]
struct Notes {
    range: Range,
    annotation: Value,
}

pub(crate) async fn annotations(app: Arc<App>, call: Call) -> Result<Reply> {
    let given: Notes = body(&call)?;
    let (start, end) = times(&app, &call, &given.range)?;
    let pattern = given.annotation.get("query").and_then(Value::as_str).unwrap_or_default();
    let tags = app.historian.find(if pattern.is_empty() { "*" } else { pattern }, NAMES_MAX).await?;
    let keys: Vec<TagKey> = tags.iter().map(|tag| TagKey::Number(tag.number)).collect();
    if keys.is_empty() {
        return Ok(Reply::json(&json!([])));
    }
    let batches: Vec<RecordBatch> = app.historian.annotations(&keys, start, end).await?.try_collect().await?;
    let mut notes = Vec::new();
    for batch in &batches {
        let numbers = batch.column(0).as_primitive::<arrow_array::types::Int64Type>();
        let times = batch.column(1).as_primitive::<TimestampNanosecondType>();
        let (authors, texts) = (batch.column(3).as_string::<i32>(), batch.column(4).as_string::<i32>());
        for row in 0..batch.num_rows() {
            let name = tags.iter().find(|tag| tag.number == numbers.value(row)).map(|tag| tag.name.as_str());
            notes.push(json!({
                "annotation": given.annotation,
                "time": times.value(row).div_euclid(1_000_000),
                "title": authors.value(row),
                "text": texts.value(row),
                "tags": name,
            }));
        }
    }
    Ok(Reply::json(&Value::Array(notes)))
}
