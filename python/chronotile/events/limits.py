"""The guard against streams that flood."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping

from chronotile.errors import BusyError
from chronotile.events.settings import Limits

__all__ = ["FloodGuard"]


class FloodGuard:
    """Counts what each stream sent in the last period, in this process. Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sent: dict[str, deque[tuple[float, int, int]]] = {}

    def admit(self, sent: Mapping[str, tuple[int, int]], limits: Limits, what: str) -> None:
        """Count documents and bytes by stream; all of them or, where one stream is over its limit, none.

        Raises
        ------
        BusyError
            Kind ``quota-exceeded``; ``details`` has ``stream``, ``documents``, ``bytes``, ``limit`` and
            ``retry_after_s``, which is None where the call alone is more than a stream may send in a period.
        """
        if limits.documents_per_s is None and limits.bytes_per_s is None:
            return
        with self._lock:
            now = time.monotonic()
            for stream, (documents, size) in sent.items():
                self._check(stream, documents, size, limits, now, what)
            for stream, (documents, size) in sent.items():
                self._sent.setdefault(stream, deque()).append((now, documents, size))

    def _check(self, stream: str, documents: int, size: int, limits: Limits, now: float, what: str) -> None:
        before = self._sent.get(stream, deque())
        while before and before[0][0] <= now - limits.period_s:
            before.popleft()
        for place, rate, wanted, unit in (
            (1, limits.documents_per_s, documents, "documents"), (2, limits.bytes_per_s, size, "bytes"),
        ):  # fmt: skip
            if rate is None:
                continue
            allowed = rate * limits.period_s
            used = sum(entry[place] for entry in before)
            if used + wanted <= allowed:
                continue
            retry = None if wanted > allowed else _free_in(before, place, used + wanted - allowed, limits, now)
            advice = (
                "that alone is more: send it in smaller parts, or raise the limit"
                if retry is None
                else f"send it again in {retry:.0f} s"
            )
            raise BusyError(
                f"stream {stream!r} is over its limit of {allowed:,.0f} {unit} in {limits.period_s:g} s with "
                f"{wanted:,} more after {used:,}; {what} refused, nothing of it was stored: {advice}",
                kind="quota-exceeded", stream=stream, documents=documents, bytes=size, limit=allowed,
                retry_after_s=retry,
            )  # fmt: skip


def _free_in(before: deque[tuple[float, int, int]], place: int, excess: float, limits: Limits, now: float) -> float:
    """Seconds until so much of what was sent before has left the period."""
    freed = 0.0
    for entry in before:
        freed += entry[place]
        if freed >= excess:
            return max(entry[0] + limits.period_s - now, 0.0)
    return limits.period_s
