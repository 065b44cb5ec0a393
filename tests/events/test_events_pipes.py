"""Ingests from a pipe, by a clock that a test sets: when each batch is stored, and with which lines."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

pytest.importorskip("pyarrow")
from hypothesis import given
from hypothesis import strategies as st

import chronotile as ct
from chronotile import events
from chronotile.events import loading
from chronotile.events.events import IngestReport
from chronotile.events.parsing import ReadOptions, Reject

KIB = 1 << 10
READING = ReadOptions("ndjson", stream="s")


class Pipe:
    """What is written to a pipe and when, in seconds; an end without text closes it, an error interrupts the reader."""

    def __init__(self, *written: tuple[float, bytes | BaseException], read_s: float = 0.0) -> None:
        self.now = 1_000.0
        self._left = [(self.now + at, text) for at, text in written]
        self._read_s = read_s
        self._turns = 0

    def monotonic(self) -> float:
        return self.now

    def select(self, read: list[int], write: list[int], other: list[int], wait_s: float | None) -> Any:
        assert read == [7]
        assert wait_s is None or wait_s >= 0
        self._turns += 1
        assert self._turns < 1_000, "the pipe is looked at again and again"
        at = self._left[0][0] if self._left else self.now
        if wait_s is not None and at > self.now + wait_s:
            self.now += wait_s
            return [], [], []
        self.now = max(self.now, at)
        return read, [], []

    def read(self, pipe: int, size: int) -> bytes:
        self.now += self._read_s
        if not self._left:
            return b""
        at, text = self._left.pop(0)
        if isinstance(text, BaseException):
            raise text
        if text[size:]:
            self._left.insert(0, (at, text[size:]))
        return text[:size]


class Stored:
    """The part of an archive of events that a pipe needs; notes each call and when it is made."""

    def __init__(self, pipe: Pipe, *errors: BaseException | None) -> None:
        self.pipe, self._errors = pipe, list(errors)
        self.calls: list[dict[str, Any]] = []
        self.batches: list[tuple[float, bytes]] = []

    def read_options(self) -> ReadOptions:
        return READING

    def ingest_lines(self, text: bytes, read_options: ReadOptions, **options: Any) -> IngestReport:
        self.calls.append({"text": text, "read_options": read_options, **options})
        error = self._errors.pop(0) if self._errors else None
        if error is not None:
            raise error
        self.batches.append((self.pipe.now - 1_000, text))
        lines = text.splitlines()
        rejects = tuple(
            Reject(options["first_line"] + place, "bad", line) for place, line in enumerate(lines) if line == b"bad"
        )
        good, reasons = len(lines) - len(rejects), {"bad": len(rejects)} if rejects else {}
        return IngestReport(options["batch"], True, good, len(text), 0, rejects, len(rejects), reasons, good // 2)


def feed(stored: Stored, **options: Any) -> loading.LoadReport:
    archive: Any = stored
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "time", stored.pipe)
        patch.setattr(loading, "select", stored.pipe)
        patch.setattr(loading, "os", stored.pipe)
        return loading.feed(archive, 7, **options)


def test_a_line_waits_two_seconds_at_most_for_others() -> None:
    pipe = Pipe((5, b"a\n"), (6, b"b\n"), (6.75, b"c\nd"), (9, b"e\n"), (30, b"f\n"), (30.5, b"g"))
    stored = Stored(pipe)
    feed(stored)
    # A line that is not complete waits for its end, and at the end of the pipe is one.
    assert stored.batches == [(7, b"a\nb\nc\n"), (9, b"de\n"), (30.5, b"f\ng")]


@pytest.mark.parametrize(("batch_s", "first_s"), [(0.25, 0.25), (0.5, 0.5), (60, 10)])
def test_how_long_a_line_waits_is_set(batch_s: float, first_s: float) -> None:
    stored = Stored(Pipe((0, b"a\n"), (10, b"")))
    feed(stored, batch_s=batch_s)
    assert stored.batches == [(first_s, b"a\n")]


def test_a_line_that_is_read_late_is_stored_at_once() -> None:
    stored = Stored(Pipe((0, b"a\n"), (0, b"b\n"), (0, b"c\n"), read_s=3))
    feed(stored)
    assert stored.batches == [(6, b"a\nb\n"), (12, b"c\n")]


def test_an_incomplete_line_is_looked_at_again_after_the_time_of_a_batch() -> None:
    pipe = Pipe((0, b"a"), (7, b"b\n"), (20, b""))
    stored = Stored(pipe)
    feed(stored)
    # At 2, 4 and 6 the line is incomplete.
    assert stored.batches == [(8, b"ab\n")]


@pytest.mark.parametrize(("size", "is_stored"), [(9, True), (10, True), (11, False)])
def test_a_batch_is_stored_once_it_has_its_size(size: int, is_stored: bool) -> None:
    stored = Stored(Pipe((0, b"1234\n"), (1, b"6789\n"), (1.5, b"next\n")))
    feed(stored, batch_bytes=size)
    assert stored.batches[0] == ((1, b"1234\n6789\n") if is_stored else (1.5, b"1234\n6789\nnext\n"))


def test_a_batch_has_four_mebibytes_by_default() -> None:
    line = b"x" * (KIB - 1) + b"\n"
    stored = Stored(Pipe((0, line * (4 * KIB - 1)), (0.5, line), (1, line)))
    feed(stored)
    assert [(at, len(text)) for at, text in stored.batches] == [(0.5, 4 * KIB * KIB), (1, KIB)]


texts = st.binary(max_size=6) | st.sampled_from([b"\n", b"ab\ncd\n"])


@given(st.lists(st.tuples(st.integers(0, 5), texts), max_size=12), st.integers(1, 12))
def test_all_lines_are_stored_once_in_order_and_whole(written: list[tuple[int, bytes]], batch_bytes: int) -> None:
    arrivals, at = [], 0
    for pause, text in written:
        at += pause
        if text:
            arrivals.append((float(at), text))
    stored = Stored(Pipe(*arrivals))
    seen: list[int] = []
    report = feed(stored, batch_bytes=batch_bytes, progress=lambda state: seen.append(state.bytes_done))
    whole = b"".join(text for _, text in arrivals)
    assert b"".join(call["text"] for call in stored.calls) == whole
    passed = 0
    for call in stored.calls[:-1]:
        assert call["text"].endswith(b"\n")
    for call, bytes_done in zip(stored.calls, seen, strict=True):
        assert call["first_line"] == whole[:passed].count(b"\n") + 1
        passed += len(call["text"])
        assert bytes_done == passed
    assert (report.files, report.batches, report.bytes) == (1, len(stored.calls), len(whole))


def test_a_feed_reports_what_it_stored() -> None:
    seen: list[tuple[str, int, int, float]] = []

    def note(state: loading.LoadProgress) -> None:
        seen.append((state.file, state.bytes_total, state.report.documents, state.report.seconds))

    stored = Stored(Pipe((0, b"a\nbad\n"), (5, b"bad\nb\nc\n")))
    report = feed(stored, source="tail", progress=note)
    assert report == loading.LoadReport(
        files=1, documents=3, bytes=14, expired=1, rejected=2, reasons={"bad": 2}, batches=2, seconds=5,
        first_reject=("tail", 2, "bad"),
    )  # fmt: skip
    assert seen == [("tail", 0, 1, 2), ("tail", 0, 3, 5)]
    first, second = stored.calls
    assert [call["batch"].split(":")[::2] for call in stored.calls] == [["pipe", "1"], ["pipe", "3"]]
    assert first["batch"].split(":")[1] == second["batch"].split(":")[1]
    assert (first["read_options"], first["source"], first["ttl"], first["limited"]) == (READING, "tail", None, True)
    other = ReadOptions("lines")
    stored = Stored(Pipe((0, b"a")))
    feed(stored, read_options=other, ttl="1d", limited=False)
    [call] = stored.calls
    assert (call["read_options"], call["source"], call["ttl"], call["limited"]) == (other, "-", "1d", False)
    # Another feed has batches of other names.
    assert call["batch"].split(":")[1] != first["batch"].split(":")[1]


def test_an_interrupt_stores_complete_lines_first() -> None:
    stored = Stored(Pipe((0, b"a\nb\nc"), (1, KeyboardInterrupt())))
    with pytest.raises(KeyboardInterrupt):
        feed(stored)
    assert stored.batches == [(1, b"a\nb\n")]


def test_a_batch_that_was_interrupted_is_stored_again_under_its_name() -> None:
    stored = Stored(Pipe((0, b"a\nb\n"), (1, b"c\n")), KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        feed(stored, batch_bytes=4)
    first, again = stored.calls
    assert first == again
    assert (again["text"], again["first_line"]) == (b"a\nb\n", 1)


def test_a_batch_that_is_refused_ends_the_feed_and_is_not_tried_again() -> None:
    refusal = ct.BusyError("too much", kind="quota-exceeded")
    stored = Stored(Pipe((0, b"a\n"), (1, b"b\n"), (2, b"c\n")), None, refusal)
    with pytest.raises(ct.BusyError):
        feed(stored, batch_bytes=1)
    assert [call["text"] for call in stored.calls] == [b"a\n", b"b\n"]


def test_feed_reads_any_file_descriptor_and_numbers_lines_across_batches(memory: ct.Archive) -> None:
    log = events.create(memory, stream_field="host")
    good = '{"time": "2026-01-01", "host": "h"}'
    read, write = os.pipe()
    writer = threading.Thread(target=lambda: (os.write(write, f"{good}\nbad\n{good}".encode()), os.close(write)))
    writer.start()
    report = events.feed(log, read, batch_bytes=30)
    writer.join()
    os.close(read)
    assert (report.documents, report.rejected, report.reasons) == (2, 1, {"the line is not a JSON object": 1})
    assert log.dead_letters()["line"].to_pylist() == [2]
