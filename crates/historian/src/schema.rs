//! The datasets of a historian.

use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema, SchemaRef, TimeUnit};
use chronotile_archive::ArchiveError;
use chronotile_types::{CellRule, DatasetName, DatasetSpec, Duration, TimeFormat, TimeScale, TimeSpec};

use crate::error::Result;
use crate::tag::Storage;

/// The dataset of tags.
pub(crate) const TAGS: &str = "historian_tags";
/// The dataset of the tags' names.
pub(crate) const NAMES: &str = "historian_names";
/// The dataset of annotations.
pub(crate) const ANNOTATIONS: &str = "historian_annotations";
/// Number of cells over which the tags are distributed.
const TAG_BUCKETS: u32 = 4_096;

/// The type of every time column.
pub(crate) fn nanoseconds() -> DataType {
    DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into()))
}

fn schema(columns: &[(&str, DataType)]) -> SchemaRef {
    let field = |(name, kind): &(&str, DataType)| Field::new(*name, kind.clone(), true);
    Arc::new(Schema::new(columns.iter().map(field).collect::<Vec<_>>()))
}

fn days(days: i64) -> Result<Duration> {
    let out_of_range = || ArchiveError::Time(chronotile_types::TimeError::Duration(format!("{days}d")));
    Ok(Duration::from_seconds(days * 86_400).ok_or_else(out_of_range)?)
}

struct Shape {
    columns: SchemaRef,
    cell: CellRule,
    window_days: i64,
    windows_per_slice: u32,
    id: &'static [&'static str],
}

fn spec(name: &str, shape: Shape) -> Result<DatasetSpec> {
    let name = DatasetName::new(name).map_err(|error| ArchiveError::Spec(error.into()))?;
    let time = TimeSpec { column: "time".into(), format: TimeFormat::Timestamp, scale: TimeScale::Utc };
    Ok(DatasetSpec {
        cell: shape.cell,
        windows_per_slice: shape.windows_per_slice,
        id: shape.id.iter().map(|id| (*id).to_owned()).collect(),
        ..DatasetSpec::new(name, shape.columns, time, days(shape.window_days)?)
    })
}

/// The tags, distributed by name. `time` is the same for all, so that all definitions of a name are in one tile, where
/// the one written last counts.
pub(crate) fn tags() -> Result<DatasetSpec> {
    use DataType::{Boolean, Float64, Int64, Utf8};
    let columns = schema(&[
        ("name", Utf8),
        ("time", nanoseconds()),
        ("number", Int64),
        ("unit", Utf8),
        ("description", Utf8),
        ("tag_group", Utf8),
        ("data_type", Utf8),
        ("stepped", Boolean),
        ("treat_uncertain_as_bad", Boolean),
        ("percent_good", Float64),
        ("percent_bad", Float64),
        ("sloped_extrapolation", Boolean),
        ("exception_deviation", Float64),
        ("compression_deviation", Float64),
    ]);
    let cell = CellRule::Hash { columns: vec!["name".into()], buckets: Some(TAG_BUCKETS) };
    spec(TAGS, Shape { columns, cell, window_days: 36_500, windows_per_slice: 1, id: &["name"] })
}

/// The names of the tags, in one tile and so in order: names with the same prefix are in few chunks.
pub(crate) fn names() -> Result<DatasetSpec> {
    let columns = schema(&[("name", DataType::Utf8), ("time", nanoseconds())]);
    let cell = CellRule::Hash { columns: vec!["name".into()], buckets: Some(1) };
    spec(NAMES, Shape { columns, cell, window_days: 36_500, windows_per_slice: 1, id: &["name"] })
}

/// The points of the tags of one group and storage type. Of several points with the same tag and time, the one written
/// last counts.
pub(crate) fn points(group: &str, storage: Storage) -> Result<DatasetSpec> {
    let (suffix, value) = match storage {
        Storage::Float => ("float", DataType::Float64),
        Storage::Integer => ("integer", DataType::Int64),
        Storage::Text => ("string", DataType::Utf8),
    };
    let columns =
        schema(&[("tag", DataType::Int64), ("time", nanoseconds()), ("value", value), ("status", DataType::UInt32)]);
    let cell = CellRule::Value { column: "tag".into() };
    let name = format!("historian_{group}_{suffix}");
    spec(&name, Shape { columns, cell, window_days: 1, windows_per_slice: 30, id: &["tag", "time"] })
}

/// Hourly statistics of consolidated tiles. `time` is the hour, `fingerprint` that of the tile from which they were
/// computed.
pub(crate) fn summaries(group: &str) -> Result<DatasetSpec> {
    use DataType::{Boolean, Float64, Int64};
    let columns = schema(&[
        ("tag", Int64),
        ("time", nanoseconds()),
        ("fingerprint", Int64),
        ("good", Boolean),
        ("count", Int64),
        ("first_time", Int64),
        ("last_time", Int64),
        ("first", Float64),
        ("last", Float64),
        ("sum", Float64),
        ("squares", Float64),
        ("min", Float64),
        ("min_time", Int64),
        ("min_again", Boolean),
        ("max", Float64),
        ("max_time", Int64),
        ("max_again", Boolean),
        ("area_sloped", Float64),
        ("area_stepped", Float64),
        ("transitions", Int64),
    ]);
    let cell = CellRule::Value { column: "tag".into() };
    let name = format!("historian_{group}_summary");
    spec(&name, Shape { columns, cell, window_days: 30, windows_per_slice: 12, id: &["tag", "time"] })
}

/// Annotations by users about points or times of a tag.
pub(crate) fn annotations() -> Result<DatasetSpec> {
    let columns = schema(&[
        ("tag", DataType::Int64),
        ("time", nanoseconds()),
        ("entered", nanoseconds()),
        ("author", DataType::Utf8),
        ("text", DataType::Utf8),
    ]);
    let cell = CellRule::Value { column: "tag".into() };
    spec(ANNOTATIONS, Shape { columns, cell, window_days: 30, windows_per_slice: 12, id: &["tag", "time", "entered"] })
}
