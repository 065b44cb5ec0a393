"""Calls of an archive of events at the edges of their arguments: what they refuse, report and change."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

pytest.importorskip("pyarrow")
import pyarrow as pa
from support_events import FIRST, Clock

import chronotile as ct
from chronotile import events
from chronotile.bounds import Bounds
from chronotile.events.events import IngestReport
from chronotile.events.settings import SettingsStore

MICRO = timedelta(microseconds=1)
DAY = timedelta(days=1)


def line(number: int = 1, time: datetime = FIRST) -> str:
    return f'{{"time": "{time.isoformat()}", "host": "h", "n": {number}}}'


@pytest.fixture
def clock() -> Clock:
    return Clock(FIRST + timedelta(hours=1))


@pytest.fixture
def log(memory: ct.Archive, clock: Clock) -> events.Events:
    """An empty archive of events with a field, and a clock that is set."""
    events.create(memory, fields={"n": "int64"}, stream_field="host")
    return events.open(memory, clock=clock)


def numbers(table: pa.Table) -> list[int]:
    return list(table["n"].to_pylist())


# ---------------------------------------------------------------- creation


@pytest.mark.parametrize("name", ["a", "a1", "e_1", "z" * 39])
def test_a_name_has_letters_digits_and_underscores_and_39_characters_at_most(memory: ct.Archive, name: str) -> None:
    assert events.create(memory, name).dataset.name == name
    assert memory.datasets() == sorted([name, f"{name}_dead", f"{name}_settings"])


@pytest.mark.parametrize("name", ["", "_a", "1a", "A", "aB", "é", "a-b", "a.b", "z" * 40])
def test_other_names_are_refused(memory: ct.Archive, name: str) -> None:
    with pytest.raises(ct.InvalidInputError, match="invalid name"):
        events.create(memory, name)
    assert memory.datasets() == []


def test_arguments_of_another_kind_are_named(memory: ct.Archive) -> None:
    other: Any = "memory:"
    wrong: list[tuple[Any, str]] = [
        (lambda: events.create(other), "archive is 'memory:', of type str: give an open archive"),
        (lambda: events.open(other), "archive is 'memory:', of type str: give an open archive"),
        (lambda: events.create(memory, fields=["n"]), "fields is .*: give a dict of names and types"),  # type: ignore[arg-type]
        (lambda: events.create(memory, paths=["n"]), "paths is .*: give a dict of fields and their paths"),  # type: ignore[arg-type]
    ]
    for call, says in wrong:
        with pytest.raises(ct.InvalidInputError, match=says):
            call()
    assert memory.datasets() == []


def test_a_creation_that_was_cut_off_can_be_repeated(memory: ct.Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    create = ct.Archive.create

    def cut_off(archive: ct.Archive, name: str, **options: Any) -> ct.Dataset:
        if archive is memory and name == "events":
            raise KeyboardInterrupt
        return create(archive, name, **options)

    with monkeypatch.context() as patch:
        patch.setattr(ct.Archive, "create", cut_off)
        with pytest.raises(KeyboardInterrupt):
            events.create(memory, ttl="1d")
    with pytest.raises(ct.DatasetNotFoundError):
        events.open(memory)
    log = events.create(memory, ttl="2d")
    assert (log.ttl, log.dataset.retention) == ("2d", "2d")


def test_a_dataset_that_holds_no_events_is_told_so(memory: ct.Archive) -> None:
    memory.create("jobs", schema={"t": "timestamp[us]"}, cell=ct.single(), time="t")
    with pytest.raises(ct.DatasetNotFoundError, match="dataset jobs holds no events"):
        events.open(memory, "jobs")


def test_streams_share_eight_cells_by_default(memory: ct.Archive) -> None:
    log = events.create(memory)
    assert (log.dataset.cell, log.dataset.text) == (ct.cells.hash("stream", buckets=8), ("body",))
    own = events.create(memory, "own", buckets=None, text=iter(["source"]))
    assert (own.dataset.cell, own.dataset.text) == (ct.cells.hash("stream"), ("source",))


@pytest.mark.parametrize(("slice", "windows"), [("6h", 6), (6, 6), ("36h", 36), ("1d", 24), (24, 24), (None, 720)])
def test_dead_letters_have_slices_as_long_as_those_of_documents(
    memory: ct.Archive, slice: str | int | None, windows: int
) -> None:
    log = events.create(memory, slice=slice)
    for dataset in (log.dataset, memory["events_dead"]):
        assert (dataset.window, dataset.windows_per_slice) == ("1h", windows)


# ---------------------------------------------------------------- fields


def test_fields_that_another_process_declared_are_known_after_a_refresh(memory: ct.Archive, log: events.Events) -> None:
    events.open(memory).declare({"level": "utf8"})
    log.refresh()
    assert log.fields == {"n": "int64", "level": "utf8"}


@pytest.mark.parametrize(
    ("fields", "paths"),
    [
        ({"body": "utf8"}, None), ({"level": "utf8", "time": "utf8"}, {"time": "x"}),
        ({"level": "utf8"}, {"other": "x"}),
        ({"level": "utf8"}, {"level": "x", "other": "y"}), ({"n.unit": "utf8"}, None),
        ({"level": "teapot"}, None),
    ],
)  # fmt: skip
def test_fields_that_cannot_be_declared_change_nothing(
    log: events.Events, fields: dict[str, str], paths: dict[str, str] | None
) -> None:
    before = log.settings
    with pytest.raises(ct.InvalidInputError):
        log.declare(fields, paths)
    assert (log.fields, log.settings) == ({"n": "int64"}, before)


def test_a_field_that_is_declared_stays_at_its_path(memory: ct.Archive, log: events.Events) -> None:
    events.open(memory).declare({"level": "utf8"}, {"level": "event.level"})
    for name, kind in (("level", "utf8"), ("n", "int64")):
        with pytest.raises(ct.InvalidInputError, match=f"field '{name}' is already declared"):
            log.declare({"more": "utf8", name: kind}, {name: "elsewhere"})
    assert (log.fields, log.settings.paths) == ({"n": "int64", "level": "utf8"}, {"level": "event.level"})


# ---------------------------------------------------------------- ingest


def test_a_report_counts_repeated_documents_as_duplicates() -> None:
    stored = IngestReport("b", True, 3, 40, 1)
    assert (stored.duplicates, stored.rejected, stored.expired) == (0, 0, 0)
    again = IngestReport("b", False, 3, 40, 1)
    assert again.to_dict() == {
        "batch": "b", "stored": False, "documents": 3, "duplicates": 3, "expired": 0, "rejected": 0, "reasons": {},
        "errors": [],
    }  # fmt: skip


def test_a_call_reports_documents_bytes_and_what_is_no_document(log: events.Events, clock: Clock) -> None:
    log.set_ttl("1d")
    clock.now = FIRST + DAY
    text = f"{line()}\n\n{line(2, FIRST + MICRO)}\nbad\n\n"
    report = log.ingest_lines(text, batch="b")
    reject = events.Reject(4, "the line is not a JSON object", b"bad")
    size = len(line()) + len(line(2, FIRST + MICRO))
    reasons = {reject.reason: 1}
    # One of two documents is a day old.
    assert report == IngestReport("b", True, 2, size, 2, (reject,), 1, reasons, 1)
    assert log.ingest_lines(text, batch="b") == IngestReport("b", False, 2, size, 2, (reject,), 1, reasons, 0)


def test_blank_lines_are_stored_as_an_empty_batch(log: events.Events) -> None:
    assert log.ingest_lines("\n \n", batch="b") == IngestReport("b", True, 0, 0, 2)
    assert [(batch.key, batch.rows) for batch in log.dataset.batches()] == [("b", 0)]


@pytest.mark.parametrize("given", [None, 5, [line()], {"time": "2026-01-01"}], ids=repr)
def test_lines_that_are_neither_text_nor_bytes_are_refused(log: events.Events, given: Any) -> None:
    with pytest.raises(
        ct.InvalidInputError, match=r"cannot ingest lines from an object of type .*: give text or bytes"
    ):
        log.ingest_lines(given)
    assert log.count() == 0


def test_lines_without_a_batch_name_are_stored_however_often(memory: ct.Archive, log: events.Events) -> None:
    first, second = log.ingest_lines(line()), log.ingest_lines(line().encode())
    assert first.batch.startswith("events:")
    assert first.batch != second.batch
    assert (log.count(), log.search(columns=["line", "source"]).to_pylist()) == (2, [{"line": 1, "source": ""}] * 2)
    # Without rejects, there is no batch of dead letters.
    assert memory["events_dead"].batches() == []


def test_a_call_without_documents_leaves_its_name_free(memory: ct.Archive, log: events.Events) -> None:
    first, second = (log.ingest_lines("bad\nworse", batch="b") for _ in range(2))
    assert (first.stored, first.documents, first.bytes, first.rejected) == (True, 0, 0, 2)
    assert (second.stored, second.rejected, log.dead_letters().num_rows) == (False, 2, 2)
    assert (log.dataset.batches(), [batch.key for batch in log.rejected_batches()]) == ([], ["b"])
    log.ingest_lines(f"{line()}\nbad", batch="c")
    assert [batch.key for batch in log.rejected_batches()] == ["b"]
    log.forget_rejects("b")
    assert (log.rejected_batches(), log.dead_letters()["record"].to_pylist()) == ([], [b"bad"])
    assert log.ingest_lines(line(), batch="b").stored
    # A name of which only blank lines are stored is free again, too.
    log.ingest_lines("\n", batch="d")
    log.ingest_lines("bad", batch="d")
    log.forget_rejects("d")
    assert [batch.key for batch in log.dataset.batches()] == ["c", "b"]
    assert log.ingest_lines(line(), batch="d").stored


def test_a_batch_that_another_process_has_stored_meanwhile_is_not_forgotten(log: events.Events) -> None:
    log.ingest_lines("bad", batch="a")
    log.ingest_lines("bad", batch="b")
    assert len(log.rejected_batches()) == 2
    # Meanwhile another process forgets both, and stores one.
    log.forget_rejects("a")
    log.forget_rejects("b")
    log.ingest_lines(f"{line()}\nbad", batch="b")
    log.forget_rejects("b")
    assert (log.count(), log.dead_letters()["record"].to_pylist()) == (1, [b"bad"])
    log.forget_rejects("a")


def test_a_refused_call_leaves_the_dead_letters_that_were_stored_before(log: events.Events) -> None:
    log.ingest_lines(line(), batch="a")
    log.ingest_lines(f"{line()}\nbad", batch="b")
    for batch, text in (("a", f"{line(2)}\nworse"), ("b", f"{line(2)}\nbad"), ("b", line(2))):
        with pytest.raises(ct.BatchConflictError):
            log.ingest_lines(text, batch=batch)
        assert (log.count(), log.dead_letters()["record"].to_pylist()) == (2, [b"bad"])
    assert log.remove_batch("a") == 1
    assert log.remove_batch("b") == 1
    assert log.dead_letters().num_rows == 0


class Raced:
    """The dataset of dead letters as a call sees it that another process is ahead of."""

    def __init__(self, dataset: ct.Dataset, kind: str | None = None) -> None:
        self._dataset, self._kind = dataset, kind

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def batch(self, key: str) -> None:
        return None

    def write(self, rows: Any, batch: str) -> Any:
        if self._kind is not None:
            raise ct.BatchConflictError("another process wrote it meanwhile", kind=self._kind)
        return self._dataset.write(rows, batch)


def test_dead_letters_that_another_process_stored_meanwhile_are_kept(
    memory: ct.Archive, log: events.Events, clock: Clock
) -> None:
    log.ingest_lines("bad", batch="b")
    clock.now += DAY
    settings = SettingsStore(memory["events_settings"])
    late: Any = Raced(memory["events_dead"])
    assert not events.Events(log.dataset, late, settings, clock).ingest_lines("bad", batch="b").stored
    assert log.dead_letters()["time"].to_pylist() == [clock.now - DAY]
    raced: Any = Raced(memory["events_dead"], "batch-race")
    with pytest.raises(ct.BatchConflictError, match="meanwhile"):
        events.Events(log.dataset, raced, settings, clock).ingest_lines(f"{line()}\nworse", batch="c")
    # Documents whose dead letters are not stored are not stored either.
    assert log.count() == 0


def test_documents_that_another_process_is_writing_leave_their_dead_letters(
    memory: ct.Archive, log: events.Events, clock: Clock
) -> None:
    raced: Any = Raced(log.dataset, "batch-race")
    mine = events.Events(raced, memory["events_dead"], SettingsStore(memory["events_settings"]), clock)
    with pytest.raises(ct.BatchConflictError, match="meanwhile"):
        mine.ingest_lines(f"{line()}\nbad", batch="b")
    # Both processes have the same lines: the call that is repeated stores them.
    assert log.dead_letters()["record"].to_pylist() == [b"bad"]


# ---------------------------------------------------------------- search


def test_a_search_returns_the_newest_hundred_documents_by_default(log: events.Events) -> None:
    log.ingest_lines("\n".join(line(number, FIRST + number * MICRO) for number in range(120)))
    newest = list(range(119, 19, -1))
    assert numbers(log.search()) == newest
    assert numbers(pa.concat_tables(log.search_parts())) == newest
    assert log.search().column_names == ["time", "stream", "n", "body"]
    assert numbers(log.search(limit=1, newest_first=False)) == [0]
    assert numbers(pa.concat_tables(log.search_parts(columns=["n"], limit=2, start=FIRST, n=[3, 5, 7]))) == [7, 5]
    assert log.top("n").num_rows == 10
    assert log.top("n", 1).num_rows == 1


def test_a_period_holds_its_start_and_not_its_end_to_the_nanosecond(log: events.Events) -> None:
    log.ingest_lines("\n".join(line(number, FIRST + number * MICRO) for number in range(3)))
    day = "2026-01-01T00:00:00"
    assert log.count(start=FIRST, end=FIRST) == 0
    assert log.count(start=f"{day}.000001", end=f"{day}.000002") == 1
    assert numbers(log.search(start=f"{day}.0000010", newest_first=False)) == [1, 2]
    assert numbers(log.search(start=f"{day}.000000001", newest_first=False)) == [1, 2]
    assert numbers(log.search(start=f"{day}.000001001")) == [2]
    assert numbers(log.search(end=f"{day}.000001001", newest_first=False)) == [0, 1]
    assert numbers(log.search(end=f"{day}.000001")) == [0]
    with pytest.raises(ct.InvalidInputError, match="is after end"):
        log.count(start=FIRST + MICRO, end=FIRST)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (lambda log: log.search(where=("nothing", "==", 1)), "nothing"),
        (lambda log: log.count(nothing=1), "nothing"),
        (lambda log: log.top("nothing"), "no column 'nothing'"),
        (lambda log: log.top("n", 0), "n=0 is out of range: use at least 1"),
        (lambda log: log.histogram("1h", by="nothing"), "no column 'nothing'"),
        (lambda log: log.search(columns=["bodi"]), "no column 'bodi'; did you mean body?"),
        (lambda log: log.search_parts(columns=["nothing"]), "no column 'nothing'"),
    ],
)
def test_columns_that_are_unknown_are_refused_where_there_are_no_documents(
    log: events.Events, asked: Any, says: str
) -> None:
    with pytest.raises(ct.InvalidInputError) as refused:
        asked(log)
    assert says in str(refused.value)


# ---------------------------------------------------------------- dead letters


def test_dead_letters_are_the_newest_first_and_live_as_long_as_documents(
    memory: ct.Archive, log: events.Events, clock: Clock
) -> None:
    log.set_ttl("1d")
    began = clock.now
    for number in range(3):
        clock.now = began + number * MICRO
        log.ingest_lines(f"bad {number}", source="s", first_line=number, ttl="2d")
    records = [b"bad 2", b"bad 1", b"bad 0"]
    assert log.dead_letters()["record"].to_pylist() == records
    assert log.dead_letters().column_names == ["time", "source", "line", "reason", "record"]
    assert log.dead_letters(limit=2)["line"].to_pylist() == [2, 1]
    assert log.dead_letters(start=began + MICRO, end=began + 2 * MICRO)["record"].to_pylist() == [b"bad 1"]
    held: list[int] = []
    table = log.dead_letters(bounds=Bounds(hold=held.append))
    # Twice, for a moment: in parts and as a whole.
    assert held[-1] == 2 * table.nbytes
    clock.now = began + DAY
    assert log.dead_letters()["record"].to_pylist() == records[:2]
    clock.now += MICRO
    assert log.dead_letters()["record"].to_pylist() == records[:1]
    # Their storage goes with that of documents.
    clock.now = began + 3 * DAY
    log.reclaim(dry_run=True)
    assert memory["events_dead"].count() == 3
    log.reclaim()
    assert memory["events_dead"].count() == 0


# ---------------------------------------------------------------- time to live


def test_nothing_can_be_dropped_while_a_ttl_changes(log: events.Events, monkeypatch: pytest.MonkeyPatch) -> None:
    log.set_ttl("1d")
    assert log.dataset.retention == "1d"
    kept: list[str | None] = []
    write = SettingsStore.write

    def noted(store: SettingsStore, settings: Any) -> None:
        kept.append(log.dataset.retention)
        write(store, settings)

    monkeypatch.setattr(SettingsStore, "write", noted)
    log.set_ttl("2d")
    assert (kept, log.dataset.retention) == ([None], "2d")


def test_a_ttl_that_another_process_changes_meanwhile_determines_what_the_dataset_keeps(
    memory: ct.Archive, log: events.Events, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_retention = ct.Dataset.set_retention
    other = events.open(memory)

    def late(dataset: ct.Dataset, retention: str | None) -> Any:
        if retention == "1d":
            monkeypatch.undo()
            # The other process is done between the settings and the dataset of this one.
            other.set_ttl("3d")
        return set_retention(dataset, retention)

    monkeypatch.setattr(ct.Dataset, "set_retention", late)
    log.set_ttl("1d")
    assert (log.ttl, log.dataset.retention) == ("3d", "3d")


def test_a_shorter_ttl_of_its_own_leaves_what_the_dataset_keeps(log: events.Events) -> None:
    log.set_ttl("1d")
    for ttl, kept in (("2d", "2d"), ("1h", "2d"), ("2d", "2d"), ("172801s", "172801s")):
        log.ingest_lines(line(), ttl=ttl)
        assert log.dataset.retention == kept
