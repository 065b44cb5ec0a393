"""Security artifacts: ingesting a day of them, searching an hour by field and by text, bytes on disk.

`./dev bench events` generates artifacts of 1 KB or 16 KB over a day, and stores and searches them in Chronotile
(SQLite, or a cluster with --cluster), in DuckDB with a Parquet file for each hour and, if Debian's package is
installed, in PostgreSQL with jsonb. All systems get the same lines of JSON, and their answers are compared. Needs
duckdb, numpy, pyarrow, psycopg.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import common
import duckdb
import psycopg
from support_events import FIELDS, FIRST, Artifacts, Clock

import chronotile as ct
from chronotile import events
from chronotile_tools.load.postgresql import postgresql, programs

HOURS = 24
COLUMNS = {name: name.replace(".", "_") for name in FIELDS}
"""SQL column names of the fields."""


class Chronotile:
    """Events, on SQLite or a cluster."""

    name = "Chronotile"

    def __init__(self, folder: Path, lines: Path, url: str | None) -> None:
        self.archive = ct.open(url or folder / "events.db")
        name = f"bench_{uuid.uuid4().hex[:8]}"
        events.create(self.archive, name, fields=FIELDS, stream_field="host", ttl="3650d")
        self.clock = Clock(FIRST + timedelta(days=2))
        self.log = events.open(self.archive, name, clock=self.clock)
        report = events.load(self.log, lines)
        self.ingest_s = report.seconds
        self.bytes_before = self.log.dataset.info().bytes
        began = time.perf_counter()
        self.log.dataset.consolidate()
        self.maintenance_s = time.perf_counter() - began
        self.bytes = self.log.dataset.info().bytes

    def field(self, hour: int, action: str, severity: int) -> list[str]:
        found = self.log.search(
            **_hour(hour), where=[("event.action", "==", action), ("event.severity", ">=", severity)], limit=None
        )
        return sorted(found["body"].to_pylist())

    def newest(self, action: str) -> list[str]:
        found = self.log.search(where=("event.action", "==", action), limit=100)
        return sorted(found["body"].to_pylist())

    def text(self, hour: int, text: str) -> list[str]:
        return sorted(self.log.search(**_hour(hour), text=text, limit=None)["body"].to_pylist())

    def expired(self, hour: int) -> int:
        """Number of documents left when the TTL of those before the middle of that hour has ended."""
        self.clock.now = FIRST + timedelta(days=3650, hours=hour + 0.5)
        left = self.log.count()
        self.clock.now = FIRST + timedelta(days=2)
        return left

    def hours(self, action: str) -> list[int]:
        return [
            int(count) for count in self.log.histogram("1h", where=("event.action", "==", action))["count"].to_pylist()
        ]

    def close(self) -> None:
        self.archive.close()


def _hour(hour: int) -> dict[str, datetime]:
    return {"start": FIRST + timedelta(hours=hour), "end": FIRST + timedelta(hours=hour + 1)}


class DuckDB:
    """A Parquet file for each hour, with the same columns and the document's text; zstd."""

    name = "DuckDB on Parquet"

    def __init__(self, folder: Path, lines: Path) -> None:
        out = folder / "parquet"
        self.connection = duckdb.connect()
        self.connection.execute("SET TimeZone='UTC'")
        paths = ", ".join(f"(body->>'$.{path}')::{_SQL[FIELDS[path]]} AS {column}" for path, column in COLUMNS.items())
        began = time.perf_counter()
        self.connection.execute(f"""
            COPY (
                SELECT (body->>'$.time')::TIMESTAMPTZ AS time, body->>'$.host' AS stream, {paths}, body,
                       hour((body->>'$.time')::TIMESTAMPTZ) AS hour
                FROM read_csv('{lines}', columns={{'body': 'VARCHAR'}}, delim='\\x01', quote='', escape='',
                              header=false, max_line_size=10000000)
            ) TO '{out}' (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (hour))""")
        self.ingest_s = time.perf_counter() - began
        self.bytes = common.bytes_below(out)
        self.connection.execute(f"CREATE VIEW events AS SELECT * FROM read_parquet('{out}/*/*.parquet')")

    def _ask(self, question: str, parameters: list[Any]) -> list[Any]:
        return list(self.connection.execute(question, parameters).fetchall())

    def field(self, hour: int, action: str, severity: int) -> list[str]:
        question = "SELECT body FROM events WHERE time >= ? AND time < ? AND event_action = ? AND event_severity >= ?"
        return sorted(row[0] for row in self._ask(question, [*_hour(hour).values(), action, severity]))

    def newest(self, action: str) -> list[str]:
        question = "SELECT body FROM events WHERE event_action = ? ORDER BY time DESC LIMIT 100"
        return sorted(row[0] for row in self._ask(question, [action]))

    def text(self, hour: int, text: str) -> list[str]:
        question = "SELECT body FROM events WHERE time >= ? AND time < ? AND contains(body, ?)"
        return sorted(row[0] for row in self._ask(question, [*_hour(hour).values(), text]))

    def expired(self, hour: int) -> int:
        found = self._ask("SELECT count(*) FROM events WHERE time > ?", [FIRST + timedelta(hours=hour + 0.5)])
        return int(found[0][0])

    def hours(self, action: str) -> list[int]:
        question = (
            "SELECT count(*) FROM events WHERE event_action = ? GROUP BY date_trunc('hour', time) ORDER BY min(time)"
        )
        return [int(row[0]) for row in self._ask(question, [action])]

    def close(self) -> None:
        self.connection.close()


_SQL = {"utf8": "VARCHAR", "int32": "INTEGER", "int64": "BIGINT"}


class PostgreSQL:
    """One table of jsonb, with an index on time and one on the action."""

    name = "PostgreSQL jsonb"

    def __init__(self, url: str, lines: Path) -> None:
        self.connection = psycopg.connect(url, autocommit=True)
        self.connection.execute("SET TimeZone = 'UTC'")
        self.connection.execute("CREATE TABLE events (time timestamptz, body jsonb)")
        self.connection.execute("CREATE INDEX ON events (time)")
        self.connection.execute("CREATE INDEX ON events ((body->'event'->>'action'), time)")
        began = time.perf_counter()
        with self.connection.cursor().copy("COPY events FROM STDIN (FORMAT binary)") as copy, lines.open("rb") as file:
            copy.set_types(["timestamptz", "jsonb"])
            for line in file:
                text = line.decode().rstrip("\n")
                copy.write_row((datetime.fromisoformat(text[9 : text.index('"', 9)]), psycopg.types.json.Jsonb(
                    text, dumps=str)))  # fmt: skip
        self.ingest_s = time.perf_counter() - began
        self.connection.execute("ANALYZE events")
        found = self.connection.execute("SELECT pg_total_relation_size('events')").fetchone()
        self.bytes = int(found[0]) if found else 0

    def _ask(self, question: str, parameters: list[Any]) -> list[Any]:
        return list(self.connection.execute(question, parameters, prepare=True).fetchall())

    def _documents(self, where: str, parameters: list[Any]) -> list[str]:
        # jsonb does not preserve the text, so documents are compared by id.
        return sorted(row[0] for row in self._ask(f"SELECT body::text FROM events WHERE {where}", parameters))

    def field(self, hour: int, action: str, severity: int) -> list[str]:
        where = "time >= %s AND time < %s AND body->'event'->>'action' = %s AND (body->'event'->'severity')::int >= %s"
        return self._documents(where, [*_hour(hour).values(), action, severity])

    def newest(self, action: str) -> list[str]:
        return self._documents("body->'event'->>'action' = %s ORDER BY time DESC LIMIT 100", [action])

    def text(self, hour: int, text: str) -> list[str]:
        where = "time >= %s AND time < %s AND strpos(body::text, %s) > 0"
        return self._documents(where, [*_hour(hour).values(), text])

    def expired(self, hour: int) -> int:
        found = self._ask("SELECT count(*) FROM events WHERE time > %s", [FIRST + timedelta(hours=hour + 0.5)])
        return int(found[0][0])

    def hours(self, action: str) -> list[int]:
        question = """SELECT count(*) FROM events WHERE body->'event'->>'action' = %s
                      GROUP BY date_trunc('hour', time) ORDER BY min(time)"""
        return [int(row[0]) for row in self._ask(question, [action])]

    def close(self) -> None:
        self.connection.close()


Question = Callable[[Any], Any]


def questions(rounds: int) -> dict[str, list[Question]]:
    """The same random queries for every system, as a list for each kind."""
    choose = random.Random(5)
    hours = [choose.randrange(HOURS) for _ in range(rounds)]
    actions = [choose.choice(["logon", "file_create", "network_connect"]) for _ in range(rounds)]
    texts = [f"/opt/{choose.choice(['audit', 'token', 'index'])}/{choose.randrange(100)}" for _ in range(rounds)]
    pairs = list(zip(hours, actions, strict=True))
    return {
        "field search, 1 hour": [lambda s, p=p: s.field(*p, 3) for p in pairs],
        "newest 100 of an action": [lambda s, a=a: s.newest(a) for a in actions],
        "text search, 1 hour": [lambda s, h=h, t=t: s.text(h, t) for h, t in zip(hours, texts, strict=True)],
        "count of what has not expired": [lambda s, h=h: s.expired(h) for h in hours],
        "counts of an action by hour, a day": [lambda s, a=a: s.hours(a) for a in actions],
    }


def comparable(answer: Any) -> Any:
    """An answer with documents replaced by their ids, because systems return different texts of one document."""
    if isinstance(answer, list) and answer and isinstance(answer[0], str):
        return sorted(json.loads(text)["event"]["id"] for text in answer)
    return answer


def main() -> None:
    parser = common.parser_of_comparison(__doc__, rows=100_000)
    parser.add_argument("--size", type=int, default=1_024, help="approximate bytes of an artifact")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="chronotile-bench-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        path, artifacts = folder / "artifacts.ndjson", Artifacts(options.size)
        with path.open("wb") as file:
            for number in range(options.rows):
                file.write(artifacts.line(FIRST + timedelta(days=1) * number / options.rows) + b"\n")
        raw = path.stat().st_size
        print(f"{options.rows:,} artifacts of {raw / options.rows:,.0f} bytes, {raw / 1e6:.0f} MB", flush=True)
        ours = Chronotile(folder, path, options.cluster)
        systems: list[Any] = [ours, DuckDB(folder, path)]
        if not options.no_postgresql and programs() is not None:
            systems.append(PostgreSQL(stack.enter_context(postgresql()), path))
        for system in systems:
            stack.callback(system.close)
        samples = common.measure_alternating(systems, questions(options.rounds), comparable)
        _report(options, systems, raw, samples)


def _report(options: argparse.Namespace, systems: list[Any], raw: int, samples: dict[str, Any]) -> None:
    ours = systems[0]
    notes = {
        "ingest, artifacts/s": {s.name: options.rows / s.ingest_s for s in systems},
        "bytes, share of the raw JSON": {s.name: s.bytes / raw for s in systems},
    }
    before = f"{ours.bytes_before / raw:.3f} of the raw JSON; maintenance took {ours.maintenance_s:.1f} s"
    head = {"bytes an artifact": round(raw / options.rows), "Chronotile before maintenance": before}
    rows = [[kind, *(f"{found[s.name]:,.3g}" if found[s.name] < 10 else f"{found[s.name]:,.0f}" for s in systems)]
            for kind, found in notes.items()]  # fmt: skip
    rows += [[f"{kind}, ms", *(common.spread(found[s.name]) for s in systems)] for kind, found in samples.items()]
    name = f"events-{options.size}"
    common.save_comparison(name, systems, rows, notes=notes, samples=samples, rows=options.rows, **head)


if __name__ == "__main__":
    main()
