"""Exceptions of the laboratory.

=====================  ===========================  ==========================================================
class                  also a                       what to do
=====================  ===========================  ==========================================================
``LabError``           ``RuntimeError``             read the message: it says what is missing
``LabNotFoundError``   ``KeyError``                 correct the name of the cluster or the node
``LabExistsError``     ``ValueError``               take another name, or take that cluster down
``LabBusyError``       ``TimeoutError``             repeat: another command works on the same cluster
``LabTimeoutError``    ``TimeoutError``             look at the node's log; the machine may be too slow
``NodeFailedError``    ``RuntimeError``             read the node's own errors, which the message quotes
``MissingToolError``   ``FileNotFoundError``        install what the message names
=====================  ===========================  ==========================================================
"""

from __future__ import annotations

from typing import Any

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
    """Base of the laboratory's errors. Kinds of its own: ``lab-memory``, ``lab-network``, ``lab-state``,
    ``lab-command``, ``lab-fetch``, ``lab-cql``."""

    def __init__(self, message: str, *, kind: str = "lab-command", **details: Any) -> None:
        super().__init__(message, kind=kind, **details)


class LabNotFoundError(LabError, KeyError):
    """There is no such cluster or node. Kind ``lab-not-found``."""

    exit_code = 3

    def __init__(self, message: str, *, kind: str = "lab-not-found", **details: Any) -> None:
        super().__init__(message, kind=kind, **details)


class LabExistsError(LabError, ValueError):
    """A cluster of this name exists. Kind ``lab-exists``."""

    exit_code = 4

    def __init__(self, message: str, *, kind: str = "lab-exists", **details: Any) -> None:
        super().__init__(message, kind=kind, **details)


class LabBusyError(LabError, TimeoutError):
    """Another process works on the same cluster. Nothing was changed. Kind ``lab-busy``."""

    exit_code = 6

    def __init__(self, message: str, *, kind: str = "lab-busy", **details: Any) -> None:
        super().__init__(message, kind=kind, **details)


class LabTimeoutError(LabError, TimeoutError):
    """A node neither reached the expected state in time nor failed. Kind ``lab-timeout``."""

    exit_code = 6

    def __init__(self, message: str, *, kind: str = "lab-timeout", **details: Any) -> None:
        super().__init__(message, kind=kind, **details)


class NodeFailedError(LabError):
    """A node stopped unexpectedly. Kind ``lab-node-failed``.

    Attributes
    ----------
    node : str
        The node's name, for example ``"node2"``.
    log : str
        The node's last error lines, empty when it wrote none.
    """

    node: str
    log: str

    def __init__(self, message: str, *, kind: str = "lab-node-failed", **details: Any) -> None:
        super().__init__(message, kind=kind, **details)
        self.node = details.get("node", "")
        self.log = details.get("log", "")


class MissingToolError(LabError, FileNotFoundError):
    """A program the laboratory needs is not installed. Kind ``lab-missing-tool``."""

    def __init__(self, message: str, *, kind: str = "lab-missing-tool", **details: Any) -> None:
        super().__init__(message, kind=kind, **details)
