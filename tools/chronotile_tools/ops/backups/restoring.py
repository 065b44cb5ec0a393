"""Restore a backup: the same nodes get their own files; other nodes get all files and drop rows they do not own.

Nodes load files with ``nodetool import``. Tables are dropped and recreated first, with new ids, so that state of the
former tables, such as hints and Paxos rounds, is not applied to them.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import ClassVar

from chronotile.errors import ChronotileError, InvalidInputError, UnavailableError
from chronotile.terminal import count_text
from chronotile_tools.ops.backups import making, manifests, proving, schemas
from chronotile_tools.ops.backups.jobs import Fetch, import_folder
from chronotile_tools.ops.backups.manifests import Manifest
from chronotile_tools.ops.backups.signing import Key
from chronotile_tools.ops.backups.stores import Store
from chronotile_tools.ops.procedures import statements
from chronotile_tools.ops.procedures.engine import Context, Procedure, Step
from chronotile_tools.ops.procedures.findings import Finding, Level
from chronotile_tools.ops.procedures.nodes import Member, all_members, any_serving, for_each_node, wait_for
from chronotile_tools.ops.procedures.preflight import copies, data_folders, free_bytes, preflight
from chronotile_tools.ops.procedures.restarts import known_addresses

STAGING = "chronotile_restore"
"""Folder next to the keyspaces of a node's data, for files until they are imported."""
TABLE_S = 300.0
SCHEMA_CHANGES = ("keyspace *",)


@dataclass(frozen=True)
class Restore(Procedure):
    """Restore keyspaces from a backup, in place or on other nodes.

    If nodes and tokens are those of the backup, each node gets its own files; otherwise each gets all files and drops
    rows that it does not own. Replication is adapted to the number of nodes. Existing rows are deleted only with
    --replace. Of the backup's schema, only statements that create tables, types, functions, aggregates and indexes of
    its keyspaces are run. With --sign-key, a backup that is unsigned or signed with another key is rejected.

    \b
    Examples:
        chronotile ops restore plan --lab plant --from /mnt/backups --backup newest
        chronotile ops restore run --lab plant --from /mnt/backups --backup newest --replace
    """

    name: ClassVar[str] = "restore"
    needs: ClassVar[tuple[str, ...]] = ("fetch",)
    url: str
    backup: str
    """Name and manifest digest, ``NAME@SHA256``: exactly the checked backup is restored."""
    keyspaces: list[str]
    addresses: list[str]
    in_place: bool
    """Whether nodes, tokens and replication are those of the backup, so that each node owns the same data."""
    replace: bool = False
    """Whether existing rows may be deleted."""
    quick: bool = False
    """Whether to skip counting rows and verifying archives."""
    limit_mib: float = 0.0
    """Rate limit per node in MiB per second; 0 for no limit."""

    @classmethod
    def of(
        cls,
        context: Context,
        url: str,
        backup: str,
        keyspaces: Sequence[str] = (),
        replace: bool = False,
        quick: bool = False,
        limit_mib: float = 0.0,
        *,
        key_file: str = "",
    ) -> Restore:
        """Create the procedure for some or all keyspaces of a backup; ``backup`` may be ``newest``. With a key file,
        the backup must be signed.

        Raises
        ------
        NotFoundError
            The backup does not exist.
        DamagedError
            Kind ``unsigned-backup``: it is not signed with the key; other kinds for an invalid manifest.
        InvalidInputError
            The backup does not contain the keyspace.
        """
        store, key = Store(url), Key.read_optional(key_file)
        manifest = find_backup(store, backup, key)
        strange = set(keyspaces) - set(manifest.keyspaces)
        if strange:
            raise InvalidInputError(
                f"{manifest.name} has no keyspace {min(strange)}; it has {', '.join(manifest.keyspaces)}",
                kind="table-not-found",
            )
        wanted = sorted(set(keyspaces)) or manifest.keyspaces
        there = schemas.strategies_of(context.nodes, wanted)
        same = is_same_ring(manifest, all_members(context.nodes)) and all(
            manifest.schema.strategies[keyspace] == found for keyspace, found in there.items()
        )
        addresses = known_addresses(context, [])
        pinned = manifests.pinned(store, manifest.name, key)
        return cls(store.url, pinned, wanted, addresses, same, replace, quick, limit_mib)

    # ------------------------------------------------------------ checks

    def checks(self, context: Context) -> list[Finding]:
        """The preflight checks, the backup, and whether it fits into this cluster and its data."""
        findings = preflight(context.nodes)
        if any(finding.level == "refused" for finding in findings):
            return findings
        store = Store(self.url)
        manifest = manifests.load(store, self.backup)
        findings += [
            making.release_finding(context),
            self._release_finding(context, manifest),
            _files_finding(store, manifest),
        ]
        findings += self._schema_findings(context, manifest)
        findings += [self._space_finding(context, manifest)]
        members = all_members(context.nodes)
        for keyspace in self.keyspaces:
            wanted = manifest.schema.replication[keyspace]
            fitting = schemas.fitting_replication(wanted, members)
            if fitting != wanted:
                before, after = _replication_text(wanted), _replication_text(fitting)
                text = f"{keyspace} had {before} and gets {after}, unless it exists already"
                findings.append(Finding("warning", "copies", text))
        return findings

    def _release_finding(self, context: Context, manifest: Manifest) -> Finding:
        release = all_members(context.nodes)[0].release
        text = f"the backup was made with {manifest.release}, and the nodes run {release}"
        if making.series(release) < making.series(manifest.release):
            return Finding("refused", "backup", f"{text}: an older release can read neither its files nor its schema")
        return Finding("ok", "backup", text)

    def _schema_findings(self, context: Context, manifest: Manifest) -> list[Finding]:
        present = self._present(context)
        there = schemas.read(context.nodes, present)
        findings = [Finding("refused", "schema", text) for text in schemas.refusals(manifest.schema, self.keyspaces)]
        findings += [Finding("refused", "schema", text) for text in schemas.type_differences(manifest.schema, there)]
        views = schemas.views_of(context.nodes, present)
        if views:
            text = f"{_some(views)} block dropping their tables: drop these materialized views first"
            findings.append(Finding("refused", "views", text))
        known = {(table["keyspace"], table["name"]) for table in manifest.schema.tables}
        full = self._with_rows(context, present)
        newer = [f"{t['keyspace']}.{t['name']}" for t in there.tables if (t["keyspace"], t["name"]) not in known]
        level: Level = "warning" if self.replace else "refused"
        verb = "will be" if self.replace else "would be"
        advice = "" if self.replace else ": pass --replace"
        if full:
            findings.append(Finding(level, "rows", f"the rows of {_some(full)} {verb} replaced{advice}"))
        if newer:
            text = f"{_some(newer)}, which the backup does not have, {verb} dropped{advice}"
            findings.append(Finding(level, "tables", text))
        return findings or [Finding("ok", "schema", "no conflicting tables")]

    def _present(self, context: Context) -> list[str]:
        """Keyspaces that exist in the cluster."""
        there = copies(context.nodes, any_serving(context.nodes))
        return [keyspace for keyspace in self.keyspaces if keyspace in there]

    def _space_finding(self, context: Context, manifest: Manifest) -> Finding:
        needed = self._bytes(context, manifest)

        def free(address: str) -> int | None:
            try:
                return free_bytes(context.nodes, address)
            except UnavailableError:
                return None

        seen = for_each_node(self.addresses, free)
        short = [f"{address} has {have >> 20:,} MiB free and needs {needed[address] >> 20:,}"
                 for address, have in seen.items() if have is not None and have < needed[address]]  # fmt: skip
        if short:
            return Finding("refused", "space", f"{'; '.join(short)}: free space, or restore fewer keyspaces")
        unknown = [address for address, have in seen.items() if have is None]
        if unknown:
            return Finding("unknown", "space", f"unknown free space on {', '.join(unknown)}: check it yourself (df)")
        return Finding(
            "ok", "space", f"each node has room for what it gets (at most {max(needed.values()) >> 20:,} MiB)"
        )

    def _bytes(self, context: Context, manifest: Manifest) -> dict[str, int]:
        """Bytes that each node fetches."""
        by_host = {
            part.host_id: sum(file.bytes for file in part.files if file.keyspace in self.keyspaces)
            for part in manifest.parts
        }
        sources = self._sources(context, manifest)
        return {address: sum(by_host[host] for host in hosts) for address, hosts in sources.items()}

    def _sources(self, context: Context, manifest: Manifest) -> dict[str, list[str]]:
        """Source host ids for each node."""
        every = [part.host_id for part in manifest.parts]
        own = {member.address: member.host_id for member in all_members(context.nodes)}
        return {address: [own[address]] if self.in_place else every for address in self.addresses}

    def cost(self, context: Context) -> list[str]:
        """Bytes to fetch, and consequences."""
        manifest = manifests.load(Store(self.url), self.backup)
        sentences = [
            f"{address} fetches {size >> 20:,} MiB." for address, size in self._bytes(context, manifest).items()
        ]
        if self.in_place:
            sentences.append("Nodes, tokens and replication are those of the backup: each node gets its own files.")
        else:
            sentences.append(
                f"Nodes, tokens or replication differ from those of the {count_text(len(manifest.parts), 'node')} of "
                "the backup: each node gets all files, and drops rows it does not own."
            )
        return [
            *sentences,
            "Keep clients away from these keyspaces until the restore has ended. Other keyspaces are not affected.",
        ]

    # ------------------------------------------------------------ steps

    def steps(self, context: Context) -> list[Step]:
        """Fetch files, recreate tables, import, clean up, verify.

        Existing data are deleted only after all new files have arrived intact.
        """
        cleanup = [] if self.in_place else [self._cleanup_step(context, address) for address in self.addresses]
        return [
            self._fetch_step(context),
            self._schema_step(context),
            self._import_step(context),
            *cleanup,
            self._proof_step(context),
        ]

    def give_up(self, context: Context) -> None:
        """Remove files that were fetched but not imported."""
        for address in self.addresses:
            try:
                self._clear_staging(context, address)
            except ChronotileError as error:
                context.echo(f"not cleaned up: {error}")

    def _schema_step(self, context: Context) -> Step:
        def require() -> None:
            rows = self._with_rows(context, self._present(context))
            if rows and not self.replace:
                raise InvalidInputError(f"{_some(rows)} got rows meanwhile: pass --replace", kind="refused")
            refused = schemas.refusals(manifests.load(Store(self.url), self.backup).schema, self.keyspaces)
            if refused:
                raise InvalidInputError(refused[0], kind="refused")

        def do() -> None:
            manifest = manifests.load(Store(self.url), self.backup)
            asked, members = any_serving(context.nodes), all_members(context.nodes)
            for table in schemas.tables_of(context.nodes, self._present(context)):
                drop = statements.drop_table(statements.full(table["keyspace"], table["name"]))
                context.nodes.query(asked, drop, timeout_s=TABLE_S)
            fitting = {
                name: schemas.fitting_replication(manifest.schema.replication[name], members) for name in self.keyspaces
            }
            wanted = {name: statements.replication(copies) for name, copies in fitting.items()}
            replication = manifest.schema.strategies if self.in_place else wanted
            schemas.make(context.nodes, manifest.schema, self.keyspaces, replication)

        def prove() -> str:
            manifest = manifests.load(Store(self.url), self.backup)
            differing = schemas.differences(
                manifest.schema, schemas.read(context.nodes, self.keyspaces), self.keyspaces
            )
            if differing:
                raise ChronotileError(f"the schema differs from the backup: {_some(differing)}", kind="not-confirmed")
            rows = self._with_rows(context, self.keyspaces)
            if rows:
                raise ChronotileError(f"{_some(rows)} has rows: keep clients away", kind="not-confirmed")
            tables = count_text(len(self._tables(context)), "table")
            return f"{tables} of {', '.join(self.keyspaces)}: as in the backup, and empty"

        return Step("schema", "recreate keyspaces and tables", do, prove, require, changes=SCHEMA_CHANGES)

    def _with_rows(self, context: Context, keyspaces: Sequence[str]) -> list[str]:
        tables = [(table["keyspace"], table["name"]) for table in schemas.tables_of(context.nodes, keyspaces)]
        return [f"{keyspace}.{name}" for keyspace, name in tables if _has_rows(context, keyspace, name)]

    def _tables(self, context: Context) -> list[tuple[str, str]]:
        manifest = manifests.load(Store(self.url), self.backup)
        return [(t["keyspace"], t["name"]) for t in manifest.schema.tables if t["keyspace"] in self.keyspaces]

    def _fetch_step(self, context: Context) -> Step:
        def fetch(address: str) -> None:
            manifest = manifests.load(Store(self.url), self.backup)
            sources = tuple(self._sources(context, manifest)[address])
            folder = self._staging(context, address)
            job = Fetch(self.url, self.backup, sources, tuple(self.keyspaces), folder, self.limit_mib)
            # Note the folder before files arrive in it: abandoning the restore removes the noted folders.
            context.note(**{f"staging {address}": folder})
            context.actuator.work(address, job, timeout_s=context.stream_s)

        def missing(address: str) -> str:
            try:
                context.nodes.shell(address, "ls", "--", f"{context.notes[f'staging {address}']}/fetched")
            except ChronotileError as error:
                return str(error)
            return ""

        def prove() -> str:
            unchecked = [address for address in self.addresses if not self._has_shell(context, address)]
            for address in self.addresses:
                if address not in unchecked:
                    what = f"the files of {address}"
                    wait_for(what, functools.partial(missing, address), timeout_s=context.stream_s)
            if unchecked:
                return f"without --shell, arrival on {', '.join(unchecked)} was not checked: the import will show it"
            return "all files have arrived, with the digests of the backup"

        text = f"have {count_text(len(self.addresses), 'node')} fetch their files"
        return Step("fetch", text, lambda: making.on_all(self.addresses, fetch), prove)

    def _has_shell(self, context: Context, address: str) -> bool:
        try:
            context.nodes.shell(address, "true")
        except ChronotileError:
            return False
        return True

    def _staging(self, context: Context, address: str) -> str:
        return str(PurePosixPath(data_folders(context.nodes, address)[0], STAGING, manifests.name_of(self.backup)))

    def _import_step(self, context: Context) -> Step:
        def prove() -> str:
            imported = {address: len(context.notes.get(f"imported {address}", [])) for address in self.addresses}
            short = [one for one, count in imported.items() if count != len(self._imports(context, one))]
            if short:
                raise ChronotileError(f"{', '.join(short)} did not import all tables", kind="not-confirmed")
            tables = [f"{count_text(count, 'table')} by {address}" for address, count in imported.items()]
            return f"imported: {', '.join(tables)}"

        def do() -> None:
            making.on_all(self.addresses, functools.partial(self._import, context))

        return Step("import", f"have {count_text(len(self.addresses), 'node')} import them", do, prove)

    def _import(self, context: Context, address: str) -> None:
        done = set(context.notes.get(f"imported {address}", []))
        for (keyspace, table), folders in self._imports(context, address).items():
            name = f"{keyspace}.{table}"
            if name in done:
                continue
            # Import files even if they contain more than the node's ranges, and mark them as unrepaired, because
            # replicas were not compared.
            words = ["import", "--no-tokens", keyspace, table, *folders]
            output = context.nodes.nodetool(address, *words, timeout_s=context.stream_s)
            if "failed to import" in output:
                raise ChronotileError(f"{address} did not import all of {name}: {output}", kind="not-confirmed")
            done.add(name)
            context.note(**{f"imported {address}": sorted(done)})
            context.echo(f"      {address} imported {name}")
        self._clear_staging(context, address)

    def _imports(self, context: Context, address: str) -> dict[tuple[str, str], list[str]]:
        """Folders to import, by keyspace and table."""
        manifest = manifests.load(Store(self.url), self.backup)
        sources = self._sources(context, manifest)[address]
        staging = context.notes[f"staging {address}"]
        folders: dict[tuple[str, str], set[str]] = defaultdict(set)
        for part in manifest.parts:
            for file in part.files:
                if part.host_id in sources and file.keyspace in self.keyspaces:
                    place = f"{staging}/{import_folder(part.host_id, file)}"
                    folders[file.keyspace, file.table].add(place)
        return {table: sorted(found) for table, found in sorted(folders.items())}

    def _clear_staging(self, context: Context, address: str) -> None:
        staging = context.notes.get(f"staging {address}")
        if staging is None:
            return
        try:
            context.nodes.shell(address, "rm", "-rf", "--one-file-system", "--", staging, timeout_s=context.node_s)
        except UnavailableError:
            context.echo(f"      remove {staging} of {address} yourself: there is no --shell")

    def _cleanup_step(self, context: Context, address: str) -> Step:
        def do() -> None:
            for keyspace in self.keyspaces:
                context.nodes.nodetool(address, "cleanup", keyspace, timeout_s=context.stream_s)
            context.note(**{f"cleaned {address}": True})

        def prove() -> str:
            if not context.notes.get(f"cleaned {address}"):
                raise ChronotileError(f"cleanup on {address} did not finish", kind="not-confirmed")
            return f"{address} holds only rows it owns"

        return Step(f"cleanup {address}", f"drop rows that {address} does not own", do, prove)

    def _proof_step(self, context: Context) -> Step:
        def do() -> None:
            if self.quick:
                return
            manifest = manifests.load(Store(self.url), self.backup)
            tables = [table for table in manifest.schema.tables if table["keyspace"] in self.keyspaces]
            verified = [proving.verify_archive(context, keyspace) for keyspace in schemas.archives(tables)]
            context.note(verified=verified)

        def prove() -> str:
            if self.quick:
                return (
                    "rows were not counted, and archives not verified: run chronotile verify --remove-foreign, "
                    "which removes rows of batches that began during the backup"
                )
            counts = {}
            for keyspace, table in self._tables(context):
                counts[f"{keyspace}.{table}"] = proving.count_rows(context.nodes, keyspace, table)
                context.echo(f"      {keyspace}.{table}: {counts[f'{keyspace}.{table}']:,} rows")
            context.note(rows=counts)
            advice = "; repair soon: chronotile ops repair run" if self.in_place and len(self.addresses) > 1 else ""
            found = f"{count_text(sum(counts.values()), 'row')} in {count_text(len(counts), 'table')}"
            return "; ".join([found, *context.notes["verified"]]) + advice

        return Step("proof", "verify archives, and count rows", do, prove)


def find_backup(store: Store, backup: str, key: Key | None = None) -> Manifest:
    """Find a backup by name, or the newest one. With a key, the newest backup must be signed: unsigned ones are not
    skipped.

    Raises
    ------
    NotFoundError
        The backup does not exist.
    DamagedError
        Its manifest is invalid, or not signed with the key.
    """
    newest = manifests.newest(store) if backup == "newest" else None
    return manifests.load(store, backup if newest is None else newest.name, key)


def is_same_ring(manifest: Manifest, members: Sequence[Member]) -> bool:
    """Whether a cluster's nodes, tokens and racks are those of a backup."""
    return {(one.host_id, one.dc, one.rack, tuple(sorted(one.tokens))) for one in members} == {
        (part.host_id, part.dc, part.rack, tuple(sorted(part.tokens))) for part in manifest.parts
    }


def _files_finding(store: Store, manifest: Manifest) -> Finding:
    damage = manifests.check_files(store, manifest.parts)
    if damage:
        text = f"{count_text(len(damage), 'damaged file')}: {damage[0]}; use another backup"
        return Finding("refused", "files", text)
    return Finding(
        "ok", "files", f"all {manifest.files} files have the right size; digests are checked during the transfer"
    )


def _has_rows(context: Context, keyspace: str, table: str) -> bool:
    where = f"keyspace_name = {statements.quoted(keyspace)} AND table_name = {statements.quoted(table)}"
    asked = any_serving(context.nodes)
    rows = context.nodes.query(asked, statements.select("column_name, kind", "system_schema.columns", where))
    key = next(row["column_name"] for row in rows if row["kind"] == "partition_key")
    statement = statements.any_row(statements.full(keyspace, table), key)
    # Ask all replicas, so that a row which only one of them has counts too.
    return bool(context.nodes.query(asked, statement, consistency="ALL", timeout_s=TABLE_S))


def _replication_text(replication: dict[str, int]) -> str:
    return ", ".join(f"{count} copies in {dc}" for dc, count in sorted(replication.items())) or "no replica"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
