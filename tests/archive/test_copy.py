"""An archive copied to another engine and back is the same, whatever happens on the way."""

from __future__ import annotations

import json
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
import pyarrow as pa
import support_copies
import support_visits
from conftest import Run
from support_visits import Visit

import chronotile as ct
from chronotile_tools import lab

KILLS = 12
"""Most copies killed on one target."""


def content(archive: ct.Archive, **options: bool) -> pa.Table:
    return archive["visits"].read(**options).to_arrow().sort_by("id")


def fill(path: Path, visits: int) -> None:
    with ct.open(path, superseded_kept_s=0) as archive:
        support_copies.write(support_visits.create(archive), 1, visits)


def batches(archive: ct.Archive) -> list[ct.BatchInfo]:
    return sorted(archive["visits"].batches(), key=lambda batch: batch.batch)


def assert_same(source: str | Path, target: str | Path) -> None:
    """By what readers see, and by what verification of either says."""
    with ct.open(source, read_only=True) as here, ct.open(target, read_only=True) as there:
        assert content(there).equals(content(here))
        assert batches(there) == batches(here)
        found, wanted = there["visits"].verify(), here["visits"].verify()
        # The source may keep rows of superseded batches for its readers.
        assert (found.ok, wanted.ok, found.batches) == (True, True, wanted.batches)


def stored(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """Chunks and records of a file, read without the library and without what each archive has of its own: what marks a
    copy, the checksum over that, and the latest stamp."""
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as raw:
        tables = [name for (name,) in raw.execute("SELECT name FROM sqlite_schema WHERE name LIKE 'keys_%'")]
        found: dict[str, list[tuple[object, ...]]] = {}
        for table in tables:
            chunks = table.replace("keys_", "chunks_", 1)
            query = f'SELECT k.cell, k.window, k.id, k.rows, k.bytes, c.head, c.body FROM "{table}" k'
            found[table] = sorted(raw.execute(f'{query} JOIN "{chunks}" c USING (chunk)'))
        own = "key LIKE 'copy/%' OR key LIKE 'changes/%' OR key = 'clock'"
        records = dict(raw.execute(f"SELECT key, value FROM catalog WHERE NOT ({own})"))
    raw.close()
    for key, value in records.items():
        if key.startswith("batch/"):
            records[key] = {
                name: part
                for name, part in json.loads(value).items()
                if name not in ("copied", "checksum", "ended_us", "previous")
            }
    # Each archive has its own list of batches that were replaced or removed.
    for key in [key for key in records if key.startswith("superseded/")]:
        del records[key]
    found["catalog"] = sorted((key, str(value)) for key, value in records.items())
    return found


@pytest.fixture
def url(single_node: lab.Cluster, request: pytest.FixtureRequest) -> str:
    """A keyspace of its own on a node."""
    name = "".join(c for c in request.node.name.lower() if c.isalnum() or c == "_")[:40]
    return f"{single_node.url(name)}?catalog_buckets=16"


def test_a_file_is_copied_to_the_byte_and_copied_again_without_work(tmp_path: Path) -> None:
    source, target = tmp_path / "a.db", tmp_path / "b.db"
    fill(source, 30)
    seen: list[ct.CopyProgress] = []
    report = ct.copy(source, target, progress=seen.append)
    [visits] = report.datasets
    assert report.ok
    assert visits.caught_up
    assert visits.rows_copied == visits.rows_verified > 0
    assert stored(target) == stored(source)
    assert_same(source, target)
    assert seen[-1].verifying
    assert (seen[-1].tiles_done, seen[-1].bytes) == (seen[-1].tiles_total, visits.bytes_verified)
    again = ct.copy(source, target).datasets[0]
    assert (again.chunks_copied, again.batches_copied, again.passes) == (0, 0, 1)
    assert ct.copy(source, target, "visits", verify_only=True).ok


def start(*arguments: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, support_copies.__file__, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def copy_and_kill(source: str | Path, target: str | Path, delay_s: float) -> bool:
    """Whether the copy was killed at work."""
    process = start("copy", source, target)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.stdin.write(b"go\n")
    process.stdin.flush()
    time.sleep(delay_s)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    return process.returncode == -signal.SIGKILL


def look(source: Path, target: str | Path) -> int:
    """What counts as finished on the target is there as a whole. Returns how many batches that are."""
    try:
        archive = ct.open(target, create=False, read_only=True)
    except ct.ArchiveNotFoundError:
        return 0
    with archive, ct.open(source, read_only=True) as here:
        if "visits" not in archive:
            return 0
        ds = archive["visits"]
        rows = ds.count()
        finished = [batch for batch in ds.batches() if batch.finished]
        assert rows == sum(batch.rows for batch in finished)
        assert {batch.batch for batch in finished} <= {batch.batch for batch in here["visits"].batches()}
        assert ds.verify().ok
        return len(finished)


def kill_and_finish(source: Path, target: str | Path, slowest_s: float, choose: random.Random) -> int:
    """Kill copies until one is faster; returns how many were killed."""
    killed = 0
    while killed < KILLS and copy_and_kill(source, target, choose.uniform(0, slowest_s)):
        killed += 1
        look(source, target)
    assert ct.copy(source, target).ok
    assert_same(source, target)
    return killed


def test_a_copy_killed_again_and_again_loses_and_doubles_nothing(tmp_path: Path) -> None:
    source, whole = tmp_path / "a.db", tmp_path / "whole.db"
    fill(source, 60)
    began = time.monotonic()
    ct.copy(source, whole)
    whole_s = time.monotonic() - began
    choose = random.Random(20_261_122)
    killed = targets = 0
    while killed < KILLS // 2:
        target = tmp_path / f"b{targets}.db"
        killed += kill_and_finish(source, target, whole_s / 2, choose)
        assert stored(target) == stored(source)
        targets += 1
        assert targets < 40, "too few kills hit a copy"


def copy_beside_a_writer(source: Path, target: str | Path) -> None:
    fill(source, 12)
    writer = start("write", source)
    assert writer.stdout is not None
    try:
        assert writer.stdout.readline() == b"ready\n"
        for _ in range(4):
            time.sleep(0.3)
            report = ct.copy(source, target, passes_max=2)
            assert report.ok, report
            look_live(target)
        assert writer.poll() is None, "the writer ended before the copies"
        writer.communicate(b"stop\n", timeout=120)
        assert writer.returncode == 0
    finally:
        writer.kill()
        writer.communicate()
    with ct.open(source, superseded_kept_s=0) as archive:
        assert sum((batch.key or "").startswith("2-") for batch in archive["visits"].batches()) > 3
        archive["visits"].consolidate()
    report = ct.copy(source, target)
    assert report.ok
    assert report.datasets[0].caught_up
    assert_same(source, target)


def look_live(target: str | Path) -> None:
    with ct.open(target, create=False, read_only=True) as archive:
        ds = archive["visits"]
        assert ds.count() == sum(batch.rows for batch in ds.batches() if batch.finished)
        assert ds.verify().ok


def test_a_copy_beside_a_writer_has_whole_batches_and_in_the_end_all(tmp_path: Path) -> None:
    source, target = tmp_path / "a.db", tmp_path / "b.db"
    copy_beside_a_writer(source, target)
    assert stored(target) == stored(source)


def test_a_file_goes_to_a_cluster_and_comes_back_the_same(tmp_path: Path, url: str) -> None:
    source, back = tmp_path / "a.db", tmp_path / "back.db"
    copy_beside_a_writer(source, url)
    assert ct.copy(url, back).ok
    assert stored(back) == stored(source)
    with ct.open(source, superseded_kept_s=0) as archive:
        support_visits.write(archive["visits"], Visit(1, 0, edition=2))
        archive["visits"].remove_batch(Visit(1, 2).key)
        archive["visits"].consolidate()
    assert not ct.copy(source, url, verify_only=True).ok
    assert ct.copy(source, url).ok
    assert_same(source, url)
    assert ct.copy(url, back).ok
    assert stored(back) == stored(source)


@pytest.mark.slow
def test_a_copy_to_a_cluster_killed_again_and_again_loses_and_doubles_nothing(tmp_path: Path, url: str) -> None:
    source = tmp_path / "a.db"
    fill(source, 40)
    ct.open(url).close()
    assert kill_and_finish(source, url, 1.0, random.Random(20_261_122)) >= 1, "no kill hit a copy"


def test_the_command_copies_compares_and_tells(tmp_path: Path, chronotile: Run) -> None:
    source, target = tmp_path / "a.db", tmp_path / "b.db"
    fill(source, 10)
    done = chronotile("copy", source, target)
    assert done.returncode == 0, done.stderr
    assert "visits: copied" in done.stdout
    assert "the archives are equal" in done.stdout
    assert done.stderr == ""
    assert "visits: nothing to copy" in chronotile("copy", source, target, "visits").stdout
    output = chronotile("copy", source, target, "--verify-only", "--json")
    assert output.returncode == 0
    report = json.loads(output.stdout)
    assert report["ok"]
    assert report["datasets"][0]["tiles_differing"] == 0
    assert report["datasets"][0]["tiles_verified"] > 0
    with ct.open(source) as archive:
        support_visits.write(archive["visits"], Visit(1, 99))
    lacking = chronotile("copy", source, target, "--verify-only")
    assert lacking.returncode == 5
    assert "1 finished batch not on the target yet" in lacking.stdout
    assert chronotile("copy", source, target, "--workers", 1).returncode == 0
    with sqlite3.connect(target) as raw:
        [table] = raw.execute("SELECT name FROM sqlite_schema WHERE name LIKE 'chunks_%' LIMIT 1").fetchone()
        raw.execute(
            f'UPDATE "{table}" SET body = zeroblob(length(body)) WHERE chunk IN (SELECT min(chunk) FROM "{table}")'
        )
    raw.close()
    damaged = chronotile("copy", source, target, "--verify-only")
    assert damaged.returncode == 5
    assert "1 differing" in damaged.stdout
    assert chronotile("copy", source, target).returncode == 0


def test_wrong_inputs_are_refused_and_leave_nothing(tmp_path: Path, chronotile: Run) -> None:
    source, target = tmp_path / "a.db", tmp_path / "b.db"
    missing = chronotile("copy", source, target)
    assert missing.returncode == 3
    assert "a.db" in missing.stderr
    fill(source, 3)
    same = chronotile("copy", source, f"sqlite:{tmp_path}/../{tmp_path.name}/a.db")
    assert same.returncode == 2
    assert "both the source and the target" in same.stderr
    unknown = chronotile("copy", source, target, "visits", "nothing")
    assert unknown.returncode == 3
    assert 'no dataset "nothing"' in unknown.stderr
    assert chronotile("copy", source, target, "--verify-only").returncode == 3
    assert chronotile("copy", source).returncode == 2
    assert chronotile("copy", source, target, "--workers", 0).returncode == 2
    assert not target.exists()
    with ct.open(target) as archive:
        support_visits.write(support_visits.create(archive), Visit(7, 7))
    before = stored(target)
    foreign = chronotile("copy", source, target)
    assert foreign.returncode == 4
    assert "is not a copy of the source's" in foreign.stderr
    assert stored(target) == before
    with pytest.raises(ct.DatasetExistsError) as caught:
        ct.copy(source, target)
    assert caught.value.kind == "not-a-copy"
    with pytest.raises(ct.InvalidInputError, match="workers=65 is out of range"):
        ct.copy(source, target, workers=65)
    with pytest.raises(ct.InvalidInputError) as same_archive:
        ct.copy(source, source)
    assert same_archive.value.kind == "same-archive"


def test_a_copy_keeps_definitions_that_differ_apart(tmp_path: Path) -> None:
    source, target = tmp_path / "a.db", tmp_path / "b.db"
    fill(source, 2)
    with ct.open(target) as archive:
        archive.create(
            "visits", schema=support_visits.SCHEMA, cell=ct.key("tag"), time="time", window="2d", id="id", slice=2
        )
    with pytest.raises(ct.DatasetExistsError, match="another window"):
        ct.copy(source, target)
