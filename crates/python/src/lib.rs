//! The native half of the Python package `chronotile`: archives, and Arrow data in and out.
//!
//! Nothing here is public to users. The package puts Python's own types, names and documents in front of it.

use pyo3::prelude::*;

mod archive;
mod arrow;
mod columns;
mod cql;
mod errors;
mod files;
mod lines;
mod reports;
mod request;
mod result;
mod runtime;
mod sky;
mod source;

/// The extension module `chronotile._native`.
#[pymodule]
mod _native {
    use super::*;

    #[pymodule_export]
    #[allow(non_upper_case_globals)]
    const __version__: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_export]
    use super::archive::{Archive, Dataset};
    #[pymodule_export]
    use super::arrow::{Array, Schema, Table};
    #[pymodule_export]
    use super::columns::{column_of_buffer, column_of_list};
    #[pymodule_export]
    use super::cql::CqlSession;
    #[pymodule_export]
    use super::files::{RecordBlock, RecordFile, content_hash, format_of_path, write_records};
    #[pymodule_export]
    use super::request::Request;
    #[pymodule_export]
    use super::result::ReadResult;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        sky::register(module)
    }
}
