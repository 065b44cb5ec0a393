"""Loads of small files of jobs, block by block: reports, rejects, progress, workers, and types from a file's start."""

from __future__ import annotations

import gzip
import json
import math
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support_durable import SyncedNames

import chronotile as ct
from chronotile import jobs
from chronotile.jobs import SWF_COLUMNS, blocks, loading
from chronotile.jobs.loading import LoadProgress, LoadReport, infer_schema

HEADER = "job_id,submitted,user\n"
LINE = "{},2026-01-01,ann\n"


@pytest.fixture
def done(memory: ct.Archive) -> jobs.Jobs:
    return jobs.create(memory, schema={"job_id": "int64", "submitted": "timestamp[us, UTC]", "user": "utf8"})


@pytest.fixture
def two_lines_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of two lines, whose ids have two digits."""
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 2 * len(LINE.format(10)))


def ids(done: jobs.Jobs) -> list[int]:
    return sorted(done.find(columns=["job_id"]).to_arrow()["job_id"].to_pylist())


def write(path: Path, *numbers: Any, header: str = HEADER) -> Path:
    path.write_text(header + "".join(LINE.format(number) for number in numbers))
    return path


def rejects_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# ---------------------------------------------------------------- reports


def test_a_load_reports_what_it_stored_and_what_was_stored_before(
    tmp_path: Path, done: jobs.Jobs, two_lines_each: None
) -> None:
    file = write(tmp_path / "a.csv", 10, 11, 12, "xx", 14, 14)
    began = time.monotonic()
    report = jobs.load(done, file)
    assert 0 < report.seconds <= time.monotonic() - began
    # Of two rows with one id in a block, the later stays.
    assert report == LoadReport(
        files=1, rejected=1, seconds=report.seconds, rows=4, duplicates=1,
        first_reject=(str(file), 5, "column 'job_id' cannot be read as int64: invalid value 'xx'"),
    )  # fmt: skip
    assert (report.records, ids(done)) == (4, [10, 11, 12, 14])
    done.dataset.remove_batch(min(str(batch.key) for batch in done.dataset.batches()))
    again = jobs.load(done, str(file))
    assert (again.rows, again.rows_before, again.rejected, again.duplicates) == (2, 2, 0, 0)
    assert (again.records, again.first_reject, ids(done)) == (4, None, [10, 11, 12, 14])


def test_the_first_reject_of_several_files_is_told(tmp_path: Path, done: jobs.Jobs) -> None:
    write(tmp_path / "a.csv", 1)
    write(tmp_path / "b.csv", 2, "x", "y")
    write(tmp_path / "c.csv", "z")
    report = jobs.load(done, [tmp_path / "a.csv", str(tmp_path / "b.csv"), tmp_path / "c.csv"])
    assert (report.files, report.rows, report.rows_before, report.duplicates, report.rejected) == (3, 2, 0, 0, 3)
    assert report.first_reject is not None
    assert report.first_reject[:2] == (str(tmp_path / "b.csv"), 3)


def test_a_load_has_progress_to_the_last_byte_of_its_files(
    tmp_path: Path, done: jobs.Jobs, two_lines_each: None
) -> None:
    files = [write(tmp_path / f"{name}.csv", *range(10, last)) for name, last in (("a", 15), ("b", 13))]
    sizes = [file.stat().st_size for file in files]
    seen: list[tuple[str, int, int]] = []

    def note(state: LoadProgress) -> None:
        assert state.bytes_total == sum(sizes)
        assert 0 < state.report.seconds <= time.monotonic() - began
        seen.append((Path(state.file).name, state.bytes_done, state.report.records))

    began = time.monotonic()
    jobs.load(done, tmp_path, progress=note)
    names = ["a.csv", "a.csv", "a.csv", "b.csv", "b.csv"]
    assert [(name, records) for name, _, records in seen] == list(zip(names, (2, 4, 5, 7, 8), strict=True))
    passed = [done for _, done, _ in seen]
    assert passed == sorted(passed)
    assert passed[0] < passed[2] == sizes[0] < passed[3]
    assert passed[-1] == sum(sizes)


def test_a_file_without_records_takes_time_too(tmp_path: Path, done: jobs.Jobs) -> None:
    report = jobs.load(done, write(tmp_path / "a.csv"))
    assert report == LoadReport(files=1, seconds=report.seconds)
    assert report.seconds > 0


@pytest.mark.parametrize("allowed", [2, 3])
def test_a_load_ends_after_more_rejects_than_allowed(
    tmp_path: Path, done: jobs.Jobs, two_lines_each: None, allowed: int
) -> None:
    file = write(tmp_path / "a.csv", "xx", "xy", "xz", 10, 11, 12)
    if allowed == 3:
        assert jobs.load(done, file, rejects_max=allowed).rejected == 3
        return
    with pytest.raises(
        ct.DataFileError, match=r"3 records rejected, more than allowed; the first is line 2 of .*a\.csv"
    ):
        jobs.load(done, file, rejects_max=allowed)
    # What came before the last reject is stored.
    assert ids(done) == [10]


def test_loads_that_cannot_work_are_refused(tmp_path: Path, done: jobs.Jobs) -> None:
    file = write(tmp_path / "a.csv", 1)
    for workers in (0, -1):
        with pytest.raises(ct.InvalidInputError, match=f"workers={workers} is out of range: use at least 1"):
            jobs.load(done, file, workers=workers)
    with pytest.raises(ct.InvalidInputError, match="unknown format 'xml': use one of csv, ndjson, parquet, swf"):
        jobs.load(done, file, format="xml")
    plain = write(tmp_path / "a.txt", 1)
    assert jobs.load(done, plain, format="csv", workers=1).rows == 1
    with pytest.raises(ct.InvalidInputError, match="required column 'job_id' is missing"):
        jobs.load(done, write(tmp_path / "b.csv", 1, header="user,submitted\n"))


def test_a_file_without_a_header_has_the_names_and_nulls_that_are_given(tmp_path: Path, done: jobs.Jobs) -> None:
    (tmp_path / "a.csv").write_text("none;1;2026-01-01\nann;2;2026-01-01\n")
    report = jobs.load(done, tmp_path / "a.csv", names=["user", "job_id", "submitted"], delimiter=";", nulls=["none"])
    assert report.rows == 2
    assert done.get(1, columns=["user"]).to_arrow()["user"].to_pylist() == [None]
    assert done.get(2, columns=["user"]).to_arrow()["user"].to_pylist() == ["ann"]


# ---------------------------------------------------------------- rejects


def test_rejects_survive_a_crash_of_the_machine(
    tmp_path: Path, done: jobs.Jobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kept").mkdir()
    synced = SyncedNames(monkeypatch)
    file, kept = write(tmp_path / "a.csv", "xx"), tmp_path / "kept" / "bad.ndjson"
    for _ in range(2):
        jobs.load(done, file, rejects=kept)
        assert synced.lost(tmp_path / "kept") == []


def test_rejects_are_kept_once_however_often_a_file_is_loaded(
    tmp_path: Path, done: jobs.Jobs, two_lines_each: None
) -> None:
    file, kept = write(tmp_path / "a.csv", "xx", "xy", 10, "é"), tmp_path / "bad.ndjson"
    kept.write_text('{"of": "before"}\n')
    for _ in range(2):
        report = jobs.load(done, file, rejects=kept)
        assert report.rejects == str(kept)
    reason = "column 'job_id' cannot be read as int64: invalid value '{}'"
    assert rejects_of(kept) == [{"of": "before"}] + [
        {"file": str(file), "line": line, "reason": reason.format(text), "record": LINE.format(text).strip()}
        for line, text in ((2, "xx"), (3, "xy"), (5, "é"))
    ]
    assert not (tmp_path / "bad.ndjson.new").exists()
    # A block of which nothing was stored may be read again with other settings.
    assert len(done.dataset.batches()) == 1


def test_without_rejects_there_is_no_file_of_them(tmp_path: Path, done: jobs.Jobs) -> None:
    report = jobs.load(done, write(tmp_path / "a.csv", 1), rejects=tmp_path / "bad.ndjson")
    assert (report.rejected, (tmp_path / "bad.ndjson").exists()) == (0, False)
    jobs.load(done, write(tmp_path / "b.csv", "x"))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.csv", "b.csv"]


def test_rejects_that_cannot_be_written_end_the_load_before_their_block_is_stored(
    tmp_path: Path, done: jobs.Jobs
) -> None:
    with pytest.raises(ct.DataFileError, match="cannot write the reject file") as refused:
        jobs.load(done, write(tmp_path / "a.csv", 1, "x"), rejects=tmp_path)
    assert (refused.value.kind, done.count()) == ("file-access", 0)


def test_a_block_whose_rows_were_retired_is_stored_again(tmp_path: Path, done: jobs.Jobs) -> None:
    file = write(tmp_path / "a.csv", 1, 2)
    jobs.load(done, file)
    done.dataset.retire(before="2200-01-01")
    assert done.count() == 0
    report = jobs.load(done, file)
    assert (report.rows, report.rows_before, ids(done)) == (2, 0, [1, 2])


# ---------------------------------------------------------------- workers


class Pool(Executor):
    """Does the work of processes in this one, and notes how it was made."""

    made: list[tuple[int, str]] = []  # noqa: RUF012 - one list for all

    def __init__(
        self, workers: int, context: Any, initializer: Callable[..., None], arguments: tuple[Any, ...]
    ) -> None:
        self.made.append((workers, context.get_start_method()))
        initializer(*arguments)

    def submit(self, work: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(work(*arguments, **options))
        return future


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What each worker does before it works."""
    done: list[Any] = []

    def open_archive(url: str, **options: Any) -> ct.Archive:
        done.append(options)
        return ct.open(url, **options)

    monkeypatch.setattr(loading, "end_with_parent", lambda: done.append("ends with its parent"))
    monkeypatch.setattr(pa, "set_cpu_count", lambda count: done.append(count))
    monkeypatch.setattr(loading, "open_archive", open_archive)
    return done


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch, begun: list[Any]) -> list[tuple[int, str]]:
    """The number of workers of each pool, and how they begin."""
    monkeypatch.setattr(Pool, "made", [])
    monkeypatch.setattr(loading, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(loading, "_worker", None)
    return Pool.made


def test_processes_load_where_they_can_open_the_archive(
    tmp_path: Path, sqlite: ct.Archive, done: jobs.Jobs, pools: list[tuple[int, str]], begun: list[Any],
    two_lines_each: None,
) -> None:  # fmt: skip
    own = jobs.create(sqlite, "own", schema={"job_id": "int64", "submitted": "timestamp[us, UTC]", "user": "utf8"})
    file, bad = write(tmp_path / "a.csv", *range(10, 17), "xx"), tmp_path / "bad.ndjson"
    with pytest.raises(RuntimeError, match="the worker was not initialized"):
        loading._load_in_worker(next(blocks.blocks(blocks.files([str(file)], None)[0], header=True)))
    report = jobs.load(own, file, url=sqlite.url, workers=3, rejects=bad)
    assert (report.rows, report.rejected, ids(own)) == (7, 1, list(range(10, 17)))
    assert [entry["line"] for entry in rejects_of(bad)] == [9]
    # Forking is unsafe in a process with threads.
    assert pools == [(3, "spawn")]
    # A worker waits for others that write, has one core, and creates nothing.
    assert begun == ["ends with its parent", 1, {"create": False, "timeout_s": 600}]
    for where, options in (
        (own, {"workers": 3}), (own, {"url": sqlite.url, "workers": 1}), (done, {"url": "memory:", "workers": 3}),
    ):  # fmt: skip
        assert jobs.load(where, file, **options).records == 7  # type: ignore[arg-type]
    assert len(pools) == 1


@pytest.mark.parametrize(("cores", "workers"), [(None, 1), (1, 1), (3, 3), (8, 8), (12, 8)])
def test_there_are_as_many_workers_as_cores_up_to_eight(
    tmp_path: Path, sqlite: ct.Archive, pools: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch,
    cores: int | None, workers: int,
) -> None:  # fmt: skip
    own = jobs.create(sqlite, "own", schema={"job_id": "int64", "submitted": "timestamp[us, UTC]", "user": "utf8"})
    monkeypatch.setattr(loading.os, "cpu_count", lambda: cores)
    jobs.load(own, write(tmp_path / "a.csv", 1), url=sqlite.url)
    # One works in this process.
    assert pools == ([(workers, "spawn")] if workers > 1 else [])


# ---------------------------------------------------------------- types from the start of a file


def inferred(path: Path, text: str | bytes, **options: Any) -> dict[str, str]:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    given = {"format": None, "names": None, "delimiter": ",", **options}
    return infer_schema(str(path), given["format"], given["names"], given["delimiter"])


def test_types_are_those_of_valid_records_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "job_id,when,load\n1,2026-01-01T00:00:00Z,1\nx,y\n\n3,2026-01-02T00:00:00Z,NULL\n,,\nx,y,z,u\n4,\\N,2.5\n"
    wanted = {"job_id": "int64", "when": "timestamp[us, UTC]", "load": "float64"}
    assert inferred(tmp_path / "a.csv", text) == wanted
    assert inferred(tmp_path / "b.csv", gzip.compress(text.encode())) == wanted
    bare = text.partition("\n")[2].replace(",", "|")
    assert inferred(tmp_path / "c.csv", bare, names=["job_id", "when", "load"], delimiter="|") == wanted
    assert inferred(tmp_path / "d.txt", text, format="csv") == wanted
    # The last line needs no line break.
    assert inferred(tmp_path / "a.csv", text.removesuffix("\n")) == wanted
    # Only so many records are looked at, one of which is too short.
    monkeypatch.setattr(loading, "SAMPLED", 3)
    assert inferred(tmp_path / "a.csv", text)["load"] == "int64"
    monkeypatch.setattr(loading, "SAMPLED", 5)
    assert inferred(tmp_path / "a.csv", text)["load"] == "int64"
    assert inferred(tmp_path / "a.csv", text.removesuffix("\n"))["load"] == "int64"
    monkeypatch.setattr(loading, "SAMPLED", 6)
    assert inferred(tmp_path / "a.csv", text)["load"] == "float64"
    assert inferred(tmp_path / "a.csv", text.removesuffix("\n"))["load"] == "float64"


def test_types_are_those_of_two_blocks_at_most(tmp_path: Path, two_lines_each: None) -> None:
    lines = [LINE.format(number) for number in range(10, 16)]
    for place, wanted in ((3, "float64"), (4, "int64")):
        text = "".join([*lines[:place], LINE.format(".5"), *lines[place:]])
        assert inferred(tmp_path / "a.csv", HEADER + text)["job_id"] == wanted


def test_types_of_other_formats_are_inferred(tmp_path: Path) -> None:
    records = ['{"job_id": 1, "user": "ann"}', "[1]", '{"job_id"', '{"job_id": 2, "load": 1.5}']
    text = "".join(f"{record}\n" for record in records)
    for end in ("", "\n"):
        found = inferred(tmp_path / "a.ndjson", text.removesuffix(end))
        assert found == {"job_id": "int64", "user": "utf8", "load": "float64"}
    assert inferred(tmp_path / "a.swf", "; nothing\n") == SWF_COLUMNS
    pq.write_table(pa.table({"job_id": [1], "load": [math.nan]}), tmp_path / "a.parquet")
    assert infer_schema(str(tmp_path / "a.parquet"), None, None, ",") == {"job_id": "int64", "load": "float64"}


def test_a_file_without_records_is_told_by_its_own_name(tmp_path: Path) -> None:
    with pytest.raises(ct.ChronotileError) as refused:
        inferred(tmp_path / "a.ndjson", "")
    assert str(tmp_path / "a.ndjson") in str(refused.value)
    assert "chronotile-" not in str(refused.value)
