"""Stores of backups: a folder or an object store, through pyarrow's file systems."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chronotile import durable
from chronotile.errors import (
    AccessDeniedError,
    ChronotileError,
    DataFileError,
    InvalidInputError,
    StorageFullError,
    UnavailableError,
)
from chronotile_tools.errors import DamagedError, NotFoundError
from chronotile_tools.ops.backups.signing import Key

BLOCK_BYTES = 4 << 20
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_MARKER = "store.json"
"""Object that marks a folder as a store, to detect, for example, a disk that is not mounted."""
_UNFINISHED = re.compile(r"\.[^/]+\.[0-9a-f]{8}\.part")
"""Name of a file that is renamed when complete; it remains if its writer is killed."""
_SECRET = re.compile(r"^[^/]*//[^/]*@|[?&](access_key|secret_key|session_token)=")


class RateLimiter:
    """Rate limit in bytes per second, shared by threads; 0 for none."""

    def __init__(self, bytes_s: float = 0.0) -> None:
        self._bytes_s = bytes_s
        self._due = time.monotonic()
        self._lock = threading.Lock()

    def wait(self, count: int) -> None:
        """Wait until `count` more bytes are within the limit."""
        if self._bytes_s <= 0:
            return
        with self._lock:
            self._due = max(self._due, time.monotonic()) + count / self._bytes_s
            pause = self._due - time.monotonic()
        # Sleep without the lock, so that other threads can reserve their turn meanwhile.
        time.sleep(max(0.0, pause))


@dataclass(frozen=True)
class Record:
    """A record written by `Store.put_json`."""

    body: dict[str, Any]
    sha256: str
    signature: str
    """Signature; empty if unsigned."""
    text: bytes
    """The body as digested and signed."""

    def is_signed(self, key: Key) -> bool:
        """Whether it is signed with this key."""
        return key.is_of(self.signature, self.text)


class Store:
    """A store of backups.

    Files in a folder are readable only by the owner; also by the group if the folder has the set-group-ID bit (``chmod
    2770``), for nodes that send as other users.

    Parameters
    ----------
    url : str
        A folder (a path or ``file:///mnt/backups``), or an object store as pyarrow names it:
        ``s3://bucket/prefix?region=eu-central-1``, with ``endpoint_override`` for one that is not Amazon's. Access keys
        come from the environment, never from the URL.

    Raises
    ------
    InvalidInputError
        The URL is invalid or contains a secret; or pyarrow is missing.
    UnavailableError
        The object store does not answer.
    """

    def __init__(self, url: str) -> None:
        self.url = normal(url)
        with self._explained("opened"):
            self._fs, root = _file_systems().FileSystem.from_uri(self.url)
        self.root: str = root.rstrip("/")
        self.folder = Path(self.root) if self._fs.type_name == "local" else None
        """The folder; None for an object store."""

    def __repr__(self) -> str:
        return f"<store of backups {self.url}>"

    def free_bytes(self) -> int | None:
        """Free space of a folder's file system; None if unknown."""
        if self.folder is None:
            return None
        there = next(parent for parent in [self.folder, *self.folder.parents] if parent.exists())
        return shutil.disk_usage(there).free

    def require_there(self) -> None:
        """Check that the store exists. Changes nothing.

        Raises
        ------
        NotFoundError
            Kind ``store-not-found``: the folder does not exist, the prefix is empty, or it is not a store, for example
            because a disk is not mounted.
        DataFileError
            Kind ``file-io``: the path is a file.
        """
        with self._explained("opened"):
            kind = self._fs.get_file_info(self.root).type.name
        if kind == "File":
            raise DataFileError(f"{self.url} is a file: a store of backups is a folder", kind="file-io")
        if kind == "NotFound" or not (self._is_folder("backups") or self.size(_MARKER) is not None):
            raise NotFoundError(
                f"no store of backups at {self.url}: correct the path, mount its disk, or create a new "
                "store (--create)",
                kind="store-not-found",
            )

    def create(self) -> None:
        """Create the store if it does not exist."""
        if self.folder is not None:
            with self._explained("made"):
                durable.make_folder(self.folder.parent)
                durable.make_folder(self.folder, mode=0o700)
        if self.size(_MARKER) is None:
            self.put_json(_MARKER, {"format": 1})

    def require_writable(self) -> None:
        """Check write permission of a store's folder without writing. Changes nothing.

        Raises
        ------
        AccessDeniedError
            Kind ``permission``: the folder is not writable.
        """
        if self.folder is not None and not os.access(self.folder, os.W_OK | os.X_OK):
            raise AccessDeniedError(
                f"{self.url} is not writable: correct the permissions of the folder, or run as its owner",
                kind="permission",
            )

    def _is_folder(self, key: str) -> bool:
        with self._explained("opened"):
            return str(self._fs.get_file_info(f"{self.root}/{key}").type.name) == "Directory"

    def sizes(self, under: str = "", *, unfinished: bool = False) -> dict[str, int]:
        """Sizes of all objects below `under`, by key; or of unfinished files of killed writers."""
        base = f"{self.root}/{under}" if under else self.root
        with self._explained("listed"):
            selector = _file_systems().FileSelector(base, recursive=True, allow_not_found=True)
            found = self._fs.get_file_info(selector)
        files = [one for one in found if one.is_file and bool(_UNFINISHED.fullmatch(one.base_name)) == unfinished]
        return {one.path[len(self.root) + 1 :]: one.size for one in files}

    def size(self, key: str) -> int | None:
        """Size of an object in bytes; None if it does not exist."""
        with self._explained(f"asked for {key}"):
            found = self._fs.get_file_info(f"{self.root}/{key}")
        return int(found.size) if found.is_file else None

    def put(self, key: str, content: bytes) -> None:
        """Store an object atomically, replacing an existing one."""
        with self._explained(f"written ({key})"):
            self._write(key, [content])

    def put_file(
        self, key: str, path: Path, *, pace: RateLimiter | None = None, progress: Callable[[int], object] = int
    ) -> None:
        """Store a file; `progress` is called with the bytes of each block."""

        def blocks() -> Iterator[bytes]:
            with path.open("rb") as file:
                while block := file.read(BLOCK_BYTES):
                    if pace is not None:
                        pace.wait(len(block))
                    yield block
                    progress(len(block))

        with self._explained(f"written ({key})"):
            self._write(key, blocks())

    def blocks(self, key: str) -> Iterator[bytes]:
        """Read an object block by block.

        Raises
        ------
        NotFoundError
            The object does not exist.
        """
        with self._explained(f"read ({key})"), self._fs.open_input_stream(f"{self.root}/{key}") as stream:
            while block := stream.read(BLOCK_BYTES):
                yield block

    def get(self, key: str) -> bytes:
        """Read a whole object."""
        return b"".join(self.blocks(key))

    def delete(self, key: str) -> None:
        """Remove an object, if it exists."""
        with self._explained(f"removed ({key})"), contextlib.suppress(FileNotFoundError):
            self._fs.delete_file(f"{self.root}/{key}")

    def delete_folder(self, key: str) -> None:
        """Remove all objects below a key."""
        for inner in self.sizes(key) | self.sizes(key, unfinished=True):
            self.delete(inner)
        if self.folder is not None:
            shutil.rmtree(self.folder / key, ignore_errors=True)

    def put_json(self, key: str, body: dict[str, Any], sign: Key | None = None) -> None:
        """Store a record with a digest, which reveals truncation or changes, and a signature if there is a key."""
        text = _text_of(body)
        signature = "" if sign is None else f'"hmac_sha256":"{sign.sign(text)}",'
        digest = hashlib.sha256(text).hexdigest()
        self.put(key, f'{{"sha256":"{digest}",{signature}"body":'.encode() + text + b"}\n")

    def get_json(self, key: str) -> dict[str, Any]:
        """Read the body of a record. Raises the errors of `get_record`."""
        return self.get_record(key).body

    def get_record(self, key: str) -> Record:
        """Read a record.

        Raises
        ------
        NotFoundError
            The record does not exist.
        DamagedError
            Kind ``damaged-backup``: it is damaged.
        """
        content = self.get(key)
        damaged = DamagedError(f"{key} in {self.url} is damaged", kind="damaged-backup")
        try:
            record = json.loads(content)
            body: dict[str, Any] = record["body"]
            # Digest and signature are those of the body's canonical text, so write the body in this form again.
            text, digest = _text_of(body), record["sha256"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise damaged from None
        if not isinstance(body, dict) or hashlib.sha256(text).hexdigest() != digest:
            raise damaged
        return Record(body, digest, record.get("hmac_sha256", ""), text)

    def _write(self, key: str, content: Any) -> None:
        if self.folder is None:
            # An object appears when it is complete; a truncated one has another size than its key.
            with self._fs.open_output_stream(f"{self.root}/{key}") as stream:
                for block in content:
                    stream.write(block)
            return
        path, shared = self.folder / key, self._is_shared()
        self._make_folders(path.parent, shared)
        fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
        try:
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                if shared:
                    os.fchmod(descriptor, 0o660)
                for block in content:
                    file.write(block)
                file.flush()
                os.fsync(file.fileno())
            durable.rename(fresh, path)
        finally:
            fresh.unlink(missing_ok=True)

    def _is_shared(self) -> bool:
        """Whether a group shares the folder. Never creates the folder: its disk may not be mounted."""
        assert self.folder is not None
        if not self.folder.is_dir():
            if self.folder.exists():
                raise DataFileError(f"{self.url} is a file: a store of backups is a folder", kind="file-io")
            raise NotFoundError(
                f"no store of backups at {self.url}: mount its disk, or create a new store (--create)",
                kind="store-not-found",
            )
        return bool(self.folder.stat().st_mode & stat.S_ISGID)

    def _make_folders(self, path: Path, shared: bool) -> None:
        assert self.folder is not None
        for one in [*reversed(path.relative_to(self.folder).parents), path.relative_to(self.folder)]:
            inner = self.folder / one
            try:
                # Never create the folder of the store itself: its disk may not be mounted.
                if one.parts:
                    inner.mkdir(mode=0o700)
                    durable.sync_folder(inner.parent)
            except FileExistsError:
                continue
            # The umask reduces the mode given to `mkdir`, so set it afterwards.
            if one.parts and shared:
                inner.chmod(0o2770)

    @contextlib.contextmanager
    def _explained(self, what: str) -> Iterator[None]:
        """Convert file system errors to errors of this package."""
        try:
            yield
        except ChronotileError:
            raise
        except FileNotFoundError as error:
            raise NotFoundError(
                f"{self.url} could not be {what}: there is no {error.filename or 'such object'}", kind="file-not-found"
            ) from error
        except PermissionError as error:
            raise AccessDeniedError(
                f"{self.url} could not be {what}: {error.strerror}; correct its permissions", kind="permission"
            ) from error
        except OSError as error:
            raise self._of(error, what) from error
        except ValueError as error:
            raise InvalidInputError(f"{self.url} could not be {what}: {error}", kind="invalid-url") from error

    def _of(self, error: OSError, what: str) -> ChronotileError:
        text = f"{self.url} could not be {what}: {' '.join(str(error).split())}"
        if error.errno == errno.ENOSPC:
            return StorageFullError(f"{text}; free space, then repeat", kind="storage-full")
        if "ACCESS_DENIED" in text or "Forbidden" in text:
            return AccessDeniedError(
                f"{text}; correct the access keys in the environment, or their permissions", kind="permission"
            )
        if self._fs_is_local:
            return DataFileError(text, kind="file-io")
        return UnavailableError(f"{text}; check that the object store is reachable", kind="no-connection")

    @property
    def _fs_is_local(self) -> bool:
        return self.url.startswith("file:")


def normal(url: str) -> str:
    """Normalize a store's URL: absolute, and without secrets.

    Raises
    ------
    InvalidInputError
        The URL is empty, or contains a secret, which would appear in journals.
    """
    text = url.strip()
    if not text:
        raise InvalidInputError(
            "the URL of the store of backups is empty: give a folder or s3://...", kind="invalid-url"
        )
    if not _SCHEME.match(text):
        return Path(text).expanduser().resolve().as_uri()
    if _SECRET.search(text):
        raise InvalidInputError(
            "keep keys out of the URL of the store of backups: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
            "or use a profile",
            kind="invalid-url",
        )
    return text


def _text_of(body: Any) -> bytes:
    return json.dumps(body, sort_keys=True, separators=(",", ":")).encode()


def digest_of(path: Path, *, pace: RateLimiter | None = None) -> str:
    """SHA-256 of a file, in hexadecimal."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            if pace is not None:
                pace.wait(len(block))
            found.update(block)
    return found.hexdigest()


def _file_systems() -> Any:
    from pyarrow import fs

    return fs
