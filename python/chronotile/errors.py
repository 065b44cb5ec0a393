"""Exceptions, grouped by what a caller does next.

Every exception is a :class:`ChronotileError` and has a ``kind``: a short text that stays the same between releases, for
programs that must tell cases apart more finely than by class. Most have a builtin exception as second parent, so that
code which knows nothing of Chronotile handles them too.

==========================  =====================  ====================================================
class                       also a                 what to do
==========================  =====================  ====================================================
``InvalidInputError``       ``ValueError``         change the argument or the rows
``DatasetNotFoundError``    ``KeyError``           correct the name, or create the dataset
``BatchNotFoundError``      ``KeyError``           correct the key
``TagNotFoundError``        ``KeyError``           correct the name or number, or define the tag
``DatasetExistsError``      ``ValueError``         open it, or take another name
``BatchConflictError``      ``ValueError``         look at the stored batch; write with ``replace=True``
``ArchiveNotFoundError``    ``FileNotFoundError``  correct the path
``NotAnArchiveError``       ``OSError``            correct the path, or upgrade
``ReadOnlyError``           ``PermissionError``    open it for writing
``StorageFullError``        ``OSError``            free space, then repeat
``BusyError``               ``TimeoutError``       repeat: nothing was written
``OutcomeUnknownError``     ``TimeoutError``       repeat: it may have been written
``UnavailableError``        ``ConnectionError``    bring nodes back or correct the addresses, then repeat
``AccessDeniedError``       ``PermissionError``    correct user, password or certificate, or grant the permission
``DamagedError``            ``OSError``            verify, then restore or write again
``DataFileError``           ``OSError``            correct the file or the way it is read
``MissingPackageError``     ``ImportError``        install the package that the message names
``ClosedError``             ``RuntimeError``       open or read again
==========================  =====================  ====================================================
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "AccessDeniedError",
    "ArchiveNotFoundError",
    "BatchConflictError",
    "BatchNotFoundError",
    "BusyError",
    "ChronotileError",
    "ClosedError",
    "DamagedChunkError",
    "DamagedError",
    "DataFileError",
    "DatasetExistsError",
    "DatasetNotFoundError",
    "InvalidInputError",
    "MissingPackageError",
    "NotAnArchiveError",
    "OutcomeUnknownError",
    "ReadOnlyError",
    "StorageFullError",
    "TagNotFoundError",
    "UnavailableError",
]


class ChronotileError(Exception):
    """Base of all errors of this package. Its own kinds, which a program cannot handle: ``compute``,
    ``engine-refused``, ``internal``, ``interrupted``, ``malformed-answer``, ``not-installed``, ``not-served``,
    ``other``, ``protocol``, ``replica-failed``, ``worker-lost``.

    Attributes
    ----------
    kind : str
        Stable name of the case, for example ``"batch-differs"``.
    details : dict
        Context of the error, as far as known: ``dataset``, ``batch``, ``column``, ``row``, ``cell``, ``window``,
        ``chunk``.
    """

    kind: str
    details: dict[str, Any]

    def __init__(self, message: str, *, kind: str = "other", **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind
        self.details = details

    def __str__(self) -> str:
        # KeyError would show the message in quotes, OSError in its own form.
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self.message, self.kind, self.details)


def _rebuilt(cls: type[ChronotileError], message: str, kind: str, details: dict[str, Any]) -> ChronotileError:
    return cls(message, kind=kind, **details)


class InvalidInputError(ChronotileError, ValueError):
    """An argument, a dataset definition or a row is invalid. Nothing was changed.

    Kinds: ``invalid-definition``, ``invalid-time``, ``invalid-sky``, ``invalid-url``, ``invalid-request``,
    ``invalid-rows``, ``invalid-tag``, ``invalid-source``, ``invalid-arrow``, ``invalid-setting``, ``immutable``,
    ``too-large``, ``same-archive``, ``unknown-id``, ``key-exists``, ``index-exists``, ``archived-records``,
    ``changed-records``, ``no-tokens``; of a cluster also ``invalid-cql``, ``table-not-found``, ``invalid-parameter``,
    ``invalid-checkpoint``, ``value-range``, ``unknown-type``; of a service also ``no-such-path``,
    ``method-not-allowed``, ``not-acceptable``, ``unsupported-type``, ``unsupported-encoding``, ``group-not-found``.
    """


class DatasetNotFoundError(ChronotileError, KeyError):
    """The archive has no dataset of this name. Kind ``dataset-not-found``."""


class BatchNotFoundError(ChronotileError, KeyError):
    """The dataset has no batch of this key. Kind ``batch-not-found``."""


class TagNotFoundError(ChronotileError, KeyError):
    """The historian has no tag of this name or number. Kind ``tag-not-found``."""


class DatasetExistsError(ChronotileError, ValueError):
    """A dataset of this name exists already (``dataset-exists``), or the target of a copy has one that is not a copy of
    the source's (``not-a-copy``).
    """


class BatchConflictError(ChronotileError, ValueError):
    """A batch of this key is stored with other content (``batch-differs``), or another process wrote it meanwhile
    (``batch-race``). Nothing of this write is visible.
    """


class ArchiveNotFoundError(ChronotileError, FileNotFoundError):
    """The archive or its folder does not exist (``archive-not-found``); or the file of an open archive was renamed,
    deleted or replaced, and the write was discarded (``archive-moved``).
    """


class NotAnArchiveError(ChronotileError, OSError):
    """The file is not an archive (``not-an-archive``), or was written by a later release (``newer-format``). It was not
    changed.
    """


class ReadOnlyError(ChronotileError, PermissionError):
    """The archive was opened read-only, or is on a read-only file system. Kind ``read-only``."""


class StorageFullError(ChronotileError, OSError):
    """The disk is full; the write was discarded. Kind ``storage-full``."""


class BusyError(ChronotileError, TimeoutError):
    """Other processes held the archive (``busy``) or a folder of files (``folder-in-use``) for too long, changed the
    same thing first (``lost-race``, ``slice-in-use``, ``slice-retired``, ``table-altered``), or a cluster did not
    answer a read in time (``overloaded``, ``timed-out``). A service is at its limits (``too-many-requests``,
    ``quota-exceeded``, ``memory-in-use``), or the request took too long (``timed-out``, ``slow-client``). Nothing was
    written; repeat.
    """


class OutcomeUnknownError(ChronotileError, TimeoutError):
    """The engine or a service did not confirm (``outcome-unknown``), or the work was interrupted (``cancelled``). The
    operation may or may not have taken effect. Repeating a write of a named batch is safe, and resolves the outcome.
    """


class UnavailableError(ChronotileError, ConnectionError):
    """Too few replicas are alive for the consistency level (``too-few-replicas``, ``cluster-unavailable``), or no
    node or service answers (``no-node``, ``no-connection``, ``no-service``, ``not-ready``, ``broken-off``,
    ``database``), or the service's own address is taken (``address-in-use``). Nothing was done.

    ``details`` of ``too-few-replicas``: ``consistency``, ``required`` and ``alive``.
    """


class AccessDeniedError(ChronotileError, PermissionError):
    """The cluster rejects the login (``login``), one side rejects the other's certificate (``certificate``), or the
    role lacks a permission (``permission``, ``access-denied``). A service rejects the token (``token-missing``,
    ``token-unknown``, ``token-expired``), its role (``role-missing``) or a browser (``foreign-host``,
    ``foreign-origin``). Nothing was done.
    """


class DamagedError(ChronotileError, OSError):
    """Stored bytes cannot be read: ``damaged-archive``, ``damaged-catalog`` or ``damaged-file``."""


class DamagedChunkError(DamagedError):
    """The bytes of a chunk changed or are missing. Kind ``damaged-chunk``.

    Attributes
    ----------
    dataset : str
        The dataset.
    cell, window : int
        The tile.
    chunk : str
        The chunk's id, 32 hexadecimal digits.
    """

    dataset: str
    cell: int
    window: int
    chunk: str

    def __init__(self, message: str, *, kind: str = "damaged-chunk", **details: Any) -> None:
        super().__init__(message, kind=kind, **details)
        self.dataset = details.get("dataset", "")
        self.cell = details.get("cell", 0)
        self.window = details.get("window", 0)
        self.chunk = details.get("chunk", "")


class DataFileError(ChronotileError, OSError):
    """A data file cannot be read or written, or its content is invalid: ``file-not-found``, ``file-access``,
    ``file-exists``, ``file-format``, ``file-damaged``, ``file-content``, ``file-too-large``, ``file-io``,
    ``broken-pipe``.
    """


class MissingPackageError(ChronotileError, ImportError):
    """An optional package is not installed or cannot be imported; the message gives the pip command. Kind
    ``missing-package``.
    """


class ClosedError(ChronotileError, RuntimeError):
    """The archive is closed (``closed``), the process was forked from one that uses Chronotile (``forked``), or a
    result was read before (``result-consumed``)."""
