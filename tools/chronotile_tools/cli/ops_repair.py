"""``chronotile ops repair``."""

from __future__ import annotations

from pathlib import Path

import click

from chronotile.terminal import table_text
from chronotile_tools import ring
from chronotile_tools.cli.ops_work import Session, procedure, session_options
from chronotile_tools.ops.procedures import Journal, journal
from chronotile_tools.ops.procedures.nodes import any_serving
from chronotile_tools.ops.repair import Repair, reading, segments

repair = procedure(
        Repair,
    click.option("--keyspace", "keyspaces", multiple=True, metavar="NAME", help="Only this keyspace; repeatable."),
    click.option("--table", "tables", multiple=True, metavar="KEYSPACE.TABLE", help="Only this table; repeatable."),
    click.option("--capacity", "capacity_mbit", type=click.FloatRange(0), default=0.0, metavar="MBIT/S",
                 help="Bandwidth of streams to one node; the nodes' limits are set accordingly and restored "
                 "afterwards. [default: the nodes' own]"),
    click.option("--segment-time", "segment_s", type=click.FloatRange(10), default=segments.SECONDS_MAX,
                 show_default=True, metavar="SECONDS", help="Segments that take longer are stopped and halved."),
    click.option("--anyway", is_flag=True, help="Even if the nodes repair automatically (auto_repair)."),
)  # fmt: skip


@repair.command(short_help="Show the progress of repairs.")
@session_options
def status(session: Session) -> None:
    """Show the progress of the newest repair, whether nodes repair automatically, and the share marked by incremental
    repairs.
    """
    found = [path for path in journal.paths(session.folder) if path.stem.endswith("-repair")]
    if found:
        _show(found[-1])
    else:
        click.echo(f"no repairs in {session.folder}")
    nodes = session.context.nodes
    asked = any_serving(nodes)
    native = reading.native_scheduler(nodes, asked)
    click.echo(f"the nodes {'repair automatically (auto_repair)' if native else 'do not repair automatically'}")
    rows = []
    for name in reading.repairable(nodes, [], []):
        keyspace, table = name.split(".", 1)
        rows.append([name, f"{reading.percent_repaired(nodes, asked, keyspace).get(table, 0.0):.1f}"])
    click.echo(table_text(["table", "% repaired incrementally"], rows, right=frozenset({1})))


def _show(path: Path) -> None:
    with Journal(path) as kept:
        click.echo(f"{'ended' if journal.ended(kept.path) else 'UNFINISHED'}: {kept.path}")
        rows = []
        for group in kept.header["arguments"]["groups"]:
            key = ",".join(group)
            done = [entry for entry in kept.of("segment") if entry["tables"] == key]
            share = sum(entry["width"] for entry in done) / ring.SIZE
            failed = sum(entry["tables"] == key for entry in kept.of("segment-failed"))
            name = group[0] if len(group) == 1 else f"{group[0]} and {len(group) - 1} more"
            nodes = [entry for entry in kept.of("node") if entry["tables"] == key]
            pieces = f"{len(done)} segments"
            if nodes and not done:
                # Small tables go by node.
                pieces, share = f"{len(nodes)} nodes", len(nodes) / nodes[0]["of"]
            rows.append([name, pieces, str(failed), f"{share:.0%}"])
        click.echo(table_text(["tables", "repaired", "failed", "done"], rows, right=frozenset({1, 2, 3})))
