"""``chronotile ops backup`` and ``chronotile ops restore``."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path

import click

from chronotile.cli.common import confirm, json_option, yes_option
from chronotile.terminal import count_text, table_text
from chronotile_tools.cli.ops_work import procedure
from chronotile_tools.errors import DamagedError
from chronotile_tools.ops.backups import manifests, rehearsing, restoring
from chronotile_tools.ops.backups.jobs import Fetch, Progress, Send
from chronotile_tools.ops.backups.making import Backup
from chronotile_tools.ops.backups.manifests import Manifest, RemovalReport
from chronotile_tools.ops.backups.restoring import Restore
from chronotile_tools.ops.backups.signing import Key, make_key
from chronotile_tools.ops.backups.stores import Store
from chronotile_tools.ops.procedures.nodes import Echo

_limit = click.option("--limit", "limit_mib", type=click.FloatRange(0), default=0.0, metavar="MIB/S",
                      help="Bandwidth limit per node. [default: no limit]")  # fmt: skip
_keyspace = click.option(
    "--keyspace", "keyspaces", multiple=True, metavar="NAME", help="Only this keyspace; repeatable."
)
_store = click.argument("store", metavar="STORE")
_backup = click.argument("name", metavar="BACKUP")


def _text_echo(as_json: bool) -> Echo:
    """Print progress lines; to standard error if standard output is JSON."""
    return functools.partial(click.echo, err=as_json)


_key = click.option("--sign-key", "key_file", default="", metavar="FILE",
                    help="Key file to sign the manifest with, or to verify its signature.")  # fmt: skip


backup = procedure(
    Backup,
    click.option(
        "--to", "url", required=True, metavar="STORE", help="Store of backups: a folder, or s3://bucket/prefix."
    ),
    _keyspace,
    click.option(
        "--name", "label", default="", metavar="NAME", help="Name of the backup. [default: time and cluster name]"
    ),
    _limit,
    click.option("--create", is_flag=True, help="Create the store if it does not exist."),
    _key,
)
restore = procedure(
    Restore,
    click.option(
        "--from", "url", required=True, metavar="STORE", help="Store of backups: a folder, or s3://bucket/prefix."
    ),
    click.option("--backup", required=True, metavar="BACKUP", help="Name of the backup, or newest."),
    _keyspace,
    click.option("--replace", is_flag=True, help="Delete existing rows, and tables that the backup does not contain."),
    click.option("--quick", is_flag=True, help="Skip counting rows and verifying archives at the end."),
    _limit,
    _key,
)


@backup.command("list", short_help="List backups.")
@_store
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@_key
def list_backups(store: str, as_json: bool, key_file: str) -> None:
    """List the backups of a store, oldest first, and unfinished ones. With --sign-key, backups not signed with this key
    are listed separately.
    """
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
    click.echo(table_text(columns, rows, right=frozenset({4, 5, 6, 7})) if rows else f"no backups in {opened.url}")
    for name in damaged:
        click.echo(f"DAMAGED: {name}: invalid manifest (for details: ops backup verify)")
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


@backup.command(short_help="Verify the files of a backup.")
@_store
@_backup
@click.option(
    "--drop",
    is_flag=True,
    help="Delete damaged files, so that the next backup sends them again if a node still has them.",
)
@_key
@json_option
def verify(store: str, name: str, drop: bool, key_file: str, as_json: bool) -> None:
    """Read all files of a backup (or the newest) and compare sizes and digests; list the files that differ."""
    opened = Store(store)
    manifest = restoring.find_backup(opened, name, Key.read_optional(key_file))
    echo = _text_echo(as_json)
    progress = Progress(echo, "read", 0)

    def advance(done: int, whole: int) -> None:
        progress.whole = whole
        progress.add(done - progress.done)

    damage = manifests.verify(opened, manifest.name, progress=advance)
    for one in damage:
        echo(f"DAMAGED  {one}")
        if drop:
            opened.delete(one.key)
    if as_json:
        record = {"ok": not damage, "damaged": [dataclasses.asdict(one) for one in damage], **_about(manifest)}
        click.echo(json.dumps(record, indent=2))
    if damage:
        raise DamagedError(
            f"{count_text(len(damage), 'damaged file')} of {manifest.name}: make a new backup, and check the "
            "store's disks",
            kind="damaged-backup",
        )
    if not as_json:
        files, nodes = count_text(manifest.files, "file"), count_text(len(manifest.parts), "node")
        click.echo(f"{manifest.name}: {files} of {nodes} intact")


@backup.command(short_help="Remove backups.")
@_store
@click.argument("names", nargs=-1, required=True, metavar="BACKUP...")
@yes_option
@json_option
def remove(store: str, names: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Remove backups, and files that no other backup refers to. Asks for confirmation, unless --yes is given."""
    confirm(f"Permanently remove {', '.join(names)} from {store}?", yes)
    _say(manifests.remove(Store(store), names), as_json)


@backup.command(short_help="Remove all but the newest backups.")
@_store
@click.option(
    "--keep", type=click.IntRange(1), required=True, metavar="N", help="Number of backups to keep per cluster."
)
@click.option("--cluster", default="", metavar="NAME", help="Only backups of this cluster.")
@yes_option
@json_option
def retain(store: str, keep: int, cluster: str, yes: bool, as_json: bool) -> None:
    """Remove all but the newest backups of each cluster, and files that no remaining backup refers to. Asks for
    confirmation, unless --yes is given.
    """
    confirm(f"Remove all but the newest {keep} backups{f' of {cluster}' if cluster else ''} from {store}?", yes)
    _say(manifests.retain(Store(store), keep, cluster=cluster), as_json)


def _say(removed: RemovalReport, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(removed), indent=2))
        return
    for name in removed.backups:
        click.echo(f"removed {name}")
    click.echo(f"{count_text(removed.files, 'file')}, {removed.bytes / 2**20:,.1f} MiB, freed in the store")


@backup.command("test", short_help="Test a restore in a laboratory cluster.")
@_store
@_backup
@click.option("--nodes", type=click.IntRange(1, 9), default=1, show_default=True, help="Number of nodes.")
@click.option("--heap", default="512m", show_default=True, metavar="SIZE", help="Heap of each node.")
@_keyspace
@_key
@json_option
def rehearse(
    store: str, name: str, nodes: int, heap: str, keyspaces: tuple[str, ...], key_file: str, as_json: bool
) -> None:  # fmt: skip
    """Restore a backup (or the newest) into a new cluster on this machine, count its rows, verify its archives, and
    take the cluster down. The exit code is 0 only if everything was restored completely.
    """
    echo = _text_echo(as_json)
    report = rehearsing.rehearse(store, name, keyspaces, nodes=nodes, heap=heap, key_file=key_file, echo=echo)
    click.echo(json.dumps(dataclasses.asdict(report), indent=2) if as_json else str(report))


@backup.command(short_help="Send a node's files to a backup, on the node's machine.")
@click.option("--to", "url", required=True, metavar="STORE")
@click.option("--name", required=True, metavar="BACKUP")
@click.option("--node", "host_id", required=True, metavar="HOST-ID")
@click.option("--data", "folders", required=True, multiple=True, metavar="FOLDER", help="Data folder of the node.")
@_limit
@click.option(
    "--base", default="", metavar="BACKUP@SHA256", help="Backup whose digests are reused for unchanged files."
)
def send(url: str, name: str, host_id: str, folders: tuple[str, ...], limit_mib: float, base: str) -> None:
    """Send the files of a node's snapshots that the store does not have yet. "ops backup run" runs this command on the
    node's machine, as a user who may read its data.
    """
    Send(url, name, host_id, folders, limit_mib, base).run(click.echo)


@backup.command("key", short_help="Create a key for signing manifests.")
@click.argument("file", type=click.Path(path_type=Path))
def make_key_file(file: Path) -> None:
    """Write a new key to FILE, readable only by you. Keep a copy away from the store: anyone with the key can sign."""
    make_key(file)
    click.echo(f"wrote {file}; sign with it: chronotile ops backup run ... --sign-key {file}")


@restore.command(short_help="Fetch files of a backup, on the node's machine.")
@click.option("--from", "url", required=True, metavar="STORE")
@click.option("--backup", "name", required=True, metavar="BACKUP[@SHA256]")
@click.option("--into", "folder", required=True, metavar="FOLDER")
@click.option("--node", "sources", required=True, multiple=True, metavar="HOST-ID", help="Nodes whose files to fetch.")
@click.option("--keyspace", "keyspaces", required=True, multiple=True, metavar="NAME")
@_limit
def fetch(
    url: str, name: str, folder: str, sources: tuple[str, ...], keyspaces: tuple[str, ...], limit_mib: float
) -> None:
    """Fetch files of a backup to a folder from which a node can import them. "ops restore run" runs this command on the
    node's machine, as Cassandra's user.
    """
    Fetch(url, name, sources, keyspaces, folder, limit_mib).run(click.echo)
