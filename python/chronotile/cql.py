"""Any table of a Cassandra or ScyllaDB cluster, as Arrow.

>>> import chronotile as ct
>>> with ct.cql("cassandra://127.0.0.1/survey?consistency=ONE") as session:  # doctest: +SKIP
...     bright = session.query("SELECT id, mag FROM stars WHERE field = ?", [17]).to_pandas()
...     table = session.table("survey", "stars").to_arrow()
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence, Set
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from ipaddress import IPv4Address, IPv6Address
from typing import Any, Literal
from uuid import UUID

from chronotile import _native
from chronotile.closing import Closing
from chronotile.errors import InvalidInputError
from chronotile.result import ReadResult

__all__ = ["CqlSession", "Parameters", "cql"]

Parameters = Sequence[Any] | Mapping[str, Any]
"""Values of bind markers: in order, or by name."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = _EPOCH.date().toordinal()


def cql(url: str) -> CqlSession:
    """Connect to a cluster, to run statements on any of its tables.

    Parameters
    ----------
    url : str
        ``cassandra://[USER@]HOST[:PORT][,HOST...][/KEYSPACE][?NAME=VALUE&...]``. Table names without a keyspace refer
        to this one. Parameters are those of an archive URL, among them ``consistency``, ``dc``, ``timeout_s``, ``tls``,
        ``ca``, ``password_file``.

    Raises
    ------
    UnavailableError
        No node answers.
    AccessDeniedError
        The login or a certificate is rejected.
    InvalidInputError
        The URL is invalid, or the keyspace does not exist.
    """
    return CqlSession(_native.CqlSession.connect(url), url)


class CqlSession(Closing):
    """Connections to a cluster. Returned by :func:`cql`; a context manager. Thread-safe, but not usable after a fork.
    Reads return a :class:`~chronotile.ReadResult`, like those of an archive: rows are fetched page by page while they
    are read, in bounded memory.

    Options shared by :meth:`query` and :meth:`table`:

    consistency : str, optional
        ``ONE``, ``QUORUM``, ``LOCAL_QUORUM``, ...; by default that of the URL.
    timeout_s : float, optional
        Timeout of a page in seconds, including retries, 1 to 3600; by default that of the URL.
    page_bytes : int, optional
        Target size of a page, 1 KiB to 64 MiB; 2 MiB by default. The number of rows per page is adapted to it.
    decimal : "text" or (precision, scale)
        Type for ``decimal`` columns, whose values each have their own scale. Text keeps all digits; a value that does
        not fit precision and scale exactly is an error.
    varint : "text", "int64" or "decimal"
        Type for ``varint`` columns: text, 64 bits, or 76 decimal digits. A value that does not fit is an error.
    uuid : "bytes" or "text"
        16 bytes of Arrow's extension type ``arrow.uuid``, or 36 characters.
    duration : "interval" or "text"
        Arrow's interval of months, days and nanoseconds, which polars and Parquet files lack, or CQL's ``1mo2d3ns``.
    """

    def __init__(self, native: _native.CqlSession, url: str) -> None:
        self._native = native
        self._url = url

    def __repr__(self) -> str:
        return f"<CqlSession {self._url}{' (closed)' if self._native.closed else ''}>"

    @property
    def url(self) -> str:
        """The URL that the session was opened with."""
        return self._url

    @property
    def closed(self) -> bool:
        """Whether the session is closed."""
        return self._native.closed

    def close(self) -> None:
        """Close the connections. Results that are being read can be read to the end. Closing twice has no effect."""
        self._native.close()

    def query(
        self,
        statement: str,
        parameters: Parameters = (),
        *,
        consistency: str | None = None,
        timeout_s: float | None = None,
        page_bytes: int | None = None,
        decimal: Literal["text"] | tuple[int, int] = "text",
        varint: Literal["text", "int64", "decimal"] = "text",
        uuid: Literal["bytes", "text"] = "bytes",
        duration: Literal["interval", "text"] = "interval",
    ) -> ReadResult:
        """Run a statement that returns rows, and stream the rows.

        Rows are in the cluster's order. The first page is fetched before this returns; each next page is fetched while
        one is read. Options not described here are those of the class.

        Parameters
        ----------
        statement : str
            CQL with bind markers ``?`` or ``:name``.
        parameters : sequence or mapping
            Values in order, or by name (a ``?`` has the name of its column). They are converted to the markers' types
            without truncation; only a float for a ``float`` column is rounded. Times without a time zone are UTC.
            ``None`` is null.

        Raises
        ------
        InvalidInputError
            The cluster rejects the statement or a value, which the message names; or the statement returns no rows and
            is not run.
        UnavailableError, AccessDeniedError, BusyError
            The cluster is unavailable, denies access, or did not answer in time.
        """
        options = _Options(consistency, timeout_s, page_bytes, decimal, varint, uuid, duration)
        return ReadResult(self._native.query(statement, _bound(parameters), options))

    def table(
        self,
        keyspace: str,
        table: str,
        *,
        columns: Iterable[str] | None = None,
        where: str | None = None,
        parameters: Parameters = (),
        ranges: int | None = None,
        concurrency: int | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        consistency: str | None = None,
        timeout_s: float | None = None,
        page_bytes: int | None = None,
        decimal: Literal["text"] | tuple[int, int] = "text",
        varint: Literal["text", "int64", "decimal"] = "text",
        uuid: Literal["bytes", "text"] = "bytes",
        duration: Literal["interval", "text"] = "interval",
    ) -> ReadResult:
        """Read a whole table by token ranges, many at once, each from its replicas.

        The order of rows is undefined. Options not described here are those of the class.

        Parameters
        ----------
        keyspace, table : str
            Names as stored: case-sensitive and unquoted.
        columns : iterable of str, optional
            Columns to return, in this order; all by default.
        where : str, optional
            CQL condition, which the nodes check on every row (``ALLOW FILTERING``): ``"mag < ? AND band = 'g'"``.
        parameters : sequence or mapping
            Values of bind markers in `where`.
        ranges : int, optional
            Smallest number of ranges to split the ring into; eight times `concurrency` by default.
        concurrency : int, optional
            Ranges read concurrently, 1 to 256; two per node by default.
        checkpoint : path, optional
            File that records the progress of the scan. If it exists, the scan resumes where an earlier one stopped, in
            this process or another. Requesting the next batch marks the previous one as processed, so only the last
            batch of an interrupted scan is returned again. Iterate over :meth:`~chronotile.ReadResult.batches`, and
            store each batch before you request the next. A finished scan returns no rows until the file is removed.
            Only one scan may use a file at a time.

        Raises
        ------
        InvalidInputError
            The table does not exist, the condition is invalid, or the checkpoint belongs to another scan.
        UnavailableError, AccessDeniedError, BusyError
            The cluster is unavailable, denies access, or did not answer in time.
        """
        options = _Options(consistency, timeout_s, page_bytes, decimal, varint, uuid, duration)
        names = None if columns is None else [columns] if isinstance(columns, str) else list(columns)
        path = None if checkpoint is None else os.fspath(checkpoint)
        native = self._native.table(
            keyspace, table, names, where, _bound(parameters), ranges, concurrency, path, options
        )
        return ReadResult(native)

    def execute(
        self,
        statement: str,
        parameters: Parameters = (),
        *,
        idempotent: bool = False,
        consistency: str | None = None,
        timeout_s: float | None = None,
    ) -> ReadResult | None:
        """Run a statement that changes data or the schema.

        ``CREATE``, ``ALTER`` and ``DROP`` return once all live nodes agree on the schema.

        Parameters
        ----------
        statement, parameters
            As in :meth:`query`.
        idempotent : bool
            Whether running the statement twice equals running it once. If so, it is also retried after an unknown
            outcome.

        Returns
        -------
        ReadResult or None
            Rows, for statements that return some, such as ``[applied]`` of a conditional write.

        Raises
        ------
        OutcomeUnknownError
            The statement may or may not have taken effect.
        InvalidInputError, UnavailableError, AccessDeniedError, BusyError
            The statement had no effect.
        """
        options = _Options(consistency, timeout_s, None, "text", "text", "bytes", "interval")
        native = self._native.execute(statement, _bound(parameters), idempotent, options)
        return None if native is None else ReadResult(native)


class _Options:
    """Options that the native module reads as attributes."""

    __slots__ = ("consistency", "decimal", "duration", "page_bytes", "timeout_s", "uuid", "varint")

    def __init__(
        self,
        consistency: str | None,
        timeout_s: float | None,
        page_bytes: int | None,
        decimal: str | tuple[int, int],
        varint: str,
        uuid: str,
        duration: str,
    ) -> None:
        if decimal != "text" and not (isinstance(decimal, tuple) and len(decimal) == 2):
            raise InvalidInputError(
                f'invalid decimal={decimal!r}: use "text" or (precision, scale)', kind="invalid-setting"
            )
        self.consistency = consistency
        self.timeout_s = timeout_s
        self.page_bytes = page_bytes
        self.decimal = None if decimal == "text" else decimal
        self.varint = varint
        self.uuid = uuid
        self.duration = duration


def _bound(parameters: Parameters) -> tuple[bool, list[Any]]:
    """Return whether the values are named, and the values in the forms that the native module accepts."""
    if isinstance(parameters, Mapping):
        return True, [(name, _plain(value, name)) for name, value in parameters.items()]
    if isinstance(parameters, (str, bytes)) or not isinstance(parameters, Iterable):
        raise InvalidInputError(
            f"invalid parameters {parameters!r}: give a sequence, such as [5] for one value", kind="invalid-parameter"
        )
    return False, [_plain(value, str(place)) for place, value in enumerate(parameters, 1)]


def _plain(value: Any, name: str) -> Any:
    """Convert to None, bool, int, float, str, bytes, or a tuple that starts with its type."""
    match value:
        case None | bool() | int() | float() | str() | bytes():
            return value
        case Decimal():
            return _decimal(value, name)
        case UUID():
            return "uuid", value.bytes
        case IPv4Address() | IPv6Address():
            return str(value)
        case datetime():
            aware = value if value.tzinfo else value.replace(tzinfo=UTC)
            microseconds = (aware - _EPOCH) // timedelta(microseconds=1)
            if microseconds % 1000:
                raise InvalidInputError(
                    f"parameter {name}: {value} has microseconds, but CQL timestamps have milliseconds: round it",
                    kind="invalid-parameter",
                )
            return "timestamp", microseconds // 1000
        case date():
            return "date", value.toordinal() - _EPOCH_DAY
        case time():
            seconds = (value.hour * 60 + value.minute) * 60 + value.second
            return "time", (seconds * 1_000_000 + value.microsecond) * 1_000
        case timedelta():
            return "duration", 0, 0, value // timedelta(microseconds=1) * 1_000
        case bytearray() | memoryview():
            return bytes(value)
        case Mapping():
            return "pairs", [(_plain(key, name), _plain(mapped, name)) for key, mapped in value.items()]
        case Set() | Sequence():
            return "list", [_plain(element, name) for element in value]
    return _foreign(value, name)


def _decimal(value: Decimal, name: str) -> Any:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise InvalidInputError(f"parameter {name}: CQL has no number {value}", kind="invalid-parameter")
    unscaled = int("".join(map(str, digits)) or "0")
    return "decimal", -unscaled if sign else unscaled, -exponent


def _foreign(value: Any, name: str) -> Any:
    """Convert scalars and arrays of numpy and pandas, recognized by their methods."""
    if getattr(getattr(value, "dtype", None), "kind", None) in ("M", "m"):
        # `item()` of a numpy time in nanoseconds returns a plain integer.
        value = value.astype("datetime64[us]" if value.dtype.kind == "M" else "timedelta64[us]")
    for method in ("item", "tolist"):
        convert = getattr(value, method, None)
        if convert is not None and (method == "tolist" or getattr(value, "ndim", 0) == 0):
            return _plain(convert(), name)
    raise InvalidInputError(
        f"parameter {name}: CQL has no type for {type(value).__name__}: give None, bool, int, float, "
        "Decimal, str, bytes, datetime, date, time, timedelta, UUID, an IP address, or a list, set or dict "
        "of them",
        kind="invalid-parameter",
    )
