//! Stores metrics of the service itself as points of tags in the archive it serves.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch, TimestampNanosecondArray};
use chronotile_historian::rules::Settings;
use chronotile_historian::{DataType, Tag};

use crate::app::{App, now_ns};
use crate::failure::{Failure, Result};
use crate::metrics::Figure;

/// The group of these tags, which has a retention of its own.
const GROUP: &str = "diagnostics";

/// Stores the metrics periodically. A failure is logged; the next round tries again.
pub(crate) async fn run(app: Arc<App>, address: SocketAddr, every: Duration) {
    let mut rounds = tokio::time::interval(every);
    // After a stall, the default would run all missed rounds one right after the other.
    rounds.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Skip);
    let mut tags = None;
    loop {
        rounds.tick().await;
        if let Err(failure) = store(&app, address, &mut tags).await {
            tracing::warn!("figures of the service were not stored: {failure}");
        }
    }
}

async fn store(app: &App, address: SocketAddr, tags: &mut Option<Vec<Arc<Tag>>>) -> Result<()> {
    let figures = app.metrics.figures();
    let tags = match tags {
        Some(tags) => tags,
        None => {
            let new = figures.iter().map(|figure| tag(address, figure));
            tags.insert(app.historian.define(new.collect()).await?)
        }
    };
    let columns: [(&str, ArrayRef); 3] = [
        ("tag", Arc::new(Int64Array::from_iter_values(tags.iter().map(|tag| tag.number)))),
        ("time", Arc::new(TimestampNanosecondArray::from(vec![now_ns(); tags.len()]).with_timezone("UTC"))),
        ("value", Arc::new(Float64Array::from_iter_values(figures.iter().map(Figure::value)))),
    ];
    let rows = RecordBatch::try_from_iter(columns).map_err(|error| Failure::invalid(error.to_string()))?;
    app.group_commit.store(vec![rows], app.memory.empty()).await
}

fn tag(address: SocketAddr, figure: &Figure) -> Tag {
    let name = &figure.name;
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = if host.trim().is_empty() { "localhost" } else { host.trim() };
    Tag {
        number: -1,
        name: format!("service.{host}:{}.{name}", address.port()),
        unit: if name.ends_with("_bytes") { "B".into() } else { String::new() },
        description: format!("{}. ({})", figure.about, figure.kind()),
        group: GROUP.into(),
        data_type: DataType::Float,
        settings: Settings { stepped: true, ..Settings::default() },
        exception_deviation: -1.0,
        compression_deviation: -1.0,
    }
}
