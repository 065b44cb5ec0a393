"""``chronotile ops`` procedures: plan, run and resume maintenance."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import click

from chronotile.cli.common import Command
from chronotile_tools.cli import ops_backup, ops_repair
from chronotile_tools.cli.access import access_options
from chronotile_tools.cli.ops import Time, ops
from chronotile_tools.cli.ops_work import Session, cluster_name, procedure, session_options
from chronotile_tools.errors import NotFoundError
from chronotile_tools.ops.access import Access
from chronotile_tools.ops.procedures import Context, Journal, Procedure, engine, journal, lease, settings
from chronotile_tools.ops.procedures.disruptions import Disruption, Return
from chronotile_tools.ops.procedures.growing import Grow
from chronotile_tools.ops.procedures.leftovers import Leftovers
from chronotile_tools.ops.procedures.membership import Add, Decommission, Remove, Replace
from chronotile_tools.ops.procedures.restarts import RollingRestart
from chronotile_tools.ops.procedures.upgrades import MODES, Compatibility, Upgrade

for _command in (ops_backup.backup, ops_backup.restore, ops_repair.repair):
    ops.add_command(_command)


@ops.command(short_help="Resume an interrupted procedure.")
@session_options
def resume(session: Session) -> None:
    """Resume the interrupted procedure of this cluster, with its original arguments."""
    path = journal.unfinished(session.folder)
    if path is None:
        other = lease.unfinished_elsewhere(session.context.nodes)
        elsewhere = "" if other is None else f"; elsewhere {lease.describe(other)}"
        raise NotFoundError(f"no unfinished procedure in {session.folder}{elsewhere}", kind="journal-not-found")
    with Journal(path) as kept:
        work = engine.remade(kept.header)
    finished = engine.run(work, session.context, session.folder)
    click.echo(f"finished; journal: {finished.path}")


@ops.command(short_help="Abandon an interrupted procedure.")
@session_options
def abandon(session: Session) -> None:
    """Abandon the interrupted procedure. Nodes stay in their present state: check them first. The journal is kept."""
    path = engine.abandon(session.context, session.folder)
    click.echo("no unfinished procedure" if path is None else f"abandoned; journal: {path}")


def _journal_access(command: Command) -> Command:
    return access_options(command, optional=True)


@ops.command("journal", short_help="Show journals of procedures.")
@_journal_access
@click.option(
    "--journal",
    "folder",
    metavar="FOLDER",
    type=click.Path(file_okay=False),
    help="Folder of journals. [default: ~/.local/state/chronotile/ops/CLUSTER]",
)
@click.option("--last", is_flag=True, help="Print all entries of the newest journal as JSON lines.")
def show_journal(access: Access | None, folder: str | None, last: bool) -> None:
    """Show the journals of procedures on a cluster, newest last; without a node or --lab, of all clusters maintained
    from this machine.
    """
    paths = _journals(access, folder)
    if not paths:
        raise NotFoundError(
            f"no journals in {folder or journal.root()}: select the folder with --journal", kind="journal-not-found"
        )
    if last:
        click.echo(paths[-1].read_text(encoding="utf-8"), nl=False)
        return
    for path in paths:
        click.echo(f"{'ended' if journal.ended(path) else 'UNFINISHED':<10}  {path}")


def _journals(access: Access | None, folder: str | None) -> list[Path]:
    if folder is not None:
        return journal.paths(Path(folder))
    if access is not None:
        return journal.paths(journal.default_folder(cluster_name(access)))
    return sorted((path for one in journal.root().glob("*/") for path in journal.paths(one)), key=lambda one: one.name)


def _restart(context: Context, nodes: tuple[str, ...]) -> Procedure:
    """Restart nodes one at a time. Each node is drained, stopped and started; the next follows when all nodes see it up
    and normal, and its hints have been delivered.
    """
    return RollingRestart.of(context, nodes)


def _disrupt(context: Context, node: str, minutes: float) -> Procedure:
    """Take a node down for maintenance, and bring it back in sync.

    The node is drained and stopped, and the command exits with code 6. Do your work, then run "chronotile ops resume":
    the node is started, receives its hints, and is compared with the other replicas. If it was down for longer than the
    hint window, it is repaired; for longer than gc_grace, it must not return.
    """
    return Disruption.of(context, node, minutes)


def _return(context: Context, node: str, down_since: datetime) -> Procedure:
    """Bring back a node that was down, and sync it. Refused if it was down for longer than gc_grace, because rows
    deleted meanwhile would reappear.
    """
    return Return.of(context, node, down_since)


def _add(context: Context, address: str) -> Procedure:
    """Add a node, then clean up the other nodes one at a time."""
    return Add.of(context, address)


def _decommission(context: Context, node: str) -> Procedure:
    """Decommission a live node: it streams its data to the others and leaves. Refused if fewer nodes would remain than
    a keyspace's replication factor.
    """
    return Decommission.of(context, node)


def _remove(context: Context, node: str) -> Procedure:
    """Remove a permanently dead node; the others restore its replicas from each other."""
    return Remove.of(context, node)


def _replace(context: Context, node: str, address: str) -> Procedure:
    """Replace a dead node by an empty one, which takes over its tokens and streams its data. To rebuild a machine, stop
    its node, empty the data folders and give the same address.
    """
    return Replace.of(context, node, address)


def _upgrade(context: Context, release: str) -> Procedure:
    """Upgrade all nodes to another release, one at a time. Each node is snapshotted first; at the end, tables are
    rewritten in the new format. No table may be created or dropped meanwhile: prepare slices in advance, so that
    clients create none.
    """
    return Upgrade.of(context, release)


def _compatibility(context: Context, mode: str, confirm: bool) -> Procedure:
    """Advance storage_compatibility_mode after an upgrade to 5.0, by a rolling restart. The order of modes is
    CASSANDRA_4, UPGRADING, NONE.
    """
    return Compatibility.of(context, mode, confirm)


@ops.command("settings", short_help="Merge cassandra.yaml for an upgrade.")
@click.argument("old", type=click.Path(path_type=Path))
@click.argument("ours", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Output file for the merged settings.")
def merge_settings(old: Path, ours: Path, new: Path, out: Path | None) -> None:
    """Merge a cassandra.yaml for an upgrade: OLD and NEW are the files that come with the releases, OURS is the node's.
    Settings that you never changed follow the new release; those that you changed stay. Each difference is shown. The
    exit code is 4 if some need your attention: your value and the default both changed, or the new release no longer
    has a setting.
    """
    merged = settings.merge(settings.read(old), settings.read(ours), settings.read(new))
    for difference in merged.differences:
        click.echo(str(difference))
    if out is not None:
        settings.write(out, merged)
    if merged.conflicts:
        raise click.exceptions.Exit(4)


def _grow(context: Context, second: str, third: str) -> Procedure:
    """Grow a cluster from one node to three, with replication factor 3. Replication is raised before the nodes join, so
    that no read is wrong; users and passwords come last. In between, the command exits with code 6 and tells you what
    clients must do; then run "chronotile ops resume".
    """
    return Grow.of(context, second, third)


def _leftovers(context: Context, node: str, confirm: bool) -> Procedure:
    """Remove a node's leftover files of dropped tables. "plan" lists them. They are removed only with --confirm and
    while the node is stopped: snapshots in these folders are the last copy of the dropped data.
    """
    return Leftovers.of(context, node, confirm)


_node = click.option("--node", required=True, metavar="ADDRESS", help="Address of the node.")
_new_address = click.option("--address", default="", metavar="ADDRESS", help="Address of the new node.")

for _group in (
    procedure(
        "restart",
        _restart,
        click.option("--node", "nodes", multiple=True, metavar="ADDRESS", help="Only this node; repeatable."),
    ),
    procedure(
        "disrupt",
        _disrupt,
        _node,
        click.option("--minutes", type=click.FloatRange(1), default=60.0, show_default=True, metavar="MINUTES",
                     help="Expected duration of the work."),
    ),
    procedure(
        "return",
        _return,
        _node,
        click.option("--down-since", required=True, type=Time(), metavar="TIME",
                     help="Time the node went down, ISO 8601, UTC without an offset: 2026-03-01T08:30."),
    ),
    procedure("add", _add, _new_address),
    procedure("decommission", _decommission, _node),
    procedure("remove", _remove, _node),
    procedure("replace", _replace, _node, _new_address),
    procedure(
        "grow",
        _grow,
        click.option("--second", default="", metavar="ADDRESS", help="Address of the second node."),
        click.option("--third", default="", metavar="ADDRESS", help="Address of the third node."),
    ),
    procedure("leftovers", _leftovers, _node, click.option("--confirm", is_flag=True, help="Confirm the removal.")),
    procedure(
        "upgrade",
        _upgrade,
        click.option("--release", required=True, metavar="RELEASE", help="Full release number: 4.1.10."),
    ),
    procedure(
        "compatibility",
        _compatibility,
        click.option("--mode", required=True, type=click.Choice(MODES[1:]), help="The next mode."),
        click.option("--confirm", is_flag=True, help="Confirm that you cannot go back to the previous release."),
    ),
):  # fmt: skip
    ops.add_command(_group)
