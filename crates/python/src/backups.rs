//! Copies of archive files, for backup and restore.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use chronotile_archive::{BackupError, FileDraft, copy_file};
use chronotile_types::ErrorKind;
use pyo3::prelude::*;

use crate::errors::{Fault, backup_error};

/// A complete copy of an archive file under a temporary name. Dropping it removes the copy, unless it was placed.
#[pyclass(frozen, module = "chronotile._native")]
pub struct BackupDraft {
    inner: Mutex<Option<FileDraft>>,
}

#[pymethods]
impl BackupDraft {
    /// Copies the archive file `source`, as of one moment, with `target` as its later name. `progress` is called with
    /// (pages done, pages in total).
    #[staticmethod]
    #[pyo3(signature = (source, target, progress=None))]
    fn make(py: Python<'_>, source: &str, target: &str, progress: Option<Py<PyAny>>) -> PyResult<Self> {
        let mut raised = None;
        let tell = |done: u64, total: u64| {
            let reported = Python::attach(|py| {
                py.check_signals()?;
                progress.as_ref().map_or(Ok(()), |tell| tell.call1(py, (done, total)).map(drop))
            });
            raised = reported.err();
            raised.is_none()
        };
        let draft = py.detach(|| copy_file(Path::new(source), Path::new(target), tell));
        match (draft, raised) {
            (Ok(draft), _) => Ok(Self { inner: Mutex::new(Some(draft)) }),
            (Err(BackupError::GivenUp), Some(raised)) => Err(raised),
            (Err(error), _) => Err(backup_error(error)),
        }
    }

    /// The temporary path of the copy, which can be opened as an archive.
    #[getter]
    fn path(&self) -> PyResult<String> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.as_ref().map(|draft| draft.path().display().to_string()).ok_or_else(gone)
    }

    /// Renames the copy to its target and returns its size in bytes.
    fn place(&self, py: Python<'_>) -> PyResult<u64> {
        let draft = self.inner.lock().unwrap_or_else(PoisonError::into_inner).take().ok_or_else(gone)?;
        py.detach(|| draft.place()).map_err(backup_error)
    }

    /// Removes the copy, if it was not placed.
    fn discard(&self) {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

fn gone() -> PyErr {
    Fault::new(ErrorKind::Closed, "this copy was already placed or removed").raise()
}
