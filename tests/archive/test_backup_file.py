"""Backup and restore of archives in a file: whole beside writers, checked, never over what is there."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import chronotile as ct

Run = Callable[..., subprocess.CompletedProcess[str]]

DEFINE = {"schema": {"t": "timestamp[us]", "k": "int64", "x": "float64"}, "time": "t", "id": ["t", "k"]}


def rows(first: int, count: int) -> pa.Table:
    numbers = range(first, first + count)
    return pa.table({"t": pa.array(numbers, pa.timestamp("us")), "k": pa.array(numbers, pa.int64()),
                     "x": pa.array([float(n) for n in numbers])})  # fmt: skip


@pytest.fixture
def stored(path: Path) -> Path:
    with ct.open(path) as archive:
        archive.create("d", cell=ct.single(), **DEFINE).write(rows(0, 1_000), batch="first")
    return path


def dead_writer(path: Path) -> None:
    """Writes a batch and dies, so that the log stays beside the file."""
    code = (
        "import os, sys, chronotile as ct, test_backup_file as t\n"
        "archive = ct.open(sys.argv[1])\narchive['d'].write(t.rows(5_000, 1_000), batch='late')\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], cwd=Path(__file__).parent, check=False)
    assert done.returncode == -signal.SIGKILL
    assert Path(f"{path}-wal").stat().st_size > 0


def beside(path: Path) -> list[str]:
    return sorted(item.name for item in path.parent.iterdir())


def test_a_backup_has_what_was_stored_and_nothing_else_lies_beside_it(stored: Path, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()
    told: list[tuple[int, int]] = []
    report = ct.backup(stored, folder / "a.db", progress=lambda done, total: told.append((done, total)))
    assert (report.datasets, report.rows, report.bytes) == (1, 1_000, (folder / "a.db").stat().st_size)
    assert told
    assert told[-1][0] == told[-1][1]
    assert [item.name for item in folder.iterdir()] == ["a.db"]
    with ct.open(folder / "a.db", create=False, read_only=True) as copy:
        assert copy["d"].count() == 1_000
        assert copy["d"].verify().ok


def test_a_backup_takes_what_a_dead_writer_left_in_the_log(stored: Path, tmp_path: Path) -> None:
    dead_writer(stored)
    ct.backup(stored, tmp_path / "b.db")
    with ct.open(tmp_path / "b.db", create=False) as copy:
        assert copy["d"].count() == 2_000


def test_a_backup_beside_a_writer_is_one_moment(stored: Path, tmp_path: Path) -> None:
    stop = threading.Event()

    def write() -> None:
        with ct.open(stored) as archive:
            number = 0
            while not stop.is_set():
                number += 1
                archive["d"].write(rows(10_000 * number, 1_000), batch=f"b{number}")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        time.sleep(0.3)
        for number in range(5):
            report = ct.backup(stored, tmp_path / f"{number}.db")
            with ct.open(tmp_path / f"{number}.db", create=False) as copy:
                finished = [batch for batch in copy["d"].batches() if batch.finished]
                assert report.rows == copy["d"].count() == 1_000 * len(finished)
    finally:
        stop.set()
        writer.join()


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644])
def test_a_backup_has_the_mode_of_its_source(stored: Path, tmp_path: Path, mode: int) -> None:
    stored.chmod(mode)
    ct.backup(stored, tmp_path / "b.db")
    assert stat.S_IMODE((tmp_path / "b.db").stat().st_mode) == mode
    ct.restore(tmp_path / "b.db", tmp_path / "c.db")
    assert stat.S_IMODE((tmp_path / "c.db").stat().st_mode) == mode


def test_a_file_that_is_there_and_files_of_another_archive_are_refused(stored: Path, tmp_path: Path) -> None:
    ct.backup(stored, tmp_path / "b.db")
    before = (tmp_path / "b.db").read_bytes()
    with pytest.raises(ct.DataFileError, match="exists already") as caught:
        ct.backup(stored, tmp_path / "b.db")
    assert caught.value.kind == "file-exists"
    assert (tmp_path / "b.db").read_bytes() == before
    for suffix in ("-wal", "-shm", "-journal"):
        companion = tmp_path / f"c.db{suffix}"
        companion.write_bytes(b"left")
        with pytest.raises(ct.DataFileError, match=f"c.db{suffix}"):
            ct.restore(tmp_path / "b.db", tmp_path / "c.db")
        assert companion.read_bytes() == b"left"
        companion.unlink()
    (tmp_path / "link.db").symlink_to(tmp_path / "nothing.db")
    with pytest.raises(ct.DataFileError, match="exists already"):
        ct.backup(stored, tmp_path / "link.db")
    with pytest.raises(ct.DataFileError, match="does not exist"):
        ct.backup(stored, tmp_path / "no" / "b.db")
    assert not any(name.startswith(".chronotile-") for name in beside(stored))


def test_a_restore_beside_the_log_of_a_dead_writer_is_refused_where_a_plain_copy_does_harm(
    stored: Path, tmp_path: Path
) -> None:
    ct.backup(stored, tmp_path / "b.db")
    dead_writer(stored)
    stored.unlink()
    with pytest.raises(ct.DataFileError, match="-wal"):
        ct.restore(tmp_path / "b.db", stored)
    for companion in ("-wal", "-shm"):
        Path(f"{stored}{companion}").rename(tmp_path / f"old{companion}")
    ct.restore(tmp_path / "b.db", stored)
    with ct.open(stored, create=False) as archive:
        assert archive["d"].count() == 1_000
        assert archive["d"].verify().ok


def test_what_cannot_be_copied_is_refused(tmp_path: Path, stored: Path) -> None:
    for source, error in [
        (tmp_path / "none.db", ct.ArchiveNotFoundError), ("cassandra://a/b", ct.InvalidInputError),
        ("memory:", ct.InvalidInputError),
    ]:  # fmt: skip
        with pytest.raises(error):
            ct.backup(source, tmp_path / "x.db")
    foreign = tmp_path / "foreign.db"
    with sqlite3.connect(foreign) as connection:
        connection.execute("create table a (b)")
    connection.close()
    with pytest.raises(ct.NotAnArchiveError):
        ct.restore(foreign, tmp_path / "x.db")
    assert not (tmp_path / "x.db").exists()


def test_a_damaged_archive_gives_no_backup_unless_unchecked(stored: Path, tmp_path: Path) -> None:
    with sqlite3.connect(stored) as connection:
        table, column = next(
            (name, column) for (name,) in connection.execute("select name from sqlite_schema where type = 'table'")
            for column in [info[1] for info in connection.execute(f"pragma table_info({name})")] if column == "body"
        )  # fmt: skip
        connection.execute(f"update {table} set {column} = zeroblob(length({column}))")
    connection.close()
    with pytest.raises(ct.DamagedError, match="is damaged"):
        ct.backup(stored, tmp_path / "b.db")
    assert not (tmp_path / "b.db").exists()
    assert ct.backup(stored, tmp_path / "b.db", verify=False).rows == 0


def test_an_interrupted_backup_leaves_nothing(stored: Path, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with ct.open(stored) as archive:
        for number in range(40):
            noise = np.frombuffer(os.urandom(200_000 * 8), "int64").astype("float64")
            times = np.arange(10**6 * number, 10**6 * number + 200_000).astype("datetime64[us]")
            archive["d"].write({"t": times, "k": np.full(200_000, number), "x": noise})
            if stored.stat().st_size > 40 << 20:
                break
    folder = tmp_path / "backups"
    folder.mkdir()
    with pytest.raises(KeyboardInterrupt):
        ct.backup(stored, folder / "b.db", progress=stop)
    assert list(folder.iterdir()) == []


def test_commands_back_up_and_restore(chronotile: Run, stored: Path, tmp_path: Path) -> None:
    done = chronotile("backup", stored, tmp_path / "b.db")
    assert done.returncode == 0, done.stderr
    assert "1 dataset" in done.stdout
    assert "1,000 rows checked" in done.stdout
    again = chronotile("backup", stored, tmp_path / "b.db")
    assert (again.returncode, "exists already" in again.stderr) == (4, True)
    done = chronotile("restore", tmp_path / "b.db", tmp_path / "c.db", "--no-verify")
    assert done.returncode == 0, done.stderr
    assert chronotile("count", tmp_path / "c.db", "d").stdout == "1000\n"
    assert chronotile("backup", tmp_path / "none.db", tmp_path / "d.db").returncode == 3
