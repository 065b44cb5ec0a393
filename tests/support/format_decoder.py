"""A second decoder of chunks, written from docs/format.md alone. Simple rather than fast."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import lz4.block
import pyarrow as pa
import xxhash
import zstandard

PCO_NAMES = {
    f"{long}{n}": f"{short}{n}"
    for long, short in (("int", "i"), ("uint", "u"), ("float", "f"))
    for n in (8, 16, 32, 64)
}
ROWS_MAX = 1 << 20
BYTES_MAX = 64 << 20


class FormatError(ValueError):
    """Bytes that docs/format.md does not allow."""


class Reader:
    """Reads values from the front of a byte string."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise FormatError("the bytes end too early")
        self.at += count
        return self.data[self.at - count : self.at]

    def u8(self) -> int:
        return self.take(1)[0]

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.u8()
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                if value >> 64:
                    raise FormatError("a varint exceeds 64 bits")
                return value

    def signed(self) -> int:
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def end(self, what: str) -> None:
        if self.at != len(self.data):
            raise FormatError(f"bytes follow {what}")


@dataclass
class TextFilter:
    """A filter of the texts of one column."""

    column: int
    probes: int
    bits: bytes

    def may_hold(self, text: str) -> bool:
        """Whether some value of the column may contain the text."""
        folded = fold(text)
        count = 8 * len(self.bits)
        for start in range(len(folded) - 3):
            key = mix(int.from_bytes(folded[start : start + 4], "little")) >> 10
            for probe in range(self.probes):
                at = mix(key | probe << 22) * count >> 32
                if not self.bits[at // 8] >> (at % 8) & 1:
                    return False
        return True


def fold(text: str) -> bytes:
    """The folded bytes of a text, which text filters use."""
    return text.replace("\u017f", "s").replace("\u212a", "k").encode().lower()


def mix(h: int) -> int:
    """The finalizer of MurmurHash3."""
    h ^= h >> 16
    h = h * 0x85EBCA6B % (1 << 32)
    h ^= h >> 13
    h = h * 0xC2B2AE35 % (1 << 32)
    return h ^ h >> 16


@dataclass
class Head:
    """The fields of a head, in their order."""

    columnar: bool
    unique_ids: bool
    has_row_origins: bool
    has_ordinals: bool
    compression: int
    schema_version: int
    rows: int
    time: tuple[int, int]
    ids: tuple[bytes, bytes]
    origins: list[tuple[str, int, int]]
    body_bytes: int
    block_bytes: int
    body_checksum: int
    text_filters: list[TextFilter]


@dataclass
class Chunk:
    """A decoded chunk: one list of Python values per column (numbers as raw little-endian bytes)."""

    head: Head
    columns: list[list[Any]]
    row_origins: list[int] = field(default_factory=list)
    ordinals: list[int] = field(default_factory=list)


def parse_head(data: bytes, cell: int, window: int, chunk: str) -> Head:
    """Verifies and reads a head that is stored under this tile and chunk id (hexadecimal)."""
    if not data or data[0] != 1:
        raise FormatError("another format version")
    seed = xxhash.xxh3_64_intdigest(struct.pack("<qi", cell, window) + bytes.fromhex(chunk))
    if xxhash.xxh3_64_intdigest(data[:-8], seed=seed) != int.from_bytes(data[-8:], "little"):
        raise FormatError("the head's checksum does not match")
    r = Reader(data[1:-8])
    flags = r.u8()
    schema_version, rows = r.varint(), r.varint()
    time_min = r.signed()
    time_max = time_min + r.varint()
    id_min = r.take(r.u8())
    shared, rest = r.u8(), r.u8()
    id_max = id_min[:shared] + r.take(rest)
    origins, stamp = [], 0
    for _ in range(r.varint()):
        batch = r.take(16).hex()
        stamp = (stamp + r.signed() + (1 << 63)) % (1 << 64) - (1 << 63)
        origins.append((batch, stamp, int.from_bytes(r.take(4), "little")))
    compression = flags >> 4 & 3
    body_bytes = r.varint()
    block_bytes = r.varint() if compression else body_bytes
    filters: list[TextFilter] = []
    if flags & 64:
        for _ in range(r.varint()):
            filters.append(TextFilter(r.varint(), r.u8(), r.take(r.varint())))
        columns = [each.column for each in filters]
        if not filters or columns != sorted(set(columns)):
            raise FormatError("text filters are missing or out of order")
        if not all(1 <= each.probes <= 8 and each.bits for each in filters):
            raise FormatError("a text filter is empty or its probes are out of range")
    checksum = int.from_bytes(r.take(8), "little")
    r.end("the head")
    if flags >> 7 or not 1 <= rows <= ROWS_MAX or not origins or block_bytes > BYTES_MAX:
        raise FormatError("a field of the head is out of range")
    return Head(
        columnar=bool(flags & 1),
        unique_ids=bool(flags & 2),
        has_row_origins=bool(flags & 4),
        has_ordinals=bool(flags & 8),
        compression=compression,
        schema_version=schema_version,
        rows=rows,
        time=(time_min, time_max),
        ids=(id_min, id_max),
        origins=origins,
        body_bytes=body_bytes,
        block_bytes=block_bytes,
        body_checksum=checksum,
        text_filters=filters,
    )


def width_of(kind: pa.DataType) -> int:
    """Width in bytes of a fixed type."""
    return int(kind.bit_width) // 8


def number_of(kind: pa.DataType) -> str | None:
    """The numeric type that stores a fixed type, by numpy's name; None for decimals and fixed-size binary."""
    if pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind):
        return None
    if pa.types.is_floating(kind) or pa.types.is_integer(kind):
        return {"float": "float32", "double": "float64"}.get(str(kind), str(kind))
    return f"int{kind.bit_width}"


def is_var(kind: pa.DataType) -> bool:
    """Whether values of this type differ in length."""
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def bits(data: bytes, count: int) -> list[bool]:
    """The first bits of a bit string."""
    return [bool(data[i // 8] >> (i % 8) & 1) for i in range(count)]


def split(data: bytes, width: int) -> list[bytes]:
    """Values of equal width."""
    return [data[i : i + width] for i in range(0, len(data), width)]


def cut(data: bytes, lengths: list[int]) -> list[bytes]:
    """Values of the given lengths."""
    r = Reader(data)
    values = [r.take(length) for length in lengths]
    r.end("the values")
    return values


def spread(values: list[Any], present: list[bool] | None) -> list[Any]:
    """Inserts None for null rows."""
    if present is None:
        return values
    each = iter(values)
    return [next(each) if flag else None for flag in present]


def gather(lengths: list[int], items: list[Any]) -> list[list[Any]]:
    """Lists of the given lengths."""
    at, lists = 0, []
    for length in lengths:
        lists.append(items[at : at + length])
        at += length
    return lists


def narrow(r: Reader, kind: pa.DataType, count: int, unpack: Callable[[int], bytes]) -> list[bytes]:
    """Values of the narrow codec. `unpack(n)` returns `n` bytes of distances that are whole bytes."""
    base, d, number = r.take(width_of(kind)), r.u8(), number_of(kind)
    if number is None:
        raise FormatError("distances of non-numeric values")
    if d & 0x80:
        return in_bits(r, base, d & 0x3F, bool(d & 0x40), number, count)
    if number.startswith("float"):
        raise FormatError("distances of floats in whole bytes")
    return widen(base, unpack(count * d), d)


def in_bits(r: Reader, base: bytes, b: int, is_rotated: bool, number: str, count: int) -> list[bytes]:
    """Values whose distances are packed in bits."""
    width, start = len(base), int.from_bytes(base, "little")
    if not 1 <= b <= 56 or b >= 8 * width or (is_rotated and not number.startswith("float")):
        raise FormatError("distances of unknown width")
    exceptions = r.varint()
    whole = int.from_bytes(r.take((count * b + 7) // 8), "little")
    values = []
    for i in range(count):
        value = (start + (whole >> (i * b) & ((1 << b) - 1))) % (1 << 8 * width)
        if is_rotated:
            value = value >> 1 | (value & 1) << (8 * width - 1)
        values.append(value.to_bytes(width, "little"))
    place = -1
    for _ in range(exceptions):
        place += 1 + r.varint()
        if place >= count:
            raise FormatError("an exception past the values")
        values[place] = r.take(width)
    return values


def widen(base: bytes, distances: bytes, d: int) -> list[bytes]:
    """Values whose distances are whole bytes."""
    width, start = len(base), int.from_bytes(base, "little")
    if d not in (1, 2, 4) or d >= width:
        raise FormatError("distances of unknown width")
    return [
        ((start + int.from_bytes(x, "little")) % (1 << 8 * width)).to_bytes(width, "little")
        for x in split(distances, d)
    ]


def struct_rows(kind: pa.StructType, rows: int, present: list[bool] | None, fields: list[list[Any]]) -> list[Any]:
    """Rows of a struct as tuples."""
    return [tuple(column[row] for column in fields) if present is None or present[row] else None for row in range(rows)]


class SmallBlock:
    """Walks the nodes of a small block."""

    def __init__(self, data: bytes) -> None:
        self.r = Reader(data)
        self.tags: list[int] = []

    def open(self, nodes: int) -> None:
        tags = self.r.take((nodes + 1) // 2)
        self.tags = [half for byte in tags for half in (byte & 15, byte >> 4)]

    def hidden(self, kind: pa.DataType, rows: int) -> list[bytes]:
        return self.values(kind, self.r.u8(), rows)

    def lengths(self, shape: int, count: int) -> list[int]:
        if shape == 0:
            return [self.r.varint() for _ in range(count)]
        return [self.r.varint()] * count if shape == 1 else [0] * count

    def values(self, kind: pa.DataType, shape: int, count: int) -> list[Any]:
        """Present values of a node without children."""
        if pa.types.is_boolean(kind):
            return [shape == 1] * count if shape else bits(self.r.take((count + 7) // 8), count)
        if is_var(kind):
            if shape == 1:
                return [self.r.take(self.r.varint())] * count
            lengths = self.lengths(shape, count)
            return [self.r.take(length) for length in lengths]
        width = width_of(kind)
        if shape == 0:
            return split(self.r.take(count * width), width)
        if shape == 2:
            return narrow(self.r, kind, count, self.r.take)
        return [self.r.take(width) if shape == 1 else bytes(width)] * count

    def node(self, kind: pa.DataType, rows: int) -> list[Any]:
        tag = self.tags.pop(0)
        if tag > 8:
            raise FormatError("unknown tag")
        present = bits(self.r.take((rows + 7) // 8), rows) if tag & 4 else [tag != 8] * rows
        shape, count = tag & 3, sum(present)
        if pa.types.is_list(kind):
            lengths = [] if tag == 8 else self.lengths(shape, count)
            items = self.node(kind.value_type, sum(lengths))
            return spread(gather(lengths, items), present)
        if pa.types.is_struct(kind):
            return struct_rows(kind, rows, present, [self.node(f.type, rows) for f in kind])
        return spread([] if tag == 8 else self.values(kind, shape, count), present)


def pco(data: bytes, number: str, count: int) -> list[bytes]:
    """One wrapped pco chunk of one page."""
    import numpy as np
    from pcodec import wrapped

    file, used = wrapped.FileDecompressor.new(data)
    out = np.zeros(count, dtype=number)
    chunk, more = file.chunk_decompressor(data[used:], PCO_NAMES[number])
    page = data[used + more :]
    progress, read = chunk.read_page_into(page, count, out)
    if not progress.finished or read != len(page):
        raise FormatError("pco bytes do not have the expected number of values")
    return split(out.tobytes(), out.dtype.itemsize)


def packed(r: Reader, length: int) -> bytes:
    """Packed bytes of a known length."""
    how = r.u8()
    if how == 0:
        return r.take(length)
    data = zstandard.ZstdDecompressor().decompress(r.take(r.varint()), max_output_size=length)
    if how != 1 or len(data) != length:
        raise FormatError("packed bytes do not have the expected length")
    return data


def decimals(r: Reader, kind: pa.DataType, count: int) -> list[bytes]:
    """Whole numbers divided by a power of ten, and exceptions."""
    number, scale, exceptions = number_of(kind), r.u8(), r.varint()
    exponent, single, wide = scale & 31, bool(scale & 32), bool(scale & 64)
    if number not in ("float32", "float64") or scale >> 7 or exponent > 22 or exceptions > count:
        raise FormatError("decimals of unknown scale")
    if number == "float32" and (wide or not single):
        raise FormatError("float32 of a scale for float64")
    wholes = sequence(r, pa.int64() if wide else pa.int32(), count)
    quotients = [float(whole) / 10.0**exponent for whole in wholes]
    if single:
        quotients = [struct.unpack("<f", struct.pack("<f", quotient))[0] for quotient in quotients]
    values = [struct.pack("<f" if number == "float32" else "<d", quotient) for quotient in quotients]
    if exceptions:
        places = u32s(r, exceptions)
        kept = split(packed(r, exceptions * width_of(kind)), width_of(kind))
        if places != sorted(set(places)) or places[-1] >= count:
            raise FormatError("places of exceptions out of order")
        for place, value in zip(places, kept, strict=True):
            values[place] = value
    return values


def columnar_fixed(r: Reader, codec: int, kind: pa.DataType, count: int) -> list[bytes]:
    """Present values of fixed width."""
    width = width_of(kind)
    if codec == 0:
        return split(packed(r, count * width), width)
    if codec == 2:
        return narrow(r, kind, count, lambda length: packed(r, length))
    if codec == 4:
        number = number_of(kind)
        if number is None:
            raise FormatError("pco of non-numeric values")
        return pco(r.take(r.varint()), number, count)
    if codec == 6:
        return decimals(r, kind, count)
    if codec == 7:
        first, second = (int.from_bytes(r.take(width), "little") for _ in range(2))
        return [((first + i * (second - first)) % (1 << 8 * width)).to_bytes(width, "little") for i in range(count)]
    if codec not in (1, 3):
        raise FormatError("unknown codec")
    return [r.take(width) if codec == 1 else bytes(width)] * count


def sequence(r: Reader, kind: pa.DataType, count: int) -> list[int]:
    """A sequence of integers, encoded as a node."""
    signed = pa.types.is_signed_integer(kind)
    return [int.from_bytes(x, "little", signed=signed) for x in columnar_fixed(r, r.u8(), kind, count)]


def u32s(r: Reader, count: int) -> list[int]:
    """A u32 sequence."""
    return sequence(r, pa.uint32(), count)


def columnar_var(r: Reader, codec: int, count: int) -> list[bytes]:
    """Present values of text or binary."""
    if codec == 0:
        lengths = u32s(r, count)
        return cut(packed(r, r.varint()), lengths)
    if codec == 5:
        distinct = columnar_var(r, 0, r.varint())
        return [distinct[index] for index in u32s(r, count)]
    if codec not in (1, 3):
        raise FormatError("unknown codec")
    return [r.take(r.varint()) if codec == 1 else b""] * count


def columnar_node(r: Reader, kind: pa.DataType, rows: int) -> list[Any]:
    """One node of the columnar form, with its children."""
    first = r.u8()
    codec = first & 7
    if first & 0x20:
        r.take(2 * width_of(kind))
    nothing = bool(first & 0x10)
    present = bits(packed(r, (rows + 7) // 8), rows) if first & 8 else [not nothing] * rows
    count = sum(present)
    if pa.types.is_list(kind):
        lengths = [] if nothing else u32s(r, count)
        return spread(gather(lengths, columnar_node(r, kind.value_type, sum(lengths))), present)
    if pa.types.is_struct(kind):
        return struct_rows(kind, rows, present, [columnar_node(r, f.type, rows) for f in kind])
    if nothing:
        return [None] * rows
    if pa.types.is_boolean(kind):
        values: list[Any] = [codec == 1] * count if codec else bits(packed(r, (count + 7) // 8), count)
    elif is_var(kind):
        values = columnar_var(r, codec, count)
    else:
        values = columnar_fixed(r, codec, kind, count)
    return spread(values, present)


def nodes_in(kind: pa.DataType) -> int:
    """Number of nodes of a column."""
    if pa.types.is_list(kind):
        return 1 + nodes_in(kind.value_type)
    return 1 + (sum(nodes_in(f.type) for f in kind) if pa.types.is_struct(kind) else 0)


def decode(head_data: bytes, body: bytes, cell: int, window: int, chunk: str, schema: pa.Schema) -> Chunk:
    """Decodes a chunk whose schema version has the columns of `schema`."""
    head = parse_head(head_data, cell, window, chunk)
    if len(body) != head.body_bytes or xxhash.xxh3_64_intdigest(body) != head.body_checksum:
        raise FormatError("the body's checksum does not match")
    if head.compression == 1:
        body = lz4.block.decompress(body, uncompressed_size=head.block_bytes)
    elif head.compression == 2:
        body = zstandard.ZstdDecompressor().decompress(body, max_output_size=head.block_bytes)
    result = Chunk(head, [])
    hidden = [(head.has_row_origins, pa.uint32(), result.row_origins), (head.has_ordinals, pa.int64(), result.ordinals)]
    if head.columnar:
        r = Reader(body)
        for is_present, kind, out in hidden:
            if is_present:
                column = Reader(r.take(r.varint()))
                out.extend(int.from_bytes(x, "little", signed=True) for x in columnar_node(column, kind, head.rows))
                column.end("a hidden column")
        lengths = [r.varint() for _ in schema]
        for length, f in zip(lengths, schema, strict=True):
            column = Reader(r.take(length))
            result.columns.append(columnar_node(column, f.type, head.rows))
            column.end("a column")
        r.end("the columns")
        return result
    block = SmallBlock(body)
    for is_present, kind, out in hidden:
        if is_present:
            out.extend(int.from_bytes(x, "little", signed=True) for x in block.hidden(kind, head.rows))
    block.open(sum(nodes_in(f.type) for f in schema))
    result.columns = [block.node(f.type, head.rows) for f in schema]
    block.r.end("the last column")
    return result
