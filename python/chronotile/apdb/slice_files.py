"""Parquet files of archived slices: opened so that damage is an error, sealed when they are written, and listed in
their folder, so that a missing one is an error too.

Each page has a checksum, which reads verify. The seal is before the footer: eight bytes that mark it, then the BLAKE2b
hash, of sixteen bytes, of the footer and everything after it. Other Parquet readers ignore the seal, because nothing
refers to these bytes. Files of earlier releases have neither checksums nor seal.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq

from chronotile import durable
from chronotile.apdb.slice_status import SliceKey
from chronotile.closing import Closing
from chronotile.errors import ChronotileError, DamagedError, DataFileError
from chronotile.hints import name_list

__all__ = ["LIST", "SliceFile", "has_list", "list_slices", "listed_slices", "require_listed", "seal"]

LIST = "slices.json"
"""File that lists the slices in a folder: a JSON object of slice numbers by table."""

_MARK = b"CTSEAL\x00\x01"
_DIGEST_BYTES = 16
_END_BYTES = 8
"""The length of the footer, 4 bytes little-endian, and the mark of Parquet."""
_CHECKED = pads.ParquetFileFormat(
    default_fragment_scan_options=pads.ParquetFragmentScanOptions(page_checksum_verification=True)
)


class SliceFile(Closing):
    """An open file. Reads return the content at the time of opening, even if the file is replaced meanwhile."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._read():
            self._file = pa.OSFile(str(path))
        try:
            with self._read():
                self._check_seal()
                self._parquet = pq.ParquetFile(self._file, page_checksum_verification=True)
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self._parquet.metadata.num_rows)

    @property
    def schema(self) -> Any:
        """Arrow schema."""
        with self._read():
            return self._parquet.schema_arrow

    def read(self, columns: list[str]) -> Any:
        """All rows of some columns."""
        with self._read():
            return self._parquet.read(columns=columns)

    def batches(self) -> Iterator[Any]:
        """All rows, in record batches."""
        # Convert errors only while reading: those of the caller, between two batches, are not damage of the file.
        batches = self._parquet.iter_batches()
        while True:
            with self._read():
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def select(self, condition: Any, columns: list[str] | None = None) -> Any:
        """Rows that meet a `pyarrow.compute` expression."""
        with self._read():
            return _CHECKED.make_fragment(self._file).to_table(columns=columns, filter=condition)

    def _check_seal(self) -> None:
        footer, before = _footer(self._file)
        # Files of earlier releases have no mark, and nothing to check.
        if before[:-_DIGEST_BYTES] == _MARK and before[-_DIGEST_BYTES:] != _digest(footer):
            raise pa.ArrowInvalid("its footer does not have the checksum that was written")

    @contextmanager
    def _read(self) -> Iterator[None]:
        """Convert errors: a damaged file and a file that cannot be opened raise different exceptions."""
        try:
            yield
        # Arrow's error for lack of memory is an `ArrowException` too, but no damage.
        except (ChronotileError, MemoryError):
            raise
        except OSError as error:
            # Errors of Arrow's decoders have no errno; those of the operating system have one.
            if error.errno is None:
                raise self._damaged(error) from error
            raise DataFileError(f"cannot read {self.path}: {error}", kind="file-access") from error
        except (pa.ArrowException, ValueError) as error:
            raise self._damaged(error) from error

    def _damaged(self, error: Exception) -> DamagedError:
        text = str(error).strip().rstrip(".")
        return DamagedError(
            f"{self.path} is damaged or not a Parquet file: {text}; put back a copy of the file", kind="damaged-file"
        )


def seal(file: IO[bytes]) -> None:
    """Put the seal into a complete Parquet file that is open for reading and writing."""
    footer, _ = _footer(file)
    # The footer refers to columns by their offset from the start of the file, so it may move.
    file.seek(-len(footer), 2)
    file.write(_MARK + _digest(footer) + footer)


def _digest(footer: bytes) -> bytes:
    return hashlib.blake2b(footer, digest_size=_DIGEST_BYTES).digest()


def _footer(file: Any) -> tuple[bytes, bytes]:
    """The footer of a file, with its length and magic bytes; and the bytes before it, as many as a seal has."""
    bytes_ = file.seek(0, 2)
    file.seek(max(0, bytes_ - _END_BYTES))
    size = int.from_bytes(file.read(4), "little") + _END_BYTES
    # In a damaged file the length may exceed the file: leave that error to the Parquet reader.
    start = max(0, bytes_ - size)
    before = min(start, len(_MARK) + _DIGEST_BYTES)
    file.seek(start - before)
    found = file.read(before + size)
    return found[before:], found[:before]


def listed_slices(folder: Path) -> set[SliceKey]:
    """Slices whose files a folder must have; empty if there is no list, as from an earlier release."""
    path = folder / LIST
    try:
        given = json.loads(path.read_bytes())
        return {SliceKey(table, int(number)) for table, numbers in given.items() for number in numbers}
    except FileNotFoundError:
        return set()
    except OSError as error:
        raise DataFileError(f"cannot read {path}: {error}", kind="file-access") from error
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise DamagedError(
            f"{path} is damaged: {error}; put back a copy, or remove it if no file of a slice is missing",
            kind="damaged-file",
        ) from error


def has_list(folder: Path) -> bool:
    """Whether a list was written in a folder."""
    path = folder / LIST
    try:
        path.stat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise DataFileError(f"cannot read {path}: {error}", kind="file-access") from error
    return True


def list_slices(folder: Path, slices: Iterable[SliceKey]) -> None:
    """Add slices to the list of a folder, which is created if there is none; it is durable when this returns. The
    folder must be locked.
    """
    known = listed_slices(folder)
    if known.issuperset(slices) and has_list(folder):
        return
    numbers: dict[str, list[int]] = {}
    for table, number in sorted(known.union(slices)):
        numbers.setdefault(table, []).append(number)
    durable.write_text(folder / LIST, json.dumps(numbers))


def require_listed(folder: Path, found: Iterable[SliceKey]) -> None:
    """Raise an error if a folder lacks the file of a slice in its list; `found` are the slices with files."""
    missing = sorted(listed_slices(folder).difference(found))
    if missing:
        tables = {table: [str(number) for name, number in missing if name == table] for table, _ in missing}
        which = " and ".join(
            f"slice{'s' * (len(numbers) > 1)} {name_list(numbers)} of {table}" for table, numbers in tables.items()
        )
        raise DataFileError(
            f"{folder} lacks files of {which}: put them back, or take the slices out of {folder / LIST} if their rows "
            "are gone for good",
            kind="file-not-found",
        )
