//! What the service counts, in the text format of Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use chronotile_archive::memory::Memory;

/// Upper bounds of the classes of latency, seconds.
const BOUNDS: [f64; 11] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0];

#[derive(Clone, Copy, Debug, Default)]
struct Latency {
    counts: [u64; BOUNDS.len()],
    count: u64,
    sum_s: f64,
}

/// Method, route and status of requests.
type Key = (&'static str, &'static str, u16);

#[derive(Debug)]
pub(crate) struct Metrics {
    memory: Memory,
    requests: Mutex<BTreeMap<Key, Latency>>,
    pub points_in: AtomicU64,
    pub points_refused: AtomicU64,
    pub documents_in: AtomicU64,
    pub lines_refused: AtomicU64,
    pub rows_out: AtomicU64,
    pub bytes_in: AtomicU64,
    pub broken_off: AtomicU64,
    pub turned_away: AtomicU64,
    pub in_flight: AtomicI64,
    pub connections: AtomicI64,
    pub connections_closed: AtomicU64,
    pub connections_refused: AtomicU64,
    pub commits: AtomicU64,
}

impl Metrics {
    pub fn new(memory: Memory) -> Self {
        Self {
            memory,
            requests: Mutex::default(),
            points_in: AtomicU64::default(),
            points_refused: AtomicU64::default(),
            documents_in: AtomicU64::default(),
            lines_refused: AtomicU64::default(),
            rows_out: AtomicU64::default(),
            bytes_in: AtomicU64::default(),
            broken_off: AtomicU64::default(),
            turned_away: AtomicU64::default(),
            in_flight: AtomicI64::default(),
            connections: AtomicI64::default(),
            connections_closed: AtomicU64::default(),
            connections_refused: AtomicU64::default(),
            commits: AtomicU64::default(),
        }
    }

    pub fn observe(&self, method: &'static str, route: &'static str, status: u16, took: Duration) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let latency = requests.entry((method, route, status)).or_default();
        let seconds = took.as_secs_f64();
        latency.count += 1;
        latency.sum_s += seconds;
        for (bound, count) in BOUNDS.iter().zip(&mut latency.counts) {
            *count += u64::from(seconds <= *bound);
        }
    }

    /// Requests, those that failed on this side, and the seconds of all.
    fn totals(&self) -> (f64, f64, f64) {
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        requests.iter().fold((0.0, 0.0, 0.0), |(count, failed, seconds), ((_, _, status), latency)| {
            let failures = if *status >= 500 { latency.count as f64 } else { 0.0 };
            (count + latency.count as f64, failed + failures, seconds + latency.sum_s)
        })
    }

    /// Names, what they are, and values of all plain figures.
    pub fn figures(&self) -> Vec<(&'static str, &'static str, &'static str, f64)> {
        let count = |value: &AtomicU64| value.load(Ordering::Relaxed) as f64;
        let level = |value: &AtomicI64| value.load(Ordering::Relaxed) as f64;
        let (requests, failed, seconds) = self.totals();
        vec![
            ("requests_total", "counter", "Requests answered.", requests),
            (
                "requests_failed_total",
                "counter",
                "Requests that failed for a reason of the service or the engine.",
                failed,
            ),
            ("requests_seconds_total", "counter", "Time spent on requests.", seconds),
            ("points_stored_total", "counter", "Points stored.", count(&self.points_in)),
            ("points_refused_total", "counter", "Points that were refused.", count(&self.points_refused)),
            ("events_stored_total", "counter", "Documents of events stored.", count(&self.documents_in)),
            ("events_refused_total", "counter", "Rejected lines of events.", count(&self.lines_refused)),
            ("commits_total", "counter", "Writes to the archive, each of one or more requests.", count(&self.commits)),
            ("rows_sent_total", "counter", "RowStream of answers.", count(&self.rows_out)),
            ("body_bytes_total", "counter", "Bytes of bodies taken in.", count(&self.bytes_in)),
            (
                "answers_broken_off_total",
                "counter",
                "Answers that failed after they had begun.",
                count(&self.broken_off),
            ),
            ("turned_away_total", "counter", "Requests told to come back later.", count(&self.turned_away)),
            ("requests_in_flight", "gauge", "Requests being served.", level(&self.in_flight)),
            ("connections", "gauge", "Open connections.", level(&self.connections)),
            (
                "connections_closed_total",
                "counter",
                "Idle connections closed to make room for new ones.",
                count(&self.connections_closed),
            ),
            (
                "connections_refused_total",
                "counter",
                "Connections refused as all others were busy.",
                count(&self.connections_refused),
            ),
            (
                "memory_refused_total",
                "counter",
                "Times that a request found no memory left.",
                self.memory.refused() as f64,
            ),
            ("memory_charged_bytes", "gauge", "Memory that requests hold.", self.memory.bytes() as f64),
            ("memory_limit_bytes", "gauge", "Memory that requests may hold together.", self.memory.bytes_max() as f64),
            ("resident_memory_bytes", "gauge", "Memory of the process.", resident_bytes() as f64),
        ]
    }

    pub fn text(&self) -> String {
        let mut out = String::new();
        for (name, kind, help, value) in self.figures() {
            let _ = writeln!(
                out,
                "# HELP chronotile_{name} {help}\n# TYPE chronotile_{name} {kind}\nchronotile_{name} {value}"
            );
        }
        let name = "chronotile_request_seconds";
        let _ = writeln!(
            out,
            "# HELP {name} Time from the head of a request to the end of its answer.\n# TYPE {name} histogram"
        );
        for ((method, route, status), latency) in &*self.requests.lock().unwrap_or_else(PoisonError::into_inner) {
            let labels = format!("method=\"{method}\",route=\"{route}\",status=\"{status}\"");
            for (bound, count) in BOUNDS.iter().zip(latency.counts) {
                let _ = writeln!(out, "{name}_bucket{{{labels},le=\"{bound}\"}} {count}");
            }
            let Latency { count, sum_s, .. } = latency;
            let _ = writeln!(out, "{name}_bucket{{{labels},le=\"+Inf\"}} {count}");
            let _ = writeln!(out, "{name}_sum{{{labels}}} {sum_s}\n{name}_count{{{labels}}} {count}");
        }
        out
    }
}

/// Resident memory of this process as Linux tells it; 0 elsewhere.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").trim().parse::<u64>().ok()).unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_fall_into_cumulative_classes() {
        let metrics = Metrics::new(Memory::new(1 << 20));
        for ms in [1, 20, 40_000] {
            metrics.observe("GET", "/v1/points", 200, Duration::from_millis(ms));
        }
        let text = metrics.text();
        for line in [
            "chronotile_request_seconds_bucket{method=\"GET\",route=\"/v1/points\",status=\"200\",le=\"0.001\"} 1",
            "chronotile_request_seconds_bucket{method=\"GET\",route=\"/v1/points\",status=\"200\",le=\"0.025\"} 2",
            "chronotile_request_seconds_bucket{method=\"GET\",route=\"/v1/points\",status=\"200\",le=\"30\"} 2",
            "chronotile_request_seconds_bucket{method=\"GET\",route=\"/v1/points\",status=\"200\",le=\"+Inf\"} 3",
            "chronotile_points_stored_total 0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
    }
}
