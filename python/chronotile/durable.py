"""Files and folders that survive a crash of the machine."""

from __future__ import annotations

import errno
import os
from pathlib import Path

__all__ = ["make_folder", "rename", "sync_folder", "write_text"]


def write_text(path: Path, text: str) -> None:
    """Replace a file atomically; it is durable when this returns."""
    fresh = path.with_name(f"{path.name}.new")
    with fresh.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    rename(fresh, path)


def rename(fresh: Path, path: Path) -> None:
    """Rename a synced file, replacing an existing one; its name is durable when this returns."""
    fresh.replace(path)
    sync_folder(path.parent)


def make_folder(folder: Path, mode: int = 0o777) -> None:
    """Create a folder and its missing parents, all with this mode; their names are durable when this returns."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    for each in [*reversed(missing[1:]), folder]:
        each.mkdir(mode, exist_ok=True)
    for each in missing:
        sync_folder(each.parent)


def sync_folder(folder: Path) -> None:
    """Sync a folder, which makes the names of its files durable."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:
        # Some network file systems cannot sync folders.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(opened)
