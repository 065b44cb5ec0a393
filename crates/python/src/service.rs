//! Runs the service. The call returns when the service has stopped.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use chronotile_service::{Limits, LogFormat, ServiceError, Settings, serve as run};
use chronotile_types::ErrorKind;
use pyo3::prelude::*;

use crate::allocator::{COLLECT_EVERY, collect, give_back_soon};
use crate::archive::Archive;
use crate::errors::{Fault, historian_error, invalid};
use crate::front_ends::PythonFrontEnds;
use crate::runtime::runtime;

/// Service settings from Python.
#[derive(FromPyObject)]
pub struct Options {
    #[pyo3(item)]
    listen: String,
    #[pyo3(item)]
    tokens: Option<PathBuf>,
    #[pyo3(item)]
    tls_cert: Option<PathBuf>,
    #[pyo3(item)]
    tls_key: Option<PathBuf>,
    #[pyo3(item)]
    log_format: String,
    #[pyo3(item)]
    memory_bytes_max: Option<usize>,
    #[pyo3(item)]
    body_bytes_max: usize,
    #[pyo3(item)]
    points_max: u64,
    #[pyo3(item)]
    tags_max: usize,
    #[pyo3(item)]
    range_s_max: u64,
    #[pyo3(item)]
    queries_max: usize,
    #[pyo3(item)]
    writes_max: usize,
    #[pyo3(item)]
    connections_max: Option<usize>,
    #[pyo3(item)]
    query_s_max: f64,
    #[pyo3(item)]
    client_s_max: f64,
    #[pyo3(item)]
    stop_s_max: f64,
    #[pyo3(item)]
    definitions_s: f64,
    #[pyo3(item)]
    future_ns_max: Option<i64>,
    #[pyo3(item)]
    diagnostics_s: Option<f64>,
}

impl Options {
    fn settings(self) -> PyResult<Settings> {
        let refuse = |message: String| invalid(ErrorKind::InvalidSetting, message);
        let listen = self.listen.parse();
        let listen = listen.map_err(|_| {
            refuse(format!("invalid listen address {:?}: write one such as 127.0.0.1:8086", self.listen))
        })?;
        let log = LogFormat::from_name(&self.log_format);
        let log = log.ok_or_else(|| refuse(format!("log format {:?} is not json, text or off", self.log_format)))?;
        let tls = match (self.tls_cert, self.tls_key) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            _ => return Err(refuse("encryption needs both a certificate and its key".into())),
        };
        let seconds = |seconds: f64| {
            let length = Duration::try_from_secs_f64(seconds).ok().filter(|length| !length.is_zero());
            length.ok_or_else(|| refuse(format!("invalid timeout {seconds}: give seconds above 0")))
        };
        let defaults = Limits::default();
        Ok(Settings {
            listen,
            tokens: self.tokens,
            tls,
            log,
            limits: Limits {
                memory_bytes: self.memory_bytes_max.unwrap_or(defaults.memory_bytes),
                body_bytes: self.body_bytes_max,
                points: self.points_max,
                tags: self.tags_max,
                range: Duration::from_secs(self.range_s_max),
                queries: self.queries_max,
                writes: self.writes_max,
                connections: self.connections_max.unwrap_or(defaults.connections),
                query_time: seconds(self.query_s_max)?,
                client_time: seconds(self.client_s_max)?,
                stop_time: seconds(self.stop_s_max)?,
                definitions_time: seconds(self.definitions_s)?,
                future_max_ns: self.future_ns_max,
            },
            diagnostics: self.diagnostics_s.map(seconds).transpose()?,
        })
    }
}

/// Serves an archive until SIGTERM or SIGINT. `listening` is called with the address once the service accepts requests;
/// `front_ends` serves events and jobs.
#[pyfunction]
pub fn serve(
    py: Python<'_>,
    archive: Py<Archive>,
    options: Options,
    listening: Py<PyAny>,
    front_ends: Py<PyAny>,
) -> PyResult<()> {
    let (archive, settings) = (archive.get().open_inner()?, options.settings()?);
    give_back_soon();
    let reported = |address: std::net::SocketAddr| {
        Python::attach(|py| {
            // A failed callback is no reason to stop serving.
            if let Err(error) = listening.call1(py, (address.to_string(),)) {
                error.write_unraisable(py, None);
            }
        });
    };
    let runtime = runtime()?;
    let front_ends = Arc::new(PythonFrontEnds::new(front_ends));
    let collecting = runtime.spawn(async {
        loop {
            tokio::time::sleep(COLLECT_EVERY).await;
            collect();
        }
    });
    // This wait checks no signals of Python: the service handles signals itself.
    let outcome = py.detach(|| runtime.block_on(run(archive, settings, Some(front_ends), reported)));
    collecting.abort();
    outcome.map_err(service_error)
}

fn service_error(error: ServiceError) -> PyErr {
    let message = error.to_string();
    match error {
        ServiceError::Historian(error) => historian_error(error),
        ServiceError::Listen { .. } => Fault::new(ErrorKind::AddressInUse, message).raise(),
        ServiceError::Exposed { .. } => invalid(ErrorKind::NoTokens, message),
        _ => invalid(ErrorKind::InvalidSetting, message),
    }
}
