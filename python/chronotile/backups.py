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
"""Called with (pages done, pages in all) now and then."""


@dataclass(frozen=True)
class BackupReport:
    """What a backup or a restore made.

    Attributes
    ----------
    path : str
        The new file.
    bytes : int
        Its size.
    datasets : int
        Datasets in it.
    chunks, rows : int
        What was read and checked of the new file; 0 without verification. Rows of one id count as often as they are
        stored.
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
    """Copy an archive in a file, as it is at one moment, to a new file; others may write to it meanwhile.

    The copy is made with SQLite's own backup interface under a temporary name beside `to`, checked, synced and only
    then named `to`, with the mode of the archive's file. Whatever ends it early leaves nothing. A file that exists is
    never overwritten.

    Parameters
    ----------
    archive : str, path or Archive
        ``survey.db``, ``sqlite:survey.db``, or the open archive.
    to : str or path
        The new file. Its folder must exist.
    verify : bool
        Read and check every chunk of the copy before it gets its name. Without, only SQLite's own structures are
        checked.
    progress : callable, optional
        Called with (pages done, pages in all); what it raises ends the copy.

    Raises
    ------
    InvalidInputError
        The archive is not a file. Clusters are backed up with ``chronotile ops backup``.
    DataFileError
        `to` exists (``file-exists``), files of another archive lie beside it (``file-exists``: ``-wal``, ``-shm`` or
        ``-journal``), or its folder is missing.
    ArchiveNotFoundError, NotAnArchiveError
        There is no archive to copy.
    DamagedError
        The archive holds damage, which the copy would keep: see :meth:`Dataset.verify`.
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
    """Make an archive of a backup. `to` must not exist: move an old file away together with its ``-wal`` and ``-shm``.

    Parameters, result and errors are those of :func:`backup`. The backup stays as it is, and may lie on a read-only
    medium.

    Copying a file by other means is safe only if nothing of an older archive lies beside the target: SQLite takes a
    ``-wal`` found there for the new file's own, and damages it.
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
        # Opened for writing: the last to close then leaves nothing beside the file.
        with open(f"sqlite:{draft.path}", create=False) as copy:
            names = copy.datasets()
            chunks = rows = 0
            for name in names if verify else ():
                report = copy[name].verify()
                if not report.ok:
                    raise DamagedError(
                        f"dataset {name} of {source} has damage, and so would the copy, which was removed: "
                        f"run chronotile verify {source}; to copy it as it is, leave the check out",
                        kind="damaged-archive",
                    )
                chunks, rows = chunks + report.chunks, rows + report.rows
        return BackupReport(target, draft.place(), len(names), chunks, rows)
    finally:
        draft.discard()
