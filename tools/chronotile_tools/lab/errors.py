"""Exceptions of the laboratory.

=====================  ===========================  ==========================================================
class                  also a                       what to do
=====================  ===========================  ==========================================================
``LabError``           ``RuntimeError``             read the message: it says what to correct
``LabNotFoundError``   ``KeyError``                 correct the name of the cluster or the node
``LabExistsError``     ``ValueError``               use another name, or take that cluster down
``LabBusyError``       ``TimeoutError``             repeat: another command works on the same cluster
``LabTimeoutError``    ``TimeoutError``             look at the node's log; the machine may be too slow
``NodeFailedError``    ``RuntimeError``             read the node's own errors, which the message quotes
``MissingToolError``   ``FileNotFoundError``        install what the message names
=====================  ===========================  ==========================================================
"""

from __future__ import annotations

from typing import Any, ClassVar

from chronotile.errors import ChronotileError

__all__ = [
    "LabBusyError",
    "LabError",
    "LabExistsError",
    "LabNotFoundError",
    "LabTimeoutError",
    "MissingToolError",
    "NodeFailedError",
]


class LabError(ChronotileError, RuntimeError):
    """Base of the laboratory's errors. Its own kinds: ``lab-memory``, ``lab-network``, ``lab-state``,
    ``lab-command``, ``lab-fetch``, ``lab-cql``."""

    default_kind: ClassVar[str] = "lab-command"

    def __init__(self, message: str, *, kind: str | None = None, **details: Any) -> None:
        super().__init__(message, kind=kind or self.default_kind, **details)


class LabNotFoundError(LabError, KeyError):
    """A cluster or node does not exist. Kind ``lab-not-found``."""

    exit_code = 3
    default_kind = "lab-not-found"


class LabExistsError(LabError, ValueError):
    """A cluster of this name exists. Kind ``lab-exists``."""

    exit_code = 4
    default_kind = "lab-exists"


class LabBusyError(LabError, TimeoutError):
    """Another process works on the same cluster. Nothing was changed. Kind ``lab-busy``."""

    exit_code = 6
    default_kind = "lab-busy"


class LabTimeoutError(LabError, TimeoutError):
    """A node neither reached the expected state in time nor failed. Kind ``lab-timeout``."""

    exit_code = 6
    default_kind = "lab-timeout"


class NodeFailedError(LabError):
    """A node stopped unexpectedly. Kind ``lab-node-failed``.

    Attributes
    ----------
    node : str
        The node's name, for example ``"node2"``.
    log : str
        The node's last error lines; empty if it wrote none.
    """

    node: str
    log: str
    default_kind = "lab-node-failed"

    def __init__(self, message: str, *, kind: str | None = None, **details: Any) -> None:
        super().__init__(message, kind=kind, **details)
        self.node = details.get("node", "")
        self.log = details.get("log", "")


class MissingToolError(LabError, FileNotFoundError):
    """A program that the laboratory needs is not installed. Kind ``lab-missing-tool``."""

    default_kind = "lab-missing-tool"
