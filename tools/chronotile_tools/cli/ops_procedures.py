"""``chronotile ops`` procedures: plan, run and resume maintenance."""

from __future__ import annotations

from pathlib import Path

import click

from chronotile.cli.common import Command
from chronotile_tools.cli import ops_backup, ops_repair
from chronotile_tools.cli.access import access_options
from chronotile_tools.cli.ops import Time, ops
from chronotile_tools.cli.ops_work import Session, cluster_name, procedure, session_options
from chronotile_tools.errors import NotFoundError
from chronotile_tools.ops.access import Access
from chronotile_tools.ops.procedures import Journal, engine, journal, lease, settings
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
        work = engine.recreate_procedure(kept.header)
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


@ops.command("settings", short_help="Merge cassandra.yaml for an upgrade.")
@click.argument("old", type=click.Path(path_type=Path))
@click.argument("ours", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Output file for the merged settings.")
def merge_settings(old: Path, ours: Path, new: Path, out: Path | None) -> None:
    """Merge a cassandra.yaml for an upgrade: OLD and NEW are the files that come with the releases, OURS is the node's.
    Settings that you never changed follow the new release; those that you changed stay. Each difference is shown. The
    exit code is 4 if a setting needs your attention: your value and the default both changed, or the new release no
    longer has the setting.
    """
    merged = settings.merge(settings.read(old), settings.read(ours), settings.read(new))
    for difference in merged.differences:
        click.echo(str(difference))
    if out is not None:
        settings.write(out, merged)
    if merged.conflicts:
        raise click.exceptions.Exit(4)


_node = click.option("--node", "address", required=True, metavar="ADDRESS", help="Address of the node.")
_dead_node = click.option("--node", "dead", required=True, metavar="ADDRESS", help="Address of the node.")
_new_address = click.option("--address", default="", metavar="ADDRESS", help="Address of the new node.")

for _group in (
    procedure(
        RollingRestart,
        click.option("--node", "addresses", multiple=True, metavar="ADDRESS", help="Only this node; repeatable."),
    ),
    procedure(
        Disruption, _node,
        click.option("--minutes", type=click.FloatRange(1), default=60.0, show_default=True, metavar="MINUTES",
                     help="Expected duration of the work."),
    ),
    procedure(
        Return, _node,
        click.option("--down-since", required=True, type=Time(), metavar="TIME",
                     help="Time the node went down, ISO 8601, UTC without an offset: 2026-03-01T08:30."),
    ),
    procedure(Add, _new_address),
    procedure(Decommission, _node),
    procedure(Remove, _node),
    procedure(Replace, _dead_node, _new_address),
    procedure(
        Grow,
        click.option("--second", default="", metavar="ADDRESS", help="Address of the second node."),
        click.option("--third", default="", metavar="ADDRESS", help="Address of the third node."),
    ),
    procedure(
        Leftovers, _node, click.option("--confirm", "confirmed", is_flag=True, help="Confirm the removal.")
    ),
    procedure(
        Upgrade,
        click.option("--release", required=True, metavar="RELEASE", help="Full release number: 4.1.10."),
    ),
    procedure(
        Compatibility,
        click.option("--mode", required=True, type=click.Choice(MODES[1:]), help="The next mode."),
        click.option("--confirm", "confirmed", is_flag=True,
                     help="Confirm that you cannot go back to the previous release."),
    ),
):  # fmt: skip
    ops.add_command(_group)
