"""Responses of the handlers."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

__all__ = ["Answer", "as_json"]

Answer = bytes | tuple[bytes, int, int] | Any
"""JSON text; a JSON report with the numbers of stored documents and rejected lines; or rows with the Arrow PyCapsule
interface."""


def as_json(value: Any) -> bytes:
    """Convert a value or a dataclass to JSON text, with times in ISO 8601."""
    found = dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value
    text = json.dumps(found, default=_plain, separators=(",", ":"), ensure_ascii=False)
    return text.encode(errors="replace")


def _plain(value: Any) -> str:
    return str(value.isoformat()) if hasattr(value, "isoformat") else str(value)
