//! Endpoints for tags and groups: definitions and retention.

use std::sync::Arc;

use chronotile_historian::rules::Settings;
use chronotile_historian::{DataType, HistorianError, Tag, TagKey};
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;

use crate::answers::Reply;
use crate::app::{App, Call};
use crate::failure::{Failure, Result};
use crate::json::Elements;
use crate::reads;
use crate::writes::{body, whole_body};

/// A tag in JSON.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TagJson {
    name: String,
    #[serde(default = "unnumbered")]
    number: i64,
    #[serde(default)]
    unit: String,
    #[serde(default)]
    description: String,
    #[serde(default = "main_group")]
    group: String,
    #[serde(default = "float")]
    data_type: String,
    #[serde(default)]
    stepped: bool,
    #[serde(default = "yes")]
    treat_uncertain_as_bad: bool,
    #[serde(default = "hundred")]
    percent_good: f64,
    #[serde(default = "hundred")]
    percent_bad: f64,
    #[serde(default)]
    sloped_extrapolation: bool,
    #[serde(default)]
    exception_deviation: Option<f64>,
    #[serde(default)]
    compression_deviation: Option<f64>,
}

fn unnumbered() -> i64 {
    -1
}

fn main_group() -> String {
    "main".into()
}

fn float() -> String {
    "float".into()
}

fn yes() -> bool {
    true
}

fn hundred() -> f64 {
    100.0
}

impl From<&Tag> for TagJson {
    fn from(tag: &Tag) -> Self {
        let given = |deviation: f64| (deviation >= 0.0).then_some(deviation);
        Self {
            name: tag.name.clone(),
            number: tag.number,
            unit: tag.unit.clone(),
            description: tag.description.clone(),
            group: tag.group.clone(),
            data_type: tag.data_type.name().into(),
            stepped: tag.settings.stepped,
            treat_uncertain_as_bad: tag.settings.treat_uncertain_as_bad,
            percent_good: tag.settings.percent_good,
            percent_bad: tag.settings.percent_bad,
            sloped_extrapolation: tag.settings.sloped_extrapolation,
            exception_deviation: given(tag.exception_deviation),
            compression_deviation: given(tag.compression_deviation),
        }
    }
}

impl TagJson {
    fn tag(self) -> Result<Tag> {
        let data_type = DataType::from_name(&self.data_type).ok_or_else(|| {
            let reason = format!("unknown data type {:?}: use float, integer, bool or string", self.data_type);
            Failure::from(HistorianError::Definition { tag: self.name.clone(), reason })
        })?;
        Ok(Tag {
            number: self.number,
            name: self.name,
            unit: self.unit,
            description: self.description,
            group: self.group,
            data_type,
            settings: Settings {
                stepped: self.stepped,
                treat_uncertain_as_bad: self.treat_uncertain_as_bad,
                percent_good: self.percent_good,
                percent_bad: self.percent_bad,
                sloped_extrapolation: self.sloped_extrapolation,
                ..Settings::default()
            },
            exception_deviation: self.exception_deviation.unwrap_or(-1.0),
            compression_deviation: self.compression_deviation.unwrap_or(-1.0),
        })
    }
}

fn listed(tags: &[Arc<Tag>]) -> Reply {
    let tags: Vec<TagJson> = tags.iter().map(|tag| TagJson::from(tag.as_ref())).collect();
    Reply::json(&json!({ "tags": tags }))
}

pub(crate) async fn list(app: Arc<App>, call: Call) -> Result<Reply> {
    let limit = call.parameters.number("limit")?.unwrap_or(1_000);
    let mut tags = Vec::new();
    if call.parameters.names().any(|name| matches!(name, "tag" | "number")) {
        tags = app.historian.resolve(&reads::tags(&app, &call).await?).await?;
        tags.truncate(limit);
    } else {
        tags.extend(app.historian.find(call.parameters.one("match")?.unwrap_or("*"), limit).await?);
    }
    Ok(listed(&tags))
}

pub(crate) async fn one(app: Arc<App>, call: Call) -> Result<Reply> {
    let tag = app.historian.resolve(&[TagKey::Name(call.part("name").to_owned())]).await?.remove(0);
    Ok(Reply::json(&json!(TagJson::from(tag.as_ref()))))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TagsIn<'a> {
    #[serde(borrow)]
    tags: &'a RawValue,
}

/// Memory of one definition, from its JSON text to its stored form.
const TAG_BYTES: usize = 1_024;

pub(crate) async fn define(app: Arc<App>, call: Call) -> Result<Reply> {
    let given: TagsIn<'_> = whole_body(&call)?;
    let refuse = |reason: String| Failure::invalid(format!("unexpected body: {reason}"));
    let tags_max = app.settings.limits.tags;
    let texts = Elements::of("tags", given.tags).map_err(refuse)?;
    // Definitions are counted as text, because decoded ones take many times as much memory.
    if texts.clone().nth(tags_max).is_some() {
        return Err(Failure::too_large(format!("the body defines more than {tags_max} tags: send some at a time")));
    }
    let _charge = app.memory.charge(texts.clone().count().saturating_mul(TAG_BYTES))?;
    let tag = |text| serde_json::from_str::<TagJson>(text).map_err(|error| refuse(error.to_string()))?.tag();
    let tags = texts.map(tag).collect::<Result<Vec<Tag>>>()?;
    Ok(listed(&app.historian.define(tags).await?))
}

pub(crate) async fn groups(app: Arc<App>, _: Call) -> Result<Reply> {
    Ok(Reply::json(&json!({ "groups": app.historian.groups().await? })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Retention {
    /// Null keeps points forever. The field is required, so that an empty body cannot remove a retention.
    #[serde(deserialize_with = "Option::deserialize")]
    retention: Option<String>,
}

pub(crate) async fn set_retention(app: Arc<App>, call: Call) -> Result<Reply> {
    let given: Retention = body(&call)?;
    let parsed = given.retention.map(|text| text.parse()).transpose();
    let retention = parsed.map_err(|error| Failure::from(chronotile_archive::ArchiveError::Time(error)))?;
    app.historian.set_retention(call.part("group"), retention).await?;
    Ok(Reply::nothing())
}

pub(crate) async fn retire(app: Arc<App>, call: Call) -> Result<Reply> {
    let dry_run = call.parameters.flag("dry_run")?.unwrap_or(false);
    let points = app.historian.retire(call.part("group"), dry_run).await?;
    Ok(Reply::json(&json!({ "points": points })))
}

pub(crate) async fn maintain(app: Arc<App>, _: Call) -> Result<Reply> {
    let report = app.historian.maintain().await?;
    Ok(Reply::json(&json!({
        "tiles_consolidated": report.tiles_consolidated,
        "tiles_summarized": report.tiles_summarized,
        "hours": report.hours,
        "failed": report.failed,
    })))
}
