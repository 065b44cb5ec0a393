"""Manifests of backups, and maintenance of a store of backups.

A store holds ``files/`` (each file of any backup once, under its digest and size) and ``backups/NAME/``: ``begun.json``
(the plan), ``schema.json``, ``parts/HOST-ID.json`` (the files of a node) and finally ``manifest.json``. Without a
manifest, a backup is unfinished; its files are kept while it is being made.
"""

from __future__ import annotations

import hashlib
import secrets
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from chronotile.errors import BusyError, ChronotileError, InvalidInputError
from chronotile_tools.errors import DamagedError, NotFoundError
from chronotile_tools.ops.backups import names as checked
from chronotile_tools.ops.backups.schema_text import flat_map
from chronotile_tools.ops.backups.signing import Key
from chronotile_tools.ops.backups.stores import Record, Store

FORMAT = 1
REMOVING = "removing.json"
_DELETES_BETWEEN_LOOKS = 200


@dataclass(frozen=True)
class File:
    """A file of an SSTable."""

    keyspace: str
    table: str
    table_id: str
    """Id without dashes, as in the name of the table's folder."""
    name: str
    bytes: int
    sha256: str
    mtime_ns: int
    """Modification time in nanoseconds since 1970: SSTable files never change, so an equal time means the same file."""

    def __post_init__(self) -> None:
        checked.require_keyspace(self.keyspace)
        checked.require("table", self.table)
        checked.require("id of a table", self.table_id)
        checked.require("file of an SSTable", self.name)
        checked.require("digest", self.sha256)
        checked.require_count(self.bytes, self.mtime_ns)

    @property
    def key(self) -> str:
        """Key in the store."""
        return file_key(self.sha256, self.bytes)


@dataclass(frozen=True)
class NodeBackup:
    """Files of one node."""

    host_id: str
    address: str
    dc: str
    rack: str
    tokens: list[str]
    files: list[File]

    def __post_init__(self) -> None:
        checked.require("id of a node", self.host_id)
        checked.require_text(self.address, self.dc, self.rack, *self.tokens)

    @property
    def bytes(self) -> int:
        """Total size of its files."""
        return sum(file.bytes for file in self.files)


@dataclass(frozen=True)
class Schema:
    """Schema of the keyspaces."""

    replication: dict[str, dict[str, int]]
    """Replication factor by keyspace and data centre."""
    statements: list[dict[str, str]]
    """``keyspace``, ``type``, ``name`` and ``statement`` of each object, in an order in which they can be run."""
    tables: list[dict[str, str]]
    """``keyspace``, ``name`` and ``id`` (without dashes) of each table."""
    columns: dict[str, dict[str, str]]
    """Types of columns by ``keyspace.table``."""
    strategies: dict[str, str] = field(default_factory=dict)
    """Replication by keyspace in CQL syntax, including the strategy."""

    def __post_init__(self) -> None:
        for keyspace, copies in self.replication.items():
            checked.require_keyspace(keyspace)
            checked.require_text(*copies)
            checked.require_count(*copies.values())
        for one in self.statements:
            checked.require_keyspace(one["keyspace"])
            checked.require_text(one["type"], one["name"])
            if not isinstance(one["statement"], str):
                raise InvalidInputError("a statement of the schema is not a text", kind="invalid-name")
        for table in self.tables:
            checked.require_keyspace(table["keyspace"])
            checked.require("table", table["name"])
            checked.require("id of a table", table["id"])
        for name, columns in self.columns.items():
            checked.require_text(name, *columns, *columns.values())
        for keyspace, replicated in self.strategies.items():
            checked.require_keyspace(keyspace)
            flat_map(replicated)


@dataclass(frozen=True)
class Manifest:
    """A backup."""

    name: str
    cluster: str
    release: str
    begun_utc: str
    """Start; batches acknowledged earlier are in the backup."""
    ended_utc: str
    """Time at which the last snapshot was complete."""
    schema: Schema
    parts: list[NodeBackup]
    remarks: list[str] = field(default_factory=list)
    sent_files: int = 0
    """Files that the store did not have yet."""
    sent_bytes: int = 0

    def __post_init__(self) -> None:
        checked.require("name of a backup", self.name)
        checked.require("release", self.release)
        checked.require_text(self.cluster, self.begun_utc, self.ended_utc, *self.remarks)
        checked.require_count(self.sent_files, self.sent_bytes)
        for part in self.parts:
            for file in part.files:
                if file.keyspace not in self.schema.replication:
                    raise InvalidInputError(
                        f"a file is of keyspace {file.keyspace}, which the schema does not have", kind="invalid-name"
                    )

    @property
    def bytes(self) -> int:
        """Total size of the files of all nodes."""
        return sum(part.bytes for part in self.parts)

    @property
    def files(self) -> int:
        """Number of files of all nodes."""
        return sum(len(part.files) for part in self.parts)

    @property
    def keyspaces(self) -> list[str]:
        """Names of its keyspaces."""
        return sorted(self.schema.replication)


@dataclass(frozen=True)
class Damage:
    """A damaged file of a backup."""

    key: str
    what: str
    files: list[str]
    """The nodes' files that this stored file represents."""

    def __str__(self) -> str:
        more = f" and {len(self.files) - 1} more" if len(self.files) > 1 else ""
        return f"{self.files[0]}{more}: {self.what} ({self.key})"


def file_key(sha256: str, size: int) -> str:
    """Key of a file in a store."""
    return f"files/{sha256[:2]}/{sha256}-{size}"


def folder(name: str) -> str:
    """Folder of a backup in a store.

    Raises
    ------
    InvalidInputError
        The name is invalid.
    """
    if not checked.is_valid("name of a backup", name):
        raise InvalidInputError(
            f"invalid backup name {name!r}: use up to 100 letters, digits and _ . -", kind="invalid-request"
        )
    return f"backups/{name}"


def part_of(record: dict[str, Any]) -> NodeBackup:
    """Parse a part's record.

    Raises
    ------
    InvalidInputError
        Kind ``invalid-name``: it contains an invalid name.
    """
    return NodeBackup(**{**record, "files": [File(**file) for file in record["files"]]})


def save(store: Store, manifest: Manifest, key: Key | None = None) -> None:
    """Write a manifest, signed if there is a key; this completes the backup."""
    store.put_json(_manifest_key(manifest.name), {"format": FORMAT, **asdict(manifest)}, key)


def pinned(store: Store, name: str, key: Key | None = None) -> str:
    """A backup's name with the digest of its manifest, ``NAME@SHA256``: `load` of it returns exactly this manifest.

    Raises what `load` raises.
    """
    return f"{name}@{_read(store, name, key)[1].sha256}"


def name_of(backup: str) -> str:
    """The name in ``NAME`` or ``NAME@SHA256``."""
    return backup.partition("@")[0]


def load(store: Store, backup: str, key: Key | None = None) -> Manifest:
    """Load a backup's manifest.

    Parameters
    ----------
    backup : str
        Its name, or its name and digest as returned by `pinned`.
    key : Key, optional
        Key whose signature is required.

    Raises
    ------
    NotFoundError
        Kind ``backup-not-found``: the store has no backup of this name.
    DamagedError
        Kind ``damaged-backup``: its manifest is damaged or contains invalid names; kind ``unsigned-backup``: it is not
        signed with this key.
    """
    return _read(store, backup, key)[0]


def _manifest_key(name: str) -> str:
    return f"{folder(name)}/manifest.json"


def _read(store: Store, backup: str, key: Key | None) -> tuple[Manifest, Record]:
    name, pin = name_of(backup), backup.partition("@")[2]
    try:
        record = store.get_record(_manifest_key(name))
    except NotFoundError:
        store.require_there()
        there = ", ".join(names(store)[-5:]) or "none"
        raise NotFoundError(
            f"no backup {name} in {store.url}; the newest there: {there}", kind="backup-not-found"
        ) from None
    if pin and pin != record.sha256:
        raise DamagedError(
            f"the manifest of backup {name} in {store.url} was replaced since it was checked: plan again",
            kind="damaged-backup",
        )
    if key is not None and not record.is_signed(key):
        what = "is signed with another key than" if record.signature else "is not signed with"
        raise DamagedError(
            f"backup {name} in {store.url} {what} {key.source}: it may be forged; choose another backup",
            kind="unsigned-backup",
        )
    return _manifest_of(name, record.body), record


def _manifest_of(name: str, body: dict[str, Any]) -> Manifest:
    found = {field: value for field, value in body.items() if field != "format"}
    try:
        if body.get("format") == FORMAT:
            parts = [part_of(part) for part in body["parts"]]
            made = Manifest(**{**found, "schema": Schema(**body["schema"]), "parts": parts})
            if made.name == name:
                return made
            raise InvalidInputError(f"it calls itself {made.name!r}", kind="invalid-name")
    except InvalidInputError as error:
        raise DamagedError(
            f"the manifest of backup {name} is invalid: {error}; nothing of it was used", kind="damaged-backup"
        ) from None
    except (TypeError, KeyError, AttributeError, ValueError):
        # Unknown or missing fields: the manifest was written by another release.
        pass
    raise DamagedError(
        f"backup {name} was written by another release of Chronotile: use that release", kind="damaged-backup"
    )


def names(store: Store) -> list[str]:
    """Names of the finished backups."""
    return sorted(name for key in store.sizes("backups") if key.endswith("/manifest.json") and (name := _owner(key)))


def unfinished(store: Store) -> list[str]:
    """Names of unfinished backups."""
    found = {name for key in store.sizes("backups") if (name := _owner(key))}
    return sorted(found - set(names(store)))


def _owner(key: str) -> str:
    """Backup that an object belongs to; empty for other objects."""
    name = key.split("/")[1]
    return name if checked.is_valid("name of a backup", name) else ""


def read_all(store: Store, key: Key | None = None) -> tuple[list[Manifest], list[str]]:
    """All backups, oldest first, and the names of those with an invalid manifest, or without the key's signature."""
    found, damaged = [], []
    for name in names(store):
        try:
            found.append(load(store, name, key))
        except DamagedError:
            damaged.append(name)
    return sorted(found, key=lambda one: (one.ended_utc, one.name)), damaged


def newest(store: Store, cluster: str = "", key: Key | None = None) -> Manifest | None:
    """The newest valid backup, signed if a key is given, optionally of one cluster."""
    found, _ = read_all(store, key)
    return next((one for one in reversed(found) if cluster in ("", one.cluster)), None)


def begin(store: Store, name: str, record: dict[str, Any]) -> None:
    """Mark a backup as being made: while the mark exists, no file is removed from the store.

    Raises
    ------
    BusyError
        Kind ``removal-running``: backups are being removed.
    InvalidInputError
        Kind ``refused``: a backup of this name exists.
    """
    if store.size(f"{folder(name)}/manifest.json") is not None:
        raise InvalidInputError(f"backup {name} already exists in {store.url}: use another name", kind="refused")
    store.put_json(f"{folder(name)}/begun.json", {"format": FORMAT, **record})
    # Look for a removal after writing the mark: a removal does the same, so at least one of the two sees the other.
    require_no_removal(store)


def require_no_removal(store: Store) -> None:
    """Raise an error while backups are being removed, because files needed by a new backup might be deleted."""
    if store.size(REMOVING) is not None:
        who = store.get_json(REMOVING)
        raise BusyError(
            f"backups are being removed from {store.url} by {who['host']} since {who['at']}: wait for the "
            "end. If the removal was interrupted, finish it with chronotile ops backup retain or remove",
            kind="removal-running",
        )


def check_files(store: Store, parts: Iterable[NodeBackup]) -> list[Damage]:
    """Check files of a backup by size; return those that are missing or differ."""
    sizes = store.sizes("files")
    found = []
    for key, users in users_of(parts).items():
        size = sizes.get(key)
        if size is None:
            found.append(Damage(key, "missing", users))
        elif size != int(key.rpartition("-")[2]):
            found.append(Damage(key, f"{size} bytes long", users))
    return found


def verify(store: Store, name: str, *, progress: Callable[[int, int], object] = lambda *_: None) -> list[Damage]:
    """Read all files of a backup and compare sizes and digests.

    Parameters
    ----------
    progress : callable
        Called with the bytes read so far and the total.

    Returns
    -------
    list of Damage
        Empty for an intact backup.
    """
    manifest = load(store, name)
    damage = {one.key: one for one in check_files(store, manifest.parts)}
    users = users_of(manifest.parts)
    done, whole = 0, sum(int(key.rpartition("-")[2]) for key in users)
    for key, files in users.items():
        if key in damage:
            continue
        digest = hashlib.sha256()
        try:
            for block in store.blocks(key):
                digest.update(block)
                done += len(block)
                progress(done, whole)
        except ChronotileError as error:
            damage[key] = Damage(key, f"cannot be read: {error}", files)
            continue
        if digest.hexdigest() != key.split("/")[-1].partition("-")[0]:
            damage[key] = Damage(key, "its content differs", files)
    return list(damage.values())


def users_of(parts: Iterable[NodeBackup]) -> dict[str, list[str]]:
    """Files of nodes, by their key in the store."""
    found: dict[str, list[str]] = {}
    for part in parts:
        for file in part.files:
            found.setdefault(file.key, []).append(f"{file.keyspace}.{file.table} {file.name} of {part.address}")
    return found


@dataclass(frozen=True)
class RemovalReport:
    """Report of a removal."""

    backups: list[str]
    files: int
    bytes: int


def retain(store: Store, keep: int, *, cluster: str = "") -> RemovalReport:
    """Remove all but the newest backups of each cluster (or of `cluster` only), and unreferenced files."""
    if keep < 1:
        raise InvalidInputError("keep at least one backup", kind="invalid-request")
    store.require_there()
    by_cluster: dict[str, list[str]] = {}
    for manifest in read_all(store)[0]:
        by_cluster.setdefault(manifest.cluster, []).append(manifest.name)
    old = [name for of, found in by_cluster.items() if cluster in ("", of) for name in found[:-keep]]
    return _sweep(store, old)


def remove(store: Store, chosen: Sequence[str]) -> RemovalReport:
    """Remove finished or unfinished backups, and unreferenced files.

    Raises
    ------
    NotFoundError
        Kind ``backup-not-found``; nothing was removed.
    BusyError
        Kind ``unfinished``: another backup is being made, which may need these files.
    DamagedError
        Another backup's manifest cannot be read, so the files it needs are unknown; nothing was removed.
    """
    store.require_there()
    known = {*names(store), *unfinished(store)}
    for name in chosen:
        if name not in known:
            raise NotFoundError(f"no backup {name} in {store.url}", kind="backup-not-found")
    return _sweep(store, chosen)


def forget_unfinished(store: Store, name: str) -> None:
    """Abandon an unfinished backup. Its files are deleted by the next removal."""
    if store.size(f"{folder(name)}/manifest.json") is None:
        store.delete_folder(folder(name))


def _sweep(store: Store, chosen: Sequence[str]) -> RemovalReport:
    """Remove backups first, then unreferenced files.

    A new backup and a removal each write their own mark before they check for the other's, so at least one of them
    detects the other.
    """
    mark = secrets.token_hex(8)
    at = datetime.now(UTC).isoformat(timespec="seconds")
    store.put_json(REMOVING, {"mark": mark, "host": socket.gethostname(), "at": at})
    try:
        others = set(unfinished(store)) - set(chosen)
        if others:
            raise BusyError(
                f"backup {min(others)} is unfinished and may need existing files: finish it (chronotile ops "
                "resume), abandon it (ops abandon), or remove it too",
                kind="unfinished",
            )
        needed = {
            file.key
            for name in names(store)
            if name not in chosen
            for part in load(store, name).parts
            for file in part.files
        }
    except ChronotileError:
        store.delete(REMOVING)
        raise
    for name in chosen:
        # Delete the manifest first: a backup exists as long as its manifest does, so an interrupted removal leaves no
        # backup without its files.
        store.delete(f"{folder(name)}/manifest.json")
        store.delete_folder(folder(name))
    removed = _remove_files(store, needed, mark)
    store.delete(REMOVING)
    return RemovalReport(list(chosen), *removed)


def _remove_files(store: Store, needed: set[str], mark: str) -> tuple[int, int]:
    count = size = 0
    for key, length in (store.sizes("files") | store.sizes("files", unfinished=True)).items():
        if key in needed:
            continue
        if count % _DELETES_BETWEEN_LOOKS == 0 and store.get_json(REMOVING)["mark"] != mark:
            raise BusyError("another removal started meanwhile and will finish the work", kind="removal-running")
        store.delete(key)
        count, size = count + 1, size + length
    return count, size
