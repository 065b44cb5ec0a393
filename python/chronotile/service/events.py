"""Handlers of requests to archives of events."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Any

import pyarrow as pa

from chronotile import events
from chronotile.archive import Archive
from chronotile.errors import InvalidInputError
from chronotile.events.guessing import guess
from chronotile.service.answers import Answer, as_json
from chronotile.service.opened import FrontEndCache
from chronotile.service.query_parameters import QueryParameters

__all__ = ["ServedEvents"]

DOCUMENTS_MAX = 100_000
"""Most documents of one response, which are sorted in memory."""

DOCUMENT_BYTES_MAX = 1 << 20
"""Largest document that a client may send, in bytes."""

ERRORS_MAX = 100
"""Most rejected lines that a report lists; it counts the others."""

_READING = ("pattern", "time_field", "time_format", "stream_field", "stream")


class ServedEvents:
    """Serves all archives of events in an archive. All requests share the limits of a stream."""

    def __init__(self, archive: Archive) -> None:
        self._opened = FrontEndCache(lambda name: events.open(archive, name))

    @property
    def operations(self) -> dict[str, Callable[[str, QueryParameters, bytes], Answer]]:
        """Handlers by operation."""
        return {
            "events.ingest": self._ingest,
            "events.search": self._search,
            "events.count": self._count,
            "events.histogram": self._histogram,
            "events.dead": self._dead,
        }

    def _ingest(self, name: str, parameters: QueryParameters, body: bytes) -> Answer:
        log = self._opened.get(name)
        options = {option: parameters.one(option) for option in _READING}
        read_options = log.read_options(
            parameters.one("format") or "ndjson", **options, year=parameters.number("year", 1970, 9999)
        )
        request = parameters.one("request_id")
        batch = parameters.one("batch") or (None if request is None else f"request:{request}")
        source = parameters.one("source")
        report = log.ingest_lines(
            body, read_options, batch=batch, source="http" if source is None else source, ttl=parameters.one("ttl"),
            line_bytes_max=DOCUMENT_BYTES_MAX,
        )  # fmt: skip
        if report.rejected and not report.documents:
            raise _all_rejected(report, read_options)
        stored = report.documents if report.stored else 0
        return as_json(report.to_dict(errors_max=ERRORS_MAX)), stored, report.rejected if report.stored else 0

    def _search(self, name: str, parameters: QueryParameters, _: bytes) -> Answer:
        log = self._opened.get(name)
        parts = log.search_parts(
            **_question(log, parameters), columns=parameters.names("columns"), limit=_limit(parameters),
            newest_first=not parameters.flag("oldest_first"), bounds=parameters.bounds,
        )  # fmt: skip
        # Errors occur with the first part, before the response begins.
        first = next(parts)
        batches = (batch for part in chain([first], parts) for batch in part.to_batches())
        return pa.RecordBatchReader.from_batches(first.schema, batches)

    def _count(self, name: str, parameters: QueryParameters, _: bytes) -> Answer:
        log = self._opened.get(name)
        return as_json({"count": log.count(**_question(log, parameters))})

    def _histogram(self, name: str, parameters: QueryParameters, _: bytes) -> Answer:
        log = self._opened.get(name)
        interval = parameters.one("interval")
        by = parameters.names("by") or []
        return log.histogram(
            "1h" if interval is None else interval, by=by, bounds=parameters.bounds, **_question(log, parameters)
        )

    def _dead(self, name: str, parameters: QueryParameters, _: bytes) -> Answer:
        log = self._opened.get(name)
        start, end = parameters.moment("start"), parameters.moment("end")
        found = log.dead_letters(start=start, end=end, limit=_limit(parameters), bounds=parameters.bounds)
        # Records are held three times: as bytes, as Python objects and as text.
        parameters.bounds.hold(5 * found.nbytes)
        texts = [record.decode(errors="replace") for record in found["record"].to_pylist()]
        return found.set_column(found.schema.get_field_index("record"), "record", pa.array(texts, pa.utf8()))


def _all_rejected(report: events.IngestReport, read_options: events.ReadOptions) -> InvalidInputError:
    """Error for a request whose lines were all rejected: with status 200, a sender would not notice and continue."""
    first, found = report.rejects[0], guess(report.rejects, read_options)
    settings = "" if found is None else "&".join(f"{name}={value}" for name, value in found.settings.items())
    hint = f". This looks like {found.what}: {settings}" if found else ""
    return InvalidInputError(
        f"no document stored: every line was rejected; the first is line {first.line}: {first.reason}{hint}",
        kind="invalid-rows", batch=report.batch, rejected=report.rejected, line=first.line, reason=first.reason,
    )  # fmt: skip


def _limit(parameters: QueryParameters) -> int:
    limit = parameters.number("limit", 1, DOCUMENTS_MAX)
    return 100 if limit is None else limit


def _question(log: events.Events, parameters: QueryParameters) -> dict[str, Any]:
    return {
        "start": parameters.moment("start"),
        "end": parameters.moment("end"),
        "streams": parameters.all("stream") or None,
        "where": parameters.conditions(log.dataset.column_types),
        "text": parameters.one("text"),
    }
