"""Client for a historian of a service; see :func:`chronotile.historian.connect`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import quote

from chronotile import _native, historian, inputs, times
from chronotile.errors import InvalidInputError
from chronotile.historian import BufferedWriter, MaintenanceReport, PointsReport, Tag, TagKey
from chronotile.remote import ARROW, Parameters, Remote, setting_parameters
from chronotile.result import ReadResult

__all__ = ["RemoteHistorian"]

_TAGS_AT_ONCE = 100
"""Most tags per request."""


class _RemoteFilter:
    """Filters points by the deviations of their tags before they are sent to a service.

    Definitions are requested when a tag is first seen, and cached.
    """

    def __init__(self, remote: RemoteHistorian) -> None:
        self._remote = remote
        self._definitions = historian.open("memory:")
        self._cached_keys: set[TagKey] = set()

    def _filtered(self, filter_: _native.PointFilter, rows: Any) -> list[_native.Table]:
        # The rows may be a stream, but are needed twice: for the tags that they name, and by the filter.
        points = _native.read_table(rows)
        missing = [key for key in _native.tags_of_points(points) if key not in self._cached_keys]
        for first in range(0, len(missing), _TAGS_AT_ONCE):
            keys = missing[first : first + _TAGS_AT_ONCE]
            self._definitions.define_many(self._remote.resolved(keys))
            self._cached_keys.update(keys)
        return self._definitions._filtered(filter_, points)

    def write(self, points: Any) -> PointsReport:
        return self._remote.write(points)


class RemoteHistorian(Remote):
    """Tags and their values at a service. Returned by :func:`chronotile.historian.connect`; a context manager.

    Arguments, results and errors are those of :class:`chronotile.historian.Historian`. Ranges are streamed.
    Thread-safe; each thread has its own connection.
    """

    # ------------------------------------------------------------------ tags

    def define(self, name: str, **properties: Any) -> Tag:
        """Define a tag, or change its definition. If the service uses tokens, this needs the role ``admin``."""
        return self.define_many([{"name": name, **properties}])[0]

    def define_many(self, tags: Iterable[Mapping[str, Any] | Tag]) -> list[Tag]:
        """Define tags, all or none."""
        definitions = [vars(tag) if isinstance(tag, Tag) else dict(tag) for tag in tags]
        return _tags(self._json("POST", "/v1/tags", body=json.dumps({"tags": definitions}).encode()))

    def tag(self, tag: TagKey) -> Tag:
        """Return a tag by name or number."""
        return self.resolved([tag])[0]

    def resolved(self, tags: Iterable[TagKey]) -> list[Tag]:
        """Tags by name or number, in their order."""
        return _tags(self._json("GET", "/v1/tags", _keys(tags)))

    def tags(self, pattern: str = "*", *, limit: int | None = None) -> list[Tag]:
        """Tags whose names match `pattern`, by name: ``*`` matches any characters, ``?`` one character."""
        count = str(2**63 - 1 if limit is None else limit)
        return _tags(self._json("GET", "/v1/tags", [("match", pattern), ("limit", count)]))

    def refresh(self) -> None:
        """Has no effect: the service caches definitions and checks for changes itself."""

    # ------------------------------------------------------------------ points in

    def write(
        self, points: Any, *, batch: str | None = None, replace: bool = False, not_finite: str = "refuse"
    ) -> PointsReport:
        """Store points. They are durable when this returns. `points` is what
        :meth:`chronotile.historian.Historian.write` takes; without `batch`, tables of an iterator are sent together as
        long as their columns are the same.
        """
        rows = inputs.rows(historian._point_columns(points), historian._POINT_TYPES)
        streams = _native.arrow_streams(rows)
        if batch is not None and len(streams) > 1:
            raise InvalidInputError("a named batch must have the same columns in all tables", kind="invalid-rows")
        parameters = [("not_finite", not_finite), ("replace", str(replace).lower())]
        parameters += [] if batch is None else [("batch", batch)]
        total = PointsReport(0, 0, False)
        for stream in streams:
            done = self._json("POST", "/v1/points", parameters, stream, ARROW)
            total = PointsReport(
                total.points + done["points"], total.duplicates + done["duplicates"], total.stored or done["stored"]
            )
        return total

    def buffered(self, *, points: int = 50_000, seconds: float = 5.0) -> BufferedWriter:
        """Return a writer that collects points, filters them by their tags' deviations, and sends them together."""
        return BufferedWriter(_RemoteFilter(self), points, seconds)

    def delete(self, tag: TagKey, start: times.Moment, end: times.Moment) -> int:
        """Delete a tag's points in ``[start, end)``; return their number."""
        return int(self._json("DELETE", "/v1/points", [*_keys([tag]), *_range(start, end)])["deleted"])

    # ------------------------------------------------------------------ points out

    def raw(
        self, tags: TagKey | Iterable[TagKey], start: times.Moment, end: times.Moment, *, bounds: bool = False
    ) -> ReadResult:
        """The points of tags in ``[start, end)``, by tag as given, then time: columns tag, time, value, status."""
        return self._rows("/v1/points", tags, [*_range(start, end), ("bounds", str(bounds).lower())])

    def latest(self, tags: TagKey | Iterable[TagKey]) -> Any:
        """The newest point of each tag."""
        return self._table("/v1/latest", tags, [])

    def at(
        self, tags: TagKey | Iterable[TagKey], moments: times.Moment | Iterable[times.Moment], *,
        stepped: bool | None = None,
    ) -> Any:  # fmt: skip
        """The values of tags at given times, interpolated between their neighbours."""
        parameters = [("time", str(historian._ns(moment, "a time"))) for moment in historian._moments(moments)]
        return self._table("/v1/at", tags, parameters + setting_parameters(stepped=stepped))

    def aggregate(
        self,
        tags: TagKey | Iterable[TagKey],
        start: times.Moment,
        end: times.Moment,
        interval: str | timedelta | int | None,
        aggregate: str,
        *,
        stepped: bool | None = None,
        treat_uncertain_as_bad: bool | None = None,
        percent_good: float | None = None,
        percent_bad: float | None = None,
        sloped_extrapolation: bool | None = None,
        percent: float = 50.0,
        rules: str = "samples",
        points_only: bool = False,
    ) -> ReadResult:
        """An aggregate of tags for each interval of ``[start, end)``, as
        :meth:`chronotile.historian.Historian.aggregate`."""
        width = 0 if interval is None else times.duration_ns(interval, "interval")
        settings = setting_parameters(
            stepped=stepped,
            treat_uncertain_as_bad=treat_uncertain_as_bad,
            percent_good=percent_good,
            percent_bad=percent_bad,
            sloped_extrapolation=sloped_extrapolation,
            percent=percent,
            rules=rules,
            points_only=points_only,
        )
        shape = [*_range(start, end), ("interval", str(width)), ("aggregate", aggregate)]
        return self._rows("/v1/aggregate", tags, shape + settings)

    def plot(
        self, tag: TagKey, start: times.Moment, end: times.Moment, *, points: int = 1_000, method: str = "minmax"
    ) -> Any:
        """Reduce a tag's points to about `points` for a plot."""
        shape = [*_range(start, end), ("points", str(points)), ("method", method)]
        return self._table("/v1/plot", [tag], shape)

    # ------------------------------------------------------------------ annotations, retention, maintenance

    def annotate(self, tag: TagKey, time: times.Moment, text: str, *, author: str = "") -> None:
        """Add an annotation at a time of a tag."""
        name = tag if isinstance(tag, str) else self.tag(tag).name
        note = {"tag": name, "time": historian._ns(time, "time"), "text": text, "author": author}
        self._json("POST", "/v1/annotations", body=json.dumps(note).encode())

    def annotations(self, tags: TagKey | Iterable[TagKey], start: times.Moment, end: times.Moment) -> ReadResult:
        """The annotations of tags in ``[start, end)``: columns tag (number), time, entered, author, text."""
        return self._rows("/v1/annotations", tags, _range(start, end))

    def groups(self) -> list[str]:
        """Groups of tags that have points."""
        return list(self._json("GET", "/v1/groups")["groups"])

    def set_retention(self, group: str, retention: str | timedelta | None) -> None:
        """Set the age past which :meth:`retire` drops the points of a group; None keeps them forever."""
        text = None if retention is None else times.duration_text(retention, "retention")
        self._json("PUT", f"/v1/groups/{quote(group, safe='')}", body=json.dumps({"retention": text}).encode())

    def retire(self, group: str, *, dry_run: bool = False) -> int:
        """Drop points older than the group's retention; return their number."""
        path = f"/v1/groups/{quote(group, safe='')}/retire"
        return int(self._json("POST", path, setting_parameters(dry_run=dry_run))["points"])

    def maintain(self) -> MaintenanceReport:
        """Merge small chunks, and compute hourly statistics."""
        report = self._json("POST", "/v1/maintain")
        return MaintenanceReport(**{**report, "failed": tuple(report.get("failed", ()))})

    # ------------------------------------------------------------------ requests

    def _table(self, path: str, tags: TagKey | Iterable[TagKey], parameters: Parameters) -> Any:
        return historian._Result(self._rows(path, tags, parameters)._native.collect())

    def _rows(self, path: str, tags: TagKey | Iterable[TagKey], parameters: Parameters) -> ReadResult:
        return self._stream(path, _keys(tags) + parameters)


def _keys(tags: TagKey | Iterable[TagKey]) -> Parameters:
    return [("tag", key) if isinstance(key, str) else ("number", str(key)) for key in historian._keys(tags)]


def _range(start: times.Moment, end: times.Moment) -> Parameters:
    return [("start", str(historian._ns(start, "start"))), ("end", str(historian._ns(end, "end")))]


def _tags(answer: Any) -> list[Tag]:
    return [Tag(**tag) for tag in answer["tags"]]
