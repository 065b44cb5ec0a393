//! Endpoints that read points.

use std::sync::Arc;

use chronotile_historian::rules::Aggregate;
use chronotile_historian::{AggregateRequest, Downsampling, RawRequest, TagKey};

use chronotile_types::ErrorKind;

use crate::answers::{self, Reply, RowStream, too_many};
use crate::app::{App, Call};
use crate::failure::{Failure, Result};
use crate::points::shown;

/// The tags that a request names, by name or number.
fn named(call: &Call) -> Result<Vec<TagKey>> {
    let key = |(name, value): (&str, &str)| match name {
        "tag" => Some(Ok(TagKey::Name(value.to_owned()))),
        "number" => Some(
            value
                .parse()
                .map(TagKey::Number)
                .map_err(|_| Failure::invalid(format!("number is {}: give a whole number", shown(value)))),
        ),
        _ => None,
    };
    call.parameters.pairs().filter_map(key).collect()
}

/// The tags that a request names, by name, number or pattern.
pub(crate) async fn tags(app: &App, call: &Call) -> Result<Vec<TagKey>> {
    let tags_max = app.settings.limits.tags;
    let mut keys = named(call)?;
    if let Some(pattern) = call.parameters.one("match")? {
        // One tag more than the limit shows that the pattern matches too many.
        let found = app.historian.find(pattern, tags_max + 1).await?;
        if found.is_empty() && keys.is_empty() {
            let message = format!("no tag matches {}: search for a part of its name, such as *part*", shown(pattern));
            return Err(Failure::new(ErrorKind::TagNotFound, message).with("tag", pattern));
        }
        keys.extend(found.iter().map(|tag| TagKey::Number(tag.number)));
    }
    if keys.is_empty() {
        return Err(Failure::invalid("the request names no tag: give tag, number or match"));
    }
    if keys.len() > tags_max {
        return Err(Failure::too_large(format!("the request names more than {tags_max} tags: ask for some at a time")));
    }
    Ok(keys)
}

/// The single tag of a request, by name or number.
pub(crate) fn one_tag(call: &Call) -> Result<TagKey> {
    let mut keys = named(call)?;
    match keys.len() {
        0 => Err(Failure::invalid("the request names no tag: give tag or number")),
        1 => Ok(keys.remove(0)),
        count => Err(Failure::invalid(format!("the request names {count} tags: it takes one at a time"))),
    }
}

/// The range of a request, ns. The end may be before the start.
fn range(app: &App, call: &Call) -> Result<(i64, i64)> {
    let start = call.parameters.time("start", call.now_ns)?.unwrap_or_default();
    let end = call.parameters.time("end", call.now_ns)?.unwrap_or(call.now_ns);
    check_range(app, start, end)?;
    Ok((start, end))
}

pub(crate) fn check_range(app: &App, start: i64, end: i64) -> Result<()> {
    let range_max = app.settings.limits.range;
    if u128::from(start.abs_diff(end)) > range_max.as_nanos() {
        let days = range_max.as_secs() / 86_400;
        return Err(Failure::too_large(format!(
            "the range is longer than {days} days: ask for a part of it at a time"
        )));
    }
    Ok(())
}

pub(crate) async fn raw(app: Arc<App>, call: Call) -> Result<Reply> {
    let (tags, (start, end)) = (tags(&app, &call).await?, range(&app, &call)?);
    let points_max = app.settings.limits.points;
    // This estimate reads only metadata and ignores tiles that the range cuts; `answers::rows` counts the rows that are
    // sent.
    if start < end && app.historian.points_within(&tags, start, end).await? > points_max {
        return Err(too_many(points_max));
    }
    let bounds = call.parameters.flag("bounds")?.unwrap_or(false);
    let points = app.historian.raw(RawRequest { tags, start, end, bounds }).await?;
    answers::rows(&app, &call, points.into()).await
}

pub(crate) async fn latest(app: Arc<App>, call: Call) -> Result<Reply> {
    let points = app.historian.latest(&tags(&app, &call).await?).await?;
    answers::rows(&app, &call, RowStream::of(points)).await
}

pub(crate) async fn at(app: Arc<App>, call: Call) -> Result<Reply> {
    let tags = tags(&app, &call).await?;
    let time = |text| {
        let refuse = |reason| Failure::new(ErrorKind::InvalidTime, format!("time {reason}"));
        crate::parameters::time_ns(text, call.now_ns).map_err(refuse)
    };
    let times: Vec<i64> = call.parameters.all("time").map(time).collect::<Result<_>>()?;
    let points_max = app.settings.limits.points;
    if (times.len() as u64).saturating_mul(tags.len() as u64) > points_max {
        return Err(too_many(points_max));
    }
    let points = app.historian.values_at(&tags, &times, call.parameters.flag("stepped")?).await?;
    answers::rows(&app, &call, points.into()).await
}

pub(crate) fn aggregate_named(name: &str) -> Result<Aggregate> {
    Aggregate::from_name(name).ok_or_else(|| Failure::invalid(Aggregate::unknown(name, &shown(name))))
}

/// Refuses a request whose result would have too many rows.
pub(crate) fn check_intervals(app: &App, request: &AggregateRequest) -> Result<()> {
    let width = u64::try_from(request.interval).unwrap_or(0);
    let intervals = if width == 0 { 1 } else { request.start.abs_diff(request.end).div_ceil(width) };
    let points_max = app.settings.limits.points;
    if intervals.saturating_mul(request.tags.len() as u64) > points_max { Err(too_many(points_max)) } else { Ok(()) }
}

pub(crate) async fn aggregate(app: Arc<App>, call: Call) -> Result<Reply> {
    let (tags, (start, end)) = (tags(&app, &call).await?, range(&app, &call)?);
    let given = &call.parameters;
    let sample_results = match given.one("rules")? {
        None | Some("samples") => true,
        Some("standard") => false,
        Some(other) => return Err(Failure::invalid(format!("rules is {other:?}: use samples or standard"))),
    };
    let request = AggregateRequest {
        tags,
        start,
        end,
        interval: given.duration("interval")?.unwrap_or(0),
        aggregate: aggregate_named(given.needed("aggregate")?)?,
        stepped: given.flag("stepped")?,
        treat_uncertain_as_bad: given.flag("treat_uncertain_as_bad")?,
        percent_good: given.number("percent_good")?,
        percent_bad: given.number("percent_bad")?,
        sloped_extrapolation: given.flag("sloped_extrapolation")?,
        percent: given.number("percent")?.unwrap_or(50.0),
        sample_results,
        points_only: given.flag("points_only")?.unwrap_or(false),
    };
    check_intervals(&app, &request)?;
    let charge = app.memory.charge(request.bytes_held_max())?;
    let results = RowStream::from(app.historian.aggregate(request).await?).holding(charge);
    answers::rows(&app, &call, results).await
}

/// Memory per point (lttb) or per span of time (minmax) while a plot is computed.
const PLOTTED_BYTES: usize = 32;

pub(crate) async fn plot(app: Arc<App>, call: Call) -> Result<Reply> {
    let (tag, (start, end)) = (one_tag(&call)?, range(&app, &call)?);
    let points: usize = call.parameters.number("points")?.unwrap_or(1_000);
    let points_max = app.settings.limits.points;
    if points as u64 > points_max {
        return Err(too_many(points_max));
    }
    let method = match call.parameters.one("method")? {
        None | Some("minmax") => Downsampling::MinMax,
        Some("lttb") => Downsampling::Lttb,
        Some(other) => return Err(Failure::invalid(format!("method is {other:?}: use minmax or lttb"))),
    };
    // minmax keeps one entry for each of the requested spans, lttb every point in the range.
    let held = match method {
        Downsampling::MinMax => points as u64,
        Downsampling::Lttb if start < end => {
            app.historian.points_within(std::slice::from_ref(&tag), start, end).await?
        }
        Downsampling::Lttb => 0,
    };
    if held > points_max {
        return Err(too_many(points_max));
    }
    let charge = app.memory.charge(usize::try_from(held).unwrap_or(usize::MAX).saturating_mul(PLOTTED_BYTES))?;
    let shown = app.historian.plot(&tag, start, end, points, method).await?;
    drop(charge);
    answers::rows(&app, &call, RowStream::of(vec![shown])).await
}

pub(crate) async fn annotations(app: Arc<App>, call: Call) -> Result<Reply> {
    let (tags, (start, end)) = (tags(&app, &call).await?, range(&app, &call)?);
    let notes = app.historian.annotations(&tags, start, end).await?;
    answers::rows(&app, &call, notes.into()).await
}
