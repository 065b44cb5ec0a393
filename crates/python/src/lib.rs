//! The native half of the Python package `chronotile`.

use pyo3::prelude::*;

/// The extension module `chronotile._native`.
#[pymodule]
mod _native {
    #[pymodule_export]
    #[allow(non_upper_case_globals)]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
