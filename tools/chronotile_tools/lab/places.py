"""Folders, locks and atomic file writes of the laboratory.

The home holds one folder per cluster and ``.locks``; the cache holds server jars and Java runtimes, shared by all
clusters.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from chronotile.errors import InvalidInputError
from chronotile_tools.lab.errors import LabBusyError, LabError

HOME_VARIABLE = "CHRONOTILE_LAB_HOME"
CACHE_VARIABLE = "CHRONOTILE_LAB_CACHE"
STATE_FILE = "lab.json"

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")


def home() -> Path:
    """The folder of all clusters: ``$CHRONOTILE_LAB_HOME``, else ``chronotile/lab`` among the user's data."""
    given = os.environ.get(HOME_VARIABLE)
    if given:
        return Path(given).absolute()
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base).absolute() / "chronotile" / "lab"


def cache() -> Path:
    """The folder of fetched files: ``$CHRONOTILE_LAB_CACHE``, else ``chronotile/lab`` in the user's cache."""
    given = os.environ.get(CACHE_VARIABLE)
    if given:
        return Path(given).absolute()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base).absolute() / "chronotile" / "lab"


def checked_name(name: str) -> str:
    """Check the name of a cluster.

    Raises
    ------
    InvalidInputError
        The name is not 1 to 32 of a-z, 0-9, ``-`` and ``_``, starting with a letter or digit.
    """
    if not _NAME.fullmatch(name):
        raise InvalidInputError(
            f"invalid cluster name {name!r}: use 1 to 32 of a-z, 0-9, - and _, starting with a letter or digit",
            kind="invalid-request",
        )
    return name


def write_whole(path: Path, text: str, *, mode: int = 0o644) -> None:
    """Replace a file atomically: readers see the old text or the new, even after a crash."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        os.fchmod(descriptor, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


@contextlib.contextmanager
def locked(name: str, *, timeout_s: float, what: str) -> Iterator[None]:
    """Hold a named lock shared by all processes of the same home.

    The kernel frees it when the process ends, even by a crash. Not reentrant.

    Raises
    ------
    LabBusyError
        Another process holds the lock for longer than `timeout_s`; `what` describes the blocked action.
    """
    folder = home() / ".locks"
    folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + timeout_s
    while True:
        descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(descriptor, 64, 0).decode("ascii", "replace").strip() or "unknown"
                if time.monotonic() >= deadline:
                    raise LabBusyError(
                        f"cannot {what}: process {holder} holds the lock; repeat when it has finished", pid=holder
                    ) from None
                time.sleep(0.05)
                continue
            if not _is_file(descriptor, folder / name):
                continue
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
            yield
            return
        finally:
            os.close(descriptor)


def _is_file(descriptor: int, path: Path) -> bool:
    """Whether the descriptor is still the file at the path: the lock may have been removed while we waited."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def remove_lock(name: str) -> None:
    """Remove a lock that is no longer needed. Waiting processes create a new one."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(home() / ".locks" / name)


def build_once(folder: Path, build: Callable[[Path], None]) -> Path:
    """Return a cache folder, built by `build` in a temporary folder and then renamed.

    An existing folder is complete. If two processes build concurrently, both use the result of the first to finish.
    """
    if folder.is_dir():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    except OSError as error:
        raise LabError(f"cannot write to the cache {folder.parent}: {error.strerror}", kind="lab-fetch") from error
    try:
        build(temporary)
        temporary.chmod(0o755)
        try:
            temporary.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder
