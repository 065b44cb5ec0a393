"""Ingests of small files, block by block: reports, progress, what is passed over, and what is read again."""

from __future__ import annotations

import gzip
import hashlib
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")
from hypothesis import given
from hypothesis import strategies as st
from support_events import FIRST, Artifacts, Clock, make

import chronotile as ct
from chronotile import events
from chronotile.events import loading
from chronotile.events.events import IngestReport
from chronotile.events.guessing import Guess


def bodies(log: events.Events) -> list[str]:
    return log.search(limit=None, newest_first=False)["body"].to_pylist()


LINE = '{{"time": "2026-01-01", "n": {}}}\n'
SIZE = len(LINE.format(10))
REASON = "the line is not a JSON object"


@pytest.fixture
def log(memory: ct.Archive) -> events.Events:
    return events.create(memory, fields={"n": "int64"})


@pytest.fixture
def two_lines_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of two lines, whose numbers have two digits."""
    monkeypatch.setattr(loading, "BATCH_BYTES", 2 * SIZE + 3)


def write(path: Path, *numbers: int, end: str = "") -> Path:
    path.write_text("".join(LINE.format(number) for number in numbers) + end)
    return path


def numbers(log: events.Events) -> list[int]:
    return sorted(log.search(limit=None, columns=["n"])["n"].to_pylist())


def keys(log: events.Events) -> list[str]:
    return sorted(str(batch.key) for batch in log.dataset.batches())


# ---------------------------------------------------------------- reports


def test_a_load_reports_what_it_stored_and_what_was_stored_before(
    tmp_path: Path, memory: ct.Archive, log: events.Events, two_lines_each: None
) -> None:
    log.set_ttl("1d")
    file = write(tmp_path / "a.log", 10, 11, end=f"\nbad\n{LINE.format(12)}bad\n")
    write(tmp_path / "b.log", 13, end='{"time": "never"}\n')
    old = events.open(memory, clock=Clock(FIRST))
    began = time.monotonic()
    report = events.load(old, tmp_path)
    assert 0 < report.seconds <= time.monotonic() - began
    assert report == loading.LoadReport(
        files=2, documents=4, bytes=4 * (SIZE - 1), rejected=3, batches=3, seconds=report.seconds,
        first_reject=(str(file), 4, REASON), reasons={REASON: 2, "'time' is not a time: 'never'": 1},
    )  # fmt: skip
    assert report.records == 4
    assert old.search(columns=["source"], n=13)["source"].to_pylist() == [str(tmp_path / "b.log")]
    again = events.load(old, [file, str(tmp_path / "b.log")])
    assert again == loading.LoadReport(files=2, documents_before=4, seconds=again.seconds)
    assert again.records == 4
    # By now they are older than a day.
    report = events.load(log, str(file), log.read_options(stream="other"))
    assert (report.documents, report.expired) == (3, 3)


def test_an_empty_file_takes_time_too(tmp_path: Path, log: events.Events) -> None:
    report = events.load(log, write(tmp_path / "a.log"))
    assert report == loading.LoadReport(files=1, seconds=report.seconds)
    assert report.seconds > 0


def outcome(documents: int, *lines: int, stored: bool = True) -> IngestReport:
    rejects = tuple(events.Reject(line, f"no {line}", b'{"ts": "2026-01-01"}') for line in lines)
    return IngestReport("b", stored, documents, 7, 1, rejects, len(lines), {"no": len(lines)} if lines else {})


def test_a_report_adds_up_batches() -> None:
    report, reading = loading.LoadReport(files=1), events.ReadOptions("ndjson")
    report.add(outcome(3), "a", reading)
    assert (report.first_reject, report.guess) == (None, None)
    # What another process stored meanwhile, with its rejects, is of another report.
    report.add(outcome(2, 5, stored=False), "a", reading)
    assert report == loading.LoadReport(files=1, documents=3, documents_before=2, bytes=7, batches=1)
    report.add(outcome(0, 8, 9, stored=False), "b", reading)
    report.add(outcome(1, 4), "c", reading)
    assert report == loading.LoadReport(
        files=1, documents=4, documents_before=2, bytes=21, batches=3, rejected=3, reasons={"no": 3},
        first_reject=("b", 8, "no 8"), guess=Guess("JSON with the time in 'ts'", {"time_field": "ts"}),
    )  # fmt: skip


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_load_has_progress_to_the_last_byte_of_its_files(
    tmp_path: Path, log: events.Events, two_lines_each: None, is_packed: bool
) -> None:
    files = [write(tmp_path / "a", *range(10, 15)), write(tmp_path / "b", *range(20, 23))]
    if is_packed:
        for file in files:
            file.write_bytes(gzip.compress(file.read_bytes()))
    sizes = [file.stat().st_size for file in files]
    seen: list[tuple[str, int, int]] = []

    def note(state: loading.LoadProgress) -> None:
        assert state.bytes_total == sum(sizes)
        assert 0 < state.report.seconds <= time.monotonic() - began
        seen.append((Path(state.file).name, state.bytes_done, state.report.documents))

    began = time.monotonic()
    events.load(log, files, workers=1, progress=note)
    assert [(name, count) for name, _, count in seen] == [("a", 2), ("a", 4), ("a", 5), ("b", 7), ("b", 8)]
    passed = [done for _, done, _ in seen]
    assert passed == sorted(passed)
    assert passed[2] == sizes[0]
    assert passed[-1] == sum(sizes)
    if not is_packed:
        # What was read is a block, and the beginning of a line.
        assert passed[:2] == [2 * SIZE + 3, 4 * SIZE + 3]


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("name", "stream"),
    [("web.log", "web"), ("web.log.1.gz", "web"), (".web.log", "web"), ("web", "web"), ("...", "..."), ("..a", "a")],
)
def test_the_stream_of_a_file_is_its_name_up_to_the_first_dot(
    tmp_path: Path, log: events.Events, name: str, stream: str
) -> None:
    events.load(log, write(tmp_path / name, 1))
    assert log.streams()["stream"].to_pylist() == [stream]


def test_settings_of_a_load_hold_for_its_documents(tmp_path: Path, log: events.Events) -> None:
    file = write(tmp_path / "a.log", 1, 2, 3)
    log.set_limits(events.Limits(documents_per_s=2, period_s=1))
    with pytest.raises(ct.BusyError, match="exceeds its limit"):
        events.load(log, file, limited=True)
    assert events.load(log, file, ttl="1d").documents == 3
    assert log.dataset.read(columns=["ttl_s"]).to_arrow()["ttl_s"].to_pylist() == [86_400] * 3
    # Documents of another stream are others.
    other = log.read_options(stream="other")
    assert [events.load(log, file, other).documents for _ in range(2)] == [3, 0]
    assert log.dataset.count() == 6


@pytest.mark.parametrize(
    ("cores", "workers", "threads"),
    [(None, None, 1), (3, None, 3), (8, None, 8), (12, None, 8), (3, 0, 1), (3, 1, 1), (3, 2, 2), (3, 20, 20)],
)
def test_there_are_as_many_threads_as_cores_up_to_eight(
    tmp_path: Path, log: events.Events, monkeypatch: pytest.MonkeyPatch, cores: int | None, workers: int | None,
    threads: int,
) -> None:  # fmt: skip
    made: list[int] = []

    def pool(count: int) -> ThreadPoolExecutor:
        made.append(count)
        return ThreadPoolExecutor(1)

    monkeypatch.setattr(loading, "ThreadPoolExecutor", pool)
    monkeypatch.setattr(loading.os, "cpu_count", lambda: cores)
    events.load(log, write(tmp_path / "a.log", 1), workers=workers)
    assert made == [threads]


# ---------------------------------------------------------------- blocks


def test_a_batch_is_named_by_its_place_and_the_text_up_to_its_end(
    tmp_path: Path, log: events.Events, two_lines_each: None
) -> None:
    file = write(tmp_path / "a.log", 10, 11, 12)
    text = file.read_bytes()
    # These names are in archives: a file whose batches had others would be stored again.
    for stream in ("", "other"):
        wanted = []
        for start, end in ((0, 2 * SIZE), (2 * SIZE, 3 * SIZE)):
            digest = hashlib.blake2b(stream.encode() + text[:end], digest_size=16).hexdigest()
            wanted.append(f"events:{start}-{end}:{digest}")
        events.load(log, file, log.read_options(stream=stream) if stream else None)
        assert keys(log) == sorted(wanted)
        for key in wanted:
            log.remove_batch(key)


class Lines:
    """The part of an empty archive of events that a load needs; keeps the lines of each batch."""

    def __init__(self) -> None:
        self.dataset = self
        self.found: list[tuple[bytes, int]] = []

    def batches(self) -> list[Any]:
        return []

    rejected_batches = batches

    def batch(self, key: str) -> None:
        return None

    def read_options(self) -> events.ReadOptions:
        return events.ReadOptions("ndjson")

    def ingest_lines(self, text: bytes, read_options: events.ReadOptions, **options: Any) -> IngestReport:
        self.found.append((text, options["first_line"]))
        return IngestReport(options["batch"], True, text.count(b"\n"), len(text), 0)


@given(st.lists(st.integers(0, 60), max_size=12), st.integers(1, 70), st.booleans(), st.booleans())
def test_batches_have_whole_lines_in_order_however_long_they_are(
    sizes: list[int], batch_bytes: int, ends: bool, is_packed: bool
) -> None:
    text = b"\n".join(b"x" * size for size in sizes) + (b"\n" if ends else b"")
    lines: Any = Lines()
    with pytest.MonkeyPatch.context() as patch, tempfile.NamedTemporaryFile() as file:
        patch.setattr(loading, "BATCH_BYTES", batch_bytes)
        file.write(gzip.compress(text) if is_packed else text)
        file.flush()
        events.load(lines, file.name, workers=1)
    assert b"".join(part for part, _ in lines.found) == text
    passed = 0
    for part, first_line in lines.found:
        assert first_line == text[:passed].count(b"\n") + 1
        passed += len(part)
        assert part.endswith(b"\n") or passed == len(text)
        # More than a batch is a line that is longer than one, and at most as much again.
        assert len(part) <= batch_bytes or len(part.partition(b"\n")[0]) >= batch_bytes
    # A last line without an end is a batch of its own.
    if text and not text.endswith(b"\n"):
        assert lines.found[-1][0] == text.rpartition(b"\n")[2]


# ---------------------------------------------------------------- what is stored


def test_batches_of_other_calls_are_left_alone(tmp_path: Path, log: events.Events, two_lines_each: None) -> None:
    other = log.read_options(stream="s")
    for batch in ("mine", "pipe:0-5:ab", "events:", "events:0", "events:x-y:ab", "events:5:0-5", None):
        log.ingest_lines(LINE.format(1), other, batch=batch)
    file = write(tmp_path / "a.log", 10, 11, 12)
    for documents in (3, 0):
        report = events.load(log, file)
        assert (report.documents, report.documents_before) == (documents, 3 - documents)
    assert numbers(log) == [1] * 7 + [10, 11, 12]


@pytest.mark.parametrize("same", [[], [10, 11, 12, 13]])
def test_the_longest_stored_part_is_passed_over_where_files_begin_alike(
    tmp_path: Path, log: events.Events, monkeypatch: pytest.MonkeyPatch, same: list[int]
) -> None:
    long, short = write(tmp_path / "long", *same, *range(20, 26)), write(tmp_path / "short", *same, *range(20, 23))
    monkeypatch.setattr(loading, "BATCH_BYTES", 4 * SIZE)
    assert events.load(log, long).documents == len(same) + 6
    # It ends within a block of the other file.
    assert events.load(log, short).documents == 3
    # Blocks of another size are those that are stored, too.
    monkeypatch.setattr(loading, "BATCH_BYTES", 3 * SIZE)
    for file, count in ((long, 6), (short, 3)):
        report = events.load(log, file)
        assert (report.documents, report.documents_before) == (0, len(same) + count)
    changed = write(tmp_path / "changed", *same, *range(20, 25), 99)
    report = events.load(log, changed)
    assert (report.documents, report.documents_before) == (2, len(same) + 4)


def test_a_last_line_grew_whatever_other_files_have_in_its_place(
    tmp_path: Path, log: events.Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    same = range(10, 14)
    monkeypatch.setattr(loading, "BATCH_BYTES", 4 * SIZE)
    events.load(log, write(tmp_path / "other", *same, *range(20, 24)))
    file = write(tmp_path / "a.log", *same, end=LINE.format(20).rstrip())
    assert events.load(log, file).documents == 1
    report = events.load(log, write(file, *same, 20, 31, 32, 33))
    assert (report.documents, report.documents_before) == (4, 4)


@pytest.mark.parametrize("more", ["\n", " ", "}", f"\n{LINE.format(12)}"])
def test_a_last_line_that_grew_takes_the_place_of_its_beginning(
    tmp_path: Path, log: events.Events, two_lines_each: None, more: str
) -> None:
    file = write(tmp_path / "a.log", 10, 11, end=LINE.format(13).rstrip())
    for documents in (3, 0):
        assert events.load(log, file).documents == documents
    assert (numbers(log), len(keys(log))) == ([10, 11, 13], 2)
    with file.open("a") as appended:
        appended.write(more)
    report = events.load(log, file)
    whole = [10, 11] + [13] * (more != "}") + [12] * ("12" in more)
    assert (report.documents, report.documents_before, numbers(log)) == (len(whole) - 2, 2, sorted(whole))


def test_what_was_rejected_is_read_again_with_other_settings(
    tmp_path: Path, log: events.Events, two_lines_each: None
) -> None:
    wrong = log.read_options(time_field="when")
    first, second = write(tmp_path / "a.log", *range(10, 15)), write(tmp_path / "b.log", *range(20, 25))
    for _ in range(2):
        report = events.load(log, [first, second], wrong)
        assert (report.documents, report.rejected, report.batches) == (0, 10, 6)
        assert log.dead_letters().num_rows == 10
    assert events.load(log, first).documents == 5
    # Those of the other file have places of the same name.
    assert set(log.dead_letters()["source"].to_pylist()) == {str(second)}
    assert log.dead_letters().num_rows == 5
    assert events.load(log, second).documents == 5
    assert (log.dead_letters().num_rows, numbers(log)) == (0, [*range(10, 15), *range(20, 25)])


def test_a_batch_that_did_not_end_is_read_again(
    tmp_path: Path, log: events.Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "a.log", 1)
    events.load(log, file)
    [stored] = log.dataset.batches()
    log.remove_batch(str(stored.key))
    monkeypatch.setattr(ct.Dataset, "batches", lambda dataset: [replace(stored, finished=False)])
    assert events.load(log, file).documents == 1


def test_a_batch_that_another_process_stored_meanwhile_was_stored_before(
    tmp_path: Path, log: events.Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(tmp_path / "a.log", 1, 2)
    events.load(log, file)
    monkeypatch.setattr(ct.Dataset, "batches", lambda dataset: [])
    report = events.load(log, file)
    assert (report.documents, report.documents_before, report.batches, numbers(log)) == (0, 2, 0, [1, 2])


# ---------------------------------------------------------------- files that change


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of a file of some lines."""
    monkeypatch.setattr(loading, "BATCH_BYTES", 2_000)


def test_a_file_that_grows_and_is_rotated_is_stored_once(
    tmp_path: Path, memory: ct.Archive, small_blocks: None
) -> None:
    log = make(memory)
    lines = Artifacts(600).lines(40)
    text, path = b"\n".join(lines), tmp_path / "app.log"
    stored = 0
    for size in (len(text) // 3, len(text) // 2, len(text) // 2 + 3, len(text)):
        path.write_bytes(text[:size])
        report = events.load(log, path)
        whole = text[:size].count(b"\n") + (size == len(text))
        assert report.documents + report.documents_before == whole == log.count()
        assert report.documents == whole - stored
        stored = whole
    # Halves of lines were dead letters for as long as they were halves.
    assert log.dead_letters().num_rows == 0
    assert bodies(log) == [line.decode() for line in lines]
    assert log.search(columns=["line"], newest_first=False, limit=None)["line"].to_pylist() == list(range(1, 41))
    path.rename(tmp_path / "app.log.1")
    (tmp_path / "app.log.2.gz").write_bytes(gzip.compress(text))
    again = events.load(log, [tmp_path / "app.log.1", tmp_path / "app.log.2.gz"])
    assert (again.documents, again.documents_before, log.count()) == (0, 80, 40)


def test_files_that_begin_alike_are_told_apart(tmp_path: Path, memory: ct.Archive, small_blocks: None) -> None:
    log = make(memory)
    lines = Artifacts(600).lines(40)
    (tmp_path / "a.log").write_bytes(b"\n".join(lines[:30]))
    (tmp_path / "b.log").write_bytes(b"\n".join([*lines[:20], *lines[30:]]))
    events.load(log, tmp_path / "a.log")
    report = events.load(log, tmp_path / "b.log")
    # What both begin with is stored once.
    assert 0 < report.documents_before <= 20
    assert set(bodies(log)) == {line.decode() for line in lines}


def test_a_gap_in_what_is_stored_is_filled_and_nothing_behind_it_repeated(
    tmp_path: Path, memory: ct.Archive, small_blocks: None
) -> None:
    log = make(memory)
    lines = Artifacts(600).lines(40)
    path = tmp_path / "app.log"
    path.write_bytes(b"\n".join(lines[:30]) + b"\n")
    events.load(log, path)
    batches = sorted(batch.key or "" for batch in log.dataset.batches())
    assert len(batches) > 5
    for key in (batches[0], batches[3]):
        log.remove_batch(key)
    path.write_bytes(b"\n".join(lines) + b"\n")
    report = events.load(log, path, workers=1)
    assert report.documents > 10
    assert bodies(log) == [line.decode() for line in lines]


@pytest.mark.parametrize("missing", ["none.log", "empty"])
def test_files_that_are_not_there_are_refused(tmp_path: Path, memory: ct.Archive, missing: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ct.DataFileError, match=missing):
        events.load(make(memory), tmp_path / missing)


def test_a_damaged_gzip_file_is_refused_and_what_came_before_stays(tmp_path: Path, memory: ct.Archive) -> None:
    packed = gzip.compress(b"\n".join(Artifacts(600).lines(100)))
    half = len(packed) // 2
    archive = make(memory)
    # Cut off; then with bytes that no compressed text has.
    for damaged in (packed[:half], packed[:half] + b"\xff" * 200 + packed[half:]):
        (tmp_path / "a.gz").write_bytes(damaged)
        with pytest.raises(ct.DataFileError, match=r"cannot decompress .*a\.gz"):
            events.load(archive, tmp_path / "a.gz")
