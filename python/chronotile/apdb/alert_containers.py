"""Files that alerts come in, told by their first bytes: Parquet, Avro container files, and archives of these."""

from __future__ import annotations

import gzip
import itertools
import os
import tarfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from chronotile import optional
from chronotile.errors import DataFileError

_PACKETS = 5_000
_HEAD_BYTES = 512
_GZIP, _PARQUET, _AVRO, _AVRO_SINGLE = b"\x1f\x8b", b"PAR1", b"Obj\x01", b"\xc3\x01"
_TAR_MAGIC = slice(257, 262)
# A file of one of these is left alone where a folder is given.
_HIDDEN = (".", "_")


def files(paths: Iterable[str | os.PathLike[str]]) -> Iterator[Path]:
    """The files that some paths name, those of folders in the order of their names.

    Raises
    ------
    DataFileError
        There is no such file, or a folder has none.
    """
    for given in paths:
        path = Path(given)
        if path.is_dir():
            found = sorted(p for p in path.rglob("*") if p.is_file() and not p.name.startswith(_HIDDEN))
            if not found:
                raise DataFileError(f"folder {path} has no files", kind="file-not-found")
            yield from found
        elif path.exists():
            yield path
        else:
            raise DataFileError(f"there is no file {path}", kind="file-not-found")


def read(path: Path) -> Iterator[tuple[Any, list[str]]]:
    """The rows of a file as tables of some thousands, and the columns of images, which are not read.

    Raises
    ------
    DataFileError
        The file is damaged, or of another format.
    """
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
        if head.startswith(_PARQUET):
            yield from _parquet(path)
        else:
            yield from _packets(_avro(path, head), path)
    except DataFileError:
        raise
    except (ValueError, EOFError, KeyError, IndexError, TypeError, OSError, MemoryError, OverflowError, zlib.error,
            tarfile.TarError, pa.ArrowException) as error:  # fmt: skip
        raise DataFileError(f"{path} is damaged: {str(error) or type(error).__name__}", kind="file-format") from error


def plain(rows: Any) -> Any:
    """Dictionary-encoded columns, which pandas writes for its categories, become plain ones."""
    for place, column in enumerate(rows.schema):
        if pa.types.is_dictionary(column.type):
            rows = rows.set_column(place, column.name, rows[column.name].cast(column.type.value_type))
    return rows


def _parquet(path: Path) -> Iterator[tuple[Any, list[str]]]:
    file = pq.ParquetFile(path)
    images = [name for name in file.schema_arrow.names if _is_image(name)]
    wanted = [name for name in file.schema_arrow.names if not _is_image(name)]
    empty = True
    for batch in file.iter_batches(_PACKETS, columns=wanted):
        empty = False
        yield plain(pa.Table.from_batches([batch])), images
    if empty:
        yield plain(file.schema_arrow.empty_table().select(wanted)), images


def _is_image(name: str) -> bool:
    return name.startswith("cutout")


def _packets(packets: Iterator[dict[str, Any]], path: Path) -> Iterator[tuple[Any, list[str]]]:
    """Packets as tables; those of an archive of many files together."""
    while some := list(itertools.islice(packets, _PACKETS)):
        images = sorted({name for packet in some for name in packet if _is_image(name)})
        rows = [{name: value for name, value in packet.items() if not _is_image(name)} for packet in some]
        # The columns of a table are those of its first packet, unless told.
        rows[0] = dict.fromkeys(name for row in rows for name in row) | rows[0]
        yield pa.Table.from_pylist(rows), images


def _avro(path: Path, head: bytes) -> Iterator[dict[str, Any]]:
    """The packets of a container file, or of the container files in an archive."""
    if head.startswith(_GZIP):
        with gzip.open(path) as unpacked:
            head = unpacked.read(_HEAD_BYTES)
        if head.startswith(_PARQUET):
            raise _other(path, "is a compressed Parquet file: unpack it before (gunzip)")
        with gzip.open(path) as unpacked:
            yield from _members(unpacked, head, path)
    else:
        with path.open("rb") as file:
            yield from _members(file, head, path)


def _members(file: IO[bytes] | gzip.GzipFile, head: bytes, path: Path) -> Iterator[dict[str, Any]]:
    if head[_TAR_MAGIC] != b"ustar":
        yield from _container(file, head, str(path))
        return
    found = False
    with tarfile.open(fileobj=file, mode="r|") as archive:
        for member in archive:
            content = archive.extractfile(member) if member.isfile() else None
            if content is None or Path(member.name).name.startswith(_HIDDEN):
                continue
            found = True
            where = f"{member.name} of {path}"
            with content:
                head = content.read(len(_AVRO))
                yield from _container(_Continued(head, content), head, where)
    if not found:
        raise _other(path, "is an archive without files")


class _Continued:
    """A file whose first bytes have been read already: members of a stream of an archive cannot go back."""

    def __init__(self, head: bytes, rest: Any) -> None:
        self._head, self._rest = head, rest

    def read(self, size: int = -1) -> bytes:
        if size < 0:
            taken, self._head = self._head, b""
            return taken + bytes(self._rest.read())
        taken, self._head = self._head[:size], self._head[size:]
        return taken + bytes(self._rest.read(size - len(taken))) if len(taken) < size else taken


def _container(file: Any, head: bytes, where: str) -> Iterator[dict[str, Any]]:
    if not head.startswith(_AVRO):
        raise _other(where, _what_else(head))
    fastavro = optional.module("fastavro", "reading Avro", "alerts")
    yield from fastavro.reader(file)


def _what_else(head: bytes) -> str:
    """What a file is that no packets can be read from, and what to do."""
    advice = "which does not bring its schema: have the consumer write Avro container files (fastavro.writer)"
    if not head:
        return "is empty"
    if head.startswith(_AVRO_SINGLE):
        return f"is an Avro single object, {advice}"
    if head[0] == 0 and any(head[1:5]):
        return f"looks like a message of Kafka (schema {int.from_bytes(head[1:5], 'big')}), {advice}"
    return "is neither Parquet nor an Avro container file, nor an archive of these (.tar, .gz)"


def _other(where: object, what: str) -> DataFileError:
    return DataFileError(f"{where} {what}", kind="file-format")
