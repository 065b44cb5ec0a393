//! What the archive, the engines and the driver log, forwarded to Python's `logging`.

use log::LevelFilter;
use pyo3::prelude::*;
use pyo3_log::{Caching, Logger};

/// Loggers whose messages go nowhere until the program configures logging.
const LOGGERS: [&str; 2] = ["chronotile", "scylla"];

/// Forwards messages from level INFO to the loggers of their targets, such as `chronotile.archive`. A process that serves logs for
/// itself: nothing is forwarded then.
pub(crate) fn forward(py: Python<'_>) -> PyResult<()> {
    let logging = py.import("logging")?;
    for name in LOGGERS {
        let logger = logging.call_method1("getLogger", (name,))?;
        logger.call_method1("addHandler", (logging.call_method0("NullHandler")?,))?;
    }
    // In a process that has a Rust logger already, that one stays.
    if Logger::new(py, Caching::Loggers)?.filter(LevelFilter::Info).install().is_ok() {
        // Threads of the driver must not wait for an interpreter that ends.
        py.import("atexit")?.call_method1("register", (wrap_pyfunction!(stop_forwarding, py)?,))?;
    }
    Ok(())
}

#[pyfunction]
fn stop_forwarding() {
    log::set_max_level(LevelFilter::Off);
}
