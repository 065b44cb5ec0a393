//! Metrics of the service, in the text format of Prometheus.

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use chronotile_archive::memory::Memory;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::prometheus_text;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Upper bounds of the latency buckets, seconds.
const BUCKETS: [f64; 11] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Request {
    method: &'static str,
    route: &'static str,
    status: u16,
}

type Seconds = Counter<f64, AtomicU64>;

#[derive(Debug)]
pub(crate) struct Metrics {
    registered: Registered,
    latency: Family<Request, Histogram, fn() -> Histogram>,
    requests: Counter,
    requests_failed: Counter,
    requests_seconds: Seconds,
    pub points_in: Counter,
    pub points_refused: Counter,
    pub documents_in: Counter,
    pub lines_refused: Counter,
    pub commits: Counter,
    pub rows_out: Counter,
    pub bytes_in: Counter,
    pub broken_off: Counter,
    pub turned_away: Counter,
    pub in_flight: Gauge,
    pub connections: Gauge,
    pub connections_closed: Counter,
    pub connections_refused: Counter,
}

impl Metrics {
    pub fn new(memory: Memory) -> Self {
        let latency = Family::new_with_constructor((|| Histogram::new(BUCKETS)) as fn() -> Histogram);
        let mut list = Registered { registry: Registry::with_prefix("chronotile"), figures: Vec::new() };
        let about = "Time from the head of a request to the end of its answer";
        list.registry.register("request_seconds", about, latency.clone());
        let held = memory.clone();
        list.read("memory_refused_total", "Requests that exceeded the memory limit", move || held.refused() as f64);
        let held = memory.clone();
        list.read("memory_charged_bytes", "Memory that requests hold", move || held.bytes() as f64);
        list.read("memory_limit_bytes", "Memory that requests may hold together", move || memory.bytes_max() as f64);
        list.read("resident_memory_bytes", "Memory of the process", || resident_bytes() as f64);
        Self {
            latency,
            requests: list.counter("requests", "Requests answered"),
            requests_failed: list
                .counter("requests_failed", "Requests that failed for a reason of the service or the engine"),
            requests_seconds: list.seconds("requests_seconds", "Time spent on requests"),
            points_in: list.counter("points_stored", "Points stored"),
            points_refused: list.counter("points_refused", "Points rejected"),
            documents_in: list.counter("events_stored", "Documents of events stored"),
            lines_refused: list.counter("events_refused", "Rejected lines of events"),
            commits: list.counter("commits", "Writes to the archive, each of one or more requests"),
            rows_out: list.counter("rows_sent", "Rows of answers"),
            bytes_in: list.counter("body_bytes", "Bytes of bodies received"),
            broken_off: list.counter("answers_broken_off", "Answers that failed after they had begun"),
            turned_away: list.counter("turned_away", "Requests rejected by a limit, to be repeated later"),
            in_flight: list.gauge("requests_in_flight", "Requests being served"),
            connections: list.gauge("connections", "Open connections"),
            connections_closed: list.counter("connections_closed", "Idle connections closed to make room for new ones"),
            connections_refused: list
                .counter("connections_refused", "Connections refused because all others were busy"),
            registered: list,
        }
    }

    pub fn observe(&self, method: &'static str, route: &'static str, status: u16, took: Duration) {
        self.latency.get_or_create(&Request { method, route, status }).observe(took.as_secs_f64());
        self.requests.inc();
        self.requests_seconds.inc_by(took.as_secs_f64());
        if status >= 500 {
            self.requests_failed.inc();
        }
    }

    /// All metrics without labels.
    pub fn figures(&self) -> &[Figure] {
        &self.registered.figures
    }

    pub fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string never fails.
        let _ = prometheus_text::encode(&mut text, &self.registered.registry);
        text
    }
}

/// A metric without labels.
pub(crate) struct Figure {
    pub name: String,
    pub about: &'static str,
    read: Box<dyn Fn() -> f64 + Send + Sync>,
}

impl Figure {
    /// The current value.
    pub fn value(&self) -> f64 {
        (self.read)()
    }

    /// The Prometheus type.
    pub fn kind(&self) -> &'static str {
        if self.name.ends_with("_total") { "counter" } else { "gauge" }
    }
}

impl fmt::Debug for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Figure").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The metrics, in the order in which they are exposed.
#[derive(Debug)]
struct Registered {
    registry: Registry,
    figures: Vec<Figure>,
}

impl Registered {
    fn counter(&mut self, name: &'static str, about: &'static str) -> Counter {
        let counter = Counter::default();
        self.registry.register(name, about, counter.clone());
        let read = counter.clone();
        self.figure(format!("{name}_total"), about, move || read.get() as f64);
        counter
    }

    fn seconds(&mut self, name: &'static str, about: &'static str) -> Seconds {
        let counter = Seconds::default();
        self.registry.register(name, about, counter.clone());
        let read = counter.clone();
        self.figure(format!("{name}_total"), about, move || read.get());
        counter
    }

    fn gauge(&mut self, name: &'static str, about: &'static str) -> Gauge {
        let gauge = Gauge::default();
        self.registry.register(name, about, gauge.clone());
        let read = gauge.clone();
        self.figure(name.to_owned(), about, move || read.get() as f64);
        gauge
    }

    /// Registers a metric whose value is read from elsewhere.
    fn read(
        &mut self,
        name: &'static str,
        about: &'static str,
        read: impl Fn() -> f64 + Clone + Send + Sync + 'static,
    ) {
        let figure = Figure { name: name.to_owned(), about, read: Box::new(read.clone()) };
        self.registry.register_collector(Box::new(figure));
        self.figure(name.to_owned(), about, read);
    }

    fn figure(&mut self, name: String, about: &'static str, read: impl Fn() -> f64 + Send + Sync + 'static) {
        self.figures.push(Figure { name, about, read: Box::new(read) });
    }
}

impl Collector for Figure {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (counter, gauge) = (ConstCounter::new(self.value()), ConstGauge::new(self.value()));
        // The encoder appends `_total` to the names of counters.
        match self.name.strip_suffix("_total") {
            Some(name) => counter.encode(encoder.encode_descriptor(name, self.about, None, counter.metric_type())?),
            None => gauge.encode(encoder.encode_descriptor(&self.name, self.about, None, gauge.metric_type())?),
        }
    }
}

/// Resident memory of this process as Linux reports it; 0 elsewhere.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").trim().parse::<u64>().ok()).unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_counted_in_cumulative_buckets() {
        let metrics = Metrics::new(Memory::new(1 << 20));
        for ms in [1, 20, 40_000] {
            metrics.observe("GET", "/v1/points", 200, Duration::from_millis(ms));
        }
        metrics.observe("GET", "/v1/points", 503, Duration::from_millis(1));
        metrics.rows_out.inc_by(7);
        let text = metrics.text();
        let labels = "method=\"GET\",route=\"/v1/points\",status=\"200\"";
        for line in [
            format!("chronotile_request_seconds_bucket{{{labels},le=\"0.001\"}} 1"),
            format!("chronotile_request_seconds_bucket{{{labels},le=\"0.025\"}} 2"),
            format!("chronotile_request_seconds_bucket{{{labels},le=\"30\"}} 2"),
            format!("chronotile_request_seconds_bucket{{{labels},le=\"+Inf\"}} 3"),
            "# TYPE chronotile_points_stored_total counter".to_owned(),
            "chronotile_points_stored_total 0".to_owned(),
            "chronotile_requests_total 4".to_owned(),
            "chronotile_requests_failed_total 1".to_owned(),
            "# HELP chronotile_memory_limit_bytes Memory that requests may hold together".to_owned(),
            "# TYPE chronotile_memory_refused_total counter".to_owned(),
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
    }

    #[test]
    fn figures_are_the_plain_metrics_of_the_text() {
        let metrics = Metrics::new(Memory::new(1 << 20));
        metrics.in_flight.inc();
        let text = metrics.text();
        for figure in metrics.figures() {
            let start = format!("chronotile_{} ", figure.name);
            let line = text.lines().find_map(|line| line.strip_prefix(&start)).unwrap_or_else(|| panic!("{start}"));
            let value: f64 = line.parse().unwrap();
            assert!(value == figure.value() || figure.name == "resident_memory_bytes", "{start}{line}");
            assert!(text.contains(&format!("# TYPE {start}{}\n", figure.kind())), "{start}");
        }
    }
}
