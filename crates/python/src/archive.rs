//! Archives and datasets: one method for each operation of the archive crate.

use std::sync::{Arc, PoisonError, RwLock};

use chronotile_archive::memory::Memory;
use chronotile_archive::{
    AddedColumn, Archive as Inner, ConsolidateOptions, CopyOptions, CopyProgress, Dataset as InnerDataset,
    Group as InnerGroup, IndexBuildOptions, OpenOptions, RetireLimit, Shard, SliceInfo, WriteOptions,
};
use chronotile_service::Limits;
use chronotile_store::CallOptions;
use chronotile_types::{
    CellRule, DatasetName, DatasetSpec, Duration, ErrorKind, Membership, MergeRule, SliceId, SliceOwner, SpecError,
    TimeError, TimeRange, TimeSpec,
};
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::arrow::{Array, Schema, Table};
use crate::errors::{Fault, archive_error, invalid};
use crate::reports;
use crate::request::{Moment, Request};
use crate::result::ReadResult;
use crate::runtime::{runtime, wait};
use crate::source;

/// Datasets under one URL.
#[pyclass(frozen, module = "chronotile._native")]
pub struct Archive {
    /// None once closed.
    inner: Arc<RwLock<Option<Inner>>>,
}

/// One dataset. All methods fail once its archive is closed.
#[pyclass(frozen, module = "chronotile._native")]
pub struct Dataset {
    inner: InnerDataset,
    archive: Arc<RwLock<Option<Inner>>>,
}

/// The datasets of a group. All methods fail once its archive is closed.
#[pyclass(frozen, module = "chronotile._native")]
pub struct Group {
    inner: InnerGroup,
    archive: Arc<RwLock<Option<Inner>>>,
}

impl Group {
    fn open(&self) -> PyResult<&InnerGroup> {
        open_inner(&self.archive)?;
        Ok(&self.inner)
    }
}

#[pymethods]
impl Group {
    /// The datasets with their names, in the order in which they joined the group.
    fn datasets(&self) -> PyResult<Vec<(String, Dataset)>> {
        let dataset = |inner: &InnerDataset| {
            (inner.spec().name.to_string(), Dataset { inner: inner.clone(), archive: self.archive.clone() })
        };
        Ok(self.open()?.datasets().iter().map(dataset).collect())
    }

    /// Writes rows of several datasets as one batch; returns one report per dataset.
    fn write<'py>(
        &self,
        py: Python<'py>,
        rows: Vec<(String, Bound<'py, PyAny>)>,
        batch: Option<String>,
        replace: bool,
    ) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let group = self.open()?;
        let options = WriteOptions { batch, replace, ..WriteOptions::default() };
        let inputs = rows.iter().map(|(name, rows)| Ok((name.as_str(), source::open(rows)?)));
        let inputs = inputs.collect::<PyResult<Vec<_>>>()?;
        let reports = wait(py, group.write(inputs, options))?;
        reports.iter().map(|report| reports::write_report(py, report)).collect()
    }

    /// Reads several datasets as of one moment. With `cells`, the values of this column in the first dataset select the
    /// cells in which all others are read.
    fn read(
        &self,
        py: Python<'_>,
        requests: Vec<(String, PyRef<'_, Request>)>,
        cells: Option<&str>,
    ) -> PyResult<Vec<Table>> {
        let group = self.open()?;
        let mut requests: Vec<_> =
            requests.iter().map(|(name, request)| (name.as_str(), request.inner.clone())).collect();
        let rows = match cells {
            Some(column) => {
                let index = requests.remove(0);
                wait(py, group.read_in_cells_of(index, column, requests))?
            }
            None => wait(py, group.read(requests))?,
        };
        Ok(rows.into_iter().map(|(schema, batches)| Table::new(schema, batches)).collect())
    }

    fn batch<'py>(&self, py: Python<'py>, key: &str) -> PyResult<Option<Bound<'py, PyDict>>> {
        let batch = wait(py, self.open()?.batch(key))?;
        batch.map(|batch| reports::group_batch(py, &batch)).transpose()
    }

    fn batches<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let batches = wait(py, self.open()?.batches())?;
        batches.iter().map(|batch| reports::group_batch(py, batch)).collect()
    }

    fn remove_batch(&self, py: Python<'_>, key: &str) -> PyResult<u64> {
        wait(py, self.open()?.remove_batch(key))
    }

    /// Statistics of each of these datasets.
    fn info<'py>(&self, py: Python<'py>, datasets: Vec<String>) -> PyResult<Vec<(String, Bound<'py, PyDict>)>> {
        let found = wait(py, self.open()?.info(&names_of(&datasets)))?;
        found.iter().map(|(name, info)| Ok((name.to_string(), reports::dataset_info(py, info)?))).collect()
    }

    /// Rewrites tiles of these datasets, as `Dataset.consolidate` does; returns one report per dataset.
    fn consolidate<'py>(
        &self,
        py: Python<'py>,
        datasets: Vec<String>,
        options: ConsolidateArguments,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Vec<(String, Bound<'py, PyDict>)>> {
        let group = self.open()?;
        let options = consolidate_options(options)?;
        let report_progress = reporter(progress);
        let found = wait(py, group.consolidate(&names_of(&datasets), options, Some(&report_progress)))?;
        found.iter().map(|(name, report)| Ok((name.to_string(), reports::consolidate_report(py, report)?))).collect()
    }

    /// Drops slices of these datasets, as `Dataset.retire` does; returns the slices of each.
    fn retire<'py>(
        &self,
        py: Python<'py>,
        datasets: Vec<String>,
        before: Option<Moment>,
        older_than: Option<&str>,
        dry_run: bool,
    ) -> PyResult<Vec<(String, Vec<Bound<'py, PyDict>>)>> {
        let limit = retire_limit(before, older_than)?;
        retired(py, &wait(py, self.open()?.retire(&names_of(&datasets), limit, dry_run))?)
    }

    /// Drops shared slices of these datasets, given by number and fingerprint, unless they have changed since; returns
    /// the slices of each.
    fn retire_unchanged<'py>(
        &self,
        py: Python<'py>,
        datasets: Vec<String>,
        slices: Vec<(i32, String)>,
    ) -> PyResult<Vec<(String, Vec<Bound<'py, PyDict>>)>> {
        let slices = fingerprints(&slices)?;
        retired(py, &wait(py, self.open()?.retire_unchanged(&names_of(&datasets), &slices))?)
    }
}

fn names_of(datasets: &[String]) -> Vec<&str> {
    datasets.iter().map(String::as_str).collect()
}

/// Options of a consolidation as a Python tuple: before, minimum number of chunks, dry run, shard, tiles per second.
type ConsolidateArguments = (Option<Moment>, Option<u64>, bool, Option<(u32, u32)>, Option<f64>);

fn consolidate_options(given: ConsolidateArguments) -> PyResult<ConsolidateOptions> {
    let (before, chunks_min, dry_run, shard, tiles_per_s) = given;
    let before = before.map(Moment::instant).transpose()?;
    let no_shard = |(number, of)| {
        let reason = format!("invalid shard {number} of {of}: number the processes from 1, as in (2, 8)");
        invalid(ErrorKind::InvalidRequest, reason)
    };
    let shard = shard.map(|shard| Shard::new(shard.0, shard.1).ok_or_else(|| no_shard(shard))).transpose()?;
    Ok(ConsolidateOptions { chunks_min, before, dry_run, shard, tiles_per_s, ..Default::default() })
}

fn retire_limit(before: Option<Moment>, older_than: Option<&str>) -> PyResult<RetireLimit> {
    Ok(match (before, older_than) {
        (Some(before), _) => RetireLimit::Before(before.instant()?),
        (None, Some(age)) => RetireLimit::OlderThan(age.parse().map_err(bad_time)?),
        (None, None) => RetireLimit::Retention,
    })
}

fn fingerprints(slices: &[(i32, String)]) -> PyResult<Vec<(SliceId, u128)>> {
    let parse = |(slice, print): &(i32, String)| {
        let print = u128::from_str_radix(print, 16);
        let print = print.map_err(|_| invalid(ErrorKind::InvalidRequest, "a fingerprint is 32 hexadecimal digits"))?;
        Ok((SliceId(*slice), print))
    };
    slices.iter().map(parse).collect()
}

fn retired<'py>(
    py: Python<'py>,
    slices: &[(DatasetName, Vec<SliceInfo>)],
) -> PyResult<Vec<(String, Vec<Bound<'py, PyDict>>)>> {
    slices.iter().map(|(name, slices)| Ok((name.to_string(), reports::slices(py, slices)?))).collect()
}

fn open_inner(archive: &RwLock<Option<Inner>>) -> PyResult<Inner> {
    // Fails in a forked process before a lock is taken that may never be released there.
    runtime()?;
    let inner = archive.read().unwrap_or_else(PoisonError::into_inner).clone();
    inner.ok_or_else(|| Fault::new(ErrorKind::Closed, "the archive is closed: open it again").raise())
}

impl Archive {
    /// The archive; an error once it is closed.
    pub fn open_inner(&self) -> PyResult<Inner> {
        open_inner(&self.inner)
    }
}

#[pymethods]
impl Archive {
    #[staticmethod]
    fn open(
        py: Python<'_>,
        url: &str,
        create: bool,
        read_only: bool,
        timeout_s: u64,
        memory_bytes_max: Option<usize>,
        superseded_kept_s: f64,
    ) -> PyResult<Self> {
        let superseded_kept = std::time::Duration::try_from_secs_f64(superseded_kept_s).map_err(|_| {
            let reason = format!("invalid superseded_kept_s {superseded_kept_s}: give seconds, 0 or more");
            invalid(ErrorKind::InvalidSetting, reason)
        })?;
        let options = OpenOptions { create, read_only, timeout_s, superseded_kept };
        let inner = wait(py, Inner::open(url, &options))?;
        inner.limit_memory(Memory::new(memory_bytes_max.unwrap_or_else(|| Limits::default().memory_bytes)));
        Ok(Self { inner: Arc::new(RwLock::new(Some(inner))) })
    }

    /// Name of the engine.
    #[getter]
    fn engine(&self) -> PyResult<&'static str> {
        Ok(open_inner(&self.inner)?.engine())
    }

    /// Closes the engine. All methods of this archive's datasets and groups fail from now on.
    fn close(&self, py: Python<'_>) {
        let inner = self.inner.write().unwrap_or_else(PoisonError::into_inner).take();
        // Closing an engine may do I/O.
        py.detach(|| drop(inner));
    }

    #[getter]
    fn closed(&self) -> bool {
        self.inner.read().unwrap_or_else(PoisonError::into_inner).is_none()
    }

    #[pyo3(signature = (
        name, schema, *, cell, time, window, windows_per_slice, id, merge, version, retention, layout,
        partition_cells, text, moves_deg, group, slices_of, exist_ok
    ))]
    #[allow(clippy::too_many_arguments, reason = "the parts of a dataset's definition")]
    fn create(
        &self,
        py: Python<'_>,
        name: &str,
        schema: PyRef<'_, Schema>,
        cell: &str,
        time: (String, String, String),
        window: &str,
        windows_per_slice: u32,
        id: Vec<String>,
        merge: &str,
        version: Option<String>,
        retention: Option<&str>,
        layout: &str,
        partition_cells: u32,
        text: Vec<String>,
        moves_deg: f64,
        group: Option<&str>,
        slices_of: Option<&str>,
        exist_ok: bool,
    ) -> PyResult<Dataset> {
        let archive = open_inner(&self.inner)?;
        let named = |name: Option<&str>| name.map(DatasetName::new).transpose().map_err(|error| bad_spec(error.into()));
        // The archive assigns the numbers.
        let slices_of = named(slices_of)?.map(|dataset| SliceOwner { dataset, number: 0 });
        let group = named(group)?.map(|group| Membership { slices_of, ..Membership::of(group) });
        let spec = DatasetSpec {
            group,
            name: DatasetName::new(name).map_err(|error| bad_spec(error.into()))?,
            schema: schema.inner.clone(),
            schema_versions: vec![],
            cell: cell_rule(cell)?,
            time: TimeSpec {
                column: time.0,
                format: time.1.parse().map_err(bad_time)?,
                scale: time.2.parse().map_err(bad_time)?,
            },
            window: window.parse().map_err(bad_time)?,
            windows_per_slice,
            id,
            merge: merge_rule(merge, version)?,
            retention: retention.map(str::parse).transpose().map_err(bad_time)?,
            indexes: vec![],
            text,
            layout: layout.parse().map_err(bad_spec)?,
            partition_cells,
            moves_deg,
        };
        let inner = wait(py, archive.create(spec, exist_ok))?;
        Ok(Dataset { inner, archive: self.inner.clone() })
    }

    fn dataset(&self, py: Python<'_>, name: &str) -> PyResult<Dataset> {
        let archive = open_inner(&self.inner)?;
        let inner = wait(py, archive.dataset(name))?;
        Ok(Dataset { inner, archive: self.inner.clone() })
    }

    fn group(&self, py: Python<'_>, name: &str) -> PyResult<Group> {
        let archive = open_inner(&self.inner)?;
        let inner = wait(py, archive.group(name))?;
        Ok(Group { inner, archive: self.inner.clone() })
    }

    /// Drops a group with all its datasets.
    fn drop_group(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let archive = open_inner(&self.inner)?;
        wait(py, archive.drop_group(name))
    }

    /// Names of all groups, sorted.
    fn groups(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let archive = open_inner(&self.inner)?;
        wait(py, archive.group_names())
    }

    /// Drops a dataset with all its rows.
    fn drop_dataset(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        let archive = open_inner(&self.inner)?;
        wait(py, archive.drop_dataset(name))
    }

    /// Names of all datasets, sorted.
    fn datasets(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        let archive = open_inner(&self.inner)?;
        wait(py, archive.dataset_names())
    }

    /// Copies datasets to another archive, or all if `datasets` is None; returns one report per dataset.
    #[allow(clippy::too_many_arguments, reason = "the options of a copy")]
    fn copy_to<'py>(
        &self,
        py: Python<'py>,
        target: PyRef<'_, Archive>,
        datasets: Option<Vec<String>>,
        verify_only: bool,
        workers: usize,
        passes_max: u32,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let (source, target) = (open_inner(&self.inner)?, open_inner(&target.inner)?);
        let options = CopyOptions { datasets, verify_only, workers, passes_max };
        let tell = copy_reporter(progress);
        let report = wait(py, source.copy_to(&target, options, Some(&tell)))?;
        report.datasets.iter().map(|dataset| reports::copy_report(py, dataset)).collect()
    }
}

fn bad_spec(error: SpecError) -> PyErr {
    archive_error(error.into())
}

fn bad_time(error: TimeError) -> PyErr {
    archive_error(error.into())
}

fn cell_rule(json: &str) -> PyResult<CellRule> {
    serde_json::from_str(json)
        .map_err(|error| invalid(ErrorKind::InvalidDefinition, format!("the cell rule is not usable: {error}")))
}

fn merge_rule(merge: &str, version: Option<String>) -> PyResult<MergeRule> {
    match (merge, version) {
        ("append", None) => Ok(MergeRule::Append),
        ("latest", version) => Ok(MergeRule::Latest { version }),
        ("append", Some(column)) => {
            let message =
                format!("version column {column:?} has no meaning with merge \"append\": use merge=\"latest\"");
            Err(invalid(ErrorKind::InvalidDefinition, message))
        }
        (other, _) => Err(invalid(
            ErrorKind::InvalidDefinition,
            format!("unknown merge rule {other:?}: use \"append\" or \"latest\""),
        )),
    }
}

/// Wraps a Python progress callback `(done, total)`. Exceptions that it raises do not stop the work; see [`set_aside`].
fn reporter(callback: Option<Py<PyAny>>) -> impl Fn(u64, u64) + Send + Sync {
    move |done, total| {
        if let Some(callback) = &callback {
            Python::attach(|py| {
                if let Err(error) = callback.call1(py, (done, total)) {
                    set_aside(py, error, callback);
                }
            });
        }
    }
}

/// Reports an exception of a progress callback as unraisable. A KeyboardInterrupt was meant for the program, not the
/// callback: it is raised again for the thread that waits for the work, which then stops.
fn set_aside(py: Python<'_>, error: PyErr, callback: &Py<PyAny>) {
    let shown = if error.is_instance_of::<PyKeyboardInterrupt>(py) {
        py.import("_thread").and_then(|thread| thread.call_method0("interrupt_main")).err()
    } else {
        Some(error)
    };
    if let Some(error) = shown {
        error.write_unraisable(py, Some(callback.bind(py)));
    }
}

/// Minimum interval between progress callbacks of a copy.
const TELL_EVERY: std::time::Duration = std::time::Duration::from_millis(50);

/// Like [`reporter`], for a copy, whose tiles are too many to report each. The last tile of each pass is always
/// reported.
fn copy_reporter(callback: Option<Py<PyAny>>) -> impl Fn(&CopyProgress) + Send + Sync {
    let reported = std::sync::Mutex::new(None::<std::time::Instant>);
    move |progress| {
        let Some(callback) = &callback else { return };
        // Held during the callback, so that calls come one at a time.
        let mut reported = reported.lock().unwrap_or_else(PoisonError::into_inner);
        if reported.is_some_and(|at| at.elapsed() < TELL_EVERY) && progress.tiles_done < progress.tiles_total {
            return;
        }
        *reported = Some(std::time::Instant::now());
        Python::attach(|py| {
            let called = reports::copy_progress(py, progress).and_then(|dict| callback.call1(py, (dict,)));
            if let Err(error) = called {
                set_aside(py, error, callback);
            }
        });
    }
}

impl Dataset {
    fn open(&self) -> PyResult<&InnerDataset> {
        open_inner(&self.archive)?;
        Ok(&self.inner)
    }
}

#[pymethods]
impl Dataset {
    /// A number that changes whenever this process sees a new definition.
    #[getter]
    fn revision(&self) -> u64 {
        self.inner.spec_and_revision().1
    }

    /// The definition without its schema as JSON text, the schema, and their revision.
    fn definition(&self) -> PyResult<(String, Schema, u64)> {
        let (spec, revision) = self.inner.spec_and_revision();
        let mut value = serde_json::to_value(spec.as_ref()).map_err(|error| {
            invalid(ErrorKind::InvalidDefinition, format!("the definition cannot be shown: {error}"))
        })?;
        if let Some(object) = value.as_object_mut() {
            object.remove("schema");
        }
        Ok((value.to_string(), Schema { inner: spec.schema.clone() }, revision))
    }

    /// Reloads the definition.
    fn refresh(&self, py: Python<'_>) -> PyResult<()> {
        wait(py, self.open()?.refresh())
    }

    /// The same dataset with another consistency level or time limit.
    fn tuned(&self, read: Option<String>, write: Option<String>, timeout_s: Option<u64>) -> PyResult<Self> {
        let options = CallOptions { read_consistency: read, write_consistency: write, timeout_s };
        let inner = self
            .open()?
            .with_options(&options)
            .map_err(|error| invalid(ErrorKind::InvalidSetting, error.to_string()))?;
        Ok(Self { inner, archive: self.archive.clone() })
    }

    /// The same dataset, with reads that see every row acknowledged before.
    fn seeing_every_write(&self) -> PyResult<Self> {
        Ok(Self { inner: self.open()?.seeing_every_write(), archive: self.archive.clone() })
    }

    /// Adds columns; `defaults` has one value, or None, for each.
    fn add_columns(
        &self,
        py: Python<'_>,
        columns: PyRef<'_, Schema>,
        defaults: Vec<Option<PyRef<'_, Array>>>,
    ) -> PyResult<()> {
        let dataset = self.open()?;
        let added = columns.inner.fields().iter().zip(&defaults).map(|(field, default)| AddedColumn {
            field: field.as_ref().clone(),
            default: default.as_ref().map(|array| array.inner.clone()),
        });
        wait(py, dataset.add_columns(added.collect()))
    }

    fn set_moves(&self, py: Python<'_>, moves_deg: f64) -> PyResult<()> {
        wait(py, self.open()?.set_moves(moves_deg))
    }

    fn set_retention(&self, py: Python<'_>, retention: Option<&str>) -> PyResult<()> {
        let retention = retention.map(str::parse::<Duration>).transpose().map_err(bad_time)?;
        wait(py, self.open()?.set_retention(retention))
    }

    /// Writes a table, a stream, or the items of an iterator, as one batch.
    #[pyo3(signature = (rows, batch, replace, buffer_bytes=None))]
    fn write<'py>(
        &self,
        py: Python<'py>,
        rows: &Bound<'py, PyAny>,
        batch: Option<String>,
        replace: bool,
        buffer_bytes: Option<usize>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let dataset = self.open()?;
        let mut options = WriteOptions { batch, replace, ..WriteOptions::default() };
        if let Some(bytes) = buffer_bytes {
            options.buffer_bytes = bytes;
        }
        let rows = source::open(rows)?;
        let report = wait(py, dataset.write(rows, options))?;
        reports::write_report(py, &report)
    }

    /// Number and hash of rows, whether or not they are stored.
    fn content(&self, py: Python<'_>, rows: &Bound<'_, PyAny>) -> PyResult<(u64, String)> {
        let dataset = self.open()?;
        let rows = source::open(rows)?;
        py.detach(|| dataset.content(rows)).map_err(archive_error)
    }

    fn batches<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let infos = wait(py, self.open()?.batches())?;
        infos.iter().map(|info| reports::batch_info(py, info)).collect()
    }

    fn batch<'py>(&self, py: Python<'py>, key: &str) -> PyResult<Option<Bound<'py, PyDict>>> {
        let info = wait(py, self.open()?.batch(key))?;
        info.map(|info| reports::batch_info(py, &info)).transpose()
    }

    fn remove_batch(&self, py: Python<'_>, key: &str) -> PyResult<u64> {
        wait(py, self.open()?.remove_batch(key))
    }

    fn read(&self, py: Python<'_>, request: PyRef<'_, Request>) -> PyResult<ReadResult> {
        let stream = wait(py, self.open()?.read(request.inner.clone()))?;
        Ok(ReadResult::new(stream))
    }

    fn latest(&self, py: Python<'_>, request: PyRef<'_, Request>, by: Option<Vec<String>>) -> PyResult<ReadResult> {
        let stream = wait(py, self.open()?.latest(request.inner.clone(), by))?;
        Ok(ReadResult::new(stream))
    }

    fn count(&self, py: Python<'_>, request: PyRef<'_, Request>) -> PyResult<u64> {
        wait(py, self.open()?.count(request.inner.clone()))
    }

    /// Counts rows by the values of columns and by window; also returns how an index was used.
    fn count_by<'py>(
        &self,
        py: Python<'py>,
        request: PyRef<'_, Request>,
        by: Vec<String>,
        by_window: bool,
        groups_max: Option<usize>,
    ) -> PyResult<(Table, Bound<'py, PyDict>)> {
        let dataset = self.open()?;
        let (rows, used) = wait(py, dataset.count_by(request.inner.clone(), &by, by_window, groups_max))?;
        let used = reports::index_use(py, &used, &dataset.spec())?;
        Ok((Table::new(rows.schema(), vec![rows]), used))
    }

    /// How a read, or a count by the given columns, would use an index.
    fn explain<'py>(
        &self,
        py: Python<'py>,
        request: PyRef<'_, Request>,
        by: Option<Vec<String>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let dataset = self.open()?;
        let used = wait(py, dataset.explain(&request.inner, by.as_deref()))?;
        reports::index_use(py, &used, &dataset.spec())
    }

    fn create_index(&self, py: Python<'_>, name: &str, columns: Vec<String>) -> PyResult<()> {
        wait(py, self.open()?.create_index(name, &columns))
    }

    fn drop_index(&self, py: Python<'_>, name: &str) -> PyResult<u64> {
        wait(py, self.open()?.drop_index(name))
    }

    fn index_status<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let all = wait(py, self.open()?.index_status())?;
        all.iter().map(|status| reports::index_status(py, status)).collect()
    }

    #[allow(clippy::too_many_arguments, reason = "the options of a build")]
    fn build_indexes<'py>(
        &self,
        py: Python<'py>,
        name: Option<String>,
        start: Option<Moment>,
        end: Option<Moment>,
        lease_s: u64,
        wait_for_others: bool,
        rebuild: bool,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let dataset = self.open()?;
        let time =
            TimeRange { start: start.map(Moment::instant).transpose()?, end: end.map(Moment::instant).transpose()? };
        let options = IndexBuildOptions { name, time, lease_s, wait: wait_for_others, rebuild };
        let report_progress = reporter(progress);
        let report = wait(py, dataset.build_indexes(&options, Some(&report_progress)))?;
        reports::index_build_report(py, &report)
    }

    fn consolidate<'py>(
        &self,
        py: Python<'py>,
        options: ConsolidateArguments,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let dataset = self.open()?;
        let options = consolidate_options(options)?;
        let report_progress = reporter(progress);
        let report = wait(py, dataset.consolidate(options, Some(&report_progress)))?;
        reports::consolidate_report(py, &report)
    }

    /// Creates the slices of a period, and returns their numbers.
    fn prepare(&self, py: Python<'_>, start: Moment, end: Moment) -> PyResult<Vec<i32>> {
        let period = TimeRange { start: Some(start.instant()?), end: Some(end.instant()?) };
        let slices = wait(py, self.open()?.prepare(&period))?;
        Ok(slices.iter().map(|slice| slice.0).collect())
    }

    /// Names of the other datasets whose rows are in the same slices.
    fn shares_slices_with(&self) -> PyResult<Vec<String>> {
        Ok(self.open()?.shares_slices_with().iter().map(DatasetName::to_string).collect())
    }

    /// Drops slices before a moment or older than a duration; if both are None, those past the dataset's retention.
    fn retire<'py>(
        &self,
        py: Python<'py>,
        before: Option<Moment>,
        older_than: Option<&str>,
        dry_run: bool,
    ) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let slices = wait(py, self.open()?.retire(retire_limit(before, older_than)?, dry_run))?;
        reports::slices(py, &slices)
    }

    /// Drops slices, given by number and fingerprint, unless they have changed since.
    fn retire_unchanged<'py>(&self, py: Python<'py>, slices: Vec<(i32, String)>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let dropped = wait(py, self.open()?.retire_unchanged(&fingerprints(&slices)?))?;
        reports::slices(py, &dropped)
    }

    fn verify<'py>(&self, py: Python<'py>, progress: Option<Py<PyAny>>) -> PyResult<Bound<'py, PyDict>> {
        let dataset = self.open()?;
        let report_progress = reporter(progress);
        let report = wait(py, dataset.verify(Some(&report_progress)))?;
        reports::verify_report(py, &report)
    }

    fn remove_foreign<'py>(&self, py: Python<'py>) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let dataset = self.open()?;
        let removed = wait(py, dataset.remove_foreign())?;
        removed.iter().map(|chunk| reports::foreign_chunk(py, chunk)).collect()
    }

    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let info = wait(py, self.open()?.info())?;
        reports::dataset_info(py, &info)
    }
}
