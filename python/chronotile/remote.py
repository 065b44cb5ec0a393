"""Archives on the other side of HTTP: how a service is asked, and the methods of
:class:`chronotile.historian.Historian`, served elsewhere."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import threading
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, timedelta
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote, urlencode, urlsplit

from chronotile import _native, historian, inputs, times
from chronotile.errors import (
    AccessDeniedError,
    ArchiveNotFoundError,
    BatchConflictError,
    BatchNotFoundError,
    BusyError,
    ChronotileError,
    ClosedError,
    DamagedError,
    DatasetNotFoundError,
    InvalidInputError,
    OutcomeUnknownError,
    ReadOnlyError,
    StorageFullError,
    TagNotFoundError,
    UnavailableError,
)
from chronotile.historian import BufferedWriter, MaintainReport, PointsReport, Tag, TagKey
from chronotile.predicates import Where, listed
from chronotile.result import ReadResult
from chronotile.urls import without_password

__all__ = ["Remote", "RemoteHistorian"]

_ARROW = "application/vnd.apache.arrow.stream"

_TAGS_AT_ONCE = 100
"""Tags named in one request."""

_Parameters = list[tuple[str, str]]

_BY_KIND: dict[str, type[ChronotileError]] = {
    "tag-not-found": TagNotFoundError,
    "dataset-not-found": DatasetNotFoundError,
    "batch-not-found": BatchNotFoundError,
    "quota-exceeded": BusyError,
    "cluster-unavailable": UnavailableError,
    "not-ready": UnavailableError,
    "outcome-unknown": OutcomeUnknownError,
    "cancelled": OutcomeUnknownError,
    "storage-full": StorageFullError,
    "read-only": ReadOnlyError,
    "archive-moved": ArchiveNotFoundError,
    "damaged-chunk": DamagedError,
    "damaged-catalog": DamagedError,
    "damaged-archive": DamagedError,
    "engine-denied": AccessDeniedError,
}
_BY_STATUS: dict[int, type[ChronotileError]] = {
    400: InvalidInputError,
    401: AccessDeniedError,
    403: AccessDeniedError,
    404: InvalidInputError,
    408: BusyError,
    409: BatchConflictError,
    413: InvalidInputError,
    415: InvalidInputError,
    429: BusyError,
    503: BusyError,
    504: BusyError,
}


class Remote:
    """A service, and how it is asked. A context manager. Safe to use from many threads, each of which has a connection
    of its own.

    Parameters
    ----------
    url : str
        Such as ``http://127.0.0.1:8086``.
    token : str, optional
        By default the environment variable ``CHRONOTILE_TOKEN``.
    ca : path, optional
        Certificates to trust, PEM, instead of those of the system.
    timeout : float
        Seconds to wait for the service at each step.
    """

    def __init__(self, url: str, token: str | None, ca: str | os.PathLike[str] | None, timeout: float) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidInputError(
                f"{without_password(url)!r} is no address of a service: write one such as http://127.0.0.1:8086",
                kind="invalid-url",
            )
        if "@" in parts.netloc:
            raise InvalidInputError(
                f"{without_password(url)!r} has a user, whom a service does not know: give token, or set the "
                "environment variable CHRONOTILE_TOKEN",
                kind="invalid-url",
            )
        self.url = url.rstrip("/")
        self._host, self._port = parts.hostname, parts.port
        self._prefix = parts.path.rstrip("/")
        self._timeout = timeout
        self._token = token if token is not None else os.environ.get("CHRONOTILE_TOKEN")
        self._tls = _tls(ca) if parts.scheme == "https" else None
        self._local = threading.local()
        self._closed = False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}{' (closed)' if self._closed else ''}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close this thread's connection, and take no more work."""
        self._closed = True
        self._drop()

    # ------------------------------------------------------------------ HTTP

    def _json(
        self,
        method: str,
        path: str,
        parameters: _Parameters | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
    ) -> Any:
        answer = self._ask(method, path, parameters or [], body, content_type, "application/json")
        with _broken_off(method):
            text = answer.read()
        return json.loads(text) if text else None

    def _stream(self, path: str, parameters: _Parameters) -> ReadResult:
        answer = self._ask("GET", path, parameters, None, "", _ARROW)
        # The stream is read while other requests are made: it keeps the connection for itself.
        connection, self._local.connection = self._local.connection, None
        return ReadResult(_native.read_arrow_stream(_Answer(answer, connection)))

    def _ask(
        self, method: str, path: str, parameters: _Parameters, body: bytes | None, content_type: str, accept: str
    ) -> http.client.HTTPResponse:
        if self._closed:
            raise ClosedError("the connection was closed: connect again", kind="closed")
        target = f"{self._prefix}{path}" + (f"?{urlencode(parameters)}" if parameters else "")
        headers = {"Accept": accept} | ({} if body is None else {"Content-Type": content_type})
        headers |= {"Authorization": f"Bearer {self._token}"} if self._token else {}
        # Whether the service may have the request, whose answer then did not come.
        may_be_done = False
        for connection, is_new in self._connections():
            try:
                if connection.sock is None:
                    connection.connect()
            except ssl.SSLCertVerificationError as error:
                self._drop()
                raise AccessDeniedError(f"{self.url}: {error.verify_message}", kind="certificate") from None
            except (OSError, http.client.HTTPException) as error:
                self._drop()
                raise _unreached(self.url, error, may_be_done) from None
            try:
                answer = _exchange(connection, method, target, body, headers)
            except (OSError, http.client.HTTPException) as error:
                self._drop()
                may_be_done = method != "GET"
                # A connection that was kept may have been closed meanwhile. All requests may be repeated.
                if not is_new and not isinstance(error, TimeoutError):
                    continue
                raise _unreached(self.url, error, may_be_done) from None
            if answer.status < 300:
                return answer
            raise self._failure(answer, method)
        raise AssertionError("a new connection either answers or fails")

    def _connections(self) -> Iterator[tuple[http.client.HTTPConnection, bool]]:
        kept: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if kept is not None:
            yield kept, False
        connection: http.client.HTTPConnection
        if self._tls is None:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)
        else:
            connection = http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout, context=self._tls)
        self._local.connection = connection
        yield connection, True

    def _drop(self) -> None:
        kept: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if kept is not None:
            kept.close()
            self._local.connection = None

    def _failure(self, answer: http.client.HTTPResponse, method: str) -> ChronotileError:
        with _broken_off(method):
            text = answer.read()
        try:
            error = dict(json.loads(text)["error"])
        except (ValueError, KeyError, TypeError):
            if method != "GET" and answer.status >= 500:
                return OutcomeUnknownError(
                    f"{self.url} answered {answer.status} {answer.reason} in place of the service, which may have done "
                    "what was asked: repeat the request",
                    kind="outcome-unknown",
                )
            return UnavailableError(
                f"{self.url} answered {answer.status} {answer.reason}, which is no answer of `chronotile "
                "serve`: look at the address",
                kind="no-service",
            )
        kind, message = error.pop("kind"), error.pop("message")
        if kind == "token-missing":
            # The service speaks of headers, which are not the caller's to send.
            message = f"{self.url} wants a token: give token, or set the environment variable CHRONOTILE_TOKEN"
        fallback = _BY_STATUS.get(answer.status, ChronotileError)
        return _BY_KIND.get(kind, fallback)(message, kind=kind, **error)


class _Filtering:
    """Points to a service, with the deviations of their tags applied before they are sent.

    Definitions are asked for when a tag is first seen, and kept.
    """

    def __init__(self, remote: RemoteHistorian) -> None:
        self._remote = remote
        self._known = historian.open("memory:")
        self._seen: set[TagKey] = set()

    def _filtered(self, filter_: _native.PointFilter, rows: Any) -> list[_native.Table]:
        points = _native.Table.of(rows)
        unseen = [key for key in _native.tags_of_points(points) if key not in self._seen]
        for first in range(0, len(unseen), _TAGS_AT_ONCE):
            keys = unseen[first : first + _TAGS_AT_ONCE]
            self._known.define_many(self._remote.resolved(keys))
            self._seen.update(keys)
        return self._known._filtered(filter_, points)

    def write(self, points: Any) -> PointsReport:
        return self._remote.write(points)


class RemoteHistorian(Remote):
    """Tags and their values, behind a service. Made by :func:`chronotile.historian.connect`; a context manager.

    Arguments, results and errors are those of :class:`chronotile.historian.Historian`. Ranges are streamed. Safe to use
    from many threads; each has a connection of its own.
    """

    # ------------------------------------------------------------------ tags

    def define(self, name: str, **properties: Any) -> Tag:
        """Define a tag, or change it. Needs a token with the role ``admin`` where tokens are needed."""
        return self.define_many([{"name": name, **properties}])[0]

    def define_many(self, tags: Iterable[Mapping[str, Any] | Tag]) -> list[Tag]:
        """Define tags, all or none."""
        given = [vars(tag) if isinstance(tag, Tag) else dict(tag) for tag in tags]
        return _tags(self._json("POST", "/v1/tags", body=json.dumps({"tags": given}).encode()))

    def tag(self, tag: TagKey) -> Tag:
        """A tag by name or number."""
        return self.resolved([tag])[0]

    def resolved(self, tags: Iterable[TagKey]) -> list[Tag]:
        """Tags by name or number, in their order."""
        return _tags(self._json("GET", "/v1/tags", _keys(tags)))

    def tags(self, pattern: str = "*", *, limit: int | None = None) -> list[Tag]:
        """The tags whose names fit `pattern`, by name: ``*`` stands for any characters, ``?`` for one."""
        count = str(2**63 - 1 if limit is None else limit)
        return _tags(self._json("GET", "/v1/tags", [("match", pattern), ("limit", count)]))

    def refresh(self) -> None:
        """Nothing to do: definitions are kept by the service, which looks for changes by itself."""

    # ------------------------------------------------------------------ points in

    def write(
        self, points: Any, *, batch: str | None = None, replace: bool = False, not_finite: str = "refuse"
    ) -> PointsReport:
        """Store points. They are durable when this returns. `points` is what
        :meth:`chronotile.historian.Historian.write` takes; without `batch` each table of an iterator
        whose columns differ from the one before is a write of its own."""
        rows = inputs.rows(historian._timed(points), historian._POINT_TYPES)
        streams = _native.arrow_streams(rows)
        if batch is not None and len(streams) > 1:
            raise InvalidInputError(
                "a batch goes over HTTP as one table: give all its points the same columns", kind="invalid-rows"
            )
        parameters = [("not_finite", not_finite), ("replace", str(replace).lower())]
        parameters += [] if batch is None else [("batch", batch)]
        total = PointsReport(0, 0, False)
        for stream in streams:
            done = self._json("POST", "/v1/points", parameters, stream, _ARROW)
            total = PointsReport(
                total.points + done["points"], total.duplicates + done["duplicates"], total.stored or done["stored"]
            )
        return total

    def buffered(self, *, points: int = 50_000, seconds: float = 5.0) -> BufferedWriter:
        """A writer that collects points and sends them together, those that the deviations of their tags leave."""
        return BufferedWriter(_Filtering(self), points, seconds)

    def delete(self, tag: TagKey, start: times.Moment, end: times.Moment) -> int:
        """Delete a tag's points in ``[start, end)``; gives their number."""
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
        self, tags: TagKey | Iterable[TagKey], moments: Iterable[times.Moment], *, stepped: bool | None = None
    ) -> Any:
        """The values of tags at given times, interpolated between their neighbours."""
        parameters = [("time", str(historian._ns(moment, "a time"))) for moment in moments]
        return self._table("/v1/at", tags, parameters + _given(stepped=stepped))

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
        settings = _given(
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
        """About `points` of a tag's points that show its course."""
        shape = [*_range(start, end), ("points", str(points)), ("method", method)]
        return self._table("/v1/plot", [tag], shape)

    # ------------------------------------------------------------------ annotations, retention, order

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
        """Set the age past which :meth:`retire` drops the points of a group; None keeps them for ever."""
        text = None if retention is None else times.duration_text(retention, "retention")
        self._json("PUT", f"/v1/groups/{quote(group, safe='')}", body=json.dumps({"retention": text}).encode())

    def retire(self, group: str, *, dry_run: bool = False) -> int:
        """Drop what is older than the group's retention; gives the number of points."""
        path = f"/v1/groups/{quote(group, safe='')}/retire"
        return int(self._json("POST", path, _given(dry_run=dry_run))["points"])

    def maintain(self) -> MaintainReport:
        """Join small chunks into large ones, and keep statistics of hours."""
        report = self._json("POST", "/v1/maintain")
        return MaintainReport(**{**report, "failed": tuple(report.get("failed", ()))})

    # ------------------------------------------------------------------ requests

    def _table(self, path: str, tags: TagKey | Iterable[TagKey], parameters: _Parameters) -> Any:
        return historian._Result(self._rows(path, tags, parameters)._native.collect())

    def _rows(self, path: str, tags: TagKey | Iterable[TagKey], parameters: _Parameters) -> ReadResult:
        return self._stream(path, _keys(tags) + parameters)


class _broken_off:  # noqa: N801 (used as a statement)
    """Says of an answer that ended too early what to do."""

    def __init__(self, method: str) -> None:
        self._method = method

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, OSError | http.client.HTTPException):
            return
        if self._method != "GET":
            raise OutcomeUnknownError(
                "the answer broke off before its end, and what was asked may have been done: repeat the request",
                kind="outcome-unknown",
            ) from None
        raise UnavailableError(
            "the answer broke off before its end: its request took too long, or had too many rows, or the service "
            "has gone; ask for less, or repeat it",
            kind="broken-off",
        ) from None


class _Answer:
    """The body of an answer, for the reader of Arrow streams; its connection ends with it."""

    def __init__(self, answer: http.client.HTTPResponse, connection: http.client.HTTPConnection) -> None:
        self._answer, self._connection = answer, connection

    def __del__(self) -> None:
        self._answer.close()
        self._connection.close()

    def read(self, count: int) -> bytes:
        with _broken_off("GET"):
            return self._answer.read(count)


def _exchange(
    connection: http.client.HTTPConnection, method: str, target: str, body: bytes | None, headers: dict[str, str]
) -> http.client.HTTPResponse:
    """Send a request and get the head of its answer, also where the service answers before it has the whole body."""
    try:
        connection.request(method, target, body, headers)
    except (BrokenPipeError, ConnectionResetError) as error:
        try:
            return connection.getresponse()
        except (OSError, http.client.HTTPException):
            raise error from None
    return connection.getresponse()


def _unreached(url: str, error: Exception, may_be_done: bool) -> ChronotileError:
    if isinstance(error, TimeoutError) and may_be_done:
        return OutcomeUnknownError(f"{url} did not answer in time: repeat the request", kind="timed-out")
    if may_be_done:
        return OutcomeUnknownError(
            f"{url} went away before it answered, and may have done what was asked: repeat the request "
            f"({_said(error)})",
            kind="outcome-unknown",
        )
    return UnavailableError(f"nobody answers at {url}: {_said(error)}", kind="no-service")


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__


def _tls(ca: str | os.PathLike[str] | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=None if ca is None else os.fspath(ca))
    except (OSError, ssl.SSLError) as error:
        raise InvalidInputError(f"{ca} holds no certificates: {error}", kind="invalid-setting") from None


def _keys(tags: TagKey | Iterable[TagKey]) -> _Parameters:
    return [("tag", key) if isinstance(key, str) else ("number", str(key)) for key in historian._keys(tags)]


def _range(start: times.Moment, end: times.Moment) -> _Parameters:
    return [("start", str(historian._ns(start, "start"))), ("end", str(historian._ns(end, "end")))]


def _given(**settings: Any) -> _Parameters:
    text = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in settings.items()}
    return [(name, text[name]) for name, value in settings.items() if value is not None]


def question_words(
    start: times.Moment, end: times.Moment, where: Where, equal: Mapping[str, Any],
    tick_ns: int | None = None,
) -> _Parameters:  # fmt: skip
    """Period and conditions of a question to events or jobs; whole numbers as times are ticks of so many ns."""
    words = [(name, _moment_text(value, name, tick_ns)) for name, value in (("start", start), ("end", end))
             if value is not None]  # fmt: skip
    conditions = listed(where)
    for column, value in equal.items():
        several = isinstance(value, Iterable) and not isinstance(value, str | bytes)
        conditions.append((column, "in" if several else "==", value))
    for condition in conditions:
        try:
            words.append(("where", json.dumps(list(condition), default=_plain)))
        except TypeError as error:
            raise InvalidInputError(f"{condition!r} does not go over HTTP: {error}", kind="invalid-request") from None
    return words


def _moment_text(value: times.Moment, what: str, tick_ns: int | None) -> str:
    unit, number = times.moment(value, times.TimeAxis("time"), what)
    if unit == "ticks" and tick_ns is None:
        raise InvalidInputError(
            f"{what} is {value!r}: give a datetime or ISO 8601 text, which need no unit", kind="invalid-time"
        )
    seconds, rest_ns = divmod(int(number) * (1 if unit == "utc_ns" else tick_ns or 1), 10**9)
    try:
        whole = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    except OverflowError:
        raise InvalidInputError(f"{what} is {value!r}: give a time from 1677 to 2262", kind="invalid-time") from None
    return f"{whole:%Y-%m-%dT%H:%M:%S}.{rest_ns:09}Z"


def _plain(value: Any) -> Any:
    """A constant of a condition as JSON has it."""
    if hasattr(value, "to_pylist"):
        return value.to_pylist()
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, date | datetime):
        return value.isoformat()
    if isinstance(value, Iterable) and not isinstance(value, bytes):
        return list(value)
    raise TypeError(f"a {type(value).__name__} has no form in JSON")


def list_words(name: str, values: str | Iterable[str] | None) -> _Parameters:
    """Names joined by commas, where there are any."""
    return [] if values is None else [(name, values if isinstance(values, str) else ",".join(values))]


def _tags(answer: Any) -> list[Tag]:
    return [Tag(**tag) for tag in answer["tags"]]
