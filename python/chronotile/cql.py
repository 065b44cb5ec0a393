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
"""Values of a statement's markers: in order, or by name."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = _EPOCH.date().toordinal()


def cql(url: str) -> CqlSession:
    """Connect to a cluster, for statements on any of its tables.

    Parameters
    ----------
    url : str
        ``cassandra://[USER@]HOST[:PORT][,HOST...][/KEYSPACE][?NAME=VALUE&...]``. Table names without a keyspace mean
        this one. Settings are those of an archive's URL, among them ``consistency``, ``dc``, ``timeout_s``, ``tls``,
        ``ca``, ``password_file``.

    Raises
    ------
    UnavailableError
        No node answers.
    AccessDeniedError
        The login or a certificate is refused.
    InvalidInputError
        The URL says something that cannot be meant, or there is no such keyspace.
    """
    return CqlSession(_native.CqlSession.connect(url), url)


class CqlSession(Closing):
    """Connections to a cluster. Made by :func:`cql`; a context manager that closes itself.

    Safe to use from many threads. It does not survive a fork. What its reads return is the same stream as an archive's,
    :class:`~chronotile.ReadResult`: rows come page by page while they are drawn, in bounded memory.

    Options of reading, which :meth:`query` and :meth:`table` share:

    consistency : str, optional
        ``ONE``, ``QUORUM``, ``LOCAL_QUORUM``, ...; by default what the URL says.
    timeout_s : float, optional
        Seconds after which a page is given up, repetitions included, 1 to 3600; by default what the URL says.
    page_bytes : int, optional
        Bytes that a page should have, 1 KiB to 64 MiB; 2 MiB by default. The number of rows to ask for is learnt.
    decimal : "text" or (precision, scale)
        What ``decimal`` columns are read as, whose values each have a scale of their own. Text keeps all; a value that
        does not fit precision and scale exactly is an error.
    varint : "text", "int64" or "decimal"
        What ``varint`` columns are read as: text, or 64 bits, or 76 decimal digits. What does not fit is an error.
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
        """The URL it was opened with."""
        return self._url

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._native.closed

    def close(self) -> None:
        """Let the connections go. Results being drawn from end as they would. Closing twice does nothing."""
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
        """Run a statement that reads, and stream its rows.

        Rows come in the cluster's order. The first page has come when this returns; the next is fetched while one is
        drawn.

        Options that are not described here are those of the class.

        Parameters
        ----------
        statement : str
            CQL with ``?`` or ``:name`` where values belong.
        parameters : sequence or mapping
            The values, in order or by name (a ``?`` has the name of its column). They are converted to the types that
            the cluster says the markers have; nothing is cut or rounded but a float for a ``float`` column. Times
            without a time zone are UTC. ``None`` is a null.

        Raises
        ------
        InvalidInputError
            A statement or value the cluster does not take; the message names the value. A statement without rows: it is
            not run.
        UnavailableError, AccessDeniedError, BusyError
            The cluster cannot now, will not, or did not in time.
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
        """Read a whole table, many ranges of its tokens at once, each from nodes that have its rows.

        The order of rows is not defined.

        Options that are not described here are those of the class.

        Parameters
        ----------
        keyspace, table : str
            As stored: case matters, quotes are not written.
        columns : iterable of str, optional
            Columns to return, in this order; all by default.
        where : str, optional
            A condition in CQL, which the nodes check on every row (``ALLOW FILTERING``): ``"mag < ? AND band = 'g'"``.
        parameters : sequence or mapping
            Values of its markers.
        ranges : int, optional
            Least number of ranges the ring is cut into; eight times `concurrency` by default.
        concurrency : int, optional
            Ranges read at once, 1 to 256; two per node by default.
        checkpoint : path, optional
            A file that records how far the scan got. If it is there, the scan goes on where an earlier one ended, in
            this process or another. Asking for the next batch says that the one before has been dealt with: it is
            recorded and never handed out again. So of all that an interrupted scan handed out, only its last batch
            comes once more. Draw with :meth:`~chronotile.ReadResult.batches`, and keep each batch before you ask for
            the next. A finished scan gives no rows until the file is removed. One scan may use a file at a time.

        Raises
        ------
        InvalidInputError
            No such table, a condition the cluster does not take, or a checkpoint of another scan.
        UnavailableError, AccessDeniedError, BusyError
            The cluster cannot now, will not, or did not in time.
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
        """Run a statement that changes something.

        After ``CREATE``, ``ALTER`` and ``DROP`` it returns when all nodes that are up agree on the schema.

        Parameters
        ----------
        statement, parameters
            As in :meth:`query`.
        idempotent : bool
            Running it twice is the same as once. Then it is also repeated where the first time may have had its effect.

        Returns
        -------
        ReadResult or None
            Rows of the few statements that have some, as ``[applied]`` of a conditional write.

        Raises
        ------
        OutcomeUnknownError
            It may or may not have had its effect.
        InvalidInputError, UnavailableError, AccessDeniedError, BusyError
            It had none.
        """
        options = _Options(consistency, timeout_s, None, "text", "text", "bytes", "interval")
        native = self._native.execute(statement, _bound(parameters), idempotent, options)
        return None if native is None else ReadResult(native)


class _Options:
    """What the native side reads as attributes."""

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
            raise InvalidInputError(f'decimal is {decimal!r}: use "text" or (precision, scale)', kind="invalid-setting")
        self.consistency = consistency
        self.timeout_s = timeout_s
        self.page_bytes = page_bytes
        self.decimal = None if decimal == "text" else decimal
        self.varint = varint
        self.uuid = uuid
        self.duration = duration


def _bound(parameters: Parameters) -> tuple[bool, list[Any]]:
    """Whether the values have names, and the values in the few forms that the native side knows."""
    if isinstance(parameters, Mapping):
        return True, [(name, _plain(value, name)) for name, value in parameters.items()]
    if isinstance(parameters, (str, bytes)) or not isinstance(parameters, Iterable):
        raise InvalidInputError(
            f"parameters is {parameters!r}: give a sequence, [5] for one value", kind="invalid-parameter"
        )
    return False, [_plain(value, str(place)) for place, value in enumerate(parameters, 1)]


def _plain(value: Any, name: str) -> Any:
    """None, bool, int, float, str, bytes, or a tuple that begins with what it stands for."""
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
                    f"parameter {name}: {value} has microseconds and CQL's timestamps have milliseconds: round it",
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
        raise InvalidInputError(f"parameter {name}: {value} is no number that CQL has", kind="invalid-parameter")
    unscaled = int("".join(map(str, digits)) or "0")
    return "decimal", -unscaled if sign else unscaled, -exponent


def _foreign(value: Any, name: str) -> Any:
    """Scalars and arrays of numpy and pandas, known by their methods."""
    if getattr(getattr(value, "dtype", None), "kind", None) in ("M", "m"):
        # Its own item() gives a bare number for nanoseconds.
        value = value.astype("datetime64[us]" if value.dtype.kind == "M" else "timedelta64[us]")
    for method in ("item", "tolist"):
        convert = getattr(value, method, None)
        if convert is not None and (method == "tolist" or getattr(value, "ndim", 0) == 0):
            return _plain(convert(), name)
    raise InvalidInputError(
        f"parameter {name}: a {type(value).__name__} is nothing that CQL has: give None, bool, int, float, Decimal, "
        "str, bytes, datetime, date, time, timedelta, UUID, an IP address, or a list, set or dict of them",
        kind="invalid-parameter",
    )
