"""Parquet files of archived slices: opened so that damage is an error, and sealed when they are written.

Each page carries a checksum, which reads verify. Sixteen bytes before the footer, the seal, are the BLAKE2b hash of the
footer with what follows it, after eight bytes that mark it. Other readers of Parquet pass over the seal: nothing refers
to these bytes. Files that an earlier release wrote have neither.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq

from chronotile.errors import ChronotileError, DamagedError, DataFileError

__all__ = ["SliceFile", "seal"]

_MARK = b"CTSEAL\x00\x01"
_DIGEST_BYTES = 16
_END_BYTES = 8
"""The length of the footer, 4 bytes little-endian, and the mark of Parquet."""
_CHECKED = pads.ParquetFileFormat(
    default_fragment_scan_options=pads.ParquetFragmentScanOptions(page_checksum_verification=True)
)


class SliceFile:
    """An open file. It is read as it was when it was opened, also if another replaces it."""

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

    def __enter__(self) -> SliceFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def rows(self) -> int:
        """Number of its rows."""
        return int(self._parquet.metadata.num_rows)

    @property
    def schema(self) -> Any:
        """Its Arrow schema."""
        with self._read():
            return self._parquet.schema_arrow

    def read(self, columns: list[str]) -> Any:
        """All rows of some columns."""
        with self._read():
            return self._parquet.read(columns=columns)

    def batches(self) -> Iterator[Any]:
        """All rows, in record batches."""
        batches = self._parquet.iter_batches()
        while True:
            with self._read():
                batch = next(batches, None)
            if batch is None:
                return
            yield batch

    def select(self, condition: Any, columns: list[str] | None = None) -> Any:
        """The rows that meet a condition of pyarrow."""
        with self._read():
            return _CHECKED.make_fragment(self._file).to_table(columns=columns, filter=condition)

    def _check_seal(self) -> None:
        footer, before = _footer(self._file)
        if before[:-_DIGEST_BYTES] == _MARK and before[-_DIGEST_BYTES:] != _digest(footer):
            raise pa.ArrowInvalid("its footer does not have the checksum that was written")

    @contextmanager
    def _read(self) -> Iterator[None]:
        """Tell damage from a file that cannot be opened."""
        try:
            yield
        except (ChronotileError, MemoryError):
            raise
        except OSError as error:
            # Arrow's own errors of input have no number.
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
    file.seek(-len(footer), 2)
    file.write(_MARK + _digest(footer) + footer)


def _digest(footer: bytes) -> bytes:
    return hashlib.blake2b(footer, digest_size=_DIGEST_BYTES).digest()


def _footer(file: Any) -> tuple[bytes, bytes]:
    """The footer of a file with what follows it, and as many bytes before it as a seal has."""
    bytes_ = file.seek(0, 2)
    file.seek(max(0, bytes_ - _END_BYTES))
    size = int.from_bytes(file.read(4), "little") + _END_BYTES
    start = max(0, bytes_ - size)
    before = min(start, len(_MARK) + _DIGEST_BYTES)
    file.seek(start - before)
    found = file.read(before + size)
    return found[before:], found[:before]
