"""Load targets with known behaviour, in a module that the load generator's processes can import."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from chronotile.errors import BusyError, UnavailableError
from chronotile_tools.load.recording import DONE, FAILED, Recording


@dataclass(frozen=True)
class Server:
    """Takes `service_s` for each operation, one at a time; operation number `stall_at` takes `stalled_s` instead."""

    service_s: float = 0.001
    stall_at: int = -1
    stalled_s: float = 0.0

    def connect(self) -> Connected:
        return Connected(self)


class Connected:
    def __init__(self, server: Server) -> None:
        self._server, self._lock = server, threading.Lock()

    def run(self, number: int) -> int:
        with self._lock:
            time.sleep(self._server.stalled_s if number == self._server.stall_at else self._server.service_s)
        return number

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Failing:
    """Every fifth operation times out, every seventh finds no node."""

    def connect(self) -> Failing:
        return self

    def run(self, number: int) -> int:
        if number % 5 == 0:
            time.sleep(0.02)
            raise BusyError("nobody answered", kind="busy")
        if number % 7 == 0:
            raise UnavailableError("no node", kind="no-node")
        return 1

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Broken:
    """Refuses connections if `how` is "refuses"; otherwise its operations raise an unexpected error."""

    how: str

    def connect(self) -> Broken:
        if self.how == "refuses":
            raise UnavailableError("no node answers", kind="no-node")
        return self

    def run(self, number: int) -> int:
        return 1 // (number - number)

    def close(self) -> None:
        pass


def recording_of(milliseconds: Any, *, failed: int = 0) -> Recording:
    """A recording of operations one second apart with these durations, of which the first `failed` failed."""
    times = (np.asarray(milliseconds, float) * 1e6).astype(np.int64)
    due = np.arange(len(times)) * 1_000_000_000
    zeros = np.zeros(len(times), np.int64)
    outcome = np.where(np.arange(len(times)) < failed, FAILED, DONE).astype(np.uint8)
    return Recording("work", due, due, due + times, outcome, zeros, zeros.astype(np.uint8), int(due[-1]) + 1, 1)
