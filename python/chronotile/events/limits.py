"""Rate limits of streams."""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections import deque
from collections.abc import Mapping

from chronotile.errors import BusyError
from chronotile.events.settings import Limits

__all__ = ["StreamRateLimiter"]

STREAMS_MAX = 100_000
"""Most streams counted at a time. Each takes about half a kilobyte for one period, however long its name is."""
_NAME_MAX = 64
"""Longer names are kept as a hash."""


class StreamRateLimiter:
    """Counts the documents and bytes of each stream in the last period, in this process. Silent streams are forgotten.
    Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By `_key`, ordered by time of the last document, oldest first.
        self._sent: dict[str | bytes, deque[tuple[float, int, int]]] = {}

    def __len__(self) -> int:
        """Number of streams being counted."""
        return len(self._sent)

    def admit(self, sent: Mapping[str, tuple[int, int]], limits: Limits, what: str) -> None:
        """Count documents and bytes by stream: all, or none if a stream exceeds its limit.

        Raises
        ------
        BusyError
            Kind ``quota-exceeded``; ``details`` has ``stream``, ``documents``, ``bytes``, ``limit`` and
            ``retry_after_s``, which is None if the call alone exceeds the limit of a period. Also raised if more than
            100,000 streams send within a period.
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
                key = _key(stream)
                # Inserting the stream again puts it last, which keeps the order that `_forget` relies on.
                entries = self._sent.pop(key, None) or deque()
                entries.append((now, documents, size))
                self._sent[key] = entries

    def _forget(self, before: float) -> None:
        while self._sent:
            key, entries = next(iter(self._sent.items()))
            if entries and entries[-1][0] > before:
                return
            del self._sent[key]

    def _check_streams(self, sent: Mapping[str, tuple[int, int]], limits: Limits, what: str) -> None:
        new = sum(_key(stream) not in self._sent for stream in sent)
        if not new or len(self._sent) + new <= STREAMS_MAX:
            return
        alone = len(sent) > STREAMS_MAX
        advice = "send fewer streams at a time" if alone else f"send it again in {math.ceil(limits.period_s)} s"
        raise BusyError(
            f"rate limits cover at most {STREAMS_MAX:,} streams within {limits.period_s:g} s; "
            f"{what} rejected and not stored: {advice}",
            kind="quota-exceeded", streams=len(sent), limit=STREAMS_MAX,
            retry_after_s=None if alone else limits.period_s,
        )  # fmt: skip

    def _check(self, stream: str, documents: int, size: int, limits: Limits, now: float, what: str) -> None:
        before = self._sent.get(_key(stream), deque())
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
                "this call alone exceeds the limit: send smaller parts, or raise the limit"
                if retry is None
                else f"send it again in {math.ceil(retry)} s"
            )
            raise BusyError(
                f"stream {stream!r} exceeds its limit of {allowed:,.0f} {unit} in {limits.period_s:g} s: "
                f"{used:,} were sent, {wanted:,} more came; {what} rejected and not stored: {advice}",
                kind="quota-exceeded", stream=stream, documents=documents, bytes=size, limit=allowed,
                retry_after_s=retry,
            )  # fmt: skip


def _key(stream: str) -> str | bytes:
    if len(stream) <= _NAME_MAX:
        return stream
    return hashlib.blake2b(stream.encode(errors="surrogatepass"), digest_size=16).digest()


def _free_in(before: deque[tuple[float, int, int]], place: int, excess: float, limits: Limits, now: float) -> float:
    """Seconds until enough of the earlier traffic has left the period."""
    freed = 0.0
    for entry in before:
        freed += entry[place]
        if freed >= excess:
            return max(entry[0] + limits.period_s - now, 0.0)
    return limits.period_s
