"""``chronotile ops`` for procedures: each can be planned and run, and what was cut off is resumed."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import click

from chronotile.cli.common import Command
from chronotile_tools.cli import ops_backup, ops_repair
from chronotile_tools.cli.access import access_options
from chronotile_tools.cli.ops import Moment, ops
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


@ops.command(short_help="Go on with the procedure that was cut off.")
@session_options
def resume(session: Session) -> None:
    """Go on with the procedure of this cluster that was cut off, with the arguments it was begun with."""
    path = journal.unfinished(session.folder)
    if path is None:
        other = lease.unfinished_elsewhere(session.context.nodes)
        elsewhere = "" if other is None else f"; elsewhere {lease.told(other)}"
        raise NotFoundError(f"nothing is unfinished in {session.folder}{elsewhere}", kind="journal-not-found")
    with Journal(path) as kept:
        work = engine.remade(kept.header)
    finished = engine.run(work, session.context, session.folder)
    click.echo(f"finished; journal: {finished.path}")


@ops.command(short_help="Give up the procedure that was cut off.")
@session_options
def abandon(session: Session) -> None:
    """Give up the procedure that was cut off. Nodes stay as they are: look at them first. The journal stays."""
    path = engine.abandon(session.context, session.folder)
    click.echo("nothing is unfinished" if path is None else f"given up; journal: {path}")


def _journal_access(command: Command) -> Command:
    return access_options(command, optional=True)


@ops.command("journal", short_help="What procedures did.")
@_journal_access
@click.option(
    "--journal",
    "folder",
    metavar="FOLDER",
    type=click.Path(file_okay=False),
    help="Where journals lie.  [default: ~/.local/state/chronotile/ops/CLUSTER]",
)
@click.option("--last", is_flag=True, help="All entries of the newest journal, as JSON lines.")
def show_journal(access: Access | None, folder: str | None, last: bool) -> None:
    """Show what procedures did to a cluster, the newest last; without a node or --lab, to all clusters that were worked
    on from here."""
    paths = _journals(access, folder)
    if not paths:
        raise NotFoundError(
            f"there is no journal in {folder or journal.root()}: name the folder (--journal)", kind="journal-not-found"
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
    """Restart nodes one after the other.

    Each is drained, stopped and started; the next one follows when all see it up and normal again and it has got what
    it missed.
    """
    return RollingRestart.of(context, nodes)


def _disrupt(context: Context, node: str, minutes: float) -> Procedure:
    """Take a node down for work on its machine, and bring it back whole.

    It is drained and stopped; then this ends with exit code 6, and you do your work. Go on with "chronotile ops
    resume": the node is started, gets what the others kept for it, and is compared with them. Where the work took
    longer than hints are kept, it is repaired; longer than gc_grace, it is refused.
    """
    return Disruption.of(context, node, minutes)


def _return(context: Context, node: str, down_since: datetime) -> Procedure:
    """Bring back a node that was away, and make it whole.

    Refused for one that was away longer than gc_grace: what was deleted meanwhile would come back with it.
    """
    return Return.of(context, node, down_since)


def _add(context: Context, address: str) -> Procedure:
    """Add a node, then have the others drop what it took over (cleanup), one after the other."""
    return Add.of(context, address)


def _decommission(context: Context, node: str) -> Procedure:
    """Have a node hand its data to the others and leave.

    Refused where fewer nodes would stay than a keyspace wants copies.
    """
    return Decommission.of(context, node)


def _remove(context: Context, node: str) -> Procedure:
    """Remove a node that is dead for good; the others fetch from each other what it had."""
    return Remove.of(context, node)


def _replace(context: Context, node: str, address: str) -> Procedure:
    """Put an empty node in the place of a dead one.

    It takes over the dead one's tokens and fetches its data. To set a machine up anew, stop its node, empty the data
    folders and give the same address.
    """
    return Replace.of(context, node, address)


def _upgrade(context: Context, release: str) -> Procedure:
    """Let all nodes run another release, one after the other.

    A snapshot of each comes first; afterwards tables are rewritten in the new format. While it runs, no table may come
    or go: clients must not make slices, so prepare those ahead.
    """
    return Upgrade.of(context, release)


def _compatibility(context: Context, mode: str, confirm: bool) -> Procedure:
    """Go on with storage_compatibility_mode after an upgrade to 5.0, by a rolling restart.

    Each mode follows the one before: CASSANDRA_4, UPGRADING, NONE.
    """
    return Compatibility.of(context, mode, confirm)


@ops.command("settings", short_help="Merge cassandra.yaml for an upgrade.")
@click.argument("old", type=click.Path(path_type=Path))
@click.argument("ours", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Write the merged settings there.")
def merge_settings(old: Path, ours: Path, new: Path, out: Path | None) -> None:
    """Merge a cassandra.yaml for an upgrade: OLD and NEW are the files that come with the releases, OURS the node's.

    What you never changed follows the new release, what you changed stays; each difference is shown. Exits with 4 when
    you must look at some: your value and the default both changed, or the new release no longer names a setting.
    """
    merged = settings.merge(settings.read(old), settings.read(ours), settings.read(new))
    for difference in merged.differences:
        click.echo(str(difference))
    if out is not None:
        settings.write(out, merged)
    if merged.conflicts:
        raise click.exceptions.Exit(4)


def _grow(context: Context, second: str, third: str) -> Procedure:
    """Make three nodes with three copies of everything out of one.

    Replication is raised before the nodes join, so that no read is wrong; users and passwords come last. In between,
    this ends with exit code 6 and says what clients must do: go on with "chronotile ops resume".
    """
    return Grow.of(context, second, third)


def _leftovers(context: Context, node: str, confirm: bool) -> Procedure:
    """Remove what a node keeps of tables that were dropped. "plan" lists it.

    Removed with the node stopped, and with --confirm only: snapshots in these folders are the last copy of what was
    dropped.
    """
    return Leftovers.of(context, node, confirm)


_node = click.option("--node", required=True, metavar="ADDRESS", help="The node.")
_new_address = click.option("--address", default="", metavar="ADDRESS", help="The new node's.")

for _group in (
    procedure(
        "restart",
        _restart,
        click.option("--node", "nodes", multiple=True, metavar="ADDRESS", help="Only this one; may be repeated."),
    ),
    procedure(
        "disrupt",
        _disrupt,
        _node,
        click.option("--minutes", type=click.FloatRange(1), default=60.0, show_default=True, metavar="MINUTES",
                     help="How long the work is thought to take."),
    ),
    procedure(
        "return",
        _return,
        _node,
        click.option("--down-since", required=True, type=Moment(), metavar="TIME",
                     help="ISO 8601; UTC where it names no offset: 2026-03-01T08:30."),
    ),
    procedure("add", _add, _new_address),
    procedure("decommission", _decommission, _node),
    procedure("remove", _remove, _node),
    procedure("replace", _replace, _node, _new_address),
    procedure(
        "grow",
        _grow,
        click.option("--second", default="", metavar="ADDRESS", help="Of the second node."),
        click.option("--third", default="", metavar="ADDRESS", help="Of the third node."),
    ),
    procedure("leftovers", _leftovers, _node, click.option("--confirm", is_flag=True, help="I looked at the list.")),
    procedure(
        "upgrade",
        _upgrade,
        click.option("--release", required=True, metavar="RELEASE", help="Written whole: 4.1.10."),
    ),
    procedure(
        "compatibility",
        _compatibility,
        click.option("--mode", required=True, type=click.Choice(MODES[1:]), help="What to go on to."),
        click.option("--confirm", is_flag=True, help="I know that there is no way back to the release of before."),
    ),
):  # fmt: skip
    ops.add_command(_group)
