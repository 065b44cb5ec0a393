"""Operations on archives of jobs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from chronotile import conditions, jobs
from chronotile.archive import Archive
from chronotile.errors import InvalidInputError
from chronotile.service.answers import Answer, as_json
from chronotile.service.opened import Opened
from chronotile.service.words import Words

__all__ = ["ServedJobs"]

_ROWS_MAX = 2**62


class ServedJobs:
    """All archives of jobs in an archive."""

    def __init__(self, archive: Archive) -> None:
        self._opened = Opened(lambda name: jobs.open(archive, name))

    @property
    def operations(self) -> dict[str, Callable[[str, Words, bytes], Answer]]:
        """What is served, by name."""
        return {
            "jobs.find": self._find,
            "jobs.count": self._count,
            "jobs.group": self._group,
            "jobs.explain": self._explain,
        }

    def _find(self, name: str, words: Words, _: bytes) -> Answer:
        found = self._opened.get(name)
        columns, history = words.names("columns"), words.flag("history")
        ids, question = words.numbers("id"), _question(found, words)
        if ids and any(question.values()):
            raise InvalidInputError(
                f"id cannot be combined with a period or where: omit them, or use where={found.id} in ...",
                kind="invalid-request",
            )
        if ids:
            rows = found.get(ids, columns=columns, history=history)
        else:
            rows = found.find(columns=columns, history=history, **question)
        limit = words.number("limit", 1, _ROWS_MAX)
        if limit is not None:
            rows._native.limit(limit)
        # The stream itself: its errors stay whole.
        return rows._native

    def _count(self, name: str, words: Words, _: bytes) -> Answer:
        found = self._opened.get(name)
        return as_json({"count": found.count(**_question(found, words))})

    def _group(self, name: str, words: Words, _: bytes) -> Answer:
        found = self._opened.get(name)
        by = words.names("by")
        if not by:
            raise InvalidInputError("by is empty: give one or more columns", kind="invalid-request")
        aggregates = conditions.aggregates(words.all("aggregate"))
        table = found.group_by(by, aggregates=aggregates, bounds=words.bounds, **_question(found, words))
        limit = words.number("limit", 1, _ROWS_MAX)
        return table if limit is None else table.slice(0, limit)

    def _explain(self, name: str, words: Words, _: bytes) -> Answer:
        found = self._opened.get(name)
        use = found.explain(by=words.names("by"), **_question(found, words))
        return as_json({**dataclasses.asdict(use), "summary": str(use)})


def _question(found: jobs.Jobs, words: Words) -> dict[str, Any]:
    return {
        "start": words.moment("start"),
        "end": words.moment("end"),
        "days": conditions.days(words.one("days")),
        "where": words.conditions(found.dataset.column_types),
    }
