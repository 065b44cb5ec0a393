"""Handlers of requests to archives of jobs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from chronotile import conditions, jobs
from chronotile.archive import Archive
from chronotile.errors import InvalidInputError
from chronotile.service.answers import Answer, as_json
from chronotile.service.opened import FrontEndCache
from chronotile.service.query_parameters import QueryParameters

__all__ = ["ServedJobs"]

_ROWS_MAX = 2**62


class ServedJobs:
    """Serves all archives of jobs in an archive."""

    def __init__(self, archive: Archive) -> None:
        self._opened = FrontEndCache(lambda name: jobs.open(archive, name))

    @property
    def operations(self) -> dict[str, Callable[[str, QueryParameters, bytes], Answer]]:
        """Handlers by operation."""
        return {
            "jobs.find": self._find,
            "jobs.count": self._count,
            "jobs.group": self._group,
            "jobs.explain": self._explain,
        }

    def _find(self, name: str, parameters: QueryParameters, _: bytes) -> Answer:
        found = self._opened.get(name)
        columns, history = parameters.names("columns"), parameters.flag("history")
        ids, question = parameters.numbers("id"), _question(found, parameters)
        if ids and any(question.values()):
            raise InvalidInputError(
                f"id cannot be combined with a period or where: omit them, or use where={found.id} in ...",
                kind="invalid-request",
            )
        if ids:
            rows = found.get(ids, columns=columns, history=history)
        else:
            rows = found.find(columns=columns, history=history, **question)
        limit = parameters.number("limit", 1, _ROWS_MAX)
        if limit is not None:
            rows._native.limit(limit)
        # Return the native stream, which keeps the fields of its errors.
        return rows._native

    def _count(self, name: str, parameters: QueryParameters, _: bytes) -> Answer:
        found = self._opened.get(name)
        return as_json({"count": found.count(**_question(found, parameters))})

    def _group(self, name: str, parameters: QueryParameters, _: bytes) -> Answer:
        found = self._opened.get(name)
        by = parameters.names("by")
        if not by:
            raise InvalidInputError("by is empty: give one or more columns", kind="invalid-request")
        aggregates = conditions.aggregates(parameters.all("aggregate"))
        table = found.group_by(by, aggregates=aggregates, bounds=parameters.bounds, **_question(found, parameters))
        limit = parameters.number("limit", 1, _ROWS_MAX)
        return table if limit is None else table.slice(0, limit)

    def _explain(self, name: str, parameters: QueryParameters, _: bytes) -> Answer:
        found = self._opened.get(name)
        use = found.explain(by=parameters.names("by"), **_question(found, parameters))
        return as_json({**dataclasses.asdict(use), "summary": str(use)})


def _question(found: jobs.Jobs, parameters: QueryParameters) -> dict[str, Any]:
    return {
        "start": parameters.moment("start"),
        "end": parameters.moment("end"),
        "days": conditions.days(parameters.one("days")),
        "where": parameters.conditions(found.dataset.column_types),
    }
