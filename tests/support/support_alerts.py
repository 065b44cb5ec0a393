"""Alerts of the ZTF as Avro packets."""

from __future__ import annotations

import io
from typing import Any

import pytest

FLOAT = ["null", "double"]
CANDIDATE: dict[str, Any] = {"type": "record", "name": "candidate", "fields": [
    {"name": "candid", "type": ["null", "long"]}, {"name": "pid", "type": "long"}, {"name": "jd", "type": "double"},
    {"name": "fid", "type": "int"}, *({"name": name, "type": FLOAT} for name in ("ra", "dec", "magpsf", "sigmapsf")),
    {"name": "isdiffpos", "type": ["null", "string"]},
]}  # fmt: skip
"""Schema of a detection."""

PACKET: dict[str, Any] = {"type": "record", "name": "alert", "fields": [
    {"name": "objectId", "type": "string"}, {"name": "candidate", "type": CANDIDATE},
    {"name": "prv_candidates", "type": ["null", {"type": "array", "items": "candidate"}]},
    {"name": "cutoutScience", "type": ["null", "bytes"]},
]}  # fmt: skip
"""Schema of an alert."""


def packets(count: int) -> list[dict[str, Any]]:
    """Alerts of this many stars."""
    return [
        {"objectId": f"ZTF18aaaaaa{chr(97 + n)}", "prv_candidates": None, "cutoutScience": b"an image", "candidate": {
            "candid": 10 + n, "pid": 1756139880615 + n * 10**10, "jd": 2_459_510.5 + n, "fid": 1, "ra": 150.0,
            "dec": 2.0 + n, "magpsf": 18.0, "sigmapsf": 0.1, "isdiffpos": "t",
        }} for n in range(count)
    ]  # fmt: skip


def container(some: list[dict[str, Any]]) -> bytes:
    """A container file of packets."""
    fastavro = pytest.importorskip("fastavro")
    buffer = io.BytesIO()
    fastavro.writer(buffer, fastavro.parse_schema(PACKET), some, codec="deflate")
    return buffer.getvalue()
