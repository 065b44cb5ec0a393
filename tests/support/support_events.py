"""Generated artifacts of a security collector, archives to store them in, and a simple model of a search."""

from __future__ import annotations

import base64
import json
import random
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import chronotile as ct
from chronotile import events

FIRST = datetime(2026, 1, 1, tzinfo=UTC)

FIELDS = {
    "event.action": "utf8",
    "event.severity": "int32",
    "user.name": "utf8",
    "process.pid": "int64",
    "process.name": "utf8",
    "destination.ip": "utf8",
    "file.path": "utf8",
}
"""Declared fields of an artifact."""

_ACTIONS = ["process_start", "process_end", "network_connect", "file_create", "file_delete", "module_load", "logon"]
_PROGRAMS = ["svchost", "chrome", "python3", "sshd", "powershell", "java", "postgres", "cron", "node", "systemd"]
_WORDS = ["cache", "session", "report", "update", "index", "backup", "config", "token", "build", "export", "audit"]


class Artifacts:
    """Artifacts of about `size` bytes, reproducible by seed.

    As in real data, programs and modules with their hashes, users, paths and environments repeat. Identifiers, memory
    addresses, ports and times are new in each artifact, and so are the random arguments of some scripts.
    """

    def __init__(self, size: int, *, seed: int = 1, hosts: int = 8) -> None:
        self.size, self._random = size, random.Random(seed)
        choose = self._random
        self._hosts = [f"host-{number:03}" for number in range(hosts)]
        self._users = [f"user{number:02}" for number in range(40)]
        self._programs = [self._file(f"/usr/bin/{choose.choice(_PROGRAMS)}{number}") for number in range(300)]
        self._modules = [self._file(f"/usr/lib/x86_64-linux-gnu/lib{choose.choice(_WORDS)}{number}.so")
                         for number in range(2_000)]  # fmt: skip
        self._paths = [f"/home/{choose.choice(self._users)}/{choose.choice(_WORDS)}-{n}.dat" for n in range(5_000)]
        self._environments = [
            {f"{choose.choice(_WORDS).upper()}_{key}": f"/opt/{choose.choice(_WORDS)}/{choose.randrange(100)}"
             for key in range(10)}
            for _ in range(60)
        ]  # fmt: skip

    def _file(self, path: str) -> dict[str, str]:
        return {"path": path, "sha256": self._random.randbytes(32).hex()}

    def line(self, time: datetime) -> bytes:
        """One artifact as a line of JSON, without a newline."""
        choose = self._random
        program = choose.choice(self._programs)
        action = choose.choice(_ACTIONS)
        name = program["path"].rpartition("/")[2]
        arguments = [f"--{choose.choice(_WORDS)}={choose.randrange(1000)}" for _ in range(choose.randrange(1, 5))]
        if choose.random() < 0.05:
            arguments.append("-enc " + base64.b64encode(choose.randbytes(90)).decode())
        found: dict[str, Any] = {
            "time": time.isoformat().replace("+00:00", "Z"),
            "host": choose.choice(self._hosts),
            "event": {
                "id": f"{choose.getrandbits(64):016x}", "action": action,
                "severity": min(int(choose.expovariate(0.7)), 7),
            },
            "user": {"name": choose.choice(self._users), "id": choose.randrange(1_000, 1_040)},
            "process": {
                "pid": choose.randrange(2, 65_536), "ppid": choose.randrange(1, 4_000), "name": name,
                "executable": program, "args": arguments, "working_directory": "/var/lib/" + choose.choice(_WORDS),
            },
            "message": f"{name} {action.replace('_', ' ')} took {choose.randrange(900)} ms",
        }  # fmt: skip
        if action == "network_connect":
            found["source"] = {
                "ip": f"10.0.{choose.randrange(4)}.{choose.randrange(256)}",
                "port": choose.randrange(1_024, 65_536),
            }
            found["destination"] = {
                "ip": f"198.51.100.{choose.randrange(256)}",
                "port": choose.choice([22, 80, 443, 8443]),
            }
        if action.startswith("file"):
            found["file"] = {"path": choose.choice(self._paths), "size": int(choose.lognormvariate(9, 2))}
        found["environment"] = choose.choice(self._environments)
        room = self.size - len(json.dumps(found))
        if room > 150:
            found["modules"] = [
                {
                    **choose.choice(self._modules),
                    "base": f"0x7f{choose.getrandbits(36):09x}000",
                    "size": choose.randrange(1, 400) * 4096,
                }
                for _ in range(room // 170)
            ]
        return json.dumps(found, separators=(",", ":")).encode()

    def lines(self, count: int, *, start: datetime = FIRST, span: timedelta = timedelta(days=1)) -> list[bytes]:
        """Artifacts spread evenly over a time, in order."""
        return [self.line(start + span * number / count) for number in range(count)]


def make(archive: ct.Archive, name: str = "events", **options: Any) -> events.Events:
    """Create an empty archive of events for artifacts."""
    return events.create(archive, name, **{"fields": FIELDS, "stream_field": "host", **options})


class Clock:
    """A clock that tests set."""

    def __init__(self, now: datetime) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now


class StoredRows:
    """A fake dataset in memory for searches, which records the periods and columns of each read."""

    def __init__(
        self, schema: pa.Schema, rows: list[dict[str, Any]], *, batch_rows: int = 1_000,
        slices: tuple[int, int] | None = None,
    ) -> None:  # fmt: skip
        self.table = pa.Table.from_pylist(rows, schema=schema)
        self.schema = schema
        self.column_types = {field.name: str(field.type) for field in schema}
        self.periods: list[tuple[int | None, int | None]] = []
        self.columns: list[list[str]] = []
        self._batch_rows, self._slices = batch_rows, slices

    def info(self) -> Any:
        ends = () if self._slices is None else (self._slices[0], sum(self._slices) // 2, self._slices[1])
        moments = [datetime.fromtimestamp(at // 1_000_000, UTC) for at in ends]
        # Three slices; searches use the start of the first and the end of the last.
        slices = [SimpleNamespace(start=moment, end=moment) for moment in moments]
        return SimpleNamespace(slices=tuple(slices))

    def _selected(self, start: int | None, end: int | None) -> pa.Table:
        times = self.table["time"].cast(pa.int64())
        low, high = (bound if bound is not None else other for bound, other in ((start, -(2**60)), (end, 2**60)))
        return self.table.filter(pc.and_(pc.greater_equal(times, low), pc.less(times, high)))

    def read(self, *, columns: list[str], start: int | None, end: int | None, keys: Any, where: list[Any]) -> Any:
        self.periods.append((start, end))
        self.columns.append(columns)
        found = self._selected(start, end).select(columns)
        return SimpleNamespace(batches=lambda: iter(found.to_batches(max_chunksize=self._batch_rows)))

    def count(self, *, start: int | None, end: int | None, keys: Any, where: list[Any]) -> int:
        return int(self._selected(start, end).num_rows)


def at(document: dict[str, Any], path: str) -> Any:
    """The value at a path of a document."""
    head, dot, rest = path.partition(".")
    value = document.get(head)
    return at(value, rest) if dot and isinstance(value, dict) else None if dot else value


_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "==": lambda value, wanted: value == wanted,
    "!=": lambda value, wanted: value != wanted,
    "<": lambda value, wanted: value < wanted,
    ">=": lambda value, wanted: value >= wanted,
    "in": lambda value, wanted: value in wanted,
    "between": lambda value, wanted: wanted[0] <= value <= wanted[1],
    "contains": lambda value, wanted: wanted in value,
    "prefix": lambda value, wanted: value.startswith(wanted),
    "matches": lambda value, wanted: re.search(wanted, value) is not None,
}


def meets(value: Any, comparison: str, wanted: Any) -> bool:
    """Whether a value meets a condition, evaluated in Python. None meets only the condition that it is missing."""
    if comparison == "exists":
        return (value is not None) == bool(wanted)
    return value is not None and bool(_COMPARISONS[comparison](value, wanted))
