//! Helpers of unit tests.

use std::sync::Arc;

use arrow_schema::{DataType, Field, Schema, TimeUnit};
use chronotile_types::{DatasetName, DatasetSpec, TimeFormat, TimeScale, TimeSpec};

/// The dataset `records`, whose only column is the time, in windows of an hour.
#[allow(clippy::unwrap_used)] // a test may unwrap
pub(crate) fn spec() -> DatasetSpec {
    let time = Field::new("t", DataType::Timestamp(TimeUnit::Microsecond, None), false);
    let time_spec = TimeSpec { column: "t".into(), format: TimeFormat::Timestamp, scale: TimeScale::Utc };
    let name = DatasetName::new("records").unwrap();
    DatasetSpec::new(name, Arc::new(Schema::new(vec![time])), time_spec, "1h".parse().unwrap())
}
