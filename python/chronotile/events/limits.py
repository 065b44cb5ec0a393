"""The guard against streams that flood."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping

from chronotile.errors import BusyError
from chronotile.events.settings import Limits

__all__ = ["FloodGuard"]

STREAMS_MAX = 100_000
"""Streams that are counted at a time. Each takes about half a kilobyte for the length of a period."""


class FloodGuard:
    """Counts what each stream sent in the last period, in this process. Streams that have sent nothing since are
    forgotten. Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The stream that has been silent longest comes first.
        self._sent: dict[str, deque[tuple[float, int, int]]] = {}

    def __len__(self) -> int:
        """Streams that are counted now."""
        return len(self._sent)

    def admit(self, sent: Mapping[str, tuple[int, int]], limits: Limits, what: str) -> None:
        """Count documents and bytes by stream; all of them or, where one stream is over its limit, none.

        Raises
        ------
        BusyError
            Kind ``quota-exceeded``; ``details`` has ``stream``, ``documents``, ``bytes``, ``limit`` and
            ``retry_after_s``, which is None where the call alone is more than a stream may send in a period. Also where
            more than 100,000 streams send within a period.
        """
        if limits.documents_per_s is None and limits.bytes_per_s is None:
            return
        with self._lock:
            now = time.monotonic()
            self._forget(now - limits.period_s)
            self._check_streams(sent, limits, what)
            for stream, (documents, size) in sent.items():
                self._check(stream, documents, size, limits, now, what)
            for stream, (documents, size) in sent.items():
                entries = self._sent.pop(stream, None) or deque()
                entries.append((now, documents, size))
                self._sent[stream] = entries

    def _forget(self, before: float) -> None:
        while self._sent:
            stream, entries = next(iter(self._sent.items()))
            if entries and entries[-1][0] > before:
                return
            del self._sent[stream]

    def _check_streams(self, sent: Mapping[str, tuple[int, int]], limits: Limits, what: str) -> None:
        new = sum(stream not in self._sent for stream in sent)
        if not new or len(self._sent) + new <= STREAMS_MAX:
            return
        alone = len(sent) > STREAMS_MAX
        advice = "send fewer streams at a time" if alone else f"send it again in {limits.period_s:.0f} s"
        raise BusyError(
            f"more than {STREAMS_MAX:,} streams within {limits.period_s:g} s, which are more than limits are kept for; "
            f"{what} refused, nothing of it was stored: {advice}",
            kind="quota-exceeded", streams=len(sent), limit=STREAMS_MAX,
            retry_after_s=None if alone else limits.period_s,
        )  # fmt: skip

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
