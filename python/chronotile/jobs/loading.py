"""Load files of jobs with several processes; each block of a file is one batch."""

from __future__ import annotations

import csv
import fcntl
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pyarrow as pa

from chronotile import _native, durable, loading, scanning
from chronotile.archive import open as open_archive
from chronotile.dataset import Dataset
from chronotile.errors import ChronotileError, DataFileError, InvalidInputError
from chronotile.jobs.blocks import FORMATS, Block, File, blocks, files, records
from chronotile.jobs.jobs import Jobs
from chronotile.jobs.parsing import ReadOptions, Reject, parse
from chronotile.jobs.swf import SWF_COLUMNS
from chronotile.workers import end_with_parent

__all__ = ["LoadProgress", "LoadReport", "load"]


SAMPLED = 10_000
"""Number of records sampled for the column types of a new archive."""


@dataclass
class LoadReport(loading.Report):
    """Report of a load."""

    rows: int = 0
    """Rows stored now."""
    rows_before: int = 0
    """Rows that were already stored."""
    duplicates: int = 0
    """Rows skipped because a later row of the same block has the same id."""
    rejects: str | None = None
    """The reject file, if there is one."""

    @property
    def records(self) -> int:
        """Rows stored, now or earlier."""
        return self.rows + self.rows_before

    def add(self, done: _BlockReport, block: Block) -> None:
        """Count one block."""
        self.rows += done.rows if done.stored else 0
        self.rows_before += 0 if done.stored else done.rows
        self.duplicates += done.duplicates
        self.rejected += done.rejected
        if self.first_reject is None and done.first is not None:
            self.first_reject = (block.file.path, done.first.line, done.first.reason)


LoadProgress = loading.Progress[LoadReport]


@dataclass(frozen=True)
class _BlockReport:
    rows: int
    stored: bool
    duplicates: int
    rejected: int
    first: Reject | None = None


@dataclass
class _Worker:
    """State of a worker process."""

    dataset: Dataset
    options: ReadOptions
    rejects: str | None


_worker: _Worker | None = None


def load(
    jobs: Jobs,
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    url: str | None = None,
    format: str | None = None,
    names: Iterable[str] | None = None,
    delimiter: str = ",",
    nulls: Iterable[str] = ("", "NULL", "null", "\\N"),
    workers: int | None = None,
    rejects: str | os.PathLike[str] | None = None,
    rejects_max: int = 100_000,
    progress: Callable[[LoadProgress], object] | None = None,
) -> LoadReport:
    """Load files of jobs. Running it again changes nothing; an interrupted load continues where it stopped. Files are
    split into blocks; each is a batch named by the file's content and the block's position.

    Parameters
    ----------
    jobs : Jobs
        The archive of jobs.
    paths : path or iterable of paths
        Files, or folders of them: CSV, NDJSON, each also gzipped, Parquet, and logs in the Standard Workload Format.
    url : str, optional
        URL of the archive, which each worker process opens. Without a URL, or with one worker, this process does the
        work. An in-memory archive has no URL that others can open.
    format : {"csv", "ndjson", "parquet", "swf"}, optional
        Format of all files; by default taken from their names.
    names : iterable of str, optional
        Column names for CSV files without a header.
    delimiter, nulls
        Delimiter and null values of CSV files.
    workers : int, optional
        Worker processes; by default one per core, at most 8.
    rejects : path, optional
        File for rejected records, one JSON object per line: ``file``, ``line`` (from 1; of Parquet the row),
        ``reason``, ``record``. Lines are appended to an existing file.
    rejects_max : int
        Stop the load after more rejects, because the format is probably wrong.
    progress : callable, optional
        Called repeatedly.

    Raises
    ------
    DataFileError
        A file cannot be read, or more records than allowed are rejected.
    InvalidInputError
        Columns of a file do not match the dataset, or a setting is invalid.
    """
    if format is not None and format not in FORMATS:
        raise InvalidInputError(f"unknown format {format!r}: use one of {', '.join(FORMATS)}", kind="invalid-setting")
    listed = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    found = files([os.fspath(path) for path in listed], format)
    options = ReadOptions(
        schema=jobs.dataset.schema,
        required=tuple(dict.fromkeys([jobs.id, jobs.dataset.time.column])),
        names=None if names is None else tuple(names),
        delimiter=delimiter,
        nulls=tuple(nulls),
    )
    reject_path = None if rejects is None else os.fspath(rejects)
    count = min(os.cpu_count() or 1, 8) if workers is None else workers
    if count < 1:
        raise InvalidInputError(f"workers={count} is out of range: use at least 1", kind="invalid-setting")
    report = LoadReport(len(found), rejects=reject_path)
    state = LoadProgress(sum(file.bytes for file in found), report)
    ends = {file.path: file.bytes for file in found}
    for block, done in _load_blocks(jobs, found, options, reject_path, url, count):
        report.add(done, block)
        before = sum(ends[file.path] for file in found[: found.index(block.file)])
        state.bytes_done = max(state.bytes_done, before + min(block.bytes_done, block.file.bytes))
        state.file = block.file.path
        if report.rejected > rejects_max:
            raise DataFileError(
                f"{report.rejected:,} records rejected, more than allowed{_first_text(report.first_reject)}; check the "
                "format, the columns and the delimiter, or allow more with rejects_max (--rejects-max)",
                kind="file-content",
            )
        report.seconds = time.monotonic() - state.began
        if progress is not None:
            progress(state)
    if reject_path is not None:
        _remove_duplicate_lines(reject_path)
    report.seconds = time.monotonic() - state.began
    return report


def _first_text(first: tuple[str, int, str] | None) -> str:
    return "" if first is None else f"; the first is line {first[1]:,} of {first[0]}: {first[2]}"


def _load_blocks(
    jobs: Jobs, found: list[File], options: ReadOptions, rejects: str | None, url: str | None, workers: int
) -> Iterator[tuple[Block, _BlockReport]]:
    pieces = (block for file in found for block in blocks(file, header=options.names is None))
    if workers == 1 or url is None or url.startswith("memory:"):
        here = _Worker(jobs.dataset, options, rejects)
        for block in pieces:
            yield block, _load(here, block)
        return
    # Forking is unsafe, because this process has threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _initialize_worker, (url, jobs.dataset.name, options, rejects)) as pool:
        yield from loading.in_order(pool, _load_in_worker, pieces, workers)


def _initialize_worker(url: str, dataset: str, options: ReadOptions, rejects: str | None) -> None:
    global _worker
    end_with_parent()
    pa.set_cpu_count(1)
    _worker = _Worker(open_archive(url, create=False, timeout_s=600).dataset(dataset), options, rejects)


def _load_in_worker(block: Block) -> _BlockReport:
    if _worker is None:
        raise RuntimeError("the worker was not initialized")
    return _load(_worker, block)


def _load(worker: _Worker, block: Block) -> _BlockReport:
    stored = worker.dataset.batch(block.batch)
    if stored is not None and stored.finished and stored.rows and not stored.rows_retired:
        return _BlockReport(stored.rows, False, 0, 0)
    table, rejects = parse(block, worker.options)
    if rejects and worker.rejects is not None:
        # Write rejects before the rows are stored: after an interruption, the block is parsed again, and duplicate
        # rejects are removed.
        _append_rejects(worker.rejects, block, rejects)
    first = rejects[0] if rejects else None
    if rejects and not table.num_rows:
        # Leave the batch name unused, so that the block can be read with other settings.
        return _BlockReport(0, True, 0, len(rejects), first)
    # A finished batch gets here if it has no rows, or lost some with retired slices: `replace` stores all rows again.
    report = worker.dataset.write(table, batch=block.batch, replace=stored is not None and stored.finished)
    return _BlockReport(report.rows, report.stored, report.duplicates, len(rejects), first)


def _append_rejects(path: str, block: Block, rejects: list[Reject]) -> None:
    lines = "".join(
        json.dumps({"file": block.file.path, "line": r.line, "reason": r.reason, "record": r.record}) + "\n"
        for r in rejects
    )
    try:
        with Path(path).open("a", encoding="utf-8") as file:
            # Several workers append to the file: the lock keeps their lines whole.
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())
        durable.sync_folder(Path(path).parent)
    except OSError as error:
        raise DataFileError(f"cannot write the reject file {path}: {error}", kind="file-access") from error


def _remove_duplicate_lines(path: str) -> None:
    """Remove duplicate lines, which a repeated run after an interruption writes."""
    if not Path(path).exists():
        return
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    distinct = list(dict.fromkeys(lines))
    if len(distinct) < len(lines):
        durable.write_text(Path(path), "".join(f"{line}\n" for line in distinct))


def infer_schema(path: str, format: str | None, names: Iterable[str] | None, delimiter: str) -> dict[str, str]:
    """Infer columns and types of a file of jobs from its start; invalid records are skipped."""
    file = next(iter(files([path], format)))
    if file.format == "swf":
        return dict(SWF_COLUMNS)
    given = None if names is None else list(names)
    if file.format == "parquet":
        return _columns_of(file.path, file.format, given, delimiter)
    beginning = _sample(file, given, delimiter)
    with tempfile.NamedTemporaryFile(prefix="chronotile-", suffix=f".{file.format}") as sample:
        sample.write(beginning)
        sample.flush()
        try:
            return _columns_of(sample.name, file.format, given, delimiter)
        except ChronotileError as error:
            # Name the user's file in the error, not the temporary sample of it.
            text = str(error).replace(sample.name, str(file.path))
            raise type(error)(text, kind=error.kind, **error.details) from None


def _columns_of(path: str, format: str, names: list[str] | None, delimiter: str) -> dict[str, str]:
    text = format == "csv"
    record = _native.RecordFile.open(
        path,
        format=format,
        delimiter=delimiter if text else None,
        header=names is None,
        column_names=names,
        nulls=["", "NULL", "null", "\\N"] if text else [],
    )
    return {name: kind for name, kind, _ in record.schema().columns()}


def _sample(file: File, names: list[str] | None, delimiter: str) -> bytes:
    """The first valid records of a file (as many fields as the header, or JSON objects), after the header."""
    # A last line without a line break is a block of its own.
    beginning = list(islice(blocks(file, header=names is None), 2))
    if not beginning:
        return b""
    header, quoted = beginning[0].header, file.format == "csv"
    field_count = len(names) if names is not None else len(_fields(header, delimiter))
    valid, remaining = [header], SAMPLED
    for whole in (block.text for block in beginning if block.text is not None):
        starts, ends, _ = records(whole, 1, quoted=quoted)
        for start, end in zip(starts[:remaining], ends[:remaining], strict=True):
            text = whole[start:end]
            if len(_fields(text, delimiter)) == field_count if quoted else _is_object(text):
                valid.append(text)
        remaining -= len(starts[:remaining])
    return b"".join(valid)


def _fields(record: bytes, delimiter: str) -> list[str]:
    return next(csv.reader([record.decode("utf-8-sig", errors="replace").rstrip("\r\n")], delimiter=delimiter), [])


def _is_object(record: bytes) -> bool:
    try:
        return isinstance(scanning.json_value(record), dict)
    except ValueError:
        return False
