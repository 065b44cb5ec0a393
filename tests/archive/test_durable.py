"""Files and folders survive a crash of the machine once they are acknowledged."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from support_durable import SyncedNames

from chronotile import durable


def test_what_is_written_survives_a_crash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = SyncedNames(monkeypatch)
    folder = tmp_path / "a" / "b"
    durable.make_folder(folder)
    for text in ("first", "second"):
        durable.write_text(folder / "file", text)
        assert (folder / "file").read_text() == text
    (folder / "part").write_text("whole")
    durable.rename(folder / "part", folder / "renamed")
    durable.make_folder(folder)
    assert [path.name for path in sorted(tmp_path.rglob("*"))] == ["a", "b", "file", "renamed"]
    assert synced.lost(tmp_path) == []


def test_a_folder_is_not_made_in_place_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError):
        durable.make_folder(tmp_path / "file")


def test_only_a_file_system_that_cannot_sync_folders_may_fail_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = len(list(Path("/proc/self/fd").iterdir()))
    for number in (errno.EINVAL, errno.EIO):

        def fail(_: int, number: int = number) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "fsync", fail)
        if number == errno.EINVAL:
            durable.sync_folder(tmp_path)
        else:
            with pytest.raises(OSError, match=os.strerror(number)):
                durable.sync_folder(tmp_path)
    assert len(list(Path("/proc/self/fd").iterdir())) == opened
