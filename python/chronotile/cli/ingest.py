"""``chronotile ingest``: store files in a dataset, with repeatable and resumable runs."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

import click

from chronotile import _native, inputs
from chronotile.archive import Archive
from chronotile.cli.common import Size, Target, json_option, target, timeout_option
from chronotile.cli.define import Definition, definition_options
from chronotile.conditions import names
from chronotile.dataset import Dataset
from chronotile.errors import DataFileError, DatasetNotFoundError, InvalidInputError, StorageFullError
from chronotile.terminal import ProgressLine, bar, bytes_text, count_text
from chronotile.times import TimeAxis

BLOCK_ROWS = 1_000_000
"""Rows per batch. Batch names depend on it, so it must never change."""

SAMPLED_FILES = 1_000
"""Number of files sampled for the column types of a new dataset."""

_FORMATS = ["csv", "tsv", "ndjson", "parquet", "arrow", "lines"]
_SAME_AS_STORED = ("large_", "utf8_view", "binary_view", "dictionary", "list", "struct")
_COMPRESSED = (".gz", ".zst")

SPOOL_BLOCK = 1 << 20
"""Block size when standard input is copied, in bytes."""


@dataclass
class ReadOptions:
    """Settings for reading files."""

    format: str | None
    types: dict[str, str]
    columns: list[str] | None
    column_names: list[str] | None
    delimiter: str | None
    header: bool
    nulls: list[str]
    comment: str | None
    tag: tuple[str, str | None] | None
    line_time: str | None
    line_year: int | None

    def tag_of(self, source: Source) -> tuple[str, str] | None:
        """Name and value of the tag column for a file: the given value, or the file name without extensions."""
        if self.tag is None:
            return None
        name, value = self.tag
        return name, source.stem if value is None else value

    def open(
        self,
        source: Source,
        types: dict[str, str],
        *,
        hints: dict[str, str] | None = None,
        skip_rows: int = 0,
        tag_type: str = "utf8",
    ) -> _native.RecordFile:
        """Open a file at row `skip_rows`; `hints` maps columns to the advice in errors about their values."""
        tag = self.tag_of(source)
        constants = (
            [] if tag is None else [(tag[0], inputs.values_column([_as(tag[1], tag_type)], tag_type, "--tag-column"))]
        )
        with source.named():
            if self.format == "lines":
                return _native.RecordFile.open_lines(
                    source.path,
                    time_format=self.line_time,
                    year=self.line_year,
                    skip_rows=skip_rows,
                    constants=constants,
                )
            of_file = partial(
                _native.RecordFile.open,
                source.path,
                format=self.format,
                types=list({**types, **self.types}.items()),
                hints=list((hints or {}).items()),
                delimiter=self.delimiter,
                header=self.header,
                column_names=self.column_names,
                nulls=self.nulls,
                comment=self.comment,
                skip_rows=skip_rows,
                constants=constants,
            )
            file = of_file(columns=self.columns)
            given = [name for name, _, _ in file.schema().columns()]
            own = [name for name in given if not _is_unnamed_index(name)]
            if self.columns is not None or len(own) == len(given):
                return file
            return of_file(columns=[name for name in own if name not in dict(constants)])


def _is_unnamed_index(name: str) -> bool:
    """Whether a column holds the unnamed index of a DataFrame, under the name that pandas gives it in files."""
    return name.startswith("__index_level_") and name.endswith("__")


@dataclass
class Source:
    """An input: its path and its display name."""

    path: str
    name: str

    @contextmanager
    def named(self) -> Iterator[None]:
        """Replace the path of a temporary copy in errors by the name of the input."""
        try:
            yield
        except DataFileError as error:
            if self.path == self.name or self.path not in str(error):
                raise
            raise DataFileError(str(error).replace(self.path, self.name), kind=error.kind, **error.details) from error

    @property
    def stem(self) -> str:
        """The file's name without folder, compression suffix and extension."""
        name = Path(self.name).name
        for suffix in _COMPRESSED:
            name = name.removesuffix(suffix)
        return Path(name).stem


@dataclass
class Outcome:
    """Result of one file."""

    rows_stored: int = 0
    rows_before: int = 0
    duplicates: int = 0


@dataclass
class State:
    """State of the progress line."""

    files: int
    began: float = field(default_factory=time.monotonic)
    index: int = 0
    name: str = ""
    file: _native.RecordFile | None = None
    rows: int = 0

    def text(self) -> str:
        """The line."""
        file = self.file
        if file is None:
            return f"{self.name}  looking"
        rows = self.rows + file.rows_read
        rate = rows / max(time.monotonic() - self.began, 1e-3)
        position = f"{bar(file.bytes_read, file.bytes_total)}  {bytes_text(file.bytes_read)}"
        return f"[{self.index}/{self.files}] {self.name}  {position}  {rows:,} rows  {rate:,.0f} rows/s"


def _as(text: str, kind: str) -> Any:
    return int(text) if "int" in kind and text.lstrip("+-").isdigit() else text


@contextmanager
def _sources(paths: list[str], format: str | None, spool_max: int) -> Iterator[list[Source]]:
    """Open the inputs. Content is hashed before it is stored, so standard input and pipes are first copied to temporary
    files of at most `spool_max` bytes in total.
    """
    if "-" in paths and format is None:
        raise click.UsageError(f"Standard input requires --format: {', '.join(_FORMATS)}.")
    if paths.count("-") > 1:
        raise click.UsageError("Standard input can only be given once.")
    with ExitStack() as spools:
        left = spool_max
        sources = []
        for path in paths:
            if path != "-" and not _is_pipe(path):
                sources.append(Source(path, path))
                continue
            name = "standard input" if path == "-" else path
            suffix = ".in" if path == "-" else "".join(Path(path).suffixes[-2:])
            spool = spools.enter_context(tempfile.NamedTemporaryFile(prefix="chronotile-", suffix=suffix))
            # Use Python's own open and read: a signal interrupts them while they wait for a writer.
            with nullcontext(sys.stdin.buffer) if path == "-" else open(path, "rb") as stream:
                left -= _spool(stream, spool, name, left, spool_max)
            sources.append(Source(spool.name, name))
        yield sources


def _is_pipe(path: str) -> bool:
    try:
        mode = os.stat(path).st_mode
    except OSError:
        # The reader reports the error.
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


def _spool(stream: IO[bytes], spool: IO[bytes], name: str, left: int, spool_max: int) -> int:
    """Copy `stream`, up to `left` bytes; return the number of bytes."""
    folder = tempfile.gettempdir()
    room = min(left, shutil.disk_usage(folder).free // 2)
    copied = 0
    while block := stream.read(SPOOL_BLOCK):
        copied += len(block)
        if copied > room:
            limit = f"--spool-max of {bytes_text(spool_max)}" if room == left else f"half of the free space in {folder}"
            raise DataFileError(
                f"{name} exceeds the limit for temporary copies ({limit}): save it to a file and ingest "
                "that, set TMPDIR to a folder with more space, or raise --spool-max",
                kind="file-too-large",
            )
        try:
            spool.write(block)
        except OSError as error:
            raise _spool_error(name, folder, error) from error
    try:
        spool.flush()
    except OSError as error:
        raise _spool_error(name, folder, error) from error
    return copied


def _spool_error(name: str, folder: str, error: OSError) -> StorageFullError | DataFileError:
    message = f"cannot write the temporary copy of {name} in {folder}: {error.strerror}; set TMPDIR to another folder"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return StorageFullError(message, kind="storage-full")
    return DataFileError(message, kind="file-io")


def batch_key(content: str, tag: tuple[str, str] | None, start: int) -> str:
    """Name of the batch with the rows of a file from `start` on, derived from the file's content and tag."""
    tagged = "" if tag is None else f":{tag[0]}={tag[1]}"
    return f"file:{content}{tagged}:{start}"


def _stored_row_count(dataset: Dataset, key: str) -> int | None:
    """Number of rows of a stored batch, if none was retired."""
    info = dataset.batch(key)
    return info.rows if info is not None and info.finished and not info.rows_retired else None


def ingest_file(dataset: Dataset, source: Source, options: ReadOptions, state: State, *, replace: bool) -> Outcome:
    """Store the part of a file that is not stored yet."""
    outcome = Outcome()
    tag = options.tag_of(source)
    content = _native.content_hash(source.path)
    start = 0
    if not replace:
        # Blocks are written in order, so an interrupted run stopped at the first missing block, unless that block was
        # retired since.
        while (rows := _stored_row_count(dataset, batch_key(content, tag, start))) is not None:
            outcome.rows_before += rows
            start += BLOCK_ROWS
    file = _open_as_stored(dataset, source, options, skip_rows=start)
    state.file = file
    with source.named():
        while file.has_rows():
            try:
                report = dataset.write(file.block(BLOCK_ROWS), batch_key(content, tag, start), replace=replace)
            except InvalidInputError as error:
                raise _in_file(error, source, start) from error
            outcome.duplicates += report.duplicates
            if report.stored:
                outcome.rows_stored += report.rows
            else:
                outcome.rows_before += report.rows
            start += BLOCK_ROWS
    state.rows += file.rows_read
    state.file = None
    return outcome


def _in_file(error: InvalidInputError, source: Source, start: int) -> InvalidInputError:
    """Name the file in an error, and convert the row number from the block that begins at row `start` to the file."""
    text, details = str(error), dict(error.details)
    row = details.get("row")
    if row is not None:
        details["row"] = start + row
        text = text.replace(f"row {row} ", f"row {start + row} ", 1)
    return InvalidInputError(f"{source.name}: {text}", kind=error.kind, **details)


def _open_as_stored(dataset: Dataset, source: Source, options: ReadOptions, *, skip_rows: int) -> _native.RecordFile:
    """Open the file with the column types of the dataset, if its own or inferred types differ."""
    stored = dataset.column_types
    tag = options.tag_of(source)
    tag_type = "utf8" if tag is None else stored.get(tag[0], "utf8")
    hints = _hints(dataset.time)
    file = options.open(source, {}, hints=hints, skip_rows=skip_rows, tag_type=tag_type)
    differing = {
        name: stored[name]
        for name, kind, _ in file.schema().columns()
        if name in stored and kind != stored[name] and not kind.startswith(_SAME_AS_STORED)
    }
    if tag is not None:
        differing.pop(tag[0], None)
    if not differing or options.format == "lines" or all(name in options.types for name in differing):
        return file
    return options.open(source, differing, hints=hints, skip_rows=skip_rows, tag_type=tag_type)


def _hints(time: TimeAxis) -> dict[str, str]:
    """Advice for times that do not fit a column of days; the archive gives the same advice for rows."""
    known = {"mjd": ("Modified Julian Dates", "61071.5"), "jd": ("Julian Dates", "2461072.0")}.get(time.format)
    if known is None:
        return {}
    return {
        time.column: f"the column counts {known[0]}: give numbers such as {known[1]}, or create the dataset with a "
        "time column of timestamps"
    }


def _dataset(
    archive: Archive, target: Target, definition: Definition, create: bool, sources: list[Source], options: ReadOptions
) -> Dataset:
    try:
        return archive.dataset(target.dataset)
    except DatasetNotFoundError:
        if not create:
            raise
    schema = _common_schema(sources, options)
    return definition.create(
        archive, target.dataset, schema, exist_ok=True, sample=lambda: options.open(sources[0], {})
    )


def _common_schema(sources: list[Source], options: ReadOptions) -> _native.Schema:
    """Columns of the first file, with float64 for whole numbers if another file has fractions."""
    first = options.open(sources[0], {}).schema()
    whole = {name for name, kind, _ in first.columns() if kind == "int64" and name not in options.types}
    fractions: set[str] = set()
    for source in sources[1:SAMPLED_FILES]:
        if whole <= fractions or options.format == "lines":
            break
        found = options.open(source, {}).schema().columns()
        fractions |= {name for name, kind, _ in found if kind == "float64" and name in whole}
    if not fractions:
        return first
    return _native.Schema.of_types(
        [(name, "float64" if name in fractions else kind) for name, kind, _ in first.columns()]
    )


def _tag(text: str | None) -> tuple[str, str | None] | None:
    if text is None:
        return None
    name, equals, value = text.partition("=")
    return name, value if equals else None


def _types(given: tuple[str, ...]) -> dict[str, str]:
    types = {}
    for text in given:
        name, equals, kind = text.partition("=")
        if not equals:
            raise click.BadParameter(f"{text!r} is not COLUMN=TYPE", param_hint="--types")
        types[name] = kind
    return types


def _dry_run(dataset: Dataset | None, source: Source, options: ReadOptions) -> dict[str, Any]:
    """Format, columns and number of rows of a file, as an ingest would read it."""
    file = options.open(source, {}) if dataset is None else _open_as_stored(dataset, source, options, skip_rows=0)
    found = {
        "file": source.name,
        "format": file.format,
        "rows": file.rows_total,
        "columns": {name: kind for name, kind, _ in file.schema().columns()},
    }
    if dataset is not None:
        key = batch_key(_native.content_hash(source.path), options.tag_of(source), 0)
        found["stored"] = _stored_row_count(dataset, key) is not None
    return found


def _print_dry_run(found: dict[str, Any], stored: Mapping[str, str] | None) -> None:
    rows = "" if found["rows"] is None else f", {count_text(found['rows'], 'row')}"
    click.echo(f"{found['file']}: {found['format']}{rows}")
    for name, kind in found["columns"].items():
        note = "" if stored is None or name in stored else "  (not a column of the dataset)"
        click.echo(f"  {name}: {kind}{note}")
    if "stored" in found:
        click.echo("  already stored" if found["stored"] else "  not stored yet")


@click.command(short_help="Store files in a dataset.")
@target(rest="FILES...")
@click.option("--format", "format_", type=click.Choice(_FORMATS), help="Format. Default: by content and name.")
@click.option("--types", multiple=True, metavar="COLUMN=TYPE", help="Column type; repeatable.")
@click.option("--columns", metavar="NAMES", help="Only these columns, separated by commas.")
@click.option("--names", "column_names", metavar="NAMES",
              help="Names of all CSV columns, instead of those in "
              "the first line; with --no-header, the first line is a record.")  # fmt: skip
@click.option("--delimiter", metavar="CHAR", help="CSV delimiter. Default: a comma, a tab for TSV.")
@click.option("--no-header", is_flag=True, help="CSV files have no header line.")
@click.option("--nulls", multiple=True, metavar="WORD", help="Text that means null in CSV; repeatable.")
@click.option("--comment", metavar="CHAR", help="Skip CSV lines that start with this character.")
@click.option(
    "--tag-column", metavar="NAME[=VALUE]", help="Add a column with VALUE, or each file's name without extension."
)
@click.option(
    "--line-time", metavar="PATTERN", help="With --format lines: strptime pattern of the time at the start of a line."
)
@click.option("--line-year", type=int, help="Year, for a --line-time pattern without one.")
@click.option("--create", is_flag=True, help="Create the dataset if it does not exist, with the options below.")
@definition_options
@click.option("--replace", is_flag=True, help="Replace batches that are stored with other content.")
@click.option("--dry-run", is_flag=True, help="Show what would be read; store nothing.")
@json_option
@click.option(
    "--spool-max",
    type=Size(),
    default="8GiB",
    show_default=True,
    metavar="SIZE",
    help="Largest temporary copy of standard input and pipes, in TMPDIR; at most half of the free space there.",
)
@timeout_option
def ingest(
    target: Target, definition: Definition, format_: str | None, types: tuple[str, ...], columns: str | None,
    column_names: str | None, delimiter: str | None, no_header: bool, nulls: tuple[str, ...], comment: str | None,
    tag_column: str | None, line_time: str | None, line_year: int | None, create: bool, replace: bool, dry_run: bool,
    as_json: bool, spool_max: int, timeout_s: int,
) -> None:  # fmt: skip
    """Store files in a dataset; `-` is standard input. CSV, TSV, NDJSON, Parquet, Arrow and lines of text, each also
    as .gz.

    Batches are named by file content, so running the command again changes nothing, and an interrupted run continues
    where it stopped. Columns are converted to the types of the dataset. Standard input and pipes are first copied to a
    temporary file.

    \b
    Examples:
        chronotile ingest survey.db detections night*.parquet
        zcat dump.csv.gz | chronotile ingest survey.db detections - --format csv
        chronotile ingest plant.db values sensors/*.csv --tag-column sensor --create \\
            --hash sensor --time timestamp --window 1d
        chronotile ingest logs.db lines sshd.log --format lines --tag-column stream \\
            --line-time "%b %d %H:%M:%S" --line-year 2026
    """
    if definition.given and not create:
        raise click.UsageError("Options that define a dataset require --create.")
    options = ReadOptions(
        format=format_, types=_types(types), columns=names(columns), column_names=names(column_names),
        delimiter={"\\t": "\t", "tab": "\t"}.get(delimiter or "", delimiter), header=not no_header, nulls=list(nulls),
        comment=comment, tag=_tag(tag_column), line_time=line_time, line_year=line_year,
    )  # fmt: skip
    with _sources(target.rest, format_, spool_max) as sources:
        if dry_run:
            _dry_runs(target, sources, options, create, as_json=as_json)
            return
        with target.open(create=create, timeout_s=timeout_s) as archive:
            dataset = _dataset(archive, target, definition, create, sources, options)
            _ingest_all(dataset, sources, options, replace=replace, as_json=as_json)


def _dry_runs(target: Target, sources: list[Source], options: ReadOptions, create: bool, *, as_json: bool) -> None:
    if not create or os.path.exists(target.url.removeprefix("sqlite:")):
        with target.open(read_only=True) as archive:
            dataset = archive[target.dataset] if not create or target.dataset in archive else None
            found = [_dry_run(dataset, source, options) for source in sources]
            stored = None if dataset is None else dataset.column_types
    else:
        found, stored = [_dry_run(None, source, options) for source in sources], None
    if as_json:
        click.echo(json.dumps(found))
        return
    for each in found:
        _print_dry_run(each, stored)


def _ingest_all(dataset: Dataset, sources: list[Source], options: ReadOptions, *, replace: bool, as_json: bool) -> None:
    total = Outcome()
    unchanged = 0
    state = State(len(sources))
    with ProgressLine(state.text):
        for index, source in enumerate(sources, 1):
            state.index, state.name = index, source.name
            outcome = ingest_file(dataset, source, options, state, replace=replace)
            total.rows_stored += outcome.rows_stored
            total.rows_before += outcome.rows_before
            total.duplicates += outcome.duplicates
            unchanged += outcome.rows_stored == 0
    seconds = max(time.monotonic() - state.began, 1e-6)
    if as_json:
        click.echo(json.dumps({"files": len(sources), "seconds": seconds, **dataclasses.asdict(total)}))
        return
    click.echo(_summary(total, len(sources), unchanged, seconds))


def _summary(total: Outcome, files: int, unchanged: int, seconds: float) -> str:
    of_files = count_text(files, "file")
    if total.rows_stored == 0 and total.rows_before:
        return f"nothing to do: {count_text(total.rows_before, 'row')} of {of_files} already stored"
    rate = total.rows_stored / seconds
    parts = [f"stored {count_text(total.rows_stored, 'row')} of {of_files} in {seconds:.1f} s ({rate:,.0f} rows/s)"]
    if total.rows_before:
        parts.append(f"{count_text(total.rows_before, 'row')} already stored")
    if total.duplicates:
        parts.append(f"{count_text(total.duplicates, 'row')} skipped, because a later row has the same id")
    return "; ".join(parts)
