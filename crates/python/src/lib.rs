//! The native part of the Python package `chronotile`: archives, and Arrow data in and out.
//!
//! Nothing here is public API. The Python package wraps it in its own types, names and documentation.

use pyo3::prelude::*;

mod allocator;
mod archive;
mod arrow;
mod backups;
mod columns;
mod cql;
mod errors;
mod files;
mod front_ends;
mod historian;
mod lines;
mod logs;
mod output;
mod reports;
mod request;
mod result;
mod runtime;
mod service;
mod sky;
mod source;
mod wire;

#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator;

/// The extension module `chronotile._native`.
#[pymodule]
mod _native {
    use super::*;

    #[pymodule_export]
    #[allow(non_upper_case_globals)]
    const __version__: &str = env!("CARGO_PKG_VERSION");
    /// Whether this is a test build: with additional checks, and only partly optimized.
    #[pymodule_export]
    const DEVELOPMENT_BUILD: bool = cfg!(debug_assertions);

    #[pymodule_export]
    use super::archive::{Archive, Dataset, Group};
    #[pymodule_export]
    use super::arrow::{Array, Schema, Table};
    #[pymodule_export]
    use super::backups::BackupDraft;
    #[pymodule_export]
    use super::columns::{column_of_buffer, column_of_list, list_names, name_hint, nearest_names};
    #[pymodule_export]
    use super::cql::CqlSession;
    #[pymodule_export]
    use super::errors::error_kinds;
    #[pymodule_export]
    use super::files::{RecordBlock, RecordFile, content_hash};
    #[pymodule_export]
    use super::historian::{Historian, PointFilter, aggregate_names, compute_aggregate, tag_columns, tags_of_points};
    #[pymodule_export]
    use super::output::{format_of_path, write_records};
    #[pymodule_export]
    use super::request::Request;
    #[pymodule_export]
    use super::result::ReadResult;
    #[pymodule_export]
    use super::service::serve;
    #[pymodule_export]
    use super::source::read_table;
    #[pymodule_export]
    use super::wire::{arrow_streams, read_arrow_stream};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        logs::forward(module.py())?;
        sky::register(module)
    }
}
