"""Watchdog that takes a cluster down when its owner process ends, even if that is killed.

Runs as a separate process, started by `begin`.
"""

from __future__ import annotations

import os
import sys
import time

from chronotile_tools.lab import processes, state
from chronotile_tools.lab.cluster import take_down
from chronotile_tools.lab.errors import LabBusyError, LabError, LabNotFoundError

_LOOK_S = 0.5
_TRIES_MAX = 10


_PROGRAM = "import sys; from chronotile_tools.lab import watch; watch.watch(sys.argv[1])"


def begin(name: str) -> None:
    """Start the watchdog process."""
    command = [sys.executable, "-c", _PROGRAM, name]
    processes.start(command, state.folder(name) / "watch.log", {**os.environ, "PYTHONWARNINGS": ""})


def watch(name: str) -> None:
    """Wait for the end of the cluster or of its owner; then take the cluster down."""
    owner = state.load(name).owner
    created = state.load(name).created_utc
    while owner is not None and owner.alive():
        time.sleep(_LOOK_S)
        if not _still_exists(name, created):
            return
    for _ in range(_TRIES_MAX):
        try:
            if owner is not None and _still_exists(name, created):
                take_down(name)
            return
        except LabBusyError:
            continue


def _still_exists(name: str, created: str) -> bool:
    """Whether the watched cluster still exists, rather than a new one of the same name."""
    try:
        return state.load(name).created_utc == created
    except LabNotFoundError:
        return False
    except LabError:
        return True
