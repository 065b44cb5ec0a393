"""Alert packets with random values in every field of an Avro schema."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

Row = dict[str, Any]
Kind = Any
"""A type of a parsed Avro schema: a name, a list of alternatives, or a record, an array or a logical type as a dict."""

_EPOCH = datetime(2020, 1, 1, tzinfo=UTC)
_ARROW = {
    "long": pa.int64(), "int": pa.int32(), "float": pa.float32(), "double": pa.float64(), "string": pa.string(),
    "boolean": pa.bool_(), "bytes": pa.binary(), "null": pa.null(), "timestamp-micros": pa.timestamp("us", "UTC"),
}  # fmt: skip


def lsst_schemas() -> Path:
    """The folder of all published LSST alert schemas, such as ``10/0/lsst.v10_0.alert.avsc``."""
    packet = pytest.importorskip("lsst.alert.packet", reason="lsst-alert-packet is not installed")
    return Path(packet.get_schema_root())


def lsst_schema(version: str) -> Row:
    """The parsed schema of the alerts of a version, such as ``7.4``."""
    fastavro = pytest.importorskip("fastavro")
    major, minor = version.split(".")
    parsed: Row = fastavro.schema.load_schema(str(lsst_schemas() / major / minor / f"lsst.v{major}_{minor}.alert.avsc"))
    return parsed


class Packets:
    """Random packets of a parsed Avro schema.

    Parameters
    ----------
    schema : dict
        The parsed schema of a record.
    seed : int
        Packets of equal seeds are equal.
    nulls : float
        Share of nulls in fields that may be null, from 0 to 1.
    """

    def __init__(self, schema: Row, seed: int, nulls: float = 0.3) -> None:
        self._random = random.Random(seed)
        self._nulls = nulls
        self._records: dict[str, Row] = {}
        self._schema = schema
        self._collect(schema)

    def packet(self) -> Row:
        """A new packet."""
        row: Row = self._value(self._schema)
        return row

    def _collect(self, kind: Kind) -> None:
        """Collect the record types that other fields refer to by name."""
        if isinstance(kind, list):
            for each in kind:
                self._collect(each)
        elif isinstance(kind, dict) and kind["type"] == "record":
            self._records[kind["name"]] = kind
            for field in kind["fields"]:
                self._collect(field["type"])
        elif isinstance(kind, dict) and kind["type"] == "array":
            self._collect(kind["items"])

    def _value(self, kind: Kind) -> Any:
        if isinstance(kind, list):
            others = [each for each in kind if each != "null"]
            return None if len(others) < len(kind) and self._random.random() < self._nulls else self._value(others[0])
        if isinstance(kind, str):
            return self._value(self._records[kind]) if kind in self._records else self._scalar(kind)
        if kind["type"] == "record":
            return {field["name"]: self._value(field["type"]) for field in kind["fields"]}
        if kind["type"] == "array":
            return [self._value(kind["items"]) for _ in range(self._random.randrange(4))]
        return self._scalar(kind.get("logicalType", kind["type"]))

    def _scalar(self, name: str) -> Any:
        draw: dict[str, Callable[[], Any]] = {
            "long": lambda: self._random.randrange(-(2**63), 2**63),
            "int": lambda: self._random.randrange(-(2**31), 2**31),
            "float": lambda: _single(self._random.choice([1.0, -1e-30, 3e38, 0.1, float("nan"), -0.0])),
            "double": lambda: self._random.uniform(-1e9, 1e9),
            "string": lambda: self._random.choice(["", "r", "η Carinae\n", "2021 XY"]),
            "boolean": lambda: self._random.random() < 0.5,
            "bytes": lambda: self._random.randbytes(5),
            "timestamp-micros": lambda: _EPOCH + timedelta(microseconds=self._random.randrange(2**47)),
        }
        return draw[name]()


def _single(value: float) -> float:
    """The nearest float32 value."""
    number: float = struct.unpack("f", struct.pack("f", value))[0]
    return number


def arrow_type(kind: Kind, records: dict[str, pa.DataType] | None = None) -> pa.DataType:
    """The Arrow type of a type of a parsed Avro schema, by the rules of Spark."""
    records = {} if records is None else records
    if isinstance(kind, list):
        return arrow_type(next(each for each in kind if each != "null"), records)
    if isinstance(kind, str):
        return records[kind] if kind in records else _ARROW[kind]
    if kind["type"] == "record":
        fields = [(field["name"], arrow_type(field["type"], records)) for field in kind["fields"]]
        records[kind["name"]] = pa.struct(fields)
        return records[kind["name"]]
    if kind["type"] == "array":
        return pa.list_(arrow_type(kind["items"], records))
    return _ARROW[kind.get("logicalType", kind["type"])]
