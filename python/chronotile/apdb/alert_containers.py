"""Alert files: Parquet, Avro container files, and archives of these, recognized by their first bytes."""

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
from chronotile.errors import DataFileError, MissingPackageError

_PACKETS = 5_000
_HEAD_BYTES = 512
_GZIP, _PARQUET, _AVRO, _AVRO_SINGLE = b"\x1f\x8b", b"PAR1", b"Obj\x01", b"\xc3\x01"
_TAR_MAGIC = slice(257, 262)
# Packages that fastavro needs for a codec but does not install. Its extras have the names of the codecs.
_CODEC_PACKAGES = {"snappy": "cramjam", "zstandard": "backports.zstd", "lz4": "lz4"}
# Before and after the version in the name of an LSST alert schema, such as lsst.v7_1.alert.
_LSST_NAME = ("lsst.v", ".alert")
_LSST_MAJOR_MIN = 7
# In a folder, files with these suffixes are skipped.
_HIDDEN = (".", "_")


def files(paths: Iterable[str | os.PathLike[str]]) -> Iterator[Path]:
    """The files at `paths`; a folder stands for its files, sorted by name.

    Raises
    ------
    DataFileError
        A path does not exist, or a folder is empty.
    """
    for given in paths:
        path = Path(given)
        if path.is_dir():
            found = sorted(p for p in path.rglob("*") if p.is_file() and not p.name.startswith(_HIDDEN))
            if not found:
                raise DataFileError(f"folder {path} is empty", kind="file-not-found")
            yield from found
        elif path.exists():
            yield path
        else:
            raise DataFileError(f"no such file: {path}", kind="file-not-found")


def read(path: Path) -> Iterator[tuple[Any, list[str]]]:
    """Read a file as tables of a few thousand rows each; also return the names of image columns, which are skipped.

    Raises
    ------
    DataFileError
        The file cannot be read (``file-access``), is damaged, or of another format (``file-format``).
    MissingPackageError
        Reading the file needs a package that is not installed.
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
        # Only errors of the operating system have a number; readers also raise OSError for damaged content.
        if isinstance(error, OSError) and error.errno is not None:
            raise DataFileError(f"cannot read {path}: {os.strerror(error.errno)}", kind="file-access") from error
        raise DataFileError(f"{path} is damaged: {str(error) or type(error).__name__}", kind="file-format") from error


def plain(rows: Any) -> Any:
    """Decode dictionary-encoded columns, which pandas writes for categories."""
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
    """Convert packets to tables; packets from many small files are grouped."""
    while chunk := list(itertools.islice(packets, _PACKETS)):
        images = sorted({name for packet in chunk for name in packet if _is_image(name)})
        rows = [{name: value for name, value in packet.items() if not _is_image(name)} for packet in chunk]
        # Without a schema, Arrow takes the columns from the first packet.
        rows[0] = dict.fromkeys(name for row in rows for name in row) | rows[0]
        yield pa.Table.from_pylist(rows), images


def _avro(path: Path, head: bytes) -> Iterator[dict[str, Any]]:
    """Read the packets of a container file, or of all container files in an archive."""
    if head.startswith(_GZIP):
        with gzip.open(path) as unpacked:
            head = unpacked.read(_HEAD_BYTES)
        if head.startswith(_PARQUET):
            raise _format_error(path, "is a compressed Parquet file: unpack it first (gunzip)")
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
                yield from _container(_PrefixedStream(head, content), head, where)
    if not found:
        raise _format_error(path, "is an empty archive")


class _PrefixedStream:
    """A file whose first bytes were already read: members of a streamed archive cannot seek back."""

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
        raise _format_error(where, _describe_unknown(head))
    fastavro = optional.module("fastavro", "reading Avro", "alerts")
    packets = fastavro.reader(file)
    _refuse_old_schema(packets.writer_schema, where)
    try:
        yield from packets
    except ValueError as error:
        # fastavro raises ValueError for damaged bytes and for unsupported codecs: only the message differs.
        codec, reason = packets.codec, str(error)
        if codec in _CODEC_PACKAGES and "need to install" in reason:
            raise MissingPackageError(
                f"{where} is compressed with {codec}, which needs {_CODEC_PACKAGES[codec]}: "
                f"pip install 'fastavro[{codec}]'",
                kind="missing-package",
            ) from None
        if reason.startswith("Unrecognized codec"):
            raise _format_error(
                where, f"is compressed with {codec}, which cannot be read: write it with deflate"
            ) from None
        raise


def _refuse_old_schema(schema: Any, where: str) -> None:
    """Refuse alerts of the LSST before schema 7, whose sources name no visit and detector."""
    name = schema["name"] if isinstance(schema, dict) else ""
    prefix, suffix = _LSST_NAME
    version = name.removeprefix(prefix).removesuffix(suffix)
    major, between, minor = version.partition("_")
    if name == f"{prefix}{version}{suffix}" and major.isdecimal() and between and int(major) < _LSST_MAJOR_MIN:
        raise _format_error(
            where,
            f"contains LSST alerts of schema {major}.{minor}, whose sources have no visit and detector: alerts are "
            f"imported from schema {_LSST_MAJOR_MIN} on",
        )


def _describe_unknown(head: bytes) -> str:
    """Describe the probable format of an unreadable file, and how to convert it."""
    advice = "which does not contain its schema: write Avro container files instead (fastavro.writer)"
    if not head:
        return "is empty"
    if head.startswith(_AVRO_SINGLE):
        return f"is an Avro single object, {advice}"
    if head[0] == 0 and any(head[1:5]):
        return f"looks like a Kafka message (schema {int.from_bytes(head[1:5], 'big')}), {advice}"
    return "has an unknown format: give Parquet, an Avro container file, or an archive of these (.tar, .gz)"


def _format_error(where: object, what: str) -> DataFileError:
    return DataFileError(f"{where} {what}", kind="file-format")
