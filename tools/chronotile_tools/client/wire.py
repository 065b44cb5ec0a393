"""A small client of Cassandra's native protocol, version 4: connect, log in and run statements.

It queries a single node, which a driver would not guarantee. Releases from 2.2 on support this version.
"""

from __future__ import annotations

import socket
import ssl
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass

from chronotile.closing import Closing
from chronotile_tools.client.values import Reader, read_type, text_of
from chronotile_tools.errors import CqlError, NotCqlError

_REQUEST, _HEADER = 0x04, struct.Struct(">BBhBi")
_ANSWERS = 0x81, 0x8F
"""Valid first bytes of an answer: the response bit and a protocol version."""
_ERROR, _STARTUP, _READY, _AUTHENTICATE, _OPTIONS, _SUPPORTED, _QUERY, _RESULT = 0, 1, 2, 3, 5, 6, 7, 8
_AUTH_RESPONSE, _AUTH_SUCCESS = 15, 16
_SCHEMA_CHANGE = 5
_AGREEMENT_SECONDS = 10
_BODY_BYTES_MAX = 256 * 1024 * 1024
_PAGE_ROWS = 1000
CONSISTENCIES = {
    name: number
    for number, name in enumerate(
        ["ANY", "ONE", "TWO", "THREE", "QUORUM", "ALL", "LOCAL_QUORUM", "EACH_QUORUM", "SERIAL", "LOCAL_SERIAL"]
        + ["LOCAL_ONE"]
    )
}


class SilentError(TimeoutError):
    """The port accepted the connection, but sent nothing."""


@dataclass(frozen=True)
class Rows:
    """Result of a statement."""

    columns: list[str]
    """Column names; empty when the statement returns no rows."""
    rows: list[list[str]]
    """Values as text, similar to cqlsh."""
    warnings: list[str]


class Connection(Closing):
    """A connection to one node. Not thread-safe."""

    def __init__(
        self,
        address: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        credentials: tuple[str, str] | None = None,
        timeout_s: float = 10,
    ) -> None:
        raw = socket.create_connection((address, port), timeout=timeout_s)
        try:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket: socket.socket = raw if tls is None else tls.wrap_socket(raw, server_hostname=address)
        except BaseException:
            raw.close()
            raise
        self._heard = False
        """Whether a complete CQL header was received."""
        try:
            self._greet(credentials)
        except BaseException as error:
            self.close()
            if not self._heard:
                raise _early_failure(error) from error
            raise

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def run(self, statement: str, *, consistency: str = "ONE") -> Rows:
        """Run a statement and return all rows of its answer, page by page.

        Raises
        ------
        CqlError
            The node rejects the statement.
        OSError
            The connection breaks or times out: the outcome of the statement is unknown.
        """
        columns: list[str] = []
        rows: list[list[str]] = []
        warnings: list[str] = []
        state: bytes | None = None
        while True:
            body = self._ask(_QUERY, _query(statement, CONSISTENCIES[consistency.upper()], state), warnings)
            if Reader(body).int32() == _SCHEMA_CHANGE:
                warnings += self._await_agreement()
                return Rows([], [], warnings)
            columns, page, state = _result(body)
            rows += page
            if state is None:
                return Rows(columns, rows, warnings)

    def select(self, columns: str, table: str) -> list[list[str]]:
        """All rows of a small table."""
        return self.run(f"SELECT {columns} FROM {table}").rows

    def records(self, table: str, *, columns: str = "*") -> list[dict[str, str]]:
        """All rows of a small table, each by column name."""
        found = self.run(f"SELECT {columns} FROM {table}")
        return [dict(zip(found.columns, row, strict=True)) for row in found.rows]

    def _await_agreement(self) -> list[str]:
        """Wait until all nodes agree with this node's schema; statements may fail before."""
        deadline = time.monotonic() + _AGREEMENT_SECONDS
        while True:
            # A node reads one key much faster than a whole table, which includes tombstones.
            versions = {
                row[0]
                for table in ("local WHERE key = 'local'", "peers")
                for row in self.select("schema_version", f"system.{table}")
            }
            if len(versions - {"null"}) <= 1:
                return []
            if time.monotonic() > deadline:
                return [f"the nodes did not agree on the schema within {_AGREEMENT_SECONDS} s; one may be down"]
            time.sleep(0.05)

    def _greet(self, credentials: tuple[str, str] | None) -> None:
        self._ask(_OPTIONS, b"", [])
        kind, _ = self._exchange(_STARTUP, _string_map({"CQL_VERSION": "3.0.0"}), [])
        if kind == _READY or credentials is None:
            return
        token = "\0" + "\0".join(credentials)
        kind, _ = self._exchange(_AUTH_RESPONSE, _bytes(token.encode()), [])
        if kind != _AUTH_SUCCESS:
            raise CqlError(f"unexpected answer to the login: message {kind}", code=None)

    def _ask(self, kind: int, body: bytes, warnings: list[str]) -> bytes:
        return self._exchange(kind, body, warnings)[1]

    def _exchange(self, kind: int, body: bytes, warnings: list[str]) -> tuple[int, bytes]:
        self._socket.sendall(_HEADER.pack(_REQUEST, 0, 1, kind, len(body)) + body)
        head = self._exactly(_HEADER.size)
        version, flags, _, answer, size = _HEADER.unpack(head)
        if not _ANSWERS[0] <= version <= _ANSWERS[1]:
            raise NotCqlError(f"it answers {head[: _HEADER.size]!r}")
        self._heard = True
        if not 0 <= size <= _BODY_BYTES_MAX:
            raise CqlError(f"the node announced an answer of {size} bytes, which is too large", code=None)
        content = self._exactly(size)
        # The body starts with the tracing id, the warnings and the custom payload, each only if its flag is set.
        reader = Reader(content)
        if flags & 0x02:
            reader.take(16)
        if flags & 0x08:
            warnings += [reader.string() for _ in range(reader.uint16())]
        if flags & 0x04:
            for _ in range(reader.uint16()):
                reader.string()
                reader.content()
        if answer == _ERROR:
            code = reader.int32()
            raise CqlError(reader.string(), code=code)
        return answer, reader.rest()

    def _exactly(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            part = self._socket.recv(min(count - len(parts), 1 << 20))
            if not part:
                raise ConnectionResetError("the node closed the connection")
            parts += part
        return bytes(parts)


def _early_failure(error: BaseException) -> BaseException:
    """Describe a failure before any CQL was received."""
    if isinstance(error, TimeoutError):
        return SilentError(str(error))
    if isinstance(error, (ConnectionResetError, BrokenPipeError)):
        return NotCqlError("it closes the connection")
    return error


def answers(address: str, port: int, tls: ssl.SSLContext | None, timeout_s: float) -> bool:
    """Whether a node accepts clients, that is, answers OPTIONS and STARTUP."""
    try:
        Connection(address, port, tls=tls, timeout_s=timeout_s).close()
    except (OSError, CqlError, ValueError):
        return False
    return True


def _query(statement: str, consistency: int, state: bytes | None) -> bytes:
    text = statement.encode()
    # The statement is followed by the number of rows of a page and, from the second page on, by the paging state.
    flags = 0x04 | (0x08 if state is not None else 0)
    tail = b"" if state is None else _bytes(state)
    return struct.pack(">i", len(text)) + text + struct.pack(">HBi", consistency, flags, _PAGE_ROWS) + tail


def _string_map(pairs: dict[str, str]) -> bytes:
    texts: Sequence[bytes] = [part.encode() for pair in pairs.items() for part in pair]
    return struct.pack(">H", len(pairs)) + b"".join(struct.pack(">H", len(text)) + text for text in texts)


def _bytes(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


def _result(body: bytes) -> tuple[list[str], list[list[str]], bytes | None]:
    """Columns, rows and paging state of a RESULT message."""
    reader = Reader(body)
    if reader.int32() != 2:
        return [], [], None
    flags, count = reader.int32(), reader.int32()
    state = reader.content() if flags & 0x02 else None
    # If all columns are of one table, its name is given once; otherwise, with each column.
    if flags & 0x01:
        reader.string(), reader.string()
    names, types = [], []
    for _ in range(count):
        if not flags & 0x01:
            reader.string(), reader.string()
        names.append(reader.string())
        types.append(read_type(reader))
    rows = [[text_of(type, reader.content()) for type in types] for _ in range(reader.int32())]
    return names, rows, state
