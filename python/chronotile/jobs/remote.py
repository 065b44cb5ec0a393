"""HTTP client of an archive of jobs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from chronotile import times
from chronotile.predicates import Where
from chronotile.remote import Parameters, RemoteNamed, names_parameter, question_parameters
from chronotile.result import ReadResult

__all__ = ["RemoteJobs", "connect"]


def connect(
    url: str, name: str = "jobs", *, token: str | None = None, ca: str | os.PathLike[str] | None = None,
    timeout: float = 60.0,
) -> RemoteJobs:  # fmt: skip
    """Connect to an archive of jobs that ``chronotile serve`` serves.

    Parameters
    ----------
    url : str
        Such as ``http://127.0.0.1:8086``.
    name : str
        Name of the archive.
    token, ca, timeout
        As for :func:`chronotile.historian.connect`.
    """
    return RemoteJobs(url, name, token, ca, timeout)


class RemoteJobs(RemoteNamed):
    """Finished jobs at a service. Returned by :func:`connect`; a context manager.

    Arguments, results and errors are those of :class:`chronotile.jobs.Jobs`; times are datetimes or texts. Thread-safe;
    each thread has its own connection.
    """

    _kind = "jobs"

    @staticmethod
    def _question(
        *, start: times.Moment = None, end: times.Moment = None, days: Any = None, where: Where = None, **equal: Any
    ) -> Parameters:  # fmt: skip
        parameters = question_parameters(start, end, where, equal)
        if days is None:
            return parameters
        several = isinstance(days, tuple | list)
        return [*parameters, ("days", ",".join(map(str, days)) if several else str(days))]

    def get(self, ids: Any, *, columns: Iterable[str] | None = None, history: bool = False) -> ReadResult:
        """Read jobs by id: a few dozen per call, because the ids are part of the URL."""
        wanted = ids.tolist() if hasattr(ids, "tolist") else ids.to_pylist() if hasattr(ids, "to_pylist") else ids
        listed = wanted if isinstance(wanted, Iterable) else [wanted]
        parameters = [("id", str(id)) for id in listed]
        return self._stream(self._path, [*parameters, *_rows(columns, history)])

    def find(self, *, columns: Iterable[str] | None = None, history: bool = False, **question: Any) -> ReadResult:
        """Stream jobs by period and condition."""
        return self._stream(self._path, [*_rows(columns, history), *self._question(**question)])

    def group_by(
        self, columns: str | Iterable[str], *, aggregates: Mapping[str, str | Iterable[str]] | None = None,
        **question: Any,
    ) -> pa.Table:  # fmt: skip
        """Count and aggregate jobs by the values of columns, the most frequent first."""
        parameters = names_parameter("by", columns)
        for column, functions in (aggregates or {}).items():
            several = [functions] if isinstance(functions, str) else functions
            parameters += [("aggregate", f"{function}({column})") for function in several]
        return self._stream(f"{self._path}/group", parameters + self._question(**question)).to_arrow()

    def explain(self, *, by: str | Iterable[str] | None = None, **question: Any) -> dict[str, Any]:
        """Explain how a search uses an index, or with `by` (may be empty), how a count does. Returns the fields of
        :class:`chronotile.reports.IndexUse`, and ``summary``."""
        found: dict[str, Any] = self._json(
            "GET", f"{self._path}/explain", names_parameter("by", by) + self._question(**question)
        )
        return found


def _rows(columns: Iterable[str] | None, history: bool) -> Parameters:
    return [("history", str(history).lower()), *names_parameter("columns", columns)]
