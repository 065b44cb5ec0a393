//! Forwards log messages of the archive, the engines and the driver to Python's `logging`.

use log::LevelFilter;
use pyo3::prelude::*;
use pyo3_log::{Caching, Logger};

/// Loggers that print nothing until the program configures logging.
const LOGGERS: [&str; 2] = ["chronotile", "scylla"];

/// Forwards messages of level INFO and above to the logger of their target, such as `chronotile.archive`. In a process that serves,
/// the service writes the log itself, and nothing is forwarded.
pub(crate) fn forward(py: Python<'_>) -> PyResult<()> {
    let logging = py.import("logging")?;
    for name in LOGGERS {
        let logger = logging.call_method1("getLogger", (name,))?;
        logger.call_method1("addHandler", (logging.call_method0("NullHandler")?,))?;
    }
    // A Rust logger that is already installed stays.
    if Logger::new(py, Caching::Loggers)?.filter(LevelFilter::Info).install().is_ok() {
        // Threads of the driver must not wait for an interpreter that is shutting down.
        py.import("atexit")?.call_method1("register", (wrap_pyfunction!(stop_forwarding, py)?,))?;
    }
    Ok(())
}

#[pyfunction]
fn stop_forwarding() {
    log::set_max_level(LevelFilter::Off);
}
