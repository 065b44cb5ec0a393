"""Parse blocks of files to tables of jobs, and report the reason for each rejected record."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.json

from chronotile import _native, casts, scanning
from chronotile.errors import DataFileError, InvalidInputError
from chronotile.hints import name_hint, name_list
from chronotile.jobs import swf
from chronotile.jobs.blocks import Block, parquet_file, records

_ZONE = r"(Z|[+-][0-9][0-9]:?[0-9][0-9]|[0-9][0-9]:[0-9][0-9].*[+-][0-9][0-9])$"
"""Time zone at the end of a time, as a pattern for Arrow, whose regular expressions run in linear time."""

_TIME_CHARS_MAX = 64
"""Most characters of a time."""

_PLACE_DIGITS_MAX = 18
"""Most digits of the number of a column or row."""

_HINTED_MAX = 20
"""Most unknown columns that a message lists and suggests known ones for."""

RECORD_SHOWN = 2_000
"""Most characters kept of a rejected record."""


@dataclass(frozen=True)
class ReadOptions:
    """Settings for reading files."""

    schema: pa.Schema
    """Schema of the dataset."""
    required: tuple[str, ...]
    """Required columns of a job."""
    names: tuple[str, ...] | None = None
    """Column names for CSV files without a header."""
    delimiter: str = ","
    nulls: tuple[str, ...] = ("", "NULL", "null", "\\N")


@dataclass(frozen=True)
class Reject:
    """A rejected record."""

    line: int
    reason: str
    record: str


class _BadBlockError(Exception):
    """Parser error: some record of the block is invalid."""


def parse(block: Block, options: ReadOptions) -> tuple[pa.Table, list[Reject]]:
    """Parse the jobs of a block to the dataset's types; return them and the rejected records.

    Raises
    ------
    DataFileError, InvalidInputError
        The columns of the file do not match the dataset.
    """
    if block.text is None:
        table, lines = _parquet(block, options), np.arange(block.first_line, block.first_line + block.rows)
        return _fileable(table, lines, lambda row: str({n: table[n][row].as_py() for n in options.required}), options)
    parser = _parser(block, options)
    names = csv_names(block, options) if block.file.format == "csv" else options.schema.names
    starts, ends, lines = records(block.text, block.first_line, quoted=block.file.format == "csv")
    if block.file.format == "swf":
        # Comments may occur anywhere.
        data = np.frombuffer(block.text, "uint8")
        jobs = data[starts] != ord(";")
        starts, ends, lines = starts[jobs], ends[jobs], lines[jobs]
    if len(starts) == 0:
        return options.schema.empty_table(), []
    tables: list[pa.Table] = []
    kept: list[Any] = []
    rejects: list[Reject] = []

    def shown(record: int) -> str:
        return block.text[starts[record] : ends[record]].decode(errors="replace").rstrip("\r\n")[:RECORD_SHOWN]  # type: ignore[index]

    def work(first: int, last: int) -> None:
        """Parse records `first` to `last`; if one is bad, parse each half separately, so that a few bad records cost
        little.
        """
        try:
            table = parser(_joined(block, starts, ends, first, last))
            # Arrow reads two JSON objects on one line, or one object on two lines, without an error.
            if table.num_rows != last - first:
                raise _BadBlockError(f"it reads as {table.num_rows} records")
        except (_BadBlockError, pa.ArrowException, ValueError) as error:
            if last - first == 1:
                reason = _reason(error, names)
                if reason == _UNEXPECTED:
                    reason = _unexpected(block.text[starts[first] : ends[first]], names)  # type: ignore[index]
                rejects.append(Reject(int(lines[first]), reason, shown(first)))
                return
            middle = (first + last) // 2
            work(first, middle)
            work(middle, last)
            return
        tables.append(table)
        kept.append(np.arange(first, last))

    work(0, len(starts))
    if not tables:
        return options.schema.empty_table(), rejects
    # `work` parses the halves in order, so tables and places are in the order of the file.
    places = np.concatenate(kept)
    table, more = _fileable(pa.concat_tables(tables), lines[places], lambda row: shown(int(places[row])), options)
    return table, sorted(rejects + more, key=lambda reject: reject.line)


def _joined(block: Block, starts: Any, ends: Any, first: int, last: int) -> bytes:
    text: bytes = block.text  # type: ignore[assignment]
    if block.file.format != "swf":
        return text[starts[first] : ends[last - 1]]
    whole = text[starts[first] : ends[last - 1]]
    # Skip comments and blanks in between, which the number parser does not support.
    return (
        whole
        if b";" not in whole
        else b"".join(text[s:e] for s, e in zip(starts[first:last], ends[first:last], strict=True))
    )


def _reason(error: Exception, names: list[str]) -> str:
    """The parser's message in one line, with the column's name instead of its number."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0][:RECORD_SHOWN].split(": If these")[0]
    text = text.removeprefix("CSV parse error: ").removeprefix("JSON parse error: ")
    place, rest = _numbered(text.removeprefix("In ").removeprefix("CSV "), "column #")
    column = "" if place is None or place >= len(names) else f"column {names[place]!r} "
    _, text = _numbered(rest if column else text, "Row #")
    before, row, number = text.rpartition(" in row ")
    text = before if row and number.isdigit() else text
    before, conversion, kind = text.partition("CSV conversion error to ")
    text = f"cannot be read as {kind}" if conversion and not before else text
    return f"{column}{text}".removesuffix(".")


def _numbered(text: str, label: str) -> tuple[int | None, str]:
    """Split ``LABEL NUMBER: REST`` into number and rest; the number is None if the text has another form."""
    number, colon, rest = text.removeprefix(label).partition(": ")
    if not text.startswith(label) or not colon or not number.isdecimal() or len(number) > _PLACE_DIGITS_MAX:
        return None, text
    return int(number), rest


_UNEXPECTED = "unexpected field"
"""Arrow's whole message about a JSON field that is not a column."""


def _unexpected(record: bytes, known: list[str]) -> str:
    """Name the fields of an NDJSON record that are not columns."""
    try:
        fields = scanning.json_value(record)
    except ValueError:
        return _UNEXPECTED
    unknown = [name for name in fields if name not in known]
    return _unknown_text(unknown, known) if unknown else _UNEXPECTED


def _fileable(
    table: pa.Table, lines: Any, shown: Callable[[int], str], options: ReadOptions
) -> tuple[pa.Table, list[Reject]]:
    """Split rows into those with an id and a time, and rejects."""
    rejects: list[Reject] = []
    bad = np.zeros(table.num_rows, dtype=bool)
    for name in options.required:
        if table[name].null_count:
            missing = pc.is_null(table[name]).to_numpy() & ~bad
            bad |= missing
            rejects += [
                Reject(int(lines[row]), f"{name} is missing", shown(int(row))) for row in np.flatnonzero(missing)
            ]
    return (table if not bad.any() else table.filter(pa.array(~bad))), rejects


def _parser(block: Block, options: ReadOptions) -> Callable[[bytes], pa.Table]:
    match block.file.format:
        case "csv":
            return _csv_parser(block, options)
        case "ndjson":
            return _ndjson_parser(options)
        case _:
            return _swf_parser(block, options)


def csv_names(block: Block, options: ReadOptions) -> list[str]:
    """Columns of a CSV file."""
    if options.names is not None:
        return list(options.names)
    line = block.header.decode("utf-8-sig", errors="replace").rstrip("\r\n")
    return next(csv.reader([line], delimiter=options.delimiter), [])


def _csv_parser(block: Block, options: ReadOptions) -> Callable[[bytes], pa.Table]:
    names = csv_names(block, options)
    _check_columns(names, options, block.file.path)
    # Arrow refuses a record that exceeds a block of its reader, so one block holds the whole text.
    read = pyarrow.csv.ReadOptions(column_names=names, use_threads=False, block_size=1 << 30)
    parse = pyarrow.csv.ParseOptions(delimiter=options.delimiter, newlines_in_values=True)
    types = {name: options.schema.field(name).type for name in names}
    zoned = [name for name, kind in types.items() if pa.types.is_timestamp(kind) and kind.tz]

    def parser(text: bytes) -> pa.Table:
        # Times without a zone are UTC; the first record decides for those parsed with it.
        bare = _without_zone(text, names, zoned, options.delimiter)
        convert = pyarrow.csv.ConvertOptions(
            column_types={**types, **{name: pa.timestamp(types[name].unit) for name in bare}},
            null_values=list(options.nulls),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        table = pyarrow.csv.read_csv(io.BytesIO(text), read_options=read, parse_options=parse, convert_options=convert)
        for name in bare:
            table = table.set_column(names.index(name), name, table[name].cast(types[name]))
        if infinite := _infinite(table):
            convert = pyarrow.csv.ConvertOptions(
                include_columns=infinite, column_types=dict.fromkeys(infinite, pa.utf8())
            )
            spelled = pyarrow.csv.read_csv(
                io.BytesIO(text), read_options=read, parse_options=parse, convert_options=convert
            )
            for name in infinite:
                _check_range(table[name], name, pc.match_substring(spelled[name], "inf", ignore_case=True))
        return table

    return parser


def _infinite(table: pa.Table) -> list[str]:
    """Columns with infinite numbers: parsers return infinity for numbers out of range."""
    floats = [field.name for field in table.schema if pa.types.is_floating(field.type)]
    return [name for name in floats if pc.any(pc.is_inf(table[name])).as_py()]


def _check_range(values: Any, name: str, infinite: Any) -> None:
    """Reject infinite numbers, except those that are `infinite` in the text."""
    if pc.any(pc.and_not(pc.is_inf(values), infinite)).as_py():
        raise _BadBlockError(f"column {name!r} holds a number that is out of the range of {values.type}")


def _without_zone(text: bytes, names: list[str], zoned: list[str], delimiter: str) -> list[str]:
    if not zoned:
        return []
    beginning = io.StringIO(text[:65_536].decode(errors="replace"))
    fields = dict(zip(names, next(csv.reader(beginning, delimiter=delimiter), []), strict=False))
    texts = pa.array([fields.get(name, "")[:_TIME_CHARS_MAX] for name in zoned], pa.utf8())
    has_zone = pc.match_substring_regex(texts, _ZONE).to_pylist()
    return [name for name, zone in zip(zoned, has_zone, strict=True) if not zone]


def _ndjson_parser(options: ReadOptions) -> Callable[[bytes], pa.Table]:
    # JSON has no time type: parse times as text, and convert them afterwards.
    as_text = {field.name for field in options.schema if pa.types.is_timestamp(field.type) and field.type.tz}
    fields = [pa.field(f.name, pa.utf8()) if f.name in as_text else f.with_nullable(True) for f in options.schema]
    parse = pyarrow.json.ParseOptions(explicit_schema=pa.schema(fields), unexpected_field_behavior="error")
    # As for CSV, one block of the reader holds the whole text.
    read = pyarrow.json.ReadOptions(use_threads=False, block_size=1 << 30)

    def parser(text: bytes) -> pa.Table:
        table = pyarrow.json.read_json(io.BytesIO(text), read_options=read, parse_options=parse)
        for name in as_text & set(table.column_names):
            place = table.column_names.index(name)
            kind = options.schema.field(name).type
            table = table.set_column(place, name, _zoned(table[name], kind))
        # JSON has no infinity: Arrow returns it for numbers that are too large for the type.
        for name in _infinite(table):
            _check_range(table[name], name, pa.scalar(False))
        return table.select([name for name in options.schema.names if name in table.column_names])

    return parser


def _zoned(texts: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Parse ISO 8601 times; UTC if they have no zone."""
    has_zone = pc.match_substring_regex(texts, _ZONE)
    nothing = pa.scalar(None, pa.utf8())
    with_zone = pc.if_else(has_zone, texts, nothing).cast(kind)
    without = pc.if_else(has_zone, nothing, texts).cast(pa.timestamp(kind.unit)).cast(kind)
    return pc.coalesce(with_zone, without)


def _swf_parser(block: Block, options: ReadOptions) -> Callable[[bytes], pa.Table]:
    start_s = swf.start_of(block.header, block.file.path)
    types = {name: options.schema.field(name).type for name in swf.SWF_COLUMNS if name in options.schema.names}

    def parser(text: bytes) -> pa.Table:
        lines = text.splitlines()
        if len(lines) == 1 and (fault := swf.fault_of(lines[0])) is not None:
            raise _BadBlockError(fault)
        table = swf.parse(text, start_s)
        columns = [table[name].cast(kind) for name, kind in types.items()]
        return pa.table(columns, names=list(types))

    return parser


def _parquet(block: Block, options: ReadOptions) -> pa.Table:
    with parquet_file(block.file.path) as file:
        names = [name for name in file.schema_arrow.names if name in options.schema.names]
        table = _rows_of(file, block, names, options)
    columns = []
    for name in names:
        try:
            columns.append(casts.fitting(table[name], options.schema.field(name).type))
        except pa.ArrowException as error:
            raise DataFileError(
                f"{block.file.path}: column {name!r} does not fit the dataset: {error}", kind="file-content"
            ) from error
    return pa.table(columns, names=names)


def _rows_of(file: Any, block: Block, names: list[str], options: ReadOptions) -> pa.Table:
    """The rows of a block of an open Parquet file."""
    _check_columns(file.schema_arrow.names, options, block.file.path)
    first = block.start
    parts: list[pa.Table] = []
    begin = 0
    for group in range(file.metadata.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        low, high = max(first, begin), min(first + block.rows, begin + rows)
        if low < high:
            parts.append(file.read_row_group(group, columns=names, use_threads=False).slice(low - begin, high - low))
        begin += rows
    return pa.concat_tables(parts)


def _check_columns(names: list[str], options: ReadOptions, path: str) -> None:
    unknown = [name for name in names if name not in options.schema.names]
    if unknown:
        raise InvalidInputError(
            f"{path}: {_unknown_text(unknown, options.schema.names)}. Rename columns of the file, or add columns to "
            "the dataset (add-columns)",
            kind="invalid-rows",
        )
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidInputError(
            f"{path} has two columns named {twice!r}: rename one of them, or leave it out", kind="invalid-rows"
        )
    missing = [name for name in options.required if name not in names]
    if missing:
        raise InvalidInputError(
            f"{path}: required column {missing[0]!r} is missing: the file has {name_list(names)}", kind="invalid-rows"
        )


def _unknown_text(unknown: list[str], known: list[str]) -> str:
    """Name the unknown columns, the nearest known ones, and all that are known."""
    if len(unknown) == 1:
        return f"unknown column {unknown[0]!r}{name_hint(unknown[0], known)}"
    found = dict.fromkeys(near for name in unknown[:_HINTED_MAX] for near in _native.nearest_names(name, known)[:1])
    hint = f"did you mean {', '.join(found)}? Known" if found else "known"
    return f"unknown columns {name_list(map(repr, unknown))}; {hint} columns: {name_list(known)}"
