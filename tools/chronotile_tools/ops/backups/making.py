"""Make a backup: nearly simultaneous snapshots of all nodes, files sent by each node, and finally a manifest.

A batch of an archive spans several tables, and its catalog record is written last. So the catalog is snapshotted first,
on all nodes, before any other table. Every batch that is finished in the backup's catalog is then complete in the
backup, as is every batch acknowledged before the backup began. A batch that was being written leaves at most chunks
without a record, as after a crashed writer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from chronotile.errors import BusyError, ChronotileError, InvalidInputError
from chronotile.terminal import count_text
from chronotile_tools.errors import DamagedError, NotFoundError
from chronotile_tools.ops.backups import jobs, manifests, schemas, stores
from chronotile_tools.ops.backups.jobs import Send
from chronotile_tools.ops.backups.manifests import Manifest, NodeBackup, Schema
from chronotile_tools.ops.backups.signing import Key
from chronotile_tools.ops.backups.stores import Store
from chronotile_tools.ops.procedures import journal, statements
from chronotile_tools.ops.procedures.engine import Context, Procedure, Step
from chronotile_tools.ops.procedures.findings import Finding
from chronotile_tools.ops.procedures.nodes import all_members, any_serving, for_each_node, wait_for
from chronotile_tools.ops.procedures.preflight import data_folders, preflight, schema_versions
from chronotile_tools.ops.procedures.restarts import known_addresses

TRIES = 3
OLDEST = (4, 0)
"""First release with DESCRIBE and nodetool import."""


@dataclass(frozen=True)
class Backup(Procedure):
    """Back up keyspaces of all nodes to a folder or an object store; list, verify and remove backups.

    All nodes take a snapshot at nearly the same moment, catalogs of archives first. Then each node sends the files that
    the store does not have yet. The manifest is written last: a backup exists once its manifest does.

    \b
    Examples:
        chronotile ops backup run 10.0.0.1 --nodetool 'ssh {host} nodetool' \\
            --send-command 'ssh {host} chronotile ops backup send' --to s3://backups/plant
        chronotile ops backup run --lab plant --to /mnt/backups --create --sign-key ~/backups.key
        chronotile ops backup verify /mnt/backups newest
    """

    name: ClassVar[str] = "backup"
    needs: ClassVar[tuple[str, ...]] = ("send",)
    url: str
    keyspaces: list[str]
    addresses: list[str]
    label: str = ""
    """Name of the backup; empty to derive it from cluster and time."""
    limit_mib: float = 0.0
    """Rate limit per node in MiB per second; 0 for no limit."""
    create: bool = False
    """Whether to create the store if it does not exist."""
    key_file: str = ""
    """Key file to sign the manifest; empty for none."""

    @classmethod
    def of(
        cls,
        context: Context,
        url: str,
        keyspaces: Sequence[str] = (),
        label: str = "",
        limit_mib: float = 0.0,
        *,
        create: bool = False,
        key_file: str = "",
    ) -> Backup:
        """Create the procedure for these keyspaces, or all user keyspaces."""
        if label:
            manifests.folder(label)
        if key_file:
            Key.read(key_file)
            key_file = str(Path(key_file).expanduser().resolve())
        wanted = schemas.user_keyspaces(context.nodes, keyspaces)
        addresses = known_addresses(context, [])
        return cls(stores.normal(url), wanted, addresses, label, limit_mib, create, key_file)

    def checks(self, context: Context) -> list[Finding]:
        """The preflight checks, and checks of the store."""
        found = preflight(context.nodes)
        if any(finding.level == "refused" for finding in found):
            return found
        found.append(release_finding(context))
        views = schemas.views_of(context.nodes, self.keyspaces)
        if views:
            text = f"{', '.join(views)} will not be included: recreate materialized views after a restore"
            found.append(Finding("warning", "views", text))
        try:
            found += self._store_findings(context)
        except ChronotileError as error:
            found.append(Finding("refused", "store", str(error)))
        return found

    def _store_findings(self, context: Context) -> list[Finding]:
        store = Store(self.url)
        try:
            store.require_there()
        except NotFoundError:
            if not self.create:
                raise
            found = [Finding("ok", "store", f"{self.url} does not exist and will be created")]
        else:
            store.require_writable()
            manifests.require_no_removal(store)
            if self.label and self.label in manifests.names(store):
                raise InvalidInputError(f"backup {self.label} already exists: use another name", kind="refused")
            found = [Finding("ok", "store", f"{self.url} exists")]
        free, needed = store.free_bytes(), self._needed(context, store)
        if free is None:
            return [*found, Finding("unknown", "space", "the free space of the object store is unknown")]
        text = f"{free >> 20:,} MiB are free, and up to {needed >> 20:,} MiB are needed"
        return [*found, Finding("refused" if free < needed else "ok", "space", text)]

    def _needed(self, context: Context, store: Store) -> int:
        """Upper bound of bytes to send: all data, minus the newest backup of these keyspaces."""
        newest = self._newest(store, context)
        kept = (
            0 if newest is None else sum(f.bytes for p in newest.parts for f in p.files if f.keyspace in self.keyspaces)
        )
        return max(0, sum(sizes(context, self.addresses, self.keyspaces).values()) - kept)

    def _newest(self, store: Store, context: Context) -> Manifest | None:
        """Newest backup of this cluster, whose files are not sent again; with a key, only a signed one."""
        return manifests.newest(store, cluster_name(context), Key.read_optional(self.key_file))

    def cost(self, context: Context) -> list[str]:
        """Data per node, and data already in the store."""
        by_node = sizes(context, self.addresses, self.keyspaces)
        sentences = [f"{size >> 20:,} MiB on {address}." for address, size in by_node.items()]
        try:
            newest = self._newest(Store(self.url), context)
        except ChronotileError:
            newest = None
        sentences.append(
            "The store has no backup of this cluster: all files are sent."
            if newest is None
            else f"Files of {newest.name} ({count_text(newest.files, 'file')}, {newest.bytes >> 20:,} MiB) "
            "are not sent again."
        )
        return [*sentences, "Until the files are sent, snapshots keep compacted files on the nodes' disks."]

    def steps(self, context: Context) -> list[Step]:
        """Begin, snapshot, send, manifest, clear."""
        return [
            self._begin_step(context),
            self._snapshot_step(context),
            self._send_step(context),
            self._manifest_step(context),
            self._clear_step(context),
        ]

    def give_up(self, context: Context) -> None:
        """Clear snapshots, and remove the unfinished backup."""
        if "backup" not in context.notes:
            return
        name = context.notes["backup"]
        try:
            clear(context, self.addresses, tags_of(name))
            manifests.forget_unfinished(Store(self.url), name)
        except ChronotileError as error:
            context.echo(f"snapshots of {name}, or its files in {self.url}, could not be removed: {error}")

    def _begin_step(self, context: Context) -> Step:
        def do() -> None:
            if self.create:
                Store(self.url).create()
            Store(self.url).require_there()
            if "backup" not in context.notes:
                cluster = cluster_name(context)
                context.note(backup=self.label or default_name(cluster), cluster=cluster)
            self._record(context, [])

        def prove() -> str:
            return f"backup {context.notes['backup']} was begun in {self.url}"

        return Step("begin", f"start a backup in {self.url}", do, prove)

    def _record(self, context: Context, first: list[str]) -> None:
        """Record in the store what will be backed up."""
        nodes = [
            {"host_id": one.host_id, "address": one.address, "dc": one.dc, "rack": one.rack, "tokens": list(one.tokens)}
            for one in all_members(context.nodes)
        ]
        name = context.notes["backup"]
        record = {"cluster": context.notes["cluster"], "keyspaces": self.keyspaces, "first": first, "nodes": nodes}
        manifests.begin(Store(self.url), name, {**record, "tags": tags_of(name)})

    # ------------------------------------------------------------ snapshots

    def _snapshot_step(self, context: Context) -> Step:
        def do() -> None:
            for _ in range(TRIES):
                if self._snapshot(context):
                    return
            raise BusyError(
                "tables were dropped during the snapshots, three times in a row: resume when no slice is being retired",
                kind="busy",
            )

        def prove() -> str:
            tag = tags_of(context.notes["backup"])["second"]
            for address in self.addresses:
                if tag not in snapshots_of(context, address):
                    raise ChronotileError(f"{address} does not list snapshot {tag}", kind="not-confirmed")
            return f"all nodes have it; taken within {context.notes['seconds']:.1f} s"

        return Step("snapshot", "flush and snapshot all nodes at once, catalogs of archives first", do, prove)

    def _snapshot(self, context: Context) -> bool:
        """Take a snapshot; return whether it is complete, with no table dropped meanwhile."""
        tags = tags_of(context.notes["backup"])
        # Clear an interrupted snapshot: mixed with a new one, it would contain two points in time.
        clear(context, self.addresses, tags)
        before = schemas.tables_of(context.nodes, self.keyspaces)
        first = [
            f"{keyspace}.{table}" for keyspace in schemas.archives(before) for table in sorted(schemas.ARCHIVE_TABLES)
        ]
        self._record(context, first)
        began, begun = time.monotonic(), journal.now_text()
        if first:
            self._on_all(context, "snapshot", "-t", tags["first"], "-kt", ",".join(first))
        self._on_all(context, "snapshot", "-t", tags["second"], *self.keyspaces)
        seconds, ended = time.monotonic() - began, journal.now_text()
        # Read the schema after the snapshots, once nodes agree on it, so that it has every table named in the catalogs.
        if len(schema_versions(context.nodes, self.addresses)) > 1:
            raise BusyError("the nodes disagree on the schema: resume when they agree", kind="busy")
        schema = schemas.read(context.nodes, self.keyspaces)
        if {table["id"] for table in before} - {table["id"] for table in schema.tables}:
            return False
        store = Store(self.url)
        store.put_json(f"{manifests.folder(context.notes['backup'])}/schema.json", vars(schema))
        # Parts in the store list the files of an earlier snapshot, which was cleared.
        for part in store.sizes(f"{manifests.folder(context.notes['backup'])}/parts"):
            store.delete(part)
        context.note(begun_utc=begun, ended_utc=ended, seconds=seconds)
        return True

    def _on_all(self, context: Context, *arguments: str) -> None:
        on_all(self.addresses, lambda one: context.nodes.nodetool(one, *arguments, timeout_s=context.node_s))

    # ------------------------------------------------------------ sending

    def _send_step(self, context: Context) -> Step:
        def do() -> None:
            store = Store(self.url)
            for _ in range(TRIES):
                self._send(context, store)
                if self._without_damage(context, store):
                    return
            raise ChronotileError(f"files of the backup do not stay in {self.url}", kind="not-confirmed")

        def prove() -> str:
            wait_for("records of all nodes' parts", lambda: self._missing(context), timeout_s=context.stream_s)
            results = [jobs.result_of(record) for record in self._records(context, Store(self.url))]
            files, size = sum(one[1] for one in results), sum(one[2] for one in results)
            whole = sum(part.bytes for part, *_ in results)
            rate = size / 2**20 / max(0.001, *(one[3] for one in results))
            return (
                f"{files} of {sum(len(part.files) for part, *_ in results)} files were new: {size / 2**20:,.1f} of "
                f"{whole / 2**20:,.1f} MiB sent, {rate:,.1f} MiB/s"
            )

        nodes = count_text(len(self.addresses), "node")
        return Step("send", f"have {nodes} send the files that {self.url} does not have", do, prove)

    def _send(self, context: Context, store: Store) -> None:
        name = context.notes["backup"]
        there = store.sizes(f"{manifests.folder(name)}/parts")
        ids = {one.address: one.host_id for one in all_members(context.nodes)}
        newest = self._newest(store, context)
        base = manifests.pinned(store, newest.name) if newest is not None else ""

        def send(address: str) -> None:
            if jobs.part_key(name, ids[address]) not in there:
                folders = tuple(data_folders(context.nodes, address))
                job = Send(self.url, name, ids[address], folders, self.limit_mib, base)
                context.actuator.work(address, job, timeout_s=context.stream_s)

        on_all(self.addresses, send)

    def _records(self, context: Context, store: Store) -> list[dict[str, Any]]:
        keys = sorted(store.sizes(f"{manifests.folder(context.notes['backup'])}/parts"))
        return [store.get_json(key) for key in keys]

    def _missing(self, context: Context) -> str:
        there = len(self._records(context, Store(self.url)))
        return "" if there == len(self.addresses) else f"{there} of {len(self.addresses)} are there"

    def _without_damage(self, context: Context, store: Store) -> bool:
        """Keep the parts whose files are all in the store; others must be sent again."""
        whole = True
        for record in self._records(context, store):
            part, *_ = jobs.result_of(record)
            if manifests.check_files(store, [part]):
                store.delete(jobs.part_key(context.notes["backup"], part.host_id))
                whole = False
        return whole

    # ------------------------------------------------------------ the end

    def _manifest_step(self, context: Context) -> Step:
        def do() -> None:
            store = Store(self.url)
            made = self._manifest(context, store)
            damage = manifests.check_files(store, made.parts)
            if damage:
                raise DamagedError(
                    f"{count_text(len(damage), 'file')} disappeared from {self.url} ({damage[0]}): start again "
                    "(--again)",
                    kind="damaged-backup",
                )
            manifests.save(store, made, Key.read_optional(self.key_file))

        def prove() -> str:
            made = manifests.load(Store(self.url), context.notes["backup"], Key.read_optional(self.key_file))
            signed = ", signed" if self.key_file else ""
            size = f"{count_text(made.files, 'file')}, {made.bytes / 2**20:,.1f} MiB"
            return f"backup {made.name}: {size} of {count_text(len(made.parts), 'node')}{signed}"

        return Step("manifest", "write the manifest, which completes the backup", do, prove)

    def _manifest(self, context: Context, store: Store) -> Manifest:
        notes, name = context.notes, context.notes["backup"]
        results = [jobs.result_of(record) for record in self._records(context, store)]
        parts: list[NodeBackup] = [part for part, *_ in results]
        remarks = [
            f"the snapshots of all nodes were taken within {notes['seconds']:.1f} s",
            "secondary indexes are rebuilt on restore; roles and permissions are not included",
        ]
        views = schemas.views_of(context.nodes, self.keyspaces)
        if views:
            remarks.append(f"without the materialized views {', '.join(views)}")
        return Manifest(
            name=name,
            cluster=notes["cluster"],
            release=all_members(context.nodes)[0].release,
            begun_utc=notes["begun_utc"],
            ended_utc=notes["ended_utc"],
            schema=Schema(**store.get_json(f"{manifests.folder(name)}/schema.json")),
            parts=parts,
            remarks=remarks,
            sent_files=sum(one[1] for one in results),
            sent_bytes=sum(one[2] for one in results),
        )

    def _clear_step(self, context: Context) -> Step:
        def do() -> None:
            clear(context, self.addresses, tags_of(context.notes["backup"]))

        def prove() -> str:
            for address in self.addresses:
                if snapshots_of(context, address) & set(tags_of(context.notes["backup"]).values()):
                    raise ChronotileError(f"{address} still lists the snapshot", kind="not-confirmed")
            return "all snapshots of the backup are cleared"

        return Step("clear", "clear the snapshots", do, prove)


def tags_of(name: str) -> dict[str, str]:
    """Names of a backup's snapshots: of archive catalogs, and of everything."""
    return {"first": f"{name}.catalogs", "second": f"{name}.all"}


def default_name(cluster: str) -> str:
    """Default backup name, which sorts by time."""
    kept = "".join(one if (one.isascii() and one.isalnum()) or one in "_.-" else "_" for one in cluster)[:60]
    return f"{datetime.now(UTC).strftime('%Y%m%dT%H%M%SZ')}-{kept}"


def cluster_name(context: Context) -> str:
    """The name of the cluster as a node reports it."""
    nodes = context.nodes
    return nodes.query(any_serving(nodes), statements.select("cluster_name", "system.local"))[0]["cluster_name"]


def clear(context: Context, addresses: Sequence[str], tags: dict[str, str]) -> None:
    """Clear a backup's snapshots, if any."""

    def one(address: str) -> None:
        for tag in sorted(snapshots_of(context, address) & set(tags.values())):
            context.nodes.nodetool(address, "clearsnapshot", "-t", tag, timeout_s=context.node_s)

    on_all(addresses, one)


def snapshots_of(context: Context, address: str) -> set[str]:
    """Names of a node's snapshots."""
    try:
        rows = context.nodes.query(address, statements.select("name", "system_views.snapshots"), timeout_s=60)
    except InvalidInputError:
        # Before 4.1.
        lines = context.nodes.nodetool(address, "listsnapshots").splitlines()
        return {line.split()[0] for line in lines if line.strip()}
    return {row["name"] for row in rows}


def on_all(addresses: Sequence[str], do: Callable[[str], object]) -> None:
    """Run an action for all nodes concurrently. If some fail, the others finish before the error is raised.

    Raises
    ------
    ChronotileError
        The first failure.
    """

    def tried(address: str) -> ChronotileError | None:
        try:
            do(address)
        except ChronotileError as error:
            return error
        return None

    failures = [error for error in for_each_node(addresses, tried).values() if error is not None]
    if failures:
        raise failures[0]


def sizes(context: Context, addresses: Sequence[str], keyspaces: Sequence[str]) -> dict[str, int]:
    """Bytes of keyspaces on each node, rounded up to MiB per table."""

    def of(address: str) -> int:
        rows = context.nodes.query(address, statements.select("keyspace_name, mebibytes", "system_views.disk_usage"))
        return sum(int(row["mebibytes"]) << 20 for row in rows if row["keyspace_name"] in keyspaces)

    return for_each_node(addresses, of)


def release_finding(context: Context) -> Finding:
    """Check that the release supports backup and restore."""
    release = all_members(context.nodes)[0].release
    if series(release) < OLDEST:
        return Finding("refused", "release", f"the nodes run {release}: backup and restore need 4.0 or later")
    return Finding("ok", "release", f"the nodes run {release}")


def series(release: str) -> tuple[int, int]:
    """Major and minor number of a release."""
    major, minor = release.split(".")[:2]
    return int(major), int(minor)
