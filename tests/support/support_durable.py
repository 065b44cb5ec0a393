"""What a crash of the machine would leave: the names that folders had when they were last synced."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


class SyncedNames:
    """Records the names in each folder that is synced."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._names: dict[Path, set[str]] = {}
        self._sync = os.fsync
        patch.setattr(os, "fsync", self._record)

    def _record(self, descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.is_dir():
            self._names[path] = {inner.name for inner in path.iterdir()}
        self._sync(descriptor)

    def lost(self, root: Path) -> list[Path]:
        """The files and folders below `root` that a crash would lose."""
        return [path for path in sorted(root.rglob("*")) if path.name not in self._names.get(path.parent, set())]
