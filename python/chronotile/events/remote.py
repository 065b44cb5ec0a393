"""HTTP client of an archive of events."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa

from chronotile import times
from chronotile.predicates import Where
from chronotile.remote import Parameters, RemoteNamed, names_parameter, question_parameters

__all__ = ["RemoteEvents", "RemoteReport", "connect"]

_LINES = "application/x-ndjson"
_US_NS = 1_000


@dataclass(frozen=True)
class RemoteReport:
    """Report of an ingest by a service."""

    batch: str
    """Name of the stored batch."""
    stored: bool
    """Whether anything was stored; False if the same batch was already stored."""
    documents: int
    """Documents accepted."""
    duplicates: int
    """Documents that were already stored."""
    expired: int
    """Documents that were already older than their TTL: searches do not return them."""
    rejected: int
    """Rejected lines, which are stored as dead letters."""
    reasons: dict[str, int]
    """Rejected lines by reason."""
    errors: list[dict[str, Any]]
    """``line`` and ``reason`` of the first hundred of them."""


def connect(
    url: str, name: str = "events", *, token: str | None = None, ca: str | os.PathLike[str] | None = None,
    timeout: float = 60.0,
) -> RemoteEvents:  # fmt: skip
    """Connect to an archive of events that ``chronotile serve`` serves.

    Parameters
    ----------
    url : str
        Such as ``http://127.0.0.1:8086``.
    name : str
        Name of the archive.
    token, ca, timeout
        As for :func:`chronotile.historian.connect`.
    """
    return RemoteEvents(url, name, token, ca, timeout)


class RemoteEvents(RemoteNamed):
    """Documents of streams at a service. Returned by :func:`connect`; a context manager.

    Arguments, results and errors are those of :class:`chronotile.events.Events`. Thread-safe; each thread has its own
    connection.
    """

    _kind = "events"

    @staticmethod
    def _question(
        *, start: times.Moment = None, end: times.Moment = None, streams: str | Iterable[str] | None = None,
        where: Where = None, text: str | None = None, **equal: Any,
    ) -> Parameters:  # fmt: skip
        parameters = question_parameters(start, end, where, equal, _US_NS)
        parameters += [("stream", stream) for stream in ([streams] if isinstance(streams, str) else streams or ())]
        return parameters if text is None else [*parameters, ("text", text)]

    def ingest_lines(
        self,
        data: bytes | str,
        format: str = "ndjson",
        *,
        batch: str | None = None,
        source: str = "http",
        ttl: str | timedelta | None = None,
        **read_options: Any,
    ) -> RemoteReport:
        """Store lines of text. They are durable when this returns.

        Parameters
        ----------
        data : bytes or str
            Lines that end in newlines; the last newline is optional.
        format, **read_options
            As for :meth:`chronotile.events.Events.read_options`.
        batch : str, optional
            Batch name: repeating the same lines under the same name changes nothing. Unique by default.
        source : str
            Source of the lines, stored with each.
        ttl : str or timedelta, optional
            The documents' own TTL.

        Raises
        ------
        InvalidInputError
            Every line was rejected (kind ``invalid-rows``); they are stored as dead letters.
        BusyError
            A stream is over its limit (kind ``quota-exceeded``): nothing of the call was stored.
        BatchConflictError
            Other lines are stored under this name.
        """
        parameters = [("format", format), ("source", source), ("batch", batch or f"events:{uuid.uuid4().hex}")]
        parameters += [] if ttl is None else [("ttl", times.duration_text(ttl, "ttl"))]
        parameters += [(name, str(value)) for name, value in read_options.items() if value is not None]
        body = data.encode() if isinstance(data, str) else bytes(data)
        return RemoteReport(**self._json("POST", self._path, parameters, body, _LINES))

    def search(
        self,
        *,
        columns: Iterable[str] | None = None,
        limit: int = 100,
        newest_first: bool = True,
        **question: Any,
    ) -> pa.Table:
        """Documents sorted by time; at most 100,000."""
        parameters = [
            ("limit", str(limit)),
            ("oldest_first", str(not newest_first).lower()),
            *names_parameter("columns", columns),
        ]
        return self._stream(self._path, parameters + self._question(**question)).to_arrow()

    def histogram(self, interval: str | timedelta = "1h", *, by: str | Iterable[str] = (), **question: Any) -> pa.Table:
        """Count documents over time, in intervals counted from 1970: ``start``, the columns of `by`, ``count``."""
        parameters = [("interval", times.duration_text(interval, "interval")), *names_parameter("by", by)]
        return self._stream(f"{self._path}/histogram", parameters + self._question(**question)).to_arrow()

    def dead_letters(self, *, start: times.Moment = None, end: times.Moment = None, limit: int = 100) -> pa.Table:
        """Rejected lines, newest first; at most 100,000. ``record`` is text, in which invalid UTF-8 is replaced."""
        parameters = [("limit", str(limit)), *question_parameters(start, end, None, {}, _US_NS)]
        return self._stream(f"{self._path}/dead", parameters).to_arrow()
