"""Format values of the native protocol as text, similar to cqlsh."""

from __future__ import annotations

import datetime
import ipaddress
import struct
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

_LIST, _MAP, _SET, _UDT, _TUPLE, _CUSTOM = 0x20, 0x21, 0x22, 0x30, 0x31, 0x00
_VARCHAR, _ASCII = 0x0D, 0x01
_DURATION = "org.apache.cassandra.db.marshal.DurationType"
_EPOCH = datetime.datetime(1970, 1, 1)


class Reader:
    """Sequential reader of the protocol's basic types."""

    def __init__(self, content: bytes) -> None:
        self._content, self._at = content, 0

    def take(self, count: int) -> bytes:
        """Read the next `count` bytes; raise ValueError if fewer remain."""
        part = self._content[self._at : self._at + count]
        if len(part) != count:
            raise ValueError("the node's message is truncated")
        self._at += count
        return part

    def rest(self) -> bytes:
        """Read the rest."""
        return self._content[self._at :]

    def uint16(self) -> int:
        """An unsigned number of two bytes."""
        return int.from_bytes(self.take(2))

    def int32(self) -> int:
        """A signed number of four bytes."""
        return int.from_bytes(self.take(4), signed=True)

    def string(self) -> str:
        """A text with its length in two bytes."""
        return self.take(self.uint16()).decode("utf-8", "replace")

    def content(self) -> bytes | None:
        """Bytes with a four-byte length; None for null."""
        count = self.int32()
        return None if count < 0 else self.take(count)

    def at_end(self) -> bool:
        """Whether the message is read to its end."""
        return self._at >= len(self._content)


@dataclass(frozen=True)
class Type:
    """A CQL type."""

    code: int
    inner: tuple[Type, ...] = ()
    names: tuple[str, ...] = ()
    """Field names of a user-defined type; the class of a custom one."""


Text: TypeAlias = Callable[[bytes], str]


def read_type(reader: Reader) -> Type:
    """Read a column type of a result."""
    code = reader.uint16()
    if code == _CUSTOM:
        return Type(code, names=(reader.string(),))
    if code in (_LIST, _SET):
        return Type(code, (read_type(reader),))
    if code == _MAP:
        return Type(code, (read_type(reader), read_type(reader)))
    if code == _TUPLE:
        return Type(code, tuple(read_type(reader) for _ in range(reader.uint16())))
    if code == _UDT:
        reader.string(), reader.string()
        fields = [(reader.string(), read_type(reader)) for _ in range(reader.uint16())]
        return Type(code, tuple(type for _, type in fields), tuple(name for name, _ in fields))
    return Type(code)


def text_of(type: Type, content: bytes | None, *, quoted: bool = False) -> str:
    """Format a value as text; text in collections is quoted."""
    if content is None:
        return "null"
    if type.code == _CUSTOM and type.names == (_DURATION,):
        return _duration(content)
    if type.code in (_VARCHAR, _ASCII):
        text = content.decode("utf-8", "replace")
        return "'" + text.replace("'", "''") + "'" if quoted else text
    simple = _SIMPLE.get(type.code)
    if simple is not None:
        return simple(content) if content else ""
    reader = Reader(content)
    if type.code in (_LIST, _SET):
        parts = [text_of(type.inner[0], reader.content(), quoted=True) for _ in range(reader.int32())]
        opening, closing = "[]" if type.code == _LIST else "{}"
        return opening + ", ".join(parts) + closing
    if type.code == _MAP:
        key, value = type.inner
        pairs = [
            f"{text_of(key, reader.content(), quoted=True)}: {text_of(value, reader.content(), quoted=True)}"
            for _ in range(reader.int32())
        ]
        return "{" + ", ".join(pairs) + "}"
    if type.code in (_TUPLE, _UDT):
        # Values written before a field was added lack it.
        parts = [text_of(one, None if reader.at_end() else reader.content(), quoted=True) for one in type.inner]
        if type.code == _TUPLE:
            return "(" + ", ".join(parts) + ")"
        return "{" + ", ".join(f"{name}: {part}" for name, part in zip(type.names, parts, strict=True)) + "}"
    return _blob(content)


def _blob(content: bytes) -> str:
    return "0x" + content.hex()


def _number(content: bytes) -> str:
    return str(int.from_bytes(content, signed=True))


def _decimal(content: bytes) -> str:
    scale = int.from_bytes(content[:4], signed=True)
    digits = int.from_bytes(content[4:], signed=True)
    if scale <= 0:
        return f"{digits}E{-scale}" if scale else str(digits)
    text = str(abs(digits)).rjust(scale + 1, "0")
    return f"{'-' if digits < 0 else ''}{text[:-scale]}.{text[-scale:]}"


def _timestamp(content: bytes) -> str:
    milliseconds = int.from_bytes(content, signed=True)
    try:
        moment = _EPOCH + datetime.timedelta(milliseconds=milliseconds)
    except OverflowError:
        return f"{milliseconds} ms"
    return moment.isoformat(sep=" ", timespec="milliseconds") + "+0000"


def _date(content: bytes) -> str:
    # CQL dates are unsigned: 1970-01-01 is 2^31.
    days = int.from_bytes(content) - 2**31
    try:
        return (_EPOCH + datetime.timedelta(days=days)).date().isoformat()
    except OverflowError:
        return f"{days} d"


def _time(content: bytes) -> str:
    seconds, nanoseconds = divmod(int.from_bytes(content), 10**9)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{nanoseconds:09}"


def _duration(content: bytes) -> str:
    reader = Reader(content)
    months, days, nanoseconds = (_vint(reader) for _ in range(3))
    return f"{months}mo{days}d{nanoseconds}ns"


def _vint(reader: Reader) -> int:
    first = reader.take(1)[0]
    # The leading one bits of the first byte count the bytes that follow; the number is zigzag-encoded.
    extra = 8 - (first ^ 0xFF).bit_length()
    value = int.from_bytes(bytes([first & (0xFF >> extra)]) + reader.take(extra))
    return value >> 1 ^ -(value & 1)


_SIMPLE: dict[int, Text] = {
    0x02: _number,
    0x03: _blob,
    0x04: lambda content: str(content != b"\0"),
    0x05: _number,
    0x06: _decimal,
    0x07: lambda content: str(struct.unpack(">d", content)[0]),
    0x08: lambda content: f"{struct.unpack('>f', content)[0]:.8g}",
    0x09: _number,
    0x0B: _timestamp,
    0x0C: lambda content: str(uuid.UUID(bytes=content)),
    0x0E: _number,
    0x0F: lambda content: str(uuid.UUID(bytes=content)),
    0x10: lambda content: str(ipaddress.ip_address(content)),
    0x11: _date,
    0x12: _time,
    0x13: _number,
    0x14: _number,
    0x15: _duration,
}
