"""Exceptions of the tools, in addition to those of :mod:`chronotile.errors`.

========================  ========================  =============================================================
class                     also a                    what to do
========================  ========================  =============================================================
``NotFoundError``         ``FileNotFoundError``     correct the name or the place
``DamagedError``          ``chronotile`` 's own     use another backup, or look at the journal
``CqlError``              ``RuntimeError``          read the node's message
========================  ========================  =============================================================

Exceptions of the laboratory are in :mod:`chronotile_tools.lab.errors`.
"""

from __future__ import annotations

from typing import Any

from chronotile import errors
from chronotile.errors import ChronotileError

__all__ = ["KINDS", "CqlError", "DamagedError", "NotCqlError", "NotFoundError"]

KINDS = frozenset({
    "backup-not-found", "behind", "cluster-changed", "command-failed", "cql", "damaged-backup", "damaged-journal",
    "invalid-key", "invalid-name", "journal-not-found", "lab-busy", "lab-command", "lab-cql", "lab-exists", "lab-fetch",
    "lab-memory", "lab-missing-tool", "lab-network", "lab-node-failed", "lab-not-found", "lab-state", "lab-timeout",
    "lease-lost", "load-failed", "node-not-found", "not-confirmed", "not-cql", "operator-needed", "preview-failed",
    "refused", "removal-running", "repair-failed", "simulation-failed", "store-not-found", "tls-failed", "unfinished",
    "unsigned-backup",
})  # fmt: skip
"""Kinds of errors that only the tools raise; other kinds are those of :mod:`chronotile.errors`."""


class NotFoundError(ChronotileError, FileNotFoundError):
    """A backup (``backup-not-found``), store of backups (``store-not-found``), node of a backup (``node-not-found``) or
    journal (``journal-not-found``) does not exist."""

    exit_code = 3


class DamagedError(errors.DamagedError):
    """A backup (``damaged-backup``) or the journal of a procedure (``damaged-journal``) cannot be used."""


class CqlError(ChronotileError, RuntimeError):
    """A node refused a request. Kind ``cql``; ``details["code"]`` is the protocol's error code."""

    def __init__(self, message: str, *, kind: str = "cql", **details: Any) -> None:
        super().__init__(message, kind=kind, **details)

    @property
    def bad_credentials(self) -> bool:
        """Whether user or password were rejected."""
        return self.details.get("code") == 0x0100

    @property
    def unauthorized(self) -> bool:
        """Whether the user lacks a permission."""
        return self.details.get("code") == 0x2100


class NotCqlError(CqlError):
    """The port answers, but does not speak CQL. Kind ``not-cql``."""

    def __init__(self, message: str) -> None:
        super().__init__(message, kind="not-cql", code=None)
