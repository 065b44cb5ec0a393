"""Requests to events and jobs with any query parameters: each is served or refused, none is a fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

pytest.importorskip("pyarrow")
import pyarrow as pa
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from test_service_events import fill

import chronotile as ct
from chronotile.service import FrontEnds

DAY_NS = 86_400 * 10**9
COLUMNS = ("time", "stream", "level", "status", "message", "body", "job_id", "submitted", "user", "run_s", "ttl_s",
    "none")  # fmt: skip
SIGNS = ("==", "!=", "<", ">=", " in ", " between ", " contains ", " matches ", " prefix ", " exists ", "=", "")
CONSTANTS = ("500", "error", "ann,bob", "1,2", "true", "'x'", "2026-01-01", "2.5", "NaN", "1e999", "(", "²", "",
    "9" * 30)  # fmt: skip
READS = tuple(f"events.{name}" for name in ("search", "count", "histogram", "dead"))
READS += tuple(f"jobs.{name}" for name in ("find", "count", "group", "explain"))

constants = st.sampled_from(CONSTANTS) | st.text(max_size=12)
conditions = st.tuples(st.sampled_from(COLUMNS) | st.text(max_size=8), st.sampled_from(SIGNS), constants).map("".join)
as_json = st.tuples(st.sampled_from(COLUMNS), st.sampled_from(SIGNS), constants).map(
    lambda parts: f'["{parts[0]}","{parts[1].strip()}","{parts[2]}"]'
)
moments = st.integers(-(2**63), 2**63 - 1).map(str) | st.just(str(20_454 * DAY_NS))
words = st.one_of(
    st.tuples(st.sampled_from(("start", "end")), moments),
    st.tuples(st.just("where"), conditions | as_json | st.text(max_size=20)),
    st.tuples(
        st.sampled_from(("by", "columns")), st.lists(st.sampled_from(COLUMNS), max_size=3).map(",".join) | constants
    ),
    st.tuples(st.just("aggregate"), st.sampled_from(("sum(run_s)", "mean(user)", "stddev(status)", "x(")) | constants),
    st.tuples(
        st.sampled_from(("stream", "text", "interval", "days", "limit", "id", "history", "oldest_first")),
        constants | st.sampled_from(("1h", "7", "0", "2026-01-01,2026-01-02", "9999999", "9999-12-31")),
    ),
)

READING = ("format", "pattern", "time_field", "time_format", "year", "stream_field", "stream", "source", "ttl",
    "batch")  # fmt: skip
SETTINGS = ("ndjson", "syslog", "lines", "(?P<time>", "time", "a.b", "host", "%Y", "iso8601", "epoch_ms", "2026",
    "0", "30d", "999999999999d", "²d", r"(?P<time>\S+) (?P<stream>\S+) (?P<x>.*)", "%d/%b/%Y %H:%M", "")  # fmt: skip
LINES = (
    *(b'{"time": "2026-01-01T00:00:00Z", "host": "a", "level": 1}\n', b'{"time": 1e400, "status": [1]}\n', b"{\n"),
    *(b"<34>Oct 11 22:14:15 web su: failed\n", b"<34>1 2026-10-11T22:14:15Z web su - - - x\n", b"[]\n"),
    *(b"2026-01-01 a b\n", b"\xff\x00\n"),
)
reading = st.tuples(st.sampled_from(READING), st.sampled_from(SETTINGS) | st.text(max_size=8))

Ask = Callable[[str, list[tuple[str, str]], bytes], None]


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask]:
    """Serves a request whole; refusals are fine."""
    path = tmp_path_factory.mktemp("words") / "logs.db"
    fill(path)
    with ct.open(path) as archive:
        front_ends = FrontEnds(archive)

        def asked(operation: str, question: list[tuple[str, str]], body: bytes) -> None:
            with suppress(ct.InvalidInputError, ct.BatchConflictError):
                name = "web" if operation.startswith("events") else "grid"
                answer = front_ends.answer(operation, name, question, body)
                if not isinstance(answer, bytes | tuple):
                    pa.RecordBatchReader.from_stream(answer).read_all()

        yield asked


@given(operation=st.sampled_from(READS), question=st.lists(words, max_size=4))
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example(operation="jobs.count", question=[("days", "²")])
@example(operation="jobs.count", question=[("days", "9999999")])
@example(operation="jobs.count", question=[("days", "9999-12-31")])
@example(operation="jobs.count", question=[("where", "run_s==" + "9" * 5_000)])
@example(operation="jobs.find", question=[("id", "9" * 30)])
@example(operation="jobs.count", question=[("where", "[" * 60_000)])
@example(operation="jobs.count", question=[("where", '["run_s", "<", ' + "9" * 4_000 + "]")])
@example(operation="jobs.count", question=[("where", "run_s==" + "9" * 60_000 + "x")])
@example(operation="jobs.group", question=[("by", "user"), ("aggregate", "a(" + " " * 60_000)])
@example(operation="events.histogram", question=[("interval", "9" * 60_000 + "d")])
@example(operation="events.search", question=[("where", "message matches (")])
def test_any_words_are_answered_or_refused(ask: Ask, operation: str, question: list[tuple[str, str]]) -> None:
    ask(operation, question, b"")


@given(
    question=st.lists(reading, max_size=4),
    body=st.lists(st.sampled_from(LINES) | st.binary(max_size=16), max_size=4).map(b"".join),
)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_lines_are_stored_or_told(ask: Ask, question: list[tuple[str, str]], body: bytes) -> None:
    ask("events.ingest", question, body)
