"""HTTP client of a service."""

from __future__ import annotations

import http.client
import io
import json
import os
import ssl
import threading
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from typing import Any, ClassVar
from urllib.parse import quote, urlencode, urlsplit

from chronotile import _native, errors, times
from chronotile.closing import Closing
from chronotile.errors import (
    AccessDeniedError,
    BusyError,
    ChronotileError,
    ClosedError,
    InvalidInputError,
    OutcomeUnknownError,
    UnavailableError,
)
from chronotile.predicates import Where, equalities, listed
from chronotile.result import ReadResult
from chronotile.urls import without_password

__all__ = [
    "ARROW", "Parameters", "Remote", "RemoteNamed", "names_parameter", "question_parameters", "setting_parameters",
]  # fmt: skip

ARROW = "application/vnd.apache.arrow.stream"
"""Media type of rows in requests and responses."""

Parameters = list[tuple[str, str]]
"""Names and values of query parameters, in order."""

_WHOLE_BYTES_MAX = 4 << 20
"""Responses of known length up to this are received at once, which frees the connection for the next request."""

_BY_KIND: dict[str, type[ChronotileError]] = {
    kind: getattr(errors, name) for kind, name in _native.error_kinds().items()
}
_BY_STATUS: dict[int, type[ChronotileError]] = {429: BusyError, 503: BusyError, 504: BusyError}
"""Error classes by status, for error kinds unknown to this release; other statuses below 500: InvalidInputError."""


class Remote(Closing):
    """Client of a service; a context manager. Thread-safe; each thread has its own connection.

    Parameters
    ----------
    url : str
        URL of the service, such as ``http://127.0.0.1:8086``.
    token : str, optional
        Token; by default the environment variable ``CHRONOTILE_TOKEN``.
    ca : path, optional
        PEM file of certificates to trust instead of the system's.
    timeout : float
        Timeout of each network operation in seconds.
    """

    def __init__(self, url: str, token: str | None, ca: str | os.PathLike[str] | None, timeout: float) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidInputError(
                f"{without_password(url)!r} is not a service URL: write one such as http://127.0.0.1:8086",
                kind="invalid-url",
            )
        if "@" in parts.netloc:
            raise InvalidInputError(
                f"{without_password(url)!r} contains a user, but a service uses tokens: pass token, or set "
                "the environment variable CHRONOTILE_TOKEN",
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

    def close(self) -> None:
        """Close this thread's connection; further requests raise an error."""
        self._closed = True
        self._drop()

    # ------------------------------------------------------------------ HTTP

    def _json(
        self,
        method: str,
        path: str,
        parameters: Parameters | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
    ) -> Any:
        answer = self._request(method, path, parameters or [], body, content_type, "application/json")
        text = self._read(answer, method)
        return json.loads(text) if text else None

    def _stream(self, path: str, parameters: Parameters) -> ReadResult:
        answer = self._request("GET", path, parameters, None, "", ARROW)
        if answer.length is not None and answer.length <= _WHOLE_BYTES_MAX:
            return ReadResult(_native.read_arrow_stream(io.BytesIO(self._read(answer, "GET"))))
        # The stream keeps this connection: other requests, which may come while it is read, get a new one.
        connection, self._local.connection = self._local.connection, None
        return ReadResult(_native.read_arrow_stream(_Answer(answer, connection)))

    def _request(
        self, method: str, path: str, parameters: Parameters, body: bytes | None, content_type: str, accept: str
    ) -> http.client.HTTPResponse:
        if self._closed:
            raise ClosedError("the connection was closed: connect again", kind="closed")
        target = f"{self._prefix}{path}" + (f"?{urlencode(parameters)}" if parameters else "")
        headers = {"Accept": accept} | ({} if body is None else {"Content-Type": content_type})
        headers |= {"Authorization": f"Bearer {self._token}"} if self._token else {}
        # Whether the service may have executed a request whose response never arrived.
        may_be_done = False
        for connection, is_new in self._connections():
            try:
                # Connect separately: an error of this step means that the request was not sent.
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
                # The service may have closed a reused connection. All requests are safe to repeat.
                if not is_new and not isinstance(error, TimeoutError):
                    continue
                raise _unreached(self.url, error, may_be_done) from None
            if answer.status < 300:
                return answer
            raise self._failure(answer, method)
        raise AssertionError("a new connection either answers or fails")

    def _read(self, answer: http.client.HTTPResponse, method: str) -> bytes:
        try:
            with _complete(method):
                return answer.read()
        except BaseException:
            # The rest of the response may still arrive on the connection.
            answer.close()
            self._drop()
            raise

    def _connections(self) -> Iterator[tuple[http.client.HTTPConnection, bool]]:
        kept: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if kept is not None:
            yield kept, False
        connection: http.client.HTTPConnection
        if self._tls is None:
            connection = _HTTPConnection(self._host, self._port, timeout=self._timeout)
        else:
            connection = _HTTPSConnection(self._host, self._port, timeout=self._timeout, context=self._tls)
        self._local.connection = connection
        yield connection, True

    def _drop(self) -> None:
        kept: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if kept is not None:
            kept.close()
            self._local.connection = None

    def _failure(self, answer: http.client.HTTPResponse, method: str) -> ChronotileError:
        text = self._read(answer, method)
        try:
            error = dict(json.loads(text)["error"])
        except (ValueError, KeyError, TypeError):
            if method != "GET" and answer.status >= 500:
                return OutcomeUnknownError(
                    f"{self.url} answered {answer.status} {answer.reason} in place of the service, which "
                    "may have executed the request: repeat it",
                    kind="outcome-unknown",
                )
            return UnavailableError(
                f"{self.url} answered {answer.status} {answer.reason}, which is not an answer of "
                "`chronotile serve`: check the URL",
                kind="no-service",
            )
        kind, message = error.pop("kind"), error.pop("message")
        if kind == "token-missing":
            # The service's message names HTTP headers, which callers of this class do not set.
            message = f"{self.url} requires a token: pass token, or set the environment variable CHRONOTILE_TOKEN"
        fallback = _BY_STATUS.get(answer.status, InvalidInputError if answer.status < 500 else ChronotileError)
        return _BY_KIND.get(kind, fallback)(message, kind=kind, **error)


class RemoteNamed(Remote):
    """Client of one archive of events or jobs of a service.

    Parameters
    ----------
    name : str
        Name of the archive.
    url, token, ca, timeout
        As for :class:`Remote`.
    """

    _kind: ClassVar[str]
    """The archive's kind in the path of a URL: ``events`` or ``jobs``."""

    def __init__(
        self, url: str, name: str, token: str | None, ca: str | os.PathLike[str] | None, timeout: float
    ) -> None:
        super().__init__(url, token, ca, timeout)
        self._path = f"/v1/{self._kind}/{quote(name, safe='')}"

    @staticmethod
    @abstractmethod
    def _question(**question: Any) -> Parameters:
        """Convert the arguments of a question to query parameters."""

    def count(self, **question: Any) -> int:
        """Count the records that a question selects."""
        return int(self._json("GET", f"{self._path}/count", self._question(**question))["count"])


@contextmanager
def _complete(method: str) -> Iterator[None]:
    """Convert the error of a truncated response to one with a remedy."""
    try:
        yield
    except (OSError, http.client.HTTPException):
        if method != "GET":
            raise OutcomeUnknownError(
                "the answer was truncated, and the request may have been executed: repeat it", kind="outcome-unknown"
            ) from None
        raise UnavailableError(
            "the answer was truncated: the request took too long or had too many rows, or the service "
            "stopped; request less, or repeat it",
            kind="broken-off",
        ) from None


class _HTTPConnection(http.client.HTTPConnection):
    """A connection that is closed when the thread that uses it ends."""

    def __del__(self) -> None:
        self.close()


class _HTTPSConnection(_HTTPConnection, http.client.HTTPSConnection):
    """The same with TLS."""


class _Answer:
    """The body of a response, as a file for the reader of Arrow streams. Closes the connection at the end."""

    def __init__(self, answer: http.client.HTTPResponse, connection: http.client.HTTPConnection) -> None:
        self._answer, self._connection = answer, connection

    def __del__(self) -> None:
        self._close()

    def _close(self) -> None:
        self._answer.close()
        self._connection.close()

    def read(self, count: int) -> bytes:
        try:
            with _complete("GET"):
                return self._answer.read(count)
        except BaseException:
            # The error keeps this object alive.
            self._close()
            raise


def _exchange(
    connection: http.client.HTTPConnection, method: str, target: str, body: bytes | None, headers: dict[str, str]
) -> http.client.HTTPResponse:
    """Send a request and return the response, even if the service responds before it has read the whole body."""
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
        return OutcomeUnknownError(f"{url} did not answer in time: repeat the request", kind="outcome-unknown")
    if may_be_done:
        return OutcomeUnknownError(
            f"{url} disconnected before it answered, and may have executed the request: repeat it "
            f"({_error_text(error)})",
            kind="outcome-unknown",
        )
    return UnavailableError(f"no service answers at {url}: {_error_text(error)}", kind="no-service")


def _error_text(error: Exception) -> str:
    return str(error) or type(error).__name__


def _tls(ca: str | os.PathLike[str] | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=None if ca is None else os.fspath(ca))
    except (OSError, ssl.SSLError) as error:
        raise InvalidInputError(f"{ca} contains no certificates: {error}", kind="invalid-setting") from None


def setting_parameters(**settings: Any) -> Parameters:
    """Convert settings to query parameters; settings that are None are left out."""
    text = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in settings.items()}
    return [(name, text[name]) for name, value in settings.items() if value is not None]


def question_parameters(
    start: times.Moment, end: times.Moment, where: Where, equal: Mapping[str, Any],
    tick_ns: int | None = None,
) -> Parameters:  # fmt: skip
    """Convert a period and conditions to query parameters. Integer times are ticks of `tick_ns` nanoseconds."""
    parameters = [(name, _moment_text(value, name, tick_ns)) for name, value in (("start", start), ("end", end))
             if value is not None]  # fmt: skip
    for condition in listed(where) + equalities(equal):
        try:
            parameters.append(("where", json.dumps(list(condition), default=_plain)))
        except TypeError as error:
            raise InvalidInputError(f"{condition!r} does not go over HTTP: {error}", kind="invalid-request") from None
    return parameters


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
    """Convert a constant of a condition to a value of JSON."""
    if hasattr(value, "to_pylist"):
        return value.to_pylist()
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, date | datetime):
        return value.isoformat()
    if isinstance(value, Iterable) and not isinstance(value, bytes):
        return list(value)
    raise TypeError(f"a {type(value).__name__} cannot be converted to JSON")


def names_parameter(name: str, values: str | Iterable[str] | None) -> Parameters:
    """Convert names to one parameter, joined by commas; None to no parameter."""
    return [] if values is None else [(name, values if isinstance(values, str) else ",".join(values))]
