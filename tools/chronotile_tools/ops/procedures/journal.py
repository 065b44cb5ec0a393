"""The journal of a procedure: a crash-safe record of started and verified steps."""

from __future__ import annotations

import fcntl
import json
import os
import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from chronotile import durable
from chronotile.closing import Closing
from chronotile.errors import BusyError, DataFileError
from chronotile_tools.errors import DamagedError

FORMAT = 1
_ENDS = ("finished", "abandoned")


class Journal(Closing):
    """A file of JSON lines, each synced to disk before `write` returns. The first line describes the procedure. A line
    truncated by a crash is dropped when the file is reopened. Only one process can hold a journal. Thread-safe.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        try:
            self._file = os.open(path, os.O_RDWR | os.O_APPEND)
        except OSError as error:
            raise DataFileError(f"cannot open journal {path}: {error.strerror}", kind="file-access") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.entries = self._read()
            if self.header.get("format") != FORMAT:
                raise DamagedError(f"journal {path} was written by another release", kind="damaged-journal")
        except BlockingIOError:
            self.close()
            raise BusyError(
                f"another process is running the procedure of {path}: wait until it has finished", kind="busy"
            ) from None
        except BaseException:
            # Closing unlocks the journal.
            self.close()
            raise

    @classmethod
    def begin(cls, folder: Path, identity: str, header: dict[str, Any]) -> Self:
        """Create a journal in `folder`, which is created if missing. Only its owner can read it.

        Raises
        ------
        DataFileError
            Kind ``file-access``: it cannot be written.
        """
        path = folder / f"{identity}.jsonl"
        # Write to a temporary file and rename it, so that every journal has a header.
        fresh = folder / f".{path.name}"
        first = {"event": "header", "format": FORMAT, "at": now_text(), **header}
        require_writable(folder, make=True)
        try:
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(json.dumps(first) + "\n")
                file.flush()
                os.fsync(file.fileno())
            durable.rename(fresh, path)
        except OSError as error:
            raise _not_written(folder, error) from error
        return cls(path)

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    @property
    def header(self) -> dict[str, Any]:
        """The first entry."""
        return self.entries[0]

    @property
    def id(self) -> str:
        """Unique id of the journal."""
        return self.path.stem

    def of(self, event: str) -> Iterator[dict[str, Any]]:
        """The entries of this event, in order."""
        return (entry for entry in self.entries if entry["event"] == event)

    def notes(self) -> dict[str, Any]:
        """All facts recorded by steps."""
        found: dict[str, Any] = {}
        for entry in self.of("note"):
            found |= {name: value for name, value in entry.items() if name not in ("event", "at")}
        return found

    def write(self, event: str, **fields: Any) -> None:
        """Append an entry; it is durable when this returns."""
        entry = {"event": event, "at": now_text(), **fields}
        line = (json.dumps(entry) + "\n").encode()
        with self._lock:
            whole = os.fstat(self._file).st_size
            try:
                written = os.write(self._file, line)
                if written == len(line):
                    os.fsync(self._file)
            except OSError as error:
                raise DataFileError(f"cannot write journal {self.path}: {error.strerror}", kind="file-io") from error
            if written != len(line):
                # A later entry must not continue this line.
                os.ftruncate(self._file, whole)
                raise DataFileError(f"cannot write all of journal {self.path}: check for a full disk", kind="file-io")
            self.entries.append(entry)

    def _read(self) -> list[dict[str, Any]]:
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.ftruncate(self._file, whole)
            os.fsync(self._file)
        entries = []
        for number, line in enumerate(content[:whole].splitlines(), 1):
            try:
                entry = json.loads(line)
            except (ValueError, RecursionError):
                entry = None
            if not isinstance(entry, dict) or not isinstance(entry.get("event"), str):
                raise DamagedError(f"line {number} of the journal {self.path} is damaged", kind="damaged-journal")
            entries.append(entry)
        if not entries or entries[0]["event"] != "header":
            raise DamagedError(f"{self.path} is not a journal of a procedure", kind="damaged-journal")
        return entries


def new_id(name: str) -> str:
    """Create a journal name that sorts by time."""
    return f"{datetime.now(UTC).strftime('%Y%m%dT%H%M%S%f')}-{name}"


def require_writable(folder: Path, *, make: bool = False) -> None:
    """Check that journals can be written to a folder, which may not exist yet; optionally create it.

    Raises
    ------
    DataFileError
        Kind ``file-access``: journals cannot be written there.
    """
    there = next(one for one in [folder, *folder.absolute().parents] if one.exists())
    if not there.is_dir():
        raise DataFileError(f"cannot write journals to {folder}: {there} is a file", kind="file-access")
    if not os.access(there, os.W_OK | os.X_OK):
        raise DataFileError(
            f"cannot write journals to {folder}: no permission for {there}; select another folder (--journal)",
            kind="file-access",
        )
    if not make:
        return
    try:
        durable.make_folder(folder, mode=0o700)
    except OSError as error:
        raise _not_written(folder, error) from error


def _not_written(folder: Path, error: OSError) -> DataFileError:
    return DataFileError(f"cannot write journals to {folder}: {error.strerror}", kind="file-access")


def paths(folder: Path) -> list[Path]:
    """All journals of a folder, oldest first."""
    return sorted(path for path in folder.glob("*.jsonl") if not path.name.startswith("."))


def unfinished(folder: Path) -> Path | None:
    """The newest journal whose procedure was neither finished nor abandoned."""
    return next((path for path in reversed(paths(folder)) if not ended(path)), None)


def ended(path: Path) -> bool:
    """Whether the procedure of a journal was finished or abandoned.

    Raises
    ------
    DataFileError
        Kind ``file-access``: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
            tail = file.read()
    except OSError as error:
        raise DataFileError(f"cannot open journal {path}: {error.strerror}", kind="file-access") from error
    # JSON escapes quotes within texts, so only an entry itself matches.
    return any(f'"event": "{end}"'.encode() in tail for end in _ENDS)


def root() -> Path:
    """Default folder for the journals of all clusters."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "chronotile" / "ops"


def default_folder(cluster: str) -> Path:
    """Default folder for the journals of a cluster."""
    return root() / re.sub(r"[^\w.-]", "_", cluster)


def now_text() -> str:
    """The present time in the form of journals and manifests."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
