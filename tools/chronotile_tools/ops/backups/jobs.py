"""Jobs on a node's machine: send a snapshot's files to a store, and fetch files from a store.

A procedure runs them: in this process for laboratory nodes, otherwise through a command on the node's machine, with the
arguments of the job appended. Both may be repeated: existing files are not transferred again.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from chronotile import durable
from chronotile.errors import ChronotileError, DataFileError
from chronotile_tools.errors import DamagedError, NotFoundError
from chronotile_tools.ops.backups import manifests, names
from chronotile_tools.ops.backups.manifests import File, NodeBackup
from chronotile_tools.ops.backups.stores import RateLimiter, Store, digest_of
from chronotile_tools.ops.procedures.nodes import Echo

THREADS = 4
REPORT_S = 10.0
_COMPONENT = re.compile(r"[a-z]{2}-[^-]+-(big|bti)-.+")
_TABLE_FOLDER = re.compile(r"(?P<table>\w+)-(?P<id>[0-9a-f]{32})")


@dataclass(frozen=True)
class Send:
    """Send a node's part of a backup: the files of its snapshots that the store does not have yet."""

    verb: ClassVar[str] = "send"
    url: str
    backup: str
    host_id: str
    folders: tuple[str, ...]
    """The node's data folders."""
    limit_mib: float = 0.0
    """Rate limit in MiB per second; 0 for no limit."""
    base: str = ""
    """A backup, ``NAME@SHA256``, whose digests are reused for unchanged files. Empty to read all files."""

    @property
    def words(self) -> list[str]:
        """Arguments of ``chronotile ops backup send``."""
        data = [word for folder in self.folders for word in ("--data", folder)]
        limit = ["--limit", str(self.limit_mib)] if self.limit_mib else []
        base = ["--base", self.base] if self.base else []
        return ["--to", self.url, "--name", self.backup, "--node", self.host_id, *data, *limit, *base]

    def run(self, echo: Echo) -> None:
        """Run the job.

        Raises
        ------
        NotFoundError
            The backup was not begun, or the data folders hold no snapshot of it.
        """
        store = Store(self.url)
        begun = store.get_json(f"{manifests.folder(self.backup)}/begun.json")
        about = next((node for node in begun["nodes"] if node["host_id"] == self.host_id), None)
        if about is None:
            raise NotFoundError(f"backup {self.backup} does not include node {self.host_id}", kind="node-not-found")
        pace, reading = (RateLimiter(self.limit_mib * 2**20) for _ in range(2))
        began = time.monotonic()
        known = _known_digests(store, self.base, self.host_id)
        files = [
            (path, _file_of(path, place, known, reading))
            for place, path in _snapshot_files(self.folders, begun["tags"], set(begun["first"]))
            if place[0] in begun["keyspaces"]
        ]
        part = NodeBackup(**about, files=[file for _, file in files])
        there = store.sizes("files")
        missing = {file.key: path for path, file in files if there.get(file.key) != file.bytes}
        sent = _transfer(store, missing, pace, echo, about["address"])
        record = {
            **asdict(part),
            "sent_files": len(missing),
            "sent_bytes": sent,
            "seconds": round(time.monotonic() - began, 3),
        }
        # Write the record of the part last: a part with a record is not sent again.
        store.put_json(part_key(self.backup, self.host_id), record)


@dataclass(frozen=True)
class Fetch:
    """Fetch files of one or more nodes to a node's machine, ready for import."""

    verb: ClassVar[str] = "fetch"
    url: str
    backup: str
    """``NAME@SHA256``: exactly the manifest that the operator has checked."""
    sources: tuple[str, ...]
    """Host ids of the nodes whose files to fetch."""
    keyspaces: tuple[str, ...]
    folder: str
    """Target folder, with a subfolder per source, keyspace and table."""
    limit_mib: float = 0.0

    @property
    def words(self) -> list[str]:
        """Arguments of ``chronotile ops restore fetch``."""
        sources = [word for source in self.sources for word in ("--node", source)]
        keyspaces = [word for keyspace in self.keyspaces for word in ("--keyspace", keyspace)]
        limit = ["--limit", str(self.limit_mib)] if self.limit_mib else []
        return ["--from", self.url, "--backup", self.backup, "--into", self.folder, *sources, *keyspaces, *limit]

    def run(self, echo: Echo) -> None:
        """Run the job.

        Raises
        ------
        DamagedError
            Kind ``damaged-backup``: a file differs from what was sent; the message names it.
        """
        store = Store(self.url)
        manifest = manifests.load(store, self.backup)
        wanted = [
            (part, file)
            for part in manifest.parts
            if part.host_id in self.sources
            for file in part.files
            if file.keyspace in self.keyspaces
        ]
        # Folders and files get the modes of Cassandra's files; the enclosing folder is private.
        durable.make_folder(Path(self.folder).parent)
        durable.make_folder(Path(self.folder), mode=0o700)
        pace, progress = RateLimiter(self.limit_mib * 2**20), Progress(echo, "fetched", sum(f.bytes for _, f in wanted))

        def fetch(one: tuple[NodeBackup, File]) -> None:
            part, file = one
            _fetch(store, file, Path(self.folder, import_folder(part.host_id, file), file.name), pace, part.address)
            progress.add(file.bytes)

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(fetch, wanted))
        progress.end()
        # Write the marker last: the restore takes it as evidence that all files have arrived.
        durable.write_text(Path(self.folder, "fetched"), f"{self.backup}\n")


class Progress:
    """Reports progress and rate of a transfer at intervals. Thread-safe."""

    def __init__(self, echo: Echo, what: str, whole: int) -> None:
        self.echo, self.what, self.whole = echo, what, whole
        self.done = 0
        self._began = self._reported = time.monotonic()
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        """Add transferred bytes."""
        with self._lock:
            self.done += count
            now = time.monotonic()
            if now - self._reported >= REPORT_S:
                self._reported = now
                self.echo(f"      {self}")

    def end(self) -> None:
        """Report the end of the transfer."""
        self.echo(f"      {self}")

    def __str__(self) -> str:
        spent = max(time.monotonic() - self._began, 1e-3)
        rate = self.done / 2**20 / spent
        return f"{self.what} {self.done / 2**20:,.1f} of {self.whole / 2**20:,.1f} MiB, {rate:,.1f} MiB/s"


def part_key(backup: str, host_id: str) -> str:
    """Key of the record of a node's part.

    Raises
    ------
    InvalidInputError
        Kind ``invalid-name``: the name or the id is invalid.
    """
    names.require("id of a node", host_id)
    return f"{manifests.folder(backup)}/parts/{host_id}.json"


def import_folder(source: str, file: File) -> str:
    """Folder of a file below the target folder; nodetool import derives keyspace and table from its end."""
    return f"{source}/{file.keyspace}/{file.table}-{file.table_id}"


def _snapshot_files(
    folders: Sequence[str], tags: dict[str, str], first: set[str]
) -> Iterator[tuple[tuple[str, str, str], Path]]:
    """Files of SSTables in snapshots, each with keyspace, table and table id.

    Tables of `first` are taken from the first snapshot, all others from the second. Files of secondary indexes are in
    separate folders and are left out: the indexes are rebuilt.
    """
    for root in folders:
        for found in sorted(Path(root).glob("*/*/snapshots/*")):
            keyspace, match = found.parts[-4], _TABLE_FOLDER.fullmatch(found.parts[-3])
            if match is None:
                continue
            tag = tags["first" if f"{keyspace}.{match['table']}" in first else "second"]
            if found.name != tag:
                continue
            for path in sorted(found.iterdir()):
                if path.is_file() and _COMPONENT.fullmatch(path.name):
                    yield (keyspace, match["table"], match["id"]), path


def _known_digests(store: Store, base: str, host_id: str) -> dict[tuple[str, str, int, int], str]:
    """Digests of this node's files in another backup, by table id, name, bytes and time."""
    try:
        parts = [part for part in manifests.load(store, base).parts if part.host_id == host_id] if base else []
    except (NotFoundError, DamagedError):
        # The base backup was removed or replaced in the meantime: read the files.
        parts = []
    return {(file.table_id, file.name, file.bytes, file.mtime_ns): file.sha256 for part in parts for file in part.files}


def _file_of(
    path: Path, place: tuple[str, str, str], known: dict[tuple[str, str, int, int], str], pace: RateLimiter
) -> File:
    status = path.stat()
    same = known.get((place[2], path.name, status.st_size, status.st_mtime_ns))
    digest = same if same is not None else digest_of(path, pace=pace)
    return File(*place, path.name, status.st_size, digest, status.st_mtime_ns)


def _transfer(store: Store, missing: dict[str, Path], pace: RateLimiter, echo: Echo, address: str) -> int:
    sizes = {key: int(key.rpartition("-")[2]) for key in missing}
    progress = Progress(echo, f"{address} sent", sum(sizes.values()))

    def send(one: tuple[str, Path]) -> None:
        key, path = one
        store.put_file(key, path, pace=pace, progress=progress.add)
        if store.size(key) != sizes[key]:
            raise DataFileError(f"{path} changed while it was being sent: repeat the command", kind="file-io")

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(send, missing.items()))
    progress.end()
    return progress.done


def _fetch(store: Store, file: File, path: Path, pace: RateLimiter, address: str) -> None:
    if path.is_file() and path.stat().st_size == file.bytes and digest_of(path) == file.sha256:
        return
    what = f"{file.keyspace}.{file.table} {file.name} of {address}"
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    digest = hashlib.sha256()
    try:
        durable.make_folder(path.parent)
        with fresh.open("xb") as target:
            for block in store.blocks(file.key):
                pace.wait(len(block))
                digest.update(block)
                target.write(block)
            target.flush()
            os.fsync(target.fileno())
        if digest.hexdigest() != file.sha256:
            raise DamagedError(f"{what} ({file.key}) was changed in {store.url}", kind="damaged-backup")
        durable.rename(fresh, path)
    except NotFoundError:
        raise DamagedError(f"{what} ({file.key}) is missing in {store.url}", kind="damaged-backup") from None
    except OSError as error:
        if isinstance(error, ChronotileError):
            raise
        raise DataFileError(f"cannot write {path}: {error.strerror}", kind="file-io") from error
    finally:
        fresh.unlink(missing_ok=True)


def result_of(record: dict[str, Any]) -> tuple[NodeBackup, int, int, float]:
    """Parse a part's record: the part, and what was sent (files, bytes, seconds)."""
    sent = record.pop("sent_files"), record.pop("sent_bytes"), record.pop("seconds")
    return manifests.part_of(record), *sent
