"""Parse lines of text to documents in columns, and report the reason for each rejected line."""

from __future__ import annotations

import codecs
import dataclasses
import io
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from chronotile.errors import InvalidInputError
from chronotile.events import moments, syslog

__all__ = ["FORMATS", "Documents", "ReadOptions", "Reject", "parse"]

FORMATS = ("ndjson", "syslog", "lines")

LINE_BYTES_MAX = 16 << 20
"""Most bytes of a document: a larger one would make a chunk too large."""

REJECTS_MAX = 10_000
"""Most lines of a call stored as dead letters; further ones are only counted."""

_REJECT_BYTES_MAX = LINE_BYTES_MAX
"""Most bytes of a call's dead letters."""
_REASONS_MAX = 100
"""Most distinct reasons per call."""
_OTHER_REASONS = "other reasons"

_BLOCK_BYTES = 1 << 20
"""Size of a block of text: parsing takes many times its size in memory."""
_BLOCK_LINES = 16_384
"""Approximate number of lines in a block."""

_TOO_LONG = "the line has {{}} bytes, more than {:,}: truncated"
_PIECES = 16
"""Number of pieces into which a JSON block with a bad line is split."""
_DIAGNOSED_MAX = 32
"""Most bad lines of a block that are parsed individually to find the error, which is slow."""
_JSON_KINDS: tuple[tuple[str, Any], ...] = (
    ("boolean", bool), ("number", int | float), ("string", str), ("array", list), ("object", dict),
)  # fmt: skip

_TEXT = pa.utf8()
_FAULT_CHARS_MAX = 1_000
"""Most characters of a JSON parser message to examine."""


@dataclass(frozen=True)
class ReadOptions:
    """Settings for reading lines. Created and checked by :meth:`chronotile.events.Events.options`."""

    format: str = "ndjson"
    """``ndjson``, ``syslog`` or ``lines``."""
    pattern: str | None = None
    """For ``lines``: regular expression in RE2 syntax with named groups ``time``, ``stream`` and fields."""
    time_field: str = "time"
    """For ``ndjson``: path of the time."""
    time_format: str = "iso8601"
    """Time format; see :func:`chronotile.events.moments.of_texts`."""
    year: int | None = None
    """Year of times without one."""
    stream_field: str | None = None
    """Path of the stream in JSON, or a part of a syslog message, or a group of the pattern."""
    stream: str | None = None
    """Stream of documents that name none."""


@dataclass(frozen=True)
class Field:
    """A declared field: its path in a document, and its column."""

    column: str
    path: str
    type: pa.DataType


@dataclass(frozen=True)
class Reject:
    """A rejected line."""

    line: int
    reason: str
    record: bytes


@dataclass
class Rejects:
    """Rejected lines: their number, reasons, and the first of them."""

    count: int = 0
    reasons: dict[str, int] = dataclasses.field(default_factory=dict)
    kept: list[Reject] = dataclasses.field(default_factory=list)
    _room: int = _REJECT_BYTES_MAX

    def add(self, reasons: Mapping[int, str], numbers: Any, records: pa.Array) -> None:
        """Count rejected lines by position, and keep them if there is room; long lines are truncated."""
        self.count += len(reasons)
        for reason, count in Counter(reasons.values()).items():
            known = reason in self.reasons or len(self.reasons) < _REASONS_MAX
            name = reason if known else _OTHER_REASONS
            self.reasons[name] = self.reasons.get(name, 0) + count
        for place in sorted(reasons)[: REJECTS_MAX - len(self.kept)]:
            if self._room <= 0:
                break
            record = records[place].as_py()
            self.kept.append(Reject(int(numbers[place]), reasons[place], record[: min(self._room, LINE_BYTES_MAX)]))
            self._room -= len(record)


@dataclass(frozen=True)
class Documents:
    """Result of parsing lines."""

    table: pa.Table
    """Columns ``time``, ``stream``, the fields, ``body``, ``body_bytes``, ``line``."""
    rejects: Rejects
    blank: int
    """Blank lines, which are skipped."""


@dataclass
class _Lines:
    """Lines of a block, with the errors found so far."""

    raw: pa.Array
    """Bytes of each line, without the line end."""
    numbers: Any
    reasons: dict[int, str]
    """Reason for rejecting a line, by its position."""

    def refuse(self, bad: Any, reason: str, values: pa.Array | None = None) -> None:
        """Reject the lines of a mask that have no reason yet; ``{}`` in the reason stands for the line's value."""
        for place in np.flatnonzero(bad):
            if int(place) not in self.reasons:
                value = "" if values is None else repr(values[int(place)].as_py())
                self.reasons[int(place)] = reason.format(value if len(value) <= 80 else value[:77] + "...")


def parse(
    text: bytes, first_line: int, options: ReadOptions, fields: list[Field], *, line_bytes_max: int | None = None
) -> Documents:
    """Parse complete lines to documents and rejected lines. Memory does not grow with the number of rejected lines.

    Parameters
    ----------
    text : bytes
        Lines; the last newline is optional. A byte order mark before the first line is left out.
    first_line : int
        Number of the first.
    line_bytes_max : int
        Longer lines are rejected; 16 MiB by default.
    """
    line_bytes_max = LINE_BYTES_MAX if line_bytes_max is None else line_bytes_max
    if first_line == 1:
        text = text.removeprefix(codecs.BOM_UTF8)
    rejects, blank, line = Rejects(), 0, first_line
    tables: list[pa.Table] = []
    for block in _blocks(text):
        table, blanks, lines = _parsed(block, line, options, fields, rejects, line_bytes_max)
        tables.append(table)
        blank += blanks
        line += lines
    if not tables:
        tables = [_parsed(b"", first_line, options, fields, rejects, line_bytes_max)[0]]
    return Documents(pa.concat_tables(tables), rejects, blank)


def _blocks(text: bytes) -> Iterator[bytes]:
    """Split the text into blocks of complete lines."""
    sizes = [_BLOCK_BYTES >> halvings for halvings in range(_BLOCK_BYTES.bit_length())]
    start = 0
    while start < len(text):
        # Short lines: halve the block until it has few enough lines. A block of one byte always has.
        size = next(size for size in sizes if text.count(b"\n", start, start + size) <= _BLOCK_LINES)
        # A last line without a newline gives -1 + 1, so the block ends with the text.
        end = text.find(b"\n", start + size - 1) + 1 or len(text)
        yield text[start:end]
        start = end


def _parsed(
    text: bytes, first_line: int, options: ReadOptions, fields: list[Field], rejects: Rejects, line_bytes_max: int
) -> tuple[pa.Table, int, int]:
    """Documents in a block of lines, the number of blank lines, and the number of lines."""
    pieces = text.split(b"\n")
    if not pieces[-1]:
        pieces.pop()
    raw = pa.array(pieces, pa.binary())
    count = len(raw)
    numbers = np.arange(first_line, first_line + count)
    blank = pc.match_substring_regex(raw, r"^[\s\x00]*$").to_numpy(zero_copy_only=False)
    blanks = int(blank.sum())
    if blanks:
        raw, numbers = raw.filter(pa.array(~blank)), numbers[~blank]
    # From here on, places count only the lines that are not blank.
    lines = _Lines(raw, numbers, {})
    sizes = pc.binary_length(raw).cast(pa.int64())
    too_long = pc.greater(sizes, line_bytes_max).to_numpy(zero_copy_only=False)
    lines.refuse(too_long, _TOO_LONG.format(line_bytes_max), sizes)
    texts = _decoded(lines)
    if options.format == "ndjson":
        columns = _from_json(text, lines, options, fields)
    else:
        columns = _from_text(texts, lines, options, fields)
    time, stream, values = columns
    is_valid = np.ones(len(raw), dtype=bool)
    is_valid[list(lines.reasons)] = False
    table = pa.table(
        [time, stream, *values, texts, sizes, pa.array(numbers, pa.int64())],
        names=["time", "stream", *(field.column for field in fields), "body", "body_bytes", "line"],
    )
    rejects.add(lines.reasons, numbers, raw)
    return (table.filter(pa.array(is_valid)) if lines.reasons else table), blanks, count


def _decoded(lines: _Lines) -> pa.Array:
    """Decode the lines; invalid UTF-8 is rejected and becomes empty text."""
    try:
        return lines.raw.cast(_TEXT)
    except pa.ArrowInvalid:
        texts: list[str] = []
        for place, raw in enumerate(lines.raw.to_pylist()):
            try:
                texts.append(raw.decode())
            except UnicodeDecodeError as error:
                lines.reasons.setdefault(place, f"invalid UTF-8 at byte {error.start + 1} of the line")
                texts.append("")
        return pa.array(texts, _TEXT)


Columns = tuple[pa.Array, pa.Array, list[pa.Array]]


# ---------------------------------------------------------------- JSON


def _from_json(text: bytes, lines: _Lines, options: ReadOptions, fields: list[Field]) -> Columns:
    """Time, stream and fields of JSON objects, one per line. `text` contains the lines."""
    counted = options.time_format in moments.EPOCHS
    wanted = {options.time_field: _type_of_time(options)}
    if options.stream_field is not None:
        wanted[options.stream_field] = _TEXT
    for field in fields:
        wanted.setdefault(field.path, _TEXT if pa.types.is_timestamp(field.type) else field.type)
    _refuse_halves(lines)
    table = _json_table(text, lines, wanted)
    moment = _at(table, options.time_field)
    if counted:
        time = moments.of_numbers(moment, options.time_format)
    else:
        time = moments.of_texts(moment, options.time_format, options.year)
    _check_times(time, moment, lines, options.time_field)
    stream = None if options.stream_field is None else _at(table, options.stream_field)
    values = []
    for field in fields:
        value = _at(table, field.path)
        if pa.types.is_floating(value.type):
            # JSON has no infinity: the parser returns it for numbers that are too large for the type.
            infinite = pc.fill_null(pc.is_inf(value), False).to_numpy(zero_copy_only=False)
            lines.refuse(infinite, f"field {field.path!r}: a number is out of the range of {field.type}")
        if counted and field.path == options.time_field and pa.types.is_timestamp(field.type):
            values.append(time.cast(field.type, safe=False))
        else:
            values.append(value if value.type == field.type else _typed(value, field, lines))
    return time, _streams(stream, lines, options), values


def _type_of_time(options: ReadOptions) -> pa.DataType:
    """JSON type of the time."""
    if options.time_format not in moments.EPOCHS:
        return _TEXT
    return pa.float64() if options.time_format == "epoch_s" else pa.int64()


def _refuse_halves(lines: _Lines) -> None:
    """Reject lines that do not start and end with a brace: the parser reads across line ends, and would merge two such
    lines. If every line has both braces and there are as many objects as lines, each line is one object.
    """
    if not len(lines.raw):
        return
    # Blank lines were left out, so every line has a first and a last byte.
    offsets = np.frombuffer(lines.raw.buffers()[1], "int32")[: len(lines.raw) + 1]
    data = np.frombuffer(lines.raw.buffers()[2], "uint8")
    odd = (data[offsets[:-1]] != ord("{")) | (data[offsets[1:] - 1] != ord("}"))
    for place in np.flatnonzero(odd).tolist():
        # Ignore white space around the object.
        text = lines.raw[place].as_py().strip()
        if not (text.startswith(b"{") and text.endswith(b"}")):
            lines.reasons.setdefault(place, "the line is not a JSON object")


def _json_table(text: bytes, lines: _Lines, wanted: Mapping[str, pa.DataType]) -> pa.Table:
    """The wanted paths of every line; null for rejected lines."""
    schema = pa.schema(list(_nested(wanted)))
    parse = pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    read = pyarrow.json.ReadOptions(use_threads=False, block_size=1 << 30)
    if not lines.reasons:
        # Usual case: no line is rejected, so the lines need not be joined again.
        with suppress(pa.ArrowInvalid):
            table = pyarrow.json.read_json(io.BytesIO(text), read_options=read, parse_options=parse)
            if table.num_rows == len(lines.raw):
                return table.select(schema.names)
    is_valid = np.ones(len(lines.raw), dtype=bool)
    is_valid[list(lines.reasons)] = False
    places = np.flatnonzero(is_valid)
    texts = lines.raw.take(pa.array(places)).to_pylist()
    tables: list[pa.Table] = []
    parsed_places: list[Any] = []

    diagnosed = 0
    # If a line is bad, parse each piece separately, so that a few bad lines cost little. Avoid recursion: a recursive
    # closure would keep all of this alive until the next garbage collection.
    pending = [list(range(len(texts)))] if texts else []
    while pending:
        chosen = pending.pop()
        try:
            joined = io.BytesIO(b"\n".join([texts[index] for index in chosen]))
            table = pyarrow.json.read_json(joined, read_options=read, parse_options=parse)
            if table.num_rows != len(chosen):
                raise pa.ArrowInvalid("the line holds several JSON objects")
        except pa.ArrowInvalid as error:
            if len(chosen) == 1:
                lines.reasons[int(places[chosen[0]])] = _json_reason(error)
                diagnosed += 1
                continue
            misfits: dict[int, str] = {}
            if diagnosed >= _DIAGNOSED_MAX:
                misfits = {index: why for index in chosen if (why := _misfit(texts[index], schema)) is not None}
                lines.reasons.update((int(places[index]), why) for index, why in misfits.items())
                chosen = [index for index in chosen if index not in misfits]
            step = len(chosen) if misfits else -(-len(chosen) // _PIECES)
            pending += [chosen[begin : begin + step] for begin in range(0, len(chosen), step or 1)][::-1]
            continue
        tables.append(table.select(schema.names))
        parsed_places.append(places[chosen])
    found = pa.concat_tables([*tables, schema.empty_table()])
    # Restore one row per line.
    rows = np.full(len(lines.raw), -1, dtype="int64")
    if parsed_places:
        rows[np.concatenate(parsed_places)] = np.arange(found.num_rows)
    return found.take(pa.array(rows, mask=rows < 0))


def _misfit(text: bytes, fields: Iterable[pa.Field]) -> str | None:
    """Find the error in a line quickly; None if only the JSON parser can tell."""
    try:
        found = json.loads(text.decode())
    except json.JSONDecodeError as error:
        return f"invalid JSON: {error.msg[:1].lower()}{error.msg[1:]} at character {error.pos + 1}"
    except (ValueError, RecursionError):
        return None
    return _misfit_of(found, fields, "") if isinstance(found, dict) else "the line is not a JSON object"


def _misfit_of(found: dict[str, Any], fields: Iterable[pa.Field], path: str) -> str | None:
    for field in fields:
        value, kind = found.get(field.name), field.type
        if value is None:
            continue
        declared = "number"
        if pa.types.is_struct(kind):
            fits, declared = isinstance(value, dict), "object"
        elif pa.types.is_boolean(kind):
            fits, declared = isinstance(value, bool), "boolean"
        elif kind == _TEXT:
            fits, declared = isinstance(value, str), "string"
        else:
            fits = isinstance(value, int | float) and not isinstance(value, bool)
        if not fits:
            name = next(name for name, kinds in _JSON_KINDS if isinstance(value, kinds))
            return f"field {path + field.name!r} is {name}, declared as {declared}"
        if pa.types.is_integer(kind) and (isinstance(value, float) or abs(value) >= 2**64):
            return f"field {path + field.name!r}: {value!r:.80} does not fit {kind}"
        inner = _misfit_of(value, kind, f"{path}{field.name}.") if isinstance(value, dict) else None
        if inner is not None:
            return inner
    return None


def _nested(wanted: Mapping[str, pa.DataType]) -> list[pa.Field]:
    """Convert dotted paths to nested fields; a path may also be a single key that contains dots."""
    found: dict[str, pa.DataType] = {path: kind for path, kind in wanted.items() if "." in path}
    heads: dict[str, dict[str, pa.DataType]] = {}
    for path, kind in wanted.items():
        head, dot, rest = path.partition(".")
        if dot:
            heads.setdefault(head, {})[rest] = kind
        else:
            found[head] = kind
    for head, inner in heads.items():
        found[head] = pa.struct(_nested(inner))
    return [pa.field(name, kind) for name, kind in found.items()]


def _at(table: pa.Table, path: str) -> pa.Array:
    """Values at a path."""
    return _in_struct(pa.StructArray.from_arrays(
        [column.combine_chunks() for column in table.columns], names=table.column_names), path)  # fmt: skip


def _in_struct(values: pa.Array, path: str) -> pa.Array:
    names = [field.name for field in values.type]
    found = pc.struct_field(values, path) if path in names else None
    head, dot, rest = path.partition(".")
    if not dot or head not in names:
        return found
    inner = _in_struct(pc.struct_field(values, head), rest)
    return inner if found is None else pc.coalesce(inner, found)


def _json_reason(error: Exception) -> str:
    """The parser's message in one line, without row numbers."""
    text = (str(error).strip() or "invalid JSON").splitlines()[0][:_FAULT_CHARS_MAX]
    text = text.removeprefix("Invalid: ").removeprefix("JSON parse error: ").partition(" in row ")[0].rstrip(",.")
    path, _, kinds = text.removeprefix("Column(/").partition(") changed from ")
    declared, to, found = kinds.partition(" to ")
    if to:
        return f"field {path.replace('/', '.')!r} is {found}, declared as {declared}"
    return text[:1].lower() + text[1:]


# ---------------------------------------------------------------- text


def _from_text(texts: pa.Array, lines: _Lines, options: ReadOptions, fields: list[Field]) -> Columns:
    # Lines from Windows end with a carriage return, which is part of the line but not of a field.
    shown = pc.ascii_rtrim(texts, "\r")
    if options.format == "syslog":
        time, found, sound = syslog.parts(shown, options.year)
        lines.refuse(~sound.to_numpy(zero_copy_only=False), "the line is not a syslog message")
        moment = shown
    else:
        groups = pc.extract_regex(shown, str(options.pattern))
        lines.refuse(pc.is_null(groups).to_numpy(zero_copy_only=False), "the line does not match the pattern")
        found = {
            field.name: pc.if_else(pc.equal(text := pc.struct_field(groups, field.name), ""), _NOTHING, text)
            for field in groups.type
        }
        moment = found["time"]
        time = moments.of_texts(moment, options.time_format, options.year)
    _check_times(time, moment, lines, "time")
    named = options.stream_field or ("stream" if options.format == "lines" else None)
    values = []
    for field in fields:
        value = found.get(field.path)
        values.append(pa.nulls(len(texts), field.type) if value is None else _typed(value, field, lines))
    return time, _streams(found.get(named) if named else None, lines, options), values


_NOTHING = pa.scalar(None, _TEXT)
_SHAPES = {"int": r"^[+-]?\d{1,20}$", "float": r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$", "bool": r"^(true|false)$"}


def _typed(values: pa.Array, field: Field, lines: _Lines) -> pa.Array:
    """Convert text to the type of a field; lines with invalid values are rejected."""
    if field.type == _TEXT:
        return values
    name = str(field.type)
    if pa.types.is_timestamp(field.type):
        found = moments.of_texts(values).cast(field.type, safe=False)
    else:
        shape = next((shape for kind, shape in _SHAPES.items() if kind in name.replace("double", "float")), "")
        # Arrow does not cast numbers with a plus sign.
        fitting = pc.if_else(pc.match_substring_regex(values, shape), pc.ascii_ltrim(values, "+"), _NOTHING)
        try:
            found = fitting.cast(field.type)
        except pa.ArrowInvalid:
            # A value is out of range: convert each separately.
            found = pa.array([_cast_or_none(value, field.type) for value in fitting], field.type)
        if pa.types.is_floating(field.type):
            found = pc.if_else(pc.is_finite(found), found, pa.scalar(None, field.type))
    bad = pc.and_(pc.is_valid(values), pc.is_null(found)).to_numpy(zero_copy_only=False)
    lines.refuse(bad, f"field {field.column!r}: {{}} is not a valid {name}", values)
    return found


def _cast_or_none(value: pa.Scalar, kind: pa.DataType) -> Any:
    try:
        return value.cast(kind).as_py()
    except pa.ArrowInvalid:
        return None


def _check_times(time: pa.Array, moment: pa.Array, lines: _Lines, name: str) -> None:
    missing = pc.is_null(moment).to_numpy(zero_copy_only=False)
    lines.refuse(missing, f"{name!r} is missing: every document needs a time")
    bad = pc.is_null(time).to_numpy(zero_copy_only=False) & ~missing
    lines.refuse(bad, f"{name!r} is not a time: {{}}", moment)


def _streams(found: pa.Array | None, lines: _Lines, options: ReadOptions) -> pa.Array:
    """The stream of each line."""
    default = pa.scalar(options.stream, _TEXT)
    if found is None:
        if options.stream is None:
            lines.refuse(np.ones(len(lines.raw), dtype=bool), "the line names no stream")
        return pa.array(pa.repeat(default, len(lines.raw))) if options.stream is not None else pa.nulls(
            len(lines.raw), _TEXT)  # fmt: skip
    stream = pc.coalesce(pc.if_else(pc.equal(found, ""), _NOTHING, found), default)
    lines.refuse(pc.is_null(stream).to_numpy(zero_copy_only=False), f"{options.stream_field!r} names no stream")
    return stream


def check(options: ReadOptions, fields: list[Field]) -> None:
    """Check settings for reading lines.

    Raises
    ------
    InvalidInputError
        The format is unknown, the pattern is invalid or lacks the group ``time``, or a setting belongs to another
        format.
    """
    for field in fields:
        kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_timestamp)
        if field.type != _TEXT and not any(is_kind(field.type) for is_kind in kinds):
            raise _refused(
                f"field {field.column!r} has unsupported type {field.type}: use text, numbers, bool or timestamps"
            )
    if options.format not in FORMATS:
        raise _refused(f"unknown format {options.format!r}: use one of {', '.join(FORMATS)}")
    moments.check_format(options.time_format)
    if (options.pattern is not None) != (options.format == "lines"):
        raise _refused(
            "format lines needs pattern= (--pattern), a regular expression with a group time"
            if options.pattern is None
            else f"pattern= (--pattern) belongs to format lines, not {options.format}"
        )
    if options.pattern is not None:
        try:
            found = pc.extract_regex(pa.array([""]), options.pattern).type
        except pa.ArrowInvalid as error:
            raise _refused(f"invalid pattern {options.pattern!r}: {error}") from None
        names = [field.name for field in found]
        if "time" not in names:
            raise _refused(f"pattern {options.pattern!r} has no group (?P<time>...)")
        if options.stream_field is not None and options.stream_field not in names:
            raise _refused(f"pattern {options.pattern!r} has no group {options.stream_field!r} for the stream")
    if options.format == "ndjson":
        paths = [field.path for field in fields] + [options.time_field]
        paths += [] if options.stream_field is None else [options.stream_field]
        for path in paths:
            if any(other.startswith(f"{path}.") for other in paths):
                raise _refused(f"field {path!r} is declared both as a value and as an object")
        kind = _type_of_time(options)
        for field in fields if kind != _TEXT else []:
            if field.path == options.time_field and field.type != kind and not pa.types.is_timestamp(field.type):
                raise _refused(
                    f"field {field.column!r} is the time, read as {options.time_format}: declare it as "
                    f"{str(kind).replace('double', 'float64')} or a timestamp"
                )
    if options.stream_field in {field.path for field in fields if field.type != _TEXT}:
        raise _refused(f"field {options.stream_field!r} names the stream: declare it as utf8")


def _refused(message: str) -> InvalidInputError:
    return InvalidInputError(message, kind="invalid-setting")
