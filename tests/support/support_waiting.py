"""Waiting for other processes and threads."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(holds: Callable[[], bool], what: str, seconds: float = 60, *, every_s: float = 0.02) -> None:
    """Poll until a condition holds; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        time.sleep(every_s)
