"""``chronotile ops backup`` and ``chronotile ops restore``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from chronotile.cli.common import confirm, yes_option
from chronotile.terminal import table_text
from chronotile_tools.cli.ops_work import procedure
from chronotile_tools.errors import DamagedError
from chronotile_tools.ops.backups import manifests, rehearsing, restoring
from chronotile_tools.ops.backups.jobs import Fetch, Progress, Send
from chronotile_tools.ops.backups.making import Backup
from chronotile_tools.ops.backups.manifests import Manifest, Removed
from chronotile_tools.ops.backups.restoring import Restore
from chronotile_tools.ops.backups.signing import Key, make_key
from chronotile_tools.ops.backups.stores import Store
from chronotile_tools.ops.procedures import Context, Procedure

_limit = click.option("--limit", "limit_mib", type=click.FloatRange(0), default=0.0, metavar="MIB/S",
                      help="What each node may send or fetch.  [default: no limit]")  # fmt: skip
_keyspace = click.option(
    "--keyspace", "keyspaces", multiple=True, metavar="NAME", help="Only this one; may be repeated."
)
_store = click.argument("store", metavar="STORE")
_backup = click.argument("name", metavar="BACKUP")


_key = click.option("--sign-key", "key_file", default="", metavar="FILE",
                    help="The manifest is signed with this key, or must be.")  # fmt: skip


def _make(
    context: Context,
    url: str,
    keyspaces: tuple[str, ...],
    label: str,
    limit_mib: float,
    create: bool,
    key_file: str,
) -> Procedure:
    """Copy keyspaces of all nodes to a folder or an object store, list, check and remove such copies.

    All nodes take a snapshot at nearly the same moment, catalogs of archives first; then each sends the files that the
    store does not have yet, and at last the manifest is written: without it a backup does not exist.

    \b
    Examples:
        chronotile ops backup run 10.0.0.1 --nodetool 'ssh {host} nodetool' \\
            --send-command 'ssh {host} chronotile ops backup send' --to s3://backups/plant
        chronotile ops backup run --lab plant --to /mnt/backups --create --sign-key ~/backups.key
        chronotile ops backup verify /mnt/backups newest
    """
    return Backup.of(context, url, keyspaces, label, limit_mib, create=create, key_file=key_file)


def _restore(
    context: Context,
    url: str,
    backup: str,
    keyspaces: tuple[str, ...],
    replace: bool,
    quick: bool,
    limit_mib: float,
    key_file: str,
) -> Procedure:
    """Bring keyspaces back to what they were when a backup was made, in place or on any other nodes.

    Where the nodes and their tokens are those of the backup, each gets its own files; else each gets all, and drops
    what it does not own. Copies are adapted to the number of nodes. Rows that are there go with --replace only.
    Of its schema, only statements that create tables, types, functions, aggregates and indexes of its keyspaces are
    run. With --sign-key, a backup that is unsigned or signed with another key is refused.

    \b
    Examples:
        chronotile ops restore plan --lab plant --from /mnt/backups --backup newest
        chronotile ops restore run --lab plant --from /mnt/backups --backup newest --replace
    """
    return Restore.of(context, url, backup, keyspaces, replace, quick, limit_mib, key_file=key_file)


backup = procedure(
    "backup",
    _make,
    click.option("--to", "url", required=True, metavar="STORE", help="A folder, or s3://bucket/prefix."),
    _keyspace,
    click.option("--name", "label", default="", metavar="NAME", help="[default: time and name of the cluster]"),
    _limit,
    click.option("--create", is_flag=True, help="Make the store where it is not there."),
    _key,
)
restore = procedure(
    "restore",
    _restore,
    click.option("--from", "url", required=True, metavar="STORE", help="A folder, or s3://bucket/prefix."),
    click.option("--backup", required=True, metavar="BACKUP", help="Its name, or newest."),
    _keyspace,
    click.option(
        "--replace", is_flag=True, help="Rows that are there may go, and tables that the backup does not have."
    ),
    click.option("--quick", is_flag=True, help="Count no rows and verify no archive at the end."),
    _limit,
    _key,
)


@backup.command("list", short_help="What a store of backups holds.")
@_store
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@_key
def list_backups(store: str, as_json: bool, key_file: str) -> None:
    """Show the backups of a store, the oldest first, and those that were begun and not finished. With --sign-key, those
    that are not signed with it are named apart."""
    opened = Store(store)
    opened.require_there()
    found, damaged = manifests.read_all(opened)
    trusted = manifests.read_all(opened, Key.read(key_file))[0] if key_file else found
    unsigned = [one.name for one in found if one not in trusted]
    found = trusted
    if as_json:
        for one in found:
            click.echo(json.dumps(_about(one)))
        return
    rows = [
        [one.name, one.cluster, one.release, one.begun_utc[:19], str(len(one.parts)), str(one.files),
         f"{one.bytes / 2**20:,.1f}", f"{one.sent_bytes / 2**20:,.1f}"]
        for one in found
    ]  # fmt: skip
    columns = ["backup", "cluster", "release", "begun (UTC)", "nodes", "files", "MiB", "MiB sent"]
    click.echo(table_text(columns, rows, right=frozenset({4, 5, 6, 7})) if rows else f"no backup in {opened.url}")
    for name in damaged:
        click.echo(f"DAMAGED: {name}: its manifest cannot be used (ops backup verify says why)")
    for name in unsigned:
        click.echo(f"UNSIGNED: {name}: not signed with {key_file}")
    for name in manifests.unfinished(opened):
        click.echo(f"UNFINISHED: {name}")


def _about(one: Manifest) -> dict[str, object]:
    return {
        "name": one.name, "cluster": one.cluster, "release": one.release, "begun_utc": one.begun_utc,
        "ended_utc": one.ended_utc, "keyspaces": one.keyspaces, "nodes": [part.address for part in one.parts],
        "files": one.files, "bytes": one.bytes, "sent_files": one.sent_files, "sent_bytes": one.sent_bytes,
        "remarks": one.remarks,
    }  # fmt: skip


@backup.command(short_help="Read all files of a backup and compare their digests.")
@_store
@_backup
@click.option("--drop", is_flag=True, help="Delete damaged files: a node that still has one sends it again next time.")
@_key
def verify(store: str, name: str, drop: bool, key_file: str) -> None:
    """Read all files of a backup (or of the newest) and compare their sizes and digests; name those that differ."""
    opened = Store(store)
    manifest = restoring.found(opened, name, Key.read_optional(key_file))
    progress = Progress(click.echo, "read", 0)

    def told(done: int, whole: int) -> None:
        progress.whole = whole
        progress.add(done - progress.done)

    damage = manifests.verify(opened, manifest.name, told=told)
    for one in damage:
        click.echo(f"DAMAGED  {one}")
        if drop:
            opened.delete(one.key)
    if damage:
        raise DamagedError(
            f"{len(damage)} files of {manifest.name} are damaged: make a new backup, and look at the store's disks",
            kind="damaged-backup",
        )
    click.echo(f"{manifest.name}: {manifest.files} files of {len(manifest.parts)} nodes are as they were sent")


@backup.command(short_help="Remove backups.")
@_store
@click.argument("names", nargs=-1, required=True, metavar="BACKUP...")
@yes_option
def remove(store: str, names: tuple[str, ...], yes: bool) -> None:
    """Remove backups, and the files that no other backup names. Asks, unless --yes is given."""
    confirm(f"Remove {', '.join(names)} from {store} for good?", yes)
    _say(manifests.remove(Store(store), names))


@backup.command(short_help="Remove all but the newest backups.")
@_store
@click.option("--keep", type=click.IntRange(1), required=True, metavar="N", help="How many of each cluster stay.")
@click.option("--cluster", default="", metavar="NAME", help="Only those of this cluster.")
@yes_option
def retain(store: str, keep: int, cluster: str, yes: bool) -> None:
    """Remove all but the newest backups of each cluster, and the files that none of them names. Asks, unless --yes is
    given."""
    confirm(f"Remove all but the newest {keep} backups{f' of {cluster}' if cluster else ''} from {store}?", yes)
    _say(manifests.retain(Store(store), keep, cluster=cluster))


def _say(removed: Removed) -> None:
    for name in removed.backups:
        click.echo(f"removed {name}")
    click.echo(f"{removed.files} files, {removed.bytes / 2**20:,.1f} MiB, are gone from the store")


@backup.command("test", short_help="Restore a backup into a laboratory cluster and look at it.")
@_store
@_backup
@click.option("--nodes", type=click.IntRange(1, 9), default=1, show_default=True, help="Of the cluster.")
@click.option("--heap", default="512m", show_default=True, metavar="SIZE", help="Of each node.")
@_keyspace
@_key
def rehearse(store: str, name: str, nodes: int, heap: str, keyspaces: tuple[str, ...], key_file: str) -> None:
    """Restore a backup (or the newest) into a new cluster on this machine, count its rows, verify its archives, and
    take the cluster down. Ends with 0 only if all came back whole."""
    report = rehearsing.rehearse(store, name, keyspaces, nodes=nodes, heap=heap, key_file=key_file, echo=click.echo)
    click.echo(str(report))


@backup.command(short_help="On a node's machine: send its part of a backup.")
@click.option("--to", "url", required=True, metavar="STORE")
@click.option("--name", required=True, metavar="BACKUP")
@click.option("--node", "host_id", required=True, metavar="HOST-ID")
@click.option("--data", "folders", required=True, multiple=True, metavar="FOLDER", help="A data folder of the node.")
@_limit
@click.option("--base", default="", metavar="BACKUP@SHA256", help="Whose digests are taken for files of then.")
def send(url: str, name: str, host_id: str, folders: tuple[str, ...], limit_mib: float, base: str) -> None:
    """Send the files of a node's snapshots that the store does not have yet. Run by "ops backup run", on the machine of
    the node, by a user who may read its data."""
    Send(url, name, host_id, folders, limit_mib, base).run(click.echo)


@backup.command("key", short_help="Make a key that manifests are signed with.")
@click.argument("file", type=click.Path(path_type=Path))
def make_key_file(file: Path) -> None:
    """Write a new key into FILE, which only you may read. Keep a copy away from the store: whoever has it can sign."""
    make_key(file)
    click.echo(f"wrote {file}; sign with it: chronotile ops backup run ... --sign-key {file}")


@restore.command(short_help="On a node's machine: fetch files of a backup.")
@click.option("--from", "url", required=True, metavar="STORE")
@click.option("--backup", "name", required=True, metavar="BACKUP[@SHA256]")
@click.option("--into", "folder", required=True, metavar="FOLDER")
@click.option("--node", "sources", required=True, multiple=True, metavar="HOST-ID", help="Whose files.")
@click.option("--keyspace", "keyspaces", required=True, multiple=True, metavar="NAME")
@_limit
def fetch(
    url: str, name: str, folder: str, sources: tuple[str, ...], keyspaces: tuple[str, ...], limit_mib: float
) -> None:
    """Fetch files of a backup to where a node can import them. Run by "ops restore run", on the machine of the node, by
    the user that Cassandra runs as."""
    Fetch(url, name, sources, keyspaces, folder, limit_mib).run(click.echo)
