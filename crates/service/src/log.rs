//! The service's log: one line on standard error for each request and event.

use std::io;

use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::settings::LogFormat;

/// The target of request lines.
pub(crate) const REQUESTS: &str = "chronotile::requests";

/// Starts the log of this process. Messages of Chronotile are written from level INFO, those of other crates, such as the driver,
/// from WARN. A subscriber that is already installed stays.
pub(crate) fn start(format: LogFormat) {
    let others = Targets::new().with_default(LevelFilter::WARN);
    let targets = match format {
        LogFormat::Json | LogFormat::Text => others.with_target("chronotile", LevelFilter::INFO),
        LogFormat::Off => others.with_target(REQUESTS, LevelFilter::OFF),
    };
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(false)
        .with_target(false)
        // A log that cannot be written must not end the service.
        .log_internal_errors(false);
    let registry = tracing_subscriber::registry();
    let _ = match format {
        LogFormat::Json => registry.with(lines.json().flatten_event(true).with_filter(targets)).try_init(),
        LogFormat::Text => registry.with(lines.with_filter(targets)).try_init(),
        LogFormat::Off => registry.with(lines.without_time().with_filter(targets)).try_init(),
    };
}
