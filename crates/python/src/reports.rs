//! Converts reports to dictionaries, from which Python creates its dataclasses.

use chronotile_archive::{
    BatchInfo, ConsolidateReport, CopyProgress, DamageReport, DatasetCopyReport, DatasetInfo, ForeignChunk, GroupBatch,
    IndexBuildReport, IndexStatus, IndexUse, RecordDamage, RowsMissing, SliceInfo, Spread, TileDifference,
    VerifyReport, WriteReport,
};
use chronotile_types::{DatasetSpec, Tile, Window};
use pyo3::prelude::*;
use pyo3::types::PyDict;

macro_rules! dict {
    ($py:expr, { $($key:ident : $value:expr),* $(,)? }) => {{
        let dict = PyDict::new($py);
        $(dict.set_item(stringify!($key), $value)?;)*
        Ok(dict)
    }};
}

type Dict<'py> = PyResult<Bound<'py, PyDict>>;

pub fn write_report<'py>(py: Python<'py>, report: &WriteReport) -> Dict<'py> {
    dict!(py, {
        batch: report.batch.to_string(),
        stored: report.stored,
        rows: report.rows,
        duplicates: report.duplicates,
        tiles: report.tiles,
        chunks: report.chunks,
        bytes: report.bytes,
    })
}

pub fn batch_info<'py>(py: Python<'py>, info: &BatchInfo) -> Dict<'py> {
    dict!(py, {
        key: info.key.clone(),
        batch: info.batch.to_string(),
        rows: info.rows,
        rows_retired: info.rows_retired,
        tiles: info.tiles,
        chunks: info.chunks,
        bytes: info.bytes,
        written_us: info.written_us,
        ticks: info.ticks,
        finished: info.finished,
    })
}

pub fn group_batch<'py>(py: Python<'py>, batch: &GroupBatch) -> Dict<'py> {
    let datasets = PyDict::new(py);
    for (name, info) in &batch.datasets {
        datasets.set_item(name.as_str(), batch_info(py, info)?)?;
    }
    dict!(py, {
        key: batch.key.clone(),
        batch: batch.batch.to_string(),
        written_us: batch.written_us,
        finished: batch.finished,
        datasets: datasets,
    })
}

pub fn consolidate_report<'py>(py: Python<'py>, report: &ConsolidateReport) -> Dict<'py> {
    dict!(py, {
        tiles: report.tiles,
        chunks_before: report.chunks_before,
        chunks_after: report.chunks_after,
        bytes_before: report.bytes_before,
        bytes_after: report.bytes_after,
        tiles_contended: report.tiles_contended,
        failed: report.failed.iter().map(|failure| (tile(&failure.tile), failure.reason.clone())).collect::<Vec<_>>(),
    })
}

pub fn index_build_report<'py>(py: Python<'py>, report: &IndexBuildReport) -> Dict<'py> {
    dict!(py, {
        windows: report.windows,
        windows_built: report.windows_built,
        windows_elsewhere: report.windows_elsewhere,
        tiles_read: report.tiles_read,
        tiles_kept: report.tiles_kept,
        tiles_left_out: report.tiles_left_out,
        rows: report.rows,
        bytes: report.bytes,
    })
}

pub fn index_status<'py>(py: Python<'py>, status: &IndexStatus) -> Dict<'py> {
    dict!(py, {
        name: status.name.clone(),
        columns: status.columns.clone(),
        windows: status.windows,
        ticks: status.ticks,
        tiles: status.tiles,
        tiles_left_out: status.tiles_left_out,
        rows: status.rows,
        values: status.values,
        bytes: status.bytes,
        built_us: status.built_us,
    })
}

/// Windows are identified by their first ticks.
pub fn index_use<'py>(py: Python<'py>, used: &IndexUse, spec: &DatasetSpec) -> Dict<'py> {
    let starts = |windows: &[Window]| -> Vec<i64> { windows.iter().map(|window| spec.window_start(*window)).collect() };
    dict!(py, {
        index: used.index.clone(),
        reason: used.reason.clone(),
        counts: used.counts,
        tiles: used.tiles,
        tiles_indexed: used.tiles_indexed,
        tiles_unindexed: used.tiles_unindexed,
        tiles_changed: used.tiles_changed,
        tiles_partial: used.tiles_partial,
        tiles_shared: used.tiles_shared,
        tiles_read: used.tiles_read,
        chunks: used.chunks,
        chunks_read: used.chunks_read,
        chunks_filtered: used.chunks_filtered,
        windows_indexed: starts(&used.windows_indexed),
        windows_direct: starts(&used.windows_direct),
    })
}

pub fn slice_info<'py>(py: Python<'py>, info: &SliceInfo) -> Dict<'py> {
    dict!(py, {
        slice: info.slice.0,
        ticks: info.ticks,
        tiles: info.tiles,
        chunks: info.chunks,
        rows: info.rows,
        bytes: info.bytes,
        cell_bytes_max: info.cell_bytes_max,
        cells_oversized: info.cells_oversized,
        fingerprint: format!("{:032x}", info.fingerprint),
    })
}

pub fn slices<'py>(py: Python<'py>, slices: &[SliceInfo]) -> PyResult<Vec<Bound<'py, PyDict>>> {
    slices.iter().map(|slice| slice_info(py, slice)).collect()
}

pub fn dataset_info<'py>(py: Python<'py>, info: &DatasetInfo) -> Dict<'py> {
    dict!(py, {
        slices: slices(py, &info.slices)?,
        tile_chunks: spread(py, &info.tile_chunks)?,
        tile_rows: spread(py, &info.tile_rows)?,
        tile_bytes: spread(py, &info.tile_bytes)?,
        tile_largest: info.tile_largest.as_ref().map(tile),
    })
}

fn spread<'py>(py: Python<'py>, spread: &Spread) -> Dict<'py> {
    dict!(py, { min: spread.min, median: spread.median, p99: spread.p99, max: spread.max })
}

fn tile(tile: &Tile) -> (i64, i32) {
    (tile.cell.0, tile.window.0)
}

pub fn verify_report<'py>(py: Python<'py>, report: &VerifyReport) -> Dict<'py> {
    let damage = report.damage.iter().map(|damage| damage_report(py, damage)).collect::<PyResult<Vec<_>>>()?;
    dict!(py, {
        chunks: report.chunks,
        rows: report.rows,
        bytes: report.bytes,
        batches: report.batches,
        batches_unfinished: report.batches_unfinished,
        damage: damage,
        rows_missing: report.rows_missing.iter().map(|missing| rows_missing(py, missing)).collect::<PyResult<Vec<_>>>()?,
        foreign: report.foreign.iter().map(|chunk| foreign_chunk(py, chunk)).collect::<PyResult<Vec<_>>>()?,
        records: report.records.iter().map(|record| record_damage(py, record)).collect::<PyResult<Vec<_>>>()?,
    })
}

fn rows_missing<'py>(py: Python<'py>, missing: &RowsMissing) -> Dict<'py> {
    dict!(py, {
        tile: tile(&missing.tile),
        batch: missing.batch.to_string(),
        key: missing.key.clone(),
        rows: missing.rows,
    })
}

pub fn foreign_chunk<'py>(py: Python<'py>, chunk: &ForeignChunk) -> Dict<'py> {
    dict!(py, {
        tile: tile(&chunk.tile),
        chunk: chunk.chunk.to_string(),
        batch: chunk.batch.to_string(),
        key: chunk.key.clone(),
        rows: chunk.rows,
        reason: chunk.reason(),
    })
}

fn record_damage<'py>(py: Python<'py>, record: &RecordDamage) -> Dict<'py> {
    dict!(py, { key: record.key.clone(), reason: record.reason.clone() })
}

fn damage_report<'py>(py: Python<'py>, report: &DamageReport) -> Dict<'py> {
    dict!(py, {
        tile: tile(&report.tile),
        chunk: report.chunk.to_string(),
        reason: report.damage.as_ref().map_or_else(|| "the chunk is missing".to_owned(), ToString::to_string),
        missing: report.damage.is_none(),
        rows: report.rows,
    })
}

pub fn copy_report<'py>(py: Python<'py>, report: &DatasetCopyReport) -> Dict<'py> {
    let differences = report.differences.iter().map(|tile| tile_difference(py, tile)).collect::<PyResult<Vec<_>>>()?;
    let damage = report.damage.iter().map(|damage| damage_report(py, damage)).collect::<PyResult<Vec<_>>>()?;
    dict!(py, {
        dataset: report.dataset.as_str(),
        verify_only: report.verify_only,
        passes: report.passes,
        caught_up: report.caught_up,
        batches: report.batches,
        batches_copied: report.batches_copied,
        batches_removed: report.batches_removed,
        batches_left: report.batches_left,
        batches_foreign: report.batches_foreign,
        batches_unfinished: report.batches_unfinished.clone(),
        chunks_copied: report.chunks_copied,
        rows_copied: report.rows_copied,
        bytes_copied: report.bytes_copied,
        chunks_removed: report.chunks_removed,
        slices_dropped: report.slices_dropped,
        tiles_verified: report.tiles_verified,
        chunks_verified: report.chunks_verified,
        rows_verified: report.rows_verified,
        bytes_verified: report.bytes_verified,
        tiles_moved: report.tiles_moved,
        tiles_differing: report.tiles_differing,
        differences: differences,
        damage: damage,
    })
}

fn tile_difference<'py>(py: Python<'py>, difference: &TileDifference) -> Dict<'py> {
    dict!(py, {
        tile: tile(&difference.tile),
        missing: difference.missing,
        superfluous: difference.superfluous,
        differing: difference.differing,
        chunks: difference.chunks.iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

pub fn copy_progress<'py>(py: Python<'py>, progress: &CopyProgress) -> Dict<'py> {
    dict!(py, {
        dataset: progress.dataset.as_str(),
        verifying: progress.verifying,
        pass_number: progress.pass,
        tiles_done: progress.tiles_done,
        tiles_total: progress.tiles_total,
        bytes: progress.bytes,
    })
}
