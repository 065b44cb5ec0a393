"""Validation of names in a backup. Others may be able to write to the store, so nothing from a manifest becomes part of
a path, command or statement without validation here.
"""

from __future__ import annotations

import re
from typing import Any

from chronotile.errors import InvalidInputError
from chronotile_tools.ops.procedures import statements
from chronotile_tools.ops.procedures.nodes import is_system

_PATTERNS = {
    "name of a backup": r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}",
    "keyspace": r"[A-Za-z0-9_]{1,48}",
    "table": r"[A-Za-z0-9_]{1,222}",
    "id of a table": r"[0-9a-f]{32}",
    "id of a node": r"[A-Za-z0-9][A-Za-z0-9-]{0,63}",
    "file of an SSTable": r"[a-z]{2}-[A-Za-z0-9_]{1,60}-(?:big|bti)-[A-Za-z0-9][A-Za-z0-9_.+-]{0,150}",
    "digest": r"[0-9a-f]{64}",
    "release": r"[0-9]{1,4}(?:\.[0-9]{1,6}){1,3}(?:[-~+][A-Za-z0-9.~+-]{0,40})?",
}
_COMPILED = {what: re.compile(pattern, re.ASCII) for what, pattern in _PATTERNS.items()}
_BYTES_MAX = 2**63 - 1


def is_valid(what: str, value: Any) -> bool:
    """Whether a value is a valid name of this kind."""
    return isinstance(value, str) and _COMPILED[what].fullmatch(value) is not None


def require(what: str, value: Any) -> None:
    """Check that a value is a valid name of this kind.

    Raises
    ------
    InvalidInputError
        Kind ``invalid-name``.
    """
    if not is_valid(what, value):
        raise InvalidInputError(f"{_shown(value)} is not a valid {what}", kind="invalid-name")


def require_keyspace(value: Any) -> None:
    """Check that a value is a valid user keyspace, not one of the cluster's own, which hold roles and schema.

    Raises
    ------
    InvalidInputError
        Kind ``invalid-name``.
    """
    require("keyspace", value)
    if is_system(value.lower()) or value.lower().startswith("dse_") or value == statements.KEYSPACE:
        raise InvalidInputError(
            f"{value} is one of the cluster's own keyspaces, which backups do not hold", kind="invalid-name"
        )


def require_text(*values: Any) -> None:
    """Check that values are printable text.

    Raises
    ------
    InvalidInputError
        Kind ``invalid-name``.
    """
    for value in values:
        if not isinstance(value, str) or not value.isprintable():
            raise InvalidInputError(f"{_shown(value)} is not a printable text", kind="invalid-name")


def require_count(*values: Any) -> None:
    """Check that values are non-negative whole numbers.

    Raises
    ------
    InvalidInputError
        Kind ``invalid-name``.
    """
    for value in values:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _BYTES_MAX:
            raise InvalidInputError(f"{_shown(value)} is not a number of bytes, files or copies", kind="invalid-name")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
