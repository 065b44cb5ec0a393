"""Backup and restore of archives in a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from chronotile import _native
from chronotile.archive import Archive, open  # noqa: A004
from chronotile.errors import DamagedError, InvalidInputError

__all__ = ["BackupReport", "backup", "restore"]

Progress = Callable[[int, int], object]
"""Called repeatedly with (pages done, pages in total)."""


@dataclass(frozen=True)
class BackupReport:
    """Report of a backup or a restore.

    Attributes
    ----------
    path : str
        The new file.
    bytes : int
        Its size.
    datasets : int
        Datasets in it.
    chunks, rows : int
        Chunks and rows verified in the new file; 0 without verification. Rows with equal ids count each time.
    """

    path: str
    bytes: int
    datasets: int
    chunks: int
    rows: int


def backup(
    archive: str | os.PathLike[str] | Archive,
    to: str | os.PathLike[str],
    *,
    verify: bool = True,
    progress: Progress | None = None,
) -> BackupReport:
    """Copy a consistent snapshot of an archive in a file to a new file; writers may continue meanwhile.

    The copy is made with SQLite's backup API under a temporary name beside `to`, checked, synced, and then renamed to
    `to`, with the mode of the archive's file. An interrupted copy leaves no file. An existing file is never
    overwritten.

    Parameters
    ----------
    archive : str, path or Archive
        ``survey.db``, ``sqlite:survey.db``, or the open archive.
    to : str or path
        The new file. Its folder must exist.
    verify : bool
        Read and check every chunk of the copy before it is renamed. Without, only SQLite's own structures are checked.
    progress : callable, optional
        Called with (pages done, pages in total); an exception that it raises ends the copy.

    Raises
    ------
    InvalidInputError
        The archive is not a file. Clusters are backed up with ``chronotile ops backup``.
    DataFileError
        `to` exists (``file-exists``), files of another archive are beside it (``file-exists``: ``-wal``, ``-shm`` or
        ``-journal``), or its folder is missing.
    ArchiveNotFoundError, NotAnArchiveError
        The archive does not exist.
    DamagedError
        The archive is damaged, and the copy would be too: see :meth:`Dataset.verify`.
    StorageFullError, ReadOnlyError
        The copy cannot be written.

    Examples
    --------
    ``ct.backup("survey.db", "/backups/survey-2026-07-01.db")``
    """
    return _copy(_path(archive), os.fspath(to), verify=verify, progress=progress)


def restore(
    backup: str | os.PathLike[str],
    to: str | os.PathLike[str],
    *,
    verify: bool = True,
    progress: Progress | None = None,
) -> BackupReport:
    """Restore an archive from a backup. `to` must not exist: move an old file away together with its ``-wal`` and
    ``-shm``.

    Parameters, result and errors are those of :func:`backup`. The backup is not changed, and may be on a read-only
    medium. Copying a file by other means is safe only if no ``-wal`` of an older archive is beside the target: SQLite
    would apply it to the new file and damage it.
    """
    return _copy(_path(backup), os.fspath(to), verify=verify, progress=progress)


def _path(archive: str | os.PathLike[str] | Archive) -> str:
    text = archive.url if isinstance(archive, Archive) else os.fspath(archive)
    scheme, colon, rest = text.partition(":")
    if colon and scheme in ("cassandra", "memory"):
        hint = "use chronotile ops backup" if scheme == "cassandra" else "copy its datasets with ct.copy"
        raise InvalidInputError(f"{text} is not an archive in a file: {hint}", kind="invalid-url")
    return rest.removeprefix("//") if scheme == "sqlite" and colon else text


def _copy(source: str, target: str, *, verify: bool, progress: Progress | None) -> BackupReport:
    draft = _native.BackupDraft.make(source, target, progress)
    try:
        # Open for writing: the last connection then removes the -wal and -shm files.
        with open(f"sqlite:{draft.path}", create=False) as copy:
            names = copy.datasets()
            chunks = rows = 0
            for name in names if verify else ():
                report = copy[name].verify()
                if not report.ok:
                    raise DamagedError(
                        f"dataset {name} of {source} is damaged, so the copy was removed: run chronotile "
                        f"verify {source}; to copy it as it is, skip verification",
                        kind="damaged-archive",
                    )
                chunks, rows = chunks + report.chunks, rows + report.rows
        return BackupReport(target, draft.place(), len(names), chunks, rows)
    finally:
        draft.discard()
