"""Client for jobs of a service."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from chronotile import times
from chronotile.predicates import Condition
from chronotile.remote import Parameters, RemoteNamed, list_words, question_words
from chronotile.result import ReadResult

__all__ = ["RemoteJobs", "connect"]


def connect(
    url: str, name: str = "jobs", *, token: str | None = None, ca: str | os.PathLike[str] | None = None,
    timeout: float = 60.0,
) -> RemoteJobs:  # fmt: skip
    """Connect to an archive of jobs served by ``chronotile serve``.

    Parameters
    ----------
    url : str
        Such as ``http://127.0.0.1:8086``.
    name : str
        The archive of jobs.
    token, ca, timeout
        As for :func:`chronotile.historian.connect`.
    """
    return RemoteJobs(url, name, token, ca, timeout)


class RemoteJobs(RemoteNamed):
    """Finished jobs at a service. Returned by :func:`connect`; a context manager.

    Arguments, results and errors are those of :class:`chronotile.jobs.Jobs`; times are datetimes or texts. Thread-safe;
    each thread has its own connection.
    """

    def __init__(
        self, url: str, name: str, token: str | None, ca: str | os.PathLike[str] | None, timeout: float
    ) -> None:
        super().__init__("jobs", name, _question, url, token, ca, timeout)

    def get(self, ids: Any, *, columns: Iterable[str] | None = None, history: bool = False) -> ReadResult:
        """Jobs by id, whenever they ran: a few dozen per call, because the ids are part of the URL."""
        wanted = ids.tolist() if hasattr(ids, "tolist") else ids.to_pylist() if hasattr(ids, "to_pylist") else ids
        listed = wanted if isinstance(wanted, Iterable) else [wanted]
        words = [("id", str(id)) for id in listed]
        return self._stream(self._path, [*words, *_rows(columns, history)])

    def find(self, *, columns: Iterable[str] | None = None, history: bool = False, **question: Any) -> ReadResult:
        """Jobs by period and condition, as a stream."""
        return self._stream(self._path, [*_rows(columns, history), *self._question(**question)])

    def group_by(
        self, columns: str | Iterable[str], *, aggregates: Mapping[str, str | Iterable[str]] | None = None,
        **question: Any,
    ) -> pa.Table:  # fmt: skip
        """Jobs by the values of columns, the most frequent first."""
        words = list_words("by", columns)
        for column, given in (aggregates or {}).items():
            words += [
                ("aggregate", f"{function}({column})") for function in ([given] if isinstance(given, str) else given)
            ]
        return self._stream(f"{self._path}/group", words + self._question(**question)).to_arrow()

    def explain(self, *, by: str | Iterable[str] | None = None, **question: Any) -> dict[str, Any]:
        """How a search uses an index, or with `by` (perhaps empty) how a count does: the fields of
        :class:`chronotile.reports.IndexUse`, and ``summary``."""
        found: dict[str, Any] = self._json(
            "GET", f"{self._path}/explain", list_words("by", by) + self._question(**question)
        )
        return found


def _question(
    *,
    start: times.Moment = None,
    end: times.Moment = None,
    days: Any = None,
    where: Condition | Iterable[Condition] | None = None,
    **equal: Any,
) -> Parameters:
    words = question_words(start, end, where, equal)
    if days is None:
        return words
    several = isinstance(days, tuple | list)
    return [*words, ("days", ",".join(map(str, days)) if several else str(days))]


def _rows(columns: Iterable[str] | None, history: bool) -> Parameters:
    return [("history", str(history).lower()), *list_words("columns", columns)]
