//! Write requests for points: parse the body, check points against their tags, store them before the response.

use std::sync::Arc;

use arrow_array::RecordBatch;
use axum::http::header;
use chronotile_historian::rules::Settings as AggregateSettings;
use chronotile_historian::{NotFinite, PointsOptions, Tag, TagKey};
use serde::Deserialize;
use serde_json::{Value as Json, json};

use chronotile_types::ErrorKind;

use crate::answers::{ARROW, Reply};
use crate::app::{App, Call};
use crate::failure::{Failure, Result};
use crate::parameters::{duration_ns, time_ns};
use crate::points::{Checks, NAMES_MAX, Points, Refusals};
use crate::{arrow_stream, csv, json, line_protocol, reads, remote_write, work};
use chronotile_archive::memory::Charge;

/// Memory of a row while it is stored: as columns, sorted, and compressed.
const STORED_ROW_BYTES: usize = 128;

/// The options of a write request.
struct WriteOptions {
    partial: bool,
    define: bool,
    not_finite: NotFinite,
    batch: Option<String>,
    replace: bool,
}

impl WriteOptions {
    fn of(call: &Call) -> Result<Self> {
        let given = &call.parameters;
        let not_finite = match given.one("not_finite")? {
            None | Some("refuse") => NotFinite::Refuse,
            Some("bad") => NotFinite::Bad,
            Some(other) => return Err(Failure::invalid(format!("not_finite is {other:?}: use refuse or bad"))),
        };
        Ok(Self {
            partial: given.flag("partial")?.unwrap_or(false),
            define: may_define(call, given.flag("define")?.unwrap_or(false))?,
            not_finite,
            batch: given.one("batch")?.map(str::to_owned),
            replace: given.flag("replace")?.unwrap_or(false),
        })
    }
}

fn may_define(call: &Call, define: bool) -> Result<bool> {
    if define && !call.may_define {
        let message = "define=true needs the role define, or admin: define tags first, or use a token that has it";
        return Err(Failure::new(ErrorKind::RoleMissing, message));
    }
    Ok(define)
}

pub(crate) async fn points(app: Arc<App>, call: Call) -> Result<Reply> {
    let options = WriteOptions::of(&call)?;
    let content_type = content_type(&call).to_owned();
    if content_type == ARROW {
        return arrow(app, call, options).await;
    }
    let (body, now_ns) = (call.body, call.now_ns);
    let read: fn(bytes::Bytes, i64, &mut Points) -> std::result::Result<(), String> = match content_type.as_str() {
        "application/json" | "" => |body, now_ns, points| json::read(&body, now_ns, points),
        "text/csv" => csv::read,
        other => {
            let message = format!("the body is {other:?}: send application/json, text/csv or {ARROW}");
            return Err(Failure::new(ErrorKind::UnsupportedType, message));
        }
    };
    let points = parsed(&app, body.len(), move |points| read(body, now_ns, points)).await?;
    store(&app, points, options, now_ns).await.map(|report| Reply::json(&report))
}

pub(crate) async fn line_protocol(app: Arc<App>, call: Call) -> Result<Reply> {
    let options = WriteOptions::of(&call)?;
    let unit = call.parameters.one("precision")?.unwrap_or("ns");
    let word = match unit {
        "n" => "ns",
        "u" | "µ" => "us",
        other => other,
    };
    let unit_ns = duration_ns(&format!("1{word}")).map_err(|_| {
        Failure::invalid(format!("precision is {unit:?}: use ns, us, ms or s, or n, u, m and h as in version 1"))
    })?;
    let (body, now_ns) = (call.body, call.now_ns);
    let points = parsed(&app, body.len(), move |points| {
        line_protocol::read(&body, unit_ns, now_ns, points);
        Ok(())
    });
    empty_or_report(store(&app, points.await?, options, now_ns).await?)
}

pub(crate) async fn remote_write(app: Arc<App>, call: Call) -> Result<Reply> {
    let options = WriteOptions { not_finite: NotFinite::Bad, ..WriteOptions::of(&call)? };
    let (body, now_ns, bytes_max) = (call.body, call.now_ns, app.settings.limits.body_bytes);
    let bytes = remote_write::unpacked_bytes(&body);
    let points = parsed(&app, bytes, move |points| remote_write::read(&body, bytes_max, points)).await?;
    empty_or_report(store(&app, points, options, now_ns).await?)
}

/// Clients of line protocol and remote write expect an empty response; they get a report only if lines were refused.
fn empty_or_report(report: Json) -> Result<Reply> {
    if report["refused_count"] == 0 { Ok(Reply::nothing()) } else { Ok(Reply::json(&report)) }
}

fn content_type(call: &Call) -> &str {
    let given = call.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    given.split(';').next().unwrap_or_default().trim()
}

/// Parses a body that takes `bytes` bytes when decompressed.
async fn parsed(
    app: &App,
    bytes: usize,
    read: impl FnOnce(&mut Points) -> std::result::Result<(), String> + Send + 'static,
) -> Result<Points> {
    let charge = app.memory.empty();
    let read = work::apart(bytes, move || {
        let mut points = Points::charged(charge);
        read(&mut points).map(|()| points)
    });
    let points = read.await?;
    let points = points.map_err(|message| Failure::new(ErrorKind::InvalidRows, message))?;
    match points.memory_error() {
        Some(error) => Err(error.into()),
        None => Ok(points),
    }
}

async fn store(app: &Arc<App>, points: Points, options: WriteOptions, now_ns: i64) -> Result<Json> {
    // A body with lines that cannot be parsed is refused before `tags_of` may define tags.
    if points.refused.count > 0 && !options.partial {
        return Err(refusal(app, points.refused));
    }
    // From here on, every name has its tag, or None if the tag is unknown and may not be defined.
    let tags = tags_of(app, &points, options.define).await?;
    let time_max = app.settings.limits.future_max_ns.map_or(i64::MAX, |ahead| now_ns.saturating_add(ahead));
    // Similar names are searched for only for the first unknown tag, the only one whose message contains them.
    let near = match tags.iter().position(Option::is_none) {
        Some(unknown) => app.historian.near(&points.names()[unknown]).await,
        None => vec![],
    };
    let checks = Checks { time_max, not_finite: options.not_finite, near };
    // From here on, points become tables, which `points.tables` requires to be charged; the charge is held until they
    // are stored.
    let charge = app.memory.charge(points.len() * STORED_ROW_BYTES)?;
    let gathered = work::apart(points.len() * STORED_ROW_BYTES, move || points.tables(&tags, &checks));
    // Each point now has the type of its tag; points of unknown tags and of other types are among the refused.
    let (tables, refused) = gathered
        .await?
        .map_err(|error| Failure::new(ErrorKind::Compute, format!("points could not be gathered: {error}")))?;
    let count: usize = tables.iter().map(RecordBatch::num_rows).sum();
    // Fail if every line is wrong, even with partial=true: after a success the client would never send the points again.
    if refused.count > 0 && (!options.partial || count == 0) {
        return Err(refusal(app, refused));
    }
    let mut report = json!({ "points": count });
    if options.batch.is_some() {
        // A batch name stands for the points of this request alone, so they cannot join a group commit. Rows were
        // checked above: any NaN or infinity left is to be stored as Bad.
        report = store_separately(app, tables, &options, NotFinite::Bad, charge).await?;
    } else if count > 0 {
        // Rows of one commit wait for each other; two group commits keep small requests from waiting for large ones.
        let small = count * STORED_ROW_BYTES < work::APART_BYTES;
        let group_commit = if small { &app.group_commit } else { &app.large_group_commit };
        group_commit.store(tables, charge).await?;
        app.metrics.points_in.inc_by(count as u64);
    }
    app.metrics.points_refused.inc_by(refused.count);
    report["refused_count"] = refused.count.into();
    report["refused"] = refused_lines(&refused);
    Ok(report)
}

/// Stores an Arrow stream: its tables go to the historian unchanged.
async fn arrow(app: Arc<App>, call: Call, options: WriteOptions) -> Result<Reply> {
    if options.partial || options.define {
        return Err(Failure::invalid(
            "partial and define apply to points as text: an Arrow stream is stored as a whole",
        ));
    }
    let body = call.body;
    let refuse = |message: String| Failure::new(ErrorKind::InvalidRows, message);
    let tables = work::with_cpu_permit(move || arrow_stream::read(body)).await?.map_err(refuse)?;
    // A batch without columns may declare any number of rows, so sum and product saturate.
    let rows = tables.iter().map(RecordBatch::num_rows).fold(0_usize, usize::saturating_add);
    let charge = app.memory.charge(rows.saturating_mul(STORED_ROW_BYTES))?;
    let mut report = store_separately(&app, tables, &options, options.not_finite, charge).await?;
    report["refused_count"] = 0.into();
    report["refused"] = json!([]);
    Ok(Reply::json(&report))
}

/// Stores tables in a commit of their own. The write continues if the client disconnects: an interrupted one would have to be
/// found and cleaned up later.
async fn store_separately(
    app: &Arc<App>,
    tables: Vec<RecordBatch>,
    options: &WriteOptions,
    not_finite: NotFinite,
    charge: Charge,
) -> Result<Json> {
    let points_options = PointsOptions { batch: options.batch.clone(), replace: options.replace, not_finite };
    let historian = app.historian.clone();
    let write = tokio::spawn(async move {
        let report = historian.write(tables, &points_options).await;
        drop(charge);
        report
    });
    let report = write.await??;
    app.metrics.commits.inc();
    app.metrics.points_in.inc_by(report.points);
    Ok(json!({ "points": report.points, "duplicates": report.duplicates, "stored": report.stored }))
}

fn refused_lines(refused: &Refusals) -> Json {
    refused.kept.iter().map(|refused| json!({ "line": refused.line, "message": refused.message })).collect()
}

/// The error for a write that is refused as a whole because of some lines.
fn refusal(app: &App, refused: Refusals) -> Failure {
    app.metrics.points_refused.inc_by(refused.count);
    let (line, reason) = refused.kept.first().map_or((0, ""), |first| (first.line, first.message.as_str()));
    let others = match refused.count - 1 {
        0 => String::new(),
        count => format!(" ({count} more invalid lines)"),
    };
    let message = format!(
        "line {line}: {reason}{others}; nothing was stored: correct the lines, or store the good ones with partial=true"
    );
    let failure = match refused.unknown == refused.count {
        true => Failure::new(ErrorKind::TagNotFound, message),
        false => Failure::new(ErrorKind::InvalidRows, message),
    };
    failure.with("refused_count", refused.count).with("refused", refused_lines(&refused))
}

/// The tags of the points, in the order of the names.
async fn tags_of(app: &App, points: &Points, define: bool) -> Result<Vec<Option<Arc<Tag>>>> {
    if points.names().len() > NAMES_MAX {
        return Err(Failure::too_large(format!(
            "the body has points of more than {NAMES_MAX} tags: send it in pieces"
        )));
    }
    let keys: Vec<TagKey> = points.names().iter().map(|name| TagKey::Name(name.to_string())).collect();
    let mut tags = app.historian.lookup(&keys).await?;
    let missing: Vec<usize> = (0..tags.len()).filter(|place| tags[*place].is_none()).collect();
    if define && !missing.is_empty() {
        let kinds = points.kinds(&missing);
        let new = missing.iter().zip(kinds).map(|(place, data_type)| Tag {
            // -1 asks the historian to derive the number from the name.
            number: -1,
            name: points.names()[*place].to_string(),
            unit: String::new(),
            description: String::new(),
            group: "main".into(),
            data_type,
            settings: AggregateSettings::default(),
            exception_deviation: -1.0,
            compression_deviation: -1.0,
        });
        let defined = app.historian.define(new.collect()).await?;
        for (place, tag) in missing.into_iter().zip(defined) {
            tags[place] = Some(tag);
        }
    }
    Ok(tags)
}

pub(crate) async fn delete(app: Arc<App>, call: Call) -> Result<Reply> {
    let tag = reads::one_tag(&call)?;
    let time = |name| call.parameters.time(name, call.now_ns).map(Option::unwrap_or_default);
    let (start, end) = (time("start")?, time("end")?);
    reads::check_range(&app, start, end)?;
    if start > end {
        return Err(Failure::invalid("the range ends before it starts: swap start and end"));
    }
    let historian = app.historian.clone();
    // Spawned, so that the deletion continues if the client disconnects.
    let deleting = tokio::spawn(async move { historian.delete(&tag, start, end).await });
    let deleted = deleting.await??;
    Ok(Reply::json(&json!({ "deleted": deleted })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AnnotationIn {
    tag: String,
    time: Json,
    text: String,
    #[serde(default)]
    author: String,
}

pub(crate) async fn annotate(app: Arc<App>, call: Call) -> Result<Reply> {
    let note: AnnotationIn = body(&call)?;
    let time = match &note.time {
        Json::Number(count) => count.as_i64().ok_or_else(|| format!("is {count}")),
        Json::String(text) => time_ns(text, call.now_ns),
        other => Err(format!("is {other}: give ISO 8601 text, or nanoseconds since 1970")),
    };
    let time = time.map_err(|reason| Failure::new(ErrorKind::InvalidTime, format!("time {reason}")))?;
    app.historian.annotate(&TagKey::Name(note.tag), time, &note.author, &note.text).await?;
    Ok(Reply::nothing())
}

/// Maximum length of a JSON body other than points: decoded, it takes many times as much memory.
const JSON_BODY_BYTES_MAX: usize = 1 << 20;

/// Decodes a JSON body of limited length.
pub(crate) fn body<'a, T: Deserialize<'a>>(call: &'a Call) -> Result<T> {
    if call.body.len() > JSON_BODY_BYTES_MAX {
        return Err(Failure::too_large(format!(
            "the body has {} bytes, this request at most {JSON_BODY_BYTES_MAX}",
            call.body.len()
        )));
    }
    whole_body(call)
}

/// Decodes a JSON body of any length that the service accepts.
pub(crate) fn whole_body<'a, T: Deserialize<'a>>(call: &'a Call) -> Result<T> {
    serde_json::from_slice(&call.body).map_err(|error| Failure::invalid(format!("unexpected body: {error}")))
}
