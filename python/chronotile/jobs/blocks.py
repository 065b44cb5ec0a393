"""Split files of jobs into blocks that can be parsed independently, with line numbers."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from chronotile import _native
from chronotile.errors import ChronotileError, DataFileError, InvalidInputError
from chronotile.loading import listed

BLOCK_BYTES = 32 << 20
"""Target size of a block of text. Batch names depend on it, so it must never change."""

BLOCK_ROWS = 131_072
"""Rows of a Parquet block. Batch names depend on it, too."""

FORMATS = ("csv", "ndjson", "parquet", "swf")

_BY_SUFFIX = {
    ".csv": "csv", ".ndjson": "ndjson", ".jsonl": "ndjson", ".parquet": "parquet", ".pq": "parquet", ".swf": "swf",
}  # fmt: skip


@dataclass(frozen=True)
class File:
    """A file to load."""

    path: str
    format: str
    content: str
    """Hash of the content, used in batch names."""
    bytes: int


@dataclass(frozen=True)
class Block:
    """A block of a file."""

    file: File
    start: int
    """First byte of the text, or first row."""
    bytes_done: int
    """Bytes of the file on disk, up to the end of this block."""
    text: bytes | None
    """Whole lines; None for Parquet."""
    first_line: int
    """Number of the first line, or row, from 1."""
    rows: int = 0
    """Number of rows; Parquet only."""
    header: bytes = b""
    """Header: the first line of CSV, or the comments of SWF."""

    @property
    def batch(self) -> str:
        """Batch name of the block."""
        return f"jobs:{self.file.content}:{self.start}"


def files(paths: list[str], format: str | None) -> list[File]:
    """List files, and files in folders with the suffix of a supported format, sorted within each folder.

    Raises
    ------
    DataFileError
        A path does not exist, or a folder contains no files of jobs.
    InvalidInputError
        The format of a file is unknown from its name.
    """
    what = f"file that ends in {', '.join(_BY_SUFFIX)} or those with .gz"
    return [_file(path, format) for path in listed(map(Path, paths), lambda item: bool(_format_of(item)), what)]


def _format_of(path: Path) -> str | None:
    return _BY_SUFFIX.get(Path(path.name.removesuffix(".gz")).suffix.lower())


def _file(path: Path, format: str | None) -> File:
    kind = format or _format_of(path)
    if kind is None:
        raise InvalidInputError(
            f"cannot tell the format of {path} from its name: give one of {', '.join(FORMATS)}", kind="invalid-setting"
        )
    return File(str(path), kind, _native.content_hash(str(path)), path.stat().st_size)


def blocks(file: File, *, header: bool) -> Iterator[Block]:
    """The blocks of a file, in order; deterministic for the same content."""
    if file.format == "parquet":
        yield from _parquet_blocks(file)
        return
    with Path(file.path).open("rb") as raw:
        # Detect compression by content, whatever the file name.
        packed = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        text: Any = io.BufferedReader(gzip.GzipFile(fileobj=raw)) if packed else raw
        try:
            yield from _text_blocks(file, text, raw, header=header)
        except DataFileError:
            raise
        except (EOFError, OSError, zlib.error) as error:
            raise DataFileError(f"cannot decompress {file.path}: {error}", kind="file-damaged") from error


def _text_blocks(file: File, text: Any, raw: Any, *, header: bool) -> Iterator[Block]:
    head, line, start = b"", 1, 0
    if file.format == "csv" and header:
        head = text.readline(BLOCK_BYTES + 1)
        if len(head) > BLOCK_BYTES:
            raise _too_long(file, 1)
        if b"\r" in head.rstrip(b"\r\n"):
            raise DataFileError(
                f"{file.path}: its lines end in carriage returns alone; convert them to line feeds, for example with "
                "tr '\\r' '\\n'",
                kind="file-format",
            )
        line, start = 2, len(head)
    rest = b""
    while True:
        # Fill the buffer to exactly one block: batch names have the position of a block, so equal content must always
        # be split in the same way.
        more = text.read(BLOCK_BYTES - len(rest) if len(rest) < BLOCK_BYTES else BLOCK_BYTES)
        buffer = rest + more if rest else more
        if not buffer:
            return
        cut = len(buffer) if not more else _cut(buffer, quoted=file.format == "csv")
        if cut == 0 and len(buffer) >= BLOCK_BYTES:
            raise _too_long(file, line)
        if cut == 0:
            rest = buffer
            continue
        whole, rest = buffer[:cut], buffer[cut:]
        if file.format == "swf" and start == 0:
            head = b"\n".join(found for found in whole.splitlines() if found.startswith(b";"))
        yield Block(file, start, raw.tell(), whole, line, header=head)
        start += cut
        line += whole.count(b"\n")


def _too_long(file: File, line: int) -> DataFileError:
    return DataFileError(
        f"{file.path}, line {line}: the record is longer than {BLOCK_BYTES:,} bytes; check for an unclosed "
        "quote, or another format",
        kind="file-content",
    )


def _cut(buffer: bytes, *, quoted: bool) -> int:
    """End of the last complete record; 0 if there is none."""
    end = buffer.rfind(b"\n") + 1
    if not quoted or b'"' not in buffer:
        return end
    ends = record_ends(buffer)
    return int(ends[-1]) if len(ends) else 0


def record_ends(text: bytes) -> Any:
    """Ends of CSV records: newlines outside quotes."""
    data = np.frombuffer(text, "uint8")
    newlines = np.flatnonzero(data == ord("\n"))
    quotes = np.flatnonzero(data == ord('"'))
    if len(quotes):
        # A quote within quotes is doubled, so an even number of quotes precedes each end of a record.
        newlines = newlines[np.searchsorted(quotes, newlines) % 2 == 0]
    return newlines + 1


def records(text: bytes, first_line: int, *, quoted: bool) -> tuple[Any, Any, Any]:
    """Starts, ends and line numbers of the records, without blank lines."""
    data = np.frombuffer(text, "uint8")
    newlines = np.flatnonzero(data == ord("\n")) + 1
    ends = record_ends(text) if quoted else newlines
    if len(ends) == 0 or ends[-1] != len(text):
        ends = np.append(ends, len(text))
    starts = np.concatenate([[0], ends[:-1]]).astype("int64")
    lines = first_line + np.searchsorted(newlines, starts, side="right")
    # Skip empty lines, as CSV readers do.
    filled = data > ord(" ")
    seen = np.concatenate([[0], np.cumsum(filled)])
    kept = seen[ends] > seen[starts]
    return starts[kept], ends[kept], lines[kept]


@contextmanager
def parquet_file(path: str) -> Iterator[Any]:
    """Open a file with pyarrow's Parquet reader; errors about damage, also while it is read, name the file."""
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            yield file
    except ChronotileError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise DataFileError(f"cannot read {path}: {str(error).strip()}", kind="file-damaged") from error


def _parquet_blocks(file: File) -> Iterator[Block]:
    with parquet_file(file.path) as opened:
        rows = opened.metadata.num_rows
    for start in range(0, rows, BLOCK_ROWS):
        count = min(BLOCK_ROWS, rows - start)
        yield Block(file, start, file.bytes * (start + count) // rows, None, start + 1, rows=count)
